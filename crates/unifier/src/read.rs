//! Reading: leases of cached pages, and what is to be filled for them.

use std::mem::ManuallyDrop;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use dafs_fabric::mem::PAGE_BYTES;
use dafs_fabric::{Piece, SgList, Span};
use dafs_protocol::Status;
use smallvec::SmallVec;

use crate::blocks::{BlockRange, BlockRanges};
use crate::file::{CachedFile, Core, Counters, Filling, Inner, Pinned, PinnedPage, count, place};
use crate::fill::{Allocated, Fills, allocate_all};
use crate::job::{Job, wait_all};
use crate::pool::{FRAME_SLOTS, Page, Run, Runs, SLOT};
use crate::wait::Ticket;

/// Requests of at least this size, and files of at most this size, are read in by clusters.
const CLUSTER_BYTES: u64 = SLOT * FRAME_SLOTS as u64;

/// Fills of one file under way, above which none is begun ahead of time.
const FILLS_MAX: usize = 1024;

/// Pages of a file, held for a reader. Writers do not wait for it: it keeps what it has seen.
pub struct PinnedRead {
    core: Arc<Core>,
    /// Each pinned once.
    units: SmallVec<[Page; 4]>,
    runs: Runs,
    len: usize,
    end_of_file: bool,
    pub(crate) was_coming: bool,
}

impl PinnedRead {
    /// The bytes.
    #[inline(always)]
    pub fn spans(&self) -> SgList {
        self.core.pool.spans(&self.runs)
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Nothing there.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The file ends before the end of what was asked for, or there.
    pub fn end_of_file(&self) -> bool {
        self.end_of_file
    }

    /// Who asked for it found all of it cached, or being read in.
    pub fn was_coming(&self) -> bool {
        self.was_coming
    }

    /// The same in a smaller form, if it is bytes in one page.
    ///
    /// # Errors
    /// It is not: the same again.
    #[inline]
    pub fn into_page(mut self) -> Result<PinnedPage, PinnedRead> {
        let ([page], Some(Run { start, len })) = (self.units.as_slice(), self.runs.only()) else {
            return Err(self);
        };
        let is_in_one = len > 0 && start / PAGE_BYTES == (start + len - 1) / PAGE_BYTES;
        if !is_in_one {
            return Err(self);
        }
        let (core, unit, end_of_file) = (self.core.clone(), *page, self.end_of_file);
        // The pin is the other one's.
        self.units.clear();
        Ok(PinnedPage { core, unit, start, len, end_of_file })
    }
}

impl Drop for PinnedRead {
    fn drop(&mut self) {
        for unit in &self.units {
            self.core.pool.unpin(*unit);
        }
    }
}

/// Bytes in one page of a file, held as those of a [`PinnedPage`] are, as long as the file is borrowed: for what
/// is done at once.
pub struct HeldPage<'a> {
    core: &'a Arc<Core>,
    unit: Page,
    start: usize,
    len: usize,
    end_of_file: bool,
}

impl HeldPage<'_> {
    /// The bytes.
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

    /// For longer.
    pub fn keep(self) -> PinnedPage {
        let held = ManuallyDrop::new(self);
        let HeldPage { core, unit, start, len, end_of_file } = *held;
        // The pin is that page's now.
        PinnedPage { core: core.clone(), unit, start, len, end_of_file }
    }
}

/// Pages of one cache that are pinned one after the other and let go together.
#[derive(Default)]
pub struct PinnedPages {
    core: Option<Arc<Core>>,
    /// Each pinned once.
    units: SmallVec<[Page; 8]>,
}

impl PinnedPages {
    /// A page may be among them: it is of the cache of which all are.
    #[inline]
    pub fn takes(&self, page: &HeldPage<'_>) -> bool {
        self.core.as_ref().is_none_or(|core| Arc::ptr_eq(core, page.core))
    }

    /// Holds a page that it [takes](Self::takes): its bytes.
    ///
    /// # Panics
    /// When that is of another cache.
    #[inline(always)]
    pub fn keep(&mut self, page: HeldPage<'_>) -> Span {
        assert!(self.takes(&page), "a page of another cache");
        let held = ManuallyDrop::new(page);
        self.core.get_or_insert_with(|| held.core.clone());
        // The pin is one of these now.
        self.units.push(held.unit);
        held.core.pool.span(held.start, held.len)
    }
}

impl Drop for PinnedPages {
    fn drop(&mut self) {
        if let Some(core) = &self.core {
            self.units.iter().for_each(|unit| core.pool.unpin(*unit));
        }
    }
}

impl Drop for HeldPage<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.core.pool.unpin(self.unit);
    }
}

impl PinnedPage {
    /// The same for who may have several pages; `was_coming`: see there.
    pub fn into_read(self, was_coming: bool) -> PinnedRead {
        let PinnedPage { core, unit, start, len, end_of_file } = &self;
        // Both have a pin for a moment.
        core.pool.pin(*unit, false);
        PinnedRead {
            core: core.clone(),
            units: SmallVec::from_iter([*unit]),
            runs: Runs::one(*start, *len),
            len: *len,
            end_of_file: *end_of_file,
            was_coming,
        }
    }
}

/// What a look for bytes that may be in one page came to.
pub enum PageLook<'a> {
    /// They are.
    Held(HeldPage<'a>),
    /// Their page is not cached.
    Lacking,
    /// They are in several pages, or there are none.
    Other,
}

/// The blocks of a cluster that a mask has, by runs.
fn runs(number: u64, mask: u16) -> impl Iterator<Item = Range<u64>> {
    let base = number * FRAME_SLOTS as u64;
    let mut left = u32::from(mask);
    std::iter::from_fn(move || {
        if left == 0 {
            return None;
        }
        let start = left.trailing_zeros();
        let end = start + (left >> start).trailing_ones();
        left &= u32::MAX << end;
        Some(base + u64::from(start)..base + u64::from(end))
    })
}

/// The slots of a cluster that these blocks are.
pub(crate) fn slots(number: u64, blocks: &Range<u64>) -> u16 {
    let base = number * FRAME_SLOTS as u64;
    let from = blocks.start.saturating_sub(base).min(FRAME_SLOTS as u64);
    let to = blocks.end.saturating_sub(base).min(FRAME_SLOTS as u64);
    (((1u32 << to) - 1) & !((1u32 << from) - 1)) as u16
}

/// What a read has met before it does [whatever it takes](CachedFile::read_all).
#[derive(Default)]
pub(crate) struct SoFar {
    /// A fill failed: nothing is read in beside what was asked for.
    pub(crate) exact: bool,
    /// It is counted as a miss, and this is whether what it asked for was on its way.
    pub(crate) missed: Option<bool>,
}

pub(crate) enum Plan {
    Lease(PinnedRead),
    /// Until this has ended.
    Wait(Arc<Job>),
    /// What lacks, what is being read in, and what is there: it stays meanwhile.
    Fill(SmallVec<[BlockRange; 4]>, Fills, Pinned),
}

/// Pins a page for a reader of some of its bytes, from `offset` on: where they end.
#[inline(always)]
fn pin_page(core: &Core, inner: &mut Inner, page: Page, offset: u64, asked: u64) -> u64 {
    let is_rest =
        offset == inner.reads.end && !offset.is_multiple_of(page.unit_slots() as u64 * SLOT);
    core.pool.pin(page.unit(), !is_rest);
    inner.reads.end = asked.min(inner.size);
    inner.reads.end
}

impl CachedFile {
    /// Everything asked for, if it is cached; `None`: use [`read`](Self::read).
    #[inline]
    pub fn try_read(&self, offset: u64, len: usize) -> Option<PinnedRead> {
        let len = len.min(self.read_bytes_max());
        let inner = &mut *self.lock();
        let lease = match self.is_in_one_page(inner, offset, len) {
            true => {
                let page = inner.blocks.page(offset / SLOT).filter(|page| !page.is_none())?;
                self.hold_page(inner, page, offset, len).keep().into_read(true)
            }
            false => self.lease(inner, offset, len)?,
        };
        self.core().counters.hits.fetch_add(1, Ordering::Relaxed);
        Some(lease)
    }

    /// As [`try_read`](Self::try_read), of what is in one page: most is. Whoever asks counts it.
    #[inline(always)]
    pub fn try_read_page(&self, offset: u64, len: usize) -> PageLook<'_> {
        let inner = &mut *self.lock();
        if !self.is_in_one_page(inner, offset, len) {
            return PageLook::Other;
        }
        let page = inner.blocks.page(offset / SLOT).filter(|page| !page.is_none());
        let Some(page) = page else { return PageLook::Lacking };
        PageLook::Held(self.hold_page(inner, page, offset, len))
    }

    /// Pins the page of bytes that are all [in it](Self::is_in_one_page).
    #[inline(always)]
    pub(crate) fn hold_page(
        &self,
        inner: &mut Inner,
        page: Page,
        offset: u64,
        len: usize,
    ) -> HeldPage<'_> {
        let asked = offset.saturating_add(len as u64);
        let core = self.core();
        let end = pin_page(core, inner, page, offset, asked);
        HeldPage {
            core,
            unit: page.unit(),
            start: page.index() * PAGE_BYTES + (offset % SLOT) as usize,
            len: (end - offset) as usize,
            end_of_file: asked >= inner.size,
        }
    }

    /// Whatever it takes: for [`read`](Self::read).
    pub(crate) async fn read_all(
        self: Arc<Self>,
        offset: u64,
        len: usize,
        SoFar { mut exact, missed }: SoFar,
    ) -> Result<PinnedRead, Status> {
        let mut ticket: Option<(&Core, Ticket<'_>)> = None;
        let mut was_coming = missed;
        loop {
            // The first in line is so in the cache where the file is.
            ticket.take_if(|(core, _)| !self.is_in(core));
            let plan = self.plan(offset, len, exact);
            let was_coming = *was_coming.get_or_insert_with(|| {
                let Counters { misses, hits, .. } = &self.core().counters;
                let is_hit = matches!(plan, Plan::Lease(_));
                count(if is_hit { hits } else { misses }, 1);
                is_hit || self.is_coming(offset, len)
            });
            let (ranges, mut awaited, there) = match plan {
                Plan::Lease(mut lease) => {
                    lease.was_coming = was_coming;
                    return Ok(lease);
                }
                Plan::Wait(job) => {
                    // Whose outcome is told to who asked for it.
                    let _ = job.wait().await;
                    continue;
                }
                Plan::Fill(ranges, awaited, there) => (ranges, awaited, there),
            };
            let front = ticket.is_some();
            let core = self.core();
            let pages = if front || core.fill_queue.is_empty() {
                allocate_all(core, &ranges)
            } else {
                None
            };
            let pages = match pages {
                Some(pages) => pages,
                // Nobody may hold pages while it waits for others: it would be for ever. But one
                // may, the first of the line, or it would evict what it needs itself.
                None if front => {
                    drop(awaited);
                    awaited = Fills::new();
                    let here = || match self.is_in(core) {
                        true => allocate_all(core, &ranges),
                        false => Some(Allocated::new()),
                    };
                    core.when_space(here).await
                }
                None => {
                    drop((awaited, there));
                    // Kept until all is read: nobody behind evicts what this one fills.
                    ticket = Some((core, core.fill_queue.enter().await));
                    continue;
                }
            };
            awaited.extend(self.start_fills(&ranges, pages)?);
            let outcome = wait_all(&awaited).await;
            // The pages of `awaited` and `there` are pinned until the lease has them.
            let lease = self.lease(&mut self.lock(), offset, len);
            drop(there);
            if let Some(mut lease) = lease {
                lease.was_coming = was_coming;
                return Ok(lease);
            }
            if let Err(status) = outcome {
                if awaited.iter().any(|fill| fill.has_failed_within(offset, len)) {
                    return Err(status);
                }
                // By bytes beside those asked for, perhaps.
                exact = true;
            }
        }
    }

    pub(crate) fn read_bytes_max(&self) -> usize {
        (self.core().pool.slot_count() / 8).max(1) * PAGE_BYTES
    }

    /// Pins what is there, if all is. It counts as a use of each unit, but not of the rest of one
    /// that the read before began.
    pub(crate) fn lease(&self, inner: &mut Inner, offset: u64, len: usize) -> Option<PinnedRead> {
        let asked = offset.saturating_add(len as u64);
        let end = asked.min(inner.size);
        // What lacks something mostly lacks its first page: nothing is made for that.
        let first = match offset < end {
            true => Some(inner.blocks.cluster_with(offset / SLOT)?),
            false => None,
        };
        let mut lease = PinnedRead {
            core: self.core().clone(),
            units: SmallVec::new(),
            runs: Runs::default(),
            len: end.saturating_sub(offset) as usize,
            end_of_file: asked >= inner.size,
            was_coming: true,
        };
        if offset >= end {
            return Some(lease);
        }
        let mut unit = Page::NONE;
        let goes_on = offset == inner.reads.end;
        for number in offset / CLUSTER_BYTES..=(end - 1) / CLUSTER_BYTES {
            let cluster = match first {
                Some(first) if number == offset / CLUSTER_BYTES => Some(first),
                Some(_) => Some(inner.blocks.clusters.get(number)?),
                None => None,
            };
            let base = number * CLUSTER_BYTES;
            let from = offset.max(base) - base;
            let to = end.min(base + CLUSTER_BYTES) - base;
            for slot in from / SLOT..to.div_ceil(SLOT) {
                let page = cluster?.pages[slot as usize];
                if page.is_none() {
                    return None;
                }
                if page.unit() != unit {
                    let is_rest = unit.is_none() && goes_on && {
                        !offset.is_multiple_of(page.unit_slots() as u64 * SLOT)
                    };
                    unit = page.unit();
                    self.core().pool.pin(unit, !is_rest);
                    lease.units.push(unit);
                }
                let start = from.saturating_sub(slot * SLOT) as usize;
                let stop = (to - slot * SLOT).min(SLOT) as usize;
                lease.runs.push(page.index() * PAGE_BYTES + start, stop - start);
            }
        }
        inner.reads.end = end;
        Some(lease)
    }

    /// A read of so many bytes, as far as the file has them, is one of some in one page: most are.
    #[inline]
    pub(crate) fn is_in_one_page(&self, inner: &Inner, offset: u64, len: usize) -> bool {
        let end = offset.saturating_add(len as u64).min(inner.size);
        offset < end && offset / SLOT == (end - 1) / SLOT
    }

    /// What to do for a read. `exact`: nothing is read in beside what was asked for.
    pub(crate) fn plan(&self, offset: u64, len: usize, exact: bool) -> Plan {
        let inner = &mut *self.lock();
        if let Some(lease) = self.lease(inner, offset, len) {
            return Plan::Lease(lease);
        }
        if let Some(job) = &inner.exclusive {
            return Plan::Wait(job.clone());
        }
        let end = offset.saturating_add(len as u64).min(inner.size);
        let reach = self.reach(inner, offset, len, exact);
        let wanted = offset / SLOT..end.div_ceil(SLOT);
        let is_wanted = |fill: &&Filling| {
            let last = wanted.end.min(fill.first + fill.count as u64);
            (wanted.start.max(fill.first)..last).any(|block| inner.page(block).is_none())
        };
        let fills = inner.transfers.fills.iter().filter(is_wanted);
        let awaited = fills.map(|filling| filling.fill.clone());
        let mut ranges = BlockRanges::default();
        for (number, mask) in inner.lacking(reach.first..reach.first + reach.count as u64) {
            runs(number, mask).for_each(|blocks| ranges.add(blocks, |_| false));
        }
        let there = wanted.clone().filter_map(|block| inner.page(block)).collect();
        Plan::Fill(ranges.0, awaited.collect(), Pinned::more(self.core(), there))
    }

    /// What is read in for a read of which something lacks; nothing behind the end of the file.
    /// `exact`: nothing beside what was asked for.
    pub(crate) fn reach(&self, inner: &Inner, offset: u64, len: usize, exact: bool) -> BlockRange {
        let end = offset.saturating_add(len as u64).min(inner.size);
        let sequential = offset == inner.reads.end;
        let small = inner.size <= CLUSTER_BYTES;
        let unit = match inner.reads.unit_bytes {
            0 if sequential || small || len as u64 >= CLUSTER_BYTES => CLUSTER_BYTES,
            0 => SLOT,
            wished => wished,
        };
        let room = self.core().pool.slot_count() as u64 >= 8 * unit / SLOT;
        let (from, to) = if room && !exact {
            (offset / unit * unit, end.next_multiple_of(unit).min(inner.size))
        } else {
            (offset, end)
        };
        let first = from / SLOT;
        BlockRange { first, count: to.div_ceil(SLOT).saturating_sub(first) as usize }
    }

    /// What is neither cached nor being read in of these pieces, with small holes between them.
    pub(crate) fn missing(&self, pieces: &[(u64, usize)]) -> SmallVec<[BlockRange; 4]> {
        let inner = &*self.lock();
        let mut ranges = BlockRanges::default();
        if inner.exclusive.is_some() || inner.transfers.fills.len() >= FILLS_MAX {
            return ranges.0;
        }
        let lacks = |block| inner.page(block).is_none() && inner.filling(block).is_none();
        for &(offset, len) in pieces {
            let end = offset.saturating_add(len as u64).min(inner.size);
            for (number, mask) in inner.lacking(offset / SLOT..end.div_ceil(SLOT)) {
                runs(number, mask).for_each(|blocks| ranges.add(blocks, lacks));
            }
        }
        ranges.0
    }

    /// Nothing of these blocks is cached, or being read in.
    #[inline(always)]
    pub(crate) fn lacks(&self, inner: &Inner, range: &BlockRange) -> bool {
        let blocks = range.first..range.first + range.count as u64;
        let is_absent = |number: u64| {
            let Some(cluster) = inner.blocks.clusters.get(number) else { return true };
            let mask = slots(number, &blocks);
            let (from, to) = (mask.trailing_zeros(), u16::BITS - mask.leading_zeros());
            cluster.pages[from as usize..to as usize].iter().all(|page| page.is_none())
        };
        let (first, _) = place(blocks.start);
        let may_be_filled = self.core().fill_filter.may_have(self.place(), *range);
        !(may_be_filled && inner.is_filling(&blocks))
            && (first..blocks.end.div_ceil(FRAME_SLOTS as u64)).all(is_absent)
    }
}

impl Inner {
    /// Some of these blocks are being read in.
    fn is_filling(&self, blocks: &Range<u64>) -> bool {
        let is_of = |fill: &Filling| {
            fill.first < blocks.end && blocks.start < fill.first + fill.count as u64
        };
        self.transfers.fills.iter().any(is_of)
    }

    pub(crate) fn filling(&self, block: u64) -> Option<&Filling> {
        self.transfers
            .fills
            .iter()
            .find(|fill| fill.first <= block && block < fill.first + fill.count as u64)
    }

    /// Of each cluster that these blocks are of: those that are neither cached nor being read in.
    fn lacking(&self, blocks: Range<u64>) -> impl Iterator<Item = (u64, u16)> {
        let first = blocks.start / FRAME_SLOTS as u64;
        let numbers = first..blocks.end.div_ceil(FRAME_SLOTS as u64).max(first);
        numbers.map(move |number| {
            let mut mask = slots(number, &blocks);
            if let Some(cluster) = self.blocks.clusters.get(number) {
                for (slot, page) in cluster.pages.iter().enumerate() {
                    mask &= !(u16::from(!page.is_none()) << slot);
                }
            }
            let base = number * FRAME_SLOTS as u64;
            for fill in &self.transfers.fills {
                let end = fill.first + fill.count as u64;
                if fill.first < base + FRAME_SLOTS as u64 && base < end {
                    mask &= !slots(number, &(fill.first..end));
                }
            }
            (number, mask)
        })
    }
}
