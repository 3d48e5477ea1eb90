//! `tail-call`: what a tail call costs.

use crate::cli::bench::Arguments;
use crate::cli::bench::machine::Source;
use crate::cli::bench::throughput::Workload;
use crate::cli::failure::Result;

const SOURCE: Source = Source {
    name: "tail_call",
    bytes: include_bytes!("../../../../../testdata/bench/tail_call.bpf.o"),
};
/// Tail calls of one run (`NR_CALLS` of the source).
const CALLS: u64 = 31;

/// Through a slot that is known where the program is compiled.
pub fn known(_: &Arguments) -> Result<Workload> {
    chain("run_known")
}

/// Through a slot that memory tells.
pub fn told(_: &Arguments) -> Result<Workload> {
    chain("run_told")
}

fn chain(program: &'static str) -> Result<Workload> {
    let mut workload = Workload::new(SOURCE, program);
    workload.operations = CALLS;
    Ok(workload)
}
