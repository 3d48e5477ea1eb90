//! The kernel's own selftests, where they were built, against the verifier and both engines:
//! all pass but those that `tests/selftests/DENYLIST` names.

use std::path::Path;
use std::process::Command;

/// Release of the kernel whose BTF the list was made with: other kernels have other objects.
const RELEASE: &str = "6.18.";
/// Subtests that are there at least.
const SUBTESTS: usize = 2000;

#[test]
fn selftests_pass() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let corpus = root.join("target/kernel-selftests");
    if !corpus.is_dir() {
        return println!("skipped: no kernel selftest objects");
    }
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    if !release.starts_with(RELEASE) {
        return println!("skipped: the kernel is not {RELEASE}x");
    }
    let output = Command::new(env!("CARGO_BIN_EXE_bpfkit"))
        .arg("selftest")
        .arg(&corpus)
        .arg("--denylist")
        .arg(root.join("tests/selftests"))
        .output()
        .expect("the program runs");
    let text = String::from_utf8_lossy(&output.stdout);
    let summary = text.lines().find(|line| line.starts_with("Summary: "));
    println!("{}", summary.unwrap_or_default());
    let end = text.find("All error logs:").unwrap_or(0);
    assert!(output.status.success(), "{}", &text[end..]);
    let numbers: Vec<usize> = summary
        .unwrap_or_default()
        .split(|c: char| !c.is_ascii_digit())
        .filter_map(|word| word.parse().ok())
        .collect();
    let [passed, total, skipped, _failed] = numbers[..] else {
        panic!("no summary: {text}");
    };
    assert!(total >= SUBTESTS, "only {total} subtests");
    assert!(passed + skipped == total, "{summary:?}");
}
