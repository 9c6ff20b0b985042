//! The reply data of CACHE_QUERY.

use super::DecodeError;
use super::wire::{Put, Reader};
use crate::cache::CachedRange;

/// Bytes of one.
pub const CACHED_RANGE_BYTES: usize = 17;

/// Appends one.
pub fn encode_cached_range(range: &CachedRange, out: &mut Vec<u8>) {
    out.u64(range.offset);
    out.u64(range.len);
    out.flags([range.dirty]);
}

/// Takes the reply data of CACHE_QUERY apart. They are in order and do not overlap.
///
/// # Errors
/// [`DecodeError`].
pub fn decode_cached_ranges(bytes: &[u8]) -> Result<Vec<CachedRange>, DecodeError> {
    let mut r = Reader::new(bytes);
    let mut ranges = Vec::with_capacity(bytes.len() / CACHED_RANGE_BYTES);
    let mut end = 0;
    while !r.is_empty() {
        let (offset, len, dirty) = (r.u64()?, r.u64()?, r.bool("cached range flags")?);
        if offset < end || len == 0 {
            return Err(DecodeError::Value("cached range"));
        }
        end = offset.checked_add(len).ok_or(DecodeError::Value("cached range"))?;
        ranges.push(CachedRange { offset, len, dirty });
    }
    Ok(ranges)
}
