//! Verifies programs with and without the early stop of precision marking, interleaved, and
//! prints what each way takes: `precision [--btf FILE] RUNS OBJECT…`; docs/precision.md.

use std::time::{Duration, Instant};

use bpfkit_btf::Btf;
use bpfkit_object::{Linker, Object, Target};
use bpfkit_verifier::{Environment, Stats, verify};

type Error = Box<dyn std::error::Error>;

fn main() -> Result<(), Error> {
    let mut arguments = std::env::args().skip(1).peekable();
    let mut btf = "/sys/kernel/btf/vmlinux".to_owned();
    if arguments.next_if(|a| a == "--btf").is_some() {
        btf = arguments.next().ok_or("--btf FILE")?;
    }
    let runs: usize = arguments.next().ok_or("RUNS OBJECT…")?.parse()?;
    let kernel = std::fs::read(btf).ok();
    let kernel = kernel.map(|bytes| Btf::parse(&bytes)).transpose()?;
    println!(
        "| program | verdict | instructions | states | mark_precise lines, off | on | time, on / off |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- |");
    for path in arguments {
        let bytes = std::fs::read(&path)?;
        let object = Object::open(&path, &bytes)?;
        let target = Target {
            kernel_btf: kernel.as_ref(),
            ..Target::default()
        };
        let mut linker = Linker::new(&object, &target);
        for index in 0..object.programs.len() {
            let program = linker.link(index)?;
            let maps = linker.maps();
            let run = |early_stop: bool, log_level: u32| {
                let environment = Environment {
                    precision_early_stop: early_stop,
                    log_level,
                    ..Environment::new(kernel.as_ref())
                };
                let start = Instant::now();
                let verdict = verify(&program, &maps, &environment);
                (start.elapsed(), verdict)
            };
            let mut best = [Duration::MAX; 2];
            let mut stats: [Stats; 2] = Default::default();
            let mut accepted = [false; 2];
            for _ in 0..runs {
                for early_stop in [false, true] {
                    let (time, verdict) = run(early_stop, 0);
                    let at = usize::from(early_stop);
                    best[at] = best[at].min(time);
                    stats[at] = verdict.stats;
                    accepted[at] = verdict.result.is_ok();
                }
            }
            let lines = [false, true].map(|early_stop| {
                let log = run(early_stop, 2).1.log;
                log.lines()
                    .filter(|l| l.starts_with("mark_precise"))
                    .count()
            });
            let same = stats[0] == stats[1] && accepted[0] == accepted[1];
            println!(
                "| {} | {}{} | {} | {} | {} | {} | {:.3} |",
                program.decl.name,
                if accepted[0] { "accept" } else { "reject" },
                if same { "" } else { " (differs)" },
                stats[0].processed,
                stats[0].total_states,
                lines[0],
                lines[1],
                best[1].as_secs_f64() / best[0].as_secs_f64(),
            );
        }
    }
    Ok(())
}
