//! Checks programs as Linux 6.18 does, with the same verdicts and the same messages.
#![forbid(unsafe_code)]

mod arith;
mod flow;
mod liveness;
mod range;
mod reg;
mod state;
mod tnum;
