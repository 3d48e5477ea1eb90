//! One function on the call stack: its registers and its stack.

use std::rc::Rc;

use crate::reg::{Reg, RegType};

/// Bytes of a stack slot.
pub const SLOT: i32 = 8;
/// Bytes of stack of one frame.
pub const MAX_STACK: i32 = 512;
/// Number of registers, R0 to R10.
pub const REGS: usize = 11;
/// The frame pointer's number.
pub const FP: usize = 10;

/// What one byte of the stack holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Byte {
    /// Nothing was written.
    Invalid,
    /// Part of a spilled register.
    Spill,
    /// Some data.
    Misc,
    /// Zero.
    Zero,
    /// Part of a dynptr.
    Dynptr,
    /// Part of an iterator.
    Iter,
    /// Part of a saved interrupt flag.
    IrqFlag,
}

impl Byte {
    /// As the log shows it.
    pub const fn letter(self) -> char {
        match self {
            Byte::Invalid => '?',
            Byte::Spill => 'r',
            Byte::Misc => 'm',
            Byte::Zero => '0',
            Byte::Dynptr => 'd',
            Byte::Iter => 'i',
            Byte::IrqFlag => 'f',
        }
    }

    /// Data now, unless nothing was there.
    pub fn scrub(&mut self) {
        if *self != Byte::Invalid {
            *self = Byte::Misc;
        }
    }
}

/// Eight bytes of stack.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Slot {
    /// The spilled register, or the state of a dynptr, iterator or interrupt flag.
    pub reg: Reg,
    /// What each byte holds; index 7 is the byte at the lowest address.
    pub bytes: [Byte; 8],
}

impl Slot {
    /// Never written. As in Linux, the register part is zero rather than not initialized
    /// with unknown value; only its type is ever looked at.
    pub const EMPTY: Slot = Slot {
        reg: Reg::NOT_INIT,
        bytes: [Byte::Invalid; 8],
    };

    /// [`Slot::kinds`] of a slot never written to.
    pub const NOTHING: u64 = Slot::all(Byte::Invalid);
    /// Of one that holds data only.
    pub const DATA: u64 = Slot::all(Byte::Misc);
    /// Of one that holds a whole register.
    pub const SPILLED: u64 = Slot::all(Byte::Spill);

    const fn all(kind: Byte) -> u64 {
        u64::from_ne_bytes([kind as u8; 8])
    }

    /// What the bytes hold, in one word to compare.
    pub fn kinds(&self) -> u64 {
        u64::from_ne_bytes(self.bytes.map(|b| b as u8))
    }

    /// Whether it holds something that a name tells apart from others.
    pub fn is_named(&self) -> bool {
        self.is_special() && (self.reg.id != 0 || self.reg.ref_obj_id != 0)
    }

    /// Whether a register is spilled here, of any width.
    pub fn is_spill(&self) -> bool {
        self.bytes[7] == Byte::Spill
    }

    /// Whether a scalar is spilled here, of any width.
    pub fn is_scalar_spill(&self) -> bool {
        self.is_spill() && self.reg.ty == RegType::SCALAR
    }

    /// Whether a scalar of all eight bytes is spilled here.
    pub fn is_full_scalar_spill(&self) -> bool {
        self.bytes[0] == Byte::Spill && self.reg.ty == RegType::SCALAR
    }

    /// Whether it holds more than bytes.
    pub fn is_special(&self) -> bool {
        matches!(
            self.bytes[7],
            Byte::Spill | Byte::Dynptr | Byte::Iter | Byte::IrqFlag
        )
    }
}

/// Return values that a function may give, both ends included.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RetRange {
    /// Least.
    pub min: i32,
    /// Greatest.
    pub max: i32,
}

impl RetRange {
    /// From `min` to `max`.
    pub const fn new(min: i32, max: i32) -> RetRange {
        RetRange { min, max }
    }
}

/// Call site of a frame that no instruction called.
pub const NO_CALLSITE: i32 = -1;

/// Slots that frames share or copy together.
const GROUP: usize = 4;
/// Groups of a whole stack.
const GROUPS: usize = (MAX_STACK / SLOT) as usize / GROUP;

/// The slots of a frame. Copies share groups of slots until one writes to a group; a group
/// that nothing was written to takes no room.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Stack {
    len: u8,
    groups: [Option<Rc<[Slot; GROUP]>>; GROUPS],
}

impl Stack {
    const EMPTY_SLOT: &'static Slot = &Slot::EMPTY;

    /// Slots reached so far.
    pub const fn len(&self) -> usize {
        self.len as usize
    }

    /// Reaches down to `len` slots (as many as a stack has at most).
    pub fn grow(&mut self, len: usize) {
        let len = len.min(GROUP * GROUPS);
        self.len = self.len.max(len as u8);
    }

    /// A slot, if it was reached.
    pub fn get(&self, at: usize) -> Option<&Slot> {
        if at >= self.len() {
            return None;
        }
        let group = self.groups.get(at / GROUP)?;
        Some(match group {
            Some(group) => &group[at % GROUP],
            None => Self::EMPTY_SLOT,
        })
    }

    /// A slot to write to; the stack grows to it.
    pub fn reach(&mut self, at: usize) -> &mut Slot {
        self.grow(at + 1);
        let group = self.groups[at / GROUP].get_or_insert_with(|| Rc::new([Slot::EMPTY; GROUP]));
        &mut Rc::make_mut(group)[at % GROUP]
    }

    /// All slots reached.
    pub fn iter(&self) -> impl Iterator<Item = &Slot> {
        (0..self.len()).map(|at| &self[at])
    }

    /// The slots that something was ever written to, in groups.
    pub fn groups(&self) -> impl Iterator<Item = std::ops::Range<usize>> {
        let groups = self.groups.iter().enumerate();
        groups.filter_map(|(at, g)| g.as_ref().map(|_| at * GROUP..(at + 1) * GROUP))
    }

    /// Whether both have the very same slots in the group of a slot.
    pub fn shares(&self, other: &Stack, at: usize) -> bool {
        match (&self.groups[at / GROUP], &other.groups[at / GROUP]) {
            (Some(a), Some(b)) => Rc::ptr_eq(a, b) && self.len <= other.len,
            _ => false,
        }
    }

    /// The slots reached that something was ever written to, with their numbers.
    pub fn written(&self) -> impl Iterator<Item = (usize, &Slot)> {
        let groups = self.groups.iter().enumerate();
        let groups = groups.filter_map(|(at, g)| Some((at * GROUP, g.as_deref()?)));
        groups.flat_map(|(first, g)| (first..).zip(g))
    }
}

impl std::ops::Index<usize> for Stack {
    type Output = Slot;

    fn index(&self, at: usize) -> &Slot {
        self.get(at).unwrap_or(Self::EMPTY_SLOT)
    }
}

/// One function on the call stack.
#[derive(Clone, PartialEq, Debug)]
pub struct Frame {
    /// R0 to R10.
    pub regs: [Reg; REGS],
    /// Slots from fp-8 downwards, as far as the program reached.
    pub stack: Stack,
    /// Instruction that called, or [`NO_CALLSITE`].
    pub callsite: i32,
    /// Position on the call stack.
    pub frameno: u8,
    /// Index of the subprogram.
    pub subprog: u32,
    /// How many asynchronous callbacks lead here.
    pub async_entry_count: u32,
    /// What the callback may return.
    pub callback_ret: RetRange,
    /// A callback that its caller waits for.
    pub in_callback: bool,
    /// A callback that runs later.
    pub in_async_callback: bool,
    /// The exception callback.
    pub in_exception_callback: bool,
    /// How often a callback of this frame was entered.
    pub callback_depth: u32,
}

impl Frame {
    /// A frame in which only the frame pointer is set.
    pub fn new(callsite: i32, frameno: u8, subprog: u32) -> Frame {
        let mut regs = [Reg::NOT_INIT; REGS];
        regs[FP].set_pointer(RegType::STACK);
        regs[FP].frameno = frameno;
        Frame {
            regs,
            stack: Stack::default(),
            callsite,
            frameno,
            subprog,
            async_entry_count: 0,
            callback_ret: RetRange::new(0, 0),
            in_callback: false,
            in_async_callback: false,
            in_exception_callback: false,
            callback_depth: 0,
        }
    }

    /// Bytes of stack in use.
    pub fn stack_bytes(&self) -> i32 {
        self.stack.len() as i32 * SLOT
    }
}

/// Stack slot of a byte offset below the frame pointer.
pub const fn slot_of(off: i32) -> usize {
    ((-off - 1) / SLOT) as usize
}
