//! `bpfkit verify`: the verdict on every program of some objects.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use bpfkit_spec::KernelVersion;
use bpfkit_verifier::{Verdict, Verified};
use clap::ValueEnum;
use serde::Serialize;

use crate::cli::facts::Document;
use crate::cli::failure::{Exit, Failure, Result};
use crate::cli::judge::{self, Opened};
use crate::cli::objects::{self, LinkArguments};
use crate::cli::{explanation, output, progress, xlated};

#[derive(clap::Args)]
pub struct Arguments {
    /// Object files
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Only programs of this name (may repeat)
    #[arg(short, long = "prog", value_name = "NAME")]
    progs: Vec<String>,
    /// Output format
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
    /// Print the verifier's log: 1 the last path, 2 all paths, 4 statistics, 8 the beginning of
    /// what is too large and not its end, or their sum
    #[arg(short, long, value_name = "LEVEL", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=15))]
    log_level: u32,
    /// Most bytes of a log (16 MiB without it)
    #[arg(long, value_name = "BYTES")]
    log_size: Option<usize>,
    /// Judge as the kernel judges a process without capabilities
    #[arg(long)]
    unprivileged: bool,
    /// Kernel to judge by
    #[arg(long, value_name = "VERSION")]
    kernel: Option<KernelVersion>,
    /// Print what is known of every instruction of accepted programs, a JSON object a program,
    /// in place of the verdicts
    #[arg(long, value_enum, value_name = "FORMAT")]
    facts: Option<FactsFormat>,
    /// Print accepted programs as Linux rewrites them, in place of the verdicts
    #[arg(long, conflicts_with = "facts")]
    xlated: bool,
    /// Trace numbers back all the way, also where an earlier trace passed (docs/precision.md)
    #[arg(long)]
    no_precision_early_stop: bool,
    /// Do not explain rejections
    #[arg(long)]
    no_explain: bool,
    /// Threads; the machine's without it
    #[arg(short, long, value_name = "N")]
    jobs: Option<NonZeroUsize>,
    #[command(flatten)]
    link: LinkArguments,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// For people
    Table,
    /// A JSON object a line
    Jsonl,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum FactsFormat {
    Json,
}

/// What came of one program; the names are those of our oracle files.
#[derive(Serialize)]
struct Row {
    file: String,
    prog: Option<String>,
    verdict: Word,
    #[serde(skip_serializing_if = "String::is_empty")]
    message: String,
    processed: u32,
    max_states_per_insn: u32,
    total_states: u32,
    peak_states: u32,
    stack_depth: String,
    us: u64,
    #[serde(skip)]
    log: String,
    #[serde(skip)]
    explanation: String,
    #[serde(skip)]
    facts: Option<Document>,
    #[serde(skip)]
    xlated: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Word {
    Accept,
    Reject,
    /// The program could not be judged.
    Error,
}

impl Word {
    fn text(self) -> &'static str {
        match self {
            Word::Accept => "accept",
            Word::Reject => "reject",
            Word::Error => "error",
        }
    }
}

impl Row {
    fn error(file: &str, prog: Option<&str>, message: String) -> Row {
        Row {
            file: file.to_owned(),
            prog: prog.map(str::to_owned),
            verdict: Word::Error,
            message,
            processed: 0,
            max_states_per_insn: 0,
            total_states: 0,
            peak_states: 0,
            stack_depth: String::new(),
            us: 0,
            log: String::new(),
            explanation: String::new(),
            facts: None,
            xlated: None,
        }
    }

    fn of(file: &str, prog: &str, verdict: Verdict, us: u64, log: bool) -> Row {
        let (word, message) = match verdict.result {
            Ok(_) => (Word::Accept, String::new()),
            Err(rejection) => (Word::Reject, rejection.message),
        };
        let depths: Vec<String> = verdict
            .stats
            .stack_depth
            .iter()
            .map(u32::to_string)
            .collect();
        Row {
            file: file.to_owned(),
            prog: Some(prog.to_owned()),
            verdict: word,
            message,
            processed: verdict.stats.processed,
            max_states_per_insn: verdict.stats.max_states_per_insn,
            total_states: verdict.stats.total_states,
            peak_states: verdict.stats.peak_states,
            stack_depth: depths.join("+"),
            us,
            log: if log { verdict.log } else { String::new() },
            explanation: String::new(),
            facts: None,
            xlated: None,
        }
    }
}

pub fn run(arguments: &Arguments) -> Result {
    let kernel = arguments.link.read()?;
    let mut rows: Vec<Option<Row>> = Vec::new();
    let mut files = Vec::new();
    for path in &arguments.files {
        let name = path
            .file_name()
            .unwrap_or(path.as_os_str())
            .to_string_lossy()
            .into_owned();
        match objects::open(path) {
            Ok(object) => files.push(Opened { name, object }),
            // With several files, one that is no object is a row like any other.
            Err(failure) if arguments.files.len() > 1 => {
                rows.push(Some(Row::error(&name, None, failure.message)));
            }
            Err(failure) => return Err(failure),
        }
    }
    let wanted =
        |name: &str| arguments.progs.is_empty() || arguments.progs.iter().any(|p| p == name);
    let jobs = judge::list(&files, |_, prog| wanted(prog));
    if jobs.is_empty() && rows.is_empty() {
        return Err(Failure::input("no program to verify"));
    }
    let options = judge::Options {
        log_level: arguments.log_level,
        log_size: arguments.log_size,
        unprivileged: arguments.unprivileged,
        kernel: arguments.kernel,
        explain: !arguments.no_explain
            && arguments.format == Format::Table
            && arguments.facts.is_none()
            && !arguments.xlated,
        full_traces: arguments.no_precision_early_stop,
        facts: arguments.facts.is_some(),
        rewrite: arguments.xlated,
        jobs: arguments.jobs,
        ..judge::Options::default()
    };
    progress::catch_interrupt();
    rows.extend(judge::judge_all(
        &options,
        &kernel,
        &files,
        &jobs,
        |job, judged| {
            let opened = &files[job.file];
            let name = &opened.object.programs[job.prog].name;
            let explanation = judged.explanation.as_ref();
            let explanation = explanation.map(|e| explanation::render(&opened.name, name, e));
            let facts = match (&judged.program, &judged.verdict) {
                (Some(program), Ok(verdict)) if arguments.facts.is_some() => {
                    let facts = verdict.result.as_ref().ok().map(Verified::facts);
                    let maps = &opened.object.maps;
                    facts.map(|facts| Document::new(&opened.name, program, maps, facts))
                }
                _ => None,
            };
            let xlated = match (&judged.program, &judged.verdict) {
                (Some(program), Ok(verdict)) => {
                    let verified = verdict.result.as_ref().ok();
                    verified
                        .and_then(Verified::rewritten)
                        .map(|rewritten| match rewritten {
                            Ok(rewritten) => xlated::render(program, rewritten),
                            Err(error) => format!("{error}\n"),
                        })
                }
                _ => None,
            };
            let mut row = match judged.verdict {
                Ok(verdict) => Row::of(
                    &opened.name,
                    name,
                    verdict,
                    judged.us,
                    arguments.log_level > 0,
                ),
                Err(message) => Row::error(&opened.name, Some(name), message),
            };
            row.explanation = explanation.unwrap_or_default();
            row.facts = facts;
            row.xlated = xlated;
            row
        },
    ));
    let rows: Vec<Row> = rows.into_iter().flatten().collect();
    report(arguments, &rows)?;
    if progress::interrupted() {
        return Err(Failure {
            message: "interrupted".to_owned(),
            exit: Exit::Interrupted,
        });
    }
    let refused = rows
        .iter()
        .filter(|row| row.verdict != Word::Accept)
        .count();
    match refused {
        0 => Ok(()),
        _ => Err(Failure::program(format!(
            "{refused} of {} programs not accepted",
            rows.len()
        ))),
    }
}

fn report(arguments: &Arguments, rows: &[Row]) -> Result {
    for row in rows.iter().filter(|row| !row.log.is_empty()) {
        let prog = row.prog.as_deref().unwrap_or_default();
        output::text(&format!("{}/{prog}:\n{}\n", row.file, row.log.trim_end()))?;
    }
    if arguments.xlated {
        return rows.iter().try_for_each(|row| match &row.xlated {
            Some(text) => {
                let prog = row.prog.as_deref().unwrap_or_default();
                output::text(&format!("{}/{prog}:\n{text}", row.file))
            }
            None => Ok(()),
        });
    }
    if arguments.facts.is_some() {
        return rows
            .iter()
            .filter_map(|row| row.facts.as_ref())
            .try_for_each(|facts| {
                let text = serde_json::to_string(facts).map_err(Failure::machine)?;
                output::text(&format!("{text}\n"))
            });
    }
    match arguments.format {
        Format::Jsonl => {
            let mut text = String::new();
            for row in rows {
                text += &serde_json::to_string(row).map_err(Failure::machine)?;
                text.push('\n');
            }
            output::text(&text)
        }
        Format::Table => {
            let cells = rows.iter().map(|row| {
                [
                    row.file.clone(),
                    row.prog.clone().unwrap_or_default(),
                    row.verdict.text().to_owned(),
                    row.processed.to_string(),
                    row.total_states.to_string(),
                    row.us.to_string(),
                    row.message.clone(),
                ]
            });
            output::table(
                &[
                    "file", "program", "verdict", "insns", "states", "us", "message",
                ],
                cells,
            )?;
            rows.iter()
                .filter(|row| !row.explanation.is_empty())
                .try_for_each(|row| output::text(&format!("\n{}", row.explanation)))
        }
    }
}
