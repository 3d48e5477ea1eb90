//! Our view of an object.

use std::fs;
use std::io::Read;

use bpfkit_btf::Btf;
use bpfkit_object::{Linker, MapDef, MapOrigin, Object, Target};

use crate::record::{Linked, Listing, Map, Program, hash};

/// What the running kernel says of itself.
pub struct Kernel {
    btf: Option<Btf>,
    kconfig: Option<String>,
    kallsyms: Option<String>,
    version: u32,
    kprobes: bool,
}

impl Kernel {
    /// Reads BTF, configuration, symbols and version.
    pub fn read() -> Self {
        let btf = fs::read("/sys/kernel/btf/vmlinux")
            .ok()
            .and_then(|b| Btf::parse(&b).ok());
        let mut kconfig = String::new();
        let read = fs::File::open("/proc/config.gz")
            .and_then(|f| flate2::read::GzDecoder::new(f).read_to_string(&mut kconfig));
        let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let mut numbers = release
            .split(|c: char| !c.is_ascii_digit())
            .map(|n| n.parse::<u32>().unwrap_or(0));
        let mut next = || numbers.next().unwrap_or(0);
        let version = next() << 16 | next() << 8 | next().min(255);
        Self {
            btf,
            kconfig: read.is_ok().then_some(kconfig),
            kallsyms: fs::read_to_string("/proc/kallsyms").ok(),
            version,
            kprobes: fs::exists("/sys/bus/event_source/devices/kprobe/type").unwrap_or(false),
        }
    }

    /// The kernel as a target to link against, with its BTF or without.
    pub fn target(&self, with_btf: bool) -> Target<'_> {
        Target {
            kernel_btf: self.btf.as_ref().filter(|_| with_btf).into(),
            kconfig: self.kconfig.as_deref(),
            kallsyms: self.kallsyms.as_deref(),
            kernel_version: self.version,
            // libbpf finds out by setting a probe, and takes it for granted without a kernel.
            syscall_wrapper: self.kprobes || !with_btf,
            ..Target::default()
        }
    }
}

/// Lists an object.
pub fn list(object: &Object) -> Listing {
    let programs = object.programs.iter().map(|p| Program {
        name: p.name.clone(),
        section: p.section.clone(),
        prog_type: p.prog_type as u32,
        attach_type: p.attach_type as u32,
        autoload: p.autoload,
        insns: p.own_insns.into(),
    });
    Listing {
        error: None,
        programs: programs.collect(),
        maps: object.maps.iter().map(map).collect(),
        btf: object.btf_for_kernel().ok().map(|bytes| hash(&bytes)),
    }
}

fn map(m: &MapDef) -> Map {
    let inner = m.inner.as_ref().map(|i| {
        [
            i.map_type as u32,
            i.key_size,
            i.value_size,
            i.max_entries,
            i.flags,
        ]
    });
    // libbpf keeps no types for struct_ops.
    let contents = match &m.origin {
        MapOrigin::Data { bytes, .. } | MapOrigin::Arena { bytes } => Some(hash(bytes)),
        _ => None,
    };
    Map {
        name: m.name.clone(),
        map_type: m.map_type as u32,
        key_size: m.key_size,
        value_size: m.value_size,
        max_entries: m.max_entries,
        flags: m.flags,
        extra: m.extra,
        numa_node: m.numa_node,
        pinned: m.pin_by_name,
        autocreate: m.autocreate,
        key_type_id: m.key_type_id,
        value_type_id: m.value_type_id,
        inner,
        contents,
    }
}

/// Links one program; `btf` is the hash of the object's BTF.
pub fn link(linker: &mut Linker<'_>, object: &Object, index: usize, btf: Option<u64>) -> Linked {
    let name = object
        .programs
        .get(index)
        .map_or_else(String::new, |p| p.name.clone());
    let program = match linker.link(index) {
        Ok(program) => program,
        Err(e) => {
            return Linked {
                program: name,
                error: Some(e.message().to_owned()),
                ..Linked::default()
            };
        }
    };
    let kconfig = linker.maps().into_iter().find_map(|m| match m.origin {
        MapOrigin::Data { section, bytes } if section == ".kconfig" => Some(hash(&bytes)),
        _ => None,
    });
    let attach = program.attach.ok().flatten();
    let insns = program
        .insns
        .iter()
        .map(|i| (i.code, i.dst, i.src, i.off, i.imm));
    let functions = program.subprograms.iter().filter(|s| s.type_id != 0);
    let lines = program.lines.iter().map(|l| (l.insn, l.line, l.column));
    Linked {
        program: name,
        skipped: false,
        error: None,
        complete: true,
        insns: insns.collect(),
        functions: functions.map(|s| (s.start, s.type_id)).collect(),
        lines: lines.collect(),
        kconfig,
        btf,
        attach_type: attach.and_then(|a| a.member).unwrap_or(
            object
                .programs
                .get(index)
                .map_or(0, |p| p.attach_type as u32),
        ),
        attach_btf_id: attach.filter(|a| a.member.is_none()).map(|a| a.type_id),
    }
}
