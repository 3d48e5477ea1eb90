//! An object with its maps and loaded programs: what a host keeps.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use bpfkit_maps::Map;
use bpfkit_object::{Linker, Object, ObjectError, SlotValue, Target};
use bpfkit_runtime::{
    Code, Engine, Executable, Interpreter, LoadError, LoadOptions, MapOptions, MapSet, MapSetError,
};
use bpfkit_verifier::{Environment, Rejection, Verdict};

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
    /// The verifier refuses a program; see [`Checks::Verified`].
    #[error("program {program}: {rejection}")]
    Rejected {
        /// Name of the program.
        program: String,
        /// Why.
        rejection: Rejection,
    },
    /// A program cannot be loaded.
    #[error("program {program}: {error}")]
    Load {
        /// Name of the program.
        program: String,
        /// What is wrong with it.
        error: LoadError,
    },
}

/// What keeps a session's programs from touching memory that is not theirs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Checks {
    /// Each access as it runs: any program may be loaded, and one that goes astray stops with a
    /// fault.
    #[default]
    AsItRuns,
    /// The verifier, before: what it refuses is not loaded, what it accepts runs without checks
    /// ([`Code::verify`] names the exception).
    Verified,
}

/// What a session's programs are linked against and run by.
pub struct SessionOptions<'t> {
    /// The kernel to link against.
    pub target: Target<'t>,
    /// The engine.
    pub engine: Box<dyn Engine>,
    /// How maps are made.
    pub maps: MapOptions,
    /// What keeps programs within bounds.
    pub checks: Checks,
}

impl Default for SessionOptions<'_> {
    /// No kernel, the interpreter, one worker, checks as a program runs.
    fn default() -> Self {
        SessionOptions {
            target: Target::default(),
            engine: Box::new(Interpreter::default()),
            maps: MapOptions::default(),
            checks: Checks::default(),
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
    /// When one of them does not link, does not load or, with [`Checks::Verified`], is refused.
    pub fn load(&self, program: &str) -> Result<Arc<dyn Executable>, SessionError> {
        let slots = self.object.maps.iter().flat_map(|map| &map.slots);
        let targets: Vec<&str> = slots
            .filter_map(|(_, value)| match value {
                SlotValue::Program(name) => Some(name.as_str()),
                _ => None,
            })
            .collect();
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        let mut codes = HashMap::new();
        let mut linker = Linker::new(&self.object, &self.options.target);
        for name in std::iter::once(&program).chain(&targets) {
            if !loaded.contains_key(*name) && !codes.contains_key(*name) {
                codes.insert(*name, self.code(name, &mut linker)?);
            }
        }
        // Tail calls do not cross between programs with and without checks.
        let checked = codes.values().any(|c| matches!(c, Code::Unverified(_)));
        for (name, code) in codes {
            let code = match checked {
                true => Code::Unverified(Arc::clone(code.program())),
                false => code,
            };
            let executable = self
                .options
                .engine
                .load(code, &self.maps, &LoadOptions::default())
                .map_err(|error| SessionError::Load {
                    program: name.to_owned(),
                    error,
                })?;
            loaded.insert(name.to_owned(), executable);
        }
        self.maps
            .set_programs(|name| loaded.get(name).cloned()?.local())?;
        loaded
            .get(program)
            .cloned()
            .ok_or_else(|| no_program(program))
    }

    /// Every program that was loaded so far.
    pub fn loaded(&self) -> Vec<Arc<dyn Executable>> {
        let loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        loaded.values().cloned().collect()
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
            .ok_or_else(|| no_program(program))
    }

    /// A program, linked and judged as the session's checks want it.
    fn code(&self, name: &str, linker: &mut Linker<'_>) -> Result<Code, SessionError> {
        let program = linker.link(self.index_of(name)?)?;
        match self.options.checks {
            Checks::AsItRuns => Ok(Code::Unverified(Arc::new(program))),
            Checks::Verified => {
                let environment = Environment::new(self.options.target.kernel_btf);
                Code::verify(&program, &self.maps, &environment).map_err(|rejection| {
                    SessionError::Rejected {
                        program: name.to_owned(),
                        rejection,
                    }
                })
            }
        }
    }
}

fn no_program(name: &str) -> SessionError {
    SessionError::NoProgram {
        name: name.to_owned(),
    }
}
