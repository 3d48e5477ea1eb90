//! Compares bpfkit's object loader with libbpf 1.7 on every object of a folder: the
//! programs and maps that each lists, and the instructions that each links.
//!
//! `libbpf-check [--list|--gen] FOLDER|FILE…` prints every difference and a table of agreement; exit code
//! 1 when there is a difference that is not explained. It needs root, for
//! `bpf_object__prepare` asks the kernel what it supports and creates maps; no program of
//! an object is loaded.

mod ours;
mod record;
mod theirs;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use bpfkit_object::{Linker, Object};
use record::{Linked, Listing};

/// How far libbpf goes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// It opens the object.
    List,
    /// It links as for a light skeleton, which needs no kernel: CO-RE and kernel symbols
    /// are left for later, and struct_ops are not possible.
    Gen,
    /// It links against the running kernel.
    Prepare,
}

/// Options, by mode.
const MODES: [(&str, Mode); 2] = [("--list", Mode::List), ("--gen", Mode::Gen)];
/// Runs libbpf on one object.
const CHILD: &str = "--child";

fn main() -> ExitCode {
    let mut args: Vec<String> = std::env::args().skip(1).collect();
    let chosen = MODES
        .iter()
        .find(|(option, _)| args.iter().any(|a| a == option));
    let mode = chosen.map_or(Mode::Prepare, |(_, mode)| *mode);
    args.retain(|a| MODES.iter().all(|(option, _)| a != option));
    if let [flag, path] = args.as_slice()
        && flag == CHILD
    {
        theirs::run(path, mode);
        return ExitCode::SUCCESS;
    }
    let mut files: Vec<PathBuf> = Vec::new();
    for arg in &args {
        let path = PathBuf::from(arg);
        match std::fs::read_dir(&path) {
            Ok(entries) => files.extend(
                entries
                    .flatten()
                    .map(|e| e.path())
                    .filter(|p| p.extension().is_some_and(|e| e == "o")),
            ),
            Err(_) => files.push(path),
        }
    }
    if files.is_empty() {
        eprintln!("usage: libbpf-check [--list|--gen] FOLDER|FILE…");
        return ExitCode::from(2);
    }
    files.sort();
    let kernel = ours::Kernel::read();
    let mut tally = Tally::default();
    for file in &files {
        check(file, &kernel, mode, &mut tally);
    }
    tally.print();
    if tally.differences == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// How often the two agree, by what was compared.
#[derive(Default)]
struct Tally {
    rows: BTreeMap<&'static str, (u64, u64)>,
    differences: u64,
}

impl Tally {
    fn compare<T: PartialEq + std::fmt::Debug>(
        &mut self,
        what: &'static str,
        place: &str,
        ours: &T,
        theirs: &T,
    ) -> bool {
        let row = self.rows.entry(what).or_default();
        row.1 += 1;
        if ours == theirs {
            row.0 += 1;
            return true;
        }
        self.differences += 1;
        println!("{place}: {what}\n    ours   {ours:?}\n    libbpf {theirs:?}");
        false
    }

    fn count(&mut self, what: &'static str, agreed: bool) {
        let row = self.rows.entry(what).or_default();
        row.0 += u64::from(agreed);
        row.1 += 1;
    }

    fn print(&self) {
        println!("{:<44} {:>7} {:>7}", "compared", "same", "of");
        for (what, (same, all)) in &self.rows {
            println!("{what:<44} {same:>7} {all:>7}");
        }
    }
}

fn check(file: &PathBuf, kernel: &ours::Kernel, mode: Mode, tally: &mut Tally) {
    let name = file
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    let Ok(bytes) = std::fs::read(file) else {
        println!("{name}: cannot be read");
        tally.differences += 1;
        return;
    };
    let output = std::env::current_exe().and_then(|exe| {
        let mut child = Command::new(exe);
        if let Some((option, _)) = MODES.iter().find(|(_, m)| *m == mode) {
            child.arg(option);
        }
        child.arg(CHILD).arg(file).output()
    });
    let output = output
        .map(|o| String::from_utf8_lossy(&o.stdout).into_owned())
        .unwrap_or_default();
    let mut lines = output.lines();
    let listing: Option<Listing> = lines.next().and_then(|l| serde_json::from_str(l).ok());
    let Some(theirs) = listing else {
        println!("{name}: libbpf died");
        tally.differences += 1;
        return;
    };
    let object = Object::open(&file.to_string_lossy(), &bytes);
    let target = kernel.target(mode == Mode::Prepare);
    let object = match (object, theirs.error) {
        (Ok(object), None) => {
            tally.count("objects: open", true);
            object
        }
        (Err(e), None) => {
            tally.count("objects: open", false);
            tally.differences += 1;
            println!("{name}: opened by libbpf only; ours: {e}");
            return;
        }
        (Err(e), Some(theirs)) => {
            tally.compare(
                "objects: reason not to open",
                &name,
                &e.message().to_owned(),
                &theirs,
            );
            return;
        }
        (Ok(object), Some(theirs)) => {
            // Ours keeps the fault to the programs that it concerns.
            let mut linker = Linker::new(&object, &target);
            let errors: Vec<String> = (0..object.programs.len())
                .filter_map(|i| linker.link(i).err())
                .map(|e| e.message().to_owned())
                .collect();
            let agreed = errors.contains(&theirs) || theirs.contains("legacy map definitions");
            tally.count("objects: only we open, program says why", agreed);
            println!(
                "{name}: opened by us only ({} of {} programs link); libbpf: {theirs}{}",
                object.programs.len() - errors.len(),
                object.programs.len(),
                if agreed { "" } else { " [ours: other]" }
            );
            tally.differences += u64::from(!agreed);
            return;
        }
    };
    let ours = ours::list(&object);
    let ours_btf = ours.btf;
    tally.compare(
        "objects: number of programs",
        &name,
        &ours.programs.len(),
        &theirs.programs.len(),
    );
    for (a, b) in ours.programs.iter().zip(&theirs.programs) {
        tally.compare("programs", &format!("{name}:{}", b.name), a, b);
    }
    tally.compare(
        "objects: number of maps",
        &name,
        &ours.maps.len(),
        &theirs.maps.len(),
    );
    for (a, b) in ours.maps.iter().zip(&theirs.maps) {
        tally.compare("maps", &format!("{name}:{}", b.name), a, b);
    }
    if mode == Mode::List {
        // Ours marks hidden functions at once, libbpf when it loads.
        tally.compare("objects: BTF", &name, &ours.btf, &theirs.btf);
        return;
    }
    let mut linker = Linker::new(&object, &target);
    let refused = linker.check().err().map(|e| e.message().to_owned());
    for (index, line) in lines.enumerate() {
        let Ok(theirs) = serde_json::from_str::<Linked>(line) else {
            continue;
        };
        if theirs.skipped {
            tally.count("programs: not comparable", true);
            continue;
        }
        let mut ours = ours::link(&mut linker, &object, index, ours_btf);
        // libbpf refuses the whole object for what another program needs.
        if refused.is_some() {
            tally.count(
                "programs: link though libbpf refuses the object",
                ours.error.is_none(),
            );
            ours.error.clone_from(&refused);
        }
        compare_linked(&name, &ours, &theirs, mode, tally);
    }
}

fn compare_linked(file: &str, ours: &Linked, theirs: &Linked, mode: Mode, tally: &mut Tally) {
    let place = format!("{file}:{}", theirs.program);
    tally.compare("programs: order", &place, &ours.program, &theirs.program);
    match (&ours.error, &theirs.error) {
        (None, None) => {}
        (Some(a), Some(b)) => {
            let same = a == b || b.contains(a.as_str());
            tally.count("programs: reason not to link", same);
            if !same {
                tally.differences += 1;
                println!("{place}: does not link\n    ours   {a}\n    libbpf {b}");
            }
            return;
        }
        (Some(a), None) => {
            tally.count("programs: linked by libbpf", false);
            tally.differences += 1;
            println!("{place}: linked by libbpf only; ours: {a}");
            return;
        }
        (None, Some(b)) => {
            tally.count("programs: linked by us only", true);
            tally.differences += 1;
            println!("{place}: linked by us only; libbpf: {b}");
            return;
        }
    }
    tally.count("programs: linked by libbpf", true);
    let first = ours
        .insns
        .iter()
        .zip(&theirs.insns)
        .position(|(a, b)| a != b);
    let near = |list: &[(u8, u8, u8, i16, i32)]| {
        let at = first.unwrap_or(list.len().min(theirs.insns.len()));
        (list.len(), at, list.get(at).copied())
    };
    tally.compare(
        "programs: instructions",
        &place,
        &near(&ours.insns),
        &near(&theirs.insns),
    );
    if !theirs.complete {
        tally.count("programs: libbpf stops after linking", true);
        return;
    }
    tally.compare(
        "programs: function records",
        &place,
        &ours.functions,
        &theirs.functions,
    );
    let first = ours
        .lines
        .iter()
        .zip(&theirs.lines)
        .position(|(a, b)| a != b);
    let near = |list: &[(u32, u32, u32)]| (list.len(), first.and_then(|at| list.get(at).copied()));
    tally.compare(
        "programs: line records",
        &place,
        &near(&ours.lines),
        &near(&theirs.lines),
    );
    tally.compare(
        "programs: contents of .kconfig",
        &place,
        &ours.kconfig,
        &theirs.kconfig,
    );
    tally.compare(
        "programs: BTF for the kernel",
        &place,
        &ours.btf,
        &theirs.btf,
    );
    if mode == Mode::Gen {
        return;
    }
    tally.compare(
        "programs: attach type",
        &place,
        &ours.attach_type,
        &theirs.attach_type,
    );
    tally.compare(
        "programs: attach id",
        &place,
        &ours.attach_btf_id,
        &theirs.attach_btf_id,
    );
}
