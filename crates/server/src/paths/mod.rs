//! How data of files goes between the store and the network.
//!
//! The unifier is the server's own cache. The other paths use the kernel's page cache, and are
//! there to be compared with, and for directories that local programs use at the same time.

mod buffers;
mod page_cache;

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use dafs_fabric::{SgList, Span};
use dafs_protocol::{CommitLevel, Status, WriteVerifier};
use dafs_store::{Extents, SeekKind};
use dafs_unifier::{CachedFile, PinnedRead, Writer, WriterId};
use serde::Deserialize;
use smallvec::SmallVec;

pub(crate) use buffers::{Share, Taken};
pub use page_cache::PageCache;
pub(crate) use page_cache::PageCacheFile;

/// How data of an export's files goes between the store and the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DataPath {
    /// Through the server's own cache, whose memory is the network's too.
    #[default]
    Unifier,
    /// Read into, and written from, buffers: a copy between them and the page cache.
    Normal,
    /// Reads leave from mappings of the files, writes as `Normal`.
    Mmap,
    /// Reads leave by sendfile(2), writes as `Normal`.
    Sendfile,
}

impl DataPath {
    /// All of them.
    pub const ALL: [DataPath; 4] =
        [DataPath::Unifier, DataPath::Normal, DataPath::Mmap, DataPath::Sendfile];

    /// As options and configuration files say it.
    pub fn name(self) -> &'static str {
        match self {
            DataPath::Unifier => "unifier",
            DataPath::Normal => "normal",
            DataPath::Mmap => "mmap",
            DataPath::Sendfile => "sendfile",
        }
    }

    /// Reads leave from files, which not every transport can.
    pub(crate) fn sends_from_files(self) -> bool {
        matches!(self, DataPath::Mmap | DataPath::Sendfile)
    }
}

impl fmt::Display for DataPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for DataPath {
    type Err = String;

    fn from_str(text: &str) -> Result<DataPath, String> {
        DataPath::ALL
            .into_iter()
            .find(|path| path.name() == text)
            .ok_or_else(|| "expected unifier, normal, mmap or sendfile".into())
    }
}

/// What keeps data where it is until it left.
pub(crate) enum DataPin {
    Lease(#[allow(dead_code, reason = "held for its drop")] PinnedRead),
    Buffers(#[allow(dead_code, reason = "held for its drop")] Taken),
    Scratch(Span),
}

/// Data that a READ answers, kept alive by `held` until it left.
pub(crate) struct Lent {
    pub spans: SgList,
    pub len: usize,
    pub end_of_file: bool,
    pub held: Option<DataPin>,
}

/// Pieces of a READ, up to the first that the file's end cuts short.
pub(crate) type Pieces = SmallVec<[Lent; 1]>;

/// The data of an open file.
pub(crate) enum FileData {
    Cached(Arc<CachedFile>),
    Paged(Arc<PageCacheFile>),
}

impl FileData {
    /// The cache of the file, if it is the server's.
    pub(crate) fn cached(&self) -> Option<&Arc<CachedFile>> {
        match self {
            FileData::Cached(file) => Some(file),
            FileData::Paged(_) => None,
        }
    }

    /// What needs no waiting.
    pub(crate) fn try_read(&self, offset: u64, len: usize) -> Option<Lent> {
        match self {
            FileData::Cached(file) => file.try_read(offset, len).map(Lent::from),
            FileData::Paged(file) => file.try_read(offset, len),
        }
    }

    pub(crate) async fn commit(
        &self,
        writer: WriterId,
        offset: u64,
        len: u64,
        level: CommitLevel,
    ) -> Result<WriteVerifier, Status> {
        match self {
            FileData::Cached(file) => file.commit(writer, offset, len, level).await,
            FileData::Paged(file) => file.commit(level).await,
        }
    }

    /// Writes back what only the server's cache has.
    pub(crate) async fn flush(&self) -> Result<(), Status> {
        match self {
            FileData::Cached(file) => file.flush().await,
            FileData::Paged(_) => Ok(()),
        }
    }

    pub(crate) async fn close(&self, writer: WriterId) -> Result<(), Status> {
        match self {
            FileData::Cached(file) => file.close(writer).await,
            FileData::Paged(_) => Ok(()),
        }
    }

    pub(crate) async fn truncate(&self, size: u64, clear_privileges: bool) -> Result<(), Status> {
        match self {
            FileData::Cached(file) => file.truncate(size, clear_privileges).await,
            FileData::Paged(file) => file.stored().truncate(size, clear_privileges).await,
        }
    }

    pub(crate) async fn fallocate(
        &self,
        mode: u32,
        offset: u64,
        len: u64,
        writer: Writer,
    ) -> Result<(), Status> {
        match self {
            FileData::Cached(file) => file.fallocate(mode, offset, len, writer).await,
            FileData::Paged(file) => {
                file.stored().fallocate(mode, offset, len, writer.clear_privileges).await
            }
        }
    }

    pub(crate) async fn seek(&self, offset: u64, kind: SeekKind) -> Result<Option<u64>, Status> {
        match self {
            FileData::Cached(file) => file.seek(offset, kind).await,
            FileData::Paged(file) => file.stored().seek(offset, kind).await,
        }
    }

    pub(crate) async fn extents(
        &self,
        offset: u64,
        len: u64,
        most: usize,
    ) -> Result<Extents, Status> {
        match self {
            FileData::Cached(file) => file.extents(offset, len, most).await,
            FileData::Paged(file) => file.stored().extents(offset, len, most).await,
        }
    }
}

impl From<PinnedRead> for Lent {
    fn from(lease: PinnedRead) -> Lent {
        Lent {
            spans: lease.spans(),
            len: lease.len(),
            end_of_file: lease.end_of_file(),
            held: Some(DataPin::Lease(lease)),
        }
    }
}
