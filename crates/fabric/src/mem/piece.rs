//! Bytes that somebody else keeps alive.

use std::marker::PhantomData;
use std::ptr::NonNull;

use super::{Arena, Keep, Span, copy_payload};

/// Bytes of an arena or a span, as long as that is borrowed: for what is done at once, a span without a
/// share in its memory.
#[derive(Debug, Clone, Copy)]
pub struct Piece<'a> {
    start: NonNull<u8>,
    len: usize,
    owner: PhantomData<&'a Arena>,
}

impl Piece<'_> {
    pub(super) fn as_ptr(&self) -> *const u8 {
        self.start.as_ptr()
    }

    /// A part of it.
    ///
    /// # Panics
    /// When it is not inside.
    pub fn part(&self, offset: usize, len: usize) -> Self {
        assert!(offset <= self.len && len <= self.len - offset, "part outside of the piece");
        // SAFETY: inside, as just checked.
        let start = unsafe { self.start.add(offset) };
        Piece { start, len, owner: PhantomData }
    }

    /// Bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// True for no bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl Arena {
    /// As [`span`](Self::span), of what is used at once.
    ///
    /// # Panics
    /// When they are not inside the arena.
    #[inline(always)]
    pub fn piece(&self, offset: usize, len: usize) -> Piece<'_> {
        assert!(offset <= self.len && len <= self.len - offset, "piece outside of the arena");
        // SAFETY: inside the mapping, as just checked.
        let start = unsafe { self.base.add(offset) };
        Piece { start, len, owner: PhantomData }
    }
}

impl Span {
    /// All of it, to be used at once. `None`: a file, which is read by its descriptor.
    #[inline]
    pub fn piece(&self) -> Option<Piece<'_>> {
        let is_memory = !matches!(self.keep, Keep::File(_));
        is_memory.then_some(Piece { start: self.start, len: self.len, owner: PhantomData })
    }

    /// Copies all of `from` to the span's bytes at `offset`; counted.
    ///
    /// # Panics
    /// When they do not fit.
    #[inline]
    pub fn copy_piece(&self, offset: usize, from: Piece<'_>) {
        assert!(offset <= self.len && from.len <= self.len - offset, "copy outside of the span");
        // SAFETY: inside the span, as just checked.
        let to = unsafe { self.as_mut_ptr().add(offset) };
        // SAFETY: both ranges are mapped: the span has one, and what has the other is borrowed.
        unsafe { copy_payload(from.start.as_ptr(), to, from.len) };
    }
}
