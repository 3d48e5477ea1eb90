//! An object file, opened.

use std::sync::Arc;

use bpfkit_btf::ext::BtfExt;
use bpfkit_btf::{Btf, BtfError};
use bpfkit_spec::{AttachType, ProgType};

use crate::btf_fixup;
use crate::elf::{Elf, Section};
use crate::error::{ErrorKind, ObjectError};
use crate::ext_info::ExtInfo;
use crate::externs::Externs;
use crate::functions::{Function, Functions};
use crate::link::Linker;
use crate::maps::{Maps, Source, object_name};
use crate::model::{Global, MapDef, MapOrigin, Program, ProgramDecl};
use crate::sections::SectionDef;
use crate::target::Target;

/// An object file with everything that it declares; [`link`](Self::link) makes a program
/// of it that can be verified and run.
#[derive(Clone, Debug)]
pub struct Object {
    /// The object's name as libbpf cuts it: the file's, without directory, up to the first
    /// dot, at most 15 bytes.
    pub name: String,
    /// Whether the object is for big-endian machines (`bpfeb`). Instructions are read into
    /// fields, but the contents of maps stay as they are.
    pub big_endian: bool,
    /// Programs in libbpf's order: by section, and by place in it.
    pub programs: Vec<ProgramDecl>,
    /// Maps in libbpf's order; references of instructions index it. Before
    /// [`Linker::maps`], `.kconfig` is zero and struct_ops are in the object's layout.
    pub maps: Vec<MapDef>,
    /// Variables of the data maps, of `.kconfig` and of the arena.
    pub globals: Vec<Global>,
    /// `license` section, empty if absent.
    pub license: String,
    /// `version` section, in the encoding of `LINUX_VERSION_CODE`; 0 if absent.
    pub kernel_version: u32,
    /// The object's BTF, with places of variables filled in.
    pub btf: Option<Arc<Btf>>,
    pub(crate) elf: Elf,
    pub(crate) functions: Functions,
    /// Index in [`Object::programs`] of each function that is a program.
    pub(crate) entries: Vec<Option<usize>>,
    pub(crate) externs: Externs,
    pub(crate) places: Maps,
    pub(crate) ext: ExtInfo,
}

impl Object {
    /// Reads an object file. `name` is the file's, with or without directory: the maps of
    /// global variables are named after it, as libbpf does.
    ///
    /// Relocations of instructions are looked at when a program is linked.
    ///
    /// # Errors
    /// The bytes are no 64-bit relocatable BPF object; headers, symbols or BTF are cut or
    /// contradict themselves; a map definition is wrong.
    pub fn open(name: &str, bytes: &[u8]) -> Result<Self, ObjectError> {
        let elf = Elf::parse(name, bytes)?;
        let functions = Functions::collect(&elf)?;
        let (entries, programs) = declare(&elf, &functions);
        let (license, kernel_version) = (license(&elf), version(&elf, name)?);
        let btf = read_btf(&elf)?;
        let externs = Externs::collect(&elf, btf.as_ref());
        let btf = match btf {
            Some(btf) => Some(
                btf_fixup::fix(btf, &elf, &functions, &externs)
                    .map_err(|e| btf_error(&e, ".BTF"))?,
            ),
            None => None,
        };
        let ext = match &btf {
            Some(btf) => read_ext(&elf, btf)?,
            None => ExtInfo::default(),
        };
        let name = object_name(name);
        let source = Source {
            elf: &elf,
            btf: btf.as_ref(),
            functions: &functions,
            programs: &programs,
            entries: &entries,
            externs: &externs,
            name,
        };
        let mut places = Maps::collect(&source)?;
        Ok(Self {
            name: name.to_owned(),
            big_endian: elf.big_endian,
            programs,
            maps: std::mem::take(&mut places.defs),
            globals: std::mem::take(&mut places.globals),
            license,
            kernel_version,
            btf: btf.map(Arc::new),
            elf,
            functions,
            entries,
            externs,
            places,
            ext,
        })
    }

    /// The index of a program in [`Object::programs`].
    pub fn program_index(&self, name: &str) -> Option<usize> {
        self.programs.iter().position(|p| p.name == name)
    }

    /// The index of a map in [`Object::maps`].
    pub fn map_index(&self, name: &str) -> Option<usize> {
        self.maps.iter().position(|m| m.name == name)
    }

    /// Links the program of that name; see [`Linker::link`]. A [`Linker`] links several
    /// programs in less time.
    ///
    /// # Errors
    /// As [`Linker::link`], and [`ErrorKind::NotFound`].
    pub fn link(&self, program: &str, target: &Target<'_>) -> Result<Program, ObjectError> {
        let index = self.program_index(program).ok_or_else(|| {
            ObjectError::new(ErrorKind::NotFound, format!("no program '{program}'"))
        })?;
        Linker::new(self, target).link(index)
    }

    /// The object's BTF as libbpf hands it to the kernel, whose loader takes no external
    /// symbols: in it those of `.ksyms` are disguised as integers. Type ids are the same
    /// as in [`Object::btf`].
    ///
    /// # Errors
    /// [`ErrorKind::Btf`]: the object has no BTF, or too large one.
    pub fn btf_for_kernel(&self) -> Result<Vec<u8>, ObjectError> {
        let btf = self
            .btf
            .as_ref()
            .ok_or_else(|| ObjectError::new(ErrorKind::Btf, "the object has no BTF"))?;
        btf_fixup::for_kernel(btf).map_err(|e| btf_error(&e, ".BTF"))
    }

    /// Sets the initial value of a global variable, in the object's byte order. Fewer
    /// bytes than the variable has set its first ones.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`]: there is no such variable, it has fewer bytes, or it
    /// belongs to `.kconfig`, whose values are the target's.
    pub fn set_global(&mut self, name: &str, value: &[u8]) -> Result<(), ObjectError> {
        let fail = |message| Err(ObjectError::new(ErrorKind::NotFound, message));
        let Some(global) = self.globals.iter().find(|g| g.name == name) else {
            return fail(format!("no global variable '{name}'"));
        };
        let room = global.range.len();
        if value.len() > room {
            let given = value.len();
            return fail(format!(
                "variable '{name}' has {room} bytes, {given} are given"
            ));
        }
        let bytes = match self
            .maps
            .get_mut(global.map as usize)
            .map(|m| &mut m.origin)
        {
            Some(MapOrigin::Data { section, bytes }) if section != crate::externs::KCONFIG => bytes,
            Some(MapOrigin::Arena { bytes }) => bytes,
            _ => return fail(format!("variable '{name}' cannot be set")),
        };
        let start = global.range.start as usize;
        match bytes
            .get_mut(start..)
            .and_then(|b| b.get_mut(..value.len()))
        {
            Some(to) => to.copy_from_slice(value),
            None => return fail(format!("variable '{name}' lies outside its map")),
        }
        Ok(())
    }

    /// Sets an integer variable of 1, 2, 4 or 8 bytes.
    ///
    /// # Errors
    /// As [`set_global`](Self::set_global), and where the variable has another size or
    /// the value does not fit.
    pub fn set_global_int(&mut self, name: &str, value: i128) -> Result<(), ObjectError> {
        let fail = |message| Err(ObjectError::new(ErrorKind::NotFound, message));
        let Some(global) = self.globals.iter().find(|g| g.name == name) else {
            return fail(format!("no global variable '{name}'"));
        };
        let size = global.range.len();
        if !matches!(size, 1 | 2 | 4 | 8) {
            return fail(format!(
                "variable '{name}' has {size} bytes and is no integer"
            ));
        }
        let bits = 8 * size as u32;
        if value >= 1 << bits || value < -(1 << (bits - 1)) {
            return fail(format!(
                "{value} does not fit in the {size} bytes of '{name}'"
            ));
        }
        if self.big_endian {
            self.set_global(name, &value.to_be_bytes()[16 - size..])
        } else {
            self.set_global(name, &value.to_le_bytes()[..size])
        }
    }

    /// Name of a function.
    pub(crate) fn function_name(&self, function: &Function) -> &str {
        self.elf
            .symbols
            .get(function.symbol)
            .map_or("", |s| self.elf.name(s))
    }
}

/// The programs among the functions.
fn declare(elf: &Elf, functions: &Functions) -> (Vec<Option<usize>>, Vec<ProgramDecl>) {
    let mut programs = Vec::new();
    let entries = functions.list.iter().map(|function| {
        if function.subprogram {
            return None;
        }
        let name = elf.symbols.get(function.symbol).map_or("", |s| elf.name(s));
        let section = elf
            .sections
            .get(function.section)
            .map_or("", |s| s.name.as_str());
        let (section, autoload) = match section.strip_prefix('?') {
            Some(section) => (section, false),
            None => (section, true),
        };
        let def = SectionDef::find(section);
        programs.push(ProgramDecl {
            name: name.to_owned(),
            section: section.to_owned(),
            prog_type: def.map_or(ProgType::Unspec, |d| d.prog_type),
            attach_type: def.map_or(AttachType::CgroupInetIngress, |d| d.attach_type),
            attach_target: def
                .filter(|d| d.extras)
                .and_then(|_| section.split_once('/'))
                .map(|(_, target)| target.to_owned()),
            flags: def.map_or(0, |d| d.flags),
            autoload,
            own_insns: function.len,
        });
        Some(programs.len() - 1)
    });
    (entries.collect(), programs)
}

/// The last section of that name, as libbpf takes it.
fn named<'a>(elf: &'a Elf, name: &str) -> Option<&'a Section> {
    elf.sections.iter().rev().find(|s| s.name == name)
}

fn license(elf: &Elf) -> String {
    let data = named(elf, "license").map_or(&[][..], |s| elf.data(s));
    // libbpf keeps 63 bytes.
    let text = data
        .iter()
        .take(63)
        .take_while(|&&b| b != 0)
        .copied()
        .collect::<Vec<u8>>();
    String::from_utf8_lossy(&text).into_owned()
}

fn version(elf: &Elf, name: &str) -> Result<u32, ObjectError> {
    let Some(section) = named(elf, "version") else {
        return Ok(0);
    };
    let data = elf.data(section);
    match elf.u32_at(data, 0) {
        Some(version) if data.len() == 4 => Ok(version),
        _ => {
            let message = format!("invalid kver section in {name}");
            Err(ObjectError::new(ErrorKind::Malformed, message).in_section("version"))
        }
    }
}

fn btf_error(why: &BtfError, section: &str) -> ObjectError {
    let message = format!("Error loading ELF section {section}: {}", why.kind());
    ObjectError::new(ErrorKind::Btf, message).at(section, why.offset() as u64)
}

fn read_btf(elf: &Elf) -> Result<Option<Btf>, ObjectError> {
    let Some(section) = named(elf, ".BTF") else {
        return Ok(None);
    };
    match Btf::parse(elf.data(section)) {
        Ok(btf) => Ok(Some(btf)),
        // Only where nothing depends on it, libbpf goes on without.
        Err(e) if needs_btf(elf) => Err(btf_error(&e, ".BTF")),
        Err(_) => Ok(None),
    }
}

fn read_ext(elf: &Elf, btf: &Btf) -> Result<ExtInfo, ObjectError> {
    let Some(section) = named(elf, ".BTF.ext") else {
        return Ok(ExtInfo::default());
    };
    match BtfExt::parse(elf.data(section)) {
        Ok(ext) => Ok(ExtInfo::new(elf, btf, &ext)),
        Err(e) if needs_btf(elf) => Err(btf_error(&e, ".BTF.ext")),
        Err(_) => Ok(ExtInfo::default()),
    }
}

/// Whether the object has maps or structures that only BTF describes.
fn needs_btf(elf: &Elf) -> bool {
    elf.sections.iter().any(|s| {
        let name = s.name.strip_prefix('?').unwrap_or(&s.name);
        matches!(name, ".maps" | ".struct_ops" | ".struct_ops.link")
    })
}
