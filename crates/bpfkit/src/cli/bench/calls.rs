//! Loops, storage of a socket, and strings: what a call of the helper costs.

use crate::cli::bench::Arguments;
use crate::cli::bench::machine::Source;
use crate::cli::bench::throughput::Workload;
use crate::cli::failure::Result;

const LOOPS: Source = Source {
    name: "loops",
    bytes: include_bytes!("../../../../../testdata/bench/loops.bpf.o"),
};
const STORAGE: Source = Source {
    name: "storage",
    bytes: include_bytes!("../../../../../testdata/bench/storage.bpf.o"),
};
const STRNCMP: Source = Source {
    name: "strncmp",
    bytes: include_bytes!("../../../../../testdata/bench/strncmp.bpf.o"),
};
/// Its objects.
pub const SOURCES: &[Source] = &[LOOPS, STORAGE, STRNCMP];

pub fn bpf_loop(_: &Arguments) -> Result<Workload> {
    Ok(Workload::new(LOOPS, "with_helper"))
}

pub fn bpf_for(_: &Arguments) -> Result<Workload> {
    Ok(Workload::new(LOOPS, "with_iterator"))
}

pub fn local_storage(_: &Arguments) -> Result<Workload> {
    let mut workload = Workload::new(STORAGE, "get");
    workload.baseline = Some("baseline");
    Ok(workload)
}

pub fn strncmp(_: &Arguments) -> Result<Workload> {
    let mut workload = Workload::new(STRNCMP, "compare");
    workload.baseline = Some("baseline");
    Ok(workload)
}
