//! An object file: open it, link every program without a target and against the object's
//! own types, and make its BTF ready for the kernel.
#![no_main]

use bpfkit_object::{Linker, Object, Target};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(object) = Object::open("fuzz.bpf.o", data) else {
        return;
    };
    let target = Target {
        kernel_btf: object.btf.as_deref().into(),
        kconfig: Some("CONFIG_HZ=250\nCONFIG_NAME=\"x\"\nCONFIG_BPF=y\n"),
        kallsyms: Some("ffffffff81234567 d jiffies\n"),
        ..Target::default()
    };
    for target in [&Target::default(), &target] {
        let mut linker = Linker::new(&object, target);
        for index in 0..object.programs.len() {
            let Ok(program) = linker.link(index) else {
                continue;
            };
            let len = program.insns.len() as u32;
            assert!(program.subprograms.iter().all(|s| s.start < len));
            assert!(program.refs.iter().all(|r| r.insn < len));
            assert!(program.lines.iter().all(|l| l.insn < len));
        }
        let _ = linker.maps();
        let _ = linker.check();
    }
    let _ = object.btf_for_kernel();
});
