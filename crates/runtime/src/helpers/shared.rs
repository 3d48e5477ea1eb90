//! What helpers keep between runs for all programs of an object, and the fields of map
//! values that it hangs on.

use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bpfkit_btf::{Btf, Kind, Type};
use bpfkit_maps::{Field, FieldHooks, FieldKind, Map};
use bpfkit_object::MapDef;

use super::heap::Heap;
use super::timer::Timers;

/// Allocated objects, timers, socket options.
#[derive(Default)]
pub struct Shared {
    pub(crate) heap: Heap,
    pub(crate) timers: Timers,
    options: Mutex<HashMap<(i32, i32), Vec<u8>>>,
}

impl Shared {
    /// Socket options by level and name.
    pub(crate) fn options(&self) -> MutexGuard<'_, HashMap<(i32, i32), Vec<u8>>> {
        self.options.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FieldHooks for Shared {
    fn release(&self, _map_id: u32, field: Field, at: NonNull<u8>) {
        match field.kind {
            FieldKind::Timer | FieldKind::Workqueue => {
                self.timers.remove(at.as_ptr().expose_provenance() as u64);
            }
            FieldKind::KptrRef | FieldKind::KptrPercpu => {
                // SAFETY: the map says that an 8-byte field lies there, and checked its alignment.
                let object =
                    unsafe { AtomicU64::from_ptr(at.as_ptr().cast()) }.swap(0, Ordering::AcqRel);
                self.heap.release(object);
            }
            _ => {}
        }
    }
}

/// Makes a map tell `shared` about values that go away.
pub(crate) fn hook(map: &Map, shared: &Arc<Shared>) {
    if !map.params().fields.is_empty() {
        // A map is hooked once, when it is made; types without such values refuse.
        let _ = map.set_hooks(Arc::clone(shared) as Arc<dyn FieldHooks>);
    }
}

/// Structures of `linux/bpf.h` and the selftests' headers that the kernel manages inside values.
const STRUCTURES: [(&str, FieldKind); 8] = [
    ("bpf_spin_lock", FieldKind::SpinLock),
    ("bpf_res_spin_lock", FieldKind::ResSpinLock),
    ("bpf_timer", FieldKind::Timer),
    ("bpf_wq", FieldKind::Workqueue),
    ("bpf_task_work", FieldKind::TaskWork),
    ("bpf_list_head", FieldKind::ListHead),
    ("bpf_rb_root", FieldKind::RbRoot),
    ("bpf_refcount", FieldKind::Refcount),
];

/// Type tags of pointers that the kernel manages.
const TAGS: [(&str, FieldKind); 4] = [
    ("kptr_untrusted", FieldKind::KptrUnref),
    ("kptr", FieldKind::KptrRef),
    ("percpu_kptr", FieldKind::KptrPercpu),
    ("uptr", FieldKind::Uptr),
];

/// Structures inside structures are searched this deep, arrays up to this many elements.
const MAX_DEPTH: u32 = 8;
const MAX_ELEMENTS: u32 = 64;

/// The special fields of a map's value, by its type.
pub(crate) fn special_fields(btf: &Btf, def: &MapDef) -> Vec<Field> {
    let mut fields = Vec::new();
    if let Some(value) = btf
        .resolve(def.value_type_id)
        .filter(|_| def.value_type_id != 0)
    {
        search(btf, value, 0, 0, &mut fields);
    }
    fields.retain(|f| u64::from(f.offset) + u64::from(f.size()) <= u64::from(def.value_size));
    fields
}

fn search(btf: &Btf, t: Type<'_>, at: u32, depth: u32, fields: &mut Vec<Field>) {
    if depth > MAX_DEPTH {
        return;
    }
    match t.kind() {
        Kind::Struct => {
            if let Some(&(_, kind)) = STRUCTURES.iter().find(|(name, _)| *name == t.name()) {
                fields.push(Field { kind, offset: at });
                return;
            }
            for member in t.members().filter(|m| m.bit_offset % 8 == 0) {
                let offset = at.saturating_add(member.bit_offset / 8);
                if let Some(inner) = btf.resolve(member.type_id) {
                    search(btf, inner, offset, depth + 1, fields);
                }
            }
        }
        Kind::Datasec => {
            for variable in t.variables() {
                let inner = btf
                    .type_by_id(variable.type_id)
                    .and_then(Type::target)
                    .and_then(Type::resolve);
                if let Some(inner) = inner {
                    search(btf, inner, variable.offset, depth + 1, fields);
                }
            }
        }
        Kind::Array => {
            let Some(array) = t.array() else { return };
            let (Some(inner), Some(size)) =
                (btf.resolve(array.element), btf.size_of(array.element))
            else {
                return;
            };
            for i in 0..array.count.min(MAX_ELEMENTS) {
                search(
                    btf,
                    inner,
                    at.saturating_add(size.saturating_mul(i)),
                    depth + 1,
                    fields,
                );
            }
        }
        Kind::Ptr => {
            let tags = btf
                .pointer_tags(t.id())
                .map(|(tags, _)| tags)
                .unwrap_or_default();
            if let Some(&(_, kind)) = TAGS.iter().find(|(tag, _)| tags.contains(tag)) {
                fields.push(Field { kind, offset: at });
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mapset::{MapOptions, MapSet};
    use bpfkit_btf::{BtfBuilder, IntEncoding, MemberDef};
    use bpfkit_spec::MapType;

    /// `struct value { __u64 plain; struct bpf_timer timer; struct object __kptr *kept; }`
    fn object() -> (Btf, MapDef) {
        let mut btf = BtfBuilder::new();
        let word = btf.int("long", 8, IntEncoding(0));
        let member = |name, type_id, offset: u32| MemberDef {
            name,
            type_id,
            bit_offset: offset * 8,
            bitfield_size: 0,
        };
        let timer = btf.structure(
            "bpf_timer",
            16,
            &[member("a", word, 0), member("b", word, 8)],
        );
        let kept = btf.structure("object", 8, &[member("x", word, 0)]);
        let tagged = btf.type_tag("kptr", kept);
        let pointer = btf.ptr(tagged);
        let value = [
            member("plain", word, 0),
            member("timer", timer, 8),
            member("kept", pointer, 24),
        ];
        let value = btf.structure("value", 32, &value);
        let def = MapDef {
            value_type_id: value,
            ..MapDef::new("values", MapType::Array, 4, 32, 1)
        };
        (btf.build().unwrap(), def)
    }

    #[test]
    fn fields_are_found_and_never_copied_in() {
        let (btf, def) = object();
        let fields = special_fields(&btf, &def);
        let expected = [(FieldKind::Timer, 8), (FieldKind::KptrRef, 24)];
        assert_eq!(
            fields,
            expected.map(|(kind, offset)| Field { kind, offset })
        );
        let maps = MapSet::with_types(&[def], Some(&btf), &MapOptions::default()).unwrap();
        let map = maps.get(0).unwrap();
        let key = 0u32.to_ne_bytes();
        let value = map.lookup(0, &key).unwrap();
        // SAFETY: the value has 32 bytes and nobody else touches it.
        unsafe { value.as_ptr().write_bytes(7, 32) };
        map.update(0, &key, &[1; 32], 0).unwrap();
        // SAFETY: as above.
        let bytes = unsafe { std::slice::from_raw_parts(value.as_ptr(), 32) };
        assert_eq!(bytes[..8], [1; 8]);
        assert_eq!(bytes[8..], [0; 24], "given up, not overwritten");
        // SAFETY: as above.
        unsafe { value.as_ptr().write_bytes(7, 32) };
        assert_eq!(
            map.read(&key).unwrap()[8..],
            [0; 24],
            "the host does not see them"
        );
    }
}
