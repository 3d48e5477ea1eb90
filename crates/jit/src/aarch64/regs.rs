//! Which machine register holds what.

use bpfkit_isa::Reg;

use crate::lower::{Function, Mask};

/// A general register by its number; 31 is zero or the stack pointer, as the instruction has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Gpr(pub(super) u8);

pub(super) const ZR: Gpr = Gpr(31);
pub(super) const SP: Gpr = Gpr(31);
pub(super) const LINK: Gpr = Gpr(30);
/// The result of functions of the C calling convention.
pub(super) const X0: Gpr = Gpr(0);
pub(super) const X1: Gpr = Gpr(1);
pub(super) const X2: Gpr = Gpr(2);
pub(super) const X3: Gpr = Gpr(3);
pub(super) const X4: Gpr = Gpr(4);
/// R0.
pub(super) const RESULT: Gpr = Gpr(7);
/// Scratch.
pub(super) const T0: Gpr = Gpr(10);
pub(super) const T1: Gpr = Gpr(11);
pub(super) const T2: Gpr = Gpr(12);
/// Arguments of callouts: address and detail.
pub(super) const ADDRESS: Gpr = Gpr(13);
pub(super) const DETAIL: Gpr = Gpr(14);
pub(super) const FRAME: Gpr = Gpr(25);
/// Steps left, in checked code.
pub(super) const FUEL: Gpr = Gpr(23);
/// The run's state.
pub(super) const STATE: Gpr = Gpr(24);

/// R0–R10. Arguments lie where C has them.
const MAP: [Gpr; 11] = [
    RESULT,
    Gpr(0),
    Gpr(1),
    Gpr(2),
    Gpr(3),
    Gpr(4),
    Gpr(19),
    Gpr(20),
    Gpr(21),
    Gpr(22),
    FRAME,
];

pub(super) fn gpr(reg: Reg) -> Gpr {
    MAP[reg.index()]
}

/// R1–R5.
pub(super) const ARGS: [Gpr; 5] = [Gpr(0), Gpr(1), Gpr(2), Gpr(3), Gpr(4)];

/// R6–R9 and, with numbers behind R10's, registers for stack slots: with their bits in masks of
/// BPF registers.
pub(super) const SAVED: [(Gpr, u16); 8] = [
    (Gpr(19), 1 << 6),
    (Gpr(20), 1 << 7),
    (Gpr(21), 1 << 8),
    (Gpr(22), 1 << 9),
    (Gpr(26), 1 << 11),
    (Gpr(27), 1 << 12),
    (Gpr(28), 1 << 13),
    // Steps left, in checked code.
    (FUEL, 1 << 14),
];

/// Those for stack slots: none yet, because random programs crashed under QEMU with them, and
/// nobody has found out whether by their fault.
pub(crate) fn free_registers(_: &Function, _: bool) -> Mask {
    0
}

/// The register of that number in masks.
pub(super) fn numbered(number: u32) -> Option<Gpr> {
    let mut saved = SAVED.into_iter();
    saved
        .find(|(_, bit)| *bit == 1 << number)
        .map(|(reg, _)| reg)
}
