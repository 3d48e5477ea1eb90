//! `xdp-lb`: a layer-4 load balancer, timed in batches inside the program, in 24 scenarios.
//!
//! Each scenario is validated first: action, packet and counters. The batch is calibrated to
//! about ten milliseconds; a batch of twice the size must take twice as long. Engines take
//! turns, a batch each.

mod packet;
mod scenario;

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::cli::bench::machine::{Machine, Prepared, Settings, Source, number, run_to_end};
use crate::cli::bench::plot::{Bar, Plot};
use crate::cli::bench::stats::{Stats, geometric_mean};
use crate::cli::bench::throughput::EMPTY_PACKET;
use crate::cli::bench::{Answer, Arguments, engine_name, tell_skipped};
use crate::cli::failure::{Failure, Result};
use crate::cli::{objects, output, progress};
use packet::{build, expected, real_address, real_is_v6, vip_key};
use scenario::{Misses, SCENARIOS, Scenario, Vip};

/// Options of its own.
pub const OPTIONS: &[&str] = &["scenario", "list-scenarios", "machine-readable"];

const SOURCE: Source = Source {
    name: "xdp_lb",
    bytes: include_bytes!("../../../../../../testdata/bench/xdp_lb.bpf.o"),
};
/// Its objects.
pub const SOURCES: &[Source] = &[SOURCE];

/// Time that a batch is to take.
const BATCH: Duration = Duration::from_millis(10);
/// Most packets of a batch: below what `may_goto` allows.
const BATCH_MAX: u64 = 4 << 20;
/// Packets of a validating batch, with the one behind it.
const VALIDATED: u32 = 8;
/// Part by which a batch of twice the size may miss twice the time.
const TOLERANCE: f64 = 0.05;
const REALS: u32 = 64;

/// An engine with the balancer on it.
struct Balancer<'a> {
    name: &'static str,
    machine: Box<dyn Machine + 'a>,
    /// Sources that no packet has had yet start here.
    fresh: u32,
}

/// One scenario on one engine.
struct Timed {
    engine: &'static str,
    batch: u32,
    samples: Vec<f64>,
    stats: Stats,
}

impl Balancer<'_> {
    /// Sets services, servers and ring up.
    fn prepare(&mut self) -> Result {
        let machine = &mut *self.machine;
        machine.pin();
        for vip in Vip::ALL {
            let flags = u32::from(vip.bypasses()).to_le_bytes();
            let value = [flags, (vip as u32).to_le_bytes()].concat();
            machine.write("vips", &vip_key(vip), &value)?;
        }
        for real in 0..REALS {
            let mut value = real_address(real).to_vec();
            value.extend(u32::from(real_is_v6(real)).to_le_bytes());
            machine.write("reals", &real.to_le_bytes(), &value)?;
        }
        run_to_end(machine, "fill", EMPTY_PACKET)
    }

    /// Sources for that mask that no packet has had.
    fn fresh_sources(&mut self, mask: u32) -> u32 {
        let start = self.fresh.next_multiple_of(mask + 1);
        self.fresh = start.wrapping_add(mask + 1);
        start
    }

    fn set(&mut self, name: &str, value: u32) -> Result {
        self.machine.set_global(name, &value.to_le_bytes())
    }

    /// Runs a batch; gives its time in ns, the action and the packet of the last one.
    fn batch(
        &mut self,
        scenario: &Scenario,
        batch: u32,
        mask: u32,
        source: u32,
    ) -> Result<(u64, u32, Vec<u8>)> {
        self.set("batch", batch)?;
        self.set("source_mask", mask)?;
        self.set("source_base", source)?;
        let ran = self.machine.run("lb", &build(scenario.kind, source))?;
        let ns = number(&self.machine.global("batch_ns")?);
        Ok((ns, ran.ret, ran.packet))
    }

    /// Nanoseconds a packet of a batch, in the scenario's state.
    fn sample(&mut self, scenario: &Scenario, batch: u32, source: u32) -> Result<f64> {
        let source = match (scenario.warm, scenario.mask) {
            (false, mask @ 1..) => self.fresh_sources(mask),
            _ => source,
        };
        let (ns, action, _) = self.batch(scenario, batch, scenario.mask, source)?;
        if action == 0 {
            let (name, engine) = (scenario.name, self.name);
            return Err(Failure::program(format!("{name} on {engine}: aborted")));
        }
        Ok(ns as f64 / f64::from(batch))
    }

    fn reset_counters(&mut self) -> Result {
        let cpus = self.machine.cpus();
        for key in 0..2u32 {
            self.machine
                .write("counters", &key.to_le_bytes(), &vec![0; 8 * cpus])?;
        }
        self.machine.write("rates", &[0; 4], &vec![0; 16 * cpus])
    }

    /// A counter, of all CPUs together.
    fn counter(&mut self, key: u32) -> Result<u64> {
        let values = self.machine.read("counters", &key.to_le_bytes())?;
        let (values, _) = values.as_chunks::<8>();
        Ok(values.iter().map(|v| u64::from_le_bytes(*v)).sum())
    }

    /// Puts the scenario's flows in the table if it wants them there. Gives their first source.
    fn warm(&mut self, scenario: &Scenario) -> Result<u32> {
        let source = self.fresh_sources(scenario.mask);
        if scenario.warm {
            self.reset_counters()?;
            self.batch(scenario, scenario.mask + 1, scenario.mask, source)?;
        }
        Ok(source)
    }

    /// Checks action, packet and counters of a short batch.
    fn validate(&mut self, scenario: &Scenario) -> Result {
        let source = self.warm(scenario)?;
        self.reset_counters()?;
        let (_, action, packet) = self.batch(scenario, VALIDATED - 1, 0, source)?;
        let (wanted_action, wanted) = expected(scenario.kind, source);
        let failed = |what: String| {
            let (name, engine) = (scenario.name, self.name);
            Err(Failure::program(format!(
                "{name} on {engine}: validation failed: {what}"
            )))
        };
        if action != wanted_action {
            return failed(format!("action {action}, expected {wanted_action}"));
        }
        if packet != wanted {
            let at = packet.iter().zip(&wanted).position(|(a, b)| a != b);
            let at = at.unwrap_or(packet.len().min(wanted.len()));
            return failed(format!("the packet differs from byte {at} on"));
        }
        let all = u64::from(VALIDATED);
        let (packets, misses) = match scenario.misses {
            Misses::None => (all, 0),
            Misses::All => (all, all),
            Misses::First => (all, 1),
            Misses::Nothing => (0, 0),
        };
        let counted = (self.counter(0)?, self.counter(1)?);
        if counted != (packets, misses) {
            return Err(Failure::program(format!(
                "{} on {}: validation failed: {} packets and {} misses counted, expected {packets} and {misses}",
                scenario.name, self.name, counted.0, counted.1
            )));
        }
        Ok(())
    }

    /// Packets of a batch that takes about [`BATCH`].
    fn calibrate(&mut self, scenario: &Scenario, source: u32) -> Result<u32> {
        if let Some(batch) = scenario.batch {
            return Ok(batch);
        }
        let goal = BATCH.as_nanos() as f64;
        let mut batch = 256u64;
        loop {
            let ns = self.sample(scenario, batch as u32, source)? * batch as f64;
            let wanted = batch as f64 * goal / ns.max(1.0);
            if ns * 4.0 >= goal || batch == BATCH_MAX {
                return Ok((wanted as u64).clamp(1, BATCH_MAX) as u32);
            }
            batch = (batch * 4).min(BATCH_MAX);
        }
    }

    /// Says so where time is not proportional to the batch.
    fn check_proportion(&mut self, scenario: &Scenario, batch: u32, source: u32) -> Result {
        let half = batch / 2;
        if scenario.batch.is_some() || half == 0 {
            return Ok(());
        }
        let mut best = [f64::INFINITY; 2];
        for _ in 0..5 {
            for (best, batch) in best.iter_mut().zip([half, 2 * half]) {
                *best = best.min(self.sample(scenario, batch, source)?);
            }
        }
        let ratio = best[1] / best[0];
        if (ratio - 1.0).abs() > TOLERANCE {
            anstream::eprintln!(
                "warning: {} on {}: a batch of twice the size takes {:.2} times as long",
                scenario.name,
                self.name,
                2.0 * ratio
            );
        }
        Ok(())
    }
}

pub fn run(arguments: &Arguments, kernel: &objects::Kernel) -> Result<Answer> {
    if arguments.list_scenarios {
        return Ok(list());
    }
    let scenarios: Vec<&Scenario> = match &arguments.scenario {
        None => SCENARIOS.iter().collect(),
        Some(name) => {
            let found = SCENARIOS.iter().find(|s| s.name == name);
            vec![found.ok_or_else(|| {
                Failure::input(format!(
                    "no scenario {name:?}; --list-scenarios shows what there is"
                ))
            })?]
        }
    };
    if arguments.producers != 1 {
        return Err(Failure::input(
            "xdp-lb requires a single producer: a batch belongs to one CPU",
        ));
    }
    let prepared = Prepared::new(SOURCE, &Settings::default(), kernel)?;
    let (mut balancers, mut skipped) = (Vec::new(), Vec::new());
    for engine in arguments.engines() {
        match prepared.on(*engine, 1, kernel)? {
            Ok(machine) => balancers.push(Balancer {
                name: engine_name(*engine),
                machine,
                fresh: 0x0a00_0000,
            }),
            Err(reason) => skipped.push((engine_name(*engine), reason)),
        }
    }
    tell_skipped(&skipped);
    for balancer in &mut balancers {
        balancer.prepare()?;
    }
    let span = Duration::try_from_secs_f64(arguments.duration.unwrap_or(0.5))
        .map_err(|_| Failure::input("--duration: not a time"))?;
    for scenario in &scenarios {
        for balancer in &mut balancers {
            balancer.validate(scenario)?;
        }
    }
    let bar = progress::items(scenarios.len() as u64);
    let mut results = Vec::new();
    for scenario in scenarios {
        results.push((scenario, measure(&mut balancers, scenario, span)?));
        bar.inc(1);
        if progress::interrupted() {
            break;
        }
    }
    bar.finish_and_clear();
    Ok(answer(arguments, &results))
}

fn measure(
    balancers: &mut [Balancer<'_>],
    scenario: &Scenario,
    span: Duration,
) -> Result<Vec<Timed>> {
    let mut results = Vec::new();
    let mut sources = Vec::new();
    for balancer in balancers.iter_mut() {
        let source = balancer.warm(scenario)?;
        let batch = balancer.calibrate(scenario, source)?;
        balancer.check_proportion(scenario, batch, source)?;
        sources.push(source);
        results.push(Timed {
            engine: balancer.name,
            batch,
            samples: Vec::new(),
            stats: Stats::default(),
        });
    }
    let end = Instant::now() + span * balancers.len() as u32;
    while Instant::now() < end || results.iter().any(|r| r.samples.len() < 5) {
        let each = balancers.iter_mut().zip(&mut results).zip(&sources);
        for ((balancer, result), source) in each {
            let sample = balancer.sample(scenario, result.batch, *source)?;
            result.samples.push(sample);
        }
    }
    for result in &mut results {
        result.stats = Stats::without_outliers(&result.samples);
    }
    Ok(results)
}

fn list() -> Answer {
    let rows = SCENARIOS
        .iter()
        .map(|s| [s.name.to_owned(), s.about.to_owned()]);
    let names: Vec<_> = SCENARIOS.iter().map(|s| s.name).collect();
    Answer {
        text: output::render_table(&["scenario", "packet and state"], rows),
        json: json!(names),
        csv: names.join("\n") + "\n",
        plot: Plot {
            title: "xdp-lb".to_owned(),
            unit: String::new(),
            groups: Vec::new(),
        },
    }
}

fn answer(arguments: &Arguments, results: &[(&Scenario, Vec<Timed>)]) -> Answer {
    let text = match (arguments.machine_readable, results) {
        (true, _) => machine_readable(results),
        (false, [one]) => details(one),
        (false, _) => table(results),
    };
    let mut csv = "scenario,engine,batch,sample,ns\n".to_owned();
    for (scenario, engines) in results {
        for result in engines {
            for (i, ns) in result.samples.iter().enumerate() {
                let (name, engine, batch) = (scenario.name, result.engine, result.batch);
                let _ = writeln!(csv, "{name},{engine},{batch},{i},{ns:.3}");
            }
        }
    }
    let json = results.iter().map(|(scenario, engines)| {
        let engines = engines.iter().map(
            |result| json!({ "engine": result.engine, "batch": result.batch, "ns": result.stats }),
        );
        json!({ "scenario": scenario.name, "engines": engines.collect::<Vec<_>>() })
    });
    let groups = results.iter().map(|(scenario, engines)| {
        let bars = engines.iter().map(|result| Bar {
            series: result.engine.to_owned(),
            value: result.stats.p50,
            spread: result.stats.stddev,
        });
        (scenario.name.to_owned(), bars.collect())
    });
    Answer {
        text,
        json: json.collect(),
        csv,
        plot: Plot {
            title: "xdp-lb".to_owned(),
            unit: "p50 ns a packet".to_owned(),
            groups: groups.collect(),
        },
    }
}

/// A row for each engine.
fn details((scenario, engines): &(&Scenario, Vec<Timed>)) -> String {
    let header = [
        "engine", "p50", "stddev", "p99", "min", "max", "samples", "batch",
    ];
    let rows = engines.iter().map(|result| {
        let ns = |value: f64| format!("{value:.2}");
        let stats = &result.stats;
        [
            result.engine.to_owned(),
            ns(stats.p50),
            ns(stats.stddev),
            ns(stats.p99),
            ns(stats.min),
            ns(stats.max),
            stats.samples.to_string(),
            result.batch.to_string(),
        ]
    });
    let table = output::render_table(&header, rows);
    format!("{}, ns a packet\n{table}", scenario.name)
}

/// A line for each scenario and engine.
fn machine_readable(results: &[(&Scenario, Vec<Timed>)]) -> String {
    let mut out = String::new();
    for (scenario, engines) in results {
        for result in engines {
            let s = &result.stats;
            let _ = writeln!(
                out,
                "RESULT scenario={} engine={} p50={:.2} stddev={:.2} p99={:.2} min={:.2} max={:.2} samples={}",
                scenario.name, result.engine, s.p50, s.stddev, s.p99, s.min, s.max, s.samples
            );
        }
    }
    out
}

/// A row for each scenario: the engines' medians, and what of the kernel's time the compiler
/// takes.
fn table(results: &[(&Scenario, Vec<Timed>)]) -> String {
    let find = |engines: &[Timed], name: &str| {
        let result = engines.iter().find(|r| r.engine == name);
        result.map(|r| r.stats)
    };
    let cell = |stats: Option<Stats>| match stats {
        Some(s) => format!("{:.2} / {:.2} / {:.2}", s.p50, s.stddev, s.p99),
        None => "-".to_owned(),
    };
    let mut ratios = Vec::new();
    let rows = results.iter().map(|(scenario, engines)| {
        let [interp, jit, kernel] = ["interp", "jit", "kernel"].map(|name| find(engines, name));
        let ratio = jit.zip(kernel).map(|(jit, kernel)| jit.p50 / kernel.p50);
        ratios.extend(ratio);
        [
            scenario.name.to_owned(),
            cell(interp),
            cell(jit),
            cell(kernel),
            ratio.map_or("-".to_owned(), |ratio| format!("{ratio:.2}")),
        ]
    });
    let header = [
        "scenario",
        "interp p50 / stddev / p99",
        "jit",
        "kernel",
        "jit / kernel",
    ];
    let mut out = output::render_table(&header, rows);
    if !ratios.is_empty() {
        let under = ratios.iter().filter(|ratio| **ratio < 1.0).count();
        let _ = writeln!(
            out,
            "ns a packet; the compiler is under the kernel in {under} of {}, geometric mean {:.2}",
            ratios.len(),
            geometric_mean(&ratios)
        );
    }
    out
}
