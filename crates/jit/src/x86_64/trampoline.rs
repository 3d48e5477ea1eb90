//! Code around a call of a host function.

use std::mem::{offset_of, size_of};

use super::emit::{Arith, Asm, Cc, Mem};
use super::regs::{Gpr, R8, R9, R11, RAX, RBP, RCX, RDI, RDX, RSI, RSP};
use crate::backend::Shapes;
use crate::trampoline::{Call, CallFrame};

/// Arguments that the C calling convention has in registers.
const REGISTERS: [Gpr; 6] = [RDI, RSI, RDX, RCX, R8, R9];
const FRAME: i32 = size_of::<CallFrame>() as i32;
const RESULT_AT: i32 = offset_of!(CallFrame, result) as i32;
/// From RBP to the arguments on the caller's stack: RBP itself and the return address.
const STACK_ARGS: i32 = 16;

/// The code of a trampoline.
pub(crate) fn trampoline(call: &Call) -> Shapes {
    let mut asm = Asm::new(0, 0);
    let (before, around) = (asm.label(), asm.label());
    asm.mov_imm(R11, call.target);
    asm.jmp_to(Mem::at(R11, 0));

    asm.bind(before);
    open(&mut asm, call);
    callout(&mut asm, call, call.before);
    load_arguments(&mut asm, call);
    close(&mut asm);
    asm.mov_imm(R11, call.function);
    asm.jmp_to(R11);

    asm.bind(around);
    open(&mut asm, call);
    callout(&mut asm, call, call.enter);
    let left_out = asm.label();
    asm.test(true, RAX, RAX);
    asm.jcc(Cc::Ne, left_out);
    let rest = call.args.saturating_sub(REGISTERS.len()) as i32;
    // The stack stays aligned.
    asm.arith_imm(Arith::Sub, true, RSP, (rest + rest % 2) * 8);
    for i in 0..rest {
        let from = Mem::at(RBP, -FRAME + 8 * (i + REGISTERS.len() as i32));
        asm.load(8, false, RAX, from);
        asm.store(8, Mem::at(RSP, 8 * i), RAX);
    }
    load_arguments(&mut asm, call);
    asm.mov_imm(RAX, call.function);
    asm.call_reg(RAX);
    asm.lea(RSP, Mem::at(RBP, -FRAME));
    asm.store(8, Mem::at(RSP, RESULT_AT), RAX);
    asm.bind(left_out);
    callout(&mut asm, call, call.leave);
    asm.load(8, false, RAX, Mem::at(RSP, RESULT_AT));
    close(&mut asm);
    asm.ret();

    let finished = asm.finish();
    let offset = |label| finished.offset(label).unwrap_or(0) as usize;
    Shapes {
        before: offset(before),
        around: offset(around),
        code: finished.code,
    }
}

/// Puts the arguments into a frame on the stack, which is aligned then.
fn open(asm: &mut Asm, call: &Call) {
    asm.push(RBP);
    asm.mov(true, RBP, RSP);
    asm.arith_imm(Arith::Sub, true, RSP, FRAME);
    for i in 0..call.args {
        let to = Mem::at(RSP, 8 * i as i32);
        match REGISTERS.get(i) {
            Some(reg) => asm.store(8, to, *reg),
            None => {
                let on_stack = (i - REGISTERS.len()) as i32;
                asm.load(8, false, RAX, Mem::at(RBP, STACK_ARGS + 8 * on_stack));
                asm.store(8, to, RAX);
            }
        }
    }
}

fn close(asm: &mut Asm) {
    asm.mov(true, RSP, RBP);
    asm.pop(RBP);
}

/// Calls `function(inner, frame)`.
fn callout(asm: &mut Asm, call: &Call, function: u64) {
    asm.mov_imm(RDI, call.inner);
    asm.mov(true, RSI, RSP);
    asm.mov_imm(RAX, function);
    asm.call_reg(RAX);
}

fn load_arguments(asm: &mut Asm, call: &Call) {
    for (i, reg) in REGISTERS.into_iter().enumerate().take(call.args) {
        asm.load(8, false, reg, Mem::at(RBP, -FRAME + 8 * i as i32));
    }
}
