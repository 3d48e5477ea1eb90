//! A classic instruction as it stands in memory, and the numbers its fields are made of.

/// One classic instruction (`struct sock_filter`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct Insn {
    /// Opcode: class in the low three bits, the rest depends on the class.
    pub code: u16,
    /// Instructions to skip if a comparison holds.
    pub jt: u8,
    /// Instructions to skip if it does not.
    pub jf: u8,
    /// Constant, offset, scratch index or jump distance.
    pub k: u32,
}

impl Insn {
    /// Size in bytes.
    pub const BYTES: usize = 8;

    /// An instruction without jump fields.
    pub const fn new(code: u16, k: u32) -> Self {
        Self {
            code,
            jt: 0,
            jf: 0,
            k,
        }
    }

    /// Reads an instruction in little-endian layout.
    pub const fn from_le_bytes(b: [u8; 8]) -> Self {
        Self {
            code: u16::from_le_bytes([b[0], b[1]]),
            jt: b[2],
            jf: b[3],
            k: u32::from_le_bytes([b[4], b[5], b[6], b[7]]),
        }
    }

    /// The instruction in little-endian layout.
    pub const fn to_le_bytes(self) -> [u8; 8] {
        let code = self.code.to_le_bytes();
        let k = self.k.to_le_bytes();
        [code[0], code[1], self.jt, self.jf, k[0], k[1], k[2], k[3]]
    }

    /// Reads a filter in little-endian layout; `None` if the length is no multiple of 8.
    pub fn read_le(bytes: &[u8]) -> Option<Vec<Insn>> {
        let (insns, rest) = bytes.as_chunks::<8>();
        rest.is_empty()
            .then(|| insns.iter().map(|b| Insn::from_le_bytes(*b)).collect())
    }
}

/// Field values, named as in the kernel's `linux/filter.h` without the `BPF_` prefix.
#[allow(missing_docs, reason = "the names are the kernel's own")]
pub mod code {
    // Classes.
    pub const LD: u16 = 0x00;
    pub const LDX: u16 = 0x01;
    pub const ST: u16 = 0x02;
    pub const STX: u16 = 0x03;
    pub const ALU: u16 = 0x04;
    pub const JMP: u16 = 0x05;
    pub const RET: u16 = 0x06;
    pub const MISC: u16 = 0x07;

    // Sizes and modes of loads.
    pub const W: u16 = 0x00;
    pub const H: u16 = 0x08;
    pub const B: u16 = 0x10;
    pub const IMM: u16 = 0x00;
    pub const ABS: u16 = 0x20;
    pub const IND: u16 = 0x40;
    pub const MEM: u16 = 0x60;
    pub const LEN: u16 = 0x80;
    pub const MSH: u16 = 0xa0;

    // Operations.
    pub const ADD: u16 = 0x00;
    pub const SUB: u16 = 0x10;
    pub const MUL: u16 = 0x20;
    pub const DIV: u16 = 0x30;
    pub const OR: u16 = 0x40;
    pub const AND: u16 = 0x50;
    pub const LSH: u16 = 0x60;
    pub const RSH: u16 = 0x70;
    pub const NEG: u16 = 0x80;
    pub const MOD: u16 = 0x90;
    pub const XOR: u16 = 0xa0;
    pub const JA: u16 = 0x00;
    pub const JEQ: u16 = 0x10;
    pub const JGT: u16 = 0x20;
    pub const JGE: u16 = 0x30;
    pub const JSET: u16 = 0x40;

    // Sources and the rest.
    pub const K: u16 = 0x00;
    pub const X: u16 = 0x08;
    pub const A: u16 = 0x10;
    pub const TAX: u16 = 0x00;
    pub const TXA: u16 = 0x80;

    /// Most instructions a filter may have.
    pub const MAXINSNS: usize = 4096;
    /// Scratch words.
    pub const MEMWORDS: u32 = 16;

    // Offsets of absolute loads from here on are not into the packet.
    pub const AD_OFF: u32 = 0xffff_f000;
    pub const NET_OFF: u32 = 0xfff0_0000;
    pub const LL_OFF: u32 = 0xffe0_0000;
}
