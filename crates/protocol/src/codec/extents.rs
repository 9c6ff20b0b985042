//! The reply data of EXTENTS.

use super::DecodeError;
use super::wire::{Put, Reader};
use crate::attr::FileExtent;

/// Bytes of one.
pub const FILE_EXTENT_BYTES: usize = 17;

/// Appends one.
pub fn encode_file_extent(extent: &FileExtent, out: &mut Vec<u8>) {
    out.u64(extent.offset);
    out.u64(extent.len);
    out.flags([extent.unwritten, extent.shared]);
}

/// Takes the reply data of EXTENTS apart. They are in order and do not overlap.
///
/// # Errors
/// [`DecodeError`].
pub fn decode_file_extents(bytes: &[u8]) -> Result<Vec<FileExtent>, DecodeError> {
    let mut r = Reader::new(bytes);
    let mut extents = Vec::with_capacity(bytes.len() / FILE_EXTENT_BYTES);
    let mut end = 0;
    while !r.is_empty() {
        let (offset, len) = (r.u64()?, r.u64()?);
        let [unwritten, shared] = r.flags("extent flags")?;
        if offset < end {
            return Err(DecodeError::Value("extent"));
        }
        end = offset.checked_add(len).ok_or(DecodeError::Value("extent"))?;
        extents.push(FileExtent { offset, len, unwritten, shared });
    }
    Ok(extents)
}
