//! Sizes, alignment, and what lies behind modifiers, typedefs and tags.

use rustc_hash::FxHashMap;

use crate::btf::Btf;
use crate::kind::Kind;
use crate::types::Type;

/// Longest chain of modifiers, typedefs and array dimensions that is followed
/// (`MAX_RESOLVE_DEPTH` of libbpf and of the kernel).
pub(crate) const MAX_DEPTH: u32 = 32;

/// Names of the C type `long`, whose size is that of a pointer.
const LONG: [&str; 11] = [
    "long",
    "long int",
    "int long",
    "unsigned long",
    "long unsigned",
    "unsigned long int",
    "unsigned int long",
    "long unsigned int",
    "long int unsigned",
    "int unsigned long",
    "int long unsigned",
];

impl Btf {
    /// Bytes of a pointer: the size of the integer named `long` (or one of its other
    /// spellings), 8 where there is none.
    pub fn pointer_size(&self) -> u32 {
        *self.pointer_size.get_or_init(|| {
            let of_base = self.base().and_then(|b| b.found_pointer_size());
            of_base.or_else(|| self.found_pointer_size()).unwrap_or(8)
        })
    }

    fn found_pointer_size(&self) -> Option<u32> {
        self.own_types()
            .filter(|t| t.is(Kind::Int) && matches!(t.size(), Some(4 | 8)))
            .find(|t| LONG.contains(&t.name()))
            .and_then(Type::size)
    }

    /// The type behind modifiers, type tags and typedefs; void resolves to void.
    ///
    /// `None` where the id does not exist or the chain is a circle (or longer than 32).
    pub fn resolve(&self, id: u32) -> Option<Type<'_>> {
        self.follow(id, Kind::is_transparent)
    }

    /// The type behind modifiers and type tags, typedefs kept.
    pub fn skip_modifiers(&self, id: u32) -> Option<Type<'_>> {
        self.follow(id, Kind::is_modifier)
    }

    fn follow(&self, id: u32, through: impl Fn(Kind) -> bool) -> Option<Type<'_>> {
        let mut t = self.type_by_id(id)?;
        for _ in 0..=MAX_DEPTH {
            if !through(t.kind()) {
                return Some(t);
            }
            t = t.target()?;
        }
        None
    }

    /// Bytes that a value of the type takes.
    ///
    /// `None` for void, functions, forward declarations, circles, and sizes past 32 bits
    /// (libbpf's `btf__resolve_size`).
    pub fn size_of(&self, id: u32) -> Option<u32> {
        let mut t = self.type_by_id(id)?;
        let mut count = 1u32;
        for _ in 0..MAX_DEPTH {
            let next = match t.kind() {
                Kind::Ptr => return count.checked_mul(self.pointer_size()),
                Kind::Var | Kind::DeclTag => t.type_id(),
                kind if kind.is_transparent() => t.type_id(),
                Kind::Array => {
                    let array = t.array()?;
                    count = count.checked_mul(array.count)?;
                    array.element
                }
                _ => return count.checked_mul(t.size()?),
            };
            t = self.type_by_id(next)?;
        }
        None
    }

    /// Alignment in bytes that a compiler gives the type, 1 for packed structures.
    ///
    /// `None` where the type has none (libbpf's `btf__align_of`).
    pub fn align_of(&self, id: u32) -> Option<u32> {
        Alignments::new(self).of(id)
    }

    /// The type tags between a pointer and what it points to, outermost first, and the
    /// pointed-to type with its other modifiers.
    ///
    /// For `int __kptr *` the tags are `["kptr"]`. `None` where the id is no pointer.
    pub fn pointer_tags(&self, pointer: u32) -> Option<(Vec<&str>, Type<'_>)> {
        let pointer = self.resolve(pointer).filter(|t| t.is(Kind::Ptr))?;
        let mut tags = Vec::new();
        let mut t = pointer.target()?;
        for _ in 0..MAX_DEPTH {
            if !t.is(Kind::TypeTag) {
                return Some((tags, t));
            }
            tags.push(t.name());
            t = t.target()?;
        }
        None
    }
}

/// Alignments that were already worked out, so that nested structures are not walked
/// again and again.
#[derive(Debug)]
pub(crate) struct Alignments<'a> {
    btf: &'a Btf,
    known: FxHashMap<u32, Option<u32>>,
}

impl<'a> Alignments<'a> {
    /// Structures nested deeper than this have no alignment.
    const NESTING: u32 = 128;

    pub fn new(btf: &'a Btf) -> Self {
        Self {
            btf,
            known: FxHashMap::default(),
        }
    }

    pub fn of(&mut self, id: u32) -> Option<u32> {
        self.at_depth(id, Self::NESTING)
    }

    fn at_depth(&mut self, id: u32, depth: u32) -> Option<u32> {
        let depth = depth.checked_sub(1)?;
        // `t` is the type behind what does not change the alignment.
        let mut t = self.btf.type_by_id(id)?;
        for _ in 0..MAX_DEPTH {
            t = match t.kind() {
                Kind::Array => self.btf.type_by_id(t.array()?.element)?,
                kind if kind.is_transparent() => t.target()?,
                _ => break,
            };
        }
        match t.kind() {
            Kind::Int | Kind::Enum | Kind::Enum64 | Kind::Float => {
                Some(t.size()?.min(self.btf.pointer_size()))
            }
            Kind::Ptr => Some(self.btf.pointer_size()),
            Kind::Struct | Kind::Union => {
                if let Some(&known) = self.known.get(&t.id()) {
                    return known;
                }
                // A structure that contains itself has no alignment.
                self.known.insert(t.id(), None);
                let align = self.of_composite(t, depth);
                self.known.insert(t.id(), align);
                align
            }
            _ => None,
        }
    }

    fn of_composite(&mut self, t: Type<'_>, depth: u32) -> Option<u32> {
        let mut widest = 1;
        for member in t.members() {
            let align = self.at_depth(member.type_id, depth).filter(|&a| a > 0)?;
            widest = widest.max(align);
            // A member that is not where its type would put it shows a packed structure.
            if member.bitfield_size == 0 && member.bit_offset % align.saturating_mul(8) != 0 {
                return Some(1);
            }
        }
        if t.size()?.is_multiple_of(widest) {
            Some(widest)
        } else {
            Some(1)
        }
    }
}
