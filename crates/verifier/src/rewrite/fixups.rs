//! What Linux makes of single instructions once a program is accepted (`do_misc_fixups`,
//! `optimize_bpf_loop` and the loads that may fault, in `kernel/bpf/verifier.c` of 6.18 on
//! x86-64): divisions that cannot trap, helpers written out, loops with a budget.

use bpfkit_isa::{Insn, code};
use bpfkit_spec::{AttachType, MapType, TypeFlags};

use super::code::*;
use super::edit::{Outer, Patch};
use super::{Rewriter, Symbol};
use crate::args::func;
use crate::checker::{is_helper_call, is_kfunc_call, is_may_goto};
use crate::reg::RegType;

/// Most rounds of `bpf_loop`.
const MAX_LOOPS: i32 = 8 * 1024 * 1024;
const ENOENT: i32 = 2;
const E2BIG: i32 = 7;
const EINVAL: i32 = 22;
const EOPNOTSUPP: i32 = 95;
/// How memory is asked for where a program must not sleep, and where it may.
const GFP_ATOMIC: i32 = 0x820;
const GFP_KERNEL: i32 = 0xcc0;

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
    pub const GET_BRANCH_SNAPSHOT: i32 = 176;
    pub const GET_FUNC_ARG: i32 = 183;
    pub const GET_FUNC_RET: i32 = 184;
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

/// Argument R2 of the traced function, stored at R3; their number stands before the context.
fn function_argument() -> Vec<Insn> {
    vec![
        load(code::DW, 0, 1, -8),
        Insn {
            code: code::JMP32 | code::JGE | code::X,
            ..jump(code::JGE, 2, 0, 6)
        },
        alu_imm(code::ALU64, code::LSH, 2, 3),
        alu(code::ALU64, code::ADD, 2, 1),
        load(code::DW, 0, 2, 0),
        store(code::DW, 3, 0, 0),
        mov_imm(0, 0),
        goto(1),
        mov_imm(0, -EINVAL),
    ]
}

/// What the traced function returned, behind its arguments, stored at R2.
fn function_result(attach: AttachType) -> Vec<Insn> {
    if !matches!(attach, AttachType::TraceFexit | AttachType::ModifyReturn) {
        return vec![mov_imm(0, -EOPNOTSUPP)];
    }
    vec![
        load(code::DW, 0, 1, -8),
        alu_imm(code::ALU64, code::LSH, 0, 3),
        alu(code::ALU64, code::ADD, 0, 1),
        load(code::DW, 3, 0, 0),
        store(code::DW, 2, 3, 0),
        mov_imm(0, 0),
    ]
}

/// What reads a packet at an offset: the bytes that an opcode says.
const fn packet_loader(opcode: u8) -> &'static str {
    match opcode & 0x18 {
        code::B => "bpf_skb_load_helper_8_no_cache",
        code::H => "bpf_skb_load_helper_16_no_cache",
        _ => "bpf_skb_load_helper_32_no_cache",
    }
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
                _ if self.note(at).on_arena && insn.class() == code::ALU64 => {
                    let code = insn.code & !code::ALU64 | code::ALU;
                    self.replace(at, vec![Insn { code, ..insn }]);
                }
                _ => {}
            },
            code::LD if matches!(insn.code & MODES, code::ABS | code::IND) => {
                self.plan_packet_load(at, &insn);
            }
            code::LD => self.plan_arena_address(at, &insn),
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

    /// A load from the packet that ends the program where there is nothing.
    fn plan_packet_load(&mut self, at: u32, insn: &Insn) {
        let mut new = match insn.code & MODES {
            code::ABS => vec![mov_imm(2, insn.imm)],
            _ if insn.imm == 0 => vec![mov(2, insn.src)],
            _ => vec![
                mov(2, insn.src),
                alu_imm(code::ALU64, code::ADD, 2, insn.imm),
            ],
        };
        new.push(mov(1, 6));
        let loader = Symbol::Function(packet_loader(insn.code));
        self.symbols.push((at, new.len() as i32, loader));
        new.extend([
            call_kernel(),
            jump_imm(code::JMP, code::JSGE, 0, 0, 2),
            alu(code::ALU, code::XOR, 0, 0),
            exit(),
        ]);
        self.replace(at, new);
    }

    /// An address in an arena is one of user space: known before only where the program chose it.
    fn plan_arena_address(&mut self, at: u32, insn: &Insn) {
        let aux = &self.checker.aux[at as usize];
        let Some(map) = aux.map.checked_sub(1) else {
            return;
        };
        let arena = self.checker.maps.get(map as usize);
        let direct = matches!(
            insn.src,
            code::PSEUDO_MAP_VALUE | code::PSEUDO_MAP_IDX_VALUE
        );
        if direct && arena.is_some_and(|m| m.map_type == MapType::Arena) {
            let [low, high] = self.address(at, 0, insn.dst, Symbol::Arena(map));
            self.replace(at, vec![low]);
            self.replace(at + 1, vec![high]);
        }
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
            helper::GET_BRANCH_SNAPSHOT => self.plan_branch_snapshot(at),
            helper::GET_FUNC_ARG if self.is_traced() => self.replace(at, function_argument()),
            helper::GET_FUNC_RET if self.is_traced() => {
                let new = function_result(self.checker.attach.caller.attach_type);
                self.replace(at, new);
            }
            helper::GET_FUNC_ARG_CNT if self.is_traced() => {
                self.replace(at, vec![load(code::DW, 0, 1, -8)]);
            }
            func::GET_FUNC_IP if self.is_traced() => {
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
            func::TIMER_SET_CALLBACK => {
                let program = self.address(at, 0, 3, Symbol::Program);
                self.plan_call(at, &program, insn);
            }
            func::PER_CPU_PTR | func::THIS_CPU_PTR if self.note(at).percpu_object => {
                // Of such objects the program holds the address of the pointer.
                self.plan_call(at, &[load(code::DW, 1, 1, 0)], insn);
            }
            id if func::STORAGE_GET.contains(&id) => {
                let may_sleep = self.checker.attach.caller.sleepable && !self.note(at).atomic;
                let flags = if may_sleep { GFP_KERNEL } else { GFP_ATOMIC };
                self.plan_call(at, &[mov_imm(5, flags)], insn);
            }
            _ => self.plan_call(at, &[], insn),
        }
    }

    /// A call of a helper with something before it.
    pub fn plan_call(&mut self, at: u32, before: &[Insn], insn: &Insn) {
        let position = before.len() as i32;
        self.symbols.push((at, position, Symbol::Helper(insn.imm)));
        let mut new = before.to_vec();
        new.push(Insn { imm: -1, ..*insn });
        self.replace(at, new);
    }

    /// The last branches of the processor: `size / 24` of them, 24 bytes each.
    fn plan_branch_snapshot(&mut self, at: u32) {
        self.symbols
            .push((at, 4, Symbol::Function("perf_snapshot_branch_stack")));
        let insns = vec![
            jump_imm(code::JMP, code::JNE, 3, 0, 7),
            // A third is a product with 2^33 / 3, its upper bits.
            mov32_imm(0, 0xaaaa_aaab_u32.cast_signed()),
            alu(code::ALU64, code::MUL, 2, 0),
            alu_imm(code::ALU64, code::RSH, 2, 36),
            call_kernel(),
            jump_imm(code::JMP, code::JEQ, 0, 0, 4),
            alu_imm(code::ALU, code::MUL, 0, 24),
            goto(3),
            mov_imm(0, -EINVAL),
            goto(1),
            mov_imm(0, -ENOENT),
        ];
        self.replace(at, insns);
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
}
