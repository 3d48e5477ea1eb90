//! The context of tracing programs at a function of the host.

use std::any::Any;

use bpfkit_spec::ProgType;

use super::TracedCall;
use crate::engine::Context;
use crate::memory::{Memory, Region, RegionKind};

/// Most arguments that a traced function may have (`MAX_BPF_FUNC_ARGS`).
pub const MAX_ARGS: usize = 12;

/// A call of a function: its arguments in a row, its result behind them.
#[derive(Clone, Debug, Default)]
pub struct Traced {
    words: [u64; MAX_ARGS + 1],
    /// What helpers ask about the call. `args` is at most [`MAX_ARGS`].
    pub call: TracedCall,
    /// Whether a session program runs because the function returns
    /// (`bpf_session_is_return`).
    pub is_return: bool,
    /// What a session program keeps from entry to return (`bpf_session_cookie`).
    pub session_cookie: u64,
}

impl Traced {
    /// A call with these arguments, at most [`MAX_ARGS`] of them, of the function at `ip`.
    pub fn new(ip: u64, args: &[u64]) -> Self {
        let mut words = [0; MAX_ARGS + 1];
        let count = args.len().min(MAX_ARGS);
        words[..count].copy_from_slice(&args[..count]);
        let call = TracedCall {
            ip,
            args: count as u32,
            ..TracedCall::default()
        };
        Self {
            words,
            call,
            ..Self::default()
        }
    }

    /// Puts a result behind the arguments: the function has returned, or one may be given
    /// in its place.
    pub fn set_result(&mut self, value: u64) {
        self.call.returned = true;
        if let Some(word) = self.words.get_mut(self.call.args as usize) {
            *word = value;
        }
    }

    fn bytes(&self) -> u64 {
        8 * (u64::from(self.call.args) + u64::from(self.call.returned))
    }
}

// SAFETY: these types read words of eight bytes, one an argument, of which the kernel takes no
// more than there are words, and pointers to kernel objects only with checks. It grants words and
// the cookie, which are its own.
unsafe impl Context for Traced {
    fn args(&self) -> [u64; 5] {
        let at = self.words.as_ptr().expose_provenance() as u64;
        [at, 0, 0, 0, 0]
    }

    fn grant(&self, memory: &mut Memory) {
        memory.grant(Region {
            start: self.words.as_ptr().expose_provenance() as u64,
            len: self.bytes(),
            writable: false,
            kind: RegionKind::Context,
        });
        memory.grant(Region {
            start: (&raw const self.session_cookie).expose_provenance() as u64,
            len: 8,
            writable: true,
            kind: RegionKind::Other("session cookie"),
        });
    }

    fn suits(&self, prog_type: ProgType) -> bool {
        matches!(
            prog_type,
            ProgType::Tracing | ProgType::Lsm | ProgType::RawTracepoint
        )
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}
