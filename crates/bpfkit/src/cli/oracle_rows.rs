//! Verdicts of a kernel, one JSON object a line: the format of `testdata/oracle`.

use std::collections::HashMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::cli::failure::{Failure, Result};
use crate::cli::files;

/// What a kernel said of one program.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct OracleRow {
    /// Object file, without directory.
    pub file: String,
    /// Program; none where the file could not be opened.
    pub prog: Option<String>,
    /// `accept`, `reject`, `not-loaded`, `open-failed`, `crash` or `timeout`.
    pub verdict: String,
    /// Error number of the load.
    #[serde(default)]
    pub errno: Option<i32>,
    /// Name of the program type that it was loaded as.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub prog_type: String,
    /// Name of the attach type that it was loaded with.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub attach_type: String,
    /// The program's own instruction slots, without subprograms.
    #[serde(default)]
    pub insns_in: u32,
    /// The verifier's statistics, where it ran.
    #[serde(flatten)]
    pub stats: Option<OracleStats>,
    /// Last line of the log before the statistics; for other failures the reason.
    #[serde(default, skip_serializing_if = "serde_json::Value::is_null")]
    pub message: serde_json::Value,
    /// The line before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<String>,
}

/// The verifier's statistics.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OracleStats {
    /// Instructions walked.
    pub processed: u64,
    /// Most states looked at for one instruction.
    pub max_states_per_insn: u64,
    /// States kept.
    pub total_states: u64,
    /// Most states kept at a time.
    pub peak_states: u64,
    /// Stack depths, joined by `+`.
    pub stack_depth: String,
    /// Microseconds of verification.
    pub us: u64,
}

/// Reads a file of verdicts; keyed by file and program, those without a program left out.
pub fn read(path: &Path) -> Result<HashMap<(String, String), OracleRow>> {
    let text = files::read_text(path)?;
    let mut rows = HashMap::new();
    for (number, line) in text.lines().enumerate() {
        if line.trim().is_empty() {
            continue;
        }
        let row: OracleRow = serde_json::from_str(line).map_err(|error| {
            Failure::input(format!("{}:{}: {error}", path.display(), number + 1))
        })?;
        if let Some(prog) = row.prog.clone() {
            rows.insert((row.file.clone(), prog), row);
        }
    }
    Ok(rows)
}

/// A log taken apart: what the verifier said, and its statistics if it ran.
pub struct LogParts<'a> {
    /// Last line before the statistics.
    pub message: &'a str,
    /// The line before it.
    pub before: &'a str,
    /// The statistics.
    pub stats: Option<OracleStats>,
}

/// Takes apart a log of level 4.
pub fn take_apart(log: &str) -> LogParts<'_> {
    let lines: Vec<&str> = log.lines().filter(|line| !line.is_empty()).collect();
    let is_stats = |line: &str| {
        line.starts_with("verification time ")
            || line.starts_with("stack depth ")
            || (line.starts_with("processed ") && line.contains(" insns (limit "))
    };
    let end = lines.iter().position(|line| is_stats(line));
    let said = &lines[..end.unwrap_or(lines.len())];
    LogParts {
        message: said.last().copied().unwrap_or_default(),
        before: said.iter().rev().nth(1).copied().unwrap_or_default(),
        stats: end.map(|end| stats(&lines[end..])),
    }
}

fn stats(lines: &[&str]) -> OracleStats {
    let mut stats = OracleStats::default();
    for line in lines {
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |at: usize| {
            words
                .get(at)
                .and_then(|word| word.parse().ok())
                .unwrap_or(0)
        };
        let named = |name: &str| {
            let at = words.iter().position(|word| *word == name);
            at.map_or(0, |at| number(at + 1))
        };
        if line.starts_with("verification time ") {
            stats.us = number(2);
        } else if line.starts_with("stack depth ") {
            stats.stack_depth = words.get(2).copied().unwrap_or_default().to_owned();
        } else if line.starts_with("processed ") {
            stats.processed = number(1);
            stats.max_states_per_insn = named("max_states_per_insn");
            stats.total_states = named("total_states");
            stats.peak_states = named("peak_states");
        }
    }
    stats
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_taken_apart() {
        let log = "R1 !read_ok\nverification time 17 usec\nstack depth 8+0\n\
                   processed 3 insns (limit 1000000) max_states_per_insn 1 total_states 2 \
                   peak_states 4 mark_read 5\n";
        let parts = take_apart(log);
        assert_eq!((parts.message, parts.before), ("R1 !read_ok", ""));
        let wanted = OracleStats {
            processed: 3,
            max_states_per_insn: 1,
            total_states: 2,
            peak_states: 4,
            stack_depth: "8+0".to_owned(),
            us: 17,
        };
        assert_eq!(parts.stats, Some(wanted));
    }

    #[test]
    fn a_log_without_statistics_is_no_verdict() {
        assert_eq!(take_apart("").stats, None);
        assert_eq!(take_apart("one\ntwo\n").message, "two");
    }

    #[test]
    fn rows_survive_a_round_trip() {
        let row = OracleRow {
            file: "a.bpf.o".to_owned(),
            prog: Some("p".to_owned()),
            verdict: "accept".to_owned(),
            errno: Some(0),
            stats: Some(OracleStats {
                processed: 9,
                ..OracleStats::default()
            }),
            ..OracleRow::default()
        };
        let text = serde_json::to_string(&row).expect("it serializes");
        let back: OracleRow = serde_json::from_str(&text).expect("it parses");
        assert_eq!(back.stats, row.stats);
        assert!(!text.contains("message"), "{text}");
    }
}
