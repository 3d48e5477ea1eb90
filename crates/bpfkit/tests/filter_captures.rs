//! What `bpfkit filter -r IN -w OUT EXPRESSION` writes is what `tcpdump -r IN -w OUT EXPRESSION`
//! writes, byte by byte, for captures of every kind, right and wrong.

#[path = "../../classic/tests/support/mod.rs"]
mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use support::{Random, packet};

/// A capture file's layout.
#[derive(Clone, Copy, Debug)]
struct Kind {
    magic: u32,
    version: (u16, u16),
    big_endian: bool,
    snaplen: u32,
    link: u32,
}

const MICRO: u32 = 0xa1b2_c3d4;
const NANO: u32 = 0xa1b2_3c4d;
const KUZNETZOV: u32 = 0xa1b2_cd34;

const PLAIN: Kind = Kind {
    magic: MICRO,
    version: (2, 4),
    big_endian: false,
    snaplen: 65535,
    link: 1,
};

impl Kind {
    fn word(self, value: u32) -> [u8; 4] {
        match self.big_endian {
            true => value.to_be_bytes(),
            false => value.to_le_bytes(),
        }
    }

    fn half(self, value: u16) -> [u8; 2] {
        match self.big_endian {
            true => value.to_be_bytes(),
            false => value.to_le_bytes(),
        }
    }

    fn file(self, random: &mut Random, packets: usize) -> Vec<u8> {
        let mut file = self.word(self.magic).to_vec();
        file.extend(self.half(self.version.0));
        file.extend(self.half(self.version.1));
        for field in [0, 0, self.snaplen, self.link] {
            file.extend(self.word(field));
        }
        for i in 0..packets {
            let data = packet(random);
            let more = random.pick(&[0, 0, 0, 100]);
            let mut lengths = [data.len() as u32, data.len() as u32 + more];
            if self.version.1 < 3 || self.version == (543, 0) {
                lengths.reverse();
            }
            let fraction = match random.below(20) {
                0 => random.next(),
                _ => random.below(1_000_000),
            };
            for field in [1_700_000_000 + i as u32, fraction, lengths[0], lengths[1]] {
                file.extend(self.word(field));
            }
            if self.magic == KUZNETZOV {
                file.extend([1, 0, 0, 0, 8, 0, 0, 0]);
            }
            file.extend(data);
        }
        file
    }
}

/// A pcapng file with interfaces that count time differently.
fn pcapng(random: &mut Random, big_endian: bool, packets: usize) -> Vec<u8> {
    let kind = Kind {
        big_endian,
        ..PLAIN
    };
    let block = |code: u32, body: Vec<u8>| {
        let mut body = body;
        body.resize(body.len().next_multiple_of(4), 0);
        let len = kind.word(body.len() as u32 + 12);
        [&kind.word(code)[..], &len, &body, &len].concat()
    };
    let mut section = kind.word(0x1a2b_3c4d).to_vec();
    section.extend(kind.half(1));
    section.extend(kind.half(0));
    section.extend([0xff; 8]);
    let mut file = block(0x0a0d_0d0a, section);
    let resolutions: &[&[u8]] = &[&[], &[9], &[3], &[0x80 | 20], &[0x80 | 10], &[12]];
    for resolution in resolutions {
        let mut body = kind.half(1).to_vec();
        body.extend(kind.half(0));
        body.extend(kind.word(262_144));
        if let [value] = resolution {
            body.extend(kind.half(9));
            body.extend(kind.half(1));
            body.extend([*value, 0, 0, 0]);
            body.extend(kind.half(0));
            body.extend(kind.half(0));
        }
        file.extend(block(1, body));
    }
    for _ in 0..packets {
        let data = packet(random);
        match random.below(8) {
            0 => {
                let mut body = kind.word(data.len() as u32).to_vec();
                body.extend(&data);
                file.extend(block(3, body));
            }
            1 => file.extend(block(5, vec![0; 12])),
            _ => {
                let mut body = Vec::new();
                for field in [
                    random.below(resolutions.len() as u32),
                    random.below(400_000),
                    random.next(),
                    data.len() as u32,
                    data.len() as u32 + random.pick(&[0, 0, 50]),
                ] {
                    body.extend(kind.word(field));
                }
                body.extend(&data);
                file.extend(block(6, body));
            }
        }
    }
    file
}

struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Place {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::create_dir_all(&path).expect("a folder for captures");
        Place(path)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn ours(&self, options: &[&str], expression: &str) -> Output {
        Command::new(env!("CARGO_BIN_EXE_bpfkit"))
            .arg("filter")
            .args(options)
            .arg("-r")
            .arg(self.path("in"))
            .arg("-w")
            .arg(self.path("ours"))
            .arg(expression)
            .output()
            .expect("bpfkit runs")
    }

    fn theirs(&self, options: &[&str], expression: &str) -> Option<Output> {
        Command::new("tcpdump")
            .args(options)
            .arg("-r")
            .arg(self.path("in"))
            .arg("-w")
            .arg(self.path("theirs"))
            .arg(expression)
            .output()
            .ok()
    }

    /// Filters a capture both ways; says whether tcpdump is there.
    fn compare(&self, capture: &[u8], options: &[&str], expression: &str, what: &str) -> bool {
        fs::write(self.path("in"), capture).expect("the capture is written");
        for name in ["ours", "theirs"] {
            let _ = fs::remove_file(self.path(name));
        }
        let Some(theirs) = self.theirs(options, expression) else {
            return false;
        };
        let ours = self.ours(options, expression);
        let text = |output: &Output| String::from_utf8_lossy(&output.stderr).into_owned();
        let [a, b] = ["ours", "theirs"].map(|name| fs::read(self.path(name)).unwrap_or_default());
        let differ = a.iter().zip(&b).position(|(a, b)| a != b);
        assert!(
            a == b,
            "{what} {options:?} {expression}: {} and {} bytes, different at {differ:?}: {} — {}",
            a.len(),
            b.len(),
            text(&ours),
            text(&theirs)
        );
        assert_eq!(
            ours.status.success(),
            theirs.status.success(),
            "{what} {options:?} {expression}: {} — {}",
            text(&ours),
            text(&theirs)
        );
        if !theirs.status.success() {
            assert_eq!(ours.status.code(), Some(2), "{what}: {}", text(&ours));
        }
        true
    }
}

const KINDS: &[Kind] = &[
    PLAIN,
    Kind {
        magic: NANO,
        ..PLAIN
    },
    Kind {
        big_endian: true,
        ..PLAIN
    },
    Kind {
        magic: NANO,
        big_endian: true,
        ..PLAIN
    },
    Kind {
        magic: KUZNETZOV,
        ..PLAIN
    },
    Kind {
        version: (2, 3),
        ..PLAIN
    },
    Kind {
        version: (2, 2),
        ..PLAIN
    },
    Kind {
        version: (543, 0),
        ..PLAIN
    },
    Kind {
        version: (2, 5),
        ..PLAIN
    },
    Kind {
        version: (1, 0),
        ..PLAIN
    },
    Kind {
        snaplen: 40,
        ..PLAIN
    },
    Kind {
        snaplen: 40,
        big_endian: true,
        ..PLAIN
    },
    Kind {
        snaplen: 0,
        ..PLAIN
    },
    Kind {
        snaplen: 0xffff_ffff,
        ..PLAIN
    },
    Kind { link: 101, ..PLAIN },
    Kind { link: 12, ..PLAIN },
    Kind { link: 113, ..PLAIN },
    Kind {
        link: 0x1400_0001,
        ..PLAIN
    },
    Kind { link: 127, ..PLAIN },
];

#[test]
fn captures_of_every_kind_are_written_as_tcpdump_writes_them() {
    let place = Place::new("filter-kinds");
    let mut random = Random(0xca97_0e5e_ed00_0001);
    for kind in KINDS {
        let capture = kind.file(&mut random, 300);
        for options in [&[][..], &["--nano"], &["-c", "7"]] {
            for expression in ["", "ip", "len > 100"] {
                if !place.compare(&capture, options, expression, &format!("{kind:?}")) {
                    return println!("skipped: no tcpdump");
                }
            }
        }
    }
    for big_endian in [false, true] {
        let capture = pcapng(&mut random, big_endian, 300);
        for options in [&[][..], &["--nano"]] {
            for expression in ["", "tcp", "not ip"] {
                place.compare(&capture, options, expression, "pcapng");
            }
        }
    }
}

#[test]
fn damaged_captures_end_where_tcpdump_ends() {
    let place = Place::new("filter-damaged");
    let mut random = Random(0xdead_5eed_0000_0003);
    for i in 0..150 {
        let mut capture = match i % 3 {
            0 => random.pick(KINDS).file(&mut random, 12),
            1 => pcapng(&mut random, false, 12),
            _ => PLAIN.file(&mut random, 12),
        };
        // Behind the first header, whose errors have other words.
        let from = match i % 3 {
            1 => 48,
            _ => 24,
        };
        if random.one_in(2) {
            let len = from + random.below((capture.len() - from) as u32 + 1) as usize;
            capture.truncate(len);
        }
        for _ in 0..random.below(3) {
            if capture.len() > from {
                let at = from + random.below((capture.len() - from) as u32) as usize;
                capture[at] = random.next() as u8;
            }
        }
        if !place.compare(&capture, &[], "ip or arp", &format!("damaged {i}")) {
            return println!("skipped: no tcpdump");
        }
    }
}

#[test]
fn a_truncated_capture_gives_what_was_read() {
    let place = Place::new("filter-truncated");
    if bpfkit::pcap::Libpcap::load().is_err() {
        return println!("skipped: no libpcap");
    }
    let mut capture = PLAIN.file(&mut Random(1), 3);
    let whole = capture.len();
    capture.extend([1, 2, 3, 4, 5]);
    fs::write(place.path("in"), &capture).expect("the capture is written");
    let output = place.ours(&[], "");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(
        text.contains(&format!(
            "broke off after 3 packets, at byte {whole}: truncated dump file; tried to read 16 header bytes, only got 5"
        )),
        "{text}"
    );
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(
        fs::read(place.path("ours")).expect("a capture"),
        capture[..whole]
    );
}
