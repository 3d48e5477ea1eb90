//! What helpers and kfuncs see of a running program.
//!
//! A helper is one Rust function of type [`HelperFn`], written once for every engine and both
//! modes. The accessors of [`Env`] validate addresses in checked mode; for a trusted program
//! the verifier has proven them and they cost nothing.

use std::any::Any;
use std::borrow::Cow;
use std::slice;
use std::sync::Arc;

use bpfkit_maps::Map;
use bpfkit_object::Program;
use rustc_hash::FxHashMap;

use crate::engine::{Context, Local, Redirect};
use crate::fault::{FaultKind, Trap};
use crate::helpers;
use crate::host::Host;
use crate::mapset::MapSet;
use crate::memory::{Found, Memory};
use crate::observe::Observer;
use crate::vm::Window;

/// Arguments of a helper: R1–R5.
pub type Args = [u64; 5];

/// A helper or kfunc. What it returns goes to R0.
pub type HelperFn = for<'a, 'r> fn(&'a mut Env<'r>, &'a Args) -> Result<u64, Trap>;

/// The helpers and kfuncs that programs may call.
#[derive(Default)]
pub struct Functions {
    helpers: Vec<Option<HelperFn>>,
    kfuncs: FxHashMap<&'static str, HelperFn>,
}

impl Functions {
    /// A table from rows: helpers by number (`BPF_FUNC_*`), kfuncs by name.
    pub fn new(helpers: &[(u16, HelperFn)], kfuncs: &[(&'static str, HelperFn)]) -> Self {
        let len = helpers
            .iter()
            .map(|(id, _)| usize::from(*id) + 1)
            .max()
            .unwrap_or(0);
        let mut table = vec![None; len];
        for (id, function) in helpers {
            table[usize::from(*id)] = Some(*function);
        }
        Self {
            helpers: table,
            kfuncs: kfuncs.iter().copied().collect(),
        }
    }

    /// A helper by number.
    pub fn helper(&self, id: i32) -> Option<HelperFn> {
        *self.helpers.get(usize::try_from(id).ok()?)?
    }

    /// Every helper with its number.
    pub fn helpers(&self) -> impl Iterator<Item = (i32, HelperFn)> {
        let helpers = (0..).zip(&self.helpers);
        helpers.filter_map(|(id, function)| Some((id, (*function)?)))
    }

    /// Every kfunc with its name.
    pub fn kfuncs(&self) -> impl Iterator<Item = (&'static str, HelperFn)> {
        self.kfuncs
            .iter()
            .map(|(name, function)| (*name, *function))
    }

    /// A kfunc by name.
    pub fn kfunc(&self, name: &str) -> Option<HelperFn> {
        self.kfuncs.get(name).copied()
    }
}

/// Number of the helper that engines run themselves: `bpf_tail_call`.
pub const TAIL_CALL: i32 = 12;

/// A running program as helpers see it. `'r` is the run.
pub struct Env<'r> {
    // What engines keep in step at every call out of their code.
    pub(crate) pc: usize,
    pub(crate) fuel: i64,
    /// Where step counting began anew; see `Cpu::fuel` of the interpreter.
    pub(crate) entry: usize,
    pub(crate) step_limit: u64,
    pub(crate) window: *mut Window,
    pub(crate) window_start: *mut Window,
    pub(crate) window_limit: *mut Window,
    pub(crate) window_end: *mut Window,
    pub(crate) checked: bool,
    pub(crate) program: &'r dyn Local,
    pub(crate) trap: Option<Trap>,
    /// Where the innermost code was when it trapped: program and position.
    pub(crate) trapped_at: Option<(&'r dyn Local, usize)>,
    pub(crate) kept_programs: &'r mut Vec<Arc<dyn Local>>,
    pub(crate) kept_maps: &'r mut Vec<Arc<Map>>,
    /// Watches the run, where the engine goes step by step.
    pub(crate) observer: Option<&'r mut (dyn Observer + Send)>,
    cpu: u32,
    percpu_offset: u64,
    host: &'r dyn Host,
    /// What the program may touch in checked mode.
    pub memory: &'r mut Memory,
    /// What it runs on.
    pub context: &'r mut dyn Context,
    /// What helpers remember during a run.
    pub state: &'r mut helpers::State,
    /// Where the packet is sent; becomes part of the outcome.
    pub redirect: Option<Redirect>,
}

/// The parts of an [`Env`] that come from outside of the machine.
pub(crate) struct Parts<'r> {
    pub(crate) program: &'r dyn Local,
    pub(crate) checked: bool,
    pub(crate) fuel: i64,
    pub(crate) step_limit: u64,
    pub(crate) window_start: *mut Window,
    pub(crate) window_limit: *mut Window,
    pub(crate) window_end: *mut Window,
    pub(crate) kept_programs: &'r mut Vec<Arc<dyn Local>>,
    pub(crate) kept_maps: &'r mut Vec<Arc<Map>>,
    pub(crate) cpu: u32,
    pub(crate) percpu_offset: u64,
    pub(crate) host: &'r dyn Host,
    pub(crate) memory: &'r mut Memory,
    pub(crate) context: &'r mut dyn Context,
    pub(crate) state: &'r mut helpers::State,
    pub(crate) observer: Option<&'r mut (dyn Observer + Send)>,
}

impl<'r> Env<'r> {
    pub(crate) fn new(p: Parts<'r>) -> Self {
        p.memory.spans.state.tail_calls = 0;
        Self {
            pc: 0,
            fuel: p.fuel,
            entry: 0,
            step_limit: p.step_limit,
            window: p.window_start,
            window_start: p.window_start,
            window_limit: p.window_limit,
            window_end: p.window_end,
            checked: p.checked,
            program: p.program,
            trap: None,
            trapped_at: None,
            kept_programs: p.kept_programs,
            kept_maps: p.kept_maps,
            cpu: p.cpu,
            percpu_offset: p.percpu_offset,
            host: p.host,
            memory: p.memory,
            context: p.context,
            state: p.state,
            observer: p.observer,
            redirect: None,
        }
    }

    /// Whether accesses are validated.
    #[inline]
    pub fn checked(&self) -> bool {
        self.checked
    }

    /// The host address behind a program's pointer to `len` bytes that it may read or write.
    ///
    /// # Errors
    /// In checked mode, an access fault where no region holds all of it.
    #[inline]
    pub fn resolve(&mut self, ptr: u64, len: u64, write: bool) -> Result<*mut u8, Trap> {
        if !self.checked {
            return Ok(std::ptr::with_exposed_provenance_mut(ptr as usize));
        }
        self.resolve_checked(ptr, len, write)
    }

    #[cold]
    fn resolve_checked(&mut self, ptr: u64, len: u64, write: bool) -> Result<*mut u8, Trap> {
        match self.find(ptr, len, write) {
            Some(host) => Ok(std::ptr::with_exposed_provenance_mut(host as usize)),
            None => Err(self.access_fault(ptr, len, write).into()),
        }
    }

    /// Host address of an access, if a region holds all of it.
    pub(crate) fn find(&mut self, ptr: u64, len: u64, write: bool) -> Option<u64> {
        self.locate(ptr, len, write).map(|found| found.host)
    }

    /// Looks an access up, asking the maps anew if it is not known: maps grow.
    pub(crate) fn locate(&mut self, ptr: u64, len: u64, write: bool) -> Option<Found> {
        let found = self.memory.find(ptr, len, write).or_else(|| {
            self.refresh_values();
            self.memory.find(ptr, len, write)
        });
        if found.as_ref().is_some_and(|found| found.absent) {
            self.report_arena_fault(ptr, write);
        }
        found
    }

    /// What the kernel writes to the program's error stream; the program goes on.
    fn report_arena_fault(&self, ptr: u64, write: bool) {
        let arena = self.program.maps().arena().and_then(|map| map.as_arena());
        let Some(arena) = arena else { return };
        let high = arena.user_start() & !u64::from(u32::MAX);
        let address = high | u64::from(ptr as u32);
        let access = if write { "WRITE" } else { "READ" };
        let text = format!("ERROR: Arena {access} access at unmapped address {address:#x}\n");
        self.host.trace(text.as_bytes());
    }

    pub(crate) fn refresh_values(&mut self) {
        self.memory.set_values(self.program.maps(), self.kept_maps);
    }

    pub(crate) fn access_fault(&self, address: u64, size: u64, write: bool) -> FaultKind {
        FaultKind::Access {
            write,
            address,
            size,
            near: self.memory.near(address),
        }
    }

    /// Bytes that the program passes to be read.
    ///
    /// # Errors
    /// As [`resolve`](Self::resolve).
    #[inline]
    pub fn read(&mut self, ptr: u64, len: u64) -> Result<&'r [u8], Trap> {
        if len == 0 {
            return Ok(&[]);
        }
        let at = self.resolve(ptr, len, false)?;
        // SAFETY: in checked mode `resolve` found `len` readable bytes there; in trusted mode
        // the verifier did (contract of Trusted). Regions outlive the run `'r`, but for what
        // helpers revoke, after which they pass no slice on.
        Ok(unsafe { slice::from_raw_parts(at, len as usize) })
    }

    /// Bytes that the program passes to be written. The caller must not hold another slice
    /// of the same bytes at the time; [`copy`](Self::copy) takes overlapping ones.
    ///
    /// # Errors
    /// As [`resolve`](Self::resolve).
    #[inline]
    pub fn write(&mut self, ptr: u64, len: u64) -> Result<&'r mut [u8], Trap> {
        if len == 0 {
            return Ok(&mut []);
        }
        let at = self.resolve(ptr, len, true)?;
        // SAFETY: as in `read`, for writable bytes.
        Ok(unsafe { slice::from_raw_parts_mut(at, len as usize) })
    }

    /// Copies between two places of the program's memory, which may overlap.
    ///
    /// # Errors
    /// As [`resolve`](Self::resolve).
    #[inline]
    pub fn copy(&mut self, to: u64, from: u64, len: u64) -> Result<(), Trap> {
        if len == 0 {
            return Ok(());
        }
        let source = self.resolve(from, len, false)?;
        let target = self.resolve(to, len, true)?;
        // SAFETY: both were resolved for `len` bytes; `copy` allows overlap.
        unsafe { std::ptr::copy(source, target, len as usize) };
        Ok(())
    }

    /// A value of `N` bytes in the program's memory (`u32::from_ne_bytes(env.load(ptr)?)`).
    ///
    /// # Errors
    /// As [`resolve`](Self::resolve).
    #[inline]
    pub fn load<const N: usize>(&mut self, ptr: u64) -> Result<[u8; N], Trap> {
        let at = self.resolve(ptr, N as u64, false)?;
        // SAFETY: resolved for N readable bytes; read_unaligned asks for no alignment.
        Ok(unsafe { at.cast::<[u8; N]>().read_unaligned() })
    }

    /// Stores `N` bytes in the program's memory.
    ///
    /// # Errors
    /// As [`resolve`](Self::resolve).
    #[inline]
    pub fn store<const N: usize>(&mut self, ptr: u64, value: [u8; N]) -> Result<(), Trap> {
        let at = self.resolve(ptr, N as u64, true)?;
        // SAFETY: resolved for N writable bytes; write_unaligned asks for no alignment.
        unsafe { at.cast::<[u8; N]>().write_unaligned(value) };
        Ok(())
    }

    /// The bytes of a NUL-terminated string, without the NUL; at most `max` bytes are looked at.
    ///
    /// # Errors
    /// An access fault where the region ends before a NUL and before `max`.
    pub fn read_cstr(&mut self, ptr: u64, max: u64) -> Result<&'r [u8], Trap> {
        let mut len = 0;
        while len < max {
            let [byte] = self.load(ptr.wrapping_add(len))?;
            if byte == 0 {
                break;
            }
            len += 1;
        }
        self.read(ptr, len)
    }

    /// The map behind a map pointer.
    ///
    /// # Errors
    /// In checked mode, [`FaultKind::BadMap`] for anything that is no map of the program.
    #[inline]
    pub fn map(&mut self, ptr: u64) -> Result<&'r Map, Trap> {
        if self.checked && !self.knows_map(ptr) {
            return Err(FaultKind::BadMap(ptr).into());
        }
        // SAFETY: a map of the program's set, which the program holds, or of `kept_maps`,
        // which the run holds: found in checked mode, proven by the verifier in trusted mode.
        Ok(unsafe { &*std::ptr::with_exposed_provenance::<Map>(ptr as usize) })
    }

    fn knows_map(&self, ptr: u64) -> bool {
        let is = |map: &Arc<Map>| Arc::as_ptr(map) as usize as u64 == ptr;
        self.program.maps().iter().any(is) || self.kept_maps.iter().any(is)
    }

    /// The same, to be kept.
    ///
    /// # Errors
    /// As [`map`](Self::map).
    pub fn map_shared(&mut self, ptr: u64) -> Result<Arc<Map>, Trap> {
        let map: *const Map = self.map(ptr)?;
        // SAFETY: every map lives in an Arc (MapSet and kept_maps hold nothing else), and
        // `map` says it is alive, so one more count may be taken and owned here.
        unsafe {
            Arc::increment_strong_count(map);
            Ok(Arc::from_raw(map))
        }
    }

    /// Hands an inner map to the program: it stays alive and known until the run ends.
    /// Returns the pointer that the program sees.
    pub fn keep_map(&mut self, map: Arc<Map>) -> u64 {
        let ptr = Arc::as_ptr(&map) as usize as u64;
        if !self.kept_maps.iter().any(|kept| Arc::ptr_eq(kept, &map)) {
            self.kept_maps.push(map);
        }
        ptr
    }

    /// The maps of the program's object.
    pub fn maps(&self) -> &'r Arc<MapSet> {
        self.program.maps()
    }

    /// Calls a function of the program: callbacks. `function` is the function pointer as
    /// the program passed it. A trap must be handed on (`?`): it unwinds the program.
    ///
    /// # Errors
    /// The trap that ended the callback.
    pub fn call(&mut self, function: u64, args: Args) -> Result<u64, Trap> {
        self.program.invoke(self, function, args)
    }

    /// The running program, as what tail calls and timers hold.
    pub fn executable(&self) -> &'r dyn Local {
        self.program
    }

    /// The running program's instructions and tables.
    pub fn program(&self) -> &'r Program {
        self.program.program()
    }

    /// Slot of the call instruction that called the helper.
    pub fn insn(&self) -> u32 {
        self.program.slot_of(self.pc)
    }

    /// Number of the worker thread that stands for the CPU.
    #[inline]
    pub fn cpu(&self) -> u32 {
        self.cpu
    }

    /// Bytes from the first CPU's data to this one's: see [`Vm::percpu_offset`](crate::Vm).
    #[inline]
    pub fn percpu_offset(&self) -> u64 {
        self.percpu_offset
    }

    /// Clocks, randomness, the current task, and the trace sink.
    #[inline]
    pub fn host(&self) -> &'r dyn Host {
        self.host
    }

    /// The context if it is a `T`.
    pub fn context_as<T: Any>(&mut self) -> Option<&mut T> {
        self.context.as_any_mut().downcast_mut()
    }

    /// A fault in a helper's own words, for arguments that no verified program passes.
    pub fn fault(&self, text: impl Into<Cow<'static, str>>) -> Trap {
        Trap::helper(text)
    }
}
