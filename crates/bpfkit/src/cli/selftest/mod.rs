//! `bpfkit selftest`: BPF selftest objects against our verifier and engines, as `test_progs`
//! of the kernel runs them against a kernel.

mod check;
mod deny;
mod listing;
mod pattern;
mod pool;
mod report;
mod select;
mod suite;
mod tags;
mod wording;

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bpfkit_btf::Btf;
use bpfkit_spec::KernelVersion;

use crate::cli::failure::{Exit, Failure, Result};
use crate::cli::objects::{self, LinkArguments};
use crate::cli::{files, oracle_rows, output, progress};
use check::Shared;
use report::Report;
use select::Selection;
use suite::{Plan, Suite, Test};

#[derive(clap::Args)]
#[command(after_help = "\
NAMES is a list with commas, or @FILE with a name a line. A name is TEST or TEST/SUBTEST: the \
object without .bpf.o, and the subtest's description or program.")]
pub struct Arguments {
    /// Object files, or folders with *.bpf.o in them
    #[arg(required = true, value_name = "DIR|OBJECT")]
    paths: Vec<PathBuf>,
    /// Run tests with names containing any string from NAMES
    #[arg(short = 't', long = "name", value_name = "NAMES")]
    names: Vec<String>,
    /// Don't run tests with names containing any string from NAMES
    #[arg(short = 'b', long = "name-blacklist", value_name = "NAMES")]
    not_names: Vec<String>,
    /// Run tests with names matching the pattern (* is any text)
    #[arg(short = 'a', long = "allow", value_name = "NAMES")]
    allow: Vec<String>,
    /// Don't run tests with names matching the pattern (* is any text)
    #[arg(short = 'd', long = "deny", value_name = "NAMES")]
    deny: Vec<String>,
    /// Run only these numbers: 1,3-5 or 3/1-4
    #[arg(short = 'n', long = "num", value_name = "NUM")]
    numbers: Option<String>,
    /// List test names that would run
    #[arg(short, long)]
    list: bool,
    /// Threads; the machine's without it
    #[arg(short = 'j', long = "workers", value_name = "N")]
    workers: Option<NonZeroUsize>,
    /// Print verifier logs of the last path; twice, of all paths
    #[arg(short, long, action = clap::ArgAction::Count)]
    verbose: u8,
    /// Write a report in JSON to this file, as test_progs writes it
    #[arg(short = 'J', long, value_name = "FILE")]
    json_summary: Option<PathBuf>,
    /// Write a report as JUnit's XML to this file
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
    /// Give a subtest up after so many seconds; 0 waits for ever
    #[arg(short = 'w', long, value_name = "SECONDS", default_value_t = 120)]
    watchdog_timeout: u64,
    /// Tests that are known to fail: a folder with DENYLIST and DENYLIST.<arch>, or one list;
    /// the folders of the objects without it
    #[arg(long, value_name = "DIR|FILE")]
    denylist: Vec<PathBuf>,
    /// Verdicts of a kernel, to be expected of programs without tags
    #[arg(long, value_name = "FILE")]
    oracle: Option<PathBuf>,
    /// Kernel to judge by
    #[arg(long, value_name = "VERSION")]
    kernel: Option<KernelVersion>,
    #[command(flatten)]
    link: LinkArguments,
}

/// This machine, as the tags and as deny lists name architectures.
const fn host() -> (&'static str, &'static str) {
    match cfg!(target_arch = "aarch64") {
        true => ("ARM64", "aarch64"),
        false => ("X86_64", "x86_64"),
    }
}

pub fn run(arguments: &Arguments) -> Result {
    let (arch, list_arch) = host();
    let selection = Selection::new(
        [
            &arguments.names,
            &arguments.not_names,
            &arguments.allow,
            &arguments.deny,
        ],
        arguments.numbers.as_deref(),
    )?;
    let oracle = match &arguments.oracle {
        Some(path) => oracle_rows::read(path)?,
        None => HashMap::new(),
    };
    let mut denials = Vec::new();
    let folders = match arguments.denylist.is_empty() {
        true => arguments
            .paths
            .iter()
            .filter(|path| path.is_dir())
            .collect(),
        false => arguments.denylist.iter().collect::<Vec<_>>(),
    };
    for folder in folders {
        denials.append(&mut deny::read(folder, list_arch)?);
    }
    let plan = Plan {
        selection: &selection,
        oracle: &oracle,
        arch,
    };
    let suite = Suite::read(&expand(&arguments.paths)?, &plan, denials)?;
    if suite.cases.is_empty() {
        return Err(Failure::input("no test to run"));
    }
    if arguments.list {
        let lines = suite
            .cases
            .iter()
            .map(|case| report::title(&suite, case) + "\n");
        return output::text(&lines.collect::<String>());
    }
    let kernel = arguments.link.read()?;
    let btf = btf_of_tags(&suite.tests)?;
    let shared = Arc::new(Shared {
        suite,
        kernel,
        version: arguments.kernel,
        verbosity: u32::from(arguments.verbose).min(2),
        arch,
        btf,
    });
    progress::catch_interrupt();
    let threads = arguments
        .workers
        .or(std::thread::available_parallelism().ok());
    let watchdog = Duration::from_secs(arguments.watchdog_timeout);
    let watchdog = (!watchdog.is_zero()).then_some(watchdog);
    let mut report = Report::default();
    let mut printed = Ok(());
    let verbose = arguments.verbose > 0;
    pool::run(
        &shared,
        threads.map_or(1, NonZeroUsize::get),
        watchdog,
        |case, outcome| {
            let line = report.add(&shared.suite, case, outcome, verbose);
            // The first line that cannot be written is the error that is told.
            if printed.is_ok() {
                printed = output::text(&line);
            }
        },
    );
    printed?;
    output::text(&report.closing(&shared.suite))?;
    if let Some(path) = &arguments.json_summary {
        let json = report.json(&shared.suite).map_err(Failure::machine)?;
        files::write(path, (json + "\n").as_bytes())?;
    }
    if let Some(path) = &arguments.junit {
        files::write(path, report.junit(&shared.suite).as_bytes())?;
    }
    if progress::interrupted() {
        return Err(Failure {
            message: "interrupted".to_owned(),
            exit: Exit::Interrupted,
        });
    }
    let counts = report.counts();
    match (counts.failed, counts.surprising) {
        (0, 0) => Ok(()),
        (0, n) => Err(Failure::program(format!(
            "{n} denied tests pass: take them off the list"
        ))),
        (n, _) => Err(Failure::program(format!("{n} tests failed"))),
    }
}

/// Folders stand for the objects in them, in order of names.
fn expand(paths: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let mut list = Vec::new();
    for path in paths {
        if !path.is_dir() {
            list.push(path.clone());
            continue;
        }
        let wrong = |error| Failure::input(format!("{}: {error}", path.display()));
        let mut found = Vec::new();
        for entry in std::fs::read_dir(path).map_err(wrong)? {
            let entry = entry.map_err(wrong)?.path();
            if entry.to_string_lossy().ends_with(".bpf.o") {
                found.push(entry);
            }
        }
        found.sort();
        list.append(&mut found);
    }
    Ok(list)
}

/// BTF of the objects that tags name in the place of the kernel's.
fn btf_of_tags(tests: &[Test]) -> Result<HashMap<PathBuf, Arc<Btf>>> {
    let mut found = HashMap::new();
    for test in tests {
        for spec in test.specs.iter().flatten() {
            let Some(name) = &spec.btf_path else { continue };
            let path = test.folder.join(Path::new(name));
            // What is missing is told by the subtest that wants it.
            if let Ok(object) = objects::open(&path)
                && let Some(btf) = object.btf
            {
                found.insert(path, btf);
            }
        }
    }
    Ok(found)
}
