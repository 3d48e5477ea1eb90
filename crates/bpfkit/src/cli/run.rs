//! `bpfkit run`: a program on a capture, a packet, or a context.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use bpfkit::kernel::KernelEngine;
use bpfkit::{Checks, MapOptions, Session, SessionOptions};
use bpfkit_btf::KernelBtf;
use bpfkit_jit::Arch;
use bpfkit_object::Object;
use bpfkit_runtime::context::{Input, InputError};
use bpfkit_runtime::{Engine, Executable, Interpreter, Outcome, Vm};
use bpfkit_spec::ProgType;
use clap::ValueEnum;
use pcap_file::DataLink;

use crate::cli::capture::{Capture, CaptureWriter, Frame};
use crate::cli::events::Reader;
use crate::cli::failure::{Exit, Failure, Result};
use crate::cli::host::MachineHost;
use crate::cli::jit::RuleArguments;
use crate::cli::map_words::{self, Snapshot, View};
use crate::cli::objects::{self, LinkArguments};
use crate::cli::perf::PerfArguments;
use crate::cli::report::{Parts, Report, Single, Tally, Trace};
use crate::cli::values::Layout;
use crate::cli::{Format, files, hex, output, progress, raw};

/// Changed elements shown for each map.
const SAMPLE: usize = 8;
/// Runs between two looks into ring buffers.
const POLL: u64 = 64;

#[derive(clap::Args)]
pub struct Arguments {
    /// Object file; - is standard input
    #[arg(required_unless_present = "raw", conflicts_with = "raw")]
    object: Option<PathBuf>,
    /// Program to run; may be left out where the object has one
    #[arg(short, long, value_name = "NAME")]
    prog: Option<String>,
    /// Capture (pcap or pcapng) to run on, packet by packet; - is standard input
    #[arg(long, value_name = "FILE", conflicts_with_all = ["data", "raw"])]
    pcap: Option<PathBuf>,
    /// Capture to write: the packets that the program lets pass, as it leaves them
    #[arg(long, value_name = "FILE", requires = "pcap")]
    write: Option<PathBuf>,
    /// One packet, as hex digits or @FILE; with --raw, the memory R1 points to
    #[arg(long, value_name = "HEX|@FILE")]
    pub data: Option<String>,
    /// Context (struct __sk_buff, pt_regs, arguments …), as hex digits or @FILE
    #[arg(long, value_name = "HEX|@FILE", conflicts_with = "raw")]
    ctx: Option<String>,
    /// Run that many times on each packet
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    pub repeat: u64,
    /// Stop after that many packets
    #[arg(short = 'c', long, value_name = "N", requires = "pcap")]
    count: Option<u64>,
    /// Put elements into a map first: NAME=KEY:VALUE,… or NAME=@FILE.json (may repeat)
    #[arg(long = "map", value_name = "NAME=…", conflicts_with = "raw")]
    maps: Vec<String>,
    /// Set a global variable first: NAME=VALUE (may repeat)
    #[arg(long = "global", value_name = "NAME=VALUE", conflicts_with = "raw")]
    globals: Vec<String>,
    /// Print all maps afterwards
    #[arg(long, value_enum, value_name = "FORMAT", num_args = 0..=1, default_missing_value = "json")]
    dump_maps: Option<Format>,
    /// What runs the program
    #[arg(long, value_enum, default_value_t = EngineName::default())]
    pub engine: EngineName,
    #[command(flatten)]
    pub rules: RuleArguments,
    #[command(flatten)]
    perf: PerfArguments,
    /// Have the verifier judge the program first: refused, it does not run; accepted, it runs
    /// without checks
    #[arg(long, conflicts_with_all = ["raw", "steps"])]
    verify: bool,
    /// Print bpf_printk lines as they come
    #[arg(long)]
    trace: bool,
    /// Instructions that one run may execute
    #[arg(long, value_name = "N", default_value_t = 1_000_000_000)]
    pub steps: u64,
    /// Seed of bpf_get_prandom_u32
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Time in ns that all clocks show, instead of this machine's
    #[arg(long, value_name = "NS")]
    time: Option<u64>,
    /// Read a program as hex digits from standard input, print R0 in hexadecimal
    #[arg(long)]
    raw: bool,
    /// Output format
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
    #[command(flatten)]
    link: LinkArguments,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum EngineName {
    /// The interpreter
    Interp,
    /// The compiler for this processor
    Jit,
    /// The running kernel, by BPF_PROG_TEST_RUN
    Kernel,
}

/// An engine that was started.
pub struct Started {
    /// The engine.
    pub engine: Box<dyn Engine>,
    /// Values that per-CPU maps are made with.
    cpus: u32,
    /// The kernel, whose maps are copied back after the run.
    kernel: Option<KernelEngine>,
}

impl Default for EngineName {
    /// The compiler, where there is one.
    fn default() -> Self {
        match Arch::HOST {
            Some(_) => EngineName::Jit,
            None => EngineName::Interp,
        }
    }
}

impl EngineName {
    /// Starts the engine.
    pub fn start(self, arguments: &Arguments) -> Result<Started> {
        match self {
            EngineName::Interp => Ok(Started {
                engine: Box::new(Interpreter::default()),
                cpus: 1,
                kernel: None,
            }),
            EngineName::Jit => Ok(Started {
                engine: Box::new(match arguments.perf.wanted() {
                    true => arguments.rules.jit()?.with_parts(),
                    false => arguments.rules.jit()?,
                }),
                cpus: 1,
                kernel: None,
            }),
            EngineName::Kernel => {
                let kernel = KernelEngine::start().map_err(Failure::machine)?;
                let engine = Box::new(kernel.clone());
                Ok(Started {
                    engine,
                    cpus: kernel.cpus(),
                    kernel: Some(kernel),
                })
            }
        }
    }
}

pub fn run(arguments: &Arguments) -> Result {
    let Some(path) = &arguments.object else {
        return raw::run(arguments);
    };
    let mut object = objects::open(path)?;
    let name = objects::choose(&object, path, arguments.prog.as_deref())?.to_owned();
    for option in &arguments.globals {
        set_global(&mut object, option)?;
    }
    let kernel = arguments.link.read()?;
    let btf = object.btf.clone();
    let Started {
        engine,
        cpus,
        kernel: in_kernel,
    } = arguments.engine.start(arguments)?;
    let engine_name = engine.name();
    let maps = MapOptions { cpus };
    let options = SessionOptions {
        target: kernel.target(),
        engine,
        maps,
        checks: match arguments.verify {
            true => Checks::Verified,
            false => Checks::AsItRuns,
        },
    };
    let session = Session::with(object, options).map_err(Failure::input)?;
    let views = View::all(session.maps(), btf.as_deref());
    for option in &arguments.maps {
        map_words::apply(&views, option)?;
    }
    let executable = session.load(&name).map_err(Failure::program)?;
    let host = Arc::new(MachineHost::new(
        arguments.seed,
        arguments.time,
        arguments.trace,
    ));
    let _perf = arguments.perf.write(&session.loaded(), &*host)?;
    let mut vm = Vm::new(0, Arc::clone(&host) as _);
    vm.step_limit = arguments.steps;

    progress::catch_interrupt();
    let before = Snapshot::take(&views);
    let mut runner = Runner {
        arguments,
        executable: &*executable,
        ctx: arguments.ctx.as_deref().map(bytes_of).transpose()?,
        vm,
        kernel_btf: kernel.btf(),
        tally: Tally::new(executable.program().decl.prog_type),
        events: Reader::open(&views),
    };
    let (input, single, broken) = match &arguments.pcap {
        Some(capture) => {
            let broken = runner.run_capture(Capture::open(capture)?)?;
            (capture.display().to_string(), None, broken)
        }
        None => {
            let (input, single) = runner.run_once()?;
            (input, Some(single), None)
        }
    };
    if let Some(in_kernel) = in_kernel {
        in_kernel
            .read_maps_back(session.maps())
            .map_err(Failure::machine)?;
    }
    let (lines, count) = host.trace_lines();
    let parts = Parts {
        program: name,
        engine: engine_name,
        input,
        interrupted: progress::interrupted(),
        single,
        trace: Trace { count, lines },
        events: runner.events.finish(),
        map_changes: before.changes(&views, SAMPLE),
        maps: arguments.dump_maps.map(|_| {
            views
                .iter()
                .filter(|view| view.readable())
                .map(View::dump)
                .collect()
        }),
    };
    let tally = runner.tally;
    let fault = tally.first_fault().map(str::to_owned);
    finish(arguments, Report::new(tally, parts), fault, broken)
}

/// Prints the report, then says in the exit code what went wrong.
fn finish(
    arguments: &Arguments,
    mut report: Report,
    fault: Option<String>,
    broken: Option<Failure>,
) -> Result {
    let dumps = match (arguments.format, arguments.dump_maps) {
        // Text with maps as JSON: the maps alone on standard output, for a pipe.
        (Format::Text, Some(Format::Json)) => report.take_maps(),
        _ => None,
    };
    match (arguments.format, dumps) {
        (Format::Json, _) => output::json(&report)?,
        (Format::Text, None) => output::text(&report.text())?,
        (Format::Text, Some(dumps)) => {
            anstream::eprint!("{}", report.text());
            output::json(&dumps)?;
        }
    }
    if let Some(broken) = broken {
        return Err(broken);
    }
    if progress::interrupted() {
        return Err(Failure {
            message: "interrupted".to_owned(),
            exit: Exit::Interrupted,
        });
    }
    match fault {
        Some(fault) => Err(Failure::program(fault)),
        None => Ok(()),
    }
}

fn set_global(object: &mut Object, option: &str) -> Result {
    let wrong =
        |error: &dyn std::fmt::Display| Failure::input(format!("--global {option}: {error}"));
    let (name, word) = option
        .split_once('=')
        .ok_or_else(|| wrong(&"expected NAME=VALUE"))?;
    let global = object
        .globals
        .iter()
        .find(|global| global.name == name)
        .ok_or_else(|| {
            let names: Vec<&str> = object
                .globals
                .iter()
                .map(|global| global.name.as_str())
                .collect();
            wrong(&format!(
                "no global {name:?}; there are: {}",
                names.join(", ")
            ))
        })?;
    let layout = Layout::new(
        object.btf.as_deref(),
        global.type_id,
        global.range.len() as u32,
        false,
    );
    let bytes = layout.encode_word(word).map_err(|error| wrong(&error))?;
    object
        .set_global(name, &bytes)
        .map_err(|error| wrong(&error))
}

/// Hex digits, or `@FILE` for the bytes of a file.
pub fn bytes_of(word: &str) -> Result<Vec<u8>> {
    match word.strip_prefix('@') {
        Some(path) => files::read(path.as_ref()),
        None => hex::parse(word),
    }
}

struct Runner<'a> {
    arguments: &'a Arguments,
    executable: &'a dyn Executable,
    /// Context bytes given on the command line.
    ctx: Option<Vec<u8>>,
    /// BTF of the kernel that the program is linked against.
    kernel_btf: KernelBtf<'a>,
    vm: Vm,
    tally: Tally,
    events: Reader<'a>,
}

impl Runner<'_> {
    fn prog_type(&self) -> ProgType {
        self.executable.program().decl.prog_type
    }

    /// Runs on one input, given or the default for the type.
    fn run_once(&mut self) -> Result<(String, Single)> {
        let prog_type = self.prog_type();
        let data = self.arguments.data.as_deref().map(bytes_of).transpose()?;
        let (input, what) = match (&data, &self.ctx) {
            (Some(data), _) => (
                self.new_input(data),
                format!("a packet of {} bytes", data.len()),
            ),
            (None, Some(ctx)) => (
                Input::context(prog_type, ctx),
                format!("a context of {} bytes", ctx.len()),
            ),
            (None, None) => (Input::default_for(prog_type), "an empty input".to_owned()),
        };
        let mut input = input.map_err(Failure::input)?;
        let bytes = data.as_ref().map_or(0, Vec::len) as u64;
        let mut last = Outcome::default();
        for _ in 0..self.arguments.repeat {
            if progress::interrupted() {
                break;
            }
            if let Some(data) = data.as_ref().filter(|_| input.has_packet()) {
                input.set_packet(data).map_err(Failure::input)?;
            }
            last = self.timed(&mut input, bytes);
        }
        let (mut data_out, mut ctx_out) = (Vec::new(), Vec::new());
        if input.has_packet() {
            input.copy_packet(&mut data_out);
        }
        if self.ctx.is_some() {
            input.copy_ctx_out(&mut ctx_out);
        }
        let digits = |bytes: &[u8]| (!bytes.is_empty()).then(|| hex::format(bytes));
        let single = Single {
            ret: last.ret,
            data: digits(&data_out),
            ctx: digits(&ctx_out),
        };
        Ok((what, single))
    }

    fn timed(&mut self, input: &mut Input, bytes: u64) -> Outcome {
        let start = Instant::now();
        let outcome = self.executable.run(&mut self.vm, input);
        self.tally.time += outcome.duration.unwrap_or_else(|| start.elapsed());
        self.tally.add(&outcome, bytes);
        if self.tally.runs().is_multiple_of(POLL) {
            self.events.poll();
        }
        outcome
    }

    /// Runs on every packet of a capture. A capture that breaks off is returned as a
    /// failure to report after what was read.
    fn run_capture(&mut self, mut capture: Capture) -> Result<Option<Failure>> {
        let bar = progress::bytes(capture.len());
        let limit = self.arguments.count.unwrap_or(u64::MAX);
        let mut input: Option<Input> = None;
        let mut writer: Option<CaptureWriter> = None;
        let (mut packet, mut out) = (Vec::new(), Vec::new());
        let mut broken = None;
        while capture.packets() < limit && !progress::interrupted() {
            let frame = match capture.next(&mut packet) {
                Ok(Some(frame)) => frame,
                Ok(None) => break,
                Err(failure) => {
                    broken = Some(failure);
                    break;
                }
            };
            if capture.packets().is_multiple_of(4096) {
                bar.set_position(capture.offset());
                bar.set_message(format!("{} packets", capture.packets()));
            }
            let Some(ready) = self.place(&mut input, &packet)? else {
                self.tally.skip();
                continue;
            };
            let mut outcome = self.timed(ready, packet.len() as u64);
            for _ in 1..self.arguments.repeat {
                if ready.has_packet() {
                    ready.set_packet(&packet).map_err(Failure::input)?;
                }
                outcome = self.timed(ready, packet.len() as u64);
            }
            if let Some(path) = &self.arguments.write {
                let writer = match &mut writer {
                    Some(writer) => writer,
                    none => none.insert(CaptureWriter::create(path, capture.link())?),
                };
                if passes(self.prog_type(), &outcome) {
                    out.clear();
                    ready.copy_packet(&mut out);
                    write(writer, &frame, &packet, &out)?;
                }
            }
        }
        bar.finish_and_clear();
        match (writer, &self.arguments.write) {
            (Some(writer), _) => writer.finish()?,
            (None, Some(path)) => CaptureWriter::create(path, DataLink::ETHERNET)?.finish()?,
            (None, None) => {}
        }
        Ok(broken)
    }

    /// Puts a packet into the input, making it with the first one; `None` where the
    /// packet does not suit the program type.
    fn place<'i>(
        &self,
        input: &'i mut Option<Input>,
        packet: &[u8],
    ) -> Result<Option<&'i mut Input>> {
        let placed = match input {
            Some(ready) if ready.has_packet() => ready.set_packet(packet),
            // The first packet, or a context that is made anew for each.
            _ => self.new_input(packet).map(|made| *input = Some(made)),
        };
        match placed {
            Ok(()) => Ok(input.as_mut()),
            Err(InputError::TooShort(_) | InputError::TooLong(_)) => Ok(None),
            Err(error) => Err(Failure::input(error)),
        }
    }

    fn new_input(&self, packet: &[u8]) -> std::result::Result<Input, InputError> {
        if self.prog_type() == ProgType::Netfilter
            && let Some(btf) = self.kernel_btf.get()
        {
            return Input::netfilter(packet, btf);
        }
        let mut input = Input::packet(self.prog_type(), packet)?;
        if let Some(ctx) = &self.ctx {
            input.set_context(ctx)?;
        }
        Ok(input)
    }
}

/// Whether a packet goes on its way: what `--write` keeps.
fn passes(prog_type: ProgType, outcome: &Outcome) -> bool {
    if outcome.fault.is_some() {
        return false;
    }
    let value = outcome.ret as u32;
    match prog_type {
        // XDP_PASS, XDP_TX, XDP_REDIRECT.
        ProgType::Xdp => (2..=4).contains(&value),
        // All but TC_ACT_SHOT and TC_ACT_STOLEN.
        ProgType::SchedCls | ProgType::SchedAct => value != 2 && value != 4,
        ProgType::SocketFilter | ProgType::Netfilter => value != 0,
        ProgType::CgroupSkb => value & 1 == 1,
        _ => value == 0,
    }
}

fn write(writer: &mut CaptureWriter, frame: &Frame, packet: &[u8], out: &[u8]) -> Result {
    // What the capture had cut off is still missing.
    let cut = frame.wire_len.saturating_sub(packet.len() as u32);
    writer.write(frame.time, out.len() as u32 + cut, out)
}
