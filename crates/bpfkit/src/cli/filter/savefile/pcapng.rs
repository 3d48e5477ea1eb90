//! pcapng files: blocks, of which interface descriptions and packets count.

use super::{Packet, Precision, ReadError, Result, Source, format, half, word};
use crate::cli::filter::link;

/// Block types.
pub const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
const PACKET: u32 = 2;
const SIMPLE_PACKET: u32 = 3;
const ENHANCED_PACKET: u32 = 6;

const BYTE_ORDER: u32 = 0x1a2b_3c4d;
/// A block's type and length, and its length again behind it.
const HEADER: usize = 8;
const AROUND: usize = 12;
/// Longest section header, and longest other block but for its link type's longest packet.
const LONGEST_SECTION_HEADER: u32 = 1 << 20;
const LONGEST_BLOCK: u32 = 16 << 20;
/// Blocks may have that many bytes beside their packet.
const BESIDE_PACKET: u32 = 131_072 + 32;

/// Options of an interface.
const END_OF_OPTIONS: u16 = 0;
const TIME_RESOLUTION: u16 = 9;
const TIME_OFFSET: u16 = 14;

/// The interfaces of the section being read, and what all of them have in common.
pub struct Interfaces {
    swapped: bool,
    precision: Precision,
    link: i32,
    snaplen: i32,
    interfaces: Vec<Interface>,
}

/// How an interface counts time.
#[derive(Clone, Copy)]
struct Interface {
    per_second: u64,
    binary: bool,
    offset: i64,
}

/// A block: its type, and its bytes between the lengths.
struct Block {
    kind: u32,
    /// Of the whole block.
    len: usize,
}

impl Interfaces {
    /// Reads up to the first interface: its link type and snapshot length are the file's.
    pub fn open(source: &mut Source, precision: Precision) -> Result<(Interfaces, i32, i32)> {
        let start = source.peek(HEADER + 4)?;
        if start.len() < HEADER + 4 {
            return format("unknown file format".to_owned());
        }
        let swapped = match word(start, 8, false) {
            BYTE_ORDER => false,
            order if order.swap_bytes() == BYTE_ORDER => true,
            _ => return format("unknown file format".to_owned()),
        };
        let len = word(start, 4, swapped);
        if !(28..=LONGEST_SECTION_HEADER).contains(&len) {
            return format(format!(
                "Section Header Block in pcapng dump file has a length of {len}, \
which is not between 28 and {LONGEST_SECTION_HEADER}"
            ));
        }
        let mut this = Interfaces {
            swapped,
            precision,
            link: 0,
            snaplen: 0,
            interfaces: Vec::new(),
        };
        let section = source.peek(len as usize)?;
        let version = (half(section, 12, swapped), half(section, 14, swapped));
        if !matches!(version, (1, 0 | 2)) {
            return format(format!(
                "unsupported pcapng savefile version {}.{}",
                version.0, version.1
            ));
        }
        if section.len() < len as usize {
            return truncated(len as usize - HEADER - 4, section.len() - HEADER - 4);
        }
        source.advance(len as usize);
        loop {
            let Some(block) = this.block(source)? else {
                return format("the capture file has no Interface Description Blocks".to_owned());
            };
            match block.kind {
                INTERFACE => {
                    let body = this.body(source, &block);
                    let (kind, snaplen) = this.description(body)?;
                    this.link = link::from_file(kind.into());
                    if this.swapped && link::has_host_order(this.link) {
                        return format(format!(
                            "packets of link type {kind} captured on a machine of the other byte order"
                        ));
                    }
                    this.snaplen = link::snaplen(this.link, snaplen);
                    source.advance(block.len);
                    let (link, snaplen) = (this.link, this.snaplen);
                    return Ok((this, link, snaplen));
                }
                PACKET | SIMPLE_PACKET | ENHANCED_PACKET => {
                    return format(
                        "the capture file has a packet block before any Interface Description Blocks"
                            .to_owned(),
                    );
                }
                _ => source.advance(block.len),
            }
        }
    }

    /// The next packet.
    pub fn next<'s>(&mut self, source: &'s mut Source) -> Result<Option<Packet<'s>>> {
        loop {
            let Some(block) = self.block(source)? else {
                return Ok(None);
            };
            let body = self.body(source, &block);
            let swapped = self.swapped;
            let field = |at| word(body, at, swapped);
            // Interface, time, captured length, wire length, where the data begin.
            let (interface, units, captured, wire_len, data) = match block.kind {
                ENHANCED_PACKET => {
                    need(&block, body, 20)?;
                    let units = u64::from(field(4)) << 32 | u64::from(field(8));
                    (field(0), units, field(12), field(16), 20)
                }
                PACKET => {
                    need(&block, body, 20)?;
                    let units = u64::from(field(4)) << 32 | u64::from(field(8));
                    let interface = half(body, 0, swapped).into();
                    (interface, units, field(12), field(16), 20)
                }
                SIMPLE_PACKET => {
                    need(&block, body, 4)?;
                    let captured = field(0).min(self.snaplen as u32);
                    (0, 0, captured, field(0), 4)
                }
                INTERFACE => {
                    let (kind, snaplen) = self.description(body)?;
                    if self.link != i32::from(kind) {
                        return format(format!(
                            "an interface has a type {kind} different from the type of the first interface"
                        ));
                    }
                    if self.snaplen != link::snaplen(self.link, snaplen) {
                        return format(format!(
                            "an interface has a snapshot length {snaplen} different from the \
snapshot length of the first interface"
                        ));
                    }
                    source.advance(block.len);
                    continue;
                }
                SECTION_HEADER => {
                    need(&block, body, 16)?;
                    match field(0) {
                        BYTE_ORDER => {}
                        order if order.swap_bytes() == BYTE_ORDER => {
                            return format(
                                "the file has sections with different byte orders".to_owned(),
                            );
                        }
                        _ => {
                            return format(
                                "the file has a section with a bad byte order magic field"
                                    .to_owned(),
                            );
                        }
                    }
                    let major = half(body, 4, swapped);
                    if major != 1 {
                        return format(format!(
                            "unknown pcapng savefile major version number {major}"
                        ));
                    }
                    self.interfaces.clear();
                    source.advance(block.len);
                    continue;
                }
                _ => {
                    source.advance(block.len);
                    continue;
                }
            };
            let Some(clock) = self.interfaces.get(interface as usize) else {
                return format(format!(
                    "a packet arrived on interface {interface}, but there's no Interface \
Description Block for that interface"
                ));
            };
            if captured > self.snaplen as u32 {
                return format(format!(
                    "invalid packet capture length {captured}, bigger than snaplen of {}",
                    self.snaplen
                ));
            }
            need(&block, body, data + captured as usize)?;
            let time = clock.time(units, self.precision);
            source.advance(block.len);
            let start = source.start - block.len + HEADER + data;
            return Ok(Some(Packet {
                time,
                wire_len,
                data: &source.buffer[start..start + captured as usize],
                record: None,
            }));
        }
    }

    /// The next block, which then lies in the buffer as a whole; none at the file's end.
    fn block(&self, source: &mut Source) -> Result<Option<Block>> {
        let header = source.peek(HEADER)?;
        if header.len() < HEADER {
            if header.is_empty() {
                return Ok(None);
            }
            return truncated(HEADER, header.len());
        }
        let (kind, len) = (word(header, 0, self.swapped), word(header, 4, self.swapped));
        if len < AROUND as u32 {
            return format(format!(
                "block in pcapng dump file has a length of {len} < {AROUND}"
            ));
        }
        if len % 4 != 0 {
            return format(format!(
                "block in pcapng dump file has a length of {len} that is not a multiple of 4"
            ));
        }
        let longest = LONGEST_BLOCK.max(link::longest(self.link).saturating_add(BESIDE_PACKET));
        if len > longest {
            return format(format!("pcapng block size {len} > maximum {longest}"));
        }
        let whole = source.peek(len as usize)?;
        if whole.len() < len as usize {
            return truncated(len as usize - HEADER, whole.len() - HEADER);
        }
        let again = word(whole, whole.len() - 4, self.swapped);
        if again != len {
            return format(format!(
                "block total length in header {len} and trailer {again} don't match"
            ));
        }
        Ok(Some(Block {
            kind,
            len: len as usize,
        }))
    }

    fn body<'s>(&self, source: &'s Source, block: &Block) -> &'s [u8] {
        let whole = &source.buffer[source.start..source.start + block.len];
        &whole[HEADER..block.len - 4]
    }

    /// Adds an interface; gives its link type and snapshot length.
    fn description(&mut self, body: &[u8]) -> Result<(u16, u32)> {
        let block = Block {
            kind: INTERFACE,
            len: 0,
        };
        need(&block, body, 8)?;
        let mut interface = Interface {
            per_second: 1_000_000,
            binary: false,
            offset: 0,
        };
        let mut rest = &body[8..];
        let mut seen = (false, false);
        while !rest.is_empty() {
            need(&block, rest, 4)?;
            let (code, len) = (half(rest, 0, self.swapped), half(rest, 2, self.swapped));
            let padded = usize::from(len).next_multiple_of(4);
            need(&block, rest, 4 + padded)?;
            let value = &rest[4..4 + usize::from(len)];
            rest = &rest[4 + padded..];
            let expect = |name: &str, expected: usize, seen: bool| {
                if value.len() != expected {
                    format(format!(
                        "Interface Description Block has {name} option with length {len} != {expected}"
                    ))
                } else if seen {
                    format(format!(
                        "Interface Description Block has more than one {name} option"
                    ))
                } else {
                    Ok(())
                }
            };
            match code {
                END_OF_OPTIONS => {
                    expect("opt_endofopt", 0, false)?;
                    break;
                }
                TIME_RESOLUTION => {
                    expect("if_tsresol", 1, seen.0)?;
                    seen.0 = true;
                    let (base, exponent) = (value[0] & 0x80, u32::from(value[0] & 0x7f));
                    interface.binary = base != 0;
                    let base: u64 = if interface.binary { 2 } else { 10 };
                    interface.per_second = match base.checked_pow(exponent) {
                        Some(per_second) => per_second,
                        None => {
                            return format(format!(
                                "Interface Description Block if_tsresol option resolution \
{base}^-{exponent} is too high"
                            ));
                        }
                    };
                }
                TIME_OFFSET => {
                    expect("if_tsoffset", 8, seen.1)?;
                    seen.1 = true;
                    let offset = u64::from_ne_bytes(value.try_into().unwrap_or_default());
                    interface.offset = match self.swapped {
                        true => offset.swap_bytes() as i64,
                        false => offset as i64,
                    };
                }
                _ => {}
            }
        }
        self.interfaces.push(interface);
        Ok((half(body, 0, self.swapped), word(body, 4, self.swapped)))
    }
}

impl Interface {
    /// Seconds and fractions as a record has them.
    fn time(&self, units: u64, precision: Precision) -> [u32; 2] {
        let wanted = precision.per_second();
        let seconds = (units / self.per_second).wrapping_add(self.offset as u64);
        let fraction = units % self.per_second;
        let fraction = if self.per_second == wanted {
            fraction
        } else if self.binary {
            fraction.wrapping_mul(wanted) / self.per_second
        } else if self.per_second > wanted {
            fraction / (self.per_second / wanted)
        } else {
            fraction * (wanted / self.per_second)
        };
        [seconds as u32, fraction as u32]
    }
}

fn need(block: &Block, body: &[u8], bytes: usize) -> Result<()> {
    if body.len() < bytes {
        return format(format!(
            "block of type {} in pcapng dump file is too short",
            block.kind
        ));
    }
    Ok(())
}

fn truncated<T>(tried: usize, got: usize) -> Result<T> {
    Err(ReadError::Format(format!(
        "truncated pcapng dump file; tried to read {tried} bytes, only got {got}"
    )))
}
