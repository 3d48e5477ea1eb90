//! Nanoseconds per instruction of the interpreter on the compute kernels of
//! `testdata/compute`, beside rbpf's interpreter, in one run:
//! `cargo bench -p bpfkit-runtime --bench interp`.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bpfkit_isa::{AluOp, Op, Operand, Reg, Width};
use bpfkit_object::{Object, Program, Target};
use bpfkit_runtime::{
    Code, Engine, Interpreter, LoadOptions, MapSet, RawMemory, Trusted, Vm, raw_program,
};

struct Kernel {
    name: &'static str,
    memory: Vec<u8>,
}

/// Bytes that look like nothing in particular (a linear congruential generator).
fn noise(len: usize) -> Vec<u8> {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    std::iter::repeat_with(next).take(len).collect()
}

/// A hundred frames behind their lengths: TCP and UDP over IPv4 and IPv6, with and without
/// tags, some of them cut short.
fn frames() -> Vec<u8> {
    let filler = noise(100 * 96);
    let mut out = Vec::new();
    for (i, filler) in filler.chunks(96).enumerate() {
        let mut frame = filler[..12].to_vec();
        for _ in 0..i % 3 {
            frame.extend([0x81, 0x00, 0x00, i as u8]);
        }
        let l4 = if i % 2 == 0 { 6 } else { 17 };
        if i % 4 < 3 {
            frame.extend([0x08, 0x00, 0x45, 0, 0, 60, 0, 0, 0, 0, 64, l4, 0, 0]);
            frame.extend(&filler[12..20]);
        } else {
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 40, l4, 64]);
            frame.extend(&filler[12..44]);
        }
        frame.extend(&filler[44..64]);
        if i % 10 == 9 {
            frame.truncate(30);
        }
        out.extend((frame.len() as u16).to_ne_bytes());
        out.extend(frame);
    }
    out
}

fn kernels() -> Vec<Kernel> {
    vec![
        Kernel {
            name: "sieve",
            memory: vec![0; 4096],
        },
        Kernel {
            name: "crc32",
            memory: noise(1500),
        },
        Kernel {
            name: "parse",
            memory: frames(),
        },
        Kernel {
            name: "hash64",
            memory: noise(4099),
        },
        Kernel {
            name: "sort",
            memory: noise(256),
        },
        Kernel {
            name: "copy",
            memory: noise(4096),
        },
    ]
}

/// Nanoseconds of a run of `r0 = 0; exit`: what a run costs beside its instructions.
fn empty_run() -> Result<[f64; 2], Box<dyn std::error::Error>> {
    let mov = Op::Alu {
        op: AluOp::Mov,
        width: Width::W64,
        dst: Reg::R0,
        src: Operand::Imm(0),
    };
    let program = Arc::new(raw_program(
        "empty",
        vec![mov.encode().0, Op::Exit.encode().0],
    ));
    // SAFETY: it touches nothing and ends.
    let trusted = Code::Trusted(unsafe { Trusted::assume(Arc::clone(&program)) });
    let load = |code| Interpreter::default().load(code, &MapSet::empty(), &LoadOptions::default());
    let (checked, trusted) = (load(program.into())?, load(trusted)?);
    let (mut vm, mut context) = (Vm::default(), RawMemory::new(noise(64)));
    let (mut vm2, mut context2) = (Vm::default(), context.clone());
    Ok(time([
        &mut || checked.run(&mut vm, &mut context).ret,
        &mut || trusted.run(&mut vm2, &mut context2).ret,
    ]))
}

fn program(name: &str) -> Result<Program, Box<dyn std::error::Error>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../testdata/compute")
        .join(format!("{name}.bpf.o"));
    let object = Object::open(name, &fs::read(path)?)?;
    Ok(object.link(name, &Target::default())?)
}

/// Least time of a run of each contestant, in nanoseconds: they take turns in rounds of a
/// few milliseconds, so that a disturbance meets all of them.
fn time<const N: usize>(mut contestants: [&mut dyn FnMut() -> u64; N]) -> [f64; N] {
    const ROUNDS: u32 = 40;
    const ROUND: Duration = Duration::from_millis(4);
    let mut best = [f64::INFINITY; N];
    for _ in 0..ROUNDS {
        for (run, best) in contestants.iter_mut().zip(&mut best) {
            let start = Instant::now();
            let mut runs = 0;
            while start.elapsed() < ROUND {
                for _ in 0..8 {
                    std::hint::black_box(run());
                }
                runs += 8;
            }
            *best = best.min(start.elapsed().as_nanos() as f64 / f64::from(runs));
        }
    }
    best
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!(
        "{:8} {:>8} {:>12} {:>12} {:>12} {:>10} {:>10}",
        "kernel", "insns", "rbpf ns/insn", "checked", "trusted", "x checked", "x trusted"
    );
    let (mut product_checked, mut product_trusted, mut sums, kernels) =
        (1.0, 1.0, [0.0; 3], kernels());
    let count = kernels.len() as f64;
    for Kernel { name, memory } in kernels {
        let program = Arc::new(program(name)?);
        let maps = MapSet::empty();
        let engine = Interpreter::default();
        let options = LoadOptions::default();
        let checked = engine.load(Arc::clone(&program).into(), &maps, &options)?;
        // SAFETY: the kernels touch their stack frame and the block only, and end.
        let trusted = unsafe { Trusted::assume(Arc::clone(&program)) };
        let trusted = engine.load(Code::Trusted(trusted), &maps, &options)?;

        // rbpf passes no length: an instruction in front does.
        let length = Op::Alu {
            op: AluOp::Mov,
            width: Width::W64,
            dst: Reg::R2,
            src: Operand::Imm(memory.len() as i32),
        };
        let insns = std::iter::once(length.encode().0).chain(program.insns.iter().copied());
        let bytes: Vec<u8> = insns.flat_map(|i| i.to_le_bytes()).collect();
        let rbpf = rbpf::EbpfVmRaw::new(Some(&bytes))?;
        let (mut vm, mut block) = (Vm::default(), memory.clone());
        let expected = rbpf.execute_program(&mut block)?;
        let mut context = RawMemory::new(memory);
        let outcome = checked.run(&mut vm, &mut context);
        assert_eq!((outcome.ret, outcome.fault), (expected, None), "{name}");
        let steps = outcome.steps;
        let outcome = trusted.run(&mut vm, &mut context);
        assert_eq!((outcome.ret, outcome.steps), (expected, steps), "{name}");

        let (mut vm2, mut context2) = (Vm::default(), context.clone());
        let [rbpf_ns, checked_ns, trusted_ns] = time([
            &mut || rbpf.execute_program(&mut block).unwrap_or(0),
            &mut || checked.run(&mut vm, &mut context).ret,
            &mut || trusted.run(&mut vm2, &mut context2).ret,
        ]);

        let per = |ns: f64| ns / steps as f64;
        println!(
            "{name:8} {steps:8} {:12.2} {:12.2} {:12.2} {:10.2} {:10.2}",
            per(rbpf_ns),
            per(checked_ns),
            per(trusted_ns),
            rbpf_ns / checked_ns,
            rbpf_ns / trusted_ns
        );
        product_checked *= rbpf_ns / checked_ns;
        product_trusted *= rbpf_ns / trusted_ns;
        for (sum, ns) in sums.iter_mut().zip([rbpf_ns, checked_ns, trusted_ns]) {
            *sum += per(ns).ln();
        }
    }
    let mean = sums.map(|sum: f64| (sum / count).exp());
    println!(
        "{:8} {:8} {:12.2} {:12.2} {:12.2} {:10.2} {:10.2}",
        "geomean",
        "",
        mean[0],
        mean[1],
        mean[2],
        product_checked.powf(1.0 / count),
        product_trusted.powf(1.0 / count)
    );
    let [checked, trusted] = empty_run()?;
    println!("an empty run: {checked:.0} ns checked, {trusted:.0} ns trusted");
    Ok(())
}
