//! The order in which C wants types: a type before those that contain it, with forward
//! declarations where a pointer is enough.

use super::{DumpError, MAX_DEPTH, MAX_STEPS, limit};
use crate::btf::Btf;
use crate::kind::Kind;

/// How far the ordering of a type is.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
enum State {
    #[default]
    New,
    /// On the way: meeting it again is a circle.
    Open,
    Done,
}

/// What the use of a type needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Link {
    /// A declaration will do.
    Weak,
    /// The definition has to come before.
    Strong,
}

/// Orders the definitions of a BTF as they are asked for.
#[derive(Debug)]
pub(super) struct Order<'a> {
    btf: &'a Btf,
    states: Vec<State>,
    /// Types that some type refers to: an anonymous enumeration that nothing refers to
    /// stands for itself.
    referenced: Vec<bool>,
    steps_left: usize,
}

impl<'a> Order<'a> {
    pub fn new(btf: &'a Btf) -> Self {
        let count = btf.type_count() as usize;
        let mut order = Self {
            btf,
            states: vec![State::New; count],
            referenced: vec![false; count],
            steps_left: limit(btf, MAX_STEPS),
        };
        order.set(0, State::Done);
        for id in 1..btf.type_count() {
            order.mark_references(id);
        }
        order
    }

    fn mark_references(&mut self, id: u32) {
        let Some(t) = self.btf.type_by_id(id) else {
            return;
        };
        let mut mark = |to: u32| {
            if let Some(referenced) = self.referenced.get_mut(to as usize) {
                *referenced = true;
            }
        };
        if t.kind().shape().refers {
            mark(t.type_id());
        }
        t.array().into_iter().for_each(|a| {
            mark(a.element);
            mark(a.index);
        });
        t.members().for_each(|m| mark(m.type_id));
        t.params().for_each(|p| mark(p.type_id));
        t.variables().for_each(|v| mark(v.type_id));
    }

    fn set(&mut self, id: u32, to: State) {
        if let Some(state) = self.states.get_mut(id as usize) {
            *state = to;
        }
    }

    /// Appends to `queue` the definitions that `id` needs and that were not queued
    /// before, and its own.
    pub fn add(&mut self, id: u32, queue: &mut Vec<u32>) -> Result<(), DumpError> {
        self.visit(id, false, 0, queue).map(|_| ())
    }

    fn visit(
        &mut self,
        id: u32,
        through_ptr: bool,
        depth: u32,
        queue: &mut Vec<u32>,
    ) -> Result<Link, DumpError> {
        if depth > MAX_DEPTH {
            return Err(DumpError::TooDeep(id));
        }
        self.steps_left = self.steps_left.checked_sub(1).ok_or(DumpError::TooLong)?;
        let t = self.btf.type_by_id(id).ok_or(DumpError::NoType(id))?;
        let named = t.name_off() != 0;
        match self.states.get(id as usize) {
            Some(State::Done) => return Ok(Link::Strong),
            Some(State::Open) => {
                let declarable = t.kind().is_composite() && named && through_ptr;
                return if declarable {
                    Ok(Link::Weak)
                } else {
                    Err(DumpError::Cycle(id))
                };
            }
            _ => {}
        }
        let mut visit = |to, through| self.visit(to, through, depth + 1, queue);
        match t.kind() {
            Kind::Void | Kind::Int | Kind::Float => {
                self.set(id, State::Done);
                Ok(Link::Weak)
            }
            Kind::Ptr => {
                let link = visit(t.type_id(), true);
                self.set(id, State::Done);
                link
            }
            Kind::Array => visit(t.array().map_or(0, |a| a.element), false),
            Kind::Struct | Kind::Union => {
                if through_ptr && named {
                    return Ok(Link::Weak);
                }
                self.set(id, State::Open);
                for member in t.members() {
                    self.visit(member.type_id, false, depth + 1, queue)?;
                }
                if named {
                    queue.push(id);
                }
                self.set(id, State::Done);
                Ok(Link::Strong)
            }
            Kind::Enum | Kind::Enum64 | Kind::Fwd => {
                let referenced = self.referenced.get(id as usize).copied().unwrap_or(false);
                if named || !referenced {
                    queue.push(id);
                }
                self.set(id, State::Done);
                Ok(Link::Strong)
            }
            Kind::Typedef => {
                if visit(t.type_id(), through_ptr)? == Link::Weak && through_ptr {
                    return Ok(Link::Weak);
                }
                queue.push(id);
                self.set(id, State::Done);
                Ok(Link::Strong)
            }
            Kind::Volatile | Kind::Const | Kind::Restrict | Kind::TypeTag => {
                visit(t.type_id(), through_ptr)
            }
            Kind::FuncProto => {
                let mut link = visit(t.type_id(), through_ptr)?;
                for param in t.params() {
                    if visit(param.type_id, through_ptr)? == Link::Strong {
                        link = Link::Strong;
                    }
                }
                Ok(link)
            }
            Kind::Func | Kind::Var | Kind::Datasec | Kind::DeclTag => {
                self.set(id, State::Done);
                Ok(Link::Weak)
            }
        }
    }
}
