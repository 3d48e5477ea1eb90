//! Printing types: as C, in the form of `bpftool btf dump … format c`, and one type a
//! line, as in `format raw`.

mod c;
mod decl;
mod names;
mod order;
mod raw;

use thiserror::Error;

use crate::btf::Btf;

pub use c::{c_declaration, c_file, c_types};
pub use raw::{raw, raw_type};

/// Longest chain of types that is followed.
const MAX_DEPTH: u32 = 256;
/// Deepest nesting of braces and parentheses that is printed.
const MAX_NESTING: u32 = 100;
/// Most text that is printed of a file, in bytes: this, and as much for each type; the
/// kernel's takes 23 a type.
const MAX_TEXT: [usize; 2] = [2 << 20, 1 << 10];
/// Most text that is printed of one declaration.
const MAX_DECLARATION: usize = 1 << 18;
/// Most types that are looked at, each as often as it is used, in the same way; the
/// kernel's take 3 a type.
const MAX_STEPS: [usize; 2] = [1 << 20, 1 << 8];

/// A limit for the types of a BTF.
fn limit(btf: &Btf, [constant, each]: [usize; 2]) -> usize {
    (btf.type_count() as usize)
        .saturating_mul(each)
        .saturating_add(constant)
}

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
    #[error("the types take too much text, or too many steps, to print")]
    TooLong,
    /// The type does not exist.
    #[error("type [{0}] does not exist")]
    NoType(u32),
}
