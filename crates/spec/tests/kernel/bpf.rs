//! Loads tiny programs into the running kernel, from a child process that makes nothing
//! but `BPF_PROG_LOAD` and `BPF_MAP_CREATE` calls and attaches nothing.
//!
//! Nearly all programs end in [`END`], which the verifier rejects. That spares the kernel
//! compiling and freeing them: many accepted programs at once can block it for ever (6.18
//! holds the lock of its code pages while it waits for a work item, and once 1,024 programs
//! wait on that work queue to be freed, which takes the same lock, none gets on). For the
//! same reason one child works at a time, also across processes.
//!
//! The child is this test program again, running the test [`worker`]: requests come on its
//! standard input, answers go to its standard error.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::{Child, Command, Stdio};

const WORKER: &str = "BPFKIT_SPEC_WORKER";

/// `BPF_MAP_CREATE`.
const MAP_CREATE: i32 = 0;
/// `BPF_PROG_LOAD`.
const PROG_LOAD: i32 = 5;

/// Instructions with the registers they set, also of programs that are accepted.
const LOG_LEVEL: u32 = 2;

/// Bytes kept of a verifier log: more than any program here makes.
const LOG_BYTES: usize = 1 << 16;

/// A program to load.
#[derive(Clone, Default)]
pub struct Request {
    pub prog_type: u32,
    pub attach_type: u32,
    pub flags: u32,
    pub attach_btf_id: u32,
    pub gpl: bool,
    pub insns: Vec<[u8; 8]>,
}

/// What the kernel said.
#[derive(Clone, Debug)]
pub struct Answer {
    /// 0 when accepted.
    pub errno: i32,
    pub log: String,
}

impl Answer {
    /// Whether the verifier came to [`END`].
    pub fn reached_end(&self) -> bool {
        self.log.contains("R0 invalid mem access 'scalar'")
    }

    /// The log's last line before the statistics that is no instruction or register state.
    pub fn message(&self) -> &str {
        self.log
            .lines()
            .rfind(|line| {
                let noise = line.starts_with("processed ")
                    || line.starts_with("verification time")
                    || line.starts_with("stack depth")
                    || line.starts_with("func#")
                    || line.starts_with(|c: char| c.is_ascii_digit() || c == ';');
                !noise && !line.is_empty()
            })
            .unwrap_or("")
    }
}

/// Ends a program in an access that the verifier rejects once it has come so far.
pub const END: [[u8; 8]; 3] = [
    [0xb7, 0, 0, 0, 0, 0, 0, 0],
    [0x71, 0, 0, 0, 0, 0, 0, 0],
    [0x95, 0, 0, 0, 0, 0, 0, 0],
];

/// The child.
pub struct Kernel {
    child: Child,
    /// Locked as long as the child lives.
    _turn: File,
}

impl Kernel {
    /// Starts the child; says why not where the kernel may not be asked or is another
    /// release than the tables describe.
    pub fn start() -> Result<Kernel, String> {
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease")
            .map_err(|e| format!("no kernel release: {e}"))?;
        let version: bpfkit_spec::KernelVersion =
            release.trim().parse().map_err(|e| format!("{e}"))?;
        if version != bpfkit_spec::KernelVersion::TARGET {
            return Err(format!(
                "this kernel is {version}, not the target of the tables"
            ));
        }
        let turn = File::create(std::env::temp_dir().join("bpfkit-spec-kernel.lock"))
            .and_then(|file| file.lock().map(|()| file))
            .map_err(|e| format!("no lock file: {e}"))?;
        let program = std::env::current_exe().map_err(|e| e.to_string())?;
        let child = Command::new(program)
            .args(["--exact", "bpf::worker", "--nocapture"])
            .env(WORKER, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|e| format!("no child: {e}"))?;
        let mut kernel = Kernel { child, _turn: turn };
        let answer = kernel.load(&Request {
            prog_type: bpfkit_spec::ProgType::SocketFilter as u32,
            insns: END.to_vec(),
            ..Request::default()
        });
        if answer.reached_end() {
            Ok(kernel)
        } else {
            Err(format!("no bpf(2): errno {}", answer.errno))
        }
    }

    /// Loads a program and drops it.
    pub fn load(&mut self, request: &Request) -> Answer {
        let mut bytes = vec![b'L'];
        for word in [
            request.prog_type,
            request.attach_type,
            request.flags,
            request.attach_btf_id,
            u32::from(request.gpl),
            request.insns.len() as u32,
        ] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(request.insns.iter().flatten());
        let errno = self.ask(&bytes);
        let mut log = vec![0; self.read_u32() as usize];
        self.read(&mut log);
        Answer {
            errno,
            log: String::from_utf8_lossy(&log).into_owned(),
        }
    }

    /// Creates a map with type, key size, value size, entries and flags; its number is for
    /// the immediate of a map reference in a program. The errno where the kernel refuses.
    pub fn create_map(&mut self, attributes: [u32; 5]) -> Result<i32, i32> {
        let mut bytes = vec![b'M'];
        bytes.extend(attributes.iter().flat_map(|word| word.to_le_bytes()));
        let index = self.ask(&bytes);
        if index < 0 { Err(-index) } else { Ok(index) }
    }

    fn ask(&mut self, request: &[u8]) -> i32 {
        let stdin = self.child.stdin.as_mut().expect("piped");
        stdin
            .write_all(request)
            .expect("the kernel killed the child");
        stdin.flush().expect("the kernel killed the child");
        self.read_u32() as i32
    }

    fn read_u32(&mut self) -> u32 {
        let mut word = [0; 4];
        self.read(&mut word);
        u32::from_le_bytes(word)
    }

    fn read(&mut self, bytes: &mut [u8]) {
        let stderr = self.child.stderr.as_mut().expect("piped");
        stderr
            .read_exact(bytes)
            .expect("the kernel killed the child");
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// The child's part; does nothing in an ordinary test run.
#[test]
fn worker() {
    if std::env::var_os(WORKER).is_none() {
        return;
    }
    serve(&mut io::stdin().lock(), &mut io::stderr().lock()).ok();
    std::process::exit(0);
}

fn serve(input: &mut impl Read, output: &mut impl Write) -> io::Result<()> {
    let mut maps: Vec<OwnedFd> = Vec::new();
    let mut log = vec![0u8; LOG_BYTES];
    loop {
        let mut kind = [0];
        input.read_exact(&mut kind)?;
        if kind == *b"M" {
            let mut attributes = [0u8; 72];
            input.read_exact(&mut attributes[..20])?;
            let answer = match bpf(MAP_CREATE, &mut attributes) {
                Ok(map) => {
                    maps.push(map);
                    maps.len() as i32 - 1
                }
                Err(errno) => -errno,
            };
            output.write_all(&answer.to_le_bytes())?;
        } else {
            let mut words = [0u8; 24];
            input.read_exact(&mut words)?;
            let word = |i: usize| u32::from_le_bytes(words[4 * i..4 * i + 4].try_into().unwrap());
            let mut insns = vec![0u8; 8 * word(5) as usize];
            input.read_exact(&mut insns)?;
            resolve_maps(&mut insns, &maps);
            let license: &[u8] = if word(4) == 1 {
                b"GPL\0"
            } else {
                b"Proprietary\0"
            };
            log[0] = 0;
            let mut attr = [0u8; 148];
            let mut set = |offset: usize, bytes: &[u8]| {
                attr[offset..offset + bytes.len()].copy_from_slice(bytes);
            };
            set(0, &word(0).to_le_bytes());
            set(4, &word(5).to_le_bytes());
            set(8, &(insns.as_ptr() as u64).to_le_bytes());
            set(16, &(license.as_ptr() as u64).to_le_bytes());
            set(24, &LOG_LEVEL.to_le_bytes());
            set(28, &(LOG_BYTES as u32).to_le_bytes());
            set(32, &(log.as_mut_ptr() as u64).to_le_bytes());
            set(44, &word(2).to_le_bytes());
            set(68, &word(1).to_le_bytes());
            set(108, &word(3).to_le_bytes());
            let loaded = bpf(PROG_LOAD, &mut attr);
            let errno = loaded.map(drop).err().unwrap_or(0);
            if errno == 0 {
                // Leaves the kernel time to free the program.
                std::thread::sleep(std::time::Duration::from_millis(2));
            }
            let length = log.iter().position(|&byte| byte == 0).unwrap_or(0);
            output.write_all(&errno.to_le_bytes())?;
            output.write_all(&(length as u32).to_le_bytes())?;
            output.write_all(&log[..length])?;
        }
        output.flush()?;
    }
}

/// Replaces map numbers in references to maps by file descriptors.
fn resolve_maps(insns: &mut [u8], maps: &[OwnedFd]) {
    for insn in insns.chunks_exact_mut(8) {
        if insn[0] == 0x18 && insn[1] >> 4 != 0 {
            let number = u32::from_le_bytes(insn[4..8].try_into().unwrap());
            let fd = maps[number as usize].as_raw_fd();
            insn[4..8].copy_from_slice(&fd.to_le_bytes());
        }
    }
}

/// bpf(2); the errno on failure.
fn bpf(command: i32, attributes: &mut [u8]) -> Result<OwnedFd, i32> {
    // SAFETY: the kernel reads and writes at most `attributes.len()` bytes of the attributes,
    // and the buffers whose addresses they hold live across the call with the lengths given.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
            attributes.as_mut_ptr(),
            attributes.len(),
        )
    };
    if fd < 0 {
        return Err(io::Error::last_os_error().raw_os_error().unwrap_or(-1));
    }
    // SAFETY: both commands return a new descriptor, which nothing else owns.
    Ok(unsafe { File::from_raw_fd(fd as i32) }.into())
}
