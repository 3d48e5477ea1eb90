//! AArch64: what each choice between instructions brings, by LLVM's model of a Neoverse V2.
//!
//! A choice is a rule of the compiler. Its snippet is compiled with and without it, and
//! `llvm-mca` says how many cycles its machine code takes in a loop. Code sizes are those of the
//! other benchmarks' programs.

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::sync::Arc;

use bpfkit_isa::asm;
use bpfkit_jit::{Arch, CodeMemory, Features, Jit, Listing, Origin, Rule, Rules};
use bpfkit_object::{Linker, Object, Program};
use bpfkit_runtime::{LoadOptions, MapOptions, MapSet, raw_program};
use serde::Serialize;

use crate::cli::bench::machine::Source;
use crate::cli::bench::plot::{Bar, Plot};
use crate::cli::bench::{Answer, Arguments, calls, lpm_trie, maps, xdp_lb};
use crate::cli::failure::{Failure, Result};
use crate::cli::{objects, output};

/// Turns of the loop that is simulated.
const ITERATIONS: u32 = 1000;
/// Copies of an operation in a snippet.
const COPIES: usize = 8;

/// A choice, and a snippet that it matters for.
struct Selection {
    rule: Rule,
    about: &'static str,
    /// Lines of which the loop's body is made: copies of the operation.
    body: fn(usize) -> String,
    /// Operations in a copy; in the snippet's function as a whole if it is about how functions
    /// begin and end.
    operations: usize,
    frame: bool,
}

const SELECTIONS: [Selection; 6] = [
    Selection {
        rule: Rule::MoveByOr,
        about: "moves between registers",
        body: |_| "r0 = r1\nr1 = r2\nr2 = r3\nr3 = r4\nr4 = r0".to_owned(),
        operations: 5,
        frame: false,
    },
    Selection {
        rule: Rule::CompareImmediate,
        about: "a comparison with a number, and a selection",
        body: |i| format!("if r{} > {} goto +1\nr{} = r1", i % 3 + 2, i + 7, i % 3 + 2),
        operations: 1,
        frame: false,
    },
    Selection {
        rule: Rule::PairOffset,
        about: "saving and restoring what a function writes",
        body: |i| format!("r{} = {i}", i % 4 + 6),
        operations: 1,
        frame: true,
    },
    Selection {
        rule: Rule::LoadOffset,
        about: "a load at an offset",
        body: |i| format!("r{} = *(u64 *)(r1 + {})", i % 4 + 2, i * 8 + 8),
        operations: 1,
        frame: false,
    },
    Selection {
        rule: Rule::CompareBranch,
        about: "a jump where a register is zero",
        body: |i| format!("if r{} == 0 goto out", i % 5 + 1),
        operations: 1,
        frame: false,
    },
    Selection {
        rule: Rule::TestBranch,
        about: "a jump where a bit is set",
        body: |i| format!("if r{} & {} goto out", i % 5 + 1, 1 << i),
        operations: 1,
        frame: false,
    },
];

impl Selection {
    fn body(&self) -> String {
        let copies = (0..COPIES).map(self.body);
        copies.map(|copy| copy + "\n").collect()
    }

    /// The snippet's program, and where its body begins and ends, or the function whose
    /// beginning and end matter.
    fn program(&self) -> Result<Program> {
        // Everything that the body leaves behind is used.
        let mut text = String::new();
        let uses = "r0 = r1\nr0 += r2\nr0 += r3\nr0 += r4\nr0 += r5\n";
        let saved = "r0 = r6\nr0 += r7\nr0 += r8\nr0 += r9\n";
        let _ = match self.frame {
            true => write!(text, "call f\nexit\nf:\n{}{saved}exit", self.body()),
            false => write!(text, "{}{uses}out:\nexit", self.body()),
        };
        let assembled = asm::assemble(&text).map_err(Failure::input)?;
        Ok(raw_program("snippet", assembled.insns))
    }

    /// The machine code that is simulated.
    fn code(&self, rules: Rules) -> Result<Vec<u8>> {
        let program = self.program()?;
        let body = asm::assemble(&self.body().replace("goto out", "goto +0"));
        let len = body.map_err(Failure::input)?.insns.len() as u32;
        let listing = compile(&program, &MapSet::empty(), rules)?;
        Ok(stretches(&listing, |origin| match origin {
            Origin::Insn(slot) => !self.frame && slot < len,
            Origin::Prologue(slot) | Origin::Epilogue(slot) => self.frame && slot > 0,
            Origin::Shared(_) => false,
        }))
    }

    fn operations(&self) -> f64 {
        let copies = if self.frame { 1 } else { COPIES };
        (copies * self.operations) as f64
    }
}

fn compile(program: &Program, maps: &MapSet, rules: Rules) -> Result<Listing> {
    let jit = Jit::new(CodeMemory::new(), rules, Features::ALL);
    let options = LoadOptions::default();
    jit.listing(Arch::Aarch64, program, false, maps, &options)
        .map_err(Failure::program)
}

/// The bytes of those stretches.
fn stretches(listing: &Listing, wanted: impl Fn(Origin) -> bool) -> Vec<u8> {
    let starts = listing.parts.iter().map(|part| part.offset as usize);
    let ends = starts.clone().skip(1).chain([listing.code.len()]);
    let parts = listing.parts.iter().zip(starts.zip(ends));
    let bytes = parts.filter(|(part, _)| wanted(part.origin));
    bytes
        .flat_map(|(_, (start, end))| &listing.code[start..end])
        .copied()
        .collect()
}

/// Runs a tool of LLVM's, this version or any; none where there is none.
fn llvm(tool: &str, arguments: &[&str], input: &str) -> Result<Option<String>> {
    for name in [format!("{tool}-19"), tool.to_owned()] {
        let child = Command::new(&name)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let Ok(mut child) = child else { continue };
        let failed = |error| Failure::machine(format!("{name}: {error}"));
        if let Some(mut stdin) = child.stdin.take() {
            stdin.write_all(input.as_bytes()).map_err(failed)?;
        }
        let output = child.wait_with_output().map_err(failed)?;
        if !output.status.success() {
            let why = String::from_utf8_lossy(&output.stderr);
            return Err(Failure::machine(format!("{name}: {}", why.trim())));
        }
        return Ok(Some(String::from_utf8_lossy(&output.stdout).into_owned()));
    }
    Ok(None)
}

/// Cycles of a turn of a loop of that code.
fn cycles(code: &[u8]) -> Result<Option<f64>> {
    let hex: String = code.iter().map(|byte| format!("{byte:#04x} ")).collect();
    let disassemble = ["-disassemble", "-triple=aarch64", "-mattr=+all"];
    let Some(text) = llvm("llvm-mc", &disassemble, &hex)? else {
        return Ok(None);
    };
    let iterations = format!("-iterations={ITERATIONS}");
    let simulate = ["-mtriple=aarch64", "-mcpu=neoverse-v2", &iterations];
    let Some(report) = llvm("llvm-mca", &simulate, &text)? else {
        return Ok(None);
    };
    let total = report
        .lines()
        .find_map(|line| line.strip_prefix("Total Cycles:"));
    let total = total.and_then(|number| number.trim().parse::<f64>().ok());
    let total = total.ok_or_else(|| Failure::machine("llvm-mca: no total of cycles"))?;
    Ok(Some(total / f64::from(ITERATIONS)))
}

/// What came of a choice. Cycles are of an operation; none without LLVM's tools.
#[derive(Serialize)]
struct Row {
    rule: &'static str,
    about: &'static str,
    cycles_without: Option<f64>,
    cycles_with: Option<f64>,
    /// Of the benchmarks' programs.
    bytes_without: usize,
}

#[derive(Serialize)]
struct Results {
    rows: Vec<Row>,
    bytes_with_all: usize,
    bytes_with_none: usize,
}

/// The other benchmarks' programs, linked, and their maps.
fn corpus(kernel: &objects::Kernel) -> Result<Vec<(Program, Arc<MapSet>)>> {
    let sources: [&[Source]; 4] = [
        calls::SOURCES,
        maps::SOURCES,
        lpm_trie::SOURCES,
        xdp_lb::SOURCES,
    ];
    let mut programs = Vec::new();
    for source in sources.into_iter().flatten() {
        let object = Object::open(source.name, source.bytes).map_err(Failure::input)?;
        let target = kernel.target();
        let mut linker = Linker::new(&object, &target);
        let mut defs = linker.maps();
        // Nobody looks into them; ring buffers have a page at least.
        for def in &mut defs {
            def.max_entries = def.max_entries.min(4096);
        }
        let maps = MapSet::with_types(&defs, object.btf.as_deref(), &MapOptions::default())
            .map_err(Failure::input)?;
        for index in 0..object.programs.len() {
            let program = linker.link(index).map_err(Failure::input)?;
            programs.push((program, Arc::clone(&maps)));
        }
    }
    Ok(programs)
}

pub fn run(_: &Arguments, kernel: &objects::Kernel) -> Result<Answer> {
    let programs = corpus(kernel)?;
    let bytes = |rules: Rules| -> Result<usize> {
        let mut sum = 0;
        for (program, maps) in &programs {
            sum += compile(program, maps, rules)?.code.len();
        }
        Ok(sum)
    };
    let all = Rules::default();
    let mut rows = Vec::new();
    for selection in &SELECTIONS {
        let without = all.without(selection.rule);
        let cycles = |rules| -> Result<Option<f64>> {
            let cycles = cycles(&selection.code(rules)?)?;
            Ok(cycles.map(|cycles| cycles / selection.operations()))
        };
        rows.push(Row {
            rule: selection.rule.name(),
            about: selection.about,
            cycles_without: cycles(without)?,
            cycles_with: cycles(all)?,
            bytes_without: bytes(without)?,
        });
    }
    let none = SELECTIONS
        .iter()
        .fold(all, |rules, s| rules.without(s.rule));
    let results = Results {
        rows,
        bytes_with_all: bytes(all)?,
        bytes_with_none: bytes(none)?,
    };
    answer(&results)
}

fn answer(results: &Results) -> Result<Answer> {
    let cycles = |cycles: Option<f64>| cycles.map_or("-".to_owned(), |c| format!("{c:.3}"));
    let smaller = |without: usize| {
        let saved = 1.0 - results.bytes_with_all as f64 / without.max(1) as f64;
        format!("{:.2} %", 100.0 * saved)
    };
    let header = ["rule", "operation", "cycles without", "with", "code saved"];
    let rows = results.rows.iter().map(|row| {
        [
            row.rule.to_owned(),
            row.about.to_owned(),
            cycles(row.cycles_without),
            cycles(row.cycles_with),
            smaller(row.bytes_without),
        ]
    });
    let mut text = output::render_table(&header, rows);
    let (with, without) = (results.bytes_with_all, results.bytes_with_none);
    let _ = writeln!(
        text,
        "code of the other benchmarks' programs: {with} bytes, without the six {without} ({} saved)",
        smaller(without)
    );
    if results.rows.iter().any(|row| row.cycles_with.is_none()) {
        text.push_str("skipped: cycles: llvm-mc and llvm-mca are not here\n");
    }
    let mut csv = "rule,cycles_without,cycles_with,bytes_without\n".to_owned();
    for row in &results.rows {
        let [a, b] = [row.cycles_without, row.cycles_with].map(cycles);
        let _ = writeln!(csv, "{},{a},{b},{}", row.rule, row.bytes_without);
    }
    let bar = |series: &str, value: Option<f64>| Bar {
        series: series.to_owned(),
        value: value.unwrap_or(0.0),
        spread: 0.0,
    };
    let groups = results.rows.iter().map(|row| {
        let bars = vec![
            bar("without", row.cycles_without),
            bar("with", row.cycles_with),
        ];
        (row.rule.to_owned(), bars)
    });
    Ok(Answer {
        text,
        json: serde_json::to_value(results).map_err(Failure::machine)?,
        csv,
        plot: Plot {
            title: "Instruction selection on AArch64".to_owned(),
            unit: "cycles an operation (Neoverse V2, llvm-mca)".to_owned(),
            groups: groups.collect(),
        },
    })
}
