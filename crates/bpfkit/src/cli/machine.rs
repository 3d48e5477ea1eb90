//! Machine code to text, with names instead of addresses.

use std::collections::BTreeMap;

use bpfkit_jit::Arch;
use iced_x86::{Decoder, DecoderOptions, Formatter, NasmFormatter};
use yaxpeax_arch::{Decoder as _, U8Reader};
use yaxpeax_arm::armv8::a64;

/// Names of places in the code and of addresses outside of it.
#[derive(Default)]
pub struct Names {
    /// By offset in the code.
    places: BTreeMap<u64, String>,
    /// Name and bytes by address.
    addresses: BTreeMap<u64, (String, u64)>,
}

impl Names {
    /// Names a place in the code, unless it has a name.
    pub fn place(&mut self, offset: u32, name: impl FnOnce() -> String) {
        self.places.entry(offset.into()).or_insert_with(name);
    }

    /// Names a place before the code.
    pub fn before(&mut self, offset: i32, name: String) {
        self.places.insert(i64::from(offset) as u64, name);
    }

    /// Names so many bytes at an address.
    pub fn address(&mut self, address: u64, bytes: u64, name: String) {
        self.addresses.insert(address, (name, bytes));
    }

    fn of_address(&self, address: u64) -> Option<String> {
        let (start, (name, bytes)) = self.addresses.range(..=address).next_back()?;
        match address - start {
            0 => Some(name.clone()),
            off if off < *bytes => Some(format!("{name}+{off}")),
            _ => None,
        }
    }
}

/// An instruction: offset in the code, and text.
pub type Line = (u32, String);

/// The instructions of code.
pub fn lines(arch: Arch, code: &[u8], names: &Names) -> Vec<Line> {
    match arch {
        Arch::X86_64 => x86_64(code, names),
        Arch::Aarch64 => aarch64(code, names),
    }
}

fn x86_64(code: &[u8], names: &Names) -> Vec<Line> {
    let decoder = Decoder::with_ip(64, code, 0, DecoderOptions::NONE);
    let mut formatter = NasmFormatter::new();
    let options = formatter.options_mut();
    options.set_space_after_operand_separator(true);
    options.set_hex_prefix("0x");
    options.set_hex_suffix("");
    options.set_show_branch_size(false);
    let mut lines = Vec::new();
    for instruction in decoder {
        let mut text = String::new();
        let name = if instruction.near_branch_target() != 0 {
            names.places.get(&instruction.near_branch_target()).cloned()
        } else {
            let immediate = (0..instruction.op_count())
                .filter_map(|i| instruction.try_immediate(i).ok())
                .next();
            immediate.and_then(|value| names.of_address(value))
        };
        formatter.format(&instruction, &mut text);
        if let Some(name) = name {
            let end = text.rfind([' ', ',']).map_or(0, |at| at + 1);
            text.replace_range(end.., &name);
        }
        lines.push((instruction.ip() as u32, text));
    }
    lines
}

/// The bits of `movn`, `movz`, `movk` as (opcode, register, value, shift).
fn wide_move(word: u32) -> Option<(u32, u32, u64, u32)> {
    let opcode = word & 0x7f80_0000;
    let known = matches!(opcode, MOVN | MOVZ | MOVK);
    let shift = (word >> 21 & 3) * 16;
    let value = u64::from(word >> 5 & 0xffff) << shift;
    known.then_some((opcode, word & 31, value, shift))
}

const MOVN: u32 = 0x1280_0000;
const MOVZ: u32 = 0x5280_0000;
const MOVK: u32 = 0x7280_0000;

/// The value that instructions from here on move to a register, and how many there are.
fn moved(words: &[u32]) -> Option<(u32, u64, usize)> {
    let (&first, rest) = words.split_first()?;
    let (opcode, register, value, _) = wide_move(first)?;
    let mut value = match opcode {
        MOVZ => value,
        MOVN => !value,
        _ => return None,
    };
    let mut count = 1;
    for (opcode, to, part, shift) in rest.iter().map_while(|word| wide_move(*word)) {
        if (opcode, to) != (MOVK, register) {
            break;
        }
        value = value & !(0xffff << shift) | part;
        count += 1;
    }
    Some((register, value, count))
}

fn aarch64(code: &[u8], names: &Names) -> Vec<Line> {
    let decoder = a64::InstDecoder::default();
    let words: Vec<u32> = code
        .as_chunks::<4>()
        .0
        .iter()
        .map(|bytes| u32::from_le_bytes(*bytes))
        .collect();
    let mut lines = Vec::new();
    let mut at = 0;
    while at < words.len() {
        let offset = at as u32 * 4;
        // An address takes several instructions, whose parts tell a reader nothing.
        if let Some((register, value, count)) = moved(&words[at..])
            && let Some(name) = names.of_address(value)
        {
            lines.push((offset, format!("mov x{register}, {name}")));
            at += count;
            continue;
        }
        let word = words[at];
        let text = match decoder.decode(&mut U8Reader::new(&word.to_le_bytes())) {
            Ok(instruction) => branch(&instruction, offset, names),
            Err(_) => format!(".word {word:#010x}"),
        };
        lines.push((offset, text));
        at += 1;
    }
    lines
}

/// The text of an instruction, with the name of the place it jumps to.
fn branch(instruction: &a64::Instruction, offset: u32, names: &Names) -> String {
    let text = instruction.to_string();
    let distance = instruction
        .operands
        .iter()
        .find_map(|operand| match operand {
            a64::Operand::PCOffset(distance) => Some(*distance),
            _ => None,
        });
    let Some(distance) = distance else {
        return text;
    };
    let to = i64::from(offset).wrapping_add(distance) as u64;
    let name = names.places.get(&to).cloned();
    let name = name.unwrap_or_else(|| format!("{to:#x}"));
    let end = text.rfind([' ', ',']).map_or(0, |at| at + 1);
    format!("{}{name}", &text[..end])
}
