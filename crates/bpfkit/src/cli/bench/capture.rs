//! A capture filtered from file to file: this program beside tcpdump, as whole processes.
//!
//! Both write what matches, the files are compared byte by byte. They take turns; what they
//! read is in memory after the first.

use std::fmt::Write as _;
use std::fs;
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use super::filter::{FILTERS, generated};
use crate::cli::bench::plot::{Bar, Plot};
use crate::cli::bench::stats::Stats;
use crate::cli::bench::{Answer, Arguments};
use crate::cli::failure::{Failure, Result};
use crate::cli::{objects, output, progress};

/// Options of its own.
pub const OPTIONS: &[&str] = &["pcap"];

/// Packets of a generated capture, of which one in four goes to port 22.
const PACKETS: usize = 1_000_000;
/// The least turns.
const TURNS: usize = 5;

const NAMES: [&str; 2] = ["tcpdump", "bpfkit"];

pub fn run(arguments: &Arguments, _: &objects::Kernel) -> Result<Answer> {
    let dir = tempfile::tempdir().map_err(Failure::machine)?;
    let input = match &arguments.pcap {
        Some(path) => path.clone(),
        None => {
            let path = dir.path().join("in.pcap");
            generate(&path).map_err(Failure::machine)?;
            path
        }
    };
    let outputs = NAMES.map(|name| dir.path().join(name));
    let span = arguments.span()?;
    let limit = span.iteration * span.iterations;
    progress::catch_interrupt();
    let mut filters = Vec::new();
    for expression in FILTERS {
        let mut turns: Vec<[f64; 2]> = Vec::new();
        let start = Instant::now();
        for round in 0.. {
            let enough = round > TURNS && start.elapsed() > limit / FILTERS.len() as u32;
            if enough || progress::interrupted() {
                break;
            }
            let theirs = timed(&mut tcpdump(&input, &outputs[0], expression))?;
            let ours = timed(&mut own(&input, &outputs[1], expression)?)?;
            // The first turn warms up.
            if round > 0 {
                turns.push([theirs, ours]);
            } else if fs::read(&outputs[0]).ok() != fs::read(&outputs[1]).ok() {
                return Err(Failure::program(format!(
                    "{expression}: tcpdump has written something else"
                )));
            }
            // Some file systems wait for the disk when a file that is there is replaced.
            for output in &outputs {
                fs::remove_file(output).map_err(Failure::machine)?;
            }
        }
        filters.push((expression, turns));
    }
    Ok(answer(&filters))
}

fn tcpdump(input: &Path, out: &Path, expression: &str) -> Command {
    let mut command = Command::new("tcpdump");
    command.arg("-r").arg(input).arg("-w").arg(out);
    command.arg(expression);
    command
}

fn own(input: &Path, out: &Path, expression: &str) -> Result<Command> {
    let mut command = Command::new(std::env::current_exe().map_err(Failure::machine)?);
    command.arg("filter").arg(expression);
    command.arg("-r").arg(input).arg("-w").arg(out);
    Ok(command)
}

/// Seconds from start to end of a process.
fn timed(command: &mut Command) -> Result<f64> {
    let quiet = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let start = Instant::now();
    let done = quiet.output();
    let seconds = start.elapsed().as_secs_f64();
    let name = command.get_program().to_string_lossy().into_owned();
    let done = done.map_err(|error| Failure::machine(format!("{name}: {error}")))?;
    match done.status.success() {
        true => Ok(seconds),
        false => {
            let said = String::from_utf8_lossy(&done.stderr);
            Err(Failure::machine(format!("{name}: {}", said.trim_end())))
        }
    }
}

/// Writes a capture of TCP segments of different lengths, one in four of them to port 22.
fn generate(path: &PathBuf) -> std::io::Result<()> {
    let mut out = BufWriter::new(fs::File::create(path)?);
    // Magic number, version 2.4, no time zone, snapshot length, Ethernet.
    for word in [0xa1b2_c3d4, 0x0004_0002u32, 0, 0, 262_144, 1] {
        out.write_all(&word.to_ne_bytes())?;
    }
    for number in 0..PACKETS {
        let mut packet = generated(number);
        if !number.is_multiple_of(4) {
            packet[36..38].copy_from_slice(&443u16.to_be_bytes());
        }
        packet.resize(packet.len() + number % 64, 0);
        let len = packet.len() as u32;
        for word in [1_700_000_000, (number % 1_000_000) as u32, len, len] {
            out.write_all(&word.to_ne_bytes())?;
        }
        out.write_all(&packet)?;
    }
    // What is written to the disk later would take the time of others.
    out.into_inner()?.sync_all()
}

fn answer(filters: &[(&str, Vec<[f64; 2]>)]) -> Answer {
    let mut text = String::new();
    let mut csv = "filter,turn,tcpdump_s,bpfkit_s\n".to_owned();
    let (mut json, mut groups) = (Vec::new(), Vec::new());
    let mut rows = Vec::new();
    for (i, (expression, turns)) in filters.iter().enumerate() {
        let median = |value: &dyn Fn(&[f64; 2]) -> f64| {
            Stats::of(&turns.iter().map(value).collect::<Vec<_>>()).p50
        };
        let [theirs, ours] = [0, 1].map(|column| median(&|turn| turn[column]));
        let ratio = median(&|turn| turn[0] / turn[1].max(1e-9));
        for (number, [theirs, ours]) in turns.iter().enumerate() {
            let _ = writeln!(csv, "{},{number},{theirs:.6},{ours:.6}", i + 1);
        }
        rows.push([
            (i + 1).to_string(),
            format!("{:.1}", theirs * 1e3),
            format!("{:.1}", ours * 1e3),
            format!("{ratio:.2}x"),
            "yes".to_owned(),
        ]);
        json.push(serde_json::json!({
            "filter": expression, "tcpdump_s": theirs, "bpfkit_s": ours,
            "times_tcpdump": ratio, "identical": true,
        }));
        let bar = |series: &str, value: f64| Bar {
            series: series.to_owned(),
            value: value * 1e3,
            spread: 0.0,
        };
        let bars = vec![bar(NAMES[0], theirs), bar(NAMES[1], ours)];
        groups.push((format!("filter {}", i + 1), bars));
    }
    let header = ["filter", "tcpdump ms", "bpfkit ms", "faster", "same output"];
    text.push_str(&output::render_table(&header, rows.into_iter()));
    for (i, (expression, _)) in filters.iter().enumerate() {
        let _ = writeln!(text, "filter {}: {expression}", i + 1);
    }
    Answer {
        text,
        json: serde_json::Value::Array(json),
        csv,
        plot: Plot {
            title: "filtering a capture".to_owned(),
            unit: "ms".to_owned(),
            groups,
        },
    }
}
