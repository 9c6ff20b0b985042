//! Reads of bytes in one page that lacks: who asks is told when it is there, and polls nothing.
//!
//! Most reads that miss are such. The fill of the page knows who asked, and holds the page for it as soon
//! as it is the file's. What stands in the way of that is left to [`CachedFile::read`].

use std::sync::Arc;

use crate::blocks::BlockRange;
use crate::file::{Asked, CachedFile, Fill, Inner, PageWaiter, Pinned, PinnedPage, count};
use crate::pool::{Page, Pages};

impl CachedFile {
    /// Begins to read in the page of these bytes, if they are in one, which lacks, and nothing stands in
    /// the way: then the waiter is told of the end by this number. Nothing but that page, a unit of its own, is
    /// held meanwhile, and for the one who is told. False: nothing was begun; it is for
    /// [`read`](Self::read).
    #[inline(always)]
    pub fn read_page_then(
        self: &Arc<Self>,
        (offset, len): (u64, usize),
        waiter: &Arc<dyn PageWaiter>,
        number: usize,
    ) -> bool {
        let asked = || Asked { waiter: waiter.clone(), number, offset, len };
        let begun = {
            let inner = &mut *self.lock();
            let Some(range) = self.lone_page(inner, offset, len) else { return false };
            let Some(handle) = inner.handle.clone() else { return false };
            match self.own_slot(inner) {
                Some(page) => {
                    let pages = Pinned::new(self.core(), Pages::from_slice(&[page]));
                    Ok(self.add_fill(inner, handle, (range, pages), Some(asked())))
                }
                None => Err((range, inner.transfers.arrivals)),
            }
        };
        let fill = match begun {
            Ok(fill) => fill,
            Err(lacking) => match self.fill_elsewhere(lacking, asked()) {
                Some(fill) => fill,
                None => return false,
            },
        };
        count(&self.core().counters.misses, 1);
        fill.begin();
        true
    }

    /// Adds a fill of a block, which lacked after so many arrivals, in a slot that is free or another file's.
    #[inline(never)]
    fn fill_elsewhere(
        self: &Arc<Self>,
        (range, arrivals): (BlockRange, u64),
        asked: Asked,
    ) -> Option<Arc<Fill>> {
        let core = self.core();
        let pages = match self.replace(core) {
            Some(page) => Pages::from_slice(&[page]),
            None => core.allocate(range.first, range.count)?,
        };
        let pages = Pinned::new(core, pages);
        self.new_fill(&range, pages, Some(arrivals), Some(asked)).ok()?
    }

    /// The block of these bytes, if one lacks, and nothing else is to be read in with it, or before.
    #[inline(always)]
    fn lone_page(&self, inner: &Inner, offset: u64, len: usize) -> Option<BlockRange> {
        if !self.is_in_one_page(inner, offset, len) {
            return None;
        }
        let range = self.reach(inner, offset, len, false);
        let is_free = inner.exclusive.is_none() && self.core().fill_queue.is_empty();
        (range.count == 1 && is_free && self.lacks(inner, &range)).then_some(range)
    }

    /// Holds what was asked for of a page that was read in for it. The caller has its pin.
    #[inline(always)]
    pub(crate) fn hold_asked(
        &self,
        inner: &mut Inner,
        page: Page,
        asked: &Asked,
    ) -> Option<PinnedPage> {
        let &Asked { offset, len, .. } = asked;
        let is_in_one = self.is_in_one_page(inner, offset, len);
        is_in_one.then(|| self.hold_page(inner, page, offset, len).keep())
    }

    /// A pinned slot for one block, where none is free: that of what goes next, if it is the file's own.
    #[inline(always)]
    fn own_slot(&self, inner: &mut Inner) -> Option<Page> {
        if self.core().pool.may_have(1) {
            return None;
        }
        let gives = |unit, block| self.gives(inner, unit, block);
        let page = self.core().pool.take_next(self.number(), gives)?;
        count(&self.core().counters.evicted_slots, 1);
        Some(page)
    }
}
