//! A classic instruction understood.

use crate::ancillary::Ancillary;

/// Size of a packet load.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Size {
    /// 8 bits.
    B,
    /// 16 bits.
    H,
    /// 32 bits.
    W,
}

impl Size {
    /// 1, 2 or 4.
    pub const fn bytes(self) -> u32 {
        match self {
            Size::B => 1,
            Size::H => 2,
            Size::W => 4,
        }
    }
}

/// Second operand.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Operand {
    /// The constant.
    K(u32),
    /// The index register.
    X,
}

/// Arithmetic on A, 32 bits, unsigned.
#[allow(missing_docs, reason = "the names say it")]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum AluOp {
    Add,
    Sub,
    Mul,
    /// By a zero X ends the filter with 0.
    Div,
    /// By a zero X ends the filter with 0.
    Mod,
    Or,
    And,
    Xor,
    Lsh,
    Rsh,
}

/// Comparison of A, unsigned.
#[allow(missing_docs, reason = "the names say it")]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Cond {
    Eq,
    Gt,
    Ge,
    /// A bit in common.
    Set,
}

/// Where the jump `ja k` at instruction `at` goes.
pub(crate) fn jump_target(at: usize, k: u32) -> Option<usize> {
    (at + 1).checked_add_signed(k as i32 as isize)
}

/// One classic instruction. A packet load outside the packet ends the filter with 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Op {
    /// A = packet\[k\], big-endian.
    #[allow(missing_docs)]
    LoadAbs { size: Size, k: u32 },
    /// A = packet\[X + k\], big-endian.
    #[allow(missing_docs)]
    LoadInd { size: Size, k: u32 },
    /// A = something that is not in the packet; the size says nothing.
    #[allow(missing_docs)]
    LoadAncillary { size: Size, what: Ancillary },
    /// A = length of the packet on the wire.
    LoadLen,
    /// A = k.
    LoadImm(u32),
    /// A = M\[k\].
    LoadMem(u32),
    /// X = length of the packet on the wire.
    LoadXLen,
    /// X = k.
    LoadXImm(u32),
    /// X = M\[k\].
    LoadXMem(u32),
    /// X = 4 * (packet\[k\] & 15): length of an IPv4 header.
    LoadXMsh(u32),
    /// M\[k\] = A.
    Store(u32),
    /// M\[k\] = X.
    StoreX(u32),
    /// A = A op operand.
    #[allow(missing_docs)]
    Alu { op: AluOp, src: Operand },
    /// A = -A.
    Neg,
    /// Skips k instructions; as a signed number where jumps back are allowed.
    Jump(u32),
    /// Skips `jt` instructions if A compares with the operand so, else `jf`.
    #[allow(missing_docs)]
    JumpIf {
        cond: Cond,
        src: Operand,
        jt: u8,
        jf: u8,
    },
    /// Ends the filter with k.
    ReturnK(u32),
    /// Ends the filter with A.
    ReturnA,
    /// X = A.
    Tax,
    /// A = X.
    Txa,
}
