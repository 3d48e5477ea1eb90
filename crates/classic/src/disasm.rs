//! Filters as text: the forms of `tcpdump -d`, `-dd`, `-ddd`, and bpf_asm's syntax.

use std::fmt;

use crate::ancillary::Ancillary;
use crate::insn::Insn;
use crate::table::{Form, Row, Style, row_of};

/// A way to write a filter.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Syntax {
    /// `tcpdump -d`: `(001) jeq #0x800 jt 2 jf 5`, in columns.
    Tcpdump,
    /// `tcpdump -dd`: `{ 0x15, 0, 3, 0x00000800 },`.
    C,
    /// `tcpdump -ddd`: the count, then `21 0 3 2048`.
    Decimal,
    /// bpf_asm, with labels as bpf_dbg prints them: `l1: jeq #0x800, l2, l5`.
    BpfAsm,
}

/// A filter in a syntax, a line an instruction, each with its line end.
///
/// In bpf_asm's syntax an absolute load whose size the syntax has no ancillary name
/// for, and `ld [xor_x]`, are written with their number.
pub fn text(insns: &[Insn], syntax: Syntax) -> Text<'_> {
    Text { insns, syntax }
}

/// See [`fn@text`].
pub struct Text<'a> {
    insns: &'a [Insn],
    syntax: Syntax,
}

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.syntax == Syntax::Decimal {
            writeln!(f, "{}", self.insns.len())?;
        }
        for (at, insn) in self.insns.iter().enumerate() {
            let Insn { code, jt, jf, k } = *insn;
            match self.syntax {
                Syntax::Tcpdump => tcpdump(f, *insn, at)?,
                Syntax::C => write!(f, "{{ {code:#x}, {jt}, {jf}, 0x{k:08x} }},")?,
                Syntax::Decimal => write!(f, "{code} {jt} {jf} {k}")?,
                Syntax::BpfAsm => bpf_asm(f, *insn, at)?,
            }
            f.write_str("\n")?;
        }
        Ok(())
    }
}

fn tcpdump(f: &mut fmt::Formatter<'_>, insn: Insn, at: usize) -> fmt::Result {
    let Insn { code, jt, jf, k } = insn;
    let Some(row) = row_of(code) else {
        return write!(f, "({at:03}) {:<8} {code:#x}", "unimp");
    };
    let signed = k as i32;
    let operand = match row.operand {
        Style::None | Style::A => String::new(),
        Style::Decimal => format!("#{signed}"),
        Style::Hex => format!("#{k:#x}"),
        Style::Packet => match Ancillary::at(k) {
            Some(what) => format!("[{}]", what.row().tcpdump),
            None => format!("[{signed}]"),
        },
        Style::Indexed => format!("[x + {signed}]"),
        Style::Nibble => format!("4*([{signed}]&0xf)"),
        Style::Scratch => format!("M[{signed}]"),
        Style::X => "x".to_owned(),
        Style::Length => "#pktlen".to_owned(),
        // libpcap counts in 32 bits.
        Style::Target => format!("{}", (at as u32).wrapping_add(1).wrapping_add(k) as i32),
    };
    if is_branch(row) {
        let to = |skip: u8| at + 1 + usize::from(skip);
        write!(
            f,
            "({at:03}) {:<8} {operand:<16} jt {}\tjf {}",
            row.name,
            to(jt),
            to(jf)
        )
    } else {
        write!(f, "({at:03}) {:<8} {operand}", row.name)
    }
}

fn bpf_asm(f: &mut fmt::Formatter<'_>, insn: Insn, at: usize) -> fmt::Result {
    let Insn { code, jt, jf, k } = insn;
    let Some(row) = row_of(code) else {
        return write!(f, "l{at}:\tnosup {code:#x}");
    };
    let signed = k as i32;
    // `%#x` of C writes no prefix before a zero.
    let hex = if k == 0 {
        "0".to_owned()
    } else {
        format!("{k:#x}")
    };
    let operand = match row.operand {
        Style::None => String::new(),
        Style::Decimal if row.form == Form::ReturnK => format!(" #{hex}"),
        Style::Decimal => format!(" #{signed}"),
        Style::Hex => format!(" #{hex}"),
        Style::Packet => match Ancillary::at(k).and_then(|what| what.row().bpf_asm) {
            Some(name) => format!(" {name}"),
            None => format!(" [{signed}]"),
        },
        Style::Indexed => format!(" [x+{signed}]"),
        Style::Nibble => format!(" 4*([{signed}]&0xf)"),
        Style::Scratch => format!(" M[{signed}]"),
        Style::X => " x".to_owned(),
        Style::A => " a".to_owned(),
        Style::Length => " #len".to_owned(),
        Style::Target => format!(" l{}", (at as u32).wrapping_add(1).wrapping_add(k)),
    };
    write!(f, "l{at}:\t{}{operand}", row.name)?;
    if is_branch(row) {
        let to = |skip: u8| at + 1 + usize::from(skip);
        write!(f, ", l{}, l{}", to(jt), to(jf))?;
    }
    Ok(())
}

fn is_branch(row: &Row) -> bool {
    matches!(row.form, Form::JumpK(_) | Form::JumpX(_))
}
