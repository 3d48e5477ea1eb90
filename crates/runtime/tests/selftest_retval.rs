//! The kernel's own selftests that carry an expected return value (`__retval`), in the
//! interpreter: `progs/verifier_*.c`, run as `test_loader.c` runs them.
//!
//! The objects are looked for in `target/kernel-selftests` (or `BPFKIT_SELFTESTS`); without
//! them the test is skipped. What is known not to give the kernel's value is listed with
//! the reason in `selftest_retval.txt`; an unlisted difference, or a listed one that is
//! gone, fails the test.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bpfkit_btf::Btf;
use bpfkit_object::{Linker, Object, Target};
use bpfkit_runtime::context::Input;
use bpfkit_runtime::{
    Code, Engine, Executable, FixedHost, Interpreter, LoadErrorKind, LoadOptions, MapOptions,
    MapSet, Vm,
};

/// What the tags of a program say.
#[derive(Default)]
struct Spec {
    retval: Option<i32>,
    any_value: bool,
    failure: bool,
    other_arch: bool,
    /// Object whose BTF stands for the kernel's.
    btf_path: Option<String>,
}

/// Bytes of the test packet; what `__retval(TEST_DATA_LEN)` stands for.
const TEST_DATA_LEN: i32 = 64;

fn spec(btf: &Btf, func: u32) -> Spec {
    let mut spec = Spec::default();
    let mut archs = Vec::new();
    for tag in btf.decl_tags(func) {
        let Some(text) = tag.name().strip_prefix("comment:test_") else {
            continue;
        };
        if let Some(value) = text.strip_prefix("retval=") {
            spec.any_value = value == "POINTER_VALUE" || value == "0xcafe4all";
            spec.retval = Some(match value {
                "INT_MIN" => i32::MIN,
                "TEST_DATA_LEN" => TEST_DATA_LEN,
                _ if spec.any_value => 0,
                _ => parse(value),
            });
        } else if text == "expect_failure" {
            spec.failure = true;
        } else if let Some(path) = text.strip_prefix("btf_path=") {
            spec.btf_path = Some(path.to_owned());
        } else if let Some(arch) = text.strip_prefix("arch=") {
            archs.push(arch.to_owned());
        }
    }
    let host = if cfg!(target_arch = "x86_64") {
        "X86_64"
    } else {
        "ARM64"
    };
    spec.other_arch = !archs.is_empty() && !archs.iter().any(|a| a == host);
    spec
}

/// A number as `strtol(…, 0)` reads it, with the parentheses and minus signs of macros.
fn parse(text: &str) -> i32 {
    let text = text.trim_matches(|c| "() ".contains(c));
    let (negative, digits) = match text.strip_prefix('-') {
        Some(rest) => (true, rest.trim_matches(|c| "() ".contains(c))),
        None => (false, text),
    };
    let digits = digits.trim_end_matches(['u', 'U', 'l', 'L']);
    let value = match digits.strip_prefix("0x") {
        Some(hex) => i64::from_str_radix(hex, 16),
        None => digits.parse(),
    };
    let value = value.unwrap_or_else(|_| panic!("no number: {text}"));
    (if negative { -value } else { value }) as i32
}

enum Verdict {
    Same,
    /// Calls something that cannot exist here.
    Absent(String),
    Differs(String),
}

fn run(object: &Object, target: &Target<'_>, program: usize, spec: &Spec) -> Verdict {
    let mut linker = Linker::new(object, target);
    let maps = match MapSet::with_types(
        &linker.maps(),
        object.btf.as_deref(),
        &MapOptions::default(),
    ) {
        Ok(maps) => maps,
        Err(e) => return Verdict::Differs(format!("maps: {e}")),
    };
    let mut load = |index: usize| -> Result<Arc<dyn Executable>, Verdict> {
        let linked = linker
            .link(index)
            .map_err(|e| Verdict::Differs(format!("link: {e}")))?;
        Interpreter::default()
            .load(Code::from(Arc::new(linked)), &maps, &LoadOptions::default())
            .map_err(|e| match e.kind {
                LoadErrorKind::HelperUnavailable(_)
                | LoadErrorKind::Kfunc(_)
                | LoadErrorKind::Ksym(_) => Verdict::Absent(e.to_string()),
                _ => Verdict::Differs(format!("load: {e}")),
            })
    };
    let exec = match load(program) {
        Ok(exec) => exec,
        Err(verdict) => return verdict,
    };
    let filled = maps.set_programs(|name| load(object.program_index(name)?).ok()?.local());
    if let Err(e) = filled {
        return Verdict::Differs(format!("program array: {e}"));
    }
    initialize(&maps);
    let prog_type = object.programs[program].prog_type;
    let mut input = match Input::default_for(prog_type) {
        Ok(input) => input,
        Err(e) => return Verdict::Differs(format!("input: {e}")),
    };
    let host = FixedHost::default();
    host.time.store(1_000_000_000, Ordering::Relaxed);
    let outcome = exec.run(&mut Vm::new(0, Arc::new(host)), &mut input);
    match outcome.fault {
        Some(fault) => Verdict::Differs(format!("fault: {fault}")),
        None if spec.any_value || spec.retval == Some(outcome.ret as i32) => Verdict::Same,
        None => Verdict::Differs(format!(
            "returns {}, not {}",
            outcome.ret as i32,
            spec.retval.unwrap_or(0)
        )),
    }
}

/// What `prog_tests/verifier.c` puts into maps before it runs programs.
fn initialize(maps: &MapSet) {
    for name in ["map_array_ro", "map_array_48b"] {
        let Some(map) = maps.by_name(name) else {
            continue;
        };
        let mut value = vec![0; 48];
        value[..4].copy_from_slice(&28u32.to_ne_bytes());
        value[28..32].copy_from_slice(&0xabcd_ef12u32.to_ne_bytes());
        map.write(&0u32.to_ne_bytes(), &value, 0)
            .expect("the map takes the test value");
    }
}

fn corpus() -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let path = std::env::var_os("BPFKIT_SELFTESTS")
        .map_or(root.join("target/kernel-selftests"), PathBuf::from);
    path.is_dir().then_some(path)
}

/// `object program reason`, one a line; `#` starts a comment.
fn known() -> BTreeMap<(String, String), String> {
    include_str!("selftest_retval.txt")
        .lines()
        .filter(|line| !line.starts_with('#') && !line.trim().is_empty())
        .map(|line| {
            let mut words = line.splitn(3, char::is_whitespace);
            let mut word = || words.next().unwrap_or("").trim().to_owned();
            ((word(), word()), word())
        })
        .collect()
}

#[test]
fn selftests_return_what_the_kernel_returns() {
    let Some(corpus) = corpus() else {
        println!("skipped: no kernel selftest objects");
        return;
    };
    let Ok(kernel) = std::fs::read("/sys/kernel/btf/vmlinux") else {
        println!("skipped: no BTF of a kernel");
        return;
    };
    let kernel = Btf::parse(&kernel).expect("the kernel's BTF parses");
    let target = Target {
        kernel_btf: Some(&kernel),
        ..Target::default()
    };
    let known = known();
    let mut files: Vec<_> = std::fs::read_dir(&corpus)
        .expect("the corpus can be listed")
        .map(|e| e.expect("the corpus can be listed").path())
        .filter(|p| {
            p.file_name()
                .is_some_and(|n| n.to_string_lossy().starts_with("verifier_"))
        })
        .filter(|p| p.to_string_lossy().ends_with(".bpf.o"))
        .collect();
    files.sort();
    let (mut same, mut absent, mut differ) = (0, 0, 0);
    let mut surprises = Vec::new();
    for path in files {
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let bytes = std::fs::read(&path).expect("the object can be read");
        let Ok(object) = Object::open(&name, &bytes) else {
            continue;
        };
        let Some(btf) = object.btf.clone() else {
            continue;
        };
        for (index, decl) in object.programs.iter().enumerate() {
            let Some(func) = btf.by_name(&decl.name, bpfkit_btf::Kind::Func) else {
                continue;
            };
            let spec = spec(&btf, func.id());
            if spec.retval.is_none() || spec.failure || spec.other_arch {
                continue;
            }
            let own = spec.btf_path.as_ref().map(|path| {
                let bytes = std::fs::read(corpus.join(path)).expect("the BTF object can be read");
                Object::open(path, &bytes)
                    .expect("the BTF object opens")
                    .btf
                    .expect("it has BTF")
            });
            let target = Target {
                kernel_btf: own.as_deref().or(Some(&kernel)),
                ..target.clone()
            };
            let listed = known.get(&(name.clone(), decl.name.clone()));
            match run(&object, &target, index, &spec) {
                Verdict::Same => {
                    same += 1;
                    if let Some(reason) = listed {
                        surprises.push(format!(
                            "{name} {} agrees now; the list says: {reason}",
                            decl.name
                        ));
                    }
                }
                Verdict::Absent(why) => {
                    absent += 1;
                    if listed.is_none() {
                        surprises.push(format!("{name} {} absent: {why}", decl.name));
                    }
                }
                Verdict::Differs(how) => {
                    differ += 1;
                    if listed.is_none() {
                        surprises.push(format!("{name} {} {how}", decl.name));
                    }
                }
            }
        }
    }
    let share = f64::from(same) * 100.0 / f64::from((same + differ).max(1));
    println!(
        "{same} give the kernel's value, {differ} do not, {absent} call what cannot exist here ({share:.1} %)"
    );
    assert!(
        surprises.is_empty(),
        "{} unexpected:\n{}",
        surprises.len(),
        surprises.join("\n")
    );
    assert!(share >= 95.0, "only {share:.1} %");
}
