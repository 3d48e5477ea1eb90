//! Arguments of calls against what the callee's prototype asks for.

use bpfkit_btf::Kind;
use bpfkit_isa::code;
use bpfkit_spec::helper::{Arg, ArgKind, Proto};
use bpfkit_spec::{MapType, TypeFlags};

use crate::checker::Checker;
use crate::fail::{Errno, Res, fail, say};
use crate::mem::MemOp;
use crate::record::{Field, FieldKind};
use crate::reg::{Base, BtfOf, DynptrKind, Reg, RegType};
use crate::slots::DYNPTR_SLOTS;
use crate::stack::{Access, RawMode};
use crate::state::{Byte, SLOT, slot_of};

/// Numbers of helpers with rules of their own.
pub(crate) mod func {
    #![allow(missing_docs)]
    pub const MAP_LOOKUP_ELEM: i32 = 1;
    pub const MAP_UPDATE_ELEM: i32 = 2;
    pub const MAP_DELETE_ELEM: i32 = 3;
    pub const GET_LOCAL_STORAGE: i32 = 81;
    pub const SK_RELEASE: i32 = 86;
    pub const MAP_PUSH_ELEM: i32 = 87;
    pub const MAP_POP_ELEM: i32 = 88;
    pub const MAP_PEEK_ELEM: i32 = 89;
    pub const SPIN_LOCK: i32 = 93;
    pub const SPIN_UNLOCK: i32 = 94;
    pub const GET_FUNC_IP: i32 = 173;
    pub const PER_CPU_PTR: i32 = 153;
    pub const THIS_CPU_PTR: i32 = 154;
    pub const FOR_EACH_MAP_ELEM: i32 = 164;
    pub const SNPRINTF: i32 = 165;
    pub const TIMER_SET_CALLBACK: i32 = 170;
    pub const FIND_VMA: i32 = 180;
    pub const LOOP: i32 = 181;
    pub const SET_RETVAL: i32 = 187;
    /// Storage of a socket, an inode, a task, a cgroup.
    pub const STORAGE_GET: [i32; 4] = [107, 145, 156, 210];
    pub const KPTR_XCHG: i32 = 194;
    pub const DYNPTR_FROM_MEM: i32 = 197;
    pub const DYNPTR_WRITE: i32 = 202;
    pub const DYNPTR_DATA: i32 = 203;
    pub const USER_RINGBUF_DRAIN: i32 = 209;
}

/// What the arguments of a call told.
#[derive(Clone, Copy, Default)]
pub(crate) struct CallInfo {
    pub func: i32,
    pub name: &'static str,
    pub map: Option<usize>,
    pub map_uid: u32,
    pub raw: RawMode,
    pub pkt_access: bool,
    pub mem_size: u32,
    /// Greatest value of the size argument.
    pub size_max: u64,
    pub ref_obj_id: u32,
    /// Register whose reference is released, 0 for none.
    pub release: u8,
    pub sub: usize,
    /// Type of the per-CPU variable.
    pub percpu: Option<(BtfOf, u32)>,
    /// Key, if known.
    pub key: Option<u64>,
    pub kptr: Option<Field>,
    pub dynptr_id: u32,
}

const NONE: TypeFlags = TypeFlags::NONE;
const SOCKETS: &[RegType] = &[
    RegType::SOCK_COMMON,
    RegType::SOCKET,
    RegType::TCP_SOCK,
    RegType::XDP_SOCK,
];
const TRUSTED_BTF: RegType = RegType::BTF_ID.with(TypeFlags::PTR_TRUSTED);
const BTF_SOCKETS: &[RegType] = &[
    RegType::SOCK_COMMON,
    RegType::SOCKET,
    RegType::TCP_SOCK,
    RegType::XDP_SOCK,
    RegType::BTF_ID,
    TRUSTED_BTF,
];
const MEMORY: &[RegType] = &[
    RegType::STACK,
    RegType::PACKET,
    RegType::PACKET_META,
    RegType::MAP_KEY,
    RegType::MAP_VALUE,
    RegType::MEM,
    RegType::MEM.with(TypeFlags::MEM_RINGBUF),
    RegType::BUF,
    TRUSTED_BTF,
];
const LOCKS: &[RegType] = &[RegType::MAP_VALUE, RegType::ALLOC_OBJ];
const OBJECTS: &[RegType] = &[
    RegType::BTF_ID,
    TRUSTED_BTF,
    RegType::BTF_ID.with(TypeFlags::MEM_RCU),
];
const PERCPU: RegType = RegType::BTF_ID.with(TypeFlags::MEM_PERCPU);
const PERCPU_OBJECTS: &[RegType] = &[
    PERCPU,
    PERCPU.with(TypeFlags::MEM_RCU),
    PERCPU.with(TypeFlags::PTR_TRUSTED),
];

const NUMBERS: &[RegType] = &[RegType::SCALAR];
const MAPS: &[RegType] = &[RegType::MAP_PTR];
const CONTEXT: &[RegType] = &[RegType::CTX];
const FULL_SOCKET: &[RegType] = &[RegType::SOCKET];
const RECORDS: &[RegType] = &[RegType::MEM.with(TypeFlags::MEM_RINGBUF)];
const FUNCTIONS: &[RegType] = &[RegType::FUNC];
const STACK: &[RegType] = &[RegType::STACK];
const VALUES: &[RegType] = &[RegType::MAP_VALUE];
const DYNPTRS: &[RegType] = &[RegType::STACK, RegType::CONST_DYNPTR];
const ARENA: &[RegType] = &[RegType::ARENA];

/// Register types that an argument takes.
fn accepted(kind: ArgKind) -> &'static [RegType] {
    match kind {
        ArgKind::PtrToMapKey | ArgKind::PtrToMapValue | ArgKind::PtrToMem => MEMORY,
        ArgKind::ConstSize | ArgKind::ConstSizeOrZero | ArgKind::ConstAllocSizeOrZero => NUMBERS,
        ArgKind::ConstMapPtr => MAPS,
        ArgKind::PtrToCtx => CONTEXT,
        ArgKind::PtrToSockCommon => SOCKETS,
        ArgKind::PtrToBtfIdSockCommon => BTF_SOCKETS,
        ArgKind::PtrToSocket => FULL_SOCKET,
        ArgKind::PtrToBtfId => OBJECTS,
        ArgKind::PtrToSpinLock | ArgKind::KptrXchgDest => LOCKS,
        ArgKind::PtrToRingbufMem => RECORDS,
        ArgKind::PtrToPercpuBtfId => PERCPU_OBJECTS,
        ArgKind::PtrToFunc => FUNCTIONS,
        ArgKind::PtrToStack => STACK,
        ArgKind::PtrToConstStr | ArgKind::PtrToTimer => VALUES,
        ArgKind::PtrToDynptr => DYNPTRS,
        ArgKind::PtrToArena => ARENA,
        ArgKind::DontCare | ArgKind::Anything => &[],
    }
}

impl Checker<'_> {
    /// Checks that a register has a type that an argument takes. `object` is the kernel type
    /// that it must point to.
    pub fn check_arg_type(
        &mut self,
        n: u8,
        kind: ArgKind,
        flags: TypeFlags,
        object: Option<u32>,
        call: &CallInfo,
    ) -> Res {
        let reg = *self.reg(n);
        let mut ty = reg.ty;
        if flags.has(TypeFlags::MEM_RDONLY) {
            ty = ty.without(TypeFlags::MEM_RDONLY);
        }
        if flags.has(TypeFlags::PTR_MAYBE_NULL) {
            ty = ty.without(TypeFlags::PTR_MAYBE_NULL);
        }
        if kind == ArgKind::PtrToMem {
            ty = ty.without(TypeFlags::DYNPTR_TYPES);
        }
        if call.func == func::KPTR_XCHG && ty.is_alloc() && n == 2 {
            ty = ty
                .without(TypeFlags::MEM_ALLOC)
                .without(TypeFlags::MEM_PERCPU);
        }
        let types = accepted(kind);
        if !types.contains(&ty) {
            let names: Vec<String> = types.iter().map(RegType::to_string).collect();
            fail!(
                self,
                Acces,
                "R{n} type={} expected={}\n",
                reg.ty,
                names.join(", ")
            );
        }
        if reg.ty.base() != Base::BtfId {
            return Ok(());
        }
        if matches!(
            kind,
            ArgKind::PtrToMem | ArgKind::PtrToMapKey | ArgKind::PtrToMapValue
        ) {
            if !flags.has(TypeFlags::MEM_RDONLY) {
                fail!(
                    self,
                    Acces,
                    "bpf_{}() may write into memory pointed by R{n} type={}\n",
                    call.name,
                    reg.ty
                );
            }
            return Ok(());
        }
        let plain = TypeFlags::PTR_TRUSTED | TypeFlags::MEM_RCU | TypeFlags::PTR_MAYBE_NULL;
        if reg.ty.flags().less(plain).is_empty() {
            let releases = flags.has(TypeFlags::OBJ_RELEASE);
            let may_be_null = flags.has(TypeFlags::PTR_MAYBE_NULL);
            if reg.ty.may_be_null() && (!may_be_null || releases) {
                fail!(
                    self,
                    Acces,
                    "Possibly NULL pointer passed to helper arg{n}\n"
                );
            }
            if let (func::KPTR_XCHG, Some(field)) = (call.func, call.kptr) {
                return self.kptr_matches(&field, &reg, n).map_err(|_| Errno::Acces);
            }
            let object =
                object.or_else(|| Some(self.kernel()?.by_name("sock_common", Kind::Struct)?.id()));
            let Some(need) = object else {
                return Err(Errno::Fault);
            };
            let strict = releases && call.func != func::SK_RELEASE;
            if !self.struct_ids_match(reg.btf(), reg.off, (BtfOf::Kernel, need), strict) {
                let have = self.type_name(reg.btf().0, reg.btf().1);
                let need = self.type_name(BtfOf::Kernel, need);
                fail!(
                    self,
                    Acces,
                    "R{n} is of type {have} but {need} is expected\n"
                );
            }
        } else if reg.ty.is_alloc()
            && let (func::KPTR_XCHG, 2, Some(field)) = (call.func, n, call.kptr)
        {
            return self.kptr_matches(&field, &reg, n).map_err(|_| Errno::Acces);
        }
        Ok(())
    }

    /// Checks the offset of a pointer that is an argument.
    pub fn check_arg_offset(&mut self, n: u8, releases: bool, dynptr: bool) -> Res {
        let reg = *self.reg(n);
        let ty = reg.ty;
        if releases {
            if dynptr && ty == RegType::STACK {
                return Ok(());
            }
            if reg.off != 0 {
                fail!(
                    self,
                    Inval,
                    "R{n} must have zero offset when passed to release func or trusted arg to kfunc\n"
                );
            }
            return self.check_unmoved(&reg, n, false);
        }
        let flags = ty.flags();
        match ty.base() {
            Base::Stack
            | Base::Packet
            | Base::PacketMeta
            | Base::MapKey
            | Base::MapValue
            | Base::Arena
            | Base::Scalar
                if flags.is_empty() =>
            {
                Ok(())
            }
            Base::Mem
                if flags == NONE
                    || flags == TypeFlags::MEM_RDONLY
                    || flags == TypeFlags::MEM_RINGBUF =>
            {
                Ok(())
            }
            Base::Buf if flags == NONE || flags == TypeFlags::MEM_RDONLY => Ok(()),
            Base::BtfId => {
                let alloc = TypeFlags::MEM_ALLOC;
                let non_owning = alloc | TypeFlags::NON_OWN_REF;
                let fixed_ok = flags == NONE
                    || flags == alloc
                    || flags == TypeFlags::PTR_TRUSTED
                    || flags == TypeFlags::MEM_RCU
                    || flags == non_owning
                    || flags == non_owning | TypeFlags::MEM_RCU;
                self.check_unmoved(&reg, n, fixed_ok)
            }
            _ => self.check_unmoved(&reg, n, false),
        }
    }

    /// Checks argument `at` (0 for R1) of a helper.
    pub fn check_helper_arg(&mut self, at: usize, proto: &Proto, call: &mut CallInfo) -> Res {
        let Arg {
            mut kind,
            flags,
            size,
            btf,
        } = proto.args[at];
        let n = at as u8 + 1;
        if kind == ArgKind::DontCare {
            return Ok(());
        }
        self.read_reg(n)?;
        let reg = *self.reg(n);
        if kind == ArgKind::Anything {
            if self.is_pointer_value(n) {
                fail!(self, Acces, "R{n} leaks addr into helper function\n");
            }
            return Ok(());
        }
        if reg.ty.is_packet() && !self.may_access_packet(Some(call.pkt_access), Access::Read) {
            fail!(self, Acces, "helper access to the packet is not allowed\n");
        }
        if kind == ArgKind::PtrToMapValue {
            let Some(map) = call.map else {
                return Err(Errno::Fault);
            };
            if matches!(
                self.maps[map].map_type,
                MapType::Sockmap | MapType::Sockhash
            ) {
                if !flags.is_empty() {
                    fail!(self, Inval, "invalid arg_type for sockmap/sockhash\n");
                }
                kind = ArgKind::PtrToBtfIdSockCommon;
            }
        }
        // A bloom filter only reads the value that it looks for.
        let bloom = call.func == func::MAP_PEEK_ELEM
            && kind == ArgKind::PtrToMapValue
            && call
                .map
                .is_some_and(|m| self.maps[m].map_type == MapType::BloomFilter);
        let flags = if bloom { NONE } else { flags };
        let may_be_null = flags.has(TypeFlags::PTR_MAYBE_NULL);
        let releases = flags.has(TypeFlags::OBJ_RELEASE);
        let dynptr = kind == ArgKind::PtrToDynptr;
        if !(reg.is_null() && may_be_null) {
            let object = match (kind, btf) {
                (ArgKind::PtrToBtfId, Some(name)) => {
                    let kernel = self.kernel();
                    let id = kernel
                        .and_then(|k| k.by_name(name, Kind::Struct))
                        .map(|t| t.id());
                    Some(id.unwrap_or(0))
                }
                _ => None,
            };
            self.check_arg_type(n, kind, flags, object, call)?;
            self.check_arg_offset(n, releases, dynptr)?;
        }
        if releases {
            self.check_released_arg(n, dynptr)?;
            call.release = n;
        }
        if reg.ref_obj_id != 0 && kind != ArgKind::KptrXchgDest {
            if call.ref_obj_id != 0 {
                fail!(
                    self,
                    Acces,
                    "more than one arg with ref_obj_id R{n} {} {}",
                    reg.ref_obj_id,
                    call.ref_obj_id
                );
            }
            call.ref_obj_id = reg.ref_obj_id;
        }
        let access = if flags.has(TypeFlags::MEM_WRITE) {
            Access::Write
        } else {
            Access::Read
        };
        match kind {
            ArgKind::ConstMapPtr => {
                if let Some(known) = call.map
                    && (reg.map() != Some(known) || reg.map_uid() != call.map_uid)
                {
                    fail!(
                        self,
                        Inval,
                        "timer pointer in R1 map_uid={} doesn't match map pointer in R2 map_uid={}\n",
                        call.map_uid,
                        reg.map_uid()
                    );
                }
                call.map = reg.map();
                call.map_uid = reg.map_uid();
            }
            ArgKind::PtrToMapKey => {
                let Some(map) = call.map else {
                    return Err(Errno::Fault);
                };
                let size = self.maps[map].key_size;
                self.helper_mem_access(n, size as i32, Access::Read, false, None)?;
                if matches!(
                    self.maps[map].map_type,
                    MapType::Array | MapType::PercpuArray
                ) {
                    call.key = self.constant_key(&reg, size)?;
                }
            }
            ArgKind::PtrToMapValue => {
                if may_be_null && reg.is_null() {
                    return Ok(());
                }
                let Some(map) = call.map else {
                    return Err(Errno::Fault);
                };
                call.raw.on = flags.has(TypeFlags::MEM_UNINIT);
                let size = self.maps[map].value_size;
                self.helper_mem_access(n, size as i32, access, false, Some(&mut call.raw))?;
            }
            ArgKind::PtrToPercpuBtfId => {
                if reg.btf().1 == 0 {
                    fail!(self, Acces, "Helper has invalid btf_id in R{n}\n");
                }
                call.percpu = Some(reg.btf());
            }
            ArgKind::PtrToSpinLock => {
                if self.in_tree_callback() {
                    fail!(self, Acces, "can't spin_{{lock,unlock}} in rbtree cb\n");
                }
                self.spin_lock(n, call.func == func::SPIN_LOCK, false, false)?;
            }
            ArgKind::PtrToTimer => {
                self.check_map_field(n, FieldKind::Timer)?;
                call.map_uid = reg.map_uid();
                call.map = reg.map();
            }
            ArgKind::PtrToFunc => call.sub = reg.subprog(),
            ArgKind::PtrToMem => {
                call.raw.on = flags.has(TypeFlags::MEM_UNINIT);
                if flags.has(TypeFlags::MEM_FIXED_SIZE) {
                    self.helper_mem_access(n, size as i32, access, false, Some(&mut call.raw))?;
                    if flags.has(TypeFlags::MEM_ALIGNED) {
                        self.check_arg_alignment(n, size as i32)?;
                    }
                }
            }
            ArgKind::ConstSize | ArgKind::ConstSizeOrZero => {
                let before = proto.args[at - 1].flags;
                let access = if before.has(TypeFlags::MEM_WRITE) {
                    Access::Write
                } else {
                    Access::Read
                };
                call.size_max = reg.range.umax;
                let zero_ok = kind == ArgKind::ConstSizeOrZero;
                self.mem_size_arg(n, access, zero_ok, Some(&mut call.raw))?;
            }
            ArgKind::PtrToDynptr => self.dynptr_arg(n, flags, 0)?,
            ArgKind::ConstAllocSizeOrZero => {
                if !reg.range.bits.is_const() {
                    fail!(self, Acces, "R{n} is not a known constant'\n");
                }
                call.mem_size = reg.range.bits.value as u32;
                self.mark_precise(n)?;
            }
            ArgKind::PtrToConstStr => self.const_string(n)?,
            ArgKind::KptrXchgDest => call.kptr = Some(self.kptr_dest(n, call)?),
            _ => {}
        }
        Ok(())
    }

    fn check_arg_alignment(&mut self, n: u8, size: i32) -> Res {
        // Only the stack and packets could be misaligned here; both are checked alike.
        let reg = *self.reg(n);
        let off = crate::tnum::Tnum::known(reg.off as i64 as u64);
        if !reg.range.bits.plus(off).is_aligned(size as u64) {
            let bits = crate::stack::show(reg.range.bits);
            let what = match reg.ty {
                RegType::STACK => "stack ",
                RegType::MAP_VALUE => "value ",
                RegType::MAP_KEY => "key ",
                _ => "",
            };
            fail!(
                self,
                Acces,
                "misaligned {what}access off {bits}+{}+0 size {size}\n",
                reg.off
            );
        }
        Ok(())
    }

    /// Checks that an argument to be released carries a reference.
    fn check_released_arg(&mut self, n: u8, dynptr: bool) -> Res {
        let reg = *self.reg(n);
        if !dynptr {
            if reg.ref_obj_id == 0 && !reg.is_null() {
                fail!(
                    self,
                    Inval,
                    "R{n} must be referenced when passed to release function\n"
                );
            }
            return Ok(());
        }
        if reg.ty != RegType::STACK {
            fail!(self, Inval, "cannot release unowned const bpf_dynptr\n");
        }
        let first = self.object_slot(&reg, "dynptr", DYNPTR_SLOTS);
        let named = first.is_ok_and(|s| self.slot(reg.frameno, s).reg.ref_obj_id != 0);
        if !named {
            fail!(self, Inval, "arg {n} is an unacquired reference\n");
        }
        Ok(())
    }

    /// The number behind a pointer to a map key, if it is known.
    fn constant_key(&mut self, reg: &Reg, size: u32) -> Res<Option<u64>> {
        if !self.privileged() || reg.ty != RegType::STACK || !reg.range.bits.is_const() {
            return Ok(None);
        }
        let off = reg.const_off() as i32;
        let at = slot_of(off);
        let first = ((-off - 1) % SLOT) as usize;
        let slot = self.slot(reg.frameno, at);
        let run = |kind: Byte| {
            slot.bytes[..=first]
                .iter()
                .rev()
                .take_while(|b| **b == kind)
                .count() as u32
        };
        if run(Byte::Zero) >= size {
            return Ok(Some(0));
        }
        if !slot.is_scalar_spill() || run(Byte::Spill) != size || !slot.reg.range.bits.is_const() {
            return Ok(None);
        }
        self.mark_slot_precise(reg.frameno as usize, at)?;
        Ok(Some(slot.reg.range.bits.value))
    }

    /// Checks a dynptr argument: one to be made, or one to be used.
    pub fn dynptr_arg(&mut self, n: u8, flags: TypeFlags, clone_of: u32) -> Res {
        let reg = *self.reg(n);
        let at = n - 1;
        if reg.ty != RegType::STACK && reg.ty != RegType::CONST_DYNPTR {
            fail!(
                self,
                Inval,
                "arg#{at} expected pointer to stack or const struct bpf_dynptr\n"
            );
        }
        if flags.has(TypeFlags::MEM_UNINIT) {
            if !self.dynptr_fits(&reg) {
                fail!(self, Inval, "Dynptr has to be an uninitialized dynptr\n");
            }
            self.write_object(n, DYNPTR_SLOTS)?;
            return self.make_dynptr(&reg, DynptrKind::from_flags(flags), clone_of);
        }
        let rdonly = flags.has(TypeFlags::MEM_RDONLY);
        if reg.ty == RegType::CONST_DYNPTR && !rdonly {
            fail!(
                self,
                Inval,
                "cannot pass pointer to const bpf_dynptr, the helper mutates it\n"
            );
        }
        let Some(dynptr) = self.dynptr_at(&reg) else {
            fail!(self, Inval, "Expected an initialized dynptr as arg #{at}\n");
        };
        let wanted = DynptrKind::from_flags(flags);
        // Without a kind (but with another modifier) none fits.
        let any = flags.less(TypeFlags::MEM_RDONLY).is_empty();
        if !any && dynptr.dynptr_kind() != wanted {
            let name = wanted.name();
            fail!(
                self,
                Inval,
                "Expected a dynptr of type {name} as arg #{at}\n"
            );
        }
        self.note_dynptr_read(&reg)
    }

    /// Checks that the slots of an object on the stack may be written.
    pub fn write_object(&mut self, n: u8, slots: usize) -> Res {
        for slot in 0..slots {
            self.mem_access(MemOp {
                base: n,
                off: slot as i32 * SLOT,
                size: SLOT,
                access: Access::Write,
                value: None,
                strict: false,
                sign_extend: false,
            })?;
        }
        Ok(())
    }

    /// Checks a string in a map that never changes.
    pub fn const_string(&mut self, n: u8) -> Res {
        let reg = *self.reg(n);
        let Some(map) = reg.map().filter(|_| reg.ty == RegType::MAP_VALUE) else {
            return Err(Errno::Inval);
        };
        if self.maps[map].frozen.is_none() {
            fail!(self, Acces, "R{n} does not point to a readonly map'\n");
        }
        if !reg.range.bits.is_const() {
            fail!(self, Acces, "R{n} is not a constant address'\n");
        }
        if !self.maps[map].has_direct_values() {
            fail!(
                self,
                Acces,
                "no direct value access support for this map type\n"
            );
        }
        let size = self.maps[map].value_size as i32 - reg.off;
        self.helper_mem_access(n, size, Access::Read, false, None)?;
        let bytes = self.maps[map].frozen.unwrap_or(&[]);
        let rest = bytes.get(reg.const_off() as usize..).unwrap_or(&[]);
        if !rest.contains(&0) {
            fail!(self, Inval, "string is not zero-terminated\n");
        }
        Ok(())
    }

    /// The kernel pointer field that an argument of `bpf_kptr_xchg` points to.
    fn kptr_dest(&mut self, n: u8, call: &mut CallInfo) -> Res<Field> {
        let reg = *self.reg(n);
        if !reg.ty.is_alloc_object() {
            let Some(map) = reg.map() else {
                return Err(Errno::Fault);
            };
            if !self.maps[map].has_btf {
                let name = self.maps[map].name.clone();
                fail!(
                    self,
                    Inval,
                    "map '{name}' has to have BTF in order to use bpf_kptr_xchg\n"
                );
            }
            call.map = Some(map);
        }
        let record = self.reg_record(&reg);
        if !reg.range.bits.is_const() {
            fail!(
                self,
                Inval,
                "R{n} doesn't have constant offset. kptr has to be at the constant offset\n"
            );
        }
        let is_kptr = |k: FieldKind| k.is_pointer() && k != FieldKind::UserPtr;
        if !record.fields.iter().any(|f| is_kptr(f.kind)) {
            fail!(self, Inval, "R{n} has no valid kptr\n");
        }
        let off = reg.const_off() as u32;
        let Some(field) = record.at(off as u64, is_kptr) else {
            fail!(self, Acces, "off={off} doesn't point to kptr\n");
        };
        if field.kind == FieldKind::KptrUntrusted {
            fail!(self, Acces, "off={off} kptr isn't referenced kptr\n");
        }
        Ok(*field)
    }

    /// Checks that an argument points to the only field of a kind in a map value.
    pub fn check_map_field(&mut self, n: u8, kind: FieldKind) -> Res {
        let reg = *self.reg(n);
        let name = kind.name();
        if !reg.range.bits.is_const() {
            fail!(
                self,
                Inval,
                "R{n} doesn't have constant offset. {name} has to be at the constant offset\n"
            );
        }
        let Some(map) = reg.map() else {
            return Err(Errno::Fault);
        };
        let map_name = self.maps[map].name.clone();
        if !self.maps[map].has_btf {
            fail!(
                self,
                Inval,
                "map '{map_name}' has to have BTF in order to use {name}\n"
            );
        }
        let Some(at) = self.maps[map].record.offset_of(kind) else {
            fail!(self, Inval, "map '{map_name}' has no valid {name}\n");
        };
        let off = reg.const_off();
        if off != at as i64 {
            fail!(
                self,
                Inval,
                "off {off} doesn't point to 'struct {name}' that is at {at}\n"
            );
        }
        Ok(())
    }

    /// Says what range a number has and which it should have.
    pub fn complain_of_range(&mut self, reg: &Reg, min: i32, max: i32, when: &str, name: &str) {
        say!(self, "{when} the register {name} has");
        let (smin, smax) = (reg.range.smin, reg.range.smax);
        if smin > i64::MIN {
            say!(self, " smin={smin}");
        }
        if smax < i64::MAX {
            say!(self, " smax={smax}");
        }
        if smin == i64::MIN && smax == i64::MAX {
            say!(self, " unknown scalar value");
        }
        say!(self, " should have been in [{min}, {max}]\n");
    }

    /// Whether the current callback is the comparison of a tree, which runs under its lock.
    pub fn in_tree_callback(&self) -> bool {
        let frame = self.cur.top();
        if !frame.in_callback || frame.callsite < 0 {
            return false;
        }
        let insn = self.insns[frame.callsite as usize];
        insn.src == code::PSEUDO_KFUNC_CALL
            && self
                .kfunc_of(&insn)
                .is_some_and(|k| self.kfuncs[k].needs_tree_lock())
    }
}
