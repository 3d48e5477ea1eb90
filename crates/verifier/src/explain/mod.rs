//! Why a program is refused, in plain words: the rule that it breaks, the source lines that
//! led there with the value that mattered after each, and what to change.

mod crowd;
mod path;
mod rules;
mod slice;
mod words;

use std::sync::Arc;

use bpfkit_object::Program;

use crate::env::Rejection;
pub use crowd::Crowd;
use path::Path;

/// A rejection explained.
#[derive(Clone, Debug)]
pub struct Explanation {
    /// The rule, in one line without a final period.
    pub rule: &'static str,
    /// Why there is such a rule, and how programs come to break it.
    pub why: &'static str,
    /// What to change.
    pub fix: &'static str,
    /// The verifier's message.
    pub message: String,
    /// What the verifier said right before its message.
    pub details: Vec<String>,
    /// The way to the failing instruction, which is the last; empty where the program as a
    /// whole is at fault.
    pub steps: Vec<Step>,
}

/// An instruction on the way to a failing one.
#[derive(Clone, Debug)]
pub struct Step {
    /// Instruction slot.
    pub insn: u32,
    /// Function that it belongs to.
    pub function: String,
    /// Where it comes from, if the program has line information.
    pub place: Option<Place>,
    /// The instruction, in the verifier's syntax; empty if the path does not show it.
    pub listing: String,
    /// What happened there.
    pub notes: Vec<String>,
}

/// A source line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Place {
    /// File as compiled.
    pub file: Arc<str>,
    /// 1-based.
    pub line: u32,
    /// Its text.
    pub text: Arc<str>,
}

/// Explains a rejection. `log` is the log of the same verification at level 1, which shows the
/// path that failed; without it the failing instruction stands alone.
pub fn explain(program: &Program, rejection: &Rejection, log: &str) -> Explanation {
    let row = rules::find(&rejection.message);
    let path = Path::parse(log, &rejection.message);
    let mut steps = Vec::new();
    if row.scope == rules::Scope::Path {
        steps = slice::slice(program, rejection, &path);
    }
    let crowd = &rejection.crowd;
    let crowded = match row.scope {
        rules::Scope::Path => &[],
        rules::Scope::Program => crowd.insns.as_slice(),
    };
    for &(insn, states) in crowded {
        let mut step = step(program, insn, String::new());
        step.notes.push(match (crowd.waiting, states) {
            (true, n) => format!("branches from here that still wait: {n}"),
            (false, n) => format!("states kept here: {n}"),
        });
        steps.push(step);
    }
    if let (false, Some(last), Some(note)) =
        (crowded.is_empty(), steps.last_mut(), &crowd.differing)
    {
        last.notes.push(note.clone());
    }
    Explanation {
        rule: row.rule,
        why: row.why,
        fix: row.fix,
        message: rejection.message.clone(),
        details: path.details,
        steps,
    }
}

/// A step without notes.
fn step(program: &Program, insn: u32, listing: String) -> Step {
    let line = program.lines.partition_point(|line| line.insn <= insn);
    let sub = program.subprograms.partition_point(|sub| sub.start <= insn);
    let line = line.checked_sub(1).and_then(|at| program.lines.get(at));
    let sub = sub
        .checked_sub(1)
        .and_then(|at| program.subprograms.get(at));
    Step {
        insn,
        function: sub.map_or(String::new(), |sub| sub.name.clone()),
        place: line.map(|line| Place {
            file: Arc::clone(&line.file),
            line: line.line,
            text: Arc::clone(&line.text),
        }),
        listing,
        notes: Vec::new(),
    }
}
