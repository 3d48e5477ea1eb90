//! Compares verdicts with those of a Linux kernel.
//!
//! ```text
//! oracle [--show CLASS|time] [--log LEVEL] [FILTER]
//! ```
//!
//! Reads `BPFKIT_ORACLE` (a file of JSON lines; default `testdata/oracle/*.jsonl`) and the
//! objects in `BPFKIT_SELFTESTS` (default `target/kernel-selftests`); links them against
//! the running kernel. `BPFKIT_RUNS` is how often each program is timed.

use std::collections::BTreeMap;

use judge::{Options, Outcome, Row};

#[path = "../tests/oracle/judge.rs"]
mod judge;

fn main() {
    let mut show = None;
    let mut filter = String::new();
    let runs = std::env::var("BPFKIT_RUNS").ok();
    let kernel = std::env::var("BPFKIT_KERNEL").ok();
    let mut options = Options {
        kernel: kernel.and_then(|k| k.parse().ok()),
        log_level: 0,
        runs: runs.and_then(|r| r.parse().ok()).unwrap_or(1),
    };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--show" => show = args.next(),
            "--log" => options.log_level = args.next().and_then(|l| l.parse().ok()).unwrap_or(0),
            _ => filter = arg,
        }
    }
    std::panic::set_hook(Box::new(|info| eprintln!("panic: {info}")));
    let rows = judge::all_rows();
    let wanted = |row: &Row| row.name().contains(&filter);
    match judge::compare(&rows, &wanted, options) {
        Ok(outcomes) => report(&rows, &outcomes, show.as_deref()),
        Err(e) => eprintln!("{e}"),
    }
}

fn report(rows: &[Row], outcomes: &[Outcome], show: Option<&str>) {
    let mut classes: BTreeMap<&str, Vec<&Outcome>> = BTreeMap::new();
    for outcome in outcomes {
        if !outcome.log.is_empty() {
            println!("{}", outcome.log);
        }
        if !outcome.class.is_empty() {
            classes.entry(&outcome.class).or_default().push(outcome);
        }
    }
    let mut classes: Vec<_> = classes.into_iter().collect();
    classes.sort_by_key(|(_, o)| std::cmp::Reverse(o.len()));
    for (class, list) in &classes {
        println!("{:5} {class}   [{}]", list.len(), rows[list[0].row].name());
        if show.is_some_and(|s| class.contains(s)) {
            for outcome in list {
                println!("        {}: {}", rows[outcome.row].name(), outcome.detail);
            }
        }
    }
    let share = |count: usize, of: usize| 100.0 * count as f64 / of.max(1) as f64;
    let c = judge::count(rows, outcomes);
    let refused = c.programs - c.accepted;
    println!(
        "programs {} ({} accepted, {refused} refused by the kernel)",
        c.programs, c.accepted
    );
    println!(
        "verdict  {} = {:.2} %, {} accepted by us alone",
        c.verdicts,
        share(c.verdicts, c.programs),
        c.too_kind
    );
    println!(
        "message  {} = {:.2} % of the refused",
        c.messages,
        share(c.messages, refused)
    );
    println!(
        "processed {} = {:.2} % of the accepted",
        c.processed,
        share(c.processed, c.accepted)
    );
    println!(
        "total_states {} = {:.2} %, peak_states {} = {:.2} %, stack depth {} = {:.2} %",
        c.states,
        share(c.states, c.accepted),
        c.peaks,
        share(c.peaks, c.accepted),
        c.depths,
        share(c.depths, c.accepted)
    );
    if show == Some("time") {
        let mut slow: Vec<_> = outcomes.iter().collect();
        slow.sort_by(|a, b| b.us.total_cmp(&a.us));
        for o in slow.iter().take(25) {
            let row = &rows[o.row];
            println!(
                "{:9.0} us, kernel {:7} us, {} insns  {}",
                o.us,
                row.us,
                row.processed,
                row.name()
            );
        }
    }
    let both = outcomes
        .iter()
        .filter(|o| o.verdict && rows[o.row].accept)
        .map(|o| (o.us, rows[o.row].us as f64))
        .fold((0.0, 0.0), |sum, t| (sum.0 + t.0, sum.1 + t.1));
    println!(
        "time on those accepted by both: {:.1} ms, kernel {:.1} ms, ratio {:.3}",
        both.0 / 1e3,
        both.1 / 1e3,
        both.0 / both.1.max(1.0)
    );
}
