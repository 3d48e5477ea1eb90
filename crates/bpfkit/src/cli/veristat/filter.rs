//! Which programs are judged and which rows are shown.

use std::path::Path;

use crate::cli::failure::{Failure, Result};
use crate::cli::files;
use crate::cli::glob::fits as glob_matches;
use crate::cli::veristat::stats::{Named, Row};

/// Filters that let through, and filters that keep back.
#[derive(Default)]
pub struct Filters {
    allow: Vec<Filter>,
    deny: Vec<Filter>,
}

enum Filter {
    /// A glob for file names or program names.
    Any(String),
    /// `file/prog`: a glob for each; an absent one fits all.
    Names(Option<String>, Option<String>),
    /// A condition on a number.
    Number(Condition),
}

/// `insns>100`.
pub struct Condition {
    pub named: Named,
    operator: Operator,
    value: i64,
}

#[derive(Clone, Copy)]
enum Operator {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
}

/// Longer ones first where one begins another.
const OPERATORS: [(&str, Operator); 8] = [
    ("==", Operator::Eq),
    ("!=", Operator::Ne),
    ("<>", Operator::Ne),
    ("<=", Operator::Le),
    ("<", Operator::Lt),
    (">=", Operator::Ge),
    (">", Operator::Gt),
    ("=", Operator::Eq),
];

/// Words for numbers, in any case.
const TRUE: [&str; 7] = ["true", "t", "success", "succ", "s", "match", "m"];
const FALSE: [&str; 6] = ["false", "f", "failure", "fail", "mismatch", "mis"];

/// Rows with missing numbers and percentages are compared as floating point.
const EPSILON: f64 = 1e-9;

impl Condition {
    pub fn holds(&self, number: f64) -> bool {
        let number = match self.named.absolute {
            true => number.abs(),
            false => number,
        };
        let value = self.value as f64;
        match self.operator {
            Operator::Eq => number > value - EPSILON && number < value + EPSILON,
            Operator::Ne => number < value - EPSILON || number > value + EPSILON,
            Operator::Lt => number < value - EPSILON,
            Operator::Le => number <= value + EPSILON,
            Operator::Gt => number > value + EPSILON,
            Operator::Ge => number >= value - EPSILON,
        }
    }
}

impl Filters {
    /// Reads the arguments of `-f`.
    pub fn parse(arguments: &[String]) -> Result<Filters> {
        let mut filters = Filters::default();
        for argument in arguments {
            match argument.strip_prefix('@') {
                Some(path) => {
                    for line in files::read_list(Path::new(path))? {
                        filters.add(&line)?;
                    }
                }
                None => filters.add(argument)?,
            }
        }
        Ok(filters)
    }

    fn add(&mut self, text: &str) -> Result {
        match text.strip_prefix('!') {
            Some(rest) => self.deny.push(Filter::parse(rest)?),
            None => self.allow.push(Filter::parse(text)?),
        }
        Ok(())
    }

    /// Whether a file may hold programs that are wanted.
    pub fn file(&self, file: &str) -> bool {
        let denied = self.deny.iter().any(|filter| filter.names(file, None));
        let mut allow = self
            .allow
            .iter()
            .filter(|filter| filter.is_name())
            .peekable();
        !denied && (allow.peek().is_none() || allow.any(|filter| filter.may_name(file)))
    }

    /// Whether a program is wanted.
    pub fn program(&self, file: &str, prog: &str) -> bool {
        let denied = self
            .deny
            .iter()
            .any(|filter| filter.names(file, Some(prog)));
        let mut allow = self
            .allow
            .iter()
            .filter(|filter| filter.is_name())
            .peekable();
        !denied && (allow.peek().is_none() || allow.any(|filter| filter.names(file, Some(prog))))
    }

    /// Whether a row with that number for each condition is shown.
    pub fn shows(&self, number: impl Fn(&Named) -> f64) -> bool {
        let holds = |condition: &Condition| condition.holds(number(&condition.named));
        let mut allow = self.allow.iter().filter_map(Filter::condition).peekable();
        let denied = self.deny.iter().filter_map(Filter::condition).any(holds);
        !denied && (allow.peek().is_none() || allow.any(holds))
    }

    /// Whether a row of a single result is shown.
    pub fn row(&self, row: &Row) -> bool {
        self.shows(|named| row.number(named.stat) as f64)
    }
}

impl Filter {
    fn parse(text: &str) -> Result<Filter> {
        for (sign, operator) in OPERATORS {
            let Some((name, value)) = text.split_once(sign) else {
                continue;
            };
            let named = Named::parse(name)
                .ok_or_else(|| Failure::input(format!("Unrecognized stat name in '{text}'!")))?;
            if named.stat.is_key() {
                let message = format!("Non-integer stat is specified in '{text}'!");
                return Err(Failure::input(message));
            }
            let value = parse_value(value)
                .ok_or_else(|| Failure::input(format!("Invalid integer value in '{text}'!")))?;
            return Ok(Filter::Number(Condition {
                named,
                operator,
                value,
            }));
        }
        let some = |glob: &str| (!glob.is_empty()).then(|| glob.to_owned());
        match text.split_once('/') {
            None if !text.is_empty() => Ok(Filter::Any(text.to_owned())),
            Some((file, prog)) if file.len() + prog.len() > 0 => {
                Ok(Filter::Names(some(file), some(prog)))
            }
            _ => Err(Failure::input(format!("Invalid filter: '{text}'"))),
        }
    }

    fn is_name(&self) -> bool {
        !matches!(self, Filter::Number(_))
    }

    fn condition(&self) -> Option<&Condition> {
        match self {
            Filter::Number(condition) => Some(condition),
            _ => None,
        }
    }

    /// Whether it names the program, or the file where no program is known yet.
    fn names(&self, file: &str, prog: Option<&str>) -> bool {
        let fits = |glob: &str| prog.is_some_and(|prog| glob_matches(glob, prog));
        match self {
            Filter::Any(glob) => glob_matches(glob, file) || fits(glob),
            Filter::Names(of_file, of_prog) => {
                of_file.as_ref().is_none_or(|glob| glob_matches(glob, file))
                    && of_prog.as_ref().is_none_or(|glob| fits(glob))
            }
            Filter::Number(_) => false,
        }
    }

    /// Whether it may name a program of that file.
    fn may_name(&self, file: &str) -> bool {
        match self {
            Filter::Names(Some(glob), _) => glob_matches(glob, file),
            Filter::Any(_) | Filter::Names(None, _) => true,
            Filter::Number(_) => false,
        }
    }
}

fn parse_value(text: &str) -> Option<i64> {
    let is = |words: &[&str]| words.iter().any(|word| word.eq_ignore_ascii_case(text));
    if is(&TRUE) {
        return Some(1);
    }
    if is(&FALSE) {
        return Some(0);
    }
    text.trim_start().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::Filters;
    use crate::cli::veristat::stats::{Row, Stat};

    fn filters(words: &[&str]) -> Filters {
        let words: Vec<String> = words.iter().map(|&w| w.to_owned()).collect();
        Filters::parse(&words).unwrap()
    }

    #[test]
    fn files_and_programs() {
        let f = filters(&["py*/on_*", "!*/on_exit"]);
        assert!(f.file("pyperf.o") && !f.file("loop.o"));
        assert!(f.program("pyperf.o", "on_event"));
        assert!(!f.program("pyperf.o", "on_exit"));
        assert!(!f.program("loop.o", "on_event"));
        let any = filters(&["on_event"]);
        assert!(any.file("loop.o") && any.program("loop.o", "on_event"));
        assert!(filters(&[]).program("a", "b"));
    }

    #[test]
    fn numbers() {
        let mut row = Row::new("a", "b");
        row.set(Stat::Insns, 100);
        row.set(Stat::Verdict, 1);
        assert!(filters(&["insns>=100", "insns<5"]).row(&row));
        assert!(!filters(&["insns>100"]).row(&row));
        assert!(!filters(&["!verdict=Success"]).row(&row));
        assert!(filters(&["verdict<>fail"]).row(&row));
        for wrong in ["cows=1", "file=1", "insns=x", "", "/"] {
            assert!(Filters::parse(&[wrong.to_owned()]).is_err(), "{wrong}");
        }
    }
}
