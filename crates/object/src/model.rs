//! What an object file holds, as the later stages see it.

use std::ops::Range;
use std::sync::Arc;

use bpfkit_btf::Btf;
use bpfkit_isa::Insn;
use bpfkit_spec::{AttachType, MapType, ProgType};

use crate::error::ObjectError;

/// A program as its section declares it, before linking.
#[derive(Clone, Debug)]
pub struct ProgramDecl {
    /// Function name, unique in the object.
    pub name: String,
    /// ELF section, for instance `tc` or `kprobe/do_unlinkat`.
    pub section: String,
    /// Program type by the section name; `Unspec` where libbpf knows no such section.
    pub prog_type: ProgType,
    /// Expected attach type; number 0 also where the section name asks for none.
    pub attach_type: AttachType,
    /// What the section name says the program attaches to (`do_unlinkat`), if anything:
    /// all that follows the first `/`.
    pub attach_target: Option<String>,
    /// `BPF_F_SLEEPABLE`, `BPF_F_XDP_HAS_FRAGS` and the like, as `prog_flags` of `BPF_PROG_LOAD`.
    pub flags: u32,
    /// Whether libbpf would load it by default (`?` before the section name turns it off).
    pub autoload: bool,
    /// Number of the program's own instruction slots, without subprograms.
    pub own_insns: u32,
}

/// A program ready for the verifier and the engines: one array of instructions,
/// subprograms appended, CO-RE applied, maps and functions resolved.
///
/// Map references are `ld_imm64` with [`PSEUDO_MAP_IDX`](bpfkit_isa::code::PSEUDO_MAP_IDX)
/// or `PSEUDO_MAP_IDX_VALUE` and an index into the object's map list. Kfunc calls
/// carry the BTF id in the target kernel's BTF, or 0 where there is no target;
/// their `off` is 0 for the kernel itself and else the index in
/// [`Target::modules`](crate::Target::modules) plus 1, as is the upper half of an
/// `ld_imm64` with `PSEUDO_BTF_ID`. Names are in [`Program::refs`].
#[derive(Clone, Debug)]
pub struct Program {
    /// As declared.
    pub decl: ProgramDecl,
    /// The linked instructions; `bpf_exit` or a jump ends each subprogram.
    pub insns: Vec<Insn>,
    /// Subprograms in order of `start`; the first is the program itself.
    pub subprograms: Vec<Subprogram>,
    /// Source lines, in order of `insn`; each holds until the next.
    pub lines: Vec<LineInfo>,
    /// Symbols that instructions refer to, in order of `insn`.
    pub refs: Vec<InsnRef>,
    /// Index in [`Program::subprograms`] of the function that the declaration tag
    /// `exception_callback:` names.
    pub exception_callback: Option<u32>,
    /// What the program attaches to in the target's BTF, for the types that attach so.
    /// `None` without a target BTF, and for `freplace`. The error is libbpf's: the kernel
    /// cannot load the program then, though it can run elsewhere.
    pub attach: Result<Option<BtfAttach>, ObjectError>,
    /// The object's BTF, which type ids above belong to.
    pub btf: Option<Arc<Btf>>,
    /// `license` section; GPL-only helpers and kfuncs ask it.
    pub license: String,
    /// `version` section, `LINUX_VERSION_CODE` style, 0 if absent.
    pub kernel_version: u32,
}

/// A program of bare instructions, of no particular type.
pub fn raw_program(name: &str, insns: Vec<Insn>) -> Program {
    let own_insns = u32::try_from(insns.len()).unwrap_or(u32::MAX);
    Program {
        decl: ProgramDecl {
            name: name.to_owned(),
            section: String::new(),
            prog_type: ProgType::Unspec,
            attach_type: AttachType::CgroupInetIngress,
            attach_target: None,
            flags: 0,
            autoload: true,
            own_insns,
        },
        insns,
        subprograms: vec![Subprogram {
            name: name.to_owned(),
            start: 0,
            type_id: 0,
            global: true,
        }],
        lines: Vec::new(),
        refs: Vec::new(),
        exception_callback: None,
        attach: Ok(None),
        btf: None,
        license: "GPL".to_owned(),
        kernel_version: 0,
    }
}

/// `attach_btf_id` and its companions of `BPF_PROG_LOAD`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BtfAttach {
    /// Type id in the BTF below: the function, the `btf_trace_` typedef, or for
    /// struct_ops the kernel structure.
    pub type_id: u32,
    /// Index in [`Target::modules`](crate::Target::modules); `None` is the kernel's own BTF.
    pub module: Option<u32>,
    /// For struct_ops programs, the index of the member in the kernel structure, which
    /// stands in the place of the attach type.
    pub member: Option<u32>,
}

/// One function of a linked program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Subprogram {
    /// Name.
    pub name: String,
    /// First instruction slot.
    pub start: u32,
    /// Type id of the `FUNC` in the object's BTF, 0 if unknown.
    pub type_id: u32,
    /// Verified apart from its callers: the `FUNC` is global. Without function records in
    /// `.BTF.ext`, none is.
    pub global: bool,
}

/// Source position of an instruction and those that follow it.
#[derive(Clone, Debug)]
pub struct LineInfo {
    /// First instruction slot.
    pub insn: u32,
    /// File name as compiled.
    pub file: Arc<str>,
    /// Text of the source line (clang stores it), without the newline.
    pub text: Arc<str>,
    /// 1-based line.
    pub line: u32,
    /// 1-based column, 0 if unknown.
    pub column: u32,
    /// Where the BTF that [`Program::btf`] names keeps `file` and `text` among its strings;
    /// zeros if it does not.
    pub offsets: [u32; 2],
}

/// Something with a name that an instruction refers to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InsnRef {
    /// Instruction slot (first of two for `ld_imm64`).
    pub insn: u32,
    /// What it refers to.
    pub target: RefTarget,
}

/// Target of an [`InsnRef`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RefTarget {
    /// The map with that index in the object's list.
    Map(u32),
    /// A kernel function: called, or its address taken.
    Kfunc {
        /// Name without flavour suffix.
        name: String,
        /// The `FUNC` in the object's BTF.
        type_id: u32,
        /// May be missing: its address is then 0 and a call poisoned.
        weak: bool,
    },
    /// A kernel variable by name (`.ksyms`), typed or not.
    Ksym {
        /// Name.
        name: String,
        /// Type in the object's BTF, 0 for a typeless symbol.
        type_id: u32,
        /// May be missing: its address is then 0.
        weak: bool,
    },
    /// A subprogram of this program, by index (call or function pointer).
    Subprogram(u32),
    /// A CO-RE relocation that has not been applied, as there was no target BTF: the
    /// instruction holds what the object's own types say, and is not final. The fields are
    /// those of `struct bpf_core_relo`.
    Core {
        /// Root type in the object's BTF.
        type_id: u32,
        /// Accessor string, as offset in the string section of the object's BTF.
        access_str_off: u32,
        /// `enum bpf_core_relo_kind`.
        kind: u32,
    },
    /// An instruction turned into an impossible call because its CO-RE relocation, weak
    /// function or map has no target; reaching it is an error.
    Poison {
        /// Why.
        reason: PoisonReason,
        /// What libbpf writes into the verifier's log in place of the kernel's
        /// complaint, for instance `kfunc 'x' is referenced but wasn't resolved`.
        message: String,
    },
}

/// Why an instruction is poisoned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PoisonReason {
    /// No match for a CO-RE relocation.
    CoreRelocation,
    /// The map is not created by default.
    Map,
    /// No such kernel function.
    Kfunc,
}

impl PoisonReason {
    /// What libbpf shows in place of the instruction in the verifier's log.
    pub const fn listing(self) -> &'static str {
        match self {
            PoisonReason::CoreRelocation => "<invalid CO-RE relocation>",
            PoisonReason::Map => "<invalid BPF map reference>",
            PoisonReason::Kfunc => "<invalid kfunc call>",
        }
    }
}

/// A map as declared.
#[derive(Clone, Debug)]
pub struct MapDef {
    /// Name as in the source (`.rodata` and its kind: libbpf's name, `prefix.rodata`). The
    /// kernel takes 15 bytes of it.
    pub name: String,
    /// Map type.
    pub map_type: MapType,
    /// Key size in bytes.
    pub key_size: u32,
    /// Value size in bytes.
    pub value_size: u32,
    /// Entries, ring buffer bytes, or arena pages; 0 where the loader is to choose.
    pub max_entries: u32,
    /// `BPF_F_*` map creation flags.
    pub flags: u32,
    /// `map_extra` (bloom hash functions, arena address).
    pub extra: u64,
    /// NUMA node, if the flags ask for one.
    pub numa_node: u32,
    /// Pinning by name (`LIBBPF_PIN_BY_NAME`).
    pub pin_by_name: bool,
    /// Whether libbpf creates it by default (`?` before `.struct_ops` turns it off).
    pub autocreate: bool,
    /// Key type in the object's BTF, 0 if none.
    pub key_type_id: u32,
    /// Value type in the object's BTF, 0 if none.
    pub value_type_id: u32,
    /// Template of the inner map, for maps of maps.
    pub inner: Option<Box<MapDef>>,
    /// Declared slots of maps of maps and program arrays: index and what it holds.
    pub slots: Vec<(u32, SlotValue)>,
    /// Where the map comes from.
    pub origin: MapOrigin,
}

impl MapDef {
    /// A map without flags and types, as if defined in `.maps`.
    pub fn new(
        name: impl Into<String>,
        map_type: MapType,
        key_size: u32,
        value_size: u32,
        max_entries: u32,
    ) -> MapDef {
        MapDef {
            name: name.into(),
            map_type,
            key_size,
            value_size,
            max_entries,
            flags: 0,
            extra: 0,
            numa_node: 0,
            pin_by_name: false,
            autocreate: true,
            key_type_id: 0,
            value_type_id: 0,
            inner: None,
            slots: Vec::new(),
            origin: MapOrigin::Btf,
        }
    }
}

/// A declared slot of a map of maps or a program array.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SlotValue {
    /// The map with that index in the object's list.
    Map(u32),
    /// The program of that name.
    Program(String),
}

/// Where a map comes from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MapOrigin {
    /// `.maps`: defined through BTF.
    Btf,
    /// `maps`: the older `struct bpf_map_def`.
    Legacy,
    /// `.maps`, of type arena, with global variables.
    Arena {
        /// Initial contents of the arena's first pages.
        bytes: Vec<u8>,
    },
    /// Global variables of a data section: one value of these bytes.
    Data {
        /// Section name (`.rodata`, `.data.x`, `.bss`, `.kconfig`).
        section: String,
        /// Initial contents, `value_size` bytes.
        bytes: Vec<u8>,
    },
    /// `.struct_ops*`: one variable, its members and the programs behind its pointers.
    StructOps {
        /// Name of the structure in the object's BTF; the kernel's is that without a
        /// `___flavour`.
        kernel_type: String,
        /// Initial contents in the object's layout.
        bytes: Vec<u8>,
        /// Byte offset of each function pointer and the program it names.
        programs: Vec<(u32, String)>,
    },
}

/// A global variable of a data section.
#[derive(Clone, Debug)]
pub struct Global {
    /// Name.
    pub name: String,
    /// Index of its map in the object's list.
    pub map: u32,
    /// Byte range inside the map's value.
    pub range: Range<u32>,
    /// Type in the object's BTF, 0 if unknown.
    pub type_id: u32,
}
