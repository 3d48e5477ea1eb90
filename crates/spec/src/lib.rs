//! What the kernel promises BPF programs and asks of them, as tables: program types and
//! their contexts, helpers, kfuncs, map types, attach points, and the release that brought
//! each. Verifier, runtime, command line and docs read the same rows.
//!
//! The tables describe Linux 6.18 on a 64-bit machine ([`KernelVersion::TARGET`]).
#![forbid(unsafe_code)]

pub mod attach;
mod attach_type;
pub mod btf_rules;
mod caller;
pub mod context;
mod feature;
pub mod helper;
pub mod iter;
pub mod kfunc;
pub mod map_rules;
mod map_type;
pub mod prog_rules;
mod prog_type;
mod prog_types;
pub mod raw_tp;
pub mod ret_range;
pub mod struct_ops;
mod type_flags;
mod uapi_enum;
mod version;

pub use attach_type::AttachType;
pub use caller::{Caller, Capability, When};
pub use feature::Feature;
pub use helper::Helper;
pub use map_type::MapType;
pub use prog_type::ProgType;
pub use prog_types::ProgTypes;
pub use type_flags::TypeFlags;
pub use version::{KernelVersion, ParseKernelVersionError};
