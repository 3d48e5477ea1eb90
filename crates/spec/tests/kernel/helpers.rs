//! Which helpers a program may call.

use bpfkit_spec::helper::{self, HELPERS};

use crate::bpf::Kernel;
use crate::programs::{self, Program, call};
use crate::{kernel, report, vmlinux};

/// Helpers that a kernel may leave out by its configuration, which the tables keep:
/// `override_return` wants CONFIG_BPF_KPROBE_OVERRIDE, and a locked-down kernel withholds
/// `probe_write_user`.
pub const OPTIONAL: [&str; 2] = ["override_return", "probe_write_user"];

/// The message for a helper that the program may not call.
const REFUSED: &str = "program of this type cannot use helper";

/// Every kind of program that the kernel takes at all.
pub fn every_program(kernel: &mut Kernel) -> Vec<Program> {
    let mut all = programs::plain();
    if let Some(btf) = vmlinux() {
        all.extend(programs::by_btf(btf));
    }
    all.retain(|program| {
        let answer = kernel.load(&program.ending(&[]));
        let verified = answer.reached_end();
        if !verified {
            println!(
                "skipped {program}: errno {} {}",
                answer.errno,
                answer.message()
            );
        }
        verified
    });
    all
}

#[test]
fn availability_of_helpers() {
    let Some(mut kernel) = kernel() else { return };
    let mut asked = 0;
    let mut differences = Vec::new();
    for program in every_program(&mut kernel) {
        for helper in &HELPERS {
            if OPTIONAL.contains(&helper.name) {
                continue;
            }
            asked += 1;
            let answer = kernel.load(&program.ending(&[call(helper.id)]));
            let allowed = !answer.log.contains(REFUSED);
            if helper.proto_for(&program.caller()).is_some() != allowed {
                let word = if allowed { "allows" } else { "refuses" };
                differences.push(format!("{program}: kernel {word} {}", helper.full_name()));
            }
        }
    }
    report("program × helper", asked, &differences);
}

#[test]
fn licence_of_helpers() {
    let Some(mut kernel) = kernel() else { return };
    let mut asked = 0;
    let mut differences = Vec::new();
    for program in programs::plain() {
        for helper in &HELPERS {
            let Some(proto) = helper.proto_for(&program.caller()) else {
                continue;
            };
            if OPTIONAL.contains(&helper.name) {
                continue;
            }
            asked += 1;
            let mut request = program.ending(&[call(helper.id)]);
            request.gpl = false;
            let gpl_only = kernel
                .load(&request)
                .log
                .contains("cannot call GPL-restricted function");
            if gpl_only != proto.gpl_only {
                differences.push(format!(
                    "{program}: {} is GPL: {gpl_only}",
                    helper.full_name()
                ));
            }
        }
    }
    report("licence of helpers", asked, &differences);
}

#[test]
fn numbers_without_helper() {
    let Some(mut kernel) = kernel() else { return };
    let program = &programs::plain()[0];
    for (id, message) in [
        (0, REFUSED),
        (HELPERS.len() as u32 + 1, "invalid func unknown"),
    ] {
        assert!(helper::by_id(id as i32).is_none());
        let answer = kernel.load(&program.ending(&[call(id)]));
        assert!(answer.log.contains(message), "{id}: {}", answer.log);
    }
}
