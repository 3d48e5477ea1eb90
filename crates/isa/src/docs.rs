//! The instruction reference, generated from the table.

use std::fmt::Write as _;

use crate::table::{Accepted, Field, GROUPS, Row};

/// The reference as Markdown: a section for each kind of instruction with a table of
/// its forms.
pub fn markdown() -> String {
    let mut out = String::from(
        "# eBPF instructions\n\n\
         An instruction is an opcode byte, two 4-bit fields `dst` and `src`, a signed 16-bit\n\
         field `off` and a signed 32-bit field `imm`; `lddw` has a second slot whose `imm` is\n\
         shown as `next`. A number in a field is what it must hold; a dash stands for zero.\n",
    );
    for group in GROUPS {
        let _ = write!(
            out,
            "\n## {}\n\n\
             | mnemonic | opcode | dst | src | off | imm | next | kernel syntax | LLVM syntax | ISA | Linux | meaning |\n\
             | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n",
            group.title
        );
        for row in group.rows {
            let _ = writeln!(
                out,
                "| `{}` | `{:#04x}` | {} | {} | {} | {} | {} | `{}` | `{}` | {} | {} | {} |",
                row.mnemonic,
                row.code,
                field(row.dst, "reg"),
                field(row.src, "reg"),
                field(row.off, "s16"),
                field(row.imm, "s32"),
                row.next.map_or_else(String::new, |next| field(next, "s32")),
                example(row.kernel),
                example(row.llvm),
                row.isa.name(),
                kernel(row),
                row.meaning,
            );
        }
    }
    out
}

fn field(field: Field, any: &str) -> String {
    match field {
        Field::Zero => "–".to_owned(),
        Field::Is(value) => value.to_string(),
        Field::Reg | Field::Any => any.to_owned(),
    }
}

/// First kernel version that takes a form, or why none does.
fn kernel(row: &Row) -> String {
    match row.accepted {
        Accepted::Since(major, minor) => format!("{major}.{minor}"),
        Accepted::Rewritten => "internal".to_owned(),
        Accepted::Never => "never".to_owned(),
    }
}

/// A template with its operands by their names, and no bar that would end a cell.
fn example(template: &str) -> String {
    // Where the kernel and LLVM write an operand differently the plain name stands for both.
    const NAMES: &[(&str, &str)] = &[
        ("{rd}", "dst"),
        ("{rs}", "src"),
        ("{wd}", "wdst"),
        ("{ws}", "wsrc"),
        ("{imm}", "imm"),
        ("{uimm}", "imm"),
        ("{num}", "imm"),
        ("{hi}", "next"),
        ("{plus}", " + imm"),
        ("{disp}", "+ off"),
        ("{to}", "+off"),
        ("{tol}", "+imm"),
        ("{as_dst}", "imm>>16"),
        ("{as_src}", "imm&0xffff"),
        ("{imm64}", "imm64"),
        ("{helper}", "helper"),
        ("{sub}", "pc+imm"),
        ("{kfunc}", "kfunc"),
    ];
    let text = NAMES
        .iter()
        .fold(template.to_owned(), |text, (operand, name)| {
            text.replace(operand, name)
        });
    text.replace('|', "\\|")
}
