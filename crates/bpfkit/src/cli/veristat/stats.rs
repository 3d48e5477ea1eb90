//! The statistics: their names, how they are asked for, and the values of one program.

use std::cmp::Ordering;

use bpfkit_spec::{AttachType, ProgType};

/// What is known of a program. The numbers come first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stat {
    Verdict,
    Duration,
    Insns,
    States,
    PeakStates,
    MaxStatesPerInsn,
    MarkRead,
    Size,
    JitedSize,
    Stack,
    ProgType,
    AttachType,
    PeakMemory,
    File,
    Prog,
}

/// Number of statistics that are numbers.
const NUMBERS: usize = Stat::File as usize;

/// How a statistic is called.
pub struct Def {
    pub stat: Stat,
    /// Head of its column.
    pub header: &'static str,
    /// Its name in CSV, then aliases.
    pub names: &'static [&'static str],
    /// Whether it is sorted upwards if nobody says how.
    ascending: bool,
    /// Whether the head of its column stands on the left.
    pub left: bool,
}

const fn def(stat: Stat, header: &'static str, names: &'static [&'static str], text: bool) -> Def {
    Def {
        stat,
        header,
        names,
        ascending: text,
        left: text,
    }
}

/// In the order of [`Stat`].
#[rustfmt::skip]
const DEFS: [Def; NUMBERS + 2] = [
    def(Stat::Verdict, "Verdict", &["verdict"], true),
    def(Stat::Duration, "Duration (us)", &["duration", "dur"], false),
    def(Stat::Insns, "Insns", &["total_insns", "insns"], false),
    def(Stat::States, "States", &["total_states", "states"], false),
    def(Stat::PeakStates, "Peak states", &["peak_states"], false),
    def(Stat::MaxStatesPerInsn, "Max states per insn", &["max_states_per_insn"], false),
    def(Stat::MarkRead, "Max mark read length", &["max_mark_read_len", "mark_read"], false),
    def(Stat::Size, "Program size", &["prog_size"], false),
    def(Stat::JitedSize, "Jited size", &["prog_size_jited"], false),
    def(Stat::Stack, "Stack depth", &["stack_depth", "stack"], false),
    def(Stat::ProgType, "Program type", &["prog_type"], false),
    def(Stat::AttachType, "Attach type", &["attach_type"], false),
    def(Stat::PeakMemory, "Peak memory (MiB)", &["mem_peak"], false),
    def(Stat::File, "File", &["file_name", "filename", "file"], true),
    def(Stat::Prog, "Program", &["prog_name", "progname", "prog"], true),
];

/// Columns of a table, without `-e`.
pub const TABLE_COLUMNS: &[Stat] = &[
    Stat::File,
    Stat::Prog,
    Stat::Verdict,
    Stat::Duration,
    Stat::Insns,
    Stat::States,
    Stat::Size,
    Stat::JitedSize,
];

/// Columns of CSV, without `-e`.
pub const CSV_COLUMNS: &[Stat] = &[
    Stat::File,
    Stat::Prog,
    Stat::Verdict,
    Stat::Duration,
    Stat::Insns,
    Stat::States,
    Stat::PeakStates,
    Stat::MaxStatesPerInsn,
    Stat::MarkRead,
    Stat::Size,
    Stat::JitedSize,
    Stat::ProgType,
    Stat::AttachType,
    Stat::Stack,
    Stat::PeakMemory,
];

impl Stat {
    /// How it is called.
    pub fn def(self) -> &'static Def {
        &DEFS[self as usize]
    }

    /// Whether it names the program rather than measuring it.
    pub fn is_key(self) -> bool {
        matches!(self, Stat::File | Stat::Prog)
    }
}

/// Which of two results and what of their difference is meant, in a comparison.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Variant {
    A,
    B,
    Diff,
    Pct,
}

const VARIANTS: [(&str, Variant); 4] = [
    ("_a", Variant::A),
    ("_b", Variant::B),
    ("_diff", Variant::Diff),
    ("_pct", Variant::Pct),
];

/// A statistic as filters and orders name it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Named {
    pub stat: Stat,
    pub variant: Variant,
    /// Written between bars: its absolute value.
    pub absolute: bool,
}

impl Named {
    /// `insns`, `insns_diff`, `|insns_pct|`.
    pub fn parse(text: &str) -> Option<Named> {
        let inner = text.strip_prefix('|').and_then(|t| t.strip_suffix('|'));
        let (name, absolute) = match inner {
            Some(inner) if !inner.is_empty() => (inner, true),
            _ => (text, false),
        };
        for def in &DEFS {
            for alias in def.names {
                let Some(rest) = name.strip_prefix(alias) else {
                    continue;
                };
                // Of two results the second is the one that is looked at.
                let variant = match rest {
                    "" => Some(Variant::B),
                    _ => VARIANTS.iter().find(|v| v.0 == rest).map(|v| v.1),
                };
                if let Some(variant) = variant {
                    return Some(Named {
                        stat: def.stat,
                        variant,
                        absolute,
                    });
                }
            }
        }
        None
    }
}

/// A column to show or to sort by.
#[derive(Clone, Copy, Debug)]
pub struct Spec {
    pub named: Named,
    pub ascending: bool,
}

impl Spec {
    /// A name, and `^` (upwards) or one of `v V . ! _` (downwards) behind it.
    pub fn parse(text: &str) -> Result<Spec, String> {
        let (name, order) = match text.char_indices().next_back() {
            Some((at, '^')) if at > 0 => (&text[..at], Some(true)),
            Some((at, 'v' | 'V' | '.' | '!' | '_')) if at > 0 => (&text[..at], Some(false)),
            _ => (text, None),
        };
        let named = Named::parse(name).ok_or_else(|| format!("Unrecognized stat name '{text}'"))?;
        Ok(Spec {
            named,
            ascending: order.unwrap_or(named.stat.def().ascending),
        })
    }

    /// A list with commas; more than there are statistics is refused.
    pub fn parse_list(lists: &[String]) -> Result<Vec<Spec>, String> {
        let words = lists.iter().flat_map(|list| list.split(','));
        let specs: Vec<Spec> = words
            .filter(|word| !word.is_empty())
            .map(Spec::parse)
            .collect::<Result<_, _>>()?;
        match specs.len() > DEFS.len() {
            true => Err(format!("Can't specify more than {} stats", DEFS.len())),
            false => Ok(specs),
        }
    }

    /// An order upwards or downwards, as the specification says.
    pub fn direct(&self, order: Ordering) -> Ordering {
        match self.ascending {
            true => order,
            false => order.reverse(),
        }
    }
}

/// The statistics of one program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Row {
    pub file: String,
    pub prog: String,
    numbers: [i64; NUMBERS],
}

/// A value as it is shown.
#[derive(PartialEq, Eq, Debug)]
pub enum Cell {
    Text(String),
    Number(i64),
}

impl Row {
    /// Of a program without results yet.
    pub fn new(file: &str, prog: &str) -> Row {
        Row {
            file: file.to_owned(),
            prog: prog.to_owned(),
            numbers: [0; NUMBERS],
        }
    }

    /// Sets a number; names are no numbers.
    pub fn set(&mut self, stat: Stat, value: i64) {
        if let Some(number) = self.numbers.get_mut(stat as usize) {
            *number = value;
        }
    }

    /// A number; of a name, 0.
    pub fn number(&self, stat: Stat) -> i64 {
        self.numbers.get(stat as usize).copied().unwrap_or(0)
    }

    /// The text of a name.
    pub fn name(&self, stat: Stat) -> Option<&str> {
        match stat {
            Stat::File => Some(&self.file),
            Stat::Prog => Some(&self.prog),
            _ => None,
        }
    }

    /// What is shown.
    pub fn cell(&self, stat: Stat) -> Cell {
        let number = self.number(stat);
        let code = u32::try_from(number).ok();
        let name = match stat {
            Stat::File | Stat::Prog => self.name(stat),
            Stat::Verdict if number != 0 => Some("success"),
            Stat::Verdict => Some("failure"),
            Stat::ProgType => code.and_then(ProgType::from_u32).map(ProgType::name),
            Stat::AttachType => code.and_then(AttachType::from_u32).map(AttachType::name),
            _ => return Cell::Number(number),
        };
        Cell::Text(name.unwrap_or("N/A").to_owned())
    }

    /// Takes over what CSV says of a statistic.
    pub fn read(&mut self, stat: Stat, text: &str) -> Result<(), String> {
        let number = match stat {
            Stat::File => {
                self.file = text.to_owned();
                return Ok(());
            }
            Stat::Prog => {
                self.prog = text.to_owned();
                return Ok(());
            }
            Stat::Verdict => match text {
                "success" => 1,
                "failure" => 0,
                _ => return Err(format!("Unrecognized verification verdict '{text}'")),
            },
            Stat::ProgType => ProgType::from_name(text)
                .map(|t| t as i64)
                .ok_or_else(|| format!("Unrecognized prog type {text}"))?,
            Stat::AttachType => AttachType::from_name(text)
                .map(|t| t as i64)
                .ok_or_else(|| format!("Unrecognized attach type {text}"))?,
            _ => text
                .trim()
                .parse()
                .map_err(|_| format!("Failed to parse '{text}' as integer"))?,
        };
        self.set(stat, number);
        Ok(())
    }

    /// The order that specifications ask for; file and program decide the rest.
    pub fn compare(&self, other: &Row, order: &[Spec]) -> Ordering {
        let by_order = order.iter().map(|spec| {
            let stat = spec.named.stat;
            let value = |row: &Row| match spec.named.absolute {
                true => row.number(stat).saturating_abs(),
                false => row.number(stat),
            };
            spec.direct(match self.name(stat).zip(other.name(stat)) {
                Some((a, b)) => a.cmp(b),
                None => value(self).cmp(&value(other)),
            })
        });
        by_order
            .fold(Ordering::Equal, Ordering::then)
            .then_with(|| self.key().cmp(&other.key()))
    }

    /// File and program.
    pub fn key(&self) -> (&str, &str) {
        (&self.file, &self.prog)
    }
}

#[cfg(test)]
mod tests {
    use super::{DEFS, Named, Spec, Stat, Variant};

    #[test]
    fn definitions_stand_in_the_order_of_their_numbers() {
        for (at, def) in DEFS.iter().enumerate() {
            assert_eq!(def.stat as usize, at, "{}", def.header);
        }
    }

    #[test]
    fn names_have_variants_and_bars() {
        let named = Named::parse("|insns_pct|").unwrap();
        assert_eq!(
            (named.stat, named.variant, named.absolute),
            (Stat::Insns, Variant::Pct, true)
        );
        assert_eq!(Named::parse("prog_size").unwrap().stat, Stat::Size);
        assert_eq!(Named::parse("prog_b").unwrap().stat, Stat::Prog);
        assert_eq!(Named::parse("insn"), None);
    }

    #[test]
    fn orders_end_with_a_sign() {
        assert!(Spec::parse("insns^").unwrap().ascending);
        assert!(!Spec::parse("file!").unwrap().ascending);
        assert!(Spec::parse("file").unwrap().ascending);
        assert!(!Spec::parse("states").unwrap().ascending);
        assert!(Spec::parse("^").is_err());
        assert_eq!(
            Spec::parse_list(&["file,insns".into(), "dur".into()])
                .unwrap()
                .len(),
            3
        );
    }
}
