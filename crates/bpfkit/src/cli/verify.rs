//! `bpfkit verify`: the verdict on every program of some objects.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use bpfkit_object::{Linker, MapDef, Object, Program};
use bpfkit_spec::{KernelVersion, ProgType};
use bpfkit_verifier::{Environment, Verdict};
use clap::ValueEnum;
use serde::Serialize;

use crate::cli::failure::{Exit, Failure, Result};
use crate::cli::objects::{self, Kernel, LinkArguments};
use crate::cli::{output, progress};

/// Stack of a worker: deep types and long call chains recurse.
const WORKER_STACK: usize = 64 << 20;

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
    /// Print the verifier's log: 1 the last path, 2 all paths, 4 statistics, or their sum
    #[arg(short, long, value_name = "LEVEL", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=7))]
    log_level: u32,
    /// Judge as the kernel judges a process without capabilities
    #[arg(long)]
    unprivileged: bool,
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
    /// A JSON object a line
    Jsonl,
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
        }
    }

    fn of(file: &str, prog: &str, verdict: Verdict, us: u64, log: bool) -> Row {
        let (word, message) = match verdict.result {
            Ok(_) => (Word::Accept, String::new()),
            Err(rejection) => (Word::Reject, rejection.message),
        };
        let depths: Vec<String> = verdict.stats.stack_depth.iter().map(u32::to_string).collect();
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
        }
    }
}

/// An opened file and what is to be judged in it.
struct Opened {
    name: String,
    object: Object,
}

pub fn run(arguments: &Arguments) -> Result {
    let kernel = arguments.link.read()?;
    let mut rows: Vec<Option<Row>> = Vec::new();
    let mut files = Vec::new();
    for path in &arguments.files {
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        match objects::open(path) {
            Ok(object) => files.push(Opened { name, object }),
            // With several files, one that is no object is a row like any other.
            Err(failure) if arguments.files.len() > 1 => {
                rows.push(Some(Row::error(&name, None, failure.message)));
            }
            Err(failure) => return Err(failure),
        }
    }
    let wanted = |name: &str| arguments.progs.is_empty() || arguments.progs.iter().any(|p| p == name);
    let jobs: Vec<(usize, usize)> = files
        .iter()
        .enumerate()
        .flat_map(|(file, opened)| {
            let programs = opened.object.programs.iter().enumerate();
            programs.filter(|(_, decl)| wanted(&decl.name)).map(move |(prog, _)| (file, prog))
        })
        .collect();
    if jobs.is_empty() && rows.is_empty() {
        return Err(Failure::input("no program to verify"));
    }
    progress::catch_interrupt();
    rows.extend(judge_all(arguments, &kernel, &files, &jobs));
    let rows: Vec<Row> = rows.into_iter().flatten().collect();
    report(arguments, &rows)?;
    if progress::interrupted() {
        return Err(Failure { message: "interrupted".to_owned(), exit: Exit::Interrupted });
    }
    let refused = rows.iter().filter(|row| row.verdict != Word::Accept).count();
    match refused {
        0 => Ok(()),
        _ => Err(Failure::program(format!("{refused} of {} programs not accepted", rows.len()))),
    }
}

/// Judges every job, on as many threads as asked for; rows come in the order of the jobs,
/// `None` for those not begun before an interrupt.
fn judge_all(
    arguments: &Arguments,
    kernel: &Kernel,
    files: &[Opened],
    jobs: &[(usize, usize)],
) -> Vec<Option<Row>> {
    let threads = arguments.jobs.or(thread::available_parallelism().ok()).map_or(1, NonZeroUsize::get);
    let next = AtomicUsize::new(0);
    let rows: Mutex<Vec<Option<Row>>> = Mutex::new(jobs.iter().map(|_| None).collect());
    let bar = progress::items(jobs.len() as u64);
    let work = || {
        let target = kernel.target();
        let mut linker: Option<(usize, Linker<'_>, Vec<MapDef>)> = None;
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(&(file, prog)) = jobs.get(at) else { return };
            if progress::interrupted() {
                return;
            }
            let opened = &files[file];
            if linker.as_ref().is_none_or(|(of, ..)| *of != file) {
                let new = Linker::new(&opened.object, &target);
                let maps = sized(new.maps());
                linker = Some((file, new, maps));
            }
            let Some((_, linker, maps)) = &mut linker else { return };
            let row = judge(arguments, kernel, opened, prog, linker, maps);
            rows.lock().unwrap_or_else(PoisonError::into_inner)[at] = Some(row);
            bar.inc(1);
        }
    };
    thread::scope(|scope| {
        for _ in 0..threads.min(jobs.len()) {
            let spawned = thread::Builder::new().stack_size(WORKER_STACK).spawn_scoped(scope, work);
            if spawned.is_err() {
                // No further thread to be had: this one does the work.
                work();
            }
        }
    });
    bar.finish_and_clear();
    rows.into_inner().unwrap_or_else(PoisonError::into_inner)
}

fn judge(
    arguments: &Arguments,
    kernel: &Kernel,
    opened: &Opened,
    prog: usize,
    linker: &mut Linker<'_>,
    maps: &[MapDef],
) -> Row {
    let name = &opened.object.programs[prog].name;
    let mut program = match linker.link(prog) {
        Ok(program) => program,
        Err(error) => return Row::error(&opened.name, Some(name), error.to_string()),
    };
    if program.decl.prog_type == ProgType::Unspec {
        match guess_type(&program) {
            Some(guess) => program.decl.prog_type = guess,
            None => {
                let message = format!("section '{}' names no program type", program.decl.section);
                return Row::error(&opened.name, Some(name), message);
            }
        }
    }
    let mut environment = Environment::new(kernel.btf());
    environment.privileged = !arguments.unprivileged;
    environment.log_level = arguments.log_level;
    if let Some(version) = arguments.kernel {
        environment.kernel_version = version;
    }
    let start = Instant::now();
    let verdict = bpfkit_verifier::verify(&program, maps, &environment);
    let us = u64::try_from(start.elapsed().as_micros()).unwrap_or(u64::MAX);
    Row::of(&opened.name, name, verdict, us, arguments.log_level > 0)
}

/// Maps that the application is to size get one entry, as veristat gives them.
fn sized(mut maps: Vec<MapDef>) -> Vec<MapDef> {
    for map in &mut maps {
        map.max_entries = map.max_entries.max(1);
    }
    maps
}

/// Program types by the structure that the program's argument points to, as veristat
/// guesses them.
const BY_CONTEXT: &[(&str, ProgType)] = &[
    ("__sk_buff", ProgType::SchedCls),
    ("xdp_md", ProgType::Xdp),
    ("bpf_sock", ProgType::CgroupSock),
    ("bpf_sock_addr", ProgType::CgroupSockAddr),
    ("bpf_sock_ops", ProgType::SockOps),
    ("sk_msg_md", ProgType::SkMsg),
    ("bpf_cgroup_dev_ctx", ProgType::CgroupDevice),
    ("bpf_sysctl", ProgType::CgroupSysctl),
    ("bpf_sockopt", ProgType::CgroupSockopt),
    ("sk_reuseport_md", ProgType::SkReuseport),
    ("bpf_sk_lookup", ProgType::SkLookup),
    ("bpf_raw_tracepoint_args", ProgType::RawTracepoint),
    ("pt_regs", ProgType::Kprobe),
    ("bpf_perf_event_data", ProgType::PerfEvent),
    ("bpf_user_pt_regs_t", ProgType::PerfEvent),
];

fn guess_type(program: &Program) -> Option<ProgType> {
    let btf = program.btf.as_deref()?;
    let function = btf.type_by_id(program.subprograms.first()?.type_id)?;
    let context = function.proto()?.params().next()?.type_in()?.resolve()?.target()?;
    let name = context.resolve()?.name();
    BY_CONTEXT.iter().find(|(known, _)| *known == name).map(|(_, prog_type)| *prog_type)
}

fn report(arguments: &Arguments, rows: &[Row]) -> Result {
    for row in rows.iter().filter(|row| !row.log.is_empty()) {
        let prog = row.prog.as_deref().unwrap_or_default();
        output::text(&format!("{}/{prog}:\n{}\n", row.file, row.log.trim_end()))?;
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
            output::table(&["file", "program", "verdict", "insns", "states", "us", "message"], cells)
        }
    }
}
