//! What a call of a kernel function returns.

use crate::checker::Checker;
use crate::fail::{Errno, Res, fail};
use crate::record::FieldKind;
use crate::reg::{BtfOf, RegType};
use crate::stack::Access;
use crate::walk::peel;
use bpfkit_btf::Kind;
use bpfkit_spec::kfunc::Flags;
use bpfkit_spec::{TypeFlags, context};

use super::{Info, Kfunc, MAX_PERCPU_OBJECT, Special};

impl<'a> Checker<'a> {
    pub(super) fn set_kfunc_result(&mut self, kfunc: &Kfunc<'a>, info: &mut Info) -> Res {
        let Some(btf) = self.kernel() else {
            return Err(Errno::Fault);
        };
        let name = kfunc.name;
        let ret = peel(btf, kfunc.proto.type_id());
        let Some(ret) = ret.filter(|t| t.id() != 0) else {
            return Ok(());
        };
        let pointee = ret
            .is(Kind::Ptr)
            .then(|| peel(btf, ret.type_id()))
            .flatten();
        let to_struct = pointee.filter(|t| matches!(t.kind(), Kind::Struct | Kind::Union));
        let acquires = kfunc.flags.has(Flags::ACQUIRE);
        let allocates = matches!(
            kfunc.special,
            Special::ObjNew | Special::PercpuObjNew | Special::RefcountAcquire
        );
        if acquires && to_struct.is_none() && !allocates {
            fail!(
                self,
                Inval,
                "acquire kernel function does not return PTR_TO_BTF_ID\n"
            );
        }
        if !ret.is(Kind::Ptr) {
            self.set_unknown(0);
            if matches!(
                kfunc.special,
                Special::ResSpinLock | Special::ResSpinLockIrqsave
            ) {
                self.set_zero(0);
            }
            return Ok(());
        }
        let node = to_struct.map_or("", |t| t.name());
        let is_node = matches!(node, "bpf_list_node" | "bpf_rb_node");
        if self.set_special_result(kfunc, info, is_node)? {
        } else if pointee.is_none_or(|t| t.id() == 0) {
            self.set_unknown(0);
        } else if let Some(object) = to_struct {
            let mut ty = RegType::BTF_ID;
            if kfunc.special == Special::GetKmemCache {
                ty = ty.with(TypeFlags::PTR_UNTRUSTED);
            } else if kfunc.flags.has(Flags::RCU_PROTECTED) {
                ty = ty.with(TypeFlags::MEM_RCU);
            }
            if let (true, Some((frame, slot))) = (kfunc.is_iter_next(), info.iter) {
                let rcu = self.slot(frame, slot).reg.ty.has(TypeFlags::MEM_RCU);
                ty = ty.with(if rcu {
                    TypeFlags::MEM_RCU
                } else {
                    TypeFlags::PTR_TRUSTED
                });
            }
            let reg = self.reg_mut(0);
            reg.set_pointer(ty);
            reg.set_btf(BtfOf::Kernel, object.id());
        } else {
            if info.r0_size == 0
                && let Some(size) = pointee.and_then(|t| btf.size_of(t.id()))
            {
                info.r0_size = size;
                info.r0_rdonly = true;
            }
            if info.r0_size == 0 {
                let (kind, tname) =
                    pointee.map_or(("UNKNOWN", ""), |t| (t.kind().upper_name(), t.name()));
                fail!(
                    self,
                    Inval,
                    "kernel function {name} returns pointer type {kind} {tname} is not supported\n"
                );
            }
            let mut ty = RegType::MEM;
            if info.r0_rdonly {
                ty = ty.with(TypeFlags::MEM_RDONLY);
            }
            if kfunc.flags.has(Flags::RCU_PROTECTED) {
                ty = ty.with(TypeFlags::MEM_RCU);
            }
            let reg = self.reg_mut(0);
            reg.set_pointer(ty);
            reg.set_mem_size(info.r0_size);
            reg.ref_obj_id = info.ref_obj_id;
        }
        let or_null = kfunc.flags.has(Flags::RET_NULL)
            && !(kfunc.special == Special::RefcountAcquire && info.owning);
        if or_null {
            let id = self.new_id();
            let reg = self.reg_mut(0);
            reg.ty = reg.ty.with(TypeFlags::PTR_MAYBE_NULL);
            reg.id = id;
        }
        if acquires {
            let id = self.acquire();
            let reg = self.reg_mut(0);
            if or_null {
                reg.id = id;
            }
            reg.ref_obj_id = id;
        } else if is_node {
            let (of, type_id) = self.reg(0).btf();
            let counted = self.object_record(of, type_id).has(FieldKind::Refcount);
            let reg = self.reg_mut(0);
            reg.ty = reg.ty.with(TypeFlags::NON_OWN_REF);
            if counted {
                reg.ty = reg.ty.with(TypeFlags::MEM_RCU);
            }
        }
        if self.reg(0).id == 0 {
            let reg = *self.reg(0);
            let record = self.reg_record(&reg);
            if record.has(FieldKind::SpinLock) || record.has(FieldKind::ResSpinLock) {
                let id = self.new_id();
                self.reg_mut(0).id = id;
            }
        }
        Ok(())
    }

    /// Results that BTF does not tell; false where it does.
    pub(super) fn set_special_result(
        &mut self,
        kfunc: &Kfunc<'a>,
        info: &mut Info,
        is_node: bool,
    ) -> Res<bool> {
        match kfunc.special {
            Special::ObjNew | Special::PercpuObjNew => {
                let percpu = kfunc.special == Special::PercpuObjNew;
                let id = info.constant.unwrap_or(0);
                if id > u32::MAX as u64 {
                    fail!(
                        self,
                        Inval,
                        "local type ID argument must be in range [0, U32_MAX]\n"
                    );
                }
                let Some(local) = self.local else {
                    fail!(
                        self,
                        Inval,
                        "bpf_obj_new/bpf_percpu_obj_new requires prog BTF\n"
                    );
                };
                let t = local.type_by_id(id as u32).filter(|t| t.is(Kind::Struct));
                let Some(t) = t else {
                    fail!(
                        self,
                        Inval,
                        "bpf_obj_new/bpf_percpu_obj_new type ID argument must be of a struct\n"
                    );
                };
                let size = t.size().unwrap_or(0);
                if percpu && size > MAX_PERCPU_OBJECT {
                    fail!(
                        self,
                        Inval,
                        "bpf_percpu_obj_new type size ({size}) is greater than {MAX_PERCPU_OBJECT}\n"
                    );
                }
                if percpu && !self.is_scalar_struct(local, t, 0) {
                    fail!(
                        self,
                        Inval,
                        "bpf_percpu_obj_new type ID argument must be of a struct of scalars\n"
                    );
                }
                if percpu && !self.object_record(BtfOf::Program, t.id()).fields.is_empty() {
                    fail!(
                        self,
                        Inval,
                        "bpf_percpu_obj_new type ID argument must not contain special fields\n"
                    );
                }
                let mut ty = RegType::ALLOC_OBJ;
                if percpu {
                    ty = ty.with(TypeFlags::MEM_PERCPU);
                }
                self.kernel_objects = true;
                let reg = self.reg_mut(0);
                reg.set_pointer(ty);
                reg.set_btf(BtfOf::Program, t.id());
            }
            Special::RefcountAcquire => {
                let Some((of, id)) = info.object else {
                    return Err(Errno::Fault);
                };
                self.kernel_objects = true;
                let reg = self.reg_mut(0);
                reg.set_pointer(RegType::ALLOC_OBJ);
                reg.set_btf(of, id);
            }
            _ if is_node => {
                let Some(root) = info.root else {
                    return Err(Errno::Fault);
                };
                self.kernel_objects = true;
                let reg = self.reg_mut(0);
                reg.set_pointer(RegType::ALLOC_OBJ);
                reg.set_btf(root.of, root.type_id);
                reg.off = root.node_offset as i32;
            }
            Special::CastToKernCtx => {
                let id = context::of(self.prog_type())
                    .and_then(|l| self.kernel()?.by_name(l.kernel_name, Kind::Struct))
                    .map_or(0, |t| t.id());
                let reg = self.reg_mut(0);
                reg.set_pointer(RegType::BTF_ID.with(TypeFlags::PTR_TRUSTED));
                reg.set_btf(BtfOf::Kernel, id);
            }
            Special::RdonlyCast => {
                let id = info.constant.unwrap_or(0);
                let t = self.kernel().and_then(|k| k.type_by_id(id as u32));
                match t {
                    _ if id == 0 => {
                        let ty = RegType::MEM
                            .with(TypeFlags::MEM_RDONLY)
                            .with(TypeFlags::PTR_UNTRUSTED);
                        self.reg_mut(0).set_pointer(ty);
                    }
                    None => {
                        fail!(
                            self,
                            Inval,
                            "Unknown type ID {} passed to kfunc bpf_rdonly_cast\n",
                            id as i64
                        );
                    }
                    Some(t) if matches!(t.kind(), Kind::Struct | Kind::Union) => {
                        let reg = self.reg_mut(0);
                        reg.set_pointer(RegType::BTF_ID.with(TypeFlags::PTR_UNTRUSTED));
                        reg.set_btf(BtfOf::Kernel, id as u32);
                    }
                    Some(_) => {
                        fail!(
                            self,
                            Inval,
                            "kfunc bpf_rdonly_cast type ID argument must be of a struct or void\n"
                        );
                    }
                }
            }
            Special::DynptrSlice | Special::DynptrSliceRdwr => {
                let Some((id, kind, _)) = info.dynptr else {
                    return Err(Errno::Fault);
                };
                let Some(size) = info.constant else {
                    return Err(Errno::Fault);
                };
                let mut ty = RegType::MEM.with(kind.flag());
                if kfunc.special == Special::DynptrSlice {
                    ty = ty.with(TypeFlags::MEM_RDONLY);
                } else if !self.may_access_packet(None, Access::Write) {
                    fail!(
                        self,
                        Inval,
                        "the prog does not allow writes to packet data\n"
                    );
                }
                let reg = self.reg_mut(0);
                reg.set_pointer(ty);
                reg.set_mem_size(size as u32);
                reg.set_dynptr_id(id);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }
}
