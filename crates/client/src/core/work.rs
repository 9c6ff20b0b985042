//! What the core can be asked to do: the owned, transport-free form of every call.

use std::sync::Arc;

use dafs_fabric::{PostedBuffer, SgList, Span};
use dafs_protocol::{
    AccessMask, CacheHint, CommitLevel, CredHandle, ExtentList, FileHandle, FileKind, Identity,
    LockRange, LockRequest, LockTicket, OwnerKey, REFERENCE_BYTES, SYMLINK_BYTES_MAX, SetAttr,
    Stability, StateId, XATTR_BYTES_MAX,
};

use super::give_back::GiveBack;
use super::ids::{FileKey, PastRequest};
use super::open_options::OpenOptions;
use super::place::{Place, Put};

/// The memory of a call's data.
#[derive(Debug)]
pub enum Memory {
    /// The call has no data, or small data of its own.
    None,
    /// Given with the call, comes back with the answer.
    Buffer(PostedBuffer),
    /// Lent by a caller who waits until no span is left.
    Span(Span),
}

impl Memory {
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.span().map_or(0, Span::len)
    }

    #[inline]
    pub(crate) fn span(&self) -> Option<&Span> {
        match self {
            Memory::None => None,
            Memory::Buffer(buffer) => Some(buffer.span()),
            Memory::Span(span) => Some(span),
        }
    }

    /// The first `len` bytes, at most all.
    pub(crate) fn list(&self, len: usize) -> SgList {
        let mut list = SgList::new();
        if let Some(span) = self.span()
            && len > 0
        {
            list.push(span.part(0, len.min(span.len())));
        }
        list
    }
}

/// Bytes of a batch of extents.
const EXTENTS_BYTES: usize = dafs_protocol::FILE_EXTENT_BYTES * 2048;

/// One thing to do.
#[derive(Debug)]
#[non_exhaustive]
#[allow(missing_docs, reason = "as the operations of the protocol")]
pub enum Work {
    Null,
    Stats,
    Sync,
    StatFs {
        place: Place,
    },
    SyncDir {
        place: Place,
    },
    Stat {
        place: Place,
        no_follow: bool,
    },
    Access {
        place: Place,
        mask: AccessMask,
    },
    SetAttr {
        place: Place,
        set: SetAttr,
        no_follow: bool,
    },
    ReadLink {
        place: Place,
    },
    /// The object itself, with its handle.
    Find {
        place: Place,
    },
    Parent {
        handle: FileHandle,
    },
    ReadDir {
        place: Place,
        cookie: u64,
        bytes: u32,
        attributes: bool,
        handles: bool,
    },
    GetXattr {
        place: Place,
        name: Vec<u8>,
        size_only: bool,
    },
    ListXattr {
        place: Place,
        size_only: bool,
    },
    SetXattr {
        place: Place,
        name: Vec<u8>,
        value: Vec<u8>,
        flags: u8,
    },
    RemoveXattr {
        place: Place,
        name: Vec<u8>,
    },
    Make {
        place: Place,
        kind: FileKind,
        mode: u32,
        rdev: u64,
        target: Vec<u8>,
    },
    Remove {
        place: Place,
        directory: bool,
    },
    Link {
        from: Place,
        to: Place,
        from_handle: Option<FileHandle>,
    },
    Rename {
        from: Place,
        to: Place,
        from_dir: Option<FileHandle>,
        no_replace: bool,
        exchange: bool,
        /// Something is left under the old name that hides it in a lower layer of an overlay.
        whiteout: bool,
    },
    Open {
        place: Place,
        options: OpenOptions,
    },
    Get {
        place: Place,
        len: u32,
    },
    Put(Box<Put>),
    Read {
        file: FileKey,
        offset: u64,
        len: u32,
    },
    /// As `Read`, of data that the server may lend.
    Lend {
        file: FileKey,
        offset: u64,
        len: u32,
    },
    ReadList {
        file: FileKey,
        extents: ExtentList,
        len: u32,
    },
    Write {
        file: FileKey,
        offset: u64,
        len: u32,
        stability: Stability,
        /// Nothing beyond the end of the file.
        within: bool,
    },
    /// Writes, and then flushes the file.
    WriteFlush {
        file: FileKey,
        offset: u64,
        len: u32,
    },
    WriteList {
        file: FileKey,
        extents: ExtentList,
        len: u32,
        stability: Stability,
    },
    Append {
        file: FileKey,
        len: u32,
        stability: Stability,
    },
    Commit {
        file: FileKey,
        offset: u64,
        len: u64,
        level: CommitLevel,
    },
    FileAttr {
        file: FileKey,
    },
    FileSetAttr {
        file: FileKey,
        set: SetAttr,
    },
    /// As `FileSetAttr`, but under the rights of who calls, and with `handle` those of a call by
    /// handle. `flush`: then flushes the file. (The server flushes before it sets anything; this
    /// tells of it.)
    SetAttrOpen {
        file: FileKey,
        handle: Option<FileHandle>,
        set: SetAttr,
        flush: bool,
    },
    Fallocate {
        file: FileKey,
        mode: u32,
        offset: u64,
        len: u64,
    },
    Seek {
        file: FileKey,
        offset: u64,
        hole: bool,
    },
    Advise {
        file: FileKey,
        offset: u64,
        len: u64,
        advice: u8,
        cache: CacheHint,
    },
    CacheQuery {
        file: FileKey,
        offset: u64,
        len: u64,
    },
    /// Where the server's cache has so many blocks.
    References {
        file: FileKey,
        first: u64,
        count: u32,
        /// The key of the bits by which this side says what it reads then; 0: there are none.
        accessed: u64,
    },
    /// Of a file that need not be open.
    CacheQueryAt {
        place: Place,
        offset: u64,
        len: u64,
    },
    LinkFile {
        file: FileKey,
        to: Place,
    },
    Extents {
        file: FileKey,
        offset: u64,
        len: u64,
    },
    CopyRange {
        file: FileKey,
        offset: u64,
        to: FileKey,
        to_offset: u64,
        len: u64,
    },
    CloneRange {
        file: FileKey,
        offset: u64,
        to: FileKey,
        to_offset: u64,
        len: u64,
    },
    /// Answered when the lock is held.
    Lock {
        file: FileKey,
        lock: LockRequest,
        wait: bool,
    },
    Unlock {
        file: FileKey,
        owner: OwnerKey,
        range: LockRange,
    },
    LockTest {
        file: FileKey,
        lock: LockRequest,
    },
    OwnerRelease {
        owner: OwnerKey,
    },
    Close {
        file: FileKey,
    },
    /// The core's own: what becomes of a lock that nobody wants any more.
    GiveBack {
        file: FileKey,
        steps: Vec<GiveBack>,
    },
    /// The core's own: leaves a queue.
    CancelLock {
        ticket: LockTicket,
    },
    /// The core's own: a lock of the session before.
    Reclaim {
        file: FileKey,
        lock: LockRequest,
    },
    /// The core's own: nothing more is reclaimed.
    ReclaimComplete,
    /// The core's own: the export's root.
    Root,
    /// The core's own: opens a file again in a new session, by handle or by path.
    Reopen {
        file: FileKey,
        by_path: bool,
    },
    /// The core's own: makes a credential of a user.
    Register {
        user: Arc<Identity>,
        groups: Vec<u8>,
    },
    /// The core's own: forgets a credential.
    Unregister {
        cred: CredHandle,
    },
    /// The core's own: writes again what is kept.
    Rewrite {
        file: FileKey,
        offset: u64,
        len: u32,
    },
    /// The core's own: what became of a request of a session that was lost.
    SlotQuery(PastRequest),
    /// The core's own: ends an open that belongs to no file.
    CloseState {
        state: StateId,
    },
    /// The core's own: ends the session.
    Destroy,
}

/// What has to be found before the work itself can be asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Walk so many bytes of the work's first or second place.
    Walk { second: bool, bytes: usize },
    /// Find the handle of the first place: the object itself (link), else its directory.
    From,
}

impl Work {
    /// The file that it is about.
    pub(crate) fn file(&self) -> Option<FileKey> {
        match self {
            Work::Read { file, .. } | Work::ReadList { file, .. } | Work::Write { file, .. } => {
                Some(*file)
            }
            Work::WriteList { file, .. } | Work::Append { file, .. } => Some(*file),
            Work::Lend { file, .. } => Some(*file),
            Work::WriteFlush { file, .. } => Some(*file),
            Work::Commit { file, .. } | Work::FileAttr { file } => Some(*file),
            Work::FileSetAttr { file, .. } | Work::Fallocate { file, .. } => Some(*file),
            Work::SetAttrOpen { file, .. } => Some(*file),
            Work::Seek { file, .. } | Work::Advise { file, .. } | Work::Close { file } => {
                Some(*file)
            }
            Work::LinkFile { file, .. } | Work::Extents { file, .. } => Some(*file),
            Work::CacheQuery { file, .. } | Work::References { file, .. } => Some(*file),
            Work::CopyRange { file, .. } | Work::CloneRange { file, .. } => Some(*file),
            Work::Lock { file, .. } | Work::Unlock { file, .. } => Some(*file),
            Work::LockTest { file, .. } | Work::GiveBack { file, .. } => Some(*file),
            _ => None,
        }
    }

    /// The file that it writes to, beside the one that it is about.
    pub(crate) fn target(&self) -> Option<FileKey> {
        match self {
            Work::CopyRange { to, .. } | Work::CloneRange { to, .. } => Some(*to),
            _ => None,
        }
    }

    /// The open file whose data it changes. (A new size is set for who asks.)
    pub(crate) fn changed_data(&self) -> Option<FileKey> {
        match self {
            Work::Write { file, .. }
            | Work::WriteFlush { file, .. }
            | Work::WriteList { file, .. }
            | Work::Append { file, .. }
            | Work::Rewrite { file, .. }
            | Work::Fallocate { file, .. } => Some(*file),
            _ => self.target(),
        }
    }

    /// It may have [`dirs_to_look_at`](Self::dirs_to_look_at).
    pub(crate) fn changes_names(&self) -> bool {
        use Work::{Link, LinkFile, Make, Open, Remove, Rename};
        matches!(
            self,
            Open { .. }
                | Make { .. }
                | Remove { .. }
                | Link { .. }
                | LinkFile { .. }
                | Rename { .. }
        )
    }

    /// The directories whose attributes are asked for after the change.
    pub(crate) fn dirs_to_look_at(&self, root: FileHandle) -> [Option<FileHandle>; 2] {
        let dir = |place: &Place| place.dir_to_look_at(root);
        match self {
            Work::Open { place, .. } | Work::Make { place, .. } | Work::Remove { place, .. } => {
                [dir(place), None]
            }
            Work::Link { to, .. } | Work::LinkFile { to, .. } => [dir(to), None],
            Work::Rename { from, to, .. } => {
                [dir(from), dir(to).filter(|to| Some(*to) != dir(from))]
            }
            _ => [None, None],
        }
    }

    /// The file that is flushed beside it.
    pub(crate) fn file_to_flush(&self) -> Option<FileKey> {
        match self {
            Work::SetAttrOpen { file, flush: true, .. } | Work::WriteFlush { file, .. } => {
                Some(*file)
            }
            _ => None,
        }
    }

    /// The file of which it makes kept writes safe, or ends the keeping.
    pub(crate) fn flushes(&self) -> Option<FileKey> {
        match self {
            Work::Commit { file, offset: 0, len: 0, .. } | Work::Close { file } => Some(*file),
            Work::CopyRange { to, .. } | Work::CloneRange { to, .. } => Some(*to),
            other => other.file_to_flush(),
        }
    }

    /// What is asked for beside it may fail, and that matters.
    pub(crate) fn asks_for_more(&self) -> bool {
        self.file_to_flush().is_some()
    }

    /// For whom it acts is said with it, though it is about an open file.
    pub(crate) fn is_by_caller(&self) -> bool {
        matches!(self, Work::SetAttrOpen { .. })
    }

    /// May be done again in another session when its answer was lost: doing it twice is as
    /// good as once. Writes at an offset are: while they are not acknowledged nobody can rely
    /// on their order.
    pub(crate) fn is_repeatable(&self) -> bool {
        match self {
            Work::Null | Work::Stats | Work::Sync | Work::StatFs { .. } => true,
            Work::SyncDir { .. } => true,
            Work::Stat { .. } | Work::Access { .. } | Work::ReadLink { .. } => true,
            Work::ReadDir { .. } | Work::GetXattr { .. } | Work::ListXattr { .. } => true,
            Work::Get { .. } | Work::Read { .. } | Work::ReadList { .. } => true,
            Work::Lend { .. } => true,
            Work::Write { .. } | Work::WriteList { .. } | Work::Commit { .. } => true,
            Work::WriteFlush { .. } => true,
            Work::FileAttr { .. } | Work::Seek { .. } | Work::Advise { .. } => true,
            Work::Find { .. } | Work::Parent { .. } | Work::Extents { .. } => true,
            Work::CacheQuery { .. } | Work::CacheQueryAt { .. } | Work::References { .. } => true,
            Work::CopyRange { .. } | Work::CloneRange { .. } => true,
            // For the same owner it is the same lock.
            Work::Lock { .. } | Work::Unlock { .. } | Work::LockTest { .. } => true,
            Work::OwnerRelease { .. } => true,
            // The open of the new session is what gets closed.
            Work::Close { .. } => true,
            // A file without a name goes with the session that made it.
            Work::Open { options, .. } => {
                options.unlinked || (!options.create && !options.truncate)
            }
            _ => false,
        }
    }

    /// The core's own business: of one session, not to be carried to the next.
    pub(crate) fn is_internal(&self) -> bool {
        let session = matches!(
            self,
            Work::Root
                | Work::Reopen { .. }
                | Work::Rewrite { .. }
                | Work::SlotQuery(_)
                | Work::CloseState { .. }
                | Work::Destroy
        );
        let reclaims = matches!(self, Work::Reclaim { .. } | Work::ReclaimComplete);
        session
            || reclaims
            || matches!(self, Work::Register { .. } | Work::Unregister { .. })
            || matches!(self, Work::CancelLock { .. })
    }

    /// Bytes of the request's data, and of room for the reply's.
    #[inline]
    pub(crate) fn bytes(&self) -> (usize, usize) {
        match self {
            Work::Read { len, .. } => (0, *len as usize),
            Work::Write { len, .. } => (*len as usize, 0),
            other => (other.request_bytes(), other.reply_bytes()),
        }
    }

    /// Bytes of the request's data.
    pub(crate) fn request_bytes(&self) -> usize {
        match self {
            Work::Write { len, .. } | Work::WriteList { len, .. } | Work::Append { len, .. } => {
                *len as usize
            }
            Work::Rewrite { len, .. } | Work::WriteFlush { len, .. } => *len as usize,
            Work::Put(put) if put.made.is_none() => put.len as usize,
            Work::SetXattr { value, .. } => value.len(),
            Work::Make { target, .. } => target.len(),
            _ => 0,
        }
    }

    /// Bytes of room for the reply's data.
    pub(crate) fn reply_bytes(&self) -> usize {
        match self {
            Work::Read { len, .. } | Work::ReadList { len, .. } | Work::Get { len, .. } => {
                *len as usize
            }
            Work::Lend { len, .. } => *len as usize,
            Work::ReadDir { bytes, .. } => *bytes as usize,
            Work::Extents { .. } | Work::CacheQuery { .. } | Work::CacheQueryAt { .. } => {
                EXTENTS_BYTES
            }
            Work::References { count, .. } => *count as usize * REFERENCE_BYTES,
            Work::ReadLink { .. } => SYMLINK_BYTES_MAX,
            Work::GetXattr { size_only: false, .. } | Work::ListXattr { size_only: false, .. } => {
                XATTR_BYTES_MAX
            }
            _ => 0,
        }
    }

    /// Its data is small, owned by the core, and not the caller's memory.
    pub(crate) fn uses_scratch(&self) -> bool {
        match self {
            Work::SetXattr { .. } | Work::Make { .. } => self.request_bytes() > 0,
            Work::ReadDir { .. } | Work::ReadLink { .. } | Work::Extents { .. } => true,
            Work::CacheQuery { .. } | Work::CacheQueryAt { .. } | Work::References { .. } => true,
            Work::GetXattr { size_only, .. } | Work::ListXattr { size_only, .. } => !size_only,
            _ => false,
        }
    }

    /// What it makes, removes or renames would be called `..`, as nothing is.
    pub(crate) fn names_parent(&mut self) -> bool {
        self.places().into_iter().flatten().any(|place| place.split().1 == b"..")
    }

    pub(crate) fn places(&mut self) -> [Option<&mut Place>; 2] {
        match self {
            Work::StatFs { place } | Work::Stat { place, .. } | Work::Access { place, .. } => {
                [Some(place), None]
            }
            Work::SetAttr { place, .. } | Work::ReadLink { place } | Work::SyncDir { place } => {
                [Some(place), None]
            }
            Work::ReadDir { place, .. } | Work::GetXattr { place, .. } => [Some(place), None],
            Work::ListXattr { place, .. } | Work::SetXattr { place, .. } => [Some(place), None],
            Work::RemoveXattr { place, .. } | Work::Make { place, .. } => [Some(place), None],
            Work::Remove { place, .. } | Work::Open { place, .. } => [Some(place), None],
            Work::Get { place, .. } | Work::Find { place } => [Some(place), None],
            Work::CacheQueryAt { place, .. } => [Some(place), None],
            Work::LinkFile { to, .. } => [Some(to), None],
            Work::Link { from, to, .. } | Work::Rename { from, to, .. } => [Some(from), Some(to)],
            Work::Put(put) => [Some(&mut put.place), put.rename_to.as_mut()],
            _ => [None, None],
        }
    }

    /// Forgets handles that were found on the way.
    pub(crate) fn rewind(&mut self) {
        self.places().into_iter().flatten().for_each(Place::rewind);
        match self {
            Work::Link { from_handle, .. } => *from_handle = None,
            Work::Rename { from_dir, .. } => *from_dir = None,
            Work::Put(put) => put.from_dir = None,
            _ => {}
        }
    }
}
