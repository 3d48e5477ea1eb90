//! `bpfkit asm`: text to instructions.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;

use bpfkit_isa::Insn;
use bpfkit_isa::asm::{self, Resolver};
use bpfkit_spec::helper;
use clap::ValueEnum;

use crate::cli::failure::{Failure, Result};
use crate::cli::{files, hex, output};

#[derive(clap::Args)]
pub struct Arguments {
    /// Assembly, in the kernel's syntax or LLVM's; - is standard input
    file: PathBuf,
    /// Where to write; standard output without it
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// What to write
    #[arg(long, value_enum, default_value_t = Emit::Hex)]
    emit: Emit,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Emit {
    /// Hex digits, an instruction slot a line
    Hex,
    /// Bytes, little-endian
    Bin,
    /// Initializers of struct bpf_insn
    C,
}

/// Helpers by name.
pub struct HelperNumbers;

impl Resolver for HelperNumbers {
    fn helper(&self, name: &str) -> Option<i32> {
        let found = helper::by_name(name.strip_prefix("bpf_").unwrap_or(name))?;
        i32::try_from(found.id).ok()
    }
}

pub fn run(arguments: &Arguments) -> Result {
    let text = files::read_text(&arguments.file)?;
    let assembled = asm::assemble_with(&text, &HelperNumbers)
        .map_err(|error| Failure::input(format!("{}: {error}", arguments.file.display())))?;
    let bytes = match arguments.emit {
        Emit::Hex => {
            text_of(&assembled.insns, |insn| hex::format(&insn.to_le_bytes())).into_bytes()
        }
        Emit::Bin => assembled
            .insns
            .iter()
            .flat_map(|insn| insn.to_le_bytes())
            .collect(),
        Emit::C => text_of(&assembled.insns, |insn| {
            let Insn {
                code,
                dst,
                src,
                off,
                imm,
            } = insn;
            format!("{{ {code:#04x}, {dst}, {src}, {off}, {imm:#x} }},")
        })
        .into_bytes(),
    };
    match &arguments.output {
        Some(path) => {
            let mut file = files::OutputFile::create(path)?;
            file.write_all(&bytes)
                .map_err(|error| Failure::machine(format!("{}: {error}", path.display())))?;
            file.finish()
        }
        None => output::bytes(&bytes),
    }
}

fn text_of(insns: &[Insn], line: impl Fn(&Insn) -> String) -> String {
    insns.iter().fold(String::new(), |mut text, insn| {
        let _ = writeln!(text, "{}", line(insn));
        text
    })
}
