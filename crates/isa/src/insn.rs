//! An instruction as it stands in memory, and the numbers its fields are made of.

/// One 8-byte slot of a BPF program (`struct bpf_insn`).
///
/// `ld_imm64` takes two slots; the second has only `imm` set (the upper half).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct Insn {
    /// Opcode: class in the low three bits, the rest depends on the class.
    pub code: u8,
    /// Destination register, 0–15 as encoded (only 0–10 are valid in programs).
    pub dst: u8,
    /// Source register or, in some instructions, a selector such as [`code::PSEUDO_CALL`].
    pub src: u8,
    /// Signed offset: memory displacement, jump distance, or a selector.
    pub off: i16,
    /// Signed 32-bit immediate.
    pub imm: i32,
}

impl Insn {
    /// Size of a slot in bytes.
    pub const BYTES: usize = 8;

    /// Reads a slot in little-endian layout (`bpfel`).
    pub const fn from_le_bytes(b: [u8; 8]) -> Self {
        Self {
            code: b[0],
            dst: b[1] & 0xf,
            src: b[1] >> 4,
            off: i16::from_le_bytes([b[2], b[3]]),
            imm: i32::from_le_bytes([b[4], b[5], b[6], b[7]]),
        }
    }

    /// Reads a slot in big-endian layout (`bpfeb`): the register nibbles swap too.
    pub const fn from_be_bytes(b: [u8; 8]) -> Self {
        Self {
            code: b[0],
            dst: b[1] >> 4,
            src: b[1] & 0xf,
            off: i16::from_be_bytes([b[2], b[3]]),
            imm: i32::from_be_bytes([b[4], b[5], b[6], b[7]]),
        }
    }

    /// The slot in little-endian layout.
    pub const fn to_le_bytes(self) -> [u8; 8] {
        let off = self.off.to_le_bytes();
        let imm = self.imm.to_le_bytes();
        let regs = (self.dst & 0xf) | (self.src << 4);
        [
            self.code, regs, off[0], off[1], imm[0], imm[1], imm[2], imm[3],
        ]
    }

    /// The slot in big-endian layout.
    pub const fn to_be_bytes(self) -> [u8; 8] {
        let off = self.off.to_be_bytes();
        let imm = self.imm.to_be_bytes();
        let regs = (self.dst << 4) | (self.src & 0xf);
        [
            self.code, regs, off[0], off[1], imm[0], imm[1], imm[2], imm[3],
        ]
    }

    /// Instruction class, the low three bits of the opcode.
    pub const fn class(self) -> u8 {
        self.code & 0x07
    }

    /// Whether this is the first slot of a two-slot `ld_imm64`.
    pub const fn is_ld_imm64(self) -> bool {
        self.code == code::LD | code::IMM | code::DW
    }
}

/// A register R0–R10.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Reg(u8);

impl Reg {
    /// Return value, and scratch.
    pub const R0: Reg = Reg(0);
    /// First argument; the context on entry.
    pub const R1: Reg = Reg(1);
    /// Second argument.
    pub const R2: Reg = Reg(2);
    /// Third argument.
    pub const R3: Reg = Reg(3);
    /// Fourth argument.
    pub const R4: Reg = Reg(4);
    /// Fifth argument.
    pub const R5: Reg = Reg(5);
    /// Callee-saved.
    pub const R6: Reg = Reg(6);
    /// Callee-saved.
    pub const R7: Reg = Reg(7);
    /// Callee-saved.
    pub const R8: Reg = Reg(8);
    /// Callee-saved.
    pub const R9: Reg = Reg(9);
    /// Read-only frame pointer.
    pub const R10: Reg = Reg(10);

    /// The register with that number, if there is one.
    pub const fn new(number: u8) -> Option<Reg> {
        if number <= 10 {
            Some(Reg(number))
        } else {
            None
        }
    }

    /// 0–10.
    pub const fn number(self) -> u8 {
        self.0
    }

    /// 0–10, to index register files.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Field values of the encoding, named as in the kernel's `linux/bpf.h` without
/// the `BPF_` prefix.
#[allow(missing_docs, reason = "the names are the kernel's own")]
pub mod code {
    // Classes.
    pub const LD: u8 = 0x00;
    pub const LDX: u8 = 0x01;
    pub const ST: u8 = 0x02;
    pub const STX: u8 = 0x03;
    pub const ALU: u8 = 0x04;
    pub const JMP: u8 = 0x05;
    pub const JMP32: u8 = 0x06;
    pub const ALU64: u8 = 0x07;

    // Sizes of loads and stores.
    pub const W: u8 = 0x00;
    pub const H: u8 = 0x08;
    pub const B: u8 = 0x10;
    pub const DW: u8 = 0x18;

    // Modes of loads and stores.
    pub const IMM: u8 = 0x00;
    pub const ABS: u8 = 0x20;
    pub const IND: u8 = 0x40;
    pub const MEM: u8 = 0x60;
    pub const MEMSX: u8 = 0x80;
    pub const ATOMIC: u8 = 0xc0;

    // Modes that only the kernel's own rewriting makes; never valid in a program
    // as loaded, but printed in listings of rewritten programs.
    pub const PROBE_MEM: u8 = 0x20;
    pub const PROBE_MEMSX: u8 = 0x40;
    pub const PROBE_MEM32: u8 = 0xa0;
    pub const PROBE_MEM32SX: u8 = 0xc0;
    pub const PROBE_ATOMIC: u8 = 0xe0;

    // Operand source.
    pub const K: u8 = 0x00;
    pub const X: u8 = 0x08;

    // ALU operations.
    pub const ADD: u8 = 0x00;
    pub const SUB: u8 = 0x10;
    pub const MUL: u8 = 0x20;
    pub const DIV: u8 = 0x30;
    pub const OR: u8 = 0x40;
    pub const AND: u8 = 0x50;
    pub const LSH: u8 = 0x60;
    pub const RSH: u8 = 0x70;
    pub const NEG: u8 = 0x80;
    pub const MOD: u8 = 0x90;
    pub const XOR: u8 = 0xa0;
    pub const MOV: u8 = 0xb0;
    pub const ARSH: u8 = 0xc0;
    pub const END: u8 = 0xd0;

    // Jump operations.
    pub const JA: u8 = 0x00;
    pub const JEQ: u8 = 0x10;
    pub const JGT: u8 = 0x20;
    pub const JGE: u8 = 0x30;
    pub const JSET: u8 = 0x40;
    pub const JNE: u8 = 0x50;
    pub const JSGT: u8 = 0x60;
    pub const JSGE: u8 = 0x70;
    pub const CALL: u8 = 0x80;
    pub const EXIT: u8 = 0x90;
    pub const JLT: u8 = 0xa0;
    pub const JLE: u8 = 0xb0;
    pub const JSLT: u8 = 0xc0;
    pub const JSLE: u8 = 0xd0;
    pub const JCOND: u8 = 0xe0;

    // Atomic operations, in `imm`.
    pub const FETCH: i32 = 0x01;
    pub const XCHG: i32 = 0xe0 | FETCH;
    pub const CMPXCHG: i32 = 0xf0 | FETCH;
    pub const LOAD_ACQ: i32 = 0x100;
    pub const STORE_REL: i32 = 0x110;

    // What `src` selects in `ld_imm64`.
    pub const PSEUDO_MAP_FD: u8 = 1;
    pub const PSEUDO_MAP_VALUE: u8 = 2;
    pub const PSEUDO_BTF_ID: u8 = 3;
    pub const PSEUDO_FUNC: u8 = 4;
    pub const PSEUDO_MAP_IDX: u8 = 5;
    pub const PSEUDO_MAP_IDX_VALUE: u8 = 6;

    // What `src` selects in `call`.
    pub const PSEUDO_CALL: u8 = 1;
    pub const PSEUDO_KFUNC_CALL: u8 = 2;

    // What `off` selects in `mov`.
    pub const ADDR_SPACE_CAST: i16 = 1;
    pub const ADDR_PERCPU: i16 = -1;
}
