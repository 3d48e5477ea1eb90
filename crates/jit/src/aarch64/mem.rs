//! Loads, stores, atomics, legacy packet loads.

use bpfkit_isa::{AtomicOp, Op, Operand, Reg, Size, Source};
use bpfkit_runtime::FRAME_BYTES;
use bpfkit_runtime::native::{SPANS, span_offset};

use super::call::{self, Stub};
use super::emit::{Alu, Cc, Lse};
use super::regs::{ADDRESS, DETAIL, FUEL, Gpr, RESULT, STATE, T0, T1, ZR, gpr};
use super::{Compiler, Slow};

/// Whether an access lies inside of the current frame.
fn in_frame(base: Reg, off: i16, bytes: u32) -> bool {
    let (start, bytes) = (i64::from(off), i64::from(bytes));
    base == Reg::R10 && start >= -(FRAME_BYTES as i64) && start + bytes <= 0
}

impl Compiler<'_> {
    /// Base and offset of an access: in checked code, a place that was found valid.
    fn place(&mut self, base: Reg, off: i16, size: Size, write: bool) -> (Gpr, i32) {
        if !self.plan.checked || in_frame(base, off, size.bytes()) {
            return (gpr(base), off.into());
        }
        let table = (size.bytes().trailing_zeros() * 2) as usize + usize::from(write);
        let index = self.sites[table] % SPANS;
        self.sites[table] += 1;
        let span = span_offset(size, write, index) as i32;
        self.asm
            .alu_imm(Alu::Add, true, ADDRESS, gpr(base), off.into());
        self.asm.load(8, false, T0, STATE, span);
        self.asm.load(8, false, T1, STATE, span + 8);
        self.asm.alu(Alu::Sub, true, T0, ADDRESS, T0);
        self.asm.alu(Alu::Subs, true, ZR, T0, T1);
        let (entry, back) = (self.asm.label(), self.asm.label());
        self.asm.b_if(Cc::Hi, entry);
        self.asm.bind(back);
        let detail = size.bytes().trailing_zeros() | u32::from(write) << 2 | index << 3;
        let packed = (self.slot as u32) << 8 | detail;
        self.slow.push(Slow {
            entry,
            back,
            packed,
            stub: Stub::Access,
        });
        (ADDRESS, 0)
    }

    /// The register that holds the address of an atomic, which must be aligned.
    fn aligned(&mut self, base: Reg, off: i16, size: Size, write: bool) -> Gpr {
        let (at, off) = self.place(base, off, size, write);
        if off != 0 || at != ADDRESS {
            self.asm.alu_imm(Alu::Add, true, ADDRESS, at, off);
        }
        // The processor traps misaligned ones, so trusted code looks too: the kernel's
        // verifier lets them pass.
        if size != Size::B {
            let mask = size.bytes() as i32 - 1;
            self.asm.alu_imm(Alu::Ands, true, ZR, ADDRESS, mask);
            let entry = self.asm.label();
            self.asm.b_if(Cc::Ne, entry);
            let detail = call::MISALIGNED + size.bytes().trailing_zeros();
            let packed = (self.slot as u32) << 8 | detail;
            self.slow.push(Slow {
                entry,
                back: entry,
                packed,
                stub: Stub::Stop,
            });
        }
        ADDRESS
    }

    pub(super) fn load(&mut self, size: Size, signed: bool, dst: Reg, base: Reg, off: i16) {
        let (at, off) = self.place(base, off, size, false);
        self.asm.load(size.bytes(), signed, gpr(dst), at, off);
    }

    pub(super) fn store(&mut self, size: Size, base: Reg, off: i16, src: Operand) {
        let (at, off) = self.place(base, off, size, true);
        let src = self.in_register(size == Size::DW, src);
        self.asm.store(size.bytes(), src, at, off);
    }

    /// A load or store of a stack slot that lives in a register.
    pub(super) fn spilled(&mut self, op: &Op, home: Gpr) {
        match *op {
            Op::Load { dst, .. } => self.asm.mov(true, gpr(dst), home),
            Op::Store {
                src: Operand::Reg(src),
                ..
            } => self.asm.mov(true, home, gpr(src)),
            Op::Store {
                src: Operand::Imm(imm),
                ..
            } => self.asm.mov_imm(home, i64::from(imm) as u64),
            _ => {}
        }
    }

    pub(super) fn load_acquire(&mut self, size: Size, dst: Reg, base: Reg, off: i16) {
        let at = self.aligned(base, off, size, false);
        self.asm.load_acquire(size.bytes(), gpr(dst), at);
    }

    pub(super) fn store_release(&mut self, size: Size, base: Reg, off: i16, src: Reg) {
        let at = self.aligned(base, off, size, true);
        self.asm.store_release(size.bytes(), gpr(src), at);
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
        let at = self.aligned(base, off, size, true);
        let (wide, s) = (size == Size::DW, gpr(src));
        let old = if fetch { s } else { ZR };
        let op = match op {
            AtomicOp::Add => Lse::Add,
            AtomicOp::Or => Lse::Set,
            AtomicOp::Xor => Lse::Xor,
            AtomicOp::Xchg => return self.asm.lse(Lse::Swap, wide, s, s, at),
            AtomicOp::And => {
                self.asm.mvn(wide, T0, s);
                return self.asm.lse(Lse::Clear, wide, T0, old, at);
            }
            AtomicOp::Cmpxchg => return self.asm.cas(wide, RESULT, s, at),
        };
        self.asm.lse(op, wide, s, old, at);
    }

    /// `LD_ABS` and `LD_IND`: outside of the packet, the function returns 0.
    pub(super) fn load_packet(&mut self, size: Size, source: Source, imm: i32) {
        match source {
            Source::Abs => self.asm.mov_imm(ADDRESS, u64::from(imm as u32)),
            Source::Ind(reg) => self.asm.alu_imm(Alu::Add, false, ADDRESS, gpr(reg), imm),
        }
        let packed = (self.slot as u32) << 8 | size.bytes().trailing_zeros();
        self.asm.mov_imm(DETAIL, packed.into());
        let stub = self.stubs.label(Stub::Packet, &mut self.asm);
        self.asm.bl(stub);
        self.asm.mov(false, RESULT, ADDRESS);
        self.leave_if(DETAIL);
    }

    /// Returns from the function where a register is not zero.
    pub(super) fn leave_if(&mut self, reg: Gpr) {
        self.exit_used = true;
        if !self.plan.checked {
            return self.asm.cb(true, true, reg, self.exit);
        }
        // The rest of the segment was counted and does not happen.
        let go_on = self.asm.label();
        self.asm.cb(true, false, reg, go_on);
        let rest = self.steps_after[self.slot] as i32;
        self.asm.alu_imm(Alu::Add, true, FUEL, FUEL, rest);
        self.asm.b(self.exit);
        self.asm.bind(go_on);
    }
}
