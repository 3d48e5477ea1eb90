//! Broken objects: nothing panics or hangs, whatever the bytes are.
//!
//! `BPFKIT_HOSTILE_ROUNDS` asks for more than the few thousand random changes that an
//! ordinary run tries.

mod common;

use bpfkit_btf::Btf;
use bpfkit_object::{Linker, Object, Target};
use common::{OBJECTS, bytes, kernel};

/// Does with the bytes all that one can do with an object.
fn exercise(bytes: &[u8], kernel: &Btf) -> bool {
    let object = match Object::open("hostile.bpf.o", bytes) {
        Ok(object) => object,
        Err(e) => {
            assert!(!e.message().is_empty());
            return false;
        }
    };
    let target = Target {
        kernel_btf: kernel.into(),
        kconfig: Some("CONFIG_NUMBER=7\nCONFIG_NAME=\"x\"\n"),
        kallsyms: Some("ffffffff81234567 d untyped_address\n"),
        ..Target::default()
    };
    for target in [&target, &Target::default()] {
        let mut linker = Linker::new(&object, target);
        let mut programs = Vec::new();
        for index in 0..object.programs.len() {
            let Ok(program) = linker.link(index) else {
                continue;
            };
            let len = program.insns.len() as u32;
            assert!(program.subprograms.iter().all(|s| s.start < len));
            assert!(program.refs.iter().all(|r| r.insn < len));
            assert!(program.refs.is_sorted_by_key(|r| r.insn));
            programs.push(program);
        }
        if target.kernel_btf.get().is_some() {
            let _ = object.write(&programs);
        }
        let _ = linker.maps();
        let _ = linker.check();
    }
    true
}

/// Marsaglia's xorshift, so that every run tries the same.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }
}

#[test]
fn truncated_at_every_length() {
    let kernel = kernel();
    for name in OBJECTS {
        let bytes = bytes(name);
        for len in 0..bytes.len() {
            // The section headers stand at the end: without the last none are whole.
            assert!(!exercise(&bytes[..len], &kernel), "{name} cut at {len}");
        }
        assert!(exercise(&bytes, &kernel), "{name}");
    }
}

#[test]
fn every_byte_changed() {
    let kernel = kernel();
    for (name, step) in [("functions", 2), ("maps", 5), ("struct_ops", 5)] {
        let mut bytes = bytes(name);
        for at in (0..bytes.len()).step_by(step) {
            let old = bytes[at];
            // Neighbours change in different ways.
            bytes[at] = [old ^ 1, old ^ 0x80, 0xff][at / 8 % 3];
            exercise(&bytes, &kernel);
            bytes[at] = old;
        }
    }
}

#[test]
fn many_bytes_changed() {
    let kernel = kernel();
    let rounds: u64 = match std::env::var("BPFKIT_HOSTILE_ROUNDS").map(|r| r.parse()) {
        Ok(Ok(rounds)) => rounds,
        _ => 1000,
    };
    let objects: Vec<Vec<u8>> = OBJECTS.iter().map(|name| bytes(name)).collect();
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut opened = 0;
    for _ in 0..rounds {
        let mut object = objects[random.below(objects.len())].clone();
        for _ in 0..=random.below(4) {
            let at = random.below(object.len());
            match random.below(5) {
                0 => object[at] ^= 1 << random.below(8),
                1 => object[at] = random.next() as u8,
                2 => {
                    // A number that fields of all kinds are wary of.
                    let values = [
                        0u64,
                        1,
                        0x7fff_ffff,
                        0xffff_ffff,
                        1 << 63,
                        u64::MAX,
                        0x1_0000,
                    ];
                    let value = values[random.below(values.len())].to_le_bytes();
                    let len = [1, 2, 4, 8][random.below(4)];
                    let at = at & !(len - 1);
                    for (to, from) in object[at..].iter_mut().zip(&value[..len]) {
                        *to = *from;
                    }
                }
                3 => {
                    // A piece from elsewhere.
                    let from = random.below(object.len());
                    let len = random.below(64).min(object.len() - from.max(at));
                    object.copy_within(from..from + len, at);
                }
                _ => {
                    // A small change of a small number.
                    object[at & !3] = object[at & !3].wrapping_add(random.below(16) as u8);
                }
            }
        }
        opened += u64::from(exercise(&object, &kernel));
    }
    // Otherwise only the first checks would be tried.
    assert!(opened > rounds / 10, "{opened} of {rounds} opened");
}
