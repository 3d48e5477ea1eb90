//! `bpfkit jit`: the machine code of programs, for any architecture on any host.

use std::fmt::Write as _;
use std::path::PathBuf;

use bpfkit_isa::disasm::{self, Symbols};
use bpfkit_isa::{Call, Op, Syntax};
use bpfkit_jit::{Arch, CodeMemory, Features, Jit, Listing, Origin, Rule, Rules};
use bpfkit_object::{Linker, MapDef, Object, Program, RefTarget};
use bpfkit_runtime::{LoadOptions, MapOptions, MapSet};
use clap::ValueEnum;
use serde::Serialize;

use crate::cli::failure::{Failure, Result};
use crate::cli::machine::{self, Names};
use crate::cli::objects::{self, LinkArguments};
use crate::cli::symbols::ProgramNames;
use crate::cli::{Format, output};

#[derive(clap::Args)]
pub struct Arguments {
    /// Object file; - is standard input
    object: PathBuf,
    /// Only this program
    #[arg(short, long, value_name = "NAME")]
    prog: Option<String>,
    /// Architecture to compile for; this machine's without it
    #[arg(long, value_enum)]
    arch: Option<ArchName>,
    /// Print the code beside the instructions and source lines that it is made of
    #[arg(long)]
    show: bool,
    /// The code of a program that nobody verified: its accesses checked, its steps counted
    #[arg(long)]
    checked: bool,
    #[command(flatten)]
    rules: RuleArguments,
    /// Output format
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
    #[command(flatten)]
    link: LinkArguments,
}

/// Which of the compiler's rules to follow.
#[derive(clap::Args)]
pub struct RuleArguments {
    /// Compile without this rule, or without any (all); may repeat
    #[arg(long = "no-opt", value_name = "RULE")]
    without: Vec<String>,
}

impl RuleArguments {
    /// The rules that are left.
    pub fn rules(&self) -> Result<Rules> {
        let mut rules = Rules::default();
        for name in &self.without {
            if name == "all" {
                rules = Rules::NONE;
                continue;
            }
            let Some(rule) = Rule::by_name(name) else {
                let names: Vec<_> = Rule::all().map(Rule::name).collect();
                let names = names.join(", ");
                return Err(Failure::input(format!(
                    "no rule {name:?}; there are all, {names}"
                )));
            };
            rules = rules.without(rule);
        }
        Ok(rules)
    }

    /// A compiler that follows them.
    pub fn jit(&self) -> Result<Jit> {
        let rules = self.rules()?;
        Ok(match rules == Rules::default() {
            true => Jit::default(),
            false => Jit::new(CodeMemory::new(), rules, Features::host()),
        })
    }
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ArchName {
    #[value(name = "x86_64")]
    X86_64,
    #[value(name = "aarch64")]
    Aarch64,
}

impl ArchName {
    fn of(arch: Arch) -> Self {
        match arch {
            Arch::X86_64 => Self::X86_64,
            Arch::Aarch64 => Self::Aarch64,
        }
    }

    fn arch(self) -> Arch {
        match self {
            Self::X86_64 => Arch::X86_64,
            Self::Aarch64 => Arch::Aarch64,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64",
            Self::Aarch64 => "aarch64",
        }
    }
}

#[derive(Serialize)]
struct Compiled {
    program: String,
    arch: &'static str,
    checked: bool,
    /// BPF instructions, those of subprograms included.
    instructions: usize,
    /// Of machine code.
    bytes: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<Vec<Stretch>>,
}

/// Machine instructions that belong together.
#[derive(Serialize)]
struct Stretch {
    /// What they belong to, where that is no instruction.
    #[serde(skip_serializing_if = "Option::is_none")]
    part: Option<String>,
    /// Slot of the instruction.
    #[serde(skip_serializing_if = "Option::is_none")]
    slot: Option<u32>,
    machine: Vec<MachineLine>,
}

#[derive(Serialize)]
struct MachineLine {
    offset: u32,
    text: String,
}

pub fn run(arguments: &Arguments) -> Result {
    let arch = arguments.arch.or(Arch::HOST.map(ArchName::of));
    let arch = arch.ok_or_else(|| {
        Failure::machine("no compiler for this machine: name an architecture with --arch")
    })?;
    let jit = arguments.rules.jit()?;
    let object = objects::open(&arguments.object)?;
    if let Some(name) = &arguments.prog {
        objects::choose(&object, &arguments.object, Some(name))?;
    }
    let kernel = arguments.link.read()?;
    let target = kernel.target();
    let mut linker = Linker::new(&object, &target);
    let defs = linker.maps();
    let maps = MapSet::with_types(&defs, object.btf.as_deref(), &MapOptions::default())
        .map_err(Failure::input)?;
    let (mut all, mut text) = (Vec::new(), String::new());
    for (index, decl) in object.programs.iter().enumerate() {
        let asked = arguments.prog.as_deref();
        if asked.is_some_and(|name| name != decl.name) {
            continue;
        }
        let linked = linker.link(index).map_err(Failure::input);
        let compiled = linked.and_then(|program| {
            let options = LoadOptions::default();
            let listing = jit
                .listing(arch.arch(), &program, arguments.checked, &maps, &options)
                .map_err(Failure::program)?;
            Ok((program, listing))
        });
        let (program, listing) = match compiled {
            Ok(compiled) => compiled,
            // One program that does not compile does not hide the others.
            Err(failure) if asked.is_none() => {
                anstream::eprintln!("{}: {}", decl.name, failure.message);
                continue;
            }
            Err(failure) => return Err(failure),
        };
        let stretches = arguments.show.then(|| {
            let mut names = names(&program, &object, &maps, &listing);
            for (offset, name) in bpfkit_jit::shared_places(arch.arch()) {
                names.before(offset, format!("[{name}]"));
            }
            stretches(&program, arch.arch(), &listing, &names)
        });
        let compiled = Compiled {
            program: decl.name.clone(),
            arch: arch.name(),
            checked: arguments.checked,
            instructions: op_count(&program),
            bytes: listing.code.len(),
            code: stretches,
        };
        if arguments.show {
            show(&mut text, &compiled, &program, &object.maps);
        }
        all.push(compiled);
    }
    match arguments.format {
        Format::Json => output::json(&all),
        Format::Text if arguments.show => output::text(&text),
        Format::Text => output::table(
            &["program", "instructions", "bytes", "bytes each"],
            all.iter().map(|c| {
                let each = c.bytes as f64 / c.instructions.max(1) as f64;
                [
                    c.program.clone(),
                    c.instructions.to_string(),
                    c.bytes.to_string(),
                    format!("{each:.2}"),
                ]
            }),
        ),
    }
}

fn op_count(program: &Program) -> usize {
    let mut at = 0;
    let mut count = 0;
    while let Some(insn) = program.insns.get(at) {
        at += insn.slots();
        count += 1;
    }
    count
}

/// The name of the function that starts at a slot.
fn function_name(program: &Program, slot: u32) -> &str {
    let function = program.subprograms.iter().find(|f| f.start == slot);
    function.map_or(&program.decl.name, |f| &f.name)
}

fn part_name(program: &Program, origin: Origin) -> Option<String> {
    match origin {
        Origin::Insn(_) => None,
        Origin::Prologue(slot) => Some(format!("{}: prologue", function_name(program, slot))),
        Origin::Epilogue(slot) => Some(format!("{}: epilogue", function_name(program, slot))),
        Origin::Shared(name) => Some(name.to_owned()),
    }
}

/// Names for what the code mentions: its own places, maps, helpers, functions called in Rust.
fn names(program: &Program, object: &Object, maps: &MapSet, listing: &Listing) -> Names {
    let mut names = Names::default();
    for part in &listing.parts {
        names.place(part.offset, || match part.origin {
            Origin::Insn(slot) => format!("[{slot}]"),
            Origin::Prologue(slot) => function_name(program, slot).to_owned(),
            Origin::Epilogue(_) => "[epilogue]".to_owned(),
            Origin::Shared(name) => format!("[{name}]"),
        });
    }
    for (map, def) in maps.iter().zip(&object.maps) {
        let address = std::sync::Arc::as_ptr(map).addr() as u64;
        names.address(address, 1, format!("map[{}]", def.name));
        for region in map.value_regions() {
            let bytes = region.stride.saturating_mul(region.count);
            names.address(region.base, bytes, format!("map[{}][0]", def.name));
        }
    }
    let functions = LoadOptions::default().functions;
    for insn in program.insns.windows(1) {
        if let Ok(Op::Call(Call::Helper(id))) = Op::decode(insn)
            && let (Some(function), Some(helper)) =
                (functions.helper(id), bpfkit_spec::helper::by_id(id))
        {
            names.address(function as usize as u64, 1, helper.full_name());
        }
    }
    for reference in &program.refs {
        if let RefTarget::Kfunc { name, .. } = &reference.target
            && let Some(function) = functions.kfunc(name)
        {
            names.address(function as usize as u64, 1, name.clone());
        }
    }
    for (address, name) in bpfkit_jit::callouts() {
        names.address(address, 1, name.to_owned());
    }
    names
}

fn stretches(program: &Program, arch: Arch, listing: &Listing, names: &Names) -> Vec<Stretch> {
    let lines = machine::lines(arch, &listing.code, names);
    let mut lines = lines.into_iter().peekable();
    let ends = listing.parts.iter().skip(1).map(|part| part.offset);
    let ends = ends.chain([u32::MAX]);
    let mut stretches = Vec::new();
    for (part, end) in listing.parts.iter().zip(ends) {
        let machine = std::iter::from_fn(|| lines.next_if(|(offset, _)| *offset < end))
            .map(|(offset, text)| MachineLine { offset, text });
        stretches.push(Stretch {
            part: part_name(program, part.origin),
            slot: match part.origin {
                Origin::Insn(slot) => Some(slot),
                _ => None,
            },
            machine: machine.collect(),
        });
    }
    stretches
}

/// The code under the instructions, these under the source lines.
fn show(text: &mut String, compiled: &Compiled, program: &Program, maps: &[MapDef]) {
    let names = ProgramNames { program, maps };
    let mode = if compiled.checked {
        "checked"
    } else {
        "trusted"
    };
    let _ = writeln!(
        text,
        "{} ({}, {mode}): {} instructions, {} bytes",
        compiled.program, compiled.arch, compiled.instructions, compiled.bytes
    );
    let mut shown = vec![false; program.insns.len()];
    let mut source = None;
    for stretch in compiled.code.iter().flatten() {
        match (&stretch.part, stretch.slot) {
            (_, Some(slot)) => {
                let slot = slot as usize;
                let again = shown.get(slot).copied().unwrap_or_default();
                if again {
                    let _ = writeln!(text, "{slot:4}: out of line");
                } else {
                    instruction(text, program, slot, &names, &mut source);
                }
                if let Some(shown) = shown.get_mut(slot) {
                    *shown = true;
                }
            }
            (Some(name), None) if !stretch.machine.is_empty() => {
                let _ = writeln!(text, "{name}");
            }
            _ => {}
        }
        for line in &stretch.machine {
            let _ = writeln!(text, "        {:5x}  {}", line.offset, line.text);
        }
    }
    text.push('\n');
}

/// An instruction under its source line, which is not repeated.
fn instruction<'p>(
    text: &mut String,
    program: &'p Program,
    slot: usize,
    names: &dyn Symbols,
    shown: &mut Option<(&'p str, u32)>,
) {
    let first = program
        .lines
        .partition_point(|line| (line.insn as usize) < slot);
    for line in &program.lines[first..] {
        if line.insn as usize != slot {
            break;
        }
        if shown.replace((&line.file, line.line)) == Some((&line.file, line.line)) {
            continue;
        }
        let file = line.file.rsplit('/').next().unwrap_or_default();
        let _ = writeln!(text, "; {} @ {file}:{}", line.text.trim(), line.line);
    }
    let _ = writeln!(
        text,
        "{slot:4}: {}",
        disasm::line(&program.insns, slot, Syntax::Kernel, names)
    );
}
