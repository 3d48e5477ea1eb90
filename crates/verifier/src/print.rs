//! States and instructions as the log shows them.

use std::borrow::Cow;

use bpfkit_isa::{Syntax, disasm};

use crate::checker::{Checker, is_func_ref};
use crate::fail::say;
use crate::marks::Marks;
use crate::reg::{ADD_CONST, Base, IterState, Reg, RegType};
use crate::slots::DYNPTR_SLOTS;
use crate::state::{Byte, FP, Frame, State, StateId};
use crate::store::Checkpoint;
use crate::tnum::Tnum;

/// Where states beside instructions begin at the earliest, and at multiples of what beyond;
/// less what the newline took.
const COLUMN: u64 = 40;
const TAB: u64 = 8;

/// What changed since it was printed last.
#[derive(Default)]
pub(crate) struct Printer {
    regs: u16,
    slots: u64,
    /// Line printed last, by its place in the program's list plus 1.
    line: usize,
}

impl Printer {
    pub const fn touch_reg(&mut self, n: u8) {
        self.regs |= 1 << n;
    }

    pub const fn touch_slot(&mut self, _frame: u8, slot: usize) {
        self.slots |= 1 << slot;
    }

    /// Everything is to be printed.
    pub const fn touch_all(&mut self) {
        self.regs = u16::MAX;
        self.slots = u64::MAX;
    }

    const fn is_clean(&self) -> bool {
        self.regs == 0 && self.slots == 0
    }
}

/// An unsigned number: large ones in hexadecimal.
fn unum(value: u64) -> String {
    if value <= u16::MAX as u64 {
        value.to_string()
    } else {
        format!("{value:#x}")
    }
}

/// A signed number: large ones in hexadecimal.
fn snum(value: i64) -> String {
    if i16::try_from(value).is_ok() {
        value.to_string()
    } else {
        format!("{value:#x}")
    }
}

/// Known bits: a constant, or value and mask.
pub(crate) fn bits(t: Tnum) -> String {
    if t.mask == 0 {
        unum(t.value)
    } else {
        format!("({:#x}; {:#x})", t.value, t.mask)
    }
}

/// Adds `name=value` to a list in parentheses.
fn add(list: &mut Vec<String>, name: &str, value: impl std::fmt::Display) {
    list.push(format!("{name}={value}"));
}

fn add_ranges(list: &mut Vec<String>, reg: &Reg) {
    let r = &reg.range;
    let narrow = |v: i32| {
        if i16::try_from(v).is_ok() {
            v as i64 as u64
        } else {
            v as u32 as u64
        }
    };
    let mut all = [
        ("smin", r.smin as u64, r.smin == i64::MIN),
        ("smax", r.smax as u64, r.smax == i64::MAX),
        ("umin", r.umin, r.umin == 0),
        ("umax", r.umax, r.umax == u64::MAX),
        ("smin32", narrow(r.smin32), r.smin32 == i32::MIN),
        ("smax32", narrow(r.smax32), r.smax32 == i32::MAX),
        ("umin32", r.umin32 as u64, r.umin32 == 0),
        ("umax32", r.umax32 as u64, r.umax32 == u32::MAX),
    ];
    let negative = |e: (&str, u64, bool)| e.0.starts_with('s') && (e.1 as i64) < 0;
    for at in 0..all.len() {
        let first = all[at];
        if first.2 {
            continue;
        }
        let mut names = first.0.to_string();
        for other in all[at + 1..].iter_mut().skip(1).step_by(2) {
            if !other.2 && other.1 == first.1 && negative(*other) == negative(first) {
                other.2 = true;
                names = format!("{names}={}", other.0);
            }
        }
        let value = if first.0.starts_with('s') {
            snum(first.1 as i64)
        } else {
            unum(first.1)
        };
        add(list, &names, value);
    }
}

/// Names of what instructions call.
struct Names<'c, 'a> {
    checker: &'c Checker<'a>,
}

impl disasm::Symbols for Names<'_, '_> {
    fn helper(&self, id: i32) -> Option<Cow<'_, str>> {
        bpfkit_spec::helper::by_id(id).map(|h| h.full_name().into())
    }

    fn kfunc(&self, btf_id: i32, btf_index: i16) -> Option<Cow<'_, str>> {
        let at = self.checker.kfunc_index.get(&(btf_id, btf_index))?;
        Some(self.checker.kfuncs[*at].name.into())
    }
}

impl Checker<'_> {
    fn show_reg(&self, frame: u8, reg: &Reg, precise: bool) -> String {
        let ty = reg.ty;
        let constant = reg.range.bits.is_const();
        let mut out = String::new();
        if ty == RegType::SCALAR && (precise || !self.privileged()) {
            out.push('P');
        }
        if ty == RegType::SCALAR && constant {
            return out + &snum(reg.range.bits.value as i64);
        }
        out += &ty.to_string();
        if ty == RegType::ARENA {
            return out;
        }
        if ty == RegType::STACK {
            if frame != reg.frameno {
                out += &format!("[{}]", reg.frameno);
            }
            if constant {
                return out + &snum(reg.const_off());
            }
        }
        if ty.base() == Base::BtfId {
            let (of, id) = reg.btf();
            out += self.type_name(of, id);
        }
        let mut list = Vec::new();
        if reg.id != 0 {
            let mut id = format!("id={}", reg.id & !ADD_CONST);
            if reg.id & ADD_CONST != 0 {
                id += &format!("{:+}", reg.off);
            }
            list.push(id);
        }
        if reg.ref_obj_id != 0 {
            add(&mut list, "ref_obj_id", reg.ref_obj_id);
        }
        if ty.is_non_owning() {
            list.push("non_own_ref".into());
        }
        if matches!(ty.base(), Base::ConstMapPtr | Base::MapKey | Base::MapValue)
            && let Some(map) = reg.map().map(|m| &self.maps[m])
        {
            if !map.name.is_empty() {
                add(&mut list, "map", &map.name);
            }
            add(&mut list, "ks", map.key_size);
            add(&mut list, "vs", map.value_size);
        }
        if ty != RegType::SCALAR && reg.off != 0 {
            add(&mut list, "off", snum(reg.off as i64));
        }
        if ty.is_packet() {
            add(&mut list, "r", unum(i64::from(reg.pkt_range()) as u64));
        }
        if ty.base() == Base::Mem {
            add(&mut list, "sz", unum(reg.mem_size() as u64));
        }
        if ty == RegType::CONST_DYNPTR {
            add(&mut list, "type", reg.dynptr_kind().name());
        }
        if constant {
            if reg.range.bits.value != 0 {
                add(&mut list, "imm", snum(reg.range.bits.value as i64));
            }
        } else {
            add_ranges(&mut list, reg);
            if !reg.range.bits.is_unknown() {
                add(&mut list, "var_off", bits(reg.range.bits));
            }
        }
        format!("{out}({})", list.join(","))
    }

    fn show_slot(&self, frame: &Frame, marks: &Marks, at: &mut usize) -> Option<String> {
        if marks.live_slots & (1 << *at) == 0 {
            return None;
        }
        let slot = &frame.stack[*at];
        let letters: String = slot.bytes.iter().map(|b| b.letter()).collect();
        if slot.bytes.iter().all(|b| *b == Byte::Invalid) {
            return None;
        }
        let off = |at: usize| crate::prune::offset_of(at);
        Some(match slot.bytes[7] {
            Byte::Spill => {
                let above: String = slot
                    .bytes
                    .iter()
                    .take_while(|b| **b != Byte::Spill)
                    .map(|b| b.letter())
                    .collect();
                format!(
                    " fp{}={above}{}",
                    off(*at),
                    self.show_reg(frame.frameno, &slot.reg, marks.precise_slot(*at))
                )
            }
            Byte::Dynptr => {
                *at += DYNPTR_SLOTS - 1;
                let reg = frame.stack.get(*at)?.reg;
                let mut list = Vec::new();
                if reg.id != 0 {
                    add(&mut list, "id", reg.id);
                }
                if reg.ref_obj_id != 0 {
                    add(&mut list, "ref_id", reg.ref_obj_id);
                }
                // The kernel reads the flag of the first slot as an id.
                add(&mut list, "dynptr_id", u32::from(reg.dynptr_first()));
                let kind = reg.dynptr_kind().name();
                format!(" fp{}=dynptr_{kind}({})", off(*at), list.join(","))
            }
            Byte::Iter => {
                let reg = &slot.reg;
                if reg.ref_obj_id == 0 {
                    return None;
                }
                let (of, id) = reg.btf();
                let name = self.type_name(of, id);
                let name = name.strip_prefix("bpf_iter_").unwrap_or(name);
                let state = match reg.iter_state() {
                    IterState::Active => "active",
                    IterState::Drained => "drained",
                    IterState::Invalid => "<invalid>",
                };
                format!(
                    " fp{}=iter_{name}(ref_id={},state={state},depth={})",
                    off(*at),
                    reg.ref_obj_id,
                    reg.iter_depth()
                )
            }
            _ => format!(" fp{}={letters}", off(*at)),
        })
    }

    fn show_state(&self, state: &State, marks: &Marks, frame: usize, all: bool) -> String {
        let mut out = String::new();
        let shown = state.frame(frame);
        let all_regs = if all { u16::MAX } else { 0 };
        if frame > 0 {
            out += &format!(" frame{frame}:");
        }
        for (n, reg) in shown.regs.iter().enumerate() {
            let shown = marks.live_regs & (all_regs | self.printer.regs) & (1 << n) != 0;
            if reg.ty != RegType::NOT_INIT && shown {
                let text = self.show_reg(frame as u8, reg, marks.precise_reg(n));
                out += &format!(" R{n}={text}");
            }
        }
        let mut at = 0;
        while at < shown.stack.len() {
            if all || self.printer.slots & (1 << at) != 0 {
                out += &self.show_slot(shown, marks, &mut at).unwrap_or_default();
            }
            at += 1;
        }
        if let Some((first, rest)) = state.refs.split_first().filter(|(r, _)| r.id != 0) {
            out += &format!(" refs={}", first.id);
            for r in rest.iter().filter(|r| r.id != 0) {
                out += &format!(",{}", r.id);
            }
        }
        if shown.in_callback {
            out += " cb";
        }
        if shown.in_async_callback {
            out += " async_cb";
        }
        out + "\n"
    }

    /// Prints the source line of an instruction, if it was not printed just before.
    pub fn print_line(&mut self, insn: u32, prefix: &str) {
        if !self.log.verbose() {
            return;
        }
        let lines = &self.program.lines;
        let at = lines.partition_point(|l| l.insn <= insn);
        if at == 0 || self.printer.line == at {
            return;
        }
        let line = &lines[at - 1];
        let before = self
            .printer
            .line
            .checked_sub(1)
            .and_then(|at| lines.get(at));
        if before.is_some_and(|b| b.line == line.line && b.file == line.file) {
            return;
        }
        self.printer.line = at;
        let file = line.file.rsplit('/').next().unwrap_or("");
        let text = line.text.trim_start();
        say!(self, "{prefix}{text} @ {file}:{}\n", line.line);
    }

    /// Prints an instruction.
    pub fn print_insn(&mut self, insn: u32) {
        let names = Names { checker: self };
        let code = &self.insns[insn as usize];
        let line = match is_func_ref(code) {
            true => format!("({:02x}) r{} = {:#x}", code.code, code.dst, code.imm as u32),
            false => disasm::line(&self.insns, insn as usize, Syntax::Kernel, &names).to_string(),
        };
        let text = format!("{line}\n");
        self.log.push(&text);
    }

    /// Prints a frame of the current state.
    pub fn print_cur(&mut self, frame: usize, all: bool) {
        let text = self.show_state(&self.cur, &Marks::NEW, frame, all);
        self.log.push(&text);
        if !all {
            self.printer.regs = 0;
            self.printer.slots = 0;
        }
    }

    /// Prints a frame of a kept state.
    pub fn print_kept(&mut self, id: StateId, frame: usize, all: bool) {
        let Checkpoint { state, marks, .. } = self.store.get(id);
        let text = self.show_state(state, &marks[frame], frame, all);
        self.log.push(&text);
    }

    /// Prints what an instruction changed, beside it.
    pub fn print_after_insn(&mut self) {
        if !self.log.verbose() || self.printer.is_clean() {
            return;
        }
        // The state goes on the instruction's own line.
        if self.log.len() == self.log.insn_end && self.log.insn_end > 0 {
            self.log.drop_newline();
            let width = self.log.insn_width;
            let fill = (width + TAB / 2).max(COLUMN).next_multiple_of(TAB) - width - 1;
            let fill = fill as usize;
            say!(self, "{:fill$};", "");
        } else {
            say!(self, "{}:", self.insn);
        }
        let frame = self.cur.curframe();
        self.print_cur(frame, false);
    }

    /// Prints that the current state is covered by one kept.
    pub fn print_safe(&mut self) {
        if !self.log.verbose() {
            return;
        }
        let (prev, at) = (self.prev, self.insn);
        match std::mem::take(&mut self.print_state) {
            true => say!(self, "\nfrom {prev} to {at}: safe\n"),
            false => say!(self, "{at}: safe\n"),
        }
    }

    /// Prints which registers each instruction finds in use, with the loop it belongs to.
    pub fn print_live_registers(&mut self) {
        if !self.log.all_paths() {
            return;
        }
        say!(self, "Live regs before insn:\n");
        let mut at = 0;
        while at < self.insns.len() {
            let aux = self.aux[at];
            match aux.scc {
                0 => say!(self, "    "),
                scc => say!(self, "{scc:3} "),
            }
            say!(self, "{at:3}: ");
            for n in 0..FP {
                match aux.live & (1 << n) {
                    0 => say!(self, "."),
                    _ => say!(self, "{n}"),
                }
            }
            say!(self, " ");
            self.print_insn(at as u32);
            at += if self.insns[at].is_ld_imm64() { 2 } else { 1 };
        }
    }

    /// Prints the state before an instruction and the instruction.
    pub fn print_step(&mut self) {
        if !self.log.verbose() {
            return;
        }
        let at = self.insn;
        let frame = self.cur.curframe();
        if std::mem::take(&mut self.print_state) && self.log.all_paths() {
            let prev = self.prev;
            say!(self, "\nfrom {prev} to {at}:");
            self.print_cur(frame, true);
        }
        self.print_after_insn();
        self.print_line(at, "; ");
        let start = self.log.len();
        say!(self, "{at}: ");
        self.print_insn(at);
        self.log.insn_width = self.log.len() - start;
        self.log.insn_end = self.log.len();
    }
}
