//! READ of one piece, and its answer, as one block of bytes each: most messages are these.
//!
//! The bytes are those of [`super::operations`] and [`super::outcomes`], which take all else.

use super::{operations, wire};
use crate::handle::StateId;
use crate::opcode::{self, outcome};
use crate::operation::{Extent, ExtentList, OpResult, Operation, Outcome};

/// Bytes of the operation: state, flags, number of extents (1), offset, length, pieces (1).
const OPERATION_BYTES: usize = 26;
/// Bytes of the result: status (0), bytes, flags.
const RESULT_BYTES: usize = 9;

/// Appends an operation with its number and length.
pub(super) fn put_operation(out: &mut Vec<u8>, operation: &Operation<'_>) {
    if let Operation::Read { state, extents } = operation
        && let [Extent { offset, len, count: 1, .. }] = extents.as_slice()
    {
        let mut bytes = [0; 4 + OPERATION_BYTES];
        bytes[0..2].copy_from_slice(&opcode::READ.to_le_bytes());
        bytes[2..4].copy_from_slice(&(OPERATION_BYTES as u16).to_le_bytes());
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

/// The operation with this number and body, if it is such a READ.
pub(super) fn operation(number: u16, body: &[u8]) -> Option<Operation<'static>> {
    let body: &[u8; OPERATION_BYTES] = body.try_into().ok()?;
    let is_one = number == opcode::READ && body[8..10] == [0, 1] && body[22..26] == [1, 0, 0, 0];
    is_one.then(|| {
        let extents = ExtentList::one(u64::from_le_bytes(part(body, 10)), u32_at(body, 18));
        Operation::Read { state: StateId(u64::from_le_bytes(part(body, 0))), extents }
    })
}

/// Appends the result of a READ with its number and length; false, and nothing, if it is of
/// another kind.
pub(super) fn put_result(out: &mut Vec<u8>, result: &OpResult) -> bool {
    let Ok(Outcome::Read { bytes, end_of_file }) = result else { return false };
    let mut block = [0; 4 + RESULT_BYTES];
    block[0..2].copy_from_slice(&outcome::READ.to_le_bytes());
    block[2..4].copy_from_slice(&(RESULT_BYTES as u16).to_le_bytes());
    block[8..12].copy_from_slice(&bytes.to_le_bytes());
    block[12] = u8::from(*end_of_file);
    out.extend_from_slice(&block);
    true
}

/// The result with this number and body, if it is such a one: bytes, and whether the file ends.
pub(super) fn result(number: u16, body: &[u8]) -> Option<(u32, bool)> {
    let body: &[u8; RESULT_BYTES] = body.try_into().ok()?;
    let is_read = number == outcome::READ && body[0..4] == [0; 4] && body[8] <= 1;
    is_read.then(|| (u32_at(body, 4), body[8] == 1))
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
    use crate::codec::outcomes;
    use crate::codec::wire::{Put, Reader};

    #[test]
    fn they_are_what_the_tables_of_operations_and_outcomes_say() {
        let extents = ExtentList::one(0x1122_3344_5566_7788, 0x99aa_bbcc);
        let read = Operation::Read { state: StateId(0xddee_ff01_0203_0405), extents };
        let (mut block, mut general) = (Vec::new(), Vec::new());
        put_operation(&mut block, &read);
        general.u16(read.opcode());
        wire::with_length(&mut general, |out| operations::put(out, &read));
        assert_eq!(block, general);
        let body = &block[4..];
        assert_eq!(operation(opcode::READ, body), Some(read.clone()));
        assert_eq!(operations::get(opcode::READ, &mut Reader::new(body)), Ok(read));
        assert_eq!(operation(opcode::WRITE, body), None);
        for at in [8, 9, 22, 25] {
            let mut other = body.to_vec();
            other[at] ^= 2;
            assert_eq!(operation(opcode::READ, &other), None, "byte {at}");
        }

        let outcome = Outcome::Read { bytes: 0x1234_5678, end_of_file: true };
        let (mut block, mut general) = (Vec::new(), Vec::new());
        assert!(put_result(&mut block, &Ok(outcome.clone())));
        general.u16(outcome::READ);
        wire::with_length(&mut general, |out| {
            out.u32(0);
            outcomes::put(out, &outcome);
        });
        assert_eq!(block, general);
        assert_eq!(result(outcome::READ, &block[4..]), Some((0x1234_5678, true)));
        assert_eq!(result(outcome::DATA, &block[4..]), None);
        for (at, value) in [(4, 1), (12, 2)] {
            let mut other = block.clone();
            other[at] = value;
            assert_eq!(result(outcome::READ, &other[4..]), None, "byte {at}");
        }
    }
}
