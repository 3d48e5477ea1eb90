//! Where states pile up: what keeps a verification that takes too long from ending.

use rustc_hash::FxHashMap;

use crate::checker::{Checker, MAX_PENDING};
use crate::state::State;

/// Places that are named.
const TOP: usize = 5;

/// Where most states were kept, and why they were not merged.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Crowd {
    /// Whether the branches that wait to be walked were too many, not the states kept.
    pub waiting: bool,
    /// Instructions with the number of states kept at their source line, or of branches from
    /// there that wait; the busiest last.
    pub insns: Vec<(u32, u32)>,
    /// What differs between the states of the busiest instruction.
    pub differing: Option<String>,
}

impl Checker<'_> {
    /// Looks through the states kept.
    pub(crate) fn crowd(&self) -> Crowd {
        let waiting = self.pending.len() >= MAX_PENDING;
        let mut counts = self.store.kept.clone();
        if waiting {
            counts.fill(0);
            for pending in &self.pending {
                let from = usize::try_from(pending.prev).ok();
                if let Some(count) = from.and_then(|at| counts.get_mut(at)) {
                    *count += 1;
                }
            }
        }
        let insns = self.by_line(&counts);
        let differing = insns.last().filter(|_| !waiting).and_then(|&(insn, _)| {
            let states: Vec<&State> = self
                .store
                .buckets
                .iter()
                .flatten()
                .map(|id| &self.store.get(*id).state)
                .filter(|state| state.insn == insn)
                .collect();
            let live = self.aux.get(insn as usize).map_or(u16::MAX, |aux| aux.live);
            differing(&states, live)
        });
        Crowd {
            waiting,
            insns,
            differing,
        }
    }

    /// The counts of each source line, as an unrolled loop has many instructions of one, at
    /// its busiest instruction. The busiest lines come last.
    fn by_line(&self, counts: &[u32]) -> Vec<(u32, u32)> {
        /// Busiest instruction with its count, and the count of all.
        type Line = ((u32, u32), u32);
        let lines = &self.program.lines;
        let mut found: FxHashMap<(&str, u32), Line> = FxHashMap::default();
        for (insn, &count) in (0u32..).zip(counts) {
            if count == 0 {
                continue;
            }
            let line = lines
                .partition_point(|line| line.insn <= insn)
                .checked_sub(1);
            // Without lines each instruction stands for itself.
            let key = line.map_or(("", insn), |at| (&*lines[at].file, lines[at].line));
            let (busiest, sum) = found.entry(key).or_insert(((insn, count), 0));
            *sum += count;
            if count > busiest.1 {
                *busiest = (insn, count);
            }
        }
        let mut insns: Vec<(u32, u32)> = found.values().map(|(b, sum)| (b.0, *sum)).collect();
        insns.sort_unstable_by_key(|&(insn, sum)| (sum, insn));
        insns.split_off(insns.len().saturating_sub(TOP))
    }
}

/// The registers in use whose values differ most often from one state to the next.
fn differing(states: &[&State], live: u16) -> Option<String> {
    let mut counts = [0usize; 10];
    for pair in states.windows(2) {
        let [a, b] = pair else { continue };
        for (n, count) in counts.iter_mut().enumerate() {
            let (a, b) = (&a.top().regs[n], &b.top().regs[n]);
            *count += usize::from(a.ty != b.ty || a.range != b.range || a.off != b.off);
        }
    }
    let often = states.len() / 2;
    let names: Vec<String> = counts
        .iter()
        .enumerate()
        .filter(|&(n, &count)| live >> n & 1 != 0 && count > 0 && count >= often)
        .map(|(n, _)| format!("R{n}"))
        .collect();
    (!names.is_empty()).then(|| {
        let names = names.join(", ");
        format!("they differ in {names}, so that none of them covers another")
    })
}
