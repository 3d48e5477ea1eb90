//! Calls of subprograms and callbacks, and returns from them.

use bpfkit_btf::Kind;
use bpfkit_spec::helper::ArgKind;
use bpfkit_spec::{MapType, TypeFlags};

use crate::args::{CallInfo, func};
use crate::checker::{Checker, Next};
use crate::fail::{Errno, Res, fail, say};
use crate::global::ArgRule;
use crate::record::Field;
use crate::reg::{BtfOf, DynptrKind, IterState, Reg, RegType};
use crate::state::{Frame, MAX_FRAMES, RefKind, RetRange, State};

/// What calls a callback, which decides its arguments.
#[derive(Clone, Copy)]
pub(crate) enum Callback {
    MapElement {
        map: usize,
    },
    Loop,
    Timer,
    FindVma,
    UserRingbuf,
    /// The comparison of a tree.
    Tree(Field),
    Workqueue,
    TaskWork,
}

impl Callback {
    const fn runs_later(self) -> bool {
        matches!(
            self,
            Callback::Timer | Callback::Workqueue | Callback::TaskWork
        )
    }
}

impl Checker<'_> {
    /// A call of a subprogram.
    pub fn call_subprogram(&mut self) -> Res {
        let insn = self.insn();
        let target = self.insn as i64 + insn.imm as i64 + 1;
        let Some(sub) = self.sub_at(target) else {
            fail!(
                self,
                Fault,
                "verifier bug: target of func call at insn {target} is not a program\n"
            );
        };
        let args = self.check_call_args(sub);
        if args == Err(Errno::Fault) {
            return args;
        }
        if self.subs[sub].global {
            return self.call_global(sub, args);
        }
        let callsite = self.insn;
        let mut frame = self.new_frame_in(callsite, sub)?;
        frame.regs[1..=5].copy_from_slice(&self.cur.top().regs[1..=5]);
        self.clobber_caller_saved();
        self.cur.push_frame(frame);
        self.live.forget_chain();
        self.insn = self.subs[sub].start;
        if self.log.verbose() {
            let at = self.cur.curframe();
            say!(self, "caller:\n");
            self.print_cur(at - 1, true);
            say!(self, "callee:\n");
            self.print_cur(at, true);
        }
        Ok(())
    }

    fn call_global(&mut self, sub: usize, args: Res) -> Res {
        if self.cur.active_locks > 0 {
            fail!(
                self,
                Inval,
                "global function calls are not allowed while holding a lock,\nuse static function instead\n"
            );
        }
        let atomic = self.cur.active_rcu
            || self.cur.active_preempt > 0
            || self.cur.active_irq != 0
            || !self.may_sleep();
        if self.subs[sub].might_sleep && atomic {
            fail!(
                self,
                Inval,
                "global functions that may sleep are not allowed in non-sleepable context,\ni.e., in a RCU/IRQ/preempt-disabled section, or in\na non-sleepable BPF program context\n"
            );
        }
        let name = self.subs[sub].name.clone();
        if let Err(e) = args {
            say!(
                self,
                "Caller passes invalid args into func#{sub} ('{name}')\n"
            );
            return Err(e);
        }
        if self.log.level != 0 {
            say!(self, "Func#{sub} ('{name}') is global and assumed valid.\n");
        }
        if self.subs[sub].changes_pkt_data {
            self.forget_packets();
        }
        self.subs[sub].called = true;
        self.clobber_caller_saved();
        self.set_unknown(0);
        self.insn += 1;
        Ok(())
    }

    /// A frame for a function called from the current one.
    fn new_frame_in(&mut self, callsite: u32, sub: usize) -> Res<Frame> {
        let depth = self.cur.curframe() + 1;
        if depth >= MAX_FRAMES {
            fail!(
                self,
                TooBig,
                "the call stack of {} frames is too deep\n",
                depth + 1
            );
        }
        self.printer.touch_all();
        Ok(Frame::new(callsite as i32, depth as u8, sub as u32))
    }

    /// The packet may have moved: pointers into it are void.
    pub fn forget_packets(&mut self) {
        self.forget_where(|r| {
            let packet = crate::state::is_any_packet(r.ty.base()) && r.ty.flags().is_empty();
            let slice = r.ty.base() == crate::reg::Base::Mem
                && (r.ty.has(TypeFlags::DYNPTR_TYPE_SKB)
                    || r.ty.has(TypeFlags::DYNPTR_TYPE_XDP)
                    || r.ty.has(TypeFlags::DYNPTR_TYPE_SKB_META));
            packet || slice
        });
    }

    /// Compares the arguments of a call with the callee's BTF; a static function that does
    /// not match is just not known any better.
    fn check_call_args(&mut self, sub: usize) -> Res {
        if self.local.is_none() || self.subs[0].type_id == 0 {
            return Err(Errno::Inval);
        }
        if self.subs[sub].type_id == 0 {
            return Err(Errno::Fault);
        }
        if self.subs[sub].unreliable {
            return Err(Errno::Inval);
        }
        let log_len = self.log.len();
        let result = self.match_call_args(sub);
        if result.is_err() {
            self.subs[sub].unreliable = true;
            if !self.subs[sub].global && self.log.level == 0 {
                self.log.rewind(log_len);
            }
        }
        result
    }

    fn match_call_args(&mut self, sub: usize) -> Res {
        let args = self.sub_args(sub)?;
        for (at, arg) in args.iter().enumerate() {
            let n = at as u8 + 1;
            let reg = *self.reg(n);
            if arg.rule == ArgRule::Number {
                if reg.ty != RegType::SCALAR {
                    fail!(self, Inval, "R{n} is not a scalar\n");
                }
                continue;
            }
            if arg.flags.has(TypeFlags::PTR_UNTRUSTED) {
                continue;
            }
            match arg.rule {
                ArgRule::Number => {}
                ArgRule::Ctx => {
                    self.check_arg_offset(n, false, false)?;
                    if reg.ty != RegType::CTX {
                        fail!(self, Inval, "arg#{at} expects pointer to ctx\n");
                    }
                }
                ArgRule::Memory(size) => {
                    self.check_arg_offset(n, false, false)?;
                    self.mem_arg(n, size).map_err(|_| Errno::Inval)?;
                    if !arg.flags.has(TypeFlags::PTR_MAYBE_NULL) && reg.ty.may_be_null() {
                        fail!(self, Inval, "arg#{at} is expected to be non-NULL\n");
                    }
                }
                ArgRule::Arena => {
                    if reg.ty != RegType::ARENA && reg.ty != RegType::SCALAR {
                        fail!(self, Inval, "R{n} is not a pointer to arena or scalar.\n");
                    }
                }
                ArgRule::Dynptr => {
                    self.check_arg_offset(n, false, true)?;
                    self.dynptr_arg(n, arg.flags, 0)?;
                }
                ArgRule::Object(id) => {
                    if reg.is_null() && arg.flags.has(TypeFlags::PTR_MAYBE_NULL) {
                        continue;
                    }
                    let call = CallInfo::default();
                    self.check_arg_type(n, ArgKind::PtrToBtfId, arg.flags, Some(id), &call)?;
                    self.check_arg_offset(n, false, false)?;
                }
            }
        }
        Ok(())
    }

    /// A call that calls a callback: at once, in a branch of its own, or later.
    pub fn call_callback(&mut self, sub: usize, kind: Callback) -> Res {
        let args = self.check_call_args(sub);
        if args == Err(Errno::Fault) {
            return args;
        }
        self.subs[sub].is_callback = true;
        let (at, start) = (self.insn, self.subs[sub].start);
        let caller = self.cur.top().regs;
        if kind.runs_later() {
            self.subs[sub].is_async_callback = true;
            let entries = self.cur.top().async_entry_count + 1;
            let sleeps = !matches!(kind, Callback::Timer);
            let (regs, ret) = self.callback_args(kind, &caller)?;
            let state = self.push_async(start, at, sub, sleeps)?;
            let frame = state.top_mut();
            frame.async_entry_count = entries;
            frame.regs[1..=5].copy_from_slice(&regs);
            frame.in_async_callback = true;
            frame.callback_ret = ret;
            return Ok(());
        }
        self.push_branch(start, at)?;
        let mut frame = self.new_frame_in(at, sub)?;
        let (regs, ret) = self.callback_args(kind, &caller)?;
        frame.regs[1..=5].copy_from_slice(&regs);
        frame.in_callback = true;
        frame.callback_ret = ret;
        let Some(pending) = self.pending.last_mut() else {
            return Err(Errno::Fault);
        };
        pending.state.top_mut().callback_depth += 1;
        pending.state.callback_unroll_depth += 1;
        pending.state.push_frame(frame);
        self.cur.top_mut().callback_depth = 0;
        Ok(())
    }

    /// R1 to R5 of a callback, and what it may return.
    fn callback_args(&mut self, kind: Callback, caller: &[Reg; 11]) -> Res<([Reg; 5], RetRange)> {
        let none = Reg::NOT_INIT;
        let mut regs = [none; 5];
        let pointer = |ty: RegType| {
            let mut reg = none;
            reg.set_pointer(ty);
            reg
        };
        let in_map = |ty: RegType, of: &Reg| {
            let mut reg = pointer(ty);
            if let Some(map) = of.map() {
                reg.set_map(map, 0);
            }
            reg
        };
        let mut ret = RetRange::new(0, 1);
        match kind {
            Callback::MapElement { map } => {
                let iterates = matches!(
                    self.maps[map].map_type,
                    MapType::Array
                        | MapType::PercpuArray
                        | MapType::Hash
                        | MapType::LruHash
                        | MapType::PercpuHash
                        | MapType::LruPercpuHash
                );
                if !iterates {
                    fail!(self, NotSupp, "callback function not allowed for map\n");
                }
                regs[0] = caller[1];
                regs[1] = in_map(RegType::MAP_KEY, &caller[1]);
                regs[2] = in_map(RegType::MAP_VALUE, &caller[1]);
                regs[3] = caller[3];
            }
            Callback::Loop => {
                regs[0] = Reg::UNKNOWN;
                regs[1] = caller[3];
            }
            Callback::Timer | Callback::Workqueue | Callback::TaskWork => {
                let of = if matches!(kind, Callback::TaskWork) {
                    &caller[3]
                } else {
                    &caller[1]
                };
                regs[0] = in_map(RegType::MAP_PTR, of);
                regs[1] = in_map(RegType::MAP_KEY, of);
                regs[2] = in_map(RegType::MAP_VALUE, of);
                ret = match kind {
                    Callback::TaskWork => RetRange::new(i32::MIN, i32::MAX),
                    _ => RetRange::new(0, 0),
                };
            }
            Callback::FindVma => {
                regs[0] = caller[1];
                regs[1] = pointer(RegType::BTF_ID);
                let vma = self
                    .kernel()
                    .and_then(|k| k.by_name("vm_area_struct", Kind::Struct));
                regs[1].set_btf(BtfOf::Kernel, vma.map_or(0, |t| t.id()));
                regs[2] = caller[4];
            }
            Callback::UserRingbuf => {
                let id = self.new_id();
                regs[0].set_dynptr(DynptrKind::Local, true, id);
                regs[1] = caller[3];
            }
            Callback::Tree(field) => {
                for reg in &mut regs[..2] {
                    *reg = pointer(RegType::ALLOC_OBJ.with(TypeFlags::NON_OWN_REF));
                    reg.set_btf(field.of, field.type_id);
                    reg.off = field.node_offset as i32;
                    if self
                        .object_record(field.of, field.type_id)
                        .has(crate::record::FieldKind::Refcount)
                    {
                        reg.ty = reg.ty.with(TypeFlags::MEM_RCU);
                    }
                }
            }
        }
        Ok((regs, ret))
    }

    /// The exit of a function or of the program; `thrown` by `bpf_throw`.
    pub fn exit(&mut self, thrown: bool) -> Res<Next> {
        let outermost = self.cur.curframe() == 0;
        // A thrown exception unwinds every function.
        let what = if thrown {
            "bpf_throw"
        } else {
            "BPF_EXIT instruction in main prog"
        };
        self.check_leaks(thrown, outermost || thrown, what)?;
        if thrown {
            return Ok(Next::EndOfPath);
        }
        if !outermost {
            self.update_live_slots();
            self.return_to_caller()?;
            self.print_state = true;
            return Ok(Next::Continue);
        }
        self.check_return_value(0)?;
        Ok(Next::EndOfPath)
    }

    /// Returns to the caller from an instruction other than an exit.
    pub fn return_early(&mut self) -> Res {
        self.update_live_slots();
        self.return_to_caller()
    }

    fn return_to_caller(&mut self) -> Res {
        let r0 = *self.reg(0);
        if r0.ty == RegType::STACK {
            fail!(self, Inval, "cannot return stack pointer to the caller\n");
        }
        let (in_callback, callsite, range) = {
            let frame = self.cur.top();
            (frame.in_callback, frame.callsite, frame.callback_ret)
        };
        if in_callback {
            if r0.ty != RegType::SCALAR {
                fail!(self, Acces, "R0 not a scalar value\n");
            }
            self.mark_precise(0)?;
            if r0.range.smin < range.min as i64 || r0.range.smax > range.max as i64 {
                self.complain_of_range(&r0, range.min, range.max, "At callback return", "R0");
                return Err(Errno::Inval);
            }
        }
        let at = self.cur.curframe();
        if !in_callback {
            self.cur.frame_mut(at - 1).regs[0] = r0;
        }
        let next = if in_callback {
            callsite as u32
        } else {
            callsite as u32 + 1
        };
        if self.log.verbose() {
            say!(self, "returning from callee:\n");
            self.print_cur(at, true);
            say!(self, "to caller at {next}:\n");
            self.print_cur(at - 1, true);
        }
        self.cur.pop_frame();
        self.live.forget_chain();
        self.insn = next;
        if in_callback && let Some(before) = self.previous_visit(next, self.cur.dfs_depth) {
            self.widen_current(before);
        }
        Ok(())
    }

    /// Checks that nothing is held where the program could end.
    pub fn check_leaks(&mut self, thrown: bool, check_lock: bool, what: &str) -> Res {
        if check_lock && self.cur.active_locks > 0 {
            fail!(
                self,
                Inval,
                "{what} cannot be used inside bpf_spin_lock-ed region\n"
            );
        }
        if thrown || self.cur.curframe() == 0 {
            let returned = self.reg(0).ref_obj_id;
            let gives = self.prog_type() == bpfkit_spec::ProgType::StructOps && !thrown;
            let mut leaks = false;
            for at in 0..self.cur.refs.len() {
                let r = self.cur.refs[at];
                if r.kind != RefKind::Ptr || (gives && returned == r.id) {
                    continue;
                }
                say!(
                    self,
                    "Unreleased reference id={} alloc_insn={}\n",
                    r.id,
                    r.insn
                );
                leaks = true;
            }
            if leaks {
                fail!(self, Inval, "{what} would lead to reference leak\n");
            }
        }
        if check_lock && self.cur.active_irq != 0 {
            fail!(
                self,
                Inval,
                "{what} cannot be used inside bpf_local_irq_save-ed region\n"
            );
        }
        if check_lock && self.cur.active_rcu {
            fail!(
                self,
                Inval,
                "{what} cannot be used inside bpf_rcu_read_lock-ed region\n"
            );
        }
        if check_lock && self.cur.active_preempt > 0 {
            fail!(
                self,
                Inval,
                "{what} cannot be used inside bpf_preempt_disable-ed region\n"
            );
        }
        Ok(())
    }

    /// Advances the iterator in a slot: it gives an element in a branch, and ends here.
    pub fn iter_next(&mut self, frame: u8, slot: usize) -> Res {
        let state = self.slot(frame, slot).reg.iter_state();
        if state == IterState::Invalid {
            fail!(self, Fault, "verifier bug: unexpected iterator state\n");
        }
        if state == IterState::Active {
            let before = self.visit_before_parent();
            let at = self.insn;
            let branch = self.push_branch(at + 1, at)?;
            advance(branch, frame, slot);
            if let Some(before) = before {
                self.widen_last_branch(before);
            }
            if let Some(mut pending) = self.pending.pop() {
                let mut r0 = pending.state.top().regs[0];
                self.mark_not_null(&mut r0);
                pending.state.top_mut().regs[0] = r0;
                self.pending.push(pending);
            }
        }
        let depth = self.slot(frame, slot).reg.iter_depth();
        self.slot_mut(frame, slot)
            .reg
            .set_iter(IterState::Drained, depth);
        self.set_zero(0);
        Ok(())
    }

    /// Notes a call of `bpf_loop`, which may become a loop where all calls here are alike.
    pub fn note_loop(&mut self, sub: usize) -> Res {
        let zero = self.reg(4).is_null();
        let known = self.aux[self.insn as usize].loop_inline;
        let now = match known {
            Some(None) => return Ok(()),
            None => zero.then_some(sub as u32),
            Some(Some(known)) => (zero && known == sub as u32).then_some(known),
        };
        if zero {
            self.mark_precise(4)?;
        }
        self.aux[self.insn as usize].loop_inline = Some(now);
        Ok(())
    }

    /// Whether a helper writes the map that it is given.
    pub const fn writes_map(id: i32) -> bool {
        matches!(
            id,
            func::MAP_DELETE_ELEM
                | func::MAP_UPDATE_ELEM
                | func::MAP_PUSH_ELEM
                | func::MAP_POP_ELEM
        )
    }
}

fn advance(state: &mut State, frame: u8, slot: usize) {
    let reg = &mut state.frame_mut(frame as usize).stack.reach(slot).reg;
    let depth = reg.iter_depth();
    reg.set_iter(IterState::Active, depth + 1);
}
