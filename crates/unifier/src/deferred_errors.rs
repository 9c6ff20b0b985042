//! Errors that come late: who is told, and what is given up.

use std::sync::Arc;

use dafs_protocol::Status;

use crate::WriterId;
use crate::file::count;
use crate::file::{CachedFile, Inner, Which};
use crate::job::Outcome;

impl Inner {
    pub(crate) fn count_open(&mut self, writer: WriterId) {
        match self.opens_of.iter_mut().find(|of| of.0 == writer) {
            Some(of) => of.1 += 1,
            None => self.opens_of.push((writer, 1)),
        }
    }

    /// A session closes it; after its last close it is no writer any more.
    pub(crate) fn count_close(&mut self, writer: WriterId) {
        if let Some(of) = self.opens_of.iter_mut().find(|of| of.0 == writer) {
            of.1 -= 1;
            if of.1 > 0 {
                return;
            }
        }
        self.opens_of.retain(|of| of.0 != writer);
        self.writers.retain(|known| *known != writer);
    }

    /// It is told of what becomes of the file's data.
    pub(crate) fn add_writer(&mut self, writer: WriterId) {
        if !self.writers.contains(&writer) {
            self.writers.push(writer);
        }
    }

    pub(crate) fn report_to_writers(&mut self, status: Status) {
        for writer in &self.writers {
            if !self.late.iter().any(|late| late.0 == *writer) {
                self.late.push((*writer, status));
            }
        }
    }

    /// As `report_to_writers`, of what no later write-back brings back.
    pub(crate) fn report_loss(&mut self, status: Status) {
        self.report_to_writers(status);
        // Until the last of them has been told.
        self.lost = !self.late.is_empty();
    }

    pub(crate) fn take_late(&mut self, writer: WriterId) -> Option<Status> {
        let at = self.late.iter().position(|late| late.0 == writer)?;
        let status = self.late.swap_remove(at).1;
        if self.late.is_empty() {
            self.lost = false;
        }
        Some(status)
    }
}

impl CachedFile {
    /// Gives up dirty data that cannot be written, and tells its writers. The number of slots;
    /// `None` while some is tried again, or the file is being changed.
    pub(crate) fn give_up(&self) -> Option<usize> {
        let inner = &mut *self.lock();
        if !inner.writes.is_empty() || inner.exclusive.is_some() {
            return None;
        }
        inner.listed_failed = false;
        // All that failed may have been written since.
        let Some(status) = inner.failed.take() else { return Some(0) };
        let dropped = self.drop_pages(inner, 0, Which::Failed);
        if dropped > 0 {
            inner.report_loss(status);
        }
        count(&self.core.counters.lost_slots, dropped);
        Some(dropped)
    }

    /// What was given up may have been the end of the file: it is as long as the store has it.
    pub(crate) async fn measure(self: Arc<Self>) -> Outcome {
        let file = self.clone();
        self.exclusive(async move {
            let handle = file.lock().handle.clone().ok_or(Status::BadStateId)?;
            let attr = handle.attr().await?;
            let inner = &mut *file.lock();
            inner.size = attr.size.max(inner.dirty_end());
            Ok(())
        })
        .await
    }
}
