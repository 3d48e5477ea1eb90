//! The running kernel through bpf(2), for tests and comparison.
//!
//! [`Kernel::start`] forks one child that does nothing but bpf(2) calls on request
//! and owns every file descriptor, so that a kernel that dies on a program (its
//! verifier has bugs too) takes only the child with it, and so that nothing stays
//! loaded once the child ends. Nothing here attaches a program to anything.
//!
//! Where the calls are not allowed, [`Kernel::start`] says why; callers print that
//! they skipped.
//!
//! Sources: bpf(2), and the layout of `union bpf_attr` in `linux/bpf.h`.

mod attr;
mod child;
mod kernel;
mod trial;

pub use attr::Errno;
pub use kernel::{
    BtfHandle, Kernel, LoadError, LoadOptions, MapHandle, OracleError, ProgHandle, ProgInfo,
    Repeated, TestRun, TestRunResult,
};
pub use trial::Trial;
