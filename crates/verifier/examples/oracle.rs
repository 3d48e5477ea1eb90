//! Compares verdicts with those of a Linux kernel.
//!
//! ```text
//! oracle [--show CLASS|FILE:PROG] [--log LEVEL] [FILTER]
//! ```
//!
//! Reads `BPFKIT_ORACLE` (a file of JSON lines; default `testdata/oracle/*.jsonl`) and the
//! objects in `BPFKIT_SELFTESTS` (default `target/kernel-selftests`); links them against
//! the running kernel.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use bpfkit_btf::Btf;
use bpfkit_object::{Linker, Object, Target};
use bpfkit_spec::{AttachType, ProgType};
use bpfkit_verifier::{Environment, verify};
use serde_json::Value;

struct Row {
    file: String,
    prog: String,
    accept: bool,
    prog_type: String,
    attach_type: String,
    message: String,
    processed: u64,
    total_states: u64,
    peak_states: u64,
    stack_depth: String,
    us: u64,
}

#[derive(Default)]
struct Outcome {
    class: String,
    detail: String,
    verdict: bool,
    message: bool,
    processed: bool,
    states: bool,
    peak: bool,
    depth: bool,
    us: f64,
    row: usize,
}

fn read_rows() -> Vec<Row> {
    let paths: Vec<PathBuf> = match std::env::var_os("BPFKIT_ORACLE") {
        Some(path) => vec![path.into()],
        None => std::fs::read_dir("testdata/oracle")
            .map(|dir| dir.flatten().map(|e| e.path()).collect())
            .unwrap_or_default(),
    };
    let mut rows = Vec::new();
    for path in paths {
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        for value in text
            .lines()
            .filter_map(|l| serde_json::from_str::<Value>(l).ok())
        {
            let text = |key: &str| value[key].as_str().unwrap_or("").to_string();
            let number = |key: &str| value[key].as_u64().unwrap_or(0);
            let verdict = text("verdict");
            if verdict != "accept" && verdict != "reject" {
                continue;
            }
            rows.push(Row {
                file: text("file"),
                prog: text("prog"),
                accept: verdict == "accept",
                prog_type: text("prog_type"),
                attach_type: text("attach_type"),
                message: text("message"),
                processed: number("processed"),
                total_states: number("total_states"),
                peak_states: number("peak_states"),
                stack_depth: text("stack_depth"),
                us: number("us"),
            });
        }
    }
    rows
}

/// A message without its numbers, to count alike ones together.
fn shape(message: &str) -> String {
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
    at: usize,
    linker: &mut Linker<'_>,
    object: &Object,
    btf: &Btf,
    log: u32,
) -> (Outcome, String) {
    let mut outcome = Outcome {
        row: at,
        ..Outcome::default()
    };
    let Some(index) = object.program_index(&row.prog) else {
        outcome.class = "no such program".into();
        return (outcome, String::new());
    };
    let mut program = match linker.link(index) {
        Ok(program) => program,
        Err(e) => {
            outcome.class = format!("link: {}", shape(&e.to_string()));
            return (outcome, String::new());
        }
    };
    if let Some(t) = ProgType::ALL.iter().find(|t| t.name() == row.prog_type) {
        program.decl.prog_type = *t;
    }
    if let Some(t) = AttachType::ALL.iter().find(|t| t.name() == row.attach_type) {
        program.decl.attach_type = *t;
    }
    let maps = linker.maps();
    let mut env = Environment::new(Some(btf));
    env.cpus = 2;
    env.log_level = log;
    // The least of a few runs, as the kernel's time is.
    let runs = std::env::var("BPFKIT_RUNS")
        .ok()
        .and_then(|r| r.parse().ok())
        .unwrap_or(1);
    let mut verdict = catch_unwind(|| Err(String::new()));
    outcome.us = f64::INFINITY;
    for _ in 0..runs {
        let start = Instant::now();
        verdict = catch_unwind(AssertUnwindSafe(|| Ok(verify(&program, &maps, &env))));
        outcome.us = outcome.us.min(start.elapsed().as_secs_f64() * 1e6);
    }
    let verdict = verdict.ok().and_then(Result::ok).ok_or(());
    let Ok(verdict) = verdict else {
        outcome.class = "panic".into();
        return (outcome, String::new());
    };
    let stats = &verdict.stats;
    let depth: Vec<String> = stats.stack_depth.iter().map(u32::to_string).collect();
    outcome.processed = u64::from(stats.processed) == row.processed;
    outcome.states = u64::from(stats.total_states) == row.total_states;
    outcome.peak = u64::from(stats.peak_states) == row.peak_states;
    outcome.depth = depth.join("+") == row.stack_depth;
    let numbers = format!(
        "processed {} for {}, states {} for {}, depth {} for {}",
        stats.processed,
        row.processed,
        stats.total_states,
        row.total_states,
        depth.join("+"),
        row.stack_depth
    );
    match (&verdict.result, row.accept) {
        (Ok(_), true) => {
            outcome.verdict = true;
            outcome.message = true;
            if !outcome.processed {
                outcome.class = "processed differs".into();
            } else if !outcome.states {
                outcome.class = "states differ".into();
            } else if !outcome.depth {
                outcome.class = "depth differs".into();
            }
            outcome.detail = numbers;
        }
        (Ok(_), false) => {
            outcome.class = format!("accepted; kernel: {}", shape(&row.message));
            outcome.detail = format!("{}; {numbers}", row.message);
        }
        (Err(e), true) => {
            outcome.class = format!("refused: {}", shape(&e.message));
            outcome.detail = format!("at {}: {}", e.insn, e.message);
        }
        (Err(e), false) => {
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
    (outcome, verdict.log)
}

fn main() {
    let mut show = None;
    let mut log = 0;
    let mut filter = None;
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--show" => show = args.next(),
            "--log" => log = args.next().and_then(|l| l.parse().ok()).unwrap_or(0),
            _ => filter = Some(arg),
        }
    }
    std::panic::set_hook(Box::new(|info| eprintln!("panic: {info}")));
    let rows = read_rows();
    let objects = std::env::var_os("BPFKIT_SELFTESTS")
        .map_or_else(|| PathBuf::from("target/kernel-selftests"), PathBuf::from);
    let Ok(bytes) = std::fs::read("/sys/kernel/btf/vmlinux") else {
        eprintln!("no kernel BTF");
        return;
    };
    let Ok(btf) = Btf::parse(&bytes) else { return };
    let kconfig = Command::new("zcat").arg("/proc/config.gz").output();
    let kconfig = kconfig
        .map(|o| String::from_utf8_lossy(&o.stdout).into_owned())
        .ok();
    let kallsyms = std::fs::read_to_string("/proc/kallsyms").ok();
    let target = Target {
        kernel_btf: Some(&btf),
        kconfig: kconfig.as_deref(),
        kallsyms: kallsyms.as_deref(),
        ..Target::default()
    };
    let mut files: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (at, row) in rows.iter().enumerate() {
        let name = format!("{}:{}", row.file, row.prog);
        if filter.as_ref().is_none_or(|f| name.contains(f.as_str())) {
            files.entry(&row.file).or_default().push(at);
        }
    }
    let files: Vec<(&str, Vec<usize>)> = files.into_iter().collect();
    let next = AtomicUsize::new(0);
    let outcomes = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some((file, at)) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let Ok(bytes) = std::fs::read(objects.join(file)) else {
                        continue;
                    };
                    let Ok(object) = Object::open(file, &bytes) else {
                        eprintln!("{file}: cannot be opened");
                        continue;
                    };
                    let mut linker = Linker::new(&object, &target);
                    for &at in at {
                        let (outcome, text) = judge(&rows[at], at, &mut linker, &object, &btf, log);
                        if log != 0 {
                            println!("{text}");
                        }
                        if let Ok(mut all) = outcomes.lock() {
                            all.push(outcome);
                        }
                    }
                }
            });
        }
    });
    let outcomes = outcomes.into_inner().unwrap_or_default();
    report(&rows, &outcomes, show.as_deref());
}

fn report(rows: &[Row], outcomes: &[Outcome], show: Option<&str>) {
    let mut classes: BTreeMap<&str, Vec<&Outcome>> = BTreeMap::new();
    for outcome in outcomes.iter().filter(|o| !o.class.is_empty()) {
        classes.entry(&outcome.class).or_default().push(outcome);
    }
    let mut classes: Vec<_> = classes.into_iter().collect();
    classes.sort_by_key(|(_, o)| std::cmp::Reverse(o.len()));
    for (class, list) in &classes {
        let first = list[0];
        let row = &rows[first.row];
        println!("{:5} {class}   [{}:{}]", list.len(), row.file, row.prog);
        if show.is_some_and(|s| class.contains(s)) {
            for outcome in list {
                let row = &rows[outcome.row];
                println!("        {}:{}: {}", row.file, row.prog, outcome.detail);
            }
        }
    }
    let share = |count: usize, of: usize| 100.0 * count as f64 / of.max(1) as f64;
    let count = |f: &dyn Fn(&&Outcome) -> bool| outcomes.iter().filter(f).count();
    let accepted = count(&|o| rows[o.row].accept);
    let refused = outcomes.len() - accepted;
    let both = |o: &&Outcome| o.verdict && rows[o.row].accept;
    let verdicts = count(&|o| o.verdict);
    let messages = count(&|o| o.verdict && o.message && !rows[o.row].accept);
    let processed = count(&|o| both(o) && o.processed);
    let states = count(&|o| both(o) && o.states);
    let peaks = count(&|o| both(o) && o.peak);
    let depths = count(&|o| both(o) && o.depth);
    println!(
        "programs {} ({accepted} accepted, {refused} refused by the kernel)",
        outcomes.len()
    );
    println!(
        "verdict  {verdicts} = {:.2} %",
        share(verdicts, outcomes.len())
    );
    println!(
        "message  {messages} = {:.2} % of the refused",
        share(messages, refused)
    );
    println!(
        "processed {processed} = {:.2} % of the accepted",
        share(processed, accepted)
    );
    println!(
        "total_states {states} = {:.2} %, peak_states {peaks} = {:.2} %, stack depth {depths} = {:.2} %",
        share(states, accepted),
        share(peaks, accepted),
        share(depths, accepted)
    );
    if show == Some("time") {
        let mut slow: Vec<_> = outcomes.iter().collect();
        slow.sort_by(|a, b| b.us.total_cmp(&a.us));
        for o in slow.iter().take(25) {
            let row = &rows[o.row];
            println!(
                "{:9.0} us, kernel {:7} us, {} insns  {}:{}",
                o.us, row.us, row.processed, row.file, row.prog
            );
        }
    }
    let ours: f64 = outcomes.iter().filter(|o| both(o)).map(|o| o.us).sum();
    let theirs: u64 = outcomes
        .iter()
        .filter(|o| both(o))
        .map(|o| rows[o.row].us)
        .sum();
    println!(
        "time on those accepted by both: {:.1} ms, kernel {:.1} ms, ratio {:.3}",
        ours / 1e3,
        theirs as f64 / 1e3,
        ours / theirs.max(1) as f64
    );
}
