//! What clients see of the cache, and what they may ask of it.

use std::sync::Arc;

use dafs_protocol::{
    Attr, CACHED_RANGE_BYTES, CacheHint, CacheInfo, FileHandle, FileKind, Operation, Outcome,
    StateId, Status, encode_cached_range,
};
use dafs_store::FileId;
use dafs_unifier::CachedFile;

use crate::chain::{Chain, Stop};
use crate::context::SCRATCH_BYTES;
use crate::opens::Open;

// As posix_fadvise.
const NORMAL: u8 = 0;
const RANDOM: u8 = 1;
const SEQUENTIAL: u8 = 2;
const WILL_NEED: u8 = 3;
const DONT_NEED: u8 = 4;
const ADVICE_MAX: u8 = 5;

// Rights, as in ACCESS.
const MAY_READ: u8 = 4;
const MAY_WRITE: u8 = 2;

impl Chain {
    pub(crate) async fn cache_operation(
        &mut self,
        operation: &Operation<'_>,
    ) -> Result<Outcome, Stop> {
        match operation {
            Operation::Advise { state, offset, len, advice, cache } => {
                let open = self.session.open(self.state(*state)?)?;
                if *advice > ADVICE_MAX {
                    return Err(Status::Inval.into());
                }
                if *cache != CacheHint::default() && !self.may_wish(&open).await? {
                    return Err(Status::Perm.into());
                }
                if let (NORMAL | RANDOM | SEQUENTIAL, Some(reader)) = (*advice, &open.reader) {
                    reader.borrow_mut().switch(*advice != RANDOM);
                }
                let Some(file) = open.file.cached() else {
                    // The kernel's cache, which is not asked.
                    return Ok(Outcome::Advised { bytes: 0, cache: CacheHint::default() });
                };
                let cache = file.wish(*cache);
                let bytes = match *advice {
                    WILL_NEED => file.prefetch(*offset, *len),
                    DONT_NEED => file.drop_clean(*offset, *len),
                    _ => 0,
                };
                Ok(Outcome::Advised { bytes, cache })
            }
            Operation::CacheQuery { handle, state, offset, len, bytes_max } => {
                let file = if *state == StateId::NONE {
                    self.cached(handle).await?
                } else {
                    self.session.open(self.state(*state)?)?.file.cached().cloned()
                };
                Ok(self.cache_query(file.as_deref(), *offset, *len, *bytes_max)?)
            }
            _ => Err(Status::NotSupp.into()),
        }
    }

    /// What is wished holds for all users of a file: only those may who may change it for all, which
    /// are root, its owner, and who may write it.
    async fn may_wish(&self, open: &Open) -> Result<bool, Status> {
        if self.who.uid == 0 || open.write.get() {
            return Ok(true);
        }
        let attr = open.stored.attr().await?;
        self.may_wish_by(&open.handle, &attr).await
    }

    /// The same of a file that is not open for writing.
    pub(crate) async fn may_wish_by(
        &self,
        handle: &FileHandle,
        attr: &Attr,
    ) -> Result<bool, Status> {
        if self.who.uid == 0 || self.who.uid == attr.uid {
            return Ok(true);
        }
        let (_, export, inner) = self.context.shared.exports.of(handle)?;
        let asked = if export.read_only { 0 } else { MAY_WRITE };
        Ok(export.store.access(&self.who, &inner, asked).await? == MAY_WRITE)
    }

    /// What the cache knows of a file that the caller may read; it is not opened for that.
    async fn cached(&self, handle: &FileHandle) -> Result<Option<Arc<CachedFile>>, Status> {
        let handle = self.handle(handle)?;
        let shared = &self.context.shared;
        let (_, export, inner) = shared.exports.of(&handle)?;
        let attr = export.store.attr(&self.who, &inner).await?;
        match attr.kind {
            FileKind::File => {}
            FileKind::Directory => return Err(Status::IsDir),
            _ => return Err(Status::BadType),
        }
        if export.store.access(&self.who, &inner, MAY_READ).await? != MAY_READ {
            return Err(Status::Access);
        }
        Ok(shared.unifier.find(FileId { device: attr.device, inode: attr.inode }))
    }

    fn cache_query(
        &mut self,
        file: Option<&CachedFile>,
        offset: u64,
        len: u64,
        bytes_max: u32,
    ) -> Result<Outcome, Status> {
        let most = (bytes_max as usize).min(SCRATCH_BYTES) / CACHED_RANGE_BYTES;
        if most == 0 {
            return Err(Status::Range);
        }
        let Some(file) = file else { return Ok(Outcome::Cached(CacheInfo::default())) };
        let found = file.query(offset, len, most);
        let bytes = self.put_list(&found.ranges, encode_cached_range)?;
        Ok(Outcome::Cached(CacheInfo { bytes, ..found.info }))
    }
}
