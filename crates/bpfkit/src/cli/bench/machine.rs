//! A benchmark's object on an engine: its maps made, its programs verified and loaded.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use bpfkit_btf::Btf;
use bpfkit_jit::Jit;
use bpfkit_maps::{Map, Progress};
use bpfkit_object::{Global, Linker, MapDef, Object, Program, SlotValue};
use bpfkit_oracle::{
    Kernel, LoadOptions as KernelLoad, MapHandle, OracleError, ProgHandle, Repeated, TestRun,
};
use bpfkit_runtime::context::Input;
use bpfkit_runtime::{Code, Engine, Executable, Interpreter, LoadOptions, MapOptions, MapSet, Vm};
use bpfkit_verifier::Environment;

use crate::cli::failure::{Failure, Result};
use crate::cli::host::MachineHost;
use crate::cli::objects;
use crate::cli::run::EngineName;

/// What a program returns where an operation failed.
pub const FAILED: u32 = u32::MAX;
/// Return values that a producer can keep in one iteration.
const ROOM: u32 = 1 << 20;

/// A benchmark's object with its sizes and constants set, linked.
pub struct Prepared {
    maps: Vec<MapDef>,
    globals: Vec<Global>,
    programs: Vec<Program>,
    btf: Option<Arc<Btf>>,
    /// The same as the kernel takes it.
    kernel_btf: Vec<u8>,
}

/// An object as it is compiled into this program.
#[derive(Clone, Copy)]
pub struct Source {
    /// Name of the object.
    pub name: &'static str,
    /// The ELF file.
    pub bytes: &'static [u8],
}

/// What of an object depends on the options.
#[derive(Default)]
pub struct Settings {
    /// Entries of maps, by name.
    pub entries: Vec<(&'static str, u32)>,
    /// Whole numbers that variables start with, by name.
    pub globals: Vec<(&'static str, i128)>,
}

impl Prepared {
    /// Opens and links an object.
    pub fn new(source: Source, settings: &Settings, kernel: &objects::Kernel) -> Result<Self> {
        let mut object = Object::open(source.name, source.bytes).map_err(Failure::input)?;
        for (name, value) in &settings.globals {
            object
                .set_global_int(name, *value)
                .map_err(Failure::input)?;
        }
        for (name, entries) in &settings.entries {
            for map in object.maps.iter_mut().filter(|map| map.name == *name) {
                map.max_entries = *entries;
                if let Some(inner) = &mut map.inner {
                    inner.max_entries = *entries;
                }
            }
        }
        let target = kernel.target();
        let mut linker = Linker::new(&object, &target);
        let maps = linker.maps();
        let programs = (0..object.programs.len()).map(|i| linker.link(i));
        let programs = programs
            .collect::<std::result::Result<_, _>>()
            .map_err(Failure::input)?;
        Ok(Prepared {
            maps,
            globals: object.globals.clone(),
            programs,
            btf: object.btf.clone(),
            kernel_btf: object.btf_for_kernel().map_err(Failure::input)?,
        })
    }

    /// Puts it on an engine, for that many producers. `Err` with the reason where the machine
    /// lacks the engine.
    pub fn on<'a>(
        &'a self,
        engine: EngineName,
        producers: u32,
        kernel: &objects::Kernel,
    ) -> Result<std::result::Result<Box<dyn Machine + 'a>, String>> {
        let local = |engine: Box<dyn Engine>| {
            let local = Local::new(self, &*engine, producers, kernel, Checks::Verified)?;
            Ok(Ok(Box::new(local) as Box<dyn Machine + 'a>))
        };
        match engine {
            EngineName::Interp => local(Box::<Interpreter>::default()),
            EngineName::Jit => local(Box::<Jit>::default()),
            EngineName::Kernel => match Kernel::start() {
                Ok(oracle) => Ok(Ok(Box::new(InKernel::new(self, oracle)?))),
                Err(error @ (OracleError::NotAllowed(_) | OracleError::Stuck)) => {
                    Ok(Err(error.to_string()))
                }
                Err(error) => Err(Failure::machine(error)),
            },
        }
    }

    /// Puts it on the compiler as if nobody had verified it.
    pub fn checked<'a>(&'a self, kernel: &objects::Kernel) -> Result<Box<dyn Machine + 'a>> {
        let local = Local::new(self, &Jit::default(), 1, kernel, Checks::Running)?;
        Ok(Box::new(local))
    }

    fn global(&self, name: &str) -> Result<(usize, std::ops::Range<usize>)> {
        let global = self.globals.iter().find(|global| global.name == name);
        let global = global.ok_or_else(|| Failure::input(format!("no variable {name:?}")))?;
        let range = global.range.start as usize..global.range.end as usize;
        Ok((global.map as usize, range))
    }

    fn map(&self, name: &str) -> Result<usize> {
        let index = self.maps.iter().position(|map| map.name == name);
        index.ok_or_else(|| Failure::input(format!("no map {name:?}")))
    }

    fn program(&self, name: &str) -> Result<usize> {
        let index = self.programs.iter().position(|p| p.decl.name == name);
        index.ok_or_else(|| Failure::input(format!("no program {name:?}")))
    }
}

/// What a run gave.
pub struct Ran {
    /// R0, the low 32 bits.
    pub ret: u32,
    /// The packet as the program left it.
    pub packet: Vec<u8>,
}

/// How to run a program again and again.
#[derive(Clone, Copy)]
pub struct Runs<'a> {
    /// Packet, empty for types that take none. The program leaves it as it found it.
    pub packet: &'a [u8],
    /// Threads, or processes, at the same time.
    pub producers: u32,
    /// How long.
    pub span: Duration,
    /// Ring buffer whose consumer takes what is there after every run.
    pub ring: Option<&'a str>,
}

/// An object on an engine.
pub trait Machine {
    /// Runs a program once.
    fn run(&mut self, program: &str, packet: &[u8]) -> Result<Ran>;

    /// Runs a program again and again. Gives what the runs returned, by producer.
    fn repeat(&mut self, program: &str, runs: &Runs<'_>) -> Result<Vec<Vec<u32>>>;

    /// The value under a key of a map, of all CPUs where it has one for each.
    fn read(&mut self, map: &str, key: &[u8]) -> Result<Vec<u8>>;

    /// Stores a value.
    fn write(&mut self, map: &str, key: &[u8], value: &[u8]) -> Result;

    /// Values that a per-CPU map holds for a key.
    fn cpus(&self) -> usize;

    /// Runs programs on one CPU from now on.
    fn pin(&mut self);

    /// Bytes of a variable.
    fn global(&mut self, name: &str) -> Result<Vec<u8>>;

    /// Sets the bytes of a variable.
    fn set_global(&mut self, name: &str, value: &[u8]) -> Result;
}

/// Runs a program until it returns 0: how maps are filled.
pub fn run_to_end(machine: &mut dyn Machine, program: &str, packet: &[u8]) -> Result {
    loop {
        match machine.run(program, packet)?.ret {
            0 => return Ok(()),
            FAILED => return Err(failed(program)),
            _ => {}
        }
    }
}

/// An operation that did not do what it should.
pub fn failed(program: &str) -> Failure {
    Failure::program(format!("{program}: an operation failed inside the program"))
}

/// A number of `N` bytes in a variable.
pub fn number(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    let len = bytes.len().min(8);
    word[..len].copy_from_slice(&bytes[..len]);
    u64::from_le_bytes(word)
}

/// When accesses are checked.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Checks {
    /// Before the first run.
    Verified,
    /// As they happen.
    Running,
}

/// An engine of this process.
struct Local<'a> {
    prepared: &'a Prepared,
    maps: Arc<MapSet>,
    programs: Vec<Arc<dyn Executable>>,
    workers: Vec<Vm>,
}

impl<'a> Local<'a> {
    fn new(
        prepared: &'a Prepared,
        engine: &dyn Engine,
        producers: u32,
        kernel: &objects::Kernel,
        checks: Checks,
    ) -> Result<Self> {
        let options = MapOptions { cpus: producers };
        let maps = MapSet::with_types(&prepared.maps, prepared.btf.as_deref(), &options)
            .map_err(Failure::machine)?;
        let environment = Environment::new(kernel.btf());
        let mut programs = Vec::new();
        for program in &prepared.programs {
            let name = &program.decl.name;
            let code = match checks {
                Checks::Verified => Code::verify(program, &maps, &environment)
                    .map_err(|error| Failure::program(format!("{name}: {error}")))?,
                Checks::Running => Code::Unverified(Arc::new(program.clone())),
            };
            let loaded = engine
                .load(code, &maps, &LoadOptions::default())
                .map_err(|error| Failure::program(format!("{name}: {error}")))?;
            programs.push(loaded);
        }
        let named = |name: &str| programs.iter().find(|p| p.program().decl.name == name);
        maps.set_programs(|name| Arc::clone(named(name)?).local())
            .map_err(Failure::machine)?;
        let workers = (0..producers)
            .map(|cpu| {
                let host = MachineHost::new(u64::from(cpu) + 1, None, false);
                Vm::new(cpu, Arc::new(host))
            })
            .collect();
        Ok(Local {
            prepared,
            maps,
            programs,
            workers,
        })
    }

    fn input(executable: &dyn Executable, packet: &[u8]) -> Result<Input> {
        let prog_type = executable.program().decl.prog_type;
        let input = match packet {
            [] => Input::default_for(prog_type),
            packet => Input::packet(prog_type, packet),
        };
        input.map_err(Failure::machine)
    }

    fn map_at(&self, index: usize) -> Result<&Arc<Map>> {
        let map = u32::try_from(index).ok().and_then(|i| self.maps.get(i));
        map.ok_or_else(|| Failure::input("no such map"))
    }
}

fn errno(name: &str) -> impl Fn(bpfkit_maps::Errno) -> Failure {
    move |errno| Failure::program(format!("map {name}: {errno}"))
}

impl Machine for Local<'_> {
    fn run(&mut self, program: &str, packet: &[u8]) -> Result<Ran> {
        let executable = &self.programs[self.prepared.program(program)?];
        let mut input = Local::input(&**executable, packet)?;
        let outcome = executable.run(&mut self.workers[0], &mut input);
        if let Some(fault) = outcome.fault {
            return Err(Failure::program(format!("{program}: {fault}")));
        }
        let mut packet = Vec::new();
        input.copy_packet(&mut packet);
        Ok(Ran {
            ret: outcome.ret as u32,
            packet,
        })
    }

    fn repeat(&mut self, program: &str, runs: &Runs<'_>) -> Result<Vec<Vec<u32>>> {
        let Runs {
            packet,
            producers,
            span,
            ring,
        } = *runs;
        let index = self.prepared.program(program)?;
        let executable = &self.programs[index];
        let ring = match ring {
            Some(name) => Some(Arc::clone(self.map_at(self.prepared.map(name)?)?)),
            None => None,
        };
        let ring = ring.as_deref().and_then(Map::as_ring);
        let inputs = (0..producers).map(|_| Local::input(&**executable, packet));
        let mut inputs = inputs.collect::<Result<Vec<Input>>>()?;
        let end = Instant::now() + span;
        let work = |vm: &mut Vm, input: &mut Input| {
            let mut values = Vec::new();
            while Instant::now() < end && values.len() < ROOM as usize {
                let outcome = executable.run(vm, input);
                if let Some(fault) = outcome.fault {
                    return Err(Failure::program(format!("{program}: {fault}")));
                }
                values.push(outcome.ret as u32);
                if let Some(ring) = ring
                    && ring.consume(|_| Progress::Go) == 0
                {
                    // Another producer stopped in the middle of a record.
                    thread::yield_now();
                }
            }
            Ok(values)
        };
        let pairs = self.workers.iter_mut().zip(inputs.iter_mut());
        if producers == 1 {
            return pairs.map(|(vm, input)| work(vm, input)).collect();
        }
        thread::scope(|scope| {
            let threads: Vec<_> = pairs
                .map(|(vm, input)| scope.spawn(|| work(vm, input)))
                .collect();
            let join = |thread: thread::ScopedJoinHandle<'_, Result<Vec<u32>>>| {
                let stopped = |_| Err(Failure::machine("a producer stopped"));
                thread.join().unwrap_or_else(stopped)
            };
            threads.into_iter().map(join).collect()
        })
    }

    fn read(&mut self, map: &str, key: &[u8]) -> Result<Vec<u8>> {
        let found = self.map_at(self.prepared.map(map)?)?;
        found.read(key).map_err(errno(map))
    }

    fn write(&mut self, map: &str, key: &[u8], value: &[u8]) -> Result {
        let found = self.map_at(self.prepared.map(map)?)?;
        found.write(key, value, 0).map_err(errno(map))
    }

    fn cpus(&self) -> usize {
        self.workers.len()
    }

    /// A worker's number does not change, wherever it runs.
    fn pin(&mut self) {}

    fn global(&mut self, name: &str) -> Result<Vec<u8>> {
        let (map, range) = self.prepared.global(name)?;
        let value = self.map_at(map)?.read(&[0; 4]).map_err(errno(name))?;
        Ok(value[range].to_vec())
    }

    fn set_global(&mut self, name: &str, bytes: &[u8]) -> Result {
        let (map, range) = self.prepared.global(name)?;
        let map = self.map_at(map)?;
        let mut value = map.read(&[0; 4]).map_err(errno(name))?;
        value[range].copy_from_slice(bytes);
        map.write(&[0; 4], &value, 0).map_err(errno(name))
    }
}

/// The running kernel.
struct InKernel<'a> {
    prepared: &'a Prepared,
    oracle: Kernel,
    maps: Vec<MapHandle>,
    programs: Vec<ProgHandle>,
}

impl<'a> InKernel<'a> {
    fn new(prepared: &'a Prepared, mut oracle: Kernel) -> Result<Self> {
        let btf = oracle.load_btf(&prepared.kernel_btf);
        let btf = Some(btf.map_err(Failure::machine)?);
        let mut maps = Vec::new();
        for def in &prepared.maps {
            let map = oracle.create_map(def, btf).map_err(Failure::machine)?;
            maps.push(map);
        }
        for (def, map) in prepared.maps.iter().zip(&maps) {
            for (slot, value) in &def.slots {
                if let SlotValue::Map(inner) = value {
                    oracle
                        .update_inner(*map, &slot.to_ne_bytes(), maps[*inner as usize])
                        .map_err(Failure::machine)?;
                }
            }
        }
        let mut programs = Vec::new();
        for program in &prepared.programs {
            // Only a refusal needs a log, which may be longer than the room for it.
            let options = KernelLoad::default();
            let loaded = oracle.load(program, &maps, btf, &options).or_else(|_| {
                let options = KernelLoad {
                    log_level: 1,
                    ..options
                };
                oracle.load(program, &maps, btf, &options)
            });
            let (handle, _) = loaded.map_err(|error| {
                let log = match &error {
                    bpfkit_oracle::LoadError::Refused { log, .. } => log.trim_end(),
                    bpfkit_oracle::LoadError::Oracle(_) => "",
                };
                Failure::program(format!("{}: {error}\n{log}", program.decl.name))
            })?;
            programs.push(handle);
        }
        for (def, map) in prepared.maps.iter().zip(&maps) {
            for (slot, value) in &def.slots {
                if let SlotValue::Program(name) = value {
                    let program = programs[prepared.program(name)?];
                    oracle
                        .update_program(*map, &slot.to_ne_bytes(), program)
                        .map_err(Failure::machine)?;
                }
            }
        }
        Ok(InKernel {
            prepared,
            oracle,
            maps,
            programs,
        })
    }
}

impl Machine for InKernel<'_> {
    fn run(&mut self, program: &str, packet: &[u8]) -> Result<Ran> {
        let handle = self.programs[self.prepared.program(program)?];
        let request = TestRun {
            data: packet,
            ..TestRun::default()
        };
        let result = self.oracle.test_run(handle, &request);
        let result = result.map_err(Failure::machine)?;
        Ok(Ran {
            ret: result.retval,
            packet: result.data,
        })
    }

    fn repeat(&mut self, program: &str, runs: &Runs<'_>) -> Result<Vec<Vec<u32>>> {
        let handle = self.programs[self.prepared.program(program)?];
        let ring = match runs.ring {
            Some(name) => Some(self.maps[self.prepared.map(name)?]),
            None => None,
        };
        let runs = Repeated {
            packet: runs.packet,
            producers: runs.producers,
            span: runs.span,
            room: ROOM,
            ring,
        };
        self.oracle.repeat(handle, &runs).map_err(Failure::machine)
    }

    fn read(&mut self, map: &str, key: &[u8]) -> Result<Vec<u8>> {
        let map = self.maps[self.prepared.map(map)?];
        self.oracle.lookup(map, key).map_err(Failure::machine)
    }

    fn write(&mut self, map: &str, key: &[u8], value: &[u8]) -> Result {
        let map = self.maps[self.prepared.map(map)?];
        self.oracle
            .update(map, key, value, 0)
            .map_err(Failure::machine)
    }

    fn cpus(&self) -> usize {
        self.oracle.cpus()
    }

    fn pin(&mut self) {
        self.oracle.pin(0);
    }

    fn global(&mut self, name: &str) -> Result<Vec<u8>> {
        let (map, range) = self.prepared.global(name)?;
        let value = self.oracle.lookup(self.maps[map], &[0; 4]);
        Ok(value.map_err(Failure::machine)?[range].to_vec())
    }

    fn set_global(&mut self, name: &str, bytes: &[u8]) -> Result {
        let (map, range) = self.prepared.global(name)?;
        let value = self.oracle.lookup(self.maps[map], &[0; 4]);
        let mut value = value.map_err(Failure::machine)?;
        value[range].copy_from_slice(bytes);
        let written = self.oracle.update(self.maps[map], &[0; 4], &value, 0);
        written.map_err(Failure::machine)
    }
}
