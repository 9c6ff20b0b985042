//! What the chains of a worker share with it: what they ask for, and memory that is used again.

mod grant;
mod held;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

use dafs_fabric::{Arena, Rkey, SgList, Span, poison};
use dafs_message::{ConnId, RequestId};
use dafs_protocol::{PLAIN_READ_REPLY_BYTES, SessionId, Status};
use dafs_unifier::{DomainId, PinnedPage};
use rustc_hash::FxHashMap;

use crate::locks::Ended;
use crate::metrics::WorkerCounters;
use crate::named::NamedKey;
use crate::numbers::LastNumber;
use crate::session::Session;
use crate::shared::Shared;
pub(crate) use grant::Grant;
pub(crate) use held::Held;

/// What a chain or an acceptor wants the worker to do.
pub(crate) enum Action {
    Fetch {
        id: RequestId,
        into: SgList,
    },
    Reply {
        id: RequestId,
        header: Vec<u8>,
        data: SgList,
        held: Vec<Held>,
    },
    /// Of a read of bytes in one page.
    ReplyPage {
        id: RequestId,
        header: [u8; PLAIN_READ_REPLY_BYTES],
        page: PinnedPage,
        grant: Grant,
    },
    Destroy {
        session: SessionId,
    },
    /// A part of its share is free.
    GoOn {
        session: SessionId,
    },
    LockEnded(Ended),
    /// There may be more for a client to map than when its connection was made.
    LookAgain {
        session: Rc<Session>,
        conn: ConnId,
    },
    /// A client who reads a cache by himself says what he uses, by bits in memory of his.
    Heed {
        session: Rc<Session>,
        conn: ConnId,
        domain: DomainId,
        accessed: Rkey,
    },
}

/// A fetch under way.
pub(crate) struct Fetch {
    /// How it ended, as [`Event::Fetched`](dafs_message::Event::Fetched) says it, and who waits.
    end: FetchEnd,
    /// Its place among all transfers.
    pub order: u64,
}

/// Fetches under way: who waits for them.
pub(crate) type Fetches = RefCell<FxHashMap<RequestId, Fetch>>;

type FetchEnd = Rc<RefCell<(Option<Option<u32>>, Option<Waker>)>>;

/// What chains share with their worker.
pub(crate) struct Context {
    pub shared: Arc<Shared>,
    /// The worker's.
    pub number: u16,
    pub counters: Arc<WorkerCounters>,
    /// Pieces of memory that one transfer takes.
    pub segments_max: usize,
    pub now: Cell<Duration>,
    pub actions: RefCell<VecDeque<Action>>,
    /// Tasks of the worker that write back.
    pub writing_back: Cell<usize>,
    pub fetches: Fetches,
    pub last_number: Cell<LastNumber>,
    /// Of what clients read open files by.
    pub named_key: RefCell<NamedKey>,
    /// Of fetches and replies.
    next_transfer: Cell<u64>,
    headers: RefCell<Vec<Vec<u8>>>,
    held: RefCell<Vec<Vec<Held>>>,
    scratch: RefCell<Vec<Span>>,
}

/// Bytes of a piece of scratch memory: the most that lists and attributes answer at once.
pub(crate) const SCRATCH_BYTES: usize = 65_536;
const SCRATCH_KEPT: usize = 16;
const HEADERS_KEPT: usize = 64;
const HELD_KEPT: usize = 64;
const HELD_CAPACITY_MAX: usize = 8;

impl Context {
    pub(crate) fn new(shared: Arc<Shared>, number: u16, segments_max: usize) -> Context {
        let counters = shared.counters.of_worker();
        let named_key = RefCell::new(NamedKey::new(shared.random()));
        Context {
            shared,
            number,
            counters,
            segments_max,
            now: Cell::new(Duration::ZERO),
            actions: RefCell::default(),
            writing_back: Cell::new(0),
            fetches: Fetches::default(),
            last_number: Cell::default(),
            named_key,
            next_transfer: Cell::new(1),
            headers: RefCell::default(),
            held: RefCell::default(),
            scratch: RefCell::default(),
        }
    }

    /// The place of a fetch or reply that begins now.
    pub(crate) fn transfer(&self) -> u64 {
        let order = self.next_transfer.get();
        self.next_transfer.set(order + 1);
        order
    }

    /// An empty Vec for a message.
    pub(crate) fn header(&self) -> Vec<u8> {
        self.headers.borrow_mut().pop().unwrap_or_default()
    }

    pub(crate) fn recycle(&self, mut header: Vec<u8>) {
        let mut headers = self.headers.borrow_mut();
        if headers.len() < HEADERS_KEPT {
            header.clear();
            headers.push(header);
        }
    }

    /// An empty list of what keeps a reply's data alive.
    pub(crate) fn held(&self) -> Vec<Held> {
        self.held.borrow_mut().pop().unwrap_or_default()
    }

    /// `held` is empty. Long ones are rare, and not kept.
    pub(crate) fn recycle_held(&self, held: Vec<Held>) {
        let mut kept = self.held.borrow_mut();
        if (1..=HELD_CAPACITY_MAX).contains(&held.capacity()) && kept.len() < HELD_KEPT {
            kept.push(held);
        }
    }

    /// Memory for what is not file data; at least `bytes`.
    pub(crate) fn scratch(&self, bytes: usize) -> Result<Span, Status> {
        if bytes <= SCRATCH_BYTES
            && let Some(span) = self.scratch.borrow_mut().pop()
        {
            poison::check(&span, "scratch");
            return Ok(span);
        }
        let arena = Arena::new(bytes.max(SCRATCH_BYTES)).map_err(|_| Status::NoMem)?;
        let len = arena.len();
        Ok(arena.span(0, len))
    }

    pub(crate) fn give_back_scratch(&self, span: Span) {
        let mut scratch = self.scratch.borrow_mut();
        if span.len() == SCRATCH_BYTES && scratch.len() < SCRATCH_KEPT {
            poison::fill(&span);
            scratch.push(span);
        }
    }

    /// A fetch is over.
    pub(crate) fn fetched(&self, id: RequestId, placed: Option<u32>) {
        let Some(fetch) = self.fetches.borrow_mut().remove(&id) else { return };
        let mut cell = fetch.end.borrow_mut();
        cell.0 = Some(placed);
        if let Some(waker) = cell.1.take() {
            waker.wake();
        }
    }

    /// Bytes that were placed; `None`: the connection broke.
    pub(crate) async fn fetch(&self, id: RequestId, into: SgList) -> Option<u32> {
        let cell = FetchEnd::default();
        let fetch = Fetch { end: cell.clone(), order: self.transfer() };
        self.fetches.borrow_mut().insert(id, fetch);
        self.actions.borrow_mut().push_back(Action::Fetch { id, into });
        poll_fn(|context| {
            let mut cell = cell.borrow_mut();
            match cell.0 {
                Some(placed) => Poll::Ready(placed),
                None => {
                    cell.1 = Some(context.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }
}
