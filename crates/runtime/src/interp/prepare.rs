//! From a [`Program`] to code: decoding, checking targets, resolving what instructions name.

use std::sync::Arc;

use bpfkit_isa::{Call, Imm64, Insn, Op, Operand, Reg, Size, Source};
use bpfkit_object::{Program, RefTarget};

use super::call::{PastEnd, Poison};
use super::inst::{Data, Inst, Instruction, Operands, Run, stepped, threaded};
use super::pair::select_pair;
use super::select::{Visit, select};
use crate::engine::{LoadError, LoadErrorKind, LoadOptions};
use crate::env::TAIL_CALL;
use crate::mapset::{MapSet, direct_value};
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
}

struct Handler {
    threaded: bool,
    checked: bool,
}

impl Visit for Handler {
    type Out = Run;

    fn visit<I: Instruction>(self) -> Run {
        match (self.threaded, self.checked) {
            (true, true) => Run { threaded: threaded::<I, true> },
            (true, false) => Run { threaded: threaded::<I, false> },
            (false, true) => Run { step: stepped::<I, true> },
            (false, false) => Run { step: stepped::<I, false> },
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
            true => Run { threaded: threaded::<I, true> },
            false => Run { threaded: threaded::<I, false> },
        }
    }
}

/// What the object says is missing at a poisoned instruction.
pub(super) fn poison(program: &Program, slot: u32) -> String {
    match target(program, slot) {
        Some(RefTarget::Poison { message, .. }) => message.clone(),
        _ => String::new(),
    }
}

fn target(program: &Program, slot: u32) -> Option<&RefTarget> {
    let at = program.refs.binary_search_by_key(&slot, |r| r.insn).ok()?;
    program.refs.get(at).map(|r| &r.target)
}

const NO_OPERANDS: Operands = Operands { dst: 0, src: 0, off: 0, imm: 0 };

struct Preparation<'a> {
    program: &'a Program,
    maps: &'a MapSet,
    options: &'a LoadOptions<'a>,
    mode: Mode,
    /// Which slots hold (the first slot of) an instruction.
    starts: Vec<bool>,
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
    if insns.is_empty() {
        return Err(error(0, LoadErrorKind::Empty));
    }
    // Distances and positions fit 32 bits.
    if insns.len() >= i32::MAX as usize {
        return Err(error(0, LoadErrorKind::TooLong));
    }
    let ops = decode(program)?;
    let end = Inst {
        run: Handler { threaded: mode.threaded, checked: true }.visit::<PastEnd>(),
        data: Data { operands: NO_OPERANDS },
    };
    let mut preparation = Preparation {
        program,
        maps,
        options,
        mode,
        starts: ops.iter().map(|op| !matches!(op, Slot::Second)).collect(),
        code: vec![end; insns.len() + 1].into_boxed_slice(),
        functions: program.subprograms.iter().map(|s| s.start).collect(),
    };
    for (slot, op) in ops.iter().enumerate() {
        preparation.place(slot, op).map_err(|kind| error(slot as u32, kind))?;
    }
    if mode.threaded {
        preparation.pair_up(&ops);
    }
    let Preparation { code, mut functions, .. } = preparation;
    functions.retain(|&f| (f as usize) < insns.len());
    functions.sort_unstable();
    functions.dedup();
    Ok(Prepared { code, functions })
}

/// A slot understood.
enum Slot {
    Op(Op),
    /// Second slot of `ld_imm64`.
    Second,
    Poison,
}

fn decode(program: &Program) -> Result<Vec<Slot>, LoadError> {
    let insns: &[Insn] = &program.insns;
    let mut slots = Vec::with_capacity(insns.len());
    while let Some(rest @ [first, ..]) = insns.get(slots.len()..) {
        let at = slots.len() as u32;
        if let Some(RefTarget::Poison { .. }) = target(program, at) {
            slots.push(Slot::Poison);
            if first.is_ld_imm64() && rest.len() > 1 {
                slots.push(Slot::Second);
            }
            continue;
        }
        let op = Op::decode(rest)
            .map_err(|e| LoadError { insn: at, kind: LoadErrorKind::Malformed(e) })?;
        let wide = op.slots() == 2;
        slots.push(Slot::Op(op));
        if wide {
            slots.push(Slot::Second);
        }
    }
    Ok(slots)
}

impl Preparation<'_> {
    /// Fills a slot (and, for `ld_imm64`, the next one).
    fn place(&mut self, slot: usize, op: &Slot) -> Result<(), LoadErrorKind> {
        let op = match op {
            Slot::Op(op) => op,
            Slot::Second => return Ok(()),
            Slot::Poison => {
                let handler = Handler { threaded: self.mode.threaded, checked: true };
                self.code[slot].run = handler.visit::<Poison>();
                return Ok(());
            }
        };
        if writes_frame_pointer(op) {
            return Err(LoadErrorKind::FramePointer);
        }
        let mut data = Data { operands: operands(op) };
        match *op {
            Op::Jump { off, .. } => self.check_target(slot, off)?,
            Op::JumpIf { off, .. } | Op::MayGoto { off } => self.check_target(slot, off.into())?,
            Op::Call(Call::Local(off)) => self.check_target(slot, off)?,
            Op::Call(Call::Helper(TAIL_CALL)) => {}
            Op::Call(Call::Helper(id)) => data.function = self.helper(id)?,
            Op::Call(Call::Kfunc { btf_id, .. }) => data.function = self.kfunc(slot, btf_id)?,
            Op::LoadImm64 { value, .. } => {
                let value = self.imm64(slot, value)?;
                // `decode` made sure of the second slot.
                self.code[slot + 1] =
                    Inst { run: Run { value }, data: Data { operands: NO_OPERANDS } };
            }
            _ => {}
        }
        let checked = self.mode.checked && !needs_no_check(op);
        let handler = Handler { threaded: self.mode.threaded, checked };
        let unsupported = match op {
            Op::CallReg(_) => "callx",
            _ => "a per-CPU address",
        };
        let run = select(op, handler).ok_or(LoadErrorKind::Unsupported(unsupported))?;
        self.code[slot] = Inst { run, data };
        Ok(())
    }

    /// Gives neighbours a common handler where there is one.
    fn pair_up(&mut self, ops: &[Slot]) {
        for (slot, pair) in ops.windows(2).enumerate() {
            let [Slot::Op(first), Slot::Op(second)] = pair else { continue };
            let free = needs_no_check(first) && needs_no_check(second);
            let handler = PairHandler { checked: self.mode.checked && !free };
            if let Some(run) = select_pair(first, second, handler) {
                self.code[slot].run = run;
            }
        }
    }

    fn check_target(&self, slot: usize, distance: i32) -> Result<(), LoadErrorKind> {
        let to = slot as i64 + 1 + i64::from(distance);
        let start = usize::try_from(to).ok().and_then(|to| self.starts.get(to));
        if start == Some(&true) { Ok(()) } else { Err(LoadErrorKind::Target(to)) }
    }

    fn helper(&self, id: i32) -> Result<crate::HelperFn, LoadErrorKind> {
        self.options.functions.helper(id).ok_or_else(|| match helper_name(id) {
            Some(name) => LoadErrorKind::HelperUnavailable(name),
            None => LoadErrorKind::HelperUnknown(id),
        })
    }

    fn kfunc(&self, slot: usize, btf_id: i32) -> Result<crate::HelperFn, LoadErrorKind> {
        let Some(RefTarget::Kfunc { name, .. }) = target(self.program, slot as u32) else {
            return Err(LoadErrorKind::Kfunc(format!("with BTF id {btf_id}")));
        };
        let function = self.options.functions.kfunc(name);
        function.ok_or_else(|| LoadErrorKind::Kfunc(name.clone()))
    }

    fn imm64(&mut self, slot: usize, value: Imm64) -> Result<u64, LoadErrorKind> {
        let map = |index: i32| {
            let found = u32::try_from(index).ok().and_then(|index| self.maps.get(index));
            found.ok_or(LoadErrorKind::Map(index.into()))
        };
        match value {
            Imm64::Value(value) => Ok(value),
            Imm64::MapIdx(index) => Ok(Arc::as_ptr(map(index)?).expose_provenance() as u64),
            Imm64::MapIdxValue { index, off } => {
                let value = direct_value(map(index)?, off);
                value.ok_or(LoadErrorKind::MapValue(index.into(), off))
            }
            Imm64::Func(off) => {
                // Relative to the next slot, as a call, though the instruction takes two.
                self.check_target(slot, off)?;
                let to = (slot as i64 + 1 + i64::from(off)) as u32;
                self.functions.push(to);
                Ok(self.address(to))
            }
            Imm64::BtfId { .. } => match target(self.program, slot as u32) {
                Some(RefTarget::Ksym { name, weak, .. }) => {
                    let address = self.options.ksym.and_then(|find| find(name));
                    let address = address.or(weak.then_some(0));
                    address.ok_or_else(|| LoadErrorKind::Ksym(name.clone()))
                }
                // Programs ask whether the function is there.
                Some(RefTarget::Kfunc { name, weak, .. }) => {
                    let address = self.options.functions.kfunc(name).map(|f| f as usize as u64);
                    let address = address.or(weak.then_some(0));
                    address.ok_or_else(|| LoadErrorKind::Kfunc(name.clone()))
                }
                _ => Err(LoadErrorKind::Unsupported("a kernel variable without a name")),
            },
            Imm64::MapFd(_) | Imm64::MapFdValue { .. } => {
                Err(LoadErrorKind::Unsupported("a map by file descriptor"))
            }
        }
    }

    /// What a pointer to the function at a slot is.
    fn address(&self, slot: u32) -> u64 {
        self.code.as_ptr().addr() as u64 + u64::from(slot) * size_of::<Inst>() as u64
    }
}

fn helper_name(id: i32) -> Option<String> {
    Some(bpfkit_spec::helper::by_id(id)?.full_name())
}

/// Whether the instruction cannot fault and does not jump back, so that checked code may
/// use the trusted handler: accesses inside of the frame through R10, jumps forward.
fn needs_no_check(op: &Op) -> bool {
    let in_frame = |base: Reg, off: i16, size: Size| {
        let (start, size) = (i64::from(off), i64::from(size.bytes()));
        base == Reg::R10 && start >= -(FRAME_BYTES as i64) && start + size <= 0
    };
    match *op {
        Op::Load { size, base, off, .. }
        | Op::Store { size, base, off, .. }
        | Op::Atomic { size, base, off, .. }
        | Op::LoadAcquire { size, base, off, .. }
        | Op::StoreRelease { size, base, off, .. } => in_frame(base, off, size),
        Op::JumpIf { off, .. } | Op::MayGoto { off } => off >= 0,
        Op::Jump { off, .. } => off >= 0,
        Op::Call(Call::Local(_)) | Op::Exit | Op::LoadPacket { .. } => false,
        _ => true,
    }
}

fn writes_frame_pointer(op: &Op) -> bool {
    let written = match *op {
        Op::Alu { dst, .. }
        | Op::MovSx { dst, .. }
        | Op::Neg { dst, .. }
        | Op::Swap { dst, .. }
        | Op::AddrSpaceCast { dst, .. }
        | Op::MovPercpu { dst, .. }
        | Op::LoadImm64 { dst, .. }
        | Op::Load { dst, .. }
        | Op::LoadAcquire { dst, .. } => dst,
        Op::Atomic { src, fetch: true, .. } => src,
        _ => return false,
    };
    written == Reg::R10
}

/// The operands as handlers read them.
fn operands(op: &Op) -> Operands {
    let set = |dst: Reg, src: Operand, off: i16| match src {
        Operand::Reg(src) => Operands { dst: dst.number(), src: src.number(), off, imm: 0 },
        Operand::Imm(imm) => Operands { dst: dst.number(), src: 0, off, imm },
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
            Operands { imm, ..regs(Reg::R0, src, 0) }
        }
        Op::Store { base, off, src, .. } => set(base, src, off),
        Op::Atomic { base, off, src, .. } | Op::StoreRelease { base, off, src, .. } => {
            regs(base, src, off)
        }
        Op::Jump { off, .. } => Operands { imm: off, ..NO_OPERANDS },
        Op::JumpIf { dst, src, off, .. } => set(dst, src, off),
        Op::MayGoto { off } => Operands { off, ..NO_OPERANDS },
        Op::Call(Call::Local(off)) => Operands { imm: off, ..NO_OPERANDS },
        Op::Call(_) | Op::CallReg(_) | Op::Exit => NO_OPERANDS,
    }
}
