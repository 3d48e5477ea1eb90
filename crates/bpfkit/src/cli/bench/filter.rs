//! Two filters of libpcap's, run in every way: classic and extended BPF, interpreted and
//! compiled, libpcap and the kernel.
//!
//! *Hit* is one packet again and again, *miss* 10,000 packets in turn, each in memory of its
//! own. The ways take turns of 10,000 calls, short enough for a busy machine to leave most of
//! them alone; a number is the median of the turns, its ratio the median of the turns' ratios.
//! Calls are counted as they are made: with everything around the code.

use std::fmt::Write as _;
use std::hint::black_box;
use std::path::Path;
use std::time::Instant;

use bpfkit_classic::{Context, Dialect, Insn, Options, Program, Rules, Target, convert};
use bpfkit_jit::Jit;
use bpfkit_oracle::{Kernel, LoadOptions, TestRun};
use bpfkit_pcap::{CompileOptions, Libpcap};
use bpfkit_runtime::packet::Ancillary;
use bpfkit_runtime::{Engine, Interpreter, PacketProgram, raw_program};
use bpfkit_spec::ProgType;

use crate::cli::bench::plot::{Bar, Plot};
use crate::cli::bench::stats::Stats;
use crate::cli::bench::{Answer, Arguments};
use crate::cli::capture::Capture;
use crate::cli::failure::{Failure, Result};
use crate::cli::{objects, output, progress};

/// Options of its own.
pub const OPTIONS: &[&str] = &["pcap"];

/// The filters of the measurements that came with extended BPF (netdev, March 2014).
pub const FILTERS: [&str; 2] = [
    "port 22",
    "tcp port 22 and (((ip[2:2] - ((ip[0]&0xf)<<2)) - ((tcp[12]&0xf0)>>2)) != 0)",
];

/// Packets of a capture's or the generated set, and calls of a turn.
const PACKETS: usize = 10_000;
/// Bytes of a generated packet: 80, a TCP segment to port 22.
const BYTES: usize = 80;
/// The kernel takes every so manieth turn, with so many runs.
const KERNEL_TURN: usize = 8;
const KERNEL_RUNS: u32 = 20_000;
/// The least turns.
const TURNS: usize = 5;

/// The ways to run a filter, slowest idea first.
const WAYS: [&str; 5] = ["libpcap", "classic interp", "interp", "jit", "kernel"];

/// Measurements, a column each.
const CELLS: [&str; 4] = ["1 hit", "1 miss", "2 hit", "2 miss"];

/// A way with its turns' ns a call, for each column; the kernel has no misses.
type Turns = Vec<[Option<f64>; 4]>;

pub fn run(arguments: &Arguments, _: &objects::Kernel) -> Result<Answer> {
    let libpcap = Libpcap::load().map_err(Failure::machine)?;
    let filters = FILTERS.map(|expression| libpcap.compile(expression, &CompileOptions::default()));
    let [first, second] = filters;
    let filters = [
        first.map_err(Failure::machine)?,
        second.map_err(Failure::machine)?,
    ];
    let packets = match &arguments.pcap {
        Some(path) => captured(path)?,
        None => (0..PACKETS).map(generated).collect(),
    };
    let ready: Vec<Ready<'_>> = filters
        .iter()
        .map(|insns| Ready::new(insns, &libpcap))
        .collect::<Result<_>>()?;
    let (mut kernel, mut skipped) = match Kernel::start() {
        Ok(kernel) => (Some(kernel), None),
        Err(error) if error.is_absence() => (None, Some(error.to_string())),
        Err(error) => return Err(Failure::machine(error)),
    };
    let mut handles = Vec::new();
    if let Some(oracle) = &mut kernel {
        for ready in &ready {
            match oracle.load(&ready.classifier, &[], None, &LoadOptions::default()) {
                Ok((handle, _)) => handles.push(handle),
                Err(error) => skipped = Some(error.to_string()),
            }
        }
    }
    let span = arguments.span()?;
    let packets: Vec<&[u8]> = packets.iter().map(Vec::as_slice).collect();
    let one = vec![packets[0]; PACKETS];
    progress::catch_interrupt();
    let mut results: [Turns; 5] = Default::default();
    let start = Instant::now();
    for round in 0.. {
        let enough = round > TURNS && start.elapsed() > span.iteration * span.iterations;
        if enough || progress::interrupted() {
            break;
        }
        for (way, result) in results.iter_mut().enumerate() {
            let mut cells = [None; 4];
            for (i, ready) in ready.iter().enumerate() {
                if WAYS[way] == "kernel" {
                    if round % KERNEL_TURN == 1
                        && let (Some(oracle), Some(handle)) = (&mut kernel, handles.get(i))
                    {
                        let request = TestRun {
                            data: packets[0],
                            ctx: &[],
                            repeat: KERNEL_RUNS,
                            flags: 0,
                        };
                        let outcome = oracle
                            .test_run(*handle, &request)
                            .map_err(Failure::machine)?;
                        cells[2 * i] = Some(f64::from(outcome.nanoseconds));
                    }
                    continue;
                }
                cells[2 * i] = Some(ready.time(way, &one));
                cells[2 * i + 1] = Some(ready.time(way, &packets));
            }
            // The first turn warms up.
            if round > 0 {
                result.push(cells);
            }
        }
    }
    let making = making(&filters)?;
    Ok(answer(&results, &making, skipped))
}

/// A filter made ready for every way.
struct Ready<'l> {
    program: Program,
    reference: bpfkit_pcap::Reference<'l>,
    interp: std::sync::Arc<dyn bpfkit_runtime::PacketCode>,
    jit: std::sync::Arc<dyn bpfkit_runtime::PacketCode>,
    classifier: bpfkit_object::Program,
}

/// The packet program of a filter.
fn packet_program(program: &Program) -> Result<PacketProgram> {
    let options = Options {
        dialect: Dialect::Libpcap,
        ..Options::new(Target::Memory)
    };
    let insns = convert(program, &options).map_err(Failure::program)?;
    PacketProgram::new(insns).map_err(Failure::program)
}

impl<'l> Ready<'l> {
    fn new(insns: &[Insn], libpcap: &'l Libpcap) -> Result<Ready<'l>> {
        let program = Program::new(insns, Rules::Libpcap).map_err(Failure::program)?;
        let reference = libpcap
            .reference(&program)
            .ok_or_else(|| Failure::program("libpcap refuses its own program"))?;
        let over_packet = packet_program(&program)?;
        let load = |engine: &dyn Engine| engine.load_packet(&over_packet).map_err(Failure::program);
        let skb = convert(&program, &Options::new(Target::SkBuff)).map_err(Failure::program)?;
        let mut classifier = raw_program("filter", skb);
        // A test run gives socket filters no link-layer header.
        classifier.decl.prog_type = ProgType::SchedCls;
        Ok(Ready {
            interp: load(&Interpreter::default())?,
            jit: load(&Jit::default())?,
            reference,
            program,
            classifier,
        })
    }

    /// ns a call over the packets in turn.
    fn time(&self, way: usize, packets: &[&[u8]]) -> f64 {
        let nothing = Ancillary::default();
        let context = Context::default();
        match WAYS[way] {
            "libpcap" => time(packets, |p| self.reference.run(p, p.len() as u32)),
            "interp" => time(packets, |p| self.interp.run(p, p.len() as u32, &nothing)),
            "jit" => time(packets, |p| self.jit.run(p, p.len() as u32, &nothing)),
            _ => time(packets, |data| {
                let packet = bpfkit_classic::Packet {
                    data,
                    wire_len: data.len() as u32,
                    context: &context,
                };
                bpfkit_classic::run(&self.program, &packet, Dialect::Libpcap)
            }),
        }
    }
}

fn time(packets: &[&[u8]], mut run: impl FnMut(&[u8]) -> u32) -> f64 {
    let mut sum = 0u32;
    let start = Instant::now();
    for packet in packets {
        sum = sum.wrapping_add(run(black_box(packet)));
    }
    black_box(sum);
    start.elapsed().as_nanos() as f64 / packets.len().max(1) as f64
}

/// A TCP segment to port 22 over IPv4 and Ethernet, its addresses and payload its own.
pub fn generated(number: usize) -> Vec<u8> {
    let mut packet = vec![0u8; BYTES];
    packet[12..15].copy_from_slice(&[8, 0, 0x45]);
    packet[16..18].copy_from_slice(&((BYTES - 14) as u16).to_be_bytes());
    packet[22..24].copy_from_slice(&[64, 6]);
    packet[26..30].copy_from_slice(&(0x0a00_0000 + number as u32).to_be_bytes());
    packet[30..34].copy_from_slice(&[10, 1, 0, 1]);
    packet[34..38].copy_from_slice(&[0x9c, 0x40, 0, 22]);
    packet[46] = 0x50;
    packet[54..].fill(number as u8);
    packet
}

/// The first packets of a capture.
fn captured(path: &Path) -> Result<Vec<Vec<u8>>> {
    let mut capture = Capture::open(path)?;
    let mut packets = Vec::new();
    let mut data = Vec::new();
    while packets.len() < PACKETS && capture.next(&mut data)?.is_some() {
        packets.push(data.clone());
    }
    match packets.is_empty() {
        true => Err(Failure::input(format!("{}: no packets", path.display()))),
        false => Ok(packets),
    }
}

/// What it takes to make both filters ready, in µs: the median of many times, by steps.
fn making(filters: &[Vec<Insn>; 2]) -> Result<[(&'static str, f64); 4]> {
    let jit = Jit::default();
    let mut samples: [Vec<f64>; 4] = Default::default();
    for _ in 0..200 {
        let mut steps = [0.0; 4];
        for insns in filters {
            let mut at = Instant::now();
            let mut lap = |step: usize| {
                let now = Instant::now();
                steps[step] += (now - at).as_nanos() as f64 / 1e3;
                at = now;
            };
            let program = Program::new(insns, Rules::Libpcap).map_err(Failure::program)?;
            lap(0);
            let options = Options {
                dialect: Dialect::Libpcap,
                ..Options::new(Target::Memory)
            };
            let converted = convert(&program, &options).map_err(Failure::program)?;
            lap(1);
            let program = PacketProgram::new(converted).map_err(Failure::program)?;
            lap(2);
            let code = jit.load_packet(&program).map_err(Failure::program)?;
            lap(3);
            black_box(&code);
        }
        for (samples, step) in samples.iter_mut().zip(steps) {
            samples.push(step);
        }
    }
    let median = |step: usize| Stats::of(&samples[step]).p50;
    Ok([
        ("check", median(0)),
        ("convert", median(1)),
        ("prove", median(2)),
        ("compile", median(3)),
    ])
}

/// Median of a column's turns, and of its ratios to the first way's.
fn cell(results: &[Turns; 5], way: usize, column: usize) -> Option<(f64, f64)> {
    let pairs: Vec<(f64, f64)> = results[way]
        .iter()
        .zip(&results[0])
        .filter_map(|(own, first)| Some((own[column]?, first[column]?)))
        .collect();
    if pairs.is_empty() {
        return None;
    }
    let times: Vec<f64> = pairs.iter().map(|(own, _)| *own).collect();
    let ratios: Vec<f64> = pairs
        .iter()
        .map(|(own, first)| first / own.max(1e-9))
        .collect();
    Some((Stats::of(&times).p50, Stats::of(&ratios).p50))
}

fn answer(
    results: &[Turns; 5],
    making: &[(&'static str, f64); 4],
    skipped: Option<String>,
) -> Answer {
    let header = ["ns a call", CELLS[0], CELLS[1], CELLS[2], CELLS[3]];
    let rows = (0..WAYS.len()).map(|way| {
        let mut row = [const { String::new() }; 5];
        row[0] = WAYS[way].to_owned();
        for column in 0..4 {
            row[column + 1] = match cell(results, way, column) {
                Some((ns, ratio)) => format!("{ns:.1} ({ratio:.2}x)"),
                None => "-".to_owned(),
            };
        }
        row
    });
    let mut text = output::render_table(&header, rows);
    for (i, expression) in FILTERS.iter().enumerate() {
        let _ = writeln!(text, "filter {}: {expression}", i + 1);
    }
    let total: f64 = making.iter().map(|(_, us)| us).sum();
    let _ = write!(text, "both filters made ready in {total:.1} µs:");
    for (step, us) in making {
        let _ = write!(text, " {step} {us:.1}");
    }
    text.push('\n');
    if let Some(why) = &skipped {
        let _ = writeln!(text, "skipped: kernel: {why}");
    }
    let mut csv = "way,column,turn,ns\n".to_owned();
    let mut groups = Vec::new();
    for (column, name) in CELLS.iter().enumerate() {
        let mut bars = Vec::new();
        for (way, turns) in results.iter().enumerate() {
            for (turn, cells) in turns.iter().enumerate() {
                if let Some(ns) = cells[column] {
                    let _ = writeln!(csv, "{},{name},{turn},{ns:.2}", WAYS[way]);
                }
            }
            if let Some((ns, _)) = cell(results, way, column) {
                bars.push(Bar {
                    series: WAYS[way].to_owned(),
                    value: ns,
                    spread: 0.0,
                });
            }
        }
        groups.push(((*name).to_owned(), bars));
    }
    let columns = |way: usize| {
        let cells = CELLS.iter().enumerate().filter_map(|(column, name)| {
            let (ns, ratio) = cell(results, way, column)?;
            let value = serde_json::json!({ "ns": ns, "times_libpcap": ratio });
            Some(((*name).to_owned(), value))
        });
        serde_json::Value::Object(cells.collect())
    };
    let ways: serde_json::Map<_, _> = WAYS
        .iter()
        .enumerate()
        .map(|(way, name)| ((*name).to_owned(), columns(way)))
        .collect();
    let steps: serde_json::Map<_, _> = making
        .iter()
        .map(|(step, us)| ((*step).to_owned(), (*us).into()))
        .collect();
    Answer {
        text,
        json: serde_json::json!({
            "filters": FILTERS,
            "ways": ways,
            "made_ready_us": steps,
            "skipped": skipped,
        }),
        csv,
        plot: Plot {
            title: "filters".to_owned(),
            unit: "ns a call".to_owned(),
            groups,
        },
    }
}
