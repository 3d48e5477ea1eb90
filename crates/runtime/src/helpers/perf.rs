//! Perf events: samples put out, counters read, stacks kept by id.

use bpfkit_maps::Errno;
use bpfkit_spec::ProgType;

use super::{Ret, Row, errno, packet, result, status, trace};
use crate::env::{Args, Env};
use crate::fault::Trap;

const INDEX_MASK: u64 = 0xffff_ffff;
const CTXLEN_SHIFT: u32 = 32;
const CTXLEN_MASK: u64 = 0xf_ffff << CTXLEN_SHIFT;

fn not_events() -> Trap {
    Trap::helper("the map holds no perf events")
}

/// `(ctx, map, flags, data, size)`: packet programs may add bytes of the packet.
fn output(env: &mut Env<'_>, a: &Args) -> Ret {
    use ProgType as T;
    let data = env.read(a[3], a[4])?;
    let with_packet = !matches!(
        env.program().decl.prog_type,
        T::Kprobe
            | T::Tracepoint
            | T::PerfEvent
            | T::RawTracepoint
            | T::RawTracepointWritable
            | T::Tracing
            | T::Lsm
            | T::Syscall
            | T::SockOps
            | T::CgroupSockopt
            | T::CgroupSysctl
            | T::CgroupSockAddr
            | T::CgroupSock
            | T::CgroupDevice
            | T::SkMsg
            | T::Ext
            | T::StructOps
            | T::LircMode2
            | T::Netfilter
            | T::SkLookup
            | T::SkReuseport
    );
    let allowed = INDEX_MASK | if with_packet { CTXLEN_MASK } else { 0 };
    if a[2] & !allowed != 0 {
        return Ok(errno(Errno::EINVAL));
    }
    let len = (a[2] & CTXLEN_MASK) >> CTXLEN_SHIFT;
    let mut bytes = std::mem::take(&mut env.state.text);
    bytes.clear();
    let copied = if len == 0 {
        Ok(Ok(()))
    } else {
        packet_bytes(env, a[0], len as usize, &mut bytes)
    };
    let done = match copied {
        Ok(Ok(())) => {
            let cpu = env.cpu();
            let events = env
                .map(a[1])
                .and_then(|map| map.as_perf_events().ok_or_else(not_events));
            events.map(|events| events.output(cpu, a[2] & INDEX_MASK, &[data, &bytes]))
        }
        other => other,
    };
    env.state.text = bytes;
    status(done?)
}

fn packet_bytes(
    env: &mut Env<'_>,
    ctx: u64,
    len: usize,
    out: &mut Vec<u8>,
) -> Result<Result<(), Errno>, Trap> {
    let xdp = env.program().decl.prog_type == ProgType::Xdp;
    let input = packet::input(env, ctx)?;
    if len > input.packet_len() {
        return Ok(Err(Errno::EFAULT));
    }
    if xdp {
        out.resize(len, 0);
        input.xdp_copy_out(0, out);
        return Ok(Ok(()));
    }
    Ok(input
        .skb_bytes(0, len as u64)
        .map(|bytes| out.extend_from_slice(bytes)))
}

/// The slot that flags name: an index, or the CPU that runs the program.
fn slot(env: &Env<'_>, flags: u64) -> u32 {
    if flags & INDEX_MASK == INDEX_MASK {
        env.cpu()
    } else {
        flags as u32
    }
}

/// `(map, flags)`.
fn read(env: &mut Env<'_>, a: &Args) -> Ret {
    if a[1] & !INDEX_MASK != 0 {
        return Ok(errno(Errno::EINVAL));
    }
    let slot = slot(env, a[1]);
    result(
        env.map(a[0])?
            .as_perf_events()
            .ok_or_else(not_events)?
            .counter(slot),
    )
}

/// `(map, flags, buf, size)`: `struct bpf_perf_event_value`, counter, time enabled and running.
fn read_value(env: &mut Env<'_>, a: &Args) -> Ret {
    /// `sizeof(struct bpf_perf_event_value)`.
    const SIZE: usize = 24;
    let out = env.write(a[2], u64::from(a[3] as u32))?;
    out.fill(0);
    if out.len() != SIZE || a[1] & !INDEX_MASK != 0 {
        return Ok(errno(Errno::EINVAL));
    }
    let slot = slot(env, a[1]);
    match env
        .map(a[0])?
        .as_perf_events()
        .ok_or_else(not_events)?
        .counter(slot)
    {
        Ok(counter) => {
            out[..8].copy_from_slice(&counter.to_ne_bytes());
            Ok(0)
        }
        Err(e) => Ok(errno(e)),
    }
}

/// `(ctx, map, flags)`: the id of the present stack.
fn get_stackid(env: &mut Env<'_>, a: &Args) -> Ret {
    const SKIP_MASK: u64 = 0xff;
    const USER_STACK: u64 = 1 << 8;
    const KNOWN: u64 = SKIP_MASK | USER_STACK | 1 << 9 | 1 << 10;
    if a[2] & !KNOWN != 0 {
        return Ok(errno(Errno::EINVAL));
    }
    if a[2] & (USER_STACK | SKIP_MASK) != 0 {
        return Ok(errno(Errno::EFAULT));
    }
    let frame = trace::frame(env).to_ne_bytes();
    let traces = env.map(a[1])?.as_stack_traces();
    let traces = traces.ok_or_else(|| Trap::helper("the map holds no stack traces"))?;
    result(traces.add(&frame, a[2]).map(u64::from))
}

pub(super) const HELPERS: &[Row] = &[
    ("perf_event_output", output),
    ("skb_output", output),
    ("xdp_output", output),
    ("perf_event_read", read),
    ("perf_event_read_value", read_value),
    ("get_stackid", get_stackid),
];
