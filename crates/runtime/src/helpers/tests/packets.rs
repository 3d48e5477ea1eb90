//! Packets: reading, writing, reshaping.

use super::*;
use crate::context::Checksum;
use crate::context::layout::{sk_buff, xdp_md};
use crate::helpers::checksum;

/// Ethernet, IPv4, UDP, and a payload of the bytes 0, 1, 2, ….
fn udp(payload: usize) -> Vec<u8> {
    let mut p = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
    let total = (28 + payload) as u16;
    p.extend_from_slice(&[0x45, 0]);
    p.extend_from_slice(&total.to_be_bytes());
    p.extend_from_slice(&[0, 1, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    let check = checksum::fold(checksum::partial(&p[14..34], 0)).to_ne_bytes();
    p[24..26].copy_from_slice(&check);
    p.extend_from_slice(&[0x12, 0x34, 0, 53]);
    p.extend_from_slice(&((8 + payload) as u16).to_be_bytes());
    p.extend_from_slice(&[0, 0]);
    p.extend((0..payload).map(|i| i as u8));
    p
}

const DATA: u64 = xdp_md::DATA as u64;
const END: u64 = xdp_md::DATA_END as u64;

#[test]
fn xdp_head_moves_inside_the_headroom() {
    let mut rig = Rig::packet(ProgType::Xdp, &udp(32));
    rig.run(|p| {
        let (data, end) = p.window(DATA, END);
        assert_eq!(end - data, 74);
        assert_eq!(p.u32_at(p.ctx + xdp_md::INGRESS_IFINDEX as u64), 1);
        // 256 bytes of headroom, of which 40 are the kernel's.
        assert_eq!(
            p.call("xdp_adjust_head", &[p.ctx, -217i64 as u64]),
            err(Errno::EINVAL)
        );
        assert_eq!(p.call("xdp_adjust_head", &[p.ctx, -216i64 as u64]), 0);
        assert_eq!(p.window(DATA, END), (data - 216, end));
        p.env.write(data - 216, 216).unwrap().fill(7);
        // What is in front of the packet is no longer the program's after it moved on.
        assert_eq!(p.call("xdp_adjust_head", &[p.ctx, 216 + 60]), 0);
        assert_eq!(p.window(DATA, END), (data + 60, end));
        assert!(p.env.read(data, 1).is_err());
        assert_eq!(
            p.call("xdp_adjust_head", &[p.ctx, 1]),
            err(Errno::EINVAL),
            "14 bytes are left"
        );
        assert!(
            p.try_call("xdp_adjust_head", &[p.ctx + 8, 0]).is_err(),
            "that is no context"
        );
    });
    let mut out = Vec::new();
    rig.input.copy_packet(&mut out);
    assert_eq!(out, &udp(32)[60..]);
}

#[test]
fn xdp_metadata_moves_with_the_head() {
    let mut rig = Rig::packet(ProgType::Xdp, &udp(0));
    rig.run(|p| {
        assert_eq!(
            p.call("xdp_adjust_meta", &[p.ctx, -6i64 as u64]),
            err(Errno::EACCES)
        );
        assert_eq!(
            p.call("xdp_adjust_meta", &[p.ctx, -256i64 as u64]),
            err(Errno::EINVAL)
        );
        assert_eq!(p.call("xdp_adjust_meta", &[p.ctx, 4]), err(Errno::EINVAL));
        assert_eq!(p.call("xdp_adjust_meta", &[p.ctx, -8i64 as u64]), 0);
        let (meta, data) = p.window(xdp_md::DATA_META as u64, DATA);
        assert_eq!(data - meta, 8);
        p.env.write(meta, 8).unwrap().copy_from_slice(b"metadata");
        assert_eq!(p.call("xdp_adjust_head", &[p.ctx, -16i64 as u64]), 0);
        let (meta, data) = p.window(xdp_md::DATA_META as u64, DATA);
        assert_eq!((data - meta, p.bytes(meta, 8)), (8, b"metadata".to_vec()));
    });
    let (mut data, mut ctx) = (Vec::new(), Vec::new());
    rig.input.copy_data_out(&mut data);
    rig.input.copy_ctx_out(&mut ctx);
    assert_eq!(&data[..8], b"metadata");
    assert_eq!(data.len(), 8 + 16 + 42);
    assert_eq!(&ctx[..12], [8, 0, 0, 0, 66, 0, 0, 0, 0, 0, 0, 0]);
}

#[test]
fn xdp_tail_and_fragments() {
    let mut rig = Rig::packet(ProgType::Xdp, &udp(0));
    rig.run(|p| {
        let (data, end) = p.window(DATA, END);
        assert_eq!(p.call("xdp_adjust_tail", &[p.ctx, 100]), 0);
        assert_eq!(p.bytes(end, 100), [0; 100]);
        assert_eq!(p.call("xdp_adjust_tail", &[p.ctx, -128i64 as u64]), 0);
        assert_eq!(p.window(DATA, END), (data, data + 14));
        assert_eq!(
            p.call("xdp_adjust_tail", &[p.ctx, -1i64 as u64]),
            err(Errno::EINVAL)
        );
        assert_eq!(p.call("xdp_adjust_tail", &[p.ctx, 3520 - 14]), 0);
        assert_eq!(p.call("xdp_adjust_tail", &[p.ctx, 1]), err(Errno::EINVAL));
    });
    // 3,520 bytes in the first part, then 4,096 and the rest.
    let big = udp(9000 - 42);
    let mut rig = Rig::packet(ProgType::Xdp, &big);
    rig.run(|p| {
        let (data, end) = p.window(DATA, END);
        assert_eq!(end - data, 3520);
        assert_eq!(p.call("xdp_get_buff_len", &[p.ctx]), 9000);
        let buf = p.stack;
        assert_eq!(p.call("xdp_load_bytes", &[p.ctx, 3510, buf, 20]), 0);
        assert_eq!(p.bytes(buf, 20), &big[3510..3530]);
        let text = p.put(64, b"across fragments");
        assert_eq!(
            p.call("xdp_store_bytes", &[p.ctx, 3520 + 4090, text, 16]),
            0
        );
        assert_eq!(p.call("xdp_load_bytes", &[p.ctx, 3520 + 4090, buf, 16]), 0);
        assert_eq!(p.bytes(buf, 16), b"across fragments");
        assert_eq!(
            p.call("xdp_load_bytes", &[p.ctx, 8999, buf, 2]),
            err(Errno::EINVAL)
        );
        assert_eq!(
            p.call("xdp_load_bytes", &[p.ctx, 0x1_0000, buf, 2]),
            err(Errno::EFAULT)
        );
        p.faults("xdp_load_bytes", &[p.ctx, 0, buf + 500, 20]);
        assert_eq!(p.call("xdp_adjust_tail", &[p.ctx, 8]), 0);
        assert_eq!(p.call("xdp_get_buff_len", &[p.ctx]), 9008);
        assert_eq!(
            p.call("xdp_adjust_tail", &[p.ctx, 4096]),
            err(Errno::EINVAL)
        );
        assert_eq!(p.call("xdp_adjust_tail", &[p.ctx, -5600i64 as u64]), 0);
        assert_eq!(p.call("xdp_get_buff_len", &[p.ctx]), 3408);
        assert_eq!(p.window(DATA, END), (data, data + 3408));
    });
}

#[test]
fn skb_context_is_as_in_a_test_run() {
    let packet = udp(4);
    for (prog_type, l2, direct) in [
        (ProgType::SchedCls, true, true),
        (ProgType::CgroupSkb, false, true),
        (ProgType::LwtXmit, false, true),
        (ProgType::SocketFilter, false, false),
    ] {
        let mut rig = Rig::packet(prog_type, &packet);
        rig.run(|p| {
            let len = if l2 { packet.len() } else { packet.len() - 14 } as u32;
            let field = |p: &mut Play<'_, '_>, at: usize| p.u32_at(p.ctx + at as u64);
            assert_eq!(field(p, sk_buff::LEN), len);
            assert_eq!(field(p, sk_buff::PROTOCOL), 0x0008);
            assert_eq!(field(p, sk_buff::PKT_TYPE), 3, "another host's");
            assert_eq!(field(p, sk_buff::IFINDEX), 1);
            let (data, end) = p.window(sk_buff::DATA as u64, sk_buff::DATA_END as u64);
            assert_eq!(end - data, if direct { u64::from(len) } else { 0 });
            let sk = p.u64_at(p.ctx + sk_buff::SK as u64);
            assert_eq!(p.u32_at(sk + 4), 2, "AF_INET");
            assert_eq!(p.bytes(sk + 24, 4), [10, 0, 0, 1]);
            assert_eq!(p.call("sk_fullsock", &[sk]) as u64, sk);
            assert!(p.env.write(sk, 4).is_err(), "sockets are read-only");
        });
        let mut out = Vec::new();
        rig.input.copy_data_out(&mut out);
        assert_eq!(out.len(), packet.len());
        assert_eq!(&out[14..], &packet[14..]);
        assert_eq!(out[..14] == packet[..14], l2);
    }
}

#[test]
fn given_context_fields() {
    let mut input = Input::packet(ProgType::SchedCls, &udp(0)).unwrap();
    let mut ctx = [0; sk_buff::SIZE];
    ctx[sk_buff::MARK] = 7;
    ctx[sk_buff::CB + 4] = 9;
    ctx[sk_buff::WIRE_LEN] = 200;
    input.set_context(&ctx).unwrap();
    assert_eq!(input.ctx()[sk_buff::MARK], 7);
    let mut out = Vec::new();
    input.copy_ctx_out(&mut out);
    assert_eq!(
        (
            out[sk_buff::MARK],
            out[sk_buff::CB + 4],
            out[sk_buff::WIRE_LEN]
        ),
        (7, 9, 200)
    );
    assert_eq!(out[sk_buff::LEN..sk_buff::MARK], [0; 8]);
    input.set_packet(&udp(10)).unwrap();
    assert_eq!(
        input.ctx()[sk_buff::MARK],
        7,
        "each packet starts from what was given"
    );
    for (at, value) in [
        (sk_buff::LEN, 1),
        (sk_buff::HASH, 1),
        (sk_buff::WIRE_LEN, 3),
        (sk_buff::DATA, 1),
    ] {
        let mut ctx = [0; sk_buff::SIZE];
        ctx[at] = value;
        assert_eq!(
            input.set_context(&ctx).unwrap_err().errno(),
            Errno::EINVAL,
            "byte {at}"
        );
    }
    assert_eq!(
        input.set_context(&[1; 300]).unwrap_err().errno(),
        Errno::E2BIG
    );
    assert_eq!(
        Input::packet(ProgType::Xdp, &[0; 13]).unwrap_err().errno(),
        Errno::EINVAL
    );
    assert_eq!(
        Input::packet(ProgType::Kprobe, &[0; 64])
            .unwrap_err()
            .errno(),
        Errno::EINVAL
    );
    assert_eq!(
        Input::packet(ProgType::Xdp, &vec![0; 80_000])
            .unwrap_err()
            .errno(),
        Errno::ENOMEM
    );
}

#[test]
fn xdp_metadata_given() {
    let mut input = Input::packet(ProgType::Xdp, &udp(0)).unwrap();
    let mut ctx = [0; xdp_md::SIZE];
    (ctx[xdp_md::DATA], ctx[xdp_md::DATA_END]) = (8, 42);
    input.set_context(&ctx).unwrap();
    let word = |at: usize| u32::from_ne_bytes(input.ctx()[at..at + 4].try_into().unwrap());
    assert_eq!(word(xdp_md::DATA) - word(xdp_md::DATA_META), 8);
    assert_eq!(word(xdp_md::DATA_END) - word(xdp_md::DATA_META), 42);
    for (at, value) in [
        (xdp_md::DATA, 6),
        (xdp_md::DATA_META, 1),
        (xdp_md::RX_QUEUE_INDEX, 1),
    ] {
        let mut wrong = ctx;
        wrong[at] = value;
        assert_eq!(
            input.set_context(&wrong).unwrap_err().errno(),
            Errno::EINVAL,
            "byte {at}"
        );
    }
}

#[test]
fn skb_bytes() {
    let packet = udp(20);
    let mut rig = Rig::packet(ProgType::SchedCls, &packet);
    rig.run(|p| {
        let (ctx, buf) = (p.ctx, p.stack);
        assert_eq!(p.call("skb_load_bytes", &[ctx, 14, buf, 20]), 0);
        assert_eq!(p.bytes(buf, 20), &packet[14..34]);
        assert_eq!(
            p.call("skb_load_bytes", &[ctx, 60, buf, 20]),
            err(Errno::EFAULT)
        );
        assert_eq!(p.bytes(buf, 20), [0; 20], "zeroed on failure");
        assert_eq!(
            p.call("skb_load_bytes", &[ctx, 0x8000_0000, buf, 4]),
            err(Errno::EFAULT)
        );
        p.faults("skb_load_bytes", &[ctx, 0, buf + 508, 8]);
        assert_eq!(p.call("skb_load_bytes_relative", &[ctx, 12, buf, 4, 1]), 0);
        assert_eq!(p.bytes(buf, 4), [10, 0, 0, 1]);
        assert_eq!(p.call("skb_load_bytes_relative", &[ctx, 12, buf, 2, 0]), 0);
        assert_eq!(p.bytes(buf, 2), [8, 0]);
        assert_eq!(
            p.call("skb_load_bytes_relative", &[ctx, 0, buf, 2, 2]),
            err(Errno::EFAULT)
        );
        let text = p.put(100, b"hello");
        assert_eq!(p.call("skb_store_bytes", &[ctx, 42, text, 5, 0]), 0);
        assert_eq!(p.call("skb_load_bytes", &[ctx, 42, buf, 5]), 0);
        assert_eq!(p.bytes(buf, 5), b"hello");
        assert_eq!(
            p.call("skb_store_bytes", &[ctx, 60, text, 5, 0]),
            err(Errno::EFAULT)
        );
        assert_eq!(
            p.call("skb_store_bytes", &[ctx, 0, text, 5, 4]),
            err(Errno::EINVAL)
        );
        assert_eq!(p.call("skb_pull_data", &[ctx, 62]), 0);
        assert_eq!(p.call("skb_pull_data", &[ctx, 63]), err(Errno::ENOMEM));
    });
}

#[test]
fn checksums_stay_right() {
    let packet = udp(21);
    let mut rig = Rig::packet(ProgType::SchedCls, &packet);
    let sum = |bytes: &[u8]| checksum::to16(checksum::partial(bytes, 0));
    rig.input
        .set_checksum(Checksum::Complete(checksum::partial(&packet[14..], 0)));
    rig.run(|p| {
        let ctx = p.ctx;
        // A new time to live, the header's checksum updated after it.
        let ttl = p.put(0, &[63, 17]);
        let (from, to) = (u16::from_ne_bytes([64, 17]), u16::from_ne_bytes([63, 17]));
        assert_eq!(
            p.call("l3_csum_replace", &[ctx, 24, from.into(), to.into(), 2]),
            0
        );
        assert_eq!(p.call("skb_store_bytes", &[ctx, 22, ttl, 2, 0]), 0);
        let buf = p.stack + 100;
        p.call("skb_load_bytes", &[ctx, 14, buf, 20]);
        let header = p.bytes(buf, 20);
        assert_eq!(sum(&header), 0xffff);
        // The same for an address, by a difference.
        let (old, new) = (p.put(0, &[10, 0, 0, 1]), p.put(8, &[192, 168, 7, 9]));
        let diff = p.call("csum_diff", &[old, 4, new, 4, 0]) as u64;
        assert_eq!(p.call("l3_csum_replace", &[ctx, 24, 0, diff, 0]), 0);
        assert_eq!(p.call("skb_store_bytes", &[ctx, 26, new, 4, 0]), 0);
        p.call("skb_load_bytes", &[ctx, 14, buf, 20]);
        let header = p.bytes(buf, 20);
        assert_eq!(sum(&header), 0xffff);
        for (offset, from, flags, e) in [
            (24, 1, 0, Errno::EINVAL),
            (24, 0, 3, Errno::EINVAL),
            (24, 0, 0x12, Errno::EINVAL),
            (25, 0, 2, Errno::EFAULT),
            (0x1_0000, 0, 2, Errno::EFAULT),
            (62, 0, 2, Errno::EFAULT),
        ] {
            assert_eq!(
                p.call("l3_csum_replace", &[ctx, offset, from, 0, flags]),
                err(e)
            );
        }
        // An absent UDP checksum stays absent when it is marked so.
        assert_eq!(p.call("l4_csum_replace", &[ctx, 40, 1, 2, 0x22]), 0);
        p.call("skb_load_bytes", &[ctx, 40, buf, 2]);
        assert_eq!(p.bytes(buf, 2), [0, 0]);
        assert_eq!(
            p.call("l4_csum_replace", &[ctx, 40, 1, 2, 1 << 8]),
            err(Errno::EINVAL)
        );
    });
    // The sum over the whole packet follows stores that ask for it, at odd places too.
    let mut rig = Rig::packet(ProgType::SchedCls, &packet);
    rig.input
        .set_checksum(Checksum::Complete(checksum::partial(&packet[14..], 0)));
    rig.run(|p| {
        let text = p.put(0, b"odd number of bytes");
        assert_eq!(p.call("skb_store_bytes", &[p.ctx, 43, text, 19, 1]), 0);
    });
    let mut out = Vec::new();
    rig.input.copy_packet(&mut out);
    let Checksum::Complete(kept) = rig.input.checksum() else {
        panic!("the sum is kept")
    };
    assert_eq!(checksum::to16(kept), sum(&out[14..]));
}

#[test]
fn checksum_levels() {
    let mut rig = Rig::packet(ProgType::SchedCls, &udp(0));
    rig.run(|p| {
        let mut level = |action| p.call("csum_level", &[p.ctx, action]);
        assert_eq!(level(0), err(Errno::EACCES));
        assert_eq!((level(1), level(0)), (0, 0));
        assert_eq!((level(1), level(0)), (0, 1));
        assert_eq!((level(2), level(2), level(0)), (0, 0, err(Errno::EACCES)));
        assert_eq!((level(1), level(3), level(0)), (0, 0, err(Errno::EACCES)));
        assert_eq!(level(4), err(Errno::EINVAL));
        assert_eq!(p.call("csum_update", &[p.ctx, 1]), err(Errno::ENOTSUPP));
    });
    rig.input.set_checksum(Checksum::Complete(5));
    rig.run(|p| assert_eq!(p.call("csum_update", &[p.ctx, 7]), 12));
}

#[test]
fn vlan_tags() {
    let packet = udp(8);
    let mut rig = Rig::packet(ProgType::SchedCls, &packet);
    rig.run(|p| {
        let ctx = p.ctx;
        let field = |p: &mut Play<'_, '_>, at: usize| p.u32_at(ctx + at as u64);
        // The first tag is kept beside the packet, the second pushes it into the bytes.
        assert_eq!(p.call("skb_vlan_push", &[ctx, 0x0081, 100]), 0);
        assert_eq!(
            (field(p, sk_buff::VLAN_PRESENT), field(p, sk_buff::VLAN_TCI)),
            (1, 100)
        );
        assert_eq!(field(p, sk_buff::LEN), 50);
        assert_eq!(p.call("skb_vlan_push", &[ctx, 0xa888, 200]), 0);
        assert_eq!(
            (field(p, sk_buff::LEN), field(p, sk_buff::VLAN_TCI)),
            (54, 200)
        );
        assert_eq!(field(p, sk_buff::VLAN_PROTO), 0xa888);
        assert_eq!(field(p, sk_buff::PROTOCOL), 0x0081);
        let buf = p.stack;
        p.call("skb_load_bytes", &[ctx, 12, buf, 6]);
        assert_eq!(p.bytes(buf, 6), [0x81, 0, 0, 100, 8, 0]);
        // Popping moves the tag in the bytes to its place beside them.
        assert_eq!(p.call("skb_vlan_pop", &[ctx]), 0);
        assert_eq!(
            (field(p, sk_buff::LEN), field(p, sk_buff::VLAN_TCI)),
            (50, 100)
        );
        assert_eq!(field(p, sk_buff::PROTOCOL), 0x0008);
        assert_eq!(p.call("skb_vlan_pop", &[ctx]), 0);
        assert_eq!(
            (field(p, sk_buff::VLAN_PRESENT), field(p, sk_buff::LEN)),
            (0, 50)
        );
        assert_eq!(p.call("skb_vlan_pop", &[ctx]), 0);
    });
    let mut out = Vec::new();
    rig.input.copy_packet(&mut out);
    assert_eq!(out, packet);
}

#[test]
fn protocol_change_makes_room() {
    let packet = udp(8);
    let mut rig = Rig::packet(ProgType::SchedCls, &packet);
    rig.run(|p| {
        let ctx = p.ctx;
        assert_eq!(
            p.call("skb_change_proto", &[ctx, 0xdd86, 1]),
            err(Errno::EINVAL)
        );
        assert_eq!(
            p.call("skb_change_proto", &[ctx, 0x0608, 0]),
            err(Errno::ENOTSUPP)
        );
        assert_eq!(p.call("skb_change_proto", &[ctx, 0xdd86, 0]), 0);
        assert_eq!(p.u32_at(ctx), 70);
        assert_eq!(p.u32_at(ctx + sk_buff::PROTOCOL as u64), 0xdd86);
        let (data, _) = p.window(sk_buff::DATA as u64, sk_buff::DATA_END as u64);
        assert_eq!(p.bytes(data, 14), &packet[..14]);
        assert_eq!(p.bytes(data + 14, 20), [0; 20]);
        assert_eq!(p.bytes(data + 34, 36), &packet[14..]);
        assert_eq!(p.call("skb_change_proto", &[ctx, 0x0008, 0]), 0);
    });
    let mut out = Vec::new();
    rig.input.copy_packet(&mut out);
    assert_eq!(out, packet);
}

#[test]
fn room_for_headers() {
    let packet = udp(8);
    let mut rig = Rig::packet(ProgType::SchedCls, &packet);
    rig.run(|p| {
        let ctx = p.ctx;
        let room = |p: &mut Play<'_, '_>, delta: i64, mode, flags| {
            p.call("skb_adjust_room", &[ctx, delta as u64, mode, flags])
        };
        let (encap4, encap6) = (1 << 1, 1 << 2);
        for (delta, mode, flags, e) in [
            (4, 0, 1 << 9, Errno::EINVAL),
            (0x1000, 0, 0, Errno::EFAULT),
            (4, 2, 0, Errno::ENOTSUPP),
            (-36, 1, 0, Errno::ENOTSUPP),
            (-17, 1, 0, Errno::ENOTSUPP),
            (4, 1, 1 << 7, Errno::EINVAL),
            (20, 1, encap4 | encap6, Errno::EINVAL),
            (20, 1, encap4 | 1 << 3 | 1 << 4, Errno::EINVAL),
            (4, 1, encap4 | 8 << 56, Errno::EINVAL),
        ] {
            assert_eq!(
                room(p, delta, mode, flags),
                err(e),
                "{delta} {mode} {flags:#x}"
            );
        }
        // An outer IPv6 header between Ethernet and IPv4.
        assert_eq!(room(p, 40, 1, encap6), 0);
        assert_eq!(p.u32_at(ctx), 90);
        assert_eq!(p.u32_at(ctx + sk_buff::PROTOCOL as u64), 0xdd86);
        let (data, _) = p.window(sk_buff::DATA as u64, sk_buff::DATA_END as u64);
        assert_eq!(p.bytes(data, 14), &packet[..14]);
        assert_eq!(p.bytes(data + 14, 40), [0; 40]);
        assert_eq!(p.bytes(data + 54, 36), &packet[14..]);
        assert_eq!(room(p, 40, 1, encap6), err(crate::helpers::EALREADY));
        // And away again.
        assert_eq!(room(p, -40, 1, 1 << 7), 0);
        assert_eq!(p.u32_at(ctx + sk_buff::PROTOCOL as u64), 0x0008);
        let (data, end) = p.window(sk_buff::DATA as u64, sk_buff::DATA_END as u64);
        assert_eq!(p.bytes(data, end - data), packet);
        // Options behind the IPv4 header.
        assert_eq!(room(p, 8, 0, 0), 0);
        let (data, _) = p.window(sk_buff::DATA as u64, sk_buff::DATA_END as u64);
        assert_eq!(p.bytes(data, 34), &packet[..34]);
        assert_eq!(p.bytes(data + 34, 8), [0; 8]);
        assert_eq!(room(p, -8, 0, 0), 0);
    });
    let mut out = Vec::new();
    rig.input.copy_packet(&mut out);
    assert_eq!(out, packet);
}

#[test]
fn head_and_tail_of_an_skb() {
    let packet = udp(8);
    let mut rig = Rig::packet(ProgType::SchedCls, &packet);
    rig.run(|p| {
        let ctx = p.ctx;
        let tail = |p: &mut Play<'_, '_>, len| p.call("skb_change_tail", &[ctx, len, 0]);
        assert_eq!(tail(p, 13), err(Errno::EINVAL));
        assert_eq!(tail(p, 16065), err(Errno::EINVAL));
        assert_eq!(tail(p, 100), 0);
        let (data, end) = p.window(sk_buff::DATA as u64, sk_buff::DATA_END as u64);
        assert_eq!(end - data, 100);
        assert_eq!(p.bytes(data + 50, 50), [0; 50]);
        assert_eq!((tail(p, 40), p.u32_at(ctx)), (0, 40));
        let head = |p: &mut Play<'_, '_>, len, flags| p.call("skb_change_head", &[ctx, len, flags]);
        assert_eq!(head(p, 14, 1), err(Errno::EINVAL));
        assert_eq!(head(p, 16064, 0), err(Errno::EINVAL));
        assert_eq!((head(p, 14, 0), p.u32_at(ctx)), (0, 54));
        assert_eq!(p.call("skb_change_type", &[ctx, 4]), err(Errno::EINVAL));
        assert_eq!(p.call("skb_change_type", &[ctx, 0]), 0);
        assert_eq!(p.u32_at(ctx + 4), 0);
    });
    let mut out = Vec::new();
    rig.input.copy_packet(&mut out);
    assert_eq!(out[..14], [0; 14]);
    assert_eq!(out[14..], packet[..40]);
}

#[test]
fn hashes() {
    let mut rig = Rig::packet(ProgType::SchedCls, &udp(8));
    rig.run(|p| {
        let first = p.call("get_hash_recalc", &[p.ctx]);
        assert!(first > 0 && first <= i64::from(u32::MAX));
        assert_eq!(p.u32_at(p.ctx + sk_buff::HASH as u64), first as u32);
        p.call("set_hash", &[p.ctx, 0xabcd]);
        assert_eq!(
            p.call("get_hash_recalc", &[p.ctx]),
            0xabcd,
            "a program's hash stays"
        );
        p.call("set_hash_invalid", &[p.ctx]);
        assert_eq!(p.call("get_hash_recalc", &[p.ctx]), first);
        // Another source port gives another hash.
        let port = p.put(0, &[9, 9]);
        p.call("skb_store_bytes", &[p.ctx, 34, port, 2, 2]);
        assert_ne!(p.call("get_hash_recalc", &[p.ctx]), first);
    });
}

#[test]
fn congestion_mark() {
    let mut packet = udp(0);
    packet[15] = 1;
    packet[24..26].fill(0);
    let check = checksum::fold(checksum::partial(&packet[14..34], 0)).to_ne_bytes();
    packet[24..26].copy_from_slice(&check);
    let mut rig = Rig::packet(ProgType::CgroupSkb, &packet);
    rig.run(|p| {
        assert_eq!(p.call("skb_ecn_set_ce", &[p.ctx]), 1);
        let buf = p.stack;
        p.call("skb_load_bytes", &[p.ctx, 0, buf, 20]);
        let header = p.bytes(buf, 20);
        assert_eq!(header[1], 3);
        assert_eq!(checksum::to16(checksum::partial(&header, 0)), 0xffff);
    });
    let mut rig = Rig::packet(ProgType::CgroupSkb, &udp(0));
    rig.run(|p| assert_eq!(p.call("skb_ecn_set_ce", &[p.ctx]), 0, "not capable of it"));
}

#[test]
fn tunnels_and_mtu() {
    let mut rig = Rig::packet(ProgType::SchedCls, &udp(1472));
    rig.run(|p| {
        let ctx = p.ctx;
        let key = p.put(0, &[0; 44]);
        assert_eq!(
            p.call("skb_get_tunnel_key", &[ctx, key, 44, 0]),
            err(Errno::EINVAL)
        );
        assert_eq!(
            p.call("skb_set_tunnel_opt", &[ctx, key, 8]),
            err(Errno::EINVAL)
        );
        assert_eq!(
            p.call("skb_set_tunnel_key", &[ctx, key, 43, 0]),
            err(Errno::EINVAL)
        );
        assert_eq!(p.call("skb_set_tunnel_key", &[ctx, key, 28, 0]), 0);
        assert_eq!(p.call("skb_set_tunnel_opt", &[ctx, key, 8]), 0);
        assert_eq!(
            p.call("skb_set_tunnel_opt", &[ctx, key, 7]),
            err(Errno::EINVAL)
        );
        let mtu = p.put(64, &0u32.to_ne_bytes());
        assert_eq!(p.call("check_mtu", &[ctx, 0, mtu, 0, 0]), 0);
        assert_eq!(p.u32_at(mtu), 1500);
        p.put(64, &0u32.to_ne_bytes());
        assert_eq!(p.call("check_mtu", &[ctx, 0, mtu, 1, 0]), 1);
        assert_eq!(
            p.call("check_mtu", &[ctx, 0, mtu, 0, 2]),
            err(Errno::EINVAL)
        );
    });
}

#[test]
fn flow_dissector_keys() {
    let mut rig = Rig::packet(ProgType::FlowDissector, &udp(0));
    rig.run(|p| {
        let keys = p.u64_at(p.ctx + sk_buff::FLOW_KEYS as u64);
        assert_eq!(p.bytes(keys, 4), [14, 0, 14, 0]);
        assert_eq!(p.bytes(keys + 10, 2), [8, 0]);
        p.env.store(keys + 2, 200u16.to_ne_bytes()).unwrap();
        let (data, end) = p.window(sk_buff::DATA as u64, sk_buff::DATA_END as u64);
        assert_eq!(end - data, 42);
    });
    let mut out = Vec::new();
    rig.input.copy_data_out(&mut out);
    assert_eq!(out.len(), 56);
    assert_eq!(
        out[..4],
        [14, 0, 42, 0],
        "offsets are clamped to the packet"
    );
}

#[test]
fn packets_follow_one_another() {
    let mut input = Input::packet(ProgType::SchedCls, &udp(0)).unwrap();
    let place = input.ctx_addr();
    for len in [0, 1400, 8, 60_000] {
        let packet = udp(len);
        input.set_packet(&packet).unwrap();
        assert_eq!(input.ctx_addr(), place);
        let mut out = Vec::new();
        input.copy_packet(&mut out);
        assert_eq!(out, packet);
    }
    let huge = udp(65_000 + 70_000 - 65_000);
    input.set_packet(&huge).unwrap();
    assert_eq!(input.packet_len(), huge.len());
}

#[test]
fn messages() {
    let mut rig = Rig::packet(ProgType::SkMsg, b"0123456789");
    rig.run(|p| {
        let ctx = p.ctx;
        let seen = |p: &mut Play<'_, '_>| {
            let (data, end) = (p.u64_at(ctx), p.u64_at(ctx + 8));
            p.bytes(data, end - data)
        };
        assert_eq!(seen(p), b"0123456789");
        for (start, end, flags) in [(3, 3, 0), (0, 11, 0), (0, 1, 1)] {
            assert_eq!(
                p.call("msg_pull_data", &[ctx, start, end, flags]),
                err(Errno::EINVAL)
            );
        }
        assert_eq!(p.call("msg_pull_data", &[ctx, 2, 5, 0]), 0);
        assert_eq!(seen(p), b"234");
        assert_eq!(
            p.call("msg_push_data", &[ctx, 11, 2, 0]),
            err(Errno::EINVAL)
        );
        assert_eq!(p.call("msg_push_data", &[ctx, 4, 2, 0]), 0);
        assert_eq!(p.u32_at(ctx + 68), 12);
        assert_eq!(p.call("msg_pop_data", &[ctx, 10, 3, 0]), err(Errno::EINVAL));
        assert_eq!(p.call("msg_pop_data", &[ctx, 0, 3, 0]), 0);
        assert_eq!(seen(p), b"3\x00\x00456789");
        assert_eq!(p.call("msg_apply_bytes", &[ctx, 4]), 0);
    });
    let mut out = Vec::new();
    rig.input.copy_packet(&mut out);
    assert_eq!(out, b"3\x00\x00456789");
}
