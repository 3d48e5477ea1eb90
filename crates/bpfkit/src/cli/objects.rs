//! Opening objects and linking programs, as several commands do.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use bpfkit_btf::{Btf, KernelBtf, LazyBtf};
use bpfkit_object::{Object, Target};

use crate::cli::failure::{Failure, Result};
use crate::cli::files;

/// Where Linux keeps its BTF.
const KERNEL_BTF: &str = "/sys/kernel/btf/vmlinux";

/// Options of every command that links programs.
#[derive(clap::Args)]
pub struct LinkArguments {
    /// BTF of the kernel to relocate against; this machine's if it has one
    #[arg(long, value_name = "FILE")]
    btf: Option<PathBuf>,
    /// Kernel configuration for .kconfig variables (text); this machine's if it tells it
    #[arg(long, value_name = "FILE")]
    kconfig: Option<PathBuf>,
}

/// What a program is linked against, read from files.
pub struct Kernel {
    btf: Option<LazyBtf>,
    kconfig: Option<String>,
    /// The BTF is this machine's.
    is_running: bool,
    /// Symbols of the running kernel, read when first asked for.
    symbols: OnceLock<HashSet<String>>,
}

/// Helpers that a kernel has only if it was built with an option.
const CONFIGURED_HELPERS: [(&str, &[&str]); 1] =
    [("CONFIG_BPF_KPROBE_OVERRIDE=y", &["override_return"])];

impl LinkArguments {
    /// Reads the files that the options name.
    pub fn read(&self) -> Result<Kernel> {
        let btf = match &self.btf {
            Some(path) => {
                let btf = parse_btf(path)?;
                Some(LazyBtf::new(|| Some(btf)))
            }
            None if Path::new(KERNEL_BTF).exists() => Some(LazyBtf::new(running_btf)),
            None => None,
        };
        let kconfig = match &self.kconfig {
            Some(path) => Some(files::read_text(path)?),
            None => running_config(),
        };
        Ok(Kernel {
            btf,
            kconfig,
            is_running: self.btf.is_none(),
            symbols: OnceLock::new(),
        })
    }
}

impl Kernel {
    /// Its BTF, if there is one; this machine's is read when first asked for.
    pub fn btf(&self) -> KernelBtf<'_> {
        self.btf.as_ref().map_or(KernelBtf::None, KernelBtf::Later)
    }

    /// Whether the kernel has a symbol; of another than the running one, every symbol.
    pub fn has_symbol(&self, name: &str) -> bool {
        if !self.is_running {
            return true;
        }
        let symbols = self.symbols.get_or_init(|| {
            let text = fs::read_to_string("/proc/kallsyms").unwrap_or_default();
            let names = text
                .lines()
                .filter_map(|line| line.split_whitespace().nth(2));
            names.map(str::to_owned).collect()
        });
        symbols.is_empty() || symbols.contains(name)
    }

    /// Helpers that its configuration leaves out.
    pub fn absent_helpers(&self) -> &'static [&'static str] {
        let Some(text) = &self.kconfig else {
            return &[];
        };
        let absent = CONFIGURED_HELPERS
            .iter()
            .find(|(option, _)| !text.lines().any(|line| line == *option));
        absent.map_or(&[], |(_, helpers)| helpers)
    }

    /// As the linker takes it.
    pub fn target(&self) -> Target<'_> {
        Target {
            kernel_btf: self.btf(),
            kconfig: self.kconfig.as_deref(),
            ..Target::default()
        }
    }
}

/// The running kernel's configuration, where it tells.
pub fn running_config() -> Option<String> {
    let mut text = String::new();
    let file = File::open("/proc/config.gz").ok()?;
    flate2::read::GzDecoder::new(file)
        .read_to_string(&mut text)
        .ok()?;
    Some(text)
}

/// This machine's BTF; where it cannot be used, a warning, and none.
fn running_btf() -> Option<Btf> {
    parse_btf(Path::new(KERNEL_BTF))
        .inspect_err(|failure| anstream::eprintln!("warning: {}", failure.message))
        .ok()
}

fn parse_btf(path: &Path) -> Result<Btf> {
    Btf::parse(&files::read(path)?)
        .map_err(|error| Failure::input(format!("{}: {error}", path.display())))
}

/// Reads and opens an object.
pub fn open(path: &Path) -> Result<Object> {
    parse(path, &files::read(path)?)
}

/// Opens an object that was read from that path.
pub fn parse(path: &Path, bytes: &[u8]) -> Result<Object> {
    let name = path
        .file_name()
        .unwrap_or(path.as_os_str())
        .to_string_lossy();
    // libbpf takes the file name up to its first dot as the object's name.
    let name = name.split('.').next().unwrap_or_default();
    Object::open(name, bytes)
        .map_err(|error| Failure::input(format!("{}: {error}", path.display())))
}

/// The name of the program to use: the one asked for, or the only one.
pub fn choose<'a>(object: &'a Object, path: &Path, asked: Option<&'a str>) -> Result<&'a str> {
    let names: Vec<&str> = object
        .programs
        .iter()
        .map(|decl| decl.name.as_str())
        .collect();
    let file = path.display();
    match (asked, names.as_slice()) {
        (Some(name), _) if names.contains(&name) => Ok(name),
        (Some(name), _) => Err(Failure::input(format!(
            "{file}: no program {name:?}; there are: {}",
            names.join(", ")
        ))),
        (None, [only]) => Ok(only),
        (None, []) => Err(Failure::input(format!("{file}: the object has no program"))),
        (None, _) => Err(Failure::input(format!(
            "{file}: several programs, choose one with --prog: {}",
            names.join(", ")
        ))),
    }
}
