//! Watching a program run, instruction by instruction.

use bpfkit_object::Program;

use crate::vm::FRAME_BYTES;

/// Sees each instruction before it is executed.
///
/// Put one into [`Vm::observer`](crate::Vm::observer) and run a program of
/// [`Interpreter::looping`](crate::Interpreter::looping); engines that do not go step by step
/// do not ask it.
pub trait Observer {
    /// An instruction is about to be executed.
    fn before(&mut self, step: &Step<'_>);
}

/// Where a run stands.
#[derive(Clone, Copy, Debug)]
pub struct Step<'a> {
    /// The program (after a tail call, another).
    pub program: &'a Program,
    /// Slot of the instruction.
    pub insn: u32,
    /// Calls of subprograms and callbacks that are under way.
    pub depth: usize,
    /// R0 to R10. What the program has not written reads as 0 in checked mode.
    pub registers: &'a [u64; 11],
    /// The current function's stack frame; its end is where R10 points to.
    pub frame: &'a [u8; FRAME_BYTES],
}
