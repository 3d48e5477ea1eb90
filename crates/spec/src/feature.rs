//! Things a kernel can do that are no program type, map type, helper or kfunc.

use crate::KernelVersion;

macro_rules! features {
    ($($Variant:ident = $name:literal, ($major:literal, $minor:literal), $what:literal;)*) => {
        /// A feature of the instruction set, the verifier or the loader.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum Feature {
            $(#[doc = concat!($what, "; Linux ", $major, ".", $minor, ".")]
            $Variant,)*
        }

        impl Feature {
            /// Every feature, by the release that brought it.
            pub const ALL: &'static [Feature] = &[$(Feature::$Variant,)*];

            /// Name for lists and switches.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Feature::$Variant => $name,)*
                }
            }

            /// What it is, in a few words.
            pub const fn what(self) -> &'static str {
                match self {
                    $(Feature::$Variant => $what,)*
                }
            }

            /// The release that brought it.
            pub const fn since(self) -> KernelVersion {
                match self {
                    $(Feature::$Variant => KernelVersion($major, $minor),)*
                }
            }
        }
    };
}

features! {
    IsaV1 = "isa_v1", (3, 18), "Instruction set v1";
    TailCalls = "tail_calls", (4, 2), "Tail calls";
    DirectPacketAccess = "direct_packet_access", (4, 7), "Packet access through pointers";
    IsaV2 = "isa_v2", (4, 14), "Instruction set v2: jumps on less-than";
    BpfToBpfCalls = "bpf_to_bpf_calls", (4, 16), "Calls between functions of a program";
    Btf = "btf", (4, 18), "BTF of programs and maps";
    IsaV3 = "isa_v3", (5, 1), "Instruction set v3: 32-bit jumps";
    GlobalData = "global_data", (5, 2), "Global variables";
    ReadOnlyMaps = "read_only_maps", (5, 2), "Maps that programs only read or only write, and freezing";
    MillionInsns = "million_insns", (5, 2), "A million instructions to verify, as many in a program";
    BoundedLoops = "bounded_loops", (5, 3), "Loops that end";
    MmapableArrays = "mmapable_arrays", (5, 5), "Arrays mapped into memory";
    TypedArguments = "typed_arguments", (5, 5), "Programs with arguments typed by the kernel's BTF";
    GlobalFunctions = "global_functions", (5, 6), "Functions verified apart from their callers";
    Links = "links", (5, 7), "Attaching through links";
    Iterators = "iterators", (5, 8), "Programs that iterate over kernel objects";
    Capabilities = "cap_bpf", (5, 8), "CAP_BPF and CAP_PERFMON";
    SleepablePrograms = "sleepable", (5, 10), "Programs that may sleep";
    TailCallsWithCalls = "tail_calls_with_calls", (5, 10), "Tail calls in programs with functions";
    TypedKsyms = "typed_ksyms", (5, 10), "Kernel variables by BTF";
    Atomics = "atomics", (5, 12), "Atomic operations that fetch, and, or, xor, exchange";
    VariableStackAccess = "variable_stack_access", (5, 12), "Stack access at variable offsets";
    Kfuncs = "kfuncs", (5, 13), "Calls of kernel functions";
    Callbacks = "callbacks", (5, 13), "Function pointers passed to helpers";
    LoaderPrograms = "loader_programs", (5, 14), "Programs that load programs";
    XdpFragments = "xdp_fragments", (5, 18), "XDP programs that take fragments";
    Kptrs = "kptrs", (5, 19), "Kernel pointers in maps";
    Dynptrs = "dynptrs", (5, 19), "Dynamic pointers";
    Enum64 = "btf_enum64", (6, 0), "64-bit enumerations in BTF";
    NullByComparison = "null_by_comparison", (6, 2), "A pointer equal to one that is not null is known not to be null";
    TrustedPointers = "trusted_pointers", (6, 2), "Pointers that kernel functions may rely on, and such that they may not";
    RcuSections = "rcu_sections", (6, 2), "RCU read-side sections in sleepable programs";
    AllocatedObjects = "allocated_objects", (6, 2), "Objects and lists made by programs";
    RedBlackTrees = "red_black_trees", (6, 3), "Red-black trees made by programs";
    KptrTags = "kptr_tags", (6, 4), "Kernel pointers in maps are referenced unless they say otherwise";
    OpenCodedIterators = "open_coded_iterators", (6, 4), "Iterators as loops";
    IsaV4 = "isa_v4", (6, 6), "Instruction set v4: signed division, sign extension, byte swap, long jumps";
    Exceptions = "exceptions", (6, 7), "bpf_throw";
    PercpuObjects = "percpu_objects", (6, 7), "Per-CPU objects made by programs";
    RangeComparisons = "range_comparisons", (6, 8), "Comparisons of two numbers decided by their ranges";
    ArgumentTags = "argument_tags", (6, 8), "Tags on arguments of global functions";
    Arenas = "arenas", (6, 9), "Arenas and address-space casts";
    MayGoto = "may_goto", (6, 9), "Loops that the kernel bounds";
    Tokens = "tokens", (6, 9), "Delegation by tokens";
    PreemptSections = "preempt_sections", (6, 10), "Sections without preemption";
    WorkQueues = "work_queues", (6, 10), "Work queues";
    LsmReturnRanges = "lsm_return_ranges", (6, 12), "What LSM programs return is checked";
    FastCalls = "fastcalls", (6, 12), "Calls that keep registers";
    PrivateStacks = "private_stacks", (6, 13), "Stacks of their own for programs that nest";
    UserPointers = "user_pointers", (6, 13), "Pointers to user memory in task storage";
    IrqSections = "irq_sections", (6, 14), "Sections without interrupts";
    ResilientLocks = "resilient_locks", (6, 15), "Spin locks that time out";
    LoadAcquireStoreRelease = "load_acquire", (6, 15), "Loads that acquire and stores that release";
    Streams = "streams", (6, 17), "Standard output and error of programs";
    TaskWork = "task_work", (6, 18), "Callbacks in the context of a task";
    SignedPrograms = "signed_programs", (6, 18), "Signatures of programs";
}

impl Feature {
    /// The feature of that name.
    pub fn from_name(name: &str) -> Option<Feature> {
        Feature::ALL
            .iter()
            .copied()
            .find(|feature| feature.name() == name)
    }
}
