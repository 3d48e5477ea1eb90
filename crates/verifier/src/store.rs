//! The states kept for comparison, and the loops under exploration.

use smallvec::SmallVec;

use crate::checker::Checker;
use crate::fail::{Errno, Res, say};
use crate::marks::Marks;
use crate::prune::Place;
use crate::state::{MAX_FRAMES, State, StateId};

/// A state kept.
pub(crate) struct Checkpoint {
    pub state: State,
    /// Of each frame.
    pub marks: SmallVec<[Marks; 2]>,
    /// How often another was found equal, or not.
    pub hits: u32,
    pub misses: u32,
    /// Register that differed when it was last compared, to look at first.
    pub differed: u8,
    /// Where it is kept in [`Store::buckets`].
    pub bucket: u32,
    /// Not compared with any more, though states descend from it.
    pub retired: bool,
}

/// Calls that lead to a loop, and the loop.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct LoopChain {
    sites: [u32; MAX_FRAMES],
    scc: u32,
}

/// A loop entered by one chain of calls.
struct Visit {
    chain: LoopChain,
    /// First state kept inside, until all paths from it were walked.
    entry: Option<StateId>,
    /// States found equal to one inside whose paths were not all walked yet.
    back_edges: Vec<State>,
}

/// All states kept.
#[derive(Default)]
pub(crate) struct Store {
    slots: Vec<Option<Box<Checkpoint>>>,
    unused: Vec<u32>,
    /// By instruction and call site, oldest first.
    pub buckets: Vec<Vec<StateId>>,
    /// Of each bucket, where a state was found to differ last, to look at first.
    pub differs_at: Vec<Place>,
    /// Of each bucket, the states whose paths were all walked and that were not cleaned.
    pub unclean: Vec<u32>,
    visits: Vec<Visit>,
    /// States ever kept, by instruction.
    pub kept: Vec<u32>,
    pub total: u32,
    pub peak: u32,
    explored: u32,
    retired: u32,
    back_edges: u32,
}

impl Store {
    pub fn new(insns: usize) -> Store {
        Store {
            buckets: vec![Vec::new(); insns],
            differs_at: vec![Place::default(); insns],
            kept: vec![0; insns],
            unclean: vec![0; insns],
            ..Store::default()
        }
    }

    /// Bucket of an instruction in a frame called from `callsite`.
    pub fn bucket(&self, insn: u32, callsite: i32) -> usize {
        (insn ^ callsite as u32) as usize % self.buckets.len()
    }

    pub fn get(&self, id: StateId) -> &Checkpoint {
        match self.slots.get(id.0 as usize) {
            Some(Some(c)) => c,
            _ => unreachable!("a state that others refer to is kept"),
        }
    }

    pub fn get_mut(&mut self, id: StateId) -> &mut Checkpoint {
        match self.slots.get_mut(id.0 as usize) {
            Some(Some(c)) => c,
            _ => unreachable!("a state that others refer to is kept"),
        }
    }

    /// Keeps a state.
    pub fn add(&mut self, bucket: usize, state: State) -> StateId {
        if let Some(kept) = self.kept.get_mut(state.insn as usize) {
            *kept += 1;
        }
        let entry = Some(Box::new(Checkpoint {
            marks: smallvec::smallvec![Marks::NEW; state.curframe() + 1],
            state,
            hits: 0,
            misses: 0,
            differed: 0,
            bucket: bucket as u32,
            retired: false,
        }));
        let id = match self.unused.pop() {
            Some(at) => {
                self.slots[at as usize] = entry;
                StateId(at)
            }
            None => {
                self.slots.push(entry);
                StateId(self.slots.len() as u32 - 1)
            }
        };
        self.buckets[bucket].push(id);
        self.total += 1;
        self.explored += 1;
        self.note_peak();
        id
    }

    fn note_peak(&mut self) {
        self.peak = self
            .peak
            .max(self.explored + self.retired + self.back_edges);
    }

    /// Compares with it no more.
    pub fn retire(&mut self, bucket: usize, at: usize) -> StateId {
        let id = self.buckets[bucket].remove(at);
        let checkpoint = self.get_mut(id);
        checkpoint.retired = true;
        if checkpoint.state.branches == 0 && !checkpoint.state.cleaned {
            self.unclean[bucket] -= 1;
        }
        self.retired += 1;
        self.explored -= 1;
        id
    }

    fn visit(&self, chain: &LoopChain) -> Option<usize> {
        self.visits.iter().position(|v| v.chain == *chain)
    }

    /// Forgets all states; the counts stay.
    pub fn clear(&mut self) {
        self.slots.clear();
        self.unused.clear();
        for bucket in &mut self.buckets {
            bucket.clear();
        }
        self.unclean.fill(0);
        self.visits.clear();
    }
}

impl Checker<'_> {
    /// The outermost loop that a state is in, with the calls that lead there.
    fn loop_chain(&self, state: &State) -> Option<LoopChain> {
        let mut chain = LoopChain::default();
        for frame in 0..=state.curframe() {
            let insn = state.frame_insn(frame);
            let scc = self.aux[insn as usize].scc;
            if scc != 0 {
                chain.scc = scc;
                return Some(chain);
            }
            if frame < state.curframe() {
                chain.sites[frame] = insn;
            }
        }
        None
    }

    /// Whether the marks of a state may still grow: it is in a loop not yet walked to its end.
    pub fn incomplete(&self, id: StateId) -> bool {
        if self.store.back_edges == 0 {
            return false;
        }
        let Some(chain) = self.loop_chain(&self.store.get(id).state) else {
            return false;
        };
        self.store
            .visit(&chain)
            .is_some_and(|v| !self.store.visits[v].back_edges.is_empty())
    }

    /// Notes that a state kept is the first in its loop.
    pub fn enter_loop(&mut self, id: StateId) {
        let Some(chain) = self.loop_chain(&self.store.get(id).state) else {
            return;
        };
        let at = match self.store.visit(&chain) {
            Some(at) => at,
            None => {
                self.store.visits.push(Visit {
                    chain,
                    entry: None,
                    back_edges: Vec::new(),
                });
                self.store.visits.len() - 1
            }
        };
        if self.store.visits[at].entry.is_none() {
            self.store.visits[at].entry = Some(id);
            self.tell_loop("enter", &chain);
        }
    }

    fn tell_loop(&mut self, what: &str, chain: &LoopChain) {
        if self.log.all_paths() {
            let sites = chain.sites.iter().take_while(|&&site| site != 0);
            let sites: String = sites.map(|site| format!("{site},")).collect();
            let scc = chain.scc;
            say!(self, "SCC {what} ({sites}{scc})\n");
        }
    }

    /// All paths from a state were walked: if it is the first of its loop, what later states
    /// of the loop need is passed on along the back edges.
    fn exit_loop(&mut self, id: StateId) -> Res {
        let Some(chain) = self.loop_chain(&self.store.get(id).state) else {
            return Ok(());
        };
        let Some(at) = self.store.visit(&chain) else {
            return Err(Errno::Fault);
        };
        if self.store.visits[at].entry != Some(id) {
            return Ok(());
        }
        self.store.visits[at].entry = None;
        self.tell_loop("exit", &chain);
        let mut edges = std::mem::take(&mut self.store.visits[at].back_edges);
        self.store.back_edges -= edges.len() as u32;
        self.store.note_peak();
        // While the marks travel, the states count as incomplete: nothing asks meanwhile.
        const MAX_ROUNDS: usize = 64;
        for round in 0.. {
            if round >= MAX_ROUNDS {
                for edge in &edges {
                    self.all_precise(edge.parent);
                }
                break;
            }
            let mut changed = false;
            for edge in &mut edges {
                let Some(equal) = edge.equal else { continue };
                changed |= self.propagate_precision(equal, edge)?;
            }
            if !changed {
                break;
            }
        }
        Ok(())
    }

    /// The current state was found equal to one in a loop not yet walked to its end.
    pub fn add_back_edge(&mut self, equal: StateId, mut state: State, insn: u32) -> Res {
        state.equal = Some(equal);
        state.insn = insn;
        let chain = self
            .loop_chain(&self.store.get(equal).state)
            .ok_or(Errno::Fault)?;
        let at = self.store.visit(&chain).ok_or(Errno::Fault)?;
        self.tell_loop("backedge", &chain);
        self.store.visits[at].back_edges.push(state);
        self.store.back_edges += 1;
        self.store.note_peak();
        Ok(())
    }

    /// The path of the current state ended: counts down the branches of those before it.
    pub fn end_path(&mut self) -> Res {
        self.cur.branches -= 1;
        let mut next = if self.cur.branches == 0 {
            self.cur.parent
        } else {
            None
        };
        while let Some(id) = next {
            let checkpoint = self.store.get_mut(id);
            checkpoint.state.branches -= 1;
            let (branches, parent) = (checkpoint.state.branches, checkpoint.state.parent);
            if branches != 0 {
                break;
            }
            if !checkpoint.retired {
                let bucket = checkpoint.bucket as usize;
                self.store.unclean[bucket] += 1;
            }
            self.exit_loop(id)?;
            self.free_if_unused(id);
            next = parent;
        }
        Ok(())
    }

    /// Drops a retired state that nothing refers to.
    pub fn free_if_unused(&mut self, id: StateId) {
        let checkpoint = self.store.get(id);
        if !checkpoint.retired || checkpoint.state.branches != 0 || self.incomplete(id) {
            return;
        }
        self.store.slots[id.0 as usize] = None;
        self.store.unused.push(id.0);
        self.store.retired -= 1;
    }
}
