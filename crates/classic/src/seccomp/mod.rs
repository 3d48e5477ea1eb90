//! Filters over system calls: what they read, what their result means, profiles that
//! they are compiled from, and what in them can never happen.

mod dead;
mod outcomes;
mod profile;
mod syscalls;

use std::fmt;

pub use dead::{Dead, find_dead};
pub use outcomes::outcomes;
pub use profile::{ArchEntry, Arg, Compiled, Container, Origin, Profile, ProfileError, Rule};
pub use syscalls::{Arch, SYSCALLS, Syscall};

/// A system call as a filter sees it (`struct seccomp_data`, 64 bytes).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct SeccompData {
    /// Number of the system call.
    pub nr: u32,
    /// Architecture, `AUDIT_ARCH_*`.
    pub arch: u32,
    /// Address of the instruction that made the call.
    pub instruction_pointer: u64,
    /// Arguments.
    pub args: [u64; 6],
}

impl SeccompData {
    /// The structure as a little-endian machine has it in memory.
    pub fn to_le_bytes(&self) -> [u8; 64] {
        let mut bytes = [0; 64];
        bytes[0..4].copy_from_slice(&self.nr.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.arch.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.instruction_pointer.to_le_bytes());
        for (slot, arg) in bytes[16..].as_chunks_mut::<8>().0.iter_mut().zip(self.args) {
            *slot = arg.to_le_bytes();
        }
        bytes
    }

    /// The aligned word at `offset`, as a load reads it.
    pub(crate) fn word(&self, offset: u32) -> Option<u32> {
        let bytes = self.to_le_bytes();
        let at = offset as usize;
        let word = bytes.get(at..at.checked_add(4)?)?;
        Some(u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
    }
}

/// A row of the table of actions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Action {
    /// Upper half of the filter's result.
    pub value: u32,
    /// Name without `SECCOMP_RET_`.
    pub name: &'static str,
    /// What happens to the system call.
    pub meaning: &'static str,
    /// What the lower half of the result says, if anything.
    pub data: Option<&'static str>,
}

const fn action(
    value: u32,
    name: &'static str,
    meaning: &'static str,
    data: Option<&'static str>,
) -> Action {
    Action {
        value,
        name,
        meaning,
        data,
    }
}

/// Every action, the strictest first: of several filters the strictest result counts.
#[rustfmt::skip]
pub static ACTIONS: &[Action] = &[
    action(0x8000_0000, "KILL_PROCESS", "kills the process", None),
    action(0x0000_0000, "KILL_THREAD", "kills the thread", None),
    action(0x0003_0000, "TRAP", "sends SIGSYS", Some("si_errno")),
    action(0x0005_0000, "ERRNO", "fails with an error", Some("errno")),
    action(0x7fc0_0000, "USER_NOTIF", "asks a supervisor", None),
    action(0x7ff0_0000, "TRACE", "asks a tracer", Some("message")),
    action(0x7ffc_0000, "LOG", "is logged and runs", None),
    action(0x7fff_0000, "ALLOW", "runs", None),
];

/// Largest error number that `ERRNO` passes on.
const MAX_ERRNO: u32 = 4095;

/// A filter's result taken apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Verdict {
    /// What happens; an unknown action kills the process.
    pub action: &'static Action,
    /// The lower half, cut as the kernel cuts it.
    pub data: u32,
}

impl Verdict {
    /// Takes a filter's result apart.
    pub fn new(result: u32) -> Verdict {
        let action = ACTIONS
            .iter()
            .find(|a| a.value == result & 0xffff_0000)
            .unwrap_or(&ACTIONS[0]);
        let data = result & 0xffff;
        let data = if action.data == Some("errno") {
            data.min(MAX_ERRNO)
        } else {
            data
        };
        Verdict { action, data }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.action.name)?;
        if self.action.data.is_some() {
            write!(f, "({})", self.data)?;
        }
        Ok(())
    }
}
