//! Which numbers mattered: walking back from a use to where the number came from.
//!
//! Scalars in kept states start as not precise, and then match any scalar. Where the
//! exact number decides what is allowed, the path is walked back over the recorded steps,
//! and every scalar on it that the number depends on is made precise in the states kept
//! along the path.

use bpfkit_isa::{Insn, code};

use crate::checker::{Checker, is_call, is_kfunc_call};
use crate::fail::{Errno, Res, say};
use crate::marks::{Marks, bits};
use crate::reg::RegType;
use crate::state::{
    FP, MAX_FRAMES, NO_CALLSITE, STEP_DST_STACK, STEP_SRC_STACK, STEP_STACK, State, StateId, Step,
};
use crate::store::Checkpoint;

/// R1 to R5.
const ARGS: u16 = 0b11_1110;

/// In [`origins`]: the instruction matters whatever is looked for.
const ANY_ORIGIN: u16 = 1 << 15;

/// The registers of which at least one must be looked for so that walking back over an
/// instruction changes anything, stack slots and linked registers aside.
pub(crate) fn origins(insn: &Insn) -> u16 {
    let (dst, src) = (1u16 << (insn.dst & 15), 1u16 << (insn.src & 15));
    let op = insn.code & 0xf0;
    match insn.class() {
        _ if insn.code == 0 => 0,
        code::ALU | code::ALU64 if op == code::END || op == code::NEG => 0,
        code::JMP | code::JMP32 if op == code::CALL || op == code::EXIT => ANY_ORIGIN,
        code::JMP | code::JMP32 if insn.code & code::X != 0 => dst | src,
        code::JMP | code::JMP32 => 0,
        _ => dst,
    }
}

/// Frame and slot that a step accessed.
const fn stack_of(flags: u16) -> (usize, usize) {
    ((flags & 7) as usize, (flags >> 3 & 0x3f) as usize)
}

/// Registers and slots whose origin is looked for, per frame.
#[derive(Default)]
pub(crate) struct Backtrack {
    frame: usize,
    regs: [u16; MAX_FRAMES],
    slots: [u64; MAX_FRAMES],
}

impl Backtrack {
    #[inline]
    fn is_empty(&self) -> bool {
        (0..=self.frame).all(|f| self.regs[f] == 0 && self.slots[f] == 0)
    }

    /// Whether an instruction (by its [`origins`]) may change what is looked for.
    fn concerned(&self, origins: u16, step: Option<&Step>) -> bool {
        if origins & (self.regs[self.frame] | ANY_ORIGIN) != 0 {
            return true;
        }
        step.is_some_and(|s| {
            let (frame, slot) = stack_of(s.flags);
            s.linked != 0 || (s.flags & STEP_STACK != 0 && self.slots[frame] & (1 << slot) != 0)
        })
    }

    /// The instruction from `at` down to `low` that may change what is looked for, by its
    /// [`origins`]; if there is none, `low`.
    fn next_concerned(&self, origins: &[u16], low: i32, at: i32) -> i32 {
        let wanted = self.regs[self.frame] | ANY_ORIGIN;
        let between = origins.get(low as usize + 1..=at as usize).unwrap_or(&[]);
        let found = between.iter().rposition(|o| o & wanted != 0);
        found.map_or(low, |found| low + 1 + found as i32)
    }

    fn has_reg(&self, reg: u8) -> bool {
        self.regs[self.frame] & (1 << reg) != 0
    }

    const fn set_reg(&mut self, reg: u8) {
        self.regs[self.frame] |= 1 << reg;
    }

    const fn clear_reg(&mut self, reg: u8) {
        self.regs[self.frame] &= !(1 << reg);
    }

    pub const fn set_frame_slot(&mut self, frame: usize, slot: usize) {
        self.slots[frame] |= 1 << slot;
    }

    const fn enter(&mut self) -> Res {
        if self.frame + 1 >= MAX_FRAMES {
            return Err(Errno::Fault);
        }
        self.frame += 1;
        Ok(())
    }

    const fn leave(&mut self) -> Res {
        if self.frame == 0 {
            return Err(Errno::Fault);
        }
        self.frame -= 1;
        Ok(())
    }

    /// If one of the linked registers is looked for, all of them are.
    #[inline]
    fn spread(&mut self, step: Option<&Step>) {
        if let Some(step) = step.filter(|s| s.linked != 0) {
            self.spread_to(&Linked::unpack(step.linked));
        }
    }

    fn spread_to(&mut self, linked: &Linked) {
        let wanted = |l: &Link| {
            if l.is_reg {
                self.regs[l.frame as usize] & (1 << l.at) != 0
            } else {
                self.slots[l.frame as usize] & (1 << l.at) != 0
            }
        };
        if !linked.links().iter().any(wanted) {
            return;
        }
        for link in linked.links() {
            if link.is_reg {
                self.regs[link.frame as usize] |= 1 << link.at;
            } else {
                self.slots[link.frame as usize] |= 1 << link.at;
            }
        }
    }
}

/// What was looked for before each recorded step of the current state, in one frame.
///
/// What a walk looks for beyond a step is the union over what it looks for there, and a walk
/// to its end leaves all of it marked; so another walk that comes to the step with nothing
/// new need not go on.
#[derive(Default)]
pub(crate) struct Traced(Vec<(u8, u16, u64)>);

impl Traced {
    /// The current state has another history.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// A walk comes to step `at`: whether there is nothing new.
    fn covers(&mut self, at: usize, bt: &Backtrack) -> bool {
        let f = bt.frame;
        if (0..f).any(|f| bt.regs[f] != 0 || bt.slots[f] != 0) {
            return false;
        }
        if self.0.len() <= at {
            self.0.resize(at + 1, (0, 0, 0));
        }
        let (frame, regs, slots) = &mut self.0[at];
        if *frame as usize != f {
            (*frame, *regs, *slots) = (f as u8, bt.regs[f], bt.slots[f]);
            return false;
        }
        let known = bt.regs[f] & !*regs == 0 && bt.slots[f] & !*slots == 0;
        *regs |= bt.regs[f];
        *slots |= bt.slots[f];
        known
    }
}

/// A register or slot that shares its id with others.
#[derive(Clone, Copy, Default)]
pub(crate) struct Link {
    pub frame: u8,
    pub at: u8,
    pub is_reg: bool,
}

/// Up to six registers and slots that gain a range together.
#[derive(Clone, Copy, Default)]
pub(crate) struct Linked {
    count: usize,
    links: [Link; 6],
}

impl Linked {
    pub fn links(&self) -> &[Link] {
        &self.links[..self.count]
    }

    /// Adds one; false if there is no room.
    pub const fn push(&mut self, link: Link) -> bool {
        if self.count == self.links.len() {
            return false;
        }
        self.links[self.count] = link;
        self.count += 1;
        true
    }

    /// In one word: ten bits each above a count of four bits.
    pub fn pack(&self) -> u64 {
        let mut packed = 0;
        for link in self.links() {
            let bits = link.frame as u64 | (link.at as u64) << 3 | u64::from(link.is_reg) << 9;
            packed = packed << 10 | bits;
        }
        packed << 4 | self.count as u64
    }

    fn unpack(packed: u64) -> Linked {
        let mut linked = Linked::default();
        let count = packed & 15;
        let mut rest = packed >> 4;
        for _ in 0..count {
            linked.push(Link {
                frame: (rest & 7) as u8,
                at: (rest >> 3 & 0x3f) as u8,
                is_reg: rest >> 9 & 1 != 0,
            });
            rest >>= 10;
        }
        linked
    }
}

/// How the walk over the steps of one state ended.
enum Walk {
    /// Nothing is looked for any more.
    Found,
    /// At the state's first instruction.
    Start,
    /// At an instruction that hides where a number came from.
    Lost,
}

/// Where a walk begins.
struct Origin<'s> {
    /// From the current state.
    is_current: bool,
    history: &'s [Step],
    insn: u32,
    first: u32,
    parent: Option<StateId>,
}

impl Checker<'_> {
    /// The exact number in a register matters.
    pub fn mark_precise(&mut self, reg: u8) -> Res {
        if !self.tracks_precision() {
            return Ok(());
        }
        if self.reg(reg).ty != RegType::SCALAR {
            say!(self, "verifier bug: backtracking misuse\n");
            return Err(Errno::Fault);
        }
        self.bt.frame = self.cur.curframe();
        self.bt.set_reg(reg);
        self.trace_current().map(|_| ())
    }

    /// The exact number in a register matters, and those in slots of the stack.
    pub fn mark_slot_precise(&mut self, frame: usize, slot: usize) -> Res {
        if !self.tracks_precision() {
            return Ok(());
        }
        self.bt.set_frame_slot(frame, slot);
        self.bt.frame = self.cur.curframe();
        self.trace_current().map(|_| ())
    }

    fn trace_current(&mut self) -> Res<bool> {
        let history = std::mem::take(&mut self.cur.history);
        let origin = Origin {
            is_current: true,
            history: &history,
            insn: self.cur.insn,
            first: self.cur.first_insn,
            parent: self.cur.parent,
        };
        let result = self.trace(&origin);
        self.cur.history = history;
        result
    }

    /// Makes precise before the current state what is precise in the one it equals.
    pub fn propagate_to_current(&mut self, equal: StateId) -> Res {
        self.gather_precise(equal);
        self.bt.frame = self.cur.curframe();
        self.trace_current().map(|_| ())
    }

    /// The same for a state on a back edge; whether that changed anything.
    pub fn propagate_precision(&mut self, equal: StateId, to: &State) -> Res<bool> {
        self.gather_precise(equal);
        self.bt.frame = to.curframe();
        let origin = Origin {
            is_current: false,
            history: &to.history,
            insn: to.insn,
            first: to.first_insn,
            parent: to.parent,
        };
        self.trace(&origin)
    }

    fn gather_precise(&mut self, from: StateId) {
        if !self.tracks_precision() {
            return;
        }
        let checkpoint = self.store.get(from);
        let frames = checkpoint.state.frames().iter().zip(&checkpoint.marks);
        for (f, (frame, marks)) in frames.enumerate().rev() {
            let (regs, slots) = marks.precise(frame);
            self.bt.regs[f] |= regs;
            self.bt.slots[f] |= slots;
            if !self.log.all_paths() {
                continue;
            }
            let regs = bits(regs.into()).map(|n| format!(",r{n}"));
            let slots = bits(slots).map(|n| format!(",fp{}", -8 * (n as i32 + 1)));
            let names: String = regs.chain(slots).collect();
            if let Some(names) = names.strip_prefix(',') {
                self.log
                    .write(format_args!("frame {f}: propagating {names}\n"));
            }
        }
    }

    /// Makes every scalar precise in a kept state and those before it.
    pub fn all_precise(&mut self, from: Option<StateId>) {
        let mut next = from;
        while let Some(id) = next {
            let checkpoint = self.store.get_mut(id);
            checkpoint.marks.iter_mut().for_each(Marks::mark_all);
            next = checkpoint.state.parent;
        }
    }

    fn trace(&mut self, origin: &Origin<'_>) -> Res<bool> {
        let mut changed = false;
        if !self.tracks_precision() || self.bt.is_empty() {
            return Ok(false);
        }
        let mut first = origin.first;
        let mut last = origin.insn as i32;
        let mut after = -1;
        let mut at: Option<StateId> = None;
        let mut skip_first = true;
        loop {
            if self.log.all_paths() {
                let frame = self.bt.frame;
                say!(
                    self,
                    "mark_precise: frame{frame}: last_idx {last} first_idx {first} subseq_idx {after} \n"
                );
            }
            if last < 0 {
                return self.trace_entry(at);
            }
            let remembered = self.env.precision_early_stop
                && origin.is_current
                && at.is_none()
                && !self.log.all_paths();
            let walk = match at {
                None => self.walk_back(
                    origin.history,
                    first,
                    last,
                    &mut after,
                    skip_first,
                    remembered,
                ),
                Some(id) => {
                    let history = std::mem::take(&mut self.store.get_mut(id).state.history);
                    let walk =
                        self.walk_back(&history, first, last, &mut after, skip_first, remembered);
                    self.store.get_mut(id).state.history = history;
                    walk
                }
            };
            skip_first = false;
            match walk? {
                Walk::Found => return Ok(changed),
                Walk::Start => {}
                Walk::Lost => {
                    self.lose_track(origin);
                    return Ok(changed);
                }
            }
            let parent = at.map_or(origin.parent, |id| self.store.get(id).state.parent);
            let Some(parent) = parent else { break };
            changed |= self.mark_in(parent)?;
            if self.bt.is_empty() {
                return Ok(changed);
            }
            let state = &self.store.get(parent).state;
            after = first as i32;
            last = state.last_insn;
            first = state.first_insn;
            at = Some(parent);
        }
        self.lose_track(origin);
        Ok(changed)
    }

    /// The origin was not found: all scalars before matter.
    fn lose_track(&mut self, origin: &Origin<'_>) {
        if self.log.all_paths() {
            let frame = self.cur.curframe();
            say!(
                self,
                "mark_precise: frame{frame}: falling back to forcing all scalars precise\n"
            );
        }
        self.all_precise(origin.parent);
        self.bt = Backtrack::default();
    }

    /// The walk came to the entry of a function that is verified on its own.
    fn trace_entry(&mut self, at: Option<StateId>) -> Res<bool> {
        if let Some(id) = at {
            let (regs, slots) = (self.bt.regs[self.bt.frame], self.bt.slots[self.bt.frame]);
            let Checkpoint { state, marks, .. } = self.store.get_mut(id);
            let outermost = state.frame(0);
            if state.curframe() == 0
                && outermost.subprog > 0
                && outermost.callsite == NO_CALLSITE
                && slots == 0
                && regs & !ARGS == 0
            {
                let (numbers, _) = marks[0].numbers(outermost, regs, 0);
                marks[0].mark(numbers, 0);
                self.bt = Backtrack::default();
                return Ok(numbers != 0);
            }
        }
        say!(self, "verifier bug: backtracking func entry\n");
        Err(Errno::Fault)
    }

    /// Marks what is looked for in a kept state; what is marked already needs no further look.
    fn mark_in(&mut self, id: StateId) -> Res<bool> {
        let mut changed = false;
        for f in (0..=self.bt.frame).rev() {
            let (mut regs, mut slots) = (self.bt.regs[f], self.bt.slots[f]);
            if regs != 0 || slots != 0 {
                let Checkpoint { state, marks, .. } = self.store.get_mut(id);
                let frame = state.frame(f);
                if 64 - slots.leading_zeros() as usize > frame.stack.len() {
                    return Err(Errno::Fault);
                }
                // What is a number and not marked yet is looked for further.
                (regs, slots) = marks[f].loose(frame, regs, slots);
                changed |= regs != 0 || slots != 0;
                marks[f].mark(regs, slots);
                self.bt.regs[f] = regs;
                self.bt.slots[f] = slots;
            }
            if self.log.all_paths() {
                let (regs, slots) = (reg_list(regs), slot_list(slots));
                say!(
                    self,
                    "mark_precise: frame{f}: parent state regs={regs} stack={slots}: "
                );
                self.print_kept(id, f, true);
            }
        }
        Ok(changed)
    }

    fn walk_back(
        &mut self,
        history: &[Step],
        first: u32,
        last: i32,
        after: &mut i32,
        mut skip: bool,
        remembered: bool,
    ) -> Res<Walk> {
        let mut count = history.len();
        let mut at = last;
        let logged = self.log.all_paths();
        loop {
            let mut top = history[..count].last().filter(|s| s.insn as i32 == at);
            if top.is_none() && !skip && !logged {
                // Over what changes nothing, down to a step or the first instruction.
                let step = history[..count].last().map_or(0, |s| s.insn as i32);
                let low = [step, first as i32].into_iter().filter(|l| *l <= at).max();
                let next = self.bt.next_concerned(&self.origins, low.unwrap_or(0), at);
                if next != at {
                    *after = next + 1;
                    at = next;
                    top = history[..count].last().filter(|s| s.insn as i32 == at);
                }
            }
            if !skip && (logged || self.bt.concerned(self.origins[at as usize], top)) {
                if !self.undo(at as u32, *after, top)? {
                    return Ok(Walk::Lost);
                }
                if self.bt.is_empty() {
                    return Ok(Walk::Found);
                }
            }
            if remembered && !skip && top.is_some() && self.traced.covers(count - 1, &self.bt) {
                self.bt = Backtrack::default();
                return Ok(Walk::Found);
            }
            skip = false;
            *after = at;
            if at == first as i32 && (count == 0 || (count == 1 && history[0].insn as i32 == at)) {
                return Ok(Walk::Start);
            }
            match top {
                Some(step) => {
                    at = step.prev as i32;
                    count -= 1;
                }
                None => at -= 1,
            }
            if at < 0 || at as usize >= self.insns.len() {
                say!(self, "verifier bug: backtracking idx {at}\n");
                return Err(Errno::Fault);
            }
        }
    }

    /// What is looked for before an instruction, given what is looked for after it; false if
    /// that cannot be told. `after` is the instruction that followed.
    fn undo(&mut self, at: u32, after: i32, step: Option<&Step>) -> Res<bool> {
        let insn = self.insns[at as usize];
        if insn.code == 0 {
            return Ok(true);
        }
        if self.log.all_paths() {
            let (f, bt) = (self.bt.frame, &self.bt);
            let (regs, slots) = (reg_list(bt.regs[f]), slot_list(bt.slots[f]));
            say!(
                self,
                "mark_precise: frame{f}: regs={regs} stack={slots} before {at}: "
            );
            self.print_insn(at);
        }
        self.bt.spread(step);
        let (class, op) = (insn.class(), insn.code & 0xf0);
        let from_reg = insn.code & code::X != 0;
        let spilled = step.filter(|s| s.flags & STEP_STACK != 0).map(|s| s.flags);
        let is_load = class == code::LDX
            || (class == code::STX
                && insn.code & 0xe0 == code::ATOMIC
                && insn.imm == code::LOAD_ACQ);
        match class {
            code::ALU | code::ALU64 => {
                if !self.bt.has_reg(insn.dst) || op == code::END || op == code::NEG {
                    return Ok(true);
                }
                if op == code::MOV {
                    self.bt.clear_reg(insn.dst);
                }
                if from_reg && insn.src as usize != FP {
                    self.bt.set_reg(insn.src);
                }
            }
            _ if is_load => {
                if !self.bt.has_reg(insn.dst) {
                    return Ok(true);
                }
                self.bt.clear_reg(insn.dst);
                let Some(flags) = spilled else {
                    return Ok(true);
                };
                let (frame, slot) = stack_of(flags);
                self.bt.set_frame_slot(frame, slot);
            }
            code::ST | code::STX => {
                if self.bt.has_reg(insn.dst) {
                    // A number that a pointer difference made.
                    return Ok(false);
                }
                let Some(flags) = spilled else {
                    return Ok(true);
                };
                let (frame, slot) = stack_of(flags);
                if self.bt.slots[frame] & (1 << slot) == 0 {
                    return Ok(true);
                }
                self.bt.slots[frame] &= !(1 << slot);
                if class == code::STX {
                    self.bt.set_reg(insn.src);
                }
            }
            code::JMP | code::JMP32 => {
                if op == code::CALL || op == code::EXIT {
                    return self.undo_call(at, after);
                }
                if from_reg {
                    if !self.bt.has_reg(insn.dst) && !self.bt.has_reg(insn.src) {
                        return Ok(true);
                    }
                    let flags = step.map_or(0, |s| s.flags);
                    if flags & STEP_SRC_STACK == 0 {
                        self.bt.set_reg(insn.src);
                    }
                    if flags & STEP_DST_STACK == 0 {
                        self.bt.set_reg(insn.dst);
                    }
                }
            }
            code::LD => {
                if !self.bt.has_reg(insn.dst) {
                    return Ok(true);
                }
                self.bt.clear_reg(insn.dst);
                if matches!(insn.code & 0xe0, code::IND | code::ABS) {
                    return Ok(false);
                }
            }
            _ => {}
        }
        self.bt.spread(step);
        Ok(true)
    }

    fn undo_call(&mut self, at: u32, after: i32) -> Res<bool> {
        let insn = self.insns[at as usize];
        let frame = self.bt.frame;
        let regs = self.bt.regs[frame];
        if insn.code & 0xf0 == code::EXIT {
            let calls_callback = after >= 0
                && self
                    .aux
                    .get(after as usize)
                    .is_some_and(|a| a.calls_callback);
            if calls_callback {
                self.bt.regs[frame] &= !ARGS;
            }
            if self.bt.regs[frame] & ARGS != 0 {
                say!(
                    self,
                    "verifier bug: backtracking exit unexpected regs {regs:x}\n"
                );
                return Err(Errno::Fault);
            }
            let called = after >= 1 && is_call(&self.insns[after as usize - 1]);
            let r0 = called && self.bt.has_reg(0);
            self.bt.clear_reg(0);
            self.bt.enter()?;
            if r0 {
                self.bt.set_reg(0);
            }
            return Ok(true);
        }
        if is_call(&insn) {
            let sub = self
                .sub_at(at as i64 + insn.imm as i64 + 1)
                .ok_or(Errno::Fault)?;
            if self.subs[sub].global {
                if regs & ARGS != 0 {
                    say!(
                        self,
                        "verifier bug: global subprog unexpected regs {regs:x}\n"
                    );
                    return Err(Errno::Fault);
                }
                self.bt.clear_reg(0);
                return Ok(true);
            }
            if regs & !ARGS != 0 || self.bt.slots[frame] != 0 {
                say!(
                    self,
                    "verifier bug: static subprog unexpected regs {regs:x}\n"
                );
                return Err(Errno::Fault);
            }
            self.bt.regs[frame] = 0;
            self.bt.leave()?;
            self.bt.regs[frame - 1] |= regs;
            return Ok(true);
        }
        if self.aux[at as usize].calls_callback && at as i32 != after - 1 {
            if regs & !ARGS != 0 || self.bt.slots[frame] != 0 {
                say!(self, "verifier bug: callback unexpected regs {regs:x}\n");
                return Err(Errno::Fault);
            }
            self.bt.regs[frame] = 0;
            self.bt.leave()?;
            return Ok(true);
        }
        if is_kfunc_call(&insn) && insn.imm == 0 {
            return Ok(false);
        }
        self.bt.clear_reg(0);
        if self.bt.regs[frame] & ARGS != 0 {
            say!(
                self,
                "verifier bug: backtracking call unexpected regs {regs:x}\n"
            );
            return Err(Errno::Fault);
        }
        Ok(true)
    }
}

/// Registers of a mask for the log.
pub(crate) fn reg_list(mask: u16) -> String {
    let names: Vec<String> = (0..16)
        .filter(|n| mask & (1 << n) != 0)
        .map(|n| format!("r{n}"))
        .collect();
    names.join(",")
}

/// Slots of a mask for the log.
pub(crate) fn slot_list(mask: u64) -> String {
    let names: Vec<String> = (0..64)
        .filter(|n| mask & (1 << n) != 0)
        .map(|n| format!("{}", -8 * (n + 1)))
        .collect();
    names.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linked_registers_survive_packing_in_reverse_order() {
        let mut linked = Linked::default();
        for at in 0..6 {
            assert!(linked.push(Link {
                frame: at,
                at: 63 - at,
                is_reg: at % 2 == 0
            }));
        }
        assert!(!linked.push(Link::default()), "six is all");
        let back = Linked::unpack(linked.pack());
        assert_eq!(back.links().len(), 6);
        for (a, b) in linked.links().iter().rev().zip(back.links()) {
            assert_eq!((a.frame, a.at, a.is_reg), (b.frame, b.at, b.is_reg));
        }
    }
}
