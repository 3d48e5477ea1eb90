//! The kinds of program that the running kernel is asked about, and their instructions.

use bpfkit_btf::{Btf, Kind, Type};
use bpfkit_spec::{AttachType, Caller, ProgType};

use crate::bpf::{END, Request};

/// `BPF_F_SLEEPABLE`.
const SLEEPABLE: u32 = 1 << 4;

/// One kind of program.
#[derive(Clone)]
pub struct Program {
    pub prog_type: ProgType,
    pub attach_type: AttachType,
    pub sleepable: bool,
    /// Function or structure it attaches to, for programs judged by BTF.
    pub target: String,
    /// Member of the structure.
    pub member: String,
    btf_id: u32,
    /// Number given as expected attach type: for struct_ops, the member's index.
    attach_number: u32,
}

impl Program {
    fn new(prog_type: ProgType, attach_type: AttachType) -> Program {
        Program {
            prog_type,
            attach_type,
            sleepable: prog_type == ProgType::Syscall,
            target: String::new(),
            member: String::new(),
            btf_id: 0,
            attach_number: attach_type as u32,
        }
    }

    /// A tracing program for that function or tracepoint of the kernel's BTF.
    pub fn typed(attach_type: AttachType, target: Type<'_>) -> Program {
        Program {
            target: target.name().to_owned(),
            btf_id: target.id(),
            ..Program::new(ProgType::Tracing, attach_type)
        }
    }

    pub fn caller(&self) -> Caller<'_> {
        Caller {
            sleepable: self.sleepable,
            target: &self.target,
            member: &self.member,
            ..Caller::new(self.prog_type, self.attach_type)
        }
    }

    /// The program, with [`END`] behind it.
    pub fn ending(&self, insns: &[[u8; 8]]) -> Request {
        self.request(&[insns, &END].concat())
    }

    /// The program as it is.
    pub fn request(&self, insns: &[[u8; 8]]) -> Request {
        Request {
            prog_type: self.prog_type as u32,
            attach_type: self.attach_number,
            flags: if self.sleepable { SLEEPABLE } else { 0 },
            attach_btf_id: self.btf_id,
            gpl: true,
            insns: insns.to_vec(),
        }
    }
}

impl std::fmt::Display for Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.prog_type, self.attach_type)?;
        if !self.target.is_empty() {
            write!(f, " {}", self.target)?;
        }
        if !self.member.is_empty() {
            write!(f, ".{}", self.member)?;
        }
        f.write_str(if self.sleepable { " sleepable" } else { "" })
    }
}

/// Every kind of program whose type the kernel knows by number alone.
pub fn plain() -> Vec<Program> {
    let mut programs = Vec::new();
    for &prog_type in ProgType::ALL {
        if matches!(
            prog_type,
            ProgType::Unspec
                | ProgType::LircMode2
                | ProgType::Tracing
                | ProgType::StructOps
                | ProgType::Ext
                | ProgType::Lsm
        ) {
            continue;
        }
        if !prog_type.checks_attach_type() || prog_type.attach_types().is_empty() {
            programs.push(Program::new(prog_type, AttachType::CgroupInetIngress));
        }
        for &attach_type in prog_type.attach_types() {
            programs.push(Program::new(prog_type, attach_type));
        }
    }
    programs
}

/// Kinds of program judged by the kernel's BTF: tracepoints, iterators, struct_ops.
pub fn by_btf(btf: &Btf) -> Vec<Program> {
    let mut programs = Vec::new();
    for name in ["btf_trace_sys_enter", "btf_trace_task_newtask"] {
        if let Some(found) = btf.by_name(name, Kind::Typedef) {
            programs.push(Program::typed(AttachType::TraceRawTp, found));
        }
    }
    for target in bpfkit_spec::iter::TARGETS {
        let name = format!("bpf_iter_{}", target.name);
        if let Some(found) = btf.by_name(&name, Kind::Func) {
            let iterator = Program::typed(AttachType::TraceIter, found);
            programs.push(Program {
                sleepable: true,
                ..iterator.clone()
            });
            programs.push(iterator);
        }
    }
    for ops in bpfkit_spec::struct_ops::STRUCT_OPS {
        let Some(found) = btf.by_name(ops.name, Kind::Struct) else {
            continue;
        };
        // The kernel refuses structures that it has but that no subsystem registered.
        for (index, member) in found.members().enumerate() {
            let is_function = member
                .type_in()
                .and_then(|pointer| pointer.resolve()?.target()?.resolve())
                .is_some_and(|target| target.is(Kind::FuncProto));
            if is_function {
                programs.push(Program {
                    target: ops.name.to_owned(),
                    member: member.name().to_owned(),
                    btf_id: found.id(),
                    attach_number: index as u32,
                    ..Program::new(ProgType::StructOps, AttachType::StructOps)
                });
            }
        }
    }
    programs
}

pub const EXIT: [u8; 8] = [0x95, 0, 0, 0, 0, 0, 0, 0];

pub fn insn(code: u8, dst: u8, src: u8, off: i16, imm: i32) -> [u8; 8] {
    let off = off.to_le_bytes();
    let imm = imm.to_le_bytes();
    [
        code,
        dst | src << 4,
        off[0],
        off[1],
        imm[0],
        imm[1],
        imm[2],
        imm[3],
    ]
}

pub fn mov_imm(dst: u8, imm: i32) -> [u8; 8] {
    insn(0xb7, dst, 0, 0, imm)
}

pub fn call(helper: u32) -> [u8; 8] {
    insn(0x85, 0, 0, 0, helper as i32)
}
