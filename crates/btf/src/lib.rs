//! BTF, the type format of BPF objects and of the kernel.
//!
//! - [`Btf`] reads a `.BTF` section or `/sys/kernel/btf/vmlinux` in one pass and hands
//!   out cheap views, [`Type`]; names and tags are indexed when first asked for.
//! - [`KernelBtf`] is a kernel's as a caller has it: none, read, or read when first asked for.
//! - [`BtfBuilder`] writes BTF.
//! - [`dump`] prints types as C and as `bpftool btf dump` does.
//! - [`ext`] reads and writes `.BTF.ext`: functions, source lines, CO-RE records.
//! - [`core`] resolves CO-RE relocations by libbpf's rules.
//!
//! ```
//! use bpfkit_btf::{BtfBuilder, IntEncoding, Kind, MemberDef, dump};
//!
//! let mut b = BtfBuilder::new();
//! let int = b.int("int", 4, IntEncoding::SIGNED);
//! b.structure("point", 8, &[MemberDef::new("x", int, 0), MemberDef::new("y", int, 32)]);
//! let btf = b.build()?;
//!
//! let point = btf.by_name("point", Kind::Struct).expect("just added");
//! assert_eq!(btf.size_of(point.id()), Some(8));
//! let c = dump::c_types(&btf, [point.id()])?;
//! assert_eq!(c, "struct point {\n\tint x;\n\tint y;\n};\n\n");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The layout is that of `include/uapi/linux/btf.h` and
//! `Documentation/bpf/btf.rst`; what is accepted is what libbpf 1.7 accepts, with
//! the exceptions at [`Btf::parse`]. The input may be hostile: nothing here panics, recurses or allocates without a bound.
#![forbid(unsafe_code)]

mod btf;
mod builder;
pub mod core;
pub mod dump;
mod error;
pub mod ext;
mod header;
mod index;
mod kernel;
mod kind;
mod layout;
mod survey;
mod types;
mod walk;

pub use btf::Btf;
pub use builder::{BtfBuilder, MemberDef};
pub use error::{BtfError, BtfErrorKind, Section};
pub use index::essential_name;
pub use kernel::{KernelBtf, LazyBtf};
pub use kind::Kind;
pub use types::{Array, EnumValue, Int, IntEncoding, Linkage, Member, Param, Type, VarSecinfo};
pub use walk::{Place, Step, Walk};
