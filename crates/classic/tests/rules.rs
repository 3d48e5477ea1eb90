//! The checker: a filter for each rule, accepted and rejected.

use bpfkit_classic::asm::assemble;
use bpfkit_classic::{Insn, Program, Rules};

fn check(text: &str, rules: Rules) -> Result<(), String> {
    let insns = assemble(text).unwrap_or_else(|e| panic!("{e}: {text}"));
    Program::new(&insns, rules)
        .map(drop)
        .map_err(|e| e.to_string())
}

#[test]
fn each_rule_has_its_message() {
    let cases = [
        ("", "instruction 0: the filter is empty"),
        (
            "{ 0x0e, 0, 0, 0 }",
            "instruction 0: `ret x` (opcode 0x0e) is not allowed: a filter returns k or A",
        ),
        ("{ 0xff, 0, 0, 0 }", "instruction 0: unknown opcode 0xff"),
        ("{ 0x120, 0, 0, 0 }", "instruction 0: unknown opcode 0x120"),
        (
            "div #0\nret #0",
            "instruction 0: division by the constant zero",
        ),
        (
            "ldx #1\nmod #0\nret #0",
            "instruction 1: division by the constant zero",
        ),
        (
            "lsh #32\nret #0",
            "instruction 0: shift by 32, more than 31",
        ),
        (
            "rsh #-1\nret #0",
            "instruction 0: shift by 4294967295, more than 31",
        ),
        (
            "st M[16]\nret #0",
            "instruction 0: there is no scratch word M[16]: the last is M[15]",
        ),
        (
            "ldx M[99]\nret #0",
            "instruction 0: there is no scratch word M[99]: the last is M[15]",
        ),
        (
            "ja 2\nret #0",
            "instruction 0: jump to instruction 2, past the end of the filter (2 instructions)",
        ),
        (
            "2 5 0 0 2147483647, 6 0 0 0",
            "instruction 0: jump to instruction 2147483648, past the end of the filter (2 instructions)",
        ),
        (
            "ld #1\nja 0\nret #0",
            "instruction 1: jump back to instruction 0: jumps only go forward",
        ),
        (
            "jeq #1, 1, 3\nret #0",
            "instruction 0: jump to instruction 3, past the end of the filter (2 instructions)",
        ),
        (
            "ld [-4032]\nret #0",
            "instruction 0: no ancillary load has the offset 0xfffff040",
        ),
        (
            "ldb [-1]\nret #0",
            "instruction 0: no ancillary load has the offset 0xffffffff",
        ),
        (
            "ret #0\nld #1",
            "instruction 1: the last instruction does not return",
        ),
        (
            "ld M[0]\nret a",
            "instruction 0: M[0] is read here, but a path to here does not store it",
        ),
        (
            "jeq #0, a, b\na: st M[3]\nb: ld M[3]\nret a",
            "instruction 2: M[3] is read here, but a path to here does not store it",
        ),
        (
            "st M[3]\njeq #0, a, b\na: stx M[4]\nja c\nb: st M[5]\nc: ldx M[4]\nret a",
            "instruction 5: M[4] is read here, but a path to here does not store it",
        ),
    ];
    for (text, message) in cases {
        assert_eq!(
            check(text, Rules::Packet),
            Err(message.to_owned()),
            "{text}"
        );
    }
    let long = vec![Insn::new(0x06, 0); 4097];
    assert_eq!(
        Program::new(&long, Rules::Packet).unwrap_err().to_string(),
        "instruction 4096: the filter has 4097 instructions, more than 4096"
    );
    assert!(Program::new(&long[1..], Rules::Packet).is_ok());
}

#[test]
fn what_the_rules_allow_passes() {
    for text in [
        "ret #0",
        "ret a",
        "div #1\nlsh #31\nret a",
        "div x\nmod x\nlsh x\nret a",
        "st M[15]\nldx M[15]\nret a",
        "st M[3]\njeq #0, a, b\na: ld M[3]\nb: ldx M[3]\nret a",
        "jeq #0, a, b\na: st M[3]\nja c\nb: stx M[3]\nc: ld M[3]\nret a",
        // Behind a jump that nothing jumps over, the kernel takes any scratch word.
        "ja a\nld M[7]\na: ret #0",
        "ld [-4036]\nld proto\nld [-1048576]\nld [x-1]\nret a",
        "ja 1\nret #0",
    ] {
        assert_eq!(check(text, Rules::Packet), Ok(()), "{text}");
    }
}

#[test]
fn seccomp_has_rules_of_its_own() {
    let cases = [
        (
            "ld [64]\nret #0",
            "instruction 0: load from offset 64: a seccomp filter loads aligned words from offsets 0 to 60",
        ),
        (
            "ld [2]\nret #0",
            "instruction 0: load from offset 2: a seccomp filter loads aligned words from offsets 0 to 60",
        ),
        (
            "ldh [4]\nret #0",
            "instruction 0: `ldh` (opcode 0x28) is not allowed in a seccomp filter",
        ),
        (
            "ld proto\nret #0",
            "instruction 0: `ld` (opcode 0x20) is not allowed in a seccomp filter",
        ),
        (
            "ld [x+4]\nret #0",
            "instruction 0: `ld` (opcode 0x40) is not allowed in a seccomp filter",
        ),
        (
            "ldxb 4*([4]&0xf)\nret #0",
            "instruction 0: `ldxb` (opcode 0xb1) is not allowed in a seccomp filter",
        ),
        (
            "mod #3\nret #0",
            "instruction 0: `mod` (opcode 0x94) is not allowed in a seccomp filter",
        ),
        (
            "ld #1",
            "instruction 0: the last instruction does not return",
        ),
    ];
    for (text, message) in cases {
        assert_eq!(
            check(text, Rules::Seccomp),
            Err(message.to_owned()),
            "{text}"
        );
    }
    for text in [
        "ld [60]\nret a",
        "ld #len\nldx #len\nneg\nxor x\nret a",
        "div x\nret #0x7fff0000",
    ] {
        assert_eq!(check(text, Rules::Seccomp), Ok(()), "{text}");
    }
}

#[test]
fn libpcap_lets_filters_jump_back() {
    assert_eq!(check("ld #1\nja 0\nret #0", Rules::Libpcap), Ok(()));
    // Words that nothing has stored are 0 there.
    assert_eq!(check("ld M[1]\nret a", Rules::Libpcap), Ok(()));
    assert_eq!(
        check("ld M[1]\nret a", Rules::Packet),
        Err("instruction 0: M[1] is read here, but a path to here does not store it".to_owned())
    );
    assert_eq!(
        check("2 5 0 0 4294967290, 6 0 0 0", Rules::Libpcap),
        Err("instruction 0: jump to instruction 4294967291, past the end of the filter (2 instructions)".to_owned())
    );
}
