//! `bpfkit disasm`: instructions to text.

use std::fmt::Write as _;
use std::path::PathBuf;

use bpfkit_isa::disasm::{self, Symbols};
use bpfkit_isa::{Insn, Syntax};
use bpfkit_object::{Linker, Program};
use clap::ValueEnum;
use serde::Serialize;

use crate::cli::failure::{Failure, Result};
use crate::cli::objects::{self, LinkArguments};
use crate::cli::symbols::{HelperNames, ProgramNames};
use crate::cli::{Format, files, hex, output};

#[derive(clap::Args)]
pub struct Arguments {
    /// Object file; with --raw, hex digits or bytes of instructions; - is standard input
    file: PathBuf,
    /// Only this program
    #[arg(short, long, value_name = "NAME")]
    prog: Option<String>,
    /// Syntax of the text
    #[arg(long, value_enum, default_value_t = SyntaxName::Kernel)]
    syntax: SyntaxName,
    /// The file is instructions, not an object
    #[arg(long, conflicts_with = "prog")]
    raw: bool,
    /// Leave out source lines
    #[arg(long)]
    no_source: bool,
    /// Output format
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
    #[command(flatten)]
    link: LinkArguments,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum SyntaxName {
    /// As bpftool and the verifier's log print
    Kernel,
    /// As llvm-objdump prints and clang -S writes
    Llvm,
}

impl From<SyntaxName> for Syntax {
    fn from(name: SyntaxName) -> Syntax {
        match name {
            SyntaxName::Kernel => Syntax::Kernel,
            SyntaxName::Llvm => Syntax::Llvm,
        }
    }
}

#[derive(Serialize)]
struct Listed {
    program: Option<String>,
    instructions: Vec<Line>,
}

#[derive(Serialize)]
struct Line {
    slot: usize,
    bytes: String,
    text: String,
}

pub fn run(arguments: &Arguments) -> Result {
    let syntax = arguments.syntax.into();
    if arguments.raw {
        let insns = raw_insns(&files::read(&arguments.file)?)?;
        return match arguments.format {
            Format::Text => {
                output::text(&disasm::listing(&insns, syntax, &HelperNames).to_string())
            }
            Format::Json => output::json(&listed(None, &insns, syntax, &HelperNames)),
        };
    }
    let object = objects::open(&arguments.file)?;
    let kernel = arguments.link.read()?;
    let target = kernel.target();
    let mut linker = Linker::new(&object, &target);
    if let Some(name) = &arguments.prog {
        objects::choose(&object, &arguments.file, Some(name))?;
    }
    let mut text = String::new();
    let mut documents = Vec::new();
    for (index, decl) in object.programs.iter().enumerate() {
        if arguments
            .prog
            .as_ref()
            .is_some_and(|name| *name != decl.name)
        {
            continue;
        }
        let program = match linker.link(index) {
            Ok(program) => program,
            // One program that does not link does not hide the others.
            Err(error) if arguments.prog.is_none() => {
                anstream::eprintln!("{}: {error}", decl.name);
                continue;
            }
            Err(error) => return Err(Failure::input(error)),
        };
        let names = ProgramNames {
            program: &program,
            maps: &object.maps,
        };
        match arguments.format {
            Format::Json => {
                documents.push(listed(
                    Some(decl.name.clone()),
                    &program.insns,
                    syntax,
                    &names,
                ));
            }
            Format::Text => {
                let _ = writeln!(
                    text,
                    "{} ({}, section {}):",
                    decl.name, decl.prog_type, decl.section
                );
                if arguments.no_source || syntax == Syntax::Llvm {
                    let _ = writeln!(text, "{}", disasm::listing(&program.insns, syntax, &names));
                } else {
                    with_source(&mut text, &program, &names);
                }
            }
        }
    }
    match arguments.format {
        Format::Text => output::text(&text),
        Format::Json => output::json(&documents),
    }
}

/// Instructions as the verifier's log shows them: each source line before its first one.
fn with_source(text: &mut String, program: &Program, names: &dyn Symbols) {
    let mut lines = program.lines.iter().peekable();
    let mut at = 0;
    while let Some(insn) = program.insns.get(at) {
        if let Some(name) = names.label(at)
            && at != 0
        {
            let _ = writeln!(text, "{name}:");
        }
        while let Some(line) = lines.next_if(|line| line.insn as usize <= at) {
            let file = line.file.rsplit('/').next().unwrap_or_default();
            let _ = writeln!(text, "; {} @ {file}:{}", line.text.trim(), line.line);
        }
        let _ = writeln!(
            text,
            "{at:4}: {}",
            disasm::line(&program.insns, at, Syntax::Kernel, names)
        );
        at += insn.slots();
    }
    text.push('\n');
}

fn listed(program: Option<String>, insns: &[Insn], syntax: Syntax, names: &dyn Symbols) -> Listed {
    let mut instructions = Vec::new();
    let mut at = 0;
    while let Some(insn) = insns.get(at) {
        let slots = insns[at..].iter().take(insn.slots());
        let bytes: Vec<u8> = slots.flat_map(|slot| slot.to_le_bytes()).collect();
        let text = disasm::line(insns, at, syntax, names).to_string();
        instructions.push(Line {
            slot: at,
            bytes: hex::format(&bytes),
            text,
        });
        at += insn.slots();
    }
    Listed {
        program,
        instructions,
    }
}

/// Instructions given as hex digits, or as bytes where the input is no text of digits.
pub fn raw_insns(input: &[u8]) -> Result<Vec<Insn>> {
    let digits = std::str::from_utf8(input)
        .ok()
        .and_then(|text| hex::parse(text).ok());
    let bytes = digits.unwrap_or_else(|| input.to_vec());
    let (slots, rest) = bytes.as_chunks::<8>();
    if !rest.is_empty() {
        return Err(Failure::input(format!(
            "{} bytes are no whole number of instructions (8 bytes each)",
            bytes.len()
        )));
    }
    Ok(slots.iter().copied().map(Insn::from_le_bytes).collect())
}
