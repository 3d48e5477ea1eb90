//! Every program of the kernel's selftests that Linux 6.18.44 has a verdict on.
//!
//! Needs that kernel (its BTF is what the verdicts belong to) and the objects that
//! `tools/kernel-selftests` builds; says so and passes where they are absent.

use std::collections::BTreeMap;
use std::fs;

use judge::{Options, Outcome, Row};

mod judge;

/// The kernel that was asked.
const RELEASE: &str = "6.18.44";
/// Programs that it has a verdict on.
const PROGRAMS: usize = 2720;

/// What was reached; less is a regression.
const FLOOR: judge::Counts = judge::Counts {
    programs: PROGRAMS,
    accepted: 1766,
    verdicts: 2720,
    messages: 950,
    processed: 1759,
    states: 1759,
    peaks: 1759,
    depths: 1759,
    too_kind: 0,
};

/// Reasons that a known difference may have.
const REASONS: [&str; 2] = ["kernel-config", "module"];

/// A line of `known-differences.txt`: program, our verdict, the kernel's, reason; by tabs.
fn known_differences(text: &str) -> BTreeMap<&str, [&str; 3]> {
    let lines = text
        .lines()
        .filter(|l| !l.is_empty() && !l.starts_with('#'));
    lines
        .map(|line| {
            let fields: Vec<&str> = line.split('\t').collect();
            let [name, ours, kernels, reason] = fields[..] else {
                panic!("known-differences.txt: not four fields: {line}");
            };
            assert!(
                REASONS.contains(&reason),
                "known-differences.txt: unknown reason {reason}"
            );
            (name, [ours, kernels, reason])
        })
        .collect()
}

/// Why the comparison cannot be made here.
fn obstacle() -> Option<String> {
    let dir = judge::objects();
    if !dir.is_dir() {
        return Some(format!("{} is absent", dir.display()));
    }
    if !fs::exists("/sys/kernel/btf/vmlinux").unwrap_or(false) {
        return Some("the kernel shows no BTF".into());
    }
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let version = release.trim().split('-').next().unwrap_or_default();
    (version != RELEASE).then(|| format!("the verdicts are of {RELEASE}, this is {version}"))
}

fn check_differences(rows: &[Row], outcomes: &[Outcome], text: &str, wrong: &mut Vec<String>) {
    let mut known = known_differences(text);
    for o in outcomes {
        let row = &rows[o.row];
        let name = row.name();
        let ours = o.ours.replace(['\t', '\n'], " ");
        let line = known.remove(name.as_str());
        match (o.verdict, line) {
            (true, None) => {}
            (true, Some(_)) => wrong.push(format!("{name} agrees now: remove its line")),
            (false, Some([was, kernels, _])) if was == ours && kernels == row.verdict() => {}
            (false, _) => wrong.push(format!(
                "not in known-differences.txt: {name}\t{ours}\t{}\tREASON",
                row.verdict()
            )),
        }
    }
    wrong.extend(known.keys().map(|name| format!("{name}: no such program")));
}

#[test]
fn verdicts_are_the_kernels() {
    if let Some(why) = obstacle() {
        println!("skipped: {why}");
        return;
    }
    let dir = judge::workspace().join("testdata/oracle");
    let rows = judge::rows_of(&dir.join("linux-6.18.44-selftests-6.12.jsonl"));
    let outcomes = match judge::compare(&rows, &|_| true, Options::default()) {
        Ok(outcomes) => outcomes,
        Err(why) => {
            println!("skipped: {why}");
            return;
        }
    };
    let mut wrong = Vec::new();
    let c = judge::count(&rows, &outcomes);
    println!("{c:?}");
    let at_least = [
        ("programs", c.programs, FLOOR.programs),
        ("accepted by the kernel", c.accepted, FLOOR.accepted),
        ("same verdict", c.verdicts, FLOOR.verdicts),
        ("same message", c.messages, FLOOR.messages),
        ("same processed", c.processed, FLOOR.processed),
        ("same total_states", c.states, FLOOR.states),
        ("same peak_states", c.peaks, FLOOR.peaks),
        ("same stack_depth", c.depths, FLOOR.depths),
        // Read from the other end: so many of those refused are refused by us.
        (
            "not accepted by us alone",
            PROGRAMS - c.too_kind,
            PROGRAMS - FLOOR.too_kind,
        ),
    ];
    for (what, count, floor) in at_least {
        if count < floor {
            wrong.push(format!("{what}: {count}, was {floor}"));
        }
    }
    let known = fs::read_to_string(dir.join("known-differences.txt")).unwrap_or_default();
    check_differences(&rows, &outcomes, &known, &mut wrong);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
