//! The cache of all files.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::task::Poll;
use std::thread::Thread;
use std::time::Duration;

use dafs_fabric::mem::PAGE_BYTES;
use dafs_fabric::{Arena, Words};
use dafs_protocol::{Attr, Status, WriteVerifier};
use dafs_store::{File, FileId};

use crate::accessed::{READERS_MAX, words_of};
use crate::entry::bytes_of;
use crate::file::CachedFile;
use crate::file::{Core, least_frames};
use crate::job::{Job, wait_all};
use crate::pool::{FRAME_SLOTS, Pool, slots_of};
use crate::wait::Ticket;
use crate::{CacheStats, Config, Mark, Opening, WriterId};

/// Files flushed at the same time for one SYNC_FS.
const FLUSHES_MAX: usize = 16;

/// See [`Unifier::hold_permit`]; ends when it is dropped.
pub struct HoldPermit<'a> {
    _ticket: Ticket<'a>,
}

/// The cache of all files, shared by all workers.
pub struct Unifier {
    pub(crate) core: Arc<Core>,
}

impl Unifier {
    /// An empty cache in this memory.
    ///
    /// # Panics
    /// When the arena has less than 64 KiB, or segments of less, or that of the entries is too small.
    pub fn new(arena: Arc<Arena>, config: Config, verifier: WriteVerifier) -> Arc<Unifier> {
        Unifier::with_changes(arena, config, verifier, Arc::new(AtomicU64::new(1)))
    }

    /// Another one, of other files, in other memory. A [`Mark`] of one is one of the other.
    ///
    /// # Panics
    /// As [`new`](Self::new).
    pub fn beside(&self, arena: Arc<Arena>, config: Config) -> Arc<Unifier> {
        Unifier::with_changes(arena, config, self.verifier(), self.core.changes())
    }

    fn with_changes(
        arena: Arc<Arena>,
        config: Config,
        verifier: WriteVerifier,
        changes: Arc<AtomicU64>,
    ) -> Arc<Unifier> {
        let entries = (config.epoch, config.entries.as_ref(), config.erases);
        let pool = Pool::new(arena, config.domain.clone(), entries);
        Arc::new(Unifier { core: Arc::new(Core::new(pool, config, verifier, changes)) })
    }

    /// Words of 64 bits that a reader needs for so many slots: of slot `n`, the bit `n % 64` of word `n / 64`.
    pub fn accessed_words(slots: usize) -> usize {
        words_of(slots)
    }

    /// Units of whose slots a bit is set here stay when it is their turn to go, which clears it. `of`: the user, and how
    /// many readers he may have. `None`: there are too many, of him or in all, or too few words.
    pub fn add_accessed(&self, bits: Words, of: (u32, usize)) -> Option<AccessedBits> {
        if bits.len() < Unifier::accessed_words(self.slots()) {
            return None;
        }
        let reader = self.core.pool.add_accessed(bits, of)?;
        Some(AccessedBits { core: Arc::downgrade(&self.core), reader })
    }

    /// How much memory [`Config::entries`] needs for an arena of so many bytes. It is touched where the arena is.
    pub fn entries_bytes(arena_bytes: usize) -> usize {
        bytes_of(slots_of(arena_bytes))
    }

    /// Where others read what each slot holds.
    pub fn entries(&self) -> Option<&Arc<Arena>> {
        self.core.config.entries.as_ref()
    }

    /// Slots of its arena, from its first byte on: each of 4 KiB, with an entry.
    pub fn slots(&self) -> usize {
        self.core.pool.slot_count()
    }

    /// To be taken BEFORE the store is asked for attributes that are given to
    /// [`open`](Self::open), [`overlay`](Self::overlay) or [`note`](Self::note).
    pub fn mark(&self) -> Mark {
        Mark(self.core.mark())
    }

    /// The cached state of a file, shared by all opens. Clean pages are dropped when `attr`,
    /// fresh from the store, shows that somebody else has changed the file; all pages when it
    /// was truncated by this open, or is another file than the one that had its number before.
    /// Each open is ended by one [`CachedFile::close`] of the same writer.
    pub fn open(
        self: &Arc<Self>,
        mark: Mark,
        writer: WriterId,
        file: Arc<dyn File>,
        attr: &Attr,
        opening: Opening,
    ) -> Arc<CachedFile> {
        let (cached, recut) = self.begin_open(mark, writer, file, attr, opening);
        self.end_open(recut);
        cached
    }

    /// Waits for the right to wait for data while holding other data. One at a time: many who
    /// did would hold all pages and wait for each other.
    pub async fn hold_permit(&self) -> HoldPermit<'_> {
        HoldPermit { _ticket: self.core.hold_queue.enter().await }
    }

    /// What is known of a file, open or not.
    pub fn find(&self, id: FileId) -> Option<Arc<CachedFile>> {
        self.core.find(id)
    }

    /// Corrects attributes from the store by what is not there yet: size, times and space of
    /// files with dirty data.
    pub fn overlay(&self, mark: Mark, attr: &mut Attr) {
        let id = FileId { device: attr.device, inode: attr.inode };
        if let Some(file) = self.find(id) {
            file.overlay(mark, attr);
        }
    }

    /// Attributes before a change that the server makes itself (SETATTR): what somebody else
    /// changed is seen by them, and not by those after it.
    pub fn look(&self, mark: Mark, attr: &Attr) {
        let id = FileId { device: attr.device, inode: attr.inode };
        if let Some(file) = self.find(id) {
            file.look(mark.0, attr);
        }
    }

    /// Attributes after a change that the server made itself (SETATTR), so that the next open
    /// does not take it for somebody else's.
    pub fn note(&self, mark: Mark, attr: &Attr) {
        let id = FileId { device: attr.device, inode: attr.inode };
        if let Some(file) = self.find(id) {
            file.note(mark.0, attr, true);
        }
    }

    /// As [`note`](Self::note), after a change of names, extended attributes, owner or mode, which
    /// never changes when data was modified: if that is not as it was, somebody else wrote.
    pub fn note_unmodified(&self, mark: Mark, attr: &Attr) {
        let id = FileId { device: attr.device, inode: attr.inode };
        if let Some(file) = self.find(id) {
            file.note(mark.0, attr, false);
        }
    }

    /// Drops the pages of a file that is gone, unless it is open.
    pub fn forget(&self, id: FileId) {
        self.core.forget(id);
    }

    /// Somebody waits for room.
    pub(crate) fn is_waited_for(&self) -> bool {
        !self.core.fill_queue.is_empty() || !self.core.reserve_queue.is_empty()
    }

    /// This file is here.
    pub(crate) fn has(&self, file: &CachedFile) -> bool {
        file.is_in(&self.core)
    }

    /// All files that it knows.
    pub(crate) fn files(&self) -> Vec<Arc<CachedFile>> {
        self.core.all_files()
    }

    /// As [`open`](Self::open), which it is when it has [ended](Self::end_open).
    pub(crate) fn begin_open(
        &self,
        mark: Mark,
        writer: WriterId,
        file: Arc<dyn File>,
        attr: &Attr,
        opening: Opening,
    ) -> (Arc<CachedFile>, Option<Arc<Job>>) {
        self.core.open(mark.0, writer, file, attr, opening)
    }

    /// Starts what an open has left to be done. Polls work of others, which takes locks.
    pub(crate) fn end_open(&self, recut: Option<Arc<Job>>) {
        if let Some(job) = recut {
            self.core.jobs.start(&job);
        }
    }

    /// See [`CacheDomains::move_out`](crate::CacheDomains::move_out).
    pub(crate) async fn take(
        &self,
        file: &Arc<CachedFile>,
        coming: &Arc<Mutex<()>>,
    ) -> Result<(), Status> {
        file.move_to(self.core.clone(), coming.clone()).await
    }

    /// What COMMIT answers: the same as long as no unstable write can have been lost.
    pub fn verifier(&self) -> WriteVerifier {
        self.core.verifier
    }

    /// Something that was written could not be stored or synced once, whoever was told of it since.
    pub fn has_lost(&self) -> bool {
        self.core.has_lost.load(Ordering::SeqCst)
    }

    /// Counters and sizes.
    pub fn stats(&self) -> CacheStats {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let bytes = |slots: usize| (slots * PAGE_BYTES) as u64;
        let counters = &self.core.counters;
        CacheStats {
            hits: get(&counters.hits),
            misses: get(&counters.misses),
            resident_bytes: bytes(self.core.pool.used_slots()),
            decommitted_bytes: bytes(self.core.pool.decommitted() * FRAME_SLOTS),
            decommits_refused: self.core.pool.refused(),
            registrations_refused: self.core.pool.registrations_refused(),
            dirty_bytes: bytes(self.core.dirty_slots()),
            dirty_bytes_max: bytes(self.core.dirty_slots_max()),
            orphan_bytes: bytes(self.core.pool.orphan_slots()),
            evicted_bytes: get(&counters.evicted_slots) * PAGE_BYTES as u64,
            fills: get(&counters.fills),
            filled_bytes: get(&counters.filled_slots) * PAGE_BYTES as u64,
            write_backs: get(&counters.write_backs),
            written_bytes: get(&counters.written_bytes),
            write_errors: get(&counters.write_errors),
            lost_bytes: get(&counters.lost_slots) * PAGE_BYTES as u64,
            short_writes: get(&counters.short_writes),
            files: self.core.file_count() as u64,
        }
    }

    /// Memory is short, or not any more: the cache is to take about so many bytes of its arena, at
    /// least a quarter of it. The rest goes back to the system, where a device pins it by whole
    /// segments. What is dirty or held goes later: to be asked again, see
    /// [`shrinks_to`](Self::shrinks_to). How many bytes it may take now.
    pub fn resize(&self, bytes: u64) -> u64 {
        let frame = (PAGE_BYTES * FRAME_SLOTS) as u64;
        let frames = usize::try_from(bytes / frame).unwrap_or(usize::MAX);
        self.core.resize(frames) as u64 * frame
    }

    /// A part of the arena is being emptied to be given back: [`resize`](Self::resize) is to be asked
    /// for so many bytes again, a few times a second.
    pub fn shrinks_to(&self) -> Option<u64> {
        let frame = (PAGE_BYTES * FRAME_SLOTS) as u64;
        self.core.shrinks_to().map(|frames| frames as u64 * frame)
    }

    /// What was given back, and peers that read it made memory of, is given back again: to be called a few
    /// times a second. How many places were looked at for that.
    pub fn give_back_again(&self) -> usize {
        self.core.pool.give_back_again()
    }

    /// Gets memory for what will be cached next, so that nobody waits for that: to be called by a
    /// thread of its own, which is given here and is unparked when it is to go on. Returns when
    /// enough is there.
    pub fn prefault(&self, thread: Thread, goes_on: impl Fn() -> bool) {
        self.prefaulted_by(thread);
        while goes_on() && self.prefault_some() {}
    }

    /// This thread calls [`prefault_some`](Self::prefault_some) when it is unparked.
    pub(crate) fn prefaulted_by(&self, thread: Thread) {
        self.core.pool.set_prefaulter(thread);
    }

    /// False: enough is there.
    pub(crate) fn prefault_some(&self) -> bool {
        self.core.pool.prefault()
    }

    /// Bytes of its memory that it takes now, or may.
    pub(crate) fn kept_bytes(&self) -> u64 {
        let pool = &self.core.pool;
        ((pool.frame_count() - pool.decommitted()) * FRAME_SLOTS * PAGE_BYTES) as u64
    }

    /// All of it.
    pub(crate) fn arena_bytes(&self) -> u64 {
        (self.core.pool.slot_count() * PAGE_BYTES) as u64
    }

    /// What a cache of these bounds, with an arena of so many bytes, always keeps of it, in bytes.
    pub fn least_bytes_of(config: &Config, arena_bytes: usize) -> u64 {
        let frames = least_frames(slots_of(arena_bytes) / FRAME_SLOTS, config);
        (frames * FRAME_SLOTS * PAGE_BYTES) as u64
    }

    /// What it always keeps.
    pub(crate) fn least_bytes(&self) -> u64 {
        Unifier::least_bytes_of(&self.core.config, self.arena_bytes() as usize)
    }

    /// True when [`write_back`](Self::write_back) has something to do. To be asked a few times a
    /// second, also when nothing goes on.
    pub fn write_back_due(&self, now: Duration) -> bool {
        self.core.set_now(now);
        self.core.write_back_due() || self.core.jobs.has_stranded()
    }

    /// Dirty data is on its way to the bound where writers wait, and more of it can be written
    /// back: cheap, to be asked often.
    pub fn is_half_dirty(&self) -> bool {
        self.core.is_half_dirty() && self.core.write_back_due()
    }

    /// Writes back what is due at `now` (any clock that only goes on): what is older than
    /// [`Config::dirty_age`], or the oldest while more than half of the bound is dirty. Also
    /// ends work whose callers are gone. Returns when what it began has ended; what becomes due
    /// meanwhile can be begun by another call. Of each device it begins only as much as may be
    /// under way.
    pub async fn write_back(&self, now: Duration) {
        let flushes = self.begin_write_back(now);
        // Failures are told to the files' writers.
        let _ = wait_all(&flushes).await;
    }

    pub(crate) fn begin_write_back(&self, now: Duration) -> Vec<Arc<Job>> {
        self.core.set_now(now);
        self.core.jobs.poll(None);
        std::iter::from_fn(|| self.core.begin_flush()).collect()
    }

    /// Writes back everything (SYNC_FS). Nothing is synced by it. The files that could not be
    /// written, whose writers are told too.
    pub async fn flush_all(&self) -> Vec<(FileId, Status)> {
        let mut failed = Vec::new();
        let mut files = self.core.all_files();
        files.retain(|file| !file.lock().is_settled());
        while !files.is_empty() {
            let some = files.split_off(files.len().saturating_sub(FLUSHES_MAX));
            failed.extend(self.flush_files(&some).await);
        }
        failed
    }

    /// Those that failed.
    async fn flush_files(&self, files: &[Arc<CachedFile>]) -> Vec<(FileId, Status)> {
        let flush = |file: &Arc<CachedFile>| {
            let file = file.clone();
            let job = Job::new(async move { file.flush_pass().await });
            self.core.jobs.start(&job);
            job
        };
        let jobs: Vec<Arc<Job>> = files.iter().map(flush).collect();
        // Of each below.
        let _ = wait_all(&jobs).await;
        let failed = |(file, job): (&Arc<CachedFile>, &Arc<Job>)| match job.poll(None) {
            Poll::Ready(Err(status)) => Some((file.id(), status)),
            _ => None,
        };
        files.iter().zip(&jobs).filter_map(failed).collect()
    }
}

/// The bits of a reader are looked at as long as this lives.
pub struct AccessedBits {
    core: Weak<Core>,
    reader: u64,
}

impl AccessedBits {
    /// Of so many readers bits are looked at.
    pub const MAX: usize = READERS_MAX;
}

impl std::fmt::Debug for AccessedBits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AccessedBits").field("reader", &self.reader).finish_non_exhaustive()
    }
}

impl Drop for AccessedBits {
    fn drop(&mut self) {
        let Some(core) = self.core.upgrade() else { return };
        // The memory is unmapped without the lock.
        drop(core.pool.remove_accessed(self.reader));
    }
}

impl Drop for Unifier {
    fn drop(&mut self) {
        self.core.clear();
    }
}

impl CachedFile {
    /// Corrects attributes that were asked from the store after `mark`, as
    /// [`Unifier::overlay`] does.
    pub fn overlay(&self, mark: Mark, attr: &mut Attr) {
        self.correct(mark.0, attr);
    }

    /// The cache has changed it since.
    pub(crate) fn has_changed_since(&self, mark: Mark) -> bool {
        self.lock().overtakes(mark.0)
    }
}
