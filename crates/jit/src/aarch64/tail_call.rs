//! Tail calls through a program array that is known: a jump, where the slot holds compiled
//! code of a verified program of the same type. As for x86-64, the slot is read each time; but
//! main functions save what they use, and the other one is entered as from outside.

use std::mem::offset_of;

use bpfkit_maps::Direct;
use bpfkit_runtime::MAX_TAIL_CALLS;
use bpfkit_runtime::native::State;

use super::Compiler;
use super::call::Stub;
use super::emit::{Alu, Cc};
use super::regs::{ADDRESS, ARGS, DETAIL, FRAME, STATE, T0, T1, T2, X0, X1, X2, ZR};
use crate::lower::TailCall;

const COUNT_AT: i32 = offset_of!(State, tail_calls) as i32;
const ENTERED_AT: i32 = offset_of!(State, entered) as i32;
const ARGS_AT: i32 = offset_of!(State, args) as i32;

impl Compiler<'_> {
    /// The array is known, so that R2 matters on the long way only.
    pub(super) fn direct_tail_call(&mut self, call: TailCall) {
        let next = self.asm.label();
        match call.index {
            Some(index) => self
                .asm
                .mov_imm(T0, call.slots + u64::from(index) * size_of::<u64>() as u64),
            None => {
                self.asm.mov(false, T1, ARGS[2]);
                self.asm.alu_imm(Alu::Subs, false, ZR, T1, call.len as i32);
                self.asm.b_if(Cc::Hs, next);
                self.asm.mov_imm(T0, call.slots);
                self.asm.lsl_imm(true, T1, T1, 3);
                self.asm.alu(Alu::Add, true, T0, T0, T1);
            }
        }
        self.asm.load(8, false, T0, T0, 0);
        self.asm.cb(true, false, T0, next);
        self.asm.mov_imm(DETAIL, self.slot as u64);
        let stub = self.stubs.label(Stub::DirectTailCall, &mut self.asm);
        self.asm.bl(stub);
        self.leave_if(DETAIL);
        self.asm.bind(next);
    }

    pub(super) fn direct_tail_call_stub(&mut self) {
        let (no, slow) = (self.asm.label(), self.asm.label());
        let kind = self.plan.resolver.prog_type() as i32;
        self.asm.load(4, false, T1, STATE, COUNT_AT);
        self.asm
            .alu_imm(Alu::Subs, false, ZR, T1, MAX_TAIL_CALLS as i32);
        self.asm.b_if(Cc::Hs, no);
        self.asm
            .load(8, false, T2, T0, offset_of!(Direct, kind) as i32);
        self.asm.alu_imm(Alu::Subs, true, ZR, T2, kind);
        self.asm.b_if(Cc::Ne, slow);
        self.asm
            .load(8, false, ADDRESS, T0, offset_of!(Direct, code) as i32);
        self.asm.cb(true, false, ADDRESS, slow);
        self.asm.alu_imm(Alu::Add, false, T1, T1, 1);
        self.asm.store(4, T1, STATE, COUNT_AT);
        self.asm.store(8, T0, STATE, ENTERED_AT);
        self.asm.store(8, ARGS[0], STATE, ARGS_AT);
        self.asm.mov(true, X0, STATE);
        self.asm.alu_imm(Alu::Add, true, X1, STATE, ARGS_AT);
        self.asm.mov(true, X2, FRAME);
        self.restore_outside();
        self.asm.br(ADDRESS);
        self.asm.bind(no);
        self.asm.mov(true, DETAIL, ZR);
        self.asm.ret();
        // Goes on as the long way.
        self.asm.bind(slow);
        self.stubs.label(Stub::TailCall, &mut self.asm);
    }
}
