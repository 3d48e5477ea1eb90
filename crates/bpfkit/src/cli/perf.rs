//! Files that tell `perf` about compiled programs.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bpfkit_jit::Arch;
use bpfkit_jit::perf::{JitDump, MachineCode, Marker};
use bpfkit_runtime::{Clock, Executable, Host};

use crate::cli::failure::{Failure, Result};

#[derive(clap::Args)]
pub struct PerfArguments {
    /// Write /tmp/perf-PID.map: the names of compiled programs, for perf report
    #[arg(long)]
    perf_map: bool,
    /// Write jit-PID.dump into a directory: code and source lines, for perf inject --jit
    #[arg(long, value_name = "DIR", num_args = 0..=1, default_missing_value = ".")]
    jitdump: Option<PathBuf>,
}

/// What must stay while programs run.
pub struct Written {
    _marker: Option<Marker>,
}

impl PerfArguments {
    /// Whether anything is asked for.
    pub fn wanted(&self) -> bool {
        self.perf_map || self.jitdump.is_some()
    }

    /// Writes the files for programs that were loaded.
    pub fn write(&self, programs: &[Arc<dyn Executable>], host: &dyn Host) -> Result<Written> {
        let locals: Vec<_> = programs
            .iter()
            .map(Arc::clone)
            .filter_map(Executable::local)
            .collect();
        let codes: Vec<MachineCode<'_>> = locals
            .iter()
            .filter_map(|local| bpfkit_jit::machine_code(&**local))
            .collect();
        if !self.wanted() {
            return Ok(Written { _marker: None });
        }
        if codes.is_empty() {
            let why = "--perf-map and --jitdump need --engine jit";
            return Err(Failure::input(why));
        }
        let pid = std::process::id();
        if self.perf_map {
            let lines: String = codes.iter().map(MachineCode::perf_map).collect();
            let path = PathBuf::from(format!("/tmp/perf-{pid}.map"));
            create(&path)?
                .write_all(lines.as_bytes())
                .map_err(|error| failed(&path, &error))?;
        }
        let mut marker = None;
        if let (Some(directory), Some(arch)) = (&self.jitdump, Arch::HOST) {
            let path = directory.join(format!("jit-{pid}.dump"));
            let mut file = create(&path)?;
            let time = host.now(Clock::Monotonic);
            let (mut dump, mut bytes) = JitDump::new(arch, pid, time);
            for code in &codes {
                bytes.extend(dump.load(code, time));
            }
            bytes.extend(dump.close(time));
            file.write_all(&bytes)
                .map_err(|error| failed(&path, &error))?;
            marker = Some(Marker::new(&file).map_err(|error| failed(&path, &error))?);
        }
        Ok(Written { _marker: marker })
    }
}

fn create(path: &Path) -> Result<File> {
    let options = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(path);
    options.map_err(|error| failed(path, &error))
}

fn failed(path: &Path, error: &std::io::Error) -> Failure {
    Failure::machine(format!("{}: {error}", path.display()))
}
