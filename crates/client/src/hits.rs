//! Reads of open files that need no server, and what is done where they do.

use dafs_protocol::Status;

use crate::answer::unexpected;
use crate::core::{Output, Work};
use crate::error::Result;
use crate::file::File;
use crate::interrupt::Interrupt;
use crate::optimistic::{BLOCKS, Mapped};

const NOT_TOLD: &str = "the server tells nothing of this file: it does so for nobody (--optimistic off), or does not \
    cache it itself (--datapath), or this user may not map its cache (share_cache)";
const NOT_MAPPED: &str =
    "the server's cache cannot be mapped here (a limit of addresses, RLIMIT_AS?)";

impl File {
    /// Reads without the server. `None`: it is to be asked.
    #[inline]
    pub(crate) fn read_optimistic(&self, into: &mut [u8], offset: u64) -> Option<usize> {
        let session = self.session();
        let is_over = || session.inner.is_cancelled() || Interrupt::is_fired_here();
        self.inner.references.read(&session.inner.optimistic, (into, offset), is_over)
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

    /// Why reads of what is cached are not made without the server; `None`: they are. Asks the server, and so begins
    /// with them.
    ///
    /// # Errors
    /// [`Error`](crate::Error).
    pub fn why_not_optimistic(&self) -> Result<Option<&'static str>> {
        if let Some(why) = self.session().inner.lock().core.why_no_references() {
            return Ok(Some(why));
        }
        let (references, optimistic) = (&self.inner.references, &self.session().inner.optimistic);
        match self.call(self.question(0)) {
            Ok(Output::References(referred)) => {
                let unheeded = references.told(optimistic, 0, Some(&referred));
                unheeded.inspect(|mapped| self.offer_accessed(mapped, 0));
                Ok(referred.memory.is_none().then_some(NOT_MAPPED))
            }
            Ok(other) => Err(unexpected(&other)),
            Err(error) if error.status() == Some(Status::NotSupp) => Ok(Some(NOT_TOLD)),
            Err(error) => Err(error),
        }
    }

    fn question(&self, first: u64) -> Work {
        Work::References { file: self.key(), first, count: BLOCKS, accessed: 0 }
    }

    /// From now on the server sees what this side reads by itself of a cache of it, in which the file is. Where that
    /// cannot be, it counts as unused.
    fn offer_accessed(&self, mapped: &Mapped, first: u64) {
        let share = |memory: &_| self.session().inner.lock().core.share(memory);
        let Some(key) = mapped.accessed.offer(share) else { return };
        let offer = Work::References { file: self.key(), first, count: 1, accessed: key.0 };
        if let Err(error) = self.call(offer) {
            tracing::debug!(%error, "the server is not told what is read without it");
        }
    }

    #[inline(never)]
    fn ask_where(&self, first: u64) {
        let (references, optimistic) = (&self.inner.references, &self.session().inner.optimistic);
        match self.call(self.question(first)) {
            Ok(Output::References(referred)) => {
                let unheeded = references.told(optimistic, first, Some(&referred));
                unheeded.inspect(|mapped| self.offer_accessed(mapped, first));
            }
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
