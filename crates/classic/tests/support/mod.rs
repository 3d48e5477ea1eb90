//! Packets, filters and an evaluator of extended programs, shared by the tests.
#![allow(dead_code, reason = "each test uses a part")]

use std::io::Write as _;
use std::process::{Command, Stdio};

use bpfkit_classic::{AluOp, Cond, Insn, Op, Operand, Program, Rules, Size};
use bpfkit_isa as isa;

/// A small generator of pseudo-random numbers (xorshift), the same everywhere.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) as u32
    }

    /// A number below `limit`.
    pub fn below(&mut self, limit: u32) -> u32 {
        self.next() % limit
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u32) as usize]
    }

    pub fn one_in(&mut self, n: u32) -> bool {
        self.below(n) == 0
    }
}

/// A packet of some protocol, at times cut short or damaged.
pub fn packet(random: &mut Random) -> Vec<u8> {
    let mut p = Vec::new();
    for _ in 0..2 {
        p.extend([2, 0, 0, 0, 0, random.below(4) as u8]);
    }
    while random.one_in(4) {
        p.extend(random.pick(&[0x8100u16, 0x88a8, 0x9100]).to_be_bytes());
        p.extend((random.below(8) as u16).to_be_bytes());
    }
    let port = |random: &mut Random| {
        random
            .pick(&[22u16, 53, 80, 443, 1024, 40000])
            .to_be_bytes()
    };
    let transport = |random: &mut Random, protocol: u8| {
        let mut t = Vec::new();
        match protocol {
            1 | 58 => t.extend([
                random.pick(&[0, 3, 8, 128, 135]),
                random.below(4) as u8,
                0,
                0,
                0,
                0,
                0,
                0,
            ]),
            6 => {
                t.extend(port(random));
                t.extend(port(random));
                t.extend([0; 8]);
                let words = 5 + random.below(4) as u8;
                t.extend([words << 4, random.below(64) as u8]);
                t.extend(vec![0; usize::from(words) * 4 - 14]);
            }
            _ => {
                t.extend(port(random));
                t.extend(port(random));
                t.extend([0; 4]);
            }
        }
        t.extend((0..random.below(60)).map(|i| i as u8));
        t
    };
    let host = |random: &mut Random| [10u8, random.below(2) as u8, 0, random.below(4) as u8];
    match random.below(8) {
        0 => {
            p.extend(0x0806u16.to_be_bytes());
            p.extend([0, 1, 8, 0, 6, 4, 0, random.pick(&[1, 2])]);
            p.extend([0; 6]);
            p.extend(host(random));
            p.extend([0; 6]);
            p.extend(host(random));
        }
        1 | 2 => {
            p.extend(0x86ddu16.to_be_bytes());
            let next = random.pick(&[6u8, 17, 58, 0, 44, 132]);
            let inner = transport(random, next);
            p.extend([0x60, 0, 0, 0]);
            p.extend((inner.len() as u16).to_be_bytes());
            p.extend([next, 64]);
            for _ in 0..2 {
                p.extend([
                    0x20,
                    1,
                    0xd,
                    0xb8,
                    0,
                    0,
                    0,
                    0,
                    0,
                    0,
                    0,
                    0,
                    0,
                    0,
                    0,
                    random.below(4) as u8,
                ]);
            }
            p.extend(inner);
        }
        3 => p.extend(
            random
                .pick(&[0x8847u16, 0x8863, 0x8864, 0x0800, 60, 0x88cc])
                .to_be_bytes(),
        ),
        _ => {
            p.extend(0x0800u16.to_be_bytes());
            let protocol = random.pick(&[6u8, 6, 17, 1, 132, 47, 50]);
            let words = 5 + random.pick(&[0, 0, 0, 1, 3]);
            let inner = transport(random, protocol);
            p.extend([0x40 | words, random.below(4) as u8]);
            p.extend(((usize::from(words) * 4 + inner.len()) as u16).to_be_bytes());
            p.extend([0, 0]);
            p.extend(random.pick(&[0u16, 0, 0, 0x4000, 0x2000, 7]).to_be_bytes());
            p.extend([64, protocol, 0, 0]);
            p.extend(host(random));
            p.extend(host(random));
            p.extend(vec![1; usize::from(words) * 4 - 20]);
            p.extend(inner);
        }
    }
    if random.one_in(5) {
        p.truncate(random.below(p.len() as u32 + 1) as usize);
    }
    if random.one_in(5) && !p.is_empty() {
        let at = random.below(p.len() as u32) as usize;
        p[at] = random.next() as u8;
    }
    p
}

/// A filter that the kernel's rules let through, of up to `most` instructions.
pub fn filter(random: &mut Random, most: u32) -> Vec<Insn> {
    loop {
        let len = 1 + random.below(most);
        let stored = random.below(4).min(len - 1);
        let insns: Vec<Insn> = (0..len)
            .map(|at| {
                if at < stored {
                    return random.pick(&[Op::Store(at), Op::StoreX(at)]).encode();
                }
                random_op(random, len - at - 1, stored).encode()
            })
            .collect();
        if Program::new(&insns, Rules::Packet).is_ok() {
            return insns;
        }
    }
}

/// An instruction with `left` ones after it.
fn random_op(random: &mut Random, left: u32, stored: u32) -> Op {
    const SIZES: &[Size] = &[Size::B, Size::H, Size::W];
    const ALU: &[AluOp] = &[
        AluOp::Add,
        AluOp::Sub,
        AluOp::Mul,
        AluOp::Div,
        AluOp::Mod,
        AluOp::Or,
        AluOp::And,
        AluOp::Xor,
        AluOp::Lsh,
        AluOp::Rsh,
    ];
    let constant = |random: &mut Random| match random.below(6) {
        0 => random.next(),
        1 => random.pick(&[0, 1, 31, 32, 0x7fff_ffff, 0x8000_0000, u32::MAX]),
        _ => random.below(70),
    };
    let offset = |random: &mut Random| match random.below(24) {
        0 => random.pick(&[
            0x7fff,
            0x8000,
            0xfffc,
            0xffff,
            0x1_0000,
            0x7fff_fffc,
            0x7fff_ffff,
            0x8000_0000,
        ]),
        1 => random.pick(&[
            0xffe0_0000,
            0xffe0_000c,
            0xfff0_0000,
            0xfff0_0009,
            0xffef_ffff,
            0xffdf_ffff,
        ]),
        2 => u32::MAX - random.below(40),
        _ => random.below(64),
    };
    if left == 0 {
        return if random.one_in(2) {
            Op::ReturnA
        } else {
            Op::ReturnK(random.pick(&[0, 1, 65535, u32::MAX]))
        };
    }
    match random.below(20) {
        0..=3 => loop {
            // The end of the range is for ancillary loads.
            let k = offset(random);
            if k < bpfkit_classic::code::AD_OFF {
                break Op::LoadAbs {
                    size: random.pick(SIZES),
                    k,
                };
            }
        },
        4 | 5 => Op::LoadInd {
            size: random.pick(SIZES),
            k: offset(random),
        },
        6 => Op::LoadXMsh(random.below(40)),
        7 => random.pick(&[Op::LoadLen, Op::LoadXLen]),
        8 => Op::LoadImm(constant(random)),
        9 => Op::LoadXImm(constant(random)),
        10 if stored > 0 => Op::LoadMem(random.below(stored)),
        11 if stored > 0 => Op::LoadXMem(random.below(stored)),
        12 if random.one_in(6) => Op::ReturnK(random.pick(&[0, 7])),
        13 => random.pick(&[Op::Tax, Op::Txa, Op::Neg, Op::Tax]),
        14 | 15 => {
            let src = if random.one_in(2) {
                Operand::X
            } else {
                Operand::K(constant(random))
            };
            Op::Alu {
                op: random.pick(ALU),
                src,
            }
        }
        16 if random.one_in(4) => Op::Jump(random.below(left)),
        _ => {
            let skip = |random: &mut Random| random.below(left.min(6)) as u8;
            let src = if random.one_in(4) {
                Operand::X
            } else {
                Operand::K(constant(random))
            };
            let cond = random.pick(&[Cond::Eq, Cond::Gt, Cond::Ge, Cond::Set]);
            Op::JumpIf {
                cond,
                src,
                jt: skip(random),
                jf: skip(random),
            }
        }
    }
}

/// What a program is called with in [`evaluate`].
pub struct Call<'a> {
    /// R1–R4.
    pub args: [u64; 4],
    /// Memory that it may read, by address.
    pub memory: &'a [(u64, &'a [u8])],
    /// For legacy packet loads: the packet and the offset of its network header.
    pub skb: Option<(&'a [u8], u32)>,
}

const STACK: u64 = 0x7000_0000;

/// Runs an extended program as its definition says, without any of this project's
/// engines. Panics where the program does what the verifier forbids: a load outside
/// the memory given, a read of a register never written.
pub fn evaluate(insns: &[isa::Insn], call: &Call<'_>) -> u32 {
    let ops = isa::decode_program(insns).expect("the converter writes instructions");
    let mut regs: [Option<u64>; 11] = [None; 11];
    regs[1..5].copy_from_slice(&call.args.map(Some));
    regs[10] = Some(STACK + 512);
    let mut stack = [None::<u8>; 512];
    let mut pc = 0usize;
    for _ in 0..100_000 {
        let op = ops
            .get(pc)
            .copied()
            .flatten()
            .expect("the program stays inside");
        pc += 1;
        let get = |regs: &[Option<u64>; 11], r: isa::Reg| {
            regs[r.index()].expect("a register read was written")
        };
        let value = |regs: &[Option<u64>; 11], src| match src {
            isa::Operand::Reg(r) => get(regs, r),
            isa::Operand::Imm(imm) => imm as i64 as u64,
        };
        match op {
            isa::Op::Alu {
                op,
                width,
                dst,
                src,
            } => {
                let b = value(&regs, src);
                let a = if op == isa::AluOp::Mov {
                    0
                } else {
                    get(&regs, dst)
                };
                let result = match (op, width) {
                    (isa::AluOp::Mov, _) => b,
                    (isa::AluOp::Add, _) => a.wrapping_add(b),
                    (isa::AluOp::Sub, _) => a.wrapping_sub(b),
                    (isa::AluOp::Mul, _) => a.wrapping_mul(b),
                    (isa::AluOp::Or, _) => a | b,
                    (isa::AluOp::And, _) => a & b,
                    (isa::AluOp::Xor, _) => a ^ b,
                    (isa::AluOp::Div, isa::Width::W32) => {
                        (a as u32).checked_div(b as u32).unwrap_or(0).into()
                    }
                    (isa::AluOp::Mod, isa::Width::W32) => {
                        (a as u32).checked_rem(b as u32).unwrap_or(a as u32).into()
                    }
                    (isa::AluOp::Lsh, isa::Width::W32) => (a as u32).wrapping_shl(b as u32).into(),
                    (isa::AluOp::Rsh, isa::Width::W32) => (a as u32).wrapping_shr(b as u32).into(),
                    _ => panic!("the converter does not write {op:?}"),
                };
                regs[dst.index()] = Some(if width == isa::Width::W32 {
                    u64::from(result as u32)
                } else {
                    result
                });
            }
            isa::Op::Neg { dst, .. } => {
                regs[dst.index()] = Some((get(&regs, dst) as u32).wrapping_neg().into());
            }
            isa::Op::Swap {
                kind: isa::Swap::ToBe,
                bits,
                dst,
            } => {
                let a = get(&regs, dst);
                regs[dst.index()] = Some(match bits {
                    16 => (a as u16).swap_bytes().into(),
                    _ => (a as u32).swap_bytes().into(),
                });
            }
            isa::Op::Load {
                size,
                signed: false,
                dst,
                base,
                off,
            } => {
                let address = get(&regs, base).wrapping_add(off as i64 as u64);
                let len = size.bytes() as usize;
                let bytes: Vec<u8> = if (STACK..STACK + 512).contains(&address) {
                    let at = (address - STACK) as usize;
                    stack[at..at + len]
                        .iter()
                        .map(|b| b.expect("a stack byte read was written"))
                        .collect()
                } else {
                    let (start, memory) = call
                        .memory
                        .iter()
                        .find(|(start, m)| {
                            address >= *start && address + len as u64 <= start + m.len() as u64
                        })
                        .unwrap_or_else(|| panic!("load of {len} bytes at {address:#x} at {pc}"));
                    let at = (address - start) as usize;
                    memory[at..at + len].to_vec()
                };
                let wide = bytes.iter().rev().fold(0u64, |v, &b| v << 8 | u64::from(b));
                regs[dst.index()] = Some(wide);
            }
            isa::Op::Store {
                size: isa::Size::W,
                base: isa::Reg::R10,
                off,
                src,
            } => {
                let at = (512 + i32::from(off)) as usize;
                let bytes = (value(&regs, src) as u32).to_le_bytes();
                stack[at..at + 4].copy_from_slice(&bytes.map(Some));
            }
            isa::Op::LoadPacket { size, source, imm } => {
                let (data, network) = call
                    .skb
                    .expect("only programs over an skb have packet loads");
                let base = match source {
                    isa::Source::Abs => 0,
                    isa::Source::Ind(reg) => get(&regs, reg) as u32,
                };
                let offset = base.wrapping_add(imm as u32);
                let at = match offset as i32 {
                    0.. => u64::from(offset),
                    -0x10_0000.. => u64::from(offset.wrapping_add(0x10_0000)) + u64::from(network),
                    -0x20_0000.. => u64::from(offset.wrapping_add(0x20_0000)),
                    _ => return 0,
                };
                let range = at as usize..at as usize + size.bytes() as usize;
                let Some(bytes) = data.get(range) else {
                    return 0;
                };
                get(&regs, isa::Reg::R6);
                regs[1..6].fill(None);
                regs[0] = Some(bytes.iter().fold(0, |v, &b| v << 8 | u64::from(b)));
            }
            isa::Op::Jump { off, .. } => pc = (pc as i64 + i64::from(off)) as usize,
            isa::Op::JumpIf {
                cond,
                width,
                dst,
                src,
                off,
            } => {
                let (mut a, mut b) = (get(&regs, dst), value(&regs, src));
                if width == isa::Width::W32 {
                    (a, b) = (u64::from(a as u32), u64::from(b as u32));
                }
                let holds = match cond {
                    isa::Cond::Eq => a == b,
                    isa::Cond::Ne => a != b,
                    isa::Cond::Gt => a > b,
                    isa::Cond::Ge => a >= b,
                    isa::Cond::Lt => a < b,
                    isa::Cond::Le => a <= b,
                    isa::Cond::Set => a & b != 0,
                    isa::Cond::Sge if width == isa::Width::W32 => a as i32 >= b as i32,
                    _ => panic!("the converter does not write {cond:?}"),
                };
                if holds {
                    pc = (pc as i64 + i64::from(off)) as usize;
                }
            }
            isa::Op::Call(isa::Call::Helper(id)) => {
                regs[1..6].fill(None);
                regs[0] = Some(match id {
                    7 => 0x1234_5678,
                    8 => 3,
                    _ => panic!("the converter does not call helper {id}"),
                });
            }
            isa::Op::Exit => return get(&regs, isa::Reg::R0) as u32,
            _ => panic!("the converter does not write {op:?}"),
        }
    }
    panic!("the program does not end");
}

/// Filter expressions of many kinds, the last few from the corners of libpcap's compiler.
pub const EXPRESSIONS: &[&str] = &[
    "port 22",
    "tcp port 22",
    "ip",
    "ip6",
    "arp",
    "rarp",
    "vlan",
    "vlan 3",
    "vlan and tcp port 22",
    "vlan and vlan and ip",
    "icmp",
    "icmp6",
    "udp port 53",
    "tcp",
    "udp",
    "sctp",
    "igmp",
    "esp",
    "ah",
    "host 10.0.0.1",
    "src host 10.0.0.1 and dst port 80",
    "net 10.0.0.0/16",
    "src net 10.1.0.0/16 or dst net 10.1.0.0/16",
    "ip6 host 2001:db8::1",
    "ip6 net 2001:db8::/64",
    "tcp[tcpflags] & (tcp-syn|tcp-fin) != 0",
    "tcp[tcpflags] = tcp-ack",
    "portrange 1000-2000",
    "src portrange 20-60",
    "less 100",
    "greater 60",
    "len > 80",
    "ether host 02:00:00:00:00:01",
    "ether src 02:00:00:00:00:02",
    "ether proto 0x88cc",
    "ether broadcast",
    "ether multicast",
    "multicast",
    "ip[0] & 0xf != 5",
    "ip broadcast",
    "ip multicast",
    "mpls",
    "mpls 5",
    "pppoed",
    "pppoes",
    "llc",
    "stp",
    "ip proto 132",
    "proto 47",
    "ip6 proto 44",
    "ip6 protochain 6",
    "ip protochain 6",
    "icmp[icmptype] = icmp-echo",
    "icmp6[icmp6type] = 135",
    "not ip",
    "not port 22",
    "port 22 or port 53 or port 80",
    "not (tcp and dst port 443)",
    "tcp port 22 and (((ip[2:2] - ((ip[0]&0xf)<<2)) - ((tcp[12]&0xf0)>>2)) != 0)",
    "ether[0] % 3 == 1",
    "ip[8] / ip[9] = 0",
    "ip[8] % ip[1] = 0",
    "ether[12:2] << 4 = 0x8000",
    "ether[12:2] >> ether[0] = 0x200",
    "1 << ip[8] = 0",
    "ip[2:2] ^ 3 > 60",
    "udp[4:2] * 2 < 60",
    "ip[6:2] & 0x1fff = 0",
    "(- ip[8]) = 0xffffffc0",
    "ether[len - 1] = 5",
    "ip[ip[8] - 65] = 7",
    "tcp[((tcp[12] & 0xf0) >> 2)] = 0",
    "ip6[40] = 0",
    "ether[70000] = 1",
    "arp[7] = 1",
    "ether[0:4] = 0x02000000",
    "iso",
    "decnet host 1.2",
    "atalk",
    "ipx",
    "netbeui",
    "lat",
];

/// What tcpdump writes, given `input`; `None` if there is none or it fails.
pub fn tcpdump(args: &[&str], input: &[u8]) -> Option<Vec<u8>> {
    let mut command = Command::new("tcpdump");
    command
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let mut child = command.spawn().ok()?;
    let mut stdin = child.stdin.take()?;
    let input = input.to_vec();
    let feeder = std::thread::spawn(move || stdin.write_all(&input));
    let out = child.wait_with_output().ok()?;
    // It does not read its input where it only compiles.
    let _ = feeder.join();
    out.status.success().then_some(out.stdout)
}

/// Packets with their lengths on the wire as a capture file of Ethernet.
pub fn capture(packets: &[(Vec<u8>, u32)]) -> Vec<u8> {
    let mut file = Vec::new();
    file.extend(0xa1b2_c3d4u32.to_le_bytes());
    file.extend([2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 1, 0, 0, 0]);
    for (i, (data, wire_len)) in packets.iter().enumerate() {
        // The number of the packet as its time.
        for word in [i as u32, 0, data.len() as u32, *wire_len] {
            file.extend(word.to_le_bytes());
        }
        file.extend(data);
    }
    file
}

/// Numbers of the packets in a capture file written from one of [`capture`].
pub fn numbers(file: &[u8]) -> Vec<usize> {
    let mut numbers = Vec::new();
    let word = |at: usize| Some(u32::from_le_bytes(*file.get(at..)?.first_chunk()?));
    let mut at = 24;
    while let (Some(number), Some(len)) = (word(at), word(at + 8)) {
        numbers.push(number as usize);
        at += 16 + len as usize;
    }
    numbers
}
