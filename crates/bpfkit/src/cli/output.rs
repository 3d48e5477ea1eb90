//! Results on standard output.

use std::io::{self, Write};

use comfy_table::{Table, presets};
use serde::Serialize;

use crate::cli::failure::{Failure, Result};

/// Writes text, colours only where they show.
pub fn text(text: &str) -> Result {
    write(&mut anstream::stdout().lock(), text.as_bytes())
}

/// Writes bytes as they are.
pub fn bytes(bytes: &[u8]) -> Result {
    write(&mut io::stdout().lock(), bytes)
}

/// A reader that went away (`| head`) is no failure.
fn write(out: &mut dyn Write, bytes: &[u8]) -> Result {
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::machine(format!("standard output: {error}")))
        }
        _ => Ok(()),
    }
}

/// Writes one JSON document.
pub fn json(value: &impl Serialize) -> Result {
    let document = serde_json::to_string_pretty(value)
        .map_err(|error| Failure::machine(format!("cannot write JSON: {error}")))?;
    text(&(document + "\n"))
}

/// A table without lines, columns two blanks apart, as text.
pub fn render_table<const N: usize>(
    header: &[&str; N],
    rows: impl Iterator<Item = [String; N]>,
) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(header.iter());
    for row in rows {
        table.add_row(row);
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    let lines: Vec<String> = table
        .lines()
        .map(|line| line.trim_end().to_owned())
        .collect();
    lines.join("\n") + "\n"
}

/// Writes a table.
pub fn table<const N: usize>(
    header: &[&str; N],
    rows: impl Iterator<Item = [String; N]>,
) -> Result {
    text(&render_table(header, rows))
}
