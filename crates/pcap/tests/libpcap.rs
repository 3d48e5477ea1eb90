//! The library as it is installed here.

use bpfkit_classic::{Program, Rules};
use bpfkit_pcap::{CompileOptions, Libpcap};

fn libpcap() -> Option<Libpcap> {
    match Libpcap::load() {
        Ok(libpcap) => Some(libpcap),
        Err(error) => {
            println!("skipped: {error}");
            None
        }
    }
}

#[test]
fn compiles_and_runs() {
    let Some(libpcap) = libpcap() else { return };
    assert!(libpcap.version().contains("pcap"), "{}", libpcap.version());
    let insns = libpcap
        .compile("arp", &CompileOptions::default())
        .expect("an expression");
    let program = Program::new(&insns, Rules::Libpcap).expect("libpcap's programs are right");
    let reference = libpcap.reference(&program).expect("a valid program");
    let mut packet = [0u8; 60];
    packet[12..14].copy_from_slice(&[8, 6]);
    assert_eq!(reference.run(&packet, 60), 262_144);
    packet[13] = 0;
    assert_eq!(reference.run(&packet, 60), 0);
    assert_eq!(reference.run(&[], 0), 0);
}

#[test]
fn knows_link_types() {
    let Some(libpcap) = libpcap() else { return };
    assert_eq!(libpcap.link_by_name("EN10MB"), Some(1));
    assert_eq!(libpcap.link_by_name("no such thing"), None);
    assert_eq!(libpcap.link_name(1).as_deref(), Some("EN10MB"));
    assert_eq!(libpcap.link_name(-5), None);
    let raw = CompileOptions {
        link: 12,
        ..CompileOptions::default()
    };
    let ethernet = libpcap.compile("ip", &CompileOptions::default());
    assert_ne!(libpcap.compile("ip", &raw), ethernet);
}

#[test]
fn says_where_an_expression_is_wrong() {
    let Some(libpcap) = libpcap() else { return };
    let cases = [
        ("tcp prot 22", "prot"),
        ("tcp port port", "port"),
        ("host 10.0.0.1 and and tcp", "and"),
        ("tcp and (udp or", ""),
        ("(tcp", ""),
        ("tcp port 22)", ")"),
        ("ip[0", ""),
        ("ip[0:3] = 1", "3"),
        ("tcp[tcpflags & 2 != 0", "!="),
        ("port 70000", "70000"),
        ("src port nosuchservice", "nosuchservice"),
        ("ether host 1.2.3.4", "1.2.3.4"),
        ("vlan 5000", "5000"),
        ("tcp ? udp", "?"),
    ];
    for (expression, expected) in cases {
        let error = libpcap
            .compile(expression, &CompileOptions::default())
            .expect_err(expression);
        let place = error.place.map(|place| &expression[place.bytes]);
        assert_eq!(place, Some(expected), "{expression}: {}", error.message);
    }
}
