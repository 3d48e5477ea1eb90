//! Clocks, tasks, cgroups, traced calls.

use super::*;
use crate::context::{Sysctl, TracedCall};
use crate::helpers::Effect;
use crate::host::Task;
use std::sync::atomic::Ordering;

#[test]
fn time_and_chance() {
    let mut rig = Rig::bare(&[]);
    rig.host.time.store(5_000_000_000, Ordering::Relaxed);
    rig.vm.cpu = 1;
    rig.run(|p| {
        for clock in [
            "ktime_get_ns",
            "ktime_get_boot_ns",
            "ktime_get_coarse_ns",
            "ktime_get_tai_ns",
        ] {
            assert_eq!(p.call(clock, &[]), 5_000_000_000);
        }
        assert_eq!(p.call("jiffies64", &[]), 0xffff_ffff - 300_000 + 1 + 5000);
        assert_eq!(p.call("get_smp_processor_id", &[]), 1);
        assert_eq!(p.call("get_numa_node_id", &[]), 0);
        let (a, b) = (
            p.call("get_prandom_u32", &[]),
            p.call("get_prandom_u32", &[]),
        );
        assert!(a != b && a >= 0 && a <= i64::from(u32::MAX));
    });
}

#[test]
fn the_task_is_configured() {
    let mut rig = Rig::bare(&[]);
    let task = Task {
        pid: 12,
        tgid: 10,
        uid: 1000,
        gid: 100,
        cgroup_id: 77,
        ancestor_cgroup_ids: vec![1, 50],
        ..Task::default()
    };
    rig.vm.host = Arc::new(FixedHost {
        task,
        ..FixedHost::default()
    });
    rig.run(|p| {
        assert_eq!(p.call("get_current_pid_tgid", &[]), 10 << 32 | 12);
        assert_eq!(p.call("get_current_uid_gid", &[]), 100 << 32 | 1000);
        let buf = p.put(0, &[0xff; 16]);
        assert_eq!(p.call("get_current_comm", &[buf, 5]), 0);
        assert_eq!(p.bytes(buf, 6), b"bpfk\0\xff");
        assert_eq!(p.call("get_current_comm", &[buf, 16]), 0);
        assert_eq!(p.bytes(buf, 16), b"bpfkit\0\0\0\0\0\0\0\0\0\0");
        assert_eq!(p.call("get_current_cgroup_id", &[]), 77);
        let ancestors =
            [0, 1, 2, 3, u64::MAX].map(|level| p.call("get_current_ancestor_cgroup_id", &[level]));
        assert_eq!(ancestors, [1, 50, 77, 0, 0]);
        assert_eq!(
            p.call("get_ns_current_pid_tgid", &[0, 0, buf, 7]),
            err(Errno::EINVAL)
        );
        assert_eq!(p.call("get_ns_current_pid_tgid", &[0, 0, buf, 8]), 0);
        assert_eq!(p.bytes(buf, 8), [12, 0, 0, 0, 10, 0, 0, 0]);
        assert_eq!(p.call("send_signal", &[65]), err(Errno::EINVAL));
        assert_eq!(p.call("send_signal", &[9]), 0);
    });
    assert_eq!(
        rig.vm.state.effects(),
        [Effect::Signal {
            signal: 9,
            thread: false
        }]
    );
}

#[test]
fn traced_calls() {
    let args: Vec<u8> = [11u64, 22, 33]
        .iter()
        .flat_map(|a| a.to_ne_bytes())
        .collect();
    let mut input = Input::context(ProgType::Tracing, &args).unwrap();
    input.set_traced_call(TracedCall {
        ip: 0x1234,
        args: 2,
        returned: true,
        cookie: 5,
    });
    let mut rig = Rig::new(ProgType::Tracing, &[], input);
    rig.run(|p| {
        let out = p.stack;
        assert_eq!(p.call("get_func_ip", &[p.ctx]), 0x1234);
        assert_eq!(p.call("get_attach_cookie", &[p.ctx]), 5);
        assert_eq!(p.call("get_func_arg_cnt", &[p.ctx]), 2);
        assert_eq!(p.call("get_func_arg", &[p.ctx, 1, out]), 0);
        assert_eq!(p.u64_at(out), 22);
        assert_eq!(p.call("get_func_arg", &[p.ctx, 2, out]), err(Errno::EINVAL));
        assert_eq!(p.call("get_func_ret", &[p.ctx, out]), 0);
        assert_eq!(p.u64_at(out), 33);
        assert_eq!(p.call("get_stack", &[p.ctx, out, 64, 0]), 8);
        assert_eq!(
            p.call("get_stack", &[p.ctx, out, 60, 0]),
            err(Errno::EINVAL)
        );
        assert_eq!(
            p.call("get_stack", &[p.ctx, out, 64, 1 << 8]),
            err(Errno::EFAULT)
        );
        assert_eq!(p.call("get_stack", &[p.ctx, out, 64, 1]), 0);
    });
    rig.input.set_traced_call(TracedCall::default());
    rig.run(|p| {
        assert_eq!(
            p.call("get_func_ret", &[p.ctx, p.stack]),
            err(Errno::EOPNOTSUPP)
        );
    });
}

#[test]
fn sysctls() {
    let mut input = Input::context(ProgType::CgroupSysctl, &[]).unwrap();
    input.set_sysctl(Sysctl {
        name: b"net/ipv4/tcp_mem".to_vec(),
        value: b"1 2 3\n".to_vec(),
        new_value: Some(b"4 5 6".to_vec()),
    });
    let mut rig = Rig::new(ProgType::CgroupSysctl, &[], input);
    rig.run(|p| {
        let (buf, ctx) = (p.stack, p.ctx);
        assert_eq!(p.call("sysctl_get_name", &[ctx, buf, 64, 0]), 16);
        assert_eq!(p.bytes(buf, 17), b"net/ipv4/tcp_mem\0");
        assert_eq!(p.call("sysctl_get_name", &[ctx, buf, 64, 1]), 7);
        assert_eq!(
            p.call("sysctl_get_name", &[ctx, buf, 64, 2]),
            err(Errno::EINVAL)
        );
        assert_eq!(
            p.call("sysctl_get_name", &[ctx, buf, 7, 1]),
            err(Errno::E2BIG)
        );
        assert_eq!(p.bytes(buf, 7), b"tcp_me\0");
        assert_eq!(p.call("sysctl_get_current_value", &[ctx, buf, 64]), 6);
        assert_eq!(p.call("sysctl_get_new_value", &[ctx, buf, 64]), 5);
        let new = p.put(64, b"600");
        assert_eq!(p.call("sysctl_set_new_value", &[ctx, new, 3]), 0);
        assert_eq!(p.call("sysctl_get_new_value", &[ctx, buf, 64]), 3);
        assert_eq!(p.bytes(buf, 4), b"600\0");
    });
    assert_eq!(rig.input.sysctl().new_value.as_deref(), Some(&b"600"[..]));
    rig.input.set_sysctl(Sysctl::default());
    rig.run(|p| {
        let (buf, ctx) = (p.stack, p.ctx);
        assert_eq!(
            p.call("sysctl_get_new_value", &[ctx, buf, 64]),
            err(Errno::EINVAL),
            "a read"
        );
        assert_eq!(
            p.call("sysctl_set_new_value", &[ctx, buf, 3]),
            err(Errno::EINVAL)
        );
    });
}

#[test]
fn sockets_options_and_binding() {
    let mut rig = Rig::bare(&[]);
    rig.run(|p| {
        let value = p.put(0, &7u32.to_ne_bytes());
        assert_eq!(p.call("setsockopt", &[p.ctx, 1, 8, value, 4]), 0);
        let out = p.put(8, &[0xff; 4]);
        assert_eq!(p.call("getsockopt", &[p.ctx, 1, 8, out, 4]), 0);
        assert_eq!(p.u32_at(out), 7);
        let addr = p.put(32, &[2, 0, 0, 80, 10, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(p.call("bind", &[p.ctx, addr, 15]), err(Errno::EINVAL));
        assert_eq!(p.call("bind", &[p.ctx, addr, 16]), 0);
        p.put(32, &[99, 0]);
        assert_eq!(p.call("bind", &[p.ctx, addr, 16]), -97);
        assert_eq!(p.call("get_retval", &[]), 0);
        assert_eq!(p.call("set_retval", &[-1i64 as u64]), 0);
        assert_eq!(p.call("get_retval", &[]), -1);
        assert_eq!(p.call("sys_bpf", &[0, 0, 0]), err(Errno::EPERM));
        assert_eq!(p.call("sys_close", &[3]), err(Errno::EBADF));
        let name = p.put(64, b"a\0");
        assert_eq!(
            p.call("kallsyms_lookup_name", &[name, 2, 0, out]),
            err(Errno::ENOENT)
        );
        assert_eq!(
            p.call("btf_find_by_name_kind", &[name, 1, 4, 0]),
            err(Errno::EINVAL)
        );
    });
}
