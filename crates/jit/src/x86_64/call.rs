//! Calls, and what happens in Rust.

use std::mem::offset_of;

use bpfkit_isa::Call;
use bpfkit_runtime::native::State;
use bpfkit_runtime::{FRAME_BYTES, LoadErrorKind, TAIL_CALL};

use super::Compiler;
use super::emit::{Arith, Cc, Label, Mem};
use super::regs::{ARGS, FRAME, FUEL, R10, R11, RAX, RSP, STATE};
use super::shared::{Stub, Thunk, shared};
use crate::backend::Origin;
use crate::lower::{ARG_REGS, Inline, Mask, Plan};

pub(super) use crate::callout::{MISALIGNED, PAST_END, POISON, STEP_LIMIT};

const FUEL_AT: i32 = offset_of!(State, fuel) as i32;

impl Compiler<'_> {
    pub(super) fn call(&mut self, call: Call) -> Result<(), LoadErrorKind> {
        // What was granted may be taken back.
        self.valid.forget();
        match call {
            Call::Helper(TAIL_CALL) => {
                self.flush(self.live | ARG_REGS);
                match self.plan.inline_at(self.slot) {
                    Some(Inline::TailCall(call)) => self.direct_tail_call(call),
                    _ => self.tail_call(),
                }
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

    /// Calls what programs share.
    pub(super) fn call_stub(&mut self, stub: Stub) {
        self.asm.call_shared(shared().stub(stub, self.plan.checked));
    }

    /// What programs share for calls of that function.
    pub(super) fn thunk(&self, thunk: Thunk, function: u64) -> Option<i32> {
        shared().thunk(thunk, self.plan.checked, function)
    }

    fn helper(&mut self, function: u64) {
        self.flush(self.live);
        let kept = self.keep_args(self.plan.live_out(self.slot) & ARG_REGS);
        // Checked code needs the slot for its steps; else where the stub returns to tells.
        if self.plan.checked {
            self.asm.mov_imm(RAX, self.slot as u64);
        }
        match self.thunk(Thunk::Helper, function) {
            Some(thunk) => self.asm.call_shared(thunk),
            None => {
                self.asm.mov_imm(R10, function);
                self.call_stub(Stub::Helper);
            }
        }
        if !self.plan.checked {
            self.returns_here();
        }
        self.restore_args(kept);
    }

    /// The shared code that was just called knows the slot by where it returns to.
    pub(super) fn returns_here(&mut self) {
        let call = self.asm.links() - 1;
        self.returns.push((call, self.slot as u32));
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
        self.call_stub(Stub::TailCall);
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
            self.call_stub(Stub::Open);
        }
        self.asm
            .arith_imm(Arith::Add, true, FRAME, FRAME_BYTES as i32);
        self.asm.call(Label(self.function_labels + index as u32));
        self.asm
            .arith_imm(Arith::Sub, true, FRAME, FRAME_BYTES as i32);
        if self.plan.checked {
            self.call_stub(Stub::Close);
        }
        self.restore_args(kept);
    }

    /// Ends the run with a trap of that kind.
    pub(super) fn stop(&mut self, kind: u32) {
        self.asm
            .mov_imm(R10, u64::from((self.slot as u32) << 8 | kind));
        self.call_stub(Stub::Stop);
    }

    /// What instructions have left for later.
    pub(super) fn out_of_line(&mut self) {
        for slow in std::mem::take(&mut self.slow) {
            self.mark(slow.entry, Origin::Insn(slow.packed >> 8));
            if let Some(place) = slow.address {
                self.asm.lea(R11, place);
            }
            self.asm.mov_imm(R10, slow.packed.into());
            self.call_stub(slow.stub);
            if slow.stub != Stub::Stop {
                self.asm.jmp(slow.back);
            }
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

    /// `exit`: an epilogue that is no longer than a jump, or a jump to the function's, which
    /// its last instruction goes on to.
    pub(super) fn exit(&mut self) {
        self.flush(1);
        if self.leaves_at_once() {
            if !self.exit_bound {
                self.asm.bind(self.exit);
                self.exit_bound = true;
            }
            return self.epilogue();
        }
        self.exit_used = true;
        if self.slot + 1 != self.function.end as usize {
            self.asm.jmp(self.exit);
        }
    }
}
