//! BPF ELF objects.
#![forbid(unsafe_code)]
