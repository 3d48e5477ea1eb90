//! Progress of long runs, and Ctrl-C.

use std::io::IsTerminal;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// From now on Ctrl-C sets a flag instead of ending the process, so that what was done
/// so far is reported; a second Ctrl-C ends it.
pub fn catch_interrupt() {
    // Without a handler Ctrl-C ends the process as it always does: no reason to give up.
    let _ = ctrlc::set_handler(|| {
        if INTERRUPTED.swap(true, Ordering::Relaxed) {
            std::process::exit(130);
        }
    });
}

/// Whether Ctrl-C was pressed.
pub fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

/// A bar over `total` bytes on standard error, shown on a terminal only.
pub fn bytes(total: u64) -> ProgressBar {
    bar(
        total,
        "{wide_bar} {percent:>3} %  {msg}  {bytes_per_sec}, {eta} left",
    )
}

/// A bar over `total` programs, likewise.
pub fn items(total: u64) -> ProgressBar {
    bar(total, "{wide_bar} {pos} of {len}, {eta} left")
}

fn bar(total: u64, template: &str) -> ProgressBar {
    let target = match std::io::stderr().is_terminal() {
        true => ProgressDrawTarget::stderr_with_hz(10),
        false => ProgressDrawTarget::hidden(),
    };
    let bar = ProgressBar::with_draw_target(Some(total), target);
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(250));
    bar
}
