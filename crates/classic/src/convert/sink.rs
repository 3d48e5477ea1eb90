//! The two passes: the same instructions are counted, then written.

use bpfkit_isa as isa;
use isa::{Insn, Reg, Width};

/// Where a jump goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Label {
    /// A classic instruction.
    Classic(usize),
    /// The end that returns 0.
    Fail,
    /// So many slots past the jump; near, whatever the program's length.
    Skip(i16),
}

/// Takes the extended instructions. Every operation is one slot.
pub(super) trait Sink {
    /// An instruction that does not jump.
    fn op(&mut self, op: isa::Op);
    /// A jump.
    fn jump(&mut self, to: Label);
    /// A conditional jump; to a `Skip` it is always one slot.
    fn jump_if(&mut self, cond: isa::Cond, width: Width, dst: Reg, src: isa::Operand, to: Label);
    /// Something leads to the end that returns 0 without a jump.
    fn falls_to_fail(&mut self);
    /// Whether anything leads there.
    fn fails(&self) -> bool;
    /// Slots so far.
    fn slots(&self) -> usize;
}

/// First pass: counts.
pub(super) struct Count {
    far: bool,
    fails: bool,
    pub slots: usize,
}

impl Count {
    pub(super) fn new(far: bool) -> Count {
        Count {
            far,
            fails: false,
            slots: 0,
        }
    }
}

impl Sink for Count {
    fn op(&mut self, _: isa::Op) {
        self.slots += 1;
    }

    fn jump(&mut self, to: Label) {
        self.fails |= to == Label::Fail;
        self.slots += 1;
    }

    fn jump_if(&mut self, _: isa::Cond, _: Width, _: Reg, _: isa::Operand, to: Label) {
        self.fails |= to == Label::Fail;
        let near = !self.far || matches!(to, Label::Skip(_));
        self.slots += if near { 1 } else { 3 };
    }

    fn falls_to_fail(&mut self) {
        self.fails = true;
    }

    fn fails(&self) -> bool {
        self.fails
    }

    fn slots(&self) -> usize {
        self.slots
    }
}

/// Slot at which each classic instruction begins, and the end that returns 0.
pub(super) struct Starts {
    pub classic: Vec<usize>,
    pub fail: usize,
}

/// Second pass: writes.
pub(super) struct Write {
    far: bool,
    fails: bool,
    insns: Vec<Insn>,
    starts: Starts,
}

impl Write {
    pub(super) fn new(far: bool, slots: usize, starts: Starts) -> Write {
        Write {
            far,
            fails: false,
            insns: Vec::with_capacity(slots),
            starts,
        }
    }

    pub(super) fn finish(self) -> Vec<Insn> {
        self.insns
    }

    /// Slots from the next instruction to `to`.
    fn distance(&self, to: Label) -> i32 {
        let target = match to {
            Label::Skip(slots) => return slots.into(),
            Label::Fail => self.starts.fail,
            Label::Classic(at) => self
                .starts
                .classic
                .get(at)
                .copied()
                .unwrap_or(self.starts.fail),
        };
        // A filter has 4,096 instructions at most, so this is far from overflowing.
        target as i32 - self.insns.len() as i32 - 1
    }
}

impl Sink for Write {
    fn op(&mut self, op: isa::Op) {
        self.insns.push(op.encode().0);
    }

    fn jump(&mut self, to: Label) {
        self.fails |= to == Label::Fail;
        let wide = self.far && !matches!(to, Label::Skip(_));
        self.op(isa::Op::Jump {
            off: self.distance(to),
            wide,
        });
    }

    fn jump_if(&mut self, cond: isa::Cond, width: Width, dst: Reg, src: isa::Operand, to: Label) {
        self.fails |= to == Label::Fail;
        if self.far && !matches!(to, Label::Skip(_)) {
            self.op(isa::Op::JumpIf {
                cond,
                width,
                dst,
                src,
                off: 1,
            });
            self.jump(Label::Skip(1));
            self.jump(to);
        } else {
            let off = self.distance(to) as i16;
            self.op(isa::Op::JumpIf {
                cond,
                width,
                dst,
                src,
                off,
            });
        }
    }

    fn falls_to_fail(&mut self) {
        self.fails = true;
    }

    fn fails(&self) -> bool {
        self.fails
    }

    fn slots(&self) -> usize {
        self.insns.len()
    }
}
