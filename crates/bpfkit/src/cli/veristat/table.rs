//! Rows as a table or as CSV, in veristat's layout.

use crate::cli::veristat::stats::{Cell, Row, Stat};

/// Between columns.
const SEPARATOR: &str = "  ";

/// A text of a table and whether it stands on the left.
pub struct Text {
    pub text: String,
    pub left: bool,
}

/// Rows under their heads, and a line after the heads and after the last row.
pub fn render(heads: &[Text], rows: &[Vec<Text>]) -> String {
    let mut widths: Vec<usize> = heads.iter().map(|head| head.text.chars().count()).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.text.chars().count());
        }
    }
    let line = |cells: &[Text]| {
        let padded = cells
            .iter()
            .zip(&widths)
            .map(|(cell, &width)| match cell.left {
                true => format!("{:<width$}", cell.text),
                false => format!("{:>width$}", cell.text),
            });
        padded.collect::<Vec<_>>().join(SEPARATOR) + "\n"
    };
    let dashes: Vec<String> = widths.iter().map(|&width| "-".repeat(width)).collect();
    let dashes = dashes.join(SEPARATOR) + "\n";
    let mut text = line(heads) + &dashes;
    for row in rows {
        text += &line(row);
    }
    if !rows.is_empty() {
        text += &dashes;
    }
    text
}

/// Programs as a table.
pub fn table(columns: &[Stat], rows: &[&Row]) -> String {
    let head = |stat: &Stat| Text {
        text: stat.def().header.to_owned(),
        left: stat.def().left,
    };
    let cell = |row: &Row, stat: &Stat| match row.cell(*stat) {
        Cell::Text(text) => Text { text, left: true },
        Cell::Number(number) => Text {
            text: number.to_string(),
            left: false,
        },
    };
    let heads: Vec<Text> = columns.iter().map(head).collect();
    let rows: Vec<Vec<Text>> = rows
        .iter()
        .map(|row| columns.iter().map(|stat| cell(row, stat)).collect())
        .collect();
    render(&heads, &rows)
}

/// Programs as CSV.
pub fn csv(columns: &[Stat], rows: &[&Row]) -> String {
    let names: Vec<&str> = columns.iter().map(|stat| stat.def().names[0]).collect();
    let mut text = names.join(",") + "\n";
    for row in rows {
        let cells: Vec<String> = columns
            .iter()
            .map(|stat| match row.cell(*stat) {
                Cell::Text(text) => text,
                Cell::Number(number) => number.to_string(),
            })
            .collect();
        text += &cells.join(",");
        text.push('\n');
    }
    text
}

/// Reads what [`csv`] writes: the columns and the rows.
///
/// # Errors
/// Says what is wrong with which row.
pub fn read_csv(name: &str, text: &str) -> Result<(Vec<Stat>, Vec<Row>), String> {
    let mut lines = text.lines();
    let mut columns = Vec::new();
    for word in words(lines.next().unwrap_or_default()) {
        columns.push(super::stats::Spec::parse(word)?.named.stat);
    }
    let mut rows = Vec::new();
    for (at, line) in lines.enumerate().filter(|(_, line)| !line.is_empty()) {
        let mut row = Row::default();
        let mut count = 0;
        for word in words(line) {
            let Some(stat) = columns.get(count) else {
                return Err(format!(
                    "Found extraneous column #{count} in row #{} of '{name}'",
                    at + 1
                ));
            };
            row.read(*stat, word)?;
            count += 1;
        }
        if count < columns.len() {
            return Err(format!("Not enough columns in row #{} in '{name}'", at + 1));
        }
        if row.file.is_empty() || row.prog.is_empty() {
            return Err(format!(
                "Row #{} in '{name}' is missing file and/or program name",
                at + 1
            ));
        }
        rows.push(row);
    }
    Ok((columns, rows))
}

fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split(',').filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use super::{csv, read_csv};
    use crate::cli::veristat::stats::{CSV_COLUMNS, Row, Stat};

    #[test]
    fn csv_reads_what_it_writes() {
        let mut row = Row::new("a.o", "p");
        row.set(Stat::Verdict, 1);
        row.set(Stat::Duration, 12);
        row.set(Stat::ProgType, 6);
        row.set(Stat::PeakMemory, -1);
        let (columns, rows) = read_csv("x", &csv(CSV_COLUMNS, &[&row])).unwrap();
        assert_eq!(columns, CSV_COLUMNS);
        assert_eq!(rows, [row]);
        for wrong in [
            "file_name,prog_name\na\n",
            "file_name,prog_name\na,b,c\n",
            "file_name,insns\na,5\n",
            "file_name,prog_name,insns\na,b,c\n",
            "cow\n",
        ] {
            assert!(read_csv("x", wrong).is_err(), "{wrong}");
        }
    }
}
