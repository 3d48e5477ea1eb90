//! BPF ELF objects: programs, maps, global variables, and linking a program against a
//! kernel.
//!
//! ```no_run
//! use bpfkit_object::{Object, Target};
//!
//! let bytes = std::fs::read("firewall.bpf.o")?;
//! let object = Object::open("firewall.bpf.o", &bytes)?;
//! for program in &object.programs {
//!     println!("{}: {} in {}", program.name, program.prog_type, program.section);
//! }
//! let program = object.link("firewall", &Target::default())?;
//! println!("{} instructions", program.insns.len());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! What is accepted, how programs are put together and what goes wrong follow libbpf 1.7
//! (`libbpf.c`), with its messages; beyond it, legacy `maps` sections and static functions
//! beside programs are taken, and what is wrong with one program does not keep the others
//! of the object from being linked. The input may be hostile.
#![forbid(unsafe_code)]

mod attach;
mod btf_fixup;
mod elf;
mod error;
mod ext_info;
mod externs;
mod functions;
mod kconfig;
mod link;
mod maps;
pub mod model;
mod object;
mod reference;
mod resolve;
pub mod sections;
mod target;
mod write;

pub use error::{ErrorKind, ObjectError};
pub use link::Linker;
pub use model::{
    BtfAttach, Global, InsnRef, LineInfo, MapDef, MapOrigin, PoisonReason, Program, ProgramDecl,
    RefTarget, SlotValue, Subprogram, raw_program,
};
pub use object::Object;
pub use target::{ModuleBtf, Target};
pub use write::program_object;
