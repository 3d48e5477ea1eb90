//! The tests of some objects: a test an object, a subtest a program and mode.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use bpfkit_object::Object;

use super::deny::Denial;
use super::select::{Names, Selection};
use super::tags::Spec;
use crate::cli::failure::Result;
use crate::cli::objects;
use crate::cli::oracle_rows::OracleRow;

/// What the tests of an unprivileged process are called after.
const UNPRIVILEGED: &str = " @unpriv";

/// An object with its tests.
pub struct Test {
    /// The object's name up to the first dot.
    pub name: String,
    /// Where it lies; paths in tags start from here.
    pub folder: PathBuf,
    /// What it holds, or why it cannot be opened.
    pub object: std::result::Result<Object, String>,
    /// What the tags of each program say.
    pub specs: Vec<Option<Spec>>,
}

/// As which process a program is loaded, and what tells what to expect.
#[derive(Clone, Debug)]
pub enum Mode {
    /// With all capabilities, by the tags.
    Privileged,
    /// With none, by the tags.
    Unprivileged,
    /// With all, by what a kernel said.
    Oracle(Box<OracleRow>),
}

/// A subtest.
pub struct Case {
    /// Index among the tests.
    pub test: usize,
    /// Index among the object's programs.
    pub prog: usize,
    /// As which process.
    pub mode: Mode,
    /// Numbers of test and subtest, from 1.
    pub number: (usize, usize),
    /// What it is called.
    pub name: String,
    /// Why it is known not to pass: the index of the denial.
    pub denial: Option<usize>,
    /// The tags cannot be understood.
    pub broken: Option<String>,
}

/// All of it.
pub struct Suite {
    /// Objects that have tests.
    pub tests: Vec<Test>,
    /// Subtests that were selected.
    pub cases: Vec<Case>,
    /// Deny lists.
    pub denials: Vec<Denial>,
}

/// What chooses and expects.
pub struct Plan<'a> {
    /// Which tests run.
    pub selection: &'a Selection,
    /// Verdicts for programs without tags, by file and program.
    pub oracle: &'a HashMap<(String, String), OracleRow>,
    /// This machine, as the tags name architectures.
    pub arch: &'a str,
}

impl Suite {
    /// Reads the objects.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn read(paths: &[PathBuf], plan: &Plan<'_>, denials: Vec<Denial>) -> Result<Suite> {
        let mut suite = Suite {
            tests: Vec::new(),
            cases: Vec::new(),
            denials,
        };
        let mut number = 0;
        for path in paths {
            let mut test = read_test(path)?;
            if let Err(why) = &test.object {
                anstream::eprintln!("skipped: {why}");
            }
            let file = path.file_name().unwrap_or_default().to_string_lossy();
            let at = suite.tests.len();
            let mut cases = subtests(&mut test, &file, at, plan);
            if cases.is_empty() {
                continue;
            }
            // Every object with tests has its number, whatever is selected.
            number += 1;
            for (index, case) in cases.iter_mut().enumerate() {
                case.number = (number, index + 1);
            }
            cases.retain(|case| {
                let names = names(&test, case);
                plan.selection.takes(case.number, &test.name, names)
            });
            for case in &mut cases {
                let names = names(&test, case);
                let mut denials = suite.denials.iter();
                case.denial = denials.position(|denial| denial.fits(&test.name, names));
            }
            if !cases.is_empty() {
                suite.tests.push(test);
                suite.cases.append(&mut cases);
            }
        }
        Ok(suite)
    }
}

/// What a subtest may be called by.
fn names<'a>(test: &'a Test, case: &'a Case) -> Names<'a> {
    let object = test.object.as_ref().ok();
    let decl = object.and_then(|object| object.programs.get(case.prog));
    [&case.name, decl.map_or("", |decl| &decl.name)]
}

fn read_test(path: &Path) -> Result<Test> {
    let file = path.file_name().unwrap_or_default().to_string_lossy();
    let bytes = crate::cli::files::read(path)?;
    Ok(Test {
        name: file.split('.').next().unwrap_or_default().to_owned(),
        folder: path.parent().unwrap_or(Path::new(".")).to_owned(),
        object: objects::parse(path, &bytes).map_err(|failure| failure.message),
        specs: Vec::new(),
    })
}

/// The subtests of an object, in its order; fills in what its tags say.
fn subtests(test: &mut Test, file: &str, at: usize, plan: &Plan<'_>) -> Vec<Case> {
    let mut cases = Vec::new();
    let Ok(object) = &test.object else {
        return cases;
    };
    let case = |prog, mode, name| Case {
        test: at,
        prog,
        mode,
        number: (0, 0),
        name,
        denial: None,
        broken: None,
    };
    for (prog, decl) in object.programs.iter().enumerate() {
        let read = object
            .btf
            .as_deref()
            .map(|btf| Spec::read(btf, &decl.name, plan.arch));
        let spec = match read {
            Some(Err(why)) => {
                cases.push(Case {
                    broken: Some(why),
                    ..case(prog, Mode::Privileged, decl.name.clone())
                });
                None
            }
            Some(Ok(spec)) => spec,
            None => None,
        };
        match &spec {
            Some(spec) if spec.auxiliary => {}
            Some(spec) => {
                let name = spec.description.as_ref().unwrap_or(&decl.name);
                if spec.privileged.is_some() {
                    cases.push(case(prog, Mode::Privileged, name.clone()));
                }
                if spec.unprivileged.is_some() {
                    let name = format!("{name}{UNPRIVILEGED}");
                    cases.push(case(prog, Mode::Unprivileged, name));
                }
            }
            None => {
                let row = plan.oracle.get(&(file.to_owned(), decl.name.clone()));
                let judged = row.filter(|row| row.verdict == "accept" || row.verdict == "reject");
                if let Some(row) = judged {
                    let mode = Mode::Oracle(Box::new(row.clone()));
                    cases.push(case(prog, mode, decl.name.clone()));
                }
            }
        }
        test.specs.push(spec);
    }
    cases
}
