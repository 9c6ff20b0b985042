//! Files whose data the kernel caches: what was acknowledged is in its page cache, and COMMIT is
//! fsync(2).
//!
//! What a READ finds in memory leaves by the way of its data path. What it does not is read into
//! buffers first, by the store's threads, on every path: no worker waits for a disk. So does
//! what cannot be mapped.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use dafs_fabric::{ArenaError, FileMap, SgList, Span};
use dafs_protocol::{CommitLevel, Status, WriteVerifier};
use dafs_store::File;
use dafs_unifier::Line;

use super::buffers::{Buffers, Taken};
use super::{DataPath, Lent};
use crate::data::Held;
use crate::limits::Limits;

/// Bytes of all buffers, or four of the largest requests where that is more.
const BUFFERS_BYTES: usize = 64 << 20;
/// Mappings at a time: the system's own limit for a process is 65,530 by default.
const MAPS_MAX: usize = 16_384;
/// Addresses of all mappings.
const MAPPED_BYTES_MAX: usize = 16 << 40;
/// Files are mapped to the next multiple of this, so that they can grow.
const MAP_STEP_BYTES: u64 = 1 << 30;
/// Bytes of one step of a copy through buffers.
const COPY_STEP_BYTES: usize = 256 << 10;
/// Appends to different files rarely wait for each other.
const APPEND_LINES: usize = 64;

/// What all files share whose data path is not the unifier: buffers and limits.
pub struct PageCache {
    buffers: Arc<Buffers>,
    appends: [Line; APPEND_LINES],
    maps: AtomicUsize,
    mapped_bytes: AtomicUsize,
    verifier: WriteVerifier,
}

/// The data of one open.
pub(crate) struct PageCacheFile {
    stored: Arc<dyn File>,
    path: DataPath,
    shared: Arc<PageCache>,
    map: Mutex<Option<Mapped>>,
}

/// A mapping that counts.
struct Mapped {
    map: Arc<FileMap>,
    shared: Arc<PageCache>,
}

impl PageCache {
    /// With buffers as large as the limits want them.
    ///
    /// # Errors
    /// The system has no memory.
    pub fn new(limits: &Limits, verifier: WriteVerifier) -> Result<Arc<PageCache>, ArenaError> {
        let bytes = BUFFERS_BYTES.max((limits.data_bytes as usize).saturating_mul(4));
        Ok(Arc::new(PageCache {
            buffers: Buffers::new(bytes)?,
            appends: std::array::from_fn(|_| Line::default()),
            maps: AtomicUsize::new(0),
            mapped_bytes: AtomicUsize::new(0),
            verifier,
        }))
    }

    /// Maps the beginning of a file, unless there are too many maps.
    fn map(self: &Arc<Self>, file: &dyn File, size: u64, path: DataPath) -> Option<Mapped> {
        let len = usize::try_from(size.checked_next_multiple_of(MAP_STEP_BYTES)?).ok()?;
        let fd = file.descriptor()?;
        let maps = self.maps.fetch_add(1, Ordering::Relaxed);
        let bytes = self.mapped_bytes.fetch_add(len, Ordering::Relaxed);
        let map = if maps < MAPS_MAX && bytes.saturating_add(len) <= MAPPED_BYTES_MAX {
            FileMap::new(fd, len, path == DataPath::Sendfile).ok()
        } else {
            None
        };
        if map.is_none() {
            self.unmapped(len);
        }
        map.map(|map| Mapped { map, shared: self.clone() })
    }

    fn unmapped(&self, len: usize) {
        self.maps.fetch_sub(1, Ordering::Relaxed);
        self.mapped_bytes.fetch_sub(len, Ordering::Relaxed);
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        self.shared.unmapped(self.map.len());
    }
}

impl PageCacheFile {
    pub(crate) fn new(
        stored: Arc<dyn File>,
        path: DataPath,
        shared: Arc<PageCache>,
    ) -> Arc<PageCacheFile> {
        Arc::new(PageCacheFile { stored, path, shared, map: Mutex::default() })
    }

    pub(crate) fn stored(&self) -> &Arc<dyn File> {
        &self.stored
    }

    /// What is in memory.
    pub(super) fn try_read(&self, offset: u64, len: usize) -> Option<Lent> {
        if self.path.sends_from_files()
            && let Some(lent) = self.try_mapped(offset, len)
        {
            return Some(lent);
        }
        let taken = self.shared.buffers.try_take(len)?;
        let bytes = self.stored.read_resident(offset, &taken.spans(0, len))?.ok()?;
        let is_short = bytes < len;
        let end = is_short || offset + bytes as u64 >= self.size_now()?;
        Some(lent(taken, bytes, end))
    }

    pub(super) async fn read(&self, offset: u64, len: usize) -> Result<Lent, Status> {
        if let Some(lent) = self.try_read(offset, len) {
            return Ok(lent);
        }
        let taken = self.shared.buffers.take(len).await;
        let bytes = self.stored.read_at(offset, taken.spans(0, len)).await?;
        let end = bytes < len || offset + bytes as u64 >= self.stored.attr().await?.size;
        Ok(lent(taken, bytes, end))
    }

    /// The size, where that needs no waiting.
    fn size_now(&self) -> Option<u64> {
        self.stored.attr().try_take()?.ok().map(|attr| attr.size)
    }

    fn try_mapped(&self, offset: u64, len: usize) -> Option<Lent> {
        let size = self.size_now()?;
        let rest = usize::try_from(size.saturating_sub(offset)).unwrap_or(usize::MAX);
        let (bytes, end_of_file) = (len.min(rest), len >= rest);
        let mut spans = SgList::new();
        if bytes > 0 {
            let offset = usize::try_from(offset).ok()?;
            let map = self.map(offset.checked_add(bytes)?, size)?;
            if !map.is_resident(offset, bytes) {
                return None;
            }
            spans.push(Span::of_file(&map, offset, bytes));
        }
        Some(Lent { spans, len: bytes, end_of_file, held: None })
    }

    /// A map with at least the first `end` bytes of the file, of which it has `size`.
    fn map(&self, end: usize, size: u64) -> Option<Arc<FileMap>> {
        let mut mapped = self.map.lock().unwrap_or_else(PoisonError::into_inner);
        if mapped.as_ref().is_none_or(|mapped| mapped.map.len() < end) {
            *mapped = None;
            *mapped = self.shared.map(&*self.stored, size, self.path);
        }
        mapped.as_ref().map(|mapped| mapped.map.clone())
    }

    /// Where data of a WRITE lands.
    pub(crate) async fn room(&self, len: usize) -> Taken {
        self.shared.buffers.take(len).await
    }

    /// Writes at the end of the file; where that was. Appends through this server are one after
    /// the other.
    pub(crate) async fn append(&self, from: SgList, clear: bool) -> Result<u64, Status> {
        let line = usize::try_from(self.stored.id().inode).unwrap_or(0) % APPEND_LINES;
        let _turn = match self.shared.appends.get(line) {
            Some(line) => Some(line.turn().await),
            None => None,
        };
        let offset = self.stored.attr().await?.size;
        let bytes = dafs_fabric::sg_bytes(&from) as u64;
        if offset.checked_add(bytes).is_none_or(|end| end > i64::MAX as u64) {
            return Err(Status::FBig);
        }
        if bytes > 0 {
            self.stored.write_at(offset, from, clear).await?;
        }
        Ok(offset)
    }

    /// Copies within the store, or through buffers at most `through_buffers_max` where the store
    /// cannot. Fewer bytes than `len`: go on from there; 0: the source ends.
    pub(crate) async fn copy_range(
        from: (&PageCacheFile, u64),
        to: (&PageCacheFile, u64),
        len: u64,
        through_buffers_max: u64,
        clear: bool,
    ) -> Result<u64, Status> {
        let size = from.0.stored.attr().await?.size;
        let len = len.min(size.saturating_sub(from.1));
        from.0.check_overlap(from.1, to, len)?;
        if len == 0 {
            return Ok(0);
        }
        match from.0.stored.copy_range(from.1, &to.0.stored, to.1, len, clear).await {
            Err(Status::XDev | Status::NotSupp | Status::Inval) => {}
            outcome => return outcome,
        }
        let mut done = 0u64;
        while done < len.min(through_buffers_max) {
            let step = usize::try_from(len - done).unwrap_or(COPY_STEP_BYTES).min(COPY_STEP_BYTES);
            let taken = from.0.room(step).await;
            let at = |start: u64| start.checked_add(done).ok_or(Status::FBig);
            let (read_at, write_at) = (at(from.1)?, at(to.1)?);
            let bytes = from.0.stored.read_at(read_at, taken.spans(0, step)).await?;
            if bytes == 0 {
                break;
            }
            match to.0.stored.write_at(write_at, taken.spans(0, bytes), clear).await {
                Ok(()) => done += bytes as u64,
                // What was copied is told; the next call tells what is wrong.
                Err(_) if done > 0 => break,
                Err(status) => return Err(status),
            }
        }
        Ok(done)
    }

    /// Shares blocks, see [`File::clone_range`].
    pub(crate) async fn clone_range(
        from: (&PageCacheFile, u64),
        to: (&PageCacheFile, u64),
        len: u64,
        clear: bool,
    ) -> Result<(), Status> {
        from.0.check_overlap(from.1, to, if len == 0 { u64::MAX } else { len })?;
        from.0.stored.clone_range(from.1, &to.0.stored, to.1, len, clear).await
    }

    fn check_overlap(
        &self,
        offset: u64,
        to: (&PageCacheFile, u64),
        len: u64,
    ) -> Result<(), Status> {
        let overlaps = self.stored.id() == to.0.stored.id()
            && offset < to.1.saturating_add(len)
            && to.1 < offset.saturating_add(len);
        if overlaps { Err(Status::Inval) } else { Ok(()) }
    }

    pub(super) async fn commit(&self, level: CommitLevel) -> Result<WriteVerifier, Status> {
        if level != CommitLevel::Flush {
            self.stored.sync(level == CommitLevel::Data).await?;
        }
        Ok(self.shared.verifier)
    }
}

fn lent(taken: Taken, len: usize, end_of_file: bool) -> Lent {
    Lent { spans: taken.spans(0, len), len, end_of_file, held: Some(Held::Buffers(taken)) }
}

impl std::fmt::Debug for PageCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PageCache").finish_non_exhaustive()
    }
}
