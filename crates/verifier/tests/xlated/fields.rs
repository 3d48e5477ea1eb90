//! Programs that access every field of a context in every way that the verifier allows.

use bpfkit_btf::Btf;
use bpfkit_isa::{Insn, code};
use bpfkit_object::{MapDef, Program};
use bpfkit_spec::{AttachType, ProgType};
use bpfkit_verifier::{Environment, verify};

use crate::common;

/// A structure that programs see.
pub struct Context {
    pub name: &'static str,
    prog_type: ProgType,
    attach_type: AttachType,
    bytes: i16,
    /// How its address comes into R6.
    begin: &'static str,
    /// Offsets that Linux lets by and has no code for: it fails with `EFAULT` then.
    unmade: &'static [i16],
}

const FROM_CONTEXT: &str = "r6 = r1";
/// A socket of any kind, one that is whole, a TCP one.
const ANY_SOCKET: &str = "r6 = *(u64 *)(r1 + 168); if r6 != 0 goto +2; r0 = 1; exit";
const WHOLE_SOCKET: &str = "r1 = *(u64 *)(r1 + 168); if r1 != 0 goto +2; r0 = 1; exit;
    call bpf_sk_fullsock; if r0 != 0 goto +2; r0 = 1; exit; r6 = r0";
const TCP_SOCKET: &str = "r1 = *(u64 *)(r1 + 168); if r1 != 0 goto +2; r0 = 1; exit;
    call bpf_tcp_sock; if r0 != 0 goto +2; r0 = 1; exit; r6 = r0";

const fn context(
    name: &'static str,
    prog_type: ProgType,
    attach_type: AttachType,
    bytes: i16,
) -> Context {
    Context {
        name,
        prog_type,
        attach_type,
        bytes,
        begin: FROM_CONTEXT,
        unmade: &[],
    }
}

const fn socket(name: &'static str, bytes: i16, begin: &'static str) -> Context {
    Context {
        begin,
        ..context(
            name,
            ProgType::SchedCls,
            AttachType::CgroupInetIngress,
            bytes,
        )
    }
}

use AttachType as A;
use ProgType as P;

/// Where the attach type does not matter.
const ANY: AttachType = A::CgroupInetIngress;

pub const CONTEXTS: &[Context] = &[
    context("xdp_md", P::Xdp, ANY, 24),
    context("__sk_buff, socket filter", P::SocketFilter, ANY, 192),
    context("__sk_buff, classifier", P::SchedCls, ANY, 192),
    context("__sk_buff, action", P::SchedAct, ANY, 192),
    context("__sk_buff, cgroup", P::CgroupSkb, ANY, 192),
    context("__sk_buff, tunnel in", P::LwtIn, ANY, 192),
    context("__sk_buff, tunnel out", P::LwtXmit, ANY, 192),
    context("__sk_buff, stream", P::SkSkb, ANY, 192),
    context(
        "__sk_buff, dissector",
        P::FlowDissector,
        A::FlowDissector,
        192,
    ),
    context("bpf_sock", P::CgroupSock, A::CgroupInetSockCreate, 80),
    context(
        "bpf_sock after bind",
        P::CgroupSock,
        A::CgroupInet4PostBind,
        80,
    ),
    context(
        "bpf_sock_addr, connect 4",
        P::CgroupSockAddr,
        A::CgroupInet4Connect,
        72,
    ),
    context(
        "bpf_sock_addr, connect 6",
        P::CgroupSockAddr,
        A::CgroupInet6Connect,
        72,
    ),
    context(
        "bpf_sock_addr, send 4",
        P::CgroupSockAddr,
        A::CgroupUdp4Sendmsg,
        72,
    ),
    context(
        "bpf_sock_addr, send 6",
        P::CgroupSockAddr,
        A::CgroupUdp6Sendmsg,
        72,
    ),
    context("bpf_sock_ops", P::SockOps, A::CgroupSockOps, 224),
    context("sk_msg_md", P::SkMsg, A::SkMsgVerdict, 80),
    context("sk_reuseport_md", P::SkReuseport, A::SkReuseportSelect, 56),
    context("bpf_sk_lookup", P::SkLookup, A::SkLookup, 72),
    context("bpf_sysctl", P::CgroupSysctl, A::CgroupSysctl, 8),
    context(
        "bpf_sockopt, get",
        P::CgroupSockopt,
        A::CgroupGetsockopt,
        40,
    ),
    context(
        "bpf_sockopt, set",
        P::CgroupSockopt,
        A::CgroupSetsockopt,
        40,
    ),
    context("bpf_perf_event_data", P::PerfEvent, ANY, 184),
    socket("a socket of any kind", 80, ANY_SOCKET),
    socket("a whole socket", 80, WHOLE_SOCKET),
    Context {
        // The upper halves of two long counters.
        unmade: &[84, 92],
        ..socket("a TCP socket", 112, TCP_SOCKET)
    },
];

/// Accesses of one program.
const AT_ONCE: usize = 60;
/// R6 holds the context; R0, R7 and R8 are free.
const CONTEXT: u8 = 6;
const FREE: u8 = 7;
const NUMBER: u8 = 8;

fn mov(dst: u8, src: u8) -> Insn {
    Insn {
        code: code::ALU64 | code::MOV | code::X,
        dst,
        src,
        ..Insn::default()
    }
}

/// An access, with what must stand before it.
fn ways(prog_type: ProgType, off: i16, size: u8) -> Vec<Vec<Insn>> {
    let access = |code: u8, dst: u8, src: u8, imm: i32| Insn {
        code: code | size,
        dst,
        src,
        off,
        imm,
    };
    let plain = code::LDX | code::MEM;
    let mut all = vec![
        vec![access(plain, 0, CONTEXT, 0)],
        vec![mov(FREE, CONTEXT), access(plain, FREE, FREE, 0)],
        vec![access(code::STX | code::MEM, CONTEXT, NUMBER, 0)],
        vec![access(code::ST | code::MEM, CONTEXT, 0, 5)],
        vec![access(code::ST | code::MEM, CONTEXT, 0, -1)],
    ];
    // Where code borrows a register, it is R9 unless the access names that.
    if matches!(prog_type, P::SockOps | P::SkSkb) {
        all.push(vec![mov(9, CONTEXT), access(plain, 9, 9, 0)]);
    }
    if size != code::DW {
        all.push(vec![access(code::LDX | code::MEMSX, 0, CONTEXT, 0)]);
    }
    all
}

fn program(context: &Context, accesses: &[Vec<Insn>]) -> Program {
    let mut insns = common::assemble(context.begin);
    insns.extend(common::assemble(
        "call bpf_get_prandom_u32; r8 = r0; r9 = r0; r7 = r0",
    ));
    insns.extend(accesses.iter().flatten());
    insns.extend(common::assemble("r0 = 1; exit"));
    let mut program = common::program(context.prog_type, insns);
    program.decl.attach_type = context.attach_type;
    program
}

/// Programs with the accesses that are allowed, and their number.
pub fn programs(context: &Context, btf: &Btf, maps: &[MapDef]) -> Vec<(Program, usize)> {
    let environment = Environment::new(Some(btf));
    let allowed = |access: &Vec<Insn>| {
        let program = program(context, std::slice::from_ref(access));
        verify(&program, maps, &environment).result.is_ok()
    };
    let sizes = [(1, code::B), (2, code::H), (4, code::W), (8, code::DW)];
    let accesses: Vec<Vec<Insn>> = (0..context.bytes)
        .flat_map(|off| sizes.map(|size| (off, size)))
        .filter(|(off, (bytes, _))| off % bytes == 0)
        .filter(|(off, _)| !context.unmade.contains(off))
        .flat_map(|(off, (_, size))| ways(context.prog_type, off, size))
        .filter(allowed)
        .collect();
    let chunks = accesses.chunks(AT_ONCE);
    chunks
        .map(|chunk| (program(context, chunk), chunk.len()))
        .collect()
}
