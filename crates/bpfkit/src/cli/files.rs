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

/// Writes a whole file.
pub fn write(path: &Path, bytes: &[u8]) -> Result {
    let mut file = OutputFile::create(path)?;
    file.write_all(bytes)
        .map_err(|error| Failure::machine(format!("{}: {error}", path.display())))?;
    file.finish()
}

/// A file that appears under its name only when it is complete: it is written
/// beside it and renamed by [`OutputFile::finish`]; dropped before, it leaves nothing.
/// A link is followed; what is no regular file (a device, a pipe) is written to as it stands.
pub struct OutputFile {
    target: PathBuf,
    /// Where the bytes go until the file is complete; `None` where they go to `target` itself.
    partial: Option<PathBuf>,
    writer: BufWriter<File>,
    finished: bool,
}

impl OutputFile {
    /// Begins to write `path`.
    pub fn create(path: &Path) -> Result<Self> {
        let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let in_place = fs::metadata(&target).is_ok_and(|there| !there.is_file());
        let partial = (!in_place).then(|| {
            let mut partial = target.as_os_str().to_owned();
            partial.push(format!(".{}.partial", std::process::id()));
            PathBuf::from(partial)
        });
        let file = match &partial {
            Some(partial) => File::create(partial),
            None => File::options().write(true).open(&target),
        }
        .map_err(|error| Failure::machine(format!("{}: {error}", path.display())))?;
        Ok(OutputFile {
            target,
            partial,
            writer: BufWriter::with_capacity(1 << 20, file),
            finished: false,
        })
    }

    /// Completes the file under its own name.
    pub fn finish(mut self) -> Result {
        let done = self.writer.flush().and_then(|()| match &self.partial {
            Some(partial) => fs::rename(partial, &self.target),
            None => Ok(()),
        });
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
        if let (false, Some(partial)) = (self.finished, &self.partial) {
            // Best effort: the error that brought us here is the one to report.
            let _ = fs::remove_file(partial);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_there_whole_or_not_at_all() {
        let folder = std::env::temp_dir().join(format!("bpfkit-files-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        let (name, link) = (folder.join("a"), folder.join("link"));
        std::os::unix::fs::symlink(&name, &link).expect("a link");

        let mut given_up = OutputFile::create(&name).expect("creates");
        given_up.write_all(b"half").expect("writes");
        drop(given_up);
        assert_eq!(
            fs::read_dir(&folder).expect("lists").count(),
            1,
            "only the link"
        );

        fs::write(&name, b"old").expect("writes");
        let mut file = OutputFile::create(&link).expect("creates");
        file.write_all(b"new").expect("writes");
        assert_eq!(fs::read(&name).expect("reads"), b"old");
        assert!(file.finish().is_ok());
        assert_eq!(fs::read(&name).expect("reads"), b"new");
        assert!(fs::symlink_metadata(&link).expect("there").is_symlink());
        fs::remove_dir_all(&folder).expect("removes");
    }

    #[test]
    fn a_device_is_written_to_and_stays() {
        let full = Path::new("/dev/full");
        let mut file = OutputFile::create(full).expect("opens");
        let written = file.write_all(b"lost").map(|()| file.finish().is_ok());
        assert!(!written.unwrap_or(false), "the disk is full");
        assert!(!fs::metadata(full).expect("there").is_file());
    }
}
