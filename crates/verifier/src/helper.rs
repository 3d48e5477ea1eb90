//! Calls of helpers.

use bpfkit_btf::Kind;
use bpfkit_isa::code;
use bpfkit_object::RefTarget;
use bpfkit_spec::helper::{Effects, Helper, Proto, RetKind, TargetRule};
use bpfkit_spec::{AttachType, MapType, ProgType, TypeFlags, attach, map_rules};

use crate::args::{CallInfo, func};
use crate::calls::Callback;
use crate::cfg::TAIL_CALL;
use crate::checker::Checker;
use crate::fail::{Errno, Res, fail, say};
use crate::range::Range;
use crate::record::FieldKind;
use crate::reg::{BtfOf, DynptrKind, RegType};
use crate::walk::peel;

/// Greatest errno.
const MAX_ERRNO: i64 = 4095;

impl Checker<'_> {
    /// A call of a helper.
    pub fn call_helper(&mut self) -> Res {
        let id = self.insn().imm;
        let Some((helper, proto)) = self.helper_proto(id) else {
            if let Some(message) = self.poison_message().map(str::to_string) {
                fail!(self, Inval, "{message}\n");
            }
            fail!(self, Inval, "invalid func unknown#{id}\n");
        };
        let name = helper.name;
        if self.is_old_kernel() {
            self.check_helper_version(helper, proto.is_none())?;
        }
        let Some(proto) = proto.filter(|_| !self.env.absent_helpers.contains(&name)) else {
            fail!(
                self,
                Inval,
                "program of this type cannot use helper bpf_{name}#{id}\n"
            );
        };
        self.check_helper_place(helper, proto)?;
        let mut call = CallInfo {
            func: id,
            name,
            pkt_access: proto.pkt_access,
            ..CallInfo::default()
        };
        for at in 0..proto.args.len() {
            self.check_helper_arg(at, proto, &mut call)?;
        }
        self.check_map_use(&call)?;
        if id == TAIL_CALL {
            self.check_tail_call_key(&call)?;
        }
        if let Some((n, size)) = call.raw.filled {
            self.stack_fill(n, size as i32)?;
        }
        self.release_arg(&call, proto)?;
        let mut changes_packet = helper.effects.has(Effects::CHANGES_PACKET);
        self.helper_specific(id, &mut call, proto, &mut changes_packet)?;
        let percpu_alloc = matches!(id, func::PER_CPU_PTR | func::THIS_CPU_PTR)
            && self.reg(1).ty.has(TypeFlags::MEM_RCU);
        self.note_helper(id, percpu_alloc);
        self.clobber_caller_saved();
        self.set_result(id, &call, proto, percpu_alloc)?;
        self.name_result(helper, &call);
        self.refine_result(helper, proto, &call)?;
        self.check_map_helper(&call)?;
        self.note_call(&call, proto);
        if id == func::GET_FUNC_IP {
            self.check_get_func_ip()?;
        }
        if id == TAIL_CALL {
            return self.finish_tail_call();
        }
        if changes_packet {
            self.forget_packets();
        }
        self.insn += 1;
        Ok(())
    }

    /// A tail call that fails goes on; one that works returns to the caller, if there is one.
    fn finish_tail_call(&mut self) -> Res {
        let at = self.insn;
        if self.cur.curframe() == 0 {
            self.insn += 1;
            return Ok(());
        }
        self.push_branch(at + 1, at)?;
        self.forget_packets();
        self.set_unknown(0);
        self.return_early()
    }

    /// What the loader says of an instruction that it poisoned.
    fn poison_message(&self) -> Option<&str> {
        let at = self
            .program
            .refs
            .binary_search_by_key(&self.insn, |r| r.insn)
            .ok()?;
        match &self.program.refs[at].target {
            RefTarget::Poison { message, .. } => Some(message),
            _ => None,
        }
    }

    /// Checks that the helper may be called here at all.
    fn check_helper_place(&mut self, helper: &Helper, proto: &Proto) -> Res {
        let (name, id) = (helper.name, helper.id);
        if !self.gpl && proto.gpl_only {
            fail!(
                self,
                Inval,
                "cannot call GPL-restricted function from non-GPL compatible program\n"
            );
        }
        if proto.only_in.is_some_and(|rule| !self.target_allows(rule)) {
            fail!(self, Inval, "helper call is not allowed in probe\n");
        }
        if !proto.might_sleep {
            return Ok(());
        }
        if !self.may_sleep() {
            fail!(
                self,
                Inval,
                "helper call might sleep in a non-sleepable prog\n"
            );
        }
        if self.cur.active_rcu {
            fail!(
                self,
                Inval,
                "sleepable helper bpf_{name}#{id} in rcu_read_lock region\n"
            );
        }
        if self.cur.active_preempt > 0 {
            fail!(
                self,
                Inval,
                "sleepable helper bpf_{name}#{id} in non-preemptible region\n"
            );
        }
        if self.cur.active_irq != 0 {
            fail!(
                self,
                Inval,
                "sleepable helper bpf_{name}#{id} in IRQ-disabled region\n"
            );
        }
        Ok(())
    }

    fn target_allows(&self, rule: TargetRule) -> bool {
        let target = self.attach.caller.target;
        let hook = target.strip_prefix("bpf_lsm_").unwrap_or("");
        let attach_type = self.attach.caller.attach_type;
        match rule {
            TargetRule::DPath => match self.prog_type() {
                ProgType::Tracing if attach_type == AttachType::TraceIter => true,
                ProgType::Lsm => attach::LSM_SLEEPABLE.contains(&hook),
                _ => attach::D_PATH_FUNCTIONS.contains(&target),
            },
            TargetRule::SkStorageTracing => match attach_type {
                AttachType::TraceIter | AttachType::TraceRawTp => true,
                AttachType::TraceFentry | AttachType::TraceFexit => {
                    !target.starts_with("bpf_sk_storage")
                }
                _ => false,
            },
            TargetRule::SleepableLsmHook => attach::LSM_SLEEPABLE.contains(&hook),
        }
    }

    /// Checks that a helper does not write a map that programs may only read.
    fn check_map_use(&mut self, call: &CallInfo) -> Res {
        if let Some(map) = call.map.filter(|_| Self::writes_map(call.func))
            && !self.maps[map].writable()
        {
            fail!(self, Acces, "write into map forbidden\n");
        }
        Ok(())
    }

    fn check_tail_call_key(&mut self, call: &CallInfo) -> Res {
        let map = call
            .map
            .filter(|m| self.maps[*m].map_type == MapType::ProgArray);
        let Some(map) = map else {
            fail!(self, Inval, "expected prog array map for tail call");
        };
        let seen = self.tail_maps.entry(self.insn).or_insert(Some(map));
        if *seen != Some(map) {
            *seen = None;
        }
        let key = self.reg(3).constant(true);
        if key.is_some_and(|k| k < self.maps[map].max_entries as u64) {
            self.mark_precise(3)?;
        }
        Ok(())
    }

    /// Gives up the reference of the argument that the helper releases.
    fn release_arg(&mut self, call: &CallInfo, proto: &Proto) -> Res {
        use bpfkit_spec::helper::ArgKind;
        if call.release == 0 {
            return Ok(());
        }
        let n = call.release;
        let reg = *self.reg(n);
        let id = call.ref_obj_id;
        let result = if proto.args[n as usize - 1].kind == ArgKind::PtrToDynptr {
            self.end_dynptr(&reg)
        } else if call.func == func::KPTR_XCHG && id != 0 {
            if self.cur.release_ptr(id) {
                let in_rcu = self.in_rcu_section();
                let gone = self.gone();
                self.cur.change_where(
                    |r| r.ref_obj_id == id,
                    |r| {
                        if in_rcu && r.ty.is_alloc() && r.ty.has(TypeFlags::MEM_PERCPU) {
                            r.ref_obj_id = 0;
                            r.ty = r.ty.without(TypeFlags::MEM_ALLOC).with(TypeFlags::MEM_RCU);
                        } else {
                            *r = gone;
                        }
                    },
                );
                Ok(())
            } else {
                Err(Errno::Inval)
            }
        } else if id != 0 {
            self.release(id)
        } else if reg.is_null() {
            Ok(())
        } else {
            Err(Errno::Inval)
        };
        if let Err(e) = result {
            let (name, id) = (call.name, call.func);
            say!(
                self,
                "func bpf_{name}#{id} reference has not been acquired before\n"
            );
            return Err(e);
        }
        Ok(())
    }

    fn helper_specific(
        &mut self,
        id: i32,
        call: &mut CallInfo,
        proto: &Proto,
        changes_packet: &mut bool,
    ) -> Res {
        match id {
            TAIL_CALL => self.check_leaks(false, true, "tail_call")?,
            func::GET_LOCAL_STORAGE if !self.reg(2).is_null() => {
                fail!(
                    self,
                    Inval,
                    "get_local_storage() doesn't support non-zero flags\n"
                );
            }
            func::FOR_EACH_MAP_ELEM => {
                let Some(map) = call.map else {
                    return Err(Errno::Fault);
                };
                self.call_callback(call.sub, Callback::MapElement { map })?;
            }
            func::TIMER_SET_CALLBACK => self.call_callback(call.sub, Callback::Timer)?,
            func::FIND_VMA => self.call_callback(call.sub, Callback::FindVma)?,
            func::USER_RINGBUF_DRAIN => self.call_callback(call.sub, Callback::UserRingbuf)?,
            func::SNPRINTF => self.check_format()?,
            func::LOOP => {
                self.note_loop(call.sub)?;
                self.mark_precise(1)?;
                let depth = self.cur.top().callback_depth;
                if (depth as u64) < self.reg(1).range.umax {
                    self.call_callback(call.sub, Callback::Loop)?;
                } else {
                    self.cur.top_mut().callback_depth = 0;
                    if self.log.all_paths() {
                        let frame = self.cur.curframe();
                        say!(self, "frame{frame} bpf_loop iteration limit reached\n");
                    }
                }
            }
            func::DYNPTR_FROM_MEM => {
                let ty = self.reg(1).ty;
                if ty != RegType::MAP_VALUE {
                    fail!(
                        self,
                        Acces,
                        "Unsupported reg type {ty} for bpf_dynptr_from_mem data\n"
                    );
                }
            }
            func::SET_RETVAL => {
                let void_hook = self.prog_type() == ProgType::Lsm
                    && self.attach.caller.attach_type == AttachType::LsmCgroup
                    && self.attach.returns_void;
                if void_hook {
                    fail!(
                        self,
                        Inval,
                        "BPF_LSM_CGROUP that attach to void LSM hooks can't modify return value!\n"
                    );
                }
            }
            func::DYNPTR_DATA | func::DYNPTR_WRITE => {
                use bpfkit_spec::helper::ArgKind;
                let at = proto
                    .args
                    .iter()
                    .position(|a| a.kind == ArgKind::PtrToDynptr);
                let Some(at) = at else {
                    return Err(Errno::Fault);
                };
                let reg = *self.reg(at as u8 + 1);
                let Some(dynptr) = self.dynptr_at(&reg) else {
                    return Err(Errno::Fault);
                };
                if id == func::DYNPTR_DATA {
                    call.dynptr_id = dynptr.id;
                    call.ref_obj_id = dynptr.ref_obj_id;
                } else if matches!(dynptr.dynptr_kind(), DynptrKind::Skb | DynptrKind::SkbMeta) {
                    *changes_packet = true;
                }
            }
            func::PER_CPU_PTR | func::THIS_CPU_PTR => {
                let reg = *self.reg(1);
                if reg.ty.has(TypeFlags::MEM_RCU) {
                    let (of, type_id) = reg.btf();
                    let is_struct = self
                        .type_of(of, type_id)
                        .is_some_and(|t| t.is(Kind::Struct));
                    if !is_struct {
                        fail!(self, Fault, "Helper has invalid btf/btf_id in R1\n");
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// R0 as the prototype says.
    fn set_result(&mut self, id: i32, call: &CallInfo, proto: &Proto, percpu_alloc: bool) -> Res {
        let mut flags = proto.ret.flags;
        let mut map_lock = false;
        match proto.ret.kind {
            RetKind::Integer => self.set_unknown(0),
            RetKind::Void => self.set_not_init(0),
            RetKind::PtrToMapValue => {
                let Some(map) = call.map else {
                    return Err(Errno::Fault);
                };
                let info = &self.maps[map];
                let direct = matches!(info.map_type, MapType::Array | MapType::PercpuArray);
                let key = call.key.filter(|k| *k < info.max_entries as u64);
                if id == func::MAP_LOOKUP_ELEM && direct && key.is_some() {
                    flags = flags.less(TypeFlags::PTR_MAYBE_NULL);
                }
                map_lock = !flags.has(TypeFlags::PTR_MAYBE_NULL)
                    && (info.record.has(FieldKind::SpinLock)
                        || info.record.has(FieldKind::ResSpinLock));
                let reg = self.reg_mut(0);
                reg.set_pointer(RegType::MAP_VALUE.with(flags));
                reg.set_map(map, call.map_uid);
            }
            RetKind::PtrToSocket => self.reg_mut(0).set_pointer(RegType::SOCKET.with(flags)),
            RetKind::PtrToSockCommon => {
                self.reg_mut(0)
                    .set_pointer(RegType::SOCK_COMMON.with(flags));
            }
            RetKind::PtrToTcpSock => self.reg_mut(0).set_pointer(RegType::TCP_SOCK.with(flags)),
            RetKind::PtrToMem => {
                let reg = self.reg_mut(0);
                reg.set_pointer(RegType::MEM.with(flags));
                reg.set_mem_size(call.mem_size);
            }
            RetKind::PtrToMemOrBtfId => {
                let Some((of, type_id)) = call.percpu else {
                    return Err(Errno::Fault);
                };
                let Some(btf) = self.btf(of) else {
                    return Err(Errno::Fault);
                };
                let t = peel(btf, type_id);
                if t.is_some_and(|t| matches!(t.kind(), Kind::Struct | Kind::Union)) {
                    let ty = if percpu_alloc {
                        RegType::ALLOC_OBJ.with(TypeFlags::MEM_RCU)
                    } else {
                        RegType::BTF_ID.with(flags.less(TypeFlags::MEM_RDONLY))
                    };
                    let reg = self.reg_mut(0);
                    reg.set_pointer(ty);
                    reg.set_btf(of, type_id);
                } else {
                    let Some(size) = btf.size_of(type_id) else {
                        let name = t.map_or("", |t| t.name());
                        fail!(
                            self,
                            Inval,
                            "unable to resolve the size of type '{name}': -22\n"
                        );
                    };
                    let reg = self.reg_mut(0);
                    reg.set_pointer(RegType::MEM.with(flags));
                    reg.set_mem_size(size);
                }
            }
            RetKind::PtrToBtfId => {
                self.kernel_objects |= call.kptr.is_some();
                let (of, type_id) = match (call.kptr, proto.ret.btf) {
                    (Some(field), None) => {
                        if field.of == BtfOf::Program {
                            flags |= TypeFlags::MEM_ALLOC;
                            if field.kind == FieldKind::KptrPercpu {
                                flags |= TypeFlags::MEM_PERCPU;
                            }
                        }
                        (field.of, field.type_id)
                    }
                    (_, Some(name)) => {
                        let t = self.kernel().and_then(|k| k.by_name(name, Kind::Struct));
                        (BtfOf::Kernel, t.map_or(0, |t| t.id()))
                    }
                    _ => return Err(Errno::Fault),
                };
                let reg = self.reg_mut(0);
                reg.set_pointer(RegType::BTF_ID.with(flags));
                reg.set_btf(of, type_id);
            }
        }
        if map_lock || self.reg(0).ty.may_be_null() {
            let id = self.new_id();
            self.reg_mut(0).id = id;
        }
        Ok(())
    }

    /// References and dynptrs that the result belongs to.
    fn name_result(&mut self, helper: &Helper, call: &CallInfo) {
        let data = helper.effects.has(Effects::DYNPTR_DATA);
        if data {
            self.reg_mut(0).set_dynptr_id(call.dynptr_id);
        }
        let socket_map = call.func == func::MAP_LOOKUP_ELEM
            && call.map.is_some_and(|m| {
                matches!(self.maps[m].map_type, MapType::Sockmap | MapType::Sockhash)
            });
        if data || helper.effects.has(Effects::CASTS) {
            self.reg_mut(0).ref_obj_id = call.ref_obj_id;
        } else if socket_map || helper.effects.has(Effects::ACQUIRES) {
            let id = self.acquire();
            let reg = self.reg_mut(0);
            reg.id = id;
            reg.ref_obj_id = id;
        }
    }

    /// What is known of the number that a helper returns.
    fn refine_result(&mut self, helper: &Helper, proto: &Proto, call: &CallInfo) -> Res {
        if proto.ret.kind != RetKind::Integer {
            return Ok(());
        }
        let cpus = self.env.cpus;
        let range = &mut self.reg_mut(0).range;
        if helper.effects.has(Effects::RETURNS_UP_TO_SIZE) {
            (range.smin, range.smax) = (-MAX_ERRNO, call.size_max as i64);
            (range.smin32, range.smax32) = (-MAX_ERRNO as i32, call.size_max as i32);
            range.sync();
        } else if helper.effects.has(Effects::RETURNS_CPU) {
            let max = cpus.max(1) - 1;
            *range = Range {
                umin: 0,
                umax: max as u64,
                smin: 0,
                smax: max as i64,
                umin32: 0,
                umax32: max,
                smin32: 0,
                smax32: max as i32,
                bits: range.bits,
            };
            range.sync();
        }
        self.sanity_check_bounds(0, "retval")
    }

    /// Checks that the helper takes maps of that type.
    fn check_map_helper(&mut self, call: &CallInfo) -> Res {
        let Some(map) = call.map else { return Ok(()) };
        let map_type = self.maps[map].map_type;
        let caller = &self.attach.caller;
        if map_rules::may_call(map_type, call.func as u32, caller) {
            return Ok(());
        }
        let change = match call.func {
            func::MAP_UPDATE_ELEM => Some(map_rules::SockmapChange::Update),
            func::MAP_DELETE_ELEM => Some(map_rules::SockmapChange::Delete),
            _ => None,
        };
        let sockmap = matches!(map_type, MapType::Sockmap | MapType::Sockhash);
        if let (true, Some(change)) = (sockmap, change)
            && !map_rules::may_change_sockmap(change, caller)
        {
            say!(self, "cannot update sockmap in this context\n");
        }
        let (number, name, id) = (map_type as u32, call.name, call.func);
        fail!(
            self,
            Inval,
            "cannot pass map_type {number} into func bpf_{name}#{id}\n"
        );
    }

    fn check_get_func_ip(&mut self) -> Res {
        let id = func::GET_FUNC_IP;
        match self.prog_type() {
            ProgType::Tracing => {
                let trampoline = matches!(
                    self.attach.caller.attach_type,
                    AttachType::TraceFentry | AttachType::TraceFexit | AttachType::ModifyReturn
                );
                if !trampoline {
                    fail!(
                        self,
                        NotSupp,
                        "func bpf_get_func_ip#{id} supported only for fentry/fexit/fmod_ret programs\n"
                    );
                }
                Ok(())
            }
            ProgType::Kprobe => Ok(()),
            t => {
                let number = t as u32;
                fail!(
                    self,
                    NotSupp,
                    "func bpf_get_func_ip#{id} not supported for program type {number}\n"
                );
            }
        }
    }

    /// Checks the format of `bpf_snprintf` against the size of its data.
    fn check_format(&mut self) -> Res {
        let (fmt, size) = (*self.reg(3), *self.reg(5));
        let bytes = size.range.bits.value;
        if bytes % 8 != 0 {
            return Err(Errno::Inval);
        }
        let Some(map) = fmt.map() else {
            return Err(Errno::Fault);
        };
        let text = self.maps[map].frozen.unwrap_or(&[]);
        let text = text.get(fmt.const_off() as usize..).unwrap_or(&[]);
        let len = text.iter().position(|b| *b == 0).unwrap_or(text.len());
        if !format_ok(&text[..len], bytes / 8) {
            fail!(self, Inval, "Invalid format string\n");
        }
        Ok(())
    }
}

/// Whether a format of `bpf_snprintf` and the like is valid and has no more than `args`
/// conversions.
fn format_ok(fmt: &[u8], args: u64) -> bool {
    const MAX_ARGS: u64 = 12;
    let at = |i: usize| fmt.get(i).copied().unwrap_or(0);
    let space = |b: u8| b.is_ascii_whitespace() || b == 0x0b;
    let ends = |b: u8| b == 0 || space(b) || b.is_ascii_punctuation();
    let (mut i, mut specs) = (0, 0);
    if args > MAX_ARGS {
        return false;
    }
    while i < fmt.len() {
        let b = fmt[i];
        if !(b.is_ascii_graphic() || b == b' ' || space(b)) {
            return false;
        }
        if b != b'%' {
            i += 1;
            continue;
        }
        if at(i + 1) == b'%' {
            i += 2;
            continue;
        }
        if specs >= args {
            return false;
        }
        specs += 1;
        i += 1;
        while matches!(at(i), b'0' | b'+' | b'-' | b' ') {
            i += 1;
        }
        while at(i).is_ascii_digit() {
            i += 1;
        }
        match at(i) {
            b'p' => match (at(i + 1), at(i + 2)) {
                (b'k' | b'u', b's') => {
                    if !ends(at(i + 3)) {
                        return false;
                    }
                    i += 3;
                }
                (b'K' | b'x' | b's' | b'S' | b'B', _) => i += 2,
                (b'i' | b'I', b'4' | b'6') => i += 3,
                (next, _) if ends(next) => i += 1,
                _ => return false,
            },
            b's' => {
                if !ends(at(i + 1)) {
                    return false;
                }
                i += 1;
            }
            b'c' => i += 1,
            _ => {
                for _ in 0..2 {
                    i += usize::from(at(i) == b'l');
                }
                if !matches!(at(i), b'i' | b'd' | b'u' | b'x' | b'X') {
                    return false;
                }
                i += 1;
            }
        }
    }
    true
}

/// Whether a call instruction is well formed.
pub(crate) const fn call_ok(insn: &bpfkit_isa::Insn) -> bool {
    insn.code == code::JMP | code::CALL
        && insn.dst == 0
        && (insn.src == code::PSEUDO_KFUNC_CALL || insn.off == 0)
        && (insn.src == 0 || insn.src == code::PSEUDO_CALL || insn.src == code::PSEUDO_KFUNC_CALL)
}

#[cfg(test)]
mod tests {
    use super::format_ok;

    #[test]
    fn formats_are_judged_as_bpf_snprintf_does() {
        assert!(format_ok(b"%d %+05llx %% %s", 3));
        assert!(!format_ok(b"%d %d", 1), "more conversions than arguments");
        assert!(format_ok(b"%pI4 %p", 2));
        assert!(!format_ok(b"%pI5", 1));
        assert!(!format_ok(b"%z", 1));
        assert!(!format_ok(b"\x80", 0));
        assert!(!format_ok(b"%sa", 1));
    }
}
