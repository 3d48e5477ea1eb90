//! Kernel versions.

use std::fmt;
use std::str::FromStr;

/// A release of the Linux kernel: major and minor number.
///
/// ```
/// use bpfkit_spec::KernelVersion;
/// let v: KernelVersion = "5.15".parse().unwrap();
/// assert!(v < KernelVersion::TARGET && v.to_string() == "5.15");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct KernelVersion(pub u8, pub u8);

impl KernelVersion {
    /// The release whose verdicts bpfkit reproduces.
    pub const TARGET: KernelVersion = KernelVersion(6, 18);

    /// The oldest release that `--kernel` takes.
    pub const OLDEST: KernelVersion = KernelVersion(5, 4);

    /// The number that `LINUX_VERSION_CODE` has for the first patch release.
    pub const fn code(self) -> u32 {
        (self.0 as u32) << 16 | (self.1 as u32) << 8
    }

    /// The release of a `LINUX_VERSION_CODE`; the patch number is dropped.
    pub const fn from_code(code: u32) -> KernelVersion {
        KernelVersion((code >> 16) as u8, (code >> 8) as u8)
    }
}

impl fmt::Display for KernelVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

/// A kernel version that is not of the form `MAJOR.MINOR[.PATCH][-anything]`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ParseKernelVersionError(String);

impl fmt::Display for ParseKernelVersionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "`{}` is no kernel version such as 5.15 or 6.18.3",
            self.0
        )
    }
}

impl std::error::Error for ParseKernelVersionError {}

impl FromStr for KernelVersion {
    type Err = ParseKernelVersionError;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        let fail = || ParseKernelVersionError(s.to_owned());
        let release = s.strip_prefix('v').unwrap_or(s);
        let release = release.split('-').next().unwrap_or(release);
        let mut numbers = release.split('.');
        let mut number = || numbers.next()?.parse::<u8>().ok();
        let (major, minor) = number().zip(number()).ok_or_else(fail)?;
        if numbers.any(|patch| patch.parse::<u16>().is_err()) {
            return Err(fail());
        }
        Ok(KernelVersion(major, minor))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_parse_with_patch_and_suffix() {
        for text in ["6.18", "v6.18", "6.18.44", "6.18.44-fc-v669"] {
            assert_eq!(text.parse(), Ok(KernelVersion(6, 18)), "{text}");
        }
        for text in ["", "6", "6.", "six.1", "6.18.x", "6.300"] {
            assert!(text.parse::<KernelVersion>().is_err(), "{text}");
        }
    }

    #[test]
    fn codes_round_trip() {
        assert_eq!(KernelVersion(5, 15).code(), 0x050f00);
        assert_eq!(KernelVersion::from_code(0x050f2a), KernelVersion(5, 15));
    }
}
