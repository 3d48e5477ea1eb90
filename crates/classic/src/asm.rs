//! The assembler: reads every form that [`crate::disasm`] writes, and what people write
//! for bpf_asm: labels, `jneq`, `jlt`, `jle`, one-sided jumps, `ldi`, `ldxi`, `%x`,
//! comments after `;` or in `/* … */`, lines of comment after `# `.
//!
//! The form is found out by the first characters: `{` is C, a bare number is
//! `tcpdump -ddd` (also in one line with commas, as bpf_asm prints it), else text.

use std::collections::HashMap;

use crate::ancillary::ANCILLARY;
use crate::insn::{Insn, code};
use crate::table::{Form, Style, TABLE};

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

/// Assembles a filter. It is not checked: see [`crate::Program`].
pub fn assemble(text: &str) -> Result<Vec<Insn>, AsmError> {
    let tokens = lex(text)?;
    let mut parser = Parser {
        tokens: &tokens,
        at: 0,
        end: end_of(text),
    };
    match parser.peek() {
        None => Ok(Vec::new()),
        Some(Token::Sign('{')) => parser.c_form(),
        Some(Token::Number(_)) => parser.decimal_form(),
        _ => parser.text_form(),
    }
}

/// Place one past the last character.
fn end_of(text: &str) -> (usize, usize) {
    let last = text.lines().last().unwrap_or("");
    (text.lines().count().max(1), last.chars().count() + 1)
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Token<'a> {
    Word(&'a str),
    Number(u64),
    Sign(char),
    /// `(012)` at the beginning of a line of `tcpdump -d`.
    Index,
    NewLine,
}

impl std::fmt::Display for Token<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Token::Word(word) => write!(f, "`{word}`"),
            Token::Number(number) => write!(f, "`{number}`"),
            Token::Sign(sign) => write!(f, "`{sign}`"),
            Token::Index => f.write_str("an instruction's number"),
            Token::NewLine => f.write_str("the end of the line"),
        }
    }
}

struct Located<'a> {
    token: Token<'a>,
    line: usize,
    column: usize,
}

fn lex(text: &str) -> Result<Vec<Located<'_>>, AsmError> {
    let mut tokens = Vec::new();
    let mut in_comment = false;
    for (i, line) in text.lines().enumerate() {
        let mut at = 0;
        let mut column = 1;
        // A comment as in shell scripts; `#` elsewhere begins a constant.
        let start = line.trim_start();
        let skip = !in_comment && (start.starts_with("# ") || start == "#");
        while let Some(rest) = line.get(at..).filter(|r| !r.is_empty() && !skip) {
            let Some(c) = rest.chars().next() else { break };
            let mut len = c.len_utf8();
            let mut push = |token| {
                tokens.push(Located {
                    token,
                    line: i + 1,
                    column,
                })
            };
            if in_comment {
                if rest.starts_with("*/") {
                    (in_comment, len) = (false, 2);
                }
            } else if rest.starts_with("/*") {
                (in_comment, len) = (true, 2);
            } else if c == ';' {
                break;
            } else if c.is_alphabetic() || c == '_' {
                len = rest
                    .find(|c: char| !c.is_alphanumeric() && c != '_')
                    .unwrap_or(rest.len());
                push(Token::Word(&rest[..len]));
            } else if c.is_ascii_digit() {
                len = rest
                    .find(|c: char| !c.is_alphanumeric())
                    .unwrap_or(rest.len());
                let number = number(&rest[..len]).ok_or_else(|| AsmError {
                    line: i + 1,
                    column,
                    message: format!("`{}` is not a number", &rest[..len]),
                })?;
                push(Token::Number(number));
            } else if c == '(' && start.len() == rest.len() && index(rest).is_some() {
                len = index(rest).unwrap_or(1);
                push(Token::Index);
            } else if !c.is_whitespace() {
                push(Token::Sign(c));
            }
            column += rest[..len].chars().count();
            at += len;
        }
        tokens.push(Located {
            token: Token::NewLine,
            line: i + 1,
            column,
        });
    }
    Ok(tokens)
}

/// Length of the `(012)` that `text` starts with.
fn index(text: &str) -> Option<usize> {
    let (digits, _) = text.strip_prefix('(')?.split_once(')')?;
    let number = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    number.then_some(digits.len() + 2)
}

/// A number as C writes it: hexadecimal, octal or decimal.
fn number(text: &str) -> Option<u64> {
    if let Some(hex) = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        u64::from_str_radix(hex, 16).ok()
    } else if text.len() > 1 && text.starts_with('0') {
        u64::from_str_radix(text, 8).ok()
    } else {
        text.parse().ok()
    }
}

/// An instruction jumped to.
#[derive(Clone, Copy)]
enum Target<'a> {
    Label(&'a str),
    /// By its number, as tcpdump writes it.
    Number(u64),
}

/// Which field of an instruction takes the distance to a target.
#[derive(Clone, Copy)]
enum Field {
    Jt,
    Jf,
    K,
}

/// A distance still to be written, with the token that names the target.
struct Fixup<'a> {
    insn: usize,
    field: Field,
    target: Target<'a>,
    token: usize,
}

struct Parser<'a, 't> {
    tokens: &'t [Located<'a>],
    at: usize,
    end: (usize, usize),
}

impl<'a> Parser<'a, '_> {
    /// The next token that is no line end.
    fn peek(&mut self) -> Option<Token<'a>> {
        while self
            .tokens
            .get(self.at)
            .is_some_and(|t| t.token == Token::NewLine)
        {
            self.at += 1;
        }
        self.tokens.get(self.at).map(|t| t.token)
    }

    fn here<T>(&self, message: impl Into<String>) -> Result<T, AsmError> {
        self.at_token(self.at, message)
    }

    fn at_token<T>(&self, token: usize, message: impl Into<String>) -> Result<T, AsmError> {
        let (line, column) = self
            .tokens
            .get(token)
            .map_or(self.end, |t| (t.line, t.column));
        Err(AsmError {
            line,
            column,
            message: message.into(),
        })
    }

    fn expected<T>(&self, what: &str) -> Result<T, AsmError> {
        match self.tokens.get(self.at) {
            Some(found) => self.here(format!("expected {what}, found {}", found.token)),
            None => self.here(format!("expected {what}, found the end")),
        }
    }

    fn take(&mut self, sign: char) -> bool {
        let found = self
            .tokens
            .get(self.at)
            .is_some_and(|t| t.token == Token::Sign(sign));
        self.at += usize::from(found);
        found
    }

    fn need(&mut self, sign: char) -> Result<(), AsmError> {
        if self.take(sign) {
            Ok(())
        } else {
            self.expected(&format!("`{sign}`"))
        }
    }

    /// A number that fits in `bits` bits, negative ones as two's complement.
    fn number(&mut self, bits: u32) -> Result<u32, AsmError> {
        let start = self.at;
        let negative = self.take('-');
        let Some(&Token::Number(value)) = self.tokens.get(self.at).map(|t| &t.token) else {
            return self.expected("a number");
        };
        self.at += 1;
        let limit = 1u64 << bits;
        if negative && bits == 32 && value <= limit / 2 {
            return Ok((value as u32).wrapping_neg());
        }
        if negative || value >= limit {
            let sign = if negative { "-" } else { "" };
            return self.at_token(start, format!("{sign}{value} does not fit in {bits} bits"));
        }
        Ok(value as u32)
    }

    /// `{ 0x28, 0, 0, 0x0000000c },` for each instruction.
    fn c_form(&mut self) -> Result<Vec<Insn>, AsmError> {
        let mut insns = Vec::new();
        while self.peek().is_some() {
            self.need('{')?;
            let code = self.number(16)? as u16;
            self.need(',')?;
            let jt = self.number(8)? as u8;
            self.need(',')?;
            let jf = self.number(8)? as u8;
            self.need(',')?;
            let k = self.number(32)?;
            self.need('}')?;
            self.take(',');
            insns.push(Insn { code, jt, jf, k });
        }
        Ok(insns)
    }

    /// The count, and four numbers for each instruction.
    fn decimal_form(&mut self) -> Result<Vec<Insn>, AsmError> {
        let count = self.number(32)?;
        let mut insns = Vec::new();
        self.take(',');
        while self.peek().is_some() {
            let code = self.number(16)? as u16;
            let jt = self.number(8)? as u8;
            let jf = self.number(8)? as u8;
            let k = self.number(32)?;
            self.take(',');
            insns.push(Insn { code, jt, jf, k });
        }
        if insns.len() != count as usize {
            return self.at_token(
                0,
                format!("{count} instructions announced, {} there", insns.len()),
            );
        }
        Ok(insns)
    }

    fn text_form(&mut self) -> Result<Vec<Insn>, AsmError> {
        let mut insns: Vec<Insn> = Vec::new();
        let mut labels = HashMap::new();
        let mut fixups = Vec::new();
        while let Some(token) = self.peek() {
            match token {
                Token::Index => self.at += 1,
                Token::Word(name)
                    if self
                        .tokens
                        .get(self.at + 1)
                        .is_some_and(|t| t.token == Token::Sign(':')) =>
                {
                    if labels.insert(name, insns.len()).is_some() {
                        return self.here(format!("label `{name}` is defined twice"));
                    }
                    self.at += 2;
                }
                Token::Word(name) => {
                    let insn = self.statement(name, insns.len(), &mut fixups)?;
                    insns.push(insn);
                    match self.tokens.get(self.at).map(|t| t.token) {
                        None | Some(Token::NewLine) => {}
                        Some(_) => return self.expected("the end of the line"),
                    }
                }
                _ => return self.expected("an instruction"),
            }
        }
        for Fixup {
            insn,
            field,
            target,
            token,
        } in fixups
        {
            let (to, name) = match target {
                Target::Label(name) => match labels.get(name) {
                    Some(&to) => (to as i64, name.to_owned()),
                    None => return self.at_token(token, format!("there is no label `{name}`")),
                },
                Target::Number(to) => (i64::try_from(to).unwrap_or(i64::MAX), to.to_string()),
            };
            let skip = to.saturating_sub(insn as i64 + 1);
            if skip < 0 && !matches!(field, Field::K) {
                return self.at_token(
                    token,
                    format!("jump back to `{name}`: jumps only go forward"),
                );
            }
            // Only `ja` has room for jumps back, which libpcap makes use of.
            let limit = if matches!(field, Field::K) {
                i32::MAX.into()
            } else {
                u8::MAX.into()
            };
            if skip > limit {
                return self.at_token(
                    token,
                    format!("`{name}` is {skip} instructions ahead, more than {limit}"),
                );
            }
            let Some(insn) = insns.get_mut(insn) else {
                continue;
            };
            match field {
                Field::Jt => insn.jt = skip as u8,
                Field::Jf => insn.jf = skip as u8,
                Field::K => insn.k = skip as u32,
            }
        }
        Ok(insns)
    }

    /// One instruction, without label and number.
    fn statement(
        &mut self,
        name: &'a str,
        insn: usize,
        fixups: &mut Vec<Fixup<'a>>,
    ) -> Result<Insn, AsmError> {
        let start = self.at;
        self.at += 1;
        // Other names for an instruction, and whether its two targets change places.
        let (name, swapped) = match name {
            "jmp" => ("ja", false),
            "ldi" => ("ld", false),
            "ldxi" => ("ldx", false),
            "jne" | "jneq" => ("jeq", true),
            "jlt" => ("jge", true),
            "jle" => ("jgt", true),
            name => (name, false),
        };
        let rows = || TABLE.iter().filter(move |row| row.name == name);
        if rows().next().is_none() {
            return self.at_token(start, format!("`{name}` is no instruction"));
        }
        if name == "ja" {
            let code = code::JMP | code::JA;
            self.target(insn, Field::K, fixups)?;
            return Ok(Insn::new(code, 0));
        }
        let (style, k) = self.operand(rows().any(|row| row.operand == Style::None))?;
        let same = |row: Style| match (row, style) {
            (Style::Decimal | Style::Hex, Style::Decimal) => true,
            // libpcap leaves out the `a` of `ret`.
            (Style::A, Style::None) => true,
            (a, b) => a == b,
        };
        let Some(row) = rows().find(|row| same(row.operand)) else {
            return self.at_token(start + 1, format!("`{name}` does not take this operand"));
        };
        if matches!(row.form, Form::JumpK(_) | Form::JumpX(_)) {
            self.branch(insn, swapped, fixups)?;
        }
        Ok(Insn::new(row.code, k))
    }

    /// An operand and what it says for `k`.
    fn operand(&mut self, may_lack: bool) -> Result<(Style, u32), AsmError> {
        self.take('%');
        let Some(token) = self.tokens.get(self.at).map(|t| t.token) else {
            return Ok((Style::None, 0));
        };
        match token {
            Token::NewLine => Ok((Style::None, 0)),
            _ if may_lack => self.expected("the end of the line"),
            Token::Sign('#') => {
                self.at += 1;
                match self.tokens.get(self.at).map(|t| t.token) {
                    Some(Token::Word(name)) => self.named(name),
                    _ => Ok((Style::Decimal, self.number(32)?)),
                }
            }
            Token::Sign('[') => {
                self.at += 1;
                self.take('%');
                let style = match self.tokens.get(self.at).map(|t| t.token) {
                    Some(Token::Word("x")) => {
                        self.at += 1;
                        if !self.take('+')
                            && self.tokens.get(self.at).map(|t| t.token) != Some(Token::Sign('-'))
                        {
                            return self.expected("`+`");
                        }
                        (Style::Indexed, self.number(32)?)
                    }
                    Some(Token::Word(name)) => self.named(name)?,
                    _ => (Style::Packet, self.number(32)?),
                };
                self.need(']')?;
                Ok(style)
            }
            Token::Word("M") => {
                self.at += 1;
                self.need('[')?;
                let k = self.number(32)?;
                self.need(']')?;
                Ok((Style::Scratch, k))
            }
            Token::Word("x") => {
                self.at += 1;
                Ok((Style::X, 0))
            }
            Token::Word("a") => {
                self.at += 1;
                Ok((Style::A, 0))
            }
            Token::Word(name) => self.named(name),
            Token::Number(4) if self.nibble_follows() => {
                self.at += 2;
                self.need('(')?;
                self.need('[')?;
                let k = self.number(32)?;
                self.need(']')?;
                self.need('&')?;
                if self.number(32)? != 15 {
                    self.at -= 1;
                    return self.expected("0xf");
                }
                self.need(')')?;
                Ok((Style::Nibble, k))
            }
            // bpf_asm takes constants without `#` after `ldi` and `ldxi`.
            Token::Number(_) | Token::Sign('-') => Ok((Style::Decimal, self.number(32)?)),
            _ => self.expected("an operand"),
        }
    }

    fn nibble_follows(&self) -> bool {
        self.tokens
            .get(self.at + 1)
            .is_some_and(|t| t.token == Token::Sign('*'))
    }

    /// The length or an ancillary load by name.
    fn named(&mut self, name: &str) -> Result<(Style, u32), AsmError> {
        let found = ANCILLARY
            .iter()
            .find(|row| row.tcpdump == name || row.bpf_asm == Some(name));
        let operand = match (name, found) {
            ("len" | "pktlen", _) => (Style::Length, 0),
            (_, Some(row)) => (Style::Packet, row.what.k()),
            (_, None) => return self.here(format!("`{name}` is no operand")),
        };
        self.at += 1;
        Ok(operand)
    }

    /// What follows the operand of a conditional jump: `jt N jf N`, or one or two labels.
    fn branch(
        &mut self,
        insn: usize,
        swapped: bool,
        fixups: &mut Vec<Fixup<'a>>,
    ) -> Result<(), AsmError> {
        let (first, second) = if swapped {
            (Field::Jf, Field::Jt)
        } else {
            (Field::Jt, Field::Jf)
        };
        if self.word("jt") {
            self.target(insn, Field::Jt, fixups)?;
            if !self.word("jf") {
                return self.expected("`jf`");
            }
            return self.target(insn, Field::Jf, fixups);
        }
        self.need(',')?;
        self.target(insn, first, fixups)?;
        // Without a second target the comparison that fails goes on behind.
        if self.take(',') {
            self.target(insn, second, fixups)
        } else {
            Ok(())
        }
    }

    fn word(&mut self, word: &str) -> bool {
        let found = self
            .tokens
            .get(self.at)
            .is_some_and(|t| t.token == Token::Word(word));
        self.at += usize::from(found);
        found
    }

    fn target(
        &mut self,
        insn: usize,
        field: Field,
        fixups: &mut Vec<Fixup<'a>>,
    ) -> Result<(), AsmError> {
        let target = match self.tokens.get(self.at).map(|t| t.token) {
            Some(Token::Word(name)) => Target::Label(name),
            Some(Token::Number(number)) => Target::Number(number),
            _ => return self.expected("a label or an instruction's number"),
        };
        fixups.push(Fixup {
            insn,
            field,
            target,
            token: self.at,
        });
        self.at += 1;
        Ok(())
    }
}
