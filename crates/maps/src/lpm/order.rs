//! The order in which the host walks over a trie: more specific prefixes before those
//! that hold them, and else by their bits (the post-order of a binary trie).

use std::sync::atomic::Ordering::Relaxed;

use super::node::{Inner, Kind, Node, Ref};
use super::{LpmTrie, Prefix};

/// Where in a node's order something comes: a child before the inner prefixes that end
/// with its byte, the longest of these first; the node's own prefix last.
type Position = (u16, u32);

const OWN: Position = (256, 0);

fn child_position(byte: u8) -> Position {
    (byte.into(), 0)
}

/// Position of an inner prefix of `bits` (1 to 7) bits.
fn inner_position(bits: u32, byte: u8) -> Position {
    (
        u16::from(byte | 0xffu8.checked_shr(bits).unwrap_or(0)),
        8 - bits.min(7),
    )
}

impl LpmTrie {
    /// The first element below `at`.
    pub(super) fn first(&self, mut at: Ref) -> Option<u32> {
        loop {
            if at.kind() == Kind::Element {
                return at.element();
            }
            match self.next_in(at, None)? {
                (_, next) if next.kind() == Kind::Element => return next.element(),
                (_, next) => at = next,
            }
        }
    }

    /// The element after a prefix that is there.
    pub(super) fn after(&self, p: Prefix<'_>) -> Option<u32> {
        let mut path = Vec::new();
        let mut at = Ref(self.root.load(Relaxed));
        let mut position = loop {
            let node = self.memory.node(at.index());
            let depth = node.depth();
            if p.length as usize == depth * 8 {
                break OWN;
            }
            let byte = *p.data.get(depth)?;
            if p.bytes() == depth {
                break inner_position(p.length - depth as u32 * 8, byte);
            }
            let child = node.child(at.kind(), byte);
            if child.kind() == Kind::Element {
                break child_position(byte);
            }
            path.push((at, child_position(byte)));
            at = child;
        };
        loop {
            if let Some((_, next)) = self.next_in(at, Some(position)) {
                return self.first(next);
            }
            (at, position) = path.pop()?;
        }
    }

    /// What comes first in a node after `position`.
    fn next_in(&self, at: Ref, position: Option<Position>) -> Option<(Position, Ref)> {
        let node = self.memory.node(at.index());
        let later = |p: Position| position.is_none_or(|position| p > position);
        // Only a child's position ends in 0, so the child of that byte is done with.
        let from = position.map_or(0, |(byte, _)| byte.saturating_add(1));
        let child = node.next_child(at.kind(), from);
        let child = child.map(|(byte, child)| (child_position(byte), child));
        let own = node.own().load(Relaxed);
        let own = (own != 0).then(|| (OWN, Ref::new(Kind::Element, own)));
        let inner = self
            .inner_positions(node)
            .map(|(p, e)| (p, Ref::new(Kind::Element, e)));
        inner
            .chain(child)
            .chain(own)
            .filter(|(p, _)| later(*p))
            .min_by_key(|(p, _)| *p)
    }

    fn inner_positions<'a>(&'a self, node: Node<'a>) -> impl Iterator<Item = (Position, u32)> + 'a {
        let depth = node.depth();
        let block = node.inner().load(Relaxed);
        let block = (block != 0).then(|| Inner(self.memory.node(block)));
        block
            .into_iter()
            .flat_map(|block| block.elements())
            .map(move |e| {
                let bits = self
                    .memory
                    .length(e)
                    .load(Relaxed)
                    .saturating_sub(depth as u32 * 8);
                let byte = self.memory.byte(e, depth);
                (inner_position(bits, byte & !(0xffu8 >> bits.min(7))), e)
            })
    }
}
