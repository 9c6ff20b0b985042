//! What calls answer.

use dafs_fabric::Span;
use dafs_protocol::{
    AccessMask, Attr, CacheHint, CacheInfo, CachedRange, DirEntry, FileExtent, FileHandle, FsAttr,
    LockRequest, ReferenceInfo, SessionStats,
};

use super::ids::FileKey;
use crate::loan::Loan;

/// An object by its handle.
#[derive(Debug, Clone, Copy)]
pub struct Object {
    /// Names it for as long as it exists.
    pub handle: FileHandle,
    /// As they were when it was looked up, made or opened.
    pub attr: Attr,
}

/// What an open found or made.
#[derive(Debug, Clone, Copy)]
pub struct Opened {
    /// The file.
    pub node: Object,
    /// It was not there before.
    pub created: bool,
}

/// What a successful call answers.
#[derive(Debug)]
#[non_exhaustive]
pub enum Output<F = FileKey> {
    /// Nothing to say.
    Unit,
    /// Of a read.
    Read {
        /// Bytes that are in the buffer.
        bytes: usize,
        /// Nothing follows.
        end_of_file: bool,
    },
    /// Of [`Call::Lend`](crate::Call::Lend).
    Lent {
        /// How many bytes.
        bytes: usize,
        /// Nothing follows.
        end_of_file: bool,
        /// They are in the server's cache; `None`: in the buffer.
        loan: Option<Loan>,
    },
    /// Of a write.
    Written {
        /// Bytes.
        bytes: usize,
        /// Where they went.
        offset: u64,
    },
    /// Attributes.
    Attr(Attr),
    /// What was made, or got another name.
    Object(Object),
    /// Of [`Call::GetFile`](crate::Call::GetFile).
    Got {
        /// When it was opened.
        attr: Attr,
        /// Bytes that are in the buffer.
        bytes: usize,
    },
    /// Of [`Call::Open`](crate::Call::Open).
    File(F, Opened),
    /// Of [`Call::ReadLink`](crate::Call::ReadLink).
    Target(Vec<u8>),
    /// Of [`Call::Access`](crate::Call::Access).
    Access(AccessMask),
    /// Of [`Call::StatFs`](crate::Call::StatFs).
    FileSystem(FsAttr),
    /// Of [`Call::ReadDir`](crate::Call::ReadDir).
    Entries {
        /// The directory's.
        handle: FileHandle,
        /// In the server's order.
        entries: Vec<DirEntry>,
        /// Nothing follows.
        end: bool,
    },
    /// Bytes of an extended attribute or a list of names, or the size that was asked for.
    Bytes {
        /// How many.
        bytes: usize,
        /// The bytes, where they were asked for.
        data: Vec<u8>,
    },
    /// Of a seek.
    Offset(Option<u64>),
    /// The lock that stands against one; true: of an owner of this client.
    Conflict(Option<(LockRequest, bool)>),
    /// Of a copy within the server.
    Copied {
        /// How many bytes.
        bytes: u64,
    },
    /// Allocated ranges.
    Extents {
        /// In order.
        extents: Vec<FileExtent>,
        /// Nothing follows.
        end: bool,
    },
    /// Of [`Call::Advise`](crate::Call::Advise).
    Advised(Advised),
    /// Of [`Call::CacheQuery`](crate::Call::CacheQuery).
    Cached {
        /// Sums, and where to go on.
        info: CacheInfo,
        /// In order.
        ranges: Vec<CachedRange>,
    },
    /// Where the server's cache has blocks of a file.
    References(Box<Referred>),
    /// Of [`Call::Stats`](crate::Call::Stats).
    Stats(Box<SessionStats>),
}

/// What the server took of an advice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Advised {
    /// Bytes from the start of the range on that are cached now or being read in, or bytes that
    /// were dropped.
    pub bytes: u64,
    /// What holds for the file.
    pub cache: CacheHint,
}

/// Of REFS_GET.
#[derive(Debug)]
pub struct Referred {
    pub(crate) info: ReferenceInfo,
    /// Of each block, in order.
    pub(crate) slots: Vec<Option<u32>>,
    /// The memory of the cache, and that of its entries, as far as this process may map them.
    pub(crate) memory: Option<(Span, Span)>,
}

impl Referred {
    /// Whose life it is that proves it: the server's epoch, and what the session's word of life says.
    pub fn lives(&self) -> (u32, u64) {
        (self.info.epoch, self.info.session.value)
    }

    /// Which blocks are cached, counted from the first that was asked for.
    pub fn blocks(&self) -> impl Iterator<Item = usize> {
        self.slots.iter().enumerate().filter_map(|(block, slot)| slot.map(|_| block))
    }
}

impl<F> Output<F> {
    /// Bytes read or written; 0 where the call moves none.
    pub fn bytes(&self) -> usize {
        match self {
            Output::Read { bytes, .. } | Output::Written { bytes, .. } => *bytes,
            Output::Lent { bytes, .. } => *bytes,
            Output::Got { bytes, .. } | Output::Bytes { bytes, .. } => *bytes,
            _ => 0,
        }
    }

    /// The same with another kind of file in it.
    pub(crate) fn map_file<G>(self, make: impl FnOnce(F, Object) -> G) -> Output<G> {
        match self {
            Output::Unit => Output::Unit,
            Output::Read { bytes, end_of_file } => Output::Read { bytes, end_of_file },
            Output::Lent { bytes, end_of_file, loan } => Output::Lent { bytes, end_of_file, loan },
            Output::Written { bytes, offset } => Output::Written { bytes, offset },
            Output::Attr(attr) => Output::Attr(attr),
            Output::Got { attr, bytes } => Output::Got { attr, bytes },
            Output::Object(node) => Output::Object(node),
            Output::File(file, opened) => Output::File(make(file, opened.node), opened),
            Output::Target(target) => Output::Target(target),
            Output::Access(mask) => Output::Access(mask),
            Output::FileSystem(attr) => Output::FileSystem(attr),
            Output::Entries { handle, entries, end } => Output::Entries { handle, entries, end },
            Output::Bytes { bytes, data } => Output::Bytes { bytes, data },
            Output::Offset(offset) => Output::Offset(offset),
            Output::Conflict(held) => Output::Conflict(held),
            Output::Copied { bytes } => Output::Copied { bytes },
            Output::Extents { extents, end } => Output::Extents { extents, end },
            Output::Advised(advised) => Output::Advised(advised),
            Output::Cached { info, ranges } => Output::Cached { info, ranges },
            Output::References(referred) => Output::References(referred),
            Output::Stats(stats) => Output::Stats(stats),
        }
    }
}
