//! What Linux makes of single instructions once a program is accepted (`do_misc_fixups`,
//! `optimize_bpf_loop` and the loads that may fault, in `kernel/bpf/verifier.c` of 6.18 on
//! x86-64): divisions that cannot trap, helpers written out, loops with a budget.

use bpfkit_isa::{Insn, code};
use bpfkit_spec::{MapType, TypeFlags};

use super::code::*;
use super::edit::{Outer, Patch};
use super::{Rewriter, Symbol};
use crate::args::func;
use crate::checker::{is_helper_call, is_kfunc_call, is_may_goto};
use crate::reg::{Base, RegType};

/// Most rounds of `bpf_loop`.
const MAX_LOOPS: i32 = 8 * 1024 * 1024;
/// Rounds of a timed `may_goto` between two looks at the clock.
const TIMED_ROUNDS: i32 = 0xffff;
const E2BIG: i32 = 7;

/// Modes of loads and stores that survive a fault, beside those of programs.
const PROBE_MEM: u8 = 0x20;
const PROBE_MEMSX: u8 = 0x40;
const PROBE_MEM32: u8 = 0xa0;
const PROBE_MEM32SX: u8 = 0xc0;
const PROBE_ATOMIC: u8 = 0xe0;
const MODES: u8 = 0xe0;
/// Opcode of a tail call, beside `JMP`.
const TAIL_CALL: u8 = 0xf0;

/// Numbers of helpers that are written out.
mod helper {
    pub const TAIL_CALL: i32 = 12;
    pub const GET_SMP_PROCESSOR_ID: i32 = 8;
    pub const JIFFIES64: i32 = 118;
    pub const GET_FUNC_IP: i32 = 173;
    pub const GET_FUNC_ARG_CNT: i32 = 185;
}

/// An untrusted pointer to kernel memory: loads through it may fault.
fn may_fault(ty: RegType) -> bool {
    let untrusted = RegType::BTF_ID.with(TypeFlags::PTR_UNTRUSTED);
    let memory = RegType::MEM.with(TypeFlags::MEM_RDONLY);
    [
        RegType::BTF_ID,
        untrusted,
        untrusted.with(TypeFlags::MEM_ALLOC),
        memory.with(TypeFlags::PTR_UNTRUSTED),
    ]
    .contains(&ty)
}

impl Rewriter<'_, '_> {
    /// Plans new code for one instruction that a path reaches.
    pub fn plan_fixup(&mut self, at: u32) {
        let insn = self.checker.insns[at as usize];
        match insn.class() {
            code::ALU | code::ALU64 => match insn.code & 0xf0 {
                code::DIV | code::MOD => self.plan_division(at, &insn),
                code::MOV if insn.off == code::ADDR_SPACE_CAST && insn.imm == 1 => {
                    // To the kernel's view only the upper half is cleared.
                    self.replace(at, vec![mov32(insn.dst, insn.src)]);
                }
                _ => {}
            },
            code::LDX | code::ST | code::STX => self.plan_probe(at, &insn),
            _ if is_may_goto(&insn) => self.plan_may_goto(at, &insn),
            _ if is_helper_call(&insn) => self.plan_helper(at, &insn),
            _ if is_kfunc_call(&insn) => self.plan_kfunc(at, &insn),
            _ => {}
        }
    }

    pub fn replace(&mut self, at: u32, insns: Vec<Insn>) {
        let patch = Patch {
            insns,
            ..Patch::default()
        };
        self.edits.replace(at, patch);
    }

    /// Division by zero gives 0, the remainder of it the dividend; the least number divided by
    /// minus one is itself.
    fn plan_division(&mut self, at: u32, insn: &Insn) {
        let wide = insn.class() == code::ALU64;
        let class = insn.class();
        let jumps = if wide { code::JMP } else { code::JMP32 };
        let is_div = insn.code & 0xf0 == code::DIV;
        let signed = insn.off == 1;
        let dst = insn.dst;
        if insn.code & code::X == 0 {
            if signed && insn.imm == -1 {
                let result = match is_div {
                    true => alu_imm(class, code::NEG, dst, 0),
                    false => mov32_imm(dst, 0),
                };
                self.replace(at, vec![result]);
            }
            return;
        }
        // A 32-bit remainder that stays as it was still clears the upper half.
        let clear = [goto(1), mov32(dst, dst)];
        let clear = if wide { &[][..] } else { &clear[..] };
        let longer = clear.len() as i16 / 2;
        let mut new = Vec::with_capacity(8);
        match (signed, is_div) {
            (true, true) => new.extend([
                mov(AX, insn.src),
                alu_imm(class, code::ADD, AX, 1),
                jump_imm(jumps, code::JGT, AX, 1, 4),
                jump_imm(jumps, code::JEQ, AX, 0, 1),
                alu_imm(class, code::MOV, dst, 0),
                alu_imm(class, code::NEG, dst, 0),
                goto(1),
                *insn,
            ]),
            (true, false) => {
                new.extend([
                    mov(AX, insn.src),
                    alu_imm(class, code::ADD, AX, 1),
                    jump_imm(jumps, code::JGT, AX, 1, 3),
                    jump_imm(jumps, code::JEQ, AX, 1, 3 + longer),
                    mov32_imm(dst, 0),
                    goto(1),
                    *insn,
                ]);
                new.extend(clear);
            }
            (false, true) => new.extend([
                jump_imm(jumps, code::JNE, insn.src, 0, 2),
                alu(code::ALU, code::XOR, dst, dst),
                goto(1),
                *insn,
            ]),
            (false, false) => {
                new.extend([jump_imm(jumps, code::JEQ, insn.src, 0, 1 + longer), *insn]);
                new.extend(clear);
            }
        }
        self.replace(at, new);
    }

    /// Accesses that may fault get a mode that survives it.
    fn plan_probe(&mut self, at: u32, insn: &Insn) {
        let ty = self.checker.aux[at as usize].ptr_type;
        let mode = insn.code & MODES;
        let new = if ty == RegType::ARENA {
            match mode {
                code::MEMSX => PROBE_MEM32SX,
                code::ATOMIC => PROBE_ATOMIC,
                _ => PROBE_MEM32,
            }
        } else if may_fault(ty) && insn.class() == code::LDX {
            match mode {
                code::MEMSX => PROBE_MEMSX,
                _ => PROBE_MEM,
            }
        } else {
            return;
        };
        let code = insn.code & !MODES | new;
        self.replace(at, vec![Insn { code, ..*insn }]);
    }

    /// A budget of rounds in the stack, and a look at the clock when it is used up.
    fn plan_may_goto(&mut self, at: u32, insn: &Insn) {
        let sub = self.checker.sub_of(at);
        let count = -(self.budget_at(sub)) as i16;
        let Some(target) = super::edit::target(at, insn) else {
            return;
        };
        let insns = vec![
            load(code::DW, AX, FP, count),
            jump_imm(code::JMP, code::JEQ, AX, 0, 0),
            alu_imm(code::ALU64, code::SUB, AX, 1),
            jump_imm(code::JMP, code::JNE, AX, 0, 2),
            mov_imm(AX, count.into()),
            call_kernel(),
            store(code::DW, FP, AX, count),
        ];
        self.symbols
            .push((at, 5, Symbol::Function("arch_bpf_timed_may_goto")));
        self.edits.replace(
            at,
            Patch {
                insns,
                outer: vec![Outer { at: 1, target }],
                skipped_by_jumps: 0,
            },
        );
    }

    /// Where a subprogram keeps its budget, in bytes below the frame pointer.
    fn budget_at(&self, sub: usize) -> i32 {
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

    fn plan_helper(&mut self, at: u32, insn: &Insn) {
        if let Some(Some(callback)) = self.checker.aux[at as usize].loop_inline {
            return self.plan_loop(at, callback as usize);
        }
        match insn.imm {
            helper::TAIL_CALL => {
                let key = self.call(at).and_then(|call| call.key);
                if key.is_some() {
                    self.direct_tail_calls += 1;
                }
                let new = Insn {
                    code: code::JMP | TAIL_CALL,
                    imm: key.map_or(0, |_| self.direct_tail_calls),
                    ..*insn
                };
                self.replace(at, vec![new]);
            }
            helper::GET_SMP_PROCESSOR_ID => self.plan_cpu_number(at),
            helper::JIFFIES64 => {
                let [low, high] = address(0);
                self.symbols.push((at, 0, Symbol::Variable("jiffies")));
                self.replace(at, vec![low, high, load(code::DW, 0, 0, 0)]);
            }
            helper::GET_FUNC_ARG_CNT => self.replace(at, vec![load(code::DW, 0, 1, -8)]),
            helper::GET_FUNC_IP if self.is_traced() => {
                self.replace(at, vec![load(code::DW, 0, 1, -16)]);
            }
            func::KPTR_XCHG => {
                let exchange = Insn {
                    code: code::STX | code::ATOMIC | code::DW,
                    dst: 1,
                    src: 0,
                    off: 0,
                    imm: code::XCHG,
                };
                self.replace(at, vec![mov(0, 2), exchange]);
            }
            func::MAP_LOOKUP_ELEM => self.plan_lookup(at, insn),
            id => {
                self.symbols.push((at, 0, Symbol::Helper(id)));
                self.replace(at, vec![Insn { imm: -1, ..*insn }]);
            }
        }
    }

    fn is_traced(&self) -> bool {
        self.checker.prog_type() == bpfkit_spec::ProgType::Tracing
    }

    /// The number of this CPU is a per-CPU variable.
    fn plan_cpu_number(&mut self, at: u32) {
        self.symbols.push((at, 0, Symbol::Variable("cpu_number")));
        let number = load(code::W, 0, 0, 0);
        self.replace(at, vec![mov_imm(0, 0), mov_percpu(0, 0), number]);
    }

    /// Lookups in a map that all paths agree on.
    fn plan_lookup(&mut self, at: u32, insn: &Insn) {
        let map = self.call(at).and_then(|call| call.map);
        let info = map.and_then(|map| self.checker.maps.get(map as usize));
        let Some(info) = info else {
            self.symbols.push((at, 0, Symbol::Helper(insn.imm)));
            return self.replace(at, vec![Insn { imm: -1, ..*insn }]);
        };
        let size = info.value_size.next_multiple_of(8) as i32;
        let entries = info.max_entries as i32;
        let key = info.key_size.next_multiple_of(8) as i32;
        let values = self.kernel_offset("bpf_array", "value").unwrap_or(0) as i32;
        let element = self.kernel_offset("htab_elem", "key").unwrap_or(0) as i32;
        let scale = |by: i32| match by.cast_unsigned().is_power_of_two() {
            true => alu_imm(code::ALU64, code::LSH, 0, by.trailing_zeros() as i32),
            false => alu_imm(code::ALU64, code::MUL, 0, by),
        };
        match info.map_type {
            MapType::Array => self.replace(
                at,
                vec![
                    alu_imm(code::ALU64, code::ADD, 1, values),
                    load(code::W, 0, 2, 0),
                    jump_imm(code::JMP, code::JGE, 0, entries, 3),
                    scale(size),
                    alu(code::ALU64, code::ADD, 0, 1),
                    goto(1),
                    mov_imm(0, 0),
                ],
            ),
            MapType::PercpuArray => self.replace(
                at,
                vec![
                    alu_imm(code::ALU64, code::ADD, 1, values),
                    load(code::W, 0, 2, 0),
                    jump_imm(code::JMP, code::JGE, 0, entries, 5),
                    alu_imm(code::ALU64, code::LSH, 0, 3),
                    alu(code::ALU64, code::ADD, 0, 1),
                    load(code::DW, 0, 0, 0),
                    mov_percpu(0, 0),
                    goto(1),
                    mov_imm(0, 0),
                ],
            ),
            MapType::Hash => {
                self.symbols
                    .push((at, 0, Symbol::Function("__htab_map_lookup_elem")));
                self.replace(
                    at,
                    vec![
                        call_kernel(),
                        jump_imm(code::JMP, code::JEQ, 0, 0, 1),
                        alu_imm(code::ALU64, code::ADD, 0, element + key),
                    ],
                );
            }
            _ => {
                self.symbols.push((at, 0, Symbol::Helper(insn.imm)));
                self.replace(at, vec![Insn { imm: -1, ..*insn }]);
            }
        }
    }

    /// A loop in the place of `bpf_loop`; three registers keep its state.
    fn plan_loop(&mut self, at: u32, callback: usize) {
        let (most, round, context) = (6, 7, 8);
        let sub = self.checker.sub_of(at);
        let base = -self.loop_stack[sub];
        let saved = |n: i32| (base + 8 * n) as i16;
        let insns = vec![
            jump_imm(code::JMP, code::JLE, 1, MAX_LOOPS, 2),
            mov32_imm(0, -E2BIG),
            goto(16),
            store(code::DW, FP, most, saved(0)),
            store(code::DW, FP, round, saved(1)),
            store(code::DW, FP, context, saved(2)),
            mov(most, 1),
            mov32_imm(round, 0),
            mov(context, 3),
            jump(code::JGE, round, most, 5),
            mov(1, round),
            mov(2, context),
            call_subprogram(),
            alu_imm(code::ALU64, code::ADD, round, 1),
            jump_imm(code::JMP, code::JEQ, 0, 0, -6),
            mov(0, round),
            load(code::DW, most, FP, saved(0)),
            load(code::DW, round, FP, saved(1)),
            load(code::DW, context, FP, saved(2)),
        ];
        let target = self.checker.subs[callback].start;
        self.edits.replace(
            at,
            Patch {
                insns,
                outer: vec![Outer { at: 12, target }],
                skipped_by_jumps: 0,
            },
        );
    }

    fn plan_kfunc(&mut self, at: u32, insn: &Insn) {
        let name = self
            .checker
            .kfunc_of(insn)
            .map(|k| self.checker.kfuncs[k].name);
        // Casts that only the verifier sees.
        if let Some("bpf_cast_to_kern_ctx" | "bpf_rdonly_cast") = name {
            self.replace(at, vec![mov(0, 1)]);
        }
    }

    /// Whether a context of that type is another structure in the kernel.
    pub fn is_context(&self, at: u32) -> bool {
        self.checker.aux[at as usize].ptr_type.base() == Base::Ctx
    }
}
