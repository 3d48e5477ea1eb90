//! Dynamic pointers: 16 bytes that hold an address or a packet, a window into it, and
//! what may be done with it, laid out as in the kernel (`struct bpf_dynptr_kern`).

use bpfkit_maps::Errno;

use super::{Ret, Row, errno, packet, result, status};
use crate::env::{Args, Env};
use crate::fault::Trap;

/// Largest size of a dynptr.
pub(crate) const MAX_SIZE: u64 = (1 << 24) - 1;
const KIND_SHIFT: u32 = 28;
const SIZE_MASK: u32 = 0x00ff_ffff;
const RDONLY: u32 = 1 << 31;

/// What a dynptr leads to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// Memory of the program.
    Local = 1,
    /// A reserved ring buffer record.
    Ringbuf = 2,
    /// The packet of a `struct __sk_buff`.
    Skb = 3,
    /// The packet of a `struct xdp_md`.
    Xdp = 4,
    /// The metadata in front of a `struct __sk_buff`'s packet.
    SkbMeta = 5,
}

/// A dynptr that leads somewhere.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dynptr {
    /// Address of the memory, or of the context whose packet it is.
    pub data: u64,
    pub kind: Kind,
    pub offset: u32,
    pub size: u32,
    pub rdonly: bool,
}

impl Dynptr {
    /// Reads the dynptr at `ptr`; `None` if it is null.
    pub(crate) fn load(env: &mut Env<'_>, ptr: u64) -> Result<Option<Self>, Trap> {
        let data = u64::from_ne_bytes(env.load(ptr)?);
        let size = u32::from_ne_bytes(env.load(ptr.wrapping_add(8))?);
        let offset = u32::from_ne_bytes(env.load(ptr.wrapping_add(12))?);
        let kind = match size >> KIND_SHIFT & 7 {
            1 => Kind::Local,
            2 => Kind::Ringbuf,
            3 => Kind::Skb,
            4 => Kind::Xdp,
            5 => Kind::SkbMeta,
            _ => return Ok(None),
        };
        let dynptr = Self {
            data,
            kind,
            offset,
            size: size & SIZE_MASK,
            rdonly: size & RDONLY != 0,
        };
        Ok((data != 0).then_some(dynptr))
    }

    /// Writes the dynptr to `ptr`.
    pub(crate) fn store(self, env: &mut Env<'_>, ptr: u64) -> Result<(), Trap> {
        let size = self.size & SIZE_MASK
            | (self.kind as u32) << KIND_SHIFT
            | if self.rdonly { RDONLY } else { 0 };
        env.store(ptr, self.data.to_ne_bytes())?;
        env.store(ptr.wrapping_add(8), size.to_ne_bytes())?;
        env.store(ptr.wrapping_add(12), self.offset.to_ne_bytes())
    }

    fn range(self, offset: u64, len: u64) -> Result<u64, Errno> {
        let size = u64::from(self.size);
        if len > size || offset > size - len {
            Err(Errno::E2BIG)
        } else {
            Ok(u64::from(self.offset) + offset)
        }
    }

    /// Address of bytes in the program's memory.
    fn address(self, at: u64) -> u64 {
        self.data.wrapping_add(at)
    }

    /// Copies bytes at `offset` to `to`, which may overlap.
    fn read(
        self,
        env: &mut Env<'_>,
        to: u64,
        len: u64,
        offset: u64,
    ) -> Result<Result<(), Errno>, Trap> {
        let at = match self.range(offset, len) {
            Ok(at) => at,
            Err(e) => return Ok(Err(e)),
        };
        match self.kind {
            Kind::Local | Kind::Ringbuf => {
                env.copy(to, self.address(at), len)?;
                Ok(Ok(()))
            }
            Kind::Skb => packet::load(env, self.data, at, to, len),
            Kind::Xdp => packet::xdp_load(env, self.data, at, to, len),
            Kind::SkbMeta => packet::meta_copy(env, self.data, at, to, len, false),
        }
    }

    /// Copies `len` bytes at `from` to `offset`.
    fn write(
        self,
        env: &mut Env<'_>,
        offset: u64,
        from: u64,
        len: u64,
        flags: u64,
    ) -> Result<Result<(), Errno>, Trap> {
        if self.rdonly {
            return Ok(Err(Errno::EINVAL));
        }
        let at = match self.range(offset, len) {
            Ok(at) => at,
            Err(e) => return Ok(Err(e)),
        };
        if flags != 0 && self.kind != Kind::Skb {
            return Ok(Err(Errno::EINVAL));
        }
        match self.kind {
            Kind::Local | Kind::Ringbuf => {
                env.copy(self.address(at), from, len)?;
                Ok(Ok(()))
            }
            Kind::Skb => packet::store(env, self.data, at, from, len, flags),
            Kind::Xdp => packet::xdp_store(env, self.data, at, from, len),
            Kind::SkbMeta => packet::meta_copy(env, self.data, at, from, len, true),
        }
    }
}

/// Makes the dynptr at `ptr` null.
pub(crate) fn clear(env: &mut Env<'_>, ptr: u64) -> Result<(), Trap> {
    env.store(ptr, [0; 16])
}

/// `(data, size, flags, ptr)`.
fn from_mem(env: &mut Env<'_>, a: &Args) -> Ret {
    let size = u64::from(a[1] as u32);
    let refused = match () {
        () if size > MAX_SIZE => Some(Errno::E2BIG),
        () if a[2] != 0 => Some(Errno::EINVAL),
        () => None,
    };
    if let Some(e) = refused {
        clear(env, a[3])?;
        return Ok(errno(e));
    }
    Dynptr {
        data: a[0],
        kind: Kind::Local,
        offset: 0,
        size: size as u32,
        rdonly: false,
    }
    .store(env, a[3])?;
    Ok(0)
}

/// `(dst, len, src, offset, flags)`.
fn read(env: &mut Env<'_>, a: &Args) -> Ret {
    match Dynptr::load(env, a[2])? {
        Some(d) if a[4] == 0 => status(d.read(env, a[0], a[1], a[3])?),
        _ => Ok(errno(Errno::EINVAL)),
    }
}

/// `(dst, offset, src, len, flags)`.
fn write(env: &mut Env<'_>, a: &Args) -> Ret {
    match Dynptr::load(env, a[0])? {
        Some(d) => status(d.write(env, a[1], a[2], a[3], a[4])?),
        None => Ok(errno(Errno::EINVAL)),
    }
}

/// `(ptr, offset, len)`: the address of writable bytes, or null.
fn data(env: &mut Env<'_>, a: &Args) -> Ret {
    let Some(d) = Dynptr::load(env, a[0])? else {
        return Ok(0);
    };
    let direct = matches!(d.kind, Kind::Local | Kind::Ringbuf) && !d.rdonly;
    Ok(match d.range(a[1], a[2]) {
        Ok(at) if direct => d.address(at),
        _ => 0,
    })
}

/// kfunc `(skb, flags, ptr)`.
fn from_skb(env: &mut Env<'_>, a: &Args) -> Ret {
    packet_dynptr(env, a, Kind::Skb)
}

/// kfunc `(xdp, flags, ptr)`.
fn from_xdp(env: &mut Env<'_>, a: &Args) -> Ret {
    packet_dynptr(env, a, Kind::Xdp)
}

/// kfunc `(skb, flags, ptr)`.
fn from_skb_meta(env: &mut Env<'_>, a: &Args) -> Ret {
    packet_dynptr(env, a, Kind::SkbMeta)
}

fn packet_dynptr(env: &mut Env<'_>, a: &Args, kind: Kind) -> Ret {
    if a[1] != 0 {
        clear(env, a[2])?;
        return Ok(errno(Errno::EINVAL));
    }
    if kind == Kind::Skb
        && let Some(packet) = packet::behind_kernel_skb(env, a[0])
    {
        // Its bytes lie in one piece, and netfilter programs may only read them.
        let whole = Dynptr {
            data: packet.data,
            kind: Kind::Local,
            offset: 0,
            size: packet.len,
            rdonly: true,
        };
        whole.store(env, a[2])?;
        return Ok(0);
    }
    let size = packet::dynptr_size(env, a[0], kind)?;
    let rdonly = kind == Kind::Skb && packet::read_only(env);
    Dynptr {
        data: a[0],
        kind,
        offset: 0,
        size,
        rdonly,
    }
    .store(env, a[2])?;
    Ok(0)
}

/// The bytes themselves where they lie in one piece, else a copy in `buffer`, else null.
fn slice(env: &mut Env<'_>, a: &Args) -> Ret {
    let (offset, buffer, len) = (a[1], a[2], u64::from(a[3] as u32));
    let Some(d) = Dynptr::load(env, a[0])? else {
        return Ok(0);
    };
    let Ok(at) = d.range(u64::from(offset as u32), len) else {
        return Ok(0);
    };
    let direct = match d.kind {
        Kind::Local | Kind::Ringbuf => return Ok(d.address(at)),
        Kind::Skb => packet::pointer(env, d.data, at, len)?,
        Kind::Xdp => match packet::xdp_pointer(env, d.data, at, len)? {
            Ok(address) => address,
            Err(_) => return Ok(0),
        },
        Kind::SkbMeta => packet::meta_pointer(env, d.data, at, len)?,
    };
    match direct {
        Some(address) => Ok(address),
        None if buffer == 0 => Ok(0),
        None => match d.read(env, buffer, len, u64::from(offset as u32))? {
            Ok(()) => Ok(buffer),
            Err(_) => Ok(0),
        },
    }
}

/// As `slice`, for writing: copies are of no use to the packet, but are given as the kernel does.
fn slice_rdwr(env: &mut Env<'_>, a: &Args) -> Ret {
    match Dynptr::load(env, a[0])? {
        Some(d) if !d.rdonly => slice(env, a),
        _ => Ok(0),
    }
}

/// kfunc `(ptr, start, end)`.
fn adjust(env: &mut Env<'_>, a: &Args) -> Ret {
    let (start, end) = (a[1] as u32, a[2] as u32);
    let Some(d) = Dynptr::load(env, a[0])? else {
        return Ok(errno(Errno::EINVAL));
    };
    if start > end {
        return Ok(errno(Errno::EINVAL));
    }
    if start > d.size || end > d.size {
        return Ok(errno(Errno::ERANGE));
    }
    Dynptr {
        offset: d.offset.wrapping_add(start),
        size: end - start,
        ..d
    }
    .store(env, a[0])?;
    Ok(0)
}

fn is_null(env: &mut Env<'_>, a: &Args) -> Ret {
    Ok(u64::from(Dynptr::load(env, a[0])?.is_none()))
}

fn is_rdonly(env: &mut Env<'_>, a: &Args) -> Ret {
    Ok(u64::from(
        Dynptr::load(env, a[0])?.is_some_and(|d| d.rdonly),
    ))
}

fn size(env: &mut Env<'_>, a: &Args) -> Ret {
    result(
        Dynptr::load(env, a[0])?
            .map(|d| u64::from(d.size))
            .ok_or(Errno::EINVAL),
    )
}

/// kfunc `(ptr, clone)`.
fn clone(env: &mut Env<'_>, a: &Args) -> Ret {
    match Dynptr::load(env, a[0])? {
        Some(d) => {
            d.store(env, a[1])?;
            Ok(0)
        }
        None => {
            clear(env, a[1])?;
            Ok(errno(Errno::EINVAL))
        }
    }
}

/// Bytes that travel through a buffer of ours when one side is a packet.
const CHUNK: usize = 256;

/// kfunc `(dst, dst_off, src, src_off, size)`.
fn copy(env: &mut Env<'_>, a: &Args) -> Ret {
    let [dst, dst_off, src, src_off, size] = *a;
    let (dst_off, src_off, size) = (dst_off as u32, src_off as u32, size as u32);
    let (Some(to), Some(from)) = (Dynptr::load(env, dst)?, Dynptr::load(env, src)?) else {
        return Ok(errno(Errno::EINVAL));
    };
    if to.rdonly {
        return Ok(errno(Errno::EINVAL));
    }
    let (dst_off, src_off, size) = (u64::from(dst_off), u64::from(src_off), u64::from(size));
    let ranges = to
        .range(dst_off, size)
        .and_then(|t| from.range(src_off, size).map(|f| (t, f)));
    let (to_at, from_at) = match ranges {
        Ok(ranges) => ranges,
        Err(e) => return Ok(errno(e)),
    };
    let plain = |d: Dynptr| matches!(d.kind, Kind::Local | Kind::Ringbuf);
    if plain(to) && plain(from) {
        env.copy(to.address(to_at), from.address(from_at), size)?;
        return Ok(0);
    }
    let mut done = 0;
    while done < size {
        let len = (size - done).min(CHUNK as u64);
        let mut bytes = [0u8; CHUNK];
        let chunk = &mut bytes[..len as usize];
        let read = packet::bytes_out(env, from, from_at + done, chunk)?;
        if let Err(e) = read {
            return Ok(errno(e));
        }
        if let Err(e) = packet::bytes_in(env, to, to_at + done, chunk)? {
            return Ok(errno(e));
        }
        done += len;
    }
    Ok(0)
}

/// kfunc `(ptr, offset, size, value)`.
fn memset(env: &mut Env<'_>, a: &Args) -> Ret {
    let (offset, size) = (u64::from(a[1] as u32), u64::from(a[2] as u32));
    let Some(d) = Dynptr::load(env, a[0])?.filter(|d| !d.rdonly) else {
        return Ok(errno(Errno::EINVAL));
    };
    let at = match d.range(offset, size) {
        Ok(at) => at,
        Err(e) => return Ok(errno(e)),
    };
    let chunk = [a[3] as u8; CHUNK];
    let mut done = 0;
    while done < size {
        let len = (size - done).min(CHUNK as u64);
        if let Err(e) = packet::bytes_in(env, d, at + done, &chunk[..len as usize])? {
            return Ok(errno(e));
        }
        done += len;
    }
    Ok(0)
}

pub(super) const HELPERS: &[Row] = &[
    ("dynptr_from_mem", from_mem),
    ("dynptr_read", read),
    ("dynptr_write", write),
    ("dynptr_data", data),
];

pub(super) const KFUNCS: &[Row] = &[
    ("bpf_dynptr_from_skb", from_skb),
    ("bpf_dynptr_from_xdp", from_xdp),
    ("bpf_dynptr_from_skb_meta", from_skb_meta),
    ("bpf_dynptr_slice", slice),
    ("bpf_dynptr_slice_rdwr", slice_rdwr),
    ("bpf_dynptr_adjust", adjust),
    ("bpf_dynptr_is_null", is_null),
    ("bpf_dynptr_is_rdonly", is_rdonly),
    ("bpf_dynptr_size", size),
    ("bpf_dynptr_clone", clone),
    ("bpf_dynptr_copy", copy),
    ("bpf_dynptr_memset", memset),
];
