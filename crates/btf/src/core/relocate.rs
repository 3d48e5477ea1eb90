//! The search for candidates and the decision among them.

use rustc_hash::FxHashMap;

use super::spec::Spec;
use super::{Budget, CoreError, ReloKind, Resolution};
use crate::btf::Btf;
use crate::ext::CoreRelo;
use crate::index::essential_name;
use crate::types::Type;

/// Resolves the relocations of one object against one target.
///
/// It remembers the candidates of each local type, and the results.
#[derive(Debug)]
pub struct Relocator<'a> {
    local: &'a Btf,
    kernel: Option<&'a Btf>,
    modules: Vec<&'a Btf>,
    /// Target types by local type; those that did not fit a field are dropped.
    candidates: FxHashMap<u32, Vec<Type<'a>>>,
    /// Results by type, accessor string and kind.
    known: FxHashMap<(u32, u32, u32), Resolution>,
    budget: Budget,
}

impl<'a> Relocator<'a> {
    /// `local` is the object's BTF, `kernel` that of the target (without one nothing
    /// is found there), `modules` the split BTFs of its modules, which are searched
    /// for types that the kernel proper does not have.
    pub fn new(local: &'a Btf, kernel: Option<&'a Btf>, modules: Vec<&'a Btf>) -> Self {
        Self {
            local,
            kernel,
            modules,
            candidates: FxHashMap::default(),
            known: FxHashMap::default(),
            budget: Budget::OBJECT,
        }
    }

    /// Finds the value of one relocation.
    ///
    /// That nothing fits is no error: the result then says 0, or is poison.
    ///
    /// # Errors
    /// The record does not fit the local type, or the candidates disagree.
    pub fn resolve(&mut self, relo: &CoreRelo) -> Result<Resolution, CoreError> {
        let key = (relo.type_id, relo.access_str_off, relo.kind);
        if let Some(known) = self.known.get(&key) {
            return Ok(*known);
        }
        let local = self
            .local
            .type_by_id(relo.type_id)
            .ok_or(CoreError::NoType)?;
        let is_local_id = relo.kind == ReloKind::TypeIdLocal as u32;
        // libbpf looks for candidates before it reads the accessor string.
        if !is_local_id && local.name().is_empty() {
            return Err(CoreError::Anonymous {
                type_id: local.id(),
                kind: local.kind().name(),
            });
        }
        let spec = self.parse(relo, local)?;
        let resolution = if is_local_id {
            let id = relo.type_id.into();
            Resolution {
                original: id,
                value: id,
                ..Resolution::default()
            }
        } else {
            self.decide(relo, local, &spec)?
        };
        self.known.insert(key, resolution);
        Ok(resolution)
    }

    /// What a relocation refers to, as libbpf prints it:
    /// `<byte_off> [7] struct task_struct.pid (0:3 @ offset 16)`.
    ///
    /// # Errors
    /// The record does not fit the local type.
    pub fn describe(&self, relo: &CoreRelo) -> Result<String, CoreError> {
        let local = self
            .local
            .type_by_id(relo.type_id)
            .ok_or(CoreError::NoType)?;
        self.parse(relo, local).map(|spec| spec.to_string())
    }

    fn parse(&self, relo: &CoreRelo, local: Type<'a>) -> Result<Spec<'a>, CoreError> {
        Spec::parse(self.local, relo).map_err(|errno| CoreError::Spec {
            type_id: local.id(),
            kind: local.kind().name(),
            name: if local.name().is_empty() {
                "<anon>"
            } else {
                local.name()
            }
            .into(),
            access: self
                .local
                .string(relo.access_str_off)
                .unwrap_or("<?>")
                .into(),
            errno: errno.0,
        })
    }

    /// Tries every candidate; those that fit must agree.
    fn decide(
        &mut self,
        relo: &CoreRelo,
        local: Type<'a>,
        spec: &Spec<'a>,
    ) -> Result<Resolution, CoreError> {
        let candidates = match self.candidates.remove(&local.id()) {
            Some(known) => known,
            None => self.find_candidates(local),
        };
        let mut fitting = Vec::new();
        let mut agreed: Option<(u32, Resolution)> = None;
        for (index, &candidate) in candidates.iter().enumerate() {
            let (target, found) = self.budget.candidate(|b| spec.find_in(candidate, b));
            match found {
                Ok(true) => {}
                Ok(false) => continue,
                Err(errno) => {
                    let spec = target.to_string();
                    return Err(CoreError::Match {
                        index,
                        spec,
                        errno: errno.0,
                    });
                }
            }
            let this = Resolution::compute(relo, spec, Some(&target))?;
            match agreed {
                None => agreed = Some((target.bit_offset, this)),
                Some((bit_offset, _)) if bit_offset != target.bit_offset => {
                    return Err(CoreError::OffsetAmbiguity(target.bit_offset, bit_offset));
                }
                Some((_, first)) if (first.poison, first.value) != (this.poison, this.value) => {
                    return Err(CoreError::DecisionAmbiguity(
                        (this.poison, this.value),
                        (first.poison, first.value),
                    ));
                }
                Some(_) => {}
            }
            fitting.push(candidate);
        }
        let kept = if fitting.is_empty() {
            candidates
        } else {
            fitting
        };
        self.candidates.insert(local.id(), kept);
        match agreed {
            Some((_, resolution)) => Ok(resolution),
            None => Resolution::compute(relo, spec, None),
        }
    }

    /// Types of the kernel with the local type's name up to a flavour and a kind that
    /// may stand for its own; where the kernel has none, those of the modules.
    fn find_candidates(&self, local: Type<'a>) -> Vec<Type<'a>> {
        let Some(kernel) = self.kernel else {
            return Vec::new();
        };
        let name = essential_name(local.name());
        let of = |btf: &'a Btf| {
            btf.own_by_essential_name(name)
                .filter(move |t| t.kind().core_compatible(local.kind()))
        };
        let mut found = Vec::new();
        // The target may itself be a module's BTF on its base.
        if let Some(base) = kernel.base() {
            found.extend(of(base).filter_map(|t| kernel.type_by_id(t.id())));
        }
        found.extend(of(kernel));
        if found.is_empty() {
            for &module in &self.modules {
                found.extend(of(module));
            }
        }
        found
    }
}
