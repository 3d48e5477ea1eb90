//! Our log beside the running kernel's, on a fixed choice of the kernel's selftests.
//!
//! Needs Linux 6.18, the rights of bpf(2), and the objects that `tools/kernel-selftests`
//! builds; says so and passes where they are absent. `examples/kernel_log.rs` shows what
//! differs.

mod compare;
#[allow(dead_code, reason = "the comparison of verdicts uses the rest")]
#[path = "../oracle/judge.rs"]
mod judge;

/// Programs that are loaded.
const PROGRAMS: usize = 60;
/// Level, and the least share of lines that must be the same, in thousandths.
const FLOORS: [(u32, usize); 2] = [(1, 990), (2, 970)];

fn obstacle() -> Option<String> {
    let dir = judge::objects();
    if !dir.is_dir() {
        return Some(format!("{} is absent", dir.display()));
    }
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    (!release.starts_with("6.18.")).then(|| format!("this is Linux {}", release.trim()))
}

#[test]
fn logs_are_the_kernels() {
    if let Some(why) = obstacle() {
        println!("skipped: {why}");
        return;
    }
    let dir = judge::workspace().join("testdata/oracle");
    let rows = judge::rows_of(&dir.join("linux-6.18.44-selftests-6.12.jsonl"));
    let chosen = compare::choose(&rows, PROGRAMS);
    for (level, floor) in FLOORS {
        let pairs = match compare::pairs(&chosen, level) {
            Ok(pairs) => pairs,
            Err(why) => {
                println!("skipped: {why}");
                return;
            }
        };
        assert!(
            pairs.len() * 2 > PROGRAMS,
            "the kernel judged only {} programs",
            pairs.len()
        );
        let (mut lines, mut equal) = (0, 0);
        let mut worst = String::new();
        for pair in &pairs {
            let d = pair.difference();
            lines += d.lines;
            equal += d.equal;
            if d.equal * 1000 < d.lines * floor {
                worst += &format!("{}: {} of {} lines\n", pair.name, d.equal, d.lines);
            }
        }
        println!(
            "level {level}: {equal} of {lines} lines in {} logs",
            pairs.len()
        );
        assert!(
            equal * 1000 >= lines * floor,
            "level {level}: only {equal} of {lines} lines are the kernel's\n{worst}"
        );
    }
}
