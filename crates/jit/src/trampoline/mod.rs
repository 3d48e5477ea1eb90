//! Programs at functions of the host: before, after and in place of a call.
//!
//! A [`Trampoline`] stands for a function of the C calling convention: whoever calls its
//! [`entry`](Trampoline::entry) calls the function, and the programs that are attached at the
//! time. They come and go while threads are inside. The entry is a jump through one word:
//! straight to the function as long as nobody is attached, to code that runs programs before the
//! function while only such are attached, else to code that calls it.
//!
//! The order is the kernel's: `fentry` programs and sessions, then `fmod_ret` programs until
//! one returns something else than 0, which then is the result in place of the function's; then
//! sessions once more and `fexit` programs.

mod hooked;
mod recursion;

use std::cell::RefCell;
use std::io;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering::*};
use std::sync::{Arc, Mutex, PoisonError};

use bpfkit_maps::pin;
use bpfkit_runtime::context::{MAX_ARGS, Traced};
use bpfkit_runtime::{Executable, Vm};

pub use hooked::Hooked;
pub use recursion::{AtomicCounter, ByteCounter, in_signal_handler};

use crate::backend::{self, Arch};
use crate::code_memory::{Code, CodeMemory};

/// Most programs at a function (`BPF_MAX_TRAMP_LINKS`).
const MAX_LINKS: usize = 38;
/// Workers that a thread keeps for its next calls.
const KEPT_WORKERS: usize = 16;

/// Where a program is attached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Attach {
    /// Before the function: `fentry`.
    Entry,
    /// After it, with its result: `fexit`.
    Exit,
    /// Before it, and perhaps in place of it: `fmod_ret`.
    ModifyReturn,
    /// Both before and after it, with eight bytes kept from one to the other: `fsession`.
    Session,
}

/// Why a trampoline cannot be made, or a program not be attached.
#[derive(Debug, thiserror::Error)]
pub enum TrampolineError {
    /// More arguments than [`MAX_ARGS`].
    #[error("a function of {0} arguments; there may be {MAX_ARGS}")]
    Arguments(usize),
    /// No more programs fit.
    #[error("{MAX_LINKS} programs are attached already")]
    Full,
    /// No code for this architecture, or no memory for it.
    #[error("no code: {0}")]
    Code(#[from] io::Error),
}

/// A program at a function.
struct Attached {
    id: u64,
    attach: Attach,
    program: Arc<dyn Executable>,
    cookie: u64,
    /// A counter for each worker.
    active: Box<[ByteCounter]>,
    missed: AtomicU64,
    faults: AtomicU64,
}

/// What is attached at a time.
#[derive(Clone, Default)]
struct Links(Vec<Arc<Attached>>);

/// What a call keeps on the stack; the backends' code knows the layout.
#[repr(C)]
pub(crate) struct CallFrame {
    pub(crate) args: [u64; MAX_ARGS],
    pub(crate) result: u64,
    /// An `Arc<Links>` from entry to return.
    links: *const Links,
    cookies: [u64; MAX_LINKS],
}

/// Makes a worker for a thread. Its number must be below the `cpus` of the trampoline and
/// of the programs' maps, and no two threads may run workers of one number at a time.
pub type MakeWorker = dyn Fn() -> Vm + Send + Sync;

struct Inner {
    id: u64,
    function: usize,
    args: usize,
    cpus: u32,
    worker: Box<MakeWorker>,
    /// Where the entry jumps.
    target: AtomicUsize,
    /// An `Arc<Links>`.
    links: AtomicPtr<Links>,
    /// Held by whoever changes the links.
    change: Mutex<()>,
    next_link: AtomicU64,
}

/// A function of the host that programs may be attached to.
pub struct Trampoline {
    inner: Arc<Inner>,
    code: Code,
    /// Addresses of the code that runs programs before the function only, and of that which
    /// calls the function.
    before: usize,
    around: usize,
}

static NEXT: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// Workers that are not in use, by trampoline; boxed, because they are large.
    static WORKERS: RefCell<Vec<(u64, Box<Vm>)>> = const { RefCell::new(Vec::new()) };
}

impl Trampoline {
    /// A trampoline for a function with that many integer or pointer arguments.
    ///
    /// `cpus` bounds the numbers of workers that `worker` makes.
    ///
    /// # Errors
    /// See [`TrampolineError`].
    ///
    /// # Safety
    /// `function` is a function of the C calling convention with `args` arguments that are
    /// integers of at most 64 bits or pointers, and a result that is one or none. It and the
    /// trampoline live as long as anybody calls the entry. What the function's callers must
    /// promise, the entry's callers promise, and what programs with [`Attach::ModifyReturn`]
    /// return is a result that callers can use.
    pub unsafe fn new(
        memory: &Arc<CodeMemory>,
        function: *const (),
        args: usize,
        cpus: u32,
        worker: Box<MakeWorker>,
    ) -> Result<Self, TrampolineError> {
        if args > MAX_ARGS {
            return Err(TrampolineError::Arguments(args));
        }
        let arch = Arch::HOST.ok_or(io::ErrorKind::Unsupported);
        let arch = arch.map_err(|kind| TrampolineError::Code(kind.into()))?;
        let function = function.expose_provenance();
        let inner = Arc::new(Inner {
            id: NEXT.fetch_add(1, Relaxed),
            function,
            args,
            cpus,
            worker,
            target: AtomicUsize::new(function),
            links: AtomicPtr::new(Arc::into_raw(Arc::new(Links::default())).cast_mut()),
            change: Mutex::new(()),
            next_link: AtomicU64::new(0),
        });
        let call = Call {
            args,
            function: function as u64,
            target: (&raw const inner.target).expose_provenance() as u64,
            inner: Arc::as_ptr(&inner).expose_provenance() as u64,
            before: before as *const () as u64,
            enter: enter as *const () as u64,
            leave: leave as *const () as u64,
        };
        let shapes = backend::trampoline(arch, &call).ok_or(io::ErrorKind::Unsupported);
        let shapes = shapes.map_err(|kind| TrampolineError::Code(kind.into()))?;
        let code = memory.install(&shapes.code)?;
        let start = code.start();
        Ok(Self {
            inner,
            before: start + shapes.before,
            around: start + shapes.around,
            code,
        })
    }

    /// What to call in place of the function: a function of the same type.
    pub fn entry(&self) -> *const () {
        std::ptr::with_exposed_provenance(self.code.start())
    }

    /// Attaches a program, after those that are attached already. It stays until the link is
    /// dropped; calls that are under way then may still run it.
    ///
    /// # Errors
    /// [`TrampolineError::Full`].
    pub fn attach(
        &self,
        attach: Attach,
        program: Arc<dyn Executable>,
        cookie: u64,
    ) -> Result<Link, TrampolineError> {
        let attached = Arc::new(Attached {
            id: self.inner.next_link.fetch_add(1, Relaxed),
            attach,
            program,
            cookie,
            active: (0..self.inner.cpus)
                .map(|_| ByteCounter::default())
                .collect(),
            missed: AtomicU64::new(0),
            faults: AtomicU64::new(0),
        });
        let link = Link {
            attached: Arc::clone(&attached),
            inner: Arc::clone(&self.inner),
            ways: (self.before, self.around),
        };
        let added = self.inner.change(link.ways, |links| {
            let room = links.0.len() < MAX_LINKS;
            if room {
                links.0.push(attached);
            }
            room
        });
        if added {
            Ok(link)
        } else {
            Err(TrampolineError::Full)
        }
    }
}

/// A program at a function; dropping it takes the program away.
pub struct Link {
    attached: Arc<Attached>,
    inner: Arc<Inner>,
    /// As in the trampoline.
    ways: (usize, usize),
}

impl Link {
    /// Calls that the program did not see, because it was running already or there was no
    /// worker for the thread.
    pub fn missed(&self) -> u64 {
        self.attached.missed.load(Relaxed)
    }

    /// Runs that ended in a fault; they count as a result of 0.
    pub fn faults(&self) -> u64 {
        self.attached.faults.load(Relaxed)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        let id = self.attached.id;
        self.inner
            .change(self.ways, |links| links.0.retain(|l| l.id != id));
    }
}

impl Inner {
    /// Replaces the links by changed ones. The entry goes straight to the function without
    /// any, else one of the two ways.
    fn change<R>(
        &self,
        (before, around): (usize, usize),
        change: impl FnOnce(&mut Links) -> R,
    ) -> R {
        let _held = self.change.lock().unwrap_or_else(PoisonError::into_inner);
        let mut links = Links::clone(&self.links());
        let result = change(&mut links);
        let before_only = links.0.iter().all(|l| l.attach == Attach::Entry);
        let target = match (links.0.is_empty(), before_only) {
            (true, _) => self.function,
            (false, true) => before,
            (false, false) => around,
        };
        let new = Arc::into_raw(Arc::new(links)).cast_mut();
        let old = self.links.swap(new, AcqRel);
        self.target.store(target, Release);
        // SAFETY: the word owned a count of what it held, and nobody else takes it from there.
        let old = unsafe { Arc::from_raw(old.cast_const()) };
        // Whoever has just read the word takes its own count before it lets go of its guard.
        pin().defer(move || drop(old));
        result
    }

    /// What is attached now.
    fn links(&self) -> Arc<Links> {
        let _guard = pin();
        let links = self.links.load(Acquire).cast_const();
        // SAFETY: made by `Arc::into_raw`; what was replaced is dropped after this guard is.
        unsafe {
            Arc::increment_strong_count(links);
            Arc::from_raw(links)
        }
    }

    /// Runs with a worker of this thread; without one if a signal came while it was taken.
    fn with_worker<R>(&self, body: impl FnOnce(Option<&mut Vm>) -> R) -> R {
        let taken = WORKERS.with(|workers| {
            let mut workers = workers.try_borrow_mut().ok()?;
            let at = workers.iter().rposition(|(id, _)| *id == self.id);
            Some(at.map(|at| workers.swap_remove(at).1))
        });
        let Some(worker) = taken else {
            return body(None);
        };
        let mut worker = worker.unwrap_or_else(|| Box::new((self.worker)()));
        let result = body(Some(&mut *worker));
        WORKERS.with(|workers| {
            if let Ok(mut workers) = workers.try_borrow_mut() {
                if workers.len() >= KEPT_WORKERS {
                    workers.remove(0);
                }
                workers.push((self.id, worker));
            }
        });
        result
    }

    /// Runs the programs before the function; whether the function is to be left out.
    fn before(&self, links: &Links, frame: &mut CallFrame) -> bool {
        self.with_worker(|worker| {
            let Some(worker) = worker else {
                links.miss();
                return false;
            };
            let mut call = Traced::new(self.function as u64, &frame.args[..self.args]);
            for (link, cookie) in links.0.iter().zip(&mut frame.cookies) {
                match link.attach {
                    Attach::Entry => _ = link.run(worker, &mut call),
                    Attach::Session => {
                        call.session_cookie = 0;
                        link.run(worker, &mut call);
                        *cookie = call.session_cookie;
                    }
                    Attach::Exit | Attach::ModifyReturn => {}
                }
            }
            frame.result = 0;
            for link in links.0.iter().filter(|l| l.attach == Attach::ModifyReturn) {
                call.set_result(0);
                frame.result = link.run(worker, &mut call);
                if frame.result != 0 {
                    return true;
                }
            }
            false
        })
    }

    /// Runs the programs after the function.
    fn after(&self, links: &Links, frame: &mut CallFrame) {
        self.with_worker(|worker| {
            let Some(worker) = worker else {
                return links.miss();
            };
            let mut call = Traced::new(self.function as u64, &frame.args[..self.args]);
            call.set_result(frame.result);
            for (link, cookie) in links.0.iter().zip(&frame.cookies) {
                match link.attach {
                    Attach::Exit => _ = link.run(worker, &mut call),
                    Attach::Session => {
                        (call.is_return, call.session_cookie) = (true, *cookie);
                        link.run(worker, &mut call);
                        call.is_return = false;
                    }
                    Attach::Entry | Attach::ModifyReturn => {}
                }
            }
        });
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: the word owns a count of what it holds; nobody reads it any more.
        drop(unsafe { Arc::from_raw(self.links.load(Acquire).cast_const()) });
    }
}

impl Links {
    fn miss(&self) {
        for link in &self.0 {
            link.missed.fetch_add(1, Relaxed);
        }
    }
}

impl Attached {
    /// Runs the program, unless it runs already: what it returned, else 0.
    fn run(&self, worker: &mut Vm, call: &mut Traced) -> u64 {
        let active = self.active.get(worker.cpu as usize);
        let Some(active) = active.filter(|active| active.enter()) else {
            self.missed.fetch_add(1, Relaxed);
            return 0;
        };
        call.call.cookie = self.cookie;
        let outcome = self.program.run(worker, call);
        active.leave();
        if outcome.fault.is_some() {
            self.faults.fetch_add(1, Relaxed);
        }
        outcome.ret
    }
}

/// What a trampoline's code is made of: addresses, and the number of arguments.
pub(crate) struct Call {
    pub(crate) args: usize,
    pub(crate) function: u64,
    /// Of the word that the entry jumps through.
    pub(crate) target: u64,
    pub(crate) inner: u64,
    /// `(inner, frame)`: of the functions below.
    pub(crate) before: u64,
    pub(crate) enter: u64,
    pub(crate) leave: u64,
}

/// Runs the programs at the entry where no others are attached.
///
/// # Safety
/// Called by a trampoline's code: `inner` is its, `frame` holds the arguments.
unsafe extern "C" fn before(inner: *const Inner, frame: *mut CallFrame) {
    // SAFETY: by this function's contract.
    let (inner, frame) = unsafe { (&*inner, &mut *frame) };
    let links = inner.links();
    // Others that came meanwhile wait for the next call: their code is not this one.
    inner.with_worker(|worker| {
        let Some(worker) = worker else {
            return links.miss();
        };
        let mut call = Traced::new(inner.function as u64, &frame.args[..inner.args]);
        for link in links.0.iter().filter(|l| l.attach == Attach::Entry) {
            link.run(worker, &mut call);
        }
    });
}

/// Runs the programs before the function: 1 if the function is to be left out.
///
/// # Safety
/// As [`before`]; [`leave`] follows with the same frame.
unsafe extern "C" fn enter(inner: *const Inner, frame: *mut CallFrame) -> u64 {
    // SAFETY: by this function's contract.
    let (inner, frame) = unsafe { (&*inner, &mut *frame) };
    let links = inner.links();
    let skip = inner.before(&links, frame);
    frame.links = Arc::into_raw(links);
    skip.into()
}

/// Runs the programs after the function, whose result is in the frame.
///
/// # Safety
/// As [`before`], after [`enter`].
unsafe extern "C" fn leave(inner: *const Inner, frame: *mut CallFrame) {
    // SAFETY: by this function's contract; `enter` has put an Arc into the frame.
    let (inner, frame, links) = unsafe { (&*inner, &mut *frame, Arc::from_raw((*frame).links)) };
    inner.after(&links, frame);
}
