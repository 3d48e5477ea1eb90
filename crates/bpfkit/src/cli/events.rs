//! Records that a program sends to its host: ring buffers and perf event arrays.

use bpfkit_maps::{Map, Progress};
use serde::Serialize;

use crate::cli::hex;
use crate::cli::map_words::View;

/// Records kept for the report, of each map.
const SAMPLE: usize = 4;
/// Bytes that wait in a perf event buffer before further records are lost.
const PERF_BUFFER: usize = 1 << 20;

/// Records of one map.
#[derive(Serialize)]
pub struct Events {
    pub name: String,
    #[serde(rename = "type")]
    pub map_type: &'static str,
    pub records: u64,
    pub bytes: u64,
    /// Records that found no room.
    pub lost: u64,
    /// The first ones, hex digits.
    pub sample: Vec<String>,
    #[serde(skip)]
    index: usize,
}

impl Events {
    fn add(&mut self, record: &[u8]) {
        self.records += 1;
        self.bytes += record.len() as u64;
        if self.sample.len() < SAMPLE {
            self.sample.push(hex::format(record));
        }
    }
}

/// Empties the buffers of all maps that have one, as a host's reader would.
pub struct Reader<'a> {
    maps: Vec<&'a Map>,
    events: Vec<Events>,
}

impl<'a> Reader<'a> {
    /// Opens the buffers of the maps.
    pub fn open(views: &[View<'a>]) -> Self {
        let mut reader = Reader {
            maps: Vec::new(),
            events: Vec::new(),
        };
        for view in views {
            if let Some(perf) = view.map.as_perf_events() {
                for index in 0..perf.entries() {
                    // A slot that cannot be opened counts its records as refused.
                    let _ = perf.open(index, PERF_BUFFER);
                }
            } else if view.map.as_ring().is_none() {
                continue;
            }
            reader.events.push(Events {
                name: view.def.name.clone(),
                map_type: view.def.map_type.name(),
                records: 0,
                bytes: 0,
                lost: 0,
                sample: Vec::new(),
                index: reader.maps.len(),
            });
            reader.maps.push(view.map);
        }
        reader
    }

    /// Takes what is there.
    pub fn poll(&mut self) {
        for events in &mut self.events {
            let map = self.maps[events.index];
            if let Some(ring) = map.as_ring() {
                ring.consume(|record| {
                    events.add(record);
                    Progress::Go
                });
                events.lost = ring.refused();
            }
            if let Some(perf) = map.as_perf_events() {
                for index in 0..perf.entries() {
                    let Ok((samples, lost)) = perf.drain(index) else {
                        continue;
                    };
                    samples.iter().for_each(|sample| events.add(&sample.data));
                    events.lost += lost;
                }
            }
        }
    }

    /// What was taken, of the maps that had anything.
    pub fn finish(mut self) -> Vec<Events> {
        self.poll();
        self.events
            .retain(|events| events.records + events.lost > 0);
        self.events
    }
}
