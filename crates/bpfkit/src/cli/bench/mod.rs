//! `bpfkit bench`: the same BPF object timed on the interpreter, the compiler and the running
//! kernel, side by side.
//!
//! A benchmark is a row of [`BENCHMARKS`], made in a file of its own: a [`Workload`] whose
//! operations are counted, or a function that measures in its own way and gives an [`Answer`].

mod arm64_selection;
mod calls;
mod capture;
mod compute;
mod filter;
mod lpm_trie;
mod lpm_trie_free;
mod lpm_trie_memory;
mod machine;
mod maps;
mod plot;
mod record;
mod report;
mod rewrite;
mod stats;
mod tail_call;
mod throughput;
mod trigger;
mod verify;
mod xdp_lb;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::ValueEnum;

use crate::cli::bench::plot::Plot;
use crate::cli::bench::report::{Report, Unit};
use crate::cli::bench::throughput::{Span, Workload, measure};
use crate::cli::failure::{Failure, Result};
use crate::cli::objects::LinkArguments;
use crate::cli::run::EngineName;
use crate::cli::{files, objects, output, progress};

#[derive(clap::Args)]
pub struct Arguments {
    /// Benchmark to run
    #[arg(required_unless_present_any = ["list", "record"])]
    name: Option<String>,
    /// verify: objects to verify
    #[arg(value_name = "OBJECT")]
    pub objects: Vec<PathBuf>,
    /// List the benchmarks
    #[arg(long)]
    list: bool,
    /// Threads (processes, in the kernel) that run the program at the same time
    #[arg(short, long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub producers: u32,
    /// Seconds to measure on each engine; 5, or for each scenario of xdp-lb 0.5
    #[arg(short, long, value_name = "SECONDS")]
    pub duration: Option<f64>,
    /// Seconds to run first, unmeasured
    #[arg(short, long, value_name = "SECONDS", default_value_t = 1.0)]
    pub warmup: f64,
    /// Seconds of an iteration; engines take turns
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0)]
    pub iteration: f64,
    /// Engines to compare; all of them without it
    #[arg(
        short,
        long = "engine",
        value_enum,
        value_name = "ENGINES",
        value_delimiter = ','
    )]
    engines: Vec<EngineName>,
    /// Output format
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
    /// Measure everything and write it down in a folder by date there
    #[arg(long, value_name = "DIR", conflicts_with = "name")]
    record: Option<PathBuf>,
    /// Draw the result
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    /// lpm-trie, hashmap: entries of the map
    #[arg(long = "nr_entries", alias = "nr-entries", value_name = "N")]
    pub nr_entries: Option<u32>,
    /// lpm-trie: bits of the prefixes
    #[arg(long = "prefix_len", alias = "prefix-len", value_name = "BITS")]
    pub prefix_len: Option<u32>,
    /// lpm-trie, hashmap: draw keys at random
    #[arg(long)]
    pub random: bool,
    /// xdp-lb: one scenario
    #[arg(long, value_name = "NAME")]
    pub scenario: Option<String>,
    /// xdp-lb: list the scenarios
    #[arg(long)]
    pub list_scenarios: bool,
    /// xdp-lb: a line for each scenario and engine
    #[arg(long)]
    pub machine_readable: bool,
    /// filter, capture: packets of a capture instead of generated ones
    #[arg(long, value_name = "FILE")]
    pub pcap: Option<PathBuf>,
    #[command(flatten)]
    pub link: LinkArguments,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people
    Text,
    /// For machines
    Json,
    /// A line for each iteration
    Csv,
}

/// A benchmark.
struct Benchmark {
    name: &'static str,
    about: &'static str,
    /// Options of its own that it understands (`nr_entries`, …).
    options: &'static [&'static str],
    kind: Kind,
}

/// How it is measured.
enum Kind {
    /// Operations of a program are counted.
    Operations(fn(&Arguments) -> Result<Workload>),
    /// Operations that no program can time.
    Report(fn(&Arguments, &str) -> Result<Report>),
    /// In its own way.
    Own(fn(&Arguments, &objects::Kernel) -> Result<Answer>),
}

/// Engines that a machine lacks, with the reason.
pub type Skipped = Vec<(&'static str, String)>;

/// What a benchmark that measures in its own way has to say, in every format.
pub struct Answer {
    /// For people.
    pub text: String,
    /// For machines.
    pub json: serde_json::Value,
    /// With a header.
    pub csv: String,
    /// As a picture.
    pub plot: Plot,
}

const fn operations(
    name: &'static str,
    about: &'static str,
    options: &'static [&'static str],
    workload: fn(&Arguments) -> Result<Workload>,
) -> Benchmark {
    Benchmark {
        name,
        about,
        options,
        kind: Kind::Operations(workload),
    }
}

/// Every benchmark.
const BENCHMARKS: &[Benchmark] = &[
    operations(
        "lpm-trie-noop",
        "an empty callback of bpf_loop",
        lpm_trie::OPTIONS,
        lpm_trie::noop,
    ),
    operations(
        "lpm-trie-baseline",
        "making a key of the LPM trie",
        lpm_trie::OPTIONS,
        lpm_trie::baseline,
    ),
    operations(
        "lpm-trie-lookup",
        "looking up keys of a full LPM trie",
        lpm_trie::OPTIONS,
        lpm_trie::lookup,
    ),
    operations(
        "lpm-trie-update",
        "updating keys of a full LPM trie",
        lpm_trie::OPTIONS,
        lpm_trie::update,
    ),
    operations(
        "lpm-trie-insert",
        "filling an empty LPM trie",
        lpm_trie::OPTIONS,
        lpm_trie::insert,
    ),
    operations(
        "lpm-trie-delete",
        "emptying a full LPM trie",
        lpm_trie::OPTIONS,
        lpm_trie::delete,
    ),
    Benchmark {
        name: "lpm-trie-free",
        about: "giving a full LPM trie back",
        options: lpm_trie::OPTIONS,
        kind: Kind::Report(lpm_trie_free::run),
    },
    Benchmark {
        name: "lpm-trie-memory",
        about: "memory of a full LPM trie of addresses",
        options: lpm_trie_memory::OPTIONS,
        kind: Kind::Own(lpm_trie_memory::run),
    },
    operations(
        "hashmap-lookup",
        "looking up keys of a full hash map",
        maps::OPTIONS,
        maps::hash_lookup,
    ),
    operations(
        "hashmap-full-update",
        "adding a key to a full hash map, in vain",
        maps::OPTIONS,
        maps::hash_full_update,
    ),
    operations(
        "array-lookup",
        "looking up keys of an array",
        maps::OPTIONS,
        maps::array_lookup,
    ),
    operations(
        "bloom-filter",
        "asking a bloom filter for values it holds",
        maps::OPTIONS,
        maps::bloom,
    ),
    operations(
        "ringbuf",
        "reserving and submitting records of a ring buffer",
        &[],
        maps::ringbuf,
    ),
    operations(
        "bpf-loop",
        "a turn of bpf_loop with an empty callback",
        &[],
        calls::bpf_loop,
    ),
    operations(
        "bpf-for",
        "a turn of bpf_for with an empty body",
        &[],
        calls::bpf_for,
    ),
    operations(
        "local-storage",
        "finding a socket's storage",
        &[],
        calls::local_storage,
    ),
    operations(
        "strncmp",
        "comparing strings of 32 characters",
        &[],
        calls::strncmp,
    ),
    operations(
        "tail-call",
        "a tail call through a slot that is known where the program is compiled",
        &[],
        tail_call::known,
    ),
    operations(
        "tail-call-index",
        "a tail call through a slot that memory tells",
        &[],
        tail_call::told,
    ),
    Benchmark {
        name: "compute",
        about: "programs that compute, beside the same C compiled for this machine",
        options: &[],
        kind: Kind::Own(compute::run),
    },
    Benchmark {
        name: "trigger",
        about: "what programs at a function of the host cost its callers",
        options: &[],
        kind: Kind::Own(trigger::run),
    },
    Benchmark {
        name: "filter",
        about: "two filters of libpcap's, classic and extended, interpreted and compiled",
        options: filter::OPTIONS,
        kind: Kind::Own(filter::run),
    },
    Benchmark {
        name: "capture",
        about: "a capture filtered from file to file, beside tcpdump",
        options: capture::OPTIONS,
        kind: Kind::Own(capture::run),
    },
    Benchmark {
        name: "verify",
        about: "verifying given objects",
        options: verify::OPTIONS,
        kind: Kind::Own(verify::run),
    },
    Benchmark {
        name: "rewrite",
        about: "rewriting programs in one pass, and a patch at a time",
        options: &[],
        kind: Kind::Own(rewrite::run),
    },
    Benchmark {
        name: "arm64-selection",
        about: "what choices between AArch64 instructions bring, by LLVM's model of a Neoverse V2",
        options: &[],
        kind: Kind::Own(arm64_selection::run),
    },
    Benchmark {
        name: "xdp-lb",
        about: "a layer-4 load balancer, in 24 scenarios",
        options: xdp_lb::OPTIONS,
        kind: Kind::Own(xdp_lb::run),
    },
];

/// Name of an engine.
pub fn engine_name(engine: EngineName) -> &'static str {
    match engine {
        EngineName::Interp => "interp",
        EngineName::Jit => "jit",
        EngineName::Kernel => "kernel",
    }
}

impl Arguments {
    /// The engines asked for.
    pub fn engines(&self) -> &[EngineName] {
        const ALL: &[EngineName] = &[EngineName::Interp, EngineName::Jit, EngineName::Kernel];
        match self.engines.as_slice() {
            [] => ALL,
            asked => asked,
        }
    }

    /// How long to measure.
    pub fn span(&self) -> Result<Span> {
        let seconds = |name: &str, value: f64| {
            Duration::try_from_secs_f64(value)
                .ok()
                .filter(|span| *span <= Duration::from_secs(3600))
                .ok_or_else(|| Failure::input(format!("--{name} {value}: not 0 to 3600 seconds")))
        };
        let duration = seconds("duration", self.duration.unwrap_or(5.0))?;
        let iteration = seconds("iteration", self.iteration)?.min(duration);
        if iteration < Duration::from_millis(1) {
            return Err(Failure::input("an iteration takes at least a millisecond"));
        }
        let iterations = duration.as_secs_f64() / iteration.as_secs_f64();
        Ok(Span {
            producers: self.producers,
            iterations: iterations.round().max(1.0) as u32,
            iteration,
            warmup: seconds("warmup", self.warmup)?,
        })
    }

    fn name(&self) -> &str {
        self.name.as_deref().unwrap_or_default()
    }

    /// Takes engines and times over.
    fn take_common(&mut self, from: &Arguments) {
        self.engines = from.engines.clone();
        (self.duration, self.warmup) = (from.duration, from.warmup);
        self.iteration = from.iteration;
    }

    /// Options of particular benchmarks that were given.
    pub fn given(&self) -> Vec<(&'static str, String)> {
        let all = [
            ("nr_entries", self.nr_entries.map(|n| n.to_string())),
            ("prefix_len", self.prefix_len.map(|n| n.to_string())),
            ("random", self.random.then(String::new)),
            (
                "pcap",
                self.pcap.as_ref().map(|path| path.display().to_string()),
            ),
            (
                "objects",
                (!self.objects.is_empty()).then(|| self.objects.len().to_string()),
            ),
            ("scenario", self.scenario.clone()),
            ("list-scenarios", self.list_scenarios.then(String::new)),
            ("machine-readable", self.machine_readable.then(String::new)),
        ];
        let given = all.into_iter();
        given
            .filter_map(|(name, value)| Some((name, value?)))
            .collect()
    }
}

pub fn run(arguments: &Arguments) -> Result {
    if arguments.list {
        let rows = BENCHMARKS
            .iter()
            .map(|row| [row.name.to_owned(), row.about.to_owned()]);
        return output::table(&["benchmark", "measures"], rows);
    }
    progress::catch_interrupt();
    let kernel = arguments.link.read()?;
    if let Some(dir) = &arguments.record {
        return record::run(arguments, dir, &kernel);
    }
    match measure_one(find(arguments.name())?, arguments, &kernel)? {
        Outcome::Report(report) => print(arguments, &report),
        Outcome::Answer(answer) => {
            draw(arguments, || answer.plot)?;
            match arguments.format {
                Format::Text => output::text(&answer.text),
                Format::Json => output::json(&answer.json),
                Format::Csv => output::text(&answer.csv),
            }
        }
    }
}

/// The benchmark of that name.
fn find(name: &str) -> Result<&'static Benchmark> {
    let benchmark = BENCHMARKS.iter().find(|row| row.name == name);
    benchmark
        .ok_or_else(|| Failure::input(format!("no benchmark {name:?}; --list shows what there is")))
}

/// What came of a benchmark.
enum Outcome {
    Report(Report),
    Answer(Answer),
}

fn measure_one(
    benchmark: &Benchmark,
    arguments: &Arguments,
    kernel: &objects::Kernel,
) -> Result<Outcome> {
    let (name, given) = (benchmark.name, arguments.given());
    if let Some((option, _)) = given.iter().find(|(o, _)| !benchmark.options.contains(o)) {
        return Err(Failure::input(format!(
            "{name} does not support --{option}"
        )));
    }
    Ok(match &benchmark.kind {
        Kind::Operations(workload) => {
            let workload = workload(arguments)?;
            let span = arguments.span()?;
            let (engines, skipped) = measure(&workload, arguments.engines(), span, kernel)?;
            Outcome::Report(Report {
                benchmark: name.to_owned(),
                options: given,
                producers: arguments.producers,
                engines,
                skipped,
                unit: Unit::Mega,
            })
        }
        Kind::Report(measure) => Outcome::Report(measure(arguments, name)?),
        Kind::Own(measure) => Outcome::Answer(measure(arguments, kernel)?),
    })
}

fn print(arguments: &Arguments, report: &Report) -> Result {
    tell_skipped(&report.skipped);
    draw(arguments, || report.plot())?;
    match arguments.format {
        Format::Text => output::text(&report.text()),
        Format::Json => output::json(report),
        Format::Csv => output::text(&report.csv(true)),
    }
}

/// Says which engines were left out.
pub fn tell_skipped(skipped: &Skipped) {
    for (engine, reason) in skipped {
        anstream::eprintln!("skipped: {engine}: {reason}");
    }
}

fn draw(arguments: &Arguments, plot: impl FnOnce() -> Plot) -> Result {
    match &arguments.plot {
        Some(path) => write(path, &plot().svg()),
        None => Ok(()),
    }
}

fn write(path: &Path, text: &str) -> Result {
    let mut file = files::OutputFile::create(path)?;
    file.write_all(text.as_bytes())
        .map_err(|error| Failure::machine(format!("{}: {error}", path.display())))?;
    file.finish()
}
