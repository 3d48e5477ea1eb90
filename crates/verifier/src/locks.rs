//! Spin locks in map values and allocated objects.

use crate::checker::Checker;
use crate::fail::{Errno, Res, fail};
use crate::record::FieldKind;
use crate::reg::RegType;
use crate::state::{LockHome, RefKind};

impl Checker<'_> {
    /// Takes or gives back the lock that a register points to.
    pub fn spin_lock(&mut self, n: u8, take: bool, resilient: bool, irq: bool) -> Res {
        let reg = *self.reg(n);
        let what = if resilient {
            "bpf_res_spin"
        } else {
            "bpf_spin"
        };
        if !reg.range.bits.is_const() {
            fail!(
                self,
                Inval,
                "R{n} doesn't have constant offset. {what}_lock has to be at the constant offset\n"
            );
        }
        let map = if reg.ty == RegType::MAP_VALUE {
            reg.map()
        } else {
            None
        };
        if let Some(map) = map.filter(|m| !self.maps[*m].has_btf) {
            let name = self.maps[map].name.clone();
            fail!(
                self,
                Inval,
                "map '{name}' has to have BTF in order to use {what}_lock\n"
            );
        }
        let kind = if resilient {
            FieldKind::ResSpinLock
        } else {
            FieldKind::SpinLock
        };
        let record = self.reg_record(&reg);
        let Some(at) = record.offset_of(kind) else {
            match map {
                Some(map) => {
                    let name = self.maps[map].name.clone();
                    fail!(self, Inval, "map '{name}' has no valid {what}_lock\n");
                }
                None => fail!(self, Inval, "local 'kptr' has no valid {what}_lock\n"),
            }
        };
        let off = reg.const_off();
        if off != at as i64 {
            fail!(
                self,
                Inval,
                "off {off} doesn't point to 'struct {what}_lock' that is at {at}\n"
            );
        }
        let home = map.map_or(LockHome::Object, |m| LockHome::Map(m as u32));
        let kind = match (resilient, irq) {
            (false, _) => RefKind::Lock,
            (true, false) => RefKind::ResLock,
            (true, true) => RefKind::ResLockIrq,
        };
        if take {
            let both = [RefKind::ResLock, RefKind::ResLockIrq];
            if resilient && self.cur.active_locks > 0 && self.cur.holds_lock(&both, reg.id, home) {
                fail!(
                    self,
                    Inval,
                    "Acquiring the same lock again, AA deadlock detected\n"
                );
            }
            let insn = self.insn;
            self.cur.acquire_lock(kind, reg.id, home, insn);
            return Ok(());
        }
        if self.cur.active_locks == 0 {
            fail!(self, Inval, "{what}_unlock without taking a lock\n");
        }
        if !self.cur.holds_lock(&[kind], reg.id, home) {
            fail!(self, Inval, "{what}_unlock of different lock\n");
        }
        if reg.id != self.cur.active_lock_id || home != self.cur.active_lock_home {
            fail!(self, Inval, "{what}_unlock cannot be out of order\n");
        }
        if !self.cur.release_lock(kind, reg.id, home) {
            return Err(Errno::Inval);
        }
        self.forget_where(|r| r.ty.is_non_owning());
        Ok(())
    }
}
