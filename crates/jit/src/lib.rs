//! Compiles programs to machine code: [`Jit`], an engine beside the interpreter.
//!
//! One plan (`lower/`) says what a program needs; a backend (`x86_64/`, `aarch64/`) turns it
//! into code in a pass over the instructions and one over the jumps. Trusted programs run without checks;
//! others are compiled with their accesses checked and their steps counted.
//!
//! Code memory is never writable and executable at one address ([`CodeMemory`]).

mod aarch64;
mod backend;
mod callout;
mod code_memory;
mod engine;
mod lower;
mod packet;
pub mod perf;
pub mod trampoline;
mod x86_64;

pub use backend::{Arch, Features, Origin, Part, shared_places};
pub use callout::callouts;
pub use code_memory::{Code, CodeMemory};
pub use engine::{Jit, Listing, machine_code};
pub use lower::{Rule, Rules};
