//! Benchmarks where the kernel takes no programs from us: they run on the engines there are,
//! and say so.

use std::process::Command;

/// What every kind of benchmark is asked: its arguments, and what its output names.
const LINES: &[(&str, &[&str])] = &[
    ("bpf-loop", &["bpf-loop on interp", "bpf-loop on jit"]),
    ("lpm-trie-free --nr_entries 100", &["interp", "jit"]),
    ("compute", &["interp", "jit", "checked"]),
    ("tail-call", &["tail-call on interp", "tail-call on jit"]),
    ("xdp-lb --scenario pass-non-ip", &["interp", "jit"]),
    (
        "verify ../../testdata/bench/strncmp.bpf.o",
        &["strncmp.bpf.o:compare", "accept"],
    ),
];
const SHORT: &str = "--duration 0.02 --iteration 0.01 --warmup 0";

/// A user namespace of its own takes a process its permissions outside, whoever starts it.
fn without_permissions() -> Command {
    let mut command = Command::new("unshare");
    command.arg("--user");
    command
}

#[test]
fn what_is_not_allowed_is_left_out() {
    let probe = without_permissions().arg("true").output();
    if !probe.is_ok_and(|probe| probe.status.success()) {
        eprintln!("skipped: no unshare, or no user namespaces");
        return;
    }
    for (line, named) in LINES {
        let output = without_permissions()
            .arg(env!("CARGO_BIN_EXE_bpfkit"))
            .arg("bench")
            .args(line.split(' ').chain(SHORT.split(' ')))
            .output()
            .unwrap();
        let stdout = String::from_utf8_lossy(&output.stdout);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{line}: {stderr}");
        assert!(
            stderr.contains("skipped: kernel: no bpf(2)"),
            "{line}: {stderr}"
        );
        for name in *named {
            assert!(stdout.contains(name), "{line}: {stdout}");
        }
        assert!(!stdout.contains("kernel"), "{line}: {stdout}");
    }
}
