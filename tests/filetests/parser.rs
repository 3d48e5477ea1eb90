//! The text files of this folder.
//!
//! A file begins with `; test: KIND` (`run` for all under `run/`). Then come cases:
//!
//! ```text
//! ;; add64 register
//! r0 = $a ll
//! r1 = $b ll
//! r0 += r1
//! exit
//! ; row: a=0x1 b=0x2 => 0x3
//! ```
//!
//! `;; TITLE` begins a case; its program is every line that does not begin with `;`. Each
//! `; row:` is one run: words before `=>` replace `$name` in the program, and behind it
//! stands the return value in hexadecimal or `fault: TEXT` with a part of the message.
//! `data=HEX` is special: the program runs with the address of these bytes in R1 and their
//! number in R2. Options of a case: `; kernel: no, REASON` where the kernel would refuse
//! the program or answers otherwise, `; calls: helpers` where it needs helpers.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{fs, io};

/// A file of cases.
pub struct File {
    pub path: PathBuf,
    lines: Vec<String>,
    pub cases: Vec<Case>,
}

/// A program and its runs.
pub struct Case {
    pub title: String,
    template: String,
    /// Why the kernel cannot be asked.
    pub not_in_kernel: Option<String>,
    pub rows: Vec<Row>,
}

/// A run.
pub struct Row {
    line: usize,
    words: Vec<(String, String)>,
    pub expected: String,
}

impl Case {
    /// The program's text for a row.
    pub fn text(&self, row: &Row) -> String {
        let mut words: Vec<_> = row.words.iter().collect();
        words.sort_by_key(|(name, _)| std::cmp::Reverse(name.len()));
        words
            .iter()
            .fold(self.template.clone(), |text, (name, value)| {
                text.replace(&format!("${name}"), value)
            })
    }
}

impl Row {
    /// The memory to run on.
    pub fn data(&self) -> Option<Vec<u8>> {
        let (_, hex) = self.words.iter().find(|(name, _)| name == "data")?;
        let digits: Vec<u8> = hex
            .bytes()
            .map(|b| (b as char).to_digit(16).unwrap() as u8)
            .collect();
        Some(digits.chunks(2).map(|d| d[0] << 4 | d[1]).collect())
    }
}

impl File {
    fn read(path: &Path) -> io::Result<File> {
        let text = fs::read_to_string(path)?;
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        let mut cases: Vec<Case> = Vec::new();
        for (number, line) in lines.iter().enumerate() {
            if let Some(title) = line.strip_prefix(";; ") {
                cases.push(Case {
                    title: title.to_owned(),
                    template: String::new(),
                    not_in_kernel: None,
                    rows: Vec::new(),
                });
                continue;
            }
            let Some(case) = cases.last_mut() else {
                continue;
            };
            if let Some(row) = line.strip_prefix("; row:") {
                let (words, expected) = row.split_once("=>").unwrap_or_else(|| {
                    panic!("{}:{}: a row without =>", path.display(), number + 1)
                });
                let words = words
                    .split_whitespace()
                    .filter_map(|word| word.split_once('='));
                case.rows.push(Row {
                    line: number,
                    words: words.map(|(n, v)| (n.to_owned(), v.to_owned())).collect(),
                    expected: expected.trim().to_owned(),
                });
            } else if let Some(reason) = line.strip_prefix("; kernel: no, ") {
                case.not_in_kernel = Some(reason.to_owned());
            } else if !line.starts_with(';') {
                let _ = writeln!(case.template, "{line}");
            }
        }
        Ok(File {
            path: path.to_owned(),
            lines,
            cases,
        })
    }

    /// Puts another expectation into a row.
    pub fn bless(&mut self, case: usize, row: usize, expected: &str) {
        let row = &mut self.cases[case].rows[row];
        row.expected = expected.to_owned();
        let line = &mut self.lines[row.line];
        let keep = line.find("=>").unwrap_or(line.len());
        line.truncate(keep);
        let _ = write!(line, "=> {expected}");
    }

    /// Writes the file back.
    pub fn write(&self) -> io::Result<()> {
        fs::write(&self.path, self.lines.join("\n") + "\n")
    }
}

/// The files of a kind (`run`), in order of their names.
pub fn files(kind: &str) -> io::Result<Vec<File>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/filetests")
        .join(kind);
    let mut paths = Vec::new();
    let mut folders = vec![root];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "bpf") {
                paths.push(path);
            }
        }
    }
    paths.sort();
    paths.iter().map(|path| File::read(path)).collect()
}
