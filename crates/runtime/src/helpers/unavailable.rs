//! Helpers that cannot exist without a kernel, and why: loading a program that calls one
//! fails with its name.

/// Name and reason.
pub const UNAVAILABLE: &[(&str, &str)] = &[
    ("get_current_task_btf", "there is no struct task_struct"),
    ("task_pt_regs", "there is no struct task_struct"),
    ("d_path", "there are no struct path and struct file"),
    (
        "find_vma",
        "there is no struct task_struct with an address space",
    ),
    ("ima_inode_hash", "there is no integrity measurement"),
    ("ima_file_hash", "there is no integrity measurement"),
    ("get_task_stack", "there is no struct task_struct"),
    (
        "seq_printf_btf",
        "there is no kernel type information at run time",
    ),
    (
        "snprintf_btf",
        "there is no kernel type information at run time",
    ),
    ("lwt_push_encap", "there are no lightweight tunnels"),
    ("lwt_seg6_store_bytes", "there is no segment routing state"),
    ("lwt_seg6_adjust_srh", "there is no segment routing state"),
    ("lwt_seg6_action", "there is no segment routing state"),
    ("skb_get_xfrm_state", "there are no IPsec transformations"),
    ("tcp_send_ack", "there are no TCP connections"),
    ("load_hdr_opt", "there are no TCP connections"),
    ("store_hdr_opt", "there are no TCP connections"),
    ("reserve_hdr_opt", "there are no TCP connections"),
    ("sock_map_update", "there are no TCP connections"),
    ("sock_hash_update", "there are no TCP connections"),
    ("perf_prog_read_value", "there are no performance events"),
];
