//! The end of an open.

use std::sync::Arc;

use dafs_protocol::Status;

use crate::WriterId;
use crate::file::count;
use crate::file::{CachedFile, Which};
use crate::job::Outcome;
use crate::planted::{Defect, planted};

impl CachedFile {
    /// Ends one open. All that is dirty is written back; after the last close the store's file
    /// is let go, and the pages stay for the next open.
    ///
    /// # Errors
    /// The store's, or a late one of this writer.
    pub async fn close(self: &Arc<Self>, writer: WriterId) -> Result<(), Status> {
        let settled = self.lock().is_settled();
        let outcome = if settled && self.closed(Ok(())) {
            Ok(())
        } else {
            let file = self.clone();
            self.run(async move { file.flush_and_close().await }).await
        };
        let inner = &mut *self.lock();
        let wrote = inner.sessions.has_written(writer);
        inner.sessions.count_close(writer);
        let late = inner.sessions.take_late(writer);
        // Who wrote nothing is not told of what others wrote.
        let outcome = if wrote { outcome } else { Ok(()) };
        outcome.and(late.map_or(Ok(()), Err))
    }

    /// This session has written the file since it opened it.
    pub fn has_written(&self, writer: WriterId) -> bool {
        self.lock().sessions.has_written(writer)
    }

    async fn flush_and_close(self: &Arc<Self>) -> Outcome {
        loop {
            let outcome =
                if planted(Defect::CloseWithoutFlush) { Ok(()) } else { self.flush_pass().await };
            if self.closed(outcome) {
                return outcome;
            }
        }
    }

    /// After the flush of a close. While others are flushing for theirs, the file is open. False:
    /// what was begun before the last close has come after its flush, which is to be done again.
    fn closed(self: &Arc<Self>, outcome: Outcome) -> bool {
        {
            let inner = &mut *self.lock();
            assert!(inner.opens > 0, "an open is closed once");
            let is_quiet = inner.is_clean() && inner.exclusive.is_none();
            if inner.opens == 1
                && outcome.is_ok()
                && !is_quiet
                && !planted(Defect::CloseWithoutFlush)
            {
                return false;
            }
            inner.opens -= 1;
            if inner.opens > 0 {
                return true;
            }
            if outcome.is_err() || inner.stored.stale || planted(Defect::CloseWithoutFlush) {
                // Lost, and told; or of unknown age.
                let lost = self.drop_pages(inner, 0, Which::Dirty);
                count(&self.core().counters.lost_slots, lost);
                if lost > 0 {
                    self.core().note_loss();
                }
                self.drop_pages(inner, 0, Which::Clean);
                (inner.stored.stale, inner.stored.unknown) = (true, true);
            } else {
                // Not what was given up.
                self.set_size(inner, inner.stored.known.size);
            }
            inner.handle = None;
            inner.failed = None;
            inner.clear_privileges = false;
        }
        self.core().closed(self);
        true
    }
}
