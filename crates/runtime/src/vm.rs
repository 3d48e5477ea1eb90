//! A worker: stack, memory grants and surroundings, reused from run to run.

use std::alloc::{self, Layout};
use std::ptr::NonNull;
use std::sync::Arc;

use bpfkit_maps::Map;

use crate::engine::{Context, Local, Outcome};
use crate::env::{Args, Env, Parts};
use crate::exception;
use crate::fault::{Fault, FaultKind, Trap, TrapKind};
use crate::helpers;
use crate::host::{FixedHost, Host};
use crate::may_goto::MayGoto;
use crate::memory::Memory;
use crate::observe::Observer;

/// Bytes of a stack frame (`MAX_BPF_STACK`).
pub const FRAME_BYTES: usize = 512;

/// Nested function calls of one program (`MAX_CALL_FRAMES`).
pub const MAX_FRAMES: usize = 8;

/// Tail calls of one run (`MAX_TAIL_CALL_CNT`).
pub const MAX_TAIL_CALLS: u32 = 33;

/// A tail call from a subprogram leaves its callers' frames in place, so that every
/// program of the longest chain may add its own.
const WINDOWS: usize = MAX_FRAMES * (MAX_TAIL_CALLS as usize + 1);

/// Steps of a checked run unless the caller says otherwise.
const STEP_LIMIT: u64 = 1_000_000_000;

/// Registers of a frame, and what its `exit` needs. Windows lie in a row, so that a call
/// moves to the next one and nothing is saved or restored.
#[repr(C, align(128))]
pub(crate) struct Window {
    /// R0–R10. R10 is set once for all: window `i` uses stack frame `i`.
    pub(crate) r: [u64; 11],
    /// Where `exit` continues, a position of the engine; null ends the run or the callback.
    pub(crate) return_to: *const (),
    /// How long its `may_goto` still falls through.
    pub(crate) may_goto: MayGoto,
    /// The program that `exit` returns to, if a tail call left it: a `*const dyn Local`.
    pub(crate) caller: Option<NonNull<dyn Local>>,
}

impl Window {
    /// Sets R1–R5.
    ///
    /// # Safety
    /// `window` lies in the stack of a run, and nothing else borrows it.
    #[inline(always)]
    pub(crate) unsafe fn set_args(window: *mut Self, args: &Args) {
        // SAFETY: by this function's contract.
        let r = unsafe { &mut (*window).r };
        r[1..=5].copy_from_slice(args);
    }
}

/// Register windows and stack frames in one block.
struct Stack {
    windows: NonNull<Window>,
}

impl Stack {
    const FRAMES_AT: usize = WINDOWS * size_of::<Window>();

    const fn layout() -> Layout {
        let bytes = Self::FRAMES_AT + WINDOWS * FRAME_BYTES;
        match Layout::from_size_align(bytes, 4096) {
            Ok(layout) => layout,
            Err(_) => panic!("constant layout"),
        }
    }

    fn new() -> Self {
        // SAFETY: the layout is not empty.
        let block = unsafe { alloc::alloc_zeroed(Self::layout()) };
        let Some(windows) = NonNull::new(block.cast::<Window>()) else {
            alloc::handle_alloc_error(Self::layout())
        };
        let stack = Self { windows };
        for i in 0..WINDOWS {
            let top = stack.frames() + ((i + 1) * FRAME_BYTES) as u64;
            // SAFETY: `i` is below WINDOWS; zero bytes are a valid Window (`caller: None`).
            unsafe { (*stack.windows.as_ptr().add(i)).r[10] = top };
        }
        stack
    }

    /// Address of the first frame.
    fn frames(&self) -> u64 {
        // SAFETY: FRAMES_AT is inside of the block.
        let at = unsafe { self.windows.as_ptr().byte_add(Self::FRAMES_AT) };
        at.expose_provenance() as u64
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout.
        unsafe { alloc::dealloc(self.windows.as_ptr().cast(), Self::layout()) }
    }
}

/// A worker that runs programs, one at a time. Its number stands for the CPU in per-CPU
/// maps and in `bpf_get_smp_processor_id`. Reusing it keeps runs free of allocation.
pub struct Vm {
    stack: Stack,
    memory: Memory,
    kept_programs: Vec<Arc<dyn Local>>,
    kept_maps: Vec<Arc<Map>>,
    /// What helpers remember during a run.
    pub(crate) state: helpers::State,
    /// Worker number, below the CPU count that the maps were made for.
    pub cpu: u32,
    /// What the per-CPU address instruction adds: bytes from the first CPU's data to this one's.
    pub percpu_offset: u64,
    /// Instructions that a checked run may execute.
    pub step_limit: u64,
    /// Clocks, randomness, the current task, and the trace sink.
    pub host: Arc<dyn Host>,
    /// Watches runs of an interpreter that goes step by step.
    pub observer: Option<Box<dyn Observer + Send>>,
}

// SAFETY: the stack block belongs to the Vm alone; between runs its windows hold no
// pointer that is used again (`return_to` and `caller` are written before they are read).
unsafe impl Send for Vm {}

impl Vm {
    /// A worker with that number in those surroundings.
    pub fn new(cpu: u32, host: Arc<dyn Host>) -> Self {
        Self {
            stack: Stack::new(),
            memory: Memory::new(),
            kept_programs: Vec::new(),
            kept_maps: Vec::new(),
            state: helpers::State::default(),
            cpu,
            percpu_offset: 0,
            step_limit: STEP_LIMIT,
            host,
            observer: None,
        }
    }

    /// Sets a run up, lets `body` execute, and makes the outcome: what every engine of this
    /// process does around its code. `body` gets the arguments of R1–R5.
    pub(crate) fn start(
        &mut self,
        program: &dyn Local,
        context: &mut dyn Context,
        body: impl FnOnce(&mut Env<'_>, [u64; 5]) -> Result<u64, Trap>,
    ) -> Outcome {
        // What maps give up meanwhile stays until the run ends.
        let _guard = bpfkit_maps::pin();
        let checked = !program.trusted();
        if !checked && let Some(outcome) = refuse(program, context) {
            return outcome;
        }
        let args = context.args();
        let window = self.stack.windows.as_ptr();
        self.state.reset();
        self.kept_maps.clear();
        if checked {
            let (maps, stack) = (program.maps(), self.stack.frames());
            self.memory.begin(maps, stack, |memory| {
                context.grant(memory);
                maps.shared.heap.grant(memory);
            });
        }
        let fuel = if checked {
            i64::try_from(self.step_limit).unwrap_or(i64::MAX)
        } else {
            i64::MAX
        };
        // SAFETY: MAX_FRAMES and WINDOWS are within the block (one past its last window).
        let (window_limit, window_end) = unsafe { (window.add(MAX_FRAMES), window.add(WINDOWS)) };
        let mut env = Env::new(Parts {
            program,
            checked,
            fuel,
            step_limit: self.step_limit,
            window_start: window,
            window_limit,
            window_end,
            kept_programs: &mut self.kept_programs,
            kept_maps: &mut self.kept_maps,
            cpu: self.cpu,
            percpu_offset: self.percpu_offset,
            host: &*self.host,
            memory: &mut self.memory,
            context,
            state: &mut self.state,
            observer: match &mut self.observer {
                Some(observer) => Some(&mut **observer),
                None => None,
            },
        });
        let result = body(&mut env, args);
        let result = exception::catch(&mut env, result);
        helpers::give_back(&mut env);
        let mut outcome = Outcome {
            steps: fuel.wrapping_sub(env.fuel) as u64,
            redirect: env.redirect,
            ..Outcome::default()
        };
        match result.map_err(Trap::into_kind) {
            Ok(ret) | Err(TrapKind::Throw(ret)) => outcome.ret = ret,
            Err(TrapKind::Fault(kind)) => {
                let (program, pc) = env.trapped_at.unwrap_or((program, env.pc));
                let insn = program.slot_of(pc);
                outcome.fault = Some(Box::new(Fault::new(kind, program.program(), insn)));
            }
        }
        self.kept_programs.clear();
        outcome
    }

    /// See [`native::run_bare`](crate::native::run_bare).
    #[inline]
    pub(crate) fn run_bare(
        &mut self,
        program: &dyn Local,
        context: &mut dyn Context,
        body: impl FnOnce(&Args, u64) -> u64,
    ) -> Outcome {
        if let Some(outcome) = refuse(program, context) {
            return outcome;
        }
        self.state.reset();
        Outcome {
            ret: body(&context.args(), self.stack.frames() + FRAME_BYTES as u64),
            ..Outcome::default()
        }
    }
}

/// The outcome of a verified program on a context of another type.
#[inline]
fn refuse(program: &dyn Local, context: &dyn Context) -> Option<Outcome> {
    let prog_type = program.program().decl.prog_type;
    if context.suits(prog_type) {
        return None;
    }
    let kind = FaultKind::OtherContext(prog_type);
    Some(Outcome {
        fault: Some(Box::new(Fault::new(kind, program.program(), 0))),
        ..Outcome::default()
    })
}

impl Default for Vm {
    /// Worker 0 with a [`FixedHost`].
    fn default() -> Self {
        Self::new(0, Arc::new(FixedHost::default()))
    }
}
