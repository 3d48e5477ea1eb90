//! Filters of every way give the same on every packet: libpcap's `bpf_filter`, the classic
//! interpreter, extended BPF interpreted and compiled. And the kernel, on a few.

#[path = "../../classic/tests/support/mod.rs"]
mod support;

use bpfkit::classic::{
    Broken, Context, Dialect, Options, Packet, Program, Rules, Target, convert, run,
};
use bpfkit::isa::disasm::{NoSymbols, listing};
use bpfkit::jit::Jit;
use bpfkit::oracle::{Kernel, LoadOptions, TestRun};
use bpfkit::pcap::{CompileOptions, Libpcap};
use bpfkit::runtime::packet::Ancillary;
use bpfkit::runtime::{PacketProgram, raw_program};
use bpfkit::{Engine, Interpreter, ProgType};
use support::{EXPRESSIONS, Random, filter, packet};

/// Expressions beside those for Ethernet that the classic crate's tests have.
const MORE: &[&str] = &[
    "gateway 10.0.0.1 or ip",
    "ip host 10.0.0.1 and not tcp",
    "dst net 10.1.0.0 mask 255.255.0.0",
    "ip6 src net 2001:db8::/126",
    "ether host 02:00:00:00:00:03 and ip6",
    "ether dst 02:00:00:00:00:00",
    "tcp src port 443",
    "tcp dst portrange 1-1023",
    "udp src portrange 53-80",
    "sctp port 80",
    "ip proto \\tcp",
    "ip6 proto \\udp",
    "ether proto \\arp",
    "ether proto 0x86dd",
    "ether proto \\ip and ip[9] = 17",
    "pim",
    "vrrp",
    "carp",
    "geneve",
    "geneve 5 and tcp",
    "mpls and mpls",
    "mpls 1024 and ip host 10.0.0.1",
    "mpls and tcp port 22",
    "pppoes and ip",
    "pppoes 7 and tcp port 80",
    "vlan 5 and mpls",
    "vlan and pppoes",
    "snap",
    "llc and not stp",
    "llc i",
    "llc s",
    "llc u",
    "llc rr",
    "llc ua",
    "isis",
    "isis and l1",
    "lsp",
    "csnp",
    "psnp",
    "iih",
    "es-is",
    "clnp",
    "moprc",
    "mopdl",
    "sca",
    "aarp",
    "decnet src 1.3",
    "arp[6:2] = 1",
    "arp host 10.0.0.2",
    "rarp host 10.0.0.2",
    "icmp[0] = 8 and icmp[1] = 0",
    "icmp[icmptype] != icmp-echo and icmp[icmptype] != icmp-echoreply",
    "icmp6[0] = 128",
    "igmp[0] = 0x11",
    "sctp[0:2] = 22",
    "ip6[6] = 6",
    "ip6[6] = 17 and ip6[42:2] = 53",
    "ip[0] & 0xf > 5",
    "ip[6] & 0x40 != 0",
    "ip[6:2] & 0x3fff != 0",
    "ip[1] & 0xfc >> 2 = 1",
    "ip[2:2] - 40 > 20",
    "ip[8] < 65",
    "ip[12:4] = 0x0a000001",
    "ip[16:4] & 0xffff0000 = 0x0a010000",
    "ether[6:4] = 0x02000000 or ether[10:2] = 3",
    "ether[0] & 1 = 0",
    "ether[12:2] = 0x0806",
    "ether[ether[14] & 7] = 2",
    "tcp[12] & 0xf0 > 0x50",
    "tcp[13] = 2 or tcp[13] = 18",
    "tcp[tcpflags] & tcp-push != 0",
    "tcp[4:4] = 0",
    "tcp[20:4] = 0x00010203",
    "udp[6:2] = 0",
    "udp[8] = 0",
    "len <= 64",
    "len % 4 = 2",
    "len / 7 = 9",
    "len - 14 = ip[2:2]",
    "ip[2:2] = len - 14",
    "greater 1500 or less 30",
    "1 = 1",
    "1 = 2",
    "not (1 = 2)",
    "ip[0] + ip[1] * 3 - 7 ^ 5 = 0x45",
    "ip[8] << 2 = 256",
    "0x80000000 >> ip[1] = 1",
    "- ip[1] = 0",
    "ip[100] = 3",
    "ip[ip[2:2] - 1] = 5",
    "tcp[(tcp[12] >> 2) & 0x3c:4] = 0x00010203",
    "ether broadcast or ether multicast",
    "ip6 multicast",
    "ah or esp",
    "ip protochain 51",
    "ip6 protochain 17",
    "tcp and ip6 protochain 58",
];

/// A link type, bytes that its packets have in front of an IP packet, expressions.
type Link = (
    &'static str,
    &'static [&'static [u8]],
    &'static [&'static str],
);

/// Link types other than Ethernet.
const LINKS: &[Link] = &[
    (
        "RAW",
        &[&[]],
        &[
            "ip",
            "ip6",
            "tcp port 22",
            "udp",
            "host 10.0.0.1",
            "ip[9] = 6",
            "len > 40",
        ],
    ),
    (
        "NULL",
        &[&[2, 0, 0, 0], &[10, 0, 0, 0], &[0, 0, 0, 2]],
        &[
            "ip",
            "ip6",
            "tcp port 22",
            "udp port 53",
            "net 10.0.0.0/16",
            "link[0] = 2",
        ],
    ),
    (
        "LOOP",
        &[&[0, 0, 0, 2], &[0, 0, 0, 10], &[2, 0, 0, 0]],
        &["ip", "ip6", "tcp", "port 80"],
    ),
    (
        "PPP",
        &[
            &[0xff, 3, 0, 0x21],
            &[0xff, 3, 0, 0x57],
            &[0xff, 3, 0xc0, 0x21],
        ],
        &[
            "ip",
            "ip6",
            "tcp port 443",
            "ppp proto 0x21",
            "host 10.1.0.1",
        ],
    ),
    (
        "LINUX_SLL",
        &[
            &[0, 0, 0, 1, 0, 6, 2, 0, 0, 0, 0, 1, 0, 0, 8, 0],
            &[0, 4, 0, 1, 0, 6, 2, 0, 0, 0, 0, 1, 0, 0, 0x86, 0xdd],
            &[0, 1, 0, 1, 0, 6, 2, 0, 0, 0, 0, 1, 0, 0, 8, 6],
        ],
        &[
            "ip",
            "ip6",
            "arp",
            "tcp port 22",
            "udp",
            "inbound",
            "outbound",
            "port 53 and host 10.0.0.2",
        ],
    ),
    (
        "LINUX_SLL2",
        &[
            &[8, 0, 0, 0, 0, 0, 0, 1, 0, 1, 0, 6, 2, 0, 0, 0, 0, 1, 0, 0],
            &[
                0x86, 0xdd, 0, 0, 0, 0, 0, 1, 0, 1, 4, 6, 2, 0, 0, 0, 0, 1, 0, 0,
            ],
        ],
        &[
            "ip",
            "ip6",
            "tcp port 22",
            "ifindex 1",
            "inbound",
            "outbound",
        ],
    ),
    (
        "IEEE802_11",
        &[
            &[
                8, 1, 0, 0, 2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 3, 0, 0, 0xaa, 0xaa,
                3, 0, 0, 0, 8, 0,
            ],
            &[
                0x88, 2, 0, 0, 2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 3, 0, 0, 0, 0,
                0xaa, 0xaa, 3, 0, 0, 0, 8, 0,
            ],
            &[
                0x80, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0,
                3, 0, 0,
            ],
            &[0xd4, 0, 0, 0, 2, 0, 0, 0, 0, 1],
        ],
        &[
            "type mgt",
            "type mgt subtype beacon",
            "type data",
            "type ctl subtype ack",
            "subtype qos-data",
            "wlan host 02:00:00:00:00:01",
            "wlan src 02:00:00:00:00:02",
            "wlan addr1 02:00:00:00:00:01",
            "wlan addr3 02:00:00:00:00:03",
            "dir tods",
            "dir fromds",
            "ip",
            "tcp port 22",
            "multicast",
            "broadcast",
        ],
    ),
    (
        "IEEE802_11_RADIO",
        &[&[
            0, 0, 8, 0, 0, 0, 0, 0, 8, 1, 0, 0, 2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0,
            3, 0, 0, 0xaa, 0xaa, 3, 0, 0, 0, 8, 0,
        ]],
        &[
            "ip",
            "tcp port 22",
            "type data",
            "type mgt",
            "radio[2] = 8",
            "wlan[0] = 8",
        ],
    ),
    (
        "FDDI",
        &[&[
            0x50, 2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0xaa, 0xaa, 3, 0, 0, 0, 8, 0,
        ]],
        &[
            "ip",
            "tcp",
            "ether host 02:00:00:00:00:01",
            "fddi[0] = 0x50",
        ],
    ),
    (
        "IEEE802",
        &[&[
            0, 0x40, 2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0xaa, 0xaa, 3, 0, 0, 0, 8, 0,
        ]],
        &["ip", "udp", "tr host 02:00:00:00:00:01", "tcp port 22"],
    ),
    (
        "C_HDLC",
        &[
            &[0x0f, 0, 8, 0],
            &[0x0f, 0, 0x86, 0xdd],
            &[0x8f, 0, 0x20, 0],
        ],
        &["ip", "ip6", "tcp port 22", "iso"],
    ),
    (
        "PFLOG",
        &[&[61, 2, 1, 0, b'e', b'm', b'0']],
        &["ip", "on em0", "action block", "reason match", "rnr 0"],
    ),
    (
        "SUNATM",
        &[&[2, 0, 0, 5, 0xaa, 0xaa, 3, 0, 0, 0, 8, 0]],
        &[
            "lane",
            "vpi 0",
            "vci 5",
            "oam",
            "metac",
            "ilmic",
            "connectmsg",
        ],
    ),
    (
        "MTP2_WITH_PHDR",
        &[&[0, 1, 0, 0, 0x80, 0x80, 0x20, 3, 1, 2, 3, 4]],
        &["fisu", "lssu", "msu", "sio 3", "opc 1", "dpc 2", "sls 3"],
    ),
];

/// Packets for a link type: an IP packet behind one of its headers, or with anything else.
fn behind(random: &mut Random, headers: &[&[u8]]) -> Vec<u8> {
    let inner = packet(random);
    let mut bytes = random.pick(headers).to_vec();
    bytes.extend(inner.get(14..).unwrap_or(&inner));
    if random.one_in(6) {
        bytes.truncate(random.below(bytes.len() as u32 + 1) as usize);
    }
    if random.one_in(6) && !bytes.is_empty() {
        let at = random.below(bytes.len().min(40) as u32) as usize;
        bytes[at] = random.next() as u8;
    }
    bytes
}

/// Ethernet packets, some behind MPLS labels, in PPPoE sessions, with an LLC header.
fn ethernet(random: &mut Random) -> Vec<u8> {
    let mut bytes = packet(random);
    let labels: &[&[u8]] = &[
        &[0x88, 0x47, 0, 0, 0x51, 64],
        &[0x88, 0x47, 0x40, 0, 0, 64, 0, 0, 0x51, 64],
        &[0x88, 0x64, 0x11, 0, 0, 7, 0, 40, 0, 0x21],
        &[0x88, 0x64, 0x11, 0, 0, 8, 0, 40, 0, 0x57],
        &[0, 60, 0xaa, 0xaa, 3, 0, 0, 0, 8, 0],
        &[0, 60, 0xfe, 0xfe, 3, 0x83, 27, 1, 0, 15, 1],
        &[0, 60, 0x42, 0x42, 3],
        &[0, 60, 0xf0, 0xf0, 3],
        &[0, 60, 0xaa, 0xaa, 3, 8, 0, 7, 0x80, 0x9b],
        &[0, 60, 0xff, 0xff],
        &[0x80, 0x35, 0, 1, 8, 0, 6, 4, 0, 3],
        &[0x60, 3, 0x22, 0, 0x81, 0x0d, 0, 0, 2, 4],
    ];
    if random.one_in(4) && bytes.len() > 14 {
        let label = random.pick(labels);
        bytes.splice(12..14, label.iter().copied());
    }
    bytes
}

const PACKETS: usize = 10_000;
/// Programs drawn at random.
const PROGRAMS: usize = 5000;

struct Sample {
    packets: Vec<(Vec<u8>, u32)>,
}

impl Sample {
    fn new(random: &mut Random, mut make: impl FnMut(&mut Random) -> Vec<u8>) -> Sample {
        let packets = (0..PACKETS).map(|_| {
            let data = make(random);
            let more = match random.below(4) {
                0 => random.below(200),
                _ => 0,
            };
            let wire_len = data.len() as u32 + more;
            (data, wire_len)
        });
        Sample {
            packets: packets.collect(),
        }
    }
}

/// Runs an expression in every way; how many packets matched, `None` if libpcap refuses it.
fn agree(libpcap: &Libpcap, link: i32, expression: &str, sample: &Sample) -> Option<usize> {
    let options = CompileOptions {
        link,
        ..CompileOptions::default()
    };
    let insns = libpcap.compile(expression, &options).ok()?;
    let program = Program::new(&insns, Rules::Libpcap).expect(expression);
    if let Err(error) = Program::new(&insns, Rules::Packet)
        && matches!(error.broken, Broken::ScratchNotStored(_))
    {
        // What libpcap gives then depends on what lay in its memory.
        println!("skipped: {expression}: libpcap's program is wrong: {error}");
        return Some(1);
    }
    let reference = libpcap.reference(&program).expect(expression);
    let options = Options {
        dialect: Dialect::Libpcap,
        ..Options::new(Target::Memory)
    };
    let converted = convert(&program, &options).expect(expression);
    let text = listing(&converted, bpfkit::isa::Syntax::Kernel, &NoSymbols).to_string();
    let converted =
        PacketProgram::new(converted).unwrap_or_else(|e| panic!("{expression}: {e}\n{text}"));
    let load = |engine: &dyn Engine| engine.load_packet(&converted).expect(expression);
    let (interp, jit) = (load(&Interpreter::default()), load(&Jit::default()));
    let (context, nothing) = (Context::default(), Ancillary::default());
    let mut matched = 0;
    for (data, wire_len) in &sample.packets {
        let expected = reference.run(data, *wire_len);
        matched += usize::from(expected != 0);
        let packet = Packet {
            data,
            wire_len: *wire_len,
            context: &context,
        };
        let classic = run(&program, &packet, Dialect::Libpcap);
        let extended = interp.run(data, *wire_len, &nothing);
        let compiled = jit.run(data, *wire_len, &nothing);
        assert_eq!(
            [classic, extended, compiled],
            [expected; 3],
            "{expression}: classic, extended, compiled; libpcap {expected}\n{text}\n{data:02x?}"
        );
    }
    Some(matched)
}

/// Two expressions as one.
fn combined(random: &mut Random, all: &[&str]) -> String {
    let (a, b) = (random.pick(all), random.pick(all));
    match random.below(4) {
        0 => format!("({a}) and ({b})"),
        1 => format!("({a}) or ({b})"),
        2 => format!("({a}) and not ({b})"),
        _ => format!("not (({a}) or ({b}))"),
    }
}

#[test]
fn every_way_gives_the_same_on_every_packet() {
    let libpcap = match Libpcap::load() {
        Ok(libpcap) => libpcap,
        Err(error) => return println!("skipped: {error}"),
    };
    let mut random = Random(0x5eed_0000_f117_e501);
    let (mut expressions, mut refused, mut matched, mut always) = (0, Vec::new(), 0, 0);
    let mut one = |link: i32, expression: &str, sample: &Sample| match agree(
        &libpcap, link, expression, sample,
    ) {
        Some(n) => {
            expressions += 1;
            matched += n;
            always += usize::from(n == 0 || n == PACKETS);
        }
        None => refused.push(expression.to_owned()),
    };
    let sample = Sample::new(&mut random, ethernet);
    let all: Vec<&str> = EXPRESSIONS.iter().chain(MORE).copied().collect();
    for expression in &all {
        one(1, expression, &sample);
    }
    for _ in 0..100 {
        let expression = combined(&mut random, &all);
        one(1, &expression, &sample);
    }
    for (name, headers, expressions) in LINKS {
        let Some(link) = libpcap.link_by_name(name) else {
            continue;
        };
        let sample = Sample::new(&mut random, |random| behind(random, headers));
        for expression in *expressions {
            one(link, expression, &sample);
        }
    }
    println!(
        "{expressions} expressions, {matched} matches, {always} always or never; refused: {refused:?}"
    );
    assert!(expressions >= 300, "{expressions}; refused: {refused:?}");
    assert!(
        always * 3 < expressions,
        "{always} of {expressions} say nothing"
    );
}

/// Filters of instructions drawn at random, which no compiler would write.
#[test]
fn random_programs_give_the_same() {
    let libpcap = Libpcap::load()
        .inspect_err(|error| println!("skipped: libpcap: {error}"))
        .ok();
    let mut random = Random(0x0f1e_2d3c_4b5a_6978);
    let context = Context {
        network_offset: 14,
        ..Context::default()
    };
    let words = context.words();
    for round in 0..PROGRAMS {
        let insns = filter(&mut random, if round % 2 == 0 { 12 } else { 60 });
        let program = Program::new(&insns, Rules::Packet).expect("filters are right");
        let reference = libpcap.as_ref().and_then(|l| l.reference(&program));
        for dialect in [Dialect::Libpcap, Dialect::Kernel] {
            let options = Options {
                dialect,
                ..Options::new(Target::Memory)
            };
            let converted = convert(&program, &options).expect("memory takes every filter");
            let converted = PacketProgram::new(converted).expect("it is proven");
            let load = |engine: &dyn Engine| engine.load_packet(&converted).expect("it loads");
            let (interp, jit) = (load(&Interpreter::default()), load(&Jit::default()));
            for _ in 0..4 {
                let data = ethernet(&mut random);
                let wire_len = data.len() as u32 + random.pick(&[0, 0, 9]);
                let packet = Packet {
                    data: &data,
                    wire_len,
                    context: &context,
                };
                let expected = run(&program, &packet, dialect);
                let extended = interp.run(&data, wire_len, &words);
                let compiled = jit.run(&data, wire_len, &words);
                assert_eq!(
                    [extended, compiled],
                    [expected; 2],
                    "{dialect:?} {insns:?} {data:02x?}"
                );
                if let (Some(reference), Dialect::Libpcap) = (&reference, dialect) {
                    assert_eq!(
                        reference.run(&data, wire_len),
                        expected,
                        "{insns:?} {data:02x?}"
                    );
                }
            }
        }
    }
}

/// The converted program in the kernel gives what the classic interpreter gives here.
#[test]
fn the_kernel_agrees_on_a_few() {
    let libpcap = match Libpcap::load() {
        Ok(libpcap) => libpcap,
        Err(error) => return println!("skipped: {error}"),
    };
    let mut kernel = match Kernel::start() {
        Ok(kernel) => kernel,
        Err(error) if error.is_absence() => return println!("skipped: {error}"),
        Err(error) => panic!("{error}"),
    };
    let mut random = Random(0x0dd5_eed5_0000_0001);
    let packets: Vec<Vec<u8>> = std::iter::repeat_with(|| ethernet(&mut random))
        .filter(|packet| packet.len() > 14)
        .take(12)
        .collect();
    let context = Context {
        network_offset: 14,
        ..Context::default()
    };
    for expression in [
        "port 22",
        "tcp port 22 and (((ip[2:2] - ((ip[0]&0xf)<<2)) - ((tcp[12]&0xf0)>>2)) != 0)",
        "ip6 and udp",
        "ether[0] % 3 == 1 or ip[8] / ip[9] = 0",
        "len > 80 and not arp",
    ] {
        let insns = libpcap
            .compile(expression, &CompileOptions::default())
            .expect(expression);
        let program = Program::new(&insns, Rules::Packet).expect(expression);
        for (target, prog_type) in [
            (Target::SkBuff, ProgType::SchedCls),
            (Target::Xdp, ProgType::Xdp),
        ] {
            let converted = convert(&program, &Options::new(target)).expect(expression);
            let mut loaded = raw_program("filter", converted);
            loaded.decl.prog_type = prog_type;
            let (handle, _) = kernel
                .load(&loaded, &[], None, &LoadOptions::default())
                .unwrap_or_else(|e| panic!("{expression}: {e}"));
            for data in &packets {
                let packet = Packet {
                    data,
                    wire_len: data.len() as u32,
                    context: &context,
                };
                let request = TestRun {
                    data,
                    ctx: &[],
                    repeat: 1,
                    flags: 0,
                };
                // A test run takes packets of 14 bytes and more.
                let got = kernel
                    .test_run(handle, &request)
                    .expect("a test run")
                    .retval;
                let expected = run(&program, &packet, Dialect::Kernel);
                assert_eq!(got, expected, "{expression} {target:?} {data:02x?}");
            }
            kernel.unload(handle);
        }
    }
}
