//! Conditional jumps: which way they go, and what either way teaches.

use bpfkit_isa::code;
use bpfkit_spec::{Feature, MapType, TypeFlags};

use crate::arith::{self, Compare};
use crate::checker::{Aux, Checker, is_may_goto};
use crate::fail::{Res, fail};
use crate::maps::MapInfo;
use crate::marks::bits;
use crate::precision::{Link, Linked};
use crate::range::Range;
use crate::record::FieldKind;
use crate::reg::{ADD_CONST, ADD_CONST32, AT_PKT_END, BEYOND_PKT_END, Base, Reg, RegType};
use crate::state::{Byte, FP, STEP_DST_STACK, STEP_SRC_STACK, State, is_any_packet};

/// Highest offset into a packet.
const MAX_PACKET: u64 = 0xffff;

impl Checker<'_> {
    /// A conditional jump.
    pub fn jump(&mut self) -> Res {
        let insn = self.insn();
        let op = insn.code & 0xf0;
        if op > code::JCOND {
            fail!(self, Inval, "invalid BPF_JMP/JMP32 opcode {op:x}\n");
        }
        if op == code::JCOND {
            return self.may_goto();
        }
        let Some(compare) = Compare::from_op(op) else {
            fail!(self, Inval, "invalid BPF_JMP/JMP32 opcode {op:x}\n");
        };
        self.read_reg(insn.dst)?;
        let from_reg = insn.code & code::X != 0;
        let wide = insn.class() == code::JMP;
        let mut flags = 0;
        if self.reg(insn.dst).ty == RegType::STACK {
            flags |= STEP_DST_STACK;
        }
        let src;
        if from_reg {
            if insn.imm != 0 {
                fail!(self, Inval, "BPF_JMP/JMP32 uses reserved fields\n");
            }
            self.read_reg(insn.src)?;
            src = *self.reg(insn.src);
            let packets = is_plain_packet(self.reg(insn.dst)) && is_plain_packet(&src);
            if !packets && self.is_pointer_value(insn.src) {
                fail!(self, Acces, "R{} pointer comparison prohibited\n", insn.src);
            }
            if src.ty == RegType::STACK {
                flags |= STEP_SRC_STACK;
            }
        } else {
            if insn.src != 0 {
                fail!(self, Inval, "BPF_JMP/JMP32 uses reserved fields\n");
            }
            src = Reg::scalar(insn.imm as i64 as u64);
        }
        if flags != 0 {
            self.push_step(flags, 0);
        }
        let dst = *self.reg(insn.dst);
        if let Some(taken) = self.decide(compare, wide, &dst, &src) {
            if dst.ty == RegType::SCALAR {
                self.mark_precise(insn.dst)?;
            }
            if from_reg && src.ty == RegType::SCALAR {
                self.mark_precise(insn.src)?;
            }
            self.print_after_insn();
            self.insn = self.jump_to(taken);
            return Ok(());
        }
        self.branch(compare, wide, from_reg)
    }

    fn jump_to(&self, taken: bool) -> u32 {
        let off = if taken { self.insn().off as i32 } else { 0 };
        (self.insn as i32 + off + 1) as u32
    }

    fn may_goto(&mut self) -> Res {
        let insn = self.insn();
        if !is_may_goto(&insn) || insn.dst != 0 || insn.imm != 0 {
            fail!(self, Inval, "invalid may_goto imm {}\n", insn.imm);
        }
        let before = self.visit_before_parent();
        let at = self.insn;
        let branch = self.push_branch(at + 1, at)?;
        branch.may_goto_depth += 1;
        if let Some(before) = before {
            self.widen_last_branch(before);
        }
        self.insn = self.jump_to(true);
        Ok(())
    }

    /// Whether the comparison is known to hold or not.
    fn decide(&self, compare: Compare, wide: bool, dst: &Reg, src: &Reg) -> Option<bool> {
        if is_plain_packet(dst) && is_plain_packet(src) && wide {
            return decide_packet(compare, dst, src);
        }
        if dst.ty != RegType::SCALAR || src.ty != RegType::SCALAR {
            // A pointer that is not null against 0.
            let (pointer, value) = match (src.constant(wide), dst.constant(wide)) {
                (Some(value), _) => (dst, value),
                (None, Some(value)) => (src, value),
                _ => return None,
            };
            if !self.is_not_null(pointer) || value != 0 {
                return None;
            }
            return match compare {
                Compare::Eq => Some(false),
                Compare::Ne => Some(true),
                _ => None,
            };
        }
        let old = !self.has(Feature::RangeComparisons);
        if old && src.constant(wide).is_none() {
            return None;
        }
        arith::decide(compare, wide, &dst.range, &src.range)
    }

    fn is_not_null(&self, reg: &Reg) -> bool {
        if reg.ty.may_be_null() {
            return false;
        }
        match reg.ty.base() {
            Base::Socket
            | Base::TcpSock
            | Base::MapValue
            | Base::MapKey
            | Base::SockCommon
            | Base::ConstMapPtr => true,
            Base::BtfId => self.is_trusted(reg),
            Base::Mem => !reg.ty.has(TypeFlags::PTR_UNTRUSTED),
            _ => false,
        }
    }

    /// Both ways are possible: the jump is put by, the path goes on below it.
    fn branch(&mut self, compare: Compare, wide: bool, from_reg: bool) -> Res {
        let insn = self.insn();
        let (d, s) = (insn.dst as usize, insn.src as usize);
        let mut linked = Linked::default();
        if from_reg {
            let src = *self.reg(insn.src);
            if src.ty == RegType::SCALAR && src.id != 0 {
                collect_links(&mut self.cur, &self.aux, src.id, &mut linked);
            }
        }
        let dst = *self.reg(insn.dst);
        if dst.ty == RegType::SCALAR && dst.id != 0 {
            collect_links(&mut self.cur, &self.aux, dst.id, &mut linked);
        }
        if linked.links().len() > 1 {
            self.push_step(0, linked.pack());
        }
        let dst = *self.reg(insn.dst);
        let src = if from_reg {
            *self.reg(insn.src)
        } else {
            Reg::scalar(insn.imm as i64 as u64)
        };
        let target = self.jump_to(true);
        let at = self.insn;
        self.push_branch(target, at)?;
        let infers_null = self.has(Feature::NullByComparison);
        let keeps_id = dst.ty.may_be_null() && self.may_hold_lock(&dst);
        let Some(pending) = self.pending.last_mut() else {
            return Err(crate::fail::Errno::Fault);
        };
        let (this, other) = (&mut self.cur, &mut pending.state);

        let mut contradiction = None;
        if dst.ty == RegType::SCALAR && src.ty == RegType::SCALAR {
            for (state, compare, names) in [
                (&mut *this, compare.negated(), ["false_reg1", "false_reg2"]),
                (&mut *other, compare, ["true_reg1", "true_reg2"]),
            ] {
                let (mut left, mut right) = (dst.range, src.range);
                arith::assume(compare, wide, &mut left, &mut right);
                left.sync();
                right.sync();
                for (range, name) in [&mut left, &mut right].into_iter().zip(names) {
                    if range.contradiction().is_some() {
                        contradiction = contradiction.or(Some((name, *range)));
                        *range = range.without_bounds();
                    }
                }
                let regs = &mut state.top_mut().regs;
                regs[d].range = left;
                if from_reg {
                    regs[s].range = right;
                }
            }
        }
        if from_reg && src.ty == RegType::SCALAR && src.id != 0 {
            sync_links(this, s, &linked);
            sync_links(other, s, &linked);
        }
        if dst.ty == RegType::SCALAR && dst.id != 0 {
            sync_links(this, d, &linked);
            sync_links(other, d, &linked);
        }

        let pointers = dst.ty != RegType::SCALAR && src.ty != RegType::SCALAR;
        if wide
            && from_reg
            && pointers
            && src.ty.may_be_null() != dst.ty.may_be_null()
            && src.ty.base() != Base::BtfId
            && dst.ty.base() != Base::BtfId
            && infers_null
        {
            let equal = match compare {
                Compare::Eq => Some(&mut *other),
                Compare::Ne => Some(&mut *this),
                _ => None,
            };
            if let Some(state) = equal {
                let n = if src.ty.may_be_null() { s } else { d };
                not_null(&mut state.top_mut().regs[n], &self.maps);
            }
        }

        let null_test = wide
            && !from_reg
            && insn.imm == 0
            && matches!(compare, Compare::Eq | Compare::Ne)
            && dst.ty.may_be_null();
        if null_test {
            settle_null(this, d, compare == Compare::Ne, keeps_id, &self.maps);
            settle_null(other, d, compare == Compare::Eq, keeps_id, &self.maps);
        } else if !(wide && from_reg && match_packets(compare, d, s, this, other))
            && self.is_pointer_value(insn.dst)
        {
            fail!(self, Acces, "R{d} pointer comparison prohibited\n");
        }
        if let Some((name, range)) = contradiction {
            self.report_contradiction(name, &range)?;
        }
        self.print_after_insn();
        self.insn = self.jump_to(false);
        Ok(())
    }

    /// Whether what a pointer points to may hold a spin lock, so that it keeps its name.
    fn may_hold_lock(&mut self, reg: &Reg) -> bool {
        let mut reg = *reg;
        self.mark_not_null(&mut reg);
        let record = self.reg_record(&reg);
        record.has(FieldKind::SpinLock) || record.has(FieldKind::ResSpinLock)
    }

    /// A pointer is known not to be null.
    pub fn mark_not_null(&self, reg: &mut Reg) {
        not_null(reg, &self.maps);
    }
}

/// A pointer is known not to be null: lookups give what the map holds.
fn not_null(reg: &mut Reg, maps: &[MapInfo<'_>]) {
    if reg.ty.base() != Base::MapValue {
        reg.ty = reg.ty.without(TypeFlags::PTR_MAYBE_NULL);
        return;
    }
    let Some(map) = reg.map().and_then(|m| maps.get(m)) else {
        return;
    };
    if let Some(inner) = map.inner {
        let record = &maps[inner].record;
        let named = record.has(FieldKind::Timer)
            || record.has(FieldKind::Workqueue)
            || record.has(FieldKind::TaskWork);
        reg.ty = RegType::MAP_PTR;
        reg.set_map(inner, if named { reg.id } else { reg.map_uid() });
        return;
    }
    reg.ty = match map.map_type {
        MapType::Xskmap => RegType::XDP_SOCK,
        MapType::Sockmap | MapType::Sockhash => RegType::SOCKET,
        _ => RegType::MAP_VALUE,
    };
}

/// A register was compared with null: so are all of the same name.
fn settle_null(state: &mut State, n: usize, is_null: bool, keeps_id: bool, maps: &[MapInfo<'_>]) {
    let reg = state.top().regs[n];
    let (id, reference) = (reg.id, reg.ref_obj_id);
    if reference != 0 && reference == id && is_null {
        state.release_ptr(id);
    }
    let fits = |r: &Reg| r.ty.may_be_null() && r.id == id && r.ty != RegType::SCALAR;
    state.change_where(fits, |r| {
        if r.range.smin != 0 || r.range.smax != 0 || !r.range.bits.equals(0) {
            return;
        }
        if !r.ty.is_alloc_object() && r.off != 0 {
            return;
        }
        if is_null {
            r.ty = RegType::SCALAR;
            r.id = 0;
            r.ref_obj_id = 0;
            return;
        }
        not_null(r, maps);
        if !keeps_id {
            r.id = 0;
        }
    });
}

fn is_plain_packet(reg: &Reg) -> bool {
    is_any_packet(reg.ty.base()) && reg.ty.flags().is_empty()
}

fn decide_packet(compare: Compare, dst: &Reg, src: &Reg) -> Option<bool> {
    let (packet, compare) = if src.ty == RegType::PACKET_END {
        (dst, compare)
    } else if dst.ty == RegType::PACKET_END {
        (src, compare.flipped())
    } else {
        return None;
    };
    let range = packet.pkt_range();
    match compare {
        Compare::Le | Compare::Gt if range == BEYOND_PKT_END => Some(compare == Compare::Gt),
        Compare::Lt | Compare::Ge if range == BEYOND_PKT_END || range == AT_PKT_END => {
            Some(compare == Compare::Ge)
        }
        _ => None,
    }
}

/// A packet pointer was compared with the end: how far the packet reaches is known one way,
/// that the pointer is at or beyond the end the other way.
fn match_packets(
    compare: Compare,
    d: usize,
    s: usize,
    this: &mut State,
    other: &mut State,
) -> bool {
    let (dst, src) = (this.top().regs[d], this.top().regs[s]);
    let pair = |a: &Reg, b: &Reg| {
        (a.ty == RegType::PACKET && b.ty == RegType::PACKET_END)
            || (a.ty == RegType::PACKET_META && b.is_initial_packet(RegType::PACKET))
    };
    let (n, compare) = if pair(&dst, &src) {
        (d, compare)
    } else if pair(&src, &dst) {
        (s, compare.flipped())
    } else {
        return false;
    };
    let (good, bad, open, beyond) = match compare {
        Compare::Gt => (this, other, false, true),
        Compare::Lt => (other, this, true, false),
        Compare::Ge => (this, other, true, false),
        Compare::Le => (other, this, false, true),
        _ => return false,
    };
    note_good(good, n, open);
    let reg = &mut bad.top_mut().regs[n];
    if reg.ty == RegType::PACKET {
        reg.set_pkt_range(if beyond { BEYOND_PKT_END } else { AT_PKT_END });
    }
    true
}

/// The bytes before a packet pointer are there; with `open`, the one at it too.
fn note_good(state: &mut State, n: usize, open: bool) {
    let reg = state.top().regs[n];
    if reg.off < 0 || (reg.off == 0 && open) {
        return;
    }
    let umax = reg.range.umax;
    if umax > MAX_PACKET || umax + reg.off as u64 > MAX_PACKET {
        return;
    }
    let range = reg.off + i32::from(open);
    state.change_where(
        |r| r.ty == reg.ty && r.id == reg.id,
        |r| r.set_pkt_range(r.pkt_range().max(range)),
    );
}

/// Finds all registers and slots that share an id; where they are too many, the rest lose it.
/// Registers that nothing will read are left out.
fn collect_links(state: &mut State, aux: &[Aux], id: u32, linked: &mut Linked) {
    let id = id & !ADD_CONST;
    let fits = |r: &Reg| r.ty == RegType::SCALAR && r.id & !ADD_CONST == id;
    for f in (0..=state.curframe()).rev() {
        let (mut regs, mut slots) = (0u16, 0u64);
        let frame = state.frame(f);
        let live = aux[state.frame_insn(f) as usize].live;
        let named = frame.regs[..FP].iter().enumerate();
        for (n, _) in named.filter(|(n, r)| live & (1 << n) != 0 && fits(r)) {
            if !linked.push(Link {
                frame: f as u8,
                at: n as u8,
                is_reg: true,
            }) {
                regs |= 1 << n;
            }
        }
        for (n, slot) in frame.stack.written() {
            if slot.bytes[7] == Byte::Spill
                && fits(&slot.reg)
                && !linked.push(Link {
                    frame: f as u8,
                    at: n as u8,
                    is_reg: false,
                })
            {
                slots |= 1 << n;
            }
        }
        if regs == 0 && slots == 0 {
            continue;
        }
        let frame = state.frame_mut(f);
        for n in (0..FP).filter(|n| regs & (1 << n) != 0) {
            frame.regs[n].unname();
        }
        for n in bits(slots) {
            frame.stack.reach(n).reg.unname();
        }
    }
}

/// What a comparison taught about a register holds for those linked with it.
fn sync_links(state: &mut State, known: usize, linked: &Linked) {
    let top = state.curframe();
    let source = state.top().regs[known];
    for link in linked.links() {
        let f = link.frame as usize;
        if link.is_reg && f == top && link.at as usize == known {
            continue;
        }
        let at = link.at as usize;
        let old = if link.is_reg {
            state.frame(f).regs[at]
        } else {
            state.frame(f).stack[at].reg
        };
        if old.ty != RegType::SCALAR || old.id & !ADD_CONST != source.id & !ADD_CONST {
            continue;
        }
        // What was added in 32 bits says nothing of what was added in 64.
        if (old.id ^ source.id) & ADD_CONST == ADD_CONST {
            continue;
        }
        let mut new = source;
        let plain = old.id & ADD_CONST == 0 && source.id & ADD_CONST == 0;
        if !plain && old.off != source.off {
            let delta = (old.off as i64) - (source.off as i64);
            new.off = old.off;
            new.id = old.id;
            arith::add(&mut new.range, &Range::known(delta as u64));
            if (old.id | source.id) & ADD_CONST32 != 0 {
                new.range.zero_extend32();
            }
            new.range.sync();
        }
        let frame = state.frame_mut(f);
        if link.is_reg {
            frame.regs[at] = new;
        } else {
            frame.stack.reach(at).reg = new;
        }
    }
}
