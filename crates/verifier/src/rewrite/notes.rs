//! What the walk notes for rewriting, where that is asked for: what it knows of a call or of
//! arithmetic when it comes there and nothing else keeps.

use crate::args::func;
use crate::checker::Checker;
use crate::kfunc::Special;
use crate::reg::{BtfOf, Reg};

/// Of one instruction; where paths differ the last one counts, as in Linux.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Note {
    /// The allocated object that a call makes, frees or links: its type in the program's BTF,
    /// its bytes, and whether the kernel must look after fields of it.
    pub object: Option<Object>,
    /// Offset of the node that is linked.
    pub node_offset: i32,
    /// Some path comes here where it must not sleep.
    pub atomic: bool,
    /// The argument is a per-CPU object that the program allocated.
    pub percpu_object: bool,
    /// Arithmetic on an address of an arena.
    pub on_arena: bool,
}

/// An allocated object.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Object {
    pub type_id: u32,
    pub bytes: u32,
    pub has_fields: bool,
}

impl Checker<'_> {
    fn note(&mut self) -> Option<&mut Note> {
        let at = self.insn;
        let gatherer = self.gatherer.as_mut()?;
        Some(gatherer.notes.entry(at).or_default())
    }

    fn object(&mut self, of: BtfOf, type_id: u32) -> Option<Object> {
        let bytes = self.type_of(of, type_id)?.size().unwrap_or(0);
        let has_fields = !self.object_record(of, type_id).fields.is_empty();
        Some(Object {
            type_id,
            bytes,
            has_fields,
        })
    }

    /// Notes a call of a kernel function, its arguments still there: the object is the one that
    /// the verifier found, of a node the one that it is part of.
    pub fn note_kfunc(
        &mut self,
        special: Special,
        constant: Option<u64>,
        object: Option<(BtfOf, u32)>,
    ) {
        if !self.env.rewrite {
            return;
        }
        let node: Reg = *self.reg(2);
        let (object, node_offset) = match special {
            Special::ObjNew | Special::PercpuObjNew => {
                let id = constant.and_then(|id| u32::try_from(id).ok());
                (id.map(|id| (BtfOf::Program, id)), 0)
            }
            Special::ListPushFront | Special::ListPushBack | Special::RbtreeAdd => {
                (Some(node.btf()), node.off)
            }
            Special::ObjDrop | Special::PercpuObjDrop | Special::RefcountAcquire => (object, 0),
            _ => return,
        };
        let object = object.and_then(|(of, id)| self.object(of, id));
        if let Some(note) = self.note() {
            note.object = object;
            note.node_offset = node_offset;
        }
    }

    /// Notes a call of a helper.
    pub fn note_helper(&mut self, id: i32, percpu_object: bool) {
        if !self.env.rewrite || !(percpu_object || func::STORAGE_GET.contains(&id)) {
            return;
        }
        let cur = &self.cur;
        let atomic = cur.active_rcu || cur.active_preempt > 0 || cur.active_irq != 0;
        if let Some(note) = self.note() {
            note.atomic |= atomic;
            note.percpu_object |= percpu_object;
        }
    }

    /// Notes arithmetic on an address of an arena.
    pub fn note_arena(&mut self) {
        if self.env.rewrite
            && let Some(note) = self.note()
        {
            note.on_arena = true;
        }
    }
}
