//! The one pass over the type section: where each type begins, and the highest name and
//! id that any of them refers to.

use crate::error::{BtfError, BtfErrorKind as Why};
use crate::kind::{Kind, Shape};

/// What the pass found.
#[derive(Default)]
pub(crate) struct Survey {
    /// First word of each type, and the end of the last.
    pub starts: Vec<u32>,
    /// Highest string offset. If this one exists, so do all others.
    pub highest_name: u32,
    /// Highest type id.
    pub highest_id: u32,
    /// Whether there are functions.
    pub functions: bool,
}

impl Survey {
    /// Cuts the words of a type section into types. `at` is the byte offset of the first
    /// word, for errors.
    pub fn new(words: &[u32], first_id: u32, at: usize) -> Result<Self, BtfError> {
        // vmlinux takes 8 words a type.
        let starts = Vec::with_capacity(words.len() / 8 + 2);
        let mut survey = Self {
            starts,
            ..Self::default()
        };
        let mut start = 0;
        while let Some(rest) = words.get(start..).filter(|r| !r.is_empty()) {
            let fault = |why| {
                let id = first_id.saturating_add(survey.starts.len() as u32);
                BtfError::of_type(at + 4 * start, id, why)
            };
            let found = 4 * rest.len();
            let &[_, info, _, ..] = rest else {
                return Err(fault(Why::TypeCut { needed: 12, found }));
            };
            let kind = match Kind::of_info(info) {
                Some(kind) if kind != Kind::Void => kind,
                _ => return Err(fault(Why::Kind(info >> 24 & 0x1f))),
            };
            let shape = kind.shape();
            let needed = 3 + shape.fixed + shape.item * (info & 0xffff) as usize;
            let Some(record) = rest.get(..needed) else {
                return Err(fault(Why::TypeCut {
                    needed: 4 * needed,
                    found,
                }));
            };
            survey.look(record, shape);
            survey.functions |= kind == Kind::Func;
            survey.starts.push(start as u32);
            start += needed;
        }
        survey.starts.push(start as u32);
        Ok(survey)
    }

    /// Takes note of a record's names and ids.
    fn look(&mut self, record: &[u32], shape: &Shape) {
        let &[name, _, word, ref rest @ ..] = record else {
            return;
        };
        self.highest_name = self.highest_name.max(name);
        if shape.refers {
            self.highest_id = self.highest_id.max(word);
        }
        for &i in shape.fixed_refs {
            self.highest_id = self.highest_id.max(rest.get(i).copied().unwrap_or(0));
        }
        let items = rest.get(shape.fixed..).unwrap_or(&[]);
        let mut item = |words: &[u32]| {
            if shape.item_name.is_some() {
                self.highest_name = self.highest_name.max(words.first().copied().unwrap_or(0));
            }
            if let Some(i) = shape.item_ref {
                self.highest_id = self.highest_id.max(words.get(i).copied().unwrap_or(0));
            }
        };
        match shape.item {
            0 => {}
            2 => items.as_chunks::<2>().0.iter().for_each(|i| item(i)),
            _ => items.as_chunks::<3>().0.iter().for_each(|i| item(i)),
        }
    }
}
