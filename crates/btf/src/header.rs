//! The frame of a BTF section: header, byte order, and where types and strings lie.

use crate::btf::Strings;
use crate::error::{BtfError, BtfErrorKind as Why, Section};

pub(crate) const MAGIC: u16 = 0xeb9f;
/// Bytes of `struct btf_header`.
pub(crate) const HEADER: usize = 24;

/// A BTF section of these types and strings.
pub(crate) fn serialize(words: &[u32], strings: &[u8], big_endian: bool) -> Vec<u8> {
    let u32_bytes = |v: u32| {
        if big_endian {
            v.to_be_bytes()
        } else {
            v.to_le_bytes()
        }
    };
    let u16_bytes = |v: u16| {
        if big_endian {
            v.to_be_bytes()
        } else {
            v.to_le_bytes()
        }
    };
    let type_len = 4 * words.len() as u32;
    let mut out = Vec::with_capacity(HEADER + 4 * words.len() + strings.len());
    out.extend(u16_bytes(MAGIC));
    out.extend([1, 0]);
    for field in [HEADER as u32, 0, type_len, type_len, strings.len() as u32] {
        out.extend(u32_bytes(field));
    }
    for &word in words {
        out.extend(u32_bytes(word));
    }
    out.extend(strings);
    out
}

/// `struct btf_header`, checked against the section's length.
pub(crate) struct Header {
    pub big_endian: bool,
    header_len: usize,
    type_off: u32,
    type_len: u32,
    str_off: u32,
    str_len: u32,
}

impl Header {
    pub fn parse(bytes: &[u8]) -> Result<Self, BtfError> {
        let fault = |offset, why| BtfError::new(Section::Btf, offset, why);
        let (big_endian, header_len) = preamble(bytes, Section::Btf, HEADER)?;
        let field = |at: usize| read_u32(bytes, at, big_endian).unwrap_or(0);
        let header = Self {
            big_endian,
            header_len,
            type_off: field(8),
            type_len: field(12),
            str_off: field(16),
            str_len: field(20),
        };
        let left = (bytes.len() - header_len) as u64;
        let end = |start: u32, len: u32| u64::from(start) + u64::from(len);
        if end(header.str_off, header.str_len) > left {
            let (start, len) = (header.str_off, header.str_len);
            return Err(fault(
                16,
                Why::Layout {
                    part: "the string section",
                    start,
                    len,
                },
            ));
        }
        if end(header.type_off, header.type_len) > u64::from(header.str_off) {
            let (start, len) = (header.type_off, header.type_len);
            return Err(fault(
                8,
                Why::Layout {
                    part: "the type section",
                    start,
                    len,
                },
            ));
        }
        if !header.type_off.is_multiple_of(4) {
            return Err(fault(8, Why::Unaligned("the type section")));
        }
        Ok(header)
    }

    /// Offset of the type section from the start of the bytes.
    pub const fn types_at(&self) -> usize {
        self.header_len + self.type_off as usize
    }

    pub fn strings(&self, bytes: &[u8], on_base: bool) -> Result<Strings, BtfError> {
        let at = self.header_len + self.str_off as usize;
        let strings = bytes.get(at..at + self.str_len as usize).unwrap_or(&[]);
        let sound = match strings {
            [] => on_base,
            [first, .., last] => (on_base || *first == 0) && *last == 0,
            [only] => *only == 0,
        };
        if !sound {
            return Err(BtfError::new(Section::Btf, at, Why::Strings));
        }
        Ok(Strings::new(strings))
    }

    /// The type section in the host's byte order.
    pub fn words(&self, bytes: &[u8]) -> Result<Box<[u32]>, BtfError> {
        let at = self.types_at();
        let types = bytes.get(at..at + self.type_len as usize).unwrap_or(&[]);
        let (words, rest) = types.as_chunks::<4>();
        if !rest.is_empty() {
            let end = at + types.len() - rest.len();
            return Err(BtfError::new(
                Section::Btf,
                end,
                Why::Unaligned("the type section's end"),
            ));
        }
        Ok(if self.big_endian {
            words.iter().map(|w| u32::from_be_bytes(*w)).collect()
        } else {
            words.iter().map(|w| u32::from_le_bytes(*w)).collect()
        })
    }
}

/// Magic, version, flags and header length, which BTF and BTF.ext have in common:
/// the byte order and the length.
pub(crate) fn preamble(
    bytes: &[u8],
    section: Section,
    least: usize,
) -> Result<(bool, usize), BtfError> {
    let fault = |offset, why| BtfError::new(section, offset, why);
    let cut = |needed| {
        fault(
            0,
            Why::HeaderCut {
                needed,
                found: bytes.len(),
            },
        )
    };
    let &[m0, m1, version, flags, ..] = bytes else {
        return Err(cut(least));
    };
    let magic = u16::from_le_bytes([m0, m1]);
    let big_endian = match magic {
        MAGIC => false,
        _ if magic.swap_bytes() == MAGIC => true,
        _ => return Err(fault(0, Why::Magic(magic))),
    };
    if version != 1 {
        return Err(fault(2, Why::Version(version)));
    }
    if flags != 0 {
        return Err(fault(3, Why::Flags(flags)));
    }
    let header_len = read_u32(bytes, 4, big_endian).ok_or_else(|| cut(least))? as usize;
    if header_len < least || bytes.len() < header_len {
        return Err(fault(
            4,
            Why::HeaderCut {
                needed: header_len.max(least),
                found: bytes.len(),
            },
        ));
    }
    Ok((big_endian, header_len))
}

pub(crate) fn read_u32(bytes: &[u8], at: usize, big_endian: bool) -> Option<u32> {
    let word = bytes.get(at..)?.first_chunk()?;
    Some(if big_endian {
        u32::from_be_bytes(*word)
    } else {
        u32::from_le_bytes(*word)
    })
}
