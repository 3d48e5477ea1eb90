//! Finding what to boot: a kernel image or a Debian package, and this program for the guest.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cli::failure::{Failure, Result};
use crate::cli::files;

/// A kernel to boot.
pub struct Image {
    /// The compressed kernel.
    pub vmlinuz: PathBuf,
    /// Its configuration as text, where it is known.
    pub config: Option<String>,
    /// Where a package was unpacked; gone with this value.
    _unpacked: Option<tempfile::TempDir>,
}

impl Image {
    /// A kernel image, a `.deb` file, or the name of a Debian package that `apt-get` finds;
    /// a version such as `6.12` means the newest package with a cloud kernel of it.
    pub fn find(word: &str, debian_arch: &str) -> Result<Image> {
        let path = Path::new(word);
        if path.is_file() && path.extension().is_none_or(|extension| extension != "deb") {
            return Ok(Image {
                vmlinuz: path.to_owned(),
                config: config_beside(path),
                _unpacked: None,
            });
        }
        let folder = tempfile::tempdir().map_err(Failure::machine)?;
        let package = match path.is_file() {
            true => path.to_owned(),
            false => download(word, debian_arch, folder.path())?,
        };
        let root = folder.path().join("root");
        tool(Command::new("dpkg-deb").arg("-x").arg(&package).arg(&root))?;
        let boot = fs::read_dir(root.join("boot"));
        let vmlinuz = boot
            .into_iter()
            .flatten()
            .filter_map(|entry| Some(entry.ok()?.path()))
            .find(|path| file_name(path).starts_with("vmlinuz-"))
            .ok_or_else(|| {
                Failure::input(format!("{}: no boot/vmlinuz-* in it", package.display()))
            })?;
        Ok(Image {
            config: config_beside(&vmlinuz),
            vmlinuz,
            _unpacked: Some(folder),
        })
    }
}

fn file_name(path: &Path) -> std::borrow::Cow<'_, str> {
    path.file_name().unwrap_or_default().to_string_lossy()
}

/// `config-RELEASE` beside `vmlinuz-RELEASE`.
fn config_beside(vmlinuz: &Path) -> Option<String> {
    let name = file_name(vmlinuz);
    let release = name.strip_prefix("vmlinuz-")?;
    fs::read_to_string(vmlinuz.with_file_name(format!("config-{release}"))).ok()
}

/// Downloads a package into a folder.
fn download(word: &str, debian_arch: &str, folder: &Path) -> Result<PathBuf> {
    let is_version = word.starts_with(|c: char| c.is_ascii_digit());
    let package = match is_version {
        // The guest's architecture need not be this machine's.
        true => format!("{}:{debian_arch}", newest(word, debian_arch)?),
        false => word.to_owned(),
    };
    anstream::eprintln!("downloading {package}");
    let mut apt = Command::new("apt-get");
    apt.args(["download", "-qq", &package]).current_dir(folder);
    tool(&mut apt)?;
    let found = fs::read_dir(folder).map_err(Failure::machine)?;
    found
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.extension().is_some_and(|extension| extension == "deb"))
        .ok_or_else(|| Failure::machine(format!("apt-get download {package} brought no package")))
}

/// The newest cloud kernel of a version: `6.12` gives `linux-image-6.12.117+deb12-cloud-amd64`.
fn newest(version: &str, debian_arch: &str) -> Result<String> {
    let names = tool(Command::new("apt-cache").args(["pkgnames", "linux-image-"]))?;
    let prefix = format!("linux-image-{version}");
    let suffix = format!("-cloud-{debian_arch}");
    let candidates = names.lines().filter(|name| {
        name.strip_prefix(&prefix).is_some_and(|rest| {
            rest.ends_with(&suffix) && !rest.starts_with(|c: char| c.is_ascii_digit())
        })
    });
    let package = candidates.max_by_key(|name| numbers(name));
    package.map(str::to_owned).ok_or_else(|| {
        Failure::input(format!(
            "--kernel {version}: no such file, and no package {prefix}*{suffix}"
        ))
    })
}

/// The numbers in a name, to order versions by.
fn numbers(name: &str) -> Vec<u64> {
    let words = name.split(|c: char| !c.is_ascii_digit());
    words.filter_map(|word| word.parse().ok()).collect()
}

/// Runs a tool and returns what it prints.
fn tool(command: &mut Command) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command
        .output()
        .map_err(|error| Failure::machine(format!("{name}: {error}")))?;
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr);
        let why = why.trim().lines().last().unwrap_or_default();
        return Err(Failure::machine(format!(
            "{name}: {}: {why}",
            output.status
        )));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The files that make up a program: itself first, and for one that is linked dynamically
/// the loader and the libraries, all at the places where the loader looks for them.
pub fn program_files(program: &Path) -> Result<Vec<(String, Vec<u8>)>> {
    let bytes = files::read(program)?;
    let interpreter = interpreter(&bytes);
    let mut list = vec![("init".to_owned(), bytes)];
    let Some(interpreter) = interpreter else {
        return Ok(list);
    };
    let libraries = tool(Command::new(&interpreter).arg("--list").arg(program))?;
    let mut paths: Vec<&str> = libraries
        .split_whitespace()
        .filter(|word| word.starts_with('/'))
        .collect();
    paths.push(&interpreter);
    paths.sort_unstable();
    paths.dedup();
    for path in paths {
        let place = path.trim_start_matches('/').to_owned();
        list.push((place, files::read(Path::new(path))?));
    }
    Ok(list)
}

/// The loader that a 64-bit ELF program names (`PT_INTERP`); none if it is static.
fn interpreter(elf: &[u8]) -> Option<String> {
    const PT_INTERP: u64 = 3;
    let number = |at: usize, len: usize| -> Option<u64> {
        let bytes = elf.get(at..at.checked_add(len)?)?;
        Some(
            bytes
                .iter()
                .rev()
                .fold(0, |sum, &byte| sum << 8 | u64::from(byte)),
        )
    };
    let table = usize::try_from(number(32, 8)?).ok()?;
    let (size, count) = (number(54, 2)? as usize, number(56, 2)? as usize);
    let headers = (0..count).filter_map(|n| table.checked_add(n * size));
    let header = headers
        .into_iter()
        .find(|&at| number(at, 4) == Some(PT_INTERP))?;
    let start = usize::try_from(number(header.checked_add(8)?, 8)?).ok()?;
    let len = usize::try_from(number(header.checked_add(32)?, 8)?).ok()?;
    let text = elf.get(start..start.checked_add(len)?)?;
    Some(
        String::from_utf8_lossy(text)
            .trim_end_matches('\0')
            .to_owned(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_order_by_number() {
        let older = "linux-image-6.12.99+deb12-cloud-amd64";
        let newer = "linux-image-6.12.117+deb12-cloud-amd64";
        assert!(numbers(older) < numbers(newer));
    }

    #[test]
    fn hostile_programs_have_no_interpreter() {
        assert_eq!(interpreter(b""), None);
        let mut elf = vec![0xff; 64];
        assert_eq!(interpreter(&elf), None);
        elf[54..58].copy_from_slice(&[0, 0, 0xff, 0xff]);
        elf[32..40].fill(0);
        assert_eq!(interpreter(&elf), None);
    }
}
