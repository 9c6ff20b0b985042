//! Reading: leases of cached pages, and filling what is missing.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use dafs_fabric::SgList;
use dafs_fabric::mem::PAGE_BYTES;
use dafs_protocol::Status;
use dafs_store::File;
use smallvec::SmallVec;

use crate::core::{Core, Pinned, count};
use crate::file::{CachedFile, FILL_SLOTS_MAX, Filling, Inner, place};
use crate::job::{Job, Outcome, wait_all};
use crate::planted::{Defect, planted};
use crate::pool::{FRAME_SLOTS, Page, Pages, Runs, SLOT};
use crate::wait::Turn;

/// Requests of at least this size, and files of at most this size, are read in by clusters.
const CLUSTER_BYTES: u64 = SLOT * FRAME_SLOTS as u64;

/// A hole between two pieces of a list that is rather read than left out (data sieving).
const HOLE_SLOTS_MAX: u64 = 3;
/// Fills of one file under way, above which none is begun ahead of time.
const FILLS_MAX: usize = 1024;

/// Pages of a file, held for a reader. Writers do not wait for it: it keeps what it has seen.
pub struct ReadLease {
    core: Arc<Core>,
    /// Each pinned once.
    units: SmallVec<[Page; 18]>,
    runs: Runs,
    len: usize,
    end_of_file: bool,
}

impl ReadLease {
    /// The bytes.
    pub fn spans(&self) -> SgList {
        self.runs.iter().map(|run| self.core.pool.span(run.start, run.len)).collect()
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
}

impl Drop for ReadLease {
    fn drop(&mut self) {
        for unit in &self.units {
            self.core.pool.unpin(*unit);
        }
    }
}

/// Consecutive blocks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stretch {
    first: u64,
    pub(crate) count: usize,
}

/// Blocks to read in, in order.
#[derive(Default)]
struct Stretches(SmallVec<[Stretch; 4]>);

impl Stretches {
    /// One more, joined to the last ones where `fills` says of all blocks of a small hole between
    /// them that they can be read in as well.
    fn add(&mut self, block: u64, fills: impl Fn(u64) -> bool) {
        if let Some(last) = self.0.last_mut() {
            let end = last.first + last.count as u64;
            let hole = block.saturating_sub(end);
            let count = last.count as u64 + hole + 1;
            let joins = hole == 0 || hole <= HOLE_SLOTS_MAX && (end..block).all(fills);
            if block >= end && joins && count <= FILL_SLOTS_MAX as u64 {
                last.count = count as usize;
                return;
            }
        }
        self.0.push(Stretch { first: block, count: 1 });
    }
}

/// A fill that somebody waits for; what it brings stays until the waiter has seen it.
pub(crate) struct Awaited {
    job: Arc<Job>,
    _pages: Arc<Pinned>,
}

pub(crate) enum Plan {
    Lease(ReadLease),
    /// Until this has ended.
    Wait(Arc<Job>),
    Fill(SmallVec<[Stretch; 4]>, Vec<Awaited>),
}

impl CachedFile {
    /// Everything asked for, if it is cached; `None`: use [`read`](Self::read).
    pub fn try_read(&self, offset: u64, len: usize) -> Option<ReadLease> {
        let lease = self.lease(&mut self.lock(), offset, len.min(self.read_bytes_max()))?;
        self.core.counters.hits.fetch_add(1, Ordering::Relaxed);
        Some(lease)
    }

    /// Reads in what is missing. Short at the end of the file, and for more than an eighth of
    /// the arena at once.
    ///
    /// # Errors
    /// The store's; the file is not open.
    pub async fn read(self: &Arc<Self>, offset: u64, len: usize) -> Result<ReadLease, Status> {
        if let Some(lease) = self.try_read(offset, len) {
            return Ok(lease);
        }
        count(&self.core.counters.misses, 1);
        let len = len.min(self.read_bytes_max());
        let mut turn: Option<Turn<'_>> = None;
        loop {
            let (stretches, mut awaited) = match self.plan(offset, len) {
                Plan::Lease(lease) => return Ok(lease),
                Plan::Wait(job) => {
                    // Whose outcome is told to who asked for it.
                    let _ = job.wait().await;
                    continue;
                }
                Plan::Fill(stretches, awaited) => (stretches, awaited),
            };
            let front = turn.is_some();
            let pages = if front || self.core.fill_line.is_empty() {
                self.allocate_all(&stretches)
            } else {
                None
            };
            let pages = match pages {
                Some(pages) => pages,
                // Nobody may hold pages while it waits for others: it would be for ever.
                None if front => {
                    drop(awaited);
                    awaited = Vec::new();
                    self.core.when_space(|| self.allocate_all(&stretches)).await
                }
                None => {
                    drop(awaited);
                    // Kept until all is read: nobody behind evicts what this one fills.
                    turn = Some(self.core.fill_line.turn().await);
                    continue;
                }
            };
            awaited.extend(self.start_fills(&stretches, pages)?);
            let jobs: Vec<Arc<Job>> = awaited.iter().map(|fill| fill.job.clone()).collect();
            wait_all(&jobs).await?;
            // The pages of `awaited` are pinned until the lease has them.
            if let Some(lease) = self.lease(&mut self.lock(), offset, len) {
                return Ok(lease);
            }
        }
    }

    pub(crate) fn read_bytes_max(&self) -> usize {
        (self.core.pool.slot_count() / 8).max(1) * PAGE_BYTES
    }

    /// Pins what is there, if all is. It counts as a use of each unit, but not of the rest of one
    /// that the read before began.
    fn lease(&self, inner: &mut Inner, offset: u64, len: usize) -> Option<ReadLease> {
        let asked = offset.saturating_add(len as u64);
        let end = asked.min(inner.size);
        let mut lease = ReadLease {
            core: self.core.clone(),
            units: SmallVec::new(),
            runs: Runs::default(),
            len: end.saturating_sub(offset) as usize,
            end_of_file: asked >= inner.size,
        };
        if offset >= end {
            return Some(lease);
        }
        let first = offset / CLUSTER_BYTES;
        let last = (end - 1) / CLUSTER_BYTES;
        let mut clusters = inner.clusters.range(first..=last);
        let mut unit = Page::NONE;
        let goes_on = offset == inner.read_end;
        for number in first..=last {
            let (_, cluster) = clusters.next().filter(|found| *found.0 == number)?;
            let base = number * CLUSTER_BYTES;
            let from = offset.max(base) - base;
            let to = end.min(base + CLUSTER_BYTES) - base;
            for slot in from / SLOT..to.div_ceil(SLOT) {
                let page = cluster.pages[slot as usize];
                if page.is_none() {
                    return None;
                }
                if page.unit() != unit {
                    let is_rest = unit.is_none() && goes_on && {
                        !offset.is_multiple_of(page.unit_slots() as u64 * SLOT)
                    };
                    unit = page.unit();
                    self.core.pool.pin(unit, !is_rest);
                    lease.units.push(unit);
                }
                let start = from.saturating_sub(slot * SLOT) as usize;
                let stop = (to - slot * SLOT).min(SLOT) as usize;
                lease.runs.push(page.index() * PAGE_BYTES + start, stop - start);
            }
        }
        inner.read_end = end;
        Some(lease)
    }

    /// What to do for a read.
    pub(crate) fn plan(&self, offset: u64, len: usize) -> Plan {
        let inner = &mut *self.lock();
        if let Some(lease) = self.lease(inner, offset, len) {
            return Plan::Lease(lease);
        }
        if let Some(job) = &inner.exclusive {
            return Plan::Wait(job.clone());
        }
        // The lease failed, so there is something to read: both ends are inside the file.
        let end = offset.saturating_add(len as u64).min(inner.size);
        let sequential = offset == inner.read_end;
        let small = inner.size <= CLUSTER_BYTES;
        let unit = match inner.unit_bytes {
            0 if sequential || small || len as u64 >= CLUSTER_BYTES => CLUSTER_BYTES,
            0 => SLOT,
            wished => wished,
        };
        let room = self.core.pool.slot_count() as u64 >= 8 * unit / SLOT;
        let (from, to) = if room {
            (offset / unit * unit, end.next_multiple_of(unit).min(inner.size))
        } else {
            (offset, end)
        };
        let wanted = offset / SLOT..=(end - 1) / SLOT;
        let mut stretches = Stretches::default();
        let mut awaited = Vec::new();
        let mut taken: SmallVec<[u64; 4]> = SmallVec::new();
        for block in from / SLOT..to.div_ceil(SLOT) {
            if inner.page(block).is_some() {
                continue;
            }
            if let Some(fill) = inner.filling(block) {
                if wanted.contains(&block) && !taken.contains(&fill.id) {
                    taken.push(fill.id);
                    awaited.push(Awaited { job: fill.job.clone(), _pages: fill.pages.clone() });
                }
                continue;
            }
            stretches.add(block, |_| false);
        }
        Plan::Fill(stretches.0, awaited)
    }

    /// What is neither cached nor being read in of these pieces, with small holes between them.
    pub(crate) fn missing(&self, pieces: &[(u64, usize)]) -> SmallVec<[Stretch; 4]> {
        let inner = &*self.lock();
        let mut stretches = Stretches::default();
        if inner.exclusive.is_some() || inner.fills.len() >= FILLS_MAX {
            return stretches.0;
        }
        let lacks = |block| inner.page(block).is_none() && inner.filling(block).is_none();
        for &(offset, len) in pieces {
            let end = offset.saturating_add(len as u64).min(inner.size);
            for block in offset / SLOT..end.div_ceil(SLOT) {
                if lacks(block) {
                    stretches.add(block, lacks);
                }
            }
        }
        stretches.0
    }

    pub(crate) fn allocate_all(&self, stretches: &[Stretch]) -> Option<Vec<Arc<Pinned>>> {
        let mut all = Vec::with_capacity(stretches.len());
        for stretch in stretches {
            let pages = self.core.allocate(stretch.first, stretch.count)?;
            all.push(Arc::new(Pinned::new(&self.core, pages)));
        }
        Some(all)
    }

    /// Begins to fill what still is missing.
    pub(crate) fn start_fills(
        self: &Arc<Self>,
        stretches: &[Stretch],
        pages: Vec<Arc<Pinned>>,
    ) -> Result<Vec<Awaited>, Status> {
        let mut started = Vec::new();
        let mut unused = Vec::new();
        {
            let inner = &mut *self.lock();
            let handle = inner.handle.clone().ok_or(Status::BadStateId)?;
            for (stretch, pages) in stretches.iter().zip(pages) {
                if inner.exclusive.is_some() || !inner.lacks(stretch) {
                    unused.push(pages);
                    continue;
                }
                let id = inner.next_id();
                let fill = self.clone().fill(handle.clone(), pages.clone(), id, stretch.first);
                let job = Job::prompt(fill);
                inner.fills.push(Filling {
                    id,
                    first: stretch.first,
                    count: stretch.count,
                    void: [0; FILL_SLOTS_MAX / 64],
                    job: job.clone(),
                    pages: pages.clone(),
                });
                started.push(Awaited { job, _pages: pages });
            }
        }
        for fill in &started {
            self.core.jobs.start(&fill.job);
        }
        Ok(started)
    }

    async fn fill(
        self: Arc<Self>,
        handle: Arc<dyn File>,
        pages: Arc<Pinned>,
        id: u64,
        first: u64,
    ) -> Outcome {
        count(&self.core.counters.fills, 1);
        let answer = handle.read_at(first * SLOT, spans(&self.core, &pages.pages)).await;
        if let Ok(bytes) = answer {
            self.zero_from(&pages.pages, bytes);
        }
        let inner = &mut *self.lock();
        let at = inner.fills.iter().position(|fill| fill.id == id).expect("a fill is listed");
        let fill = inner.fills.swap_remove(at);
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
        for (index, page) in fill.pages.pages.iter().copied().enumerate() {
            let block = fill.first + index as u64;
            let void = fill.void[index / 64] >> (index % 64) & 1 != 0;
            let late = void || inner.page(block).is_some();
            if late && !planted(Defect::LateFillWins) {
                installed[index] = Page::NONE;
                continue;
            }
            let valid = inner.size.saturating_sub(block * SLOT).min(SLOT) as usize;
            if valid < PAGE_BYTES && !planted(Defect::StaleTailOfFill) {
                self.core.pool.part(page, valid, PAGE_BYTES).zero();
            }
            let (number, slot) = place(block);
            let old = std::mem::replace(&mut inner.cluster(number).pages[slot], page);
            if !old.is_none() {
                self.core.pool.unmap(old);
            }
            self.core.pool.map(page.unit(), 1);
            self.core.pool.settle(page, self.number(), block);
            count(&self.core.counters.filled_slots, 1);
        }
        self.may_go(&installed, fill.first, true);
    }
}

impl Inner {
    pub(crate) fn filling(&self, block: u64) -> Option<&Filling> {
        self.fills.iter().find(|fill| fill.first <= block && block < fill.first + fill.count as u64)
    }

    fn lacks(&self, stretch: &Stretch) -> bool {
        (stretch.first..stretch.first + stretch.count as u64)
            .all(|block| self.page(block).is_none() && self.filling(block).is_none())
    }
}

/// All bytes of these pages.
pub(crate) fn spans(core: &Core, pages: &[Page]) -> SgList {
    let mut runs = Runs::default();
    for page in pages {
        runs.push(page.index() * PAGE_BYTES, PAGE_BYTES);
    }
    runs.iter().map(|run| core.pool.span(run.start, run.len)).collect()
}
