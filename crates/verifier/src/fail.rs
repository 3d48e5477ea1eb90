//! Why verification stops: the error number that `bpf(2)` would give.

/// Error number of a refusal.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs, reason = "the names are those of errno(3)")]
#[repr(u16)]
pub enum Errno {
    Perm = 1,
    NoEnt = 2,
    TooBig = 7,
    NoMem = 12,
    Acces = 13,
    Fault = 14,
    Busy = 16,
    Exist = 17,
    Inval = 22,
    NoSpc = 28,
    Range = 34,
    Proto = 71,
    OpNotSupp = 95,
    NotSupp = 524,
}

impl Errno {
    /// The number.
    pub const fn number(self) -> i32 {
        self as i32
    }
}

/// Result of a check; the log says why it failed.
pub(crate) type Res<T = ()> = Result<T, Errno>;

/// Writes to the log.
macro_rules! say {
    ($c:expr, $($text:tt)*) => { $c.log.write(format_args!($($text)*)) };
}

/// Writes to the log and gives up with an error number.
macro_rules! fail {
    ($c:expr, $errno:ident, $($text:tt)*) => {{
        $c.log.write(format_args!($($text)*));
        return Err(crate::fail::Errno::$errno);
    }};
}

pub(crate) use {fail, say};
