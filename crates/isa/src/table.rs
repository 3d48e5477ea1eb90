//! The instruction table: one row for each form of each instruction.
//!
//! Decoding, encoding, both assembly syntaxes and the reference in [`crate::docs`]
//! read these rows and nothing else knows an encoding.
//!
//! `kernel` and `llvm` are templates of the text in the two syntaxes: literal text
//! with operands in braces.
//!
//! | operand | stands for |
//! | --- | --- |
//! | `{rd}` `{rs}` | `dst` or `src` as a 64-bit register, `r0`–`r10` |
//! | `{wd}` `{ws}` | the same as a 32-bit register, `w0`–`w10` |
//! | `{imm}` `{uimm}` | `imm`, signed or as unsigned hexadecimal |
//! | `{disp}` | `off` as a memory displacement, sign always written |
//! | `{to}` `{tol}` | jump by `off`, or by `imm` |
//! | `{as_dst}` `{as_src}` | upper and lower half of `imm`, address spaces |
//! | `{num}` `{hi}` | `imm` and that of the second slot, always decimal |
//! | `{plus}` | `imm` added to what stands before |
//! | `{imm64}` | the constant over both slots |
//! | `{helper}` `{sub}` `{kfunc}` | what `call` calls |

use crate::insn::code::*;
use crate::op::{AluOp, AtomicOp, Cond, Size, Swap, Width};

/// What a field of a slot must hold in an instruction form.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Field {
    /// Reserved: zero.
    Zero,
    /// Selects this form among those that share the opcode.
    Is(i32),
    /// A register, 0–10.
    Reg,
    /// Any value: an operand.
    Any,
}

/// Instruction-set version that brought a form, as `clang -mcpu=` counts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Isa {
    /// The instruction set of 2014.
    V1,
    /// More comparisons.
    V2,
    /// 32-bit jumps, atomics that fetch.
    V3,
    /// Signed division, sign extension, unconditional swaps, long jumps.
    V4,
    /// After v4.
    Later,
}

impl Isa {
    /// `v1` … `v4`, `later`.
    pub const fn name(self) -> &'static str {
        match self {
            Isa::V1 => "v1",
            Isa::V2 => "v2",
            Isa::V3 => "v3",
            Isa::V4 => "v4",
            Isa::Later => "later",
        }
    }
}

/// Which kernels take a form.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Accepted {
    /// In programs as loaded, since this kernel version (major, minor).
    Since(u8, u8),
    /// Only the kernel's own rewriting makes it; it shows in dumps of rewritten programs.
    Rewritten,
    /// Defined, but no kernel takes it.
    Never,
}

/// What a form does, without its operands; with them it is an [`crate::Op`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs, reason = "the variants are those of Op, Imm64 and Call")]
pub enum Form {
    Alu(AluOp, Width),
    MovSx(Width, u8),
    Neg(Width),
    Swap(Swap, u8),
    AddrSpaceCast,
    MovPercpu,
    LoadValue,
    LoadMapFd,
    LoadMapFdValue,
    LoadBtfId,
    LoadFunc,
    LoadMapIdx,
    LoadMapIdxValue,
    Load {
        size: Size,
        signed: bool,
    },
    LoadPacket(Size),
    Store(Size),
    Atomic {
        op: AtomicOp,
        size: Size,
        fetch: bool,
    },
    LoadAcquire(Size),
    StoreRelease(Size),
    Jump {
        wide: bool,
    },
    JumpIf(Cond, Width),
    MayGoto,
    CallHelper,
    CallLocal,
    CallKfunc,
    CallReg,
    Exit,
}

impl Form {
    /// One more than the largest [`Form::index`].
    pub(crate) const COUNT: usize = 156;

    /// A number of its own for each form of the table, to look rows up by. `None` for
    /// widths that no form has.
    pub(crate) const fn index(self) -> Option<usize> {
        Some(match self {
            Form::Alu(op, width) => 2 * op as usize + width as usize,
            Form::MovSx(width, 8) => 28 + width as usize,
            Form::MovSx(width, 16) => 30 + width as usize,
            Form::MovSx(width, 32) => 32 + width as usize,
            Form::MovSx(..) => return None,
            Form::Neg(width) => 34 + width as usize,
            Form::Swap(kind, 16) => 36 + kind as usize,
            Form::Swap(kind, 32) => 39 + kind as usize,
            Form::Swap(kind, 64) => 42 + kind as usize,
            Form::Swap(..) => return None,
            Form::AddrSpaceCast => 45,
            Form::MovPercpu => 46,
            Form::LoadValue => 47,
            Form::LoadMapFd => 48,
            Form::LoadMapFdValue => 49,
            Form::LoadBtfId => 50,
            Form::LoadFunc => 51,
            Form::LoadMapIdx => 52,
            Form::LoadMapIdxValue => 53,
            Form::Load { size, signed } => 54 + 2 * size as usize + signed as usize,
            Form::LoadPacket(size) => 62 + size as usize,
            Form::Store(size) => 66 + size as usize,
            Form::Atomic { op, size, fetch } => {
                70 + 8 * op as usize + 2 * size as usize + fetch as usize
            }
            Form::LoadAcquire(size) => 118 + size as usize,
            Form::StoreRelease(size) => 122 + size as usize,
            Form::Jump { wide } => 126 + wide as usize,
            Form::JumpIf(cond, width) => 128 + 2 * cond as usize + width as usize,
            Form::MayGoto => 150,
            Form::CallHelper => 151,
            Form::CallLocal => 152,
            Form::CallKfunc => 153,
            Form::CallReg => 154,
            Form::Exit => 155,
        })
    }
}

/// One form of an instruction.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Short name, the same for the register and the immediate form: `add`, `ldxw`, `jeq32`.
    pub mnemonic: &'static str,
    /// Opcode byte.
    pub code: u8,
    /// Low nibble of the second byte.
    pub dst: Field,
    /// High nibble of the second byte.
    pub src: Field,
    /// The 16-bit field.
    pub off: Field,
    /// The 32-bit field.
    pub imm: Field,
    /// The 32-bit field of the second slot, in forms that have one (all else there is zero).
    pub next: Option<Field>,
    /// What it does.
    pub form: Form,
    /// Text in the kernel's syntax, without the opcode in front.
    pub kernel: &'static str,
    /// Text in LLVM's syntax.
    pub llvm: &'static str,
    /// Instruction-set version.
    pub isa: Isa,
    /// Kernels that take it.
    pub accepted: Accepted,
    /// One line for the reference.
    pub meaning: &'static str,
}

/// Rows of one kind, for the reference.
pub struct Group {
    /// Heading.
    pub title: &'static str,
    /// The rows.
    pub rows: &'static [Row],
}

/// All rows, by kind.
pub static GROUPS: &[Group] = &[
    Group {
        title: "Arithmetic",
        rows: ARITHMETIC.as_flattened(),
    },
    Group {
        title: "Moves, negation, byte order",
        rows: UNARY,
    },
    Group {
        title: "64-bit immediates",
        rows: IMM64,
    },
    Group {
        title: "Loads and stores",
        rows: MEMORY,
    },
    Group {
        title: "Packet loads",
        rows: PACKET.as_flattened(),
    },
    Group {
        title: "Atomics",
        rows: ATOMICS.as_flattened(),
    },
    Group {
        title: "Acquire and release",
        rows: ORDERED.as_flattened(),
    },
    Group {
        title: "Conditional jumps",
        rows: CONDITIONS.as_flattened(),
    },
    Group {
        title: "Jumps, calls, exit",
        rows: CONTROL,
    },
];

/// All rows in order.
pub fn rows() -> impl Iterator<Item = &'static Row> {
    GROUPS.iter().flat_map(|g| g.rows)
}

use Accepted::{Never, Rewritten, Since};
use Field::{Any, Is, Reg, Zero};
use Isa::{Later, V1, V2, V3, V4};
use Width::{W32, W64};

/// What the rows below leave unsaid.
const BLANK: Row = Row {
    mnemonic: "",
    code: 0,
    dst: Zero,
    src: Zero,
    off: Zero,
    imm: Zero,
    next: None,
    form: Form::Exit,
    kernel: "",
    llvm: "",
    isa: V1,
    accepted: Since(3, 18),
    meaning: "",
};

/// The four forms of a two-operand operation: 64 and 32 bits, immediate and register.
macro_rules! binary {
    ($op:ident, $name:literal, $bits:expr, $off:expr, $text:literal, $isa:expr, $since:expr, $meaning:literal) => {
        [
            Row {
                mnemonic: $name,
                code: ALU64 | K | $bits,
                dst: Reg,
                off: $off,
                imm: Any,
                form: Form::Alu(AluOp::$op, W64),
                kernel: concat!("{rd} ", $text, " {imm}"),
                llvm: concat!("{rd} ", $text, " {imm}"),
                isa: $isa,
                accepted: $since,
                meaning: $meaning,
                ..BLANK
            },
            Row {
                mnemonic: $name,
                code: ALU64 | X | $bits,
                dst: Reg,
                src: Reg,
                off: $off,
                form: Form::Alu(AluOp::$op, W64),
                kernel: concat!("{rd} ", $text, " {rs}"),
                llvm: concat!("{rd} ", $text, " {rs}"),
                isa: $isa,
                accepted: $since,
                meaning: $meaning,
                ..BLANK
            },
            Row {
                mnemonic: concat!($name, "32"),
                code: ALU | K | $bits,
                dst: Reg,
                off: $off,
                imm: Any,
                form: Form::Alu(AluOp::$op, W32),
                kernel: concat!("{wd} ", $text, " {imm}"),
                llvm: concat!("{wd} ", $text, " {imm}"),
                isa: $isa,
                accepted: $since,
                meaning: $meaning,
                ..BLANK
            },
            Row {
                mnemonic: concat!($name, "32"),
                code: ALU | X | $bits,
                dst: Reg,
                src: Reg,
                off: $off,
                form: Form::Alu(AluOp::$op, W32),
                kernel: concat!("{wd} ", $text, " {ws}"),
                llvm: concat!("{wd} ", $text, " {ws}"),
                isa: $isa,
                accepted: $since,
                meaning: $meaning,
                ..BLANK
            },
        ]
    };
}

#[rustfmt::skip]
static ARITHMETIC: &[[Row; 4]] = &[
    binary!(Add, "add", ADD, Zero, "+=", V1, Since(3, 18), "Addition, wrapping."),
    binary!(Sub, "sub", SUB, Zero, "-=", V1, Since(3, 18), "Subtraction, wrapping."),
    binary!(Mul, "mul", MUL, Zero, "*=", V1, Since(3, 18), "Multiplication, low half."),
    binary!(Div, "div", DIV, Is(0), "/=", V1, Since(3, 18), "Unsigned division; by zero gives 0."),
    binary!(SDiv, "sdiv", DIV, Is(1), "s/=", V4, Since(6, 6), "Signed division; by zero gives 0, minimum by -1 the minimum."),
    binary!(Mod, "mod", MOD, Is(0), "%=", V1, Since(3, 18), "Unsigned remainder; by zero leaves the operand."),
    binary!(SMod, "smod", MOD, Is(1), "s%=", V4, Since(6, 6), "Signed remainder; by zero leaves the operand, minimum by -1 gives 0."),
    binary!(Or, "or", OR, Zero, "|=", V1, Since(3, 18), "Bitwise or."),
    binary!(And, "and", AND, Zero, "&=", V1, Since(3, 18), "Bitwise and."),
    binary!(Xor, "xor", XOR, Zero, "^=", V1, Since(3, 18), "Bitwise exclusive or."),
    binary!(Lsh, "lsh", LSH, Zero, "<<=", V1, Since(3, 18), "Left shift; the amount is taken modulo the width."),
    binary!(Rsh, "rsh", RSH, Zero, ">>=", V1, Since(3, 18), "Right shift filling zeros; the amount is taken modulo the width."),
    binary!(Arsh, "arsh", ARSH, Zero, "s>>=", V1, Since(3, 18), "Right shift filling the sign; the amount is taken modulo the width."),
    binary!(Mov, "mov", MOV, Is(0), "=", V1, Since(3, 18), "Copy; an immediate is sign-extended to 64 bits, a 32-bit copy clears the upper half."),
];

/// A sign-extending move.
const fn movsx(mnemonic: &'static str, width: Width, bits: u8, text: &'static str) -> Row {
    Row {
        mnemonic,
        code: MOV | X | if matches!(width, W64) { ALU64 } else { ALU },
        dst: Reg,
        src: Reg,
        off: Is(bits as i32),
        form: Form::MovSx(width, bits),
        kernel: text,
        llvm: text,
        isa: V4,
        accepted: Since(6, 6),
        meaning: "Copy of the low bits with their sign extended.",
        ..BLANK
    }
}

/// A byte-order operation.
const fn swap(kind: Swap, bits: u8, mnemonic: &'static str, text: &'static str) -> Row {
    let (code, isa, accepted, meaning) = match kind {
        Swap::ToLe => (
            ALU | K,
            V1,
            Since(3, 18),
            "Low bits to little-endian; the rest becomes zero.",
        ),
        Swap::ToBe => (
            ALU | X,
            V1,
            Since(3, 18),
            "Low bits to big-endian; the rest becomes zero.",
        ),
        Swap::Always => (
            ALU64 | K,
            V4,
            Since(6, 6),
            "Swaps the low bytes on any machine; the rest becomes zero.",
        ),
    };
    Row {
        mnemonic,
        code: END | code,
        dst: Reg,
        imm: Is(bits as i32),
        form: Form::Swap(kind, bits),
        kernel: text,
        llvm: text,
        isa,
        accepted,
        meaning,
        ..BLANK
    }
}

static UNARY: &[Row] = &[
    movsx("movsx8", W64, 8, "{rd} = (s8){rs}"),
    movsx("movsx16", W64, 16, "{rd} = (s16){rs}"),
    movsx("movsx32", W64, 32, "{rd} = (s32){rs}"),
    movsx("movsx8_32", W32, 8, "{wd} = (s8){ws}"),
    movsx("movsx16_32", W32, 16, "{wd} = (s16){ws}"),
    Row {
        mnemonic: "neg",
        code: ALU64 | NEG,
        dst: Reg,
        form: Form::Neg(W64),
        kernel: "{rd} = -{rd}",
        llvm: "{rd} = -{rd}",
        meaning: "Two's complement negation.",
        ..BLANK
    },
    Row {
        mnemonic: "neg32",
        code: ALU | NEG,
        dst: Reg,
        form: Form::Neg(W32),
        kernel: "{wd} = -{wd}",
        llvm: "{wd} = -{wd}",
        meaning: "Two's complement negation.",
        ..BLANK
    },
    swap(Swap::ToLe, 16, "le16", "{rd} = le16 {rd}"),
    swap(Swap::ToLe, 32, "le32", "{rd} = le32 {rd}"),
    swap(Swap::ToLe, 64, "le64", "{rd} = le64 {rd}"),
    swap(Swap::ToBe, 16, "be16", "{rd} = be16 {rd}"),
    swap(Swap::ToBe, 32, "be32", "{rd} = be32 {rd}"),
    swap(Swap::ToBe, 64, "be64", "{rd} = be64 {rd}"),
    swap(Swap::Always, 16, "bswap16", "{rd} = bswap16 {rd}"),
    swap(Swap::Always, 32, "bswap32", "{rd} = bswap32 {rd}"),
    swap(Swap::Always, 64, "bswap64", "{rd} = bswap64 {rd}"),
    Row {
        mnemonic: "addr_space_cast",
        code: ALU64 | MOV | X,
        dst: Reg,
        src: Reg,
        off: Is(ADDR_SPACE_CAST as i32),
        imm: Any,
        form: Form::AddrSpaceCast,
        kernel: "{rd} = addr_space_cast({rs}, {as_dst}, {as_src})",
        llvm: "{rd} = addr_space_cast({rs}, {as_dst}, {as_src})",
        isa: Later,
        accepted: Since(6, 9),
        meaning: "Pointer from one address space to another (1 is the arena's).",
        ..BLANK
    },
    Row {
        mnemonic: "mov_percpu",
        code: ALU64 | MOV | X,
        dst: Reg,
        src: Reg,
        off: Is(ADDR_PERCPU as i32),
        form: Form::MovPercpu,
        kernel: "{rd} = &(void __percpu *)({rs})",
        llvm: "{rd} = &(void __percpu *)({rs})",
        isa: Later,
        accepted: Rewritten,
        meaning: "This CPU's instance of a per-CPU address.",
        ..BLANK
    },
];

/// A two-slot load; `selector` is what `src` holds.
const fn ld_imm64(
    selector: u8,
    next: Field,
    form: Form,
    accepted: Accepted,
    text: [&'static str; 2],
    meaning: &'static str,
) -> Row {
    Row {
        mnemonic: "lddw",
        code: LD | IMM | DW,
        dst: Reg,
        src: Is(selector as i32),
        imm: Any,
        next: Some(next),
        form,
        kernel: text[0],
        llvm: text[1],
        accepted,
        meaning,
        ..BLANK
    }
}

#[rustfmt::skip]
static IMM64: &[Row] = &[
    ld_imm64(0, Any, Form::LoadValue, Since(3, 18), ["{rd} = {imm64}", "{rd} = {imm64} ll"],
        "64-bit constant."),
    ld_imm64(PSEUDO_MAP_FD, Zero, Form::LoadMapFd, Since(3, 18), ["{rd} = map[fd:{num}]", "{rd} = map[fd:{num}] ll"],
        "Map, by file descriptor."),
    ld_imm64(PSEUDO_MAP_VALUE, Any, Form::LoadMapFdValue, Since(5, 2), ["{rd} = map[fd:{num}][0]+{hi}", "{rd} = map[fd:{num}][0]+{hi} ll"],
        "Byte inside the value of a one-element map, by file descriptor."),
    ld_imm64(PSEUDO_BTF_ID, Any, Form::LoadBtfId, Since(5, 10), ["{rd} = btf[id:{num},fd:{hi}]", "{rd} = btf[id:{num},fd:{hi}] ll"],
        "Kernel variable, by BTF id and the module BTF's file descriptor."),
    ld_imm64(PSEUDO_FUNC, Zero, Form::LoadFunc, Since(5, 13), ["{rd} = subprog[{tol}]", "{rd} = subprog[{tol}] ll"],
        "Subprogram, as a callback."),
    ld_imm64(PSEUDO_MAP_IDX, Zero, Form::LoadMapIdx, Since(5, 14), ["{rd} = map[idx:{num}]", "{rd} = map[idx:{num}] ll"],
        "Map, by index in the program's list."),
    ld_imm64(PSEUDO_MAP_IDX_VALUE, Any, Form::LoadMapIdxValue, Since(5, 14), ["{rd} = map[idx:{num}][0]+{hi}", "{rd} = map[idx:{num}][0]+{hi} ll"],
        "Byte inside the value of a one-element map, by index in the program's list."),
];

/// A load through a pointer.
const fn ldx(size: Size, signed: bool, mnemonic: &'static str, text: [&'static str; 2]) -> Row {
    Row {
        mnemonic,
        code: LDX | size.code() | if signed { MEMSX } else { MEM },
        dst: Reg,
        src: Reg,
        off: Any,
        form: Form::Load { size, signed },
        kernel: text[0],
        llvm: text[1],
        isa: if signed { V4 } else { V1 },
        accepted: if signed { Since(6, 6) } else { Since(3, 18) },
        meaning: if signed {
            "Load, sign-extended to 64 bits."
        } else {
            "Load, zero-extended to 64 bits."
        },
        ..BLANK
    }
}

/// A store of a register.
const fn stx(size: Size, mnemonic: &'static str, text: [&'static str; 2]) -> Row {
    Row {
        mnemonic,
        code: STX | MEM | size.code(),
        dst: Reg,
        src: Reg,
        off: Any,
        form: Form::Store(size),
        kernel: text[0],
        llvm: text[1],
        meaning: "Store of a register's low bits.",
        ..BLANK
    }
}

/// A store of an immediate.
const fn st(size: Size, mnemonic: &'static str, text: &'static str) -> Row {
    Row {
        mnemonic,
        code: ST | MEM | size.code(),
        dst: Reg,
        off: Any,
        imm: Any,
        form: Form::Store(size),
        kernel: text,
        llvm: text,
        meaning: "Store of an immediate, sign-extended or cut to the size.",
        ..BLANK
    }
}

#[rustfmt::skip]
static MEMORY: &[Row] = &[
    ldx(Size::B, false, "ldxb", ["{rd} = *(u8 *)({rs} {disp})", "{wd} = *(u8 *)({rs} {disp})"]),
    ldx(Size::H, false, "ldxh", ["{rd} = *(u16 *)({rs} {disp})", "{wd} = *(u16 *)({rs} {disp})"]),
    ldx(Size::W, false, "ldxw", ["{rd} = *(u32 *)({rs} {disp})", "{wd} = *(u32 *)({rs} {disp})"]),
    ldx(Size::DW, false, "ldxdw", ["{rd} = *(u64 *)({rs} {disp})", "{rd} = *(u64 *)({rs} {disp})"]),
    ldx(Size::B, true, "ldxsb", ["{rd} = *(s8 *)({rs} {disp})", "{rd} = *(s8 *)({rs} {disp})"]),
    ldx(Size::H, true, "ldxsh", ["{rd} = *(s16 *)({rs} {disp})", "{rd} = *(s16 *)({rs} {disp})"]),
    ldx(Size::W, true, "ldxsw", ["{rd} = *(s32 *)({rs} {disp})", "{rd} = *(s32 *)({rs} {disp})"]),
    stx(Size::B, "stxb", ["*(u8 *)({rd} {disp}) = {rs}", "*(u8 *)({rd} {disp}) = {ws}"]),
    stx(Size::H, "stxh", ["*(u16 *)({rd} {disp}) = {rs}", "*(u16 *)({rd} {disp}) = {ws}"]),
    stx(Size::W, "stxw", ["*(u32 *)({rd} {disp}) = {rs}", "*(u32 *)({rd} {disp}) = {ws}"]),
    stx(Size::DW, "stxdw", ["*(u64 *)({rd} {disp}) = {rs}", "*(u64 *)({rd} {disp}) = {rs}"]),
    st(Size::B, "stb", "*(u8 *)({rd} {disp}) = {imm}"),
    st(Size::H, "sth", "*(u16 *)({rd} {disp}) = {imm}"),
    st(Size::W, "stw", "*(u32 *)({rd} {disp}) = {imm}"),
    st(Size::DW, "stdw", "*(u64 *)({rd} {disp}) = {imm}"),
];

/// The legacy packet loads of a size.
macro_rules! packet {
    ($size:ident, $letter:literal, $type:literal) => {
        [
            Row {
                mnemonic: concat!("ldabs", $letter),
                code: LD | ABS | Size::$size.code(),
                imm: Any,
                form: Form::LoadPacket(Size::$size),
                kernel: concat!("r0 = *(", $type, " *)skb[{imm}]"),
                llvm: concat!("r0 = *(", $type, " *)skb[{imm}]"),
                accepted: Since(3, 19),
                meaning: "Big-endian load from the packet into r0; outside it the program returns 0.",
                ..BLANK
            },
            Row {
                mnemonic: concat!("ldind", $letter),
                code: LD | IND | Size::$size.code(),
                src: Reg,
                imm: Any,
                form: Form::LoadPacket(Size::$size),
                kernel: concat!("r0 = *(", $type, " *)skb[{rs}{plus}]"),
                llvm: concat!("r0 = *(", $type, " *)skb[{rs}{plus}]"),
                accepted: Since(3, 19),
                meaning: "Big-endian load from the packet at register plus immediate into r0; outside it the program returns 0.",
                ..BLANK
            },
        ]
    };
}

static PACKET: &[[Row; 2]] = &[
    packet!(B, "b", "u8"),
    packet!(H, "h", "u16"),
    packet!(W, "w", "u32"),
];

/// An atomic read-modify-write.
const fn atomic(
    op: AtomicOp,
    size: Size,
    fetch: bool,
    selector: i32,
    mnemonic: &'static str,
    text: [&'static str; 2],
    meaning: &'static str,
) -> Row {
    // Addition without fetching is older than the others by seven years.
    let old = matches!(op, AtomicOp::Add) && !fetch;
    Row {
        mnemonic,
        code: STX | ATOMIC | size.code(),
        dst: Reg,
        src: Reg,
        off: Any,
        imm: Is(selector),
        form: Form::Atomic { op, size, fetch },
        kernel: text[0],
        llvm: text[1],
        isa: if old { V1 } else { V3 },
        accepted: if old { Since(3, 18) } else { Since(5, 12) },
        meaning,
        ..BLANK
    }
}

/// The four forms of an atomic operation that may fetch.
macro_rules! atomics {
    ($op:ident, $name:literal, $bits:expr, $text:literal) => {
        [
            atomic(
                AtomicOp::$op,
                Size::W,
                false,
                $bits as i32,
                concat!("atomic_", $name, "32"),
                [
                    concat!("lock *(u32 *)({rd} {disp}) ", $text, " {rs}"),
                    concat!("lock *(u32 *)({rd} {disp}) ", $text, " {ws}"),
                ],
                "Atomic update of memory.",
            ),
            atomic(
                AtomicOp::$op,
                Size::DW,
                false,
                $bits as i32,
                concat!("atomic_", $name),
                [
                    concat!("lock *(u64 *)({rd} {disp}) ", $text, " {rs}"),
                    concat!("lock *(u64 *)({rd} {disp}) ", $text, " {rs}"),
                ],
                "Atomic update of memory.",
            ),
            atomic(
                AtomicOp::$op,
                Size::W,
                true,
                $bits as i32 | FETCH,
                concat!("atomic_fetch_", $name, "32"),
                [
                    concat!(
                        "{rs} = atomic_fetch_",
                        $name,
                        "((u32 *)({rd} {disp}), {rs})"
                    ),
                    concat!(
                        "{ws} = atomic_fetch_",
                        $name,
                        "((u32 *)({rd} {disp}), {ws})"
                    ),
                ],
                "Atomic update of memory; the old value, zero-extended, goes to src.",
            ),
            atomic(
                AtomicOp::$op,
                Size::DW,
                true,
                $bits as i32 | FETCH,
                concat!("atomic_fetch_", $name),
                [
                    concat!(
                        "{rs} = atomic64_fetch_",
                        $name,
                        "((u64 *)({rd} {disp}), {rs})"
                    ),
                    concat!(
                        "{rs} = atomic_fetch_",
                        $name,
                        "((u64 *)({rd} {disp}), {rs})"
                    ),
                ],
                "Atomic update of memory; the old value goes to src.",
            ),
        ]
    };
}

#[rustfmt::skip]
static ATOMICS: &[[Row; 4]] = &[
    atomics!(Add, "add", ADD, "+="),
    atomics!(Or, "or", OR, "|="),
    atomics!(And, "and", AND, "&="),
    atomics!(Xor, "xor", XOR, "^="),
    [
        atomic(AtomicOp::Xchg, Size::W, true, XCHG, "atomic_xchg32",
            ["{rs} = atomic_xchg((u32 *)({rd} {disp}), {rs})", "{ws} = xchg32_32({rd} {disp}, {ws})"],
            "Atomic exchange of memory and src, zero-extended."),
        atomic(AtomicOp::Xchg, Size::DW, true, XCHG, "atomic_xchg",
            ["{rs} = atomic64_xchg((u64 *)({rd} {disp}), {rs})", "{rs} = xchg_64({rd} {disp}, {rs})"],
            "Atomic exchange of memory and src."),
        atomic(AtomicOp::Cmpxchg, Size::W, true, CMPXCHG, "atomic_cmpxchg32",
            ["r0 = atomic_cmpxchg((u32 *)({rd} {disp}), r0, {rs})", "w0 = cmpxchg32_32({rd} {disp}, w0, {ws})"],
            "Atomic store of src if memory equals r0; r0 gets the old value, zero-extended."),
        atomic(AtomicOp::Cmpxchg, Size::DW, true, CMPXCHG, "atomic_cmpxchg",
            ["r0 = atomic64_cmpxchg((u64 *)({rd} {disp}), r0, {rs})", "r0 = cmpxchg_64({rd} {disp}, r0, {rs})"],
            "Atomic store of src if memory equals r0; r0 gets the old value."),
    ],
];

/// Load-acquire and store-release of a size; `$w` is the data register's letter in LLVM.
macro_rules! ordered {
    ($size:ident, $letter:literal, $type:literal, $wd:literal, $ws:literal) => {
        [
            Row {
                mnemonic: concat!("load_acq", $letter),
                code: STX | ATOMIC | Size::$size.code(),
                dst: Reg,
                src: Reg,
                off: Any,
                imm: Is(LOAD_ACQ),
                form: Form::LoadAcquire(Size::$size),
                kernel: concat!("{rd} = load_acquire((", $type, " *)({rs} {disp}))"),
                llvm: concat!($wd, " = load_acquire((", $type, " *)({rs} {disp}))"),
                isa: Later,
                accepted: Since(6, 15),
                meaning: "Load with acquire ordering, zero-extended to 64 bits.",
                ..BLANK
            },
            Row {
                mnemonic: concat!("store_rel", $letter),
                code: STX | ATOMIC | Size::$size.code(),
                dst: Reg,
                src: Reg,
                off: Any,
                imm: Is(STORE_REL),
                form: Form::StoreRelease(Size::$size),
                kernel: concat!("store_release((", $type, " *)({rd} {disp}), {rs})"),
                llvm: concat!("store_release((", $type, " *)({rd} {disp}), ", $ws, ")"),
                isa: Later,
                accepted: Since(6, 15),
                meaning: "Store of a register's low bits with release ordering.",
                ..BLANK
            },
        ]
    };
}

static ORDERED: &[[Row; 2]] = &[
    ordered!(B, "b", "u8", "{wd}", "{ws}"),
    ordered!(H, "h", "u16", "{wd}", "{ws}"),
    ordered!(W, "w", "u32", "{wd}", "{ws}"),
    ordered!(DW, "dw", "u64", "{rd}", "{rs}"),
];

/// The four forms of a conditional jump.
macro_rules! condition {
    ($cond:ident, $name:literal, $bits:expr, $text:literal, $isa:expr, $since:expr, $meaning:literal) => {
        [
            Row {
                mnemonic: $name,
                code: JMP | K | $bits,
                dst: Reg,
                off: Any,
                imm: Any,
                form: Form::JumpIf(Cond::$cond, W64),
                kernel: concat!("if {rd} ", $text, " {uimm} goto {to}"),
                llvm: concat!("if {rd} ", $text, " {imm} goto {to}"),
                isa: $isa,
                accepted: $since,
                meaning: $meaning,
                ..BLANK
            },
            Row {
                mnemonic: $name,
                code: JMP | X | $bits,
                dst: Reg,
                src: Reg,
                off: Any,
                form: Form::JumpIf(Cond::$cond, W64),
                kernel: concat!("if {rd} ", $text, " {rs} goto {to}"),
                llvm: concat!("if {rd} ", $text, " {rs} goto {to}"),
                isa: $isa,
                accepted: $since,
                meaning: $meaning,
                ..BLANK
            },
            Row {
                mnemonic: concat!($name, "32"),
                code: JMP32 | K | $bits,
                dst: Reg,
                off: Any,
                imm: Any,
                form: Form::JumpIf(Cond::$cond, W32),
                kernel: concat!("if {wd} ", $text, " {uimm} goto {to}"),
                llvm: concat!("if {wd} ", $text, " {imm} goto {to}"),
                isa: V3,
                accepted: Since(5, 1),
                meaning: $meaning,
                ..BLANK
            },
            Row {
                mnemonic: concat!($name, "32"),
                code: JMP32 | X | $bits,
                dst: Reg,
                src: Reg,
                off: Any,
                form: Form::JumpIf(Cond::$cond, W32),
                kernel: concat!("if {wd} ", $text, " {ws} goto {to}"),
                llvm: concat!("if {wd} ", $text, " {ws} goto {to}"),
                isa: V3,
                accepted: Since(5, 1),
                meaning: $meaning,
                ..BLANK
            },
        ]
    };
}

#[rustfmt::skip]
static CONDITIONS: &[[Row; 4]] = &[
    condition!(Eq, "jeq", JEQ, "==", V1, Since(3, 18), "Jumps if equal."),
    condition!(Ne, "jne", JNE, "!=", V1, Since(3, 18), "Jumps if not equal."),
    condition!(Gt, "jgt", JGT, ">", V1, Since(3, 18), "Jumps if greater, unsigned."),
    condition!(Ge, "jge", JGE, ">=", V1, Since(3, 18), "Jumps if greater or equal, unsigned."),
    condition!(Lt, "jlt", JLT, "<", V2, Since(4, 14), "Jumps if less, unsigned."),
    condition!(Le, "jle", JLE, "<=", V2, Since(4, 14), "Jumps if less or equal, unsigned."),
    condition!(Set, "jset", JSET, "&", V1, Since(3, 18), "Jumps if the operands have a bit in common."),
    condition!(Sgt, "jsgt", JSGT, "s>", V1, Since(3, 18), "Jumps if greater, signed."),
    condition!(Sge, "jsge", JSGE, "s>=", V1, Since(3, 18), "Jumps if greater or equal, signed."),
    condition!(Slt, "jslt", JSLT, "s<", V2, Since(4, 14), "Jumps if less, signed."),
    condition!(Sle, "jsle", JSLE, "s<=", V2, Since(4, 14), "Jumps if less or equal, signed."),
];

static CONTROL: &[Row] = &[
    Row {
        mnemonic: "ja",
        code: JMP | JA,
        off: Any,
        form: Form::Jump { wide: false },
        kernel: "goto {to}",
        llvm: "goto {to}",
        meaning: "Jumps.",
        ..BLANK
    },
    Row {
        mnemonic: "ja32",
        code: JMP32 | JA,
        imm: Any,
        form: Form::Jump { wide: true },
        kernel: "gotol {tol}",
        llvm: "gotol {tol}",
        isa: V4,
        accepted: Since(6, 6),
        meaning: "Jumps, with a 32-bit distance.",
        ..BLANK
    },
    Row {
        mnemonic: "may_goto",
        code: JMP | JCOND,
        off: Any,
        form: Form::MayGoto,
        kernel: "may_goto {to}",
        llvm: "may_goto {to}",
        isa: Later,
        accepted: Since(6, 9),
        meaning: "Jumps once the loop budget is used up.",
        ..BLANK
    },
    Row {
        mnemonic: "call",
        code: JMP | CALL,
        src: Is(0),
        imm: Any,
        form: Form::CallHelper,
        kernel: "call {helper}",
        llvm: "call {helper}",
        meaning: "Calls a helper by number.",
        ..BLANK
    },
    Row {
        mnemonic: "call_local",
        code: JMP | CALL,
        src: Is(PSEUDO_CALL as i32),
        imm: Any,
        form: Form::CallLocal,
        kernel: "call {sub}",
        llvm: "call {sub}",
        accepted: Since(4, 16),
        meaning: "Calls a subprogram.",
        ..BLANK
    },
    Row {
        mnemonic: "call_kfunc",
        code: JMP | CALL,
        src: Is(PSEUDO_KFUNC_CALL as i32),
        off: Any,
        imm: Any,
        form: Form::CallKfunc,
        kernel: "call {kfunc}",
        llvm: "call {kfunc}",
        accepted: Since(5, 13),
        meaning: "Calls a kernel function by BTF id; off selects the module's BTF.",
        ..BLANK
    },
    Row {
        mnemonic: "callx",
        code: JMP | CALL | X,
        dst: Reg,
        form: Form::CallReg,
        kernel: "callx {rd}",
        llvm: "callx {rd}",
        isa: Later,
        accepted: Never,
        meaning: "Calls through a register.",
        ..BLANK
    },
    Row {
        mnemonic: "exit",
        code: JMP | EXIT,
        form: Form::Exit,
        kernel: "exit",
        llvm: "exit",
        meaning: "Returns from the subprogram or program.",
        ..BLANK
    },
];
