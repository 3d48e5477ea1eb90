//! eBPF in user space: open real BPF objects, run their programs, read their maps.
//!
//! ```
//! use bpfkit::context::Input;
//! use bpfkit::{Object, ProgType, Session, Vm};
//!
//! # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/firewall.bpf.o");
//! let object = Object::open("firewall", &std::fs::read(path)?)?;
//! let session = Session::new(object)?;
//!
//! // Block a network, as `bpftool map update` would: prefix length, address, count.
//! let blocklist = session.map("blocklist").ok_or("no such map")?;
//! blocklist.write(&[24, 0, 0, 0, 203, 0, 113, 0], &0u64.to_ne_bytes(), 0)?;
//!
//! // An IPv4 header's worth of packet from 203.0.113.9.
//! let mut packet = [0; 34];
//! packet[12..15].copy_from_slice(&[0x08, 0x00, 0x45]);
//! packet[26..30].copy_from_slice(&[203, 0, 113, 9]);
//!
//! let firewall = session.load("firewall")?;
//! let mut input = Input::packet(ProgType::Xdp, &packet)?;
//! let outcome = firewall.run(&mut Vm::default(), &mut input);
//! assert_eq!(outcome.ret, 1, "XDP_DROP");
//!
//! let stopped = blocklist.read(&[24, 0, 0, 0, 203, 0, 113, 0])?;
//! assert_eq!(stopped, 1u64.to_ne_bytes());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Each stage is a crate of its own, re-exported here under its name: [`isa`], [`btf`],
//! [`spec`], [`object`], [`maps`], [`runtime`], [`oracle`].
#![forbid(unsafe_code)]

pub mod kernel;
mod session;

pub use session::{Session, SessionError, SessionOptions};

pub use bpfkit_btf as btf;
pub use bpfkit_isa as isa;
pub use bpfkit_maps as maps;
pub use bpfkit_object as object;
pub use bpfkit_oracle as oracle;
pub use bpfkit_runtime as runtime;
pub use bpfkit_spec as spec;

pub use bpfkit_object::{Object, Program, Target};
pub use bpfkit_runtime::{
    Engine, Executable, Fault, Interpreter, MapOptions, MapSet, Outcome, Vm, context,
};
pub use bpfkit_spec::{AttachType, MapType, ProgType};
