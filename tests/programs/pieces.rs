//! The pieces that accepted programs are put together of.

use bpfkit_isa::{AluOp, AtomicOp, Call, Cond, Op, Operand, Reg, Size, Swap, Width};

use super::super::random::{Choose, constant};
use super::{Build, CTX, DATA, FP, Imm, MAP_VALUE, Of, SLOTS, VALUE, W32, W64, ctx_load};

impl<R: Choose> Build<'_, R> {
    /// Some of them, `most` at most.
    pub(super) fn pieces(&mut self, most: usize) {
        for _ in 0..1 + self.random.below(most) {
            self.piece();
        }
    }

    fn piece(&mut self) {
        match self.random.below(24) {
            0..=3 => self.arithmetic(),
            4..=6 => self.chain(),
            7 => {
                let reg = self.number_reg();
                self.fresh(reg);
            }
            8 | 9 => self.spill(),
            10 | 11 => self.fill(),
            12 | 13 => self.fork(),
            14..=16 => self.gate(),
            17 => self.gate_packet(),
            18 => self.repeat(),
            19 => self.call(),
            20 => self.pointers(),
            21 => self.atomic(),
            22 => self.part(),
            _ => self.narrow(),
        }
    }

    fn arithmetic(&mut self) {
        use AluOp::*;
        let (dst, src, width) = (self.number_reg(), self.operand(), self.width());
        let ops = [
            Add, Add, Sub, Sub, Mul, Div, SDiv, Mod, SMod, Or, And, And, Xor, Lsh, Rsh, Arsh, Mov,
        ];
        match self.random.below(12) {
            0 => {
                let src = self.number_reg();
                self.extend(dst, src);
            }
            1 => self.swap(dst),
            2 => {
                self.push(Op::Neg { width, dst });
            }
            _ => {
                let op = self.random.of(&ops);
                let src = match (op, src) {
                    (Lsh | Rsh | Arsh, Imm(by)) => Imm(by & if width == W32 { 31 } else { 63 }),
                    (Div | SDiv | Mod | SMod, Imm(0)) => Imm(1),
                    (_, src) => src,
                };
                self.alu(op, width, dst, src);
            }
        }
    }

    /// Arithmetic on numbers of which something is known.
    fn chain(&mut self) {
        let (dst, src) = self.two();
        self.tame(dst);
        if self.random.below(2) == 0 {
            self.tame(src);
        }
        for _ in 0..1 + self.random.below(2) {
            use AluOp::*;
            let width = self.width();
            let op = self.random.of(&[
                Add, Sub, Mul, Mul, Div, Mod, SDiv, Or, And, Xor, Lsh, Lsh, Rsh, Rsh, Arsh, Arsh,
            ]);
            let bits = if width == W64 { 64 } else { 32 };
            let src = match (op, self.random.below(3)) {
                (Lsh | Rsh | Arsh, 0) => Imm(self.random.below(4) as i32),
                (Lsh | Rsh | Arsh, 1) => Imm(self.random.below(bits) as i32),
                (_, 0) => Imm(constant(self.random) | 1),
                _ => Of(src),
            };
            self.alu(op, width, dst, src);
        }
        match self.random.below(6) {
            0 => self.extend(dst, dst),
            1 => self.swap(dst),
            _ => {}
        }
    }

    fn extend(&mut self, dst: Reg, src: Reg) {
        let (width, bits) = self
            .random
            .of(&[(W64, 8), (W64, 16), (W64, 32), (W32, 8), (W32, 16)]);
        self.push(Op::MovSx {
            width,
            bits,
            dst,
            src,
        });
    }

    fn swap(&mut self, dst: Reg) {
        let kind = self.random.of(&[Swap::ToLe, Swap::ToBe, Swap::Always]);
        let bits = self.random.of(&[16, 32, 64]);
        self.push(Op::Swap { kind, bits, dst });
    }

    /// Bounds a register to numbers of any size and sign, on every way.
    fn tame(&mut self, reg: Reg) {
        use AluOp::*;
        let width = self.width();
        match self.random.below(7) {
            6 => {
                let value = constant(self.random);
                self.mov(reg, Imm(value));
            }
            // Some bits, from anywhere.
            0 => {
                let mask = self.random.next() as i32;
                self.alu(And, width, reg, Imm(mask));
            }
            // The upper bits, of either sign.
            1 => {
                let bits = if width == W64 { 64 } else { 32 };
                let by = 1 + self.random.below(bits - 1) as i32;
                let op = self.random.of(&[Rsh, Arsh]);
                self.alu(op, width, reg, Imm(by));
            }
            2 => self.extend(reg, reg),
            // A few numbers around any.
            kind => {
                let mask = self.random.of(&[1, 3, 7, 15, 0x70, 0xff]);
                self.alu(And, width, reg, Imm(mask));
                let by = match kind {
                    3 => 0,
                    4 => self.random.below(20) as i32 - 16,
                    _ => constant(self.random),
                };
                let op = self.random.of(&[Add, Sub, Xor]);
                self.alu(op, width, reg, Imm(by));
            }
        }
    }

    /// Bounds a register, by one instruction or by leaving the function.
    fn narrow(&mut self) {
        let reg = self.number_reg();
        self.bound(reg);
    }

    fn bound(&mut self, reg: Reg) {
        let width = self.width();
        match self.random.below(8) {
            0 | 1 => {
                let mask = self
                    .random
                    .of(&[1, 7, 15, 31, 48, 0x7f, 0xff, -2, i32::MAX]);
                self.alu(AluOp::And, width, reg, Imm(mask));
            }
            2 => {
                let by = self.random.of(&[27, 28, 30]) + if width == W64 { 32 } else { 0 };
                let op = self.random.of(&[AluOp::Rsh, AluOp::Rsh, AluOp::Arsh]);
                self.alu(op, width, reg, Imm(by));
            }
            3 => {
                let by = 1 + self.random.below(70) as i32;
                self.alu(AluOp::Mod, width, reg, Imm(by));
            }
            4 => {
                // Both ends, signed.
                let low = self.random.below(80) as i32 - 40;
                let high = low + self.random.below(60) as i32;
                self.out_if(Cond::Slt, width, reg, Imm(low));
                self.out_if(Cond::Sgt, width, reg, Imm(high));
            }
            5 => {
                let mask = self.random.of(&[!7, !15, !31, 1, 8, i32::MIN]);
                self.out_if(Cond::Set, width, reg, Imm(mask));
            }
            6 => {
                let other = self.number_reg();
                let cond = self.random.of(&[Cond::Gt, Cond::Ge, Cond::Sgt, Cond::Ne]);
                self.out_if(cond, width, reg, Of(other));
            }
            _ => {
                let cond = self.random.of(&[Cond::Gt, Cond::Ge, Cond::Lt, Cond::Eq]);
                let by = self.random.below(70) as i32;
                self.out_if(cond, width, reg, Imm(by));
            }
        }
    }

    /// A place in the slots of numbers, aligned to its size or not.
    fn slot(&mut self, size: Size) -> i16 {
        let bytes = size.bytes() as i16;
        let slot = -8 * (1 + self.random.below(SLOTS as usize) as i16);
        match self.random.below(3) {
            0 => slot + bytes * self.random.below(8 / bytes as usize) as i16,
            _ => slot,
        }
    }

    fn spill(&mut self) {
        let (size, src) = (self.size(), self.operand());
        let src = match self.random.below(6) {
            0 => Imm(0),
            _ => src,
        };
        let off = self.slot(size);
        self.store(size, FP, off, src);
    }

    fn fill(&mut self) {
        let (size, dst) = (self.size(), self.number_reg());
        let off = self.slot(size);
        self.load(size, dst, FP, off);
    }

    /// A slot that is zero in part and spilled in part, of which some bytes are read.
    fn part(&mut self) {
        let slot = self.slot(Size::DW);
        let (first, second) = self.two();
        for at in [2, 4, 6] {
            self.store(Size::H, FP, slot + at, Imm(0));
        }
        match self.random.below(2) {
            0 => {
                let size = self.random.of(&[Size::B, Size::H]);
                self.store(size, FP, slot, Of(first));
            }
            _ => {
                // Somewhere in the slot.
                let mask = self.random.of(&[3, 7]);
                self.alu(AluOp::And, W64, first, Imm(mask));
                self.alu(AluOp::Add, W64, first, Of(FP));
                self.store(Size::B, first, slot, Of(second));
                self.mov(first, Imm(mask));
            }
        }
        let size = self.size();
        let at = self.random.below((9 - size.bytes()) as usize) as i16;
        self.load(size, second, FP, slot + at);
    }

    /// Two ways that meet again.
    fn fork(&mut self) {
        if self.forks < self.times {
            return self.arithmetic();
        }
        self.forks -= self.times;
        let (dst, other) = self.two();
        if self.random.below(2) == 0 {
            self.tame(dst);
        }
        let (cond, width, src) = self.comparison(other);
        let jump = self.jump_if(cond, width, dst, src);
        self.some();
        if self.random.below(2) == 0 {
            let over = self.jump();
            self.land(jump);
            self.some();
            self.land(over);
        } else {
            self.land(jump);
        }
    }

    /// A few instructions of one way.
    fn some(&mut self) {
        for _ in 0..1 + self.random.below(3) {
            match self.random.below(5) {
                0 => self.spill(),
                1 => self.gate(),
                2 => self.chain(),
                _ => self.arithmetic(),
            }
        }
    }

    /// One register becomes what another holds, or what its lower part does.
    fn copy(&mut self, dst: Reg, src: Reg) {
        match self.random.below(5) {
            0 => self.alu(AluOp::Mov, W32, dst, Of(src)),
            1 => self.extend(dst, src),
            _ => self.mov(dst, Of(src)),
        }
    }

    /// A comparison with a small number, or any, or a register.
    fn comparison(&mut self, other: Reg) -> (Cond, Width, Operand) {
        use Cond::*;
        let conds = [Eq, Ne, Gt, Ge, Lt, Le, Set, Sgt, Sge, Slt, Sle];
        let src = match self.random.below(4) {
            0 => Of(other),
            1 => Imm(constant(self.random)),
            _ => Imm(self.random.below(36) as i32 - 16),
        };
        (self.random.of(&conds), self.width(), src)
    }

    /// Goes on only where comparisons of a register hold.
    fn check(&mut self, reg: Reg) {
        for _ in 0..1 + self.random.below(2) {
            let other = self.number_reg();
            let (cond, width, src) = self.comparison(other);
            self.out_if(cond, width, reg, src);
        }
    }

    /// A number decides which byte of the map value or of the stack is accessed.
    fn gate(&mut self) {
        let (index, other) = self.two();
        if self.random.below(2) == 0 {
            self.tame(other);
        }
        // A copy is bounded, or what it is a copy of, in a register or in the stack.
        match self.random.below(6) {
            0 => self.bound(index),
            1..=3 => {
                self.copy(index, other);
                if self.random.below(2) == 0 {
                    let by = self.random.of(&[8, -3, 1]);
                    let width = self.width();
                    self.alu(AluOp::Add, width, index, Imm(by));
                }
                let checked = self.random.of(&[index, other, other]);
                self.check(checked);
            }
            4 => {
                let slot = self.slot(Size::DW);
                let size = self.size();
                self.store(size, FP, slot, Of(other));
                self.check(other);
                self.load(size, index, FP, slot);
            }
            _ => {
                self.copy(index, other);
                self.bound(index);
            }
        }
        for _ in 0..self.random.below(3) {
            use AluOp::*;
            let op = self
                .random
                .of(&[Add, Sub, Mul, And, Or, Xor, Lsh, Rsh, Arsh, Mov]);
            let by = match op {
                Mul | Lsh | Rsh | Arsh => Imm(self.random.below(4) as i32),
                Mov => Of(index),
                _ if self.random.below(3) == 0 => Of(other),
                _ => Imm(self.random.below(40) as i32 - 8),
            };
            let width = self.width();
            self.alu(op, width, index, by);
        }
        let size = self.size();
        let on_stack = self.random.below(4) == 0;
        let room = if on_stack {
            8 * i32::from(SLOTS)
        } else {
            VALUE
        } - size.bytes() as i32;
        if self.random.below(4) != 0 {
            let width = self.random.of(&[W64, W64, W64, W32]);
            self.out_if(Cond::Gt, width, index, Imm(room));
        }
        let off = match self.random.below(6) {
            0 if on_stack => self.random.below(8) as i16,
            0 => self.random.below(16) as i16 - 8,
            _ => 0,
        };
        let (base, off) = if on_stack {
            (FP, off - 8 * SLOTS)
        } else {
            (MAP_VALUE, off)
        };
        let reversed = self.random.below(3) == 0;
        let at = if reversed {
            self.alu(AluOp::Add, W64, index, Of(base));
            index
        } else {
            self.mov(other, Of(base));
            self.alu(AluOp::Add, W64, other, Of(index));
            other
        };
        self.access(size, at, off);
    }

    /// Reads or writes, and makes a number of the pointer.
    fn access(&mut self, size: Size, at: Reg, off: i16) {
        match self.random.below(3) {
            0 => {
                let value = constant(self.random);
                self.store(size, at, off, Imm(value));
                self.mov(at, Imm(value));
            }
            _ => self.load(size, at, at, off),
        }
    }

    /// A number decides which byte of the packet is accessed.
    fn gate_packet(&mut self) {
        if !self.has_context {
            return self.gate();
        }
        let (index, at) = self.two();
        let Some(&end) = self.free.iter().find(|&&reg| reg != index && reg != at) else {
            return;
        };
        self.bound(index);
        if self.random.below(2) == 0 {
            self.out_if(Cond::Gt, W64, index, Imm(40));
        }
        self.mov(at, Of(DATA));
        self.alu(AluOp::Add, W64, at, Of(index));
        self.mov(index, Of(at));
        let size = self.size();
        self.alu(AluOp::Add, W64, at, Imm(size.bytes() as i32));
        self.push(ctx_load(end, 80));
        let fits = match self.random.below(2) {
            0 => self.jump_if(Cond::Le, W64, at, Of(end)),
            _ => self.jump_if(Cond::Ge, W64, end, Of(at)),
        };
        for reg in [index, at, end] {
            self.mov(reg, Imm(3));
        }
        let out = self.jump();
        self.outs.push(out);
        self.land(fits);
        self.mov(at, Imm(5));
        self.mov(end, Imm(6));
        self.access(size, index, 0);
    }

    /// A loop that counts, to a constant or to a small number.
    fn repeat(&mut self) {
        let most = 2 + self.random.below(4) as u32;
        if self.times > 1 || self.free.len() < 6 {
            return self.arithmetic();
        }
        let counter = self.number_reg();
        self.free.retain(|&reg| reg != counter);
        let limit = match self.random.below(2) {
            0 => Imm(most as i32),
            _ => {
                // A call would lose it.
                let reg = self.number_reg();
                self.fresh(reg);
                self.alu(AluOp::And, W64, reg, Imm(3));
                self.free.retain(|&other| other != reg);
                Of(reg)
            }
        };
        self.times = most;
        let first = constant(self.random) & 1;
        self.mov(counter, Imm(first));
        let start = self.insns.len();
        for _ in 0..1 + self.random.below(3) {
            match self.random.below(6) {
                0 => self.spill(),
                1 => self.fill(),
                2 => {
                    // Byte by byte.
                    let at = self.number_reg();
                    self.mov(at, Of(MAP_VALUE));
                    self.alu(AluOp::Add, W64, at, Of(counter));
                    self.access(Size::B, at, 0);
                }
                3 => self.fork(),
                4 => self.gate(),
                _ => self.arithmetic(),
            }
        }
        self.alu(AluOp::Add, W64, counter, Imm(1));
        let width = self.width();
        let again = self.jump_if(Cond::Lt, width, counter, limit);
        self.back(again, start);
        self.times = 1;
        self.free.push(counter);
        if let Of(reg) = limit {
            self.free.push(reg);
        }
        self.free.sort_by_key(|reg| reg.number());
    }

    /// A call of a helper or a subprogram, which takes R0 to R5.
    fn call(&mut self) {
        if self.times > 1 {
            return self.arithmetic();
        }
        match self.random.below(5) {
            0 if self.has_context && self.calls.len() < 3 => {
                let (slot, size) = (self.slot(Size::DW), 8);
                self.mov(Reg::R1, Of(MAP_VALUE));
                self.mov(Reg::R2, Of(FP));
                self.alu(AluOp::Add, W64, Reg::R2, Imm(i32::from(slot) / size * size));
                let call = self.push(Op::Call(Call::Local(0)));
                self.calls.push(call);
            }
            1 if self.has_context => {
                // bpf_skb_load_bytes
                let off = self.random.below(60) as i32;
                let slot = self.slot(Size::DW);
                self.mov(Reg::R1, Of(CTX));
                self.mov(Reg::R2, Imm(off));
                self.mov(Reg::R3, Of(FP));
                self.alu(AluOp::Add, W64, Reg::R3, Imm(slot.into()));
                let size = 1 + self.random.below(8) as i32;
                self.mov(Reg::R4, Imm(size));
                self.push(Op::Call(Call::Helper(26)));
            }
            2 => {
                // bpf_map_update_elem of the hash map
                self.map_argument(1);
                self.mov(Reg::R2, Of(FP));
                self.alu(AluOp::Add, W64, Reg::R2, Imm(-8));
                self.mov(Reg::R3, Of(FP));
                self.alu(AluOp::Add, W64, Reg::R3, Imm(-32));
                self.mov(Reg::R4, Imm(0));
                self.push(Op::Call(Call::Helper(2)));
            }
            // bpf_get_prandom_u32, bpf_get_smp_processor_id
            3 => {
                self.push(Op::Call(Call::Helper(7)));
            }
            _ => {
                self.push(Op::Call(Call::Helper(8)));
            }
        }
        for reg in [Reg::R1, Reg::R2, Reg::R3, Reg::R4, Reg::R5] {
            self.fresh(reg);
        }
    }

    /// A pointer is spilled, and used when it comes back.
    fn pointers(&mut self) {
        let slot = -8 * (SLOTS + 1 + self.random.below(3) as i16);
        let from = match self.has_context {
            true => self.random.of(&[CTX, MAP_VALUE, DATA, FP]),
            false => self.random.of(&[MAP_VALUE, FP]),
        };
        let (at, other) = self.two();
        self.mov(at, Of(from));
        let by = match from {
            CTX => 0,
            FP => -16,
            _ => self.random.below(9) as i32,
        };
        self.alu(AluOp::Add, W64, at, Imm(by));
        self.store(Size::DW, FP, slot, Of(at));
        self.fresh(at);
        for _ in 0..self.random.below(3) {
            self.arithmetic();
        }
        self.load(Size::DW, other, FP, slot);
        let size = if from == CTX { Size::W } else { self.size() };
        match from {
            CTX => {
                self.push(ctx_load(other, 0));
            }
            _ => self.access(size, other, 0),
        }
        if self.random.below(2) == 0 {
            self.store(Size::DW, FP, slot, Imm(0));
        }
    }

    fn atomic(&mut self) {
        use AtomicOp::*;
        let op = self.random.of(&[Add, Or, And, Xor, Xchg, Cmpxchg]);
        if op == Cmpxchg && !self.free.contains(&Reg::R0) {
            return self.arithmetic();
        }
        let fetch = matches!(op, Xchg | Cmpxchg) || self.random.below(2) == 0;
        let size = self.random.of(&[Size::W, Size::DW]);
        let bytes = size.bytes() as i16;
        let src = self.number_reg();
        let (base, off) = match self.random.below(2) {
            0 => (MAP_VALUE, bytes * self.random.below(8) as i16),
            _ => (FP, -bytes * (1 + self.random.below(8) as i16)),
        };
        self.push(Op::Atomic {
            op,
            size,
            fetch,
            base,
            off,
            src,
        });
    }
}
