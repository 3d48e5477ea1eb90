//! Symbols that are defined elsewhere: kernel configuration (`.kconfig`), kernel
//! variables and functions (`.ksyms`).

use std::cmp::Ordering;

use bpfkit_btf::{Btf, IntEncoding, Kind, Linkage, Type};
use rustc_hash::FxHashMap;

use crate::elf::{Bind, Elf};
use crate::error::{ErrorKind, ObjectError};
use crate::kconfig::{KconfigType, KconfigVar};

/// Name of the section of configuration variables.
pub(crate) const KCONFIG: &str = ".kconfig";
/// Name of the section of kernel symbols.
pub(crate) const KSYMS: &str = ".ksyms";

/// Larger `.kconfig` maps are refused.
const LARGEST_KCONFIG: u32 = 1 << 24;

/// An external symbol.
#[derive(Clone, Debug)]
pub(crate) struct Extern {
    /// Index in the symbol table.
    pub symbol: usize,
    pub name: String,
    pub weak: bool,
    pub kind: ExternKind,
}

/// What kind of external symbol it is.
#[derive(Clone, Debug)]
pub(crate) enum ExternKind {
    /// Its declaration is unusable; so are the programs that refer to it.
    Unusable(ObjectError),
    /// Configuration.
    Kconfig(KconfigVar),
    /// Kernel variable.
    Variable {
        /// Its type, 0 where it is declared `void`.
        type_id: u32,
    },
    /// Kernel function.
    Function {
        /// The `FUNC`.
        type_id: u32,
        /// Its `FUNC_PROTO`.
        proto: u32,
    },
}

/// All external symbols, in libbpf's order, which its poison constants count in.
#[derive(Clone, Debug, Default)]
pub(crate) struct Externs {
    pub list: Vec<Extern>,
    /// Size of the `.kconfig` map.
    pub kconfig_size: u32,
    by_symbol: FxHashMap<usize, usize>,
}

impl Externs {
    /// Finds the declaration of each external symbol.
    pub fn collect(elf: &Elf, btf: Option<&Btf>) -> Self {
        let sections = btf.map(section_of_types).unwrap_or_default();
        let mut list: Vec<Extern> = elf
            .symbols
            .iter()
            .enumerate()
            .filter(|(_, s)| s.is_extern() && !elf.name(s).is_empty())
            .map(|(symbol, s)| {
                let (name, weak) = (elf.name(s), s.bind == Bind::Weak);
                let kind =
                    declaration(btf, &sections, name, weak).unwrap_or_else(ExternKind::Unusable);
                Extern {
                    symbol,
                    name: name.to_owned(),
                    weak,
                    kind,
                }
            })
            .collect();
        list.sort_by(compare);
        let mut externs = Self {
            list,
            kconfig_size: 0,
            by_symbol: FxHashMap::default(),
        };
        externs.lay_out_kconfig();
        externs.by_symbol = externs
            .list
            .iter()
            .enumerate()
            .map(|(i, e)| (e.symbol, i))
            .collect();
        externs
    }

    /// Index of the extern of a symbol.
    pub fn by_symbol(&self, symbol: usize) -> Option<usize> {
        self.by_symbol.get(&symbol).copied()
    }

    /// The variables of `.kconfig`.
    pub fn kconfig(&self) -> impl Iterator<Item = &KconfigVar> {
        self.list.iter().filter_map(|e| match &e.kind {
            ExternKind::Kconfig(var) => Some(var),
            _ => None,
        })
    }

    /// Gives each variable of `.kconfig` its place in the map.
    fn lay_out_kconfig(&mut self) {
        let mut end = 0u32;
        for ext in &mut self.list {
            let ExternKind::Kconfig(var) = &mut ext.kind else {
                continue;
            };
            let place = end
                .checked_next_multiple_of(var.align)
                .and_then(|start| Some((start, start.checked_add(var.size)?)))
                .filter(|&(_, end)| end <= LARGEST_KCONFIG);
            let Some((start, next)) = place else {
                let message = format!("extern (kcfg) '{}': does not fit in {KCONFIG}", ext.name);
                ext.kind = ExternKind::Unusable(ObjectError::new(ErrorKind::Extern, message));
                continue;
            };
            var.offset = start;
            end = next;
        }
        self.kconfig_size = end;
    }
}

/// The first DATASEC that lists each type.
fn section_of_types(btf: &Btf) -> FxHashMap<u32, u32> {
    let mut sections = FxHashMap::default();
    for section in btf.own_types().filter(|t| t.is(Kind::Datasec)) {
        for variable in section.variables() {
            sections.entry(variable.type_id).or_insert(section.id());
        }
    }
    sections
}

/// libbpf's `cmp_externs`.
fn compare(a: &Extern, b: &Extern) -> Ordering {
    let class = |e: &Extern| match e.kind {
        ExternKind::Unusable(_) => 0,
        ExternKind::Kconfig(_) => 1,
        ExternKind::Variable { .. } | ExternKind::Function { .. } => 2,
    };
    let layout = match (&a.kind, &b.kind) {
        (ExternKind::Kconfig(a), ExternKind::Kconfig(b)) => {
            b.align.cmp(&a.align).then(a.size.cmp(&b.size))
        }
        _ => Ordering::Equal,
    };
    class(a)
        .cmp(&class(b))
        .then(layout)
        .then_with(|| a.name.cmp(&b.name))
}

fn declaration(
    btf: Option<&Btf>,
    sections: &FxHashMap<u32, u32>,
    name: &str,
    weak: bool,
) -> Result<ExternKind, ObjectError> {
    let fail = |message: String| Err(ObjectError::new(ErrorKind::Extern, message));
    // The numbers are the errno that libbpf prints: ESRCH, ENOENT, EINVAL.
    let Some(btf) = btf else {
        return fail(format!("failed to find BTF for extern '{name}': -3"));
    };
    let declared = btf
        .all_by_name(name)
        .find(|t| t.is(Kind::Var) || t.is(Kind::Func));
    let Some(declared) = declared else {
        return fail(format!("failed to find BTF for extern '{name}': -2"));
    };
    if declared.linkage() != Some(Linkage::Extern) {
        return fail(format!("failed to find BTF for extern '{name}': -22"));
    }
    let section = sections
        .get(&declared.id())
        .and_then(|&id| btf.type_by_id(id));
    let Some(section) = section else {
        return fail(format!(
            "failed to find BTF for extern '{name}' [{}] section: -2",
            declared.id()
        ));
    };
    match section.name() {
        KCONFIG if declared.is(Kind::Func) => fail(format!(
            "extern function {name} is unsupported under {KCONFIG} section"
        )),
        KCONFIG => kconfig_variable(btf, declared, name, weak).map(ExternKind::Kconfig),
        KSYMS if declared.is(Kind::Func) => Ok(ExternKind::Function {
            type_id: declared.id(),
            proto: declared.type_id(),
        }),
        KSYMS => Ok(ExternKind::Variable {
            type_id: btf.resolve(declared.type_id()).map_or(0, Type::id),
        }),
        other => fail(format!("unrecognized extern section '{other}'")),
    }
}

fn kconfig_variable(
    btf: &Btf,
    var: Type<'_>,
    name: &str,
    weak: bool,
) -> Result<KconfigVar, ObjectError> {
    let fail = |message: String| ObjectError::new(ErrorKind::Extern, message);
    let size = btf
        .size_of(var.type_id())
        .filter(|&size| size > 0)
        .ok_or_else(|| {
            fail(format!(
                "failed to resolve size of extern (kcfg) '{name}': -22"
            ))
        })?;
    let align = btf
        .align_of(var.type_id())
        .filter(|&align| align > 0)
        .ok_or_else(|| {
            fail(format!(
                "failed to determine alignment of extern (kcfg) '{name}': 0"
            ))
        })?;
    let (ty, signed) = kconfig_type(btf, var.type_id())
        .ok_or_else(|| fail(format!("extern (kcfg) '{name}': type is unsupported")))?;
    Ok(KconfigVar {
        name: name.to_owned(),
        ty,
        signed,
        size,
        align,
        offset: 0,
        weak,
    })
}

/// The kind of configuration value that a type can hold, and whether it has a sign.
fn kconfig_type(btf: &Btf, id: u32) -> Option<(KconfigType, bool)> {
    let t = btf.resolve(id)?;
    match t.kind() {
        Kind::Int => {
            let int = t.int()?;
            let size = t.size()?;
            if int.encoding.0 & IntEncoding::BOOL.0 != 0 {
                return (size == 1).then_some((KconfigType::Bool, false));
            }
            match size {
                1 => Some((KconfigType::Char, int.is_signed())),
                2 | 4 | 8 => Some((KconfigType::Int, int.is_signed())),
                _ => None,
            }
        }
        Kind::Enum if t.size() != Some(4) => None,
        Kind::Enum | Kind::Enum64 => {
            (t.name() == "libbpf_tristate").then_some((KconfigType::Tristate, false))
        }
        Kind::Array => {
            let array = t.array()?;
            let element = btf.resolve(array.element)?;
            let is_char = element.is(Kind::Int)
                && matches!(
                    kconfig_type(btf, element.id()),
                    Some((KconfigType::Char, _))
                );
            (array.count > 0 && is_char).then_some((KconfigType::CharArray, false))
        }
        _ => None,
    }
}
