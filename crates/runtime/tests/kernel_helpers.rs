//! Contexts and packet helpers beside the running kernel: the same program on the same
//! packet must return the same, and leave the same packet and context.
//!
//! Skipped where bpf(2) is not allowed. The programs are a fixed grid of helper calls.

use std::fmt::Write;
use std::sync::Arc;

use bpfkit_isa::asm;
use bpfkit_oracle::{Kernel, TestRun};
use bpfkit_runtime::context::Input;
use bpfkit_runtime::{Code, Engine, FixedHost, Interpreter, LoadOptions, MapSet, Vm, raw_program};
use bpfkit_spec::ProgType;

/// One step of a program. What it yields is mixed into the result.
#[derive(Clone)]
enum Step {
    /// A helper by name, with its arguments.
    Call(&'static str, Vec<Arg>),
    /// The same, but what it returns is not compared.
    Quiet(&'static str, Vec<Arg>),
    /// A 32-bit field of the context.
    Field(i32),
    /// A 32-bit field of the packet's socket.
    Sock(i32),
    /// 8 bytes of the stack, below the frame pointer.
    Stack(i32),
    /// Puts 8 bytes on the stack.
    Put(i32, u64),
}

#[derive(Clone, Copy)]
enum Arg {
    Ctx,
    Imm(i64),
    Fp(i32),
}

use Arg::{Ctx, Fp, Imm};
use Step::{Call, Field, Put, Quiet, Sock, Stack};

struct Case {
    name: String,
    prog_type: ProgType,
    flags: u32,
    packet: Vec<u8>,
    ctx: Vec<u8>,
    steps: Vec<Step>,
}

/// Bytes of stack that every program fills before it starts.
const FILLED: i32 = 128;

fn program(case: &Case) -> String {
    let mut text = String::from("r6 = r1\nr9 = 0\n");
    for at in (8..=FILLED).step_by(8) {
        let _ = writeln!(
            text,
            "r1 = 0x{:x} ll\n*(u64 *)(r10 - {at}) = r1",
            pattern(at)
        );
    }
    let mix = |text: &mut String, from: &str| {
        let _ = writeln!(text, "r9 *= 31\nr9 += {from}");
    };
    for (i, step) in case.steps.iter().enumerate() {
        match step {
            Call(name, args) | Quiet(name, args) => {
                for (r, arg) in args.iter().enumerate() {
                    let r = r + 1;
                    let _ = match arg {
                        Ctx => writeln!(text, "r{r} = r6"),
                        Imm(value) => writeln!(text, "r{r} = 0x{value:x} ll"),
                        Fp(at) => writeln!(text, "r{r} = r10\nr{r} += {at}"),
                    };
                }
                let id = bpfkit_spec::helper::by_name(name)
                    .expect("a helper's name")
                    .id;
                let _ = writeln!(text, "call {id}");
                if matches!(step, Call(..)) {
                    mix(&mut text, "r0");
                }
            }
            Field(at) => {
                let _ = writeln!(text, "r1 = *(u32 *)(r6 + {at})");
                mix(&mut text, "r1");
            }
            Sock(at) => {
                let _ = writeln!(text, "r1 = *(u64 *)(r6 + 168)\nif r1 == 0 goto none_{i}");
                // The kernel gives an unset `rx_queue_mapping` as a 64-bit -1; a u32 field is its low half.
                let _ = writeln!(
                    text,
                    "call 95\nif r0 == 0 goto none_{i}\nr1 = *(u32 *)(r0 + {at})\nw1 = w1"
                );
                mix(&mut text, "r1");
                let _ = writeln!(text, "none_{i}:");
            }
            Stack(at) => {
                let _ = writeln!(text, "r1 = *(u64 *)(r10 - {})", -at);
                mix(&mut text, "r1");
            }
            Put(at, value) => {
                let _ = writeln!(text, "r1 = 0x{value:x} ll\n*(u64 *)(r10 - {}) = r1", -at);
            }
        }
    }
    // Most types may only return some values: the result travels in the context.
    if case.prog_type == ProgType::Xdp {
        text.push_str("r0 = r9\nexit\n");
    } else {
        text.push_str("*(u32 *)(r6 + 48) = r9\nr9 >>= 32\n*(u32 *)(r6 + 52) = r9\nr0 = 0\nexit\n");
    }
    text
}

fn pattern(at: i32) -> u64 {
    (at as u64).wrapping_mul(0x0123_4567_89ab_cdef) ^ 0x5555_aaaa_3333_cccc
}

/// What came of a case: return value, packet and context, or the error number.
type Result = std::result::Result<(u32, Vec<u8>, Vec<u8>), i32>;

fn linked(case: &Case) -> bpfkit_object::Program {
    let text = program(case);
    let insns = asm::assemble(&text)
        .unwrap_or_else(|e| panic!("{}: {e}\n{text}", case.name))
        .insns;
    let mut program = raw_program("case", insns);
    program.decl.prog_type = case.prog_type;
    program.decl.flags = case.flags;
    program
}

fn in_kernel(kernel: &mut Kernel, case: &Case) -> Result {
    let (loaded, _) = match kernel.load(&linked(case), &[], None, &Default::default()) {
        Ok(loaded) => loaded,
        Err(e) => panic!("{}: {e:?}\n{}", case.name, program(case)),
    };
    let run = TestRun {
        data: &case.packet,
        ctx: &case.ctx,
        ..TestRun::default()
    };
    let result = kernel.test_run(loaded, &run);
    kernel.unload(loaded);
    match result {
        Ok(r) => Ok((r.retval, r.data, r.ctx)),
        Err(bpfkit_oracle::OracleError::Call(errno)) => Err(errno.0),
        Err(e) => panic!("{}: {e}", case.name),
    }
}

fn in_ours(case: &Case) -> Result {
    let maps = MapSet::empty();
    let code = Code::Unverified(Arc::new(linked(case)));
    let exec = Interpreter::default()
        .load(code, &maps, &LoadOptions::default())
        .unwrap_or_else(|e| panic!("{}: {e}", case.name));
    let mut input = Input::packet(case.prog_type, &case.packet).map_err(|e| e.errno().0)?;
    if !case.ctx.is_empty() {
        input.set_context(&case.ctx).map_err(|e| e.errno().0)?;
    }
    let outcome = exec.run(&mut Vm::new(0, Arc::new(FixedHost::default())), &mut input);
    assert_eq!(outcome.fault, None, "{}", case.name);
    let (mut data, mut ctx) = (Vec::new(), Vec::new());
    input.copy_data_out(&mut data);
    if !case.ctx.is_empty() {
        input.copy_ctx_out(&mut ctx);
        ctx.truncate(case.ctx.len());
    }
    Ok((outcome.ret as u32, data, ctx))
}

// Packets.

fn ipv4_udp(payload: usize) -> Vec<u8> {
    let mut p = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45, 1];
    p.extend_from_slice(&((28 + payload) as u16).to_be_bytes());
    p.extend_from_slice(&[0, 1, 0, 0, 64, 17, 0x66, 0xcb, 10, 0, 0, 1, 10, 0, 0, 2]);
    p.extend_from_slice(&[0x12, 0x34, 0, 53]);
    p.extend_from_slice(&((8 + payload) as u16).to_be_bytes());
    p.extend_from_slice(&[0x11, 0x22]);
    p.extend((0..payload).map(|i| i as u8));
    p
}

fn ipv6_tcp(payload: usize) -> Vec<u8> {
    let mut p = vec![
        0x33, 0x33, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x86, 0xdd, 0x60, 0x10, 0, 0,
    ];
    p.extend_from_slice(&((20 + payload) as u16).to_be_bytes());
    p.extend_from_slice(&[6, 64]);
    p.extend((0..32).map(|i| 0xa0 + i as u8));
    p.extend_from_slice(&[
        1, 187, 0xc0, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0x50, 16, 1, 0, 0xab, 0xcd, 0, 0,
    ]);
    p.extend((0..payload).map(|i| !i as u8));
    p
}

fn vlan() -> Vec<u8> {
    let mut p = ipv4_udp(20);
    p.splice(12..12, [0x81, 0, 0x20, 7]);
    p
}

fn packets() -> Vec<(&'static str, Vec<u8>)> {
    let mut broadcast = vec![0xff; 6];
    broadcast.extend_from_slice(&[0; 40]);
    let mut unknown = vec![0; 64];
    (unknown[14], unknown[15]) = (0xff, 0xff);
    vec![
        ("ipv4", ipv4_udp(24)),
        ("ipv6", ipv6_tcp(10)),
        ("vlan", vlan()),
        ("broadcast", broadcast),
        ("zeros", vec![0; 64]),
        ("unknown", unknown),
        ("short", vec![8; 16]),
    ]
}

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let mut add = |name: String, prog_type, packet: &[u8], ctx: &[u8], flags, steps: Vec<Step>| {
        cases.push(Case {
            name,
            prog_type,
            flags,
            packet: packet.to_vec(),
            ctx: ctx.to_vec(),
            steps,
        });
    };
    let zero = [0; 192];

    // What contexts hold to begin with.
    let readable = |prog_type| -> Vec<i32> {
        let mut fields: Vec<i32> = (0..72).step_by(4).collect();
        if matches!(prog_type, ProgType::SchedCls | ProgType::CgroupSkb) {
            fields.extend([160, 164, 176]);
        }
        if prog_type == ProgType::CgroupSkb {
            fields.retain(|&f| f != 160);
            fields.extend((88..140).step_by(4));
        }
        fields
    };
    use ProgType as T;
    for (name, packet) in packets() {
        for prog_type in [
            T::SocketFilter,
            T::SchedCls,
            T::SchedAct,
            T::CgroupSkb,
            T::LwtIn,
            T::LwtXmit,
        ] {
            let steps = readable(prog_type).into_iter().map(Field).collect();
            add(
                format!("{name} {prog_type} fields"),
                prog_type,
                &packet,
                &zero,
                0,
                steps,
            );
        }
        for prog_type in [T::SchedCls, T::CgroupSkb] {
            let steps = (4..80).step_by(4).filter(|&f| f != 48).map(Sock).collect();
            add(
                format!("{name} {prog_type} socket"),
                prog_type,
                &packet,
                &zero,
                0,
                steps,
            );
        }
        let steps = [12, 16].map(Field).to_vec();
        add(format!("{name} xdp fields"), T::Xdp, &packet, &[], 0, steps);
    }

    // What may be given.
    for at in (0..192).step_by(4) {
        for value in [1u32, 3, 200, 70_000] {
            let mut ctx = [0; 192];
            ctx[at..at + 4].copy_from_slice(&value.to_ne_bytes());
            if at == 36 || at == 40 {
                // Other devices are the machine's own business.
                continue;
            }
            let steps = [0, 8, 32, 48, 160, 164, 176].map(Field).to_vec();
            add(
                format!("ctx {at}={value}"),
                T::SchedCls,
                &ipv4_udp(4),
                &ctx,
                0,
                steps,
            );
        }
    }
    for (data, end, meta, ifindex, queue, egress) in [
        (0u32, 70u32, 0u32, 0u32, 0u32, 0u32),
        (4, 70, 0, 0, 0, 0),
        (8, 70, 0, 1, 0, 0),
        (3, 70, 0, 0, 0, 0),
        (32, 70, 0, 0, 0, 0),
        (64, 70, 0, 0, 0, 0),
        (0, 71, 0, 0, 0, 0),
        (0, 70, 4, 0, 0, 0),
        (0, 70, 0, 0, 1, 0),
        (0, 70, 0, 0, 0, 1),
        (72, 70, 0, 0, 0, 0),
    ] {
        let ctx: Vec<u8> = [data, end, meta, ifindex, queue, egress]
            .iter()
            .flat_map(|v| v.to_ne_bytes())
            .collect();
        let steps = vec![
            Field(12),
            Field(16),
            Call("xdp_adjust_meta", vec![Ctx, Imm(-4)]),
        ];
        add(
            format!("xdp ctx {data} {end} {meta} {ifindex} {queue} {egress}"),
            T::Xdp,
            &ipv4_udp(28),
            &ctx,
            0,
            steps,
        );
    }

    // XDP: moving the packet.
    let packet = ipv4_udp(28);
    for helper in ["xdp_adjust_head", "xdp_adjust_tail", "xdp_adjust_meta"] {
        for delta in [
            -300, -257, -256, -217, -216, -215, -64, -56, -55, -14, -8, -4, -1, 0, 1, 4, 14, 55,
            56, 57, 64, 3400, 3450, 3451, 4000,
        ] {
            add(
                format!("{helper} {delta}"),
                T::Xdp,
                &packet,
                &[],
                0,
                vec![Call(helper, vec![Ctx, Imm(delta)])],
            );
        }
    }
    for (a, b, c) in [
        (-8, -16, 5),
        (-4, 20, -3),
        (-32, -184, 0),
        (-32, -190, 7),
        (-8, 300, 9),
        (-255, 1, 1),
        (-252, 4, 4),
    ] {
        let steps = vec![
            Call("xdp_adjust_meta", vec![Ctx, Imm(a)]),
            Call("xdp_adjust_head", vec![Ctx, Imm(b)]),
            Call("xdp_adjust_tail", vec![Ctx, Imm(c)]),
            Call("xdp_adjust_meta", vec![Ctx, Imm(4)]),
            Call("xdp_get_buff_len", vec![Ctx]),
        ];
        add(
            format!("xdp moves {a} {b} {c}"),
            T::Xdp,
            &packet,
            &[],
            0,
            steps,
        );
    }
    const HAS_FRAGS: u32 = 1 << 5;
    let long = ipv4_udp(9000);
    for (offset, len) in [
        (0, 8),
        (60, 10),
        (60, 11),
        (3510, 16),
        (3515, 8),
        (7612, 8),
        (9034, 8),
        (9035, 8),
        (0xffff, 1),
        (0x1_0000, 1),
        (-1, 4),
    ] {
        for (name, packet, flags) in [("short", &packet, 0), ("long", &long, HAS_FRAGS)] {
            let steps = vec![
                Call("xdp_load_bytes", vec![Ctx, Imm(offset), Fp(-16), Imm(len)]),
                Stack(-16),
                Stack(-8),
                Call("xdp_store_bytes", vec![Ctx, Imm(offset), Fp(-32), Imm(len)]),
            ];
            add(
                format!("xdp {name} bytes {offset} {len}"),
                T::Xdp,
                packet,
                &[],
                flags,
                steps,
            );
        }
    }
    for delta in [
        -9100, -9028, -9027, -6000, -5522, -5521, -1500, -1426, -1425, -1, 1, 2670, 2671, 2672,
        4096,
    ] {
        let steps = vec![
            Call("xdp_adjust_tail", vec![Ctx, Imm(delta)]),
            Call("xdp_get_buff_len", vec![Ctx]),
            Call("xdp_adjust_tail", vec![Ctx, Imm(3)]),
        ];
        add(
            format!("xdp long tail {delta}"),
            T::Xdp,
            &long,
            &[],
            HAS_FRAGS,
            steps,
        );
    }

    // Packet bytes of socket buffers.
    for prog_type in [T::SocketFilter, T::SchedCls, T::CgroupSkb, T::LwtXmit] {
        for (name, packet) in packets() {
            for (offset, len) in [
                (0, 14),
                (12, 4),
                (40, 8),
                (50, 16),
                (200, 4),
                (0x7fff_ffff, 4),
                (0x8000_0000, 4),
                (0xffff_ffff, 4),
            ] {
                let mut steps = vec![
                    Call("skb_load_bytes", vec![Ctx, Imm(offset), Fp(-16), Imm(len)]),
                    Stack(-16),
                    Stack(-8),
                ];
                // Lightweight tunnels have no relative loads.
                let starts = if prog_type == T::LwtXmit { 0 } else { 3 };
                for start in 0..starts {
                    let args = vec![Ctx, Imm(offset), Fp(-32), Imm(len), Imm(start)];
                    steps.extend([
                        Call("skb_load_bytes_relative", args),
                        Stack(-32),
                        Stack(-24),
                    ]);
                }
                add(
                    format!("{name} {prog_type} load {offset} {len}"),
                    prog_type,
                    &packet,
                    &zero,
                    0,
                    steps,
                );
            }
        }
    }
    for prog_type in [T::SchedCls, T::LwtXmit] {
        for (name, packet) in packets() {
            if prog_type == T::LwtXmit && name != "ipv4" {
                continue;
            }
            let mut one = |what: String, steps: Vec<Step>| {
                let mut steps = steps;
                steps.extend([0, 4, 16, 20, 24, 28].map(Field));
                add(
                    format!("{name} {prog_type} {what}"),
                    prog_type,
                    &packet,
                    &zero,
                    0,
                    steps,
                );
            };
            for (offset, len, flags) in [
                (0, 6, 0),
                (14, 8, 1),
                (15, 7, 1),
                (30, 16, 2),
                (40, 16, 3),
                (60, 8, 0),
                (10, 4, 4),
                (0x8000_0000, 4, 0),
            ] {
                one(
                    format!("store {offset} {len} {flags}"),
                    vec![Call(
                        "skb_store_bytes",
                        vec![Ctx, Imm(offset), Fp(-64), Imm(len), Imm(flags)],
                    )],
                );
            }
            for len in [0, 1, 14, 40, 64, 66, 67, 1000, 0xffff_ffff] {
                one(
                    format!("pull {len}"),
                    vec![Call("skb_pull_data", vec![Ctx, Imm(len)])],
                );
            }
            let checksummed = name == "ipv4" && prog_type == T::SchedCls;
            for (offset, from, to, flags) in [
                (24, 0, 0x1234, 0),
                (24, 1, 0x1234, 0),
                (24, 0x4011, 0x3f11, 2),
                (24, 0x0a00_0001, 0xc0a8_0001, 4),
                (24, 1, 2, 3),
                (25, 1, 2, 2),
                (24, 1, 2, 0x10),
                (63, 1, 2, 2),
                (64, 1, 2, 2),
                (0x1_0000, 1, 2, 2),
            ]
            .into_iter()
            .filter(|_| checksummed)
            {
                one(
                    format!("l3 csum {offset} {from} {to} {flags}"),
                    vec![Call(
                        "l3_csum_replace",
                        vec![Ctx, Imm(offset), Imm(from), Imm(to), Imm(flags)],
                    )],
                );
                for extra in [0, 0x10, 0x20, 0x30, 0x60, 0x80, 0x100] {
                    one(
                        format!("l4 csum {offset} {from} {to} {flags} {extra:x}"),
                        vec![Call(
                            "l4_csum_replace",
                            vec![
                                Ctx,
                                Imm(offset + 16),
                                Imm(from),
                                Imm(to),
                                Imm(flags | extra),
                            ],
                        )],
                    );
                }
            }
            for (len, flags) in [
                (0, 0),
                (13, 0),
                (14, 0),
                (15, 0),
                (20, 0),
                (33, 0),
                (34, 0),
                (60, 0),
                (66, 0),
                (100, 0),
                (1500, 0),
                (3000, 0),
                (4000, 0),
                (16065, 0),
                (0xffff_ffff, 0),
                (40, 1),
            ] {
                one(
                    format!("tail {len} {flags}"),
                    vec![Call("skb_change_tail", vec![Ctx, Imm(len), Imm(flags)])],
                );
            }
            for (len, flags) in [
                (0, 0),
                (1, 0),
                (14, 0),
                (100, 0),
                (3000, 0),
                (16064, 0),
                (0xffff_fff0, 0),
                (14, 1),
            ] {
                one(
                    format!("head {len} {flags}"),
                    vec![Call("skb_change_head", vec![Ctx, Imm(len), Imm(flags)])],
                );
            }
            one(
                "hash".into(),
                vec![
                    Quiet("get_hash_recalc", vec![Ctx]),
                    Quiet("set_hash_invalid", vec![Ctx]),
                    Field(68),
                ],
            );
            let levels = (0..5)
                .chain([0, 1, 2, 2, 0, 3, 0])
                .map(|l| Call("csum_level", vec![Ctx, Imm(l)]));
            one(
                "csum level".into(),
                levels
                    .chain([Call("csum_update", vec![Ctx, Imm(7)])])
                    .collect(),
            );
            if prog_type != T::SchedCls {
                continue;
            }
            one(
                "vlan".into(),
                vec![
                    Call("skb_vlan_push", vec![Ctx, Imm(0x0081), Imm(0x2005)]),
                    Field(20),
                    Field(24),
                    Field(28),
                    Field(0),
                    Call("skb_vlan_push", vec![Ctx, Imm(0xa888), Imm(77)]),
                    Field(24),
                    Field(28),
                    Field(0),
                    Field(16),
                    Call("skb_vlan_push", vec![Ctx, Imm(5), Imm(78)]),
                    Call("skb_vlan_pop", vec![Ctx]),
                    Field(24),
                    Field(28),
                    Field(0),
                    Field(16),
                ],
            );
            one(
                "vlan pop".into(),
                vec![
                    Call("skb_vlan_pop", vec![Ctx]),
                    Field(20),
                    Field(24),
                    Field(28),
                    Field(16),
                    Call("skb_vlan_pop", vec![Ctx]),
                ],
            );
            one(
                "vlan room".into(),
                vec![
                    Call("skb_vlan_push", vec![Ctx, Imm(0x0081), Imm(1)]),
                    Call("skb_vlan_push", vec![Ctx, Imm(0x0081), Imm(2)]),
                    Call("skb_change_proto", vec![Ctx, Imm(0xdd86), Imm(0)]),
                ],
            );
            for (proto, flags) in [(0xdd86, 0), (0x0008, 0), (0x0608, 0), (0xdd86, 1)] {
                one(
                    format!("proto {proto:x} {flags}"),
                    vec![
                        Call("skb_change_proto", vec![Ctx, Imm(proto), Imm(flags)]),
                        Field(16),
                        Call("skb_change_proto", vec![Ctx, Imm(0x0008), Imm(0)]),
                    ],
                );
            }
            for kind in 0..6 {
                one(
                    format!("type {kind}"),
                    vec![Call("skb_change_type", vec![Ctx, Imm(kind)])],
                );
            }
            for (delta, mode, flags) in [
                (0, 0, 0),
                (8, 0, 0),
                (8, 1, 0),
                (-8, 0, 0),
                (-8, 1, 0),
                (-4, 0, 0),
                (4, 2, 0),
                (4, 0, 1),
                (20, 1, 2),
                (20, 1, 4),
                (40, 1, 4),
                (40, 1, 6),
                (28, 1, 2 | 8),
                (28, 1, 2 | 16),
                (28, 1, 2 | 24),
                (50, 1, 2 | 16 | 64 | 14 << 56),
                (50, 1, 2 | 64 | 13 << 56),
                (10, 1, 2 | 14 << 56),
                (36, 1, 4 | 8 | 32),
                (-20, 1, 128),
                (-20, 1, 256),
                (-40, 1, 128),
                (-40, 1, 256),
                (-8, 1, 384),
                (20, 1, 128),
                (-20, 1, 2),
                (0x1000, 0, 0),
                (-0x1000, 0, 0),
                (0x700, 0, 0),
                (-60, 0, 0),
                (-20, 0, 0),
                (4, 0, 512),
                (-44, 1, 0),
                (-32, 1, 0),
                (-33, 1, 0),
                (i64::from(i32::MIN), 1, 0),
            ] {
                one(
                    format!("room {delta} {mode} {flags:x}"),
                    vec![
                        Call(
                            "skb_adjust_room",
                            vec![Ctx, Imm(delta), Imm(mode), Imm(flags)],
                        ),
                        Field(16),
                        Field(0),
                        Call(
                            "skb_load_bytes_relative",
                            vec![Ctx, Imm(0), Fp(-16), Imm(8), Imm(1)],
                        ),
                        Stack(-16),
                        Call(
                            "skb_adjust_room",
                            vec![Ctx, Imm(delta), Imm(mode), Imm(flags)],
                        ),
                    ],
                );
            }
            for (stamp, kind) in [(0, 0), (5, 0), (5, 1), (0, 1), (5, 2), (5, 3)] {
                one(
                    format!("tstamp {stamp} {kind}"),
                    vec![Call("skb_set_tstamp", vec![Ctx, Imm(stamp), Imm(kind)])],
                );
            }
            one("ce".into(), vec![Call("skb_ecn_set_ce", vec![Ctx])]);
            one(
                "set hash".into(),
                vec![
                    Call("set_hash", vec![Ctx, Imm(0x1234)]),
                    Field(68),
                    Call("get_hash_recalc", vec![Ctx]),
                    Quiet("set_hash_invalid", vec![Ctx]),
                    Field(68),
                ],
            );
            one(
                "classid".into(),
                vec![
                    Call("get_cgroup_classid", vec![Ctx]),
                    Call("get_route_realm", vec![Ctx]),
                    Call("get_socket_uid", vec![Ctx]),
                ],
            );
            for (index, flags) in [(1, 0), (1, 1), (1, 2), (0x7fff_fff0, 0)] {
                one(
                    format!("redirect {index} {flags}"),
                    vec![
                        Call("redirect", vec![Imm(index), Imm(flags)]),
                        Call("redirect_peer", vec![Imm(index), Imm(flags)]),
                        Call(
                            "redirect_neigh",
                            vec![Imm(index), Fp(-64), Imm(20), Imm(flags)],
                        ),
                    ],
                );
            }
            for (size, flags) in [
                (44, 0),
                (28, 0),
                (24, 1),
                (43, 0),
                (8, 0),
                (44, 0x20),
                (44, 0x10),
            ] {
                let mut steps: Vec<Step> = (0..6)
                    .map(|i| Put(-48 + 8 * i, if i == 0 { 9 } else { 0 }))
                    .collect();
                steps.extend([
                    Call(
                        "skb_set_tunnel_key",
                        vec![Ctx, Fp(-48), Imm(size), Imm(flags)],
                    ),
                    Call("skb_set_tunnel_opt", vec![Ctx, Fp(-64), Imm(8)]),
                    Call("skb_set_tunnel_opt", vec![Ctx, Fp(-64), Imm(7)]),
                ]);
                one(format!("tunnel {size} {flags}"), steps);
            }
        }
    }

    // Plain memory.
    for (from, to, seed) in [
        (0, 0, 5),
        (4, 0, 5),
        (0, 4, 5),
        (8, 8, 0),
        (3, 5, 9),
        (16, 4, 0xffff_ffff),
        (4, 16, 0x1_0001),
    ] {
        for (a, b) in [(-64, -128), (-128, -64), (-61, -123)] {
            add(
                format!("csum_diff {from} {to} {seed} {a}"),
                T::SchedCls,
                &ipv4_udp(0),
                &zero,
                0,
                vec![Call(
                    "csum_diff",
                    vec![Fp(a), Imm(from), Fp(b), Imm(to), Imm(seed)],
                )],
            );
        }
    }
    for text in [
        "123", "-123", "  42x", "0x1f", "-0x1F", "017", "08", "0x", "x", "", "-", "- 1",
        "99999999", "+5", "\t7", "0b11",
    ] {
        for flags in [0, 8, 10, 16, 2, 36, 64] {
            let mut bytes = [0; 8];
            bytes[..text.len()].copy_from_slice(text.as_bytes());
            for helper in ["strtol", "strtoul"] {
                let len = (text.len() as i64).max(1);
                let steps = vec![
                    Put(-16, u64::from_ne_bytes(bytes)),
                    Call(helper, vec![Fp(-16), Imm(len), Imm(flags), Fp(-32)]),
                    Stack(-32),
                ];
                add(
                    format!("{helper} {text:?} {flags}"),
                    T::SchedCls,
                    &ipv4_udp(0),
                    &zero,
                    0,
                    steps,
                );
            }
        }
    }
    cases
}

#[test]
fn packet_helpers_do_what_the_kernel_does() {
    let mut kernel = match Kernel::start() {
        Ok(kernel) => kernel,
        Err(e) if e.is_absence() => {
            println!("skipped: {e}");
            return;
        }
        Err(e) => panic!("{e}"),
    };
    let mut cases = cases();
    if !folds_differences() {
        cases.retain(|case| !case.name.starts_with("csum_diff"));
    }
    let mut wrong = Vec::new();
    for case in &cases {
        let (theirs, ours) = (in_kernel(&mut kernel, case), in_ours(case));
        if theirs != ours {
            wrong.push(difference(case, &theirs, &ours));
        }
    }
    println!("{} programs, {} differ", cases.len(), wrong.len());
    assert!(
        wrong.is_empty(),
        "{} of {} differ:\n{}",
        wrong.len(),
        cases.len(),
        wrong.join("\n")
    );
}

/// Whether the kernel is 6.13 or later, which folds what `bpf_csum_diff` returns.
fn folds_differences() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release.split('.').map(|n| n.parse::<u32>().unwrap_or(0));
    (numbers.next(), numbers.next()) >= (Some(6), Some(13))
}

fn difference(case: &Case, theirs: &Result, ours: &Result) -> String {
    let (Ok((r1, d1, c1)), Ok((r2, d2, c2))) = (theirs, ours) else {
        return format!(
            "{}: kernel {:?}, here {:?}",
            case.name,
            short(theirs),
            short(ours)
        );
    };
    let mut text = case.name.clone();
    if r1 != r2 {
        let _ = write!(text, ": returned {r1:#x} in the kernel, {r2:#x} here");
    }
    for (what, a, b) in [("packet", d1, d2), ("context", c1, c2)] {
        if a.len() != b.len() {
            let _ = write!(
                text,
                ": {what} of {} bytes in the kernel, {} here",
                a.len(),
                b.len()
            );
        } else if let Some(at) = a.iter().zip(b).position(|(a, b)| a != b) {
            let end = (at + 8).min(a.len());
            let _ = write!(
                text,
                ": {what} byte {at}: {:02x?} in the kernel, {:02x?} here",
                &a[at..end],
                &b[at..end]
            );
        }
    }
    text
}

fn short(result: &Result) -> std::result::Result<u32, i32> {
    result.as_ref().map(|r| r.0).map_err(|e| *e)
}
