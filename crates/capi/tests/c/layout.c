/* Sizes, offsets and numbers never change while the library is libdafs.so.0. */
#include <stddef.h>

#include "check.h"

#define SIZE(type, bytes) _Static_assert(sizeof(type) == (bytes), #type)
#define AT(type, field, bytes) _Static_assert(offsetof(type, field) == (bytes), #type "." #field)
#define NUMBER(name, value) _Static_assert((name) == (value), #name)

SIZE(dap_session_t, 8);
SIZE(dap_file_t, 8);
SIZE(dap_dir_t, 8);
SIZE(dap_mem_t, 8);
SIZE(dap_loan_t, 8);
SIZE(dap_cg_t, 8);

SIZE(dap_options_t, 48);
AT(dap_options_t, flags, 4);
AT(dap_options_t, retry_ms, 8);
AT(dap_options_t, credits, 12);
AT(dap_options_t, data_bytes_max, 16);
AT(dap_options_t, connections, 20);
AT(dap_options_t, wait, 24);
AT(dap_options_t, key_bytes, 28);
AT(dap_options_t, key, 32);
AT(dap_options_t, export_name, 40);

SIZE(dap_session_info_t, 152);
AT(dap_session_info_t, protocol_version, 4);
AT(dap_session_info_t, transfer_modes, 8);
AT(dap_session_info_t, credits, 12);
AT(dap_session_info_t, data_bytes_max, 16);
AT(dap_session_info_t, inline_bytes_max, 20);
AT(dap_session_info_t, lease_ms, 24);
AT(dap_session_info_t, uid, 28);
AT(dap_session_info_t, server_cache_bytes, 32);
AT(dap_session_info_t, server_dirty_bytes, 40);
AT(dap_session_info_t, server_cache_hits, 48);
AT(dap_session_info_t, server_cache_misses, 56);
AT(dap_session_info_t, registrations, 64);
AT(dap_session_info_t, copied_bytes, 72);
AT(dap_session_info_t, round_trips, 80);
AT(dap_session_info_t, reconnects, 88);
AT(dap_session_info_t, new_sessions, 96);
AT(dap_session_info_t, verifier, 104);
AT(dap_session_info_t, transport, 120);
AT(dap_session_info_t, optimistic_hits, 136);
AT(dap_session_info_t, optimistic_stale, 144);

SIZE(dap_time_t, 16);
AT(dap_time_t, nanoseconds, 8);

SIZE(dap_stat_t, 144);
AT(dap_stat_t, kind, 4);
AT(dap_stat_t, mode, 8);
AT(dap_stat_t, links, 12);
AT(dap_stat_t, uid, 16);
AT(dap_stat_t, gid, 20);
AT(dap_stat_t, bytes, 24);
AT(dap_stat_t, allocated_bytes, 32);
AT(dap_stat_t, inode, 40);
AT(dap_stat_t, device, 48);
AT(dap_stat_t, rdev, 56);
AT(dap_stat_t, change, 64);
AT(dap_stat_t, block_bytes, 72);
AT(dap_stat_t, accessed, 80);
AT(dap_stat_t, modified, 96);
AT(dap_stat_t, changed, 112);
AT(dap_stat_t, created, 128);

SIZE(dap_setattr_t, 64);
AT(dap_setattr_t, set, 4);
AT(dap_setattr_t, bytes, 8);
AT(dap_setattr_t, mode, 16);
AT(dap_setattr_t, uid, 20);
AT(dap_setattr_t, gid, 24);
AT(dap_setattr_t, accessed, 32);
AT(dap_setattr_t, modified, 48);

SIZE(dap_statfs_t, 56);
AT(dap_statfs_t, block_bytes, 4);
AT(dap_statfs_t, bytes_total, 8);
AT(dap_statfs_t, bytes_free, 16);
AT(dap_statfs_t, bytes_available, 24);
AT(dap_statfs_t, files_total, 32);
AT(dap_statfs_t, files_free, 40);
AT(dap_statfs_t, name_bytes_max, 48);
AT(dap_statfs_t, read_only, 52);

SIZE(dap_dirent_t, 288);
AT(dap_dirent_t, kind, 4);
AT(dap_dirent_t, inode, 8);
AT(dap_dirent_t, bytes, 16);
AT(dap_dirent_t, name_bytes, 24);
AT(dap_dirent_t, mode, 28);
AT(dap_dirent_t, name, 32);

SIZE(dap_lock_t, 40);
AT(dap_lock_t, kind, 4);
AT(dap_lock_t, flags, 8);
AT(dap_lock_t, pid, 12);
AT(dap_lock_t, owner, 16);
AT(dap_lock_t, offset, 24);
AT(dap_lock_t, length, 32);

SIZE(dap_segment_t, 32);
AT(dap_segment_t, mem, 8);
AT(dap_segment_t, mem_offset, 16);
AT(dap_segment_t, length, 24);

SIZE(dap_op_t, 80);
AT(dap_op_t, op, 4);
AT(dap_op_t, flags, 8);
AT(dap_op_t, segment_count, 12);
AT(dap_op_t, file, 16);
AT(dap_op_t, mem, 24);
AT(dap_op_t, mem_offset, 32);
AT(dap_op_t, length, 40);
AT(dap_op_t, offset, 48);
AT(dap_op_t, segments, 56);
AT(dap_op_t, user, 64);
AT(dap_op_t, request, 72);

SIZE(dap_result_t, 40);
AT(dap_result_t, op, 4);
AT(dap_result_t, request, 8);
AT(dap_result_t, user, 16);
AT(dap_result_t, value, 24);
AT(dap_result_t, reason, 32);

NUMBER(DAP_OPEN_READ, 1);
NUMBER(DAP_OPEN_WRITE, 2);
NUMBER(DAP_OPEN_CREATE, 4);
NUMBER(DAP_OPEN_EXCLUSIVE, 8);
NUMBER(DAP_OPEN_TRUNCATE, 16);
NUMBER(DAP_OPEN_APPEND, 32);
NUMBER(DAP_OPEN_NOFOLLOW, 64);
NUMBER(DAP_NOFOLLOW, 1);
NUMBER(DAP_RENAME_NOREPLACE, 1);
NUMBER(DAP_RENAME_EXCHANGE, 2);
NUMBER(DAP_XATTR_CREATE, 1);
NUMBER(DAP_XATTR_REPLACE, 2);
NUMBER(DAP_WRITE_DATA, 1);
NUMBER(DAP_WRITE_STABLE, 2);
NUMBER(DAP_WAIT_ADAPTIVE, 0);
NUMBER(DAP_WAIT_POLLED, 1);
NUMBER(DAP_WAIT_SLEEPING, 2);
NUMBER(DAP_SESSION_NO_READ_AHEAD, 1);
NUMBER(DAP_TRANSFER_INLINE, 1);
NUMBER(DAP_TRANSFER_TAGGED, 2);
NUMBER(DAP_TRANSFER_RDMA_READ, 4);
NUMBER(DAP_KIND_FILE, 1);
NUMBER(DAP_KIND_DIRECTORY, 2);
NUMBER(DAP_KIND_SYMLINK, 3);
NUMBER(DAP_KIND_FIFO, 4);
NUMBER(DAP_KIND_SOCKET, 5);
NUMBER(DAP_KIND_CHAR_DEVICE, 6);
NUMBER(DAP_KIND_BLOCK_DEVICE, 7);
NUMBER(DAP_SET_SIZE, 1);
NUMBER(DAP_SET_MODE, 2);
NUMBER(DAP_SET_UID, 4);
NUMBER(DAP_SET_GID, 8);
NUMBER(DAP_SET_ACCESSED, 16);
NUMBER(DAP_SET_MODIFIED, 32);
NUMBER(DAP_SET_ACCESSED_NOW, 64);
NUMBER(DAP_SET_MODIFIED_NOW, 128);
NUMBER(DAP_LOCK_POSIX, 1);
NUMBER(DAP_LOCK_OFD, 2);
NUMBER(DAP_LOCK_WHOLE, 3);
NUMBER(DAP_LOCK_EXCLUSIVE, 1);
NUMBER(DAP_LOCK_WAIT, 2);
NUMBER(DAP_ADVISE_SEQUENTIAL, 1);
NUMBER(DAP_ADVISE_RANDOM, 2);
NUMBER(DAP_ADVISE_WILLNEED, 3);
NUMBER(DAP_ADVISE_DONTNEED, 4);
NUMBER(DAP_OP_READ, 1);
NUMBER(DAP_OP_WRITE, 2);
NUMBER(DAP_OP_READ_LIST, 3);
NUMBER(DAP_OP_WRITE_LIST, 4);
NUMBER(DAP_OP_FSYNC, 5);
NUMBER(DAP_OP_FDATASYNC, 6);
NUMBER(DAP_EVENT_ROOM, 0x100);
NUMBER(DAP_SUBMIT_MORE, 1);
NUMBER(DAP_SEGMENTS_MAX, 1024);
NUMBER(DAP_CG_DEPTH_MAX, 65536);
NUMBER(DAP_IO_BYTES_MAX, 0x7ffff000);
NUMBER(DAP_NAMES_MAX, 65536);
NUMBER(DAP_REASON_OUTCOME_UNKNOWN, 15103);
NUMBER(DAP_REASON_WRITES_LOST, 15104);
NUMBER(DAP_REASON_LOCKS_LOST, 15108);

int main(void)
{
    IS(dap_version(), DAP_VERSION);
    IS(dap_error_message(NULL, 0), 0);
    IS(dap_error_reason(), 0);
    return done();
}
