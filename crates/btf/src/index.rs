//! Indexes over the types, made when first asked for.

use std::hash::Hasher;

use rustc_hash::FxHasher;

use crate::btf::Btf;
use crate::kind::Kind;
use crate::types::Type;

/// No type: ends a chain (0 is void, which has no name).
const END: u32 = 0;

/// Types by name: a hash table of chains through the own types, in order of id.
///
/// The hash is that of the [`essential_name`], so that one table serves exact
/// look-ups and the search for CO-RE candidates.
pub(crate) struct NameIndex {
    /// First type of each bucket.
    heads: Box<[u32]>,
    /// Next type in the same bucket, by own type.
    nexts: Box<[u32]>,
    mask: usize,
}

impl NameIndex {
    fn build(btf: &Btf) -> Self {
        let count = (btf.type_count() - btf.first_id()) as usize;
        let buckets = (count + 1).next_power_of_two();
        let mut index = Self {
            heads: vec![END; buckets].into(),
            nexts: vec![END; count].into(),
            mask: buckets - 1,
        };
        // Backwards, so that each chain runs upwards.
        for id in (btf.first_id()..btf.type_count()).rev() {
            let name = btf
                .record(id)
                .and_then(|r| btf.string(*r.first()?))
                .unwrap_or("");
            if name.is_empty() {
                continue;
            }
            let bucket = index.bucket(essential_name(name));
            if let (Some(head), Some(next)) = (
                index.heads.get_mut(bucket),
                index.nexts.get_mut((id - btf.first_id()) as usize),
            ) {
                *next = std::mem::replace(head, id);
            }
        }
        index
    }

    fn bucket(&self, essential: &str) -> usize {
        let mut hasher = FxHasher::default();
        hasher.write(essential.as_bytes());
        hasher.finish() as usize & self.mask
    }
}

/// Declaration tags by what they are on.
pub(crate) struct TagIndex {
    /// Tagged type and tag, in this order.
    pairs: Box<[(u32, u32)]>,
}

impl Btf {
    /// The types of this BTF itself whose names are `name` up to a flavour, in order
    /// of id.
    pub(crate) fn own_by_essential_name<'a>(
        &'a self,
        name: &'a str,
    ) -> impl Iterator<Item = Type<'a>> + 'a {
        let index = self.names.get_or_init(|| NameIndex::build(self));
        let mut next = index.heads.get(index.bucket(name)).copied().unwrap_or(END);
        std::iter::from_fn(move || {
            let id = (next != END).then_some(next)?;
            next = index
                .nexts
                .get((id - self.first_id()) as usize)
                .copied()
                .unwrap_or(END);
            Some(id)
        })
        .filter_map(|id| self.type_by_id(id))
        .filter(move |t| essential_name(t.name()) == name)
    }

    /// The types with that name, of any kind, the base's first, in order of id.
    pub fn all_by_name<'a>(&'a self, name: &'a str) -> Box<dyn Iterator<Item = Type<'a>> + 'a> {
        let own = self
            .own_by_essential_name(essential_name(name))
            .filter(move |t| t.name() == name);
        match self.base() {
            // Through `self`, so that the views resolve like any other of this BTF.
            Some(base) => Box::new(
                base.all_by_name(name)
                    .filter_map(|t| self.type_by_id(t.id()))
                    .chain(own),
            ),
            None => Box::new(own),
        }
    }

    /// The first type with that name and kind.
    pub fn by_name(&self, name: &str, kind: Kind) -> Option<Type<'_>> {
        let found = self.all_by_name(name).find(|t| t.kind() == kind)?.id();
        self.type_by_id(found)
    }

    /// The tags that `btf_decl_tag` put on a type, its members or its parameters, in
    /// order of id; each has its [`component`](Type::component) and its text as name.
    pub fn decl_tags(&self, id: u32) -> impl Iterator<Item = Type<'_>> {
        let index = self.tags.get_or_init(|| TagIndex::build(self));
        let start = index.pairs.partition_point(|&(target, _)| target < id);
        let tags = index.pairs.get(start..).unwrap_or(&[]);
        tags.iter()
            .take_while(move |p| p.0 == id)
            .filter_map(|p| self.type_by_id(p.1))
    }

    /// Whether a type as a whole (not a member) carries the declaration tag `text`.
    pub fn has_decl_tag(&self, id: u32, text: &str) -> bool {
        self.decl_tags(id)
            .any(|tag| tag.component().is_none() && tag.name() == text)
    }
}

impl TagIndex {
    fn build(btf: &Btf) -> Self {
        let mut pairs: Vec<_> = (1..btf.type_count())
            .filter(|&id| btf.kind(id) == Some(Kind::DeclTag))
            .filter_map(|id| Some((btf.type_by_id(id)?.type_id(), id)))
            .collect();
        pairs.sort_unstable();
        Self {
            pairs: pairs.into(),
        }
    }
}

/// The name up to a CO-RE flavour, `___` between two other characters: `task_struct`
/// of `task_struct___v5`. The last such place counts (libbpf's
/// `bpf_core_essential_name_len`).
pub fn essential_name(name: &str) -> &str {
    let bytes = name.as_bytes();
    // Backwards over the first of the three. Where there is no underscore, neither of
    // the two places before it can be the first either.
    let mut at = bytes.len().saturating_sub(4);
    while at > 0 {
        match bytes.get(at - 1..at + 4) {
            Some(&[before, b'_', b'_', b'_', after]) if before != b'_' && after != b'_' => {
                return name.get(..at).unwrap_or(name);
            }
            Some(&[_, b'_', ..]) | None => at -= 1,
            Some(_) => at = at.saturating_sub(3),
        }
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flavours_are_cut_where_libbpf_cuts_them() {
        for (name, essential) in [
            ("task_struct", "task_struct"),
            ("task_struct___v5", "task_struct"),
            ("a___b___c", "a___b"),
            ("a____b", "a____b"),
            ("___b", "___b"),
            ("a___", "a___"),
            ("a___b", "a"),
            ("", ""),
            ("é___b", "é"),
        ] {
            assert_eq!(essential_name(name), essential, "{name}");
        }
    }
}
