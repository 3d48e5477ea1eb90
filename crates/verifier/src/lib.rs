//! Checks programs as Linux 6.18 does, with the same verdicts and the same messages.
#![forbid(unsafe_code)]

mod alu;
mod args;
mod arith;
mod calls;
mod cfg;
mod check;
mod checker;
mod ctx;
mod depth;
mod env;
mod explain;
mod facts;
mod fail;
mod flow;
mod frame;
mod global;
mod helper;
mod jump;
mod kfunc;
mod liveness;
mod locks;
mod log;
mod maps;
mod marks;
mod mem;
mod precision;
mod print;
mod prune;
mod range;
mod record;
mod reg;
mod resolve;
mod rewrite;
mod sanitize;
mod slots;
mod stack;
mod state;
mod store;
mod target;
mod tnum;
mod version;
mod walk;

pub use check::verify;
pub use env::{
    DEFAULT_LOG_SIZE, Environment, ExtensionTarget, Rejection, Stats, Symbols, Verdict, Verified,
};
pub use explain::{Crowd, Explanation, Place, Step, explain};
pub use facts::{Branch, CallFact, Facts, Home, Pointer, SlotValue, Value};
pub use fail::Errno;
pub use range::Range;
pub use reg::{Base, BtfOf, RegType};
pub use rewrite::{Rewritten, Symbol, TooFar};
pub use tnum::Tnum;
