//! The proof: one pass over the instructions with what is known of each register.
//!
//! Jumps back are only allowed where R9 counts them: R9 is set to the packet's length
//! outside of any loop, and each jump back comes right after `if r9 == 0 goto …; r9 -= 1`.
//! So a program takes at most as many rounds as its packet has bytes.

use bpfkit_isa::{AluOp, Cond, Insn, Op, Operand, Reg, Size, Width};

use super::{PacketError, STACK_BYTES};

/// The register that counts jumps back.
const COUNTER: Reg = Reg::R9;

const ANCILLARY_BYTES: i64 = size_of::<super::Ancillary>() as i64;

/// What is known of a register.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Value {
    /// A number in these bounds; `within`: not above the packet's length.
    Number { min: u64, max: u64, within: bool },
    /// The packet's length.
    Length,
    /// An address in the packet, or just behind its last byte: `exact`ly `low` bytes from
    /// its first, or that much and more.
    Packet { low: u64, exact: bool },
    /// The ancillary words.
    Ancillary,
    /// The end of the stack.
    Stack,
}

const ANY: Value = Value::Number {
    min: 0,
    max: u64::MAX,
    within: false,
};

const fn below(max: u64) -> Value {
    Value::Number {
        min: 0,
        max,
        within: false,
    }
}

/// What counts down from the packet's length.
const WITHIN: Value = Value::Number {
    min: 0,
    max: u64::MAX,
    within: true,
};

const WORD: Value = below(u32::MAX as u64);

impl Value {
    /// What holds of both.
    fn join(self, other: Value) -> Value {
        match (self, other) {
            (a, b) if a == b => a,
            (
                Value::Number { min, max, within },
                Value::Number {
                    min: other_min,
                    max: other_max,
                    within: other_within,
                },
            ) => Value::Number {
                min: min.min(other_min),
                max: max.max(other_max),
                within: within && other_within,
            },
            (Value::Length, Value::Number { within: true, .. })
            | (Value::Number { within: true, .. }, Value::Length) => WITHIN,
            // Two exact ones may lie behind the packet's end.
            (
                Value::Packet { low, exact: false },
                Value::Packet {
                    low: other,
                    exact: false,
                },
            ) => Value::Packet {
                low: low.min(other),
                exact: false,
            },
            _ => ANY,
        }
    }

    /// Whether it is not above the packet's length.
    fn is_within(self) -> bool {
        matches!(self, Value::Length | Value::Number { within: true, .. })
    }

    /// After adding a constant.
    fn add(self, constant: u64) -> Value {
        match self {
            Value::Number { min, max, .. } => {
                match (min.checked_add(constant), max.checked_add(constant)) {
                    (Some(min), Some(max)) => Value::Number {
                        min,
                        max,
                        within: false,
                    },
                    _ => ANY,
                }
            }
            // Inside of the packet only once it is compared: loads look.
            Value::Packet { low, exact: true } => match low.checked_add(constant) {
                Some(low) if low <= u64::from(u32::MAX) => Value::Packet { low, exact: true },
                _ => ANY,
            },
            _ => ANY,
        }
    }
}

/// What is known before an instruction.
#[derive(Clone, Copy, PartialEq, Eq)]
struct State {
    registers: [Value; 11],
    /// The packet has at least that many bytes.
    length: u64,
}

impl State {
    fn at_entry() -> State {
        let mut registers = [ANY; 11];
        registers[1] = Value::Packet {
            low: 0,
            exact: true,
        };
        registers[2] = Value::Length;
        registers[4] = Value::Ancillary;
        registers[10] = Value::Stack;
        State {
            registers,
            length: 0,
        }
    }

    fn get(&self, reg: Reg) -> Value {
        self.registers[reg.index()]
    }

    fn join(&self, other: &State) -> State {
        let mut joined = *self;
        for (value, other) in joined.registers.iter_mut().zip(other.registers) {
            *value = value.join(other);
        }
        joined.length = self.length.min(other.length);
        joined
    }
}

/// Checks a program.
///
/// # Errors
/// The first instruction that the proof does not cover.
pub(super) fn check(insns: &[Insn]) -> Result<(), PacketError> {
    let ops = decode(insns)?;
    let mut proof = Proof {
        before: vec![None; ops.len()],
        loops: loops(&ops)?,
    };
    // The state in which the instruction before leads here.
    let mut here = Some(State::at_entry());
    for (at, op) in ops.iter().enumerate() {
        if proof.loops.iter().any(|&(first, _)| first == at)
            && let Some(state) = here.take()
        {
            proof.flow(at, &state, at)?;
        }
        if let Some(jumped) = proof.before[at].take() {
            here = Some(match here {
                Some(state) => state.join(&jumped),
                None => *jumped,
            });
            if proof.loops.iter().any(|&(first, _)| first == at) {
                // What jumps back is compared with it.
                proof.before[at] = here.map(Box::new);
            }
        }
        if let Some(state) = &mut here
            && !proof.step(at, op, state)?
        {
            here = None;
        }
    }
    match here {
        Some(_) => Err(PacketError {
            at: ops.len().saturating_sub(1),
            why: "the program does not end here",
        }),
        None => Ok(()),
    }
}

fn decode(insns: &[Insn]) -> Result<Vec<Op>, PacketError> {
    let decoded = insns.iter().enumerate().map(|(at, insn)| {
        let why = "not an instruction";
        Op::decode(std::slice::from_ref(insn)).map_err(|_| PacketError { at, why })
    });
    decoded.collect()
}

fn target(at: usize, off: i32) -> usize {
    (at as i64 + 1 + i64::from(off)) as usize
}

/// The loops: first and last instruction of each. Checks that R9 counts their rounds.
fn loops(ops: &[Op]) -> Result<Vec<(usize, usize)>, PacketError> {
    let mut loops = Vec::new();
    for (at, op) in ops.iter().enumerate() {
        let error = |why| Err(PacketError { at, why });
        match *op {
            Op::Jump { off, .. } if off < 0 => {
                let counted = at >= 2
                    && matches!(
                        ops[at - 1],
                        Op::Alu {
                            op: AluOp::Sub,
                            width: Width::W64,
                            dst: COUNTER,
                            src: Operand::Imm(1),
                        }
                    )
                    && matches!(
                        ops[at - 2],
                        Op::JumpIf {
                            cond: Cond::Eq,
                            width: Width::W64,
                            dst: COUNTER,
                            src: Operand::Imm(0),
                            off: 2..,
                        }
                    );
                if !counted {
                    return error("a jump back that is not counted");
                }
                loops.push((target(at, off), at));
            }
            Op::JumpIf { off, .. } if off < 0 => return error("a conditional jump back"),
            _ => {}
        }
    }
    if loops.is_empty() {
        return Ok(loops);
    }
    let inside = |at: usize| {
        loops
            .iter()
            .any(|&(first, last)| (first..=last).contains(&at))
    };
    for (at, op) in ops.iter().enumerate() {
        let error = |why| Err(PacketError { at, why });
        let counts = loops.iter().any(|&(_, last)| last == at + 1);
        let starts = matches!(
            *op,
            Op::Alu {
                op: AluOp::Mov,
                width: Width::W64,
                src: Operand::Reg(Reg::R2),
                ..
            }
        );
        if writes(op) == Some(COUNTER) && !counts && (!starts || inside(at)) {
            return error("the counter of jumps back is changed");
        }
        // Each round passes the test and the subtraction.
        let to = match *op {
            Op::Jump { off, .. } => target(at, off),
            Op::JumpIf { off, .. } => target(at, off.into()),
            _ => continue,
        };
        if loops.iter().any(|&(_, last)| to == last || to + 1 == last) {
            return error("a jump past the count of jumps back");
        }
    }
    Ok(loops)
}

fn writes(op: &Op) -> Option<Reg> {
    match *op {
        Op::Alu { dst, .. } | Op::Neg { dst, .. } | Op::Swap { dst, .. } | Op::Load { dst, .. } => {
            Some(dst)
        }
        _ => None,
    }
}

struct Proof {
    /// Before instructions that jumps lead to.
    before: Vec<Option<Box<State>>>,
    /// First and last instruction of each loop.
    loops: Vec<(usize, usize)>,
}

impl Proof {
    /// A path leads from `at` to `to` in that state.
    fn flow(&mut self, to: usize, state: &State, at: usize) -> Result<(), PacketError> {
        let error = |why| Err(PacketError { at, why });
        let Some(slot) = self.before.get_mut(to) else {
            return error("a way out of the program");
        };
        if to < at {
            // Back in a loop: what was taken for granted there must hold again.
            if !state.get(COUNTER).is_within() {
                return error("a loop whose rounds are not counted from the packet's length");
            }
            return match slot {
                Some(known) if known.join(state) == **known => Ok(()),
                _ => error("a loop that changes what its beginning relies on"),
            };
        }
        let mut state = *state;
        if self.loops.iter().any(|&(first, _)| first == to) {
            // Of what a filter's loop changes, nothing is known at its beginning.
            for reg in [Reg::R0, Reg::R4, Reg::R5, Reg::R7] {
                state.registers[reg.index()] = ANY;
            }
            let counter = &mut state.registers[COUNTER.index()];
            *counter = counter.join(WITHIN);
        }
        match slot {
            Some(known) => **known = known.join(&state),
            None => *slot = Some(Box::new(state)),
        }
        Ok(())
    }

    /// The instruction at a place; whether the next one follows.
    fn step(&mut self, at: usize, op: &Op, state: &mut State) -> Result<bool, PacketError> {
        let error = |why| Err(PacketError { at, why });
        if writes(op) == Some(Reg::R10) {
            return error("R10 is changed");
        }
        match *op {
            Op::Alu {
                op,
                width,
                dst,
                src,
            } => {
                // Where there are loops, R9 is not 0 before it counts.
                let counts = !self.loops.is_empty() && dst == COUNTER && op == AluOp::Sub;
                state.registers[dst.index()] = match state.get(dst).is_within() && counts {
                    true => WITHIN,
                    false => alu(state, op, width, dst, src),
                };
            }
            Op::Neg { dst, .. } | Op::Swap { dst, .. } => state.registers[dst.index()] = ANY,
            Op::Load {
                size,
                dst,
                base,
                off,
                ..
            } => {
                if !readable(state, base, off, size) {
                    return error("a load from outside of the packet, or not known to be inside");
                }
                state.registers[dst.index()] = ANY;
            }
            Op::Store {
                size, base, off, ..
            } => {
                let bytes = i64::from(size.bytes());
                if state.get(base) != Value::Stack || !on_stack(off, bytes) {
                    return error("a store outside of the stack");
                }
            }
            Op::Jump { off, .. } => {
                self.flow(target(at, off), state, at)?;
                return Ok(false);
            }
            Op::JumpIf {
                cond,
                width,
                dst,
                src,
                off,
            } => {
                let mut taken = *state;
                if width == Width::W64 {
                    compare(&mut taken, state, cond, dst, src);
                }
                self.flow(target(at, off.into()), &taken, at)?;
            }
            Op::Exit => return Ok(false),
            _ => return error("an instruction that no filter needs"),
        }
        Ok(true)
    }
}

fn alu(state: &State, op: AluOp, width: Width, dst: Reg, src: Operand) -> Value {
    let wide = width == Width::W64;
    let old = state.get(dst);
    let result = match (op, src) {
        (AluOp::Mov, Operand::Reg(src)) if wide => return state.get(src),
        (AluOp::Mov, Operand::Reg(src)) => match state.get(src) {
            number @ Value::Number { max, .. } if max <= u64::from(u32::MAX) => number,
            _ => WORD,
        },
        (AluOp::Add, Operand::Imm(imm)) if wide => match u64::try_from(imm) {
            Ok(imm) => old.add(imm),
            Err(_) => ANY,
        },
        (AluOp::Add, Operand::Reg(src)) if wide => match (old, state.get(src)) {
            (
                Value::Number {
                    min, within: true, ..
                },
                Value::Packet {
                    low: 0,
                    exact: true,
                },
            )
            | (
                Value::Packet {
                    low: 0,
                    exact: true,
                },
                Value::Number {
                    min, within: true, ..
                },
            ) => Value::Packet {
                low: min,
                exact: false,
            },
            _ => ANY,
        },
        _ => ANY,
    };
    match result {
        Value::Number { max, .. } if !wide && max > u64::from(u32::MAX) => WORD,
        result => result,
    }
}

fn on_stack(off: i16, bytes: i64) -> bool {
    let off = i64::from(off);
    off >= -(STACK_BYTES as i64) && off + bytes <= 0
}

fn readable(state: &State, base: Reg, off: i16, size: Size) -> bool {
    let bytes = i64::from(size.bytes());
    let off = i64::from(off);
    match state.get(base) {
        Value::Packet { low, exact: true } => {
            // `low` is at most 32 bits long.
            let start = low as i64 + off;
            start >= 0 && start + bytes <= i64::try_from(state.length).unwrap_or(i64::MAX)
        }
        // From there to the packet's end there may be nothing.
        Value::Packet { low, exact: false } => {
            off + i64::try_from(low).unwrap_or(i64::MAX / 2) >= 0 && off + bytes <= 0
        }
        Value::Ancillary => off >= 0 && off + bytes <= ANCILLARY_BYTES,
        Value::Stack => on_stack(off as i16, bytes),
        Value::Number { .. } | Value::Length => false,
    }
}

/// What a 64-bit comparison tells where it holds and where it does not.
fn compare(taken: &mut State, fell: &mut State, cond: Cond, dst: Reg, src: Operand) {
    match (fell.get(dst), src) {
        // The length with a constant.
        (Value::Length, Operand::Imm(imm)) => {
            let imm = i64::from(imm) as u64;
            let (state, least) = match cond {
                Cond::Lt => (fell, imm),
                Cond::Le => (fell, imm.saturating_add(1)),
                Cond::Ge => (taken, imm),
                Cond::Gt => (taken, imm.saturating_add(1)),
                _ => return,
            };
            state.length = state.length.max(least);
        }
        // A number with the length, or with something that is not above it.
        (Value::Number { min, max, .. }, Operand::Reg(src)) => {
            let state = match cond {
                _ if !fell.get(src).is_within() => return,
                Cond::Gt | Cond::Ge => fell,
                Cond::Le | Cond::Lt => taken,
                _ => return,
            };
            state.registers[dst.index()] = Value::Number {
                min,
                max,
                within: true,
            };
            state.length = state.length.max(min);
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests;
