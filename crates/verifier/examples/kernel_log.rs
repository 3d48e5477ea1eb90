//! Compares our log with the running kernel's, line by line, on a fixed choice of the kernel's
//! selftests.
//!
//! ```text
//! kernel_log [--level 1|2] [--count N] [--show] [FILTER]
//! ```
//!
//! With a filter, all programs whose name contains it; `--show` prints what differs.
//! Loads programs into the kernel, one at a time; needs the rights of bpf(2).

use std::collections::BTreeMap;

#[path = "../tests/kernel_log/compare.rs"]
mod compare;
#[allow(dead_code, reason = "the comparison of verdicts uses the rest")]
#[path = "../tests/oracle/judge.rs"]
mod judge;

fn main() {
    let (mut level, mut count, mut show, mut filter) = (1, 120, false, None);
    let mut args = std::env::args().skip(1);
    let number = |arg: Option<String>| arg.and_then(|n| n.parse().ok());
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--level" => level = number(args.next()).unwrap_or(level),
            "--count" => count = number(args.next()).unwrap_or(count as u32) as usize,
            "--show" => show = true,
            _ => filter = Some(arg),
        }
    }
    let dir = judge::workspace().join("testdata/oracle");
    let rows = judge::rows_of(&dir.join("linux-6.18.44-selftests-6.12.jsonl"));
    let chosen = match &filter {
        Some(filter) => rows
            .iter()
            .filter(|row| row.name().contains(filter.as_str()))
            .collect(),
        None => compare::choose(&rows, count),
    };
    let pairs = match compare::pairs(&chosen, level) {
        Ok(pairs) => pairs,
        Err(why) => return eprintln!("{why}"),
    };
    let mut classes: BTreeMap<String, (usize, &str)> = BTreeMap::new();
    let (mut lines, mut equal, mut whole) = (0, 0, 0);
    for pair in &pairs {
        let difference = pair.difference();
        lines += difference.lines;
        equal += difference.equal;
        whole += usize::from(difference.text.is_empty());
        if show && !difference.text.is_empty() {
            println!(
                "{}: {} of {}",
                pair.name, difference.equal, difference.lines
            );
            for line in difference.text.iter().take(30) {
                println!("    {line}");
            }
        }
        for line in &difference.text {
            let class = classes.entry(judge::shape(line)).or_insert((0, &pair.name));
            class.0 += 1;
        }
    }
    let mut classes: Vec<_> = classes.into_iter().collect();
    classes.sort_by_key(|(_, (n, _))| std::cmp::Reverse(*n));
    for (class, (n, name)) in classes.iter().take(60) {
        println!("{n:6} {class}   [{name}]");
    }
    println!(
        "level {level}: {} programs, {whole} logs the same; {equal} of {lines} lines the same = {:.2} %",
        pairs.len(),
        100.0 * equal as f64 / lines.max(1) as f64
    );
}
