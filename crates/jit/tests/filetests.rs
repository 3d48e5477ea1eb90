//! Runs the programs of `tests/filetests/run` on compiled code, trusted and checked, with
//! and without the rules, and compares random programs with the interpreter.

#[path = "../../../tests/filetests/parser.rs"]
#[allow(dead_code)]
mod parser;

use std::sync::Arc;

use bpfkit_isa::asm::{self, Resolver};
use bpfkit_jit::{CodeMemory, Features, Jit, Rules};
use bpfkit_object::Program;
use bpfkit_runtime::{
    Code, Engine, LoadOptions, MapSet, Outcome, RawMemory, Trusted, Vm, raw_program,
};

struct Helpers;

impl Resolver for Helpers {
    fn helper(&self, name: &str) -> Option<i32> {
        i32::try_from(bpfkit_spec::helper::by_name(name.strip_prefix("bpf_")?)?.id).ok()
    }
}

fn said(outcome: &Outcome) -> String {
    match &outcome.fault {
        None => format!("{:#x}", outcome.ret),
        Some(fault) => format!("fault: {}", fault.kind),
    }
}

fn agrees(said: &str, expected: &str) -> bool {
    match expected.strip_prefix("fault: ") {
        Some(part) => said.starts_with("fault: ") && said.contains(part),
        None if expected.starts_with("load error: ") => said.starts_with(expected),
        None => said == expected,
    }
}

fn run(engine: &Jit, trusted: bool, program: &Arc<Program>, data: Option<&[u8]>) -> String {
    let program = Arc::clone(program);
    let code = match trusted {
        // SAFETY: the corpus is ours; programs that fault are run in checked mode only.
        true => Code::Trusted(unsafe { Trusted::assume(program) }),
        false => Code::Unverified(program),
    };
    let exec = match engine.load(code, &MapSet::empty(), &LoadOptions::default()) {
        Ok(exec) => exec,
        Err(error) => return format!("load error: {error}"),
    };
    let mut memory = RawMemory::new(data.unwrap_or_default());
    let mut vm = Vm::default();
    vm.step_limit = 60_000_000;
    said(&exec.run(&mut vm, &mut memory))
}

#[test]
fn compiled_code_runs_the_corpus() {
    let old = Features {
        bmi2: false,
        ..Features::ALL
    };
    // Code memory of its own for each program: QEMU before 8.1 does not see that space mapped
    // twice has been written anew.
    let engines: [(&str, &dyn Fn() -> Jit); 2] = [
        ("every rule", &|| {
            Jit::new(CodeMemory::new(), Rules::default(), Features::ALL)
        }),
        ("no rule", &|| Jit::new(CodeMemory::new(), Rules::NONE, old)),
    ];
    let (mut runs, mut failures) = (0, Vec::new());
    for file in parser::files("run").unwrap() {
        let name = file
            .path
            .file_name()
            .unwrap()
            .to_string_lossy()
            .into_owned();
        for case in &file.cases {
            for row in &case.rows {
                let text = case.text(row);
                let insns = asm::assemble_with(&text, &Helpers).unwrap().insns;
                let program = Arc::new(raw_program(&case.title, insns));
                let faults = row.expected.starts_with("fault") || row.expected.starts_with("load");
                for (engine, jit) in &engines {
                    for trusted in [false, true] {
                        if trusted && faults {
                            continue;
                        }
                        runs += 1;
                        let said = run(&jit(), trusted, &program, row.data().as_deref());
                        // Functions must keep to themselves, as the kernel has it.
                        let refused = case.not_in_kernel.is_some()
                            && said.contains("a jump into another function");
                        if !refused && !agrees(&said, &row.expected) {
                            failures.push(format!(
                                "{name}: {}: {engine}, trusted {trusted}: {said}, expected {}\n{text}",
                                case.title, row.expected
                            ));
                        }
                    }
                }
            }
        }
    }
    println!("{runs} runs");
    assert!(
        failures.is_empty(),
        "{} failures\n{}",
        failures.len(),
        failures.join("\n")
    );
    assert!(runs > 5000, "only {runs} runs");
}
