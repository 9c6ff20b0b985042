//! Copies of message headers from span to span.

use super::Span;

impl Span {
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
