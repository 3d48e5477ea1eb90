//! `bpfkit run --raw`: the door for conformance suites of other projects. A program comes
//! as hex digits on standard input, R0 goes out in hexadecimal.

use std::path::Path;
use std::sync::Arc;

use bpfkit_runtime::{LoadOptions, MapSet, RawMemory, Vm, raw_program};

use crate::cli::disasm::raw_insns;
use crate::cli::failure::{Failure, Result};
use crate::cli::run::{Arguments, EngineName, bytes_of};
use crate::cli::{files, output};

pub fn run(arguments: &Arguments) -> Result {
    let insns = raw_insns(&files::read(Path::new("-"))?)?;
    let program = Arc::new(raw_program("raw", insns));
    let memory = arguments
        .data
        .as_deref()
        .map(bytes_of)
        .transpose()?
        .unwrap_or_default();
    if arguments.engine == EngineName::Kernel {
        let why = "--raw needs an engine of this process: the kernel gives programs a context";
        return Err(Failure::machine(why));
    }
    let engine = arguments.engine.start(arguments)?.engine;
    let executable = engine
        .load(program.into(), &MapSet::empty(), &LoadOptions::default())
        .map_err(Failure::program)?;
    let mut vm = Vm::default();
    vm.step_limit = arguments.steps;
    let mut outcome = executable.run(&mut vm, &mut RawMemory::new(memory.clone()));
    for _ in 1..arguments.repeat {
        outcome = executable.run(&mut vm, &mut RawMemory::new(memory.clone()));
    }
    match outcome.fault {
        Some(fault) => Err(Failure::program(fault)),
        None => output::text(&format!("{:x}\n", outcome.ret)),
    }
}
