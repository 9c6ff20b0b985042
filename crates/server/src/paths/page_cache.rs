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
use dafs_unifier::FairQueue;

use super::buffers::{Buffers, Share, Taken};
use super::{DataPath, DataPin, Lent, Pieces};
use crate::limits::Limits;

/// Bytes of all buffers, or so many of the largest requests where that is more: the share of one
/// session has room for two.
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
const APPEND_QUEUES: usize = 64;

/// What all files share whose data path is not the unifier: buffers and limits.
pub struct PageCache {
    buffers: Arc<Buffers>,
    appends: [FairQueue; APPEND_QUEUES],
    maps: AtomicUsize,
    mapped_bytes: AtomicUsize,
    verifier: WriteVerifier,
}

/// The data of one open.
pub(crate) struct PageCacheFile {
    stored: Arc<dyn File>,
    path: DataPath,
    shared: Arc<PageCache>,
    share: Arc<Share>,
    map: Mutex<Option<Mapped>>,
}

/// A mapping that counts.
struct Mapped {
    map: Arc<FileMap>,
    shared: Arc<PageCache>,
}

impl PageCache {
    /// With buffers as large as the limits want them. `own_uid`: as whom the server runs.
    ///
    /// # Errors
    /// The system has no memory.
    pub fn new(
        limits: &Limits,
        own_uid: u32,
        verifier: WriteVerifier,
    ) -> Result<Arc<PageCache>, ArenaError> {
        let bytes = BUFFERS_BYTES.max((limits.data_bytes as usize).saturating_mul(16));
        Ok(Arc::new(PageCache {
            buffers: Buffers::new(bytes, own_uid)?,
            appends: std::array::from_fn(|_| FairQueue::default()),
            maps: AtomicUsize::new(0),
            mapped_bytes: AtomicUsize::new(0),
            verifier,
        }))
    }

    /// What a session of this user may take of the buffers.
    pub(crate) fn share(&self, uid: u32) -> Arc<Share> {
        self.buffers.share(uid)
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
        share: Arc<Share>,
    ) -> Arc<PageCacheFile> {
        Arc::new(PageCacheFile { stored, path, shared, share, map: Mutex::default() })
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
        let taken = self.share.try_take(len)?;
        let bytes = self.stored.read_resident(offset, &taken.spans(0, len))?.ok()?;
        let is_short = bytes < len;
        let end = is_short || offset + bytes as u64 >= self.size_now()?;
        Some(lent(taken, bytes, end))
    }

    /// Pieces, in buffers for all of them together; up to the first that the file's end cuts
    /// short. `beyond`: also beyond the session's share of the buffers.
    pub(crate) async fn read_list(
        &self,
        pieces: &[(u64, usize)],
        beyond: bool,
    ) -> Result<Pieces, Status> {
        if self.path.sends_from_files()
            && let Some(lent) = self.try_list(pieces)
        {
            return Ok(lent);
        }
        let room = pieces.iter().map(|piece| piece.1).sum();
        let taken =
            if beyond { self.share.take_beyond(room).await } else { self.share.take(room).await };
        let (mut at, mut end_of_file) = (0, false);
        for (index, &(offset, len)) in pieces.iter().enumerate() {
            let into = taken.spans(at, len);
            let bytes = match self.stored.read_resident(offset, &into) {
                Some(Ok(bytes)) => bytes,
                _ => self.stored.read_at(offset, into).await?,
            };
            at += bytes;
            if bytes < len {
                end_of_file = true;
                break;
            }
            if index + 1 == pieces.len() {
                end_of_file = offset + bytes as u64 >= self.stored.attr().await?.size;
            }
        }
        Ok(Pieces::from_iter([lent(taken, at, end_of_file)]))
    }

    /// The same from mappings.
    fn try_list(&self, pieces: &[(u64, usize)]) -> Option<Pieces> {
        let mut list = Pieces::new();
        for &(offset, len) in pieces {
            let lent = self.try_mapped(offset, len)?;
            let is_short = lent.len < len;
            list.push(lent);
            if is_short {
                break;
            }
        }
        Some(list)
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
        self.share.take(len).await
    }

    /// Writes at the end of the file; where that was. Appends through this server are one after
    /// the other.
    pub(crate) async fn append(&self, from: SgList, clear: bool) -> Result<u64, Status> {
        let queue = usize::try_from(self.stored.id().inode).unwrap_or(0) % APPEND_QUEUES;
        let _ticket = match self.shared.appends.get(queue) {
            Some(queue) => Some(queue.enter().await),
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
    Lent { spans: taken.spans(0, len), len, end_of_file, held: Some(DataPin::Buffers(taken)) }
}

impl std::fmt::Debug for PageCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PageCache").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Waker};

    use dafs_protocol::{CreateMode, Identity, OpenFlags};
    use dafs_store::Store;
    use dafs_store::memory::MemoryStore;

    use super::*;

    #[test]
    fn many_small_pieces_take_the_buffers_of_their_bytes() {
        let store = MemoryStore::new();
        let who = Arc::new(Identity::root());
        let root = store.root(&who).wait().expect("root").handle;
        let flags = OpenFlags {
            read: true,
            write: true,
            create: CreateMode::Exclusive,
            truncate: false,
            append: false,
            no_follow: false,
            unlinked: false,
            again: false,
        };
        let opened = store.open(&who, &root, b"f", flags, 0o644).wait().expect("open");
        opened.file.truncate(1 << 30, false).wait().expect("long");
        let shared = PageCache::new(&Limits::default(), 1, WriteVerifier([1; 16])).expect("memory");
        let share = shared.share(7);
        let file = PageCacheFile::new(opened.file, DataPath::Normal, shared, share.clone());
        let pieces: Vec<_> = (0..1024).map(|piece| (piece << 16, 1)).collect();
        let mut read = Box::pin(file.read_list(&pieces, false));
        let context = &mut Context::from_waker(Waker::noop());
        let std::task::Poll::Ready(Ok(lent)) = read.as_mut().poll(context) else {
            panic!("it has to wait")
        };
        assert_eq!(lent.iter().map(|lent| lent.len).sum::<usize>(), 1024);
        assert!(share.try_take(BUFFERS_BYTES / 8 - (64 << 10)).is_some(), "all but one is left");
    }
}
