//! The virtual machine: QEMU as a child process that never outlives us.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use clap::ValueEnum;

use crate::cli::failure::{Exit, Failure, Result};
use crate::cli::progress;

/// How often a wait looks for Ctrl-C.
const TICK: Duration = Duration::from_millis(100);

/// Architectures of the guest.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Arch {
    /// `qemu-system-x86_64`
    #[value(name = "x86_64")]
    X86_64,
    /// `qemu-system-aarch64`
    #[value(name = "aarch64")]
    Aarch64,
}

/// What QEMU and the guest's kernel call the things of an architecture.
pub struct ArchDef {
    /// QEMU's program.
    pub qemu: &'static str,
    /// Options that choose the machine.
    machine: &'static [&'static str],
    /// Device of the kernel's console.
    pub console: &'static str,
    /// Device that the guest writes its results to; the console's where there is but one.
    pub results: &'static str,
    /// Debian's name.
    pub debian: &'static str,
    /// Rust's name.
    pub rust: &'static str,
}

impl Arch {
    /// This machine's.
    pub fn host() -> Arch {
        match cfg!(target_arch = "aarch64") {
            true => Arch::Aarch64,
            false => Arch::X86_64,
        }
    }

    /// The row of this architecture.
    pub fn def(self) -> &'static ArchDef {
        match self {
            Arch::X86_64 => &ArchDef {
                qemu: "qemu-system-x86_64",
                machine: &["-cpu", "max"],
                console: "ttyS0",
                results: "ttyS1",
                debian: "amd64",
                rust: "x86_64",
            },
            Arch::Aarch64 => &ArchDef {
                qemu: "qemu-system-aarch64",
                machine: &["-machine", "virt", "-cpu", "max"],
                console: "ttyAMA0",
                results: "ttyAMA0",
                debian: "arm64",
                rust: "aarch64",
            },
        }
    }
}

/// What to boot.
pub struct Boot<'a> {
    /// Architecture.
    pub arch: Arch,
    /// QEMU's accelerator.
    pub accel: &'a str,
    /// Memory in MiB.
    pub memory: u32,
    /// The kernel.
    pub vmlinuz: &'a Path,
    /// The initramfs.
    pub initrd: &'a Path,
    /// Arguments of the first process.
    pub arguments: &'a str,
    /// File that takes the kernel's console.
    pub console: PathBuf,
}

/// A running machine. Dropped, it is turned off.
pub struct Machine {
    child: Child,
    lines: Receiver<String>,
}

/// What a wait for the guest's next line brings.
pub enum Event {
    /// A line.
    Line(String),
    /// The machine went off.
    Off,
    /// The time is up.
    Late,
}

impl Machine {
    /// Starts the machine.
    pub fn start(boot: &Boot<'_>) -> Result<Machine> {
        let def = boot.arch.def();
        let append = format!(
            "console={} quiet loglevel=1 panic=-1 oops=panic rdinit=/init -- {}",
            def.console, boot.arguments
        );
        let console = File::create(&boot.console).map_err(Failure::machine)?;
        drop(console);
        let mut qemu = Command::new(def.qemu);
        qemu.args(def.machine)
            .args(["-accel", boot.accel, "-smp", "1"])
            .args(["-m", &boot.memory.to_string()])
            .args(["-display", "none", "-monitor", "none", "-no-reboot"])
            .args(["-nodefaults", "-no-user-config"])
            .arg("-kernel")
            .arg(boot.vmlinuz)
            .arg("-initrd")
            .arg(boot.initrd)
            .args(["-append", &append]);
        if def.console != def.results {
            let mut file = std::ffi::OsString::from("file:");
            file.push(&boot.console);
            qemu.arg("-serial").arg(file);
        }
        qemu.args(["-serial", "stdio"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // Ctrl-C reaches us alone: what is done by then is kept.
            .process_group(0);
        let mut child = qemu
            .spawn()
            .map_err(|error| Failure::machine(format!("{}: {error}", def.qemu)))?;
        let (sender, lines) = channel();
        if let Some(out) = child.stdout.take() {
            std::thread::spawn(move || {
                let mut out = BufReader::new(out);
                let mut line = Vec::new();
                while out.read_until(b'\n', &mut line).is_ok_and(|len| len > 0) {
                    let text = String::from_utf8_lossy(&line);
                    if sender.send(text.trim_end().to_owned()).is_err() {
                        return;
                    }
                    line.clear();
                }
            });
        }
        Ok(Machine { child, lines })
    }

    /// The guest's next line, or why there is none.
    ///
    /// # Errors
    /// Ctrl-C was pressed.
    pub fn next(&mut self, deadline: Instant) -> Result<Event> {
        loop {
            match self.lines.recv_timeout(TICK) {
                Ok(line) => return Ok(Event::Line(line)),
                Err(RecvTimeoutError::Disconnected) => return Ok(Event::Off),
                Err(RecvTimeoutError::Timeout) => {}
            }
            if progress::interrupted() {
                return Err(Failure {
                    message: "interrupted".to_owned(),
                    exit: Exit::Interrupted,
                });
            }
            if Instant::now() >= deadline {
                return Ok(Event::Late);
            }
        }
    }

    /// Waits for QEMU to end and returns what it complained about, if it failed.
    pub fn complaint(mut self) -> Option<String> {
        let mut text = String::new();
        if let Some(mut errors) = self.child.stderr.take() {
            use std::io::Read as _;
            // The text is for people; half of it is better than none.
            let _ = errors.read_to_string(&mut text);
        }
        let failed = self.child.wait().is_ok_and(|status| !status.success());
        failed.then(|| text.trim().to_owned())
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // Our own child, not yet waited for: nothing else can have its number.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
