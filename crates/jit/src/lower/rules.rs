//! Rules that make code better than one-to-one. Each can be switched off by its name.

/// A rule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Rule {
    /// Moves, additions of constants or registers and small shifts are put off until their
    /// result is needed: they become part of an address, one `lea`, or nothing.
    Address,
    /// A zero extension of a value that has a zero upper half is no more than a move.
    ZeroExtension,
    /// Two shifts and an `or` are a rotation.
    Rotate,
    /// A conditional jump over an unconditional one is the inverse conditional jump.
    InvertJump,
    /// A shift to the left and one back extend the lower bits.
    ShiftPair,
    /// Division by a power of two is a shift or a mask.
    PowerOfTwo,
    /// Moves and arithmetic whose result nobody uses are left out.
    Unused,
    /// A look-up in an array that is known is a comparison and a sum.
    InlineLookup,
    /// A look-up in any other map that is known calls its function at once.
    DirectLookup,
    /// A tail call through a program array that is known jumps to what its slot holds.
    DirectTailCall,
    /// Helpers that ask for the processor, the time, the task need no call, or a short one.
    InlineHelper,
    /// Loads of bytes that are joined to a word are one load, and a byte swap where needed.
    WideLoad,
    /// Stores of a word's bytes, or of neighbouring zeros, are one store.
    WideStore,
    /// A load and a sign extension of its value are a sign-extending load.
    SignedLoad,
    /// A load and a byte swap of its value are done as one.
    SwappedLoad,
    /// A conditional jump over an assignment is a conditional move.
    Select,
    /// A mask that is only compared with zero is a test.
    TestBits,
    /// What the verifier never reached is left out, with the jumps around it.
    DeadCode,
    /// x86-64: stack slots that are used much live in registers that are free.
    SpillCache,
    /// x86-64: an operand that is loaded for one instruction stays in memory, and so does what
    /// is loaded, changed and stored again.
    MemoryOperand,
    /// x86-64: no comparison with zero behind an operation that sets the flags.
    Flags,
    /// Checked code: an access inside of one that was checked on the way is not checked again.
    DominatedCheck,
    /// AArch64: moves between registers by `orr`, not by adding zero.
    MoveByOr,
    /// AArch64: comparisons with the immediate in the instruction.
    CompareImmediate,
    /// AArch64: pairs saved at an offset below a stack pointer that moves once.
    PairOffset,
    /// AArch64: loads and stores with the offset in the instruction.
    LoadOffset,
    /// AArch64: `cbz` and `cbnz` for comparisons with zero.
    CompareBranch,
    /// AArch64: `tbz` and `tbnz` for tests of one bit.
    TestBranch,
}

const NAMES: [(Rule, &str); 28] = [
    (Rule::Address, "address"),
    (Rule::ZeroExtension, "zero-extension"),
    (Rule::Rotate, "rotate"),
    (Rule::InvertJump, "invert-jump"),
    (Rule::ShiftPair, "shift-pair"),
    (Rule::PowerOfTwo, "power-of-two"),
    (Rule::Unused, "unused"),
    (Rule::InlineLookup, "inline-lookup"),
    (Rule::DirectLookup, "direct-lookup"),
    (Rule::DirectTailCall, "direct-tail-call"),
    (Rule::InlineHelper, "inline-helper"),
    (Rule::WideLoad, "wide-load"),
    (Rule::WideStore, "wide-store"),
    (Rule::SignedLoad, "signed-load"),
    (Rule::SwappedLoad, "swapped-load"),
    (Rule::Select, "select"),
    (Rule::TestBits, "test-bits"),
    (Rule::DeadCode, "dead-code"),
    (Rule::SpillCache, "spill-cache"),
    (Rule::MemoryOperand, "memory-operand"),
    (Rule::Flags, "flags"),
    (Rule::DominatedCheck, "dominated-check"),
    (Rule::MoveByOr, "move-by-or"),
    (Rule::CompareImmediate, "compare-immediate"),
    (Rule::PairOffset, "pair-offset"),
    (Rule::LoadOffset, "load-offset"),
    (Rule::CompareBranch, "compare-branch"),
    (Rule::TestBranch, "test-branch"),
];

impl Rule {
    /// Every rule.
    pub fn all() -> impl Iterator<Item = Rule> {
        NAMES.into_iter().map(|(rule, _)| rule)
    }

    /// Its name in options.
    pub fn name(self) -> &'static str {
        NAMES[self as usize].1
    }

    /// The rule of a name.
    pub fn by_name(name: &str) -> Option<Rule> {
        NAMES
            .into_iter()
            .find(|(_, known)| *known == name)
            .map(|(rule, _)| rule)
    }
}

/// The rules to follow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rules(u32);

impl Default for Rules {
    /// All of them.
    fn default() -> Self {
        Self(u32::MAX)
    }
}

impl Rules {
    /// None: one-to-one.
    pub const NONE: Rules = Rules(0);

    /// These without one.
    #[must_use]
    pub fn without(self, rule: Rule) -> Self {
        Self(self.0 & !(1 << rule as u32))
    }

    /// Whether a rule is among them.
    pub fn has(self, rule: Rule) -> bool {
        self.0 & 1 << rule as u32 != 0
    }
}
