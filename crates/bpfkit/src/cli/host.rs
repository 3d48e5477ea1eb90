//! The surroundings of programs that the command line runs: this machine's clocks, a
//! seeded generator, this process as the current task, and trace lines collected.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use bpfkit_runtime::{Clock, FixedHost, Host, Task};
use rustix::time::{ClockId, DynamicClockId, clock_gettime, clock_gettime_dynamic};

/// Trace lines kept for the report; the rest is counted.
const KEPT_LINES: usize = 1000;

/// This machine, seen from a program.
pub struct MachineHost {
    fixed: FixedHost,
    frozen: bool,
    live: bool,
    lines: Mutex<VecDeque<String>>,
    line_count: AtomicU64,
}

impl MachineHost {
    /// `seed` of the generator, a time that all clocks show instead of their own, and
    /// whether trace lines are printed as they come.
    pub fn new(seed: u64, time: Option<u64>, live: bool) -> Self {
        let mut task = Task {
            pid: std::process::id(),
            tgid: std::process::id(),
            ..Task::default()
        };
        task.comm = [0; 16];
        task.comm[..6].copy_from_slice(b"bpfkit");
        MachineHost {
            fixed: FixedHost {
                time: AtomicU64::new(time.unwrap_or(0)),
                seed: AtomicU64::new(seed),
                task,
            },
            frozen: time.is_some(),
            live,
            lines: Mutex::default(),
            line_count: AtomicU64::new(0),
        }
    }

    /// Trace lines so far: the last ones kept, and how many there were.
    pub fn trace_lines(&self) -> (Vec<String>, u64) {
        let lines = self
            .lines
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        (
            lines.iter().cloned().collect(),
            self.line_count.load(Ordering::Relaxed),
        )
    }
}

impl Host for MachineHost {
    fn now(&self, clock: Clock) -> u64 {
        if self.frozen {
            return self.fixed.now(clock);
        }
        let time = match clock {
            Clock::Monotonic => clock_gettime(ClockId::Monotonic),
            Clock::MonotonicCoarse => clock_gettime(ClockId::MonotonicCoarse),
            Clock::Boot => clock_gettime(ClockId::Boottime),
            Clock::Realtime => clock_gettime(ClockId::Realtime),
            Clock::Tai => clock_gettime_dynamic(DynamicClockId::Tai)
                .unwrap_or_else(|_| clock_gettime(ClockId::Realtime)),
        };
        // Overflows in 584 years.
        (time.tv_sec as u64)
            .wrapping_mul(1_000_000_000)
            .wrapping_add(time.tv_nsec as u64)
    }

    fn random(&self) -> u32 {
        self.fixed.random()
    }

    fn task(&self) -> Task {
        self.fixed.task()
    }

    fn trace(&self, text: &[u8]) {
        let text = String::from_utf8_lossy(text);
        let text = text.trim_end_matches('\n');
        if self.live {
            anstream::eprintln!("trace: {text}");
        }
        self.line_count.fetch_add(1, Ordering::Relaxed);
        let mut lines = self
            .lines
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        if lines.len() == KEPT_LINES {
            lines.pop_front();
        }
        lines.push_back(text.to_owned());
    }
}
