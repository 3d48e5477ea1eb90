//! Our log of a program beside the running kernel's, line by line.
//!
//! Shared by the test beside this file and by `examples/kernel_log.rs`.

use std::collections::BTreeMap;

use bpfkit_btf::Btf;
use bpfkit_object::{Linker, MapDef, MapOrigin, Object, RefTarget, Target};
use bpfkit_oracle::{BtfHandle, Kernel, LoadError, LoadOptions, MapHandle, OracleError};
use bpfkit_spec::MapType;
use bpfkit_verifier::{Environment, verify};
use similar::{ChangeTag, TextDiff};

use crate::judge::{self, Row};

/// Room for the kernel's log in bytes.
const LOG_BYTES: usize = 16 << 20;
/// Of longer logs only the lines up to here are compared.
const MAX_LINES: usize = 20_000;

/// Two logs of one program.
pub struct Pair {
    pub name: String,
    pub ours: String,
    pub kernels: String,
}

/// How two logs differ.
#[derive(Default)]
pub struct Difference {
    /// Lines of the longer log, and how many both have in their places.
    pub lines: usize,
    pub equal: usize,
    /// What differs, as a diff (`-` the kernel's line, `+` ours).
    #[allow(dead_code, reason = "the example prints it")]
    pub text: Vec<String>,
}

impl Pair {
    /// Compares line by line.
    pub fn difference(&self) -> Difference {
        let (kernels, ours) = (lines(&self.kernels), lines(&self.ours));
        let [kernels, ours]: [Vec<&str>; 2] =
            [&kernels, &ours].map(|lines| lines.iter().map(String::as_str).collect());
        let diff = TextDiff::from_slices(&kernels, &ours);
        let mut out = Difference {
            lines: kernels.len().max(ours.len()),
            ..Difference::default()
        };
        for change in diff.iter_all_changes() {
            let sign = match change.tag() {
                ChangeTag::Equal => {
                    out.equal += 1;
                    continue;
                }
                ChangeTag::Delete => '-',
                ChangeTag::Insert => '+',
            };
            out.text.push(format!("{sign}{}", change.value()));
        }
        out
    }
}

/// Lines without those that tell a time. Where the kernel shows the addresses of its maps
/// and variables, our log names them: both are left out, with the blanks behind them.
fn lines(log: &str) -> Vec<String> {
    let line = |line: &str| {
        let (before, after) = line.split_once("(18) r")?;
        let (register, value) = after.split_once(" = ")?;
        let (value, state) = value.split_once(" ; ").unwrap_or((value, ""));
        let value = value.trim_end();
        let address = value.len() > 13 && value.starts_with("0x")
            || value.starts_with("map[")
            || value.starts_with('&');
        address.then(|| format!("{before}(18) r{register} = ADDRESS ; {state}"))
    };
    log.lines()
        .filter(|line| !line.starts_with("verification time "))
        .take(MAX_LINES)
        .map(|text| line(text).unwrap_or_else(|| text.to_string()))
        .collect()
}

/// A fixed choice of about `count` programs of moderate size, two of three accepted.
pub fn choose(rows: &[Row], count: usize) -> Vec<&Row> {
    let of = |accept: bool, count: usize| {
        let fits = |row: &&Row| row.accept == accept && (8..3000).contains(&row.processed);
        let all: Vec<&Row> = rows.iter().filter(fits).collect();
        let step = (all.len() / count.max(1)).max(1);
        all.into_iter()
            .step_by(step)
            .take(count)
            .collect::<Vec<_>>()
    };
    let refused = count / 3;
    let mut chosen = of(true, count - refused);
    chosen.extend(of(false, refused));
    chosen
}

/// Loads programs into the running kernel, one after the other, and verifies them. Programs
/// that the kernel does not judge (missing maps, modules) are left out.
pub fn pairs(rows: &[&Row], level: u32) -> Result<Vec<Pair>, String> {
    let setting = judge::Machine::read()?;
    let target = setting.target();
    let mut kernel = Kernel::start().map_err(|e| e.to_string())?;
    let mut files: BTreeMap<&str, Vec<&Row>> = BTreeMap::new();
    for row in rows {
        files.entry(&row.file).or_default().push(row);
    }
    let mut pairs = Vec::new();
    for (file, rows) in files {
        let Ok(bytes) = std::fs::read(judge::objects().join(file)) else {
            continue;
        };
        let stem = file.split('.').next().unwrap_or(file);
        let Ok(object) = Object::open(stem, &bytes) else {
            continue;
        };
        pairs.extend(pairs_of(
            &mut kernel,
            &object,
            &rows,
            &setting.btf,
            &target,
            level,
        )?);
    }
    Ok(pairs)
}

fn pairs_of(
    kernel: &mut Kernel,
    object: &Object,
    rows: &[&Row],
    btf: &Btf,
    target: &Target<'_>,
    level: u32,
) -> Result<Vec<Pair>, String> {
    let mut linker = Linker::new(object, target);
    let mut defs = linker.maps();
    for def in &mut defs {
        def.max_entries = def.max_entries.max(1);
    }
    let local = object.btf_for_kernel().ok();
    let local = local.and_then(|bytes| kernel.load_btf(&bytes).ok());
    let (maps, missing) = create(kernel, &defs, local).map_err(|e| e.to_string())?;
    let mut pairs = Vec::new();
    for row in rows {
        let Some(mut program) = object
            .program_index(&row.prog)
            .and_then(|at| linker.link(at).ok())
        else {
            continue;
        };
        let absent = |at: &u32| missing.contains(at);
        if program
            .refs
            .iter()
            .any(|r| matches!(&r.target, RefTarget::Map(at) if absent(at)))
        {
            continue;
        }
        judge::set_types(&mut program, row);
        if local.is_none() {
            // As the kernel sees it.
            program.btf = None;
            program.lines.clear();
        }
        let options = LoadOptions {
            log_level: level,
            log_bytes: LOG_BYTES,
            ..LoadOptions::default()
        };
        let kernels = match kernel.load(&program, &maps, local, &options) {
            Ok((handle, log)) => {
                kernel.unload(handle);
                log
            }
            Err(LoadError::Refused { log, .. }) => log,
            Err(LoadError::Oracle(OracleError::Call(_))) => continue,
            Err(error) => return Err(error.to_string()),
        };
        if !kernels.contains("processed ") {
            continue;
        }
        let mut env = Environment::new(Some(btf));
        env.cpus = 2;
        env.log_level = level;
        pairs.push(Pair {
            name: row.name(),
            ours: verify(&program, &defs, &env).log,
            kernels,
        });
    }
    for map in maps {
        kernel.drop_map(map);
    }
    if let Some(btf) = local {
        kernel.drop_btf(btf);
    }
    Ok(pairs)
}

/// All maps of an object, and the indices of those that the kernel refuses, in whose places
/// stand others.
fn create(
    kernel: &mut Kernel,
    defs: &[MapDef],
    btf: Option<BtfHandle>,
) -> Result<(Vec<MapHandle>, Vec<u32>), OracleError> {
    let (mut maps, mut missing) = (Vec::new(), Vec::new());
    for (at, def) in defs.iter().enumerate() {
        match kernel.create_map(def, btf) {
            Ok(map) => maps.push(map),
            Err(OracleError::Call(_)) => {
                let mut plain = def.clone();
                plain.map_type = MapType::Array;
                (plain.key_size, plain.value_size, plain.max_entries) = (4, 4, 1);
                (plain.flags, plain.extra, plain.inner) = (0, 0, None);
                plain.origin = MapOrigin::Btf;
                maps.push(kernel.create_map(&plain, None)?);
                missing.push(at as u32);
            }
            Err(error) => return Err(error),
        }
    }
    Ok((maps, missing))
}
