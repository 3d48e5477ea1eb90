//! Calls of a helper with arguments that its prototype asks for.

use bpfkit_spec::context::{self, Access, Kind};
use bpfkit_spec::helper::{Arg, ArgKind, Helper, Proto, RetKind};
use bpfkit_spec::{MapType, TypeFlags};

use crate::bpf::Kernel;
use crate::programs::{Program, call, insn, mov_imm};

/// Bytes of initialized stack, for keys and values.
const STACK: i32 = 128;
/// Size given for memory arguments.
const SIZE: i32 = 8;
/// Greatest number of bytes that an argument of fixed size wants.
const REACH: i32 = 64;

/// `dst = src`.
pub fn mov(dst: u8, src: u8) -> [u8; 8] {
    insn(0xbf, dst, src, 0, 0)
}

fn add_imm(dst: u8, imm: i32) -> [u8; 8] {
    insn(0x07, dst, 0, 0, imm)
}

/// `ld_imm64` of a map by number (`source` 1), or of its first value (2).
fn ld_map(dst: u8, map: i32, source: u8) -> [[u8; 8]; 2] {
    [insn(0x18, dst, source, 0, map), [0; 8]]
}

/// Maps for every kind of argument.
pub struct Maps {
    by_type: Vec<(MapType, i32)>,
    /// Array that memory arguments point into.
    writable: i32,
    /// Array that programs may only read.
    read_only: i32,
}

/// `BPF_F_NO_PREALLOC`.
const NO_PREALLOC: u32 = 1;
/// `BPF_F_RDONLY_PROG`.
const RDONLY_PROG: u32 = 1 << 7;

impl Maps {
    /// Type, key size, value size, entries and flags of a map of that type; none for types
    /// that need BTF, an inner map or an address.
    pub fn attributes(map_type: MapType) -> Option<[u32; 5]> {
        let [key, value, entries, flags] = match map_type {
            MapType::Unspec
            | MapType::ArrayOfMaps
            | MapType::HashOfMaps
            | MapType::SkStorage
            | MapType::InodeStorage
            | MapType::TaskStorage
            | MapType::CgrpStorage
            | MapType::StructOps
            | MapType::Arena
            | MapType::InsnArray => return None,
            MapType::Ringbuf | MapType::UserRingbuf => [0, 0, 4096, 0],
            MapType::Queue | MapType::Stack | MapType::BloomFilter => [0, 8, 4, 0],
            MapType::LpmTrie => [8, 8, 4, NO_PREALLOC],
            MapType::CgroupStorage | MapType::PercpuCgroupStorage => [8, 8, 0, 0],
            MapType::PerfEventArray
            | MapType::ProgArray
            | MapType::CgroupArray
            | MapType::Devmap
            | MapType::DevmapHash
            | MapType::Cpumap
            | MapType::Xskmap
            | MapType::Sockmap
            | MapType::Sockhash => [4, 4, 4, 0],
            _ => [4, 8, 4, 0],
        };
        Some([map_type as u32, key, value, entries, flags])
    }

    /// Creates one map of every type that can be made so.
    pub fn create(kernel: &mut Kernel) -> Maps {
        let mut by_type = Vec::new();
        for &map_type in MapType::ALL {
            let Some(attributes) = Maps::attributes(map_type) else {
                continue;
            };
            if let Ok(map) = kernel.create_map(attributes) {
                by_type.push((map_type, map));
            }
        }
        let mut array = |flags| {
            kernel
                .create_map([MapType::Array as u32, 4, REACH as u32, 1, flags])
                .expect("arrays may be created")
        };
        Maps {
            by_type,
            writable: array(0),
            read_only: array(RDONLY_PROG),
        }
    }

    /// A program array that no program uses yet.
    pub fn prog_array(kernel: &mut Kernel) -> Option<i32> {
        kernel
            .create_map(Maps::attributes(MapType::ProgArray)?)
            .ok()
    }

    /// The map of that type, if it could be created.
    pub fn of(&self, map_type: MapType) -> Option<i32> {
        let found = self.by_type.iter().find(|(of, _)| *of == map_type);
        found.map(|&(_, map)| map)
    }

    /// Every map made.
    pub fn all(&self) -> impl Iterator<Item = (MapType, i32)> {
        self.by_type.iter().copied()
    }
}

/// What stands in the place of one argument.
#[derive(Clone, Copy)]
pub enum Instead {
    /// A number.
    Scalar,
    /// Memory in a map that programs may only read.
    ReadOnlyMemory,
    /// The packet.
    Packet,
}

/// A call of a helper by a program.
pub struct Call<'a> {
    pub program: &'a Program,
    pub helper: &'a Helper,
    pub proto: &'a Proto,
    pub maps: &'a Maps,
    /// Map for a map argument.
    pub map: Option<i32>,
    /// An argument to get wrong, counted from 0.
    pub instead: Option<(usize, Instead)>,
}

impl Call<'_> {
    /// The program but for its end; none where an argument cannot be made here.
    pub fn build(&self) -> Option<Vec<[u8; 8]>> {
        let mut insns = vec![mov(6, 1)];
        for offset in (1..=STACK / 8).map(|i| -8 * i) {
            insns.push(insn(0x7a, 10, 0, offset as i16, 0));
        }
        let wrong = self.instead.map(|(index, _)| index);
        let arity = wrong.map_or(self.proto.arity(), |index| index + 1);
        if matches!(self.instead, Some((_, Instead::Packet))) {
            insns.extend(self.packet_in_r8()?);
        }
        let task = self
            .proto
            .args
            .iter()
            .any(|arg| arg.btf == Some("task_struct"));
        if task {
            insns.push(call(158));
            insns.push(mov(7, 0));
        }
        for (index, arg) in self.proto.args[..arity].iter().enumerate() {
            let register = index as u8 + 1;
            match self.instead {
                Some((at, instead)) if at == index => match instead {
                    Instead::Scalar => insns.push(mov_imm(register, 7)),
                    Instead::Packet => insns.push(mov(register, 8)),
                    Instead::ReadOnlyMemory => {
                        insns.extend(ld_map(register, self.maps.read_only, 2));
                    }
                },
                _ => self.argument(arg, register, &mut insns)?,
            }
        }
        // Arguments behind the wrong one are never looked at but must be initialized.
        for register in arity as u8 + 1..=5 {
            insns.push(mov_imm(register, SIZE));
        }
        insns.push(call(self.helper.id));
        let end = insns.len();
        for jump in open_jumps(&insns) {
            insns[jump][2..4].copy_from_slice(&((end - jump - 1) as i16).to_le_bytes());
        }
        Some(insns)
    }

    fn argument(&self, arg: &Arg, register: u8, insns: &mut Vec<[u8; 8]>) -> Option<()> {
        match arg.kind {
            ArgKind::PtrToCtx => insns.push(mov(register, 6)),
            ArgKind::ConstMapPtr => insns.extend(ld_map(register, self.map?, 1)),
            ArgKind::PtrToMem => insns.extend(ld_map(register, self.maps.writable, 2)),
            ArgKind::PtrToMapKey | ArgKind::PtrToMapValue => {
                insns.push(mov(register, 10));
                insns.push(add_imm(register, -STACK));
            }
            ArgKind::ConstSize | ArgKind::ConstSizeOrZero | ArgKind::ConstAllocSizeOrZero => {
                insns.push(mov_imm(register, SIZE));
            }
            ArgKind::Anything => insns.push(mov_imm(register, 0)),
            ArgKind::PtrToBtfId if arg.btf == Some("task_struct") => {
                insns.push(mov(register, 7));
            }
            ArgKind::PtrToDynptr if arg.flags.has(TypeFlags::MEM_UNINIT) => {
                insns.push(mov(register, 10));
                insns.push(add_imm(register, -16));
            }
            _ if arg.may_be_null() => insns.push(mov_imm(register, 0)),
            _ => return None,
        }
        Some(())
    }

    /// Puts the packet into R8, known to reach far enough; jumps are filled in later.
    fn packet_in_r8(&self) -> Option<Vec<[u8; 8]>> {
        let layout = context::of(self.program.prog_type)?;
        let load = |kind: Kind, register: u8| {
            let field = layout.fields.iter().find(|field| {
                let access = Access {
                    offset: field.offset as i32,
                    size: field.size,
                    write: false,
                    sign_extend: false,
                };
                let hit = layout.field_at(&self.program.caller(), access);
                field.kind == kind && hit.is_some_and(|hit| hit.kind == kind)
            })?;
            let code = if field.size == 8 { 0x79 } else { 0x61 };
            Some(insn(code, register, 6, field.offset as i16, 0))
        };
        Some(vec![
            load(Kind::Packet, 8)?,
            load(Kind::PacketEnd, 9)?,
            mov(0, 8),
            add_imm(0, REACH),
            insn(JGT, 0, 9, UNKNOWN, 0),
        ])
    }
}

/// `if dst > src goto`.
const JGT: u8 = 0x2d;
/// Target of a jump that is not known yet.
const UNKNOWN: i16 = i16::MAX;

/// Jumps whose target is the end.
fn open_jumps(insns: &[[u8; 8]]) -> Vec<usize> {
    let is_jump = |insn: &[u8; 8]| insn[0] == JGT && insn[2..4] == UNKNOWN.to_le_bytes();
    (0..insns.len()).filter(|&at| is_jump(&insns[at])).collect()
}

/// How the kernel's log names what a call gives in R0.
pub fn log_name(proto: &Proto) -> String {
    let base = match proto.ret.kind {
        RetKind::Integer => return "scalar(".to_owned(),
        RetKind::Void => return String::new(),
        RetKind::PtrToMapValue => "map_value",
        RetKind::PtrToSocket => "sock",
        RetKind::PtrToTcpSock => "tcp_sock",
        RetKind::PtrToSockCommon => "sock_common",
        RetKind::PtrToMem | RetKind::PtrToMemOrBtfId => "mem",
        RetKind::PtrToBtfId => "ptr_",
    };
    let flags = proto.ret.flags;
    let mut name = String::new();
    for (flag, prefix) in [
        (TypeFlags::MEM_RDONLY, "rdonly_"),
        (TypeFlags::MEM_RINGBUF, "ringbuf_"),
        (TypeFlags::PTR_TRUSTED, "trusted_"),
    ] {
        if flags.has(flag) {
            name += prefix;
        }
    }
    name += base;
    if flags.has(TypeFlags::PTR_MAYBE_NULL) {
        name += if base == "ptr_" {
            "or_null_"
        } else {
            "_or_null"
        };
    }
    name
}
