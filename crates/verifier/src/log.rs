//! The log: text that grows while a path is walked and shrinks when another begins.

use std::fmt::{Arguments, Write};

/// Level 1: instructions and states of the last path.
pub const LEVEL_1: u32 = 1;
/// Level 2: of every path.
pub const LEVEL_2: u32 = 2;
/// Statistics at the end.
pub const STATS: u32 = 4;

/// Verification log.
#[derive(Default)]
pub(crate) struct Log {
    text: String,
    /// `LEVEL_1`, `LEVEL_2`, `STATS`.
    pub level: u32,
    /// Columns that the instruction took.
    pub insn_width: usize,
    /// Length after the instruction that was printed last.
    pub insn_end: usize,
}

impl Log {
    pub fn new(level: u32) -> Log {
        Log {
            level,
            ..Log::default()
        }
    }

    pub fn write(&mut self, text: Arguments<'_>) {
        // Writing to a `String` cannot fail.
        let _ = self.text.write_fmt(text);
    }

    pub fn push(&mut self, text: &str) {
        self.text.push_str(text);
    }

    /// Takes the last newline off.
    pub fn drop_newline(&mut self) {
        if self.text.ends_with('\n') {
            self.text.pop();
        }
    }

    pub fn len(&self) -> usize {
        self.text.len()
    }

    /// Whether instructions and states are wanted.
    pub fn verbose(&self) -> bool {
        self.level & (LEVEL_1 | LEVEL_2) != 0
    }

    /// Whether every path is wanted.
    pub fn all_paths(&self) -> bool {
        self.level & LEVEL_2 != 0
    }

    /// Forgets what was written since the log had that length, unless every path is wanted.
    pub fn rewind(&mut self, len: usize) {
        if !self.all_paths() && len <= self.text.len() {
            self.text.truncate(len);
        }
    }

    /// The last line that says something.
    pub fn last_line(&self) -> &str {
        self.text
            .lines()
            .rev()
            .find(|l| !l.trim().is_empty())
            .unwrap_or("")
    }

    pub fn into_text(self) -> String {
        self.text
    }
}
