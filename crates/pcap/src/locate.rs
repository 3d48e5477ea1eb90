//! Where in an expression an error lies, which libpcap does not tell.
//!
//! A word that the message quotes is the place. Otherwise beginnings of the expression are
//! compiled with endings that would complete them: the place is the first word after which
//! no ending helps.

use std::ops::Range;

/// Part of an expression.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Place {
    /// Bytes of the expression; empty at its end where something is missing.
    pub bytes: Range<usize>,
}

/// Endings of which one completes any beginning of an expression, but for parentheses.
const ENDINGS: &[&str] = &[
    "",
    " 1",
    " ip",
    " = 1",
    " 1 = 1",
    " 10.0.0.1",
    " host 10.0.0.1",
    " 2001:db8::1",
    " 02:00:00:00:00:01",
    " 1] = 1",
    "] = 1",
    " :1] = 1",
    " 0-1",
    " net 10.0.0.0",
    " proto 1",
    " broadcast",
    " mgt",
    " beacon",
];

/// Most words that are tried.
const MOST_WORDS: usize = 256;

/// Finds the place. `compile` gives the message for an expression that is refused.
pub fn place(
    expression: &str,
    message: &str,
    compile: impl Fn(&str) -> Option<String>,
) -> Option<Place> {
    let words = words(expression);
    let at = |bytes: Range<usize>| Some(Place { bytes });
    if let Some(word) = quoted(expression, message, &words) {
        return at(word);
    }
    // Each attempt would ask the network again.
    if words.len() > MOST_WORDS || message.contains("host") {
        return None;
    }
    let syntax = message.contains("syntax error");
    for (i, word) in words.iter().enumerate() {
        let helps = |end: &&str| match compile(&completed(expression, end, &words[..=i])) {
            None => true,
            Some(other) => syntax && !other.contains("syntax error"),
        };
        if !ENDINGS.iter().any(helps) {
            return at(word.clone());
        }
    }
    let end = expression.trim_end().len();
    at(end..end)
}

/// The beginning up to the last of the words, an ending, and what closes its parentheses.
fn completed(expression: &str, end: &str, words: &[Range<usize>]) -> String {
    let begin = words.last().map_or("", |last| &expression[..last.end]);
    let count = |sign: &str| {
        words
            .iter()
            .filter(|word| &expression[(*word).clone()] == sign)
            .count()
    };
    let closing = ")".repeat(count("(").saturating_sub(count(")")));
    // Inside of brackets parentheses are closed before them.
    match end.strip_suffix("] = 1") {
        Some(inner) if count("[") > count("]") => format!("{begin}{inner}{closing}] = 1"),
        _ => format!("{begin}{end}{closing}"),
    }
}

/// The word that the message has in quotes, if it occurs once.
fn quoted(expression: &str, message: &str, words: &[Range<usize>]) -> Option<Range<usize>> {
    let mut named = message.split(['\'', '"', '`']).skip(1).step_by(2);
    named.find_map(|name| {
        let mut found = words
            .iter()
            .filter(|word| &expression[(*word).clone()] == name);
        match (found.next(), found.next()) {
            (Some(word), None) => Some(word.clone()),
            _ => None,
        }
    })
}

/// Words and signs of an expression, about as libpcap's scanner cuts them.
fn words(expression: &str) -> Vec<Range<usize>> {
    let is_word = |c: char| c.is_alphanumeric() || "._-\\".contains(c);
    let mut words: Vec<Range<usize>> = Vec::new();
    let mut in_brackets = false;
    for (at, c) in expression.char_indices() {
        let here = at..at + c.len_utf8();
        if c.is_whitespace() {
            continue;
        }
        // Colons belong to addresses, unless inside of brackets.
        match c {
            '[' => in_brackets = true,
            ']' => in_brackets = false,
            _ => {}
        }
        let joins = |c: char| is_word(c) || c == ':' && !in_brackets;
        let pair = |a: char| {
            matches!(
                (a, c),
                ('&', '&') | ('|', '|') | ('<' | '>' | '=' | '!', '=') | ('<', '<') | ('>', '>')
            )
        };
        match words.last_mut() {
            Some(last) if last.end == at => {
                let before = expression[..at].chars().next_back().unwrap_or(' ');
                if joins(before) && joins(c) || last.len() == 1 && pair(before) {
                    last.end = here.end;
                } else {
                    words.push(here);
                }
            }
            _ => words.push(here),
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(expression: &str) -> Vec<&str> {
        words(expression)
            .into_iter()
            .map(|word| &expression[word])
            .collect()
    }

    #[test]
    fn words_are_cut_as_libpcap_cuts_them() {
        assert_eq!(
            cut("tcp[13]&2!=0 and(host a-b.c)"),
            [
                "tcp", "[", "13", "]", "&", "2", "!=", "0", "and", "(", "host", "a-b.c", ")"
            ]
        );
        assert_eq!(
            cut("ip[2:2]>>1=3"),
            ["ip", "[", "2", ":", "2", "]", ">>", "1", "=", "3"]
        );
        assert_eq!(
            cut("ether host 02:00:00:00:00:01"),
            ["ether", "host", "02:00:00:00:00:01"]
        );
        assert_eq!(cut("é port"), ["é", "port"]);
    }
}
