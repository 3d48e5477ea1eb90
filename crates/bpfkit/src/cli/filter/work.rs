//! A filter run over a capture.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

use bpfkit_classic::{Context, Dialect, run as interpret};
use bpfkit_jit::Jit;
use bpfkit_pcap::Libpcap;
use bpfkit_runtime::packet::Ancillary;
use bpfkit_runtime::{Engine, Interpreter, PacketCode};
use serde::Serialize;

use super::output::packet_program;
use super::program::Filter;
use super::savefile::{Behind, Reader, Writer};
use super::{Arguments, EngineName};
use crate::cli::failure::{Exit, Failure, Result};
use crate::cli::files::OutputFile;
use crate::cli::{Format, output, progress};

/// Packets between two looks at Ctrl-C.
const POLL: u64 = 4096;

#[derive(Serialize)]
struct Report {
    input: String,
    engine: &'static str,
    packets: u64,
    bytes: u64,
    matched: u64,
    matched_bytes: u64,
    seconds: f64,
}

/// Where packets that match go.
enum Sink {
    Nowhere,
    File(Writer<Behind<OutputFile>>),
    Stdout(Writer<Behind<File>>),
}

pub fn run(arguments: &Arguments, filter: &Filter, reader: Reader, path: &Path) -> Result {
    progress::catch_interrupt();
    let sink = match &arguments.write {
        None => Sink::Nowhere,
        Some(path) if path == Path::new("-") => {
            let fail = |error| write_error(path, &error);
            // Not through the buffer that looks for line ends.
            let out = std::io::stdout().as_fd().try_clone_to_owned();
            let out = Behind::new(File::from(out.map_err(fail)?));
            Sink::Stdout(Writer::new(out, &reader).map_err(fail)?)
        }
        Some(path) => {
            let out = Behind::new(OutputFile::create(path)?);
            Sink::File(Writer::new(out, &reader).map_err(|error| write_error(path, &error))?)
        }
    };
    let nothing = Ancillary::default();
    let compiled = |engine: &dyn Engine| -> Result<std::sync::Arc<dyn PacketCode>> {
        engine
            .load_packet(&packet_program(filter)?)
            .map_err(Failure::program)
    };
    let work = Work {
        arguments,
        path,
        reader,
        sink,
    };
    match arguments.engine {
        EngineName::Jit => {
            let code = compiled(&Jit::default())?;
            work.filter("jit", |data, wire_len| code.run(data, wire_len, &nothing))
        }
        EngineName::Interp => {
            let code = compiled(&Interpreter::default())?;
            work.filter("interp", |data, wire_len| {
                code.run(data, wire_len, &nothing)
            })
        }
        EngineName::Classic => {
            let context = Context::default();
            work.filter("classic", |data, wire_len| {
                let packet = bpfkit_classic::Packet {
                    data,
                    wire_len,
                    context: &context,
                };
                interpret(&filter.program, &packet, Dialect::Libpcap)
            })
        }
        EngineName::Libpcap => {
            let loaded;
            let libpcap = match &filter.libpcap {
                Some(libpcap) => libpcap,
                None => {
                    loaded = Libpcap::load().map_err(Failure::machine)?;
                    &loaded
                }
            };
            let reference = libpcap
                .reference(&filter.program)
                .ok_or_else(|| Failure::input("libpcap refuses the program"))?;
            work.filter("libpcap", |data, wire_len| reference.run(data, wire_len))
        }
    }
}

struct Work<'a> {
    arguments: &'a Arguments,
    path: &'a Path,
    reader: Reader,
    sink: Sink,
}

impl Work<'_> {
    /// Reads, filters, writes, reports.
    fn filter(
        mut self,
        engine: &'static str,
        mut matches: impl FnMut(&[u8], u32) -> u32,
    ) -> Result {
        let mut report = Report {
            input: self.path.display().to_string(),
            engine,
            packets: 0,
            bytes: 0,
            matched: 0,
            matched_bytes: 0,
            seconds: 0.0,
        };
        let limit = self.arguments.count.unwrap_or(u64::MAX);
        let start = Instant::now();
        let mut broken = None;
        while report.matched < limit {
            if report.packets.is_multiple_of(POLL) && progress::interrupted() {
                break;
            }
            let packet = match self.reader.next() {
                Ok(Some(packet)) => packet,
                Ok(None) => break,
                Err(error) => {
                    broken = Some(error.to_string());
                    break;
                }
            };
            report.packets += 1;
            report.bytes += packet.data.len() as u64;
            if matches(packet.data, packet.wire_len) == 0 {
                continue;
            }
            report.matched += 1;
            report.matched_bytes += packet.data.len() as u64;
            let written = match &mut self.sink {
                Sink::Nowhere => Ok(()),
                Sink::File(writer) => writer.write(&packet),
                Sink::Stdout(writer) => writer.write(&packet),
            };
            if let Err(error) = written {
                return Err(self.write_error(&error));
            }
        }
        let interrupted = progress::interrupted();
        self.finish(interrupted)?;
        report.seconds = start.elapsed().as_secs_f64();
        self.report(&report)?;
        if interrupted {
            return Err(Failure {
                message: "interrupted".to_owned(),
                exit: Exit::Interrupted,
            });
        }
        match broken {
            Some(error) => Err(Failure::input(format!(
                "{}: broke off after {} packets, at byte {}: {error}",
                self.path.display(),
                report.packets,
                self.reader.offset()
            ))),
            None => Ok(()),
        }
    }

    /// Completes what is written; a file of an interrupted run disappears.
    fn finish(&mut self, interrupted: bool) -> Result {
        match std::mem::replace(&mut self.sink, Sink::Nowhere) {
            Sink::Nowhere => Ok(()),
            Sink::File(writer) => match writer.into_inner().finish() {
                Ok(_) if interrupted => Ok(()),
                Ok(file) => file.finish(),
                Err(error) => Err(self.write_error(&error)),
            },
            Sink::Stdout(writer) => match writer.into_inner().finish() {
                // A reader that went away is no failure.
                Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
                    Err(self.write_error(&error))
                }
                _ => Ok(()),
            },
        }
    }

    fn write_error(&self, error: &std::io::Error) -> Failure {
        let path = self.arguments.write.as_deref().unwrap_or(Path::new("-"));
        write_error(path, error)
    }

    /// On standard output, unless packets go there.
    fn report(&self, report: &Report) -> Result {
        let to_stdout = self.arguments.write.as_deref() != Some(Path::new("-"));
        match (self.arguments.format, to_stdout) {
            (Format::Json, true) => output::json(report),
            (Format::Text, true) => output::text(&report.text()),
            (_, false) => {
                anstream::eprint!("{}", report.text());
                Ok(())
            }
        }
    }
}

fn write_error(path: &Path, error: &std::io::Error) -> Failure {
    Failure::machine(format!("{}: {error}", path.display()))
}

impl Report {
    fn text(&self) -> String {
        let per_packet = Duration::from_secs_f64(self.seconds / self.packets.max(1) as f64);
        format!(
            "{}: {} of {} packets match ({} of {} bytes), {} ns a packet with {}\n",
            self.input,
            self.matched,
            self.packets,
            self.matched_bytes,
            self.bytes,
            per_packet.as_nanos(),
            self.engine
        )
    }
}
