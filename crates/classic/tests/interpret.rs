//! The reference interpreter, instruction by instruction, with the corners of each.

use bpfkit_classic::asm::assemble;
use bpfkit_classic::seccomp::{ACTIONS, SeccompData, Verdict};
use bpfkit_classic::{ANCILLARY, Context, Dialect, Packet, Program, Rules, run, run_seccomp};

fn run_text(text: &str, data: &[u8], dialect: Dialect) -> u32 {
    let insns = assemble(text).unwrap_or_else(|e| panic!("{e}: {text}"));
    let program = Program::new(&insns, Rules::Packet).unwrap_or_else(|e| panic!("{e}: {text}"));
    let context = Context {
        network_offset: 2,
        ..Context::default()
    };
    run(
        &program,
        &Packet {
            data,
            wire_len: 100,
            context: &context,
        },
        dialect,
    )
}

const DATA: &[u8] = &[0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0x99];

#[test]
fn each_instruction_does_what_it_says() {
    // Both dialects agree on these; a load or division that fails gives 0, and
    // `ret #9` shows that the filter went on.
    let cases: &[(&str, u32)] = &[
        ("ret #-1", u32::MAX),
        ("ret a", 0),
        ("txa\nret a", 0),
        ("ld [0]\nret a", 0x1122_3344),
        ("ld [5]\nret a", 0x6677_8899),
        ("ld [6]\nret #9", 0),
        ("ldh [7]\nret a", 0x8899),
        ("ldh [8]\nret #9", 0),
        ("ldb [8]\nret a", 0x99),
        ("ldb [9]\nret #9", 0),
        ("ldx #3\nld [x+2]\nret a", 0x6677_8899),
        ("ldx #3\nld [x+3]\nret #9", 0),
        ("ldx #3\nldh [x+4]\nret a", 0x8899),
        ("ldx #9\nldb [x+0]\nret #9", 0),
        ("ldx #-1\nldb [x+0]\nret #9", 0),
        ("ldxb 4*([2]&0xf)\ntxa\nret a", 12),
        ("ld #7\nldxb 4*([2]&0xf)\nret a", 7),
        ("ldxb 4*([9]&0xf)\nret #9", 0),
        ("ld #len\nret a", 100),
        ("ldx #len\ntxa\nret a", 100),
        ("ld #5\nst M[15]\nld #6\nldx M[15]\ntxa\nret a", 5),
        ("ldx #8\nstx M[0]\nld M[0]\nret a", 8),
        ("ld #-1\nadd #2\nret a", 1),
        ("ld #1\nsub #2\nret a", u32::MAX),
        ("ld #0x10001\nmul #0x10000\nret a", 0x10000),
        ("ld #-1\ndiv #2\nret a", 0x7fff_ffff),
        ("ld #-1\nmod #16\nret a", 15),
        ("ld #7\ndiv x\nret #9", 0),
        ("ld #7\nmod x\nret #9", 0),
        ("ld #7\nldx #2\ndiv x\nret a", 3),
        ("ld #7\nldx #4\nmod x\nret a", 3),
        ("ld #0xf0\nand #0x3c\nret a", 0x30),
        ("ld #0xf0\nor #0xf\nret a", 0xff),
        ("ld #0xff\nxor #0xf\nret a", 0xf0),
        ("ld #1\nlsh #31\nret a", 0x8000_0000),
        ("ld #-1\nrsh #31\nret a", 1),
        ("ld #1\nldx #31\nlsh x\nret a", 0x8000_0000),
        ("ld #5\nneg\nret a", (-5i32) as u32),
        ("ld #0x80000000\nneg\nret a", 0x8000_0000),
        ("ld #5\ntax\nld #3\nadd x\nret a", 8),
        ("ld #3\nja 3\nld #4\nret a", 3),
        ("ld #5\njeq #5, y, n\ny: ret #1\nn: ret #2", 1),
        ("ld #-1\njgt #5, y, n\ny: ret #1\nn: ret #2", 1),
        ("ld #5\njgt #5, y, n\ny: ret #1\nn: ret #2", 2),
        ("ld #5\njge #5, y, n\ny: ret #1\nn: ret #2", 1),
        ("ld #5\njset #2, y, n\ny: ret #1\nn: ret #2", 2),
        ("ld #5\njset #4, y, n\ny: ret #1\nn: ret #2", 1),
        ("ld #5\nldx #5\njeq x, y, n\ny: ret #1\nn: ret #2", 1),
        ("ld #5\nldx #6\njge x, y, n\ny: ret #1\nn: ret #2", 2),
        ("ld #5\njlt #6, y, n\ny: ret #1\nn: ret #2", 1),
        ("ld #5\njle #4, y, n\ny: ret #1\nn: ret #2", 2),
        ("ld #5\njneq #5, y\nret #2\ny: ret #1", 2),
    ];
    for (text, expected) in cases {
        for dialect in [Dialect::Kernel, Dialect::Libpcap] {
            assert_eq!(
                run_text(text, DATA, dialect),
                *expected,
                "{dialect:?}: {text}"
            );
        }
    }
}

#[test]
fn the_dialects_differ_where_they_say() {
    let cases: &[(&str, u32, u32)] = &[
        ("ld #3\nldx #33\nlsh x\nret a", 6, 0),
        ("ld #3\nldx #32\nrsh x\nret a", 3, 0),
        // An offset that wraps.
        ("ldx #4\nldb [x-1]\nret a", 0x44, 0),
        ("ldx #-1\nldb [x+4]\nret a", 0x44, 0),
        // From the link-layer and the network header.
        ("ldh [-2097152]\nret a", 0x1122, 0),
        ("ldh [-1048576]\nret a", 0x3344, 0),
        ("ldx #-1048576\nldh [x+1]\nret a", 0x4455, 0),
        ("ldh [-2097153]\nret #9", 0, 0),
        ("ldb [-1048569]\nret #9", 0, 0),
        ("ld cpu\nret #9", 9, 0),
        ("ldb vlan_avail\nret #9", 9, 9),
        ("ld vlan_avail\nret #9", 9, 0),
    ];
    for (text, kernel, libpcap) in cases {
        assert_eq!(run_text(text, DATA, Dialect::Kernel), *kernel, "{text}");
        assert_eq!(run_text(text, DATA, Dialect::Libpcap), *libpcap, "{text}");
    }
}

#[test]
fn netlink_attributes_are_found() {
    // Two attributes, the second with two inside; the lengths are host order.
    let data = [
        0xff, 0xff, 0xff, 0xff, 5, 0, 1, 0, 0xaa, 0, 0, 0, 16, 0, 2, 0x80, 4, 0, 7, 0, 8, 0, 9, 0,
        1, 2, 3, 4,
    ];
    let cases = [
        ("ld #4\nldx #1\nld nla\nret a", 4),
        ("ld #4\nldx #2\nld nla\nret a", 12),
        ("ld #4\nldx #9\nld nla\nret a", 0),
        ("ld #12\nldx #9\nld nlan\nret a", 20),
        ("ld #12\nldx #7\nld nlan\nret a", 16),
        ("ld #4\nldx #9\nld nlan\nret a", 0),
        ("ld #26\nldx #1\nld nla\nret a", 0),
        ("ld #-1\nldx #1\nld nla\nret a", 0),
        ("ld #0\nldx #1\nld nla\nret a", 0),
    ];
    for (text, expected) in cases {
        assert_eq!(run_text(text, &data, Dialect::Kernel), expected, "{text}");
    }
}

#[test]
fn the_ancillary_table_is_in_the_order_of_its_variants() {
    for (i, row) in ANCILLARY.iter().enumerate() {
        assert_eq!(row.what as usize, i);
        assert_eq!(row.offset, 4 * i as u32);
        assert_eq!(row.what.row().tcpdump, row.tcpdump);
    }
}

#[test]
fn seccomp_results_say_what_happens() {
    let insns = assemble(
        "ld [0]\njeq #59, e, n\ne: ld [28]\nret #0x50001\nn: ld [8]\njset #1, k, a\nk: ret #0x80000000\na: ret #0x7fff0000",
    )
    .unwrap();
    let program = Program::new(&insns, Rules::Seccomp).unwrap();
    let call = |nr, ip| SeccompData {
        nr,
        instruction_pointer: ip,
        ..SeccompData::default()
    };
    let verdict = |data: &SeccompData| Verdict::new(run_seccomp(&program, data)).to_string();
    assert_eq!(verdict(&call(59, 0)), "ERRNO(1)");
    assert_eq!(verdict(&call(1, 1)), "KILL_PROCESS");
    assert_eq!(verdict(&call(1, 0)), "ALLOW");
    assert_eq!(Verdict::new(0x0005_ffff).to_string(), "ERRNO(4095)");
    assert_eq!(Verdict::new(0x1234_0000).to_string(), "KILL_PROCESS");
    assert_eq!(Verdict::new(0x7ff0_0007).to_string(), "TRACE(7)");
    // Strictest first, as signed numbers.
    assert!(
        ACTIONS
            .windows(2)
            .all(|w| (w[0].value as i32) < w[1].value as i32)
    );
    // A packet filter's interpreter does not take it.
    let context = Context::default();
    assert_eq!(
        run(
            &program,
            &Packet {
                data: DATA,
                wire_len: 9,
                context: &context
            },
            Dialect::Kernel
        ),
        0
    );
}
