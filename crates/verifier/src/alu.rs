//! Arithmetic instructions on numbers and pointers.

use bpfkit_isa::{Insn, code};
use bpfkit_spec::TypeFlags;

use crate::arith;
use crate::checker::{Checker, MAX_OFF};
use crate::fail::{Res, fail};
use crate::range::Range;
use crate::reg::{ADD_CONST, ADD_CONST32, ADD_CONST64, Base, Reg, RegType};
use crate::state::{FP, State};

/// Names of arithmetic operations in messages.
const NAMES: [&str; 16] = [
    "+=", "-=", "*=", "/=", "|=", "&=", "<<=", ">>=", "neg", "%=", "^=", "=", "s>>=", "endian", "",
    "",
];

/// How far apart a constant takes a number from its copies, if that is remembered.
fn distance(op: u8, wide: bool, value: u64) -> Option<i32> {
    let off = match wide {
        true => i32::try_from(value as i64).ok()?,
        false => value as i32,
    };
    match op {
        code::ADD => Some(off),
        code::SUB => off.checked_neg(),
        _ => None,
    }
}

const fn is_wide(insn: &Insn) -> bool {
    insn.class() == code::ALU64
}

impl Checker<'_> {
    /// An arithmetic instruction.
    pub fn alu(&mut self) -> Res {
        let insn = self.insn();
        let op = insn.code & 0xf0;
        let from_reg = insn.code & code::X != 0;
        match op {
            code::NEG | code::END => self.unary(&insn)?,
            code::MOV => self.mov(&insn)?,
            op if op > code::END => {
                fail!(self, Inval, "invalid BPF_ALU opcode {op:x}\n");
            }
            _ => {
                let signed_div = insn.off == 1 && matches!(op, code::DIV | code::MOD);
                if (from_reg && insn.imm != 0)
                    || (!from_reg && insn.src != 0)
                    || (insn.off != 0 && !signed_div)
                {
                    fail!(self, Inval, "BPF_ALU uses reserved fields\n");
                }
                if from_reg {
                    self.read_reg(insn.src)?;
                }
                self.read_reg(insn.dst)?;
                if matches!(op, code::DIV | code::MOD) && !from_reg && insn.imm == 0 {
                    fail!(self, Inval, "div by zero\n");
                }
                if matches!(op, code::LSH | code::RSH | code::ARSH) && !from_reg {
                    let width = if is_wide(&insn) { 64 } else { 32 };
                    if insn.imm < 0 || insn.imm >= width {
                        fail!(self, Inval, "invalid shift {}\n", insn.imm);
                    }
                }
                self.may_write_reg(insn.dst)?;
                self.binary(&insn)?;
            }
        }
        self.sanity_check_bounds(insn.dst, "alu")
    }

    fn unary(&mut self, insn: &Insn) -> Res {
        let op = insn.code & 0xf0;
        let from_reg = insn.code & code::X != 0;
        if op == code::NEG {
            if from_reg || insn.src != 0 || insn.off != 0 || insn.imm != 0 {
                fail!(self, Inval, "BPF_NEG uses reserved fields\n");
            }
        } else if insn.src != 0
            || insn.off != 0
            || !matches!(insn.imm, 16 | 32 | 64)
            || (is_wide(insn) && from_reg)
        {
            fail!(self, Inval, "BPF_END uses reserved fields\n");
        }
        self.read_reg(insn.dst)?;
        if self.is_pointer_value(insn.dst) {
            fail!(self, Acces, "R{} pointer arithmetic prohibited\n", insn.dst);
        }
        if op == code::NEG && self.reg(insn.dst).ty == RegType::SCALAR {
            self.may_write_reg(insn.dst)?;
            let wide = is_wide(insn);
            let reg = self.reg_mut(insn.dst);
            let src = reg.range;
            arith::apply(op, wide, &mut reg.range, &src);
            reg.unname();
            return Ok(());
        }
        if self.reg(insn.dst).ty != RegType::SCALAR {
            return self.write_reg(insn.dst);
        }
        self.may_write_reg(insn.dst)?;
        // To little endian only cuts; the others swap bytes.
        let swaps = is_wide(insn) || from_reg;
        let bytes = insn.imm as u32 / 8;
        let reg = self.reg_mut(insn.dst);
        let mut bits = reg.range.bits;
        if bytes < 8 {
            bits = bits.truncated(bytes);
        }
        if swaps {
            let shift = 64 - insn.imm as u32;
            bits.value = bits.value.swap_bytes() >> shift;
            bits.mask = bits.mask.swap_bytes() >> shift;
        }
        reg.range = Range {
            bits,
            ..Range::UNKNOWN
        };
        reg.range.sync();
        reg.unname();
        Ok(())
    }

    fn mov(&mut self, insn: &Insn) -> Res {
        let wide = is_wide(insn);
        let from_reg = insn.code & code::X != 0;
        if !from_reg {
            if insn.src != 0 || insn.off != 0 {
                fail!(self, Inval, "BPF_MOV uses reserved fields\n");
            }
            self.write_reg(insn.dst)?;
            let value = if wide {
                insn.imm as i64 as u64
            } else {
                insn.imm as u32 as u64
            };
            self.reg_mut(insn.dst).set_known(value);
            return Ok(());
        }
        let cast = wide && insn.off == code::ADDR_SPACE_CAST;
        if cast {
            if insn.imm != 1 && insn.imm != 1 << 16 {
                fail!(
                    self,
                    Inval,
                    "addr_space_cast insn can only convert between address space 1 and 0\n"
                );
            }
            if self.arena.is_none() {
                fail!(
                    self,
                    Inval,
                    "addr_space_cast insn can only be used in a program that has an associated arena\n"
                );
            }
        } else {
            let off_ok = matches!(insn.off, 0 | 8 | 16) || (wide && insn.off == 32);
            if !off_ok || insn.imm != 0 {
                fail!(self, Inval, "BPF_MOV uses reserved fields\n");
            }
        }
        self.read_reg(insn.src)?;
        self.may_write_reg(insn.dst)?;
        if cast {
            self.set_unknown(insn.dst);
            if insn.imm == 1 {
                self.reg_mut(insn.dst).ty = RegType::ARENA;
            }
            return Ok(());
        }
        if wide && insn.off == 0 {
            self.name_scalar(insn.src);
            let src = *self.reg(insn.src);
            *self.reg_mut(insn.dst) = src;
            return Ok(());
        }
        if self.is_pointer_value(insn.src) {
            let n = insn.src;
            if wide {
                fail!(self, Acces, "R{n} sign-extension part of pointer\n");
            }
            fail!(self, Acces, "R{n} partial copy of pointer\n");
        }
        if self.reg(insn.src).ty != RegType::SCALAR {
            self.set_unknown(insn.dst);
            if !wide {
                self.reg_mut(insn.dst).range.zero_extend32();
            }
            return Ok(());
        }
        let umax = self.reg(insn.src).range.umax;
        let same = match (wide, insn.off) {
            (false, 0) => umax <= u32::MAX as u64,
            (_, bits) => umax < 1 << (bits - 1),
        };
        if same {
            self.name_scalar(insn.src);
        }
        let mut src = *self.reg(insn.src);
        if !same {
            src.unname();
        }
        match (wide, insn.off) {
            (true, bits) => src.range.sign_extend(bits as u32 / 8),
            (false, 0) => src.range.zero_extend32(),
            (false, bits) => {
                src.range.sign_extend_low32(bits as u32 / 8);
                src.range.zero_extend32();
            }
        }
        if !wide {
            src.range.sync();
        }
        *self.reg_mut(insn.dst) = src;
        Ok(())
    }

    fn binary(&mut self, insn: &Insn) -> Res {
        let op = insn.code & 0xf0;
        let dst = *self.reg(insn.dst);
        if dst.ty == RegType::ARENA {
            self.note_arena();
            return Ok(());
        }
        let is_pointer = dst.ty != RegType::SCALAR;
        let src;
        if insn.code & code::X != 0 {
            src = *self.reg(insn.src);
            if src.ty != RegType::SCALAR {
                if is_pointer {
                    if op == code::SUB && self.privileged() {
                        self.set_unknown(insn.dst);
                        return Ok(());
                    }
                    let name = NAMES[op as usize >> 4];
                    fail!(
                        self,
                        Acces,
                        "R{} pointer {name} pointer prohibited\n",
                        insn.dst
                    );
                }
                self.mark_precise(insn.dst)?;
                return self.pointer_math(insn, &src, &dst, true);
            }
            if is_pointer {
                self.mark_precise(insn.src)?;
                return self.pointer_math(insn, &dst, &src, false);
            }
        } else {
            src = Reg::scalar(insn.imm as i64 as u64);
            if is_pointer {
                return self.pointer_math(insn, &dst, &src, false);
            }
        }
        self.scalar_math(insn, &src)
    }

    fn scalar_math(&mut self, insn: &Insn, src: &Reg) -> Res {
        let op = insn.code & 0xf0;
        let wide = is_wide(insn);
        // Where the upper half goes, the number is no copy of another plus a constant.
        let whole = wide || self.reg(insn.dst).range.umax <= u64::from(u32::MAX);
        if arith::computable(op, wide, &src.range) {
            self.mask_number(insn)?;
            if matches!(op, code::AND | code::OR) && src.range.bits.is_const() {
                self.fork_all_or_nothing(insn, wide)?;
            }
            let reg = self.reg_mut(insn.dst);
            arith::apply(op, wide, &mut reg.range, &src.range);
        } else {
            self.set_unknown(insn.dst);
        }
        let privileged = self.privileged();
        let reg = self.reg_mut(insn.dst);
        let distance = match src.constant(wide) {
            Some(value) if privileged && whole && reg.id != 0 => distance(op, wide, value),
            _ => None,
        };
        match distance {
            Some(off) if reg.id & ADD_CONST == 0 => {
                reg.id |= if wide { ADD_CONST64 } else { ADD_CONST32 };
                reg.off = off;
            }
            _ => reg.unname(),
        }
        Ok(())
    }

    /// A number that is 0 or all ones, as made by a shift of the sign: both are walked,
    /// so that masking it tells them apart.
    fn fork_all_or_nothing(&mut self, insn: &Insn, wide: bool) -> Res {
        let range = self.reg(insn.dst).range;
        let both = if wide {
            range.smin == -1 && range.smax == 0
        } else {
            range.smin32 == -1 && range.smax32 == 0
        };
        if !both {
            return Ok(());
        }
        let (at, dst) = (self.insn, insn.dst as usize);
        let branch = self.push_branch(at, at)?;
        set_number(branch, dst, 0);
        let ones = if wide { u64::MAX } else { u32::MAX as u64 };
        let reg = self.reg_mut(insn.dst);
        reg.set_known(ones);
        Ok(())
    }

    /// Checks that a pointer's offset stays in sane bounds.
    fn check_sane_offset(&mut self, reg: &Reg, ty: RegType) -> Res {
        let value = reg.range.bits.value as i64;
        if reg.range.bits.is_const() && (value >= MAX_OFF || value <= -MAX_OFF) {
            fail!(
                self,
                Inval,
                "math between {ty} pointer and {value} is not allowed\n"
            );
        }
        let off = reg.off;
        if off as i64 >= MAX_OFF || off as i64 <= -MAX_OFF {
            fail!(self, Inval, "{ty} pointer offset {off} is not allowed\n");
        }
        let smin = reg.range.smin;
        if smin == i64::MIN {
            fail!(
                self,
                Inval,
                "math between {ty} pointer and register with unbounded min value is not allowed\n"
            );
        }
        if smin >= MAX_OFF || smin <= -MAX_OFF {
            fail!(
                self,
                Inval,
                "value {smin} makes {ty} pointer be out of bounds\n"
            );
        }
        Ok(())
    }

    /// Adds to or subtracts from a pointer; `swapped` if the destination is the number.
    fn pointer_math(&mut self, insn: &Insn, ptr: &Reg, num: &Reg, swapped: bool) -> Res {
        let n = insn.dst;
        let op = insn.code & 0xf0;
        let known = num.range.bits.is_const();
        let (smin, smax) = (num.range.smin, num.range.smax);
        let (umin, umax) = (num.range.umin, num.range.umax);
        if (known && (smin != smax || umin != umax)) || smin > smax || umin > umax {
            self.set_unknown(n);
            return Ok(());
        }
        let ty = ptr.ty;
        if !is_wide(insn) {
            if op == code::SUB && self.privileged() {
                self.set_unknown(n);
                return Ok(());
            }
            fail!(self, Acces, "R{n} 32-bit pointer arithmetic prohibited\n");
        }
        if ty.may_be_null() {
            fail!(
                self,
                Acces,
                "R{n} pointer arithmetic on {ty} prohibited, null-check it first\n"
            );
        }
        if ty.base() == Base::Mem && ty.has(TypeFlags::PTR_UNTRUSTED) {
            return Ok(());
        }
        let allowed = match ty.base() {
            Base::Ctx
            | Base::MapValue
            | Base::MapKey
            | Base::Stack
            | Base::PacketMeta
            | Base::Packet
            | Base::TpBuffer
            | Base::BtfId
            | Base::Mem
            | Base::Buf
            | Base::Func
            | Base::ConstDynptr => true,
            Base::FlowKeys if known => true,
            Base::FlowKeys | Base::ConstMapPtr => known && smin == 0 && op == code::ADD,
            _ => false,
        };
        if !allowed {
            fail!(self, Acces, "R{n} pointer arithmetic on {ty} prohibited\n");
        }
        // From here on the destination is the pointer.
        let mut dst = *self.reg(n);
        dst.ty = ty;
        dst.id = ptr.id;
        *self.reg_mut(n) = dst;
        self.check_sane_offset(num, ty)?;
        self.check_sane_offset(ptr, ty)?;
        unbound32(&mut dst.range);
        let window = self.open_window(insn, ptr, num, swapped)?;
        let p = &ptr.range;
        match op {
            code::ADD | code::SUB => {
                if op == code::SUB && swapped {
                    fail!(self, Acces, "R{n} tried to subtract pointer from scalar\n");
                }
                if op == code::SUB && ty == RegType::STACK {
                    fail!(
                        self,
                        Acces,
                        "R{n} subtraction from stack pointer prohibited\n"
                    );
                }
                let fixed = if op == code::ADD {
                    (ptr.off as i64).wrapping_add(smin)
                } else {
                    (ptr.off as i64).wrapping_sub(smin)
                };
                if known && fixed == fixed as i32 as i64 {
                    (dst.range.smin, dst.range.smax) = (p.smin, p.smax);
                    (dst.range.umin, dst.range.umax) = (p.umin, p.umax);
                    dst.range.bits = p.bits;
                    dst.off = fixed as i32;
                    dst.set_extra(ptr.extra());
                } else {
                    self.vary_offset(op, ptr, num, &mut dst);
                }
            }
            code::AND | code::OR | code::XOR => {
                let name = NAMES[op as usize >> 4];
                fail!(
                    self,
                    Acces,
                    "R{n} bitwise operator {name} on pointer prohibited\n"
                );
            }
            _ => {
                let name = NAMES[op as usize >> 4];
                fail!(
                    self,
                    Acces,
                    "R{n} pointer arithmetic with {name} operator prohibited\n"
                );
            }
        }
        dst.frameno = ptr.frameno;
        dst.ref_obj_id = if swapped {
            dst.ref_obj_id
        } else {
            ptr.ref_obj_id
        };
        let result = self.check_sane_offset(&dst, ty);
        *self.reg_mut(n) = dst;
        result?;
        self.reg_mut(n).range.sync();
        self.check_moved(n)?;
        match window {
            Some(window) => self.close_window(insn, window, swapped),
            None => Ok(()),
        }
    }

    /// A number that is not known, or too large, goes into the variable offset.
    fn vary_offset(&mut self, op: u8, ptr: &Reg, num: &Reg, dst: &mut Reg) {
        let (p, v) = (&ptr.range, &num.range);
        let (smin, smax, umin, umax);
        if op == code::ADD {
            (smin, smax) = match (p.smin.checked_add(v.smin), p.smax.checked_add(v.smax)) {
                (Some(min), Some(max)) => (min, max),
                _ => (i64::MIN, i64::MAX),
            };
            (umin, umax) = match (p.umin.checked_add(v.umin), p.umax.checked_add(v.umax)) {
                (Some(min), Some(max)) => (min, max),
                _ => (0, u64::MAX),
            };
            dst.range.bits = p.bits.plus(v.bits);
        } else {
            (smin, smax) = match (p.smin.checked_sub(v.smax), p.smax.checked_sub(v.smin)) {
                (Some(min), Some(max)) => (min, max),
                _ => (i64::MIN, i64::MAX),
            };
            (umin, umax) = if p.umin < v.umax {
                (0, u64::MAX)
            } else {
                (p.umin - v.umax, p.umax.wrapping_sub(v.umin))
            };
            dst.range.bits = p.bits.minus(v.bits);
        }
        (dst.range.smin, dst.range.smax) = (smin, smax);
        (dst.range.umin, dst.range.umax) = (umin, umax);
        dst.off = ptr.off;
        dst.set_extra(ptr.extra());
        if ptr.ty.is_packet() && ptr.ty.flags().is_empty() {
            dst.id = self.new_id();
            if op == code::ADD || v.smin < 0 {
                dst.set_extra([0; 3]);
            }
        }
    }
}

/// Nothing is known of the lower half.
fn unbound32(range: &mut Range) {
    (range.umin32, range.umax32) = (0, u32::MAX);
    (range.smin32, range.smax32) = (i32::MIN, i32::MAX);
}

/// Makes a register of a state's innermost frame a known number.
pub(crate) fn set_number(state: &mut State, reg: usize, value: u64) {
    debug_assert!(reg < FP);
    let reg = &mut state.top_mut().regs[reg];
    reg.set_known(value);
}
