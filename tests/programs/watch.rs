//! Compares a run of a program with what the verifier says of it.

use std::sync::{Arc, Mutex};

use bpfkit_btf::Btf;
use bpfkit_isa::{Call, Op};
use bpfkit_object::{MapDef, Program};
use bpfkit_runtime::{
    Code, Context, Engine, FaultKind, Interpreter, LoadOptions, MapSet, Observer, Outcome, Step, Vm,
};
use bpfkit_verifier::{Base, Branch, Environment, Facts, Home, Value, verify};

/// What was seen to contradict the verifier, and how much was compared.
#[derive(Default)]
pub struct Findings {
    pub wrong: Vec<String>,
    pub values: u64,
    pub narrow: u64,
}

/// Compares a run with the facts.
struct Watch {
    name: String,
    facts: Arc<Facts>,
    maps: Vec<MapDef>,
    /// Address of the context.
    context: u64,
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
        let mut findings = self.findings.lock().unwrap();
        let mut wrong = |what: String| {
            if findings.wrong.len() < 20 {
                let insn = step.insn;
                findings.wrong.push(format!("insn {insn}: {what}"));
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
        let (mut values, mut narrow) = (0, 0);
        for (n, &is) in (0..).zip(step.registers) {
            let value = self.facts.value(step.insn, n);
            let holds = match &value {
                Value::Unknown => continue,
                Value::Number(range) => range.admits(is),
                Value::Pointer(pointer) => {
                    let from = match (pointer.ty.base(), pointer.home()) {
                        (Base::Stack, Home::Own) => Some(step.registers[10]),
                        (Base::Ctx, _) => Some(self.context),
                        _ => None,
                    };
                    let inside = match (from, pointer.offset()) {
                        (Some(from), Some((low, high))) => {
                            (low..=high).contains(&(is.wrapping_sub(from) as i64))
                        }
                        _ => true,
                    };
                    let trusted = !pointer.may_be_null() && pointer.ty.base() == Base::MapValue;
                    inside && !(trusted && is == 0)
                }
            };
            values += 1;
            narrow += u64::from(matches!(value, Value::Number(_)));
            if !holds {
                wrong(format!("R{n} is {is:#x}, not {value:?}"));
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
                if let Some(call) = self.facts.call(step.insn)
                    && let (Some(map), Some(key)) = (call.map, call.key)
                    && let Some(map) = self.maps.get(map as usize)
                {
                    let at = step.registers[2].wrapping_sub(step.registers[10] - 512) as usize;
                    let size = (map.key_size as usize).min(8);
                    let expected = &key.to_le_bytes()[..size];
                    let bytes = step.frame.get(at..at + size);
                    if bytes.is_some_and(|bytes| bytes != expected) {
                        wrong(format!("the key is {bytes:x?}, not {key:#x}"));
                    }
                }
            }
            _ => {}
        }
        findings.values += values;
        findings.narrow += narrow;
    }
}

/// The largest number of instructions that one run may take.
const STEPS: u64 = 20_000;

/// Runs a program under watch.
pub fn watched(
    program: &Arc<Program>,
    facts: &Arc<Facts>,
    defs: &[MapDef],
    maps: &Arc<MapSet>,
    context: &mut dyn Context,
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
        maps: defs.to_vec(),
        context: context.args()[0],
        jumped: None,
        findings: Arc::clone(findings),
    }));
    Some(exec.run(&mut vm, context))
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
            Some(Arc::new(verified.into_parts().1))
        })
        .collect()
}

/// Whether a fault means that the verifier was wrong: accesses through kernel pointers are of
/// memory that does not exist here.
pub fn is_unsound(outcome: &Outcome, program: &Program, facts: &Facts) -> Option<String> {
    let fault = outcome.fault.as_ref()?;
    let FaultKind::Access { .. } = fault.kind else {
        return None;
    };
    let insn = program.insns.get(fault.insn as usize)?;
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
