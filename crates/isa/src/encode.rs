//! From [`Op`] to slots.

use std::sync::LazyLock;

use crate::insn::{Insn, Reg};
use crate::op::{AtomicOp, Call, Imm64, Op, Operand, Source};
use crate::table::{self, Field, Form, Row};

/// Rows by [`Form::index`] and by whether the last operand is a register.
static BY_FORM: LazyLock<[[Option<&'static Row>; 2]; Form::COUNT]> = LazyLock::new(|| {
    let mut rows = [[None; 2]; Form::COUNT];
    for row in table::rows() {
        if let Some(index) = row.form.index() {
            rows[index][usize::from(row.src == Field::Reg)] = Some(row);
        }
    }
    rows
});

/// The row of a form.
fn row(form: Form, by_register: bool) -> Option<&'static Row> {
    BY_FORM.get(form.index()?)?[usize::from(by_register)]
}

/// The operands of an instruction by the fields they are encoded in.
#[derive(Default)]
struct Fields {
    dst: u8,
    src: u8,
    off: i16,
    imm: i32,
    next: i32,
}

impl Op {
    /// What the instruction does, and its operands by field.
    fn parts(&self) -> (Form, Fields) {
        let none = Fields::default();
        let d = |dst: Reg| Fields {
            dst: dst.number(),
            ..Fields::default()
        };
        let ds = |dst: Reg, src: Reg| Fields {
            src: src.number(),
            ..d(dst)
        };
        let dop = |dst: Reg, src: Operand| match src {
            Operand::Reg(src) => ds(dst, src),
            Operand::Imm(imm) => Fields { imm, ..d(dst) },
        };
        match *self {
            Op::Alu {
                op,
                width,
                dst,
                src,
            } => (Form::Alu(op, width), dop(dst, src)),
            Op::MovSx {
                width,
                bits,
                dst,
                src,
            } => (Form::MovSx(width, bits), ds(dst, src)),
            Op::Neg { width, dst } => (Form::Neg(width), d(dst)),
            Op::Swap { kind, bits, dst } => (Form::Swap(kind, bits), d(dst)),
            Op::AddrSpaceCast {
                dst,
                src,
                dst_as,
                src_as,
            } => {
                let imm = (u32::from(dst_as) << 16 | u32::from(src_as)) as i32;
                (
                    Form::AddrSpaceCast,
                    Fields {
                        imm,
                        ..ds(dst, src)
                    },
                )
            }
            Op::MovPercpu { dst, src } => (Form::MovPercpu, ds(dst, src)),
            Op::LoadImm64 { dst, value } => {
                let (form, imm, next) = match value {
                    Imm64::Value(v) => (Form::LoadValue, v as i32, (v >> 32) as i32),
                    Imm64::MapFd(fd) => (Form::LoadMapFd, fd, 0),
                    Imm64::MapFdValue { fd, off } => (Form::LoadMapFdValue, fd, off as i32),
                    Imm64::BtfId { id, btf_fd } => (Form::LoadBtfId, id, btf_fd),
                    Imm64::Func(off) => (Form::LoadFunc, off, 0),
                    Imm64::MapIdx(index) => (Form::LoadMapIdx, index, 0),
                    Imm64::MapIdxValue { index, off } => (Form::LoadMapIdxValue, index, off as i32),
                };
                (
                    form,
                    Fields {
                        imm,
                        next,
                        ..d(dst)
                    },
                )
            }
            Op::Load {
                size,
                signed,
                dst,
                base,
                off,
            } => (
                Form::Load { size, signed },
                Fields {
                    off,
                    ..ds(dst, base)
                },
            ),
            Op::LoadPacket { size, source, imm } => {
                let src = if let Source::Ind(reg) = source {
                    reg.number()
                } else {
                    0
                };
                (Form::LoadPacket(size), Fields { src, imm, ..none })
            }
            Op::Store {
                size,
                base,
                off,
                src,
            } => (
                Form::Store(size),
                Fields {
                    off,
                    ..dop(base, src)
                },
            ),
            Op::Atomic {
                op,
                size,
                fetch,
                base,
                off,
                src,
            } => {
                let fetch = fetch || matches!(op, AtomicOp::Xchg | AtomicOp::Cmpxchg);
                (
                    Form::Atomic { op, size, fetch },
                    Fields {
                        off,
                        ..ds(base, src)
                    },
                )
            }
            Op::LoadAcquire {
                size,
                dst,
                base,
                off,
            } => (
                Form::LoadAcquire(size),
                Fields {
                    off,
                    ..ds(dst, base)
                },
            ),
            Op::StoreRelease {
                size,
                base,
                off,
                src,
            } => (
                Form::StoreRelease(size),
                Fields {
                    off,
                    ..ds(base, src)
                },
            ),
            Op::Jump { off, wide: true } => {
                (Form::Jump { wide: true }, Fields { imm: off, ..none })
            }
            Op::Jump { off, wide: false } => (
                Form::Jump { wide: false },
                Fields {
                    off: off as i16,
                    ..none
                },
            ),
            Op::JumpIf {
                cond,
                width,
                dst,
                src,
                off,
            } => (
                Form::JumpIf(cond, width),
                Fields {
                    off,
                    ..dop(dst, src)
                },
            ),
            Op::MayGoto { off } => (Form::MayGoto, Fields { off, ..none }),
            Op::Call(Call::Helper(id)) => (Form::CallHelper, Fields { imm: id, ..none }),
            Op::Call(Call::Local(off)) => (Form::CallLocal, Fields { imm: off, ..none }),
            Op::Call(Call::Kfunc { btf_id, btf_index }) => (
                Form::CallKfunc,
                Fields {
                    imm: btf_id,
                    off: btf_index,
                    ..none
                },
            ),
            Op::CallReg(reg) => (Form::CallReg, d(reg)),
            Op::Exit => (Form::Exit, none),
        }
    }

    /// Whether the form with a register as last operand is meant, where there are two.
    fn by_register(&self) -> bool {
        match self {
            Op::Alu { src, .. } | Op::Store { src, .. } | Op::JumpIf { src, .. } => {
                matches!(src, Operand::Reg(_))
            }
            Op::LoadPacket { source, .. } => matches!(source, Source::Ind(_)),
            Op::MovSx { .. }
            | Op::AddrSpaceCast { .. }
            | Op::MovPercpu { .. }
            | Op::Load { .. }
            | Op::Atomic { .. }
            | Op::LoadAcquire { .. }
            | Op::StoreRelease { .. } => true,
            _ => false,
        }
    }

    /// The table row of this instruction; `None` if a field is outside what its
    /// documentation allows (a 7-bit sign extension, an 8-bit atomic addition, …).
    pub fn row(&self) -> Option<&'static Row> {
        row(self.parts().0, self.by_register())
    }

    /// The slots of this instruction, the second for `ld_imm64` only.
    ///
    /// An `Op` that has no [`row`](Op::row) gives the all-zero slot, which is no
    /// instruction. The distance of a jump that is not `wide` is cut to 16 bits.
    pub fn encode(&self) -> (Insn, Option<Insn>) {
        let (form, fields) = self.parts();
        let Some(row) = row(form, self.by_register()) else {
            return (Insn::default(), None);
        };
        let pick = |rule: Field, value: i32| if let Field::Is(v) = rule { v } else { value };
        let insn = Insn {
            code: row.code,
            dst: pick(row.dst, i32::from(fields.dst)) as u8,
            src: pick(row.src, i32::from(fields.src)) as u8,
            off: pick(row.off, i32::from(fields.off)) as i16,
            imm: pick(row.imm, fields.imm),
        };
        let next = row.next.map(|rule| Insn {
            imm: pick(rule, fields.next),
            ..Insn::default()
        });
        (insn, next)
    }

    /// Appends the slots of this instruction.
    pub fn encode_into(&self, program: &mut Vec<Insn>) {
        let (first, second) = self.encode();
        program.push(first);
        program.extend(second);
    }
}
