//! Calls of helpers that need no call, or not the long way through the run's `Env`: look-ups
//! in a map that is known where the program is compiled, and small questions.
//!
//! What is known of registers and stack slots is followed through each block: the map in R1,
//! the place of the key in R2, the key's value where the program has just stored it.

use std::mem::offset_of;
use std::sync::Arc;

use bpfkit_isa::{AluOp, Call, Imm64, Op, Operand, Reg, Size, Width};
use bpfkit_maps::Map;
use bpfkit_runtime::native::{Slot, State};
use bpfkit_runtime::{FRAME_BYTES, TAIL_CALL};

use super::Plan;
use super::regs::{Mask, writes};
use super::rules::Rule;

const MAP_LOOKUP: i32 = 1;
const KTIME_GET_NS: i32 = 5;
const GET_PRANDOM: i32 = 7;
const GET_PROCESSOR: i32 = 8;
const GET_PID_TGID: i32 = 14;
const GET_UID_GID: i32 = 15;
const GET_NUMA_NODE: i32 = 42;
const GET_CGROUP_ID: i32 = 80;
const JIFFIES: i32 = 118;
const KTIME_GET_BOOT_NS: i32 = 125;
const KTIME_GET_COARSE_NS: i32 = 160;
const KTIME_GET_TAI_NS: i32 = 208;

/// Helpers without arguments that cannot fail.
pub(crate) const ASKED: [i32; 9] = [
    KTIME_GET_NS,
    KTIME_GET_BOOT_NS,
    KTIME_GET_COARSE_NS,
    KTIME_GET_TAI_NS,
    GET_PRANDOM,
    GET_PID_TGID,
    GET_UID_GID,
    GET_CGROUP_ID,
    JIFFIES,
];

/// What a call becomes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Inline {
    /// R0 = a number.
    Constant(u64),
    /// R0 = 32 bits of the run's [`State`] at an offset.
    State(usize),
    /// R0 = the address of an element, or 0.
    Array(Array),
    /// R0 = `function(map, key, cpu)`: a look-up, with the map where it is known.
    Lookup { function: u64, map: Option<u64> },
    /// A tail call through a program array that is known.
    TailCall(TailCall),
    /// R0 = `callout::ask(state, function)`: a helper without arguments that cannot fail.
    Ask(u64),
}

/// A look-up in an array. The key is 32 bits at the address in R2.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Array {
    /// Address of the first element (of the first CPU).
    pub(crate) base: u64,
    /// Bytes from one element to the next.
    pub(crate) stride: u32,
    /// Number of elements.
    pub(crate) len: u32,
    /// Bytes from one CPU's elements to the next one's, and number of CPUs.
    pub(crate) per_cpu: Option<(u32, u32)>,
    /// The element, where it is known.
    pub(crate) key: Option<u32>,
}

/// A tail call that is a jump where the slot holds compiled code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TailCall {
    /// Address of the first slot, 64 bits each.
    pub(crate) slots: u64,
    /// Number of slots.
    pub(crate) len: u32,
    /// The slot, where it is known: it exists.
    pub(crate) index: Option<u32>,
}

impl Inline {
    /// Registers that the call reads.
    pub(crate) fn reads(self) -> Mask {
        match self {
            Inline::Constant(_) | Inline::State(_) | Inline::Ask(_) => 0,
            Inline::Array(Array { key: Some(_), .. }) => 0,
            Inline::Lookup { map: None, .. } => 1 << 1 | 1 << 2,
            Inline::Array(_) | Inline::Lookup { .. } => 1 << 2,
            Inline::TailCall(_) => 1 << 1 | 1 << 2 | 1 << 3,
        }
    }

    /// Whether a function in Rust is called.
    pub(crate) fn calls(self) -> bool {
        matches!(
            self,
            Inline::Lookup { .. } | Inline::Ask(_) | Inline::TailCall(_)
        )
    }

    /// Whether the code needs the run's state.
    pub(crate) fn needs_state(self) -> bool {
        match self {
            Inline::State(_) | Inline::Ask(_) => true,
            Inline::Lookup { .. } | Inline::TailCall(_) => true,
            Inline::Array(array) => array.per_cpu.is_some(),
            Inline::Constant(_) => false,
        }
    }
}

/// What is known of a register.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Value {
    Unknown,
    /// Map of the object's list.
    Map(u32),
    /// R10 plus a number.
    Frame(i32),
    /// Lower 32 bits.
    Number(u32),
}

/// What is known on the way through a block.
struct Known {
    regs: [Value; 11],
    /// Stack slots of 32 bits with the numbers in them: offset from R10, value.
    stack: Vec<(i32, u32)>,
}

impl Known {
    fn new() -> Self {
        let mut known = Self {
            regs: [Value::Unknown; 11],
            stack: Vec::new(),
        };
        known.forget();
        known
    }

    fn forget(&mut self) {
        self.regs = [Value::Unknown; 11];
        self.regs[Reg::R10.index()] = Value::Frame(0);
        self.stack.clear();
    }

    fn operand(&self, src: Operand) -> Value {
        match src {
            Operand::Reg(reg) => self.regs[reg.index()],
            Operand::Imm(imm) => Value::Number(imm as u32),
        }
    }

    /// Writes to the stack at a known place, or to any place.
    fn stored(&mut self, base: Reg, off: i16, size: Size, value: Value) {
        let Value::Frame(at) = self.regs[base.index()] else {
            // It may be the stack all the same.
            return self.stack.clear();
        };
        let (start, bytes) = (at.saturating_add(off.into()), size.bytes() as i32);
        self.stack
            .retain(|(slot, _)| slot.saturating_add(4) <= start || start + bytes <= *slot);
        if let (Value::Number(number), Size::W | Size::DW) = (value, size) {
            self.stack.push((start, number));
        }
    }

    fn step(&mut self, op: &Op) {
        let value = match *op {
            Op::Alu {
                op: AluOp::Mov,
                width,
                src,
                ..
            } => match (width, self.operand(src)) {
                (Width::W64, value) | (_, value @ Value::Number(_)) => value,
                _ => Value::Unknown,
            },
            Op::Alu {
                op: AluOp::Add,
                width: Width::W64,
                dst,
                src: Operand::Imm(imm),
            } => match self.regs[dst.index()] {
                Value::Frame(at) => at.checked_add(imm).map_or(Value::Unknown, Value::Frame),
                _ => Value::Unknown,
            },
            Op::LoadImm64 { value, .. } => match value {
                Imm64::MapIdx(index) => Value::Map(index as u32),
                Imm64::Value(value) => Value::Number(value as u32),
                _ => Value::Unknown,
            },
            Op::Store {
                size,
                base,
                off,
                src,
            } => {
                let value = self.operand(src);
                return self.stored(base, off, size, value);
            }
            Op::StoreRelease {
                size, base, off, ..
            }
            | Op::Atomic {
                size, base, off, ..
            } => {
                self.stored(base, off, size, Value::Unknown);
                Value::Unknown
            }
            Op::Call(_) | Op::CallReg(_) | Op::LoadPacket { .. } => {
                self.regs[..6].fill(Value::Unknown);
                return self.stack.clear();
            }
            _ => Value::Unknown,
        };
        let mut written = writes(op);
        while written != 0 {
            self.regs[written.trailing_zeros() as usize] = value;
            written &= written - 1;
        }
    }
}

impl Plan<'_> {
    /// Finds the calls that need none, in the order of their slots.
    pub(super) fn find_inline(&self) -> Vec<(u32, Inline)> {
        let mut found = Vec::new();
        let mut known = Known::new();
        let mut in_main = true;
        let has_budget = self
            .slots()
            .iter()
            .any(|slot| matches!(slot, Slot::Op(Op::MayGoto { .. })));
        for (slot, op) in self.slots().iter().enumerate() {
            if self.is_target(slot) {
                known.forget();
                in_main &= slot == 0 || !self.is_function(slot);
            }
            let Slot::Op(op) = op else { continue };
            let mut inline = None;
            if let Op::Call(Call::Helper(id)) = *op {
                inline = match id {
                    // Nothing but the return address lies on the stack then. Elsewhere the
                    // caller must be returned to, which takes the long way.
                    TAIL_CALL if in_main && !has_budget => self.tail_call(&known),
                    TAIL_CALL => None,
                    _ => self.inline(id, &known),
                };
                found.extend(inline.map(|inline| (slot as u32, inline)));
            }
            match inline {
                Some(Inline::TailCall(_)) => known.step(op),
                // These leave everything else as it is.
                Some(_) => known.regs[0] = Value::Unknown,
                None => known.step(op),
            }
        }
        found
    }

    fn inline(&self, id: i32, known: &Known) -> Option<Inline> {
        if id == MAP_LOOKUP {
            return self.lookup(known);
        }
        if !self.rules.has(Rule::InlineHelper) {
            return None;
        }
        match id {
            GET_PROCESSOR => Some(Inline::State(offset_of!(State, cpu))),
            GET_NUMA_NODE => Some(Inline::Constant(0)),
            id if ASKED.contains(&id) => {
                let function = self.resolver.helper(id).ok()?;
                Some(Inline::Ask(function as usize as u64))
            }
            _ => None,
        }
    }

    /// A tail call of verified code from the main function.
    fn tail_call(&self, known: &Known) -> Option<Inline> {
        if self.checked || self.main_is_called || !self.rules.has(Rule::DirectTailCall) {
            return None;
        }
        let Value::Map(map) = known.regs[2] else {
            return None;
        };
        let array = self.maps.get(map)?.as_prog_array()?;
        let len = array.entries();
        let index = match known.regs[3] {
            Value::Number(index) if index < len => Some(index),
            Value::Number(_) => return None,
            _ => None,
        };
        // Comparisons take a signed number.
        (len <= i32::MAX as u32).then(|| {
            Inline::TailCall(TailCall {
                slots: array.slots(),
                len,
                index,
            })
        })
    }

    fn lookup(&self, known: &Known) -> Option<Inline> {
        let direct = self.rules.has(Rule::DirectLookup);
        let Value::Map(index) = known.regs[1] else {
            // An inner map, or one of several. Only verified code surely has a map there.
            let function = (bpfkit_maps::lookup_any as *const ()).addr() as u64;
            return (direct && !self.checked).then_some(Inline::Lookup {
                function,
                map: None,
            });
        };
        let map = self.maps.get(index)?;
        let key = self.key(known, map)?;
        if self.rules.has(Rule::InlineLookup)
            && let Some(array) = array(map, key)
        {
            return Some(match array {
                Array {
                    key: Some(key),
                    len,
                    ..
                } if key >= len => Inline::Constant(0),
                Array {
                    key: Some(key),
                    per_cpu: None,
                    ..
                } => Inline::Constant(array.base + u64::from(key) * u64::from(array.stride)),
                _ => Inline::Array(array),
            });
        }
        if !direct {
            return None;
        }
        // A run keeps inner maps for checked code, which must know them again.
        let inner = || map.inner_fn().filter(|_| !self.checked);
        let function = map.lookup_fn().or_else(inner)?;
        let map = Arc::as_ptr(map).expose_provenance() as u64;
        Some(Inline::Lookup {
            function: (function as *const ()).addr() as u64,
            map: Some(map),
        })
    }

    /// The key's value, where it is known; `None` if nobody has looked whether the key may
    /// be read.
    fn key(&self, known: &Known, map: &Map) -> Option<Option<u32>> {
        let Value::Frame(at) = known.regs[2] else {
            return (!self.checked).then_some(None);
        };
        let bytes = i64::try_from(map.key_size()).ok()?;
        let inside = i64::from(at) >= -(FRAME_BYTES as i64) && i64::from(at) + bytes <= 0;
        if self.checked && !inside {
            return None;
        }
        let stored = known.stack.iter().find(|(slot, _)| *slot == at);
        Some(stored.map(|(_, value)| *value))
    }

    /// What the call at a slot becomes, if no ordinary one.
    pub(crate) fn inline_at(&self, slot: usize) -> Option<Inline> {
        let at = self
            .inline
            .binary_search_by_key(&slot, |(s, _)| *s as usize);
        at.ok().map(|at| self.inline[at].1)
    }
}

fn array(map: &Map, key: Option<u32>) -> Option<Array> {
    let stride = |bytes: usize| i32::try_from(bytes).ok().map(|bytes| bytes as u32);
    if let Some(array) = map.as_array() {
        return Some(Array {
            base: array.base().as_ptr().expose_provenance() as u64,
            stride: stride(array.stride())?,
            len: array.entries(),
            per_cpu: None,
            key,
        });
    }
    let array = map.as_percpu_array()?;
    Some(Array {
        base: array.base().as_ptr().expose_provenance() as u64,
        stride: stride(array.stride())?,
        len: array.entries(),
        per_cpu: Some((stride(array.cpu_stride())?, map.params().cpus)),
        key,
    })
}
