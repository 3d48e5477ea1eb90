//! What a Linux kernel said of many programs, and how our verdicts compare with it.
//!
//! Shared by the test beside this file and by `examples/oracle.rs`.

use std::collections::{BTreeMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use bpfkit_btf::Btf;
use bpfkit_object::{Linker, Object, Program, Target};
use bpfkit_spec::{AttachType, KernelVersion, ProgType};
use bpfkit_verifier::{Environment, Symbols, verify};
use serde_json::Value;

/// Number of threads that judge.
const THREADS: usize = 2;
/// Stack of each in bytes: without optimization frames are large.
const STACK: usize = 256 << 20;

/// Helpers that the kernel asked lacks: built without `CONFIG_BPF_KPROBE_OVERRIDE`, locked down.
const ABSENT_HELPERS: &[&str] = &["override_return", "probe_write_user"];

/// The kernel's verdict on one program (see `testdata/oracle/README.md`).
pub struct Row {
    pub file: String,
    pub prog: String,
    pub accept: bool,
    pub prog_type: String,
    pub attach_type: String,
    pub message: String,
    pub processed: u64,
    pub total_states: u64,
    pub peak_states: u64,
    pub stack_depth: String,
    #[allow(dead_code, reason = "the example reads it")]
    pub us: u64,
}

impl Row {
    /// Object file and program.
    pub fn name(&self) -> String {
        format!("{}:{}", self.file, self.prog)
    }

    /// The verdict in words.
    #[allow(dead_code, reason = "the test reads it")]
    pub fn verdict(&self) -> String {
        if self.accept {
            "accept".into()
        } else {
            format!("reject: {}", self.message)
        }
    }
}

/// What is asked of [`compare`] beside the verdicts.
#[derive(Clone, Copy, Default)]
pub struct Options {
    /// Log level, as of `bpf(2)`.
    pub log_level: u32,
    /// Kernel to judge by; the newest without it.
    pub kernel: Option<KernelVersion>,
    /// How often each program is verified; the least time counts, as the kernel's does.
    pub runs: usize,
}

/// Our verdict on a row, compared with the kernel's.
#[derive(Default)]
pub struct Outcome {
    /// Kind of the first difference, its numbers left out; empty where there is none.
    pub class: String,
    /// Both sides in full.
    pub detail: String,
    /// Our verdict in words.
    pub ours: String,
    /// Whether the verdicts are the same, then messages (of refusals) and figures.
    pub verdict: bool,
    pub message: bool,
    pub processed: bool,
    pub states: bool,
    pub peak: bool,
    pub depth: bool,
    /// Time of verification in µs.
    pub us: f64,
    /// Index of the row.
    pub row: usize,
    /// The log, as far as asked for.
    pub log: String,
}

/// The top of the workspace.
pub fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The objects that the verdicts are about: `BPFKIT_SELFTESTS`, or where
/// `tools/kernel-selftests` puts them.
pub fn objects() -> PathBuf {
    std::env::var_os("BPFKIT_SELFTESTS").map_or_else(
        || workspace().join("target/kernel-selftests"),
        PathBuf::from,
    )
}

/// Rows with a verdict of the verifier, from one file of JSON lines.
pub fn rows_of(path: &Path) -> Vec<Row> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let values = text.lines().filter_map(|l| serde_json::from_str(l).ok());
    values.filter_map(|v: Value| row_of(&v)).collect()
}

fn row_of(value: &Value) -> Option<Row> {
    let text = |key: &str| value[key].as_str().unwrap_or("").to_string();
    let number = |key: &str| value[key].as_u64().unwrap_or(0);
    let accept = match value["verdict"].as_str()? {
        "accept" => true,
        "reject" => false,
        _ => return None,
    };
    Some(Row {
        file: text("file"),
        prog: text("prog"),
        accept,
        prog_type: text("prog_type"),
        attach_type: text("attach_type"),
        message: text("message"),
        processed: number("processed"),
        total_states: number("total_states"),
        peak_states: number("peak_states"),
        stack_depth: text("stack_depth"),
        us: number("us"),
    })
}

/// All rows there are: of the file that `BPFKIT_ORACLE` names, or of `testdata/oracle`.
#[allow(dead_code, reason = "the examples read them")]
pub fn all_rows() -> Vec<Row> {
    let paths: Vec<PathBuf> = match std::env::var_os("BPFKIT_ORACLE") {
        Some(path) => vec![path.into()],
        None => std::fs::read_dir(workspace().join("testdata/oracle"))
            .map(|dir| dir.flatten().map(|e| e.path()).collect())
            .unwrap_or_default(),
    };
    paths.iter().flat_map(|p| rows_of(p)).collect()
}

/// What of the running kernel programs are linked against.
pub struct Machine {
    pub btf: Btf,
    kconfig: Option<String>,
    kallsyms: Option<String>,
}

impl Machine {
    /// Fails where the kernel shows no BTF.
    pub fn read() -> Result<Machine, String> {
        let path = std::env::var("BPFKIT_BTF").unwrap_or("/sys/kernel/btf/vmlinux".into());
        let bytes = std::fs::read(&path).map_err(|e| format!("{path}: {e}"))?;
        let kconfig = Command::new("zcat").arg("/proc/config.gz").output().ok();
        Ok(Machine {
            btf: Btf::parse(&bytes).map_err(|e| format!("{path}: {e}"))?,
            kconfig: kconfig.map(|o| String::from_utf8_lossy(&o.stdout).into_owned()),
            kallsyms: std::fs::read_to_string("/proc/kallsyms").ok(),
        })
    }

    /// Names of the kernel's symbols.
    #[allow(dead_code, reason = "not every user compares verdicts")]
    pub fn symbols(&self) -> HashSet<&str> {
        let lines = self.kallsyms.iter().flat_map(|text| text.lines());
        lines.filter_map(|l| l.split_whitespace().nth(2)).collect()
    }

    pub fn target(&self) -> Target<'_> {
        Target {
            kernel_btf: (&self.btf).into(),
            kconfig: self.kconfig.as_deref(),
            kallsyms: self.kallsyms.as_deref(),
            ..Target::default()
        }
    }
}

/// Gives a program the types that the kernel was told, where its section named none.
pub fn set_types(program: &mut Program, row: &Row) {
    if let Some(t) = ProgType::ALL.iter().find(|t| t.name() == row.prog_type) {
        program.decl.prog_type = *t;
    }
    if let Some(t) = AttachType::ALL.iter().find(|t| t.name() == row.attach_type) {
        program.decl.attach_type = *t;
    }
}

/// Verifies every row's program against the running kernel's BTF, configuration and symbols.
/// Rows whose object is missing have no outcome. Fails where the kernel shows no BTF.
pub fn compare(
    rows: &[Row],
    wanted: &dyn Fn(&Row) -> bool,
    options: Options,
) -> Result<Vec<Outcome>, String> {
    let machine = Machine::read()?;
    let (btf, target) = (&machine.btf, machine.target());
    let symbols = machine.symbols();
    let mut files: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (at, row) in rows.iter().enumerate().filter(|(_, r)| wanted(r)) {
        files.entry(&row.file).or_default().push(at);
    }
    let files: Vec<(&str, Vec<usize>)> = files.into_iter().collect();
    let dir = objects();
    let next = AtomicUsize::new(0);
    let outcomes = Mutex::new(Vec::new());
    let work = || {
        while let Some((file, list)) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
            let Ok(bytes) = std::fs::read(dir.join(file)) else {
                continue;
            };
            let object = match Object::open(file, &bytes) {
                Ok(object) => object,
                Err(e) => {
                    eprintln!("{file}: {e}");
                    continue;
                }
            };
            let mut linker = Linker::new(&object, &target);
            for &at in list {
                let mut outcome = judge(&rows[at], &mut linker, &object, btf, &symbols, options);
                outcome.row = at;
                if let Ok(mut all) = outcomes.lock() {
                    all.push(outcome);
                }
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..THREADS {
            let thread = thread::Builder::new().stack_size(STACK);
            if let Err(e) = thread.spawn_scoped(scope, work) {
                eprintln!("no thread: {e}");
            }
        }
    });
    let mut outcomes = outcomes.into_inner().unwrap_or_default();
    outcomes.sort_by_key(|o| o.row);
    Ok(outcomes)
}

/// A message without its numbers, to count alike ones together.
pub fn shape(message: &str) -> String {
    let mut out = String::new();
    for c in message.chars() {
        if c.is_ascii_digit() {
            if !out.ends_with('N') {
                out.push('N');
            }
        } else {
            out.push(c);
        }
    }
    out.chars().take(90).collect()
}

fn judge(
    row: &Row,
    linker: &mut Linker<'_>,
    object: &Object,
    btf: &Btf,
    symbols: &HashSet<&str>,
    options: Options,
) -> Outcome {
    let mut outcome = Outcome::default();
    let Some(index) = object.program_index(&row.prog) else {
        outcome.class = "no such program".into();
        outcome.ours = outcome.class.clone();
        return outcome;
    };
    let mut program = match linker.link(index) {
        Ok(program) => program,
        Err(e) => {
            outcome.class = format!("link: {}", shape(&e.to_string()));
            outcome.ours = format!("link: {e}");
            return outcome;
        }
    };
    set_types(&mut program, row);
    let maps = linker.maps();
    let mut env = Environment::new(Some(btf));
    env.cpus = 2;
    env.log_level = options.log_level;
    let has = |name: &str| symbols.contains(name);
    // Of another kernel neither is known.
    if options.kernel.is_none() && !symbols.is_empty() {
        env.symbols = Some(Symbols(&has));
        env.absent_helpers = ABSENT_HELPERS;
    }
    if let Some(version) = options.kernel {
        env.kernel_version = version;
    }
    let mut last = None;
    outcome.us = f64::INFINITY;
    for _ in 0..options.runs.max(1) {
        let start = Instant::now();
        last = catch_unwind(AssertUnwindSafe(|| verify(&program, &maps, &env))).ok();
        outcome.us = outcome.us.min(start.elapsed().as_secs_f64() * 1e6);
    }
    let Some(verdict) = last else {
        outcome.class = "panic".into();
        outcome.ours = "panic".into();
        return outcome;
    };
    outcome.log = verdict.log;
    let stats = &verdict.stats;
    let depth: Vec<String> = stats.stack_depth.iter().map(u32::to_string).collect();
    let depth = depth.join("+");
    outcome.processed = u64::from(stats.processed) == row.processed;
    outcome.states = u64::from(stats.total_states) == row.total_states;
    outcome.peak = u64::from(stats.peak_states) == row.peak_states;
    outcome.depth = depth == row.stack_depth;
    let numbers = format!(
        "processed {} for {}, states {} for {}, depth {depth} for {}",
        stats.processed, row.processed, stats.total_states, row.total_states, row.stack_depth
    );
    match (&verdict.result, row.accept) {
        (Ok(_), true) => {
            outcome.ours = "accept".into();
            outcome.verdict = true;
            outcome.message = true;
            outcome.class = if !outcome.processed {
                "processed differs".into()
            } else if !outcome.states {
                "states differ".into()
            } else if !outcome.depth {
                "depth differs".into()
            } else {
                String::new()
            };
            outcome.detail = numbers;
        }
        (Ok(_), false) => {
            outcome.ours = "accept".into();
            outcome.class = format!("accepted; kernel: {}", shape(&row.message));
            outcome.detail = format!("{}; {numbers}", row.message);
        }
        (Err(e), true) => {
            outcome.ours = format!("reject: {}", e.message);
            outcome.class = format!("refused: {}", shape(&e.message));
            outcome.detail = format!("at {}: {}", e.insn, e.message);
        }
        (Err(e), false) => {
            outcome.ours = format!("reject: {}", e.message);
            outcome.verdict = true;
            outcome.message = e.message == row.message;
            outcome.detail = format!(
                "at {}: {} / kernel: {}; {numbers}",
                e.insn, e.message, row.message
            );
            if !outcome.message {
                outcome.class = format!("message: {} / {}", shape(&e.message), shape(&row.message));
            } else if !outcome.processed {
                outcome.class = "processed differs in a refusal".into();
            }
        }
    }
    outcome
}

/// How many programs agree in what.
#[derive(Clone, Copy, Default, Debug)]
pub struct Counts {
    /// Programs judged, and how many of them the kernel accepts.
    pub programs: usize,
    pub accepted: usize,
    /// The same verdict.
    pub verdicts: usize,
    /// Refused by both with the same message.
    pub messages: usize,
    /// Accepted by both with the same instructions walked, states, most states, stack depths.
    pub processed: usize,
    pub states: usize,
    pub peaks: usize,
    pub depths: usize,
    /// Refused by the kernel, accepted by us.
    pub too_kind: usize,
}

/// Counts what agrees.
pub fn count(rows: &[Row], outcomes: &[Outcome]) -> Counts {
    let mut c = Counts::default();
    for o in outcomes {
        let accept = rows[o.row].accept;
        let both = accept && o.verdict;
        c.programs += 1;
        c.accepted += usize::from(accept);
        c.verdicts += usize::from(o.verdict);
        c.messages += usize::from(!accept && o.verdict && o.message);
        c.processed += usize::from(both && o.processed);
        c.states += usize::from(both && o.states);
        c.peaks += usize::from(both && o.peak);
        c.depths += usize::from(both && o.depth);
        c.too_kind += usize::from(!accept && o.ours == "accept");
    }
    c
}
