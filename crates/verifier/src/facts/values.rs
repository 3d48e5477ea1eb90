//! Numbers and pointers in registers, by data flow over the joined program.
//!
//! A state that the verifier kept may stand for later ones whose numbers differ where that did
//! not matter, so its numbers are no facts. Here every instruction has one state, the join over
//! all ways to it; what the verifier saw adds the types of pointers and the ways that
//! conditional jumps never go, both of which every state agrees on.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use bpfkit_isa::{Insn, code};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::gather::{Gatherer, Seen};
use super::pointer::Pointer;
use super::slot::{SlotTable, SlotValue, Slots};
use super::{REGS, Value};
use crate::arith::{self, Compare};
use crate::checker::{Checker, is_call, is_helper_call};
use crate::flow::jump_distance;
use crate::mem::access_size;
use crate::range::Range;
use crate::reg::Base;

/// Joins of an instruction's state after which bounds go to the next of [`STEPS`].
const PATIENCE: u8 = 4;
/// Joins after which what still changes is forgotten.
const LIMIT: u8 = 24;
/// Bounds that a growing bound stops at.
const STEPS: [u64; 5] = [
    0xff,
    0xffff,
    i32::MAX as u64,
    u32::MAX as u64,
    i64::MAX as u64,
];
/// Helpers that read what their arguments point to, and write nothing of it.
const READERS: [i32; 3] = [
    crate::args::func::MAP_LOOKUP_ELEM,
    crate::args::func::MAP_UPDATE_ELEM,
    crate::args::func::MAP_DELETE_ELEM,
];

/// What registers and spilled registers hold before an instruction.
#[derive(Clone, PartialEq)]
struct Values {
    regs: [Value; REGS],
    /// Whole slots of the current frame, by offset from the frame pointer, sorted.
    slots: SmallVec<[(i16, Value); 4]>,
}

impl Value {
    pub(super) fn join(&self, other: &Value) -> Value {
        match (self, other) {
            (Value::Number(a), Value::Number(b)) => Value::Number(a.join(b)),
            (Value::Pointer(a), Value::Pointer(b)) => {
                a.join(b).map_or(Value::Unknown, Value::Pointer)
            }
            _ => Value::Unknown,
        }
    }

    /// Its range; any number for what is none.
    fn range(&self) -> Range {
        match self {
            Value::Number(range) => *range,
            _ => Range::UNKNOWN,
        }
    }

    /// Whether it may be a pointer into a stack.
    fn may_be_stack(&self) -> bool {
        match self {
            Value::Unknown => true,
            Value::Pointer(pointer) => pointer.is_stack(),
            Value::Number(_) => false,
        }
    }
}

impl Values {
    fn entry() -> Values {
        let mut regs = [Value::Unknown; REGS];
        regs[10] = Value::Pointer(Pointer::FRAME);
        Values {
            regs,
            slots: SmallVec::new(),
        }
    }

    /// Takes another way here into account; `visits` is how often that changed something.
    /// Whether it changes something.
    fn absorb(&mut self, other: &Values, visits: u8) -> bool {
        let mut changed = false;
        let mut merge = |mine: &mut Value, theirs: &Value| {
            let joined = match mine.join(theirs) {
                joined if joined == *mine => return,
                Value::Number(_) if visits > LIMIT => Value::Unknown,
                Value::Number(range) if visits > PATIENCE => {
                    Value::Number(widened(&mine.range(), range))
                }
                Value::Pointer(pointer) if visits > PATIENCE => Value::Pointer(pointer.unbounded()),
                joined => joined,
            };
            changed |= joined != *mine;
            *mine = joined;
        };
        for (mine, theirs) in self.regs.iter_mut().zip(&other.regs) {
            merge(mine, theirs);
        }
        self.slots.retain(|(off, value)| {
            let theirs = other.slot(*off as i64);
            merge(value, &theirs);
            *value != Value::Unknown
        });
        changed
    }

    fn slot(&self, off: i64) -> Value {
        let found = self.slots.iter().find(|s| i64::from(s.0) == off);
        found.map_or(Value::Unknown, |s| s.1)
    }

    /// The slots of a mask by number, after `sharpen` added to them.
    fn live_slots(&self, mask: u64, sharpen: impl FnOnce(&mut Slots)) -> Slots {
        let number = |off: i16| u8::try_from(-i32::from(off) / 8 - 1).ok();
        let slots = self.slots.iter().rev();
        let mut slots: Slots = slots
            .filter_map(|(off, value)| Some((number(*off)?, SlotValue::whole(*value))))
            .collect();
        sharpen(&mut slots);
        slots.retain(|(at, value)| {
            *value != SlotValue::UNKNOWN && mask.checked_shr((*at).into()).unwrap_or(0) & 1 != 0
        });
        slots
    }

    fn set(&mut self, reg: u8, value: Value) {
        if let Some(r) = self.regs.get_mut(reg as usize).filter(|_| reg != 10) {
            *r = value;
        }
    }

    fn reg(&self, n: u8) -> Value {
        self.regs.get(n as usize).copied().unwrap_or(Value::Unknown)
    }

    /// A store of `size` bytes through a register.
    fn store(&mut self, base: u8, off: i16, size: i64, value: Value) {
        let Value::Pointer(pointer) = self.reg(base) else {
            if self.reg(base) == Value::Unknown {
                self.slots.clear();
            }
            return;
        };
        if !pointer.is_stack() || pointer.home() == super::Home::Caller {
            return;
        }
        let Some(at) = pointer.own_slot().map(|at| at + i64::from(off)) else {
            self.slots.clear();
            return;
        };
        self.slots.retain(|(slot, _)| {
            let slot = i64::from(*slot);
            slot + 8 <= at || at + size <= slot
        });
        if size == 8 && at % 8 == 0 && value != Value::Unknown {
            let place = self.slots.partition_point(|s| i64::from(s.0) < at);
            if let Ok(at) = i16::try_from(at) {
                self.slots.insert(place, (at, value));
            }
        }
    }
}

impl Range {
    fn up_to(max: u64) -> Range {
        let mut range = Range {
            umax: max,
            ..Range::UNKNOWN
        };
        range.sync();
        range
    }
}

/// A range that grew, so far that it does not grow often.
fn widened(before: &Range, now: Range) -> Range {
    let mut wide = Range::UNKNOWN;
    if now.umin == before.umin {
        wide.umin = now.umin;
    }
    wide.umax = STEPS
        .into_iter()
        .find(|&step| now.umax <= step)
        .unwrap_or(u64::MAX);
    if now.smin == before.smin || now.smin >= 0 {
        wide.smin = now.smin.min(0);
    } else if now.smin >= i64::from(i32::MIN) {
        wide.smin = i64::from(i32::MIN);
    }
    let smax = STEPS.into_iter().find(|&step| now.smax <= step as i64);
    wide.smax = smax.unwrap_or(i64::MAX as u64) as i64;
    wide.bits = now.bits;
    wide.sync();
    // `sync` may make bits of bounds; growing must not shrink anything.
    wide.join(&now)
}

/// The analysis of one program.
struct Analysis<'a, 'c> {
    checker: &'a Checker<'c>,
    gathered: &'a Gatherer,
    /// State before each instruction that begins a block.
    blocks: FxHashMap<u32, (Values, u8)>,
    starts_block: Vec<bool>,
    /// Blocks to follow; first the one that comes first in the program.
    queue: BinaryHeap<Reverse<u32>>,
    queued: Vec<bool>,
    /// Of each subprogram: R0 where it returns, and the calls that wait for it.
    results: Vec<Option<Value>>,
    callers: Vec<Vec<u32>>,
}

/// What each register holds before each instruction, as indices in a list of values, and what
/// each of the slots that are live there does.
pub(super) fn find(
    checker: &Checker<'_>,
    gathered: &Gatherer,
    live_slots: &[u64],
) -> (Vec<[u32; REGS]>, Vec<Value>, SlotTable) {
    let mut analysis = Analysis::new(checker, gathered);
    analysis.run();
    analysis.rows(live_slots)
}

impl<'a, 'c> Analysis<'a, 'c> {
    fn new(checker: &'a Checker<'c>, gathered: &'a Gatherer) -> Analysis<'a, 'c> {
        let len = checker.insns.len();
        let mut starts_block = vec![false; len];
        for sub in &checker.subs {
            starts_block[sub.start as usize] = true;
        }
        for at in 0..len as u32 {
            let insn = &checker.insns[at as usize];
            let next = checker.flow.successors(at);
            if insn.class() == code::JMP || insn.class() == code::JMP32 {
                for &to in next {
                    starts_block[to as usize] = true;
                }
            }
        }
        let mut analysis = Analysis {
            checker,
            gathered,
            blocks: FxHashMap::default(),
            starts_block,
            queue: BinaryHeap::new(),
            queued: vec![false; len],
            results: vec![None; checker.subs.len()],
            callers: vec![Vec::new(); checker.subs.len()],
        };
        for (at, sub) in checker.subs.iter().enumerate() {
            if at == 0 || sub.global || sub.is_callback || sub.is_exception_callback {
                analysis.arrive(sub.start, &Values::entry());
            }
        }
        analysis
    }

    fn run(&mut self) {
        while let Some(Reverse(at)) = self.queue.pop() {
            self.queued[at as usize] = false;
            if let Some((values, _)) = self.blocks.get(&at) {
                let values = values.clone();
                self.block(at, values, |_, _| {});
            }
        }
    }

    /// A way leads to the block that begins at an instruction.
    fn arrive(&mut self, at: u32, values: &Values) {
        let changed = match self.blocks.get_mut(&at) {
            None => {
                self.blocks.insert(at, (values.clone(), 0));
                true
            }
            Some((known, visits)) => {
                let changed = known.absorb(values, *visits);
                *visits = visits.saturating_add(u8::from(changed));
                changed
            }
        };
        if changed {
            self.enqueue(at);
        }
    }

    fn enqueue(&mut self, at: u32) {
        if !self.queued[at as usize] {
            self.queued[at as usize] = true;
            self.queue.push(Reverse(at));
        }
    }

    /// Follows a block from its beginning; `each` sees what holds before each instruction.
    fn block(&mut self, start: u32, mut values: Values, mut each: impl FnMut(u32, &Values)) {
        let mut at = start;
        loop {
            if !self.checker.aux[at as usize].seen {
                return;
            }
            self.sharpen(at, &mut values);
            each(at, &values);
            let insn = self.checker.insns[at as usize];
            if matches!(insn.class(), code::JMP | code::JMP32) {
                return self.jump(at, &insn, values);
            }
            self.step(at, &insn, &mut values);
            at += if insn.is_ld_imm64() { 2 } else { 1 };
            if at as usize >= self.checker.insns.len() {
                return;
            }
            if self.starts_block[at as usize] {
                return self.arrive(at, &values);
            }
        }
    }

    /// Adds what the verifier saw in the registers that an instruction reads.
    fn sharpen(&self, at: u32, values: &mut Values) {
        for (reg, seen) in self.gathered.found(at) {
            let Some(value) = values.regs.get_mut(reg as usize) else {
                continue;
            };
            match (seen, &value) {
                (Seen::Pointer(pointer), _) if reg != 10 => *value = Value::Pointer(pointer),
                (Seen::Number(range), Value::Number(known)) if known.contains(&range) => {
                    *value = Value::Number(range);
                }
                (Seen::Number(range), Value::Unknown) => *value = Value::Number(range),
                _ => {}
            }
        }
    }

    fn step(&self, at: u32, insn: &Insn, values: &mut Values) {
        match insn.class() {
            code::ALU | code::ALU64 => {
                let result = alu(insn, values);
                values.set(insn.dst, result);
            }
            code::LDX => {
                let result = self.load(insn, values);
                values.set(insn.dst, result);
            }
            code::ST => {
                let value = Value::Number(Range::known(insn.imm as i64 as u64));
                values.store(insn.dst, insn.off, access_size(insn.code).into(), value);
            }
            code::STX => self.store_or_atomic(insn, values),
            code::LD if insn.is_ld_imm64() => {
                let constant = self.imm64(at, insn);
                values.set(insn.dst, constant);
            }
            _ => {
                // A load from the packet.
                clobber(values);
                let max = (1u64 << (8 * access_size(insn.code) as u32).min(32)) - 1;
                values.set(0, Value::Number(Range::up_to(max)));
            }
        }
    }

    /// What a load of a constant gives; addresses are looked up where they are used.
    fn imm64(&self, at: u32, insn: &Insn) -> Value {
        let high = self.checker.insns.get(at as usize + 1);
        match (insn.src, high) {
            (0, Some(high)) => {
                let value = u64::from(insn.imm as u32) | u64::from(high.imm as u32) << 32;
                Value::Number(Range::known(value))
            }
            _ => Value::Unknown,
        }
    }

    fn load(&self, insn: &Insn, values: &Values) -> Value {
        let size = access_size(insn.code);
        let signed = insn.code & 0xe0 == code::MEMSX;
        let base = values.reg(insn.src);
        if let Value::Pointer(pointer) = base {
            if let (Some(at), 8) = (pointer.own_slot(), size) {
                return values.slot(at + i64::from(insn.off));
            }
            if let Some(value) = self.constant(&pointer, insn.off, size, signed) {
                return Value::Number(Range::known(value));
            }
        }
        sized(size, signed)
    }

    /// What a load reads from a map whose contents never change.
    fn constant(&self, pointer: &Pointer, off: i16, size: i32, signed: bool) -> Option<u64> {
        let map = pointer
            .map()
            .filter(|_| pointer.ty.base() == Base::MapValue)?;
        let (low, high) = pointer.offset()?;
        if low != high {
            return None;
        }
        let at = usize::try_from(low + i64::from(off)).ok()?;
        let map = self.checker.maps.get(map as usize)?;
        map.constant(at, size as usize, signed)
    }

    fn store_or_atomic(&self, insn: &Insn, values: &mut Values) {
        let size = access_size(insn.code);
        if insn.code & 0xe0 == code::MEM {
            return values.store(insn.dst, insn.off, size.into(), values.reg(insn.src));
        }
        match insn.imm {
            code::LOAD_ACQ => return values.set(insn.dst, sized(size, false)),
            code::CMPXCHG => values.set(0, sized(size, false)),
            imm if imm & code::FETCH != 0 => values.set(insn.src, sized(size, false)),
            _ => {}
        }
        values.store(insn.dst, insn.off, size.into(), Value::Unknown);
    }

    fn jump(&mut self, at: u32, insn: &Insn, values: Values) {
        match insn.code & 0xf0 {
            code::JA => {
                let to = (i64::from(at) + 1 + i64::from(jump_distance(insn))) as u32;
                self.arrive(to, &values);
            }
            code::EXIT => self.leave(at, &values),
            code::CALL => {
                if is_call(insn) {
                    self.enter(at, insn, &values);
                    let sub = self.checker.sub_at(at as i64 + 1 + i64::from(insn.imm));
                    let result = sub.and_then(|s| self.results[s]);
                    let Some(result) = result else { return };
                    self.after_call(at, insn, values, result);
                } else {
                    self.after_call(at, insn, values, Value::Unknown);
                }
            }
            _ => self.branch(at, insn, &values),
        }
    }

    /// A subprogram is called with what registers hold.
    fn enter(&mut self, at: u32, insn: &Insn, values: &Values) {
        let Some(sub) = self.checker.sub_at(at as i64 + 1 + i64::from(insn.imm)) else {
            return;
        };
        if !self.callers[sub].contains(&at) {
            self.callers[sub].push(at);
        }
        let mut entry = Values::entry();
        for n in 1..=5 {
            entry.regs[n] = match values.regs[n] {
                // Whose stack it is depends on the reader.
                Value::Pointer(p) if p.is_stack() => Value::Unknown,
                value => value,
            };
        }
        self.arrive(self.checker.subs[sub].start, &entry);
    }

    /// A subprogram returns.
    fn leave(&mut self, at: u32, values: &Values) {
        let sub = self.checker.sub_of(at);
        let result = match values.reg(0) {
            Value::Pointer(p) if p.is_stack() => Value::Unknown,
            value => value,
        };
        let joined = match &self.results[sub] {
            None => result,
            // Results are joined as often as there are returns and callers: no widening step.
            Some(known) => match (known.join(&result), known) {
                (joined, known) if joined == *known => return,
                (Value::Number(range), Value::Number(before)) => {
                    Value::Number(widened(before, range))
                }
                (joined, _) => joined,
            },
        };
        self.results[sub] = Some(joined);
        for at in self.callers[sub].clone() {
            // The block of the call.
            let mut start = at;
            while !self.starts_block[start as usize] {
                start -= 1;
            }
            self.enqueue(start);
        }
    }

    /// Goes on after a call that returned `result`.
    fn after_call(&mut self, at: u32, insn: &Insn, mut values: Values, result: Value) {
        let reads_only = is_helper_call(insn) && READERS.contains(&insn.imm);
        if !reads_only && values.regs[1..=5].iter().any(Value::may_be_stack) {
            values.slots.clear();
        }
        clobber(&mut values);
        values.set(0, result);
        let next = at + 1;
        if (next as usize) < self.checker.insns.len() {
            self.arrive(next, &values);
        }
    }

    /// A conditional jump.
    fn branch(&mut self, at: u32, insn: &Insn, values: &Values) {
        let target = (i64::from(at) + 1 + i64::from(jump_distance(insn))) as u32;
        let compare = Compare::from_op(insn.code & 0xf0);
        let wide = insn.class() == code::JMP;
        let from_reg = insn.code & code::X != 0;
        for (to, jumps) in [(at + 1, false), (target, true)] {
            if !self.gathered.goes(at, jumps) {
                continue;
            }
            let mut values = values.clone();
            if let Some(compare) = compare {
                let compare = if jumps { compare } else { compare.negated() };
                if !assume(compare, wide, insn, from_reg, &mut values) {
                    continue;
                }
            }
            self.arrive(to, &values);
        }
    }

    /// The result, by walking each block once more.
    fn rows(mut self, live_slots: &[u64]) -> (Vec<[u32; REGS]>, Vec<Value>, SlotTable) {
        let len = self.checker.insns.len();
        let mut rows = vec![[0; REGS]; len];
        let mut table = vec![Value::Unknown];
        let mut slots = SlotTable::new(len);
        let gathered = self.gathered;
        let mut index: FxHashMap<Value, u32> = FxHashMap::default();
        let starts: Vec<u32> = self.blocks.keys().copied().collect();
        for start in starts {
            let values = self.blocks[&start].0.clone();
            let checker = self.checker;
            self.block(start, values, |at, values| {
                slots.set(
                    at,
                    values.live_slots(live_slots[at as usize], |known| {
                        gathered.slots.sharpen(at, known);
                    }),
                );
                let live = checker.aux[at as usize].live;
                for n in (0..REGS).filter(|n| live & (1 << n) != 0) {
                    let value = values.regs[n];
                    if value == Value::Unknown || value == Value::Number(Range::UNKNOWN) {
                        continue;
                    }
                    let id = *index.entry(value).or_insert_with(|| {
                        table.push(value);
                        table.len() as u32 - 1
                    });
                    rows[at as usize][n] = id;
                }
            });
        }
        (rows, table, slots)
    }
}

/// R0 to R5 hold nothing after a call.
fn clobber(values: &mut Values) {
    values.regs[..6].fill(Value::Unknown);
}

/// What a load of that size gives.
fn sized(size: i32, signed: bool) -> Value {
    match (size, signed) {
        (8.., _) => Value::Unknown,
        (_, true) => {
            let mut range = Range::UNKNOWN;
            range.sign_extend(size as u32);
            range.sync();
            Value::Number(range)
        }
        _ => Value::Number(Range::up_to((1 << (8 * size)) - 1)),
    }
}

/// The result of an arithmetic instruction.
fn alu(insn: &Insn, values: &Values) -> Value {
    let op = insn.code & 0xf0;
    let wide = insn.class() == code::ALU64;
    let dst = values.reg(insn.dst);
    let src = match insn.code & code::X {
        0 => Value::Number(Range::known(insn.imm as i64 as u64)),
        _ => values.reg(insn.src),
    };
    if op == code::END {
        return swap(insn, &dst, wide);
    }
    if op == code::MOV {
        return mov(insn, &src, wide);
    }
    if let (true, Value::Pointer(pointer)) = (wide, &dst) {
        let by = src
            .range()
            .constant()
            .filter(|_| pointer.offset().is_some());
        let by = by.map(|by| by as i64);
        let by = match op {
            code::ADD => by,
            code::SUB => by.and_then(i64::checked_neg),
            _ => None,
        };
        return by.map_or(Value::Unknown, |by| Value::Pointer(pointer.moved(by)));
    }
    let pointers = [&dst, &src].iter().any(|v| !matches!(v, Value::Number(_)));
    if wide && pointers {
        // A pointer or what became of one.
        return Value::Unknown;
    }
    let (mut left, right) = (dst.range(), src.range());
    let signed = insn.off != 0;
    if matches!(op, code::DIV | code::MOD) && !signed {
        return divide(op, wide, left, right);
    }
    if op == code::NEG || arith::computable(op, wide, &right) {
        let right = if op == code::NEG { left } else { right };
        arith::apply(op, wide, &mut left, &right);
        if left.contradiction().is_some() {
            left = left.without_bounds();
        }
        return Value::Number(left);
    }
    Value::Number(if wide {
        Range::UNKNOWN
    } else {
        Range::up_to(u32::MAX.into())
    })
}

/// Unsigned division by zero gives 0, the remainder of it the dividend.
fn divide(op: u8, wide: bool, left: Range, right: Range) -> Value {
    let (max, by_max) = match wide {
        true => (left.umax, right.umax),
        false => (left.umax32.into(), right.umax32.into()),
    };
    let by_min = if wide {
        right.umin
    } else {
        right.umin32.into()
    };
    Value::Number(Range::up_to(match op {
        code::DIV => max / by_min.max(1),
        _ if by_min > 0 => max.min(by_max - 1),
        _ => max,
    }))
}

fn mov(insn: &Insn, src: &Value, wide: bool) -> Value {
    if wide && insn.off == 0 {
        return *src;
    }
    if wide && insn.off == code::ADDR_SPACE_CAST {
        return Value::Unknown;
    }
    let mut range = src.range();
    match (wide, insn.off) {
        (true, bits) => range.sign_extend(bits as u32 / 8),
        (false, 0) => range.zero_extend32(),
        (false, bits) => {
            range.sign_extend_low32(bits as u32 / 8);
            range.zero_extend32();
        }
    }
    range.sync();
    Value::Number(range)
}

fn swap(insn: &Insn, dst: &Value, wide: bool) -> Value {
    let swaps = wide || insn.code & code::X != 0;
    let Some(value) = dst.range().constant() else {
        return match insn.imm {
            16 | 32 => sized(insn.imm / 8, false),
            _ => Value::Number(Range::UNKNOWN),
        };
    };
    let value = match (insn.imm, swaps) {
        (16, true) => (value as u16).swap_bytes().into(),
        (32, true) => (value as u32).swap_bytes().into(),
        (16, false) => u64::from(value as u16),
        (32, false) => u64::from(value as u32),
        (_, true) => value.swap_bytes(),
        (_, false) => value,
    };
    Value::Number(Range::known(value))
}

/// Takes into account that a comparison holds; false if it cannot.
fn assume(compare: Compare, wide: bool, insn: &Insn, from_reg: bool, values: &mut Values) -> bool {
    let left = values.reg(insn.dst);
    let right = match from_reg {
        true => values.reg(insn.src),
        false => Value::Number(Range::known(insn.imm as i64 as u64)),
    };
    let is_zero = |value: &Value| value.range().constant() == Some(0);
    if let (Value::Pointer(pointer), Compare::Eq, true) = (&left, compare, wide) {
        if pointer.may_be_null() && is_zero(&right) {
            values.set(insn.dst, Value::Number(Range::known(0)));
        }
        return true;
    }
    let (Value::Number(mut a), Value::Number(mut b)) = (left, right) else {
        return true;
    };
    if arith::decide(compare, wide, &a, &b) == Some(false) {
        return false;
    }
    arith::assume(compare, wide, &mut a, &mut b);
    a.sync();
    b.sync();
    if a.contradiction().is_some() || b.contradiction().is_some() {
        return true;
    }
    values.set(insn.dst, Value::Number(a));
    if from_reg {
        values.set(insn.src, Value::Number(b));
    }
    true
}
