//! `bpfkit features`: the tables of `bpfkit_spec` and `bpfkit_isa`, by kernel version.

use bpfkit_isa::table::{self, Accepted};
use bpfkit_spec::helper::HELPERS;
use bpfkit_spec::{AttachType, KernelVersion, MapType, ProgType};
use clap::ValueEnum;
use serde::Serialize;

use crate::cli::Format;
use crate::cli::failure::{Failure, Result};
use crate::cli::output;

#[derive(clap::Args)]
pub struct Arguments {
    /// What to list; everything without it
    section: Option<Section>,
    /// Only what that release has, for instance 5.15
    #[arg(long, value_name = "VERSION")]
    kernel: Option<KernelVersion>,
    /// Only helpers that programs of this type may call
    #[arg(long, value_name = "TYPE")]
    prog_type: Option<String>,
    /// Output format
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Section {
    Programs,
    Attach,
    Maps,
    Helpers,
    Instructions,
}

/// One listed thing.
#[derive(Serialize)]
struct Feature {
    section: &'static str,
    name: String,
    /// Number in `linux/bpf.h`; opcode of an instruction.
    number: u32,
    since: Option<String>,
}

pub fn run(arguments: &Arguments) -> Result {
    let prog_type = match &arguments.prog_type {
        None => None,
        Some(name) => Some(ProgType::from_name(name).ok_or_else(|| {
            let known: Vec<&str> = ProgType::ALL.iter().map(|t| t.name()).collect();
            Failure::input(format!(
                "no program type {name:?}; there are {}",
                known.join(", ")
            ))
        })?),
    };
    let wanted = |section| arguments.section.is_none_or(|only| only == section);
    let mut features = Vec::new();
    if prog_type.is_none() {
        if wanted(Section::Programs) {
            features.extend(uapi("program", ProgType::ALL, |t| {
                (t.name(), t as u32, t.since())
            }));
        }
        if wanted(Section::Attach) {
            features.extend(uapi("attach", AttachType::ALL, |t| {
                (t.name(), t as u32, t.since())
            }));
        }
        if wanted(Section::Maps) {
            features.extend(uapi("map", MapType::ALL, |t| {
                (t.name(), t as u32, t.since())
            }));
        }
        if wanted(Section::Instructions) {
            features.extend(instructions());
        }
    }
    if wanted(Section::Helpers) {
        features.extend(helpers(prog_type));
    }
    if let Some(kernel) = arguments.kernel {
        features.retain(|(since, _)| since.is_some_and(|since| since <= kernel));
    }
    let features: Vec<Feature> = features.into_iter().map(|(_, feature)| feature).collect();
    match arguments.format {
        Format::Json => output::json(&features),
        Format::Text => {
            let rows = features.iter().map(|feature| {
                let since = feature.since.clone().unwrap_or_else(|| "-".to_owned());
                let number = match feature.section {
                    "instruction" => format!("{:#04x}", feature.number),
                    _ => feature.number.to_string(),
                };
                [
                    feature.section.to_owned(),
                    number,
                    feature.name.clone(),
                    since,
                ]
            });
            output::table(&["kind", "number", "name", "since Linux"], rows)
        }
    }
}

type Row = (Option<KernelVersion>, Feature);

fn row(section: &'static str, name: String, number: u32, since: Option<KernelVersion>) -> Row {
    let text = since.map(|since| since.to_string());
    (
        since,
        Feature {
            section,
            name,
            number,
            since: text,
        },
    )
}

fn uapi<T: Copy>(
    section: &'static str,
    all: &[T],
    describe: impl Fn(T) -> (&'static str, u32, KernelVersion),
) -> Vec<Row> {
    let described = all.iter().map(|&item| describe(item));
    described
        .map(|(name, number, since)| row(section, name.to_owned(), number, Some(since)))
        .collect()
}

fn helpers(prog_type: Option<ProgType>) -> impl Iterator<Item = Row> {
    HELPERS.iter().filter_map(move |helper| {
        let mut since = helper.since;
        if let Some(prog_type) = prog_type {
            let offers = helper
                .offers
                .iter()
                .filter(|offer| offer.types.has(prog_type));
            since = offers
                .map(|offer| offer.since.unwrap_or(helper.since))
                .min()?
                .max(since);
        }
        Some(row("helper", helper.full_name(), helper.id, Some(since)))
    })
}

fn instructions() -> impl Iterator<Item = Row> {
    table::rows().filter_map(|instruction| match instruction.accepted {
        Accepted::Since(major, minor) => {
            let name = format!("{} ({})", instruction.mnemonic, instruction.isa.name());
            let since = Some(KernelVersion(major, minor));
            Some(row("instruction", name, instruction.code.into(), since))
        }
        Accepted::Rewritten | Accepted::Never => None,
    })
}
