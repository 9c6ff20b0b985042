//! Ranges of open files: copies within the server, shared blocks, space, extents.

use std::rc::Rc;

use dafs_protocol::{FILE_EXTENT_BYTES, Operation, Outcome, StateId, Status, encode_file_extent};
use dafs_store::SeekKind;
use dafs_unifier::{CachedFile, FilePosition};

use crate::chain::{Chain, Stop};
use crate::context::SCRATCH_BYTES;
use crate::opens::Open;
use crate::paths::{FileData, PageCacheFile};

/// Bytes that one COPY_RANGE copies at most: nothing else of its slot is done meanwhile.
const COPY_BYTES_MAX: u64 = 64 << 20;
/// The same where the bytes go through the cache.
const COPY_THROUGH_CACHE_BYTES_MAX: u64 = 8 << 20;

/// One side of a copy.
struct Side {
    open: Rc<Open>,
    offset: u64,
}

impl Side {
    fn at(&self) -> Result<FilePosition, Status> {
        let file = self.open.file.cached().ok_or(Status::XDev)?.clone();
        Ok(FilePosition { file, offset: self.offset })
    }
}

impl Chain {
    pub(crate) async fn range_operation(
        &mut self,
        operation: &Operation<'_>,
    ) -> Result<Outcome, Stop> {
        match operation {
            Operation::Fallocate { state, mode, offset, len } => {
                let open = self.writable_open(*state)?;
                let writer = self.writer(&open);
                open.file.fallocate(*mode, *offset, *len, writer).await?;
                Ok(Outcome::Done)
            }
            Operation::Seek { state, offset, hole } => {
                let open = self.session.open(self.state(*state)?)?;
                let kind = if *hole { SeekKind::Hole } else { SeekKind::Data };
                Ok(Outcome::Offset { offset: open.file.seek(*offset, kind).await? })
            }
            Operation::Extents { state, offset, len, bytes_max } => {
                Ok(self.extents(*state, *offset, *len, *bytes_max).await?)
            }
            Operation::CopyRange { from, from_offset, to, to_offset, len } => {
                let (from, to) = self.places((*from, *from_offset), (*to, *to_offset))?;
                let len = (*len).min(COPY_BYTES_MAX);
                let through_cache = COPY_THROUGH_CACHE_BYTES_MAX;
                let writer = self.writer(&to.open);
                let bytes = match (&from.open.file, &to.open.file) {
                    (FileData::Cached(_), FileData::Cached(_)) => {
                        let (from, to) = (from.at()?, to.at()?);
                        CachedFile::copy_range(&from, &to, len, through_cache, writer).await?
                    }
                    (FileData::Paged(a), FileData::Paged(b)) => {
                        let (a, b) = ((&**a, from.offset), (&**b, to.offset));
                        let clear = writer.clear_privileges;
                        PageCacheFile::copy_range(a, b, len, through_cache, clear).await?
                    }
                    _ => return Err(Status::XDev.into()),
                };
                self.note_written(usize::try_from(bytes).unwrap_or(usize::MAX));
                Ok(Outcome::Copied { bytes })
            }
            Operation::CloneRange { from, from_offset, to, to_offset, len } => {
                let (from, to) = self.places((*from, *from_offset), (*to, *to_offset))?;
                let writer = self.writer(&to.open);
                match (&from.open.file, &to.open.file) {
                    (FileData::Cached(_), FileData::Cached(_)) => {
                        CachedFile::clone_range(&from.at()?, &to.at()?, *len, writer).await?;
                    }
                    (FileData::Paged(a), FileData::Paged(b)) => {
                        let (a, b) = ((&**a, from.offset), (&**b, to.offset));
                        PageCacheFile::clone_range(a, b, *len, writer.clear_privileges).await?;
                    }
                    _ => return Err(Status::XDev.into()),
                }
                Ok(Outcome::Done)
            }
            _ => Err(Status::NotSupp.into()),
        }
    }

    /// Where a copy comes from and goes to.
    fn places(&self, from: (StateId, u64), to: (StateId, u64)) -> Result<(Side, Side), Status> {
        let source = self.session.open(self.state(from.0)?)?;
        let target = self.writable_open(to.0)?;
        if !source.read.get() || target.append {
            return Err(Status::BadF);
        }
        Ok((Side { open: source, offset: from.1 }, Side { open: target, offset: to.1 }))
    }

    async fn extents(
        &mut self,
        state: StateId,
        offset: u64,
        len: u64,
        bytes_max: u32,
    ) -> Result<Outcome, Status> {
        let open = self.session.open(self.state(state)?)?;
        let most = (bytes_max as usize).min(SCRATCH_BYTES) / FILE_EXTENT_BYTES;
        if most == 0 {
            return Err(Status::Range);
        }
        let extents = open.file.extents(offset, len, most).await?;
        let bytes = self.put_list(&extents.list, encode_file_extent)?;
        Ok(Outcome::Data { bytes, end: extents.end })
    }

    /// Appends a list as reply data; the bytes that it takes.
    pub(crate) fn put_list<T>(
        &mut self,
        list: &[T],
        encode: fn(&T, &mut Vec<u8>),
    ) -> Result<u32, Status> {
        let mut bytes = self.context.header();
        list.iter().for_each(|entry| encode(entry, &mut bytes));
        let put = self.put(&bytes);
        let len = u32::try_from(bytes.len()).map_err(|_| Status::TooBig);
        self.context.recycle(bytes);
        put?;
        len
    }
}
