//! Operations whose answer is a list or a value: directories, symlinks, extended attributes.

use dafs_protocol::{DirEntry, FileHandle, Identity, Operation, Outcome, Status, encode_dir_entry};
use dafs_store::{FileId, Store};
use std::sync::Arc;

use crate::chain::{Chain, Stop};
use crate::context::SCRATCH_BYTES;
use crate::exports::Exports;
use crate::shared::Shared;

const CAPABILITY: &[u8] = b"security.capability";
const MAY_WRITE: u8 = 2;

impl Chain {
    pub(crate) async fn list_operation(
        &mut self,
        operation: &Operation<'_>,
    ) -> Result<Outcome, Stop> {
        match operation {
            Operation::ReadDir { dir, cookie, bytes_max, attributes, handles } => {
                let bytes_max = (*bytes_max as usize).min(SCRATCH_BYTES);
                let (entries, end) =
                    self.entries(dir, *cookie, bytes_max, *attributes, *handles).await?;
                Ok(self.put_entries(&entries, end)?)
            }
            Operation::ReadLink { handle } => {
                let handle = self.handle(handle)?;
                let (_, export, inner) = self.context.shared.exports.of(&handle)?;
                let target = export.store.read_link(&self.who, &inner).await?;
                Ok(self.value(&target, u32::MAX)?)
            }
            Operation::GetXattr { handle, name, size_max } => {
                let handle = self.handle(handle)?;
                // The virtual directory has none.
                if self.context.shared.exports.is_virtual(&handle) {
                    return Err(Status::NoData.into());
                }
                let (_, export, inner) = self.context.shared.exports.of(&handle)?;
                let value = export.store.xattr(&self.who, &inner, name).await?;
                Ok(self.value(&value, *size_max)?)
            }
            Operation::ListXattr { handle, size_max } => {
                let handle = self.handle(handle)?;
                if self.context.shared.exports.is_virtual(&handle) {
                    return Ok(self.value(&[], *size_max)?);
                }
                let (_, export, inner) = self.context.shared.exports.of(&handle)?;
                let names = export.store.list_xattr(&self.who, &inner).await?;
                Ok(self.value(&names, *size_max)?)
            }
            Operation::SetXattr { handle, name, value_bytes, flags } => {
                let value = self.bring_bytes(*value_bytes as usize).await?;
                let handle = self.handle(handle)?;
                let (_, export, inner) = self.writable(&handle)?;
                let touched = self.before_by_handle(&*export.store, &inner).await;
                let set = export.store.set_xattr(&self.who, &inner, name, &value, *flags).await;
                self.after_change(&*export.store, touched).await;
                set?;
                self.list_changed(&*export.store, &inner, name).await?;
                Ok(Outcome::Done)
            }
            Operation::RemoveXattr { handle, name } => {
                let handle = self.handle(handle)?;
                let (_, export, inner) = self.writable(&handle)?;
                let touched = self.before_by_handle(&*export.store, &inner).await;
                let removed = self.remove_xattr(&*export.store, &inner, name).await;
                self.after_change(&*export.store, touched).await;
                removed?;
                self.list_changed(&*export.store, &inner, name).await?;
                Ok(Outcome::Done)
            }
            _ => Err(Status::NotSupp.into()),
        }
    }

    /// After a change of this extended attribute, which may be an access control list.
    async fn list_changed(
        &self,
        store: &dyn Store,
        handle: &FileHandle,
        name: &[u8],
    ) -> Result<(), Status> {
        const LIST: &[u8] = b"system.posix_acl_access";
        // The same, by which root sees it on XFS.
        const AS_STORED: &[u8] = b"trusted.SGI_ACL_FILE";
        match name {
            LIST | AS_STORED => {
                self.rights_changed(&store.attr(&self.who, handle).await?, true).await
            }
            _ => Ok(()),
        }
    }

    /// Whoever may write a file ends its capabilities by that: the kernel of a mount asks for
    /// their end before the write, in the name of who writes, who may not remove them otherwise.
    async fn remove_xattr(
        &self,
        store: &dyn Store,
        handle: &FileHandle,
        name: &[u8],
    ) -> Result<(), Status> {
        match store.remove_xattr(&self.who, handle, name).await {
            Err(Status::Perm) if name == CAPABILITY => {
                if store.access(&self.who, handle, MAY_WRITE).await? & MAY_WRITE == 0 {
                    return Err(Status::Perm);
                }
                store.remove_xattr(&Arc::new(Identity::root()), handle, name).await
            }
            other => other,
        }
    }

    async fn entries(
        &self,
        dir: &FileHandle,
        cookie: u64,
        bytes_max: usize,
        attributes: bool,
        handles: bool,
    ) -> Result<(Vec<DirEntry>, bool), Status> {
        let dir = self.handle(dir)?;
        let exports = &self.context.shared.exports;
        if dir == Exports::virtual_root() && exports.only().is_none() {
            let mut entries = exports.virtual_entries(cookie);
            self.look_at_exports(&mut entries, attributes, handles).await?;
            return Ok((entries, true));
        }
        let (number, export, inner) = exports.of(&dir)?;
        let unifier = &self.context.shared.unifier;
        let mark = unifier.mark();
        let listing = export
            .store
            .read_dir(&self.who, &inner, cookie, bytes_max, attributes, handles)
            .await?;
        let mut entries = listing.entries;
        for entry in &mut entries {
            if let Some(attr) = &mut entry.attr {
                unifier.overlay(mark, attr);
            }
            entry.handle = entry.handle.map(|handle| Exports::mark(number, handle));
            self.number_entry(entry)?;
        }
        Ok((entries, listing.end))
    }

    /// As clients are told it.
    fn number_entry(&self, entry: &mut DirEntry) -> Result<(), Status> {
        let Shared { numbers, exports, .. } = &*self.context.shared;
        let of = |device, inode| {
            numbers.of(exports, &self.context.last_number, FileId { device, inode })
        };
        if let Some(attr) = &mut entry.attr {
            let id = of(attr.device, attr.inode)?;
            (attr.device, attr.number) = (id.device, id.number);
        }
        if let Some(id) = &mut entry.id {
            *id = of(id.device, id.inode)?;
        }
        Ok(())
    }

    /// What the names of exports are of; those that cannot be looked at remain names.
    async fn look_at_exports(
        &self,
        entries: &mut [DirEntry],
        attributes: bool,
        handles: bool,
    ) -> Result<(), Status> {
        let exports = &self.context.shared.exports;
        for entry in entries {
            let Some((number, export)) = exports.named(&entry.name) else { continue };
            let Ok(root) = export.store.root(&self.who).await else { continue };
            entry.handle = handles.then(|| Exports::mark(number, root.handle));
            entry.id = (!attributes).then(|| root.attr.id());
            entry.attr = attributes.then_some(root.attr);
            self.number_entry(entry)?;
        }
        Ok(())
    }

    fn put_entries(&mut self, entries: &[DirEntry], end: bool) -> Result<Outcome, Status> {
        let mut bytes = self.context.header();
        bytes.clear();
        for entry in entries {
            encode_dir_entry(entry, &mut bytes);
        }
        let outcome = self.value(&bytes, u32::MAX);
        self.context.recycle(bytes);
        match outcome? {
            Outcome::Data { bytes, .. } => Ok(Outcome::Data { bytes, end }),
            other => Ok(other),
        }
    }

    /// Answers a value as reply data, or only its size where that is asked for.
    fn value(&mut self, bytes: &[u8], size_max: u32) -> Result<Outcome, Status> {
        let size = u32::try_from(bytes.len()).map_err(|_| Status::TooBig)?;
        if size_max == 0 {
            return Ok(Outcome::Data { bytes: size, end: true });
        }
        if size > size_max {
            return Err(Status::Range);
        }
        self.put(bytes)?;
        Ok(Outcome::Data { bytes: size, end: true })
    }
}
