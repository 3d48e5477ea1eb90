//! From an expression or a file to a checked filter.

use std::path::Path;

use bpfkit_classic::{Insn, Program, Rules, asm};
use bpfkit_pcap::{CompileError, CompileOptions, Libpcap};

use crate::cli::failure::{Failure, Result};
use crate::cli::files;

/// Where a filter comes from.
pub enum Source<'a> {
    /// libpcap compiles it.
    Expression(String),
    /// Text of a classic program.
    File(&'a Path),
}

/// A checked filter.
pub struct Filter {
    pub insns: Vec<Insn>,
    pub program: Program,
    /// libpcap, where it was needed.
    pub libpcap: Option<Libpcap>,
}

impl Source<'_> {
    /// Compiles and checks a filter.
    pub fn compile(&self, mut options: CompileOptions, link: Option<&str>) -> Result<Filter> {
        let (insns, libpcap, name) = match self {
            Source::Expression(expression) => {
                let libpcap = Libpcap::load().map_err(Failure::machine)?;
                if let Some(name) = link {
                    options.link = libpcap
                        .link_by_name(name)
                        .ok_or_else(|| Failure::input(format!("no link type is called {name}")))?;
                }
                let insns = libpcap
                    .compile(expression, &options)
                    .map_err(|error| Failure::input(marked(expression, &error)))?;
                (insns, Some(libpcap), "the compiled expression".to_owned())
            }
            Source::File(path) => {
                let name = path.display().to_string();
                let insns = asm::assemble(&files::read_text(path)?)
                    .map_err(|error| Failure::input(format!("{name}: {error}")))?;
                (insns, None, name)
            }
        };
        let program = Program::new(&insns, Rules::Libpcap)
            .map_err(|error| Failure::input(format!("{name}: {error}")))?;
        Ok(Filter {
            insns,
            program,
            libpcap,
        })
    }
}

/// libpcap's message with the place in the expression below it.
fn marked(expression: &str, error: &CompileError) -> String {
    let Some(place) = &error.place else {
        return error.to_string();
    };
    let before = &expression[..place.bytes.start];
    let word = &expression[place.bytes.clone()];
    // Lines of the expression would move the mark.
    let line = expression.replace(['\n', '\r', '\t'], " ");
    format!(
        "{error}\n  {line}\n  {}{}",
        " ".repeat(before.chars().count()),
        "^".repeat(word.chars().count().max(1))
    )
}
