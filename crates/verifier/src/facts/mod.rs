//! What verification learned, to be asked by instruction.

mod gather;
mod pointer;
mod slot;
mod values;

pub(crate) use gather::Gatherer;
pub use pointer::{Home, Pointer};
pub use slot::SlotValue;

use rustc_hash::FxHashMap;

use crate::checker::Checker;
use crate::range::Range;
use crate::rewrite::{Rewritten, TooFar};

/// Number of registers that are asked for: R0 to R10.
const REGS: usize = 11;

/// What verification learned that engines, optimizers and tools may use.
///
/// Everything is asked by instruction slot (the first of two for `ld_imm64`) and register
/// number, and holds on *every* run that reaches the instruction, joined over all paths; a
/// register's value is that *before* the instruction. Slots and registers that do not exist,
/// and instructions that no path reaches, answer as unknown.
///
/// Reachability, stack depths and live registers are always there. The others are there if
/// [`Environment::facts`](crate::Environment::facts) asked for them, else they answer unknown:
///
/// ```
/// # use bpfkit_verifier::{Branch, Facts, Value};
/// # fn use_facts(facts: &Facts, insn: u32) {
/// if let Value::Pointer(pointer) = facts.value(insn, 1) {
///     // R1 points into what `pointer.ty` says, `pointer.offset()` bytes from its start.
/// }
/// let zero_extended = facts.upper_half_zero(insn, 2);
/// let dead_code_follows = facts.branch(insn) == Branch::Always;
/// let spilled = facts.slot(insn, 0).spilled; // at fp-8
/// let map = facts.call(insn).and_then(|call| call.map);
/// # }
/// ```
///
/// Numbers come from an analysis of their own over the joined program, not from the verifier's
/// states: a state may stand for others whose numbers differ where that did not matter for
/// safety. Types and offsets of pointers, known keys and decided branches always matter for
/// safety, so these are what the verifier saw.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    pub(crate) reachable: Vec<bool>,
    pub(crate) stack_depth: Vec<u32>,
    pub(crate) live_registers: Vec<u16>,
    kernel_objects: bool,
    unsound: bool,
    values: Option<Box<Known>>,
}

/// What is there on request only.
#[derive(Clone, Debug)]
struct Known {
    /// Per instruction and register: index in `table`, 0 for unknown.
    rows: Vec<[u32; REGS]>,
    table: Vec<Value>,
    branches: Vec<Branch>,
    calls: FxHashMap<u32, CallFact>,
    live_slots: Vec<u64>,
    slots: slot::SlotTable,
}

/// What a register holds.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Value {
    /// Anything, pointers included.
    Unknown,
    /// A number, or bits of whatever origin, within that range.
    Number(Range),
    /// A pointer; not null unless its type says that it may be, or that it is not trusted.
    Pointer(Pointer),
}

/// Which ways a conditional jump goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Branch {
    /// It is no conditional jump, is not reached, or may go both ways.
    Unknown,
    /// It always jumps.
    Always,
    /// It never jumps.
    Never,
}

/// What is known of a call on all paths.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CallFact {
    /// Index of the map that it works on, in the object's list of maps (and after these the
    /// templates of maps in maps); `None` if there is none or paths differ.
    pub map: Option<u32>,
    /// Whether the map is that very one, not one found in a map of maps.
    pub exact_map: bool,
    /// The key as a number (little-endian, as wide as the map's keys), if it is constant.
    pub key: Option<u64>,
    /// Subprogram that it gets as callback, if it is the same on all paths.
    pub callback: Option<u32>,
}

impl Facts {
    /// Number of instruction slots.
    pub fn len(&self) -> usize {
        self.reachable.len()
    }

    /// Whether there are no instructions.
    pub fn is_empty(&self) -> bool {
        self.reachable.is_empty()
    }

    /// Whether any path reaches an instruction.
    pub fn reachable(&self, insn: u32) -> bool {
        self.reachable.get(insn as usize).copied().unwrap_or(false)
    }

    /// Bytes of stack that each subprogram uses.
    pub fn stack_depths(&self) -> &[u32] {
        &self.stack_depth
    }

    /// Bit n says that register n may be read at the instruction or later.
    pub fn live_registers(&self, insn: u32) -> u16 {
        self.live_registers
            .get(insn as usize)
            .copied()
            .unwrap_or(0x7ff)
    }

    /// Whether the program was accepted on what the kernel guarantees about objects with a BTF
    /// type: it gets them from its context or from fields of map values that nobody else can
    /// write, or loads through pointers that may not be valid, where the kernel catches the
    /// fault. Outside of the kernel, such a program must run with its accesses checked.
    pub const fn needs_kernel_objects(&self) -> bool {
        self.kernel_objects
    }

    /// Whether Linux 6.18 accepts the program on a conclusion that need not hold, and so do we:
    /// a number that was spilled is loaded with its sign extended, and Linux goes on taking both
    /// for the same. What is known of numbers and branches may then be wrong. Such a program must
    /// run with its accesses checked.
    pub const fn is_unsound(&self) -> bool {
        self.unsound
    }

    /// Whether values, branches, calls and live slots were asked for.
    pub const fn has_values(&self) -> bool {
        self.values.is_some()
    }

    /// What a register holds before an instruction.
    pub fn value(&self, insn: u32, reg: u8) -> Value {
        let known = self.values.as_deref().and_then(|known| {
            let at = *known.rows.get(insn as usize)?.get(reg as usize)?;
            known.table.get(at as usize).copied()
        });
        known.unwrap_or(Value::Unknown)
    }

    /// The number that a register holds before an instruction, if there is just one.
    pub fn constant(&self, insn: u32, reg: u8) -> Option<u64> {
        match self.value(insn, reg) {
            Value::Number(range) => range.constant(),
            _ => None,
        }
    }

    /// Whether the upper 32 bits of a register are known to be zero before an instruction.
    pub fn upper_half_zero(&self, insn: u32, reg: u8) -> bool {
        matches!(self.value(insn, reg), Value::Number(r) if r.umax <= u64::from(u32::MAX))
    }

    /// Which ways the conditional jump at an instruction goes.
    pub fn branch(&self, insn: u32) -> Branch {
        let known = self.values.as_deref();
        known
            .and_then(|k| k.branches.get(insn as usize).copied())
            .unwrap_or(Branch::Unknown)
    }

    /// What is known of the call of a helper or kernel function at an instruction.
    pub fn call(&self, insn: u32) -> Option<&CallFact> {
        self.values.as_deref()?.calls.get(&insn)
    }

    /// Bit n says that the eight bytes at `fp - 8 * (n + 1)` of the current function's frame
    /// may be read at the instruction or later.
    pub fn live_slots(&self, insn: u32) -> u64 {
        let known = self.values.as_deref();
        known
            .and_then(|k| k.live_slots.get(insn as usize).copied())
            .unwrap_or(u64::MAX)
    }

    /// What the eight bytes at `fp - 8 * (slot + 1)` of the current function's frame hold
    /// before an instruction, if they may be read there or later.
    pub fn slot(&self, insn: u32, slot: u8) -> SlotValue {
        let known = self.values.as_deref();
        known.map_or(SlotValue::UNKNOWN, |k| k.slots.get(insn, slot))
    }
}

impl Checker<'_> {
    /// What Linux makes of the program, if that is asked for.
    pub fn rewritten(&self) -> Option<Result<Box<Rewritten>, TooFar>> {
        let gatherer = self.gatherer.as_ref().filter(|_| self.env.rewrite)?;
        Some(self.rewrite(gatherer).map(Box::new))
    }

    /// What was learned, once the program is accepted.
    pub fn learned(&mut self) -> Facts {
        let reachable: Vec<bool> = self.aux.iter().map(|a| a.seen).collect();
        let values = self.gatherer.take().filter(|_| self.env.facts);
        let values = values.map(|gathered| {
            let live_slots = self.live.own_slots(reachable.len());
            let (rows, table, slots) = values::find(self, &gathered, &live_slots);
            Box::new(Known {
                rows,
                table,
                branches: gathered.branches(),
                calls: gathered.calls,
                live_slots,
                slots,
            })
        });
        Facts {
            reachable,
            stack_depth: self.subs.iter().map(|s| s.stack_depth).collect(),
            live_registers: self.aux.iter().map(|a| a.live).collect(),
            kernel_objects: self.kernel_objects,
            unsound: self.unsound,
            values,
        }
    }
}
