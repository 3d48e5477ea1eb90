//! Times that other processes do not lengthen.

use std::time::{Duration, Instant};

/// Time that this process was on a CPU, where Linux tells; else the clock's.
pub fn cpu_time() -> Duration {
    // The kernel counts when it schedules.
    std::thread::yield_now();
    let text = std::fs::read_to_string("/proc/self/schedstat").ok();
    let on_cpu = text.and_then(|t| t.split(' ').next()?.parse().ok());
    match on_cpu {
        Some(nanoseconds) => Duration::from_nanos(nanoseconds),
        None => {
            static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
            START.get_or_init(Instant::now).elapsed()
        }
    }
}
