//! Timers and work queues in map values.
//!
//! Nothing fires by itself: the host asks for what is due ([`run_due`]) when it likes, on
//! the clock of its own. A timer is known by its address in the map value.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use bpfkit_maps::{Errno, Map, Progress};
use bpfkit_spec::MapType;

use super::{Ret, Row, errno};
use crate::engine::{Context, Local, Outcome};
use crate::env::{Args, Env};
use crate::fault::Trap;
use crate::host::Clock;
use crate::mapset::MapSet;
use crate::memory::{Memory, Region, RegionKind};
use crate::vm::Vm;

/// Timers and work items by address.
#[derive(Default)]
pub(crate) struct Timers(Mutex<HashMap<u64, Timer>>);

/// A callback: the program it belongs to, and its function. A timer keeps neither its
/// program nor its map alive.
type Callback = (Weak<dyn Local>, u64);

struct Timer {
    map: Weak<Map>,
    callback: Option<Callback>,
    /// When it fires, in nanoseconds of the monotonic clock; work is due at once.
    due: Option<u64>,
    running: bool,
    work: bool,
}

impl Timers {
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Timer>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Cancels the timer at an address for good: its value is gone.
    pub(crate) fn remove(&self, at: u64) {
        self.lock().remove(&at);
    }
}

/// What a callback gets: the map, the key and the value that holds the timer.
struct Element {
    map: u64,
    key: Box<[u8]>,
    value: u64,
}

// SAFETY: the arguments are those that the verifier gives callbacks: the map, its key, which is
// owned here, and the value, whose map is kept as long as the callback runs. The program that set
// the callback was entered with what suits its type.
unsafe impl Context for Element {
    fn args(&self) -> [u64; 5] {
        [self.map, self.key.as_ptr() as u64, self.value, 0, 0]
    }

    fn grant(&self, memory: &mut Memory) {
        memory.grant(Region {
            start: self.key.as_ptr().expose_provenance() as u64,
            len: self.key.len() as u64,
            writable: false,
            kind: RegionKind::Other("map key"),
        });
    }

    fn suits(&self, _: bpfkit_spec::ProgType) -> bool {
        true
    }

    fn as_any_mut(&mut self) -> &mut dyn std::any::Any {
        self
    }
}

/// The element of `map` whose value holds the byte at `at`.
fn element(map: &Arc<Map>, at: u64) -> Option<Element> {
    let size = map.value_size() as u64;
    let mut found = None;
    let visit = &mut |key: *const u8, value: std::ptr::NonNull<u8>| {
        let start = value.as_ptr().expose_provenance() as u64;
        if at.wrapping_sub(start) < size {
            // SAFETY: maps hand out keys of `key_size` bytes that stay during the visit.
            let key = unsafe { std::slice::from_raw_parts(key, map.key_size()) };
            found = Some((key.into(), start));
            return Progress::Stop;
        }
        Progress::Go
    };
    if let (MapType::Array, Some(array)) = (map.map_type(), map.as_array()) {
        let index = (0..array.entries()).find(|&i| {
            array
                .get(i)
                .is_some_and(|v| at.wrapping_sub(v.as_ptr().expose_provenance() as u64) < size)
        })?;
        let start = array.get(index)?.as_ptr().expose_provenance() as u64;
        found = Some((Box::from(index.to_ne_bytes().as_slice()), start));
    } else {
        map.for_each_value(0, visit).ok()?;
    }
    let (key, value) = found?;
    Some(Element {
        map: Arc::as_ptr(map) as usize as u64,
        key,
        value,
    })
}

/// Runs the callbacks of every timer due by `now` (nanoseconds of the monotonic clock) and
/// of all work that programs of this object started, oldest first, on `vm`. Returns their
/// outcomes. A callback may start its timer anew; one due by then runs in the next call.
pub fn run_due(maps: &MapSet, vm: &mut Vm, now: u64) -> Vec<Outcome> {
    let timers = &maps.shared.timers;
    let mut due: Vec<(u64, u64)> = timers
        .lock()
        .iter()
        .filter_map(|(&at, timer)| Some((timer.due.filter(|&due| due <= now)?, at)))
        .collect();
    due.sort_unstable();
    let mut outcomes = Vec::new();
    for (when, at) in due {
        let Some((callback, map)) = timers.lock().get_mut(&at).and_then(|timer| {
            // An earlier callback may have cancelled it or moved it.
            (timer.due == Some(when)).then(|| {
                timer.due = None;
                timer.running = true;
                (timer.callback.clone(), timer.map.clone())
            })
        }) else {
            continue;
        };
        let callback =
            callback.and_then(|(program, function)| Some((program.upgrade()?, function)));
        let element = map.upgrade().and_then(|map| element(&map, at));
        if let (Some((program, function)), Some(mut element)) = (callback, element) {
            let args = element.args();
            outcomes.push(program.run_function(vm, &mut element, function, args));
        }
        if let Some(timer) = timers.lock().get_mut(&at) {
            timer.running = false;
        }
    }
    outcomes
}

/// When the next timer or work item of the object is due, if any is.
pub fn next_due(maps: &MapSet) -> Option<u64> {
    maps.shared
        .timers
        .lock()
        .values()
        .filter_map(|t| t.due)
        .min()
}

fn init(env: &mut Env<'_>, a: &Args, work: bool) -> Ret {
    let map = Arc::downgrade(&env.map_shared(a[1])?);
    env.resolve(a[0], 16, true)?;
    let mut timers = env.maps().shared.timers.lock();
    // A value that was deleted and made anew starts with a zeroed timer.
    let marked: [u8; 8] = env.load(a[0])?;
    if timers.contains_key(&a[0]) && marked != [0; 8] {
        return Ok(errno(Errno::EBUSY));
    }
    timers.insert(
        a[0],
        Timer {
            map,
            callback: None,
            due: None,
            running: false,
            work,
        },
    );
    env.store(a[0], a[0].to_ne_bytes())?;
    Ok(0)
}

/// `(timer, map, flags)`: the flags are the clock.
fn timer_init(env: &mut Env<'_>, a: &Args) -> Ret {
    /// `CLOCK_REALTIME`, `CLOCK_MONOTONIC`, `CLOCK_BOOTTIME`.
    const CLOCKS: [u64; 3] = [0, 1, 7];
    if !CLOCKS.contains(&a[2]) {
        return Ok(errno(Errno::EINVAL));
    }
    init(env, a, false)
}

/// kfunc `(wq, map, flags)`.
fn wq_init(env: &mut Env<'_>, a: &Args) -> Ret {
    if a[2] as u32 != 0 {
        return Ok(errno(Errno::EINVAL));
    }
    init(env, a, true)
}

/// Does something with the timer at `at`; `EINVAL` if it was not initialized.
fn with_timer(
    env: &mut Env<'_>,
    at: u64,
    work: impl FnOnce(&mut Timer) -> Result<u64, Errno>,
) -> Ret {
    let marked: Result<[u8; 8], Trap> = env.load(at);
    let marked = marked? != [0; 8];
    let mut timers = env.maps().shared.timers.lock();
    Ok(match timers.get_mut(&at).filter(|_| marked) {
        Some(timer) => work(timer).unwrap_or_else(errno),
        None => errno(Errno::EINVAL),
    })
}

/// `(timer, callback)`.
fn set_callback(env: &mut Env<'_>, a: &Args) -> Ret {
    let program = env.executable().shared();
    with_timer(env, a[0], |timer| {
        timer.callback = program.map(|program| (Arc::downgrade(&program), a[1]));
        Ok(0)
    })
}

/// kfunc `(wq, callback, flags, aux)`.
fn wq_set_callback(env: &mut Env<'_>, a: &Args) -> Ret {
    if a[2] as u32 != 0 {
        return Ok(errno(Errno::EINVAL));
    }
    set_callback(env, a)
}

/// `(timer, nsecs, flags)`.
fn timer_start(env: &mut Env<'_>, a: &Args) -> Ret {
    const ABSOLUTE: u64 = 1;
    const PINNED: u64 = 2;
    if a[2] & !(ABSOLUTE | PINNED) != 0 {
        return Ok(errno(Errno::EINVAL));
    }
    let now = env.host().now(Clock::Monotonic);
    with_timer(env, a[0], |timer| {
        if timer.callback.is_none() {
            return Err(Errno::EINVAL);
        }
        timer.due = Some(if a[2] & ABSOLUTE != 0 {
            a[1]
        } else {
            now.saturating_add(a[1])
        });
        Ok(0)
    })
}

/// kfunc `(wq, flags)`.
fn wq_start(env: &mut Env<'_>, a: &Args) -> Ret {
    if a[1] as u32 != 0 {
        return Ok(errno(Errno::EINVAL));
    }
    with_timer(env, a[0], |timer| {
        if timer.callback.is_none() || !timer.work {
            return Err(Errno::EINVAL);
        }
        timer.due = Some(0);
        Ok(0)
    })
}

/// `(timer)`: 1 if it was waiting. A callback cannot cancel its own timer.
fn timer_cancel(env: &mut Env<'_>, a: &Args) -> Ret {
    with_timer(env, a[0], |timer| {
        if timer.running {
            return Err(Errno::EDEADLK);
        }
        timer.callback = None;
        Ok(u64::from(timer.due.take().is_some()))
    })
}

pub(super) const HELPERS: &[Row] = &[
    ("timer_init", timer_init),
    ("timer_set_callback", set_callback),
    ("timer_start", timer_start),
    ("timer_cancel", timer_cancel),
];

pub(super) const KFUNCS: &[Row] = &[
    ("bpf_wq_init", wq_init),
    ("bpf_wq_set_callback_impl", wq_set_callback),
    ("bpf_wq_start", wq_start),
];
