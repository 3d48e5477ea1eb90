//! Programs over a packet: a run needs a register window and a little stack, no [`Vm`].
//!
//! [`Vm`]: crate::Vm

use std::mem::MaybeUninit;

use super::inst::{Cpu, Inst};
use super::prepare::{self, Mode};
use crate::engine::{LoadError, LoadOptions};
use crate::env::Env;
use crate::mapset::MapSet;
use crate::packet::{self, Ancillary, PacketCode, PacketProgram, STACK_BYTES, Stack};
use crate::vm::Window;

/// A program over a packet, ready to be interpreted.
pub(super) struct Loaded {
    code: Box<[Inst]>,
    threaded: bool,
}

// SAFETY: the code is not changed once made, and refers to nothing outside.
unsafe impl Send for Loaded {}
// SAFETY: as above.
unsafe impl Sync for Loaded {}

impl Loaded {
    pub(super) fn new(program: &PacketProgram, threaded: bool) -> Result<Loaded, LoadError> {
        let mode = Mode {
            checked: false,
            threaded,
        };
        let (maps, options) = (MapSet::empty(), LoadOptions::default());
        let prepared = prepare::prepare(program.program(), &maps, &options, mode)?;
        Ok(Loaded {
            code: prepared.code,
            threaded,
        })
    }
}

impl PacketCode for Loaded {
    fn run(&self, packet: &[u8], wire_len: u32, ancillary: &Ancillary) -> u32 {
        let mut stack = Stack::default();
        let mut window = Window::for_packet();
        let args = packet::arguments(packet, wire_len, ancillary);
        let mut env = MaybeUninit::<Env<'static>>::uninit();
        let pc = self.code.as_ptr();
        let regs: *mut u64 = (&raw mut window).cast();
        // SAFETY: `PacketProgram` proves that the program reads the packet, the ancillary
        // words and its stack only, writes its stack only, and ends by an `exit`, which
        // finds no caller in the window. It calls nothing, so that of `env` only what
        // `stopped` writes is touched, and of the spans nothing.
        unsafe {
            Window::set_args(&raw mut window, &args);
            let top = stack.as_mut_ptr().expose_provenance() + STACK_BYTES;
            regs.add(10).write(top as u64);
            if self.threaded {
                ((*pc).run.threaded)(pc, regs, i64::MAX, env.as_mut_ptr(), std::ptr::null());
            } else {
                let mut cpu = Cpu::new(pc, regs, i64::MAX, env.as_mut_ptr(), std::ptr::null());
                while ((*cpu.pc).run.step)(&mut cpu) {}
            }
            regs.read() as u32
        }
    }
}
