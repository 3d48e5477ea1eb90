//! The child process: libbpf's view of an object, as JSON lines.
//!
//! Programs are never loaded and nothing is attached; `bpf_object__prepare` creates maps,
//! which die with the process.

use std::ffi::{CStr, CString, c_char, c_int};
use std::fs;
use std::ptr::null_mut;
use std::sync::Mutex;

use libbpf_sys as sys;

use crate::Mode;
use crate::record::{Linked, Listing, Map, Program, hash};

/// Warnings of libbpf since they were last taken.
static WARNINGS: Mutex<Vec<String>> = Mutex::new(Vec::new());

unsafe extern "C" {
    fn vsnprintf(
        buffer: *mut c_char,
        size: usize,
        format: *const c_char,
        args: *mut sys::__va_list_tag,
    ) -> c_int;
}

unsafe extern "C" fn keep_warning(
    level: sys::libbpf_print_level,
    format: *const c_char,
    args: *mut sys::__va_list_tag,
) -> c_int {
    if level == sys::LIBBPF_WARN {
        let mut buffer = [0u8; 1024];
        // SAFETY: the buffer has that size, and libbpf gives a format with its arguments.
        unsafe { vsnprintf(buffer.as_mut_ptr().cast(), buffer.len(), format, args) };
        let text = CStr::from_bytes_until_nul(&buffer)
            .unwrap_or_default()
            .to_string_lossy();
        let text = text.trim_end().trim_start_matches("libbpf: ").to_owned();
        if let Ok(mut warnings) = WARNINGS.lock() {
            warnings.push(text);
        }
    }
    0
}

fn warnings() -> Vec<String> {
    WARNINGS
        .lock()
        .map(|mut w| std::mem::take(&mut *w))
        .unwrap_or_default()
}

/// The text of a string that libbpf owns.
fn text(s: *const c_char) -> String {
    if s.is_null() {
        return String::new();
    }
    // SAFETY: libbpf's strings end with a NUL and live as long as the object, which the
    // callers keep open.
    unsafe { CStr::from_ptr(s) }.to_string_lossy().into_owned()
}

/// An object that libbpf has opened.
struct Opened(*mut sys::bpf_object);

impl Opened {
    fn open(path: &str) -> Option<Self> {
        let path = CString::new(path).ok()?;
        // SAFETY: the path ends with a NUL.
        let object = unsafe { sys::bpf_object__open(path.as_ptr()) };
        (!object.is_null()).then_some(Self(object))
    }

    fn programs(&self) -> Vec<*mut sys::bpf_program> {
        let mut list = Vec::new();
        // SAFETY: the object is open; null begins the iteration and ends it.
        let mut p = unsafe { sys::bpf_object__next_program(self.0, null_mut()) };
        while !p.is_null() {
            list.push(p);
            // SAFETY: as above.
            p = unsafe { sys::bpf_object__next_program(self.0, p) };
        }
        list
    }

    fn maps(&self) -> Vec<*mut sys::bpf_map> {
        let mut list = Vec::new();
        // SAFETY: the object is open; null begins the iteration and ends it.
        let mut m = unsafe { sys::bpf_object__next_map(self.0, null_mut()) };
        while !m.is_null() {
            list.push(m);
            // SAFETY: as above.
            m = unsafe { sys::bpf_object__next_map(self.0, m) };
        }
        list
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        // SAFETY: the object is open and nothing refers to it any more.
        unsafe { sys::bpf_object__close(self.0) };
    }
}

/// Prints the listing, then each program linked, which needs bpf(2).
pub fn run(path: &str, mode: Mode) {
    // SAFETY: the callback fits the signature.
    unsafe { sys::libbpf_set_print(Some(keep_warning)) };
    let listing = list(path);
    println!("{}", serde_json::to_string(&listing).unwrap_or_default());
    let programs = if mode == Mode::List {
        0
    } else {
        listing.programs.len()
    };
    for index in 0..programs {
        let linked = link(path, index, mode);
        println!("{}", serde_json::to_string(&linked).unwrap_or_default());
    }
}

fn list(path: &str) -> Listing {
    let Some(object) = Opened::open(path) else {
        let error = warnings()
            .first()
            .cloned()
            .unwrap_or_else(|| "(no message)".to_owned());
        return Listing {
            error: Some(error),
            ..Listing::default()
        };
    };
    let programs = object.programs().into_iter().map(program).collect();
    let maps = object.maps().into_iter().map(map).collect();
    Listing {
        error: None,
        programs,
        maps,
        btf: btf_hash(object.0),
    }
}

fn program(p: *mut sys::bpf_program) -> Program {
    // SAFETY: the program belongs to an object that the caller keeps open.
    unsafe {
        Program {
            name: text(sys::bpf_program__name(p)),
            section: text(sys::bpf_program__section_name(p)),
            prog_type: sys::bpf_program__type(p),
            attach_type: sys::bpf_program__expected_attach_type(p),
            autoload: sys::bpf_program__autoload(p),
            insns: sys::bpf_program__insn_cnt(p) as u64,
        }
    }
}

fn map(m: *mut sys::bpf_map) -> Map {
    // SAFETY: the map belongs to an object that the caller keeps open.
    unsafe {
        let inner = sys::bpf_map__inner_map(m);
        let inner = (!inner.is_null()).then(|| {
            [
                sys::bpf_map__type(inner),
                sys::bpf_map__key_size(inner),
                sys::bpf_map__value_size(inner),
                sys::bpf_map__max_entries(inner),
                sys::bpf_map__map_flags(inner),
            ]
        });
        Map {
            name: text(sys::bpf_map__name(m)),
            map_type: sys::bpf_map__type(m),
            key_size: sys::bpf_map__key_size(m),
            value_size: sys::bpf_map__value_size(m),
            max_entries: sys::bpf_map__max_entries(m),
            flags: sys::bpf_map__map_flags(m),
            extra: sys::bpf_map__map_extra(m),
            numa_node: sys::bpf_map__numa_node(m),
            pinned: !sys::bpf_map__pin_path(m).is_null(),
            autocreate: sys::bpf_map__autocreate(m),
            key_type_id: sys::bpf_map__btf_key_type_id(m),
            value_type_id: sys::bpf_map__btf_value_type_id(m),
            inner,
            contents: contents(m),
        }
    }
}

/// Hash of the contents of a data map; struct_ops hold pointers of this process.
fn contents(m: *mut sys::bpf_map) -> Option<u64> {
    let mut size = 0;
    // SAFETY: the map belongs to an open object; libbpf gives the value and its size, or
    // null.
    unsafe {
        if sys::bpf_map__type(m) == sys::BPF_MAP_TYPE_STRUCT_OPS {
            return None;
        }
        let value = sys::bpf_map__initial_value(m, &mut size);
        if value.is_null() {
            return None;
        }
        Some(hash(std::slice::from_raw_parts(
            value.cast::<u8>(),
            size as usize,
        )))
    }
}

/// File descriptors that stand for maps while they do not exist, in order.
fn placeholders() -> Vec<i32> {
    let mut fds = Vec::new();
    for entry in fs::read_dir("/proc/self/fd")
        .into_iter()
        .flatten()
        .flatten()
    {
        let is_placeholder = fs::read_link(entry.path())
            .is_ok_and(|to| to.to_string_lossy().contains("libbpf-placeholder-fd"));
        let number = entry.file_name().to_str().and_then(|n| n.parse().ok());
        if let (true, Some(number)) = (is_placeholder, number) {
            fds.push(number);
        }
    }
    fds.sort_unstable();
    fds
}

/// Links one program alone, as veristat does.
fn link(path: &str, index: usize, mode: Mode) -> Linked {
    warnings();
    let Some(object) = Opened::open(path) else {
        return Linked::default();
    };
    let maps = object.maps();
    // Each map took a descriptor when it was found, and its inner map the next one.
    let mut fds = placeholders().into_iter();
    let mut map_fds = Vec::new();
    for &m in &maps {
        map_fds.push(fds.next().unwrap_or(-1));
        // SAFETY: the map belongs to the open object; the path is taken away so that
        // nothing gets pinned.
        unsafe {
            if !sys::bpf_map__inner_map(m).is_null() {
                fds.next();
            }
            sys::bpf_map__set_pin_path(m, std::ptr::null());
        }
    }
    let programs = object.programs();
    for (i, &p) in programs.iter().enumerate() {
        // SAFETY: the program belongs to the open object.
        unsafe { sys::bpf_program__set_autoload(p, i == index) };
    }
    let Some(&p) = programs.get(index) else {
        return Linked::default();
    };
    // SAFETY: as above.
    let program = unsafe { text(sys::bpf_program__name(p)) };
    let is_struct_ops = |&m: &*mut sys::bpf_map| {
        // SAFETY: the map belongs to the open object.
        unsafe { sys::bpf_map__type(m) == sys::BPF_MAP_TYPE_STRUCT_OPS }
    };
    if mode == Mode::Gen && maps.iter().any(is_struct_ops) {
        // libbpf looks for them in a BTF that it has not read.
        return Linked {
            program,
            skipped: true,
            ..Linked::default()
        };
    }
    let mut loader = sys::gen_loader_opts {
        sz: size_of::<sys::gen_loader_opts>() as sys::size_t,
        ..sys::gen_loader_opts::default()
    };
    // SAFETY: the object is open, and `loader` lives as long as it does.
    let status = unsafe {
        match mode {
            Mode::Gen => {
                sys::bpf_object__gen_loader(object.0, &mut loader);
                sys::bpf_object__load(object.0)
            }
            _ => sys::bpf_object__prepare(object.0),
        }
    };
    let said = warnings();
    // Maps are created after linking; if the kernel refuses one, the program is linked.
    let is_late = |w: &String| {
        w.contains("failed to create")
            || w.contains("Retrying without BTF")
            || w.contains("failed to set initial")
            || w.contains("failed to freeze")
            || w.starts_with("Error loading .BTF into kernel")
    };
    // In the other mode it goes on to what comes before loading.
    let after_linking = [
        "missing BPF prog type",
        "no BTF-based attach target is specified",
        "attach program FD is not set",
        "program isn't referenced anywhere",
        "failed to load object",
    ];
    let is_late = |w: &String| is_late(w) || after_linking.iter().any(|text| w.contains(text));
    let error = match said.iter().find(|w| !w.contains("missing .BTF.ext")) {
        _ if status == 0 => None,
        Some(first) if is_late(first) => None,
        Some(first) => Some(first.clone()),
        None => Some(format!("(no message) {status}")),
    };
    // SAFETY: the object is open; counts and arrays belong together.
    unsafe {
        let count = sys::bpf_program__insn_cnt(p) as usize;
        let insns = std::slice::from_raw_parts(sys::bpf_program__insns(p), count);
        let index_of = |fd: i32| {
            map_fds
                .iter()
                .position(|&f| f == fd)
                .map_or(-1, |i| i as i32)
        };
        let insns = insns
            .iter()
            .map(|insn| {
                let (dst, src) = (insn.dst_reg(), insn.src_reg());
                match (insn.code, src) {
                    // A descriptor that is no map's was written by hand.
                    (0x18, 1 | 2) if index_of(insn.imm) >= 0 => {
                        (insn.code, dst, src + 4, insn.off, index_of(insn.imm))
                    }
                    _ => (insn.code, dst, src, insn.off, insn.imm),
                }
            })
            .collect();
        let functions = array(
            sys::bpf_program__func_info(p),
            sys::bpf_program__func_info_cnt(p),
        );
        let lines = array(
            sys::bpf_program__line_info(p),
            sys::bpf_program__line_info_cnt(p),
        );
        let kconfig = maps
            .iter()
            .find(|&&m| text(sys::bpf_map__name(m)).ends_with(".kconfig"));
        let attach_type = sys::bpf_program__expected_attach_type(p);
        let section = text(sys::bpf_program__section_name(p));
        Linked {
            program,
            skipped: false,
            error,
            complete: status == 0,
            insns,
            functions: functions.iter().map(|f| (f.insn_off, f.type_id)).collect(),
            lines: lines
                .iter()
                .map(|l| (l.insn_off, l.line_col >> 10, l.line_col & 0x3ff))
                .collect(),
            kconfig: kconfig.and_then(|&m| contents(m)),
            btf: btf_hash(object.0),
            attach_type,
            attach_btf_id: attach_btf_id(sys::bpf_program__type(p), attach_type, &section),
        }
    }
}

/// Hash of the BTF as it is now; loading it into the kernel changes it once more.
fn btf_hash(object: *mut sys::bpf_object) -> Option<u64> {
    let mut size = 0;
    // SAFETY: the object is open; libbpf gives the section and its size, or null.
    unsafe {
        let btf = sys::bpf_object__btf(object);
        if btf.is_null() {
            return None;
        }
        let bytes = sys::btf__raw_data(btf, &mut size);
        if bytes.is_null() {
            return None;
        }
        Some(hash(std::slice::from_raw_parts(
            bytes.cast::<u8>(),
            size as usize,
        )))
    }
}

/// # Safety
/// `count` elements lie at `start`, or it is null.
unsafe fn array<'a, T>(start: *mut T, count: u32) -> &'a [T] {
    if start.is_null() {
        return &[];
    }
    // SAFETY: the caller says so.
    unsafe { std::slice::from_raw_parts(start, count as usize) }
}

/// What libbpf finds in the kernel's BTF for the target that the section names.
fn attach_btf_id(prog_type: u32, attach_type: u32, section: &str) -> Option<u32> {
    if !matches!(
        prog_type,
        sys::BPF_PROG_TYPE_TRACING | sys::BPF_PROG_TYPE_LSM
    ) {
        return None;
    }
    let (_, name) = section.split_once('/')?;
    let name = CString::new(name).ok()?;
    // SAFETY: the name ends with a NUL.
    let id = unsafe { sys::libbpf_find_vmlinux_btf_id(name.as_ptr(), attach_type) };
    u32::try_from(id).ok().filter(|&id| id > 0)
}
