//! Classic programs of any bytes on packets of any bytes: the classic interpreter, extended
//! BPF interpreted and compiled, and libpcap's `bpf_filter` give the same.
#![no_main]

use std::sync::LazyLock;

use bpfkit_classic::table::TABLE;
use bpfkit_classic::{
    Ancillary, Context, Dialect, Insn, Op, Options, Packet, Program, Rules, Target, convert, run,
};
use bpfkit_jit::Jit;
use bpfkit_pcap::Libpcap;
use bpfkit_runtime::{Engine, Interpreter, PacketProgram};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = check(bytes);
});

/// Without it the others are compared with each other.
static LIBPCAP: LazyLock<Option<Libpcap>> = LazyLock::new(|| match Libpcap::load() {
    Ok(libpcap) => Some(libpcap),
    Err(error) => {
        eprintln!("skipped: libpcap: {error}");
        None
    }
});

static JIT: LazyLock<Jit> = LazyLock::new(Jit::default);

/// Most instructions and bytes: what jumps back takes a round for each byte.
const MOST: usize = 200;

fn check(bytes: &[u8]) -> Option<()> {
    let (&[mode, count], rest) = bytes.split_first_chunk()?;
    let (insns, packet) = rest.split_at_checked(usize::from(count).min(MOST) * Insn::BYTES)?;
    let packet = packet.get(..packet.len().min(MOST))?;
    let mut insns = Insn::read_le(insns)?;
    if mode & 1 != 0 {
        tame(&mut insns);
    }
    let rules = match mode & 2 {
        0 => Rules::Packet,
        _ => Rules::Libpcap,
    };
    // A filter that is refused is refused without a panic.
    let program = Program::new(&insns, rules).ok()?;
    let loops = Program::new(&insns, Rules::Packet).is_err();
    let context = Context {
        protocol: 0x0800,
        pkttype: mode >> 5,
        ifindex: 7,
        mark: 0xdead_beef,
        queue: 3,
        hatype: 1,
        rxhash: 0x8000_0001,
        cpu: 2,
        vlan_tci: 0x2005,
        vlan_present: mode & 16 != 0,
        vlan_tpid: 0x8100,
        pay_offset: 54,
        random: 0x1234_5678,
        network_offset: 14,
    };
    let wire_len = packet.len() as u32 + u32::from(mode >> 2);
    let whole = Packet {
        data: packet,
        wire_len,
        context: &context,
    };
    for dialect in [Dialect::Libpcap, Dialect::Kernel] {
        if loops && dialect == Dialect::Kernel {
            continue;
        }
        let options = Options {
            dialect,
            ..Options::new(Target::Memory)
        };
        let expected = run(&program, &whole, dialect);
        let converted = convert(&program, &options).expect("memory takes every filter");
        let converted = PacketProgram::new(converted).expect("the converted program is proven");
        let interp = Interpreter::default().load_packet(&converted);
        let jit = JIT.load_packet(&converted);
        let words = context.words();
        let interp = interp.expect("it loads").run(packet, wire_len, &words);
        let jit = jit.expect("it compiles").run(packet, wire_len, &words);
        assert_eq!((interp, jit), (expected, expected), "{dialect:?}");
        if dialect == Dialect::Libpcap
            && !loops
            && !asks_for_vlan(&program)
            && let Some(libpcap) = &*LIBPCAP
            && let Some(reference) = libpcap.reference(&program)
        {
            assert_eq!(reference.run(packet, wire_len), expected, "libpcap");
        }
    }
    Some(())
}

/// Whether the filter reads VLAN tags apart from the packet, which libpcap has for packets
/// that it captures itself only.
fn asks_for_vlan(program: &Program) -> bool {
    let vlan = |op: &Op| {
        let what = [Ancillary::VlanTag, Ancillary::VlanTagPresent];
        matches!(op, Op::LoadAncillary { what: this, .. } if what.contains(this))
    };
    program.ops().iter().any(vlan)
}

/// Makes instructions of any bytes likely to be instructions of a filter.
fn tame(insns: &mut [Insn]) {
    let len = insns.len();
    for (at, insn) in insns.iter_mut().enumerate() {
        insn.code = TABLE[usize::from(insn.code) % TABLE.len()].code;
        let left = (len - at).saturating_sub(2).min(255) as u32;
        let class = insn.code & 7;
        if class == bpfkit_classic::code::JMP {
            insn.jt = (u32::from(insn.jt) % (left + 1)) as u8;
            insn.jf = (u32::from(insn.jf) % (left + 1)) as u8;
            if insn.code == bpfkit_classic::code::JMP {
                insn.k %= left + 1;
            }
        } else if insn.k & 0x8000_0000 == 0 {
            insn.k %= 100;
        }
    }
    if let Some(last) = insns.last_mut() {
        last.code = bpfkit_classic::code::RET | (last.code & bpfkit_classic::code::A);
    }
}
