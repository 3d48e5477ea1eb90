//! Runs BPF programs: the interpreter, and what every engine needs around it.
//!
//! - [`Engine`] loads a program with its [`MapSet`]; an [`Executable`] runs it on a
//!   [`Context`] in a [`Vm`]; the [`Outcome`] says what came of it.
//! - A program runs in checked mode, where every access is validated and steps are limited,
//!   unless it is [`Trusted`].
//! - Addresses in programs are addresses of this process, in every engine: contexts are the
//!   structures of `linux/bpf.h`, map values and packets are pointed to directly.
//! - Helpers are Rust functions over an [`Env`], written once for all engines.
//!
//! Semantics: RFC 9669, and the kernel's interpreter where that leaves room.

pub mod context;
mod engine;
mod env;
mod exception;
mod fault;
pub mod helpers;
mod host;
mod interp;
mod lowmem;
mod mapset;
mod may_goto;
mod memory;
pub mod native;
mod observe;
pub mod packet;
mod raw;
mod resolve;
mod vm;

pub use bpfkit_object::raw_program;
pub use engine::{
    Code, Context, Engine, Executable, Ksyms, LoadError, LoadErrorKind, LoadOptions, Local,
    Outcome, ProgramSlot, Redirect, Trusted,
};
pub use env::{Args, Env, Functions, HelperFn, TAIL_CALL};
pub use fault::{Fault, FaultKind, Location, Trap, TrapKind};
pub use host::{Clock, FixedHost, Host, Task};
pub use interp::Interpreter;
pub use lowmem::LowMem;
pub use mapset::{MapOptions, MapSet, MapSetError, set_program};
pub use memory::{Memory, Region, RegionKind};
pub use observe::{Observer, Step};
pub use packet::{PacketCode, PacketError, PacketProgram};
pub use raw::RawMemory;
pub use vm::{FRAME_BYTES, MAX_FRAMES, MAX_TAIL_CALLS, Vm};
