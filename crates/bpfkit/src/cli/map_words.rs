//! Map contents on the command line and in reports: `--map`, changes, dumps.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::path::Path;

use bpfkit_btf::Btf;
use bpfkit_maps::Map;
use bpfkit_object::MapDef;
use bpfkit_runtime::MapSet;
use bpfkit_spec::MapType;
use serde::Serialize;
use serde_json::Value;

use crate::cli::failure::{Failure, Result};
use crate::cli::files;
use crate::cli::values::Layout;

/// Maps with more elements than this are compared by their number of elements only.
const COMPARED: usize = 1 << 16;

/// A map with what it takes to read and write its elements as JSON.
pub struct View<'a> {
    pub def: &'a MapDef,
    pub map: &'a Map,
    key: Layout<'a>,
    value: Layout<'a>,
}

/// An element as reports show it.
#[derive(Serialize)]
pub struct Element {
    pub key: Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<Value>,
    /// Every CPU's value, of per-CPU maps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub values: Option<Vec<Value>>,
}

/// A map with all of its elements.
#[derive(Serialize)]
pub struct Dump {
    pub name: String,
    #[serde(rename = "type")]
    pub map_type: &'static str,
    pub elements: Vec<Element>,
}

impl<'a> View<'a> {
    /// Views of all maps of a set, in the object's order.
    pub fn all(maps: &'a MapSet, btf: Option<&'a Btf>) -> Vec<View<'a>> {
        let pairs = maps.defs().iter().zip(maps.iter());
        pairs.map(|(def, map)| View::new(def, map, btf)).collect()
    }

    fn new(def: &'a MapDef, map: &'a Map, btf: Option<&'a Btf>) -> Self {
        let prefix = def.map_type == MapType::LpmTrie;
        View {
            def,
            map,
            key: Layout::new(btf, def.key_type_id, def.key_size, prefix),
            value: Layout::new(btf, def.value_type_id, def.value_size, false),
        }
    }

    fn per_cpu(&self) -> bool {
        matches!(
            self.def.map_type,
            MapType::PercpuArray
                | MapType::PercpuHash
                | MapType::LruPercpuHash
                | MapType::PercpuCgroupStorage
        )
    }

    fn queue_like(&self) -> bool {
        matches!(
            self.def.map_type,
            MapType::Queue | MapType::Stack | MapType::BloomFilter
        )
    }

    /// Whether the map holds values that a person may want to see.
    pub fn readable(&self) -> bool {
        use MapType::*;
        !matches!(
            self.def.map_type,
            ProgArray
                | PerfEventArray
                | CgroupArray
                | ArrayOfMaps
                | HashOfMaps
                | Ringbuf
                | UserRingbuf
                | Arena
                | StructOps
                | BloomFilter
                | Queue
                | Stack
                | Sockmap
                | Sockhash
                | ReuseportSockarray
        )
    }

    fn element(&self, key: &[u8], value: &[u8]) -> Element {
        let key = self.key.decode(key);
        if !self.per_cpu() {
            return Element {
                key,
                value: Some(self.value.decode(value)),
                values: None,
            };
        }
        let size = self.value.size;
        let slots = value.chunks(size.next_multiple_of(8).max(8));
        let values = slots
            .map(|slot| self.value.decode(&slot[..size.min(slot.len())]))
            .collect();
        Element {
            key,
            value: None,
            values: Some(values),
        }
    }

    /// Every element.
    pub fn dump(&self) -> Dump {
        let mut elements = Vec::new();
        // A map that the host cannot walk over has no elements to show.
        let _ = self
            .map
            .for_each(|key, value| elements.push(self.element(key, value)));
        Dump {
            name: self.def.name.clone(),
            map_type: self.def.map_type.name(),
            elements,
        }
    }

    /// Stores what a `--map` option says.
    fn store(&self, key: &Value, value: &Value) -> std::result::Result<(), String> {
        let encoded = self.value.encode(value)?;
        if self.queue_like() {
            return self
                .map
                .write(&[], &encoded, 0)
                .map_err(|errno| errno.to_string());
        }
        let key = self.key.encode(key)?;
        let encoded = match self.per_cpu() {
            false => encoded,
            true => {
                let size = encoded.len().next_multiple_of(8);
                let mut slot = encoded;
                slot.resize(size, 0);
                slot.repeat(self.map.host_value_size() / size.max(1))
            }
        };
        self.map
            .write(&key, &encoded, 0)
            .map_err(|errno| errno.to_string())
    }

    fn store_word(&self, word: &str) -> std::result::Result<(), String> {
        if self.queue_like() {
            return self.store(&Value::Null, &parse_word(word));
        }
        // From the right: IPv6 addresses have colons too.
        let (key, value) = word.rsplit_once(':').ok_or("expected KEY:VALUE")?;
        self.store(&parse_word(key), &parse_word(value))
    }

    fn store_document(&self, document: &Value) -> std::result::Result<(), String> {
        let Value::Array(elements) = document else {
            return Err("expected a list of elements".to_owned());
        };
        for (at, element) in elements.iter().enumerate() {
            let stored = match (element.get("key"), element.get("value")) {
                (Some(key), Some(value)) => self.store(key, value),
                (None, Some(value)) if self.queue_like() => self.store(&Value::Null, value),
                _ => Err("expected {\"key\": …, \"value\": …}".to_owned()),
            };
            stored.map_err(|error| format!("element {}: {error}", at + 1))?;
        }
        Ok(())
    }
}

fn parse_word(word: &str) -> Value {
    let word = word.trim();
    serde_json::from_str(word).unwrap_or_else(|_| Value::String(word.to_owned()))
}

/// Applies one `--map NAME=…` option: `NAME=KEY:VALUE,KEY:VALUE` or `NAME=@FILE.json`.
pub fn apply(views: &[View<'_>], option: &str) -> Result {
    let wrong = |error: String| Failure::input(format!("--map {option}: {error}"));
    let (name, contents) = option
        .split_once('=')
        .ok_or_else(|| wrong("expected NAME=KEY:VALUE,… or NAME=@FILE".to_owned()))?;
    let view = views
        .iter()
        .find(|view| view.def.name == name)
        .ok_or_else(|| {
            let names: Vec<&str> = views.iter().map(|view| view.def.name.as_str()).collect();
            wrong(format!("no map {name:?}; there are: {}", names.join(", ")))
        })?;
    if let Some(path) = contents.strip_prefix('@') {
        let text = files::read_text(Path::new(path))?;
        let document: Value = serde_json::from_str(&text)
            .map_err(|error| Failure::input(format!("{path}: {error}")))?;
        return view
            .store_document(&document)
            .map_err(|error| Failure::input(format!("{path}: {error}")));
    }
    contents
        .split(',')
        .try_for_each(|word| view.store_word(word))
        .map_err(wrong)
}

/// What maps held at some time, to tell what changed since.
pub struct Snapshot {
    hasher: RandomState,
    /// For each map, a hash of the value by key; `None` for a map with too many elements.
    maps: Vec<Option<HashMap<Vec<u8>, u64>>>,
}

/// A map that a run changed.
#[derive(Serialize)]
pub struct Change {
    pub name: String,
    #[serde(rename = "type")]
    pub map_type: &'static str,
    /// Elements now.
    pub elements: u64,
    /// Elements that are new or have another value; `None` where too many to compare.
    pub changed: Option<u64>,
    /// Elements that are gone.
    pub removed: Option<u64>,
    /// Some of the changed ones.
    pub sample: Vec<Element>,
}

impl Snapshot {
    /// Remembers what the maps hold.
    pub fn take(views: &[View<'_>]) -> Self {
        let hasher = RandomState::new();
        let maps = views.iter().map(|view| {
            let mut values = HashMap::new();
            if view.readable() {
                let _ = view.map.for_each(|key, value| {
                    if values.len() <= COMPARED {
                        values.insert(key.to_vec(), hasher.hash_one(value));
                    }
                });
            }
            (values.len() <= COMPARED).then_some(values)
        });
        let maps = maps.collect();
        Snapshot { hasher, maps }
    }

    /// The maps that hold something else now, each with up to `sample` changed elements.
    pub fn changes(&self, views: &[View<'_>], sample: usize) -> Vec<Change> {
        let compare = |(view, before): (&View<'_>, &Option<HashMap<Vec<u8>, u64>>)| {
            let mut change = Change {
                name: view.def.name.clone(),
                map_type: view.def.map_type.name(),
                elements: 0,
                changed: before.as_ref().map(|_| 0),
                removed: None,
                sample: Vec::new(),
            };
            let mut kept = 0;
            let _ = view.map.for_each(|key, value| {
                change.elements += 1;
                let (Some(before), Some(changed)) = (before, &mut change.changed) else {
                    return;
                };
                let old = before.get(key);
                kept += u64::from(old.is_some());
                if old != Some(&self.hasher.hash_one(value)) {
                    *changed += 1;
                    if change.sample.len() < sample {
                        change.sample.push(view.element(key, value));
                    }
                }
            });
            change.removed = before.as_ref().map(|before| before.len() as u64 - kept);
            change
        };
        let pairs = views
            .iter()
            .zip(&self.maps)
            .filter(|(view, _)| view.readable());
        let changes = pairs.map(compare);
        changes
            .filter(|change| change.changed != Some(0) || change.removed != Some(0))
            .collect()
    }
}
