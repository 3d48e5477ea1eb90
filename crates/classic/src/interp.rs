//! The reference interpreter: one match over the instructions, nothing clever.

use crate::ancillary::{ANCILLARY, Ancillary};
use crate::check::{Program, Rules, SECCOMP_DATA};
use crate::insn::code;
use crate::op::{AluOp, Cond, Op, Operand, Size, jump_target};
use crate::seccomp::SeccompData;

/// Where the kernel and libpcap's `bpf_filter` differ.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Dialect {
    /// Shift amounts in X are taken modulo 32. The offset X + k wraps at 32 bits, and
    /// offsets from `SKF_LL_OFF` and `SKF_NET_OFF` on count from the link-layer and
    /// the network header.
    Kernel,
    /// A shift by an X of 32 or more gives 0. An offset X + k that does not fit in 32
    /// bits is outside the packet; ancillary loads but the two VLAN ones are too.
    Libpcap,
}

/// What ancillary loads read. The default is a packet without any of it.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
#[allow(
    missing_docs,
    reason = "the table of ancillary loads says what each is"
)]
pub struct Context {
    /// In host byte order, as all below.
    pub protocol: u16,
    pub pkttype: u8,
    pub ifindex: u32,
    pub mark: u32,
    pub queue: u16,
    pub hatype: u16,
    pub rxhash: u32,
    pub cpu: u32,
    pub vlan_tci: u16,
    pub vlan_present: bool,
    pub vlan_tpid: u16,
    pub pay_offset: u32,
    pub random: u32,
    /// Offset of the network header in the packet, 14 for Ethernet.
    pub network_offset: u32,
}

impl Context {
    /// What ancillary loads read, a word for each offset from `SKF_AD_OFF`, in their order;
    /// 0 for those that are computed from A, X and the packet.
    pub fn words(&self) -> [u32; 16] {
        let packet = Packet {
            data: &[],
            wire_len: 0,
            context: self,
        };
        ANCILLARY
            .each_ref()
            .map(|row| packet.ancillary(row.what, 0, 0))
    }
}

/// A packet with what surrounds it.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    /// The bytes captured.
    pub data: &'a [u8],
    /// Length on the wire, at least that of `data`.
    pub wire_len: u32,
    /// What ancillary loads read.
    pub context: &'a Context,
}

/// The packet's bytes at an offset as a big-endian number.
fn load(data: &[u8], at: u64, size: Size) -> Option<u32> {
    let rest = data.get(usize::try_from(at).ok()?..)?;
    Some(match size {
        Size::B => (*rest.first()?).into(),
        Size::H => u16::from_be_bytes(*rest.first_chunk()?).into(),
        Size::W => u32::from_be_bytes(*rest.first_chunk()?),
    })
}

impl Packet<'_> {
    /// A load from an offset as the dialect counts it.
    fn load(&self, offset: u64, size: Size, dialect: Dialect) -> Option<u32> {
        let at = match dialect {
            Dialect::Libpcap => offset,
            Dialect::Kernel => {
                let wrapped = offset as u32;
                if wrapped >= code::NET_OFF {
                    u64::from(wrapped - code::NET_OFF) + u64::from(self.context.network_offset)
                } else if wrapped >= code::LL_OFF {
                    u64::from(wrapped - code::LL_OFF)
                } else if (wrapped as i32) < 0 {
                    return None;
                } else {
                    u64::from(wrapped)
                }
            }
        };
        load(self.data, at, size)
    }

    fn ancillary(&self, what: Ancillary, a: u32, x: u32) -> u32 {
        let c = self.context;
        match what {
            Ancillary::Protocol => c.protocol.into(),
            Ancillary::PktType => (c.pkttype & 7).into(),
            Ancillary::IfIndex => c.ifindex,
            Ancillary::NlAttr => find_attribute(self.data, a, x).unwrap_or(0),
            Ancillary::NlAttrNest => find_nested(self.data, a, x).unwrap_or(0),
            Ancillary::Mark => c.mark,
            Ancillary::Queue => c.queue.into(),
            Ancillary::HaType => c.hatype.into(),
            Ancillary::RxHash => c.rxhash,
            Ancillary::Cpu => c.cpu,
            Ancillary::AluXorX => a ^ x,
            Ancillary::VlanTag => c.vlan_tci.into(),
            Ancillary::VlanTagPresent => c.vlan_present.into(),
            Ancillary::PayOffset => c.pay_offset,
            Ancillary::Random => c.random,
            Ancillary::VlanTpid => c.vlan_tpid.into(),
        }
    }
}

/// Length and type of the netlink attribute at `at`, in host (little-endian) order.
fn attribute(data: &[u8], at: u32) -> Option<(u16, u16)> {
    let at = at as usize;
    let header = data.get(at..at.checked_add(4)?)?;
    Some((
        u16::from_le_bytes([header[0], header[1]]),
        u16::from_le_bytes([header[2], header[3]]),
    ))
}

/// Offset of the first attribute of type `kind` in `data` from `at` on, as the kernel's
/// `nla_find` walks them.
fn find_attribute(data: &[u8], mut at: u32, kind: u32) -> Option<u32> {
    loop {
        let (len, this) = attribute(data, at)?;
        let left = data.len().checked_sub(at as usize)?;
        if len < 4 || usize::from(len) > left {
            return None;
        }
        // The upper two bits are flags.
        if u32::from(this & 0x3fff) == kind {
            return Some(at);
        }
        at = at.checked_add(u32::from(len).next_multiple_of(4))?;
    }
}

/// The same inside the attribute at `at`.
fn find_nested(data: &[u8], at: u32, kind: u32) -> Option<u32> {
    let (len, _) = attribute(data, at)?;
    let end = (at as usize).checked_add(len.into())?;
    find_attribute(data.get(..end)?, at.checked_add(4)?, kind)
}

/// Runs a filter over a packet; the result is how many bytes of it to keep, 0 to drop it.
///
/// A filter that jumps back more often than the packet has bytes is taken for one that
/// never ends, and gives 0.
pub fn run(program: &Program, packet: &Packet<'_>, dialect: Dialect) -> u32 {
    // A filter over system calls reads no packet.
    if program.rules() == Rules::Seccomp {
        return 0;
    }
    let load = |offset, size| packet.load(offset, size, dialect);
    let ancillary = |what: Ancillary, size, a, x| {
        let known = dialect == Dialect::Kernel || what.in_libpcap(size);
        known.then(|| packet.ancillary(what, a, x))
    };
    let rounds = packet.data.len();
    execute(program, load, ancillary, packet.wire_len, rounds, dialect).unwrap_or(0)
}

/// Runs a seccomp filter over a system call; the result is the action with its data
/// (`SECCOMP_RET_*`).
pub fn run_seccomp(program: &Program, call: &SeccompData) -> u32 {
    let load = |offset: u64, _| call.word(u32::try_from(offset).ok()?);
    execute(
        program,
        load,
        |_, _, _, _| None,
        SECCOMP_DATA,
        0,
        Dialect::Kernel,
    )
    .unwrap_or(0)
}

/// `None` where a load or a division ends the filter.
fn execute(
    program: &Program,
    load: impl Fn(u64, Size) -> Option<u32>,
    ancillary: impl Fn(Ancillary, Size, u32, u32) -> Option<u32>,
    len: u32,
    mut rounds: usize,
    dialect: Dialect,
) -> Option<u32> {
    let (mut a, mut x) = (0u32, 0u32);
    let mut scratch = [0u32; code::MEMWORDS as usize];
    let mut pc = 0usize;
    loop {
        let op = *program.ops().get(pc)?;
        pc += 1;
        match op {
            Op::LoadAbs { size, k } => a = load(k.into(), size)?,
            Op::LoadInd { size, k } => a = load(u64::from(x) + u64::from(k), size)?,
            Op::LoadAncillary { size, what } => a = ancillary(what, size, a, x)?,
            Op::LoadLen => a = len,
            Op::LoadImm(k) => a = k,
            Op::LoadMem(k) => a = *scratch.get(k as usize)?,
            Op::LoadXLen => x = len,
            Op::LoadXImm(k) => x = k,
            Op::LoadXMem(k) => x = *scratch.get(k as usize)?,
            Op::LoadXMsh(k) => x = (load(k.into(), Size::B)? & 15) * 4,
            Op::Store(k) => *scratch.get_mut(k as usize)? = a,
            Op::StoreX(k) => *scratch.get_mut(k as usize)? = x,
            Op::Alu { op, src } => a = alu(op, a, value(src, x), dialect)?,
            Op::Neg => a = a.wrapping_neg(),
            Op::Jump(k) => {
                let target = jump_target(pc - 1, k)?;
                if target < pc {
                    rounds = rounds.checked_sub(1)?;
                }
                pc = target;
            }
            Op::JumpIf { cond, src, jt, jf } => {
                pc += usize::from(if holds(cond, a, value(src, x)) {
                    jt
                } else {
                    jf
                });
            }
            Op::ReturnK(k) => return Some(k),
            Op::ReturnA => return Some(a),
            Op::Tax => x = a,
            Op::Txa => a = x,
        }
    }
}

fn value(src: Operand, x: u32) -> u32 {
    match src {
        Operand::K(k) => k,
        Operand::X => x,
    }
}

pub(crate) fn alu(op: AluOp, a: u32, b: u32, dialect: Dialect) -> Option<u32> {
    let shifted = |result: u32| {
        if dialect == Dialect::Libpcap && b > 31 {
            0
        } else {
            result
        }
    };
    Some(match op {
        AluOp::Add => a.wrapping_add(b),
        AluOp::Sub => a.wrapping_sub(b),
        AluOp::Mul => a.wrapping_mul(b),
        AluOp::Div => a.checked_div(b)?,
        AluOp::Mod => a.checked_rem(b)?,
        AluOp::Or => a | b,
        AluOp::And => a & b,
        AluOp::Xor => a ^ b,
        AluOp::Lsh => shifted(a.wrapping_shl(b)),
        AluOp::Rsh => shifted(a.wrapping_shr(b)),
    })
}

pub(crate) fn holds(cond: Cond, a: u32, b: u32) -> bool {
    match cond {
        Cond::Eq => a == b,
        Cond::Gt => a > b,
        Cond::Ge => a >= b,
        Cond::Set => a & b != 0,
    }
}
