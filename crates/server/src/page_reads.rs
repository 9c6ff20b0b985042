//! Reads that wait for one page of the cache: records of what their replies need, and no tasks. The cache
//! tells when a page is there, and the worker replies at once.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use dafs_protocol::PlainRead;
use dafs_unifier::PageWaiter;

use crate::context::Grant;
use crate::opens::Open;
use crate::ready::{PageEnds, Ready};

/// Records that are kept when none waits.
const PLACES_KEPT: usize = 1024;

/// A read that waits for its page.
pub(crate) struct PageRead {
    pub read: PlainRead,
    pub open: Rc<Open>,
    /// When it began.
    pub start: Duration,
    pub grant: Grant,
}

/// The reads of one worker that wait for a page.
pub(crate) struct PageReads {
    places: Vec<Option<PageRead>>,
    free: Vec<usize>,
    waiter: Arc<dyn PageWaiter>,
    /// Used again each time.
    ends: PageEnds,
}

impl PageReads {
    /// None; `ready` is told of their ends.
    pub(crate) fn new(ready: Arc<Ready>) -> PageReads {
        PageReads { places: Vec::new(), free: Vec::new(), waiter: ready, ends: Vec::new() }
    }

    /// How many.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// Who is to be told of the end of the one that [waits](Self::wait) next, and by which number.
    #[inline(always)]
    pub(crate) fn next(&self) -> (&Arc<dyn PageWaiter>, usize) {
        (&self.waiter, self.free.last().copied().unwrap_or(self.places.len()))
    }

    /// It waits from now on, by the [next](Self::next) number; its end may have been told.
    #[inline(always)]
    pub(crate) fn wait(&mut self, read: PageRead) {
        match self.free.pop().and_then(|number| self.places.get_mut(number)) {
            Some(place) => *place = Some(read),
            None => self.places.push(Some(read)),
        }
    }

    /// It waits no more.
    #[inline(always)]
    pub(crate) fn take(&mut self, number: usize) -> Option<PageRead> {
        let read = self.places.get_mut(number)?.take()?;
        self.free.push(number);
        // Of a crowd no memory is kept.
        if self.len() == 0 && self.places.len() > PLACES_KEPT {
            (self.places, self.free) = (Vec::new(), Vec::new());
        }
        Some(read)
    }

    /// An empty list for ends.
    pub(crate) fn take_ends(&mut self) -> PageEnds {
        std::mem::take(&mut self.ends)
    }

    /// Gives it back.
    pub(crate) fn keep_ends(&mut self, ends: PageEnds) {
        self.ends = ends;
    }
}
