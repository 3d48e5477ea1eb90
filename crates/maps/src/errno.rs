//! Error numbers of Linux, as system calls and helpers report them.

use std::fmt;

/// An error number of Linux (positive; a helper returns its negation).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(pub i32);

macro_rules! errnos {
    ($($name:ident = $number:literal, $text:literal;)*) => {
        impl Errno {
            $(#[doc = $text] pub const $name: Errno = Errno($number);)*

            /// The name of the number (`"ENOENT"`), if it is one that maps use.
            pub fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($number => Some(stringify!($name)),)*
                    _ => None,
                }
            }

            /// What the error means, in a few words.
            pub fn text(self) -> &'static str {
                match self.0 {
                    $($number => $text,)*
                    _ => "unknown error",
                }
            }
        }
    };
}

errnos! {
    EPERM = 1, "operation not permitted";
    ENOENT = 2, "no such entry";
    EIO = 5, "input/output error";
    E2BIG = 7, "too big";
    EBADF = 9, "bad file descriptor";
    EAGAIN = 11, "try again";
    ENOMEM = 12, "out of memory";
    EACCES = 13, "permission denied";
    EFAULT = 14, "bad address";
    EBUSY = 16, "busy";
    EEXIST = 17, "entry exists";
    ENODEV = 19, "no such device";
    EINVAL = 22, "invalid argument";
    ENOSPC = 28, "no space left";
    ERANGE = 34, "out of range";
    EDEADLK = 35, "deadlock avoided";
    ENODATA = 61, "no data";
    EPROTO = 71, "protocol error";
    EOVERFLOW = 75, "value too large";
    EOPNOTSUPP = 95, "operation not supported";
    ETIMEDOUT = 110, "timed out";
    ENOTSUPP = 524, "operation not supported by this map type";
}

impl Errno {
    /// What a helper returns for this error: the negated number.
    pub fn as_ret(self) -> i64 {
        -i64::from(self.0)
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "errno {}", self.0),
        }
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Errno {}
