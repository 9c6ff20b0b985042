//! Filling pages from the store.

use std::sync::Arc;

use dafs_fabric::mem::PAGE_BYTES;
use dafs_protocol::Status;
use dafs_store::File;
use smallvec::SmallVec;

use crate::blocks::BlockRange;
use crate::file::{Asked, CachedFile, Core, Fill, Filling, Inner, Pinned, PinnedPage, place};
use crate::planted::{Defect, planted};
use crate::policy::Origin;
use crate::pool::{FRAME_SLOTS, Page, Pages, SLOT, units};

/// Most reads wait for one.
pub(crate) type Fills = SmallVec<[Arc<Fill>; 1]>;

/// The pages of each stretch.
pub(crate) type Allocated = SmallVec<[Pinned; 1]>;

/// Pages of this cache for each stretch, or none.
pub(crate) fn allocate_all(core: &Arc<Core>, ranges: &[BlockRange]) -> Option<Allocated> {
    let mut all = Allocated::new();
    for range in ranges {
        all.push(Pinned::new(core, core.allocate(range.first, range.count)?));
    }
    Some(all)
}

impl CachedFile {
    /// Begins to fill what still is missing.
    pub(crate) fn start_fills(
        self: &Arc<Self>,
        ranges: &[BlockRange],
        pages: Allocated,
    ) -> Result<Fills, Status> {
        let mut started = Fills::new();
        for (range, pages) in ranges.iter().zip(pages) {
            started.extend(self.start_fill(range, pages, None)?);
        }
        Ok(started)
    }

    /// Begins to fill these blocks, if all of them still are missing, and the pages of the cache in which the file
    /// still is. They were, after so many `arrivals`, if that is known.
    pub(crate) fn start_fill(
        self: &Arc<Self>,
        range: &BlockRange,
        pages: Pinned,
        arrivals: Option<u64>,
    ) -> Result<Option<Arc<Fill>>, Status> {
        let fill = self.new_fill(range, pages, arrivals, None)?;
        if let Some(fill) = &fill {
            fill.begin();
        }
        Ok(fill)
    }

    /// As [`start_fill`](Self::start_fill), but that it is to be begun.
    pub(crate) fn new_fill(
        self: &Arc<Self>,
        range: &BlockRange,
        pages: Pinned,
        arrivals: Option<u64>,
        asked: Option<Asked>,
    ) -> Result<Option<Arc<Fill>>, Status> {
        let inner = &mut *self.lock();
        let handle = inner.handle.clone().ok_or(Status::BadStateId)?;
        let is_as_seen = arrivals == Some(inner.transfers.arrivals);
        if inner.exclusive.is_some()
            || !self.is_in(&pages.core)
            || !(is_as_seen || self.lacks(inner, range))
        {
            return Ok(None);
        }
        Ok(Some(self.add_fill(inner, handle, (*range, pages), asked)))
    }

    /// One is under way from now on, and to be [begun](Fill::begin) without the lock.
    #[inline(always)]
    pub(crate) fn add_fill(
        self: &Arc<Self>,
        inner: &mut Inner,
        handle: Arc<dyn File>,
        (range, pages): (BlockRange, Pinned),
        asked: Option<Asked>,
    ) -> Arc<Fill> {
        let fill = Fill::new(self.clone(), handle, (range, pages), asked);
        inner.transfers.begin_fill(&fill);
        self.core().fill_filter.add(self.place(), range);
        fill
    }

    /// A fill has ended: what who is told of it asked for, if it is there.
    pub(crate) fn filled(&self, fill: &Fill, answer: Result<usize, Status>) -> Option<PinnedPage> {
        if let Ok(bytes) = answer {
            self.zero_from(fill.pages(), bytes);
        }
        let inner = &mut *self.lock();
        let filling = inner.transfers.end_fill(fill)?;
        let blocks = BlockRange { first: filling.first, count: filling.count };
        self.core().fill_filter.take(self.place(), blocks);
        match (answer, fill.pages()) {
            (Err(_), _) => None,
            (Ok(_), [page]) => {
                let is_there = self.install_one(inner, &filling, *page);
                let asked = fill.asked().filter(|_| is_there)?;
                self.hold_asked(inner, *page, asked)
            }
            (Ok(_), _) => {
                self.install(inner, &filling);
                None
            }
        }
    }

    /// The store gave `bytes`: what follows them in the pages is somebody else's.
    fn zero_from(&self, pages: &[Page], bytes: usize) {
        if bytes == pages.len() * PAGE_BYTES || planted(Defect::StaleTailOfFill) {
            return;
        }
        for (index, page) in pages.iter().enumerate().skip(bytes / PAGE_BYTES) {
            let valid = bytes.saturating_sub(index * PAGE_BYTES);
            self.core().pool.part(*page, valid, PAGE_BYTES).zero();
        }
    }

    /// What was written or dropped meanwhile is newer than what was read in.
    fn install(&self, inner: &mut Inner, fill: &Filling) {
        let mut installed = Pages::from_slice(fill.fill.pages());
        let mut index = 0;
        while index < installed.len() {
            let (number, slot) = place(fill.first + index as u64);
            let count = (FRAME_SLOTS - slot).min(installed.len() - index);
            let pages = &mut installed[index..index + count];
            let void = |nth: usize| fill.void[nth / 64] >> (nth % 64) & 1 != 0;
            self.install_in(inner, (number, slot), pages, |nth| void(index + nth));
            index += count;
        }
        self.may_go(&installed, fill.first, Origin::ByRead);
    }

    /// As [`install`](Self::install), of one page; false: what is there is newer.
    #[inline(always)]
    fn install_one(&self, inner: &mut Inner, fill: &Filling, page: Page) -> bool {
        let (block, size) = (fill.first, inner.size);
        let (number, slot) = place(block);
        let cluster = inner.cluster(number);
        let old = cluster.pages[slot];
        let is_late = fill.void[0] & 1 != 0 || !old.is_none();
        if is_late && !planted(Defect::LateFillWins) {
            if cluster.is_empty() && cluster.writing == 0 {
                inner.blocks.clusters.remove(number);
            }
            return false;
        }
        cluster.pages[slot] = page;
        if !old.is_none() {
            self.core().pool.unmap(old);
        }
        self.zero_behind(page, block, size);
        self.core().pool.publish(page, (self.number(), size), block);
        self.core().pool.map(page.unit(), 1);
        crate::file::count(&self.core().counters.filled_slots, 1);
        self.may_go(&[page], block, Origin::ByRead);
        true
    }

    /// Behind the end of a file of this size are zeros.
    #[inline(always)]
    fn zero_behind(&self, page: Page, block: u64, size: u64) {
        let valid = size.saturating_sub(block * SLOT).min(SLOT) as usize;
        if valid < PAGE_BYTES && !planted(Defect::StaleTailOfFill) {
            self.core().pool.part(page, valid, PAGE_BYTES).zero();
        }
    }

    /// Some pages of one cluster; those that are not installed become none.
    fn install_in(
        &self,
        inner: &mut Inner,
        (number, first): (u64, usize),
        pages: &mut [Page],
        is_void: impl Fn(usize) -> bool,
    ) {
        let size = inner.size;
        let cluster = inner.cluster(number);
        let mut count = 0;
        for (index, page) in pages.iter_mut().enumerate() {
            let slot = first + index;
            let late = is_void(index) || !cluster.pages[slot].is_none();
            if late && !planted(Defect::LateFillWins) {
                *page = Page::NONE;
                continue;
            }
            let block = number * FRAME_SLOTS as u64 + slot as u64;
            self.zero_behind(*page, block, size);
            let old = std::mem::replace(&mut cluster.pages[slot], *page);
            if !old.is_none() {
                self.core().pool.unmap(old);
            }
            self.core().pool.publish(*page, (self.number(), size), block);
            count += 1;
        }
        let is_empty = cluster.is_empty() && cluster.writing == 0;
        for unit in units(pages) {
            let slots = pages.iter().filter(|page| !page.is_none() && page.unit() == unit).count();
            self.core().pool.map(unit, slots);
        }
        if is_empty {
            inner.blocks.clusters.remove(number);
        }
        crate::file::count(&self.core().counters.filled_slots, count);
    }
}
