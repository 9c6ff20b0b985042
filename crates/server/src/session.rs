//! A session: identity, slots, open files, connections. Lives on one worker.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use dafs_message::{ConnId, RequestId};
use dafs_protocol::{
    CallbackSlots, CredHandle, Identity, ServerSlots, SessionAttr, SessionId, SessionSecret,
    SizeClass, SlotId, StateId, Status,
};
use dafs_store::Caller;
use dafs_unifier::WriterId;
use rustc_hash::FxHashMap;

use crate::budget::{Needs, UserShare};
use crate::delayed::Delayed;
use crate::intent_log::SessionLog;
use crate::locks::{Client, SessionNumber};
use crate::metrics::{SessionMeter, count};
use crate::opens::Open;
use crate::paths::{PageCache, Share};

/// A connection of a session.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Link {
    pub connection: ConnId,
    pub class: SizeClass,
    /// When it was bound.
    pub since: Duration,
    /// Something came over it since.
    pub heard: bool,
}

pub(crate) struct Session {
    pub id: SessionId,
    pub secret: SessionSecret,
    /// The proven identity.
    pub who: Caller,
    /// Whose it is.
    pub client: Client,
    pub attr: SessionAttr,
    pub slots: RefCell<ServerSlots>,
    pub callbacks: RefCell<CallbackSlots<ConnId>>,
    /// It is recorded that the client may have locks.
    pub may_lock: Cell<bool>,
    /// The client's session before this one has not ended yet: nothing is answered.
    pub held_back: Cell<bool>,
    /// Connections that work.
    pub connections: RefCell<Vec<Link>>,
    /// Connections that broke and are not quiescent yet.
    pub draining: RefCell<Vec<ConnId>>,
    /// Where the reply of each slot goes: the connection that asked last.
    targets: RefCell<Vec<Option<RequestId>>>,
    opens: RefCell<FxHashMap<u64, Rc<Open>>>,
    /// Its buffers, once it has opened a file whose data the kernel caches.
    share: OnceCell<Arc<Share>>,
    next_state: Cell<u64>,
    credentials: RefCell<FxHashMap<u32, Caller>>,
    next_credential: Cell<u32>,
    /// The most that its requests under way may take.
    pub most: Needs,
    /// The share of its user, of which they take.
    pub share_of_user: Arc<UserShare>,
    /// What they took.
    pub taken: Cell<Needs>,
    /// Requests that wait for what they need, in order.
    pub delayed: RefCell<VecDeque<Delayed>>,
    /// The ticket of the first of them, if it waits for what others took; the next one's.
    pub in_line: Cell<Option<u64>>,
    pub next_ticket: Cell<u64>,
    pub last_seen: Cell<Duration>,
    /// Rounds of the engine when it was first found silent for longer than a lease.
    pub silent: Cell<Option<u64>>,
    /// No new work: it is being destroyed.
    pub ended: Cell<bool>,
    /// What it did.
    pub counters: Arc<SessionMeter>,
    /// To whom late write errors are told.
    pub writer: WriterId,
    /// What becomes of its changes.
    pub intent_log: Option<SessionLog>,
}

impl Session {
    pub(crate) fn new(
        id: SessionId,
        secret: SessionSecret,
        who: Caller,
        client: Client,
        attr: SessionAttr,
        (now, share_of_user): (Duration, Arc<UserShare>),
        counters: Arc<SessionMeter>,
    ) -> Session {
        Session {
            id,
            secret,
            who,
            client,
            attr,
            slots: RefCell::new(ServerSlots::new(attr.slots)),
            callbacks: RefCell::default(),
            may_lock: Cell::new(false),
            held_back: Cell::new(false),
            connections: RefCell::default(),
            draining: RefCell::default(),
            targets: RefCell::new(vec![None; usize::from(attr.slots)]),
            opens: RefCell::default(),
            share: OnceCell::new(),
            next_state: Cell::new(1),
            credentials: RefCell::default(),
            next_credential: Cell::new(1),
            most: share_of_user.of_session(),
            share_of_user,
            taken: Cell::default(),
            delayed: RefCell::default(),
            in_line: Cell::new(None),
            next_ticket: Cell::new(0),
            last_seen: Cell::new(now),
            silent: Cell::new(None),
            ended: Cell::new(false),
            writer: WriterId(counters.number),
            counters,
            intent_log: None,
        }
    }

    /// Used for no other session of this server.
    pub(crate) fn number(&self) -> SessionNumber {
        self.writer.0
    }

    pub(crate) fn set_target(&self, slot: SlotId, id: RequestId) {
        if let Some(target) = self.targets.borrow_mut().get_mut(usize::from(slot.0)) {
            *target = Some(id);
        }
    }

    pub(crate) fn take_target(&self, slot: SlotId) -> Option<RequestId> {
        self.targets.borrow_mut().get_mut(usize::from(slot.0)).and_then(Option::take)
    }

    /// Under whose rights an operation with this credential runs.
    pub(crate) fn identity(&self, cred: CredHandle) -> Result<Caller, Status> {
        if cred.0 == 0 {
            return Ok(self.who.clone());
        }
        self.credentials.borrow().get(&cred.0).cloned().ok_or(Status::NoCreds)
    }

    /// Only a root peer may act for others.
    pub(crate) fn register(&self, identity: Identity, max: usize) -> Result<CredHandle, Status> {
        if self.who.uid != 0 {
            return Err(Status::NotAuthorized);
        }
        let mut credentials = self.credentials.borrow_mut();
        if credentials.len() >= max {
            return Err(Status::Resource);
        }
        let number = self.next_credential.get();
        self.next_credential.set(number.checked_add(1).ok_or(Status::Resource)?);
        credentials.insert(number, Arc::new(identity));
        Ok(CredHandle(number))
    }

    pub(crate) fn release(&self, cred: CredHandle) -> Result<(), Status> {
        self.credentials.borrow_mut().remove(&cred.0).map(drop).ok_or(Status::NoCreds)
    }

    /// What it may take of the buffers.
    pub(crate) fn share(&self, page_cache: &PageCache) -> Arc<Share> {
        self.share.get_or_init(|| page_cache.share(self.who.uid)).clone()
    }

    pub(crate) fn add_open(&self, open: Rc<Open>) -> StateId {
        let number = self.next_state.get();
        self.next_state.set(number + 1);
        self.opens.borrow_mut().insert(number, open);
        count(&self.counters.opens, 1);
        StateId(number)
    }

    pub(crate) fn open(&self, state: StateId) -> Result<Rc<Open>, Status> {
        self.opens.borrow().get(&state.0).cloned().ok_or(Status::BadStateId)
    }

    pub(crate) fn remove_open(&self, state: StateId) -> Result<Rc<Open>, Status> {
        let open = self.opens.borrow_mut().remove(&state.0).ok_or(Status::BadStateId)?;
        count(&self.counters.opens, 1u64.wrapping_neg());
        Ok(open)
    }

    /// Whether there is such an open.
    pub(crate) fn any_open(&self, is: impl Fn(StateId, &Open) -> bool) -> bool {
        self.opens.borrow().iter().any(|(state, open)| is(StateId(*state), open))
    }

    pub(crate) fn take_opens(&self) -> Vec<Rc<Open>> {
        let mut opens: Vec<_> = self.opens.borrow_mut().drain().collect();
        opens.sort_unstable_by_key(|open| open.0);
        opens.into_iter().map(|(_, open)| open).collect()
    }

    pub(crate) fn open_count(&self) -> usize {
        self.opens.borrow().len()
    }
}
