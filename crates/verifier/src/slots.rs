//! Objects that live in stack slots: dynptrs, iterators and saved interrupt flags.

use bpfkit_spec::TypeFlags;

use crate::checker::Checker;
use crate::fail::{Errno, Res, fail};
use crate::reg::{BtfOf, DynptrKind, IterState, Reg, RegType};
use crate::state::{Byte, LockHome, Ref, RefKind, SLOT, Slot, slot_of};

/// Slots of a dynptr.
pub(crate) const DYNPTR_SLOTS: usize = 2;

/// Why a stack pointer does not name an object.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoObject {
    /// Not a place for one.
    Bad,
    /// Beyond the stack reached so far.
    Unreached,
}

impl Checker<'_> {
    /// First slot of the object of `slots` slots that a stack pointer points to.
    pub fn object_slot(&mut self, reg: &Reg, kind: &str, slots: usize) -> Result<usize, NoObject> {
        if !reg.range.bits.is_const() {
            self.log
                .write(format_args!("{kind} has to be at a constant offset\n"));
            return Err(NoObject::Bad);
        }
        let off = reg.const_off() as i32;
        if off % SLOT != 0 || off >= 0 || slot_of(off) + 1 < slots {
            self.log
                .write(format_args!("cannot pass in {kind} at an offset={off}\n"));
            return Err(NoObject::Bad);
        }
        let slot = slot_of(off);
        if slot >= self.cur.frame(reg.frameno as usize).stack.len() {
            return Err(NoObject::Unreached);
        }
        Ok(slot)
    }

    /// The same, where being out of reach is an error too.
    pub fn existing_slot(&mut self, reg: &Reg, kind: &str, slots: usize) -> Res<usize> {
        self.object_slot(reg, kind, slots).map_err(|e| match e {
            NoObject::Bad => Errno::Inval,
            NoObject::Unreached => Errno::Range,
        })
    }

    /// Takes a reference; its name.
    pub fn acquire(&mut self) -> u32 {
        let id = self.new_id();
        let insn = self.insn;
        self.cur.refs.push(Ref {
            kind: RefKind::Ptr,
            id,
            insn,
            home: LockHome::None,
        });
        id
    }

    /// Gives a reference back, and makes all that came with it unreadable.
    pub fn release(&mut self, id: u32) -> Res {
        if !self.cur.release_ptr(id) {
            return Err(Errno::Inval);
        }
        self.forget_where(|r| r.ref_obj_id == id);
        Ok(())
    }

    /// Makes registers and spilled values unusable: unreadable, or unknown numbers.
    pub fn forget_where(&mut self, matches: impl Fn(&Reg) -> bool) {
        let gone = self.gone();
        self.cur.change_where(matches, |r| *r = gone);
    }

    /// What an unusable register holds.
    pub fn gone(&self) -> Reg {
        if self.privileged() {
            Reg::UNKNOWN
        } else {
            Reg::NOT_INIT
        }
    }

    fn wipe(&mut self, frame: u8, slot: usize) {
        *self.slot_mut(frame, slot) = Slot::EMPTY;
        self.live.wrote(frame, 1 << slot);
        self.printer.touch_slot(frame, slot);
    }

    /// A write to a slot ends the dynptr in it.
    pub fn destroy_dynptr(&mut self, frame: u8, slot: usize) -> Res {
        let old = self.slot(frame, slot);
        if old.bytes[7] != Byte::Dynptr {
            return Ok(());
        }
        let first = if old.reg.dynptr_first() {
            slot
        } else {
            slot + 1
        };
        let dynptr = self.slot(frame, first).reg;
        if dynptr.dynptr_kind().refcounted() {
            fail!(self, Inval, "cannot overwrite referenced dynptr\n");
        }
        self.wipe(frame, first);
        self.wipe(frame, first - 1);
        let or_null = RegType::MEM.with(TypeFlags::PTR_MAYBE_NULL);
        self.forget_where(|r| {
            (r.ty == RegType::MEM || r.ty == or_null) && r.dynptr_id() == dynptr.id
        });
        Ok(())
    }

    /// Makes a dynptr in the two slots that a register points to. A clone shares the
    /// reference of the original.
    pub fn make_dynptr(&mut self, reg: &Reg, kind: DynptrKind, clone_of: u32) -> Res {
        let first = self.existing_slot(reg, "dynptr", DYNPTR_SLOTS)?;
        let frame = reg.frameno;
        self.destroy_dynptr(frame, first)?;
        self.destroy_dynptr(frame, first - 1)?;
        if kind == DynptrKind::Invalid {
            return Err(Errno::Inval);
        }
        let id = self.new_id();
        let reference = match (kind.refcounted(), clone_of) {
            (false, _) => 0,
            (true, 0) => self.acquire(),
            (true, id) => id,
        };
        for (slot, is_first) in [(first, true), (first - 1, false)] {
            let mut reg = Reg::NOT_INIT;
            reg.set_dynptr(kind, is_first, id);
            reg.ref_obj_id = reference;
            *self.slot_mut(frame, slot) = Slot {
                reg,
                bytes: [Byte::Dynptr; 8],
            };
            self.live.wrote(frame, 1 << slot);
            self.printer.touch_slot(frame, slot);
        }
        Ok(())
    }

    /// Ends the dynptr that a register points to, its slices and clones.
    pub fn end_dynptr(&mut self, reg: &Reg) -> Res {
        let first = self.existing_slot(reg, "dynptr", DYNPTR_SLOTS)?;
        let frame = reg.frameno;
        let dynptr = self.slot(frame, first).reg;
        if !dynptr.dynptr_kind().refcounted() {
            self.wipe(frame, first);
            self.wipe(frame, first - 1);
            return Ok(());
        }
        let id = dynptr.ref_obj_id;
        self.release(id)?;
        for slot in 0..self.cur.frame(frame as usize).stack.len() {
            let clone = self.slot(frame, slot);
            if clone.bytes[0] == Byte::Dynptr
                && clone.reg.ref_obj_id == id
                && clone.reg.dynptr_first()
            {
                self.wipe(frame, slot);
                self.wipe(frame, slot - 1);
            }
        }
        Ok(())
    }

    /// Whether a dynptr could be made where a register points to.
    pub fn dynptr_fits(&mut self, reg: &Reg) -> bool {
        reg.ty != RegType::CONST_DYNPTR
            && self.object_slot(reg, "dynptr", DYNPTR_SLOTS) != Err(NoObject::Bad)
    }

    /// The dynptr that a register points to or holds.
    pub fn dynptr_at(&mut self, reg: &Reg) -> Option<Reg> {
        if reg.ty == RegType::CONST_DYNPTR {
            return Some(*reg);
        }
        let first = self.object_slot(reg, "dynptr", DYNPTR_SLOTS).ok()?;
        let slots = [
            self.slot(reg.frameno, first),
            self.slot(reg.frameno, first - 1),
        ];
        let whole = slots
            .iter()
            .all(|s| s.bytes.iter().all(|b| *b == Byte::Dynptr));
        (whole && slots[0].reg.dynptr_first()).then_some(slots[0].reg)
    }

    /// Notes that the dynptr that a register points to is read.
    pub fn note_dynptr_read(&mut self, reg: &Reg) -> Res {
        if reg.ty == RegType::CONST_DYNPTR {
            return Ok(());
        }
        let first = self.existing_slot(reg, "dynptr", DYNPTR_SLOTS)?;
        self.note_object_read(reg.frameno, first, DYNPTR_SLOTS);
        Ok(())
    }

    pub fn note_object_read(&mut self, frame: u8, first: usize, slots: usize) {
        for slot in first + 1 - slots..=first {
            self.note_stack_read(frame, 1 << slot);
            self.printer.touch_slot(frame, slot);
        }
    }

    /// Makes an iterator where a register points to.
    pub fn make_iter(
        &mut self,
        reg: &Reg,
        rcu: Option<bool>,
        of: (BtfOf, u32),
        slots: usize,
    ) -> Res {
        let first = self.existing_slot(reg, "iter", slots)?;
        let id = self.acquire();
        let ty = match rcu {
            Some(true) => RegType::STACK.with(TypeFlags::MEM_RCU),
            Some(false) => RegType::STACK.with(TypeFlags::PTR_UNTRUSTED),
            None => RegType::STACK,
        };
        for slot in (first + 1 - slots..=first).rev() {
            let mut state = Reg::NOT_INIT;
            state.set_pointer(ty);
            state.ref_obj_id = if slot == first { id } else { 0 };
            state.set_btf(of.0, of.1);
            state.set_iter(IterState::Active, 0);
            *self.slot_mut(reg.frameno, slot) = Slot {
                reg: state,
                bytes: [Byte::Iter; 8],
            };
            self.live.wrote(reg.frameno, 1 << slot);
            self.printer.touch_slot(reg.frameno, slot);
        }
        Ok(())
    }

    /// Ends the iterator that a register points to.
    pub fn end_iter(&mut self, reg: &Reg, slots: usize) -> Res {
        let first = self.existing_slot(reg, "iter", slots)?;
        let id = self.slot(reg.frameno, first).reg.ref_obj_id;
        self.release(id)?;
        for slot in first + 1 - slots..=first {
            self.wipe(reg.frameno, slot);
        }
        Ok(())
    }

    /// Whether an iterator could be made where a register points to.
    pub fn iter_fits(&mut self, reg: &Reg, slots: usize) -> bool {
        match self.object_slot(reg, "iter", slots) {
            Err(NoObject::Unreached) => true,
            Err(NoObject::Bad) => false,
            Ok(first) => (first + 1 - slots..=first).all(|s| {
                self.slot(reg.frameno, s)
                    .bytes
                    .iter()
                    .all(|b| *b != Byte::Iter)
            }),
        }
    }

    /// Checks that a register points to an iterator of that type: `Inval` if not, `Proto` if
    /// it is one that may not be used outside of the RCU section it was made in.
    pub fn iter_at(&mut self, reg: &Reg, of: (BtfOf, u32), slots: usize) -> Res<usize> {
        let first = self
            .object_slot(reg, "iter", slots)
            .map_err(|_| Errno::Inval)?;
        for slot in (first + 1 - slots..=first).rev() {
            let state = self.slot(reg.frameno, slot);
            if state.reg.ty.has(TypeFlags::PTR_UNTRUSTED) {
                return Err(Errno::Proto);
            }
            let named = state.reg.ref_obj_id != 0;
            if named != (slot == first)
                || state.reg.btf() != of
                || state.bytes.iter().any(|b| *b != Byte::Iter)
            {
                return Err(Errno::Inval);
            }
        }
        Ok(first)
    }

    /// Saves interrupts in the slot that a register points to.
    pub fn make_irq_flag(&mut self, reg: &Reg, class: u32) -> Res {
        let slot = self.existing_slot(reg, "irq_flag", 1)?;
        let id = self.new_id();
        let insn = self.insn;
        self.cur.refs.push(Ref {
            kind: RefKind::Irq,
            id,
            insn,
            home: LockHome::None,
        });
        self.cur.active_irq = id;
        let mut state = Reg::NOT_INIT;
        state.set_pointer(RegType::STACK);
        state.ref_obj_id = id;
        state.set_irq_class(class);
        *self.slot_mut(reg.frameno, slot) = Slot {
            reg: state,
            bytes: [Byte::IrqFlag; 8],
        };
        self.live.wrote(reg.frameno, 1 << slot);
        self.printer.touch_slot(reg.frameno, slot);
        Ok(())
    }

    /// Restores interrupts from the slot that a register points to.
    pub fn end_irq_flag(&mut self, reg: &Reg, class: u32) -> Res {
        let slot = self.existing_slot(reg, "irq_flag", 1)?;
        let state = self.slot(reg.frameno, slot).reg;
        if state.irq_class() != class {
            let name = |class| if class == 0 { "native" } else { "lock" };
            let (flag, used) = (name(state.irq_class()), name(class));
            fail!(
                self,
                Inval,
                "irq flag acquired by {flag} kfuncs cannot be restored with {used} kfuncs\n"
            );
        }
        if !self.cur.release_irq(state.ref_obj_id) {
            let active = self.cur.active_irq;
            let at = self
                .cur
                .refs
                .iter()
                .find(|r| r.id == active)
                .map_or(0, |r| r.insn);
            fail!(
                self,
                Acces,
                "cannot restore irq state out of order, expected id={active} acquired at insn_idx={at}\n"
            );
        }
        self.wipe(reg.frameno, slot);
        Ok(())
    }

    /// Whether interrupts could be saved where a register points to.
    pub fn irq_flag_fits(&mut self, reg: &Reg) -> bool {
        match self.object_slot(reg, "irq_flag", 1) {
            Err(NoObject::Unreached) => true,
            Err(NoObject::Bad) => false,
            Ok(slot) => self
                .slot(reg.frameno, slot)
                .bytes
                .iter()
                .all(|b| *b != Byte::IrqFlag),
        }
    }

    /// Whether a register points to saved interrupts.
    pub fn irq_flag_at(&mut self, reg: &Reg) -> Option<usize> {
        let slot = self.object_slot(reg, "irq_flag", 1).ok()?;
        let state = self.slot(reg.frameno, slot);
        (state.reg.ref_obj_id != 0 && state.bytes.iter().all(|b| *b == Byte::IrqFlag))
            .then_some(slot)
    }
}
