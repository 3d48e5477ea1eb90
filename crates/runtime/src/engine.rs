//! What every engine shares: loading, running, and the outcome of a run.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use bpfkit_isa::{DecodeError, Size};
use bpfkit_maps::flags::BPF_F_RDONLY_PROG;
use bpfkit_object::{MapOrigin, Program};
use bpfkit_spec::ProgType;
use bpfkit_verifier::{Environment, Facts, Rejection};

use crate::env::{Env, Functions};
use crate::fault::{Fault, Trap};
use crate::mapset::MapSet;
use crate::memory::Memory;
use crate::packet::{PacketCode, PacketProgram};
use crate::vm::Vm;

/// Turns programs into something that runs.
pub trait Engine: Send + Sync {
    /// Name for people and options (`interp`, `jit`, `kernel`).
    fn name(&self) -> &'static str;

    /// Prepares a program. `maps` are those of its object, which `ld_imm64` instructions
    /// refer to by index.
    ///
    /// # Errors
    /// See [`LoadError`].
    fn load(
        &self,
        code: Code,
        maps: &Arc<MapSet>,
        options: &LoadOptions<'_>,
    ) -> Result<Arc<dyn Executable>, LoadError>;

    /// Prepares a program over a packet: a filter.
    ///
    /// # Errors
    /// See [`LoadError`]; where the engine cannot run such programs.
    fn load_packet(&self, program: &PacketProgram) -> Result<Arc<dyn PacketCode>, LoadError> {
        let _ = program;
        Err(LoadError {
            insn: 0,
            kind: LoadErrorKind::Unsupported("a program without a program type"),
        })
    }
}

/// A program, and whether it may run without checks.
#[derive(Clone, Debug)]
pub enum Code {
    /// Runs in checked mode.
    Unverified(Arc<Program>),
    /// Runs without checks.
    Trusted(Trusted),
}

impl Code {
    /// Verifies a program together with the maps that it will be loaded with, so that it may
    /// run without checks. Read-only variables are frozen as they are, since the verdict rests
    /// on their values.
    ///
    /// A program that is accepted on guarantees which only the kernel gives
    /// ([`Facts::needs_kernel_objects`](bpfkit_verifier::Facts::needs_kernel_objects)) stays
    /// [`Code::Unverified`] and runs with checks, and so does one that Linux is wrong about
    /// ([`Facts::is_unsound`](bpfkit_verifier::Facts::is_unsound)).
    ///
    /// # Errors
    /// What the verifier says.
    pub fn verify(
        program: &Program,
        maps: &MapSet,
        environment: &Environment<'_>,
    ) -> Result<Self, Rejection> {
        let mut defs = maps.defs().to_vec();
        for (def, map) in defs.iter_mut().zip(maps.iter()) {
            if let MapOrigin::Data { bytes, .. } = &mut def.origin
                && def.flags & BPF_F_RDONLY_PROG != 0
            {
                // It may have been frozen before.
                let _ = map.freeze();
                if let Ok(now) = map.read(&0u32.to_ne_bytes()) {
                    *bytes = now;
                }
            }
        }
        let verdict = bpfkit_verifier::verify(program, &defs, environment);
        let (program, facts) = verdict.result?.into_parts();
        let program = Arc::new(program);
        Ok(match facts.needs_kernel_objects() || facts.is_unsound() {
            true => Code::Unverified(program),
            false => Code::Trusted(Trusted {
                program,
                maps: Some(maps.id()),
                facts: Some(Arc::new(facts)),
            }),
        })
    }

    /// The program.
    pub fn program(&self) -> &Arc<Program> {
        match self {
            Code::Unverified(program) => program,
            Code::Trusted(trusted) => &trusted.program,
        }
    }

    /// What the verifier found out about the program, if it was asked.
    pub fn facts(&self) -> Option<&Arc<Facts>> {
        match self {
            Code::Unverified(_) => None,
            Code::Trusted(trusted) => trusted.facts.as_ref(),
        }
    }

    /// Whether the program may be loaded with these maps.
    ///
    /// # Errors
    /// For a program that was verified with others.
    pub fn check_maps(&self, maps: &MapSet) -> Result<(), LoadError> {
        match self {
            Code::Trusted(Trusted { maps: Some(id), .. }) if *id != maps.id() => Err(LoadError {
                insn: 0,
                kind: LoadErrorKind::OtherMaps,
            }),
            _ => Ok(()),
        }
    }
}

impl From<Arc<Program>> for Code {
    fn from(program: Arc<Program>) -> Self {
        Code::Unverified(program)
    }
}

impl From<Trusted> for Code {
    fn from(trusted: Trusted) -> Self {
        Code::Trusted(trusted)
    }
}

/// A program that may run without checks.
#[derive(Clone, Debug)]
pub struct Trusted {
    program: Arc<Program>,
    /// The set that it was verified with, and must be loaded with.
    maps: Option<u64>,
    facts: Option<Arc<Facts>>,
}

impl Trusted {
    /// Takes a program for verified.
    ///
    /// # Safety
    /// The kernel's rules hold for the program: on every path it touches only its stack, its
    /// context as its type allows, packet bytes it has compared with the packet's end, and
    /// live values of its maps; it passes helpers what they declare; and it ends. It is
    /// loaded with the maps and run with contexts of the type that this was established for.
    pub unsafe fn assume(program: Arc<Program>) -> Self {
        Self {
            program,
            maps: None,
            facts: None,
        }
    }
}

/// Addresses of kernel variables by name.
pub type Ksyms<'a> = &'a dyn Fn(&str) -> Option<u64>;

/// How to load.
#[derive(Clone, Copy)]
pub struct LoadOptions<'a> {
    /// Helpers and kfuncs that calls may name.
    pub functions: &'a Functions,
    /// Addresses of kernel variables (`.ksyms`) by name.
    pub ksym: Option<Ksyms<'a>>,
}

impl Default for LoadOptions<'_> {
    fn default() -> Self {
        Self {
            functions: crate::helpers::functions(),
            ksym: None,
        }
    }
}

/// Why a program cannot run.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("instruction {insn}: {kind}")]
pub struct LoadError {
    /// Instruction slot.
    pub insn: u32,
    /// What is wrong with it.
    pub kind: LoadErrorKind,
}

/// What is wrong with an instruction.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LoadErrorKind {
    /// Not an instruction.
    #[error("{0}")]
    Malformed(DecodeError),
    /// A jump or call to a place that holds no instruction.
    #[error("jump to {0}, which is no instruction of the program")]
    Target(i64),
    /// A program without instructions.
    #[error("the program is empty")]
    Empty,
    /// A program with more slots than positions can number.
    #[error("the program is too long")]
    TooLong,
    /// A helper that exists in the kernel only.
    #[error("helper {0} cannot exist in user space")]
    HelperUnavailable(String),
    /// A helper number that no kernel knows.
    #[error("invalid func unknown#{0}")]
    HelperUnknown(i32),
    /// A kernel function that does not exist here.
    #[error("kernel function {0} cannot exist in user space")]
    Kfunc(String),
    /// A kernel variable that does not exist here.
    #[error("kernel variable {0} cannot exist in user space")]
    Ksym(String),
    /// A map index outside of the object's list.
    #[error("map {0} is not in the object's list")]
    Map(i64),
    /// The address of a value of a map that has no direct values, or an offset outside of it.
    #[error("map {0} has no value at offset {1}")]
    MapValue(i64, u32),
    /// A verified program with maps that it was not verified with.
    #[error("the program was verified with other maps")]
    OtherMaps,
    /// What an engine outside of this process answers.
    #[error("{0}")]
    Engine(String),
    /// An instruction that only makes sense inside a kernel (`callx`, a map by file descriptor).
    #[error("{0} cannot run here")]
    Unsupported(&'static str),
}

/// A program ready to run.
pub trait Executable: Send + Sync {
    /// The program.
    fn program(&self) -> &Arc<Program>;

    /// The maps it was loaded with.
    fn maps(&self) -> &Arc<MapSet>;

    /// Runs it once, from its first instruction to `exit` or a fault. What it did shows in
    /// the outcome, in the context and in the maps.
    fn run(&self, vm: &mut Vm, context: &mut dyn Context) -> Outcome;

    /// The same as something that runs in this process: what tail calls, timers and
    /// `struct_ops` callers need. `None` for an engine elsewhere (the kernel).
    fn local(self: Arc<Self>) -> Option<Arc<dyn Local>> {
        None
    }
}

/// A program of an engine that runs in this process, seen from other running programs.
pub trait Local: Executable {
    /// Itself, to be kept; `None` while it is being dropped.
    fn shared(&self) -> Option<Arc<dyn Local>>;

    /// Whether it runs without checks.
    fn trusted(&self) -> bool;

    /// Runs the program inside a run that is under way, in the current frame: the second
    /// half of a tail call from another engine.
    ///
    /// # Errors
    /// The trap that ended it.
    fn enter(&self, env: &mut Env<'_>, args: [u64; 5]) -> Result<u64, Trap>;

    /// Calls one of its functions inside a run that is under way, in a new frame: callbacks.
    /// `function` is what `ld_imm64` of a subprogram loads.
    ///
    /// # Errors
    /// The trap that ended it; [`FaultKind::BadFunction`](crate::FaultKind::BadFunction) where
    /// `function` is not a function of the program.
    fn invoke(&self, env: &mut Env<'_>, function: u64, args: [u64; 5]) -> Result<u64, Trap>;

    /// Calls one of its functions, as [`invoke`](Self::invoke) does, with the number of the
    /// turn and `context`, until it answers other than 0 or `turns` are through: `bpf_loop`.
    /// Gives the number of turns.
    ///
    /// # Errors
    /// As `invoke`.
    fn repeat(
        &self,
        env: &mut Env<'_>,
        function: u64,
        turns: u32,
        context: u64,
    ) -> Result<u64, Trap> {
        for turn in 0..turns {
            let turn = u64::from(turn);
            if self.invoke(env, function, [turn, context, 0, 0, 0])? != 0 {
                return Ok(turn + 1);
            }
        }
        Ok(turns.into())
    }

    /// What `ld_imm64` loads for the subprogram that starts at that slot.
    fn function_at(&self, insn: u32) -> Option<u64>;

    /// Runs one of its functions on its own: timer and work queue callbacks after the
    /// program has ended.
    fn run_function(
        &self,
        vm: &mut Vm,
        context: &mut dyn Context,
        function: u64,
        args: [u64; 5],
    ) -> Outcome;

    /// The address that verified programs of the same type and engine may jump to with
    /// [`State`](crate::native::State)'s arguments; 0 for none.
    fn direct(&self) -> u64 {
        0
    }

    /// The slot that a position saved by the engine belongs to.
    fn slot_of(&self, position: usize) -> u32;

    /// For engines to recognize their own.
    fn as_any(&self) -> &dyn Any;
}

/// What a program array slot holds.
pub struct ProgramSlot(pub Arc<dyn Local>);

/// What a program is run on.
///
/// # Safety
/// Programs that were verified run on it without checks. For each program type that
/// [`suits`](Context::suits), [`args`](Context::args) gives the address of memory that has all
/// that the verifier lets programs of that type read and write of their context, pointers in it
/// included. What [`grant`](Context::grant) names is memory of those extents. All of it stays in
/// place as long as the context is borrowed.
pub unsafe trait Context {
    /// R1–R5 at entry; R1 is the context's address.
    fn args(&self) -> [u64; 5];

    /// Grants what the program may touch (checked mode only): the context structure and
    /// the packet.
    fn grant(&self, memory: &mut Memory);

    /// Whether it is what programs of this type are verified for: no other program runs on
    /// it without checks.
    fn suits(&self, prog_type: ProgType) -> bool;

    /// Legacy packet load (`LD_ABS`, `LD_IND`): the big-endian value of that size at an
    /// offset, which may be one of the negative ones of `SKF_AD_OFF`, `SKF_NET_OFF` and
    /// `SKF_LL_OFF`. `None` ends the program with 0.
    fn load_packet(&self, offset: i32, size: Size) -> Option<u32> {
        let _ = (offset, size);
        None
    }

    /// The concrete context, for the helpers that belong to it.
    fn as_any_mut(&mut self) -> &mut dyn Any;
}

/// What came of a run.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Outcome {
    /// R0 at exit; most program types use the low 32 bits. 0 after a fault.
    pub ret: u64,
    /// Why it stopped early, if it did.
    pub fault: Option<Box<Fault>>,
    /// Instructions executed (helpers count as one), 0 where the engine does not count.
    pub steps: u64,
    /// Time taken, where the engine measures.
    pub duration: Option<Duration>,
    /// Where `bpf_redirect` and its kin send the packet, if they were called.
    pub redirect: Option<Redirect>,
}

/// A recorded redirection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Redirect {
    /// `bpf_redirect`, `bpf_redirect_peer`, `bpf_clone_redirect`.
    Interface {
        /// Index of the device.
        ifindex: u32,
        /// `BPF_F_INGRESS` and the like.
        flags: u64,
        /// Through the peer of a virtual device.
        peer: bool,
    },
    /// `bpf_redirect_neigh`.
    Neighbour {
        /// Index of the device.
        ifindex: u32,
        /// Flags.
        flags: u64,
    },
    /// `bpf_redirect_map` and the socket map redirections.
    Map {
        /// Index of the map in the object's list.
        map: u32,
        /// Key, the low 64 bits.
        key: u64,
        /// Flags.
        flags: u64,
    },
}
