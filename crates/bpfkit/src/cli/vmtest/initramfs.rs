//! The guest's file system: a `cpio` archive ("newc" format, as the kernel's
//! `Documentation/driver-api/early-userspace/buffer-format.rst` describes it), compressed.

use std::collections::BTreeSet;
use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;

const DIRECTORY: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;
const CHARACTER_DEVICE: u32 = 0o020_600;
/// Major and minor number of `/dev/console`.
const CONSOLE: (u32, u32) = (5, 1);

/// An archive under construction.
pub struct Archive {
    out: GzEncoder<Vec<u8>>,
    directories: BTreeSet<String>,
    next_inode: u32,
}

impl Archive {
    /// An archive with the mount points and the console that a first process needs.
    pub fn new() -> std::io::Result<Archive> {
        let mut archive = Archive {
            out: GzEncoder::new(Vec::new(), Compression::fast()),
            directories: BTreeSet::new(),
            next_inode: 1,
        };
        for name in ["proc", "sys", "dev"] {
            archive.directory(name)?;
        }
        archive.entry("dev/console", CHARACTER_DEVICE, CONSOLE, &[])?;
        Ok(archive)
    }

    /// Adds a file, executable, with the directories above it; `path` has no leading slash.
    pub fn file(&mut self, path: &str, bytes: &[u8]) -> std::io::Result<()> {
        for (at, _) in path.match_indices('/') {
            self.directory(&path[..at])?;
        }
        self.entry(path, PROGRAM, (0, 0), bytes)
    }

    /// The compressed archive.
    pub fn finish(mut self) -> std::io::Result<Vec<u8>> {
        self.entry("TRAILER!!!", 0, (0, 0), &[])?;
        self.out.finish()
    }

    fn directory(&mut self, path: &str) -> std::io::Result<()> {
        if self.directories.insert(path.to_owned()) {
            self.entry(path, DIRECTORY, (0, 0), &[])?;
        }
        Ok(())
    }

    fn entry(
        &mut self,
        name: &str,
        mode: u32,
        device: (u32, u32),
        bytes: &[u8],
    ) -> std::io::Result<()> {
        let too_large = || std::io::Error::other(format!("{name} is too large for an initramfs"));
        let size = u32::try_from(bytes.len()).map_err(|_| too_large())?;
        let name_size = u32::try_from(name.len() + 1).map_err(|_| too_large())?;
        let links = 1;
        #[rustfmt::skip]
        let fields = [
            self.next_inode, mode, 0, 0, links, 0, size, 0, 0, device.0, device.1, name_size, 0,
        ];
        self.next_inode += 1;
        let mut header = "070701".to_owned();
        for field in fields {
            header += &format!("{field:08x}");
        }
        header += name;
        header.push('\0');
        self.padded(header.as_bytes())?;
        self.padded(bytes)
    }

    /// Writes bytes and zeros up to a multiple of four.
    fn padded(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.out.write_all(bytes)?;
        let zeros = bytes.len().next_multiple_of(4) - bytes.len();
        self.out.write_all(&[0; 3][..zeros])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;

    #[test]
    fn directories_come_before_files_and_once() {
        let mut archive = Archive::new().expect("an archive");
        archive.file("a/b/c", b"xyz").expect("a file");
        archive.file("a/b/d", b"").expect("a file");
        let packed = archive.finish().expect("the end");
        let mut bytes = Vec::new();
        flate2::read::GzDecoder::new(&packed[..])
            .read_to_end(&mut bytes)
            .expect("it unpacks");
        assert_eq!(bytes.len() % 4, 0);
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let at = |name: &str| text.find(&format!("{name}\0")).expect(name);
        assert!(at("a/b") < at("a/b/c") && at("a/b/c") < at("a/b/d"));
        assert_eq!(text.matches("070701").count(), 9);
        assert!(
            text.contains("xyz\x00070701"),
            "contents are padded to four bytes"
        );
    }
}
