//! An object with its maps and loaded programs: what a host keeps.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use bpfkit_maps::Map;
use bpfkit_object::{Linker, Object, ObjectError, SlotValue, Target};
use bpfkit_runtime::{
    Engine, Executable, Interpreter, LoadError, LoadOptions, Local, MapOptions, MapSet, MapSetError,
};
use bpfkit_verifier::{Environment, Verdict};

/// Why an object's program cannot run.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The object has no program of that name.
    #[error("no program '{name}'")]
    NoProgram {
        /// The name asked for.
        name: String,
    },
    /// The object does not link.
    #[error(transparent)]
    Object(#[from] ObjectError),
    /// A map cannot be made.
    #[error(transparent)]
    Maps(#[from] MapSetError),
    /// A program cannot be loaded.
    #[error("program {program}: {error}")]
    Load {
        /// Name of the program.
        program: String,
        /// What is wrong with it.
        error: LoadError,
    },
}

/// What a session's programs are linked against and run by.
pub struct SessionOptions<'t> {
    /// The kernel to link against.
    pub target: Target<'t>,
    /// The engine.
    pub engine: Box<dyn Engine>,
    /// How maps are made.
    pub maps: MapOptions,
}

impl Default for SessionOptions<'_> {
    /// No kernel, the interpreter, one worker.
    fn default() -> Self {
        SessionOptions {
            target: Target::default(),
            engine: Box::new(Interpreter::default()),
            maps: MapOptions::default(),
        }
    }
}

/// An object whose maps exist and whose programs load on demand, sharing those maps.
pub struct Session<'t> {
    object: Object,
    options: SessionOptions<'t>,
    maps: Arc<MapSet>,
    loaded: Mutex<HashMap<String, Arc<dyn Executable>>>,
}

impl Session<'_> {
    /// Makes the maps of an object, for one worker and the interpreter, with no kernel to
    /// link against.
    ///
    /// # Errors
    /// When a map cannot be made.
    pub fn new(object: Object) -> Result<Self, SessionError> {
        Self::with(object, SessionOptions::default())
    }
}

impl<'t> Session<'t> {
    /// Makes the maps of an object.
    ///
    /// # Errors
    /// When a map cannot be made.
    pub fn with(object: Object, options: SessionOptions<'t>) -> Result<Self, SessionError> {
        let defs = Linker::new(&object, &options.target).maps();
        let maps = MapSet::with_types(&defs, object.btf.as_deref(), &options.maps)?;
        Ok(Session {
            object,
            options,
            maps,
            loaded: Mutex::default(),
        })
    }

    /// The object.
    pub fn object(&self) -> &Object {
        &self.object
    }

    /// Every map of the object.
    pub fn maps(&self) -> &Arc<MapSet> {
        &self.maps
    }

    /// The map of that name.
    pub fn map(&self, name: &str) -> Option<&Arc<Map>> {
        self.maps.by_name(name)
    }

    /// Loads a program, and the programs that the object declares in program arrays, so
    /// that tail calls find them. A program is loaded once.
    ///
    /// # Errors
    /// When it does not link or load.
    pub fn load(&self, program: &str) -> Result<Arc<dyn Executable>, SessionError> {
        let mut linker = Linker::new(&self.object, &self.options.target);
        let wanted = self.load_one(program, &mut linker)?;
        let slots = self.object.maps.iter().flat_map(|map| &map.slots);
        let mut targets: HashMap<&str, Arc<dyn Local>> = HashMap::new();
        for (_, value) in slots {
            let SlotValue::Program(name) = value else {
                continue;
            };
            if let Some(local) = self.load_one(name, &mut linker)?.local() {
                targets.insert(name, local);
            }
        }
        self.maps.set_programs(|name| targets.get(name).cloned())?;
        Ok(wanted)
    }

    /// Judges a program as Linux 6.18 would, for a privileged process.
    ///
    /// # Errors
    /// When it does not link; a refusal is a verdict.
    pub fn verify(&self, program: &str) -> Result<Verdict, SessionError> {
        let mut linker = Linker::new(&self.object, &self.options.target);
        let linked = linker.link(self.index_of(program)?)?;
        let environment = Environment::new(self.options.target.kernel_btf);
        Ok(bpfkit_verifier::verify(
            &linked,
            &linker.maps(),
            &environment,
        ))
    }

    fn index_of(&self, program: &str) -> Result<usize, SessionError> {
        self.object
            .program_index(program)
            .ok_or_else(|| SessionError::NoProgram {
                name: program.to_owned(),
            })
    }

    fn load_one(
        &self,
        name: &str,
        linker: &mut Linker<'_>,
    ) -> Result<Arc<dyn Executable>, SessionError> {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(executable) = loaded.get(name) {
            return Ok(Arc::clone(executable));
        }
        let index = self.index_of(name)?;
        let program = Arc::new(linker.link(index)?);
        let executable = self
            .options
            .engine
            .load(program.into(), &self.maps, &LoadOptions::default())
            .map_err(|error| SessionError::Load {
                program: name.to_owned(),
                error,
            })?;
        loaded.insert(name.to_owned(), Arc::clone(&executable));
        Ok(executable)
    }
}
