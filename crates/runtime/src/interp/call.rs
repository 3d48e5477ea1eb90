//! Calls, tail calls, exit.

use std::sync::Arc;

use super::Loaded;
use super::inst::{Cpu, Flow, Inst, Instruction, trap};
use crate::engine::{Local, ProgramSlot};
use crate::env::{Args, Env};
use crate::fault::{FaultKind, Trap};
use crate::may_goto::MayGoto;
use crate::memory::Spans;
use crate::observe::Step;
use crate::vm::{FRAME_BYTES, MAX_FRAMES, MAX_TAIL_CALLS, Window};

/// Tells the run where it is, before code that looks at it.
///
/// # Safety
/// As [`Instruction::step`].
#[inline(always)]
unsafe fn publish(cpu: &mut Cpu) {
    // SAFETY: the run's Env, borrowed by nobody else here.
    let env = unsafe { &mut *cpu.env };
    env.pc = cpu.pc.addr();
    env.fuel = cpu.fuel;
    env.window = cpu.window();
}

/// A call of a helper or kfunc.
pub(super) struct CallHelper;

impl Instruction for CallHelper {
    #[inline(always)]
    unsafe fn step<const CHECKED: bool, const LINK: u8>(cpu: &mut Cpu) -> Flow {
        // SAFETY: by this function's contract. R1–R5 lie in a row; while the helper runs
        // they are only read: callbacks use the windows above.
        unsafe {
            publish(cpu);
            let function = (*cpu.pc).data.function;
            let args = &*cpu.regs.add(1).cast::<Args>();
            match function(&mut *cpu.env, args) {
                Ok(value) => {
                    cpu.set_reg(0, value);
                    cpu.fuel = (*cpu.env).fuel;
                    cpu.next()
                }
                Err(t) => {
                    // Callbacks have counted.
                    cpu.fuel = (*cpu.env).fuel;
                    trap(&mut *cpu.env, t)
                }
            }
        }
    }
}

/// A call of a subprogram.
pub(super) struct CallLocal;

impl Instruction for CallLocal {
    #[inline(always)]
    unsafe fn step<const CHECKED: bool, const LINK: u8>(cpu: &mut Cpu) -> Flow {
        // SAFETY: by this function's contract; `window_limit` keeps the new window inside
        // of the stack block.
        unsafe {
            let window = cpu.window();
            let inner = window.add(1);
            if inner >= (*cpu.env).window_limit {
                return Flow::Slow;
            }
            open::<CHECKED>(cpu.env, inner);
            for i in 1..=5 {
                (*inner).r[i] = (*window).r[i];
            }
            (*inner).return_to = cpu.pc.add(1).cast();
            let distance = cpu.imm();
            cpu.regs = inner.cast();
            cpu.jump::<CHECKED>(distance)
        }
    }

    unsafe fn slow<const CHECKED: bool>(cpu: &mut Cpu) -> Flow {
        // SAFETY: the run's Env, borrowed by nobody else here.
        trap(unsafe { &mut *cpu.env }, FaultKind::CallDepth.into())
    }
}

/// Makes a frame ready; in checked mode what the program has not written reads as 0.
///
/// # Safety
/// `window` lies in the stack of the run `env`.
#[inline(always)]
unsafe fn open<const CHECKED: bool>(env: *mut Env<'static>, window: *mut Window) {
    // SAFETY: by this function's contract; each window has a stack frame below its R10.
    unsafe {
        (*window).may_goto = MayGoto::NEW;
        (*window).caller = None;
        if CHECKED {
            let top = (*window).r[10];
            (*window).r = [0; 11];
            (*window).r[10] = top;
            let frame = std::ptr::with_exposed_provenance_mut::<u8>(top as usize - FRAME_BYTES);
            frame.write_bytes(0, FRAME_BYTES);
            (*env).memory.set_stack_top(top);
        }
    }
}

/// `exit`.
pub(super) struct Exit;

impl Instruction for Exit {
    #[inline(always)]
    unsafe fn step<const CHECKED: bool, const LINK: u8>(cpu: &mut Cpu) -> Flow {
        // SAFETY: by this function's contract.
        unsafe { leave::<CHECKED>(cpu) }
    }

    unsafe fn slow<const CHECKED: bool>(cpu: &mut Cpu) -> Flow {
        // SAFETY: by this function's contract.
        unsafe { leave_to_caller::<CHECKED>(cpu) }
    }
}

/// Returns from the current function with R0; [`Flow::Slow`] asks for [`leave_to_caller`].
///
/// # Safety
/// As [`Instruction::step`].
#[inline(always)]
pub(super) unsafe fn leave<const CHECKED: bool>(cpu: &mut Cpu) -> Flow {
    // SAFETY: by this function's contract; a window with `return_to` has an outer one.
    unsafe {
        let window = cpu.window();
        let to = (*window).return_to.cast::<Inst>();
        if to.is_null() {
            return Flow::Stop;
        }
        if (*window).caller.is_some() {
            return Flow::Slow;
        }
        let outer = window.sub(1);
        (*outer).r[0] = (*window).r[0];
        cpu.regs = outer.cast();
        if CHECKED {
            (*cpu.env).memory.set_stack_top((*outer).r[10]);
        }
        // Counted as a jump; see `Cpu::fuel`.
        let distance = slots_between(cpu.pc.addr(), to.addr()) - 1;
        cpu.jump::<CHECKED>(distance as i32)
    }
}

/// Returns to another program: the outer frame's takes over from one that a tail call brought.
///
/// # Safety
/// As [`Instruction::step`].
#[inline(never)]
pub(super) unsafe fn leave_to_caller<const CHECKED: bool>(cpu: &mut Cpu) -> Flow {
    // SAFETY: as for `leave`; `caller` is the outer frame's program, which the run keeps.
    unsafe {
        let env = &mut *cpu.env;
        let window = cpu.window();
        let to = (*window).return_to.cast::<Inst>();
        if let Some(caller) = (*window).caller.take() {
            env.program = caller.as_ref();
        }
        cpu.fuel = settle(env, cpu.fuel, cpu.pc.addr(), to.addr());
        // As if the last instruction had been the call's, in that program.
        cpu.pc = to.sub(1);
        leave::<CHECKED>(cpu)
    }
}

/// Slots from one position to another.
#[inline(always)]
pub(super) fn slots_between(from: usize, to: usize) -> i64 {
    to.wrapping_sub(from) as i64 / size_of::<Inst>() as i64
}

/// Counts the steps up to and with the instruction at `pc`, and begins anew at `entry`,
/// which may lie in another program.
fn settle(env: &mut Env<'_>, fuel: i64, pc: usize, entry: usize) -> i64 {
    let steps = slots_between(env.entry, pc) + 1;
    env.entry = entry;
    fuel.wrapping_sub(steps)
}

/// `bpf_tail_call(ctx, map, index)`: goes on after the call where there is no program.
pub(super) struct TailCall;

impl Instruction for TailCall {
    #[inline(always)]
    unsafe fn step<const CHECKED: bool, const LINK: u8>(cpu: &mut Cpu) -> Flow {
        // SAFETY: by this function's contract.
        unsafe {
            publish(cpu);
            Flow::Slow
        }
    }

    unsafe fn slow<const CHECKED: bool>(cpu: &mut Cpu) -> Flow {
        // SAFETY: by this function's contract.
        unsafe { tail_call(cpu) }
    }
}

/// # Safety
/// As [`Instruction::step`].
unsafe fn tail_call(cpu: &mut Cpu) -> Flow {
    // SAFETY: by this function's contract.
    unsafe {
        let env = &mut *cpu.env;
        let (context, map, index) = (cpu.reg(1), cpu.reg(2), cpu.reg(3));
        let target = match find_target(env, map, index as u32) {
            Ok(Some(target)) => target,
            Ok(None) => return cpu.next(),
            Err(t) => return trap(env, t),
        };
        env.count_tail_call();
        let window = cpu.window();
        let current = env.program;
        if (*window).caller.is_none() {
            (*window).caller = Some(current.into());
        }
        let program: *const dyn Local = &*target;
        env.kept_programs.push(target);
        // SAFETY: `kept_programs` holds it until the run ends.
        let program = &*program;
        env.program = program;
        // The new program may nest its own calls.
        env.window_limit = env
            .window_limit
            .max(window.add(MAX_FRAMES))
            .min(env.window_end);
        let here = current.as_any().downcast_ref::<Loaded>();
        match program.as_any().downcast_ref::<Loaded>() {
            Some(loaded) if here.is_some_and(|h| h.threaded == loaded.threaded) => {
                cpu.fuel = settle(env, cpu.fuel, cpu.pc.addr(), loaded.code.as_ptr().addr());
                (*window).may_goto = MayGoto::NEW;
                (*window).r[1] = context;
                cpu.pc = loaded.code.as_ptr();
                Flow::Jump
            }
            _ => match program.enter(env, [context, 0, 0, 0, 0]) {
                Ok(value) => {
                    cpu.set_reg(0, value);
                    cpu.fuel = env.fuel;
                    match leave::<true>(cpu) {
                        Flow::Slow => leave_to_caller::<true>(cpu),
                        flow => flow,
                    }
                }
                Err(t) => {
                    cpu.fuel = env.fuel;
                    trap(env, t)
                }
            },
        }
    }
}

/// The program in a slot, unless the run has used up its tail calls.
pub(crate) fn find_target(
    env: &mut Env<'_>,
    map: u64,
    index: u32,
) -> Result<Option<Arc<dyn Local>>, Trap> {
    let map = env.map(map)?;
    if env.tail_calls() >= MAX_TAIL_CALLS {
        return Ok(None);
    }
    let Some(array) = map.as_prog_array() else {
        return Ok(None);
    };
    let guard = bpfkit_maps::pin();
    let slot = array
        .get(index, &guard)
        .and_then(|slot| slot.downcast_ref::<ProgramSlot>());
    let Some(slot) = slot else { return Ok(None) };
    // What runs without checks relies on a context and frames that verified programs pass on.
    let target = &slot.0;
    let prog_type = |program: &dyn Local| program.program().decl.prog_type;
    if env.checked() == target.trusted()
        || target.trusted() && prog_type(&**target) != prog_type(env.program)
    {
        return Err(FaultKind::TailCallMode.into());
    }
    Ok(Some(Arc::clone(&slot.0)))
}

/// Behind the last slot.
pub(super) struct PastEnd;

impl Instruction for PastEnd {
    #[inline(always)]
    unsafe fn step<const CHECKED: bool, const LINK: u8>(cpu: &mut Cpu) -> Flow {
        // SAFETY: the run's Env, borrowed by nobody else here.
        trap(unsafe { &mut *cpu.env }, FaultKind::PastEnd.into())
    }
}

/// An instruction that cannot run; see [`Slot::Poison`](crate::resolve::Slot::Poison).
pub(super) struct Poison;

impl Instruction for Poison {
    #[inline(always)]
    unsafe fn step<const CHECKED: bool, const LINK: u8>(cpu: &mut Cpu) -> Flow {
        // SAFETY: the run's Env, borrowed by nobody else here.
        let env = unsafe { &mut *cpu.env };
        let slot = env.program.slot_of(cpu.pc.addr());
        trap(
            env,
            FaultKind::Poisoned(crate::resolve::poison(env.program(), slot)).into(),
        )
    }
}

impl Loaded {
    /// Runs from `pc` in `window` until its `exit`.
    ///
    /// # Safety
    /// `pc` is an instruction of this program, `window` a free window of the run's stack.
    unsafe fn execute(
        &self,
        env: &mut Env<'_>,
        pc: *const Inst,
        window: *mut Window,
    ) -> Result<u64, Trap> {
        // A callback without a jump would never look.
        if self.checked && env.fuel < 0 {
            let limit = env.step_limit;
            return Err(FaultKind::StepLimit { limit }.into());
        }
        let outer = std::mem::replace(&mut env.entry, pc.addr());
        let spans: *const Spans = &raw const env.memory.spans;
        // The lifetime is erased on the way through the handlers, which keep nothing.
        let erased: *mut Env<'static> = std::ptr::from_mut(env).cast();
        // SAFETY: `pc` is an instruction that `prepare` made for this kind of dispatch; its
        // union field follows from `threaded`.
        unsafe {
            if self.threaded {
                ((*pc).run.threaded)(pc, window.cast(), env.fuel, erased, spans);
            } else {
                let mut cpu = Cpu::new(pc, window.cast(), env.fuel, erased, spans);
                if (*erased).observer.is_some() {
                    Self::observe(&cpu);
                    while ((*cpu.pc).run.step)(&mut cpu) {
                        Self::observe(&cpu);
                    }
                } else {
                    while ((*cpu.pc).run.step)(&mut cpu) {}
                }
            }
        }
        env.fuel = settle(env, env.fuel, env.pc, outer);
        match env.trap.take() {
            Some(t) => {
                let here = (env.program, env.pc);
                env.trapped_at.get_or_insert(here);
                Err(t)
            }
            // SAFETY: the window is still the run's.
            None => Ok(unsafe { (*window).r[0] }),
        }
    }

    /// Shows the run's observer where it stands.
    ///
    /// # Safety
    /// `cpu` describes a run under way, between two instructions.
    unsafe fn observe(cpu: &Cpu) {
        // SAFETY: by this function's contract nothing else borrows the run, its window, or the
        // stack frame below the window's R10, whose bytes were written when it was allocated.
        unsafe {
            let env = &mut *cpu.env;
            let window = cpu.window();
            let registers = &(*window).r;
            let top = registers[10] as usize;
            let frame = std::ptr::with_exposed_provenance::<[u8; FRAME_BYTES]>(top - FRAME_BYTES);
            // A tail call goes on with another program's code.
            let program = env.program;
            let step = Step {
                program: program.program(),
                insn: program.slot_of(cpu.pc.addr()),
                depth: window.offset_from(env.window_start) as usize,
                registers,
                frame: &*frame,
            };
            if let Some(observer) = &mut env.observer {
                observer.before(&step);
            }
        }
    }

    /// Runs a function in a window.
    ///
    /// # Safety
    /// As [`execute`](Self::execute).
    pub(super) unsafe fn call_at(
        &self,
        env: &mut Env<'_>,
        slot: usize,
        window: *mut Window,
        args: Args,
    ) -> Result<u64, Trap> {
        // SAFETY: by this function's contract; `slot` is below the code's length.
        unsafe {
            let erased: *mut Env<'static> = std::ptr::from_mut(env).cast();
            if self.checked {
                open::<true>(erased, window);
            } else {
                open::<false>(erased, window);
            }
            Window::set_args(window, &args);
            (*window).return_to = std::ptr::null();
            self.execute(env, self.code.as_ptr().add(slot), window)
        }
    }

    /// Runs the program in the current frame of a run under way.
    ///
    /// # Safety
    /// `env.window` is the current frame.
    pub(super) unsafe fn enter_here(&self, env: &mut Env<'_>, args: Args) -> Result<u64, Trap> {
        let window = env.window;
        // SAFETY: by this function's contract.
        unsafe {
            let (to, caller) = ((*window).return_to, (*window).caller);
            Window::set_args(window, &args);
            (*window).return_to = std::ptr::null();
            (*window).may_goto = MayGoto::NEW;
            let result = self.execute(env, self.code.as_ptr(), window);
            (*window).return_to = to;
            (*window).caller = caller;
            result
        }
    }
}
