//! From a [`Program`] to code: decoding, checking targets, resolving what instructions name.

use bpfkit_isa::{Call, Op, Operand, Reg, Size, Source};
use bpfkit_object::Program;

use super::call::{PastEnd, Poison};
use super::inst::{Data, Inst, Instruction, Operands, Run, stepped, threaded};
use super::packet;
use super::pair::select_pair;
use super::select::{Visit, select};
use super::sequence::select_sequence;
use crate::engine::{LoadError, LoadErrorKind, LoadOptions};
use crate::env::TAIL_CALL;
use crate::mapset::MapSet;
use crate::resolve::{Resolver, Slot, Value};
use crate::vm::FRAME_BYTES;

/// Code, and the slots that function pointers may point to, sorted.
pub(super) struct Prepared {
    pub(super) code: Box<[Inst]>,
    pub(super) functions: Vec<u32>,
}

/// What to prepare for.
#[derive(Clone, Copy)]
pub(super) struct Mode {
    pub(super) checked: bool,
    pub(super) threaded: bool,
    /// A program over a packet, which is not checked.
    pub(super) packet: bool,
}

struct Handler {
    threaded: bool,
    checked: bool,
}

impl Visit for Handler {
    type Out = Run;

    fn visit<I: Instruction>(self) -> Run {
        match (self.threaded, self.checked) {
            (true, true) => Run {
                threaded: threaded::<I, true>,
            },
            (true, false) => Run {
                threaded: threaded::<I, false>,
            },
            (false, true) => Run {
                step: stepped::<I, true>,
            },
            (false, false) => Run {
                step: stepped::<I, false>,
            },
        }
    }
}

/// Pairs exist in threaded code only.
struct PairHandler {
    checked: bool,
}

impl Visit for PairHandler {
    type Out = Run;

    fn visit<I: Instruction>(self) -> Run {
        match self.checked {
            true => Run {
                threaded: threaded::<I, true>,
            },
            false => Run {
                threaded: threaded::<I, false>,
            },
        }
    }
}

/// Sequences exist in threaded code without checks only.
struct SequenceHandler;

impl Visit for SequenceHandler {
    type Out = Run;

    fn visit<I: Instruction>(self) -> Run {
        Run {
            threaded: threaded::<I, false>,
        }
    }
}

const NO_OPERANDS: Operands = Operands {
    dst: 0,
    src: 0,
    off: 0,
    imm: 0,
};

struct Preparation<'a> {
    resolver: &'a Resolver<'a>,
    mode: Mode,
    code: Box<[Inst]>,
    functions: Vec<u32>,
}

/// Makes a program's code.
///
/// # Errors
/// The first instruction that cannot run.
pub(super) fn prepare(
    program: &Program,
    maps: &MapSet,
    options: &LoadOptions<'_>,
    mode: Mode,
) -> Result<Prepared, LoadError> {
    let insns = &program.insns;
    let error = |insn, kind| LoadError { insn, kind };
    let resolver = Resolver::new(program, maps, options)?;
    let end = Inst {
        run: Handler {
            threaded: mode.threaded,
            checked: true,
        }
        .visit::<PastEnd>(),
        data: Data {
            operands: NO_OPERANDS,
        },
    };
    let mut preparation = Preparation {
        resolver: &resolver,
        mode,
        code: vec![end; insns.len() + 1].into_boxed_slice(),
        functions: program.subprograms.iter().map(|s| s.start).collect(),
    };
    for (slot, op) in resolver.slots().iter().enumerate() {
        preparation
            .place(slot, op)
            .map_err(|kind| error(slot as u32, kind))?;
    }
    if mode.threaded {
        preparation.join(resolver.slots());
    }
    let Preparation {
        code,
        mut functions,
        ..
    } = preparation;
    functions.retain(|&f| (f as usize) < insns.len());
    functions.sort_unstable();
    functions.dedup();
    Ok(Prepared { code, functions })
}

impl Preparation<'_> {
    /// Fills a slot (and, for `ld_imm64`, the next one).
    fn place(&mut self, slot: usize, op: &Slot) -> Result<(), LoadErrorKind> {
        let op = match op {
            Slot::Op(op) => op,
            Slot::Second => return Ok(()),
            Slot::Poison => {
                let handler = Handler {
                    threaded: self.mode.threaded,
                    checked: true,
                };
                self.code[slot].run = handler.visit::<Poison>();
                return Ok(());
            }
        };
        let mut data = Data {
            operands: operands(op),
        };
        match *op {
            Op::Jump { off, .. } => _ = self.resolver.jump(slot, off)?,
            Op::JumpIf { off, .. } | Op::MayGoto { off } => {
                self.resolver.jump(slot, off.into())?;
            }
            Op::Call(Call::Local(off)) => _ = self.resolver.jump(slot, off)?,
            Op::Call(Call::Helper(TAIL_CALL)) => {}
            Op::Call(Call::Helper(id)) => data.function = self.resolver.helper(id)?,
            Op::Call(Call::Kfunc { btf_id, .. }) => {
                data.function = self.resolver.kfunc(slot, btf_id)?;
            }
            Op::LoadImm64 { value, .. } => {
                let value = match self.resolver.imm64(slot, value)? {
                    Value::Known(value) => value,
                    Value::Function(to) => {
                        self.functions.push(to);
                        self.address(to)
                    }
                };
                // `decode` made sure of the second slot.
                self.code[slot + 1] = Inst {
                    run: Run { value },
                    data: Data {
                        operands: NO_OPERANDS,
                    },
                };
            }
            _ => {}
        }
        let checked = self.mode.checked && !needs_no_check(op);
        let handler = Handler {
            threaded: self.mode.threaded,
            checked,
        };
        let unsupported = match op {
            Op::CallReg(_) => "callx",
            _ => "a per-CPU address",
        };
        let run = match op {
            Op::Exit if self.mode.packet => handler.visit::<packet::Exit>(),
            _ => select(op, handler).ok_or(LoadErrorKind::Unsupported(unsupported))?,
        };
        self.code[slot] = Inst { run, data };
        Ok(())
    }

    /// Gives neighbours a common handler where there is one.
    fn join(&mut self, ops: &[Slot]) {
        for slot in 0..ops.len() {
            let here = &ops[slot..];
            if self.mode.packet
                && let Some(run) = select_sequence(here, SequenceHandler)
            {
                self.code[slot].run = run;
                continue;
            }
            let [Slot::Op(first), Slot::Op(second), ..] = here else {
                continue;
            };
            let free = needs_no_check(first) && needs_no_check(second);
            let handler = PairHandler {
                checked: self.mode.checked && !free,
            };
            if let Some(run) = select_pair(first, second, handler) {
                self.code[slot].run = run;
            }
        }
    }

    /// What a pointer to the function at a slot is.
    fn address(&self, slot: u32) -> u64 {
        self.code.as_ptr().addr() as u64 + u64::from(slot) * size_of::<Inst>() as u64
    }
}

/// Whether the instruction cannot fault and does not jump back, so that checked code may
/// use the trusted handler: accesses inside of the frame through R10, jumps forward.
fn needs_no_check(op: &Op) -> bool {
    let in_frame = |base: Reg, off: i16, size: Size| {
        let (start, size) = (i64::from(off), i64::from(size.bytes()));
        base == Reg::R10 && start >= -(FRAME_BYTES as i64) && start + size <= 0
    };
    match *op {
        Op::Load {
            size, base, off, ..
        }
        | Op::Store {
            size, base, off, ..
        }
        | Op::Atomic {
            size, base, off, ..
        }
        | Op::LoadAcquire {
            size, base, off, ..
        }
        | Op::StoreRelease {
            size, base, off, ..
        } => in_frame(base, off, size),
        Op::JumpIf { off, .. } | Op::MayGoto { off } => off >= 0,
        Op::Jump { off, .. } => off >= 0,
        Op::Call(Call::Local(_)) | Op::Exit | Op::LoadPacket { .. } => false,
        _ => true,
    }
}

/// The operands as handlers read them.
fn operands(op: &Op) -> Operands {
    let set = |dst: Reg, src: Operand, off: i16| match src {
        Operand::Reg(src) => Operands {
            dst: dst.number(),
            src: src.number(),
            off,
            imm: 0,
        },
        Operand::Imm(imm) => Operands {
            dst: dst.number(),
            src: 0,
            off,
            imm,
        },
    };
    let regs = |dst: Reg, src: Reg, off: i16| set(dst, Operand::Reg(src), off);
    match *op {
        Op::Alu { dst, src, .. } => set(dst, src, 0),
        Op::MovSx { dst, src, .. }
        | Op::AddrSpaceCast { dst, src, .. }
        | Op::MovPercpu { dst, src } => regs(dst, src, 0),
        Op::Neg { dst, .. } | Op::Swap { dst, .. } => regs(dst, dst, 0),
        Op::LoadImm64 { dst, .. } => regs(dst, Reg::R0, 0),
        Op::Load { dst, base, off, .. } | Op::LoadAcquire { dst, base, off, .. } => {
            regs(dst, base, off)
        }
        Op::LoadPacket { source, imm, .. } => {
            let src = match source {
                Source::Ind(reg) => reg,
                Source::Abs => Reg::R0,
            };
            Operands {
                imm,
                ..regs(Reg::R0, src, 0)
            }
        }
        Op::Store { base, off, src, .. } => set(base, src, off),
        Op::Atomic { base, off, src, .. } | Op::StoreRelease { base, off, src, .. } => {
            regs(base, src, off)
        }
        Op::Jump { off, .. } => Operands {
            imm: off,
            ..NO_OPERANDS
        },
        Op::JumpIf { dst, src, off, .. } => set(dst, src, off),
        Op::MayGoto { off } => Operands { off, ..NO_OPERANDS },
        Op::Call(Call::Local(off)) => Operands {
            imm: off,
            ..NO_OPERANDS
        },
        Op::Call(_) | Op::CallReg(_) | Op::Exit => NO_OPERANDS,
    }
}
