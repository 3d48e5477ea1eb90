//! What profilers are told: addresses, names, source lines.

mod common;

use std::sync::Arc;

use bpfkit_jit::perf::{JitDump, MachineCode};
use bpfkit_jit::{Arch, Jit, Origin, Rules};
use bpfkit_object::{LineInfo, Program, Subprogram};
use bpfkit_runtime::{Local, MapSet};

use common::{assemble, jit, load};

/// Main at line 10, the call at 11, the function at 20.
fn program() -> Program {
    let mut program = assemble("main", "r6 = 1\ncall inner\nexit\ninner:\nr0 = 7\nexit");
    program.subprograms.push(Subprogram {
        name: "inner".to_owned(),
        start: 3,
        type_id: 0,
        global: false,
    });
    for (insn, line) in [(0, 10), (1, 11), (3, 20)] {
        program.lines.push(LineInfo {
            insn,
            file: "main.c".into(),
            text: "".into(),
            line,
            column: 1,
            offsets: [0, 0],
        });
    }
    program
}

fn with_code<R>(jit: &Jit, body: impl FnOnce(&MachineCode<'_>) -> R) -> R {
    let exec = load(jit, &Arc::new(program()), false, &MapSet::empty());
    let local: Arc<dyn Local> = exec.local().unwrap();
    body(&bpfkit_jit::machine_code(&*local).unwrap())
}

#[test]
fn addresses_lead_to_instructions_and_lines() {
    with_code(&jit(Rules::default()).with_parts(), |code| {
        let mut seen = Vec::new();
        for part in code.parts {
            let at = code.resolve(code.address + u64::from(part.offset)).unwrap();
            if let Origin::Insn(slot) = at.origin {
                seen.push((slot, at.function.unwrap(), at.line.unwrap().line));
            }
        }
        for expected in [
            (0, "main", 10),
            (1, "main", 11),
            (2, "main", 11),
            (3, "inner", 20),
        ] {
            assert!(seen.contains(&expected), "{expected:?} not in {seen:?}");
        }
        assert!(code.resolve(code.address - 1).is_none());
        let end = code.address + code.code.len() as u64;
        assert!(code.resolve(end).is_none());
    });
    // Nobody asked.
    with_code(&jit(Rules::default()), |code| {
        assert!(code.parts.is_empty())
    });
}

#[test]
fn symbols_cover_the_code() {
    with_code(&jit(Rules::default()).with_parts(), |code| {
        let symbols = code.symbols();
        let mut at = code.address;
        for symbol in &symbols {
            assert_eq!(symbol.address, at);
            at += symbol.size;
        }
        assert_eq!(at, code.address + code.code.len() as u64);
        let first = format!("{:x} {:x} bpf_prog_main", code.address, symbols[0].size);
        let map = code.perf_map();
        assert_eq!(map.lines().next(), Some(&*first));
        assert!(map.contains(" bpf_prog_main_inner\n"), "{map}");
    });
    with_code(&jit(Rules::default()), |code| {
        assert_eq!(code.symbols().len(), 1);
        assert_eq!(code.symbols()[0].size, code.code.len() as u64);
    });
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap())
}

#[test]
fn a_jitdump_holds_code_and_lines() {
    with_code(&jit(Rules::default()).with_parts(), |code| {
        let arch = Arch::HOST.unwrap();
        let (mut dump, mut bytes) = JitDump::new(arch, 42, 1000);
        assert_eq!(bytes.len(), 40);
        assert_eq!(
            (word(&bytes, 0), word(&bytes, 8), word(&bytes, 20)),
            (0x4a69_5444, 40, 42)
        );
        bytes.extend(dump.load(code, 2000));
        bytes.extend(dump.close(3000));
        let (mut at, mut loaded, mut lines, mut kinds) = (40, Vec::new(), Vec::new(), Vec::new());
        while at < bytes.len() {
            let (kind, size) = (word(&bytes, at), word(&bytes, at + 4) as usize);
            let body = &bytes[at + 16..at + size];
            kinds.push((kind, long(&bytes, at + 8)));
            match kind {
                0 => {
                    let name = body[40..].split(|b| *b == 0).next().unwrap();
                    let start = 40 + name.len() + 1;
                    assert_eq!(body.len() - start, long(body, 24) as usize);
                    assert_eq!(long(body, 8), code.address + loaded.len() as u64);
                    loaded.extend_from_slice(&body[start..]);
                }
                2 => {
                    let mut entry = 16;
                    for _ in 0..long(body, 8) {
                        lines.push(word(body, entry + 8));
                        let name = &body[entry + 16..entry + 23];
                        assert_eq!(name, b"main.c\0");
                        entry += 23;
                    }
                    assert_eq!(entry, body.len());
                }
                _ => assert_eq!((kind, size), (3, 16)),
            }
            at += size;
        }
        assert_eq!(loaded, code.code);
        assert_eq!(kinds.last(), Some(&(3, 3000)));
        for line in [10, 11, 20] {
            assert!(lines.contains(&line), "{lines:?}");
        }
    });
}
