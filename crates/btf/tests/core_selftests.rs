//! The kernel's own CO-RE tests: each `test_core_reloc_X` against the types of its
//! `btf__core_reloc_X*` variants; those named `___err_*` must not come out usable.

mod common;

use std::path::Path;

use bpfkit_btf::Btf;
use bpfkit_btf::core::{Poison, RawInsn, Relocator};
use bpfkit_btf::ext::BtfExt;

/// How applying all relocations of an object ended.
#[derive(Default, Debug)]
struct Applied {
    records: usize,
    poisoned: usize,
    resized: usize,
    error: Option<String>,
}

fn insn_at(code: &[u8], at: usize) -> Option<RawInsn> {
    let b: [u8; 8] = *code.get(at..)?.first_chunk()?;
    Some(RawInsn {
        code: b[0],
        dst: b[1] & 0xf,
        src: b[1] >> 4,
        off: i16::from_le_bytes([b[2], b[3]]),
        imm: i32::from_le_bytes([b[4], b[5], b[6], b[7]]),
    })
}

fn apply(object: &[u8], target: &Btf) -> Applied {
    let elf = common::Elf::parse(object).expect("an object");
    let local = Btf::parse(elf.section(".BTF").expect("types")).expect("sound types");
    let ext = BtfExt::parse(elf.section(".BTF.ext").expect("records")).expect("sound records");
    let mut relocator = Relocator::new(&local, Some(target), Vec::new());
    let mut applied = Applied::default();
    for section in &ext.core_relo.sections {
        let name = local.string(section.name_off).expect("a section's name");
        let code = elf.section(name).expect("the section");
        for (i, relo) in section.records.iter().enumerate() {
            let at = relo.insn_off as usize;
            let first = insn_at(code, at).expect("an instruction");
            let patched = relocator
                .resolve(relo)
                .and_then(|r| r.patch(relo.insn_off / 8, first, insn_at(code, at + 8)));
            applied.records += 1;
            match patched.map(|p| p.poison) {
                Ok(None) => {}
                Ok(Some(Poison::NoTarget)) => applied.poisoned += 1,
                Ok(Some(Poison::Resize)) => applied.resized += 1,
                Err(error) => {
                    applied.error = Some(error.in_program(name, i));
                    return applied;
                }
            }
        }
    }
    applied
}

fn read(path: &Path) -> Vec<u8> {
    std::fs::read(path).expect("the file was listed")
}

#[test]
fn selftests_come_out_as_their_names_say() {
    let Some(dir) = common::selftests() else {
        return;
    };
    let names: Vec<String> = std::fs::read_dir(&dir)
        .expect("the directory is there")
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .collect();
    let mut pairs = 0;
    let mut wrong = Vec::new();
    for object in names.iter().filter(|n| n.starts_with("test_core_reloc_")) {
        let family = object
            .trim_start_matches("test_core_reloc_")
            .trim_end_matches(".bpf.o");
        let family = family
            .trim_end_matches("_direct")
            .trim_end_matches("_probed");
        let bytes = read(&dir.join(object));
        for variant in &names {
            let Some(rest) = variant.strip_prefix(&format!("btf__core_reloc_{family}")) else {
                continue;
            };
            // `size` is not `size___diff_sz` but is `size.bpf.o`; `ints` is not `int`.
            if !rest.starts_with("__") && rest != ".bpf.o" {
                continue;
            }
            let target = read(&dir.join(variant));
            let elf = common::Elf::parse(&target).expect("an object");
            let target = Btf::parse(elf.section(".BTF").expect("types")).expect("sound types");
            let applied = apply(&bytes, &target);
            let usable = applied.error.is_none() && applied.poisoned == 0 && applied.resized == 0;
            // These ask before they use a field, so that poison is not reached; and in
            // `direct` loads of signed fields are poison where their size changed.
            let guarded = ["existence", "enumval", "enum64val", "type_based", "type_id"]
                .contains(&family)
                || object.contains("_direct");
            let expected = if rest.contains("__err_") {
                !usable
            } else {
                usable || guarded && applied.error.is_none()
            };
            pairs += 1;
            if !expected {
                wrong.push(format!("{object} on {variant}: {applied:?}"));
            }
        }
    }
    println!("{pairs} pairs of objects and types, {} wrong", wrong.len());
    assert!(pairs >= 60, "only {pairs} pairs were found");
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn every_selftest_relocates_on_the_running_kernel() {
    let (Some(dir), Some(bytes)) = (common::selftests(), common::vmlinux()) else {
        return;
    };
    let kernel = Btf::parse(&bytes).expect("the kernel's BTF is sound");
    let (mut objects, mut records, mut errors) = (0, 0, Vec::new());
    for entry in std::fs::read_dir(&dir).expect("the directory is there") {
        let path = entry.expect("an entry").path();
        if path.extension().is_none_or(|e| e != "o") {
            continue;
        }
        let bytes = read(&path);
        let Some(elf) = common::Elf::parse(&bytes) else {
            continue;
        };
        if elf.section(".BTF").is_none() || elf.section(".BTF.ext").is_none() {
            continue;
        }
        let applied = apply(&bytes, &kernel);
        objects += 1;
        records += applied.records;
        errors.extend(applied.error.map(|e| format!("{}: {e}", path.display())));
    }
    println!(
        "{records} relocations of {objects} objects, {} errors",
        errors.len()
    );
    // libbpf fails on these as well: types that the kernel has more than once.
    assert!(errors.len() * 100 <= objects, "{errors:#?}");
}
