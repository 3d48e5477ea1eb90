//! Programs over a packet, compiled: a C function of what R1–R4 hold, called as such.

use bpfkit_runtime::packet::{self, Ancillary, STACK_BYTES, Stack};
use bpfkit_runtime::{LoadError, LoadErrorKind, PacketCode};

use crate::code_memory::Code;
use crate::lower::Plan;

/// R1–R4 and the end of the stack, to R0.
type Entry = unsafe extern "C" fn(u64, u64, u64, u64, u64) -> u64;

/// A compiled program over a packet.
pub(crate) struct Filter {
    entry: Entry,
    uses_stack: bool,
    /// Where `entry` lies.
    _code: Code,
}

/// Has a plan made for a program over a packet.
///
/// # Errors
/// Where the program calls something.
pub(crate) fn as_function(mut plan: Plan<'_>) -> Result<Plan<'_>, LoadError> {
    if !plan.is_bare() {
        return Err(LoadError {
            insn: 0,
            kind: LoadErrorKind::Unsupported("a filter that calls something"),
        });
    }
    plan.packet = true;
    Ok(plan)
}

impl Filter {
    /// A program over a packet with its code.
    ///
    /// # Safety
    /// `code` is what a backend made of `plan`, which [`as_function`] gave for a
    /// [`PacketProgram`](bpfkit_runtime::PacketProgram).
    pub(crate) unsafe fn new(plan: &Plan<'_>, code: Code) -> Self {
        let start: *const () = std::ptr::with_exposed_provenance(code.start());
        // SAFETY: such code begins with an entry of this signature, and stays there.
        let entry = unsafe { std::mem::transmute::<*const (), Entry>(start) };
        Self {
            entry,
            uses_stack: plan.needs.frame,
            _code: code,
        }
    }

    #[inline(never)]
    fn run_with_stack(&self, packet: &[u8], wire_len: u32, ancillary: &Ancillary) -> u32 {
        let args = packet::arguments(packet, wire_len, ancillary);
        let mut stack = Stack::default();
        let top = stack.as_mut_ptr().expose_provenance() + STACK_BYTES;
        // SAFETY: the stack has the bytes that such a program may use, and lives through it.
        unsafe { self.call(args, top as u64) }
    }

    /// # Safety
    /// `args` are those for a packet that lives through the call. `stack` is the end of
    /// [`STACK_BYTES`], or the program uses none.
    #[inline(always)]
    unsafe fn call(&self, [packet, len, wire_len, ancillary]: [u64; 4], stack: u64) -> u32 {
        // SAFETY: `PacketProgram` proves that the program reads the packet, the ancillary
        // words and its stack only, writes its stack only, and ends; its code needs no state
        // of a run (`as_function`).
        let result = unsafe { (self.entry)(packet, len, wire_len, ancillary, stack) };
        result as u32
    }
}

impl PacketCode for Filter {
    fn run(&self, packet: &[u8], wire_len: u32, ancillary: &Ancillary) -> u32 {
        if self.uses_stack {
            return self.run_with_stack(packet, wire_len, ancillary);
        }
        let args = packet::arguments(packet, wire_len, ancillary);
        // SAFETY: the packet and the words are borrowed.
        unsafe { self.call(args, 0) }
    }
}
