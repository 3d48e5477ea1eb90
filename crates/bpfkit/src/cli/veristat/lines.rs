//! The source lines that a verification walked most often.

use std::collections::HashMap;
use std::fmt::Write;

/// The `top` most frequent source lines of a log, with their numbers; empty if it has none.
/// Lines of equal frequency come in the order of their text.
pub fn top_lines(log: &str, prog: &str, top: usize) -> String {
    let mut counts: HashMap<&str, usize> = HashMap::new();
    for line in log.lines().filter_map(|line| line.strip_prefix("; ")) {
        *counts.entry(line).or_default() += 1;
    }
    if counts.is_empty() {
        return String::new();
    }
    let mut counts: Vec<(&str, usize)> = counts.into_iter().collect();
    counts.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(b.0)));
    let mut text = format!("Top source lines ({prog}):\n");
    for (line, count) in counts.iter().take(top) {
        // Writing to a `String` cannot fail.
        let _ = match line.rsplit_once('@') {
            Some((source, place)) => {
                let (source, place) = (source.trim_end(), place.trim_start());
                writeln!(text, "{count:>5}: ({place})\t{source}")
            }
            None => writeln!(text, "{count:>5}: {line}"),
        };
    }
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::top_lines;

    #[test]
    fn counts_and_places() {
        let log = "; a = 1; @ x.c:3\n0: (b7) r0 = 1\n; b@c\n; a = 1; @ x.c:3\n; z\n";
        assert_eq!(
            top_lines(log, "p", 2),
            "Top source lines (p):\n    2: (x.c:3)\ta = 1;\n    1: (c)\tb\n\n"
        );
        assert_eq!(top_lines("0: (95) exit\n", "p", 2), "");
    }
}
