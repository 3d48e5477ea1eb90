//! A host function of one argument with programs at it, which safe code can call.

use std::sync::Arc;

use bpfkit_runtime::{Executable, Vm};

use super::{Attach, Link, Trampoline, TrampolineError};
use crate::code_memory::CodeMemory;

type Function = extern "C" fn(u64) -> u64;

/// A [`Trampoline`] for a function from a word to a word, any of which is a result that its
/// callers can use.
pub struct Hooked(Trampoline);

impl Hooked {
    /// As [`Trampoline::new`].
    ///
    /// # Errors
    /// See [`TrampolineError`].
    pub fn new(
        memory: &Arc<CodeMemory>,
        function: Function,
        cpus: u32,
        worker: Box<dyn Fn() -> Vm + Send + Sync>,
    ) -> Result<Self, TrampolineError> {
        // SAFETY: the type says arguments and result, any result is one for the callers, and
        // functions live for ever; `call` borrows the trampoline.
        unsafe { Trampoline::new(memory, function as *const (), 1, cpus, worker) }.map(Self)
    }

    /// As [`Trampoline::attach`].
    ///
    /// # Errors
    /// See [`TrampolineError`].
    pub fn attach(
        &self,
        attach: Attach,
        program: Arc<dyn Executable>,
        cookie: u64,
    ) -> Result<Link, TrampolineError> {
        self.0.attach(attach, program, cookie)
    }

    /// Calls the function, with what is attached to it.
    #[inline]
    pub fn call(&self, argument: u64) -> u64 {
        // SAFETY: the entry has the type of the function it was made for.
        let entry = unsafe { std::mem::transmute::<*const (), Function>(self.0.entry()) };
        entry(argument)
    }
}
