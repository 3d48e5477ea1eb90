//! What the tests of this crate share. The objects are built by `testdata/build.sh`.
#![allow(dead_code, reason = "each test file uses its own part")]

use std::path::PathBuf;
use std::sync::Arc;

use bpfkit_btf::Btf;
use bpfkit_object::{Object, Target};

/// Every object of `testdata`.
pub const OBJECTS: [&str; 12] = [
    "beside",
    "externs",
    "functions",
    "functions.eb",
    "gcc",
    "globals",
    "globals.eb",
    "kernel",
    "legacy",
    "maps",
    "maps.eb",
    "struct_ops",
];

/// The bytes of an object of `testdata`.
pub fn bytes(name: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("testdata/{name}.bpf.o"));
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// An object of `testdata`, opened.
pub fn open(name: &str) -> Object {
    Object::open(&format!("{name}.bpf.o"), &bytes(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// The BTF of `kernel.c`, which stands for that of a kernel.
pub fn kernel() -> Arc<Btf> {
    open("kernel").btf.expect("kernel.bpf.o has BTF")
}

/// That kernel, of which nothing else is known.
pub fn target(btf: &Btf) -> Target<'_> {
    Target {
        kernel_btf: btf.into(),
        ..Target::default()
    }
}
