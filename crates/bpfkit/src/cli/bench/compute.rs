//! `compute`: programs that compute, beside the same C compiled for this machine at -O2.
//!
//! Programs are verified first; *checked* is the same program as if nobody had. All come to the
//! same results, or nothing is measured. Contestants take turns at each program; a number is the
//! least time of a turn, which other work on the machine disturbs least.

use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use serde_json::json;

use crate::cli::bench::machine::{
    FAILED, Machine, Prepared, Runs, Settings, Source, failed, number,
};
use crate::cli::bench::plot::{Bar, Plot};
use crate::cli::bench::stats::geometric_mean;
use crate::cli::bench::throughput::EMPTY_PACKET;
use crate::cli::bench::{Answer, Arguments, Skipped, engine_name, tell_skipped};
use crate::cli::failure::{Failure, Result};
use crate::cli::run::EngineName;
use crate::cli::{objects, progress};

const SOURCE: Source = Source {
    name: "compute",
    bytes: include_bytes!("../../../../../testdata/bench/compute.bpf.o"),
};
/// The same, for this machine's compiler.
const TEXT: &str = include_str!("../../../../../testdata/bench/compute.bpf.c");

/// Programs of the object, without `run_`.
const KERNELS: [&str; 8] = [
    "parse", "copy", "hash64", "matrix", "sort", "sieve", "fnv", "crc32",
];
/// Turns of one run (`NR_LOOPS` of the source).
const TURNS: f64 = 200.0;

/// What runs the kernels.
enum Contestant<'a> {
    Native(Native),
    Machine(Box<dyn Machine + 'a>),
}

/// The kernels compiled for this machine, in a process of their own.
struct Native {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Native {
    /// Compiles them; `Err` with the reason where there is no compiler.
    fn start() -> std::result::Result<Self, String> {
        let dir = tempfile::tempdir().map_err(|error| error.to_string())?;
        let (source, binary) = (dir.path().join("compute.c"), dir.path().join("compute"));
        std::fs::write(&source, TEXT).map_err(|error| error.to_string())?;
        let compile = |compiler: &str| {
            let mut command = Command::new(compiler);
            command.args(["-O2", "-fno-builtin", "-DNATIVE", "-o"]);
            command.args([&binary, &source]).output()
        };
        let compiled = ["clang-19", "clang"]
            .into_iter()
            .find_map(|name| compile(name).ok())
            .ok_or("no clang")?;
        if !compiled.status.success() {
            return Err(String::from_utf8_lossy(&compiled.stderr).into_owned());
        }
        let mut child = Command::new(&binary)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| error.to_string())?;
        match (child.stdin.take(), child.stdout.take()) {
            (Some(to), Some(from)) => Ok(Self {
                child,
                to,
                from: BufReader::new(from),
            }),
            _ => Err("no pipe".to_owned()),
        }
    }

    /// Runs a kernel: ns and result.
    fn run(&mut self, name: &str) -> std::io::Result<(u64, u64)> {
        writeln!(self.to, "{name}")?;
        self.to.flush()?;
        let mut line = String::new();
        self.from.read_line(&mut line)?;
        let mut words = line.split_whitespace().map(|word| word.parse().ok());
        let mut word = || words.next().flatten();
        let answer = word().and_then(|ns| Some((ns, word()?)));
        answer.ok_or_else(|| std::io::ErrorKind::UnexpectedEof.into())
    }
}

impl Drop for Native {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Contestant<'_> {
    fn prepare(&mut self) -> Result {
        match self {
            Contestant::Native(_) => Ok(()),
            Contestant::Machine(machine) => {
                machine.pin();
                machine.run("fill", EMPTY_PACKET).map(drop)
            }
        }
    }

    /// Result of a run of a kernel.
    fn result(&mut self, kernel: &str) -> Result<u64> {
        match self {
            Contestant::Native(native) => Ok(native.run(kernel).map_err(Failure::machine)?.1),
            Contestant::Machine(machine) => {
                machine.run(&format!("run_{kernel}"), EMPTY_PACKET)?;
                Ok(number(&machine.global("results")?))
            }
        }
    }

    /// Least ns of a turn of a kernel, in that time.
    fn time(&mut self, kernel: &str, span: Duration) -> Result<f64> {
        let runs = match self {
            Contestant::Native(native) => {
                let end = std::time::Instant::now() + span;
                let mut least = u64::MAX;
                while std::time::Instant::now() < end || least == u64::MAX {
                    least = least.min(native.run(kernel).map_err(Failure::machine)?.0);
                }
                return Ok(least as f64 / TURNS);
            }
            Contestant::Machine(machine) => {
                let runs = Runs {
                    packet: EMPTY_PACKET,
                    producers: 1,
                    span,
                    ring: None,
                };
                machine.repeat(&format!("run_{kernel}"), &runs)?
            }
        };
        let least = runs.into_iter().flatten().min();
        match least {
            None | Some(FAILED) => Err(failed(kernel)),
            Some(ns) => Ok(f64::from(ns) / TURNS),
        }
    }
}

pub fn run(arguments: &Arguments, kernel: &objects::Kernel) -> Result<Answer> {
    let prepared = Prepared::new(SOURCE, &Settings::default(), kernel)?;
    let mut skipped = Skipped::new();
    let mut contestants = Vec::new();
    match Native::start() {
        Ok(native) => contestants.push(("native", Contestant::Native(native))),
        Err(reason) => skipped.push(("native", reason)),
    }
    for engine in arguments.engines() {
        let name = engine_name(*engine);
        match prepared.on(*engine, 1, kernel)? {
            Ok(machine) => contestants.push((name, Contestant::Machine(machine))),
            Err(reason) => skipped.push((name, reason)),
        }
        if *engine == EngineName::Jit {
            let checked = prepared.checked(kernel)?;
            contestants.push(("checked", Contestant::Machine(checked)));
        }
    }
    for (_, contestant) in &mut contestants {
        contestant.prepare()?;
    }
    for name in KERNELS {
        let mut expected = None;
        for (who, contestant) in &mut contestants {
            let result = contestant.result(name)?;
            let expected = *expected.get_or_insert(result);
            if result != expected {
                let text = format!("{name}: {who} comes to {result:#x}, others to {expected:#x}");
                return Err(Failure::program(text));
            }
        }
    }
    let span = arguments.span()?;
    let cells = (KERNELS.len() * contestants.len()).max(1) as u32;
    let rounds = (span.iterations * 4).max(8);
    let turn = span.iteration / 4 / cells;
    let mut least = vec![[f64::INFINITY; KERNELS.len()]; contestants.len()];
    let bar = progress::items(rounds.into());
    for _ in 0..rounds {
        for (at, name) in KERNELS.iter().enumerate() {
            for ((_, contestant), least) in contestants.iter_mut().zip(&mut least) {
                least[at] = least[at].min(contestant.time(name, turn)?);
            }
        }
        bar.inc(1);
        if progress::interrupted() {
            break;
        }
    }
    bar.finish_and_clear();
    tell_skipped(&skipped);
    let names: Vec<&'static str> = contestants.iter().map(|(name, _)| *name).collect();
    Ok(answer(&names, &least))
}

/// Times beside those of the first contestant: native, where it is there.
fn answer(names: &[&'static str], least: &[[f64; KERNELS.len()]]) -> Answer {
    let first = least.first().copied().unwrap_or([f64::NAN; KERNELS.len()]);
    let ratios = |times: &[f64; KERNELS.len()]| -> Vec<f64> {
        times
            .iter()
            .zip(&first)
            .map(|(ns, first)| ns / first)
            .collect()
    };
    let means: Vec<f64> = least.iter().map(|t| geometric_mean(&ratios(t))).collect();
    let mut text = format!("{:10}", "ns a turn");
    for name in names {
        let _ = write!(text, "{name:>20}");
    }
    text.push('\n');
    let mut csv = "kernel,contestant,ns,ratio\n".to_owned();
    let mut groups = Vec::new();
    for (at, kernel) in KERNELS.iter().enumerate() {
        let _ = write!(text, "{kernel:10}");
        let mut bars = Vec::new();
        for (name, times) in names.iter().zip(least) {
            let (ns, ratio) = (times[at], times[at] / first[at]);
            let _ = write!(text, "{ns:>12.1} ({ratio:4.2}x)");
            let _ = writeln!(csv, "{kernel},{name},{ns:.2},{ratio:.4}");
            bars.push(Bar {
                series: (*name).to_owned(),
                value: ratio,
                spread: 0.0,
            });
        }
        text.push('\n');
        groups.push(((*kernel).to_owned(), bars));
    }
    let _ = write!(text, "{:10}", "geomean");
    for mean in &means {
        let _ = write!(text, "{:12} ({mean:4.2}x)", "");
    }
    text.push('\n');
    let contestants: serde_json::Map<_, _> = names
        .iter()
        .zip(least)
        .zip(&means)
        .map(|((name, times), mean)| {
            let kernels: serde_json::Map<_, _> = KERNELS
                .iter()
                .zip(times)
                .map(|(kernel, ns)| ((*kernel).to_owned(), json!(ns)))
                .collect();
            (
                (*name).to_owned(),
                json!({ "ns": kernels, "geomean": mean }),
            )
        })
        .collect();
    Answer {
        text,
        json: json!({ "beside": names.first(), "contestants": contestants }),
        csv,
        plot: Plot {
            title: "compute".to_owned(),
            unit: format!("times {}", names.first().unwrap_or(&"")),
            groups,
        },
    }
}
