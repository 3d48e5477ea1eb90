//! Look-ups as functions of the C ABI, chosen once for a map: what compiled programs call.

use std::ptr::NonNull;

use crate::hash::{BytesKey, Key, LongKey, PairKey, WordKey, WordsKey};
use crate::map::{Body, Map};

/// Every function that a look-up may be, with a name, for listings.
pub fn lookup_fns() -> impl Iterator<Item = (LookupFn, &'static str)> {
    let functions: [(LookupFn, &str); _] = [
        (lookup_any, "maps::lookup_any"),
        (inner, "maps::lookup_inner"),
        (any, "maps::lookup"),
        (hash_bytes::<false>, "maps::hash_lookup_bytes"),
        (hash_bytes::<true>, "maps::lru_lookup_bytes"),
        #[cfg(target_arch = "x86_64")]
        (lpm_four, "maps::lpm_lookup_4"),
    ];
    let sized = HASH_FNS.iter().flat_map(|row| {
        let [plain, evicting] = row.names;
        [(row.plain, plain), (row.evicting, evicting)]
    });
    functions.into_iter().chain(sized)
}

/// The functions for a key size of hash maps.
struct HashFns {
    key_size: usize,
    plain: LookupFn,
    evicting: LookupFn,
    /// Of both.
    names: [&'static str; 2],
}

/// Rows of [`HASH_FNS`]: a key size in bytes, and the key's form in registers.
macro_rules! hash_fns {
    ($($size:literal $key:ty,)*) => {
        &[$(HashFns {
            key_size: $size,
            plain: hash_key::<$key, $size, false>,
            evicting: hash_key::<$key, $size, true>,
            names: [
                concat!("maps::hash_lookup_", $size),
                concat!("maps::lru_lookup_", $size),
            ],
        },)*]
    };
}

/// Key sizes that have functions of their own: numbers, addresses and ports, flows.
const HASH_FNS: &[HashFns] = hash_fns![
    4 WordKey,
    8 LongKey,
    12 PairKey,
    16 PairKey,
    20 WordsKey<3>,
    24 WordsKey<3>,
    28 WordsKey<4>,
    32 WordsKey<4>,
    36 WordsKey<5>,
    40 WordsKey<5>,
    44 WordsKey<6>,
    48 WordsKey<6>,
];

/// A look-up for programs: map, address of the key, CPU; gives the value's address or 0.
///
/// # Safety
/// The map is the one that the function was chosen for, or one of the same type, flags and
/// sizes, and lives; as many bytes as its keys have lie at the key's address.
pub type LookupFn = unsafe extern "C" fn(map: *const Map, key: *const u8, cpu: u32) -> u64;

impl Map {
    /// The function that looks up inner maps in this map of maps.
    pub fn inner_fn(&self) -> Option<LookupFn> {
        match &self.body {
            Body::ArrayOfMaps(_) | Body::HashOfMaps(_) => Some(inner),
            _ => None,
        }
    }

    /// The function that looks keys up in this map. None for maps whose elements are maps,
    /// which the run has to keep, and those that programs do not look up often.
    pub fn lookup_fn(&self) -> Option<LookupFn> {
        Some(match &self.body {
            Body::Hash(hash) => {
                let size = self.key_size();
                let sized = HASH_FNS.iter().find(|row| row.key_size == size);
                match (hash.traits(), sized) {
                    ((false, false), Some(row)) => row.plain,
                    ((true, false), Some(row)) => row.evicting,
                    ((false, false), None) if size > 16 => hash_bytes::<false>,
                    ((true, false), None) if size > 16 => hash_bytes::<true>,
                    _ => any,
                }
            }
            #[cfg(target_arch = "x86_64")]
            Body::Lpm(trie) if self.key_size() == 8 && trie.counts_bits() => lpm_four,
            Body::Lpm(_) => any,
            _ => return None,
        })
    }
}

/// The function for a map that is not known beforehand, of any type: it asks the map. From a
/// map of maps it gives the inner map, which lives as long as the caller's guard.
///
/// # Safety
/// As [`LookupFn`]; the caller holds a guard ([`crate::pin`]).
pub unsafe extern "C" fn lookup_any(map: *const Map, key: *const u8, cpu: u32) -> u64 {
    // SAFETY: by the contract.
    unsafe { ((*map).direct)(map, key, cpu) }
}

/// The function that [`lookup_any`] calls for a map.
pub(crate) fn choose(map: &Map) -> LookupFn {
    match &map.body {
        Body::ArrayOfMaps(_) | Body::HashOfMaps(_) => inner,
        _ => map.lookup_fn().unwrap_or(any),
    }
}

/// # Safety
/// As [`lookup_any`], for maps of maps.
unsafe extern "C" fn inner(map: *const Map, key: *const u8, _cpu: u32) -> u64 {
    // SAFETY: by the contract.
    let (map, key) = unsafe { (&*map, std::slice::from_raw_parts(key, (*map).key_size())) };
    // SAFETY: the caller holds a guard.
    let guard = unsafe { crossbeam_epoch::unprotected() };
    map.lookup_inner(key, guard)
        .map_or(0, |inner| (&raw const *inner).expose_provenance() as u64)
}

fn address(value: Option<NonNull<u8>>) -> u64 {
    value.map_or(0, |value| value.as_ptr().expose_provenance() as u64)
}

/// # Safety
/// As [`LookupFn`].
unsafe extern "C" fn any(map: *const Map, key: *const u8, cpu: u32) -> u64 {
    // SAFETY: by the contract.
    let (map, key) = unsafe { (&*map, std::slice::from_raw_parts(key, (*map).key_size())) };
    address(map.lookup(cpu, key))
}

/// A key that fits registers, from its bytes.
trait FromBytes<const SIZE: usize>: Key {
    fn from_bytes(bytes: &[u8; SIZE]) -> Self;
}

impl FromBytes<4> for WordKey {
    #[inline(always)]
    fn from_bytes(bytes: &[u8; 4]) -> Self {
        WordKey::load(bytes)
    }
}

impl FromBytes<8> for LongKey {
    #[inline(always)]
    fn from_bytes(bytes: &[u8; 8]) -> Self {
        LongKey::load(bytes)
    }
}

impl<const SIZE: usize> FromBytes<SIZE> for PairKey {
    #[inline(always)]
    fn from_bytes(bytes: &[u8; SIZE]) -> Self {
        PairKey::load(bytes)
    }
}

impl<const N: usize, const SIZE: usize> FromBytes<SIZE> for WordsKey<N> {
    #[inline(always)]
    fn from_bytes(bytes: &[u8; SIZE]) -> Self {
        WordsKey::load(bytes)
    }
}

/// # Safety
/// As [`LookupFn`], for hash maps with keys of that size, evicting or not.
unsafe extern "C" fn hash_key<K: FromBytes<SIZE>, const SIZE: usize, const LRU: bool>(
    map: *const Map,
    key: *const u8,
    _cpu: u32,
) -> u64 {
    // SAFETY: by the contract; bytes need no alignment.
    let (map, key) = unsafe { (&*map, &*key.cast::<[u8; SIZE]>()) };
    match &map.body {
        Body::Hash(hash) => address(hash.get_key::<K, LRU>(K::from_bytes(key))),
        _ => 0,
    }
}

/// # Safety
/// As [`LookupFn`], for hash maps with keys of more than 16 bytes, evicting or not.
unsafe extern "C" fn hash_bytes<const LRU: bool>(
    map: *const Map,
    key: *const u8,
    _cpu: u32,
) -> u64 {
    // SAFETY: by the contract.
    let (map, key) = unsafe { (&*map, std::slice::from_raw_parts(key, (*map).key_size())) };
    match &map.body {
        Body::Hash(hash) => address(hash.get_key::<_, LRU>(BytesKey(key))),
        _ => 0,
    }
}

/// # Safety
/// As [`LookupFn`], for tries with four bytes of data.
#[cfg(target_arch = "x86_64")]
unsafe extern "C" fn lpm_four(map: *const Map, key: *const u8, _cpu: u32) -> u64 {
    // SAFETY: by the contract; no alignment is asked for. Programs have written the two
    // halves one by one, and one load of both would wait for the stores.
    let (map, length, data) = unsafe {
        let key = key.cast::<[u8; 4]>();
        (&*map, key.read_unaligned(), key.add(1).read_unaligned())
    };
    match &map.body {
        Body::Lpm(trie) => address(trie.get_four(u32::from_ne_bytes(length), &data)),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use bpfkit_spec::MapType;

    use crate::flags::BPF_F_NO_PREALLOC;
    use crate::{Map, MapParams, pin};

    /// What the chosen function finds is what [`Map::lookup`] finds.
    #[test]
    fn functions_agree_with_lookup() {
        let types = [
            MapType::Hash,
            MapType::LruHash,
            MapType::PercpuHash,
            MapType::LpmTrie,
        ];
        for map_type in types {
            for key_size in [4u32, 5, 8, 12, 16, 17, 20, 28, 32, 36, 40, 44, 52] {
                let trie = map_type == MapType::LpmTrie;
                if trie && key_size == 4 {
                    continue;
                }
                let flags = if trie { BPF_F_NO_PREALLOC } else { 0 };
                let params = MapParams::new(map_type, key_size, 8, 64);
                let map = Map::create(params.with_flags(flags)).unwrap();
                let function = map.lookup_fn().unwrap();
                let key = |i: u8| {
                    let mut key = vec![i; key_size as usize];
                    if trie {
                        // Whole keys, and some a byte shorter.
                        let bytes = match (key_size - 4, i % 3) {
                            (bytes @ 2.., 1..) => bytes - 1,
                            (bytes, _) => bytes,
                        };
                        let bits = bytes * 8;
                        key[..4].copy_from_slice(&bits.to_ne_bytes());
                    }
                    key
                };
                for i in (0..32).step_by(2) {
                    map.update(0, &key(i), &u64::from(i).to_ne_bytes(), 0)
                        .unwrap();
                }
                let _guard = pin();
                for i in 0..32 {
                    let key = key(i);
                    // SAFETY: the map lives and the key has its size.
                    let found = unsafe { function(&raw const *map, key.as_ptr(), 0) };
                    let expected = map.lookup(0, &key);
                    let expected = expected.map_or(0, |v| v.as_ptr() as u64);
                    assert_eq!(found, expected, "{map_type:?} {key_size} {i}");
                    assert_eq!(found != 0, i % 2 == 0, "{map_type:?} {key_size} {i}");
                }
            }
        }
    }
}
