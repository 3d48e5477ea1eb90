//! Calls of kernel functions whose last arguments the program does not know: sizes, what the
//! kernel keeps of structures, the program itself.

use bpfkit_isa::Insn;

use super::code::{mov, mov_imm};
use super::notes::Object;
use super::{Rewriter, Symbol};
use crate::kfunc::Special;

/// How parameters end that take the program itself.
const PROGRAM_SUFFIX: &str = "__prog";

impl Rewriter<'_, '_> {
    pub fn plan_kfunc(&mut self, at: u32, insn: &Insn) {
        // Functions of modules keep their arguments.
        let kfunc = self.checker.kfunc_of(insn).filter(|_| insn.off == 0);
        let Some(kfunc) = kfunc.map(|k| &self.checker.kfuncs[k]) else {
            return;
        };
        let (special, proto) = (kfunc.special, kfunc.proto);
        let note = self.note(at);
        let mut new = Vec::with_capacity(4);
        match special {
            // Casts that only the verifier sees.
            Special::CastToKernCtx | Special::RdonlyCast => {
                return self.replace(at, vec![mov(0, 1)]);
            }
            Special::ObjNew | Special::PercpuObjNew => {
                let bytes = note.object.map_or(0, |o| o.bytes);
                new.push(mov_imm(1, bytes as i32));
                new.extend(self.fields(at, 1, 2, note.object));
            }
            Special::ObjDrop | Special::PercpuObjDrop | Special::RefcountAcquire => {
                new.extend(self.fields(at, 0, 2, note.object));
            }
            Special::ListPushFront | Special::ListPushBack => {
                new.extend(self.fields(at, 0, 3, note.object));
                new.push(mov_imm(4, note.node_offset));
            }
            Special::RbtreeAdd => {
                new.extend(self.fields(at, 0, 4, note.object));
                new.push(mov_imm(5, note.node_offset));
            }
            _ => {
                let mut params = proto.params();
                let Some(n) = params.position(|p| p.name().ends_with(PROGRAM_SUFFIX)) else {
                    return;
                };
                new.extend(self.address(at, 0, n as u8 + 1, Symbol::Program));
            }
        }
        new.push(*insn);
        self.replace(at, new);
    }

    /// What the kernel keeps of the special fields of an object, null where it has none.
    fn fields(&mut self, at: u32, position: usize, dst: u8, object: Option<Object>) -> [Insn; 2] {
        match object.filter(|o| o.has_fields) {
            Some(object) => self.address(at, position, dst, Symbol::StructFields(object.type_id)),
            None => super::code::address(dst),
        }
    }
}
