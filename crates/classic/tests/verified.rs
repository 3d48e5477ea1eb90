//! What the converter writes passes the verifier.

mod support;

use bpfkit_classic::asm::assemble;
use bpfkit_classic::{Dialect, Insn, Options, Program, Rules, Target, convert};
use bpfkit_isa as isa;
use bpfkit_runtime::raw_program;
use bpfkit_spec::ProgType;
use bpfkit_verifier::{Environment, verify};
use support::{EXPRESSIONS, Random, filter, tcpdump};

/// Verifies what becomes of a filter for each target that has a program type.
fn check(name: &str, insns: &[Insn]) {
    let filter = Program::new(insns, Rules::Libpcap).expect("the filter is checked");
    for dialect in [Dialect::Kernel, Dialect::Libpcap] {
        for (target, prog_type) in [
            (Target::SkBuff, ProgType::SocketFilter),
            (Target::Xdp, ProgType::Xdp),
        ] {
            let options = Options {
                dialect,
                ..Options::new(target)
            };
            let Ok(converted) = convert(&filter, &options) else {
                continue;
            };
            let listing =
                isa::disasm::listing(&converted, isa::Syntax::Kernel, &isa::disasm::NoSymbols)
                    .to_string();
            let mut program = raw_program("filter", converted);
            program.decl.prog_type = prog_type;
            program.license = "GPL".to_owned();
            if let Err(e) = verify(&program, &[], &Environment::new(None)).result {
                panic!(
                    "{name} {dialect:?} {target:?}: instruction {}: {}\n{listing}",
                    e.insn, e.message
                );
            }
        }
    }
}

#[test]
fn random_filters_pass() {
    let mut random = Random(0x7e57_7e57_1111_2222);
    for i in 0..300 {
        check(&format!("filter {i}"), &filter(&mut random, 30));
    }
}

#[test]
fn ancillary_loads_pass() {
    for name in [
        "proto",
        "type",
        "ifidx",
        "mark",
        "queue",
        "rxhash",
        "vlan_tci",
        "vlan_avail",
        "vlan_tpid",
        "cpu",
        "rand",
    ] {
        let text = format!(
            "ldx #len\nldb [7]\nst M[3]\nld {name}\nstx M[2]\ntax\nldb [x+9]\nldx M[3]\nadd x\nret a"
        );
        check(name, &assemble(&text).expect("the text is right"));
    }
}

#[test]
fn filter_expressions_pass() {
    if tcpdump(&["-y", "EN10MB", "-d", "ip"], &[]).is_none() {
        println!("skipped: no tcpdump");
        return;
    }
    // What jumps back loops until the packet ends, which no verifier follows.
    for expression in EXPRESSIONS.iter().filter(|e| !e.contains("protochain")) {
        let c = tcpdump(&["-y", "EN10MB", "-dd", expression], &[]).expect(expression);
        check(
            expression,
            &assemble(&String::from_utf8(c).expect("text")).expect("the C form is read"),
        );
    }
}
