//! The log: text that grows while a path is walked and shrinks when another begins.

use std::fmt::{Arguments, Write};

/// Level 1: instructions and states of the last path.
pub const LEVEL_1: u32 = 1;
/// Level 2: of every path.
pub const LEVEL_2: u32 = 2;
/// Statistics at the end.
pub const STATS: u32 = 4;
/// Keep the beginning of a log that is too large, not its end.
pub const FIXED: u32 = 8;

/// With [`FIXED`], how much of the end is kept beside the beginning, for the last message.
const TAIL: usize = 64 << 10;

/// Verification log of bounded size, as the kernel keeps it: of a longer one the last bytes,
/// or with [`FIXED`] the first.
///
/// Positions count from the beginning of the whole log, also where it was cut.
pub(crate) struct Log {
    /// The end of the log, up to twice `room`.
    text: String,
    /// Position at which `text` begins.
    start: u64,
    /// Bytes of the end that must be kept.
    room: usize,
    /// With [`FIXED`], the first `size` bytes.
    head: String,
    /// Most bytes of the log, its terminating zero among them.
    size: usize,
    /// `LEVEL_1`, `LEVEL_2`, `STATS`, `FIXED`.
    pub level: u32,
    /// Bytes that the instruction took, with its newline.
    pub insn_width: u64,
    /// Position after the instruction that was printed last.
    pub insn_end: u64,
}

impl Log {
    pub fn new(level: u32, size: usize) -> Log {
        let fixed = level & FIXED != 0;
        Log {
            text: String::new(),
            start: 0,
            room: if fixed { TAIL } else { size.max(TAIL) },
            head: String::new(),
            size,
            level,
            insn_width: 0,
            insn_end: 0,
        }
    }

    pub fn write(&mut self, text: Arguments<'_>) {
        let before = self.text.len();
        // Writing to a `String` cannot fail.
        let _ = self.text.write_fmt(text);
        self.grown(before);
    }

    pub fn push(&mut self, text: &str) {
        let before = self.text.len();
        self.text.push_str(text);
        self.grown(before);
    }

    /// `text` was longer by what lies behind `before`.
    fn grown(&mut self, before: usize) {
        if self.level & FIXED != 0 && self.start + before as u64 == self.head.len() as u64 {
            let new = &self.text[before..];
            let free = self.size.saturating_sub(1 + self.head.len());
            self.head.push_str(&new[..new.floor_char_boundary(free)]);
        }
        if self.text.len() > self.room.saturating_mul(2) {
            let cut = self.text.ceil_char_boundary(self.text.len() - self.room);
            self.text.drain(..cut);
            self.start += cut as u64;
        }
    }

    /// Takes the last newline off.
    pub fn drop_newline(&mut self) {
        if self.text.ends_with('\n') {
            self.truncate(self.text.len() - 1);
        }
    }

    fn truncate(&mut self, len: usize) {
        self.text.truncate(len);
        if let Ok(end) = usize::try_from(self.len())
            && end < self.head.len()
        {
            self.head.truncate(end);
        }
    }

    /// Position of the end.
    pub fn len(&self) -> u64 {
        self.start + self.text.len() as u64
    }

    /// Whether instructions and states are wanted.
    pub fn verbose(&self) -> bool {
        self.level & (LEVEL_1 | LEVEL_2) != 0
    }

    /// Whether every path is wanted.
    pub fn all_paths(&self) -> bool {
        self.level & LEVEL_2 != 0
    }

    /// Forgets what was written since a position, unless every path is wanted.
    pub fn rewind(&mut self, position: u64) {
        if self.all_paths() || position > self.len() {
            return;
        }
        let kept = position.checked_sub(self.start);
        if kept.is_none() {
            self.start = position;
        }
        self.truncate(kept.unwrap_or(0) as usize);
    }

    /// The last line that says something.
    pub fn last_line(&self) -> &str {
        self.text
            .lines()
            .rev()
            .find(|l| !l.trim().is_empty())
            .unwrap_or("")
    }

    /// What is left of the log.
    pub fn into_text(mut self) -> String {
        if self.level & FIXED != 0 {
            return self.head;
        }
        let most = self.size.saturating_sub(1);
        if self.text.len() > most {
            let cut = self.text.ceil_char_boundary(self.text.len() - most);
            self.text.drain(..cut);
        }
        self.text
    }
}

#[cfg(test)]
mod tests {
    use super::{FIXED, LEVEL_1, LEVEL_2, Log, TAIL};

    fn filled(level: u32, size: usize, lines: usize) -> Log {
        let mut log = Log::new(level, size);
        for n in 0..lines {
            log.write(format_args!("{n:06}\n"));
        }
        log
    }

    #[test]
    fn a_long_log_keeps_its_end() {
        let log = filled(LEVEL_2, 1 << 20, 1_000_000);
        assert_eq!(log.len(), 7_000_000);
        assert!(log.text.capacity() <= 4 << 20, "{}", log.text.capacity());
        assert_eq!(log.last_line(), "999999");
        let text = log.into_text();
        assert_eq!(text.len(), (1 << 20) - 1);
        assert!(text.ends_with("999998\n999999\n"));
    }

    #[test]
    fn a_fixed_log_keeps_its_beginning_and_the_last_line() {
        let log = filled(LEVEL_2 | FIXED, 100, 1_000_000);
        assert!(log.text.capacity() <= 4 * TAIL);
        assert_eq!(log.last_line(), "999999");
        let text = log.into_text();
        assert_eq!(text.len(), 99);
        assert!(text.starts_with("000000\n000001\n"));
    }

    #[test]
    fn rewinding_goes_by_position() {
        for level in [LEVEL_1, LEVEL_1 | FIXED] {
            let mut log = filled(level, 1 << 20, 10);
            let position = log.len();
            log.push("gone\n");
            log.rewind(position);
            log.push("stays\n");
            assert!(log.into_text().ends_with("000009\nstays\n"), "{level}");
        }
        // To before what is left: the log goes on from there.
        let mut log = filled(LEVEL_1, 1 << 10, 100_000);
        log.rewind(7);
        assert_eq!((log.len(), log.last_line()), (7, ""));
        log.push("on\n");
        assert_eq!((log.len(), log.into_text().as_str()), (10, "on\n"));
    }
}
