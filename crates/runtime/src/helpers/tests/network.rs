//! Where packets go.

use super::*;
use crate::engine::Redirect;
use crate::helpers::Effect;
use crate::host::Host;

#[test]
fn redirections_are_recorded() {
    let packet = [0; 64];
    let mut rig = Rig::packet(ProgType::Xdp, &packet);
    let outcome = rig.run(|p| {
        assert_eq!(p.call("redirect", &[5, 1]), 0, "XDP_ABORTED");
        assert_eq!(p.call("redirect", &[5, 0]), 4, "XDP_REDIRECT");
    });
    assert_eq!(
        outcome.redirect,
        Some(Redirect::Interface {
            ifindex: 5,
            flags: 0,
            peer: false
        })
    );
    let mut rig = Rig::packet(ProgType::SchedCls, &packet);
    let outcome = rig.run(|p| {
        assert_eq!(p.call("redirect", &[5, 2]), 2, "TC_ACT_SHOT");
        assert_eq!(p.call("redirect", &[5, 1]), 7, "TC_ACT_REDIRECT");
        assert_eq!(p.call("redirect_peer", &[6, 1]), 2);
        let params = p.put(0, &[0; 20]);
        assert_eq!(p.call("redirect_neigh", &[6, params, 19, 0]), 2);
        assert_eq!(p.call("redirect_neigh", &[6, params, 20, 1]), 2);
        assert_eq!(p.call("redirect_neigh", &[6, params, 20, 0]), 7);
        assert_eq!(p.call("redirect_peer", &[6, 0]), 7);
        assert_eq!(p.call("clone_redirect", &[p.ctx, 3, 2]), err(Errno::EINVAL));
        assert_eq!(p.call("clone_redirect", &[p.ctx, 0, 0]), err(Errno::EINVAL));
        assert_eq!(p.call("clone_redirect", &[p.ctx, 3, 1]), 0);
    });
    assert_eq!(
        outcome.redirect,
        Some(Redirect::Interface {
            ifindex: 6,
            flags: 0,
            peer: true
        })
    );
    let clone = Effect::Clone {
        ifindex: 3,
        flags: 1,
        packet: packet.to_vec(),
    };
    assert_eq!(rig.vm.state.effects(), [clone]);
}

#[test]
fn redirection_through_maps() {
    let defs = [
        map(MapType::Devmap, 4, 4, 4),
        map(MapType::Cpumap, 4, 4, 4),
        map(MapType::Array, 4, 4, 4),
    ];
    let mut rig = Rig::new(
        ProgType::Xdp,
        &defs,
        Input::packet(ProgType::Xdp, &[0; 64]).unwrap(),
    );
    rig.maps
        .get(0)
        .unwrap()
        .write(&1u32.to_ne_bytes(), &9u32.to_ne_bytes(), 0)
        .unwrap();
    let outcome = rig.run(|p| {
        let dev = p.map(0);
        assert_eq!(p.call("redirect_map", &[dev, 0, 2]), 2, "the flags' action");
        assert_eq!(p.call("redirect_map", &[dev, 0, 1 << 5]), 0, "XDP_ABORTED");
        assert_eq!(p.call("redirect_map", &[p.map(1), 0, 1 << 3]), 0);
        assert_eq!(p.call("redirect_map", &[dev, 1, 2]), 4);
        assert!(p.try_call("redirect_map", &[p.map(2), 0, 0]).is_err());
        assert_eq!(p.call("redirect_map", &[dev, 0, 1 << 3]), 4, "to all");
    });
    assert_eq!(
        outcome.redirect,
        Some(Redirect::Map {
            map: 0,
            key: 0,
            flags: 1 << 3
        })
    );
}

struct Routes;
impl Host for Routes {
    fn fib_lookup(&self, params: &mut [u8], _flags: u32) -> u32 {
        params[8] = 42;
        0
    }
    fn socket(&self, tuple: &[u8], protocol: u32) -> Option<[u8; 80]> {
        let mut sock = [0; 80];
        sock[4] = 2;
        sock[12] = protocol as u8;
        sock[72] = 10;
        (tuple[0] == 10).then_some(sock)
    }
}

#[test]
fn routes_and_sockets_are_the_hosts() {
    let mut rig = Rig::packet(ProgType::SchedCls, &[0; 64]);
    rig.run(|p| {
        let params = p.put(0, &[2; 64]);
        assert_eq!(
            p.call("fib_lookup", &[p.ctx, params, 63, 0]),
            err(Errno::EINVAL)
        );
        assert_eq!(
            p.call("fib_lookup", &[p.ctx, params, 64, 1 << 6]),
            err(Errno::EINVAL)
        );
        assert_eq!(
            p.call("fib_lookup", &[p.ctx, params, 64, 0]),
            4,
            "not forwarded"
        );
        p.put(0, &[9]);
        assert_eq!(p.call("fib_lookup", &[p.ctx, params, 64, 0]), -97);
        let tuple = p.put(64, &[10; 12]);
        assert_eq!(p.call("sk_lookup_tcp", &[p.ctx, tuple, 12, u64::MAX, 0]), 0);
    });
    rig.vm.host = Arc::new(Routes);
    rig.run(|p| {
        let params = p.put(0, &[2; 64]);
        assert_eq!(p.call("fib_lookup", &[p.ctx, params, 64, 0]), 0);
        assert_eq!(p.bytes(params + 8, 1), [42]);
        let tuple = p.put(64, &[10; 36]);
        for (size, netns, flags) in [(11, u64::MAX, 0), (12, u64::MAX, 1), (12, 1 << 32, 0)] {
            assert_eq!(
                p.call("sk_lookup_tcp", &[p.ctx, tuple, size, netns, flags]),
                0
            );
        }
        let sk = p.call("sk_lookup_tcp", &[p.ctx, tuple, 12, u64::MAX, 0]) as u64;
        assert_eq!(p.u32_at(sk + 4), 2);
        assert_eq!(p.call("sk_fullsock", &[sk]) as u64, sk);
        assert_eq!(p.call("get_listener_sock", &[sk]) as u64, sk);
        assert_eq!(p.call("tcp_sock", &[sk]) as u64, sk + 128);
        assert_eq!(p.call("sk_release", &[sk]), 0);
        assert!(p.env.read(sk, 4).is_err());
        let sk = p.call("sk_lookup_udp", &[p.ctx, tuple, 36, 0, 0]) as u64;
        assert_eq!(p.call("tcp_sock", &[sk]), 0);
        p.call("sk_release", &[sk]);
    });
}

#[test]
fn socket_lookup_assigns() {
    let mut ctx = [0; 72];
    ctx[8] = 2;
    let input = Input::context(ProgType::SkLookup, &ctx).unwrap();
    let mut rig = Rig::new(ProgType::SkLookup, &[], input);
    rig.run(|p| {
        assert_eq!(p.call("sk_assign", &[p.ctx, 0x1000, 4]), err(Errno::EINVAL));
        assert_eq!(p.call("sk_assign", &[p.ctx, 0x1000, 0]), 0);
        assert_eq!(p.u64_at(p.ctx), 0x1000);
        assert_eq!(p.call("sk_assign", &[p.ctx, 0x2000, 0]), err(Errno::EEXIST));
        assert_eq!(p.call("sk_assign", &[p.ctx, 0, 1]), 0);
        assert_eq!(p.u64_at(p.ctx), 0);
    });
    ctx[8] = 3;
    assert_eq!(
        Input::context(ProgType::SkLookup, &ctx)
            .unwrap_err()
            .errno(),
        Errno::EINVAL
    );
}

#[test]
fn syn_cookies_are_recognized() {
    let mut rig = Rig::packet(ProgType::SchedCls, &[0; 64]);
    rig.run(|p| {
        let ip = p.put(
            0,
            &[[0; 12], [10, 0, 0, 1, 10, 0, 0, 2, 0, 0, 0, 0]].concat()[..20],
        );
        // Ports, sequence 1000, data offset 6, SYN, and an option: segments of 1,460 bytes.
        let mut syn = [
            0x12, 0x34, 0, 80, 0, 0, 3, 232, 0, 0, 0, 0, 0x60, 2, 0, 0, 0, 0, 0, 0, 2, 4, 5, 0xb4,
        ];
        let tcp = p.put(32, &syn);
        assert_eq!(
            p.call("tcp_raw_gen_syncookie_ipv4", &[ip, tcp, 20]),
            err(Errno::EINVAL)
        );
        let cookie = p.call("tcp_raw_gen_syncookie_ipv4", &[ip, tcp, 24]) as u64;
        assert_eq!(cookie >> 32, 1460);
        syn[4..8].copy_from_slice(&1001u32.to_be_bytes());
        syn[8..12].copy_from_slice(&(cookie as u32).wrapping_add(1).to_be_bytes());
        p.put(32, &syn);
        assert_eq!(p.call("tcp_raw_check_syncookie_ipv4", &[ip, tcp]), 0);
        syn[8] ^= 1;
        p.put(32, &syn);
        assert_eq!(
            p.call("tcp_raw_check_syncookie_ipv4", &[ip, tcp]),
            err(Errno::EACCES)
        );
    });
}
