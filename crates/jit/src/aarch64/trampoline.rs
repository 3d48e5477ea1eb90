//! Code around a call of a host function.

use std::mem::{offset_of, size_of};

use super::emit::{Alu, Asm};
use super::regs::{Gpr, LINK, SP, T0, X0, X1};
use crate::backend::Shapes;
use crate::lower::Rules;
use crate::trampoline::{Call, CallFrame};

/// Arguments that the C calling convention has in registers: x0 on.
const REGISTERS: usize = 8;
const FRAME: u32 = size_of::<CallFrame>() as u32;
const RESULT_AT: i32 = offset_of!(CallFrame, result) as i32;
/// The frame pointer.
const FP: Gpr = Gpr(29);
/// From it to the arguments on the caller's stack: frame pointer and link.
const STACK_ARGS: i32 = 16;
/// May be changed between a call and the function's first instruction.
const BETWEEN: Gpr = Gpr(16);

/// The code of a trampoline; `None` if it does not fit.
pub(crate) fn trampoline(call: &Call) -> Option<Shapes> {
    let mut asm = Asm::new(0, Rules::default(), false);
    let (before, around) = (asm.label(), asm.label());
    asm.mov_imm(BETWEEN, call.target);
    asm.load(8, false, BETWEEN, BETWEEN, 0);
    asm.br(BETWEEN);

    asm.bind(before);
    open(&mut asm, call);
    callout(&mut asm, call, call.before);
    load_arguments(&mut asm, call, 0);
    close(&mut asm);
    asm.mov_imm(BETWEEN, call.function);
    asm.br(BETWEEN);

    asm.bind(around);
    open(&mut asm, call);
    callout(&mut asm, call, call.enter);
    let left_out = asm.label();
    asm.cb(true, true, X0, left_out);
    let rest = call.args.saturating_sub(REGISTERS) as u32;
    // The stack stays aligned.
    let room = (rest + rest % 2) * 8;
    asm.sp(Alu::Sub, SP, SP, room);
    for i in 0..rest as i32 {
        let from = room as i32 + 8 * (i + REGISTERS as i32);
        asm.load(8, false, T0, SP, from);
        asm.store(8, T0, SP, 8 * i);
    }
    load_arguments(&mut asm, call, room as i32);
    asm.mov_imm(T0, call.function);
    asm.blr(T0);
    asm.sp(Alu::Add, SP, SP, room);
    asm.store(8, X0, SP, RESULT_AT);
    asm.bind(left_out);
    callout(&mut asm, call, call.leave);
    asm.load(8, false, X0, SP, RESULT_AT);
    close(&mut asm);
    asm.ret();

    let finished = asm.finish()?;
    let offset = |label| finished.offset(label).unwrap_or(0) as usize;
    Some(Shapes {
        before: offset(before),
        around: offset(around),
        code: finished.code,
    })
}

/// Puts the arguments into a frame on the stack.
fn open(asm: &mut Asm, call: &Call) {
    asm.sp(Alu::Sub, SP, SP, 16);
    asm.store_pair(FP, LINK, 0);
    asm.sp(Alu::Add, FP, SP, 0);
    asm.sp(Alu::Sub, SP, SP, FRAME);
    for i in 0..call.args {
        let to = 8 * i as i32;
        if i < REGISTERS {
            asm.store(8, Gpr(i as u8), SP, to);
        } else {
            let on_stack = (i - REGISTERS) as i32;
            asm.load(8, false, T0, FP, STACK_ARGS + 8 * on_stack);
            asm.store(8, T0, SP, to);
        }
    }
}

fn close(asm: &mut Asm) {
    asm.sp(Alu::Add, SP, SP, FRAME);
    asm.load_pair(FP, LINK, 0);
    asm.sp(Alu::Add, SP, SP, 16);
}

/// Calls `function(inner, frame)`.
fn callout(asm: &mut Asm, call: &Call, function: u64) {
    asm.mov_imm(X0, call.inner);
    asm.sp(Alu::Add, X1, SP, 0);
    asm.mov_imm(T0, function);
    asm.blr(T0);
}

/// The frame lies that many bytes above the stack pointer.
fn load_arguments(asm: &mut Asm, call: &Call, above: i32) {
    for i in 0..call.args.min(REGISTERS) {
        asm.load(8, false, Gpr(i as u8), SP, above + 8 * i as i32);
    }
}
