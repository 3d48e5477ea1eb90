//! Verification of given objects beside the running kernel's.
//!
//! Each round times ours, then the kernel's: the least of the rounds counts on both sides. The
//! kernel's is what its log calls verification time, without compilation and loading.

use std::fmt::Write as _;
use std::hint::black_box;
use std::time::{Duration, Instant};

use bpfkit_object::{Linker, MapDef, Program};
use bpfkit_oracle::{Kernel, LoadError, LoadOptions};
use bpfkit_verifier::{Environment, Symbols, verify};

use crate::cli::bench::plot::{Bar, Plot};
use crate::cli::bench::{Answer, Arguments, tell_skipped};
use crate::cli::failure::{Failure, Result};
use crate::cli::run::EngineName;
use crate::cli::{objects, output, progress};

/// Options of its own.
pub const OPTIONS: &[&str] = &["objects"];

/// Between two loads: the kernel frees programs slowly.
const PAUSE: Duration = Duration::from_millis(20);
/// A program that takes less is verified often enough within a round to last that long.
const ROUND: Duration = Duration::from_millis(2);
/// The log tells the time at this level.
const STATISTICS: u32 = 4;
/// Number of longest programs that are summed up.
const LONGEST: usize = 20;

/// A program's times in µs.
struct Row {
    name: String,
    insns: usize,
    accepted: bool,
    ours: f64,
    kernel: Option<f64>,
    /// Why the kernel has no time.
    refused: Option<String>,
}

pub fn run(arguments: &Arguments, kernel: &objects::Kernel) -> Result<Answer> {
    if arguments.objects.is_empty() {
        return Err(Failure::input(
            "verify needs objects: bpfkit bench verify FILE.o …",
        ));
    }
    let rounds = arguments.span()?.iterations.max(3);
    let (mut oracle, skipped) = match arguments.engines().contains(&EngineName::Kernel) {
        false => (None, None),
        true => match Kernel::start() {
            Ok(oracle) => (Some(oracle), None),
            Err(error) if error.is_absence() => (None, Some(error.to_string())),
            Err(error) => return Err(Failure::machine(error)),
        },
    };
    progress::catch_interrupt();
    let target = kernel.target();
    let mut rows = Vec::new();
    for path in &arguments.objects {
        let object = objects::open(path)?;
        let btf = object.btf_for_kernel().ok();
        let mut linker = Linker::new(&object, &target);
        for index in 0..object.programs.len() {
            if progress::interrupted() {
                break;
            }
            let file = path.file_name().unwrap_or(path.as_os_str()).display();
            let name = format!("{file}:{}", object.programs[index].name);
            let program = match linker.link(index) {
                Ok(program) => program,
                Err(error) => {
                    anstream::eprintln!("skipped: {name}: {error}");
                    continue;
                }
            };
            let subject = Subject {
                program: &program,
                maps: &linker.maps(),
                btf: btf.as_deref().filter(|_| program.btf.is_some()),
            };
            rows.push(subject.measure(name, kernel, &mut oracle, rounds)?);
        }
    }
    rows.sort_by(|a, b| b.ours.total_cmp(&a.ours));
    let missing = skipped.iter().map(|why| ("kernel", why.clone()));
    tell_skipped(&missing.collect());
    Ok(answer(&rows, skipped))
}

/// What is verified.
struct Subject<'p> {
    program: &'p Program,
    maps: &'p [MapDef],
    btf: Option<&'p [u8]>,
}

impl Subject<'_> {
    fn measure(
        &self,
        name: String,
        kernel: &objects::Kernel,
        oracle: &mut Option<Kernel>,
        rounds: u32,
    ) -> Result<Row> {
        let has = |name: &str| kernel.has_symbol(name);
        let environment = Environment {
            symbols: Some(Symbols(&has)),
            absent_helpers: kernel.absent_helpers(),
            ..Environment::new(kernel.btf())
        };
        let accepted = verify(self.program, self.maps, &environment).result.is_ok();
        let mut row = Row {
            name,
            insns: self.program.insns.len(),
            accepted,
            ours: f64::INFINITY,
            kernel: None,
            refused: None,
        };
        for _ in 0..rounds {
            row.ours = row.ours.min(self.time_ours(&environment));
            let Some(oracle) = oracle.as_mut().filter(|_| row.refused.is_none()) else {
                continue;
            };
            match self.time_kernel(oracle)? {
                Ok(us) => row.kernel = Some(row.kernel.map_or(us, |least| least.min(us))),
                Err(why) => row.refused = Some(why),
            }
        }
        Ok(row)
    }

    /// The least time in µs, of as many runs as a round has room for.
    fn time_ours(&self, environment: &Environment<'_>) -> f64 {
        let begin = Instant::now();
        let mut least = f64::INFINITY;
        loop {
            let start = Instant::now();
            black_box(verify(self.program, self.maps, environment));
            least = least.min(start.elapsed().as_secs_f64() * 1e6);
            if begin.elapsed() >= ROUND {
                return least;
            }
        }
    }

    /// The kernel's time in µs, or why it has none.
    fn time_kernel(&self, oracle: &mut Kernel) -> Result<std::result::Result<f64, String>> {
        let options = LoadOptions {
            log_level: STATISTICS,
            ..LoadOptions::default()
        };
        let trial = oracle.try_program(self.program, self.maps, self.btf, &options);
        std::thread::sleep(PAUSE);
        match trial {
            Ok(trial) => Ok(trial
                .verification_us()
                .ok_or_else(|| "its log tells no time".to_owned())),
            Err(LoadError::Refused { errno, log }) => {
                let said = log.lines().rfind(|line| !line.contains("processed "));
                Ok(Err(said.map_or_else(|| errno.to_string(), str::to_owned)))
            }
            Err(LoadError::Oracle(error)) => Err(Failure::machine(error)),
        }
    }
}

/// A line for each program; without the kernel, our side alone.
fn table(rows: &[Row]) -> String {
    let own = |row: &Row| {
        [
            row.name.clone(),
            row.insns.to_string(),
            if row.accepted { "accept" } else { "reject" }.to_owned(),
            format!("{:.0} us", row.ours),
        ]
    };
    if rows.iter().all(|row| row.kernel.is_none()) {
        let header = ["program", "insns", "verdict", "bpfkit"];
        return output::render_table(&header, rows.iter().map(own));
    }
    let header = ["program", "insns", "verdict", "bpfkit", "kernel", "ratio"];
    let lines = rows.iter().map(|row| {
        let [name, insns, verdict, ours] = own(row);
        let (time, ratio) = match row.kernel {
            Some(us) => (
                format!("{us:.0} us"),
                format!("{:.3}", row.ours / us.max(1e-9)),
            ),
            None => ("-".to_owned(), "-".to_owned()),
        };
        [name, insns, verdict, ours, time, ratio]
    });
    output::render_table(&header, lines)
}

fn answer(rows: &[Row], skipped: Option<String>) -> Answer {
    let mut text = table(rows);
    let both: Vec<(f64, f64)> = rows
        .iter()
        .filter_map(|row| Some((row.ours, row.kernel.filter(|us| *us > 0.0)?)))
        .collect();
    let mean = both
        .iter()
        .map(|(ours, kernel)| (ours / kernel).ln())
        .sum::<f64>();
    let mean = (mean / both.len().max(1) as f64).exp();
    let mut longest = both.clone();
    longest.sort_by(|a, b| b.1.total_cmp(&a.1));
    longest.truncate(LONGEST);
    let sum = |side: fn(&(f64, f64)) -> f64| longest.iter().map(side).sum::<f64>();
    let (ours, theirs) = (sum(|pair| pair.0), sum(|pair| pair.1));
    if !both.is_empty() {
        let _ = writeln!(
            text,
            "{} programs on both: geometric mean of the ratios {mean:.3}, of the {} longest {:.3}",
            both.len(),
            longest.len(),
            ours / theirs
        );
    }
    for row in rows {
        if let Some(why) = &row.refused {
            let _ = writeln!(text, "skipped: kernel: {}: {why}", row.name);
        }
    }
    let mut csv = "program,insns,accepted,bpfkit_us,kernel_us\n".to_owned();
    for row in rows {
        let kernel = row.kernel.map_or_else(String::new, |us| format!("{us:.0}"));
        let _ = writeln!(
            csv,
            "{},{},{},{:.1},{kernel}",
            row.name, row.insns, row.accepted, row.ours
        );
    }
    let groups = rows.iter().take(LONGEST).map(|row| {
        let mut bars = vec![Bar::exact("bpfkit", row.ours)];
        bars.extend(row.kernel.map(|us| Bar::exact("kernel", us)));
        (row.name.clone(), bars)
    });
    let programs: Vec<_> = rows
        .iter()
        .map(|row| {
            serde_json::json!({
                "program": row.name,
                "insns": row.insns,
                "accepted": row.accepted,
                "bpfkit_us": row.ours,
                "kernel_us": row.kernel,
                "refused": row.refused,
            })
        })
        .collect();
    Answer {
        text,
        json: serde_json::json!({
            "programs": programs,
            "geometric_mean": (!both.is_empty()).then_some(mean),
            "longest": (!both.is_empty()).then_some(ours / theirs),
            "skipped": skipped,
        }),
        csv,
        plot: Plot {
            title: "verification".to_owned(),
            unit: "us".to_owned(),
            groups: groups.collect(),
        },
    }
}
