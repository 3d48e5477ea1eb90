//! Rewriting in one pass beside patching one instruction at a time, as Linux does it.
//!
//! The programs are unrolled loops in the manner of pyperf180: look-ups and divisions, each of
//! which becomes several instructions. One pass is the time of a verification with rewriting less
//! that of one without. Times are times on a CPU, the least of the rounds.

use std::fmt::Write as _;
use std::time::Duration;

use bpfkit_isa::asm::{self, MapRef, Resolver};
use bpfkit_isa::{Insn, code};
use bpfkit_object::{MapDef, Program, raw_program};
use bpfkit_spec::{MapType, ProgType};
use bpfkit_verifier::{Environment, Rewritten, verify};
use rustix::time::{ClockId, clock_gettime};

use crate::cli::bench::plot::{Bar, Plot};
use crate::cli::bench::{Answer, Arguments};
use crate::cli::failure::{Failure, Result};
use crate::cli::{objects, output, progress};

/// Lengths of the programs.
const SIZES: [usize; 4] = [6_250, 12_500, 25_000, 50_000];
/// Fewest rounds.
const ROUNDS: u32 = 5;

/// One round of the unrolled loop, 16 slots.
const ROUND: &str = "
    *(u32 *)(r10 - 4) = 0
    r2 = r10
    r2 += -4
    r1 = map[values] ll
    call bpf_map_lookup_elem
    if r0 == 0 goto +6
    r1 = *(u32 *)(r0 + 0)
    r7 /= r1
    r8 %= r1
    r7 += r8
    r7 &= 255
    call bpf_get_smp_processor_id
    r8 = r7
    r8 &= 15
";

struct Names;

impl Resolver for Names {
    fn helper(&self, name: &str) -> Option<i32> {
        i32::try_from(bpfkit_spec::helper::by_name(name)?.id).ok()
    }

    fn map(&self, _: &str) -> Option<MapRef> {
        Some(MapRef::Index(0))
    }
}

fn program(slots: usize) -> Result<Program> {
    let mut text = "r7 = 1000\nr8 = 77\n".to_owned();
    for _ in 0..slots / 16 {
        text += ROUND;
    }
    text += "r0 = 0\nexit\n";
    let insns = asm::assemble_with(&text, &Names)
        .map_err(Failure::program)?
        .insns;
    let mut program = raw_program("unrolled", insns);
    program.decl.prog_type = ProgType::RawTracepoint;
    Ok(program)
}

/// The same patches, each moving everything behind it and adjusting every jump.
fn one_at_a_time(old: &[Insn], rewritten: &Rewritten) -> Vec<Insn> {
    let mut insns = old.to_vec();
    let mut grown = 0;
    for (at, slot) in (0..old.len() as u32).zip(old) {
        let patch: Vec<Insn> = range(&rewritten.origins, at)
            .map(|new| rewritten.insns[new])
            .collect();
        if patch.as_slice() == std::slice::from_ref(slot) {
            continue;
        }
        let position = (at as i64 + grown) as usize;
        let delta = patch.len() as i64 - 1;
        for (n, insn) in insns.iter_mut().enumerate() {
            let jumps =
                insn.class() == code::JMP && insn.code & 0xf0 < 0x80 || insn.class() == code::JMP32;
            if !jumps {
                continue;
            }
            let target = n as i64 + 1 + i64::from(insn.off);
            if n < position && target > position as i64 {
                insn.off += delta as i16;
            } else if n > position && target <= position as i64 {
                insn.off -= delta as i16;
            }
        }
        insns.splice(position..=position, patch);
        grown += delta;
    }
    insns
}

/// New slots that stand for an old one.
fn range(origins: &[u32], old: u32) -> std::ops::Range<usize> {
    origins.partition_point(|&o| o < old)..origins.partition_point(|&o| o <= old)
}

/// Time that this process was on a CPU.
fn cpu_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ProcessCPUTime)).unwrap_or_default()
}

/// Times of one program, in ms.
struct Row {
    insns: usize,
    rewritten: usize,
    one_pass: f64,
    one_at_a_time: f64,
}

impl Row {
    fn ratio(&self) -> f64 {
        self.one_at_a_time / self.one_pass.max(1e-6)
    }
}

pub fn run(arguments: &Arguments, kernel: &objects::Kernel) -> Result<Answer> {
    let rounds = arguments.span()?.iterations.max(ROUNDS);
    progress::catch_interrupt();
    let mut rows = Vec::new();
    for slots in SIZES {
        if progress::interrupted() {
            break;
        }
        rows.push(measure(slots, rounds, kernel)?);
    }
    Ok(answer(&rows))
}

fn measure(slots: usize, rounds: u32, kernel: &objects::Kernel) -> Result<Row> {
    let program = program(slots)?;
    let maps = [MapDef::new("values", MapType::Hash, 4, 8, 16)];
    let mut least = [Duration::MAX; 3];
    let mut made = None;
    for _ in 0..rounds {
        for rewrite in [false, true] {
            let environment = Environment {
                rewrite,
                ..Environment::new(kernel.btf())
            };
            let start = cpu_time();
            let verdict = verify(&program, &maps, &environment);
            let spent = cpu_time().saturating_sub(start);
            least[usize::from(rewrite)] = least[usize::from(rewrite)].min(spent);
            let verified = verdict.result.map_err(Failure::program)?;
            if let Some(rewritten) = verified.rewritten() {
                made = Some(rewritten.map_err(Failure::program)?.clone());
            }
        }
        if let Some(rewritten) = &made {
            let start = cpu_time();
            let insns = one_at_a_time(&program.insns, rewritten);
            least[2] = least[2].min(cpu_time().saturating_sub(start));
            if insns.len() != rewritten.insns.len() {
                return Err(Failure::program("the two ways differ"));
            }
        }
    }
    let ms = |span: Duration| span.as_secs_f64() * 1e3;
    Ok(Row {
        insns: program.insns.len(),
        rewritten: made.map_or(0, |m| m.insns.len()),
        one_pass: ms(least[1].saturating_sub(least[0])),
        one_at_a_time: ms(least[2]),
    })
}

fn answer(rows: &[Row]) -> Answer {
    let header = [
        "instructions",
        "rewritten",
        "one pass",
        "one patch at a time",
        "ratio",
    ];
    let table = rows.iter().map(|row| {
        [
            row.insns.to_string(),
            row.rewritten.to_string(),
            format!("{:.2} ms", row.one_pass),
            format!("{:.2} ms", row.one_at_a_time),
            format!("{:.0}", row.ratio()),
        ]
    });
    let mut csv = "instructions,rewritten,one_pass_ms,one_at_a_time_ms\n".to_owned();
    for row in rows {
        let _ = writeln!(
            csv,
            "{},{},{:.3},{:.3}",
            row.insns, row.rewritten, row.one_pass, row.one_at_a_time
        );
    }
    let groups = rows.iter().map(|row| {
        let bars = vec![
            Bar::exact("one pass", row.one_pass),
            Bar::exact("one at a time", row.one_at_a_time),
        ];
        (row.insns.to_string(), bars)
    });
    let json = rows.iter().map(|row| {
        serde_json::json!({
            "instructions": row.insns,
            "rewritten": row.rewritten,
            "one_pass_ms": row.one_pass,
            "one_at_a_time_ms": row.one_at_a_time,
            "ratio": row.ratio(),
        })
    });
    Answer {
        text: output::render_table(&header, table),
        json: json.collect(),
        csv,
        plot: Plot {
            title: "rewriting".to_owned(),
            unit: "ms".to_owned(),
            groups: groups.collect(),
        },
    }
}
