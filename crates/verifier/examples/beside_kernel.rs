//! Times verification beside the running kernel's, both in one run, one thread.
//!
//! ```text
//! beside_kernel [--rounds N] [--least US] [--alone] [--cpu] [FILTER]
//! ```
//!
//! The programs are those of `BPFKIT_ORACLE` (default `testdata/oracle/*.jsonl`) that the kernel
//! accepts and that take it more than `--least` µs (200); their objects lie in
//! `BPFKIT_SELFTESTS` (default `target/kernel-selftests`). Each round times ours, then the
//! kernel's ("verification time" of log level 4, without compilation); the least of the rounds
//! counts on both sides. Programs that this kernel does not load again are left out.
//! `--alone` loads nothing: the kernel's figures are then those of the oracle. `--cpu` counts
//! our time on the processor instead of time elapsed, for a look on a busy machine.
//!
//! The kernel frees programs slowly and hangs where thousands wait for it, so a pause follows
//! each load.

use std::thread;
use std::time::{Duration, Instant};

use bpfkit_btf::Btf;
use bpfkit_object::{Linker, MapDef, Object, Program};
use bpfkit_oracle::{Kernel, LoadError, LoadOptions};
use bpfkit_verifier::{Environment, verify};
use judge::{Machine, Row};

#[path = "../tests/oracle/judge.rs"]
#[allow(dead_code, reason = "the test and another example use the rest")]
mod judge;

/// Between two loads.
const PAUSE: Duration = Duration::from_millis(20);
/// A program that takes us less is verified often enough within a round to last that long.
const ROUND: Duration = Duration::from_millis(2);
/// The same in seconds, where time on the processor is counted.
const CPU_ROUND: f64 = 0.05;
/// Number of longest programs that are summed up.
const LONGEST: usize = 20;

struct Options {
    rounds: usize,
    least: f64,
    alone: bool,
    cpu: bool,
    filter: String,
}

struct Timed {
    name: String,
    ours: f64,
    kernel: f64,
}

fn main() -> Result<(), String> {
    let options = options();
    let machine = Machine::read()?;
    let mut kernel = match options.alone {
        true => None,
        false => Some(Kernel::start().map_err(|e| e.to_string())?),
    };
    let mut rows = judge::all_rows();
    rows.retain(|r| r.accept && r.us as f64 > options.least && r.name().contains(&options.filter));
    rows.sort_by(|a, b| a.file.cmp(&b.file));
    let mut timed = Vec::new();
    for rows in rows.chunk_by(|a, b| a.file == b.file) {
        time_file(rows, &machine, &options, &mut kernel, &mut timed)?;
    }
    report(timed, options.least);
    Ok(())
}

fn options() -> Options {
    let mut options = Options {
        rounds: 3,
        least: 200.0,
        alone: false,
        cpu: false,
        filter: String::new(),
    };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut number = || args.next().and_then(|n| n.parse().ok());
        match arg.as_str() {
            "--rounds" => options.rounds = number().unwrap_or(options.rounds),
            "--least" => options.least = number().map_or(options.least, |us| us as f64),
            "--alone" => options.alone = true,
            "--cpu" => options.cpu = true,
            _ => options.filter = arg,
        }
    }
    options
}

fn time_file(
    rows: &[Row],
    machine: &Machine,
    options: &Options,
    kernel: &mut Option<Kernel>,
    timed: &mut Vec<Timed>,
) -> Result<(), String> {
    let file = &rows[0].file;
    let Ok(bytes) = std::fs::read(judge::objects().join(file)) else {
        eprintln!("{file}: no such object");
        return Ok(());
    };
    let object = Object::open(file, &bytes).map_err(|e| format!("{file}: {e}"))?;
    let target = machine.target();
    let mut linker = Linker::new(&object, &target);
    let btf = object.btf_for_kernel().ok();
    for row in rows {
        let name = row.name();
        let linked = object.program_index(&row.prog).map(|p| linker.link(p));
        let Some(Ok(mut program)) = linked else {
            eprintln!("{name}: does not link");
            continue;
        };
        judge::set_types(&mut program, row);
        let mut maps = linker.maps();
        for map in &mut maps {
            map.max_entries = map.max_entries.max(1);
        }
        let (mut ours, mut theirs) = (f64::INFINITY, f64::INFINITY);
        for _ in 0..options.rounds {
            ours = ours.min(time_ours(&program, &maps, &machine.btf, options.cpu));
            match kernel {
                None => theirs = row.us as f64,
                Some(kernel) => match time_kernel(
                    kernel,
                    &program,
                    &maps,
                    program.btf.as_ref().and(btf.as_deref()),
                ) {
                    Ok(us) => theirs = theirs.min(us),
                    Err(e) => {
                        eprintln!("{name}: {}", e.lines().next().unwrap_or_default());
                        break;
                    }
                },
            }
        }
        if theirs.is_finite() {
            println!("{ours:9.0} {theirs:9.0} {:6.3} {name}", ours / theirs);
            timed.push(Timed {
                name,
                ours,
                kernel: theirs,
            });
        }
    }
    Ok(())
}

/// Seconds that this thread ran on a processor so far.
fn on_cpu() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanoseconds = text.split(' ').next().and_then(|n| n.parse::<u64>().ok());
    nanoseconds.unwrap_or(0) as f64 / 1e9
}

/// The least time in µs, of as many runs as a round has room for; of time on the processor,
/// which is counted coarsely, the mean.
fn time_ours(program: &Program, maps: &[MapDef], btf: &Btf, cpu: bool) -> f64 {
    let mut environment = Environment::new(Some(btf));
    environment.cpus = 2;
    let (begin, cpu_begin) = (Instant::now(), on_cpu());
    let (mut least, mut runs) = (f64::INFINITY, 0);
    loop {
        let start = Instant::now();
        std::hint::black_box(verify(program, maps, &environment));
        least = least.min(start.elapsed().as_secs_f64() * 1e6);
        runs += 1;
        let used = on_cpu() - cpu_begin;
        if cpu && used >= CPU_ROUND {
            return used * 1e6 / f64::from(runs);
        }
        if !cpu && begin.elapsed() >= ROUND {
            return least;
        }
    }
}

/// What the kernel says that verification took, in µs.
fn time_kernel(
    kernel: &mut Kernel,
    program: &Program,
    maps: &[MapDef],
    btf: Option<&[u8]>,
) -> Result<f64, String> {
    let load = LoadOptions {
        log_level: 4,
        ..LoadOptions::default()
    };
    let trial = kernel.try_program(program, maps, btf, &load);
    thread::sleep(PAUSE);
    match trial {
        Ok(trial) => trial
            .verification_us()
            .ok_or_else(|| "the log tells no time".to_owned()),
        Err(LoadError::Refused { errno, log }) => {
            let said = log.lines().rfind(|l| !l.contains("processed "));
            Err(format!("refused: {errno}: {}", said.unwrap_or_default()))
        }
        Err(LoadError::Oracle(e)) => Err(e.to_string()),
    }
}

fn report(mut timed: Vec<Timed>, least: f64) {
    timed.retain(|t| t.kernel > least);
    timed.sort_by(|a, b| b.kernel.total_cmp(&a.kernel));
    if timed.is_empty() {
        return println!("nothing was timed");
    }
    let ratio = |t: &Timed| t.ours / t.kernel;
    let mean = timed.iter().map(|t| ratio(t).ln()).sum::<f64>() / timed.len() as f64;
    println!(
        "{} programs that take the kernel more than {least:.0} us: geometric mean {:.3}",
        timed.len(),
        mean.exp()
    );
    let longest = &timed[..timed.len().min(LONGEST)];
    let ours: f64 = longest.iter().map(|t| t.ours).sum();
    let kernel: f64 = longest.iter().map(|t| t.kernel).sum();
    println!(
        "the {} longest: {:.1} ms, kernel {:.1} ms, ratio {:.3}",
        longest.len(),
        ours / 1e3,
        kernel / 1e3,
        ours / kernel
    );
    if let Some(worst) = timed.iter().max_by(|a, b| ratio(a).total_cmp(&ratio(b))) {
        println!("worst: {:.3} {}", ratio(worst), worst.name);
    }
}
