//! The extended instructions for each classic one.

use bpfkit_isa as isa;
use isa::{Reg, Width};

use super::ancillary;
use super::byte_order::ByteOrder;
use super::lengths::{self, constant_offset};
use super::liveness::{self, Live};
use super::sink::{Label, Sink, Starts};
use super::{ConvertError, Options, Target};
use crate::check::{Program, SECCOMP_DATA};
use crate::interp::Dialect;
use crate::op::{AluOp, Cond, Op, Operand, Size, jump_target};

/// Fields of `struct __sk_buff` and `struct xdp_md` (`linux/bpf.h`), by offset.
mod field {
    pub const SKB_LEN: i16 = 0;
    pub const XDP_DATA: i16 = 0;
    pub const XDP_DATA_END: i16 = 4;
}

/// Longest packet that a verified packet pointer reaches.
const MAX_PACKET: u32 = 0xffff;

/// Which extended registers hold what.
#[derive(Clone, Copy)]
pub(super) struct Registers {
    pub(super) x: Reg,
    /// Free between classic instructions.
    pub(super) tmp: Reg,
    /// The context; for `Memory` it holds the length on the wire.
    pub(super) ctx: Reg,
    pub(super) data: Reg,
    /// `data_end`, or for `Memory` the length.
    pub(super) end: Reg,
}

pub(super) const A: Reg = Reg::R0;

/// What a program over memory counts its jumps back in: from the packet's length to 0.
pub(super) const ROUNDS: Reg = Reg::R9;

/// Registers that nothing clobbers, where packet loads or helpers are called.
const SAVED: Registers = Registers {
    x: Reg::R7,
    tmp: Reg::R5,
    ctx: Reg::R6,
    data: Reg::R8,
    end: Reg::R9,
};

impl Registers {
    fn of(target: Target, calls: bool) -> Registers {
        match target {
            // The value of A that a load of X must keep lies in R8.
            Target::SkBuff => Registers {
                tmp: Reg::R8,
                ..SAVED
            },
            _ if calls => SAVED,
            Target::Xdp => Registers {
                x: Reg::R4,
                tmp: Reg::R5,
                ctx: Reg::R1,
                data: Reg::R2,
                end: Reg::R3,
            },
            Target::Memory => Registers {
                x: Reg::R4,
                tmp: Reg::R5,
                ctx: Reg::R3,
                data: Reg::R1,
                end: Reg::R2,
            },
            Target::SeccompData => Registers {
                x: Reg::R4,
                tmp: Reg::R5,
                ctx: Reg::R1,
                data: Reg::R2,
                end: Reg::R3,
            },
        }
    }
}

pub(super) fn imm(value: u32) -> isa::Operand {
    isa::Operand::Imm(value as i32)
}

pub(super) fn alu32(op: isa::AluOp, dst: Reg, src: isa::Operand) -> isa::Op {
    isa::Op::Alu {
        op,
        width: Width::W32,
        dst,
        src,
    }
}

pub(super) fn alu64(op: isa::AluOp, dst: Reg, src: isa::Operand) -> isa::Op {
    isa::Op::Alu {
        op,
        width: Width::W64,
        dst,
        src,
    }
}

pub(super) fn mov32(dst: Reg, src: Reg) -> isa::Op {
    alu32(isa::AluOp::Mov, dst, isa::Operand::Reg(src))
}

pub(super) fn mov64(dst: Reg, src: Reg) -> isa::Op {
    alu64(isa::AluOp::Mov, dst, isa::Operand::Reg(src))
}

fn size(size: Size) -> isa::Size {
    match size {
        Size::B => isa::Size::B,
        Size::H => isa::Size::H,
        Size::W => isa::Size::W,
    }
}

/// Stack offset of a scratch word.
fn scratch(k: u32) -> i16 {
    // The checker lets 0–15 through.
    -4 * (k as i16 + 1)
}

pub(super) struct Emitter<'a> {
    ops: &'a [Op],
    pub(super) options: &'a Options,
    pub(super) regs: Registers,
    order: ByteOrder,
    live: Vec<Live>,
    needed: Vec<u32>,
    /// For each instruction that a path reaches, the packet length that is certain there.
    known: Vec<Option<u32>>,
    /// For each instruction, the first one at or after it that is emitted.
    next: Vec<Option<usize>>,
}

impl<'a> Emitter<'a> {
    pub(super) fn new(
        program: &'a Program,
        options: &'a Options,
    ) -> Result<Emitter<'a>, ConvertError> {
        let ops = program.ops();
        for (at, op) in ops.iter().enumerate() {
            if let Op::LoadAncillary { size, what } = *op
                && !ancillary::supported(options, what, size)
            {
                return Err(ConvertError::Ancillary { at, what });
            }
        }
        let calls = ops.iter().any(|op| ancillary::calls(options.target, op));
        let by_pointer = matches!(options.target, Target::Xdp | Target::Memory);
        let mut emitter = Emitter {
            ops,
            options,
            regs: Registers::of(options.target, calls),
            order: match by_pointer {
                true => ByteOrder::of(ops),
                false => ByteOrder::network(),
            },
            live: liveness::before(ops),
            needed: lengths::needed(ops, options.dialect, options.network_offset),
            known: Vec::new(),
            next: Vec::new(),
        };
        emitter.known = emitter.certain_lengths();
        emitter.next = emitter.next_emitted();
        Ok(emitter)
    }

    /// Whether the packet is read through pointers.
    fn by_pointer(&self) -> bool {
        matches!(self.options.target, Target::Xdp | Target::Memory)
    }

    /// Whether nothing but 0 can come of a packet at this instruction.
    fn hopeless(&self, at: usize) -> bool {
        self.needed.get(at).is_none_or(|&n| n > self.longest())
    }

    /// Longest packet that the target has.
    fn longest(&self) -> u32 {
        match self.options.target {
            Target::Xdp => MAX_PACKET,
            _ => i32::MAX as u32,
        }
    }

    /// The length that the check at a load makes certain: all that is needed from there
    /// on if that is more than what is certain already.
    fn checked(&self, at: usize, certain: u32) -> u32 {
        certain.max(self.needed.get(at).copied().unwrap_or(0))
    }

    /// Walks the paths from the start, again as long as a jump back changes what it finds.
    fn certain_lengths(&self) -> Vec<Option<u32>> {
        let mut known: Vec<Option<u32>> = vec![None; self.ops.len()];
        if let Some(first) = known.first_mut() {
            *first = Some(0);
        }
        while self.walk(&mut known) {}
        known
    }

    /// Walks once; says whether a jump back has changed anything.
    fn walk(&self, known: &mut [Option<u32>]) -> bool {
        let mut again = false;
        for (at, op) in self.ops.iter().enumerate() {
            let Some(certain) = known[at] else { continue };
            if self.hopeless(at) {
                continue;
            }
            let mut flow = |to: usize, length: u32| {
                if let Some(slot) = known.get_mut(to)
                    && slot.is_none_or(|other| length < other)
                {
                    *slot = Some(length);
                    again |= to <= at;
                }
            };
            let next = at + 1;
            match *op {
                Op::LoadAbs { .. } | Op::LoadXMsh(_) => flow(next, self.checked(at, certain)),
                // What such a load says of the length is not said in terms that the
                // verifier follows, so only programs that it need not see use it.
                Op::LoadInd { size, k }
                    if self.options.dialect == Dialect::Libpcap
                        && self.options.target == Target::Memory =>
                {
                    flow(next, certain.max(k.saturating_add(size.bytes())));
                }
                Op::Jump(k) => flow(jump_target(at, k).unwrap_or(usize::MAX), certain),
                Op::JumpIf { jt, jf, .. } => {
                    flow(next + usize::from(jt), certain);
                    flow(next + usize::from(jf), certain);
                }
                Op::ReturnK(_) | Op::ReturnA => {}
                _ => flow(next, certain),
            }
        }
        again
    }

    fn next_emitted(&self) -> Vec<Option<usize>> {
        let mut next = vec![None; self.ops.len()];
        let mut found = None;
        for at in (0..self.ops.len()).rev() {
            if self.known[at].is_some() && !self.hopeless(at) {
                found = Some(at);
            }
            next[at] = found;
        }
        next
    }

    /// Emits the whole program.
    pub(super) fn run(&self, sink: &mut dyn Sink) -> Starts {
        let mut classic = Vec::with_capacity(self.ops.len());
        self.prologue(sink);
        for (at, op) in self.ops.iter().enumerate() {
            classic.push(sink.slots());
            if let Some(certain) = self.known.get(at).copied().flatten()
                && !self.hopeless(at)
            {
                self.instruction(sink, at, *op, certain);
            }
        }
        let fail = sink.slots();
        if sink.fails() {
            let unmatched = self.options.returns.map_or(0, |r| r.unmatched);
            sink.op(alu32(isa::AluOp::Mov, A, imm(unmatched as u32)));
            sink.op(isa::Op::Exit);
        }
        Starts { classic, fail }
    }

    fn label(&self, at: usize) -> Label {
        if self.hopeless(at) {
            Label::Fail
        } else {
            Label::Classic(at)
        }
    }

    fn prologue(&self, sink: &mut dyn Sink) {
        let Registers {
            x, ctx, data, end, ..
        } = self.regs;
        if self.label(0) == Label::Fail {
            return sink.falls_to_fail();
        }
        match self.options.target {
            Target::SkBuff => sink.op(mov64(ctx, Reg::R1)),
            Target::Xdp => {
                if ctx != Reg::R1 {
                    sink.op(mov64(ctx, Reg::R1));
                }
                let reads = self.ops.iter().any(|op| {
                    matches!(
                        op,
                        Op::LoadAbs { .. }
                            | Op::LoadInd { .. }
                            | Op::LoadXMsh(_)
                            | Op::LoadLen
                            | Op::LoadXLen
                    )
                });
                if reads {
                    sink.op(isa::Op::Load {
                        size: isa::Size::W,
                        signed: false,
                        dst: data,
                        base: ctx,
                        off: field::XDP_DATA,
                    });
                    sink.op(isa::Op::Load {
                        size: isa::Size::W,
                        signed: false,
                        dst: end,
                        base: ctx,
                        off: field::XDP_DATA_END,
                    });
                }
            }
            Target::Memory => {
                let target = self.options.target;
                if self.ops.iter().any(|op| ancillary::reads_word(target, op)) {
                    sink.op(mov64(ancillary::WORDS, Reg::R4));
                }
                if liveness::has_jump_back(self.ops) {
                    sink.op(mov64(ROUNDS, end));
                }
            }
            Target::SeccompData => {}
        }
        let live = self.live.first().copied().unwrap_or_default();
        if live.a {
            sink.op(alu32(isa::AluOp::Mov, A, imm(0)));
        }
        if live.x {
            sink.op(alu32(isa::AluOp::Mov, x, imm(0)));
        }
    }

    fn instruction(&self, sink: &mut dyn Sink, at: usize, op: Op, certain: u32) {
        let x = self.regs.x;
        let reg = |src| match src {
            Operand::K(k) => imm(k),
            Operand::X => isa::Operand::Reg(x),
        };
        match op {
            Op::LoadAbs { size, k } => self.load_abs(sink, at, size, k, certain),
            Op::LoadInd { size, k } => self.load_ind(sink, at, size, k),
            Op::LoadAncillary { what, .. } => self.ancillary(sink, what),
            Op::LoadLen => self.length(sink, A),
            Op::LoadXLen => self.length(sink, x),
            Op::LoadImm(k) => sink.op(alu32(isa::AluOp::Mov, A, imm(k))),
            Op::LoadXImm(k) => sink.op(alu32(isa::AluOp::Mov, x, imm(k))),
            Op::LoadMem(k) => sink.op(word(A, Reg::R10, scratch(k))),
            Op::LoadXMem(k) => sink.op(word(x, Reg::R10, scratch(k))),
            Op::LoadXMsh(k) => self.load_msh(sink, at, k, certain),
            Op::Store(k) => sink.op(store(A, scratch(k))),
            Op::StoreX(k) => sink.op(store(x, scratch(k))),
            Op::Alu { op, src } => self.alu(sink, op, reg(src)),
            Op::Neg => sink.op(isa::Op::Neg {
                width: Width::W32,
                dst: A,
            }),
            Op::Jump(k) => self.goto(sink, at, jump_target(at, k).unwrap_or(usize::MAX)),
            Op::JumpIf { cond, src, jt, jf } => {
                let src = match src {
                    Operand::K(k) => Operand::K(self.order.constant(at, cond, k)),
                    Operand::X => src,
                };
                self.branch(
                    sink,
                    at,
                    cond,
                    reg(src),
                    at + 1 + usize::from(jt),
                    at + 1 + usize::from(jf),
                );
            }
            Op::ReturnK(k) => {
                let value = self.options.returns.map_or(k, |r| r.matched as u32);
                sink.op(alu32(isa::AluOp::Mov, A, imm(value)));
                sink.op(isa::Op::Exit);
            }
            Op::ReturnA => {
                if let Some(returns) = self.options.returns {
                    sink.jump_if(isa::Cond::Eq, Width::W32, A, imm(0), Label::Fail);
                    sink.op(alu32(isa::AluOp::Mov, A, imm(returns.matched as u32)));
                }
                sink.op(isa::Op::Exit);
            }
            Op::Tax => sink.op(mov32(x, A)),
            Op::Txa => sink.op(mov32(A, x)),
        }
        // What follows in the text but is left out leads nowhere but to 0.
        let falls = !matches!(
            op,
            Op::Jump(_) | Op::JumpIf { .. } | Op::ReturnK(_) | Op::ReturnA
        );
        if falls && self.label(at + 1) == Label::Fail {
            self.goto(sink, at, at + 1);
        }
    }

    /// A jump that is left out where its target comes next.
    fn goto(&self, sink: &mut dyn Sink, at: usize, to: usize) {
        match (self.comes_next(at, to), self.label(to)) {
            (false, label) => {
                if to <= at && self.options.target == Target::Memory {
                    self.count_round(sink, Label::Fail);
                }
                sink.jump(label);
            }
            (true, Label::Fail) => sink.falls_to_fail(),
            (true, _) => {}
        }
    }

    /// Before a jump back: goes to `end` where the rounds are used up.
    pub(super) fn count_round(&self, sink: &mut dyn Sink, end: Label) {
        sink.jump_if(isa::Cond::Eq, Width::W64, ROUNDS, imm(0), end);
        sink.op(alu64(isa::AluOp::Sub, ROUNDS, imm(1)));
    }

    /// Whether the first instruction emitted after `at` is that of `to`.
    fn comes_next(&self, at: usize, to: usize) -> bool {
        let next = self.next.get(at + 1).copied().flatten();
        match self.label(to) {
            Label::Fail => next.is_none(),
            _ => next == Some(to),
        }
    }

    fn branch(
        &self,
        sink: &mut dyn Sink,
        at: usize,
        cond: Cond,
        src: isa::Operand,
        jt: usize,
        jf: usize,
    ) {
        let (direct, inverse) = match cond {
            Cond::Eq => (isa::Cond::Eq, Some(isa::Cond::Ne)),
            Cond::Gt => (isa::Cond::Gt, Some(isa::Cond::Le)),
            Cond::Ge => (isa::Cond::Ge, Some(isa::Cond::Lt)),
            Cond::Set => (isa::Cond::Set, None),
        };
        if self.label(jt) == self.label(jf) {
            return self.goto(sink, at, jt);
        }
        match inverse.filter(|_| self.comes_next(at, jt)) {
            Some(inverse) => {
                sink.jump_if(inverse, Width::W32, A, src, self.label(jf));
                self.goto(sink, at, jt);
            }
            None => {
                sink.jump_if(direct, Width::W32, A, src, self.label(jt));
                self.goto(sink, at, jf);
            }
        }
    }

    fn alu(&self, sink: &mut dyn Sink, op: AluOp, src: isa::Operand) {
        let by_register = matches!(src, isa::Operand::Reg(_));
        let (extended, shift) = match op {
            AluOp::Add => (isa::AluOp::Add, false),
            AluOp::Sub => (isa::AluOp::Sub, false),
            AluOp::Mul => (isa::AluOp::Mul, false),
            AluOp::Div => (isa::AluOp::Div, false),
            AluOp::Mod => (isa::AluOp::Mod, false),
            AluOp::Or => (isa::AluOp::Or, false),
            AluOp::And => (isa::AluOp::And, false),
            AluOp::Xor => (isa::AluOp::Xor, false),
            AluOp::Lsh => (isa::AluOp::Lsh, true),
            AluOp::Rsh => (isa::AluOp::Rsh, true),
        };
        if by_register && matches!(op, AluOp::Div | AluOp::Mod) {
            sink.jump_if(isa::Cond::Eq, Width::W32, self.regs.x, imm(0), Label::Fail);
        }
        if by_register && shift && self.options.dialect == Dialect::Libpcap {
            sink.jump_if(
                isa::Cond::Le,
                Width::W32,
                self.regs.x,
                imm(31),
                Label::Skip(1),
            );
            sink.op(alu32(isa::AluOp::Mov, A, imm(0)));
        }
        sink.op(alu32(extended, A, src));
    }

    fn length(&self, sink: &mut dyn Sink, dst: Reg) {
        let Registers { ctx, data, end, .. } = self.regs;
        match self.options.target {
            Target::SkBuff => sink.op(word(dst, ctx, field::SKB_LEN)),
            Target::Xdp => {
                sink.op(mov64(dst, end));
                sink.op(alu64(isa::AluOp::Sub, dst, isa::Operand::Reg(data)));
            }
            Target::Memory => sink.op(mov32(dst, ctx)),
            Target::SeccompData => sink.op(alu32(isa::AluOp::Mov, dst, imm(SECCOMP_DATA))),
        }
    }

    /// Makes sure that the packet has `length` bytes.
    fn check_length(&self, sink: &mut dyn Sink, length: u32) {
        let Registers { tmp, data, end, .. } = self.regs;
        if self.options.target == Target::Memory {
            sink.jump_if(isa::Cond::Lt, Width::W64, end, imm(length), Label::Fail);
        } else {
            sink.op(mov64(tmp, data));
            sink.op(alu64(isa::AluOp::Add, tmp, imm(length)));
            sink.jump_if(
                isa::Cond::Gt,
                Width::W64,
                tmp,
                isa::Operand::Reg(end),
                Label::Fail,
            );
        }
    }

    /// Loads through a pointer into A, for the classic instruction `at`.
    fn load_at(&self, sink: &mut dyn Sink, at: usize, bytes: Size, base: Reg, off: i16) {
        sink.op(isa::Op::Load {
            size: size(bytes),
            signed: false,
            dst: A,
            base,
            off,
        });
        if bytes != Size::B && self.order.swaps(at) {
            let bits = if bytes == Size::H { 16 } else { 32 };
            sink.op(isa::Op::Swap {
                kind: isa::Swap::ToBe,
                bits,
                dst: A,
            });
        }
    }

    /// Loads from a constant offset into A.
    fn load_abs(&self, sink: &mut dyn Sink, at: usize, bytes: Size, k: u32, certain: u32) {
        match self.options.target {
            Target::SeccompData => sink.op(word(A, self.regs.ctx, k as i16)),
            Target::SkBuff => {
                // Only the kernel's dialect gets here with offsets past 2³¹.
                let source = isa::Source::Abs;
                sink.op(isa::Op::LoadPacket {
                    size: size(bytes),
                    source,
                    imm: k as i32,
                });
            }
            Target::Xdp | Target::Memory => {
                let (base, off) = self.address(sink, at, k, certain);
                self.load_at(sink, at, bytes, base, off);
            }
        }
    }

    /// Makes sure that the packet is as long as the load at a constant offset needs, or as
    /// all that follow need; gives base and offset.
    fn address(&self, sink: &mut dyn Sink, at: usize, k: u32, certain: u32) -> (Reg, i16) {
        let checked = self.checked(at, certain);
        if checked > certain {
            self.check_length(sink, checked);
        }
        let offset =
            constant_offset(k, self.options.dialect, self.options.network_offset).unwrap_or(0);
        match i16::try_from(offset) {
            Ok(off) => (self.regs.data, off),
            Err(_) => {
                sink.op(mov64(self.regs.tmp, self.regs.data));
                sink.op(alu64(isa::AluOp::Add, self.regs.tmp, imm(offset)));
                (self.regs.tmp, 0)
            }
        }
    }

    fn load_msh(&self, sink: &mut dyn Sink, at: usize, k: u32, certain: u32) {
        let Registers { x, tmp, .. } = self.regs;
        if self.by_pointer() {
            let (base, off) = self.address(sink, at, k, certain);
            sink.op(isa::Op::Load {
                size: isa::Size::B,
                signed: false,
                dst: x,
                base,
                off,
            });
            sink.op(alu32(isa::AluOp::And, x, imm(15)));
            sink.op(alu32(isa::AluOp::Lsh, x, imm(2)));
            return;
        }
        // Legacy loads have one destination: A must survive.
        let keep = self.live.get(at + 1).is_some_and(|live| live.a);
        if keep {
            sink.op(mov64(tmp, A));
        }
        self.load_abs(sink, at, Size::B, k, certain);
        sink.op(alu32(isa::AluOp::And, A, imm(15)));
        sink.op(alu32(isa::AluOp::Lsh, A, imm(2)));
        sink.op(mov32(x, A));
        if keep {
            sink.op(mov64(A, tmp));
        }
    }

    /// Loads from X + k into A.
    fn load_ind(&self, sink: &mut dyn Sink, at: usize, bytes: Size, k: u32) {
        let Registers {
            x, tmp, data, end, ..
        } = self.regs;
        let kernel = self.options.dialect == Dialect::Kernel;
        if self.options.target == Target::SkBuff {
            let (reg, k) = if kernel {
                (x, k)
            } else {
                // The legacy load wraps and knows negative offsets; libpcap does not.
                sink.op(mov32(tmp, x));
                sink.op(alu64(isa::AluOp::Add, tmp, imm(k)));
                sink.jump_if(
                    isa::Cond::Gt,
                    Width::W64,
                    tmp,
                    imm(i32::MAX as u32),
                    Label::Fail,
                );
                (tmp, 0)
            };
            let source = isa::Source::Ind(reg);
            return sink.op(isa::Op::LoadPacket {
                size: size(bytes),
                source,
                imm: k as i32,
            });
        }
        sink.op(mov32(tmp, x));
        let mut constant = k;
        if kernel {
            sink.op(alu32(isa::AluOp::Add, tmp, imm(k)));
            self.special_offset(sink, tmp);
            constant = 0;
        }
        let length = bytes.bytes();
        if self.options.target == Target::Memory {
            // The end of the load, counted from the start of the packet.
            sink.op(alu64(isa::AluOp::Add, tmp, imm(constant + length)));
            sink.jump_if(
                isa::Cond::Gt,
                Width::W64,
                tmp,
                isa::Operand::Reg(end),
                Label::Fail,
            );
            sink.op(alu64(isa::AluOp::Add, tmp, isa::Operand::Reg(data)));
            self.load_at(sink, at, bytes, tmp, -(length as i16));
        } else {
            let last = MAX_PACKET - constant - length;
            sink.jump_if(isa::Cond::Gt, Width::W64, tmp, imm(last), Label::Fail);
            let off = match i16::try_from(constant) {
                Ok(off) => off,
                Err(_) => {
                    sink.op(alu64(isa::AluOp::Add, tmp, imm(constant)));
                    0
                }
            };
            sink.op(alu64(isa::AluOp::Add, tmp, isa::Operand::Reg(data)));
            sink.op(mov64(A, tmp));
            sink.op(alu64(isa::AluOp::Add, A, imm(off as u32 + length)));
            sink.jump_if(
                isa::Cond::Gt,
                Width::W64,
                A,
                isa::Operand::Reg(end),
                Label::Fail,
            );
            self.load_at(sink, at, bytes, tmp, off);
        }
    }

    /// Turns an offset from the network or the link-layer header into one from the first
    /// byte; other negative ones stay past any packet's end.
    fn special_offset(&self, sink: &mut dyn Sink, offset: Reg) {
        const RANGE: u32 = 0x10_0000;
        sink.jump_if(isa::Cond::Sge, Width::W32, offset, imm(0), Label::Skip(5));
        sink.op(alu32(isa::AluOp::Add, offset, imm(RANGE)));
        sink.jump_if(
            isa::Cond::Gt,
            Width::W32,
            offset,
            imm(RANGE - 1),
            Label::Skip(2),
        );
        sink.op(alu32(
            isa::AluOp::Add,
            offset,
            imm(self.options.network_offset.into()),
        ));
        sink.jump(Label::Skip(1));
        sink.op(alu32(isa::AluOp::Add, offset, imm(RANGE)));
    }
}

pub(super) fn word(dst: Reg, base: Reg, off: i16) -> isa::Op {
    isa::Op::Load {
        size: isa::Size::W,
        signed: false,
        dst,
        base,
        off,
    }
}

fn store(src: Reg, off: i16) -> isa::Op {
    isa::Op::Store {
        size: isa::Size::W,
        base: Reg::R10,
        off,
        src: isa::Operand::Reg(src),
    }
}
