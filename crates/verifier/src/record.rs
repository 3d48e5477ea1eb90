//! Special fields of map values and allocated objects: locks, timers, kernel pointers,
//! lists and trees.

use bpfkit_btf::{Btf, KernelBtf, Kind, Type};
use bpfkit_spec::{Feature, KernelVersion};

use crate::reg::BtfOf;

/// Kind of a special field.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum FieldKind {
    SpinLock,
    Timer,
    KptrUntrusted,
    KptrRef,
    KptrPercpu,
    UserPtr,
    ListHead,
    ListNode,
    RbRoot,
    RbNode,
    Refcount,
    Workqueue,
    ResSpinLock,
    TaskWork,
}

impl FieldKind {
    const STRUCTS: [(FieldKind, &'static str); 10] = [
        (FieldKind::SpinLock, "bpf_spin_lock"),
        (FieldKind::ResSpinLock, "bpf_res_spin_lock"),
        (FieldKind::Timer, "bpf_timer"),
        (FieldKind::Workqueue, "bpf_wq"),
        (FieldKind::TaskWork, "bpf_task_work"),
        (FieldKind::ListHead, "bpf_list_head"),
        (FieldKind::ListNode, "bpf_list_node"),
        (FieldKind::RbRoot, "bpf_rb_root"),
        (FieldKind::RbNode, "bpf_rb_node"),
        (FieldKind::Refcount, "bpf_refcount"),
    ];

    /// Name in messages.
    pub fn name(self) -> &'static str {
        match self {
            FieldKind::KptrUntrusted | FieldKind::KptrRef => "kptr",
            FieldKind::KptrPercpu => "percpu_kptr",
            FieldKind::UserPtr => "uptr",
            _ => Self::STRUCTS
                .iter()
                .find(|s| s.0 == self)
                .map_or("", |s| s.1),
        }
    }

    /// A pointer that programs may store or load.
    pub const fn is_pointer(self) -> bool {
        matches!(
            self,
            FieldKind::KptrUntrusted
                | FieldKind::KptrRef
                | FieldKind::KptrPercpu
                | FieldKind::UserPtr
        )
    }

    pub const fn is_node(self) -> bool {
        matches!(self, FieldKind::ListNode | FieldKind::RbNode)
    }

    pub const fn is_root(self) -> bool {
        matches!(self, FieldKind::ListHead | FieldKind::RbRoot)
    }

    const fn bit(self) -> u32 {
        1 << self as u8
    }
}

/// Kinds that map values may have.
const IN_MAPS: u32 = !(FieldKind::ListNode.bit() | FieldKind::RbNode.bit());
/// Kinds that allocated objects may have.
const IN_OBJECTS: u32 = !(FieldKind::Timer.bit()
    | FieldKind::Workqueue.bit()
    | FieldKind::TaskWork.bit()
    | FieldKind::UserPtr.bit());

/// A special field.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Field {
    pub kind: FieldKind,
    pub offset: u32,
    pub size: u32,
    /// What a pointer points to, or a list or tree is of.
    pub of: BtfOf,
    pub type_id: u32,
    /// Of a list or tree: where its nodes sit in the objects.
    pub node_offset: u32,
}

/// All special fields of a type, by offset.
#[derive(Clone, Default, Debug)]
pub(crate) struct Record {
    pub fields: Vec<Field>,
}

impl Record {
    /// Of a map's value.
    pub fn of_map_value(
        btf: &Btf,
        kernel: KernelBtf<'_>,
        type_id: u32,
        version: KernelVersion,
    ) -> Record {
        let tags = match version < Feature::KptrTags.since() {
            true => OLD_TAGS,
            false => TAGS,
        };
        Finder::find(btf, kernel, type_id, IN_MAPS, tags)
    }

    /// Of an allocated object.
    pub fn of_object(btf: &Btf, kernel: KernelBtf<'_>, type_id: u32) -> Record {
        Finder::find(btf, kernel, type_id, IN_OBJECTS, TAGS)
    }

    pub fn has(&self, kind: FieldKind) -> bool {
        self.fields.iter().any(|f| f.kind == kind)
    }

    pub fn has_node(&self) -> bool {
        self.fields.iter().any(|f| f.kind.is_node())
    }

    /// Offset of the only field of a kind.
    pub fn offset_of(&self, kind: FieldKind) -> Option<u32> {
        self.fields
            .iter()
            .find(|f| f.kind == kind)
            .map(|f| f.offset)
    }

    /// The field at an offset, if it fits.
    pub fn at(&self, offset: u64, fits: impl Fn(FieldKind) -> bool) -> Option<&Field> {
        self.fields
            .iter()
            .find(|f| f.offset as u64 == offset && fits(f.kind))
    }
}

/// What type tags on pointers in maps mean.
type Tags = &'static [(&'static str, FieldKind)];

const TAGS: Tags = &[
    ("kptr_untrusted", FieldKind::KptrUntrusted),
    ("kptr", FieldKind::KptrRef),
    ("percpu_kptr", FieldKind::KptrPercpu),
    ("uptr", FieldKind::UserPtr),
];

/// The same before Linux 6.4.
const OLD_TAGS: Tags = &[
    ("kptr", FieldKind::KptrUntrusted),
    ("kptr_ref", FieldKind::KptrRef),
];

/// Most special fields of a type; one that has more has none.
const MAX_FIELDS: usize = 11;

struct Finder<'a> {
    tags: Tags,
    btf: &'a Btf,
    kernel: KernelBtf<'a>,
    kinds: u32,
    fields: Vec<Field>,
}

impl<'a> Finder<'a> {
    fn find(btf: &'a Btf, kernel: KernelBtf<'a>, type_id: u32, kinds: u32, tags: Tags) -> Record {
        let mut finder = Finder {
            tags,
            btf,
            kernel,
            kinds,
            fields: Vec::new(),
        };
        match btf.type_by_id(type_id) {
            Some(t) if t.is(Kind::Struct) => finder.structure(t, 0, 0),
            Some(t) if t.is(Kind::Datasec) => finder.section(t),
            _ => {}
        }
        if finder.fields.len() > MAX_FIELDS {
            return Record::default();
        }
        finder.fields.sort_by_key(|f| f.offset);
        Record {
            fields: finder.fields,
        }
    }

    fn section(&mut self, t: Type<'a>) {
        for variable in t.variables() {
            let Some(var) = self.btf.type_by_id(variable.type_id) else {
                continue;
            };
            let Some(target) = var.target() else { continue };
            self.one(var, None, target, variable.offset, Some(variable.size), 0);
        }
    }

    fn structure(&mut self, t: Type<'a>, base: u32, level: u32) {
        for (at, member) in t.members().enumerate() {
            let (Some(off), Some(mt)) = (member.byte_offset(), self.btf.type_by_id(member.type_id))
            else {
                continue;
            };
            self.one(t, Some(at as u32), mt, base + off, None, level);
        }
    }

    fn one(
        &mut self,
        holder: Type<'a>,
        component: Option<u32>,
        t: Type<'a>,
        off: u32,
        expected: Option<u32>,
        level: u32,
    ) {
        const MAX_LEVEL: u32 = 4;
        let (mut t, mut count) = (t, 1u32);
        while let Some(array) = t.array() {
            count = count.saturating_mul(array.count);
            let Some(element) = self.btf.type_by_id(array.element) else {
                return;
            };
            t = element;
        }
        if count == 0 {
            return;
        }
        let start = self.fields.len();
        let size = if t.is(Kind::Struct) {
            let size = t.size().unwrap_or(0);
            let special = FieldKind::STRUCTS
                .iter()
                .find(|s| s.1 == t.name() && self.kinds & s.0.bit() != 0)
                .map(|s| s.0);
            match special {
                Some(kind) if kind.is_root() => self.root(kind, holder, component, off, size),
                Some(kind) => self.push(kind, off, size, BtfOf::Program, 0, 0),
                None if level < MAX_LEVEL => self.structure(t, off, level + 1),
                None => {}
            }
            size
        } else {
            self.pointer(t, off);
            8
        };
        if expected.is_some_and(|e| e != size.saturating_mul(count)) {
            self.fields.truncate(start);
        }
        let end = self.fields.len();
        if start == end {
            return;
        }
        for n in 1..count.min(64) {
            for at in start..end {
                let mut field = self.fields[at];
                field.offset += n * size;
                self.fields.push(field);
            }
        }
    }

    fn push(
        &mut self,
        kind: FieldKind,
        offset: u32,
        size: u32,
        of: BtfOf,
        type_id: u32,
        node: u32,
    ) {
        self.fields.push(Field {
            kind,
            offset,
            size,
            of,
            type_id,
            node_offset: node,
        });
    }

    fn pointer(&mut self, t: Type<'a>, off: u32) {
        let t = if t.is(Kind::Volatile) {
            t.target()
        } else {
            Some(t)
        };
        let Some(tag) = t.filter(|t| t.is(Kind::Ptr)).and_then(|t| t.target()) else {
            return;
        };
        if !tag.is(Kind::TypeTag) {
            return;
        }
        let known = self.tags.iter().find(|known| known.0 == tag.name());
        let Some(&(_, kind)) = known else { return };
        let Some(pointee) = self.btf.skip_modifiers(tag.type_id()) else {
            return;
        };
        if self.kinds & kind.bit() == 0 || !pointee.is(Kind::Struct) {
            return;
        }
        let of_kernel = match kind {
            FieldKind::UserPtr => None,
            _ => self.kernel.get(),
        }
        .and_then(|k| k.by_name(pointee.name(), Kind::Struct));
        let (of, id) = match of_kernel {
            Some(t) => (BtfOf::Kernel, t.id()),
            None => (BtfOf::Program, pointee.id()),
        };
        self.push(kind, off, 8, of, id, 0);
    }

    fn root(
        &mut self,
        kind: FieldKind,
        holder: Type<'a>,
        component: Option<u32>,
        off: u32,
        size: u32,
    ) {
        let node_type = if kind == FieldKind::ListHead {
            "bpf_list_node"
        } else {
            "bpf_rb_node"
        };
        let tag = self
            .btf
            .decl_tags(holder.id())
            .filter(|t| t.component() == component)
            .find_map(|t| t.name().strip_prefix("contains:"));
        let Some((value, node)) = tag.and_then(|t| t.split_once(':')) else {
            return;
        };
        let Some(value) = self.btf.by_name(value, Kind::Struct) else {
            return;
        };
        let Some(member) = value.member_by_name(node) else {
            return;
        };
        let is_node = self
            .btf
            .type_by_id(member.type_id)
            .is_some_and(|t| t.name() == node_type);
        if let (true, Some(node_off)) = (is_node, member.byte_offset()) {
            self.push(kind, off, size, BtfOf::Program, value.id(), node_off);
        }
    }
}
