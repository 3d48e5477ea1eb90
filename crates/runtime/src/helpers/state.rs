//! What helpers remember: of one run, and between runs.

use smallvec::SmallVec;

/// State of the helpers of one machine, for the run under way; its buffers are reused.
#[derive(Default)]
pub struct State {
    /// Text being formatted.
    pub(crate) text: Vec<u8>,
    /// What the program wrote to the sequence file of an iterator.
    pub(crate) seq: Vec<u8>,
    /// Whether the memory table was filled for probing in a run without checks.
    pub(crate) probed: bool,
    /// Locks that the program holds, by address.
    pub(crate) locks: SmallVec<[u64; 2]>,
    /// Ring buffer records that the program has reserved, by address.
    pub(crate) records: SmallVec<[u64; 2]>,
    /// What the program asked the kernel to do.
    pub(crate) effects: Vec<Effect>,
}

impl State {
    /// Starts a run.
    pub(crate) fn reset(&mut self) {
        self.seq.clear();
        self.probed = false;
        self.locks.clear();
        self.records.clear();
        self.effects.clear();
    }

    /// What the program of the last run wrote to its sequence file (iterator programs).
    pub fn seq_output(&self) -> &[u8] {
        &self.seq
    }

    /// What the program of the last run asked for beside its return value, in order.
    pub fn effects(&self) -> &[Effect] {
        &self.effects
    }
}

/// Something that the kernel would have done for a program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Effect {
    /// `bpf_clone_redirect`: a copy of the packet left through a device.
    Clone {
        /// Device index.
        ifindex: u32,
        /// `BPF_F_INGRESS` or 0.
        flags: u64,
        /// The packet as it was then.
        packet: Vec<u8>,
    },
    /// `bpf_send_signal` and `bpf_send_signal_thread`.
    Signal {
        /// Signal number.
        signal: u32,
        /// To the thread alone.
        thread: bool,
    },
    /// `bpf_bind`: `struct sockaddr` as given.
    Bind(Vec<u8>),
    /// `bpf_setsockopt`.
    SetSockOpt {
        /// Level.
        level: i32,
        /// Option.
        name: i32,
        /// Value.
        value: Vec<u8>,
    },
    /// `bpf_sysctl_set_new_value`.
    SysctlNewValue(Vec<u8>),
    /// `bpf_sk_assign`: address of the socket, 0 for none.
    SkAssign(u64),
    /// `bpf_override_return`.
    OverrideReturn(u64),
    /// `bpf_set_retval`.
    SetRetval(i32),
}
