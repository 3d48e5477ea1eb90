//! Access specifications: which field of which type an accessor string names, on the
//! local side, and the same field found again in a target type.

use std::fmt::{self, Write};

use super::{Budget, Errno, Family, ReloKind, compat};
use crate::btf::Btf;
use crate::ext::CoreRelo;
use crate::index::essential_name;
use crate::kind::Kind;
use crate::types::{Array, EnumValue, Member, Type};

/// Longest accessor string and deepest nesting (`BPF_CORE_SPEC_MAX_LEN`).
const MAX_LEN: usize = 64;

/// One step that has a meaning of its own: a named field or an array index. Anonymous
/// structures between them are only in the raw list.
#[derive(Clone, Debug)]
pub(crate) struct Accessor<'a> {
    /// The structure or union, or the type of the array's elements.
    pub type_id: u32,
    /// Member or element.
    pub index: u32,
    /// Name of the field or enumerator; `None` for an element.
    pub name: Option<&'a str>,
}

/// A root type and a place in it.
#[derive(Clone, Debug)]
pub(crate) struct Spec<'a> {
    pub btf: &'a Btf,
    /// As given, typedefs not resolved.
    pub root: u32,
    pub kind: ReloKind,
    pub accessors: Vec<Accessor<'a>>,
    /// Every index on the way, those through anonymous members too.
    pub raw: Vec<u32>,
    pub bit_offset: u32,
}

impl<'a> Spec<'a> {
    fn new(btf: &'a Btf, root: u32, kind: ReloKind) -> Self {
        Self {
            btf,
            root,
            kind,
            accessors: Vec::new(),
            raw: Vec::new(),
            bit_offset: 0,
        }
    }

    /// Reads a record against the object's own types.
    pub fn parse(btf: &'a Btf, relo: &CoreRelo) -> Result<Self, Errno> {
        let kind = ReloKind::from_u32(relo.kind).ok_or(Errno::EINVAL)?;
        let access = btf.string(relo.access_str_off).ok_or(Errno::EINVAL)?;
        let mut spec = Self::new(btf, relo.type_id, kind);
        if kind.family() == Family::Type {
            return if access == "0" {
                Ok(spec)
            } else {
                Err(Errno::EINVAL)
            };
        }
        for number in access.split(':') {
            if spec.raw.len() == MAX_LEN {
                return Err(Errno::E2BIG);
            }
            if !number.bytes().all(|b| b.is_ascii_digit()) {
                return Err(Errno::EINVAL);
            }
            let index: i32 = number.parse().map_err(|_| Errno::EINVAL)?;
            spec.raw.push(index as u32);
        }
        let root = btf.resolve(relo.type_id).ok_or(Errno::EINVAL)?;
        let first = spec.raw.first().copied().ok_or(Errno::EINVAL)?;
        if kind.family() == Family::Enumval {
            let value = root.enum_values().nth(first as usize);
            let value = value.filter(|_| spec.raw.len() == 1).ok_or(Errno::EINVAL)?;
            let name = Some(value.name());
            spec.accessors.push(Accessor {
                type_id: root.id(),
                index: first,
                name,
            });
            return Ok(spec);
        }
        spec.element(root, first)?;
        let mut at = root;
        for i in 1..spec.raw.len() {
            let index = spec.raw.get(i).copied().unwrap_or(0);
            at = spec.enter(at, index)?;
        }
        Ok(spec)
    }

    /// Goes from `at` into its member or element `index`, on the local side.
    fn enter(&mut self, at: Type<'a>, index: u32) -> Result<Type<'a>, Errno> {
        let next = if at.kind().is_composite() {
            let member = at.member(index).ok_or(Errno::EINVAL)?;
            self.bit_offset = self.bit_offset.wrapping_add(member.bit_offset);
            if member.name_off != 0 {
                let name = Some(member.name())
                    .filter(|n| !n.is_empty())
                    .ok_or(Errno::EINVAL)?;
                self.accessors.push(Accessor {
                    type_id: at.id(),
                    index,
                    name: Some(name),
                });
            }
            member.type_id
        } else {
            let array = at.array().ok_or(Errno::EINVAL)?;
            if !self.allows(array, index) {
                return Err(Errno::EINVAL);
            }
            let element = self.btf.resolve(array.element).ok_or(Errno::EINVAL)?;
            self.element(element, index)?;
            element.id()
        };
        self.btf.resolve(next).ok_or(Errno::EINVAL)
    }

    /// Adds the element `index` of an array of `of`.
    fn element(&mut self, of: Type<'a>, index: u32) -> Result<(), Errno> {
        self.accessors.push(Accessor {
            type_id: of.id(),
            index,
            name: None,
        });
        let size = self.btf.size_of(of.id()).ok_or(Errno::EINVAL)?;
        let bits = index.wrapping_mul(size).wrapping_mul(8);
        self.bit_offset = self.bit_offset.wrapping_add(bits);
        Ok(())
    }

    /// Whether an array that the last accessor reached has that element. The last
    /// member of a structure may be an array of no stated length.
    fn allows(&self, array: Array, index: u32) -> bool {
        index < array.count || array.count == 0 && self.is_last_member()
    }

    fn is_last_member(&self) -> bool {
        self.accessors
            .last()
            .filter(|a| a.name.is_some())
            .is_some_and(|a| {
                let members = self.btf.type_by_id(a.type_id).map_or(0, Type::vlen);
                a.index + 1 == members
            })
    }

    /// Finds in `target` what this specification names.
    ///
    /// The second value is whether it was found; the first is how far the search came.
    pub fn find_in<'t>(
        &self,
        target: Type<'t>,
        budget: &mut Budget,
    ) -> (Spec<'t>, Result<bool, Errno>) {
        let mut found = Spec::new(target.btf(), target.id(), self.kind);
        let result = match self.kind.family() {
            Family::Type => {
                let compare = match self.kind {
                    ReloKind::TypeMatches => super::matches::types_match,
                    _ => compat::types_are_compatible,
                };
                match self.btf.type_by_id(self.root) {
                    Some(local) => compare(local, target, budget),
                    None => Err(Errno::EINVAL),
                }
            }
            Family::Enumval => self.find_enumerator(&mut found, target, budget),
            Family::Field => self.find_field(&mut found, target, budget),
        };
        (found, result)
    }

    fn find_enumerator<'t>(
        &self,
        found: &mut Spec<'t>,
        target: Type<'t>,
        budget: &mut Budget,
    ) -> Result<bool, Errno> {
        let name = self
            .accessors
            .first()
            .and_then(|a| a.name)
            .ok_or(Errno::EINVAL)?;
        let target = target.resolve().ok_or(Errno::EINVAL)?;
        for (index, value) in (0..).zip(target.enum_values()) {
            budget.step()?;
            if essential_name(value.name()) == essential_name(name) {
                let name = Some(value.name());
                found.accessors.push(Accessor {
                    type_id: target.id(),
                    index,
                    name,
                });
                found.raw.push(index);
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn find_field<'t>(
        &self,
        found: &mut Spec<'t>,
        target: Type<'t>,
        budget: &mut Budget,
    ) -> Result<bool, Errno> {
        let mut at = target.id();
        for (i, accessor) in self.accessors.iter().enumerate() {
            budget.step()?;
            let here = found.btf.resolve(at).ok_or(Errno::EINVAL)?;
            if accessor.name.is_some() {
                let local = self.member(accessor).ok_or(Errno::EINVAL)?;
                match found.find_member(local, here, budget)? {
                    Some(type_id) => at = type_id,
                    None => return Ok(false),
                }
                continue;
            }
            // The first index goes over the root type itself, the others over arrays.
            let element = if i == 0 {
                here
            } else {
                let Some(array) = here.array() else {
                    return Ok(false);
                };
                if !found.allows(array, accessor.index) {
                    return Ok(false);
                }
                found.btf.resolve(array.element).ok_or(Errno::EINVAL)?
            };
            if found.raw.len() == MAX_LEN {
                return Err(Errno::E2BIG);
            }
            found.raw.push(accessor.index);
            found.element(element, accessor.index)?;
            at = element.id();
        }
        Ok(true)
    }

    /// Looks for a field like `local` in a target structure and its anonymous members.
    /// Gives the field's type, and `None` where there is none or it is incompatible.
    fn find_member(
        &mut self,
        local: Member<'_>,
        target: Type<'a>,
        budget: &mut Budget,
    ) -> Result<Option<u32>, Errno> {
        let name = local.name();
        for (index, member) in (0..).zip(target.members()) {
            budget.step()?;
            if self.raw.len() == MAX_LEN {
                return Err(Errno::E2BIG);
            }
            let before = self.bit_offset;
            self.raw.push(index);
            self.bit_offset = before.wrapping_add(member.bit_offset);
            let target_name = member.name();
            if target_name.is_empty() {
                let inner = self.btf.resolve(member.type_id).ok_or(Errno::EINVAL)?;
                if let Some(type_id) = self.find_member(local, inner, budget)? {
                    return Ok(Some(type_id));
                }
            } else if target_name == name {
                let field = local.type_in().zip(self.btf.type_by_id(member.type_id));
                let (local, field) = field.ok_or(Errno::EINVAL)?;
                return Ok(
                    compat::fields_are_compatible(local, field, budget)?.then(|| {
                        let name = Some(target_name);
                        self.accessors.push(Accessor {
                            type_id: target.id(),
                            index,
                            name,
                        });
                        member.type_id
                    }),
                );
            }
            self.bit_offset = before;
            self.raw.pop();
        }
        Ok(None)
    }

    /// The field that an accessor names.
    pub fn member(&self, accessor: &Accessor<'_>) -> Option<Member<'a>> {
        self.btf
            .type_by_id(accessor.type_id)?
            .member(accessor.index)
    }

    /// The enumerator that an enumeration's specification names.
    pub fn enumerator(&self) -> Option<EnumValue<'a>> {
        let accessor = self.accessors.first()?;
        self.btf
            .type_by_id(accessor.type_id)?
            .enum_values()
            .nth(accessor.index as usize)
    }
}

/// libbpf's notation: `<byte_off> [7] struct task_struct.pid (0:3 @ offset 16)`.
impl fmt::Display for Spec<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, name) = match self.btf.type_by_id(self.root) {
            Some(root) => (root.kind(), root.name()),
            None => (Kind::Void, ""),
        };
        let name = if name.is_empty() { "<anon>" } else { name };
        write!(
            f,
            "<{}> [{}] {} {name}",
            self.kind.name(),
            self.root,
            kind.name()
        )?;
        match self.kind.family() {
            Family::Type => Ok(()),
            Family::Enumval => match self.enumerator() {
                Some(value) => write!(f, "::{} = {}", value.name(), value.value()),
                None => Ok(()),
            },
            Family::Field => {
                for (i, accessor) in self.accessors.iter().enumerate() {
                    match accessor.name {
                        Some(name) => write!(f, ".{name}")?,
                        None if i > 0 || accessor.index > 0 => write!(f, "[{}]", accessor.index)?,
                        None => {}
                    }
                }
                f.write_str(" (")?;
                for (i, index) in self.raw.iter().enumerate() {
                    if i > 0 {
                        f.write_char(':')?;
                    }
                    write!(f, "{index}")?;
                }
                write!(f, " @ offset {}", self.bit_offset / 8)?;
                if !self.bit_offset.is_multiple_of(8) {
                    write!(f, ".{}", self.bit_offset % 8)?;
                }
                f.write_char(')')
            }
        }
    }
}
