//! Kernel pointers in map values.

use crate::checker::Checker;
use crate::fail::{Errno, Res, fail, say};
use crate::record::{Field, FieldKind};
use crate::reg::{Base, BtfOf, Reg, RegType};
use bpfkit_isa::code;
use bpfkit_spec::TypeFlags;

use super::MemOp;

impl<'a> Checker<'a> {
    /// A load or store of a kernel pointer in a map value.
    pub(super) fn kptr_access(&mut self, op: &MemOp, field: &Field) -> Res {
        let insn = self.insn();
        let class = insn.class();
        if insn.code & 0xe0 != code::MEM {
            fail!(
                self,
                Acces,
                "kptr in map can only be accessed using BPF_MEM instruction mode\n"
            );
        }
        let held = matches!(field.kind, FieldKind::KptrRef | FieldKind::KptrPercpu);
        if class != code::LDX && held {
            fail!(self, Acces, "store to referenced kptr disallowed\n");
        }
        if class != code::LDX && field.kind == FieldKind::UserPtr {
            fail!(self, Acces, "store to uptr disallowed\n");
        }
        match class {
            code::LDX => {
                let Some(dst) = op.value else {
                    return Err(Errno::Fault);
                };
                if field.kind == FieldKind::UserPtr {
                    let size = self
                        .type_of(field.of, field.type_id)
                        .and_then(|t| t.size())
                        .unwrap_or(0);
                    let id = self.new_id();
                    let reg = self.reg_mut(dst);
                    reg.set_pointer(RegType::MEM.with(TypeFlags::PTR_MAYBE_NULL));
                    reg.set_mem_size(size);
                    reg.id = id;
                    return Ok(());
                }
                let flags = self.kptr_flags(field);
                self.kernel_objects = true;
                self.set_btf_pointer(dst, field.of, field.type_id, flags);
            }
            code::STX => {
                let Some(src) = op.value else {
                    return Err(Errno::Fault);
                };
                let reg = *self.reg(src);
                if !reg.is_null() && self.kptr_matches(field, &reg, src).is_err() {
                    return Err(Errno::Acces);
                }
            }
            code::ST => {
                if insn.imm != 0 {
                    let off = field.offset;
                    fail!(
                        self,
                        Acces,
                        "BPF_ST imm must be 0 when storing to kptr at off={off}\n"
                    );
                }
            }
            _ => fail!(
                self,
                Acces,
                "kptr in map can only be accessed using BPF_LDX/BPF_STX/BPF_ST\n"
            ),
        }
        Ok(())
    }

    /// What a pointer loaded from a map value may be used for.
    pub(super) fn kptr_flags(&mut self, field: &Field) -> TypeFlags {
        const RCU_PROTECTED: [&str; 5] = [
            "prog_test_ref_kfunc",
            "cgroup",
            "bpf_cpumask",
            "task_struct",
            "bpf_crypto_ctx",
        ];
        let protected = match field.kind {
            FieldKind::KptrPercpu => true,
            FieldKind::KptrRef => {
                field.of == BtfOf::Program
                    || RCU_PROTECTED.contains(&self.type_name(field.of, field.type_id))
            }
            _ => false,
        };
        let mut flags = TypeFlags::PTR_MAYBE_NULL;
        if !protected || !self.in_rcu_section() {
            return flags | TypeFlags::PTR_UNTRUSTED;
        }
        flags |= TypeFlags::MEM_RCU;
        if field.kind == FieldKind::KptrPercpu {
            flags |= TypeFlags::MEM_PERCPU;
        } else if field.of == BtfOf::Program {
            flags |= TypeFlags::MEM_ALLOC;
        }
        if field.of == BtfOf::Program && self.object_record(field.of, field.type_id).has_node() {
            flags |= TypeFlags::NON_OWN_REF;
        }
        flags
    }

    /// Checks that a pointer may be stored in a field.
    pub fn kptr_matches(&mut self, field: &Field, reg: &Reg, n: u8) -> Res {
        use TypeFlags as F;
        let target = self.type_name(field.of, field.type_id);
        let (of, id) = reg.btf();
        let mut allowed = if of == BtfOf::Kernel {
            F::PTR_MAYBE_NULL | F::PTR_TRUSTED | F::MEM_RCU
        } else {
            F::PTR_MAYBE_NULL | F::MEM_ALLOC
        };
        if of == BtfOf::Kernel && field.kind == FieldKind::KptrUntrusted {
            allowed |= F::PTR_UNTRUSTED;
        }
        if of == BtfOf::Program && field.kind == FieldKind::KptrPercpu {
            allowed |= F::MEM_PERCPU;
        }
        let mut name = "";
        let typed = reg.ty.base() == Base::BtfId && reg.ty.flags().less(allowed).is_empty();
        if typed {
            name = self.type_name(of, id);
            self.check_unmoved(reg, n, true).map_err(|_| Errno::Acces)?;
            let strict = field.kind != FieldKind::KptrUntrusted;
            if self.struct_ids_match((of, id), reg.off, (field.of, field.type_id), strict) {
                return Ok(());
            }
        }
        let ty = reg.ty;
        say!(
            self,
            "invalid kptr access, R{n} type={ty}{name} expected=ptr_{target}"
        );
        if field.kind == FieldKind::KptrUntrusted {
            say!(self, " or untrusted_ptr_{target}");
        }
        say!(self, "\n");
        Err(Errno::Inval)
    }
}
