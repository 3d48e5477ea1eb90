//! The shape of a program: subprograms, jumps, what is reached, and which registers may
//! still be read.

use bpfkit_isa::code;
use bpfkit_spec::Feature;
use bpfkit_spec::helper::{Effects, RetKind};

use crate::checker::{
    Checker, Sub, is_call, is_func_ref, is_helper_call, is_kfunc_call, is_may_goto,
};
use crate::facts::Gatherer;
use crate::fail::{Errno, Res, fail, say};
use crate::flow::{Flow, jump_distance};

/// Most subprograms.
const MAX_SUBPROGS: usize = 256;
/// Number of `bpf_tail_call`.
pub(crate) const TAIL_CALL: i32 = 12;
/// Number of `bpf_get_smp_processor_id`.
const GET_SMP_PROCESSOR_ID: i32 = 8;
/// Number of `bpf_get_current_task`.
const GET_CURRENT_TASK: i32 = 35;
/// Number of `bpf_get_current_task_btf`.
const GET_CURRENT_TASK_BTF: i32 = 158;

/// How far the depth-first search got with an instruction.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Progress {
    New,
    Discovered,
    /// The edge to the next instruction was followed.
    Fell,
    /// The edge of the jump was followed.
    Branched,
    Explored,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Edge {
    Fall,
    Branch,
}

/// The depth-first search.
struct Search {
    progress: Vec<Progress>,
    stack: Vec<u32>,
}

impl Checker<'_> {
    /// Finds the subprograms: all that is called or whose address is taken.
    pub fn find_subprograms(&mut self) -> Res {
        self.add_subprogram(0)?;
        for at in 0..self.insns.len() {
            let insn = self.insns[at];
            let sub = is_call(&insn) || is_func_ref(&insn);
            if !sub && !is_kfunc_call(&insn) {
                continue;
            }
            if !self.privileged() {
                fail!(
                    self,
                    Perm,
                    "loading/calling other bpf or kernel functions are allowed for CAP_BPF and CAP_SYS_ADMIN\n"
                );
            }
            if sub {
                self.add_subprogram(at as i64 + insn.imm as i64 + 1)?;
            } else {
                self.add_kfunc(insn.imm, insn.off)?;
            }
        }
        self.find_exception_callback()?;
        self.name_subprograms();
        if self.log.all_paths() {
            for at in 0..self.subs.len() {
                let start = self.subs[at].start;
                say!(self, "func#{at} @{start}\n");
            }
        }
        Ok(())
    }

    fn add_subprogram(&mut self, start: i64) -> Res {
        if start < 0 || start >= self.insns.len() as i64 {
            fail!(self, Inval, "call to invalid destination\n");
        }
        let start = start as u32;
        let Err(at) = self.subs.binary_search_by_key(&start, |s| s.start) else {
            return Ok(());
        };
        if self.subs.len() >= MAX_SUBPROGS {
            fail!(self, TooBig, "too many subprograms\n");
        }
        self.subs.insert(
            at,
            Sub {
                start,
                ..Sub::default()
            },
        );
        Ok(())
    }

    fn find_exception_callback(&mut self) -> Res {
        let main = self.program.subprograms.first().map_or(0, |s| s.type_id);
        let tags = self.local.map_or(0, |btf| {
            btf.decl_tags(main)
                .filter(|t| t.component().is_none())
                .filter(|t| t.name().starts_with("exception_callback:"))
                .count()
        });
        if tags > 1 {
            fail!(
                self,
                Exist,
                "multiple exception callback tags for main subprog\n"
            );
        }
        let Some(index) = self.program.exception_callback else {
            return Ok(());
        };
        let Some(sub) = self.program.subprograms.get(index as usize) else {
            return Ok(());
        };
        if !sub.global {
            fail!(
                self,
                Inval,
                "exception callback '{}' must have global linkage\n",
                sub.name
            );
        }
        self.add_subprogram(sub.start as i64)?;
        self.exception_callback = self.sub_at(sub.start as i64);
        Ok(())
    }

    fn name_subprograms(&mut self) {
        for sub in &self.program.subprograms {
            if let Ok(at) = self.subs.binary_search_by_key(&sub.start, |s| s.start) {
                let known = &mut self.subs[at];
                known.name.clone_from(&sub.name);
                known.type_id = sub.type_id;
                known.global = sub.global
                    && self.local.is_some()
                    && sub.type_id != 0
                    && self.env.kernel_version >= Feature::GlobalFunctions.since();
            }
        }
        if let Some(at) = self.exception_callback {
            self.subs[at].is_callback = true;
            self.subs[at].is_async_callback = true;
            self.subs[at].is_exception_callback = true;
        }
    }

    /// Checks that jumps stay in their subprogram, and that no subprogram runs into the next.
    pub fn check_subprograms(&mut self) -> Res {
        let mut cur = 0;
        for at in 0..self.insns.len() {
            let insn = self.insns[at];
            if is_helper_call(&insn) && insn.imm == TAIL_CALL {
                self.subs[cur].has_tail_call = true;
                self.subs[cur].tail_call_reachable = true;
            }
            if insn.class() == code::LD && matches!(insn.code & 0xe0, code::ABS | code::IND) {
                self.subs[cur].has_ld_abs = true;
            }
            let (start, end) = (self.subs[cur].start as i64, self.sub_end(cur) as i64);
            let jumps = matches!(insn.class(), code::JMP | code::JMP32)
                && !matches!(insn.code & 0xf0, code::EXIT | code::CALL);
            if jumps {
                let to = at as i64 + jump_distance(&insn) as i64 + 1;
                if to < start || to >= end {
                    fail!(self, Inval, "jump out of range from insn {at} to {to}\n");
                }
            }
            if at as i64 == end - 1 {
                const EXIT: u8 = code::JMP | code::EXIT;
                const GOTO: u8 = code::JMP | code::JA;
                const GOTOL: u8 = code::JMP32 | code::JA;
                if !matches!(insn.code, EXIT | GOTO | GOTOL) {
                    fail!(self, Inval, "last insn is not an exit or jmp\n");
                }
                cur += 1;
            }
        }
        let starts = self
            .subs
            .iter()
            .map(|s| s.start)
            .chain([self.insns.len() as u32])
            .collect();
        self.flow = Flow::new(&self.insns, starts);
        Ok(())
    }

    /// Checks that subprograms with `bpf_tail_call` or packet loads return numbers.
    pub fn check_abnormal_returns(&mut self) -> Res {
        let has_info = self.local.is_some() && self.subs[0].type_id != 0;
        for at in 1..self.subs.len() {
            let sub = &self.subs[at];
            let (ld_abs, tail_call) = (sub.has_ld_abs, sub.has_tail_call);
            if !ld_abs && !tail_call {
                continue;
            }
            if !has_info {
                let what = if ld_abs { "LD_ABS" } else { "tail_call" };
                fail!(
                    self,
                    Inval,
                    "{what} is not allowed in subprogs without BTF\n"
                );
            }
            if self.returns_number(at) {
                continue;
            }
            let what = if ld_abs { "LD_ABS" } else { "tail_call" };
            fail!(
                self,
                Inval,
                "{what} is only allowed in functions that return 'int'.\n"
            );
        }
        Ok(())
    }

    /// Walks the control-flow graph: all instructions must be reached, and points where
    /// states are compared are marked.
    pub fn check_cfg(&mut self) -> Res {
        let len = self.insns.len();
        let mut search = Search {
            progress: vec![Progress::New; len],
            stack: Vec::new(),
        };
        let callback = self.exception_callback.map(|at| self.subs[at].start);
        for root in [Some(0), callback].into_iter().flatten() {
            if search.progress[root as usize] != Progress::New {
                continue;
            }
            search.progress[root as usize] = Progress::Discovered;
            search.stack.push(root);
            while let Some(&at) = search.stack.last() {
                if !self.visit(&mut search, at)? {
                    search.progress[at as usize] = Progress::Explored;
                    search.stack.pop();
                }
            }
        }
        let mut at = 0;
        while at < len {
            if search.progress[at] != Progress::Explored {
                fail!(self, Inval, "unreachable insn {at}\n");
            }
            if self.insns[at].is_ld_imm64() {
                if search
                    .progress
                    .get(at + 1)
                    .is_some_and(|p| *p != Progress::New)
                {
                    fail!(self, Inval, "jump into the middle of ldimm64 insn {at}\n");
                }
                at += 1;
            }
            at += 1;
        }
        Ok(())
    }

    /// Follows an edge; true if the search goes on at its end.
    fn follow(&mut self, search: &mut Search, from: u32, to: i64, edge: Edge) -> Res<bool> {
        let done = match edge {
            Edge::Fall => Progress::Fell,
            Edge::Branch => Progress::Branched,
        };
        let progress = search.progress[from as usize];
        if progress >= done {
            return Ok(false);
        }
        if to < 0 || to >= self.insns.len() as i64 {
            self.print_line(from, &format!("{from}: "));
            fail!(self, Inval, "jump out of range from insn {from} to {to}\n");
        }
        let at = to as usize;
        if edge == Edge::Branch {
            self.aux[at].prune_point = true;
            self.aux[at].jmp_point = true;
        }
        match search.progress[at] {
            Progress::New => {
                search.progress[from as usize] = done;
                search.progress[at] = Progress::Discovered;
                search.stack.push(to as u32);
                Ok(true)
            }
            Progress::Explored => {
                search.progress[from as usize] = done;
                Ok(false)
            }
            _ if self.privileged() => Ok(false),
            _ => {
                self.print_line(from, &format!("{from}: "));
                self.print_line(at as u32, &format!("{at}: "));
                fail!(self, Inval, "back-edge from insn {from} to {to}\n");
            }
        }
    }

    fn visit_call(&mut self, search: &mut Search, at: u32, callee: bool) -> Res<bool> {
        let insn = self.insns[at as usize];
        let next = at + if insn.is_ld_imm64() { 2 } else { 1 };
        if self.follow(search, at, next as i64, Edge::Fall)? {
            return Ok(true);
        }
        self.aux[next as usize].prune_point = true;
        self.aux[next as usize].jmp_point = true;
        if !callee {
            return Ok(false);
        }
        self.aux[at as usize].prune_point = true;
        let to = at as i64 + insn.imm as i64 + 1;
        let (caller, callee) = (self.sub_of(at), self.sub_at(to).ok_or(Errno::Fault)?);
        let (sleeps, changes) = (
            self.subs[callee].might_sleep,
            self.subs[callee].changes_pkt_data,
        );
        self.subs[caller].might_sleep |= sleeps;
        self.subs[caller].changes_pkt_data |= changes;
        self.follow(search, at, to, Edge::Branch)
    }

    fn visit(&mut self, search: &mut Search, at: u32) -> Res<bool> {
        let insn = self.insns[at as usize];
        if is_func_ref(&insn) {
            return self.visit_call(search, at, true);
        }
        if !matches!(insn.class(), code::JMP | code::JMP32) {
            let next = at as i64 + if insn.is_ld_imm64() { 2 } else { 1 };
            return self.follow(search, at, next, Edge::Fall);
        }
        match insn.code & 0xf0 {
            code::EXIT => Ok(false),
            code::CALL => {
                self.mark_call(at);
                self.visit_call(search, at, insn.src == code::PSEUDO_CALL)
            }
            code::JA => {
                if insn.code & code::X != 0 {
                    return Err(Errno::Inval);
                }
                let to = at as i64 + jump_distance(&insn) as i64 + 1;
                if self.follow(search, at, to, Edge::Fall)? {
                    return Ok(true);
                }
                self.aux[to as usize].prune_point = true;
                self.aux[to as usize].jmp_point = true;
                Ok(false)
            }
            _ => {
                self.aux[at as usize].prune_point = true;
                if is_may_goto(&insn) {
                    self.aux[at as usize].force_checkpoint = true;
                }
                if self.follow(search, at, at as i64 + 1, Edge::Fall)? {
                    return Ok(true);
                }
                self.follow(search, at, at as i64 + insn.off as i64 + 1, Edge::Branch)
            }
        }
    }

    /// Marks a call by what it calls.
    fn mark_call(&mut self, at: u32) {
        let insn = self.insns[at as usize];
        let sub = self.sub_of(at);
        let (mut sync, mut later, mut sleeps, mut changes) = (false, false, false, false);
        let mut iterates = false;
        if is_helper_call(&insn) {
            if let Some((helper, proto)) = self.helper_proto(insn.imm) {
                sync = helper.effects.has(Effects::SYNC_CALLBACK);
                later = helper.effects.has(Effects::ASYNC_CALLBACK);
                changes = helper.effects.has(Effects::CHANGES_PACKET);
                sleeps = proto.is_some_and(|p| p.might_sleep);
            }
        } else if let Some(kfunc) = self.kfunc_of(&insn).filter(|_| is_kfunc_call(&insn)) {
            let kfunc = &self.kfuncs[kfunc];
            sync = kfunc.calls_callback_now();
            later = kfunc.calls_callback_later();
            if kfunc.allowed {
                iterates = kfunc.is_iter_next();
                sleeps = kfunc.sleepable();
                changes = kfunc.changes_packet();
            }
        }
        let aux = &mut self.aux[at as usize];
        aux.prune_point |= sync || later || iterates;
        aux.calls_callback |= sync;
        aux.jmp_point |= sync;
        aux.force_checkpoint |= sync || iterates;
        self.subs[sub].might_sleep |= sleeps;
        self.subs[sub].changes_pkt_data |= changes;
    }

    /// Numbers the loops.
    pub fn find_loops(&mut self) {
        let (components, _) = self.flow.components();
        for (aux, scc) in self.aux.iter_mut().zip(components) {
            aux.scc = scc;
        }
    }

    /// Number of parameters of a called function and whether it returns nothing.
    fn call_summary(&mut self, at: u32) -> Option<(u32, bool, bool)> {
        let insn = self.insns[at as usize];
        if is_helper_call(&insn) {
            let (_, proto) = self.helper_proto(insn.imm)?;
            let proto = proto?;
            let inlined = matches!(
                insn.imm,
                GET_SMP_PROCESSOR_ID | GET_CURRENT_TASK | GET_CURRENT_TASK_BTF
            );
            let void = proto.ret.kind == RetKind::Void;
            return Some((proto.arity() as u32, void, proto.allow_fastcall && inlined));
        }
        if is_kfunc_call(&insn) {
            let kfunc = &self.kfuncs[self.kfunc_of(&insn)?];
            if !kfunc.allowed {
                return None;
            }
            return Some((
                kfunc.proto.vlen(),
                kfunc.proto.type_id() == 0,
                kfunc.fastcall(),
            ));
        }
        None
    }

    /// For each instruction, the registers that may be read there or later.
    pub fn find_live_registers(&mut self) {
        let len = self.insns.len();
        let mut effects = Vec::with_capacity(len);
        for at in 0..len {
            effects.push(self.register_use(at as u32));
        }
        let order = self.flow.postorder();
        let mut live_in = vec![0u16; len];
        let mut changed = true;
        while changed {
            changed = false;
            for &at in &order {
                let out = self
                    .flow
                    .successors(at)
                    .iter()
                    .fold(0, |all, &next| all | live_in[next as usize]);
                let (uses, defines) = effects[at as usize];
                let now = (out & !defines) | uses;
                if now != live_in[at as usize] {
                    live_in[at as usize] = now;
                    changed = true;
                }
            }
        }
        for (aux, live) in self.aux.iter_mut().zip(live_in) {
            aux.live = live;
        }
        if self.env.facts || self.env.rewrite {
            let reads = effects.iter().map(|(uses, _)| *uses).collect();
            self.gatherer = Some(Box::new(Gatherer::new(reads, !self.tracks_precision())));
        }
    }

    /// Registers that an instruction reads and writes.
    fn register_use(&mut self, at: u32) -> (u16, u16) {
        const R0: u16 = 1;
        const CALLER_SAVED: u16 = 0b11_1111;
        let insn = self.insns[at as usize];
        let (dst, src) = (1u16 << insn.dst, 1u16 << insn.src);
        let from_reg = insn.code & code::X != 0;
        let mode = insn.code & 0xe0;
        match insn.class() {
            code::LD => match mode {
                code::IMM if insn.is_ld_imm64() => (0, dst),
                // The kernel takes all registers as read.
                code::ABS | code::IND => (0x7ff, 0),
                _ => (0, 0),
            },
            code::LDX => match mode {
                code::MEM | code::MEMSX => (src, dst),
                _ => (0, 0),
            },
            code::ST => match mode {
                code::MEM => (dst, 0),
                _ => (0, 0),
            },
            code::STX => match mode {
                code::MEM => (dst | src, 0),
                code::ATOMIC => match insn.imm {
                    code::CMPXCHG => (R0 | dst | src, R0),
                    code::LOAD_ACQ => (src, dst),
                    code::STORE_REL => (dst | src, 0),
                    imm if imm & code::FETCH != 0 => (dst | src, src),
                    _ => (dst | src, 0),
                },
                _ => (0, 0),
            },
            code::ALU | code::ALU64 => match insn.code & 0xf0 {
                code::END | code::NEG => (dst, dst),
                code::MOV if from_reg => (src, dst),
                code::MOV => (0, dst),
                _ if from_reg => (dst | src, dst),
                _ => (dst, dst),
            },
            _ => match insn.code & 0xf0 {
                code::JA | code::JCOND => (0, 0),
                code::EXIT => (R0, 0),
                code::CALL => {
                    let args = match self.call_summary(at) {
                        Some((params, _, _)) => ((1u16 << (params + 1)) - 1) & !R0,
                        None => CALLER_SAVED & !R0,
                    };
                    (args, CALLER_SAVED)
                }
                _ if from_reg => (dst | src, 0),
                _ => (dst, 0),
            },
        }
    }

    /// Finds spills and fills around calls of functions that may spare their registers.
    pub fn find_fastcalls(&mut self) {
        const SPILL: u8 = code::STX | code::MEM | code::DW;
        const FILL: u8 = code::LDX | code::MEM | code::DW;
        for sub in 0..self.subs.len() {
            let (start, end) = (self.subs[sub].start, self.sub_end(sub));
            let lowest = self.insns[start as usize..end as usize]
                .iter()
                .filter(|i| i.code == SPILL && i.dst == 10)
                .map(|i| i.off)
                .fold(0, i16::min);
            for at in start..end {
                if self.insns[at as usize].code != code::JMP | code::CALL {
                    continue;
                }
                let Some((params, void, fast)) = self.call_summary(at) else {
                    continue;
                };
                let clobbered = ((1u16 << (params + 1)) - 1) & !u16::from(void);
                let mut expected = !clobbered & 0b11_1111;
                let mut off = lowest;
                let mut pairs = 0;
                for distance in 1..=6 {
                    let (Some(before), Some(after)) =
                        (at.checked_sub(distance), at.checked_add(distance))
                    else {
                        break;
                    };
                    let Some(fill) = self.insns.get(after as usize) else {
                        break;
                    };
                    let spill = &self.insns[before as usize];
                    if spill.code != SPILL
                        || fill.code != FILL
                        || spill.dst != 10
                        || fill.src != 10
                        || spill.src != fill.dst
                        || expected & (1 << spill.src) == 0
                        || spill.off != off
                        || fill.off != off
                    {
                        break;
                    }
                    expected &= !(1 << spill.src);
                    self.aux[before as usize].fastcall = true;
                    self.aux[after as usize].fastcall = true;
                    pairs += 1;
                    off = off.wrapping_add(8);
                }
                if pairs == 0 {
                    continue;
                }
                if fast {
                    self.aux[at as usize].fastcall_spills = pairs;
                } else {
                    self.subs[sub].keep_fastcall_stack = true;
                }
                let known = &mut self.subs[sub].fastcall_stack_off;
                *known = (*known).min(off);
            }
        }
    }
}
