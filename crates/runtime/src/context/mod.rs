//! What a program gets in R1: the structures of `linux/bpf.h` in host memory, filled in
//! as `BPF_PROG_TEST_RUN` fills them in, and the packets they point to.
//!
//! An [`Input`] is made once and reused: [`Input::set_packet`] puts the next packet in
//! place without allocating. Packets lie below 4 GiB, so `data` and `data_end` hold real
//! addresses and a program runs on the structure as it was compiled.

mod dissect;
mod input;
pub mod layout;
mod msg;
mod netfilter;
mod skb;
mod traced;
mod vlan;
mod xdp;

pub(crate) use input::KernelPacket;
pub use input::{Input, InputError, Sysctl, TracedCall};
pub use skb::Checksum;
pub(crate) use skb::{HeaderStart, TunnelKey};
pub use traced::{MAX_ARGS, Traced};
