//! Two results side by side.

use std::cmp::Ordering;

use crate::cli::veristat::filter::Filters;
use crate::cli::veristat::stats::{Cell, Named, Row, Spec, Stat, Variant};
use crate::cli::veristat::table::{self, Text};

/// A program of the first result, of the second, or of both.
pub struct Pair<'a> {
    a: Option<&'a Row>,
    b: Option<&'a Row>,
}

/// Joins two results by file and program.
pub fn join<'a>(a: &'a mut [Row], b: &'a mut [Row]) -> Vec<Pair<'a>> {
    a.sort_by(|x, y| x.key().cmp(&y.key()));
    b.sort_by(|x, y| x.key().cmp(&y.key()));
    let (mut a, mut b) = (a.iter().peekable(), b.iter().peekable());
    let mut pairs = Vec::new();
    loop {
        let order = match (a.peek(), b.peek()) {
            (None, None) => return pairs,
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(x), Some(y)) => x.key().cmp(&y.key()),
        };
        pairs.push(Pair {
            a: a.next_if(|_| order.is_le()),
            b: b.next_if(|_| order.is_ge()),
        });
    }
}

impl Pair<'_> {
    fn key(&self) -> (&str, &str) {
        self.a.or(self.b).map_or(("", ""), Row::key)
    }

    /// A value to sort or filter by; below all others where one side is missing.
    pub fn number(&self, named: &Named) -> f64 {
        let of = |row: Option<&Row>| row.map(|row| row.number(named.stat) as f64);
        let (a, b) = (of(self.a), of(self.b));
        let both = a.zip(b);
        let value = match named.variant {
            Variant::A => a,
            Variant::B => b,
            Variant::Diff if named.stat == Stat::Verdict => {
                both.map(|(a, b)| f64::from(u8::from(a == b)))
            }
            Variant::Diff => both.map(|(a, b)| b - a),
            Variant::Pct => both.map(|(a, b)| percent(a, b)),
        };
        value.unwrap_or(f64::MIN)
    }

    fn name(&self, stat: Stat) -> Option<&str> {
        self.a.or(self.b).and_then(|row| row.name(stat))
    }

    /// The order that specifications ask for; file and program decide the rest.
    pub fn compare(&self, other: &Pair<'_>, order: &[Spec]) -> Ordering {
        let by_order = order.iter().map(|spec| {
            let named = &spec.named;
            let value = |pair: &Pair<'_>| match named.absolute {
                true => pair.number(named).abs(),
                false => pair.number(named),
            };
            spec.direct(match self.name(named.stat).zip(other.name(named.stat)) {
                Some((a, b)) => a.cmp(b),
                None => value(self).total_cmp(&value(other)),
            })
        });
        by_order
            .fold(Ordering::Equal, Ordering::then)
            .then_with(|| self.key().cmp(&other.key()))
    }

    /// Whether the filters let it be shown.
    pub fn is_shown(&self, filters: &Filters) -> bool {
        filters.shows(|named| self.number(named))
    }

    /// What stands under a statistic: one text for names, else A, B and their difference.
    fn cells(&self, stat: Stat) -> Vec<Text> {
        if let Some(name) = self.name(stat) {
            return vec![Text {
                text: name.to_owned(),
                left: true,
            }];
        }
        let missing = || "N/A".to_owned();
        let cell = |row: Option<&Row>| row.map(|row| row.cell(stat));
        let (a, b) = (cell(self.a), cell(self.b));
        let left = [&a, &b]
            .iter()
            .any(|cell| matches!(cell, Some(Cell::Text(_))));
        let show = |cell: &Option<Cell>| match cell {
            Some(Cell::Text(text)) => text.clone(),
            Some(Cell::Number(number)) => number.to_string(),
            None => missing(),
        };
        let diff = match (&a, &b) {
            (Some(Cell::Number(a)), Some(Cell::Number(b))) => {
                let percent = percent(*a as f64, *b as f64);
                format!("{:+} ({percent:+.2}%)", b.saturating_sub(*a))
            }
            (Some(a), Some(b)) if a == b => "MATCH".to_owned(),
            (Some(_), Some(_)) => "MISMATCH".to_owned(),
            _ => missing(),
        };
        let texts = [show(&a), show(&b), diff];
        texts.map(|text| Text { text, left }).into()
    }
}

/// Growth from a to b, in percent; from nothing, all of it.
fn percent(a: f64, b: f64) -> f64 {
    match (a == 0.0, b.total_cmp(&a)) {
        (_, Ordering::Equal) => 0.0,
        (true, Ordering::Less) => -100.0,
        (true, Ordering::Greater) => 100.0,
        (false, _) => (b - a) * 100.0 / a,
    }
}

/// Pairs as a table.
pub fn table(columns: &[Stat], pairs: &[&Pair<'_>]) -> String {
    let rows = rows(columns, pairs);
    let mut heads = Vec::new();
    for (at, stat) in columns.iter().enumerate() {
        let header = stat.def().header;
        let sides: &[&str] = match stat.is_key() {
            true => &[""],
            false => &[" (A)", " (B)", " (DIFF)"],
        };
        for (side, suffix) in sides.iter().enumerate() {
            // The suffix stands at the end of the column, the header at its start.
            let before: usize = columns[..at].iter().map(|stat| width_of(*stat)).sum();
            let cells = rows.iter().filter_map(|row| row.get(before + side));
            let widest = cells
                .map(|cell| cell.text.chars().count())
                .max()
                .unwrap_or(0);
            let width = widest.max(header.len() + suffix.len()) - suffix.len();
            heads.push(Text {
                text: format!("{header:<width$}{suffix}"),
                left: true,
            });
        }
    }
    table::render(&heads, &rows)
}

/// Pairs as CSV.
pub fn csv(columns: &[Stat], pairs: &[&Pair<'_>]) -> String {
    let mut heads = Vec::new();
    for stat in columns {
        let name = stat.def().names[0];
        match stat.is_key() {
            true => heads.push(name.to_owned()),
            false => heads.extend(["_base", "_comp", "_diff"].map(|side| format!("{name}{side}"))),
        }
    }
    let mut text = heads.join(",") + "\n";
    for row in rows(columns, pairs) {
        let cells: Vec<String> = row.into_iter().map(|cell| cell.text).collect();
        text += &cells.join(",");
        text.push('\n');
    }
    text
}

/// Number of columns of a statistic.
fn width_of(stat: Stat) -> usize {
    match stat.is_key() {
        true => 1,
        false => 3,
    }
}

fn rows(columns: &[Stat], pairs: &[&Pair<'_>]) -> Vec<Vec<Text>> {
    let row = |pair: &&Pair<'_>| columns.iter().flat_map(|stat| pair.cells(*stat)).collect();
    pairs.iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::{join, percent, table};
    use crate::cli::veristat::stats::{Named, Row, Spec, Stat};

    fn row(prog: &str, insns: i64, verdict: i64) -> Row {
        let mut row = Row::new("a.o", prog);
        row.set(Stat::Insns, insns);
        row.set(Stat::Verdict, verdict);
        row
    }

    #[test]
    fn pairs_show_both_sides() {
        let mut a = [row("same", 21547, 1), row("gone", 5, 1)];
        let mut b = [row("new", 7, 0), row("same", 20920, 0)];
        let mut pairs = join(&mut a, &mut b);
        let order = [Spec::parse("|insns_diff|").unwrap()];
        pairs.sort_by(|x, y| x.compare(y, &order));
        let pairs: Vec<_> = pairs.iter().collect();
        let text = table(&[Stat::Prog, Stat::Verdict, Stat::Insns], &pairs);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[0],
            "Program  Verdict (A)  Verdict (B)  Verdict (DIFF)  Insns (A)  Insns (B)  Insns  (DIFF)"
        );
        let same = lines.iter().find(|line| line.starts_with("same")).unwrap();
        assert_eq!(
            *same,
            "same     success      failure      MISMATCH            21547      20920  -627 (-2.91%)"
        );
        assert!(
            text.contains("gone     success      N/A          N/A"),
            "{text}"
        );
    }

    #[test]
    fn growth() {
        assert_eq!(percent(0.0, 0.0), 0.0);
        assert_eq!(percent(0.0, 3.0), 100.0);
        assert_eq!(percent(4.0, 3.0), -25.0);
        let mut a = [row("p", 10, 1)];
        let mut b = [row("p", 5, 1)];
        let pairs = join(&mut a, &mut b);
        assert_eq!(pairs[0].number(&Named::parse("insns_pct").unwrap()), -50.0);
        assert_eq!(pairs[0].number(&Named::parse("verdict_diff").unwrap()), 1.0);
    }
}
