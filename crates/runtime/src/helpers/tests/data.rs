//! Text, numbers, memory that may be bad, dynamic pointers.

use super::*;

#[test]
fn printing() {
    let mut rig = Rig::bare(&[]);
    rig.run(|p| {
        let fmt = p.put(0, b"%d %s\0");
        let text = p.put(16, b"abc\0");
        assert_eq!(p.call("trace_printk", &[fmt, 6, 7, text]), 5);
        assert_eq!(
            p.call("trace_printk", &[fmt, 5, 7, text]),
            err(Errno::EINVAL),
            "no NUL"
        );
        p.faults("trace_printk", &[fmt + 508, 8, 0, 0]);
        let args = p.put(32, &[7u64.to_ne_bytes(), text.to_ne_bytes()].concat());
        assert_eq!(p.call("trace_vprintk", &[fmt, 6, args, 16]), 5);
        assert_eq!(
            p.call("trace_vprintk", &[fmt, 6, args, 12]),
            err(Errno::EINVAL)
        );
        assert_eq!(
            p.call("trace_vprintk", &[fmt, 6, args, 8]),
            err(Errno::EINVAL),
            "too few"
        );
        assert_eq!(
            p.call("trace_vprintk", &[fmt, 6, 0, 16]),
            err(Errno::EINVAL)
        );
        assert_eq!(
            p.call("trace_vprintk", &[fmt, 6, args, 104]),
            err(Errno::EINVAL),
            "too many"
        );
        let out = p.put(64, &[0xff; 16]);
        assert_eq!(p.call("snprintf", &[out, 16, fmt, args, 16]), 6);
        assert_eq!(p.bytes(out, 7), b"7 abc\0\xff");
        p.put(64, &[0xff; 16]);
        assert_eq!(
            p.call("snprintf", &[out, 4, fmt, args, 16]),
            6,
            "the whole length"
        );
        assert_eq!(p.bytes(out, 5), b"7 a\0\xff");
        assert_eq!(p.call("snprintf", &[0, 0, fmt, args, 16]), 6);
        p.faults("snprintf", &[out + 500, 16, fmt, args, 16]);
        assert_eq!(p.call("seq_printf", &[0, fmt, 6, args, 16]), 0);
        assert_eq!(p.call("seq_write", &[0, text, 3]), 0);
        assert_eq!(p.call("bpf_stream_vprintk", &[1, fmt, args, 16]), 5);
        assert_eq!(
            p.call("bpf_stream_vprintk", &[3, fmt, args, 16]),
            err(Errno::ENOENT)
        );
    });
    assert_eq!(rig.vm.state.seq_output(), b"7 abcabc");
}

#[test]
fn comparing() {
    let mut rig = Rig::bare(&[]);
    rig.run(|p| {
        let a = p.put(0, b"abcd\0");
        let b = p.put(8, b"abce\0");
        let c = p.put(16, b"ab\0");
        assert_eq!(p.call("strncmp", &[a, 5, b]), -1);
        assert_eq!(p.call("strncmp", &[b, 5, a]), 1);
        assert_eq!(p.call("strncmp", &[a, 3, b]), 0);
        assert_eq!(p.call("strncmp", &[a, 5, c]), 1);
        assert_eq!(p.call("strncmp", &[c, 3, a]), -1);
        assert_eq!(p.call("strncmp", &[a, 5, a]), 0);
    });
}

#[test]
fn numbers_from_text() {
    /// Text, flags, result of `bpf_strtol`, its value; of `bpf_strtoul`, its value.
    type Case = (&'static [u8], u64, i64, i64, i64, u64);
    let cases: [Case; 14] = [
        (b"123", 0, 3, 123, 3, 123),
        (b"  -0x1f rest", 0, 7, -31, -22, 0),
        (b"0x1F", 16, 4, 31, 4, 31),
        (b"017", 0, 3, 15, 3, 15),
        (b"09", 0, 1, 0, 1, 0),
        (b"0xg", 0, 1, 0, 1, 0),
        (b"12z", 10, 2, 12, 2, 12),
        (b"-", 0, -22, 0, -22, 0),
        (b"  ", 0, -22, 0, -22, 0),
        (b"zz", 0, -22, 0, -22, 0),
        (b"7", 7, -22, 0, -22, 0),
        (b"7", 32, -22, 0, -22, 0),
        (b"9223372036854775808", 0, -34, 0, 19, 1 << 63),
        (b"18446744073709551616", 0, -34, 0, -34, 0),
    ];
    let mut rig = Rig::bare(&[]);
    rig.run(|p| {
        let res = p.stack + 64;
        for (text, flags, long, long_value, unsigned, unsigned_value) in cases {
            let buf = p.put(0, text);
            let name = String::from_utf8_lossy(text);
            assert_eq!(
                p.call("strtol", &[buf, text.len() as u64, flags, res]),
                long,
                "strtol {name}"
            );
            assert_eq!(p.u64_at(res) as i64, long_value, "strtol {name}");
            assert_eq!(
                p.call("strtoul", &[buf, text.len() as u64, flags, res]),
                unsigned,
                "strtoul {name}"
            );
            assert_eq!(p.u64_at(res), unsigned_value, "strtoul {name}");
        }
        let buf = p.put(0, b"-9223372036854775808");
        assert_eq!(p.call("strtol", &[buf, 20, 0, res]), 20);
        assert_eq!(p.u64_at(res) as i64, i64::MIN);
    });
}

#[test]
fn probing() {
    let mut rig = Rig::bare(&[map(MapType::Array, 4, 8, 2)]);
    let known = rig.input.add_memory(b"known\0text", false).unwrap();
    rig.run(|p| {
        let out = p.put(0, &[0xff; 16]);
        assert_eq!(p.call("probe_read_kernel", &[out, 6, known]), 0);
        assert_eq!(p.bytes(out, 7), b"known\0\xff");
        for bad in [0, 8, u64::MAX - 3, known + 5] {
            p.put(0, &[0xff; 8]);
            assert_eq!(
                p.call("probe_read", &[out, 8, bad]),
                err(Errno::EFAULT),
                "{bad:#x}"
            );
            assert_eq!(p.bytes(out, 8), [0; 8], "zeroed");
        }
        assert_eq!(
            p.call("probe_read_user", &[out, 0, 0]),
            0,
            "nothing to read"
        );
        assert_eq!(p.call("probe_read_kernel_str", &[out, 16, known]), 6);
        p.put(0, &[0xff; 16]);
        assert_eq!(p.call("probe_read_kernel_str", &[out, 3, known]), 3);
        assert_eq!(p.bytes(out, 4), b"kn\0\xff");
        assert_eq!(
            p.call("probe_read_user_str", &[out, 8, 16]),
            err(Errno::EFAULT)
        );
        assert_eq!(
            p.call("probe_read_kernel_str", &[out, 16, known + 6]),
            err(Errno::EFAULT),
            "no NUL"
        );
        assert_eq!(
            p.call("copy_from_user_task", &[out, 4, known, 0, 1]),
            err(Errno::EINVAL)
        );
        assert_eq!(p.call("copy_from_user", &[out, 4, known]), 0);
        p.faults("probe_read_kernel", &[known, 4, out]);
        assert_eq!(p.call("bpf_copy_from_user_str", &[out, 16, known, 1]), 6);
        assert_eq!(p.bytes(out, 16), b"known\0\0\0\0\0\0\0\0\0\0\0");
        assert_eq!(
            p.call("bpf_copy_from_user_str", &[out, 16, known, 2]),
            err(Errno::EINVAL)
        );
    });
}

#[test]
fn dynamic_pointers() {
    let mut rig = Rig::bare(&[]);
    rig.run(|p| {
        let (d, buf) = (p.stack, p.stack + 32);
        let data = p.put(64, b"0123456789");
        assert_eq!(
            p.call("dynptr_from_mem", &[data, 10, 1, d]),
            err(Errno::EINVAL)
        );
        assert_eq!(p.call("bpf_dynptr_is_null", &[d]), 1);
        assert_eq!(
            p.call("dynptr_from_mem", &[data, 1 << 24, 0, d]),
            err(Errno::E2BIG)
        );
        assert_eq!(
            p.call("dynptr_read", &[buf, 1, d, 0, 0]),
            err(Errno::EINVAL),
            "null"
        );
        assert_eq!(p.call("bpf_dynptr_size", &[d]), err(Errno::EINVAL));
        assert_eq!(p.call("dynptr_from_mem", &[data, 10, 0, d]), 0);
        assert_eq!(p.call("bpf_dynptr_size", &[d]), 10);
        assert_eq!(p.call("dynptr_read", &[buf, 4, d, 3, 0]), 0);
        assert_eq!(p.bytes(buf, 4), b"3456");
        assert_eq!(p.call("dynptr_read", &[buf, 4, d, 7, 0]), err(Errno::E2BIG));
        assert_eq!(
            p.call("dynptr_read", &[buf, 4, d, 0, 1]),
            err(Errno::EINVAL)
        );
        assert_eq!(p.call("dynptr_write", &[d, 8, buf, 2, 0]), 0);
        assert_eq!(
            p.call("dynptr_write", &[d, 9, buf, 2, 0]),
            err(Errno::E2BIG)
        );
        assert_eq!(
            p.call("dynptr_write", &[d, 0, buf, 2, 1]),
            err(Errno::EINVAL)
        );
        assert_eq!(p.bytes(data, 10), b"0123456734");
        assert_eq!(p.call("dynptr_data", &[d, 2, 8]) as u64, data + 2);
        assert_eq!(p.call("dynptr_data", &[d, 3, 8]), 0);
        // Windows.
        assert_eq!(
            p.call("bpf_dynptr_adjust", &[d, 11, 11]),
            err(Errno::ERANGE)
        );
        assert_eq!(p.call("bpf_dynptr_adjust", &[d, 3, 2]), err(Errno::EINVAL));
        assert_eq!(p.call("bpf_dynptr_adjust", &[d, 2, 6]), 0);
        assert_eq!(p.call("bpf_dynptr_size", &[d]), 4);
        assert_eq!(p.call("bpf_dynptr_slice", &[d, 1, 0, 3]) as u64, data + 3);
        assert_eq!(p.call("bpf_dynptr_slice", &[d, 2, 0, 3]), 0);
        let clone = p.stack + 16;
        assert_eq!(p.call("bpf_dynptr_clone", &[d, clone]), 0);
        assert_eq!(
            p.call("bpf_dynptr_memset", &[clone, 0, 4, u64::from(b'x')]),
            0
        );
        assert_eq!(
            p.call("bpf_dynptr_memset", &[clone, 1, 4, 0]),
            err(Errno::E2BIG)
        );
        assert_eq!(p.bytes(data, 10), b"01xxxx6734");
        assert_eq!(p.call("bpf_dynptr_is_rdonly", &[d]), 0);
        let other = p.put(96, b"..........");
        assert_eq!(p.call("dynptr_from_mem", &[other, 10, 0, clone]), 0);
        assert_eq!(p.call("bpf_dynptr_copy", &[clone, 3, d, 0, 4]), 0);
        assert_eq!(p.bytes(other, 10), b"...xxxx...");
        assert_eq!(
            p.call("bpf_dynptr_copy", &[clone, 7, d, 0, 4]),
            err(Errno::E2BIG)
        );
        // A forged pointer is checked like any other.
        p.put(0, &8u64.to_ne_bytes());
        p.faults("dynptr_read", &[buf, 4, d, 0, 0]);
    });
}

#[test]
fn dynamic_pointers_to_packets() {
    let packet: Vec<u8> = (0..100).collect();
    let mut rig = Rig::packet(ProgType::SchedCls, &packet);
    rig.run(|p| {
        let (d, buf) = (p.stack, p.stack + 32);
        assert_eq!(
            p.call("bpf_dynptr_from_skb", &[p.ctx, 1, d]),
            err(Errno::EINVAL)
        );
        assert_eq!(p.call("bpf_dynptr_from_skb", &[p.ctx, 0, d]), 0);
        assert_eq!(p.call("bpf_dynptr_size", &[d]), 100);
        assert_eq!(p.call("dynptr_read", &[buf, 4, d, 50, 0]), 0);
        assert_eq!(p.bytes(buf, 4), [50, 51, 52, 53]);
        let (data, _) = p.window(76, 80);
        assert_eq!(
            p.call("bpf_dynptr_slice", &[d, 14, buf, 20]) as u64,
            data + 14
        );
        assert_eq!(
            p.call("dynptr_data", &[d, 0, 4]),
            0,
            "packets have slices only"
        );
        assert_eq!(p.call("dynptr_write", &[d, 0, buf, 4, 0]), 0);
        assert_eq!(p.bytes(data, 5), [50, 51, 52, 53, 4]);
        assert_eq!(p.call("bpf_dynptr_memset", &[d, 1, 99, 9]), 0);
        assert_eq!(p.bytes(data, 3), [50, 9, 9]);
    });
    let mut rig = Rig::packet(ProgType::CgroupSkb, &packet);
    rig.run(|p| {
        let (d, buf) = (p.stack, p.stack + 32);
        assert_eq!(p.call("bpf_dynptr_from_skb", &[p.ctx, 0, d]), 0);
        assert_eq!(p.call("bpf_dynptr_is_rdonly", &[d]), 1);
        assert_eq!(
            p.call("dynptr_write", &[d, 0, buf, 4, 0]),
            err(Errno::EINVAL)
        );
        assert_eq!(p.call("bpf_dynptr_slice_rdwr", &[d, 0, buf, 4]), 0);
        assert_ne!(p.call("bpf_dynptr_slice", &[d, 0, buf, 4]), 0);
    });
    let long: Vec<u8> = (0..5000u32).map(|i| i as u8).collect();
    let mut rig = Rig::packet(ProgType::Xdp, &long);
    rig.run(|p| {
        let (d, buf) = (p.stack, p.stack + 32);
        assert_eq!(p.call("bpf_dynptr_from_xdp", &[p.ctx, 0, d]), 0);
        assert_eq!(p.call("bpf_dynptr_size", &[d]), 5000);
        // Across the first part and the fragment: a copy, if there is room for one.
        assert_eq!(p.call("bpf_dynptr_slice", &[d, 3518, 0, 4]), 0);
        assert_eq!(p.call("bpf_dynptr_slice", &[d, 3518, buf, 4]) as u64, buf);
        assert_eq!(p.bytes(buf, 4), &long[3518..3522]);
        assert_eq!(
            p.call("dynptr_write", &[d, 0, buf, 4, 1]),
            err(Errno::EINVAL)
        );
    });
}
