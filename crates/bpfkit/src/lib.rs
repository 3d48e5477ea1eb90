//! eBPF in user space: open real BPF objects, run their programs, read their maps. The
//! README has an example.
//!
//! Each stage is a crate of its own, re-exported here under its name: [`isa`], [`btf`],
//! [`spec`], [`object`], [`verifier`], [`maps`], [`runtime`],
//! [`jit`], [`oracle`], [`classic`], [`pcap`].
#![forbid(unsafe_code)]

pub mod kernel;
mod session;

pub use session::{Checks, Session, SessionError, SessionOptions};

pub use bpfkit_btf as btf;
pub use bpfkit_classic as classic;
pub use bpfkit_isa as isa;
pub use bpfkit_jit as jit;
pub use bpfkit_maps as maps;
pub use bpfkit_object as object;
pub use bpfkit_oracle as oracle;
pub use bpfkit_pcap as pcap;
pub use bpfkit_runtime as runtime;
pub use bpfkit_spec as spec;
pub use bpfkit_verifier as verifier;

pub use bpfkit_object::{Object, Program, Target};
pub use bpfkit_runtime::{
    Engine, Executable, Fault, Interpreter, MapOptions, MapSet, Outcome, Vm, context,
};
pub use bpfkit_spec::{AttachType, MapType, ProgType};

/// README's example, compiled and run with the tests.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
pub struct Readme;
