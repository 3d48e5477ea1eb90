//! `lpm-trie-memory`: what a full trie of addresses takes, by how the addresses lie.

use bpfkit_maps::{Map, MapParams, flags::BPF_F_NO_PREALLOC};
use bpfkit_spec::MapType;
use serde_json::json;

use crate::cli::bench::plot::{Bar, Plot};
use crate::cli::bench::{Answer, Arguments};
use crate::cli::failure::{Failure, Result};
use crate::cli::{objects, output};

/// Options of its own.
pub const OPTIONS: &[&str] = &["nr_entries"];

/// Entries unless `--nr_entries` says otherwise.
const ENTRIES: u32 = 1_000_000;

/// The address of a number: different numbers have different addresses.
type Address = fn(u32) -> u32;

/// How addresses lie.
const PATTERNS: &[(&str, Address)] = &[
    ("one after the other", |n| n),
    // Multiplying by an odd number moves every number to a place of its own.
    ("at random", |n| n.wrapping_mul(0x9e37_79b1)),
    ("two of each 256", |n| {
        (n / 2).wrapping_mul(0x9e37_79b1) << 8 | (n & 1)
    }),
];

/// Bytes of a trie with these addresses as prefixes of 32 bits.
fn bytes(entries: u32, address: Address) -> Result<u64> {
    let params = MapParams::new(MapType::LpmTrie, 8, 4, entries).with_flags(BPF_F_NO_PREALLOC);
    let map = Map::create(params).map_err(Failure::machine)?;
    let mut key = [0; 8];
    key[..4].copy_from_slice(&32u32.to_ne_bytes());
    for n in 0..entries {
        key[4..].copy_from_slice(&address(n).to_be_bytes());
        map.update(0, &key, &n.to_ne_bytes(), 0)
            .map_err(Failure::machine)?;
    }
    Ok(map.as_lpm().map_or(0, |trie| trie.memory_used()))
}

pub fn run(arguments: &Arguments, _: &objects::Kernel) -> Result<Answer> {
    let entries = arguments.nr_entries.unwrap_or(ENTRIES);
    if entries == 0 {
        return Err(Failure::input("--nr_entries 0: an empty trie"));
    }
    let mut rows = Vec::new();
    for (name, address) in PATTERNS {
        let bytes = bytes(entries, *address)?;
        rows.push((*name, bytes, bytes as f64 / f64::from(entries)));
    }
    let cells = rows
        .iter()
        .map(|(name, bytes, each)| [name.to_string(), bytes.to_string(), format!("{each:.1}")]);
    let text = output::render_table(&["addresses", "bytes", "bytes an entry"], cells);
    let objects = rows.iter().map(
        |(name, bytes, each)| json!({ "addresses": name, "bytes": bytes, "bytes_an_entry": each }),
    );
    let mut csv = "addresses,entries,bytes\n".to_owned();
    for (name, bytes, _) in &rows {
        csv += &format!("{name},{entries},{bytes}\n");
    }
    let bar = |value| Bar {
        series: "bpfkit".to_owned(),
        value,
        spread: 0.0,
    };
    let groups = rows
        .iter()
        .map(|(name, _, each)| (name.to_string(), vec![bar(*each)]));
    Ok(Answer {
        text: format!("{entries} entries\n{text}"),
        json: objects.collect(),
        csv,
        plot: Plot {
            title: "lpm-trie-memory".to_owned(),
            unit: "bytes an entry".to_owned(),
            groups: groups.collect(),
        },
    })
}
