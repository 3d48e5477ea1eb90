//! The rules of the verifier in pairs: what breaks one, with the kernel's message, and the
//! smallest change that keeps it.

use std::fmt::Write;
use std::sync::Arc;

use bpfkit_btf::{BtfBuilder, IntEncoding, Linkage, MemberDef};
use bpfkit_object::{Program, Subprogram};
use bpfkit_spec::ProgType;
use bpfkit_verifier::{Environment, Rejection, verify};

mod common;

/// A rule: name, program type, what breaks it, the message, what keeps it.
type Rule = (
    &'static str,
    ProgType,
    &'static str,
    &'static str,
    &'static str,
);

const LOOKUP: &str = "*(u32 *)(r10 - 4) = 0; r2 = r10; r2 += -4; r1 = map[values] ll;
     call bpf_map_lookup_elem;";

const RULES: &[Rule] = &[
    (
        "uninitialized register",
        ProgType::SocketFilter,
        "r0 = r2; exit",
        "R2 !read_ok",
        "r2 = 0; r0 = r2; exit",
    ),
    (
        "uninitialized result",
        ProgType::SocketFilter,
        "exit",
        "R0 !read_ok",
        "r0 = 0; exit",
    ),
    (
        "unreachable instruction",
        ProgType::SocketFilter,
        "r0 = 0; exit; r0 = 1; exit",
        "unreachable insn 2",
        "r0 = 0; if r1 != 0 goto +1; exit; r0 = 1; exit",
    ),
    (
        "jump out of the program",
        ProgType::SocketFilter,
        "r0 = 0; goto +1; exit",
        "jump out of range from insn 1 to 3",
        "r0 = 0; goto +0; exit",
    ),
    (
        "last instruction",
        ProgType::SocketFilter,
        "r0 = 0",
        "last insn is not an exit or jmp",
        "r0 = 0; exit",
    ),
    (
        "frame pointer is read only",
        ProgType::SocketFilter,
        "r10 = 0; r0 = 0; exit",
        "frame pointer is read only",
        "r9 = r10; r0 = 0; exit",
    ),
    (
        "stack below its end",
        ProgType::SocketFilter,
        "*(u64 *)(r10 - 520) = 0; r0 = 0; exit",
        "invalid write to stack R10 off=-520 size=8",
        "*(u64 *)(r10 - 512) = 0; r0 = 0; exit",
    ),
    (
        "stack above its top",
        ProgType::SocketFilter,
        "*(u64 *)(r10 + 0) = 0; r0 = 0; exit",
        "invalid write to stack R10 off=0 size=8",
        "*(u64 *)(r10 - 8) = 0; r0 = 0; exit",
    ),
    (
        "packet bounds",
        ProgType::Xdp,
        "r2 = *(u32 *)(r1 + 0); r0 = *(u8 *)(r2 + 0); r0 = 1; exit",
        "R2 offset is outside of the packet",
        "r2 = *(u32 *)(r1 + 0); r3 = *(u32 *)(r1 + 4); r4 = r2; r4 += 1;
         r0 = 1; if r4 > r3 goto +1; r5 = *(u8 *)(r2 + 0); exit",
    ),
    (
        "context access",
        ProgType::SocketFilter,
        "r0 = *(u32 *)(r1 + 4000); exit",
        "invalid bpf_context access off=4000 size=4",
        "r0 = *(u32 *)(r1 + 0); exit",
    ),
    (
        "helper that this type may not call",
        ProgType::SocketFilter,
        "r2 = 0; r3 = 0; r4 = 0; call bpf_get_stack; exit",
        "program of this type cannot use helper bpf_get_stack#67",
        "call bpf_get_prandom_u32; exit",
    ),
    (
        "unknown helper",
        ProgType::SocketFilter,
        "call 100000; exit",
        "invalid func unknown#100000",
        "call 7; exit",
    ),
    (
        "range of the result",
        ProgType::CgroupSkb,
        "r0 = 7; exit",
        "At program exit the register R0 has smin=7 smax=7 should have been in [0, 1]",
        "r0 = 1; exit",
    ),
    (
        "reference leak",
        ProgType::SocketFilter,
        "r1 = map[ring] ll; r2 = 8; r3 = 0; call bpf_ringbuf_reserve; r0 = 0; exit",
        "BPF_EXIT instruction in main prog would lead to reference leak",
        "r1 = map[ring] ll; r2 = 8; r3 = 0; call bpf_ringbuf_reserve; if r0 == 0 goto +3;
         r1 = r0; r2 = 0; call bpf_ringbuf_submit; r0 = 0; exit",
    ),
    (
        "division by a zero that stands in the instruction",
        ProgType::SocketFilter,
        "r0 = 1; r0 /= 0; exit",
        "div by zero",
        "r0 = 1; r0 /= 2; exit",
    ),
    (
        "shift by more than the width",
        ProgType::SocketFilter,
        "r0 = 1; r0 <<= 64; exit",
        "invalid shift 64",
        "r0 = 1; r0 <<= 63; exit",
    ),
    (
        "pointer as result",
        ProgType::SocketFilter,
        "r0 = r10; exit",
        "R0 leaks addr as return value",
        "r0 = 1; exit",
    ),
];

fn judge(program: &Program) -> Result<(), Rejection> {
    let env = Environment::new(None);
    let verdict = verify(program, &common::maps(), &env);
    verdict.result.map(|_| ())
}

fn judge_text(prog_type: ProgType, text: &str) -> Result<(), String> {
    let program = common::program(prog_type, common::assemble(text));
    judge(&program).map_err(|e| e.message)
}

#[test]
fn rules_hold_in_pairs() {
    let mut wrong = String::new();
    for &(name, prog_type, bad, message, good) in RULES {
        // What leaks an address is only refused without privileges.
        let privileged = name != "pointer as result";
        for (text, expected) in [(bad, Err(message)), (good, Ok(()))] {
            let program = common::program(prog_type, common::assemble(text));
            let mut env = Environment::new(None);
            env.privileged = privileged;
            let verdict = verify(&program, &common::maps(), &env);
            let result = verdict.result.as_ref().map(|_| ()).map_err(|e| &*e.message);
            if result != expected {
                let _ = writeln!(wrong, "{name}: {text}\n  {result:?}, not {expected:?}");
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn map_values_are_tested_for_null() {
    let with = |rest: &str| judge_text(ProgType::SocketFilter, &format!("{LOOKUP} {rest}"));
    assert_eq!(
        with("r0 = *(u64 *)(r0 + 0); exit"),
        Err("R0 invalid mem access 'map_value_or_null'".to_owned())
    );
    assert_eq!(
        with("if r0 == 0 goto +1; r0 = *(u64 *)(r0 + 0); exit"),
        Ok(())
    );
    assert_eq!(
        with("if r0 == 0 goto +1; r0 = *(u64 *)(r0 + 8); exit"),
        Err("R0 min value is outside of the allowed memory range".to_owned())
    );
}

#[test]
fn offsets_into_map_values_are_bounded() {
    let with = |bound: &str| {
        let text = format!(
            "{LOOKUP} if r0 == 0 goto end; r6 = r0; call bpf_get_prandom_u32; {bound}
             r6 += r0; r0 = *(u8 *)(r6 + 0); end: exit"
        );
        judge_text(ProgType::SocketFilter, &text)
    };
    assert_eq!(
        with(""),
        Err(
            "math between map_value pointer and register with unbounded min value is not allowed"
                .to_owned()
        )
    );
    assert_eq!(with("r0 &= 7;"), Ok(()));
    assert_eq!(
        with("r0 &= 15;"),
        Err("R6 max value is outside of the allowed memory range".to_owned())
    );
}

#[test]
fn loops_end() {
    let endless = common::program(
        ProgType::SocketFilter,
        common::assemble("r0 = 0; again: if r1 == 0 goto out; goto again; out: exit"),
    );
    let verdict = verify(&endless, &[], &Environment::new(None));
    assert!(verdict.result.is_err());
    assert!(
        verdict.log.contains("infinite loop detected at insn 1\n"),
        "{}",
        verdict.log
    );
    let bounded = "r0 = 0; again: r0 += 1; if r0 < 100 goto again; exit";
    assert_eq!(judge_text(ProgType::SocketFilter, bounded), Ok(()));
    // Without privileges there are no loops at all.
    let program = common::program(ProgType::SocketFilter, common::assemble(bounded));
    let mut env = Environment::new(None);
    env.privileged = false;
    let refused = verify(&program, &[], &env).result.map(|_| ());
    assert_eq!(
        refused.map_err(|e| e.message),
        Err("back-edge from insn 2 to 1".to_owned())
    );
}

#[test]
fn pending_branches_are_limited() {
    let branches = |count: usize| {
        let mut text = String::from("call bpf_get_prandom_u32; ");
        for n in 0..count {
            let _ = write!(text, "if r0 == {} goto end; ", n + 100);
        }
        text.push_str("end: r0 = 0; exit");
        judge_text(ProgType::SocketFilter, &text)
    };
    assert_eq!(branches(8192), Ok(()));
    assert_eq!(
        branches(8193),
        Err("The sequence of 8193 jumps is too complex.".to_owned())
    );
}

#[test]
fn kernel_objects_are_read_only() {
    let mut btf = BtfBuilder::new();
    let int = btf.int("int", 4, IntEncoding::SIGNED);
    btf.structure("task_struct", 4, &[MemberDef::new("pid", int, 0)]);
    let btf = btf.build().expect("the BTF is well made");
    let with = |access: &str| {
        let text = format!("call bpf_get_current_task_btf; {access}; r0 = 0; exit");
        let program = common::program(ProgType::Kprobe, common::assemble(&text));
        let verdict = verify(&program, &[], &Environment::new(Some(&btf)));
        verdict.result.map(|_| ()).map_err(|e| e.message)
    };
    assert_eq!(
        with("*(u32 *)(r0 + 0) = 1"),
        Err("only read is supported".to_owned())
    );
    assert_eq!(with("r1 = *(u32 *)(r0 + 0)"), Ok(()));
}

#[test]
fn memory_arguments_are_no_context() {
    let mut btf = BtfBuilder::new();
    let int = btf.int("int", 4, IntEncoding::SIGNED);
    let pointer = btf.ptr(int);
    let context = btf.structure("__sk_buff", 4, &[MemberDef::new("len", int, 0)]);
    let context = btf.ptr(context);
    let main = btf.func_proto(int, &[("ctx", context)]);
    let main = btf.func("main", main, Linkage::Global);
    let taker = btf.func_proto(int, &[("memory", pointer)]);
    let taker = btf.func("taker", taker, Linkage::Global);
    let btf = Arc::new(btf.build().expect("the BTF is well made"));
    let with = |argument: &str| {
        let text = format!("{argument} call taker; r0 = 0; exit; taker: r0 = 0; exit");
        let insns = common::assemble(&text);
        let start = insns.len() as u32 - 2;
        let mut program = common::program(ProgType::SocketFilter, insns);
        program.btf = Some(Arc::clone(&btf));
        program.subprograms[0].type_id = main;
        program.subprograms.push(Subprogram {
            name: "taker".to_owned(),
            start,
            type_id: taker,
            global: true,
        });
        let verdict = verify(&program, &[], &Environment::new(&*btf));
        (verdict.result.is_ok(), verdict.log)
    };
    let (accepted, log) = with("");
    assert!(!accepted);
    assert!(
        log.ends_with(
            "R1 type=ctx expected=fp\nCaller passes invalid args into func#1 ('taker')\n"
        ),
        "{log}"
    );
    let (accepted, log) = with("*(u32 *)(r10 - 4) = 0; r1 = r10; r1 += -4;");
    assert!(accepted, "{log}");
}

#[test]
fn older_kernels_say_what_they_need() {
    let on = |version: &str, prog_type: ProgType, text: &str| {
        let program = common::program(prog_type, common::assemble(text));
        let mut env = Environment::new(None);
        env.kernel_version = version.parse().expect("a version");
        let verdict = verify(&program, &common::maps(), &env);
        verdict.result.map(|_| ()).map_err(|e| e.message)
    };
    let filter = ProgType::SocketFilter;
    let boot = "call bpf_ktime_get_boot_ns; r0 = 0; exit";
    for (before, since, prog_type, text, what) in [
        ("5.7", "5.8", filter, boot, "bpf_ktime_get_boot_ns#125"),
        (
            "5.4",
            "5.8",
            filter,
            "r1 = map[ring] ll; r0 = 0; exit",
            "map type ringbuf",
        ),
        (
            "5.8",
            "5.9",
            ProgType::SkLookup,
            "r0 = 1; exit",
            "program type sk_lookup",
        ),
        (
            "6.5",
            "6.6",
            filter,
            "r0 = 1; r0 = bswap16 r0; exit",
            "instruction bswap16",
        ),
        (
            "5.11",
            "5.12",
            filter,
            "r0 = 1; *(u64 *)(r10 - 8) = r0; r0 = atomic_fetch_add((u64 *)(r10 - 8), r0); r0 = 0; exit",
            "instruction atomic_fetch_add",
        ),
        (
            "6.5",
            "6.6",
            filter,
            "r0 = 7; r1 = 2; r0 s/= r1; exit",
            "instruction sdiv",
        ),
    ] {
        let wanted = format!("{what} needs Linux {since}");
        assert_eq!(on(before, prog_type, text), Err(wanted), "{text}");
        assert_eq!(on(since, prog_type, text), Ok(()), "{text}");
    }
    // What is never reached needs nothing.
    let guarded = "r1 = 0; r0 = 0; if r1 == 0 goto out; call bpf_ktime_get_boot_ns; out: exit";
    assert_eq!(on("5.4", filter, guarded), Ok(()));
}

#[test]
fn tail_calls_of_the_unprivileged_keep_to_one_map() {
    let text = "r6 = r1; call bpf_get_prandom_u32; r2 = map[values] ll; if r0 == 0 goto call;
        r2 = map[ring] ll; call: r1 = r6; r3 = 0; call bpf_tail_call; r0 = 0; exit";
    let program = common::program(ProgType::SocketFilter, common::assemble(text));
    let mut maps = common::maps();
    for map in &mut maps {
        map.map_type = bpfkit_spec::MapType::ProgArray;
        (map.key_size, map.value_size, map.max_entries) = (4, 4, 4);
    }
    let judge = |privileged| {
        let mut env = Environment::new(None);
        env.privileged = privileged;
        let verdict = verify(&program, &maps, &env);
        verdict.result.map(|_| ()).map_err(|e| e.message)
    };
    assert_eq!(judge(true), Ok(()));
    assert_eq!(judge(false), Err("tail_call abusing map_ptr".to_owned()));
}
