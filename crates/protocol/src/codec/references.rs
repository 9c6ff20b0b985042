//! The result and the reply data of REFS_GET.

use super::DecodeError;
use super::wire::{Put, Reader};
use crate::reference::{LifeWord, NO_SLOT, NamedReference, REFERENCE_BYTES, ReferenceInfo};

pub(super) fn put(out: &mut Vec<u8>, info: &ReferenceInfo) {
    out.u32(info.bytes);
    out.u32(info.epoch);
    [info.file, info.cache, info.entries].into_iter().for_each(|number| out.u64(number));
    for word in [info.server, info.session] {
        out.u32(word.number);
        out.u64(word.value);
    }
}

pub(super) fn get(r: &mut Reader<'_>) -> Result<ReferenceInfo, DecodeError> {
    let life = |r: &mut Reader<'_>| -> Result<LifeWord, DecodeError> {
        Ok(LifeWord { number: r.u32()?, value: r.u64()? })
    };
    Ok(ReferenceInfo {
        bytes: r.u32()?,
        epoch: r.u32()?,
        file: r.u64()?,
        cache: r.u64()?,
        entries: r.u64()?,
        server: life(r)?,
        session: life(r)?,
    })
}

pub(super) fn put_named(out: &mut Vec<u8>, named: &NamedReference) {
    let bytes = named.as_bytes();
    out.u8(bytes.len() as u8);
    out.extend_from_slice(bytes); // not payload: a name
}

pub(super) fn get_named(r: &mut Reader<'_>) -> Result<NamedReference, DecodeError> {
    let len = usize::from(r.u8()?);
    let named = NamedReference::new(r.take(len)?);
    named.ok_or(DecodeError::Value("bytes of a named reference"))
}

/// Appends the slot of each block, [`NO_SLOT`] where there is none.
pub fn encode_references(slots: impl IntoIterator<Item = Option<u32>>, out: &mut Vec<u8>) {
    slots.into_iter().for_each(|slot| out.u32(slot.unwrap_or(NO_SLOT)));
}

/// Takes the reply data of REFS_GET apart: the slot of each block, in order. What does not fill the last one
/// is left out.
pub fn decode_references(bytes: &[u8]) -> impl ExactSizeIterator<Item = Option<u32>> + '_ {
    bytes.as_chunks::<REFERENCE_BYTES>().0.iter().map(|bytes| {
        let slot = u32::from_le_bytes(*bytes);
        (slot != NO_SLOT).then_some(slot)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_survive_and_a_part_of_one_is_none() {
        let slots = [Some(0), None, Some(NO_SLOT - 1)];
        let mut bytes = Vec::new();
        encode_references(slots, &mut bytes);
        bytes.extend([1, 2, 3]);
        assert!(decode_references(&bytes).eq(slots));
        assert_eq!(decode_references(&[]).len(), 0);
    }
}
