//! The functions and structures of libpcap that are used.

use std::ffi::{c_char, c_int, c_uint};

use bpfkit_classic as classic;
use libloading::{Error, Library};

/// `pcap_t`, of which nothing is known.
#[repr(C)]
pub struct Handle {
    _private: [u8; 0],
}

/// `struct bpf_insn`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Insn {
    code: u16,
    jt: u8,
    jf: u8,
    k: u32,
}

impl From<classic::Insn> for Insn {
    fn from(insn: classic::Insn) -> Insn {
        let classic::Insn { code, jt, jf, k } = insn;
        Insn { code, jt, jf, k }
    }
}

impl From<Insn> for classic::Insn {
    fn from(insn: Insn) -> classic::Insn {
        let Insn { code, jt, jf, k } = insn;
        classic::Insn { code, jt, jf, k }
    }
}

/// `struct bpf_program`.
#[repr(C)]
pub struct Code {
    len: c_uint,
    insns: *mut Insn,
}

impl Default for Code {
    fn default() -> Self {
        Code {
            len: 0,
            insns: std::ptr::null_mut(),
        }
    }
}

impl Code {
    /// A copy of the instructions; none where libpcap has filled nothing in.
    pub fn insns(&self) -> Vec<classic::Insn> {
        if self.insns.is_null() {
            return Vec::new();
        }
        // SAFETY: libpcap keeps `len` instructions there until `pcap_freecode`; only
        // `pcap_compile` makes the pointer other than null.
        let insns = unsafe { std::slice::from_raw_parts(self.insns, self.len as usize) };
        insns.iter().map(|&insn| insn.into()).collect()
    }
}

/// Declares the table of functions and loads it.
macro_rules! api {
    ($($field:ident = $name:literal: fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// libpcap's functions, as long as the library is loaded.
        pub struct Api {
            $(pub $field: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
            /// The functions live as long as this.
            _library: Library,
        }

        impl Api {
            fn from_library(library: Library) -> Result<Api, Error> {
                // SAFETY: the types are those that libpcap's headers declare.
                unsafe {
                    Ok(Api {
                        $($field: *library.get($name)?,)*
                        _library: library,
                    })
                }
            }
        }
    };
}

api! {
    lib_version = b"pcap_lib_version\0": fn() -> *const c_char;
    open_dead = b"pcap_open_dead\0": fn(c_int, c_int) -> *mut Handle;
    close = b"pcap_close\0": fn(*mut Handle);
    get_error = b"pcap_geterr\0": fn(*mut Handle) -> *const c_char;
    compile = b"pcap_compile\0": fn(*mut Handle, *mut Code, *const c_char, c_int, u32) -> c_int;
    free_code = b"pcap_freecode\0": fn(*mut Code);
    link_by_name = b"pcap_datalink_name_to_val\0": fn(*const c_char) -> c_int;
    link_name = b"pcap_datalink_val_to_name\0": fn(c_int) -> *const c_char;
    validate = b"bpf_validate\0": fn(*const Insn, c_int) -> c_int;
    filter = b"bpf_filter\0": fn(*const Insn, *const u8, c_uint, c_uint) -> c_uint;
}

impl Api {
    /// Loads the first of the libraries that is there.
    pub fn load(names: &[&str]) -> Result<Api, Error> {
        let mut result = Err(Error::DlOpenUnknown);
        for name in names {
            // SAFETY: libpcap's initializers and finalizers do nothing that concerns us.
            result = unsafe { Library::new(*name) }.and_then(Api::from_library);
            if result.is_ok() {
                break;
            }
        }
        result
    }
}
