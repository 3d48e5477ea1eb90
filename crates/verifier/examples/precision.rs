//! Verifies programs with and without the early stop of precision marking, taking turns, and
//! prints a table: `precision [--btf FILE] RUNS OBJECT…`; docs/precision.md.

use std::time::Duration;

use bpfkit_btf::Btf;
use bpfkit_object::{Linker, Object, Target};
use bpfkit_verifier::{Environment, verify};
use rustix::time::{ClockId, clock_gettime};

type Error = Box<dyn std::error::Error>;

/// Time that this process was on a CPU: other processes do not lengthen it.
fn cpu_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ProcessCPUTime)).unwrap_or_default()
}

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
        "| object | program | verdict | instructions | states | mark_precise lines | time, without | with | with / without |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- | --- | --- |");
    for path in arguments {
        let bytes = std::fs::read(&path)?;
        let object = Object::open(&path, &bytes)?;
        let target = Target {
            kernel_btf: kernel.as_ref().into(),
            ..Target::default()
        };
        let mut linker = Linker::new(&object, &target);
        let file = path.rsplit('/').next().unwrap_or(&path);
        for index in 0..object.programs.len() {
            let program = linker.link(index)?;
            let maps = linker.maps();
            let run = |early_stop: bool, log_level: u32| {
                let environment = Environment {
                    precision_early_stop: early_stop,
                    log_level,
                    log_size: usize::MAX,
                    ..Environment::new(kernel.as_ref())
                };
                let start = cpu_time();
                let verdict = verify(&program, &maps, &environment);
                (cpu_time() - start, verdict)
            };
            let mut best = [Duration::MAX; 2];
            let mut came = [None, None];
            for _ in 0..runs.max(1) {
                for early_stop in [false, true] {
                    let (time, verdict) = run(early_stop, 0);
                    let at = usize::from(early_stop);
                    best[at] = best[at].min(time);
                    came[at] = Some((verdict.result.is_ok(), verdict.stats));
                }
            }
            assert_eq!(came[0], came[1], "the early stop changes what comes out");
            let Some((accepted, stats)) = &came[0] else {
                continue;
            };
            let log = run(true, 2).1.log;
            let lines = log.lines().filter(|l| l.starts_with("mark_precise"));
            println!(
                "| {file} | {} | {} | {} | {} | {} | {:.1} ms | {:.1} ms | {:.2} |",
                program.decl.name,
                if *accepted { "accept" } else { "reject" },
                stats.processed,
                stats.total_states,
                lines.count(),
                best[0].as_secs_f64() * 1e3,
                best[1].as_secs_f64() * 1e3,
                best[1].as_secs_f64() / best[0].as_secs_f64(),
            );
        }
    }
    Ok(())
}
