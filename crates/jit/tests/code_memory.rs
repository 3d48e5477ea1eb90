//! Code memory: shared pages, freed space, no page that is writable and executable.

use std::fs;

use bpfkit_jit::CodeMemory;

#[test]
fn small_programs_share_a_page() {
    let memory = CodeMemory::new();
    let codes: Vec<_> = (0..50).map(|i| memory.install(&[i; 40]).unwrap()).collect();
    let (first, last) = (codes[0].start(), codes[49].start());
    assert!(last - first < 4096, "{first:#x} {last:#x}");
    for (i, code) in codes.iter().enumerate() {
        assert_eq!(code.bytes(), [i as u8; 40]);
        assert_eq!(code.start() % 16, 0);
    }
    assert_eq!(memory.usage().1, 50 * 64);
}

#[test]
fn freed_space_is_used_again() {
    let memory = CodeMemory::new();
    let mut codes: Vec<_> = (0..2000)
        .map(|_| Some(memory.install(&[1; 500]).unwrap()))
        .collect();
    let (mapped, _) = memory.usage();
    // Every other one leaves holes of their size; then neighbours join to larger ones.
    for code in codes.iter_mut().step_by(2) {
        *code = None;
    }
    let again: Vec<_> = (0..1000)
        .map(|_| memory.install(&[2; 500]).unwrap())
        .collect();
    assert_eq!(memory.usage().0, mapped);
    drop((codes, again));
    let (left, used) = memory.usage();
    assert_eq!(used, 0);
    assert!(left < mapped, "{left} of {mapped} bytes kept");
    let large = memory.install(&vec![3; 1 << 20]).unwrap();
    assert_eq!(large.bytes()[(1 << 20) - 1], 3);
}

#[test]
fn freed_code_is_gone() {
    let memory = CodeMemory::new();
    let keep = memory.install(&[1; 32]).unwrap();
    let code = memory.install(&[0xc3; 32]).unwrap();
    let start = code.start();
    drop(code);
    let next = memory.install(&[7]).unwrap();
    assert_eq!(next.start(), start);
    // The rest of its space holds no old code.
    assert_eq!(keep.start() + 32, start);
}

#[test]
fn no_page_is_writable_and_executable() {
    let memory = CodeMemory::new();
    let code = memory.install(&[0xc3; 64]).unwrap();
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let mut found = false;
    for line in maps.lines() {
        let mut fields = line.split_whitespace();
        let (range, rights) = (fields.next().unwrap(), fields.next().unwrap());
        assert!(!(rights.contains('w') && rights.contains('x')), "{line}");
        let (from, to) = range.split_once('-').unwrap();
        let at = |text| usize::from_str_radix(text, 16).unwrap();
        if (at(from)..at(to)).contains(&code.start()) {
            found = true;
            assert!(rights.starts_with("r-x"), "{line}");
        }
    }
    assert!(found);
}
