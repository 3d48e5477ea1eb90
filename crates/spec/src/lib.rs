//! What the kernel promises BPF programs and asks of them, as tables: program types and
//! their contexts, helpers, kfuncs, map types, attach points, and the release that brought
//! each. Verifier, runtime, command line and docs read the same rows.
//!
//! The tables describe Linux 6.18 on a 64-bit machine ([`KernelVersion::TARGET`]).
#![forbid(unsafe_code)]

mod attach_type;
mod map_type;
mod prog_type;
mod uapi_enum;
mod version;

pub use attach_type::AttachType;
pub use map_type::MapType;
pub use prog_type::ProgType;
pub use version::{KernelVersion, ParseKernelVersionError};
