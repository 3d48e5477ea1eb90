//! `bpfkit objdump`: what an object holds.

use std::fmt::Write as _;
use std::path::PathBuf;

use bpfkit_btf::dump;
use bpfkit_object::{Linker, MapDef, Object, Program, RefTarget, SlotValue};
use clap::ValueEnum;
use serde::Serialize;
use serde_json::{Value, json};

use crate::cli::failure::{Failure, Result};
use crate::cli::objects::{self, Kernel, LinkArguments};
use crate::cli::{Format, output};

#[derive(clap::Args)]
pub struct Arguments {
    /// Object file; - is standard input
    file: PathBuf,
    /// Also each program's references: maps, functions, kernel symbols by instruction
    #[arg(long)]
    relocations: bool,
    /// Also each program's source lines by instruction
    #[arg(long)]
    lines: bool,
    /// Instead of all else, the object's BTF
    #[arg(long, value_enum, value_name = "FORM", num_args = 0..=1, default_missing_value = "c")]
    btf_types: Option<BtfForm>,
    /// Output format
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
    #[command(flatten)]
    link: LinkArguments,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum BtfForm {
    /// Declarations in C
    C,
    /// A line a type, as bpftool prints
    Raw,
}

#[derive(Serialize)]
struct Report {
    object: String,
    license: String,
    version: u32,
    byte_order: &'static str,
    programs: Vec<Value>,
    maps: Vec<Value>,
    globals: Vec<Value>,
}

pub fn run(arguments: &Arguments) -> Result {
    let object = objects::open(&arguments.file)?;
    if let Some(form) = arguments.btf_types {
        return print_btf(&object, form);
    }
    let kernel = match arguments.relocations || arguments.lines {
        true => Some(arguments.link.read()?),
        false => None,
    };
    let report = Report {
        object: object.name.clone(),
        license: object.license.clone(),
        version: object.kernel_version,
        byte_order: if object.big_endian {
            "big-endian"
        } else {
            "little-endian"
        },
        programs: programs(&object, kernel.as_ref(), arguments),
        maps: object
            .maps
            .iter()
            .map(|map| map_value(&object, map))
            .collect(),
        globals: object
            .globals
            .iter()
            .map(|global| global_value(&object, global))
            .collect(),
    };
    match arguments.format {
        Format::Json => output::json(&report),
        Format::Text => output::text(&text(&report)),
    }
}

fn print_btf(object: &Object, form: BtfForm) -> Result {
    let btf = object
        .btf
        .as_ref()
        .ok_or_else(|| Failure::input("the object has no BTF"))?;
    match form {
        BtfForm::Raw => output::text(&dump::raw(btf)),
        BtfForm::C => {
            let types = dump::c_types(btf, 1..btf.type_count()).map_err(Failure::input)?;
            output::text(&types)
        }
    }
}

fn programs(object: &Object, kernel: Option<&Kernel>, arguments: &Arguments) -> Vec<Value> {
    let target = kernel.map(Kernel::target).unwrap_or_default();
    let mut linker = Linker::new(object, &target);
    let describe = |(index, decl): (usize, &bpfkit_object::ProgramDecl)| {
        let mut value = json!({
            "name": decl.name,
            "section": decl.section,
            "type": decl.prog_type.name(),
            "attach_type": decl.attach_type.name(),
            "attach_target": decl.attach_target,
            "autoload": decl.autoload,
            "flags": decl.flags,
            "instructions": decl.own_insns,
        });
        if kernel.is_some() {
            match linker.link(index) {
                Ok(program) => {
                    value["linked_instructions"] = program.insns.len().into();
                    if arguments.relocations {
                        value["references"] = references(object, &program);
                    }
                    if arguments.lines {
                        value["lines"] = lines(&program);
                    }
                }
                Err(error) => value["error"] = error.to_string().into(),
            }
        }
        value
    };
    object.programs.iter().enumerate().map(describe).collect()
}

fn references(object: &Object, program: &Program) -> Value {
    let describe = |target: &RefTarget| match target {
        RefTarget::Map(index) => {
            let name = object
                .maps
                .get(*index as usize)
                .map(|map| map.name.as_str());
            ("map", name.unwrap_or_default().to_owned())
        }
        RefTarget::Kfunc { name, .. } => ("kfunc", name.clone()),
        RefTarget::Ksym { name, .. } => ("ksym", name.clone()),
        RefTarget::Subprogram(index) => {
            let function = program.subprograms.get(*index as usize);
            (
                "function",
                function.map(|f| f.name.clone()).unwrap_or_default(),
            )
        }
        RefTarget::Poison { message, .. } => ("missing", message.clone()),
        RefTarget::Core { type_id, .. } => {
            let root = object.btf.as_ref().and_then(|btf| btf.type_by_id(*type_id));
            (
                "core",
                root.map(|t| t.name().to_owned()).unwrap_or_default(),
            )
        }
    };
    let items = program.refs.iter().map(|reference| {
        let (kind, name) = describe(&reference.target);
        json!({ "slot": reference.insn, "kind": kind, "name": name })
    });
    items.collect()
}

fn lines(program: &Program) -> Value {
    let items = program.lines.iter().map(|line| {
        json!({
            "slot": line.insn,
            "file": &*line.file,
            "line": line.line,
            "column": line.column,
            "text": line.text.trim(),
        })
    });
    items.collect()
}

fn map_value(object: &Object, map: &MapDef) -> Value {
    let slots: Vec<Value> = map
        .slots
        .iter()
        .map(|(slot, value)| match value {
            SlotValue::Map(index) => {
                let name = object
                    .maps
                    .get(*index as usize)
                    .map(|map| map.name.as_str());
                json!({ "slot": slot, "map": name })
            }
            SlotValue::Program(name) => json!({ "slot": slot, "program": name }),
        })
        .collect();
    json!({
        "name": map.name,
        "type": map.map_type.name(),
        "key_size": map.key_size,
        "value_size": map.value_size,
        "max_entries": map.max_entries,
        "flags": map.flags,
        "extra": map.extra,
        "pinned": map.pin_by_name,
        "inner": map.inner.as_ref().map(|inner| map_value(object, inner)),
        "slots": slots,
    })
}

fn global_value(object: &Object, global: &bpfkit_object::Global) -> Value {
    json!({
        "name": global.name,
        "map": object.maps.get(global.map as usize).map(|map| map.name.as_str()),
        "offset": global.range.start,
        "size": global.range.len(),
    })
}

/// A field of a JSON row as a cell of a table.
fn cell(row: &Value, field: &str) -> String {
    match &row[field] {
        Value::String(text) => text.clone(),
        Value::Null => "-".to_owned(),
        other => other.to_string(),
    }
}

fn columns<const N: usize>(rows: &[Value], header: [&str; N], fields: [&str; N]) -> String {
    output::render_table(
        &header,
        rows.iter().map(|row| fields.map(|field| cell(row, field))),
    )
}

fn text(report: &Report) -> String {
    let mut text = String::new();
    let license = if report.license.is_empty() {
        "none"
    } else {
        &report.license
    };
    let _ = writeln!(
        text,
        "{}: {}, license {license}\n",
        report.object, report.byte_order
    );
    text += &columns(
        &report.programs,
        ["program", "type", "attach type", "section", "instructions"],
        ["name", "type", "attach_type", "section", "instructions"],
    );
    for program in &report.programs {
        if let Some(error) = program["error"].as_str() {
            let _ = writeln!(text, "\n{}: {error}", cell(program, "name"));
        }
        let name = cell(program, "name");
        if let Value::Array(rows) = &program["references"] {
            let _ = writeln!(text, "\nreferences of {name}");
            text += &columns(rows, ["slot", "kind", "name"], ["slot", "kind", "name"]);
        }
        if let Value::Array(rows) = &program["lines"] {
            let _ = writeln!(text, "\nlines of {name}");
            text += &columns(
                rows,
                ["slot", "file", "line", "text"],
                ["slot", "file", "line", "text"],
            );
        }
    }
    if !report.maps.is_empty() {
        text.push('\n');
        text += &columns(
            &report.maps,
            ["map", "type", "key", "value", "entries", "flags"],
            [
                "name",
                "type",
                "key_size",
                "value_size",
                "max_entries",
                "flags",
            ],
        );
    }
    if !report.globals.is_empty() {
        text.push('\n');
        text += &columns(
            &report.globals,
            ["global", "map", "offset", "size"],
            ["name", "map", "offset", "size"],
        );
    }
    text
}
