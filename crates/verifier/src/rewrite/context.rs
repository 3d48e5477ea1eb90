//! Accesses to contexts: the structure that programs see stands for others of the kernel
//! (`xdp_convert_ctx_access` and `bpf_convert_ctx_access` in `net/core/filter.c` of 6.18).
//!
//! A row says on which way from the kernel's structure a field is found. Offsets and sizes come
//! from the kernel's BTF. Fields without a row, and contexts without a table, stay as the program
//! has them and are listed in [`Rewritten::unconverted`](super::Rewritten::unconverted).

use bpfkit_btf::Kind;
use bpfkit_isa::{Insn, code};
use bpfkit_spec::ProgType;

use super::Rewriter;
use super::code::{alu_imm, jump_imm, load, mov32_imm};
use crate::mem::access_size;
use crate::walk::member_span;

/// How a field is found.
#[derive(Clone, Copy)]
enum Way {
    /// Pointers to follow, then the number itself: structure and member each.
    Path(&'static [(&'static str, &'static str)]),
    /// The same, but the first pointer may be null, which reads as 0; not where traffic is
    /// controlled, where packets always have a device.
    Guarded(&'static [(&'static str, &'static str)]),
    /// Whether the member is not 0.
    NotZero(&'static str, &'static str),
    /// Low bits of the byte at a marker member.
    Bits(&'static str, &'static str, i32),
    /// In the room for packet schedulers, at that member of that structure.
    Room(&'static str, &'static str),
}

struct Row {
    /// Offset in the program's structure.
    at: u32,
    size: u32,
    way: Way,
    /// Whether stores go the same way.
    stores: bool,
}

const fn row(at: u32, way: Way) -> Row {
    Row {
        at,
        size: 4,
        way,
        stores: false,
    }
}

const fn writable(at: u32, way: Way) -> Row {
    Row {
        stores: true,
        ..row(at, way)
    }
}

const SK_BUFF: &str = "sk_buff";
const XDP: &str = "xdp_buff";

const XDP_MD: &[Row] = &[
    row(0, Way::Path(&[(XDP, "data")])),
    row(4, Way::Path(&[(XDP, "data_end")])),
    row(8, Way::Path(&[(XDP, "data_meta")])),
    row(
        12,
        Way::Path(&[
            (XDP, "rxq"),
            ("xdp_rxq_info", "dev"),
            ("net_device", "ifindex"),
        ]),
    ),
    row(
        16,
        Way::Path(&[(XDP, "rxq"), ("xdp_rxq_info", "queue_index")]),
    ),
    row(
        20,
        Way::Path(&[
            (XDP, "txq"),
            ("xdp_txq_info", "dev"),
            ("net_device", "ifindex"),
        ]),
    ),
];

const SKB: &[Row] = &[
    row(0, Way::Path(&[(SK_BUFF, "len")])),
    row(4, Way::Bits(SK_BUFF, "__pkt_type_offset", 7)),
    writable(8, Way::Path(&[(SK_BUFF, "mark")])),
    row(12, Way::Path(&[(SK_BUFF, "queue_mapping")])),
    row(16, Way::Path(&[(SK_BUFF, "protocol")])),
    row(20, Way::NotZero(SK_BUFF, "vlan_all")),
    row(24, Way::Path(&[(SK_BUFF, "vlan_tci")])),
    row(28, Way::Path(&[(SK_BUFF, "vlan_proto")])),
    writable(32, Way::Path(&[(SK_BUFF, "priority")])),
    row(36, Way::Path(&[(SK_BUFF, "skb_iif")])),
    row(
        40,
        Way::Guarded(&[(SK_BUFF, "dev"), ("net_device", "ifindex")]),
    ),
    writable(44, Way::Path(&[(SK_BUFF, "tc_index")])),
    Row {
        at: 48,
        size: 20,
        way: Way::Room("qdisc_skb_cb", "data"),
        stores: true,
    },
    row(68, Way::Path(&[(SK_BUFF, "hash")])),
    writable(72, Way::Room("qdisc_skb_cb", "tc_classid")),
    row(76, Way::Path(&[(SK_BUFF, "data")])),
    row(80, Way::Room("bpf_skb_data_end", "data_end")),
    row(140, Way::Room("bpf_skb_data_end", "data_meta")),
];

/// The table of a program type.
fn table(prog_type: ProgType) -> Option<&'static [Row]> {
    use ProgType as P;
    match prog_type {
        P::Xdp => Some(XDP_MD),
        P::SocketFilter
        | P::SchedCls
        | P::SchedAct
        | P::CgroupSkb
        | P::LwtIn
        | P::LwtOut
        | P::LwtXmit
        | P::LwtSeg6local
        | P::SkSkb => Some(SKB),
        _ => None,
    }
}

/// The size part of an opcode.
const fn size_code(bytes: u32) -> u8 {
    match bytes {
        1 => code::B,
        2 => code::H,
        4 => code::W,
        _ => code::DW,
    }
}

impl Rewriter<'_, '_> {
    /// Offset and size of a member of a structure of the kernel.
    fn kernel_member(&self, of: &str, path: &str) -> Option<(u32, u32)> {
        let kernel = self.checker.kernel()?;
        member_span(kernel, kernel.by_name(of, Kind::Struct)?, path)
    }

    /// Offset of a member of a structure of the kernel.
    pub fn kernel_offset(&self, of: &str, path: &str) -> Option<u32> {
        Some(self.kernel_member(of, path)?.0)
    }

    /// Plans an access to the context.
    pub fn plan_context(&mut self, at: u32) {
        let insn = self.checker.insns[at as usize];
        if !self.checker.attach.converts_ctx() {
            return;
        }
        let rows = table(self.checker.prog_type());
        let off = u32::try_from(insn.off).ok();
        let row = rows.zip(off).and_then(|(rows, off)| {
            rows.iter()
                .find(|row| (row.at..row.at + row.size).contains(&off))
        });
        let new = row.and_then(|row| match insn.class() {
            code::LDX => self.converted_load(row, &insn),
            _ if row.stores => self.converted_store(row, &insn),
            _ => None,
        });
        match new {
            Some(new) => self.replace(at, new),
            None => self.unconverted.push(at),
        }
    }

    /// Where the last step of a way leads: offset and size, in the structure reached by then.
    fn place(&self, row: &Row, insn: &Insn) -> Option<(u32, u32)> {
        match row.way {
            Way::Path(path) | Way::Guarded(path) => {
                let &(of, member) = path.last()?;
                self.kernel_member(of, member)
            }
            Way::NotZero(of, member) => self.kernel_member(of, member),
            Way::Bits(of, member, _) => Some((self.kernel_offset(of, member)?, 1)),
            Way::Room(of, member) => {
                let room = self.kernel_offset(SK_BUFF, "cb")?;
                let (off, size) = self.kernel_member(of, member)?;
                if row.size == 4 {
                    return Some((room + off, size));
                }
                // Several words: as the program reads them.
                let within = insn.off as u32 - row.at;
                Some((room + off + within, access_size(insn.code) as u32))
            }
        }
    }

    fn converted_load(&self, row: &Row, insn: &Insn) -> Option<Vec<Insn>> {
        let (dst, src) = (insn.dst, insn.src);
        let (off, size) = self.place(row, insn)?;
        let off = i16::try_from(off).ok()?;
        let mut new = Vec::with_capacity(4);
        let mut base = src;
        let has_device = matches!(
            self.checker.prog_type(),
            ProgType::SchedCls | ProgType::SchedAct
        );
        if let Way::Path(path) | Way::Guarded(path) = row.way {
            for (at, &(of, member)) in path[..path.len() - 1].iter().enumerate() {
                let pointer = i16::try_from(self.kernel_offset(of, member)?).ok()?;
                new.push(load(code::DW, dst, base, pointer));
                if at == 0 && matches!(row.way, Way::Guarded(_)) && !has_device {
                    new.push(jump_imm(code::JMP, code::JEQ, dst, 0, 1));
                }
                base = dst;
            }
        }
        new.push(load(size_code(size), dst, base, off));
        match row.way {
            Way::NotZero(..) => {
                new.push(jump_imm(code::JMP, code::JEQ, dst, 0, 1));
                new.push(mov32_imm(dst, 1));
            }
            Way::Bits(_, _, mask) => new.push(alu_imm(code::ALU, code::AND, dst, mask)),
            _ => {}
        }
        self.narrow(row, insn, &mut new);
        Some(new)
    }

    /// A load of part of a field takes that part of what the whole field reads as.
    fn narrow(&self, row: &Row, insn: &Insn, new: &mut Vec<Insn>) {
        let bytes = access_size(insn.code) as u32;
        if row.size != 4 || bytes >= 4 {
            return;
        }
        let shift = (insn.off as u32 - row.at) * 8;
        if shift != 0 {
            new.push(alu_imm(code::ALU, code::RSH, insn.dst, shift as i32));
        }
        let mask = (1 << (8 * bytes)) - 1;
        new.push(alu_imm(code::ALU, code::AND, insn.dst, mask));
    }

    fn converted_store(&self, row: &Row, insn: &Insn) -> Option<Vec<Insn>> {
        let (off, size) = self.place(row, insn)?;
        let size = match row.way {
            Way::Path(path) if path.len() > 1 => return None,
            _ => size_code(size),
        };
        // Stores of a register and of an immediate differ in the class only.
        let code = insn.code & !(code::DW | code::W | code::H | code::B) | size;
        Some(vec![Insn {
            code,
            off: i16::try_from(off).ok()?,
            ..*insn
        }])
    }
}
