//! The child process that makes the calls.
//!
//! Parent and child share one anonymous mapping, at the same address in both, and
//! two pipes. A request is an attribute block in the mapping (whose pointers point
//! into the mapping too) and one command word on the pipe; the answer is the
//! system call's result. The child is forked from a process that may have threads,
//! so between fork and exit it makes raw system calls only.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering::*};
use std::time::{Duration, Instant};

use crate::attr::{ATTR_BYTES, Attr, Command, Errno, test_run};
use crate::kernel::OracleError;

/// Bytes of shared memory: the attribute block, then buffers of one request.
/// The kernel's largest useful log is 16 MiB; pages are touched only when used.
const SHARED_BYTES: usize = 64 << 20;

/// Where buffers start: behind the attribute block and the address of a [`Repeat`].
const BUFFERS_AT: usize = ATTR_BYTES + 8;

/// How long the kernel may take over one call. The longest verification known takes
/// about a second.
const PATIENCE: Duration = Duration::from_secs(60);

/// Command word that asks the child to close a descriptor instead of calling bpf(2).
const CLOSE: u32 = u32::MAX;

/// Command word that asks the child to repeat a test run, see [`Repeat`].
const REPEAT: u32 = u32::MAX - 1;

/// A repeated test run, as parent and child exchange it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Repeat {
    /// Processes that run the program at the same time.
    pub producers: u32,
    /// Return values that each of them can keep.
    pub room: u32,
    /// How long to go on, in ns.
    pub span: u64,
    /// Descriptor of a ring buffer to empty after every run, or -1.
    pub ring: i32,
    /// Address of the results: for each process its number of runs, the error number of the
    /// run that failed or 0, and `room` return values, 32 bits each.
    pub results: u64,
}

impl Repeat {
    /// Words of results of a process.
    pub fn stride(&self) -> usize {
        2 + self.room as usize
    }
}

/// The child, its mapping and pipes. Ending the value ends the child.
pub struct Child {
    pid: libc::pid_t,
    shared: *mut u8,
    requests: OwnedFd,
    answers: OwnedFd,
    used: usize,
    /// How long to wait for an answer.
    pub patience: Duration,
    /// A call did not come back in time: the child cannot be asked, or ended, any more.
    stuck: bool,
}

// SAFETY: the mapping belongs to this value alone on the parent's side, and every
// method that touches it takes `&mut self`.
unsafe impl Send for Child {}

impl Child {
    pub fn spawn() -> Result<Self, OracleError> {
        // SAFETY: a fresh anonymous mapping; the result is checked below.
        let shared = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                SHARED_BYTES,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if shared == libc::MAP_FAILED {
            return Err(OracleError::Child(io::Error::last_os_error()));
        }
        let shared = shared.cast::<u8>();
        match Self::fork(shared) {
            Ok(child) => Ok(child),
            Err(error) => {
                // SAFETY: `shared` was mapped above with this length and no one uses it.
                unsafe { libc::munmap(shared.cast(), SHARED_BYTES) };
                Err(OracleError::Child(error))
            }
        }
    }

    fn fork(shared: *mut u8) -> io::Result<Self> {
        let (request_read, request_write) = pipe()?;
        let (answer_read, answer_write) = pipe()?;
        // SAFETY: the child calls `serve`, which makes raw system calls only and never returns.
        let pid = unsafe { libc::fork() };
        if pid < 0 {
            return Err(io::Error::last_os_error());
        }
        if pid == 0 {
            serve(
                request_read.as_raw_fd(),
                answer_write.as_raw_fd(),
                [request_write.as_raw_fd(), answer_read.as_raw_fd()],
                shared,
            );
        }
        Ok(Child {
            pid,
            shared,
            requests: request_write,
            answers: answer_read,
            used: BUFFERS_AT,
            patience: PATIENCE,
            stuck: false,
        })
    }

    /// Forgets the buffers of the request before.
    pub fn begin(&mut self) {
        self.used = BUFFERS_AT;
    }

    /// Reserves `len` bytes of shared memory, 8-byte aligned, and returns their
    /// address, which is the same in parent and child.
    pub fn reserve(&mut self, len: usize) -> Result<u64, OracleError> {
        let start = self.used.next_multiple_of(8);
        let end = start.checked_add(len).filter(|&end| end <= SHARED_BYTES);
        let end = end.ok_or(OracleError::TooLarge { bytes: len })?;
        self.used = end;
        Ok(self.shared as u64 + start as u64)
    }

    /// Copies `bytes` into shared memory and returns their address.
    pub fn put(&mut self, bytes: &[u8]) -> Result<u64, OracleError> {
        let address = self.reserve(bytes.len())?;
        // SAFETY: `reserve` made sure that the range lies inside the mapping; the
        // child touches it only during a request, and none is under way here.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), address as *mut u8, bytes.len());
        }
        Ok(address)
    }

    /// Copies `len` bytes back from an address that `reserve` or `put` returned.
    pub fn get(&self, address: u64, len: usize) -> Vec<u8> {
        let start = (address as usize).saturating_sub(self.shared as usize);
        assert!(
            start + len <= SHARED_BYTES,
            "read outside the shared mapping"
        );
        // SAFETY: the range was just checked to lie inside the mapping.
        unsafe { std::slice::from_raw_parts(address as *const u8, len) }.to_vec()
    }

    /// Makes one bpf(2) call; the attribute block comes back as the kernel left it.
    pub fn call(&mut self, command: Command, attr: &mut Attr) -> Result<i64, OracleError> {
        // SAFETY: the mapping is at least ATTR_BYTES long and no request is under way.
        unsafe { std::ptr::copy_nonoverlapping(attr.0.as_ptr(), self.shared, ATTR_BYTES) };
        let answer = self.round_trip(command as u32, 0)?;
        // SAFETY: as above; the child has answered and waits.
        unsafe { std::ptr::copy_nonoverlapping(self.shared, attr.0.as_mut_ptr(), ATTR_BYTES) };
        if answer < 0 {
            return Err(OracleError::Call(Errno((-answer) as i32)));
        }
        Ok(answer)
    }

    /// Repeats the test run of an attribute block for a while.
    pub fn repeat(&mut self, attr: &Attr, repeat: &Repeat) -> Result<(), OracleError> {
        let at = self.reserve(size_of::<Repeat>())?;
        // SAFETY: `reserve` found room, aligned to 8, and no request is under way.
        unsafe {
            std::ptr::copy_nonoverlapping(attr.0.as_ptr(), self.shared, ATTR_BYTES);
            (at as *mut Repeat).write(*repeat);
            self.shared.add(ATTR_BYTES).cast::<u64>().write(at);
        }
        let patience = self.patience;
        self.patience += Duration::from_nanos(repeat.span);
        let answer = self.round_trip(REPEAT, 0);
        self.patience = patience;
        match answer? {
            0.. => Ok(()),
            errno => Err(OracleError::Call(Errno((-errno) as i32))),
        }
    }

    /// Keeps the child on one CPU; where that is not allowed, it stays where it is.
    pub fn pin(&self, cpu: usize) {
        // SAFETY: zero bytes are an empty set; CPU_SET checks the number against its size.
        unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            if cpu < libc::CPU_SETSIZE as usize {
                libc::CPU_SET(cpu, &mut set);
                libc::sched_setaffinity(self.pid, size_of::<libc::cpu_set_t>(), &raw const set);
            }
        }
    }

    /// Closes a descriptor of the child.
    pub fn close(&mut self, fd: i32) {
        // A child that is gone has closed everything already.
        let _ = self.round_trip(CLOSE, fd);
    }

    fn round_trip(&mut self, command: u32, argument: i32) -> Result<i64, OracleError> {
        if self.stuck {
            return Err(OracleError::Stuck);
        }
        let mut request = [0u8; 8];
        request[..4].copy_from_slice(&command.to_ne_bytes());
        request[4..].copy_from_slice(&argument.to_ne_bytes());
        if !transfer(request.len(), |done| {
            // SAFETY: the buffer is alive and at least that long past `done`.
            unsafe {
                libc::write(
                    self.requests.as_raw_fd(),
                    request[done..].as_ptr().cast(),
                    request.len() - done,
                )
            }
        }) {
            return Err(OracleError::Died);
        }
        let mut answer = [0u8; 8];
        let fd = self.answers.as_raw_fd();
        if !readable_within(fd, self.patience) {
            self.stuck = true;
            return Err(OracleError::Stuck);
        }
        if !transfer(answer.len(), |done| {
            let rest = &mut answer[done..];
            // SAFETY: `rest` is alive and that long.
            unsafe { libc::read(fd, rest.as_mut_ptr().cast(), rest.len()) }
        }) {
            return Err(OracleError::Died);
        }
        Ok(i64::from_ne_bytes(answer))
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // A child that hangs inside the kernel never ends; waiting for it would hang us too.
        let options = if self.stuck { libc::WNOHANG } else { 0 };
        // SAFETY: `pid` is our own child, not yet waited for; the mapping is ours, and the
        // child keeps its own reference to the memory.
        unsafe {
            libc::kill(self.pid, libc::SIGKILL);
            libc::waitpid(self.pid, std::ptr::null_mut(), options);
            libc::munmap(self.shared.cast(), SHARED_BYTES);
        }
    }
}

/// Repeats a read or write until all `len` bytes are through; false at the end of
/// the pipe or on an error.
fn transfer(len: usize, mut step: impl FnMut(usize) -> isize) -> bool {
    let mut done = 0;
    while done < len {
        match step(done) {
            n if n > 0 => done += n as usize,
            -1 if errno() == libc::EINTR => {}
            _ => return false,
        }
    }
    true
}

/// Waits until there is something to read, or the other end is closed.
fn readable_within(fd: RawFd, patience: Duration) -> bool {
    let mut poll = libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    let end = Instant::now() + patience;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let millis = i32::try_from(left.as_millis()).unwrap_or(i32::MAX);
        // SAFETY: `poll` is one live pollfd.
        match unsafe { libc::poll(&raw mut poll, 1, millis) } {
            -1 if errno() == libc::EINTR => {}
            ready => return ready != 0,
        }
    }
}

fn errno() -> i32 {
    // SAFETY: the location is the calling thread's own.
    unsafe { *libc::__errno_location() }
}

fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut fds: [RawFd; 2] = [0; 2];
    // SAFETY: the array has room for two descriptors.
    if unsafe { libc::pipe2(fds.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: pipe2 just made both descriptors, and nothing else owns them.
    Ok(unsafe { (OwnedFd::from_raw_fd(fds[0]), OwnedFd::from_raw_fd(fds[1])) })
}

/// The child: answers requests until the parent is gone.
fn serve(requests: RawFd, answers: RawFd, close: [RawFd; 2], shared: *mut u8) -> ! {
    // SAFETY: raw system calls on descriptors that the child inherited. Standard input and
    // output go, so that a child that hangs in the kernel keeps no reader waiting.
    unsafe {
        libc::close(close[0]);
        libc::close(close[1]);
        for standard in 0..=2 {
            libc::close(standard);
        }
        libc::signal(libc::SIGINT, libc::SIG_IGN);
    }
    loop {
        let mut request = [0u8; 8];
        let whole = transfer(request.len(), |done| {
            let rest = &mut request[done..];
            // SAFETY: `rest` is alive and that long.
            unsafe { libc::read(requests, rest.as_mut_ptr().cast(), rest.len()) }
        });
        if !whole {
            // SAFETY: ends the child at once, without running the parent's exit handlers.
            unsafe { libc::_exit(0) };
        }
        let [a, b, c, d, e, f, g, h] = request;
        let command = u32::from_ne_bytes([a, b, c, d]);
        let argument = i32::from_ne_bytes([e, f, g, h]);
        // SAFETY: the kernel checks every pointer in the attribute block; those that
        // the parent set point into the mapping that both processes share.
        let result = unsafe {
            if command == CLOSE {
                libc::close(argument) as i64
            } else if command == REPEAT {
                repeat(shared)
            } else {
                libc::syscall(libc::SYS_bpf, command, shared, ATTR_BYTES)
            }
        };
        let answer = if result < 0 {
            -i64::from(errno())
        } else {
            result
        };
        let answer = answer.to_ne_bytes();
        let whole = transfer(answer.len(), |done| {
            let rest = &answer[done..];
            // SAFETY: `rest` is alive and that long.
            unsafe { libc::write(answers, rest.as_ptr().cast(), rest.len()) }
        });
        if !whole {
            // SAFETY: as above.
            unsafe { libc::_exit(0) };
        }
    }
}

/// In the child: a test run again and again, by as many processes as asked for. Raw system
/// calls only.
///
/// # Safety
/// `shared` is the mapping, with an attribute block and the address of a [`Repeat`] whose
/// results fit.
unsafe fn repeat(shared: *mut u8) -> i64 {
    // SAFETY: by this function's contract; the parent waits for the answer.
    unsafe {
        let request = *(shared.add(ATTR_BYTES).cast::<u64>().read() as *const Repeat);
        let results = request.results as *mut u32;
        let attr = shared.cast::<[u8; ATTR_BYTES]>().read();
        let end = now() + request.span;
        let mut failed = 0;
        let mut others = 0;
        for i in 1..request.producers {
            match libc::fork() {
                -1 => failed = -i64::from(errno()),
                0 => {
                    repeat_alone(
                        attr,
                        &request,
                        end,
                        results.add(i as usize * request.stride()),
                    );
                    libc::_exit(0);
                }
                _ => others += 1,
            }
        }
        repeat_alone(attr, &request, end, results);
        for _ in 0..others {
            while libc::wait(std::ptr::null_mut()) < 0 && errno() == libc::EINTR {}
        }
        failed
    }
}

/// # Safety
/// `out` has room for the results of one process.
unsafe fn repeat_alone(mut attr: [u8; ATTR_BYTES], request: &Repeat, end: u64, out: *mut u32) {
    let (mut runs, mut error) = (0, 0);
    let ring = Positions::of(request.ring);
    while runs < request.room && now() < end {
        // SAFETY: the kernel checks every pointer; `attr` is this process's own.
        let result = unsafe {
            libc::syscall(
                libc::SYS_bpf,
                Command::TestRun as u32,
                attr.as_mut_ptr(),
                ATTR_BYTES,
            )
        };
        if result < 0 {
            error = errno() as u32;
            break;
        }
        let [a, b, c, d] = [0, 1, 2, 3].map(|i| attr[test_run::RETVAL + i]);
        // SAFETY: below `room`.
        unsafe {
            out.add(2 + runs as usize)
                .write(u32::from_ne_bytes([a, b, c, d]))
        };
        runs += 1;
        if let Some(ring) = &ring {
            ring.empty();
        }
    }
    // SAFETY: by this function's contract.
    unsafe {
        out.write(runs);
        out.add(1).write(error);
    }
}

/// Monotonic time in ns.
fn now() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is alive.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The positions of a ring buffer, mapped: the consumer's page, then the producer's.
struct Positions {
    consumer: *const AtomicU64,
    producer: *const AtomicU64,
}

impl Positions {
    fn of(ring: i32) -> Option<Self> {
        const PAGE: usize = 4096;
        let map = |protection, offset| {
            // SAFETY: a fresh mapping of one page; the result is checked.
            let page = unsafe {
                libc::mmap(
                    std::ptr::null_mut(),
                    PAGE,
                    protection,
                    libc::MAP_SHARED,
                    ring,
                    offset,
                )
            };
            (page != libc::MAP_FAILED).then_some(page.cast::<AtomicU64>().cast_const())
        };
        if ring < 0 {
            return None;
        }
        Some(Positions {
            consumer: map(libc::PROT_READ | libc::PROT_WRITE, 0)?,
            producer: map(libc::PROT_READ, PAGE as libc::off_t)?,
        })
    }

    /// Takes all there is, unread.
    fn empty(&self) {
        // SAFETY: the pages stay mapped until the process ends.
        unsafe { (*self.consumer).store((*self.producer).load(Acquire), Release) };
    }
}
