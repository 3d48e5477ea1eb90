//! Arguments of kernel functions: which kind each is, and those that are no objects.

use crate::checker::Checker;
use crate::fail::{Errno, Res, fail, say};
use crate::record::FieldKind;
use crate::reg::{Base, Reg, RegType};
use crate::walk::peel;
use bpfkit_btf::{Kind, Param, Type};
use bpfkit_spec::kfunc::Flags;
use bpfkit_spec::{TypeFlags, context};

use super::{ArgKind, Info, Kfunc, Special};

impl<'a> Checker<'a> {
    /// Whether a structure holds numbers only.
    pub(super) fn is_scalar_struct(
        &mut self,
        btf: &'a bpfkit_btf::Btf,
        t: Type<'a>,
        depth: u32,
    ) -> bool {
        if !matches!(t.kind(), Kind::Struct | Kind::Union) {
            return false;
        }
        let scalar = |t: &Type<'_>| t.is(Kind::Int) || t.kind().is_enum();
        for member in t.members() {
            let Some(mt) = peel(btf, member.type_id) else {
                return false;
            };
            match mt.kind() {
                Kind::Struct | Kind::Union => {
                    if depth >= 3 {
                        say!(self, "max struct nesting depth exceeded\n");
                        return false;
                    }
                    if !self.is_scalar_struct(btf, mt, depth + 1) {
                        return false;
                    }
                }
                Kind::Array => {
                    let element = mt
                        .array()
                        .filter(|a| a.count != 0)
                        .and_then(|a| peel(btf, a.element));
                    if !element.is_some_and(|e| scalar(&e)) {
                        return false;
                    }
                }
                _ if scalar(&mt) => {}
                _ => return false,
            }
        }
        true
    }

    pub(super) fn is_ctx_arg(&self, pointee: Option<Type<'a>>, raw: Type<'a>) -> bool {
        let Some(layout) = context::of(self.prog_type()) else {
            return false;
        };
        crate::global::names_context(self.prog_type(), layout, pointee, raw)
    }

    /// What a pointer parameter is to be, by its type, its name and what it is given.
    pub(super) fn kfunc_arg_kind(
        &mut self,
        kfunc: &Kfunc<'a>,
        at: usize,
        ptr: Type<'a>,
        pointee: Option<Type<'a>>,
        params: &[Param<'a>],
    ) -> Res<ArgKind> {
        let Some(btf) = self.kernel() else {
            return Err(Errno::Fault);
        };
        let name = params[at].name();
        let reg = *self.reg(at as u8 + 1);
        if kfunc.special == Special::CastToKernCtx || self.is_ctx_arg(pointee, ptr) {
            return Ok(ArgKind::Ctx);
        }
        if name.ends_with("__nullable") && reg.is_null() {
            return Ok(ArgKind::Null);
        }
        if name.ends_with("__alloc") {
            return Ok(ArgKind::AllocObject);
        }
        if name.ends_with("__refcounted_kptr") {
            return Ok(ArgKind::Refcounted);
        }
        let target = pointee.map_or("", |t| t.name());
        let is_struct = pointee.is_some_and(|t| matches!(t.kind(), Kind::Struct | Kind::Union));
        let to = |n: &str| is_struct && target == n;
        let iterates = kfunc
            .flags
            .has_any(Flags::ITER_NEW.or(Flags::ITER_NEXT).or(Flags::ITER_DESTROY));
        if to("bpf_dynptr") {
            return Ok(ArgKind::Dynptr);
        }
        if (iterates && at == 0) || (!iterates && name.ends_with("__iter")) {
            return Ok(ArgKind::Iter);
        }
        let by_type = [
            ("bpf_list_head", ArgKind::ListHead),
            ("bpf_list_node", ArgKind::ListNode),
            ("bpf_rb_root", ArgKind::TreeRoot),
            ("bpf_rb_node", ArgKind::TreeNode),
        ];
        if let Some((_, kind)) = by_type.iter().find(|(n, _)| to(n)) {
            return Ok(*kind);
        }
        if name.ends_with("__str") {
            return Ok(ArgKind::ConstStr);
        }
        if name.ends_with("__map") {
            return Ok(ArgKind::Map);
        }
        if to("bpf_wq") {
            return Ok(ArgKind::Workqueue);
        }
        if to("bpf_task_work") {
            return Ok(ArgKind::TaskWork);
        }
        if name.ends_with("__irq_flag") {
            return Ok(ArgKind::IrqFlag);
        }
        if to("bpf_res_spin_lock") {
            return Ok(ArgKind::ResSpinLock);
        }
        let (kind_name, fname) = (
            pointee.map_or("UNKNOWN", |t| t.kind().upper_name()),
            kfunc.name,
        );
        if reg.ty.base() == Base::BtfId || is_kernel_typed(reg.ty.base()) {
            if !is_struct {
                fail!(
                    self,
                    Inval,
                    "kernel function {fname} args#{at} pointer type {kind_name} {target} is not supported\n"
                );
            }
            return Ok(ArgKind::Object);
        }
        if pointee.is_some_and(|t| t.is(Kind::FuncProto)) {
            return Ok(ArgKind::Callback);
        }
        let sized = params.get(at + 1).is_some_and(|next| {
            let scalar =
                peel(btf, next.type_id).is_some_and(|t| t.is(Kind::Int) || t.kind().is_enum());
            let given = self.reg(at as u8 + 2).ty == RegType::SCALAR;
            scalar && given && (next.name().ends_with("__sz") || next.name().ends_with("__szk"))
        });
        let void = pointee.is_none_or(|t| t.id() == 0);
        let scalar =
            pointee.is_some_and(|t| t.id() != 0 && (t.is(Kind::Int) || t.kind().is_enum()));
        let fits = scalar
            || pointee.is_some_and(|t| t.id() != 0 && self.is_scalar_struct(btf, t, 0))
            || (sized && void);
        if !fits {
            let or_void = if sized { "void, " } else { "" };
            fail!(
                self,
                Inval,
                "arg#{at} pointer type {kind_name} {target} must point to {or_void}scalar, or struct with scalar\n"
            );
        }
        Ok(if sized {
            ArgKind::MemorySize
        } else {
            ArgKind::Memory
        })
    }

    pub(super) fn check_kfunc_args(&mut self, kfunc: &Kfunc<'a>, info: &mut Info) -> Res {
        let Some(btf) = self.kernel() else {
            return Err(Errno::Fault);
        };
        let fname = kfunc.name;
        let params: Vec<Param<'a>> = kfunc.proto.params().collect();
        if params.len() > 5 {
            fail!(
                self,
                Inval,
                "Function {fname} has {} > 5 args\n",
                params.len()
            );
        }
        let mut skip = false;
        for (at, param) in params.iter().enumerate() {
            if std::mem::take(&mut skip) {
                continue;
            }
            let n = at as u8 + 1;
            let name = param.name();
            if name.ends_with("__ign") || name.ends_with("__prog") {
                continue;
            }
            let Some(t) = peel(btf, param.type_id) else {
                return Err(Errno::Inval);
            };
            let reg = *self.reg(n);
            if t.is(Kind::Int) || t.kind().is_enum() {
                self.scalar_arg(n, name, info)?;
                continue;
            }
            if !t.is(Kind::Ptr) {
                let kind = t.kind().upper_name();
                fail!(self, Inval, "Unrecognized arg#{at} type {kind}\n");
            }
            let rcu = kfunc.flags.has(Flags::RCU);
            let nullable = name.ends_with("__nullable");
            if (kfunc.trusted_args() || rcu) && (reg.is_null() || reg.ty.may_be_null()) && !nullable
            {
                fail!(
                    self,
                    Acces,
                    "Possibly NULL pointer passed to trusted arg{at}\n"
                );
            }
            if reg.ref_obj_id != 0 {
                if kfunc.releases() && info.ref_obj_id != 0 {
                    fail!(
                        self,
                        Fault,
                        "verifier bug: more than one arg with ref_obj_id R{n} {} {}\n",
                        reg.ref_obj_id,
                        info.ref_obj_id
                    );
                }
                info.ref_obj_id = reg.ref_obj_id;
                if kfunc.releases() {
                    info.release = n;
                }
            }
            let pointee = peel(btf, t.type_id());
            let kind = self.kfunc_arg_kind(kfunc, at, t, pointee, &params)?;
            if kind == ArgKind::Null {
                continue;
            }
            if kind == ArgKind::Map {
                self.map_arg(n, &reg, info)?;
            }
            let trusts = matches!(kind, ArgKind::Map | ArgKind::AllocObject | ArgKind::Object);
            if trusts && (kfunc.trusted_args() || rcu) && !self.is_trusted(&reg) {
                if !rcu {
                    fail!(self, Inval, "R{n} must be referenced or trusted\n");
                }
                if !reg.ty.has(TypeFlags::MEM_RCU) {
                    fail!(self, Inval, "R{n} must be a rcu pointer\n");
                }
            }
            let releases = kfunc.releases() && reg.ref_obj_id != 0;
            self.check_arg_offset(n, releases, false)?;
            self.pointer_arg(kfunc, at, kind, pointee, param, info)?;
            if kind == ArgKind::MemorySize {
                self.sized_arg(at, param, &params[at + 1], info)?;
                skip = true;
            }
        }
        if kfunc.releases() && info.release == 0 {
            fail!(
                self,
                Inval,
                "release kernel function {fname} expects refcounted PTR_TO_BTF_ID\n"
            );
        }
        Ok(())
    }

    pub(super) fn scalar_arg(&mut self, n: u8, name: &str, info: &mut Info) -> Res {
        let reg = *self.reg(n);
        if reg.ty != RegType::SCALAR {
            fail!(self, Inval, "R{n} is not a scalar\n");
        }
        let constant = reg.range.bits.is_const();
        if name.ends_with("__k") {
            if !constant {
                fail!(self, Inval, "R{n} must be a known constant\n");
            }
            self.mark_precise(n)?;
            info.constant = Some(reg.range.bits.value);
        } else if matches!(name, "rdonly_buf_size" | "rdwr_buf_size") {
            info.r0_rdonly |= name == "rdonly_buf_size";
            if info.r0_size != 0 {
                fail!(
                    self,
                    Inval,
                    "2 or more rdonly/rdwr_buf_size parameters for kfunc"
                );
            }
            if !constant {
                fail!(self, Inval, "R{n} is not a const\n");
            }
            info.r0_size = reg.range.bits.value as u32;
            self.mark_precise(n)?;
        }
        Ok(())
    }

    pub(super) fn map_arg(&mut self, n: u8, reg: &Reg, info: &mut Info) -> Res {
        if reg.ty.base() == Base::BtfId {
            // Judged as a pointer to the kernel's structure.
            return Ok(());
        }
        let is_map = matches!(
            reg.ty.base(),
            Base::ConstMapPtr | Base::MapValue | Base::MapKey
        );
        let Some(map) = reg.map().filter(|_| is_map) else {
            fail!(self, Inval, "pointer in R{n} isn't map pointer\n");
        };
        let record = self.maps[map].record.clone();
        let (wq, work) = (
            record.has(FieldKind::Workqueue),
            record.has(FieldKind::TaskWork),
        );
        if info.map.is_some()
            && (wq || work)
            && (info.map != Some(map) || info.map_uid != reg.map_uid())
        {
            let (a, b) = (info.map_uid, reg.map_uid());
            if work {
                fail!(
                    self,
                    Inval,
                    "bpf_task_work pointer in R2 map_uid={a} doesn't match map pointer in R3 map_uid={b}\n"
                );
            }
            fail!(
                self,
                Inval,
                "workqueue pointer in R1 map_uid={a} doesn't match map pointer in R2 map_uid={b}\n"
            );
        }
        info.map = Some(map);
        info.map_uid = reg.map_uid();
        Ok(())
    }

    pub(super) fn sized_arg(
        &mut self,
        at: usize,
        buffer: &Param<'_>,
        size: &Param<'_>,
        info: &mut Info,
    ) -> Res {
        let n = at as u8 + 1;
        if !(self.reg(n).is_null() && buffer.name().ends_with("__opt"))
            && let Err(e) = self.mem_size_pair(n + 1)
        {
            let next = at + 1;
            say!(
                self,
                "arg#{at} arg#{next} memory, len pair leads to invalid memory access\n"
            );
            return Err(e);
        }
        if size.name().ends_with("__szk") {
            let bits = self.reg(n + 1).range.bits;
            if !bits.is_const() {
                fail!(self, Inval, "R{} must be a known constant\n", n + 1);
            }
            info.constant = Some(bits.value);
        }
        Ok(())
    }
}

/// Pointer types that stand for a kernel structure.
pub(super) const fn is_kernel_typed(base: Base) -> bool {
    matches!(
        base,
        Base::Socket | Base::SockCommon | Base::TcpSock | Base::ConstMapPtr
    )
}
