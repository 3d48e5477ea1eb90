//! Compares a run of a program with what the verifier says of it.

use std::sync::{Arc, Mutex};

use bpfkit_btf::Btf;
use bpfkit_isa::{Call, Insn, Op};
use bpfkit_object::{MapDef, Program};
use bpfkit_runtime::context::Input;
use bpfkit_runtime::{
    Code, Context, Engine, FaultKind, Interpreter, LoadOptions, MapSet, Observer, Outcome, Step, Vm,
};
use bpfkit_spec::{MapType, ProgType};
use bpfkit_verifier::{
    Base, Branch, Environment, Facts, Home, Pointer, Range, SlotValue, Value, verify,
};

/// What was seen to contradict the verifier, and how much was compared.
#[derive(Default)]
pub struct Findings {
    pub wrong: Vec<String>,
    /// Registers and slots.
    pub values: u64,
    /// Those of them that are numbers.
    pub narrow: u64,
    /// Those of them that are slots.
    pub slots: u64,
}

/// Compares a run with the facts.
struct Watch {
    name: String,
    facts: Arc<Facts>,
    maps: Arc<MapSet>,
    /// Address of the context.
    context: u64,
    /// Address of the packet, until a helper might have moved it.
    packet: Option<u64>,
    /// The conditional jump before, with the number of frames, and what it may do.
    jumped: Option<(u32, i16, usize, Branch)>,
    findings: Arc<Mutex<Findings>>,
}

impl Observer for Watch {
    fn before(&mut self, step: &Step<'_>) {
        // A tail call leads to a program with facts of its own.
        if step.program.decl.name != self.name {
            self.jumped = None;
            return;
        }
        let findings = Arc::clone(&self.findings);
        let mut findings = findings.lock().unwrap();
        let Findings {
            wrong,
            values,
            narrow,
            slots,
        } = &mut *findings;
        let mut wrong = |what: String| {
            if wrong.len() < 20 {
                let insn = step.insn;
                wrong.push(format!("insn {insn}: {what}"));
            }
        };
        if !self.facts.reachable(step.insn) {
            wrong("reached".to_owned());
        }
        if let Some((at, off, depth, branch)) = self.jumped.take()
            && depth == step.depth
        {
            let fell = step.insn == at + 1;
            let jumped = i64::from(step.insn) == i64::from(at) + 1 + i64::from(off);
            if (branch == Branch::Always && !jumped) || (branch == Branch::Never && !fell) {
                wrong(format!("came from {at}, which {branch:?} jumps"));
            }
        }
        for (n, &is) in (0..).zip(step.registers) {
            let value = self.facts.value(step.insn, n);
            if value == Value::Unknown {
                continue;
            }
            *values += 1;
            *narrow += u64::from(matches!(value, Value::Number(_)));
            if !self.holds(&value, is, step) {
                wrong(format!("R{n} is {is:#x}, not {value:?}"));
            }
        }
        let live = self.facts.live_slots(step.insn);
        for slot in (0..64).filter(|slot| live & (1 << slot) != 0) {
            let value = self.facts.slot(step.insn, slot);
            if value == SlotValue::UNKNOWN {
                continue;
            }
            *values += 1;
            *slots += 1;
            *narrow += u64::from(matches!(value.spilled, Value::Number(_)));
            let at = step.frame.len() - 8 * (usize::from(slot) + 1);
            let bytes: [u8; 8] = step.frame[at..at + 8].try_into().unwrap();
            if !self.slot_holds(&value, bytes, step) {
                let off = 8 * (u16::from(slot) + 1);
                wrong(format!("fp-{off} is {bytes:x?}, not {value:?}"));
            }
        }
        let insns = &step.program.insns;
        let op = insns
            .get(step.insn as usize..)
            .and_then(|rest| Op::decode(rest).ok());
        match op {
            Some(Op::JumpIf { off, .. }) => {
                self.jumped = Some((step.insn, off, step.depth, self.facts.branch(step.insn)));
            }
            Some(Op::Call(Call::Helper(_))) => {
                self.packet = None;
                if let Some(call) = self.facts.call(step.insn)
                    && let (Some(map), Some(key)) = (call.map, call.key)
                    && let Some(map) = self.maps.get(map)
                {
                    let at = step.registers[2].wrapping_sub(step.registers[10] - 512) as usize;
                    let size = map.key_size().min(8);
                    let expected = &key.to_le_bytes()[..size];
                    let bytes = step.frame.get(at..at + size);
                    if bytes.is_some_and(|bytes| bytes != expected) {
                        wrong(format!("the key is {bytes:x?}, not {key:#x}"));
                    }
                }
            }
            _ => {}
        }
    }
}

impl Watch {
    /// Whether a register is what the facts say.
    fn holds(&self, value: &Value, is: u64, step: &Step<'_>) -> bool {
        match value {
            Value::Unknown => true,
            Value::Number(range) => range.admits(is),
            Value::Pointer(pointer) => self.points(pointer, is, step),
        }
    }

    fn points(&self, pointer: &Pointer, is: u64, step: &Step<'_>) -> bool {
        if is == 0 && pointer.may_be_null() {
            return true;
        }
        let base = match (pointer.ty.base(), pointer.home()) {
            (Base::Stack, Home::Own) => Some(step.registers[10]),
            (Base::Ctx, _) => Some(self.context),
            (Base::Packet, _) => self.packet,
            _ => None,
        };
        let inside = match (base, pointer.offset()) {
            (Some(base), Some(range)) => within(range, base, is),
            (None, Some(range)) if pointer.ty.base() == Base::MapValue => {
                self.in_a_value(pointer, range, is)
            }
            _ => true,
        };
        let is_memory = match pointer.ty.base() {
            Base::Ctx => self.context != 0,
            base => matches!(base, Base::Stack | Base::Packet | Base::MapValue),
        };
        inside && !(is_memory && is == 0)
    }

    /// Whether an address is that far from the start of any value of the map.
    fn in_a_value(&self, pointer: &Pointer, range: (i64, i64), is: u64) -> bool {
        let Some(map) = pointer.map().and_then(|map| self.maps.get(map)) else {
            return true;
        };
        // Values of these are maps.
        if matches!(map.map_type(), MapType::ArrayOfMaps | MapType::HashOfMaps) {
            return true;
        }
        let mut starts = map.value_regions().into_iter().flat_map(|region| {
            (0..region.count).map(move |n| region.base + region.offset + n * region.stride)
        });
        starts.any(|start| within(range, start, is))
    }

    /// Whether a stack slot is what the facts say.
    fn slot_holds(&self, value: &SlotValue, bytes: [u8; 8], step: &Step<'_>) -> bool {
        let zeros = (0..8).filter(|at| value.zeros & (1 << at) != 0);
        let stored = u64::from_le_bytes(bytes);
        let spilled = match (&value.spilled, value.width) {
            (_, 0) => true,
            (whole, 8) => self.holds(whole, stored, step),
            (Value::Number(range), width) => low_bytes_admitted(range, stored, width),
            _ => false,
        };
        spilled && zeros.into_iter().all(|at| bytes[at] == 0)
    }
}

/// Whether an address lies between two distances from a base.
fn within((low, high): (i64, i64), base: u64, is: u64) -> bool {
    (low..=high).contains(&(is.wrapping_sub(base) as i64))
}

/// Whether the low bytes of a number that a range admits may be those of `stored`.
fn low_bytes_admitted(range: &Range, stored: u64, width: u8) -> bool {
    let mask = (1 << (8 * width)) - 1;
    let low = stored & mask;
    if range.umax <= mask {
        return range.admits(low);
    }
    let bits = range.bits;
    let known = (low ^ bits.value) & !bits.mask & mask == 0;
    let in32 = (range.umin32..=range.umax32).contains(&(low as u32))
        && (range.smin32..=range.smax32).contains(&(low as i32));
    known && (width < 4 || in32)
}

/// The largest number of instructions that one run may take.
pub const STEPS: u64 = 20_000;

/// Runs a program under watch, on a context whose packet begins at `packet`.
pub fn watched(
    program: &Arc<Program>,
    facts: &Arc<Facts>,
    maps: &Arc<MapSet>,
    context: &mut dyn Context,
    packet: Option<u64>,
    findings: &Arc<Mutex<Findings>>,
) -> Option<Outcome> {
    let code = Code::Unverified(Arc::clone(program));
    let exec = Interpreter::looping()
        .load(code, maps, &LoadOptions::default())
        .ok()?;
    let mut vm = Vm::default();
    vm.step_limit = STEPS;
    vm.observer = Some(Box::new(Watch {
        name: program.decl.name.clone(),
        facts: Arc::clone(facts),
        maps: Arc::clone(maps),
        context: context.args()[0],
        packet,
        jumped: None,
        findings: Arc::clone(findings),
    }));
    let outcome = exec.run(&mut vm, context);
    let unsound = is_unsound(&outcome, program, facts);
    findings.lock().unwrap().wrong.extend(unsound);
    Some(outcome)
}

/// Runs a program under watch on a packet; `None` where it takes none.
pub fn watched_on(
    program: &Arc<Program>,
    facts: &Arc<Facts>,
    maps: &Arc<MapSet>,
    packet: &[u8],
    findings: &Arc<Mutex<Findings>>,
) -> Option<Outcome> {
    let mut input = Input::packet(program.decl.prog_type, packet).ok()?;
    let address = packet_of(&input);
    watched(program, facts, maps, &mut input, address, findings)
}

/// Address of the packet of an input, where its context says it.
fn packet_of(input: &Input) -> Option<u64> {
    let field = match input.prog_type() {
        ProgType::Xdp => 0,
        ProgType::SchedCls | ProgType::SchedAct | ProgType::CgroupSkb => 76,
        _ => return None,
    };
    let bytes = input.ctx().get(field..field + 4)?;
    Some(u32::from_ne_bytes(bytes.try_into().ok()?).into())
}

/// The two ways to verify; `None` where that way refuses the program.
pub fn ways(program: &Program, maps: &[MapDef], kernel: Option<&Btf>) -> Vec<Arc<Facts>> {
    [false, true]
        .into_iter()
        .filter_map(|exact_numbers| {
            let environment = Environment {
                facts: true,
                exact_numbers,
                ..Environment::new(kernel)
            };
            let verified = verify(program, maps, &environment).result.ok()?;
            // Linux accepts it on what need not hold.
            let facts = verified.into_parts().1;
            (!facts.is_unsound()).then(|| Arc::new(facts))
        })
        .collect()
}

/// Whether a fault means that the verifier was wrong: accesses through kernel pointers are of
/// memory that does not exist here.
fn is_unsound(outcome: &Outcome, program: &Program, facts: &Facts) -> Option<String> {
    let fault = outcome.fault.as_ref()?;
    let FaultKind::Access { .. } = fault.kind else {
        return None;
    };
    let insn: &Insn = program.insns.get(fault.insn as usize)?;
    if insn.class() == bpfkit_isa::code::JMP {
        return None;
    }
    let base = match insn.class() {
        bpfkit_isa::code::LDX => insn.src,
        _ => insn.dst,
    };
    match facts.value(fault.insn, base) {
        Value::Pointer(pointer) => {
            use Base as B;
            let ours = matches!(
                pointer.ty.base(),
                B::Ctx | B::MapValue | B::Stack | B::Packet | B::PacketMeta
            );
            ours.then(|| format!("{fault} ({pointer:?})"))
        }
        _ => None,
    }
}
