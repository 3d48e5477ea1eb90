//! What `bpfkit run` found, for people and for machines.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use bpfkit_runtime::Outcome;
use bpfkit_spec::ProgType;
use serde::Serialize;
use serde_json::Value;

use crate::cli::events::Events;
use crate::cli::map_words::{Change, Dump};
use crate::cli::{hex, output, return_codes};

/// Packets and bytes.
#[derive(Clone, Copy, Default)]
struct Count {
    runs: u64,
    bytes: u64,
}

/// Counts while running.
pub struct Tally {
    prog_type: ProgType,
    codes: BTreeMap<u32, Count>,
    bytes: u64,
    runs: u64,
    steps: u64,
    faults: u64,
    first_fault: Option<String>,
    skipped: u64,
    redirected: u64,
    /// Time spent in runs.
    pub time: Duration,
}

impl Tally {
    pub fn new(prog_type: ProgType) -> Self {
        Tally {
            prog_type,
            codes: BTreeMap::new(),
            bytes: 0,
            runs: 0,
            steps: 0,
            faults: 0,
            first_fault: None,
            skipped: 0,
            redirected: 0,
            time: Duration::ZERO,
        }
    }

    /// Counts a run on a packet of that many bytes.
    pub fn add(&mut self, outcome: &Outcome, bytes: u64) {
        self.runs += 1;
        self.bytes += bytes;
        self.steps += outcome.steps;
        if let Some(fault) = &outcome.fault {
            self.faults += 1;
            self.first_fault.get_or_insert_with(|| fault.to_string());
            return;
        }
        self.redirected += u64::from(outcome.redirect.is_some());
        let count = self.codes.entry(outcome.ret as u32).or_default();
        count.runs += 1;
        count.bytes += bytes;
    }

    /// Counts a packet that the program type cannot take.
    pub fn skip(&mut self) {
        self.skipped += 1;
    }

    /// Runs so far.
    pub fn runs(&self) -> u64 {
        self.runs
    }

    /// The first fault in words.
    pub fn first_fault(&self) -> Option<&str> {
        self.first_fault.as_deref()
    }
}

/// Runs that returned the same value.
#[derive(Serialize)]
struct ByCode {
    value: u32,
    name: String,
    runs: u64,
    bytes: u64,
}

/// Lines of `bpf_printk`.
#[derive(Serialize)]
pub struct Trace {
    pub count: u64,
    pub lines: Vec<String>,
}

/// A single run's output, where there was one input only.
#[derive(Serialize)]
pub struct Single {
    /// R0, all 64 bits.
    pub ret: u64,
    /// The packet afterwards, hex digits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<String>,
    /// The context afterwards, hex digits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ctx: Option<String>,
}

/// The whole report.
#[derive(Serialize)]
pub struct Report {
    program: String,
    #[serde(rename = "type")]
    prog_type: &'static str,
    engine: &'static str,
    input: String,
    runs: u64,
    bytes: u64,
    ns_per_run: f64,
    instructions_per_run: f64,
    results: Vec<ByCode>,
    redirected: u64,
    faults: u64,
    first_fault: Option<String>,
    skipped: u64,
    interrupted: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    single: Option<Single>,
    trace: Trace,
    events: Vec<Events>,
    map_changes: Vec<Change>,
    #[serde(skip_serializing_if = "Option::is_none")]
    maps: Option<Vec<Dump>>,
}

/// What a report is made of beside the counts.
pub struct Parts {
    pub program: String,
    pub engine: &'static str,
    pub input: String,
    pub interrupted: bool,
    pub single: Option<Single>,
    pub trace: Trace,
    pub events: Vec<Events>,
    pub map_changes: Vec<Change>,
    pub maps: Option<Vec<Dump>>,
}

impl Report {
    pub fn new(tally: Tally, parts: Parts) -> Self {
        let per_run = |total: f64| {
            if tally.runs == 0 {
                0.0
            } else {
                total / tally.runs as f64
            }
        };
        let by_code = |(&value, count): (&u32, &Count)| ByCode {
            value,
            name: return_codes::name(tally.prog_type, value),
            runs: count.runs,
            bytes: count.bytes,
        };
        Report {
            program: parts.program,
            prog_type: tally.prog_type.name(),
            engine: parts.engine,
            input: parts.input,
            runs: tally.runs,
            bytes: tally.bytes,
            ns_per_run: per_run(tally.time.as_nanos() as f64),
            instructions_per_run: per_run(tally.steps as f64),
            results: tally.codes.iter().map(by_code).collect(),
            redirected: tally.redirected,
            faults: tally.faults,
            first_fault: tally.first_fault,
            skipped: tally.skipped,
            interrupted: parts.interrupted,
            single: parts.single,
            trace: parts.trace,
            events: parts.events,
            map_changes: parts.map_changes,
            maps: parts.maps,
        }
    }

    /// The dumps of all maps, to be printed apart.
    pub fn take_maps(&mut self) -> Option<Vec<Dump>> {
        self.maps.take()
    }

    /// The report for people.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let _ = writeln!(
            text,
            "{} ({}) on {}",
            self.program, self.prog_type, self.input
        );
        let _ = write!(
            text,
            "{} runs, {} bytes, {:.1} ns a run",
            self.runs, self.bytes, self.ns_per_run
        );
        // The kernel and compiled programs without checks count none.
        if self.instructions_per_run > 0.0 {
            let _ = write!(
                text,
                ", {:.1} instructions a run",
                self.instructions_per_run
            );
        }
        let _ = writeln!(text, " ({})", self.engine);
        if self.interrupted {
            text += "interrupted: what follows is what was done until then\n";
        }
        if let Some(single) = &self.single {
            self.single_text(single, &mut text);
        } else {
            text.push('\n');
            text += &self.results_table();
        }
        if self.redirected > 0 {
            let _ = writeln!(text, "redirected: {}", self.redirected);
        }
        if self.skipped > 0 {
            let _ = writeln!(
                text,
                "skipped: {} packets too short or too long to run on",
                self.skipped
            );
        }
        if let Some(fault) = &self.first_fault {
            let _ = writeln!(text, "\n{} runs faulted; the first: {fault}", self.faults);
        }
        self.trace_text(&mut text);
        for events in &self.events {
            events_text(events, &mut text);
        }
        for change in &self.map_changes {
            change_text(change, &mut text);
        }
        if let Some(maps) = &self.maps {
            for map in maps {
                let _ = writeln!(
                    text,
                    "\nmap {} ({}): {} elements",
                    map.name,
                    map.map_type,
                    map.elements.len()
                );
                map.elements
                    .iter()
                    .for_each(|element| element_text(element, &mut text));
            }
        }
        text
    }

    fn single_text(&self, single: &Single, text: &mut String) {
        let Some(result) = self.results.first() else {
            return;
        };
        let _ = writeln!(text, "\nreturned {} ({:#x})", result.name, single.ret);
        for (what, digits) in [("packet", &single.data), ("context", &single.ctx)] {
            let Some(digits) = digits else { continue };
            let _ = writeln!(text, "{what} afterwards:");
            for (row, line) in digits.as_bytes().chunks(32).enumerate() {
                let line = String::from_utf8_lossy(line);
                let _ = writeln!(text, "  {:04x}  {}", row * 16, hex::spaced(&line));
            }
        }
    }

    fn results_table(&self) -> String {
        let share = |runs: u64| 100.0 * runs as f64 / self.runs.max(1) as f64;
        let rows = self.results.iter().map(|result| {
            [
                result.name.clone(),
                result.runs.to_string(),
                format!("{:.1} %", share(result.runs)),
                result.bytes.to_string(),
            ]
        });
        output::render_table(&["result", "packets", "share", "bytes"], rows)
    }

    fn trace_text(&self, text: &mut String) {
        const SHOWN: usize = 10;
        if self.trace.count == 0 {
            return;
        }
        let _ = writeln!(text, "\ntrace ({} lines)", self.trace.count);
        for line in self.trace.lines.iter().take(SHOWN) {
            let _ = writeln!(text, "  {line}");
        }
        if self.trace.count > SHOWN as u64 {
            text.push_str("  …\n");
        }
    }
}

fn events_text(events: &Events, text: &mut String) {
    let Events {
        name,
        map_type,
        records,
        bytes,
        lost,
        ..
    } = events;
    let _ = write!(
        text,
        "\n{name} ({map_type}): {records} records, {bytes} bytes"
    );
    match lost {
        0 => text.push('\n'),
        lost => {
            let _ = writeln!(text, ", {lost} lost for want of room");
        }
    }
    for record in &events.sample {
        let _ = writeln!(text, "  {}", hex::spaced(record));
    }
    if *records > events.sample.len() as u64 {
        text.push_str("  …\n");
    }
}

fn change_text(change: &Change, text: &mut String) {
    let _ = write!(
        text,
        "\nmap {} ({}): {} elements",
        change.name, change.map_type, change.elements
    );
    if let Some(changed) = change.changed {
        let _ = write!(text, ", {changed} new or changed");
    }
    match change.removed {
        Some(removed) if removed > 0 => {
            let _ = writeln!(text, ", {removed} removed");
        }
        _ => text.push('\n'),
    }
    change
        .sample
        .iter()
        .for_each(|element| element_text(element, text));
    if change.changed > Some(change.sample.len() as u64) {
        text.push_str("  …\n");
    }
}

fn element_text(element: &crate::cli::map_words::Element, text: &mut String) {
    let show = |value: &Value| match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let value = match (&element.value, &element.values) {
        (Some(value), _) => show(value),
        // With one worker there is one value; more are shown as a list.
        (None, Some(values)) if values.len() == 1 => show(&values[0]),
        (None, Some(values)) => Value::from(values.clone()).to_string(),
        (None, None) => String::new(),
    };
    let _ = writeln!(text, "  {}: {value}", show(&element.key));
}
