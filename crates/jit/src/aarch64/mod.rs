//! The backend for AArch64.
//!
//! Arguments lie where the C calling convention has them; R0 lies in x7, so that it is not
//! the first argument. A program's code begins with what is called from outside: it saves
//! what the program uses, and goes on as the main function. A trap unwinds by setting the
//! stack pointer back to where that left it.

mod alu;
mod call;
mod combined;
mod div;
mod emit;
mod inline;
mod jump;
mod mem;
mod prologue;
mod regs;
mod tail_call;
#[cfg(test)]
mod tests;
mod trampoline;

use std::mem::offset_of;

use bpfkit_isa::Op;
use bpfkit_runtime::native::{Slot, State, Value};
use bpfkit_runtime::{LoadError, LoadErrorKind};

use crate::backend::{Arch, Compiled, Features, Origin, Shared, parts};
use crate::lower::{Function, Plan, Rule, Test, Zeros};
use call::{Stub, Stubs};
use emit::{Alu, Asm, Cc, Label};
use prologue::Entry;
use regs::{FUEL, STATE, T0, gpr};

pub(crate) use regs::free_registers;
pub(crate) use trampoline::trampoline;

/// Programs share nothing yet.
pub(crate) fn shared_code() -> &'static Shared {
    static NONE: Shared = Shared {
        code: Vec::new(),
        places: Vec::new(),
    };
    &NONE
}

/// What happens out of line.
struct Slow {
    entry: Label,
    back: Label,
    /// Slot and detail, for the callout.
    packed: u32,
    stub: Stub,
}

struct Compiler<'p> {
    plan: &'p Plan<'p>,
    features: Features,
    asm: Asm,
    stubs: Stubs,
    slow: Vec<Slow>,
    /// What begins at labels that are neither slots' nor functions'.
    marks: Vec<(u32, Origin)>,
    parts: bool,
    zeros: Zeros,
    slot: usize,
    /// Functions' labels follow the slots'.
    function_labels: u32,
    function: Function,
    entry: Entry,
    exit: Label,
    exit_bound: bool,
    exit_used: bool,
    /// Accesses so far of each size and direction.
    sites: [u32; 8],
    steps_after: Box<[u32]>,
    pointer_base: u64,
}

/// Compiles a plan. `pointer_base` is the address that stands for the first of its
/// function pointers; the others follow at a distance of one byte.
///
/// # Errors
/// The first instruction that this backend cannot do.
pub(crate) fn compile(
    plan: &Plan<'_>,
    features: Features,
    pointer_base: u64,
    parts: bool,
) -> Result<Compiled, LoadError> {
    let error = |kind| LoadError { insn: 0, kind };
    for far in [false, true] {
        let compiler = Compiler::new(plan, features, pointer_base, (far, parts));
        let compiler = compiler.ok_or_else(|| error(LoadErrorKind::Empty))?;
        if let Some(compiled) = compiler.program()? {
            return Ok(compiled);
        }
    }
    Err(error(LoadErrorKind::TooLong))
}

impl<'p> Compiler<'p> {
    /// One that makes far jumps, and says where the stretches of the code begin, or not.
    fn new(
        plan: &'p Plan<'p>,
        features: Features,
        pointer_base: u64,
        (far, parts): (bool, bool),
    ) -> Option<Self> {
        let slots = plan.slots().len();
        let mut asm = Asm::new(slots + 1, plan.rules, far);
        for _ in &plan.functions {
            asm.label();
        }
        Some(Self {
            plan,
            features,
            stubs: Stubs::default(),
            slow: Vec::new(),
            marks: Vec::new(),
            parts,
            zeros: Zeros::default(),
            slot: 0,
            function_labels: slots as u32 + 1,
            function: *plan.functions.first()?,
            entry: Entry::of(plan),
            exit: asm.label(),
            exit_bound: false,
            exit_used: false,
            sites: [0; 8],
            steps_after: if plan.checked {
                plan.steps_after()
            } else {
                Box::default()
            },
            pointer_base,
            asm,
        })
    }
}

impl Compiler<'_> {
    /// The code; `None` where a jump does not reach.
    fn program(mut self) -> Result<Option<Compiled>, LoadError> {
        let plan = self.plan;
        let others = plan.functions.len() > 1 || plan.main_is_called;
        for (i, &function) in plan.functions.iter().enumerate() {
            self.function = function;
            if i > 0 {
                self.exit = self.asm.label();
                (self.exit_bound, self.exit_used) = (false, false);
            }
            if i == 0 && !plan.main_is_called {
                self.enter_main();
            } else {
                if i == 0 {
                    self.enter_through(Label(self.function_labels));
                }
                self.asm.bind(Label(self.function_labels + i as u32));
                self.enter_function();
            }
            self.body()?;
        }
        let enter_function = others.then(|| {
            let label = self.asm.label();
            self.mark(label, Origin::Shared("call of a function"));
            self.enter_any();
            label
        });
        self.out_of_line();
        self.emit_stubs();
        let functions = self.function_labels;
        let Some(finished) = self.asm.finish() else {
            return Ok(None);
        };
        let offset = |label: u32| finished.offset(Label(label)).unwrap_or(0);
        let parts = match self.parts {
            true => parts(plan, &self.marks, |label| finished.offset(Label(label))),
            false => Vec::new(),
        };
        let labels = (0..plan.functions.len() as u32).map(|i| offset(functions + i));
        Ok(Some(Compiled {
            enter_main: None,
            enter_function: enter_function.map_or(0, |label| offset(label.0) as i32),
            links: Vec::new(),
            functions: labels.collect(),
            code: finished.code,
            parts,
            returns: Vec::new(),
        }))
    }

    /// Binds a label where something else begins than an instruction or a function.
    fn mark(&mut self, label: Label, origin: Origin) {
        self.asm.bind(label);
        self.marks.push((label.0, origin));
    }

    fn body(&mut self) -> Result<(), LoadError> {
        let (start, end) = (self.function.start as usize, self.function.end as usize);
        self.zeros.forget();
        let mut slot = start;
        while slot < end {
            self.slot = slot;
            if self.plan.is_target(slot) {
                self.zeros.forget();
            }
            self.asm.bind(Label(slot as u32));
            self.count_segment();
            match self.plan.slots()[slot] {
                Slot::Op(op) => {
                    slot = self.some(slot, &op).map_err(|kind| LoadError {
                        insn: slot as u32,
                        kind,
                    })?;
                }
                Slot::Poison => {
                    self.stop(call::POISON);
                    slot += 1;
                }
                Slot::Second => slot += 1,
            }
        }
        if end == self.plan.slots().len() && !self.plan.ends(end) {
            self.slot = end;
            self.asm.bind(Label(end as u32));
            self.stop(call::PAST_END);
        }
        if self.exit_used && !self.exit_bound {
            let origin = Origin::Epilogue(self.function.start);
            self.mark(self.exit, origin);
            self.epilogue();
        }
        Ok(())
    }

    /// Counts the steps of a segment where it begins.
    fn count_segment(&mut self) {
        let (plan, slot) = (self.plan, self.slot);
        if !plan.checked || !plan.is_segment(slot) {
            return;
        }
        let steps = self.steps_after[slot] as i32 + 1;
        if plan.is_loop(slot) || plan.is_function(slot) {
            self.asm.alu_imm(Alu::Subs, true, FUEL, FUEL, steps);
            let entry = self.asm.label();
            self.asm.b_if(Cc::Mi, entry);
            let packed = (slot as u32) << 8 | call::STEP_LIMIT;
            self.slow.push(Slow {
                entry,
                back: entry,
                packed,
                stub: Stub::Stop,
            });
        } else {
            self.asm.alu_imm(Alu::Sub, true, FUEL, FUEL, steps);
        }
    }

    /// The instruction at a slot, or several that a rule makes one of: the slot to go on at.
    fn some(&mut self, slot: usize, op: &Op) -> Result<usize, LoadErrorKind> {
        if let Some(number) = self.function.spills.of(op)
            && let Some(home) = regs::numbered(number)
        {
            self.spilled(op, home);
            self.zeros.step(op);
            return Ok(slot + op.slots());
        }
        let end = self.function.end as usize;
        if let Some(found) = self.plan.combine(slot, end, self.zeros, Arch::Aarch64) {
            self.combined(&found)?;
            return Ok(found.end);
        }
        self.op(op)?;
        self.zeros.step(op);
        Ok(slot + op.slots())
    }

    fn has(&self, rule: Rule) -> bool {
        self.plan.rules.has(rule)
    }

    fn op(&mut self, op: &Op) -> Result<(), LoadErrorKind> {
        if self.plan.is_unused(self.slot, op) {
            return Ok(());
        }
        match *op {
            Op::Alu {
                op,
                width,
                dst,
                src,
            } => self.alu(op, width, dst, src),
            Op::MovSx {
                width,
                bits,
                dst,
                src,
            } => self.move_signed(width, bits, dst, src),
            Op::Neg { width, dst } => self.negate(width, dst),
            Op::Swap { kind, bits, dst } => self.swap(kind, bits, dst),
            Op::AddrSpaceCast {
                dst, src, dst_as, ..
            } => self.arena_cast(dst, src, dst_as),
            Op::LoadImm64 { dst, value } => {
                let value = match self.plan.resolver.imm64(self.slot, value)? {
                    Value::Known(value) => value,
                    Value::Function(slot) => {
                        let at = self.plan.pointers.partition_point(|&p| p < slot);
                        self.pointer_base + at as u64
                    }
                };
                self.asm.mov_imm(gpr(dst), value);
            }
            Op::Load {
                size,
                signed,
                dst,
                base,
                off,
            } => self.load(size, signed, dst, base, off),
            Op::LoadPacket { size, source, imm } => self.load_packet(size, source, imm),
            Op::Store {
                size,
                base,
                off,
                src,
            } => self.store(size, base, off, src),
            Op::Atomic {
                op,
                size,
                fetch,
                base,
                off,
                src,
            } => {
                if !self.features.lse {
                    return Err(LoadErrorKind::Unsupported("an atomic without LSE"));
                }
                self.atomic(op, size, fetch, base, off, src);
            }
            Op::LoadAcquire {
                size,
                dst,
                base,
                off,
            } => self.load_acquire(size, dst, base, off),
            Op::StoreRelease {
                size,
                base,
                off,
                src,
            } => self.store_release(size, base, off, src),
            Op::Jump { off, .. } => self.jump(off),
            Op::JumpIf {
                cond,
                width,
                dst,
                src,
                off,
            } => {
                let test = Test {
                    cond,
                    width,
                    dst,
                    src,
                };
                self.branch(test, false, self.jump_to(off.into()));
            }
            Op::MayGoto { off } => self.may_goto(off),
            Op::Call(call) => self.call(call)?,
            Op::Exit => self.exit(),
            Op::CallReg(_) => return Err(LoadErrorKind::Unsupported("callx")),
            Op::MovPercpu { dst, src } => {
                let offset = offset_of!(State, percpu_offset) as i32;
                self.asm.load(8, false, T0, STATE, offset);
                self.asm.alu(Alu::Add, true, gpr(dst), gpr(src), T0);
            }
        }
        Ok(())
    }
}
