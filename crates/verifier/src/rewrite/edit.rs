//! Changing a program in one pass: what becomes of every instruction is planned first, then
//! the new program is written once, with jumps and calls led to where their targets went.

use bpfkit_isa::{Insn, code};

use crate::checker::{is_call, is_func_ref};
use crate::flow::jump_distance;

/// What a jump or call inside of new code leads to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Outer {
    /// Position in the new code.
    pub at: u32,
    /// Slot of the old program.
    pub target: u32,
}

/// New code in the place of an instruction.
#[derive(Clone, Default, Debug)]
pub(crate) struct Patch {
    pub insns: Vec<Insn>,
    /// Its instructions that lead out of it; other jumps stay as they are.
    pub outer: Vec<Outer>,
    /// Instructions at its beginning that jumps to the old instruction pass over; calls do not.
    pub skipped_by_jumps: u32,
}

/// The plan for a program.
#[derive(Debug)]
pub(crate) struct Edits {
    /// By slot: kept, removed, or the number of its patch.
    actions: Vec<u32>,
    patches: Vec<Patch>,
    /// Code behind the program, with no jumps out of it.
    behind: Vec<Insn>,
}

const KEEP: u32 = 0;
const REMOVE: u32 = 1;
const FIRST_PATCH: u32 = 2;

/// A program after its changes.
#[derive(Debug)]
pub(crate) struct Edited {
    pub insns: Vec<Insn>,
    /// By new slot: the old one that it stands for.
    pub origins: Vec<u32>,
    /// By old slot (and the end): where what stands for it begins, or what follows it.
    pub places: Vec<u32>,
    /// By old slot (and the end): the next one that is not removed.
    standing: Vec<u32>,
}

/// A jump's distance that no longer fits into its instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the jump at instruction {0} became too long")]
pub struct TooFar(pub u32);

impl Edits {
    /// Nothing is changed yet.
    pub fn new(slots: usize) -> Edits {
        Edits {
            actions: vec![KEEP; slots],
            patches: Vec::new(),
            behind: Vec::new(),
        }
    }

    /// Removes an instruction; of a two-slot one, call it for both.
    pub fn remove(&mut self, at: u32) {
        self.actions[at as usize] = REMOVE;
    }

    pub fn is_removed(&self, at: u32) -> bool {
        self.actions[at as usize] == REMOVE
    }

    /// Whether an instruction has new code.
    pub fn patch(&self, at: u32) -> Option<&Patch> {
        let number = self.actions[at as usize].checked_sub(FIRST_PATCH)?;
        self.patches.get(number as usize)
    }

    /// Puts new code in the place of an instruction.
    pub fn replace(&mut self, at: u32, patch: Patch) {
        self.actions[at as usize] = FIRST_PATCH + self.patches.len() as u32;
        self.patches.push(patch);
    }

    /// Puts new code before an instruction; jumps to it pass over that, calls do not.
    pub fn prepend(&mut self, at: u32, insns: &[Insn], old: &[Insn]) {
        let mut patch = match self.patch(at) {
            Some(patch) => patch.clone(),
            None if self.is_removed(at) => Patch::default(),
            None => kept(at, old),
        };
        let more = insns.len() as u32;
        patch.insns.splice(0..0, insns.iter().copied());
        patch.outer.iter_mut().for_each(|o| o.at += more);
        patch.skipped_by_jumps += more;
        self.replace(at, patch);
    }

    /// Puts new code behind the program.
    pub fn append(&mut self, insns: &[Insn]) {
        self.behind.extend_from_slice(insns);
    }

    /// Writes the new program.
    ///
    /// # Errors
    /// A jump that has become too long.
    pub fn apply(&self, old: &[Insn]) -> Result<Edited, TooFar> {
        let mut places = Vec::with_capacity(old.len() + 1);
        let mut len = 0;
        for action in &self.actions {
            places.push(len);
            len += match *action {
                KEEP => 1,
                REMOVE => 0,
                patch => self.patches[(patch - FIRST_PATCH) as usize].insns.len() as u32,
            };
        }
        places.push(len);
        // By slot (and the end): the next one that is not removed.
        let mut standing = vec![old.len() as u32; old.len() + 1];
        for at in (0..old.len() as u32).rev() {
            standing[at as usize] = match self.is_removed(at) {
                true => standing[at as usize + 1],
                false => at,
            };
        }
        let mut edited = Edited {
            insns: Vec::with_capacity(len as usize),
            origins: Vec::with_capacity(len as usize),
            places,
            standing,
        };
        let mut second = false;
        for (at, insn) in (0..).zip(old) {
            let is_second = second;
            second = !is_second && insn.is_ld_imm64();
            match self.patch(at) {
                Some(patch) => {
                    let start = edited.insns.len() as u32;
                    for insn in &patch.insns {
                        edited.insns.push(*insn);
                        edited.origins.push(at);
                    }
                    for outer in &patch.outer {
                        self.lead(&mut edited, start + outer.at, outer.target)?;
                    }
                }
                None if self.is_removed(at) => {}
                None => {
                    edited.insns.push(*insn);
                    edited.origins.push(at);
                    if let Some(target) = target(at, insn).filter(|_| !is_second) {
                        let new = edited.insns.len() as u32 - 1;
                        self.lead(&mut edited, new, target)?;
                    }
                }
            }
        }
        // It stands for the end of the program.
        let last = (old.len() as u32).saturating_sub(1);
        edited.insns.extend_from_slice(&self.behind);
        edited.origins.resize(edited.insns.len(), last);
        Ok(edited)
    }

    /// The patch of a slot, none at the end.
    fn standing_patch(&self, at: u32) -> Option<&Patch> {
        let within = (at as usize) < self.actions.len();
        within.then(|| self.patch(at)).flatten()
    }

    /// Leads the new instruction at `at` to what stands for the old slot `target`.
    fn lead(&self, edited: &mut Edited, at: u32, target: u32) -> Result<(), TooFar> {
        let place = |slot: u32| edited.places.get(slot as usize).copied();
        let insn = edited.insns[at as usize];
        let calls = is_call(&insn) || is_func_ref(&insn);
        let mut to = place(target).unwrap_or(edited.insns.len() as u32);
        if !calls && let Some(&stands) = edited.standing.get(target as usize) {
            // Past removed instructions, the next one's beginning is what is skipped.
            to += self
                .standing_patch(stands)
                .map_or(0, |p| p.skipped_by_jumps);
        }
        let distance = i64::from(to) - i64::from(at) - 1;
        let insn = &mut edited.insns[at as usize];
        let fits = if calls || insn.code == code::JMP32 | code::JA {
            i32::try_from(distance).map(|d| insn.imm = d).is_ok()
        } else {
            i16::try_from(distance).map(|d| insn.off = d).is_ok()
        };
        match fits {
            true => Ok(()),
            false => Err(TooFar(at)),
        }
    }
}

/// An instruction as it was, as a patch.
pub(crate) fn kept(at: u32, old: &[Insn]) -> Patch {
    let insn = old[at as usize];
    Patch {
        insns: vec![insn],
        outer: target(at, &insn)
            .map(|target| Outer { at: 0, target })
            .into_iter()
            .collect(),
        skipped_by_jumps: 0,
    }
}

/// The slot that an instruction jumps to, calls or loads the address of.
pub(crate) fn target(at: u32, insn: &Insn) -> Option<u32> {
    let next = i64::from(at) + 1;
    let distance = match (insn.class(), insn.code & 0xf0) {
        _ if is_call(insn) || is_func_ref(insn) => insn.imm,
        (code::JMP | code::JMP32, code::EXIT | code::CALL) => return None,
        (code::JMP | code::JMP32, _) => jump_distance(insn),
        _ => return None,
    };
    u32::try_from(next + i64::from(distance)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn jump(off: i16) -> Insn {
        Insn {
            code: code::JMP | code::JEQ,
            off,
            ..Insn::default()
        }
    }

    fn mov(imm: i32) -> Insn {
        Insn {
            code: code::ALU64 | code::MOV,
            imm,
            ..Insn::default()
        }
    }

    #[test]
    fn jumps_follow_their_targets_both_ways() {
        let old = [jump(2), mov(1), mov(2), mov(3), jump(-4)];
        let mut edits = Edits::new(old.len());
        edits.remove(1);
        edits.replace(
            2,
            Patch {
                insns: vec![mov(20), mov(21), mov(22)],
                ..Patch::default()
            },
        );
        let new = edits.apply(&old).unwrap();
        assert_eq!(new.places, [0, 1, 1, 4, 5, 6]);
        assert_eq!(new.origins, [0, 2, 2, 2, 3, 4]);
        assert_eq!(new.insns[0].off, 3, "to the instruction after the patch");
        assert_eq!(new.insns[5].off, -5, "to what follows the removed one");
    }

    #[test]
    fn jumps_to_the_start_pass_over_what_is_put_before_it() {
        let old = [mov(1), jump(-2)];
        let mut edits = Edits::new(old.len());
        edits.prepend(0, &[mov(8), mov(9)], &old);
        let new = edits.apply(&old).unwrap();
        assert_eq!(new.insns.len(), 4);
        assert_eq!(new.insns[3].off, -2);
    }

    #[test]
    fn what_leads_out_of_a_patch_is_led_too() {
        let old = [mov(1), jump(1), mov(2), mov(3)];
        let mut edits = Edits::new(old.len());
        edits.replace(
            1,
            Patch {
                insns: vec![mov(7), jump(0), mov(8)],
                outer: vec![Outer { at: 1, target: 3 }],
                skipped_by_jumps: 0,
            },
        );
        let new = edits.apply(&old).unwrap();
        assert_eq!(new.insns[2].off, 2);
    }

    #[test]
    fn a_jump_that_gets_too_long_is_an_error() {
        let mut old = vec![jump(2)];
        old.extend([mov(1), mov(2), mov(3)]);
        let mut edits = Edits::new(old.len());
        edits.replace(
            1,
            Patch {
                insns: vec![mov(0); 40_000],
                ..Patch::default()
            },
        );
        assert_eq!(edits.apply(&old).unwrap_err(), TooFar(0));
    }
}
