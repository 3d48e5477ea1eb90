//! Ancillary loads: from the fields of a context, from helpers, from words that the caller
//! gives, or by walking the packet.

use bpfkit_isa as isa;
use isa::{Call, Reg};

use super::emit::{A, Emitter, alu32, alu64, imm, mov32, mov64, word};
use super::sink::{Label, Sink};
use super::{Options, Target};
use crate::ancillary::Ancillary;
use crate::interp::Dialect;
use crate::op::{Op, Size};

/// Fields of `struct __sk_buff` and `struct xdp_md` (`linux/bpf.h`), by offset.
mod field {
    pub const SKB_PKT_TYPE: i16 = 4;
    pub const SKB_MARK: i16 = 8;
    pub const SKB_QUEUE_MAPPING: i16 = 12;
    pub const SKB_PROTOCOL: i16 = 16;
    pub const SKB_VLAN_PRESENT: i16 = 20;
    pub const SKB_VLAN_TCI: i16 = 24;
    pub const SKB_VLAN_PROTO: i16 = 28;
    pub const SKB_IFINDEX: i16 = 40;
    pub const SKB_HASH: i16 = 68;
    pub const XDP_INGRESS_IFINDEX: i16 = 12;
    pub const XDP_RX_QUEUE_INDEX: i16 = 16;
}

/// Helpers that ancillary loads call.
const GET_PRANDOM_U32: i32 = 7;
const GET_SMP_PROCESSOR_ID: i32 = 8;

/// The header of a netlink attribute: length and type, 16 bits each.
const ATTRIBUTE_HEADER: u32 = 4;
/// The bits of an attribute's type that are its type.
const ATTRIBUTE_TYPE: u32 = 0x3fff;

/// Where the address of the ancillary words is kept.
pub(super) const WORDS: Reg = Reg::R6;
/// Registers of a walk over netlink attributes, beside those for A, X and temporary values.
const LENGTH: Reg = Reg::R7;
const LIMIT: Reg = Reg::R8;

/// Whether a target can give this ancillary load.
pub(super) fn supported(options: &Options, what: Ancillary, size: Size) -> bool {
    if options.dialect == Dialect::Libpcap && !what.in_libpcap(size) {
        // There the load ends the filter.
        return true;
    }
    match (options.target, what) {
        (Target::SeccompData, _) => false,
        (Target::Memory, _) | (_, Ancillary::AluXorX | Ancillary::Random | Ancillary::Cpu) => true,
        (target, what) => context_field(target, what).is_some(),
    }
}

/// Whether the load calls a helper.
pub(super) fn calls(target: Target, op: &Op) -> bool {
    let helper = matches!(
        op,
        Op::LoadAncillary {
            what: Ancillary::Cpu | Ancillary::Random,
            ..
        }
    );
    helper && target != Target::Memory
}

/// Whether the load reads one of the caller's words.
pub(super) fn reads_word(target: Target, op: &Op) -> bool {
    let computed = matches!(
        op,
        Op::LoadAncillary {
            what: Ancillary::AluXorX | Ancillary::NlAttr | Ancillary::NlAttrNest,
            ..
        }
    );
    target == Target::Memory && matches!(op, Op::LoadAncillary { .. }) && !computed
}

/// The 32-bit field of the target's context that holds an ancillary value.
fn context_field(target: Target, what: Ancillary) -> Option<i16> {
    Some(match (target, what) {
        (Target::SkBuff, Ancillary::Protocol) => field::SKB_PROTOCOL,
        (Target::SkBuff, Ancillary::PktType) => field::SKB_PKT_TYPE,
        (Target::SkBuff, Ancillary::IfIndex) => field::SKB_IFINDEX,
        (Target::SkBuff, Ancillary::Mark) => field::SKB_MARK,
        (Target::SkBuff, Ancillary::Queue) => field::SKB_QUEUE_MAPPING,
        (Target::SkBuff, Ancillary::RxHash) => field::SKB_HASH,
        (Target::SkBuff, Ancillary::VlanTag) => field::SKB_VLAN_TCI,
        (Target::SkBuff, Ancillary::VlanTagPresent) => field::SKB_VLAN_PRESENT,
        (Target::SkBuff, Ancillary::VlanTpid) => field::SKB_VLAN_PROTO,
        (Target::Xdp, Ancillary::IfIndex) => field::XDP_INGRESS_IFINDEX,
        (Target::Xdp, Ancillary::Queue) => field::XDP_RX_QUEUE_INDEX,
        _ => return None,
    })
}

impl Emitter<'_> {
    pub(super) fn ancillary(&self, sink: &mut dyn Sink, what: Ancillary) {
        let x = isa::Operand::Reg(self.regs.x);
        let call = |id| isa::Op::Call(Call::Helper(id));
        let memory = self.options.target == Target::Memory;
        match what {
            Ancillary::AluXorX => sink.op(alu32(isa::AluOp::Xor, A, x)),
            Ancillary::NlAttr if memory => self.find_attribute(sink, false),
            Ancillary::NlAttrNest if memory => self.find_attribute(sink, true),
            _ if memory => sink.op(word(A, WORDS, what.row().offset as i16)),
            Ancillary::Random => sink.op(call(GET_PRANDOM_U32)),
            Ancillary::Cpu => sink.op(call(GET_SMP_PROCESSOR_ID)),
            _ => {
                // The caller has made sure that there is a field.
                let Some(off) = context_field(self.options.target, what) else {
                    return;
                };
                sink.op(word(A, self.regs.ctx, off));
                if matches!(what, Ancillary::Protocol | Ancillary::VlanTpid) {
                    sink.op(isa::Op::Swap {
                        kind: isa::Swap::ToBe,
                        bits: 16,
                        dst: A,
                    });
                }
            }
        }
    }

    /// Sets A to the offset of the first attribute of type X at or after the offset A, or
    /// inside of the attribute there; to 0 if there is none. The walk is `nla_find`'s.
    fn find_attribute(&self, sink: &mut dyn Sink, nested: bool) {
        let Emitter { regs, .. } = self;
        let (x, tmp, data, end) = (regs.x, regs.tmp, regs.data, regs.end);
        let reg = isa::Operand::Reg;
        let half = |dst, off| isa::Op::Load {
            size: isa::Size::H,
            signed: false,
            dst,
            base: tmp,
            off,
        };
        // A header at A, which ends at `tmp`: jumps to the last but one instruction if the
        // packet, or the attribute around, has none there.
        let header = |sink: &mut dyn Sink, limit: Reg, miss: i16| {
            sink.op(mov32(tmp, A));
            sink.op(alu64(isa::AluOp::Add, tmp, imm(ATTRIBUTE_HEADER)));
            sink.jump_if(
                isa::Cond::Gt,
                isa::Width::W64,
                tmp,
                reg(limit),
                Label::Skip(miss),
            );
            sink.op(alu64(isa::AluOp::Add, tmp, reg(data)));
            sink.op(half(LENGTH, -4));
        };
        sink.op(mov64(super::emit::ROUNDS, end));
        if nested {
            header(sink, end, 6 + WALK);
            // The limit is the end of this attribute, inside of the packet.
            sink.op(mov64(LIMIT, A));
            sink.op(alu64(isa::AluOp::Add, LIMIT, reg(LENGTH)));
            sink.jump_if(
                isa::Cond::Gt,
                isa::Width::W64,
                LIMIT,
                reg(end),
                Label::Skip(1 + WALK),
            );
            sink.op(alu64(isa::AluOp::Add, A, imm(ATTRIBUTE_HEADER)));
        } else {
            sink.op(mov64(LIMIT, end));
        }
        // One round, `WALK` instructions up to the miss.
        header(sink, LIMIT, 15);
        sink.op(half(tmp, -2));
        sink.jump_if(
            isa::Cond::Lt,
            isa::Width::W64,
            LENGTH,
            imm(ATTRIBUTE_HEADER),
            Label::Skip(11),
        );
        sink.op(alu64(isa::AluOp::Add, LENGTH, reg(A)));
        sink.jump_if(
            isa::Cond::Gt,
            isa::Width::W64,
            LENGTH,
            reg(LIMIT),
            Label::Skip(9),
        );
        sink.op(alu32(isa::AluOp::And, tmp, imm(ATTRIBUTE_TYPE)));
        sink.jump_if(isa::Cond::Eq, isa::Width::W32, tmp, reg(x), Label::Skip(8));
        // To the next one, at a distance that is a multiple of 4.
        sink.op(alu64(isa::AluOp::Sub, LENGTH, reg(A)));
        sink.op(alu64(isa::AluOp::Add, LENGTH, imm(3)));
        sink.op(alu64(isa::AluOp::And, LENGTH, imm(!3)));
        sink.op(alu64(isa::AluOp::Add, A, reg(LENGTH)));
        self.count_round(sink, Label::Skip(2));
        sink.jump(Label::Skip(-WALK));
        // Not found.
        sink.op(alu32(isa::AluOp::Mov, A, imm(0)));
    }
}

/// Instructions of a round up to and with the jump back.
const WALK: i16 = 18;
