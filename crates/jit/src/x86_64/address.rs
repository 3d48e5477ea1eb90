//! Results that are put off: copies, and sums that one address can express.
//!
//! A pending register's value is a [`Mem`] over what machine registers hold now. It becomes
//! part of an access, or of another pending value; it is computed when something else needs
//! it or a register in it is about to change, and never if its value is not used.
//!
//! A pending value names only registers that are not pending themselves, or that are pending
//! on nothing but their own content. So a chain is no longer than two, and nothing is
//! circular.

use bpfkit_isa::Reg;

use super::Compiler;
use super::emit::{Arith, Mem, Shift};
use super::regs::{Gpr, gpr};
use crate::lower::{Mask, Rule};

/// The pending value of each register.
#[derive(Default)]
pub(super) struct Pending {
    values: [Option<Mem>; 11],
    /// Which there are.
    set: Mask,
}

impl Pending {
    fn get(&self, reg: Reg) -> Option<Mem> {
        self.values[reg.index()]
    }

    fn take(&mut self, reg: Reg) -> Option<Mem> {
        self.set &= !(1 << reg.number());
        self.values[reg.index()].take()
    }

    fn put(&mut self, reg: Reg, mem: Mem) {
        self.set |= 1 << reg.number();
        self.values[reg.index()] = Some(mem);
    }

    fn iter(&self) -> impl Iterator<Item = Reg> + use<> {
        let set = self.set;
        (0..10)
            .filter(move |n| set & 1 << n != 0)
            .filter_map(Reg::new)
    }
}

fn plain(reg: Reg) -> Mem {
    Mem::at(gpr(reg), 0)
}

fn uses_only(mem: &Mem, reg: Gpr) -> bool {
    mem.base.is_none_or(|b| b == reg) && mem.index.is_none_or(|(i, _)| i == reg)
}

/// The sum of two addresses, if it is one.
fn sum(a: Mem, b: Mem) -> Option<Mem> {
    let disp = a.disp.checked_add(b.disp)?;
    let (base, index) = match (a.base, a.index, b.base, b.index) {
        (base, index, None, None) | (None, None, base, index) => (base, index),
        (Some(base), None, Some(index), None) => (Some(base), Some((index, 0))),
        (Some(base), None, None, index @ Some(_)) | (None, index @ Some(_), Some(base), None) => {
            (Some(base), index)
        }
        _ => return None,
    };
    Some(Mem { base, index, disp })
}

impl Compiler<'_> {
    /// The machine register that holds a register's value now.
    pub(super) fn value(&mut self, reg: Reg) -> Gpr {
        match self.pending.get(reg) {
            Some(Mem {
                base: Some(base),
                index: None,
                disp: 0,
            }) if self.is_settled(base) => base,
            Some(_) => self.settle(reg),
            None => gpr(reg),
        }
    }

    /// Whether no register with that home is pending.
    fn is_settled(&self, home: Gpr) -> bool {
        !self.pending.iter().any(|reg| gpr(reg) == home)
    }

    /// Whether a pending value needs what a machine register holds.
    pub(super) fn is_named(&self, home: Gpr) -> bool {
        let mut pending = self.pending.iter().filter_map(|reg| self.pending.get(reg));
        pending.any(|mem| mem.uses(home))
    }

    /// Whether settling those registers changes one that the value of `reg` is made of.
    pub(super) fn names_settled(&self, reg: Reg, settled: Mask) -> bool {
        let mem = self.pending.get(reg).unwrap_or(plain(reg));
        self.pending
            .iter()
            .any(|other| settled & 1 << other.number() != 0 && mem.uses(gpr(other)))
    }

    /// Computes a register's value into its home.
    pub(super) fn settle(&mut self, reg: Reg) -> Gpr {
        let home = gpr(reg);
        if let Some(mem) = self.pending.get(reg) {
            self.release(reg);
            self.pending.take(reg);
            self.valid.changed(home);
            self.compute(home, mem);
        }
        home
    }

    /// Before the home of a register changes: settles what depends on it.
    fn release(&mut self, reg: Reg) {
        if self.pending.set & !(1 << reg.number()) == 0 {
            return;
        }
        let home = gpr(reg);
        for other in self.pending.iter().filter(|&other| other != reg) {
            let Some(mem) = self.pending.get(other).filter(|mem| mem.uses(home)) else {
                continue;
            };
            // By the rule above, nothing depends on `other`.
            self.pending.take(other);
            if self.live & 1 << other.number() != 0 {
                self.valid.changed(gpr(other));
                self.compute(gpr(other), mem);
            }
        }
    }

    /// Before a register is overwritten: its home.
    pub(super) fn define(&mut self, reg: Reg) -> Gpr {
        self.release(reg);
        self.pending.take(reg);
        self.valid.changed(gpr(reg));
        gpr(reg)
    }

    /// Before a register is changed in place: its home, with its value.
    pub(super) fn change(&mut self, reg: Reg) -> Gpr {
        self.settle(reg);
        self.release(reg);
        self.valid.changed(gpr(reg));
        gpr(reg)
    }

    /// Settles those of the registers that are pending, and drops the others.
    pub(super) fn flush(&mut self, live: Mask) {
        self.live = live;
        for reg in self.pending.iter() {
            if live & 1 << reg.number() != 0 {
                self.settle(reg);
            }
        }
        for reg in self.pending.iter() {
            self.pending.take(reg);
        }
    }

    fn compute(&mut self, dst: Gpr, mem: Mem) {
        match mem {
            Mem {
                base: Some(base),
                index: None,
                disp: 0,
            } => {
                if base != dst {
                    self.asm.mov(true, dst, base);
                }
            }
            Mem {
                base: Some(base),
                index: None,
                disp,
            } if base == dst => match disp {
                128 => self.asm.arith_imm(Arith::Sub, true, dst, -128),
                _ => self.asm.arith_imm(Arith::Add, true, dst, disp),
            },
            Mem {
                base: Some(base),
                index: Some((index, 0)),
                disp: 0,
            } if base == dst => {
                self.asm.arith(Arith::Add, true, dst, index);
            }
            Mem {
                base: Some(base),
                index: Some((index, 0)),
                disp: 0,
            } if index == dst => {
                self.asm.arith(Arith::Add, true, dst, base);
            }
            Mem {
                base: None,
                index: Some((index, scale)),
                disp: 0,
            } => {
                if index != dst {
                    self.asm.mov(true, dst, index);
                }
                self.asm.shift_imm(Shift::Shl, true, dst, scale);
            }
            _ => self.asm.lea(dst, mem),
        }
    }

    /// A register's value as an address that others may be built on.
    fn stable(&mut self, reg: Reg) -> Mem {
        let Some(mem) = self.pending.get(reg) else {
            return plain(reg);
        };
        let home = gpr(reg);
        if mem.uses(home) && !uses_only(&mem, home) {
            self.settle(reg);
            return plain(reg);
        }
        mem
    }

    /// Puts the value of a register off.
    fn assign(&mut self, reg: Reg, mem: Mem) {
        if !uses_only(&mem, gpr(reg)) {
            self.release(reg);
        }
        self.pending.take(reg);
        if mem != plain(reg) {
            self.pending.put(reg, mem);
        }
    }

    pub(super) fn copy(&mut self, dst: Reg, src: Reg) {
        if dst == src {
            return;
        }
        if self.has(Rule::Address) {
            let mem = self.stable(src);
            self.assign(dst, mem);
        } else {
            let (src, dst) = (self.value(src), self.define(dst));
            self.asm.mov(true, dst, src);
        }
    }

    pub(super) fn add_imm(&mut self, dst: Reg, imm: i32) {
        let constant = Mem {
            base: None,
            index: None,
            disp: imm,
        };
        let mem = self.pending.get(dst).unwrap_or(plain(dst));
        let mem = sum(mem, constant).or_else(|| {
            self.settle(dst);
            sum(plain(dst), constant)
        });
        if let Some(mem) = mem {
            self.assign(dst, mem);
        }
        if !self.has(Rule::Address) {
            self.settle(dst);
        }
    }

    pub(super) fn add_reg(&mut self, dst: Reg, src: Reg) {
        if !self.has(Rule::Address) || dst == src {
            let src = self.value(src);
            let dst = self.change(dst);
            return self.asm.arith(Arith::Add, true, dst, src);
        }
        let (b, a) = (
            self.stable(src),
            self.pending.get(dst).unwrap_or(plain(dst)),
        );
        let mem = match sum(a, b) {
            Some(mem) => mem,
            None => {
                self.settle(dst);
                // What `src` was pending on may have been the old content.
                let b = self.stable(src);
                match sum(plain(dst), b) {
                    Some(mem) => mem,
                    None => {
                        let src = self.settle(src);
                        Mem {
                            index: Some((src, 0)),
                            ..plain(dst)
                        }
                    }
                }
            }
        };
        self.assign(dst, mem);
    }

    /// A shift to the left by 1 to 3.
    pub(super) fn scale(&mut self, dst: Reg, by: u8) -> bool {
        if !self.has(Rule::Address) {
            return false;
        }
        let mem = match self.pending.get(dst).unwrap_or(plain(dst)) {
            Mem {
                base: Some(base),
                index: None,
                disp: 0,
            } => Mem {
                base: None,
                index: Some((base, by)),
                disp: 0,
            },
            _ => {
                let dst = self.settle(dst);
                Mem {
                    base: None,
                    index: Some((dst, by)),
                    disp: 0,
                }
            }
        };
        self.assign(dst, mem);
        true
    }

    /// The place at a register plus an offset. Emits nothing that changes a register that
    /// [`value`](Self::value) has returned.
    pub(super) fn address(&mut self, base: Reg, off: i16) -> Mem {
        let constant = Mem {
            base: None,
            index: None,
            disp: off.into(),
        };
        let mem = self.pending.get(base).unwrap_or(plain(base));
        sum(mem, constant).unwrap_or_else(|| {
            let base = self.settle(base);
            Mem::at(base, off.into())
        })
    }

    /// The same for an access whose result goes to `dst`. Where the address is a sum of that
    /// register and the base's own content, the base is settled now: later, with `dst` about
    /// to be defined, it would change what the address is made of.
    pub(super) fn address_for(&mut self, dst: Reg, base: Reg, off: i16) -> Mem {
        let (to, home) = (gpr(dst), gpr(base));
        let both = |mem: Mem| mem.uses(to) && mem.uses(home);
        if base != dst && self.pending.get(base).is_some_and(both) {
            self.settle(base);
        }
        self.address(base, off)
    }
}
