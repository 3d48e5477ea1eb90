//! What a benchmark prints: iteration and summary lines, the comparison, JSON, CSV.

use std::fmt::Write as _;

use serde::Serialize;

use crate::cli::bench::plot::{Bar, Plot};
use crate::cli::bench::throughput::{Iteration, Measured};
use crate::cli::output;

/// Results of one benchmark on several engines.
#[derive(Serialize)]
pub struct Report {
    /// Name of the benchmark.
    pub benchmark: String,
    /// Its options, as given.
    pub options: Vec<(&'static str, String)>,
    /// Producers at a time.
    pub producers: u32,
    /// Results by engine.
    pub engines: Vec<Measured>,
    /// Engines that this machine lacks, with the reason.
    pub skipped: crate::cli::bench::Skipped,
    /// In which units it is told.
    #[serde(skip)]
    pub unit: Unit,
}

/// Units of rates and latencies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    /// Millions of operations a second, ns an operation.
    Mega,
    /// Thousands of operations a second, ms an operation.
    Kilo,
}

impl Unit {
    fn letter(self) -> char {
        match self {
            Unit::Mega => 'M',
            Unit::Kilo => 'K',
        }
    }

    /// Operations a second in this unit.
    fn rate(self, per_second: f64) -> f64 {
        match self {
            Unit::Mega => per_second / 1e6,
            Unit::Kilo => per_second / 1e3,
        }
    }

    fn latency_name(self) -> &'static str {
        match self {
            Unit::Mega => "ns/op",
            Unit::Kilo => "ms/op",
        }
    }

    /// Nanoseconds in this unit.
    fn latency(self, ns: f64) -> f64 {
        match self {
            Unit::Mega => ns,
            Unit::Kilo => ns / 1e6,
        }
    }
}

impl Report {
    /// For people: the lines of every engine, then the comparison.
    pub fn text(&self) -> String {
        let mut out = String::new();
        for engine in &self.engines {
            let _ = writeln!(out, "{} on {}", self.benchmark, engine.engine);
            for (i, iteration) in engine.iterations.iter().enumerate() {
                out += &self.iteration_line(i, iteration);
            }
            out += &self.summary_line(engine);
            out.push('\n');
        }
        if self.engines.len() > 1 || self.engines.iter().any(|e| !e.baseline.is_empty()) {
            out += &self.comparison();
        }
        out
    }

    fn iteration_line(&self, i: usize, iteration: &Iteration) -> String {
        let one = self.unit.rate(iteration.per_producer());
        let all = one * f64::from(self.producers);
        let letter = self.unit.letter();
        let over = iteration.over_ns as f64 / 1e3;
        format!("Iter {i:3} ({over:7.3}us): hits {all:8.3}{letter}/s ({one:7.3}{letter}/prod)\n")
    }

    fn summary_line(&self, engine: &Measured) -> String {
        let stats = engine.throughput(self.producers);
        let (mean, spread) = (self.unit.rate(stats.mean), self.unit.rate(stats.stddev));
        let one = mean / f64::from(self.producers);
        let ns = match stats.mean {
            0.0 => 0.0,
            mean => 1e9 * f64::from(self.producers) / mean,
        };
        let (latency, name) = (self.unit.latency(ns), self.unit.latency_name());
        let letter = self.unit.letter();
        format!(
            "Summary: throughput {mean:8.3} ± {spread:5.3} {letter} ops/s \
             ({one:7.3}{letter} ops/prod), latency {latency:8.3} {name}\n"
        )
    }

    /// The kernel's results, which the others are compared with; without it, the first.
    fn reference(&self) -> Option<&Measured> {
        let kernel = self.engines.iter().find(|e| e.engine == "kernel");
        kernel.or(self.engines.first())
    }

    /// A row for each engine, with its speed as a multiple of the reference's.
    pub fn comparison(&self) -> String {
        let Some(reference) = self.reference() else {
            return String::new();
        };
        let times = |ours: Option<f64>, theirs: Option<f64>| match (ours, theirs) {
            (Some(ours), Some(theirs)) if ours > 0.0 => format!("{:.2}x", theirs / ours),
            _ => "-".to_owned(),
        };
        let number = |ns: Option<f64>| match ns {
            Some(ns) => format!("{:.2}", self.unit.latency(ns)),
            None => "-".to_owned(),
        };
        let rate = format!("{} ops/s", self.unit.letter());
        let p50 = format!("p50 {}", self.unit.latency_name());
        let against = format!("against {}", reference.engine);
        let header = [
            "engine",
            rate.as_str(),
            p50.as_str(),
            against.as_str(),
            "less baseline",
            against.as_str(),
        ];
        let rows = self.engines.iter().map(|engine| {
            let throughput = self.unit.rate(engine.throughput(self.producers).mean);
            [
                engine.engine.to_owned(),
                format!("{throughput:.3}"),
                number(Some(engine.p50_ns())),
                times(Some(engine.p50_ns()), Some(reference.p50_ns())),
                number(engine.net_ns()),
                times(engine.net_ns(), reference.net_ns()),
            ]
        });
        output::render_table(&header, rows)
    }

    /// A line for each iteration of each engine.
    pub fn csv(&self, with_header: bool) -> String {
        let mut out = String::new();
        if with_header {
            out += "benchmark,options,engine,producers,part,iteration,hits,busy_ns,p50_ns\n";
        }
        let options: Vec<String> = self
            .options
            .iter()
            .map(|(k, v)| format!("{k}={v}"))
            .collect();
        let (name, options, producers) = (&self.benchmark, options.join(" "), self.producers);
        for engine in &self.engines {
            let parts = [
                ("operation", &engine.iterations),
                ("baseline", &engine.baseline),
            ];
            for (part, iterations) in parts {
                for (i, it) in iterations.iter().enumerate() {
                    let _ = writeln!(
                        out,
                        "{name},{options},{},{producers},{part},{i},{},{},{:.3}",
                        engine.engine, it.hits, it.busy_ns, it.p50_ns
                    );
                }
            }
        }
        out
    }

    /// A bar for each engine.
    pub fn plot(&self) -> Plot {
        let bars = self.engines.iter().map(|engine| {
            let stats = engine.throughput(self.producers);
            Bar {
                series: engine.engine.to_owned(),
                value: self.unit.rate(stats.mean),
                spread: self.unit.rate(stats.stddev),
            }
        });
        Plot {
            title: self.benchmark.clone(),
            unit: format!("{} ops/s", self.unit.letter()),
            groups: vec![(self.benchmark.clone(), bars.collect())],
        }
    }
}
