//! What the end of a kfunc parameter's name says about it.

/// Meaning of a parameter's name.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Suffix {
    /// Number of bytes at the argument before it.
    Size,
    /// The same, and constant.
    ConstSize,
    /// A constant.
    Constant,
    /// Not looked at.
    Ignored,
    /// Memory that the kfunc writes: it may be uninitialized.
    Uninit,
    /// An object allocated by the program.
    Alloc,
    /// An allocated object with a reference count.
    RefcountedKptr,
    /// A buffer that may be null.
    Optional,
    /// May be null.
    Nullable,
    /// Null-terminated constant string.
    Str,
    /// A map.
    Map,
    /// An open-coded iterator.
    Iter,
    /// Filled in by the verifier with the program itself.
    Prog,
    /// State of interrupts, on the stack.
    IrqFlag,
}

/// Endings of parameter names. None of them ends another.
pub static SUFFIXES: &[(&str, Suffix)] = &[
    ("__sz", Suffix::Size),
    ("__szk", Suffix::ConstSize),
    ("__k", Suffix::Constant),
    ("__ign", Suffix::Ignored),
    ("__uninit", Suffix::Uninit),
    ("__alloc", Suffix::Alloc),
    ("__refcounted_kptr", Suffix::RefcountedKptr),
    ("__opt", Suffix::Optional),
    ("__nullable", Suffix::Nullable),
    ("__str", Suffix::Str),
    ("__map", Suffix::Map),
    ("__iter", Suffix::Iter),
    ("__prog", Suffix::Prog),
    ("__irq_flag", Suffix::IrqFlag),
];

/// The meaning of that parameter's name, if it has one.
pub fn suffix_of(parameter: &str) -> Option<Suffix> {
    SUFFIXES
        .iter()
        .find(|(ending, _)| parameter.ends_with(ending))
        .map(|&(_, suffix)| suffix)
}
