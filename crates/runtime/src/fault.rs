//! What stops a program before its `exit`.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use bpfkit_object::Program;

use crate::memory::RegionKind;

/// A program stopped at an instruction, and why.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fault {
    /// What went wrong.
    pub kind: FaultKind,
    /// Name of the program whose instruction it was (after tail calls, the last one).
    pub program: String,
    /// Instruction slot.
    pub insn: u32,
    /// Function the instruction belongs to, where the program lists its functions.
    pub function: Option<String>,
    /// Source position, where the object carries line information.
    pub location: Option<Location>,
}

/// A position in the program's source.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Location {
    /// File name as compiled.
    pub file: Arc<str>,
    /// 1-based line.
    pub line: u32,
    /// 1-based column, 0 if unknown.
    pub column: u32,
    /// Text of the line.
    pub text: Arc<str>,
}

/// Why a program stopped.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FaultKind {
    /// A memory access outside of everything the program may touch.
    #[error(
        "invalid {} of {size} byte{} at {address:#x}{}",
        if *write { "write" } else { "read" },
        if *size == 1 { "" } else { "s" },
        Near(near)
    )]
    Access {
        /// Whether it would have written.
        write: bool,
        /// First byte.
        address: u64,
        /// Bytes.
        size: u64,
        /// The closest region and the distance of the access from its start, if one is close.
        near: Option<(RegionKind, i64)>,
    },
    /// An atomic operation on an address that is not a multiple of its size.
    #[error("misaligned atomic access of {size} bytes at {address:#x}")]
    Misaligned {
        /// First byte.
        address: u64,
        /// Bytes.
        size: u64,
    },
    /// A program without checks on a context that its type does not have.
    #[error("a program of type {0} cannot run without checks on this context")]
    OtherContext(bpfkit_spec::ProgType),
    /// The step limit of the run.
    #[error("more than {limit} instructions executed")]
    StepLimit {
        /// The limit.
        limit: u64,
    },
    /// More than eight nested calls (the kernel's `MAX_CALL_FRAMES`).
    #[error("more than 8 nested function calls")]
    CallDepth,
    /// The instruction after the last one.
    #[error("execution ran past the last instruction")]
    PastEnd,
    /// An instruction whose CO-RE relocation or weak symbol has no target, or one that
    /// writes the frame pointer; verified programs have such only where they never come.
    #[error("reached an instruction that cannot run: {0}")]
    Poisoned(String),
    /// A helper or callback was given something that is no function of the program.
    #[error("{0:#x} is not a function of the program")]
    BadFunction(u64),
    /// A helper was given something that is no map.
    #[error("{0:#x} is not a map")]
    BadMap(u64),
    /// A tail call between a program that runs without checks and one that runs with them, or
    /// between two without checks that were verified as programs of different types.
    #[error(
        "tail call between programs that cannot share a run: one is checked, or their types differ"
    )]
    TailCallMode,
    /// A helper refuses its arguments where the verifier would have refused the program.
    #[error("{0}")]
    Helper(Cow<'static, str>),
}

struct Near<'a>(&'a Option<(RegionKind, i64)>);

impl fmt::Display for Near<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some((kind, offset)) => write!(f, " ({kind} {offset:+})"),
            None => Ok(()),
        }
    }
}

impl Fault {
    /// A fault at a slot of a program, with its function and source line looked up.
    pub fn new(kind: FaultKind, program: &Program, insn: u32) -> Self {
        let function = program
            .subprograms
            .iter()
            .rev()
            .find(|s| s.start <= insn)
            .map(|s| s.name.clone());
        let lines = &program.lines;
        let after = lines.partition_point(|l| l.insn <= insn);
        let location = after
            .checked_sub(1)
            .and_then(|i| lines.get(i))
            .map(|l| Location {
                file: Arc::clone(&l.file),
                line: l.line,
                column: l.column,
                text: Arc::clone(&l.text),
            });
        Self {
            kind,
            program: program.decl.name.clone(),
            insn,
            function,
            location,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at instruction {}", self.kind, self.insn)?;
        if let Some(function) = &self.function {
            write!(f, " of {function}")?;
        }
        if let Some(at) = &self.location {
            write!(f, " ({}:{}: {})", at.file, at.line, at.text.trim())?;
        }
        Ok(())
    }
}

impl std::error::Error for Fault {}

/// How a helper ends a program early. One pointer wide, so that a helper's result
/// travels in two registers.
#[derive(Debug)]
pub struct Trap(Box<TrapKind>);

/// What a [`Trap`] carries.
#[derive(Debug, PartialEq, Eq)]
pub enum TrapKind {
    /// The program is at fault.
    Fault(FaultKind),
    /// `bpf_throw`: unwind to the exception callback with this cookie.
    Throw(u64),
}

impl Trap {
    /// A trap for `bpf_throw(cookie)`.
    pub fn throw(cookie: u64) -> Self {
        Self(Box::new(TrapKind::Throw(cookie)))
    }

    /// A fault with a helper's own words, for arguments that no verified program passes.
    pub fn helper(text: impl Into<Cow<'static, str>>) -> Self {
        FaultKind::Helper(text.into()).into()
    }

    /// What it carries.
    pub fn into_kind(self) -> TrapKind {
        *self.0
    }
}

impl From<FaultKind> for Trap {
    #[cold]
    fn from(kind: FaultKind) -> Self {
        Self(Box::new(TrapKind::Fault(kind)))
    }
}
