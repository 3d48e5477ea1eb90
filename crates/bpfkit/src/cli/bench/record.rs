//! `--record DIR`: every benchmark in turn, written down: the machine, raw CSV, a summary
//! table and pictures, in a folder by date.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::Parser;

use crate::cli::bench::{Arguments, Kind, Outcome, find, measure_one, write};
use crate::cli::failure::{Failure, Result};
use crate::cli::{objects, output, progress};

/// What is recorded: command lines.
const LINES: &[&str] = &[
    "lpm-trie-noop --nr_entries 10000",
    "lpm-trie-baseline --nr_entries 10000",
    "lpm-trie-baseline --nr_entries 10000 --random",
    "lpm-trie-lookup --nr_entries 10000",
    "lpm-trie-lookup --nr_entries 10000 --random",
    "lpm-trie-lookup --nr_entries 1000000 --random",
    "lpm-trie-update --nr_entries 10000",
    "lpm-trie-update --nr_entries 10000 --random",
    "lpm-trie-insert --nr_entries 10000",
    "lpm-trie-delete --nr_entries 10000",
    "lpm-trie-free --nr_entries 10000",
    "lpm-trie-memory --nr_entries 1000000",
    "hashmap-lookup --nr_entries 10000 --random",
    "hashmap-lookup --nr_entries 1000000 --random",
    "hashmap-full-update",
    "array-lookup --nr_entries 10000",
    "bloom-filter --nr_entries 10000 --random",
    "ringbuf --producers 1",
    "ringbuf --producers 2",
    "bpf-loop",
    "bpf-for",
    "local-storage",
    "strncmp",
    "tail-call",
    "tail-call-index",
    "compute",
    "trigger",
    "xdp-lb",
    "filter",
    "rewrite",
    "arm64-selection",
    "capture",
];

/// Seconds on each engine, unless `--duration` says otherwise, and turns in them: what takes
/// many turns is told from what disturbs one.
const SPAN: f64 = 2.0;
const TURNS: f64 = 10.0;

/// A command line of the table.
#[derive(Parser)]
#[command(no_binary_name = true)]
struct Line {
    #[command(flatten)]
    arguments: Arguments,
}

/// Measures everything and writes it down.
pub fn run(given: &Arguments, dir: &Path, kernel: &objects::Kernel) -> Result {
    let date = today();
    let dir = dir.join(format!("{date}-{}", std::env::consts::ARCH));
    fs::create_dir_all(&dir)
        .map_err(|error| Failure::machine(format!("{}: {error}", dir.display())))?;
    let mut summary = format!(
        "# {date}\n\n{}\nMade by `bpfkit bench --record DIR`; iterations and samples are in the CSV files.\n",
        machine()
    );
    let mut iterations = String::new();
    for line in LINES {
        if progress::interrupted() {
            return Err(Failure::machine("interrupted"));
        }
        anstream::eprintln!("{line}");
        let Line { mut arguments } = Line::try_parse_from(line.split_whitespace())
            .map_err(|error| Failure::input(error.to_string()))?;
        arguments.take_common(given);
        let benchmark = find(arguments.name())?;
        if given.duration.is_none() && !matches!(benchmark.kind, Kind::Own(_)) {
            (arguments.duration, arguments.iteration) = (Some(SPAN), SPAN / TURNS);
        }
        let file = line.replace(['-', ' ', '/'], "_").replace("__", "_");
        let text = match measure_one(benchmark, &arguments, kernel) {
            // What this machine lacks leaves the rest.
            Err(failure) => format!("failed: {}\n", failure.message),
            Ok(Outcome::Report(report)) => {
                iterations += &report.csv(iterations.is_empty());
                write(&dir.join(format!("{file}.svg")), &report.plot().svg())?;
                report.comparison()
            }
            Ok(Outcome::Answer(answer)) => {
                write(&dir.join(format!("{file}.svg")), &answer.plot.svg())?;
                write(&dir.join(format!("{file}.csv")), &answer.csv)?;
                answer.text
            }
        };
        let _ = write!(summary, "\n## {line}\n\n```\n{text}```\n");
    }
    write(&dir.join("iterations.csv"), &iterations)?;
    write(&dir.join("summary.md"), &summary)?;
    output::text(&format!("{}\n", dir.display()))
}

/// Processor and kernel, as far as the machine tells.
fn machine() -> String {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| {
        let line = cpuinfo.lines().find(|line| line.starts_with(name));
        let value = line.and_then(|line| line.split_once(':'));
        value
            .map_or("unknown", |(_, value)| value.trim())
            .to_owned()
    };
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().unwrap_or("unknown").to_owned();
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    format!(
        "| | |\n| --- | --- |\n| processor | {} (family {}, model {}), {cpus} usable |\n\
         | kernel | Linux {} |\n| load when it began | {load} |\n",
        field("model name"),
        field("cpu family"),
        field("model\t"),
        release.trim(),
    )
}

/// The date, in universal time.
fn today() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let days = now.map_or(0, |now| now.as_secs() / 86_400);
    let (year, month, day) = civil(days);
    format!("{year:04}-{month:02}-{day:02}")
}

/// Year, month and day of a number of days since 1970.
fn civil(mut days: u64) -> (u64, u64, u64) {
    let leap = |year: u64| {
        year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
    };
    let mut year = 1970;
    while days >= 365 + u64::from(leap(year)) {
        days -= 365 + u64::from(leap(year));
        year += 1;
    }
    let february = 28 + u64::from(leap(year));
    let months = [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 1;
    for length in months {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    (year, month, days + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::bench::BENCHMARKS;

    #[test]
    fn dates() {
        assert_eq!(civil(0), (1970, 1, 1));
        assert_eq!(civil(11_016), (2000, 2, 29));
        assert_eq!(civil(19_782), (2024, 2, 29));
        assert_eq!(civil(19_783), (2024, 3, 1));
        assert_eq!(civil(20_453), (2025, 12, 31));
    }

    #[test]
    fn every_benchmark_is_recorded() {
        // Verification needs objects that are given.
        for benchmark in BENCHMARKS.iter().filter(|row| row.name != "verify") {
            let recorded = LINES
                .iter()
                .any(|line| line.split(' ').next() == Some(benchmark.name));
            assert!(recorded, "{}", benchmark.name);
        }
    }

    #[test]
    fn every_line_is_a_benchmark_with_its_options() {
        for line in LINES {
            let parsed = Line::try_parse_from(line.split_whitespace()).unwrap();
            let benchmark = find(parsed.arguments.name()).unwrap();
            for (option, _) in parsed.arguments.given() {
                assert!(benchmark.options.contains(&option), "{line}");
            }
        }
    }
}
