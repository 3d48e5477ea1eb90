//! How long `may_goto` falls through: a quarter of a second in each frame, looked at after
//! every round of 65535 times, as on kernels that time it (6.15 and later). Where the host's
//! clock stands still, as often as the other kernels allow.

use crate::host::{Clock, Host};

/// Times between two looks at the clock (`BPF_MAX_TIMED_LOOPS`).
const ROUND: u64 = 0xffff;
/// Nanoseconds.
const TIME: u64 = 1_000_000_000 / 4;
/// Times without a clock (`BPF_MAX_LOOPS`).
const TIMES: u64 = 8 << 20;

/// What the `may_goto` instructions of a frame share. Machine code counts `left` down itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct MayGoto {
    /// Times to fall through before the clock is looked at.
    pub left: u64,
    /// When the first round had ended; 0 before.
    since: u64,
    /// Times in the rounds that have ended.
    spent: u64,
}

impl MayGoto {
    /// Of a frame that begins.
    pub const NEW: Self = Self {
        left: ROUND,
        since: 0,
        spent: 0,
    };

    /// After the last time of a round: whether to fall through once more. `left` counts the
    /// times after that one.
    pub fn again(&mut self, host: &dyn Host) -> bool {
        let now = host.now(Clock::Monotonic);
        if self.spent == 0 {
            (self.since, self.spent) = (now, ROUND);
        }
        let elapsed = now.saturating_sub(self.since);
        let round = match elapsed {
            0 => ROUND.min(TIMES.saturating_sub(self.spent)),
            _ if elapsed < TIME => ROUND,
            _ => 0,
        };
        self.spent = self.spent.saturating_add(round);
        self.left = round.saturating_sub(1);
        round > 0
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    use super::*;
    use crate::host::FixedHost;

    /// A clock that moves so many nanoseconds whenever it is looked at.
    struct Moving(AtomicU64, u64);

    impl Host for Moving {
        fn now(&self, _: Clock) -> u64 {
            self.0.fetch_add(self.1, Relaxed)
        }
    }

    fn times(host: &dyn Host) -> u64 {
        let mut budget = MayGoto::NEW;
        let mut times = 0;
        loop {
            if budget.left > 0 {
                times += budget.left;
                budget.left = 0;
            } else if budget.again(host) {
                times += 1;
            } else {
                return times;
            }
        }
    }

    #[test]
    fn a_quarter_of_a_second_or_eight_million_times() {
        assert_eq!(times(&FixedHost::default()), 8 << 20);
        // The first look starts the clock, 25 more begin rounds, the last ends them.
        assert_eq!(times(&Moving(AtomicU64::new(5), 10_000_000)), 26 * 0xffff);
        // A clock that jumps ends it at the second look.
        assert_eq!(times(&Moving(AtomicU64::new(5), 1 << 40)), 2 * 0xffff);
    }
}
