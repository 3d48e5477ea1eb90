//! What engines that make machine code share with the interpreter: how a run starts, where
//! frames lie, how calls out of the code reach the [`Env`].
//!
//! Machine code holds a pointer to the run's [`State`] in a register. Frame pointers lie
//! [`FRAME_BYTES`] apart, so that a call adds this number to R10.

use std::sync::Arc;

use bpfkit_isa::Size;
use bpfkit_maps::{Object, ProgArray};

use crate::engine::{Context, Local, Outcome, ProgramSlot};
use crate::env::{Args, Env};
use crate::fault::{FaultKind, Trap};
use crate::memory::{Found, Spans};
use crate::vm::{FRAME_BYTES, MAX_FRAMES, Vm, Window};

pub use crate::may_goto::MayGoto;
pub use crate::resolve::{Resolver, Slot, Value, poison};

/// What machine code reaches of a run by one register. The spans that accesses were found
/// in follow it; see [`span_offset`].
#[derive(Default)]
#[repr(C)]
pub struct State {
    /// Address of the run's [`Env`].
    pub env: usize,
    /// Steps left (checked mode), while machine code runs.
    pub fuel: i64,
    /// Stack pointer to which a trap unwinds.
    pub unwind: usize,
    /// Room for the engine.
    pub scratch: usize,
    /// Number of the worker thread that stands for the CPU.
    pub cpu: u32,
    /// Tail calls of the run so far.
    pub tail_calls: u32,
    /// What the per-CPU address instruction adds.
    pub percpu_offset: u64,
    /// What a program array's slot held that code has jumped to the program of, until the
    /// [`Env`] has heard of it; else 0. See [`Env::catch_up`].
    pub entered: usize,
    /// R1–R5 of a program that code jumps to. Only R1 is ever other than 0.
    pub args: Args,
}

/// Remembered spans of a size and direction.
pub const SPANS: u32 = crate::memory::SPANS as u32;

/// Offset from the [`State`] to a remembered span: its first address, 64 bits, followed by
/// the number of further places, 64 bits, where an access of that size may start.
pub fn span_offset(size: Size, write: bool, index: u32) -> usize {
    Spans::offset_of(Spans::table_of(size, write), index as usize)
}

/// Runs `body` as a run of a program: sets frames, grants and step limit up, and makes the
/// outcome. `body` gets the arguments of R1–R5.
pub fn start(
    vm: &mut Vm,
    program: &dyn Local,
    context: &mut dyn Context,
    body: impl FnOnce(&mut Env<'_>, Args) -> Result<u64, Trap>,
) -> Outcome {
    vm.start(program, context, body)
}

/// Runs code that calls nothing, cannot trap and looks at no [`State`] as a run of a program:
/// `body` gets R1–R5 and R10.
pub fn run_bare(
    vm: &mut Vm,
    program: &dyn Local,
    context: &mut dyn Context,
    body: impl FnOnce(&Args, u64) -> u64,
) -> Outcome {
    vm.run_bare(program, context, body)
}

impl<'r> Env<'r> {
    /// The state of the run. It stays where it is until the run ends.
    pub fn native_state(&mut self) -> *mut State {
        (&raw mut self.memory.spans).cast()
    }

    /// The program that runs.
    pub fn running(&self) -> &'r dyn Local {
        self.program
    }

    /// Goes on as a program of the run.
    pub fn go_on_as(&mut self, program: &'r dyn Local) {
        self.program = program;
    }

    /// Takes note of the program that code has jumped to since it was last here.
    ///
    /// # Safety
    /// Called while machine code of this run waits: `entered` is 0, or was read from a slot of
    /// a program array during this run.
    #[inline]
    pub unsafe fn catch_up(&mut self) {
        let entered = std::mem::take(&mut self.memory.spans.state.entered);
        if entered != 0 {
            // SAFETY: by this function's contract; the run holds a guard from start to end.
            let object: &'r Object = unsafe { ProgArray::object_at(entered) };
            if let Some(slot) = object.downcast_ref::<ProgramSlot>() {
                self.program = &*slot.0;
            }
        }
    }

    pub(crate) fn tail_calls(&self) -> u32 {
        self.memory.spans.state.tail_calls
    }

    pub(crate) fn count_tail_call(&mut self) {
        self.memory.spans.state.tail_calls += 1;
    }

    /// Steps left (checked mode).
    pub fn fuel(&self) -> i64 {
        self.fuel
    }

    /// Sets the steps left.
    pub fn set_fuel(&mut self, fuel: i64) {
        self.fuel = fuel;
    }

    /// Tells where the code is: the position for [`Local::slot_of`], and R10.
    ///
    /// # Safety
    /// `frame` is the R10 of a frame of this run.
    #[inline]
    pub unsafe fn at(&mut self, position: usize, frame: u64) {
        self.pc = position;
        self.window = self.window_of(frame);
    }

    #[inline]
    fn window_of(&self, frame: u64) -> *mut Window {
        // SAFETY: the first window is the run's.
        let first = unsafe { (*self.window_start).r[10] };
        self.window_start
            .wrapping_add(frame.wrapping_sub(first) as usize / FRAME_BYTES)
    }

    /// R10 of the current frame.
    pub fn frame(&self) -> u64 {
        // SAFETY: engines keep the window inside of the run's stack.
        unsafe { (*self.window).r[10] }
    }

    /// Makes the frame with that R10 the current one; in checked mode, its bytes become 0.
    ///
    /// # Safety
    /// `frame` is the R10 of a frame of this run that no code uses.
    ///
    /// # Errors
    /// [`FaultKind::CallDepth`] for a frame that is one too many.
    pub unsafe fn open_frame(&mut self, frame: u64) -> Result<(), Trap> {
        let window = self.window_of(frame);
        if window >= self.window_limit {
            return Err(FaultKind::CallDepth.into());
        }
        self.window = window;
        // SAFETY: below the limit, windows and their frames are inside of the stack block.
        unsafe {
            (*window).caller = None;
            (*window).return_to = std::ptr::null();
            (*window).may_goto = MayGoto::NEW;
            if self.checked {
                let start = frame as usize - FRAME_BYTES;
                std::ptr::with_exposed_provenance_mut::<u8>(start).write_bytes(0, FRAME_BYTES);
                self.memory.set_stack_top(frame);
            }
        }
        Ok(())
    }

    /// Makes an outer frame the current one again.
    ///
    /// # Safety
    /// `frame` is the R10 of an open frame of this run.
    pub unsafe fn close_frame(&mut self, frame: u64) {
        self.window = self.window_of(frame);
        self.memory.set_stack_top(frame);
    }

    /// Runs `body` in a new frame, whose R10 it gets: callbacks.
    ///
    /// # Errors
    /// [`FaultKind::CallDepth`], or the trap that ended `body`.
    pub fn in_new_frame(
        &mut self,
        body: impl FnOnce(&mut Self, u64) -> Result<u64, Trap>,
    ) -> Result<u64, Trap> {
        let (pc, outer, program) = (self.pc, self.window, self.program);
        let (outer_frame, frame) = (self.frame(), self.frame() + FRAME_BYTES as u64);
        // SAFETY: the frames above the current one are free.
        unsafe { self.open_frame(frame)? };
        let result = body(self, frame)?;
        (self.pc, self.window, self.program) = (pc, outer, program);
        self.memory.set_stack_top(outer_frame);
        Ok(result)
    }

    /// Notes where the innermost code was when it trapped.
    pub fn trapped(&mut self, trap: Trap) -> Trap {
        let here = (self.program, self.pc);
        self.trapped_at.get_or_insert(here);
        trap
    }

    /// Keeps a trap while machine code unwinds.
    pub fn set_trap(&mut self, trap: Trap) {
        self.trap = Some(trap);
    }

    /// Takes the trap that [`set_trap`](Self::set_trap) kept.
    pub fn take_trap(&mut self) -> Option<Trap> {
        self.trap.take()
    }

    /// The trap of a run that has used its steps up.
    pub fn out_of_steps(&self) -> Trap {
        FaultKind::StepLimit {
            limit: self.step_limit,
        }
        .into()
    }

    /// The host address of an access that no remembered span covers; remembers its span.
    ///
    /// # Errors
    /// An access fault where no region holds all of it.
    pub fn locate_span(
        &mut self,
        address: u64,
        size: Size,
        write: bool,
        index: u32,
    ) -> Result<u64, Trap> {
        let bytes = u64::from(size.bytes());
        let Some(found) = self.locate(address, bytes, write) else {
            return Err(self.access_fault(address, bytes, write).into());
        };
        let table = Spans::table_of(size, write);
        self.memory
            .spans
            .remember_at(table, index as usize, bytes, &found);
        let Found { host, .. } = found;
        Ok(host)
    }

    /// `bpf_tail_call`: runs the program in the slot in the current frame. `None` where
    /// there is none, or the run has used up its tail calls.
    ///
    /// # Errors
    /// The trap that ended it.
    pub fn tail_call(&mut self, context: u64, map: u64, index: u32) -> Result<Option<u64>, Trap> {
        let Some(target) = crate::interp::find_target(self, map, index)? else {
            return Ok(None);
        };
        self.count_tail_call();
        let (pc, window, current) = (self.pc, self.window, self.program);
        let target_ptr: *const dyn Local = Arc::as_ptr(&target);
        self.kept_programs.push(target);
        // SAFETY: `kept_programs` holds it until the run ends.
        let program: &'r dyn Local = unsafe { &*target_ptr };
        self.program = program;
        // The new program may nest its own calls.
        let limit = window.wrapping_add(MAX_FRAMES);
        self.window_limit = self.window_limit.max(limit).min(self.window_end);
        let result = program.enter(self, [context, 0, 0, 0, 0])?;
        (self.pc, self.window, self.program) = (pc, window, current);
        Ok(Some(result))
    }
}
