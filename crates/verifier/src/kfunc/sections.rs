//! Calls that begin or end a section: locks, RCU, preemption, interrupts; and a lock that fails.

use crate::checker::Checker;
use crate::fail::{Res, fail};
use crate::range::Range;
use crate::reg::Reg;
use crate::state::Byte;
use bpfkit_spec::TypeFlags;
use bpfkit_spec::kfunc::Flags;

use super::{Kfunc, MAX_ERRNO, Special};

impl<'a> Checker<'a> {
    /// A resilient lock may fail: that is walked in a branch.
    pub(super) fn fork_failed_lock(&mut self) -> Res {
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
    pub(super) fn enter_sections(&mut self, kfunc: &Kfunc<'_>) -> Res {
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
}
