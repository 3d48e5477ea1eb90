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
    /// A pair of shifts by 32 extends the lower half.
    ShiftPair,
    /// Division by a power of two is a shift or a mask.
    PowerOfTwo,
    /// Moves and arithmetic whose result nobody uses are left out.
    Unused,
    /// A look-up in an array that is known is a comparison and a sum.
    InlineLookup,
    /// A look-up in any other map that is known calls its function at once.
    DirectLookup,
    /// Helpers that ask for the processor, the time, the task need no call, or a short one.
    InlineHelper,
}

const NAMES: [(Rule, &str); 10] = [
    (Rule::Address, "address"),
    (Rule::ZeroExtension, "zero-extension"),
    (Rule::Rotate, "rotate"),
    (Rule::InvertJump, "invert-jump"),
    (Rule::ShiftPair, "shift-pair"),
    (Rule::PowerOfTwo, "power-of-two"),
    (Rule::Unused, "unused"),
    (Rule::InlineLookup, "inline-lookup"),
    (Rule::DirectLookup, "direct-lookup"),
    (Rule::InlineHelper, "inline-helper"),
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
