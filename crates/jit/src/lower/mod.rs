//! The plan that both backends follow: functions, where blocks begin, which registers are
//! live where, what is known of values.

mod combine;
mod facts;
mod inline;
mod live;
mod regs;
mod rules;
mod spill;

pub(crate) use combine::{Combined, Match, Target, Test};
pub(crate) use facts::Zeros;
pub(crate) use inline::{ASKED, Array, Inline, TailCall};
pub(crate) use regs::{ARGS as ARG_REGS, Mask, reads, writes};
pub use rules::{Rule, Rules};
pub(crate) use spill::Spills;

use bpfkit_isa::{Call, Imm64, Op, Reg, Size};
use bpfkit_object::Program;
use bpfkit_runtime::native::{Resolver, Slot, Value};
use bpfkit_runtime::{Code, LoadError, LoadErrorKind, LoadOptions, MapSet, TAIL_CALL};

use crate::backend::Arch;

/// A jump leads here.
const TARGET: u8 = 1;
/// One from here or below does: a loop begins.
const LOOP: u8 = 2;
/// A function begins here.
const FUNCTION: u8 = 4;
/// A stretch of code begins that is executed from its first instruction to its last.
const SEGMENT: u8 = 8;

/// A function of the program.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Function {
    /// First slot, and the slot after the last.
    pub(crate) start: u32,
    pub(crate) end: u32,
    /// Registers it writes.
    pub(crate) writes: Mask,
    /// Whether it calls anything that needs an aligned stack.
    pub(crate) calls: bool,
    pub(crate) may_goto: bool,
    /// Stack slots that live in registers, which count as written.
    pub(crate) spills: Spills,
}

/// What the whole program needs.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Needs {
    /// R10, also for calls.
    pub(crate) frame: bool,
    /// The state of the run: calls, legacy packet loads.
    pub(crate) state: bool,
}

/// What is known of a slot.
#[derive(Clone, Copy, Default)]
struct Info {
    /// Where blocks and functions begin.
    flags: u8,
    /// Registers that the instruction reads and writes; calls read all their arguments.
    reads: Mask,
    writes: Mask,
    /// Registers whose values matter before and after.
    live_in: Mask,
    live_out: Mask,
}

pub(crate) struct Plan<'a> {
    pub(crate) resolver: Resolver<'a>,
    maps: &'a MapSet,
    pub(crate) checked: bool,
    pub(crate) rules: Rules,
    pub(crate) functions: Vec<Function>,
    /// Slots that function pointers may lead to, sorted.
    pub(crate) pointers: Vec<u32>,
    /// Whether main may be called.
    pub(crate) main_is_called: bool,
    pub(crate) needs: Needs,
    /// A program over a packet: entered as a C function of R1–R4 and the end of the stack.
    pub(crate) packet: bool,
    pub(crate) has_atomics: bool,
    /// Whether something loads eight bytes of the stack.
    fills: bool,
    /// Whether functions are handed to others.
    has_callbacks: bool,
    has_calls: bool,
    /// Upper halves of arena pointers: the program's and the host's.
    pub(crate) arena: (u64, u64),
    /// Of each slot, and of the place behind the last.
    info: Vec<Info>,
    /// Calls of helpers that become something else, by slot.
    inline: Vec<(u32, Inline)>,
}

impl<'a> Plan<'a> {
    /// Plans a program of which nothing is known.
    ///
    /// # Errors
    /// The first instruction that cannot run.
    pub(crate) fn new(
        program: &'a Program,
        maps: &'a MapSet,
        options: &'a LoadOptions<'a>,
        checked: bool,
        rules: Rules,
    ) -> Result<Self, LoadError> {
        Self::resolved(Resolver::new(program, maps, options)?, maps, checked, rules)
    }

    /// Plans a program, by what the verifier says of it if it was asked.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub(crate) fn of(
        code: &'a Code,
        maps: &'a MapSet,
        options: &'a LoadOptions<'a>,
        rules: Rules,
    ) -> Result<Self, LoadError> {
        // Arena pointers are 32 bits wide or not, as the compiler pleases; only checked
        // accesses tell.
        let checked = matches!(code, Code::Unverified(_)) || maps.arena().is_some();
        let mut resolver = Resolver::new(code.program(), maps, options)?;
        // Checked code counts what it executes.
        if let Some(facts) = code.facts()
            && !checked
            && rules.has(Rule::DeadCode)
        {
            resolver.drop_dead(|slot| facts.reachable(slot as u32));
        }
        Self::resolved(resolver, maps, checked, rules)
    }

    fn resolved(
        resolver: Resolver<'a>,
        maps: &'a MapSet,
        checked: bool,
        rules: Rules,
    ) -> Result<Self, LoadError> {
        let slots = resolver.slots().len();
        // Callouts pack a slot with eight bits of detail.
        if slots >= 1 << 24 {
            return Err(LoadError {
                insn: 0,
                kind: LoadErrorKind::TooLong,
            });
        }
        let arena = maps.arena().and_then(|map| {
            let arena = map.as_arena()?;
            let high = |address: u64| address & !u64::from(u32::MAX);
            Some((high(arena.base().as_ptr() as u64), high(arena.user_start())))
        });
        let mut plan = Self {
            resolver,
            maps,
            checked,
            rules,
            functions: Vec::new(),
            pointers: Vec::new(),
            main_is_called: false,
            has_atomics: false,
            fills: false,
            has_callbacks: false,
            has_calls: false,
            needs: Needs {
                frame: checked,
                state: checked,
            },
            packet: false,
            arena: arena.unwrap_or_default(),
            info: vec![Info::default(); slots + 1],
            inline: Vec::new(),
        };
        plan.pointers.extend(plan.resolver.subprograms());
        plan.functions.reserve(plan.pointers.len() + 1);
        plan.pointers.retain(|&slot| (slot as usize) < slots);
        plan.mark()?;
        plan.mark_calls();
        plan.split()?;
        // Callouts say where they come from.
        plan.needs.frame |= plan.needs.state;
        live::mark(&mut plan);
        for index in 0..plan.functions.len() {
            // Entering a function clears what it reads first, which is a write as well.
            let first = plan.live_in(plan.functions[index].start as usize);
            plan.functions[index].writes |= first;
        }
        Ok(plan)
    }

    /// Whether the code calls nothing and looks at no state of a run, as atomics do on AArch64:
    /// they stop where they are misaligned.
    pub(crate) fn is_bare(&self) -> bool {
        let misaligned = self.has_atomics && Arch::HOST == Some(Arch::Aarch64);
        !(self.needs.state || misaligned)
    }

    pub(crate) fn slots(&self) -> &[Slot] {
        self.resolver.slots()
    }

    pub(crate) fn op(&self, slot: usize) -> Option<&Op> {
        match self.slots().get(slot) {
            Some(Slot::Op(op)) => Some(op),
            _ => None,
        }
    }

    pub(crate) fn is_target(&self, slot: usize) -> bool {
        self.info[slot].flags & (TARGET | FUNCTION) != 0
    }

    pub(crate) fn is_loop(&self, slot: usize) -> bool {
        self.info[slot].flags & LOOP != 0
    }

    pub(crate) fn is_function(&self, slot: usize) -> bool {
        self.info[slot].flags & FUNCTION != 0
    }

    /// Registers whose values matter after a slot.
    pub(crate) fn live_out(&self, slot: usize) -> Mask {
        self.info[slot].live_out
    }

    /// Registers whose values matter before a slot.
    pub(crate) fn live_in(&self, slot: usize) -> Mask {
        self.info[slot].live_in
    }

    /// Registers that the instruction at a slot reads; calls read all their arguments.
    pub(crate) fn reads(&self, slot: usize) -> Mask {
        self.info[slot].reads
    }

    /// R1–R5 as far as a call takes them, by what is known to be live so far.
    fn arguments(&self, slot: usize, call: Call) -> Mask {
        let first = |count: usize| (1 << (count + 1)) - 2;
        match call {
            Call::Helper(TAIL_CALL) => first(3),
            Call::Helper(id) => match self.inline_at(slot) {
                Some(inline) => inline.reads(),
                None => first(self.resolver.helper_arity(id)),
            },
            Call::Kfunc { .. } => first(self.resolver.kfunc_arity(slot)),
            Call::Local(off) => {
                let known = self.info.get(Self::target(slot, off));
                known.map_or(ARG_REGS, |info| info.live_in & ARG_REGS)
            }
        }
    }

    /// Whether nobody uses what the instruction comes to, and it does nothing else.
    pub(crate) fn is_unused(&self, slot: usize, op: &Op) -> bool {
        let pure = match *op {
            Op::Alu { .. } | Op::MovSx { .. } => true,
            // What does not exist is an error all the same.
            Op::LoadImm64 { value, .. } => self.resolver.imm64(slot, value).is_ok(),
            _ => false,
        };
        pure && self.rules.has(Rule::Unused) && writes(op) & self.info[slot].live_out == 0
    }

    /// The slot a jump leads to, which `mark` has checked.
    pub(crate) fn target(slot: usize, off: i32) -> usize {
        (slot as i64 + 1 + i64::from(off)) as usize
    }

    /// Whether a segment begins at the slot.
    pub(crate) fn is_segment(&self, slot: usize) -> bool {
        self.info[slot].flags & SEGMENT != 0
    }

    /// Instructions that follow a slot in its segment.
    pub(crate) fn steps_after(&self) -> Box<[u32]> {
        let slots = self.slots();
        let mut after = vec![0; slots.len() + 1].into_boxed_slice();
        for slot in (0..slots.len().saturating_sub(1)).rev() {
            after[slot] = match (self.is_segment(slot + 1), slots[slot + 1]) {
                (true, _) => 0,
                (false, Slot::Second) => after[slot + 1],
                (false, _) => after[slot + 1] + 1,
            };
        }
        after
    }

    /// Checks targets and marks where blocks and functions begin.
    fn mark(&mut self) -> Result<(), LoadError> {
        self.info[0].flags |= FUNCTION | SEGMENT;
        for pointer in &self.pointers {
            self.info[*pointer as usize].flags |= FUNCTION | SEGMENT;
        }
        for slot in 0..self.resolver.slots().len() {
            let Slot::Op(op) = self.resolver.slots()[slot] else {
                continue;
            };
            self.mark_op(slot, &op).map_err(|kind| LoadError {
                insn: slot as u32,
                kind,
            })?;
        }
        self.pointers.sort_unstable();
        self.pointers.dedup();
        Ok(())
    }

    fn mark_op(&mut self, slot: usize, op: &Op) -> Result<(), LoadErrorKind> {
        let mut jump = |off: i32| {
            let to = self.resolver.jump(slot, off)? as usize;
            self.info[to].flags |= TARGET | SEGMENT;
            if to <= slot {
                self.info[to].flags |= LOOP;
            }
            self.info[slot + 1].flags |= SEGMENT;
            Ok(())
        };
        match *op {
            Op::Jump { off, .. } => jump(off)?,
            Op::JumpIf { off, .. } => jump(off.into())?,
            Op::MayGoto { off } => {
                jump(off.into())?;
                // The clock is looked at in Rust.
                self.needs.state = true;
            }
            Op::Exit => self.info[slot + 1].flags |= SEGMENT,
            Op::Call(call) => {
                self.has_calls = true;
                match call {
                    Call::Local(off) => {
                        (self.needs.frame, self.needs.state) = (true, true);
                        let to = self.resolver.jump(slot, off)?;
                        self.info[to as usize].flags |= FUNCTION | SEGMENT;
                        self.info[slot + 1].flags |= SEGMENT;
                        self.main_is_called |= to == 0;
                        // Its arguments are not known when the call is looked at first.
                        if to as usize <= slot {
                            self.info[to as usize].flags |= LOOP;
                        }
                    }
                    // Resolved again when it is emitted: here for the error.
                    Call::Helper(TAIL_CALL) => {}
                    Call::Helper(id) => _ = self.resolver.helper(id)?,
                    Call::Kfunc { btf_id, .. } => _ = self.resolver.kfunc(slot, btf_id)?,
                }
            }
            Op::Atomic { .. } | Op::LoadAcquire { .. } | Op::StoreRelease { .. } => {
                self.has_atomics = true;
            }
            Op::LoadPacket { .. } => self.needs.state = true,
            Op::LoadImm64 {
                value: value @ Imm64::Func(_),
                ..
            } => {
                if let Value::Function(to) = self.resolver.imm64(slot, value)? {
                    self.info[to as usize].flags |= FUNCTION | SEGMENT;
                    self.pointers.push(to);
                    self.has_callbacks = true;
                }
            }
            Op::CallReg(_) => return Err(LoadErrorKind::Unsupported("callx")),
            Op::MovPercpu { .. } => self.needs.state = true,
            Op::Load {
                size: Size::DW,
                base: Reg::R10,
                ..
            } => self.fills = true,
            _ => {}
        }
        let (reads, writes) = (reads(op), writes(op));
        (self.info[slot].reads, self.info[slot].writes) = (reads, writes);
        self.needs.frame |= (reads | writes) & regs::FRAME != 0;
        Ok(())
    }

    /// Finds out what calls need.
    fn mark_calls(&mut self) {
        if !self.has_calls {
            return;
        }
        self.inline = self.find_inline();
        let mut inline = self.inline.iter().peekable();
        for (slot, op) in self.resolver.slots().iter().enumerate() {
            if !matches!(op, Slot::Op(Op::Call(_))) {
                continue;
            }
            match inline.next_if(|(s, _)| *s as usize == slot) {
                Some((_, inline)) => self.needs.state |= inline.needs_state(),
                None => (self.needs.frame, self.needs.state) = (true, true),
            }
        }
    }

    /// Makes the list of functions; each must keep to itself.
    fn split(&mut self) -> Result<(), LoadError> {
        let slots = self.resolver.slots();
        let mut start = 0;
        while start < slots.len() {
            let len = self.info[start + 1..slots.len()]
                .iter()
                .position(|info| info.flags & FUNCTION != 0);
            let end = len.map_or(slots.len(), |len| start + 1 + len);
            let mut function = Function {
                start: start as u32,
                end: end as u32,
                writes: 0,
                calls: self.checked,
                may_goto: false,
                spills: Spills::default(),
            };
            for (slot, op) in slots.iter().enumerate().take(end).skip(start) {
                let op = match op {
                    Slot::Op(op) => op,
                    Slot::Poison => {
                        function.calls = true;
                        self.needs.state = true;
                        continue;
                    }
                    Slot::Second => continue,
                };
                function.writes |= self.info[slot].writes;
                function.calls |= match op {
                    Op::Call(_) => self.inline_at(slot).is_none_or(Inline::calls),
                    Op::LoadPacket { .. } | Op::MayGoto { .. } => true,
                    _ => false,
                };
                function.may_goto |= matches!(op, Op::MayGoto { .. });
                let off = match *op {
                    Op::Jump { off, .. } => off,
                    Op::JumpIf { off, .. } | Op::MayGoto { off } => off.into(),
                    _ => continue,
                };
                if !(start..end).contains(&Self::target(slot, off)) {
                    let kind = LoadErrorKind::Unsupported("a jump into another function");
                    return Err(LoadError {
                        insn: slot as u32,
                        kind,
                    });
                }
            }
            if end < slots.len() && !self.ends(end) {
                let kind = LoadErrorKind::Unsupported("a function that ends in another one");
                return Err(LoadError {
                    insn: end as u32 - 1,
                    kind,
                });
            }
            self.functions.push(function);
            start = end;
        }
        // Behind the last instruction lies a trap.
        if !self.ends(self.slots().len()) {
            self.needs.state = true;
            if let Some(last) = self.functions.last_mut() {
                last.calls = true;
            }
        }
        Ok(())
    }

    /// Whether nothing falls through to the slot `end` from the one before it.
    pub(crate) fn ends(&self, end: usize) -> bool {
        let before = self.slots().get(..end).unwrap_or_default();
        let last = before.iter().rfind(|slot| **slot != Slot::Second);
        matches!(last, Some(Slot::Op(Op::Exit | Op::Jump { .. })))
    }
}
