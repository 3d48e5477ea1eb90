//! A filter as text, machine code and object file.

use std::fmt::Write as _;

use bpfkit_classic::disasm::{Syntax, text};
use bpfkit_classic::{Dialect, Options, Returns, Target, convert};
use bpfkit_isa as isa;
use bpfkit_jit::{Arch, Jit};
use bpfkit_object::program_object;
use bpfkit_runtime::PacketProgram;

use super::program::Filter;
use super::{Arguments, Kind};
use crate::cli::failure::{Failure, Result};
use crate::cli::symbols::HelperNames;
use crate::cli::{files, machine, output};

/// Results of XDP programs and tc classifiers.
const XDP_DROP: i32 = 1;
const XDP_PASS: i32 = 2;
const TC_DEFAULT_CLASS: i32 = -1;

/// Prints and writes what is asked for; says whether anything was.
pub fn print(arguments: &Arguments, filter: &Filter) -> Result<bool> {
    let mut printed = String::new();
    let classic = match arguments.dump {
        0 => None,
        1 => Some(Syntax::Tcpdump),
        2 => Some(Syntax::C),
        _ => Some(Syntax::Decimal),
    };
    let bpf_asm = arguments.bpf_asm.then_some(Syntax::BpfAsm);
    for syntax in classic.into_iter().chain(bpf_asm) {
        let _ = write!(printed, "{}", text(&filter.insns, syntax));
    }
    if arguments.ebpf {
        let insns = extended(filter, arguments.kind.unwrap_or(Kind::Packet))?;
        let listing = isa::disasm::listing(&insns, isa::Syntax::Kernel, &HelperNames);
        let _ = write!(printed, "{listing}");
    }
    if arguments.jit {
        printed.push_str(&machine_code(filter)?);
    }
    if !printed.is_empty() {
        output::text(&printed)?;
    }
    if let Some(path) = &arguments.output {
        let kind = arguments.kind.unwrap_or(Kind::Socket);
        let section = match kind {
            Kind::Socket => "socket",
            Kind::Xdp => "xdp",
            Kind::Tc => "tc",
            Kind::Packet => {
                let why = "no kernel calls programs that way: --type socket, xdp or tc";
                return Err(Failure::input(why));
            }
        };
        let bytes = program_object("filter", section, &extended(filter, kind)?, "Dual MIT/GPL")
            .map_err(Failure::program)?;
        files::write(path, &bytes)?;
    }
    Ok(!printed.is_empty() || arguments.output.is_some())
}

/// The filter as an extended program: with libpcap's semantics where it runs here, with the
/// kernel's where it runs there.
pub fn extended(filter: &Filter, kind: Kind) -> Result<Vec<isa::Insn>> {
    let (target, dialect, returns) = match kind {
        Kind::Packet => (Target::Memory, Dialect::Libpcap, None),
        Kind::Socket => (Target::SkBuff, Dialect::Kernel, None),
        Kind::Xdp => {
            let returns = Returns {
                matched: XDP_PASS,
                unmatched: XDP_DROP,
            };
            (Target::Xdp, Dialect::Kernel, Some(returns))
        }
        Kind::Tc => {
            let returns = Returns {
                matched: TC_DEFAULT_CLASS,
                unmatched: 0,
            };
            (Target::SkBuff, Dialect::Kernel, Some(returns))
        }
    };
    let options = Options {
        dialect,
        returns,
        ..Options::new(target)
    };
    convert(&filter.program, &options).map_err(Failure::program)
}

/// The filter as it runs here.
pub fn packet_program(filter: &Filter) -> Result<PacketProgram> {
    PacketProgram::new(extended(filter, Kind::Packet)?).map_err(Failure::program)
}

fn machine_code(filter: &Filter) -> Result<String> {
    let program = packet_program(filter)?;
    let arch =
        Arch::HOST.ok_or_else(|| Failure::machine("there is no compiler for this architecture"))?;
    let code = Jit::default()
        .compile_packet(arch, &program)
        .map_err(Failure::program)?;
    let mut text = String::new();
    for (offset, line) in machine::lines(arch, &code, &machine::Names::default()) {
        let _ = writeln!(text, "{offset:4x}: {line}");
    }
    Ok(text)
}
