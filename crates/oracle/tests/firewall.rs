//! The example firewall in the running kernel: load, test-run, read a map back.

use std::path::Path;

use bpfkit_object::{Object, Target};
use bpfkit_oracle::{Kernel, LoadError, LoadOptions, TestRun};

fn kernel() -> Option<Kernel> {
    match Kernel::start() {
        Ok(kernel) => Some(kernel),
        Err(error) if error.is_absence() => {
            println!("skipped: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn firewall() -> Object {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/firewall.bpf.o");
    let bytes = std::fs::read(path).expect("examples/firewall.bpf.o");
    Object::open("firewall", &bytes).expect("an object")
}

/// An Ethernet frame with an ARP header's worth of zeros.
fn arp() -> [u8; 60] {
    let mut frame = [0; 60];
    frame[12..14].copy_from_slice(&[8, 6]);
    frame
}

#[test]
fn loads_runs_and_counts() {
    let Some(mut kernel) = kernel() else { return };
    let object = firewall();
    let program = object.link("firewall", &Target::default()).expect("links");
    let btf = kernel
        .load_btf(&object.btf.as_ref().expect("BTF").to_bytes())
        .expect("BTF loads");
    let maps: Vec<_> = object
        .maps
        .iter()
        .map(|map| kernel.create_map(map, Some(btf)).expect("a map"))
        .collect();
    let options = LoadOptions {
        log_level: 1,
        ..LoadOptions::default()
    };
    let (handle, log) = kernel
        .load(&program, &maps, Some(btf), &options)
        .expect("loads");
    assert!(log.contains("processed "), "{log}");

    let run = TestRun {
        data: &arp(),
        repeat: 3,
        ..TestRun::default()
    };
    let result = kernel.test_run(handle, &run).expect("runs");
    assert_eq!(result.retval, 2, "XDP_PASS");
    assert_eq!(result.data, arp());

    // `seen` counts by protocol, a value of two words for each CPU; ARP is number 1.
    let seen = object
        .maps
        .iter()
        .position(|map| map.name == "seen")
        .expect("the map");
    let values = kernel
        .lookup(maps[seen], &1u32.to_ne_bytes())
        .expect("a value");
    assert_eq!(values.len(), 16 * kernel.cpus());
    let (words, _) = values.as_chunks::<8>();
    let packets: u64 = words
        .iter()
        .step_by(2)
        .map(|word| u64::from_ne_bytes(*word))
        .sum();
    assert_eq!(packets, 3);
    assert!(!kernel.info(handle).expect("info").xlated.is_empty());
    kernel.unload(handle);
}

#[test]
fn a_refusal_brings_the_log() {
    let Some(mut kernel) = kernel() else { return };
    let object = firewall();
    let mut program = object.link("firewall", &Target::default()).expect("links");
    // Reads R0 before anything has set it.
    program.insns.truncate(0);
    program.insns.push(bpfkit_isa::Insn {
        code: 0x95,
        ..Default::default()
    });
    program.subprograms.truncate(1);
    let options = LoadOptions {
        log_level: 1,
        ..LoadOptions::default()
    };
    match kernel.load(&program, &[], None, &options) {
        Err(LoadError::Refused { errno, log }) => {
            assert_eq!(errno.0, 13);
            assert!(log.contains("R0 !read_ok"), "{log}");
        }
        other => panic!("{other:?}"),
    }
}
