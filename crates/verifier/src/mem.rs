//! Loads and stores through pointers of every type.

use bpfkit_isa::code;
use bpfkit_spec::{ProgType, TypeFlags, context};

use crate::checker::{Checker, MAX_OFF};
use crate::ctx::CtxValue;
use crate::fail::{Errno, Res, fail, say};
use crate::range::Range;
use crate::record::{Field, FieldKind};
use crate::reg::{Base, BtfOf, Reg, RegType};
use crate::stack::{Access, RawMode, show};
use crate::state::SLOT;
use crate::tnum::Tnum;

/// Bytes of a load or store by its opcode.
pub(crate) const fn access_size(opcode: u8) -> i32 {
    match opcode & 0x18 {
        code::B => 1,
        code::H => 2,
        code::W => 4,
        _ => 8,
    }
}

/// One access by an instruction.
#[derive(Clone, Copy)]
pub(crate) struct MemOp {
    /// Register that points to the memory.
    pub base: u8,
    pub off: i32,
    pub size: i32,
    pub access: Access,
    /// Register stored, or loaded to.
    pub value: Option<u8>,
    /// Must be aligned in any case.
    pub strict: bool,
    pub sign_extend: bool,
}

impl<'a> Checker<'a> {
    fn check_alignment(&mut self, op: &MemOp) -> Res {
        let reg = *self.reg(op.base);
        let mut strict = self.env.strict_alignment || op.strict;
        let (off, size) = (op.off, op.size);
        let what = match reg.ty {
            t if t.is_packet() => {
                if !strict || size == 1 {
                    return Ok(());
                }
                // Network headers begin two bytes off a word.
                let total = reg
                    .range
                    .bits
                    .plus(Tnum::known((2 + reg.off + off) as i64 as u64));
                if !total.is_aligned(size as u64) {
                    let bits = show(reg.range.bits);
                    fail!(
                        self,
                        Acces,
                        "misaligned packet access off 2+{bits}+{}+{off} size {size}\n",
                        reg.off
                    );
                }
                return Ok(());
            }
            RegType::FLOW_KEYS => "flow keys ",
            RegType::MAP_KEY => "key ",
            RegType::MAP_VALUE => "value ",
            RegType::CTX => "context ",
            RegType::STACK => {
                strict = true;
                "stack "
            }
            RegType::SOCKET => "sock ",
            RegType::SOCK_COMMON => "sock_common ",
            RegType::TCP_SOCK => "tcp_sock ",
            RegType::XDP_SOCK => "xdp_sock ",
            RegType::ARENA => return Ok(()),
            _ => "",
        };
        if !strict || size == 1 {
            return Ok(());
        }
        let fixed = reg.off.wrapping_add(off);
        let total = reg.range.bits.plus(Tnum::known(fixed as i64 as u64));
        if !total.is_aligned(size as u64) {
            let bits = show(reg.range.bits);
            fail!(
                self,
                Acces,
                "misaligned {what}access off {bits}+{}+{off} size {size}\n",
                reg.off
            );
        }
        Ok(())
    }

    /// Checks a fixed range of memory.
    fn check_range(&mut self, n: u8, off: i64, size: i32, total: u32, zero_ok: bool) -> Res {
        let size_ok = size > 0 || (size == 0 && zero_ok);
        // Offsets are 32 bits wide in the kernel.
        let off = off as i32;
        if off >= 0 && size_ok && off as u64 + size as u64 <= total as u64 {
            return Ok(());
        }
        let reg = *self.reg(n);
        match reg.ty {
            RegType::MAP_KEY => {
                say!(
                    self,
                    "invalid access to map key, key_size={total} off={off} size={size}\n"
                );
            }
            RegType::MAP_VALUE => {
                say!(
                    self,
                    "invalid access to map value, value_size={total} off={off} size={size}\n"
                );
            }
            t if crate::state::is_any_packet(t.base()) && t.flags().is_empty() => {
                let id = reg.id;
                say!(
                    self,
                    "invalid access to packet, off={off} size={size}, R{n}(id={id},off={off},r={total})\n"
                );
            }
            _ => {
                say!(
                    self,
                    "invalid access to memory, mem_size={total} off={off} size={size}\n"
                );
            }
        }
        Err(Errno::Acces)
    }

    /// Checks a range of memory whose offset may vary.
    pub fn check_region(&mut self, n: u8, off: i32, size: i32, total: u32, zero_ok: bool) -> Res {
        let range = self.reg(n).range;
        let min = range.smin.wrapping_add(off as i64);
        if range.smin < 0 && (range.smin == i64::MIN || min != min as i32 as i64 || min < 0) {
            fail!(
                self,
                Acces,
                "R{n} min value is negative, either use unsigned index or do a if (index >=0) check.\n"
            );
        }
        if let Err(e) = self.check_range(n, min, size, total, zero_ok) {
            say!(
                self,
                "R{n} min value is outside of the allowed memory range\n"
            );
            return Err(e);
        }
        if range.umax >= MAX_OFF as u64 {
            fail!(
                self,
                Acces,
                "R{n} unbounded memory access, make sure to bounds check any such access\n"
            );
        }
        if let Err(e) = self.check_range(n, range.umax as i64 + off as i64, size, total, zero_ok) {
            say!(
                self,
                "R{n} max value is outside of the allowed memory range\n"
            );
            return Err(e);
        }
        Ok(())
    }

    /// Checks that a pointer was not moved, but for a fixed offset where that is allowed.
    pub fn check_unmoved(&mut self, reg: &Reg, n: u8, fixed_ok: bool) -> Res {
        let ty = reg.ty;
        if reg.off < 0 {
            fail!(
                self,
                Acces,
                "negative offset {ty} ptr R{n} off={} disallowed\n",
                reg.off
            );
        }
        if !fixed_ok && reg.off != 0 {
            fail!(
                self,
                Acces,
                "dereference of modified {ty} ptr R{n} off={} disallowed\n",
                reg.off
            );
        }
        if !reg.range.bits.equals(0) {
            let bits = show(reg.range.bits);
            fail!(
                self,
                Acces,
                "variable {ty} access var_off={bits} disallowed\n"
            );
        }
        Ok(())
    }

    fn check_map_direction(&mut self, n: u8, off: i32, size: i32, access: Access) -> Res {
        let Some(map) = self.reg(n).map() else {
            return Err(Errno::Fault);
        };
        let map = &self.maps[map];
        let value_size = map.value_size;
        if access == Access::Write && !map.writable() {
            fail!(
                self,
                Acces,
                "write into map forbidden, value_size={value_size} off={off} size={size}\n"
            );
        }
        if access == Access::Read && !map.readable() {
            fail!(
                self,
                Acces,
                "read from map forbidden, value_size={value_size} off={off} size={size}\n"
            );
        }
        Ok(())
    }

    /// Checks a range of a map value: its bounds, and that no special field is touched.
    pub fn check_map_value(
        &mut self,
        n: u8,
        off: i32,
        size: i32,
        zero_ok: bool,
        direct: bool,
    ) -> Res {
        let reg = *self.reg(n);
        let Some(map) = reg.map() else {
            return Err(Errno::Fault);
        };
        let total = self.maps[map].value_size;
        self.check_region(n, off, size, total, zero_ok)?;
        let record = self.maps[map].record.clone();
        for field in &record.fields {
            let start = field.offset as i64;
            let end = start + field.size as i64;
            let touched = reg.range.smin.wrapping_add(off as i64) < end
                && (start as u64)
                    < reg
                        .range
                        .umax
                        .wrapping_add(off as i64 as u64)
                        .wrapping_add(size as u64);
            if !touched {
                continue;
            }
            let name = field.kind.name();
            if !field.kind.is_pointer() {
                fail!(
                    self,
                    Acces,
                    "{name} cannot be accessed directly by load/store\n"
                );
            }
            if !direct {
                fail!(
                    self,
                    Acces,
                    "{name} cannot be accessed indirectly by helper\n"
                );
            }
            if !reg.range.bits.is_const() {
                fail!(self, Acces, "{name} access cannot have variable offset\n");
            }
            let at = (off as i64 as u64).wrapping_add(reg.range.bits.value);
            if start as u64 != at {
                fail!(
                    self,
                    Acces,
                    "{name} access misaligned expected={start} off={at}\n"
                );
            }
            if size != SLOT {
                fail!(self, Acces, "{name} access size must be BPF_DW\n");
            }
        }
        Ok(())
    }

    /// Whether the program may access packet bytes directly.
    pub fn may_access_packet(&mut self, helper: Option<bool>, access: Access) -> bool {
        use ProgType as P;
        match self.prog_type() {
            P::LwtIn
            | P::LwtOut
            | P::LwtSeg6local
            | P::SkReuseport
            | P::FlowDissector
            | P::CgroupSkb
                if access == Access::Write =>
            {
                false
            }
            P::LwtIn
            | P::LwtOut
            | P::LwtSeg6local
            | P::SkReuseport
            | P::FlowDissector
            | P::CgroupSkb
            | P::SchedCls
            | P::SchedAct
            | P::Xdp
            | P::LwtXmit
            | P::SkSkb
            | P::SkMsg => helper.unwrap_or(true),
            P::CgroupSockopt => true,
            _ => false,
        }
    }

    fn check_packet(&mut self, n: u8, off: i32, size: i32, zero_ok: bool) -> Res {
        let reg = *self.reg(n);
        if reg.range.smin < 0 {
            fail!(
                self,
                Acces,
                "R{n} min value is negative, either use unsigned index or do a if (index >=0) check.\n"
            );
        }
        let result = if reg.pkt_range() < 0 {
            Err(Errno::Inval)
        } else {
            self.check_range(n, off as i64, size, reg.pkt_range() as u32, zero_ok)
        };
        if result.is_err() {
            say!(self, "R{n} offset is outside of the packet\n");
        }
        result
    }

    fn check_socket(&mut self, n: u8, off: i32, size: i32) -> Res {
        let reg = *self.reg(n);
        if reg.range.smin < 0 {
            fail!(
                self,
                Acces,
                "R{n} min value is negative, either use unsigned index or do a if (index >=0) check.\n"
            );
        }
        let layout = match reg.ty {
            RegType::SOCK_COMMON => &context::SOCK_COMMON_OBJECT,
            RegType::TCP_SOCK => &context::TCP_SOCK_OBJECT,
            RegType::XDP_SOCK => &context::XDP_SOCK_OBJECT,
            _ => &context::SOCK_OBJECT,
        };
        let access = context::Access {
            offset: off,
            size: size as u32,
            write: false,
            sign_extend: false,
        };
        if layout.field_at(&self.attach.caller, access).is_none() {
            let ty = reg.ty;
            fail!(
                self,
                Acces,
                "R{n} invalid {ty} access off={off} size={size}\n"
            );
        }
        Ok(())
    }

    fn check_buffer(&mut self, n: u8, what: &str, off: i32, size: i32) -> Res {
        let reg = *self.reg(n);
        if off < 0 {
            fail!(
                self,
                Acces,
                "R{n} invalid {what} buffer access: off={off}, size={size}\n"
            );
        }
        if !reg.range.bits.equals(0) {
            let bits = show(reg.range.bits);
            fail!(
                self,
                Acces,
                "R{n} invalid variable buffer offset: off={off}, var_off={bits}\n"
            );
        }
        Ok(())
    }

    /// Checks that no pointer is stored where others can read it.
    fn check_leak(&mut self, op: &MemOp, into: &str) -> Res {
        if let (Access::Write, Some(v)) = (op.access, op.value)
            && self.is_pointer_value(v)
        {
            fail!(self, Acces, "R{v} leaks addr into {into}\n");
        }
        Ok(())
    }

    /// Checks one access to memory and sets the register that is loaded.
    pub fn mem_access(&mut self, op: MemOp) -> Res {
        self.check_alignment(&op)?;
        let n = op.base;
        let reg = *self.reg(n);
        let ty = reg.ty;
        let off = op.off.wrapping_add(reg.off);
        let size = op.size;
        let loads = op.value.filter(|_| op.access == Access::Read);
        match ty.base() {
            Base::MapKey if ty == RegType::MAP_KEY => {
                if op.access == Access::Write {
                    fail!(self, Acces, "write to change key R{n} not allowed\n");
                }
                let total = reg.map().map_or(0, |m| self.maps[m].key_size);
                self.check_region(n, off, size, total, false)?;
                self.load_unknown(loads);
            }
            Base::MapValue if ty == RegType::MAP_VALUE => self.map_value_access(&op, off)?,
            Base::Mem => {
                let rdonly = ty.has(TypeFlags::MEM_RDONLY);
                if ty.may_be_null() {
                    fail!(self, Acces, "R{n} invalid mem access '{ty}'\n");
                }
                if op.access == Access::Write && rdonly {
                    fail!(self, Acces, "R{n} cannot write into {ty}\n");
                }
                self.check_leak(&op, "mem")?;
                if !(rdonly && ty.has(TypeFlags::PTR_UNTRUSTED)) {
                    self.check_region(n, off, size, reg.mem_size(), false)?;
                }
                self.load_unknown(loads);
            }
            Base::Ctx if ty == RegType::CTX => {
                self.check_leak(&op, "ctx")?;
                self.check_unmoved(&reg, n, false)?;
                match self.ctx_access(off, size, op.access, op.sign_extend) {
                    Ok(value) => self.set_ctx_value(loads, value),
                    Err(e) => {
                        self.print_line(self.insn, "; ");
                        return Err(e);
                    }
                }
            }
            Base::Stack if ty == RegType::STACK => {
                self.stack_bounds(n, off, size, op.access)?;
                match op.access {
                    Access::Read => self.stack_read(n, off, size, op.value)?,
                    Access::Write => self.stack_write(n, off, size, op.value)?,
                }
            }
            Base::Packet | Base::PacketMeta if ty.is_packet() && ty.flags().is_empty() => {
                if op.access == Access::Write && !self.may_access_packet(None, op.access) {
                    fail!(self, Acces, "cannot write into packet\n");
                }
                self.check_leak(&op, "packet")?;
                self.check_packet(n, off, size, false)?;
                self.load_unknown(loads);
            }
            Base::FlowKeys if ty == RegType::FLOW_KEYS => {
                self.check_leak(&op, "flow keys")?;
                if off < 0 || (off + size) as u32 > context::FLOW_KEYS_SIZE {
                    fail!(
                        self,
                        Acces,
                        "invalid access to flow keys off={off} size={size}\n"
                    );
                }
                self.load_unknown(loads);
            }
            _ if ty.is_socket() => {
                if op.access == Access::Write {
                    fail!(self, Acces, "R{n} cannot write into {ty}\n");
                }
                self.check_socket(n, off, size)?;
                self.load_unknown(op.value);
            }
            Base::TpBuffer if ty == RegType::TP_BUFFER => {
                self.check_buffer(n, "tracepoint", off, size)?;
                self.load_unknown(loads);
            }
            Base::BtfId if !ty.may_be_null() => {
                self.btf_access(n, off, size, op.access, op.value)?;
            }
            Base::ConstMapPtr if ty == RegType::MAP_PTR => {
                self.map_ptr_access(n, off, size, op.access, op.value)?;
            }
            Base::Buf => {
                let rdonly = ty.has(TypeFlags::MEM_RDONLY);
                if rdonly && op.access == Access::Write {
                    fail!(self, Acces, "R{n} cannot write into {ty}\n");
                }
                self.check_buffer(n, if rdonly { "rdonly" } else { "rdwr" }, off, size)?;
                self.load_unknown(loads);
            }
            Base::Arena if ty == RegType::ARENA => self.load_unknown(loads),
            _ => fail!(self, Acces, "R{n} invalid mem access '{ty}'\n"),
        }
        if let Some(dst) = loads.filter(|_| size < SLOT) {
            let reg = self.reg_mut(dst);
            if reg.ty == RegType::SCALAR {
                if op.sign_extend {
                    reg.range.sign_extend(size as u32);
                } else {
                    reg.range.zero_extend(size as u32);
                }
            }
        }
        Ok(())
    }

    fn load_unknown(&mut self, dst: Option<u8>) {
        if let Some(dst) = dst {
            self.set_unknown(dst);
        }
    }

    fn map_value_access(&mut self, op: &MemOp, off: i32) -> Res {
        let n = op.base;
        let reg = *self.reg(n);
        let Some(map) = reg.map() else {
            return Err(Errno::Fault);
        };
        self.check_leak(op, "map")?;
        self.check_map_direction(n, off, op.size, op.access)?;
        self.check_map_value(n, off, op.size, false, true)?;
        let at = (off as i64 as u64).wrapping_add(reg.range.bits.value);
        if reg.range.bits.is_const() {
            let field = self.maps[map].record.at(at, FieldKind::is_pointer).copied();
            if let Some(field) = field {
                return self.kptr_access(op, &field);
            }
        }
        let Some(dst) = op.value.filter(|_| op.access == Access::Read) else {
            return Ok(());
        };
        let map = &self.maps[map];
        let constant = reg.range.bits.is_const() && map.frozen.is_some() && map.has_direct_values();
        if constant {
            let value = map.constant(at as usize, op.size as usize, op.sign_extend);
            let Some(value) = value else {
                return Err(Errno::Inval);
            };
            let reg = self.reg_mut(dst);
            reg.ty = RegType::SCALAR;
            reg.set_known(value);
        } else {
            self.set_unknown(dst);
        }
        Ok(())
    }

    fn set_ctx_value(&mut self, dst: Option<u8>, value: CtxValue) {
        let Some(dst) = dst else { return };
        if value.ty == RegType::SCALAR {
            match value.range {
                Some((min, max)) => {
                    self.set_unknown(dst);
                    let reg = self.reg_mut(dst);
                    let mut range = Range::UNKNOWN;
                    (range.smin, range.smax) = (min as i64, max as i64);
                    (range.smin32, range.smax32) = (min, max);
                    range.sync();
                    reg.range = range;
                }
                None => self.set_unknown(dst),
            }
            return;
        }
        let id = if value.ty.may_be_null() {
            self.new_id()
        } else {
            0
        };
        let reg = self.reg_mut(dst);
        reg.set_pointer(value.ty);
        reg.id = id;
        if value.ty.base() == Base::BtfId {
            reg.set_btf(value.btf.0, value.btf.1);
            reg.ref_obj_id = value.ref_obj_id;
            self.kernel_objects = true;
        }
    }

    /// A load or store of a kernel pointer in a map value.
    fn kptr_access(&mut self, op: &MemOp, field: &Field) -> Res {
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
    fn kptr_flags(&mut self, field: &Field) -> TypeFlags {
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

    /// Checks that a helper may read or write `size` bytes behind an argument.
    pub fn helper_mem_access(
        &mut self,
        n: u8,
        size: i32,
        access: Access,
        zero_ok: bool,
        raw: Option<&mut RawMode>,
    ) -> Res {
        let reg = *self.reg(n);
        let ty = reg.ty;
        let off = reg.off;
        match ty.base() {
            Base::Packet | Base::PacketMeta => self.check_packet(n, off, size, zero_ok),
            Base::MapKey => {
                if access == Access::Write {
                    fail!(self, Acces, "R{n} cannot write into {ty}\n");
                }
                let total = reg.map().map_or(0, |m| self.maps[m].key_size);
                self.check_region(n, off, size, total, false)
            }
            Base::MapValue => {
                self.check_map_direction(n, off, size, access)?;
                self.check_map_value(n, off, size, zero_ok, false)
            }
            Base::Mem => {
                if ty.has(TypeFlags::MEM_RDONLY) && access == Access::Write {
                    fail!(self, Acces, "R{n} cannot write into {ty}\n");
                }
                self.check_region(n, off, size, reg.mem_size(), zero_ok)
            }
            Base::Buf => {
                let rdonly = ty.has(TypeFlags::MEM_RDONLY);
                if rdonly && access == Access::Write {
                    fail!(self, Acces, "R{n} cannot write into {ty}\n");
                }
                self.check_buffer(n, if rdonly { "rdonly" } else { "rdwr" }, off, size)
            }
            Base::Stack => self.stack_initialized(n, off, size, zero_ok, access, raw),
            Base::BtfId => self.btf_access(n, off, size, Access::Read, None),
            Base::Ctx if !self.attach.converts_ctx() => {
                if size == 0 {
                    return if zero_ok { Ok(()) } else { Err(Errno::Acces) };
                }
                self.mem_access(MemOp {
                    base: n,
                    off: size - 1,
                    size: 1,
                    access,
                    value: None,
                    strict: false,
                    sign_extend: false,
                })
            }
            _ => {
                if zero_ok && size == 0 && reg.is_null() {
                    return Ok(());
                }
                say!(self, "R{n} type={ty} ");
                fail!(self, Acces, "expected=fp\n");
            }
        }
    }

    /// Checks memory whose size is in register `n`, and whose address is in the one before.
    pub fn mem_size_arg(
        &mut self,
        n: u8,
        access: Access,
        zero_ok: bool,
        raw: Option<&mut RawMode>,
    ) -> Res {
        let range = self.reg(n).range;
        let raw = raw.filter(|_| range.bits.is_const());
        if range.smin < 0 {
            fail!(
                self,
                Acces,
                "R{n} min value is negative, either use unsigned or 'var &= const'\n"
            );
        }
        if range.umin == 0 && !zero_ok {
            let (min, max) = (range.umin as i64, range.umax as i64);
            fail!(
                self,
                Acces,
                "R{n} invalid zero-sized read: u64=[{min},{max}]\n"
            );
        }
        if range.umax >= MAX_OFF as u64 {
            fail!(
                self,
                Acces,
                "R{n} unbounded memory access, use 'var &= const' or 'if (var < const)'\n"
            );
        }
        self.helper_mem_access(n - 1, range.umax as i32, access, zero_ok, raw)?;
        self.mark_precise(n)
    }

    /// Checks that `size` bytes behind a register may be read and written, if it is not null.
    pub fn mem_arg(&mut self, n: u8, size: u32) -> Res {
        let saved = *self.reg(n);
        if saved.is_null() {
            return Ok(());
        }
        if saved.ty.may_be_null() {
            self.assume_not_null(n);
        }
        let result = self
            .helper_mem_access(n, size as i32, Access::Read, true, None)
            .and_then(|()| self.helper_mem_access(n, size as i32, Access::Write, true, None));
        if saved.ty.may_be_null() {
            *self.reg_mut(n) = saved;
        }
        result
    }

    /// The same where the size is in register `n` and the address in the one before.
    pub fn mem_size_pair(&mut self, n: u8) -> Res {
        let saved = *self.reg(n - 1);
        if saved.ty.may_be_null() {
            self.assume_not_null(n - 1);
        }
        let result = self
            .mem_size_arg(n, Access::Read, true, None)
            .and_then(|()| self.mem_size_arg(n, Access::Write, true, None));
        if saved.ty.may_be_null() {
            *self.reg_mut(n - 1) = saved;
        }
        result
    }

    /// Treats a pointer as not null for a while.
    fn assume_not_null(&mut self, n: u8) {
        let mut reg = *self.reg(n);
        self.mark_not_null(&mut reg);
        *self.reg_mut(n) = reg;
    }

    /// A load instruction.
    pub fn load(&mut self, strict: bool, sign_extend: bool, allow_mix: bool) -> Res {
        let insn = self.insn();
        self.read_reg(insn.src)?;
        self.may_write_reg(insn.dst)?;
        let ty = self.reg(insn.src).ty;
        self.mem_access(MemOp {
            base: insn.src,
            off: insn.off as i32,
            size: access_size(insn.code),
            access: Access::Read,
            value: Some(insn.dst),
            strict,
            sign_extend,
        })?;
        self.save_ptr_type(ty, allow_mix)?;
        self.sanity_check_bounds(insn.dst, "ldx")
    }

    /// A store of a register.
    pub fn store(&mut self, strict: bool) -> Res {
        let insn = self.insn();
        self.read_reg(insn.src)?;
        self.read_reg(insn.dst)?;
        let ty = self.reg(insn.dst).ty;
        self.mem_access(MemOp {
            base: insn.dst,
            off: insn.off as i32,
            size: access_size(insn.code),
            access: Access::Write,
            value: Some(insn.src),
            strict,
            sign_extend: false,
        })?;
        self.save_ptr_type(ty, false)
    }

    /// A store of a constant.
    pub fn store_imm(&mut self) -> Res {
        let insn = self.insn();
        if insn.code & 0xe0 != code::MEM || insn.src != 0 {
            fail!(self, Inval, "BPF_ST uses reserved fields\n");
        }
        self.read_reg(insn.dst)?;
        let ty = self.reg(insn.dst).ty;
        self.mem_access(MemOp {
            base: insn.dst,
            off: insn.off as i32,
            size: access_size(insn.code),
            access: Access::Write,
            value: None,
            strict: false,
            sign_extend: false,
        })?;
        self.save_ptr_type(ty, false)
    }

    /// Remembers through what an instruction accesses memory: two kinds that the kernel
    /// would have to translate differently do not go together.
    fn save_ptr_type(&mut self, ty: RegType, allow_mix: bool) -> Res {
        self.kernel_objects |= ty.base() == Base::BtfId || ty.has(TypeFlags::PTR_UNTRUSTED);
        let known = self.aux[self.insn as usize].ptr_type;
        if known == RegType::NOT_INIT {
            self.aux[self.insn as usize].ptr_type = ty;
            return Ok(());
        }
        let fixed = |t: RegType| {
            matches!(
                t.base(),
                Base::Ctx
                    | Base::Socket
                    | Base::SockCommon
                    | Base::TcpSock
                    | Base::XdpSock
                    | Base::BtfId
                    | Base::Arena
            )
        };
        if ty == known || !(fixed(ty) || fixed(known)) {
            return Ok(());
        }
        let probed = |t: RegType| matches!(t.base(), Base::Mem | Base::BtfId);
        if !allow_mix || !probed(ty) || !probed(known) {
            fail!(
                self,
                Inval,
                "same insn cannot be used with different pointers\n"
            );
        }
        let either = |f| ty.has(f) || known.has(f);
        let is_mem = ty.base() == Base::Mem || known.base() == Base::Mem;
        let mut merged = if is_mem {
            RegType::MEM
        } else {
            RegType::BTF_ID
        };
        for flag in [TypeFlags::PTR_UNTRUSTED, TypeFlags::MEM_RDONLY] {
            if either(flag) {
                merged = merged.with(flag);
            }
        }
        self.aux[self.insn as usize].ptr_type = merged;
        Ok(())
    }

    /// An atomic operation.
    pub fn atomic(&mut self) -> Res {
        let insn = self.insn();
        match insn.imm {
            code::LOAD_ACQ => {
                self.load(true, false, false)?;
                if !self.atomic_allowed(insn.src) {
                    let ty = self.reg(insn.src).ty;
                    let n = insn.src;
                    fail!(
                        self,
                        Acces,
                        "BPF_ATOMIC loads from R{n} {ty} is not allowed\n"
                    );
                }
                Ok(())
            }
            code::STORE_REL => {
                self.store(true)?;
                self.check_atomic_target(insn.dst)
            }
            imm => {
                const ADD: i32 = code::ADD as i32;
                const AND: i32 = code::AND as i32;
                const OR: i32 = code::OR as i32;
                const XOR: i32 = code::XOR as i32;
                let plain = matches!(imm & !code::FETCH, ADD | AND | OR | XOR);
                if !plain && imm != code::XCHG && imm != code::CMPXCHG {
                    fail!(
                        self,
                        Inval,
                        "BPF_ATOMIC uses invalid atomic opcode {imm:02x}\n"
                    );
                }
                self.atomic_update()
            }
        }
    }

    fn atomic_allowed(&self, n: u8) -> bool {
        let ty = self.reg(n).ty;
        !(ty == RegType::CTX || ty.is_packet() || ty == RegType::FLOW_KEYS || ty.is_socket())
    }

    fn check_atomic_target(&mut self, n: u8) -> Res {
        if !self.atomic_allowed(n) {
            let ty = self.reg(n).ty;
            fail!(
                self,
                Acces,
                "BPF_ATOMIC stores into R{n} {ty} is not allowed\n"
            );
        }
        Ok(())
    }

    fn atomic_update(&mut self) -> Res {
        let insn = self.insn();
        let size = access_size(insn.code);
        if size < 4 {
            fail!(self, Inval, "invalid atomic operand size\n");
        }
        self.read_reg(insn.src)?;
        self.read_reg(insn.dst)?;
        if insn.imm == code::CMPXCHG {
            self.read_reg(0)?;
            if self.is_pointer_value(0) {
                fail!(self, Acces, "R0 leaks addr into mem\n");
            }
        }
        if self.is_pointer_value(insn.src) {
            fail!(self, Acces, "R{} leaks addr into mem\n", insn.src);
        }
        self.check_atomic_target(insn.dst)?;
        let mut fetched = None;
        if insn.imm & code::FETCH != 0 {
            let to = if insn.imm == code::CMPXCHG {
                0
            } else {
                insn.src
            };
            self.write_reg(to)?;
            fetched = Some(to);
        }
        let op = MemOp {
            base: insn.dst,
            off: insn.off as i32,
            size,
            access: Access::Read,
            value: None,
            strict: true,
            sign_extend: false,
        };
        self.mem_access(op)?;
        if fetched.is_some() {
            self.mem_access(MemOp {
                value: fetched,
                ..op
            })?;
        }
        if self.reg(insn.dst).ty == RegType::ARENA {
            self.save_ptr_type(RegType::ARENA, false)?;
        }
        self.mem_access(MemOp {
            access: Access::Write,
            ..op
        })
    }
}
