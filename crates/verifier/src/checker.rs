//! What a verification keeps: the program, what is known per instruction and subprogram,
//! the current state, and the states still to be walked.

use std::rc::Rc;

use bpfkit_btf::{Btf, Type};
use bpfkit_isa::{Insn, code};
use bpfkit_object::Program;
use bpfkit_spec::ProgType;
use bpfkit_spec::helper::{self, Helper, Proto};
use rustc_hash::FxHashMap;

use crate::env::Environment;
use crate::facts::Gatherer;
use crate::fail::{Errno, Res, fail};
use crate::flow::Flow;
use crate::global::SubArg;
use crate::kfunc::Kfunc;
use crate::liveness::Liveness;
use crate::log::Log;
use crate::maps::MapInfo;
use crate::precision::{Backtrack, Traced};
use crate::prune::IdMap;
use crate::range::Range;
use crate::record::Record;
use crate::reg::{BtfOf, Reg, RegType};
use crate::sanitize::Mask;
use crate::state::{Frame, NO_CALLSITE, State, Step};
use crate::store::Store;
use crate::target::AttachInfo;

/// Most instructions that are walked.
pub(crate) const MAX_PROCESSED: u32 = 1_000_000;
/// Most branches that wait to be walked.
pub(crate) const MAX_PENDING: usize = 8192;
/// Bound of variable offsets and sizes.
pub(crate) const MAX_OFF: i64 = 1 << 29;

/// What is known of one instruction.
#[derive(Clone, Copy)]
pub(crate) struct Aux {
    /// Type of the pointer that it accesses memory through; of an `ld_imm64`, what it loads.
    pub ptr_type: RegType,
    /// Paths may join here: states are compared and kept.
    pub prune_point: bool,
    /// The step to here is recorded.
    pub jmp_point: bool,
    /// A state is always kept here.
    pub force_checkpoint: bool,
    /// Calls a function that calls a callback at once.
    pub calls_callback: bool,
    /// Advances an iterator.
    pub is_iter_next: bool,
    /// Some path reaches it.
    pub seen: bool,
    /// Spill or fill around a call that spares its registers.
    pub fastcall: bool,
    /// Of such a call: how many pairs of spill and fill surround it.
    pub fastcall_spills: u8,
    /// Registers that may be read here or later.
    pub live: u16,
    /// Loop that it belongs to, 0 for none.
    pub scc: u32,
    /// Of a map reference: index in the list of maps plus 1.
    pub map: u32,
    /// Of a reference into a map value: offset. Of one to a kernel variable: size or type id.
    pub extra: u32,
    /// Whether every call of `bpf_loop` here could be turned into a loop: not seen yet,
    /// yes, no; and the callback that all name.
    pub loop_inline: Option<Option<u32>>,
    /// Of arithmetic by an unprivileged process: how its number is masked.
    pub mask: Option<Mask>,
}

impl Aux {
    pub const NEW: Aux = Aux {
        ptr_type: RegType::NOT_INIT,
        prune_point: false,
        jmp_point: false,
        force_checkpoint: false,
        calls_callback: false,
        is_iter_next: false,
        seen: false,
        fastcall: false,
        fastcall_spills: 0,
        live: 0,
        scc: 0,
        map: 0,
        extra: 0,
        loop_inline: None,
        mask: None,
    };
}

/// What is known of one subprogram.
#[derive(Clone, Default)]
pub(crate) struct Sub {
    pub start: u32,
    pub name: String,
    /// Its `FUNC` in the program's BTF, 0 if none.
    pub type_id: u32,
    pub global: bool,
    pub stack_depth: u32,
    /// Lowest stack offset that spills around fast calls leave alone.
    pub fastcall_stack_off: i16,
    pub keep_fastcall_stack: bool,
    pub has_tail_call: bool,
    pub tail_call_reachable: bool,
    pub has_ld_abs: bool,
    pub is_callback: bool,
    pub is_async_callback: bool,
    pub is_exception_callback: bool,
    pub changes_pkt_data: bool,
    pub might_sleep: bool,
    /// A global function that something calls.
    pub called: bool,
    /// A global function that was walked.
    pub verified: bool,
    /// Its BTF does not tell its arguments.
    pub unreliable: bool,
    /// Arguments by its BTF, once looked at; for a failed look, none.
    pub args: Option<Result<Vec<SubArg>, Errno>>,
}

/// A branch that waits to be walked.
pub(crate) struct Pending {
    pub state: State,
    pub insn: u32,
    pub prev: i32,
    pub log_len: u64,
}

/// What walking one instruction led to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// On to `Checker::insn`.
    Continue,
    /// The path ends.
    EndOfPath,
}

/// A verification.
pub(crate) struct Checker<'a> {
    pub env: &'a Environment<'a>,
    pub program: &'a Program,
    pub local: Option<&'a Btf>,
    pub attach: AttachInfo<'a>,
    pub insns: Vec<Insn>,
    pub aux: Vec<Aux>,
    pub subs: Vec<Sub>,
    pub exception_callback: Option<usize>,
    pub flow: Flow,
    pub maps: Vec<MapInfo<'a>>,
    pub kfuncs: Vec<Kfunc<'a>>,
    pub kfunc_index: FxHashMap<(i32, i16), usize>,
    pub helpers: Vec<Option<Option<&'static Proto>>>,

    pub cur: State,
    /// Current instruction, and the one before on the path (-1 at the start).
    pub insn: u32,
    pub prev: i32,
    /// The last step in the current state's history is of the current instruction.
    pub step_open: bool,
    /// The state is to be printed before the next instruction.
    pub print_state: bool,
    pub pending: Vec<Pending>,
    pub store: Store,
    pub live: Liveness,
    pub id_gen: u32,
    pub bt: Backtrack,
    /// What walks back over the current state's history looked for already.
    pub traced: Traced,
    /// Per instruction what walking back looks at ([`crate::precision::origins`]).
    pub origins: Vec<u16>,
    pub idmap: IdMap,
    pub log: Log,
    /// Last line of the log, where the program is refused.
    pub message: String,
    pub printer: crate::print::Printer,

    pub processed: u32,
    pub prev_processed: u32,
    pub jumps: u32,
    pub prev_jumps: u32,
    pub max_states_per_insn: u32,

    /// The licence is compatible with the GPL.
    pub gpl: bool,
    /// Index of the arena that the program refers to.
    pub arena: Option<usize>,
    /// The map that each tail call uses; none if paths differ.
    pub tail_maps: FxHashMap<u32, Option<usize>>,
    /// Some path throws an exception.
    pub threw: bool,
    /// Some number of a pointer's move is masked and not known in advance: states must then
    /// be alike in all numbers, so that every mask is seen.
    pub masks_unknown: bool,
    /// Offsets and sizes of the fields of kernel structures that the program may write, by
    /// structure, as they are asked for.
    pub writable: FxHashMap<&'static str, Vec<(u32, u32)>>,
    /// Special fields of object types, as they are asked for.
    pub records: FxHashMap<(BtfOf, u32), Rc<Record>>,
    /// See [`Facts::needs_kernel_objects`](crate::Facts::needs_kernel_objects).
    pub kernel_objects: bool,
    /// See [`Facts::is_unsound`](crate::Facts::is_unsound).
    pub unsound: bool,
    /// Gathers facts, if they are asked for.
    pub gatherer: Option<Box<Gatherer>>,
}

impl<'a> Checker<'a> {
    /// Program type, of an extension that of the program it extends.
    pub fn prog_type(&self) -> ProgType {
        self.attach.resolved_type
    }

    /// Whether the loading process may do all.
    pub const fn privileged(&self) -> bool {
        self.env.privileged
    }

    /// Whether it is tracked which numbers matter; else all do.
    pub const fn tracks_precision(&self) -> bool {
        self.env.privileged && !self.env.exact_numbers
    }

    pub fn insn(&self) -> Insn {
        self.insns[self.insn as usize]
    }

    pub fn reg(&self, n: u8) -> &Reg {
        &self.cur.top().regs[n as usize]
    }

    pub fn reg_mut(&mut self, n: u8) -> &mut Reg {
        &mut self.cur.top_mut().regs[n as usize]
    }

    pub const fn new_id(&mut self) -> u32 {
        self.id_gen += 1;
        self.id_gen
    }

    /// The kernel's BTF. Asking for it may take milliseconds, once.
    pub fn kernel(&self) -> Option<&'a Btf> {
        self.env.kernel_btf.get()
    }

    pub fn btf(&self, of: BtfOf) -> Option<&'a Btf> {
        match of {
            BtfOf::Kernel => self.kernel(),
            BtfOf::Program => self.local,
        }
    }

    pub fn type_of(&self, of: BtfOf, id: u32) -> Option<Type<'a>> {
        self.btf(of)?.type_by_id(id)
    }

    /// Name of a type for messages.
    pub fn type_name(&self, of: BtfOf, id: u32) -> &'a str {
        self.type_of(of, id).map_or("", |t| t.name())
    }

    /// The subprogram that starts at an instruction.
    pub fn sub_at(&self, start: i64) -> Option<usize> {
        self.subs
            .binary_search_by(|s| (s.start as i64).cmp(&start))
            .ok()
    }

    /// The subprogram that holds an instruction.
    pub fn sub_of(&self, insn: u32) -> usize {
        self.subs.partition_point(|s| s.start <= insn) - 1
    }

    pub fn sub_end(&self, sub: usize) -> u32 {
        self.subs
            .get(sub + 1)
            .map_or(self.insns.len() as u32, |s| s.start)
    }

    /// Helper of that number with the prototype that the program may use.
    pub fn helper_proto(&mut self, id: i32) -> Option<(&'static Helper, Option<&'static Proto>)> {
        let helper = helper::by_id(id)?;
        let at = id as usize;
        if self.helpers.len() <= at {
            self.helpers.resize(at + 1, None);
        }
        let proto = match self.helpers[at] {
            Some(proto) => proto,
            None => {
                let proto = helper.proto_for(&self.attach.caller);
                self.helpers[at] = Some(proto);
                proto
            }
        };
        Some((helper, proto))
    }

    /// The kernel function that a call names, if it is known.
    pub fn kfunc_of(&self, insn: &Insn) -> Option<usize> {
        self.kfunc_index.get(&(insn.imm, insn.off)).copied()
    }

    /// Records the step to the current instruction, or adds to the record.
    pub fn push_step(&mut self, flags: u16, linked: u64) {
        if self.step_open
            && let Some(step) = self.cur.history.last_mut()
        {
            step.flags |= flags;
            step.linked = linked;
            return;
        }
        let step = Step {
            insn: self.insn,
            prev: self.prev as u32,
            flags,
            linked,
        };
        self.cur.history.push(step);
        self.step_open = true;
    }

    /// Puts a copy of the current state by to be walked from `insn` later; the copy is the
    /// last of `pending`.
    pub fn push_branch(&mut self, insn: u32, prev: u32) -> Res<&mut State> {
        let state = self.cur.clone();
        if let Some(parent) = state.parent {
            self.store.get_mut(parent).state.branches += 1;
        }
        let log_len = self.log.len();
        self.pending.push(Pending {
            state,
            insn,
            prev: prev as i32,
            log_len,
        });
        if self.pending.len() > MAX_PENDING {
            let n = self.pending.len();
            fail!(self, NoMem, "The sequence of {n} jumps is too complex.\n");
        }
        self.last_pending()
    }

    /// Puts a fresh state by for an asynchronous callback.
    pub fn push_async(
        &mut self,
        insn: u32,
        prev: u32,
        sub: usize,
        sleepable: bool,
    ) -> Res<&mut State> {
        self.printer.touch_all();
        let mut state = State::new(Frame::new(NO_CALLSITE, 0, sub as u32));
        state.in_sleepable = sleepable;
        let log_len = self.log.len();
        self.pending.push(Pending {
            state,
            insn,
            prev: prev as i32,
            log_len,
        });
        if self.pending.len() > MAX_PENDING {
            let n = self.pending.len();
            fail!(
                self,
                NoMem,
                "The sequence of {n} jumps is too complex for async cb.\n"
            );
        }
        self.last_pending()
    }

    fn last_pending(&mut self) -> Res<&mut State> {
        self.pending
            .last_mut()
            .map(|p| &mut p.state)
            .ok_or(Errno::Fault)
    }

    /// Checks that a register may be read.
    pub fn read_reg(&mut self, n: u8) -> Res {
        if n as usize >= crate::state::REGS {
            fail!(self, Inval, "R{n} is invalid\n");
        }
        self.printer.touch_reg(n);
        if self.reg(n).ty == RegType::NOT_INIT {
            fail!(self, Acces, "R{n} !read_ok\n");
        }
        Ok(())
    }

    /// Checks that a register may be written.
    pub fn may_write_reg(&mut self, n: u8) -> Res {
        if n as usize >= crate::state::REGS {
            fail!(self, Inval, "R{n} is invalid\n");
        }
        self.printer.touch_reg(n);
        if n as usize == crate::state::FP {
            fail!(self, Acces, "frame pointer is read only\n");
        }
        Ok(())
    }

    /// Checks that a register may be written, and makes it an unknown number.
    pub fn write_reg(&mut self, n: u8) -> Res {
        self.may_write_reg(n)?;
        self.set_unknown(n);
        Ok(())
    }

    /// Makes a register an unknown number.
    pub fn set_unknown(&mut self, n: u8) {
        *self.reg_mut(n) = Reg::UNKNOWN;
    }

    /// Makes a register unreadable.
    pub fn set_not_init(&mut self, n: u8) {
        *self.reg_mut(n) = Reg::NOT_INIT;
    }

    /// After a call, R0 to R5 are unreadable.
    pub fn clobber_caller_saved(&mut self) {
        let regs = &mut self.cur.top_mut().regs;
        for reg in &mut regs[..6] {
            *reg = Reg::NOT_INIT;
        }
        for n in 0..6 {
            self.printer.touch_reg(n);
        }
    }

    /// Whether a register is a pointer that must not leak.
    pub fn is_pointer_value(&self, n: u8) -> bool {
        !self.env.privileged && self.reg(n).ty != RegType::SCALAR
    }

    /// A range that contradicts itself is of an impossible path: its bounds are forgotten.
    pub fn sanity_check_bounds(&mut self, n: u8, what: &str) -> Res {
        if self.reg(n).range.contradiction().is_none() {
            return Ok(());
        }
        let range = self.reg(n).range;
        self.reg_mut(n).range = range.without_bounds();
        self.report_contradiction(what, &range)
    }

    /// With `BPF_F_TEST_REG_INVARIANTS` such a range ends verification.
    pub fn report_contradiction(&mut self, what: &str, range: &Range) -> Res {
        let Some(wrong) = range
            .contradiction()
            .filter(|_| self.env.test_reg_invariants)
        else {
            return Ok(());
        };
        let r = range;
        fail!(
            self,
            Fault,
            "verifier bug: REG INVARIANTS VIOLATION ({what}): {wrong} u64=[{:#x}, {:#x}] s64=[{:#x}, {:#x}] u32=[{:#x}, {:#x}] s32=[{:#x}, {:#x}] var_off=({:#x}, {:#x})\n",
            r.umin,
            r.umax,
            r.smin,
            r.smax,
            r.umin32,
            r.umax32,
            r.smin32,
            r.smax32,
            r.bits.value,
            r.bits.mask
        );
    }
}

/// Whether an instruction calls a subprogram.
pub(crate) const fn is_call(insn: &Insn) -> bool {
    insn.code == code::JMP | code::CALL && insn.src == code::PSEUDO_CALL
}

/// Whether an instruction calls a kernel function.
pub(crate) const fn is_kfunc_call(insn: &Insn) -> bool {
    insn.code == code::JMP | code::CALL && insn.src == code::PSEUDO_KFUNC_CALL
}

/// Whether an instruction calls a helper.
pub(crate) const fn is_helper_call(insn: &Insn) -> bool {
    insn.code == code::JMP | code::CALL && insn.src == 0
}

/// Whether an instruction loads the address of a subprogram.
pub(crate) const fn is_func_ref(insn: &Insn) -> bool {
    insn.is_ld_imm64() && insn.src == code::PSEUDO_FUNC
}

/// Whether an instruction is `may_goto`.
pub(crate) const fn is_may_goto(insn: &Insn) -> bool {
    insn.code == code::JMP | code::JCOND && insn.src == 0
}
