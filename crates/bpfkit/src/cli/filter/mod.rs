//! `bpfkit filter`: filter expressions and classic programs, on captures and as text, machine
//! code and objects.

mod link;
mod output;
mod program;
mod savefile;
mod work;

use std::path::{Path, PathBuf};

use bpfkit_pcap::CompileOptions;
use clap::{ArgAction, ValueEnum};

use crate::cli::Format;
use crate::cli::failure::{Failure, Result};
use program::{Filter, Source};
use savefile::{Precision, Reader};

#[derive(clap::Args)]
pub struct Arguments {
    /// Filter expression (pcap-filter(7)); several words are joined
    #[arg(conflicts_with = "program")]
    expression: Vec<String>,
    /// Classic program instead of an expression: what tcpdump -d, -dd, -ddd or bpf_asm write
    #[arg(short = 'F', long, value_name = "FILE")]
    program: Option<PathBuf>,
    /// Capture to filter (pcap or pcapng); - is standard input
    #[arg(short, long, value_name = "FILE")]
    read: Option<PathBuf>,
    /// Capture to write the packets that match to; - is standard output
    #[arg(short, long, value_name = "FILE", requires = "read")]
    write: Option<PathBuf>,
    /// Stop after that many packets that match
    #[arg(short, long, value_name = "N", requires = "read")]
    count: Option<u64>,
    /// Keep nanoseconds; without it times are in microseconds, as tcpdump has them
    #[arg(long)]
    nano: bool,
    /// What runs the filter
    #[arg(long, value_enum, default_value_t = EngineName::Jit)]
    engine: EngineName,
    /// Print the classic program, as C with -dd, as numbers with -ddd
    #[arg(short, action = ArgAction::Count)]
    dump: u8,
    /// Print the classic program in bpf_asm's syntax
    #[arg(long)]
    bpf_asm: bool,
    /// Print the extended program
    #[arg(long)]
    ebpf: bool,
    /// Print the machine code
    #[arg(long)]
    jit: bool,
    /// Write an object file that libbpf, bpftool and bpfkit load
    #[arg(short, long, value_name = "FILE.o")]
    output: Option<PathBuf>,
    /// What the extended program is called as
    #[arg(long = "type", value_enum, value_name = "TYPE")]
    kind: Option<Kind>,
    /// Link type without a capture (pcap-linktype(7)); EN10MB without it
    #[arg(short = 'y', long = "linktype", value_name = "NAME")]
    link: Option<String>,
    /// Snapshot length without a capture: what a filter returns for a match
    #[arg(short, long, value_name = "BYTES", default_value_t = 262_144, value_parser = clap::value_parser!(i32).range(1..))]
    snaplen: i32,
    /// Leave libpcap's optimizer out
    #[arg(short = 'O', long)]
    no_optimize: bool,
    /// Output format of the report
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum EngineName {
    /// The compiler for this processor
    Jit,
    /// The interpreter of extended BPF
    Interp,
    /// The interpreter of classic BPF
    Classic,
    /// libpcap's bpf_filter
    Libpcap,
}

/// What becomes of a filter.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// A function of a packet's address, its length and its length on the wire
    Packet,
    /// A socket filter, which returns what the filter returns
    Socket,
    /// An XDP program: XDP_PASS for a match, else XDP_DROP
    Xdp,
    /// A tc classifier: -1 (the default class) for a match, else 0
    Tc,
}

pub fn run(arguments: &Arguments) -> Result {
    let reader = match &arguments.read {
        Some(path) => Some(open(path, arguments.precision())?),
        None => None,
    };
    let filter = arguments.compile(reader.as_ref())?;
    let prints = output::print(arguments, &filter)?;
    match (reader, &arguments.read) {
        // As tcpdump: a program is printed instead of run.
        (Some(reader), Some(path)) if !prints => work::run(arguments, &filter, reader, path),
        _ if prints => Ok(()),
        _ => Err(Failure::input(
            "nothing to do: give a capture (-r), or say what to print (-d, --ebpf, --jit) or write (-o)",
        )),
    }
}

fn open(path: &Path, precision: Precision) -> Result<Reader> {
    let fail =
        |error: &dyn std::fmt::Display| Failure::input(format!("{}: {error}", path.display()));
    let input: Box<dyn std::io::Read + Send> = match path == Path::new("-") {
        true => Box::new(std::io::stdin()),
        false => Box::new(std::fs::File::open(path).map_err(|error| fail(&error))?),
    };
    Reader::new(input, precision).map_err(|error| fail(&error))
}

impl Arguments {
    fn precision(&self) -> Precision {
        match self.nano {
            true => Precision::Nano,
            false => Precision::Micro,
        }
    }

    fn compile(&self, reader: Option<&Reader>) -> Result<Filter> {
        let mut options = CompileOptions {
            snaplen: self.snaplen,
            optimize: !self.no_optimize,
            ..CompileOptions::default()
        };
        if let Some(reader) = reader {
            if self.link.is_some() {
                return Err(Failure::input(
                    "the capture has a link type: -y goes without -r",
                ));
            }
            (options.link, options.snaplen) = (reader.link, reader.snaplen);
        }
        let source = match &self.program {
            Some(path) => Source::File(path),
            None => Source::Expression(self.expression.join(" ")),
        };
        source.compile(options, self.link.as_deref())
    }
}
