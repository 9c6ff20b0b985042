//! What all files of a cache share: slots, bounds, the table of files, work under way.

use std::collections::{HashMap, VecDeque};
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use std::time::Duration;

use dafs_fabric::SgList;
use dafs_fabric::mem::PAGE_BYTES;
use dafs_protocol::{Attr, WriteVerifier};
use dafs_store::{File, FileId};
use smallvec::SmallVec;

use super::dirty::Dirty;
use super::fill_filter::FillFilter;
use super::{CachedFile, SpareFills};
use crate::config::Config;
use crate::emptying::Emptying;
use crate::job::{Job, Jobs};
use crate::policy::shares::Search;
use crate::pool::{FRAME_SLOTS, Page, Pages, Pool, Runs, Victims, units};
use crate::wait::{FairQueue, locked};
use crate::{Opening, WriterId};

/// Units that are looked at for each whole frame.
pub(crate) const FRAME_LOOKS: usize = 32;
pub(crate) struct Core {
    pub(crate) pool: Pool,
    pub(crate) config: Config,
    pub(crate) verifier: WriteVerifier,
    files: Mutex<Table>,
    pub(crate) dirty: Dirty,
    pub(crate) emptying: Mutex<Emptying>,
    pub(crate) reserve_queue: FairQueue,
    pub(crate) fill_queue: FairQueue,
    pub(crate) hold_queue: FairQueue,
    pub(crate) edge_queue: FairQueue,
    /// Slots of prefetches under way.
    prefetched_slots: AtomicUsize,
    pub(crate) jobs: Jobs,
    /// Of all files.
    pub(crate) fill_filter: FillFilter,
    pub(super) spare_fills: SpareFills,
    now_nanos: AtomicU64,
    /// Grows with each change that the cache makes in the store, or one beside it.
    changes: Arc<AtomicU64>,
    pub(crate) counters: Counters,
    /// See [`Unifier::has_lost`](crate::Unifier::has_lost).
    pub(crate) has_lost: AtomicBool,
}

#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) fills: AtomicU64,
    pub(crate) hits: AtomicU64,
    pub(crate) misses: AtomicU64,
    pub(crate) evicted_slots: AtomicU64,
    pub(crate) filled_slots: AtomicU64,
    pub(crate) write_backs: AtomicU64,
    pub(crate) written_bytes: AtomicU64,
    pub(crate) write_errors: AtomicU64,
    pub(crate) lost_slots: AtomicU64,
    pub(crate) short_writes: AtomicU64,
}

pub(crate) fn count(counter: &AtomicU64, more: usize) {
    counter.fetch_add(more as u64, Ordering::Relaxed);
}

/// Files by id, and by their number: the place in `places` (lower half) and how many numbers that place
/// has given (upper half). No number is given twice.
#[derive(Default)]
struct Table {
    by_id: HashMap<FileId, u32>,
    places: Vec<Place>,
    free: Vec<u32>,
    /// Closed files, the longest closed first; reopened ones are skipped.
    closed: VecDeque<Arc<CachedFile>>,
}

#[derive(Default)]
struct Place {
    file: Option<Arc<CachedFile>>,
    given: u32,
}

/// A place that has given so many numbers to files that are gone gives no more. Files to come after others
/// under one id may take the rest.
const GIVEN_MAX: u32 = 1 << 31;

impl Table {
    fn get(&self, number: u64) -> Option<&Arc<CachedFile>> {
        self.at(number as u32).filter(|file| file.number() == number)
    }

    fn at(&self, place: u32) -> Option<&Arc<CachedFile>> {
        self.places.get(place as usize)?.file.as_ref()
    }

    fn by_id(&self, id: FileId) -> Option<&Arc<CachedFile>> {
        self.at(*self.by_id.get(&id)?)
    }

    /// The file has a number of this table from now on.
    fn add(&mut self, make: impl FnOnce(u64) -> Arc<CachedFile>) -> Arc<CachedFile> {
        let place = self.free.pop().unwrap_or_else(|| {
            self.places.push(Place::default());
            (self.places.len() - 1) as u32
        });
        let at = &mut self.places[place as usize];
        let file = make(u64::from(at.given + 1) << 32 | u64::from(place));
        at.file = Some(file.clone());
        self.by_id.insert(file.id(), place);
        file
    }

    /// False: it is not here, or not any more.
    fn remove(&mut self, file: &CachedFile) -> bool {
        let is_it = |known: &&Arc<CachedFile>| std::ptr::eq(&raw const ***known, file);
        if self.get(file.number()).filter(is_it).is_none() {
            return false;
        }
        let place = file.number() as u32;
        let given = (file.number() >> 32) as u32;
        self.places[place as usize] = Place { file: None, given };
        if given < GIVEN_MAX {
            self.free.push(place);
        }
        self.by_id.remove(&file.id());
        true
    }
}

impl Core {
    pub(crate) fn new(
        pool: Pool,
        config: Config,
        verifier: WriteVerifier,
        changes: Arc<AtomicU64>,
    ) -> Core {
        // Reading must go on while writers wait.
        let bound = pool.slot_count() * 3 / 4;
        let dirty_slots_max = (config.dirty_bytes_max / PAGE_BYTES).clamp(8, bound);
        // Also when the cache is as small as it may become.
        let least = least_frames(pool.frame_count(), &config) * FRAME_SLOTS;
        Core {
            dirty: Dirty::new(dirty_slots_max, least),
            pool,
            config,
            verifier,
            files: Mutex::default(),
            emptying: Mutex::default(),
            reserve_queue: FairQueue::default(),
            fill_queue: FairQueue::default(),
            hold_queue: FairQueue::default(),
            edge_queue: FairQueue::default(),
            prefetched_slots: AtomicUsize::new(0),
            jobs: Jobs::default(),
            fill_filter: FillFilter::default(),
            spare_fills: SpareFills::default(),
            now_nanos: AtomicU64::new(0),
            changes,
            counters: Counters::default(),
            has_lost: AtomicBool::new(false),
        }
    }

    /// Now, as changes are counted, and after all that was asked for earlier.
    pub(crate) fn mark(&self) -> u64 {
        self.change()
    }

    /// For a cache beside this one, whose changes are counted with these.
    pub(crate) fn changes(&self) -> Arc<AtomicU64> {
        self.changes.clone()
    }

    /// The store's data or attributes have just been changed from here.
    pub(crate) fn change(&self) -> u64 {
        self.changes.fetch_add(1, Ordering::SeqCst) + 1
    }

    pub(crate) fn now(&self) -> Duration {
        Duration::from_nanos(self.now_nanos.load(Ordering::Relaxed))
    }

    pub(crate) fn set_now(&self, now: Duration) {
        let nanos = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
        self.now_nanos.fetch_max(nanos, Ordering::Relaxed);
    }

    // The table of files.

    pub(crate) fn find(&self, id: FileId) -> Option<Arc<CachedFile>> {
        let table = locked(&self.files);
        table.by_id(id).cloned()
    }

    /// This very file is here.
    pub(crate) fn has(&self, file: &Arc<CachedFile>) -> bool {
        locked(&self.files).by_id(file.id()).is_some_and(|known| Arc::ptr_eq(known, file))
    }

    /// By its number.
    pub(crate) fn file(&self, number: u64) -> Option<Arc<CachedFile>> {
        locked(&self.files).get(number).cloned()
    }

    pub(crate) fn all_files(&self) -> Vec<Arc<CachedFile>> {
        locked(&self.files).places.iter().filter_map(|place| place.file.clone()).collect()
    }

    pub(crate) fn file_count(&self) -> usize {
        locked(&self.files).by_id.len()
    }

    /// Finds or makes the file and counts an open, which keeps it in the table. What is to be started then is polled
    /// by whoever starts it.
    pub(crate) fn open(
        self: &Arc<Self>,
        mark: u64,
        writer: WriterId,
        file: Arc<dyn File>,
        attr: &Attr,
        opening: Opening,
    ) -> (Arc<CachedFile>, Option<Arc<Job>>) {
        let (id, unwritten) = (file.id(), file.has_unwritten());
        let mut table = locked(&self.files);
        let known = table.by_id(id).cloned();
        let cached = known
            .unwrap_or_else(|| table.add(|number| CachedFile::new(self.clone(), id, number, attr)));
        cached.comes();
        // Many pages to drop take time, and so does to wait for who does that: not with the table.
        drop(table);
        let recut = cached.origin(mark, writer, (file, unwritten), attr, opening);
        (cached, recut)
    }

    /// A file has been closed for the last time; the longest closed one may be forgotten for it.
    pub(crate) fn closed(&self, file: &Arc<CachedFile>) {
        let mut gone: SmallVec<[Arc<CachedFile>; 2]> = SmallVec::new();
        let mut table = locked(&self.files);
        // It may be in another one by now, whose matter it is then.
        if file.is_in(self) && file.list_as_closed() {
            table.closed.push_back(file.clone());
        }
        while table.closed.len() > self.config.closed_files_max {
            let Some(oldest) = table.closed.pop_front() else { break };
            if oldest.may_be_forgotten(true) {
                table.remove(&oldest);
                gone.push(oldest);
            }
        }
        // Many pages take time: all opens wait for the table.
        drop(table);
        gone.iter().for_each(|file| file.forget_pages());
    }

    /// A file without pages, for which nothing is under way, comes from this cache to another one; false: it is
    /// not here, or it has such. Who may look for it in both waits meanwhile.
    pub(crate) fn hand_over(&self, file: &Arc<CachedFile>, to: &Arc<Core>) -> bool {
        let (mut from, mut into) = (locked(&self.files), locked(&to.files));
        if into.by_id(file.id()).is_some() {
            return false;
        }
        let inner = &mut *file.lock();
        if !file.is_in(self) || !inner.is_bare() || !from.remove(file) {
            return false;
        }
        if std::mem::take(&mut inner.listed.closed) {
            from.closed.retain(|other| !Arc::ptr_eq(other, file));
        }
        self.dirty.unlist(file);
        (inner.listed.dirty, inner.listed.failed) = (false, false);
        into.add(|number| {
            file.moves(number, to);
            file.clone()
        });
        if inner.opens == 0 {
            inner.listed.closed = true;
            into.closed.push_back(file.clone());
        }
        // Who waits here for room for it waits there.
        self.pool.space.changed();
        true
    }

    pub(crate) fn forget(&self, id: FileId) {
        let mut table = locked(&self.files);
        let file = table.by_id(id).cloned();
        let gone = file.filter(|file| file.may_be_forgotten(false));
        if let Some(file) = &gone {
            table.remove(file);
        }
        drop(table);
        if let Some(file) = gone {
            file.forget_pages();
        }
    }

    /// The files refer to the core and the core to the files: this ends it.
    pub(crate) fn clear(&self) {
        self.jobs.clear();
        let table = std::mem::take(&mut *locked(&self.files));
        self.dirty.clear();
        // So do the fills and their files. Nobody will ask for what they bring.
        for file in table.places.iter().filter_map(|place| place.file.as_ref()) {
            let fills = std::mem::take(&mut file.lock().transfers.fills);
            drop(fills);
        }
        drop(table);
    }

    // Dirty data.

    pub(crate) fn dirty_slots(&self) -> usize {
        self.dirty.slots()
    }

    /// The bound of these. Reading must go on while writers wait, also while the cache is small.
    pub(crate) fn dirty_slots_max(&self) -> usize {
        self.dirty.slots_max(self.pool.kept_slots())
    }

    /// The most that one write may take.
    pub(crate) fn write_slots_max(&self) -> usize {
        self.dirty.write_slots_max
    }

    /// Room for `slots` below the bound.
    pub(crate) fn take_dirty(&self, slots: usize) -> bool {
        self.dirty.take(slots, self.dirty_slots_max())
    }

    /// Some slots that counted as dirty do not any more, others do.
    pub(crate) fn recount_dirty(&self, before: usize, after: usize) {
        if before == after {
            return;
        }
        self.dirty.recount(before, after);
        if after < before {
            self.pool.space.changed();
        }
    }

    /// Something cannot be stored, or not be synced.
    pub(crate) fn note_loss(&self) {
        self.has_lost.store(true, Ordering::SeqCst);
    }

    pub(crate) fn list_as_failed(&self, file: &Arc<CachedFile>) {
        self.dirty.add_failed(file.clone());
    }

    /// More than half of what may be dirty is.
    pub(crate) fn is_half_dirty(&self) -> bool {
        self.dirty_slots() > self.dirty_slots_max() / 2
    }

    /// Room for `slots` of a prefetch: all of them together take as much as one read may.
    pub(crate) fn take_prefetch(&self, slots: usize) -> bool {
        let bound = self.pool.slot_count() / 8;
        let more = |taken: usize| (taken + slots <= bound).then_some(taken + slots);
        self.prefetched_slots.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    pub(crate) fn end_prefetch(&self, slots: usize) {
        self.prefetched_slots.fetch_sub(slots, Ordering::Relaxed);
    }

    // Slots.

    /// All bytes of these pages.
    pub(crate) fn spans(&self, pages: &[Page]) -> SgList {
        let mut runs = Runs::default();
        for page in pages {
            runs.push(page.index() * PAGE_BYTES, PAGE_BYTES);
        }
        self.pool.spans(&runs)
    }

    /// Pinned slots for `count` blocks from `block` on, by eviction if need be. All or nothing.
    pub(crate) fn allocate(&self, block: u64, count: usize) -> Option<Pages> {
        let lacking = frames_within(block, count).saturating_sub(self.pool.free_frames());
        if lacking > 0 {
            // Frames rather than single slots from everywhere, if that is soon done.
            self.evict(lacking * FRAME_SLOTS, Some(FRAME_LOOKS * lacking));
        }
        loop {
            // Mostly all are used: then one has to go before it is looked for.
            if self.pool.may_have(count)
                && let Some(pages) = self.pool.allocate(block, count)
            {
                return Some(pages);
            }
            let free = self.pool.kept_slots().saturating_sub(self.pool.used_slots());
            if self.evict(count.saturating_sub(free).max(1), None) == 0 {
                // Who is told to wait is not woken for what is free by now, and the counts that are
                // read without the lock may lag behind: the last look is one with it.
                return self.pool.allocate(block, count);
            }
        }
    }

    /// Frees about `slots` slots, looking at so many units for whole frames, or at all for any
    /// slots; 0 when all are dirty or held.
    pub(crate) fn evict(&self, slots: usize, frame_looks: Option<usize>) -> usize {
        let mut freed = 0;
        let mut search = Search::default();
        let mut victims = Victims::new();
        while freed < slots && frame_looks.is_none_or(|most| search.looks() < most) {
            let any = self.pool.next_victims(&mut search, frame_looks.is_some(), &mut victims);
            if !any {
                break;
            }
            for (unit, number, block) in victims.drain(..) {
                freed += self.file(number).map_or(0, |file| file.evict(self, unit, block));
            }
        }
        count(&self.counters.evicted_slots, freed);
        freed
    }

    /// Waits until `attempt` succeeds, which is tried when slots may have become free. Writes
    /// dirty data back meanwhile.
    pub(crate) async fn when_space<T>(
        self: &Arc<Self>,
        mut attempt: impl FnMut() -> Option<T>,
    ) -> T {
        poll_fn(|context| {
            loop {
                self.pool.space.register(context.waker());
                if let Some(value) = self.pool.space.attempt(&mut attempt) {
                    return Poll::Ready(value);
                }
                if !self.help(context.waker()) {
                    return Poll::Pending;
                }
            }
        })
        .await
    }

    /// Makes space; true if something has happened.
    fn help(self: &Arc<Self>, waker: &Waker) -> bool {
        if self.jobs.poll(Some(waker)) {
            return true;
        }
        if self.dirty.is_helped_enough() {
            return false;
        }
        if let Some(file) = self.next_dirty() {
            let core = self.clone();
            core.dirty.helper_begins();
            self.jobs.start(&Job::new(async move {
                let outcome = file.flush_pass().await;
                core.dirty.helper_ends();
                core.pool.space.changed();
                outcome
            }));
            return true;
        }
        if self.dirty.is_helped() {
            return false;
        }
        // Nothing but data that cannot be written: its writers will be told that it is lost.
        let failed = self.dirty.take_failed();
        let mut given_up = 0;
        let mut tried_again = Vec::new();
        for file in failed {
            // One at a time: it may be room enough.
            match if given_up == 0 { file.give_up() } else { None } {
                Some(0) => {}
                Some(slots) => {
                    given_up = slots;
                    self.jobs.start(&Job::new(file.measure()));
                }
                None => tried_again.push(file),
            }
        }
        self.dirty.put_back_failed(&mut tried_again);
        given_up > 0
    }
}

/// Frames that are never given back: what one request may take must always fit.
pub(crate) fn least_frames(all: usize, config: &Config) -> usize {
    (all / config.least_part).max(all.min(config.least_bytes / (FRAME_SLOTS * PAGE_BYTES)))
}

/// Whole clusters within these blocks.
fn frames_within(block: u64, count: usize) -> usize {
    let frame = FRAME_SLOTS as u64;
    let end = (block + count as u64) / frame;
    end.saturating_sub(block.div_ceil(frame)) as usize
}

/// Pins of slots; dropped, the slots are let go.
pub(crate) struct Pinned {
    pub(crate) core: Arc<Core>,
    pub(crate) pages: Pages,
    /// They count as a prefetch under way.
    pub(crate) prefetched: bool,
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if self.prefetched {
            self.core.end_prefetch(self.pages.len());
        }
        match self.pages.as_slice() {
            [page] if !page.is_none() => self.core.pool.unpin(page.unit()),
            pages => units(pages).for_each(|unit| self.core.pool.unpin(unit)),
        }
    }
}

impl Pinned {
    /// Takes over the pins of allocated pages.
    pub(crate) fn new(core: &Arc<Core>, pages: Pages) -> Pinned {
        Pinned { core: core.clone(), pages, prefetched: false }
    }

    /// Pins what a file maps, which is no use of it; the caller has its lock.
    pub(crate) fn more(core: &Arc<Core>, pages: Pages) -> Pinned {
        units(&pages).for_each(|unit: Page| core.pool.pin(unit, false));
        Pinned::new(core, pages)
    }
}
