//! What profilers are told about machine code: lines of a perf map (`/tmp/perf-PID.map`), and
//! records of a jitdump (`jit-PID.dump`), which also hold the code and its source lines.
//! The formats are those of the kernel's `tools/perf/Documentation` (`jit-interface.txt`,
//! `jitdump-specification.txt`). Whoever runs programs writes the files.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _};
use std::ptr::NonNull;

use bpfkit_object::{LineInfo, Program};

use crate::backend::{Arch, Origin, Part};

/// Machine code in memory, as it is run.
#[derive(Clone, Copy)]
pub struct MachineCode<'a> {
    /// Address of its first byte.
    pub address: u64,
    /// The code.
    pub code: &'a [u8],
    /// What its stretches belong to; empty unless [`Jit::with_parts`](crate::Jit::with_parts)
    /// asked for them.
    pub parts: &'a [Part],
    /// The program that it was made of.
    pub program: &'a Program,
}

/// Where an address in machine code comes from.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// What it belongs to.
    pub origin: Origin,
    /// Name of the function that this is part of; none for what functions share.
    pub function: Option<&'a str>,
    /// The source line of the instruction.
    pub line: Option<&'a LineInfo>,
}

/// A stretch of machine code with a name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Symbol {
    /// Address of the first byte.
    pub address: u64,
    /// Bytes.
    pub size: u64,
    /// `bpf_prog_NAME`, for subprograms with `_SUBPROGRAM` behind it.
    pub name: String,
}

impl<'a> MachineCode<'a> {
    /// What lies at an address.
    pub fn resolve(&self, address: u64) -> Option<Place<'a>> {
        let offset = address.checked_sub(self.address)?;
        if offset >= self.code.len() as u64 {
            return None;
        }
        let after = self
            .parts
            .partition_point(|p| u64::from(p.offset) <= offset);
        let part = self.parts.get(after.checked_sub(1)?)?;
        let slot = match part.origin {
            Origin::Insn(slot) => Some(slot),
            _ => None,
        };
        Some(Place {
            origin: part.origin,
            function: self.function(part.origin),
            line: slot.and_then(|slot| self.line(slot)),
        })
    }

    /// The name of the function that the code belongs to.
    fn function(&self, origin: Origin) -> Option<&'a str> {
        let (Origin::Insn(slot) | Origin::Prologue(slot) | Origin::Epilogue(slot)) = origin else {
            return None;
        };
        let subprograms = &self.program.subprograms;
        let inside = subprograms
            .iter()
            .filter(|f| f.start != 0 && f.start <= slot);
        let function = inside.max_by_key(|f| f.start);
        Some(function.map_or(&self.program.decl.name, |f| &f.name))
    }

    fn line(&self, slot: u32) -> Option<&'a LineInfo> {
        let lines = &self.program.lines;
        let after = lines.partition_point(|line| line.insn <= slot);
        lines.get(after.checked_sub(1)?)
    }

    /// The code's functions, and what they share, in the order of their addresses.
    pub fn symbols(&self) -> Vec<Symbol> {
        let main = &self.program.decl.name;
        let mut symbols: Vec<Symbol> = Vec::new();
        let ends = self.parts.iter().skip(1).map(|p| p.offset);
        for (part, end) in self.parts.iter().zip(ends.chain([self.code.len() as u32])) {
            let name = match (self.function(part.origin), part.origin) {
                (Some(function), _) if function == main => format!("bpf_prog_{main}"),
                (Some(function), _) => format!("bpf_prog_{main}_{function}"),
                (None, Origin::Shared(what)) => format!("bpf_prog_{main} [{what}]"),
                (None, _) => continue,
            };
            let size = u64::from(end - part.offset);
            match symbols.last_mut() {
                Some(last) if last.name == name => last.size += size,
                _ => symbols.push(Symbol {
                    address: self.address + u64::from(part.offset),
                    size,
                    name,
                }),
            }
        }
        symbols.retain(|symbol| symbol.size > 0);
        if symbols.is_empty() {
            symbols.push(Symbol {
                address: self.address,
                size: self.code.len() as u64,
                name: format!("bpf_prog_{main}"),
            });
        }
        symbols
    }

    /// The code's lines of a perf map.
    pub fn perf_map(&self) -> String {
        let symbols = self.symbols().into_iter();
        symbols
            .map(|s| format!("{:x} {:x} {}\n", s.address, s.size, s.name))
            .collect()
    }

    /// Where the code of source lines begins: address, line.
    fn lines(&self) -> impl Iterator<Item = (u64, &'a LineInfo)> {
        let mut last = None;
        self.parts.iter().filter_map(move |part| {
            let Origin::Insn(slot) = part.origin else {
                return None;
            };
            let line = self.line(slot)?;
            let same = last.replace((line.line, &line.file)) == Some((line.line, &line.file));
            (!same).then_some((self.address + u64::from(part.offset), line))
        })
    }
}

/// Makes the records of a jitdump.
pub struct JitDump {
    pid: u32,
    /// Functions so far.
    index: u64,
}

/// "JiTD" as the writer's byte order has it.
const MAGIC: u32 = 0x4a69_5444;
const VERSION: u32 = 1;
const HEADER_BYTES: u32 = 40;
const LOAD: u32 = 0;
const DEBUG_INFO: u32 = 2;
const CLOSE: u32 = 3;

impl Arch {
    /// `EM_X86_64`, `EM_AARCH64`.
    fn elf_machine(self) -> u32 {
        match self {
            Arch::X86_64 => 62,
            Arch::Aarch64 => 183,
        }
    }
}

/// A record: its kind, its time, what follows.
fn record(kind: u32, time: u64, body: &[u8], out: &mut Vec<u8>) {
    out.extend(kind.to_ne_bytes());
    out.extend((16 + body.len() as u32).to_ne_bytes());
    out.extend(time.to_ne_bytes());
    out.extend_from_slice(body);
}

impl JitDump {
    /// A dump of a process, and its first bytes. Times are nanoseconds of `CLOCK_MONOTONIC`.
    pub fn new(arch: Arch, pid: u32, time: u64) -> (Self, Vec<u8>) {
        let mut out = Vec::new();
        for word in [MAGIC, VERSION, HEADER_BYTES, arch.elf_machine(), 0, pid] {
            out.extend(word.to_ne_bytes());
        }
        out.extend(time.to_ne_bytes());
        // No flags.
        out.extend(0_u64.to_ne_bytes());
        (Self { pid, index: 0 }, out)
    }

    /// The records of a program's code: each function's source lines, then its code.
    pub fn load(&mut self, code: &MachineCode<'_>, time: u64) -> Vec<u8> {
        let mut out = Vec::new();
        for symbol in code.symbols() {
            let inside = |at: u64| (symbol.address..symbol.address + symbol.size).contains(&at);
            let mut entries = Vec::new();
            let mut count = 0_u64;
            for (at, line) in code.lines().filter(|(at, _)| inside(*at)) {
                count += 1;
                entries.extend(at.to_ne_bytes());
                entries.extend(line.line.to_ne_bytes());
                entries.extend(0_u32.to_ne_bytes());
                entries.extend_from_slice(line.file.as_bytes());
                entries.push(0);
            }
            if count > 0 {
                let mut body = Vec::new();
                body.extend(symbol.address.to_ne_bytes());
                body.extend(count.to_ne_bytes());
                body.append(&mut entries);
                record(DEBUG_INFO, time, &body, &mut out);
            }
            let mut body = Vec::new();
            // Process and thread.
            body.extend(self.pid.to_ne_bytes());
            body.extend(self.pid.to_ne_bytes());
            for word in [symbol.address, symbol.address, symbol.size, self.index] {
                body.extend(word.to_ne_bytes());
            }
            self.index += 1;
            body.extend_from_slice(symbol.name.as_bytes());
            body.push(0);
            let start = (symbol.address - code.address) as usize;
            body.extend_from_slice(&code.code[start..start + symbol.size as usize]);
            record(LOAD, time, &body, &mut out);
        }
        out
    }

    /// The last record.
    pub fn close(self, time: u64) -> Vec<u8> {
        let mut out = Vec::new();
        record(CLOSE, time, &[], &mut out);
        out
    }
}

/// A page of a jitdump mapped executable: `perf record` takes note of such mappings, and so
/// `perf inject --jit` finds the file. Nothing is executed there.
pub struct Marker(NonNull<libc::c_void>);

// SAFETY: nobody touches the mapping until it is dropped.
unsafe impl Send for Marker {}
// SAFETY: as above.
unsafe impl Sync for Marker {}

const PAGE: usize = 4096;

impl Marker {
    /// Maps the first page of a jitdump.
    ///
    /// # Errors
    /// What the system answers; file systems without permission to execute refuse.
    pub fn new(dump: impl AsFd) -> io::Result<Self> {
        let rights = libc::PROT_READ | libc::PROT_EXEC;
        // SAFETY: a fresh private mapping at a place that the kernel chooses.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                PAGE,
                rights,
                libc::MAP_PRIVATE,
                dump.as_fd().as_raw_fd(),
                0,
            )
        };
        match NonNull::new(at) {
            Some(at) if at.as_ptr() != libc::MAP_FAILED => Ok(Self(at)),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Drop for Marker {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with this length.
        unsafe { libc::munmap(self.0.as_ptr(), PAGE) };
    }
}
