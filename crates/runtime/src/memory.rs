//! What a program in checked mode may touch.
//!
//! Addresses are addresses of this process. A [`Region`] is a run of bytes that was
//! granted for a time (context, packet, a reserved ring buffer record); map values are
//! known by their maps and count as regions of their own, one each, so that no access
//! crosses from one value into the next.
//!
//! Lookups are remembered for each instruction (by the low bits of its position), so the
//! usual access costs a subtraction and a comparison.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bpfkit_isa::Size;
use bpfkit_maps::Map;

use crate::mapset::{self, MapSet};
use crate::native::State;
use crate::vm::FRAME_BYTES;

/// What a region is, for the message of a fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RegionKind {
    /// Stack frames of the program.
    Stack,
    /// The context structure.
    Context,
    /// Packet bytes.
    Packet,
    /// Value of a map.
    MapValue,
    /// A reserved ring buffer record.
    Record,
    /// Memory of an arena map.
    Arena,
    /// Anything else; the text names it.
    Other(&'static str),
}

impl fmt::Display for RegionKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RegionKind::Stack => "stack",
            RegionKind::Context => "context",
            RegionKind::Packet => "packet",
            RegionKind::MapValue => "map value",
            RegionKind::Record => "ring buffer record",
            RegionKind::Arena => "arena",
            RegionKind::Other(name) => name,
        })
    }
}

/// Bytes that a program may touch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Region {
    /// Address of the first byte.
    pub start: u64,
    /// Bytes.
    pub len: u64,
    /// Whether it may be written.
    pub writable: bool,
    /// What it is.
    pub kind: RegionKind,
}

impl Region {
    fn holds(&self, address: u64, size: u64) -> bool {
        let offset = address.wrapping_sub(self.start);
        offset <= self.len && self.len - offset >= size
    }
}

/// A run of equally sized elements, of each of which the program may touch a part:
/// the values of a map.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Strided {
    /// Address of the first element.
    pub base: u64,
    /// Bytes from one element to the next, at least 1.
    pub stride: u64,
    /// Byte offset of the part inside each element.
    pub offset: u64,
    /// Bytes of the part.
    pub size: u64,
    /// Elements.
    pub count: u64,
    /// Whether it may be written.
    pub writable: bool,
}

impl Strided {
    fn end(&self) -> u64 {
        self.base
            .saturating_add(self.stride.saturating_mul(self.count))
    }

    /// The part of the element that an address lies in.
    fn at(&self, address: u64) -> Option<Region> {
        let distance = address.checked_sub(self.base)?;
        let element = distance / self.stride;
        (element < self.count).then(|| Region {
            start: self.base + element * self.stride + self.offset,
            len: self.size,
            writable: self.writable,
            kind: RegionKind::MapValue,
        })
    }
}

/// A range that accesses of one size hit before: they may start at `start ..= start + slack`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Span {
    start: u64,
    slack: u64,
}

/// Remembered spans of accesses of one size and direction, by the position of the instruction.
pub(crate) const SPANS: usize = 32;

/// Where nothing is remembered: spans of this one place, which harms nobody.
static NOWHERE: AtomicU64 = AtomicU64::new(0);

/// The spans that were hit before, for each size and direction.
#[repr(C)]
pub(crate) struct Spans {
    /// Machine code reaches the spans by the same register as these.
    pub(crate) state: State,
    tables: [[Span; SPANS]; 8],
    /// Which entries of each table are in use.
    used: [u32; 8],
    /// Those of them that are good for the run under way only.
    fleeting: [u32; 8],
}

impl Spans {
    const BYTES: usize = size_of::<Span>();

    fn new() -> Self {
        Self {
            state: State::default(),
            tables: [[Self::nowhere(); SPANS]; 8],
            used: [0; 8],
            fleeting: [0; 8],
        }
    }

    fn nowhere() -> Span {
        Span {
            start: NOWHERE.as_ptr().expose_provenance() as u64,
            slack: 0,
        }
    }

    const fn table<T, const WRITE: bool>() -> usize {
        size_of::<T>().trailing_zeros() as usize * 2 + WRITE as usize
    }

    pub(crate) fn table_of(size: Size, write: bool) -> usize {
        size.bytes().trailing_zeros() as usize * 2 + usize::from(write)
    }

    /// Offset of an entry of a table.
    pub(crate) fn offset_of(table: usize, index: usize) -> usize {
        std::mem::offset_of!(Spans, tables) + (table * SPANS + index % SPANS) * Self::BYTES
    }

    /// Remembers where an access of that many bytes was found, unless it was translated.
    pub(crate) fn remember_at(&mut self, table: usize, index: usize, bytes: u64, found: &Found) {
        let (start, index) = (found.region.start, index % SPANS);
        let Some(slack) = found.region.len.checked_sub(bytes) else {
            return;
        };
        if found.translated {
            return;
        }
        self.tables[table][index] = Span { start, slack };
        let bit = 1 << index;
        self.used[table] |= bit;
        self.fleeting[table] &= !bit;
        if !found.lasting {
            self.fleeting[table] |= bit;
        }
    }

    /// The entry of an instruction: positions are addresses of slots of 16 bytes.
    #[inline(always)]
    fn index(position: usize) -> usize {
        position / Self::BYTES % SPANS
    }

    /// Whether the access lies in the span remembered for the instruction.
    #[inline(always)]
    pub(crate) fn hit<T, const WRITE: bool>(&self, position: usize, address: u64) -> bool {
        let span = &self.tables[Self::table::<T, WRITE>()][Self::index(position)];
        address.wrapping_sub(span.start) <= span.slack
    }

    /// Remembers where an access was found, unless it was translated.
    pub(crate) fn remember<T, const WRITE: bool>(&mut self, position: usize, found: &Found) {
        let (table, index) = (Self::table::<T, WRITE>(), Self::index(position));
        self.remember_at(table, index, size_of::<T>() as u64, found);
    }

    /// Forgets every span.
    pub(crate) fn forget(&mut self) {
        self.fleeting = self.used;
        self.forget_fleeting();
    }

    /// Forgets the spans that are good for one run only.
    fn forget_fleeting(&mut self) {
        let masks = self.used.iter_mut().zip(&mut self.fleeting);
        for (table, (used, fleeting)) in self.tables.iter_mut().zip(masks) {
            *used &= !*fleeting;
            while *fleeting != 0 {
                table[fleeting.trailing_zeros() as usize] = Self::nowhere();
                *fleeting &= *fleeting - 1;
            }
        }
    }
}

/// Where an access was found.
pub(crate) struct Found {
    /// The bytes around it that the program may touch as well.
    region: Region,
    /// Host address of the access.
    pub(crate) host: u64,
    /// Whether it differs from the program's address.
    translated: bool,
    /// Whether it stands for a place in an arena that was not allocated.
    pub(crate) absent: bool,
    /// Whether the region is there in every run that begins with the same grants.
    lasting: bool,
}

/// Everything a program may touch during a run.
pub struct Memory {
    pub(crate) spans: Spans,
    stack: Region,
    regions: Vec<Region>,
    /// The regions that the run began with.
    granted: Vec<Region>,
    values: ValueIndex,
    /// The set whose maps' values these are, if they are that set's alone.
    values_of: Option<u64>,
    /// The object's arena map, if it has one.
    pub(crate) arena: Option<Arc<Map>>,
    /// What accesses to absent pages of an arena work on.
    scratch: Box<AtomicU64>,
}

/// Sorted runs of map values.
#[derive(Default)]
pub(crate) struct ValueIndex {
    runs: Vec<Strided>,
}

impl ValueIndex {
    pub(crate) fn rebuild(&mut self, runs: impl Iterator<Item = Strided>) {
        self.runs.clear();
        self.runs
            .extend(runs.filter(|r| r.stride > 0 && r.count > 0));
        self.runs.sort_unstable_by_key(|r| r.base);
    }

    fn at(&self, address: u64) -> Option<Region> {
        let after = self.runs.partition_point(|r| r.base <= address);
        self.runs
            .get(after.checked_sub(1)?)
            .filter(|r| address < r.end())?
            .at(address)
    }
}

impl Memory {
    pub(crate) fn new() -> Self {
        Self {
            spans: Spans::new(),
            stack: Region {
                start: 0,
                len: 0,
                writable: true,
                kind: RegionKind::Stack,
            },
            regions: Vec::with_capacity(16),
            granted: Vec::new(),
            values: ValueIndex::default(),
            values_of: None,
            arena: None,
            scratch: Box::default(),
        }
    }

    /// Begins a run of a program with these maps, on a stack that starts there; `grant` says
    /// what else it may touch from the start. Where that is what the last run began with, its
    /// spans are good for this one, but for what it was granted on the way.
    pub(crate) fn begin(&mut self, maps: &MapSet, stack: u64, grant: impl FnOnce(&mut Self)) {
        self.regions.clear();
        grant(self);
        let same_values = self.values_of == Some(maps.id());
        if same_values && self.stack.start == stack && self.regions == self.granted {
            self.spans.forget_fleeting();
        } else {
            self.spans.forget();
            self.granted.clone_from(&self.regions);
        }
        if !same_values {
            self.set_values(maps, &[]);
        }
        (self.stack.start, self.stack.len) = (stack, 0);
        self.arena = maps.arena().cloned();
    }

    /// Asks maps where their values lie: those of a set, and others that a run keeps.
    pub(crate) fn set_values(&mut self, maps: &MapSet, others: &[Arc<Map>]) {
        self.values
            .rebuild(maps.value_regions().chain(mapset::value_regions(others)));
        // The others may be gone after the run.
        self.values_of = others.is_empty().then_some(maps.id());
    }

    /// Sets the end of the live part of the stack: the top of the current frame.
    #[inline(always)]
    pub(crate) fn set_stack_top(&mut self, top: u64) {
        self.stack.len = top.wrapping_sub(self.stack.start);
    }

    /// Lets the program touch a region until [`revoke`](Self::revoke) or the end of the run.
    /// Regions may overlap; an access needs one region that holds all of it.
    pub fn grant(&mut self, region: Region) {
        self.regions.push(region);
    }

    /// Takes back every region that starts at that address.
    pub fn revoke(&mut self, start: u64) {
        self.regions.retain(|r| r.start != start);
        self.spans.forget();
    }

    /// Takes back every region of that kind, for instance to grant a resized packet anew.
    pub fn revoke_kind(&mut self, kind: RegionKind) {
        self.regions.retain(|r| r.kind != kind);
        self.spans.forget();
    }

    /// Where an access lies, or `None` if no region holds all of it.
    pub(crate) fn find(&self, address: u64, size: u64, write: bool) -> Option<Found> {
        let fits = |r: &Region| r.holds(address, size) && (r.writable || !write);
        let as_is = |region, lasting| Found {
            region,
            host: address,
            translated: false,
            absent: false,
            lasting,
        };
        if fits(&self.stack) {
            // What lies above the first frame is there while a function runs.
            let lasting = self.stack.len == FRAME_BYTES as u64;
            return Some(as_is(self.stack, lasting));
        }
        if let Some(region) = self.regions.iter().find(|r| fits(r)) {
            return Some(as_is(*region, self.granted.contains(region)));
        }
        if let Some(region) = self.values.at(address).filter(|r| fits(r)) {
            return Some(as_is(region, self.values_of.is_some()));
        }
        self.find_in_arena(address, size)
    }

    /// The kernel adds the lower half of any arena pointer to the arena's base. Pages that
    /// were not allocated, and the guards around the 4 GiB from there, read as zero and take
    /// no writes.
    fn find_in_arena(&self, address: u64, size: u64) -> Option<Found> {
        const PAGE: u64 = 4096;
        const WINDOW: u64 = 1 << 32;
        const GUARD: u64 = 1 << 16;
        let arena = self.arena.as_ref()?.as_arena()?;
        let base = arena.base().as_ptr().expose_provenance() as u64;
        // The upper halves that an arena pointer may have.
        let low = [base, 0, arena.user_start() & !(WINDOW - 1)]
            .map(|start| address.wrapping_sub(start))
            .into_iter()
            .find(|low| low.wrapping_add(GUARD) < WINDOW + 2 * GUARD)?;
        let kind = RegionKind::Arena;
        if low >= WINDOW || !arena.is_present(low as u32, size as u32) {
            self.scratch.store(0, Ordering::Relaxed);
            let host = self.scratch.as_ptr().expose_provenance() as u64;
            let region = Region {
                start: host,
                len: size,
                writable: true,
                kind,
            };
            return (size <= 8).then_some(Found {
                region,
                host,
                translated: true,
                absent: true,
                lasting: false,
            });
        }
        let host = base + low;
        let start = host & !(PAGE - 1);
        let len = (host + size).next_multiple_of(PAGE) - start;
        let region = Region {
            start,
            len,
            writable: true,
            kind,
        };
        Some(Found {
            region,
            host,
            translated: host != address,
            absent: false,
            // Pages come and go.
            lasting: false,
        })
    }

    /// The closest region to an address, with the distance from its start, if one is
    /// within a page: what a fault says.
    pub(crate) fn near(&self, address: u64) -> Option<(RegionKind, i64)> {
        const CLOSE: u64 = 4096;
        let value = self.values.at(address);
        std::iter::once(&self.stack)
            .chain(&self.regions)
            .chain(&value)
            .filter(|r| r.len > 0)
            .filter(|r| address.wrapping_sub(r.start).wrapping_add(CLOSE) < r.len + 2 * CLOSE)
            .map(|r| (r.kind, address.wrapping_sub(r.start) as i64))
            .min_by_key(|(_, offset)| offset.unsigned_abs())
    }
}
