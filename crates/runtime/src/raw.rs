//! Memory without an object or a context around them: conformance suites.

use std::any::Any;

use bpfkit_spec::ProgType;

use crate::engine::Context;
use crate::memory::{Memory, Region, RegionKind};

/// A block of memory to run on: R1 holds its address and R2 its length in bytes, both 0
/// for an empty block. Legacy packet loads read from it too.
#[derive(Clone, Default, Debug)]
pub struct RawMemory {
    /// The bytes; the program may read and write them.
    pub bytes: Vec<u8>,
}

impl RawMemory {
    /// A block with those bytes.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Self {
        Self {
            bytes: bytes.into(),
        }
    }

    fn address(&self) -> u64 {
        self.bytes.as_ptr().expose_provenance() as u64
    }
}

// SAFETY: nothing is verified for it: it has no program type. It grants its bytes, which stay in
// their vector while it is borrowed.
unsafe impl Context for RawMemory {
    fn args(&self) -> [u64; 5] {
        if self.bytes.is_empty() {
            return [0; 5];
        }
        [self.address(), self.bytes.len() as u64, 0, 0, 0]
    }

    fn grant(&self, memory: &mut Memory) {
        memory.grant(Region {
            start: self.address(),
            len: self.bytes.len() as u64,
            writable: true,
            kind: RegionKind::Packet,
        });
    }

    fn suits(&self, prog_type: ProgType) -> bool {
        prog_type == ProgType::Unspec
    }

    fn load_packet(&self, offset: i32, size: bpfkit_isa::Size) -> Option<u32> {
        let start = usize::try_from(offset).ok()?;
        let bytes = self
            .bytes
            .get(start..start.checked_add(size.bytes() as usize)?)?;
        Some(
            bytes
                .iter()
                .fold(0, |value, &byte| value << 8 | u32::from(byte)),
        )
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}
