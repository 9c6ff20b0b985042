//! Blocks that are being read in: what the store fills, and who waits for that.

use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, Waker};

use dafs_fabric::SgList;
use dafs_fabric::mem::PAGE_BYTES;
use dafs_protocol::Status;
use dafs_store::{File, ReadEnd, ReadWaiter};

use super::CachedFile;
use super::core::{Core, Pinned, count};
use super::page::{Asked, PageEnd};
use crate::blocks::BlockRange;
use crate::job::{Ending, Outcome};
use crate::pool::{Page, SLOT};
use crate::wait::locked;

/// One call of the store that fills pages. It ends in the thread that completes the call, whoever
/// waits for it.
#[derive(Default)]
pub(crate) struct Fill {
    /// `None`: it is spare.
    call: Option<Call>,
    /// Where it is among the fills of its file, whose lock protects that.
    place: AtomicUsize,
    progress: Mutex<Progress>,
}

struct Call {
    file: Arc<CachedFile>,
    /// Open until it has ended.
    handle: Arc<dyn File>,
    blocks: BlockRange,
    /// What it brings stays until all who wait have seen it.
    pages: Pinned,
    /// Who is told of it beside those who wait.
    asked: Option<Asked>,
}

#[derive(Default)]
struct Progress {
    end: Option<End>,
    /// Mostly all who wait.
    waiter: Option<Waker>,
    others: Vec<Waker>,
}

impl Progress {
    #[inline(always)]
    fn add(&mut self, waker: &Waker) {
        match &self.waiter {
            None => self.waiter = Some(waker.clone()),
            Some(known) if known.will_wake(waker) => {}
            Some(_) => self.add_other(waker),
        }
    }

    #[inline(never)]
    fn add_other(&mut self, waker: &Waker) {
        if !self.others.iter().any(|known| known.will_wake(waker)) {
            self.others.push(waker.clone());
        }
    }
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
        (blocks, pages): (BlockRange, Pinned),
        asked: Option<Asked>,
    ) -> Arc<Fill> {
        let mut fill = pages.core.spare_fills.take().unwrap_or_default();
        let call = Call { file, handle, blocks, pages, asked };
        match Arc::get_mut(&mut fill) {
            Some(spare) => {
                spare.call = Some(call);
                fill
            }
            None => Arc::new(Fill { call: Some(call), ..Fill::default() }),
        }
    }

    fn call(&self) -> &Call {
        self.call.as_ref().expect("who has it, has it in use")
    }

    /// Who waited has seen what it brought.
    #[inline(always)]
    pub(crate) fn let_go(mut this: Arc<Fill>) {
        if let Some(call) = Arc::get_mut(&mut this).and_then(Fill::take) {
            call.pages.core.spare_fills.put(this);
        }
    }

    /// It is spare from now on.
    #[inline(always)]
    fn take(&mut self) -> Option<Call> {
        *self.progress.get_mut().unwrap_or_else(PoisonError::into_inner) = Progress::default();
        self.call.take()
    }

    /// Asks the store. The caller has no lock.
    #[inline(always)]
    pub(crate) fn begin(self: &Arc<Self>) {
        let Call { handle, blocks, pages, .. } = self.call();
        let core = &pages.core;
        count(&core.counters.fills, 1);
        let into = match pages.pages.as_slice() {
            [page] => SgList::from_iter([core.pool.part(*page, 0, PAGE_BYTES)]),
            pages => core.spans(pages),
        };
        handle.read_then(blocks.first * SLOT, into, ReadEnd::new(self.clone()));
    }

    #[inline(always)]
    pub(super) fn blocks(&self) -> BlockRange {
        self.call().blocks
    }

    /// Where it is among the fills of its file.
    #[inline(always)]
    pub(super) fn place(&self) -> &AtomicUsize {
        &self.place
    }

    /// Who is told of its end.
    #[inline(always)]
    pub(crate) fn asked(&self) -> Option<&Asked> {
        self.call().asked.as_ref()
    }

    /// The cache in which it is.
    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.call().pages.core
    }

    /// Where it brings its blocks.
    pub(crate) fn pages(&self) -> &[Page] {
        &self.call().pages.pages
    }

    /// Where it brings this block.
    pub(crate) fn page_of(&self, block: u64) -> Option<Page> {
        let index = usize::try_from(block.checked_sub(self.call().blocks.first)?).ok()?;
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
                    progress.add(waiter);
                }
                Poll::Pending
            }
        }
    }

    /// It failed, and nothing but blocks of this range was asked for.
    pub(crate) fn has_failed_within(&self, offset: u64, len: usize) -> bool {
        let BlockRange { first, count } = self.call().blocks;
        let end = offset.saturating_add(len as u64).div_ceil(SLOT);
        let within = offset / SLOT <= first && first + count as u64 <= end;
        within && matches!(self.poll(None), Poll::Ready(Err(_)))
    }
}

impl Fill {
    /// As [`ended`](ReadWaiter::ended), of one that somebody is told of.
    #[inline(always)]
    fn tell(mut self: Arc<Self>, answer: Option<Result<usize, Status>>) {
        let page = self.call().file.filled(&self, answer.unwrap_or(Err(Status::Io)));
        let end = match (page, answer) {
            (Some(page), _) => PageEnd::Here(page),
            (None, Some(Err(status))) => PageEnd::Failed(status),
            (None, _) => PageEnd::Again,
        };
        // Mostly nobody else waits for it.
        let asked = match Arc::get_mut(&mut self).and_then(Fill::take) {
            Some(Call { file, handle, pages, asked, .. }) => {
                pages.core.spare_fills.put(self);
                // First, so that who is told is not the last to hold any of it.
                drop((pages, handle, file));
                asked
            }
            None => {
                self.note_end(answer);
                self.asked().cloned()
            }
        };
        if let Some(asked) = asked {
            asked.tell(end);
        }
    }

    /// It has ended so, for those who wait.
    fn note_end(&self, answer: Option<Result<usize, Status>>) {
        let mut progress = locked(&self.progress);
        progress.end = Some(match answer {
            Some(answer) => End::Done(answer.map(drop)),
            None => End::Lost,
        });
        let (waiter, others) = (progress.waiter.take(), std::mem::take(&mut progress.others));
        drop(progress);
        waiter.into_iter().chain(others).for_each(Waker::wake);
    }
}

impl ReadWaiter for Fill {
    fn ended(self: Arc<Self>, answer: Option<Result<usize, Status>>) {
        if self.asked().is_some() {
            return self.tell(answer);
        }
        self.call().file.filled(&self, answer.unwrap_or(Err(Status::Io)));
        self.note_end(answer);
    }
}

impl Ending for Arc<Fill> {
    fn poll(&self, waiter: Option<&Waker>) -> Poll<Outcome> {
        Fill::poll(self, waiter)
    }
}
