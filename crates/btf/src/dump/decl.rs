//! Declarations and definitions in C: `int (*name)(void)`, structures with their
//! padding, enumerations.

use std::fmt::Write;

use super::names::Names;
use super::{DumpError, MAX_DEPTH, MAX_NESTING};
use crate::btf::Btf;
use crate::kind::Kind;
use crate::layout::Alignments;
use crate::types::Type;

/// Prints types into a text.
#[derive(Debug)]
pub(super) struct Printer<'a> {
    pub btf: &'a Btf,
    pub out: String,
    pub names: Names<'a>,
    aligns: Alignments<'a>,
    /// Braces and parentheses that the text is inside of.
    nesting: u32,
    /// Longest text.
    limit: usize,
}

/// A gap in a structure, in bits.
struct Gap {
    from: u64,
    to: u64,
    /// Bytes of alignment that the compiler gives what follows.
    next_align: u64,
    /// Between two bit-fields.
    in_bitfield: bool,
}

impl<'a> Printer<'a> {
    pub fn new(btf: &'a Btf, limit: usize) -> Self {
        Self {
            btf,
            out: String::new(),
            names: Names::default(),
            aligns: Alignments::new(btf),
            nesting: 0,
            limit,
        }
    }

    fn get(&self, id: u32) -> Result<Type<'a>, DumpError> {
        self.btf.type_by_id(id).ok_or(DumpError::NoType(id))
    }

    /// Appends text; writing to a string does not fail.
    pub fn put(&mut self, text: std::fmt::Arguments<'_>) {
        let _ = self.out.write_fmt(text);
    }

    fn indent(&mut self, level: u32) {
        self.out.push('\n');
        // libbpf has 13 tabs.
        (0..level.min(13)).for_each(|_| self.out.push('\t'));
    }

    fn check_length(&self) -> Result<(), DumpError> {
        if self.out.len() > self.limit {
            Err(DumpError::TooLong)
        } else {
            Ok(())
        }
    }

    /// `struct name`, `union name` or `enum name`, also of a forward declaration.
    pub fn tag(&mut self, t: Type<'a>) {
        let keyword = match t.kind() {
            Kind::Fwd if t.kind_flag() => "union",
            Kind::Fwd => "struct",
            kind => tag_keyword(kind),
        };
        let name = self.names.of(t);
        let space = if t.name_off() != 0 || t.is(Kind::Fwd) {
            " "
        } else {
            ""
        };
        self.put(format_args!("{keyword}{space}{name}"));
    }

    /// Prints something inside of `t`.
    fn inside(
        &mut self,
        t: Type<'a>,
        print: impl FnOnce(&mut Self) -> Result<(), DumpError>,
    ) -> Result<(), DumpError> {
        if self.nesting > MAX_NESTING {
            return Err(DumpError::TooDeep(t.id()));
        }
        self.nesting += 1;
        let result = print(self);
        self.nesting -= 1;
        result
    }

    /// The definition of a structure or union, without a semicolon.
    pub fn composite(&mut self, t: Type<'a>, level: u32) -> Result<(), DumpError> {
        let is_struct = t.is(Kind::Struct);
        let size = u64::from(t.size().unwrap_or(0));
        let align = self.align(t.id());
        let packed = is_struct && self.is_packed(t);
        self.tag(t);
        self.out.push_str(" {");
        let mut end = 0;
        let mut after_bitfield = false;
        for member in t.members() {
            self.check_length()?;
            let start = u64::from(member.bit_offset);
            let bits = u64::from(member.bitfield_size);
            let next_align = if packed {
                1
            } else {
                self.align(member.type_id)
            };
            let in_bitfield = after_bitfield && bits != 0;
            self.pad(
                &Gap {
                    from: end,
                    to: start,
                    next_align,
                    in_bitfield,
                },
                level + 1,
            )?;
            self.indent(level + 1);
            self.inside(t, |p| {
                p.declaration(member.type_id, member.name(), level + 1)
            })?;
            after_bitfield = bits != 0;
            if after_bitfield {
                self.put(format_args!(": {bits}"));
                end = start + bits;
            } else {
                let size = self.btf.size_of(member.type_id).unwrap_or(0);
                end = start + u64::from(size) * 8;
            }
            self.out.push(';');
        }
        if is_struct {
            let gap = Gap {
                from: end,
                to: size * 8,
                next_align: align,
                in_bitfield: false,
            };
            self.pad(&gap, level + 1)?;
        }
        if t.vlen() > 0 || size > 0 {
            self.indent(level);
        }
        self.out.push('}');
        if packed {
            self.out.push_str(" __attribute__((packed))");
        }
        Ok(())
    }

    fn align(&mut self, id: u32) -> u64 {
        self.aligns.of(id).unwrap_or(0).into()
    }

    /// Whether some member is not where its type's alignment puts it, or the size is no
    /// multiple of the alignment.
    fn is_packed(&mut self, t: Type<'a>) -> bool {
        let mut widest = 1;
        for member in t.members() {
            let align = self.align(member.type_id);
            let misplaced = align > 0 && u64::from(member.bit_offset) % (8 * align) != 0;
            if member.bitfield_size == 0 && misplaced {
                return true;
            }
            widest = widest.max(align);
        }
        !u64::from(t.size().unwrap_or(0)).is_multiple_of(widest)
    }

    /// Fills a gap with unnamed bit-fields of the widest type that fits, so that the
    /// compiler lays the structure out as it was.
    fn pad(&mut self, gap: &Gap, level: u32) -> Result<(), DumpError> {
        let long = u64::from(self.btf.pointer_size()) * 8;
        let units = [("long", long), ("int", 32), ("short", 16), ("char", 8)];
        let (mut at, to) = (gap.from, gap.to);
        if at >= to {
            return Ok(());
        }
        // The widest unit that has a boundary before the end; the narrowest if none has.
        let [.., narrowest] = units;
        let (unit, bits) = units
            .into_iter()
            .find(|u| at.next_multiple_of(u.1) <= to)
            .unwrap_or(narrowest);
        let boundary = at.next_multiple_of(bits);
        if boundary > at && boundary <= to {
            // The compiler goes to the boundary by itself where what follows (or the
            // rest of the gap, as a bit-field) does not fit before it.
            let natural = at.next_multiple_of((gap.next_align * 8).max(1));
            let explicit = gap.in_bitfield
                || boundary == to && natural != boundary
                || boundary != to && to - boundary <= boundary - at;
            if explicit {
                let width = if gap.in_bitfield { boundary - at } else { 0 };
                self.indent(level);
                self.put(format_args!("{unit}: {width};"));
            }
            at = boundary;
        }
        while at < to {
            self.check_length()?;
            let left = to - at;
            let (unit, width) = if left >= bits {
                (unit, bits)
            } else {
                let fits = units
                    .into_iter()
                    .rev()
                    .find(|u| u.1 >= left)
                    .unwrap_or(narrowest);
                (fits.0, left)
            };
            self.indent(level);
            self.put(format_args!("{unit}: {width};"));
            at += width;
        }
        Ok(())
    }

    /// The definition of an enumeration, without a semicolon.
    pub fn enumeration(&mut self, t: Type<'a>, level: u32) -> Result<(), DumpError> {
        self.tag(t);
        if t.vlen() == 0 {
            return Ok(());
        }
        self.check_length()?;
        let suffix = match (t.is(Kind::Enum64), t.kind_flag()) {
            (false, _) => "",
            (true, true) => "LL",
            (true, false) => "ULL",
        };
        self.out.push_str(" {");
        for value in t.enum_values() {
            let name = self.names.of_enumerator(value.name());
            self.indent(level + 1);
            self.put(format_args!("{name} = {}{suffix},", value.value()));
        }
        self.indent(level);
        self.out.push('}');
        let mode = match t.size() {
            Some(1) => Some("byte"),
            Some(8) if self.btf.pointer_size() == 8 => {
                // Values past 32 bits make the compiler take 64 by itself.
                let wide = t.is(Kind::Enum64) && t.enum_values().any(|v| v.bits >> 32 != 0);
                (!wide).then_some("word")
            }
            _ => None,
        };
        if let Some(mode) = mode {
            self.put(format_args!(" __attribute__((mode({mode})))"));
        }
        Ok(())
    }

    /// The declaration of `name` (which may be empty) with a type.
    pub fn declaration(&mut self, id: u32, name: &str, level: u32) -> Result<(), DumpError> {
        // From the declared type to what it is made of.
        let mut chain = vec![self.get(id)?];
        while let Some(&t) = chain.last() {
            let next = match t.kind() {
                Kind::Ptr | Kind::FuncProto => t.type_id(),
                kind if kind.is_modifier() => t.type_id(),
                Kind::Array => t.array().map_or(0, |a| a.element),
                _ => break,
            };
            if chain.len() > MAX_DEPTH as usize {
                return Err(DumpError::TooDeep(id));
            }
            chain.push(self.get(next)?);
        }
        self.declarator(&chain, name, level)
    }

    /// Prints a chain of types from its end: what it is made of, then what the name is
    /// of it. Arrays and functions put the rest of the chain before their brackets.
    fn declarator(
        &mut self,
        mut chain: &[Type<'a>],
        name: &str,
        level: u32,
    ) -> Result<(), DumpError> {
        // Stars stand together, and a name stands at the last star.
        let mut after_star = true;
        while let Some((&t, rest)) = chain.split_last() {
            chain = rest;
            match t.kind() {
                Kind::Ptr => {
                    self.out.push_str(if after_star { "*" } else { " *" });
                }
                Kind::Volatile => self.out.push_str(" volatile"),
                Kind::Const => self.out.push_str(" const"),
                Kind::Restrict => self.out.push_str(" restrict"),
                Kind::TypeTag => {
                    self.leading_modifiers(&mut chain);
                    let text = t.name();
                    if t.kind_flag() {
                        self.put(format_args!(" __attribute__(({text}))"));
                    } else {
                        self.put(format_args!(" __attribute__((btf_type_tag(\"{text}\")))"));
                    }
                }
                Kind::Array => {
                    return self.array(t, chain, name, after_star, level);
                }
                Kind::FuncProto => {
                    return self.function(t, chain, name, after_star, level);
                }
                _ => {
                    self.leading_modifiers(&mut chain);
                    self.base(t, level)?;
                }
            }
            after_star = t.is(Kind::Ptr);
        }
        self.name(name, after_star);
        Ok(())
    }

    fn name(&mut self, name: &str, after_star: bool) {
        let space = if name.is_empty() || after_star {
            ""
        } else {
            " "
        };
        self.put(format_args!("{space}{name}"));
    }

    /// The modifiers at the end of the chain, which stand before what they modify.
    fn leading_modifiers(&mut self, chain: &mut &[Type<'a>]) {
        while let Some((t, rest)) = chain.split_last() {
            let text = match t.kind() {
                Kind::Volatile => "volatile ",
                Kind::Const => "const ",
                Kind::Restrict => "restrict ",
                _ => return,
            };
            self.out.push_str(text);
            *chain = rest;
        }
    }

    /// What a declaration is made of: a name, or an anonymous definition.
    fn base(&mut self, t: Type<'a>, level: u32) -> Result<(), DumpError> {
        let anonymous = t.name_off() == 0;
        match t.kind() {
            Kind::Void => self.out.push_str("void"),
            Kind::Int | Kind::Float => self.out.push_str(t.name()),
            Kind::Typedef => {
                let name = self.names.of(t);
                self.out.push_str(&name);
            }
            Kind::Struct | Kind::Union if anonymous => self.composite(t, level)?,
            Kind::Enum | Kind::Enum64 if anonymous => self.enumeration(t, level)?,
            Kind::Struct | Kind::Union | Kind::Enum | Kind::Enum64 | Kind::Fwd => self.tag(t),
            // Functions, variables, sections and tags are no types of a declaration.
            _ => {}
        }
        Ok(())
    }

    fn array(
        &mut self,
        t: Type<'a>,
        chain: &[Type<'a>],
        name: &str,
        after_star: bool,
        level: u32,
    ) -> Result<(), DumpError> {
        let chain = without_modifiers(chain);
        match chain.last() {
            None => self.name(name, after_star),
            Some(next) => {
                if !name.is_empty() && !after_star {
                    self.out.push(' ');
                }
                let (open, close) = if next.is(Kind::Array) {
                    ("", "")
                } else {
                    ("(", ")")
                };
                self.out.push_str(open);
                self.inside(t, |p| p.declarator(chain, name, level))?;
                self.out.push_str(close);
            }
        }
        let count = t.array().map_or(0, |a| a.count);
        self.put(format_args!("[{count}]"));
        Ok(())
    }

    fn function(
        &mut self,
        t: Type<'a>,
        chain: &[Type<'a>],
        name: &str,
        after_star: bool,
        level: u32,
    ) -> Result<(), DumpError> {
        let chain = without_modifiers(chain);
        if chain.is_empty() {
            self.name(name, after_star);
        } else {
            self.out.push_str(" (");
            self.inside(t, |p| p.declarator(chain, name, level))?;
            self.out.push(')');
        }
        self.params(t, level)
    }

    /// `(int x, ...)`; no parameters, or one of type void, print as `(void)`.
    fn params(&mut self, t: Type<'a>, level: u32) -> Result<(), DumpError> {
        self.check_length()?;
        self.out.push('(');
        let last = t.params().len().saturating_sub(1);
        if t.params().all(|p| p.type_id == 0) && t.params().len() < 2 {
            self.out.push_str("void");
        } else {
            for (i, param) in t.params().enumerate() {
                if i > 0 {
                    self.out.push_str(", ");
                }
                if i == last && param.type_id == 0 {
                    self.out.push_str("...");
                } else {
                    self.inside(t, |p| p.declaration(param.type_id, param.name(), level))?;
                }
            }
        }
        self.out.push(')');
        Ok(())
    }
}

/// Compilers put modifiers on arrays and functions too, where C has no place for them.
fn without_modifiers<'c, 'a>(mut chain: &'c [Type<'a>]) -> &'c [Type<'a>] {
    while let Some((t, rest)) = chain.split_last() {
        if !t.kind().is_modifier() {
            break;
        }
        chain = rest;
    }
    chain
}

const fn tag_keyword(kind: Kind) -> &'static str {
    match kind {
        Kind::Struct => "struct",
        Kind::Union => "union",
        _ => "enum",
    }
}
