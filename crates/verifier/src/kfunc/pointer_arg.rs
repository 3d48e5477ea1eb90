//! Pointers that kernel functions get.

use crate::checker::Checker;
use crate::fail::{Errno, Res, fail};
use crate::record::FieldKind;
use crate::reg::{Base, BtfOf, Reg, RegType};
use crate::walk::peel;
use bpfkit_btf::{Kind, Param, Type};
use bpfkit_spec::TypeFlags;

use super::args::is_kernel_typed;
use super::{ArgKind, Info, Kfunc, Special};

impl<'a> Checker<'a> {
    pub(super) fn pointer_arg(
        &mut self,
        kfunc: &Kfunc<'a>,
        at: usize,
        kind: ArgKind,
        pointee: Option<Type<'a>>,
        param: &Param<'a>,
        info: &mut Info,
    ) -> Res {
        let n = at as u8 + 1;
        let reg = *self.reg(n);
        let ty = reg.ty;
        let fname = kfunc.name;
        let in_memory = ty == RegType::MAP_VALUE || ty == RegType::ALLOC_OBJ;
        match kind {
            ArgKind::Ctx => {
                if ty != RegType::CTX {
                    fail!(
                        self,
                        Inval,
                        "arg#{at} expected pointer to ctx, but got {ty}\n"
                    );
                }
            }
            ArgKind::AllocObject => {
                if ty == RegType::ALLOC_OBJ {
                    if kfunc.special != Special::ObjDrop {
                        fail!(self, Inval, "arg#{at} expected for bpf_obj_drop_impl()\n");
                    }
                } else if ty == RegType::ALLOC_OBJ.with(TypeFlags::MEM_PERCPU) {
                    if kfunc.special != Special::PercpuObjDrop {
                        fail!(
                            self,
                            Inval,
                            "arg#{at} expected for bpf_percpu_obj_drop_impl()\n"
                        );
                    }
                } else {
                    fail!(
                        self,
                        Inval,
                        "arg#{at} expected pointer to allocated object\n"
                    );
                }
                self.check_referenced(&reg)?;
                info.object = Some(reg.btf());
            }
            ArgKind::Dynptr => self.kfunc_dynptr(kfunc, n, &reg, param, info)?,
            ArgKind::Iter => self.kfunc_iter(kfunc, n, &reg, pointee, info)?,
            ArgKind::ListHead | ArgKind::TreeRoot => {
                if !in_memory {
                    fail!(
                        self,
                        Inval,
                        "arg#{at} expected pointer to map value or allocated object\n"
                    );
                }
                if ty == RegType::ALLOC_OBJ {
                    self.check_referenced(&reg)?;
                }
                let kind = if kind == ArgKind::ListHead {
                    FieldKind::ListHead
                } else {
                    FieldKind::RbRoot
                };
                info.root = Some(self.graph_root(n, &reg, kind)?);
            }
            ArgKind::ListNode => {
                self.check_owned_node(at, &reg)?;
                self.graph_node(n, &reg, FieldKind::ListNode, info)?;
            }
            ArgKind::TreeNode => {
                if kfunc.special == Special::RbtreeAdd {
                    self.check_owned_node(at, &reg)?;
                } else {
                    if !ty.is_non_owning() && reg.ref_obj_id == 0 {
                        fail!(
                            self,
                            Inval,
                            "{fname} can only take non-owning or refcounted bpf_rb_node pointer\n"
                        );
                    }
                    if self.in_tree_callback() {
                        fail!(self, Inval, "{fname} not allowed in rbtree cb\n");
                    }
                }
                self.graph_node(n, &reg, FieldKind::RbNode, info)?;
            }
            ArgKind::Map | ArgKind::Object => self.object_arg(kfunc, at, kind, pointee, &reg)?,
            ArgKind::Memory => {
                let Some(btf) = self.kernel() else {
                    return Err(Errno::Fault);
                };
                let size = pointee.and_then(|t| btf.size_of(t.id()));
                let Some(size) = size else {
                    let (k, t) = pointee.map_or(("", ""), |t| (t.kind().upper_name(), t.name()));
                    fail!(
                        self,
                        Inval,
                        "arg#{at} reference type('{k} {t}') size cannot be determined: -22\n"
                    );
                };
                self.mem_arg(n, size)?;
            }
            ArgKind::Callback => {
                if ty != RegType::FUNC {
                    fail!(self, Inval, "arg{at} expected pointer to func\n");
                }
                info.sub = reg.subprog();
            }
            ArgKind::Refcounted => {
                if !ty.is_alloc_object() || ty.has(TypeFlags::PTR_UNTRUSTED) {
                    fail!(
                        self,
                        Inval,
                        "arg#{at} is neither owning or non-owning ref\n"
                    );
                }
                info.owning |= !ty.is_non_owning();
                if !self.reg_record(&reg).has(FieldKind::Refcount) {
                    fail!(
                        self,
                        Inval,
                        "arg#{at} doesn't point to a type with bpf_refcount field\n"
                    );
                }
                info.object = Some(reg.btf());
            }
            ArgKind::ConstStr => {
                if ty != RegType::MAP_VALUE {
                    fail!(self, Inval, "arg#{at} doesn't point to a const string\n");
                }
                self.const_string(n)?;
            }
            ArgKind::Workqueue => {
                if ty != RegType::MAP_VALUE {
                    fail!(self, Inval, "arg#{at} doesn't point to a map value\n");
                }
                let field = reg
                    .map()
                    .and_then(|m| self.maps[m].record.offset_of(FieldKind::Workqueue));
                let off = reg.const_off();
                let is_at = field.map_or(-22, |f| f as i64);
                if off != is_at {
                    fail!(
                        self,
                        Inval,
                        "off {off} doesn't point to 'struct bpf_wq' that is at {is_at}\n"
                    );
                }
                info.map = reg.map();
                info.map_uid = reg.map_uid();
            }
            ArgKind::TaskWork => {
                if ty != RegType::MAP_VALUE {
                    fail!(self, Inval, "arg#{at} doesn't point to a map value\n");
                }
                self.check_map_field(n, FieldKind::TaskWork)?;
                info.map = reg.map();
                info.map_uid = reg.map_uid();
            }
            ArgKind::IrqFlag => {
                if ty != RegType::STACK {
                    fail!(
                        self,
                        Inval,
                        "arg#{at} doesn't point to an irq flag on stack\n"
                    );
                }
                self.irq_flag_arg(kfunc, n, &reg)?;
            }
            ArgKind::ResSpinLock => {
                if !in_memory {
                    fail!(
                        self,
                        Inval,
                        "arg#{at} doesn't point to map value or allocated object\n"
                    );
                }
                let take = matches!(
                    kfunc.special,
                    Special::ResSpinLock | Special::ResSpinLockIrqsave
                );
                let irq = matches!(
                    kfunc.special,
                    Special::ResSpinLockIrqsave | Special::ResSpinUnlockIrqrestore
                );
                self.spin_lock(n, take, true, irq)?;
            }
            ArgKind::MemorySize | ArgKind::Null => {}
        }
        Ok(())
    }

    pub(super) fn check_referenced(&mut self, reg: &Reg) -> Res {
        if reg.ref_obj_id == 0 {
            fail!(self, Inval, "allocated object must be referenced\n");
        }
        Ok(())
    }

    pub(super) fn check_owned_node(&mut self, at: usize, reg: &Reg) -> Res {
        if reg.ty != RegType::ALLOC_OBJ {
            fail!(
                self,
                Inval,
                "arg#{at} expected pointer to allocated object\n"
            );
        }
        self.check_referenced(reg)
    }

    pub(super) fn object_arg(
        &mut self,
        kfunc: &Kfunc<'a>,
        at: usize,
        kind: ArgKind,
        pointee: Option<Type<'a>>,
        reg: &Reg,
    ) -> Res {
        let Some(btf) = self.kernel() else {
            return Err(Errno::Fault);
        };
        let ty = reg.ty;
        let n = at + 1;
        let fname = kfunc.name;
        let want = if kind == ArgKind::Map {
            btf.by_name("bpf_map", Kind::Struct)
        } else {
            pointee
        };
        let Some(want) = want else {
            return Err(Errno::Fault);
        };
        let typed =
            ty.base() == Base::BtfId && (!ty.has_unsafe_modifiers() || ty.has(TypeFlags::MEM_RCU));
        if !typed && !is_kernel_typed(ty.base()) {
            let expected = RegType::plain(ty.base()).with(ty.flags() & crate::reg::TRUSTED);
            fail!(
                self,
                Inval,
                "arg#{at} is {ty} expected {expected} or socket\n"
            );
        }
        let have = match ty.base() {
            Base::BtfId => reg.btf(),
            base => {
                let name = match base {
                    Base::Socket => "sock",
                    Base::SockCommon => "sock_common",
                    Base::TcpSock => "tcp_sock",
                    _ => "bpf_map",
                };
                (
                    BtfOf::Kernel,
                    btf.by_name(name, Kind::Struct).map_or(0, |t| t.id()),
                )
            }
        };
        let have_type = self.btf(have.0).and_then(|b| peel(b, have.1));
        let (have_kind, have_name) =
            have_type.map_or(("UNKNOWN", ""), |t| (t.kind().upper_name(), t.name()));
        let have = (have.0, have_type.map_or(have.1, |t| t.id()));
        let (want_kind, want_name) = (want.kind().upper_name(), want.name());
        let alias = have_name != want_name
            && (have_name.strip_suffix("___init") == Some(want_name)
                || want_name.strip_suffix("___init") == Some(have_name));
        let strict = (kfunc.releases() && reg.ref_obj_id != 0) || alias;
        let same = self.struct_ids_match(have, reg.off, (BtfOf::Kernel, want.id()), strict);
        let projection = matches!(
            (want_name, have_name),
            ("__sk_buff", "sk_buff") | ("xdp_md", "xdp_buff")
        );
        if !same && !projection {
            fail!(
                self,
                Inval,
                "kernel function {fname} args#{at} expected pointer to {want_kind} {want_name} but R{n} has a pointer to {have_kind} {have_name}\n"
            );
        }
        Ok(())
    }
}
