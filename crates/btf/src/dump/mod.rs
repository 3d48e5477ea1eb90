//! Printing types: as C, in the form of `bpftool btf dump … format c`, and one type a
//! line, as in `format raw`.

mod c;
mod decl;
mod names;
mod order;
mod raw;

use thiserror::Error;

pub use c::{c_declaration, c_file, c_types};
pub use raw::{raw, raw_type};

/// Deepest nesting of types that is printed.
const MAX_NESTING: u32 = 256;
/// Most text that is printed; vmlinux takes 4 MiB.
const MAX_TEXT: usize = 64 << 20;
/// Most types that are looked at, each as often as it is used; vmlinux takes 1 million.
const MAX_STEPS: u32 = 1 << 26;

/// Types that have no C form.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum DumpError {
    /// A type contains itself other than through a pointer.
    #[error("unsatisfiable type cycle, id:[{0}]")]
    Cycle(u32),
    /// Types are nested too deeply.
    #[error("types are nested too deeply at id:[{0}]")]
    TooDeep(u32),
    /// The text would take too much memory or time.
    #[error("the types take more than 64 MiB, or as many steps, to print")]
    TooLong,
    /// The type does not exist.
    #[error("type [{0}] does not exist")]
    NoType(u32),
}
