//! Copies of message headers from span to span.

use super::Span;

impl Span {
    /// Message bytes at `offset`, as many as the array has (not payload, not counted).
    ///
    /// # Panics
    /// When they are not inside.
    #[inline]
    pub fn read_bytes<const N: usize>(&self, offset: usize, into: &mut [u8; N]) {
        assert!(offset <= self.len && N <= self.len - offset, "bytes outside of the span");
        assert!(!self.is_of_file(), "a file is no message");
        // SAFETY: inside the span, as just checked.
        let from = unsafe { self.as_ptr().add(offset) };
        // SAFETY: so many bytes are mapped, and the array has as many, which are of this thread alone.
        // not payload: a message header
        unsafe { std::ptr::copy_nonoverlapping(from, into.as_mut_ptr(), N) };
    }

    /// As [`copy_part`](Self::copy_part), of message bytes (headers, names: not payload, not counted).
    ///
    /// # Panics
    /// As it does, and when `from` is of a file.
    #[inline]
    pub fn copy_message_part(&self, offset: usize, from: &Span, from_offset: usize, len: usize) {
        assert!(offset <= self.len && len <= self.len - offset, "copy outside of the span");
        let is_inside = from_offset <= from.len && len <= from.len - from_offset;
        assert!(is_inside, "copy from outside of the span");
        assert!(!from.is_of_file(), "a file is no message");
        // SAFETY: inside the span, as just checked.
        let to = unsafe { self.as_mut_ptr().add(offset) };
        // SAFETY: as above.
        let start = unsafe { from.as_ptr().add(from_offset) };
        // SAFETY: both ranges are mapped, as just checked.
        // not payload: a message header
        unsafe { std::ptr::copy(start, to, len) };
    }
}
