//! Times the compute kernels of `testdata/compute`: interpreter, compiled code (checked,
//! trusted, trusted without each rule), rbpf's compiler, and, where clang is there, the
//! same C compiled for this machine at -O2. One run, contestants taking turns:
//! `cargo run --release -p bpfkit-jit --example compute [-- KERNEL…]`. `--show` prints code.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{env, error, fs};

use bpfkit_isa::{AluOp, Op, Operand, Reg, Width};
use bpfkit_jit::{Arch, CodeMemory, Features, Jit, Rule, Rules};
use bpfkit_object::{Object, Program, Target};
use bpfkit_runtime::{
    Code, Engine, Executable, Interpreter, LoadOptions, MapSet, RawMemory, Trusted, Vm,
};
use iced_x86::{Decoder, DecoderOptions, Formatter, NasmFormatter};

type Result<T> = std::result::Result<T, Box<dyn error::Error>>;

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

/// A hundred frames behind their lengths, of all kinds, as the interpreter's benchmark has them.
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

fn kernels() -> Vec<(&'static str, Vec<u8>)> {
    vec![
        ("sieve", vec![0; 4096]),
        ("crc32", noise(1500)),
        ("parse", frames()),
        ("hash64", noise(4099)),
        ("sort", noise(256)),
        ("copy", noise(4096)),
    ]
}

fn testdata() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/compute")
}

fn program(name: &str) -> Result<Program> {
    let bytes = fs::read(testdata().join(format!("{name}.bpf.o")))?;
    Ok(Object::open(name, &bytes)?.link(name, &Target::default())?)
}

/// Least nanoseconds of a run of each contestant: they take turns, so that a disturbance
/// meets all of them.
fn time(contestants: &mut [Box<dyn FnMut() -> u64 + '_>]) -> Vec<f64> {
    const ROUNDS: u32 = 40;
    const ROUND: Duration = Duration::from_millis(3);
    let mut best = vec![f64::INFINITY; contestants.len()];
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

type Native = unsafe extern "C" fn(*mut u8, u64) -> u64;

/// The C source compiled for this machine into a shared object, loaded for good.
fn native(name: &str) -> Result<Native> {
    let out = env::temp_dir().join(format!("bpfkit-compute-{}-{name}.so", std::process::id()));
    let source = testdata().join(format!("{name}.c"));
    let compiled = Command::new("clang-19")
        .args(["-O2", "-shared", "-fPIC", "-fno-builtin", "-o"])
        .args([&out, &source])
        .output()?;
    if !compiled.status.success() {
        return Err("clang-19 refuses the source".into());
    }
    let (path, symbol) = (
        std::ffi::CString::new(out.display().to_string())?,
        std::ffi::CString::new(name)?,
    );
    // SAFETY: names with their NULs; the symbol is the kernel of that name, whose signature
    // `compute.h` says.
    let function = unsafe {
        let handle = libc::dlopen(path.as_ptr(), libc::RTLD_NOW);
        if handle.is_null() {
            return Err("the shared object does not load".into());
        }
        let symbol = libc::dlsym(handle, symbol.as_ptr());
        if symbol.is_null() {
            return Err("no such symbol".into());
        }
        std::mem::transmute::<*mut libc::c_void, Native>(symbol)
    };
    fs::remove_file(out)?;
    Ok(function)
}

fn show(name: &str, code: &[u8]) {
    println!("{name}: {} bytes", code.len());
    let mut formatter = NasmFormatter::new();
    for instruction in &mut Decoder::with_ip(64, code, 0, DecoderOptions::NONE) {
        let mut text = String::new();
        formatter.format(&instruction, &mut text);
        println!("  {:5x}  {text}", instruction.ip());
    }
}

fn main() -> Result<()> {
    let wanted: Vec<String> = env::args()
        .skip(1)
        .filter(|a| !a.starts_with("--"))
        .collect();
    let flag = |name: &str| env::args().any(|a| a == name);
    let mut columns = vec![
        "interp".to_owned(),
        "checked".to_owned(),
        "trusted".to_owned(),
    ];
    columns.push("rbpf jit".to_owned());
    let rules: Vec<Rule> = if flag("--rules") {
        Rule::all().collect()
    } else {
        Vec::new()
    };
    columns.extend(rules.iter().map(|r| format!("-{}", r.name())));
    columns.push("native".to_owned());
    print!("{:8} {:>7} {:>8}", "kernel", "insns", "load ns");
    columns.iter().for_each(|c| print!(" {c:>11}"));
    println!();
    let mut logs = vec![0.0; columns.len()];
    let mut count = 0.0;
    for (name, memory) in kernels() {
        if !wanted.is_empty() && !wanted.iter().any(|w| w == name) {
            continue;
        }
        let program = Arc::new(program(name)?);
        let (maps, options) = (MapSet::empty(), LoadOptions::default());
        // SAFETY: the kernels touch their stack frame and the block only, and end.
        let trusted = || Code::Trusted(unsafe { Trusted::assume(Arc::clone(&program)) });
        let jit = Jit::default();
        if flag("--show") {
            show(
                name,
                &jit.compile(Arch::X86_64, &trusted(), &maps, &options)?,
            );
        }
        let mut execs: Vec<Arc<dyn Executable>> = vec![
            Interpreter::default().load(trusted(), &maps, &options)?,
            jit.load(Code::Unverified(Arc::clone(&program)), &maps, &options)?,
            jit.load(trusted(), &maps, &options)?,
        ];
        for rule in rules.iter().copied() {
            let rules = Rules::default().without(rule);
            let jit = Jit::new(CodeMemory::new(), rules, Features::host());
            execs.push(jit.load(trusted(), &maps, &options)?);
        }

        // rbpf passes no length: an instruction in front does.
        let length = Op::Alu {
            op: AluOp::Mov,
            width: Width::W64,
            dst: Reg::R2,
            src: Operand::Imm(memory.len() as i32),
        };
        let insns = std::iter::once(length.encode().0).chain(program.insns.iter().copied());
        let bytes: Vec<u8> = insns.flat_map(|i| i.to_le_bytes()).collect();
        let mut rbpf = rbpf::EbpfVmRaw::new(Some(&bytes))?;
        rbpf.jit_compile()?;
        let native = native(name);

        let mut block = memory.clone();
        // SAFETY: rbpf's code is of the same program, which keeps to the block.
        let expected = unsafe { rbpf.execute_program_jit(&mut block)? };
        let mut contestants: Vec<Box<dyn FnMut() -> u64>> = Vec::new();
        for exec in execs {
            let (mut vm, mut context) = (Vm::default(), RawMemory::new(memory.clone()));
            let outcome = exec.run(&mut vm, &mut context);
            assert_eq!((outcome.ret, outcome.fault), (expected, None), "{name}");
            contestants.push(Box::new(move || exec.run(&mut vm, &mut context).ret));
        }
        // SAFETY: as above.
        let rbpf: Box<dyn FnMut() -> u64> =
            Box::new(move || unsafe { rbpf.execute_program_jit(&mut block).unwrap_or(0) });
        contestants.insert(3, rbpf);
        let has_native = native.is_ok();
        match native {
            Ok(native) => {
                let mut block = memory.clone();
                // SAFETY: the kernel keeps to the block of that length.
                let mut run = move || unsafe { native(block.as_mut_ptr(), block.len() as u64) };
                assert_eq!(run(), expected, "{name} native");
                contestants.push(Box::new(run));
            }
            Err(error) => println!("skipped: native {name}: {error}"),
        }
        let code = trusted();
        contestants.push(Box::new(move || {
            jit.compile(
                Arch::X86_64,
                &code,
                &MapSet::empty(),
                &LoadOptions::default(),
            )
            .map_or(0, |c| c.len() as u64)
        }));
        let mut times = time(&mut contestants);
        let load = times.pop().unwrap_or(f64::NAN);
        if !has_native {
            times.push(f64::NAN);
        }
        print!("{name:8} {:7} {load:8.0}", program.insns.len());
        times.iter().for_each(|ns| print!(" {ns:11.1}"));
        println!();
        let last = *times.last().unwrap_or(&f64::NAN);
        for (log, ns) in logs.iter_mut().zip(&times) {
            *log += (ns / last).ln();
        }
        count += 1.0;
    }
    print!("{:25}", "against native, geomean");
    logs.iter()
        .for_each(|log| print!(" {:11.2}", (log / count).exp()));
    println!();
    Ok(())
}
