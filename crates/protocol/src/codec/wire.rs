//! Little-endian numbers, flags, handles and short strings: the letters of the wire format.

use super::DecodeError;
use crate::handle::{FileHandle, StateId, WriteVerifier};

/// In place of a handle's length: [`FileHandle::PREVIOUS`].
const PREVIOUS: u8 = 0xff;

/// Takes bytes from the front of a message.
#[derive(Debug, Clone)]
pub(super) struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { bytes }
    }

    pub fn rest(&self) -> &'a [u8] {
        self.bytes
    }

    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    pub fn end(&self) -> Result<(), DecodeError> {
        if self.bytes.is_empty() { Ok(()) } else { Err(DecodeError::Trailing) }
    }

    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (head, rest) = self.bytes.split_first_chunk::<N>().ok_or(DecodeError::Short)?;
        self.bytes = rest;
        Ok(*head)
    }

    pub fn take(&mut self, len: usize) -> Result<&'a [u8], DecodeError> {
        let (head, rest) = self.bytes.split_at_checked(len).ok_or(DecodeError::Short)?;
        self.bytes = rest;
        Ok(head)
    }

    pub fn take_all(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.bytes)
    }

    pub fn u8(&mut self) -> Result<u8, DecodeError> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub fn u16(&mut self) -> Result<u16, DecodeError> {
        self.array().map(u16::from_le_bytes)
    }

    pub fn u32(&mut self) -> Result<u32, DecodeError> {
        self.array().map(u32::from_le_bytes)
    }

    pub fn u64(&mut self) -> Result<u64, DecodeError> {
        self.array().map(u64::from_le_bytes)
    }

    pub fn i64(&mut self) -> Result<i64, DecodeError> {
        self.array().map(i64::from_le_bytes)
    }

    pub fn bool(&mut self, what: &'static str) -> Result<bool, DecodeError> {
        Ok(self.flags::<1>(what)? == [true])
    }

    /// A byte of flags, the first in the lowest bit. Bits beyond the last must be 0.
    pub fn flags<const N: usize>(&mut self, what: &'static str) -> Result<[bool; N], DecodeError> {
        let byte = self.u8()?;
        if u32::from(byte) >> N != 0 {
            return Err(DecodeError::Value(what));
        }
        Ok(std::array::from_fn(|bit| byte >> bit & 1 == 1))
    }

    /// Bytes after a length of one byte.
    pub fn short(&mut self) -> Result<&'a [u8], DecodeError> {
        let len = self.u8()?;
        self.take(usize::from(len))
    }

    /// Bytes after a length of two bytes.
    pub fn long(&mut self) -> Result<&'a [u8], DecodeError> {
        let len = self.u16()?;
        self.take(usize::from(len))
    }

    pub fn handle(&mut self) -> Result<FileHandle, DecodeError> {
        let len = self.u8()?;
        if len == PREVIOUS {
            return Ok(FileHandle::PREVIOUS);
        }
        let mut handle = FileHandle::default();
        let to = handle.0.get_mut(..usize::from(len)).ok_or(DecodeError::Limit("handle"))?;
        to.copy_from_slice(self.take(usize::from(len))?);
        if to.last() == Some(&0) {
            return Err(DecodeError::Value("handle"));
        }
        Ok(handle)
    }

    pub fn state(&mut self) -> Result<StateId, DecodeError> {
        self.u64().map(StateId)
    }

    pub fn verifier(&mut self) -> Result<WriteVerifier, DecodeError> {
        self.array().map(WriteVerifier)
    }
}

/// Appends to a message.
pub(super) trait Put {
    fn bytes(&mut self, bytes: &[u8]);

    fn u8(&mut self, value: u8) {
        self.bytes(&[value]);
    }
    fn u16(&mut self, value: u16) {
        self.bytes(&value.to_le_bytes());
    }
    fn u32(&mut self, value: u32) {
        self.bytes(&value.to_le_bytes());
    }
    fn u64(&mut self, value: u64) {
        self.bytes(&value.to_le_bytes());
    }
    fn i64(&mut self, value: i64) {
        self.bytes(&value.to_le_bytes());
    }
    fn flags<const N: usize>(&mut self, flags: [bool; N]) {
        const { assert!(N <= 8) };
        self.u8(flags.iter().rev().fold(0, |byte, flag| byte << 1 | u8::from(*flag)));
    }
    /// At most 255 bytes; callers check before. What is longer is cut.
    fn short(&mut self, bytes: &[u8]) {
        let len = u8::try_from(bytes.len()).unwrap_or(u8::MAX);
        self.u8(len);
        self.bytes(bytes.get(..usize::from(len)).unwrap_or(bytes));
    }
    /// At most 65,535 bytes; callers check before. What is longer is cut.
    fn long(&mut self, bytes: &[u8]) {
        let len = u16::try_from(bytes.len()).unwrap_or(u16::MAX);
        self.u16(len);
        self.bytes(bytes.get(..usize::from(len)).unwrap_or(bytes));
    }
    fn handle(&mut self, handle: &FileHandle) {
        if *handle == FileHandle::PREVIOUS {
            return self.u8(PREVIOUS);
        }
        self.short(trimmed(handle));
    }
    fn state(&mut self, state: StateId) {
        self.u64(state.0);
    }
    fn verifier(&mut self, verifier: &WriteVerifier) {
        self.bytes(&verifier.0);
    }
}

impl Put for Vec<u8> {
    fn bytes(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// Bytes that a handle takes.
pub(super) fn handle_bytes(handle: &FileHandle) -> usize {
    1 + if *handle == FileHandle::PREVIOUS { 0 } else { trimmed(handle).len() }
}

fn trimmed(handle: &FileHandle) -> &[u8] {
    let len = handle.0.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    handle.0.get(..len).unwrap_or(&handle.0)
}

/// Writes a length in front of what `body` appends.
pub(super) fn with_length(out: &mut Vec<u8>, body: impl FnOnce(&mut Vec<u8>)) {
    let at = out.len();
    out.u16(0);
    body(out);
    let len = u16::try_from(out.len() - at - 2).unwrap_or(u16::MAX);
    if let Some(place) = out.get_mut(at..at + 2) {
        place.copy_from_slice(&len.to_le_bytes());
    }
}
