//! The templates of the table, taken apart once for printing and for parsing.

use std::collections::HashMap;
use std::sync::LazyLock;

use crate::table::{self, Row};
use crate::token::{self, Token};

/// An assembly syntax.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Syntax {
    /// As the kernel's verifier and `bpftool prog dump xlated` print: `(07) r1 += 4`.
    Kernel,
    /// As `llvm-objdump -d` prints: `r1 += 0x4`.
    Llvm,
}

/// An operand in a template; [`crate::table`] lists what each stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Slot {
    Rd,
    Wd,
    Rs,
    Ws,
    Imm,
    Uimm,
    Num,
    Hi,
    Plus,
    Disp,
    To,
    Tol,
    AsDst,
    AsSrc,
    Imm64,
    Helper,
    Sub,
    Kfunc,
}

impl Slot {
    fn by_name(name: &str) -> Slot {
        match name {
            "rd" => Slot::Rd,
            "wd" => Slot::Wd,
            "rs" => Slot::Rs,
            "ws" => Slot::Ws,
            "imm" => Slot::Imm,
            "uimm" => Slot::Uimm,
            "num" => Slot::Num,
            "hi" => Slot::Hi,
            "plus" => Slot::Plus,
            "disp" => Slot::Disp,
            "to" => Slot::To,
            "tol" => Slot::Tol,
            "as_dst" => Slot::AsDst,
            "as_src" => Slot::AsSrc,
            "imm64" => Slot::Imm64,
            "helper" => Slot::Helper,
            "sub" => Slot::Sub,
            "kfunc" => Slot::Kfunc,
            _ => unreachable!("a template of the table names the operand {name:?}"),
        }
    }
}

/// A piece of a template.
pub(crate) enum Piece {
    /// Text that stands as it is, and the tokens it consists of.
    Text(&'static str, Vec<Token<'static>>),
    /// An operand.
    Operand(Slot),
}

/// A row's text in one syntax.
pub(crate) struct Template {
    pub row: &'static Row,
    pub syntax: Syntax,
    pub pieces: Vec<Piece>,
}

fn pieces(mut text: &'static str) -> Vec<Piece> {
    let mut pieces = Vec::new();
    while !text.is_empty() {
        if let Some((name, rest)) = text.strip_prefix('{').and_then(|t| t.split_once('}')) {
            pieces.push(Piece::Operand(Slot::by_name(name)));
            text = rest;
        } else {
            let (literal, rest) = text.split_at(text.find('{').unwrap_or(text.len()));
            let tokens = token::lex(literal).map(|all| all.into_iter().map(|t| t.token).collect());
            pieces.push(Piece::Text(literal, tokens.unwrap_or_default()));
            text = rest;
        }
    }
    pieces
}

/// Every template in the table's order, the kernel's before LLVM's; LLVM's is left
/// out where it is the same text.
pub(crate) static TEMPLATES: LazyLock<Vec<Template>> = LazyLock::new(|| {
    let mut all = Vec::new();
    for row in table::rows() {
        all.push(Template {
            row,
            syntax: Syntax::Kernel,
            pieces: pieces(row.kernel),
        });
        if row.llvm != row.kernel {
            all.push(Template {
                row,
                syntax: Syntax::Llvm,
                pieces: pieces(row.llvm),
            });
        }
    }
    all
});

/// Index in [`TEMPLATES`] by row (its address) and syntax.
static BY_ROW: LazyLock<HashMap<(usize, Syntax), usize>> = LazyLock::new(|| {
    let mut index = HashMap::new();
    for (i, template) in TEMPLATES.iter().enumerate() {
        let row = std::ptr::from_ref(template.row) as usize;
        index.insert((row, template.syntax), i);
        if template.syntax == Syntax::Kernel {
            // Replaced by the row's own LLVM text if that differs: it comes next.
            index.insert((row, Syntax::Llvm), i);
        }
    }
    index
});

/// A row's text in a syntax.
pub(crate) fn template(row: &'static Row, syntax: Syntax) -> &'static [Piece] {
    let key = (std::ptr::from_ref(row) as usize, syntax);
    BY_ROW
        .get(&key)
        .and_then(|&i| TEMPLATES.get(i))
        .map_or(&[], |t| &t.pieces)
}
