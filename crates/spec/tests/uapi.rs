//! Numbers and names against a `linux/bpf.h`, where one is found.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use bpfkit_spec::helper::HELPERS;
use bpfkit_spec::{AttachType, MapType, ProgType};

/// Headers that may be there: the kernel selftests' and the system's.
fn headers() -> Vec<PathBuf> {
    let selftests = std::env::var_os("BPFKIT_KERNEL_HEADERS").map(PathBuf::from);
    let home = std::env::var_os("HOME").map(|home| {
        Path::new(&home).join(".cache/kernel-selftests/linux/tools/include/uapi/linux/bpf.h")
    });
    let system = Some(PathBuf::from("/usr/include/linux/bpf.h"));
    let found: Vec<PathBuf> = [selftests, home, system]
        .into_iter()
        .flatten()
        .filter(|path| path.is_file())
        .collect();
    if found.is_empty() {
        println!("skipped: no linux/bpf.h");
    }
    found
}

/// The values of an enum in a C header, by name.
fn enum_values(header: &str, name: &str) -> BTreeMap<String, u32> {
    let start = header
        .find(&format!("enum {name} {{"))
        .expect("the header has it");
    let body = &header[start..];
    let body = &body[body.find('{').unwrap() + 1..body.find("};").unwrap()];
    let mut values = BTreeMap::new();
    let mut next = 0;
    for item in without_comments(body).split(',') {
        let (name, value) = match item.split_once('=') {
            Some((name, value)) => (name.trim(), Some(value.trim())),
            None => (item.trim(), None),
        };
        if name.is_empty() {
            continue;
        }
        let number = match value {
            Some(value) => match value.parse() {
                Ok(number) => number,
                Err(_) => values[value],
            },
            None => next,
        };
        values.insert(name.to_owned(), number);
        next = number + 1;
    }
    values
}

fn without_comments(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text;
    while let Some(start) = rest.find("/*") {
        plain += &rest[..start];
        rest = &rest[start + rest[start..].find("*/").expect("comments end") + 2..];
    }
    plain + rest
}

#[test]
fn enums_have_the_numbers_of_the_header() {
    for path in headers() {
        let header = std::fs::read_to_string(&path).expect("is readable");
        let mut asked = 0;
        macro_rules! check {
            ($($Enum:ident $name:literal)*) => {$(
                for (name, number) in enum_values(&header, $name) {
                    let marker = name.starts_with("__") || name.ends_with("_DEPRECATED");
                    // Another name of a value that follows.
                    if marker || name == "BPF_NETKIT_PEER" && number == 0 {
                        continue;
                    }
                    let value = $Enum::from_u32(number).unwrap_or_else(|| panic!("{name}"));
                    assert_eq!(value.uapi_name(), name, "{}", path.display());
                    asked += 1;
                }
            )*};
        }
        check!(ProgType "bpf_prog_type" AttachType "bpf_attach_type" MapType "bpf_map_type");
        println!("{}: {asked} numbers agree", path.display());
        assert!(asked > 80);
    }
}

#[test]
fn helpers_have_the_numbers_of_the_header() {
    for path in headers() {
        let header = std::fs::read_to_string(&path).expect("is readable");
        let mut asked = 0;
        let rows = header
            .lines()
            .filter_map(|line| line.trim().strip_prefix("FN("))
            .filter_map(|row| row.split_once(')'))
            .map(|(row, _)| row.split(',').map(str::trim).collect::<Vec<_>>());
        for row in rows {
            let [name, number, ..] = row[..] else {
                continue;
            };
            let Ok(number) = number.parse::<usize>() else {
                continue;
            };
            if number == 0 {
                continue;
            }
            assert_eq!(HELPERS[number - 1].name, name, "{}", path.display());
            asked += 1;
        }
        println!("{}: {asked} helpers agree", path.display());
        assert!(asked >= 200 || header.contains("FN(unspec),"), "{asked}");
    }
}
