//! Why a relocation cannot be applied.

use thiserror::Error;

use super::Errno;

/// A relocation that libbpf refuses to apply, which fails the whole object.
///
/// Prints what libbpf prints after the program's name; [`in_program`](Self::in_program)
/// gives the whole line.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum CoreError {
    /// The local type does not exist.
    #[error("failed to relocate: -22")]
    NoType,
    /// The accessor string does not fit the local type.
    #[error("parsing [{type_id}] {kind} {name} + {access} failed: {errno}")]
    Spec {
        /// Local type.
        type_id: u32,
        /// Its kind.
        kind: &'static str,
        /// Its name.
        name: String,
        /// The accessor string.
        access: String,
        /// libbpf's error number.
        errno: i32,
    },
    /// A type without a name has no candidates.
    #[error("target candidate search failed for [{type_id}] {kind} : -22")]
    Anonymous {
        /// Local type.
        type_id: u32,
        /// Its kind.
        kind: &'static str,
    },
    /// A candidate could not be compared.
    #[error("error matching candidate #{index} {spec}: {errno}")]
    Match {
        /// Index among the candidates.
        index: usize,
        /// How far the match came.
        spec: String,
        /// libbpf's error number.
        errno: i32,
    },
    /// Two candidates have the field at different places.
    #[error("field offset ambiguity: {0} != {1}")]
    OffsetAmbiguity(u32, u32),
    /// Two candidates give different results.
    #[error("relocation decision ambiguity: {} {} != {} {}", decision(*.0), .0.1, decision(*.1), .1.1)]
    DecisionAmbiguity((bool, u64), (bool, u64)),
    /// The kind cannot be applied to an array element.
    #[error("relo {kind} at insn #{insn} can't be applied to array access")]
    ArrayAccess {
        /// Number of the relocation kind.
        kind: u32,
        /// Instruction in its section.
        insn: u32,
    },
    /// No load of up to 64 bits covers the bit-field.
    #[error("relo {kind} at insn #{insn} can't be satisfied for bitfield")]
    Bitfield {
        /// Number of the relocation kind.
        kind: u32,
        /// Instruction in its section.
        insn: u32,
    },
    /// The size of a field or type is not known.
    #[error("failed to relocate: -22")]
    NoSize,
    /// Not an instruction that can carry a relocation.
    #[error(
        "trying to relocate unrecognized insn #{insn}, code:{code:#x}, src:{src:#x}, \
         dst:{dst:#x}, off:{off:#x}, imm:{imm:#x}"
    )]
    Insn {
        /// Instruction.
        insn: u32,
        /// Opcode.
        code: u8,
        /// Source register.
        src: u8,
        /// Destination register.
        dst: u8,
        /// Offset, as C prints it: an `int`.
        off: i32,
        /// Immediate.
        imm: i32,
    },
    /// The instruction does not hold what the compiler should have put there.
    #[error("unexpected insn #{insn} ({class}) value: got {got}, exp {expected} -> {new}")]
    Value {
        /// Instruction.
        insn: u32,
        /// Classes of instructions.
        class: &'static str,
        /// Value found.
        got: u64,
        /// Value by the local type.
        expected: u64,
        /// Value by the target type.
        new: u64,
    },
    /// A load or store reaches no further than 32767.
    #[error("insn #{insn} (LDX/ST/STX) value too big: {value}")]
    Offset {
        /// Instruction.
        insn: u32,
        /// Offset of the target field.
        value: u64,
    },
    /// The load or store does not have the field's size.
    #[error("insn #{insn} (LDX/ST/STX) unexpected mem size: got {got}, exp {expected}")]
    Size {
        /// Instruction.
        insn: u32,
        /// Bytes that it moves.
        got: u32,
        /// Bytes of the local field.
        expected: u32,
    },
    /// No load or store has the target field's size.
    #[error("insn #{insn} (LDX/ST/STX) invalid new mem size: {size}")]
    NewSize {
        /// Instruction.
        insn: u32,
        /// Bytes of the target field.
        size: u32,
    },
    /// An `ld_imm64` that is cut, or holds something else than a number.
    #[error("insn #{insn} (LDIMM64) has unexpected form")]
    Ldimm64 {
        /// Instruction.
        insn: u32,
    },
}

const fn decision((poison, _): (bool, u64)) -> &'static str {
    if poison { "failure" } else { "success" }
}

impl CoreError {
    /// libbpf's whole line, for record `relo` (from 0, of its section) of a program.
    pub fn in_program(&self, program: &str, relo: usize) -> String {
        match self {
            // These two give the kind where the others give the record.
            Self::ArrayAccess { .. } | Self::Bitfield { .. } => {
                format!("prog '{program}': {self}")
            }
            _ => format!("prog '{program}': relo #{relo}: {self}"),
        }
    }

    /// libbpf's (negative) error number, which `bpf_object__load` would return.
    pub const fn errno(&self) -> i32 {
        match self {
            Self::Match { errno, .. } => *errno,
            Self::Bitfield { .. } => Errno::E2BIG.0,
            Self::Offset { .. } => Errno::ERANGE.0,
            _ => Errno::EINVAL.0,
        }
    }
}
