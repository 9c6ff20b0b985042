//! Ranges of open files: copies within the server, shared blocks, space, extents.

use std::rc::Rc;

use dafs_protocol::{FILE_EXTENT_BYTES, Operation, Outcome, StateId, Status, encode_file_extent};
use dafs_store::SeekKind;
use dafs_unifier::{At, CachedFile};

use crate::chain::{Chain, SCRATCH_BYTES, Stop};
use crate::opens::Open;

/// Bytes that one COPY_RANGE copies at most: nothing else of its slot is done meanwhile.
const COPY_BYTES_MAX: u64 = 64 << 20;
/// The same where the bytes go through the cache.
const COPY_THROUGH_CACHE_BYTES_MAX: u64 = 8 << 20;

impl Chain {
    pub(crate) async fn range_operation(
        &mut self,
        operation: &Operation<'_>,
    ) -> Result<Outcome, Stop> {
        match operation {
            Operation::Fallocate { state, mode, offset, len } => {
                let open = self.writable_open(*state)?;
                let clear = self.clears(&open);
                open.file.fallocate(*mode, *offset, *len, clear).await?;
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
                let (from, to, open) = self.places(*from, *from_offset, *to, *to_offset)?;
                let len = (*len).min(COPY_BYTES_MAX);
                let through_cache = COPY_THROUGH_CACHE_BYTES_MAX;
                let writer = self.writer(&open);
                let bytes = CachedFile::copy_range(&from, &to, len, through_cache, writer).await?;
                self.note_written(usize::try_from(bytes).unwrap_or(usize::MAX));
                Ok(Outcome::Copied { bytes })
            }
            Operation::CloneRange { from, from_offset, to, to_offset, len } => {
                let (from, to, open) = self.places(*from, *from_offset, *to, *to_offset)?;
                CachedFile::clone_range(&from, &to, *len, self.writer(&open)).await?;
                Ok(Outcome::Done)
            }
            _ => Err(Status::NotSupp.into()),
        }
    }

    /// Where a copy comes from and goes to, and the open of the latter.
    fn places(
        &self,
        from: StateId,
        from_offset: u64,
        to: StateId,
        to_offset: u64,
    ) -> Result<(At, At, Rc<Open>), Status> {
        let source = self.session.open(self.state(from)?)?;
        let target = self.writable_open(to)?;
        if !source.read.get() || target.append {
            return Err(Status::BadF);
        }
        let from = At { file: source.file.clone(), offset: from_offset };
        let to = At { file: target.file.clone(), offset: to_offset };
        Ok((from, to, target))
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
