//! Memory that a program has by itself, for networks to touch.

use std::ptr::NonNull;
use std::sync::Arc;

use super::{Arena, Pins};
use crate::error::ArenaError;

impl Arena {
    /// Memory that was not made here, as an arena of one segment. It is not unmapped at the end, and need
    /// not begin at a page. Its owner has it for himself when nobody else holds the arena: see
    /// [`Span::holders`](super::Span::holders).
    ///
    /// # Errors
    /// [`ArenaError::Size`]: no bytes, or more than there can be.
    ///
    /// # Safety
    /// `len` bytes from `start` on can be read and written, by other threads too, until the last span
    /// of the arena is gone. What is in them may be anything.
    pub unsafe fn foreign(start: NonNull<u8>, len: usize) -> Result<Arc<Arena>, ArenaError> {
        let fits = len > 0 && len <= isize::MAX as usize;
        let segment_bytes = len.checked_next_power_of_two().filter(|_| fits);
        let segment_bytes = segment_bytes.ok_or(ArenaError::Size(len))?;
        Ok(Arc::new(Arena {
            base: start,
            len,
            segment_bytes,
            pins: Pins::default(),
            file: None,
            foreign: true,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_there_is_in_the_owners_memory() {
        let mut memory = vec![0u8; 5000];
        let start = NonNull::new(memory.as_mut_ptr()).expect("not null");
        // SAFETY: the vector outlives the arena, and is not touched while there is one.
        let arena = unsafe { Arena::foreign(start, memory.len()) }.expect("an arena");
        let span = arena.span(4990, 10);
        assert_eq!(span.holders(), Some(2));
        span.copy_from(0, &[7; 10]);
        drop((span, arena));
        assert_eq!(memory[4990..], [7; 10]);
        assert_eq!(memory[..4990], [0; 4990]);
        // SAFETY: nothing is made of no bytes.
        assert!(unsafe { Arena::foreign(start, 0) }.is_err());
    }
}
