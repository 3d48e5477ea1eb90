//! What instructions name: jump targets, helpers, kfuncs, maps, variables, subprograms. Every
//! engine of this process resolves them the same way.

use std::sync::Arc;

use bpfkit_isa::{Call, Imm64, Insn, Op, Reg};
use bpfkit_object::{Program, RefTarget};
use bpfkit_spec::ProgType;

use crate::engine::{LoadError, LoadErrorKind, LoadOptions};
use crate::env::HelperFn;
use crate::mapset::{MapSet, direct_value};

const TRACE_PRINTK: i32 = 6;

/// A slot understood.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Slot {
    /// An instruction.
    Op(Op),
    /// Nothing: the second slot of `ld_imm64`, or what is never executed.
    Second,
    /// An instruction that cannot run: its relocation has no target here, or it writes the
    /// frame pointer. The kernel's verifier takes such where the program never comes, so
    /// running it is a fault.
    Poison,
}

/// A 64-bit immediate resolved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Value {
    /// The value to load.
    Known(u64),
    /// The function at a slot; what points to it is the engine's affair.
    Function(u32),
}

/// Why the instruction at a slot is poisoned: in the object's words, if it did that.
pub fn poison(program: &Program, slot: u32) -> String {
    match target(program, slot) {
        Some(RefTarget::Poison { message, .. }) => message.clone(),
        _ => "frame pointer is read only".to_owned(),
    }
}

fn target(program: &Program, slot: u32) -> Option<&RefTarget> {
    let at = program.refs.binary_search_by_key(&slot, |r| r.insn).ok()?;
    program.refs.get(at).map(|r| &r.target)
}

/// A program with its instructions decoded, and what it is loaded with.
pub struct Resolver<'a> {
    program: &'a Program,
    maps: &'a MapSet,
    options: &'a LoadOptions<'a>,
    slots: Vec<Slot>,
}

impl<'a> Resolver<'a> {
    /// Decodes a program.
    ///
    /// # Errors
    /// A program that is empty or too long, or its first slot that is no instruction.
    pub fn new(
        program: &'a Program,
        maps: &'a MapSet,
        options: &'a LoadOptions<'a>,
    ) -> Result<Self, LoadError> {
        let error = |insn, kind| LoadError { insn, kind };
        if program.insns.is_empty() {
            return Err(error(0, LoadErrorKind::Empty));
        }
        // Distances and positions fit 32 bits.
        if program.insns.len() >= i32::MAX as usize {
            return Err(error(0, LoadErrorKind::TooLong));
        }
        let slots = decode(program)?;
        Ok(Self {
            program,
            maps,
            options,
            slots,
        })
    }

    /// Every slot in order.
    pub fn slots(&self) -> &[Slot] {
        &self.slots
    }

    /// The program's type.
    pub fn prog_type(&self) -> ProgType {
        self.program.decl.prog_type
    }

    /// Where the program's subprograms begin.
    pub fn subprograms(&self) -> impl Iterator<Item = u32> + use<'_> {
        self.program.subprograms.iter().map(|s| s.start)
    }

    /// The slot that a distance from the slot after `slot` leads to.
    ///
    /// # Errors
    /// [`LoadErrorKind::Target`] where no instruction starts there.
    pub fn jump(&self, slot: usize, distance: i32) -> Result<u32, LoadErrorKind> {
        let to = slot as i64 + 1 + i64::from(distance);
        let starts = |slot: &Slot| !matches!(slot, Slot::Second);
        match usize::try_from(to).ok().and_then(|to| self.slots.get(to)) {
            Some(slot) if starts(slot) => Ok(to as u32),
            _ => Err(LoadErrorKind::Target(to)),
        }
    }

    /// A helper by number.
    ///
    /// # Errors
    /// One that is unknown or cannot exist here.
    pub fn helper(&self, id: i32) -> Result<HelperFn, LoadErrorKind> {
        let function = self.options.functions.helper(id);
        function.ok_or_else(|| match bpfkit_spec::helper::by_id(id) {
            Some(helper) => LoadErrorKind::HelperUnavailable(helper.full_name()),
            None => LoadErrorKind::HelperUnknown(id),
        })
    }

    /// The kfunc that the call at a slot names.
    ///
    /// # Errors
    /// One without a name, or that cannot exist here.
    pub fn kfunc(&self, slot: usize, btf_id: i32) -> Result<HelperFn, LoadErrorKind> {
        let Some(RefTarget::Kfunc { name, .. }) = target(self.program, slot as u32) else {
            return Err(LoadErrorKind::Kfunc(format!("with BTF id {btf_id}")));
        };
        let function = self.options.functions.kfunc(name);
        function.ok_or_else(|| LoadErrorKind::Kfunc(name.clone()))
    }

    /// Arguments that a helper takes, whoever calls it; all where that is not known.
    pub fn helper_arity(&self, id: i32) -> usize {
        // What its format asks for is in no prototype.
        if id == TRACE_PRINTK {
            return 5;
        }
        let helper = bpfkit_spec::helper::by_id(id);
        let offers = helper.map_or(&[][..], |helper| helper.offers);
        let arities = offers.iter().map(|offer| offer.proto.arity());
        arities.max().unwrap_or(5)
    }

    /// Arguments that the kfunc called at a slot takes, as its prototype in the object says;
    /// all where it says nothing.
    pub fn kfunc_arity(&self, slot: usize) -> usize {
        let Some(RefTarget::Kfunc { type_id, .. }) = target(self.program, slot as u32) else {
            return 5;
        };
        let btf = self.program.btf.as_ref();
        let function = btf.and_then(|btf| btf.type_by_id(*type_id));
        let proto = function.and_then(|function| function.proto());
        proto.map_or(5, |proto| proto.params().len().min(5))
    }

    /// Takes instructions out that are never executed, and makes conditional jumps that are
    /// thereby decided into what they do.
    pub fn drop_dead(&mut self, reachable: impl Fn(usize) -> bool) {
        let mut is_target = vec![false; self.slots.len()];
        for (slot, op) in self
            .slots
            .iter()
            .enumerate()
            .filter(|(at, _)| reachable(*at))
        {
            let off = match *op {
                Slot::Op(Op::JumpIf { off, .. } | Op::MayGoto { off }) => i32::from(off),
                Slot::Op(Op::Jump { off, .. } | Op::Call(Call::Local(off))) => off,
                Slot::Op(Op::LoadImm64 {
                    value: Imm64::Func(off),
                    ..
                }) => off,
                _ => continue,
            };
            let to = usize::try_from(slot as i64 + 1 + i64::from(off)).ok();
            if let Some(target) = to.and_then(|to| is_target.get_mut(to)) {
                *target = true;
            }
        }
        for (slot, is_target) in is_target.into_iter().enumerate() {
            if !reachable(slot) {
                self.slots[slot] = Slot::Second;
                continue;
            }
            let Slot::Op(Op::JumpIf { off, .. }) = self.slots[slot] else {
                continue;
            };
            let to = slot as i64 + 1 + i64::from(off);
            if !usize::try_from(to).is_ok_and(&reachable) {
                self.slots[slot] = match is_target {
                    // Another jump leads here.
                    true => Slot::Op(Op::Jump {
                        off: 0,
                        wide: false,
                    }),
                    false => Slot::Second,
                };
            } else if !reachable(slot + 1) {
                let off = off.into();
                self.slots[slot] = Slot::Op(Op::Jump { off, wide: false });
            }
        }
    }

    /// What the `ld_imm64` at a slot loads.
    ///
    /// # Errors
    /// A map, variable or function that is not there.
    pub fn imm64(&self, slot: usize, value: Imm64) -> Result<Value, LoadErrorKind> {
        let map = |index: i32| {
            let found = u32::try_from(index)
                .ok()
                .and_then(|index| self.maps.get(index));
            found.ok_or(LoadErrorKind::Map(index.into()))
        };
        let known = match value {
            Imm64::Value(value) => value,
            Imm64::MapIdx(index) => Arc::as_ptr(map(index)?).expose_provenance() as u64,
            Imm64::MapIdxValue { index, off } => {
                let value = direct_value(map(index)?, off);
                value.ok_or(LoadErrorKind::MapValue(index.into(), off))?
            }
            // Relative to the next slot, as a call, though the instruction takes two.
            Imm64::Func(off) => return Ok(Value::Function(self.jump(slot, off)?)),
            Imm64::BtfId { .. } => self.variable(slot)?,
            Imm64::MapFd(_) | Imm64::MapFdValue { .. } => {
                return Err(LoadErrorKind::Unsupported("a map by file descriptor"));
            }
        };
        Ok(Value::Known(known))
    }

    fn variable(&self, slot: usize) -> Result<u64, LoadErrorKind> {
        match target(self.program, slot as u32) {
            Some(RefTarget::Ksym { name, weak, .. }) => {
                let address = self.options.ksym.and_then(|find| find(name));
                let address = address.or(weak.then_some(0));
                address.ok_or_else(|| LoadErrorKind::Ksym(name.clone()))
            }
            // Programs ask whether the function is there.
            Some(RefTarget::Kfunc { name, weak, .. }) => {
                let address = self
                    .options
                    .functions
                    .kfunc(name)
                    .map(|f| f as usize as u64);
                let address = address.or(weak.then_some(0));
                address.ok_or_else(|| LoadErrorKind::Kfunc(name.clone()))
            }
            _ => Err(LoadErrorKind::Unsupported(
                "a kernel variable without a name",
            )),
        }
    }
}

fn decode(program: &Program) -> Result<Vec<Slot>, LoadError> {
    let insns: &[Insn] = &program.insns;
    let mut slots = Vec::with_capacity(insns.len());
    let mut refs = program.refs.iter().peekable();
    while let Some(rest @ [first, ..]) = insns.get(slots.len()..) {
        let at = slots.len() as u32;
        while refs.next_if(|r| r.insn < at).is_some() {}
        let poisoned = refs
            .peek()
            .is_some_and(|r| r.insn == at && matches!(r.target, RefTarget::Poison { .. }));
        if poisoned {
            slots.push(Slot::Poison);
            if first.is_ld_imm64() && rest.len() > 1 {
                slots.push(Slot::Second);
            }
            continue;
        }
        let error = |kind| LoadError { insn: at, kind };
        let op = Op::decode(rest).map_err(|e| error(LoadErrorKind::Malformed(e)))?;
        if writes_frame_pointer(&op) {
            slots.push(Slot::Poison);
            if op.slots() == 2 {
                slots.push(Slot::Second);
            }
            continue;
        }
        slots.push(Slot::Op(op));
        if op.slots() == 2 {
            slots.push(Slot::Second);
        }
    }
    Ok(slots)
}

fn writes_frame_pointer(op: &Op) -> bool {
    let written = match *op {
        Op::Alu { dst, .. }
        | Op::MovSx { dst, .. }
        | Op::Neg { dst, .. }
        | Op::Swap { dst, .. }
        | Op::AddrSpaceCast { dst, .. }
        | Op::MovPercpu { dst, .. }
        | Op::LoadImm64 { dst, .. }
        | Op::Load { dst, .. }
        | Op::LoadAcquire { dst, .. } => dst,
        Op::Atomic {
            src, fetch: true, ..
        } => src,
        _ => return false,
    };
    written == Reg::R10
}
