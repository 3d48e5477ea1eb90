//! Which kfuncs a program may call, and which of them sleep.

use bpfkit_btf::Kind;
use bpfkit_spec::kfunc::{self, Flags};
use bpfkit_spec::{AttachType, ProgType};

use crate::helpers::every_program;
use crate::programs::insn;
use crate::{kernel, report, vmlinux};

/// The decl tag that marks kfuncs in the kernel's BTF.
const TAG: &str = "bpf_kfunc";

#[test]
fn every_kfunc_of_this_kernel_has_a_row() {
    let Some(btf) = vmlinux() else {
        println!("skipped: no BTF of a running kernel");
        return;
    };
    let functions = btf.own_types().filter(|t| t.is(Kind::Func));
    let missing: Vec<&str> = functions
        .filter(|function| btf.has_decl_tag(function.id(), TAG))
        .map(|function| function.name())
        .filter(|name| kfunc::by_name(name).is_none() && !kfunc::FMOD_RET_FUNCTIONS.contains(name))
        .collect();
    // Later kernels have more.
    if missing.is_empty() || crate::bpf::Kernel::start().is_ok() {
        assert_eq!(missing, [""; 0]);
    }
}

#[test]
fn availability_of_kfuncs() {
    let Some(mut kernel) = kernel() else { return };
    let Some(btf) = vmlinux() else { return };
    let kfuncs: Vec<(u32, &kfunc::Kfunc)> = btf
        .own_types()
        .filter(|t| t.is(Kind::Func) && btf.has_decl_tag(t.id(), TAG))
        .filter_map(|t| Some((t.id(), kfunc::by_name(t.name())?)))
        .collect();
    let mut asked = 0;
    let mut differences = Vec::new();
    for program in every_program(&mut kernel) {
        // One attach type tells for most program types.
        let first = program.prog_type.attach_types().first();
        let telling = matches!(program.prog_type, ProgType::Kprobe | ProgType::Tracing)
            || program.attach_type == AttachType::CgroupInetIngress
            || first == Some(&program.attach_type);
        if !telling {
            continue;
        }
        for &(id, kfunc) in &kfuncs {
            asked += 1;
            let call = insn(0x85, 0, 2, 0, id as i32);
            let answer = kernel.load(&program.ending(&[call]));
            let allowed = !answer.log.contains("is not allowed");
            if allowed != kfunc.is_for(&program.caller()) {
                let word = if allowed { "allows" } else { "refuses" };
                differences.push(format!("{program}: kernel {word} {}", kfunc.name));
                continue;
            }
            if allowed && !program.sleepable {
                let sleeps = answer
                    .log
                    .contains("must be sleepable to call sleepable kfunc");
                if sleeps != kfunc.flags.has(Flags::SLEEPABLE) {
                    differences.push(format!("{program}: {} sleeps: {sleeps}", kfunc.name));
                }
            }
        }
    }
    report("program × kfunc", asked, &differences);
}
