//! Times compiling every program of the objects in a folder, and adds their code sizes up:
//! `cargo run --release -p bpfkit-jit --example compile_time -- target/kernel-selftests`.
//! Objects that do not open or programs that do not link or load are counted.

use std::sync::Arc;
use std::time::Instant;
use std::{env, error, fs};

use bpfkit_jit::{Arch, Jit};
use bpfkit_object::{Object, Target};
use bpfkit_runtime::{Code, LoadOptions, MapOptions, MapSet, Trusted};

fn main() -> Result<(), Box<dyn error::Error>> {
    let folder = env::args().nth(1).ok_or("which folder?")?;
    let mut paths: Vec<_> = fs::read_dir(folder)?.collect::<Result<Vec<_>, _>>()?;
    paths.sort_by_key(fs::DirEntry::path);
    let mut rows = Vec::new();
    let (mut unlinked, mut unloaded) = (0, 0);
    for path in paths
        .iter()
        .map(fs::DirEntry::path)
        .filter(|p| p.extension().is_some_and(|e| e == "o"))
    {
        let Ok(object) = Object::open("object", &fs::read(&path)?) else {
            unlinked += 1;
            continue;
        };
        let Ok(maps) = MapSet::new(&object.maps, &MapOptions::default()) else {
            unlinked += 1;
            continue;
        };
        for decl in &object.programs {
            let Ok(program) = object.link(&decl.name, &Target::default()) else {
                unlinked += 1;
                continue;
            };
            let insns = program.insns.len();
            // SAFETY: the code is not run.
            let code = Code::Trusted(unsafe { Trusted::assume(Arc::new(program)) });
            let (jit, options) = (Jit::default(), LoadOptions::default());
            let mut best = f64::INFINITY;
            let mut bytes = [0; 2];
            for _ in 0..20 {
                let start = Instant::now();
                let compiled = jit.compile(Arch::X86_64, &code, &maps, &options);
                best = best.min(start.elapsed().as_nanos() as f64);
                let Ok(compiled) = compiled else { break };
                bytes[0] = compiled.len();
            }
            let aarch64 = jit.compile(Arch::Aarch64, &code, &maps, &options);
            bytes[1] = aarch64.map_or(0, |code| code.len());
            if bytes[0] == 0 {
                unloaded += 1;
                continue;
            }
            rows.push((insns, best, bytes));
        }
    }
    let mut over: Vec<f64> = rows
        .iter()
        .map(|&(insns, ns, _)| ns / (1000.0 + 20.0 * insns as f64))
        .collect();
    over.sort_by(f64::total_cmp);
    let insns: usize = rows.iter().map(|r| r.0).sum();
    let ns: f64 = rows.iter().map(|r| r.1).sum();
    let [x86, arm] = [0, 1].map(|i| rows.iter().map(|r| r.2[i]).sum::<usize>());
    println!(
        "{} programs, {insns} instructions; not linked {unlinked}, not loaded {unloaded}",
        rows.len()
    );
    println!("{:.1} ns an instruction in all", ns / insns as f64);
    println!(
        "median of time / (1 µs + 20 ns an instruction): {:.2}",
        over[over.len() / 2]
    );
    println!("bytes of code: x86-64 {x86}, AArch64 {arm}");
    Ok(())
}
