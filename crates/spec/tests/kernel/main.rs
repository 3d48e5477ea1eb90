//! The tables against the running kernel, by tiny programs that nothing is attached for.
//!
//! Skipped where bpf(2) is not allowed or the kernel is another release.

mod bpf;
mod calls;
mod contexts;
mod helpers;
mod kfuncs;
mod maps;
mod programs;
mod protos;
mod returns;
mod typed_args;

use std::sync::OnceLock;

use bpfkit_btf::Btf;

/// The kernel to ask, or a line that says the test was skipped and why.
fn kernel() -> Option<bpf::Kernel> {
    /// Whether the kernel answers at all: one that hangs would hang every test.
    static ANSWERS: OnceLock<Result<(), String>> = OnceLock::new();
    ANSWERS
        .get_or_init(|| {
            let started = bpfkit_oracle::Kernel::start();
            started.map(drop).map_err(|error| error.to_string())
        })
        .clone()
        .and_then(|()| bpf::Kernel::start())
        .inspect_err(|reason| println!("skipped: {reason}"))
        .ok()
}

/// The running kernel's BTF.
fn vmlinux() -> Option<&'static Btf> {
    static BTF: OnceLock<Option<Btf>> = OnceLock::new();
    BTF.get_or_init(|| {
        let bytes = std::fs::read("/sys/kernel/btf/vmlinux").ok()?;
        Btf::parse(&bytes).ok()
    })
    .as_ref()
}

/// Fails with all differences found, or prints that all of `asked` agree.
fn report(what: &str, asked: usize, differences: &[String]) {
    let agree = asked - differences.len();
    println!("{what}: {agree} of {asked} as the kernel says");
    assert!(
        differences.is_empty(),
        "{} of {asked} differ:\n{}",
        differences.len(),
        differences.join("\n")
    );
}
