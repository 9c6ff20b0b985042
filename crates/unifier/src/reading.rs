//! A read that may wait, as a future that is no box: for most, one fill at most.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use dafs_protocol::Status;

use crate::file::{CachedFile, Core, Fill, Pinned, PinnedPage, count};
use crate::pool::{FRAME_SLOTS, Page, Pages, SLOT};
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
    /// Also when it has ended.
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

/// What was asked for.
pub enum PinnedBytes {
    /// Bytes in one page, which lacked.
    Page(PinnedPage),
    /// Any.
    Read(PinnedRead),
}

impl Reading {
    /// As [`Future::poll`], which gives all in the form of one page or several.
    #[inline(always)]
    pub fn poll_pinned(&mut self, context: &mut Context<'_>) -> Poll<Result<PinnedBytes, Status>> {
        loop {
            let so_far = match &mut self.state {
                State::New => match self.file.first(self.offset, self.len)? {
                    First::Lease(lease) => return Poll::Ready(Ok(PinnedBytes::Read(lease))),
                    First::Fill(fill) => {
                        self.state = State::Fill(fill);
                        continue;
                    }
                    First::Other => SoFar::default(),
                },
                State::Fill(fill) => {
                    let Poll::Ready(outcome) = fill.poll(Some(context.waker())) else {
                        return Poll::Pending;
                    };
                    // Its pages are pinned until the reader has them.
                    if let Some(bytes) = self.file.pin_filled(fill, self.offset, self.len) {
                        self.let_go();
                        return Poll::Ready(Ok(bytes));
                    }
                    if let Err(status) = outcome
                        && fill.has_failed_within(self.offset, self.len)
                    {
                        return Poll::Ready(Err(status));
                    }
                    SoFar { exact: outcome.is_err(), missed: Some(false) }
                }
                State::Rest(rest) => {
                    return rest.as_mut().poll(context).map_ok(PinnedBytes::Read);
                }
            };
            let (file, offset, len) = (self.file.clone(), self.offset, self.len);
            self.state = State::Rest(Box::pin(file.read_all(offset, len, so_far)));
        }
    }

    fn let_go(&mut self) {
        if let State::Fill(fill) = std::mem::replace(&mut self.state, State::New) {
            Fill::let_go(fill);
        }
    }
}

impl Future for Reading {
    type Output = Outcome;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome> {
        self.get_mut().poll_pinned(context).map_ok(|bytes| match bytes {
            PinnedBytes::Page(page) => page.into_read(false),
            PinnedBytes::Read(lease) => lease,
        })
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
        let core = self.core();
        let counters = &core.counters;
        let (range, arrivals) = {
            let inner = &mut *self.lock();
            let range = self.reach(inner, offset, len, false);
            let is_within = len > 0 && offset < inner.size;
            let fits = range.count <= FRAME_SLOTS && core.fill_queue.is_empty();
            if !is_within || !fits || inner.exclusive.is_some() || !self.lacks(inner, &range) {
                let Some(lease) = self.lease(inner, offset, len) else { return Ok(First::Other) };
                count(&counters.hits, 1);
                return Ok(First::Lease(lease));
            }
            (range, inner.transfers.arrivals)
        };
        let replaced = if range.count == 1 { self.replace(core) } else { None };
        let pages = match replaced {
            Some(page) => Pages::from_slice(&[page]),
            None => match core.allocate(range.first, range.count) {
                Some(pages) => pages,
                None => return Ok(First::Other),
            },
        };
        let pages = Pinned::new(core, pages);
        let Some(fill) = self.start_fill(&range, pages, Some(arrivals))? else {
            return Ok(First::Other);
        };
        count(&counters.misses, 1);
        Ok(First::Fill(fill))
    }

    /// A pinned slot of this cache for one block, where none is free: that of what goes next, if it can.
    pub(crate) fn replace(self: &Arc<Self>, core: &Core) -> Option<Page> {
        if core.pool.may_have(1) {
            return None;
        }
        let (unit, number, block) = core.pool.next_slot()?;
        // Mostly its own: files that are read like this are large.
        let is_given = match number == self.number() {
            true => self.give_slot(core, unit, block),
            false => core.file(number).is_some_and(|file| file.give_slot(core, unit, block)),
        };
        if !is_given {
            core.pool.stays(unit);
            return None;
        }
        count(&core.counters.evicted_slots, 1);
        Some(unit)
    }

    /// Pins what was filled for it, if that is all, and still there.
    fn pin_filled(&self, fill: &Fill, offset: u64, len: usize) -> Option<PinnedBytes> {
        let inner = &mut *self.lock();
        let page = fill.page_of(offset / SLOT);
        // It is pinned, so that it is no other file's since.
        let is_own = |page: &Page| {
            self.is_in(fill.core()) && fill.core().pool.holds(*page, self.number(), offset / SLOT)
        };
        if let Some(page) = page.filter(is_own)
            && self.is_in_one_page(inner, offset, len)
        {
            return Some(PinnedBytes::Page(self.hold_page(inner, page, offset, len).keep()));
        }
        let mut lease = self.lease(inner, offset, len)?;
        lease.was_coming = false;
        Some(PinnedBytes::Read(lease))
    }
}
