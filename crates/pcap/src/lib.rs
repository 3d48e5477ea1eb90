//! libpcap, loaded at run time: its compiler of filter expressions, and its `bpf_filter`
//! as a reference to compare with.
//!
//! Nothing links against libpcap. [`Libpcap::load`] looks for the shared library and says
//! which package holds it where it is not there.
//!
//! The interface is that of libpcap's manual pages `pcap_compile(3PCAP)`,
//! `pcap_offline_filter(3PCAP)` and `pcap-linktype(7)`, of libpcap 1.5 and later.

mod ffi;
mod locate;

use std::ffi::{CStr, CString};
use std::sync::Mutex;

use bpfkit_classic::{Insn, Program};
pub use locate::Place;

/// Names under which systems know the shared library.
const NAMES: &[&str] = &[
    "libpcap.so.1",
    "libpcap.so.0.8",
    "libpcap.so",
    "libpcap.dylib",
];

/// Why libpcap is not there.
#[derive(Debug, thiserror::Error)]
#[error(
    "filter expressions need libpcap's compiler, and no libpcap is installed: \
install the package libpcap0.8 (Debian, Ubuntu), libpcap (Fedora, Arch) or libpcap1 (openSUSE); \
a program printed by `tcpdump -ddd` needs none ({0})"
)]
pub struct LoadError(libloading::Error);

/// Why libpcap refuses an expression.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{message}")]
pub struct CompileError {
    /// libpcap's own message.
    pub message: String,
    /// The word that it is about, where that can be told.
    pub place: Option<Place>,
}

/// What a filter expression is compiled for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CompileOptions {
    /// Link type, a `DLT_*` number.
    pub link: i32,
    /// Result of the program for a packet that matches.
    pub snaplen: i32,
    /// Whether libpcap's optimizer runs.
    pub optimize: bool,
    /// IPv4 netmask of the network, in network byte order, for `ip broadcast`.
    pub netmask: u32,
}

impl Default for CompileOptions {
    /// What `tcpdump -d` assumes: Ethernet, 262,144 bytes, optimized.
    fn default() -> Self {
        CompileOptions {
            link: 1,
            snaplen: 262_144,
            optimize: true,
            netmask: 0,
        }
    }
}

/// The loaded library.
pub struct Libpcap {
    api: ffi::Api,
    /// Compilers before 1.8 keep their state in globals.
    compiling: Mutex<()>,
}

impl Libpcap {
    /// Loads the library.
    ///
    /// # Errors
    /// When there is none, or one that lacks the functions.
    pub fn load() -> Result<Libpcap, LoadError> {
        Ok(Libpcap {
            api: ffi::Api::load(NAMES).map_err(LoadError)?,
            compiling: Mutex::default(),
        })
    }

    /// Name and version as the library gives them (`libpcap version 1.10.3 …`).
    pub fn version(&self) -> String {
        // SAFETY: takes nothing, gives a string that lives as long as the library.
        let text = unsafe { CStr::from_ptr((self.api.lib_version)()) };
        text.to_string_lossy().into_owned()
    }

    /// Compiles a filter expression. Names of hosts and services are looked up as this
    /// system resolves them.
    ///
    /// # Errors
    /// libpcap's message, with the place in the expression where it can be found out.
    pub fn compile(
        &self,
        expression: &str,
        options: &CompileOptions,
    ) -> Result<Vec<Insn>, CompileError> {
        self.compile_once(expression, options)
            .map_err(|message| CompileError {
                place: locate::place(expression, &message, |text| {
                    self.compile_once(text, options).err()
                }),
                message,
            })
    }

    fn compile_once(
        &self,
        expression: &str,
        options: &CompileOptions,
    ) -> Result<Vec<Insn>, String> {
        let text = CString::new(expression).map_err(|_| "the expression holds a NUL character")?;
        let _alone = self.compiling.lock();
        // SAFETY: the handle is closed below, on every way out.
        let handle = unsafe { (self.api.open_dead)(options.link, options.snaplen) };
        if handle.is_null() {
            return Err("out of memory".to_owned());
        }
        let mut code = ffi::Code::default();
        // SAFETY: the handle is open, `code` and `text` live through the call.
        let status = unsafe {
            let optimize = options.optimize.into();
            (self.api.compile)(handle, &mut code, text.as_ptr(), optimize, options.netmask)
        };
        let result = if status == 0 {
            let insns = code.insns();
            // SAFETY: a compilation that went well has filled `code` in.
            unsafe { (self.api.free_code)(&mut code) };
            Ok(insns)
        } else {
            // SAFETY: the handle is open; the text is copied before that changes.
            let message = unsafe { CStr::from_ptr((self.api.get_error)(handle)) };
            Err(message.to_string_lossy().into_owned())
        };
        // SAFETY: opened above, closed once.
        unsafe { (self.api.close)(handle) };
        result
    }

    /// The number of a link type by its name (`EN10MB`, `RAW`, with `DLT_` or without).
    pub fn link_by_name(&self, name: &str) -> Option<i32> {
        let name = CString::new(name).ok()?;
        // SAFETY: a string that lives through the call.
        let link = unsafe { (self.api.link_by_name)(name.as_ptr()) };
        (link >= 0).then_some(link)
    }

    /// The name of a link type.
    pub fn link_name(&self, link: i32) -> Option<String> {
        // SAFETY: takes a number, gives null or a constant string.
        let name = unsafe { (self.api.link_name)(link) };
        if name.is_null() {
            return None;
        }
        // SAFETY: as above.
        let name = unsafe { CStr::from_ptr(name) };
        Some(name.to_string_lossy().into_owned())
    }

    /// A checked filter in the form that [`Reference::run`] takes; `None` if libpcap's own
    /// check refuses it.
    pub fn reference(&self, program: &Program) -> Option<Reference<'_>> {
        let insns: Vec<ffi::Insn> = program.ops().iter().map(|op| op.encode().into()).collect();
        let len = i32::try_from(insns.len()).ok()?;
        // SAFETY: a pointer to as many instructions as it is told.
        let valid = unsafe { (self.api.validate)(insns.as_ptr(), len) } != 0;
        valid.then_some(Reference {
            libpcap: self,
            insns,
        })
    }
}

/// A filter run by libpcap's `bpf_filter`.
pub struct Reference<'l> {
    libpcap: &'l Libpcap,
    insns: Vec<ffi::Insn>,
}

impl Reference<'_> {
    /// Runs it on a packet: how many bytes to keep, 0 to drop it. A filter that jumps back
    /// may run for ever.
    #[inline]
    pub fn run(&self, packet: &[u8], wire_len: u32) -> u32 {
        let len = u32::try_from(packet.len()).unwrap_or(u32::MAX);
        // SAFETY: the program is checked: its jumps stay inside, its scratch words exist,
        // it returns; packet bytes are read below `len` only.
        unsafe { (self.libpcap.api.filter)(self.insns.as_ptr(), packet.as_ptr(), wire_len, len) }
    }
}
