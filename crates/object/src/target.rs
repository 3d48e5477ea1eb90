//! What a program is linked against.

use std::sync::Arc;

use bpfkit_btf::{Btf, KernelBtf};

/// The kernel that a program is linked against, as far as the caller knows it. All of it
/// is given: this crate reads no files.
///
/// Without [`Target::kernel_btf`] nothing is looked up: CO-RE relocations keep the
/// object's own layout, kernel functions and typed variables get id 0, and
/// [`Program::attach`](crate::Program::attach) is `None`.
#[derive(Clone, Debug)]
pub struct Target<'a> {
    /// The kernel's BTF (`/sys/kernel/btf/vmlinux`).
    pub kernel_btf: KernelBtf<'a>,
    /// BTF of the kernel's modules, in the order in which to search them.
    pub modules: &'a [ModuleBtf],
    /// The kernel's configuration, decompressed (`/boot/config-*`, `/proc/config.gz`),
    /// for `CONFIG_` variables in `.kconfig`.
    pub kconfig: Option<&'a str>,
    /// Text of `/proc/kallsyms`, for variables of `.ksyms` without a type. Without it
    /// they are 0.
    pub kallsyms: Option<&'a str>,
    /// The kernel's version in the encoding of `LINUX_VERSION_CODE`
    /// (`major << 16 | minor << 8 | patch`).
    pub kernel_version: u32,
    /// Value of `LINUX_HAS_BPF_COOKIE`.
    pub bpf_cookie: bool,
    /// Value of `LINUX_HAS_SYSCALL_WRAPPER`.
    pub syscall_wrapper: bool,
}

/// BTF of a kernel module.
#[derive(Clone, Debug)]
pub struct ModuleBtf {
    /// The module's name.
    pub name: String,
    /// Its BTF, split on the kernel's.
    pub btf: Arc<Btf>,
}

impl Default for Target<'_> {
    /// Linux 6.18 on x86-64, of which nothing else is known.
    fn default() -> Self {
        Self {
            kernel_btf: KernelBtf::None,
            modules: &[],
            kconfig: None,
            kallsyms: None,
            kernel_version: 6 << 16 | 18 << 8,
            bpf_cookie: true,
            syscall_wrapper: true,
        }
    }
}
