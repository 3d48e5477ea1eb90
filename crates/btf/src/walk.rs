//! What lies at a byte offset of a type.

use crate::btf::Btf;
use crate::types::Type;

/// Deepest nesting of structures that is entered.
const MAX_NESTING: usize = 64;
/// Members that one walk may look at; nested unions double the places at each level.
const MAX_MEMBERS: u32 = 1 << 16;

/// A scalar (or pointer, or type without a known size) that covers an offset.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Place {
    /// Type as declared, with its modifiers and tags.
    pub type_id: u32,
    /// First byte of it in the outermost type.
    pub start: u32,
    /// Byte of it that was asked for: 0 at its beginning.
    pub offset: u32,
    /// First bit in the outermost type and number of bits, of a bit-field.
    pub bitfield: Option<(u32, u32)>,
    /// The way to it.
    pub path: Vec<Step>,
}

/// A step from a type to what is in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Into a member of a structure or union.
    Member {
        /// The structure or union.
        of: u32,
        /// Index of the member.
        index: u32,
    },
    /// Into an element of an array.
    Element(u32),
}

/// The places that cover an offset, in order of declaration; see [`Btf::walk`].
#[derive(Clone, Debug)]
pub struct Walk<'a> {
    btf: &'a Btf,
    /// Where to begin; taken by the first step.
    root: Option<(u32, u32)>,
    frames: Vec<Frame<'a>>,
    path: Vec<Step>,
    left: u32,
}

/// A structure or union that is being looked through.
#[derive(Clone, Debug)]
struct Frame<'a> {
    composite: Type<'a>,
    /// Member to look at next.
    next: u32,
    /// First byte of it in the outermost type, and the byte of it asked for.
    start: u32,
    offset: u32,
    /// Steps that lead to it.
    depth: usize,
}

impl Btf {
    /// Finds what lies at byte `offset` of a type, going into structures, unions and
    /// arrays.
    ///
    /// More than one place is given where unions lie there; none in padding or past
    /// the end. An array of no length that ends a structure has every element.
    pub fn walk(&self, id: u32, offset: u32) -> Walk<'_> {
        Walk {
            btf: self,
            root: Some((id, offset)),
            frames: Vec::new(),
            path: Vec::new(),
            left: MAX_MEMBERS,
        }
    }
}

impl Walk<'_> {
    /// Goes to byte `offset` of a type that begins at `start`: into a structure, by way
    /// of arrays, or to a place.
    fn enter(&mut self, id: u32, start: u32, offset: u32, last: bool) -> Option<Place> {
        let (mut id, mut start, mut offset, mut last) = (id, start, offset, last);
        // An array of an array and so on: the nesting bounds the size, the size the depth.
        for _ in 0..MAX_NESTING {
            let t = self.btf.resolve(id)?;
            if t.kind().is_composite() {
                if self.frames.len() < MAX_NESTING {
                    let depth = self.path.len();
                    self.frames.push(Frame {
                        composite: t,
                        next: 0,
                        start,
                        offset,
                        depth,
                    });
                }
                return None;
            }
            let Some(array) = t.array() else {
                if self.btf.size_of(id).is_some_and(|size| offset >= size) {
                    return None;
                }
                let path = self.path.clone();
                return Some(Place {
                    type_id: id,
                    start,
                    offset,
                    bitfield: None,
                    path,
                });
            };
            let size = self.btf.size_of(array.element).filter(|&s| s > 0)?;
            let index = offset / size;
            if index >= array.count && !(array.count == 0 && last) {
                return None;
            }
            self.path.push(Step::Element(index));
            start = start.checked_add(index.checked_mul(size)?)?;
            (id, offset, last) = (array.element, offset % size, false);
        }
        None
    }

    /// Looks at the next member of the innermost structure.
    fn step(&mut self) -> Option<Place> {
        let frame = self.frames.last_mut()?;
        self.path.truncate(frame.depth);
        let (start, offset, index) = (frame.start, frame.offset, frame.next);
        let composite = frame.composite;
        let Some(member) = composite.member(index) else {
            self.frames.pop();
            return None;
        };
        frame.next += 1;
        let last = frame.next == composite.vlen();
        let step = Step::Member {
            of: composite.id(),
            index,
        };
        if member.bitfield_size > 0 {
            let end = u64::from(member.bit_offset) + u64::from(member.bitfield_size);
            let first = member.bit_offset / 8;
            if offset < first || u64::from(offset) * 8 >= end {
                return None;
            }
            let mut path = self.path.clone();
            path.push(step);
            return Some(Place {
                type_id: member.type_id,
                start: start.checked_add(first)?,
                offset: offset - first,
                bitfield: Some((
                    start.checked_mul(8)?.checked_add(member.bit_offset)?,
                    member.bitfield_size,
                )),
                path,
            });
        }
        let first = member.byte_offset()?;
        let inner = offset.checked_sub(first)?;
        self.path.push(step);
        let size = self.btf.size_of(member.type_id);
        if inner >= size.unwrap_or(0) && !(last && size.is_some()) {
            return None;
        }
        self.enter(member.type_id, start.checked_add(first)?, inner, last)
    }
}

impl Iterator for Walk<'_> {
    type Item = Place;

    fn next(&mut self) -> Option<Place> {
        if let Some((id, offset)) = self.root.take()
            && let Some(place) = self.enter(id, 0, offset, false)
        {
            return Some(place);
        }
        while !self.frames.is_empty() {
            self.left = self.left.checked_sub(1)?;
            if let Some(place) = self.step() {
                return Some(place);
            }
        }
        None
    }
}
