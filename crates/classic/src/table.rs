//! The table of classic instructions: one row an opcode. Decoding, encoding and both
//! text syntaxes read it.

use std::fmt;
use std::sync::LazyLock;

use crate::ancillary::Ancillary;
use crate::insn::{Insn, code::*};
use crate::op::{AluOp, Cond, Op, Operand, Size};

/// What an opcode does, without its operands.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs, reason = "the variants are those of Op")]
pub enum Form {
    LoadAbs(Size),
    LoadInd(Size),
    LoadLen,
    LoadImm,
    LoadMem,
    LoadXLen,
    LoadXImm,
    LoadXMem,
    LoadXMsh,
    Store,
    StoreX,
    AluK(AluOp),
    AluX(AluOp),
    Neg,
    Jump,
    JumpK(Cond),
    JumpX(Cond),
    ReturnK,
    ReturnA,
    Tax,
    Txa,
}

/// How an operand is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Style {
    /// Nothing.
    None,
    /// `#5`, signed.
    Decimal,
    /// `#0x5`.
    Hex,
    /// `[5]`.
    Packet,
    /// `[x + 5]`.
    Indexed,
    /// `4*([5]&0xf)`.
    Nibble,
    /// `M[5]`.
    Scratch,
    /// `x`.
    X,
    /// `a`, which libpcap leaves out.
    A,
    /// `#pktlen` or `#len`.
    Length,
    /// The instruction jumped to.
    Target,
}

/// One opcode.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Mnemonic.
    pub name: &'static str,
    /// Opcode.
    pub code: u16,
    /// What it does.
    pub form: Form,
    /// Operand as libpcap writes it.
    pub operand: Style,
    /// One line for the reference.
    pub meaning: &'static str,
}

const fn row(
    name: &'static str,
    code: u16,
    form: Form,
    operand: Style,
    meaning: &'static str,
) -> Row {
    Row {
        name,
        code,
        form,
        operand,
        meaning,
    }
}

/// Every opcode that the kernel takes.
#[rustfmt::skip]
pub static TABLE: &[Row] = &[
    row("ld", LD | W | ABS, Form::LoadAbs(Size::W), Style::Packet, "A = 32 bits of the packet at k"),
    row("ldh", LD | H | ABS, Form::LoadAbs(Size::H), Style::Packet, "A = 16 bits of the packet at k"),
    row("ldb", LD | B | ABS, Form::LoadAbs(Size::B), Style::Packet, "A = 8 bits of the packet at k"),
    row("ld", LD | W | IND, Form::LoadInd(Size::W), Style::Indexed, "A = 32 bits of the packet at X + k"),
    row("ldh", LD | H | IND, Form::LoadInd(Size::H), Style::Indexed, "A = 16 bits of the packet at X + k"),
    row("ldb", LD | B | IND, Form::LoadInd(Size::B), Style::Indexed, "A = 8 bits of the packet at X + k"),
    row("ld", LD | W | LEN, Form::LoadLen, Style::Length, "A = length of the packet"),
    row("ld", LD | IMM, Form::LoadImm, Style::Hex, "A = k"),
    row("ld", LD | MEM, Form::LoadMem, Style::Scratch, "A = M[k]"),
    row("ldx", LDX | IMM, Form::LoadXImm, Style::Hex, "X = k"),
    row("ldx", LDX | MEM, Form::LoadXMem, Style::Scratch, "X = M[k]"),
    row("ldx", LDX | W | LEN, Form::LoadXLen, Style::Length, "X = length of the packet"),
    row("ldxb", LDX | B | MSH, Form::LoadXMsh, Style::Nibble, "X = 4 * the low four bits of the packet at k"),
    row("st", ST, Form::Store, Style::Scratch, "M[k] = A"),
    row("stx", STX, Form::StoreX, Style::Scratch, "M[k] = X"),
    row("add", ALU | ADD | K, Form::AluK(AluOp::Add), Style::Decimal, "A += k"),
    row("sub", ALU | SUB | K, Form::AluK(AluOp::Sub), Style::Decimal, "A -= k"),
    row("mul", ALU | MUL | K, Form::AluK(AluOp::Mul), Style::Decimal, "A *= k"),
    row("div", ALU | DIV | K, Form::AluK(AluOp::Div), Style::Decimal, "A /= k"),
    row("mod", ALU | MOD | K, Form::AluK(AluOp::Mod), Style::Decimal, "A %= k"),
    row("and", ALU | AND | K, Form::AluK(AluOp::And), Style::Hex, "A &= k"),
    row("or", ALU | OR | K, Form::AluK(AluOp::Or), Style::Hex, "A |= k"),
    row("xor", ALU | XOR | K, Form::AluK(AluOp::Xor), Style::Hex, "A ^= k"),
    row("lsh", ALU | LSH | K, Form::AluK(AluOp::Lsh), Style::Decimal, "A <<= k"),
    row("rsh", ALU | RSH | K, Form::AluK(AluOp::Rsh), Style::Decimal, "A >>= k"),
    row("add", ALU | ADD | X, Form::AluX(AluOp::Add), Style::X, "A += X"),
    row("sub", ALU | SUB | X, Form::AluX(AluOp::Sub), Style::X, "A -= X"),
    row("mul", ALU | MUL | X, Form::AluX(AluOp::Mul), Style::X, "A *= X"),
    row("div", ALU | DIV | X, Form::AluX(AluOp::Div), Style::X, "A /= X; a zero X ends the filter with 0"),
    row("mod", ALU | MOD | X, Form::AluX(AluOp::Mod), Style::X, "A %= X; a zero X ends the filter with 0"),
    row("and", ALU | AND | X, Form::AluX(AluOp::And), Style::X, "A &= X"),
    row("or", ALU | OR | X, Form::AluX(AluOp::Or), Style::X, "A |= X"),
    row("xor", ALU | XOR | X, Form::AluX(AluOp::Xor), Style::X, "A ^= X"),
    row("lsh", ALU | LSH | X, Form::AluX(AluOp::Lsh), Style::X, "A <<= X"),
    row("rsh", ALU | RSH | X, Form::AluX(AluOp::Rsh), Style::X, "A >>= X"),
    row("neg", ALU | NEG, Form::Neg, Style::None, "A = -A"),
    row("ja", JMP | JA, Form::Jump, Style::Target, "skips k instructions"),
    row("jeq", JMP | JEQ | K, Form::JumpK(Cond::Eq), Style::Hex, "skips jt instructions if A == k, else jf"),
    row("jgt", JMP | JGT | K, Form::JumpK(Cond::Gt), Style::Hex, "skips jt instructions if A > k, else jf"),
    row("jge", JMP | JGE | K, Form::JumpK(Cond::Ge), Style::Hex, "skips jt instructions if A >= k, else jf"),
    row("jset", JMP | JSET | K, Form::JumpK(Cond::Set), Style::Hex, "skips jt instructions if A & k, else jf"),
    row("jeq", JMP | JEQ | X, Form::JumpX(Cond::Eq), Style::X, "skips jt instructions if A == X, else jf"),
    row("jgt", JMP | JGT | X, Form::JumpX(Cond::Gt), Style::X, "skips jt instructions if A > X, else jf"),
    row("jge", JMP | JGE | X, Form::JumpX(Cond::Ge), Style::X, "skips jt instructions if A >= X, else jf"),
    row("jset", JMP | JSET | X, Form::JumpX(Cond::Set), Style::X, "skips jt instructions if A & X, else jf"),
    row("ret", RET | K, Form::ReturnK, Style::Decimal, "ends the filter with k"),
    row("ret", RET | A, Form::ReturnA, Style::A, "ends the filter with A"),
    row("tax", MISC | TAX, Form::Tax, Style::None, "X = A"),
    row("txa", MISC | TXA, Form::Txa, Style::None, "A = X"),
];

/// An opcode that is none.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct UnknownCode(pub u16);

impl fmt::Display for UnknownCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == RET | X {
            return f.write_str("`ret x` (opcode 0x0e) is not allowed: a filter returns k or A");
        }
        write!(f, "unknown opcode {:#04x}", self.0)
    }
}

impl std::error::Error for UnknownCode {}

/// Rows by opcode.
static BY_CODE: LazyLock<[Option<&'static Row>; 256]> = LazyLock::new(|| {
    let mut rows = [None; 256];
    for row in TABLE {
        // Every opcode in the table is below 256, as a test checks.
        if let Some(slot) = rows.get_mut(usize::from(row.code)) {
            *slot = Some(row);
        }
    }
    rows
});

/// The row of an opcode.
pub fn row_of(code: u16) -> Option<&'static Row> {
    BY_CODE.get(usize::from(code)).copied().flatten()
}

impl Op {
    /// Understands an instruction. Fields that its opcode does not use are not looked
    /// at, as the kernel does not.
    pub fn decode(insn: Insn) -> Result<Op, UnknownCode> {
        let Insn { code, jt, jf, k } = insn;
        let row = row_of(code).ok_or(UnknownCode(code))?;
        Ok(match row.form {
            Form::LoadAbs(size) => match Ancillary::at(k) {
                Some(what) => Op::LoadAncillary { size, what },
                None => Op::LoadAbs { size, k },
            },
            Form::LoadInd(size) => Op::LoadInd { size, k },
            Form::LoadLen => Op::LoadLen,
            Form::LoadImm => Op::LoadImm(k),
            Form::LoadMem => Op::LoadMem(k),
            Form::LoadXLen => Op::LoadXLen,
            Form::LoadXImm => Op::LoadXImm(k),
            Form::LoadXMem => Op::LoadXMem(k),
            Form::LoadXMsh => Op::LoadXMsh(k),
            Form::Store => Op::Store(k),
            Form::StoreX => Op::StoreX(k),
            Form::AluK(op) => Op::Alu {
                op,
                src: Operand::K(k),
            },
            Form::AluX(op) => Op::Alu {
                op,
                src: Operand::X,
            },
            Form::Neg => Op::Neg,
            Form::Jump => Op::Jump(k),
            Form::JumpK(cond) => Op::JumpIf {
                cond,
                src: Operand::K(k),
                jt,
                jf,
            },
            Form::JumpX(cond) => Op::JumpIf {
                cond,
                src: Operand::X,
                jt,
                jf,
            },
            Form::ReturnK => Op::ReturnK(k),
            Form::ReturnA => Op::ReturnA,
            Form::Tax => Op::Tax,
            Form::Txa => Op::Txa,
        })
    }

    /// The instruction, with zero in fields that it does not use.
    pub fn encode(self) -> Insn {
        let (form, k, jt, jf) = match self {
            Op::LoadAbs { size, k } => (Form::LoadAbs(size), k, 0, 0),
            Op::LoadInd { size, k } => (Form::LoadInd(size), k, 0, 0),
            Op::LoadAncillary { size, what } => (Form::LoadAbs(size), what.k(), 0, 0),
            Op::LoadLen => (Form::LoadLen, 0, 0, 0),
            Op::LoadImm(k) => (Form::LoadImm, k, 0, 0),
            Op::LoadMem(k) => (Form::LoadMem, k, 0, 0),
            Op::LoadXLen => (Form::LoadXLen, 0, 0, 0),
            Op::LoadXImm(k) => (Form::LoadXImm, k, 0, 0),
            Op::LoadXMem(k) => (Form::LoadXMem, k, 0, 0),
            Op::LoadXMsh(k) => (Form::LoadXMsh, k, 0, 0),
            Op::Store(k) => (Form::Store, k, 0, 0),
            Op::StoreX(k) => (Form::StoreX, k, 0, 0),
            Op::Alu {
                op,
                src: Operand::K(k),
            } => (Form::AluK(op), k, 0, 0),
            Op::Alu {
                op,
                src: Operand::X,
            } => (Form::AluX(op), 0, 0, 0),
            Op::Neg => (Form::Neg, 0, 0, 0),
            Op::Jump(k) => (Form::Jump, k, 0, 0),
            Op::JumpIf {
                cond,
                src: Operand::K(k),
                jt,
                jf,
            } => (Form::JumpK(cond), k, jt, jf),
            Op::JumpIf {
                cond,
                src: Operand::X,
                jt,
                jf,
            } => (Form::JumpX(cond), 0, jt, jf),
            Op::ReturnK(k) => (Form::ReturnK, k, 0, 0),
            Op::ReturnA => (Form::ReturnA, 0, 0, 0),
            Op::Tax => (Form::Tax, 0, 0, 0),
            Op::Txa => (Form::Txa, 0, 0, 0),
        };
        // The table has a row for each form, as a test checks.
        let code = TABLE
            .iter()
            .find(|row| row.form == form)
            .map_or(u16::MAX, |row| row.code);
        Insn { code, jt, jf, k }
    }
}
