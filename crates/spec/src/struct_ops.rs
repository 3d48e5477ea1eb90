//! Structures of function pointers that programs may implement (struct_ops).

use crate::KernelVersion;

/// A structure that a kernel subsystem offers to struct_ops programs.
#[derive(Clone, Copy, Debug)]
pub struct StructOps {
    /// Name of the structure.
    pub name: &'static str,
    /// The release that brought it.
    pub since: KernelVersion,
    /// Whether its programs may call helpers at all: those whose rows name struct_ops.
    pub helpers: bool,
    /// Members whose program may be sleepable.
    pub sleepable: Members,
    /// Function members that a program may not implement.
    pub unsupported: &'static [&'static str],
    /// What programs may write in kernel objects that they are given.
    pub writable: &'static [Writable],
    /// Pointers among the arguments that programs see as another structure.
    pub seen_as: &'static [SeenAs],
}

/// Fields of a kernel structure that struct_ops programs may write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Writable {
    /// Structure.
    pub object: &'static str,
    /// Fields, as paths (`icsk_ack.pending`); empty for all of it.
    pub fields: &'static [&'static str],
}

/// A pointer argument whose type differs from what the member's prototype says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SeenAs {
    /// Member and number of the argument, counted from 0; none for all of the type.
    pub argument: Option<(&'static str, u32)>,
    /// Structure in the prototype.
    pub object: &'static str,
    /// Structure that programs see.
    pub seen_as: &'static str,
}

/// Some members of a structure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Members {
    /// Every member.
    All,
    /// These.
    These(&'static [&'static str]),
}

impl Members {
    /// Whether that member is among them.
    pub fn has(self, member: &str) -> bool {
        match self {
            Members::All => true,
            Members::These(members) => members.contains(&member),
        }
    }
}

/// The structure of that name.
pub fn by_name(name: &str) -> Option<&'static StructOps> {
    STRUCT_OPS.iter().find(|ops| ops.name == name)
}

/// Every structure of the target kernel.
pub static STRUCT_OPS: &[StructOps] = &[
    StructOps {
        name: "tcp_congestion_ops",
        since: KernelVersion(5, 6),
        helpers: true,
        sleepable: Members::All,
        unsupported: &["get_info"],
        writable: &[Writable {
            object: "tcp_sock",
            fields: &[
                "sk_pacing_rate",
                "sk_pacing_status",
                "icsk_ca_priv",
                "icsk_ack.pending",
                "snd_cwnd",
                "snd_cwnd_cnt",
                "snd_cwnd_stamp",
                "snd_ssthresh",
                "ecn_flags",
                "app_limited",
            ],
        }],
        seen_as: &[SeenAs {
            argument: None,
            object: "sock",
            seen_as: "tcp_sock",
        }],
    },
    StructOps {
        name: "bpf_dummy_ops",
        since: KernelVersion(5, 16),
        helpers: false,
        sleepable: Members::These(&["test_sleepable"]),
        unsupported: &[],
        writable: &[Writable {
            object: "bpf_dummy_ops_state",
            fields: &[],
        }],
        seen_as: &[],
    },
    StructOps {
        name: "hid_bpf_ops",
        since: KernelVersion(6, 11),
        helpers: true,
        sleepable: Members::These(&["hid_rdesc_fixup", "hid_hw_request", "hid_hw_output_report"]),
        unsupported: &[],
        writable: &[
            Writable {
                object: "hid_bpf_ctx",
                fields: &["retval"],
            },
            Writable {
                object: "hid_device",
                fields: &["name", "uniq", "phys"],
            },
        ],
        seen_as: &[],
    },
    StructOps {
        name: "sched_ext_ops",
        since: KernelVersion(6, 12),
        helpers: true,
        sleepable: Members::These(&[
            "init_task",
            "cgroup_init",
            "cgroup_exit",
            "cgroup_prep_move",
            "cpu_online",
            "cpu_offline",
            "init",
            "exit",
        ]),
        unsupported: &[],
        writable: &[Writable {
            object: "task_struct",
            fields: &["scx.slice", "scx.dsq_vtime", "scx.disallow"],
        }],
        seen_as: &[],
    },
    StructOps {
        name: "Qdisc_ops",
        since: KernelVersion(6, 16),
        helpers: true,
        sleepable: Members::All,
        unsupported: &[
            "peek",
            "change",
            "attach",
            "change_tx_queue_len",
            "change_real_num_tx",
            "dump",
            "dump_stats",
            "ingress_block_set",
            "egress_block_set",
            "ingress_block_get",
            "egress_block_get",
        ],
        writable: &[
            Writable {
                object: "Qdisc",
                fields: &["limit", "q.qlen", "qstats"],
            },
            Writable {
                object: "sk_buff",
                // The private part of the control block.
                fields: &["tstamp", "cb.data"],
            },
        ],
        seen_as: &[SeenAs {
            argument: Some(("enqueue", 2)),
            object: "sk_buff",
            seen_as: "bpf_sk_buff_ptr",
        }],
    },
];
