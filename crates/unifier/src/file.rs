//! One file: its pages, its size, and what is under way with the store.

mod clusters;
mod core;
mod dirty;
mod end;
mod fill;
mod fill_filter;
mod inner;
mod page;
mod sessions;

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use dafs_protocol::{Attr, Status};
use dafs_store::{Ancestors, File, FileId};

pub(crate) use self::core::{Core, Counters, FRAME_LOOKS, Pinned, count, least_frames};
pub(crate) use self::dirty::HELPERS_MAX;
use crate::blocks::FILL_SLOTS_MAX;
use crate::job::Job;
use crate::keeping::FilePolicy;
use crate::planted::{Defect, planted};
use crate::pool::{FRAME_SLOTS, Page, Pages, SLOT};
use crate::spares::Spares;
use crate::wait::locked;
use crate::{Opening, WriterId};
use clusters::Fate;
pub(crate) use fill::Fill;
use inner::Blocks;
pub(crate) use inner::Inner;
pub(crate) use page::Asked;
pub use page::{PageEnd, PageWaiter, PinnedPage};

/// Fills that have ended and may be used again.
type SpareFills = Spares<Fill>;

/// One file of the cache, shared by all its opens.
pub struct CachedFile {
    /// The cache that it was opened in.
    first_core: Arc<Core>,
    /// The cache that it has moved to since.
    moved_to: OnceLock<Arc<Core>>,
    id: FileId,
    /// Its place in the table, and how often that was given: see [`number`](Self::number).
    number: AtomicU64,
    /// By which everybody may open it, if that is known.
    pub(crate) way: Mutex<Option<Ancestors>>,
    /// How its pages are kept.
    pub(crate) keeping: FilePolicy,
    /// The store's file can end here and before.
    good_end: AtomicU64,
    /// Opens that have found it in the table and are not counted yet.
    coming: AtomicUsize,
    inner: Mutex<Inner>,
}

/// 16 consecutive blocks.
pub(crate) struct Cluster {
    pub(crate) pages: [Page; FRAME_SLOTS],
    /// Not in the store yet.
    pub(crate) dirty: u16,
    /// Being written to the store, perhaps from a page that was replaced since.
    pub(crate) writing: u16,
    /// Could not be written as they are; their writers have been told.
    pub(crate) failed: u16,
}

/// Blocks that are being read in.
pub(crate) struct Filling {
    pub(crate) first: u64,
    pub(crate) count: usize,
    /// A bit for each block that was written, or dropped, since the store was asked.
    pub(crate) void: [u64; FILL_SLOTS_MAX / 64],
    pub(crate) fill: Arc<Fill>,
}

/// Blocks that are being written back.
pub(crate) struct Writing {
    pub(crate) id: u64,
    pub(crate) first: u64,
    pub(crate) count: usize,
    pub(crate) job: Arc<Job>,
}

impl Cluster {
    fn new() -> Box<Cluster> {
        Box::new(Cluster { pages: [Page::NONE; FRAME_SLOTS], dirty: 0, writing: 0, failed: 0 })
    }

    /// Slots that count as dirty.
    pub(crate) fn unwritten(&self) -> usize {
        (self.dirty | self.writing).count_ones() as usize
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pages == [Page::NONE; FRAME_SLOTS]
    }

    fn slots_of(&self, unit: Page) -> u16 {
        let is_of = |page: &Page| !page.is_none() && page.unit() == unit;
        let bit = |(slot, page): (usize, &Page)| u16::from(is_of(page)) << slot;
        self.pages.iter().enumerate().map(bit).sum()
    }
}

/// Cluster and slot of a block.
pub(crate) fn place(block: u64) -> (u64, usize) {
    (block / FRAME_SLOTS as u64, (block % FRAME_SLOTS as u64) as usize)
}

/// Which pages to drop.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Which {
    Clean,
    /// Dirty ones that are not being written.
    Dirty,
    /// Those of them that could not be written.
    Failed,
    All,
}

impl CachedFile {
    pub(crate) fn new(core: Arc<Core>, id: FileId, number: u64, attr: &Attr) -> Arc<CachedFile> {
        let keeping = FilePolicy::new(core.config.policy);
        Arc::new(CachedFile {
            first_core: core,
            moved_to: OnceLock::new(),
            way: Mutex::default(),
            id,
            number: AtomicU64::new(number),
            keeping,
            good_end: AtomicU64::new(0),
            coming: AtomicUsize::new(0),
            inner: Mutex::new(Inner::of(attr)),
        })
    }

    /// The store's number of the file.
    pub fn id(&self) -> FileId {
        self.id
    }

    /// The cache that it is in. With the file locked, that of all its pages; without, it may be another one by
    /// the time that something is done with the answer.
    #[inline(always)]
    pub(crate) fn core(&self) -> &Arc<Core> {
        self.moved_to.get().unwrap_or(&self.first_core)
    }

    /// It is in this cache. With the file locked it stays there.
    #[inline(always)]
    pub(crate) fn is_in(&self, core: &Core) -> bool {
        std::ptr::eq(&raw const **self.core(), core)
    }

    /// What entries say of it: a number that no other file has, had or will have in this life of the
    /// cache.
    #[inline]
    pub(crate) fn number(&self) -> u64 {
        self.number.load(Ordering::Relaxed)
    }

    /// The same as long as it is in the table.
    #[inline]
    pub(crate) fn place(&self) -> u32 {
        self.number() as u32
    }

    /// It is in this cache from now on, under this number. With the file locked, and bare.
    ///
    /// # Panics
    /// When it has moved before.
    pub(crate) fn moves(&self, number: u64, to: &Arc<Core>) {
        self.number.store(number, Ordering::Relaxed);
        assert!(self.moved_to.set(to.clone()).is_ok(), "a file moves once");
    }

    /// It has moved.
    pub(crate) fn has_moved(&self) -> bool {
        self.moved_to.get().is_some()
    }

    /// Under its id is another file from now on, of which nothing is cached. With the file locked.
    fn renumber(&self) {
        // After four billion of files under one id, all the rest have one number.
        let next = |number: u64| number.checked_add(1 << 32);
        let _ = self.number.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
    }

    #[inline(always)]
    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner> {
        locked(&self.inner)
    }

    /// Who writes beyond what the disk can have is told at once, not when it is written back.
    ///
    /// # Errors
    /// [`Status::FBig`].
    pub(crate) fn check_end(&self, inner: &Inner, end: u64) -> Result<(), Status> {
        let handle = inner.handle.as_ref().ok_or(Status::BadStateId)?;
        // A file that grows asks once for each doubling.
        let beyond = end.checked_next_power_of_two().unwrap_or(end);
        let good = [beyond, end].into_iter().find(|end| handle.can_end_at(*end));
        self.good_end.fetch_max(good.ok_or(Status::FBig)?, Ordering::Relaxed);
        Ok(())
    }

    /// It is known that the file can end there.
    pub(crate) fn can_end_at(&self, end: u64) -> bool {
        end <= self.good_end.load(Ordering::Relaxed)
    }

    /// Its size for readers.
    pub fn size(&self) -> u64 {
        self.lock().size
    }

    /// A late error of this session's writes; told once.
    pub fn take_error(&self, writer: WriterId) -> Option<Status> {
        self.lock().sessions.take_late(writer)
    }

    /// It was found in the table, which is locked, and is about to be opened: it stays there.
    pub(crate) fn comes(&self) {
        self.coming.fetch_add(1, Ordering::SeqCst);
    }

    /// Counts an open that [came](Self::comes), as [`opened`](Self::opened).
    pub(crate) fn origin(
        self: &Arc<Self>,
        mark: u64,
        writer: WriterId,
        handle: (Arc<dyn File>, Option<bool>),
        attr: &Attr,
        opening: Opening,
    ) -> Option<Arc<Job>> {
        let recut = self.opened(mark, writer, handle, attr, opening);
        self.coming.fetch_sub(1, Ordering::SeqCst);
        recut
    }

    #[cfg(test)]
    pub(crate) fn opens_coming(&self) -> usize {
        self.coming.load(Ordering::SeqCst)
    }

    /// Counts an open. A job is given back when the store's file must be cut again, because
    /// our own writes may have come after the cut by the opener.
    fn opened(
        self: &Arc<Self>,
        mark: u64,
        writer: WriterId,
        (handle, unwritten): (Arc<dyn File>, Option<bool>),
        attr: &Attr,
        opening: Opening,
    ) -> Option<Arc<Job>> {
        let inner = &mut *self.lock();
        // While somebody has it open, its number is no other file's; and what was written since
        // it was made is not to be lost.
        let births = (attr.created, inner.stored.known.created);
        let is_reborn = matches!(births, (Some(new), Some(old)) if new != old);
        let is_made = opening == Opening::Created
            && !inner.overtakes(mark)
            && (attr.created.is_none() || attr.created != inner.stored.known.created);
        // Births can be one where they are counted by ticks of a clock.
        let generation = handle.generation();
        let is_next = matches!((generation, inner.generation), (Some(new), Some(old)) if new != old)
            && (opening == Opening::Created || inner.is_clean());
        let is_another = inner.opens == 0 && (is_reborn || is_made || is_next);
        inner.generation = generation;
        inner.opens += 1;
        inner.sessions.count_open(writer);
        inner.handle.get_or_insert(handle);
        if opening != Opening::Truncated && !is_another {
            self.compare(inner, mark, attr);
            self.settle(inner, unwritten);
            return None;
        }
        let recut = !is_another && (inner.overtakes(mark) || !inner.transfers.fills.is_empty());
        if recut {
            inner.stored.unsettled = true;
            inner.sessions.add_writer(writer);
            let before = inner.exclusive.clone();
            let job = self.cut_again(before);
            inner.exclusive = Some(job.clone());
            // Bytes being written stay until they have been.
            self.drop_pages(inner, 0, Which::Clean);
            self.drop_pages(inner, 0, Which::Dirty);
            self.set_size(inner, 0);
            return Some(job);
        }
        self.drop_pages(inner, 0, Which::All);
        if is_another {
            self.renumber();
        }
        inner.failed = None;
        self.set_size(inner, attr.size);
        inner.stored.learn(mark, attr);
        inner.stored.unsettled = unwritten != Some(false);
        inner.stored.unwritten_is_ours = false;
        None
    }

    /// Attributes from the store, asked for after `mark` and before a change of our own.
    pub(crate) fn look(&self, mark: u64, attr: &Attr) {
        self.compare(&mut self.lock(), mark, attr);
    }

    /// As `look`, before writes of our own, or by a change that has the file alone (`alone`).
    /// `unwritten`: what the system said of the file after that.
    pub(crate) fn look_before(&self, alone: bool, mark: u64, attr: &Attr, unwritten: Option<bool>) {
        let inner = &mut *self.lock();
        let overtaken = if alone { inner.overtakes_alone(mark) } else { inner.overtakes(mark) };
        if overtaken {
            return;
        }
        self.compare_now(inner, mark, attr);
        inner.stored.unwritten_is_ours |= unwritten == Some(false);
    }

    /// Drops clean pages when the store's file was changed by somebody else.
    fn compare(&self, inner: &mut Inner, mark: u64, attr: &Attr) {
        if inner.stored.unknown || !inner.overtakes(mark) {
            self.compare_now(inner, mark, attr);
        }
    }

    fn compare_now(&self, inner: &mut Inner, mark: u64, attr: &Attr) {
        if planted(Defect::LocalChangeTakenForOurs) && inner.stored.stale {
            return;
        }
        // Answers come in any order: an older one is not to undo a newer one.
        if !inner.stored.unknown && mark < inner.stored.known_at {
            return;
        }
        if inner.stored.unknown || !inner.stored.explains(attr) {
            self.drop_pages(inner, 0, Which::Clean);
            self.set_size(inner, attr.size.max(inner.dirty_end()));
            // What is read from now on until the system is asked.
            (inner.stored.unsettled, inner.stored.unwritten_is_ours) = (true, false);
        }
        inner.stored.learn(mark, attr);
    }

    /// At an open, after its attributes: the system has not written all of the file (`None`: it
    /// cannot tell). What was read while that was so, and not by our own writes, is read again: here,
    /// and by mounts, whose kernels keep data as long as the file looks as it did.
    fn settle(&self, inner: &mut Inner, unwritten: Option<bool>) {
        if planted(Defect::LocalStoresNotSought) {
            return;
        }
        let was_unsettled = inner.stored.unsettled;
        if was_unsettled {
            self.drop_pages(inner, 0, Which::Clean);
        }
        match unwritten {
            Some(false) => {
                (inner.stored.unsettled, inner.stored.unwritten_is_ours) = (false, false)
            }
            Some(true) => inner.stored.unsettled = !inner.stored.unwritten_is_ours,
            None => inner.stored.unsettled = true,
        }
        if was_unsettled || inner.stored.unsettled {
            inner.changed.looks_changed((self.core().config.clock)());
        }
    }

    /// Attributes after a change of the server's own; `of_data`: one that may change when the file was
    /// modified.
    pub(crate) fn note(&self, mark: u64, attr: &Attr, of_data: bool) {
        let inner = &mut *self.lock();
        if inner.overtakes(mark) {
            return;
        }
        // What was written here since is not known to the second.
        let is_as_modified = inner.stored.stale || inner.stored.known.modified == attr.modified;
        if inner.stored.size == Some(attr.size) && (of_data || is_as_modified) {
            inner.stored.learn(mark, attr);
        } else {
            self.compare(inner, mark, attr);
        }
    }

    /// Corrects attributes that were asked from the store after `mark`.
    pub(crate) fn correct(&self, mark: u64, attr: &mut Attr) {
        let inner = &*self.lock();
        let overtaken = inner.overtakes(mark);
        if overtaken && !inner.stored.stale {
            (attr.allocated, attr.change) =
                (inner.stored.known.allocated, inner.stored.known.change);
            (attr.modified, attr.changed) =
                (inner.stored.known.modified, inner.stored.known.changed);
        }
        if !planted(Defect::SizeOverlayIgnored)
            && (inner.opens > 0 || overtaken || !inner.is_clean())
        {
            attr.size = inner.size;
        }
        if (inner.stored.stale && !inner.stored.unknown) || !inner.is_clean() {
            let time = inner.changed.modified;
            let dirty = !inner.is_clean();
            attr.modified = if dirty { time } else { attr.modified.max(time) };
            attr.changed = attr.changed.max(time);
            let unwritten = inner.blocks.unwritten as u64 * SLOT;
            let most = inner.size.next_multiple_of(SLOT);
            attr.allocated = attr.allocated.max(most.min(attr.allocated + unwritten));
            if dirty && inner.clear_privileges {
                attr.mode = without_privileges(attr.mode);
            }
        }
        // The store's times may be those of ticks, in one of which a file can change twice.
        attr.change = attr.change.max(inner.changed.here);
    }

    /// Forgets pages from `first` on.
    pub(crate) fn drop_pages(&self, inner: &mut Inner, first: u64, which: Which) -> usize {
        self.drop_range(inner, first..=u64::MAX, which)
    }

    /// Forgets the pages of these blocks.
    pub(crate) fn drop_range(
        &self,
        inner: &mut Inner,
        blocks: RangeInclusive<u64>,
        which: Which,
    ) -> usize {
        if blocks.is_empty() {
            return 0;
        }
        if matches!(which, Which::Clean | Which::All) {
            inner.transfers.void_fills(blocks.clone());
        }
        let (first_cluster, first_slot) = place(*blocks.start());
        let (last_cluster, last_slot) = place(*blocks.end());
        let mut dropped = 0;
        let Blocks { clusters, dirty, unwritten } = &mut inner.blocks;
        clusters.change(first_cluster..=last_cluster, |number, cluster| {
            let before = cluster.unwritten();
            let from = if number == first_cluster { first_slot } else { 0 };
            let to = if number == last_cluster { last_slot } else { FRAME_SLOTS - 1 };
            let range = (u16::MAX << from) & (u16::MAX >> (FRAME_SLOTS - 1 - to));
            let bits = range
                & match which {
                    Which::Clean => !(cluster.dirty | cluster.writing),
                    Which::Dirty => cluster.dirty & !cluster.writing,
                    Which::Failed => cluster.dirty & cluster.failed & !cluster.writing,
                    Which::All => u16::MAX,
                };
            for slot in (0..FRAME_SLOTS).filter(|slot| bits >> slot & 1 != 0) {
                let page = std::mem::replace(&mut cluster.pages[slot], Page::NONE);
                if !page.is_none() {
                    self.core().pool.unmap(page);
                    dropped += 1;
                }
            }
            cluster.dirty &= !bits;
            cluster.writing &= !bits;
            cluster.failed &= !bits;
            let after = cluster.unwritten();
            *unwritten = *unwritten + after - before;
            self.core().recount_dirty(before, after);
            if cluster.dirty == 0 {
                dirty.remove(&number);
            }
            let is_over = cluster.is_empty() && cluster.writing == 0;
            if is_over { Fate::Goes } else { Fate::Stays }
        });
        dropped
    }

    /// Evicts the slots of a unit of this cache, which `block` was in. The number of slots freed.
    pub(crate) fn evict(&self, core: &Core, unit: Page, block: u64) -> usize {
        let inner = &mut *self.lock();
        if !self.is_in(core) {
            return 0;
        }
        let (number, slot) = place(block);
        let Some(cluster) = inner.blocks.clusters.get_mut(number) else { return 0 };
        let bits = match unit.unit_slots() {
            1 => u16::from(cluster.pages[slot] == unit) << slot,
            _ => cluster.slots_of(unit),
        };
        let unwritten = cluster.dirty | cluster.writing;
        if bits == 0 || self.core().pool.is_pinned(unit) {
            return 0;
        }
        if bits & unwritten != 0 && !planted(Defect::DirtyBlockEvicted) {
            return 0;
        }
        let before = cluster.unwritten();
        let (first, end) = (bits.trailing_zeros(), u16::BITS - bits.leading_zeros());
        let slots = (first as usize..end as usize).filter(|slot| bits >> slot & 1 != 0);
        let pages = slots.map(|slot| std::mem::replace(&mut cluster.pages[slot], Page::NONE));
        let pages: Pages = pages.collect();
        self.core().pool.unmap_all(unit, &pages);
        cluster.dirty &= !bits;
        cluster.writing &= !bits;
        let after = cluster.unwritten();
        inner.blocks.unwritten = inner.blocks.unwritten + after - before;
        self.core().recount_dirty(before, after);
        let is_empty = cluster.is_empty();
        if before != after && cluster.dirty == 0 {
            inner.blocks.dirty.remove(&number);
        }
        if is_empty {
            inner.blocks.clusters.remove(number);
        }
        unit.unit_slots()
    }

    /// Gives up a unit of one slot of this cache, which `block` was in, for
    /// [another](crate::pool::Pool::take_over); false: it is dirty or held, or gone.
    pub(crate) fn give_slot(&self, core: &Core, unit: Page, block: u64) -> bool {
        let inner = &mut *self.lock();
        let is_given = self.is_in(core) && self.gives(inner, unit, block);
        if is_given {
            core.pool.take_over(unit);
        }
        is_given
    }

    /// Unmaps a unit of one slot, which `block` was in; false: it is dirty or held, or gone.
    #[inline(always)]
    pub(crate) fn gives(&self, inner: &mut Inner, unit: Page, block: u64) -> bool {
        let (number, slot) = place(block);
        let Some(cluster) = inner.blocks.clusters.get_mut(number) else { return false };
        let is_unwritten = (cluster.dirty | cluster.writing) >> slot & 1 != 0;
        if cluster.pages[slot] != unit || is_unwritten || self.core().pool.is_pinned(unit) {
            return false;
        }
        cluster.pages[slot] = Page::NONE;
        if cluster.is_empty() && cluster.writing == 0 {
            inner.blocks.clusters.remove(number);
        }
        true
    }

    pub(crate) fn unlist_as_dirty(&self) {
        self.lock().listed.dirty = false;
    }

    /// False when it is on the list already.
    pub(crate) fn list_as_closed(&self) -> bool {
        !std::mem::replace(&mut self.lock().listed.closed, true)
    }

    /// It is not open (again), nor about to be, and nothing of it is to be written. With the table
    /// locked.
    pub(crate) fn may_be_forgotten(&self, from_list: bool) -> bool {
        let inner = &mut *self.lock();
        if from_list {
            inner.listed.closed = false;
        }
        inner.opens == 0 && self.coming.load(Ordering::SeqCst) == 0 && inner.is_clean()
    }

    /// Drops all pages of a file that nobody can find any more.
    pub(crate) fn forget_pages(&self) {
        self.drop_pages(&mut self.lock(), 0, Which::All);
    }
}

/// The mode that a write by somebody who is not root leaves.
fn without_privileges(mode: u32) -> u32 {
    const PRIVILEGES: u32 = 0o6000;
    mode & !PRIVILEGES
}
