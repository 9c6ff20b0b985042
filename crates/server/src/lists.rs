//! Operations whose answer is a list or a value: directories, symlinks, extended attributes.

use dafs_protocol::{DirEntry, FileHandle, Operation, Outcome, Status, encode_dir_entry};

use crate::chain::{Chain, SCRATCH_BYTES, Stop};
use crate::exports::Exports;

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
                let (_, export, inner) = self.context.shared.exports.of(&handle)?;
                let value = export.store.xattr(&self.who, &inner, name).await?;
                Ok(self.value(&value, *size_max)?)
            }
            Operation::ListXattr { handle, size_max } => {
                let handle = self.handle(handle)?;
                let (_, export, inner) = self.context.shared.exports.of(&handle)?;
                let names = export.store.list_xattr(&self.who, &inner).await?;
                Ok(self.value(&names, *size_max)?)
            }
            Operation::SetXattr { handle, name, value_bytes, flags } => {
                let value = self.bring_bytes(*value_bytes as usize).await?;
                let handle = self.handle(handle)?;
                let (_, export, inner) = self.writable(&handle)?;
                export.store.set_xattr(&self.who, &inner, name, &value, *flags).await?;
                Ok(Outcome::Done)
            }
            Operation::RemoveXattr { handle, name } => {
                let handle = self.handle(handle)?;
                let (_, export, inner) = self.writable(&handle)?;
                export.store.remove_xattr(&self.who, &inner, name).await?;
                Ok(Outcome::Done)
            }
            _ => Err(Status::NotSupp.into()),
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
            return Ok((exports.virtual_entries(cookie), true));
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
        }
        Ok((entries, listing.end))
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
