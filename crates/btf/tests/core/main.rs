//! The rules of CO-RE, one small pair of types a rule: what fits, and what does not.

mod fields;
mod patch;
mod records;
mod types;

use bpfkit_btf::core::{CoreError, ReloKind, Relocator, Resolution};
use bpfkit_btf::ext::CoreRelo;
use bpfkit_btf::{Btf, BtfBuilder, IntEncoding, MemberDef};

/// Resolves one relocation against a kernel and its modules.
fn resolve_in(
    mut local: BtfBuilder,
    kernel: &Btf,
    modules: Vec<&Btf>,
    (type_id, access, kind): (u32, &str, ReloKind),
) -> Result<Resolution, CoreError> {
    let access_str_off = local.string(access);
    let local = local.build().expect("the local types are sound");
    let relo = CoreRelo {
        insn_off: 8,
        type_id,
        access_str_off,
        kind: kind as u32,
    };
    Relocator::new(&local, Some(kernel), modules).resolve(&relo)
}

fn resolve(
    local: BtfBuilder,
    target: BtfBuilder,
    what: (u32, &str, ReloKind),
) -> Result<Resolution, CoreError> {
    let target = target.build().expect("the target types are sound");
    resolve_in(local, &target, Vec::new(), what)
}

/// The value found, `None` for poison.
fn value(local: BtfBuilder, target: BtfBuilder, what: (u32, &str, ReloKind)) -> Option<u64> {
    let found = resolve(local, target, what).expect("the relocation is sound");
    (!found.poison).then_some(found.value)
}

/// Types with `int` as 1, `unsigned` as 2, `long` as 3 and `void *` as 4.
fn types() -> BtfBuilder {
    let mut b = BtfBuilder::new();
    b.int("int", 4, IntEncoding::SIGNED);
    b.int("unsigned int", 4, IntEncoding::NONE);
    b.int("long", 8, IntEncoding::SIGNED);
    b.ptr(0);
    b
}
const INT: u32 = 1;
const UINT: u32 = 2;
const LONG: u32 = 3;
const PTR: u32 = 4;
/// The first type after those of [`types`].
const FIRST: u32 = 5;

/// [`types`] and a structure of these members as [`FIRST`].
fn with_struct(name: &str, size: u32, members: &[MemberDef<'_>]) -> BtfBuilder {
    let mut b = types();
    assert_eq!(b.structure(name, size, members), FIRST);
    b
}

fn m(name: &str, type_id: u32, bit_offset: u32) -> MemberDef<'_> {
    MemberDef::new(name, type_id, bit_offset)
}

fn s(members: &[MemberDef<'_>]) -> BtfBuilder {
    with_struct("s", 16, members)
}

fn copy_of(btf: &Btf) -> BtfBuilder {
    BtfBuilder::from_btf(btf)
}
