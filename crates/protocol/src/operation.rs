//! The operations of v1 (names after DAFS 1.0): arguments and results.
//!
//! A message is a *chain*: a list of operations that run in order and stop at the first that
//! fails; each has a result. An operation may take its handle or state from the one before it
//! ([`FileHandle::PREVIOUS`], [`StateId::PREVIOUS`]). Bulk data does not stand here: the data of
//! WRITE, APPEND, CREATE (symlink target) and SETXATTR follow each other in the request's data
//! segment, those of READ, READDIR, READLINK, GETXATTR, LISTXATTR, EXTENTS, CACHE_QUERY and REFS_GET
//! in the reply's.

use std::fmt;

use smallvec::{SmallVec, smallvec};

use crate::attr::{Attr, FileKind, FsAttr, SetAttr};
use crate::cache::{CacheHint, CacheInfo};
use crate::handle::{CredHandle, FileHandle, SessionId, SlotId, StateId, WriteVerifier};
use crate::lock::{LockRange, LockRequest, LockTicket, Locked, OwnerKey};
use crate::reference::{NamedReference, REFERENCE_BYTES, ReferenceInfo};
use crate::status::Status;

/// Bytes of a name.
pub const NAME_BYTES_MAX: usize = 255;
/// Bytes of a path in one LOOKUP or OPEN; clients walk longer ones in steps.
pub const PATH_BYTES_MAX: usize = 640;
/// Bytes of a symlink's target.
pub const SYMLINK_BYTES_MAX: usize = 4095;
/// Bytes of an extended attribute's value.
pub const XATTR_BYTES_MAX: usize = 65_536;
/// Operations of a chain.
pub const CHAIN_MAX: usize = 16;
/// Extents of one READ or WRITE.
pub const EXTENTS_MAX: usize = 16;
/// Bytes of data of one chain, each way.
pub const DATA_BYTES_MAX: usize = 4 << 20;
/// Pieces of all extents of one READ or WRITE.
pub const PIECES_MAX: u64 = 65_536;
/// Bytes of a request without its data.
pub const HEADER_BYTES_MAX: usize = 1024;
/// Bytes of a reply without its data.
pub const REPLY_BYTES_MAX: usize = 4096;

/// A part of a file: `count` pieces of `len` bytes, `stride` bytes from start to start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Where the first piece starts.
    pub offset: u64,
    /// Bytes of a piece.
    pub len: u32,
    /// Pieces, at least 1.
    pub count: u32,
    /// From the start of a piece to that of the next; not used when `count` is 1.
    pub stride: u64,
}

impl Extent {
    /// One piece.
    pub fn one(offset: u64, len: u32) -> Extent {
        Extent { offset, len, count: 1, stride: 0 }
    }
    /// Bytes of all pieces; `None` where that overflows.
    pub fn bytes(&self) -> Option<u64> {
        u64::from(self.len).checked_mul(u64::from(self.count))
    }
}

/// How OPEN treats what is not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum CreateMode {
    /// Fails with NOENT.
    No = 0,
    /// Makes it.
    Unchecked = 1,
    /// Makes it, fails with EXIST where it is there.
    Exclusive = 2,
}

/// Arguments of OPEN.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenFlags {
    /// Reading is wanted.
    pub read: bool,
    /// Writing is wanted.
    pub write: bool,
    /// Make it.
    pub create: CreateMode,
    /// Empty it.
    pub truncate: bool,
    /// All writes go to the end.
    pub append: bool,
    /// Do not follow a symlink in the last place.
    pub no_follow: bool,
    /// A new regular file without a name, on the file system of the directory at `path`; ends
    /// with its last close unless LINK gives it a name. With [`CreateMode::Exclusive`] it never
    /// gets one, with [`CreateMode::Unchecked`] it may.
    pub unlinked: bool,
    /// It was open in a session that ended: its owner needs no right that its mode gives. (Who makes
    /// a file may write it, whatever its mode.) Makes and empties nothing.
    pub again: bool,
}

/// How durable a write must be before it is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Stability {
    /// In the server's memory.
    Unstable = 0,
    /// Data is on disk, with the size.
    Data = 1,
    /// Data and all attributes are on disk.
    File = 2,
}

/// How far COMMIT goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum CommitLevel {
    /// Handed to the file system of the server, as CLOSE does: its local programs see the bytes,
    /// and late errors are told. Not durable: unstable writes stay uncommitted.
    Flush = 0,
    /// Data is on disk, with the size.
    Data = 1,
    /// Data and all attributes are on disk.
    File = 2,
}

/// What ACCESS asks: read 4, write 2, execute or search 1.
pub type AccessMask = u8;

/// A request's operation. Lifetimes are those of the message.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs)] // the fields' types say it; the operations are documented
pub enum Operation<'a> {
    /// Nothing: a ping; renews the lease as any message does.
    Null,
    /// Root of the export `name` (empty: the only or first one); with attributes.
    GetRoot { export: &'a [u8] },
    /// Walks `path` (components with `/`, no `..` above `dir`); answers handle and attributes.
    Lookup { dir: FileHandle, path: &'a [u8], no_follow: bool },
    /// The parent directory, not above the export's root.
    LookupParent { handle: FileHandle },
    /// Opens, or makes, a regular file. Empty `path`: opens `dir` itself. `mode` as
    /// [`mode_with_umask`](crate::mode_with_umask) gives it.
    Open { dir: FileHandle, path: &'a [u8], flags: OpenFlags, mode: u32, cache: CacheHint },
    /// Ends an open. The last close of a file flushes it: local processes then see the bytes,
    /// and late errors are told.
    Close { state: StateId },
    /// Gives up reading or writing.
    OpenDowngrade { state: StateId, read: bool, write: bool },
    /// Makes a directory, symlink (target in the data), device, fifo or socket. `mode` as of OPEN.
    Create {
        dir: FileHandle,
        name: &'a [u8],
        kind: FileKind,
        mode: u32,
        rdev: u64,
        target_bytes: u32,
    },
    /// A hard link to `handle`; with a state other than NONE to that open file, which may have no
    /// name (the handle is then not used).
    Link { handle: FileHandle, state: StateId, dir: FileHandle, name: &'a [u8] },
    /// Removes a name; `directory` must be true for a directory and false for all else. Answers
    /// the attributes that the object had before, if that was its last name.
    Remove { dir: FileHandle, name: &'a [u8], directory: bool },
    /// Renames; replaces what is there unless `no_replace`; `exchange` swaps the two. Answers
    /// the attributes that what was replaced had before, if that was its last name. `whiteout`
    /// leaves a device 0:0 under the old name, as layers of overlay file systems have it; not with
    /// `exchange`.
    Rename {
        from_dir: FileHandle,
        from: &'a [u8],
        to_dir: FileHandle,
        to: &'a [u8],
        no_replace: bool,
        exchange: bool,
        whiteout: bool,
    },
    /// Entries after `cookie` (0: from the start) as reply data; see `encode_dir_entry`.
    ReadDir { dir: FileHandle, cookie: u64, bytes_max: u32, attributes: bool, handles: bool },
    /// A symlink's target as reply data.
    ReadLink { handle: FileHandle },
    /// Attributes, of `handle`; with a state other than NONE of that open file.
    GetAttr { handle: FileHandle, state: StateId },
    /// Changes attributes, all or none where the system can; answers the new ones.
    SetAttr { handle: FileHandle, state: StateId, set: SetAttr },
    /// Which of `mask` the caller may do.
    Access { handle: FileHandle, mask: AccessMask },
    /// Space and limits.
    StatFs { handle: FileHandle },
    /// Value as reply data. `size_max` 0 asks for the size only.
    GetXattr { handle: FileHandle, name: &'a [u8], size_max: u32 },
    /// Value in the data. `flags`: 1 create only, 2 replace only.
    SetXattr { handle: FileHandle, name: &'a [u8], value_bytes: u32, flags: u8 },
    /// Names, each ended by NUL, as reply data. `size_max` 0 asks for the size only.
    ListXattr { handle: FileHandle, size_max: u32 },
    /// Removes one.
    RemoveXattr { handle: FileHandle, name: &'a [u8] },
    /// Data of the extents, one after the other, as reply data; shorter at the end of file.
    Read { state: StateId, extents: ExtentList },
    /// Data in the request's data, for the extents one after the other. `within`: what lies beyond
    /// the end of the file then is left out, and counts as written.
    Write { state: StateId, extents: ExtentList, stability: Stability, within: bool },
    /// Writes at the end, atomically; answers the offset.
    Append { state: StateId, bytes: u32, stability: Stability },
    /// Makes `offset..offset+len` (len 0: all) as safe as `level` says; answers the write verifier.
    Commit { state: StateId, offset: u64, len: u64, level: CommitLevel },
    /// Everything that anybody wrote to this export, on disk.
    SyncFs { handle: FileHandle },
    /// The names in a directory on disk, as fsync(2) of it does.
    SyncDir { dir: FileHandle },
    /// `mode` as fallocate(2): 0 allocate, 1 keep size, 3 punch hole, 0x10 zero range.
    Fallocate { state: StateId, mode: u32, offset: u64, len: u64 },
    /// The next data (`hole` false) or hole at or after `offset`.
    Seek { state: StateId, offset: u64, hole: bool },
    /// Future use of a range; `advice` as posix_fadvise (0 normal … 3 willneed, 4 dontneed). What
    /// is not 0 in `cache` is a wish for the whole file. Answers what was taken.
    Advise { state: StateId, offset: u64, len: u64, advice: u8, cache: CacheHint },
    /// What the cache holds of a file from `offset` on (`len` 0: to the end); the ranges as reply
    /// data, see [`encode_cached_range`](crate::encode_cached_range). Of `handle`, which the caller
    /// must have the right to read; with a state other than NONE of that open file.
    CacheQuery { handle: FileHandle, state: StateId, offset: u64, len: u64, bytes_max: u32 },
    /// Which slots of the cache hold `count` blocks of 4 KiB of an open file, at most [`REFERENCES_MAX`], from
    /// block `first` on, so that the caller reads them by himself; the slots as reply data, see
    /// [`encode_references`](crate::encode_references).
    ///
    /// What the caller reads so he tells by the bits of `accessed`, a key (rkey) of memory of his, or 0: of slot `n` bit
    /// `n % 64` of word `n / 64`. The server clears them.
    ///
    /// [`REFERENCES_MAX`]: crate::REFERENCES_MAX
    RefsGet { state: StateId, first: u64, count: u32, accessed: u64 },
    /// Allocated ranges that touch `offset..offset+len`, in order, as reply data; see
    /// [`encode_file_extent`](crate::encode_file_extent). `end`: none follows.
    Extents { state: StateId, offset: u64, len: u64, bytes_max: u32 },
    /// Copies within the server, from an open file to an open file, as far as one call may take
    /// (the ranges may not overlap in one file). Fewer bytes than `len`: go on from there; 0: the
    /// source ends.
    CopyRange { from: StateId, from_offset: u64, to: StateId, to_offset: u64, len: u64 },
    /// Shares the blocks of the range (len 0: to the end), all or nothing.
    CloneRange { from: StateId, from_offset: u64, to: StateId, to_offset: u64, len: u64 },
    /// Locks a range, or the whole file. Answers GRANTED, WAITING with a ticket (with `wait`, or
    /// while the server waits for clients to reclaim), or fails with AGAIN or DEADLOCK. The end of
    /// a wait is told by a callback. `reclaim`: the lock was held when the server restarted.
    Lock { state: StateId, lock: LockRequest, wait: bool, reclaim: bool },
    /// The lock that stands against this one, if any.
    LockTest { state: StateId, lock: LockRequest },
    /// Gives a range back, also a part of what was locked.
    Unlock { state: StateId, owner: OwnerKey, range: LockRange },
    /// Leaves the queue. NOENT: it is not waiting any more, what became of it is told by the
    /// callback.
    LockCancel { ticket: LockTicket },
    /// Gives back all locks of an owner on all files, and ends its waits.
    OwnerRelease { owner: OwnerKey },
    /// This client has reclaimed what it wants to.
    ReclaimComplete,
    /// Makes a credential of another user; only for root peers.
    CredRegister { uid: u32, gid: u32, groups: &'a [u8] },
    /// Forgets it.
    CredRelease { cred: CredHandle },
    /// The server's counters for this session, and of the process.
    SessionStats,
    /// Ends the session: all opens are closed.
    SessionDestroy,
    /// What became of the request `sequence` on `slot` of a session that this client had before,
    /// and that ended without it. To everybody else all of them are unknown.
    SlotQuery { session: SessionId, slot: SlotId, sequence: u32 },
    /// One of another version, which this end does not have: answered by
    /// [`NotSupp`](crate::Status::NotSupp) where its turn comes. It brings and asks for no data.
    Unknown {
        /// Its number.
        opcode: u16,
        /// What it says.
        body: &'a [u8],
    },
}

/// Up to [`EXTENTS_MAX`] extents; a single one, which is the rule, in place.
#[derive(Clone, PartialEq, Eq)]
pub struct ExtentList(SmallVec<[Extent; 1]>);

impl fmt::Debug for ExtentList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.as_slice()).finish()
    }
}

impl ExtentList {
    /// `None` when there are too many, or none.
    pub fn new(extents: &[Extent]) -> Option<ExtentList> {
        let fits = !extents.is_empty() && extents.len() <= EXTENTS_MAX;
        fits.then(|| ExtentList(extents.into()))
    }
    /// One piece.
    pub fn one(offset: u64, len: u32) -> ExtentList {
        ExtentList(smallvec![Extent::one(offset, len)])
    }
    /// None yet.
    pub(crate) fn empty() -> ExtentList {
        ExtentList(SmallVec::new())
    }
    /// False when it is full.
    pub(crate) fn push(&mut self, extent: Extent) -> bool {
        if self.0.len() == EXTENTS_MAX {
            return false;
        }
        self.0.push(extent);
        true
    }
    /// The extents.
    pub fn as_slice(&self) -> &[Extent] {
        &self.0
    }
    /// Bytes in all; `None` where that overflows.
    pub fn bytes(&self) -> Option<u64> {
        match self.as_slice() {
            [one] => one.bytes(),
            list => list.iter().try_fold(0u64, |sum, e| sum.checked_add(e.bytes()?)),
        }
    }
}

/// What an operation answers when it succeeded.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum Outcome {
    /// Nothing to say.
    Done,
    /// GetRoot, Lookup, LookupParent, Create, Link.
    Found { handle: FileHandle, attr: Attr },
    /// Open.
    Opened { handle: FileHandle, state: StateId, attr: Attr, created: bool },
    /// Close: attributes after the flush.
    Closed { attr: Attr, verifier: WriteVerifier },
    /// GetAttr, SetAttr, Remove, Rename.
    Attributes { attr: Attr },
    /// Access.
    Granted { mask: AccessMask },
    /// StatFs.
    FileSystem { attr: FsAttr },
    /// ReadDir, ReadLink, GetXattr, ListXattr, Extents: bytes of this operation's part of the reply data
    /// (or the size asked for); `end`: nothing follows.
    Data { bytes: u32, end: bool },
    /// Read.
    Read { bytes: u32, end_of_file: bool },
    /// Write, Append: where it went (append), how stable it is.
    Written { bytes: u32, offset: u64, stability: Stability, verifier: WriteVerifier },
    /// Commit, SyncFs.
    Committed { verifier: WriteVerifier },
    /// Seek; `None`: no data from there to the end.
    Offset { offset: Option<u64> },
    /// CredRegister.
    Credential { cred: CredHandle },
    /// CopyRange.
    Copied { bytes: u64 },
    /// Lock.
    Lock(Locked),
    /// LockTest: what stands against it, and `true` where its owner is of this very client.
    Conflict { held: Option<(LockRequest, bool)> },
    /// SessionStats.
    Stats(Box<SessionStats>),
    /// SlotQuery.
    RequestOutcome(RequestOutcome),
    /// Advise: with willneed the bytes from the start of the range on that are cached, or being read
    /// in; with dontneed those dropped; else 0. `cache`: what holds for the file now.
    Advised { bytes: u64, cache: CacheHint },
    /// CacheQuery.
    Cached(CacheInfo),
    /// RefsGet.
    References(ReferenceInfo),
    /// RefsGet, where the network takes names.
    Named(NamedReference),
}

impl Outcome {
    /// The attributes in it.
    pub fn attr_mut(&mut self) -> Option<&mut Attr> {
        match self {
            Outcome::Found { attr, .. }
            | Outcome::Opened { attr, .. }
            | Outcome::Closed { attr, .. }
            | Outcome::Attributes { attr } => Some(attr),
            _ => None,
        }
    }
}

/// What became of a request that has changes which are [logged](Operation::is_logged).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestOutcome {
    /// Nobody knows.
    Unknown,
    /// None of its changes was begun, and none will be.
    NotBegun,
    /// A change was begun. Whether it was done is not known.
    Begun,
    /// It ran to its end.
    Done {
        /// Operations that succeeded.
        operations: u16,
        /// The error of the one after them, where it failed.
        status: Result<(), Status>,
        /// Of the last noted operation that succeeded: the offset of APPEND, else the inode number
        /// of the object that it made, opened or changed; 0 where it answers neither.
        value: u64,
        /// OPEN made the file.
        created: bool,
    },
}

/// One operation's result.
pub type OpResult = Result<Outcome, Status>;

/// Counters of the server, cumulative. `session_*` are of this session, the rest of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(missing_docs)]
pub struct SessionStats {
    pub session_requests: u64,
    pub session_replays: u64,
    pub session_bytes_read: u64,
    pub session_bytes_written: u64,
    pub cpu_ns: u64,
    pub system_calls: u64,
    pub copied_bytes: u64,
    pub registrations: u64,
    pub resident_bytes: u64,
    pub arena_bytes: u64,
    pub dirty_bytes: u64,
    pub cache_hits: u64,
    pub cache_misses: u64,
    pub sessions: u64,
    pub opens: u64,
}

impl Operation<'_> {
    /// True for an operation whose result is kept in the slot, so that a resent request is
    /// never done twice. The others are done again.
    pub fn is_cached(&self) -> bool {
        use Operation as O;
        match self {
            O::Open { .. } | O::Close { .. } | O::OpenDowngrade { .. } | O::Create { .. } => true,
            O::Link { .. } | O::Remove { .. } | O::Rename { .. } | O::SetAttr { .. } => true,
            O::SetXattr { .. } | O::RemoveXattr { .. } | O::Write { .. } => true,
            O::Append { .. } | O::Fallocate { .. } => true,
            O::CopyRange { .. } | O::CloneRange { .. } => true,
            O::Lock { .. } | O::Unlock { .. } | O::LockCancel { .. } => true,
            O::OwnerRelease { .. } | O::ReclaimComplete => true,
            // Tells of late errors, once; and a chain may have closed its file since.
            O::Commit { .. } | O::SyncFs { .. } | O::SyncDir { .. } => true,
            O::CredRegister { .. } | O::CredRelease { .. } | O::SessionDestroy => true,
            O::Null | O::GetRoot { .. } | O::Lookup { .. } | O::LookupParent { .. } => false,
            O::ReadDir { .. } | O::ReadLink { .. } | O::GetAttr { .. } => false,
            O::Access { .. } | O::StatFs { .. } | O::GetXattr { .. } => false,
            O::ListXattr { .. } | O::Read { .. } => false,
            O::Extents { .. } | O::LockTest { .. } | O::CacheQuery { .. } => false,
            O::RefsGet { .. } => false,
            O::Seek { .. } | O::Advise { .. } | O::SessionStats => false,
            O::SlotQuery { .. } | O::Unknown { .. } => false,
        }
    }

    /// True for a change that is not to be done again in another session, where doing it twice is
    /// not as good as once. A server notes what becomes of it, for
    /// [`SlotQuery`](Operation::SlotQuery).
    pub fn is_logged(&self) -> bool {
        use Operation as O;
        match self {
            // A file without a name goes with the session that made it.
            O::Open { flags, .. } => {
                !flags.unlinked && (flags.truncate || flags.create != CreateMode::No)
            }
            O::Create { .. } | O::Link { .. } | O::Remove { .. } | O::Rename { .. } => true,
            O::SetAttr { .. } | O::SetXattr { .. } | O::RemoveXattr { .. } => true,
            O::Append { .. } | O::Fallocate { .. } => true,
            _ => false,
        }
    }

    /// Bytes of the request's data segment that belong to this operation.
    pub fn request_data_bytes(&self) -> Option<u64> {
        match self {
            Operation::Write { extents, .. } => extents.bytes(),
            Operation::Append { bytes, .. } => Some(u64::from(*bytes)),
            Operation::SetXattr { value_bytes, .. } => Some(u64::from(*value_bytes)),
            Operation::Create { target_bytes, .. } => Some(u64::from(*target_bytes)),
            _ => Some(0),
        }
    }

    /// The most bytes of the reply's data segment that this operation may fill.
    pub fn reply_data_bytes(&self) -> Option<u64> {
        match self {
            Operation::Read { extents, .. } => extents.bytes(),
            Operation::ReadDir { bytes_max, .. }
            | Operation::Extents { bytes_max, .. }
            | Operation::CacheQuery { bytes_max, .. } => Some(u64::from(*bytes_max)),
            Operation::RefsGet { count, .. } => Some(u64::from(*count) * REFERENCE_BYTES as u64),
            Operation::ReadLink { .. } => Some(SYMLINK_BYTES_MAX as u64),
            Operation::GetXattr { size_max, .. } => Some(u64::from(*size_max)),
            Operation::ListXattr { size_max, .. } => Some(u64::from(*size_max)),
            _ => Some(0),
        }
    }
}
