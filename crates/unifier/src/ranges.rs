//! Ranges within files: copies, shared blocks, and what is allocated.

use std::ops::RangeInclusive;
use std::sync::Arc;

use dafs_fabric::SgList;
use dafs_fabric::mem::PAGE_BYTES;
use dafs_protocol::Status;
use dafs_store::{Extents, SeekKind};

use crate::Writer;
use crate::file::{CachedFile, Which};
use crate::job::Outcome;
use crate::pool::SLOT;

/// Bytes of one step of a copy through the cache.
const STEP_BYTES: usize = 256 << 10;

/// A place in a file.
#[derive(Debug, Clone)]
pub struct FilePosition {
    /// The file.
    pub file: Arc<CachedFile>,
    /// The first byte.
    pub offset: u64,
}

impl std::fmt::Debug for CachedFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CachedFile").field("id", &self.id()).finish_non_exhaustive()
    }
}

/// The blocks that a range touches.
pub(crate) fn blocks(offset: u64, len: u64) -> RangeInclusive<u64> {
    match len.checked_sub(1) {
        Some(last) => offset / SLOT..=offset.saturating_add(last) / SLOT,
        #[allow(clippy::reversed_empty_ranges, reason = "no block")]
        None => 1..=0,
    }
}

impl CachedFile {
    /// See [`dafs_store::File::seek`].
    ///
    /// # Errors
    /// The store's; the file is not open.
    pub async fn seek(
        self: &Arc<Self>,
        offset: u64,
        kind: SeekKind,
    ) -> Result<Option<u64>, Status> {
        let handle = self.lock().handle.clone().ok_or(Status::BadStateId)?;
        if self.flush().await.is_err() {
            // What cannot be written is data, and where it is the store does not know.
            let size = self.size();
            let found = if kind == SeekKind::Data { offset } else { size };
            return Ok((offset < size).then_some(found));
        }
        handle.seek(offset, kind).await
    }

    /// See [`dafs_store::File::extents`]. Dirty data is written back first, so that it has
    /// extents.
    ///
    /// # Errors
    /// The store's; the file is not open.
    pub async fn extents(
        self: &Arc<Self>,
        offset: u64,
        len: u64,
        most: usize,
    ) -> Result<Extents, Status> {
        self.flush().await?;
        let handle = self.lock().handle.clone().ok_or(Status::BadStateId)?;
        handle.extents(offset, len, most).await
    }

    /// Copies `len` bytes within the store, or through the cache at most `through_cache_max`
    /// where the store cannot. Fewer than `len`: go on from there; 0: the source ends.
    ///
    /// # Errors
    /// INVAL for ranges that overlap in one file; the store's; a late one of this writer.
    pub async fn copy_range(
        from: &FilePosition,
        to: &FilePosition,
        len: u64,
        through_cache_max: u64,
        writer: Writer,
    ) -> Result<u64, Status> {
        let len = len.min(from.file.size().saturating_sub(from.offset));
        if overlap(from, to, len) {
            return Err(Status::Inval);
        }
        if len == 0 {
            return Ok(0);
        }
        match copy_in_store(from, to, len, writer).await {
            Err(Status::XDev | Status::NotSupp | Status::Inval) => {
                copy_through_cache(from, to, len.min(through_cache_max), writer).await
            }
            result => result,
        }
    }

    /// See [`dafs_store::File::clone_range`].
    ///
    /// # Errors
    /// The store's; a file is not open.
    pub async fn clone_range(
        from: &FilePosition,
        to: &FilePosition,
        len: u64,
        writer: Writer,
    ) -> Result<(), Status> {
        let rest = from.file.size().saturating_sub(from.offset);
        if overlap(from, to, if len == 0 { rest } else { len }) {
            return Err(Status::Inval);
        }
        flush_source(from, to).await?;
        let (from, to) = (from.clone(), to.clone());
        let file = to.file.clone();
        file.exclusive(async move {
            let handles = replace(&from, &to, u64::MAX, writer).await?;
            let clear = writer.clear_privileges;
            let outcome =
                handles.0.clone_range(from.offset, &handles.1, to.offset, len, clear).await;
            to.file.replaced(&*handles.1, to.offset, len).await;
            outcome
        })
        .await
    }

    fn write_bytes_max(&self) -> usize {
        // A write that does not begin with a page takes one more.
        self.core().write_slots_max().saturating_sub(1).max(1) * PAGE_BYTES
    }

    /// The store's file has other bytes in this range now (`len` 0: to the end).
    async fn replaced(&self, handle: &dyn dafs_store::File, offset: u64, len: u64) {
        let attr = handle.attr().await;
        let inner = &mut *self.lock();
        let len = if len == 0 { u64::MAX } else { len };
        self.drop_range(inner, blocks(offset, len), Which::All);
        if let Ok(attr) = &attr {
            self.set_size(inner, inner.size.max(attr.size));
        }
        self.changed(inner, attr.ok().map(|attr| attr.size));
    }
}

fn overlap(from: &FilePosition, to: &FilePosition, len: u64) -> bool {
    Arc::ptr_eq(&from.file, &to.file)
        && from.offset < to.offset.saturating_add(len)
        && to.offset < from.offset.saturating_add(len)
}

/// The store must have what is to be copied, and its file must be as long as it is for readers.
/// (In one file this is done when the file is had alone.)
async fn flush_source(from: &FilePosition, to: &FilePosition) -> Outcome {
    if Arc::ptr_eq(&from.file, &to.file) {
        return Ok(());
    }
    from.file.flush_range(from.offset, 0).await
}

type Handles = (Arc<dyn dafs_store::File>, Arc<dyn dafs_store::File>);

/// With the target had alone: writes back what the change does not replace, and answers both
/// files of the store.
async fn replace(
    from: &FilePosition,
    to: &FilePosition,
    len: u64,
    writer: Writer,
) -> Result<Handles, Status> {
    let range = blocks(to.offset, len);
    let same = Arc::ptr_eq(&from.file, &to.file);
    let (first, last) = if same { (0, u64::MAX) } else { (*range.start(), *range.end()) };
    to.file.flush_blocks(first, last, true).await?;
    let source = from.file.lock().handle.clone().ok_or(Status::BadStateId)?;
    let target = to.file.lock().change_by(writer)?;
    Ok((source, target))
}

async fn copy_in_store(
    from: &FilePosition,
    to: &FilePosition,
    len: u64,
    writer: Writer,
) -> Result<u64, Status> {
    if flush_source(from, to).await.is_err() {
        // The cache has what could not be written.
        return Err(Status::XDev);
    }
    let (from, to) = (from.clone(), to.clone());
    let file = to.file.clone();
    let (completer, copied) = dafs_store::pending();
    file.exclusive(async move {
        let (source, target) = replace(&from, &to, len, writer).await?;
        let clear = writer.clear_privileges;
        let outcome = source.copy_range(from.offset, &target, to.offset, len, clear).await;
        if !matches!(outcome, Err(Status::XDev | Status::NotSupp | Status::Inval)) {
            to.file.replaced(&*target, to.offset, len).await;
        }
        completer.complete(outcome);
        Ok(())
    })
    .await?;
    copied.await
}

async fn copy_through_cache(
    from: &FilePosition,
    to: &FilePosition,
    len: u64,
    writer: Writer,
) -> Result<u64, Status> {
    let mut done = 0u64;
    while done < len {
        let step = usize::try_from(len - done).unwrap_or(STEP_BYTES).min(STEP_BYTES);
        let step = step.min(from.file.read_bytes_max()).min(to.file.write_bytes_max());
        let at = |start: u64| start.checked_add(done).ok_or(Status::FBig);
        match copy_step(from, at(from.offset)?, to, at(to.offset)?, step, writer).await {
            Ok(0) => break,
            Ok(bytes) => done += bytes as u64,
            // What was copied is told; the next call tells what is wrong.
            Err(_) if done > 0 => break,
            Err(status) => return Err(status),
        }
    }
    Ok(done)
}

/// Room first, as for a write of a peer: nothing is held while it is waited for. No byte where
/// the source has become shorter meanwhile.
async fn copy_step(
    from: &FilePosition,
    offset: u64,
    to: &FilePosition,
    to_offset: u64,
    len: usize,
    writer: Writer,
) -> Result<usize, Status> {
    let len = len.min(usize::try_from(from.file.size().saturating_sub(offset)).unwrap_or(len));
    let mut reservation = to.file.reserve(to_offset, len).await?;
    let lease = from.file.read(offset, len).await?;
    if lease.len() < len {
        return Ok(0);
    }
    reservation.landed(copy_spans(&lease.spans(), &reservation.spans()));
    // The parts of blocks around it may have to be read in.
    drop(lease);
    to.file.commit_write(reservation, writer).await?;
    Ok(len)
}

/// Copies all of `from`, to as many bytes; how many they were.
fn copy_spans(from: &SgList, to: &SgList) -> usize {
    let mut copied = 0;
    let mut targets = to.iter().cloned();
    let mut target = targets.next();
    for span in from {
        let mut done = 0;
        while done < span.len() {
            let Some(room) = target.take() else { return copied };
            let bytes = room.len().min(span.len() - done);
            room.copy_span(0, &span.part(done, bytes));
            done += bytes;
            copied += bytes;
            let left = room.len() - bytes;
            target = if left > 0 { Some(room.part(bytes, left)) } else { targets.next() };
        }
    }
    copied
}
