//! Moving and copying the bytes of an XDP packet.

use bpfkit_maps::Errno;

use super::input::{ETH_HLEN, FRAME, Fragment, Input, SHARED_INFO};

/// Bytes of the headroom that the kernel keeps for `struct xdp_frame`.
const XDP_FRAME: usize = 40;
/// Longest metadata.
const MAX_META: usize = 255;

impl Input {
    /// `bpf_xdp_adjust_head`: moves the packet's start by `delta` bytes, taking the metadata along.
    ///
    /// # Errors
    /// `EINVAL` when the packet would start in front of the headroom or have no Ethernet header.
    pub(crate) fn xdp_adjust_head(&mut self, delta: i32) -> Result<(), Errno> {
        let meta_len = self.data - self.meta;
        let data = self
            .data
            .checked_add_signed(delta as isize)
            .ok_or(Errno::EINVAL)?;
        if data < self.head + XDP_FRAME + meta_len || data + ETH_HLEN > self.end {
            return Err(Errno::EINVAL);
        }
        let meta = data - meta_len;
        let from = self.meta..self.data;
        self.pages.bytes_mut().copy_within(from, meta);
        (self.meta, self.data) = (meta, data);
        self.sync();
        Ok(())
    }

    /// `bpf_xdp_adjust_meta`: moves the metadata's start by `delta` bytes.
    ///
    /// # Errors
    /// `EINVAL` when it would leave the headroom or reach into the packet; `EACCES` when its
    /// length is no multiple of 4 or more than 255.
    pub(crate) fn xdp_adjust_meta(&mut self, delta: i32) -> Result<(), Errno> {
        let meta = self
            .meta
            .checked_add_signed(delta as isize)
            .ok_or(Errno::EINVAL)?;
        if meta < self.head + XDP_FRAME || meta > self.data {
            return Err(Errno::EINVAL);
        }
        let len = self.data - meta;
        if !len.is_multiple_of(4) || len > MAX_META {
            return Err(Errno::EACCES);
        }
        self.meta = meta;
        self.sync();
        Ok(())
    }

    /// `bpf_xdp_adjust_tail`: makes the packet longer by `delta` zero bytes, or shorter.
    ///
    /// # Errors
    /// `EINVAL` when that does not fit the frame, or less than an Ethernet header would be left.
    pub(crate) fn xdp_adjust_tail(&mut self, delta: i32) -> Result<(), Errno> {
        let result = if self.frags.is_empty() {
            self.adjust_linear_tail(delta)
        } else if delta < 0 {
            self.shrink_fragments(delta.unsigned_abs() as usize)
        } else {
            self.grow_last_fragment(delta as usize)
        };
        self.sync();
        result
    }

    fn adjust_linear_tail(&mut self, delta: i32) -> Result<(), Errno> {
        let end = self
            .end
            .checked_add_signed(delta as isize)
            .ok_or(Errno::EINVAL)?;
        if end > self.head + FRAME - SHARED_INFO || end < self.data + ETH_HLEN {
            return Err(Errno::EINVAL);
        }
        let old = self.end;
        if end > old {
            self.pages.bytes_mut()[old..end].fill(0);
        }
        self.end = end;
        Ok(())
    }

    fn shrink_fragments(&mut self, mut by: usize) -> Result<(), Errno> {
        if by > self.packet_len().saturating_sub(ETH_HLEN) {
            return Err(Errno::EINVAL);
        }
        while by > 0 {
            let Some(last) = self.frags.last_mut() else {
                break;
            };
            let cut = by.min(last.len);
            last.len -= cut;
            by -= cut;
            if last.len > 0 {
                break;
            }
            self.frags.pop();
        }
        if self.frags.is_empty() {
            self.end = self.end.saturating_sub(by).max(self.data);
        }
        Ok(())
    }

    fn grow_last_fragment(&mut self, by: usize) -> Result<(), Errno> {
        let Some(last) = self.frags.last_mut() else {
            return Ok(());
        };
        if by > FRAME - last.len {
            return Err(Errno::EINVAL);
        }
        let end = last.at + last.len;
        last.len += by;
        self.pages.bytes_mut()[end..end + by].fill(0);
        Ok(())
    }

    /// Where `len` bytes at `offset` lie, if they lie in one piece (`bpf_xdp_pointer`).
    ///
    /// # Errors
    /// `EFAULT` for numbers beyond 16 bits, `EINVAL` when the packet is shorter.
    pub(crate) fn xdp_pointer(&self, offset: u64, len: u64) -> Result<Option<usize>, Errno> {
        if offset > 0xffff || len > 0xffff {
            return Err(Errno::EFAULT);
        }
        let (offset, len) = (offset as usize, len as usize);
        if offset + len > self.packet_len() {
            return Err(Errno::EINVAL);
        }
        let mut rest = offset;
        for piece in self.pieces() {
            if rest < piece.len {
                return Ok((rest + len <= piece.len).then_some(piece.at + rest));
            }
            rest -= piece.len;
        }
        Ok(None)
    }

    /// Copies packet bytes at `offset` to `to`. The range was checked by `xdp_pointer`.
    pub(crate) fn xdp_copy_out(&self, mut offset: usize, mut to: &mut [u8]) {
        for piece in self.pieces() {
            if offset < piece.len && !to.is_empty() {
                let len = (piece.len - offset).min(to.len());
                let (now, later) = std::mem::take(&mut to).split_at_mut(len);
                now.copy_from_slice(&self.pages.bytes()[piece.at + offset..][..len]);
                to = later;
                offset = 0;
            } else {
                offset = offset.saturating_sub(piece.len);
            }
        }
    }

    /// Copies `from` into the packet at `offset`. The range was checked by `xdp_pointer`.
    pub(crate) fn xdp_copy_in(&mut self, mut offset: usize, mut from: &[u8]) {
        let pieces: smallvec::SmallVec<[Fragment; 18]> = self.pieces().collect();
        for piece in pieces {
            if offset < piece.len && !from.is_empty() {
                let len = (piece.len - offset).min(from.len());
                let (now, later) = from.split_at(len);
                self.pages.bytes_mut()[piece.at + offset..][..len].copy_from_slice(now);
                from = later;
                offset = 0;
            } else {
                offset = offset.saturating_sub(piece.len);
            }
        }
    }

    fn pieces(&self) -> impl Iterator<Item = Fragment> + '_ {
        let first = Fragment {
            at: self.data,
            len: self.end - self.data,
        };
        std::iter::once(first).chain(self.frags.iter().copied())
    }
}
