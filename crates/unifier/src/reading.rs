//! A read that may wait, as a future that is no box: for most, one fill at most.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use dafs_protocol::Status;

use crate::file::{CachedFile, Fill, Pinned, count};
use crate::pool::{FRAME_SLOTS, Page, SLOT};
use crate::read::{PinnedRead, SoFar};

type Outcome = Result<PinnedRead, Status>;

/// A read: a future of what [`CachedFile::read`] says. Nothing happens before it is polled;
/// dropped, it asks for nothing more.
pub struct Reading {
    file: Arc<CachedFile>,
    offset: u64,
    len: usize,
    state: State,
}

enum State {
    New,
    Fill(Arc<Fill>),
    /// Boxed: few reads come here, and the others are not to be larger for it.
    Rest(Pin<Box<dyn Future<Output = Outcome> + Send>>),
}

/// What a read finds when it begins.
enum First {
    Lease(PinnedRead),
    /// Nothing of it, and nothing under way: this brings it.
    Fill(Arc<Fill>),
    /// Some of it, something in its way, or no room.
    Other,
}

impl Future for Reading {
    type Output = Outcome;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome> {
        let this = self.get_mut();
        loop {
            let so_far = match &mut this.state {
                State::New => match this.file.first(this.offset, this.len)? {
                    First::Lease(lease) => return Poll::Ready(Ok(lease)),
                    First::Fill(fill) => {
                        this.state = State::Fill(fill);
                        continue;
                    }
                    First::Other => SoFar::default(),
                },
                State::Fill(fill) => {
                    let Poll::Ready(outcome) = fill.poll(Some(context.waker())) else {
                        return Poll::Pending;
                    };
                    // Its pages are pinned until the lease has them.
                    if let Some(lease) = this.file.lease_of(fill, this.offset, this.len) {
                        return Poll::Ready(Ok(lease));
                    }
                    if let Err(status) = outcome
                        && fill.has_failed_within(this.offset, this.len)
                    {
                        return Poll::Ready(Err(status));
                    }
                    SoFar { exact: outcome.is_err(), missed: Some(false) }
                }
                State::Rest(rest) => return rest.as_mut().poll(context),
            };
            let (file, offset, len) = (this.file.clone(), this.offset, this.len);
            this.state = State::Rest(Box::pin(file.read_all(offset, len, so_far)));
        }
    }
}

impl CachedFile {
    /// Reads in what is missing. Short at the end of the file, and for more than an eighth of
    /// the arena at once.
    ///
    /// # Errors
    /// The store's; the file is not open.
    pub fn read(self: &Arc<Self>, offset: u64, len: usize) -> Reading {
        let len = len.min(self.read_bytes_max());
        Reading { file: self.clone(), offset, len, state: State::New }
    }

    fn first(self: &Arc<Self>, offset: u64, len: usize) -> Result<First, Status> {
        let counters = &self.core.counters;
        let (range, arrivals) = {
            let inner = &mut *self.lock();
            let range = self.reach(inner, offset, len, false);
            let is_within = len > 0 && offset < inner.size;
            let fits = range.count <= FRAME_SLOTS && self.core.fill_queue.is_empty();
            if !is_within || !fits || inner.exclusive.is_some() || !inner.lacks(&range) {
                let Some(lease) = self.lease(inner, offset, len) else { return Ok(First::Other) };
                count(&counters.hits, 1);
                return Ok(First::Lease(lease));
            }
            (range, inner.transfers.arrivals)
        };
        let Some(pages) = self.core.allocate(range.first, range.count) else {
            return Ok(First::Other);
        };
        let pages = Pinned::new(&self.core, pages);
        let Some(fill) = self.start_fill(&range, pages, Some(arrivals))? else {
            return Ok(First::Other);
        };
        count(&counters.misses, 1);
        Ok(First::Fill(fill))
    }

    /// Pins what was filled for it, if that is all, and still there.
    fn lease_of(&self, fill: &Fill, offset: u64, len: usize) -> Option<PinnedRead> {
        let inner = &mut *self.lock();
        let is_one = offset.saturating_add(len as u64).div_ceil(SLOT) == offset / SLOT + 1;
        let page = fill.page_of(offset / SLOT).filter(|_| is_one);
        // It is pinned, so that it is no other file's since.
        let is_own = |page: &Page| self.core.pool.holds(*page, self.number(), offset / SLOT);
        let mut lease = self.lease_with(inner, offset, len, page.filter(is_own))?;
        lease.was_coming = false;
        Some(lease)
    }
}
