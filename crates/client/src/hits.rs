//! Reads of open files that need no server, and what is done where they do.

use dafs_protocol::Status;

use crate::core::{Output, Work};
use crate::file::File;
use crate::interrupt::Interrupt;
use crate::optimistic::BLOCKS;

impl File {
    /// Reads without the server. `None`: it is to be asked.
    #[inline]
    pub(crate) fn read_optimistic(&self, into: &mut [u8], offset: u64) -> Option<usize> {
        let session = self.session();
        let is_over = || session.inner.is_cancelled() || Interrupt::is_fired_here();
        self.inner.references.read(&session.optimistic, (into, offset), is_over)
    }

    /// The server was asked for so many bytes, and has answered: from time to time it is asked where blocks are, too.
    /// The read has ended well, whatever becomes of that.
    #[inline]
    pub(crate) fn missed(&self, offset: u64, bytes: usize) {
        let references = &self.inner.references;
        let may = || self.session().inner.lock().core.gets_references();
        if let Some(first) = references.missed(offset, bytes, may) {
            self.ask_where(first);
        }
    }

    #[inline(never)]
    fn ask_where(&self, first: u64) {
        let (references, optimistic) = (&self.inner.references, &self.session().optimistic);
        match self.call(Work::References { file: self.key(), first, count: BLOCKS }) {
            Ok(Output::References(referred)) => references.told(optimistic, first, Some(&referred)),
            answer => {
                references.told(optimistic, first, None);
                // It tells nothing of this file.
                if answer.is_err_and(|error| error.status() == Some(Status::NotSupp)) {
                    references.end();
                }
            }
        }
    }
}
