//! Loads, stores, atomics, legacy packet loads.

use bpfkit_isa::{AtomicOp, Op, Operand, Reg, Size, Source};
use bpfkit_runtime::FRAME_BYTES;
use bpfkit_runtime::native::{SPANS, span_offset};

use super::call;
use super::emit::{Arith, Cc, Mem};
use super::regs::{FRAME, Gpr, R10, R11, RAX, RSP, STATE, gpr};
use super::shared::Stub;
use super::{Compiler, Slow};
use crate::lower::Rule;

/// Whether an access lies inside of the current frame.
fn in_frame(mem: &Mem, bytes: u32) -> bool {
    let (start, bytes) = (i64::from(mem.disp), i64::from(bytes));
    let inside = start >= -(FRAME_BYTES as i64) && start + bytes <= 0;
    inside && mem.base == Some(FRAME) && mem.index.is_none()
}

/// A place that an access of checked code was found to be valid at.
#[derive(Clone, Copy)]
struct Checked {
    mem: Mem,
    bytes: i32,
    write: bool,
}

/// Places found valid on every way here, the latest last.
#[derive(Default)]
pub(super) struct Valid(Vec<Checked>);

impl Valid {
    const MANY: usize = 8;

    pub(super) fn forget(&mut self) {
        self.0.clear();
    }

    /// A register's content changes.
    pub(super) fn changed(&mut self, reg: Gpr) {
        if !self.0.is_empty() {
            self.0.retain(|place| !place.mem.uses(reg));
        }
    }

    /// Whether the bytes lie inside of a place that was found valid.
    fn covers(&self, mem: &Mem, bytes: i32, write: bool) -> bool {
        self.0.iter().any(|place| {
            (place.mem.base, place.mem.index) == (mem.base, mem.index)
                && place.write >= write
                && i64::from(place.mem.disp) <= mem.disp.into()
                && i64::from(mem.disp) + i64::from(bytes)
                    <= i64::from(place.mem.disp) + i64::from(place.bytes)
        })
    }

    fn add(&mut self, mem: Mem, bytes: i32, write: bool) {
        if self.0.len() == Self::MANY {
            self.0.remove(0);
        }
        self.0.push(Checked { mem, bytes, write });
    }
}

impl Compiler<'_> {
    /// An access at a place: in checked code, a place that was found valid.
    pub(super) fn checked(&mut self, mem: Mem, size: Size, write: bool) -> Mem {
        if !self.plan.checked || in_frame(&mem, size.bytes()) {
            return mem;
        }
        // Where the host's address is the program's.
        let as_is = self.plan.arena == (0, 0) && self.has(Rule::DominatedCheck);
        if as_is && self.valid.covers(&mem, size.bytes() as i32, write) {
            return mem;
        }
        let table = (size.bytes().trailing_zeros() * 2) as usize + usize::from(write);
        let index = self.sites[table] % SPANS;
        self.sites[table] += 1;
        let span = Mem::at(STATE, span_offset(size, write, index) as i32);
        let slack = Mem {
            disp: span.disp + 8,
            ..span
        };
        if as_is {
            match mem {
                Mem {
                    base: Some(base),
                    index: None,
                    disp: 0,
                } => self.asm.mov(true, R10, base),
                _ => self.asm.lea(R10, mem),
            }
            self.valid.add(mem, size.bytes() as i32, write);
        } else {
            self.asm.lea(R11, mem);
            self.asm.mov(true, R10, R11);
        }
        self.asm.arith(Arith::Sub, true, R10, span);
        self.asm.arith(Arith::Cmp, true, R10, slack);
        let (entry, back) = (self.asm.label(), self.asm.label());
        self.asm.jcc(Cc::A, entry);
        self.asm.bind(back);
        let detail = size.bytes().trailing_zeros() | u32::from(write) << 2 | index << 3;
        self.slow.push(Slow {
            entry,
            back,
            packed: (self.slot as u32) << 8 | detail,
            stub: Stub::Access,
            address: as_is.then_some(mem),
        });
        if as_is { mem } else { Mem::at(R11, 0) }
    }

    /// The same for atomics, which must be aligned.
    fn checked_aligned(&mut self, mem: Mem, size: Size, write: bool) -> Mem {
        let mem = self.checked(mem, size, write);
        if !self.plan.checked || size == Size::B {
            return mem;
        }
        if mem.base != Some(R11) {
            self.asm.lea(R11, mem);
        }
        self.asm.test_imm(false, R11, size.bytes() as i32 - 1);
        let entry = self.asm.label();
        self.asm.jcc(Cc::Ne, entry);
        let detail = call::MISALIGNED + size.bytes().trailing_zeros();
        let packed = (self.slot as u32) << 8 | detail;
        self.slow.push(Slow {
            entry,
            back: entry,
            packed,
            stub: Stub::Stop,
            address: None,
        });
        mem
    }

    pub(super) fn load(&mut self, size: Size, signed: bool, dst: Reg, base: Reg, off: i16) {
        let mem = self.address_for(dst, base, off);
        let mem = self.checked(mem, size, false);
        let dst = self.define(dst);
        self.asm.load(size.bytes(), signed, dst, mem);
    }

    pub(super) fn store(&mut self, size: Size, base: Reg, off: i16, src: Operand) {
        match src {
            Operand::Reg(src) => {
                let src = self.value(src);
                let mem = self.address(base, off);
                let mem = self.checked(mem, size, true);
                self.asm.store(size.bytes(), mem, src);
            }
            Operand::Imm(imm) => {
                let mem = self.address(base, off);
                let mem = self.checked(mem, size, true);
                self.asm.store_imm(size.bytes(), mem, imm);
            }
        }
    }

    /// A load or store of a stack slot that lives in a register.
    pub(super) fn spilled(&mut self, op: &Op, home: Gpr) {
        match *op {
            Op::Load { dst, .. } if self.is_live_out(dst) => {
                let dst = self.define(dst);
                self.asm.mov(true, dst, home);
            }
            Op::Store {
                src: Operand::Reg(src),
                ..
            } => {
                let src = self.value(src);
                self.asm.mov(true, home, src);
            }
            Op::Store {
                src: Operand::Imm(imm),
                ..
            } => self.asm.mov_imm(home, i64::from(imm) as u64),
            _ => {}
        }
    }

    pub(super) fn load_acquire(&mut self, size: Size, dst: Reg, base: Reg, off: i16) {
        let mem = self.address_for(dst, base, off);
        let mem = self.checked_aligned(mem, size, false);
        let dst = self.define(dst);
        self.asm.load(size.bytes(), false, dst, mem);
    }

    pub(super) fn store_release(&mut self, size: Size, base: Reg, off: i16, src: Reg) {
        let src = self.value(src);
        let mem = self.address(base, off);
        let mem = self.checked_aligned(mem, size, true);
        self.asm.store(size.bytes(), mem, src);
    }

    pub(super) fn atomic(
        &mut self,
        op: AtomicOp,
        size: Size,
        fetch: bool,
        base: Reg,
        off: i16,
        src: Reg,
    ) {
        // What is changed in place is settled first.
        let result = match op {
            AtomicOp::Cmpxchg => Some(Reg::R0),
            _ => fetch.then_some(src),
        };
        self.settle(src);
        if let Some(result) = result {
            self.change(result);
        }
        let (wide, value) = (size == Size::DW, gpr(src));
        let mem = self.address(base, off);
        let mem = self.checked_aligned(mem, size, true);
        let plain = match op {
            AtomicOp::Add => Arith::Add,
            AtomicOp::Or => Arith::Or,
            AtomicOp::And => Arith::And,
            AtomicOp::Xor => Arith::Xor,
            AtomicOp::Xchg => return self.asm.xchg(wide, mem, value),
            AtomicOp::Cmpxchg => {
                self.asm.lock_cmpxchg(wide, mem, value);
                if !wide {
                    self.asm.mov(false, RAX, RAX);
                }
                return;
            }
        };
        match (fetch, plain) {
            (false, _) => self.asm.lock_arith(plain, wide, mem, value),
            (true, Arith::Add) => self.asm.lock_xadd(wide, mem, value),
            (true, _) => self.fetch_loop(plain, wide, mem, value),
        }
    }

    /// `src = fetch_op(mem, src)` by compare and exchange, which takes RAX.
    fn fetch_loop(&mut self, op: Arith, wide: bool, mem: Mem, src: Gpr) {
        let mem = if mem.uses(RAX) {
            self.asm.lea(R11, mem);
            Mem::at(R11, 0)
        } else {
            mem
        };
        self.asm.push(RAX);
        let again = self.asm.label();
        self.asm.bind(again);
        self.asm.load(if wide { 8 } else { 4 }, false, RAX, mem);
        self.asm.mov(wide, R10, RAX);
        if src == RAX {
            self.asm.arith(op, wide, R10, Mem::at(RSP, 0));
        } else {
            self.asm.arith(op, wide, R10, src);
        }
        self.asm.lock_cmpxchg(wide, mem, R10);
        self.asm.jcc(Cc::Ne, again);
        if src == RAX {
            self.asm.pop(R10);
        } else {
            self.asm.mov(wide, src, RAX);
            self.asm.pop(RAX);
        }
    }

    /// `LD_ABS` and `LD_IND`: outside of the packet, the function returns 0.
    pub(super) fn load_packet(&mut self, size: Size, source: Source, imm: i32) {
        // Leaving early drops what is pending; going on needs it.
        self.flush(self.live);
        match source {
            Source::Abs => self.asm.mov_imm(R11, u64::from(imm as u32)),
            Source::Ind(reg) => {
                let reg = self.value(reg);
                self.asm.mov(false, R11, reg);
                self.asm.arith_imm(Arith::Add, false, R11, imm);
            }
        }
        let packed = (self.slot as u32) << 8 | size.bytes().trailing_zeros();
        self.asm.mov_imm(R10, packed.into());
        self.call_stub(Stub::Packet);
        self.asm.mov(false, RAX, R11);
        self.asm.test(false, R10, R10);
        if self.plan.checked {
            // The rest of the segment was counted and does not happen.
            let go_on = self.asm.label();
            self.asm.jcc(Cc::E, go_on);
            let rest = self.steps_after[self.slot] as i32;
            self.asm
                .arith_imm(Arith::Add, true, super::regs::FUEL, rest);
            self.asm.jmp(self.exit);
            self.asm.bind(go_on);
        } else {
            self.asm.jcc(Cc::Ne, self.exit);
        }
        self.exit_used = true;
    }
}
