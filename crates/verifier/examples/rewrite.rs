//! Rewriting in one pass beside patching one instruction after the other, as Linux does, on
//! programs of growing length: `rewrite [INSTRUCTIONS…]`.
//!
//! The programs are of the kind that unrolled profilers are: loads that may fault, divisions,
//! lookups, branches over short distances, dead branches. Both ways begin with the same accepted
//! program; the one-pass side is the whole rewriting by `verify`, less a run without it. Times are
//! times on a CPU, the least of nine.

use std::time::Duration;

#[path = "clock/mod.rs"]
mod clock;
#[path = "../tests/common/mod.rs"]
mod common;

use clock::cpu_time;

use bpfkit_isa::Insn;
use bpfkit_object::Program;
use bpfkit_spec::ProgType;
use bpfkit_verifier::{Environment, Rewritten, verify};

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

fn program(slots: usize) -> Program {
    let mut text = "r7 = 1000\nr8 = 77\n".to_owned();
    for _ in 0..slots / 16 {
        text += ROUND;
    }
    text += "r0 = 0\nexit\n";
    common::program(ProgType::RawTracepoint, common::assemble(&text))
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
            let jumps = insn.class() == bpfkit_isa::code::JMP && insn.code & 0xf0 < 0x80
                || insn.class() == bpfkit_isa::code::JMP32;
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

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut sizes: Vec<usize> = Vec::new();
    for argument in std::env::args().skip(1) {
        sizes.push(argument.parse()?);
    }
    if sizes.is_empty() {
        sizes = vec![6_250, 12_500, 25_000, 50_000];
    }
    println!("| instructions | rewritten | one pass | one patch at a time | ratio |");
    println!("| --- | --- | --- | --- | --- |");
    for slots in sizes {
        let program = program(slots);
        let maps = common::maps();
        let mut best = [Duration::MAX; 3];
        let mut out = None;
        for _ in 0..9 {
            for rewrite in [false, true] {
                let environment = Environment {
                    rewrite,
                    ..Environment::new(None)
                };
                let start = cpu_time();
                let verdict = verify(&program, &maps, &environment);
                best[usize::from(rewrite)] = best[usize::from(rewrite)].min(cpu_time() - start);
                let verified = verdict.result.map_err(|r| format!("{r} at {}", r.insn))?;
                if let Some(rewritten) = verified.rewritten() {
                    out = Some(rewritten?.clone());
                }
            }
            if let Some(rewritten) = &out {
                let start = cpu_time();
                let insns = one_at_a_time(&program.insns, rewritten);
                best[2] = best[2].min(cpu_time() - start);
                assert_eq!(insns.len(), rewritten.insns.len());
            }
        }
        let Some(rewritten) = out else { continue };
        let one_pass = best[1].saturating_sub(best[0]);
        println!(
            "| {} | {} | {:.2} ms | {:.2} ms | {:.0} |",
            program.insns.len(),
            rewritten.insns.len(),
            one_pass.as_secs_f64() * 1e3,
            best[2].as_secs_f64() * 1e3,
            best[2].as_secs_f64() / one_pass.as_secs_f64().max(1e-9),
        );
    }
    Ok(())
}
