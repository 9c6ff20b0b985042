//! Bytes in one page, held for who reads them, and who is told that they are there.

use std::sync::Arc;

use dafs_fabric::{Piece, Span};
use dafs_protocol::Status;

use super::core::Core;
use crate::pool::Page;

/// Bytes in one page of a file, held for a reader as those of a [`PinnedRead`](crate::PinnedRead) are.
pub struct PinnedPage {
    pub(crate) core: Arc<Core>,
    /// That is pinned.
    pub(crate) unit: Page,
    /// Where in the arena.
    pub(crate) start: usize,
    pub(crate) len: usize,
    pub(crate) end_of_file: bool,
}

impl PinnedPage {
    /// The bytes.
    #[inline]
    pub fn span(&self) -> Span {
        self.core.pool.span(self.start, self.len)
    }

    /// The same, to be used at once.
    #[inline]
    pub fn piece(&self) -> Piece<'_> {
        self.core.pool.piece(self.start, self.len)
    }

    /// How many.
    #[inline]
    pub fn bytes(&self) -> usize {
        self.len
    }

    /// The file ends before the end of what was asked for, or there.
    #[inline]
    pub fn end_of_file(&self) -> bool {
        self.end_of_file
    }
}

impl Drop for PinnedPage {
    #[inline(always)]
    fn drop(&mut self) {
        self.core.pool.unpin(self.unit);
    }
}

/// How a [read](super::CachedFile::read_page_then) of bytes in one page ended.
pub enum PageEnd {
    /// They are here.
    Here(PinnedPage),
    /// The store has no such bytes to give.
    Failed(Status),
    /// They were written, or dropped, while they were read in: to be read again.
    Again,
}

/// Who is told of the ends of [reads](super::CachedFile::read_page_then).
pub trait PageWaiter: Send + Sync {
    /// The read of this number has ended. Once, in whatever thread, also before the call that began it
    /// has returned; with no lock of the cache.
    fn ended(&self, number: usize, end: PageEnd);
}

/// Bytes in one page, and who is told that they are there.
#[derive(Clone)]
pub(crate) struct Asked {
    pub(crate) waiter: Arc<dyn PageWaiter>,
    pub(crate) number: usize,
    pub(crate) offset: u64,
    pub(crate) len: usize,
}

impl Asked {
    #[inline(always)]
    pub(crate) fn tell(self, end: PageEnd) {
        self.waiter.ended(self.number, end);
    }
}
