//! Compares rewritten programs with what the running kernel made of them.
//!
//! ```text
//! beside_xlated [--record] [--show CAUSE] [--lines N] [FILTER]
//! ```
//!
//! The programs are those of `BPFKIT_ORACLE` (default `testdata/oracle/*.jsonl`) that the kernel
//! accepts; their objects lie in `BPFKIT_SELFTESTS` (default `target/kernel-selftests`).
//! `--record` loads each once, gently, and keeps what the kernel shows
//! (`BPF_OBJ_GET_INFO_BY_FD`) in `target/xlated.jsonl`, which later comparisons read. Compared
//! are instructions, first slots of functions and first slots of source lines; addresses, ids and
//! numbers of kernel functions are left out. `--show` prints the programs whose cause holds that
//! text, with N lines around the first difference.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use bpfkit_isa::{Insn, Syntax, code, disasm};
use bpfkit_object::{Linker, MapDef, Object, Program, RefTarget};
use bpfkit_oracle::{Kernel, LoadError, LoadOptions, ProgInfo};
use bpfkit_verifier::{Environment, Rewritten, verify};
use judge::{Machine, Row};
use serde_json::{Value, json};

#[path = "../tests/xlated/beside.rs"]
mod beside;
#[path = "../tests/oracle/judge.rs"]
#[allow(dead_code, reason = "the test and another example use the rest")]
mod judge;

/// Between two loads: the kernel frees programs slowly and hangs where thousands wait.
const PAUSE: Duration = Duration::from_millis(15);

struct Options {
    record: bool,
    show: Option<String>,
    lines: usize,
    filter: String,
}

fn main() -> Result<(), String> {
    let options = options();
    let machine = Machine::read()?;
    let mut rows = judge::all_rows();
    rows.retain(|r| r.accept && r.name().contains(&options.filter));
    rows.sort_by(|a, b| a.file.cmp(&b.file));
    match options.record {
        true => record(&rows, &machine),
        false => compare(&rows, &machine, &options),
    }
}

fn options() -> Options {
    let mut options = Options {
        record: false,
        show: None,
        lines: 6,
        filter: String::new(),
    };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--record" => options.record = true,
            "--show" => options.show = args.next(),
            "--lines" => options.lines = args.next().and_then(|n| n.parse().ok()).unwrap_or(6),
            _ => options.filter = arg,
        }
    }
    options
}

fn recorded() -> PathBuf {
    judge::workspace().join("target/xlated.jsonl")
}

/// What is done with a row's program, its object's maps and the object.
type Each<'e> = dyn FnMut(&Row, &Program, &[MapDef], &Object) -> Result<(), String> + 'e;

/// Calls `each` with every row's linked program, its object's maps and the object.
fn programs(rows: &[Row], machine: &Machine, each: &mut Each<'_>) -> Result<(), String> {
    let target = machine.target();
    for rows in rows.chunk_by(|a, b| a.file == b.file) {
        let file = &rows[0].file;
        let Ok(bytes) = std::fs::read(judge::objects().join(file)) else {
            eprintln!("{file}: no such object");
            continue;
        };
        let object = Object::open(file, &bytes).map_err(|e| format!("{file}: {e}"))?;
        let mut linker = Linker::new(&object, &target);
        for row in rows {
            let linked = object.program_index(&row.prog).map(|p| linker.link(p));
            let Some(Ok(mut program)) = linked else {
                eprintln!("{}: does not link", row.name());
                continue;
            };
            judge::set_types(&mut program, row);
            each(row, &program, &linker.maps(), &object)?;
        }
    }
    Ok(())
}

fn record(rows: &[Row], machine: &Machine) -> Result<(), String> {
    let mut kernel = Kernel::start().map_err(|e| e.to_string())?;
    let path = recorded();
    let mut file = std::fs::File::create(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    programs(rows, machine, &mut |row, program, maps, object| {
        let value = match load(&mut kernel, program, maps, object) {
            Ok(info) => {
                let bytes = info.xlated.iter().flat_map(|i| i.to_le_bytes());
                json!({
                    "file": row.file,
                    "prog": row.prog,
                    "xlated": bytes.map(|b| format!("{b:02x}")).collect::<String>(),
                    "functions": info.functions,
                    "lines": info.lines,
                })
            }
            Err(Failed::Refused(why)) => json!({
                "file": row.file, "prog": row.prog, "error": why,
            }),
            Err(Failed::Over(why)) => return Err(format!("{}: {why}", row.name())),
        };
        thread::sleep(PAUSE);
        writeln!(file, "{value}").map_err(|e| e.to_string())
    })
}

enum Failed {
    Refused(String),
    Over(String),
}

fn load(
    kernel: &mut Kernel,
    program: &Program,
    maps: &[MapDef],
    object: &Object,
) -> Result<ProgInfo, Failed> {
    let btf = object.btf_for_kernel().ok();
    let btf = btf.as_deref().filter(|_| program.btf.is_some());
    let trial = kernel.try_program(program, maps, btf, &LoadOptions::default());
    trial.map(|trial| trial.info).map_err(|e| match e {
        LoadError::Refused { errno, .. } => Failed::Refused(errno.to_string()),
        LoadError::Oracle(e) if e.is_absence() => Failed::Over(e.to_string()),
        LoadError::Oracle(e) => Failed::Refused(e.to_string()),
    })
}

/// What the kernel showed of a program.
struct Theirs {
    insns: Vec<Insn>,
    functions: Vec<u32>,
    lines: Vec<u32>,
}

fn read_recorded() -> Result<BTreeMap<String, Result<Theirs, String>>, String> {
    let path = recorded();
    let text = std::fs::read_to_string(&path)
        .map_err(|e| format!("{}: {e}; --record makes it", path.display()))?;
    let mut all = BTreeMap::new();
    for line in text.lines() {
        let value: Value = serde_json::from_str(line).map_err(|e| e.to_string())?;
        let name = format!(
            "{}:{}",
            value["file"].as_str().unwrap_or_default(),
            value["prog"].as_str().unwrap_or_default()
        );
        let theirs = match (value["xlated"].as_str(), value["error"].as_str()) {
            (Some(hex), _) => Ok(Theirs {
                insns: insns(hex),
                functions: numbers(&value["functions"], |v| v[0].as_u64()),
                lines: numbers(&value["lines"], |v| v.as_u64()),
            }),
            (None, error) => Err(error.unwrap_or_default().to_owned()),
        };
        all.insert(name, theirs);
    }
    Ok(all)
}

fn numbers(list: &Value, number: impl Fn(&Value) -> Option<u64>) -> Vec<u32> {
    let list = list.as_array().into_iter().flatten();
    list.filter_map(|v| number(v)?.try_into().ok()).collect()
}

fn insns(hex: &str) -> Vec<Insn> {
    let digits: Vec<u8> = hex
        .bytes()
        .map(|b| (b as char).to_digit(16).unwrap_or(0) as u8)
        .collect();
    let bytes: Vec<u8> = digits
        .as_chunks::<2>()
        .0
        .iter()
        .map(|[high, low]| high << 4 | low)
        .collect();
    let slots = bytes.as_chunks::<8>().0.iter();
    slots.copied().map(Insn::from_le_bytes).collect()
}

fn compare(rows: &[Row], machine: &Machine, options: &Options) -> Result<(), String> {
    let recorded = read_recorded()?;
    let (mut compared, mut equal, mut unloaded) = (0, 0, 0);
    let mut causes: BTreeMap<String, Vec<String>> = BTreeMap::new();
    programs(rows, machine, &mut |row, program, maps, _| {
        let name = row.name();
        let Some(Ok(theirs)) = recorded.get(&name) else {
            unloaded += 1;
            return Ok(());
        };
        let mut environment = Environment::new(Some(&machine.btf));
        environment.rewrite = true;
        environment.cpus = 2;
        let verdict = verify(program, maps, &environment);
        compared += 1;
        let (cause, text) = match &verdict.result {
            Err(rejection) => (format!("refused: {rejection}"), String::new()),
            Ok(verified) => match verified.rewritten() {
                Some(Ok(ours)) => difference(program, ours, theirs, options.lines),
                other => (format!("{other:?}"), String::new()),
            },
        };
        if cause.is_empty() {
            equal += 1;
            return Ok(());
        }
        if options.show.as_ref().is_some_and(|s| cause.contains(s)) {
            println!("{name}: {cause}\n{text}\n");
        }
        causes.entry(cause).or_default().push(name);
        Ok(())
    })?;
    let mut causes: Vec<_> = causes.into_iter().collect();
    causes.sort_by_key(|(_, names)| std::cmp::Reverse(names.len()));
    for (cause, names) in &causes {
        println!("{:5} {cause}   [{}]", names.len(), names[0]);
    }
    println!("{equal} of {compared} equal; {unloaded} that the kernel did not load here");
    Ok(())
}

/// Why two programs differ, nothing where they do not, and the lines around.
fn difference(
    program: &Program,
    ours: &Rewritten,
    theirs: &Theirs,
    lines: usize,
) -> (String, String) {
    let pairs = beside::pairs(ours, &theirs.insns);
    if let Some(at) = beside::first_difference(&pairs) {
        let text = beside::around(&pairs, at, lines);
        return (cause(program, ours, at), text);
    }
    let starts: Vec<u32> = ours.subprograms.iter().map(|s| s.0).collect();
    if !theirs.functions.is_empty() && starts != theirs.functions {
        let text = format!("{starts:?}\n{:?}", theirs.functions);
        return ("functions".to_owned(), text);
    }
    let slots: Vec<u32> = ours.lines.iter().map(|l| l.insn).collect();
    if !theirs.lines.is_empty() && slots != theirs.lines {
        let text = format!("{slots:?}\n{:?}", theirs.lines);
        return ("lines".to_owned(), text);
    }
    (String::new(), String::new())
}

/// The instruction whose new code begins to differ, as far as that can be told.
fn cause(program: &Program, ours: &Rewritten, at: usize) -> String {
    let origin = |at: usize| ours.origins.get(at).copied();
    let here = origin(at);
    let before = at.checked_sub(1).and_then(origin);
    let told = |slot: u32| {
        let insn = program.insns.get(slot as usize)?;
        let unconverted = ours.unconverted.contains(&slot);
        let call = insn.code == code::JMP | code::CALL && insn.src != code::PSEUDO_CALL;
        let kind = program.decl.prog_type.name();
        if unconverted {
            return Some(format!("context of {kind} at {}", insn.off));
        }
        call.then(|| match insn.src {
            0 => {
                let helper = bpfkit_spec::helper::by_id(insn.imm);
                format!("helper {}", helper.map_or("?", |h| h.name))
            }
            _ => {
                let named = program.refs.iter().find(|r| r.insn == slot);
                let name = named.and_then(|r| match &r.target {
                    RefTarget::Kfunc { name, .. } => Some(name.as_str()),
                    _ => None,
                });
                format!("kfunc {}", name.unwrap_or("?"))
            }
        })
    };
    let interesting = here
        .and_then(told)
        .or_else(|| before.filter(|b| Some(*b) != here).and_then(told));
    interesting.unwrap_or_else(|| {
        let slot = here.or(before).unwrap_or(0) as usize;
        let line = program.insns.get(slot).map(|insn| {
            let insns = [*insn];
            let line = disasm::line(&insns, 0, Syntax::Kernel, &disasm::NoSymbols);
            judge::shape(&line.to_string())
        });
        format!("instruction {}", line.unwrap_or_default())
    })
}
