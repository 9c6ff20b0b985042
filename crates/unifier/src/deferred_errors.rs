//! Errors that come late: who is told, and what is given up.

use std::sync::Arc;

use dafs_protocol::Status;

use crate::file::count;
use crate::file::{CachedFile, Which};
use crate::job::Outcome;

impl CachedFile {
    /// Gives up dirty data that cannot be written, and tells its writers. The number of slots;
    /// `None` while some is tried again, or the file is being changed.
    pub(crate) fn give_up(&self) -> Option<usize> {
        let inner = &mut *self.lock();
        if !inner.transfers.writes.is_empty() || inner.exclusive.is_some() {
            return None;
        }
        inner.listed.failed = false;
        // All that failed may have been written since.
        let Some(status) = inner.failed.take() else { return Some(0) };
        let dropped = self.drop_pages(inner, 0, Which::Failed);
        if dropped > 0 {
            inner.sessions.report_loss(status);
            self.core().note_loss();
        }
        count(&self.core().counters.lost_slots, dropped);
        Some(dropped)
    }

    /// What was given up may have been the end of the file: it is as long as the store has it.
    pub(crate) async fn measure(self: Arc<Self>) -> Outcome {
        let file = self.clone();
        self.exclusive(async move {
            let handle = file.lock().handle.clone().ok_or(Status::BadStateId)?;
            let attr = handle.attr().await?;
            let inner = &mut *file.lock();
            file.set_size(inner, attr.size.max(inner.dirty_end()));
            Ok(())
        })
        .await
    }
}
