//! READ of one piece, and its answer, as one block of bytes each: most messages are these.
//!
//! The bytes are those of [`super::operations`] and [`super::outcomes`], which take all else.

use super::{HEAD_BYTES, RequestHead, operations, wire};
use crate::handle::{CredHandle, SlotId, StateId};
use crate::opcode::{self, outcome};
use crate::operation::{Extent, ExtentList, OpResult, Operation, Outcome};

/// Bytes of number and length, state, flags, number of extents (1), offset, length, pieces (1).
const OPERATION_BYTES: usize = 4 + 26;
/// Bytes of number and length, status (0), bytes, flags.
const RESULT_BYTES: usize = 4 + 9;

/// Appends an operation with its number and length.
pub(super) fn put_operation(out: &mut Vec<u8>, operation: &Operation<'_>) {
    if let Operation::Read { state, extents } = operation
        && let [Extent { offset, len, count: 1, .. }] = extents.as_slice()
    {
        let mut bytes = [0; OPERATION_BYTES];
        bytes[0..4].copy_from_slice(&number_and_length(opcode::READ, OPERATION_BYTES));
        bytes[4..12].copy_from_slice(&state.0.to_le_bytes());
        bytes[13] = 1;
        bytes[14..22].copy_from_slice(&offset.to_le_bytes());
        bytes[22..26].copy_from_slice(&len.to_le_bytes());
        bytes[26..30].copy_from_slice(&1u32.to_le_bytes());
        return out.extend_from_slice(&bytes);
    }
    wire::Put::u16(out, operation.opcode());
    wire::with_length(out, |out| operations::put(out, operation));
}

/// Takes a request apart if it is one such READ.
pub(super) fn request(bytes: &[u8]) -> Option<(RequestHead, Operation<'static>)> {
    let bytes: &[u8; HEAD_BYTES + OPERATION_BYTES] = bytes.try_into().ok()?;
    let is_one = bytes[2..4] == [1, 0]
        && bytes[12..16] == number_and_length(opcode::READ, OPERATION_BYTES)
        && bytes[24..26] == [0, 1]
        && bytes[38..42] == [1, 0, 0, 0];
    is_one.then(|| {
        let slot = SlotId(u16::from_le_bytes(part(bytes, 0)));
        let (sequence, cred) = (u32_at(bytes, 4), CredHandle(u32_at(bytes, 8)));
        let state = StateId(u64::from_le_bytes(part(bytes, 16)));
        let extents = ExtentList::one(u64::from_le_bytes(part(bytes, 26)), u32_at(bytes, 34));
        (RequestHead { slot, sequence, cred }, Operation::Read { state, extents })
    })
}

/// Appends the result of a READ with its number and length; false, and nothing, if it is of
/// another kind.
pub(super) fn put_result(out: &mut Vec<u8>, result: &OpResult) -> bool {
    let Ok(Outcome::Read { bytes, end_of_file }) = result else { return false };
    let mut block = [0; RESULT_BYTES];
    block[0..4].copy_from_slice(&number_and_length(outcome::READ, RESULT_BYTES));
    block[8..12].copy_from_slice(&bytes.to_le_bytes());
    block[12] = u8::from(*end_of_file);
    out.extend_from_slice(&block);
    true
}

/// Takes a reply apart if it is such a result: slot, sequence, bytes, and whether the file ends.
pub(super) fn reply(bytes: &[u8]) -> Option<(SlotId, u32, u32, bool)> {
    let bytes: &[u8; HEAD_BYTES + RESULT_BYTES] = bytes.try_into().ok()?;
    let is_one = bytes[2..4] == [1, 0]
        && bytes[8..12] == [0; 4]
        && bytes[12..16] == number_and_length(outcome::READ, RESULT_BYTES)
        && bytes[16..20] == [0; 4]
        && bytes[24] <= 1;
    is_one.then(|| {
        let slot = SlotId(u16::from_le_bytes(part(bytes, 0)));
        (slot, u32_at(bytes, 4), u32_at(bytes, 20), bytes[24] == 1)
    })
}

fn number_and_length(number: u16, bytes: usize) -> [u8; 4] {
    let [a, b] = number.to_le_bytes();
    [a, b, (bytes - 4) as u8, 0]
}

fn part<const N: usize, const OF: usize>(bytes: &[u8; OF], at: usize) -> [u8; N] {
    std::array::from_fn(|index| bytes[at + index])
}

fn u32_at<const OF: usize>(bytes: &[u8; OF], at: usize) -> u32 {
    u32::from_le_bytes(part(bytes, at))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::wire::Put;
    use crate::codec::{
        decode_any_results, decode_chain, encode_request, encode_results, outcomes,
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
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut other = bytes.clone();
                other[at] ^= 1 << bit;
                let whole = request(&other).map(|(head, read)| (head, vec![read]));
                if let (Some(whole), Ok(chain)) = (whole, decode_chain(&other)) {
                    assert_eq!(whole, (chain.head, chain.operations.to_vec()), "bit {bit} of {at}");
                }
            }
        }
        assert!(request(&bytes).is_some() && decode_chain(&bytes).is_ok());
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
        assert!(reply(&bytes).is_some());
        let mut results = Vec::new();
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut other = bytes.clone();
                other[at] ^= 1 << bit;
                results.clear();
                let table = decode_any_results(&other, &mut results);
                let Some((slot, sequence, bytes, end_of_file)) = reply(&other) else { continue };
                assert_eq!(table, Ok((slot, sequence, Ok(()))), "bit {bit} of {at}");
                assert_eq!(results, [Ok(Outcome::Read { bytes, end_of_file })]);
            }
        }
    }
}
