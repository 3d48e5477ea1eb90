//! Tail calls through a program array that is known: a jump, where the slot holds compiled
//! code of a verified program of the same type.
//!
//! The slot is read each time, so that whoever changes the array changes no code, and a run that
//! has read the old content may still use it: its guard keeps what left the array alive. A main
//! function has nothing on the stack but where it returns to, and may use every register, so
//! that another one takes its place by a jump.

use std::mem::offset_of;

use bpfkit_maps::Direct;
use bpfkit_runtime::MAX_TAIL_CALLS;
use bpfkit_runtime::native::State;

use super::Compiler;
use super::emit::{Arith, Asm, Cc, Mem};
use super::regs::{FRAME, R10, R11, RDI, RDX, RSI, RSP, STATE};
use super::shared::Stub;
use crate::lower::TailCall;

const COUNT: Mem = state(offset_of!(State, tail_calls));
const ENTERED: Mem = state(offset_of!(State, entered));
const ARGS: Mem = state(offset_of!(State, args));

const fn state(offset: usize) -> Mem {
    Mem {
        base: Some(STATE),
        index: None,
        disp: offset as i32,
    }
}

impl Compiler<'_> {
    /// Nothing is pending. The array is known, so that R2 matters on the long way only.
    pub(super) fn direct_tail_call(&mut self, call: TailCall) {
        let next = self.asm.label();
        let slot = match call.index {
            Some(index) => {
                let slot = call.slots + u64::from(index) * size_of::<u64>() as u64;
                self.asm.mov_imm(R11, slot);
                Mem::at(R11, 0)
            }
            None => {
                self.asm.mov(false, R10, RDX);
                self.asm.arith_imm(Arith::Cmp, false, R10, call.len as i32);
                self.asm.jcc(Cc::Ae, next);
                self.asm.mov_imm(R11, call.slots);
                Mem {
                    base: Some(R11),
                    index: Some((R10, 3)),
                    disp: 0,
                }
            }
        };
        self.asm.load(8, false, R10, slot);
        self.asm.test(true, R10, R10);
        self.asm.jcc(Cc::E, next);
        self.asm.mov_imm(R11, self.plan.resolver.prog_type() as u64);
        self.call_stub(Stub::Jump);
        self.returns_here();
        self.asm.jcc(Cc::Ne, self.exit);
        self.exit_used = true;
        self.asm.bind(next);
    }
}

/// [`Stub::Jump`]. Emitted right before [`Stub::TailCall`].
pub(super) fn jump(asm: &mut Asm) {
    let (no, slow) = (asm.label(), asm.label());
    let entry = |offset: usize| Mem::at(R10, offset as i32);
    asm.arith_imm(Arith::Cmp, false, COUNT, MAX_TAIL_CALLS as i32);
    asm.jcc(Cc::Ae, no);
    asm.arith(Arith::Cmp, true, R11, entry(offset_of!(Direct, kind)));
    asm.jcc(Cc::Ne, slow);
    asm.load(8, false, R11, entry(offset_of!(Direct, code)));
    asm.test(true, R11, R11);
    asm.jcc(Cc::E, slow);
    asm.arith_imm(Arith::Add, false, COUNT, 1);
    asm.store(8, ENTERED, R10);
    // A program that needs nothing of the run takes them as if it were called from outside.
    asm.store(8, ARGS, RDI);
    asm.lea(RSI, ARGS);
    asm.mov(true, RDX, FRAME);
    // Where this would return to.
    asm.arith_imm(Arith::Add, true, RSP, 8);
    asm.jmp_to(R11);
    asm.bind(no);
    asm.arith(Arith::Cmp, true, R11, R11);
    asm.ret();
    asm.bind(slow);
    // The return address stands for the slot.
    asm.load(8, false, R10, Mem::at(RSP, 0));
}
