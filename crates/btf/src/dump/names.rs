//! Names that are unique in a file of C.

use rustc_hash::FxHashMap;

use crate::kind::Kind;
use crate::types::Type;

/// Names handed out so far. A name that comes again gets `___2`, `___3`, …; C keeps
/// the tags of structures, unions and enumerations apart from other identifiers.
#[derive(Debug, Default)]
pub(super) struct Names<'a> {
    tags: FxHashMap<&'a str, u32>,
    idents: FxHashMap<&'a str, u32>,
    given: FxHashMap<u32, u32>,
}

impl<'a> Names<'a> {
    /// Which use of its name a type is, and the name to print.
    pub fn of(&mut self, t: Type<'a>) -> String {
        let name = t.name();
        // Declarations without a body may come again.
        let declares = t.is(Kind::Fwd) || t.is(Kind::Enum) && t.vlen() == 0;
        if name.is_empty() || declares {
            return name.into();
        }
        let use_number = match self.given.get(&t.id()) {
            Some(&known) => known,
            None => {
                let names = if t.is(Kind::Typedef) {
                    &mut self.idents
                } else {
                    &mut self.tags
                };
                let number = next(names, name);
                self.given.insert(t.id(), number);
                number
            }
        };
        numbered(name, use_number)
    }

    /// The name to print for an enumerator, each time it is printed.
    pub fn of_enumerator(&mut self, name: &'a str) -> String {
        let number = next(&mut self.idents, name);
        numbered(name, number)
    }
}

fn next<'a>(names: &mut FxHashMap<&'a str, u32>, name: &'a str) -> u32 {
    let uses = names.entry(name).or_insert(0);
    *uses += 1;
    *uses
}

fn numbered(name: &str, number: u32) -> String {
    if number > 1 {
        format!("{name}___{number}")
    } else {
        name.into()
    }
}
