//! `bpfkit vmtest`: another kernel's verdicts. Boots that kernel under QEMU with an
//! initramfs that holds this program and the objects; the guest has its verifier judge them
//! and the host collects the rows.

mod guest;
mod image;
mod initramfs;
mod judge;
mod machine;

use std::collections::HashSet;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::cli::failure::{Exit, Failure, Result};
use crate::cli::files::{self, OutputFile};
use crate::cli::oracle_rows::OracleRow;
use crate::cli::{output, progress};
use machine::{Arch, Boot, Event, Machine};

/// How often a kernel that falls over programs is booted again for the others.
const BOOTS: usize = 20;
/// Lines of the console that are shown of a machine that failed.
const CONSOLE_LINES: usize = 15;

#[derive(clap::Args)]
#[command(after_help = "\
Verdicts come as JSON, an object a line: accept, reject (the verifier refused), not-loaded (it \
failed outside of the verifier), open-failed, crash and timeout (the kernel did not survive it, \
or did not answer).")]
pub struct Arguments {
    /// Object files
    #[arg(value_name = "OBJECT", required_unless_present = "guest")]
    files: Vec<PathBuf>,
    /// Kernel to boot: an image (vmlinuz), a Debian package or its name, or a version (6.12)
    /// for Debian's newest cloud kernel of it
    #[arg(long, value_name = "KERNEL", required_unless_present_any = ["guest", "here"])]
    kernel: Option<String>,
    /// Ask the running kernel instead of booting one
    #[arg(long, conflicts_with_all = ["kernel", "arch", "bpfkit"])]
    here: bool,
    /// The guest's architecture; this machine's without it
    #[arg(long, value_enum)]
    arch: Option<Arch>,
    /// bpfkit for the guest; this very program without it
    #[arg(long, value_name = "FILE")]
    bpfkit: Option<PathBuf>,
    /// The kernel's configuration; what lies beside the image as config-RELEASE without it
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Write the verdicts to a file
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Give up after so many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 3600)]
    timeout: u64,
    /// The machine's memory in MiB
    #[arg(long, value_name = "MIB", default_value_t = 2048)]
    memory: u32,
    /// QEMU's accelerator; kvm is faster where it works
    #[arg(long, value_name = "NAME", default_value = "tcg")]
    accel: String,
    /// Be the first process of the guest and write to this device
    #[arg(long, hide = true, value_name = "DEVICE")]
    guest: Option<PathBuf>,
}

pub fn run(arguments: &Arguments) -> Result {
    if let Some(device) = &arguments.guest {
        return guest::run(device);
    }
    progress::catch_interrupt();
    let mut sink = Sink::create(arguments.output.as_deref())?;
    let outcome = match arguments.here {
        true => here(arguments, &mut sink),
        false => Run::new(arguments)?.all(&mut sink),
    };
    // What is known by now is kept, whatever happened.
    sink.finish()?;
    outcome
}

/// Where rows go.
struct Sink {
    file: Option<OutputFile>,
    rows: usize,
}

impl Sink {
    fn create(path: Option<&Path>) -> Result<Sink> {
        let file = path.map(OutputFile::create).transpose()?;
        Ok(Sink { file, rows: 0 })
    }

    fn row(&mut self, row: &OracleRow) -> Result {
        let text = serde_json::to_string(row).map_err(Failure::machine)? + "\n";
        self.rows += 1;
        match &mut self.file {
            Some(file) => file.write_all(text.as_bytes()).map_err(Failure::machine),
            None => output::text(&text),
        }
    }

    fn finish(self) -> Result {
        self.file.map_or(Ok(()), OutputFile::finish)
    }
}

fn name_of(path: &Path) -> String {
    let name = path.file_name().unwrap_or(path.as_os_str());
    name.to_string_lossy().into_owned()
}

/// The running kernel's verdicts.
fn here(arguments: &Arguments, sink: &mut Sink) -> Result {
    let mut judge = judge::Judge::start(arguments.config.as_deref())?;
    let bar = progress::items(arguments.files.len() as u64);
    for path in &arguments.files {
        let bytes = files::read(path)?;
        let mut rows = Vec::new();
        let mut begin = |_: Option<&str>| !progress::interrupted();
        let after = judge.object(&name_of(path), &bytes, &mut begin, &mut |row| {
            rows.push(row)
        });
        rows.iter().try_for_each(|row| sink.row(row))?;
        if after == judge::After::Broken {
            return Err(Failure::machine(
                "the kernel does not answer any more, or ended the process that asked",
            ));
        }
        bar.inc(1);
        if progress::interrupted() {
            return Err(Failure {
                message: "interrupted".to_owned(),
                exit: Exit::Interrupted,
            });
        }
    }
    bar.finish_and_clear();
    Ok(())
}

/// A run over several boots.
struct Run<'a> {
    arguments: &'a Arguments,
    arch: Arch,
    image: image::Image,
    /// Kernel configuration, as text.
    config: Option<String>,
    /// Programs that have a row, as the guest is told: number of the file and name.
    done: HashSet<String>,
    deadline: Instant,
    /// Initramfs and console of the machine; gone with this value.
    folder: tempfile::TempDir,
}

/// How a boot ended.
enum End {
    /// Every program has a row.
    All,
    /// The machine went off before; the guest's own words, if it had any.
    Early(Option<String>),
}

impl<'a> Run<'a> {
    fn new(arguments: &'a Arguments) -> Result<Run<'a>> {
        let arch = arguments.arch.unwrap_or(Arch::host());
        if arch != Arch::host() && arguments.bpfkit.is_none() {
            return Err(Failure::input(format!(
                "a guest of another architecture needs a static bpfkit of it: --bpfkit FILE \
                 (cargo build --release --target {}-unknown-linux-musl)",
                arch.def().rust
            )));
        }
        let word = arguments.kernel.as_deref().unwrap_or_default();
        let image = image::Image::find(word, arch.def().debian)?;
        let config = match &arguments.config {
            Some(path) => Some(files::read_text(path)?),
            None => image.config.clone(),
        };
        Ok(Run {
            arguments,
            arch,
            image,
            config,
            done: HashSet::new(),
            deadline: Instant::now() + Duration::from_secs(arguments.timeout),
            folder: tempfile::tempdir().map_err(Failure::machine)?,
        })
    }

    fn all(mut self, sink: &mut Sink) -> Result {
        for _ in 0..BOOTS {
            let before = sink.rows;
            match self.boot(sink)? {
                End::All => return Ok(()),
                // The next boot goes on behind the program that ended this one.
                End::Early(None) if sink.rows > before => {}
                End::Early(why) => {
                    let why = why.unwrap_or_else(|| "no verdict came".to_owned());
                    return Err(Failure::machine(format!(
                        "the guest: {why}\n{}",
                        self.console_end()
                    )));
                }
            }
        }
        Err(Failure::machine(format!("given up after {BOOTS} boots")))
    }

    fn console(&self) -> PathBuf {
        self.folder.path().join("console")
    }

    /// Keeps a line of the kernel's where it has no device of its own.
    fn kernel_says(&self, line: &str) -> Result {
        let mut console = fs::OpenOptions::new().append(true).open(self.console());
        let written = console.as_mut().map(|file| writeln!(file, "{line}"));
        match written {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(Failure::machine(error)),
            Err(error) => Err(Failure::machine(error)),
        }
    }

    fn console_end(&self) -> String {
        let text = fs::read(self.console()).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(CONSOLE_LINES)..].join("\n")
    }

    /// Why the kernel died, in its own words.
    fn last_words(&self) -> String {
        let text = fs::read(self.console()).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let said = text.lines().find(|line| {
            ["BUG:", "Oops", "Kernel panic", "Out of memory"]
                .iter()
                .any(|word| line.contains(word))
        });
        said.unwrap_or("the machine went off").to_owned()
    }

    /// One boot: rows go to the sink, and into the list of what is done.
    fn boot(&mut self, sink: &mut Sink) -> Result<End> {
        let initrd = self.folder.path().join("initramfs");
        fs::write(&initrd, self.initramfs()?).map_err(Failure::machine)?;
        let arguments = format!("vmtest --guest /dev/{}", self.arch.def().results);
        let boot = Boot {
            arch: self.arch,
            accel: &self.arguments.accel,
            memory: self.arguments.memory,
            vmlinuz: &self.image.vmlinuz,
            initrd: &initrd,
            arguments: &arguments,
            console: self.console(),
        };
        let mut machine = Machine::start(&boot)?;
        let bar = progress::items(self.arguments.files.len() as u64);
        let mut number = String::new();
        let mut judged: Option<(String, String)> = None;
        let mut words = None;
        loop {
            let line = match machine.next(self.deadline)? {
                Event::Line(line) => line,
                Event::Off => break,
                Event::Late => {
                    return Err(Failure::machine(format!(
                        "no end after {} seconds (--timeout)",
                        self.arguments.timeout
                    )));
                }
            };
            if line.starts_with('{') {
                // A line that the console broke into stays without verdict.
                if let Ok(row) = serde_json::from_str::<OracleRow>(&line) {
                    let prog = row.prog.as_deref().unwrap_or("-");
                    self.done.insert(format!("{number} {prog}"));
                    judged = None;
                    sink.row(&row)?;
                }
            } else if let Some(begun) = line.strip_prefix("> ") {
                judged = begun
                    .split_once(' ')
                    .map(|(f, p)| (f.to_owned(), p.to_owned()));
            } else if let Some(at) = line.strip_prefix("@object ") {
                number = at.to_owned();
                bar.set_position(at.parse().unwrap_or(0));
            } else if let Some(why) = line.strip_prefix("@failed ") {
                words = Some(why.to_owned());
            } else if line == "@end" {
                bar.finish_and_clear();
                return Ok(End::All);
            } else if self.arch.def().console == self.arch.def().results {
                self.kernel_says(&line)?;
            }
        }
        bar.finish_and_clear();
        if let Some((file, prog)) = judged {
            self.done.insert(format!("{number} {prog}"));
            sink.row(&OracleRow {
                file,
                prog: (prog != "-").then_some(prog),
                verdict: "crash".to_owned(),
                message: self.last_words().into(),
                ..OracleRow::default()
            })?;
        }
        if let Some(complaint) = machine.complaint() {
            words = Some(format!("{}: {complaint}", self.arch.def().qemu));
        }
        Ok(End::Early(words))
    }

    /// The guest's file system, with those objects in it that still have something to judge.
    fn initramfs(&self) -> Result<Vec<u8>> {
        let own = std::env::current_exe().map_err(Failure::machine)?;
        let program = self.arguments.bpfkit.as_deref().unwrap_or(&own);
        let mut archive = initramfs::Archive::new().map_err(Failure::machine)?;
        let mut add =
            |path: &str, bytes: &[u8]| archive.file(path, bytes).map_err(Failure::machine);
        for (path, bytes) in image::program_files(program)? {
            add(&path, &bytes)?;
        }
        if let Some(config) = &self.config {
            add(guest::CONFIG, config.as_bytes())?;
        }
        let done: Vec<&str> = self.done.iter().map(String::as_str).collect();
        add(guest::DONE, done.join("\n").as_bytes())?;
        for (number, path) in self.arguments.files.iter().enumerate() {
            let place = format!("{}/{number}/{}", guest::OBJECTS, name_of(path));
            add(&place, &files::read(path)?)?;
        }
        archive.finish().map_err(Failure::machine)
    }
}
