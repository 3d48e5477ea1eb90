//! What Linux makes of a program before it compiles it.
//!
//! The kernel patches instruction by instruction, and moves everything behind each patch. Here
//! all changes are planned first ([`edit::Edits`]) and the program is written once, so that the
//! time is linear in its length. Stages, each adding to the plan:
//!
//! 1. [`dead`]: spills around calls that spare registers, branches that go one way only, code
//!    that no path reaches, jumps to the next instruction;
//! 2. [`context`]: accesses to the context become accesses to the kernel's structures;
//! 3. [`fixups`]: everything that concerns one instruction: divisions, loads that may fault,
//!    helpers written out, loops; [`lookups`] in maps and [`kfuncs`] apart;
//! 4. [`frame`]: what is put before subprograms and behind the program.
//!
//! What the walk alone knows of an instruction comes as [`notes`].
//!
//! The rules are those of 6.18 on x86-64 with its compiler.

mod code;
mod context;
mod dead;
mod edit;
mod fixups;
mod frame;
mod kfuncs;
mod lookups;
mod notes;

use std::cell::{OnceCell, RefCell};

use bpfkit_isa::Insn;
use bpfkit_object::LineInfo;
use rustc_hash::FxHashMap;

use crate::checker::{Checker, is_may_goto};
use crate::facts::{CallFact, Gatherer};
use edit::Edits;
pub use edit::TooFar;
pub(crate) use notes::Note;

/// A rewritten program.
#[derive(Clone, Debug, Default)]
pub struct Rewritten {
    /// Its instructions. Addresses that only a running kernel knows are 0, distances of calls
    /// into it −1; [`symbols`](Self::symbols) names them.
    pub insns: Vec<Insn>,
    /// By instruction slot, the slot of the verified program that it stands for.
    pub origins: Vec<u32>,
    /// First slot of each subprogram that is left, with its index before.
    pub subprograms: Vec<(u32, u32)>,
    /// Source lines, as [`Program::lines`](bpfkit_object::Program::lines).
    pub lines: Vec<LineInfo>,
    /// What instructions refer to in the kernel, by slot.
    pub symbols: Vec<(u32, Symbol)>,
    /// Slots of the verified program whose access to the context is not converted: a field or
    /// context that has no row, or no kernel BTF.
    pub unconverted: Vec<u32>,
}

/// Something of the kernel that an instruction refers to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Symbol {
    /// A helper by number.
    Helper(i32),
    /// A function by name.
    Function(&'static str),
    /// A variable by name.
    Variable(&'static str),
    /// What the kernel keeps of the program itself.
    Program,
    /// What the kernel keeps of a structure with special fields, by its type in the program's BTF.
    StructFields(u32),
    /// The memory of an arena, by the map's index.
    Arena(u32),
}

/// A rewriting under way.
struct Rewriter<'c, 'a> {
    checker: &'c Checker<'a>,
    gathered: &'c Gatherer,
    edits: Edits,
    /// Whether a slot is the second of an `ld_imm64`.
    second: Vec<bool>,
    /// By subprogram: stack up to the registers that inlined loops save.
    loop_stack: Vec<i32>,
    /// Tail calls with a known key so far.
    direct_tail_calls: i32,
    /// Old slot, position in its patch behind what jumps to it pass over, what it refers to.
    symbols: Vec<(u32, i32, Symbol)>,
    unconverted: Vec<u32>,
    /// Members of structures of the kernel, as they are asked for.
    members: RefCell<Members>,
    /// Whether the program asks how the time of packets is meant, once somebody wants to know.
    asks_time_kind: OnceCell<bool>,
}

/// Offsets and sizes by structure and member.
type Members = FxHashMap<(&'static str, &'static str), Option<(u32, u32)>>;

impl Checker<'_> {
    /// Rewrites the accepted program.
    ///
    /// # Errors
    /// A jump that became too long; Linux refuses the program then.
    pub fn rewrite(&self, gathered: &Gatherer) -> Result<Rewritten, TooFar> {
        let mut second = vec![false; self.insns.len()];
        for at in 1..self.insns.len() {
            second[at] = !second[at - 1] && self.insns[at - 1].is_ld_imm64();
        }
        let loop_stack = (0..self.subs.len())
            .map(|sub| {
                let range = self.subs[sub].start as usize..self.sub_end(sub) as usize;
                let budget = self.insns[range].iter().any(is_may_goto);
                self.subs[sub].stack_depth as i32 - if budget { 16 } else { 0 }
            })
            .collect();
        let mut rewriter = Rewriter {
            checker: self,
            gathered,
            edits: Edits::new(self.insns.len()),
            second,
            loop_stack,
            direct_tail_calls: 0,
            symbols: Vec::new(),
            unconverted: Vec::new(),
            members: RefCell::default(),
            asks_time_kind: OnceCell::new(),
        };
        rewriter.plan();
        rewriter.finish()
    }
}

impl Rewriter<'_, '_> {
    fn plan(&mut self) {
        self.plan_dead();
        for at in 0..self.checker.insns.len() as u32 {
            let planned = self.edits.is_removed(at) || self.edits.patch(at).is_some();
            if planned || self.second[at as usize] || !self.seen(at) {
                continue;
            }
            match self.is_context(at) {
                true => self.plan_context(at),
                false => self.plan_fixup(at),
            }
        }
        self.plan_prologue();
        self.plan_budgets();
        self.plan_exception_handler();
    }

    fn call(&self, at: u32) -> Option<&CallFact> {
        self.gathered.calls.get(&at)
    }

    /// What the walk noted of an instruction.
    fn note(&self, at: u32) -> Note {
        self.gathered.notes.get(&at).copied().unwrap_or_default()
    }

    /// An address of the kernel in the code that replaces an instruction, at that position.
    fn address(&mut self, at: u32, position: usize, dst: u8, of: Symbol) -> [Insn; 2] {
        self.symbols.push((at, position as i32, of));
        code::address(dst)
    }

    fn finish(self) -> Result<Rewritten, TooFar> {
        let checker = self.checker;
        let edited = self.edits.apply(&checker.insns)?;
        let place = |at: u32| edited.places[at as usize];
        let mut subprograms = Vec::new();
        for (at, sub) in (0..).zip(&checker.subs) {
            let start = place(sub.start);
            if start < place(checker.sub_end(at as usize)) {
                subprograms.push((start, at));
            }
        }
        let end = place(checker.insns.len() as u32);
        let mut lines: Vec<LineInfo> = Vec::with_capacity(checker.program.lines.len());
        for line in &checker.program.lines {
            let Some(&insn) = edited.places.get(line.insn as usize) else {
                continue;
            };
            // Of lines whose instructions are gone, the last stands for what follows.
            lines.pop_if(|last| last.insn == insn);
            if insn < end {
                lines.push(LineInfo {
                    insn,
                    ..line.clone()
                });
            }
        }
        let mut symbols: Vec<(u32, Symbol)> = self
            .symbols
            .iter()
            .map(|&(at, within, symbol)| {
                let skipped = self.edits.patch(at).map_or(0, |p| p.skipped_by_jumps);
                ((place(at) + skipped).saturating_add_signed(within), symbol)
            })
            .collect();
        symbols.sort_by_key(|s| s.0);
        Ok(Rewritten {
            subprograms,
            lines,
            symbols,
            unconverted: self.unconverted,
            insns: edited.insns,
            origins: edited.origins,
        })
    }
}
