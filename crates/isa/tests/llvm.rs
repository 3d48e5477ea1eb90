//! Against LLVM's own tools: our LLVM syntax is what `llvm-objdump` prints, and
//! `llvm-mc` makes of it the bits that we make.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use bpfkit_isa::asm::assemble;
use bpfkit_isa::disasm::{NoSymbols, line};
use bpfkit_isa::table::{self, Accepted, Field, Form};
use bpfkit_isa::{Call, Insn, Op, Syntax};

/// The tool with LLVM 19's name or without a version; `None`, said why, without it.
fn tool(name: &str) -> Option<String> {
    for name in [format!("{name}-19"), name.to_owned()] {
        let version = Command::new(&name)
            .arg("--version")
            .stderr(Stdio::null())
            .output();
        if version.is_ok_and(|v| String::from_utf8_lossy(&v.stdout).contains("LLVM version 19.")) {
            return Some(name);
        }
    }
    println!("skipped: no {name} of LLVM 19");
    None
}

fn run(tool: &str, args: &[&str], input: Option<&Path>) -> String {
    let mut command = Command::new(tool);
    command.args(args).args(input);
    let out = command.output().unwrap_or_else(|e| panic!("{tool}: {e}"));
    assert!(
        out.status.success(),
        "{tool}: {}",
        String::from_utf8_lossy(&out.stderr)
    );
    String::from_utf8(out.stdout).expect("the tool prints UTF-8")
}

/// Bytes and text of each instruction in what `llvm-objdump -d` prints.
fn objdump_lines(dump: &str) -> impl Iterator<Item = (Vec<Insn>, &str)> {
    dump.lines().filter_map(|line| {
        let (slot, rest) = line.split_once(":\t")?;
        slot.trim().parse::<usize>().ok()?;
        let (bytes, text) = rest.split_once('\t')?;
        let bytes: Vec<u8> = bytes
            .split(' ')
            .map(|b| u8::from_str_radix(b, 16))
            .collect::<Result<_, _>>()
            .ok()?;
        let slots = bytes
            .as_chunks::<8>()
            .0
            .iter()
            .map(|b| Insn::from_le_bytes(*b));
        Some((slots.collect(), text))
    })
}

/// Without the note on where a jump goes, which needs symbols.
fn without_note(text: &str) -> &str {
    let note = text.strip_suffix('>').and_then(|t| t.rfind(" <"));
    note.map_or(text, |at| &text[..at])
}

/// Forms that LLVM 19 has no text for.
fn unknown_to_llvm(form: Form, accepted: Accepted) -> bool {
    accepted == Accepted::Rewritten
        || matches!(
            form,
            Form::LoadAcquire(_)
                | Form::StoreRelease(_)
                | Form::LoadMapFd
                | Form::LoadMapFdValue
                | Form::LoadBtfId
                | Form::LoadFunc
                | Form::LoadMapIdx
                | Form::LoadMapIdxValue
        )
}

/// Every form that LLVM knows, with edge values.
fn programs() -> Vec<Vec<Insn>> {
    let mut all = Vec::new();
    for row in table::rows().filter(|row| !unknown_to_llvm(row.form, row.accepted)) {
        // LLVM drops the immediate of an indexed packet load.
        let imms: &[i32] = match (row.form, row.src) {
            (Form::LoadPacket(_), Field::Reg) => &[0],
            _ => &[0, 1, -1, 16, i32::MAX, i32::MIN],
        };
        for (dst, src) in [(0, 10), (1, 2), (10, 0)] {
            for off in [0i16, 3, -3, i16::MAX, i16::MIN] {
                for &imm in imms {
                    let pick = |field, any| match field {
                        Field::Is(v) => v,
                        Field::Zero => 0,
                        Field::Reg | Field::Any => any,
                    };
                    let first = Insn {
                        code: row.code,
                        dst: pick(row.dst, dst) as u8,
                        src: pick(row.src, src) as u8,
                        off: pick(row.off, off.into()) as i16,
                        imm: pick(row.imm, imm),
                    };
                    let second = row.next.map(|_| Insn {
                        imm: !imm,
                        ..Insn::default()
                    });
                    all.push([first].into_iter().chain(second).collect());
                }
            }
        }
    }
    all.sort_by_key(|p: &Vec<Insn>| p.iter().map(|i| i.to_le_bytes()).collect::<Vec<_>>());
    all.dedup();
    all
}

/// A file of this test run, removed at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str, text: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("bpfkit-isa-{}-{name}", std::process::id()));
        std::fs::write(&path, text).expect("the temporary directory takes files");
        Scratch(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn llvm_objdump_prints_what_we_print() {
    let (Some(mc), Some(objdump)) = (tool("llvm-mc"), tool("llvm-objdump")) else {
        return;
    };
    let programs = programs();
    let mut source = String::from(".text\n");
    for insn in programs.iter().flatten() {
        source += &format!(".8byte {:#x}\n", u64::from_le_bytes(insn.to_le_bytes()));
    }
    let source = Scratch::new("objdump.s", &source);
    let object = Scratch::new("objdump.o", "");
    let target = object.0.to_str().expect("the path is UTF-8");
    run(
        &mc,
        &["-triple=bpfel", "-filetype=obj", "-o", target],
        Some(&source.0),
    );
    let dump = run(&objdump, &["-d", "--mcpu=v4"], Some(&object.0));
    let printed: Vec<_> = objdump_lines(&dump).collect();
    assert_eq!(printed.len(), programs.len());
    for ((insns, text), ours) in printed.into_iter().zip(&programs) {
        assert_eq!(&insns, ours);
        let our_text = line(ours, 0, Syntax::Llvm, &NoSymbols).to_string();
        assert_eq!(without_note(&our_text), without_note(text));
    }
}

#[test]
fn llvm_mc_assembles_our_text_to_the_same_bits() {
    let Some(mc) = tool("llvm-mc") else { return };
    let mut source = String::new();
    let mut expected = Vec::new();
    for insns in programs() {
        let text = line(&insns, 0, Syntax::Llvm, &NoSymbols).to_string();
        // LLVM's assembler needs relocations for the other kinds of call, and takes no
        // number above 16 bits for a long jump.
        let out_of_reach = match Op::decode(&insns) {
            Ok(Op::Call(call)) => !matches!(call, Call::Helper(_)),
            Ok(Op::Jump { off, .. }) => i16::try_from(off).is_err(),
            _ => false,
        };
        if !out_of_reach {
            source += without_note(&text);
            source.push('\n');
            expected.push((text, insns));
        }
    }
    let source = Scratch::new("mc.s", &source);
    let listing = run(
        &mc,
        &["-triple=bpfel", "-mcpu=v4", "-show-encoding"],
        Some(&source.0),
    );
    let encodings = listing
        .lines()
        .filter_map(|l| l.split_once("# encoding: [")?.1.strip_suffix(']'));
    let mut count = 0;
    for (encoding, (text, insns)) in encodings.zip(&expected) {
        let bytes: Vec<u8> = encoding
            .split(',')
            .map(|b| {
                u8::from_str_radix(b.trim_start_matches("0x"), 16).expect("bytes in hexadecimal")
            })
            .collect();
        assert_eq!(
            bytes,
            insns
                .iter()
                .flat_map(|i| i.to_le_bytes())
                .collect::<Vec<_>>(),
            "{text}"
        );
        count += 1;
    }
    assert_eq!(count, expected.len());
}

/// The objects of the kernel's selftests where they have been built: every eighth, or
/// all with `BPFKIT_SELFTESTS_ALL` set.
fn selftests() -> Vec<PathBuf> {
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/kernel-selftests");
    let dir = std::env::var_os("BPFKIT_SELFTESTS").map_or(built, PathBuf::from);
    let entries = std::fs::read_dir(&dir).into_iter().flatten().flatten();
    let mut objects: Vec<_> = entries
        .map(|e| e.path())
        .filter(|p| p.extension().is_some_and(|e| e == "o"))
        .collect();
    objects.sort();
    if std::env::var_os("BPFKIT_SELFTESTS_ALL").is_none() {
        objects = objects.into_iter().step_by(8).collect();
    }
    if objects.is_empty() {
        println!("skipped: no selftest objects in {}", dir.display());
    }
    objects
}

#[test]
fn selftest_objects_disassemble_as_llvm_does() {
    let Some(objdump) = tool("llvm-objdump") else {
        return;
    };
    let mut seen = BTreeSet::new();
    let mut unknown = 0;
    for object in selftests() {
        let dump = run(&objdump, &["-d", "--mcpu=v4"], Some(&object));
        for (insns, text) in objdump_lines(&dump) {
            let bytes: Vec<_> = insns.iter().map(|i| i.to_le_bytes()).collect();
            if !seen.insert(bytes) {
                continue;
            }
            let ours = line(&insns, 0, Syntax::Llvm, &NoSymbols).to_string();
            let place = || format!("{}: {insns:x?}: {text}", object.display());
            // Some tests hold slots that are no instruction; LLVM overlooks part of
            // what is wrong with them.
            if ours == "<unknown>" {
                assert!(Op::decode(&insns).is_err(), "{}", place());
                unknown += 1;
                continue;
            }
            // LLVM drops the immediate of indexed packet loads, and prints two-slot loads
            // with a pseudo source as it prints nothing else.
            if !text.starts_with("ld_pseudo") && !text.contains("skb[r") {
                assert_eq!(without_note(&ours), without_note(text), "{}", place());
            }
            let back = assemble(&ours).unwrap_or_else(|e| panic!("{}: {e}", place()));
            assert_eq!(back.insns, insns, "{}", place());
        }
    }
    println!("{} different instructions, {unknown} malformed", seen.len());
    assert!(unknown * 100 <= seen.len());
}
