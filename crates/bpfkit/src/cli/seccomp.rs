//! `bpfkit seccomp`: filters over system calls, checked, explained, converted.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use bpfkit_classic::disasm::{Syntax, text};
use bpfkit_classic::seccomp::{
    Arch, Compiled, Dead, Profile, SYSCALLS, SeccompData, Syscall, Verdict, find_dead, outcomes,
};
use bpfkit_classic::{Insn, Options, Program, Rules, Target, asm, convert, run_seccomp};
use bpfkit_isa as isa;
use clap::{ArgAction, ValueEnum};
use serde::Serialize;

use crate::cli::failure::{Failure, Result};
use crate::cli::symbols::HelperNames;
use crate::cli::{Format, files, output};

#[derive(clap::Args)]
pub struct Arguments {
    /// Profile (libseccomp's or OCI's JSON), struct sock_filter as bytes, or a classic program
    /// as text; - is standard input
    file: PathBuf,
    /// Architecture whose system calls are told; this machine's without it
    #[arg(long, value_enum)]
    arch: Option<ArchName>,
    /// Only this system call, with arguments: NAME or NUMBER, then =ARG,… (may repeat)
    #[arg(long = "call", value_name = "NAME[=ARG,…]")]
    calls: Vec<String>,
    /// The same for each line of a file
    #[arg(long, value_name = "FILE")]
    calls_from: Option<PathBuf>,
    /// A capability that the container has, which rules of Docker's profiles ask for (may
    /// repeat)
    #[arg(long = "cap", value_name = "CAP_NAME")]
    caps: Vec<String>,
    /// Print what can never happen: rules that never match, comparisons that always come out
    /// the same, instructions that nothing reaches
    #[arg(long)]
    dead: bool,
    /// Print the classic program, as C with -dd, as numbers with -ddd
    #[arg(short, action = ArgAction::Count)]
    dump: u8,
    /// Print the classic program in bpf_asm's syntax
    #[arg(long)]
    bpf_asm: bool,
    /// Print the program converted to extended BPF
    #[arg(long)]
    ebpf: bool,
    /// Write the filter as struct sock_filter, what prctl(2) and seccomp(2) take
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Output format
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ArchName {
    /// x86-64
    #[value(name = "x86_64")]
    X86_64,
    /// AArch64
    Aarch64,
}

/// A filter, and the profile that it is compiled from, if any.
struct Source {
    insns: Vec<Insn>,
    profile: Option<Compiled>,
}

/// What happens to a system call.
#[derive(Serialize)]
struct Told {
    name: String,
    number: u32,
    /// One, unless it depends on the arguments.
    results: Vec<String>,
}

pub fn run(arguments: &Arguments) -> Result {
    let name = arguments.file.display();
    let source = read(&arguments.file, &arguments.caps)?;
    let program = Program::new(&source.insns, Rules::Seccomp)
        .map_err(|error| Failure::program(format!("{name}: {error}")))?;
    if let Some(path) = &arguments.output {
        let bytes: Vec<u8> = source.insns.iter().flat_map(|i| i.to_le_bytes()).collect();
        files::write(path, &bytes)?;
    }
    let printed = print(arguments, &source, &program)?;
    if arguments.dead {
        return output::text(&dead(&source, &program));
    }
    let arch = match (arguments.arch, cfg!(target_arch = "aarch64")) {
        (Some(ArchName::Aarch64), _) | (None, true) => Arch::Aarch64,
        _ => Arch::X86_64,
    };
    let mut wanted = arguments.calls.clone();
    if let Some(path) = &arguments.calls_from {
        wanted.extend(files::read_list(path)?);
    }
    let told: Vec<Told> = match wanted.is_empty() {
        true if printed || arguments.output.is_some() => return Ok(()),
        true => all(&program, arch),
        false => wanted
            .iter()
            .map(|call| one(&program, arch, call))
            .collect::<Result<_>>()?,
    };
    match arguments.format {
        Format::Json => output::json(&told),
        Format::Text => {
            let rows = told.iter().map(|call| {
                [
                    call.name.clone(),
                    call.number.to_string(),
                    call.results.join(" or "),
                ]
            });
            let table = output::render_table(&["system call", "number", "result"], rows);
            let summary = summary(&told);
            output::text(&format!(
                "{name}: {} instructions, {}\n{table}{summary}",
                source.insns.len(),
                arch_name(arch)
            ))
        }
    }
}

fn arch_name(arch: Arch) -> &'static str {
    match arch {
        Arch::X86_64 => "x86-64",
        Arch::Aarch64 => "AArch64",
    }
}

/// A profile is an object with a default action; text assembles; the rest is bytes.
fn read(path: &Path, caps: &[String]) -> Result<Source> {
    let bytes = files::read(path)?;
    let fail =
        |error: &dyn std::fmt::Display| Failure::input(format!("{}: {error}", path.display()));
    let raw = |insns| Source {
        insns,
        profile: None,
    };
    let from_bytes = || {
        Insn::read_le(&bytes).map(raw).ok_or_else(|| {
            fail(&format!(
                "neither a profile nor text, and {} bytes are no whole number of instructions \
(8 bytes each)",
                bytes.len()
            ))
        })
    };
    let Ok(text) = std::str::from_utf8(&bytes) else {
        return from_bytes();
    };
    if text.contains("\"defaultAction\"") {
        let profile = Profile::parse(text).map_err(|error| fail(&error))?;
        let compiled = profile.compile(caps).map_err(|error| fail(&error))?;
        return Ok(Source {
            insns: compiled.insns.clone(),
            profile: Some(compiled),
        });
    }
    // Bytes of instructions hold zeros, text does not.
    if text.contains('\0') {
        return from_bytes();
    }
    asm::assemble(text).map(raw).map_err(|error| fail(&error))
}

fn print(arguments: &Arguments, source: &Source, program: &Program) -> Result<bool> {
    let mut printed = String::new();
    let classic = match arguments.dump {
        0 => None,
        1 => Some(Syntax::Tcpdump),
        2 => Some(Syntax::C),
        _ => Some(Syntax::Decimal),
    };
    let bpf_asm = arguments.bpf_asm.then_some(Syntax::BpfAsm);
    for syntax in classic.into_iter().chain(bpf_asm) {
        let _ = write!(printed, "{}", text(&source.insns, syntax));
    }
    if arguments.ebpf {
        let options = Options::new(Target::SeccompData);
        let insns = convert(program, &options).map_err(Failure::program)?;
        let listing = isa::disasm::listing(&insns, isa::Syntax::Kernel, &HelperNames);
        let _ = write!(printed, "{listing}");
    }
    if !printed.is_empty() {
        output::text(&printed)?;
    }
    Ok(!printed.is_empty())
}

/// Every system call of an architecture, whatever its arguments.
fn all(program: &Program, arch: Arch) -> Vec<Told> {
    let known = SYSCALLS.iter().filter_map(|call| {
        let number = u32::from(call.number(arch)?);
        let results = outcomes(program, arch, number);
        let results = results.into_iter().map(|result| match result {
            Some(result) => Verdict::new(result).to_string(),
            None => "what the arguments say".to_owned(),
        });
        Some(Told {
            name: call.name.to_owned(),
            number,
            results: results.collect(),
        })
    });
    known.collect()
}

/// A system call with its arguments, 0 where none are given.
fn one(program: &Program, arch: Arch, word: &str) -> Result<Told> {
    let wrong = |why: &str| Failure::input(format!("{word}: {why}"));
    let (name, list) = word.split_once('=').unwrap_or((word, ""));
    let known = Syscall::by_name(name).and_then(|call| call.number(arch));
    let number = match (known, parse(name)) {
        (Some(number), _) => u32::from(number),
        (None, Some(number)) => u32::try_from(number).map_err(|_| wrong("numbers have 32 bits"))?,
        (None, None) => return Err(wrong("no system call of this architecture is called that")),
    };
    let mut call = SeccompData {
        nr: number,
        arch: arch.audit(),
        ..SeccompData::default()
    };
    for (i, word) in list.split(',').filter(|word| !word.is_empty()).enumerate() {
        let slot = call
            .args
            .get_mut(i)
            .ok_or_else(|| wrong("more than 6 arguments"))?;
        *slot = parse(word).ok_or_else(|| wrong("an argument is no number"))?;
    }
    let name = Syscall::by_number(arch, number).map_or("?", |call| call.name);
    Ok(Told {
        name: match list {
            "" => name.to_owned(),
            list => format!("{name}({list})"),
        },
        number,
        results: vec![Verdict::new(run_seccomp(program, &call)).to_string()],
    })
}

fn parse(word: &str) -> Option<u64> {
    let word = word.trim();
    match word.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => word
            .parse()
            .ok()
            .or_else(|| word.parse::<i64>().ok().map(|n| n as u64)),
    }
}

/// How many system calls have each result.
fn summary(told: &[Told]) -> String {
    let mut counts: Vec<(String, usize)> = Vec::new();
    for call in told {
        let result = call.results.join(" or ");
        match counts.iter_mut().find(|(known, _)| *known == result) {
            Some((_, count)) => *count += 1,
            None => counts.push((result, 1)),
        }
    }
    counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let mut line = format!("{} system calls:", told.len());
    for (i, (result, count)) in counts.iter().enumerate() {
        let comma = if i == 0 { "" } else { "," };
        let _ = write!(line, "{comma} {count} {result}");
    }
    line + "\n"
}

/// What can never happen: by the profile's rules, or by instructions.
fn dead(source: &Source, program: &Program) -> String {
    let found = find_dead(program);
    let mut out = String::new();
    if let Some(compiled) = &source.profile {
        for origin in compiled.idle(&found) {
            let _ = writeln!(
                out,
                "rule {} never decides {} on {}: an earlier rule does, or its conditions \
exclude each other",
                origin.rule + 1,
                origin.call.name,
                arch_name(origin.arch)
            );
        }
    } else {
        for dead in found {
            let _ = match dead {
                Dead::NeverHolds(at) => {
                    writeln!(out, "instruction {at}: the comparison never holds")
                }
                Dead::AlwaysHolds(at) => {
                    writeln!(out, "instruction {at}: the comparison always holds")
                }
                Dead::Unreachable(at) => {
                    writeln!(out, "instruction {at}: no system call comes here")
                }
            };
        }
    }
    if out.is_empty() {
        out.push_str("nothing that can never happen\n");
    }
    out
}
