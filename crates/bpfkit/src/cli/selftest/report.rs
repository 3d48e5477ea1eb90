//! What is printed and written about a run: lines a test, the logs of failures, the summary,
//! JSON as `test_progs` writes it, and JUnit's XML.

use std::fmt::Write as _;

use serde::Serialize;

use super::check::{Outcome, Status};
use super::suite::{Case, Suite};

/// Width of the numbers before names.
const NUMBER_WIDTH: usize = 7;

/// A subtest with its outcome.
struct Done {
    /// Index among the suite's cases.
    case: usize,
    status: Status,
    text: String,
    /// It passes although it is denied.
    surprising: bool,
}

/// The outcomes so far, in the order in which they are shown.
#[derive(Default)]
pub struct Report {
    done: Vec<Done>,
}

/// How many subtests came out how.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    pub passed: usize,
    pub skipped: usize,
    pub failed: usize,
    /// Of those passed, how many a deny list names.
    pub surprising: usize,
}

impl Report {
    /// Takes an outcome; a denied subtest that fails is skipped, one that passes is told of.
    /// Returns its lines.
    pub fn add(&mut self, suite: &Suite, index: usize, outcome: Outcome, verbose: bool) -> String {
        let case = &suite.cases[index];
        let denial = case.denial.and_then(|at| suite.denials.get(at));
        let surprising = denial.is_some() && outcome.status == Status::Ok;
        let status = match (outcome.status, denial) {
            (Status::Fail, Some(denial)) => Status::Skip(format!("denied: {}", denial.reason())),
            (status, _) => status,
        };
        let (word, note) = match &status {
            Status::Ok if surprising => ("OK", " (though denied)".to_owned()),
            Status::Ok => ("OK", String::new()),
            Status::Skip(why) => ("SKIP", format!(" ({why})")),
            Status::Fail => ("FAIL", String::new()),
        };
        let mut line = format!("{}:{word}{note}\n", title(suite, case));
        if verbose {
            line = outcome.text.clone() + &line;
        }
        self.done.push(Done {
            case: index,
            status,
            text: outcome.text,
            surprising,
        });
        line
    }

    /// How many came out how.
    pub fn counts(&self) -> Counts {
        let count = |fits: fn(&Done) -> bool| self.done.iter().filter(|done| fits(done)).count();
        Counts {
            passed: count(|done| done.status == Status::Ok),
            skipped: count(|done| matches!(done.status, Status::Skip(_))),
            failed: count(|done| done.status == Status::Fail),
            surprising: count(|done| done.surprising),
        }
    }

    /// The logs of failures, what passed though denied, and the summary.
    pub fn closing(&self, suite: &Suite) -> String {
        let mut text = String::new();
        let failed = self.done.iter().filter(|done| done.status == Status::Fail);
        for (at, done) in failed.enumerate() {
            if at == 0 {
                text += "\nAll error logs:\n";
            }
            let title = title(suite, &suite.cases[done.case]);
            let _ = write!(text, "{}{title}:FAIL\n\n", done.text);
        }
        for done in self.done.iter().filter(|done| done.surprising) {
            let case = &suite.cases[done.case];
            let denial = case.denial.and_then(|at| suite.denials.get(at));
            let entry = denial.map_or("", |denial| denial.name.as_str());
            let title = title(suite, case);
            let _ = writeln!(text, "{title} passes; the deny list has '{entry}'");
        }
        let counts = self.counts();
        let _ = writeln!(
            text,
            "Summary: {}/{} PASSED, {} SKIPPED, {} FAILED",
            counts.passed,
            self.done.len(),
            counts.skipped,
            counts.failed
        );
        text
    }

    /// The outcomes by test, in order.
    fn by_test<'s>(&'s self, suite: &'s Suite) -> Vec<(&'s str, usize, Vec<&'s Done>)> {
        let mut tests: Vec<(&str, usize, Vec<&Done>)> = Vec::new();
        for done in &self.done {
            let case = &suite.cases[done.case];
            match tests.last_mut() {
                Some((_, number, list)) if *number == case.number.0 => list.push(done),
                _ => {
                    let name = suite.tests[case.test].name.as_str();
                    tests.push((name, case.number.0, vec![done]));
                }
            }
        }
        tests
    }

    /// As `test_progs --json-summary` writes it.
    pub fn json(&self, suite: &Suite) -> serde_json::Result<String> {
        let mut success = 0;
        let results = self.by_test(suite).into_iter().map(|(name, number, list)| {
            let failed = list.iter().any(|done| done.status == Status::Fail);
            success += usize::from(!failed);
            let subtests = list.into_iter().map(|done| JsonSubtest {
                name: &suite.cases[done.case].name,
                message: &done.text,
                failed: done.status == Status::Fail,
            });
            JsonTest {
                name,
                number,
                message: "",
                failed,
                subtests: subtests.collect(),
            }
        });
        let results: Vec<JsonTest<'_>> = results.collect();
        let counts = self.counts();
        serde_json::to_string_pretty(&JsonSummary {
            results,
            success,
            success_subtest: counts.passed,
            skipped: counts.skipped,
            failed: counts.failed,
        })
    }

    /// JUnit's XML, which CI systems read: a suite a test.
    pub fn junit(&self, suite: &Suite) -> String {
        let counts = self.counts();
        let mut xml = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n".to_owned();
        let attributes = |tests: usize, failed: usize, skipped: usize| {
            format!("tests=\"{tests}\" failures=\"{failed}\" skipped=\"{skipped}\" errors=\"0\"")
        };
        let all = attributes(self.done.len(), counts.failed, counts.skipped);
        let _ = writeln!(xml, "<testsuites name=\"bpfkit selftest\" {all}>");
        for (name, _, list) in self.by_test(suite) {
            let failed = list.iter().filter(|d| d.status == Status::Fail).count();
            let skipped = list
                .iter()
                .filter(|d| matches!(d.status, Status::Skip(_)))
                .count();
            let numbers = attributes(list.len(), failed, skipped);
            let name = escape(name);
            let _ = writeln!(xml, "  <testsuite name=\"{name}\" {numbers}>");
            for done in list {
                let subtest = escape(&suite.cases[done.case].name);
                let _ = write!(xml, "    <testcase classname=\"{name}\" name=\"{subtest}\"");
                xml += &match &done.status {
                    Status::Ok => "/>\n".to_owned(),
                    Status::Skip(why) => {
                        format!(
                            ">\n      <skipped message=\"{}\"/>\n    </testcase>\n",
                            escape(why)
                        )
                    }
                    Status::Fail => {
                        let last = done.text.trim_end().lines().last().unwrap_or_default();
                        format!(
                            ">\n      <failure message=\"{}\">{}</failure>\n    </testcase>\n",
                            escape(last),
                            escape(&done.text)
                        )
                    }
                };
            }
            xml += "  </testsuite>\n";
        }
        xml + "</testsuites>\n"
    }
}

/// `#12/3     verifier_and/the text`, as `test_progs` writes it.
pub fn title(suite: &Suite, case: &Case) -> String {
    let number = format!("{}/{}", case.number.0, case.number.1);
    let test = &suite.tests[case.test].name;
    format!("#{number:<NUMBER_WIDTH$} {test}/{}", case.name)
}

/// Text for XML: its own characters replaced, and those left out that it cannot hold.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '"' => out += "&quot;",
            '\n' | '\t' => out.push(c),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => {}
            c => out.push(c),
        }
    }
    out
}

#[derive(Serialize)]
struct JsonSummary<'a> {
    results: Vec<JsonTest<'a>>,
    success: usize,
    success_subtest: usize,
    skipped: usize,
    failed: usize,
}

#[derive(Serialize)]
struct JsonTest<'a> {
    name: &'a str,
    number: usize,
    message: &'a str,
    failed: bool,
    subtests: Vec<JsonSubtest<'a>>,
}

#[derive(Serialize)]
struct JsonSubtest<'a> {
    name: &'a str,
    message: &'a str,
    failed: bool,
}

#[cfg(test)]
mod tests {
    use super::escape;

    #[test]
    fn xml_is_escaped() {
        assert_eq!(escape("a<b & \"c\"\u{1}\n"), "a&lt;b &amp; &quot;c&quot;\n");
    }
}
