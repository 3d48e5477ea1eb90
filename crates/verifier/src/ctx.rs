//! Accesses to the context: by its layout, or by the BTF of what the program attaches to.

use bpfkit_btf::{Btf, Kind, Type};
use bpfkit_spec::{AttachType, ProgType, TypeFlags, attach, context, raw_tp};

use crate::checker::Checker;
use crate::fail::{Res, fail, say};
use crate::reg::{Base, BtfOf, RegType};
use crate::stack::Access;
use crate::walk::{peel, tag_flags};

/// Most arguments of a traced function.
const MAX_ARGS: i32 = 12;
/// Most arguments in registers.
const MAX_REG_ARGS: u32 = 5;

/// What a load from the context gives.
#[derive(Clone, Copy)]
pub(crate) struct CtxValue {
    pub ty: RegType,
    /// Type of a typed pointer.
    pub btf: (BtfOf, u32),
    pub ref_obj_id: u32,
    /// Range of a number.
    pub range: Option<(i32, i32)>,
}

impl CtxValue {
    const SCALAR: CtxValue = CtxValue {
        ty: RegType::SCALAR,
        btf: (BtfOf::Kernel, 0),
        ref_obj_id: 0,
        range: None,
    };

    const fn of(ty: RegType) -> CtxValue {
        CtxValue {
            ty,
            ..CtxValue::SCALAR
        }
    }
}

impl<'a> Checker<'a> {
    /// Checks an access to the context; what a load gives.
    pub fn ctx_access(&mut self, off: i32, size: i32, access: Access, sign: bool) -> Res<CtxValue> {
        let value = match context::of(self.prog_type()) {
            Some(layout) if layout.by_btf => self.ctx_arg(off, size, access),
            Some(layout) => {
                let access = context::Access {
                    offset: off,
                    size: size as u32,
                    write: access == Access::Write,
                    sign_extend: sign,
                };
                let field = layout.field_at(&self.attach.caller, access);
                field.and_then(|f| self.ctx_kind(f.kind))
            }
            None => None,
        };
        let Some(value) = value else {
            fail!(
                self,
                Acces,
                "invalid bpf_context access off={off} size={size}\n"
            );
        };
        if value.ty.base() == Base::BtfId
            && value.ref_obj_id != 0
            && !self.cur.holds(value.ref_obj_id)
        {
            fail!(
                self,
                Acces,
                "invalid bpf_context access off={off}. Reference may already be released\n"
            );
        }
        Ok(value)
    }

    fn ctx_kind(&self, kind: context::Kind) -> Option<CtxValue> {
        use context::Kind as K;
        let or_null = |t: RegType| t.with(TypeFlags::PTR_MAYBE_NULL);
        Some(CtxValue::of(match kind {
            K::Scalar => RegType::SCALAR,
            K::Packet => RegType::PACKET,
            K::PacketEnd => RegType::PACKET_END,
            K::PacketMeta => RegType::PACKET_META,
            K::SockCommonOrNull => or_null(RegType::SOCK_COMMON),
            K::Socket => RegType::SOCKET,
            K::SocketOrNull => or_null(RegType::SOCKET),
            K::FlowKeys => RegType::FLOW_KEYS,
            K::TpBuffer => RegType::TP_BUFFER,
            K::TrustedBtf(name) => {
                let id = self.kernel()?.by_name(name, Kind::Struct)?.id();
                let ty = RegType::BTF_ID.with(TypeFlags::PTR_TRUSTED);
                return Some(CtxValue {
                    btf: (BtfOf::Kernel, id),
                    ..CtxValue::of(ty)
                });
            }
        }))
    }

    /// Index of the argument at an offset; arguments take a multiple of eight bytes.
    fn arg_index(btf: &Btf, proto: Option<Type<'_>>, off: u32) -> u32 {
        let Some(proto) = proto else { return off / 8 };
        let mut end = 0;
        let types = proto.params().map(|p| p.type_id).chain([proto.type_id()]);
        for (at, id) in types.enumerate() {
            let size = match peel(btf, id) {
                Some(t) if t.is(Kind::Ptr) => 8,
                Some(t) => t.size().unwrap_or(0).next_multiple_of(8),
                None => 0,
            };
            end += size;
            if off < end {
                return at as u32;
            }
        }
        proto.vlen() + 1
    }

    /// A load of an argument of a traced function.
    fn ctx_arg(&mut self, off: i32, size: i32, access: Access) -> Option<CtxValue> {
        if !(0..MAX_ARGS * 8).contains(&off) || access == Access::Write || off % size != 0 {
            return None;
        }
        let name = self.attach.name;
        if off % 8 != 0 {
            say!(self, "func '{name}' offset {off} is not multiple of 8\n");
            return None;
        }
        let btf = self.kernel()?;
        let proto = self.attach.proto;
        let index = Self::arg_index(btf, proto, off as u32);
        let skipped = u32::from(self.attach.skips_first);
        let count =
            proto.map_or(MAX_REG_ARGS, |p| p.vlen()) - skipped.min(proto.map_or(0, |p| p.vlen()));
        let attach_type = self.attach.caller.attach_type;
        if index > count {
            say!(
                self,
                "func '{name}' doesn't have {}-th argument\n",
                index + 1
            );
            return None;
        }
        let mut range = None;
        let (type_id, param) = if index == count {
            let id = match attach_type {
                AttachType::LsmMac | AttachType::LsmCgroup | AttachType::TraceFexit => {
                    let Some(proto) = proto else {
                        return Some(CtxValue::SCALAR);
                    };
                    if attach_type == AttachType::LsmMac && proto.type_id() != 0 {
                        let hook = self
                            .attach
                            .caller
                            .target
                            .strip_prefix("bpf_lsm_")
                            .unwrap_or("");
                        let is_bool = attach::LSM_BOOL.contains(&hook);
                        range = Some(if is_bool { (0, 1) } else { (-4095, 0) });
                    }
                    proto.type_id()
                }
                AttachType::ModifyReturn => {
                    let ret = peel(btf, proto?.type_id())?;
                    if !is_small_int(&ret) {
                        let kind = ret.kind().upper_name();
                        say!(self, "ret type {kind} not allowed for fmod_ret\n");
                        return None;
                    }
                    ret.id()
                }
                _ => {
                    say!(
                        self,
                        "func '{name}' doesn't have {}-th argument\n",
                        index + 1
                    );
                    return None;
                }
            };
            (id, None)
        } else {
            let Some(proto) = proto else {
                return Some(CtxValue::SCALAR);
            };
            let param = proto.params().nth((index + skipped) as usize)?;
            (param.type_id, Some(param))
        };
        let t = peel(btf, type_id)?;
        let scalar = is_small_int(&t)
            || t.kind().is_enum()
            || matches!(t.kind(), Kind::Struct | Kind::Union);
        if scalar {
            return Some(CtxValue {
                range,
                ..CtxValue::SCALAR
            });
        }
        if !t.is(Kind::Ptr) {
            let (tname, kind) = (t.name(), t.kind().upper_name());
            say!(
                self,
                "func '{name}' arg{index} '{tname}' has type {kind}. Only pointer access is allowed\n"
            );
            return None;
        }
        if size != 8 {
            say!(self, "func '{name}' size {size} must be 8\n");
            return None;
        }
        let special = self
            .attach
            .args
            .iter()
            .find(|a| a.offset == off as u32)
            .copied();
        if let Some(arg) = special.filter(|a| a.ty.base() == Base::Buf && a.ty.may_be_null()) {
            return Some(CtxValue::of(arg.ty));
        }
        let pointee = peel(btf, t.type_id());
        if pointee.is_none_or(|p| p.id() == 0 || p.is(Kind::Int)) {
            return Some(CtxValue::SCALAR);
        }
        if let Some(arg) = special {
            if arg.btf_id == 0 {
                say!(self, "invalid btf_id for context argument offset {off}\n");
                return None;
            }
            return Some(CtxValue {
                btf: (BtfOf::Kernel, arg.btf_id),
                ref_obj_id: arg.ref_obj_id,
                ..CtxValue::of(arg.ty)
            });
        }
        let mut ty = RegType::BTF_ID;
        if self.attach.trusted {
            ty = ty.with(TypeFlags::PTR_TRUSTED);
        }
        if param.is_some_and(|p| p.name().ends_with("__nullable")) {
            ty = ty.with(TypeFlags::PTR_MAYBE_NULL);
        }
        let mut error_pointer = false;
        if attach_type == AttachType::TraceRawTp {
            for fact in raw_tp::facts(name, index as u8) {
                match fact {
                    raw_tp::ArgFact::MaybeNull => ty = ty.with(TypeFlags::PTR_MAYBE_NULL),
                    raw_tp::ArgFact::MaybeError => error_pointer = true,
                }
            }
        }
        let tag = btf
            .type_by_id(t.type_id())
            .map_or(TypeFlags::NONE, |t| tag_flags(&t));
        ty = ty.with(tag & (TypeFlags::MEM_USER | TypeFlags::MEM_PERCPU));
        let mut object = pointee?;
        if !matches!(object.kind(), Kind::Struct | Kind::Union) {
            let kind = object.kind().upper_name();
            say!(
                self,
                "func '{name}' arg{index} type {kind} is not a struct\n"
            );
            return None;
        }
        let (id, oname, kind) = (object.id(), object.name(), object.kind().upper_name());
        if self.log.level != 0 {
            say!(
                self,
                "func '{name}' arg{index} has btf_id {id} type {kind} '{oname}'\n"
            );
        }
        if error_pointer {
            if self.log.level != 0 {
                say!(
                    self,
                    "marking pointer arg{index} as scalar as it may encode error"
                );
            }
            return Some(CtxValue::SCALAR);
        }
        let congestion = self.prog_type() == ProgType::StructOps
            && self.attach.caller.target == "tcp_congestion_ops";
        if congestion && object.name() == "sock" {
            object = btf.by_name("tcp_sock", Kind::Struct).unwrap_or(object);
        }
        Some(CtxValue {
            btf: (BtfOf::Kernel, object.id()),
            ..CtxValue::of(ty)
        })
    }
}

/// Whether a type is an integer of at most 8 bytes.
pub(crate) fn is_small_int(t: &Type<'_>) -> bool {
    t.is(Kind::Int) && t.size().is_some_and(|s| s <= 8)
}
