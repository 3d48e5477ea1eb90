//! Walking kernel and allocated structures by their BTF.

use bpfkit_btf::{Btf, Kind, Type};
use bpfkit_spec::{Feature, ProgType, TypeFlags, struct_ops};

use crate::checker::Checker;
use crate::fail::{Errno, Res, fail};
use crate::record::Record;
use crate::reg::{BtfOf, Reg, RegType};
use crate::stack::{Access, show};

/// What lies at an offset of a structure.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Found<'a> {
    Scalar,
    /// A pointer to the structure of that id.
    Pointer {
        to: u32,
        flags: TypeFlags,
        field: &'a str,
    },
    /// A pointer to something else.
    OtherPointer,
    /// Another structure begins there.
    Struct(u32),
}

/// What a load from a structure gives.
#[derive(Clone, Copy)]
pub(crate) enum Loaded<'a> {
    Scalar,
    Pointer {
        to: u32,
        flags: TypeFlags,
        field: &'a str,
    },
    UntrustedMemory,
}

fn is_struct(t: &Type<'_>) -> bool {
    matches!(t.kind(), Kind::Struct | Kind::Union)
}

/// Follows qualifiers, typedefs and type tags; the id is of what is found.
pub(crate) fn peel(btf: &Btf, id: u32) -> Option<Type<'_>> {
    let mut t = btf.type_by_id(id)?;
    while t.kind().is_modifier() || t.is(Kind::Typedef) {
        t = btf.type_by_id(t.type_id())?;
    }
    Some(t)
}

/// A member's type with arrays taken apart.
struct Resolved<'a> {
    id: u32,
    t: Type<'a>,
    /// Size of all elements.
    size: u32,
    /// Number of elements; 1 if it is no array.
    count: u32,
    is_array: bool,
}

fn resolve(btf: &Btf, id: u32) -> Option<Resolved<'_>> {
    let mut t = btf.type_by_id(id)?;
    let (mut id, mut count, mut is_array) = (id, 1u32, false);
    loop {
        let next = match t.kind() {
            Kind::Array => {
                let array = t.array()?;
                is_array = true;
                count = count.checked_mul(array.count)?;
                array.element
            }
            Kind::Ptr => {
                return Some(Resolved {
                    id,
                    t,
                    size: count.checked_mul(8)?,
                    count,
                    is_array,
                });
            }
            k if k.is_modifier() || k == Kind::Typedef => t.type_id(),
            _ => {
                let size = count.checked_mul(t.size()?)?;
                return Some(Resolved {
                    id,
                    t,
                    size,
                    count,
                    is_array,
                });
            }
        };
        id = next;
        t = btf.type_by_id(next)?;
    }
}

impl<'a> Checker<'a> {
    /// Looks `size` bytes up at an offset of a structure.
    fn walk(
        &mut self,
        btf: &'a Btf,
        id: u32,
        off: i32,
        size: i32,
        untrusted: &mut bool,
    ) -> Res<Found<'a>> {
        let (mut off, size) = (off as u32, size as u32);
        let mut t = peel(btf, id).ok_or(Errno::Inval)?;
        'again: loop {
            let name = t.name();
            if !is_struct(&t) {
                fail!(self, Inval, "Type '{name}' is not a struct\n");
            }
            if t.is(Kind::Union) && t.vlen() != 1 {
                *untrusted = true;
            }
            let total = t.size().unwrap_or(0);
            if off.wrapping_add(size) > total {
                match self.walk_tail(btf, t, off) {
                    Some((Some(element), inner)) => {
                        t = element;
                        off = inner;
                        continue 'again;
                    }
                    Some((None, _)) => return Ok(Found::Scalar),
                    None => {
                        fail!(
                            self,
                            Acces,
                            "access beyond struct {name} at off {off} size {size}\n"
                        );
                    }
                }
            }
            for member in t.members() {
                let start = member.bit_offset / 8;
                if off + size <= start {
                    break;
                }
                if member.bitfield_size != 0 {
                    let end = (member.bit_offset + member.bitfield_size).div_ceil(8);
                    if off <= start && end <= off + size {
                        return Ok(Found::Scalar);
                    }
                    continue;
                }
                if off < start {
                    break;
                }
                let field = member.name();
                let Some(found) = resolve(btf, member.type_id) else {
                    fail!(self, Fault, "field {field} doesn't have size\n");
                };
                let true_end = start + found.size;
                if off >= true_end {
                    continue;
                }
                let (mut at, mut width) = (start, found.size);
                if found.is_array {
                    if start == true_end {
                        continue;
                    }
                    width /= found.count;
                    at += (off - at) / width * width;
                }
                if is_struct(&found.t) {
                    if off == at {
                        return Ok(Found::Struct(found.id));
                    }
                    t = found.t;
                    off -= at;
                    continue 'again;
                }
                if found.t.is(Kind::Ptr) {
                    if width != size || off != at {
                        fail!(
                            self,
                            Acces,
                            "cannot access ptr member {field} with moff {at} in struct {name} with off {off} size {size}\n"
                        );
                    }
                    let Some(pointee) = btf.type_by_id(found.t.type_id()) else {
                        return Ok(Found::OtherPointer);
                    };
                    let flags = tag_flags(&pointee);
                    return Ok(match peel(btf, pointee.id()) {
                        Some(to) if is_struct(&to) => Found::Pointer {
                            to: to.id(),
                            flags,
                            field,
                        },
                        _ => Found::OtherPointer,
                    });
                }
                if off + size > true_end && !*untrusted {
                    fail!(
                        self,
                        Acces,
                        "access beyond the end of member {field} (mend:{true_end}) in struct {name} with off {off} size {size}\n"
                    );
                }
                return Ok(Found::Scalar);
            }
            fail!(
                self,
                Inval,
                "struct {name} doesn't have field at offset {off}\n"
            );
        }
    }

    /// Beyond the end: within a flexible array, the element's structure (none for numbers)
    /// and the offset in it.
    fn walk_tail(&self, btf: &'a Btf, t: Type<'a>, off: u32) -> Option<(Option<Type<'a>>, u32)> {
        let member = t.members().last()?;
        let array = peel(btf, member.type_id)?
            .array()
            .filter(|a| a.count == 0)?;
        let start = member.bit_offset / 8;
        if off < start {
            return None;
        }
        let element = peel(btf, array.element)?;
        if element.is(Kind::Int) {
            return Some((None, 0));
        }
        let width = element.size().filter(|s| *s > 0 && is_struct(&element))?;
        Some((Some(element), (off - start) % width))
    }

    /// What a load through a typed pointer gives.
    pub fn struct_access(
        &mut self,
        of: BtfOf,
        id: u32,
        ty: RegType,
        off: i32,
        size: i32,
    ) -> Res<Loaded<'a>> {
        let btf = self.btf(of).ok_or(Errno::Inval)?;
        if ty.is_alloc() {
            let record = self.object_record(of, id);
            for field in &record.fields {
                if off < (field.offset + field.size) as i32 && (field.offset as i32) < off + size {
                    let name = field.kind.name();
                    fail!(self, Acces, "direct access to {name} is disallowed\n");
                }
            }
        }
        let (mut id, mut off, mut untrusted) = (id, off, false);
        loop {
            match self.walk(btf, id, off, size, &mut untrusted)? {
                Found::Scalar => return Ok(Loaded::Scalar),
                Found::Pointer { .. } if ty.is_alloc() => return Ok(Loaded::Scalar),
                Found::Pointer {
                    to,
                    mut flags,
                    field,
                } => {
                    if untrusted {
                        flags |= TypeFlags::PTR_UNTRUSTED;
                    }
                    return Ok(Loaded::Pointer { to, flags, field });
                }
                Found::OtherPointer => return Ok(Loaded::UntrustedMemory),
                Found::Struct(inner) => {
                    id = inner;
                    off = 0;
                }
            }
        }
    }

    /// Whether a pointer to a structure is, at an offset, one to the structure wanted.
    pub fn struct_ids_match(
        &mut self,
        have: (BtfOf, u32),
        off: i32,
        need: (BtfOf, u32),
        strict: bool,
    ) -> bool {
        if off == 0 && have == need {
            return true;
        }
        let Some(btf) = self.btf(have.0).filter(|_| !strict) else {
            return false;
        };
        let (mut id, mut off, mut untrusted) = (have.1, off, false);
        loop {
            match self.walk(btf, id, off, 1, &mut untrusted) {
                Ok(Found::Struct(inner)) if (have.0, inner) == need => return true,
                Ok(Found::Struct(inner)) => {
                    id = inner;
                    off = 0;
                }
                _ => return false,
            }
        }
    }

    /// Special fields of an allocated object.
    pub fn object_record(&mut self, of: BtfOf, id: u32) -> std::rc::Rc<Record> {
        if let Some(known) = self.records.get(&(of, id)) {
            return known.clone();
        }
        let record = match (of, self.local) {
            (BtfOf::Program, Some(btf)) => Record::of_object(btf, self.env.kernel_btf, id),
            _ => Record::default(),
        };
        let record = std::rc::Rc::new(record);
        self.records.insert((of, id), record.clone());
        record
    }

    /// Special fields of what a register points to.
    pub fn reg_record(&mut self, reg: &Reg) -> std::rc::Rc<Record> {
        if reg.ty == RegType::MAP_VALUE {
            return reg
                .map()
                .map_or_else(Default::default, |m| self.maps[m].record.clone());
        }
        if reg.ty.is_alloc_object() {
            let (of, id) = reg.btf();
            return self.object_record(of, id);
        }
        Default::default()
    }

    /// Whether the kernel's list of safe fields (`TYPE__SUFFIX`) names a field.
    fn is_safe_field(&self, reg: &Reg, field: &str, to: u32, suffix: &str) -> bool {
        let (of, id) = reg.btf();
        let (Some(btf), Some(t)) = (self.btf(of), self.type_of(of, id)) else {
            return false;
        };
        let Some(safe) = btf.by_name(&format!("{}{suffix}", t.name()), t.kind()) else {
            return false;
        };
        safe.members().any(|m| {
            m.name() == field
                && btf
                    .type_by_id(m.type_id)
                    .filter(|t| t.is(Kind::Ptr))
                    .and_then(|t| peel(btf, t.type_id()))
                    .is_some_and(|t| t.id() == to)
        })
    }

    /// Whether RCU protects what is read now.
    pub fn in_rcu_section(&self) -> bool {
        self.cur.active_rcu || self.cur.active_locks > 0 || !self.may_sleep()
    }

    /// Whether the current code may sleep.
    pub fn may_sleep(&self) -> bool {
        self.attach.caller.sleepable || self.cur.in_sleepable
    }

    /// A load or store through a typed pointer.
    pub fn btf_access(
        &mut self,
        n: u8,
        off: i32,
        size: i32,
        access: Access,
        value: Option<u8>,
    ) -> Res {
        let reg = *self.reg(n);
        let (of, id) = reg.btf();
        let name = self.type_name(of, id);
        if !self.privileged() {
            fail!(
                self,
                Perm,
                "'struct {name}' access is allowed only to CAP_PERFMON and CAP_SYS_ADMIN\n"
            );
        }
        if !self.gpl && of == BtfOf::Kernel {
            fail!(
                self,
                Inval,
                "Cannot access kernel 'struct {name}' from non-GPL compatible program\n"
            );
        }
        if off < 0 {
            fail!(
                self,
                Acces,
                "R{n} is ptr_{name} invalid negative access: off={off}\n"
            );
        }
        if !reg.range.bits.equals(0) {
            let bits = show(reg.range.bits);
            fail!(
                self,
                Acces,
                "R{n} is ptr_{name} invalid variable offset: off={off}, var_off={bits}\n"
            );
        }
        if reg.ty.has(TypeFlags::MEM_USER) {
            fail!(
                self,
                Acces,
                "R{n} is ptr_{name} access user memory: off={off}\n"
            );
        }
        if reg.ty.has(TypeFlags::MEM_PERCPU) {
            fail!(
                self,
                Acces,
                "R{n} is ptr_{name} access percpu memory: off={off}\n"
            );
        }
        let special = matches!(
            self.prog_type(),
            ProgType::SchedCls | ProgType::SchedAct | ProgType::Xdp | ProgType::StructOps
        );
        if special && !reg.ty.is_alloc() && access == Access::Write {
            return self.kernel_write(name, off, size);
        }
        let alloc_object = reg.ty.is_alloc_object() && !reg.ty.has(TypeFlags::PTR_UNTRUSTED);
        if access == Access::Write && !alloc_object {
            fail!(self, Acces, "only read is supported\n");
        }
        if reg.ty.is_alloc()
            && !reg.ty.is_non_owning()
            && !reg.ty.has(TypeFlags::MEM_RCU)
            && reg.ref_obj_id == 0
        {
            fail!(
                self,
                Fault,
                "verifier bug: ref_obj_id for allocated object must be non-zero\n"
            );
        }
        let mut loaded = self.struct_access(of, id, reg.ty, off, size)?;
        if let Loaded::Pointer { to, flags, field } = loaded {
            let flags = self.loaded_flags(&reg, to, flags, field);
            loaded = Loaded::Pointer { to, flags, field };
        }
        if let (Access::Read, Some(dst)) = (access, value) {
            self.set_loaded(dst, of, loaded);
        }
        Ok(())
    }

    /// How far a pointer that was loaded through another may be trusted.
    fn loaded_flags(&self, reg: &Reg, to: u32, flags: TypeFlags, field: &str) -> TypeFlags {
        use TypeFlags as F;
        let untrust = crate::reg::TRUSTED.or(F::MEM_RCU);
        if !reg.ty.has(F::PTR_UNTRUSTED) && !self.has(Feature::TrustedPointers) {
            return flags.less(untrust);
        }
        if reg.ty.has(F::PTR_UNTRUSTED) {
            return F::PTR_UNTRUSTED;
        }
        if !self.is_trusted(reg) && !reg.ty.has(F::MEM_RCU) {
            return flags.less(untrust);
        }
        if self.is_safe_field(reg, field, to, "__safe_trusted") {
            return flags | F::PTR_TRUSTED;
        }
        if self.is_safe_field(reg, field, to, "__safe_trusted_or_null") {
            return flags | F::PTR_TRUSTED | F::PTR_MAYBE_NULL;
        }
        if !self.in_rcu_section() || reg.ty.may_be_null() {
            return F::PTR_UNTRUSTED;
        }
        if self.is_safe_field(reg, field, to, "__safe_rcu") {
            return flags | F::MEM_RCU;
        }
        let or_null = self.is_safe_field(reg, field, to, "__safe_rcu_or_null");
        if flags.has(F::MEM_RCU) || or_null {
            let flags = flags | F::MEM_RCU | F::PTR_MAYBE_NULL;
            return if or_null {
                flags.less(F::PTR_UNTRUSTED)
            } else {
                flags
            };
        }
        if flags.has_any(F::MEM_PERCPU | F::MEM_USER) {
            return flags;
        }
        flags.less(untrust)
    }

    /// Whether kernel functions may rely on a pointer.
    pub fn is_trusted(&self, reg: &Reg) -> bool {
        use crate::reg::Base;
        if reg.ref_obj_id != 0 {
            return true;
        }
        let known = matches!(
            reg.ty.base(),
            Base::Socket | Base::SockCommon | Base::TcpSock | Base::ConstMapPtr
        );
        (known || reg.ty.has(crate::reg::TRUSTED)) && !reg.ty.has_unsafe_modifiers()
    }

    /// Puts what was loaded in a register.
    pub fn set_loaded(&mut self, dst: u8, of: BtfOf, loaded: Loaded<'_>) {
        match loaded {
            Loaded::Scalar => self.set_unknown(dst),
            Loaded::Pointer { to, flags, .. } => self.set_btf_pointer(dst, of, to, flags),
            Loaded::UntrustedMemory => {
                let reg = self.reg_mut(dst);
                reg.set_pointer(
                    RegType::MEM
                        .with(TypeFlags::MEM_RDONLY)
                        .with(TypeFlags::PTR_UNTRUSTED),
                );
            }
        }
    }

    /// Makes a register a typed pointer.
    pub fn set_btf_pointer(&mut self, n: u8, of: BtfOf, id: u32, flags: TypeFlags) {
        let name = if flags.has(TypeFlags::PTR_MAYBE_NULL) {
            self.new_id()
        } else {
            0
        };
        let reg = self.reg_mut(n);
        reg.set_pointer(RegType::BTF_ID.with(flags));
        reg.set_btf(of, id);
        reg.id = name;
    }

    /// A load through a pointer to a map: of the structure behind it.
    pub fn map_ptr_access(
        &mut self,
        n: u8,
        off: i32,
        size: i32,
        access: Access,
        value: Option<u8>,
    ) -> Res {
        let reg = *self.reg(n);
        let Some(map) = reg.map() else {
            return Err(Errno::Fault);
        };
        let Some(kernel) = self.kernel() else {
            fail!(
                self,
                NotSupp,
                "map_ptr access not supported without CONFIG_DEBUG_INFO_BTF\n"
            );
        };
        let t = self.maps[map]
            .kernel_struct()
            .and_then(|n| kernel.by_name(n, Kind::Struct));
        let Some(t) = t else {
            let number = self.maps[map].map_type as u32;
            fail!(
                self,
                NotSupp,
                "map_ptr access not supported for map type {number}\n"
            );
        };
        let name = t.name();
        if !self.privileged() {
            fail!(
                self,
                Perm,
                "'struct {name}' access is allowed only to CAP_PERFMON and CAP_SYS_ADMIN\n"
            );
        }
        if off < 0 {
            fail!(
                self,
                Acces,
                "R{n} is {name} invalid negative access: off={off}\n"
            );
        }
        if access == Access::Write {
            fail!(self, Acces, "only read from {name} is supported\n");
        }
        let loaded = self.struct_access(BtfOf::Kernel, t.id(), RegType::BTF_ID, off, size)?;
        if let Some(dst) = value {
            self.set_loaded(dst, BtfOf::Kernel, loaded);
        }
        Ok(())
    }

    /// A store to a kernel structure by a packet program: the mark of a connection.
    fn conntrack_write(&mut self, name: &str, off: i32, size: i32) -> Res {
        if !matches!(name, "nf_conn" | "nf_conn___init") {
            fail!(self, Acces, "only read is supported\n");
        }
        let span = self
            .kernel()
            .and_then(|k| member_span(k, k.by_name("nf_conn", Kind::Struct)?, "mark"));
        match span {
            Some((start, width)) if start as i32 == off && size <= width as i32 => Ok(()),
            _ => fail!(self, Acces, "no write support to nf_conn at off {off}\n"),
        }
    }

    /// A store to a kernel structure: only some fields, for some programs.
    fn kernel_write(&mut self, name: &str, off: i32, size: i32) -> Res {
        if self.prog_type() != ProgType::StructOps {
            return self.conntrack_write(name, off, size);
        }
        let ops = struct_ops::by_name(self.attach.caller.target);
        let writable = ops.and_then(|o| o.writable.iter().find(|w| w.object == name));
        let Some(writable) = writable else {
            fail!(self, Acces, "only read is supported\n");
        };
        if writable.fields.is_empty() {
            return Ok(());
        }
        let kernel = self.kernel().ok_or(Errno::Acces)?;
        let spans = self.writable.entry(writable.object).or_insert_with(|| {
            let object = kernel.by_name(name, Kind::Struct);
            let paths = writable.fields.iter();
            let span = |path: &&str| member_span(kernel, object?, path);
            paths.filter_map(span).collect()
        });
        let at = |s: &&(u32, u32)| (s.0 as i32..(s.0 + s.1) as i32).contains(&off);
        let span = spans.iter().find(at).copied();
        let Some((start, width)) = span else {
            fail!(self, Acces, "no write support to {name} at off {off}\n");
        };
        let end = start + width;
        if off + size > end as i32 {
            fail!(
                self,
                Acces,
                "write access at off {off} with size {size} beyond the member of {name} ended at {end}\n"
            );
        }
        Ok(())
    }
}

/// What a type tag on a pointer's target says.
pub(crate) fn tag_flags(pointee: &Type<'_>) -> TypeFlags {
    if !pointee.is(Kind::TypeTag) || pointee.kind_flag() {
        return TypeFlags::NONE;
    }
    match pointee.name() {
        "user" => TypeFlags::MEM_USER,
        "percpu" => TypeFlags::MEM_PERCPU,
        "rcu" => TypeFlags::MEM_RCU,
        _ => TypeFlags::NONE,
    }
}

/// Offset and size of a member by its path, through unnamed and embedded structures.
pub(crate) fn member_span(btf: &Btf, object: Type<'_>, path: &str) -> Option<(u32, u32)> {
    let (head, rest) = match path.split_once('.') {
        Some((head, rest)) => (head, Some(rest)),
        None => (path, None),
    };
    for member in object.members() {
        let Some(start) = member.byte_offset() else {
            continue;
        };
        let Some(t) = peel(btf, member.type_id) else {
            continue;
        };
        if member.name() == head {
            return match rest {
                None => Some((start, btf.size_of(member.type_id)?)),
                Some(rest) => member_span(btf, t, rest).map(|(o, s)| (start + o, s)),
            };
        }
        // A structure that begins with another inherits its fields (tcp_sock of sock).
        if is_struct(&t)
            && (member.name().is_empty() || start == 0)
            && let Some((o, s)) = member_span(btf, t, path)
        {
            return Some((start + o, s));
        }
    }
    None
}
