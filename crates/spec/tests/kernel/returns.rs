//! What a program may return.

use bpfkit_btf::{Btf, Kind};
use bpfkit_spec::ProgType;
use bpfkit_spec::ret_range::{self, ReturnRule};

use crate::programs::{self, EXIT, Program, mov_imm};
use crate::{kernel, report, vmlinux};

/// Values to try: on and around the bounds of the rule, few where it has none, since these
/// programs are accepted.
fn values(rule: ReturnRule) -> Vec<i32> {
    match rule {
        ReturnRule::Nothing | ReturnRule::Scalar => vec![i32::MIN],
        ReturnRule::Within(min, max) | ReturnRule::Within32(min, max) => {
            vec![i32::MIN, min - 1, min, max, max + 1, i32::MAX]
        }
    }
}

/// Whether the member that a struct_ops program implements returns nothing.
fn returns_void(btf: &Btf, program: &Program) -> bool {
    let proto = btf
        .by_name(&program.target, Kind::Struct)
        .and_then(|ops| ops.member_by_name(&program.member)?.type_in()?.resolve())
        .and_then(|pointer| pointer.target()?.resolve());
    proto.is_some_and(|proto| proto.type_id() == 0)
}

fn allows(rule: ReturnRule, value: i32) -> bool {
    match rule {
        ReturnRule::Nothing | ReturnRule::Scalar => true,
        ReturnRule::Within(min, max) | ReturnRule::Within32(min, max) => {
            (min..=max).contains(&value)
        }
    }
}

#[test]
fn return_values() {
    let Some(mut kernel) = kernel() else { return };
    let mut all = programs::plain();
    let btf = vmlinux();
    if let Some(btf) = btf {
        all.extend(programs::by_btf(btf));
    }
    let mut asked = 0;
    let mut differences = Vec::new();
    for program in &all {
        let void = program.prog_type == ProgType::StructOps
            && btf.is_some_and(|btf| returns_void(btf, program));
        let rule = ret_range::of(&program.caller(), void);
        if !kernel.load(&program.ending(&[])).reached_end() {
            continue;
        }
        for value in values(rule) {
            asked += 1;
            let answer = kernel.load(&program.request(&[mov_imm(0, value), EXIT]));
            let accepted = answer.errno == 0;
            if accepted != allows(rule, value) {
                differences.push(format!(
                    "{program}: kernel on {value}: {}",
                    answer.message()
                ));
            }
            if let (false, ReturnRule::Within(min, max)) = (accepted, rule)
                && !answer.log.contains(&format!("[{min}, {max}]"))
            {
                differences.push(format!(
                    "{program}: not [{min}, {max}]: {}",
                    answer.message()
                ));
            }
        }
        asked += 1;
        let unset = kernel.load(&program.request(&[EXIT])).errno == 0;
        if unset != (rule == ReturnRule::Nothing) {
            differences.push(format!("{program}: kernel takes an unset R0: {unset}"));
        }
    }
    report("return values", asked, &differences);
}
