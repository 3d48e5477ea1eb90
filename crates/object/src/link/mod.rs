//! Putting a program together: its own instructions, the subprograms that it calls behind
//! them in the order in which they are first called, and every reference resolved.

mod image;
mod relocate;

use std::sync::Arc;

use bpfkit_btf::core::Relocator;
use bpfkit_spec::{AttachType, ProgType};
use rustc_hash::FxHashMap;

use crate::attach;
use crate::elf::Relocation;
use crate::error::{ErrorKind, ObjectError};
use crate::externs::ExternKind;
use crate::kconfig::KconfigValues;
use crate::maps::KernelLayout;
use crate::model::{BtfAttach, MapDef, MapOrigin, Program, ProgramDecl};
use crate::object::Object;
use crate::resolve::{self, Addresses, Resolved};
use crate::sections::SectionDef;
use crate::target::Target;
use image::Image;

/// Links programs of one object against one target, and remembers what was looked up.
#[derive(Debug)]
pub struct Linker<'a> {
    object: &'a Object,
    target: &'a Target<'a>,
    /// Sections of relocations by the section that they belong to, in order of offset.
    relocations: FxHashMap<usize, Vec<Entry>>,
    core: Option<Relocator<'a>>,
    kconfig: KconfigValues,
    addresses: Addresses,
    resolved: Vec<Option<Result<Resolved, ObjectError>>>,
    strings: FxHashMap<u32, Arc<str>>,
}

/// A relocation of instructions.
#[derive(Clone, Copy, Debug)]
struct Entry {
    /// Index of the section that holds it.
    table: usize,
    /// Its number there.
    number: usize,
    relocation: Relocation,
}

impl<'a> Linker<'a> {
    /// A linker for that object and target.
    pub fn new(object: &'a Object, target: &'a Target<'a>) -> Self {
        let modules = target.modules.iter().map(|m| m.btf.as_ref()).collect();
        // Asking for the kernel's BTF takes time.
        let core = match &object.btf {
            Some(local) if object.ext.has_core() => target
                .kernel_btf
                .get()
                .map(|kernel| Relocator::new(local, Some(kernel), modules)),
            _ => None,
        };
        let vars: Vec<_> = object.externs.kconfig().collect();
        let size = object.externs.kconfig_size as usize;
        Self {
            object,
            target,
            relocations: relocations(object),
            core,
            kconfig: KconfigValues::resolve(&vars, size, target, object.big_endian),
            addresses: Addresses::new(&object.externs, target),
            resolved: vec![None; object.externs.list.len()],
            strings: FxHashMap::default(),
        }
    }

    /// The object's maps as the kernel is to create them: `.kconfig` filled in, and
    /// struct_ops in the kernel's layout where the target's BTF has it (a structure that
    /// it lacks stays as it is).
    pub fn maps(&self) -> Vec<MapDef> {
        let mut maps = self.object.maps.clone();
        for (index, def) in maps.iter_mut().enumerate() {
            if Some(index) == self.object.places.kconfig
                && let MapOrigin::Data { bytes, .. } = &mut def.origin
            {
                bytes.clone_from(&self.kconfig.bytes);
            }
            if let Ok(Some((converted, ..))) = self.struct_ops(def) {
                *def = converted;
            }
        }
        maps
    }

    /// Links a program, by its index in [`Object::programs`].
    ///
    /// # Errors
    /// A relocation cannot be applied, a symbol is not to be found in the target, or
    /// there is no such program.
    pub fn link(&mut self, program: usize) -> Result<Program, ObjectError> {
        let object = self.object;
        let entry = object
            .entries
            .iter()
            .position(|&entry| entry == Some(program));
        let (Some(decl), Some(entry)) = (object.programs.get(program), entry) else {
            let message = format!("no program #{program}");
            return Err(ObjectError::new(ErrorKind::NotFound, message));
        };
        let mut image = Image::new(self, decl);
        image.place(entry)?;
        image.place_called()?;
        let exception_callback = image.exception_callback()?;
        let Image {
            insns,
            subprograms,
            lines,
            mut refs,
            ..
        } = image;
        refs.sort_by_key(|r| r.insn);
        let attach = match decl.prog_type {
            ProgType::StructOps => self.struct_ops_attach(&decl.name),
            _ => attach::find(decl, self.target),
        };
        Ok(Program {
            decl: self.as_loaded(decl),
            insns,
            subprograms,
            lines,
            refs,
            exception_callback,
            attach,
            btf: object.btf.clone(),
            license: object.license.clone(),
            kernel_version: object.kernel_version,
        })
    }

    /// Whether libbpf would load any program of this object: it refuses the whole object
    /// for one external symbol or struct_ops map that the target does not have, even where
    /// no program at hand uses it.
    ///
    /// # Errors
    /// The first reason that libbpf comes upon.
    pub fn check(&mut self) -> Result<(), ObjectError> {
        let externs = &self.object.externs.list;
        if let Some(e) = self.kconfig.errors.iter().flatten().next() {
            return Err(e.clone());
        }
        // Typed symbols are looked up before those that only have an address.
        let is_address = |kind: &ExternKind| matches!(kind, ExternKind::Variable { type_id: 0 });
        for addresses in [false, true] {
            for (index, ext) in externs.iter().enumerate() {
                if is_address(&ext.kind) == addresses {
                    self.resolve(index)?;
                }
            }
        }
        for def in self.object.maps.iter().filter(|def| def.autocreate) {
            self.struct_ops(def)?;
        }
        Ok(())
    }

    /// The declaration with what depends on the kernel filled in.
    fn as_loaded(&self, decl: &ProgramDecl) -> ProgramDecl {
        let mut decl = decl.clone();
        let usdt = SectionDef::find(&decl.section).is_some_and(|def| def.usdt);
        // Since 6.6 user-space tracepoints attach through a multi-uprobe link.
        if usdt && self.target.kernel_version >= 6 << 16 | 6 << 8 {
            decl.attach_type = AttachType::TraceUprobeMulti;
        }
        decl
    }

    /// A struct_ops map in the kernel's layout, with the members that its programs
    /// implement.
    #[allow(clippy::type_complexity, reason = "one place makes it and two read it")]
    fn struct_ops(
        &self,
        def: &MapDef,
    ) -> Result<Option<(MapDef, Vec<(String, u32)>, BtfAttach)>, ObjectError> {
        let MapOrigin::StructOps { kernel_type, .. } = &def.origin else {
            return Ok(None);
        };
        let (Some(kernel), Some(local)) = (self.target.kernel_btf.get(), &self.object.btf) else {
            return Ok(None);
        };
        let layout = KernelLayout::find(kernel, self.target, kernel_type)?;
        let (converted, members) = layout.convert(local, def)?;
        let attach = BtfAttach {
            type_id: layout.kernel_type.id(),
            module: layout.module,
            member: None,
        };
        Ok(Some((converted, members, attach)))
    }

    /// What a struct_ops program implements, by the first created map that names it.
    fn struct_ops_attach(&self, program: &str) -> Result<Option<BtfAttach>, ObjectError> {
        for def in self.object.maps.iter().filter(|def| def.autocreate) {
            let MapOrigin::StructOps { programs, .. } = &def.origin else {
                continue;
            };
            if !programs.iter().any(|(_, name)| name == program) {
                continue;
            }
            let Some((_, members, attach)) = self.struct_ops(def)? else {
                continue;
            };
            if let Some((_, member)) = members.iter().find(|(name, _)| name == program) {
                return Ok(Some(BtfAttach {
                    member: Some(*member),
                    ..attach
                }));
            }
        }
        Ok(None)
    }

    /// What an external symbol stands for, looked up once.
    fn resolve(&mut self, index: usize) -> Result<Resolved, ObjectError> {
        let missing = || ObjectError::new(ErrorKind::Extern, format!("no extern #{index}"));
        if let Some(Some(known)) = self.resolved.get(index) {
            return known.clone();
        }
        let ext = self.object.externs.list.get(index).ok_or_else(missing)?;
        let result = match (&self.object.btf, &ext.kind) {
            (_, ExternKind::Unusable(e)) => Err(e.clone()),
            (Some(local), _) => resolve::resolve(ext, local, self.target, &self.addresses),
            (None, _) => Err(missing()),
        };
        if let Some(slot) = self.resolved.get_mut(index) {
            *slot = Some(result.clone());
        }
        result
    }

    fn string(&mut self, offset: u32) -> Arc<str> {
        let btf = self.object.btf.as_deref();
        let text = || Arc::from(btf.and_then(|b| b.string(offset)).unwrap_or(""));
        self.strings.entry(offset).or_insert_with(text).clone()
    }
}

/// All relocations of executable sections, sorted so that those of a function can be cut
/// out.
fn relocations(object: &Object) -> FxHashMap<usize, Vec<Entry>> {
    let mut all: FxHashMap<usize, Vec<Entry>> = FxHashMap::default();
    for (table, section) in object.elf.sections.iter().enumerate() {
        if !section.is_rel() {
            continue;
        }
        let of = section.info as usize;
        if object
            .elf
            .sections
            .get(of)
            .is_some_and(|s| s.is_exec() && s.is_progbits())
        {
            let numbered = object.elf.relocations(section).enumerate();
            all.entry(of)
                .or_default()
                .extend(numbered.map(|(number, relocation)| Entry {
                    table,
                    number,
                    relocation,
                }));
        }
    }
    for list in all.values_mut() {
        list.sort_by_key(|e| e.relocation.offset);
        // No instruction has two in an object that a compiler wrote.
        list.dedup_by_key(|e| e.relocation.offset);
    }
    all
}
