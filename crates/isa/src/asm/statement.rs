//! From the tokens of one statement to an instruction: every template of the table is
//! tried in turn; if none fits, the error is that of the attempt that came furthest.

use std::collections::{BTreeSet, HashSet};
use std::fmt;

use super::{MapRef, Resolver};
use crate::insn::{Insn, Reg};
use crate::op::{Imm64, Op};
use crate::syntax::{Piece, Slot, Syntax, TEMPLATES, Template};
use crate::table::{Field, Form, Row};
use crate::token::{Located, Token};

/// What a listing says of an instruction before its text.
#[derive(Clone, Copy)]
pub(super) enum Known {
    /// Nothing: not a listing.
    Nothing,
    /// The opcode.
    Code(u8),
    /// Everything.
    Slots(Insn, Option<Insn>),
}

impl Known {
    pub(super) fn is_listing(self) -> bool {
        !matches!(self, Known::Nothing)
    }

    fn allows(self, row: &Row) -> bool {
        match self {
            Known::Nothing => true,
            Known::Code(code) => row.code == code,
            Known::Slots(insn, _) => {
                let src = i32::from(insn.src);
                row.code == insn.code && !matches!(row.src, Field::Is(v) if v != src)
            }
        }
    }
}

/// A place in the program that an instruction names.
#[derive(Clone, Copy)]
pub(super) enum Target<'a> {
    Label(&'a str),
    Local { number: u64, forward: bool },
}

impl fmt::Display for Target<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Target::Label(name) => f.write_str(name),
            Target::Local { number, forward } => Token::LocalLabel { number, forward }.fmt(f),
        }
    }
}

/// The field that takes the distance to a target.
#[derive(Clone, Copy)]
pub(super) enum Reach {
    Off,
    Imm,
}

/// An instruction whose target, if it has one by name, is still to be filled in.
pub(super) struct Instruction<'a> {
    pub first: Insn,
    pub second: Option<Insn>,
    /// Target, the field it goes to, and the token that names it.
    pub target: Option<(Target<'a>, Reach, usize)>,
}

/// Why a statement is no instruction, and the index of the token where.
pub(super) struct StatementError {
    pub token: usize,
    pub message: String,
}

/// Why one attempt failed.
enum Failure {
    /// Something else should stand here.
    Expected(&'static str),
    /// What stands here is wrong.
    Wrong(String),
}

type Attempt<T> = Result<T, (usize, Failure)>;

fn expected<T>(token: usize, what: &'static str) -> Attempt<T> {
    Err((token, Failure::Expected(what)))
}

fn wrong<T>(token: usize, message: String) -> Attempt<T> {
    Err((token, Failure::Wrong(message)))
}

/// The attempt that came furthest.
#[derive(Default)]
struct Furthest {
    token: usize,
    expected: BTreeSet<&'static str>,
    wrong: Option<String>,
}

impl Furthest {
    fn add(&mut self, token: usize, failure: Failure) {
        if token > self.token {
            *self = Furthest {
                token,
                ..Furthest::default()
            };
        }
        if token == self.token {
            match failure {
                Failure::Expected(what) => _ = self.expected.insert(what),
                Failure::Wrong(message) => _ = self.wrong.get_or_insert(message),
            }
        }
    }

    fn error(self, found: Option<Token<'_>>) -> StatementError {
        // Longer lists help nobody.
        const SHOWN: usize = 6;
        let found = found.map_or("the end".to_owned(), |t| format!("`{t}`"));
        let message = match (self.wrong, self.token) {
            (Some(message), _) => message,
            (None, 0) => format!("no instruction starts with {found}"),
            (None, _) => {
                let mut list = self
                    .expected
                    .iter()
                    .take(SHOWN)
                    .copied()
                    .collect::<Vec<_>>()
                    .join(", ");
                if self.expected.len() > SHOWN {
                    list.push_str(", …");
                } else if let Some(comma) = list.rfind(", ") {
                    list.replace_range(comma..comma + 2, " or ");
                }
                format!("expected {list}, found {found}")
            }
        };
        StatementError {
            token: self.token,
            message,
        }
    }
}

/// The fields of an instruction as far as they are known.
#[derive(Default)]
struct Fields<'a> {
    dst: Option<u8>,
    src: Option<u8>,
    off: i16,
    imm: i32,
    high: i32,
    target: Option<(Target<'a>, Reach, usize)>,
}

/// A statement and what is needed to understand its names.
pub(super) struct Parser<'a, 'p> {
    pub tokens: &'p [Located<'a>],
    /// Every label of the text.
    pub names: &'p HashSet<&'a str>,
    pub resolver: &'p dyn Resolver,
    pub known: Known,
}

impl<'a> Parser<'a, '_> {
    pub(super) fn instruction(&self) -> Result<Instruction<'a>, StatementError> {
        let mut furthest = Furthest::default();
        for template in TEMPLATES.iter() {
            // The kernel prints a 64-bit constant as it prints a 32-bit one: only the
            // opcode in front tells them apart.
            let bare = template.row.form == Form::LoadValue && template.syntax == Syntax::Kernel;
            if !self.known.allows(template.row) || bare && !self.known.is_listing() {
                continue;
            }
            match self.template(template) {
                Ok(fields) => return Ok(finish(template.row, fields)),
                Err((token, failure)) => furthest.add(token, failure),
            }
        }
        match self.named_load() {
            Ok(instruction) => Ok(instruction),
            Err((token, failure)) => {
                furthest.add(token, failure);
                let found = self.token(furthest.token);
                Err(furthest.error(found))
            }
        }
    }

    fn token(&self, index: usize) -> Option<Token<'a>> {
        self.tokens.get(index).map(|t| t.token)
    }

    fn template(&self, template: &Template) -> Attempt<Fields<'a>> {
        let mut fields = Fields::default();
        let mut at = 0;
        for piece in &template.pieces {
            at = match piece {
                Piece::Text(_, tokens) => self.literal(at, tokens)?,
                Piece::Operand(slot) => self.operand(at, *slot, &mut fields)?,
            };
        }
        self.end(at)?;
        Ok(fields)
    }

    fn end(&self, at: usize) -> Attempt<()> {
        if at < self.tokens.len() {
            expected(at, "the end")
        } else {
            Ok(())
        }
    }

    fn literal(&self, mut at: usize, tokens: &[Token<'static>]) -> Attempt<usize> {
        for &token in tokens {
            if self.token(at) != Some(token) {
                return match token {
                    Token::Word(text) | Token::Sign(text) => expected(at, text),
                    _ => expected(at, "a number"),
                };
            }
            at += 1;
        }
        Ok(at)
    }

    fn sign(&self, at: usize, sign: &'static str) -> Attempt<usize> {
        self.literal(at, &[Token::Sign(sign)])
    }

    /// Number of the register at `at`, whose name begins with `letter`.
    fn register(&self, at: usize, letter: char) -> Attempt<u8> {
        let what = if letter == 'r' {
            "a register r0–r10"
        } else {
            "a register w0–w10"
        };
        let Some(Token::Word(word)) = self.token(at) else {
            return expected(at, what);
        };
        let digits = word.strip_prefix([letter, letter.to_ascii_uppercase()]);
        match digits
            .filter(|d| d.bytes().all(|b| b.is_ascii_digit()))
            .map(str::parse::<u8>)
        {
            Some(Ok(number)) if Reg::new(number).is_some() => Ok(number),
            Some(_) if digits != Some("") => wrong(
                at,
                format!("register {word} does not exist: the last is {letter}10"),
            ),
            _ => expected(at, what),
        }
    }

    /// A number with or without sign.
    fn number(&self, at: usize) -> Attempt<(i128, usize)> {
        let (negative, at) = match self.token(at) {
            Some(Token::Sign("-")) => (true, at + 1),
            Some(Token::Sign("+")) => (false, at + 1),
            _ => (false, at),
        };
        match self.token(at) {
            Some(Token::Number(value)) => {
                let value = i128::from(value);
                Ok((if negative { -value } else { value }, at + 1))
            }
            _ => expected(at, "a number"),
        }
    }

    /// A number that fits in `bits` bits as a signed one, or, if `wrapping`, as either.
    fn number_of(&self, at: usize, bits: u32, wrapping: bool) -> Attempt<(i64, usize)> {
        let (value, next) = self.number(at)?;
        let half = 1i128 << (bits - 1);
        let end = if wrapping { 2 * half } else { half };
        if value < -half || value >= end {
            let hint = if bits == 32 {
                "; for a 64-bit constant write ` ll` after it"
            } else {
                ""
            };
            return wrong(at, format!("{value} does not fit in {bits} bits{hint}"));
        }
        Ok((value as i64, next))
    }

    fn operand(&self, at: usize, slot: Slot, fields: &mut Fields<'a>) -> Attempt<usize> {
        match slot {
            Slot::Rd => same(at, &mut fields.dst, self.register(at, 'r')?),
            Slot::Wd => same(at, &mut fields.dst, self.register(at, 'w')?),
            Slot::Rs => same(at, &mut fields.src, self.register(at, 'r')?),
            Slot::Ws => same(at, &mut fields.src, self.register(at, 'w')?),
            Slot::Imm | Slot::Uimm | Slot::Num => {
                let (value, next) = self.number_of(at, 32, true)?;
                fields.imm = value as i32;
                Ok(next)
            }
            Slot::Hi => {
                let (value, next) = self.number_of(at, 32, true)?;
                fields.high = value as i32;
                Ok(next)
            }
            Slot::Plus => {
                let signed = matches!(self.token(at), Some(Token::Sign("+" | "-")));
                if !signed {
                    return Ok(at);
                }
                let at = if self.token(at) == Some(Token::Sign("+")) {
                    at + 1
                } else {
                    at
                };
                self.operand(at, Slot::Imm, fields)
            }
            Slot::Disp => {
                let at = match self.token(at) {
                    Some(Token::Sign("+")) => at + 1,
                    Some(Token::Sign("-")) => at,
                    _ => return expected(at, "+ or - and an offset"),
                };
                let (value, next) = self.number_of(at, 16, false)?;
                fields.off = value as i16;
                Ok(next)
            }
            Slot::To | Slot::Tol => self.jump(at, slot, fields),
            Slot::AsDst => {
                let (value, next) = self.address_space(at)?;
                fields.imm |= i32::from(value) << 16;
                Ok(next)
            }
            Slot::AsSrc => {
                let (value, next) = self.address_space(at)?;
                fields.imm |= i32::from(value);
                Ok(next)
            }
            Slot::Imm64 => {
                let (value, next) = self.number(at)?;
                if value < i128::from(i64::MIN) {
                    return wrong(at, format!("{value} does not fit in 64 bits"));
                }
                (fields.imm, fields.high) = (value as i32, (value >> 32) as i32);
                Ok(next)
            }
            Slot::Helper => self.helper(at, fields),
            Slot::Sub => self.subprogram(at, fields),
            Slot::Kfunc => self.kfunc(at, fields),
        }
    }

    fn address_space(&self, at: usize) -> Attempt<(u16, usize)> {
        let (value, next) = self.number(at)?;
        match u16::try_from(value) {
            Ok(space) => Ok((space, next)),
            Err(_) => wrong(at, format!("{value} is no address space: they are 0–65535")),
        }
    }

    /// A label, a numeric label or `pc±N`.
    fn place(&self, at: usize) -> Option<Target<'a>> {
        match (self.token(at), self.token(at + 1)) {
            (Some(Token::Word("pc")), Some(Token::Sign("+" | "-"))) => None,
            (Some(Token::Word(name)), _) => Some(Target::Label(name)),
            (Some(Token::LocalLabel { number, forward }), _) => {
                Some(Target::Local { number, forward })
            }
            _ => None,
        }
    }

    fn jump(&self, at: usize, slot: Slot, fields: &mut Fields<'a>) -> Attempt<usize> {
        let reach = if slot == Slot::To {
            Reach::Off
        } else {
            Reach::Imm
        };
        if let Some(target) = self.place(at) {
            fields.target = Some((target, reach, at));
            return Ok(at + 1);
        }
        let pc = usize::from(self.token(at) == Some(Token::Word("pc")));
        let bits = if slot == Slot::To { 16 } else { 32 };
        if !matches!(
            self.token(at + pc),
            Some(Token::Number(_) | Token::Sign("+" | "-"))
        ) {
            return expected(at, "a label or a distance");
        }
        let (value, next) = self.number_of(at + pc, bits, false)?;
        match reach {
            Reach::Off => fields.off = value as i16,
            Reach::Imm => fields.imm = value as i32,
        }
        let noted = matches!(self.token(next), Some(Token::Note(_)));
        Ok(next + usize::from(noted))
    }

    /// `#N` at `at`, if it is there.
    fn number_sign(&self, at: usize) -> Attempt<Option<(i32, usize)>> {
        if self.token(at) != Some(Token::Sign("#")) {
            return Ok(None);
        }
        let (value, next) = self.number_of(at + 1, 32, true)?;
        Ok(Some((value as i32, next)))
    }

    fn helper(&self, at: usize, fields: &mut Fields<'a>) -> Attempt<usize> {
        let Some(Token::Word(name)) = self.token(at) else {
            let (value, next) = self.number_of(at, 32, true)?;
            fields.imm = value as i32;
            return Ok(next);
        };
        let known = self.resolver.helper(name);
        let kfunc = self.resolver.kfunc(name).is_some();
        if let Some((id, next)) = self.number_sign(at + 1)? {
            return match known {
                None if kfunc => expected(at, "a helper"),
                Some(right) if right != id => wrong(
                    at,
                    format!("the helper {name} has the number {right}, not {id}"),
                ),
                _ => {
                    fields.imm = id;
                    Ok(next)
                }
            };
        }
        if self.names.contains(name) || name == "pc" || name == "kfunc" || name == "kernel" {
            return expected(at, "a helper");
        }
        match known {
            Some(id) => {
                fields.imm = id;
                Ok(at + 1)
            }
            None if kfunc => expected(at, "a helper"),
            None => wrong(
                at,
                format!("`{name}` is no label here and no helper or kernel function known"),
            ),
        }
    }

    fn subprogram(&self, at: usize, fields: &mut Fields<'a>) -> Attempt<usize> {
        match (self.token(at), self.place(at)) {
            (_, Some(target @ Target::Local { .. })) => {
                fields.target = Some((target, Reach::Imm, at));
                Ok(at + 1)
            }
            (_, Some(target @ Target::Label(name))) if self.names.contains(name) => {
                fields.target = Some((target, Reach::Imm, at));
                Ok(at + 1)
            }
            (Some(Token::Word("pc")), None) => {
                let (value, next) = self.number_of(at + 1, 32, false)?;
                fields.imm = value as i32;
                match (self.token(next), self.token(next + 1)) {
                    (Some(Token::Sign("#")), Some(Token::Word(_))) => Ok(next + 2),
                    _ => Ok(next),
                }
            }
            (Some(Token::Number(_) | Token::Sign(_)), None) => {
                let (value, next) = self.number_of(at, 32, false)?;
                fields.imm = value as i32;
                match (self.token(next), self.known) {
                    (Some(Token::Note(note)), _) if !is_kfunc(note) => Ok(next + 1),
                    (None, Known::Slots(..)) => Ok(next),
                    _ => expected(next, "the end"),
                }
            }
            _ => expected(at, "a subprogram"),
        }
    }

    fn kfunc(&self, at: usize, fields: &mut Fields<'a>) -> Attempt<usize> {
        let word = |at| match self.token(at) {
            Some(Token::Word(word)) => Some(word),
            _ => None,
        };
        if word(at) == Some("kernel") && word(at + 2) == Some("function") {
            let mut next = at + 3;
            if self.token(next) == Some(Token::Sign("@")) {
                let (index, after) = self.number_of(next + 1, 16, false)?;
                (fields.off, next) = (index as i16, after);
            }
            return match self.number_sign(next)? {
                Some((id, next)) => {
                    fields.imm = id;
                    Ok(next)
                }
                None => expected(next, "# and a BTF id"),
            };
        }
        if matches!(self.token(at), Some(Token::Number(_) | Token::Sign("-"))) {
            let (value, next) = self.number_of(at, 32, false)?;
            fields.imm = value as i32;
            return match (self.token(next), self.known) {
                (Some(Token::Note(note)), _) if is_kfunc(note) => {
                    let index = note.strip_prefix("kfunc@").unwrap_or("0");
                    match index.parse() {
                        Ok(index) => fields.off = index,
                        Err(_) => return wrong(next, format!("`{index}` is no module index")),
                    }
                    Ok(next + 1)
                }
                (None, Known::Slots(first, _)) => {
                    fields.off = first.off;
                    Ok(next)
                }
                _ => expected(next, "the end"),
            };
        }
        let explicit = word(at) == Some("kfunc") && word(at + 1).is_some();
        let at = at + usize::from(explicit);
        let Some(name) = word(at) else {
            return expected(at, "a kernel function");
        };
        let Some((id, index)) = self.resolver.kfunc(name) else {
            return if explicit {
                wrong(at, format!("no kernel function `{name}` is known"))
            } else {
                expected(at, "a kernel function")
            };
        };
        (fields.imm, fields.off) = (id, index);
        match self.number_sign(at + 1)? {
            Some((other, next)) => {
                fields.imm = other;
                Ok(next)
            }
            None => Ok(at + 1),
        }
    }

    /// `rN = map[NAME] ll` and the other loads by name.
    fn named_load(&self) -> Attempt<Instruction<'a>> {
        if !matches!(
            self.known,
            Known::Nothing | Known::Code(0x18) | Known::Slots(..)
        ) {
            return expected(0, "an instruction");
        }
        let dst = Reg::new(self.register(0, 'r')?).unwrap_or(Reg::R0);
        let at = self.sign(1, "=")?;
        let Some(Token::Word(word)) = self.token(at) else {
            return expected(at, "a symbol");
        };
        let mut target = None;
        let bracket = self.token(at + 1) == Some(Token::Sign("["));
        let (value, next) = match word {
            "map" | "map_value" if bracket => self.named_map(at + 2, word == "map_value")?,
            _ => {
                if self.token(at + 1) != Some(Token::Word("ll")) {
                    return expected(at, "a symbol and ll");
                }
                let value = if self.names.contains(word) {
                    target = Some((Target::Label(word), Reach::Imm, at));
                    Imm64::Func(0)
                } else if let Some(value) = self.resolver.symbol(word) {
                    value
                } else if let Some(map) = self.resolver.map(word) {
                    whole_map(map)
                } else {
                    return wrong(
                        at,
                        format!("`{word}` is no label here and no symbol or map known"),
                    );
                };
                (value, at + 1)
            }
        };
        let long = self.token(next) == Some(Token::Word("ll"));
        self.end(next + usize::from(long))?;
        let (first, second) = Op::LoadImm64 { dst, value }.encode();
        Ok(Instruction {
            first,
            second,
            target,
        })
    }

    /// After `map[` or `map_value[`.
    fn named_map(&self, at: usize, is_value: bool) -> Attempt<(Imm64, usize)> {
        let Some(Token::Word(name)) = self.token(at) else {
            return expected(at, "the name of a map");
        };
        let Some(map) = self.resolver.map(name) else {
            return wrong(at, format!("no map `{name}` is known"));
        };
        let at = self.sign(at + 1, "]")?;
        let (off, next) = match (is_value, self.token(at)) {
            (true, Some(Token::Sign("["))) => {
                let (off, next) = self.number_of(at + 1, 32, true)?;
                (off, self.sign(next, "]")?)
            }
            (true, Some(Token::Sign("+"))) => self.number_of(at + 1, 32, true)?,
            (true, _) => (0, at),
            // The kernel's way: element 0 of the map, and the byte in it.
            (false, Some(Token::Sign("["))) => {
                let at = self.literal(
                    at + 1,
                    &[Token::Number(0), Token::Sign("]"), Token::Sign("+")],
                )?;
                self.number_of(at, 32, true)?
            }
            (false, _) => return Ok((whole_map(map), at)),
        };
        let off = off as u32;
        let value = match map {
            MapRef::Fd(fd) => Imm64::MapFdValue { fd, off },
            MapRef::Index(index) => Imm64::MapIdxValue { index, off },
        };
        Ok((value, next))
    }
}

fn whole_map(map: MapRef) -> Imm64 {
    match map {
        MapRef::Fd(fd) => Imm64::MapFd(fd),
        MapRef::Index(index) => Imm64::MapIdx(index),
    }
}

/// Whether a note after a call says that a kernel function is called.
fn is_kfunc(note: &str) -> bool {
    note == "kfunc" || note.starts_with("kfunc@")
}

/// Sets a register field; a template that names it twice wants the same one twice.
fn same(at: usize, field: &mut Option<u8>, number: u8) -> Attempt<usize> {
    match field.replace(number) {
        Some(before) if before != number => wrong(
            at,
            format!("must be register {before}, the one named before"),
        ),
        _ => Ok(at + 1),
    }
}

fn finish<'a>(row: &Row, fields: Fields<'a>) -> Instruction<'a> {
    let pick = |rule: Field, value: i32| if let Field::Is(v) = rule { v } else { value };
    let first = Insn {
        code: row.code,
        dst: fields.dst.unwrap_or(0),
        src: pick(row.src, fields.src.unwrap_or(0).into()) as u8,
        off: pick(row.off, fields.off.into()) as i16,
        imm: pick(row.imm, fields.imm),
    };
    let second = row.next.map(|_| Insn {
        imm: fields.high,
        ..Insn::default()
    });
    Instruction {
        first,
        second,
        target: fields.target,
    }
}
