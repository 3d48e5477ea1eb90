//! What tracing and LSM programs may attach to: named functions of the kernel.

/// LSM hooks (without `bpf_lsm_`) that no BPF program may implement.
pub const LSM_DISABLED: &[&str] = &[
    "audit_rule_match",
    "getprocattr",
    "getselfattr",
    "inode_copy_up_xattr",
    "inode_getsecurity",
    "inode_listsecurity",
    "inode_need_killpriv",
    "ismaclabel",
    "key_getsecurity",
    "setprocattr",
    "vm_enough_memory",
    "xfrm_decode_session",
];

/// LSM hooks whose program may be sleepable.
pub const LSM_SLEEPABLE: &[&str] = &[
    "bpf",
    "bpf_map",
    "bpf_map_create",
    "bpf_map_free",
    "bpf_prog",
    "bpf_prog_free",
    "bpf_prog_load",
    "bpf_token_capable",
    "bpf_token_cmd",
    "bpf_token_create",
    "bpf_token_free",
    "bprm_check_security",
    "bprm_committed_creds",
    "bprm_committing_creds",
    "bprm_creds_for_exec",
    "bprm_creds_from_file",
    "capget",
    "capset",
    "cred_prepare",
    "current_getsecid_subj",
    "file_ioctl",
    "file_lock",
    "file_open",
    "file_post_open",
    "file_receive",
    "inet_conn_established",
    "inode_create",
    "inode_free_security",
    "inode_getattr",
    "inode_getxattr",
    "inode_mknod",
    "inode_need_killpriv",
    "inode_post_removexattr",
    "inode_post_setxattr",
    "inode_readlink",
    "inode_removexattr",
    "inode_rename",
    "inode_rmdir",
    "inode_setattr",
    "inode_setxattr",
    "inode_symlink",
    "inode_unlink",
    "kernel_module_request",
    "kernel_read_file",
    "kernfs_init_security",
    "mmap_file",
    "netlink_send",
    "path_chmod",
    "path_chown",
    "path_link",
    "path_mkdir",
    "path_notify",
    "path_rename",
    "path_rmdir",
    "path_symlink",
    "path_truncate",
    "path_unlink",
    "release_secctx",
    "sb_alloc_security",
    "sb_eat_lsm_opts",
    "sb_kern_mount",
    "sb_mount",
    "sb_remount",
    "sb_set_mnt_opts",
    "sb_show_options",
    "sb_statfs",
    "sb_umount",
    "settime",
    "socket_accept",
    "socket_bind",
    "socket_connect",
    "socket_create",
    "socket_getpeername",
    "socket_getpeersec_dgram",
    "socket_getsockname",
    "socket_getsockopt",
    "socket_listen",
    "socket_post_create",
    "socket_recvmsg",
    "socket_sendmsg",
    "socket_shutdown",
    "socket_socketpair",
    "syslog",
    "task_alloc",
    "task_getsecid_obj",
    "task_prctl",
    "task_setscheduler",
    "task_to_inode",
    "userns_create",
];

/// LSM hooks whose arguments are not trusted: the object is being made or freed.
pub const LSM_UNTRUSTED: &[&str] = &[
    "bpf_map_free",
    "bpf_prog_free",
    "file_alloc_security",
    "file_free_security",
    "sk_alloc_security",
    "sk_free_security",
    "task_free",
];

/// LSM hooks that return 0 or 1, not 0 or a negative errno.
pub const LSM_BOOL: &[&str] = &[
    "audit_rule_known",
    "inode_xattr_skipcap",
    "xfrm_state_pol_flow_match",
];

/// LSM hooks where a program for a cgroup may read and set socket options: the socket is
/// locked, or still in the making.
pub const LSM_SOCKOPT: &[&str] = &[
    "inet_conn_established",
    "inet_csk_clone",
    "sock_graft",
    "socket_post_create",
    "socket_socketpair",
];

/// Functions whose fentry, fexit and fmod_ret programs may call `bpf_d_path`.
pub const D_PATH_FUNCTIONS: &[&str] = &[
    "dentry_open",
    "filp_close",
    "security_file_open",
    "security_file_permission",
    "security_inode_getattr",
    "security_path_truncate",
    "vfs_fallocate",
    "vfs_getattr",
    "vfs_truncate",
];

/// Functions that no trampoline may be put on.
pub const DENIED_FUNCTIONS: &[&str] = &[
    "__rcu_read_lock",
    "__rcu_read_unlock",
    "migrate_disable",
    "migrate_enable",
    "preempt_count_add",
    "preempt_count_sub",
    "rcu_read_unlock_strict",
];

/// Functions that never return, which fexit and fmod_ret refuse.
pub const NORETURN_FUNCTIONS: &[&str] = &[
    "__ia32_sys_exit",
    "__ia32_sys_exit_group",
    "__kunit_abort",
    "__module_put_and_kthread_exit",
    "__x64_sys_exit",
    "__x64_sys_exit_group",
    "do_exit",
    "do_group_exit",
    "kthread_complete_and_exit",
    "kthread_exit",
    "kunit_try_catch_throw",
    "make_task_dead",
];

/// Functions open to error injection that may not be replaced by sleepable programs.
pub const NON_SLEEPABLE_ERROR_INJECTION: &[&str] = &[
    "__filemap_add_folio",
    "should_fail_alloc_page",
    "should_failslab",
];

/// Functions of the kernel and its selftests that are open to error injection, beside the
/// system calls.
pub const ERROR_INJECTION: &[&str] = &[
    "__filemap_add_folio",
    "bpf_testmod_test_read",
    "bpf_testmod_test_write",
    "btrfs_check_leaf",
    "btrfs_check_node",
    "btrfs_cow_block",
    "btrfs_search_slot",
    "btrfs_should_cancel_balance",
    "guc_wait_ucode",
    "io_ctl_init",
    "mtd_block_markbad",
    "mtd_erase",
    "mtd_read",
    "mtd_write",
    "open_ctree",
    "page_pool_alloc_netmems",
    "should_fail_alloc_page",
    "should_fail_bio",
    "should_failslab",
    "ssh_ptl_should_corrupt_rx_data",
    "ssh_ptl_should_corrupt_rx_syn",
    "ssh_ptl_should_corrupt_tx_data",
    "ssh_ptl_should_drop_ack_packet",
    "ssh_ptl_should_drop_dsq_packet",
    "ssh_ptl_should_drop_nak_packet",
    "ssh_ptl_should_fail_write",
    "ssh_rtl_should_drop_response",
];

/// What the names of system call functions begin with on x86-64, AArch64, RISC-V and s390.
const SYSCALL_PREFIXES: [&str; 8] = [
    "__x64_sys_",
    "__ia32_sys_",
    "__x64_compat_sys_",
    "__ia32_compat_sys_",
    "__arm64_sys_",
    "__arm64_compat_sys_",
    "__riscv_sys_",
    "__s390x_sys_",
];

/// Whether that function of the kernel may be made to fail by injection.
pub fn is_error_injectable(function: &str) -> bool {
    ERROR_INJECTION.contains(&function)
        || SYSCALL_PREFIXES
            .iter()
            .any(|prefix| function.starts_with(prefix))
}

/// Whether a fmod_ret program may decide what that function of the kernel returns.
pub fn may_modify_return(function: &str) -> bool {
    function.starts_with("security_")
        || is_error_injectable(function)
        || crate::kfunc::FMOD_RET_FUNCTIONS.contains(&function)
}

/// Whether a sleepable fentry, fexit or fmod_ret program may be put on that function.
pub fn may_sleep_at(function: &str) -> bool {
    let injectable =
        is_error_injectable(function) && !NON_SLEEPABLE_ERROR_INJECTION.contains(&function);
    injectable || function == "bpf_fentry_test1"
}
