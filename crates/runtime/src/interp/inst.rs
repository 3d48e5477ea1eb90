//! The pre-decoded form of instructions, and the two ways from one to the next.
//!
//! Each kind of instruction is a type with one [`Instruction::step`]. From it come, for
//! checked and for trusted code, a *threaded* handler, which ends in a tail call to the
//! handler of the next instruction, and a *stepping* one, which returns to a loop.
//!
//! LLVM makes the tail call a jump at opt-level 1 and above without debug assertions (the
//! workspace's dev profile gives this crate both). Otherwise, and under Miri, programs are
//! loaded for the loop. A destructor or a local whose address escapes in a `step` would
//! silently break the jump: what takes the address of [`Cpu`] belongs into `slow`, and the
//! test `small_stack` runs every instruction often on a small stack.

use crate::env::{Env, HelperFn};
use crate::fault::{FaultKind, Trap};
use crate::memory::Spans;
use crate::vm::Window;

/// A slot of a program, ready to run. Slots keep their positions, so that jump distances
/// stay as encoded and a position names its instruction.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Inst {
    pub(super) run: Run,
    pub(super) data: Data,
}

/// What executes a slot.
#[derive(Clone, Copy)]
pub(super) union Run {
    pub(super) threaded: Threaded,
    pub(super) step: Step,
    /// In the second slot of `ld_imm64`: the value.
    pub(super) value: u64,
}

/// The operands of a slot.
#[derive(Clone, Copy)]
pub(super) union Data {
    pub(super) operands: Operands,
    /// In a helper call.
    pub(super) function: HelperFn,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Operands {
    pub(super) dst: u8,
    pub(super) src: u8,
    pub(super) off: i16,
    pub(super) imm: i32,
}

pub(super) type Threaded =
    unsafe extern "C" fn(*const Inst, *mut u64, i64, *mut Env<'static>, *const Spans);
pub(super) type Step = unsafe fn(&mut Cpu) -> bool;

/// The machine's state between two instructions; in threaded code, five registers.
pub(super) struct Cpu {
    /// The instruction to run.
    pub(super) pc: *const Inst,
    /// The current [`Window`].
    pub(super) regs: *mut u64,
    /// Steps left, counted by jumps only: a jump adds its distance. So between two points
    /// the steps taken are the distance of the positions less the change of `fuel`.
    pub(super) fuel: i64,
    /// The run.
    pub(super) env: *mut Env<'static>,
    /// Its remembered spans.
    pub(super) spans: *const Spans,
    /// What the previous instruction of a [`Pair`](super::pair::Pair) put into its
    /// destination.
    last: u64,
    /// Destination and source of an instruction in a [sequence](super::sequence), which its
    /// operands need not be asked for.
    pub(super) registers: Option<(u8, u8)>,
}

/// The instruction stands alone, or works on nothing that the one before it made.
pub(super) const UNLINKED: u8 = 0;
/// Its destination register is the one that the instruction before it has written.
pub(super) const LINKED_DST: u8 = 1;
/// Its source register is.
pub(super) const LINKED_SRC: u8 = 2;

/// How to go on after a step.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Flow {
    /// With the instruction in the next slot, where `pc` is.
    Go,
    /// Somewhere else, where `pc` is.
    Jump,
    /// With [`Instruction::slow`]; nothing happened yet.
    Slow,
    /// The run or callback is over; with a trap in `env.trap` if something went wrong.
    Stop,
    /// The step limit is reached.
    OutOfSteps,
    /// Not at all, and nobody asks where it ended: a program over a packet.
    Done,
}

/// A kind of instruction.
pub(super) trait Instruction {
    /// Executes the instruction at `pc` and moves `pc` on. In checked mode memory accesses
    /// are validated and jumps look at the step limit. `LINK` says which register's value is
    /// at hand in `cpu.last`.
    ///
    /// # Safety
    /// `cpu` describes a run under way: `pc` points to an instruction of this kind inside of
    /// a prepared program, `regs` to a window of the run's stack, `env` to the run. Without
    /// CHECKED, the contract of [`Trusted`](crate::Trusted) holds for the instruction.
    unsafe fn step<const CHECKED: bool, const LINK: u8>(cpu: &mut Cpu) -> Flow;

    /// Executes the rare cases of the instruction, out of line: after [`Flow::Slow`].
    ///
    /// # Safety
    /// As for `step`.
    unsafe fn slow<const CHECKED: bool>(cpu: &mut Cpu) -> Flow {
        let _ = cpu;
        Flow::Stop
    }
}

impl Cpu {
    pub(super) fn new(
        pc: *const Inst,
        regs: *mut u64,
        fuel: i64,
        env: *mut Env<'static>,
        spans: *const Spans,
    ) -> Self {
        Self {
            pc,
            regs,
            fuel,
            env,
            spans,
            last: 0,
            registers: None,
        }
    }

    /// Number of the destination register. The operands are read one by one: together, LLVM
    /// loads them as one word and shifts, which is slower.
    ///
    /// # Safety
    /// As [`Instruction::step`]; so for the other accessors.
    #[inline(always)]
    pub(super) unsafe fn dst(&self) -> u8 {
        match self.registers {
            Some((dst, _)) => dst,
            // SAFETY: pc points to an instruction whose data are operands; so below.
            None => unsafe { (*self.pc).data.operands.dst },
        }
    }

    #[inline(always)]
    pub(super) unsafe fn src(&self) -> u8 {
        match self.registers {
            Some((_, src)) => src,
            // SAFETY: as in `dst`.
            None => unsafe { (*self.pc).data.operands.src },
        }
    }

    #[inline(always)]
    pub(super) unsafe fn off(&self) -> i16 {
        // SAFETY: as in `dst`.
        unsafe { (*self.pc).data.operands.off }
    }

    #[inline(always)]
    pub(super) unsafe fn imm(&self) -> i32 {
        // SAFETY: as in `dst`.
        unsafe { (*self.pc).data.operands.imm }
    }

    /// What the destination register holds.
    #[inline(always)]
    pub(super) unsafe fn dst_value<const LINK: u8>(&self) -> u64 {
        if LINK == LINKED_DST {
            return self.last;
        }
        // SAFETY: as in `dst`.
        unsafe { self.reg(self.dst()) }
    }

    /// What the source register holds.
    #[inline(always)]
    pub(super) unsafe fn src_value<const LINK: u8>(&self) -> u64 {
        if LINK == LINKED_SRC {
            return self.last;
        }
        // SAFETY: as in `dst`.
        unsafe { self.reg(self.src()) }
    }

    /// The second operand: a register or the sign-extended immediate.
    #[inline(always)]
    pub(super) unsafe fn operand<const REG: bool, const LINK: u8>(&self) -> u64 {
        // SAFETY: as in `dst`.
        unsafe {
            if REG {
                self.src_value::<LINK>()
            } else {
                i64::from(self.imm()) as u64
            }
        }
    }

    /// Sets the destination register.
    #[inline(always)]
    pub(super) unsafe fn set_dst(&mut self, value: u64) {
        self.last = value;
        // SAFETY: as in `dst`.
        unsafe { self.set_reg(self.dst(), value) }
    }

    #[inline(always)]
    pub(super) unsafe fn reg(&self, number: u8) -> u64 {
        // SAFETY: register numbers are 0–10 (decoded), the window has 11.
        unsafe { *self.regs.add(usize::from(number)) }
    }

    #[inline(always)]
    pub(super) unsafe fn set_reg(&mut self, number: u8, value: u64) {
        // SAFETY: as in `reg`.
        unsafe { *self.regs.add(usize::from(number)) = value }
    }

    #[inline(always)]
    pub(super) unsafe fn next(&mut self) -> Flow {
        // SAFETY: an instruction that goes on to the next slot is not the last: `prepare`
        // ends the code with one that stops.
        unsafe { self.pc = self.pc.add(1) };
        Flow::Go
    }

    /// Jumps `distance` slots from the next one. The empty assembly keeps LLVM from computing
    /// both outcomes of a comparison and selecting one, which hides it from branch prediction.
    #[inline(always)]
    pub(super) unsafe fn jump<const CHECKED: bool>(&mut self, distance: i32) -> Flow {
        #[cfg(not(miri))]
        // SAFETY: there is nothing in it.
        unsafe {
            std::arch::asm!("", options(nomem, nostack, preserves_flags));
        }
        // SAFETY: `prepare` has checked the target.
        unsafe { self.pc = self.pc.add(1).offset(distance as isize) };
        self.fuel = self.fuel.wrapping_add(i64::from(distance));
        if CHECKED && self.fuel < 0 {
            Flow::OutOfSteps
        } else {
            Flow::Jump
        }
    }

    #[inline(always)]
    pub(super) fn window(&self) -> *mut Window {
        self.regs.cast()
    }
}

/// Stops with a trap.
#[cold]
#[inline(never)]
pub(super) fn trap(env: &mut Env<'static>, trap: Trap) -> Flow {
    env.trap = Some(trap);
    Flow::Stop
}

/// The threaded handler of `I`.
pub(super) unsafe extern "C" fn threaded<I: Instruction, const CHECKED: bool>(
    pc: *const Inst,
    regs: *mut u64,
    fuel: i64,
    env: *mut Env<'static>,
    spans: *const Spans,
) {
    let mut cpu = Cpu::new(pc, regs, fuel, env, spans);
    // SAFETY: called by `execute` or another handler with the state of a run, at an
    // instruction that `prepare` gave this handler to.
    unsafe {
        match I::step::<CHECKED, UNLINKED>(&mut cpu) {
            Flow::Go | Flow::Jump => {
                ((*cpu.pc).run.threaded)(cpu.pc, cpu.regs, cpu.fuel, cpu.env, spans);
            }
            Flow::Slow => slow::<I, CHECKED>(pc, regs, fuel, env, spans),
            Flow::Stop => stopped(cpu.pc, cpu.regs, cpu.fuel, cpu.env),
            Flow::OutOfSteps => out_of_steps(cpu.pc, cpu.regs, cpu.fuel, cpu.env),
            Flow::Done => {}
        }
    }
}

#[cold]
#[inline(never)]
unsafe extern "C" fn slow<I: Instruction, const CHECKED: bool>(
    pc: *const Inst,
    regs: *mut u64,
    fuel: i64,
    env: *mut Env<'static>,
    spans: *const Spans,
) {
    // SAFETY: as in `threaded`.
    unsafe {
        let (flow, cpu) = slow_step::<I, CHECKED>(Cpu::new(pc, regs, fuel, env, spans));
        match flow {
            Flow::Go | Flow::Jump => {
                ((*cpu.pc).run.threaded)(cpu.pc, cpu.regs, cpu.fuel, cpu.env, spans);
            }
            Flow::OutOfSteps => out_of_steps(cpu.pc, cpu.regs, cpu.fuel, cpu.env),
            Flow::Slow | Flow::Stop | Flow::Done => stopped(cpu.pc, cpu.regs, cpu.fuel, cpu.env),
        }
    }
}

/// Keeps the `Cpu` whose address `slow` takes out of the frame that makes the tail call.
#[inline(never)]
unsafe fn slow_step<I: Instruction, const CHECKED: bool>(mut cpu: Cpu) -> (Flow, Cpu) {
    // SAFETY: as in `threaded`.
    let flow = unsafe { I::slow::<CHECKED>(&mut cpu) };
    (flow, cpu)
}

#[cold]
#[inline(never)]
unsafe extern "C" fn out_of_steps(
    pc: *const Inst,
    regs: *mut u64,
    fuel: i64,
    env: *mut Env<'static>,
) {
    // SAFETY: the run's Env, borrowed by nobody else here.
    unsafe {
        let limit = (*env).step_limit;
        trap(&mut *env, FaultKind::StepLimit { limit }.into());
        stopped(pc, regs, fuel, env);
    }
}

#[cold]
#[inline(never)]
unsafe extern "C" fn stopped(pc: *const Inst, regs: *mut u64, fuel: i64, env: *mut Env<'static>) {
    // SAFETY: the run's Env, borrowed by nobody else here.
    let env = unsafe { &mut *env };
    env.pc = pc.addr();
    env.fuel = fuel;
    env.window = regs.cast();
}

/// The stepping handler of `I`: returns whether to go on.
pub(super) unsafe fn stepped<I: Instruction, const CHECKED: bool>(cpu: &mut Cpu) -> bool {
    // SAFETY: as in `threaded`, called by the loop of `execute`.
    unsafe {
        let mut flow = I::step::<CHECKED, UNLINKED>(cpu);
        if flow == Flow::Slow {
            flow = I::slow::<CHECKED>(cpu);
        }
        match flow {
            Flow::Go | Flow::Jump => return true,
            Flow::OutOfSteps => out_of_steps(cpu.pc, cpu.regs, cpu.fuel, cpu.env),
            Flow::Done => {}
            Flow::Slow | Flow::Stop => stopped(cpu.pc, cpu.regs, cpu.fuel, cpu.env),
        }
        false
    }
}
