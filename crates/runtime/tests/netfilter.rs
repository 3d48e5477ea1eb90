//! A netfilter program on its context: pointers to structures that the kernel's BTF lays out.

use std::sync::Arc;

use bpfkit_btf::{Btf, BtfBuilder, IntEncoding, MemberDef};
use bpfkit_isa::asm;
use bpfkit_runtime::context::{Input, InputError};
use bpfkit_runtime::{Engine, Interpreter, LoadOptions, MapSet, Vm, raw_program};

/// `struct sk_buff { u64 pad; union { struct { u32 len; }; }; void *data; }` and
/// `struct nf_hook_state { u8 hook; u8 pf; }`.
fn kernel() -> Btf {
    let mut btf = BtfBuilder::new();
    let byte = btf.int("u8", 1, IntEncoding::NONE);
    let word = btf.int("u32", 4, IntEncoding::NONE);
    let long = btf.int("u64", 8, IntEncoding::NONE);
    let pointer = btf.ptr(0);
    let member =
        |name: &'static str, type_id: u32, byte: u32| MemberDef::new(name, type_id, byte * 8);
    let inner = btf.structure("", 4, &[member("len", word, 0)]);
    let either = btf.union("", 4, &[member("", inner, 0)]);
    btf.structure(
        "sk_buff",
        24,
        &[
            member("pad", long, 0),
            member("", either, 8),
            member("data", pointer, 16),
        ],
    );
    btf.structure(
        "nf_hook_state",
        2,
        &[member("hook", byte, 0), member("pf", byte, 1)],
    );
    btf.build().expect("BTF")
}

fn packet() -> [u8; 54] {
    let mut packet = [0; 54];
    packet[12] = 0x08;
    packet[14] = 0x45;
    packet
}

#[test]
fn reads_the_packet_through_the_kernels_structures() {
    // First byte of the IP header, length, hook and family in one word.
    let text = "
        r2 = *(u64 *)(r1 + 0)
        r3 = *(u64 *)(r1 + 8)
        r0 = *(u16 *)(r2 + 0)
        r0 <<= 32
        r4 = *(u32 *)(r3 + 8)
        r4 <<= 8
        r0 |= r4
        r3 = *(u64 *)(r3 + 16)
        r4 = *(u8 *)(r3 + 0)
        r0 |= r4
        exit";
    let insns = asm::assemble(text).expect("assembles").insns;
    let program = Arc::new(raw_program("hook", insns));
    let hook = Interpreter::default()
        .load(program.into(), &MapSet::empty(), &LoadOptions::default())
        .expect("loads");
    let mut input = Input::netfilter(&packet(), &kernel()).expect("an input");
    let outcome = hook.run(&mut Vm::default(), &mut input);
    assert_eq!(outcome.fault, None);
    assert_eq!(outcome.ret, 0x0203_0000_2845);
}

#[test]
fn other_packets_are_refused() {
    let kernel = kernel();
    let mut arp = packet();
    arp[13] = 0x06;
    assert!(matches!(
        Input::netfilter(&arp, &kernel),
        Err(InputError::Field { .. })
    ));
    assert!(matches!(
        Input::netfilter(&packet()[..30], &kernel),
        Err(InputError::TooShort(30))
    ));
    assert!(matches!(
        Input::netfilter(&[], &kernel),
        Err(InputError::TooShort(0))
    ));
}
