//! Objects on the stack and in graphs that kernel functions get: dynptrs, iterators, saved interrupt flags, lists and trees.

use crate::checker::Checker;
use crate::fail::{Errno, Res, fail, say};
use crate::record::{Field, FieldKind};
use crate::reg::{BtfOf, Reg, RegType};
use crate::state::{LockHome, RefKind};
use bpfkit_btf::{Param, Type};
use bpfkit_spec::kfunc::Flags;
use bpfkit_spec::{AttachType, ProgType, TypeFlags};

use super::{Info, Kfunc, Special};

impl<'a> Checker<'a> {
    pub(super) fn kfunc_dynptr(
        &mut self,
        kfunc: &Kfunc<'a>,
        n: u8,
        reg: &Reg,
        param: &Param<'a>,
        info: &mut Info,
    ) -> Res {
        let mut flags = TypeFlags::NONE;
        let mut clone_of = 0;
        if reg.ty == RegType::CONST_DYNPTR {
            flags |= TypeFlags::MEM_RDONLY;
        }
        let uninit = param.name().ends_with("__uninit");
        if uninit {
            flags |= TypeFlags::MEM_UNINIT;
        }
        match kfunc.special {
            Special::DynptrFromSkb => flags |= TypeFlags::DYNPTR_TYPE_SKB,
            Special::DynptrFromXdp => flags |= TypeFlags::DYNPTR_TYPE_XDP,
            Special::DynptrFromSkbMeta => flags |= TypeFlags::DYNPTR_TYPE_SKB_META,
            Special::DynptrClone if uninit => {
                let Some((_, kind, reference)) = info.dynptr else {
                    return Err(Errno::Fault);
                };
                flags |= kind.flag();
                clone_of = reference;
            }
            _ => {}
        }
        self.dynptr_arg(n, flags, clone_of)?;
        if !uninit && let Some(dynptr) = self.dynptr_at(reg) {
            info.dynptr = Some((dynptr.id, dynptr.dynptr_kind(), dynptr.ref_obj_id));
        }
        Ok(())
    }

    pub(super) fn kfunc_iter(
        &mut self,
        kfunc: &Kfunc<'a>,
        n: u8,
        reg: &Reg,
        pointee: Option<Type<'a>>,
        info: &mut Info,
    ) -> Res {
        let at = n - 1;
        if kfunc.special == Special::IterCssTaskNew {
            let iter = self.prog_type() == ProgType::Tracing
                && self.attach.caller.attach_type == AttachType::TraceIter;
            if self.prog_type() != ProgType::Lsm && !iter && !self.may_sleep() {
                fail!(
                    self,
                    Inval,
                    "css_task_iter is only allowed in bpf_lsm, bpf_iter and sleepable progs\n"
                );
            }
        }
        if reg.ty != RegType::STACK {
            fail!(
                self,
                Inval,
                "arg#{at} expected pointer to an iterator on stack\n"
            );
        }
        let name = pointee.and_then(|t| t.name().strip_prefix("bpf_iter_"));
        let size = pointee
            .and_then(|t| t.size())
            .filter(|s| *s > 0 && s % 8 == 0);
        let (Some(name), Some(size), Some(t)) = (name, size, pointee) else {
            fail!(self, Inval, "expected valid iter pointer as arg #{at}\n");
        };
        let slots = size as usize / 8;
        let of = (BtfOf::Kernel, t.id());
        if kfunc.flags.has(Flags::ITER_NEW) {
            if !self.iter_fits(reg, slots) {
                fail!(
                    self,
                    Inval,
                    "expected uninitialized iter_{name} as arg #{at}\n"
                );
            }
            self.write_object(n, slots)?;
            let rcu = kfunc
                .flags
                .has(Flags::RCU_PROTECTED)
                .then(|| self.in_rcu_section());
            return self.make_iter(reg, rcu, of, slots);
        }
        let first = match self.iter_at(reg, of, slots) {
            Ok(first) => first,
            Err(Errno::Proto) => {
                let fname = kfunc.name;
                fail!(self, Proto, "expected an RCU CS when using {fname}\n");
            }
            Err(_) => fail!(
                self,
                Inval,
                "expected an initialized iter_{name} as arg #{at}\n"
            ),
        };
        self.note_object_read(reg.frameno, first, slots);
        info.iter = Some((reg.frameno, first));
        info.ref_obj_id = self.slot(reg.frameno, first).reg.ref_obj_id;
        if kfunc.flags.has(Flags::ITER_DESTROY) {
            self.end_iter(reg, slots)?;
        }
        Ok(())
    }

    pub(super) fn irq_flag_arg(&mut self, kfunc: &Kfunc<'_>, n: u8, reg: &Reg) -> Res {
        let at = n - 1;
        let class = u32::from(matches!(
            kfunc.special,
            Special::ResSpinLockIrqsave | Special::ResSpinUnlockIrqrestore
        ));
        if matches!(
            kfunc.special,
            Special::LocalIrqSave | Special::ResSpinLockIrqsave
        ) {
            if !self.irq_flag_fits(reg) {
                fail!(self, Inval, "expected uninitialized irq flag as arg#{at}\n");
            }
            self.write_object(n, 1)?;
            return self.make_irq_flag(reg, class);
        }
        let Some(slot) = self.irq_flag_at(reg) else {
            fail!(
                self,
                Inval,
                "expected an initialized irq flag as arg#{at}\n"
            );
        };
        self.note_object_read(reg.frameno, slot, 1);
        self.end_irq_flag(reg, class)
    }

    /// The list head or tree root that an argument points to; its lock must be held.
    pub(super) fn graph_root(&mut self, n: u8, reg: &Reg, kind: FieldKind) -> Res<Field> {
        let name = kind.name();
        if !reg.range.bits.is_const() {
            fail!(
                self,
                Inval,
                "R{n} doesn't have constant offset. {name} has to be at the constant offset\n"
            );
        }
        let off = reg.const_off() as u32;
        let record = self.reg_record(reg);
        let Some(field) = record.at(off as u64, |k| k == kind) else {
            fail!(self, Inval, "{name} not found at offset={off}\n");
        };
        let home = match reg.map() {
            Some(map) if reg.ty == RegType::MAP_VALUE => LockHome::Map(map as u32),
            _ => LockHome::Object,
        };
        let kinds = [RefKind::Lock, RefKind::ResLock, RefKind::ResLockIrq];
        if self.cur.active_locks == 0 || !self.cur.holds_lock(&kinds, reg.id, home) {
            if self.cur.active_locks != 0 {
                say!(
                    self,
                    "held lock and object are not in the same allocation\n"
                );
            }
            let at = record
                .offset_of(FieldKind::SpinLock)
                .map_or(-22, |o| o as i32);
            fail!(
                self,
                Inval,
                "bpf_spin_lock at off={at} must be held for {name}\n"
            );
        }
        Ok(*field)
    }

    /// Checks that an argument is a node of the list or tree given before.
    pub(super) fn graph_node(&mut self, n: u8, reg: &Reg, kind: FieldKind, info: &mut Info) -> Res {
        let name = kind.name();
        if !reg.range.bits.is_const() {
            fail!(
                self,
                Inval,
                "R{n} doesn't have constant offset. {name} has to be at the constant offset\n"
            );
        }
        let off = reg.const_off() as u32;
        if self.reg_record(reg).at(off as u64, |k| k == kind).is_none() {
            fail!(self, Inval, "{name} not found at offset={off}\n");
        }
        let Some(root) = info.root else {
            return Err(Errno::Fault);
        };
        let (wanted, at) = (self.type_name(root.of, root.type_id), root.node_offset);
        if !self.struct_ids_match(reg.btf(), 0, (root.of, root.type_id), true) {
            let (of, id) = reg.btf();
            let have = self.type_name(of, id);
            let head = root.kind.name();
            fail!(
                self,
                Inval,
                "operation on {head} expects arg#1 {name} at offset={at} in struct {wanted}, but arg is at offset={off} in struct {have}\n"
            );
        }
        info.object = Some(reg.btf());
        if off != at {
            fail!(
                self,
                Inval,
                "arg#1 offset={off}, but expected {name} at offset={at} in struct {wanted}\n"
            );
        }
        Ok(())
    }
}
