//! Reads and writes of the stack: spilled registers, plain bytes, and accesses whose offset
//! is not known.

use std::ops::Range;

use bpfkit_isa::code;

use crate::checker::{Checker, MAX_OFF};
use crate::fail::{Errno, Res, fail};
use crate::prune::offset_of;
use crate::reg::{Reg, RegType};
use crate::state::{Byte, Frame, MAX_STACK, SLOT, Slot, slot_of, stack_step};

/// Direction of an access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Access {
    Read,
    Write,
}

/// Memory that a helper is to fill: it need not be initialized before.
#[derive(Clone, Copy, Default)]
pub(crate) struct RawMode {
    /// The argument is such memory.
    pub on: bool,
    /// Register and size, once known.
    pub filled: Option<(u8, u32)>,
}

pub(crate) use crate::print::bits as show;

/// The slots that hold the bytes from `start` to before `end` below the frame pointer, from the
/// lowest address up, each with the indices of those bytes in it.
fn slots_within(start: i32, end: i32) -> impl Iterator<Item = (usize, Range<usize>)> {
    let mut next = start;
    std::iter::from_fn(move || {
        if next >= end.min(0) {
            return None;
        }
        let (at, first) = (slot_of(next), next);
        next = (offset_of(at) + SLOT).min(end);
        let index = |off: i32| ((-off - 1) % SLOT) as usize;
        Some((at, index(next - 1)..index(first) + 1))
    })
}

/// Bits that a number needs.
const fn width(reg: &Reg) -> u32 {
    64 - reg.range.umax.leading_zeros()
}

impl Checker<'_> {
    /// Copy of a slot of a frame; of one never reached, an empty one.
    pub fn slot(&self, frame: u8, slot: usize) -> Slot {
        self.cur
            .frame(frame as usize)
            .stack
            .get(slot)
            .copied()
            .unwrap_or(Slot::EMPTY)
    }

    pub fn slot_mut(&mut self, frame: u8, slot: usize) -> &mut Slot {
        self.cur.frame_mut(frame as usize).stack.reach(slot)
    }

    /// Byte `off` below a frame's pointer.
    fn byte(frame: &Frame, off: i32) -> Byte {
        let slot = frame.stack.get(slot_of(off));
        slot.map_or(Byte::Invalid, |s| s.bytes[((-off - 1) % SLOT) as usize])
    }

    /// Notes that slots of a frame are read here.
    pub fn note_stack_read(&mut self, frame: u8, mask: u64) {
        self.live
            .read(&self.flow, &self.cur, frame, self.insn, mask);
    }

    /// Checks that an access lies within the stack, and makes room.
    pub fn stack_bounds(&mut self, n: u8, off: i32, size: i32, access: Access) -> Res {
        let reg = *self.reg(n);
        let what = match access {
            Access::Read => " read from",
            Access::Write => " write to",
        };
        let (min, max);
        if reg.range.bits.is_const() {
            min = (reg.range.bits.value as i64).wrapping_add(off as i64);
            max = min.wrapping_add(size as i64);
        } else {
            if reg.range.smax >= MAX_OFF || reg.range.smin <= -MAX_OFF {
                fail!(
                    self,
                    Acces,
                    "invalid unbounded variable-offset{what} stack R{n}\n"
                );
            }
            min = reg.range.smin + off as i64;
            max = reg.range.smax + off as i64 + size as i64;
        }
        let frame = self.cur.frame(reg.frameno as usize);
        let lowest = if access == Access::Write || self.privileged() {
            -MAX_STACK
        } else {
            -frame.stack_bytes()
        };
        let errno = if min < lowest as i64 || min > -1 {
            Some(Errno::Acces)
        } else if max > 0 {
            Some(Errno::Inval)
        } else if size < 0 {
            Some(Errno::Fault)
        } else {
            None
        };
        if let Some(errno) = errno {
            if reg.range.bits.is_const() {
                crate::fail::say!(self, "invalid{what} stack R{n} off={off} size={size}\n");
            } else {
                let bits = show(reg.range.bits);
                crate::fail::say!(
                    self,
                    "invalid variable-offset{what} stack R{n} var_off={bits} off={off} size={size}\n"
                );
            }
            return Err(errno);
        }
        let needed = (-min as i32 + SLOT - 1) / SLOT;
        if frame.stack.len() < needed as usize {
            let frame = self.cur.frame_mut(reg.frameno as usize);
            frame.stack.grow(needed as usize);
            let sub = frame.subprog as usize;
            let depth = &mut self.subs[sub].stack_depth;
            *depth = (*depth).max(needed as u32 * SLOT as u32);
        }
        Ok(())
    }

    /// An access to slots that only spills around fast calls may touch: those must stay.
    fn fastcall_contract(&mut self, frame: u8, off: i32) {
        let sub = self.cur.frame(frame as usize).subprog as usize;
        if self.subs[sub].fastcall_stack_off as i32 <= off || self.aux[self.insn as usize].fastcall
        {
            return;
        }
        self.subs[sub].fastcall_stack_off = i16::MIN;
        let range = self.subs[sub].start as usize..self.sub_end(sub) as usize;
        for aux in &mut self.aux[range] {
            aux.fastcall = false;
            aux.fastcall_spills = 0;
        }
    }

    /// Writes the stack through register `n`.
    pub fn stack_write(&mut self, n: u8, off: i32, size: i32, value: Option<u8>) -> Res {
        let reg = *self.reg(n);
        if reg.range.bits.is_const() {
            let off = off.wrapping_add(reg.range.bits.value as i32);
            self.stack_write_at(reg.frameno, off, size, value)
        } else {
            self.stack_write_somewhere(&reg, off, size, value)
        }
    }

    fn is_store_imm(&self) -> bool {
        let insn = self.insn();
        insn.class() == code::ST && insn.code & 0xe0 == code::MEM
    }

    fn stack_write_at(&mut self, frame: u8, off: i32, size: i32, value: Option<u8>) -> Res {
        let at = slot_of(off);
        let old = self.slot(frame, at);
        if !self.privileged() && old.is_spill() && old.reg.ty != RegType::SCALAR && size != SLOT {
            fail!(self, Acces, "attempt to corrupt spilled pointer on stack\n");
        }
        self.destroy_dynptr(frame, at)?;
        let whole = off % SLOT == 0 && size == SLOT;
        if whole {
            self.live.wrote(frame, 1 << at);
        }
        self.fastcall_contract(frame, off);
        self.printer.touch_slot(frame, at);
        let reg = value.map(|v| *self.reg(v));
        let aligned = off % SLOT == 0;
        let imm = self.is_store_imm().then(|| self.insn().imm);
        match reg {
            Some(reg) if aligned && reg.ty == RegType::SCALAR && self.privileged() => {
                let fits = width(&reg) <= 8 * size as u32;
                if let (true, Some(v)) = (fits, value) {
                    self.name_scalar(v);
                }
                let mut reg = value.map_or(reg, |v| *self.reg(v));
                if !fits {
                    reg.unname();
                }
                self.save(frame, at, reg, size);
            }
            None if aligned && imm.is_some() && self.privileged() => {
                let reg = Reg::scalar(imm.unwrap_or(0) as i64 as u64);
                self.save(frame, at, reg, size);
            }
            Some(reg) if reg.ty.spillable() => {
                if size != SLOT {
                    self.print_line(self.insn, "; ");
                    fail!(self, Acces, "invalid size of register spill\n");
                }
                if frame as usize != self.cur.curframe() && reg.ty == RegType::STACK {
                    fail!(
                        self,
                        Inval,
                        "cannot spill pointers to stack into stack frame of the caller\n"
                    );
                }
                self.save(frame, at, reg, size);
            }
            _ => {
                let slot = self.slot_mut(frame, at);
                slot.reg.ty = RegType::NOT_INIT;
                if slot.is_special() {
                    slot.bytes.iter_mut().for_each(Byte::scrub);
                }
                let mut kind = Byte::Misc;
                if reg.is_some_and(|r| r.is_null()) || (reg.is_none() && imm == Some(0)) {
                    if let Some(v) = value {
                        self.mark_precise(v)?;
                    }
                    kind = Byte::Zero;
                }
                let first = -off - 1;
                let slot = self.slot_mut(frame, at);
                for i in 0..size {
                    slot.bytes[((first - i) % SLOT) as usize] = kind;
                }
                return Ok(());
            }
        }
        self.push_step(stack_step(frame, at), 0);
        Ok(())
    }

    /// Spills a register into the lower `size` bytes of a slot.
    fn save(&mut self, frame: u8, at: usize, reg: Reg, size: i32) {
        let privileged = self.privileged();
        let slot = self.slot_mut(frame, at);
        slot.reg = reg;
        for (i, byte) in slot.bytes.iter_mut().enumerate() {
            if i as i32 >= SLOT - size {
                *byte = Byte::Spill;
            } else if *byte != Byte::Zero && (*byte != Byte::Invalid || !privileged) {
                *byte = Byte::Misc;
            }
        }
    }

    fn stack_write_somewhere(&mut self, reg: &Reg, off: i32, size: i32, value: Option<u8>) -> Res {
        let frame = reg.frameno;
        let min = reg.range.smin as i32 + off;
        let max = reg.range.smax as i32 + off + size;
        let zero = match value {
            Some(v) => self.reg(v).is_null(),
            None => self.is_store_imm() && self.insn().imm == 0,
        };
        let mut zero_used = false;
        for i in min..max {
            self.destroy_dynptr(frame, slot_of(i))?;
        }
        self.fastcall_contract(frame, min);
        let insn = self.insn;
        let privileged = self.privileged();
        for i in min..max {
            let at = slot_of(i);
            self.printer.touch_slot(frame, at);
            let byte = ((-i - 1) % SLOT) as usize;
            let slot = self.slot_mut(frame, at);
            let kind = slot.bytes[byte];
            if !privileged && !matches!(kind, Byte::Misc | Byte::Zero) {
                fail!(
                    self,
                    Inval,
                    "spilled ptr in range of var-offset stack write; insn {insn}, ptr off: {i}"
                );
            }
            if zero
                && kind == Byte::Spill
                && slot.is_scalar_spill()
                && slot.reg.range.bits.equals(0)
            {
                zero_used = true;
                continue;
            }
            slot.reg.ty = RegType::NOT_INIT;
            let keeps_zero = zero && kind == Byte::Zero;
            zero_used |= keeps_zero;
            slot.bytes[byte] = if keeps_zero { Byte::Zero } else { Byte::Misc };
        }
        if let (true, Some(v)) = (zero_used, value) {
            self.mark_precise(v)?;
        }
        Ok(())
    }

    /// Reads the stack through register `n`.
    pub fn stack_read(&mut self, n: u8, off: i32, size: i32, dst: Option<u8>) -> Res {
        let reg = *self.reg(n);
        if reg.range.bits.is_const() {
            let off = off.wrapping_add(reg.range.bits.value as i32);
            return self.stack_read_at(reg.frameno, off, size, dst);
        }
        let Some(dst) = dst else {
            let bits = show(reg.range.bits);
            fail!(
                self,
                Acces,
                "variable offset stack pointer cannot be passed into helper function; var_off={bits} off={off} size={size}\n"
            );
        };
        self.stack_initialized(n, off, size, false, Access::Read, None)?;
        let min = reg.range.smin as i32 + off;
        let max = reg.range.smax as i32 + off;
        self.read_bytes(reg.frameno, min, max + size, dst);
        self.fastcall_contract(reg.frameno, min);
        Ok(())
    }

    /// A register read from bytes of stack: zero if all are.
    fn read_bytes(&mut self, frame: u8, min: i32, max: i32, dst: u8) {
        let mut zero = true;
        for i in min..max {
            self.printer.touch_slot(frame, slot_of(i));
            if Self::byte(self.cur.frame(frame as usize), i) != Byte::Zero {
                zero = false;
                break;
            }
        }
        if zero {
            self.set_zero(dst)
        } else {
            self.set_unknown(dst)
        }
    }

    /// The number 0, as read.
    pub fn set_zero(&mut self, n: u8) {
        let reg = self.reg_mut(n);
        reg.set_known(0);
        reg.ty = RegType::SCALAR;
    }

    fn stack_read_at(&mut self, frame: u8, off: i32, size: i32, dst: Option<u8>) -> Res {
        let at = slot_of(off);
        let first = -off - 1;
        self.printer.touch_slot(frame, at);
        self.fastcall_contract(self.cur.curframe() as u8, off);
        self.note_stack_read(frame, 1 << at);
        let slot = self.slot(frame, at);
        let step = stack_step(frame, at);
        if !slot.is_spill() {
            self.readable(&slot, off, size, |b| matches!(b, Byte::Misc | Byte::Zero))?;
            if let Some(dst) = dst {
                self.read_bytes(frame, off, off + size, dst);
            }
            return Ok(());
        }
        let spilled = slot
            .bytes
            .iter()
            .rev()
            .take_while(|b| **b == Byte::Spill)
            .count() as i32;
        if size == SLOT && spilled == SLOT {
            match dst {
                Some(dst) => *self.reg_mut(dst) = slot.reg,
                None if !self.privileged() && slot.reg.ty != RegType::SCALAR => {
                    fail!(self, Acces, "leaking pointer from stack off {off}\n");
                }
                None => {}
            }
            self.push_step(step, 0);
            return Ok(());
        }
        if slot.reg.ty != RegType::SCALAR {
            self.print_line(self.insn, "; ");
            fail!(self, Acces, "invalid size of register fill\n");
        }
        let Some(dst) = dst else { return Ok(()) };
        if size <= spilled && off % SLOT == 0 {
            let mut reg = slot.reg;
            if width(&reg) > 8 * size as u32 {
                reg.unname();
            }
            *self.reg_mut(dst) = reg;
            self.push_step(step, 0);
            return Ok(());
        }
        self.readable(&slot, off, size, |b| {
            matches!(b, Byte::Misc | Byte::Zero | Byte::Spill)
        })?;
        let count = |kind: Byte| {
            (0..size)
                .filter(|i| slot.bytes[((first - i) % SLOT) as usize] == kind)
                .count() as i32
        };
        if count(Byte::Spill) == size && slot.reg.range.bits.equals(0) {
            self.set_zero(dst);
            self.push_step(step, 0);
        } else if count(Byte::Zero) == size {
            self.set_zero(dst);
        } else {
            self.set_unknown(dst);
        }
        Ok(())
    }

    /// Checks that bytes of a slot may be read.
    fn readable(&mut self, slot: &Slot, off: i32, size: i32, fits: impl Fn(Byte) -> bool) -> Res {
        for i in 0..size {
            let byte = slot.bytes[((-off - 1 - i) % SLOT) as usize];
            if fits(byte) || (byte == Byte::Invalid && self.privileged()) {
                continue;
            }
            fail!(
                self,
                Acces,
                "invalid read from stack off {off}+{i} size {size}\n"
            );
        }
        Ok(())
    }

    /// Checks that a helper may read or write a range of the stack.
    pub fn stack_initialized(
        &mut self,
        n: u8,
        off: i32,
        size: i32,
        zero_allowed: bool,
        access: Access,
        raw: Option<&mut RawMode>,
    ) -> Res {
        if size == 0 && !zero_allowed {
            fail!(self, Acces, "invalid zero-sized read\n");
        }
        self.stack_bounds(n, off, size, access)?;
        let reg = *self.reg(n);
        let frame = reg.frameno;
        let fixed = reg.range.bits.is_const();
        let (min, max);
        let mut raw = raw.filter(|r| r.on);
        if fixed {
            min = (reg.range.bits.value as i32).wrapping_add(off);
            max = min;
        } else {
            if !self.privileged() {
                let bits = show(reg.range.bits);
                fail!(
                    self,
                    Acces,
                    "R{n} variable offset stack access prohibited for !root, var_off={bits}\n"
                );
            }
            raw = None;
            min = (reg.range.smin as i32).wrapping_add(off);
            max = (reg.range.smax as i32).wrapping_add(off);
        }
        if let Some(raw) = raw {
            for i in min..max + size {
                if Self::byte(self.cur.frame(frame as usize), i) == Byte::Dynptr {
                    fail!(
                        self,
                        Acces,
                        "potential write to dynptr at off={i} disallowed\n"
                    );
                }
            }
            raw.filled = Some((n, size as u32));
            return Ok(());
        }
        let clobber = access == Access::Write;
        let privileged = self.privileged();
        let mut read = 0;
        for (at, bytes) in slots_within(min, max + size) {
            let Some(slot) = self.cur.frame(frame as usize).stack.get(at) else {
                fail!(self, Fault, "allocated_stack too small\n");
            };
            read |= 1 << at;
            let data = |b: &Byte| match b {
                Byte::Misc | Byte::Zero => true,
                Byte::Invalid => privileged,
                _ => false,
            };
            let spill = slot.is_spill() && (slot.reg.ty == RegType::SCALAR || privileged);
            match slot.bytes[bytes.clone()].iter().rposition(|b| !data(b)) {
                None => {
                    if clobber && slot.bytes[bytes.clone()] != [Byte::Misc; 8][bytes.clone()] {
                        self.slot_mut(frame, at).bytes[bytes].fill(Byte::Misc);
                    }
                }
                Some(_) if spill => {
                    if clobber {
                        let slot = self.slot_mut(frame, at);
                        slot.reg = Reg::UNKNOWN;
                        slot.bytes.iter_mut().for_each(Byte::scrub);
                        slot.bytes[bytes].fill(Byte::Misc);
                    }
                }
                Some(bad) => {
                    let i = offset_of(at) + 7 - (bytes.start + bad) as i32;
                    let at = i - min;
                    if fixed {
                        fail!(
                            self,
                            Acces,
                            "invalid read from stack R{n} off {min}+{at} size {size}\n"
                        );
                    }
                    let bits = show(reg.range.bits);
                    fail!(
                        self,
                        Acces,
                        "invalid read from stack R{n} var_off {bits}+{at} size {size}\n"
                    );
                }
            }
        }
        self.note_stack_read(frame, read);
        Ok(())
    }

    /// A helper fills memory that need not have been initialized: `size` bytes on from where
    /// register `n` points to in the stack, checked by [`Checker::stack_initialized`].
    pub fn stack_fill(&mut self, n: u8, size: i32) -> Res {
        let reg = *self.reg(n);
        let (frame, start) = (reg.frameno, reg.const_off() as i32);
        self.fastcall_contract(frame, start);
        for (at, bytes) in slots_within(start, start.saturating_add(size)) {
            self.destroy_dynptr(frame, at)?;
            self.printer.touch_slot(frame, at);
            let slot = &self.cur.frame(frame as usize).stack[at];
            let filled = slot.bytes[bytes.clone()] == [Byte::Misc; 8][bytes.clone()];
            if filled && slot.reg.ty == RegType::NOT_INIT && !slot.is_special() {
                continue;
            }
            let slot = self.slot_mut(frame, at);
            slot.reg.ty = RegType::NOT_INIT;
            if slot.is_special() {
                slot.bytes.iter_mut().for_each(Byte::scrub);
            }
            slot.bytes[bytes].fill(Byte::Misc);
        }
        Ok(())
    }

    /// Gives a number without a name one, so that copies are known to be the same.
    pub fn name_scalar(&mut self, n: u8) {
        let reg = *self.reg(n);
        if reg.ty != RegType::SCALAR {
            return;
        }
        let linked = reg.id & crate::reg::ADD_CONST != 0;
        if !linked && (reg.id != 0 || reg.range.bits.is_const()) {
            return;
        }
        let id = if reg.range.bits.is_const() {
            0
        } else {
            self.new_id()
        };
        let reg = self.reg_mut(n);
        if linked {
            reg.off = 0;
        }
        reg.id = id;
    }
}
