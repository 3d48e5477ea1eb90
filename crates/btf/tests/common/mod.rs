//! What the tests look at outside the crate, each only where it is there.
#![allow(dead_code, reason = "each test takes its part")]

use std::path::{Path, PathBuf};
use std::process::Command;

/// The running kernel's BTF, or a line that says why the check is skipped.
pub fn vmlinux() -> Option<Vec<u8>> {
    let path = "/sys/kernel/btf/vmlinux";
    let bytes = std::fs::read(path).ok();
    if bytes.is_none() {
        println!("skipped: {path} cannot be read");
    }
    bytes
}

/// What `bpftool btf dump file FILE format FORMAT` prints.
pub fn bpftool_dump(file: &Path, format: &str) -> Option<String> {
    for program in ["bpftool", "/usr/sbin/bpftool"] {
        let run = Command::new(program)
            .args(["btf", "dump", "file"])
            .arg(file)
            .args(["format", format])
            .output();
        if let Ok(output) = run
            && output.status.success()
        {
            return String::from_utf8(output.stdout).ok();
        }
    }
    println!("skipped: bpftool does not run here");
    None
}

/// The kernel's selftests as objects: `BPFKIT_SELFTESTS`, or `target/kernel-selftests`
/// of the workspace.
pub fn selftests() -> Option<PathBuf> {
    let dir = std::env::var_os("BPFKIT_SELFTESTS").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/kernel-selftests"),
        PathBuf::from,
    );
    if dir.is_dir() {
        Some(dir)
    } else {
        println!("skipped: no kernel selftests at {}", dir.display());
        None
    }
}

/// Contents of each section of a 64-bit little-endian ELF file, by name.
pub struct Elf<'a> {
    bytes: &'a [u8],
    pub sections: Vec<(String, &'a [u8])>,
}

impl<'a> Elf<'a> {
    pub fn parse(bytes: &'a [u8]) -> Option<Self> {
        let u16_at = |at: usize| Some(u16::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
        let u32_at = |at: usize| Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
        let u64_at =
            |at: usize| Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?) as usize);
        let (table, count) = (u64_at(0x28)?, u16_at(0x3c)? as usize);
        let header = |i: usize| table + 64 * i;
        let contents = |i: usize| {
            let at = header(i);
            // SHT_NOBITS takes no bytes.
            let size = if u32_at(at + 4)? == 8 {
                0
            } else {
                u64_at(at + 32)?
            };
            bytes.get(u64_at(at + 24)?..)?.get(..size)
        };
        let names = contents(u16_at(0x3e)? as usize)?;
        let sections = (0..count)
            .map(|i| {
                let name = names.get(u32_at(header(i))? as usize..)?;
                let name = name.split(|&b| b == 0).next()?;
                Some((String::from_utf8_lossy(name).into_owned(), contents(i)?))
            })
            .collect::<Option<_>>()?;
        Some(Self { bytes, sections })
    }

    pub fn section(&self, name: &str) -> Option<&'a [u8]> {
        self.sections.iter().find(|s| s.0 == name).map(|s| s.1)
    }
}
