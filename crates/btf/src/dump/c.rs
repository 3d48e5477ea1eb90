//! A whole file of C.

use super::decl::Printer;
use super::order::Order;
use super::{DumpError, MAX_DECLARATION, MAX_DEPTH, MAX_STEPS, MAX_TEXT, limit};
use crate::btf::Btf;
use crate::kind::Kind;
use crate::types::Type;

/// What bpftool puts around the types: guards, and attributes that make every access
/// through these types a CO-RE relocation.
const PROLOGUE: &str = "\
#ifndef __VMLINUX_H__
#define __VMLINUX_H__

#ifndef BPF_NO_PRESERVE_ACCESS_INDEX
#pragma clang attribute push (__attribute__((preserve_access_index)), apply_to = record)
#endif

#ifndef __ksym
#define __ksym __attribute__((section(\".ksyms\")))
#endif

#ifndef __weak
#define __weak __attribute__((weak))
#endif

";
const EPILOGUE: &str = "\
#ifndef BPF_NO_PRESERVE_ACCESS_INDEX
#pragma clang attribute pop
#endif

#endif /* __VMLINUX_H__ */
";
/// Declaration tag of a function that programs may call.
const KFUNC: &str = "bpf_kfunc";

/// Names that GCC gives vector types and that other compilers lack.
const ALIASES: [(&str, &str); 4] = [
    ("__Poly8_t", "unsigned char"),
    ("__Poly16_t", "unsigned short"),
    ("__Poly64_t", "unsigned long long"),
    ("__Poly128_t", "unsigned __int128"),
];

/// How far the printing of a type is.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
enum State {
    #[default]
    New,
    Open,
    Done,
}

#[derive(Clone, Copy, Default, Debug)]
struct Progress {
    state: State,
    /// A declaration was printed already.
    declared: bool,
}

struct File<'a> {
    printer: Printer<'a>,
    progress: Vec<Progress>,
    steps_left: usize,
}

/// The definitions of the types `ids` and all that they need, in an order that a C
/// compiler takes, each followed by an empty line.
///
/// # Errors
/// Types that C cannot express: circles other than through pointers, and nesting or
/// length past all reason.
pub fn c_types(btf: &Btf, ids: impl IntoIterator<Item = u32>) -> Result<String, DumpError> {
    let mut file = File {
        printer: Printer::new(btf, limit(btf, MAX_TEXT)),
        progress: vec![Progress::default(); btf.type_count() as usize],
        steps_left: limit(btf, MAX_STEPS),
    };
    file.set(0, State::Done);
    let mut order = Order::new(btf);
    let mut queue = Vec::new();
    for id in ids {
        queue.clear();
        order.add(id, &mut queue)?;
        for &id in &queue {
            file.emit(id, None, 0)?;
        }
    }
    Ok(file.printer.out)
}

/// A header file with all types and kernel functions for programs, as bpftool makes
/// `vmlinux.h` (`format c unsorted`).
///
/// # Errors
/// As [`c_types`].
pub fn c_file(btf: &Btf) -> Result<String, DumpError> {
    let types = c_types(btf, 1..btf.type_count())?;
    Ok(format!("{PROLOGUE}{types}{}{EPILOGUE}", kfuncs(btf)?))
}

/// The declaration of `name` (which may be empty) with a type: `int (*name)(void)`.
///
/// # Errors
/// As [`c_types`].
pub fn c_declaration(btf: &Btf, id: u32, name: &str) -> Result<String, DumpError> {
    let mut printer = Printer::new(btf, MAX_DECLARATION);
    printer.declaration(id, name, 0)?;
    Ok(printer.out)
}

fn kfuncs(btf: &Btf) -> Result<String, DumpError> {
    let mut out = String::from("\n/* BPF kfuncs */\n#ifndef BPF_NO_KFUNC_PROTOTYPES\n");
    let mut printer = Printer::new(btf, MAX_DECLARATION);
    for id in 1..btf.type_count() {
        let Some(tag) = btf.type_by_id(id).filter(|t| t.is(Kind::DeclTag)) else {
            continue;
        };
        if tag.component().is_some() || tag.name() != KFUNC {
            continue;
        }
        let Some(func) = tag.target().filter(|t| t.is(Kind::Func)) else {
            continue;
        };
        printer.out.clear();
        printer.declaration(func.type_id(), func.name(), 0)?;
        out.push_str("extern ");
        out.push_str(&printer.out);
        out.push_str(" __weak __ksym;\n");
        if out.len() > limit(btf, MAX_TEXT) {
            return Err(DumpError::TooLong);
        }
    }
    out.push_str("#endif\n\n");
    Ok(out)
}

impl<'a> File<'a> {
    fn progress(&self, id: u32) -> Progress {
        self.progress.get(id as usize).copied().unwrap_or_default()
    }

    fn set(&mut self, id: u32, state: State) {
        if let Some(progress) = self.progress.get_mut(id as usize) {
            progress.state = state;
        }
    }

    fn set_declared(&mut self, id: u32) {
        if let Some(progress) = self.progress.get_mut(id as usize) {
            progress.declared = true;
        }
    }

    fn end(&mut self) {
        self.printer.out.push_str(";\n\n");
    }

    /// Prints what has to stand before a use of the type, and its definition if it is
    /// on the top level (`inside` is `None`). `inside` is the definition being printed.
    fn emit(&mut self, id: u32, inside: Option<u32>, depth: u32) -> Result<(), DumpError> {
        if depth > MAX_DEPTH {
            return Err(DumpError::TooDeep(id));
        }
        self.steps_left = self.steps_left.checked_sub(1).ok_or(DumpError::TooLong)?;
        let t = self
            .printer
            .btf
            .type_by_id(id)
            .ok_or(DumpError::NoType(id))?;
        match self.progress(id).state {
            State::Done => return Ok(()),
            State::Open => return self.emit_open(t, inside),
            State::New => {}
        }
        let depth = depth + 1;
        match t.kind() {
            Kind::Int => {
                if let Some((name, alias)) = ALIASES.iter().find(|a| a.0 == t.name()) {
                    self.printer.put(format_args!("typedef {alias} {name}"));
                    self.end();
                }
                self.set(id, State::Done);
            }
            Kind::Enum | Kind::Enum64 => {
                if inside.is_none() {
                    self.printer.enumeration(t, 0)?;
                    self.end();
                }
                self.set(id, State::Done);
            }
            Kind::Ptr | Kind::Volatile | Kind::Const | Kind::Restrict | Kind::TypeTag => {
                self.emit(t.type_id(), inside, depth)?;
            }
            Kind::Array => self.emit(t.array().map_or(0, |a| a.element), inside, depth)?,
            Kind::Fwd => {
                self.printer.tag(t);
                self.end();
                self.set(id, State::Done);
            }
            Kind::Typedef => {
                self.set(id, State::Open);
                self.emit(t.type_id(), Some(id), depth)?;
                // What it names may have needed it already.
                if !self.progress(id).declared {
                    self.typedef(t)?;
                }
                self.set(id, State::Done);
            }
            Kind::Struct | Kind::Union => self.emit_composite(t, inside, depth)?,
            Kind::FuncProto => {
                self.emit(t.type_id(), inside, depth)?;
                for param in t.params() {
                    self.emit(param.type_id, inside, depth)?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// A type that is being printed is used in it: a declaration has to stand before,
    /// unless the use is in its own braces.
    fn emit_open(&mut self, t: Type<'a>, inside: Option<u32>) -> Result<(), DumpError> {
        if self.progress(t.id()).declared {
            return Ok(());
        }
        match t.kind() {
            Kind::Struct | Kind::Union if inside == Some(t.id()) || t.name_off() == 0 => {
                return Ok(());
            }
            Kind::Struct | Kind::Union => {
                self.printer.tag(t);
                self.end();
            }
            Kind::Typedef => self.typedef(t)?,
            _ => return Ok(()),
        }
        self.set_declared(t.id());
        Ok(())
    }

    fn emit_composite(
        &mut self,
        t: Type<'a>,
        inside: Option<u32>,
        depth: u32,
    ) -> Result<(), DumpError> {
        let (id, anonymous) = (t.id(), t.name_off() == 0);
        self.set(id, State::Open);
        if inside.is_none() || anonymous {
            // Its members will be printed, here or where it is used.
            let inside = if anonymous {
                inside.or(Some(0))
            } else {
                Some(id)
            };
            for member in t.members() {
                self.emit(member.type_id, inside, depth)?;
            }
        } else if !self.progress(id).declared && inside != Some(id) {
            self.printer.tag(t);
            self.end();
            self.set_declared(id);
        }
        if inside.is_none() {
            self.printer.composite(t, 0)?;
            self.end();
            self.set(id, State::Done);
        } else {
            self.set(id, State::New);
        }
        Ok(())
    }

    fn typedef(&mut self, t: Type<'a>) -> Result<(), DumpError> {
        match t.name() {
            // The compiler has it.
            "__builtin_va_list" => return Ok(()),
            // Old compilers make it a typedef of void.
            "__gnuc_va_list" if t.type_id() == 0 => {
                self.printer
                    .out
                    .push_str("typedef __builtin_va_list __gnuc_va_list");
            }
            _ => {
                let name = self.printer.names.of(t);
                self.printer.out.push_str("typedef ");
                self.printer.declaration(t.type_id(), &name, 0)?;
            }
        }
        self.end();
        Ok(())
    }
}
