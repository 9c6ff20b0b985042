//! Writing: fresh pages that bytes land in, and the swap that makes them the file's.

use std::sync::Arc;

use dafs_fabric::SgList;
use dafs_fabric::mem::PAGE_BYTES;
use dafs_protocol::Status;
use smallvec::SmallVec;

use crate::Writer;
use crate::file::{CachedFile, Core, Inner, place};
use crate::job::Job;
use crate::planted::{Defect, planted};
use crate::policy::Origin;
use crate::pool::{Page, Pages, Runs, SLOT, units};
use crate::read::PinnedRead;
use crate::wait::Ticket;

/// The end of the largest file.
const OFFSET_MAX: u64 = i64::MAX as u64;

/// Fresh pages for a write. Their bytes are anything, also what others wrote, until the write has
/// landed in all of them: who brings it says so by [`landed`](Self::landed). Dropped, they are
/// discarded.
pub struct WriteReservation {
    file: Arc<CachedFile>,
    /// The cache of which it has pages.
    core: Arc<Core>,
    offset: u64,
    len: usize,
    /// Bytes of the writer that are there.
    landed: usize,
    /// Pinned.
    pages: Pages,
    /// Slots that count as dirty for it.
    dirty: usize,
}

impl WriteReservation {
    /// Where the bytes are to land.
    pub fn spans(&self) -> SgList {
        let mut runs = Runs::default();
        let mut at = (self.offset % SLOT) as usize;
        let mut left = self.len;
        for page in &self.pages {
            let bytes = left.min(PAGE_BYTES - at);
            runs.push(page.index() * PAGE_BYTES + at, bytes);
            left -= bytes;
            at = 0;
            if left == 0 {
                break;
            }
        }
        self.core.pool.spans(&runs)
    }

    /// Bytes to land.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Nothing to land.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// `bytes` more of the writer's have come, behind those before. A write of which not all has
    /// landed does not become the file's.
    pub fn landed(&mut self, bytes: usize) {
        self.landed = self.landed.saturating_add(bytes);
    }

    /// Moves the landed bytes in their pages, to begin as `offset` does within a slot.
    fn realign(&mut self, offset: u64) -> Result<(), Status> {
        let from = (self.offset % SLOT) as usize;
        let to = (offset % SLOT) as usize;
        if to + self.len > self.pages.len() * PAGE_BYTES {
            return Err(Status::Inval);
        }
        let pool = &self.core.pool;
        let part = |start: usize, len: usize| {
            let at = start % PAGE_BYTES;
            pool.part(self.pages[start / PAGE_BYTES], at, at + len)
        };
        let mut done = 0;
        while done < self.len {
            let left = self.len - done;
            // As many bytes as lie in one page before and after, the last first when they move
            // up, so that nothing is overwritten that is to be moved.
            let (at, bytes) = if to < from {
                let room = |start: usize| PAGE_BYTES - (start + done) % PAGE_BYTES;
                (done, left.min(room(from)).min(room(to)))
            } else {
                let room = |start: usize| (start + left - 1) % PAGE_BYTES + 1;
                let bytes = left.min(room(from)).min(room(to));
                (left - bytes, bytes)
            };
            part(to + at, bytes).copy_span(0, &part(from + at, bytes));
            done += bytes;
        }
        self.offset = offset;
        Ok(())
    }
}

impl Drop for WriteReservation {
    fn drop(&mut self) {
        if self.dirty > 0 && planted(Defect::DeadLandingInstalled) {
            self.landed = self.len;
            let file = self.file.clone();
            let writer = Writer { id: crate::WriterId(0), clear_privileges: false };
            let _ = file.land(self, writer, Where::Given);
        }
        for unit in units(&self.pages) {
            self.core.pool.unpin(unit);
        }
        self.core.recount_dirty(self.dirty, 0);
    }
}

/// Where a write becomes the file's.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Where {
    /// At its offset.
    Given,
    /// At its offset, as far as the file reaches.
    Within,
    /// At the end of the file.
    End,
}

enum Landed {
    /// At this offset.
    Done(u64),
    /// Until this has ended.
    Wait(Arc<Job>),
    /// The file is in another cache now, of which pages are needed.
    Moved,
    /// This block is needed, since only a part of it is written.
    ReadIn(u64),
}

impl CachedFile {
    /// As [`reserve`](Self::reserve); `None` if that would wait or fail.
    pub fn try_reserve(self: &Arc<Self>, offset: u64, len: usize) -> Option<WriteReservation> {
        let count = self.check(offset, len, false).ok()?;
        let core = self.core();
        if !core.reserve_queue.is_empty() {
            return None;
        }
        self.attempt(core, (offset, len), count)
    }

    /// Fresh pages for `len` bytes at `offset`. Waits, first come first served, while too much
    /// is dirty or too much that was replaced is held by readers. The file is not changed
    /// before [`commit_write`](Self::commit_write).
    ///
    /// # Errors
    /// [`Status::FBig`]: beyond what a file may have. [`Status::Inval`]: more than half of the
    /// dirty bound at once.
    pub async fn reserve(
        self: &Arc<Self>,
        offset: u64,
        len: usize,
    ) -> Result<WriteReservation, Status> {
        self.reserve_slots(offset, len, false).await
    }

    /// As [`reserve`](Self::reserve) for several pieces, all or none: who holds one reservation
    /// and waits for another could wait for ever.
    ///
    /// # Errors
    /// As there.
    pub async fn reserve_all(
        self: &Arc<Self>,
        pieces: &[(u64, usize)],
    ) -> Result<Vec<WriteReservation>, Status> {
        let mut counts = Vec::with_capacity(pieces.len());
        for &(offset, len) in pieces {
            counts.push(self.check(offset, len, false)?);
        }
        if counts.iter().sum::<usize>() > self.core().write_slots_max() {
            return Err(Status::Inval);
        }
        let attempt = |core: &Arc<Core>| -> Option<Vec<WriteReservation>> {
            let piece =
                |(piece, count): (&(u64, usize), &usize)| self.attempt(core, *piece, *count);
            pieces.iter().zip(&counts).map(piece).collect()
        };
        Ok(self.when_room(attempt).await)
    }

    /// As [`reserve`](Self::reserve), for [`append`](Self::append).
    ///
    /// # Errors
    /// As there.
    pub async fn reserve_append(self: &Arc<Self>, len: usize) -> Result<WriteReservation, Status> {
        // The end may have moved when the bytes have landed: one more page to move them up.
        self.reserve_slots(self.size(), len, true).await
    }

    async fn reserve_slots(
        self: &Arc<Self>,
        offset: u64,
        len: usize,
        spare: bool,
    ) -> Result<WriteReservation, Status> {
        let count = self.check(offset, len, spare)?;
        Ok(self.when_room(|core| self.attempt(core, (offset, len), count)).await)
    }

    /// What this attempt gives, first come, first served, when there is room in the cache in which the file is by
    /// then: what is to land is not to be where it has been before.
    async fn when_room<T>(&self, attempt: impl Fn(&Arc<Core>) -> Option<T>) -> T {
        loop {
            let core = self.core();
            if core.reserve_queue.is_empty()
                && let Some(reserved) = attempt(core)
            {
                return reserved;
            }
            let _ticket = core.reserve_queue.enter().await;
            // `None`: it has moved.
            let here = || if self.is_in(core) { attempt(core).map(Some) } else { Some(None) };
            if let Some(reserved) = core.when_space(here).await {
                return reserved;
            }
        }
    }

    /// The slots that such a write takes.
    fn check(&self, offset: u64, len: usize, spare: bool) -> Result<usize, Status> {
        let end = offset.checked_add(len as u64).filter(|end| *end <= OFFSET_MAX);
        let end = end.ok_or(Status::FBig)?;
        if len == 0 {
            return Ok(0);
        }
        if !self.can_end_at(end) {
            self.check_end(&self.lock(), end)?;
        }
        let count = (end.div_ceil(SLOT) - offset / SLOT) as usize + usize::from(spare);
        if count <= self.core().write_slots_max() { Ok(count) } else { Err(Status::Inval) }
    }

    fn attempt(
        self: &Arc<Self>,
        core: &Arc<Core>,
        (offset, len): (u64, usize),
        count: usize,
    ) -> Option<WriteReservation> {
        let orphans = core.pool.orphan_slots() * PAGE_BYTES;
        if orphans > core.config.orphan_bytes_max || !core.take_dirty(count) {
            return None;
        }
        let Some(pages) = core.allocate(offset / SLOT, count) else {
            core.recount_dirty(count, 0);
            return None;
        };
        let (file, core) = (self.clone(), core.clone());
        Some(WriteReservation { file, core, offset, len, landed: 0, pages, dirty: count })
    }

    /// As [`commit_write`](Self::commit_write).
    ///
    /// # Errors
    /// The reservation, when that would wait: to be given to `commit_write`.
    #[expect(clippy::result_large_err, reason = "it is no error: it goes on")]
    pub fn try_commit_write(
        self: &Arc<Self>,
        mut reservation: WriteReservation,
        writer: Writer,
    ) -> Result<Result<(), Status>, WriteReservation> {
        match self.land(&mut reservation, writer, Where::Given) {
            Ok(Landed::Done(_)) => Ok(Ok(())),
            Ok(_) => Err(reservation),
            Err(status) => Ok(Err(status)),
        }
    }

    /// Makes the landed bytes the file's, all at once for readers and other writers. A block of
    /// which a part is written is read in first, if it is not cached.
    ///
    /// # Errors
    /// A late error of this writer's earlier writes (this write is discarded then); the store's;
    /// the file is not open; [`Status::ServerFault`]: not all of it has landed.
    pub async fn commit_write(
        self: &Arc<Self>,
        reservation: WriteReservation,
        writer: Writer,
    ) -> Result<(), Status> {
        self.commit_landed(reservation, writer, Where::Given).await.map(|_| ())
    }

    /// As [`commit_write`](Self::commit_write); what lies beyond the end of the file at that moment
    /// is left out.
    ///
    /// # Errors
    /// As there.
    pub async fn commit_within(
        self: &Arc<Self>,
        reservation: WriteReservation,
        writer: Writer,
    ) -> Result<(), Status> {
        self.commit_landed(reservation, writer, Where::Within).await.map(|_| ())
    }

    /// As [`commit_write`](Self::commit_write), at the end of the file at that moment, which it
    /// returns. For a reservation of [`reserve_append`](Self::reserve_append).
    ///
    /// # Errors
    /// As there; [`Status::FBig`].
    pub async fn append(
        self: &Arc<Self>,
        reservation: WriteReservation,
        writer: Writer,
    ) -> Result<u64, Status> {
        self.commit_landed(reservation, writer, Where::End).await
    }

    async fn commit_landed(
        self: &Arc<Self>,
        mut reservation: WriteReservation,
        writer: Writer,
        at: Where,
    ) -> Result<u64, Status> {
        let mut held: SmallVec<[PinnedRead; 2]> = SmallVec::new();
        let mut ticket: Option<Ticket<'_>> = None;
        loop {
            match self.land(&mut reservation, writer, at)? {
                Landed::Done(offset) => return Ok(offset),
                Landed::Wait(job) => {
                    held.clear();
                    // Whose outcome is told to who asked for it.
                    let _ = job.wait().await;
                }
                Landed::Moved => {
                    held.clear();
                    // That of the other cache's line.
                    ticket = None;
                    self.follow(&mut reservation).await;
                }
                Landed::ReadIn(block) => {
                    // Both edges at once: one writer at a time holds one and waits for the other.
                    if ticket.is_none() && !held.is_empty() {
                        held.clear();
                        ticket = Some(self.core().edge_queue.enter().await);
                    }
                    held.push(self.read(block * SLOT, PAGE_BYTES).await?);
                }
            }
        }
    }

    /// Brings what has landed to fresh pages of the cache in which the file is now.
    async fn follow(self: &Arc<Self>, reservation: &mut WriteReservation) {
        let (core, pages) = (self.core(), &reservation.pages);
        let attempt = || self.attempt(core, (reservation.offset, reservation.len), pages.len());
        let ticket = core.reserve_queue.enter().await;
        let mut fresh = core.when_space(attempt).await;
        drop(ticket);
        for (to, from) in fresh.pages.iter().zip(pages) {
            let from = reservation.core.pool.part(*from, 0, PAGE_BYTES);
            core.pool.part(*to, 0, PAGE_BYTES).copy_span(0, &from);
        }
        fresh.landed = reservation.landed;
        *reservation = fresh;
    }

    fn land(
        self: &Arc<Self>,
        reservation: &mut WriteReservation,
        writer: Writer,
        at: Where,
    ) -> Result<Landed, Status> {
        assert!(Arc::ptr_eq(self, &reservation.file), "a reservation is of one file");
        if reservation.landed != reservation.len {
            crate::file::count(&self.core().counters.short_writes, 1);
            return Err(Status::ServerFault);
        }
        let inner = &mut *self.lock();
        if let Some(job) = &inner.exclusive {
            return Ok(Landed::Wait(job.clone()));
        }
        if inner.opens == 0 {
            return Err(Status::BadStateId);
        }
        if let Some(status) = inner.sessions.take_late(writer.id) {
            return Err(status);
        }
        if !self.is_in(&reservation.core) {
            return Ok(Landed::Moved);
        }
        if at == Where::Within && reservation.offset + reservation.len as u64 > inner.size {
            let rest = inner.size.saturating_sub(reservation.offset) as usize;
            (reservation.len, reservation.landed) = (rest, rest);
        }
        if at == Where::End {
            if inner.size > OFFSET_MAX - reservation.len as u64 {
                return Err(Status::FBig);
            }
            let end = inner.size + reservation.len as u64;
            if !self.can_end_at(end) {
                self.check_end(inner, end)?;
            }
            if inner.size % SLOT != reservation.offset % SLOT {
                reservation.realign(inner.size)?;
            }
            reservation.offset = inner.size;
        }
        if reservation.len == 0 {
            return Ok(Landed::Done(reservation.offset));
        }
        if let Some(block) = self.complete_edges(inner, reservation) {
            return Ok(Landed::ReadIn(block));
        }
        self.swap_in(inner, reservation);
        self.note_write(inner, writer, reservation);
        Ok(Landed::Done(reservation.offset))
    }

    /// Brings what is not written of the first and the last block into the fresh pages: from
    /// the page that they replace, or zeros beyond the end of the file. A block that must be
    /// read in first is returned.
    fn complete_edges(&self, inner: &Inner, reservation: &WriteReservation) -> Option<u64> {
        let end = reservation.offset + reservation.len as u64;
        let (first, last) = (reservation.offset / SLOT, (end - 1) / SLOT);
        let head = (reservation.offset % SLOT) as usize;
        let tail = (end - last * SLOT) as usize;
        let needs_head = head > 0 && first * SLOT < inner.size;
        let needs_tail = tail < PAGE_BYTES && end < inner.size;
        for (needed, block) in [(needs_head, first), (needs_tail, last)] {
            if needed && inner.page(block).is_none() {
                return Some(block);
            }
        }
        let edge = |needed: bool, block: u64, from: usize, to: usize| {
            let fresh = reservation.pages[(block - first) as usize];
            let fresh = self.core().pool.part(fresh, from, to);
            match inner.page(block).filter(|_| needed) {
                Some(old) => fresh.copy_span(0, &self.core().pool.part(old, from, to)),
                None if planted(Defect::StaleTailOfWrite) => {}
                None => fresh.zero(),
            }
        };
        if head > 0 {
            edge(needs_head, first, 0, head);
        }
        if tail < PAGE_BYTES {
            edge(needs_tail, last, tail, PAGE_BYTES);
        }
        None
    }

    /// The fresh pages take the place of the old ones, which readers keep while they hold them.
    fn swap_in(&self, inner: &mut Inner, reservation: &mut WriteReservation) {
        let end = reservation.offset + reservation.len as u64;
        let first = reservation.offset / SLOT;
        let last = (end - 1) / SLOT;
        let reserved = std::mem::take(&mut reservation.dirty);
        let (mut before, mut after) = (0, 0);
        inner.transfers.void_fills(first..=last);
        let pages = &reservation.pages[..(last - first + 1) as usize];
        let mut at = 0;
        while at < pages.len() {
            let (number, slot) = place(first + at as u64);
            let count = (pages.len() - at).min(crate::pool::FRAME_SLOTS - slot);
            let cluster = inner.cluster(number);
            before += cluster.unwritten();
            for (index, page) in pages[at..at + count].iter().enumerate() {
                self.swap_page(&mut cluster.pages[slot + index], *page);
            }
            let written = (u16::MAX >> (crate::pool::FRAME_SLOTS - count)) << slot;
            cluster.dirty |= written;
            cluster.failed &= !written;
            after += cluster.unwritten();
            inner.blocks.dirty.insert(number);
            at += count;
        }
        self.core().recount_dirty(reserved + before, after);
        inner.blocks.unwritten = inner.blocks.unwritten + after - before;
        if planted(Defect::DirtyBlockEvicted) {
            self.may_go(pages, first, Origin::ByWrite);
        }
        // All that was replaced is retired by now.
        self.set_size(inner, inner.size.max(end));
        let named = (self.number(), inner.size);
        for (page, block) in pages.iter().zip(first..) {
            if !planted(Defect::CopyOnWriteSkipped) || inner.page(block) == Some(*page) {
                self.core().pool.publish(*page, named, block);
            }
        }
    }

    /// The old page is retired; the fresh one is to be published when all of the request are.
    fn swap_page(&self, place: &mut Page, fresh: Page) {
        let pool = &self.core().pool;
        if planted(Defect::CopyOnWriteSkipped) && !place.is_none() {
            let bytes = pool.part(fresh, 0, PAGE_BYTES);
            pool.part(*place, 0, PAGE_BYTES).copy_span(0, &bytes);
            return;
        }
        let old = std::mem::replace(place, fresh);
        pool.map(fresh.unit(), 1);
        if !old.is_none() {
            pool.unmap(old);
        }
    }

    fn note_write(
        self: &Arc<Self>,
        inner: &mut Inner,
        writer: Writer,
        reservation: &WriteReservation,
    ) {
        debug_assert!(reservation.dirty == 0, "counted with the file's pages now");
        inner.changed.changes((self.core().config.clock)());
        inner.clear_privileges |= writer.clear_privileges;
        inner.sessions.add_writer(writer.id);
        if !std::mem::replace(&mut inner.listed.dirty, true) {
            self.core().list_as_dirty(self);
        }
    }
}
