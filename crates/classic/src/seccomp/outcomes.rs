//! What a filter may do with a system call whatever its arguments are.

use std::collections::BTreeSet;

use super::Arch;
use crate::check::Program;
use crate::insn::code;
use crate::interp::{Dialect, alu, holds};
use crate::op::{Op, Operand, Size, jump_target};

/// What is known on the way: `None` is any value.
#[derive(Clone, PartialEq, Eq)]
struct State {
    a: Option<u32>,
    x: Option<u32>,
    scratch: [Option<u32>; code::MEMWORDS as usize],
}

impl State {
    fn join(&mut self, other: &State) {
        let both = |own: &mut Option<u32>, other: Option<u32>| {
            if *own != other {
                *own = None;
            }
        };
        both(&mut self.a, other.a);
        both(&mut self.x, other.x);
        for (own, other) in self.scratch.iter_mut().zip(other.scratch) {
            both(own, other);
        }
    }

    fn value(&self, src: Operand) -> Option<u32> {
        match src {
            Operand::K(k) => Some(k),
            Operand::X => self.x,
        }
    }
}

/// The results (`SECCOMP_RET_*` with data) that a filter can come to for the system call of
/// that number: one if it looks at nothing else. It may name a result that no arguments
/// lead to, where comparisons of arguments exclude each other; it leaves none out. `None`
/// stands for a result computed from the arguments.
pub fn outcomes(program: &Program, arch: Arch, number: u32) -> BTreeSet<Option<u32>> {
    let ops = program.ops();
    let mut states: Vec<Option<State>> = vec![None; ops.len()];
    let mut results = BTreeSet::new();
    if let Some(first) = states.first_mut() {
        *first = Some(State {
            a: Some(0),
            x: Some(0),
            scratch: [Some(0); code::MEMWORDS as usize],
        });
    }
    for (at, op) in ops.iter().enumerate() {
        let Some(mut state) = states[at].take() else {
            continue;
        };
        let mut flow = |to: usize, state: &State| {
            if let Some(slot) = states.get_mut(to) {
                match slot {
                    Some(there) => there.join(state),
                    None => *slot = Some(state.clone()),
                }
            }
        };
        match *op {
            Op::LoadAbs {
                size: Size::W,
                k: 0,
            } => state.a = Some(number),
            Op::LoadAbs {
                size: Size::W,
                k: 4,
            } => state.a = Some(arch.audit()),
            // A seccomp filter loads nothing else, of which anything may be.
            Op::LoadAbs { .. } | Op::LoadInd { .. } | Op::LoadAncillary { .. } => state.a = None,
            Op::LoadXMsh(_) => state.x = None,
            Op::LoadLen => state.a = Some(crate::check::SECCOMP_DATA),
            Op::LoadXLen => state.x = Some(crate::check::SECCOMP_DATA),
            Op::LoadImm(k) => state.a = Some(k),
            Op::LoadXImm(k) => state.x = Some(k),
            Op::LoadMem(k) => state.a = state.scratch.get(k as usize).copied().flatten(),
            Op::LoadXMem(k) => state.x = state.scratch.get(k as usize).copied().flatten(),
            Op::Store(k) => set(&mut state.scratch, k, state.a),
            Op::StoreX(k) => set(&mut state.scratch, k, state.x),
            Op::Alu { op, src } => match (state.a, state.value(src)) {
                (Some(a), Some(b)) => match alu(op, a, b, Dialect::Kernel) {
                    Some(result) => state.a = Some(result),
                    None => {
                        // Division by zero ends the filter.
                        results.insert(Some(0));
                        continue;
                    }
                },
                (_, divisor) => {
                    let divides = matches!(op, crate::op::AluOp::Div | crate::op::AluOp::Mod);
                    if divides && divisor.is_none_or(|d| d == 0) {
                        results.insert(Some(0));
                    }
                    state.a = None;
                }
            },
            Op::Neg => state.a = state.a.map(u32::wrapping_neg),
            Op::Tax => state.x = state.a,
            Op::Txa => state.a = state.x,
            Op::Jump(k) => {
                flow(jump_target(at, k).unwrap_or(usize::MAX), &state);
                continue;
            }
            Op::JumpIf { cond, src, jt, jf } => {
                let decided = state
                    .a
                    .zip(state.value(src))
                    .map(|(a, b)| holds(cond, a, b));
                if decided != Some(false) {
                    flow(at + 1 + usize::from(jt), &state);
                }
                if decided != Some(true) {
                    flow(at + 1 + usize::from(jf), &state);
                }
                continue;
            }
            Op::ReturnK(k) => {
                results.insert(Some(k));
                continue;
            }
            Op::ReturnA => {
                results.insert(state.a);
                continue;
            }
        }
        flow(at + 1, &state);
    }
    results
}

fn set(scratch: &mut [Option<u32>], k: u32, value: Option<u32>) {
    if let Some(word) = scratch.get_mut(k as usize) {
        *word = value;
    }
}
