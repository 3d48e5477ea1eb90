//! Calls, and what happens in Rust.

use std::mem::offset_of;

use bpfkit_isa::Call;
use bpfkit_runtime::native::State;
use bpfkit_runtime::{FRAME_BYTES, LoadErrorKind, TAIL_CALL};

use super::Compiler;
use super::emit::{Alu, Asm, Label};
use super::regs::{
    ADDRESS, ARGS, DETAIL, FRAME, FUEL, LINK, RESULT, SP, STATE, T0, T1, X0, X1, X2, X3, ZR,
};
use crate::backend::Origin;
use crate::callout;
use crate::lower::{ARG_REGS, Inline, Mask, Plan};

pub(super) use crate::callout::{MISALIGNED, PAST_END, POISON, STEP_LIMIT};

const FUEL_AT: i32 = offset_of!(State, fuel) as i32;
const UNWIND_AT: i32 = offset_of!(State, unwind) as i32;
const SCRATCH_AT: i32 = offset_of!(State, scratch) as i32;

/// A stretch of code that calls into Rust, shared by a program's instructions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum Stub {
    /// Helpers: slot in x14, function in x13. R0 is the result.
    Helper,
    /// Tail calls that may be a jump: what the array's slot holds in x10. As the next one,
    /// which is emitted behind it.
    DirectTailCall,
    /// Tail calls: slot in x14, which then says whether it happened.
    TailCall,
    /// An access whose span is not known: address in x13, detail in x14; gives x13.
    Access,
    /// Legacy packet loads: offset in x13, detail in x14; gives value and failure there.
    Packet,
    /// A round of `may_goto` is over: budget's address in x13, detail in x14; gives x13, 0 to jump.
    MayGoto,
    /// Opens the frame above; detail in x14.
    Open,
    /// Closes the frame above.
    Close,
    /// Ends the run: detail in x14, address in x13. Does not return.
    Stop,
}

const STUBS: [Stub; 9] = [
    Stub::Helper,
    Stub::DirectTailCall,
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
            Stub::Helper => "call of a helper",
            Stub::DirectTailCall => "direct tail call",
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

/// What stubs keep on the stack: R1–R5, R0, and where they return to.
const KEPT: u32 = 64;
const RESULT_AT: i32 = 40;
const LINK_AT: i32 = 48;

impl Compiler<'_> {
    pub(super) fn call(&mut self, call: Call) -> Result<(), LoadErrorKind> {
        match call {
            Call::Helper(TAIL_CALL) => {
                if let Some(Inline::TailCall(call)) = self.plan.inline_at(self.slot) {
                    self.direct_tail_call(call);
                    return Ok(());
                }
                self.asm.mov_imm(DETAIL, self.slot as u64);
                let stub = self.stubs.label(Stub::TailCall, &mut self.asm);
                self.asm.bl(stub);
                self.leave_if(DETAIL);
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
        let kept = self.keep_args(self.plan.live_out(self.slot) & ARG_REGS);
        self.asm.mov_imm(DETAIL, self.slot as u64);
        self.asm.mov_imm(ADDRESS, function);
        let stub = self.stubs.label(Stub::Helper, &mut self.asm);
        self.asm.bl(stub);
        self.restore_args(kept);
    }

    /// Verified programs do not use R1–R5 after a call; others find them as they were.
    pub(super) fn keep_args(&mut self, live: Mask) -> bool {
        let kept = live != 0;
        if kept {
            self.asm.sp(Alu::Sub, SP, SP, 48);
            self.put_args();
        }
        kept
    }

    pub(super) fn restore_args(&mut self, kept: bool) {
        if kept {
            self.take_args();
            self.asm.sp(Alu::Add, SP, SP, 48);
        }
    }

    fn put_args(&mut self) {
        self.asm.store_pair(ARGS[0], ARGS[1], 0);
        self.asm.store_pair(ARGS[2], ARGS[3], 16);
        self.asm.store(8, ARGS[4], SP, 32);
    }

    fn take_args(&mut self) {
        self.asm.load_pair(ARGS[0], ARGS[1], 0);
        self.asm.load_pair(ARGS[2], ARGS[3], 16);
        self.asm.load(8, false, ARGS[4], SP, 32);
    }

    fn local_call(&mut self, off: i32) {
        let kept = self.keep_args(self.plan.live_out(self.slot) & ARG_REGS);
        let target = Plan::target(self.slot, off) as u32;
        let index = self.plan.functions.partition_point(|f| f.start < target);
        if self.plan.checked {
            self.asm.mov_imm(DETAIL, (self.slot as u64) << 8);
            let open = self.stubs.label(Stub::Open, &mut self.asm);
            self.asm.bl(open);
        }
        self.asm
            .alu_imm(Alu::Add, true, FRAME, FRAME, FRAME_BYTES as i32);
        self.asm.bl(Label(self.function_labels + index as u32));
        self.asm
            .alu_imm(Alu::Sub, true, FRAME, FRAME, FRAME_BYTES as i32);
        if self.plan.checked {
            let close = self.stubs.label(Stub::Close, &mut self.asm);
            self.asm.bl(close);
        }
        self.restore_args(kept);
    }

    /// Ends the run with a trap of that kind.
    pub(super) fn stop(&mut self, kind: u32) {
        self.asm
            .mov_imm(DETAIL, u64::from((self.slot as u32) << 8 | kind));
        let stub = self.stubs.label(Stub::Stop, &mut self.asm);
        self.asm.bl(stub);
    }

    /// What instructions have left for later.
    pub(super) fn out_of_line(&mut self) {
        for slow in std::mem::take(&mut self.slow) {
            self.mark(slow.entry, Origin::Insn(slow.packed >> 8));
            self.asm.mov_imm(DETAIL, slow.packed.into());
            let stub = self.stubs.label(slow.stub, &mut self.asm);
            self.asm.bl(stub);
            if slow.stub != Stub::Stop {
                self.asm.b(slow.back);
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
                Stub::Helper => self.helper_stub(),
                Stub::DirectTailCall => self.direct_tail_call_stub(),
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
            self.asm.load(8, false, T0, STATE, UNWIND_AT);
            self.asm.sp(Alu::Add, SP, T0, 0);
            self.take_fuel();
            self.asm.mov_imm(X1, 1);
            self.leave();
        }
    }

    fn put_fuel(&mut self) {
        if self.plan.checked {
            self.asm.store(8, FUEL, STATE, FUEL_AT);
        }
    }

    fn take_fuel(&mut self) {
        if self.plan.checked {
            self.asm.load(8, false, FUEL, STATE, FUEL_AT);
        }
    }

    /// Keeps R1–R5, R0 and the way back on the stack.
    fn keep_all(&mut self) {
        self.put_fuel();
        self.asm.sp(Alu::Sub, SP, SP, KEPT);
        self.put_args();
        self.asm.store(8, RESULT, SP, RESULT_AT);
        self.asm.store(8, LINK, SP, LINK_AT);
    }

    fn restore_link(&mut self) {
        self.take_fuel();
        self.asm.load(8, false, LINK, SP, LINK_AT);
        self.asm.sp(Alu::Add, SP, SP, KEPT);
    }

    fn call_rust(&mut self, function: usize) {
        self.asm.mov_imm(T0, function as u64);
        self.asm.blr(T0);
    }

    fn unwind_if(&mut self, reg: super::regs::Gpr) {
        let unwind = self.stubs.unwind(&mut self.asm);
        self.asm.cb(true, true, reg, unwind);
    }

    fn helper_stub(&mut self) {
        self.asm.store(8, DETAIL, STATE, SCRATCH_AT);
        self.keep_all();
        self.asm.mov(true, X0, STATE);
        self.asm.sp(Alu::Add, X1, SP, 0);
        self.asm.mov(true, X2, ADDRESS);
        self.asm.mov(true, X3, FRAME);
        self.call_rust(callout::helper as *const () as usize);
        self.unwind_if(X1);
        self.asm.mov(true, RESULT, X0);
        self.restore_link();
        self.asm.ret();
    }

    fn tail_call_stub(&mut self) {
        self.asm.store(8, DETAIL, STATE, SCRATCH_AT);
        self.keep_all();
        self.asm.mov(true, X0, STATE);
        self.asm.sp(Alu::Add, X1, SP, 0);
        self.asm.mov(true, X3, FRAME);
        self.call_rust(callout::tail_call as *const () as usize);
        // 1 is a trap, 2 a tail call that has happened.
        let (happened, done) = (self.asm.label(), self.asm.label());
        self.asm.alu_imm(Alu::And, true, T1, X1, 1);
        self.unwind_if(T1);
        self.asm.mov(true, DETAIL, X1);
        self.asm.cb(true, true, X1, happened);
        self.take_args();
        self.asm.load(8, false, RESULT, SP, RESULT_AT);
        self.asm.b(done);
        self.asm.bind(happened);
        self.asm.mov(true, RESULT, X0);
        self.asm.bind(done);
        self.restore_link();
        self.asm.ret();
    }

    /// Calls `function(state, x13, x14, frame)`, which gives x13 and x14, and keeps what
    /// programs see.
    fn preserving_stub(&mut self, function: usize, may_trap: bool) {
        self.keep_all();
        self.asm.mov(true, X0, STATE);
        self.asm.mov(true, X1, ADDRESS);
        self.asm.mov(true, X2, DETAIL);
        self.asm.mov(true, X3, FRAME);
        self.call_rust(function);
        if may_trap {
            self.unwind_if(X1);
        }
        self.asm.mov(true, ADDRESS, X0);
        self.asm.mov(true, DETAIL, X1);
        self.take_args();
        self.asm.load(8, false, RESULT, SP, RESULT_AT);
        self.restore_link();
        self.asm.ret();
    }

    fn stop_stub(&mut self) {
        self.put_fuel();
        self.asm.mov(true, X0, STATE);
        self.asm.mov(true, X1, ADDRESS);
        self.asm.mov(true, X2, DETAIL);
        self.asm.mov(true, X3, FRAME);
        self.call_rust(callout::stop as *const () as usize);
        let unwind = self.stubs.unwind(&mut self.asm);
        self.asm.b(unwind);
    }

    /// `exit`.
    pub(super) fn exit(&mut self) {
        if self.exit_bound {
            return self.asm.b(self.exit);
        }
        self.asm.bind(self.exit);
        self.exit_bound = true;
        self.epilogue();
    }

    /// Returns to outside; with 0 as status, if it is asked for.
    pub(super) fn leave_well(&mut self) {
        self.asm.mov(true, X0, RESULT);
        if !self.plan.packet {
            self.asm.mov(true, X1, ZR);
        }
        self.leave();
    }
}
