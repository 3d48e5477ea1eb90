//! States of verification: frames, their stacks, references held, and where the path came from.

use std::rc::Rc;

use smallvec::SmallVec;

pub use crate::frame::{
    Byte, FP, Frame, MAX_STACK, NO_CALLSITE, REGS, RetRange, SLOT, Slot, slot_of,
};
use crate::reg::{Base, Reg};

/// Deepest nesting of calls.
pub const MAX_FRAMES: usize = 8;
/// What a reference is to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RefKind {
    /// A kernel object or memory.
    Ptr,
    /// A saved interrupt flag.
    Irq,
    /// A spin lock.
    Lock,
    /// A resilient lock.
    ResLock,
    /// A resilient lock with interrupts off.
    ResLockIrq,
}

impl RefKind {
    /// Whether it is a lock of any kind.
    pub const fn is_lock(self) -> bool {
        matches!(self, RefKind::Lock | RefKind::ResLock | RefKind::ResLockIrq)
    }
}

/// What a lock lives in: a map or the BTF of an allocated object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LockHome {
    /// No lock.
    None,
    /// Values of that map.
    Map(u32),
    /// Allocated objects.
    Object,
}

/// Something acquired and not yet released.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ref {
    /// Of what kind.
    pub kind: RefKind,
    /// Its name (of a lock: the id of the pointer locked through).
    pub id: u32,
    /// Instruction that acquired it.
    pub insn: u32,
    /// Of a lock: where it lives.
    pub home: LockHome,
}

/// One step that was not to the next instruction, or that touched what backtracking must know.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Step {
    /// Instruction reached.
    pub insn: u32,
    /// Instruction before.
    pub prev: u32,
    /// `StepFlags`.
    pub flags: u16,
    /// Registers and slots that gained a range together, packed; 0 for none.
    pub linked: u64,
}

/// The step read or wrote a spilled register: bits 0–2 frame, 3–8 slot.
pub const STEP_STACK: u16 = 1 << 9;
/// The destination register of a comparison was a stack pointer.
pub const STEP_DST_STACK: u16 = 1 << 10;
/// The source register of a comparison was a stack pointer.
pub const STEP_SRC_STACK: u16 = 1 << 11;

/// Flags of a step that accessed a spilled register.
pub const fn stack_step(frame: u8, slot: usize) -> u16 {
    STEP_STACK | ((slot as u16 & 0x3f) << 3) | (frame as u16 & 7)
}

/// Index in the store of states; parents and equals are named by it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StateId(pub u32);

/// A state of verification.
///
/// Frames are shared between states and copied when one of them writes.
#[derive(Clone, Debug)]
pub struct State {
    frames: SmallVec<[Rc<Frame>; 2]>,
    /// What is held.
    pub refs: Vec<Ref>,
    /// Locks among `refs`.
    pub active_locks: u32,
    /// Nesting of preemption off.
    pub active_preempt: u32,
    /// Inside `bpf_rcu_read_lock`.
    pub active_rcu: bool,
    /// Id of the innermost saved interrupt flag.
    pub active_irq: u32,
    /// Id of the innermost lock.
    pub active_lock_id: u32,
    /// Home of the innermost lock.
    pub active_lock_home: LockHome,
    /// A path that a processor might only speculate on.
    pub speculative: bool,
    /// A callback that may sleep in a program that may not.
    pub in_sleepable: bool,
    /// Dead registers and slots were cleared.
    pub cleaned: bool,
    /// Paths from here not yet walked to their end.
    pub branches: u32,
    /// Checkpoint before.
    pub parent: Option<StateId>,
    /// First instruction of the path since the checkpoint.
    pub first_insn: u32,
    /// Instruction before the current one, -1 at the start.
    pub last_insn: i32,
    /// Current instruction.
    pub insn: u32,
    /// Number of checkpoints before.
    pub dfs_depth: u32,
    /// Callbacks entered on the way.
    pub callback_unroll_depth: u32,
    /// `may_goto`s passed on the way.
    pub may_goto_depth: u32,
    /// Of a state on a back edge: the state it was found equal to.
    pub equal: Option<StateId>,
    /// Steps since the checkpoint.
    pub history: Vec<Step>,
}

impl State {
    /// A state with one frame.
    pub fn new(frame: Frame) -> State {
        State {
            frames: smallvec::smallvec![Rc::new(frame)],
            refs: Vec::new(),
            active_locks: 0,
            active_preempt: 0,
            active_rcu: false,
            active_irq: 0,
            active_lock_id: 0,
            active_lock_home: LockHome::None,
            speculative: false,
            in_sleepable: false,
            cleaned: false,
            branches: 1,
            parent: None,
            first_insn: 0,
            last_insn: -1,
            insn: 0,
            dfs_depth: 0,
            callback_unroll_depth: 0,
            may_goto_depth: 0,
            equal: None,
            history: Vec::new(),
        }
    }

    /// Number of the innermost frame.
    pub fn curframe(&self) -> usize {
        self.frames.len() - 1
    }

    /// All frames, outermost first.
    pub fn frames(&self) -> &[Rc<Frame>] {
        &self.frames
    }

    /// A frame.
    pub fn frame(&self, at: usize) -> &Frame {
        &self.frames[at]
    }

    /// A frame to write to; it is copied if another state shares it.
    pub fn frame_mut(&mut self, at: usize) -> &mut Frame {
        Rc::make_mut(&mut self.frames[at])
    }

    /// The innermost frame.
    pub fn top(&self) -> &Frame {
        &self.frames[self.frames.len() - 1]
    }

    /// The innermost frame to write to.
    pub fn top_mut(&mut self) -> &mut Frame {
        let last = self.frames.len() - 1;
        Rc::make_mut(&mut self.frames[last])
    }

    /// Enters a function.
    pub fn push_frame(&mut self, frame: Frame) {
        self.frames.push(Rc::new(frame));
    }

    /// Leaves the innermost function.
    pub fn pop_frame(&mut self) {
        self.frames.pop();
    }

    /// Instruction that a frame stands at: the current one, or the call it waits for.
    pub fn frame_insn(&self, at: usize) -> u32 {
        if at == self.curframe() {
            self.insn
        } else {
            self.frames[at + 1].callsite as u32
        }
    }

    /// Whether both came by the same calls.
    pub fn same_callsites(&self, other: &State) -> bool {
        self.frames.len() == other.frames.len()
            && self
                .frames
                .iter()
                .zip(&other.frames)
                .all(|(a, b)| a.callsite == b.callsite)
    }

    /// Whether a register or a slot whose last byte is of a kind in `bytes` fits `matches`.
    fn any(frame: &Frame, bytes: &[Byte], matches: &impl Fn(&Reg) -> bool) -> bool {
        frame.regs.iter().any(matches)
            || frame
                .stack
                .written()
                .any(|(_, s)| bytes.contains(&s.bytes[7]) && matches(&s.reg))
    }

    /// Changes all registers and spilled values that fit, in every frame.
    pub fn change_where(&mut self, matches: impl Fn(&Reg) -> bool, change: impl FnMut(&mut Reg)) {
        self.change_where_in(&[Byte::Spill], matches, change);
    }

    /// The same, over slots whose last byte is of one of those kinds.
    pub fn change_where_in(
        &mut self,
        bytes: &[Byte],
        matches: impl Fn(&Reg) -> bool,
        mut change: impl FnMut(&mut Reg),
    ) {
        for frame in &mut self.frames {
            if !Self::any(frame, bytes, &matches) {
                continue;
            }
            let frame = Rc::make_mut(frame);
            for reg in &mut frame.regs {
                if matches(reg) {
                    change(reg);
                }
            }
            let fits = |s: &Slot| bytes.contains(&s.bytes[7]) && matches(&s.reg);
            for at in 0..frame.stack.len() {
                if fits(&frame.stack[at]) {
                    change(&mut frame.stack.reach(at).reg);
                }
            }
        }
    }

    /// Whether a reference of that name is held.
    pub fn holds(&self, id: u32) -> bool {
        self.refs.iter().any(|r| r.id == id)
    }

    /// Gives up an object; false if it is not held.
    pub fn release_ptr(&mut self, id: u32) -> bool {
        let found = self
            .refs
            .iter()
            .position(|r| r.kind == RefKind::Ptr && r.id == id);
        found.map(|at| self.refs.remove(at)).is_some()
    }

    /// Takes a lock.
    pub fn acquire_lock(&mut self, kind: RefKind, id: u32, home: LockHome, insn: u32) {
        self.refs.push(Ref {
            kind,
            id,
            insn,
            home,
        });
        self.active_locks += 1;
        self.active_lock_id = id;
        self.active_lock_home = home;
    }

    /// Whether a lock is held of one of those kinds.
    pub fn holds_lock(&self, kinds: &[RefKind], id: u32, home: LockHome) -> bool {
        self.refs
            .iter()
            .any(|r| kinds.contains(&r.kind) && r.id == id && r.home == home)
    }

    /// Gives a lock back; false if it is not held. The lock before becomes the innermost.
    pub fn release_lock(&mut self, kind: RefKind, id: u32, home: LockHome) -> bool {
        let mut before = (0, LockHome::None);
        for at in 0..self.refs.len() {
            let r = self.refs[at];
            if r.kind == kind && r.id == id && r.home == home {
                self.refs.remove(at);
                self.active_locks -= 1;
                (self.active_lock_id, self.active_lock_home) = before;
                return true;
            }
            if r.kind.is_lock() {
                before = (r.id, r.home);
            }
        }
        false
    }

    /// Restores interrupts saved under `id`; false if that is not the innermost.
    pub fn release_irq(&mut self, id: u32) -> bool {
        if id != self.active_irq {
            return false;
        }
        let mut before = 0;
        for at in 0..self.refs.len() {
            let r = self.refs[at];
            if r.kind != RefKind::Irq {
                continue;
            }
            if r.id == id {
                self.refs.remove(at);
                self.active_irq = before;
                return true;
            }
            before = r.id;
        }
        false
    }
}

/// Whether a base type is a pointer into a packet or its end.
pub const fn is_any_packet(base: Base) -> bool {
    matches!(base, Base::Packet | Base::PacketMeta | Base::PacketEnd)
}
