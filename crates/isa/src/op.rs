//! An instruction understood: operands by kind, selectors resolved.

use crate::insn::Reg;

/// Width of an ALU operation or comparison.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Width {
    /// 32 bits: operands are the low halves, a result's upper half is zero.
    W32,
    /// 64 bits.
    W64,
}

/// Size of a memory access.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Size {
    /// 8 bits.
    B,
    /// 16 bits.
    H,
    /// 32 bits.
    W,
    /// 64 bits.
    DW,
}

impl Size {
    /// Bytes accessed: 1, 2, 4 or 8.
    pub const fn bytes(self) -> u32 {
        match self {
            Size::B => 1,
            Size::H => 2,
            Size::W => 4,
            Size::DW => 8,
        }
    }

    /// The bits of the opcode of a load or store that say the size.
    pub(crate) const fn code(self) -> u8 {
        match self {
            Size::B => crate::code::B,
            Size::H => crate::code::H,
            Size::W => crate::code::W,
            Size::DW => crate::code::DW,
        }
    }
}

/// Second operand of an ALU operation, comparison or store.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Operand {
    /// A register.
    Reg(Reg),
    /// An immediate, sign-extended to 64 bits in 64-bit operations.
    Imm(i32),
}

/// Two-operand arithmetic: `dst = dst op src` (for `Mov`, `dst = src`).
#[allow(missing_docs, reason = "the names say it")]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum AluOp {
    Add,
    Sub,
    Mul,
    /// Unsigned; by zero gives 0.
    Div,
    /// Signed; by zero gives 0, minimum by −1 gives the minimum.
    SDiv,
    /// Unsigned; by zero leaves `dst` (its low half in 32 bits).
    Mod,
    /// Signed, sign of the dividend; by zero leaves `dst`, minimum by −1 gives 0.
    SMod,
    Or,
    And,
    /// Shift amounts are masked to the width.
    Lsh,
    Rsh,
    Arsh,
    Xor,
    Mov,
}

/// Byte-order operations on the low 16, 32 or 64 bits; the rest becomes zero.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Swap {
    /// Host order to little-endian (`le16` …).
    ToLe,
    /// Host order to big-endian (`be16` …).
    ToBe,
    /// Always swaps (`bswap16` …, ISA v4).
    Always,
}

/// Comparison of a conditional jump.
#[allow(missing_docs, reason = "the names say it")]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Cond {
    Eq,
    Ne,
    /// Unsigned.
    Gt,
    Ge,
    Lt,
    Le,
    /// `dst & src != 0`.
    Set,
    /// Signed.
    Sgt,
    Sge,
    Slt,
    Sle,
}

/// Atomic read-modify-write operation.
#[allow(missing_docs, reason = "the names say it")]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum AtomicOp {
    Add,
    Or,
    And,
    Xor,
    /// Always fetches the old value into `src`.
    Xchg,
    /// Compares with R0, stores `src` if equal, and always loads the old value into R0.
    Cmpxchg,
}

/// What a two-slot `ld_imm64` loads.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Imm64 {
    /// The 64-bit constant.
    Value(u64),
    /// Address of the map behind a file descriptor.
    MapFd(i32),
    /// Address of a byte inside the (only) value of the map behind a file descriptor.
    MapFdValue {
        /// File descriptor.
        fd: i32,
        /// Byte offset inside the value.
        off: u32,
    },
    /// Address of a kernel variable by its BTF id.
    BtfId {
        /// Type id in the kernel's BTF.
        id: i32,
        /// File descriptor of a module's BTF, 0 for vmlinux.
        btf_fd: i32,
    },
    /// Address of a subprogram, relative to the next instruction as `call` is.
    Func(i32),
    /// Address of the map with that index in the program's map list (`fd_array`).
    MapIdx(i32),
    /// Address of a byte inside the (only) value of that map.
    MapIdxValue {
        /// Index in the map list.
        index: i32,
        /// Byte offset inside the value.
        off: u32,
    },
}

/// Base of a legacy packet load.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Source {
    /// `R0 = skb[imm]`.
    Abs,
    /// `R0 = skb[reg + imm]`.
    Ind(Reg),
}

/// What `call` calls.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Call {
    /// A helper by number.
    Helper(i32),
    /// A subprogram; the offset in slots is relative to the next slot.
    Local(i32),
    /// A kernel function.
    Kfunc {
        /// Type id of the function in its BTF.
        btf_id: i32,
        /// 0 for vmlinux, else an index into the list of module BTFs.
        btf_index: i16,
    },
}

/// One instruction. Jump distances are in slots, relative to the slot after the
/// instruction's last, as encoded.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Op {
    /// Two-operand arithmetic.
    #[allow(missing_docs)]
    Alu {
        op: AluOp,
        width: Width,
        dst: Reg,
        src: Operand,
    },
    /// Sign-extending move of the low `bits` (8, 16, or 32 with 64-bit width only).
    #[allow(missing_docs)]
    MovSx {
        width: Width,
        bits: u8,
        dst: Reg,
        src: Reg,
    },
    /// Two's complement negation.
    #[allow(missing_docs)]
    Neg { width: Width, dst: Reg },
    /// Byte order; `bits` is 16, 32 or 64.
    #[allow(missing_docs)]
    Swap { kind: Swap, bits: u8, dst: Reg },
    /// Cast between address spaces (arena pointers).
    #[allow(missing_docs)]
    AddrSpaceCast {
        dst: Reg,
        src: Reg,
        dst_as: u16,
        src_as: u16,
    },
    /// `dst = ` this CPU's instance of the per-CPU address in `src` (made by rewriting only).
    #[allow(missing_docs)]
    MovPercpu { dst: Reg, src: Reg },
    /// The two-slot load of a 64-bit immediate or symbol.
    #[allow(missing_docs)]
    LoadImm64 { dst: Reg, value: Imm64 },
    /// `dst = *(size *)(base + off)`, sign-extended if `signed`.
    #[allow(missing_docs)]
    Load {
        size: Size,
        signed: bool,
        dst: Reg,
        base: Reg,
        off: i16,
    },
    /// Legacy packet load into R0, big-endian; size `B`, `H` or `W`.
    #[allow(missing_docs)]
    LoadPacket {
        size: Size,
        source: Source,
        imm: i32,
    },
    /// `*(size *)(base + off) = src`.
    #[allow(missing_docs)]
    Store {
        size: Size,
        base: Reg,
        off: i16,
        src: Operand,
    },
    /// Atomic read-modify-write; `size` is `W` or `DW`.
    #[allow(missing_docs)]
    Atomic {
        op: AtomicOp,
        size: Size,
        fetch: bool,
        base: Reg,
        off: i16,
        src: Reg,
    },
    /// Load with acquire ordering.
    #[allow(missing_docs)]
    LoadAcquire {
        size: Size,
        dst: Reg,
        base: Reg,
        off: i16,
    },
    /// Store with release ordering.
    #[allow(missing_docs)]
    StoreRelease {
        size: Size,
        base: Reg,
        off: i16,
        src: Reg,
    },
    /// Unconditional jump; `wide` is the 32-bit form (`gotol`).
    #[allow(missing_docs)]
    Jump { off: i32, wide: bool },
    /// Conditional jump.
    #[allow(missing_docs)]
    JumpIf {
        cond: Cond,
        width: Width,
        dst: Reg,
        src: Operand,
        off: i16,
    },
    /// Jumps when the loop budget is used up.
    #[allow(missing_docs)]
    MayGoto { off: i16 },
    /// Function call.
    Call(Call),
    /// Call through a register (`callx`; no kernel accepts it in a program).
    CallReg(Reg),
    /// Return from the subprogram or program.
    Exit,
}
