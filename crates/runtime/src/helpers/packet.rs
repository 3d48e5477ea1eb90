//! Reading, writing and reshaping the packet: `bpf_skb_*`, `bpf_xdp_*`, checksums, hashes, VLANs.

use bpfkit_maps::Errno;

use super::dynptr::{Dynptr, Kind};
use super::{Ret, Row, checksum, errno, result, status};
use crate::context::KernelPacket;
use crate::context::{HeaderStart, Input};
use crate::env::{Args, Env};
use crate::fault::Trap;
use crate::memory::RegionKind;
use bpfkit_spec::ProgType;

/// A result of the kernel inside a result of the machine.
type Inner<T> = Result<Result<T, Errno>, Trap>;

/// The input behind a context pointer.
///
/// # Errors
/// A fault when `ctx` is not the context, or the context has no packet.
pub(crate) fn input<'a>(env: &'a mut Env<'_>, ctx: u64) -> Result<&'a mut Input, Trap> {
    let Some(input) = env.context.as_any_mut().downcast_mut::<Input>() else {
        return Err(Trap::helper("this context has no packet"));
    };
    if input.ctx_addr() != ctx || !input.has_packet() {
        return Err(Trap::helper(format!(
            "{ctx:#x} is not the context of a packet"
        )));
    }
    Ok(input)
}

/// The packet of a netfilter program, behind its `struct sk_buff`.
pub(crate) fn behind_kernel_skb(env: &mut Env<'_>, skb: u64) -> Option<KernelPacket> {
    let input = env.context.as_any_mut().downcast_mut::<Input>()?;
    input.kernel_packet.filter(|packet| packet.skb == skb)
}

/// Does something that may move the packet, and grants its new place.
fn reshape<T>(
    env: &mut Env<'_>,
    ctx: u64,
    change: impl FnOnce(&mut Input) -> T,
) -> Result<T, Trap> {
    let done = change(input(env, ctx)?);
    if env.checked() {
        env.memory.revoke_kind(RegionKind::Packet);
        if let Some(input) = env.context.as_any_mut().downcast_mut::<Input>() {
            input.grant_packet(env.memory);
        }
    }
    Ok(done)
}

fn copy_to(
    env: &mut Env<'_>,
    to: u64,
    len: u64,
    fill: impl FnOnce(&mut Input, &mut [u8]) -> Result<(), Errno>,
    ctx: u64,
) -> Inner<()> {
    let to = env.write(to, len)?;
    Ok(fill(input(env, ctx)?, to))
}

/// Copies packet bytes to the program's memory; `EFAULT` when the packet is shorter.
pub(crate) fn load(env: &mut Env<'_>, ctx: u64, offset: u64, to: u64, len: u64) -> Inner<()> {
    copy_to(
        env,
        to,
        len,
        |input, to| {
            input
                .skb_bytes(offset, len)
                .map(|bytes| to.copy_from_slice(bytes))
        },
        ctx,
    )
}

pub(crate) fn store(
    env: &mut Env<'_>,
    ctx: u64,
    offset: u64,
    from: u64,
    len: u64,
    flags: u64,
) -> Inner<()> {
    const RECOMPUTE_CSUM: u64 = 1;
    const INVALIDATE_HASH: u64 = 2;
    if flags & !(RECOMPUTE_CSUM | INVALIDATE_HASH) != 0 {
        return Ok(Err(Errno::EINVAL));
    }
    let from = env.read(from, len)?;
    Ok(input(env, ctx)?.skb_store(
        offset,
        from,
        flags & RECOMPUTE_CSUM != 0,
        flags & INVALIDATE_HASH != 0,
    ))
}

pub(crate) fn xdp_load(env: &mut Env<'_>, ctx: u64, offset: u64, to: u64, len: u64) -> Inner<()> {
    let fill = |input: &mut Input, to: &mut [u8]| {
        input.xdp_pointer(offset, len)?;
        input.xdp_copy_out(offset as usize, to);
        Ok(())
    };
    copy_to(env, to, len, fill, ctx)
}

pub(crate) fn xdp_store(
    env: &mut Env<'_>,
    ctx: u64,
    offset: u64,
    from: u64,
    len: u64,
) -> Inner<()> {
    let from = env.read(from, len)?;
    let input = input(env, ctx)?;
    Ok(input
        .xdp_pointer(offset, len)
        .map(|_| input.xdp_copy_in(offset as usize, from)))
}

/// Copies between the program's memory at `ptr` and the metadata in front of a packet.
pub(crate) fn meta_copy(
    env: &mut Env<'_>,
    ctx: u64,
    at: u64,
    ptr: u64,
    len: u64,
    write: bool,
) -> Inner<()> {
    let Some(address) = meta_pointer(env, ctx, at, len)? else {
        return Ok(Err(Errno::E2BIG));
    };
    let (to, from) = if write {
        (address, ptr)
    } else {
        (ptr, address)
    };
    env.copy(to, from, len)?;
    Ok(Ok(()))
}

/// Address of metadata bytes.
pub(crate) fn meta_pointer(
    env: &mut Env<'_>,
    ctx: u64,
    at: u64,
    len: u64,
) -> Result<Option<u64>, Trap> {
    let input = input(env, ctx)?;
    let size = (input.data - input.meta) as u64;
    Ok((at <= size && len <= size - at)
        .then(|| u64::from(input.pages.address()) + input.meta as u64 + at))
}

/// Address of packet bytes in one piece.
pub(crate) fn pointer(env: &mut Env<'_>, ctx: u64, at: u64, len: u64) -> Result<Option<u64>, Trap> {
    Ok(input(env, ctx)?.skb_pointer(at, len))
}

pub(crate) fn xdp_pointer(env: &mut Env<'_>, ctx: u64, at: u64, len: u64) -> Inner<Option<u64>> {
    let input = input(env, ctx)?;
    let base = u64::from(input.pages.address());
    Ok(input
        .xdp_pointer(at, len)
        .map(|p| p.map(|p| base + p as u64)))
}

/// Size of a new dynptr to the packet of `ctx`.
pub(crate) fn dynptr_size(env: &mut Env<'_>, ctx: u64, kind: Kind) -> Result<u32, Trap> {
    let input = input(env, ctx)?;
    let size = if kind == Kind::SkbMeta {
        input.data - input.meta
    } else {
        input.packet_len()
    };
    Ok(u32::try_from(size).unwrap_or(0))
}

/// Whether programs of this type may only read their packet.
pub(crate) fn read_only(env: &Env<'_>) -> bool {
    use ProgType as T;
    !matches!(
        env.program().decl.prog_type,
        T::SchedCls
            | T::SchedAct
            | T::LwtXmit
            | T::SkSkb
            | T::CgroupSkb
            | T::FlowDissector
            | T::Xdp
    ) || matches!(
        env.program().decl.prog_type,
        T::CgroupSkb | T::FlowDissector
    )
}

/// Copies bytes behind any dynptr out, `at` counted from the start of what it leads to.
pub(crate) fn bytes_out(env: &mut Env<'_>, d: Dynptr, at: u64, to: &mut [u8]) -> Inner<()> {
    let len = to.len() as u64;
    Ok(match d.kind {
        Kind::Local | Kind::Ringbuf => {
            to.copy_from_slice(env.read(d.data.wrapping_add(at), len)?);
            Ok(())
        }
        Kind::SkbMeta => match meta_pointer(env, d.data, at, len)? {
            Some(address) => {
                to.copy_from_slice(env.read(address, len)?);
                Ok(())
            }
            None => Err(Errno::E2BIG),
        },
        Kind::Skb => input(env, d.data)?
            .skb_bytes(at, len)
            .map(|bytes| to.copy_from_slice(bytes)),
        Kind::Xdp => {
            let input = input(env, d.data)?;
            input
                .xdp_pointer(at, len)
                .map(|_| input.xdp_copy_out(at as usize, to))
        }
    })
}

/// Copies bytes in behind any dynptr.
pub(crate) fn bytes_in(env: &mut Env<'_>, d: Dynptr, at: u64, from: &[u8]) -> Inner<()> {
    let len = from.len() as u64;
    Ok(match d.kind {
        Kind::Local | Kind::Ringbuf => {
            env.write(d.data.wrapping_add(at), len)?
                .copy_from_slice(from);
            Ok(())
        }
        Kind::SkbMeta => match meta_pointer(env, d.data, at, len)? {
            Some(address) => {
                env.write(address, len)?.copy_from_slice(from);
                Ok(())
            }
            None => Err(Errno::E2BIG),
        },
        Kind::Skb => input(env, d.data)?.skb_store(at, from, false, false),
        Kind::Xdp => {
            let input = input(env, d.data)?;
            input
                .xdp_pointer(at, len)
                .map(|_| input.xdp_copy_in(at as usize, from))
        }
    })
}

/// `(skb, offset, to, len)`: zeros what it cannot read.
fn skb_load_bytes(env: &mut Env<'_>, a: &Args) -> Ret {
    let (offset, len) = (u64::from(a[1] as u32), u64::from(a[3] as u32));
    let loaded = load(env, a[0], offset, a[2], len)?;
    if loaded.is_err() {
        env.write(a[2], len)?.fill(0);
    }
    status(loaded)
}

/// `(skb, offset, to, len, start_header)`.
fn skb_load_bytes_relative(env: &mut Env<'_>, a: &Args) -> Ret {
    let (offset, len) = (u64::from(a[1] as u32), u64::from(a[3] as u32));
    let to = env.write(a[2], len)?;
    let start = match a[4] as u32 {
        0 => Some(HeaderStart::Mac),
        1 => Some(HeaderStart::Network),
        _ => None,
    };
    let bytes = match start {
        Some(start) => input(env, a[0])?.skb_bytes_from(start, offset, len),
        None => Err(Errno::EFAULT),
    };
    match bytes {
        Ok(bytes) => to.copy_from_slice(bytes),
        Err(_) => to.fill(0),
    }
    status(bytes.map(drop))
}

/// `(skb, offset, from, len, flags)`.
fn skb_store_bytes(env: &mut Env<'_>, a: &Args) -> Ret {
    status(store(
        env,
        a[0],
        u64::from(a[1] as u32),
        a[2],
        u64::from(a[3] as u32),
        a[4],
    )?)
}

/// `(skb, len)`.
fn skb_pull_data(env: &mut Env<'_>, a: &Args) -> Ret {
    status(reshape(env, a[0], |input| {
        input.skb_pull(u64::from(a[1] as u32))
    })?)
}

/// `(skb, offset, from, to, flags)`.
fn l3_csum_replace(env: &mut Env<'_>, a: &Args) -> Ret {
    const FIELD_MASK: u64 = 0xf;
    if a[4] & !FIELD_MASK != 0 {
        return Ok(errno(Errno::EINVAL));
    }
    status(input(env, a[0])?.l3_csum_replace(u64::from(a[1] as u32), a[2], a[3], a[4]))
}

/// `(skb, offset, from, to, flags)`.
fn l4_csum_replace(env: &mut Env<'_>, a: &Args) -> Ret {
    status(input(env, a[0])?.l4_csum_replace(u64::from(a[1] as u32), a[2], a[3], a[4]))
}

/// `(from, from_size, to, to_size, seed)`.
fn csum_diff(env: &mut Env<'_>, a: &Args) -> Ret {
    let from = env.read(a[0], u64::from(a[1] as u32))?;
    let to = env.read(a[2], u64::from(a[3] as u32))?;
    Ok(u64::from(checksum::diff(from, to, a[4] as u32)))
}

/// `(skb, csum)`.
fn csum_update(env: &mut Env<'_>, a: &Args) -> Ret {
    result(input(env, a[0])?.csum_update(a[1] as u32).map(u64::from))
}

/// `(skb, level)`.
fn csum_level(env: &mut Env<'_>, a: &Args) -> Ret {
    result(input(env, a[0])?.csum_level(a[1]))
}

/// `(skb, vlan_proto, vlan_tci)`; the protocol is in network order.
fn skb_vlan_push(env: &mut Env<'_>, a: &Args) -> Ret {
    status(reshape(env, a[0], |input| {
        input.vlan_push(u16::from_be(a[1] as u16), a[2] as u16)
    })?)
}

fn skb_vlan_pop(env: &mut Env<'_>, a: &Args) -> Ret {
    status(reshape(env, a[0], Input::vlan_pop)?)
}

/// `(skb, proto, flags)`; the protocol is in network order.
fn skb_change_proto(env: &mut Env<'_>, a: &Args) -> Ret {
    status(reshape(env, a[0], |input| {
        input.skb_change_proto(u16::from_be(a[1] as u16), a[2])
    })?)
}

/// `(skb, type)`.
fn skb_change_type(env: &mut Env<'_>, a: &Args) -> Ret {
    status(input(env, a[0])?.skb_change_type(u64::from(a[1] as u32)))
}

/// `(skb, len_diff, mode, flags)`.
fn skb_adjust_room(env: &mut Env<'_>, a: &Args) -> Ret {
    let stream = env.program().decl.prog_type == ProgType::SkSkb;
    let (delta, mode, flags) = (a[1] as i32, u64::from(a[2] as u32), a[3]);
    status(reshape(env, a[0], |input| {
        if stream {
            input.sk_skb_adjust_room(delta, mode, flags)
        } else {
            input.skb_adjust_room(delta, mode, flags)
        }
    })?)
}

/// `(skb, len, flags)`.
fn skb_change_tail(env: &mut Env<'_>, a: &Args) -> Ret {
    status(reshape(env, a[0], |input| {
        input.skb_change_tail(u64::from(a[1] as u32), a[2])
    })?)
}

/// `(skb, len, flags)`.
fn skb_change_head(env: &mut Env<'_>, a: &Args) -> Ret {
    status(reshape(env, a[0], |input| {
        input.skb_change_head(u64::from(a[1] as u32), a[2])
    })?)
}

fn get_hash_recalc(env: &mut Env<'_>, a: &Args) -> Ret {
    Ok(u64::from(input(env, a[0])?.flow_hash()))
}

fn set_hash_invalid(env: &mut Env<'_>, a: &Args) -> Ret {
    input(env, a[0])?.clear_hash();
    Ok(0)
}

/// `(skb, hash)`.
fn set_hash(env: &mut Env<'_>, a: &Args) -> Ret {
    input(env, a[0])?.set_hash(a[1] as u32);
    Ok(0)
}

/// Traffic class and routing realm of the packet's socket: none.
fn zero_of_packet(env: &mut Env<'_>, a: &Args) -> Ret {
    input(env, a[0])?;
    Ok(0)
}

/// `(skb, tstamp, type)`: 1 keeps a delivery time, 0 lets the kernel stamp it.
fn skb_set_tstamp(env: &mut Env<'_>, a: &Args) -> Ret {
    use crate::context::layout::sk_buff;
    let kind = a[2] as u32;
    let input = input(env, a[0])?;
    let ip = matches!(
        u16::from_be(input.ctx_u32(sk_buff::PROTOCOL) as u16),
        0x0800 | 0x86dd
    );
    if !ip {
        return Ok(errno(Errno::EOPNOTSUPP));
    }
    let valid = match kind {
        0 => true,
        1 | 2 => a[1] != 0,
        _ => false,
    };
    if !valid {
        return Ok(errno(Errno::EINVAL));
    }
    input.set_ctx_u32(sk_buff::TSTAMP, a[1] as u32);
    input.set_ctx_u32(sk_buff::TSTAMP + 4, (a[1] >> 32) as u32);
    input.set_ctx_u32(sk_buff::TSTAMP_TYPE, kind);
    Ok(0)
}

/// `(skb)`: whether congestion was marked in the IP header (`ECT` packets only).
fn skb_ecn_set_ce(env: &mut Env<'_>, a: &Args) -> Ret {
    Ok(u64::from(input(env, a[0])?.set_congestion_experienced()))
}

/// `(xdp, delta)`.
fn xdp_adjust_head(env: &mut Env<'_>, a: &Args) -> Ret {
    status(reshape(env, a[0], |input| {
        input.xdp_adjust_head(a[1] as i32)
    })?)
}

/// `(xdp, delta)`.
fn xdp_adjust_meta(env: &mut Env<'_>, a: &Args) -> Ret {
    status(reshape(env, a[0], |input| {
        input.xdp_adjust_meta(a[1] as i32)
    })?)
}

/// `(xdp, delta)`.
fn xdp_adjust_tail(env: &mut Env<'_>, a: &Args) -> Ret {
    status(reshape(env, a[0], |input| {
        input.xdp_adjust_tail(a[1] as i32)
    })?)
}

/// `(xdp, offset, buf, len)`.
fn xdp_load_bytes(env: &mut Env<'_>, a: &Args) -> Ret {
    status(xdp_load(
        env,
        a[0],
        u64::from(a[1] as u32),
        a[2],
        u64::from(a[3] as u32),
    )?)
}

/// `(xdp, offset, buf, len)`.
fn xdp_store_bytes(env: &mut Env<'_>, a: &Args) -> Ret {
    status(xdp_store(
        env,
        a[0],
        u64::from(a[1] as u32),
        a[2],
        u64::from(a[3] as u32),
    )?)
}

fn xdp_get_buff_len(env: &mut Env<'_>, a: &Args) -> Ret {
    Ok(input(env, a[0])?.packet_len() as u64)
}

/// `(skb, key, size, flags)`: test packets come through no tunnel.
fn skb_get_tunnel_key(env: &mut Env<'_>, a: &Args) -> Ret {
    env.write(a[1], u64::from(a[2] as u32))?.fill(0);
    input(env, a[0])?;
    Ok(errno(Errno::EINVAL))
}

/// `(skb, opt, size)`.
fn skb_get_tunnel_opt(env: &mut Env<'_>, a: &Args) -> Ret {
    env.write(a[1], u64::from(a[2] as u32))?.fill(0);
    input(env, a[0])?;
    Ok(errno(Errno::ENOENT))
}

/// `(skb, key, size, flags)`.
fn skb_set_tunnel_key(env: &mut Env<'_>, a: &Args) -> Ret {
    const IPV6: u64 = 1;
    const FLAGS: u64 = 0x1f;
    /// Sizes of `struct bpf_tunnel_key` over time, the last the present one.
    const SIZES: [u64; 5] = [8, 22, 24, 28, 44];
    let from = env.read(a[1], u64::from(a[2] as u32))?;
    let mut key = [0; 44];
    if a[3] & !FLAGS != 0 || !SIZES.contains(&(from.len() as u64)) {
        return Ok(errno(Errno::EINVAL));
    }
    key[..from.len()].copy_from_slice(from);
    let label = u32::from_ne_bytes([key[24], key[25], key[26], key[27]]);
    let ext = u16::from_ne_bytes([key[22], key[23]]);
    if (a[3] & IPV6 == 0 && label != 0) || ext != 0 {
        return Ok(errno(Errno::EINVAL));
    }
    input(env, a[0])?.skb.tunnel = Some(crate::context::TunnelKey {
        key: key.to_vec(),
        flags: a[3],
        options: Vec::new(),
    });
    Ok(0)
}

/// `(skb, opt, size)`.
fn skb_set_tunnel_opt(env: &mut Env<'_>, a: &Args) -> Ret {
    /// `IP_TUNNEL_OPTS_MAX`.
    const MAX: usize = 255;
    let from = env.read(a[1], u64::from(a[2] as u32))?;
    Ok(match &mut input(env, a[0])?.skb.tunnel {
        Some(_) if from.len() % 4 != 0 => errno(Errno::EINVAL),
        Some(_) if from.len() > MAX => errno(Errno::ENOMEM),
        Some(tunnel) => {
            tunnel.options = from.to_vec();
            0
        }
        None => errno(Errno::EINVAL),
    })
}

/// `(ctx, ifindex, mtu_len, len_diff, flags)`: every device has the MTU of Ethernet.
fn check_mtu(env: &mut Env<'_>, a: &Args) -> Ret {
    const MTU: u32 = 1500;
    const HEADER: i64 = 14;
    const SEGS: u64 = 1;
    let (given, diff) = (u32::from_ne_bytes(env.load(a[2])?), i64::from(a[3] as i32));
    let xdp = env.program().decl.prog_type == ProgType::Xdp;
    if a[4] & !(if xdp { 0 } else { SEGS }) != 0
        || (!xdp && a[4] & SEGS != 0 && (diff != 0 || given != 0))
    {
        return Ok(errno(Errno::EINVAL));
    }
    let len = input(env, a[0])?.packet_len() as i64;
    let len = if given != 0 {
        i64::from(given) + HEADER
    } else {
        len
    };
    env.store(a[2], MTU.to_ne_bytes())?;
    /// `BPF_MTU_CHK_RET_FRAG_NEEDED`.
    const FRAG_NEEDED: u64 = 1;
    Ok(if len + diff <= i64::from(MTU) + HEADER {
        0
    } else {
        FRAG_NEEDED
    })
}

/// `(msg, start, end, flags)`.
fn msg_pull_data(env: &mut Env<'_>, a: &Args) -> Ret {
    status(reshape(env, a[0], |input| {
        input.msg_pull(a[1] as u32, a[2] as u32, a[3])
    })?)
}

/// `(msg, start, len, flags)`.
fn msg_push_data(env: &mut Env<'_>, a: &Args) -> Ret {
    status(reshape(env, a[0], |input| {
        input.msg_push(a[1] as u32, a[2] as u32, a[3])
    })?)
}

/// `(msg, start, len, flags)`.
fn msg_pop_data(env: &mut Env<'_>, a: &Args) -> Ret {
    status(reshape(env, a[0], |input| {
        input.msg_pop(a[1] as u32, a[2] as u32, a[3])
    })?)
}

pub(super) const HELPERS: &[Row] = &[
    ("skb_load_bytes", skb_load_bytes),
    ("skb_load_bytes_relative", skb_load_bytes_relative),
    ("skb_store_bytes", skb_store_bytes),
    ("skb_pull_data", skb_pull_data),
    ("l3_csum_replace", l3_csum_replace),
    ("l4_csum_replace", l4_csum_replace),
    ("csum_diff", csum_diff),
    ("csum_update", csum_update),
    ("csum_level", csum_level),
    ("skb_vlan_push", skb_vlan_push),
    ("skb_vlan_pop", skb_vlan_pop),
    ("skb_change_proto", skb_change_proto),
    ("skb_change_type", skb_change_type),
    ("skb_adjust_room", skb_adjust_room),
    ("skb_change_tail", skb_change_tail),
    ("skb_change_head", skb_change_head),
    ("get_hash_recalc", get_hash_recalc),
    ("set_hash_invalid", set_hash_invalid),
    ("set_hash", set_hash),
    ("get_cgroup_classid", zero_of_packet),
    ("skb_cgroup_classid", zero_of_packet),
    ("get_route_realm", zero_of_packet),
    ("skb_set_tstamp", skb_set_tstamp),
    ("skb_ecn_set_ce", skb_ecn_set_ce),
    ("skb_get_tunnel_key", skb_get_tunnel_key),
    ("skb_get_tunnel_opt", skb_get_tunnel_opt),
    ("skb_set_tunnel_key", skb_set_tunnel_key),
    ("skb_set_tunnel_opt", skb_set_tunnel_opt),
    ("xdp_adjust_head", xdp_adjust_head),
    ("xdp_adjust_meta", xdp_adjust_meta),
    ("xdp_adjust_tail", xdp_adjust_tail),
    ("xdp_load_bytes", xdp_load_bytes),
    ("xdp_store_bytes", xdp_store_bytes),
    ("xdp_get_buff_len", xdp_get_buff_len),
    ("check_mtu", check_mtu),
    ("msg_pull_data", msg_pull_data),
    ("msg_push_data", msg_push_data),
    ("msg_pop_data", msg_pop_data),
];
