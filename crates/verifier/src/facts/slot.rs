//! What stack slots hold.

use rustc_hash::FxHashMap;

use super::Value;
use super::pointer::Pointer;
use crate::frame::{Byte, Frame, Slot};
use crate::reg::Base;

/// What the eight bytes of a stack slot hold.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SlotValue {
    /// What the first [`width`](Self::width) bytes hold, least significant byte first. A
    /// number is stored by its low bytes: its range may be wider than they are.
    pub spilled: Value,
    /// 1, 2, 4 or 8; 0 where nothing is known to be spilled.
    pub width: u8,
    /// Bit n says that the byte n from the slot's lowest address is zero.
    pub zeros: u8,
}

impl SlotValue {
    /// Any bytes.
    pub const UNKNOWN: SlotValue = SlotValue {
        spilled: Value::Unknown,
        width: 0,
        zeros: 0,
    };

    /// A whole register.
    pub(super) fn whole(value: Value) -> SlotValue {
        SlotValue {
            spilled: value,
            width: 8,
            zeros: 0,
        }
        .tidy()
    }

    /// What the verifier knows of a slot in frame `frame`.
    fn of(slot: &Slot, frame: usize) -> SlotValue {
        let kinds = slot.bytes.iter().rev();
        let width = kinds.take_while(|kind| **kind == Byte::Spill).count();
        let zeros = (0..8).filter(|at| slot.bytes[7 - at] == Byte::Zero);
        let spilled = match slot.reg.ty.base() {
            _ if !matches!(width, 1 | 2 | 4 | 8) => Value::Unknown,
            Base::Scalar => Value::Number(slot.reg.range),
            _ => Pointer::of(&slot.reg, frame).map_or(Value::Unknown, Value::Pointer),
        };
        SlotValue {
            spilled,
            width: width as u8,
            zeros: zeros.fold(0, |all, at| all | 1 << at),
        }
        .tidy()
    }

    /// Says the same in one way only.
    fn tidy(mut self) -> SlotValue {
        if let Value::Number(range) = self.spilled
            && range.constant() == Some(0)
        {
            self.zeros |= ((1u32 << self.width) - 1) as u8;
        }
        if self.spilled == Value::Unknown {
            self.width = 0;
        }
        self
    }

    /// What holds for either.
    fn join(&self, other: &SlotValue) -> SlotValue {
        let spilled = match self.width == other.width {
            true => self.spilled.join(&other.spilled),
            false => Value::Unknown,
        };
        SlotValue {
            spilled,
            width: self.width,
            zeros: self.zeros & other.zeros,
        }
        .tidy()
    }
}

/// Slots by number, from `fp - 8` downwards.
pub(super) type Slots = Vec<(u8, SlotValue)>;

/// What the slots of the frames held that came to each instruction.
#[derive(Debug, Default)]
pub(super) struct SeenSlots(FxHashMap<u32, Slots>);

impl SeenSlots {
    /// An instruction is about to be walked.
    pub fn before(&mut self, insn: u32, frame: &Frame) {
        let now = |at: usize| SlotValue::of(&frame.stack[at], frame.frameno.into());
        match self.0.get_mut(&insn) {
            Some(known) => known.retain_mut(|(at, value)| {
                *value = value.join(&now((*at).into()));
                *value != SlotValue::UNKNOWN
            }),
            None => {
                let written = frame.stack.written().map(|(at, _)| (at as u8, now(at)));
                let known = written.filter(|(_, value)| *value != SlotValue::UNKNOWN);
                self.0.insert(insn, known.collect());
            }
        }
    }

    /// Adds to what is known before an instruction.
    pub fn sharpen(&self, insn: u32, slots: &mut Slots) {
        for &(at, value) in self.0.get(&insn).into_iter().flatten() {
            match slots.iter_mut().find(|(known, _)| *known == at) {
                Some((_, known)) => *known = value,
                None => slots.push((at, value)),
            }
        }
    }
}

/// Slots by instruction; those that follow each other mostly have the same.
#[derive(Clone, Debug, Default)]
pub(super) struct SlotTable {
    /// Per instruction: index in `table`.
    rows: Vec<u32>,
    table: Vec<Slots>,
}

impl SlotTable {
    /// Of a program of `len` slots.
    pub fn new(len: usize) -> SlotTable {
        SlotTable {
            rows: vec![0; len],
            table: vec![Slots::new()],
        }
    }

    /// Sets what is known before an instruction.
    pub fn set(&mut self, insn: u32, slots: Slots) {
        let Some(row) = self.rows.get_mut(insn as usize) else {
            return;
        };
        let same = [self.table.len() - 1, 0]
            .into_iter()
            .find(|&at| self.table[at] == slots);
        *row = same.unwrap_or(self.table.len()) as u32;
        if same.is_none() {
            self.table.push(slots);
        }
    }

    /// What is known of a slot before an instruction.
    pub fn get(&self, insn: u32, slot: u8) -> SlotValue {
        let row = self.rows.get(insn as usize);
        let slots = row.and_then(|&at| self.table.get(at as usize));
        let found = slots.and_then(|slots| slots.iter().find(|(at, _)| *at == slot));
        found.map_or(SlotValue::UNKNOWN, |(_, value)| *value)
    }
}
