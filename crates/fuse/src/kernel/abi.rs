//! The messages of the kernel's FUSE protocol, version 7.31 and later: structures and numbers.
//!
//! All numbers are in the order of this machine. A request is an [`InHeader`], a structure that
//! its opcode names, and names or data; a reply is an [`OutHeader`] and what the request wants.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Version of the protocol.
pub const MAJOR: u32 = 7;
/// The newest version spoken here.
pub const MINOR: u32 = 41;
/// The oldest version spoken here.
pub const MINOR_LEAST: u32 = 31;
/// The node of the root.
pub const ROOT: u64 = 1;

/// What a request asks for.
pub mod opcode {
    #![allow(missing_docs, reason = "the names say it")]
    pub const LOOKUP: u32 = 1;
    pub const FORGET: u32 = 2;
    pub const GETATTR: u32 = 3;
    pub const SETATTR: u32 = 4;
    pub const READLINK: u32 = 5;
    pub const SYMLINK: u32 = 6;
    pub const MKNOD: u32 = 8;
    pub const MKDIR: u32 = 9;
    pub const UNLINK: u32 = 10;
    pub const RMDIR: u32 = 11;
    pub const RENAME: u32 = 12;
    pub const LINK: u32 = 13;
    pub const OPEN: u32 = 14;
    pub const READ: u32 = 15;
    pub const WRITE: u32 = 16;
    pub const STATFS: u32 = 17;
    pub const RELEASE: u32 = 18;
    pub const FSYNC: u32 = 20;
    pub const SETXATTR: u32 = 21;
    pub const GETXATTR: u32 = 22;
    pub const LISTXATTR: u32 = 23;
    pub const REMOVEXATTR: u32 = 24;
    pub const FLUSH: u32 = 25;
    pub const INIT: u32 = 26;
    pub const OPENDIR: u32 = 27;
    pub const READDIR: u32 = 28;
    pub const RELEASEDIR: u32 = 29;
    pub const FSYNCDIR: u32 = 30;
    pub const GETLK: u32 = 31;
    pub const SETLK: u32 = 32;
    pub const SETLKW: u32 = 33;
    pub const ACCESS: u32 = 34;
    pub const CREATE: u32 = 35;
    pub const INTERRUPT: u32 = 36;
    pub const DESTROY: u32 = 38;
    pub const IOCTL: u32 = 39;
    pub const POLL: u32 = 40;
    pub const BATCH_FORGET: u32 = 42;
    pub const FALLOCATE: u32 = 43;
    pub const READDIRPLUS: u32 = 44;
    pub const RENAME2: u32 = 45;
    pub const LSEEK: u32 = 46;
    pub const COPY_FILE_RANGE: u32 = 47;
    pub const SYNCFS: u32 = 50;
    pub const TMPFILE: u32 = 51;
}

/// What the kernel and a file system agree on at the beginning.
pub mod init {
    /// Reads of one file may be under way at the same time.
    pub const ASYNC_READ: u64 = 1 << 0;
    /// The file system has `fcntl` locks.
    pub const POSIX_LOCKS: u64 = 1 << 1;
    /// Writes may be larger than a page.
    pub const BIG_WRITES: u64 = 1 << 5;
    /// The file system applies the umask.
    pub const DONT_MASK: u64 = 1 << 6;
    /// The file system has `flock` locks.
    pub const FLOCK_LOCKS: u64 = 1 << 10;
    /// Cached data are dropped when size or time of a file changed.
    pub const AUTO_INVAL_DATA: u64 = 1 << 12;
    /// Lists may come with attributes.
    pub const DO_READDIRPLUS: u64 = 1 << 13;
    /// Direct I/O of one call may be several requests at the same time.
    pub const ASYNC_DIO: u64 = 1 << 15;
    /// The kernel keeps written data and writes them later.
    pub const WRITEBACK_CACHE: u64 = 1 << 16;
    /// One directory may be looked into by several at the same time.
    pub const PARALLEL_DIROPS: u64 = 1 << 18;
    /// The kernel understands access control lists; the file system keeps them.
    pub const POSIX_ACL: u64 = 1 << 20;
    /// `max_pages` of the reply counts.
    pub const MAX_PAGES: u64 = 1 << 22;
    /// Targets of symbolic links are cached.
    pub const CACHE_SYMLINKS: u64 = 1 << 23;
    /// Cached data are dropped only where the file system says so.
    pub const EXPLICIT_INVAL_DATA: u64 = 1 << 25;
    /// The file system clears setuid, setgid and capabilities where a request says so.
    pub const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    /// There are more than 32 of these flags.
    pub const INIT_EXT: u64 = 1 << 30;
    /// Files open for direct I/O may be mapped.
    pub const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
    /// Requests come by rings of io_uring, all but FORGET and INTERRUPT.
    pub const OVER_IO_URING: u64 = 1 << 41;
}

/// Commands of io_uring on the device.
pub mod ring {
    /// An entry of a queue is there, and takes requests from now on.
    pub const REGISTER: u32 = 1;
    /// The entry's request is answered; it takes the next one.
    pub const COMMIT_AND_FETCH: u32 = 2;
}

/// Flags of an open file, for [`OpenOut`].
pub mod open {
    /// Reads and writes go past the page cache.
    pub const DIRECT_IO: u32 = 1 << 0;
    /// Cached data of earlier opens stay.
    pub const KEEP_CACHE: u32 = 1 << 1;
    /// The kernel may keep the list of this directory.
    pub const CACHE_DIR: u32 = 1 << 3;
    /// Nothing is to be done when a descriptor is closed.
    pub const NOFLUSH: u32 = 1 << 5;
    /// Direct writes of one file may be under way at the same time.
    pub const PARALLEL_DIRECT_WRITES: u32 = 1 << 6;
}

/// Which fields of [`SetAttrIn`] count.
pub mod setattr {
    #![allow(missing_docs, reason = "the names of the fields")]
    pub const MODE: u32 = 1 << 0;
    pub const UID: u32 = 1 << 1;
    pub const GID: u32 = 1 << 2;
    pub const SIZE: u32 = 1 << 3;
    pub const ATIME: u32 = 1 << 4;
    pub const MTIME: u32 = 1 << 5;
    pub const FH: u32 = 1 << 6;
    pub const ATIME_NOW: u32 = 1 << 7;
    pub const MTIME_NOW: u32 = 1 << 8;
    pub const LOCK_OWNER: u32 = 1 << 9;
}

/// [`GetAttrIn::flags`]: `fh` counts.
pub const GETATTR_FH: u32 = 1 << 0;
/// [`LockIn::flags`]: by `flock`, not by `fcntl`.
pub const LOCK_FLOCK: u32 = 1 << 0;
/// [`WriteIn::write_flags`]: from the page cache, nobody knows by whom.
pub const WRITE_CACHE: u32 = 1 << 0;
/// [`WriteIn::write_flags`]: setuid, setgid and capabilities end.
pub const WRITE_KILL_SUIDGID: u32 = 1 << 2;
/// [`ReleaseIn::release_flags`]: the owner's `flock` lock ends.
pub const RELEASE_FLOCK_UNLOCK: u32 = 1 << 1;
/// [`SyncIn::flags`]: data only.
pub const FSYNC_DATA: u32 = 1 << 0;
/// Bit of the unique number of an INTERRUPT.
pub const INTERRUPT_BIT: u64 = 1;
/// Codes of messages that nobody asked for.
pub const NOTIFY_INVAL_INODE: i32 = 2;
/// As [`NOTIFY_INVAL_INODE`].
pub const NOTIFY_INVAL_ENTRY: i32 = 3;

/// What stands before the data of an entry of a ring: first of its request, then of the reply.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RingHeader {
    /// An [`InHeader`], then an [`OutHeader`].
    pub in_out: [u8; 128],
    /// The structure that the opcode names.
    pub op_in: [u8; 128],
    /// About the entry itself.
    pub entry: RingEntry,
}

macro_rules! messages {
    ($($(#[$about:meta])* $name:ident { $($field:ident: $kind:ty),* $(,)? })*) => { $(
        $(#[$about])*
        #[allow(missing_docs, reason = "the protocol's names")]
        #[derive(Debug, Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
        #[repr(C)]
        pub struct $name { $(pub $field: $kind),* }
    )* };
}

messages! {
    /// Before each request. `extension_len` counts 8 bytes at the end of the request.
    InHeader {
        len: u32, opcode: u32, unique: u64, node: u64, uid: u32, gid: u32, pid: u32,
        extension_len: u16, padding: u16,
    }
    /// Which request an entry has, and the bytes of data behind its structure.
    RingEntry { flags: u64, commit_id: u64, payload_len: u32, padding: u32, reserved: u64 }
    /// What a command of [`ring`] is about.
    RingCommand { flags: u64, commit_id: u64, queue: u16, padding: [u8; 6] }
    /// Before each reply; `error` is 0 or a negative errno.
    OutHeader { len: u32, error: i32, unique: u64 }
    /// The kernel's part of INIT that every version has.
    InitIn { major: u32, minor: u32, max_readahead: u32, flags: u32 }
    /// The answer to INIT.
    InitOut {
        major: u32, minor: u32, max_readahead: u32, flags: u32, max_background: u16,
        congestion_threshold: u16, max_write: u32, time_gran: u32, max_pages: u16,
        map_alignment: u16, flags2: u32, max_stack_depth: u32, request_timeout: u16,
        unused: [u16; 11],
    }
    /// Attributes of a node.
    AttrOut {
        ino: u64, size: u64, blocks: u64, atime: u64, mtime: u64, ctime: u64, atime_ns: u32,
        mtime_ns: u32, ctime_ns: u32, mode: u32, nlink: u32, uid: u32, gid: u32, rdev: u32,
        blksize: u32, flags: u32,
    }
    /// Answer to GETATTR and SETATTR.
    AttrReply { valid: u64, valid_ns: u32, padding: u32, attr: AttrOut }
    /// A node with its attributes.
    EntryOut {
        node: u64, generation: u64, entry_valid: u64, attr_valid: u64, entry_valid_ns: u32,
        attr_valid_ns: u32, attr: AttrOut,
    }
    /// An open file.
    OpenOut { fh: u64, open_flags: u32, padding: u32 }
    /// Answer to CREATE and TMPFILE.
    CreateOut { entry: EntryOut, open: OpenOut }
    /// FORGET.
    ForgetIn { count: u64 }
    /// BATCH_FORGET, before as many `ForgetOne`.
    BatchForgetIn { count: u32, padding: u32 }
    /// One of BATCH_FORGET.
    ForgetOne { node: u64, count: u64 }
    /// GETATTR.
    GetAttrIn { flags: u32, padding: u32, fh: u64 }
    /// SETATTR.
    SetAttrIn {
        valid: u32, padding: u32, fh: u64, size: u64, lock_owner: u64, atime: u64, mtime: u64,
        ctime: u64, atime_ns: u32, mtime_ns: u32, ctime_ns: u32, mode: u32, unused4: u32,
        uid: u32, gid: u32, unused5: u32,
    }
    /// MKNOD, before the name.
    MkNodIn { mode: u32, rdev: u32, umask: u32, padding: u32 }
    /// MKDIR, before the name.
    MkDirIn { mode: u32, umask: u32 }
    /// RENAME, before two names.
    RenameIn { to_dir: u64 }
    /// RENAME2, before two names.
    Rename2In { to_dir: u64, flags: u32, padding: u32 }
    /// LINK, before the name.
    LinkIn { from: u64 }
    /// OPEN and OPENDIR.
    OpenIn { flags: u32, open_flags: u32 }
    /// CREATE, before the name; TMPFILE.
    CreateIn { flags: u32, mode: u32, umask: u32, open_flags: u32 }
    /// RELEASE and RELEASEDIR.
    ReleaseIn { fh: u64, flags: u32, release_flags: u32, lock_owner: u64 }
    /// FLUSH.
    FlushIn { fh: u64, unused: u32, padding: u32, lock_owner: u64 }
    /// READ, READDIR and READDIRPLUS.
    ReadIn {
        fh: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64, flags: u32,
        padding: u32,
    }
    /// WRITE, before the data.
    WriteIn {
        fh: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64, flags: u32,
        padding: u32,
    }
    /// Answer to WRITE and COPY_FILE_RANGE; sizes of extended attributes; events of POLL.
    SizeOut { size: u32, padding: u32 }
    /// Answer to STATFS.
    StatFsOut {
        blocks: u64, bfree: u64, bavail: u64, files: u64, ffree: u64, bsize: u32, namelen: u32,
        frsize: u32, padding: u32, spare: [u32; 6],
    }
    /// FSYNC and FSYNCDIR.
    SyncIn { fh: u64, flags: u32, padding: u32 }
    /// SETXATTR, before the name and the value.
    SetXattrIn { size: u32, flags: u32 }
    /// GETXATTR, before the name; LISTXATTR.
    GetXattrIn { size: u32, padding: u32 }
    /// GETLK, SETLK and SETLKW.
    LockIn {
        fh: u64, owner: u64, start: u64, end: u64, kind: u32, pid: u32, flags: u32, padding: u32,
    }
    /// Answer to GETLK.
    LockOut { start: u64, end: u64, kind: u32, pid: u32 }
    /// ACCESS.
    AccessIn { mask: u32, padding: u32 }
    /// INTERRUPT.
    InterruptIn { unique: u64 }
    /// IOCTL, before data.
    IoctlIn { fh: u64, flags: u32, cmd: u32, arg: u64, in_size: u32, out_size: u32 }
    /// Answer to IOCTL, before data.
    IoctlOut { result: i32, flags: u32, in_iovs: u32, out_iovs: u32 }
    /// POLL.
    PollIn { fh: u64, kernel_handle: u64, flags: u32, events: u32 }
    /// FALLOCATE.
    FAllocateIn { fh: u64, offset: u64, len: u64, mode: u32, padding: u32 }
    /// LSEEK.
    LSeekIn { fh: u64, offset: u64, whence: u32, padding: u32 }
    /// Answer to LSEEK.
    LSeekOut { offset: u64 }
    /// COPY_FILE_RANGE.
    CopyFileRangeIn {
        fh: u64, offset: u64, to_node: u64, to_fh: u64, to_offset: u64, len: u64, flags: u64,
    }
    /// In a list, before the name; padded with zeros to 8 bytes.
    DirEntOut { ino: u64, cookie: u64, name_len: u32, kind: u32 }
    /// Drops what is cached of a file; `len` 0: all after `offset`; `offset` below 0: no data.
    InvalInodeOut { node: u64, offset: i64, len: i64 }
    /// Drops a name, which follows with a NUL.
    InvalEntryOut { parent: u64, name_len: u32, flags: u32 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_have_the_sizes_of_the_protocol() {
        assert_eq!(size_of::<InHeader>(), 40);
        assert_eq!(size_of::<OutHeader>(), 16);
        assert_eq!(size_of::<InitOut>(), 64);
        assert_eq!(size_of::<AttrOut>(), 88);
        assert_eq!(size_of::<AttrReply>(), 104);
        assert_eq!(size_of::<EntryOut>(), 128);
        assert_eq!(size_of::<SetAttrIn>(), 88);
        assert_eq!(size_of::<WriteIn>(), 40);
        assert_eq!(size_of::<StatFsOut>(), 80);
        assert_eq!(size_of::<LockIn>(), 48);
        assert_eq!(size_of::<DirEntOut>(), 24);
        assert_eq!(size_of::<CopyFileRangeIn>(), 56);
    }
}
