//! Writes the capture that the README's tour runs on: made traffic, the same for
//! the same arguments.
//!
//!     cargo run --release --example make_capture -- examples/traffic.pcap [PACKETS]

use std::fs::File;
use std::io::BufWriter;
use std::time::Duration;

use etherparse::PacketBuilder;
use pcap_file::pcap::{PcapHeader, PcapPacket, PcapWriter};

/// A small generator (xorshift64*): the capture must not change with a library.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn port(&mut self) -> u16 {
        32768 + self.below(28000) as u16
    }
}

const HOST: [u8; 4] = [192, 0, 2, 10];
const HOST6: [u8; 16] = [0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10];
const ROUTER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const HOST_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];

fn packet(random: &mut Random) -> Vec<u8> {
    let ethernet = PacketBuilder::ethernet2(ROUTER_MAC, HOST_MAC);
    let client = [198, 51, 100, random.below(40) as u8];
    let scanner = [203, 0, 113, random.below(8) as u8];
    let client6 = {
        let mut address = HOST6;
        address[15] = random.below(200) as u8;
        address
    };
    let mut payload = vec![0u8; random.below(600) as usize];
    for byte in &mut payload {
        *byte = random.next() as u8;
    }
    let mut out = Vec::new();
    match random.below(100) {
        0..=44 => ethernet
            .ipv4(client, HOST, 64)
            .tcp(random.port(), 443, random.next() as u32, 64240)
            .ack(random.next() as u32)
            .write(&mut out, &payload),
        45..=54 => ethernet
            .ipv4(client, HOST, 64)
            .tcp(random.port(), 22, random.next() as u32, 64240)
            .syn()
            .write(&mut out, &[]),
        55..=64 => ethernet
            .ipv4([192, 0, 2, 53], HOST, 64)
            .udp(53, random.port())
            .write(&mut out, &payload),
        65..=74 => ethernet
            .ipv4(scanner, HOST, 51)
            .tcp(
                random.port(),
                random.below(65535) as u16,
                random.next() as u32,
                1024,
            )
            .syn()
            .write(&mut out, &[]),
        75..=79 => ethernet
            .ipv4(
                [10, 66, random.below(4) as u8, random.below(255) as u8],
                HOST,
                40,
            )
            .udp(random.port(), 123)
            .write(&mut out, &payload),
        80..=84 => ethernet
            .ipv4(client, HOST, 64)
            .icmpv4_echo_request(7, 1)
            .write(&mut out, &payload),
        85..=94 => ethernet
            .ipv6(client6, HOST6, 60)
            .tcp(random.port(), 443, random.next() as u32, 64240)
            .ack(1)
            .write(&mut out, &payload),
        95..=97 => return arp(client),
        _ => {
            // Cut short on the wire: Ethernet and half an IPv4 header.
            let cut = ethernet.ipv4(client, HOST, 64).udp(random.port(), 53);
            return cut
                .write(&mut out, &[0; 16])
                .map(|()| out[..24].to_vec())
                .expect("in memory");
        }
    }
    .expect("writing a packet to memory");
    out
}

fn arp(sender: [u8; 4]) -> Vec<u8> {
    let mut frame = Vec::new();
    frame.extend([0xff; 6]);
    frame.extend(ROUTER_MAC);
    frame.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
    frame.extend(ROUTER_MAC);
    frame.extend(sender);
    frame.extend([0; 6]);
    frame.extend(HOST);
    frame
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments
        .next()
        .ok_or("usage: make_capture FILE [PACKETS]")?;
    let packets: u64 = arguments.next().map_or(Ok(1000), |count| count.parse())?;
    let header = PcapHeader::default();
    let mut writer = PcapWriter::with_header(BufWriter::new(File::create(path)?), header)?;
    let mut random = Random(0x6270_666b_6974);
    let mut time = Duration::from_secs(1_788_000_000);
    for _ in 0..packets {
        let data = packet(&mut random);
        time += Duration::from_micros(20 + random.below(900));
        writer.write_packet(&PcapPacket::new(time, data.len() as u32, &data))?;
    }
    Ok(())
}
