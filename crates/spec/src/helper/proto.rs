//! Prototypes of helpers as the verifier sees them (`struct bpf_func_proto`).

use crate::TypeFlags;

/// Base type of a helper's argument (`enum bpf_arg_type` without its flags).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ArgKind {
    /// No such argument.
    DontCare,
    /// A map, known at verification time.
    ConstMapPtr,
    /// Initialized memory of the map's key size.
    PtrToMapKey,
    /// Memory of the map's value size.
    PtrToMapValue,
    /// Memory whose size is the next argument, or the prototype's with [`TypeFlags::MEM_FIXED_SIZE`].
    PtrToMem,
    /// Pointer into an arena.
    PtrToArena,
    /// Number of bytes at the argument before; not zero.
    ConstSize,
    /// Number of bytes at the argument before.
    ConstSizeOrZero,
    /// The context the program was called with.
    PtrToCtx,
    /// Any initialized value.
    Anything,
    /// `struct bpf_spin_lock` in a map value or an allocated object.
    PtrToSpinLock,
    /// `struct bpf_sock`, common part readable.
    PtrToSockCommon,
    /// Full `struct bpf_sock`.
    PtrToSocket,
    /// Kernel object of the type that [`Arg::btf`] names.
    PtrToBtfId,
    /// A record reserved in a ring buffer.
    PtrToRingbufMem,
    /// Constant number of bytes to reserve.
    ConstAllocSizeOrZero,
    /// A socket, of the context's kind or a kernel object.
    PtrToBtfIdSockCommon,
    /// Per-CPU kernel variable.
    PtrToPercpuBtfId,
    /// A subprogram.
    PtrToFunc,
    /// Pointer to the stack, passed on to a callback.
    PtrToStack,
    /// Null-terminated string in a read-only map.
    PtrToConstStr,
    /// `struct bpf_timer` in a map value.
    PtrToTimer,
    /// A kptr field in a map value or an allocated object.
    KptrXchgDest,
    /// A dynptr on the stack.
    PtrToDynptr,
}

/// One argument of a helper.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Arg {
    /// Base type.
    pub kind: ArgKind,
    /// Modifiers.
    pub flags: TypeFlags,
    /// Bytes that the pointer must reach, for [`TypeFlags::MEM_FIXED_SIZE`]; else 0.
    pub size: u32,
    /// Structure of the kernel that a [`ArgKind::PtrToBtfId`] must point to.
    pub btf: Option<&'static str>,
}

impl Arg {
    /// No argument.
    pub const NONE: Arg = Arg::new(ArgKind::DontCare);

    /// An argument of that base type without flags.
    pub const fn new(kind: ArgKind) -> Arg {
        Arg {
            kind,
            flags: TypeFlags::NONE,
            size: 0,
            btf: None,
        }
    }

    /// The same with more flags.
    pub const fn with(mut self, flags: TypeFlags) -> Arg {
        self.flags = self.flags.or(flags);
        self
    }

    /// Memory of a fixed size.
    pub const fn fixed(mut self, size: u32) -> Arg {
        self.size = size;
        self.with(TypeFlags::MEM_FIXED_SIZE)
    }

    /// Pointer to that kernel structure.
    pub const fn btf(name: &'static str) -> Arg {
        let mut arg = Arg::new(ArgKind::PtrToBtfId);
        arg.btf = Some(name);
        arg
    }

    /// Whether null is allowed.
    pub const fn may_be_null(self) -> bool {
        self.flags.has(TypeFlags::PTR_MAYBE_NULL)
    }
}

/// Base type of what a helper returns (`enum bpf_return_type` without its flags).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RetKind {
    /// A number.
    Integer,
    /// Nothing: the register is unreadable afterwards.
    Void,
    /// A value of the map argument.
    PtrToMapValue,
    /// `struct bpf_sock`.
    PtrToSocket,
    /// `struct bpf_tcp_sock`.
    PtrToTcpSock,
    /// `struct bpf_sock`, common part.
    PtrToSockCommon,
    /// Memory of the size of the [`ArgKind::ConstAllocSizeOrZero`] argument.
    PtrToMem,
    /// Memory, or a kernel object, by the type of the per-CPU variable.
    PtrToMemOrBtfId,
    /// Kernel object.
    PtrToBtfId,
}

/// What a helper returns.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Ret {
    /// Base type.
    pub kind: RetKind,
    /// Modifiers.
    pub flags: TypeFlags,
    /// Structure of the kernel behind a [`RetKind::PtrToBtfId`]; none where the
    /// argument decides (`bpf_kptr_xchg`).
    pub btf: Option<&'static str>,
}

impl Ret {
    /// A result of that base type without flags.
    pub const fn new(kind: RetKind) -> Ret {
        Ret {
            kind,
            flags: TypeFlags::NONE,
            btf: None,
        }
    }

    /// The same with more flags.
    pub const fn with(mut self, flags: TypeFlags) -> Ret {
        self.flags = self.flags.or(flags);
        self
    }

    /// The same, or null.
    pub const fn or_null(self) -> Ret {
        self.with(TypeFlags::PTR_MAYBE_NULL)
    }

    /// Pointer to that kernel structure.
    pub const fn btf(name: &'static str) -> Ret {
        let mut ret = Ret::new(RetKind::PtrToBtfId);
        ret.btf = Some(name);
        ret
    }
}

/// For which attach targets a helper with [`Proto::only_in`] is allowed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum TargetRule {
    /// `bpf_d_path`: functions of [`attach::D_PATH_FUNCTIONS`](crate::attach::D_PATH_FUNCTIONS),
    /// sleepable LSM hooks, and task_vma-like iterators.
    DPath,
    /// `bpf_sk_storage_get/delete` in tracing: not inside socket storage or socket freeing itself.
    SkStorageTracing,
    /// `bpf_ima_*_hash`: sleepable LSM hooks.
    SleepableLsmHook,
}

/// A prototype: `struct bpf_func_proto`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Proto {
    /// Arguments R1 to R5.
    pub args: [Arg; 5],
    /// Result.
    pub ret: Ret,
    /// Only for programs with a GPL-compatible licence.
    pub gpl_only: bool,
    /// Memory arguments may point into a packet.
    pub pkt_access: bool,
    /// Only for sleepable programs, outside of locks and RCU sections.
    pub might_sleep: bool,
    /// Clobbers only R0, by the `bpf_fastcall` convention, where the JIT inlines it.
    pub allow_fastcall: bool,
    /// Further rule on what the program is attached to.
    pub only_in: Option<TargetRule>,
}

impl Proto {
    /// A prototype with those arguments and that result, and no property set.
    pub const fn new(args: &[Arg], ret: Ret) -> Proto {
        let mut all = [Arg::NONE; 5];
        let mut i = 0;
        while i < args.len() {
            all[i] = args[i];
            i += 1;
        }
        Proto {
            args: all,
            ret,
            gpl_only: false,
            pkt_access: false,
            might_sleep: false,
            allow_fastcall: false,
            only_in: None,
        }
    }

    /// GPL only.
    pub const fn gpl(mut self) -> Proto {
        self.gpl_only = true;
        self
    }

    /// Takes packet pointers.
    pub const fn pkt(mut self) -> Proto {
        self.pkt_access = true;
        self
    }

    /// May sleep.
    pub const fn sleeps(mut self) -> Proto {
        self.might_sleep = true;
        self
    }

    /// Takes the fast calling convention.
    pub const fn fastcall(mut self) -> Proto {
        self.allow_fastcall = true;
        self
    }

    /// With a rule on the attach target.
    pub const fn only(mut self, rule: TargetRule) -> Proto {
        self.only_in = Some(rule);
        self
    }

    /// The arguments that there are.
    pub fn arity(&self) -> usize {
        self.args
            .iter()
            .position(|arg| arg.kind == ArgKind::DontCare)
            .unwrap_or(self.args.len())
    }
}
