//! Which tests run: `test_progs`' options for it.

use std::ops::RangeInclusive;
use std::path::Path;

use crate::cli::failure::{Failure, Result};
use crate::cli::{files, glob};

/// Names of a subtest: the text that describes it, and its program.
pub type Names<'a> = [&'a str; 2];

/// The options.
#[derive(Default)]
pub struct Selection {
    /// `-t`, `-a`: run only these, if there are any.
    allow: Vec<Choice>,
    /// `-b`, `-d`: do not run these.
    deny: Vec<Choice>,
    /// `-n`: only these numbers.
    numbers: Option<Numbers>,
}

/// `TEST` or `TEST/SUBTEST`, with `*` for any text.
#[derive(Clone, Debug)]
pub struct Choice {
    test: String,
    subtest: Option<String>,
}

impl Choice {
    /// A pattern that fits whole names.
    pub fn glob(word: &str) -> Choice {
        let (test, subtest) = match word.split_once('/') {
            Some((test, subtest)) => (test, Some(subtest.to_owned())),
            None => (word, None),
        };
        Choice {
            test: test.to_owned(),
            subtest,
        }
    }

    /// A pattern that fits names with this text in them.
    fn substring(word: &str) -> Choice {
        let around = |text: &str| format!("*{text}*");
        let glob = Choice::glob(word);
        Choice {
            test: around(&glob.test),
            subtest: glob.subtest.as_deref().map(around),
        }
    }

    /// Whether it fits a subtest.
    pub fn fits(&self, test: &str, names: Names<'_>) -> bool {
        let subtest = self.subtest.as_deref();
        glob::fits(&self.test, test)
            && subtest.is_none_or(|glob| names.iter().any(|name| glob::fits(glob, name)))
    }
}

/// `1,3-5` or `3/1,4-6`.
struct Numbers {
    tests: Vec<RangeInclusive<usize>>,
    subtests: Vec<RangeInclusive<usize>>,
}

impl Numbers {
    fn parse(word: &str) -> Result<Numbers> {
        let (tests, subtests) = word.split_once('/').unwrap_or((word, ""));
        let list = |text: &str| -> Option<Vec<RangeInclusive<usize>>> {
            let items = text.split(',').filter(|item| !item.is_empty());
            items
                .map(|item| {
                    let (first, last) = item.split_once('-').unwrap_or((item, item));
                    Some(first.trim().parse().ok()?..=last.trim().parse().ok()?)
                })
                .collect()
        };
        match (list(tests), list(subtests)) {
            (Some(tests), Some(subtests)) => Ok(Numbers { tests, subtests }),
            _ => Err(Failure::input(format!(
                "-n {word}: expected numbers and ranges such as 1,3-5 or 3/1-4"
            ))),
        }
    }
}

impl Selection {
    /// The options as given: substrings to run and not to run, globs to run and not to run,
    /// and numbers. A word is a list with commas, or `@FILE` with a name a line.
    ///
    /// # Errors
    /// A file cannot be read, or a number is none.
    pub fn new(
        [names, not_names, globs, not_globs]: [&[String]; 4],
        numbers: Option<&str>,
    ) -> Result<Selection> {
        let mut selection = Selection::default();
        extend(&mut selection.allow, names, Choice::substring)?;
        extend(&mut selection.allow, globs, Choice::glob)?;
        extend(&mut selection.deny, not_names, Choice::substring)?;
        extend(&mut selection.deny, not_globs, Choice::glob)?;
        selection.numbers = numbers.map(Numbers::parse).transpose()?;
        Ok(selection)
    }

    /// Whether a subtest runs; numbers count from 1.
    pub fn takes(&self, number: (usize, usize), test: &str, names: Names<'_>) -> bool {
        let chosen = |list: &[Choice]| list.iter().any(|choice| choice.fits(test, names));
        let in_ranges = |list: &[RangeInclusive<usize>], n: usize| {
            list.is_empty() || list.iter().any(|range| range.contains(&n))
        };
        let numbered = self.numbers.as_ref().is_none_or(|numbers| {
            in_ranges(&numbers.tests, number.0) && in_ranges(&numbers.subtests, number.1)
        });
        numbered && (self.allow.is_empty() || chosen(&self.allow)) && !chosen(&self.deny)
    }
}

fn extend(list: &mut Vec<Choice>, words: &[String], make: fn(&str) -> Choice) -> Result {
    for word in words {
        match word.strip_prefix('@') {
            Some(path) => {
                let lines = files::read_list(Path::new(path))?;
                // The rest of the line says why.
                let names = lines
                    .iter()
                    .map(|line| line.split('#').next().unwrap_or(""));
                list.extend(names.map(|name| make(name.trim())));
            }
            None => list.extend(
                word.split(',')
                    .map(str::trim)
                    .filter(|n| !n.is_empty())
                    .map(make),
            ),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn takes(options: [&[&str]; 4], number: Option<&str>, test: &str, subtest: &str) -> bool {
        let owned = options.map(|list| list.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>());
        let [a, b, c, d] = &owned;
        let selection = Selection::new([a, b, c, d], number).expect("a selection");
        selection.takes((3, 2), test, [subtest, "prog"])
    }

    #[test]
    fn names_are_parts_and_globs_are_whole() {
        assert!(takes([&["oo/a"], &[], &[], &[]], None, "foo", "bar"));
        assert!(!takes([&[], &[], &["oo"], &[]], None, "foo", "bar"));
        assert!(takes([&[], &[], &["*oo/pr*"], &[]], None, "foo", "bar"));
        assert!(takes([&["x,foo"], &[], &[], &[]], None, "foo", "bar"));
    }

    #[test]
    fn what_is_denied_does_not_run() {
        assert!(!takes(
            [&["foo"], &["foo/bar"], &[], &[]],
            None,
            "foo",
            "bar"
        ));
        assert!(takes(
            [&["foo"], &["foo/bat"], &[], &[]],
            None,
            "foo",
            "bar"
        ));
        assert!(!takes([&[], &[], &[], &["foo"]], None, "foo", "bar"));
    }

    #[test]
    fn numbers_choose_tests_and_subtests() {
        assert!(takes([&[], &[], &[], &[]], Some("1,3-4"), "foo", "bar"));
        assert!(!takes([&[], &[], &[], &[]], Some("3/1"), "foo", "bar"));
        assert!(takes([&[], &[], &[], &[]], Some("3/1-2"), "foo", "bar"));
        assert!(Selection::new([&[], &[], &[], &[]], Some("x")).is_err());
    }
}
