//! Messages of sockets (`struct sk_msg_md`): the program sees a window of the message.

use bpfkit_maps::Errno;

use super::input::{Input, InputError, SKB_HEADROOM, SKB_TAILROOM};
use super::layout::sk_msg;

impl Input {
    pub(super) fn set_message(&mut self, message: &[u8]) -> Result<(), InputError> {
        self.reserve(message.len())?;
        let start = self.head + SKB_HEADROOM;
        let end = start + message.len();
        self.pages.bytes_mut()[start..end].copy_from_slice(message);
        self.message = start..end;
        self.start_context();
        self.show(start, end);
        Ok(())
    }

    /// Shows the program these bytes.
    fn show(&mut self, start: usize, end: usize) {
        (self.meta, self.data, self.end) = (start, start, end);
        let base = u64::from(self.pages.address());
        self.set_ctx_u64(sk_msg::DATA, base + start as u64);
        self.set_ctx_u64(sk_msg::DATA_END, base + end as u64);
        self.set_ctx_u32(sk_msg::SIZE_FIELD, self.message.len() as u32);
    }

    /// `bpf_msg_pull_data`: shows bytes `start .. end` of the message.
    pub(crate) fn msg_pull(&mut self, start: u32, end: u32, flags: u64) -> Result<(), Errno> {
        let (from, to) = (start as usize, end as usize);
        if flags != 0 || to <= from || to > self.message.len() {
            return Err(Errno::EINVAL);
        }
        let base = self.message.start;
        self.show(base + from, base + to);
        Ok(())
    }

    /// `bpf_msg_push_data`: opens `len` zero bytes at `at`.
    pub(crate) fn msg_push(&mut self, at: u32, len: u32, flags: u64) -> Result<(), Errno> {
        let (at, len) = (at as usize, len as usize);
        if flags != 0 {
            return Err(Errno::EINVAL);
        }
        if len == 0 {
            return Ok(());
        }
        if at > self.message.len() {
            return Err(Errno::EINVAL);
        }
        let (start, end) = (self.message.start, self.message.end);
        if len > SKB_TAILROOM || end + len > self.pages.len() {
            return Err(Errno::ENOMEM);
        }
        let bytes = self.pages.bytes_mut();
        bytes.copy_within(start + at..end, start + at + len);
        bytes[start + at..start + at + len].fill(0);
        self.message = start..end + len;
        self.show(start, end + len);
        Ok(())
    }

    /// `bpf_msg_pop_data`: removes `len` bytes at `at`.
    pub(crate) fn msg_pop(&mut self, at: u32, len: u32, flags: u64) -> Result<(), Errno> {
        let (at, len) = (at as usize, len as usize);
        if flags != 0 {
            return Err(Errno::EINVAL);
        }
        if len == 0 {
            return Ok(());
        }
        if at >= self.message.len() || at + len > self.message.len() {
            return Err(Errno::EINVAL);
        }
        let (start, end) = (self.message.start, self.message.end);
        self.pages
            .bytes_mut()
            .copy_within(start + at + len..end, start + at);
        self.message = start..end - len;
        self.show(start, end - len);
        Ok(())
    }
}
