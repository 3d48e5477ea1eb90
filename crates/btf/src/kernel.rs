//! The kernel's BTF, read when first asked for.

use std::fmt;
use std::sync::LazyLock;

use crate::Btf;

/// Reads BTF once, when first asked for.
type Read = Box<dyn FnOnce() -> Option<Btf> + Send>;

/// BTF that is read when first asked for. A kernel's takes several milliseconds and most
/// small programs need none of it.
pub struct LazyBtf(LazyLock<Option<Btf>, Read>);

impl LazyBtf {
    /// BTF that `read` gives; `None` where it cannot be had.
    pub fn new(read: impl FnOnce() -> Option<Btf> + Send + 'static) -> Self {
        Self(LazyLock::new(Box::new(read)))
    }

    /// The BTF, read now if it was not before.
    pub fn get(&self) -> Option<&Btf> {
        self.0.as_ref()
    }
}

impl fmt::Debug for LazyBtf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LazyBtf(…)")
    }
}

/// The BTF of a kernel as far as a caller has it.
#[derive(Clone, Copy, Debug, Default)]
pub enum KernelBtf<'a> {
    /// There is none.
    #[default]
    None,
    /// It was read.
    Read(&'a Btf),
    /// It is read when first asked for.
    Later(&'a LazyBtf),
}

impl<'a> KernelBtf<'a> {
    /// The BTF, read now if it was not before.
    pub fn get(self) -> Option<&'a Btf> {
        match self {
            Self::None => None,
            Self::Read(btf) => Some(btf),
            Self::Later(lazy) => lazy.get(),
        }
    }
}

impl<'a> From<Option<&'a Btf>> for KernelBtf<'a> {
    fn from(btf: Option<&'a Btf>) -> Self {
        btf.map_or(Self::None, Self::Read)
    }
}

impl<'a> From<&'a Btf> for KernelBtf<'a> {
    fn from(btf: &'a Btf) -> Self {
        Self::Read(btf)
    }
}

impl<'a> From<&'a LazyBtf> for KernelBtf<'a> {
    fn from(btf: &'a LazyBtf) -> Self {
        Self::Later(btf)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use crate::BtfBuilder;

    #[test]
    fn is_read_once_and_only_when_asked_for() {
        let reads = Arc::new(AtomicU32::new(0));
        let counter = Arc::clone(&reads);
        let lazy = LazyBtf::new(move || {
            counter.fetch_add(1, Ordering::Relaxed);
            BtfBuilder::new().build().ok()
        });
        let kernel = KernelBtf::from(&lazy);
        assert_eq!(reads.load(Ordering::Relaxed), 0);
        assert!(kernel.get().is_some());
        assert!(kernel.get().is_some());
        assert_eq!(reads.load(Ordering::Relaxed), 1);
    }
}
