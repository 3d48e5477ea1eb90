//! From slots to [`Op`], and why not.

use std::fmt;
use std::sync::LazyLock;

use crate::insn::{Insn, Reg, code};
use crate::op::{Call, Imm64, Op, Operand, Source};
use crate::table::{self, Field, Form, Row};

/// A field of a slot, in messages.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs, reason = "the names are those of Insn")]
pub enum FieldName {
    Code,
    Dst,
    Src,
    Off,
    Imm,
}

impl fmt::Display for FieldName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FieldName::Code => "opcode",
            FieldName::Dst => "dst",
            FieldName::Src => "src",
            FieldName::Off => "off",
            FieldName::Imm => "imm",
        })
    }
}

/// Why slots are not an instruction.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
pub enum DecodeError {
    /// There is no slot to decode.
    #[error("no instruction: the program ends here")]
    Empty,
    /// No instruction has this opcode.
    #[error("unknown opcode {code:#04x}")]
    UnknownOpcode {
        /// The opcode byte.
        code: u8,
    },
    /// The opcode is known, but a field that selects among its forms holds none of their values.
    #[error("{mnemonic} (opcode {code:#04x}): {field} {value} selects no instruction")]
    UnknownSelector {
        /// The opcode byte.
        code: u8,
        /// Name of the first form of that opcode.
        mnemonic: &'static str,
        /// The selecting field.
        field: FieldName,
        /// What it holds.
        value: i32,
    },
    /// A reserved field is not zero.
    #[error("{mnemonic} (opcode {code:#04x}): reserved field {field} is {value}, must be 0")]
    Reserved {
        /// The opcode byte.
        code: u8,
        /// Name of the form.
        mnemonic: &'static str,
        /// The reserved field.
        field: FieldName,
        /// What it holds.
        value: i32,
    },
    /// A register number above 10.
    #[error("{mnemonic} (opcode {code:#04x}): {field} register r{value} does not exist")]
    Register {
        /// The opcode byte.
        code: u8,
        /// Name of the form.
        mnemonic: &'static str,
        /// `Dst` or `Src`.
        field: FieldName,
        /// The number, 11–15.
        value: u8,
    },
    /// A two-slot instruction whose second slot is missing.
    #[error("{mnemonic} (opcode {code:#04x}): second slot is missing")]
    Truncated {
        /// The opcode byte.
        code: u8,
        /// Name of the form.
        mnemonic: &'static str,
    },
    /// The second slot of a two-slot instruction holds something where only zero may be.
    #[error("{mnemonic} (opcode {code:#04x}): {field} of the second slot is {value}, must be 0")]
    SecondSlot {
        /// The opcode byte of the first slot.
        code: u8,
        /// Name of the form.
        mnemonic: &'static str,
        /// The field.
        field: FieldName,
        /// What it holds.
        value: i32,
    },
}

/// [`DecodeError`] with its place in a program.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
#[error("instruction {at}: {error}")]
pub struct ProgramError {
    /// Index of the (first) slot.
    pub at: usize,
    /// What is wrong there.
    pub error: DecodeError,
}

/// For each opcode byte, its forms.
static BY_CODE: LazyLock<[Vec<&'static Row>; 256]> = LazyLock::new(|| {
    let mut index = [const { Vec::new() }; 256];
    for row in table::rows() {
        index[usize::from(row.code)].push(row);
    }
    index
});

/// A form as comparisons of all fields of a slot at once, for the many slots that are well.
struct Shape {
    row: &'static Row,
    /// Bits that select the form, and what they are there.
    selects: u64,
    selected: u64,
    /// Bits that are zero.
    zero: u64,
    /// Largest register numbers.
    dst: u8,
    src: u8,
    /// Bits of the second slot that are zero, if there is one.
    next: Option<u64>,
}

/// The fields but for the opcode, in one number.
fn packed(insn: Insn) -> u64 {
    let (off, imm) = (insn.off as u16, insn.imm as u32);
    u64::from(insn.dst) | u64::from(insn.src) << 8 | u64::from(off) << 16 | u64::from(imm) << 32
}

impl Shape {
    fn of(row: &'static Row) -> Self {
        let mut shape = Self {
            row,
            selects: 0,
            selected: 0,
            zero: 0,
            dst: u8::MAX,
            src: u8::MAX,
            next: None,
        };
        let fields = [
            (row.dst, 0xff, 0),
            (row.src, 0xff, 8),
            (row.off, 0xffff, 16),
            (row.imm, 0xffff_ffff, 32),
        ];
        for (field, mask, at) in fields {
            match field {
                Field::Zero => shape.zero |= mask << at,
                Field::Is(value) => {
                    shape.selects |= mask << at;
                    shape.selected |= (value as u64 & mask) << at;
                }
                Field::Reg | Field::Any => {}
            }
        }
        let limit = |field| if field == Field::Reg { 10 } else { u8::MAX };
        (shape.dst, shape.src) = (limit(row.dst), limit(row.src));
        shape.next = row.next.map(|imm| match imm {
            Field::Zero => u64::MAX,
            _ => 0xffff_ffff,
        });
        shape
    }
}

/// For each opcode byte, its forms, in the order of [`BY_CODE`].
static SHAPES: LazyLock<[Vec<Shape>; 256]> = LazyLock::new(|| {
    std::array::from_fn(|code| BY_CODE[code].iter().map(|row| Shape::of(row)).collect())
});

/// The form of the instruction that `slots` starts with, if nothing is wrong with it.
#[inline]
fn quick(slots: &[Insn]) -> Option<&'static Row> {
    let first = *slots.first()?;
    let fields = packed(first);
    let mut shapes = SHAPES[usize::from(first.code)].iter();
    let shape = shapes.find(|shape| fields & shape.selects == shape.selected)?;
    if fields & shape.zero != 0 || first.dst > shape.dst || first.src > shape.src {
        return None;
    }
    if let Some(zero) = shape.next {
        let next = *slots.get(1)?;
        if next.code != 0 || packed(next) & zero != 0 {
            return None;
        }
    }
    Some(shape.row)
}

/// The forms that share an opcode byte; empty if there are none.
pub fn rows_of(code: u8) -> &'static [&'static Row] {
    &BY_CODE[usize::from(code)]
}

/// Decodes a whole program. The result has an entry for each slot: the instruction
/// that starts there, `None` for the second slot of a two-slot one.
///
/// Jump and call targets are not looked at.
pub fn decode_program(insns: &[Insn]) -> Result<Vec<Option<Op>>, ProgramError> {
    let mut ops = Vec::with_capacity(insns.len());
    while let Some(rest @ [_, ..]) = insns.get(ops.len()..) {
        let op = Op::decode(rest).map_err(|error| ProgramError {
            at: ops.len(),
            error,
        })?;
        ops.push(Some(op));
        if op.slots() == 2 {
            ops.push(None);
        }
    }
    Ok(ops)
}

/// The form that the fields of the first slot select.
pub(crate) fn select(insn: Insn) -> Result<&'static Row, DecodeError> {
    let Insn { code, .. } = insn;
    let rows = rows_of(code);
    let Some(first) = rows.first() else {
        return Err(DecodeError::UnknownOpcode { code });
    };
    let mut unknown = None;
    for row in rows {
        match row
            .fields(insn)
            .find(|&(_, field, value)| matches!(field, Field::Is(v) if v != value))
        {
            None => return Ok(row),
            Some((field, _, value)) => unknown = unknown.or(Some((field, value))),
        }
    }
    let (field, value) = unknown.unwrap_or((FieldName::Code, i32::from(code)));
    Err(DecodeError::UnknownSelector {
        code,
        mnemonic: first.mnemonic,
        field,
        value,
    })
}

impl Row {
    /// Each field of the first slot with what it must and what it does hold.
    fn fields(&self, insn: Insn) -> impl Iterator<Item = (FieldName, Field, i32)> {
        [
            (FieldName::Dst, self.dst, i32::from(insn.dst)),
            (FieldName::Src, self.src, i32::from(insn.src)),
            (FieldName::Off, self.off, i32::from(insn.off)),
            (FieldName::Imm, self.imm, insn.imm),
        ]
        .into_iter()
    }

    /// Checks all but the selectors.
    fn check(&self, slots: &[Insn]) -> Result<(), DecodeError> {
        let Row { code, mnemonic, .. } = *self;
        let first = slots.first().copied().unwrap_or_default();
        for (field, rule, value) in self.fields(first) {
            if rule == Field::Zero && value != 0 {
                return Err(DecodeError::Reserved {
                    code,
                    mnemonic,
                    field,
                    value,
                });
            }
        }
        for (field, rule, value) in [
            (FieldName::Dst, self.dst, first.dst),
            (FieldName::Src, self.src, first.src),
        ] {
            if rule == Field::Reg && Reg::new(value).is_none() {
                return Err(DecodeError::Register {
                    code,
                    mnemonic,
                    field,
                    value,
                });
            }
        }
        let Some(rule) = self.next else { return Ok(()) };
        let Some(next) = slots.get(1) else {
            return Err(DecodeError::Truncated { code, mnemonic });
        };
        let imm = if rule == Field::Zero { next.imm } else { 0 };
        for (field, value) in [
            (FieldName::Code, i32::from(next.code)),
            (FieldName::Dst, i32::from(next.dst)),
            (FieldName::Src, i32::from(next.src)),
            (FieldName::Off, i32::from(next.off)),
            (FieldName::Imm, imm),
        ] {
            if value != 0 {
                return Err(DecodeError::SecondSlot {
                    code,
                    mnemonic,
                    field,
                    value,
                });
            }
        }
        Ok(())
    }
}

/// The form of the instruction that `slots` starts with, fully checked.
pub fn row_of(slots: &[Insn]) -> Result<&'static Row, DecodeError> {
    if let Some(row) = quick(slots) {
        return Ok(row);
    }
    let row = select(*slots.first().ok_or(DecodeError::Empty)?)?;
    row.check(slots)?;
    Ok(row)
}

impl Op {
    /// Understands the instruction that `slots` starts with; looks at the second
    /// slot for `ld_imm64` only. Whatever decodes encodes to the same slots.
    pub fn decode(slots: &[Insn]) -> Result<Op, DecodeError> {
        let row = row_of(slots)?;
        let Insn { off, imm, .. } = slots[0];
        // `row_of` has checked every register that the form has; in the others these
        // two are not used.
        let dst = Reg::new(slots[0].dst).unwrap_or(Reg::R0);
        let src = Reg::new(slots[0].src).unwrap_or(Reg::R0);
        let operand = if row.src == Field::Reg {
            Operand::Reg(src)
        } else {
            Operand::Imm(imm)
        };
        let high = slots.get(1).map_or(0, |next| next.imm);
        let load = |value| Op::LoadImm64 { dst, value };
        Ok(match row.form {
            Form::Alu(op, width) => Op::Alu {
                op,
                width,
                dst,
                src: operand,
            },
            Form::MovSx(width, bits) => Op::MovSx {
                width,
                bits,
                dst,
                src,
            },
            Form::Neg(width) => Op::Neg { width, dst },
            Form::Swap(kind, bits) => Op::Swap { kind, bits, dst },
            Form::AddrSpaceCast => Op::AddrSpaceCast {
                dst,
                src,
                dst_as: (imm as u32 >> 16) as u16,
                src_as: imm as u16,
            },
            Form::MovPercpu => Op::MovPercpu { dst, src },
            Form::LoadValue => load(Imm64::Value(
                u64::from(imm as u32) | u64::from(high as u32) << 32,
            )),
            Form::LoadMapFd => load(Imm64::MapFd(imm)),
            Form::LoadMapFdValue => load(Imm64::MapFdValue {
                fd: imm,
                off: high as u32,
            }),
            Form::LoadBtfId => load(Imm64::BtfId {
                id: imm,
                btf_fd: high,
            }),
            Form::LoadFunc => load(Imm64::Func(imm)),
            Form::LoadMapIdx => load(Imm64::MapIdx(imm)),
            Form::LoadMapIdxValue => load(Imm64::MapIdxValue {
                index: imm,
                off: high as u32,
            }),
            Form::Load { size, signed } => Op::Load {
                size,
                signed,
                dst,
                base: src,
                off,
            },
            Form::LoadPacket(size) => Op::LoadPacket {
                size,
                source: if row.src == Field::Reg {
                    Source::Ind(src)
                } else {
                    Source::Abs
                },
                imm,
            },
            Form::Store(size) => Op::Store {
                size,
                base: dst,
                off,
                src: operand,
            },
            Form::Atomic { op, size, fetch } => Op::Atomic {
                op,
                size,
                fetch,
                base: dst,
                off,
                src,
            },
            Form::LoadAcquire(size) => Op::LoadAcquire {
                size,
                dst,
                base: src,
                off,
            },
            Form::StoreRelease(size) => Op::StoreRelease {
                size,
                base: dst,
                off,
                src,
            },
            Form::Jump { wide } => Op::Jump {
                off: if wide { imm } else { i32::from(off) },
                wide,
            },
            Form::JumpIf(cond, width) => Op::JumpIf {
                cond,
                width,
                dst,
                src: operand,
                off,
            },
            Form::MayGoto => Op::MayGoto { off },
            Form::CallHelper => Op::Call(Call::Helper(imm)),
            Form::CallLocal => Op::Call(Call::Local(imm)),
            Form::CallKfunc => Op::Call(Call::Kfunc {
                btf_id: imm,
                btf_index: off,
            }),
            Form::CallReg => Op::CallReg(dst),
            Form::Exit => Op::Exit,
        })
    }

    /// Slots taken: 2 for `ld_imm64`, else 1.
    pub const fn slots(&self) -> usize {
        match self {
            Op::LoadImm64 { .. } => 2,
            _ => 1,
        }
    }
}

impl Insn {
    /// Slots that the instruction starting here takes by its opcode: 2 for `ld_imm64`, else 1.
    pub const fn slots(self) -> usize {
        if self.code == code::LD | code::IMM | code::DW {
            2
        } else {
            1
        }
    }
}
