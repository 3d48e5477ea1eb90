//! Pages of an arena.

use bpfkit_maps::{Arena, Errno};

use super::{Ret, Row, errno};
use crate::env::{Args, Env};
use crate::fault::Trap;

fn arena<'r>(env: &mut Env<'r>, map: u64) -> Result<&'r Arena, Trap> {
    env.map(map)?
        .as_arena()
        .ok_or_else(|| Trap::helper("the map is no arena"))
}

/// kfunc `(map, addr, page_cnt, node_id, flags)`: the first page, or null.
fn alloc_pages(env: &mut Env<'_>, a: &Args) -> Ret {
    let arena = arena(env, a[0])?;
    // Arena pointers carry the low half of the address that the host sees.
    let addr = if a[1] == 0 {
        0
    } else {
        host_address(arena, a[1])
    };
    if a[4] != 0 || a[2] as u32 == 0 {
        return Ok(0);
    }
    Ok(arena.alloc_pages(addr, a[2] as u32))
}

/// kfunc `(map, ptr, page_cnt)`.
fn free_pages(env: &mut Env<'_>, a: &Args) -> Ret {
    let arena = arena(env, a[0])?;
    if a[1] != 0 && a[2] as u32 != 0 {
        arena.free_pages(host_address(arena, a[1]), a[2] as u32);
    }
    Ok(0)
}

/// An address as the host sees it, of an arena pointer in either form.
fn host_address(arena: &Arena, ptr: u64) -> u64 {
    let start = arena.user_start();
    start.wrapping_add(u64::from((ptr as u32).wrapping_sub(start as u32)))
}

/// kfunc `(map, ptr, page_cnt)`: keeps pages from being allocated. None can be kept here.
fn reserve_pages(env: &mut Env<'_>, a: &Args) -> Ret {
    arena(env, a[0])?;
    Ok(if a[2] as u32 == 0 {
        0
    } else {
        errno(Errno::EBUSY)
    })
}

pub(super) const KFUNCS: &[Row] = &[
    ("bpf_arena_alloc_pages", alloc_pages),
    ("bpf_arena_free_pages", free_pages),
    ("bpf_arena_reserve_pages", reserve_pages),
];
