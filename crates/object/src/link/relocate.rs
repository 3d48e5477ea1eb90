//! References of a function's instructions, resolved: CO-RE, maps, variables, kernel
//! symbols.

use bpfkit_btf::core::{RawInsn, Relocator};
use bpfkit_btf::ext::CoreRelo;
use bpfkit_isa::{Insn, code};
use rustc_hash::{FxHashMap, FxHashSet};

use super::Entry;
use super::image::{Frame, Image};
use crate::error::{ErrorKind, ObjectError};
use crate::externs::ExternKind;
use crate::functions::{Function, SLOT};
use crate::model::{InsnRef, PoisonReason, RefTarget};
use crate::reference::{Reference, Scope};
use crate::resolve::Resolved;

/// Helper number that takes the place of a reference to a map that is not created; the
/// map's index is added.
const POISON_MAP: i32 = 2_001_000_000;
/// Helper number that takes the place of a call to a missing kernel function; the number
/// of the external symbol is added.
const POISON_KFUNC: i32 = 2_002_000_000;

impl Image<'_, '_> {
    /// Applies the CO-RE relocations of the function that lies at `start`.
    pub(super) fn apply_core(
        &mut self,
        function: &Function,
        start: u32,
    ) -> Result<(), ObjectError> {
        let object = self.linker.object;
        let Some(core) = &mut self.linker.core else {
            self.refs
                .extend(object.ext.core(function).iter().map(|(_, relo)| InsnRef {
                    // Inside the function: that is how the records were cut out.
                    insn: start + (relo.insn_off / 8).saturating_sub(function.start),
                    target: RefTarget::Core {
                        type_id: relo.type_id,
                        access_str_off: relo.access_str_off,
                        kind: relo.kind,
                    },
                }));
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
    pub(super) fn apply_relocations(
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
            externs: FxHashSet::default(),
        };
        let all = self
            .linker
            .relocations
            .get(&function.section)
            .map_or(&[][..], |v| v);
        let bytes = function.bytes();
        let first = all.partition_point(|e| e.relocation.offset < bytes.start as u64);
        let end = all.partition_point(|e| e.relocation.offset < bytes.end as u64);
        let own: Vec<_> = all.get(first..end).unwrap_or(&[]).to_vec();
        let section = object
            .elf
            .sections
            .get(function.section)
            .map_or("", |s| s.name.as_str());
        let name = object.function_name(function);
        for entry in own {
            let Entry {
                table,
                number,
                relocation,
            } = entry;
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
                .resolve(name, insn, slot, (table, number), relocation)
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
