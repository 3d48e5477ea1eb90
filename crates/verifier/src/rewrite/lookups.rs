//! Lookups in a map that all paths agree on, written out (the `map_gen_lookup` functions of the
//! map types).

use bpfkit_isa::{Insn, code};
use bpfkit_spec::MapType;

use super::code::*;
use super::{Rewriter, Symbol};

/// `BPF_F_INNER_MAP`: maps of a map of maps may differ in size.
const INNER_MAP: u32 = 1 << 12;

/// The index in R0 times the size of an element.
fn scaled(bytes: i32) -> Insn {
    match bytes.cast_unsigned().is_power_of_two() {
        true => alu_imm(code::ALU64, code::LSH, 0, bytes.trailing_zeros() as i32),
        false => alu_imm(code::ALU64, code::MUL, 0, bytes),
    }
}

impl Rewriter<'_, '_> {
    pub fn plan_lookup(&mut self, at: u32, insn: &Insn) {
        match self.lookup(at) {
            Some(new) => self.replace(at, new),
            None => self.plan_call(at, &[], insn),
        }
    }

    fn lookup(&mut self, at: u32) -> Option<Vec<Insn>> {
        let map = self.call(at)?.map?;
        let info = self.checker.maps.get(map as usize)?;
        if info.flags & INNER_MAP != 0 {
            return None;
        }
        let (entries, key_size) = (info.max_entries as i32, info.key_size);
        let element = info.value_size.next_multiple_of(8) as i32;
        match info.map_type {
            MapType::Array => {
                let tail = [scaled(element), alu(code::ALU64, code::ADD, 0, 1)];
                self.in_array(entries, &tail)
            }
            MapType::PercpuArray => {
                let tail = [
                    alu_imm(code::ALU64, code::LSH, 0, 3),
                    alu(code::ALU64, code::ADD, 0, 1),
                    load(code::DW, 0, 0, 0),
                    mov_percpu(0, 0),
                ];
                self.in_array(entries, &tail)
            }
            MapType::ArrayOfMaps => {
                let tail = [
                    scaled(element),
                    alu(code::ALU64, code::ADD, 0, 1),
                    load(code::DW, 0, 0, 0),
                    jump_imm(code::JMP, code::JEQ, 0, 0, 1),
                ];
                self.in_array(entries, &tail)
            }
            MapType::Xskmap => {
                let sockets = self.kernel_offset("xsk_map", "xsk_map")? as i32;
                Some(vec![
                    load(code::W, 0, 2, 0),
                    jump_imm(code::JMP, code::JGE, 0, entries, 5),
                    alu_imm(code::ALU64, code::LSH, 0, 3),
                    alu_imm(code::ALU64, code::ADD, 1, sockets),
                    alu(code::ALU64, code::ADD, 0, 1),
                    load(code::DW, 0, 0, 0),
                    goto(1),
                    mov_imm(0, 0),
                ])
            }
            MapType::Hash => self.in_hash(at, key_size, &[], &[]),
            MapType::LruHash => {
                // The element counts as used from now on.
                let used = self.kernel_offset("htab_elem", "lru_node")?
                    + self.kernel_offset("bpf_lru_node", "ref")?;
                let used = i16::try_from(used).ok()?;
                let mark = [
                    load(code::B, 1, 0, used),
                    jump_imm(code::JMP, code::JNE, 1, 0, 1),
                    store_imm(code::B, 0, used, 1),
                ];
                self.in_hash(at, key_size, &mark, &[])
            }
            MapType::PercpuHash => {
                let value = [load(code::DW, 0, 0, 0), mov_percpu(0, 0)];
                self.in_hash(at, key_size, &[], &value)
            }
            MapType::HashOfMaps => self.in_hash(at, key_size, &[], &[load(code::DW, 0, 0, 0)]),
            _ => None,
        }
    }

    /// The index is compared, the rest makes a value's address of it; else null.
    fn in_array(&self, entries: i32, rest: &[Insn]) -> Option<Vec<Insn>> {
        let values = self.kernel_offset("bpf_array", "value")? as i32;
        let mut new = vec![
            alu_imm(code::ALU64, code::ADD, 1, values),
            load(code::W, 0, 2, 0),
            jump_imm(code::JMP, code::JGE, 0, entries, rest.len() as i16 + 1),
        ];
        new.extend_from_slice(rest);
        new.extend([goto(1), mov_imm(0, 0)]);
        Some(new)
    }

    /// The element is found by a call; the value lies behind the key.
    fn in_hash(
        &mut self,
        at: u32,
        key_size: u32,
        found: &[Insn],
        rest: &[Insn],
    ) -> Option<Vec<Insn>> {
        let key = self.kernel_offset("htab_elem", "key")?;
        let value = key + key_size.next_multiple_of(8);
        self.symbols
            .push((at, 0, Symbol::Function("__htab_map_lookup_elem")));
        let past = found.len() + 1 + rest.len();
        let mut new = vec![
            call_kernel(),
            jump_imm(code::JMP, code::JEQ, 0, 0, past as i16),
        ];
        new.extend_from_slice(found);
        new.push(alu_imm(code::ALU64, code::ADD, 0, value as i32));
        new.extend_from_slice(rest);
        Some(new)
    }
}
