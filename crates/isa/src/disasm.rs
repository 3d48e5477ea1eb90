//! The disassembler, in the kernel's syntax and in LLVM's.
//!
//! Any slot prints, malformed ones too: in the kernel's syntax as the kernel prints
//! them (the verifier shows an instruction before it refuses it), in LLVM's as
//! `<unknown>`.

use std::borrow::Cow;
use std::fmt;

use crate::decode::{row_of, select};
use crate::insn::{Insn, code};
use crate::op::{Imm64, Op};
use crate::syntax::{Piece, Slot, Syntax, template};
use crate::table::Row;

/// Names for the numbers in instructions. Each method may know nothing; then numbers
/// are printed.
pub trait Symbols {
    /// Name of a helper, with its `bpf_` prefix.
    fn helper(&self, id: i32) -> Option<Cow<'_, str>> {
        let _ = id;
        None
    }

    /// Name of a kernel function.
    fn kfunc(&self, btf_id: i32, btf_index: i16) -> Option<Cow<'_, str>> {
        let _ = (btf_id, btf_index);
        None
    }

    /// Name of the subprogram or label at a slot.
    fn label(&self, slot: usize) -> Option<Cow<'_, str>> {
        let _ = slot;
        None
    }

    /// What to print for a two-slot load at slot `at`, in place of the value: for
    /// instance `map[id:3]`, or `0x0` where addresses are not to be shown.
    fn imm64(&self, at: usize, value: Imm64) -> Option<Cow<'_, str>> {
        let _ = (at, value);
        None
    }
}

/// Knows no name.
pub struct NoSymbols;

impl Symbols for NoSymbols {}

/// The instruction at slot `at` of `insns`, as text. A two-slot load whose second slot
/// is missing prints as if that were zero; `at` past the end prints nothing.
///
/// The kernel's syntax has the opcode in front: `(07) r1 += 4`.
pub fn line<'a>(
    insns: &'a [Insn],
    at: usize,
    syntax: Syntax,
    symbols: &'a dyn Symbols,
) -> Line<'a> {
    Line {
        slots: insns.get(at..).unwrap_or(&[]),
        at,
        syntax,
        symbols,
    }
}

/// The whole program, a line for each instruction: `   0: (b7) r0 = 0` in the kernel's
/// syntax (as bpftool does), slot, bytes and text in LLVM's (as llvm-objdump does),
/// there with a line for each label before the slot it names.
pub fn listing<'a>(insns: &'a [Insn], syntax: Syntax, symbols: &'a dyn Symbols) -> Listing<'a> {
    Listing {
        insns,
        syntax,
        symbols,
    }
}

/// See [`fn@line`].
pub struct Line<'a> {
    slots: &'a [Insn],
    at: usize,
    syntax: Syntax,
    symbols: &'a dyn Symbols,
}

/// See [`listing`].
pub struct Listing<'a> {
    insns: &'a [Insn],
    syntax: Syntax,
    symbols: &'a dyn Symbols,
}

impl fmt::Display for Listing<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut at = 0;
        while let Some(rest @ [first, ..]) = self.insns.get(at..) {
            let text = line(self.insns, at, self.syntax, self.symbols);
            match self.syntax {
                Syntax::Kernel => writeln!(f, "{at:4}: {text}")?,
                Syntax::Llvm => {
                    if let Some(label) = self.symbols.label(at) {
                        writeln!(f, "{:016x} <{label}>:", at * Insn::BYTES)?;
                    }
                    write!(f, "{at:8}:")?;
                    let slots = rest.iter().take(first.slots());
                    for (i, byte) in slots.flat_map(|s| s.to_le_bytes()).enumerate() {
                        write!(f, "{}{byte:02x}", if i == 0 { '\t' } else { ' ' })?;
                    }
                    writeln!(f, "\t{text}")?;
                }
            }
            at += first.slots();
        }
        Ok(())
    }
}

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(&first) = self.slots.first() else {
            return Ok(());
        };
        match self.syntax {
            Syntax::Kernel => match select(first) {
                Ok(row) => {
                    write!(f, "({:02x}) ", first.code)?;
                    self.row(f, first, row)
                }
                Err(_) => self.malformed(f, first),
            },
            Syntax::Llvm => match row_of(self.slots) {
                Ok(row) => self.row(f, first, row),
                Err(_) => f.write_str("<unknown>"),
            },
        }
    }
}

impl Line<'_> {
    fn row(&self, f: &mut fmt::Formatter<'_>, insn: Insn, row: &'static Row) -> fmt::Result {
        // A name given for the value of a two-slot load takes the place of all that
        // stands after the equals sign.
        if row.next.is_some()
            && let Some(name) = self.load_name()
        {
            let ll = if self.syntax == Syntax::Llvm {
                " ll"
            } else {
                ""
            };
            return write!(f, "r{} = {name}{ll}", insn.dst);
        }
        for piece in template(row, self.syntax) {
            match piece {
                Piece::Text(text, _) => f.write_str(text)?,
                Piece::Operand(slot) => self.operand(f, insn, *slot)?,
            }
        }
        Ok(())
    }

    fn load_name(&self) -> Option<Cow<'_, str>> {
        match Op::decode(self.slots) {
            Ok(Op::LoadImm64 { value, .. }) => self.symbols.imm64(self.at, value),
            _ => None,
        }
    }

    fn operand(&self, f: &mut fmt::Formatter<'_>, insn: Insn, slot: Slot) -> fmt::Result {
        let Insn {
            dst, src, off, imm, ..
        } = insn;
        let high = self.slots.get(1).map_or(0, |next| next.imm);
        let kernel = self.syntax == Syntax::Kernel;
        match slot {
            Slot::Rd => write!(f, "r{dst}"),
            Slot::Wd => write!(f, "w{dst}"),
            Slot::Rs => write!(f, "r{src}"),
            Slot::Ws => write!(f, "w{src}"),
            Slot::Imm if kernel => write!(f, "{imm}"),
            Slot::Imm => write!(f, "{}", Hex(imm.into())),
            Slot::Uimm => write!(f, "{imm:#x}"),
            Slot::Num => write!(f, "{imm}"),
            Slot::Hi => write!(f, "{}", high as u32),
            Slot::Plus if kernel => write!(f, " + {imm}"),
            Slot::Plus if imm == 0 => Ok(()),
            Slot::Plus => write!(f, " + {}", Hex(imm.into())),
            Slot::Disp if kernel => write!(f, "{off:+}"),
            Slot::Disp => {
                let sign = if off < 0 { '-' } else { '+' };
                write!(f, "{sign} {:#x}", off.unsigned_abs())
            }
            Slot::To => self.jump(f, off.into()),
            Slot::Tol => self.jump(f, imm),
            Slot::AsDst => self.address_space(f, imm as u32 >> 16),
            Slot::AsSrc => self.address_space(f, imm as u32 & 0xffff),
            Slot::Imm64 => {
                let value = u64::from(imm as u32) | u64::from(high as u32) << 32;
                if kernel {
                    write!(f, "{value:#x}")
                } else {
                    write!(f, "{}", Hex(value as i64))
                }
            }
            Slot::Helper if kernel => {
                let name = self.symbols.helper(imm).unwrap_or("unknown".into());
                write!(f, "{name}#{imm}")
            }
            Slot::Helper => write!(f, "{}", Hex(imm.into())),
            Slot::Sub if kernel => {
                write!(f, "pc{imm:+}")?;
                self.label(imm).map_or(Ok(()), |name| write!(f, "#{name}"))
            }
            // LLVM prints the same text for the three kinds of call and leaves it to
            // relocations to tell them apart; a note in angle brackets, as it adds to
            // jumps, does that here.
            Slot::Sub => {
                write!(f, "{} ", Hex(imm.into()))?;
                match self.label(imm) {
                    Some(name) => write!(f, "<{name}>"),
                    None => write!(f, "<pc{imm:+}>"),
                }
            }
            Slot::Kfunc => match (self.symbols.kfunc(imm, off), kernel) {
                (Some(name), true) => write!(f, "{name}#{imm}"),
                (None, true) if off == 0 => write!(f, "kernel-function#{imm}"),
                (None, true) => write!(f, "kernel-function@{off}#{imm}"),
                (_, false) if off == 0 => write!(f, "{} <kfunc>", Hex(imm.into())),
                (_, false) => write!(f, "{} <kfunc@{off}>", Hex(imm.into())),
            },
        }
    }

    /// Name of the place `distance` slots after the next instruction.
    fn label(&self, distance: i32) -> Option<Cow<'_, str>> {
        let next = self.at.checked_add(1)?;
        self.symbols
            .label(next.checked_add_signed(distance as isize)?)
    }

    fn jump(&self, f: &mut fmt::Formatter<'_>, distance: i32) -> fmt::Result {
        if self.syntax == Syntax::Kernel {
            return write!(f, "pc{distance:+}");
        }
        let sign = if distance < 0 { '-' } else { '+' };
        write!(f, "{sign}{:#x}", distance.unsigned_abs())?;
        self.label(distance)
            .map_or(Ok(()), |name| write!(f, " <{name}>"))
    }

    fn address_space(&self, f: &mut fmt::Formatter<'_>, space: u32) -> fmt::Result {
        match self.syntax {
            Syntax::Kernel => write!(f, "{space}"),
            Syntax::Llvm => write!(f, "{space:#x}"),
        }
    }

    /// Text of the kernel's printer for slots that select no instruction.
    fn malformed(&self, f: &mut fmt::Formatter<'_>, insn: Insn) -> fmt::Result {
        let Insn {
            code,
            dst,
            src,
            off,
            imm,
        } = insn;
        let operation = code & 0xf0;
        match insn.class() {
            code::LD => write!(f, "BUG_ld_{code:02x}"),
            code::LDX => write!(f, "BUG_ldx_{code:02x}"),
            // Speculation barrier, which only rewriting makes.
            code::ST if code & 0xe0 == 0xc0 => write!(f, "({code:02x}) nospec"),
            code::ST => write!(f, "BUG_st_{code:02x}"),
            code::STX => write!(f, "BUG_{code:02x}"),
            code::ALU | code::ALU64 if operation == code::END => {
                let name = match (insn.class(), code & code::X) {
                    (code::ALU64, _) => "bswap",
                    (_, code::X) => "be",
                    _ => "le",
                };
                write!(f, "({code:02x}) r{dst} = {name}{imm} r{dst}")
            }
            code::JMP | code::JMP32 if operation == code::CALL => {
                if src == code::PSEUDO_CALL {
                    write!(f, "({code:02x}) call pc{imm:+}")
                } else {
                    write!(f, "({code:02x}) call unknown#{imm}")
                }
            }
            // Another selector of a known opcode prints as that opcode's first form.
            _ => match crate::decode::rows_of(code).first() {
                Some(row) => {
                    write!(f, "({code:02x}) ")?;
                    self.row(
                        f,
                        Insn {
                            code,
                            dst,
                            src,
                            off,
                            imm,
                        },
                        row,
                    )
                }
                None => write!(f, "BUG_{code:02x}"),
            },
        }
    }
}

/// A signed number in hexadecimal, the sign in front: `-0x5`.
struct Hex(i64);

impl fmt::Display for Hex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.0 < 0 { "-" } else { "" };
        write!(f, "{sign}{:#x}", self.0.unsigned_abs())
    }
}
