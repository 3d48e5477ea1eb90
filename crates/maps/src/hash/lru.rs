//! Which element of an LRU map makes room: an approximation, as the kernel's is.
//!
//! Every CPU has a list of free elements and a list of those it inserted lately; only
//! when it runs out does it turn to the shared lists (active, inactive, free), moves
//! its own insertions there, and takes a batch of elements from the cold end. A lookup
//! only sets a bit in the element; the lists learn of it when they are gone through.
//! With `BPF_F_NO_COMMON_LRU` every CPU has shared lists of its own.

use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, Ordering::*};
use std::sync::{Mutex, MutexGuard};

use crossbeam_utils::CachePadded;

/// Most elements a CPU takes at once, and looks at on the way.
const BATCH: u32 = 128;
/// Most elements that a CPU with lists of its own evicts at once.
const OWN_BATCH: u32 = 4;
const NONE: u32 = u32::MAX;

/// What an LRU element carries before its key.
#[repr(C)]
pub(crate) struct Node {
    next: AtomicU32,
    prev: AtomicU32,
    /// Hash of the key, which finds the bucket again.
    pub(crate) hash: AtomicU32,
    /// The list it is on ([`On`]).
    on: AtomicU8,
    referenced: AtomicU8,
    cpu: AtomicU16,
}

impl Node {
    /// Notes that a program looked the element up.
    #[inline(always)]
    pub(crate) fn touch(&self) {
        if self.referenced.load(Relaxed) == 0 {
            self.referenced.store(1, Relaxed);
        }
    }

    fn is_referenced(&self) -> bool {
        self.referenced.load(Relaxed) != 0
    }

    fn on(&self) -> On {
        match self.on.load(Relaxed) {
            1 => On::Active,
            2 => On::Inactive,
            3 => On::Free,
            4 => On::LocalFree,
            5 => On::LocalPending,
            _ => On::Nothing,
        }
    }

    fn set_on(&self, on: On) {
        self.on.store(on as u8, Relaxed);
    }
}

/// The list an element is on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum On {
    Nothing = 0,
    Active = 1,
    Inactive = 2,
    Free = 3,
    LocalFree = 4,
    LocalPending = 5,
}

/// Access to the elements that the lists are made of.
pub(crate) trait Nodes {
    /// The node of element `index`.
    fn node(&self, index: u32) -> &Node;
    /// Takes the element out of the table; `false` if it is not there.
    fn evict(&self, index: u32) -> bool;
}

/// A doubly linked list through [`Node`]; the newest is first.
struct List {
    first: u32,
    last: u32,
    len: u32,
}

impl List {
    const EMPTY: List = List {
        first: NONE,
        last: NONE,
        len: 0,
    };

    fn push_first(&mut self, nodes: &impl Nodes, i: u32) {
        let node = nodes.node(i);
        node.prev.store(NONE, Relaxed);
        node.next.store(self.first, Relaxed);
        match self.first {
            NONE => self.last = i,
            first => nodes.node(first).prev.store(i, Relaxed),
        }
        self.first = i;
        self.len += 1;
    }

    fn remove(&mut self, nodes: &impl Nodes, i: u32) {
        let node = nodes.node(i);
        let (prev, next) = (node.prev.load(Relaxed), node.next.load(Relaxed));
        match prev {
            NONE => self.first = next,
            p => nodes.node(p).next.store(next, Relaxed),
        }
        match next {
            NONE => self.last = prev,
            n => nodes.node(n).prev.store(prev, Relaxed),
        }
        self.len -= 1;
    }

    fn pop_first(&mut self, nodes: &impl Nodes) -> Option<u32> {
        let i = self.first;
        if i == NONE {
            return None;
        }
        self.remove(nodes, i);
        Some(i)
    }
}

/// The lists that CPUs share.
struct Shared {
    active: List,
    inactive: List,
    free: List,
    /// Where going through the inactive list goes on; `NONE` is its end.
    hand: u32,
    /// Elements that were never used.
    fresh: std::ops::Range<u32>,
}

impl Shared {
    fn new(elements: std::ops::Range<u32>) -> Shared {
        Shared {
            active: List::EMPTY,
            inactive: List::EMPTY,
            free: List::EMPTY,
            hand: NONE,
            fresh: elements,
        }
    }

    fn list(&mut self, on: On) -> &mut List {
        match on {
            On::Active => &mut self.active,
            On::Inactive => &mut self.inactive,
            _ => &mut self.free,
        }
    }

    /// Moves an element of a shared list to the front of another.
    fn shift(&mut self, nodes: &impl Nodes, i: u32, to: On) {
        self.detach(nodes, i);
        self.attach(nodes, i, to);
    }

    fn attach(&mut self, nodes: &impl Nodes, i: u32, to: On) {
        let node = nodes.node(i);
        node.set_on(to);
        node.referenced.store(0, Relaxed);
        self.list(to).push_first(nodes, i);
    }

    fn detach(&mut self, nodes: &impl Nodes, i: u32) {
        if self.hand == i {
            self.hand = nodes.node(i).prev.load(Relaxed);
        }
        let on = nodes.node(i).on();
        self.list(on).remove(nodes, i);
    }

    /// Gives referenced elements at the cold end of the active list another round and
    /// makes the others inactive.
    fn rotate_active(&mut self, nodes: &impl Nodes) {
        let first = self.active.first;
        let mut i = self.active.last;
        for _ in 0..BATCH {
            if i == NONE {
                break;
            }
            let prev = nodes.node(i).prev.load(Relaxed);
            let to = if nodes.node(i).is_referenced() {
                On::Active
            } else {
                On::Inactive
            };
            self.shift(nodes, i, to);
            if i == first {
                break;
            }
            i = prev;
        }
    }

    /// Makes referenced elements of the inactive list active, going on where the last
    /// call stopped.
    fn rotate_inactive(&mut self, nodes: &impl Nodes) {
        for _ in 0..BATCH.min(self.inactive.len) {
            if self.hand == NONE {
                self.hand = self.inactive.last;
            }
            let i = self.hand;
            if i == NONE {
                return;
            }
            let prev = nodes.node(i).prev.load(Relaxed);
            if nodes.node(i).is_referenced() {
                self.shift(nodes, i, On::Active);
            }
            self.hand = prev;
        }
    }

    fn rotate(&mut self, nodes: &impl Nodes) {
        if self.inactive.len < self.active.len {
            self.rotate_active(nodes);
        }
        self.rotate_inactive(nodes);
    }

    /// Evicts up to `want` elements from the cold end of the inactive list, or, if all
    /// are referenced, one whatever it is.
    fn shrink(&mut self, nodes: &impl Nodes, want: u32, mut take: impl FnMut(u32)) -> u32 {
        let mut got = 0;
        let mut i = self.inactive.last;
        for _ in 0..BATCH {
            if i == NONE || got == want {
                break;
            }
            let prev = nodes.node(i).prev.load(Relaxed);
            if nodes.node(i).is_referenced() {
                self.shift(nodes, i, On::Active);
            } else if nodes.evict(i) {
                self.detach(nodes, i);
                take(i);
                got += 1;
            }
            i = prev;
        }
        if got > 0 {
            return got;
        }
        let coldest = if self.inactive.len > 0 {
            &self.inactive
        } else {
            &self.active
        };
        let mut i = coldest.last;
        while i != NONE {
            let prev = nodes.node(i).prev.load(Relaxed);
            if nodes.evict(i) {
                self.detach(nodes, i);
                take(i);
                return 1;
            }
            i = prev;
        }
        0
    }

    fn pop_free(&mut self, nodes: &impl Nodes) -> Option<u32> {
        self.fresh.next().or_else(|| self.free.pop_first(nodes))
    }
}

/// The lists of one CPU.
struct Local {
    free: List,
    pending: List,
    steal_from: usize,
}

/// All lists of a map.
pub(crate) struct Lru {
    shared: Box<[CachePadded<Mutex<Shared>>]>,
    /// Empty where every CPU has shared lists of its own.
    local: Box<[CachePadded<Mutex<Local>>]>,
    batch: u32,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

impl Lru {
    /// Lists over elements `0 .. entries`.
    pub(crate) fn new(entries: u32, cpus: u32, own_lists: bool) -> Lru {
        if own_lists {
            let share = entries / cpus;
            let shared = (0..cpus)
                .map(|c| CachePadded::new(Mutex::new(Shared::new(c * share..(c + 1) * share))));
            return Lru {
                shared: shared.collect(),
                local: [].into(),
                batch: OWN_BATCH,
            };
        }
        let local = (0..cpus).map(|c| {
            CachePadded::new(Mutex::new(Local {
                free: List::EMPTY,
                pending: List::EMPTY,
                steal_from: c as usize,
            }))
        });
        Lru {
            shared: [CachePadded::new(Mutex::new(Shared::new(0..entries)))].into(),
            local: local.collect(),
            batch: (entries / cpus / 2).clamp(1, BATCH),
        }
    }

    /// An element for `cpu` to insert, evicting one if it must. `None` only while
    /// other threads hold every element.
    pub(crate) fn pop(&self, nodes: &impl Nodes, cpu: u32, hash: u32) -> Option<u32> {
        if self.local.is_empty() {
            return self.pop_own(nodes, cpu, hash);
        }
        let home = (cpu as usize).min(self.local.len() - 1);
        let first_steal = {
            let mut local = lock(&self.local[home]);
            if local.free.len == 0 {
                self.refill(nodes, &mut local);
            }
            if let Some(i) = local.free.pop_first(nodes) {
                Lru::add_pending(nodes, &mut local, home, i, hash);
                return Some(i);
            }
            local.steal_from
        };
        let n = self.local.len();
        let (found, at) = (0..n).find_map(|step| {
            let at = (first_steal + step) % n;
            let mut local = lock(&self.local[at]);
            Lru::steal(nodes, &mut local).map(|i| (i, at))
        })?;
        let mut local = lock(&self.local[home]);
        local.steal_from = (at + 1) % n;
        Lru::add_pending(nodes, &mut local, home, found, hash);
        Some(found)
    }

    fn pop_own(&self, nodes: &impl Nodes, cpu: u32, hash: u32) -> Option<u32> {
        let home = (cpu as usize).min(self.shared.len() - 1);
        let mut shared = lock(&self.shared[home]);
        shared.rotate(nodes);
        let mut found = shared.pop_free(nodes);
        if found.is_none() {
            let mut freed = Vec::new();
            shared.shrink(nodes, self.batch, |i| freed.push(i));
            found = freed.pop();
            for i in freed {
                shared.attach(nodes, i, On::Free);
            }
        }
        let i = found?;
        let node = nodes.node(i);
        node.hash.store(hash, Relaxed);
        node.cpu.store(home as u16, Relaxed);
        shared.attach(nodes, i, On::Inactive);
        Some(i)
    }

    fn add_pending(nodes: &impl Nodes, local: &mut Local, cpu: usize, i: u32, hash: u32) {
        let node = nodes.node(i);
        node.hash.store(hash, Relaxed);
        node.cpu.store(cpu as u16, Relaxed);
        node.referenced.store(0, Relaxed);
        node.set_on(On::LocalPending);
        local.pending.push_first(nodes, i);
    }

    /// Moves the CPU's insertions to the shared lists and takes a batch from there.
    fn refill(&self, nodes: &impl Nodes, local: &mut Local) {
        let Some(shared) = self.shared.first() else {
            return;
        };
        let mut shared = lock(shared);
        let mut i = local.pending.last;
        while i != NONE {
            let prev = nodes.node(i).prev.load(Relaxed);
            local.pending.remove(nodes, i);
            let to = if nodes.node(i).is_referenced() {
                On::Active
            } else {
                On::Inactive
            };
            shared.attach(nodes, i, to);
            i = prev;
        }
        shared.rotate(nodes);
        let free = &mut local.free;
        let mut take = |i| {
            nodes.node(i).set_on(On::LocalFree);
            free.push_first(nodes, i);
        };
        let mut got = 0;
        while got < self.batch {
            let Some(i) = shared.pop_free(nodes) else {
                break;
            };
            take(i);
            got += 1;
        }
        if got < self.batch {
            shared.shrink(nodes, self.batch - got, take);
        }
    }

    fn steal(nodes: &impl Nodes, local: &mut Local) -> Option<u32> {
        if let Some(i) = local.free.pop_first(nodes) {
            return Some(i);
        }
        for force in [false, true] {
            let mut i = local.pending.last;
            while i != NONE {
                let prev = nodes.node(i).prev.load(Relaxed);
                if (force || !nodes.node(i).is_referenced()) && nodes.evict(i) {
                    local.pending.remove(nodes, i);
                    return Some(i);
                }
                i = prev;
            }
        }
        None
    }

    /// Takes back an element that left the table.
    pub(crate) fn push(&self, nodes: &impl Nodes, i: u32) {
        let node = nodes.node(i);
        let cpu = usize::from(node.cpu.load(Relaxed));
        if let Some(local) = self.local.get(cpu) {
            let mut local = lock(local);
            if node.on() == On::LocalPending && usize::from(node.cpu.load(Relaxed)) == cpu {
                local.pending.remove(nodes, i);
                node.set_on(On::LocalFree);
                node.referenced.store(0, Relaxed);
                local.free.push_first(nodes, i);
                return;
            }
        }
        let home = if self.local.is_empty() {
            cpu.min(self.shared.len() - 1)
        } else {
            0
        };
        let mut shared = lock(&self.shared[home]);
        // Between the two locks nothing moves it: it is out of the table, so nobody
        // else evicts it, and only a refill takes it from pending to the shared lists.
        shared.shift(nodes, i, On::Free);
    }
}
