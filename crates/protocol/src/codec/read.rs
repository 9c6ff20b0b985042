//! READ of one piece, and its answer, as one block of bytes each: most messages are these.
//!
//! The bytes are those of [`super::operations`] and [`super::outcomes`], which take all else.

use super::{DecodeError, HEAD_BYTES, RequestHead, check, hash, operations, wire};
use crate::handle::{CredHandle, SlotId, StateId};
use crate::opcode::{self, outcome};
use crate::operation::{Extent, ExtentList, OpResult, Operation, Outcome};

/// Bytes of number and length, state, flags, number of extents (1), offset, length, pieces (1).
const OPERATION_BYTES: usize = 4 + 26;
/// Bytes of number and length, status (0), bytes, flags.
const RESULT_BYTES: usize = 4 + 9;

/// Bytes of a request that is one such READ.
pub const PLAIN_READ_BYTES: usize = HEAD_BYTES + OPERATION_BYTES;
/// Bytes of the answer to one that succeeded.
pub const PLAIN_READ_REPLY_BYTES: usize = HEAD_BYTES + RESULT_BYTES;

/// A request that is one READ of one piece, and nothing else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlainRead {
    /// Slot, sequence, credential.
    pub head: RequestHead,
    /// The open file.
    pub state: StateId,
    /// Of the first byte.
    pub offset: u64,
    /// How many bytes.
    pub len: u32,
}

impl PlainRead {
    /// As [`Request::hash`](super::Request::hash) is of such a request: what is not in it is the same
    /// in all of them.
    #[inline]
    pub fn hash(&self) -> u64 {
        let halves = u64::from(self.head.cred.0) << 32 | u64::from(self.len);
        hash::hash_words([halves, self.state.0, self.offset])
    }

    /// Its bytes.
    ///
    /// # Errors
    /// [`DecodeError`] where [`decode_plain_read`] would refuse it.
    #[inline]
    pub fn encode(&self) -> Result<[u8; PLAIN_READ_BYTES], DecodeError> {
        check::plain_read(self.offset, self.len)?;
        let mut bytes = [0; PLAIN_READ_BYTES];
        bytes[0..2].copy_from_slice(&self.head.slot.0.to_le_bytes());
        bytes[2] = 1;
        bytes[4..8].copy_from_slice(&self.head.sequence.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.head.cred.0.to_le_bytes());
        let operation = operation_bytes(self.state, self.offset, self.len);
        bytes[HEAD_BYTES..].copy_from_slice(&operation);
        Ok(bytes)
    }

    /// As an operation of a chain.
    pub fn operation(&self) -> Operation<'static> {
        let extents = ExtentList::one(self.offset, self.len);
        Operation::Read { state: self.state, extents }
    }
}

#[inline]
fn operation_bytes(state: StateId, offset: u64, len: u32) -> [u8; OPERATION_BYTES] {
    let mut bytes = [0; OPERATION_BYTES];
    bytes[0..4].copy_from_slice(&number_and_length(opcode::READ, OPERATION_BYTES));
    bytes[4..12].copy_from_slice(&state.0.to_le_bytes());
    bytes[13] = 1;
    bytes[14..22].copy_from_slice(&offset.to_le_bytes());
    bytes[22..26].copy_from_slice(&len.to_le_bytes());
    bytes[26..30].copy_from_slice(&1u32.to_le_bytes());
    bytes
}

/// Appends an operation with its number and length.
pub(super) fn put_operation(out: &mut Vec<u8>, operation: &Operation<'_>) {
    if let Operation::Read { state, extents } = operation
        && let [Extent { offset, len, count: 1, .. }] = extents.as_slice()
    {
        return out.extend_from_slice(&operation_bytes(*state, *offset, *len));
    }
    wire::Put::u16(out, operation.opcode());
    wire::with_length(out, |out| operations::put(out, operation));
}

/// Takes a request apart if it is one READ of one piece, and a valid one. `None`: it is for
/// [`decode_request`](super::decode_request) to say what it is.
#[inline]
pub fn decode_plain_read(bytes: &[u8]) -> Option<PlainRead> {
    let bytes: &[u8; PLAIN_READ_BYTES] = bytes.try_into().ok()?;
    let is_one = bytes[2..4] == [1, 0]
        && bytes[12..16] == number_and_length(opcode::READ, OPERATION_BYTES)
        && bytes[24..26] == [0, 1]
        && bytes[38..42] == [1, 0, 0, 0];
    let slot = SlotId(u16::from_le_bytes([bytes[0], bytes[1]]));
    let (sequence, cred) = (u32_at(bytes, 4), CredHandle(u32_at(bytes, 8)));
    let head = RequestHead { slot, sequence, cred };
    let (state, offset, len) = (StateId(u64_at(bytes, 16)), u64_at(bytes, 26), u32_at(bytes, 34));
    let is_valid = is_one && check::plain_read(offset, len).is_ok();
    is_valid.then_some(PlainRead { head, state, offset, len })
}

/// The answer to a [plain read](PlainRead) that succeeded.
#[inline]
pub fn encode_plain_read_reply(
    slot: SlotId,
    sequence: u32,
    (bytes, end_of_file): (u32, bool),
) -> [u8; PLAIN_READ_REPLY_BYTES] {
    let mut reply = [0; PLAIN_READ_REPLY_BYTES];
    reply[0..2].copy_from_slice(&slot.0.to_le_bytes());
    reply[2] = 1;
    reply[4..8].copy_from_slice(&sequence.to_le_bytes());
    reply[HEAD_BYTES..].copy_from_slice(&result_bytes(bytes, end_of_file));
    reply
}

#[inline]
fn result_bytes(bytes: u32, end_of_file: bool) -> [u8; RESULT_BYTES] {
    let mut block = [0; RESULT_BYTES];
    block[0..4].copy_from_slice(&number_and_length(outcome::READ, RESULT_BYTES));
    block[8..12].copy_from_slice(&bytes.to_le_bytes());
    block[12] = u8::from(end_of_file);
    block
}

/// Appends the result of a READ with its number and length; false, and nothing, if it is of
/// another kind.
pub(super) fn put_result(out: &mut Vec<u8>, result: &OpResult) -> bool {
    let Ok(Outcome::Read { bytes, end_of_file }) = result else { return false };
    out.extend_from_slice(&result_bytes(*bytes, *end_of_file));
    true
}

/// Takes a reply apart if it is the one result of a READ that succeeded: slot, sequence, bytes, and
/// whether the file ends.
#[inline]
pub fn decode_read_reply(bytes: &[u8]) -> Option<(SlotId, u32, u32, bool)> {
    let bytes: &[u8; PLAIN_READ_REPLY_BYTES] = bytes.try_into().ok()?;
    let is_one = bytes[2..4] == [1, 0]
        && bytes[8..12] == [0; 4]
        && bytes[12..16] == number_and_length(outcome::READ, RESULT_BYTES)
        && bytes[16..20] == [0; 4]
        && bytes[24] <= 1;
    let slot = SlotId(u16::from_le_bytes([bytes[0], bytes[1]]));
    is_one.then(|| (slot, u32_at(bytes, 4), u32_at(bytes, 20), bytes[24] == 1))
}

const fn number_and_length(number: u16, bytes: usize) -> [u8; 4] {
    let [a, b] = number.to_le_bytes();
    [a, b, (bytes - 4) as u8, 0]
}

#[inline(always)]
fn u64_at<const OF: usize>(bytes: &[u8; OF], at: usize) -> u64 {
    bytes[at..].first_chunk().map_or(0, |long| u64::from_le_bytes(*long))
}

#[inline(always)]
fn u32_at<const OF: usize>(bytes: &[u8; OF], at: usize) -> u32 {
    bytes[at..].first_chunk().map_or(0, |word| u32::from_le_bytes(*word))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::codec::wire::Put;
    use crate::codec::{
        decode_any_results, decode_chain, decode_request, encode_request, encode_results, outcomes,
    };

    #[test]
    fn a_request_is_what_the_table_of_operations_says() {
        let extents = ExtentList::one(0x1122_3344_5566_7788, 0x99aa_bbcc);
        let read = Operation::Read { state: StateId(0xddee_ff01_0203_0405), extents };
        let head = RequestHead { slot: SlotId(0x607), sequence: 0x809_0a0b, cred: CredHandle(12) };
        let (mut bytes, mut table) = (Vec::new(), Vec::new());
        put_operation(&mut bytes, &read);
        table.u16(read.opcode());
        wire::with_length(&mut table, |out| operations::put(out, &read));
        assert_eq!(bytes, table);

        bytes.clear();
        let small = Operation::Read { state: StateId(7), extents: ExtentList::one(1 << 40, 4096) };
        encode_request(&head, &[small], &mut bytes).expect("short");
        let (mut hashes, mut changed) = (HashSet::new(), 0);
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut other = bytes.clone();
                other[at] ^= 1 << bit;
                let Some(read) = decode_plain_read(&other) else { continue };
                let chain = decode_chain(&other).expect("valid for both");
                let whole = (read.head, vec![read.operation()]);
                assert_eq!(whole, (chain.head, chain.operations.to_vec()), "bit {bit} of {at}");
                assert_eq!(read.encode().as_ref().map(|bytes| &bytes[..]), Ok(&other[..]));
                assert_eq!(decode_request(&other).map(|request| request.hash), Ok(read.hash()));
                hashes.insert(read.hash());
                changed += usize::from(read.head.cred != head.cred || other[12..] != bytes[12..]);
            }
        }
        // What is not of the head changes the hash, and slot and sequence do not.
        assert_eq!(hashes.len(), changed + 1);
        assert!(decode_plain_read(&bytes).is_some() && decode_chain(&bytes).is_ok());
    }

    #[test]
    fn a_reply_is_what_the_table_of_outcomes_says() {
        let outcome = Outcome::Read { bytes: 0x1234_5678, end_of_file: true };
        let (mut bytes, mut table) = (Vec::new(), Vec::new());
        assert!(put_result(&mut bytes, &Ok(outcome.clone())));
        table.u16(outcome::READ);
        wire::with_length(&mut table, |out| {
            out.u32(0);
            outcomes::put(out, &outcome);
        });
        assert_eq!(bytes, table);

        bytes.clear();
        encode_results(SlotId(0x607), 0x809_0a0b, Ok(&[Ok(outcome)]), &mut bytes);
        assert_eq!(bytes, encode_plain_read_reply(SlotId(0x607), 0x809_0a0b, (0x1234_5678, true)));
        assert!(decode_read_reply(&bytes).is_some());
        let mut results = Vec::new();
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut other = bytes.clone();
                other[at] ^= 1 << bit;
                results.clear();
                let table = decode_any_results(&other, &mut results);
                let Some((slot, sequence, bytes, end_of_file)) = decode_read_reply(&other) else {
                    continue;
                };
                assert_eq!(table, Ok((slot, sequence, Ok(()))), "bit {bit} of {at}");
                assert_eq!(results, [Ok(Outcome::Read { bytes, end_of_file })]);
            }
        }
    }
}
