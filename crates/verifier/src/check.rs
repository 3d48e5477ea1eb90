//! The order of verification, and the walk over all paths.

use bpfkit_btf::Kind;
use bpfkit_isa::code;
use bpfkit_object::{MapDef, Program};
use bpfkit_spec::ret_range::{self, ReturnRule};
use bpfkit_spec::{AttachType, ProgType};

use crate::checker::{Aux, Checker, MAX_PROCESSED, Next};
use crate::env::{Environment, Rejection, Stats, Verdict, Verified};
use crate::fail::{Errno, Res, fail, say};
use crate::helper::call_ok;
use crate::log::{Log, STATS};
use crate::maps::MapInfo;
use crate::precision::origins;
use crate::prune::IdMap;
use crate::reg::RegType;
use crate::state::{Frame, NO_CALLSITE, State};
use crate::store::Store;
use crate::target::AttachInfo;
use crate::walk::peel;

/// Licences under which programs may call functions reserved to GPL programs.
const GPL: [&str; 6] = [
    "GPL",
    "GPL v2",
    "GPL and additional rights",
    "Dual BSD/GPL",
    "Dual MIT/GPL",
    "Dual MPL/GPL",
];
/// Most instructions of a program.
const MAX_INSNS: usize = 1_000_000;
/// Most instructions of a program that an unprivileged process loads.
const MAX_INSNS_UNPRIVILEGED: usize = 4096;

/// Judges a linked program; `maps` is the list that its instructions refer to.
pub fn verify(program: &Program, maps: &[MapDef], env: &Environment<'_>) -> Verdict {
    let mut checker = Checker::new(program, maps, env);
    let result = checker.run();
    let stats = checker.stats();
    checker.print_stats(&stats);
    let insn = checker.insn;
    let result = match result {
        Ok(()) => {
            let rewritten = checker.rewritten();
            Ok(Verified::new(program.clone(), checker.learned(), rewritten))
        }
        Err(errno) => Err(Rejection {
            message: checker.message.clone(),
            insn,
            errno,
            crowd: match errno {
                Errno::TooBig | Errno::NoMem => checker.crowd(),
                _ => Default::default(),
            },
        }),
    };
    Verdict {
        result,
        stats,
        log: checker.log.into_text(),
    }
}

impl<'a> Checker<'a> {
    fn new(program: &'a Program, maps: &'a [MapDef], env: &'a Environment<'a>) -> Checker<'a> {
        let local = program.btf.as_deref();
        Checker {
            env,
            program,
            local,
            attach: AttachInfo::new(program, env),
            insns: program.insns.clone(),
            aux: vec![Aux::NEW; program.insns.len()],
            subs: Vec::new(),
            exception_callback: None,
            flow: Default::default(),
            maps: MapInfo::list(maps, local, env.kernel_btf, env.kernel_version),
            kfuncs: Vec::new(),
            kfunc_index: Default::default(),
            helpers: Vec::new(),
            cur: State::new(Frame::new(NO_CALLSITE, 0, 0)),
            insn: 0,
            prev: -1,
            step_open: false,
            print_state: false,
            pending: Vec::new(),
            store: Store::new(program.insns.len().max(1)),
            live: Default::default(),
            id_gen: 0,
            bt: Default::default(),
            traced: Default::default(),
            origins: program.insns.iter().map(origins).collect(),
            idmap: IdMap::new(),
            log: Log::new(env.log_level, env.log_size),
            message: String::new(),
            printer: Default::default(),
            processed: 0,
            prev_processed: 0,
            jumps: 0,
            prev_jumps: 0,
            max_states_per_insn: 0,
            gpl: GPL.contains(&program.license.as_str()),
            arena: None,
            tail_maps: Default::default(),
            threw: false,
            masks_unknown: false,
            writable: Default::default(),
            records: Default::default(),
            kernel_objects: false,
            unsound: false,
            gatherer: None,
        }
    }

    fn run(&mut self) -> Res {
        let result = self.check_all();
        if result.is_err() {
            self.message = self.log.last_line().to_string();
        }
        result
    }

    fn check_all(&mut self) -> Res {
        let most = match self.privileged() {
            true => MAX_INSNS,
            false => MAX_INSNS_UNPRIVILEGED,
        };
        if self.insns.is_empty() || self.insns.len() > most {
            return Err(Errno::TooBig);
        }
        self.check_version()?;
        self.find_subprograms()?;
        self.check_subprograms()?;
        self.check_abnormal_returns()?;
        self.resolve()?;
        self.check_cfg()?;
        self.check_attach()?;
        self.find_loops();
        self.find_live_registers();
        self.print_live_registers();
        self.find_fastcalls();
        self.check_function(0)?;
        self.check_globals()?;
        self.drop_fastcall_spills();
        self.check_stack_depth()?;
        self.add_loop_stack();
        self.check_leftovers()
    }

    /// Calls of missing kernel functions that a path reaches; without privileges, tail calls
    /// into different maps, whose bounds cannot be masked.
    fn check_leftovers(&mut self) -> Res {
        if !self.privileged() && self.tail_maps.values().any(Option::is_none) {
            fail!(self, Inval, "tail_call abusing map_ptr\n");
        }
        for at in 0..self.insns.len() {
            let insn = self.insns[at];
            let missing = crate::checker::is_kfunc_call(&insn) && insn.imm == 0;
            if missing && self.aux[at].seen {
                fail!(
                    self,
                    Inval,
                    "invalid kernel function call not eliminated in verifier pass\n"
                );
            }
        }
        Ok(())
    }

    fn check_globals(&mut self) -> Res {
        if self.local.is_none() {
            return Ok(());
        }
        if let Some(sub) = self.exception_callback {
            self.subs[sub].called = true;
        }
        loop {
            let mut any = false;
            for sub in 1..self.subs.len() {
                let known = &self.subs[sub];
                if !known.global || !known.called || known.verified {
                    continue;
                }
                self.check_function(sub)?;
                if self.log.verbose() {
                    let name = self.subs[sub].name.clone();
                    say!(
                        self,
                        "Func#{sub} ('{name}') is safe for any args that match its prototype\n"
                    );
                }
                self.subs[sub].verified = true;
                any = true;
            }
            if !any {
                return Ok(());
            }
        }
    }

    /// Walks a function that is verified on its own.
    fn check_function(&mut self, sub: usize) -> Res {
        let start = self.subs[sub].start;
        self.insn = start;
        self.prev = -1;
        let frame = Frame::new(NO_CALLSITE, 0, sub as u32);
        self.cur = State::new(frame);
        self.printer.touch_all();
        self.traced.clear();
        self.cur.in_sleepable = self.attach.caller.sleepable;
        self.cur.first_insn = start;
        self.live.forget_chain();
        if sub != 0 || self.program.decl.prog_type == ProgType::Ext {
            if self.log.verbose() {
                let name = self.subs[sub].name.clone();
                say!(self, "Validating {name}() func#{sub}...\n");
            }
            self.set_entry_args(sub)?;
        } else {
            if self.local.is_some() && self.subs[0].type_id != 0 {
                let fits = self
                    .sub_args(0)
                    .is_ok_and(|a| a.len() == 1 && a[0].rule == crate::global::ArgRule::Ctx);
                self.subs[0].unreliable = !fits;
            }
            self.reg_mut(1).set_pointer(RegType::CTX);
        }
        if sub == 0 && self.program.decl.prog_type == ProgType::StructOps {
            for at in 0..self.attach.args.len() {
                if self.attach.args[at].refcounted {
                    let id = self.acquire();
                    self.attach.args[at].ref_obj_id = id;
                }
            }
        }
        self.walk_paths()?;
        self.log.rewind(0);
        self.pending.clear();
        self.store.clear();
        Ok(())
    }

    fn walk_paths(&mut self) -> Res {
        let mut prev = -1;
        loop {
            self.step_open = false;
            self.prev = prev;
            if self.insn as usize >= self.insns.len() {
                let (at, len) = (self.insn, self.insns.len());
                fail!(self, Fault, "invalid insn idx {at} insn_cnt {len}\n");
            }
            self.processed += 1;
            if self.processed > MAX_PROCESSED {
                let n = self.processed;
                fail!(
                    self,
                    TooBig,
                    "BPF program is too large. Processed {n} insn\n"
                );
            }
            self.cur.last_insn = prev;
            self.cur.insn = self.insn;
            let at = self.insn as usize;
            let mut next = Next::Continue;
            if self.aux[at].prune_point && self.visited()? {
                self.print_safe();
                next = Next::EndOfPath;
            } else {
                if self.aux[at].jmp_point {
                    self.push_step(0, 0);
                }
                self.aux[at].seen = true;
                self.print_step();
                prev = at as i32;
                self.live.begin(&self.flow, &self.cur, at as u32);
                if let Some(gatherer) = &mut self.gatherer {
                    gatherer.before(at as u32, self.cur.top());
                }
                let pending = self.pending.len();
                next = match self.walk_insn()? {
                    Next::Continue => next,
                    end => end,
                };
                if let Some(gatherer) = &mut self.gatherer {
                    let both = self.pending.len() > pending;
                    gatherer.went(at as u32, &self.insns[at], self.insn, both);
                }
                self.live.commit();
            }
            if next == Next::Continue {
                continue;
            }
            self.end_path()?;
            self.update_live_slots();
            let Some(pending) = self.pending.pop() else {
                return Ok(());
            };
            self.cur = pending.state;
            self.traced.clear();
            self.insn = pending.insn;
            prev = pending.prev;
            self.log.rewind(pending.log_len);
            self.live.forget_chain();
            self.print_state = true;
            self.printer.touch_all();
        }
    }

    fn walk_insn(&mut self) -> Res<Next> {
        let insn = self.insn();
        if self.is_old_kernel() {
            self.check_insn_version()?;
        }
        match insn.class() {
            code::ALU | code::ALU64 => {
                self.alu()?;
                self.insn += 1;
            }
            code::LDX => {
                let sign_extend = insn.code & 0xe0 == code::MEMSX;
                self.load(false, sign_extend, true)?;
                self.insn += 1;
            }
            code::STX => {
                if insn.code & 0xe0 == code::ATOMIC {
                    self.atomic()?;
                } else if insn.code & 0xe0 != code::MEM || insn.imm != 0 {
                    fail!(self, Inval, "BPF_STX uses reserved fields\n");
                } else {
                    self.store(false)?;
                }
                self.insn += 1;
            }
            code::ST => {
                self.store_imm()?;
                self.insn += 1;
            }
            code::LD => match insn.code & 0xe0 {
                code::ABS | code::IND => self.load_packet()?,
                code::IMM => self.load_imm64()?,
                _ => fail!(self, Inval, "invalid BPF_LD mode\n"),
            },
            _ => return self.walk_jump(),
        }
        Ok(Next::Continue)
    }

    fn walk_jump(&mut self) -> Res<Next> {
        let insn = self.insn();
        self.jumps += 1;
        let narrow = insn.class() == code::JMP32;
        match insn.code & 0xf0 {
            code::CALL => {
                if !call_ok(&insn) {
                    fail!(self, Inval, "BPF_CALL uses reserved fields\n");
                }
                if self.cur.active_locks > 0 {
                    let allowed = match insn.src {
                        0 => insn.imm == crate::args::func::SPIN_UNLOCK,
                        code::PSEUDO_KFUNC_CALL => {
                            insn.off == 0
                                && self
                                    .kfunc_of(&insn)
                                    .is_some_and(|k| self.kfuncs[k].under_lock())
                        }
                        _ => true,
                    };
                    if !allowed {
                        fail!(
                            self,
                            Inval,
                            "function calls are not allowed while holding a lock\n"
                        );
                    }
                }
                match insn.src {
                    code::PSEUDO_CALL => self.call_subprogram()?,
                    code::PSEUDO_KFUNC_CALL => return self.call_kfunc(),
                    _ => self.call_helper()?,
                }
            }
            code::JA => {
                let unused = if narrow { insn.off as i32 } else { insn.imm };
                if insn.code & code::X != 0 || insn.src != 0 || insn.dst != 0 || unused != 0 {
                    fail!(self, Inval, "BPF_JA uses reserved fields\n");
                }
                self.insn = (self.insn as i32 + crate::flow::jump_distance(&insn) + 1) as u32;
            }
            code::EXIT => {
                if insn.code & code::X != 0
                    || insn.imm != 0
                    || insn.src != 0
                    || insn.dst != 0
                    || narrow
                {
                    fail!(self, Inval, "BPF_EXIT uses reserved fields\n");
                }
                return self.exit(false);
            }
            _ => self.jump()?,
        }
        Ok(Next::Continue)
    }

    /// Checks what the program returns, or gives to `bpf_throw`.
    pub fn check_return_value(&mut self, n: u8) -> Res {
        let frame = self.cur.frame(0);
        let is_sub = frame.subprog != 0;
        let (in_exception, in_async, async_range) = (
            frame.in_exception_callback,
            frame.in_async_callback,
            frame.callback_ret,
        );
        let prog_type = self.prog_type();
        let extends = self.program.decl.prog_type == ProgType::Ext;
        let rule = if extends {
            ReturnRule::Scalar
        } else {
            ret_range::of(&self.attach.caller, self.attach.returns_void)
        };
        if !is_sub || in_exception {
            if rule == ReturnRule::Nothing {
                return Ok(());
            }
            if prog_type == ProgType::StructOps && !in_exception && self.returns_object(n)? {
                return Ok(());
            }
        }
        self.read_reg(n)?;
        if self.is_pointer_value(n) {
            fail!(self, Acces, "R{n} leaks addr as return value\n");
        }
        let reg = *self.reg(n);
        let (mut range, mut narrow) = (None, false);
        let mut when = "At program exit";
        if in_async {
            when = "At async callback return";
            range = Some((async_range.min, async_range.max));
        } else if is_sub && !in_exception {
            if reg.ty != RegType::SCALAR {
                let ty = reg.ty;
                fail!(
                    self,
                    Inval,
                    "At subprogram exit the register R{n} is not a scalar value ({ty})\n"
                );
            }
            return Ok(());
        } else {
            match rule {
                ReturnRule::Within(min, max) => range = Some((min, max)),
                ReturnRule::Within32(min, max) => {
                    range = Some((min, max));
                    narrow = true;
                }
                _ => {}
            }
            if prog_type == ProgType::StructOps && self.returns_pointer() {
                range = Some((0, 0));
            }
        }
        let Some((min, max)) = range else {
            return Ok(());
        };
        if reg.ty != RegType::SCALAR {
            let ty = reg.ty;
            fail!(
                self,
                Inval,
                "{when} the register R{n} is not a known value ({ty})\n"
            );
        }
        self.mark_precise(n)?;
        let within = if narrow {
            min <= reg.range.smin32 && reg.range.smax32 <= max
        } else {
            min as i64 <= reg.range.smin && reg.range.smax <= max as i64
        };
        if !within {
            let name = if n == 0 { "R0" } else { "R1" };
            self.complain_of_range(&reg, min, max, when, name);
            let void_hook = !is_sub
                && prog_type == ProgType::Lsm
                && self.attach.caller.attach_type == AttachType::LsmCgroup
                && self.attach.returns_void;
            if void_hook {
                say!(
                    self,
                    "Note, BPF_LSM_CGROUP that attach to void LSM hooks can't modify return value!\n"
                );
            }
            return Err(Errno::Inval);
        }
        Ok(())
    }

    /// Whether the member that a struct_ops program implements returns a pointer.
    fn returns_pointer(&self) -> bool {
        let ret = self
            .attach
            .proto
            .and_then(|p| peel(self.kernel()?, p.type_id()));
        ret.is_some_and(|t| t.is(Kind::Ptr))
    }

    /// Whether a struct_ops program returns a referenced object of the type asked for.
    fn returns_object(&mut self, n: u8) -> Res<bool> {
        let reg = *self.reg(n);
        if reg.ref_obj_id == 0 || !self.returns_pointer() {
            return Ok(false);
        }
        let wanted = self
            .attach
            .proto
            .and_then(|p| peel(self.kernel()?, p.type_id()))
            .and_then(|t| peel(self.kernel()?, t.type_id()));
        if wanted.is_some_and(|t| t.id() == reg.btf().1) {
            self.check_unmoved(&reg, n, false)?;
            return Ok(true);
        }
        Ok(false)
    }

    fn stats(&self) -> Stats {
        Stats {
            processed: self.processed,
            total_states: self.store.total,
            peak_states: self.store.peak,
            max_states_per_insn: self.max_states_per_insn,
            stack_depth: self.stack_depths(),
        }
    }

    /// Of each subprogram, and of the one that the kernel adds to end a thrown exception.
    fn stack_depths(&self) -> Vec<u32> {
        let mut depths: Vec<u32> = self.subs.iter().map(|s| s.stack_depth).collect();
        if self.threw && self.exception_callback.is_none() {
            depths.push(0);
        }
        depths
    }

    fn print_stats(&mut self, stats: &Stats) {
        if self.env.log_level == 0 {
            return;
        }
        if self.env.log_level & STATS != 0 {
            let depth: Vec<String> = stats.stack_depth.iter().map(u32::to_string).collect();
            say!(self, "stack depth {}\n", depth.join("+"));
        }
        say!(
            self,
            "processed {} insns (limit {MAX_PROCESSED}) max_states_per_insn {} total_states {} peak_states {} mark_read 0\n",
            stats.processed,
            stats.max_states_per_insn,
            stats.total_states,
            stats.peak_states
        );
    }
}
