//! Arithmetic on pointers by unprivileged processes. A processor that guesses a branch may
//! carry out such arithmetic with numbers that the checks before would have kept away, so the
//! kernel masks the number by what is left of the object. That works only where every path
//! to the instruction leaves as much, and in the same direction; all else is refused.
//!
//! Numbers known in advance need no mask; the result must lie inside of its object all the same.

use bpfkit_isa::{Insn, code};

use crate::checker::Checker;
use crate::fail::{Res, fail, say};
use crate::reg::{Base, Reg};
use crate::stack::show;

/// Bytes of a stack frame.
const STACK: i64 = 512;

/// How an instruction's number is masked: the direction, whether it is known, which operand
/// is the pointer. All paths must agree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Mask {
    kind: Kind,
    /// Bytes that the pointer may move.
    limit: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// No pointer is involved.
    Number,
    Pointer {
        negative: bool,
        known: bool,
        /// The destination is the pointer, not the number.
        first: bool,
    },
}

/// What the mask would be before the instruction, to be compared with that behind it.
pub(crate) struct Window {
    mask: Mask,
    to_left: bool,
}

/// Why a number cannot be masked.
enum Reason {
    Bounds,
    Type,
    Paths,
    Limit,
}

/// Operators that are masked.
const fn is_masked(op: u8) -> bool {
    matches!(op, code::ADD | code::SUB)
}

impl Checker<'_> {
    /// Whether an instruction needs no mask: the process may do anything, or the number is
    /// part of the instruction.
    fn unmasked(&self, insn: &Insn) -> bool {
        self.privileged() || insn.code & code::X == 0 || !is_masked(insn.code & 0xf0)
    }

    /// Arithmetic on numbers, at an instruction that on no other path works on a pointer.
    pub(crate) fn mask_number(&mut self, insn: &Insn) -> Res {
        if self.unmasked(insn) {
            return Ok(());
        }
        let mask = Mask {
            kind: Kind::Number,
            limit: 0,
        };
        match self.agree(mask) {
            Ok(()) => Ok(()),
            Err(reason) => self.refuse(insn, &reason, false),
        }
    }

    /// Before a pointer is moved; `swapped` if the destination is the number. `None` where no
    /// mask is needed.
    pub(crate) fn open_window(
        &mut self,
        insn: &Insn,
        ptr: &Reg,
        num: &Reg,
        swapped: bool,
    ) -> Res<Option<Window>> {
        if self.unmasked(insn) {
            return Ok(None);
        }
        let known = num.range.bits.is_const();
        let negative = num.range.smin < 0;
        if !known && negative != (num.range.smax < 0) {
            return self.refuse(insn, &Reason::Bounds, swapped).map(|()| None);
        }
        let to_left = (insn.code & 0xf0 == code::ADD) == negative;
        let limit = match self.limit(ptr, to_left) {
            Ok(limit) => limit,
            Err(reason) => return self.refuse(insn, &reason, swapped).map(|()| None),
        };
        self.masks_unknown |= !known;
        let kind = Kind::Pointer {
            negative,
            known,
            first: !swapped,
        };
        let mask = Mask { kind, limit };
        Ok(Some(Window { mask, to_left }))
    }

    /// After the pointer was moved: the mask is as wide as the move.
    pub(crate) fn close_window(&mut self, insn: &Insn, window: Window, swapped: bool) -> Res {
        let moved = *self.reg(insn.dst);
        let agreed = self.limit(&moved, window.to_left).and_then(|limit| {
            self.agree(Mask {
                limit: window.mask.limit.abs_diff(limit),
                ..window.mask
            })
        });
        match agreed {
            Ok(()) => Ok(()),
            Err(reason) => self.refuse(insn, &reason, swapped),
        }
    }

    /// A pointer that was moved must lie inside of its stack or map value.
    pub(crate) fn check_moved(&mut self, n: u8) -> Res {
        if self.privileged() {
            return Ok(());
        }
        let reg = *self.reg(n);
        match reg.ty.base() {
            Base::Stack => {
                let bits = reg.range.bits;
                let off = i64::from(reg.off).wrapping_add(bits.value as i64);
                if !bits.is_const() {
                    let bits = show(bits);
                    fail!(
                        self,
                        Acces,
                        "R{n} variable stack access prohibited for !root, var_off={bits} off={off}\n"
                    );
                }
                if !(-STACK..0).contains(&off) {
                    fail!(
                        self,
                        Acces,
                        "R{n} stack pointer arithmetic goes out of range, prohibited for !root; off={off}\n"
                    );
                }
            }
            Base::MapValue if self.check_map_value(n, reg.off, 1, false, false).is_err() => {
                fail!(
                    self,
                    Acces,
                    "R{n} pointer arithmetic of map value goes out of range, prohibited for !root\n"
                );
            }
            _ => {}
        }
        Ok(())
    }

    /// How far a pointer may move in a direction.
    fn limit(&self, ptr: &Reg, to_left: bool) -> Result<u32, Reason> {
        let (room, limit) = match ptr.ty.base() {
            Base::Stack => {
                let off = i64::from(ptr.off).wrapping_add(ptr.range.bits.value as i64);
                (STACK + i64::from(to_left), off.wrapping_neg())
            }
            Base::MapValue if !ptr.ty.may_be_null() => {
                let size = ptr.map().map_or(0, |map| self.maps[map].value_size);
                let moved = match to_left {
                    true => ptr.range.smin,
                    false => ptr.range.umax as i64,
                };
                (i64::from(size), moved.wrapping_add(ptr.off.into()))
            }
            _ => return Err(Reason::Type),
        };
        // The kernel compares 32 unsigned bits.
        let limit = limit as u32;
        match i64::from(limit) < room {
            true => Ok(limit),
            false => Err(Reason::Limit),
        }
    }

    /// Remembers the mask of the current instruction; another path may have left another.
    fn agree(&mut self, mask: Mask) -> Result<(), Reason> {
        let known = &mut self.aux[self.insn as usize].mask;
        match known {
            Some(other) if *other != mask => Err(Reason::Paths),
            _ => {
                *known = Some(mask);
                Ok(())
            }
        }
    }

    fn refuse(&mut self, insn: &Insn, reason: &Reason, swapped: bool) -> Res {
        let (dst, src) = (insn.dst, insn.src);
        let (number, pointer) = match swapped {
            true => (dst, src),
            false => (src, dst),
        };
        let verb = match insn.code & 0xf0 {
            code::ADD => "add",
            _ => "sub",
        };
        match reason {
            Reason::Bounds => say!(
                self,
                "R{number} has unknown scalar with mixed signed bounds, "
            ),
            Reason::Type => {
                say!(
                    self,
                    "R{pointer} has pointer with unsupported alu operation, "
                );
            }
            Reason::Paths => {
                say!(
                    self,
                    "R{dst} tried to {verb} from different maps, paths or scalars, "
                );
            }
            Reason::Limit => say!(self, "R{dst} tried to {verb} beyond pointer bounds, "),
        }
        fail!(
            self,
            Acces,
            "pointer arithmetic with it prohibited for !root\n"
        );
    }
}
