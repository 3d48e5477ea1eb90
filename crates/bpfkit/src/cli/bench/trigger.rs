//! `trigger`: what programs at a function of the host cost its callers.
//!
//! The function does next to nothing. A row is the call of it through its entry with programs
//! attached that do nothing either; the first is the call alone. Rows take turns; a number is the
//! least time of a turn.

use std::fmt::Write as _;
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bpfkit_isa::asm;
use bpfkit_jit::trampoline::{AtomicCounter, Attach, ByteCounter, Hooked, Link};
use bpfkit_jit::{CodeMemory, Jit};
use bpfkit_object::Program;
use bpfkit_runtime::{Code, Engine as _, LoadOptions, MapSet, Vm, raw_program};
use serde_json::json;

use crate::cli::bench::plot::{Bar, Plot};
use crate::cli::bench::{Answer, Arguments};
use crate::cli::failure::{Failure, Result};
use crate::cli::{objects, progress};

/// Calls between two looks at the clock.
const CALLS: u32 = 1000;

/// What is attached in a row.
const ROWS: [(&str, &[Attach]); 7] = [
    ("no program", &[]),
    ("fentry", &[Attach::Entry]),
    ("fexit", &[Attach::Exit]),
    ("fentry + fexit", &[Attach::Entry, Attach::Exit]),
    ("session", &[Attach::Session]),
    ("fmod_ret", &[Attach::ModifyReturn]),
    ("three fentry", &[Attach::Entry; 3]),
];

extern "C" fn function(argument: u64) -> u64 {
    black_box(argument) + 1
}

fn program() -> Result<Program> {
    let text = asm::assemble("r0 = 0\nexit").map_err(Failure::input)?;
    Ok(raw_program("nothing", text.insns))
}

/// What is called, with its name.
type Row<'a> = (String, Box<dyn FnMut() + 'a>);

/// Least ns of a call of each, which take turns.
fn least(rows: &mut [Row<'_>], time: Duration) -> Vec<f64> {
    let mut least = vec![f64::INFINITY; rows.len()];
    let end = Instant::now() + time;
    while Instant::now() < end && !progress::interrupted() {
        for ((_, call), least) in rows.iter_mut().zip(&mut least) {
            let start = Instant::now();
            for _ in 0..CALLS {
                call();
            }
            let ns = start.elapsed().as_nanos() as f64 / f64::from(CALLS);
            *least = least.min(ns);
        }
    }
    least
}

pub fn run(arguments: &Arguments, _: &objects::Kernel) -> Result<Answer> {
    let program = Arc::new(program()?);
    let memory = CodeMemory::new();
    let mut traced = Vec::new();
    let mut links: Vec<Link> = Vec::new();
    for (name, attached) in ROWS {
        let row =
            Hooked::new(&memory, function, 1, Box::new(Vm::default)).map_err(Failure::machine)?;
        for attach in attached {
            let code = Code::Unverified(Arc::clone(&program));
            let program = Jit::default()
                .load(code, &MapSet::empty(), &LoadOptions::default())
                .map_err(Failure::machine)?;
            links.push(row.attach(*attach, program, 0).map_err(Failure::machine)?);
        }
        traced.push((name, row));
    }
    let (bytes, atomic) = (ByteCounter::default(), AtomicCounter::default());
    let mut rows: Vec<Row<'_>> = Vec::new();
    rows.push((
        "the function alone".to_owned(),
        Box::new(|| _ = black_box(black_box(function as extern "C" fn(u64) -> u64)(1))),
    ));
    for (name, row) in &traced {
        rows.push(((*name).to_owned(), Box::new(|| _ = black_box(row.call(1)))));
    }
    rows.push((
        "recursion: bytes".to_owned(),
        Box::new(|| {
            if black_box(&bytes).enter() {
                bytes.leave();
            }
        }),
    ));
    rows.push((
        "recursion: atomic".to_owned(),
        Box::new(|| {
            if black_box(&atomic).enter() {
                atomic.leave();
            }
        }),
    ));
    let span = arguments.span()?;
    let times = least(&mut rows, span.iteration * span.iterations);
    let mut text = String::new();
    let mut csv = "row,ns\n".to_owned();
    let mut json = serde_json::Map::new();
    let mut groups = Vec::new();
    for ((name, _), ns) in rows.iter().zip(&times) {
        let _ = writeln!(text, "{name:20} {ns:8.2} ns");
        let _ = writeln!(csv, "{name},{ns:.3}");
        json.insert(name.clone(), json!(ns));
        let bar = Bar {
            series: "jit".to_owned(),
            value: *ns,
            spread: 0.0,
        };
        groups.push((name.clone(), vec![bar]));
    }
    Ok(Answer {
        text,
        json: json.into(),
        csv,
        plot: Plot {
            title: "trigger".to_owned(),
            unit: "ns a call".to_owned(),
            groups,
        },
    })
}
