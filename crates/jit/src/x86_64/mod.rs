//! The backend for x86-64.
//!
//! Arguments and result of a function lie where the C calling convention has them, so that
//! calls move nothing. What programs share ([`shared`]) lies at the beginning of a block of
//! code memory: programs are run by way of it, which saves all registers, and call Rust by way
//! of it. A trap unwinds by setting the stack pointer back to where the run began; what a
//! function saves is popped by its `exit` only. A program that needs nothing of the run is
//! entered as it is.

mod address;
mod alu;
mod call;
mod combined;
mod div;
mod emit;
mod fold;
mod inline;
mod jump;
mod mem;
mod prologue;
mod regs;
mod shared;
mod tail_call;
#[cfg(test)]
mod tests;
mod trampoline;

use std::mem::offset_of;

use bpfkit_isa::{Op, Reg};
use bpfkit_runtime::native::{Slot, State, Value};
use bpfkit_runtime::{LoadError, LoadErrorKind};

use crate::backend::{Arch, Compiled, Features, Origin, parts};
use crate::lower::{Function, Mask, Plan, Rule, Test, Zeros};
use address::Pending;
use emit::{Arith, Asm, Label, Mem};
use mem::Valid;
use regs::{FUEL, STATE};
use shared::{Stub, shared};

pub(crate) use emit::relink;
pub(crate) use regs::free_registers;
pub(crate) use shared::shared_code;
pub(crate) use trampoline::trampoline;

/// What happens out of line.
struct Slow {
    entry: Label,
    back: Label,
    /// Slot and detail, for the callout.
    packed: u32,
    stub: Stub,
    /// The place that R11 is to point to.
    address: Option<Mem>,
}

struct Compiler<'p> {
    plan: &'p Plan<'p>,
    features: Features,
    asm: Asm,
    slow: Vec<Slow>,
    /// What begins at labels that are neither slots' nor functions'.
    marks: Vec<(u32, Origin)>,
    parts: bool,
    /// Results that were put off.
    pending: Pending,
    zeros: Zeros,
    /// Registers whose values the instruction under way or a later one uses.
    live: Mask,
    slot: usize,
    /// Functions' labels follow the slots'.
    function_labels: u32,
    function: Function,
    exit: Label,
    exit_bound: bool,
    exit_used: bool,
    /// Bytes that the function has pushed below what its `exit` pops last.
    locals: i32,
    /// Calls of shared code that are those of helpers in trusted code, and their slots.
    returns: Vec<(u32, u32)>,
    /// Accesses so far of each size and direction.
    sites: [u32; 8],
    /// Places that checked code has found valid on the way here.
    valid: Valid,
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
    let slots = plan.slots().len();
    let mut asm = Asm::new(slots + 1, plan.functions.len());
    let function_labels = slots as u32 + 1;
    for _ in &plan.functions {
        asm.label();
    }
    let exit = asm.label();
    let Some(&function) = plan.functions.first() else {
        return Err(LoadError {
            insn: 0,
            kind: LoadErrorKind::Empty,
        });
    };
    let compiler = Compiler {
        plan,
        features,
        slow: Vec::new(),
        marks: Vec::new(),
        parts,
        pending: Pending::default(),
        zeros: Zeros::default(),
        live: 0,
        slot: 0,
        function_labels,
        function,
        exit,
        exit_bound: false,
        exit_used: false,
        locals: 0,
        returns: Vec::new(),
        sites: [0; 8],
        valid: Valid::default(),
        steps_after: if plan.checked {
            plan.steps_after()
        } else {
            Box::default()
        },
        pointer_base,
        asm,
    };
    compiler.program()
}

impl Compiler<'_> {
    fn program(mut self) -> Result<Compiled, LoadError> {
        let plan = self.plan;
        for (i, &function) in plan.functions.iter().enumerate() {
            self.function = function;
            if i > 0 {
                self.exit = self.asm.label();
                (self.exit_bound, self.exit_used) = (false, false);
            }
            if i == 0 && !plan.main_is_called {
                self.enter_main();
            } else {
                self.asm.bind(Label(self.function_labels + i as u32));
                self.enter_function();
            }
            self.body()?;
        }
        self.out_of_line();
        let functions = self.function_labels;
        let finished = self.asm.finish();
        let offset = |label: u32| finished.offset(Label(label)).unwrap_or(0);
        let parts = match self.parts {
            true => parts(plan, &self.marks, |label| finished.offset(Label(label))),
            false => Vec::new(),
        };
        let labels = (0..plan.functions.len() as u32).map(|i| offset(functions + i));
        // Behind the distance.
        let back = |call: u32| finished.links.get(call as usize).map_or(0, |at| at + 4);
        let returns = self.returns.iter().map(|&(call, slot)| (back(call), slot));
        let enter = |stub| shared().stub(stub, plan.checked);
        let main = match plan.main_is_called {
            true => Stub::Function,
            false => Stub::Main,
        };
        Ok(Compiled {
            returns: returns.collect(),
            enter_main: plan.needs.state.then(|| enter(main)),
            enter_function: enter(Stub::Function),
            functions: labels.collect(),
            links: finished.links,
            code: finished.code,
            parts,
        })
    }

    /// Binds a label where something else begins than an instruction or a function.
    fn mark(&mut self, label: Label, origin: Origin) {
        self.asm.bind(label);
        self.marks.push((label.0, origin));
    }

    fn body(&mut self) -> Result<(), LoadError> {
        let (start, end) = (self.function.start as usize, self.function.end as usize);
        self.zeros.forget();
        self.valid.forget();
        let mut slot = start;
        while slot < end {
            self.slot = slot;
            if slot > start && self.plan.is_target(slot) {
                self.flush(self.plan.live_in(slot));
                self.zeros.forget();
                self.valid.forget();
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
                    self.flush(0);
                    self.stop(call::POISON);
                    slot += 1;
                }
                Slot::Second => slot += 1,
            }
        }
        // What falls off the end stops; `exit` as the last instruction falls into the epilogue.
        if end == self.plan.slots().len() && !self.plan.ends(end) {
            self.flush(0);
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
            self.asm.arith_imm(emit::Arith::Sub, true, FUEL, steps);
            let entry = self.asm.label();
            self.asm.jcc(emit::Cc::S, entry);
            self.slow.push(Slow {
                entry,
                back: entry,
                packed: (slot as u32) << 8 | call::STEP_LIMIT,
                stub: Stub::Stop,
                address: None,
            });
        } else {
            self.asm.arith_imm(emit::Arith::Sub, true, FUEL, steps);
        }
    }

    /// The instruction at a slot, or several that a rule makes one of: the slot to go on at.
    fn some(&mut self, slot: usize, op: &Op) -> Result<usize, LoadErrorKind> {
        if let Some(number) = self.function.spills.of(op)
            && let Some(home) = regs::numbered(number)
        {
            self.live = self.plan.reads(slot) | self.plan.live_out(slot);
            self.spilled(op, home);
            self.zeros.step(op);
            return Ok(slot + op.slots());
        }
        let end = self.function.end as usize;
        if let Some(found) = self.plan.combine(slot, end, self.zeros, Arch::X86_64) {
            self.combined(&found)?;
            return Ok(found.end);
        }
        if let Some(next) = self.folded(op) {
            return Ok(next);
        }
        self.live = match op {
            Op::Call(_) => self.plan.live_in(slot) | self.plan.live_out(slot),
            _ => self.plan.reads(slot) | self.plan.live_out(slot),
        };
        self.op(op)?;
        self.zeros.step(op);
        Ok(slot + op.slots())
    }

    fn has(&self, rule: Rule) -> bool {
        self.plan.rules.has(rule)
    }

    /// The instruction at a slot, unless a jump leads to it.
    fn follower(&self, slot: usize) -> Option<Op> {
        let op = self.plan.op(slot).copied()?;
        (!self.plan.is_target(slot) && slot < self.function.end as usize).then_some(op)
    }

    fn is_live_out(&self, reg: Reg) -> bool {
        self.plan.live_out(self.slot) & 1 << reg.number() != 0
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
                let dst = self.define(dst);
                self.asm.mov_imm(dst, value);
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
            } => self.jump_if(
                Test {
                    cond,
                    width,
                    dst,
                    src,
                },
                off,
            ),
            Op::MayGoto { off } => self.may_goto(off),
            Op::Call(call) => self.call(call)?,
            Op::Exit => self.exit(),
            Op::CallReg(_) => return Err(LoadErrorKind::Unsupported("callx")),
            Op::MovPercpu { dst, src } => {
                let src = self.value(src);
                let home = self.define(dst);
                if src != home {
                    self.asm.mov(true, home, src);
                }
                let offset = offset_of!(State, percpu_offset) as i32;
                self.asm
                    .arith(Arith::Add, true, home, Mem::at(STATE, offset));
            }
        }
        Ok(())
    }
}
