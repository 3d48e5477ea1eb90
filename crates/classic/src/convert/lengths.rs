//! One bounds check for many loads.
//!
//! A load outside the packet ends the filter with 0, and so may a later instruction of
//! its own accord. So at each instruction there is a length below which a packet gives 0
//! whatever happens: the least, over the paths from there to a result other than 0, of
//! what the loads on the path reach. A check for that length at a load refuses no packet
//! that would have matched, and covers all those loads.

use super::liveness::has_jump_back;
use crate::interp::Dialect;
use crate::op::{Op, jump_target};

/// Where a load at a constant offset lies in the packet, counted from its first byte;
/// `None` for offsets that no packet has.
pub(super) fn constant_offset(k: u32, dialect: Dialect, network_offset: u16) -> Option<u32> {
    use crate::insn::code::{LL_OFF, NET_OFF};
    if k <= i32::MAX as u32 {
        return Some(k);
    }
    match dialect {
        Dialect::Libpcap => None,
        Dialect::Kernel if k >= NET_OFF => Some(k - NET_OFF + u32::from(network_offset)),
        Dialect::Kernel if k >= LL_OFF => Some(k - LL_OFF),
        Dialect::Kernel => None,
    }
}

/// The length that a load at a constant offset needs, `u32::MAX` if no length will do.
fn reach(k: u32, bytes: u32, dialect: Dialect, network_offset: u16) -> u32 {
    constant_offset(k, dialect, network_offset).map_or(u32::MAX, |at| at.saturating_add(bytes))
}

/// For each instruction, the length below which the filter gives 0 from there on;
/// `u32::MAX` if it does in any case. Past the end it is 0.
pub(super) fn needed(ops: &[Op], dialect: Dialect, network_offset: u16) -> Vec<u32> {
    // Until a path to another result is found, there is none.
    let mut needed = vec![u32::MAX; ops.len() + 1];
    needed[ops.len()] = 0;
    let loops = has_jump_back(ops);
    while pass(ops, &mut needed, dialect, network_offset) && loops {}
    needed
}

/// Goes through the instructions once; says whether anything has changed.
fn pass(ops: &[Op], needed: &mut [u32], dialect: Dialect, network_offset: u16) -> bool {
    let mut changed = false;
    for (at, op) in ops.iter().enumerate().rev() {
        let after = |skip: usize| needed.get(at + 1 + skip).copied().unwrap_or(0u32);
        let here = match *op {
            Op::LoadAbs { size, k } => {
                reach(k, size.bytes(), dialect, network_offset).max(after(0))
            }
            Op::LoadXMsh(k) => reach(k, 1, dialect, network_offset).max(after(0)),
            // An offset that cannot wrap is at least k.
            Op::LoadInd { size, k } if dialect == Dialect::Libpcap => {
                reach(k, size.bytes(), dialect, network_offset).max(after(0))
            }
            Op::LoadAncillary { size, what }
                if dialect == Dialect::Libpcap && !what.in_libpcap(size) =>
            {
                u32::MAX
            }
            Op::Jump(k) => jump_target(at, k)
                .and_then(|to| needed.get(to))
                .copied()
                .unwrap_or(0),
            Op::JumpIf { jt, jf, .. } => after(jt.into()).min(after(jf.into())),
            Op::ReturnK(0) => u32::MAX,
            Op::ReturnK(_) | Op::ReturnA => 0,
            _ => after(0),
        };
        changed |= needed[at] != here;
        needed[at] = here;
    }
    changed
}
