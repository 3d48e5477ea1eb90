//! Comments become blanks, so that columns stay.

use super::{AsmError, Place};
use crate::token::continues_word;

/// `text` with every character of a comment replaced by a blank.
pub(super) fn blank(text: &str) -> Result<String, AsmError> {
    let mut out = String::with_capacity(text.len());
    // Line and text up to where an unclosed comment began.
    let mut block: Option<(usize, String)> = None;
    for (i, line) in text.lines().enumerate() {
        if i > 0 {
            out.push('\n');
        }
        blank_line(i + 1, line, &mut block, &mut out);
    }
    match block {
        None => Ok(out),
        Some((line, before)) => Err(Place {
            line,
            text: &before,
            at: before.len(),
        }
        .error("this comment has no end: `*/` is missing")),
    }
}

fn blank_line(number: usize, line: &str, block: &mut Option<(usize, String)>, out: &mut String) {
    let start = out.len();
    let mut quoted = false;
    let mut at = 0;
    while let Some(c) = line[at..].chars().next() {
        let rest = &line[at..];
        let before = out[start..].chars().next_back();
        if block.is_some() {
            if rest.starts_with("*/") {
                *block = None;
                out.push_str("  ");
                at += 2;
                continue;
            }
            out.push(' ');
        } else if quoted {
            quoted = c != '"';
            out.push(c);
        } else if rest.starts_with("/*") {
            *block = Some((number, line[..at].to_owned()));
            out.push_str("  ");
            at += 2;
            continue;
        } else if rest.starts_with("//")
            || c == '#' && !is_number_sign(&out[start..], before, rest)
            || c == ';' && out[start..].trim().is_empty()
        {
            return;
        } else {
            quoted = c == '"';
            out.push(c);
        }
        at += c.len_utf8();
    }
}

/// Whether a `#` joins a name and a number, as in `call bpf_map_lookup_elem#1`.
fn is_number_sign(line: &str, before: Option<char>, rest: &str) -> bool {
    let after = rest[1..].chars().next();
    before.is_some_and(continues_word)
        && after.is_some_and(|c| continues_word(c) || c == '-')
        && line.contains("call ")
}
