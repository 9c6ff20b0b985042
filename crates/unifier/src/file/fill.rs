//! Blocks that are being read in: what the store fills, and who waits for that.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};

use dafs_protocol::Status;
use dafs_store::{File, ReadEnd, ReadWaiter};
use smallvec::SmallVec;

use super::core::{Pinned, count};
use super::inner::Transfers;
use super::{CachedFile, FILL_SLOTS_MAX, Filling};
use crate::blocks::BlockRange;
use crate::job::{Ending, Outcome};
use crate::pool::{Page, SLOT};
use crate::wait::{add_waker, locked};

/// One call of the store that fills pages. It ends in the thread that completes the call, whoever
/// waits for it.
pub(crate) struct Fill {
    file: Arc<CachedFile>,
    /// Open until it has ended.
    handle: Arc<dyn File>,
    blocks: BlockRange,
    /// What it brings stays until all who wait have seen it.
    pub(super) pages: Pinned,
    /// Where it is among the fills of its file, whose lock protects that.
    place: AtomicUsize,
    progress: Mutex<Progress>,
}

#[derive(Default)]
struct Progress {
    end: Option<End>,
    /// Mostly one.
    waiters: SmallVec<[Waker; 1]>,
}

#[derive(Clone, Copy)]
enum End {
    Done(Outcome),
    /// The store dropped the call.
    Lost,
}

impl Fill {
    /// Nothing is asked before it [begins](Self::begin).
    #[inline(always)]
    pub(crate) fn new(
        file: Arc<CachedFile>,
        handle: Arc<dyn File>,
        blocks: BlockRange,
        pages: Pinned,
    ) -> Arc<Fill> {
        let (place, progress) = (AtomicUsize::new(0), Mutex::default());
        Arc::new(Fill { file, handle, blocks, pages, place, progress })
    }

    /// Asks the store. The caller has no lock.
    #[inline(always)]
    pub(crate) fn begin(self: &Arc<Self>) {
        count(&self.file.core.counters.fills, 1);
        let into = self.file.core.spans(self.pages());
        self.handle.read_then(self.blocks.first * SLOT, into, ReadEnd::new(self.clone()));
    }

    /// Where it brings its blocks.
    pub(crate) fn pages(&self) -> &[Page] {
        &self.pages.pages
    }

    /// Where it brings this block.
    pub(crate) fn page_of(&self, block: u64) -> Option<Page> {
        let index = usize::try_from(block.checked_sub(self.blocks.first)?).ok()?;
        self.pages().get(index).copied()
    }

    /// Whether it has ended, and how; `waiter` is woken when it has.
    pub(crate) fn poll(&self, waiter: Option<&Waker>) -> Poll<Outcome> {
        let progress = &mut *locked(&self.progress);
        match progress.end {
            Some(End::Done(outcome)) => Poll::Ready(outcome),
            Some(End::Lost) => panic!("the store dropped a call"),
            None => {
                if let Some(waiter) = waiter {
                    add_waker(&mut progress.waiters, waiter);
                }
                Poll::Pending
            }
        }
    }

    /// It failed, and nothing but blocks of this range was asked for.
    pub(crate) fn has_failed_within(&self, offset: u64, len: usize) -> bool {
        let BlockRange { first, count } = self.blocks;
        let end = offset.saturating_add(len as u64).div_ceil(SLOT);
        let within = offset / SLOT <= first && first + count as u64 <= end;
        within && matches!(self.poll(None), Poll::Ready(Err(_)))
    }
}

impl ReadWaiter for Fill {
    fn ended(self: Arc<Self>, answer: Option<Result<usize, Status>>) {
        self.file.filled(&self, answer.unwrap_or(Err(Status::Io)));
        let mut progress = locked(&self.progress);
        progress.end = Some(match answer {
            Some(answer) => End::Done(answer.map(drop)),
            None => End::Lost,
        });
        let waiters = std::mem::take(&mut progress.waiters);
        drop(progress);
        waiters.into_iter().for_each(Waker::wake);
    }
}

impl Ending for Arc<Fill> {
    fn poll(&self, waiter: Option<&Waker>) -> Poll<Outcome> {
        Fill::poll(self, waiter)
    }
}

impl Transfers {
    /// It is under way from now on.
    #[inline(always)]
    pub(crate) fn begin_fill(&mut self, fill: &Arc<Fill>) {
        fill.place.store(self.fills.len(), Ordering::Relaxed);
        self.arrivals += 1;
        self.fills.push(Filling {
            first: fill.blocks.first,
            count: fill.blocks.count,
            void: [0; FILL_SLOTS_MAX / 64],
            fill: fill.clone(),
        });
    }

    /// It is not any more; `None`: nor has it been, since the cache ended.
    pub(crate) fn end_fill(&mut self, fill: &Fill) -> Option<Filling> {
        let place = fill.place.load(Ordering::Relaxed);
        self.fills.get(place).filter(|filling| std::ptr::eq(&*filling.fill, fill))?;
        let ended = self.fills.swap_remove(place);
        if let Some(moved) = self.fills.get(place) {
            moved.fill.place.store(place, Ordering::Relaxed);
        }
        Some(ended)
    }
}
