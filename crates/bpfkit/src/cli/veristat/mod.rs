//! `bpfkit veristat`: veristat's options and output, judged by our verifier.

mod compare;
mod filter;
mod globals;
mod lines;
mod stats;
mod table;

use std::fs;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use bpfkit_spec::KernelVersion;
use clap::ValueEnum;

use crate::cli::failure::{Exit, Failure, Result};
use crate::cli::judge::{self, Job, Judged, Opened};
use crate::cli::objects::{self, LinkArguments};
use crate::cli::{files, glob, output, progress};
use filter::Filters;
use stats::{Row, Spec, Stat};

#[derive(clap::Args)]
#[command(after_help = "\
Stats: verdict, duration, insns, states, peak_states, max_states_per_insn, mark_read, prog_size, \
prog_size_jited, stack, prog_type, attach_type, mem_peak, file, prog.
In comparisons _a, _b, _diff or _pct behind a stat says which value is meant (_b without it), \
and |stat| is its absolute value. Orders end in ^ (ascending) or one of v V . ! _ (descending).
Filters: a glob for file and program names, FILE-GLOB/PROG-GLOB, or a condition on a stat such as \
'insns>100'; ! before a filter turns it round.")]
pub struct Arguments {
    /// Object files or globs, @FILE for a list of them; with -C and -R, CSV files
    #[arg(required = true, value_name = "FILE")]
    files: Vec<String>,
    /// Verbose mode: print verifier logs
    #[arg(short, long, conflicts_with = "quiet")]
    verbose: bool,
    /// Debug mode: as verbose
    #[arg(short, long, conflicts_with = "quiet")]
    debug: bool,
    /// Verifier log level (1 the last path, 2 all paths)
    #[arg(short, long, value_name = "LEVEL", value_parser = clap::value_parser!(u32).range(0..=7))]
    log_level: Option<u32>,
    /// Keep the beginning of a log that is too large, not its end
    #[arg(long)]
    log_fixed: bool,
    /// Most bytes of a log
    #[arg(long, value_name = "BYTES")]
    log_size: Option<usize>,
    /// Emit only up to first N results
    #[arg(short = 'n', long = "top-n", value_name = "N")]
    top: Option<usize>,
    /// Quiet mode
    #[arg(short, long)]
    quiet: bool,
    /// Specify stats to be emitted
    #[arg(short, long, value_name = "SPEC")]
    emit: Vec<String>,
    /// Specify sort order
    #[arg(short, long, value_name = "SPEC")]
    sort: Vec<String>,
    /// Result output format
    #[arg(short, long = "output-format", value_name = "FMT", value_enum, default_value_t = Format::Table)]
    output: Format,
    /// Comparison mode: two CSV files
    #[arg(short = 'C', long, conflicts_with = "replay")]
    compare: bool,
    /// Replay mode: show a CSV file
    #[arg(short = 'R', long)]
    replay: bool,
    /// Filter expressions (or @FILE for a file with expressions)
    #[arg(
        short,
        long = "filter",
        value_name = "FILTER",
        allow_hyphen_values = true
    )]
    filters: Vec<String>,
    /// Keep a state at every point where paths may join (BPF_F_TEST_STATE_FREQ)
    #[arg(short, long)]
    test_states: bool,
    /// Refuse programs whose register bounds contradict each other (BPF_F_TEST_REG_INVARIANTS)
    #[arg(short = 'r', long)]
    test_reg_invariants: bool,
    /// Emit N most frequent source code lines
    #[arg(short = 'S', long, value_name = "N")]
    top_src_lines: Option<usize>,
    /// Set a global variable: NAME=VALUE, with .member and [index] (or @FILE)
    #[arg(short = 'G', long = "set-global-vars", value_name = "GLOBAL")]
    globals: Vec<String>,
    /// Kernel to judge by
    #[arg(long, value_name = "VERSION")]
    kernel: Option<KernelVersion>,
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
    /// For machines, and for -C and -R
    Csv,
}

/// What was read and judged, for the last line.
#[derive(Default)]
struct Counts {
    files: usize,
    programs: usize,
    skipped_files: usize,
    skipped_programs: usize,
}

/// How results are shown.
struct View {
    columns: Vec<Stat>,
    order: Vec<Spec>,
    filters: Filters,
    top: usize,
    format: Format,
}

pub fn run(arguments: &Arguments) -> Result {
    let view = View::new(arguments)?;
    if arguments.compare {
        return view.compare(&arguments.files);
    }
    if arguments.replay {
        let [path] = arguments.files.as_slice() else {
            let message = "Replay mode expects exactly one input CSV file!";
            return Err(Failure::input(message));
        };
        let (_, rows) = view.read(path)?;
        return view.show(rows, &Counts::default());
    }
    judge_files(arguments, &view)
}

impl View {
    fn new(arguments: &Arguments) -> Result<View> {
        let mut columns: Vec<Stat> = Spec::parse_list(&arguments.emit)
            .map_err(Failure::input)?
            .iter()
            .map(|spec| spec.named.stat)
            .collect();
        if columns.is_empty() {
            columns = match arguments.output {
                Format::Table => stats::TABLE_COLUMNS.to_vec(),
                Format::Csv => stats::CSV_COLUMNS.to_vec(),
            };
        }
        Ok(View {
            columns,
            order: Spec::parse_list(&arguments.sort).map_err(Failure::input)?,
            filters: Filters::parse(&arguments.filters)?,
            // 0 is all, as without the option.
            top: arguments.top.filter(|&n| n > 0).unwrap_or(usize::MAX),
            format: arguments.output,
        })
    }

    /// Reads CSV; rows that the filters on names keep back are left out.
    fn read(&self, path: &str) -> Result<(Vec<Stat>, Vec<Row>)> {
        let text = files::read_text(Path::new(path))?;
        let (columns, mut rows) =
            table::read_csv(path, &text).map_err(|e| Failure::input(format!("{path}: {e}")))?;
        rows.retain(|row| self.filters.program(&row.file, &row.prog));
        Ok((columns, rows))
    }

    fn show(&self, mut rows: Vec<Row>, counts: &Counts) -> Result {
        rows.sort_by(|a, b| a.compare(b, &self.order));
        let shown = rows.iter().filter(|row| self.filters.row(row));
        let shown: Vec<&Row> = shown.take(self.top).collect();
        output::text(&match self.format {
            Format::Csv => table::csv(&self.columns, &shown),
            Format::Table => format!(
                "{}Done. Processed {} files, {} programs. Skipped {} files, {} programs.\n",
                table::table(&self.columns, &shown),
                counts.files,
                counts.programs,
                counts.skipped_files,
                counts.skipped_programs
            ),
        })
    }

    fn compare(&self, paths: &[String]) -> Result {
        let [path_a, path_b] = paths else {
            let message = "Comparison mode expects exactly two input CSV files!";
            return Err(Failure::input(message));
        };
        let (columns_a, mut a) = self.read(path_a)?;
        let (columns_b, mut b) = self.read(path_b)?;
        if columns_a.len() != columns_b.len() {
            return Err(Failure::input(format!(
                "Number of stats in '{path_a}' and '{path_b}' differs ({} != {})!",
                columns_a.len(),
                columns_b.len()
            )));
        }
        if let Some((x, y)) = columns_a.iter().zip(&columns_b).find(|(x, y)| x != y) {
            return Err(Failure::input(format!(
                "Stats composition differs between '{path_a}' and '{path_b}' ({} != {})!",
                x.def().names[0],
                y.def().names[0]
            )));
        }
        let mut pairs = compare::join(&mut a, &mut b);
        pairs.sort_by(|x, y| x.compare(y, &self.order));
        let shown = pairs.iter().filter(|pair| pair.is_shown(&self.filters));
        let shown: Vec<_> = shown.take(self.top).collect();
        output::text(&match self.format {
            Format::Csv => compare::csv(&self.columns, &shown),
            Format::Table => compare::table(&self.columns, &shown),
        })
    }
}

/// What a worker gives back: the row, and text to print before the table.
struct Outcome {
    row: Row,
    text: String,
}

fn judge_files(arguments: &Arguments, view: &View) -> Result {
    let kernel = arguments.link.read()?;
    let presets = globals::parse(&arguments.globals)?;
    let verbose = arguments.verbose || arguments.debug;
    let chatty = !arguments.quiet && view.format == Format::Table;
    let mut counts = Counts::default();
    let mut opened = Vec::new();
    let mut paths = Vec::new();
    for path in expand(&arguments.files)? {
        let name = path.file_name().unwrap_or(path.as_os_str());
        let name = name.to_string_lossy().into_owned();
        let skipped = if !view.filters.file(&name) {
            Some(format!("Skipping '{}' due to filters...\n", path.display()))
        } else if files::read(&path).is_ok_and(|bytes| !is_bpf_object(&bytes)) {
            let path = path.display();
            Some(format!(
                "Skipping '{path}' as it's not a BPF object file...\n"
            ))
        } else {
            None
        };
        if let Some(why) = skipped {
            counts.skipped_files += 1;
            if verbose {
                output::text(&why)?;
            }
            continue;
        }
        if chatty {
            output::text(&format!("Processing '{name}'...\n"))?;
        }
        match objects::open(&path) {
            Ok(mut object) => {
                globals::apply(&presets, &mut object)?;
                counts.files += 1;
                opened.push(Opened { name, object });
                paths.push(path);
            }
            Err(failure) => {
                counts.skipped_files += 1;
                anstream::eprintln!("Failed to open '{}': {}", path.display(), failure.message);
            }
        }
    }
    let jobs = judge::list(&opened, |file, prog| view.filters.program(file, prog));
    let all: usize = opened.iter().map(|file| file.object.programs.len()).sum();
    counts.skipped_programs = all - jobs.len();
    let level = match (arguments.log_level, arguments.top_src_lines) {
        (Some(level), _) => level,
        (None, Some(_)) => 2,
        (None, None) if verbose => 1,
        (None, None) => 0,
    };
    let options = judge::Options {
        log_level: match verbose || arguments.top_src_lines.is_some() {
            true => level | 4 | if arguments.log_fixed { 8 } else { 0 },
            false => 0,
        },
        log_size: arguments.log_size,
        kernel: arguments.kernel,
        test_states: arguments.test_states,
        test_reg_invariants: arguments.test_reg_invariants,
        guess_extensions: true,
        jobs: arguments.jobs,
        ..judge::Options::default()
    };
    progress::catch_interrupt();
    let outcomes = judge::judge_all(&options, &kernel, &opened, &jobs, |job, judged| {
        outcome(arguments, &opened[job.file], &paths[job.file], job, judged)
    });
    let mut rows = Vec::new();
    for outcome in outcomes.into_iter().flatten() {
        output::text(&outcome.text)?;
        rows.push(outcome.row);
    }
    counts.programs = rows.len();
    view.show(rows, &counts)?;
    match progress::interrupted() {
        true => Err(Failure {
            message: "interrupted".to_owned(),
            exit: Exit::Interrupted,
        }),
        false => Ok(()),
    }
}

fn outcome(
    arguments: &Arguments,
    opened: &Opened,
    path: &Path,
    job: Job,
    judged: Judged,
) -> Outcome {
    let decl = &opened.object.programs[job.prog];
    let chatty = !arguments.quiet && arguments.output == Format::Table;
    let mut row = Row::new(&opened.name, &decl.name);
    let mut text = String::new();
    if let (Some(guess), true) = (judged.guess, chatty) {
        let (file, prog) = (&opened.name, &decl.name);
        text += &format!("Using guessed program type '{guess}' for {file}/{prog}...\n");
    }
    let decl = judged
        .program
        .as_ref()
        .map_or(decl, |program| &program.decl);
    let size = judged
        .program
        .as_ref()
        .map_or(0, |program| program.insns.len());
    row.set(Stat::Duration, i64::try_from(judged.us).unwrap_or(i64::MAX));
    row.set(Stat::Size, i64::try_from(size).unwrap_or(i64::MAX));
    row.set(Stat::ProgType, decl.prog_type as i64);
    row.set(Stat::AttachType, decl.attach_type as i64);
    // Nothing measures it: threads share the process's memory.
    row.set(Stat::PeakMemory, -1);
    let (log, accepted) = match judged.verdict {
        Ok(verdict) => {
            let stats = &verdict.stats;
            row.set(Stat::Insns, i64::from(stats.processed));
            row.set(Stat::States, i64::from(stats.total_states));
            row.set(Stat::PeakStates, i64::from(stats.peak_states));
            row.set(Stat::MaxStatesPerInsn, i64::from(stats.max_states_per_insn));
            let stack = stats
                .stack_depth
                .iter()
                .map(|&depth| i64::from(depth))
                .sum();
            row.set(Stat::Stack, stack);
            (verdict.log, verdict.result.is_ok())
        }
        Err(message) => (message + "\n", false),
    };
    row.set(Stat::Verdict, i64::from(accepted));
    if arguments.verbose || arguments.debug {
        let verdict = if accepted { "success" } else { "failure" };
        text += &format!(
            "PROCESSING {}/{}, DURATION US: {}, VERDICT: {verdict}, VERIFIER LOG:\n{}\n",
            path.display(),
            row.prog,
            judged.us,
            log
        );
    }
    if let Some(top) = arguments.top_src_lines {
        text += &lines::top_lines(&log, &row.prog, top);
    }
    Outcome { row, text }
}

/// Files by their names, by globs that no shell has expanded, and by lists.
fn expand(words: &[String]) -> Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for word in words {
        match word.strip_prefix('@') {
            Some(list) => {
                for line in files::read_list(Path::new(list))? {
                    expand_glob(&line, &mut paths);
                }
            }
            None => expand_glob(word, &mut paths),
        }
    }
    Ok(paths)
}

/// A name with `*` that no file has stands for the files of its directory that fit.
fn expand_glob(word: &str, paths: &mut Vec<PathBuf>) {
    let path = Path::new(word);
    let glob = path.file_name().map(|name| name.to_string_lossy());
    let Some(glob) = glob.filter(|glob| glob.contains('*') && !path.exists()) else {
        paths.push(path.to_owned());
        return;
    };
    let directory = match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let fitting = entries.filter(|entry| glob::fits(&glob, &entry.file_name().to_string_lossy()));
    let mut found: Vec<PathBuf> = fitting
        .map(|entry| path.with_file_name(entry.file_name()))
        .collect();
    found.sort();
    paths.extend(found);
}

/// Whether bytes are a 64-bit relocatable ELF file of BPF, or of no machine, as old compilers
/// wrote them.
fn is_bpf_object(bytes: &[u8]) -> bool {
    const REL: u16 = 1;
    const BPF: u16 = 247;
    let Some(header) = bytes.get(..20) else {
        return false;
    };
    let half = |at: usize| match header[5] {
        2 => u16::from_be_bytes([header[at], header[at + 1]]),
        _ => u16::from_le_bytes([header[at], header[at + 1]]),
    };
    header.starts_with(b"\x7fELF\x02") && half(16) == REL && matches!(half(18), 0 | BPF)
}
