//! Changes of a file other than by writing. They have the file alone: no fill, write-back or
//! commit of a write is under way. Reads of what is cached go on: they come before the change.

use std::sync::{Arc, Weak};

use dafs_protocol::Status;
use dafs_store::File;

use crate::Writer;
use crate::file::{CachedFile, Inner, Which};
use crate::job::{Job, Outcome, wait_all};
use crate::planted::{Defect, planted};
use crate::pool::SLOT;
use crate::ranges::blocks;

const KEEP_SIZE: u32 = 0x01;
const PUNCH_HOLE: u32 = 0x02;
const COLLAPSE_RANGE: u32 = 0x08;
const INSERT_RANGE: u32 = 0x20;

impl CachedFile {
    /// Sets the size; clears setuid and setgid if `clear_privileges`.
    ///
    /// # Errors
    /// The store's; the file is not open.
    pub async fn truncate(
        self: &Arc<Self>,
        size: u64,
        clear_privileges: bool,
    ) -> Result<(), Status> {
        let file = self.clone();
        self.exclusive(async move { file.cut(size, clear_privileges).await }).await
    }

    /// See [`dafs_store::File::fallocate`].
    ///
    /// # Errors
    /// The store's; the file is not open.
    pub async fn fallocate(
        self: &Arc<Self>,
        mode: u32,
        offset: u64,
        len: u64,
        writer: Writer,
    ) -> Result<(), Status> {
        let file = self.clone();
        self.exclusive(async move { file.allocate_space(mode, offset, len, writer).await }).await
    }

    pub(crate) async fn exclusive(
        self: &Arc<Self>,
        work: impl Future<Output = Outcome> + Send + 'static,
    ) -> Outcome {
        let file = self.clone();
        let job = Job::with(|job| {
            let job = Arc::downgrade(job);
            async move {
                file.quiet().await;
                file.look_before_changing(true).await;
                let outcome = work.await;
                file.end_change(&job);
                file.refresh().await;
                outcome
            }
        });
        loop {
            let before = {
                let inner = &mut *self.lock();
                match &inner.exclusive {
                    Some(before) => before.clone(),
                    None => {
                        inner.exclusive = Some(job.clone());
                        break;
                    }
                }
            };
            // Its outcome is told to who asked for it.
            let _ = before.wait().await;
        }
        self.core().jobs.start(&job);
        job.wait().await
    }

    /// Waits until nothing is under way; nothing begins, since `exclusive` is set.
    async fn quiet(&self) {
        loop {
            let (fills, writes) = self.lock().traffic();
            if fills.is_empty() && writes.is_empty() {
                return;
            }
            // Their outcomes are told to those who asked for them.
            let _ = (wait_all(&fills).await, wait_all(&writes).await);
        }
    }

    async fn cut(self: &Arc<Self>, size: u64, clear_privileges: bool) -> Outcome {
        let (handle, old) = {
            let inner = self.lock();
            (inner.handle.clone().ok_or(Status::BadStateId)?, inner.size)
        };
        let edge = size / SLOT;
        if size < old && !size.is_multiple_of(SLOT) {
            // The page that is cut is read in again, with its zeros.
            self.flush_blocks(edge, edge, true).await?;
        }
        let outcome = handle.truncate(size, clear_privileges).await;
        let inner = &mut *self.lock();
        if outcome.is_err() {
            // How far it came is not known.
            (inner.stored.stale, inner.stored.size) = (true, None);
            return outcome;
        }
        // To nothing: also what was being written when the file was cut by an open.
        if size < old || size == 0 {
            let kept = u64::from(planted(Defect::CutTailKept) && !size.is_multiple_of(SLOT));
            self.drop_pages(inner, edge + kept, Which::All);
        }
        self.set_size(inner, size);
        self.changed(inner, Some(size));
        Ok(())
    }

    async fn allocate_space(
        self: &Arc<Self>,
        mode: u32,
        offset: u64,
        len: u64,
        writer: Writer,
    ) -> Outcome {
        self.flush_blocks(0, u64::MAX, true).await?;
        let handle = self.lock().change_by(writer)?;
        let outcome = handle.fallocate(mode, offset, len, writer.clear_privileges).await;
        // Also when it failed: part of it may have been done.
        let attr = handle.attr().await;
        let inner = &mut *self.lock();
        if mode & (COLLAPSE_RANGE | INSERT_RANGE) != 0 {
            self.drop_pages(inner, offset / SLOT, Which::All);
        } else if mode & !KEEP_SIZE != 0 {
            self.drop_range(inner, blocks(offset, len), Which::All);
        }
        if let Ok(attr) = &attr
            && mode != KEEP_SIZE | PUNCH_HOLE
        {
            self.set_size(inner, attr.size);
        }
        self.changed(inner, attr.ok().map(|attr| attr.size));
        outcome
    }

    /// Others may go on, unless the next change is in line already.
    fn end_change(&self, job: &Weak<Job>) {
        let inner = &mut *self.lock();
        if inner.exclusive.as_ref().is_some_and(|now| Weak::ptr_eq(&Arc::downgrade(now), job)) {
            inner.exclusive = None;
        }
    }

    /// We have changed the store's file, which is so long now.
    pub(crate) fn changed(&self, inner: &mut Inner, store_size: Option<u64>) {
        inner.changed.last = self.core().change();
        (inner.stored.stale, inner.stored.size) = (true, store_size);
        inner.changed.changes((self.core().config.clock)());
    }

    /// Waits, after an open that truncates, until the store's file is cut for good: who is told
    /// that it is must not find the old bytes again if the server ends then.
    pub async fn cut_at_open(&self) {
        let job = self.lock().exclusive.clone();
        if let Some(job) = job {
            // Its outcome is told by the next write or flush.
            let _ = job.wait().await;
        }
    }

    /// The file was cut at an open (O_TRUNC), but writes of our own may have come after that:
    /// it is cut once more when they have ended.
    pub(crate) fn cut_again(self: &Arc<Self>, before: Option<Arc<Job>>) -> Arc<Job> {
        let file = self.clone();
        Job::with(|job| {
            let job = Arc::downgrade(job);
            async move {
                if let Some(before) = before {
                    // Its outcome is told to who asked for it.
                    let _ = before.wait().await;
                }
                file.quiet().await;
                let outcome = file.cut(0, false).await;
                if let Err(status) = outcome {
                    file.not_cut(status).await;
                }
                file.end_change(&job);
                file.refresh().await;
                outcome
            }
        })
    }
}

impl CachedFile {
    /// The second cut failed: the file is as the store has it, which is as nobody wants it.
    async fn not_cut(&self, status: Status) {
        let handle = self.lock().handle.clone();
        let attr = match handle {
            Some(handle) => handle.attr().await.ok(),
            None => None,
        };
        let inner = &mut *self.lock();
        inner.sessions.report_loss(status);
        self.core().note_loss();
        (inner.stored.stale, inner.stored.size) = (true, None);
        match attr {
            Some(attr) => self.set_size(inner, attr.size),
            None => inner.stored.unknown = true,
        }
    }
}

impl Inner {
    /// The store's file, whose data this writer is about to change there: an error that is met
    /// from now on may be of that.
    pub(crate) fn change_by(&mut self, writer: Writer) -> Result<Arc<dyn File>, Status> {
        let handle = self.handle.clone().ok_or(Status::BadStateId)?;
        self.sessions.add_writer(writer.id);
        Ok(handle)
    }
}
