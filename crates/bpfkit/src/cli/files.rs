//! Reading input files and writing output files, with errors that name the file.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use crate::cli::failure::{Failure, Result};

/// Reads a whole file; `-` is standard input.
pub fn read(path: &Path) -> Result<Vec<u8>> {
    if path == Path::new("-") {
        let mut bytes = Vec::new();
        std::io::Read::read_to_end(&mut std::io::stdin().lock(), &mut bytes)
            .map_err(|error| Failure::input(format!("standard input: {error}")))?;
        return Ok(bytes);
    }
    fs::read(path).map_err(|error| Failure::input(format!("{}: {error}", path.display())))
}

/// Reads a whole text file; `-` is standard input.
pub fn read_text(path: &Path) -> Result<String> {
    String::from_utf8(read(path)?)
        .map_err(|error| Failure::input(format!("{}: {}", path.display(), error.utf8_error())))
}

/// Reads a file of entries, one a line; empty lines and those that begin with `#` say nothing.
pub fn read_list(path: &Path) -> Result<Vec<String>> {
    let text = read_text(path)?;
    let lines = text.lines().map(str::trim);
    let entries = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    Ok(entries.map(str::to_owned).collect())
}

/// A file that appears under its name only when it is complete: it is written
/// beside it and renamed by [`OutputFile::finish`]; dropped before, it leaves nothing.
pub struct OutputFile {
    target: PathBuf,
    partial: PathBuf,
    writer: BufWriter<File>,
    finished: bool,
}

impl OutputFile {
    /// Begins to write `path`.
    pub fn create(path: &Path) -> Result<Self> {
        let mut partial = path.as_os_str().to_owned();
        partial.push(format!(".{}.partial", std::process::id()));
        let partial = PathBuf::from(partial);
        let file = File::create(&partial)
            .map_err(|error| Failure::machine(format!("{}: {error}", path.display())))?;
        Ok(OutputFile {
            target: path.to_owned(),
            partial,
            writer: BufWriter::with_capacity(1 << 20, file),
            finished: false,
        })
    }

    /// Completes the file under its own name.
    pub fn finish(mut self) -> Result {
        let done = self
            .writer
            .flush()
            .and_then(|()| fs::rename(&self.partial, &self.target));
        self.finished = done.is_ok();
        done.map_err(|error| Failure::machine(format!("{}: {error}", self.target.display())))
    }
}

impl Write for OutputFile {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.writer.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.writer.flush()
    }
}

impl Drop for OutputFile {
    fn drop(&mut self) {
        if !self.finished {
            // Best effort: the error that brought us here is the one to report.
            let _ = fs::remove_file(&self.partial);
        }
    }
}
