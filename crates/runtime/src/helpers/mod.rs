//! The helpers and kfuncs of the kernel that make sense without one.
//!
//! Each family has a file; each file ends in rows of name and function, which
//! [`functions`] joins into one table. Names are those of `bpfkit_spec::helper`. Helpers
//! that cannot exist here are listed with the reason in [`UNAVAILABLE`].

mod absent;
mod arena;
pub(crate) mod bprintf;
mod cgroup;
pub(crate) mod checksum;
mod control;
mod cpumask;
mod dynptr;
pub(crate) mod heap;
mod iter;
pub(crate) mod lock;
mod map;
mod net;
mod object;
mod packet;
mod perf;
mod probe;
pub(crate) mod ringbuf;
mod shared;
mod state;
mod storage;
mod string;
mod task;
#[cfg(test)]
mod tests;
mod text;
mod timer;
mod trace;
mod unavailable;

use std::sync::LazyLock;

use bpfkit_maps::Errno;

pub use shared::Shared;
pub(crate) use shared::{hook, special_fields};
pub use state::{Effect, State};
pub use timer::{next_due, run_due};
pub use unavailable::UNAVAILABLE;

use crate::context::Input;
use crate::env::{Env, Functions, HelperFn};
use crate::fault::Trap;

/// A row: the helper's name without `bpf_`, or the kfunc's whole name.
type Row = (&'static str, HelperFn);

/// What a helper comes to.
type Ret = Result<u64, Trap>;

const EAFNOSUPPORT: Errno = Errno(97);
pub(crate) const EALREADY: Errno = Errno(114);
const ESRCH: Errno = Errno(3);

/// An error in R0.
fn errno(e: Errno) -> u64 {
    e.as_ret() as u64
}

/// A result of the kernel as R0.
fn result(r: Result<u64, Errno>) -> Ret {
    Ok(r.unwrap_or_else(errno))
}

/// A success or failure of the kernel as R0.
fn status(r: Result<(), Errno>) -> Ret {
    Ok(r.map_or_else(errno, |()| 0))
}

/// The context, where it is an [`Input`].
fn input<'a>(env: &'a mut Env<'_>) -> Option<&'a mut Input> {
    env.context_as()
}

/// Gives back the locks and records that a program held when it stopped.
pub(crate) fn give_back(env: &mut Env<'_>) {
    if !env.state.locks.is_empty() || !env.state.records.is_empty() {
        lock::release_all(env);
        ringbuf::discard_all(env);
    }
}

/// Every helper and kfunc there is.
pub fn functions() -> &'static Functions {
    static TABLE: LazyLock<Functions> = LazyLock::new(|| {
        let helpers: Vec<_> = HELPERS
            .iter()
            .flat_map(|family| family.iter())
            .filter_map(|&(name, function)| {
                let helper = bpfkit_spec::helper::by_name(name)?;
                Some((u16::try_from(helper.id).ok()?, function))
            })
            .collect();
        let kfuncs: Vec<Row> = KFUNCS
            .iter()
            .flat_map(|family| family.iter().copied())
            .collect();
        Functions::new(&helpers, &kfuncs)
    });
    &TABLE
}

const HELPERS: &[&[Row]] = &[
    cgroup::HELPERS,
    control::HELPERS,
    dynptr::HELPERS,
    lock::HELPERS,
    map::HELPERS,
    net::HELPERS,
    packet::HELPERS,
    perf::HELPERS,
    probe::HELPERS,
    ringbuf::HELPERS,
    storage::HELPERS,
    task::HELPERS,
    text::HELPERS,
    timer::HELPERS,
    trace::HELPERS,
];

const KFUNCS: &[&[Row]] = &[
    absent::KFUNCS,
    arena::KFUNCS,
    control::KFUNCS,
    cpumask::KFUNCS,
    dynptr::KFUNCS,
    iter::KFUNCS,
    lock::KFUNCS,
    map::KFUNCS,
    object::KFUNCS,
    probe::KFUNCS,
    string::KFUNCS,
    task::KFUNCS,
    text::KFUNCS,
    timer::KFUNCS,
    trace::KFUNCS,
];
