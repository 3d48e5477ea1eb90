//! The kernel's rules for classic filters (`bpf_check_classic` in `net/core/filter.c`,
//! `seccomp_check_filter` in `kernel/seccomp.c`), a message for each.

use crate::insn::{Insn, code};
use crate::op::{AluOp, Op, Operand, jump_target};
use crate::table::{UnknownCode, row_of};

/// Which rules hold.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Rules {
    /// Filters over packets: sockets, tc, netfilter.
    Packet,
    /// Filters over system calls: the same and seccomp's own.
    Seccomp,
    /// Filters over packets that libpcap runs itself: `ja` may jump back, which its
    /// `protochain` makes use of, and scratch words may be read that no path has stored,
    /// which its optimizer at times makes of `geneve`; they are 0. The kernel refuses both.
    Libpcap,
}

/// A rule that a filter breaks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
pub enum Broken {
    /// No instructions.
    #[error("the filter is empty")]
    Empty,
    /// Too many.
    #[error("the filter has {0} instructions, more than 4096")]
    TooLong(usize),
    /// Not an opcode.
    #[error("{0}")]
    UnknownCode(UnknownCode),
    /// Constant zero divisor.
    #[error("division by the constant zero")]
    DivisionByZero,
    /// Constant shift amount past 31.
    #[error("shift by {0}, more than 31")]
    ShiftTooFar(u32),
    /// No such scratch word.
    #[error("there is no scratch word M[{0}]: the last is M[15]")]
    NoScratchWord(u32),
    /// Jump past the end.
    #[error("jump to instruction {target}, past the end of the filter ({len} instructions)")]
    JumpOutOfRange {
        /// Where the jump goes.
        target: u64,
        /// Length of the filter.
        len: usize,
    },
    /// Jump back.
    #[error("jump back to instruction {0}: jumps only go forward")]
    JumpBack(usize),
    /// An absolute load from the ancillary range that is none.
    #[error("no ancillary load has the offset {0:#x}")]
    NoAncillary(u32),
    /// The end can be reached.
    #[error("the last instruction does not return")]
    NoReturn,
    /// A scratch word that some path reads before it is written.
    #[error("M[{0}] is read here, but a path to here does not store it")]
    ScratchNotStored(u32),
    /// Load that is not of `struct seccomp_data`.
    #[error("load from offset {0}: a seccomp filter loads aligned words from offsets 0 to 60")]
    NotSeccompData(u32),
    /// An instruction that seccomp does not take.
    #[error("`{0}` (opcode {1:#04x}) is not allowed in a seccomp filter")]
    NotInSeccomp(&'static str, u16),
}

/// A broken rule with its place.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
#[error("instruction {at}: {broken}")]
pub struct CheckError {
    /// Index of the instruction.
    pub at: usize,
    /// The rule.
    pub broken: Broken,
}

/// A filter that keeps the rules: it stays inside itself and its scratch words, and,
/// where jumps back are not allowed, ends.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Program {
    ops: Vec<Op>,
    rules: Rules,
}

impl Program {
    /// Checks a filter.
    pub fn new(insns: &[Insn], rules: Rules) -> Result<Program, CheckError> {
        let fail = |at, broken| CheckError { at, broken };
        match insns.len() {
            0 => return Err(fail(0, Broken::Empty)),
            n if n > code::MAXINSNS => return Err(fail(code::MAXINSNS, Broken::TooLong(n))),
            _ => {}
        }
        let mut ops = Vec::with_capacity(insns.len());
        for (at, &insn) in insns.iter().enumerate() {
            let op = Op::decode(insn).map_err(|e| fail(at, Broken::UnknownCode(e)))?;
            check_operands(op, at, insns.len(), rules).map_err(|broken| fail(at, broken))?;
            ops.push(op);
        }
        if !matches!(ops.last(), Some(Op::ReturnK(_) | Op::ReturnA)) {
            return Err(fail(ops.len() - 1, Broken::NoReturn));
        }
        if rules != Rules::Libpcap {
            check_scratch(&ops)?;
        }
        if rules == Rules::Seccomp {
            for (at, (op, insn)) in ops.iter().zip(insns).enumerate() {
                check_seccomp(*op, *insn).map_err(|broken| fail(at, broken))?;
            }
        }
        Ok(Program { ops, rules })
    }

    /// The instructions. Every jump lands inside, and the last returns.
    pub fn ops(&self) -> &[Op] {
        &self.ops
    }

    /// The rules it was checked by.
    pub fn rules(&self) -> Rules {
        self.rules
    }
}

fn check_operands(op: Op, at: usize, len: usize, rules: Rules) -> Result<(), Broken> {
    let jump = |skip: u32| {
        let target = at as u64 + 1 + u64::from(skip);
        if target < len as u64 {
            Ok(())
        } else {
            Err(Broken::JumpOutOfRange { target, len })
        }
    };
    match op {
        Op::Alu {
            op: AluOp::Div | AluOp::Mod,
            src: Operand::K(0),
        } => Err(Broken::DivisionByZero),
        Op::Alu {
            op: AluOp::Lsh | AluOp::Rsh,
            src: Operand::K(k),
        } if k >= 32 => Err(Broken::ShiftTooFar(k)),
        Op::LoadMem(k) | Op::LoadXMem(k) | Op::Store(k) | Op::StoreX(k) if k >= code::MEMWORDS => {
            Err(Broken::NoScratchWord(k))
        }
        Op::Jump(k) => match jump_target(at, k) {
            Some(target) if target <= at && rules == Rules::Libpcap => Ok(()),
            Some(target) if target <= at => Err(Broken::JumpBack(target)),
            _ => jump(k),
        },
        Op::JumpIf { jt, jf, .. } => jump(jt.into()).and_then(|()| jump(jf.into())),
        Op::LoadAbs { k, .. } if k >= code::AD_OFF => Err(Broken::NoAncillary(k)),
        _ => Ok(()),
    }
}

/// Every scratch word that is read was stored on every path. Jumps go forward only, so one
/// pass that meets the paths' sets at each target is enough.
fn check_scratch(ops: &[Op]) -> Result<(), CheckError> {
    let mut stored_at = vec![u16::MAX; ops.len()];
    let mut stored = 0u16;
    for (at, op) in ops.iter().enumerate() {
        stored &= stored_at[at];
        let mut meet = |target: usize, set: u16| {
            if let Some(slot) = stored_at.get_mut(target) {
                *slot &= set;
            }
        };
        match *op {
            Op::Store(k) | Op::StoreX(k) => stored |= 1 << k,
            Op::LoadMem(k) | Op::LoadXMem(k) if stored & (1 << k) == 0 => {
                return Err(CheckError {
                    at,
                    broken: Broken::ScratchNotStored(k),
                });
            }
            Op::Jump(k) => {
                meet(jump_target(at, k).unwrap_or(usize::MAX), stored);
                stored = u16::MAX;
            }
            Op::JumpIf { jt, jf, .. } => {
                meet(at + 1 + usize::from(jt), stored);
                meet(at + 1 + usize::from(jf), stored);
                stored = u16::MAX;
            }
            // What comes after a return is reached by jumps only, which the kernel
            // leaves out: for it the path goes on behind.
            _ => {}
        }
    }
    Ok(())
}

/// Bytes of `struct seccomp_data`.
pub(crate) const SECCOMP_DATA: u32 = 64;

fn check_seccomp(op: Op, insn: Insn) -> Result<(), Broken> {
    match op {
        Op::LoadAbs {
            size: crate::op::Size::W,
            k,
        } => {
            if k < SECCOMP_DATA && k % 4 == 0 {
                Ok(())
            } else {
                Err(Broken::NotSeccompData(k))
            }
        }
        Op::LoadAbs { .. }
        | Op::LoadInd { .. }
        | Op::LoadAncillary { .. }
        | Op::LoadXMsh(_)
        | Op::Alu { op: AluOp::Mod, .. } => {
            let name = row_of(insn.code).map_or("", |row| row.name);
            Err(Broken::NotInSeccomp(name, insn.code))
        }
        _ => Ok(()),
    }
}
