//! Stack slots that live in registers nobody else uses: a spill and a fill are moves then.
//!
//! A slot qualifies where all that touches its eight bytes are loads and stores of exactly them,
//! by R10. Pointers into the frame are followed through each block. What a helper gets it uses
//! upwards, so slots below stay; a pointer that goes anywhere else (into memory, to another
//! function or block, through other arithmetic) takes all slots out.

use bpfkit_isa::{AluOp, Call, Op, Operand, Reg, Size, Width};
use bpfkit_runtime::FRAME_BYTES;
use bpfkit_runtime::native::Slot;

use super::regs::{ARGS, FRAME, Mask};
use super::{Function, Plan, Rule};

/// Words of a frame.
const WORDS: usize = FRAME_BYTES / 8;
/// Slots that a function may keep in registers.
const MOST: usize = 4;
/// How much more often loops run than what is around them.
const LOOP_WEIGHT: u32 = 8;
/// Accesses that pay for saving a register.
const WORTH: u32 = 3;

/// The slots of a function that live in registers.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Spills {
    /// Offset from R10, and the register by its number in masks.
    slots: [(i16, u8); MOST],
    len: usize,
    /// Registers, as a mask, whose slots may be read before they are written.
    pub(crate) cleared: Mask,
}

impl Spills {
    /// The register, by its number in masks, that stands for what an instruction loads or
    /// stores.
    #[inline]
    pub(crate) fn of(&self, op: &Op) -> Option<u32> {
        if self.len == 0 {
            return None;
        }
        let off = direct(op)?;
        let slots = self.slots[..self.len].iter();
        let mut found = slots.filter(|(slot, _)| *slot == off);
        found.next().map(|(_, number)| u32::from(*number))
    }
}

/// The offset of a load or store of eight bytes by R10.
fn direct(op: &Op) -> Option<i16> {
    match *op {
        Op::Load {
            size: Size::DW,
            signed: false,
            base: Reg::R10,
            off,
            ..
        }
        | Op::Store {
            size: Size::DW,
            base: Reg::R10,
            off,
            ..
        } => Some(off),
        _ => None,
    }
}

/// The word of a frame that lies at an offset, if one begins there.
fn word_at(off: i64) -> Option<usize> {
    let from_bottom = off + FRAME_BYTES as i64;
    let inside = (0..FRAME_BYTES as i64).contains(&from_bottom) && from_bottom % 8 == 0;
    inside.then_some((from_bottom / 8) as usize)
}

/// What is found out on the way through a function.
struct Search {
    /// Offsets from R10 of pointers that registers hold.
    pointers: [Option<i32>; 11],
    /// Words that something else touches.
    taken: u64,
    /// Uses of each word.
    uses: [u32; WORDS],
    /// Words that were written on every way, while the function's first block lasts.
    written: u64,
    read_first: u64,
    in_first_block: bool,
}

impl Search {
    fn held(&self) -> Mask {
        let held = (0..10).filter(|&n| self.pointers[n].is_some());
        held.fold(0, |mask, n| mask | 1 << n)
    }

    /// Bytes from an offset on are touched by other means.
    fn take(&mut self, from: i64, to: i64) {
        let bottom = -(FRAME_BYTES as i64);
        let (from, to) = (from.max(bottom) - bottom, to.min(0) - bottom);
        for word in (from / 8)..(to + 7) / 8 {
            self.taken |= 1 << word;
        }
    }

    fn access(&mut self, op: &Op, weight: u32, base: Reg, off: i16, bytes: u32) {
        let Some(at) = self.pointers[base.index()] else {
            return;
        };
        let start = i64::from(at) + i64::from(off);
        match direct(op).and(word_at(start)) {
            Some(word) => {
                self.uses[word] += weight;
                let bit = 1 << word;
                if !matches!(op, Op::Store { .. }) && self.written & bit == 0 {
                    self.read_first |= bit;
                } else if self.in_first_block {
                    self.written |= bit;
                }
            }
            None => self.take(start, start + i64::from(bytes)),
        }
    }

    /// Takes an instruction in; `None` where a pointer gets out of sight.
    fn step(&mut self, op: &Op, reads: Mask, writes: Mask, weight: u32) -> Option<()> {
        let held = self.held() | FRAME;
        let mut result = None;
        match *op {
            Op::Alu {
                op: AluOp::Mov,
                width: Width::W64,
                src: Operand::Reg(src),
                ..
            } => result = self.pointers[src.index()],
            Op::Alu {
                op: op @ (AluOp::Add | AluOp::Sub),
                width: Width::W64,
                dst,
                src: Operand::Imm(imm),
            } => {
                if let Some(at) = self.pointers[dst.index()] {
                    result = Some(match op {
                        AluOp::Add => at.checked_add(imm)?,
                        _ => at.checked_sub(imm)?,
                    });
                }
            }
            Op::Load {
                size, base, off, ..
            }
            | Op::LoadAcquire {
                size, base, off, ..
            } => self.access(op, weight, base, off, size.bytes()),
            Op::Store {
                size,
                base,
                off,
                src,
            } => {
                if matches!(src, Operand::Reg(src) if held & 1 << src.number() != 0) {
                    return None;
                }
                self.access(op, weight, base, off, size.bytes());
            }
            Op::StoreRelease {
                size,
                base,
                off,
                src,
            }
            | Op::Atomic {
                size,
                base,
                off,
                src,
                ..
            } => {
                if held & 1 << src.number() != 0 {
                    return None;
                }
                self.access(op, weight, base, off, size.bytes());
            }
            Op::Call(Call::Local(_)) if held & ARGS != 0 => return None,
            Op::Call(Call::Local(_)) => {}
            Op::Call(_) => {
                for number in 1..6 {
                    if let Some(at) = self.pointers[number] {
                        self.take(at.into(), 0);
                    }
                }
                self.pointers[1..6].fill(None);
            }
            Op::Jump { .. } | Op::JumpIf { .. } | Op::MayGoto { .. } | Op::Exit => {}
            _ if reads & held != 0 => return None,
            _ => {}
        }
        for number in 0..10 {
            if writes & 1 << number != 0 {
                self.pointers[number] = result;
            }
        }
        Some(())
    }
}

impl Plan<'_> {
    /// Finds the slots that may live in registers: `free` says which there are for a function,
    /// by their numbers in masks.
    pub(crate) fn find_spills(&mut self, free: impl Fn(&Function, bool) -> Mask) {
        // Callbacks may get at the frames of those that call them.
        let rule = self.rules.has(Rule::SpillCache) && !self.checked;
        if !rule || !self.fills || self.has_callbacks {
            return;
        }
        for index in 0..self.functions.len() {
            let mut function = self.functions[index];
            let free = free(&function, self.needs.state);
            if free != 0
                && let Some(search) = self.search(&function)
            {
                search.choose(&mut function, free);
                self.functions[index] = function;
            }
        }
    }

    fn search(&self, function: &Function) -> Option<Search> {
        let (start, end) = (function.start as usize, function.end as usize);
        let mut search = Search {
            pointers: [None; 11],
            taken: 0,
            uses: [0; WORDS],
            written: 0,
            read_first: 0,
            in_first_block: true,
        };
        search.pointers[Reg::R10.index()] = Some(0);
        let loops = self.loops(start, end);
        for slot in start..end {
            if slot > start && self.is_target(slot) {
                if search.held() & self.live_in(slot) != 0 {
                    return None;
                }
                search.pointers[..10].fill(None);
                search.in_first_block = false;
            }
            let op = match &self.slots()[slot] {
                Slot::Op(op) => op,
                Slot::Second => continue,
                Slot::Poison => return None,
            };
            let target = match *op {
                Op::Jump { off, .. } => Some(Self::target(slot, off)),
                Op::JumpIf { off, .. } | Op::MayGoto { off } => {
                    Some(Self::target(slot, off.into()))
                }
                _ => None,
            };
            if let Some(target) = target {
                search.in_first_block = false;
                if search.held() & self.live_in(target) != 0 {
                    return None;
                }
            }
            let inside = loops.iter().any(|(from, to)| (*from..=*to).contains(&slot));
            let weight = if inside { LOOP_WEIGHT } else { 1 };
            let info = self.info[slot];
            search.step(op, info.reads, info.writes, weight)?;
        }
        Some(search)
    }

    /// Where a function goes back: first and last slots.
    fn loops(&self, start: usize, end: usize) -> Vec<(usize, usize)> {
        let slots = (start..end).filter_map(|slot| {
            let to = match *self.op(slot)? {
                Op::Jump { off, .. } => Self::target(slot, off),
                Op::JumpIf { off, .. } => Self::target(slot, off.into()),
                _ => return None,
            };
            (to <= slot).then_some((to, slot))
        });
        slots.take(16).collect()
    }
}

impl Search {
    /// Gives the words that are used most the free registers.
    fn choose(&self, function: &mut Function, mut free: Mask) {
        let spills = &mut function.spills;
        let mut taken = self.taken;
        while free != 0 && spills.len < MOST {
            let words = (0..WORDS).filter(|word| taken & 1 << word == 0);
            let best = words.max_by_key(|&word| self.uses[word]);
            let Some(word) = best.filter(|&word| self.uses[word] >= WORTH) else {
                return;
            };
            taken |= 1 << word;
            let number = free.trailing_zeros();
            free &= free - 1;
            let off = (word * 8) as i16 - FRAME_BYTES as i16;
            spills.slots[spills.len] = (off, number as u8);
            spills.len += 1;
            function.writes |= 1 << number;
            if self.read_first & 1 << word != 0 {
                spills.cleared |= 1 << number;
            }
        }
    }
}
