//! Loads and stores through pointers of every type.

mod bounds;
mod helper_mem;
mod insn;
mod kptr;

use bpfkit_isa::code;
use bpfkit_spec::{TypeFlags, context};

use crate::checker::Checker;
use crate::ctx::CtxValue;
use crate::fail::{Errno, Res, fail};
use crate::range::Range;
use crate::record::FieldKind;
use crate::reg::{Base, RegType};
use crate::stack::Access;
use crate::state::SLOT;

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
                    // Linux goes on taking it for the number that was spilled.
                    let changes = reg.range.umax >> (8 * size - 1) != 0;
                    let unsound = reg.id != 0 && changes;
                    reg.range.sign_extend(size as u32);
                    self.unsound |= unsound;
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
}
