//! Objects that programs allocate, and the lists and trees they build from them.
//!
//! Heads and nodes lie in the program's memory, laid out as the kernel lays them out
//! (`struct list_head`, `struct rb_node`, each node followed by its owner), and are read
//! and written through the checks of the run.

use super::{Ret, Row, errno, heap};
use crate::env::{Args, Env};
use crate::fault::Trap;
use bpfkit_maps::Errno;

/// kfunc `(local_type_id, meta)`: a zeroed object of that type of the program's BTF.
fn obj_new(env: &mut Env<'_>, a: &Args) -> Ret {
    let size = type_size(env, a[0])?;
    Ok(heap::alloc(env, size, &[], true))
}

/// kfunc `(local_type_id, meta)`.
fn percpu_obj_new(env: &mut Env<'_>, a: &Args) -> Ret {
    let size = type_size(env, a[0])?;
    Ok(heap::alloc_percpu(env, size))
}

fn type_size(env: &Env<'_>, type_id: u64) -> Result<usize, Trap> {
    let btf = env.program().btf.as_ref();
    let size = btf.and_then(|btf| btf.size_of(u32::try_from(type_id).ok()?));
    size.map(|s| s as usize)
        .ok_or_else(|| Trap::helper(format!("no type {type_id} in the program's BTF")))
}

/// kfunc `(obj, meta)`.
fn obj_drop(env: &mut Env<'_>, a: &Args) -> Ret {
    heap::release(env, a[0]);
    Ok(0)
}

/// kfunc `(obj, meta)`: the object again, with one more reference.
fn refcount_acquire(env: &mut Env<'_>, a: &Args) -> Ret {
    Ok(if heap::acquire(env, a[0]) { a[0] } else { 0 })
}

fn word(env: &mut Env<'_>, at: u64) -> Result<u64, Trap> {
    Ok(u64::from_ne_bytes(env.load(at)?))
}

fn set(env: &mut Env<'_>, at: u64, value: u64) -> Result<(), Trap> {
    env.store(at, value.to_ne_bytes())
}

// Lists: next and previous; a node's owner is the head it hangs on.
const NEXT: u64 = 0;
const PREV: u64 = 8;
const LIST_OWNER: u64 = 16;

/// A zeroed head is an empty list.
fn list_init(env: &mut Env<'_>, head: u64) -> Result<(), Trap> {
    if word(env, head + NEXT)? == 0 {
        set(env, head + NEXT, head)?;
        set(env, head + PREV, head)?;
    }
    Ok(())
}

/// kfunc `(head, node, meta, off)`: `off` is the node's place in its object.
fn list_push<const BACK: bool>(env: &mut Env<'_>, a: &Args) -> Ret {
    let (head, node) = (a[0], a[1]);
    list_init(env, head)?;
    if word(env, node + LIST_OWNER)? != 0 {
        heap::release(env, node.wrapping_sub(a[3]));
        return Ok(errno(Errno::EINVAL));
    }
    let (before, after) = if BACK {
        (word(env, head + PREV)?, head)
    } else {
        (head, word(env, head + NEXT)?)
    };
    set(env, node + NEXT, after)?;
    set(env, node + PREV, before)?;
    set(env, before + NEXT, node)?;
    set(env, after + PREV, node)?;
    set(env, node + LIST_OWNER, head)?;
    Ok(0)
}

/// kfunc `(head)`: the node at one end, without removing it; null for an empty list.
fn list_peek<const BACK: bool>(env: &mut Env<'_>, a: &Args) -> Ret {
    list_init(env, a[0])?;
    let node = word(env, a[0] + if BACK { PREV } else { NEXT })?;
    Ok(if node == a[0] { 0 } else { node })
}

/// kfunc `(head)`: removes the node at one end.
fn list_pop<const BACK: bool>(env: &mut Env<'_>, a: &Args) -> Ret {
    let node = list_peek::<BACK>(env, a)?;
    if node == 0 {
        return Ok(0);
    }
    let (next, prev) = (word(env, node + NEXT)?, word(env, node + PREV)?);
    set(env, prev + NEXT, next)?;
    set(env, next + PREV, prev)?;
    for field in [NEXT, PREV] {
        set(env, node + field, node)?;
    }
    set(env, node + LIST_OWNER, 0)?;
    Ok(node)
}

// Trees: parent (without a colour: they are not balanced), right, left; owner. A root
// holds its node and the leftmost one.
const PARENT: u64 = 0;
const RIGHT: u64 = 8;
const LEFT: u64 = 16;
const TREE_OWNER: u64 = 24;
const LEFTMOST: u64 = 8;
/// Deepest tree that is walked; a program may have tied a knot.
const MAX_DEPTH: usize = 1 << 20;

fn too_deep() -> Trap {
    Trap::helper("a tree with a cycle in it, or too deep")
}

/// kfunc `(root, node, less, meta, off)`.
fn rbtree_add(env: &mut Env<'_>, a: &Args) -> Ret {
    let (root, node, less) = (a[0], a[1], a[2]);
    if word(env, node + TREE_OWNER)? != 0 {
        heap::release(env, node.wrapping_sub(a[4]));
        return Ok(errno(Errno::EINVAL));
    }
    let (mut parent, mut link, mut leftmost) = (0, root, true);
    let mut depth = 0;
    loop {
        let at = word(env, link)?;
        if at == 0 {
            break;
        }
        parent = at;
        if env.call(less, [node, at, 0, 0, 0])? != 0 {
            link = at + LEFT;
        } else {
            link = at + RIGHT;
            leftmost = false;
        }
        depth += 1;
        if depth > MAX_DEPTH {
            return Err(too_deep());
        }
    }
    set(env, node + PARENT, parent)?;
    set(env, node + LEFT, 0)?;
    set(env, node + RIGHT, 0)?;
    set(env, node + TREE_OWNER, root)?;
    set(env, link, node)?;
    if leftmost {
        set(env, root + LEFTMOST, node)?;
    }
    Ok(0)
}

/// Puts `new` (or nothing) where `old` hangs.
fn transplant(env: &mut Env<'_>, root: u64, old: u64, new: u64) -> Result<(), Trap> {
    let parent = word(env, old + PARENT)?;
    let link = match parent {
        0 => root,
        p if word(env, p + LEFT)? == old => p + LEFT,
        p => p + RIGHT,
    };
    set(env, link, new)?;
    if new != 0 {
        set(env, new + PARENT, parent)?;
    }
    Ok(())
}

fn leftmost_of(env: &mut Env<'_>, mut node: u64) -> Result<u64, Trap> {
    for _ in 0..MAX_DEPTH {
        match word(env, node + LEFT)? {
            0 => return Ok(node),
            left => node = left,
        }
    }
    Err(too_deep())
}

/// kfunc `(root, node)`: null if the node hangs elsewhere.
fn rbtree_remove(env: &mut Env<'_>, a: &Args) -> Ret {
    let (root, node) = (a[0], a[1]);
    if word(env, node + TREE_OWNER)? != root {
        return Ok(0);
    }
    let (left, right) = (word(env, node + LEFT)?, word(env, node + RIGHT)?);
    match (left, right) {
        (0, only) | (only, 0) => transplant(env, root, node, only)?,
        _ => {
            let next = leftmost_of(env, right)?;
            if next != right {
                let child = word(env, next + RIGHT)?;
                transplant(env, root, next, child)?;
                set(env, next + RIGHT, right)?;
                set(env, right + PARENT, next)?;
            }
            transplant(env, root, node, next)?;
            set(env, next + LEFT, left)?;
            set(env, left + PARENT, next)?;
        }
    }
    let top = word(env, root)?;
    let leftmost = if top == 0 { 0 } else { leftmost_of(env, top)? };
    set(env, root + LEFTMOST, leftmost)?;
    // A node outside of any tree is its own parent.
    set(env, node + PARENT, node)?;
    set(env, node + TREE_OWNER, 0)?;
    Ok(node)
}

/// kfunc `(root)`.
fn rbtree_first(env: &mut Env<'_>, a: &Args) -> Ret {
    word(env, a[0] + LEFTMOST)
}

/// kfunc `(root)`.
fn rbtree_root(env: &mut Env<'_>, a: &Args) -> Ret {
    word(env, a[0])
}

/// kfunc `(root, node)`: a child; null if the node hangs elsewhere.
fn rbtree_child<const SIDE: u64>(env: &mut Env<'_>, a: &Args) -> Ret {
    if word(env, a[1] + TREE_OWNER)? != a[0] {
        return Ok(0);
    }
    word(env, a[1] + SIDE)
}

pub(super) const KFUNCS: &[Row] = &[
    ("bpf_obj_new_impl", obj_new),
    ("bpf_obj_drop_impl", obj_drop),
    ("bpf_percpu_obj_new_impl", percpu_obj_new),
    ("bpf_percpu_obj_drop_impl", obj_drop),
    ("bpf_refcount_acquire_impl", refcount_acquire),
    ("bpf_list_push_front_impl", list_push::<false>),
    ("bpf_list_push_back_impl", list_push::<true>),
    ("bpf_list_pop_front", list_pop::<false>),
    ("bpf_list_pop_back", list_pop::<true>),
    ("bpf_list_front", list_peek::<false>),
    ("bpf_list_back", list_peek::<true>),
    ("bpf_rbtree_add_impl", rbtree_add),
    ("bpf_rbtree_remove", rbtree_remove),
    ("bpf_rbtree_first", rbtree_first),
    ("bpf_rbtree_root", rbtree_root),
    ("bpf_rbtree_left", rbtree_child::<LEFT>),
    ("bpf_rbtree_right", rbtree_child::<RIGHT>),
];
