//! Compiles the programs of the kernel's selftests that the kernel accepts: compile time, and
//! bytes of code, beside the running kernel's with `--kernel N` (every Nth program).
//!
//! `cargo run --release -p bpfkit-jit --example corpus [-- --kernel N] [--rules] [--bytes] [FILTER]`
//!
//! The programs are the accepted ones of `testdata/oracle`, their objects those of
//! `target/kernel-selftests` (see the verifier's tests). `--rules` adds the bytes without each
//! rule, `--bytes` what the bytes are for. The kernel frees programs slowly and hangs where thousands wait for it, so a pause
//! follows each load.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bpfkit_isa::{Call, Imm64, Op, Operand};
use bpfkit_jit::{Arch, CodeMemory, Features, Jit, Origin, Rule, Rules};
use bpfkit_object::{Linker, MapDef, Object, Program};
use bpfkit_oracle::Kernel;
use bpfkit_runtime::{Code, LoadOptions, MapOptions, MapSet, Trusted};
use bpfkit_verifier::Environment;
use judge::{Machine, Row};

#[path = "../../verifier/tests/oracle/judge.rs"]
#[allow(dead_code, reason = "verdicts are the verifier's affair")]
mod judge;

/// Behind a load into the kernel.
const PAUSE: Duration = Duration::from_millis(40);
/// Compilations of each program, of which the shortest counts.
const TIMES: usize = 15;

/// What came of a program.
struct Compiled {
    insns: usize,
    ns: f64,
    bytes: [usize; 2],
    /// The kernel's, if it was asked.
    kernel: Option<usize>,
    without: Vec<[usize; 2]>,
    /// Bytes of x86-64 code by what they are for.
    uses: BTreeMap<String, usize>,
}

fn main() -> Result<(), String> {
    let mut every = None;
    let (mut filter, mut ablate, mut bytes_of) = (String::new(), false, false);
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--kernel" => every = args.next().and_then(|n| n.parse::<usize>().ok()),
            "--rules" => ablate = true,
            "--bytes" => bytes_of = true,
            _ => filter = arg,
        }
    }
    let machine = Machine::read()?;
    let mut kernel = match every {
        Some(_) => Some(Kernel::start().map_err(|e| e.to_string())?),
        None => None,
    };
    let mut rows = judge::all_rows();
    rows.retain(|r| r.accept && r.name().contains(&filter));
    rows.sort_by(|a, b| a.file.cmp(&b.file));
    let (mut all, mut seen, mut failed) = (Vec::new(), 0, 0);
    for rows in rows.chunk_by(|a, b| a.file == b.file) {
        let Ok(bytes) = std::fs::read(judge::objects().join(&rows[0].file)) else {
            failed += rows.len();
            continue;
        };
        let object = Object::open(&rows[0].file, &bytes).map_err(|e| e.to_string())?;
        let target = machine.target();
        let mut linker = Linker::new(&object, &target);
        for row in rows {
            let linked = object.program_index(&row.prog).map(|p| linker.link(p));
            let Some(Ok(mut program)) = linked else {
                failed += 1;
                continue;
            };
            judge::set_types(&mut program, row);
            let mut maps = linker.maps();
            for map in &mut maps {
                map.max_entries = map.max_entries.max(1);
            }
            seen += 1;
            let ask = every.is_some_and(|n| seen % n == 0);
            let theirs = kernel.as_mut().filter(|_| ask);
            match compiled(&machine, program, &maps, row, (ablate, bytes_of), theirs) {
                Some(compiled) => all.push(compiled),
                None => failed += 1,
            }
        }
    }
    report(&all, failed, ablate);
    Ok(())
}

fn compiled(
    machine: &Machine,
    program: Program,
    defs: &[MapDef],
    row: &Row,
    (ablate, bytes_of): (bool, bool),
    kernel: Option<&mut Kernel>,
) -> Option<Compiled> {
    // Large maps are not looked into here.
    let mut small = defs.to_vec();
    for map in &mut small {
        map.max_entries = map.max_entries.min(64);
    }
    let maps = MapSet::new(&small, &MapOptions::default()).ok()?;
    let insns = program.insns.len();
    let theirs = kernel.and_then(|kernel| kernels(kernel, &program, defs, row));
    let mut environment = Environment::new(Some(&machine.btf));
    environment.cpus = 2;
    let code = match Code::verify(&program, &maps, &environment) {
        Ok(code @ Code::Trusted(_)) => code,
        // SAFETY: the code is not run.
        _ => Code::Trusted(unsafe { Trusted::assume(Arc::new(program)) }),
    };
    let ksyms = |_: &str| Some(0xffff_ffff_8100_0000);
    let options = LoadOptions {
        ksym: Some(&ksyms),
        ..LoadOptions::default()
    };
    let jit = Jit::default();
    let mut ns = f64::INFINITY;
    for _ in 0..TIMES {
        let start = Instant::now();
        let compiled = jit.compile(Arch::X86_64, &code, &maps, &options).ok()?;
        ns = ns.min(start.elapsed().as_nanos() as f64);
        std::hint::black_box(compiled);
    }
    let sizes = |jit: &Jit| {
        [Arch::X86_64, Arch::Aarch64].map(|arch| {
            let code = jit.compile(arch, &code, &maps, &options);
            code.map_or(0, |code| code.len())
        })
    };
    let rules = Rule::all().filter(|_| ablate);
    let without = rules.map(|rule| {
        let rules = Rules::default().without(rule);
        sizes(&Jit::new(CodeMemory::new(), rules, Features::host()))
    });
    let uses = match bytes_of {
        true => uses(&jit, code.program(), &maps, &options),
        false => BTreeMap::new(),
    };
    Some(Compiled {
        insns,
        ns,
        bytes: sizes(&jit),
        kernel: theirs,
        without: without.collect(),
        uses,
    })
}

/// Bytes of x86-64 code by what they are for, without what the verifier says of the program.
fn uses(
    jit: &Jit,
    program: &Program,
    maps: &MapSet,
    options: &LoadOptions<'_>,
) -> BTreeMap<String, usize> {
    let mut uses = BTreeMap::new();
    let Ok(listing) = jit.listing(Arch::X86_64, program, false, maps, options) else {
        return uses;
    };
    let ends = listing.parts.iter().skip(1).map(|p| p.offset as usize);
    for (part, end) in listing.parts.iter().zip(ends.chain([listing.code.len()])) {
        let what = match part.origin {
            Origin::Prologue(_) => "prologue".to_owned(),
            Origin::Epilogue(_) => "epilogue".to_owned(),
            Origin::Shared(name) => format!("shared: {name}"),
            Origin::Insn(slot) => match Op::decode(&program.insns[slot as usize..]) {
                Ok(op) => kind(&op),
                Err(_) => "nothing".to_owned(),
            },
        };
        *uses.entry(what).or_default() += end - part.offset as usize;
    }
    uses
}

/// The construct that an instruction is.
fn kind(op: &Op) -> String {
    let operand = |src| match src {
        Operand::Reg(_) => "register",
        Operand::Imm(_) => "immediate",
    };
    match *op {
        Op::Alu { op, src, .. } => format!("{op:?} {}", operand(src)).to_lowercase(),
        Op::Load { .. } => "load".to_owned(),
        Op::Store { src, .. } => format!("store {}", operand(src)),
        Op::JumpIf { src, .. } => format!("jump if {}", operand(src)),
        Op::Jump { .. } => "jump".to_owned(),
        Op::Exit => "exit".to_owned(),
        Op::LoadImm64 { value, .. } => match value {
            Imm64::Value(_) => "ld_imm64 number",
            Imm64::MapIdx(_) => "ld_imm64 map",
            Imm64::MapIdxValue { .. } => "ld_imm64 value of a map",
            _ => "ld_imm64 of other kinds",
        }
        .to_owned(),
        Op::Call(Call::Local(_)) => "call local".to_owned(),
        Op::Call(Call::Kfunc { .. }) => "call kfunc".to_owned(),
        Op::Call(Call::Helper(id)) => {
            let helper = bpfkit_spec::helper::by_id(id);
            format!("call {}", helper.map_or("helper", |helper| helper.name))
        }
        _ => "other".to_owned(),
    }
}

/// Bytes of the kernel's code for a program.
fn kernels(kernel: &mut Kernel, program: &Program, maps: &[MapDef], row: &Row) -> Option<usize> {
    let btf = program.btf.as_ref();
    let btf = btf.and_then(|btf| kernel.load_btf(&btf.to_bytes()).ok());
    let mut handles = Vec::new();
    for def in maps {
        match kernel.create_map(def, btf) {
            Ok(handle) => handles.push(handle),
            Err(_) => break,
        }
    }
    let mut bytes = None;
    if handles.len() == maps.len() {
        match kernel.load(
            program,
            &handles,
            btf,
            &bpfkit_oracle::LoadOptions::default(),
        ) {
            Ok((loaded, _)) => {
                bytes = kernel.info(loaded).ok().map(|info| info.jited.len());
                kernel.unload(loaded);
            }
            Err(error) => {
                let text = error.to_string();
                eprintln!(
                    "{}: {}",
                    row.name(),
                    text.lines().next().unwrap_or_default()
                );
            }
        }
    }
    for handle in handles {
        kernel.drop_map(handle);
    }
    if let Some(btf) = btf {
        kernel.drop_btf(btf);
    }
    std::thread::sleep(PAUSE);
    bytes.filter(|&bytes| bytes > 0)
}

fn report(all: &[Compiled], failed: usize, ablate: bool) {
    let insns: usize = all.iter().map(|c| c.insns).sum();
    println!(
        "{} programs, {insns} instructions; {failed} do not link or compile",
        all.len()
    );
    let bar = |c: &Compiled| c.ns / (1000.0 + 20.0 * c.insns as f64);
    let mut over: Vec<f64> = all.iter().map(bar).collect();
    over.sort_by(f64::total_cmp);
    let ns: f64 = all.iter().map(|c| c.ns).sum();
    println!(
        "x86-64: {:.1} ns an instruction in all; time / (1 µs + 20 ns an instruction), median: {:.2}",
        ns / insns as f64,
        over.get(over.len() / 2).unwrap_or(&f64::NAN)
    );
    let [x86, arm] = [0, 1].map(|i| all.iter().map(|c| c.bytes[i]).sum::<usize>());
    println!("bytes of code: x86-64 {x86}, AArch64 {arm}");
    if ablate {
        for (i, rule) in Rule::all().enumerate() {
            let more = [0, 1].map(|arch| {
                let without: usize = all.iter().map(|c| c.without[i][arch]).sum();
                100.0 * (without as f64 / [x86, arm][arch] as f64 - 1.0)
            });
            println!(
                "without {:18} x86-64 {:+.2} %, AArch64 {:+.2} %",
                rule.name(),
                more[0],
                more[1]
            );
        }
    }
    let mut uses: BTreeMap<&str, usize> = BTreeMap::new();
    for (what, bytes) in all.iter().flat_map(|c| &c.uses) {
        *uses.entry(what).or_default() += bytes;
    }
    let sum: usize = uses.values().sum();
    let mut uses: Vec<_> = uses.into_iter().collect();
    uses.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    for (what, bytes) in uses.into_iter().take(40) {
        let share = 100.0 * bytes as f64 / sum as f64;
        println!("{share:6.2} % {bytes:8} {what}");
    }
    let both: Vec<(usize, usize)> = all
        .iter()
        .filter_map(|c| Some((c.bytes[0], c.kernel?)))
        .collect();
    if !both.is_empty() {
        let ours: usize = both.iter().map(|b| b.0).sum();
        let theirs: usize = both.iter().map(|b| b.1).sum();
        println!(
            "beside the kernel, {} programs: {ours} / {theirs} bytes = {:.3}",
            both.len(),
            ours as f64 / theirs as f64
        );
    }
}
