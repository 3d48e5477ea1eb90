//! The assembler. It reads both syntaxes, mixed as they come:
//!
//! - what [`crate::disasm`], `bpftool prog dump xlated` and the verifier's log print,
//!   with the slot number and opcode in front (`12: (b7) r0 = 0`) or without;
//! - what `llvm-objdump -d` prints, with slot number and bytes in front or without;
//! - what `clang -S` prints and `llvm-mc` reads: labels, also numeric ones (`goto 1f`),
//!   several statements in a line parted by `;`, sections and other directives.
//!
//! Beyond these: maps by name (`r1 = map[flows] ll`, `r1 = map_value[.rodata][8] ll`),
//! helpers by name (`call bpf_map_lookup_elem`), kernel functions by name
//! (`call bpf_task_acquire`, or `call kfunc NAME` where a helper or label has the name
//! too), subprograms by label in calls and loads (`r2 = callback ll`), and raw slots
//! (`.8byte 0x95`, little-endian), which may hold what is no instruction.
//!
//! Comments: `#` and `//` to the end of the line, `/* … */`, and `;` to the end of the
//! line where it is the first thing in a line or follows a listing's instruction (there
//! the tools print source lines and register states).
//!
//! Directives: `.text` and `.section NAME,"…x…"` begin a section of code, other sections
//! are passed over, `.8byte` and `.quad` make slots, the rest does nothing.

mod comment;
mod statement;

use std::collections::{HashMap, HashSet};

use crate::insn::Insn;
use crate::op::Imm64;
use crate::token::{self, LexError};
use statement::{Instruction, Known, Parser, Reach, Target};

/// A map as a loading instruction names it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum MapRef {
    /// By file descriptor.
    Fd(i32),
    /// By index in the program's map list.
    Index(i32),
}

/// Numbers for the names in a text. Each method may know nothing.
pub trait Resolver {
    /// Number of the helper with this name (with its `bpf_` prefix).
    fn helper(&self, name: &str) -> Option<i32> {
        let _ = name;
        None
    }

    /// BTF id and module index of the kernel function with this name.
    fn kfunc(&self, name: &str) -> Option<(i32, i16)> {
        let _ = name;
        None
    }

    /// The map with this name.
    fn map(&self, name: &str) -> Option<MapRef> {
        let _ = name;
        None
    }

    /// What else a two-slot load may name: a variable of the kernel, a global.
    fn symbol(&self, name: &str) -> Option<Imm64> {
        let _ = name;
        None
    }
}

/// Knows no name.
pub struct NoNames;

impl Resolver for NoNames {}

/// Why a text does not assemble, and where.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("line {line}, column {column}: {message}")]
pub struct AsmError {
    /// Line, from 1.
    pub line: usize,
    /// Character in the line, from 1.
    pub column: usize,
    /// What is wrong there.
    pub message: String,
}

/// A name for a slot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Label {
    /// Its name.
    pub name: String,
    /// The slot it stands before; may be the one past the end.
    pub slot: usize,
}

/// The result of assembling.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Assembled {
    /// The slots, those of all code sections one after the other.
    pub insns: Vec<Insn>,
    /// For each slot, the line (from 1) its instruction stands in.
    pub lines: Vec<usize>,
    /// Labels in the order of the text, without numeric ones.
    pub labels: Vec<Label>,
    /// Code sections by name, with the slot they begin at.
    pub sections: Vec<Label>,
}

/// Assembles a text that names no maps, helpers or kernel functions.
pub fn assemble(text: &str) -> Result<Assembled, AsmError> {
    assemble_with(text, &NoNames)
}

/// Assembles a text; `resolver` gives the numbers for its names.
pub fn assemble_with(text: &str, resolver: &dyn Resolver) -> Result<Assembled, AsmError> {
    let clean = comment::blank(text)?;
    let mut reader = Reader {
        code: true,
        items: Vec::new(),
    };
    for (i, line) in clean.lines().enumerate() {
        reader.line(i + 1, line)?;
    }
    let names = reader.items.iter().filter_map(|(_, item)| match item {
        Item::Label(name) => Some(*name),
        _ => None,
    });
    let mut writer = Writer {
        names: names.collect(),
        resolver,
        out: Assembled::default(),
        slots: HashMap::new(),
        numeric: HashMap::new(),
        fixups: Vec::new(),
    };
    for (place, item) in &reader.items {
        writer.item(*place, item)?;
    }
    writer.finish()
}

/// A byte in a line of the text.
#[derive(Clone, Copy)]
struct Place<'a> {
    line: usize,
    text: &'a str,
    at: usize,
}

impl Place<'_> {
    fn error(self, message: impl Into<String>) -> AsmError {
        let before = self.text.get(..self.at).unwrap_or(self.text);
        AsmError {
            line: self.line,
            column: before.chars().count() + 1,
            message: message.into(),
        }
    }

    fn later(self, by: usize) -> Self {
        Self {
            at: self.at + by,
            ..self
        }
    }
}

/// What a text consists of.
enum Item<'a> {
    Label(&'a str),
    NumericLabel(u64),
    Section(&'a str),
    Raw(u64),
    Statement { text: &'a str, known: Known },
}

/// First pass: from lines to items.
struct Reader<'a> {
    /// Whether the current section holds code.
    code: bool,
    items: Vec<(Place<'a>, Item<'a>)>,
}

impl<'a> Reader<'a> {
    fn line(&mut self, line: usize, text: &'a str) -> Result<(), AsmError> {
        let mut place = Place { line, text, at: 0 };
        if text.contains(":\tfile format ") || text.ends_with(": file format elf64-bpf") {
            return Ok(());
        }
        if let Some(name) = text.strip_prefix("Disassembly of section ") {
            self.code = true;
            self.items
                .push((place, Item::Section(name.trim_end().trim_end_matches(':'))));
            return Ok(());
        }
        if let Some(name) = objdump_label(text) {
            self.items.push((place, Item::Label(name)));
            return Ok(());
        }
        loop {
            self.skip_blanks(&mut place);
            self.labels(&mut place);
            let known = self.listing_prefix(&mut place)?;
            let rest = &text[place.at..];
            let end = rest.find(';').unwrap_or(rest.len());
            let statement = rest[..end].trim_end();
            if statement.starts_with('.') {
                self.directive(place, statement)?;
                // A `;` in a string parts nothing, and nobody puts code after strings.
                if rest.contains('"') {
                    return Ok(());
                }
            } else if !statement.is_empty() && self.code {
                self.items.push((
                    place,
                    Item::Statement {
                        text: statement,
                        known,
                    },
                ));
            }
            // What follows an instruction of a listing is a comment.
            if end == rest.len() || known.is_listing() {
                return Ok(());
            }
            place.at += end + 1;
        }
    }

    fn skip_blanks(&self, place: &mut Place<'a>) {
        let rest = &place.text[place.at..];
        place.at += rest.len() - rest.trim_start().len();
    }

    /// Labels before a statement, and the slot number before one in a listing, which
    /// does no harm as a numeric label.
    fn labels(&mut self, place: &mut Place<'a>) {
        loop {
            let rest = &place.text[place.at..];
            let len = rest
                .find(|c| !token::continues_word(c))
                .unwrap_or(rest.len());
            let (name, after) = rest.split_at(len);
            if name.is_empty() || !after.starts_with(':') {
                return;
            }
            let item = match name.parse() {
                Ok(number) => Item::NumericLabel(number),
                Err(_) if name.starts_with(token::starts_word) => Item::Label(name),
                Err(_) => return,
            };
            if self.code {
                self.items.push((*place, item));
            }
            place.at += len + 1;
            self.skip_blanks(place);
        }
    }

    /// The opcode or the bytes that a listing has before an instruction.
    fn listing_prefix(&self, place: &mut Place<'a>) -> Result<Known, AsmError> {
        let rest = &place.text[place.at..];
        if let Some(inner) = rest.strip_prefix('(')
            && let Some((digits, _)) = inner.split_once(')')
            && digits.len() == 2
            && let Ok(code) = u8::from_str_radix(digits, 16)
        {
            place.at += 4;
            self.skip_blanks(place);
            return Ok(Known::Code(code));
        }
        let (bytes, len) = leading_bytes(rest);
        let slots = match *bytes.as_slice() {
            [] => return Ok(Known::Nothing),
            ref all => match (
                all.first_chunk::<8>(),
                all.get(8..).and_then(<[u8]>::first_chunk::<8>),
            ) {
                (Some(first), second) if matches!(all.len(), 8 | 16) => (
                    Insn::from_le_bytes(*first),
                    second.map(|s| Insn::from_le_bytes(*s)),
                ),
                _ => return Err(place.error(format!("{} bytes are not an instruction", all.len()))),
            },
        };
        place.at += len;
        Ok(Known::Slots(slots.0, slots.1))
    }

    fn directive(&mut self, place: Place<'a>, statement: &'a str) -> Result<(), AsmError> {
        let (name, rest) = statement.split_at(
            statement
                .find(char::is_whitespace)
                .unwrap_or(statement.len()),
        );
        match name {
            ".text" => {
                self.code = true;
                self.items.push((place, Item::Section(".text")));
            }
            ".section" => {
                let mut parts = rest.split(',').map(str::trim);
                let name = parts.next().unwrap_or("").trim_matches('"');
                self.code = match parts.next() {
                    Some(flags) => flags.contains('x'),
                    None => name.starts_with(".text"),
                };
                if self.code {
                    self.items.push((place, Item::Section(name)));
                }
            }
            ".data" | ".bss" => self.code = false,
            ".8byte" | ".quad" if self.code => {
                for part in rest.split(',') {
                    let at = place.later(part.as_ptr() as usize - statement.as_ptr() as usize);
                    let value = match token::lex(part).as_deref() {
                        Ok([t]) if let token::Token::Number(value) = t.token => value,
                        _ => {
                            return Err(
                                at.error(format!("`{}` is not a 64-bit number", part.trim()))
                            );
                        }
                    };
                    self.items.push((at, Item::Raw(value)));
                }
            }
            _ => {}
        }
        Ok(())
    }
}

/// The name in a line such as `0000000000000130 <foo>:`.
fn objdump_label(text: &str) -> Option<&str> {
    let (address, name) = text.trim_end().strip_suffix(">:")?.split_once(" <")?;
    let hex = !address.is_empty() && address.bytes().all(|b| b.is_ascii_hexdigit());
    hex.then_some(name)
}

/// The pairs of hexadecimal digits that `text` starts with, each followed by a blank,
/// and their length with the blanks after them; none if there are fewer than eight.
fn leading_bytes(text: &str) -> (Vec<u8>, usize) {
    let mut bytes = Vec::new();
    let mut rest = text;
    while let Some((digits, after)) = rest.split_at_checked(2)
        && digits.bytes().all(|b| b.is_ascii_hexdigit())
        && (after.starts_with([' ', '\t']) || after.is_empty())
        && let Ok(byte) = u8::from_str_radix(digits, 16)
    {
        bytes.push(byte);
        rest = after.strip_prefix(' ').unwrap_or(after);
    }
    if bytes.len() < 8 {
        return (Vec::new(), 0);
    }
    (bytes, text.len() - rest.trim_start().len())
}

/// Second pass: from items to slots; targets are filled in at the end.
struct Writer<'a> {
    names: HashSet<&'a str>,
    resolver: &'a dyn Resolver,
    out: Assembled,
    slots: HashMap<&'a str, usize>,
    numeric: HashMap<u64, Vec<usize>>,
    fixups: Vec<Fixup<'a>>,
}

/// A distance still to be written.
struct Fixup<'a> {
    slot: usize,
    place: Place<'a>,
    target: Target<'a>,
    reach: Reach,
}

impl<'a> Writer<'a> {
    fn item(&mut self, place: Place<'a>, item: &Item<'a>) -> Result<(), AsmError> {
        let slot = self.out.insns.len();
        match *item {
            Item::Label(name) => {
                if self.slots.insert(name, slot).is_some() {
                    return Err(place.error(format!("label `{name}` is defined twice")));
                }
                self.out.labels.push(Label {
                    name: name.to_owned(),
                    slot,
                });
            }
            Item::NumericLabel(number) => self.numeric.entry(number).or_default().push(slot),
            Item::Section(name) => self.out.sections.push(Label {
                name: name.to_owned(),
                slot,
            }),
            Item::Raw(value) => self.push(place, Insn::from_le_bytes(value.to_le_bytes())),
            Item::Statement { text, known } => self.statement(place, text, known)?,
        }
        Ok(())
    }

    fn push(&mut self, place: Place<'a>, insn: Insn) {
        self.out.insns.push(insn);
        self.out.lines.push(place.line);
    }

    fn statement(&mut self, place: Place<'a>, text: &'a str, known: Known) -> Result<(), AsmError> {
        let tokens =
            token::lex(text).map_err(|LexError { at, message }| place.later(at).error(message))?;
        let parser = Parser {
            tokens: &tokens,
            names: &self.names,
            resolver: self.resolver,
            known,
        };
        let at = |index: usize| tokens.get(index).map_or(text.len(), |t| t.at);
        let Instruction {
            first,
            second,
            target,
        } = parser
            .instruction()
            .map_err(|e| place.later(at(e.token)).error(e.message))?;
        if let Known::Slots(a, b) = known
            && target.is_none()
            && (first, second) != (a, b)
        {
            return Err(place.error("the text does not say what the bytes before it say"));
        }
        if let Some((target, reach, token)) = target {
            let slot = self.out.insns.len();
            self.fixups.push(Fixup {
                slot,
                place: place.later(at(token)),
                target,
                reach,
            });
        }
        self.push(place, first);
        if let Some(second) = second {
            self.push(place, second);
        }
        Ok(())
    }

    /// The slot that a target names, seen from slot `from`.
    fn find(&self, target: Target<'a>, from: usize) -> Option<usize> {
        match target {
            Target::Label(name) => self.slots.get(name).copied(),
            Target::Local { number, forward } => {
                let all = self.numeric.get(&number)?;
                if forward {
                    all.iter().find(|&&slot| slot > from).copied()
                } else {
                    all.iter().rfind(|&&slot| slot <= from).copied()
                }
            }
        }
    }

    fn finish(mut self) -> Result<Assembled, AsmError> {
        for fixup in std::mem::take(&mut self.fixups) {
            let Fixup {
                slot,
                place,
                target,
                reach,
            } = fixup;
            let Some(found) = self.find(target, slot) else {
                return Err(place.error(format!("there is no label `{target}`")));
            };
            let distance = found as i64 - slot as i64 - 1;
            let too_far = |bits| {
                place.error(format!(
                    "label `{target}` is {distance} slots away, which does not fit in {bits} bits"
                ))
            };
            let Some(insn) = self.out.insns.get_mut(slot) else {
                continue;
            };
            match reach {
                Reach::Off => insn.off = distance.try_into().map_err(|_| too_far(16))?,
                Reach::Imm => insn.imm = distance.try_into().map_err(|_| too_far(32))?,
            }
        }
        Ok(self.out)
    }
}
