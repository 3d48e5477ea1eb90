//! `bpfkit run --perf-map --jitdump`: the files that perf reads.

use std::fs;
use std::process::{Command, Stdio};

use bpfkit::jit::Arch;

#[test]
fn run_writes_what_perf_reads() {
    if Arch::HOST.is_none() {
        println!("skipped: no compiler for this machine");
        return;
    }
    let directory = std::env::temp_dir().join(format!("bpfkit-perf-{}", std::process::id()));
    fs::create_dir_all(&directory).unwrap();
    let child = Command::new(env!("CARGO_BIN_EXE_bpfkit"))
        .args([
            "run",
            "../../examples/firewall.bpf.o",
            "--perf-map",
            "--jitdump",
        ])
        .arg(&directory)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let pid = child.id();
    assert!(child.wait_with_output().unwrap().status.success());
    let map_path = format!("/tmp/perf-{pid}.map");
    let map = fs::read_to_string(&map_path).unwrap();
    fs::remove_file(map_path).unwrap();
    let line = map.lines().next().unwrap();
    let fields: Vec<&str> = line.split(' ').collect();
    assert_eq!(fields.len(), 3, "{line}");
    assert_eq!(fields[2], "bpf_prog_firewall");
    let size = usize::from_str_radix(fields[1], 16).unwrap();
    let dump = fs::read(directory.join(format!("jit-{pid}.dump"))).unwrap();
    assert_eq!(dump[..4], 0x4a69_5444_u32.to_ne_bytes());
    assert!(dump.len() > size);
    for text in ["bpf_prog_firewall\0", "firewall.bpf.c\0"] {
        let mut places = dump.windows(text.len());
        assert!(places.any(|bytes| bytes == text.as_bytes()), "{text:?}");
    }
    fs::remove_dir_all(directory).unwrap();
}
