//! Captures as tcpdump reads and writes them, at the speed of memory: packets are read where
//! they lie in a large buffer, and written as they were read.
//!
//! What is read, how times are scaled and what is an error are libpcap's (`pcap-savefile(5)`,
//! the pcapng specification), so that what is written is what `tcpdump -r … -w …` writes.

mod pcapng;
mod stream;

use std::io::{self, Read, Write};

use super::link;
use pcapng::Interfaces;
pub use stream::Behind;
use stream::Source;

/// Magic numbers: microseconds, nanoseconds, and Kuznetzov's longer records.
const MICRO: u32 = 0xa1b2_c3d4;
const NANO: u32 = 0xa1b2_3c4d;
const KUZNETZOV: u32 = 0xa1b2_cd34;

const FILE_HEADER: usize = 24;
const RECORD_HEADER: usize = 16;
/// A record's header with Kuznetzov's interface, protocol and packet type.
const LONG_RECORD_HEADER: usize = 24;

/// Why a capture cannot be read on.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// Reading failed.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// What is read is no capture, or not one of a kind that is understood.
    #[error("{0}")]
    Format(String),
}

type Result<T> = std::result::Result<T, ReadError>;

fn format<T>(text: String) -> Result<T> {
    Err(ReadError::Format(text))
}

/// Resolution of times.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Precision {
    /// Millionths of a second.
    Micro,
    /// Billionths.
    Nano,
}

impl Precision {
    const fn per_second(self) -> u64 {
        match self {
            Precision::Micro => 1_000_000,
            Precision::Nano => 1_000_000_000,
        }
    }
}

/// A packet where it lies in the buffer.
pub struct Packet<'a> {
    /// Seconds since 1970 and fractions in the reader's precision, as a record has them.
    pub time: [u32; 2],
    /// Length on the wire.
    pub wire_len: u32,
    /// The bytes captured.
    pub data: &'a [u8],
    /// Header and data as a record of what [`Writer`] writes, if they lie there like that.
    record: Option<&'a [u8]>,
}

/// How the records of a file are laid out.
enum Layout {
    Pcap(Records),
    PcapNg(Interfaces),
}

/// Records of a pcap file.
#[derive(Clone, Copy)]
struct Records {
    /// Longest packet of records that are written as they are read, if any are.
    plain: Option<u32>,
    header: usize,
    swapped: bool,
    /// Captured and wire length are the other way round: always, or where the first is longer.
    lengths: Lengths,
    scale: Scale,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Lengths {
    InOrder,
    Exchanged,
    Unsure,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Scale {
    No,
    Up,
    Down,
}

fn word(bytes: &[u8], at: usize, swapped: bool) -> u32 {
    let word = bytes
        .get(at..)
        .and_then(|rest| rest.first_chunk())
        .map_or(0, |b| u32::from_ne_bytes(*b));
    if swapped { word.swap_bytes() } else { word }
}

fn half(bytes: &[u8], at: usize, swapped: bool) -> u16 {
    let half = bytes
        .get(at..)
        .and_then(|rest| rest.first_chunk())
        .map_or(0, |b| u16::from_ne_bytes(*b));
    if swapped { half.swap_bytes() } else { half }
}

/// A capture being read.
pub struct Reader {
    source: Source,
    layout: Layout,
    precision: Precision,
    /// Link type, `DLT_*`.
    pub link: i32,
    /// Other bits of the file's link type, about checksums at the frames' ends.
    pub link_extension: u32,
    /// Most bytes captured of a packet.
    pub snaplen: i32,
}

impl Reader {
    /// Reads a capture's header. Times are given in `precision`.
    pub fn new(input: Box<dyn Read + Send>, precision: Precision) -> Result<Reader> {
        let mut source = Source::new(input);
        let magic = source.peek(4)?;
        if magic.len() < 4 {
            return format(format!(
                "truncated dump file; tried to read 4 file header bytes, only got {}",
                magic.len()
            ));
        }
        let magic = word(magic, 0, false);
        match magic {
            pcapng::SECTION_HEADER => Reader::open_pcapng(source, precision),
            MICRO | NANO | KUZNETZOV => Reader::open_pcap(source, precision, magic, false),
            _ => match magic.swap_bytes() {
                magic @ (MICRO | NANO | KUZNETZOV) => {
                    Reader::open_pcap(source, precision, magic, true)
                }
                _ => format("unknown file format".to_owned()),
            },
        }
    }

    fn open_pcap(
        mut source: Source,
        precision: Precision,
        magic: u32,
        swapped: bool,
    ) -> Result<Reader> {
        let header = source.peek(FILE_HEADER)?;
        if header.len() < FILE_HEADER {
            return format(format!(
                "truncated dump file; tried to read {FILE_HEADER} file header bytes, only got {}",
                header.len()
            ));
        }
        let version = (half(header, 4, swapped), half(header, 6, swapped));
        let lengths = match version {
            (..2, _) => return format("archaic pcap savefile format".to_owned()),
            (2, ..3) | (543, 0) => Lengths::Exchanged,
            (2, 3) => Lengths::Unsure,
            (2, 4) => Lengths::InOrder,
            (major, minor) => {
                return format(format!("unsupported pcap savefile version {major}.{minor}"));
            }
        };
        let network = word(header, 20, swapped);
        let link = link::from_file(network & link::TYPE);
        let mut snaplen = link::snaplen(link, word(header, 16, swapped));
        if magic == KUZNETZOV && link == link::ETHERNET {
            // It may have been captured without the link-layer header, which was added.
            snaplen = snaplen.saturating_add(14);
        }
        if swapped && link::has_host_order(link) {
            return format(format!(
                "packets of link type {link} captured on a machine of the other byte order"
            ));
        }
        let scale = match (magic == NANO, precision) {
            (true, Precision::Micro) => Scale::Down,
            (false, Precision::Nano) => Scale::Up,
            _ => Scale::No,
        };
        let header = match magic {
            KUZNETZOV => LONG_RECORD_HEADER,
            _ => RECORD_HEADER,
        };
        let as_written = header == RECORD_HEADER
            && !swapped
            && lengths == Lengths::InOrder
            && scale == Scale::No;
        let plain = match as_written {
            true => Some(link::longest(link).min(snaplen as u32)),
            false => None,
        };
        source.advance(FILE_HEADER);
        Ok(Reader {
            source,
            layout: Layout::Pcap(Records {
                plain,
                header,
                swapped,
                lengths,
                scale,
            }),
            precision,
            link,
            link_extension: network & !link::TYPE,
            snaplen,
        })
    }

    fn open_pcapng(mut source: Source, precision: Precision) -> Result<Reader> {
        let (interfaces, link, snaplen) = Interfaces::open(&mut source, precision)?;
        Ok(Reader {
            source,
            layout: Layout::PcapNg(interfaces),
            precision,
            link,
            link_extension: 0,
            snaplen,
        })
    }

    /// Bytes of the file that were used.
    pub fn offset(&self) -> u64 {
        self.source.offset
    }

    /// The next packet, or none at the file's end.
    #[inline]
    pub fn next(&mut self) -> Result<Option<Packet<'_>>> {
        match &mut self.layout {
            Layout::Pcap(records) => {
                // Nearly all packets of nearly all captures.
                if let Some((header, rest)) =
                    self.source.at_hand().split_first_chunk::<RECORD_HEADER>()
                    && let [seconds, fraction, captured, wire_len] = fields(header)
                    && records.plain.is_some_and(|longest| captured <= longest)
                    && captured as usize <= rest.len()
                {
                    let len = RECORD_HEADER + captured as usize;
                    self.source.advance(len);
                    let start = self.source.start - len;
                    let record = &self.source.buffer[start..start + len];
                    return Ok(Some(Packet {
                        time: [seconds, fraction],
                        wire_len,
                        data: &record[RECORD_HEADER..],
                        record: Some(record),
                    }));
                }
                next_record(&mut self.source, *records, self.link, self.snaplen)
            }
            Layout::PcapNg(interfaces) => interfaces.next(&mut self.source),
        }
    }

    /// Precision of the packets' times.
    pub fn precision(&self) -> Precision {
        self.precision
    }
}

/// A record's header in this machine's byte order.
#[inline]
fn fields(header: &[u8; RECORD_HEADER]) -> [u32; 4] {
    let words = header.as_chunks::<4>().0;
    [0, 1, 2, 3].map(|i| u32::from_ne_bytes(words[i]))
}

/// The next record of any file.
#[cold]
fn next_record(
    source: &mut Source,
    records: Records,
    link: i32,
    snaplen: i32,
) -> Result<Option<Packet<'_>>> {
    let size = records.header;
    let header = source.peek(size)?;
    if header.len() < size {
        if header.is_empty() {
            return Ok(None);
        }
        return format(format!(
            "truncated dump file; tried to read {size} header bytes, only got {}",
            header.len()
        ));
    }
    let swapped = records.swapped;
    let [seconds, fraction, mut captured, mut wire_len] =
        [0, 4, 8, 12].map(|at| word(header, at, swapped));
    let exchanged = match records.lengths {
        Lengths::InOrder => false,
        Lengths::Exchanged => true,
        Lengths::Unsure => captured > wire_len,
    };
    if exchanged {
        (captured, wire_len) = (wire_len, captured);
    }
    // libpcap's fractions are signed, unless it has swapped their bytes.
    let signed = match swapped {
        true => fraction.into(),
        false => i64::from(fraction as i32),
    };
    let fraction = match records.scale {
        Scale::No => fraction,
        Scale::Up => (signed * 1000) as u32,
        Scale::Down => (signed / 1000) as u32,
    };
    let snaplen = snaplen as u32;
    if captured > link::longest(link) {
        let limit = match captured > snaplen {
            true => format!("snaplen of {snaplen}"),
            false => format!("maximum of {}", link::longest(link)),
        };
        return format(format!(
            "invalid packet capture length {captured}, bigger than {limit}"
        ));
    }
    let whole = source.peek(size + captured as usize)?;
    let got = whole.len() - size;
    if got < captured as usize {
        let tried = match captured > snaplen && got < snaplen as usize {
            true => snaplen,
            false => captured,
        };
        return format(format!(
            "truncated dump file; tried to read {tried} captured bytes, only got {got}"
        ));
    }
    let kept = captured.min(snaplen) as usize;
    let as_written = records.plain.is_some_and(|longest| captured <= longest);
    let len = whole.len();
    source.advance(len);
    let whole = &source.buffer[source.start - len..source.start];
    Ok(Some(Packet {
        time: [seconds, fraction],
        wire_len,
        data: &whole[size..size + kept],
        record: as_written.then_some(whole),
    }))
}

/// A capture being written: this machine's byte order, one precision.
pub struct Writer<W> {
    out: W,
}

impl<W: Write> Writer<W> {
    /// Writes the header of a capture of what `reader` reads.
    pub fn new(mut out: W, reader: &Reader) -> io::Result<Writer<W>> {
        let magic = match reader.precision() {
            Precision::Micro => MICRO,
            Precision::Nano => NANO,
        };
        let network = link::to_file(reader.link) | reader.link_extension;
        let mut header = Vec::with_capacity(FILE_HEADER);
        header.extend(magic.to_ne_bytes());
        header.extend(2u16.to_ne_bytes());
        header.extend(4u16.to_ne_bytes());
        for field in [0, 0, reader.snaplen as u32, network] {
            header.extend(field.to_ne_bytes());
        }
        out.write_all(&header)?;
        Ok(Writer { out })
    }

    /// Appends a packet.
    #[inline]
    pub fn write(&mut self, packet: &Packet<'_>) -> io::Result<()> {
        if let Some(record) = packet.record {
            return self.out.write_all(record);
        }
        let mut header = [0; RECORD_HEADER];
        let fields = [
            packet.time[0],
            packet.time[1],
            packet.data.len() as u32,
            packet.wire_len,
        ];
        for (slot, field) in header.as_chunks_mut::<4>().0.iter_mut().zip(fields) {
            *slot = field.to_ne_bytes();
        }
        self.out.write_all(&header)?;
        self.out.write_all(packet.data)
    }

    /// What it was written to.
    pub fn into_inner(self) -> W {
        self.out
    }
}
