//! Structures and constants as C sees them. What is here never changes its place or its meaning while
//! the library is `libdafs.so.0`: structures grow at their end, and say how large they are.
#![allow(non_camel_case_types)]
#![allow(dead_code, reason = "constants that C alone uses")]

use crate::pointer::{Bytes, Items, Text};

/// An open session.
pub type dap_session_t = u64;
/// An open file.
pub type dap_file_t = u64;
/// An open directory.
pub type dap_dir_t = u64;
/// Registered memory.
pub type dap_mem_t = u64;
/// Data that is read in place.
pub type dap_loan_t = u64;
/// A completion group.
pub type dap_cg_t = u64;

/// The version of this interface: 0x000100 is 0.1.0.
pub const DAP_VERSION: u32 = 0x0000_0100;

/// Flag of dap_open: reading is wanted.
pub const DAP_OPEN_READ: u32 = 0x1;
/// Flag of dap_open: writing is wanted.
pub const DAP_OPEN_WRITE: u32 = 0x2;
/// Flag of dap_open: the file is made where it is missing.
pub const DAP_OPEN_CREATE: u32 = 0x4;
/// Flag of dap_open: with DAP_OPEN_CREATE, a file that exists is -EEXIST.
pub const DAP_OPEN_EXCLUSIVE: u32 = 0x8;
/// Flag of dap_open: the file is emptied.
pub const DAP_OPEN_TRUNCATE: u32 = 0x10;
/// Flag of dap_open: every write goes to the end.
pub const DAP_OPEN_APPEND: u32 = 0x20;
/// Flag of dap_open: a symbolic link is -ELOOP.
pub const DAP_OPEN_NOFOLLOW: u32 = 0x40;

/// Flag of calls on names: of a symbolic link itself.
pub const DAP_NOFOLLOW: u32 = 0x1;

/// Flag of dap_rename: a name that exists is -EEXIST.
pub const DAP_RENAME_NOREPLACE: u32 = 0x1;
/// Flag of dap_rename: the two names are swapped.
pub const DAP_RENAME_EXCHANGE: u32 = 0x2;

/// Flag of dap_setxattr: one that exists is -EEXIST.
pub const DAP_XATTR_CREATE: u32 = 0x1;
/// Flag of dap_setxattr: one that is missing is -ENODATA.
pub const DAP_XATTR_REPLACE: u32 = 0x2;

/// Flag of writes: data is on disk, with the size, before the call answers.
pub const DAP_WRITE_DATA: u32 = 0x1;
/// Flag of writes: data and all attributes are on disk before the call answers.
pub const DAP_WRITE_STABLE: u32 = 0x2;

/// How dap_session_open waits for replies: spinning for a while that adapts, then asleep.
pub const DAP_WAIT_ADAPTIVE: u32 = 0;
/// How dap_session_open waits: never asleep.
pub const DAP_WAIT_POLLED: u32 = 1;
/// How dap_session_open waits: asleep at once.
pub const DAP_WAIT_SLEEPING: u32 = 2;

/// Flag of options: the server does not read ahead, nor does the library.
pub const DAP_SESSION_NO_READ_AHEAD: u32 = 0x1;

/// Transfer mode: data beside the request or the reply.
pub const DAP_TRANSFER_INLINE: u32 = 0x1;
/// Transfer mode: data goes to its place by the tag of a reply.
pub const DAP_TRANSFER_TAGGED: u32 = 0x2;
/// Transfer mode: the server fetches data by RDMA read.
pub const DAP_TRANSFER_RDMA_READ: u32 = 0x4;

/// Kind of object: a regular file.
pub const DAP_KIND_FILE: u32 = 1;
/// Kind of object: a directory.
pub const DAP_KIND_DIRECTORY: u32 = 2;
/// Kind of object: a symbolic link.
pub const DAP_KIND_SYMLINK: u32 = 3;
/// Kind of object: a named pipe.
pub const DAP_KIND_FIFO: u32 = 4;
/// Kind of object: a socket.
pub const DAP_KIND_SOCKET: u32 = 5;
/// Kind of object: a character device.
pub const DAP_KIND_CHAR_DEVICE: u32 = 6;
/// Kind of object: a block device.
pub const DAP_KIND_BLOCK_DEVICE: u32 = 7;

/// Field of dap_setattr_t: size.
pub const DAP_SET_SIZE: u32 = 0x1;
/// Field of dap_setattr_t: mode.
pub const DAP_SET_MODE: u32 = 0x2;
/// Field of dap_setattr_t: uid.
pub const DAP_SET_UID: u32 = 0x4;
/// Field of dap_setattr_t: gid.
pub const DAP_SET_GID: u32 = 0x8;
/// Field of dap_setattr_t: accessed.
pub const DAP_SET_ACCESSED: u32 = 0x10;
/// Field of dap_setattr_t: modified.
pub const DAP_SET_MODIFIED: u32 = 0x20;
/// Field of dap_setattr_t: the time of access is the server's now.
pub const DAP_SET_ACCESSED_NOW: u32 = 0x40;
/// Field of dap_setattr_t: the time of modification is the server's now.
pub const DAP_SET_MODIFIED_NOW: u32 = 0x80;

/// Kind of lock: as fcntl(2) F_SETLK; of a process, deadlocks are found.
pub const DAP_LOCK_POSIX: u32 = 1;
/// Kind of lock: as fcntl(2) F_OFD_SETLK; of an open file.
pub const DAP_LOCK_OFD: u32 = 2;
/// Kind of lock: as flock(2); of an open file, the whole of it.
pub const DAP_LOCK_WHOLE: u32 = 3;
/// Flag of dap_lock_t: shared with nobody.
pub const DAP_LOCK_EXCLUSIVE: u32 = 0x1;
/// Flag of dap_lock_t: dap_lock waits for it.
pub const DAP_LOCK_WAIT: u32 = 0x2;

/// Advice: streams of reads, which the server may read ahead of.
pub const DAP_ADVISE_SEQUENTIAL: u32 = 1;
/// Advice: no streams of reads.
pub const DAP_ADVISE_RANDOM: u32 = 2;
/// Advice: the range will be read soon.
pub const DAP_ADVISE_WILLNEED: u32 = 3;
/// Advice: the range will not be read soon.
pub const DAP_ADVISE_DONTNEED: u32 = 4;

/// Operation of dap_op_t: reads into registered memory.
pub const DAP_OP_READ: u32 = 1;
/// Operation of dap_op_t: writes from registered memory.
pub const DAP_OP_WRITE: u32 = 2;
/// Operation of dap_op_t: reads the segments of a list.
pub const DAP_OP_READ_LIST: u32 = 3;
/// Operation of dap_op_t: writes the segments of a list.
pub const DAP_OP_WRITE_LIST: u32 = 4;
/// Operation of dap_op_t: as dap_fsync.
pub const DAP_OP_FSYNC: u32 = 5;
/// Operation of dap_op_t: as dap_fdatasync.
pub const DAP_OP_FDATASYNC: u32 = 6;
/// In dap_result_t: no operation ended, but the group that was full has room again.
pub const DAP_EVENT_ROOM: u32 = 0x100;

/// Flag of dap_submit: more follows at once; nothing need leave yet.
pub const DAP_SUBMIT_MORE: u32 = 0x1;

/// Segments of a list at most.
pub const DAP_SEGMENTS_MAX: u32 = 1024;
/// Operations of a group that have not ended, at most.
pub const DAP_CG_DEPTH_MAX: u32 = 65536;
/// Bytes of one read or write at most; longer ones are cut, as read(2) does.
pub const DAP_IO_BYTES_MAX: u32 = 0x7fff_f000;
/// Names of one dap_exists at most.
pub const DAP_NAMES_MAX: u32 = 65536;

/// Reason of an error: unstable writes were lost with the server; errno EIO.
pub const DAP_REASON_WRITES_LOST: u32 = 15104;
/// Reason of an error: nobody knows whether the call was done; errno EIO.
pub const DAP_REASON_OUTCOME_UNKNOWN: u32 = 15103;
/// Reason of an error: locks were lost, since the server had given the client up; errno EIO.
pub const DAP_REASON_LOCKS_LOST: u32 = 15108;

/// How a session behaves. Zero in a field is the usual value.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dap_options_t {
    /// sizeof(dap_options_t).
    pub size: u32,
    /// DAP_SESSION_...
    pub flags: u32,
    /// For how many milliseconds a lost server is looked for before calls fail; 0: 60,000.
    pub retry_ms: u32,
    /// Requests under way, 1 to 1024; 0: 64.
    pub credits: u32,
    /// Bytes of data in one request, 4096 to 1 MiB; 0: 1 MiB.
    pub data_bytes_max: u32,
    /// Connections, 1 or 2; 0: 2.
    pub connections: u32,
    /// DAP_WAIT_...
    pub wait: u32,
    /// Bytes of the key.
    pub key_bytes: u32,
    /// The key that the server has, too; null: none. Copied.
    pub key: Bytes,
    /// The export by its name; null: the only one, or a root that has all as directories.
    pub export_name: Text,
}

/// What a session is like, and what it did so far.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dap_session_info_t {
    /// sizeof(dap_session_info_t), set by the caller.
    pub size: u32,
    /// Of the protocol that both ends speak.
    pub protocol_version: u32,
    /// DAP_TRANSFER_... that are used.
    pub transfer_modes: u32,
    /// Requests that may be under way.
    pub credits: u32,
    /// Bytes of data of one request, each way.
    pub data_bytes_max: u32,
    /// Data up to this goes beside the header of its message.
    pub inline_bytes_max: u32,
    /// Milliseconds of silence after which the server forgets the session.
    pub lease_ms: u32,
    /// The user for whom the session acts on the server.
    pub uid: u32,
    /// The server's cache for data, in bytes.
    pub server_cache_bytes: u64,
    /// Of it, bytes that are not on disk yet.
    pub server_dirty_bytes: u64,
    /// Reads of the server that its cache answered.
    pub server_cache_hits: u64,
    /// Reads of the server that the disk answered.
    pub server_cache_misses: u64,
    /// Memory that this process has registered so far, how often.
    pub registrations: u64,
    /// Bytes of data that this process copied in user space so far.
    pub copied_bytes: u64,
    /// Requests sent so far.
    pub round_trips: u64,
    /// Connections made again after a break.
    pub reconnects: u64,
    /// Sessions made again after the server forgot one.
    pub new_sessions: u64,
    /// Changes when the server restarts.
    pub verifier: [u8; 16],
    /// "tcp", "unix" or "shm", ended by NUL.
    pub transport: [u8; 16],
    /// Reads so far that took what the server has cached, and asked no program of the server's.
    pub optimistic_hits: u64,
    /// Of those that tried, what was not any more where it had been, or changed meanwhile; read again from the server.
    pub optimistic_stale: u64,
}

/// Seconds since 1970, and nanoseconds.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct dap_time_t {
    /// Seconds since 1970.
    pub seconds: i64,
    /// 0 to 999,999,999.
    pub nanoseconds: u32,
    /// 0.
    pub reserved: u32,
}

/// Attributes of an object.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dap_stat_t {
    /// sizeof(dap_stat_t), set by the caller.
    pub size: u32,
    /// DAP_KIND_...
    pub kind: u32,
    /// Permission bits, with setuid, setgid and sticky.
    pub mode: u32,
    /// Hard links.
    pub links: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Size in bytes.
    pub bytes: u64,
    /// Bytes that are allocated.
    pub allocated_bytes: u64,
    /// Unique with device.
    pub inode: u64,
    /// The file system, as a number that stays.
    pub device: u64,
    /// Of a device node.
    pub rdev: u64,
    /// Grows with each change.
    pub change: u64,
    /// Preferred size of reads and writes.
    pub block_bytes: u32,
    /// 0.
    pub reserved: u32,
    /// Last access.
    pub accessed: dap_time_t,
    /// Last change of data.
    pub modified: dap_time_t,
    /// Last change of attributes.
    pub changed: dap_time_t,
    /// When it was made; 0 where that is not known.
    pub created: dap_time_t,
}

/// Attributes to change.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dap_setattr_t {
    /// sizeof(dap_setattr_t).
    pub size: u32,
    /// DAP_SET_...: the fields that count.
    pub set: u32,
    /// Size in bytes.
    pub bytes: u64,
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// 0.
    pub reserved: u32,
    /// Last access.
    pub accessed: dap_time_t,
    /// Last change of data.
    pub modified: dap_time_t,
}

/// Space and limits of a file system.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dap_statfs_t {
    /// sizeof(dap_statfs_t), set by the caller.
    pub size: u32,
    /// Block size in bytes.
    pub block_bytes: u32,
    /// Bytes in all.
    pub bytes_total: u64,
    /// Bytes free.
    pub bytes_free: u64,
    /// Bytes free to users other than root.
    pub bytes_available: u64,
    /// Files in all.
    pub files_total: u64,
    /// Files free.
    pub files_free: u64,
    /// The longest name, in bytes.
    pub name_bytes_max: u32,
    /// 1: the export takes no changes.
    pub read_only: u32,
}

/// An entry of a directory.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dap_dirent_t {
    /// sizeof(dap_dirent_t), set by the caller.
    pub size: u32,
    /// DAP_KIND_...; 0: not known.
    pub kind: u32,
    /// Of the object; 0: not known.
    pub inode: u64,
    /// Of the object; 0: not known.
    pub bytes: u64,
    /// Of the name, without NUL.
    pub name_bytes: u32,
    /// Permission bits.
    pub mode: u32,
    /// The name, ended by NUL: any bytes but '/' and NUL.
    pub name: [u8; 256],
}

/// A lock that is wanted, given back or asked for.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dap_lock_t {
    /// sizeof(dap_lock_t).
    pub size: u32,
    /// DAP_LOCK_POSIX, DAP_LOCK_OFD or DAP_LOCK_WHOLE.
    pub kind: u32,
    /// DAP_LOCK_EXCLUSIVE, DAP_LOCK_WAIT.
    pub flags: u32,
    /// The process that is told to who asks for the holder.
    pub pid: u32,
    /// Who holds it, among the owners of the session: a number that the program chooses.
    pub owner: u64,
    /// First byte.
    pub offset: u64,
    /// Bytes; 0: to the end, however the file grows.
    pub length: u64,
}

/// A part of a list: bytes of a file, and where they are in registered memory. Never grows.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dap_segment_t {
    /// First byte in the file.
    pub offset: u64,
    /// Registered memory.
    pub mem: dap_mem_t,
    /// First byte in it.
    pub mem_offset: u64,
    /// Bytes.
    pub length: u64,
}

/// An operation for dap_submit.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dap_op_t {
    /// sizeof(dap_op_t).
    pub size: u32,
    /// DAP_OP_...
    pub op: u32,
    /// DAP_WRITE_... for writes; otherwise 0.
    pub flags: u32,
    /// How many segments, for lists.
    pub segment_count: u32,
    /// The file.
    pub file: dap_file_t,
    /// Registered memory.
    pub mem: dap_mem_t,
    /// First byte in it.
    pub mem_offset: u64,
    /// Bytes.
    pub length: u64,
    /// First byte in the file.
    pub offset: u64,
    /// For lists; read before dap_submit returns.
    pub segments: Items<dap_segment_t>,
    /// Comes back with the result.
    pub user: u64,
    /// Set by dap_submit: names the operation until its result was taken.
    pub request: u64,
}

/// How an operation ended.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dap_result_t {
    /// sizeof(dap_result_t), set by the caller.
    pub size: u32,
    /// DAP_OP_... of the operation, or DAP_EVENT_ROOM.
    pub op: u32,
    /// Of the operation.
    pub request: u64,
    /// Of the operation.
    pub user: u64,
    /// Bytes that were read or written, 0 for other operations, or a negative errno.
    pub value: i64,
    /// DAP_REASON_..., or another status of the server; 0: none.
    pub reason: u32,
    /// 0.
    pub reserved: u32,
}

#[cfg(test)]
mod tests {
    use dafs_protocol::{FileKind, LockKind, Status};

    use super::*;

    #[test]
    fn numbers_are_those_of_the_protocol() {
        let kinds = [
            (DAP_KIND_FILE, FileKind::File),
            (DAP_KIND_DIRECTORY, FileKind::Directory),
            (DAP_KIND_SYMLINK, FileKind::Symlink),
            (DAP_KIND_FIFO, FileKind::Fifo),
            (DAP_KIND_SOCKET, FileKind::Socket),
            (DAP_KIND_CHAR_DEVICE, FileKind::CharDevice),
            (DAP_KIND_BLOCK_DEVICE, FileKind::BlockDevice),
        ];
        for (number, kind) in kinds {
            assert_eq!(number, kind as u32);
        }
        for (number, kind) in [
            (DAP_LOCK_POSIX, LockKind::Posix),
            (DAP_LOCK_OFD, LockKind::Ofd),
            (DAP_LOCK_WHOLE, LockKind::Whole),
        ] {
            assert_eq!(number, kind as u32);
        }
        assert_eq!(DAP_REASON_WRITES_LOST, Status::WritesLost.code());
        assert_eq!(DAP_REASON_OUTCOME_UNKNOWN, Status::OutcomeUnknown.code());
        assert_eq!(DAP_REASON_LOCKS_LOST, Status::LocksLost.code());
    }
}
