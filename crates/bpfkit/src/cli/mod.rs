//! The command-line program: a file a command, and what commands share.

mod asm;
mod bench;
mod capture;
mod disasm;
mod events;
mod explanation;
mod facts;
mod failure;
mod features;
mod files;
mod filter;
mod glob;
mod hex;
mod host;
mod jit;
mod judge;
mod machine;
mod map_words;
mod objdump;
mod objects;
mod oracle_rows;
mod output;
mod perf;
mod progress;
mod raw;
mod report;
mod return_codes;
mod run;
mod seccomp;
mod selftest;
mod symbols;
mod values;
mod verify;
mod veristat;
mod vmtest;
mod xlated;

use std::process::ExitCode;

use clap::{Parser, Subcommand, ValueEnum};

/// eBPF in user space: load, run, inspect BPF programs. No kernel, no privileges.
#[derive(Parser)]
#[command(name = "bpfkit", version, about, arg_required_else_help = true)]
#[command(
    after_help = "Exit codes: 0 done; 1 the program faulted or was refused; \
2 wrong input or command line; 3 the machine refused; 130 interrupted."
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a program of an object on packets, a capture, or a context
    Run(Box<run::Arguments>),
    /// Filter captures by libpcap's expressions; convert filters, print them, write objects
    Filter(Box<filter::Arguments>),
    /// Check and explain seccomp filters: what happens to each system call
    Seccomp(seccomp::Arguments),
    /// Judge programs as the Linux verifier does
    Verify(verify::Arguments),
    /// Collect and compare verification statistics, as the kernel's veristat does
    Veristat(Box<veristat::Arguments>),
    /// Run selftest objects as the kernel's test_progs runs them
    Selftest(Box<selftest::Arguments>),
    /// Have another kernel's verifier judge objects, in a virtual machine
    Vmtest(vmtest::Arguments),
    /// Print a program's instructions
    Disasm(disasm::Arguments),
    /// Assemble text to instructions
    Asm(asm::Arguments),
    /// Show the machine code that programs become
    Jit(jit::Arguments),
    /// Show what an object holds: programs, maps, globals, BTF, relocations, lines
    Objdump(objdump::Arguments),
    /// Measure engines side by side: interpreter, compiler, running kernel
    Bench(Box<bench::Arguments>),
    /// List program types, map types, helpers and instructions, and since when Linux has them
    Features(features::Arguments),
}

/// Text for people or JSON for machines.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people.
    Text,
    /// For machines.
    Json,
}

/// Runs the program with the process's arguments.
pub fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            // Help and version go to standard output and are no failure.
            let code = if error.use_stderr() {
                failure::Exit::Input as u8
            } else {
                0
            };
            let _ = error.print();
            return ExitCode::from(code);
        }
    };
    let result = match arguments.command {
        Command::Run(arguments) => run::run(&arguments),
        Command::Filter(arguments) => filter::run(&arguments),
        Command::Seccomp(arguments) => seccomp::run(&arguments),
        Command::Verify(arguments) => verify::run(&arguments),
        Command::Veristat(arguments) => veristat::run(&arguments),
        Command::Selftest(arguments) => selftest::run(&arguments),
        Command::Vmtest(arguments) => vmtest::run(&arguments),
        Command::Disasm(arguments) => disasm::run(&arguments),
        Command::Asm(arguments) => asm::run(&arguments),
        Command::Jit(arguments) => jit::run(&arguments),
        Command::Objdump(arguments) => objdump::run(&arguments),
        Command::Bench(arguments) => bench::run(&arguments),
        Command::Features(arguments) => features::run(&arguments),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}
