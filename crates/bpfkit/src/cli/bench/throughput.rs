//! Measuring how many operations a second a program does, engine beside engine.
//!
//! Engines take turns, an iteration each, so that a disturbance of the machine meets all
//! of them. Time is what the programs say that their operations took.

use std::time::{Duration, Instant};

use serde::Serialize;

use crate::cli::bench::machine::{
    FAILED, Machine, Prepared, Runs, Settings, Source, failed, run_to_end,
};
use crate::cli::bench::stats::Stats;
use crate::cli::failure::Result;
use crate::cli::run::EngineName;
use crate::cli::{bench, objects, progress};

/// The least that BPF_PROG_TEST_RUN takes as a packet of programs that look at none.
pub const EMPTY_PACKET: &[u8] = &[0; 64];
/// Operations of one run of a program (`NR_LOOPS` of testdata/bench/bench.h).
pub const NR_LOOPS: u64 = 10_000;

/// What is measured.
pub struct Workload {
    /// The object.
    pub source: Source,
    /// Its sizes and constants.
    pub settings: Settings,
    /// Program that fills the maps, run until it returns 0.
    pub fill: Option<&'static str>,
    /// Program whose operations count.
    pub program: &'static str,
    /// Program that does the same without the operation, measured beside it.
    pub baseline: Option<&'static str>,
    /// Operations of a run.
    pub operations: u64,
    /// Packet of the programs' runs; empty for types that take none.
    pub packet: &'static [u8],
    /// Ring buffer whose consumer takes what is there after every run.
    pub ring: Option<&'static str>,
}

impl Workload {
    /// A program of an object that does `NR_LOOPS` operations and needs nothing else.
    pub fn new(source: Source, program: &'static str) -> Self {
        Workload {
            source,
            settings: Settings::default(),
            fill: None,
            program,
            baseline: None,
            operations: NR_LOOPS,
            packet: EMPTY_PACKET,
            ring: None,
        }
    }
}

/// One iteration of one program.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Iteration {
    /// Operations of all producers.
    pub hits: u64,
    /// Nanoseconds that they took by the programs' clock, of all producers together.
    pub busy_ns: u64,
    /// Nanoseconds that the iteration was longer than asked for.
    pub over_ns: i64,
    /// Median of the runs, ns an operation.
    pub p50_ns: f64,
}

impl Iteration {
    /// Operations a second of a producer.
    pub fn per_producer(&self) -> f64 {
        match self.busy_ns {
            0 => 0.0,
            busy => self.hits as f64 * 1e9 / busy as f64,
        }
    }
}

/// What an engine did.
#[derive(Clone, Debug, Serialize)]
pub struct Measured {
    /// Name of the engine.
    pub engine: &'static str,
    /// The program's iterations.
    pub iterations: Vec<Iteration>,
    /// The baseline's.
    pub baseline: Vec<Iteration>,
}

impl Measured {
    /// Operations a second of all producers together, over the iterations.
    pub fn throughput(&self, producers: u32) -> Stats {
        let rates: Vec<f64> = self
            .iterations
            .iter()
            .map(Iteration::per_producer)
            .collect();
        let rates: Vec<f64> = rates.iter().map(|r| r * f64::from(producers)).collect();
        Stats::of(&rates)
    }

    /// Median over the iterations of the median run, ns an operation.
    pub fn p50_ns(&self) -> f64 {
        p50(&self.iterations)
    }

    /// The same less the baseline's.
    pub fn net_ns(&self) -> Option<f64> {
        (!self.baseline.is_empty()).then(|| (self.p50_ns() - p50(&self.baseline)).max(0.0))
    }
}

fn p50(iterations: &[Iteration]) -> f64 {
    let all: Vec<f64> = iterations.iter().map(|i| i.p50_ns).collect();
    Stats::of(&all).p50
}

/// How long and how wide to measure.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    /// Threads or processes at a time.
    pub producers: u32,
    /// Iterations.
    pub iterations: u32,
    /// Time of an iteration.
    pub iteration: Duration,
    /// Time before the first.
    pub warmup: Duration,
}

/// Measures a workload on engines. Those that the machine lacks come with the reason.
pub fn measure(
    workload: &Workload,
    engines: &[EngineName],
    span: Span,
    kernel: &objects::Kernel,
) -> Result<(Vec<Measured>, bench::Skipped)> {
    let prepared = Prepared::new(workload.source, &workload.settings, kernel)?;
    let mut machines: Vec<(Measured, Box<dyn Machine + '_>)> = Vec::new();
    let mut absent = Vec::new();
    for engine in engines {
        match prepared.on(*engine, span.producers, kernel)? {
            Ok(machine) => {
                let measured = Measured {
                    engine: bench::engine_name(*engine),
                    iterations: Vec::new(),
                    baseline: Vec::new(),
                };
                machines.push((measured, machine));
            }
            Err(reason) => absent.push((bench::engine_name(*engine), reason)),
        }
    }
    for (_, machine) in &mut machines {
        if let Some(fill) = workload.fill {
            run_to_end(&mut **machine, fill, workload.packet)?;
        }
        iterate(
            &mut **machine,
            workload,
            workload.program,
            span,
            span.warmup,
        )?;
    }
    let bar = progress::items(u64::from(span.iterations));
    for _ in 0..span.iterations {
        for (measured, machine) in &mut machines {
            let machine = &mut **machine;
            let time = span.iteration;
            let iteration = iterate(machine, workload, workload.program, span, time)?;
            measured.iterations.push(iteration);
            if let Some(baseline) = workload.baseline {
                let iteration = iterate(machine, workload, baseline, span, time / 4)?;
                measured.baseline.push(iteration);
            }
        }
        bar.inc(1);
        if progress::interrupted() {
            break;
        }
    }
    bar.finish_and_clear();
    let measured = machines.into_iter().map(|(measured, _)| measured);
    Ok((measured.collect(), absent))
}

fn iterate(
    machine: &mut dyn Machine,
    workload: &Workload,
    program: &str,
    span: Span,
    time: Duration,
) -> Result<Iteration> {
    let start = Instant::now();
    let runs = Runs {
        packet: workload.packet,
        producers: span.producers,
        span: time,
        ring: workload.ring,
    };
    let runs = machine.repeat(program, &runs)?;
    let took = start.elapsed();
    let mut iteration = Iteration {
        over_ns: took.as_nanos() as i64 - time.as_nanos() as i64,
        ..Iteration::default()
    };
    let mut each = Vec::new();
    // A run of 0 ns had something to prepare.
    for ns in runs.into_iter().flatten().filter(|ns| *ns != 0) {
        if ns == FAILED {
            return Err(failed(program));
        }
        iteration.hits += workload.operations;
        iteration.busy_ns += u64::from(ns);
        each.push(f64::from(ns) / workload.operations as f64);
    }
    iteration.p50_ns = Stats::of(&each).p50;
    Ok(iteration)
}
