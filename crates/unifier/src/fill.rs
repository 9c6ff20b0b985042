//! Filling pages from the store.

use std::sync::Arc;
use std::task::Poll;

use dafs_fabric::mem::PAGE_BYTES;
use dafs_protocol::Status;
use smallvec::SmallVec;

use crate::blocks::BlockRange;
use crate::file::{CachedFile, FILL_SLOTS_MAX, Fill, Filling, Inner, Job, Pinned, place};
use crate::job::Outcome;
use crate::planted::{Defect, planted};
use crate::policy::Origin;
use crate::pool::{FRAME_SLOTS, Page, Pages, SLOT, units};

/// Most reads wait for one.
pub(crate) type Fills = SmallVec<[Awaited; 1]>;

/// A fill that somebody waits for; what it brings stays until the waiter has seen it.
pub(crate) struct Awaited {
    pub(crate) job: Arc<Job>,
    blocks: BlockRange,
    pages: Arc<Pinned>,
}

impl Awaited {
    /// Where it brings this block.
    pub(crate) fn page_of(&self, block: u64) -> Option<Page> {
        let index = usize::try_from(block.checked_sub(self.blocks.first)?).ok()?;
        self.pages.pages.get(index).copied()
    }

    /// It failed, and nothing but blocks of this range was asked for.
    pub(crate) fn has_failed_within(&self, offset: u64, len: usize) -> bool {
        let BlockRange { first, count } = self.blocks;
        let end = offset.saturating_add(len as u64).div_ceil(SLOT);
        let within = offset / SLOT <= first && first + count as u64 <= end;
        within && matches!(self.job.poll(None), Poll::Ready(Err(_)))
    }
}

/// The pages of each stretch.
pub(crate) type Allocated = SmallVec<[Arc<Pinned>; 1]>;

impl CachedFile {
    pub(crate) fn allocate_all(&self, ranges: &[BlockRange]) -> Option<Allocated> {
        let mut all = Allocated::new();
        for range in ranges {
            let pages = self.core.allocate(range.first, range.count)?;
            all.push(Arc::new(Pinned::new(&self.core, pages)));
        }
        Some(all)
    }

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

    /// Begins to fill these blocks, if all of them still are missing. They were, after so many
    /// `arrivals`, if that is known.
    pub(crate) fn start_fill(
        self: &Arc<Self>,
        range: &BlockRange,
        pages: Arc<Pinned>,
        arrivals: Option<u64>,
    ) -> Result<Option<Awaited>, Status> {
        let started = {
            let inner = &mut *self.lock();
            let handle = inner.handle.clone().ok_or(Status::BadStateId)?;
            let is_as_seen = arrivals == Some(inner.transfers.arrivals);
            if inner.exclusive.is_some() || !(is_as_seen || inner.lacks(range)) {
                return Ok(None);
            }
            let id = inner.transfers.next_id();
            let (file, first) = (self.clone(), range.first);
            let fill = Fill::new(file, handle, pages.clone(), id, first);
            let fill = Filling {
                id,
                first: range.first,
                count: range.count,
                void: [0; FILL_SLOTS_MAX / 64],
                job: Job::prompt(fill),
                pages,
            };
            let started = fill.awaited();
            inner.transfers.arrivals += 1;
            inner.transfers.fills.push(fill);
            started
        };
        self.core.jobs.start(&started.job);
        Ok(Some(started))
    }

    /// A fill has ended.
    pub(crate) fn filled(&self, id: u64, pages: &Pinned, answer: Result<usize, Status>) -> Outcome {
        if let Ok(bytes) = answer {
            self.zero_from(&pages.pages, bytes);
        }
        let inner = &mut *self.lock();
        let at =
            inner.transfers.fills.iter().position(|fill| fill.id == id).expect("a fill is listed");
        let fill = inner.transfers.fills.swap_remove(at);
        if answer.is_ok() {
            self.install(inner, &fill);
        }
        answer.map(|_| ())
    }

    /// The store gave `bytes`: what follows them in the pages is somebody else's.
    fn zero_from(&self, pages: &Pages, bytes: usize) {
        if planted(Defect::StaleTailOfFill) {
            return;
        }
        for (index, page) in pages.iter().enumerate().skip(bytes / PAGE_BYTES) {
            let valid = bytes.saturating_sub(index * PAGE_BYTES);
            self.core.pool.part(*page, valid, PAGE_BYTES).zero();
        }
    }

    /// What was written or dropped meanwhile is newer than what was read in.
    fn install(&self, inner: &mut Inner, fill: &Filling) {
        let mut installed = Pages::from_slice(&fill.pages.pages);
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
            let valid = size.saturating_sub(block * SLOT).min(SLOT) as usize;
            if valid < PAGE_BYTES && !planted(Defect::StaleTailOfFill) {
                self.core.pool.part(*page, valid, PAGE_BYTES).zero();
            }
            let old = std::mem::replace(&mut cluster.pages[slot], *page);
            if !old.is_none() {
                self.core.pool.unmap(old);
            }
            self.core.pool.publish(*page, self.number(), block);
            count += 1;
        }
        let is_empty = cluster.is_empty() && cluster.writing == 0;
        for unit in units(pages) {
            let slots = pages.iter().filter(|page| !page.is_none() && page.unit() == unit).count();
            self.core.pool.map(unit, slots);
        }
        if is_empty {
            inner.blocks.clusters.remove(number);
        }
        crate::file::count(&self.core.counters.filled_slots, count);
    }
}

impl Filling {
    pub(crate) fn awaited(&self) -> Awaited {
        let blocks = BlockRange { first: self.first, count: self.count };
        Awaited { job: self.job.clone(), blocks, pages: self.pages.clone() }
    }
}
