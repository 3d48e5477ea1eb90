//! Conversion: the extended program returns what the reference interpreter returns.

mod support;

use bpfkit_classic::asm::assemble;
use bpfkit_classic::{
    Context, ConvertError, Dialect, Insn, Op, Options, Packet, Program, Returns, Rules, Target,
    convert, run, run_seccomp, seccomp::SeccompData,
};
use bpfkit_isa as isa;
use bpfkit_runtime::PacketProgram;
use support::{Call, EXPRESSIONS, Random, capture, evaluate, filter, numbers, packet, tcpdump};

const DATA: u64 = 0x2000_0000;
const X86_64: u32 = 0xc000_003e;
const CTX: u64 = 0x1000_0000;
const WORDS: u64 = 0x3000_0000;

fn program(text: &str, rules: Rules) -> Program {
    let insns = assemble(text).unwrap_or_else(|e| panic!("{e}: {text}"));
    Program::new(&insns, rules).unwrap_or_else(|e| panic!("{e}: {text}"))
}

/// The values that the evaluator's helpers and the contexts below give.
fn context() -> Context {
    Context {
        protocol: 0x0800,
        pkttype: 4,
        ifindex: 77,
        mark: 0xdead_beef,
        queue: 9,
        hatype: 1,
        rxhash: 0xcafe_f00d,
        cpu: 3,
        vlan_tci: 0x2005,
        vlan_present: true,
        vlan_tpid: 0x8100,
        pay_offset: 42,
        random: 0x1234_5678,
        network_offset: 14,
    }
}

/// Runs the converted program as its target is called.
fn run_converted(insns: &[isa::Insn], target: Target, packet: &Packet<'_>) -> u32 {
    let c = packet.context;
    let len = packet.data.len() as u64;
    match target {
        Target::SkBuff => {
            let mut skb = [0u8; 192];
            let mut set =
                |at: usize, value: u32| skb[at..at + 4].copy_from_slice(&value.to_le_bytes());
            set(0, packet.wire_len);
            set(4, c.pkttype.into());
            set(8, c.mark);
            set(12, c.queue.into());
            set(16, c.protocol.to_be().into());
            set(20, c.vlan_present.into());
            set(24, c.vlan_tci.into());
            set(28, c.vlan_tpid.to_be().into());
            set(40, c.ifindex);
            set(68, c.rxhash);
            let memory: [(u64, &[u8]); 1] = [(CTX, &skb)];
            let skb = Some((packet.data, c.network_offset));
            evaluate(
                insns,
                &Call {
                    args: [CTX, 0, 0, 0],
                    memory: &memory,
                    skb,
                },
            )
        }
        Target::Xdp => {
            let mut md = [0u8; 24];
            md[0..4].copy_from_slice(&(DATA as u32).to_le_bytes());
            md[4..8].copy_from_slice(&((DATA + len) as u32).to_le_bytes());
            md[12..16].copy_from_slice(&c.ifindex.to_le_bytes());
            md[16..20].copy_from_slice(&u32::from(c.queue).to_le_bytes());
            let memory: [(u64, &[u8]); 2] = [(CTX, &md), (DATA, packet.data)];
            evaluate(
                insns,
                &Call {
                    args: [CTX, 0, 0, 0],
                    memory: &memory,
                    skb: None,
                },
            )
        }
        Target::Memory => {
            let words: Vec<u8> = c.words().iter().flat_map(|w| w.to_le_bytes()).collect();
            let memory: [(u64, &[u8]); 2] = [(DATA, packet.data), (WORDS, &words)];
            let args = [DATA, len, packet.wire_len.into(), WORDS];
            // The engines' own proof holds of every filter.
            if let Err(error) = PacketProgram::new(insns.to_vec()) {
                let text =
                    isa::disasm::listing(insns, isa::Syntax::Kernel, &isa::disasm::NoSymbols);
                panic!("{error}\n{text}");
            }
            evaluate(
                insns,
                &Call {
                    args,
                    memory: &memory,
                    skb: None,
                },
            )
        }
        Target::SeccompData => panic!("no packet"),
    }
}

fn check(insns: &[Insn], packet: &Packet<'_>) {
    let filter = Program::new(insns, Rules::Packet).expect("the filter is checked");
    for dialect in [Dialect::Kernel, Dialect::Libpcap] {
        for target in [Target::SkBuff, Target::Xdp, Target::Memory] {
            // XDP sees packets before they are cut.
            let whole = Packet {
                wire_len: packet.data.len() as u32,
                ..*packet
            };
            let packet = if target == Target::Xdp {
                &whole
            } else {
                packet
            };
            let expected = run(&filter, packet, dialect);
            let options = Options {
                dialect,
                ..Options::new(target)
            };
            let converted = convert(&filter, &options).expect("the filter converts");
            let got = run_converted(&converted, target, packet);
            assert_eq!(
                got,
                expected,
                "{dialect:?} {target:?}\n{}\n{}\npacket {:02x?}",
                bpfkit_classic::disasm::text(insns, bpfkit_classic::disasm::Syntax::Tcpdump),
                isa::disasm::listing(&converted, isa::Syntax::Kernel, &isa::disasm::NoSymbols),
                packet.data,
            );
        }
    }
}

#[test]
fn random_filters_give_the_same_on_random_packets() {
    let mut random = Random(0x1234_5678_9abc_def1);
    let context = context();
    for round in 0..4000 {
        let most = if round % 2 == 0 { 12 } else { 40 };
        let insns = filter(&mut random, most);
        for _ in 0..4 {
            let data = packet(&mut random);
            check(
                &insns,
                &Packet {
                    data: &data,
                    wire_len: data.len() as u32,
                    context: &context,
                },
            );
        }
    }
}

#[test]
fn every_length_around_each_load_gives_the_same() {
    let context = context();
    let data: Vec<u8> = (0..80u8).map(|b| b.wrapping_mul(37)).collect();
    for text in [
        "ldh [12]\njeq #0x21d5, l, r\nl: ldb [23]\njeq #6, m, r\nm: ldxb 4*([14]&0xf)\nldh [x+16]\njset #3, t, r\nt: ret #1\nr: ret #0",
        "ldb [0]\njeq #0, a, b\na: ret #9\nb: ld [40]\njgt #5, c, d\nc: ret a\nd: ldh [70]\nret a",
        "ldx #20\nld [x+4]\ntax\nldb [x+0]\nret a",
        "ld #len\nldxb 4*([3]&0xf)\nadd x\nret a",
        "ld [-2097148]\nadd #1\nret a",
        "ldh [-1048576]\nadd #1\nret a",
        "ldx #-1048570\nldb [x+4]\nadd #1\nret a",
        "ldx #5\nldb [x-4]\nadd #1\nret a",
    ] {
        let insns = assemble(text).unwrap();
        for len in 0..=data.len() {
            check(
                &insns,
                &Packet {
                    data: &data[..len],
                    wire_len: 80,
                    context: &context,
                },
            );
        }
    }
}

#[test]
fn big_packets_give_the_same() {
    let context = context();
    let data: Vec<u8> = (0..65535u32).map(|b| (b % 251) as u8).collect();
    for text in [
        "ld [40000]\nret a",
        "ldb [65534]\nadd #1\nret a",
        "ldb [65535]\nadd #1\nret a",
        "ldx #40000\nldh [x+25533]\nret a",
        "ldx #40000\nldh [x+25534]\nadd #1\nret a",
        "ldx #65534\nldb [x+0]\nadd #1\nret a",
        "ldx #70000\nldb [x+0]\nadd #1\nret a",
        "ldxb 4*([50000]&0xf)\ntxa\nadd #1\nret a",
    ] {
        let insns = assemble(text).unwrap();
        check(
            &insns,
            &Packet {
                data: &data,
                wire_len: 65535,
                context: &context,
            },
        );
    }
}

#[test]
fn ancillary_loads_read_the_context() {
    let context = context();
    let data = [0u8; 64];
    let packet = Packet {
        data: &data,
        wire_len: 64,
        context: &context,
    };
    let all: &[Target] = &[Target::SkBuff, Target::Xdp, Target::Memory];
    let skb: &[Target] = &[Target::SkBuff, Target::Memory];
    let own: &[Target] = &[Target::Memory];
    let cases: &[(&str, u32, &[Target])] = &[
        ("proto", 0x0800, skb),
        ("type", 4, skb),
        ("ifidx", 77, all),
        ("mark", 0xdead_beef, skb),
        ("queue", 9, all),
        ("rxhash", 0xcafe_f00d, skb),
        ("vlan_tci", 0x2005, skb),
        ("vlan_avail", 1, skb),
        ("vlan_tpid", 0x8100, skb),
        ("cpu", 3, all),
        ("rand", 0x1234_5678, all),
        ("hatype", 1, own),
        ("poff", 42, own),
        ("nla", 0, own),
        ("nlan", 0, own),
    ];
    for (name, value, targets) in cases {
        // X must survive a helper call, and the packet be there after it.
        let text =
            format!("ldx #len\nldb [7]\nst M[3]\nld {name}\nstx M[2]\ntax\nldb [9]\ntxa\nret a");
        let filter = program(&text, Rules::Packet);
        assert_eq!(run(&filter, &packet, Dialect::Kernel), *value, "{name}");
        for target in all {
            let converted = convert(&filter, &Options::new(*target));
            if targets.contains(target) {
                assert_eq!(
                    run_converted(&converted.unwrap(), *target, &packet),
                    *value,
                    "{name} {target:?}"
                );
            } else {
                assert!(
                    matches!(converted, Err(ConvertError::Ancillary { at: 3, .. })),
                    "{name} {target:?}"
                );
            }
        }
    }
    let xor = program("ld #5\nldx #3\nld [xor_x]\nret a", Rules::Packet);
    assert_eq!(run(&xor, &packet, Dialect::Kernel), 6);
    for target in all {
        let converted = convert(&xor, &Options::new(*target)).unwrap();
        assert_eq!(run_converted(&converted, *target, &packet), 6);
    }
    let message = convert(
        &program("ld poff\nret a", Rules::Packet),
        &Options::new(Target::Xdp),
    )
    .unwrap_err();
    assert_eq!(
        message.to_string(),
        "instruction 0: the program has no way to read `poff`: offset of the transport payload"
    );
}

/// Netlink attributes, some of which claim a length that is not theirs.
fn attributes(random: &mut Random) -> Vec<u8> {
    let mut bytes = vec![0; random.below(3) as usize * 2];
    for _ in 0..random.below(6) {
        let inner = random.below(24) as usize;
        let len = match random.below(8) {
            0 => random.below(80) as u16,
            _ => inner as u16 + 4,
        };
        bytes.extend(len.to_le_bytes());
        bytes.extend((random.pick(&[1, 2, 3, 0x4002, 0xffff, 0x8001]) as u16).to_le_bytes());
        bytes.extend((0..inner).map(|_| random.below(9) as u8));
        bytes.resize(bytes.len().next_multiple_of(4), 0);
    }
    if random.one_in(4) {
        bytes.truncate(random.below(bytes.len() as u32 + 1) as usize);
    }
    bytes
}

#[test]
fn netlink_attributes_are_found() {
    let mut random = Random(0x0bad_cafe_1357_9bdf);
    let context = context();
    let mut found = 0;
    for _ in 0..4000 {
        let name = random.pick(&["nla", "nlan"]);
        let start = random.pick(&[0, 0, 4, 8, 2, 40, 0x7fff_ffff, -1, -4]);
        let kind = random.pick(&[1, 1, 2, 3, 0x3fff, 0xffff, -1]);
        // A second walk starts where the first one has ended.
        let text = format!(
            "ld #{start}\nldx #{kind}\nld {name}\nst M[0]\nadd #4\nld {name}\nldx M[0]\nmul #1000\nadd x\nret a"
        );
        let filter = program(&text, Rules::Packet);
        let options = Options::new(Target::Memory);
        let converted = convert(&filter, &options).expect("memory takes every ancillary load");
        let data = attributes(&mut random);
        let packet = Packet {
            data: &data,
            wire_len: data.len() as u32,
            context: &context,
        };
        let expected = run(&filter, &packet, Dialect::Kernel);
        found += usize::from(expected > 1000);
        let got = run_converted(&converted, Target::Memory, &packet);
        assert_eq!(got, expected, "{text}\n{data:02x?}");
    }
    assert!(found > 100, "{found}");
}

#[test]
fn rounds_are_counted_as_the_reference_counts_them() {
    let context = context();
    // Adds 1 for each round, for ever, until the packet's length is used up.
    let endless = "ld #0\nagain: add #1\njeq #7, out\nja again\nout: ret a";
    let insns = assemble(endless).unwrap();
    let filter = Program::new(&insns, Rules::Libpcap).unwrap();
    let options = Options {
        dialect: Dialect::Libpcap,
        ..Options::new(Target::Memory)
    };
    let converted = convert(&filter, &options).unwrap();
    for len in 0..10 {
        let data = vec![0; len];
        let packet = Packet {
            data: &data,
            wire_len: 0,
            context: &context,
        };
        let expected = run(&filter, &packet, Dialect::Libpcap);
        assert_eq!(expected, if len >= 6 { 7 } else { 0 });
        assert_eq!(
            run_converted(&converted, Target::Memory, &packet),
            expected,
            "{len}"
        );
    }
}

#[test]
fn one_check_covers_the_loads_of_a_path() {
    // Every path to a match reads up to 38, so one comparison of the length is enough.
    let text = "ldh [12]\njeq #0x800, ip, no\nip: ldb [23]\njeq #6, tcp, no\ntcp: ldh [36]\njeq #22, yes, no\nyes: ret #1\nno: ret #0";
    let converted = convert(&program(text, Rules::Packet), &Options::new(Target::Memory)).unwrap();
    let checks = converted.iter().filter(|i| {
        matches!(
            isa::Op::decode(std::slice::from_ref(i)),
            Ok(isa::Op::JumpIf {
                cond: isa::Cond::Lt,
                width: isa::Width::W64,
                src: isa::Operand::Imm(38),
                ..
            })
        )
    });
    assert_eq!(checks.count(), 1);
    // The check, loads that are not swapped as they are only compared, three jumps, two returns.
    assert_eq!(converted.len(), 1 + 3 + 3 + 4);
}

#[test]
fn results_are_mapped() {
    let filter = program("ldb [0]\nret a", Rules::Packet);
    let context = Context::default();
    let returns = Some(Returns {
        matched: 2,
        unmatched: 1,
    });
    let options = Options {
        returns,
        ..Options::new(Target::Xdp)
    };
    let converted = convert(&filter, &options).unwrap();
    for (data, expected) in [(&[0u8][..], 1), (&[7], 2), (&[], 1)] {
        let packet = Packet {
            data,
            wire_len: 1,
            context: &context,
        };
        assert_eq!(run_converted(&converted, Target::Xdp, &packet), expected);
    }
    let options = Options {
        returns,
        ..Options::new(Target::SkBuff)
    };
    assert_eq!(convert(&filter, &options), Err(ConvertError::Unmatched));
}

#[test]
fn filters_of_the_greatest_length_convert() {
    // Long enough that jumps need 32 bits.
    let mut insns = vec![Op::LoadXImm(0).encode()];
    while insns.len() < 4094 {
        insns.push(
            Op::LoadInd {
                size: bpfkit_classic::Size::B,
                k: 0,
            }
            .encode(),
        );
        insns.push(
            Op::LoadInd {
                size: bpfkit_classic::Size::H,
                k: 1,
            }
            .encode(),
        );
        insns.push(
            Op::JumpIf {
                cond: bpfkit_classic::Cond::Set,
                src: bpfkit_classic::Operand::K(0x8000),
                jt: 255.min(4094usize.saturating_sub(insns.len())) as u8,
                jf: 0,
            }
            .encode(),
        );
    }
    insns.truncate(4094);
    insns.push(Op::ReturnK(3).encode());
    insns.push(Op::ReturnK(5).encode());
    let context = context();
    for data in [&[0u8, 1, 2, 3][..], &[0, 0x80, 0], &[1]] {
        check(
            &insns,
            &Packet {
                data,
                wire_len: 4,
                context: &context,
            },
        );
    }
    let filter = Program::new(&insns, Rules::Packet).unwrap();
    let converted = convert(&filter, &Options::new(Target::Xdp)).unwrap();
    assert!(converted.len() > i16::MAX as usize);
}

#[test]
fn seccomp_filters_convert() {
    let text = "ld [4]
        jne #0xc000003e, bad
        ld [0]
        st M[1]
        jeq #1, good
        jgt #300, bad
        ld [20]
        tax
        ld [16]
        and x
        add #len
        ldx M[1]
        mul x
        ret a
        bad: ret #0
        good: ret #0x7fff0000";
    let text = text.replace("add #len", "ldx #len\nadd x");
    let filter = program(&text, Rules::Seccomp);
    let converted = convert(&filter, &Options::new(Target::SeccompData)).unwrap();
    for (nr, arch) in [(1, X86_64), (5, X86_64), (400, X86_64), (1, 0)] {
        let call = SeccompData {
            nr,
            arch,
            args: [0x0000_0005_0000_0007, 0, 0, 0, 0, 0],
            ..Default::default()
        };
        let expected = match (nr, arch) {
            (1, X86_64) => 0x7fff_0000,
            (5, X86_64) => ((5 & 7) + 64) * 5,
            _ => 0,
        };
        assert_eq!(run_seccomp(&filter, &call), expected);
        let bytes = call.to_le_bytes();
        let memory: [(u64, &[u8]); 1] = [(CTX, &bytes)];
        assert_eq!(
            evaluate(
                &converted,
                &Call {
                    args: [CTX, 0, 0, 0],
                    memory: &memory,
                    skb: None
                }
            ),
            expected
        );
    }
    assert_eq!(
        convert(&filter, &Options::new(Target::Memory)),
        Err(ConvertError::Rules(Rules::Seccomp))
    );
    let filter = program("ret #1", Rules::Packet);
    assert_eq!(
        convert(&filter, &Options::new(Target::SeccompData)),
        Err(ConvertError::Rules(Rules::Packet))
    );
}

#[test]
fn filter_expressions_give_what_tcpdump_gives() {
    if tcpdump(&["-y", "EN10MB", "-d", "ip"], &[]).is_none() {
        println!("skipped: no tcpdump");
        return;
    }
    let mut random = Random(0x00de_fea7_00c0_ffee);
    let packets: Vec<_> = (0..2000)
        .map(|_| {
            let data = packet(&mut random);
            let more = if random.one_in(4) {
                random.below(200)
            } else {
                0
            };
            let wire_len = data.len() as u32 + more;
            (data, wire_len)
        })
        .collect();
    let file = capture(&packets);
    let context = Context::default();
    let mut matched = 0;
    for expression in EXPRESSIONS {
        let c = tcpdump(&["-y", "EN10MB", "-dd", expression], &[]).expect(expression);
        let insns = assemble(&String::from_utf8(c).unwrap()).unwrap();
        let filter = Program::new(&insns, Rules::Libpcap).unwrap();
        let theirs = tcpdump(&["-r", "-", "-w", "-", expression], &file).expect(expression);
        let expected = numbers(&theirs);
        matched += expected.len();
        let options = Options {
            dialect: Dialect::Libpcap,
            ..Options::new(Target::Memory)
        };
        let converted = convert(&filter, &options).unwrap();
        let mut ours = Vec::new();
        for (i, (data, wire_len)) in packets.iter().enumerate() {
            let packet = Packet {
                data,
                wire_len: *wire_len,
                context: &context,
            };
            let result = run(&filter, &packet, Dialect::Libpcap);
            if result != 0 {
                ours.push(i);
            }
            assert_eq!(
                run_converted(&converted, Target::Memory, &packet),
                result,
                "{expression} on packet {i}"
            );
        }
        assert_eq!(ours, expected, "{expression}");
    }
    assert!(matched > 1000);
}
