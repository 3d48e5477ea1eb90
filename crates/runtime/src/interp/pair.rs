//! Two instructions in one handler, for pairs that are frequent in compiled programs: one
//! dispatch less, and the first one's result goes to the second in a machine register.
//!
//! The second slot keeps its own handler, so jumps to it work as ever. Which pairs are worth
//! a handler was measured on `testdata/compute` and counted in the kernel's selftests.

use std::marker::PhantomData;

use bpfkit_isa::{AluOp, Cond, Op, Operand, Reg, Size, Width};

use super::access::{Load, Store};
use super::alu::{Add, Alu, And, Arsh, Lsh, Mov, Mul, Or, Rsh, Xor};
use super::inst::{Cpu, Flow, Instruction, LINKED_DST, LINKED_SRC, UNLINKED};
use super::jump::{Eq, Gt, Jump, JumpIf, Lt, Ne};
use super::select::Visit;

/// `A`, and then `B` if that goes on to the next slot. `HOW` is the link from A to B. A may
/// be a pair itself.
pub(super) struct Pair<A, B, const HOW: u8>(PhantomData<(A, B)>);

impl<A: Instruction, B: Instruction, const HOW: u8> Instruction for Pair<A, B, HOW> {
    #[inline(always)]
    unsafe fn step<const CHECKED: bool, const LINK: u8>(cpu: &mut Cpu) -> Flow {
        // SAFETY: by this function's contract; `prepare` pairs only what follows each other.
        unsafe {
            match A::step::<CHECKED, UNLINKED>(cpu) {
                Flow::Go => {}
                flow => return flow,
            }
            match B::step::<CHECKED, HOW>(cpu) {
                // Its own handler does that.
                Flow::Slow => Flow::Jump,
                flow => flow,
            }
        }
    }

    unsafe fn slow<const CHECKED: bool>(cpu: &mut Cpu) -> Flow {
        // SAFETY: by this function's contract. Goes on with B's own handler.
        unsafe { A::slow::<CHECKED>(cpu) }
    }
}

/// Calls `v` with the pair's type, if there is one for these instructions.
pub(super) fn select_pair<V: Visit>(first: &Op, second: &Op, v: V) -> Option<V::Out> {
    select_first(
        first,
        First {
            link: link(first, second),
            second,
            v,
        },
    )?
}

struct First<'a, V> {
    link: u8,
    second: &'a Op,
    v: V,
}

impl<V: Visit> Visit for First<'_, V> {
    type Out = Option<V::Out>;

    fn visit<A: Instruction>(self) -> Self::Out {
        let Self { link, second, v } = self;
        select_second(
            second,
            Second::<A, V> {
                link,
                v,
                first: PhantomData,
            },
        )
    }
}

struct Second<A, V> {
    link: u8,
    v: V,
    first: PhantomData<A>,
}

impl<A: Instruction, V: Visit> Visit for Second<A, V> {
    type Out = V::Out;

    fn visit<B: Instruction>(self) -> V::Out {
        match self.link {
            LINKED_DST => self.v.visit::<Pair<A, B, LINKED_DST>>(),
            LINKED_SRC => self.v.visit::<Pair<A, B, LINKED_SRC>>(),
            _ => self.v.visit::<Pair<A, B, UNLINKED>>(),
        }
    }
}

/// Which register of the second instruction the first one has written.
fn link(first: &Op, second: &Op) -> u8 {
    let written = match *first {
        Op::Alu { dst, .. } | Op::Load { dst, .. } => dst,
        _ => return UNLINKED,
    };
    let is = |reg: Reg| reg == written;
    let reads = |operand: Operand| matches!(operand, Operand::Reg(reg) if is(reg));
    let (dst, src) = match *second {
        Op::Alu { op, dst, src, .. } => (op != AluOp::Mov && is(dst), reads(src)),
        Op::JumpIf { dst, src, .. } => (is(dst), reads(src)),
        Op::Load { base, .. } => (false, is(base)),
        Op::Store { base, src, .. } => (is(base), reads(src)),
        _ => (false, false),
    };
    match (dst, src) {
        (true, _) => LINKED_DST,
        (false, true) => LINKED_SRC,
        (false, false) => UNLINKED,
    }
}

/// Lists the instructions that a place of a pair takes.
macro_rules! choose {
    ($op:expr, $v:expr;
        alu64 reg: $($R64:ident)*; imm: $($I64:ident)*;
        alu32 reg: $($R32:ident)*; imm: $($I32:ident)*;
        $($more:tt)*
    ) => {
        match *$op {
            $(Op::Alu { op: AluOp::$R64, width: Width::W64, src: Operand::Reg(_), .. } => {
                $v.visit::<Alu<$R64, true, true>>()
            })*
            $(Op::Alu { op: AluOp::$I64, width: Width::W64, src: Operand::Imm(_), .. } => {
                $v.visit::<Alu<$I64, true, false>>()
            })*
            $(Op::Alu { op: AluOp::$R32, width: Width::W32, src: Operand::Reg(_), .. } => {
                $v.visit::<Alu<$R32, false, true>>()
            })*
            $(Op::Alu { op: AluOp::$I32, width: Width::W32, src: Operand::Imm(_), .. } => {
                $v.visit::<Alu<$I32, false, false>>()
            })*
            Op::Load { size: Size::B, signed: false, .. } => $v.visit::<Load<u8, false>>(),
            Op::Load { size: Size::H, signed: false, .. } => $v.visit::<Load<u16, false>>(),
            Op::Load { size: Size::W, signed: false, .. } => $v.visit::<Load<u32, false>>(),
            Op::Load { size: Size::DW, .. } => $v.visit::<Load<u64, false>>(),
            $($more)*
            _ => return None,
        }
    };
}

fn select_first<V: Visit>(op: &Op, v: V) -> Option<V::Out> {
    Some(choose! { op, v;
        alu64 reg: Mov Add; imm: Add And Lsh Rsh;
        alu32 reg: Mov; imm: And;
    })
}

fn select_second<V: Visit>(op: &Op, v: V) -> Option<V::Out> {
    use Operand::{Imm, Reg};
    use Width::{W32, W64};
    Some(choose! { op, v;
        alu64 reg: Mov Add Or Xor Mul; imm: Mov Add And Lsh Rsh Arsh;
        alu32 reg: Mov Xor; imm: And Rsh;
        Op::Store { size: Size::B, src: Reg(_), .. } => v.visit::<Store<u8, true>>(),
        Op::Store { size: Size::W, src: Reg(_), .. } => v.visit::<Store<u32, true>>(),
        Op::Store { size: Size::DW, src: Reg(_), .. } => v.visit::<Store<u64, true>>(),
        Op::JumpIf { cond: Cond::Eq, width: W64, src: Imm(_), .. } => {
            v.visit::<JumpIf<Eq, true, false>>()
        }
        Op::JumpIf { cond: Cond::Ne, width: W64, src: Imm(_), .. } => {
            v.visit::<JumpIf<Ne, true, false>>()
        }
        Op::JumpIf { cond: Cond::Eq, width: W32, src: Imm(_), .. } => {
            v.visit::<JumpIf<Eq, false, false>>()
        }
        Op::JumpIf { cond: Cond::Ne, width: W32, src: Imm(_), .. } => {
            v.visit::<JumpIf<Ne, false, false>>()
        }
        Op::JumpIf { cond: Cond::Lt, width: W64, src: Reg(_), .. } => {
            v.visit::<JumpIf<Lt, true, true>>()
        }
        Op::JumpIf { cond: Cond::Gt, width: W64, src: Reg(_), .. } => {
            v.visit::<JumpIf<Gt, true, true>>()
        }
        Op::Jump { .. } => v.visit::<Jump>(),
    })
}
