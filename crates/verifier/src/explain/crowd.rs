//! Where states pile up: what keeps a verification that takes too long from ending.

use crate::checker::{Checker, MAX_PENDING};
use crate::state::State;

/// Places that are named.
const TOP: usize = 5;

/// Where most states were kept, and why they were not merged.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Crowd {
    /// Whether the branches that wait to be walked were too many, not the states kept.
    pub waiting: bool,
    /// Instructions with the number of states kept there, or of branches from there that
    /// wait; the busiest last.
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
        let mut insns: Vec<(u32, u32)> = (0u32..).zip(counts).collect();
        insns.retain(|(_, kept)| *kept > 0);
        insns.sort_by_key(|(_, kept)| *kept);
        let insns = insns.split_off(insns.len().saturating_sub(TOP));
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
