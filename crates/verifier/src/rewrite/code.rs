//! Instructions for new code, by name.

use bpfkit_isa::{Insn, code};

/// The scratch register that programs cannot name.
pub const AX: u8 = 11;
/// The frame pointer.
pub const FP: u8 = 10;

const fn insn(code: u8, dst: u8, src: u8, off: i16, imm: i32) -> Insn {
    Insn {
        code,
        dst,
        src,
        off,
        imm,
    }
}

/// `dst = src`
pub const fn mov(dst: u8, src: u8) -> Insn {
    insn(code::ALU64 | code::MOV | code::X, dst, src, 0, 0)
}

/// `dst = imm`
pub const fn mov_imm(dst: u8, imm: i32) -> Insn {
    insn(code::ALU64 | code::MOV, dst, 0, 0, imm)
}

/// `wdst = wsrc`
pub const fn mov32(dst: u8, src: u8) -> Insn {
    insn(code::ALU | code::MOV | code::X, dst, src, 0, 0)
}

/// `wdst = imm`
pub const fn mov32_imm(dst: u8, imm: i32) -> Insn {
    insn(code::ALU | code::MOV, dst, 0, 0, imm)
}

/// This CPU's instance of the per-CPU address in `src`.
pub const fn mov_percpu(dst: u8, src: u8) -> Insn {
    insn(code::ALU64 | code::MOV | code::X, dst, src, -1, 0)
}

/// `dst op= imm` in that class.
pub const fn alu_imm(class: u8, op: u8, dst: u8, imm: i32) -> Insn {
    insn(class | op, dst, 0, 0, imm)
}

/// `dst op= src` in that class.
pub const fn alu(class: u8, op: u8, dst: u8, src: u8) -> Insn {
    insn(class | op | code::X, dst, src, 0, 0)
}

/// `dst = *(size *)(base + off)`
pub const fn load(size: u8, dst: u8, base: u8, off: i16) -> Insn {
    insn(code::LDX | code::MEM | size, dst, base, off, 0)
}

/// `*(size *)(base + off) = src`
pub const fn store(size: u8, base: u8, src: u8, off: i16) -> Insn {
    insn(code::STX | code::MEM | size, base, src, off, 0)
}

/// `*(size *)(base + off) = imm`
pub const fn store_imm(size: u8, base: u8, off: i16, imm: i32) -> Insn {
    insn(code::ST | code::MEM | size, base, 0, off, imm)
}

/// `if dst op imm goto +off` in that class.
pub const fn jump_imm(class: u8, op: u8, dst: u8, imm: i32, off: i16) -> Insn {
    insn(class | op, dst, 0, off, imm)
}

/// `if dst op src goto +off` in 64 bits.
pub const fn jump(op: u8, dst: u8, src: u8, off: i16) -> Insn {
    insn(code::JMP | op | code::X, dst, src, off, 0)
}

/// `goto +off`
pub const fn goto(off: i16) -> Insn {
    insn(code::JMP | code::JA, 0, 0, off, 0)
}

/// A call of kernel code whose distance only a running kernel knows.
pub const fn call_kernel() -> Insn {
    insn(code::JMP | code::CALL, 0, 0, 0, -1)
}

/// A call of a subprogram, led to where it starts.
pub const fn call_subprogram() -> Insn {
    insn(code::JMP | code::CALL, 0, code::PSEUDO_CALL, 0, 0)
}

/// An address that only a running kernel knows.
pub const fn address(dst: u8) -> [Insn; 2] {
    let first = insn(code::LD | code::IMM | code::DW, dst, 0, 0, 0);
    [first, insn(0, 0, 0, 0, 0)]
}

/// `dst = (sN)dst` of so many bits.
pub const fn sign_extend(dst: u8, bits: i16) -> Insn {
    insn(code::ALU64 | code::MOV | code::X, dst, dst, bits, 0)
}

/// The end of a subprogram.
pub const fn exit() -> Insn {
    insn(code::JMP | code::EXIT, 0, 0, 0, 0)
}
