//! Programs over a packet: what the interpreter runs in one handler gives what the single
//! instructions give, for packets of every length.

use bpfkit_isa::asm::assemble;
use bpfkit_runtime::{Engine, Interpreter, PacketProgram};

/// Programs as classic filters become them. `no` ends with 0.
const PROGRAMS: &[&str] = &[
    // Protocols, a fragment's offset, two loads behind an IP header.
    "if r2 < 24 goto no
     r0 = *(u16 *)(r1 + 12)
     if w0 != 8 goto no
     r0 = *(u8 *)(r1 + 23)
     if w0 == 132 goto ports
     if w0 == 6 goto ports
     if w0 != 17 goto no
 ports:
     r0 = *(u16 *)(r1 + 20)
     if w0 & 0xff1f goto no
     r4 = *(u8 *)(r1 + 14)
     w4 &= 15
     w4 <<= 2
     w5 = w4
     r5 += 16
     if r5 > r2 goto no
     r5 += r1
     r0 = *(u16 *)(r5 - 2)
     if w0 == 0x1600 goto yes
     w5 = w4
     r5 += 18
     if r5 > r2 goto no
     r5 += r1
     r0 = *(u16 *)(r5 - 2)
     if w0 != 0x1600 goto no
 yes:
     w0 = 262144
     exit",
    // Numbers: swapped, kept on the stack, computed with, compared with X.
    "if r2 < 18 goto no
     r0 = *(u16 *)(r1 + 16)
     r0 = be16 r0
     *(u32 *)(r10 - 8) = r0
     r0 = *(u8 *)(r1 + 14)
     w0 &= 15
     w0 <<= 2
     w4 = w0
     r0 = *(u32 *)(r10 - 8)
     w0 -= w4
     *(u32 *)(r10 - 24) = r0
     r4 = *(u8 *)(r1 + 14)
     w4 &= 15
     w4 <<= 2
     w5 = w4
     r5 += 27
     if r5 > r2 goto no
     r5 += r1
     r0 = *(u8 *)(r5 - 1)
     w0 &= 240
     w0 >>= 2
     w4 = w0
     r0 = *(u32 *)(r10 - 24)
     if w0 == w4 goto no
     r0 = *(u32 *)(r10 - 24)
     w0 -= w4
     exit",
    // The same registers, loads of every size.
    "if r2 < 40 goto no
     r0 = *(u32 *)(r1 + 26)
     if w0 == 0x100000a goto yes
     if w0 != 0x200000a goto no
     r0 = *(u32 *)(r1 + 30)
     if w0 & 0xff goto no
     r0 = *(u8 *)(r1 + 34)
     if w0 != 0 goto no
     r0 = *(u32 *)(r1 + 36)
     r0 = be32 r0
     w4 = 8
     w5 = w4
     r5 += 6
     if r5 > r2 goto no
     r5 += r1
     r0 = *(u32 *)(r5 - 4)
     r0 = be32 r0
     exit
 yes:
     r0 = *(u8 *)(r1 + 23)
     if w0 == 17 goto no
     if w0 != 6 goto no
     w0 = 1
     exit",
    // Other registers than a converted filter's.
    "if r2 < 24 goto no
     r3 = *(u16 *)(r1 + 12)
     if w3 != 8 goto no
     r6 = *(u8 *)(r1 + 14)
     w6 &= 15
     w6 <<= 2
     w7 = w6
     r7 += 16
     if r7 > r2 goto no
     r7 += r1
     r8 = *(u16 *)(r7 - 2)
     if w8 != 0x1600 goto no
     w0 = w8
     exit",
];

/// An IPv4 packet with these, 80 bytes long.
fn packet(protocol: u8, fragment: u8, header: u8, ports: [u8; 4]) -> Vec<u8> {
    let mut packet: Vec<u8> = (0..80).collect();
    packet[12..15].copy_from_slice(&[8, 0, 0x40 | header]);
    packet[16..18].copy_from_slice(&[0, 66]);
    packet[20..22].copy_from_slice(&[fragment, 0]);
    packet[23] = protocol;
    packet[26..30].copy_from_slice(&[10, 0, 0, 1 + (fragment & 1)]);
    packet[30] = header & 1;
    packet[34] = 0;
    let at = 14 + 4 * usize::from(header);
    if let Some(place) = packet.get_mut(at..at + 4) {
        place.copy_from_slice(&ports);
    }
    packet
}

#[test]
fn sequences_give_what_single_instructions_give() {
    let mut packets = Vec::new();
    for protocol in [1, 6, 17, 132] {
        for fragment in [0, 1, 0x20, 0x40] {
            for header in [5, 6, 14, 15] {
                for ports in [[0, 22, 1, 2], [1, 2, 0, 22], [0, 22, 0, 22], [1, 2, 3, 4]] {
                    packets.push(packet(protocol, fragment, header, ports));
                }
            }
        }
    }
    let nothing = Default::default();
    let mut matched = [0; PROGRAMS.len()];
    for (number, text) in PROGRAMS.iter().enumerate() {
        let text = format!("{text}\nno: w0 = 0\nexit");
        let insns = assemble(&text).expect("the text is right").insns;
        let program = PacketProgram::new(insns).expect("a program over a packet");
        let load = |engine: Interpreter| engine.load_packet(&program).expect("a program");
        let (one, other) = (load(Interpreter::default()), load(Interpreter::looping()));
        for packet in &packets {
            for len in 0..=packet.len() {
                let (one, other) = (
                    one.run(&packet[..len], 80, &nothing),
                    other.run(&packet[..len], 80, &nothing),
                );
                assert_eq!(one, other, "program {number}, {len} bytes of {packet:?}");
                matched[number] += usize::from(one != 0);
            }
        }
    }
    assert!(matched.iter().all(|&n| n > 0), "{matched:?}");
}
