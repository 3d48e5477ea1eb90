//! Prints what reading a BTF file costs: `parse_time [FILE]`, the kernel's by default.

use std::time::{Duration, Instant};

use bpfkit_btf::{Btf, Kind, dump};

/// Runs each measurement takes; the best counts.
const RUNS: u32 = 20;

fn best<T>(mut f: impl FnMut() -> T) -> Duration {
    let mut best = Duration::MAX;
    for _ in 0..RUNS {
        let start = Instant::now();
        let result = f();
        best = best.min(start.elapsed());
        drop(result);
    }
    best
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args()
        .nth(1)
        .unwrap_or_else(|| "/sys/kernel/btf/vmlinux".into());
    let bytes = std::fs::read(&path)?;
    let btf = Btf::parse(&bytes)?;
    println!("{path}: {} bytes, {} types", bytes.len(), btf.type_count());
    let print =
        |what: &str, took: Duration| println!("{what:<34} {:>9.3} ms", took.as_secs_f64() * 1e3);

    let parse = best(|| Btf::parse(&bytes));
    print("parse", parse);
    let with_lookup = best(|| {
        let btf = Btf::parse(&bytes).expect("parsed before");
        btf.by_name("task_struct", Kind::Struct).map(|t| t.id())
    });
    print("parse and first look-up by name", with_lookup);
    print(
        "look-up by name",
        best(|| btf.by_name("task_struct", Kind::Struct).map(|t| t.id())),
    );
    print(
        "first look-up of tags",
        best(|| Btf::parse(&bytes).map(|b| b.decl_tags(1).count())),
    );
    print("print as C", best(|| dump::c_file(&btf).map(|c| c.len())));
    Ok(())
}
