//! A session: identity, slots, open files, connections. Lives on one worker.

mod allowance;
mod credentials;
mod life;
mod links;
pub(crate) mod open_files;
mod slots;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use dafs_fabric::mem::{self, Mark};
use dafs_message::{ConnId, RequestId};
use dafs_protocol::{
    CallbackSlots, CredHandle, Identity, SessionAttr, SessionId, SessionSecret, SlotId, StateId,
    Status,
};
use dafs_store::Caller;
use dafs_unifier::{AccessedBits, DomainId, WriterId};

use crate::budget::UserShare;
use crate::intent_log::SessionLog;
use crate::locks::{Client, SessionNumber};
use crate::metrics::{SessionMeter, count};
use crate::opens::Open;
use crate::optimistic::Mappable;
use crate::paths::{PageCache, Share};
use allowance::Allowance;
use credentials::Credentials;
use life::Life;
pub(crate) use links::Link;
use links::Links;
use open_files::OpenFiles;
use slots::Slots;

pub(crate) struct Session {
    pub id: SessionId,
    pub secret: SessionSecret,
    /// The proven identity.
    pub who: Caller,
    /// Whose it is.
    pub client: Client,
    pub attr: SessionAttr,
    pub slots: Slots,
    pub callbacks: RefCell<CallbackSlots<ConnId>>,
    /// It is recorded that the client may have locks.
    pub may_lock: Cell<bool>,
    pub links: Links,
    opens: OpenFiles,
    credentials: Credentials,
    /// What its requests may take.
    pub allowance: Allowance,
    pub life: Life,
    /// Caches that the client may map.
    pub mappable: Mappable,
    marks: RefCell<Vec<(DomainId, Mark)>>,
    /// What the client uses of what he reads by himself.
    accessed: RefCell<Vec<(DomainId, AccessedBits)>>,
    /// What it did.
    pub counters: Arc<SessionMeter>,
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
        (now, user): (Duration, Arc<UserShare>),
        counters: Arc<SessionMeter>,
    ) -> Session {
        Session {
            id,
            secret,
            who,
            client,
            attr,
            slots: Slots::new(attr.slots),
            callbacks: RefCell::default(),
            may_lock: Cell::new(false),
            links: Links::default(),
            opens: OpenFiles::new(),
            credentials: Credentials::new(),
            allowance: Allowance::new(user),
            life: Life::new(now),
            mappable: Mappable::default(),
            marks: RefCell::default(),
            accessed: RefCell::default(),
            counters,
            intent_log: None,
        }
    }

    /// By what its client sees that it has not ended, beside what it maps of a cache domain; `None`: it is to
    /// read nothing of that by itself.
    pub(crate) fn life_word(&self, domain: DomainId, life: &mem::Life) -> Option<mem::LifeWord> {
        if self.life.has_ended() {
            return None;
        }
        let mut marks = self.marks.borrow_mut();
        if let Some((_, mark)) = marks.iter().find(|(of, _)| *of == domain) {
            return Some(mark.word());
        }
        let mark = life.session()?;
        let word = mark.word();
        marks.push((domain, mark));
        Some(word)
    }

    /// It is known what its client uses of this domain.
    pub(crate) fn heeds(&self, domain: DomainId) -> bool {
        self.accessed.borrow().iter().any(|(of, _)| *of == domain)
    }

    /// As long as it reads by itself.
    pub(crate) fn heed(&self, domain: DomainId, bits: AccessedBits) {
        if self.marks.borrow().iter().any(|(of, _)| *of == domain) {
            self.accessed.borrow_mut().push((domain, bits));
        }
    }

    /// It stands by a word of this value.
    pub(crate) fn has_word(&self, value: u64) -> bool {
        self.marks.borrow().iter().any(|(_, mark)| mark.word().value == value)
    }

    /// Nothing that its client reads by itself from now on is believed, before it is told anew.
    pub(crate) fn end_own_reads(&self) {
        self.marks.take();
        self.accessed.take();
    }

    /// It is destroyed, whoever still holds it.
    pub(crate) fn end(&self) {
        self.life.end();
        self.end_own_reads();
    }

    /// To whom late write errors are told.
    #[inline]
    pub(crate) fn writer(&self) -> WriterId {
        WriterId(self.counters.number)
    }

    /// Used for no other session of this server.
    pub(crate) fn number(&self) -> SessionNumber {
        self.counters.number
    }

    pub(crate) fn set_target(&self, slot: SlotId, id: RequestId) {
        self.slots.set_target(slot, id);
    }

    pub(crate) fn take_target(&self, slot: SlotId) -> Option<RequestId> {
        self.slots.take_target(slot)
    }

    /// Under whose rights an operation with this credential runs.
    pub(crate) fn identity(&self, cred: CredHandle) -> Result<Caller, Status> {
        if cred.0 == 0 {
            return Ok(self.who.clone());
        }
        self.credentials.find(cred)
    }

    /// Only a root peer may act for others.
    pub(crate) fn register(&self, identity: Identity, max: usize) -> Result<CredHandle, Status> {
        if self.who.uid != 0 {
            return Err(Status::NotAuthorized);
        }
        self.credentials.add(identity, max)
    }

    pub(crate) fn release(&self, cred: CredHandle) -> Result<(), Status> {
        self.credentials.remove(cred)
    }

    /// What it may take of the buffers.
    pub(crate) fn share(&self, page_cache: &PageCache) -> Arc<Share> {
        self.opens.buffers(page_cache, self.who.uid)
    }

    pub(crate) fn add_open(&self, open: Rc<Open>) -> StateId {
        count(&self.counters.opens, 1);
        self.opens.add(open)
    }

    #[inline(always)]
    pub(crate) fn open(&self, state: StateId) -> Result<Rc<Open>, Status> {
        self.opens.find(state)
    }

    pub(crate) fn remove_open(&self, state: StateId) -> Result<Rc<Open>, Status> {
        let open = self.opens.remove(state)?;
        count(&self.counters.opens, 1u64.wrapping_neg());
        Ok(open)
    }

    /// Whether there is such an open.
    pub(crate) fn any_open(&self, is: impl Fn(StateId, &Open) -> bool) -> bool {
        self.opens.any(is)
    }

    pub(crate) fn take_opens(&self) -> Vec<Rc<Open>> {
        self.opens.take_all()
    }

    pub(crate) fn open_count(&self) -> usize {
        self.opens.len()
    }
}
