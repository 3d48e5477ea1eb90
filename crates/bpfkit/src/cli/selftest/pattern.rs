//! Expected lines: verbatim text with regular expressions in double braces,
//! `R{{[0-9]}} !read_ok`, looked for in a text in order.

use regex_lite::Regex;

use super::wording;

/// One thing to look for.
#[derive(Clone, Debug)]
pub struct Pattern {
    /// As written.
    pub text: String,
    /// Compiled, where it holds a regular expression.
    regex: Option<Regex>,
    /// The same in later words, where Linux has changed them.
    later: Option<Box<Pattern>>,
    /// It must not occur between its neighbours.
    pub absent: bool,
    /// It must match on the line after that of the pattern before.
    pub next_line: bool,
}

impl Pattern {
    /// A pattern as written in a tag.
    ///
    /// # Errors
    /// Braces are left open, or what they hold is no regular expression.
    pub fn new(text: &str) -> Result<Pattern, String> {
        let regex = match text.contains("{{") {
            true => Some(compile(text)?),
            false => None,
        };
        let later = match wording::later(text) {
            Some(later) => Some(Box::new(Pattern::new(&later)?)),
            None => None,
        };
        Ok(Pattern {
            text: text.to_owned(),
            regex,
            later,
            absent: false,
            next_line: false,
        })
    }

    /// The same, which must not occur.
    pub fn forbidden(self) -> Pattern {
        Pattern {
            absent: true,
            ..self
        }
    }

    /// The same, on the line after that of the pattern before where `follows` says so.
    pub fn following(self, follows: bool) -> Pattern {
        Pattern {
            next_line: follows,
            ..self
        }
    }

    /// Byte range of the first match.
    fn find(&self, text: &str) -> Option<(usize, usize)> {
        let found = match &self.regex {
            Some(regex) => regex.find(text).map(|found| (found.start(), found.end())),
            None => text
                .find(&self.text)
                .map(|start| (start, start + self.text.len())),
        };
        found.or_else(|| self.later.as_ref()?.find(text))
    }
}

/// Line by line as POSIX's extended expressions with `REG_NEWLINE` are: `^` and `$` hold at
/// every line, and neither `.` nor a negated class takes a line's end.
fn compile(text: &str) -> Result<Regex, String> {
    let mut regex = "(?m)".to_owned();
    let mut rest = text;
    while let Some((verbatim, tail)) = rest.split_once("{{") {
        regex += &regex_lite::escape(verbatim);
        let (inner, tail) = tail
            .split_once("}}")
            .ok_or_else(|| format!("'{text}': {{{{ without }}}}"))?;
        regex += "(?:";
        regex += &inner.replace("[^", "[^\\n");
        regex += ")";
        rest = tail;
    }
    regex += &regex_lite::escape(rest);
    Regex::new(&regex).map_err(|error| format!("'{text}': {error}"))
}

/// Looks for all patterns in order.
///
/// # Errors
/// What was found and what was not, a line a pattern.
pub fn find_all(patterns: &[Pattern], text: &str) -> Result<(), String> {
    let mut from = 0;
    // Where the pattern before matched, to count lines from.
    let mut before: Option<usize> = None;
    let mut forbidden: Vec<usize> = Vec::new();
    let report = |upto: usize, status: &str, more: String| {
        let mut lines = String::new();
        for pattern in &patterns[..upto] {
            lines += &line("MATCHED", pattern);
        }
        lines += &line(status, &patterns[upto]);
        lines + &more
    };
    let is_absent = |forbidden: &[usize], range: &str| {
        let found = forbidden.iter();
        found
            .copied()
            .find(|&at| patterns[at].find(range).is_some())
    };
    for (at, pattern) in patterns.iter().enumerate() {
        if pattern.absent {
            forbidden.push(at);
            continue;
        }
        let Some((start, end)) = pattern.find(&text[from..]) else {
            return Err(report(at, "EXPECTED", String::new()));
        };
        let (start, end) = (from + start, from + end);
        if let Some(wrong) = is_absent(&forbidden, &text[from..start]) {
            return Err(report(wrong, "UNEXPECTED", String::new()));
        }
        forbidden.clear();
        if let (true, Some(before)) = (pattern.next_line, before) {
            let lines = text[before..start].matches('\n').count();
            if lines != 1 {
                let more = format!("it matches {lines} lines below the one before, not 1\n");
                return Err(report(at, "WRONG LINE", more));
            }
        }
        before = Some(start);
        from = end;
    }
    match is_absent(&forbidden, &text[from..]) {
        Some(wrong) => Err(report(wrong, "UNEXPECTED", String::new())),
        None => Ok(()),
    }
}

fn line(status: &str, pattern: &Pattern) -> String {
    let kind = match pattern.regex {
        Some(_) => "REGEX",
        None => "SUBSTR",
    };
    format!("{status:<10} {kind:>6}: '{}'\n", pattern.text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn patterns(texts: &[&str]) -> Vec<Pattern> {
        let each = texts.iter().map(|text| {
            let (absent, text) = match text.strip_prefix('!') {
                Some(rest) => (true, rest),
                None => (false, *text),
            };
            let (next_line, text) = match text.strip_prefix('+') {
                Some(rest) => (true, rest),
                None => (false, text),
            };
            Pattern {
                absent,
                next_line,
                ..Pattern::new(text).expect("a pattern")
            }
        });
        each.collect()
    }

    #[track_caller]
    fn check(texts: &[&str], text: &str, found: bool) {
        let result = find_all(&patterns(texts), text);
        assert_eq!(result.is_ok(), found, "{texts:?} in {text:?}: {result:?}");
    }

    #[test]
    fn patterns_match_in_order() {
        check(&["a", "b"], "a\nb\n", true);
        check(&["b", "a"], "a\nb\n", false);
        check(&["a", "a"], "a\n", false);
        check(&["a", "a"], "a\na", true);
    }

    #[test]
    fn braces_hold_regular_expressions() {
        check(&["R{{[0-9]+}} (x)"], "R12 (x)", true);
        check(&["R{{[0-9]+}} (x)"], "R12 x", false);
        check(&["a{{.*}}b"], "a\nb", false);
        check(&["a{{[^x]*}}b"], "a\nb", false);
        check(&["{{^b$}}"], "a\nb\nc", true);
        check(&["x{{(1|2)}}y"], "x2y", true);
        assert!(Pattern::new("{{[0-9]").is_err());
        assert!(Pattern::new("{{(}}").is_err());
    }

    #[test]
    fn forbidden_text_is_looked_for_between_neighbours() {
        check(&["a", "!x", "b"], "x\na\nb\nx", true);
        check(&["a", "!x", "b"], "a\nx\nb", false);
        check(&["a", "!x"], "a\nb\nx", false);
        check(&["!x"], "abc", true);
    }

    #[test]
    fn next_line_means_the_very_next() {
        check(&["a", "+b"], "a\nb\n", true);
        check(&["a", "+b"], "a\nc\nb\n", false);
        check(&["a", "+b"], "ab\n", false);
    }
}
