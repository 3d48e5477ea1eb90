//! Finds what in a seccomp filter can never happen: comparisons that always come out
//! the same and instructions that no system call reaches.
//!
//! The words of `struct seccomp_data` are followed apart from each other, each as the
//! set of its values that a path lets through. Values that no comparison tells apart
//! count as one, so the sets are small and exact for comparisons with constants. What
//! is computed (masked, added, kept in scratch words) is not followed: there nothing is
//! reported, though something might be found.

use crate::check::Program;
use crate::op::{Cond, Op, Operand, Size, jump_target};

/// Words of `struct seccomp_data`.
const WORDS: usize = 16;

/// Something in a filter that can never happen.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Dead {
    /// The comparison at this instruction never holds.
    NeverHolds(usize),
    /// The comparison at this instruction always holds.
    AlwaysHolds(usize),
    /// No system call reaches this instruction.
    Unreachable(usize),
}

/// Finds what can never happen in a seccomp filter, in the order of its instructions.
pub fn find_dead(program: &Program) -> Vec<Dead> {
    let ops = program.ops();
    let classes = Classes::new(ops);
    let mut states: Vec<Option<State>> = vec![None; ops.len()];
    if let Some(first) = states.first_mut() {
        *first = Some(State {
            words: vec![classes.all(); WORDS],
            a: Value::Constant(0),
            x: Value::Constant(0),
        });
    }
    let mut dead = Vec::new();
    for (at, op) in ops.iter().enumerate() {
        let Some(state) = states.get_mut(at).and_then(Option::take) else {
            dead.push(Dead::Unreachable(at));
            continue;
        };
        let mut flow = |to: usize, state: State| {
            if let Some(slot) = states.get_mut(to) {
                match slot {
                    Some(there) => there.join(&state),
                    None => *slot = Some(state),
                }
            }
        };
        match *op {
            Op::JumpIf { cond, src, jt, jf } => {
                let (holds, fails) = state.branch(&classes, cond, src);
                match (&holds, &fails) {
                    (None, Some(_)) => dead.push(Dead::NeverHolds(at)),
                    (Some(_), None) => dead.push(Dead::AlwaysHolds(at)),
                    _ => {}
                }
                for (skip, state) in [(jt, holds), (jf, fails)] {
                    if let Some(state) = state {
                        flow(at + 1 + usize::from(skip), state);
                    }
                }
            }
            Op::Jump(k) => flow(jump_target(at, k).unwrap_or(usize::MAX), state),
            Op::ReturnK(_) | Op::ReturnA => {}
            _ => flow(at + 1, state.step(*op)),
        }
    }
    dead
}

/// The values of a word in classes that no comparison of the filter tells apart: each
/// constant compared with, and each gap between two of them.
struct Classes {
    /// First value of each class, rising.
    starts: Vec<u32>,
}

impl Classes {
    fn new(ops: &[Op]) -> Classes {
        let mut starts = vec![0];
        for op in ops {
            if let Op::JumpIf {
                src: Operand::K(k), ..
            } = *op
            {
                starts.push(k);
                starts.extend(k.checked_add(1));
            }
        }
        starts.sort_unstable();
        starts.dedup();
        Classes { starts }
    }

    fn all(&self) -> Set {
        let mut bits = vec![u64::MAX; self.starts.len().div_ceil(64)];
        let rest = self.starts.len() % 64;
        if rest != 0
            && let Some(last) = bits.last_mut()
        {
            *last = (1 << rest) - 1;
        }
        Set(bits)
    }

    /// First and last value of a class.
    fn range(&self, class: usize) -> (u32, u32) {
        let first = self.starts.get(class).copied().unwrap_or(0);
        let last = self.starts.get(class + 1).map_or(u32::MAX, |next| next - 1);
        (first, last)
    }

    /// Whether a comparison with `k` holds for all of a class, for none, or either.
    fn holds(&self, class: usize, cond: Cond, k: u32) -> Option<bool> {
        let (first, last) = self.range(class);
        let of = |value: u32| match cond {
            Cond::Eq => value == k,
            Cond::Gt => value > k,
            Cond::Ge => value >= k,
            Cond::Set => value & k != 0,
        };
        match cond {
            Cond::Set if first != last => None,
            // Constants begin and end classes, so all values of one compare alike.
            _ => Some(of(first)),
        }
    }
}

/// A set of classes.
#[derive(Clone, PartialEq, Eq)]
struct Set(Vec<u64>);

impl Set {
    fn contains(&self, class: usize) -> bool {
        self.0
            .get(class / 64)
            .is_some_and(|bits| bits >> (class % 64) & 1 != 0)
    }

    fn remove(&mut self, class: usize) {
        if let Some(bits) = self.0.get_mut(class / 64) {
            *bits &= !(1 << (class % 64));
        }
    }

    fn is_empty(&self) -> bool {
        self.0.iter().all(|bits| *bits == 0)
    }
}

/// What a register holds.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Value {
    Constant(u32),
    /// A word of the data, as loaded.
    Word(usize),
    Unknown,
}

#[derive(Clone)]
struct State {
    words: Vec<Set>,
    a: Value,
    x: Value,
}

impl State {
    fn join(&mut self, other: &State) {
        for (set, more) in self.words.iter_mut().zip(&other.words) {
            for (bits, more) in set.0.iter_mut().zip(&more.0) {
                *bits |= more;
            }
        }
        for (value, other) in [(&mut self.a, other.a), (&mut self.x, other.x)] {
            if *value != other {
                *value = Value::Unknown;
            }
        }
    }

    /// The state after an instruction that does not jump.
    fn step(mut self, op: Op) -> State {
        match op {
            Op::LoadAbs { size: Size::W, k } => self.a = Value::Word(k as usize / 4 % WORDS),
            Op::LoadLen => self.a = Value::Constant(crate::check::SECCOMP_DATA),
            Op::LoadXLen => self.x = Value::Constant(crate::check::SECCOMP_DATA),
            Op::LoadImm(k) => self.a = Value::Constant(k),
            Op::LoadXImm(k) => self.x = Value::Constant(k),
            Op::LoadXMem(_) => self.x = Value::Unknown,
            Op::Tax => self.x = self.a,
            Op::Txa => self.a = self.x,
            Op::Store(_) | Op::StoreX(_) => {}
            _ => self.a = Value::Unknown,
        }
        self
    }

    /// The states where a comparison of A holds and where it does not.
    fn branch(self, classes: &Classes, cond: Cond, src: Operand) -> (Option<State>, Option<State>) {
        let k = match (src, self.x) {
            (Operand::K(k), _) => k,
            // Only constants in the instructions begin classes.
            _ => return (Some(self.clone()), Some(self)),
        };
        match self.a {
            Value::Unknown => (Some(self.clone()), Some(self)),
            Value::Constant(a) => {
                let holds = match cond {
                    Cond::Eq => a == k,
                    Cond::Gt => a > k,
                    Cond::Ge => a >= k,
                    Cond::Set => a & k != 0,
                };
                if holds {
                    (Some(self), None)
                } else {
                    (None, Some(self))
                }
            }
            Value::Word(word) => {
                let (mut holds, mut fails) = (self.clone(), self);
                for class in 0..classes.starts.len() {
                    if !holds.words[word].contains(class) {
                        continue;
                    }
                    match classes.holds(class, cond, k) {
                        Some(true) => fails.words[word].remove(class),
                        Some(false) => holds.words[word].remove(class),
                        None => {}
                    }
                }
                let some = |state: State| Some(state).filter(|s| !s.words[word].is_empty());
                (some(holds), some(fails))
            }
        }
    }
}
