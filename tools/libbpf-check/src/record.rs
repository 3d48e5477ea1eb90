//! What both loaders are reduced to, so that they can be compared, and how the child
//! process hands it over.

use serde::{Deserialize, Serialize};

/// An object as a loader lists it.
#[derive(Serialize, Deserialize, Default, Debug)]
pub struct Listing {
    /// Why it could not be opened.
    pub error: Option<String>,
    pub programs: Vec<Program>,
    pub maps: Vec<Map>,
    /// Hash of the BTF once the object is open.
    pub btf: Option<u64>,
}

#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
pub struct Program {
    pub name: String,
    pub section: String,
    pub prog_type: u32,
    pub attach_type: u32,
    pub autoload: bool,
    pub insns: u64,
}

#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
pub struct Map {
    pub name: String,
    pub map_type: u32,
    pub key_size: u32,
    pub value_size: u32,
    pub max_entries: u32,
    pub flags: u32,
    pub extra: u64,
    pub numa_node: u32,
    pub pinned: bool,
    pub autocreate: bool,
    pub key_type_id: u32,
    pub value_type_id: u32,
    /// Type, key size, value size, entries, flags of the inner map.
    pub inner: Option<[u32; 5]>,
    /// Hash of the initial contents of data maps.
    pub contents: Option<u64>,
}

/// A program linked by a loader.
#[derive(Serialize, Deserialize, Default, Debug)]
pub struct Linked {
    pub program: String,
    /// The loader cannot do it in the way that was asked for.
    pub skipped: bool,
    /// Why it could not be linked.
    pub error: Option<String>,
    /// Whether the loader came to its end; if not, it has thrown records away.
    pub complete: bool,
    /// Instructions, maps by index; `[code, dst, src, off, imm]`.
    pub insns: Vec<(u8, u8, u8, i16, i32)>,
    /// Function records: instruction, type.
    pub functions: Vec<(u32, u32)>,
    /// Line records: instruction, line, column.
    pub lines: Vec<(u32, u32, u32)>,
    /// Hash of the contents of `.kconfig`.
    pub kconfig: Option<u64>,
    /// Hash of the BTF for the kernel.
    pub btf: Option<u64>,
    /// Attach type as loaded: for struct_ops the member.
    pub attach_type: u32,
    /// BTF id of the attach target, where the section names one that exists.
    pub attach_btf_id: Option<u32>,
}

/// FNV-1a.
pub fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |h, &b| {
        (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3)
    })
}
