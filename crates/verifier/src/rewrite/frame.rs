//! What is put before subprograms and behind the program: packets made writable, budgets of
//! rounds, what ends a thrown exception.

use bpfkit_isa::code;
use bpfkit_spec::ProgType;

use super::code::*;
use super::{Rewriter, Symbol};
use crate::checker::{is_kfunc_call, is_may_goto};
use crate::kfunc::Special;
use crate::reg::Base;

/// Rounds of a timed `may_goto` between two looks at the clock.
const TIMED_ROUNDS: i32 = 0xffff;
/// Helper that makes the packet the program's own.
const SKB_PULL_DATA: i32 = 39;
/// Return values that drop a packet: of traffic control, of streams.
const TC_ACT_SHOT: i32 = 2;
const SK_DROP: i32 = 0;

impl Rewriter<'_, '_> {
    /// Where a subprogram keeps its budget, in bytes below the frame pointer.
    pub fn budget_at(&self, sub: usize) -> i32 {
        self.checker.subs[sub].stack_depth.cast_signed()
    }

    /// Budgets are filled where their subprograms begin.
    pub fn plan_budgets(&mut self) {
        for sub in 0..self.checker.subs.len() {
            let start = self.checker.subs[sub].start;
            let used = (start..self.checker.sub_end(sub)).any(|at| {
                is_may_goto(&self.checker.insns[at as usize]) && !self.edits.is_removed(at)
            });
            if used {
                let count = -(self.budget_at(sub)) as i16;
                let fill = [
                    store_imm(code::DW, FP, count, TIMED_ROUNDS),
                    store_imm(code::DW, FP, count + 8, 0),
                ];
                self.edits.prepend(start, &fill, &self.checker.insns);
            }
        }
    }

    /// Whether the program writes to packets.
    fn writes_packets(&self) -> bool {
        let checker = self.checker;
        let mut accesses = checker.insns.iter().zip(&checker.aux);
        accesses.any(|(insn, aux)| {
            let writes =
                matches!(insn.class(), code::ST | code::STX) && aux.ptr_type.base() == Base::Packet;
            let slices = is_kfunc_call(insn)
                && checker
                    .kfunc_of(insn)
                    .is_some_and(|k| checker.kfuncs[k].special == Special::DynptrSliceRdwr);
            aux.seen && (writes || slices)
        })
    }

    /// A packet that others share is copied before a program writes to it; where that fails, it
    /// is dropped.
    pub fn plan_prologue(&mut self) {
        let verdict = match self.checker.prog_type() {
            ProgType::SchedCls | ProgType::SchedAct | ProgType::LwtXmit => TC_ACT_SHOT,
            ProgType::SkSkb => SK_DROP,
            _ => return,
        };
        if !self.writes_packets() {
            return;
        }
        let Some((byte, mask)) = self.packet_bits("__cloned_offset", "cloned") else {
            self.unconverted.push(0);
            return;
        };
        let new = [
            load(code::B, 6, 1, byte),
            alu_imm(code::ALU, code::AND, 6, mask),
            jump_imm(code::JMP, code::JEQ, 6, 0, 7),
            mov(6, 1),
            alu(code::ALU64, code::XOR, 2, 2),
            call_kernel(),
            jump_imm(code::JMP, code::JEQ, 0, 0, 2),
            mov32_imm(0, verdict),
            exit(),
            mov(1, 6),
        ];
        let call = new.iter().position(|i| *i == call_kernel()).unwrap_or(0);
        let before = call as i32 - new.len() as i32;
        self.symbols
            .push((0, before, Symbol::Helper(SKB_PULL_DATA)));
        self.edits.prepend(0, &new, &self.checker.insns);
    }

    /// Programs that throw and have no function for that return what was thrown.
    pub fn plan_exception_handler(&mut self) {
        if self.checker.threw && self.checker.exception_callback.is_none() {
            self.edits.append(&[mov(0, 1), exit()]);
        }
    }
}
