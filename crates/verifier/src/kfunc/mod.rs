//! Kernel functions: which there are, and calls of them.

mod args;
mod object_arg;
mod pointer_arg;
mod result;
mod sections;

use bpfkit_btf::{Kind, Type};
use bpfkit_spec::TypeFlags;
use bpfkit_spec::kfunc::{self, Flags};

use crate::calls::Callback;
use crate::checker::{Checker, Next};
use crate::fail::{Errno, Res, fail, say};
use crate::record::{Field, FieldKind};
use crate::reg::{BtfOf, DynptrKind};

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
        if self.kernel().is_none() {
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
            .kernel()
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
        self.note_kfunc(kfunc.special, info.constant, info.object);
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
}
