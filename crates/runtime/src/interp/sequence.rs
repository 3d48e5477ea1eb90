//! Runs of instructions in one handler, for programs over a packet: what loads and tests of
//! classic filters become. One dispatch less each, and as the registers are part of the
//! handler, values stay in machine registers from one to the next.
//!
//! As in a [`Pair`], every slot keeps a handler of its own, so that jumps may lead anywhere.
//! Programs that use other registers run without sequences.

use std::marker::PhantomData;

use bpfkit_isa::{AluOp, Cond, Op, Operand, Reg, Size, Swap, Width};

use super::access::{Load, Store};
use super::alu::{Add, Alu, And, Lsh, Mov, Move, Rsh, Sub, Swap16, Swap32};
use super::inst::{Cpu, Flow, Instruction, UNLINKED};
use super::jump::{Eq, Gt, JumpIf, Lt, Ne, Set};
use super::packet;
use super::pair::Pair;
use super::select::Visit;
use crate::resolve::Slot;

/// The registers of a converted filter (`bpfkit_classic::Target::Memory`): A, the packet's
/// address and length, X, a temporary value, the end of the stack.
const A: Reg = Reg::R0;
const DATA: Reg = Reg::R1;
const LEN: Reg = Reg::R2;
const X: Reg = Reg::R4;
const TMP: Reg = Reg::R5;
const FRAME: Reg = Reg::R10;

/// `I` with these registers for destination and source.
struct With<I, const DST: u8, const SRC: u8>(PhantomData<I>);

impl<I: Instruction, const DST: u8, const SRC: u8> Instruction for With<I, DST, SRC> {
    #[inline(always)]
    unsafe fn step<const CHECKED: bool, const LINK: u8>(cpu: &mut Cpu) -> Flow {
        cpu.registers = Some((DST, SRC));
        // SAFETY: by this function's contract; the registers are the instruction's.
        let flow = unsafe { I::step::<CHECKED, LINK>(cpu) };
        cpu.registers = None;
        flow
    }
}

/// A type with its registers.
macro_rules! with {
    ($dst:ident $src:ident; $I:ty) => { With<$I, { $dst.number() }, { $src.number() }> };
    ($dst:ident; $I:ty) => { With<$I, { $dst.number() }, 0> };
}

/// The instructions that a word of a row stands for, each with its type.
macro_rules! word {
    // The packet has so many bytes.
    (check; $($go_on:tt)*) => {
        one_of! { [$($go_on)*]
            Op::JumpIf { cond: Cond::Lt, width: Width::W64, dst: LEN, src: Operand::Imm(_), .. }
                => with!(LEN; JumpIf<Lt, true, false>);
        }
    };
    (load; $($go_on:tt)*) => { word! { @load A DATA (B u8) (H u16) (W u32); $($go_on)* } };
    (load8; $($go_on:tt)*) => { word! { @load A DATA (B u8); $($go_on)* } };
    (load16; $($go_on:tt)*) => { word! { @load A DATA (H u16); $($go_on)* } };
    (load32; $($go_on:tt)*) => { word! { @load A DATA (W u32); $($go_on)* } };
    (load_x; $($go_on:tt)*) => { word! { @load X DATA (B u8); $($go_on)* } };
    (load_at; $($go_on:tt)*) => { word! { @load A TMP (B u8) (H u16) (W u32); $($go_on)* } };
    (load_at8; $($go_on:tt)*) => { word! { @load A TMP (B u8); $($go_on)* } };
    (load_scratch; $($go_on:tt)*) => { word! { @load A FRAME (W u32); $($go_on)* } };
    (@load $dst:ident $base:ident $(($size:ident $T:ty))*; $($go_on:tt)*) => {
        one_of! { [$($go_on)*]
            $(Op::Load { size: Size::$size, signed: false, dst: $dst, base: $base, .. }
                => with!($dst $base; Load<$T, false>);)*
        }
    };
    (store; $($go_on:tt)*) => {
        one_of! { [$($go_on)*]
            Op::Store { size: Size::W, base: FRAME, src: Operand::Reg(A), .. }
                => with!(FRAME A; Store<u32, true>);
        }
    };
    (swap; $($go_on:tt)*) => {
        one_of! { [$($go_on)*]
            Op::Swap { kind: Swap::ToBe, bits: 16, dst: A } => with!(A A; Move<Swap16>);
            Op::Swap { kind: Swap::ToBe, bits: 32, dst: A } => with!(A A; Move<Swap32>);
        }
    };
    // Of A, with a constant.
    (test; $($go_on:tt)*) => { word! { @test Eq Ne Set; $($go_on)* } };
    (eq; $($go_on:tt)*) => { word! { @test Eq; $($go_on)* } };
    (ne; $($go_on:tt)*) => { word! { @test Ne; $($go_on)* } };
    (set; $($go_on:tt)*) => { word! { @test Set; $($go_on)* } };
    (@test $($C:ident)*; $($go_on:tt)*) => {
        one_of! { [$($go_on)*]
            $(Op::JumpIf { cond: Cond::$C, width: Width::W32, dst: A, src: Operand::Imm(_), .. }
                => with!(A; JumpIf<$C, false, false>);)*
        }
    };
    // Of A, with X.
    (differs; $($go_on:tt)*) => { word! { @differs Eq Ne; $($go_on)* } };
    (@differs $($C:ident)*; $($go_on:tt)*) => {
        one_of! { [$($go_on)*]
            $(Op::JumpIf { cond: Cond::$C, width: Width::W32, dst: A, src: Operand::Reg(X), .. }
                => with!(A X; JumpIf<$C, false, true>);)*
        }
    };
    // TMP leaves the packet.
    (past; $($go_on:tt)*) => {
        one_of! { [$($go_on)*]
            Op::JumpIf { cond: Cond::Gt, width: Width::W64, dst: TMP, src: Operand::Reg(LEN), .. }
                => with!(TMP LEN; JumpIf<Gt, true, true>);
        }
    };
    (tmp_is_x; $($go_on:tt)*) => { word! { @reg W32 false Mov TMP X; $($go_on)* } };
    (tmp_plus; $($go_on:tt)*) => { word! { @imm W64 true Add TMP; $($go_on)* } };
    (tmp_in_packet; $($go_on:tt)*) => { word! { @reg W64 true Add TMP DATA; $($go_on)* } };
    (and_x; $($go_on:tt)*) => { word! { @imm W32 false And X; $($go_on)* } };
    (lsh_x; $($go_on:tt)*) => { word! { @imm W32 false Lsh X; $($go_on)* } };
    (constant; $($go_on:tt)*) => { word! { @imm W32 false Mov A; $($go_on)* } };
    (and; $($go_on:tt)*) => { word! { @imm W32 false And A; $($go_on)* } };
    (lsh; $($go_on:tt)*) => { word! { @imm W32 false Lsh A; $($go_on)* } };
    (rsh; $($go_on:tt)*) => { word! { @imm W32 false Rsh A; $($go_on)* } };
    (tax; $($go_on:tt)*) => { word! { @reg W32 false Mov X A; $($go_on)* } };
    (sub; $($go_on:tt)*) => { word! { @reg W32 false Sub A X; $($go_on)* } };
    (@imm $width:ident $wide:literal $F:ident $dst:ident; $($go_on:tt)*) => {
        one_of! { [$($go_on)*]
            Op::Alu { op: AluOp::$F, width: Width::$width, dst: $dst, src: Operand::Imm(_) }
                => with!($dst; Alu<$F, $wide, false>);
        }
    };
    (@reg $width:ident $wide:literal $F:ident $dst:ident $src:ident; $($go_on:tt)*) => {
        one_of! { [$($go_on)*]
            Op::Alu { op: AluOp::$F, width: Width::$width, dst: $dst, src: Operand::Reg($src) }
                => with!($dst $src; Alu<$F, $wide, true>);
        }
    };
    (exit; $($go_on:tt)*) => { one_of! { [$($go_on)*] Op::Exit => packet::Exit; } };
}

/// Goes on with the rest of a row where the next slot holds one of these. What is matched so
/// far is a type in brackets, or nothing.
macro_rules! one_of {
    ([$v:ident $slots:ident $so_far:tt $rest:tt] $($pattern:pat => $I:ty;)*) => {
        match $slots.split_first() {
            $(Some((Slot::Op($pattern), slots)) => {
                row!($v slots [joined!($so_far $I)] $rest)
            })*
            _ => {}
        }
    };
}

macro_rules! joined {
    ([] $I:ty) => { $I };
    ([$T:ty] $I:ty) => { Pair<$T, $I, UNLINKED> };
}

/// Matches slots with a row: returns the type of the whole where all of it fits.
macro_rules! row {
    ($v:ident $slots:ident [$T:ty] []) => {{
        let _ = $slots;
        return Some($v.visit::<$T>());
    }};
    ($v:ident $slots:ident $so_far:tt [$word:ident $($rest:ident)*]) => {
        word! { $word; $v $slots $so_far [$($rest)*] }
    };
}

/// Calls `v` with the type of the longest sequence at the beginning of `slots`, if there is
/// one.
pub(super) fn select_sequence<V: Visit>(slots: &[Slot], v: V) -> Option<V::Out> {
    macro_rules! rows {
        ($($($word:ident)*;)*) => { $( row!(v slots [] [$($word)*]); )* };
    }
    rows! {
        // An IP header's length, in a packet that is no later fragment, and what lies behind.
        load16 set load_x and_x lsh_x tmp_is_x tmp_plus past tmp_in_packet load_at test;
        load16 set load_x and_x lsh_x;
        load_x and_x lsh_x tmp_is_x tmp_plus past tmp_in_packet load_at test;
        load_x and_x lsh_x tmp_is_x tmp_plus past tmp_in_packet load_at8 and rsh tax;
        load_x and_x lsh_x tmp_is_x tmp_plus past tmp_in_packet load_at;
        load_x and_x lsh_x;
        // A load at X + k.
        tmp_is_x tmp_plus past tmp_in_packet load_at test;
        tmp_is_x tmp_plus past tmp_in_packet load_at swap;
        tmp_is_x tmp_plus past tmp_in_packet load_at8 and rsh;
        tmp_is_x tmp_plus past tmp_in_packet load_at;
        // Loads and tests, behind the test that leads there.
        test load eq eq ne;
        test load eq ne;
        test load test;
        check load eq ne;
        check load test;
        load eq ne;
        load test;
        // Arithmetic on what filters compare.
        load swap store;
        load swap;
        load8 and lsh tax;
        load_scratch sub store;
        load_scratch sub;
        load_scratch differs;
        and rsh tax;
        constant exit;
    }
    None
}
