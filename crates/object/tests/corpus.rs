//! The objects of the kernel's own tests, where they have been built
//! (`target/kernel-selftests`, or the folder that `BPFKIT_SELFTESTS` names).

use std::path::PathBuf;

use bpfkit_btf::Btf;
use bpfkit_isa::code;
use bpfkit_object::{Linker, Object, PoisonReason, Program, RefTarget, Target};

/// Objects that do not open, with libbpf's reason.
const REFUSED: [(&str, &str); 4] = [
    ("linked_maps1.bpf.o", "unrecognized extern section '.maps'"),
    ("linked_maps2.bpf.o", "unrecognized extern section '.maps'"),
    (
        "test_pinning_invalid.bpf.o",
        "map 'nopinmap3': invalid pinning value 2.",
    ),
    (
        "test_subskeleton_lib.bpf.o",
        "unrecognized extern section '.maps'",
    ),
];

fn corpus() -> Option<Vec<PathBuf>> {
    let folder = std::env::var_os("BPFKIT_SELFTESTS").map_or_else(
        || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../target/kernel-selftests"),
        PathBuf::from,
    );
    let Ok(entries) = std::fs::read_dir(&folder) else {
        println!("skipped: no kernel selftests in {}", folder.display());
        return None;
    };
    let mut files: Vec<_> = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|e| e == "o"))
        .collect();
    files.sort();
    Some(files)
}

/// What holds for every linked program.
fn check(program: &Program, maps: usize) {
    let len = program.insns.len();
    let starts: Vec<_> = program.subprograms.iter().map(|s| s.start).collect();
    assert_eq!(starts.first(), Some(&0));
    assert!(starts.is_sorted());
    assert!(program.refs.is_sorted_by_key(|r| r.insn));
    assert!(program.lines.is_sorted_by_key(|l| l.insn));
    for r in &program.refs {
        let insn = program.insns[r.insn as usize];
        match &r.target {
            RefTarget::Map(map) => {
                assert!((*map as usize) < maps && insn.imm == *map as i32);
                assert!(matches!(
                    insn.src,
                    code::PSEUDO_MAP_IDX | code::PSEUDO_MAP_IDX_VALUE
                ));
            }
            RefTarget::Subprogram(index) => {
                let at = i64::from(r.insn) + i64::from(insn.imm) + 1;
                assert_eq!(at, i64::from(starts[*index as usize]));
            }
            RefTarget::Poison { reason, .. } => {
                assert_eq!((insn.code, insn.src), (code::JMP | code::CALL, 0));
                let base = match reason {
                    PoisonReason::CoreRelocation => 195_896_080,
                    PoisonReason::Map => 2_001_000_000,
                    PoisonReason::Kfunc => 2_002_000_000,
                };
                assert!(insn.imm >= base && insn.imm < base + 1_000_000);
            }
            RefTarget::Kfunc { .. } | RefTarget::Ksym { .. } | RefTarget::Core { .. } => {}
        }
    }
    // Every call of a subprogram has been put right.
    for (at, insn) in program.insns.iter().enumerate() {
        if insn.code == code::JMP | code::CALL && insn.src == code::PSEUDO_CALL {
            let to = at as i64 + i64::from(insn.imm) + 1;
            assert!(
                starts.iter().any(|&s| i64::from(s) == to),
                "call at {at} to {to} of {len}"
            );
        }
    }
}

#[test]
fn selftests_open_and_link() {
    let Some(files) = corpus() else { return };
    let kernel = std::fs::read("/sys/kernel/btf/vmlinux")
        .ok()
        .and_then(|b| Btf::parse(&b).ok());
    if kernel.is_none() {
        println!("skipped: linking against the running kernel, which shows no BTF");
    }
    let (mut programs, mut linked) = (0, 0);
    for path in &files {
        let name = path.file_name().and_then(|n| n.to_str()).expect("name");
        let bytes = std::fs::read(path).expect("readable");
        let refused = REFUSED
            .iter()
            .find(|(file, _)| *file == name)
            .map(|(_, reason)| *reason);
        let object = match Object::open(name, &bytes) {
            Ok(object) => object,
            Err(e) => {
                assert_eq!(Some(e.message()), refused, "{name}");
                continue;
            }
        };
        assert_eq!(refused, None, "{name}");
        let targets = [
            Some(Target::default()),
            kernel.as_ref().map(|btf| Target {
                kernel_btf: btf.into(),
                ..Target::default()
            }),
        ];
        for (round, target) in targets.iter().enumerate() {
            let Some(target) = target else { continue };
            let mut linker = Linker::new(&object, target);
            for index in 0..object.programs.len() {
                programs += usize::from(round == 0);
                match linker.link(index) {
                    Ok(program) => {
                        linked += usize::from(round == 0);
                        check(&program, object.maps.len());
                    }
                    // Only what a kernel may lack keeps a program from being linked.
                    Err(e) => assert!(e.message().contains("extern"), "{name}: {e}"),
                }
            }
        }
    }
    println!(
        "{} objects, {programs} programs, {linked} linked without a target",
        files.len()
    );
    assert!(linked * 100 >= programs * 99);
}

/// What a program is, as far as a second linking must find it again.
fn shape(program: &Program) -> impl PartialEq + std::fmt::Debug + use<> {
    let lines: Vec<_> = program
        .lines
        .iter()
        .map(|l| (l.insn, l.line, l.column))
        .collect();
    let subs: Vec<_> = program
        .subprograms
        .iter()
        .map(|s| (s.start, s.type_id, s.global))
        .collect();
    (program.insns.clone(), program.refs.clone(), lines, subs)
}

#[test]
fn selftests_are_written_back() {
    let Some(files) = corpus() else { return };
    let target = Target::default();
    let mut written = 0;
    for path in &files {
        let name = path.file_name().and_then(|n| n.to_str()).expect("name");
        let Ok(object) = Object::open(name, &std::fs::read(path).expect("readable")) else {
            continue;
        };
        let mut linker = Linker::new(&object, &target);
        let programs: Vec<Program> = (0..object.programs.len())
            .filter_map(|i| linker.link(i).ok())
            // Their callback goes on calling the original functions.
            .filter(|p| p.exception_callback.is_none())
            .collect();
        let bytes = object
            .write(&programs)
            .unwrap_or_else(|e| panic!("{name}: {e}"));
        let again = Object::open(name, &bytes).unwrap_or_else(|e| panic!("{name}: {e}"));
        let mut linker = Linker::new(&again, &target);
        for program in &programs {
            let index = again.program_index(&program.decl.name).expect("program");
            let second = linker.link(index).unwrap_or_else(|e| panic!("{name}: {e}"));
            assert_eq!(
                shape(program),
                shape(&second),
                "{name}: {}",
                program.decl.name
            );
            written += 1;
        }
        if let Some(folder) = std::env::var_os("BPFKIT_WRITTEN") {
            std::fs::write(PathBuf::from(folder).join(name), &bytes).expect("written");
        }
    }
    println!("{written} programs written back");
}
