//! [UNIFIER]: one memory for caching and communication. The index that makes arena memory a
//! file cache: pages go from the disk to the wire and from the wire to the disk without a copy.

#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod config;

use std::sync::Arc;
use std::time::Duration;

use dafs_fabric::{Arena, SgList};
use dafs_protocol::{Attr, Status, WriteVerifier};
use dafs_store::{File, FileId, SeekKind};

pub use config::{CacheStats, Clock, Config};

/// A session that writes: late errors are told to each once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WriterId(pub u64);

/// Who writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Writer {
    /// The session.
    pub id: WriterId,
    /// Not root: write-back clears setuid and setgid.
    pub clear_privileges: bool,
}

/// A moment, taken with [`Unifier::mark`] before attributes are asked from the store, so that
/// attributes which the cache's own writes have overtaken are recognised.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mark(u64);

/// The cache of all files.
pub struct Unifier {}

impl Unifier {
    /// An empty cache in this memory.
    pub fn new(_arena: Arc<Arena>, _config: Config, _verifier: WriteVerifier) -> Arc<Unifier> {
        unimplemented!()
    }
    /// To be taken BEFORE the store is asked for attributes given to `open` or `overlay`.
    pub fn mark(&self) -> Mark {
        unimplemented!()
    }
    /// Counts an open; each is ended by one [`CachedFile::close`].
    pub fn open(
        self: &Arc<Self>,
        _mark: Mark,
        _file: Arc<dyn File>,
        _attr: &Attr,
        _truncated: bool,
    ) -> Arc<CachedFile> {
        unimplemented!()
    }
    /// What is known of a file, open or not.
    pub fn find(&self, _id: FileId) -> Option<Arc<CachedFile>> {
        unimplemented!()
    }
    /// Corrects attributes from the store (LOOKUP, READDIR, GETATTR) by what is known here.
    pub fn overlay(&self, _mark: Mark, _attr: &mut Attr) {
        unimplemented!()
    }
    /// Attributes after a change that the server made itself (SETATTR), so that the next open
    /// does not take it for a foreign one.
    pub fn note(&self, _attr: &Attr) {
        unimplemented!()
    }
    /// The verifier given by COMMIT.
    pub fn verifier(&self) -> WriteVerifier {
        unimplemented!()
    }
    /// Counters.
    pub fn stats(&self) -> CacheStats {
        unimplemented!()
    }
    /// True when `write_back` has something to do.
    pub fn write_back_due(&self, _now: Duration) -> bool {
        unimplemented!()
    }
    /// Writes back what is due: too old, or more than half of the bound.
    pub async fn write_back(&self, _now: Duration) {
        unimplemented!()
    }
    /// Writes back everything (shutdown, SYNC_FS).
    ///
    /// # Errors
    /// The first one; each file's writers are told too.
    pub async fn flush_all(&self) -> Result<(), Status> {
        unimplemented!()
    }
}

/// One file of the cache, shared by all its opens.
pub struct CachedFile {}

impl CachedFile {
    /// Its number.
    pub fn id(&self) -> FileId {
        unimplemented!()
    }
    /// Its size for readers.
    pub fn size(&self) -> u64 {
        unimplemented!()
    }
    /// Everything cached, or `None`.
    pub fn try_read(&self, _offset: u64, _len: usize) -> Option<ReadLease> {
        unimplemented!()
    }
    /// Reads in what is missing. Short at the end of the file.
    ///
    /// # Errors
    /// The store's.
    pub async fn read(&self, _offset: u64, _len: usize) -> Result<ReadLease, Status> {
        unimplemented!()
    }
    /// As `reserve`; `None` if that would wait.
    pub fn try_reserve(&self, _offset: u64, _len: usize) -> Option<WriteReservation> {
        unimplemented!()
    }
    /// Fresh pages to land `len` bytes for `offset`; waits while the dirty bound is reached.
    ///
    /// # Errors
    /// Too large; the file is not open.
    pub async fn reserve(&self, _offset: u64, _len: usize) -> Result<WriteReservation, Status> {
        unimplemented!()
    }
    /// As `reserve`, for `append`.
    ///
    /// # Errors
    /// As `reserve`.
    pub async fn reserve_append(&self, _len: usize) -> Result<WriteReservation, Status> {
        unimplemented!()
    }
    /// As `commit_write`; gives the reservation back if that would wait.
    ///
    /// # Errors
    /// The reservation, to be given to `commit_write`.
    pub fn try_commit_write(
        &self,
        _reservation: WriteReservation,
        _writer: Writer,
    ) -> Result<Result<(), Status>, WriteReservation> {
        unimplemented!()
    }
    /// Makes the landed bytes the file's, at once for all readers and writers.
    ///
    /// # Errors
    /// A late error of this writer's earlier writes (this write is discarded); the store's.
    pub async fn commit_write(
        &self,
        _reservation: WriteReservation,
        _writer: Writer,
    ) -> Result<(), Status> {
        unimplemented!()
    }
    /// As `commit_write`, at the end of the file, which it returns.
    ///
    /// # Errors
    /// As `commit_write`.
    pub async fn append(
        &self,
        _reservation: WriteReservation,
        _writer: Writer,
    ) -> Result<u64, Status> {
        unimplemented!()
    }
    /// Writes back all that is dirty now (before times are set, before SEEK and so on).
    ///
    /// # Errors
    /// The store's; writers will be told too.
    pub async fn flush(&self) -> Result<(), Status> {
        unimplemented!()
    }
    /// Writes back a range (`len` 0: to the end) and syncs. `writer`: whose late errors this
    /// tells.
    ///
    /// # Errors
    /// The store's, or a late one.
    pub async fn commit(
        &self,
        _writer: WriterId,
        _offset: u64,
        _len: u64,
        _data_only: bool,
    ) -> Result<WriteVerifier, Status> {
        unimplemented!()
    }
    /// Sets the size.
    ///
    /// # Errors
    /// The store's.
    pub async fn truncate(&self, _size: u64) -> Result<(), Status> {
        unimplemented!()
    }
    /// See [`File::fallocate`].
    ///
    /// # Errors
    /// The store's.
    pub async fn fallocate(&self, _mode: u32, _offset: u64, _len: u64) -> Result<(), Status> {
        unimplemented!()
    }
    /// See [`File::seek`].
    ///
    /// # Errors
    /// The store's.
    pub async fn seek(&self, _offset: u64, _kind: SeekKind) -> Result<Option<u64>, Status> {
        unimplemented!()
    }
    /// Corrects attributes from the store by what is known here.
    pub fn overlay(&self, _mark: Mark, _attr: &mut Attr) {
        unimplemented!()
    }
    /// A late error of this session's writes; told once.
    pub fn take_error(&self, _writer: WriterId) -> Option<Status> {
        unimplemented!()
    }
    /// Ends one open: writes back what is dirty; after the last the store's file is let go.
    ///
    /// # Errors
    /// The store's, or a late one of this writer.
    pub async fn close(&self, _writer: WriterId) -> Result<(), Status> {
        unimplemented!()
    }
}

/// Pages of a file, held for a reader. Writers do not wait for it: it keeps what it has seen.
pub struct ReadLease {}

impl ReadLease {
    /// The bytes.
    pub fn spans(&self) -> SgList {
        unimplemented!()
    }
    /// How many.
    pub fn len(&self) -> usize {
        unimplemented!()
    }
    /// Nothing there.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// The file ends where these bytes end (or before the offset asked for).
    pub fn end_of_file(&self) -> bool {
        unimplemented!()
    }
}

/// Fresh pages for a write. Dropped, they are discarded.
pub struct WriteReservation {}

impl WriteReservation {
    /// Where the bytes are to land: `len` bytes.
    pub fn spans(&self) -> SgList {
        unimplemented!()
    }
    /// Bytes to land.
    pub fn len(&self) -> usize {
        unimplemented!()
    }
    /// Nothing to land.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
