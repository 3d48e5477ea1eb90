//! Tracepoints whose arguments are not always what their types say.

/// An argument of a tracepoint that may be null, or no pointer at all.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ArgFact {
    /// May be null.
    MaybeNull,
    /// May hold an error number: to be taken as a number.
    MaybeError,
}

use ArgFact::{MaybeError as ERR, MaybeNull as NULL};

/// A tracepoint's row: name without `btf_trace_`, and facts by argument, counted from 0.
pub type Row = (&'static str, &'static [(u8, ArgFact)]);

/// What is known of that argument of a raw tracepoint with typed arguments. A tracepoint of
/// a module that has no row may pass null anywhere.
pub fn facts(tracepoint: &str, argument: u8) -> impl Iterator<Item = ArgFact> {
    row(tracepoint)
        .into_iter()
        .flatten()
        .filter(move |(at, _)| *at == argument)
        .map(|&(_, fact)| fact)
}

/// The facts of that tracepoint; none where it has no row.
pub fn row(tracepoint: &str) -> Option<&'static [(u8, ArgFact)]> {
    let found = RAW_TRACEPOINTS.iter().find(|(name, _)| *name == tracepoint);
    found.map(|&(_, facts)| facts)
}

/// Tracepoints of Linux 6.18, sorted by name.
#[rustfmt::skip]
pub static RAW_TRACEPOINTS: &[Row] = &[
    ("afs_flock_ev", &[(1, NULL)]),
    ("afs_make_fs_call", &[(1, NULL)]),
    ("afs_make_fs_call1", &[(1, NULL)]),
    ("afs_make_fs_call2", &[(1, NULL)]),
    ("afs_make_fs_calli", &[(1, NULL)]),
    ("afs_protocol_error", &[(0, NULL)]),
    ("amdgpu_vm_bo_map", &[(0, NULL)]),
    ("amdgpu_vm_bo_unmap", &[(0, NULL)]),
    ("amdtp_packet", &[(2, NULL)]),
    ("binder_transaction", &[(2, NULL)]),
    ("bpf_testmod_test_read", &[]),
    ("break_lease_block", &[(1, NULL)]),
    ("break_lease_noblock", &[(1, NULL)]),
    ("break_lease_unblock", &[(1, NULL)]),
    ("btree_path_free", &[(2, NULL)]),
    ("cachefiles_io_error", &[(0, NULL)]),
    ("cachefiles_lookup", &[(0, NULL), (2, ERR)]),
    ("cachefiles_mark_active", &[(0, NULL)]),
    ("cachefiles_mark_failed", &[(0, NULL)]),
    ("cachefiles_mark_inactive", &[(0, NULL)]),
    ("cachefiles_ondemand_close", &[(0, NULL)]),
    ("cachefiles_ondemand_copen", &[(0, NULL)]),
    ("cachefiles_ondemand_cread", &[(0, NULL)]),
    ("cachefiles_ondemand_fd_release", &[(0, NULL)]),
    ("cachefiles_ondemand_fd_write", &[(0, NULL)]),
    ("cachefiles_ondemand_open", &[(0, NULL)]),
    ("cachefiles_ondemand_read", &[(0, NULL)]),
    ("cachefiles_prep_read", &[(0, NULL)]),
    ("cachefiles_rename", &[(0, NULL)]),
    ("cachefiles_unlink", &[(0, NULL)]),
    ("cachefiles_vfs_error", &[(0, NULL)]),
    ("cfg80211_inform_bss_frame", &[(2, NULL)]),
    ("cfg80211_michael_mic_failure", &[(4, NULL)]),
    ("cfg80211_report_wowlan_wakeup", &[(2, NULL)]),
    ("cfg80211_scan_done", &[(0, NULL), (1, NULL)]),
    ("coda_dec_pic_done", &[(1, NULL)]),
    ("coda_dec_pic_run", &[(1, NULL)]),
    ("device_pm_callback_start", &[(1, NULL)]),
    ("dpu_crtc_setup_mixer", &[(2, NULL)]),
    ("ext4_mballoc_discard", &[(1, NULL)]),
    ("ext4_mballoc_free", &[(1, NULL)]),
    ("fcntl_setlk", &[(1, NULL)]),
    ("fib_table_lookup", &[(2, NULL)]),
    ("flock_lock_inode", &[(1, NULL)]),
    ("folio_wait_writeback", &[(1, NULL)]),
    ("generic_delete_lease", &[(1, NULL)]),
    ("hfi1_sdma_progress", &[(3, NULL)]),
    ("host1x_cdma_push_gather", &[(4, NULL)]),
    ("hugetlbfs_alloc_inode", &[(1, NULL)]),
    ("iptfs_ingress_postq_event", &[(3, NULL)]),
    ("kfree_skb", &[(3, NULL)]),
    ("kvm_page_fault_enter", &[(2, NULL)]),
    ("locks_remove_posix", &[(1, NULL)]),
    ("mm_collapse_huge_page_isolate", &[(0, NULL)]),
    ("mm_khugepaged_collapse_file", &[(1, NULL)]),
    ("mm_khugepaged_scan_file", &[(1, NULL)]),
    ("mm_khugepaged_scan_pmd", &[(1, NULL)]),
    ("mm_page_alloc", &[(0, NULL)]),
    ("mm_page_alloc_zone_locked", &[(0, NULL)]),
    ("mm_page_pcpu_drain", &[(0, NULL)]),
    ("mr_integ_alloc", &[(3, ERR)]),
    ("neigh_update", &[(1, NULL)]),
    ("netfs_failure", &[(1, NULL)]),
    ("netfs_folioq", &[(0, NULL)]),
    ("nfs4_inode_callback_event", &[(2, ERR)]),
    ("nfs4_inode_stateid_callback_event", &[(2, ERR)]),
    ("nfs4_setup_sequence", &[(0, NULL)]),
    ("nfsd_dirent", &[(0, NULL)]),
    ("nfsd_file_acquire", &[(0, NULL), (3, NULL)]),
    ("nfsd_file_cons_err", &[(0, NULL)]),
    ("nfsd_file_insert_err", &[(0, NULL)]),
    ("pnfs_mds_fallback_pg_get_mirror_count", &[(4, NULL)]),
    ("pnfs_mds_fallback_pg_init_read", &[(4, NULL)]),
    ("pnfs_mds_fallback_pg_init_write", &[(4, NULL)]),
    ("pnfs_mds_fallback_read_done", &[(4, NULL)]),
    ("pnfs_mds_fallback_read_pagelist", &[(4, NULL)]),
    ("pnfs_mds_fallback_write_done", &[(4, NULL)]),
    ("pnfs_mds_fallback_write_pagelist", &[(4, NULL)]),
    ("pnfs_update_layout", &[(4, NULL)]),
    ("posix_lock_inode", &[(1, NULL)]),
    ("qdisc_dequeue", &[(3, NULL)]),
    ("rdev_set_coalesce", &[(1, NULL)]),
    ("rxrpc_client", &[(0, NULL)]),
    ("rxrpc_recvdata", &[(0, NULL)]),
    ("rxrpc_resend", &[(1, NULL)]),
    ("rxrpc_tq", &[(1, NULL)]),
    ("sched_pi_setprio", &[(1, NULL)]),
    ("sched_stick_numa", &[(2, NULL)]),
    ("sched_swap_numa", &[(2, NULL)]),
    ("spufs_context", &[(1, NULL)]),
    ("tcp_send_reset", &[(0, NULL), (1, NULL)]),
    ("tcp_sendmsg_locked", &[(2, NULL)]),
    ("tegra_dma_tx_status", &[(2, NULL)]),
    ("time_out_leases", &[(1, NULL)]),
    ("tmigr_update_events", &[(0, NULL)]),
    ("wiphy_work_cancel", &[(1, NULL)]),
    ("wiphy_work_flush", &[(1, NULL)]),
    ("wiphy_work_queue", &[(1, NULL)]),
    ("wiphy_work_run", &[(1, NULL)]),
    ("writeback_dirty_folio", &[(1, NULL)]),
    ("xchk_metapath_lookup", &[(2, NULL)]),
    ("xchk_nlinks_live_update", &[(1, NULL)]),
    ("xfs_blockgc_flush_all", &[(0, NULL)]),
    ("xfs_blockgc_free_space", &[(1, NULL)]),
    ("xfs_blockgc_start", &[(0, NULL)]),
    ("xfs_blockgc_stop", &[(0, NULL)]),
    ("xfs_blockgc_worker", &[(0, NULL)]),
    ("xfs_btree_overlapped_query_range", &[(2, NULL)]),
    ("xfs_btree_updkeys", &[(2, NULL)]),
    ("xfs_defer_add_item", &[(0, NULL)]),
    ("xfs_defer_cancel_item", &[(0, NULL)]),
    ("xfs_defer_cancel_list", &[(0, NULL)]),
    ("xfs_defer_create_intent", &[(0, NULL)]),
    ("xfs_defer_finish_item", &[(0, NULL)]),
    ("xfs_defer_isolate_paused", &[(0, NULL)]),
    ("xfs_defer_item_pause", &[(0, NULL)]),
    ("xfs_defer_item_unpause", &[(0, NULL)]),
    ("xfs_defer_pending_abort", &[(0, NULL)]),
    ("xfs_defer_pending_finish", &[(0, NULL)]),
    ("xfs_defer_relog_intent", &[(0, NULL)]),
    ("xfs_fs_sync_fs", &[(0, NULL)]),
    ("xfs_inodegc_flush", &[(0, NULL)]),
    ("xfs_inodegc_push", &[(0, NULL)]),
    ("xfs_inodegc_queue", &[(0, NULL)]),
    ("xfs_inodegc_start", &[(0, NULL)]),
    ("xfs_inodegc_stop", &[(0, NULL)]),
    ("xfs_inodegc_throttle", &[(0, NULL)]),
    ("xfs_ioc_free_eofblocks", &[(1, NULL)]),
    ("xfs_iomap_alloc", &[(3, NULL)]),
    ("xfs_iomap_found", &[(3, NULL)]),
    ("xfs_map_blocks_alloc", &[(4, NULL)]),
    ("xfs_map_blocks_found", &[(4, NULL)]),
    ("xprt_get_cong", &[(1, NULL)]),
    ("xprt_put_cong", &[(1, NULL)]),
    ("xprt_release_cong", &[(1, NULL)]),
    ("xprt_reserve_cong", &[(1, NULL)]),
    ("xs_stream_read_data", &[(0, NULL)]),
];
