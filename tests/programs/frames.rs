//! Random programs that touch their stack frame only, write each byte of it before they read
//! it, and end: what tests compare the ways to run programs with.

use bpfkit_isa::{AluOp, AtomicOp, Cond, Insn, Op, Operand, Reg, Size, Swap, Width};
use proptest::prelude::*;

/// R0–R5 and R7–R9: R6 keeps the loop's count, R10 is read-only.
fn reg() -> impl Strategy<Value = Reg> {
    prop::sample::select(vec![0, 1, 2, 3, 4, 5, 7, 8, 9])
        .prop_map(|n| Reg::new(n).expect("below 11"))
}

fn imm() -> impl Strategy<Value = i32> {
    prop_oneof![
        any::<i32>(),
        -2..70_i32,
        prop::sample::select(vec![i32::MIN, i32::MAX, -1, 0, 31, 32, 63, 64])
    ]
}

fn operand() -> impl Strategy<Value = Operand> {
    prop_oneof![reg().prop_map(Operand::Reg), imm().prop_map(Operand::Imm)]
}

fn width() -> impl Strategy<Value = Width> {
    prop::sample::select(vec![Width::W32, Width::W64])
}

fn size() -> impl Strategy<Value = Size> {
    prop::sample::select(vec![Size::B, Size::H, Size::W, Size::DW])
}

/// Aligned places in the first 64 bytes below the frame pointer.
fn slot(size: Size) -> impl Strategy<Value = i16> {
    let bytes = size.bytes() as i16;
    (1..=64 / bytes).prop_map(move |n| -n * bytes)
}

fn alu() -> impl Strategy<Value = Op> {
    use AluOp::*;
    let ops = vec![
        Add, Sub, Mul, Div, SDiv, Mod, SMod, Or, And, Lsh, Rsh, Arsh, Xor, Mov,
    ];
    (prop::sample::select(ops), width(), reg(), operand()).prop_map(|(op, width, dst, src)| {
        Op::Alu {
            op,
            width,
            dst,
            src,
        }
    })
}

fn other() -> impl Strategy<Value = Op> {
    prop_oneof![
        (width(), prop::sample::select(vec![8, 16, 32]), reg(), reg()).prop_map(
            |(width, bits, dst, src)| match (width, bits) {
                (Width::W32, 32) => Op::Neg { width, dst },
                _ => Op::MovSx {
                    width,
                    bits,
                    dst,
                    src
                },
            }
        ),
        (width(), reg()).prop_map(|(width, dst)| Op::Neg { width, dst }),
        (
            prop::sample::select(vec![Swap::ToLe, Swap::ToBe, Swap::Always]),
            prop::sample::select(vec![16, 32, 64]),
            reg()
        )
            .prop_map(|(kind, bits, dst)| Op::Swap { kind, bits, dst }),
    ]
}

fn memory() -> impl Strategy<Value = Op> {
    let base = Reg::R10;
    let load = (size(), any::<bool>(), reg()).prop_flat_map(move |(size, signed, dst)| {
        let signed = signed && size != Size::DW;
        slot(size).prop_map(move |off| Op::Load {
            size,
            signed,
            dst,
            base,
            off,
        })
    });
    let store = (size(), operand()).prop_flat_map(move |(size, src)| {
        slot(size).prop_map(move |off| Op::Store {
            size,
            base,
            off,
            src,
        })
    });
    use AtomicOp::*;
    let ops = prop::sample::select(vec![Add, Or, And, Xor, Xchg, Cmpxchg]);
    let atomic = (
        ops,
        prop::sample::select(vec![Size::W, Size::DW]),
        any::<bool>(),
        reg(),
    )
        .prop_flat_map(move |(op, size, fetch, src)| {
            let fetch = fetch || matches!(op, Xchg | Cmpxchg);
            slot(size).prop_map(move |off| Op::Atomic {
                op,
                size,
                fetch,
                base,
                off,
                src,
            })
        });
    prop_oneof![3 => load, 3 => store, 1 => atomic]
}

/// A jump forward over at most four instructions.
fn jump() -> impl Strategy<Value = Op> {
    use Cond::*;
    let conds = vec![Eq, Ne, Gt, Ge, Lt, Le, Set, Sgt, Sge, Slt, Sle];
    (
        prop::sample::select(conds),
        width(),
        reg(),
        operand(),
        0..5_i16,
    )
        .prop_map(|(cond, width, dst, src, off)| Op::JumpIf {
            cond,
            width,
            dst,
            src,
            off,
        })
}

/// Sets every register and the stack from a seed, runs the body three times, and mixes all
/// of it into R0.
pub fn program(seeds: &[i32], body: &[Op]) -> Vec<Insn> {
    let mut ops = Vec::new();
    let alu = |op, dst, src| Op::Alu {
        op,
        width: Width::W64,
        dst,
        src,
    };
    let r = |n: usize| Reg::new(n as u8).expect("below 11");
    for (n, seed) in seeds.iter().enumerate().take(10) {
        ops.push(alu(AluOp::Mov, r(n), Operand::Imm(*seed)));
        ops.push(alu(AluOp::Mul, r(n), Operand::Imm(0x1234_5677)));
    }
    for n in 1..=8 {
        let src = Operand::Reg(r(n));
        ops.push(Op::Store {
            size: Size::DW,
            base: Reg::R10,
            off: -8 * n as i16,
            src,
        });
    }
    ops.push(alu(AluOp::Mov, Reg::R6, Operand::Imm(3)));
    let start = ops.len();
    ops.extend(body);
    // The landing place of jumps from the last instructions.
    for _ in 0..5 {
        ops.push(alu(AluOp::Add, Reg::R0, Operand::Imm(1)));
    }
    ops.push(alu(AluOp::Sub, Reg::R6, Operand::Imm(1)));
    let back = start as i64 - ops.len() as i64 - 1;
    ops.push(Op::JumpIf {
        cond: Cond::Ne,
        width: Width::W64,
        dst: Reg::R6,
        src: Operand::Imm(0),
        off: back as i16,
    });
    for n in 1..10 {
        ops.push(alu(AluOp::Mul, Reg::R0, Operand::Imm(31)));
        ops.push(alu(AluOp::Add, Reg::R0, Operand::Reg(r(n))));
    }
    for n in 1..=8 {
        let off = -8 * n as i16;
        ops.push(Op::Load {
            size: Size::DW,
            signed: false,
            dst: Reg::R1,
            base: Reg::R10,
            off,
        });
        ops.push(alu(AluOp::Mul, Reg::R0, Operand::Imm(31)));
        ops.push(alu(AluOp::Add, Reg::R0, Operand::Reg(Reg::R1)));
    }
    ops.push(Op::Exit);
    ops.iter().map(|op| op.encode().0).collect()
}

/// Loads of neighbouring bytes, shifted and joined, with up to four registers.
fn joined() -> impl Strategy<Value = Vec<Op>> {
    let alu = |op, width, dst, src| Op::Alu {
        op,
        width,
        dst,
        src,
    };
    let regs = prop::collection::vec(reg(), 8);
    let sizes = prop::sample::select(vec![(Size::B, 2), (Size::B, 4), (Size::H, 2), (Size::W, 2)]);
    (sizes, regs, 1..8_i16, width(), any::<bool>(), any::<bool>()).prop_map(
        move |((size, parts), regs, at, width, reversed, merge_first)| {
            let (bytes, mut ops) = (size.bytes() as i16, Vec::new());
            for part in 0..parts {
                let dst = regs[part as usize];
                let place = if reversed { parts - 1 - part } else { part };
                ops.push(Op::Load {
                    size,
                    signed: false,
                    dst,
                    base: Reg::R10,
                    off: -8 * at + place * bytes,
                });
                let by = i32::from(part * bytes) * 8;
                if by > 0 {
                    ops.push(alu(AluOp::Lsh, width, dst, Operand::Imm(by)));
                    let src = Operand::Reg(if merge_first {
                        regs[0]
                    } else {
                        regs[part as usize - 1]
                    });
                    ops.push(alu(AluOp::Or, width, dst, src));
                    if merge_first {
                        ops.push(alu(AluOp::Mov, Width::W64, regs[0], Operand::Reg(dst)));
                    }
                }
            }
            // What the parts lay in is not used any more.
            let kept = if merge_first {
                regs[0]
            } else {
                regs[parts as usize - 1]
            };
            for reg in regs
                .into_iter()
                .take(parts as usize)
                .filter(|&reg| reg != kept)
            {
                ops.push(alu(AluOp::Mov, Width::W64, reg, Operand::Imm(7)));
            }
            ops
        },
    )
}

/// Stores of the parts of a register, or of zero, next to each other.
fn parted() -> impl Strategy<Value = Vec<Op>> {
    let sizes = prop::sample::select(vec![
        (Size::B, 2),
        (Size::B, 4),
        (Size::B, 8),
        (Size::H, 4),
        (Size::W, 2),
    ]);
    (sizes, reg(), reg(), 1..8_i16, any::<bool>(), 0..3).prop_map(
        |((size, parts), value, part_reg, at, reversed, kind)| {
            let (bytes, mut ops) = (size.bytes() as i16, Vec::new());
            let alu = |op, dst, src| Op::Alu {
                op,
                width: Width::W64,
                dst,
                src,
            };
            if kind == 1 {
                ops.push(alu(AluOp::Mov, value, Operand::Imm(0)));
            }
            for part in 0..parts {
                let place = if reversed { parts - 1 - part } else { part };
                let by = i32::from(part * bytes) * 8;
                let src = if kind == 2 {
                    Operand::Imm(0)
                } else if by == 0 || kind == 1 {
                    Operand::Reg(value)
                } else {
                    ops.push(alu(AluOp::Mov, part_reg, Operand::Reg(value)));
                    ops.push(alu(AluOp::Rsh, part_reg, Operand::Imm(by)));
                    Operand::Reg(part_reg)
                };
                ops.push(Op::Store {
                    size,
                    base: Reg::R10,
                    off: -8 * at + place * bytes,
                    src,
                });
            }
            ops.push(alu(AluOp::Mov, part_reg, Operand::Imm(9)));
            ops
        },
    )
}

/// A load and what is done with its value, which ends there.
fn loaded() -> impl Strategy<Value = Vec<Op>> {
    use AluOp::*;
    let ops = prop::sample::select(vec![Add, Sub, Mul, Or, And, Xor]);
    let regs = (reg(), reg(), width(), size());
    (regs, ops, operand(), jump(), 1..8_i16, 0..4).prop_map(
        |((t, other, width, size), op, src, jump, at, kind)| {
            let off = -8 * at;
            let base = Reg::R10;
            let alu = |dst, src| Op::Alu {
                op,
                width,
                dst,
                src,
            };
            let mut ops = vec![Op::Load {
                size,
                signed: false,
                dst: t,
                base,
                off,
            }];
            match kind {
                0 => ops.push(alu(other, Operand::Reg(t))),
                1 => {
                    ops.push(alu(t, src));
                    ops.push(Op::Store {
                        size,
                        base,
                        off,
                        src: Operand::Reg(t),
                    });
                }
                _ => {
                    let mut jump = jump;
                    if let Op::JumpIf { dst, src, off, .. } = &mut jump {
                        *off = 0;
                        match kind {
                            2 => *dst = t,
                            _ => *src = Operand::Reg(t),
                        }
                    }
                    ops.push(jump);
                }
            }
            ops.push(Op::Alu {
                op: Mov,
                width: Width::W64,
                dst: t,
                src: Operand::Imm(5),
            });
            ops
        },
    )
}

/// Shifts that extend, rotate, or mask for a test.
fn shifted() -> impl Strategy<Value = Vec<Op>> {
    let by = prop::sample::select(vec![8, 16, 24, 32, 48, 56, 13]);
    (
        reg(),
        reg(),
        width(),
        by,
        any::<bool>(),
        operand(),
        jump(),
        0..3,
    )
        .prop_map(|(x, t, width, by, signed, mask, jump, kind)| {
            let alu = |op, dst, src| Op::Alu {
                op,
                width,
                dst,
                src,
            };
            let back = if signed { AluOp::Arsh } else { AluOp::Rsh };
            let all = if width == Width::W64 { 64 } else { 32 };
            let mut ops = match kind {
                0 => vec![
                    alu(AluOp::Lsh, x, Operand::Imm(by)),
                    alu(back, x, Operand::Imm(by)),
                ],
                1 => vec![
                    alu(AluOp::Mov, t, Operand::Reg(x)),
                    alu(AluOp::Rsh, t, Operand::Imm(all - by % all)),
                    alu(AluOp::Lsh, x, Operand::Imm(by)),
                    alu(AluOp::Or, x, Operand::Reg(t)),
                ],
                _ => {
                    let mut jump = jump;
                    if let Op::JumpIf {
                        cond,
                        dst,
                        src,
                        off,
                        ..
                    } = &mut jump
                    {
                        *cond = if signed { Cond::Ne } else { Cond::Eq };
                        (*dst, *src, *off) = (t, Operand::Imm(0), by as i16 % 3);
                    }
                    vec![
                        alu(AluOp::Mov, t, Operand::Reg(x)),
                        alu(AluOp::And, t, mask),
                        jump,
                    ]
                }
            };
            // The jump's way and the other one both end what `t` holds.
            if kind != 0 && t != x {
                let end = Op::Alu {
                    op: AluOp::Mov,
                    width: Width::W64,
                    dst: t,
                    src: Operand::Imm(3),
                };
                ops.extend([end; 3]);
            }
            ops
        })
}

/// Instructions of every kind, and rows of them that compilers may make one of.
pub fn body() -> impl Strategy<Value = Vec<Op>> {
    let one = prop_oneof![6 => alu(), 2 => other(), 4 => memory(), 2 => jump()];
    let piece = prop_oneof![
        10 => one.prop_map(|op| vec![op]),
        1 => joined(),
        1 => parted(),
        1 => loaded(),
        1 => shifted(),
    ];
    prop::collection::vec(piece, 1..50).prop_map(|pieces| pieces.concat())
}
