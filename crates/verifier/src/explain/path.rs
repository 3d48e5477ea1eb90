//! The path that the verifier walked last, read back from its log.

/// An instruction walked.
pub struct Walked<'a> {
    pub insn: u32,
    /// Its text.
    pub listing: &'a str,
    /// What the log says of registers and stack slots after it.
    state: &'a str,
}

/// The path, and what was said at its end.
#[derive(Default)]
pub struct Path<'a> {
    pub walked: Vec<Walked<'a>>,
    /// Lines after the last instruction, without the message.
    pub details: Vec<String>,
}

impl<'a> Path<'a> {
    /// Reads a log of level 1, in which only the path that failed is left.
    pub fn parse(log: &'a str, message: &str) -> Path<'a> {
        let mut path = Path::default();
        for line in log.lines() {
            if let Some(walked) = Walked::parse(line) {
                path.walked.push(walked);
                path.details.clear();
            } else if !is_aside(line) {
                path.details.push(line.trim().to_owned());
            }
        }
        path.details.retain(|line| line != message);
        path
    }
}

/// Lines that accompany the path: source lines, states between instructions, statistics.
fn is_aside(line: &str) -> bool {
    const ASIDES: [&str; 9] = [
        ";",
        "from ",
        "func#",
        "Func#",
        "Validating ",
        "caller:",
        "callee:",
        "returning from callee:",
        "to caller at ",
    ];
    const STATISTICS: [&str; 3] = ["processed ", "verification time ", "stack depth "];
    let line = line.trim();
    let state = |text: &str| text.starts_with("frame") || text.starts_with("R0=");
    let numbered = line.split_once(": ").is_some_and(|(number, rest)| {
        number.bytes().all(|b| b.is_ascii_digit()) && (rest.starts_with('R') || state(rest))
    });
    line.is_empty()
        || ASIDES
            .iter()
            .chain(&STATISTICS)
            .any(|aside| line.starts_with(aside))
        || state(line)
        || numbered
}

impl<'a> Walked<'a> {
    /// `12: (07) r2 += -4        ; R2=fp-4`
    fn parse(line: &'a str) -> Option<Walked<'a>> {
        let (number, rest) = line.split_once(": (")?;
        let insn = number.parse().ok()?;
        let (code, rest) = rest.split_once(") ")?;
        if code.len() != 2 {
            return None;
        }
        let (listing, state) = rest.split_once(" ; ").unwrap_or((rest, ""));
        let state = match state.split_once(": ") {
            Some((frame, state)) if frame.starts_with("frame") => state,
            _ => state,
        };
        Some(Walked {
            insn,
            listing: listing.trim_end(),
            state,
        })
    }

    /// What is known of a register (`R3`) or slot (`fp-8`) after it.
    pub fn value(&self, name: &str) -> Option<&'a str> {
        self.values().find(|(known, _)| *known == name).map(|v| v.1)
    }

    /// All that is known.
    pub fn values(&self) -> impl Iterator<Item = (&'a str, &'a str)> {
        let mut rest = self.state;
        std::iter::from_fn(move || {
            while !rest.is_empty() {
                let word = word(rest);
                rest = rest.get(word.len()..).unwrap_or_default().trim_start();
                if let Some((name, value)) = word.split_once('=') {
                    return Some((name.trim_end_matches("_w"), value));
                }
            }
            None
        })
    }
}

/// Up to the next blank outside of parentheses.
fn word(text: &str) -> &str {
    let mut depth = 0usize;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'(' => depth += 1,
            b')' => depth = depth.saturating_sub(1),
            b' ' if depth == 0 => return text.get(..at).unwrap_or(text),
            _ => {}
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::Path;

    #[test]
    fn a_log_read_back() {
        let log = "\
; int x; @ a.c:3
0: (bf) r6 = r1                         ; R1=ctx() R6=ctx()
from 0 to 7: R0=1 R1=ctx()
7: R0=1 R1=ctx()
7: (61) r0 = *(u32 *)(r1 +0)            ; frame1: R0=scalar(umax=1,var_off=(0x0; 0xff)) fp-8=mmmm????
invalid access to packet, off=6 size=1
R1 offset is outside of the packet
processed 3 insns
";
        let path = Path::parse(log, "R1 offset is outside of the packet");
        let insns: Vec<u32> = path.walked.iter().map(|w| w.insn).collect();
        assert_eq!(insns, [0, 7]);
        assert_eq!(path.walked[1].listing, "r0 = *(u32 *)(r1 +0)");
        assert_eq!(
            path.walked[1].value("R0"),
            Some("scalar(umax=1,var_off=(0x0; 0xff))")
        );
        assert_eq!(path.walked[1].value("fp-8"), Some("mmmm????"));
        assert_eq!(path.details, ["invalid access to packet, off=6 size=1"]);
    }
}
