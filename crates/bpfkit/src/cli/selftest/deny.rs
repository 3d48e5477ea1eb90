//! Deny lists: tests that are known not to pass, as `DENYLIST` and `DENYLIST.ARCH` of the
//! kernel's selftests list them.
//!
//! ```text
//! # comment
//! test            # the error that is seen      (what it comes from)
//! test/subtest    # the error that is seen
//! ```

use std::path::Path;

use super::select::{Choice, Names};
use crate::cli::failure::Result;
use crate::cli::files;

/// A line of a list.
#[derive(Debug)]
pub struct Denial {
    choice: Choice,
    /// First column: the test.
    pub name: String,
    /// Second column: the error.
    pub error: String,
    /// Third column: the cause, empty where none is given.
    pub cause: String,
}

impl Denial {
    fn parse(line: &str) -> Option<Denial> {
        let (name, rest) = line.split_once('#').unwrap_or((line, ""));
        let (name, rest) = (name.trim(), rest.trim());
        if name.is_empty() {
            return None;
        }
        let cause = rest
            .strip_suffix(')')
            .and_then(|text| text.rsplit_once('('));
        let (error, cause) = cause.unwrap_or((rest, ""));
        Some(Denial {
            choice: Choice::glob(name),
            name: name.to_owned(),
            error: error.trim().to_owned(),
            cause: cause.trim().to_owned(),
        })
    }

    /// Whether it is about a subtest.
    pub fn fits(&self, test: &str, names: Names<'_>) -> bool {
        self.choice.fits(test, names)
    }

    /// Why, in a few words.
    pub fn reason(&self) -> &str {
        match self.cause.is_empty() {
            true => &self.error,
            false => &self.cause,
        }
    }
}

/// Reads `DENYLIST` and `DENYLIST.ARCH` of a folder; a path that is a file is read alone.
///
/// # Errors
/// A list that is there cannot be read.
pub fn read(path: &Path, arch: &str) -> Result<Vec<Denial>> {
    if path.is_file() {
        return read_file(path);
    }
    let mut list = Vec::new();
    for name in ["DENYLIST".to_owned(), format!("DENYLIST.{arch}")] {
        let path = path.join(name);
        if path.is_file() {
            list.extend(read_file(&path)?);
        }
    }
    Ok(list)
}

fn read_file(path: &Path) -> Result<Vec<Denial>> {
    let text = files::read_text(path)?;
    Ok(text.lines().filter_map(Denial::parse).collect())
}

#[cfg(test)]
mod tests {
    use super::Denial;

    #[test]
    fn three_columns() {
        let line = "get_stack_raw_tp   # user_stack corrupted (seen once)   (no backchain)";
        let denial = Denial::parse(line).expect("a line");
        assert_eq!(denial.name, "get_stack_raw_tp");
        assert_eq!(denial.error, "user_stack corrupted (seen once)");
        assert_eq!(denial.cause, "no backchain");
        assert_eq!(denial.reason(), "no backchain");
        assert!(denial.fits("get_stack_raw_tp", ["a", "b"]));
    }

    #[test]
    fn columns_may_be_missing() {
        assert!(Denial::parse("# a comment").is_none());
        assert!(Denial::parse("").is_none());
        let denial = Denial::parse("verifier_x/some text").expect("a line");
        assert!(denial.error.is_empty() && denial.cause.is_empty());
        assert!(denial.fits("verifier_x", ["some text", "p"]));
        assert!(!denial.fits("verifier_x", ["other text", "p"]));
    }
}
