//! Kernel functions: which there are, and calls of them.

use bpfkit_btf::{Kind, Param, Type};
use bpfkit_spec::kfunc::{self, Flags};
use bpfkit_spec::{AttachType, ProgType, TypeFlags, context};

use crate::calls::Callback;
use crate::checker::{Checker, Next};
use crate::fail::{Errno, Res, fail, say};
use crate::range::Range;
use crate::record::{Field, FieldKind};
use crate::reg::{Base, BtfOf, DynptrKind, Reg, RegType};
use crate::stack::Access;
use crate::state::{Byte, LockHome, RefKind};
use crate::walk::peel;

/// Greatest errno.
const MAX_ERRNO: i32 = 4095;
/// Largest object per CPU.
const MAX_PERCPU_OBJECT: u32 = 512;

macro_rules! special {
    ($($Variant:ident $name:literal,)*) => {
        /// Kernel functions with rules of their own.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub(crate) enum Special { None, $($Variant,)* }

        impl Special {
            fn of(name: &str) -> Special {
                match name { $($name => Special::$Variant,)* _ => Special::None }
            }
        }
    };
}

special! {
    ObjNew "bpf_obj_new_impl",
    ObjDrop "bpf_obj_drop_impl",
    RefcountAcquire "bpf_refcount_acquire_impl",
    ListPushFront "bpf_list_push_front_impl",
    ListPushBack "bpf_list_push_back_impl",
    ListPopFront "bpf_list_pop_front",
    ListPopBack "bpf_list_pop_back",
    ListFront "bpf_list_front",
    ListBack "bpf_list_back",
    CastToKernCtx "bpf_cast_to_kern_ctx",
    RdonlyCast "bpf_rdonly_cast",
    RcuReadLock "bpf_rcu_read_lock",
    RcuReadUnlock "bpf_rcu_read_unlock",
    RbtreeRemove "bpf_rbtree_remove",
    RbtreeAdd "bpf_rbtree_add_impl",
    RbtreeFirst "bpf_rbtree_first",
    RbtreeRoot "bpf_rbtree_root",
    RbtreeLeft "bpf_rbtree_left",
    RbtreeRight "bpf_rbtree_right",
    DynptrFromSkb "bpf_dynptr_from_skb",
    DynptrFromXdp "bpf_dynptr_from_xdp",
    DynptrFromSkbMeta "bpf_dynptr_from_skb_meta",
    XdpPullData "bpf_xdp_pull_data",
    DynptrSlice "bpf_dynptr_slice",
    DynptrSliceRdwr "bpf_dynptr_slice_rdwr",
    DynptrClone "bpf_dynptr_clone",
    PercpuObjNew "bpf_percpu_obj_new_impl",
    PercpuObjDrop "bpf_percpu_obj_drop_impl",
    Throw "bpf_throw",
    WqSetCallback "bpf_wq_set_callback_impl",
    PreemptDisable "bpf_preempt_disable",
    PreemptEnable "bpf_preempt_enable",
    IterCssTaskNew "bpf_iter_css_task_new",
    SessionCookie "bpf_session_cookie",
    GetKmemCache "bpf_get_kmem_cache",
    LocalIrqSave "bpf_local_irq_save",
    LocalIrqRestore "bpf_local_irq_restore",
    IterNumNew "bpf_iter_num_new",
    IterNumNext "bpf_iter_num_next",
    IterNumDestroy "bpf_iter_num_destroy",
    ResSpinLock "bpf_res_spin_lock",
    ResSpinUnlock "bpf_res_spin_unlock",
    ResSpinLockIrqsave "bpf_res_spin_lock_irqsave",
    ResSpinUnlockIrqrestore "bpf_res_spin_unlock_irqrestore",
    Trap "__bpf_trap",
    TaskWorkSignal "bpf_task_work_schedule_signal",
    TaskWorkResume "bpf_task_work_schedule_resume",
}

/// A kernel function that the program names.
#[derive(Clone, Debug)]
pub(crate) struct Kfunc<'a> {
    pub name: &'a str,
    pub id: u32,
    pub proto: Type<'a>,
    pub flags: Flags,
    pub special: Special,
    /// The program may call it.
    pub allowed: bool,
}

impl Kfunc<'_> {
    pub const fn calls_callback_now(&self) -> bool {
        matches!(self.special, Special::RbtreeAdd)
    }

    pub const fn calls_callback_later(&self) -> bool {
        matches!(
            self.special,
            Special::WqSetCallback | Special::TaskWorkSignal | Special::TaskWorkResume
        )
    }

    pub const fn is_iter_next(&self) -> bool {
        self.flags.has(Flags::ITER_NEXT)
    }

    pub const fn sleepable(&self) -> bool {
        self.flags.has(Flags::SLEEPABLE)
    }

    pub const fn changes_packet(&self) -> bool {
        matches!(self.special, Special::XdpPullData)
    }

    pub const fn fastcall(&self) -> bool {
        self.flags.has(Flags::FASTCALL)
    }

    const fn is_list(&self) -> bool {
        matches!(
            self.special,
            Special::ListPushFront
                | Special::ListPushBack
                | Special::ListPopFront
                | Special::ListPopBack
                | Special::ListFront
                | Special::ListBack
        )
    }

    /// Works on a tree, under its lock.
    pub const fn needs_tree_lock(&self) -> bool {
        matches!(
            self.special,
            Special::RbtreeAdd
                | Special::RbtreeRemove
                | Special::RbtreeFirst
                | Special::RbtreeRoot
                | Special::RbtreeLeft
                | Special::RbtreeRight
        )
    }

    /// May be called while a lock is held.
    pub const fn under_lock(&self) -> bool {
        self.is_list()
            || self.needs_tree_lock()
            || matches!(
                self.special,
                Special::RefcountAcquire
                    | Special::IterNumNew
                    | Special::IterNumNext
                    | Special::IterNumDestroy
                    | Special::ResSpinLock
                    | Special::ResSpinUnlock
                    | Special::ResSpinLockIrqsave
                    | Special::ResSpinUnlockIrqrestore
            )
    }

    const fn releases(&self) -> bool {
        self.flags.has(Flags::RELEASE)
    }

    const fn trusted_args(&self) -> bool {
        self.flags.has_any(Flags::TRUSTED_ARGS.or(Flags::RELEASE))
    }
}

/// What the arguments of a call told.
#[derive(Clone, Copy, Default)]
struct Info {
    release: u8,
    ref_obj_id: u32,
    constant: Option<u64>,
    r0_size: u32,
    r0_rdonly: bool,
    map: Option<usize>,
    map_uid: u32,
    owning: bool,
    /// Type of an allocated object argument.
    object: Option<(BtfOf, u32)>,
    root: Option<Field>,
    sub: usize,
    dynptr: Option<(u32, DynptrKind, u32)>,
    iter: Option<(u8, usize)>,
}

/// What a pointer argument is to be.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ArgKind {
    Ctx,
    AllocObject,
    Refcounted,
    Dynptr,
    Iter,
    ListHead,
    ListNode,
    Object,
    Memory,
    MemorySize,
    Callback,
    TreeRoot,
    TreeNode,
    Null,
    ConstStr,
    Map,
    Workqueue,
    IrqFlag,
    ResSpinLock,
    TaskWork,
}

impl<'a> Checker<'a> {
    /// Notes a kernel function that the program calls.
    pub fn add_kfunc(&mut self, id: i32, off: i16) -> Res {
        if self.kernel.is_none() {
            fail!(
                self,
                NotSupp,
                "calling kernel function is not supported without CONFIG_DEBUG_INFO_BTF\n"
            );
        }
        if !self.gpl {
            fail!(
                self,
                Inval,
                "cannot call kernel function from non-GPL compatible program\n"
            );
        }
        if (id == 0 && off == 0) || self.kfunc_index.contains_key(&(id, off)) {
            return Ok(());
        }
        let func = self
            .kernel
            .and_then(|k| k.type_by_id(id as u32))
            .filter(|t| t.is(Kind::Func));
        let Some((func, proto)) = func.and_then(|f| Some((f, f.proto()?))) else {
            fail!(self, Inval, "kernel btf_id {id} is not a function\n");
        };
        let name = func.name();
        // They ask the driver; programs for a device cannot be given to us.
        if name.starts_with("bpf_xdp_metadata_rx_") {
            fail!(
                self,
                Inval,
                "metadata kfuncs require device-bound program\n"
            );
        }
        let known = kfunc::by_name(name);
        self.kfunc_index.insert((id, off), self.kfuncs.len());
        self.kfuncs.push(Kfunc {
            name,
            id: id as u32,
            proto,
            flags: known.map_or(Flags::NONE, |k| k.flags),
            special: Special::of(name),
            allowed: known.is_some_and(|k| k.is_for(&self.attach.caller)),
        });
        Ok(())
    }

    /// A call of a kernel function.
    pub fn call_kfunc(&mut self) -> Res<Next> {
        let insn = self.insn();
        if insn.imm == 0 {
            // Fails after the walk if it is still there.
            self.insn += 1;
            return Ok(Next::Continue);
        }
        let Some(index) = self.kfunc_of(&insn) else {
            return Err(Errno::Inval);
        };
        let kfunc = self.kfuncs[index].clone();
        let name = kfunc.name;
        if self.is_old_kernel()
            && let Some(known) = kfunc::by_name(name)
        {
            self.check_kfunc_version(known)?;
        }
        if !kfunc.allowed {
            fail!(
                self,
                Acces,
                "calling kernel function {name} is not allowed\n"
            );
        }
        self.aux[self.insn as usize].is_iter_next = kfunc.is_iter_next();
        match kfunc.special {
            Special::ResSpinLock | Special::ResSpinLockIrqsave => self.fork_failed_lock()?,
            Special::Trap => {
                fail!(
                    self,
                    Fault,
                    "unexpected __bpf_trap() due to uninitialized variable?\n"
                );
            }
            _ => {}
        }
        if kfunc.sleepable() && !self.may_sleep() {
            fail!(
                self,
                Acces,
                "program must be sleepable to call sleepable kfunc {name}\n"
            );
        }
        let mut info = Info::default();
        self.check_kfunc_args(&kfunc, &mut info)?;
        let callback = match (kfunc.special, info.root) {
            (Special::RbtreeAdd, Some(root)) => Some(Callback::Tree(root)),
            (Special::WqSetCallback, _) => Some(Callback::Workqueue),
            (Special::TaskWorkSignal | Special::TaskWorkResume, _) => Some(Callback::TaskWork),
            _ => None,
        };
        if let Some(callback) = callback
            && let Err(e) = self.call_callback(info.sub, callback)
        {
            let id = kfunc.id;
            say!(self, "kfunc {name}#{id} failed callback verification\n");
            return Err(e);
        }
        if kfunc.special == Special::SessionCookie {
            info.r0_size = 8;
        }
        self.enter_sections(&kfunc)?;
        self.release_kfunc_arg(&kfunc, &info)?;
        if kfunc.special == Special::Throw && self.exception_callback.is_none() {
            self.check_return_value(1)?;
        }
        self.clobber_caller_saved();
        self.set_kfunc_result(&kfunc, &mut info)?;
        if kfunc.changes_packet() {
            self.forget_packets();
        }
        if let (true, Some((frame, slot))) = (kfunc.is_iter_next(), info.iter) {
            self.iter_next(frame, slot)?;
        }
        if kfunc.special == Special::Throw {
            self.threw = true;
            return self.exit(true);
        }
        self.insn += 1;
        Ok(Next::Continue)
    }

    /// A resilient lock may fail: that is walked in a branch.
    fn fork_failed_lock(&mut self) -> Res {
        let at = self.insn;
        let branch = self.push_branch(at + 1, at)?;
        let regs = &mut branch.top_mut().regs;
        for reg in &mut regs[..6] {
            *reg = Reg::NOT_INIT;
        }
        regs[0] = Reg::UNKNOWN;
        let range = &mut regs[0].range;
        *range = Range::UNKNOWN;
        (range.smin, range.smax) = (-MAX_ERRNO as i64, -1);
        (range.smin32, range.smax32) = (-MAX_ERRNO, -1);
        range.sync();
        Ok(())
    }

    /// RCU sections, and sections without preemption or interrupts.
    fn enter_sections(&mut self, kfunc: &Kfunc<'_>) -> Res {
        let name = kfunc.name;
        let sleepable = kfunc.sleepable();
        let (lock, unlock) = (
            kfunc.special == Special::RcuReadLock,
            kfunc.special == Special::RcuReadUnlock,
        );
        if self.cur.active_rcu {
            if self.in_tree_callback() && (lock || unlock) {
                fail!(
                    self,
                    Acces,
                    "Calling bpf_rcu_read_{{lock,unlock}} in unnecessary rbtree callback\n"
                );
            }
            if lock {
                fail!(
                    self,
                    Inval,
                    "nested rcu read lock (kernel function {name})\n"
                );
            } else if unlock {
                self.cur.change_where_in(
                    &[Byte::Spill, Byte::Iter],
                    |r| r.ty.has(TypeFlags::MEM_RCU),
                    |r| {
                        r.ty =
                            r.ty.without(TypeFlags::MEM_RCU)
                                .without(TypeFlags::PTR_MAYBE_NULL)
                                .with(TypeFlags::PTR_UNTRUSTED);
                    },
                );
                self.cur.active_rcu = false;
            } else if sleepable {
                fail!(
                    self,
                    Acces,
                    "kernel func {name} is sleepable within rcu_read_lock region\n"
                );
            }
        } else if lock {
            self.cur.active_rcu = true;
        } else if unlock {
            fail!(
                self,
                Inval,
                "unmatched rcu read unlock (kernel function {name})\n"
            );
        }
        let (off, on) = (
            kfunc.special == Special::PreemptDisable,
            kfunc.special == Special::PreemptEnable,
        );
        if off {
            self.cur.active_preempt += 1;
        } else if on {
            if self.cur.active_preempt == 0 {
                fail!(
                    self,
                    Inval,
                    "unmatched attempt to enable preemption (kernel function {name})\n"
                );
            }
            self.cur.active_preempt -= 1;
        } else if self.cur.active_preempt > 0 && sleepable {
            fail!(
                self,
                Acces,
                "kernel func {name} is sleepable within non-preemptible region\n"
            );
        }
        if self.cur.active_irq != 0 && sleepable {
            fail!(
                self,
                Acces,
                "kernel func {name} is sleepable within IRQ-disabled region\n"
            );
        }
        if kfunc.flags.has(Flags::RCU_PROTECTED) && !self.in_rcu_section() {
            fail!(
                self,
                Acces,
                "kernel func {name} requires RCU critical section protection\n"
            );
        }
        Ok(())
    }

    fn release_kfunc_arg(&mut self, kfunc: &Kfunc<'_>, info: &Info) -> Res {
        let (name, id) = (kfunc.name, kfunc.id);
        if info.release != 0 {
            let reg = *self.reg(info.release);
            if info.dynptr.is_some_and(|d| d.2 != 0) {
                self.end_dynptr(&reg)?;
            } else if let Err(e) = self.release(reg.ref_obj_id) {
                say!(
                    self,
                    "kfunc {name}#{id} reference has not been acquired before\n"
                );
                return Err(e);
            }
        }
        let inserts = matches!(
            kfunc.special,
            Special::ListPushFront | Special::ListPushBack | Special::RbtreeAdd
        );
        if inserts {
            let owned = self.reg(2).ref_obj_id;
            if owned == 0 || !self.cur.holds(owned) {
                fail!(
                    self,
                    Fault,
                    "kfunc {name}#{id} conversion of owning ref to non-owning failed\n"
                );
            }
            let (of, type_id) = self.reg(2).btf();
            let counted = self.object_record(of, type_id).has(FieldKind::Refcount);
            self.cur.change_where(
                |r| r.ref_obj_id == owned,
                |r| {
                    r.ref_obj_id = 0;
                    r.ty = r.ty.with(TypeFlags::NON_OWN_REF);
                    if counted {
                        r.ty = r.ty.with(TypeFlags::MEM_RCU);
                    }
                },
            );
            if self.release(owned).is_err() {
                fail!(
                    self,
                    Inval,
                    "kfunc {name}#{id} reference has not been acquired before\n"
                );
            }
        }
        Ok(())
    }

    fn set_kfunc_result(&mut self, kfunc: &Kfunc<'a>, info: &mut Info) -> Res {
        let Some(btf) = self.kernel else {
            return Err(Errno::Fault);
        };
        let name = kfunc.name;
        let ret = peel(btf, kfunc.proto.type_id());
        let Some(ret) = ret.filter(|t| t.id() != 0) else {
            return Ok(());
        };
        let pointee = ret
            .is(Kind::Ptr)
            .then(|| peel(btf, ret.type_id()))
            .flatten();
        let to_struct = pointee.filter(|t| matches!(t.kind(), Kind::Struct | Kind::Union));
        let acquires = kfunc.flags.has(Flags::ACQUIRE);
        let allocates = matches!(
            kfunc.special,
            Special::ObjNew | Special::PercpuObjNew | Special::RefcountAcquire
        );
        if acquires && to_struct.is_none() && !allocates {
            fail!(
                self,
                Inval,
                "acquire kernel function does not return PTR_TO_BTF_ID\n"
            );
        }
        if !ret.is(Kind::Ptr) {
            self.set_unknown(0);
            if matches!(
                kfunc.special,
                Special::ResSpinLock | Special::ResSpinLockIrqsave
            ) {
                self.set_zero(0);
            }
            return Ok(());
        }
        let node = to_struct.map_or("", |t| t.name());
        let is_node = matches!(node, "bpf_list_node" | "bpf_rb_node");
        if self.set_special_result(kfunc, info, is_node)? {
        } else if pointee.is_none_or(|t| t.id() == 0) {
            self.set_unknown(0);
        } else if let Some(object) = to_struct {
            let mut ty = RegType::BTF_ID;
            if kfunc.special == Special::GetKmemCache {
                ty = ty.with(TypeFlags::PTR_UNTRUSTED);
            } else if kfunc.flags.has(Flags::RCU_PROTECTED) {
                ty = ty.with(TypeFlags::MEM_RCU);
            }
            if let (true, Some((frame, slot))) = (kfunc.is_iter_next(), info.iter) {
                let rcu = self.slot(frame, slot).reg.ty.has(TypeFlags::MEM_RCU);
                ty = ty.with(if rcu {
                    TypeFlags::MEM_RCU
                } else {
                    TypeFlags::PTR_TRUSTED
                });
            }
            let reg = self.reg_mut(0);
            reg.set_pointer(ty);
            reg.set_btf(BtfOf::Kernel, object.id());
        } else {
            if info.r0_size == 0
                && let Some(size) = pointee.and_then(|t| btf.size_of(t.id()))
            {
                info.r0_size = size;
                info.r0_rdonly = true;
            }
            if info.r0_size == 0 {
                let (kind, tname) =
                    pointee.map_or(("UNKNOWN", ""), |t| (t.kind().upper_name(), t.name()));
                fail!(
                    self,
                    Inval,
                    "kernel function {name} returns pointer type {kind} {tname} is not supported\n"
                );
            }
            let mut ty = RegType::MEM;
            if info.r0_rdonly {
                ty = ty.with(TypeFlags::MEM_RDONLY);
            }
            if kfunc.flags.has(Flags::RCU_PROTECTED) {
                ty = ty.with(TypeFlags::MEM_RCU);
            }
            let reg = self.reg_mut(0);
            reg.set_pointer(ty);
            reg.set_mem_size(info.r0_size);
            reg.ref_obj_id = info.ref_obj_id;
        }
        let or_null = kfunc.flags.has(Flags::RET_NULL)
            && !(kfunc.special == Special::RefcountAcquire && info.owning);
        if or_null {
            let id = self.new_id();
            let reg = self.reg_mut(0);
            reg.ty = reg.ty.with(TypeFlags::PTR_MAYBE_NULL);
            reg.id = id;
        }
        if acquires {
            let id = self.acquire();
            let reg = self.reg_mut(0);
            if or_null {
                reg.id = id;
            }
            reg.ref_obj_id = id;
        } else if is_node {
            let (of, type_id) = self.reg(0).btf();
            let counted = self.object_record(of, type_id).has(FieldKind::Refcount);
            let reg = self.reg_mut(0);
            reg.ty = reg.ty.with(TypeFlags::NON_OWN_REF);
            if counted {
                reg.ty = reg.ty.with(TypeFlags::MEM_RCU);
            }
        }
        if self.reg(0).id == 0 {
            let reg = *self.reg(0);
            let record = self.reg_record(&reg);
            if record.has(FieldKind::SpinLock) || record.has(FieldKind::ResSpinLock) {
                let id = self.new_id();
                self.reg_mut(0).id = id;
            }
        }
        Ok(())
    }

    /// Results that BTF does not tell; false where it does.
    fn set_special_result(
        &mut self,
        kfunc: &Kfunc<'a>,
        info: &mut Info,
        is_node: bool,
    ) -> Res<bool> {
        match kfunc.special {
            Special::ObjNew | Special::PercpuObjNew => {
                let percpu = kfunc.special == Special::PercpuObjNew;
                let id = info.constant.unwrap_or(0);
                if id > u32::MAX as u64 {
                    fail!(
                        self,
                        Inval,
                        "local type ID argument must be in range [0, U32_MAX]\n"
                    );
                }
                let Some(local) = self.local else {
                    fail!(
                        self,
                        Inval,
                        "bpf_obj_new/bpf_percpu_obj_new requires prog BTF\n"
                    );
                };
                let t = local.type_by_id(id as u32).filter(|t| t.is(Kind::Struct));
                let Some(t) = t else {
                    fail!(
                        self,
                        Inval,
                        "bpf_obj_new/bpf_percpu_obj_new type ID argument must be of a struct\n"
                    );
                };
                let size = t.size().unwrap_or(0);
                if percpu && size > MAX_PERCPU_OBJECT {
                    fail!(
                        self,
                        Inval,
                        "bpf_percpu_obj_new type size ({size}) is greater than {MAX_PERCPU_OBJECT}\n"
                    );
                }
                if percpu && !self.is_scalar_struct(local, t, 0) {
                    fail!(
                        self,
                        Inval,
                        "bpf_percpu_obj_new type ID argument must be of a struct of scalars\n"
                    );
                }
                if percpu && !self.object_record(BtfOf::Program, t.id()).fields.is_empty() {
                    fail!(
                        self,
                        Inval,
                        "bpf_percpu_obj_new type ID argument must not contain special fields\n"
                    );
                }
                let mut ty = RegType::ALLOC_OBJ;
                if percpu {
                    ty = ty.with(TypeFlags::MEM_PERCPU);
                }
                self.kernel_objects = true;
                let reg = self.reg_mut(0);
                reg.set_pointer(ty);
                reg.set_btf(BtfOf::Program, t.id());
            }
            Special::RefcountAcquire => {
                let Some((of, id)) = info.object else {
                    return Err(Errno::Fault);
                };
                self.kernel_objects = true;
                let reg = self.reg_mut(0);
                reg.set_pointer(RegType::ALLOC_OBJ);
                reg.set_btf(of, id);
            }
            _ if is_node => {
                let Some(root) = info.root else {
                    return Err(Errno::Fault);
                };
                self.kernel_objects = true;
                let reg = self.reg_mut(0);
                reg.set_pointer(RegType::ALLOC_OBJ);
                reg.set_btf(root.of, root.type_id);
                reg.off = root.node_offset as i32;
            }
            Special::CastToKernCtx => {
                let id = context::of(self.prog_type())
                    .and_then(|l| self.kernel?.by_name(l.kernel_name, Kind::Struct))
                    .map_or(0, |t| t.id());
                let reg = self.reg_mut(0);
                reg.set_pointer(RegType::BTF_ID.with(TypeFlags::PTR_TRUSTED));
                reg.set_btf(BtfOf::Kernel, id);
            }
            Special::RdonlyCast => {
                let id = info.constant.unwrap_or(0);
                let t = self.kernel.and_then(|k| k.type_by_id(id as u32));
                match t {
                    _ if id == 0 => {
                        let ty = RegType::MEM
                            .with(TypeFlags::MEM_RDONLY)
                            .with(TypeFlags::PTR_UNTRUSTED);
                        self.reg_mut(0).set_pointer(ty);
                    }
                    None => {
                        fail!(
                            self,
                            Inval,
                            "Unknown type ID {} passed to kfunc bpf_rdonly_cast\n",
                            id as i64
                        );
                    }
                    Some(t) if matches!(t.kind(), Kind::Struct | Kind::Union) => {
                        let reg = self.reg_mut(0);
                        reg.set_pointer(RegType::BTF_ID.with(TypeFlags::PTR_UNTRUSTED));
                        reg.set_btf(BtfOf::Kernel, id as u32);
                    }
                    Some(_) => {
                        fail!(
                            self,
                            Inval,
                            "kfunc bpf_rdonly_cast type ID argument must be of a struct or void\n"
                        );
                    }
                }
            }
            Special::DynptrSlice | Special::DynptrSliceRdwr => {
                let Some((id, kind, _)) = info.dynptr else {
                    return Err(Errno::Fault);
                };
                let Some(size) = info.constant else {
                    return Err(Errno::Fault);
                };
                let mut ty = RegType::MEM.with(kind.flag());
                if kfunc.special == Special::DynptrSlice {
                    ty = ty.with(TypeFlags::MEM_RDONLY);
                } else if !self.may_access_packet(None, Access::Write) {
                    fail!(
                        self,
                        Inval,
                        "the prog does not allow writes to packet data\n"
                    );
                }
                let reg = self.reg_mut(0);
                reg.set_pointer(ty);
                reg.set_mem_size(size as u32);
                reg.set_dynptr_id(id);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Whether a structure holds numbers only.
    fn is_scalar_struct(&mut self, btf: &'a bpfkit_btf::Btf, t: Type<'a>, depth: u32) -> bool {
        if !matches!(t.kind(), Kind::Struct | Kind::Union) {
            return false;
        }
        let scalar = |t: &Type<'_>| t.is(Kind::Int) || t.kind().is_enum();
        for member in t.members() {
            let Some(mt) = peel(btf, member.type_id) else {
                return false;
            };
            match mt.kind() {
                Kind::Struct | Kind::Union => {
                    if depth >= 3 {
                        say!(self, "max struct nesting depth exceeded\n");
                        return false;
                    }
                    if !self.is_scalar_struct(btf, mt, depth + 1) {
                        return false;
                    }
                }
                Kind::Array => {
                    let element = mt
                        .array()
                        .filter(|a| a.count != 0)
                        .and_then(|a| peel(btf, a.element));
                    if !element.is_some_and(|e| scalar(&e)) {
                        return false;
                    }
                }
                _ if scalar(&mt) => {}
                _ => return false,
            }
        }
        true
    }

    fn is_ctx_arg(&self, pointee: Option<Type<'a>>, raw: Type<'a>) -> bool {
        let Some(layout) = context::of(self.prog_type()) else {
            return false;
        };
        crate::global::names_context(self.prog_type(), layout, pointee, raw)
    }

    /// What a pointer parameter is to be, by its type, its name and what it is given.
    fn kfunc_arg_kind(
        &mut self,
        kfunc: &Kfunc<'a>,
        at: usize,
        ptr: Type<'a>,
        pointee: Option<Type<'a>>,
        params: &[Param<'a>],
    ) -> Res<ArgKind> {
        let Some(btf) = self.kernel else {
            return Err(Errno::Fault);
        };
        let name = params[at].name();
        let reg = *self.reg(at as u8 + 1);
        if kfunc.special == Special::CastToKernCtx || self.is_ctx_arg(pointee, ptr) {
            return Ok(ArgKind::Ctx);
        }
        if name.ends_with("__nullable") && reg.is_null() {
            return Ok(ArgKind::Null);
        }
        if name.ends_with("__alloc") {
            return Ok(ArgKind::AllocObject);
        }
        if name.ends_with("__refcounted_kptr") {
            return Ok(ArgKind::Refcounted);
        }
        let target = pointee.map_or("", |t| t.name());
        let is_struct = pointee.is_some_and(|t| matches!(t.kind(), Kind::Struct | Kind::Union));
        let to = |n: &str| is_struct && target == n;
        let iterates = kfunc
            .flags
            .has_any(Flags::ITER_NEW.or(Flags::ITER_NEXT).or(Flags::ITER_DESTROY));
        if to("bpf_dynptr") {
            return Ok(ArgKind::Dynptr);
        }
        if (iterates && at == 0) || (!iterates && name.ends_with("__iter")) {
            return Ok(ArgKind::Iter);
        }
        let by_type = [
            ("bpf_list_head", ArgKind::ListHead),
            ("bpf_list_node", ArgKind::ListNode),
            ("bpf_rb_root", ArgKind::TreeRoot),
            ("bpf_rb_node", ArgKind::TreeNode),
        ];
        if let Some((_, kind)) = by_type.iter().find(|(n, _)| to(n)) {
            return Ok(*kind);
        }
        if name.ends_with("__str") {
            return Ok(ArgKind::ConstStr);
        }
        if name.ends_with("__map") {
            return Ok(ArgKind::Map);
        }
        if to("bpf_wq") {
            return Ok(ArgKind::Workqueue);
        }
        if to("bpf_task_work") {
            return Ok(ArgKind::TaskWork);
        }
        if name.ends_with("__irq_flag") {
            return Ok(ArgKind::IrqFlag);
        }
        if to("bpf_res_spin_lock") {
            return Ok(ArgKind::ResSpinLock);
        }
        let (kind_name, fname) = (
            pointee.map_or("UNKNOWN", |t| t.kind().upper_name()),
            kfunc.name,
        );
        if reg.ty.base() == Base::BtfId || is_kernel_typed(reg.ty.base()) {
            if !is_struct {
                fail!(
                    self,
                    Inval,
                    "kernel function {fname} args#{at} pointer type {kind_name} {target} is not supported\n"
                );
            }
            return Ok(ArgKind::Object);
        }
        if pointee.is_some_and(|t| t.is(Kind::FuncProto)) {
            return Ok(ArgKind::Callback);
        }
        let sized = params.get(at + 1).is_some_and(|next| {
            let scalar =
                peel(btf, next.type_id).is_some_and(|t| t.is(Kind::Int) || t.kind().is_enum());
            let given = self.reg(at as u8 + 2).ty == RegType::SCALAR;
            scalar && given && (next.name().ends_with("__sz") || next.name().ends_with("__szk"))
        });
        let void = pointee.is_none_or(|t| t.id() == 0);
        let scalar =
            pointee.is_some_and(|t| t.id() != 0 && (t.is(Kind::Int) || t.kind().is_enum()));
        let fits = scalar
            || pointee.is_some_and(|t| t.id() != 0 && self.is_scalar_struct(btf, t, 0))
            || (sized && void);
        if !fits {
            let or_void = if sized { "void, " } else { "" };
            fail!(
                self,
                Inval,
                "arg#{at} pointer type {kind_name} {target} must point to {or_void}scalar, or struct with scalar\n"
            );
        }
        Ok(if sized {
            ArgKind::MemorySize
        } else {
            ArgKind::Memory
        })
    }

    fn check_kfunc_args(&mut self, kfunc: &Kfunc<'a>, info: &mut Info) -> Res {
        let Some(btf) = self.kernel else {
            return Err(Errno::Fault);
        };
        let fname = kfunc.name;
        let params: Vec<Param<'a>> = kfunc.proto.params().collect();
        if params.len() > 5 {
            fail!(
                self,
                Inval,
                "Function {fname} has {} > 5 args\n",
                params.len()
            );
        }
        let mut skip = false;
        for (at, param) in params.iter().enumerate() {
            if std::mem::take(&mut skip) {
                continue;
            }
            let n = at as u8 + 1;
            let name = param.name();
            if name.ends_with("__ign") || name.ends_with("__prog") {
                continue;
            }
            let Some(t) = peel(btf, param.type_id) else {
                return Err(Errno::Inval);
            };
            let reg = *self.reg(n);
            if t.is(Kind::Int) || t.kind().is_enum() {
                self.scalar_arg(n, name, info)?;
                continue;
            }
            if !t.is(Kind::Ptr) {
                let kind = t.kind().upper_name();
                fail!(self, Inval, "Unrecognized arg#{at} type {kind}\n");
            }
            let rcu = kfunc.flags.has(Flags::RCU);
            let nullable = name.ends_with("__nullable");
            if (kfunc.trusted_args() || rcu) && (reg.is_null() || reg.ty.may_be_null()) && !nullable
            {
                fail!(
                    self,
                    Acces,
                    "Possibly NULL pointer passed to trusted arg{at}\n"
                );
            }
            if reg.ref_obj_id != 0 {
                if kfunc.releases() && info.ref_obj_id != 0 {
                    fail!(
                        self,
                        Fault,
                        "verifier bug: more than one arg with ref_obj_id R{n} {} {}\n",
                        reg.ref_obj_id,
                        info.ref_obj_id
                    );
                }
                info.ref_obj_id = reg.ref_obj_id;
                if kfunc.releases() {
                    info.release = n;
                }
            }
            let pointee = peel(btf, t.type_id());
            let kind = self.kfunc_arg_kind(kfunc, at, t, pointee, &params)?;
            if kind == ArgKind::Null {
                continue;
            }
            if kind == ArgKind::Map {
                self.map_arg(n, &reg, info)?;
            }
            let trusts = matches!(kind, ArgKind::Map | ArgKind::AllocObject | ArgKind::Object);
            if trusts && (kfunc.trusted_args() || rcu) && !self.is_trusted(&reg) {
                if !rcu {
                    fail!(self, Inval, "R{n} must be referenced or trusted\n");
                }
                if !reg.ty.has(TypeFlags::MEM_RCU) {
                    fail!(self, Inval, "R{n} must be a rcu pointer\n");
                }
            }
            let releases = kfunc.releases() && reg.ref_obj_id != 0;
            self.check_arg_offset(n, releases, false)?;
            self.pointer_arg(kfunc, at, kind, pointee, param, info)?;
            if kind == ArgKind::MemorySize {
                self.sized_arg(at, param, &params[at + 1], info)?;
                skip = true;
            }
        }
        if kfunc.releases() && info.release == 0 {
            fail!(
                self,
                Inval,
                "release kernel function {fname} expects refcounted PTR_TO_BTF_ID\n"
            );
        }
        Ok(())
    }

    fn scalar_arg(&mut self, n: u8, name: &str, info: &mut Info) -> Res {
        let reg = *self.reg(n);
        if reg.ty != RegType::SCALAR {
            fail!(self, Inval, "R{n} is not a scalar\n");
        }
        let constant = reg.range.bits.is_const();
        if name.ends_with("__k") {
            if !constant {
                fail!(self, Inval, "R{n} must be a known constant\n");
            }
            self.mark_precise(n)?;
            info.constant = Some(reg.range.bits.value);
        } else if matches!(name, "rdonly_buf_size" | "rdwr_buf_size") {
            info.r0_rdonly |= name == "rdonly_buf_size";
            if info.r0_size != 0 {
                fail!(
                    self,
                    Inval,
                    "2 or more rdonly/rdwr_buf_size parameters for kfunc"
                );
            }
            if !constant {
                fail!(self, Inval, "R{n} is not a const\n");
            }
            info.r0_size = reg.range.bits.value as u32;
            self.mark_precise(n)?;
        }
        Ok(())
    }

    fn map_arg(&mut self, n: u8, reg: &Reg, info: &mut Info) -> Res {
        if reg.ty.base() == Base::BtfId {
            // Judged as a pointer to the kernel's structure.
            return Ok(());
        }
        let is_map = matches!(
            reg.ty.base(),
            Base::ConstMapPtr | Base::MapValue | Base::MapKey
        );
        let Some(map) = reg.map().filter(|_| is_map) else {
            fail!(self, Inval, "pointer in R{n} isn't map pointer\n");
        };
        let record = self.maps[map].record.clone();
        let (wq, work) = (
            record.has(FieldKind::Workqueue),
            record.has(FieldKind::TaskWork),
        );
        if info.map.is_some()
            && (wq || work)
            && (info.map != Some(map) || info.map_uid != reg.map_uid())
        {
            let (a, b) = (info.map_uid, reg.map_uid());
            if work {
                fail!(
                    self,
                    Inval,
                    "bpf_task_work pointer in R2 map_uid={a} doesn't match map pointer in R3 map_uid={b}\n"
                );
            }
            fail!(
                self,
                Inval,
                "workqueue pointer in R1 map_uid={a} doesn't match map pointer in R2 map_uid={b}\n"
            );
        }
        info.map = Some(map);
        info.map_uid = reg.map_uid();
        Ok(())
    }

    fn sized_arg(
        &mut self,
        at: usize,
        buffer: &Param<'_>,
        size: &Param<'_>,
        info: &mut Info,
    ) -> Res {
        let n = at as u8 + 1;
        if !(self.reg(n).is_null() && buffer.name().ends_with("__opt"))
            && let Err(e) = self.mem_size_pair(n + 1)
        {
            let next = at + 1;
            say!(
                self,
                "arg#{at} arg#{next} memory, len pair leads to invalid memory access\n"
            );
            return Err(e);
        }
        if size.name().ends_with("__szk") {
            let bits = self.reg(n + 1).range.bits;
            if !bits.is_const() {
                fail!(self, Inval, "R{} must be a known constant\n", n + 1);
            }
            info.constant = Some(bits.value);
        }
        Ok(())
    }

    fn pointer_arg(
        &mut self,
        kfunc: &Kfunc<'a>,
        at: usize,
        kind: ArgKind,
        pointee: Option<Type<'a>>,
        param: &Param<'a>,
        info: &mut Info,
    ) -> Res {
        let n = at as u8 + 1;
        let reg = *self.reg(n);
        let ty = reg.ty;
        let fname = kfunc.name;
        let in_memory = ty == RegType::MAP_VALUE || ty == RegType::ALLOC_OBJ;
        match kind {
            ArgKind::Ctx => {
                if ty != RegType::CTX {
                    fail!(
                        self,
                        Inval,
                        "arg#{at} expected pointer to ctx, but got {ty}\n"
                    );
                }
            }
            ArgKind::AllocObject => {
                if ty == RegType::ALLOC_OBJ {
                    if kfunc.special != Special::ObjDrop {
                        fail!(self, Inval, "arg#{at} expected for bpf_obj_drop_impl()\n");
                    }
                } else if ty == RegType::ALLOC_OBJ.with(TypeFlags::MEM_PERCPU) {
                    if kfunc.special != Special::PercpuObjDrop {
                        fail!(
                            self,
                            Inval,
                            "arg#{at} expected for bpf_percpu_obj_drop_impl()\n"
                        );
                    }
                } else {
                    fail!(
                        self,
                        Inval,
                        "arg#{at} expected pointer to allocated object\n"
                    );
                }
                self.check_referenced(&reg)?;
                info.object = Some(reg.btf());
            }
            ArgKind::Dynptr => self.kfunc_dynptr(kfunc, n, &reg, param, info)?,
            ArgKind::Iter => self.kfunc_iter(kfunc, n, &reg, pointee, info)?,
            ArgKind::ListHead | ArgKind::TreeRoot => {
                if !in_memory {
                    fail!(
                        self,
                        Inval,
                        "arg#{at} expected pointer to map value or allocated object\n"
                    );
                }
                if ty == RegType::ALLOC_OBJ {
                    self.check_referenced(&reg)?;
                }
                let kind = if kind == ArgKind::ListHead {
                    FieldKind::ListHead
                } else {
                    FieldKind::RbRoot
                };
                info.root = Some(self.graph_root(n, &reg, kind)?);
            }
            ArgKind::ListNode => {
                self.check_owned_node(at, &reg)?;
                self.graph_node(n, &reg, FieldKind::ListNode, info)?;
            }
            ArgKind::TreeNode => {
                if kfunc.special == Special::RbtreeAdd {
                    self.check_owned_node(at, &reg)?;
                } else {
                    if !ty.is_non_owning() && reg.ref_obj_id == 0 {
                        fail!(
                            self,
                            Inval,
                            "{fname} can only take non-owning or refcounted bpf_rb_node pointer\n"
                        );
                    }
                    if self.in_tree_callback() {
                        fail!(self, Inval, "{fname} not allowed in rbtree cb\n");
                    }
                }
                self.graph_node(n, &reg, FieldKind::RbNode, info)?;
            }
            ArgKind::Map | ArgKind::Object => self.object_arg(kfunc, at, kind, pointee, &reg)?,
            ArgKind::Memory => {
                let Some(btf) = self.kernel else {
                    return Err(Errno::Fault);
                };
                let size = pointee.and_then(|t| btf.size_of(t.id()));
                let Some(size) = size else {
                    let (k, t) = pointee.map_or(("", ""), |t| (t.kind().upper_name(), t.name()));
                    fail!(
                        self,
                        Inval,
                        "arg#{at} reference type('{k} {t}') size cannot be determined: -22\n"
                    );
                };
                self.mem_arg(n, size)?;
            }
            ArgKind::Callback => {
                if ty != RegType::FUNC {
                    fail!(self, Inval, "arg{at} expected pointer to func\n");
                }
                info.sub = reg.subprog();
            }
            ArgKind::Refcounted => {
                if !ty.is_alloc_object() || ty.has(TypeFlags::PTR_UNTRUSTED) {
                    fail!(
                        self,
                        Inval,
                        "arg#{at} is neither owning or non-owning ref\n"
                    );
                }
                info.owning |= !ty.is_non_owning();
                if !self.reg_record(&reg).has(FieldKind::Refcount) {
                    fail!(
                        self,
                        Inval,
                        "arg#{at} doesn't point to a type with bpf_refcount field\n"
                    );
                }
                info.object = Some(reg.btf());
            }
            ArgKind::ConstStr => {
                if ty != RegType::MAP_VALUE {
                    fail!(self, Inval, "arg#{at} doesn't point to a const string\n");
                }
                self.const_string(n)?;
            }
            ArgKind::Workqueue => {
                if ty != RegType::MAP_VALUE {
                    fail!(self, Inval, "arg#{at} doesn't point to a map value\n");
                }
                let field = reg
                    .map()
                    .and_then(|m| self.maps[m].record.offset_of(FieldKind::Workqueue));
                let off = reg.const_off();
                let is_at = field.map_or(-22, |f| f as i64);
                if off != is_at {
                    fail!(
                        self,
                        Inval,
                        "off {off} doesn't point to 'struct bpf_wq' that is at {is_at}\n"
                    );
                }
                info.map = reg.map();
                info.map_uid = reg.map_uid();
            }
            ArgKind::TaskWork => {
                if ty != RegType::MAP_VALUE {
                    fail!(self, Inval, "arg#{at} doesn't point to a map value\n");
                }
                self.check_map_field(n, FieldKind::TaskWork)?;
                info.map = reg.map();
                info.map_uid = reg.map_uid();
            }
            ArgKind::IrqFlag => {
                if ty != RegType::STACK {
                    fail!(
                        self,
                        Inval,
                        "arg#{at} doesn't point to an irq flag on stack\n"
                    );
                }
                self.irq_flag_arg(kfunc, n, &reg)?;
            }
            ArgKind::ResSpinLock => {
                if !in_memory {
                    fail!(
                        self,
                        Inval,
                        "arg#{at} doesn't point to map value or allocated object\n"
                    );
                }
                let take = matches!(
                    kfunc.special,
                    Special::ResSpinLock | Special::ResSpinLockIrqsave
                );
                let irq = matches!(
                    kfunc.special,
                    Special::ResSpinLockIrqsave | Special::ResSpinUnlockIrqrestore
                );
                self.spin_lock(n, take, true, irq)?;
            }
            ArgKind::MemorySize | ArgKind::Null => {}
        }
        Ok(())
    }

    fn check_referenced(&mut self, reg: &Reg) -> Res {
        if reg.ref_obj_id == 0 {
            fail!(self, Inval, "allocated object must be referenced\n");
        }
        Ok(())
    }

    fn check_owned_node(&mut self, at: usize, reg: &Reg) -> Res {
        if reg.ty != RegType::ALLOC_OBJ {
            fail!(
                self,
                Inval,
                "arg#{at} expected pointer to allocated object\n"
            );
        }
        self.check_referenced(reg)
    }

    fn object_arg(
        &mut self,
        kfunc: &Kfunc<'a>,
        at: usize,
        kind: ArgKind,
        pointee: Option<Type<'a>>,
        reg: &Reg,
    ) -> Res {
        let Some(btf) = self.kernel else {
            return Err(Errno::Fault);
        };
        let ty = reg.ty;
        let n = at + 1;
        let fname = kfunc.name;
        let want = if kind == ArgKind::Map {
            btf.by_name("bpf_map", Kind::Struct)
        } else {
            pointee
        };
        let Some(want) = want else {
            return Err(Errno::Fault);
        };
        let typed =
            ty.base() == Base::BtfId && (!ty.has_unsafe_modifiers() || ty.has(TypeFlags::MEM_RCU));
        if !typed && !is_kernel_typed(ty.base()) {
            let expected = RegType::plain(ty.base()).with(ty.flags() & crate::reg::TRUSTED);
            fail!(
                self,
                Inval,
                "arg#{at} is {ty} expected {expected} or socket\n"
            );
        }
        let have = match ty.base() {
            Base::BtfId => reg.btf(),
            base => {
                let name = match base {
                    Base::Socket => "sock",
                    Base::SockCommon => "sock_common",
                    Base::TcpSock => "tcp_sock",
                    _ => "bpf_map",
                };
                (
                    BtfOf::Kernel,
                    btf.by_name(name, Kind::Struct).map_or(0, |t| t.id()),
                )
            }
        };
        let have_type = self.btf(have.0).and_then(|b| peel(b, have.1));
        let (have_kind, have_name) =
            have_type.map_or(("UNKNOWN", ""), |t| (t.kind().upper_name(), t.name()));
        let have = (have.0, have_type.map_or(have.1, |t| t.id()));
        let (want_kind, want_name) = (want.kind().upper_name(), want.name());
        let alias = have_name != want_name
            && (have_name.strip_suffix("___init") == Some(want_name)
                || want_name.strip_suffix("___init") == Some(have_name));
        let strict = (kfunc.releases() && reg.ref_obj_id != 0) || alias;
        let same = self.struct_ids_match(have, reg.off, (BtfOf::Kernel, want.id()), strict);
        let projection = matches!(
            (want_name, have_name),
            ("__sk_buff", "sk_buff") | ("xdp_md", "xdp_buff")
        );
        if !same && !projection {
            fail!(
                self,
                Inval,
                "kernel function {fname} args#{at} expected pointer to {want_kind} {want_name} but R{n} has a pointer to {have_kind} {have_name}\n"
            );
        }
        Ok(())
    }

    fn kfunc_dynptr(
        &mut self,
        kfunc: &Kfunc<'a>,
        n: u8,
        reg: &Reg,
        param: &Param<'a>,
        info: &mut Info,
    ) -> Res {
        let mut flags = TypeFlags::NONE;
        let mut clone_of = 0;
        if reg.ty == RegType::CONST_DYNPTR {
            flags |= TypeFlags::MEM_RDONLY;
        }
        let uninit = param.name().ends_with("__uninit");
        if uninit {
            flags |= TypeFlags::MEM_UNINIT;
        }
        match kfunc.special {
            Special::DynptrFromSkb => flags |= TypeFlags::DYNPTR_TYPE_SKB,
            Special::DynptrFromXdp => flags |= TypeFlags::DYNPTR_TYPE_XDP,
            Special::DynptrFromSkbMeta => flags |= TypeFlags::DYNPTR_TYPE_SKB_META,
            Special::DynptrClone if uninit => {
                let Some((_, kind, reference)) = info.dynptr else {
                    return Err(Errno::Fault);
                };
                flags |= kind.flag();
                clone_of = reference;
            }
            _ => {}
        }
        self.dynptr_arg(n, flags, clone_of)?;
        if !uninit && let Some(dynptr) = self.dynptr_at(reg) {
            info.dynptr = Some((dynptr.id, dynptr.dynptr_kind(), dynptr.ref_obj_id));
        }
        Ok(())
    }

    fn kfunc_iter(
        &mut self,
        kfunc: &Kfunc<'a>,
        n: u8,
        reg: &Reg,
        pointee: Option<Type<'a>>,
        info: &mut Info,
    ) -> Res {
        let at = n - 1;
        if kfunc.special == Special::IterCssTaskNew {
            let iter = self.prog_type() == ProgType::Tracing
                && self.attach.caller.attach_type == AttachType::TraceIter;
            if self.prog_type() != ProgType::Lsm && !iter && !self.may_sleep() {
                fail!(
                    self,
                    Inval,
                    "css_task_iter is only allowed in bpf_lsm, bpf_iter and sleepable progs\n"
                );
            }
        }
        if reg.ty != RegType::STACK {
            fail!(
                self,
                Inval,
                "arg#{at} expected pointer to an iterator on stack\n"
            );
        }
        let name = pointee.and_then(|t| t.name().strip_prefix("bpf_iter_"));
        let size = pointee
            .and_then(|t| t.size())
            .filter(|s| *s > 0 && s % 8 == 0);
        let (Some(name), Some(size), Some(t)) = (name, size, pointee) else {
            fail!(self, Inval, "expected valid iter pointer as arg #{at}\n");
        };
        let slots = size as usize / 8;
        let of = (BtfOf::Kernel, t.id());
        if kfunc.flags.has(Flags::ITER_NEW) {
            if !self.iter_fits(reg, slots) {
                fail!(
                    self,
                    Inval,
                    "expected uninitialized iter_{name} as arg #{at}\n"
                );
            }
            self.write_object(n, slots)?;
            let rcu = kfunc
                .flags
                .has(Flags::RCU_PROTECTED)
                .then(|| self.in_rcu_section());
            return self.make_iter(reg, rcu, of, slots);
        }
        let first = match self.iter_at(reg, of, slots) {
            Ok(first) => first,
            Err(Errno::Proto) => {
                let fname = kfunc.name;
                fail!(self, Proto, "expected an RCU CS when using {fname}\n");
            }
            Err(_) => fail!(
                self,
                Inval,
                "expected an initialized iter_{name} as arg #{at}\n"
            ),
        };
        self.note_object_read(reg.frameno, first, slots);
        info.iter = Some((reg.frameno, first));
        info.ref_obj_id = self.slot(reg.frameno, first).reg.ref_obj_id;
        if kfunc.flags.has(Flags::ITER_DESTROY) {
            self.end_iter(reg, slots)?;
        }
        Ok(())
    }

    fn irq_flag_arg(&mut self, kfunc: &Kfunc<'_>, n: u8, reg: &Reg) -> Res {
        let at = n - 1;
        let class = u32::from(matches!(
            kfunc.special,
            Special::ResSpinLockIrqsave | Special::ResSpinUnlockIrqrestore
        ));
        if matches!(
            kfunc.special,
            Special::LocalIrqSave | Special::ResSpinLockIrqsave
        ) {
            if !self.irq_flag_fits(reg) {
                fail!(self, Inval, "expected uninitialized irq flag as arg#{at}\n");
            }
            self.write_object(n, 1)?;
            return self.make_irq_flag(reg, class);
        }
        let Some(slot) = self.irq_flag_at(reg) else {
            fail!(
                self,
                Inval,
                "expected an initialized irq flag as arg#{at}\n"
            );
        };
        self.note_object_read(reg.frameno, slot, 1);
        self.end_irq_flag(reg, class)
    }

    /// The list head or tree root that an argument points to; its lock must be held.
    fn graph_root(&mut self, n: u8, reg: &Reg, kind: FieldKind) -> Res<Field> {
        let name = kind.name();
        if !reg.range.bits.is_const() {
            fail!(
                self,
                Inval,
                "R{n} doesn't have constant offset. {name} has to be at the constant offset\n"
            );
        }
        let off = reg.const_off() as u32;
        let record = self.reg_record(reg);
        let Some(field) = record.at(off as u64, |k| k == kind) else {
            fail!(self, Inval, "{name} not found at offset={off}\n");
        };
        let home = match reg.map() {
            Some(map) if reg.ty == RegType::MAP_VALUE => LockHome::Map(map as u32),
            _ => LockHome::Object,
        };
        let kinds = [RefKind::Lock, RefKind::ResLock, RefKind::ResLockIrq];
        if self.cur.active_locks == 0 || !self.cur.holds_lock(&kinds, reg.id, home) {
            if self.cur.active_locks != 0 {
                say!(
                    self,
                    "held lock and object are not in the same allocation\n"
                );
            }
            let at = record
                .offset_of(FieldKind::SpinLock)
                .map_or(-22, |o| o as i32);
            fail!(
                self,
                Inval,
                "bpf_spin_lock at off={at} must be held for {name}\n"
            );
        }
        Ok(*field)
    }

    /// Checks that an argument is a node of the list or tree given before.
    fn graph_node(&mut self, n: u8, reg: &Reg, kind: FieldKind, info: &mut Info) -> Res {
        let name = kind.name();
        if !reg.range.bits.is_const() {
            fail!(
                self,
                Inval,
                "R{n} doesn't have constant offset. {name} has to be at the constant offset\n"
            );
        }
        let off = reg.const_off() as u32;
        if self.reg_record(reg).at(off as u64, |k| k == kind).is_none() {
            fail!(self, Inval, "{name} not found at offset={off}\n");
        }
        let Some(root) = info.root else {
            return Err(Errno::Fault);
        };
        let (wanted, at) = (self.type_name(root.of, root.type_id), root.node_offset);
        if !self.struct_ids_match(reg.btf(), 0, (root.of, root.type_id), true) {
            let (of, id) = reg.btf();
            let have = self.type_name(of, id);
            let head = root.kind.name();
            fail!(
                self,
                Inval,
                "operation on {head} expects arg#1 {name} at offset={at} in struct {wanted}, but arg is at offset={off} in struct {have}\n"
            );
        }
        info.object = Some(reg.btf());
        if off != at {
            fail!(
                self,
                Inval,
                "arg#1 offset={off}, but expected {name} at offset={at} in struct {wanted}\n"
            );
        }
        Ok(())
    }
}

/// Pointer types that stand for a kernel structure.
const fn is_kernel_typed(base: Base) -> bool {
    matches!(
        base,
        Base::Socket | Base::SockCommon | Base::TcpSock | Base::ConstMapPtr
    )
}
