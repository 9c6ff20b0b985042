//! What an operation may say. Both ends check: the client before it sends, the server before it
//! believes.

use super::DecodeError;
use crate::attr::FileKind;
use crate::identity::GROUPS_MAX;
use crate::operation::{
    DATA_BYTES_MAX, Extent, NAME_BYTES_MAX, Operation, PATH_BYTES_MAX, PIECES_MAX,
    SYMLINK_BYTES_MAX, XATTR_BYTES_MAX,
};
use crate::reference::REFERENCES_MAX;

/// Bytes of a block of which there are references.
const BLOCK: u64 = 4096;
/// Largest offset of a byte in a file, as the kernel has it.
const OFFSET_MAX: u64 = i64::MAX as u64;

/// Checks a chain's parts and sums their data.
#[derive(Debug, Default)]
pub(super) struct Checker {
    request_bytes: u64,
    reply_bytes: u64,
}

impl Checker {
    pub fn operation(&mut self, operation: &Operation<'_>) -> Result<(), DecodeError> {
        if let Operation::Read { extents: list, .. } = operation {
            extents(list.as_slice())?;
            self.reply_bytes = add(self.reply_bytes, list.bytes())?;
            return Ok(());
        }
        fields(operation)?;
        self.request_bytes = add(self.request_bytes, operation.request_data_bytes())?;
        self.reply_bytes = add(self.reply_bytes, operation.reply_data_bytes())?;
        Ok(())
    }
}

/// What [`Checker::operation`] says of a READ of one piece.
#[inline]
pub(super) fn plain_read(offset: u64, len: u32) -> Result<(), DecodeError> {
    let end = offset.checked_add(u64::from(len));
    in_range(end.is_some_and(|end| end <= OFFSET_MAX), "extent")?;
    in_range(len as usize <= DATA_BYTES_MAX, "data")
}

fn add(sum: u64, more: Option<u64>) -> Result<u64, DecodeError> {
    more.and_then(|more| sum.checked_add(more))
        .filter(|sum| *sum <= DATA_BYTES_MAX as u64)
        .ok_or(DecodeError::Limit("data"))
}

fn fields(operation: &Operation<'_>) -> Result<(), DecodeError> {
    use Operation as O;
    match operation {
        O::GetRoot { export: [] } => Ok(()),
        O::GetRoot { export } => name(export),
        O::Lookup { path, .. } | O::Open { path, .. } => check_path(path),
        O::Create { name: new, kind, target_bytes, .. } => {
            let target_bytes = *target_bytes as usize;
            if (*kind == FileKind::Symlink) != (target_bytes != 0) || *kind == FileKind::File {
                return Err(DecodeError::Value("kind of file"));
            }
            at_most(target_bytes, SYMLINK_BYTES_MAX, "symlink target")?;
            name(new)
        }
        O::Link { name: new, .. } | O::Remove { name: new, .. } => name(new),
        O::Rename { from, to, no_replace, exchange, whiteout, .. } => {
            if *exchange && (*no_replace || *whiteout) {
                return Err(DecodeError::Value("rename flags"));
            }
            name(from)?;
            name(to)
        }
        O::Access { mask, .. } => in_range(*mask <= 7, "access mask"),
        O::GetXattr { name, size_max, .. } => {
            at_most(*size_max as usize, XATTR_BYTES_MAX, "attribute value")?;
            xattr_name(name)
        }
        O::SetXattr { name, value_bytes, flags, .. } => {
            at_most(*value_bytes as usize, XATTR_BYTES_MAX, "attribute value")?;
            in_range(*flags <= 2, "attribute flags")?;
            xattr_name(name)
        }
        O::ListXattr { size_max, .. } => {
            at_most(*size_max as usize, XATTR_BYTES_MAX, "attribute list")
        }
        O::RemoveXattr { name, .. } => xattr_name(name),
        O::Read { extents: list, .. } | O::Write { extents: list, .. } => extents(list.as_slice()),
        O::Commit { offset, len, .. }
        | O::Fallocate { offset, len, .. }
        | O::Advise { offset, len, .. }
        | O::CacheQuery { offset, len, .. }
        | O::Extents { offset, len, .. } => range(*offset, *len),
        O::CopyRange { from_offset, to_offset, len, .. }
        | O::CloneRange { from_offset, to_offset, len, .. } => {
            range(*from_offset, *len)?;
            range(*to_offset, *len)
        }
        O::Seek { offset, .. } => range(*offset, 0),
        O::RefsGet { first, count, .. } => {
            at_most(*count as usize, REFERENCES_MAX, "references")?;
            let end = first.checked_add(u64::from(*count)).and_then(|end| end.checked_mul(BLOCK));
            in_range(end.is_some_and(|end| end <= OFFSET_MAX + 1), "blocks")
        }
        O::CredRegister { groups, .. } => {
            at_most(groups.len(), GROUPS_MAX * 4, "groups")?;
            in_range(groups.len().is_multiple_of(4), "groups")
        }
        O::Null | O::LookupParent { .. } | O::Close { .. } | O::OpenDowngrade { .. } => Ok(()),
        O::ReadDir { .. } | O::ReadLink { .. } | O::GetAttr { .. } | O::SetAttr { .. } => Ok(()),
        O::StatFs { .. } | O::Append { .. } | O::SyncFs { .. } | O::SyncDir { .. } => Ok(()),
        O::LockCancel { ticket } => in_range(ticket.0 != 0, "ticket"),
        O::CredRelease { .. } | O::SessionStats | O::SessionDestroy => Ok(()),
        O::SlotQuery { .. } | O::Unknown { .. } => Ok(()),
        O::Lock { .. } | O::LockTest { .. } | O::Unlock { .. } => Ok(()),
        O::OwnerRelease { .. } | O::ReclaimComplete => Ok(()),
    }
}

fn in_range(is: bool, what: &'static str) -> Result<(), DecodeError> {
    if is { Ok(()) } else { Err(DecodeError::Value(what)) }
}

fn at_most(len: usize, max: usize, what: &'static str) -> Result<(), DecodeError> {
    if len <= max { Ok(()) } else { Err(DecodeError::Limit(what)) }
}

/// One component: no way up, down or to itself.
pub(super) fn name(name: &[u8]) -> Result<(), DecodeError> {
    at_most(name.len(), NAME_BYTES_MAX, "name")?;
    let special = name.is_empty() || name == b"." || name == b"..";
    in_range(!special && !name.iter().any(|byte| matches!(byte, 0 | b'/')), "name")
}

fn xattr_name(name: &[u8]) -> Result<(), DecodeError> {
    at_most(name.len(), NAME_BYTES_MAX, "attribute name")?;
    in_range(!name.is_empty() && !name.contains(&0), "attribute name")
}

fn check_path(path: &[u8]) -> Result<(), DecodeError> {
    at_most(path.len(), PATH_BYTES_MAX, "path")?;
    in_range(!path.contains(&0), "path")
}

fn range(offset: u64, len: u64) -> Result<(), DecodeError> {
    // `u64::MAX` and such as "to the end" come from many a caller: only the start is bounded.
    in_range(offset <= OFFSET_MAX && offset.checked_add(len).is_some(), "range")
}

fn extents(list: &[Extent]) -> Result<(), DecodeError> {
    if let [Extent { offset, len, count: 1, .. }] = list {
        let end = offset.checked_add(u64::from(*len));
        return in_range(end.is_some_and(|end| end <= OFFSET_MAX), "extent");
    }
    in_range(!list.is_empty(), "extents")?;
    let mut pieces = 0u64;
    for extent in list {
        pieces += u64::from(extent.count);
        let end = u64::from(extent.count.saturating_sub(1))
            .checked_mul(if extent.count == 1 { 0 } else { extent.stride })
            .and_then(|start| start.checked_add(extent.offset))
            .and_then(|start| start.checked_add(u64::from(extent.len)));
        let empty_pieces = extent.count != 1 && extent.len == 0;
        let fits = end.is_some_and(|end| end <= OFFSET_MAX);
        in_range(extent.count != 0 && !empty_pieces && fits, "extent")?;
    }
    if pieces > PIECES_MAX { Err(DecodeError::Limit("pieces")) } else { Ok(()) }
}
