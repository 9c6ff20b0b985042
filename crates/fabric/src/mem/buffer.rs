//! Memory with one owner.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Arena, Keep, PAGE_BYTES, PoolPiece, Span};
use crate::error::ArenaError;

/// The mapping behind a buffer; its share count tells whether spans are left.
#[derive(Debug)]
pub(super) struct BufferMemory {
    pub(super) arena: Arc<Arena>,
    pub(super) offset: usize,
    pub(super) len: usize,
    /// Where it goes in the end.
    piece: Option<Arc<PoolPiece>>,
}

impl BufferMemory {
    /// What is registered for the buffer: of a pool all at once.
    pub(super) fn registered(&self) -> Span {
        match &self.piece {
            Some(_) => self.arena.segment(self.offset),
            None => self.arena.span(self.offset, self.len),
        }
    }
}

/// Memory with one owner, page aligned. The owner uses it as a slice; to post it, it is turned
/// into a [`PostedBuffer`] and comes back when no span of it is left.
#[derive(Debug)]
pub struct Buffer {
    span: Span,
}

impl Buffer {
    /// Zeroed memory.
    ///
    /// # Errors
    /// The system refused.
    pub fn new(bytes: usize) -> Result<Buffer, ArenaError> {
        let arena = Arena::new(bytes.max(1))?;
        Ok(Buffer::cut(&arena, 0, bytes))
    }

    /// As [`new`](Buffer::new), all of it there now, in huge pages where the system has them.
    ///
    /// # Errors
    /// As of that.
    pub fn in_huge_pages(bytes: usize) -> Result<Buffer, ArenaError> {
        let segment_bytes = bytes.max(PAGE_BYTES).next_power_of_two();
        let arena = Arena::in_segments(bytes.max(1), segment_bytes)?;
        arena.populate_huge(0, arena.len());
        Ok(Buffer::cut(&arena, 0, bytes))
    }

    /// Cuts one mapping into `count` buffers of `bytes` each, page aligned.
    ///
    /// # Errors
    /// The system refused.
    pub fn many(count: usize, bytes: usize) -> Result<Vec<Buffer>, ArenaError> {
        Buffer::cut_many(count, bytes, Arena::new)
    }

    pub(super) fn cut_many(
        count: usize,
        bytes: usize,
        make: fn(usize) -> Result<Arc<Arena>, ArenaError>,
    ) -> Result<Vec<Buffer>, ArenaError> {
        let stride = bytes.checked_next_multiple_of(PAGE_BYTES).unwrap_or(usize::MAX);
        let total = stride.checked_mul(count).ok_or(ArenaError::Size(usize::MAX))?;
        let arena = make(total.max(1))?;
        Ok((0..count).map(|i| Buffer::cut(&arena, i * stride, bytes)).collect())
    }

    fn cut(arena: &Arc<Arena>, offset: usize, len: usize) -> Buffer {
        Buffer::of(BufferMemory { arena: arena.clone(), offset, len, piece: None })
    }

    /// As it is: whoever takes it from the pool makes it zero.
    pub(super) fn of_pool(piece: PoolPiece) -> Buffer {
        let (arena, offset, len) = (piece.arena().clone(), piece.offset(), piece.len());
        Buffer::of(BufferMemory { arena, offset, len, piece: Some(Arc::new(piece)) })
    }

    fn of(memory: BufferMemory) -> Buffer {
        let len = memory.len;
        let start = memory.arena.span(memory.offset, len).start;
        let memory = Arc::new(memory);
        Buffer { span: Span { start, len, keep: Keep::Buffer(memory) } }
    }

    /// Gives up use as a slice, so that the memory can be posted.
    pub fn post(self) -> PostedBuffer {
        PostedBuffer { span: self.span }
    }

    /// What keeps its addresses, also where the buffer itself is lost.
    pub fn anchor(&self) -> Anchor {
        match &self.span.keep {
            Keep::Buffer(memory) => {
                Anchor { _arena: Some(memory.arena.clone()), _piece: memory.piece.clone() }
            }
            _ => Anchor { _arena: None, _piece: None },
        }
    }

    /// All of it will be used, again and again: memory of a pool goes into huge pages, where it has half of one and
    /// the system gives it. May take milliseconds, the first time. What is in it stays.
    pub fn will_be_filled(&self) {
        if let Keep::Buffer(memory) = &self.span.keep
            && let Some(piece) = &memory.piece
        {
            piece.will_be_filled();
        }
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.span.len
    }

    /// True for no bytes.
    pub fn is_empty(&self) -> bool {
        self.span.is_empty()
    }
}

impl std::ops::Deref for Buffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: the mapping lives as long as the span, and no other span exists while there
        // is a `Buffer`: `PostedBuffer::take_back` made sure.
        unsafe { std::slice::from_raw_parts(self.span.as_ptr(), self.span.len) }
    }
}

impl std::ops::DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, with an exclusive borrow.
        unsafe { std::slice::from_raw_parts_mut(self.span.as_mut_ptr(), self.span.len) }
    }
}

/// While it lives, the memory of a [`Buffer`] is mapped, and is not used for another one.
#[derive(Debug)]
pub struct Anchor {
    _arena: Option<Arc<Arena>>,
    _piece: Option<Arc<PoolPiece>>,
}

/// A buffer that an operation has: spans of it may be posted.
#[derive(Debug)]
pub struct PostedBuffer {
    span: Span,
}

impl PostedBuffer {
    /// What to post.
    pub fn span(&self) -> &Span {
        &self.span
    }

    /// Nobody else has a span of it, nor, where it is not one of a pool, has a device that knows the
    /// mapping.
    pub fn is_unused(&self) -> bool {
        let Keep::Buffer(memory) = &self.span.keep else { return false };
        let of_pool = memory.piece.is_some();
        let unused =
            Arc::strong_count(memory) == 1 && (of_pool || Arc::strong_count(&memory.arena) == 1);
        // What the last holder wrote before its drop is seen after this.
        std::sync::atomic::fence(Ordering::Acquire);
        unused
    }

    /// The buffer again, if no span of it is left anywhere; otherwise itself, to be kept until
    /// then (quiescence).
    ///
    /// # Errors
    /// Itself.
    pub fn take_back(self) -> Result<Buffer, PostedBuffer> {
        match &self.span.keep {
            Keep::Buffer(memory) if Arc::strong_count(memory) == 1 => {
                // What the last holder wrote before its drop is seen after this.
                std::sync::atomic::fence(Ordering::Acquire);
                Ok(Buffer { span: self.span })
            }
            _ => Err(self),
        }
    }
}
