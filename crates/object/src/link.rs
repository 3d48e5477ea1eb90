//! Putting a program together: its own instructions, the subprograms that it calls behind
//! them in the order in which they are first called, and every reference resolved.

use std::sync::Arc;

use bpfkit_btf::core::{RawInsn, Relocator};
use bpfkit_btf::ext::CoreRelo;
use bpfkit_btf::{Kind, Linkage};
use bpfkit_isa::{Insn, code};
use bpfkit_spec::{AttachType, ProgType};
use rustc_hash::FxHashMap;

use crate::attach;
use crate::elf::Relocation;
use crate::error::{ErrorKind, ObjectError};
use crate::externs::ExternKind;
use crate::functions::{Function, SLOT};
use crate::kconfig::KconfigValues;
use crate::maps::KernelLayout;
use crate::model::{
    BtfAttach, InsnRef, LineInfo, MapDef, MapOrigin, PoisonReason, Program, ProgramDecl, RefTarget,
    Subprogram,
};
use crate::object::Object;
use crate::reference::{Reference, Scope};
use crate::resolve::{self, Addresses, Resolved};
use crate::sections::SectionDef;
use crate::target::Target;

/// Helper number that takes the place of a reference to a map that is not created; the
/// map's index is added.
const POISON_MAP: i32 = 2_001_000_000;
/// Helper number that takes the place of a call to a missing kernel function; the number
/// of the external symbol is added.
const POISON_KFUNC: i32 = 2_002_000_000;

/// Longer programs the kernel refuses (`BPF_COMPLEXITY_LIMIT_INSNS`).
const MOST_INSNS: usize = 1_000_000;

/// Declaration tag that names a program's exception callback.
const EXCEPTION_TAG: &str = "exception_callback:";

/// Links programs of one object against one target, and remembers what was looked up.
#[derive(Debug)]
pub struct Linker<'a> {
    object: &'a Object,
    target: &'a Target<'a>,
    /// Sections of relocations by the section that they belong to, in order of offset.
    relocations: FxHashMap<usize, Vec<(usize, Relocation)>>,
    core: Option<Relocator<'a>>,
    kconfig: KconfigValues,
    addresses: Addresses,
    resolved: Vec<Option<Result<Resolved, ObjectError>>>,
    strings: FxHashMap<u32, Arc<str>>,
}

impl<'a> Linker<'a> {
    /// A linker for that object and target.
    pub fn new(object: &'a Object, target: &'a Target<'a>) -> Self {
        let modules = target.modules.iter().map(|m| m.btf.as_ref()).collect();
        let core = match (&object.btf, target.kernel_btf) {
            (Some(local), Some(kernel)) => Some(Relocator::new(local, Some(kernel), modules)),
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
        let (Some(kernel), Some(local)) = (self.target.kernel_btf, &self.object.btf) else {
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
fn relocations(object: &Object) -> FxHashMap<usize, Vec<(usize, Relocation)>> {
    let mut all: FxHashMap<usize, Vec<(usize, Relocation)>> = FxHashMap::default();
    for section in object.elf.sections.iter().filter(|s| s.is_rel()) {
        let of = section.info as usize;
        if object
            .elf
            .sections
            .get(of)
            .is_some_and(|s| s.is_exec() && s.is_progbits())
        {
            all.entry(of)
                .or_default()
                .extend(object.elf.relocations(section).enumerate());
        }
    }
    for list in all.values_mut() {
        list.sort_by_key(|(_, r)| r.offset);
        // No instruction has two in an object that a compiler wrote.
        list.dedup_by_key(|(_, r)| r.offset);
    }
    all
}

/// A program in the making.
struct Image<'l, 'a> {
    linker: &'l mut Linker<'a>,
    decl: &'a ProgramDecl,
    insns: Vec<Insn>,
    subprograms: Vec<Subprogram>,
    lines: Vec<LineInfo>,
    refs: Vec<InsnRef>,
    /// Index in `subprograms` of each function that is in the image.
    placed: FxHashMap<usize, u32>,
    /// Functions whose calls are being followed, the innermost last.
    frames: Vec<Frame>,
    /// Whether the program itself has function and line records; those of subprograms are
    /// only looked for if so.
    has_func_info: bool,
    has_line_info: bool,
}

/// A function in the image.
struct Frame {
    function: usize,
    /// First slot in the image.
    start: u32,
    /// Next own slot to look at.
    next: u32,
    /// Functions that own slots refer to by relocation: section and slot.
    functions: FxHashMap<u32, (usize, i64)>,
    /// Slots that refer to external symbols.
    externs: rustc_hash::FxHashSet<u32>,
}

impl<'l, 'a> Image<'l, 'a> {
    fn new(linker: &'l mut Linker<'a>, decl: &'a ProgramDecl) -> Self {
        Self {
            linker,
            decl,
            insns: Vec::new(),
            subprograms: Vec::new(),
            lines: Vec::new(),
            refs: Vec::new(),
            placed: FxHashMap::default(),
            frames: Vec::new(),
            has_func_info: false,
            has_line_info: false,
        }
    }

    fn wrong(&self, message: String) -> ObjectError {
        ObjectError::new(
            ErrorKind::Relocation,
            format!("prog '{}': {message}", self.decl.name),
        )
    }

    /// Appends a function, with everything resolved but its calls; those come when its
    /// frame is on top.
    fn place(&mut self, index: usize) -> Result<(), ObjectError> {
        let object = self.linker.object;
        let Some(function) = object.functions.list.get(index) else {
            return Err(self.wrong(format!("no function #{index}")));
        };
        let name = object.function_name(function);
        if self.insns.len() + function.len as usize > MOST_INSNS {
            return Err(self.wrong(format!("more than {MOST_INSNS} instructions with '{name}'")));
        }
        let start = self.insns.len() as u32;
        self.append_insns(function);
        self.apply_core(function, start)?;
        let frame = self.apply_relocations(index, function, start)?;
        self.placed.insert(index, self.subprograms.len() as u32);
        let type_id = self.function_type(function)?;
        // The kernel goes by the type, not by the symbol.
        let func = object.btf.as_ref().and_then(|btf| btf.type_by_id(type_id));
        let global = func.is_some_and(|f| f.linkage() == Some(Linkage::Global));
        self.subprograms.push(Subprogram {
            name: name.to_owned(),
            start,
            type_id,
            global,
        });
        self.append_lines(function, start)?;
        self.frames.push(frame);
        Ok(())
    }

    fn append_insns(&mut self, function: &Function) {
        let elf = &self.linker.object.elf;
        let section = elf.sections.get(function.section);
        let bytes = section
            .and_then(|s| elf.data(s).get(function.bytes()))
            .unwrap_or(&[]);
        self.insns
            .extend(bytes.as_chunks::<8>().0.iter().map(|slot| {
                if elf.big_endian {
                    Insn::from_be_bytes(*slot)
                } else {
                    Insn::from_le_bytes(*slot)
                }
            }));
    }

    /// Applies the CO-RE relocations of the function that lies at `start`.
    fn apply_core(&mut self, function: &Function, start: u32) -> Result<(), ObjectError> {
        let object = self.linker.object;
        let Some(core) = &mut self.linker.core else {
            return Ok(());
        };
        let name = object.function_name(function);
        let section = object
            .elf
            .sections
            .get(function.section)
            .map_or("", |s| s.name.as_str());
        for (number, relo) in object.ext.core(function) {
            let failed = |why: String| {
                let message = format!("prog '{name}': relo #{number}: {why}");
                ObjectError::new(ErrorKind::CoreRelocation, message)
                    .at(section, u64::from(relo.insn_off))
            };
            // Inside the function: that is how the records were cut out.
            let own = (relo.insn_off / 8).saturating_sub(function.start);
            let at = (start + own) as usize;
            let Some(&first) = self.insns.get(at).filter(|_| relo.insn_off % 8 == 0) else {
                return Err(failed("failed to relocate: -22".to_owned()));
            };
            let second = if first.is_ld_imm64() {
                self.insns.get(at + 1).copied()
            } else {
                None
            };
            let resolution = core.resolve(relo).map_err(|e| failed(e.to_string()))?;
            let patch = resolution
                .patch(own, raw(first), second.map(raw))
                .map_err(|e| failed(e.to_string()))?;
            for (i, insn) in [Some(patch.first), patch.second]
                .into_iter()
                .flatten()
                .enumerate()
            {
                if let Some(slot) = self.insns.get_mut(at + i) {
                    *slot = cooked(insn);
                }
            }
            if patch.poison.is_some() {
                let message = poison_message(core, relo);
                let reason = PoisonReason::CoreRelocation;
                self.refs.push(InsnRef {
                    insn: start + own,
                    target: RefTarget::Poison { reason, message },
                });
            }
        }
        Ok(())
    }

    /// Resolves what the function's instructions refer to, functions excepted.
    fn apply_relocations(
        &mut self,
        index: usize,
        function: &Function,
        start: u32,
    ) -> Result<Frame, ObjectError> {
        let object = self.linker.object;
        let mut frame = Frame {
            function: index,
            start,
            next: 0,
            functions: FxHashMap::default(),
            externs: rustc_hash::FxHashSet::default(),
        };
        let all = self
            .linker
            .relocations
            .get(&function.section)
            .map_or(&[][..], |v| v);
        let bytes = function.bytes();
        let first = all.partition_point(|(_, r)| r.offset < bytes.start as u64);
        let end = all.partition_point(|(_, r)| r.offset < bytes.end as u64);
        let own: Vec<_> = all.get(first..end).unwrap_or(&[]).to_vec();
        let section = object
            .elf
            .sections
            .get(function.section)
            .map_or("", |s| s.name.as_str());
        let name = object.function_name(function);
        for (number, relocation) in own {
            let at = |e: ObjectError| e.at(section, relocation.offset);
            if !relocation.offset.is_multiple_of(SLOT) {
                return Err(at(ObjectError::new(
                    ErrorKind::Relocation,
                    format!(
                        "sec '{section}': invalid offset {:#x} for relo #{number}",
                        relocation.offset
                    ),
                )));
            }
            // Inside the function, whose length is 32 bits.
            let slot = (relocation.offset / SLOT) as u32 - function.start;
            let Some(&insn) = self.insns.get((start + slot) as usize) else {
                continue;
            };
            let scope = Scope {
                elf: &object.elf,
                functions: &object.functions,
                externs: &object.externs,
                maps: &object.places,
            };
            let reference = scope
                .resolve(name, insn, slot, number, relocation)
                .map_err(at)?;
            match reference {
                Reference::Function {
                    section,
                    slot: target,
                    call,
                } => {
                    frame.functions.insert(slot, (section, target));
                    if !call && let Some(insn) = self.insns.get_mut((start + slot) as usize) {
                        insn.src = code::PSEUDO_FUNC;
                    }
                }
                Reference::Map(map) => self.refer_to_map(start + slot, map, None),
                Reference::Variable { map, offset } => {
                    self.refer_to_map(start + slot, map, Some(offset));
                }
                Reference::Extern(ext) => {
                    frame.externs.insert(slot);
                    self.refer_to_extern(start + slot, ext).map_err(at)?;
                }
            }
        }
        Ok(frame)
    }

    fn slots(&mut self, at: u32) -> (Option<&mut Insn>, Option<&mut Insn>) {
        let mut rest = self
            .insns
            .get_mut(at as usize..)
            .unwrap_or_default()
            .iter_mut();
        (rest.next(), rest.next())
    }

    fn refer_to_map(&mut self, at: u32, map: usize, offset: Option<u64>) {
        // No more maps than symbols, which a file's length bounds.
        let number = map as u32;
        let def = self.linker.object.maps.get(map);
        let (first, second) = self.slots(at);
        let (Some(first), Some(second)) = (first, second) else {
            return;
        };
        if let Some(offset) = offset {
            second.imm = first.imm.wrapping_add(offset as u32 as i32);
        }
        let target = match def {
            Some(def) if !def.autocreate => {
                let poison = poisoned(POISON_MAP.wrapping_add(number as i32));
                (*first, *second) = (poison, poison);
                let message = format!("BPF map '{}' is referenced but wasn't created", def.name);
                RefTarget::Poison {
                    reason: PoisonReason::Map,
                    message,
                }
            }
            _ => {
                first.src = match offset {
                    Some(_) => code::PSEUDO_MAP_IDX_VALUE,
                    None => code::PSEUDO_MAP_IDX,
                };
                first.imm = number as i32;
                RefTarget::Map(number)
            }
        };
        self.refs.push(InsnRef { insn: at, target });
    }

    fn refer_to_extern(&mut self, at: u32, index: usize) -> Result<(), ObjectError> {
        let object = self.linker.object;
        let Some(ext) = object.externs.list.get(index) else {
            return Ok(());
        };
        if let ExternKind::Kconfig(var) = &ext.kind {
            let order = object.externs.list.iter().take(index);
            let number = order
                .filter(|e| matches!(e.kind, ExternKind::Kconfig(_)))
                .count();
            if let Some(Some(e)) = self.linker.kconfig.errors.get(number) {
                return Err(e.clone());
            }
            let Some(map) = object.places.kconfig else {
                return Ok(());
            };
            let (first, second) = self.slots(at);
            if let (Some(first), Some(second)) = (first, second) {
                first.src = code::PSEUDO_MAP_IDX_VALUE;
                first.imm = map as i32;
                second.imm = var.offset as i32;
            }
            self.refs.push(InsnRef {
                insn: at,
                target: RefTarget::Map(map as u32),
            });
            return Ok(());
        }
        let resolved = self.linker.resolve(index)?;
        let (first, second) = self.slots(at);
        let Some(first) = first else { return Ok(()) };
        let is_call = !first.is_ld_imm64();
        let weak = ext.weak;
        let name = ext.name.clone();
        let mut target = match ext.kind {
            ExternKind::Function { type_id, .. } => {
                let name = bpfkit_btf::essential_name(&name).to_owned();
                RefTarget::Kfunc {
                    name,
                    type_id,
                    weak,
                }
            }
            ExternKind::Variable { type_id } => RefTarget::Ksym {
                name,
                type_id,
                weak,
            },
            ExternKind::Kconfig(_) | ExternKind::Unusable(_) => return Ok(()),
        };
        // 0 is the kernel's own BTF.
        let btf = |module: Option<u32>| module.map_or(0, |m| m.wrapping_add(1));
        match resolved {
            Resolved::Typed { id, module } if is_call => {
                first.src = code::PSEUDO_KFUNC_CALL;
                first.imm = id as i32;
                first.off = btf(module) as i16;
            }
            Resolved::Typed { id, module } => {
                first.src = code::PSEUDO_BTF_ID;
                first.imm = id as i32;
                if let Some(second) = second {
                    second.imm = btf(module) as i32;
                }
            }
            Resolved::Address(_) | Resolved::Missing if is_call => {
                *first = poisoned(POISON_KFUNC.wrapping_add(index as i32));
                let message = format!("kfunc '{}' is referenced but wasn't resolved", ext.name);
                target = RefTarget::Poison {
                    reason: PoisonReason::Kfunc,
                    message,
                };
            }
            Resolved::Address(_) | Resolved::Missing => {
                let address = match resolved {
                    Resolved::Address(address) => address,
                    _ => 0,
                };
                first.imm = address as i32;
                if let Some(second) = second {
                    second.imm = (address >> 32) as i32;
                }
            }
        }
        self.refs.push(InsnRef { insn: at, target });
        Ok(())
    }

    /// Follows the calls of every placed function, depth first, placing those functions
    /// that are called for the first time.
    fn place_called(&mut self) -> Result<(), ObjectError> {
        while let Some(frame) = self.frames.last_mut() {
            let object = self.linker.object;
            let Some(function) = object.functions.list.get(frame.function) else {
                break;
            };
            if frame.next >= function.len {
                self.frames.pop();
                continue;
            }
            let own = frame.next;
            frame.next += 1;
            let at = frame.start + own;
            let Some(insn) = self.insns.get(at as usize).copied() else {
                continue;
            };
            let is_pointer = insn.is_ld_imm64() && insn.src == code::PSEUDO_FUNC;
            let is_call = is_subprogram_call(insn);
            if !is_pointer && !is_call || frame.externs.contains(&own) {
                continue;
            }
            let (section, slot) = match frame.functions.get(&own) {
                Some(&target) => target,
                None if is_pointer => {
                    return Err(self.wrong(format!("missing subprog addr relo for insn #{own}")));
                }
                // No relocation: a static function of the same section.
                None => {
                    let here = i64::from(function.start) + i64::from(own);
                    (function.section, here + i64::from(insn.imm) + 1)
                }
            };
            let called = u64::try_from(slot)
                .ok()
                .and_then(|s| object.functions.at(section, s));
            let callee = called.and_then(|i| Some((i, object.functions.list.get(i)?)));
            let Some((called, callee)) = callee else {
                return Err(
                    self.wrong("no .text section found yet sub-program call exists".to_owned())
                );
            };
            if !callee.subprogram {
                let section = object
                    .elf
                    .sections
                    .get(section)
                    .map_or("", |s| s.name.as_str());
                let name = object.function_name(callee);
                return Err(self.wrong(format!(
                    "bad call relo against '{name}' in section '{section}'"
                )));
            }
            if !self.placed.contains_key(&called) {
                self.place(called)?;
            }
            let Some(&number) = self.placed.get(&called) else {
                continue;
            };
            let start = self.subprograms.get(number as usize).map_or(0, |s| s.start);
            if let Some(insn) = self.insns.get_mut(at as usize) {
                // Both are below MOST_INSNS.
                insn.imm = start as i32 - at as i32 - 1;
            }
            self.refs.push(InsnRef {
                insn: at,
                target: RefTarget::Subprogram(number),
            });
        }
        Ok(())
    }

    /// Appends the exception callback that a declaration tag of the program names, if it
    /// is not called anyway.
    fn exception_callback(&mut self) -> Result<Option<u32>, ObjectError> {
        let Some(name) = self.exception_callback_name()? else {
            return Ok(None);
        };
        let object = self.linker.object;
        let mut found = None;
        for (index, function) in object.functions.list.iter().enumerate() {
            if !function.subprogram || object.function_name(function) != name {
                continue;
            }
            if !function.global || function.hidden {
                return Err(self.wrong(format!(
                    "exception callback {name} must be a global non-hidden function"
                )));
            }
            found = Some(index);
            break;
        }
        let Some(index) = found else {
            return Err(self.wrong(format!("cannot find exception callback '{name}'")));
        };
        if !self.placed.contains_key(&index) {
            self.place(index)?;
            self.place_called()?;
        }
        Ok(self.placed.get(&index).copied())
    }

    /// The name in the program's tag; `None` where there is none, or more than one (which
    /// the verifier refuses).
    fn exception_callback_name(&self) -> Result<Option<&'a str>, ObjectError> {
        let object: &'a Object = self.linker.object;
        let Some(btf) = &object.btf else {
            return Ok(None);
        };
        let mut name = None;
        for func in btf
            .all_by_name(&self.decl.name)
            .filter(|t| t.is(Kind::Func))
        {
            let tags = btf.decl_tags(func.id()).filter(|t| t.component().is_none());
            for value in tags.filter_map(|t| t.name().strip_prefix(EXCEPTION_TAG)) {
                if func.linkage() != Some(Linkage::Global) {
                    return Err(self.wrong(
                        "exception_callback:<value> decl tag not applied to the main program"
                            .to_owned(),
                    ));
                }
                if name.is_some() {
                    return Ok(None);
                }
                if value.is_empty() {
                    return Err(self.wrong(
                        "exception_callback:<value> decl tag contains empty value".to_owned(),
                    ));
                }
                name = Some(value);
            }
        }
        Ok(name)
    }

    /// Type of a function by its record in `.BTF.ext`.
    fn function_type(&mut self, function: &Function) -> Result<u32, ObjectError> {
        let object = self.linker.object;
        let first = self.subprograms.is_empty();
        if !first && !self.has_func_info {
            return Ok(0);
        }
        match object.ext.functions(function).first() {
            Some(record) => {
                self.has_func_info = true;
                Ok(record.type_id)
            }
            None if first => Ok(0),
            None => Err(ObjectError::new(
                ErrorKind::Btf,
                format!(
                    "prog '{}': missing .BTF.ext function info.",
                    object.function_name(function)
                ),
            )),
        }
    }

    fn append_lines(&mut self, function: &Function, start: u32) -> Result<(), ObjectError> {
        let object = self.linker.object;
        let first = start == 0;
        if !first && !self.has_line_info {
            return Ok(());
        }
        let records = object.ext.lines(function);
        if records.is_empty() {
            if first {
                return Ok(());
            }
            return Err(ObjectError::new(
                ErrorKind::Btf,
                format!(
                    "prog '{}': missing .BTF.ext line info.",
                    object.function_name(function)
                ),
            ));
        }
        self.has_line_info = true;
        for record in records {
            let file = self.linker.string(record.file_name_off);
            let text = self.linker.string(record.line_off);
            self.lines.push(LineInfo {
                insn: start + (record.insn_off / 8).saturating_sub(function.start),
                file,
                text,
                line: record.line(),
                column: record.column(),
            });
        }
        Ok(())
    }
}

fn is_subprogram_call(insn: Insn) -> bool {
    insn.code == code::JMP | code::CALL
        && insn.src == code::PSEUDO_CALL
        && insn.dst == 0
        && insn.off == 0
}

/// A call of a helper that does not exist.
const fn poisoned(number: i32) -> Insn {
    Insn {
        code: code::JMP | code::CALL,
        dst: 0,
        src: 0,
        off: 0,
        imm: number,
    }
}

/// What libbpf puts into the verifier's log for an instruction that CO-RE poisoned.
fn poison_message(core: &Relocator<'_>, relo: &CoreRelo) -> String {
    /// libbpf's buffer for the description, with its NUL.
    const BUFFER: usize = 256;
    let mut what = core.describe(relo).unwrap_or_default();
    if what.len() >= BUFFER {
        let end = (0..BUFFER)
            .rev()
            .find(|&i| what.is_char_boundary(i))
            .unwrap_or(0);
        what.truncate(end);
        what.push_str("...");
    }
    format!("failed to resolve CO-RE relocation {what}")
}

const fn raw(insn: Insn) -> RawInsn {
    RawInsn {
        code: insn.code,
        dst: insn.dst,
        src: insn.src,
        off: insn.off,
        imm: insn.imm,
    }
}

const fn cooked(insn: RawInsn) -> Insn {
    Insn {
        code: insn.code,
        dst: insn.dst,
        src: insn.src,
        off: insn.off,
        imm: insn.imm,
    }
}
