//! The interpreter.

mod access;
mod alu;
mod call;
mod inst;
mod jump;
mod packet;
mod pair;
mod prepare;
mod select;
mod sequence;

use std::any::Any;
use std::sync::{Arc, Weak};

use bpfkit_object::Program;

use crate::engine::{Code, Context, Engine, Executable, LoadError, LoadOptions, Local, Outcome};
use crate::env::Env;
use crate::fault::{FaultKind, Trap};
use crate::mapset::MapSet;
use crate::packet::{PacketCode, PacketProgram};
use crate::vm::Vm;
pub(crate) use call::find_target;
use inst::Inst;
use prepare::Mode;

/// The interpreter as an [`Engine`].
#[derive(Clone, Copy, Debug)]
pub struct Interpreter {
    threaded: bool,
}

impl Default for Interpreter {
    /// The fastest way that this build of the crate has.
    fn default() -> Self {
        // Without optimization, calls in tail position are calls.
        Self {
            threaded: !cfg!(any(miri, debug_assertions)),
        }
    }
}

impl Interpreter {
    /// An interpreter that returns to a loop after each instruction. Slower; for builds
    /// without optimization and for Miri.
    pub const fn looping() -> Self {
        Self { threaded: false }
    }
}

impl Engine for Interpreter {
    fn name(&self) -> &'static str {
        if self.threaded {
            "interp"
        } else {
            "interp-loop"
        }
    }

    fn load(
        &self,
        code: Code,
        maps: &Arc<MapSet>,
        options: &LoadOptions<'_>,
    ) -> Result<Arc<dyn Executable>, LoadError> {
        code.check_maps(maps)?;
        // Arena pointers are 32 bits wide or not, as the compiler pleases; only checked
        // accesses tell.
        let checked = matches!(code, Code::Unverified(_)) || maps.arena().is_some();
        let mode = Mode {
            checked,
            threaded: self.threaded,
            packet: false,
        };
        let prepared = prepare::prepare(code.program(), maps, options, mode)?;
        Ok(Arc::new_cyclic(|this| Loaded {
            this: this.clone(),
            code: prepared.code,
            functions: prepared.functions,
            program: Arc::clone(code.program()),
            maps: Arc::clone(maps),
            checked,
            threaded: self.threaded,
        }))
    }

    fn load_packet(&self, program: &PacketProgram) -> Result<Arc<dyn PacketCode>, LoadError> {
        Ok(Arc::new(packet::Loaded::new(program, self.threaded)?))
    }
}

/// A program ready to be interpreted.
struct Loaded {
    this: Weak<Loaded>,
    code: Box<[Inst]>,
    /// Slots that function pointers may point to, sorted.
    functions: Vec<u32>,
    program: Arc<Program>,
    maps: Arc<MapSet>,
    checked: bool,
    threaded: bool,
}

// SAFETY: code is not changed once made; the addresses in it belong to `maps`, whose maps
// are shared between threads by their own contract.
unsafe impl Send for Loaded {}
// SAFETY: as above.
unsafe impl Sync for Loaded {}

impl Loaded {
    /// The slot of a function pointer.
    fn function(&self, pointer: u64) -> Option<usize> {
        let distance = pointer.checked_sub(self.code.as_ptr().addr() as u64)?;
        let size = size_of::<Inst>() as u64;
        let slot = u32::try_from(distance / size).ok()?;
        let is = distance % size == 0 && self.functions.binary_search(&slot).is_ok();
        is.then_some(slot as usize)
    }
}

impl Executable for Loaded {
    fn program(&self) -> &Arc<Program> {
        &self.program
    }

    fn maps(&self) -> &Arc<MapSet> {
        &self.maps
    }

    fn run(&self, vm: &mut Vm, context: &mut dyn Context) -> Outcome {
        vm.start(self, context, |env, args| {
            let window = env.window;
            // SAFETY: slot 0 exists (`prepare`), and the first window is free at the start.
            unsafe { self.call_at(env, 0, window, args) }
        })
    }

    fn local(self: Arc<Self>) -> Option<Arc<dyn Local>> {
        Some(self)
    }
}

impl Local for Loaded {
    fn shared(&self) -> Option<Arc<dyn Local>> {
        Some(self.this.upgrade()?)
    }

    fn trusted(&self) -> bool {
        !self.checked
    }

    fn enter(&self, env: &mut Env<'_>, args: [u64; 5]) -> Result<u64, Trap> {
        // SAFETY: engines keep `env.window` at the current frame when they call out.
        unsafe { self.enter_here(env, args) }
    }

    fn invoke(&self, env: &mut Env<'_>, function: u64, args: [u64; 5]) -> Result<u64, Trap> {
        let slot = self
            .function(function)
            .ok_or(FaultKind::BadFunction(function))?;
        let (pc, outer, program) = (env.pc, env.window, env.program);
        let window = outer.wrapping_add(1);
        if window >= env.window_limit {
            return Err(FaultKind::CallDepth.into());
        }
        // SAFETY: `slot` is inside of the code, and the window is below the stack's limit;
        // those above the current one are free.
        let result = unsafe { self.call_at(env, slot, window, args) }?;
        (env.pc, env.window, env.program) = (pc, outer, program);
        if self.checked {
            // SAFETY: the current window is the run's.
            env.memory.set_stack_top(unsafe { (*outer).r[10] });
        }
        Ok(result)
    }

    fn function_at(&self, insn: u32) -> Option<u64> {
        self.functions.binary_search(&insn).ok()?;
        let at = self.code.as_ptr().addr() + insn as usize * size_of::<Inst>();
        Some(at as u64)
    }

    fn run_function(
        &self,
        vm: &mut Vm,
        context: &mut dyn Context,
        function: u64,
        args: [u64; 5],
    ) -> Outcome {
        vm.start(self, context, |env, _| {
            let slot = self
                .function(function)
                .ok_or(FaultKind::BadFunction(function))?;
            let window = env.window;
            // SAFETY: `slot` is inside of the code, the first window is free at the start.
            unsafe { self.call_at(env, slot, window, args) }
        })
    }

    fn slot_of(&self, position: usize) -> u32 {
        let distance = position.wrapping_sub(self.code.as_ptr().addr());
        u32::try_from(distance / size_of::<Inst>()).unwrap_or(0)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
