//! `bpf_throw`: unwinding to the exception callback.

use crate::env::Env;
use crate::fault::{Trap, TrapKind};

/// Ends an exception: the result of the exception callback, or the cookie itself where
/// the program has none, is the program's result. All frames are
/// gone by then. Nothing catches what the callback throws: its cookie is
/// the result then.
pub(crate) fn catch(env: &mut Env<'_>, result: Result<u64, Trap>) -> Result<u64, Trap> {
    let cookie = match result.map_err(Trap::into_kind) {
        Ok(value) => return Ok(value),
        Err(TrapKind::Fault(kind)) => return Err(kind.into()),
        Err(TrapKind::Throw(cookie)) => cookie,
    };
    // After a tail call, the last program's.
    let running = env.trapped_at.map_or(env.program, |(program, _)| program);
    env.program = running;
    let program = running.program();
    let callback = program
        .exception_callback
        .and_then(|index| program.subprograms.get(index as usize))
        .and_then(|subprogram| running.function_at(subprogram.start));
    let Some(callback) = callback else {
        return Ok(cookie);
    };
    env.window = env.window_start;
    env.trapped_at = None;
    match running
        .invoke(env, callback, [cookie, 0, 0, 0, 0])
        .map_err(Trap::into_kind)
    {
        Ok(value) => Ok(value),
        Err(TrapKind::Throw(cookie)) => Ok(cookie),
        Err(TrapKind::Fault(kind)) => Err(kind.into()),
    }
}
