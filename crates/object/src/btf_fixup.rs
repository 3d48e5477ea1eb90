//! What compilers leave open in BTF and the loader knows: sizes of data sections, places
//! of variables in them, and which functions and variables are hidden.

use bpfkit_btf::{Btf, BtfBuilder, BtfError, Kind, Linkage, Type};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::elf::{Bind, Elf, Symbol, SymbolKind};
use crate::externs::{Externs, KCONFIG, KSYMS};
use crate::functions::Functions;

/// BTF with everything filled in, as libbpf hands it to the kernel (but for `.ksyms`,
/// which libbpf disguises for the kernel's loader).
pub(crate) fn fix(
    btf: Btf,
    elf: &Elf,
    functions: &Functions,
    externs: &Externs,
) -> Result<Btf, BtfError> {
    let mut patch = Patch {
        builder: BtfBuilder::from_btf(&btf),
        changed: false,
    };
    let variables: FxHashMap<&str, &Symbol> = elf
        .symbols
        .iter()
        .filter(|s| s.kind == SymbolKind::Object && matches!(s.bind, Bind::Global | Bind::Weak))
        .rev()
        .map(|s| (elf.name(s), s))
        .collect();
    for section in btf.own_types().filter(|t| t.is(Kind::Datasec)) {
        match section.name() {
            KSYMS => {}
            KCONFIG => patch.kconfig(&btf, section, externs),
            _ => patch.data(&btf, section, elf, &variables),
        }
    }
    let hidden: FxHashSet<&str> = functions
        .list
        .iter()
        .filter(|f| f.hidden && f.subprogram)
        .filter_map(|f| elf.symbols.get(f.symbol))
        .map(|s| elf.name(s))
        .collect();
    for func in btf.own_types().filter(|t| t.is(Kind::Func)) {
        if func.linkage() == Some(Linkage::Global) && hidden.contains(func.name()) {
            patch.set(func, 1, |info| info & !0xffff);
        }
    }
    if patch.changed {
        patch.builder.build()
    } else {
        Ok(btf)
    }
}

/// BTF as libbpf hands it to the kernel, which takes no external symbols: those of
/// `.ksyms` become integers, and its functions global ones whose parameters have names.
pub(crate) fn for_kernel(btf: &Btf) -> Result<Vec<u8>, BtfError> {
    let Some(section) = btf.by_name(KSYMS, Kind::Datasec) else {
        return Ok(btf.to_bytes());
    };
    let int = btf
        .own_types()
        .find(|t| t.int().is_some_and(|int| int.bits == 32))
        .map_or(0, Type::id);
    let is_func = |id| btf.kind(id) == Some(Kind::Func);
    let mut builder = BtfBuilder::from_btf(btf);
    let mut dummy = (0, 0);
    if section.variables().any(|v| is_func(v.type_id)) {
        let name = builder.string("dummy_ksym");
        dummy = (builder.var("dummy_ksym", int, Linkage::Global), name);
    }
    let mut patch = Patch {
        builder,
        changed: false,
    };
    let mut variables: Vec<_> = section.variables().collect();
    for (i, v) in variables.iter_mut().enumerate() {
        let Some(t) = btf.type_by_id(v.type_id) else {
            continue;
        };
        // A section has at most 65,535 variables.
        (v.offset, v.size) = (4 * i as u32, 4);
        if t.is(Kind::Func) {
            v.type_id = dummy.0;
            patch.set(t, 1, |info| info & !0xffff | Linkage::Global.number());
            let Some(proto) = t.proto() else { continue };
            for (i, param) in proto.params().enumerate() {
                if param.type_id != 0 && param.name_off == 0 {
                    patch.set(proto, 3 + 2 * i, |_| dummy.1);
                }
            }
        } else {
            patch.set(t, 2, |_| int);
            patch.set(t, 3, |_| Linkage::Global.number());
        }
    }
    patch.set(section, 2, |_| 4 * variables.len() as u32);
    patch.variables(section, variables);
    patch.builder.to_bytes()
}

/// A BTF section that is being changed.
struct Patch {
    builder: BtfBuilder,
    /// Whether some word got another value.
    changed: bool,
}

impl Patch {
    /// Changes a word of a type's record.
    fn set(&mut self, t: Type<'_>, word: usize, change: impl FnOnce(u32) -> u32) {
        let record = self.builder.record_mut(t.id());
        let Some(word) = record.and_then(|r| r.get_mut(word)) else {
            return;
        };
        let old = std::mem::replace(word, change(*word));
        self.changed |= *word != old;
    }

    /// Writes the variables of a section in order of their offsets.
    fn variables(&mut self, section: Type<'_>, mut variables: Vec<bpfkit_btf::VarSecinfo>) {
        variables.sort_by_key(|v| v.offset as i32);
        for (i, v) in variables.iter().enumerate() {
            for (word, value) in [v.type_id, v.offset, v.size].into_iter().enumerate() {
                self.set(section, 3 + 3 * i + word, |_| value);
            }
        }
    }

    fn kconfig(&mut self, btf: &Btf, section: Type<'_>, externs: &Externs) {
        let places: FxHashMap<&str, u32> = externs
            .kconfig()
            .map(|v| (v.name.as_str(), v.offset))
            .collect();
        self.set(section, 2, |_| externs.kconfig_size);
        let mut variables: Vec<_> = section.variables().collect();
        for v in &mut variables {
            let Some(var) = btf.type_by_id(v.type_id).filter(|t| t.is(Kind::Var)) else {
                continue;
            };
            if let Some(&offset) = places.get(var.name()) {
                v.offset = offset;
                self.set(var, 3, |_| Linkage::Global.number());
            }
        }
        self.variables(section, variables);
    }

    fn data(
        &mut self,
        btf: &Btf,
        section: Type<'_>,
        elf: &Elf,
        symbols: &FxHashMap<&str, &Symbol>,
    ) {
        // Clang leaves size and offsets 0; a static linker has filled them in.
        let unplaced = section.size() == Some(0);
        if unplaced {
            let size = elf
                .section_by_name(section.name())
                .and_then(|i| elf.sections.get(i))
                .and_then(|s| u32::try_from(s.size).ok());
            if let Some(size) = size {
                self.set(section, 2, |_| size);
            }
        }
        let mut variables: Vec<_> = section.variables().collect();
        for v in &mut variables {
            let Some(var) = btf.type_by_id(v.type_id).filter(|t| t.is(Kind::Var)) else {
                continue;
            };
            if matches!(var.linkage(), Some(Linkage::Static | Linkage::Extern)) {
                continue;
            }
            let Some(symbol) = symbols.get(var.name()) else {
                continue;
            };
            if unplaced {
                // A section's size fits in 32 bits where BTF can describe it.
                v.offset = symbol.value as u32;
            }
            if symbol.hidden {
                self.set(var, 3, |_| Linkage::Static.number());
            }
        }
        self.variables(section, variables);
    }
}
