//! Packet captures: pcap and pcapng in, pcap out, one packet at a time.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use pcap_file::pcap::{PcapHeader, PcapReader, PcapWriter, RawPcapPacket};
use pcap_file::pcapng::blocks::interface_description::InterfaceDescriptionOption;
use pcap_file::pcapng::{Block, PcapNgReader};
use pcap_file::{DataLink, PcapError, TsResolution};

use crate::cli::failure::{Failure, Result};
use crate::cli::files::OutputFile;

/// A packet as captured.
pub struct Frame {
    /// Time since 1970.
    pub time: Duration,
    /// Length on the wire; the data may be shorter.
    pub wire_len: u32,
}

/// A capture being read.
pub struct Capture {
    path: PathBuf,
    format: Format,
    link: DataLink,
    /// Bytes of the file consumed so far, to say where it broke off.
    offset: u64,
    packets: u64,
}

enum Format {
    Pcap(PcapReader<Box<dyn Read>>, TsResolution),
    PcapNg(PcapNgReader<Box<dyn Read>>),
}

/// First four bytes of a pcapng section header block.
const PCAPNG_MAGIC: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];
const PCAP_HEADER_BYTES: u64 = 24;
const PCAP_RECORD_BYTES: u64 = 16;

impl Capture {
    /// Opens a capture of either format; `-` is standard input.
    pub fn open(path: &Path) -> Result<Self> {
        let fail =
            |error: &dyn std::fmt::Display| Failure::input(format!("{}: {error}", path.display()));
        let mut source: Box<dyn Read> = match path == Path::new("-") {
            true => Box::new(std::io::stdin()),
            false => Box::new(BufReader::with_capacity(
                1 << 18,
                File::open(path).map_err(|error| fail(&error))?,
            )),
        };
        let mut magic = [0u8; 4];
        source
            .read_exact(&mut magic)
            .map_err(|_| fail(&"not a capture: shorter than any pcap header"))?;
        let source: Box<dyn Read> = Box::new(std::io::Cursor::new(magic).chain(source));
        let (format, link, offset) = if magic == PCAPNG_MAGIC {
            let reader = PcapNgReader::new(source)
                .map_err(|error| fail(&format!("not a capture: {}", describe(&error))))?;
            // The link type stands in an interface block, which comes before any packet.
            (Format::PcapNg(reader), DataLink::ETHERNET, 0)
        } else {
            let reader = PcapReader::new(source)
                .map_err(|error| fail(&format!("not a capture: {}", describe(&error))))?;
            let header = reader.header();
            let format = Format::Pcap(reader, header.ts_resolution);
            (format, header.datalink, PCAP_HEADER_BYTES)
        };
        Ok(Capture {
            path: path.to_owned(),
            format,
            link,
            offset,
            packets: 0,
        })
    }

    /// Link type of the packets read so far (pcapng tells it with the first packet).
    pub fn link(&self) -> DataLink {
        self.link
    }

    /// Bytes of the file, 0 where it is not known.
    pub fn len(&self) -> u64 {
        std::fs::metadata(&self.path).map_or(0, |file| file.len())
    }

    /// Packets read so far.
    pub fn packets(&self) -> u64 {
        self.packets
    }

    /// Bytes of the file consumed so far.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Reads the next packet into `data`, or returns `None` at the end.
    pub fn next(&mut self, data: &mut Vec<u8>) -> Result<Option<Frame>> {
        let frame = match &mut self.format {
            Format::Pcap(reader, resolution) => next_pcap(reader, *resolution, data),
            Format::PcapNg(reader) => next_pcapng(reader, &mut self.link, &mut self.offset, data),
        };
        match frame {
            Ok(Some(frame)) => {
                self.packets += 1;
                if matches!(self.format, Format::Pcap(..)) {
                    self.offset += PCAP_RECORD_BYTES + data.len() as u64;
                }
                Ok(Some(frame))
            }
            Ok(None) => Ok(None),
            Err(error) => Err(Failure::input(format!(
                "{}: broke off after {} packets, at byte {}: {}",
                self.path.display(),
                self.packets,
                self.offset,
                describe(&error)
            ))),
        }
    }
}

/// What `PcapError` means, with the cause it keeps apart.
fn describe(error: &PcapError) -> String {
    match error {
        PcapError::IoError(cause) if cause.kind() == std::io::ErrorKind::UnexpectedEof => {
            "the file ends inside a record".to_owned()
        }
        PcapError::IoError(cause) => cause.to_string(),
        PcapError::InvalidField(field) => format!("an invalid field: {field}"),
        other => other.to_string(),
    }
}

fn next_pcap(
    reader: &mut PcapReader<Box<dyn Read>>,
    resolution: TsResolution,
    data: &mut Vec<u8>,
) -> std::result::Result<Option<Frame>, PcapError> {
    // The raw form: the checked one refuses packets longer than the snap length,
    // which every capture with a snap length has.
    let Some(packet) = reader.next_raw_packet() else {
        return Ok(None);
    };
    let packet = packet?;
    data.clear();
    data.extend_from_slice(&packet.data);
    let fraction = u64::from(packet.ts_frac);
    let fraction = match resolution {
        TsResolution::MicroSecond => Duration::from_micros(fraction),
        TsResolution::NanoSecond => Duration::from_nanos(fraction),
    };
    let time = Duration::from_secs(packet.ts_sec.into()) + fraction;
    Ok(Some(Frame {
        time,
        wire_len: packet.orig_len,
    }))
}

fn next_pcapng(
    reader: &mut PcapNgReader<Box<dyn Read>>,
    link: &mut DataLink,
    offset: &mut u64,
    data: &mut Vec<u8>,
) -> std::result::Result<Option<Frame>, PcapError> {
    // The library gives timestamps as if every interface counted nanoseconds.
    let mut units = 0;
    let (interface, wire_len) = loop {
        let Some(block) = reader.next_block() else {
            return Ok(None);
        };
        match block? {
            Block::EnhancedPacket(packet) => {
                fill(data, &packet.data, offset);
                units = packet.timestamp.as_nanos();
                break (packet.interface_id, packet.original_len);
            }
            Block::SimplePacket(packet) => {
                fill(data, &packet.data, offset);
                break (0, packet.original_len);
            }
            Block::Packet(packet) => {
                fill(data, &packet.data, offset);
                units = u128::from(packet.timestamp);
                break (packet.interface_id.into(), packet.original_len);
            }
            _ => {}
        }
    };
    let mut resolution = 6;
    if let Some(interface) = reader.interfaces().get(interface as usize) {
        *link = interface.linktype;
        for option in &interface.options {
            if let InterfaceDescriptionOption::IfTsResol(value) = option {
                resolution = *value;
            }
        }
    }
    Ok(Some(Frame {
        time: from_units(units, resolution),
        wire_len,
    }))
}

fn fill(data: &mut Vec<u8>, bytes: &[u8], offset: &mut u64) {
    data.clear();
    data.extend_from_slice(bytes);
    *offset += bytes.len() as u64;
}

/// Time in units of `if_tsresol`: a negative power of ten, or of two if the top bit is set.
fn from_units(units: u128, resolution: u8) -> Duration {
    let exponent = u32::from(resolution & 0x7f);
    let per_second = match resolution & 0x80 {
        0 => 10u128.checked_pow(exponent),
        _ => 1u128.checked_shl(exponent),
    };
    let Some(per_second) = per_second.filter(|&n| n > 0) else {
        return Duration::ZERO;
    };
    let seconds = u64::try_from(units / per_second).unwrap_or(u64::MAX);
    let rest = (units % per_second).saturating_mul(1_000_000_000) / per_second;
    Duration::new(seconds, u32::try_from(rest).unwrap_or(0))
}

/// A capture being written (pcap, nanosecond stamps).
pub struct CaptureWriter {
    writer: PcapWriter<OutputFile>,
    path: PathBuf,
}

impl CaptureWriter {
    /// Begins a capture of that link type.
    pub fn create(path: &Path, link: DataLink) -> Result<Self> {
        let header = PcapHeader {
            snaplen: 262_144,
            datalink: link,
            ts_resolution: TsResolution::NanoSecond,
            ..PcapHeader::default()
        };
        let writer =
            PcapWriter::with_header(OutputFile::create(path)?, header).map_err(|error| {
                Failure::machine(format!("{}: {}", path.display(), describe(&error)))
            })?;
        Ok(CaptureWriter {
            writer,
            path: path.to_owned(),
        })
    }

    /// Appends a packet.
    pub fn write(&mut self, time: Duration, wire_len: u32, data: &[u8]) -> Result {
        let packet = RawPcapPacket {
            ts_sec: u32::try_from(time.as_secs()).unwrap_or(u32::MAX),
            ts_frac: time.subsec_nanos(),
            incl_len: data.len() as u32,
            orig_len: wire_len.max(data.len() as u32),
            data: data.into(),
        };
        match self.writer.write_raw_packet(&packet) {
            Ok(_) => Ok(()),
            Err(error) => {
                let text = describe(&error);
                Err(Failure::machine(format!("{}: {text}", self.path.display())))
            }
        }
    }

    /// Completes the file.
    pub fn finish(self) -> Result {
        self.writer.into_writer().finish()
    }
}

#[cfg(test)]
mod tests {
    use super::from_units;
    use std::time::Duration;

    #[test]
    fn timestamp_units_of_pcapng() {
        assert_eq!(from_units(1_500_000, 6), Duration::from_millis(1500));
        assert_eq!(from_units(1_500_000_000, 9), Duration::from_millis(1500));
        assert_eq!(from_units(3 << 9, 0x80 | 10), Duration::from_millis(1500));
        assert_eq!(from_units(7, 0x7f), Duration::ZERO);
    }
}
