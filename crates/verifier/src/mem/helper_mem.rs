//! Memory that helpers and kernel functions get, with or without a size beside it.

use crate::checker::{Checker, MAX_OFF};
use crate::fail::{Errno, Res, fail, say};
use crate::reg::Base;
use crate::stack::{Access, RawMode};
use bpfkit_spec::TypeFlags;

use super::MemOp;

impl<'a> Checker<'a> {
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
    pub(super) fn assume_not_null(&mut self, n: u8) {
        let mut reg = *self.reg(n);
        self.mark_not_null(&mut reg);
        *self.reg_mut(n) = reg;
    }
}
