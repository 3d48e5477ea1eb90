//! Whether an access is aligned, lies inside of what its pointer may reach, and is allowed there.

use crate::checker::{Checker, MAX_OFF};
use crate::fail::{Errno, Res, fail, say};
use crate::reg::{Reg, RegType};
use crate::stack::{Access, show};
use crate::state::SLOT;
use crate::tnum::Tnum;
use bpfkit_spec::{ProgType, context};

use super::MemOp;

impl<'a> Checker<'a> {
    pub(super) fn check_alignment(&mut self, op: &MemOp) -> Res {
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
    pub(super) fn check_range(
        &mut self,
        n: u8,
        off: i64,
        size: i32,
        total: u32,
        zero_ok: bool,
    ) -> Res {
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

    pub(super) fn check_map_direction(
        &mut self,
        n: u8,
        off: i32,
        size: i32,
        access: Access,
    ) -> Res {
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

    pub(super) fn check_packet(&mut self, n: u8, off: i32, size: i32, zero_ok: bool) -> Res {
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

    pub(super) fn check_socket(&mut self, n: u8, off: i32, size: i32) -> Res {
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

    pub(super) fn check_buffer(&mut self, n: u8, what: &str, off: i32, size: i32) -> Res {
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
    pub(super) fn check_leak(&mut self, op: &MemOp, into: &str) -> Res {
        if let (Access::Write, Some(v)) = (op.access, op.value)
            && self.is_pointer_value(v)
        {
            fail!(self, Acces, "R{v} leaks addr into {into}\n");
        }
        Ok(())
    }
}
