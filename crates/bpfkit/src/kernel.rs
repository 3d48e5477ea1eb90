//! The running kernel as an [`Engine`]: the same program, maps and packets, judged and run
//! by Linux through `BPF_PROG_TEST_RUN` in a child process.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bpfkit_maps::Map;
use bpfkit_object::Program;
use bpfkit_oracle::{
    Kernel, LoadOptions as KernelLoad, MapHandle, OracleError, ProgHandle, TestRun,
};
use bpfkit_runtime::context::Input;
use bpfkit_runtime::{
    Code, Context, Engine, Executable, Fault, FaultKind, LoadError, LoadErrorKind, LoadOptions,
    MapSet, Outcome, RawMemory, Vm,
};
use bpfkit_spec::ProgType;

/// The running kernel. Clones share one child process.
///
/// A map set is copied into the kernel with the first program that is loaded with it;
/// [`KernelEngine::read_maps_back`] brings its contents back.
#[derive(Clone)]
pub struct KernelEngine {
    state: Arc<Mutex<State>>,
}

struct State {
    kernel: Kernel,
    sets: Vec<(Arc<MapSet>, Vec<MapHandle>)>,
}

impl KernelEngine {
    /// Starts the child process.
    ///
    /// # Errors
    /// Where bpf(2) is not to be had.
    pub fn start() -> Result<Self, OracleError> {
        let state = State {
            kernel: Kernel::start()?,
            sets: Vec::new(),
        };
        Ok(KernelEngine {
            state: Arc::new(Mutex::new(state)),
        })
    }

    /// CPUs that the kernel's per-CPU maps hold values for: what to make map sets with.
    pub fn cpus(&self) -> u32 {
        u32::try_from(self.lock().kernel.cpus()).unwrap_or(1)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Copies what the kernel's maps hold now into the maps of the set.
    ///
    /// # Errors
    /// When the child died.
    pub fn read_maps_back(&self, maps: &MapSet) -> Result<(), OracleError> {
        let State { kernel, sets } = &mut *self.lock();
        let known = sets
            .iter()
            .find(|(set, _)| std::ptr::eq(Arc::as_ptr(set), maps));
        let Some((set, handles)) = known else {
            return Ok(());
        };
        for (map, handle) in set.iter().zip(handles) {
            read_back(kernel, map, *handle)?;
        }
        Ok(())
    }
}

/// Copies a map's elements into the kernel's. What the kernel's map refuses (objects of the
/// kernel, read-only values) it has not.
fn copy_in(kernel: &mut Kernel, map: &Map, handle: MapHandle) {
    let _ = map.for_each(|key, value| {
        let _ = kernel.update(handle, key, value, 0);
    });
}

fn read_back(kernel: &mut Kernel, map: &Map, handle: MapHandle) -> Result<(), OracleError> {
    let mut stale = Vec::new();
    let _ = map.for_each(|key, _| stale.push(key.to_vec()));
    let mut key = None;
    loop {
        let next = match kernel.next_key(handle, key.as_deref()) {
            Ok(next) => next,
            Err(OracleError::Call(_)) => break,
            Err(error) => return Err(error),
        };
        match kernel.lookup(handle, &next) {
            Ok(value) => {
                stale.retain(|old| *old != next);
                // A value of kernel objects has no copy here.
                let _ = map.write(&next, &value, 0);
            }
            Err(OracleError::Call(_)) => {}
            Err(error) => return Err(error),
        }
        key = Some(next);
    }
    for key in stale {
        let _ = map.remove(&key);
    }
    Ok(())
}

impl Engine for KernelEngine {
    fn name(&self) -> &'static str {
        "kernel"
    }

    fn load(
        &self,
        code: Code,
        maps: &Arc<MapSet>,
        _options: &LoadOptions<'_>,
    ) -> Result<Arc<dyn Executable>, LoadError> {
        let program = code.program();
        let refused = |error: &dyn std::fmt::Display| LoadError {
            insn: 0,
            kind: LoadErrorKind::Engine(error.to_string()),
        };
        let State { kernel, sets } = &mut *self.lock();
        let btf = match &program.btf {
            // Without it the kernel may still take the program.
            Some(btf) => kernel.load_btf(&btf.to_bytes()).ok(),
            None => None,
        };
        let handles = match sets.iter().find(|(set, _)| Arc::ptr_eq(set, maps)) {
            Some((_, handles)) => handles.clone(),
            None => {
                let mut handles = Vec::new();
                for (def, map) in maps.defs().iter().zip(maps.iter()) {
                    let handle = kernel
                        .create_map(def, btf)
                        .map_err(|error| refused(&format!("map {}: {error}", def.name)))?;
                    copy_in(kernel, map, handle);
                    handles.push(handle);
                }
                sets.push((Arc::clone(maps), handles.clone()));
                handles
            }
        };
        let options = KernelLoad {
            log_level: 1,
            ..KernelLoad::default()
        };
        let (handle, _) = kernel
            .load(program, &handles, btf, &options)
            .map_err(|error| {
                let log = match &error {
                    bpfkit_oracle::LoadError::Refused { log, .. } => log.trim_end(),
                    bpfkit_oracle::LoadError::Oracle(_) => "",
                };
                refused(&format!("{error}\n{log}"))
            })?;
        Ok(Arc::new(InKernel {
            engine: self.clone(),
            handle,
            program: Arc::clone(program),
            maps: Arc::clone(maps),
        }))
    }
}

/// A program in the kernel.
struct InKernel {
    engine: KernelEngine,
    handle: ProgHandle,
    program: Arc<Program>,
    maps: Arc<MapSet>,
}

impl Executable for InKernel {
    fn program(&self) -> &Arc<Program> {
        &self.program
    }

    fn maps(&self) -> &Arc<MapSet> {
        &self.maps
    }

    fn run(&self, _vm: &mut Vm, context: &mut dyn Context) -> Outcome {
        let (mut data, mut ctx) = (Vec::new(), Vec::new());
        let context = context.as_any_mut();
        if let Some(input) = context.downcast_ref::<Input>() {
            match input.has_packet() {
                true => input.copy_packet(&mut data),
                false => ctx.extend_from_slice(input.ctx()),
            }
        } else if let Some(memory) = context.downcast_ref::<RawMemory>() {
            data.extend_from_slice(&memory.bytes);
        }
        let request = TestRun {
            data: &data,
            ctx: &ctx,
            repeat: 1,
            flags: 0,
        };
        match self.engine.lock().kernel.test_run(self.handle, &request) {
            Ok(result) => {
                if let Some(input) = context.downcast_mut::<Input>()
                    && input.has_packet()
                {
                    // A packet that the program made shorter than a header stays as it was.
                    let _ = input.set_packet(&result.data);
                }
                Outcome {
                    ret: result.retval.into(),
                    duration: Some(Duration::from_nanos(result.nanoseconds.into())),
                    ..Outcome::default()
                }
            }
            Err(error) => {
                let kind = FaultKind::Helper(format!("the kernel: {error}").into());
                let fault = Fault::new(kind, &self.program, 0);
                Outcome {
                    fault: Some(Box::new(fault)),
                    ..Outcome::default()
                }
            }
        }
    }
}

impl Drop for InKernel {
    fn drop(&mut self) {
        self.engine.lock().kernel.unload(self.handle);
    }
}

/// Whether `BPF_PROG_TEST_RUN` serves a program type.
pub fn can_test_run(prog_type: ProgType) -> bool {
    use ProgType::*;
    matches!(
        prog_type,
        SocketFilter
            | SchedCls
            | SchedAct
            | Xdp
            | CgroupSkb
            | LwtIn
            | LwtOut
            | LwtXmit
            | FlowDissector
            | RawTracepoint
            | Syscall
            | SkLookup
            | Netfilter
    )
}
