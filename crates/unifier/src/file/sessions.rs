//! Sessions that have a file open, those that write it, and what each is still to be told.

use dafs_protocol::Status;
use smallvec::SmallVec;

use crate::WriterId;

/// Of one file.
#[derive(Default)]
pub(crate) struct Sessions {
    /// Opens of each session.
    opens: SmallVec<[(WriterId, u32); 2]>,
    /// Those that changed its data and have it open.
    writers: SmallVec<[WriterId; 2]>,
    /// What is to be told to whom.
    late: Vec<(WriterId, Status)>,
    /// Something that `late` speaks of cannot be written any more.
    lost: bool,
}

impl Sessions {
    /// A session opens it.
    pub(crate) fn count_open(&mut self, writer: WriterId) {
        match self.opens.iter_mut().find(|of| of.0 == writer) {
            Some(of) => of.1 += 1,
            None => self.opens.push((writer, 1)),
        }
    }

    /// A session closes it; after its last close it is no writer any more.
    pub(crate) fn count_close(&mut self, writer: WriterId) {
        if let Some(of) = self.opens.iter_mut().find(|of| of.0 == writer) {
            of.1 -= 1;
            if of.1 > 0 {
                return;
            }
        }
        self.opens.retain(|of| of.0 != writer);
        self.writers.retain(|known| *known != writer);
    }

    /// It is told of what becomes of the file's data.
    pub(crate) fn add_writer(&mut self, writer: WriterId) {
        if !self.writers.contains(&writer) {
            self.writers.push(writer);
        }
    }

    /// It changed its data, and has it open.
    pub(crate) fn has_written(&self, writer: WriterId) -> bool {
        self.writers.contains(&writer)
    }

    /// Each writer is to be told.
    pub(crate) fn report(&mut self, status: Status) {
        for writer in &self.writers {
            if !self.late.iter().any(|late| late.0 == *writer) {
                self.late.push((*writer, status));
            }
        }
    }

    /// As `report`, of what no later write-back brings back.
    pub(crate) fn report_loss(&mut self, status: Status) {
        self.report(status);
        // Until the last of them has been told.
        self.lost = !self.late.is_empty();
    }

    /// What a session is to be told, once.
    pub(crate) fn take_late(&mut self, writer: WriterId) -> Option<Status> {
        let at = self.late.iter().position(|late| late.0 == writer)?;
        let status = self.late.swap_remove(at).1;
        if self.late.is_empty() {
            self.lost = false;
        }
        Some(status)
    }

    /// What failed before has been written: nobody is told of that any more.
    pub(crate) fn all_is_written(&mut self) {
        if !self.lost {
            self.late.clear();
        }
    }
}
