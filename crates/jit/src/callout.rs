//! What machine code calls in Rust. Each function gets the run's state first and R10 last,
//! and answers a value and a status: 0 for done, 1 for a trap, which is kept in the run's
//! [`Env`] while the code unwinds.

use bpfkit_isa::Size;
use bpfkit_runtime::native::{MayGoto, State, poison};
use bpfkit_runtime::{Args, Env, FRAME_BYTES, FaultKind, HelperFn, Trap};

/// Reasons to stop, as instructions say them in the low eight bits of their detail.
pub(crate) const STEP_LIMIT: u32 = 0;
pub(crate) const PAST_END: u32 = 1;
pub(crate) const POISON: u32 = 2;
/// Plus the binary logarithm of the size.
pub(crate) const MISALIGNED: u32 = 4;

/// The result of a callout, in two registers.
#[repr(C)]
pub(crate) struct Pair {
    pub(crate) value: u64,
    pub(crate) status: u64,
}

const TRAPPED: u64 = 1;
/// A tail call that has happened.
const HAPPENED: u64 = 2;

/// The run, with its place set.
///
/// # Safety
/// Called from the code of a run under way: `state` is its state, `frame` the current R10.
unsafe fn run<'a>(state: *mut State, slot: u64, frame: u64) -> &'a mut Env<'static> {
    // SAFETY: `env` was set when the code was entered, and the code's entry borrows the Env
    // for as long as the code runs; nobody uses it at the time.
    unsafe {
        (*state).scratch = slot as usize;
        let env = &mut *std::ptr::with_exposed_provenance_mut::<Env<'static>>((*state).env);
        env.catch_up();
        env.at(slot as usize, frame);
        env.set_fuel((*state).fuel);
        env
    }
}

/// Hands a result back. What was called may have entered code itself, so the place is set again.
///
/// # Safety
/// As [`run`].
unsafe fn finish(
    state: *mut State,
    env: &mut Env<'static>,
    slot: u64,
    result: Result<(u64, u64), Trap>,
) -> Pair {
    // SAFETY: by this function's contract.
    unsafe { (*state).fuel = env.fuel() };
    match result {
        Ok((value, status)) => Pair { value, status },
        Err(trap) => {
            let trap = env.trapped(trap);
            env.set_trap(trap);
            // SAFETY: by this function's contract.
            unsafe { (*state).scratch = slot as usize };
            Pair {
                value: 0,
                status: TRAPPED,
            }
        }
    }
}

fn slot_of(packed: u64) -> u64 {
    packed >> 8
}

fn size_of(packed: u64) -> Size {
    [Size::B, Size::H, Size::W, Size::DW][packed as usize & 3]
}

/// # Safety
/// As [`run`]; `args` points to R1–R5, and `function` is a [`HelperFn`].
pub(crate) unsafe extern "C" fn helper(
    state: *mut State,
    args: *const Args,
    function: usize,
    frame: u64,
) -> Pair {
    // SAFETY: by this function's contract.
    unsafe {
        let slot = (*state).scratch as u64;
        let env = run(state, slot, frame);
        let function =
            std::mem::transmute::<*const (), HelperFn>(std::ptr::with_exposed_provenance(function));
        let result = function(env, &*args).map(|value| (value, 0));
        finish(state, env, slot, result)
    }
}

/// Asks a helper that takes no arguments and cannot fail.
///
/// # Safety
/// Called from the code of a run under way: `state` is its state; `function` is a [`HelperFn`].
pub(crate) unsafe extern "C" fn ask(state: *mut State, function: usize) -> u64 {
    // SAFETY: by this function's contract, and as for `run`.
    unsafe {
        let env = &mut *std::ptr::with_exposed_provenance_mut::<Env<'static>>((*state).env);
        let function =
            std::mem::transmute::<*const (), HelperFn>(std::ptr::with_exposed_provenance(function));
        function(env, &[0; 5]).unwrap_or(0)
    }
}

/// # Safety
/// As [`helper`].
pub(crate) unsafe extern "C" fn tail_call(
    state: *mut State,
    args: *const Args,
    _: usize,
    frame: u64,
) -> Pair {
    // SAFETY: by this function's contract.
    unsafe {
        let slot = (*state).scratch as u64;
        let env = run(state, slot, frame);
        let [context, map, index, ..] = *args;
        let result = env
            .tail_call(context, map, index as u32)
            .map(|result| match result {
                Some(value) => (value, HAPPENED),
                None => (0, 0),
            });
        finish(state, env, slot, result)
    }
}

/// # Safety
/// As [`run`].
pub(crate) unsafe extern "C" fn access(
    state: *mut State,
    address: u64,
    packed: u64,
    frame: u64,
) -> Pair {
    // SAFETY: by this function's contract.
    unsafe {
        let env = run(state, slot_of(packed), frame);
        let (write, index) = (packed >> 2 & 1 != 0, packed as u32 >> 3 & 31);
        let result = env.locate_span(address, size_of(packed), write, index);
        finish(state, env, slot_of(packed), result.map(|host| (host, 0)))
    }
}

/// # Safety
/// As [`run`].
pub(crate) unsafe extern "C" fn packet(
    state: *mut State,
    offset: u64,
    packed: u64,
    frame: u64,
) -> Pair {
    // SAFETY: by this function's contract.
    let env = unsafe { run(state, slot_of(packed), frame) };
    match env
        .context
        .load_packet(offset as u32 as i32, size_of(packed))
    {
        Some(value) => Pair {
            value: value.into(),
            status: 0,
        },
        None => Pair {
            value: 0,
            status: 1,
        },
    }
}

/// # Safety
/// As [`run`]; `budget` is the address of the frame's [`MayGoto`].
pub(crate) unsafe extern "C" fn may_goto(
    state: *mut State,
    budget: u64,
    packed: u64,
    frame: u64,
) -> Pair {
    // SAFETY: by this function's contract.
    let again = unsafe {
        let env = run(state, slot_of(packed), frame);
        let budget = std::ptr::with_exposed_provenance_mut::<MayGoto>(budget as usize);
        (*budget).again(env.host())
    };
    Pair {
        value: again.into(),
        status: 0,
    }
}

/// # Safety
/// As [`run`].
pub(crate) unsafe extern "C" fn open(state: *mut State, _: u64, packed: u64, frame: u64) -> Pair {
    // SAFETY: by this function's contract; the frame above the current one is free.
    unsafe {
        let env = run(state, slot_of(packed), frame);
        let result = env.open_frame(frame + FRAME_BYTES as u64);
        finish(state, env, slot_of(packed), result.map(|()| (0, 0)))
    }
}

/// # Safety
/// As [`run`].
pub(crate) unsafe extern "C" fn close(state: *mut State, _: u64, _: u64, frame: u64) -> Pair {
    // SAFETY: by this function's contract.
    unsafe {
        let env = &mut *std::ptr::with_exposed_provenance_mut::<Env<'static>>((*state).env);
        env.close_frame(frame);
    }
    Pair {
        value: 0,
        status: 0,
    }
}

/// # Safety
/// As [`run`].
pub(crate) unsafe extern "C" fn stop(
    state: *mut State,
    address: u64,
    packed: u64,
    frame: u64,
) -> Pair {
    let slot = slot_of(packed);
    // SAFETY: by this function's contract.
    let env = unsafe { run(state, slot, frame) };
    let trap = match packed as u32 & 0xff {
        STEP_LIMIT => env.out_of_steps(),
        PAST_END => FaultKind::PastEnd.into(),
        POISON => FaultKind::Poisoned(poison(env.program(), slot as u32)).into(),
        _ => FaultKind::Misaligned {
            address,
            size: size_of(packed).bytes().into(),
        }
        .into(),
    };
    // SAFETY: by this function's contract.
    unsafe { finish(state, env, slot, Err(trap)) }
}

/// The functions in Rust that machine code calls, with their addresses, for listings.
pub fn callouts() -> impl Iterator<Item = (u64, &'static str)> {
    let functions: [(*const (), &str); 9] = [
        (may_goto as *const (), "callout::may_goto"),
        (ask as *const (), "callout::ask"),
        (helper as *const (), "callout::helper"),
        (tail_call as *const (), "callout::tail_call"),
        (access as *const (), "callout::access"),
        (packet as *const (), "callout::packet"),
        (open as *const (), "callout::open"),
        (close as *const (), "callout::close"),
        (stop as *const (), "callout::stop"),
    ];
    let lookups = bpfkit_maps::lookup_fns().map(|(at, name)| (at as *const (), name));
    functions
        .into_iter()
        .chain(lookups)
        .map(|(at, name)| (at.addr() as u64, name))
}
