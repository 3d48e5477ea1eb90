//! Names with `*` in them.

/// Whether a glob, in which `*` is any text, fits all of a name. The work is bounded by the
/// product of their lengths.
pub fn fits(glob: &str, name: &str) -> bool {
    let (glob, name) = (glob.as_bytes(), name.as_bytes());
    let (mut g, mut n) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        match glob.get(g) {
            Some(b'*') => {
                star = Some((g, n));
                g += 1;
            }
            Some(byte) if *byte == name[n] => {
                g += 1;
                n += 1;
            }
            // What the last star stands for grows by a byte.
            _ => match star {
                Some((at, from)) => {
                    star = Some((at, from + 1));
                    g = at + 1;
                    n = from + 1;
                }
                None => return false,
            },
        }
    }
    glob[g..].iter().all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::fits;

    #[test]
    fn globs() {
        for (glob, name, expected) in [
            ("a*c", "abbc", true),
            ("a*c", "abbcd", false),
            ("*", "", true),
            ("**x*", "axb", true),
            ("abc", "ab", false),
            ("*a*b*c", "xxaybzc", true),
        ] {
            assert_eq!(fits(glob, name), expected, "{glob} {name}");
        }
    }
}
