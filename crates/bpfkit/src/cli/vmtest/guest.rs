//! The guest's side: this program as the first process of the kernel that was booted. It
//! mounts what it needs, judges the objects of the initramfs and turns the machine off.
//!
//! What it says to the host, a line each on the result device:
//! `@total N` objects, `@object N` before each, `> FILE PROGRAM` before each program, a row
//! of JSON after it, `@end` once all is done.

use std::collections::HashSet;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, mount};

use super::judge::{After, Judge};
use crate::cli::failure::{Failure, Result};
use crate::cli::judge::WORKER_STACK;

/// Where the initramfs has objects, each in a folder with its number as name.
pub const OBJECTS: &str = "objects";
/// Lines `INDEX PROGRAM` (program `-` for a whole file) that need no verdict any more.
pub const DONE: &str = "done";
/// The kernel's configuration.
pub const CONFIG: &str = "config";

/// File systems to mount, and where.
const MOUNTS: [(&str, &str); 4] = [
    ("devtmpfs", "/dev"),
    ("proc", "/proc"),
    ("sysfs", "/sys"),
    ("bpf", "/sys/fs/bpf"),
];

/// Does all of it and turns the machine off; returns only where it is not the first process.
pub fn run(device: &Path) -> Result {
    if std::process::id() != 1 {
        return Err(Failure::input(
            "--guest is for the first process of a machine",
        ));
    }
    for (kind, place) in MOUNTS {
        // What is missing shows in what needs it.
        let _ = mount(kind, place, kind, MountFlags::empty(), None);
    }
    let device = device.to_owned();
    let worker = std::thread::Builder::new()
        .stack_size(WORKER_STACK)
        .spawn(move || talk(&device));
    let outcome = worker.map(|worker| worker.join());
    if !matches!(outcome, Ok(Ok(Ok(())))) {
        anstream::eprintln!("vmtest guest: {outcome:?}");
    }
    power_off()
}

/// Ends the machine; does not return.
fn power_off() -> Result {
    use rustix::system::{RebootCommand, reboot};
    let error = reboot(RebootCommand::PowerOff);
    Err(Failure::machine(format!("power off: {error:?}")))
}

fn talk(device: &Path) -> Result {
    let out = OpenOptions::new().write(true).open(device);
    let out = out.map_err(|error| Failure::machine(format!("{}: {error}", device.display())))?;
    let outcome = judge_all(&out);
    if let Err(failure) = &outcome {
        say(&out, &format!("@failed {}", failure.message));
    }
    // Whatever the serial line has not sent is lost when the machine goes off.
    let _ = rustix::termios::tcdrain(&out);
    outcome
}

fn say(mut out: &File, line: &str) {
    // Nobody is left to be told that nobody listens.
    let _ = out.write_all(format!("{line}\n").as_bytes());
}

fn judge_all(out: &File) -> Result {
    let done: HashSet<String> = fs::read_to_string(Path::new("/").join(DONE))
        .unwrap_or_default()
        .lines()
        .map(str::to_owned)
        .collect();
    let folder = Path::new("/").join(OBJECTS);
    let listed = fs::read_dir(&folder).map_err(Failure::machine)?;
    let mut numbers: Vec<u32> = listed
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    numbers.sort_unstable();
    say(out, &format!("@total {}", numbers.len()));
    let mut judge = Judge::start(Some(&Path::new("/").join(CONFIG)))?;
    for number in numbers {
        say(out, &format!("@object {number}"));
        let Some(path) = only_file(&folder.join(number.to_string())) else {
            continue;
        };
        let bytes = fs::read(&path).map_err(Failure::machine)?;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let after = judge.object(
            &name,
            &bytes,
            &mut |prog| {
                let prog = prog.unwrap_or("-");
                let wanted = !done.contains(&format!("{number} {prog}"));
                if wanted {
                    say(out, &format!("> {name} {prog}"));
                }
                wanted
            },
            &mut |row| match serde_json::to_string(&row) {
                Ok(text) => say(out, &text),
                Err(error) => say(out, &format!("@failed {error}")),
            },
        );
        if after == After::Broken {
            return Ok(());
        }
        // The objects share the machine's memory with all else.
        let _ = fs::remove_file(&path);
    }
    say(out, "@end");
    Ok(())
}

fn only_file(folder: &Path) -> Option<PathBuf> {
    Some(fs::read_dir(folder).ok()?.next()?.ok()?.path())
}
