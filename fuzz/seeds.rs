//! Makes the first inputs of both targets from object files:
//! `seeds BTF_DIR OBJECT_DIR FILE…`.

use std::path::Path;

#[path = "../crates/btf/tests/common/mod.rs"]
mod common;

/// Larger ones only slow the search.
const LARGEST: usize = 32 << 10;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args_os().skip(1);
    let (Some(btf_dir), Some(object_dir)) = (args.next(), args.next()) else {
        return Err("seeds BTF_DIR OBJECT_DIR FILE…".into());
    };
    for file in args {
        let file = Path::new(&file);
        let name = file.file_name().ok_or("not a file")?;
        let bytes = std::fs::read(file)?;
        let Some(elf) = common::Elf::parse(&bytes) else {
            continue;
        };
        let section = |name| elf.section(name).unwrap_or(&[]);
        let types = [section(".BTF"), section(".BTF.ext")].concat();
        for (dir, seed) in [(&btf_dir, &types), (&object_dir, &bytes)] {
            if (1..=LARGEST).contains(&seed.len()) {
                std::fs::write(Path::new(dir).join(name), seed)?;
            }
        }
    }
    Ok(())
}
