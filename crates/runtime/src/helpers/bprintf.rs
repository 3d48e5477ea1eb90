//! The format strings of `bpf_trace_printk`, `bpf_trace_vprintk`, `bpf_snprintf`,
//! `bpf_seq_printf` and `bpf_stream_vprintk`.
//!
//! The kernel checks a format before it prints anything (`bpf_bprintf_prepare`), and
//! the check has limits of its own: which conversions exist, how much room the
//! arguments may take once strings and addresses are copied (512 bytes), and what a
//! character may be. Printing then follows the kernel's `vsnprintf`.

use bpfkit_maps::Errno;

/// Most arguments of the variadic helpers (`MAX_BPRINTF_VARARGS`).
pub const MAX_ARGS: usize = 12;
/// Bytes that the copied arguments may take (`MAX_BPRINTF_BIN_ARGS`).
const MAX_BIN_ARGS: usize = 512;

/// What a format needs from the memory that its pointer arguments point into.
pub trait Probe {
    /// Copies `dst.len()` bytes from `addr`; `false` if any of them is not known memory.
    fn probe_bytes(&mut self, addr: u64, dst: &mut [u8]) -> bool;
    /// Appends the bytes at `addr` up to a NUL or `max` bytes, without the NUL; `None`
    /// (and nothing appended) if a byte before the end is not known memory.
    fn probe_str(&mut self, addr: u64, max: usize, dst: &mut Vec<u8>) -> Option<usize>;
    /// Name of the function or variable that covers `addr`, with the offset in it and its size.
    fn symbol(&mut self, addr: u64) -> Option<(String, u64, u64)>;
}

/// Flags and width of one conversion.
#[derive(Clone, Copy, Default)]
struct Spec {
    left: bool,
    plus: bool,
    space: bool,
    zero: bool,
    width: Option<usize>,
}

/// Appends `fmt` (without its NUL) with `args` to `out`.
///
/// # Errors
/// `EINVAL` for a character that is neither printable nor space, an
/// unknown conversion, or more conversions than arguments; `ENOSPC` when the copied
/// arguments exceed 512 bytes. `out` is as before then.
pub fn format(
    fmt: &[u8],
    args: &[u64],
    probe: &mut impl Probe,
    out: &mut Vec<u8>,
) -> Result<(), Errno> {
    let start = out.len();
    let result = Formatter {
        args: args.iter(),
        probe,
        out,
        used: 0,
    }
    .run(fmt);
    if result.is_err() {
        out.truncate(start);
    }
    result
}

struct Formatter<'a, P> {
    args: std::slice::Iter<'a, u64>,
    probe: &'a mut P,
    out: &'a mut Vec<u8>,
    /// Bytes of the binary argument buffer that the kernel would have filled.
    used: usize,
}

impl<P: Probe> Formatter<'_, P> {
    fn run(&mut self, fmt: &[u8]) -> Result<(), Errno> {
        let mut i = 0;
        let at = |i: usize| fmt.get(i).copied().unwrap_or(0);
        while i < fmt.len() {
            let c = fmt[i];
            if !is_print(c) && !is_space(c) {
                return Err(Errno::EINVAL);
            }
            if c != b'%' {
                self.out.push(c);
                i += 1;
                continue;
            }
            if at(i + 1) == b'%' {
                self.out.push(b'%');
                i += 2;
                continue;
            }
            let arg = *self.args.next().ok_or(Errno::EINVAL)?;
            i += 1;
            let mut spec = Spec::default();
            loop {
                match at(i) {
                    b'0' => spec.zero = true,
                    b'+' => spec.plus = true,
                    b'-' => spec.left = true,
                    b' ' => spec.space = true,
                    _ => break,
                }
                i += 1;
            }
            if at(i).is_ascii_digit() {
                let mut width = 0usize;
                while at(i).is_ascii_digit() {
                    width = width
                        .saturating_mul(10)
                        .saturating_add(usize::from(at(i) - b'0'));
                    i += 1;
                }
                // vsnprintf clamps a field width to what its 24-bit field holds.
                spec.width = Some(width.min((1 << 23) - 1));
            }
            i = self.conversion(fmt, i, spec, arg)?;
        }
        Ok(())
    }

    /// Prints one argument; `i` is at the conversion's letter. Returns the index after it.
    fn conversion(&mut self, fmt: &[u8], i: usize, spec: Spec, arg: u64) -> Result<usize, Errno> {
        let at = |i: usize| fmt.get(i).copied().unwrap_or(0);
        match at(i) {
            b'p' => self.pointer(fmt, i + 1, spec, arg),
            b's' => {
                if !ends_conversion(at(i + 1)) {
                    return Err(Errno::EINVAL);
                }
                self.string(arg, Some(spec))?;
                Ok(i + 1)
            }
            b'c' => {
                self.reserve_bytes(1)?;
                self.padded(spec, 1, |out| out.push(arg as u8));
                Ok(i + 1)
            }
            _ => {
                let mut i = i;
                let mut size = 4;
                for _ in 0..2 {
                    if at(i) == b'l' {
                        size = 8;
                        i += 1;
                    }
                }
                let (signed, base, upper) = match at(i) {
                    b'd' | b'i' => (true, 10, false),
                    b'u' => (false, 10, false),
                    b'x' => (false, 16, false),
                    b'X' => (false, 16, true),
                    _ => return Err(Errno::EINVAL),
                };
                self.reserve_word(size)?;
                let (negative, magnitude) = match (signed, size) {
                    (true, 8) => ((arg as i64) < 0, (arg as i64).unsigned_abs()),
                    (true, _) => ((arg as i32) < 0, u64::from((arg as i32).unsigned_abs())),
                    (false, 8) => (false, arg),
                    (false, _) => (false, u64::from(arg as u32)),
                };
                self.number(spec, signed, negative, magnitude, base, upper);
                Ok(i + 1)
            }
        }
    }

    /// A `%p` conversion; `i` is at the letter after `p`.
    fn pointer(&mut self, fmt: &[u8], i: usize, spec: Spec, arg: u64) -> Result<usize, Errno> {
        let at = |i: usize| fmt.get(i).copied().unwrap_or(0);
        match (at(i), at(i + 1)) {
            (b'k' | b'u', b's') => {
                if !ends_conversion(at(i + 2)) {
                    return Err(Errno::EINVAL);
                }
                // Copied before printing, so the width does not apply.
                self.string(arg, None)?;
                Ok(skip_alphanumeric(fmt, i + 2))
            }
            (b'x', _) => {
                self.reserve_word(8)?;
                self.address(spec, arg);
                Ok(skip_alphanumeric(fmt, i + 1))
            }
            (b'K', _) => {
                self.reserve_word(8)?;
                self.address(spec, hashed(arg));
                Ok(skip_alphanumeric(fmt, i + 1))
            }
            (b's' | b'S', _) => {
                self.reserve_word(8)?;
                let text = self.symbol_text(arg, at(i) == b'S');
                self.text(spec, text.as_bytes());
                Ok(skip_alphanumeric(fmt, i + 1))
            }
            (b'B', _) => {
                let text = self.symbol_text(arg, true);
                self.reserve_bytes(text.len() + 1)?;
                self.out.extend_from_slice(text.as_bytes());
                Ok(skip_alphanumeric(fmt, i + 1))
            }
            (kind @ (b'i' | b'I'), family @ (b'4' | b'6')) => {
                let mut bytes = [0u8; 16];
                let len = if family == b'4' { 4 } else { 16 };
                if MAX_BIN_ARGS.saturating_sub(self.used) < len {
                    return Err(Errno::ENOSPC);
                }
                if !self.probe.probe_bytes(arg, &mut bytes[..len]) {
                    bytes = [0; 16];
                }
                let text = address_text(kind, &bytes[..len]);
                self.used = self.used.saturating_add(text.len() + 1);
                self.out.extend_from_slice(text.as_bytes());
                Ok(skip_alphanumeric(fmt, i + 2))
            }
            (c, _) if ends_conversion(c) => {
                self.reserve_word(8)?;
                self.address(spec, hashed(arg));
                Ok(i)
            }
            _ => Err(Errno::EINVAL),
        }
    }

    /// A string argument: NUL-terminated at `addr`; empty if it cannot be read.
    fn string(&mut self, addr: u64, spec: Option<Spec>) -> Result<(), Errno> {
        let room = MAX_BIN_ARGS.saturating_sub(self.used);
        if room == 0 {
            return Err(Errno::ENOSPC);
        }
        let start = self.out.len();
        let len = self.probe.probe_str(addr, room - 1, self.out).unwrap_or(0);
        self.used += len + 1;
        let Some(spec) = spec else { return Ok(()) };
        let pad = spec.width.unwrap_or(0).saturating_sub(len);
        self.out.resize(start + len + pad, b' ');
        if !spec.left {
            self.out[start..].rotate_right(pad);
        }
        Ok(())
    }

    /// `0x…` without a symbol, else `name` or `name+0xoff/0xsize`.
    fn symbol_text(&mut self, addr: u64, offset: bool) -> String {
        match self.probe.symbol(addr) {
            Some((name, off, size)) if offset => format!("{name}+{off:#x}/{size:#x}"),
            Some((name, ..)) => name,
            None => format!("{addr:#x}"),
        }
    }

    /// An address in 16 hexadecimal digits, unless a width asks for blanks.
    fn address(&mut self, mut spec: Spec, addr: u64) {
        if spec.width.is_none() {
            spec.width = Some(16);
            spec.zero = true;
        }
        self.number(spec, false, false, addr, 16, false);
    }

    fn number(
        &mut self,
        spec: Spec,
        signed: bool,
        negative: bool,
        magnitude: u64,
        base: u64,
        upper: bool,
    ) {
        let mut digits = [0u8; 20];
        let mut at = digits.len();
        let mut rest = magnitude;
        loop {
            at -= 1;
            let digit = (rest % base) as u8;
            digits[at] = match digit {
                0..=9 => b'0' + digit,
                _ if upper => b'A' + digit - 10,
                _ => b'a' + digit - 10,
            };
            rest /= base;
            if rest == 0 {
                break;
            }
        }
        let digits = &digits[at..];
        let sign = match (signed, negative) {
            (true, true) => Some(b'-'),
            (true, false) if spec.plus => Some(b'+'),
            (true, false) if spec.space => Some(b' '),
            _ => None,
        };
        let len = digits.len() + usize::from(sign.is_some());
        let fill = spec.width.unwrap_or(0).saturating_sub(len);
        let (before, zeros, after) = match (spec.left, spec.zero) {
            (true, _) => (0, 0, fill),
            (false, true) => (0, fill, 0),
            (false, false) => (fill, 0, 0),
        };
        self.out.extend(std::iter::repeat_n(b' ', before));
        self.out.extend(sign);
        self.out.extend(std::iter::repeat_n(b'0', zeros));
        self.out.extend_from_slice(digits);
        self.out.extend(std::iter::repeat_n(b' ', after));
    }

    fn text(&mut self, spec: Spec, text: &[u8]) {
        self.padded(spec, text.len(), |out| out.extend_from_slice(text));
    }

    fn padded(&mut self, spec: Spec, len: usize, put: impl FnOnce(&mut Vec<u8>)) {
        let pad = spec.width.unwrap_or(0).saturating_sub(len);
        let (before, after) = if spec.left { (0, pad) } else { (pad, 0) };
        self.out.extend(std::iter::repeat_n(b' ', before));
        put(self.out);
        self.out.extend(std::iter::repeat_n(b' ', after));
    }

    /// Counts a number among the copied arguments; numbers are aligned to 4 bytes.
    fn reserve_word(&mut self, size: usize) -> Result<(), Errno> {
        self.used = self.used.next_multiple_of(4);
        self.reserve_bytes(size)
    }

    fn reserve_bytes(&mut self, size: usize) -> Result<(), Errno> {
        if MAX_BIN_ARGS.saturating_sub(self.used) < size {
            return Err(Errno::ENOSPC);
        }
        self.used += size;
        Ok(())
    }
}

/// `%p` never shows an address: the kernel prints 32 bits of a keyed hash of it. The
/// key here is fixed, so that runs repeat. NULL and error values are shown as they are.
fn hashed(addr: u64) -> u64 {
    if addr == 0 || addr > u64::MAX - 4095 {
        return addr;
    }
    let mixed = (addr ^ (addr >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 32
}

/// `%pI4`, `%pi4` (zero-padded), `%pI6` (with colons), `%pi6` (without).
fn address_text(kind: u8, bytes: &[u8]) -> String {
    use std::fmt::Write;
    let mut text = String::with_capacity(40);
    if bytes.len() == 4 {
        for (i, b) in bytes.iter().enumerate() {
            let dot = if i == 0 { "" } else { "." };
            let _ = if kind == b'I' {
                write!(text, "{dot}{b}")
            } else {
                write!(text, "{dot}{b:03}")
            };
        }
    } else {
        for (i, pair) in bytes.chunks_exact(2).enumerate() {
            let colon = if i == 0 || kind == b'i' { "" } else { ":" };
            let _ = write!(text, "{colon}{:02x}{:02x}", pair[0], pair[1]);
        }
    }
    text
}

/// The kernel takes letters and digits after `%p…` for more of the same conversion.
fn skip_alphanumeric(fmt: &[u8], mut i: usize) -> usize {
    while fmt.get(i).is_some_and(u8::is_ascii_alphanumeric) {
        i += 1;
    }
    i
}

fn ends_conversion(c: u8) -> bool {
    c == 0 || is_space(c) || c.is_ascii_punctuation()
}

fn is_print(c: u8) -> bool {
    (0x20..0x7f).contains(&c)
}

fn is_space(c: u8) -> bool {
    matches!(c, 9..=13 | b' ')
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Memory at a few fixed addresses.
    struct Fake;
    impl Fake {
        fn at(addr: u64) -> Option<&'static [u8]> {
            Some(match addr {
                0x1000 => b"hello\0",
                0x2000 => &[10, 0, 0, 1],
                0x3000 => &[0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1],
                0x4000 => &[b'x'; 600],
                _ => return None,
            })
        }
    }
    impl Probe for Fake {
        fn probe_bytes(&mut self, addr: u64, dst: &mut [u8]) -> bool {
            match Self::at(addr) {
                Some(bytes) if bytes.len() >= dst.len() => {
                    dst.copy_from_slice(&bytes[..dst.len()]);
                    true
                }
                _ => false,
            }
        }
        fn probe_str(&mut self, addr: u64, max: usize, dst: &mut Vec<u8>) -> Option<usize> {
            let bytes = Self::at(addr)?;
            let len = bytes
                .iter()
                .position(|&b| b == 0)
                .unwrap_or(bytes.len())
                .min(max);
            dst.extend_from_slice(&bytes[..len]);
            Some(len)
        }
        fn symbol(&mut self, addr: u64) -> Option<(String, u64, u64)> {
            (addr == 0x5004).then(|| ("do_thing".to_owned(), 4, 0x40))
        }
    }

    fn check(fmt: &str, args: &[u64], expected: Result<&str, Errno>) {
        let mut out = b"kept".to_vec();
        let got = format(fmt.as_bytes(), args, &mut Fake, &mut out);
        assert_eq!(&out[..4], b"kept");
        let got = got.map(|()| String::from_utf8(out[4..].to_vec()).unwrap());
        assert_eq!(
            got.as_deref().map_err(|&e| e),
            expected,
            "{fmt:?} {args:x?}"
        );
    }

    #[test]
    fn conversions() {
        let minus = -5i64 as u64;
        for (fmt, args, text) in [
            ("plain 100%%\n", &[][..], "plain 100%\n"),
            ("%d %i %u", &[minus, 7, minus], "-5 7 4294967291"),
            (
                "%ld %lld %lu %llu",
                &[minus, minus, minus, 1],
                "-5 -5 18446744073709551611 1",
            ),
            (
                "%x %X %lx %llX",
                &[0xab, 0xab, minus, 0xcd],
                "ab AB fffffffffffffffb CD",
            ),
            (
                "%5d|%-5d|%05d|%+d|% d|%+05d",
                &[42, 42, minus, 42, 42, 42],
                "   42|42   |-0005|+42| 42|+0042",
            ),
            (
                "%08x|%-08x|%2x",
                &[0xbeef, 0xbeef, 0x1234],
                "0000beef|beef    |1234",
            ),
            (
                "%s|%8s|%-8s|%3s",
                &[0x1000; 4],
                "hello|   hello|hello   |hello",
            ),
            ("%s|%s", &[0, 0xdead], "|"),
            ("%pks,%pus.", &[0x1000, 0x1000], "hello,hello."),
            ("%20pks", &[0x1000], "hello"),
            ("%c%c|%3c|%-3c|", &[104, 105, 33, 33], "hi|  !|!  |"),
            ("%pI4 %pi4", &[0x2000, 0x2000], "10.0.0.1 010.000.000.001"),
            ("%pI6", &[0x3000], "2001:0db8:0000:0000:0000:0000:0000:0001"),
            ("%pi6", &[0x3000], "20010db8000000000000000000000001"),
            ("%pI4", &[0xdead], "0.0.0.0"),
            (
                "%px|%20px|%-20px|",
                &[0xabc; 3],
                "0000000000000abc|                 abc|abc                 |",
            ),
            (
                "%p %pK",
                &[0, u64::MAX],
                "0000000000000000 ffffffffffffffff",
            ),
            (
                "%ps %pS %pB %ps",
                &[0x5004, 0x5004, 0x5004, 0x77],
                "do_thing do_thing+0x4/0x40 do_thing+0x4/0x40 0x77",
            ),
            ("fewer %d", &[1, 2, 3], "fewer 1"),
            ("\ttab\r\n", &[], "\ttab\r\n"),
        ] {
            check(fmt, args, Ok(text));
        }
    }

    #[test]
    fn pointers_are_not_shown() {
        let mut out = Vec::new();
        format(b"%p", &[0xffff_8880_1234_5678], &mut Fake, &mut out).unwrap();
        assert_eq!(out.len(), 16);
        assert_eq!(&out[..8], b"00000000");
        assert!(!out.ends_with(b"12345678"));
    }

    #[test]
    fn refused() {
        for (fmt, args) in [
            ("%", &[1][..]),
            ("%d", &[]),
            ("%d %d", &[1]),
            ("%z", &[1]),
            ("%#x", &[1]),
            ("%.3d", &[1]),
            ("%*d", &[1, 2]),
            ("%hd", &[1]),
            ("%llld", &[1]),
            ("%sx", &[0x1000]),
            ("%pksx", &[0x1000]),
            ("%pI5", &[0x2000]),
            ("%pk", &[0x1000]),
            ("%pE", &[0x1000]),
            ("%f", &[1]),
            ("\u{1}", &[]),
            ("caf\u{e9}", &[]),
            ("%5%", &[1]),
        ] {
            check(fmt, args, Err(Errno::EINVAL));
        }
    }

    #[test]
    fn argument_room_is_limited() {
        // The first string takes all 512 bytes; nothing is left for a second.
        check("%s", &[0x4000], Ok(&"x".repeat(511)));
        check("%s%s", &[0x4000, 0x1000], Err(Errno::ENOSPC));
        check("%s %d", &[0x4000, 1], Err(Errno::ENOSPC));
        check("%s%c", &[0x4000, 1], Err(Errno::ENOSPC));
        check("%s%pI4", &[0x4000, 0x2000], Err(Errno::ENOSPC));
    }
}
