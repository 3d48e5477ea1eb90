//! Where packets go: redirection, routes, sockets. Nothing is sent; what a program asks
//! for becomes part of the outcome. Routes and sockets are the host's to answer.

use bpfkit_maps::{Errno, Map};
use bpfkit_spec::{MapType, ProgType};

use super::{Effect, Ret, Row, errno, heap, packet, result};
use crate::context::layout::sock;
use crate::engine::Redirect;
use crate::env::{Args, Env};
use crate::fault::Trap;

const INGRESS: u64 = 1;
const XDP_ABORTED: u64 = 0;
const XDP_REDIRECT: u64 = 4;
const TC_ACT_SHOT: u64 = 2;
const TC_ACT_REDIRECT: u64 = 7;
const SK_DROP: u64 = 0;
const SK_PASS: u64 = 1;

/// `(ifindex, flags)`.
fn redirect(env: &mut Env<'_>, a: &Args) -> Ret {
    let xdp = env.program().decl.prog_type == ProgType::Xdp;
    let (allowed, refused, done) = if xdp {
        (0, XDP_ABORTED, XDP_REDIRECT)
    } else {
        (INGRESS, TC_ACT_SHOT, TC_ACT_REDIRECT)
    };
    if a[1] & !allowed != 0 {
        return Ok(refused);
    }
    env.redirect = Some(Redirect::Interface {
        ifindex: a[0] as u32,
        flags: a[1],
        peer: false,
    });
    Ok(done)
}

/// `(ifindex, flags)`.
fn redirect_peer(env: &mut Env<'_>, a: &Args) -> Ret {
    if a[1] != 0 {
        return Ok(TC_ACT_SHOT);
    }
    env.redirect = Some(Redirect::Interface {
        ifindex: a[0] as u32,
        flags: 0,
        peer: true,
    });
    Ok(TC_ACT_REDIRECT)
}

/// `(ifindex, params, plen, flags)`.
fn redirect_neigh(env: &mut Env<'_>, a: &Args) -> Ret {
    /// `sizeof(struct bpf_redir_neigh)`.
    const PARAMS: i32 = 20;
    let len = a[2] as i32;
    if (len != 0 && len < PARAMS) || a[3] != 0 {
        return Ok(TC_ACT_SHOT);
    }
    if len != 0 {
        env.read(a[1], PARAMS as u64)?;
    }
    env.redirect = Some(Redirect::Neighbour {
        ifindex: a[0] as u32,
        flags: a[3],
    });
    Ok(TC_ACT_REDIRECT)
}

/// `(skb, ifindex, flags)`.
fn clone_redirect(env: &mut Env<'_>, a: &Args) -> Ret {
    if a[2] & !INGRESS != 0 || a[1] as u32 == 0 {
        return Ok(errno(Errno::EINVAL));
    }
    let input = packet::input(env, a[0])?;
    if !input.has_mac_header() {
        return Ok(errno(Errno::ERANGE));
    }
    let mut packet = Vec::new();
    input.copy_packet(&mut packet);
    env.state.effects.push(Effect::Clone {
        ifindex: a[1] as u32,
        flags: a[2],
        packet,
    });
    Ok(0)
}

/// Whether a slot of a map of devices, CPUs or sockets is taken.
fn holds(map: &Map, key: &[u8]) -> bool {
    map.lookup(0, key).is_some() || map.read(key).is_ok()
}

/// Index of a map in the object's list.
fn index_of(env: &Env<'_>, ptr: u64) -> u32 {
    let at = env
        .maps()
        .iter()
        .position(|m| std::sync::Arc::as_ptr(m) as usize as u64 == ptr);
    at.map_or(u32::MAX, |i| i as u32)
}

/// `(map, key, flags)`: the low bits of the flags are the result when the slot is empty.
fn redirect_map(env: &mut Env<'_>, a: &Args) -> Ret {
    const ACTIONS: u64 = 3;
    const BROADCAST: u64 = 1 << 3;
    const EXCLUDE_INGRESS: u64 = 1 << 4;
    let map = env.map(a[0])?;
    let allowed = match map.map_type() {
        MapType::Devmap | MapType::DevmapHash => BROADCAST | EXCLUDE_INGRESS,
        MapType::Cpumap | MapType::Xskmap => 0,
        _ => {
            return Err(Trap::helper(
                "bpf_redirect_map wants a devmap, cpumap or xskmap",
            ));
        }
    };
    if a[2] & !(ACTIONS | allowed) != 0 {
        return Ok(XDP_ABORTED);
    }
    let found = holds(map, &(a[1] as u32).to_ne_bytes());
    if !found && a[2] & BROADCAST == 0 {
        return Ok(a[2] & ACTIONS);
    }
    env.redirect = Some(Redirect::Map {
        map: index_of(env, a[0]),
        key: a[1],
        flags: a[2],
    });
    Ok(XDP_REDIRECT)
}

/// `(ctx, map, key, flags)` of socket maps; the key of a hash is behind a pointer.
fn redirect_socket(env: &mut Env<'_>, a: &Args, hash: bool) -> Ret {
    if a[3] & !INGRESS != 0 {
        return Ok(SK_DROP);
    }
    let map = env.map(a[1])?;
    let index = (a[2] as u32).to_ne_bytes();
    let key: &[u8] = if hash {
        env.read(a[2], map.key_size() as u64)?
    } else {
        &index
    };
    if !holds(map, key) {
        return Ok(SK_DROP);
    }
    let mut low = [0; 8];
    let len = key.len().min(8);
    low[..len].copy_from_slice(&key[..len]);
    let redirect = Redirect::Map {
        map: index_of(env, a[1]),
        key: u64::from_ne_bytes(low),
        flags: a[3],
    };
    env.redirect = Some(redirect);
    Ok(SK_PASS)
}

fn redirect_sockmap(env: &mut Env<'_>, a: &Args) -> Ret {
    redirect_socket(env, a, false)
}

fn redirect_sockhash(env: &mut Env<'_>, a: &Args) -> Ret {
    redirect_socket(env, a, true)
}

/// `(reuseport_md, map, key, flags)`: no slot holds a socket of the group.
fn select_reuseport(env: &mut Env<'_>, a: &Args) -> Ret {
    let map = env.map(a[1])?;
    env.read(a[2], map.key_size() as u64)?;
    Ok(errno(if a[3] != 0 {
        Errno::EINVAL
    } else {
        Errno::ENOENT
    }))
}

/// `(ctx, params, plen, flags)`.
fn fib_lookup(env: &mut Env<'_>, a: &Args) -> Ret {
    /// `sizeof(struct bpf_fib_lookup)`.
    const SIZE: i32 = 64;
    /// `BPF_FIB_LOOKUP_DIRECT` to `_MARK`.
    const FLAGS: u32 = 0x3f;
    const AF_INET: u8 = 2;
    const AF_INET6: u8 = 10;
    if (a[2] as i32) < SIZE || a[3] as u32 & !FLAGS != 0 {
        return Ok(errno(Errno::EINVAL));
    }
    let params = env.write(a[1], SIZE as u64)?;
    if ![AF_INET, AF_INET6].contains(&params[0]) {
        return Ok(errno(super::EAFNOSUPPORT));
    }
    Ok(u64::from(env.host().fib_lookup(params, a[3] as u32)))
}

/// `(ctx, tuple, tuple_size, netns, flags)`.
fn lookup(env: &mut Env<'_>, a: &Args, protocol: u32) -> Ret {
    let tuple = env.read(a[1], u64::from(a[2] as u32))?;
    let namespace_ok = (a[3] as i32) < 0 || a[3] <= i32::MAX as u64;
    if a[4] != 0 || !namespace_ok || !matches!(tuple.len(), 12 | 36) {
        return Ok(0);
    }
    match env.host().socket(tuple, protocol) {
        Some(found) => Ok(heap::alloc(env, SOCKET_BLOCK, &found, false)),
        None => Ok(0),
    }
}

/// A looked-up socket is its `struct bpf_sock`, and its `struct bpf_tcp_sock` behind that.
const TCP_AT: usize = 128;
const TCP_SIZE: usize = 112;
const SOCKET_BLOCK: usize = TCP_AT + TCP_SIZE;
const IPPROTO_TCP: u32 = 6;
const IPPROTO_UDP: u32 = 17;

fn sk_lookup_tcp(env: &mut Env<'_>, a: &Args) -> Ret {
    lookup(env, a, IPPROTO_TCP)
}

fn sk_lookup_udp(env: &mut Env<'_>, a: &Args) -> Ret {
    lookup(env, a, IPPROTO_UDP)
}

fn sk_release(env: &mut Env<'_>, a: &Args) -> Ret {
    heap::free(env, a[0]);
    Ok(0)
}

fn field(env: &mut Env<'_>, sk: u64, at: usize) -> Result<u32, Trap> {
    Ok(u32::from_ne_bytes(env.load(sk.wrapping_add(at as u64))?))
}

/// States of a socket that is not a full one.
const TIME_WAIT: u32 = 6;
const NEW_SYN_RECV: u32 = 12;
const LISTEN: u32 = 10;

fn sk_fullsock(env: &mut Env<'_>, a: &Args) -> Ret {
    if a[0] == 0 {
        return Ok(0);
    }
    let state = field(env, a[0], sock::STATE)?;
    Ok(if [TIME_WAIT, NEW_SYN_RECV].contains(&state) {
        0
    } else {
        a[0]
    })
}

fn tcp_sock(env: &mut Env<'_>, a: &Args) -> Ret {
    let full = sk_fullsock(env, a)?;
    let looked_up = full != 0 && heap::size_of(env, full) == Some(SOCKET_BLOCK as u64);
    if looked_up && field(env, full, sock::PROTOCOL)? == IPPROTO_TCP {
        return Ok(full + TCP_AT as u64);
    }
    Ok(0)
}

fn get_listener_sock(env: &mut Env<'_>, a: &Args) -> Ret {
    Ok(if a[0] != 0 && field(env, a[0], sock::STATE)? == LISTEN {
        a[0]
    } else {
        0
    })
}

/// Casts of a socket to a structure of the kernel, which no socket here has.
fn no_kernel_socket(_: &mut Env<'_>, _: &Args) -> Ret {
    Ok(0)
}

/// `(skb, sk, flags)` of traffic control, `(lookup, sk, flags)` of `sk_lookup`.
fn sk_assign(env: &mut Env<'_>, a: &Args) -> Ret {
    const REPLACE: u64 = 1;
    const NO_REUSEPORT: u64 = 2;
    if env.program().decl.prog_type != ProgType::SkLookup {
        // Test packets are not on their way in.
        let refused = if a[1] == 0 || a[2] != 0 {
            Errno::EINVAL
        } else {
            Errno::EOPNOTSUPP
        };
        return Ok(errno(refused));
    }
    if a[2] & !(REPLACE | NO_REUSEPORT) != 0 {
        return Ok(errno(Errno::EINVAL));
    }
    let selected = u64::from_ne_bytes(env.load(a[0])?);
    if selected != 0 && a[2] & REPLACE == 0 {
        return Ok(errno(Errno::EEXIST));
    }
    env.store(a[0], a[1].to_ne_bytes())?;
    env.state.effects.push(Effect::SkAssign(a[1]));
    Ok(0)
}

/// The cookie of the test socket.
fn socket_cookie(_: &mut Env<'_>, _: &Args) -> Ret {
    Ok(1)
}

fn socket_uid(_: &mut Env<'_>, _: &Args) -> Ret {
    Ok(0)
}

/// `(msg, bytes)`: how much of a message the verdict covers, and how much to collect first.
fn msg_bytes(_: &mut Env<'_>, _: &Args) -> Ret {
    Ok(0)
}

/// `(sock_ops, flags)`: events to be called for, kept in the context.
fn sock_ops_cb_flags_set(env: &mut Env<'_>, a: &Args) -> Ret {
    /// Offset in `struct bpf_sock_ops`, and all flags of 6.18.
    const CB_FLAGS: u64 = 84;
    const ALL: u32 = 0x7f;
    let flags = a[1] as u32;
    env.store(a[0].wrapping_add(CB_FLAGS), (flags & ALL).to_ne_bytes())?;
    Ok(u64::from(flags & !ALL))
}

/// `(iph, th, th_len)`: a SYN cookie, and the segment size in the upper half.
fn gen_syncookie<const V6: bool>(env: &mut Env<'_>, a: &Args) -> Ret {
    let header = env.read(a[0], if V6 { 40 } else { 20 })?;
    let tcp = env.read(a[1], u64::from(a[2] as u32))?;
    if tcp.len() < 20 || tcp.len() != usize::from(tcp[12] >> 4) * 4 {
        return Ok(errno(Errno::EINVAL));
    }
    let sizes = if V6 { MSS_V6 } else { MSS_V4 };
    let mss = mss_option(&tcp[20..]).unwrap_or(if V6 { MSS_V6[0] } else { MSS_V4[0] });
    let index = sizes.iter().rposition(|&m| m <= mss).unwrap_or(0);
    let cookie = cookie(header, tcp, index, sequence(tcp, 4));
    Ok(u64::from(cookie) | u64::from(sizes[index]) << 32)
}

/// `(iph, th)`: 0 if the acknowledgment carries one of our cookies.
fn check_syncookie<const V6: bool>(env: &mut Env<'_>, a: &Args) -> Ret {
    let header = env.read(a[0], if V6 { 40 } else { 20 })?;
    let tcp = env.read(a[1], 20)?;
    let given = sequence(tcp, 8).wrapping_sub(1);
    let seq = sequence(tcp, 4).wrapping_sub(1);
    let valid = (0..4).any(|index| cookie(header, tcp, index, seq) == given);
    result(if valid { Ok(0) } else { Err(Errno::EACCES) })
}

const MSS_V4: [u16; 4] = [536, 1300, 1440, 1460];
const MSS_V6: [u16; 4] = [1220, 1420, 1440, 8940];

fn sequence(tcp: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([tcp[at], tcp[at + 1], tcp[at + 2], tcp[at + 3]])
}

/// The maximum segment size that a SYN announces.
fn mss_option(mut options: &[u8]) -> Option<u16> {
    loop {
        match *options {
            [0, ..] | [] => return None,
            [1, ref rest @ ..] => options = rest,
            [2, 4, high, low, ..] => {
                return Some(u16::from_be_bytes([high, low])).filter(|&m| m > 0);
            }
            [_, len, ..] if len >= 2 => options = options.get(usize::from(len)..)?,
            _ => return None,
        }
    }
}

/// A keyed hash of addresses, ports and sequence number, with the index of the segment
/// size. The kernel's secret is its own; the same program makes and checks ours.
fn cookie(ip: &[u8], tcp: &[u8], index: usize, seq: u32) -> u32 {
    let addresses = if ip.len() == 40 {
        &ip[8..40]
    } else {
        &ip[12..20]
    };
    let mut state = 0x5bd1_e995_9e37_79b9u64 ^ u64::from(seq);
    for chunk in addresses.chunks(4).chain([&tcp[..4]]) {
        let mut word = [0; 4];
        word[..chunk.len()].copy_from_slice(chunk);
        state = (state ^ u64::from(u32::from_ne_bytes(word))).wrapping_mul(0xff51_afd7_ed55_8ccd);
        state ^= state >> 29;
    }
    ((state as u32) & !3 | index as u32).wrapping_add(seq)
}

/// `(sk, iph, iph_len, th, th_len)` of cookies that a listening socket makes: none listens.
fn no_listener(_: &mut Env<'_>, _: &Args) -> Ret {
    Ok(errno(Errno::EINVAL))
}

pub(super) const HELPERS: &[Row] = &[
    ("redirect", redirect),
    ("redirect_peer", redirect_peer),
    ("redirect_neigh", redirect_neigh),
    ("clone_redirect", clone_redirect),
    ("redirect_map", redirect_map),
    ("sk_redirect_map", redirect_sockmap),
    ("sk_redirect_hash", redirect_sockhash),
    ("msg_redirect_map", redirect_sockmap),
    ("msg_redirect_hash", redirect_sockhash),
    ("sk_select_reuseport", select_reuseport),
    ("fib_lookup", fib_lookup),
    ("sk_lookup_tcp", sk_lookup_tcp),
    ("sk_lookup_udp", sk_lookup_udp),
    ("skc_lookup_tcp", sk_lookup_tcp),
    ("sk_release", sk_release),
    ("sk_fullsock", sk_fullsock),
    ("tcp_sock", tcp_sock),
    ("get_listener_sock", get_listener_sock),
    ("skc_to_tcp_sock", no_kernel_socket),
    ("skc_to_tcp6_sock", no_kernel_socket),
    ("skc_to_tcp_timewait_sock", no_kernel_socket),
    ("skc_to_tcp_request_sock", no_kernel_socket),
    ("skc_to_udp6_sock", no_kernel_socket),
    ("skc_to_unix_sock", no_kernel_socket),
    ("skc_to_mptcp_sock", no_kernel_socket),
    ("sock_from_file", no_kernel_socket),
    ("sk_assign", sk_assign),
    ("get_socket_cookie", socket_cookie),
    ("get_socket_uid", socket_uid),
    ("msg_apply_bytes", msg_bytes),
    ("msg_cork_bytes", msg_bytes),
    ("sock_ops_cb_flags_set", sock_ops_cb_flags_set),
    ("tcp_raw_gen_syncookie_ipv4", gen_syncookie::<false>),
    ("tcp_raw_gen_syncookie_ipv6", gen_syncookie::<true>),
    ("tcp_raw_check_syncookie_ipv4", check_syncookie::<false>),
    ("tcp_raw_check_syncookie_ipv6", check_syncookie::<true>),
    ("tcp_check_syncookie", no_listener),
    ("tcp_gen_syncookie", no_listener),
];
