//! Whether a state was seen before: comparing the current state with those kept at the
//! same instruction, and keeping it if it is worth it.

use crate::checker::{Aux, Checker, is_may_goto};
use crate::fail::{Res, say};
use crate::frame::Stack;
use crate::marks::{Marks, bits};
use crate::reg::{ADD_CONST, Base, IterState, Reg, RegType};
use crate::state::{Byte, FP, Frame, SLOT, Slot, State, StateId, slot_of};
use crate::store::Checkpoint;

/// Pairs of ids that stand for the same thing in two states.
pub(crate) struct IdMap {
    pairs: Vec<(u32, u32)>,
    temporary: u32,
}

/// Most pairs.
const MAX_PAIRS: usize = 600;
/// Steps without a kept state after which one is kept anyway.
const LONG_HISTORY: usize = 40;
/// States per instruction that are kept for an unprivileged process.
const MAX_STATES_UNPRIVILEGED: u32 = 64;

impl IdMap {
    pub const fn new() -> IdMap {
        IdMap {
            pairs: Vec::new(),
            temporary: 0,
        }
    }

    fn reset(&mut self, last_id: u32) {
        self.pairs.clear();
        self.temporary = last_id;
    }

    /// Whether two ids may stand for the same; none only for none.
    fn same(&mut self, old: u32, cur: u32) -> bool {
        if (old == 0) != (cur == 0) {
            return false;
        }
        if old == 0 {
            return true;
        }
        for &(o, c) in &self.pairs {
            if o == old {
                return c == cur;
            }
            if c == cur {
                return false;
            }
        }
        if self.pairs.len() == MAX_PAIRS {
            return false;
        }
        self.pairs.push((old, cur));
        true
    }

    /// The same for numbers: one without id is a value of its own.
    fn same_scalar(&mut self, old: u32, cur: u32) -> bool {
        if old == 0 && cur == 0 {
            return true;
        }
        let mut or_new = |id: u32| {
            if id != 0 {
                return id;
            }
            self.temporary += 1;
            self.temporary
        };
        let (old, cur) = (or_new(old), or_new(cur));
        self.same(old, cur)
    }
}

/// How alike states must be.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Exact {
    /// What was safe from the old is safe from the current.
    No,
    /// Nothing changed.
    Yes,
    /// Every range lies within the old one, even where that did not matter so far.
    Within,
}

/// A register or slot of a frame.
#[derive(Clone, Copy, Default)]
pub(crate) struct Place {
    frame: u8,
    /// A register up to R10, or [`FIRST_SLOT`] and on.
    at: u8,
}

const FIRST_SLOT: u8 = 16;

/// Compares states.
struct Comparison<'a> {
    aux: &'a [Aux],
    ids: &'a mut IdMap,
    /// Whether reading what nothing was written to is allowed on the stack.
    privileged: bool,
    /// Whether it is tracked which numbers matter; else all do.
    tracked: bool,
    /// Numbers decide how pointers' moves are masked: all of them matter.
    masks_unknown: bool,
    exact: Exact,
    /// Where to look first; then where they were found to differ.
    place: Place,
}

impl Comparison<'_> {
    fn exactly(&mut self, old: &Reg, cur: &Reg) -> bool {
        old.same_value(cur)
            && self.ids.same(old.id, cur.id)
            && self.ids.same(old.ref_obj_id, cur.ref_obj_id)
    }

    /// `precise`: whether the exact number in the old one mattered, if it is a number.
    fn reg(&mut self, old: &Reg, cur: &Reg, precise: bool) -> bool {
        if self.exact == Exact::Yes {
            return self.exactly(old, cur);
        }
        if old.ty == RegType::NOT_INIT && (self.exact == Exact::No || cur.ty == RegType::NOT_INIT) {
            return true;
        }
        if old.ty != cur.ty {
            return false;
        }
        match old.ty.base() {
            Base::Scalar => {
                if self.masks_unknown {
                    return old.same_value(cur) && self.ids.same_scalar(old.id, cur.id);
                }
                if !precise && self.tracked && self.exact == Exact::No {
                    return true;
                }
                if old.id & ADD_CONST != cur.id & ADD_CONST {
                    return false;
                }
                if old.id & ADD_CONST != 0 && old.off != cur.off {
                    return false;
                }
                old.range.contains(&cur.range) && self.ids.same_scalar(old.id, cur.id)
            }
            Base::MapKey | Base::MapValue | Base::Mem | Base::Buf | Base::TpBuffer => {
                old.same_kind(cur)
                    && old.range.contains(&cur.range)
                    && self.ids.same(old.id, cur.id)
                    && self.ids.same(old.ref_obj_id, cur.ref_obj_id)
            }
            Base::PacketMeta | Base::Packet => {
                old.pkt_range() <= cur.pkt_range()
                    && old.off == cur.off
                    && self.ids.same(old.id, cur.id)
                    && old.range.contains(&cur.range)
            }
            Base::Stack => self.exactly(old, cur) && old.frameno == cur.frameno,
            Base::Arena => true,
            _ => self.exactly(old, cur),
        }
    }

    /// The scalar that a load of the whole slot would give.
    fn as_scalar<'s>(&self, slot: &'s Slot) -> Option<&'s Reg> {
        if slot.is_full_scalar_spill() {
            return Some(&slot.reg);
        }
        let misc = |b: &Byte| *b == Byte::Misc || (*b == Byte::Invalid && self.privileged);
        slot.bytes.iter().all(misc).then_some(&Reg::UNKNOWN)
    }

    fn stack(&mut self, old: &Stack, cur: &Stack, marks: &Marks) -> bool {
        let exact = self.exact;
        let mut same = |at: usize| {
            let same = self.slot_at(old, cur, marks, at);
            if !same {
                self.place.at = FIRST_SLOT + at as u8;
            }
            same
        };
        if exact != Exact::No {
            return (0..old.len()).all(same);
        }
        old.groups().all(|group| {
            let shared = old.shares(cur, group.start);
            group
                .filter(|at| !shared || old[*at].is_named())
                .all(&mut same)
        })
    }

    fn slot_at(&mut self, old: &Stack, cur: &Stack, marks: &Marks, at: usize) -> bool {
        let live = marks.live_slots & (1 << at) != 0;
        let o = if live { &old[at] } else { &Slot::EMPTY };
        self.slot(o, cur.get(at), marks.precise_slot(at))
    }

    fn slot(&mut self, o: &Slot, c: Option<&Slot>, precise: bool) -> bool {
        let (kinds, equal) = (o.kinds(), c.is_some_and(|c| c.kinds() == o.kinds()));
        if self.exact != Exact::No && !equal {
            return false;
        }
        if kinds == Slot::NOTHING || (self.privileged && kinds == Slot::DATA) {
            return true;
        }
        if let Some(c) = c.filter(|_| equal) {
            if kinds == Slot::SPILLED {
                return self.reg(&o.reg, &c.reg, precise);
            }
            if !o.is_special() {
                return true;
            }
        }
        let mut i = 0;
        while i < 8 {
            let (ob, cb) = (o.bytes[i], c.map(|c| c.bytes[i]));
            if self.exact != Exact::No && Some(ob) != cb {
                return false;
            }
            if ob == Byte::Invalid || (ob == Byte::Misc && self.privileged) {
                i += 1;
                continue;
            }
            let Some(c) = c else { return false };
            let cb = c.bytes[i];
            if let (Some(or), Some(c)) = (self.as_scalar(o), self.as_scalar(c)) {
                // Bytes that stand for any number never mattered exactly.
                return self.reg(or, c, o.is_spill() && precise);
            }
            if ob == Byte::Misc && cb == Byte::Zero {
                i += 1;
                continue;
            }
            if ob != cb {
                return false;
            }
            i += 1;
            if i < 8 {
                continue;
            }
            let (or, cr) = (&o.reg, &c.reg);
            return match ob {
                Byte::Spill => self.reg(or, cr, precise),
                Byte::Dynptr => {
                    or.dynptr_kind() == cr.dynptr_kind()
                        && or.dynptr_first() == cr.dynptr_first()
                        && self.ids.same(or.ref_obj_id, cr.ref_obj_id)
                }
                Byte::Iter => {
                    or.btf() == cr.btf()
                        && or.iter_state() == cr.iter_state()
                        && self.ids.same(or.ref_obj_id, cr.ref_obj_id)
                }
                Byte::IrqFlag => {
                    self.ids.same(or.ref_obj_id, cr.ref_obj_id) && or.irq_class() == cr.irq_class()
                }
                Byte::Misc | Byte::Zero | Byte::Invalid => true,
            };
        }
        true
    }

    fn refs(&mut self, old: &State, cur: &State) -> bool {
        if old.refs.len() != cur.refs.len()
            || old.active_locks != cur.active_locks
            || old.active_preempt != cur.active_preempt
            || old.active_rcu != cur.active_rcu
            || !self.ids.same(old.active_irq, cur.active_irq)
            || !self.ids.same(old.active_lock_id, cur.active_lock_id)
            || old.active_lock_home != cur.active_lock_home
        {
            return false;
        }
        old.refs
            .iter()
            .zip(&cur.refs)
            .all(|(o, c)| self.ids.same(o.id, c.id) && o.kind == c.kind && o.home == c.home)
    }

    fn frame(&mut self, old: &Frame, cur: &Frame, live: u16, marks: &Marks) -> bool {
        if old.callback_depth > cur.callback_depth {
            return false;
        }
        for n in bits(live.into()).take_while(|n| *n <= FP) {
            if !self.reg(&old.regs[n], &cur.regs[n], marks.precise_reg(n)) {
                self.place.at = n as u8;
                return false;
            }
        }
        self.stack(&old.stack, &cur.stack, marks)
    }

    fn states(&mut self, old: &Checkpoint, cur: &State, last_id: u32) -> bool {
        let (marks, old) = (&old.marks, &old.state);
        if old.curframe() != cur.curframe() {
            return false;
        }
        self.ids.reset(last_id);
        if (old.speculative && !cur.speculative) || old.in_sleepable != cur.in_sleepable {
            return false;
        }
        if self.differ_at(old, cur, marks, self.place) {
            return false;
        }
        self.ids.reset(last_id);
        if !self.refs(old, cur) {
            return false;
        }
        (0..=old.curframe()).all(|f| {
            self.place.frame = f as u8;
            let live = self.live_regs(old, f);
            old.frame(f).callsite == cur.frame(f).callsite
                && self.frame(old.frame(f), cur.frame(f), live, &marks[f])
        })
    }

    fn live_regs(&self, state: &State, frame: usize) -> u16 {
        self.aux[state.frame_insn(frame) as usize].live
    }

    /// Whether one place alone, whatever names are matched elsewhere, tells the states apart.
    fn differ_at(&mut self, old: &State, cur: &State, marks: &[Marks], place: Place) -> bool {
        let (f, n) = (place.frame as usize, place.at as usize);
        if f > old.curframe() {
            return false;
        }
        let (marks, live) = (&marks[f], self.live_regs(old, f));
        let (old, cur) = (old.frame(f), cur.frame(f));
        if place.at < FIRST_SLOT {
            return live & (1 << n) != 0
                && !self.reg(&old.regs[n], &cur.regs[n], marks.precise_reg(n));
        }
        let slot = n - FIRST_SLOT as usize;
        slot < old.stack.len() && !self.slot_at(&old.stack, &cur.stack, marks, slot)
    }
}

/// A register that differs in the innermost frames; `first` is looked at first. If there is
/// none, the path may be going round, and a closer look is due.
fn differing_reg(old: &Frame, cur: &Frame, first: u8) -> Option<u8> {
    let differs = |n: &u8| {
        let (a, b) = (&old.regs[*n as usize], &cur.regs[*n as usize]);
        !(a.same_value(b) && a.id == b.id && a.ref_obj_id == b.ref_obj_id)
    };
    Some(first)
        .filter(differs)
        .or_else(|| (0..=FP as u8).find(differs))
}

/// Whether an iterator advanced between two states.
fn iterators_advanced(old: &State, cur: &State) -> bool {
    old.frames().iter().zip(cur.frames()).any(|(old, cur)| {
        old.stack.iter().zip(cur.stack.iter()).any(|(o, c)| {
            o.bytes[0] == Byte::Iter
                && o.reg.iter_state() == IterState::Active
                && o.reg.iter_depth() != c.reg.iter_depth()
        })
    })
}

impl Checker<'_> {
    fn equal(&mut self, old: StateId, exact: Exact) -> bool {
        let old = self.store.get(old);
        let bucket = old.bucket as usize;
        let mut comparison = Comparison {
            aux: &self.aux,
            ids: &mut self.idmap,
            privileged: self.env.privileged,
            tracked: self.env.privileged && !self.env.exact_numbers,
            masks_unknown: self.masks_unknown,
            exact,
            place: self.store.differs_at[bucket],
        };
        let same = comparison.states(old, &self.cur, self.id_gen);
        self.store.differs_at[bucket] = comparison.place;
        same
    }

    /// Clears registers and slots that nothing will read from states whose paths were all
    /// walked, so that they match more.
    fn clean_states(&mut self, bucket: usize) {
        if self.store.unclean[bucket] == 0 {
            return;
        }
        for at in 0..self.store.buckets[bucket].len() {
            let id = self.store.buckets[bucket][at];
            let state = &self.store.get(id).state;
            if state.branches != 0
                || state.cleaned
                || state.insn != self.insn
                || !state.same_callsites(&self.cur)
                || self.incomplete(id)
            {
                continue;
            }
            let query = self.live.query(&self.flow, &self.store.get(id).state);
            let (live, aux) = (&self.live, &self.aux);
            self.store.unclean[bucket] -= 1;
            let Checkpoint { state, marks, .. } = self.store.get_mut(id);
            state.cleaned = true;
            for (f, marks) in marks.iter_mut().enumerate() {
                let calls_callback = |site: u32| aux[site as usize].calls_callback;
                // The frame pointer stays.
                marks.live_regs = aux[state.frame_insn(f) as usize].live | 1 << FP;
                marks.live_slots = live.live_slots(&query, f, calls_callback);
            }
        }
    }

    /// Whether the current state need not be walked on, as it is covered by one kept.
    pub fn visited(&mut self) -> Res<bool> {
        let insn = self.insn;
        let aux = self.aux[insn as usize];
        let force = self.env.test_state_freq
            || aux.force_checkpoint
            || self.cur.history.len() > LONG_HISTORY;
        let (jumps, steps) = (
            self.jumps - self.prev_jumps,
            self.processed - self.prev_processed,
        );
        let mut keep = force || (jumps >= 2 && steps >= 8);
        let bucket = self.store.bucket(insn, self.cur.top().callsite);
        self.clean_states(bucket);
        let mut looked_at = 0;
        let mut at = self.store.buckets[bucket].len();
        while at > 0 {
            at -= 1;
            looked_at += 1;
            let id = self.store.buckets[bucket][at];
            let old = &self.store.get(id).state;
            if old.insn != insn {
                continue;
            }
            let mut loops = false;
            let hit = if old.branches > 0 {
                let hit = self.loop_hit(id, &mut loops)?;
                if !hit && !force && jumps < 20 && steps < 100 {
                    keep = false;
                }
                hit
            } else {
                loops = self.incomplete(id);
                self.equal(id, if loops { Exact::Within } else { Exact::No })
            };
            if hit {
                self.store.get_mut(id).hits += 1;
                if aux.jmp_point {
                    self.push_step(0, 0);
                }
                self.propagate_to_current(id)?;
                if loops {
                    self.add_back_edge(id, self.cur.clone(), insn)?;
                }
                return Ok(true);
            }
            let checkpoint = self.store.get_mut(id);
            if keep {
                checkpoint.misses += 1;
            }
            let patience = if aux.force_checkpoint && checkpoint.state.branches > 0 {
                64
            } else {
                3
            };
            if checkpoint.misses > checkpoint.hits * patience + patience {
                self.store.retire(bucket, at);
                self.free_if_unused(id);
            }
        }
        self.max_states_per_insn = self.max_states_per_insn.max(looked_at);
        if !keep || (!self.privileged() && looked_at > MAX_STATES_UNPRIVILEGED) {
            return Ok(false);
        }
        self.keep_state(bucket);
        Ok(false)
    }

    /// Whether the path came back to a state before it, at a place where that is no
    /// infinite loop; elsewhere it is an error.
    fn loop_hit(&mut self, id: StateId, loops: &mut bool) -> Res<bool> {
        let insn = self.insn;
        let aux = self.aux[insn as usize];
        let old = &self.store.get(id).state;
        let frame = old.top();
        if frame.in_async_callback && frame.async_entry_count != self.cur.top().async_entry_count {
            return Ok(false);
        }
        if aux.is_iter_next {
            if self.equal(id, Exact::Within) {
                // The iterator is the first argument.
                let iter = self.reg(1);
                let slot = slot_of(iter.const_off() as i32);
                let frame = self.cur.frame(iter.frameno as usize);
                let active = frame
                    .stack
                    .get(slot)
                    .is_some_and(|s| s.reg.iter_state() == IterState::Active);
                *loops = active;
                return Ok(active);
            }
            return Ok(false);
        }
        if is_may_goto(&self.insns[insn as usize])
            && old.may_goto_depth != self.cur.may_goto_depth
            && self.equal(id, Exact::Within)
        {
            *loops = true;
            return Ok(true);
        }
        if aux.calls_callback {
            return Ok(self.equal(id, Exact::Within));
        }
        let checkpoint = self.store.get_mut(id);
        if checkpoint.state.curframe() != self.cur.curframe() {
            return Ok(false);
        }
        let (old, first) = (checkpoint.state.top(), checkpoint.differed);
        if let Some(n) = differing_reg(old, self.cur.top(), first) {
            checkpoint.differed = n;
            return Ok(false);
        }
        if self.equal(id, Exact::Yes) {
            let old = &self.store.get(id).state;
            if !iterators_advanced(old, &self.cur)
                && old.may_goto_depth == self.cur.may_goto_depth
                && old.callback_unroll_depth == self.cur.callback_unroll_depth
            {
                let frame = self.cur.curframe();
                self.print_line(insn, "; ");
                say!(self, "infinite loop detected at insn {insn}\n");
                say!(self, "cur state:");
                self.print_cur(frame, true);
                say!(self, "old state:");
                self.print_kept(id, frame, true);
                return Err(crate::fail::Errno::Inval);
            }
        }
        Ok(false)
    }

    fn keep_state(&mut self, bucket: usize) {
        self.prev_jumps = self.jumps;
        self.prev_processed = self.processed;
        let history = std::mem::take(&mut self.cur.history);
        let mut kept = self.cur.clone();
        kept.history = history;
        self.traced.clear();
        self.step_open = false;
        kept.insn = self.insn;
        let depth = kept.dfs_depth;
        let id = self.store.add(bucket, kept);
        self.enter_loop(id);
        self.cur.parent = Some(id);
        self.cur.first_insn = self.insn;
        self.cur.dfs_depth = depth + 1;
    }
}

/// Offset of a slot below the frame pointer.
pub(crate) const fn offset_of(slot: usize) -> i32 {
    -(slot as i32 + 1) * SLOT
}

impl Checker<'_> {
    /// The latest state kept at an instruction, on the path to where `depth` states were kept.
    pub fn previous_visit(&self, insn: u32, depth: u32) -> Option<StateId> {
        let bucket = self.store.bucket(insn, self.cur.top().callsite);
        self.store.buckets[bucket]
            .iter()
            .rev()
            .copied()
            .find(|&id| {
                let state = &self.store.get(id).state;
                state.insn == insn
                    && state.branches > 0
                    && state.same_callsites(&self.cur)
                    && state.dfs_depth < depth
            })
    }

    /// The same, before the state kept last.
    pub fn visit_before_parent(&self) -> Option<StateId> {
        let parent = self.cur.parent?;
        self.previous_visit(self.insn, self.store.get(parent).state.dfs_depth)
    }

    /// Forgets numbers in the branch pushed last that differ from those of an earlier visit
    /// and did not matter so far, so that the loop converges.
    pub fn widen_last_branch(&mut self, old: StateId) {
        if let Some(mut pending) = self.pending.pop() {
            std::mem::swap(&mut pending.state, &mut self.cur);
            self.widen_current(old);
            std::mem::swap(&mut pending.state, &mut self.cur);
            self.pending.push(pending);
        }
    }

    /// The same for the current state.
    pub fn widen_current(&mut self, old: StateId) {
        let (privileged, tracked) = (self.env.privileged, self.tracks_precision());
        let cur = &mut self.cur;
        let Checkpoint {
            state: old, marks, ..
        } = self.store.get(old);
        self.idmap.reset(self.id_gen);
        let mut comparison = Comparison {
            aux: &self.aux,
            ids: &mut self.idmap,
            privileged,
            tracked,
            masks_unknown: self.masks_unknown,
            exact: Exact::Yes,
            place: Place::default(),
        };
        let mut differs = |o: &Reg, c: &Reg, precise: bool| {
            o.ty == RegType::SCALAR
                && c.ty == RegType::SCALAR
                && tracked
                && !precise
                && !comparison.exactly(o, c)
        };
        for f in (0..=old.curframe()).rev() {
            let mut regs = [false; FP + 1];
            let (fold, fcur) = (old.frame(f), cur.frame(f));
            for (n, widen) in regs.iter_mut().enumerate() {
                *widen = differs(&fold.regs[n], &fcur.regs[n], marks[f].precise_reg(n));
            }
            let mut slots = 0u64;
            for (n, (o, c)) in fold.stack.iter().zip(fcur.stack.iter()).enumerate() {
                let precise = marks[f].precise_slot(n);
                if o.is_spill() && c.is_spill() && differs(&o.reg, &c.reg, precise) {
                    slots |= 1 << n;
                }
            }
            if slots == 0 && !regs.contains(&true) {
                continue;
            }
            let frame = cur.frame_mut(f);
            for n in (0..=FP).filter(|n| regs[*n]) {
                frame.regs[n] = Reg::UNKNOWN;
            }
            for n in bits(slots) {
                frame.stack.reach(n).reg = Reg::UNKNOWN;
            }
        }
    }
}
