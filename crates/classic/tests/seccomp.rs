//! Profiles, the tables of system calls, and what can never happen in a filter.

mod support;

use bpfkit_classic::asm::assemble;
use bpfkit_classic::seccomp::{
    Arch, Dead, Profile, SYSCALLS, SeccompData, Syscall, Verdict, find_dead,
};
use bpfkit_classic::{Cond, Insn, Op, Operand, Program, Rules, Size, run_seccomp};
use support::Random;

const PROFILE: &str = r#"{
  "defaultAction": "SCMP_ACT_ERRNO",
  "defaultErrnoRet": 38,
  "architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_X32", "SCMP_ARCH_AARCH64"],
  "flags": ["SECCOMP_FILTER_FLAG_LOG"],
  "syscalls": [
    {"names": ["read", "write", "open", "no_such_call"], "action": "SCMP_ACT_ALLOW"},
    {"names": ["personality"], "action": "SCMP_ACT_ALLOW",
     "args": [{"index": 0, "value": 8, "op": "SCMP_CMP_EQ"}, {"index": 0, "value": 131072, "op": "SCMP_CMP_EQ"}]},
    {"names": ["clone"], "action": "SCMP_ACT_ALLOW",
     "args": [{"index": 0, "value": 2114060288, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ"}]},
    {"names": ["socket"], "action": "SCMP_ACT_KILL_PROCESS",
     "args": [{"index": 0, "value": 40, "op": "SCMP_CMP_NE"}, {"index": 1, "value": 4294967298, "op": "SCMP_CMP_GT"}]},
    {"names": ["ioctl"], "action": "SCMP_ACT_TRACE", "errnoRet": 9,
     "args": [{"index": 1, "value": 21523, "op": "SCMP_CMP_GE"}, {"index": 2, "value": 4294967296, "op": "SCMP_CMP_LT"}]},
    {"names": ["dup"], "action": "SCMP_ACT_LOG", "args": [{"index": 5, "value": 18446744073709551615, "op": "SCMP_CMP_LE"}]},
    {"names": ["write", "kill"], "action": "SCMP_ACT_KILL"}
  ]
}"#;

#[test]
fn the_table_is_sorted_and_numbers_are_single() {
    assert!(SYSCALLS.windows(2).all(|w| w[0].name < w[1].name));
    for arch in [Arch::X86_64, Arch::Aarch64] {
        for call in SYSCALLS {
            if let Some(number) = call.number(arch) {
                assert_eq!(Syscall::by_number(arch, number.into()), Some(call));
            }
        }
        assert_eq!(Arch::from_audit(arch.audit()), Some(arch));
    }
    assert_eq!(
        Syscall::by_name("execve").map(|c| (c.x86_64, c.aarch64)),
        Some((Some(59), Some(221)))
    );
    assert_eq!(
        Syscall::by_name("open").map(|c| (c.x86_64, c.aarch64)),
        Some((Some(2), None))
    );
    assert_eq!(Syscall::by_name("frobnicate"), None);
}

#[test]
fn a_profile_decides_as_it_says() {
    let compiled = Profile::parse(PROFILE).unwrap().compile(&[]).unwrap();
    assert_eq!(compiled.insns.len(), compiled.origins.len());
    let filter = Program::new(&compiled.insns, Rules::Seccomp).unwrap();
    let verdict = |arch: Arch, name: &str, args: [u64; 6]| {
        let nr = Syscall::by_name(name)
            .and_then(|c| c.number(arch))
            .expect(name)
            .into();
        let call = SeccompData {
            nr,
            arch: arch.audit(),
            args,
            ..SeccompData::default()
        };
        Verdict::new(run_seccomp(&filter, &call)).to_string()
    };
    let args = |a0, a1, a2| [a0, a1, a2, 0, 0, 0];
    let cases: &[(&str, [u64; 6], &str)] = &[
        ("read", [0; 6], "ALLOW"),
        ("write", [7; 6], "ALLOW"),
        ("kill", [0; 6], "KILL_THREAD"),
        ("close", [0; 6], "ERRNO(38)"),
        ("personality", args(8, 0, 0), "ALLOW"),
        ("personality", args(131072, 0, 0), "ALLOW"),
        ("personality", args(9, 0, 0), "ERRNO(38)"),
        ("personality", args(8 | 1 << 32, 0, 0), "ERRNO(38)"),
        ("clone", args(0x100, 0, 0), "ALLOW"),
        ("clone", args(0x0200_0000, 0, 0), "ERRNO(38)"),
        ("clone", args(0xffff_ffff_0000_0000, 0, 0), "ALLOW"),
        ("socket", args(40, u64::MAX, 0), "ERRNO(38)"),
        ("socket", args(2, 4294967298, 0), "ERRNO(38)"),
        ("socket", args(2, 4294967299, 0), "KILL_PROCESS"),
        ("socket", args(40 | 1 << 40, 1 << 33, 0), "KILL_PROCESS"),
        ("socket", args(2, 99, 0), "ERRNO(38)"),
        ("ioctl", args(0, 21523, 4294967295), "TRACE(9)"),
        ("ioctl", args(0, 21522, 4294967295), "ERRNO(38)"),
        ("ioctl", args(0, 1 << 32, 0), "TRACE(9)"),
        ("ioctl", args(0, 21523, 4294967296), "ERRNO(38)"),
        ("dup", [u64::MAX; 6], "LOG"),
    ];
    for arch in [Arch::X86_64, Arch::Aarch64] {
        for (name, args, expected) in cases {
            assert_eq!(verdict(arch, name, *args), *expected, "{name} {args:x?}");
        }
    }
    assert_eq!(verdict(Arch::X86_64, "open", [0; 6]), "ALLOW");
    let other = SeccompData {
        nr: 0,
        arch: 0x4000_0003,
        ..SeccompData::default()
    };
    assert_eq!(
        Verdict::new(run_seccomp(&filter, &other)).to_string(),
        "KILL_PROCESS"
    );
    let x32 = SeccompData {
        nr: 0x4000_0000,
        arch: Arch::X86_64.audit(),
        ..SeccompData::default()
    };
    assert_eq!(
        Verdict::new(run_seccomp(&filter, &x32)).to_string(),
        "KILL_PROCESS"
    );
}

#[test]
fn a_rule_behind_one_that_takes_all_is_found() {
    let compiled = Profile::parse(PROFILE).unwrap().compile(&[]).unwrap();
    let filter = Program::new(&compiled.insns, Rules::Seccomp).unwrap();
    let dead = find_dead(&filter);
    // The second rule for `write`, on both architectures; `kill` beside it is fine.
    let idle = compiled.idle(&dead);
    let idle: Vec<_> = idle.iter().map(|o| (o.rule, o.arch, o.call.name)).collect();
    assert_eq!(
        idle,
        [(6, Arch::X86_64, "write"), (6, Arch::Aarch64, "write")]
    );
}

/// What a profile's filter says of a system call without arguments, for a container.
fn verdict_of(json: &str, caps: &[String], arch: Arch, name: &str) -> String {
    let compiled = Profile::parse(json).unwrap().compile(caps).unwrap();
    let filter = Program::new(&compiled.insns, Rules::Seccomp).unwrap();
    let number = Syscall::by_name(name).and_then(|call| call.number(arch));
    let call = SeccompData {
        nr: number.unwrap().into(),
        arch: arch.audit(),
        ..SeccompData::default()
    };
    Verdict::new(run_seccomp(&filter, &call)).to_string()
}

#[test]
fn a_moby_profile_asks_for_architectures_and_capabilities() {
    let profile = r#"{"defaultAction": "SCMP_ACT_ERRNO",
        "archMap": [
            {"architecture": "SCMP_ARCH_X86_64", "subArchitectures": ["SCMP_ARCH_X86", "SCMP_ARCH_X32"]},
            {"architecture": "SCMP_ARCH_AARCH64", "subArchitectures": null}],
        "syscalls": [
            {"names": ["read"], "action": "SCMP_ACT_ALLOW", "args": null, "includes": {}, "excludes": {}},
            {"names": ["dup"], "action": "SCMP_ACT_ALLOW", "includes": {"arches": ["amd64", "x32"]}},
            {"names": ["mount"], "action": "SCMP_ACT_ALLOW", "includes": {"caps": ["CAP_SYS_ADMIN"]}},
            {"names": ["unshare"], "action": "SCMP_ACT_ALLOW",
             "excludes": {"caps": ["CAP_SYS_ADMIN"], "arches": ["s390x"]}},
            {"names": ["ptrace"], "action": "SCMP_ACT_ALLOW", "includes": {"minKernel": "4.8"}}]}"#;
    let admin = ["CAP_SYS_ADMIN".to_owned()];
    let cases: [(&str, &[String], Arch, bool); 9] = [
        ("read", &[], Arch::X86_64, true),
        ("read", &[], Arch::Aarch64, true),
        ("dup", &[], Arch::X86_64, true),
        ("dup", &[], Arch::Aarch64, false),
        ("mount", &[], Arch::X86_64, false),
        ("mount", &admin, Arch::X86_64, true),
        ("unshare", &[], Arch::X86_64, true),
        ("unshare", &admin, Arch::X86_64, false),
        ("ptrace", &[], Arch::Aarch64, true),
    ];
    for (name, caps, arch, allowed) in cases {
        let expected = if allowed { "ALLOW" } else { "ERRNO(1)" };
        let verdict = verdict_of(profile, caps, arch, name);
        assert_eq!(verdict, expected, "{name} {caps:?} {arch:?}");
    }
}

#[test]
fn a_containers_configuration_holds_a_profile() {
    let config = r#"{"ociVersion": "1.0.2", "process": {"args": ["sh"]}, "linux": {"namespaces": [],
        "seccomp": {"defaultAction": "SCMP_ACT_KILL_PROCESS", "architectures": ["SCMP_ARCH_X86_64"],
            "syscalls": [{"names": ["read"], "action": "SCMP_ACT_ALLOW"}]}}}"#;
    let verdict = |name| verdict_of(config, &[], Arch::X86_64, name);
    assert_eq!(
        (verdict("read"), verdict("write")),
        ("ALLOW".to_owned(), "KILL_PROCESS".to_owned())
    );
}

#[test]
fn what_is_wrong_with_a_profile_is_said() {
    let cases = [
        (
            r#"{"defaultAction": "SCMP_ACT_FROB"}"#,
            "unknown action `SCMP_ACT_FROB`",
        ),
        (
            r#"{"defaultAction": "SCMP_ACT_ALLOW", "architectures": ["SCMP_ARCH_S390"]}"#,
            "the profile names no architecture that is known (SCMP_ARCH_X86_64, SCMP_ARCH_AARCH64)",
        ),
        (
            r#"{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": ["read"], "action": "SCMP_ACT_ERRNO",
                "args": [{"index": 6, "value": 1, "op": "SCMP_CMP_EQ"}]}]}"#,
            "rule 0: there is no argument 6: they are 0–5",
        ),
        (
            r#"{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": ["read"], "action": "SCMP_ACT_ERRNO",
                "args": [{"index": 0, "value": 1, "op": "SCMP_CMP_FROB"}]}]}"#,
            "rule 0: unknown comparison `SCMP_CMP_FROB`",
        ),
    ];
    for (json, message) in cases {
        assert_eq!(
            Profile::parse(json)
                .unwrap()
                .compile(&[])
                .unwrap_err()
                .to_string(),
            message
        );
    }
    let error = Profile::parse("{").unwrap_err().to_string();
    assert!(
        error.starts_with("the profile is not what the OCI runtime specification describes: "),
        "{error}"
    );
}

fn dead_in(text: &str) -> Vec<Dead> {
    find_dead(&Program::new(&assemble(text).unwrap(), Rules::Seccomp).unwrap())
}

#[test]
fn what_can_never_happen_is_found() {
    let cases: &[(&str, &[Dead])] = &[
        (
            "ld [0]\njeq #1, a, b\nb: jeq #1, a, c\nc: ret #2\na: ret #1",
            &[Dead::NeverHolds(2)],
        ),
        (
            "ld [0]\njgt #10, b, a\na: jge #11, b, c\nc: jeq #12, b, d\nd: ret #2\nb: ret #1",
            &[Dead::NeverHolds(2), Dead::NeverHolds(3)],
        ),
        (
            "ld [0]\njge #5, a, b\na: ld [0]\njge #5, c, b\nb: ret #1\nc: ret #2",
            &[Dead::AlwaysHolds(3)],
        ),
        ("ja 2\nret #0\nret #1", &[Dead::Unreachable(1)]),
        (
            "ld #5\njset #4, a, b\na: ret #1\nb: ret #2",
            &[Dead::AlwaysHolds(1), Dead::Unreachable(3)],
        ),
        // Another word, or what is computed, says nothing.
        (
            "ld [0]\njeq #1, a, b\nb: ld [4]\njeq #1, a, c\nc: ret #2\na: ret #1",
            &[],
        ),
        (
            "ld [0]\njeq #1, a, b\nb: and #1\njeq #1, a, c\nc: ret #2\na: ret #1",
            &[],
        ),
    ];
    for (text, dead) in cases {
        assert_eq!(dead_in(text), *dead, "{text}");
    }
}

/// A random filter of loads, comparisons and returns.
fn random_filter(random: &mut Random) -> Vec<Insn> {
    let len = 4 + random.below(30);
    let mut insns: Vec<Insn> = (0..len)
        .map(|at| {
            let left = len - at - 1;
            let skip = |random: &mut Random| random.below(left.clamp(1, 5)) as u8;
            match random.below(5) {
                _ if left == 0 => Op::ReturnK(at),
                0 => Op::LoadAbs {
                    size: Size::W,
                    k: 4 * random.below(2),
                },
                1 if random.one_in(3) => Op::ReturnK(at),
                1 if random.one_in(4) => Op::Tax,
                1 if random.one_in(4) => Op::Alu {
                    op: bpfkit_classic::AluOp::And,
                    src: Operand::K(3),
                },
                _ => Op::JumpIf {
                    cond: random.pick(&[Cond::Eq, Cond::Eq, Cond::Gt, Cond::Ge, Cond::Set]),
                    src: if random.one_in(12) {
                        Operand::X
                    } else {
                        Operand::K(random.below(6))
                    },
                    jt: skip(random),
                    jf: skip(random),
                },
            }
            .encode()
        })
        .collect();
    insns[0] = Op::LoadAbs {
        size: Size::W,
        k: 0,
    }
    .encode();
    insns
}

#[test]
fn what_is_said_never_to_happen_never_does() {
    let mut random = Random(0xfeed_beef_1234_0001);
    let mut found = 0;
    for _ in 0..2000 {
        let insns = random_filter(&mut random);
        let filter = Program::new(&insns, Rules::Seccomp).unwrap();
        let dead = find_dead(&filter);
        found += dead.len();
        // The same filter with a mark wherever nothing is said to pass.
        let mut marked = insns.clone();
        for d in &dead {
            match *d {
                Dead::Unreachable(at) => marked[at] = Op::ReturnK(9999).encode(),
                Dead::NeverHolds(at) => marked[at].jt = marked[at].jf,
                Dead::AlwaysHolds(at) => marked[at].jf = marked[at].jt,
            }
        }
        let marked = Program::new(&marked, Rules::Seccomp).unwrap();
        for nr in (0..8).chain([u32::MAX, 0x8000_0001]) {
            for arch in (0..8).chain([u32::MAX]) {
                let call = SeccompData {
                    nr,
                    arch,
                    ..SeccompData::default()
                };
                assert_eq!(run_seccomp(&filter, &call), run_seccomp(&marked, &call));
            }
        }
    }
    assert!(found > 1000, "{found}");
}
