//! From dirty pages to the store: write-back, flush, commit.

use std::sync::Arc;

use dafs_fabric::mem::PAGE_BYTES;
use dafs_fabric::{SgList, sg_bytes};
use dafs_protocol::{CommitLevel, Status, WriteVerifier};
use dafs_store::File;
use smallvec::{SmallVec, smallvec};

use crate::WriterId;
use crate::file::{CachedFile, Inner, Which, Writing, place};
use crate::file::{Pinned, count};
use crate::job::{Job, Outcome, wait_all};
use crate::planted::{Defect, planted};
use crate::policy::Origin;
use crate::pool::{FRAME_SLOTS, Page, Pages, SLOT};
use crate::read::slots;

/// Blocks written by one call of the store: a file that grows grows once for each, and disks like
/// large writes. Fewer where the cache is small: a part of what may be dirty.
const WRITE_SLOTS_MAX: usize = 1024;
const WRITE_SLOTS_MIN: usize = 256;
const WRITE_PART: usize = 16;

/// Calls under way per flush.
const WRITES_MAX: usize = 8;

/// Calls of one write-back that may fail, before what is left of it is not tried.
const FAILURES_MAX: usize = 16;

/// Those pages of a write-back that could not be written.
struct Unwritten {
    bits: [u64; WRITE_SLOTS_MAX / 64],
    outcome: Outcome,
}

impl Unwritten {
    fn none() -> Unwritten {
        Unwritten { bits: [0; WRITE_SLOTS_MAX / 64], outcome: Ok(()) }
    }

    fn add(&mut self, pages: std::ops::Range<usize>, status: Status) {
        for index in pages {
            self.bits[index / 64] |= 1 << (index % 64);
        }
        self.outcome = self.outcome.and(Err(status));
    }

    fn contains(&self, index: usize) -> bool {
        self.bits[index / 64] >> (index % 64) & 1 != 0
    }
}

/// What a flush does next.
enum Step {
    /// Poll this, then go on at that block.
    Write(Arc<Job>, u64),
    /// Until this has ended.
    Wait(Arc<Job>),
    /// Nothing is left but what is under way.
    End(Vec<Arc<Job>>),
}

impl CachedFile {
    /// Writes back all that is dirty now: before times are set, for instance.
    ///
    /// # Errors
    /// The store's; the file's writers will be told too.
    pub async fn flush(self: &Arc<Self>) -> Result<(), Status> {
        if self.lock().is_settled() {
            return Ok(());
        }
        let file = self.clone();
        self.run(async move { file.flush_pass().await }).await
    }

    /// Starts work that goes on without its caller, and waits for it.
    pub(crate) async fn run(
        &self,
        work: impl Future<Output = Outcome> + Send + 'static,
    ) -> Outcome {
        let job = Job::new(work);
        self.core().jobs.start(&job);
        job.wait().await
    }

    /// Flushes everything and learns the attributes that the store has then.
    pub(crate) async fn flush_pass(self: &Arc<Self>) -> Outcome {
        self.unchanging().await;
        let outcome = self.flush_blocks(0, u64::MAX, false).await;
        self.refresh().await;
        outcome
    }

    /// Waits until no change of size or the like is under way.
    async fn unchanging(&self) {
        loop {
            let Some(job) = self.lock().exclusive.clone() else { return };
            // Its outcome is told to who asked for it.
            let _ = job.wait().await;
        }
    }

    /// One pass over dirty blocks, in the order of their offsets. What is written meanwhile
    /// behind it stays dirty. `alone`: the caller has exclusive use of the file.
    pub(crate) async fn flush_blocks(
        self: &Arc<Self>,
        first: u64,
        last: u64,
        alone: bool,
    ) -> Outcome {
        if !self.lock().blocks.dirty.is_empty() {
            self.look_before_changing(alone).await;
        }
        let mut cursor = first;
        let mut running: Vec<Arc<Job>> = Vec::new();
        let mut outcome = Ok(());
        loop {
            match self.flush_step((first, cursor, last), alone)? {
                Step::Write(job, next) => {
                    self.core().jobs.start(&job);
                    running.push(job);
                    cursor = next;
                    if running.len() >= WRITES_MAX {
                        outcome = outcome.and(running.remove(0).wait().await);
                    }
                }
                Step::Wait(job) => {
                    // If it was a write that failed, the block is dirty again and tried again.
                    let _ = job.wait().await;
                }
                Step::End(others) => {
                    outcome = outcome.and(wait_all(&running).await);
                    outcome = outcome.and(wait_all(&others).await);
                    // Also what others began to write, and have ended since.
                    return outcome.and(self.lock().failure_within(first, last));
                }
            }
        }
    }

    /// Before the first of our own changes under way: what somebody else has changed is not to be
    /// taken for ours afterwards.
    pub(crate) async fn look_before_changing(&self, alone: bool) {
        let mark = self.core().mark();
        let handle = {
            let inner = self.lock();
            if !inner.transfers.writes.is_empty() {
                return;
            }
            inner.handle.clone()
        };
        let Some(handle) = handle else { return };
        if let Ok(attr) = handle.attr().await {
            self.look_before(alone, mark, &attr, handle.has_unwritten());
        }
    }

    fn flush_step(
        self: &Arc<Self>,
        (first, cursor, last): (u64, u64, u64),
        alone: bool,
    ) -> Result<Step, Status> {
        let inner = &mut *self.lock();
        let Some(block) = inner.next_dirty(cursor, last) else {
            return Ok(Step::End(inner.writes_within(first, last)));
        };
        if let Some(job) = inner.exclusive.as_ref().filter(|_| !alone) {
            return Ok(Step::Wait(job.clone()));
        }
        if let Some(write) = inner.writing(block) {
            return Ok(Step::Wait(write.job.clone()));
        }
        let handle = inner.handle.clone().ok_or(Status::BadStateId)?;
        let pages = self.take_dirty_run(inner, block, last);
        let next = block + pages.len() as u64;
        Ok(Step::Write(self.start_write(inner, handle, block, pages), next))
    }

    /// Marks consecutive dirty blocks as being written.
    fn take_dirty_run(&self, inner: &mut Inner, first: u64, last: u64) -> Pages {
        let most =
            (self.core().dirty_slots_max() / WRITE_PART).clamp(WRITE_SLOTS_MIN, WRITE_SLOTS_MAX);
        let mut pages = Pages::new();
        let mut block = first;
        while pages.len() < most && block <= last {
            let (number, slot) = place(block);
            let Some(cluster) = inner.blocks.clusters.get_mut(number) else { break };
            let ready = ((cluster.dirty & !cluster.writing) >> slot).trailing_ones() as usize;
            let within = usize::try_from(last - block).unwrap_or(usize::MAX).saturating_add(1);
            let count = ready.min(most - pages.len()).min(within);
            let mask = (((1u32 << count) - 1) << slot) as u16;
            cluster.dirty &= !mask;
            cluster.writing |= mask;
            pages.extend(cluster.pages[slot..slot + count].iter().copied());
            if cluster.dirty == 0 {
                inner.blocks.dirty.remove(&number);
            }
            block += count as u64;
            if slot + count < FRAME_SLOTS {
                break;
            }
        }
        pages
    }

    fn start_write(
        self: &Arc<Self>,
        inner: &mut Inner,
        handle: Arc<dyn File>,
        first: u64,
        pages: Pages,
    ) -> Arc<Job> {
        let count = pages.len();
        // Never beyond the end: the file would grow.
        let end = ((first + count as u64) * SLOT).min(inner.size);
        let len = end.saturating_sub(first * SLOT) as usize;
        let id = inner.transfers.next_id();
        let clear = inner.clear_privileges;
        let pinned = Pinned::more(self.core(), pages);
        let job = Job::new(self.clone().write(handle, pinned, (id, first, len), clear));
        inner.transfers.writes.push(Writing { id, first, count, job: job.clone() });
        inner.stored.stale = true;
        job
    }

    async fn write(
        self: Arc<Self>,
        handle: Arc<dyn File>,
        pinned: Pinned,
        (id, first, len): (u64, u64, usize),
        clear_privileges: bool,
    ) -> Outcome {
        let core = pinned.core.clone();
        let mut unwritten = Unwritten::none();
        let mut left: SmallVec<[_; 16]> = smallvec![0..pinned.pages.len()];
        let mut failures = 0;
        while let Some(pages) = left.pop() {
            let bytes = len.min(pages.end * PAGE_BYTES).saturating_sub(pages.start * PAGE_BYTES);
            let from = cut(core.spans(&pinned.pages[pages.clone()]), bytes);
            let bytes = sg_bytes(&from);
            count(&core.counters.write_backs, 1);
            let offset = (first + pages.start as u64) * SLOT;
            let Err(status) = handle.write_at(offset, from, clear_privileges).await else {
                count(&core.counters.written_bytes, bytes);
                continue;
            };
            count(&core.counters.write_errors, 1);
            failures += 1;
            if failures == FAILURES_MAX {
                left.drain(..).for_each(|pages| unwritten.add(pages, status));
            }
            // A bad place of the disk is to take nothing beside it along.
            let middle = usize::midpoint(pages.start, pages.end);
            if status == Status::Io && failures < FAILURES_MAX && middle > pages.start {
                left.extend([middle..pages.end, pages.start..middle]);
            } else {
                unwritten.add(pages, status);
            }
        }
        if planted(Defect::ErrorSwallowed) {
            unwritten = Unwritten::none();
        }
        self.written((id, first, len), &pinned.pages, &unwritten);
        drop(pinned);
        core.pool.space.changed();
        if !planted(Defect::LocalChangeTakenForOurs) {
            self.refresh().await;
        }
        unwritten.outcome
    }

    /// A write-back has ended. Blocks that could not be written are dirty again.
    fn written(
        self: &Arc<Self>,
        (id, first, len): (u64, u64, usize),
        pages: &Pages,
        unwritten: &Unwritten,
    ) {
        let mut is_news = false;
        let inner = &mut *self.lock();
        inner.changed.last = self.core().change();
        inner.transfers.writes.retain(|write| write.id != id);
        let end = first * SLOT + len as u64;
        inner.stored.size = inner.stored.size.filter(|_| unwritten.outcome.is_ok());
        inner.stored.size = inner.stored.size.map(|size| size.max(end));
        let mut clean = Pages::from_elem(Page::NONE, pages.len());
        let (mut before, mut after, mut index) = (0, 0, 0);
        while index < pages.len() {
            let (number, slot) = place(first + index as u64);
            let count = (FRAME_SLOTS - slot).min(pages.len() - index);
            let these = index..index + count;
            index += count;
            let Some(cluster) = inner.blocks.clusters.get_mut(number) else { continue };
            before += cluster.unwritten();
            for (slot, index) in (slot..).zip(these) {
                let was_written = cluster.writing >> slot & 1 != 0;
                cluster.writing &= !(1 << slot);
                if cluster.pages[slot] != pages[index] {
                    continue;
                }
                if !unwritten.contains(index) {
                    cluster.failed &= !(1 << slot);
                    clean[index] = pages[index];
                } else if was_written {
                    is_news |= cluster.failed >> slot & 1 == 0;
                    cluster.failed |= 1 << slot;
                    cluster.dirty |= 1 << slot;
                }
            }
            after += cluster.unwritten();
            if cluster.dirty != 0 {
                inner.blocks.dirty.insert(number);
            }
        }
        self.core().recount_dirty(before, after);
        inner.blocks.unwritten = inner.blocks.unwritten + after - before;
        self.may_go(&clean, first, Origin::ByWrite);
        if unwritten.outcome.is_err() {
            self.core().note_loss();
        }
        match unwritten.outcome {
            // After the last close nobody will write it: the close has told.
            Err(_) if inner.handle.is_none() => {
                let lost = self.drop_pages(inner, 0, Which::Dirty);
                count(&self.core().counters.lost_slots, lost);
            }
            Err(status) => {
                if is_news {
                    inner.sessions.report(status);
                }
                inner.failed = Some(status);
                if !std::mem::replace(&mut inner.listed.failed, true) {
                    self.core().list_as_failed(self);
                }
            }
            // What failed before has been written now.
            Ok(()) if inner.is_clean() => {
                inner.failed = None;
                inner.clear_privileges = false;
                inner.sessions.all_is_written();
            }
            Ok(()) => {}
        }
    }

    /// After the last of our own changes under way: learns what they have made of the
    /// attributes, before others change the file again.
    pub(crate) async fn refresh(&self) {
        let mark = self.core().mark();
        let handle = {
            let inner = self.lock();
            if !inner.stored.stale || inner.overtakes(mark) {
                return;
            }
            inner.handle.clone()
        };
        let Some(handle) = handle else { return };
        let Ok(attr) = handle.attr().await else { return };
        match planted(Defect::LocalChangeTakenForOurs) {
            true => self.lock().stored.learn(mark, &attr),
            false => self.look(mark, &attr),
        }
    }

    /// Writes back a range (`len` 0: to the end of the file) and syncs it, if `level` says so.
    /// Commits that come while a sync is under way share the next one.
    ///
    /// # Errors
    /// The store's, or a late one of this writer.
    pub async fn commit(
        self: &Arc<Self>,
        writer: WriterId,
        offset: u64,
        len: u64,
        level: CommitLevel,
    ) -> Result<WriteVerifier, Status> {
        let outcome = match self.flush_range(offset, len).await {
            Ok(()) if level == CommitLevel::Flush => Ok(()),
            Ok(()) => self.sync(level == CommitLevel::Data).await,
            Err(status) => Err(status),
        };
        let late = self.take_error(writer);
        outcome?;
        late.map_or(Ok(self.core().verifier), Err)
    }

    pub(crate) async fn flush_range(self: &Arc<Self>, offset: u64, len: u64) -> Outcome {
        self.unchanging().await;
        if self.lock().is_clean() {
            return Ok(());
        }
        let end = if len == 0 { u64::MAX } else { offset.saturating_add(len) };
        let file = self.clone();
        self.run(async move { file.flush_blocks(offset / SLOT, (end - 1) / SLOT, false).await })
            .await
    }

    async fn sync(self: &Arc<Self>, data_only: bool) -> Outcome {
        let (job, start) = {
            let inner = &mut *self.lock();
            let handle = inner.handle.clone().ok_or(Status::BadStateId)?;
            match &mut inner.syncs.next {
                Some((job, only_data)) => {
                    *only_data &= data_only;
                    (job.clone(), false)
                }
                none => {
                    let before = inner.syncs.now.clone();
                    let file = self.clone();
                    let job = Job::new(async move { file.sync_round(handle, before).await });
                    *none = Some((job.clone(), data_only));
                    (job, true)
                }
            }
        };
        if planted(Defect::CommitBeforeSync) {
            return Ok(());
        }
        if start {
            self.core().jobs.start(&job);
        }
        job.wait().await
    }

    async fn sync_round(&self, handle: Arc<dyn File>, before: Option<Arc<Job>>) -> Outcome {
        if let Some(before) = before {
            // Its outcome is told to those who asked for it.
            let _ = before.wait().await;
        }
        let data_only = {
            let inner = &mut *self.lock();
            let (job, data_only) = inner.syncs.next.take().expect("the next round is this one");
            inner.syncs.now = Some(job);
            data_only
        };
        let outcome = handle.sync(data_only).await;
        let inner = &mut *self.lock();
        inner.syncs.now = None;
        if let Err(status) = outcome {
            // The system tells this once: the data may be gone, and a sync that succeeds later
            // does not bring it back.
            inner.sessions.report_loss(status);
            self.core().note_loss();
        }
        outcome
    }
}

impl Inner {
    /// The store has all, and we know its attributes.
    pub(crate) fn is_settled(&self) -> bool {
        self.is_clean() && !self.stored.stale && self.exclusive.is_none()
    }

    fn writing(&self, block: u64) -> Option<&Writing> {
        self.transfers
            .writes
            .iter()
            .find(|write| write.first <= block && block < write.first + write.count as u64)
    }

    fn next_dirty(&self, from: u64, last: u64) -> Option<u64> {
        if from > last {
            return None;
        }
        let (first, slot) = place(from);
        for number in self.blocks.dirty.range(first..=last / FRAME_SLOTS as u64) {
            let mut bits = self.blocks.clusters.get(*number)?.dirty;
            if *number == first {
                bits &= u16::MAX << slot;
            }
            if bits != 0 {
                let block = number * FRAME_SLOTS as u64 + u64::from(bits.trailing_zeros());
                return (block <= last).then_some(block);
            }
        }
        None
    }

    /// How blocks of these failed that nobody has written since.
    fn failure_within(&self, first: u64, last: u64) -> Outcome {
        let Some(status) = self.failed else { return Ok(()) };
        let blocks = first..last.saturating_add(1);
        let numbers = first / FRAME_SLOTS as u64..=last / FRAME_SLOTS as u64;
        let failed = self.blocks.clusters.range(numbers).any(|(number, cluster)| {
            cluster.failed & (cluster.dirty | cluster.writing) & slots(number, &blocks) != 0
        });
        if failed { Err(status) } else { Ok(()) }
    }

    fn writes_within(&self, first: u64, last: u64) -> Vec<Arc<Job>> {
        let within =
            |write: &&Writing| write.first <= last && first < write.first + write.count as u64;
        self.transfers.writes.iter().filter(within).map(|write| write.job.clone()).collect()
    }
}

/// The first `len` bytes.
fn cut(mut list: SgList, len: usize) -> SgList {
    let mut left = len;
    list.retain(|span| {
        let bytes = span.len().min(left);
        left -= bytes;
        if bytes < span.len() {
            *span = span.part(0, bytes);
        }
        bytes > 0
    });
    debug_assert!(left < PAGE_BYTES, "a list of whole pages");
    list
}
