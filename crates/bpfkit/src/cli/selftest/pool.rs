//! Workers that check subtests, and the watchdog that gives one up.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use super::check::{Outcome, Shared, check};
use crate::cli::judge::WORKER_STACK;
use crate::cli::progress;

/// How often the watchdog and Ctrl-C are looked after.
const TICK: Duration = Duration::from_millis(100);

enum Note {
    Began {
        worker: usize,
        case: usize,
    },
    Done {
        worker: usize,
        case: usize,
        outcome: Outcome,
    },
    Gone {
        worker: usize,
    },
}

/// Checks every subtest on so many threads. `done` takes outcomes in the order of the
/// subtests; after Ctrl-C it takes what was begun before. A subtest that takes longer than
/// the watchdog allows fails, and its thread is left behind: nothing can end it.
pub fn run(
    shared: &Arc<Shared>,
    threads: usize,
    watchdog: Option<Duration>,
    mut done: impl FnMut(usize, Outcome),
) {
    let total = shared.suite.cases.len();
    let next = Arc::new(AtomicUsize::new(0));
    let (sender, notes) = channel();
    let mut workers = 0;
    let mut alive = 0;
    let mut begun: HashMap<usize, (usize, Instant)> = HashMap::new();
    let mut outcomes: Vec<Option<Outcome>> = (0..total).map(|_| None).collect();
    let mut given_up = vec![false; total];
    let mut shown = 0;
    for _ in 0..threads.clamp(1, total.max(1)) {
        alive += usize::from(spawn(shared, &next, &sender, workers));
        workers += 1;
    }
    while alive > 0 {
        match notes.recv_timeout(TICK) {
            Ok(Note::Began { worker, case }) => {
                begun.insert(worker, (case, Instant::now()));
            }
            Ok(Note::Done {
                worker,
                case,
                outcome,
            }) => {
                begun.remove(&worker);
                if !given_up[case] {
                    outcomes[case] = Some(outcome);
                }
            }
            Ok(Note::Gone { worker }) => {
                // One that was given up is not counted any more.
                alive -= usize::from(
                    begun
                        .remove(&worker)
                        .is_none_or(|(case, _)| !given_up[case]),
                );
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
        let late: Vec<(usize, usize)> = watchdog.map_or(Vec::new(), |limit| {
            let late = begun
                .iter()
                .filter(|(_, (_, since))| since.elapsed() > limit);
            late.map(|(worker, (case, _))| (*worker, *case)).collect()
        });
        for (worker, case) in late {
            begun.remove(&worker);
            given_up[case] = true;
            let seconds = watchdog.unwrap_or_default().as_secs();
            outcomes[case] = Some(Outcome::fail(format!(
                "WATCHDOG: it executes for more than {seconds} seconds\n"
            )));
            alive -= 1;
            alive += usize::from(spawn(shared, &next, &sender, workers));
            workers += 1;
        }
        while let Some(outcome) = outcomes.get_mut(shown).and_then(Option::take) {
            done(shown, outcome);
            shown += 1;
        }
    }
    // After an interrupt there may be gaps.
    for (case, outcome) in outcomes.into_iter().enumerate() {
        if let Some(outcome) = outcome {
            done(case, outcome);
        }
    }
}

/// Starts a worker; says whether there is one more.
fn spawn(
    shared: &Arc<Shared>,
    next: &Arc<AtomicUsize>,
    sender: &Sender<Note>,
    worker: usize,
) -> bool {
    let (shared, next, sender) = (Arc::clone(shared), Arc::clone(next), sender.clone());
    let work = move || {
        while !progress::interrupted() {
            let case = next.fetch_add(1, Ordering::Relaxed);
            let Some(subtest) = shared.suite.cases.get(case) else {
                break;
            };
            // Nobody listens once the run is over.
            let _ = sender.send(Note::Began { worker, case });
            let outcome = catch_unwind(AssertUnwindSafe(|| check(&shared, subtest)));
            let outcome = outcome.unwrap_or_else(|_| Outcome::fail("bpfkit panicked\n"));
            let _ = sender.send(Note::Done {
                worker,
                case,
                outcome,
            });
        }
        let _ = sender.send(Note::Gone { worker });
    };
    let thread = thread::Builder::new().stack_size(WORKER_STACK);
    thread.spawn(work).is_ok()
}
