//! Loading a program of an object for what the kernel says of it, and letting go of everything.

use bpfkit_object::{MapDef, Program};

use crate::kernel::{Kernel, LoadError, LoadOptions, MapHandle, ProgInfo};

/// What came of a load.
#[derive(Clone, Debug)]
pub struct Trial {
    /// The verifier's log.
    pub log: String,
    /// What the kernel made of the program.
    pub info: ProgInfo,
}

impl Trial {
    /// What the kernel says that verification took, in µs, without compilation; log level 4 and
    /// up tell.
    pub fn verification_us(&self) -> Option<f64> {
        let mut lines = self.log.lines();
        let time = lines.find_map(|line| line.strip_prefix("verification time "))?;
        time.strip_suffix(" usec")?.parse().ok()
    }
}

impl Kernel {
    /// Loads a linked program with its object's maps and BTF, reads what the kernel made of it,
    /// and unloads all of it.
    ///
    /// Maps that cannot be made (the object may have some that this program does not use) are
    /// left out. The kernel frees programs some time later, and some kernels hang where thousands
    /// wait for that: callers pause between many trials.
    ///
    /// # Errors
    /// As [`Kernel::load`] and [`Kernel::info`].
    pub fn try_program(
        &mut self,
        program: &Program,
        maps: &[MapDef],
        btf: Option<&[u8]>,
        options: &LoadOptions,
    ) -> Result<Trial, LoadError> {
        // Without its BTF the kernel may still take the program.
        let btf = btf.and_then(|bytes| self.load_btf(bytes).ok());
        let made: Vec<Option<MapHandle>> = maps
            .iter()
            .map(|def| {
                let max_entries = def.max_entries.max(1);
                let def = MapDef {
                    max_entries,
                    ..def.clone()
                };
                self.create_map(&def, btf).ok()
            })
            .collect();
        let any = made.iter().flatten().next().copied();
        let given: Vec<MapHandle> = made.iter().filter_map(|map| map.or(any)).collect();
        let loaded = self.load(program, &given, btf, options);
        let trial = loaded.and_then(|(handle, log)| {
            let info = self.info(handle);
            self.unload(handle);
            Ok(Trial { log, info: info? })
        });
        for map in made.into_iter().flatten() {
            self.drop_map(map);
        }
        if let Some(btf) = btf {
            self.drop_btf(btf);
        }
        trial
    }
}
