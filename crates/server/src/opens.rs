//! An open file of a session.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use dafs_protocol::{Attr, FileHandle, Status};
use dafs_store::File;
use dafs_unifier::{CacheDomains, Reader, Writer};

use crate::paths::FileData;
use crate::shared::{LimitGuard, Shared};

pub(crate) struct Open {
    /// Its data.
    pub file: FileData,
    /// The file itself, for its attributes.
    pub stored: Arc<dyn File>,
    /// As on the wire.
    pub handle: FileHandle,
    pub read: Cell<bool>,
    pub write: Cell<bool>,
    pub append: bool,
    /// Who writes through it.
    pub writer: Writer,
    pub read_only_export: bool,
    /// What was read of it lately, where the server reads ahead.
    pub reader: Option<RefCell<Reader>>,
    /// Counts against the server's limit of opens.
    pub _limit: LimitGuard,
}

impl Open {
    /// The number of its export.
    pub(crate) fn export_number(&self) -> u8 {
        self.handle.0.last().copied().unwrap_or_default()
    }

    /// The cache has this, or it is being read in; asked only where the server reads ahead.
    pub(crate) fn is_coming(&self, offset: u64, len: usize) -> bool {
        let file = self.file.cached().filter(|_| self.reader.is_some());
        file.is_some_and(|file| file.is_coming(offset, len))
    }

    /// To be told of a read; begins to read in what comes next. `was_there`: the cache had it, or
    /// it was on its way.
    #[inline(always)]
    pub(crate) fn read_ahead(&self, offset: u64, len: usize, was_there: bool) {
        if let (Some(reader), Some(file)) = (&self.reader, self.file.cached()) {
            file.read_ahead(&mut reader.borrow_mut(), offset, len, was_there);
        }
    }

    /// Its session may have written through it what no commit covers.
    pub(crate) fn has_written(&self) -> bool {
        self.write.get() && self.file.cached().is_none_or(|file| file.has_written(self.writer.id))
    }

    /// Attributes as clients see them: those of the store, corrected by what the cache knows.
    pub(crate) async fn attr(&self, unifier: &CacheDomains) -> Result<Attr, Status> {
        let mark = unifier.mark();
        let mut attr = self.stored.attr().await?;
        if let Some(file) = self.file.cached() {
            file.overlay(mark, &mut attr);
        }
        Ok(attr)
    }

    /// Says which file it is that a session left and that cannot be written.
    pub(crate) fn could_not_flush(&self, shared: &Shared, uid: u32, status: Status) {
        let export = shared.exports.iter().nth(self.export_number().into());
        let export = export.map_or("", |export| export.name.as_str());
        let file = self.stored.id();
        let (inode, device) = (file.inode, file.device);
        tracing::error!(
            %status, export, inode, device, uid,
            "file of an ended session could not be written"
        );
    }
}
