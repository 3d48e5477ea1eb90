//! The text forms: round trips, the forms of tcpdump itself, and messages.

mod support;

use bpfkit_classic::asm::assemble;
use bpfkit_classic::disasm::{Syntax, text};
use bpfkit_classic::table::{Form, TABLE};
use bpfkit_classic::{ANCILLARY, Insn, Op, Program, Rules};
use support::{EXPRESSIONS, Random, filter, tcpdump};

const ALL: [Syntax; 4] = [Syntax::Tcpdump, Syntax::C, Syntax::Decimal, Syntax::BpfAsm];

fn round_trip(insns: &[Insn], syntax: Syntax) {
    let written = text(insns, syntax).to_string();
    match assemble(&written) {
        Ok(back) => assert_eq!(back, insns, "{written}"),
        Err(e) => panic!("{e}\n{written}"),
    }
}

#[test]
fn every_instruction_round_trips_in_every_form() {
    let mut ks = vec![
        0,
        1,
        2,
        15,
        16,
        255,
        0x7fff_ffff,
        0x8000_0000,
        0xffff_f041,
        u32::MAX,
    ];
    ks.extend(ANCILLARY.iter().map(|row| row.what.k()));
    for (jt, jf) in [(0, 0), (1, 2), (255, 0), (0, 255), (7, 7)] {
        let mut program = Vec::new();
        for row in TABLE {
            for &k in &ks {
                let mut insn = Op::decode(Insn {
                    code: row.code,
                    jt,
                    jf,
                    k,
                })
                .unwrap()
                .encode();
                if row.form == Form::Jump {
                    // Forth and back, to where there is an instruction.
                    insn.k = (k % 300).wrapping_sub(50);
                }
                program.push(insn);
            }
        }
        program.extend(vec![Insn::new(0x06, 0); 300]);
        for syntax in ALL {
            round_trip(&program, syntax);
        }
    }
}

#[test]
fn decoding_and_encoding_agree() {
    for code in 0..=u16::MAX {
        let insn = Insn {
            code,
            jt: 3,
            jf: 4,
            k: 5,
        };
        let Ok(op) = Op::decode(insn) else {
            assert!(TABLE.iter().all(|row| row.code != code));
            continue;
        };
        assert_eq!(op.encode().code, code);
        assert_eq!(Op::decode(op.encode()), Ok(op));
        assert_eq!(Insn::from_le_bytes(insn.to_le_bytes()), insn);
    }
    assert_eq!(
        Insn::read_le(&[0x06, 0, 0, 0, 7, 0, 0, 0]),
        Some(vec![Insn::new(6, 7)])
    );
    assert_eq!(Insn::read_le(&[0; 9]), None);
}

#[test]
fn random_filters_round_trip() {
    let mut random = Random(99);
    for _ in 0..300 {
        let insns = filter(&mut random, 30);
        for syntax in ALL {
            round_trip(&insns, syntax);
        }
    }
}

#[test]
fn forms_are_those_of_tcpdump_and_bpf_dbg() {
    let insns = assemble("ldh [12]\njeq #0x800, a, b\na: ldb vlan_avail\nret a\nb: ldxb 4*([14]&0xf)\nld [x+2]\nja c\nld rand\nand #0\nc: ret #-1").unwrap();
    let form = |syntax| text(&insns, syntax).to_string();
    assert_eq!(
        form(Syntax::Tcpdump),
        "(000) ldh      [12]\n\
         (001) jeq      #0x800           jt 2\tjf 4\n\
         (002) ldb      [vlanp]\n\
         (003) ret      \n\
         (004) ldxb     4*([14]&0xf)\n\
         (005) ld       [x + 2]\n\
         (006) ja       9\n\
         (007) ld       [random]\n\
         (008) and      #0x0\n\
         (009) ret      #-1\n"
    );
    assert_eq!(
        form(Syntax::BpfAsm),
        "l0:\tldh [12]\n\
         l1:\tjeq #0x800, l2, l4\n\
         l2:\tldb vlan_avail\n\
         l3:\tret a\n\
         l4:\tldxb 4*([14]&0xf)\n\
         l5:\tld [x+2]\n\
         l6:\tja l9\n\
         l7:\tld rand\n\
         l8:\tand #0\n\
         l9:\tret #0xffffffff\n"
    );
    assert!(
        form(Syntax::C).starts_with("{ 0x28, 0, 0, 0x0000000c },\n{ 0x15, 0, 2, 0x00000800 },\n")
    );
    assert!(
        form(Syntax::Decimal)
            .starts_with("10\n40 0 0 12\n21 0 2 2048\n48 0 0 4294963248\n22 0 0 0\n")
    );
    let unknown = [Insn::new(0xff, 0)];
    assert_eq!(
        text(&unknown, Syntax::Tcpdump).to_string(),
        "(000) unimp    0xff\n"
    );
    assert_eq!(
        text(&unknown, Syntax::BpfAsm).to_string(),
        "l0:\tnosup 0xff\n"
    );
}

#[test]
fn what_people_write_for_bpf_asm_is_read() {
    let cases = [
        ("ldi 5\nldxi #6\nret %a", "ld #5\nldx #6\nret a"),
        ("ldb [%x+3]\nadd %x\nret a", "ldb [x+3]\nadd x\nret a"),
        (
            "ld #proto\nld [proto]\nld #pktlen\nret #0",
            "ld proto\nld proto\nld len\nret #0",
        ),
        (
            "ldh [12] ; a comment\n/* more\nof it */ ret #0",
            "ldh [12]\nret #0",
        ),
        ("# a line of comment\n#\nret #0", "ret #0"),
        (
            "jneq #1, drop\nret #-1\ndrop: ret #0",
            "jeq #1, 1, 2\nret #-1\nret #0",
        ),
        (
            "jlt #1, drop\nret #-1\ndrop:\nret #0",
            "jge #1, 1, 2\nret #-1\nret #0",
        ),
        (
            "jle x, a, b\na: ret #-1\nb: ret #0",
            "jgt x, 2, 1\nret #-1\nret #0",
        ),
        (
            "jeq #1, y\nret #0\ny: ret #1",
            "jeq #1, 2, 1\nret #0\nret #1",
        ),
        ("jmp out\nout: ret #0", "ja 1\nret #0"),
        ("ret #017", "ret #15"),
        ("1,6 0 0 65535", "ret #65535"),
        ("1\n6 0 0 65535\n", "ret #65535"),
        ("{ 6, 0, 0, 0x0000ffff }", "ret #65535"),
        ("\n\n", ""),
    ];
    for (given, same) in cases {
        assert_eq!(assemble(given), assemble(same), "{given}");
        assert!(assemble(same).is_ok(), "{same}");
    }
}

#[test]
fn what_is_wrong_is_said_with_its_place() {
    let cases = [
        ("frob #1", "line 1, column 1: `frob` is no instruction"),
        (
            "ret #0\nst [4]",
            "line 2, column 4: `st` does not take this operand",
        ),
        (
            "ldx [4]",
            "line 1, column 5: `ldx` does not take this operand",
        ),
        ("add", "line 1, column 4: `add` does not take this operand"),
        (
            "tax #1",
            "line 1, column 5: expected the end of the line, found `#`",
        ),
        (
            "ld [4",
            "line 1, column 6: expected `]`, found the end of the line",
        ),
        ("ld [frob]", "line 1, column 5: `frob` is no operand"),
        (
            "ld #0x1ffffffff",
            "line 1, column 5: 8589934591 does not fit in 32 bits",
        ),
        (
            "ld #-2147483649",
            "line 1, column 5: -2147483649 does not fit in 32 bits",
        ),
        ("ld #12z", "line 1, column 5: `12z` is not a number"),
        (
            "ld #1 2",
            "line 1, column 7: expected the end of the line, found `2`",
        ),
        (
            "jeq #1",
            "line 1, column 7: expected `,`, found the end of the line",
        ),
        (
            "jeq #1, nowhere",
            "line 1, column 9: there is no label `nowhere`",
        ),
        (
            "a: ret #0\njeq #1, a",
            "line 2, column 9: jump back to `a`: jumps only go forward",
        ),
        (
            "(000) jeq #1 jt 900 jf 1",
            "line 1, column 17: `900` is 899 instructions ahead, more than 255",
        ),
        (
            "(000) jeq #1 jt 1",
            "line 1, column 18: expected `jf`, found the end of the line",
        ),
        (
            "a: ret #0\na: ret #0",
            "line 2, column 1: label `a` is defined twice",
        ),
        (
            "ldxb 4*([14]&0xe)",
            "line 1, column 14: expected 0xf, found `14`",
        ),
        (
            "2\n6 0 0 0",
            "line 1, column 1: 2 instructions announced, 1 there",
        ),
        (
            "1\n6 0 256 0",
            "line 2, column 5: 256 does not fit in 8 bits",
        ),
        (
            "{ 0x28, 0, 0 }",
            "line 1, column 14: expected `,`, found `}`",
        ),
        (
            "{ -1, 0, 0, 0 }",
            "line 1, column 3: -1 does not fit in 16 bits",
        ),
        (
            ", ret",
            "line 1, column 1: expected an instruction, found `,`",
        ),
    ];
    for (text, message) in cases {
        assert_eq!(
            assemble(text).expect_err(text).to_string(),
            message,
            "{text}"
        );
    }
}

proptest::proptest! {
    #[test]
    fn no_text_makes_the_assembler_panic(text in "[-a-z0-9 #x\\[\\](){}*&+,;:%/M\n]{0,60}") {
        if let Err(error) = assemble(&text) {
            proptest::prop_assert!(error.line >= 1 && error.column >= 1);
        }
    }
}

#[test]
fn tcpdump_writes_the_same_forms() {
    if tcpdump(&["-y", "EN10MB", "-d", "ip"], &[]).is_none() {
        println!("skipped: no tcpdump");
        return;
    }
    for expression in EXPRESSIONS {
        let compile = |form| {
            let out = tcpdump(&["-y", "EN10MB", form, expression], &[]).expect(expression);
            String::from_utf8(out).expect("tcpdump writes text")
        };
        let insns = assemble(&compile("-dd")).expect("the C form is read");
        assert!(Program::new(&insns, Rules::Libpcap).is_ok());
        for (form, syntax) in [
            ("-d", Syntax::Tcpdump),
            ("-dd", Syntax::C),
            ("-ddd", Syntax::Decimal),
        ] {
            assert_eq!(
                text(&insns, syntax).to_string(),
                compile(form),
                "{expression}"
            );
        }
        assert_eq!(assemble(&compile("-ddd")).as_ref(), Ok(&insns));
        // The text form leaves out fields that an instruction does not use.
        let used: Vec<Insn> = insns
            .iter()
            .map(|i| Op::decode(*i).unwrap().encode())
            .collect();
        assert_eq!(assemble(&compile("-d")), Ok(used));
    }
}
