//! Which machine register holds what.

use bpfkit_isa::Reg;

use crate::lower::{Function, Mask};

/// A general register by its number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Gpr(pub(super) u8);

pub(super) const RAX: Gpr = Gpr(0);
pub(super) const RCX: Gpr = Gpr(1);
pub(super) const RDX: Gpr = Gpr(2);
pub(super) const RBX: Gpr = Gpr(3);
pub(super) const RSP: Gpr = Gpr(4);
pub(super) const RBP: Gpr = Gpr(5);
pub(super) const RSI: Gpr = Gpr(6);
pub(super) const RDI: Gpr = Gpr(7);
pub(super) const R8: Gpr = Gpr(8);
/// Steps left in checked code, else free.
pub(super) const R9: Gpr = Gpr(9);
pub(super) const R10: Gpr = Gpr(10);
pub(super) const R11: Gpr = Gpr(11);
/// The run's state.
pub(super) const R12: Gpr = Gpr(12);
pub(super) const R13: Gpr = Gpr(13);
pub(super) const R14: Gpr = Gpr(14);
pub(super) const R15: Gpr = Gpr(15);

pub(super) const FUEL: Gpr = R9;
pub(super) const STATE: Gpr = R12;
pub(super) const FRAME: Gpr = RBP;

/// R0–R10, as the kernel maps them: arguments and result lie where C has them.
const MAP: [Gpr; 11] = [RAX, RDI, RSI, RDX, RCX, R8, RBX, R13, R14, R15, RBP];

pub(super) fn gpr(reg: Reg) -> Gpr {
    MAP[reg.index()]
}

/// Arguments in order.
pub(super) const ARGS: [Gpr; 5] = [RDI, RSI, RDX, RCX, R8];

/// R6–R9, with their bits in masks of BPF registers.
pub(super) const SAVED: [(Gpr, u16); 4] =
    [(RBX, 1 << 6), (R13, 1 << 7), (R14, 1 << 8), (R15, 1 << 9)];

/// Registers for stack slots in programs that need nothing of the run, with their bits in masks
/// of BPF registers: the state's, and one that calls do not keep.
const UNUSED: [(Gpr, Mask); 2] = [(STATE, STATE_BIT), (R9, FREE_BIT)];
pub(super) const STATE_BIT: Mask = 1 << 11;
pub(super) const FREE_BIT: Mask = 1 << 12;

/// Registers for stack slots: what holds R6–R9 where the function does not write them, and what
/// is unused.
pub(crate) fn free_registers(function: &Function, state: bool) -> Mask {
    let saved = SAVED.into_iter().fold(0, |mask, (_, bit)| mask | bit);
    let unused = UNUSED.into_iter().fold(0, |mask, (_, bit)| mask | bit);
    saved & !function.writes | if state { 0 } else { unused }
}

/// The register of that number in masks.
pub(super) fn numbered(number: u32) -> Option<Gpr> {
    let mut all = SAVED.into_iter().chain(UNUSED);
    all.find(|(_, bit)| *bit == 1 << number).map(|(reg, _)| reg)
}
