//! Directory entries, as READDIR's reply data holds them: one after the other, without a count.

use super::DecodeError;
use super::wire::{Put, Reader, handle_bytes, with_length};
use super::{attrs, check};
use crate::attr::DirEntry;
use crate::operation::{DATA_BYTES_MAX, NAME_BYTES_MAX};

/// Appends a directory entry (as READDIR's reply data holds them). Its name must be a plain one:
/// not empty, `.` or `..`, at most [`NAME_BYTES_MAX`] bytes, without `/` and NUL.
pub fn encode_dir_entry(entry: &DirEntry, out: &mut Vec<u8>) {
    debug_assert!(check::name(&entry.name).is_ok(), "name {:?}", entry.name);
    with_length(out, |out| {
        out.u64(entry.cookie);
        out.u8(entry.kind.map_or(0, |kind| kind as u8));
        out.flags([entry.attr.is_some(), entry.handle.is_some(), entry.id.is_some()]);
        out.short(&entry.name);
        if let Some(attr) = &entry.attr {
            attrs::put_attr(out, attr);
        }
        if let Some(handle) = &entry.handle {
            out.handle(handle);
        }
        if let Some(id) = &entry.id {
            attrs::put_id(out, id);
        }
    });
}

/// Bytes that `encode_dir_entry` would append.
pub fn dir_entry_bytes(entry: &DirEntry) -> usize {
    let fixed = 2 + 8 + 1 + 1 + 1;
    fixed
        + entry.name.len().min(NAME_BYTES_MAX)
        + entry.attr.as_ref().map_or(0, attrs::attr_bytes)
        + entry.handle.as_ref().map_or(0, handle_bytes)
        + entry.id.map_or(0, |_| attrs::ID_BYTES)
}

/// Takes READDIR's reply data apart.
///
/// # Errors
/// [`DecodeError`].
pub fn decode_dir_entries(bytes: &[u8]) -> Result<Vec<DirEntry>, DecodeError> {
    dir_entries(bytes).collect()
}

/// Takes READDIR's reply data apart, an entry at a time. Ends after the first error.
pub fn dir_entries(bytes: &[u8]) -> DirEntries<'_> {
    DirEntries { reader: Reader::new(bytes), too_long: bytes.len() > DATA_BYTES_MAX }
}

/// See [`dir_entries`].
#[derive(Debug, Clone)]
pub struct DirEntries<'a> {
    reader: Reader<'a>,
    too_long: bool,
}

impl Iterator for DirEntries<'_> {
    type Item = Result<DirEntry, DecodeError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.reader.is_empty() {
            return None;
        }
        let entry = if self.too_long {
            Err(DecodeError::Limit("directory entries"))
        } else {
            self.reader.long().and_then(entry)
        };
        if entry.is_err() {
            self.reader = Reader::new(&[]);
        }
        Some(entry)
    }
}

fn entry(bytes: &[u8]) -> Result<DirEntry, DecodeError> {
    let mut r = Reader::new(bytes);
    let (cookie, kind) = (r.u64()?, attrs::optional_kind(&mut r)?);
    let [has_attr, has_handle, has_id] = r.flags("entry flags")?;
    let name = r.short()?;
    check::name(name)?;
    let attr = if has_attr { Some(attrs::attr(&mut r)?) } else { None };
    let handle = if has_handle { Some(r.handle()?) } else { None };
    let id = if has_id { Some(attrs::id(&mut r)?) } else { None };
    r.end()?;
    Ok(DirEntry { cookie, name: name.to_vec(), kind, attr, handle, id })
}
