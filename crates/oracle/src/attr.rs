//! `union bpf_attr` as bytes: commands, field offsets, and the error numbers back.

/// An error number of a system call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Errno(pub i32);

impl std::fmt::Display for Errno {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(&std::io::Error::from_raw_os_error(self.0), f)
    }
}

/// Size of the attribute block handed to the kernel; what a command does not use is zero.
pub const ATTR_BYTES: usize = 152;

/// Commands of bpf(2) that the oracle uses.
#[derive(Clone, Copy, Debug)]
pub enum Command {
    MapCreate = 0,
    MapLookup = 1,
    MapUpdate = 2,
    MapDelete = 3,
    MapNextKey = 4,
    ProgLoad = 5,
    TestRun = 10,
    InfoByFd = 15,
    BtfLoad = 18,
    MapLookupDelete = 21,
    MapFreeze = 22,
    MapUpdateBatch = 26,
}

/// The attribute block of one call.
#[derive(Clone, Copy)]
pub struct Attr(pub [u8; ATTR_BYTES]);

impl Attr {
    pub fn new() -> Self {
        Attr([0; ATTR_BYTES])
    }

    /// Sets the 32-bit field at byte `at` (see the offsets below).
    pub fn u32(mut self, at: usize, value: u32) -> Self {
        self.0[at..at + 4].copy_from_slice(&value.to_ne_bytes());
        self
    }

    /// Sets the 64-bit field at byte `at`.
    pub fn u64(mut self, at: usize, value: u64) -> Self {
        self.0[at..at + 8].copy_from_slice(&value.to_ne_bytes());
        self
    }

    /// Sets a 16-byte name field, cut to 15 bytes; the kernel allows letters,
    /// digits, `_` and `.` only, so anything else becomes `_`.
    pub fn name(mut self, at: usize, name: &str) -> Self {
        for (slot, byte) in self.0[at..at + 15].iter_mut().zip(name.bytes()) {
            let allowed = byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'.';
            *slot = if allowed { byte } else { b'_' };
        }
        self
    }

    pub fn get_u32(&self, at: usize) -> u32 {
        u32::from_ne_bytes(self.0[at..at + 4].try_into().expect("four bytes"))
    }
}

/// Field offsets of `BPF_MAP_CREATE`.
pub mod map_create {
    pub const TYPE: usize = 0;
    pub const KEY_SIZE: usize = 4;
    pub const VALUE_SIZE: usize = 8;
    pub const MAX_ENTRIES: usize = 12;
    pub const FLAGS: usize = 16;
    pub const INNER_FD: usize = 20;
    pub const NUMA_NODE: usize = 24;
    pub const NAME: usize = 28;
    pub const BTF_FD: usize = 48;
    pub const BTF_KEY: usize = 52;
    pub const BTF_VALUE: usize = 56;
    pub const EXTRA: usize = 64;
}

/// Field offsets of the element commands.
pub mod elem {
    pub const FD: usize = 0;
    pub const KEY: usize = 8;
    pub const VALUE: usize = 16;
    pub const FLAGS: usize = 24;
}

/// Field offsets of the batch commands.
pub mod batch {
    pub const KEYS: usize = 16;
    pub const VALUES: usize = 24;
    pub const COUNT: usize = 32;
    pub const FD: usize = 36;
}

/// Field offsets of `BPF_PROG_LOAD`.
pub mod prog_load {
    pub const TYPE: usize = 0;
    pub const INSN_CNT: usize = 4;
    pub const INSNS: usize = 8;
    pub const LICENSE: usize = 16;
    pub const LOG_LEVEL: usize = 24;
    pub const LOG_SIZE: usize = 28;
    pub const LOG_BUF: usize = 32;
    pub const KERN_VERSION: usize = 40;
    pub const FLAGS: usize = 44;
    pub const NAME: usize = 48;
    pub const ATTACH_TYPE: usize = 68;
    pub const BTF_FD: usize = 72;
    pub const FUNC_INFO_SIZE: usize = 76;
    pub const FUNC_INFO: usize = 80;
    pub const FUNC_INFO_CNT: usize = 88;
    pub const LINE_INFO_SIZE: usize = 92;
    pub const LINE_INFO: usize = 96;
    pub const LINE_INFO_CNT: usize = 104;
    pub const ATTACH_BTF_ID: usize = 108;
    pub const FD_ARRAY: usize = 120;
}

/// Field offsets of `BPF_PROG_TEST_RUN`.
pub mod test_run {
    pub const FD: usize = 0;
    pub const RETVAL: usize = 4;
    pub const DATA_SIZE_IN: usize = 8;
    pub const DATA_SIZE_OUT: usize = 12;
    pub const DATA_IN: usize = 16;
    pub const DATA_OUT: usize = 24;
    pub const REPEAT: usize = 32;
    pub const DURATION: usize = 36;
    pub const CTX_SIZE_IN: usize = 40;
    pub const CTX_SIZE_OUT: usize = 44;
    pub const CTX_IN: usize = 48;
    pub const CTX_OUT: usize = 56;
    pub const FLAGS: usize = 64;
}

/// Field offsets of `BPF_OBJ_GET_INFO_BY_FD` and of `struct bpf_prog_info`.
pub mod info {
    pub const FD: usize = 0;
    pub const LEN: usize = 4;
    pub const INFO: usize = 8;

    pub const PROG_INFO_BYTES: usize = 176;
    pub const JITED_LEN: usize = 16;
    pub const XLATED_LEN: usize = 20;
    pub const JITED_INSNS: usize = 24;
    pub const XLATED_INSNS: usize = 32;
    pub const FUNC_INFO_SIZE: usize = 132;
    pub const FUNC_INFO: usize = 136;
    pub const FUNC_INFO_CNT: usize = 144;
    pub const LINE_INFO_CNT: usize = 148;
    pub const LINE_INFO: usize = 152;
    pub const LINE_INFO_SIZE: usize = 172;
}

/// Field offsets of `BPF_BTF_LOAD`.
pub mod btf_load {
    pub const BTF: usize = 0;
    pub const SIZE: usize = 16;
}
