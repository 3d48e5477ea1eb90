//! What a program is judged by, and the judgement.

use std::fmt;

use bpfkit_btf::KernelBtf;
use bpfkit_object::Program;
use bpfkit_spec::KernelVersion;

use crate::explain::Crowd;
use crate::facts::Facts;
use crate::fail::Errno;
use crate::rewrite::{Rewritten, TooFar};

/// What veristat and libbpf give the kernel's log.
pub const DEFAULT_LOG_SIZE: usize = 16 << 20;

/// Tells whether the kernel has a symbol of a name (`/proc/kallsyms`).
#[derive(Clone, Copy)]
pub struct Symbols<'a>(pub &'a (dyn Fn(&str) -> bool + Sync));

impl fmt::Debug for Symbols<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Symbols(…)")
    }
}

/// What a program is loaded into.
#[derive(Clone, Debug)]
pub struct Environment<'a> {
    /// The kernel's BTF.
    pub kernel_btf: KernelBtf<'a>,
    /// Version to judge by.
    pub kernel_version: KernelVersion,
    /// Whether the loading process has `CAP_BPF`, `CAP_PERFMON` and `CAP_SYS_ADMIN`.
    pub privileged: bool,
    /// 0 for messages of a refusal only, 1 for the last path, 2 for all paths; plus 4 for
    /// statistics, plus 8 to keep the beginning of a log that is too large (`BPF_LOG_FIXED`)
    /// instead of its end.
    pub log_level: u32,
    /// Most bytes of the log, with the zero that ends it in the kernel.
    pub log_size: usize,
    /// Number of CPUs that may be.
    pub cpus: u32,
    /// The symbols of the kernel; without them any that its BTF has is taken to be there.
    pub symbols: Option<Symbols<'a>>,
    /// Helpers that the kernel was built without, or that are locked (names without `bpf_`).
    pub absent_helpers: &'a [&'a str],
    /// `BPF_F_STRICT_ALIGNMENT`.
    pub strict_alignment: bool,
    /// `BPF_F_TEST_STATE_FREQ`: keep a state at every point where paths may join.
    pub test_state_freq: bool,
    /// `BPF_F_TEST_REG_INVARIANTS`: refuse the program where bounds contradict each other.
    pub test_reg_invariants: bool,
    /// Let every number count as one that matters for safety, as for a process without
    /// privileges: states are pruned less, and [`Facts`] know the numbers that the verifier saw.
    pub exact_numbers: bool,
    /// Stop tracing a number back where an earlier trace over the same steps passed that looked
    /// for the same. Only the time differs (docs/precision.md).
    pub precision_early_stop: bool,
    /// Gather values, branches, calls and live slots too ([`Facts`]).
    pub facts: bool,
    /// Rewrite accepted programs as Linux does before it compiles them ([`Rewritten`]).
    pub rewrite: bool,
    /// For extensions: the program that they extend, and the subprogram that they replace.
    pub target: Option<ExtensionTarget<'a>>,
}

/// What an extension program replaces.
#[derive(Clone, Copy, Debug)]
pub struct ExtensionTarget<'a> {
    /// Program that is extended.
    pub program: &'a Program,
    /// Index of the subprogram that is replaced.
    pub subprogram: usize,
}

impl<'a> Environment<'a> {
    /// Of a privileged process on Linux 6.18 with that BTF.
    pub fn new(kernel_btf: impl Into<KernelBtf<'a>>) -> Environment<'a> {
        Environment {
            kernel_btf: kernel_btf.into(),
            kernel_version: KernelVersion::TARGET,
            privileged: true,
            log_level: 0,
            log_size: DEFAULT_LOG_SIZE,
            cpus: 8192,
            symbols: None,
            absent_helpers: &[],
            strict_alignment: false,
            test_state_freq: false,
            test_reg_invariants: false,
            exact_numbers: false,
            precision_early_stop: true,
            facts: false,
            rewrite: false,
            target: None,
        }
    }
}

/// The judgement on a program.
#[derive(Debug)]
pub struct Verdict {
    /// The program with what was learned about it, or why it is refused.
    pub result: Result<Verified, Rejection>,
    /// What it took.
    pub stats: Stats,
    /// Text of the verification, as far as asked for.
    pub log: String,
}

/// A program that may run: only [`verify`](crate::verify) makes one.
#[derive(Clone, Debug)]
pub struct Verified {
    program: Program,
    facts: Facts,
    rewritten: Option<Result<Box<Rewritten>, TooFar>>,
}

impl Verified {
    pub(crate) const fn new(
        program: Program,
        facts: Facts,
        rewritten: Option<Result<Box<Rewritten>, TooFar>>,
    ) -> Verified {
        Verified {
            program,
            facts,
            rewritten,
        }
    }

    /// What Linux makes of it, if [`Environment::rewrite`] asked for that; the error is a jump
    /// that became too long.
    pub fn rewritten(&self) -> Option<Result<&Rewritten, TooFar>> {
        match self.rewritten.as_ref()? {
            Ok(rewritten) => Some(Ok(rewritten)),
            Err(error) => Some(Err(*error)),
        }
    }

    /// The program.
    pub const fn program(&self) -> &Program {
        &self.program
    }

    /// What is known about it.
    pub const fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Both.
    pub fn into_parts(self) -> (Program, Facts) {
        (self.program, self.facts)
    }
}

/// Why a program is refused.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{message}")]
pub struct Rejection {
    /// Last line of the log.
    pub message: String,
    /// Instruction at which verification stopped.
    pub insn: u32,
    /// Error number.
    pub errno: Errno,
    /// Where states piled up; empty unless the program was too complex.
    pub crowd: Crowd,
}

/// What verification took.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// Instructions walked, over all paths.
    pub processed: u32,
    /// States kept.
    pub total_states: u32,
    /// Most states kept at a time.
    pub peak_states: u32,
    /// Most states looked at for one instruction.
    pub max_states_per_insn: u32,
    /// Bytes of stack of each subprogram.
    pub stack_depth: Vec<u32>,
}
