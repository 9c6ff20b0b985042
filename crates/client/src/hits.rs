//! Reads of open files that need no server, and what is done where they do.

use dafs_protocol::Status;

use crate::answer::unexpected;
use crate::core::{Output, Work};
use crate::error::Result;
use crate::file::File;
use crate::interrupt::Interrupt;
use crate::optimistic::{BLOCKS, Mapped};

const NOT_TOLD: &str = "the server tells nothing of this file: it does so for nobody (--optimistic off), or does not \
    cache it itself (--datapath), or this user may not map what is cached of it (--optimistic-scope)";
const NOT_MAPPED: &str =
    "the server's cache cannot be mapped here (a limit of addresses, RLIMIT_AS?)";

const NOT_GIVEN: &str = "the server gives no reference of this file: it does so for nobody (--optimistic off), or does \
    not cache it itself (--datapath)";

/// How reads go that need no request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OptimisticWay {
    /// This process maps the server's cache, and reads there by itself.
    Trusted,
    /// By a reference that the server checks at each read.
    Checked,
}

impl OptimisticWay {
    /// In a word.
    pub fn name(self) -> &'static str {
        match self {
            OptimisticWay::Trusted => "trusted",
            OptimisticWay::Checked => "checked",
        }
    }
}

impl File {
    /// Reads without the server. `None`: it is to be asked.
    #[inline]
    pub(crate) fn read_optimistic(&self, into: &mut [u8], offset: u64) -> Option<usize> {
        let session = &*self.session().inner;
        let is_over = || session.is_cancelled() || Interrupt::is_fired_here();
        self.inner.references.read(&session.optimistic, into, offset, is_over)
    }

    /// The same of the few blocks that [`read_optimistic`](Self::read_optimistic) does not look for.
    pub(crate) fn read_optimistic_rest(&self, into: &mut [u8], offset: u64) -> Option<usize> {
        let session = &*self.session().inner;
        let is_over = || session.is_cancelled() || Interrupt::is_fired_here();
        self.inner.references.read_second(&session.optimistic, into, offset, is_over)
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

    /// How reads of what is cached go without a request, or why they do not. Asks the server, and so begins with
    /// them.
    ///
    /// # Errors
    /// [`Error`](crate::Error).
    pub fn optimistic_way(&self) -> Result<std::result::Result<OptimisticWay, &'static str>> {
        let (placed, named) = {
            let core = &self.session().inner.lock().core;
            (core.why_no_references(), core.why_not_named())
        };
        match (placed, named) {
            (None, _) => Ok(self.why_not_trusted()?.map_or(Ok(OptimisticWay::Trusted), Err)),
            (Some(_), None) => Ok(self.why_not_checked()?.map_or(Ok(OptimisticWay::Checked), Err)),
            (Some(why), Some(_)) => Ok(Err(why)),
        }
    }

    fn why_not_checked(&self) -> Result<Option<&'static str>> {
        match self.call(Work::References { file: self.key(), first: 0, count: 0, accessed: 0 }) {
            Ok(Output::Unit) => Ok(None),
            Ok(other) => Err(unexpected(&other)),
            Err(error) if error.status() == Some(Status::NotSupp) => Ok(Some(NOT_GIVEN)),
            Err(error) => Err(error),
        }
    }

    fn why_not_trusted(&self) -> Result<Option<&'static str>> {
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
