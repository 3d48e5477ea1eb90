//! Fields of packets that are more than a number at the end of a way.

use bpfkit_btf::{Btf, Kind, Type};
use bpfkit_isa::{Insn, code};
use bpfkit_spec::ProgType;

use super::{Loaded, Step, spare};
use crate::reg::RegType;
use crate::rewrite::Rewriter;
use crate::rewrite::code::{AX, alu, alu_imm, goto, jump_imm, load, mov, mov_imm, store};

const SKB: &str = "sk_buff";
/// The byte that says how a packet's time is meant and where the packet is.
const TIME_BYTE: &str = "__mono_tc_offset";
/// Offset of the kind of its time in `__sk_buff`.
const TIME_KIND: i16 = 180;

/// Bit offset and bits of a bit-field, through unnamed members.
fn bit_field(btf: &Btf, object: Type<'_>, name: &str) -> Option<(u32, u32)> {
    object.members().find_map(|member| {
        if member.name() == name {
            return Some((member.bit_offset, member.bitfield_size));
        }
        let inner = btf.type_by_id(member.type_id)?;
        let unnamed = member.name().is_empty();
        let inner = Some(inner).filter(|t| unnamed && (t.is(Kind::Struct) || t.is(Kind::Union)))?;
        let (at, bits) = bit_field(btf, inner, name)?;
        Some((member.bit_offset + at, bits))
    })
}

impl Rewriter<'_, '_> {
    /// Offset of the byte at a marker, and the mask of a bit-field that begins it.
    pub(in crate::rewrite) fn packet_bits(
        &self,
        marker: &'static str,
        field: &'static str,
    ) -> Option<(i16, i32)> {
        let byte = self.kernel_off(SKB, marker)?;
        let kernel = self.checker.kernel()?;
        let (at, bits) = bit_field(kernel, kernel.by_name(SKB, Kind::Struct)?, field)?;
        let first = at.checked_sub(u32::try_from(byte).ok()? * 8)?;
        let mask = (1_i32.checked_shl(bits)?.checked_sub(1)?).checked_shl(first)?;
        Some((byte, mask))
    }

    pub(super) fn load_bits(
        &self,
        insn: &Insn,
        marker: &'static str,
        field: &'static str,
    ) -> Option<Loaded> {
        let (byte, mask) = self.packet_bits(marker, field)?;
        let insns = vec![
            load(code::B, insn.dst, insn.src, byte),
            alu_imm(code::ALU, code::AND, insn.dst, mask),
        ];
        Some(Loaded { insns, bytes: 1 })
    }

    /// Where the kind of a packet's time and its place must be looked at: byte, mask of the kind,
    /// mask of the place. Not where the program asks for the kind itself.
    fn time_checks(&self) -> Option<Option<(i16, i32, i32)>> {
        let Some((byte, kind)) = self.packet_bits(TIME_BYTE, "tstamp_type") else {
            return Some(None);
        };
        let Some((_, arrives)) = self.packet_bits(TIME_BYTE, "tc_at_ingress") else {
            return Some(None);
        };
        let checks = Some((byte, kind, arrives)).filter(|_| !self.asks_time_kind());
        Some(checks)
    }

    /// Whether the program asks how the time of packets is meant.
    fn asks_time_kind(&self) -> bool {
        *self.asks_time_kind.get_or_init(|| {
            let controls = matches!(
                self.checker.prog_type(),
                ProgType::SchedCls | ProgType::SchedAct
            );
            let mut accesses = self.checker.insns.iter().zip(&self.checker.aux);
            controls
                && accesses.any(|(insn, aux)| {
                    aux.seen
                        && aux.ptr_type == RegType::CTX
                        && insn.off == TIME_KIND
                        && matches!(insn.class(), code::LDX | code::STX | code::ST)
                })
        })
    }

    pub(super) fn load_timestamp(&self, insn: &Insn) -> Option<Loaded> {
        let mut insns = Vec::with_capacity(8);
        if let Some((byte, kind, arrives)) = self.time_checks()? {
            insns.extend([
                load(code::B, AX, insn.src, byte),
                jump_imm(code::JMP32, code::JSET, AX, arrives, 1),
                goto(4),
                jump_imm(code::JMP32, code::JSET, AX, kind, 1),
                goto(2),
                mov_imm(insn.dst, 0),
                goto(1),
            ]);
        }
        let off = self.kernel_off(SKB, "tstamp")?;
        insns.push(load(code::DW, insn.dst, insn.src, off));
        Some(Loaded { insns, bytes: 8 })
    }

    pub(super) fn store_timestamp(&self, insn: &Insn) -> Option<Vec<Insn>> {
        let mut insns = Vec::with_capacity(6);
        if let Some((byte, kind, arrives)) = self.time_checks()? {
            insns.extend([
                load(code::B, AX, insn.dst, byte),
                jump_imm(code::JMP32, code::JSET, AX, arrives, 1),
                goto(2),
                alu_imm(code::ALU, code::AND, AX, !kind),
                store(code::B, insn.dst, AX, byte),
            ]);
        }
        insns.push(Insn {
            off: self.kernel_off(SKB, "tstamp")?,
            ..*insn
        });
        Some(insns)
    }

    /// What lies behind the data: by the end of the room, an offset where pointers are long. The
    /// packet is the context, or what the step leads to if it is there.
    pub(super) fn load_shared(
        &self,
        insn: &Insn,
        packet: Option<Step>,
        field: &'static str,
    ) -> Option<Loaded> {
        let dst = insn.dst;
        let (off, bytes) = self.kernel_member("skb_shared_info", field)?;
        let bytes = bytes.min(8);
        let (end, end_bytes) = self.kernel_member(SKB, "end")?;
        let end = i16::try_from(end).ok()?;
        let mut insns = Vec::with_capacity(6);
        let mut base = insn.src;
        if let Some(Step::Follow(of, member)) = packet {
            insns.push(load(code::DW, dst, base, self.kernel_off(of, member)?));
            let rest = if end_bytes == 4 { 4 } else { 2 };
            insns.push(jump_imm(code::JMP, code::JEQ, dst, 0, rest));
            base = dst;
        }
        match end_bytes {
            4 => insns.extend([
                load(code::W, AX, base, end),
                load(code::DW, dst, base, self.kernel_off(SKB, "head")?),
                alu(code::ALU64, code::ADD, dst, AX),
            ]),
            _ => insns.push(load(code::DW, dst, base, end)),
        }
        let off = i16::try_from(off).ok()?;
        insns.push(load(super::size_code(bytes), dst, dst, off));
        Some(Loaded { insns, bytes })
    }

    /// The end of the data that lies in one piece: `data + len - data_len`.
    pub(super) fn load_data_end(&self, insn: &Insn) -> Option<Loaded> {
        let off = |member: &'static str| self.kernel_off(SKB, member);
        let kept = off("cb")? + self.kernel_off("sk_skb_cb", "temp_reg")?;
        let same = insn.src == insn.dst;
        let to = if same { spare(insn) } else { insn.dst };
        let mut insns = Vec::with_capacity(9);
        if same {
            insns.push(store(code::DW, insn.src, to, kept));
        }
        insns.extend([
            load(code::DW, to, insn.src, off("data")?),
            load(code::W, AX, insn.src, off("len")?),
            alu(code::ALU64, code::ADD, to, AX),
            load(code::W, AX, insn.src, off("data_len")?),
            alu(code::ALU64, code::SUB, to, AX),
        ]);
        if same {
            insns.extend([
                mov(AX, insn.src),
                mov(insn.dst, to),
                load(code::DW, to, AX, kept),
            ]);
        }
        Some(Loaded { insns, bytes: 8 })
    }
}
