//! What a program may return.

use bpfkit_btf::{Btf, Kind};
use bpfkit_spec::ProgType;
use bpfkit_spec::ret_range::{self, ReturnRule};

use crate::programs::{self, EXIT, Program, mov_imm};
use crate::{kernel, report, vmlinux};

/// Values on and around the bounds of every rule.
const VALUES: [i32; 12] = [
    i32::MIN,
    -4096,
    -4095,
    -2,
    -1,
    0,
    1,
    2,
    3,
    4,
    4095,
    i32::MAX,
];

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
        let loadable = [0, 1].iter().any(|&value| {
            kernel
                .load(&program.request(&[mov_imm(0, value), EXIT]))
                .errno
                == 0
        });
        if !loadable {
            continue;
        }
        for value in VALUES {
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
