//! External symbols looked up in the target.

use std::sync::Arc;

use bpfkit_btf::{Btf, Kind, Type, essential_name};
use rustc_hash::FxHashMap;

use crate::error::{ErrorKind, ObjectError};
use crate::externs::{Extern, ExternKind, Externs};
use crate::target::Target;

/// What an external symbol of `.ksyms` stands for in the target.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Resolved {
    /// Something in the kernel's BTF, or in that of a module.
    Typed {
        /// Type id.
        id: u32,
        /// Index in [`Target::modules`].
        module: Option<u32>,
    },
    /// An address.
    Address(u64),
    /// It is weak and not there.
    Missing,
}

/// A type of the kernel or of a module by its name.
pub(crate) fn find<'a>(
    target: &Target<'a>,
    name: &str,
    kind: Kind,
) -> Option<(Type<'a>, Option<u32>)> {
    let kernel = target.kernel_btf.get()?;
    if let Some(t) = kernel.by_name(name, kind) {
        return Some((t, None));
    }
    target.modules.iter().enumerate().find_map(|(i, module)| {
        let btf: &'a Btf = Arc::as_ref(&module.btf);
        Some((btf.by_name(name, kind)?, u32::try_from(i).ok()))
    })
}

/// The symbol in the target; `local` is the object's BTF.
pub(crate) fn resolve(
    ext: &Extern,
    local: &Btf,
    target: &Target<'_>,
    addresses: &Addresses,
) -> Result<Resolved, ObjectError> {
    match &ext.kind {
        ExternKind::Unusable(e) => Err(e.clone()),
        // Variables of `.kconfig` are values, not symbols.
        ExternKind::Kconfig(_) => Ok(Resolved::Missing),
        ExternKind::Variable { type_id: 0 } => addresses.resolve(ext),
        // Nothing is known of the kernel: id 0 stands for whatever has the name.
        _ if target.kernel_btf.get().is_none() => Ok(Resolved::Typed {
            id: 0,
            module: None,
        }),
        ExternKind::Variable { type_id } => variable(ext, local, *type_id, target),
        ExternKind::Function { proto, .. } => function(ext, local, *proto, target),
    }
}

fn error(message: String) -> ObjectError {
    ObjectError::new(ErrorKind::Extern, message)
}

fn variable(
    ext: &Extern,
    local: &Btf,
    type_id: u32,
    target: &Target<'_>,
) -> Result<Resolved, ObjectError> {
    let name = &ext.name;
    let Some((var, module)) = find(target, name, Kind::Var) else {
        if ext.weak {
            return Ok(Resolved::Missing);
        }
        return Err(error(format!(
            "extern (var ksym) '{name}': not found in kernel BTF"
        )));
    };
    let (here, there) = (local.type_by_id(type_id), var.btf().resolve(var.type_id()));
    if let (Some(here), Some(there)) = (here, there) {
        if bpfkit_btf::core::compatible(here, there) {
            return Ok(Resolved::Typed {
                id: var.id(),
                module,
            });
        }
        return Err(error(format!(
            "extern (var ksym) '{name}': incompatible types, expected [{type_id}] {} {}, but \
             kernel has [{}] {} {}",
            here.kind().name(),
            here.name(),
            there.id(),
            there.kind().name(),
            there.name()
        )));
    }
    Err(error(format!(
        "extern (var ksym) '{name}': incompatible types"
    )))
}

fn function(
    ext: &Extern,
    local: &Btf,
    proto: u32,
    target: &Target<'_>,
) -> Result<Resolved, ObjectError> {
    let name = &ext.name;
    let Some((func, module)) = find(target, essential_name(name), Kind::Func) else {
        if ext.weak {
            return Ok(Resolved::Missing);
        }
        return Err(error(format!(
            "extern (func ksym) '{name}': not found in kernel or module BTFs"
        )));
    };
    let compatible = match (local.type_by_id(proto), func.proto()) {
        (Some(here), Some(there)) => bpfkit_btf::core::compatible(here, there),
        _ => false,
    };
    if compatible {
        return Ok(Resolved::Typed {
            id: func.id(),
            module,
        });
    }
    if ext.weak {
        return Ok(Resolved::Missing);
    }
    let owner = module
        .and_then(|i| target.modules.get(i as usize))
        .map_or("vmlinux", |m| &m.name);
    Err(error(format!(
        "extern (func ksym) '{name}': func_proto [{proto}] incompatible with {owner} [{}]",
        func.type_id()
    )))
}

/// Addresses of the variables that are declared without a type.
#[derive(Debug)]
pub(crate) struct Addresses {
    /// Whether the target's symbols are known at all.
    known: bool,
    found: FxHashMap<String, Result<u64, ObjectError>>,
}

impl Addresses {
    /// Looks the variables up in the target's `/proc/kallsyms`.
    pub fn new(externs: &Externs, target: &Target<'_>) -> Self {
        let wanted: rustc_hash::FxHashSet<&str> = externs
            .list
            .iter()
            .filter(|e| matches!(e.kind, ExternKind::Variable { type_id: 0 }))
            .map(|e| e.name.as_str())
            .collect();
        let mut found = FxHashMap::default();
        let text = if wanted.is_empty() {
            ""
        } else {
            target.kallsyms.unwrap_or("")
        };
        for line in text.lines() {
            let mut words = line.split_ascii_whitespace();
            let (Some(address), Some(kind), Some(symbol)) =
                (words.next(), words.next(), words.next())
            else {
                continue;
            };
            // Link-time optimization renames static data.
            let name = match symbol.split_once(".llvm.") {
                Some((name, _)) if kind == "d" => name,
                _ => symbol,
            };
            let Ok(address) = u64::from_str_radix(address, 16) else {
                continue;
            };
            if !wanted.contains(name) {
                continue;
            }
            match found.get(name) {
                Some(Ok(other)) if *other != address => {
                    let message = format!(
                        "extern (ksym) '{symbol}': resolution is ambiguous: {other:#x} or \
                         {address:#x}"
                    );
                    found.insert(name.to_owned(), Err(error(message)));
                }
                Some(_) => {}
                None => {
                    found.insert(name.to_owned(), Ok(address));
                }
            }
        }
        Self {
            known: target.kallsyms.is_some(),
            found,
        }
    }

    fn resolve(&self, ext: &Extern) -> Result<Resolved, ObjectError> {
        match self.found.get(&ext.name) {
            Some(Ok(address)) => Ok(Resolved::Address(*address)),
            Some(Err(e)) => Err(e.clone()),
            None if ext.weak || !self.known => Ok(Resolved::Missing),
            None => Err(error(format!(
                "extern '{}' (strong): not resolved",
                ext.name
            ))),
        }
    }
}
