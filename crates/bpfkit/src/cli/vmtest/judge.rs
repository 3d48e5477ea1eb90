//! Having the running kernel's verifier judge programs, through the oracle.

use std::fs;
use std::path::Path;
use std::time::Duration;

use bpfkit::oracle::{BtfHandle, Kernel, LoadError, LoadOptions, MapHandle, OracleError};
use bpfkit_btf::{Btf, KernelBtf};
use bpfkit_object::{Linker, MapDef, Object, Program, RefTarget, Target};
use bpfkit_spec::{KernelVersion, ProgType};

use crate::cli::failure::{Failure, Result};
use crate::cli::oracle_rows::{self, OracleRow};
use crate::cli::{judge, objects};

/// How long the kernel may take over one call: emulated processors are slow.
const PATIENCE: Duration = Duration::from_secs(600);
/// `BPF_LOG_STATS`: messages and statistics without the instructions walked.
const STATISTICS: u32 = 4;
/// Room for a log of that level.
const LOG_BYTES: usize = 1 << 20;

/// The running kernel and what programs are linked against.
pub struct Judge {
    btf: Btf,
    kconfig: Option<String>,
    kallsyms: Option<String>,
    version: KernelVersion,
    kernel: Kernel,
}

/// Whether the kernel can be asked further.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum After {
    /// It can.
    Well,
    /// The last call did not come back, or ended the process that made it.
    Broken,
}

impl Judge {
    /// The running kernel; `config` is its configuration where `/proc` does not tell it.
    pub fn start(config: Option<&Path>) -> Result<Judge> {
        let btf = fs::read("/sys/kernel/btf/vmlinux")
            .map_err(|error| Failure::machine(format!("/sys/kernel/btf/vmlinux: {error}")))?;
        let btf = Btf::parse(&btf).map_err(Failure::machine)?;
        let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let mut kernel = Kernel::start().map_err(Failure::machine)?;
        kernel.set_patience(PATIENCE);
        let given = config.and_then(|path| fs::read_to_string(path).ok());
        Ok(Judge {
            btf,
            kconfig: given.or_else(objects::running_config),
            kallsyms: fs::read_to_string("/proc/kallsyms").ok(),
            version: release.trim().parse().unwrap_or(KernelVersion::TARGET),
            kernel,
        })
    }

    /// Judges the programs of an object for which `begin` says so; `done` takes each row.
    pub fn object(
        &mut self,
        name: &str,
        bytes: &[u8],
        begin: &mut dyn FnMut(Option<&str>) -> bool,
        done: &mut dyn FnMut(OracleRow),
    ) -> After {
        let Judge {
            btf,
            kconfig,
            kallsyms,
            version,
            kernel,
        } = self;
        let target = Target {
            kernel_btf: KernelBtf::Read(btf),
            kconfig: kconfig.as_deref(),
            kallsyms: kallsyms.as_deref(),
            kernel_version: version.code(),
            ..Target::default()
        };
        let stem = name.split('.').next().unwrap_or_default();
        let object = match Object::open(stem, bytes) {
            Ok(object) => object,
            Err(error) => {
                if begin(None) {
                    done(OracleRow {
                        file: name.to_owned(),
                        verdict: "open-failed".to_owned(),
                        message: error.to_string().into(),
                        ..OracleRow::default()
                    });
                }
                return After::Well;
            }
        };
        let mut linker = Linker::new(&object, &target);
        let maps = judge::sized(linker.maps());
        let types = object.btf_for_kernel().ok();
        let types = types.and_then(|bytes| kernel.load_btf(&bytes).ok());
        let mut made: Option<Vec<Made>> = None;
        let mut after = After::Well;
        for (index, decl) in object.programs.iter().enumerate() {
            if !begin(Some(&decl.name)) {
                continue;
            }
            let mut row = OracleRow {
                file: name.to_owned(),
                prog: Some(decl.name.clone()),
                prog_type: decl.prog_type.name().to_owned(),
                attach_type: decl.attach_type.name().to_owned(),
                insns_in: decl.own_insns,
                ..OracleRow::default()
            };
            let handles = made.get_or_insert_with(|| make_maps(kernel, &maps, types));
            match linked(&mut linker, index, handles) {
                Ok(program) => {
                    row.prog_type = program.decl.prog_type.name().to_owned();
                    row.attach_type = program.decl.attach_type.name().to_owned();
                    after = load(kernel, &program, handles, types, &mut row);
                }
                Err(why) => {
                    row.verdict = "not-loaded".to_owned();
                    row.message = why.into();
                }
            }
            done(row);
            if after == After::Broken {
                return after;
            }
        }
        for map in made.into_iter().flatten().flatten() {
            kernel.drop_map(map);
        }
        if let Some(types) = types {
            kernel.drop_btf(types);
        }
        after
    }
}

type Made = std::result::Result<MapHandle, OracleError>;

fn make_maps(kernel: &mut Kernel, maps: &[MapDef], types: Option<BtfHandle>) -> Vec<Made> {
    let wanted = maps.iter();
    wanted.map(|def| kernel.create_map(def, types)).collect()
}

/// Links a program, and makes sure that what it needs is there.
fn linked(
    linker: &mut Linker<'_>,
    index: usize,
    maps: &[Made],
) -> std::result::Result<Program, String> {
    let mut program = linker.link(index).map_err(|error| error.to_string())?;
    for reference in &program.refs {
        if let RefTarget::Map(map) = reference.target
            && let Some(Err(error)) = maps.get(map as usize)
        {
            return Err(format!("map {map}: {error}"));
        }
    }
    judge::guess(&mut program, true);
    if program.decl.prog_type == ProgType::Unspec {
        return Err("its section names no program type".to_owned());
    }
    if let Err(error) = &program.attach {
        return Err(error.to_string());
    }
    Ok(program)
}

fn load(
    kernel: &mut Kernel,
    program: &Program,
    maps: &[Made],
    types: Option<BtfHandle>,
    row: &mut OracleRow,
) -> After {
    let options = LoadOptions {
        log_level: STATISTICS,
        log_bytes: LOG_BYTES,
        ..LoadOptions::default()
    };
    // A map that is not there is not referred to: any other stands in its place.
    let some = maps.iter().find_map(|map| map.as_ref().ok());
    let handles: Vec<MapHandle> = maps
        .iter()
        .filter_map(|map| map.as_ref().ok().or(some).copied())
        .collect();
    let (errno, log) = match kernel.load(program, &handles, types, &options) {
        Ok((handle, log)) => {
            kernel.unload(handle);
            (0, log)
        }
        Err(LoadError::Refused { errno, log }) => (errno.0, log),
        Err(LoadError::Oracle(error)) => {
            let (verdict, after) = match error {
                OracleError::Stuck => ("timeout", After::Broken),
                OracleError::Died => ("crash", After::Broken),
                _ => ("not-loaded", After::Well),
            };
            row.verdict = verdict.to_owned();
            row.message = error.to_string().into();
            return after;
        }
    };
    let parts = oracle_rows::take_apart(&log);
    let verdict = match (errno, &parts.stats) {
        (0, _) => "accept",
        (_, Some(_)) => "reject",
        (_, None) => "not-loaded",
    };
    row.verdict = verdict.to_owned();
    row.errno = Some(errno);
    if errno != 0 {
        row.message = parts.message.into();
        row.before = Some(parts.before.to_owned());
    }
    row.stats = parts.stats;
    After::Well
}
