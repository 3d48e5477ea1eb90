//! Calls, and what happens in Rust.

use std::mem::offset_of;

use bpfkit_isa::Call;
use bpfkit_runtime::native::State;
use bpfkit_runtime::{FRAME_BYTES, LoadErrorKind, TAIL_CALL};

use super::Compiler;
use super::emit::{Arith, Asm, Cc, Label, Mem};
use super::regs::{ARGS, FRAME, FUEL, R10, R11, RAX, RCX, RDI, RDX, RSI, RSP, STATE};
use crate::backend::Origin;
use crate::callout;
use crate::lower::{ARG_REGS, Mask, Plan};

pub(super) use crate::callout::{MISALIGNED, PAST_END, POISON, STEP_LIMIT};

const FUEL_AT: i32 = offset_of!(State, fuel) as i32;
const UNWIND_AT: i32 = offset_of!(State, unwind) as i32;
const SCRATCH_AT: i32 = offset_of!(State, scratch) as i32;

/// A stretch of code that calls into Rust, shared by a program's instructions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum Stub {
    /// Helpers near [`anchor`]: distance from there in EAX; goes on as the next one, which is
    /// emitted behind it.
    NearHelper,
    /// Helpers: function in R10 and, in checked code, slot in EAX. R0 is the result.
    Helper,
    /// Tail calls: slot in R10. Whether it happened in the flags, as "not equal".
    TailCall,
    /// An access whose span is not known: address in R11, detail in R10; gives R11.
    Access,
    /// Legacy packet loads: offset in R11, detail in R10; gives value and failure there.
    Packet,
    /// A round of `may_goto` is over: budget's address in R11, detail in R10; gives R11, 0 to jump.
    MayGoto,
    /// Opens the frame above; detail in R10.
    Open,
    /// Closes the frame above.
    Close,
    /// Ends the run: detail in R10, address in R11. Does not return.
    Stop,
}

/// An address that most helpers are near to.
fn anchor() -> u64 {
    callout::helper as *const () as usize as u64
}

const STUBS: [Stub; 9] = [
    Stub::NearHelper,
    Stub::Helper,
    Stub::TailCall,
    Stub::Access,
    Stub::Packet,
    Stub::MayGoto,
    Stub::Open,
    Stub::Close,
    Stub::Stop,
];

impl Stub {
    /// What it does, for listings.
    fn name(self) -> &'static str {
        match self {
            Stub::NearHelper => "call of a near helper",
            Stub::Helper => "call of a helper",
            Stub::TailCall => "tail call",
            Stub::Access => "unknown place",
            Stub::Packet => "legacy packet load",
            Stub::MayGoto => "clock of may_goto",
            Stub::Open => "open a frame",
            Stub::Close => "close a frame",
            Stub::Stop => "stop",
        }
    }
}

/// Labels of the stubs that are needed.
#[derive(Default)]
pub(super) struct Stubs {
    labels: [Option<Label>; STUBS.len()],
    unwind: Option<Label>,
}

impl Stubs {
    pub(super) fn label(&mut self, stub: Stub, asm: &mut Asm) -> Label {
        *self.labels[stub as usize].get_or_insert_with(|| asm.label())
    }

    fn unwind(&mut self, asm: &mut Asm) -> Label {
        *self.unwind.get_or_insert_with(|| asm.label())
    }
}

impl Compiler<'_> {
    pub(super) fn call(&mut self, call: Call) -> Result<(), LoadErrorKind> {
        // What was granted may be taken back.
        self.valid.forget();
        match call {
            Call::Helper(TAIL_CALL) => {
                self.flush(self.live | ARG_REGS);
                self.tail_call();
            }
            Call::Helper(id) => {
                if let Some(inline) = self.plan.inline_at(self.slot) {
                    self.inline(inline);
                    return Ok(());
                }
                let function = self.plan.resolver.helper(id)?;
                self.helper(function as *const () as usize as u64);
            }
            Call::Kfunc { btf_id, .. } => {
                let function = self.plan.resolver.kfunc(self.slot, btf_id)?;
                self.helper(function as *const () as usize as u64);
            }
            Call::Local(off) => self.local_call(off),
        }
        Ok(())
    }

    fn helper(&mut self, function: u64) {
        self.flush(self.live);
        let kept = self.keep_args(self.plan.live_out(self.slot) & ARG_REGS);
        // Checked code needs the slot for its steps; else where the stub returns to tells.
        if self.plan.checked {
            self.asm.mov_imm(RAX, self.slot as u64);
        }
        let near = i32::try_from(function.wrapping_sub(anchor()) as i64);
        let stub = match near {
            Ok(distance) if !self.plan.checked => {
                self.asm.mov_imm(RAX, u64::from(distance as u32));
                Stub::NearHelper
            }
            _ => {
                self.asm.mov_imm(R10, function);
                Stub::Helper
            }
        };
        let stub = self.stubs.label(stub, &mut self.asm);
        self.asm.call(stub);
        if !self.plan.checked {
            let back = self.asm.label();
            self.asm.bind(back);
            self.returns.push((back, self.slot as u32));
        }
        self.restore_args(kept);
    }

    /// Verified programs do not use R1–R5 after a call; others find them as they were.
    pub(super) fn keep_args(&mut self, live: Mask) -> bool {
        let kept = live != 0;
        if kept {
            // The stack stays aligned.
            self.asm.arith_imm(Arith::Sub, true, RSP, 48);
            for (i, arg) in ARGS.into_iter().enumerate() {
                self.asm.store(8, Mem::at(RSP, i as i32 * 8), arg);
            }
        }
        kept
    }

    pub(super) fn restore_args(&mut self, kept: bool) {
        if kept {
            for (i, arg) in ARGS.into_iter().enumerate() {
                self.asm.load(8, false, arg, Mem::at(RSP, i as i32 * 8));
            }
            self.asm.arith_imm(Arith::Add, true, RSP, 48);
        }
    }

    fn tail_call(&mut self) {
        self.asm.mov_imm(R10, self.slot as u64);
        let stub = self.stubs.label(Stub::TailCall, &mut self.asm);
        self.asm.call(stub);
        if self.plan.checked {
            let go_on = self.asm.label();
            self.asm.jcc(Cc::E, go_on);
            // The rest of the segment was counted and does not happen.
            let rest = self.steps_after[self.slot] as i32;
            self.asm.arith_imm(Arith::Add, true, FUEL, rest);
            self.asm.jmp(self.exit);
            self.asm.bind(go_on);
        } else {
            self.asm.jcc(Cc::Ne, self.exit);
        }
        self.exit_used = true;
    }

    fn local_call(&mut self, off: i32) {
        self.flush(self.live);
        let kept = self.keep_args(self.plan.live_out(self.slot) & ARG_REGS);
        let target = Plan::target(self.slot, off) as u32;
        let index = self.plan.functions.partition_point(|f| f.start < target);
        if self.plan.checked {
            self.asm.mov_imm(R10, (self.slot as u64) << 8);
            let open = self.stubs.label(Stub::Open, &mut self.asm);
            self.asm.call(open);
        }
        self.asm
            .arith_imm(Arith::Add, true, FRAME, FRAME_BYTES as i32);
        self.asm.call(Label(self.function_labels + index as u32));
        self.asm
            .arith_imm(Arith::Sub, true, FRAME, FRAME_BYTES as i32);
        if self.plan.checked {
            let close = self.stubs.label(Stub::Close, &mut self.asm);
            self.asm.call(close);
        }
        self.restore_args(kept);
    }

    /// Ends the run with a trap of that kind.
    pub(super) fn stop(&mut self, kind: u32) {
        self.asm
            .mov_imm(R10, u64::from((self.slot as u32) << 8 | kind));
        let stub = self.stubs.label(Stub::Stop, &mut self.asm);
        self.asm.call(stub);
    }

    /// What instructions have left for later.
    pub(super) fn out_of_line(&mut self) {
        for slow in std::mem::take(&mut self.slow) {
            self.mark(slow.entry, Origin::Insn(slow.packed >> 8));
            if let Some(place) = slow.address {
                self.asm.lea(R11, place);
            }
            self.asm.mov_imm(R10, slow.packed.into());
            let stub = self.stubs.label(slow.stub, &mut self.asm);
            self.asm.call(stub);
            if slow.stub != Stub::Stop {
                self.asm.jmp(slow.back);
            }
        }
    }

    pub(super) fn emit_stubs(&mut self) {
        for stub in STUBS {
            let Some(label) = self.stubs.labels[stub as usize] else {
                continue;
            };
            self.mark(label, Origin::Shared(stub.name()));
            match stub {
                Stub::NearHelper => self.near_helper_stub(),
                Stub::Helper => self.helper_stub(),
                Stub::TailCall => self.tail_call_stub(),
                Stub::Access => self.preserving_stub(callout::access as *const () as usize, true),
                Stub::Packet => self.preserving_stub(callout::packet as *const () as usize, false),
                Stub::MayGoto => {
                    self.preserving_stub(callout::may_goto as *const () as usize, false);
                }
                Stub::Open => self.preserving_stub(callout::open as *const () as usize, true),
                Stub::Close => self.preserving_stub(callout::close as *const () as usize, true),
                Stub::Stop => self.stop_stub(),
            }
        }
        if let Some(label) = self.stubs.unwind {
            self.mark(label, Origin::Shared("unwind"));
            self.asm.load(8, false, RSP, Mem::at(STATE, UNWIND_AT));
            if self.plan.checked {
                self.asm.load(8, false, FUEL, Mem::at(STATE, FUEL_AT));
            }
            self.asm.mov_imm(RDX, 1);
            self.leave();
        }
    }

    pub(super) fn put_fuel(&mut self) {
        if self.plan.checked {
            self.asm.store(8, Mem::at(STATE, FUEL_AT), FUEL);
        }
    }

    pub(super) fn take_fuel(&mut self) {
        if self.plan.checked {
            self.asm.load(8, false, FUEL, Mem::at(STATE, FUEL_AT));
        }
    }

    /// Puts R1–R5 in a row on the stack.
    fn spread_args(&mut self) {
        for (i, arg) in ARGS.into_iter().enumerate() {
            self.asm.store(8, Mem::at(RSP, i as i32 * 8), arg);
        }
    }

    fn call_rust(&mut self, function: usize) {
        self.asm.mov_imm(RAX, function as u64);
        self.asm.call_reg(RAX);
    }

    fn near_helper_stub(&mut self) {
        self.asm.movsx(true, 32, R10, RAX);
        self.asm.mov_imm(RAX, anchor());
        self.asm.arith(Arith::Add, true, R10, RAX);
        // Falls into the other one.
        self.stubs.label(Stub::Helper, &mut self.asm);
    }

    fn helper_stub(&mut self) {
        self.put_fuel();
        if !self.plan.checked {
            self.asm.load(8, false, RAX, Mem::at(RSP, 0));
        }
        self.asm.store(8, Mem::at(STATE, SCRATCH_AT), RAX);
        // With the return address, this aligns the stack.
        for arg in ARGS.into_iter().rev() {
            self.asm.push(arg);
        }
        self.asm.mov(true, RSI, RSP);
        self.asm.mov(true, RDI, STATE);
        self.asm.mov(true, RDX, R10);
        self.asm.mov(true, RCX, FRAME);
        self.call_rust(callout::helper as *const () as usize);
        self.asm.arith_imm(Arith::Add, true, RSP, 40);
        self.asm.test(false, RDX, RDX);
        let unwind = self.stubs.unwind(&mut self.asm);
        self.asm.jcc(Cc::Ne, unwind);
        self.take_fuel();
        self.asm.ret();
    }

    fn tail_call_stub(&mut self) {
        self.put_fuel();
        self.asm.store(8, Mem::at(STATE, SCRATCH_AT), R10);
        self.asm.arith_imm(Arith::Sub, true, RSP, 56);
        self.spread_args();
        self.asm.store(8, Mem::at(RSP, 40), RAX);
        self.asm.mov(true, RSI, RSP);
        self.asm.mov(true, RDI, STATE);
        self.asm.mov(true, RCX, FRAME);
        self.call_rust(callout::tail_call as *const () as usize);
        self.take_fuel();
        self.asm.arith_imm(Arith::Cmp, false, RDX, 1);
        let unwind = self.stubs.unwind(&mut self.asm);
        self.asm.jcc(Cc::E, unwind);
        let happened = self.asm.label();
        self.asm.test(false, RDX, RDX);
        self.asm.jcc(Cc::Ne, happened);
        for (i, arg) in ARGS.into_iter().enumerate() {
            self.asm.load(8, false, arg, Mem::at(RSP, i as i32 * 8));
        }
        self.asm.load(8, false, RAX, Mem::at(RSP, 40));
        self.asm.bind(happened);
        // Leaves the flags alone.
        self.asm.lea(RSP, Mem::at(RSP, 56));
        self.asm.ret();
    }

    /// Calls `function(state, R11, R10, frame)`, which gives R11 and R10, and keeps what
    /// programs see.
    fn preserving_stub(&mut self, function: usize, may_trap: bool) {
        self.put_fuel();
        self.asm.push(RAX);
        for arg in ARGS {
            self.asm.push(arg);
        }
        self.asm.arith_imm(Arith::Sub, true, RSP, 8);
        self.asm.mov(true, RDI, STATE);
        self.asm.mov(true, RSI, R11);
        self.asm.mov(true, RDX, R10);
        self.asm.mov(true, RCX, FRAME);
        self.call_rust(function);
        if may_trap {
            self.asm.test(false, RDX, RDX);
            let unwind = self.stubs.unwind(&mut self.asm);
            self.asm.jcc(Cc::Ne, unwind);
        }
        self.asm.mov(true, R11, RAX);
        self.asm.mov(true, R10, RDX);
        self.take_fuel();
        self.asm.arith_imm(Arith::Add, true, RSP, 8);
        for arg in ARGS.into_iter().rev() {
            self.asm.pop(arg);
        }
        self.asm.pop(RAX);
        self.asm.ret();
    }

    fn stop_stub(&mut self) {
        self.put_fuel();
        self.asm.arith_imm(Arith::Sub, true, RSP, 8);
        self.asm.mov(true, RDI, STATE);
        self.asm.mov(true, RSI, R11);
        self.asm.mov(true, RDX, R10);
        self.asm.mov(true, RCX, FRAME);
        self.call_rust(callout::stop as *const () as usize);
        let unwind = self.stubs.unwind(&mut self.asm);
        self.asm.jmp(unwind);
    }

    /// `exit`: the function's last instruction goes on to the epilogue.
    pub(super) fn exit(&mut self) {
        self.flush(1);
        self.exit_used = true;
        if self.slot + 1 != self.function.end as usize {
            self.asm.jmp(self.exit);
        }
    }
}
