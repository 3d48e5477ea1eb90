//! A program in the making: functions appended, and their calls put right.

use bpfkit_btf::{Kind, Linkage};
use bpfkit_isa::{Insn, code};
use rustc_hash::{FxHashMap, FxHashSet};

use super::Linker;
use crate::error::{ErrorKind, ObjectError};
use crate::functions::Function;
use crate::model::{InsnRef, LineInfo, ProgramDecl, RefTarget, Subprogram};
use crate::object::Object;

/// Longer programs the kernel refuses (`BPF_COMPLEXITY_LIMIT_INSNS`).
const MOST_INSNS: usize = 1_000_000;

/// Declaration tag that names a program's exception callback.
const EXCEPTION_TAG: &str = "exception_callback:";

/// A program in the making.
pub(super) struct Image<'l, 'a> {
    pub(super) linker: &'l mut Linker<'a>,
    pub(super) decl: &'a ProgramDecl,
    pub(super) insns: Vec<Insn>,
    pub(super) subprograms: Vec<Subprogram>,
    pub(super) lines: Vec<LineInfo>,
    pub(super) refs: Vec<InsnRef>,
    /// Index in `subprograms` of each function that is in the image.
    pub(super) placed: FxHashMap<usize, u32>,
    /// Functions whose calls are being followed, the innermost last.
    pub(super) frames: Vec<Frame>,
    /// Whether the program itself has function and line records; those of subprograms are
    /// only looked for if so.
    pub(super) has_func_info: bool,
    pub(super) has_line_info: bool,
}

/// A function in the image.
pub(super) struct Frame {
    pub(super) function: usize,
    /// First slot in the image.
    pub(super) start: u32,
    /// Next own slot to look at.
    pub(super) next: u32,
    /// Functions that own slots refer to by relocation: section and slot.
    pub(super) functions: FxHashMap<u32, (usize, i64)>,
    /// Slots that refer to external symbols.
    pub(super) externs: FxHashSet<u32>,
}

impl<'l, 'a> Image<'l, 'a> {
    pub(super) fn new(linker: &'l mut Linker<'a>, decl: &'a ProgramDecl) -> Self {
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
        self.wrong_in(&self.decl.name, &message)
    }

    /// An error that names a function as libbpf does, which calls them all programs.
    fn wrong_in(&self, function: &str, message: &str) -> ObjectError {
        ObjectError::new(
            ErrorKind::Relocation,
            format!("prog '{function}': {message}"),
        )
    }

    /// Appends a function, with everything resolved but its calls; those come when its
    /// frame is on top.
    pub(super) fn place(&mut self, index: usize) -> Result<(), ObjectError> {
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

    /// Follows the calls of every placed function, depth first, placing those functions
    /// that are called for the first time.
    pub(super) fn place_called(&mut self) -> Result<(), ObjectError> {
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
                    let what = format!("missing subprog addr relo for insn #{own}");
                    return Err(self.wrong_in(object.function_name(function), &what));
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
                let name = object.function_name(function);
                let what = "no .text section found yet sub-program call exists";
                return Err(self.wrong_in(name, what));
            };
            if !callee.subprogram {
                let section = object
                    .elf
                    .sections
                    .get(section)
                    .map_or("", |s| s.name.as_str());
                let (name, caller) = (object.function_name(callee), object.function_name(function));
                let what = format!("bad call relo against '{name}' in section '{section}'");
                return Err(self.wrong_in(caller, &what));
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
    pub(super) fn exception_callback(&mut self) -> Result<Option<u32>, ObjectError> {
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
                offsets: [record.file_name_off, record.line_off],
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
