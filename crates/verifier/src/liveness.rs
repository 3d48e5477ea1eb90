//! Live stack slots: which slots may be read at or after an instruction.
//!
//! The marks are gathered while paths are walked: an instruction, reached by a given chain
//! of calls, *may read* the union of what it read on any path and *must write* the
//! intersection of what it wrote. From them the textbook data-flow equations give the slots
//! live before each instruction, and the slots that a function surely writes from there on,
//! which its callers take as written by the call. (Linux 6.18, `kernel/bpf/liveness.c`.)

use std::fmt;

use rustc_hash::FxHashMap;

use crate::flow::Flow;
use crate::log::Log;
use crate::state::{MAX_FRAMES, State};

/// Marks of one instruction for one frame; a bit is a slot.
#[derive(Clone, Copy, Default)]
struct Marks {
    may_read: u64,
    must_write: u64,
    /// Written here or surely later in the same function.
    must_write_later: u64,
    live_before: u64,
}

/// A chain of calls: the instructions that called, then the start of the function reached.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Chain {
    sites: [u32; MAX_FRAMES],
    depth: u8,
}

/// What the visits of an instruction so far wrote.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Writes {
    /// There was none.
    Unseen,
    /// No slot in all of them, whatever the next one writes.
    None,
    /// Some slots, in all of them.
    Some,
}

/// A function as reached by one chain of calls.
struct Instance {
    chain: Chain,
    start: u32,
    /// Marks for each frame of the chain, made when first needed.
    frames: [Option<Box<[Marks]>>; MAX_FRAMES],
    /// What is known of each instruction's writes.
    writes: Box<[Writes]>,
    /// Instructions whose marks changed since the last update, relative.
    dirty: Vec<u32>,
    queued: Box<[bool]>,
    updated: bool,
    write_dropped: bool,
}

impl Instance {
    fn marks(&self, frame: usize, insn: u32) -> Marks {
        let at = insn.wrapping_sub(self.start) as usize;
        self.frames[frame]
            .as_ref()
            .and_then(|m| m.get(at))
            .copied()
            .unwrap_or_default()
    }

    fn marks_mut(&mut self, frame: usize, at: usize) -> &mut Marks {
        let len = self.writes.len();
        let marks = self.frames[frame]
            .get_or_insert_with(|| vec![Marks::default(); len].into_boxed_slice());
        &mut marks[at]
    }

    fn note(&mut self, at: usize) {
        self.updated = true;
        if !self.queued[at] {
            self.queued[at] = true;
            self.dirty.push(at as u32);
        }
    }

    fn read(&mut self, frame: usize, insn: u32, mask: u64) {
        let at = (insn - self.start) as usize;
        let marks = self.marks_mut(frame, at);
        let before = marks.may_read;
        marks.may_read |= mask;
        if marks.may_read != before && marks.may_read & !marks.live_before != 0 {
            self.note(at);
        }
    }

    fn write(&mut self, insn: u32, writes: &[u64; MAX_FRAMES]) {
        let at = (insn - self.start) as usize;
        if self.writes[at] == Writes::None {
            return;
        }
        let seen = self.writes[at] != Writes::Unseen;
        let mut any = false;
        for (frame, &mask) in writes
            .iter()
            .enumerate()
            .take(self.chain.depth as usize + 1)
        {
            if mask == 0 && (!seen || self.frames[frame].is_none()) {
                continue;
            }
            let marks = self.marks_mut(frame, at);
            let before = marks.must_write;
            let mask = if seen { mask & before } else { mask };
            any |= mask != 0;
            if before != mask {
                marks.must_write = mask;
                self.write_dropped |= before & !mask != 0;
                self.note(at);
            }
        }
        self.writes[at] = if any { Writes::Some } else { Writes::None };
    }

    /// Brings `live_before` and `must_write_later` to their fixed point.
    fn update(&mut self, flow: &Flow) {
        let mut work = std::mem::take(&mut self.dirty);
        if self.write_dropped {
            for marks in self.frames.iter_mut().flatten() {
                for m in marks.iter_mut() {
                    m.must_write_later = 0;
                }
            }
            work.clear();
            work.extend(0..self.writes.len() as u32);
            self.queued.fill(true);
        }
        while let Some(at) = work.pop() {
            let insn = self.start + at;
            self.queued[at as usize] = false;
            let successors = flow.successors(insn);
            if successors.is_empty() {
                continue;
            }
            let mut changed = false;
            for marks in self.frames.iter_mut().flatten() {
                let mut live_after = 0;
                let mut later = u64::MAX;
                for &next in successors {
                    let next = marks[(next - self.start) as usize];
                    live_after |= next.live_before;
                    later &= next.must_write_later;
                }
                let m = &mut marks[at as usize];
                later |= m.must_write;
                let live = (live_after & !m.must_write) | m.may_read;
                changed |= live != m.live_before || later != m.must_write_later;
                m.live_before = live;
                m.must_write_later = later;
            }
            if changed {
                for &before in flow.predecessors(insn) {
                    let before = before - self.start;
                    if !self.queued[before as usize] {
                        self.queued[before as usize] = true;
                        work.push(before);
                    }
                }
            }
        }
        self.updated = false;
        self.write_dropped = false;
    }
}

/// Where changes of marks are told, as far as the log wants them.
pub struct Told<'a> {
    pub log: &'a mut Log,
    /// Instructions at which states are compared.
    pub prune_points: &'a dyn Fn(u32) -> bool,
}

impl Told<'_> {
    fn change(&mut self, chain: &Chain, what: &str, frame: usize, insn: u32, old: u64, new: u64) {
        let (added, gone) = (new & !old, old & !new);
        if added | gone == 0 {
            return;
        }
        self.log
            .write(format_args!("{chain} frame {frame} insn {insn} "));
        if added != 0 {
            self.log.write(format_args!("+{what} {} ", slots(added)));
        }
        if gone != 0 {
            self.log.write(format_args!("-{what} {}", slots(gone)));
        }
        self.log.push("\n");
    }
}

/// Offsets of slots, as the log names them.
pub(crate) fn slots(mask: u64) -> String {
    let offsets = (0..64).filter(|n| mask & (1 << n) != 0);
    let offsets: Vec<String> = offsets.map(|n| format!("{}", -8 * (n + 1))).collect();
    offsets.join(",")
}

impl fmt::Display for Chain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sites = self.sites[..=self.depth as usize].iter();
        let sites: Vec<String> = sites.map(u32::to_string).collect();
        write!(f, "({})", sites.join(","))
    }
}

impl Instance {
    /// The same as [`Instance::update`], in the kernel's order and told in its words.
    fn update_aloud(&mut self, flow: &Flow, told: &mut Told<'_>) {
        if self.write_dropped {
            for m in self.frames.iter_mut().flatten().flat_map(|m| m.iter_mut()) {
                m.must_write_later = 0;
            }
        }
        let own = self.start..self.start + self.writes.len() as u32;
        let mut order = flow.postorder();
        order.retain(|insn| own.contains(insn));
        let mut rounds = 0;
        let mut changed = true;
        while changed {
            changed = false;
            rounds += 1;
            for (frame, marks) in self.frames.iter_mut().enumerate() {
                let Some(marks) = marks else { continue };
                for &insn in &order {
                    let successors = flow.successors(insn);
                    if successors.is_empty() {
                        continue;
                    }
                    let (mut live_after, mut later) = (0, u64::MAX);
                    for &next in successors {
                        let next = marks[(next - self.start) as usize];
                        live_after |= next.live_before;
                        later &= next.must_write_later;
                    }
                    let m = &mut marks[(insn - self.start) as usize];
                    later |= m.must_write;
                    let live = (live_after & !m.must_write) | m.may_read;
                    changed |= live != m.live_before || later != m.must_write_later;
                    if m.may_read != 0
                        || m.must_write != 0
                        || insn == self.start
                        || (told.prune_points)(insn)
                    {
                        let chain = &self.chain;
                        told.change(chain, "live", frame, insn, m.live_before, live);
                        told.change(chain, "written", frame, insn, m.must_write_later, later);
                    }
                    m.live_before = live;
                    m.must_write_later = later;
                }
            }
        }
        let chain = &self.chain;
        told.log.write(format_args!(
            "{chain} live stack update done in {rounds} iterations\n"
        ));
        self.dirty.clear();
        self.queued.fill(false);
        self.updated = false;
        self.write_dropped = false;
    }
}

/// The marks of a whole verification.
#[derive(Default)]
pub struct Liveness {
    instances: Vec<Instance>,
    by_chain: FxHashMap<Chain, u32>,
    /// The instance of the state being walked, if known.
    current: Option<u32>,
    writes: [u64; MAX_FRAMES],
    write_insn: u32,
}

/// Answers whether slots are live in one state; see [`Liveness::query`].
pub struct Query {
    instances: [u32; MAX_FRAMES],
    callsites: [u32; MAX_FRAMES],
    depth: usize,
    insn: u32,
}

impl Liveness {
    fn instance_of(&mut self, flow: &Flow, state: &State, frame: usize) -> u32 {
        let mut chain = Chain {
            sites: [0; MAX_FRAMES],
            depth: frame as u8,
        };
        for (site, callee) in chain.sites.iter_mut().zip(&state.frames()[1..=frame]) {
            *site = callee.callsite as u32;
        }
        let start = flow.subprog_start(state.frame(frame).subprog as usize);
        chain.sites[frame] = start;
        self.instance(flow, chain, start)
    }

    fn instance(&mut self, flow: &Flow, chain: Chain, start: u32) -> u32 {
        let instances = &mut self.instances;
        *self.by_chain.entry(chain).or_insert_with(|| {
            let len = flow.subprog_len(start);
            instances.push(Instance {
                chain,
                start,
                frames: Default::default(),
                writes: vec![Writes::Unseen; len].into_boxed_slice(),
                dirty: Vec::new(),
                queued: vec![false; len].into_boxed_slice(),
                updated: false,
                write_dropped: false,
            });
            instances.len() as u32 - 1
        })
    }

    fn current(&mut self, flow: &Flow, state: &State) -> usize {
        if let Some(at) = self.current {
            return at as usize;
        }
        let at = self.instance_of(flow, state, state.curframe());
        self.current = Some(at);
        at as usize
    }

    /// The state's chain of calls changed.
    pub fn forget_chain(&mut self) {
        self.current = None;
    }

    /// Begins to gather the writes of the instruction at `insn`.
    pub fn begin(&mut self, flow: &Flow, state: &State, insn: u32) {
        self.current(flow, state);
        self.write_insn = insn;
        self.writes = [0; MAX_FRAMES];
    }

    /// The instruction read slots of a frame.
    pub fn read(&mut self, flow: &Flow, state: &State, frame: u8, insn: u32, mask: u64) {
        let at = self.current(flow, state);
        self.instances[at].read(frame as usize, insn, mask);
    }

    /// The instruction wrote slots of a frame whole.
    pub fn wrote(&mut self, frame: u8, mask: u64) {
        self.writes[frame as usize] |= mask;
    }

    /// Ends the instruction: what it wrote counts, unless it entered or left a function.
    pub fn commit(&mut self) {
        if let Some(at) = self.current {
            let writes = self.writes;
            self.instances[at as usize].write(self.write_insn, &writes);
        }
    }

    /// Brings the marks along the state's chain of calls up to date, callees first.
    /// With `told`, changes are written to the log.
    pub fn update(&mut self, flow: &Flow, state: &State, mut told: Option<Told<'_>>) {
        self.current = None;
        for frame in (0..=state.curframe()).rev() {
            let at = self.instance_of(flow, state, frame) as usize;
            if !self.instances[at].updated {
                continue;
            }
            match &mut told {
                Some(told) => self.instances[at].update_aloud(flow, told),
                None => self.instances[at].update(flow),
            }
            if frame > 0 {
                self.tell_caller(flow, at, frame);
            }
        }
    }

    /// What a function reads and surely writes in its callers' frames counts for the call.
    fn tell_caller(&mut self, flow: &Flow, at: usize, frame: usize) {
        let instance = &self.instances[at];
        let site = instance.chain.sites[frame - 1];
        let mut chain = instance.chain;
        let start = flow.subprog_start(flow.subprog_of(site));
        chain.sites[frame] = 0;
        chain.sites[frame - 1] = start;
        chain.depth = frame as u8 - 1;
        let outer = self.instance(flow, chain, start) as usize;
        let mut writes = [0; MAX_FRAMES];
        for (f, write) in writes.iter_mut().enumerate().take(frame) {
            let instance = &self.instances[at];
            if instance.frames[f].is_none() {
                continue;
            }
            let entry = instance.marks(f, instance.start);
            *write = entry.must_write_later;
            self.instances[outer].read(f, site, entry.live_before);
        }
        self.instances[outer].write(site, &writes);
    }

    /// Per instruction of a program: the slots of the own frame that may be read there or later,
    /// by whatever calls it is reached.
    pub fn own_slots(&self, len: usize) -> Vec<u64> {
        let mut slots = vec![0; len];
        for instance in &self.instances {
            let marks = instance.frames[instance.chain.depth as usize].iter();
            let from = slots.iter_mut().skip(instance.start as usize);
            for (slot, marks) in from.zip(marks.flat_map(|m| m.iter())) {
                *slot |= marks.live_before;
            }
        }
        slots
    }

    /// Prepares questions about a state.
    pub fn query(&mut self, flow: &Flow, state: &State) -> Query {
        let mut query = Query {
            instances: [0; MAX_FRAMES],
            callsites: [0; MAX_FRAMES],
            depth: state.curframe(),
            insn: state.insn,
        };
        for frame in 0..=state.curframe() {
            query.instances[frame] = self.instance_of(flow, state, frame);
            if frame > 0 {
                query.callsites[frame - 1] = state.frame(frame).callsite as u32;
            }
        }
        query
    }

    /// The slots of a frame that may still be read: in the current function, or after the
    /// return to (for a callback: at) the call in one between.
    pub fn live_slots(
        &self,
        query: &Query,
        frame: usize,
        calls_callback: impl Fn(u32) -> bool,
    ) -> u64 {
        let at = |f: usize| &self.instances[query.instances[f] as usize];
        let mut live = at(query.depth).marks(frame, query.insn).live_before;
        for f in frame..query.depth {
            let site = query.callsites[f];
            let insn = if calls_callback(site) { site } else { site + 1 };
            live |= at(f).marks(frame, insn).live_before;
        }
        live
    }
}

impl crate::checker::Checker<'_> {
    /// Brings the marks along the current state's chain of calls up to date.
    pub fn update_live_slots(&mut self) {
        let prune_points = |insn: u32| self.aux[insn as usize].prune_point;
        let told = self.log.all_paths().then_some(Told {
            log: &mut self.log,
            prune_points: &prune_points,
        });
        self.live.update(&self.flow, &self.cur, told);
    }
}
