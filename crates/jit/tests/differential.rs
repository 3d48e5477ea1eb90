//! Random programs come to the same compiled as interpreted, with any rules.

use std::sync::Arc;

use bpfkit_isa::{AluOp, AtomicOp, Cond, Insn, Op, Operand, Reg, Size, Swap, Width};
use bpfkit_jit::{CodeMemory, Features, Jit, Rules};
use bpfkit_runtime::{
    Code, Engine, Interpreter, LoadOptions, MapSet, RawMemory, Trusted, Vm, raw_program,
};
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
fn program(seeds: &[i32], body: &[Op]) -> Vec<Insn> {
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

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn every_way_comes_to_the_same(
        seeds in prop::collection::vec(any::<i32>(), 10),
        body in prop::collection::vec(
            prop_oneof![6 => alu(), 2 => other(), 4 => memory(), 2 => jump()],
            1..60,
        ),
    ) {
        let program = Arc::new(raw_program("random", program(&seeds, &body)));
        // SAFETY: the program touches its stack frame only, whose bytes it has written, and
        // its one jump back is counted.
        let trusted = || Code::Trusted(unsafe { Trusted::assume(Arc::clone(&program)) });
        let checked = || Code::Unverified(Arc::clone(&program));
        let run = |engine: &dyn Engine, code| {
            let exec = engine.load(code, &MapSet::empty(), &LoadOptions::default()).unwrap();
            exec.run(&mut Vm::default(), &mut RawMemory::default())
        };
        let expected = run(&Interpreter::default(), checked());
        prop_assert_eq!(&expected.fault, &None);
        let jit = |rules, bmi2| Jit::new(CodeMemory::new(), rules, Features { bmi2, ..Features::ALL });
        for engine in [jit(Rules::default(), true), jit(Rules::default(), false), jit(Rules::NONE, true)] {
            prop_assert_eq!(&run(&engine, checked()), &expected);
            let outcome = run(&engine, trusted());
            prop_assert_eq!((outcome.ret, outcome.fault), (expected.ret, None));
        }
    }
}
