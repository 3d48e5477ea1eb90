//! Programs over a packet: compiled and interpreted, they give the same.

use bpfkit_isa::asm::assemble;
use bpfkit_jit::Jit;
use bpfkit_runtime::{Engine, Interpreter, PacketProgram};

const FILTER: &str = "if r2 < 14 goto no
    r0 = *(u16 *)(r1 + 12)
    if w0 != 0x608 goto no
    *(u32 *)(r10 - 64) = r3
    r0 = *(u32 *)(r10 - 64)
    r5 = *(u32 *)(r4 + 60)
    r0 += r5
    exit
no:
    r0 = 0
    exit";

#[test]
fn engines_agree() {
    let insns = assemble(FILTER).expect("the text is right").insns;
    let program = PacketProgram::new(insns).expect("a program over a packet");
    let jit = Jit::default();
    let engines: [&dyn Engine; 3] = [&Interpreter::default(), &Interpreter::looping(), &jit];
    let mut arp = [0u8; 60];
    arp[12..14].copy_from_slice(&[8, 6]);
    let mut words = [0; 16];
    words[15] = 1000;
    for engine in engines {
        let code = engine.load_packet(&program).expect("a program that runs");
        for (packet, expected) in [
            (&arp[..], 1077),
            (&arp[..14], 1077),
            (&arp[..13], 0),
            (&[0; 60], 0),
            (&[], 0),
        ] {
            assert_eq!(code.run(packet, 77, &words), expected, "{}", engine.name());
        }
    }
}
