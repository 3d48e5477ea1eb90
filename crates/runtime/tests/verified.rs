//! Programs that run without checks because they were verified: with which maps, on which
//! contexts, and which must keep their checks.

use std::sync::Arc;

use bpfkit_btf::Btf;
use bpfkit_isa::asm;
use bpfkit_object::Program;
use bpfkit_runtime::context::Input;
use bpfkit_runtime::{
    Code, Engine, FaultKind, Interpreter, LoadErrorKind, LoadOptions, MapOptions, MapSet, Vm,
    raw_program,
};
use bpfkit_spec::ProgType;
use bpfkit_verifier::Environment;

fn program(prog_type: ProgType, text: &str) -> Program {
    let mut program = raw_program("p", asm::assemble(text).expect("assembles").insns);
    program.decl.prog_type = prog_type;
    program
}

#[test]
fn a_verified_program_runs_without_checks_where_it_was_verified_for() {
    let xdp = program(ProgType::Xdp, "r0 = *(u32 *)(r1 +12)\nr0 = 2\nexit");
    let maps = MapSet::empty();
    let code = Code::verify(&xdp, &maps, &Environment::new(None)).expect("is accepted");
    assert!(matches!(code, Code::Trusted(_)));

    let others = MapSet::new(&[], &MapOptions::default()).expect("another set");
    let elsewhere = Interpreter::default().load(code.clone(), &others, &LoadOptions::default());
    assert!(matches!(
        elsewhere.map(|_| ()).map_err(|error| error.kind),
        Err(LoadErrorKind::OtherMaps)
    ));

    let loaded = Interpreter::default()
        .load(code, &maps, &LoadOptions::default())
        .expect("loads");
    let mut input = Input::packet(ProgType::Xdp, &[0; 64]).expect("a packet");
    assert_eq!(loaded.run(&mut Vm::default(), &mut input).ret, 2);

    let mut other = Input::packet(ProgType::SchedCls, &[0; 64]).expect("a packet");
    let fault = loaded.run(&mut Vm::default(), &mut other).fault;
    assert!(matches!(
        fault.map(|fault| fault.kind.clone()),
        Some(FaultKind::OtherContext(ProgType::Xdp))
    ));
}

#[test]
fn what_the_verifier_refuses_is_no_code() {
    let wild = program(ProgType::Xdp, "r0 = *(u32 *)(r2 +0)\nexit");
    let refused = Code::verify(&wild, &MapSet::empty(), &Environment::new(None));
    let message = refused
        .map(|_| ())
        .expect_err("R2 holds nothing")
        .to_string();
    assert!(message.contains("R2 !read_ok"), "{message}");
}

#[test]
fn what_linux_is_wrong_about_stays_checked() {
    // R1 is negative where the number in the stack has its 32nd bit set, yet Linux takes them
    // for the same: it lets R2 be 10 at most, which is any number of 32 bits.
    let text = "r0 = *(u32 *)(r1 +0)
        *(u64 *)(r10 -16) = r0
        r1 = *(s32 *)(r10 -16)
        r0 = 0
        if r1 s> 10 goto +1
        r0 = *(u64 *)(r10 -16)
        exit";
    let maps = MapSet::empty();
    let wrong = program(ProgType::SchedCls, text);
    let code = Code::verify(&wrong, &maps, &Environment::new(None)).expect("is accepted");
    assert!(matches!(code, Code::Unverified(_)));

    let zero_extended = program(ProgType::SchedCls, &text.replace("s32", "u32"));
    let code = Code::verify(&zero_extended, &maps, &Environment::new(None)).expect("is accepted");
    assert!(matches!(code, Code::Trusted(_)));
}

#[test]
fn loads_that_lean_on_the_kernel_stay_checked() {
    let Ok(bytes) = std::fs::read("/sys/kernel/btf/vmlinux") else {
        println!("skipped: no kernel BTF");
        return;
    };
    let btf = Btf::parse(&bytes).expect("the kernel's BTF");
    // Its first field, through a pointer that only the kernel can vouch for.
    let text = "call 158\nr0 = *(u64 *)(r0 +0)\nr0 = 0\nexit";
    let task = program(ProgType::RawTracepoint, text);
    let maps = MapSet::empty();
    let code = Code::verify(&task, &maps, &Environment::new(Some(&btf))).expect("is accepted");
    assert!(matches!(code, Code::Unverified(_)));

    let plain = Arc::new(program(ProgType::RawTracepoint, "r0 = 0\nexit"));
    let code = Code::verify(&plain, &maps, &Environment::new(Some(&btf))).expect("is accepted");
    assert!(matches!(code, Code::Trusted(_)));
}
