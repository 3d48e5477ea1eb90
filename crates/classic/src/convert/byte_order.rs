//! Which loads may leave their bytes in the packet's order.
//!
//! Most loads are only compared with constants. There the constants can be turned around
//! when the filter is converted instead of the packet's bytes each time it runs.

use super::liveness::has_jump_back;
use crate::ancillary::Ancillary;
use crate::op::{Cond, Op, Operand, Size, jump_target};

/// How A holds what was loaded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Form {
    /// As a number.
    Number,
    /// As it lies in the packet, in a little-endian register.
    Packet(Size),
    /// Differently from path to path.
    Mixed,
}

/// What is done about byte order, for each instruction.
pub(super) struct ByteOrder {
    /// The load at that instruction does not swap.
    unswapped: Vec<bool>,
    /// What A is compared with there, in this order.
    compared: Vec<Option<Size>>,
}

impl ByteOrder {
    /// Loads are swapped, as where they are not made through pointers.
    pub(super) fn network() -> ByteOrder {
        ByteOrder {
            unswapped: Vec::new(),
            compared: Vec::new(),
        }
    }

    /// Finds out which loads need no swap.
    pub(super) fn of(ops: &[Op]) -> ByteOrder {
        // With loops a single pass would not do, and they are rare.
        if has_jump_back(ops) {
            return ByteOrder::network();
        }
        let only_compared = only_compared(ops);
        let unswapped: Vec<bool> = ops
            .iter()
            .enumerate()
            .map(|(at, op)| {
                let load = matches!(op, Op::LoadAbs { size, .. } | Op::LoadInd { size, .. } if *size != Size::B);
                load && only_compared[at + 1]
            })
            .collect();
        match forms(ops, &unswapped) {
            Some(compared) => ByteOrder {
                unswapped,
                compared,
            },
            None => ByteOrder::network(),
        }
    }

    /// Whether the load at `at` swaps its bytes.
    pub(super) fn swaps(&self, at: usize) -> bool {
        !self.unswapped.get(at).copied().unwrap_or(false)
    }

    /// The constant for the comparison at `at`.
    pub(super) fn constant(&self, at: usize, cond: Cond, k: u32) -> u32 {
        match self.compared.get(at).copied().flatten() {
            Some(Size::W) => k.swap_bytes(),
            Some(Size::H) => match u16::try_from(k) {
                Ok(k) => k.swap_bytes().into(),
                // No 16 bits are equal to that; of its bits the lower ones count.
                Err(_) if cond == Cond::Eq => k,
                Err(_) => (k as u16).swap_bytes().into(),
            },
            _ => k,
        }
    }
}

/// For each place, whether A is from there on only compared with constants, for equality or
/// for bits. Past the end it is.
fn only_compared(ops: &[Op]) -> Vec<bool> {
    let mut only = vec![true; ops.len() + 1];
    for (at, op) in ops.iter().enumerate().rev() {
        let after = |skip: usize| only.get(at + 1 + skip).copied().unwrap_or(true);
        only[at] = match *op {
            Op::JumpIf {
                cond: Cond::Eq | Cond::Set,
                src: Operand::K(_),
                jt,
                jf,
            } => after(jt.into()) && after(jf.into()),
            Op::JumpIf { .. }
            | Op::Alu { .. }
            | Op::Neg
            | Op::Store(_)
            | Op::Tax
            | Op::ReturnA
            | Op::LoadAncillary {
                what: Ancillary::NlAttr | Ancillary::NlAttrNest | Ancillary::AluXorX,
                ..
            } => false,
            Op::LoadAbs { .. }
            | Op::LoadInd { .. }
            | Op::LoadAncillary { .. }
            | Op::LoadLen
            | Op::LoadImm(_)
            | Op::LoadMem(_)
            | Op::Txa
            | Op::ReturnK(_) => true,
            Op::LoadXLen | Op::LoadXImm(_) | Op::LoadXMem(_) | Op::LoadXMsh(_) | Op::StoreX(_) => {
                after(0)
            }
            Op::Jump(k) => jump_target(at, k)
                .and_then(|to| only.get(to))
                .copied()
                .unwrap_or(true),
        };
    }
    only
}

/// For each comparison the size of the bytes it compares, where they are in the packet's
/// order; `None` if that depends on the path.
fn forms(ops: &[Op], unswapped: &[bool]) -> Option<Vec<Option<Size>>> {
    let mut before: Vec<Option<Form>> = vec![None; ops.len() + 1];
    before[0] = Some(Form::Number);
    let mut compared = vec![None; ops.len()];
    for (at, op) in ops.iter().enumerate() {
        let Some(form) = before[at] else { continue };
        let mut flow = |to: usize, form: Form| {
            if let Some(slot) = before.get_mut(to) {
                *slot = Some(match *slot {
                    Some(other) if other != form => Form::Mixed,
                    _ => form,
                });
            }
        };
        let next = at + 1;
        match *op {
            Op::LoadAbs { size, .. } | Op::LoadInd { size, .. } if unswapped[at] => {
                flow(next, Form::Packet(size));
            }
            Op::JumpIf { jt, jf, .. } => {
                match form {
                    Form::Mixed => return None,
                    Form::Number => {}
                    Form::Packet(size) => compared[at] = Some(size),
                }
                flow(next + usize::from(jt), form);
                flow(next + usize::from(jf), form);
            }
            Op::Jump(k) => flow(jump_target(at, k).unwrap_or(usize::MAX), form),
            Op::ReturnK(_) | Op::ReturnA => {}
            Op::LoadXLen
            | Op::LoadXImm(_)
            | Op::LoadXMem(_)
            | Op::LoadXMsh(_)
            | Op::StoreX(_)
            | Op::Store(_)
            | Op::Tax => flow(next, form),
            _ => flow(next, Form::Number),
        }
    }
    Some(compared)
}
