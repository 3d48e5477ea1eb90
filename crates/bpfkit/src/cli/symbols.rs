//! Names for the numbers in a program's instructions.

use std::borrow::Cow;

use bpfkit_isa::Imm64;
use bpfkit_isa::disasm::Symbols;
use bpfkit_object::{MapDef, Program, RefTarget};
use bpfkit_spec::helper;

/// Helper names alone, for programs without an object.
pub struct HelperNames;

impl Symbols for HelperNames {
    fn helper(&self, id: i32) -> Option<Cow<'_, str>> {
        helper::by_id(id).map(|helper| helper.full_name().into())
    }
}

/// Names from a linked program: maps, subprograms, kfuncs, kernel variables.
pub struct ProgramNames<'a> {
    /// The program.
    pub program: &'a Program,
    /// Maps of its object.
    pub maps: &'a [MapDef],
}

impl ProgramNames<'_> {
    fn target(&self, at: usize) -> Option<&RefTarget> {
        let refs = &self.program.refs;
        let index = refs
            .binary_search_by_key(&at, |reference| reference.insn as usize)
            .ok()?;
        Some(&refs[index].target)
    }
}

impl Symbols for ProgramNames<'_> {
    fn helper(&self, id: i32) -> Option<Cow<'_, str>> {
        HelperNames.helper(id).map(|name| name.into_owned().into())
    }

    fn kfunc(&self, btf_id: i32, _btf_index: i16) -> Option<Cow<'_, str>> {
        self.program.refs.iter().find_map(|reference| {
            let insn = self.program.insns.get(reference.insn as usize)?;
            match &reference.target {
                RefTarget::Kfunc { name, .. } if insn.imm == btf_id => Some(name.as_str().into()),
                _ => None,
            }
        })
    }

    fn label(&self, slot: usize) -> Option<Cow<'_, str>> {
        let function = self
            .program
            .subprograms
            .iter()
            .find(|f| f.start as usize == slot)?;
        Some(function.name.as_str().into())
    }

    fn imm64(&self, at: usize, value: Imm64) -> Option<Cow<'_, str>> {
        match (self.target(at)?, value) {
            (RefTarget::Map(index), Imm64::MapIdxValue { off, .. }) => {
                let map = self.maps.get(*index as usize)?;
                Some(format!("map[{}][0]+{off}", map.name).into())
            }
            (RefTarget::Map(index), _) => {
                Some(format!("map[{}]", self.maps.get(*index as usize)?.name).into())
            }
            (RefTarget::Ksym { name, .. }, _) => Some(name.as_str().into()),
            (RefTarget::Subprogram(index), _) => {
                let function = self.program.subprograms.get(*index as usize)?;
                Some(format!("subprog[{}]", function.name).into())
            }
            _ => None,
        }
    }
}
