//! A worker: one engine, its sessions, their chains. No thread, no clock.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dafs_fabric::{Incoming, SgList, Waiter};
use dafs_message::{ConnId, ConnOptions, Event, Node, RequestId};
use dafs_protocol::{
    CALLBACK_SLOTS, ClientId, Identity, OpResult, Operation, Purpose, Reply, Request, SessionAttr,
    SessionId, SetupReply, SizeClass, Status, Verdict, WaitMode, decode_request,
    decode_setup_request, encode_reply, encode_setup_reply,
};
use dafs_store::{Blocking, allow_blocking};
use dafs_unifier::WriterId;
use rustc_hash::FxHashMap;

use crate::chain::{self, Cached, Context};
use crate::clients::Live;
use crate::data::{self, Held};
use crate::identity::Proof;
use crate::locks::{Client, Ended, LockTable};
use crate::planted::{Defect, planted};
use crate::session::{Link, Session, count};
use crate::setup::{Step, Unproven, WaitingBind};
use crate::shared::{Place, Shared, tick};
use crate::tasks::{Ready, Tasks};

/// What a chain or an acceptor wants the worker to do.
pub(crate) enum Action {
    Fetch { id: RequestId, into: SgList },
    Reply { id: RequestId, header: Vec<u8>, data: SgList, held: Vec<Held> },
    Destroy { session: SessionId },
    LockEnded(Ended),
}

/// What an acceptor or another worker leaves for a worker.
pub(crate) enum Message {
    /// A connection whose peer is known as far as the proof says.
    Accept(Incoming, Proof),
    /// A wait of one of its sessions is over.
    LockEnded(Ended),
    /// The client of a session has made a new one, of another worker.
    Replaced { session: SessionId, by: SessionId, at: u16 },
    /// The session that a new one replaces has ended.
    Freed { session: SessionId },
}

/// Why a session ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Destroyed,
    LeaseExpired,
    Replaced,
    ShutDown,
}

impl End {
    fn reason(self) -> &'static str {
        match self {
            End::Destroyed => "destroyed by the client",
            End::LeaseExpired => "lease expired",
            End::Replaced => "replaced by a new session of the client",
            End::ShutDown => "server shuts down",
        }
    }
}

/// What is on its way to a worker.
#[derive(Default)]
pub(crate) struct Inbox {
    pub ready: Arc<Ready>,
    messages: Mutex<Vec<Message>>,
}

impl Inbox {
    pub(crate) fn put(&self, message: Message) {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner).push(message);
        self.ready.wake_worker();
    }

    fn take(&self) -> Vec<Message> {
        std::mem::take(&mut *self.messages.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn is_empty(&self) -> bool {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }
}

enum Connection {
    Unproven(Unproven),
    Waiting,
    Bound(Rc<Session>),
    Gone,
}

struct Kept {
    session: Rc<Session>,
    _place: Place,
}

/// Serves the connections given to it. One thread drives it with [`progress`](Worker::progress).
pub struct Worker {
    number: u16,
    pub(crate) node: Node,
    pub(crate) shared: Arc<Shared>,
    pub(crate) context: Rc<Context>,
    tasks: Tasks,
    inbox: Arc<Inbox>,
    connections: FxHashMap<ConnId, Connection>,
    unproven: usize,
    sessions: FxHashMap<SessionId, Kept>,
    binds: Vec<WaitingBind>,
    held: FxHashMap<u64, Vec<Held>>,
    next_token: u64,
    pub(crate) now: Duration,
    next_timer: Duration,
    system_calls: u64,
    wait_mode: WaitMode,
    /// More events wait behind the one that is handled.
    more_events: bool,
    /// Until then several requests are under way at a time.
    crowded_until: Duration,
    /// Until then several sessions are.
    mixed_until: Duration,
    last_session: SessionId,
}

pub(crate) const TIMER: Duration = Duration::from_millis(200);
/// How long a worker remembers that requests came side by side.
const COMPANY: Duration = Duration::from_millis(50);

impl Worker {
    /// A worker of `shared` over a node; `number` is part of its sessions' ids.
    pub fn new(number: u16, node: Node, shared: Arc<Shared>) -> Worker {
        let inbox = Arc::new(Inbox::default());
        inbox.ready.set_waiter(node.waiter());
        shared.join(number, inbox.clone());
        let context = Rc::new(Context::new(shared.clone(), number, node.segments_max()));
        Worker {
            number,
            node,
            context,
            tasks: Tasks::new(inbox.ready.clone()),
            shared,
            inbox,
            connections: FxHashMap::default(),
            unproven: 0,
            sessions: FxHashMap::default(),
            binds: Vec::new(),
            held: FxHashMap::default(),
            next_token: 1,
            now: Duration::ZERO,
            next_timer: Duration::ZERO,
            system_calls: 0,
            wait_mode: WaitMode::Adaptive,
            more_events: false,
            crowded_until: Duration::ZERO,
            mixed_until: Duration::ZERO,
            last_session: SessionId::default(),
        }
    }

    pub(crate) fn inbox(&self) -> Arc<Inbox> {
        self.inbox.clone()
    }

    /// Takes a connection whose peer is known as far as `proof` says.
    pub fn accept(&mut self, incoming: Incoming, proof: Proof) {
        let limits = &self.shared.limits;
        if self.unproven >= limits.connections_unproven {
            tick(&self.shared.counters.refused);
            self.node.reject(incoming, "server limit reached: connections being set up");
            return;
        }
        let options = ConnOptions {
            credits: limits.slots.saturating_add(2),
            push_bytes: limits.push_bytes,
            requests_max: CALLBACK_SLOTS,
            ..ConnOptions::default()
        };
        match self.node.accept(incoming, &[], options) {
            Ok(connection) => {
                let state = Connection::Unproven(Unproven::new(proof, self.now));
                self.connections.insert(connection, state);
                self.unproven += 1;
            }
            Err(error) => tracing::warn!(%error, "connection not accepted"),
        }
    }

    /// Does everything that can be done now; true if something was done.
    pub fn progress(&mut self, now: Duration) -> bool {
        self.now = now;
        self.context.now.set(now);
        let mut busy = false;
        for message in self.inbox.take() {
            self.message(message);
            busy = true;
        }
        busy |= self.node.poll() > 0;
        loop {
            // The one request under way goes on; write-back would take its time.
            let alone = self.chains() == 1 && !self.context.writing_back.get();
            allow_blocking(self.blocking(alone));
            let mut more = self.tasks.run_ready();
            allow_blocking(Blocking::None);
            let mut next = self.node.next_event();
            while let Some(event) = next {
                next = self.node.next_event();
                self.more_events = next.is_some();
                self.handle(event);
                more = true;
            }
            more |= self.drain_actions();
            if !more {
                break;
            }
            busy = true;
        }
        if now >= self.next_timer {
            self.next_timer = now + TIMER;
            self.timers();
            self.drain_actions();
        }
        self.node.ring();
        busy
    }

    /// When [`progress`](Worker::progress) wants to be called at the latest.
    pub fn next_timeout(&self) -> Duration {
        self.next_timer
    }

    /// True when it is safe to sleep on [`waiter`](Worker::waiter).
    pub fn prepare_sleep(&mut self) -> bool {
        self.inbox.ready.prepare_sleep() && self.inbox.is_empty() && self.node.arm()
    }

    /// The sleep is over.
    pub fn awake(&self) {
        self.inbox.ready.awake();
    }

    /// What to sleep on.
    pub fn waiter(&self) -> Arc<dyn Waiter> {
        self.node.waiter()
    }

    /// How its sessions want it to wait: polled if any busy one does, sleeping if all do.
    pub fn wait_mode(&self) -> WaitMode {
        self.wait_mode
    }

    /// Looks at all sessions, so not for each pass.
    fn choose_wait_mode(&self) -> WaitMode {
        let recent = |live: &&Kept| {
            let session = &live.session;
            self.now.saturating_sub(session.last_seen.get()) < Duration::from_secs(1)
        };
        let mut mode = WaitMode::Sleeping;
        for live in self.sessions.values().filter(recent) {
            match live.session.attr.wait {
                WaitMode::Polled => return WaitMode::Polled,
                WaitMode::Adaptive => mode = WaitMode::Adaptive,
                WaitMode::Sleeping => {}
            }
        }
        if self.sessions.is_empty() { WaitMode::Adaptive } else { mode }
    }

    /// Sessions alive.
    pub fn session_count(&self) -> usize {
        self.sessions.len()
    }

    /// Chains that have not ended.
    pub fn running(&self) -> usize {
        self.tasks.len()
    }

    /// Starts to close every session (their files are flushed by running tasks).
    pub fn shut_down(&mut self) {
        let mut ids: Vec<_> = self.sessions.keys().copied().collect();
        // In an order that does not depend on the table: simulations repeat.
        ids.sort_unstable_by_key(|id| id.0);
        self.context.locks(LockTable::stop);
        for id in ids {
            self.destroy(id, End::ShutDown);
        }
    }

    fn message(&mut self, message: Message) {
        match message {
            Message::Accept(incoming, proof) => self.accept(incoming, proof),
            Message::LockEnded(ended) => self.lock_ended(ended),
            Message::Replaced { session, by, at } => {
                self.destroy(session, End::Replaced);
                self.shared.tell(at, Message::Freed { session: by });
            }
            Message::Freed { session } => {
                if let Some(session) = self.session(session) {
                    session.held_back.set(false);
                    self.finish_binds();
                }
            }
        }
    }

    fn drain_actions(&mut self) -> bool {
        let mut any = false;
        loop {
            let Some(action) = self.context.actions.borrow_mut().pop_front() else { return any };
            any = true;
            match action {
                Action::Fetch { id, into } => self.node.fetch(id, into),
                Action::Reply { id, header, data, held } => self.reply(id, header, data, held),
                Action::Destroy { session } => self.destroy(session, End::Destroyed),
                Action::LockEnded(ended) => self.lock_ended(ended),
            }
        }
    }

    fn reply(&mut self, id: RequestId, header: Vec<u8>, data: SgList, held: Vec<Held>) {
        let (data, held) = self.in_few_pieces(data, held);
        let mut token = 0;
        if !data.is_empty() {
            token = self.next_token;
            self.next_token += 1;
            if !planted(Defect::HeldTooShort) {
                self.held.insert(token, held);
            }
        }
        self.node.reply(id, &header, data, token);
        self.context.recycle(header);
    }

    /// What is scattered over more memory than a transfer takes is copied together.
    fn in_few_pieces(&self, data: SgList, held: Vec<Held>) -> (SgList, Vec<Held>) {
        if data.len() <= self.context.segments_max {
            return (data, held);
        }
        let bytes = dafs_fabric::sg_bytes(&data);
        // Without memory the message layer ends the connection.
        let Ok(scratch) = self.context.scratch(bytes) else { return (data, held) };
        let mut at = 0;
        for span in &data {
            scratch.copy_span(at, span);
            at += span.len();
        }
        let together = SgList::from_iter([scratch.part(0, bytes)]);
        (together, vec![Held::Scratch(scratch)])
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Request { id, header, data_len, .. } => self.request(id, header, data_len),
            Event::Fetched { id, ok } => self.context.fetched(id, ok),
            Event::ReplySent { token } => drop(self.held.remove(&token)),
            Event::Disconnected { conn, reason, peer_fault } => {
                self.disconnected(conn, &reason, peer_fault);
            }
            Event::Quiescent { conn } => self.quiescent(conn),
            Event::Reply { conn, tag, header, .. } => {
                self.callback_answered(conn, tag, &header);
                self.node.recycle(header);
            }
            // A server connects to nobody.
            _ => {}
        }
    }

    fn request(&mut self, id: RequestId, header: Vec<u8>, data_len: u32) {
        let connection = id.conn();
        match self.connections.get(&connection) {
            Some(Connection::Bound(session)) => {
                let session = session.clone();
                self.chain(&session, id, header, data_len);
            }
            Some(Connection::Unproven(_)) => self.set_up(connection, id, &header),
            _ => self.violation(connection, "request while waiting for a bind"),
        }
    }

    pub(crate) fn violation(&mut self, connection: ConnId, reason: &str) {
        tick(&self.shared.counters.peer_faults);
        tracing::warn!(?connection, reason, "peer violated the protocol");
        self.node.disconnect(connection, reason);
    }

    // --- chains ---

    fn chain(&mut self, session: &Rc<Session>, id: RequestId, header: Vec<u8>, data_len: u32) {
        self.heard(session, id.conn());
        let request = match decode_request(&header) {
            Ok(request) => request,
            Err(error) => return self.violation(id.conn(), &error.to_string()),
        };
        tick(&self.shared.counters.requests);
        count(&session.counters.requests, 1);
        let head = request.head;
        let verdict = session.slots.borrow_mut().begin(head.slot, head.sequence, request.hash);
        let prior: Cached = match verdict {
            Verdict::New => Vec::new(),
            Verdict::Replay(results) => {
                tick(&self.shared.counters.replays);
                count(&session.counters.replays, 1);
                if planted(Defect::ReplayStartedTwice) {
                    session.slots.borrow_mut().finish(head.slot, results.clone());
                }
                if planted(Defect::ReplyCacheSkipped) { Vec::new() } else { results }
            }
            Verdict::Running if planted(Defect::AnswerGoesAstray) => return,
            Verdict::Running => return session.set_target(head.slot, id),
            Verdict::Refuse(status) => return self.refuse(id, &request, status),
        };
        if prior.is_empty()
            && data_len == 0
            && let [Operation::Read { state, extents, .. }] = request.operations.as_slice()
            && let Some(hit) = data::try_read(&self.context, session, *state, extents)
        {
            self.read_hit(session, id, &request, hit);
            drop(request);
            return self.node.recycle(header);
        }
        drop(request);
        session.set_target(head.slot, id);
        let run = chain::run(self.context.clone(), session.clone(), id, header, data_len, prior);
        let alone = !self.more_events && self.chains() == 0;
        self.note_company(session.id, alone);
        allow_blocking(self.blocking(alone));
        self.tasks.spawn(run);
        allow_blocking(Blocking::None);
    }

    /// Tasks beside write-back.
    fn chains(&self) -> usize {
        self.tasks.len() - usize::from(self.context.writing_back.get())
    }

    /// Remembers whether requests, and sessions, come side by side.
    fn note_company(&mut self, session: SessionId, alone: bool) {
        if self.last_session != session {
            self.last_session = session;
            self.mixed_until = self.now + COMPANY;
        }
        if !alone {
            self.crowded_until = self.now + COMPANY;
        }
    }

    /// How far the store may block this thread, which spares the client two wake-ups: wholly
    /// for one request at a time of one session, since nobody waits meanwhile; for names while
    /// all requests are of one session; else not at all.
    fn blocking(&self, alone: bool) -> Blocking {
        if self.now < self.mixed_until {
            Blocking::None
        } else if !alone || self.now < self.crowded_until {
            Blocking::Names
        } else {
            Blocking::All
        }
    }

    /// Answers a read that the cache holds, in the pass that received it.
    fn read_hit(
        &mut self,
        session: &Rc<Session>,
        id: RequestId,
        request: &Request<'_>,
        (result, spans, held): (OpResult, SgList, Vec<Held>),
    ) {
        let head = request.head;
        session.slots.borrow_mut().finish(head.slot, Vec::new());
        let reply = Reply { slot: head.slot, sequence: head.sequence, results: Ok(vec![result]) };
        let mut bytes = self.context.header();
        encode_reply(&reply, &mut bytes);
        self.reply(id, bytes, spans, held);
    }

    fn refuse(&mut self, id: RequestId, request: &Request<'_>, status: Status) {
        tick(&self.shared.counters.refused);
        let head = request.head;
        let reply = Reply { slot: head.slot, sequence: head.sequence, results: Err(status) };
        let mut bytes = self.context.header();
        encode_reply(&reply, &mut bytes);
        self.reply(id, bytes, SgList::new(), Vec::new());
    }

    // --- set-up ---

    fn set_up(&mut self, connection: ConnId, id: RequestId, header: &[u8]) {
        let request = match decode_setup_request(header) {
            Ok(request) => request,
            Err(error) => return self.violation(connection, &error.to_string()),
        };
        let Some(Connection::Unproven(unproven)) = self.connections.get_mut(&connection) else {
            return;
        };
        match unproven.step(&self.shared, request) {
            Step::Answer(reply) => self.answer(id, &reply),
            Step::Proven { who, class, purpose, proof } => {
                let bound = match purpose {
                    Purpose::Create { attr, client } => self.create(connection, who, client, attr),
                    Purpose::Bind { session, secret } => {
                        self.find(&who, session, &secret).map(|session| (session, true))
                    }
                };
                match bound {
                    Ok((session, old)) => self.bind(connection, id, session, class, proof, old),
                    Err((status, text)) => {
                        self.answer(id, &SetupReply::Refused { status, text: text.into() });
                    }
                }
            }
        }
    }

    fn answer(&mut self, id: RequestId, reply: &SetupReply) {
        let mut bytes = self.context.header();
        encode_setup_reply(reply, &mut bytes);
        self.reply(id, bytes, SgList::new(), Vec::new());
    }

    fn create(
        &mut self,
        connection: ConnId,
        who: Identity,
        client: ClientId,
        wish: SessionAttr,
    ) -> Result<(Rc<Session>, bool), (Status, &'static str)> {
        let uid = who.uid;
        let older = self.shared.clients.live(client);
        if older.is_some_and(|older| older.uid != uid) {
            return Err((Status::NotAuthorized, "this client is of another user"));
        }
        if let Some(older) = older.filter(|older| older.worker == self.number) {
            self.destroy(older.session, End::Replaced);
        }
        let limits = &self.shared.limits;
        let same_user = |live: &&Kept| live.session.who.uid == who.uid;
        let of_user = self.sessions.values().filter(same_user).count();
        if who.uid != 0 && of_user >= limits.sessions_per_user {
            return Err((Status::Resource, "server limit reached: sessions of this user"));
        }
        let place = Place::take(&self.shared, |c| &c.sessions, limits.sessions)
            .ok_or((Status::Resource, "server limit reached: sessions"))?;
        let attr = SessionAttr {
            slots: wish.slots.clamp(1, limits.slots),
            data_bytes_max: wish.data_bytes_max.clamp(4096, limits.data_bytes),
            inline_bytes: wish.inline_bytes.min(512),
            wait: wish.wait,
            lease_ms: limits.lease_seconds.saturating_mul(1000),
            tagged: wish.tagged,
            rdma_read: wish.rdma_read,
        };
        let mut id = self.shared.random::<16>();
        if let Some((worker, _)) = id.split_first_chunk_mut::<2>() {
            *worker = self.number.to_le_bytes();
        }
        let id = SessionId(id);
        let secret = self.shared.random();
        let live = Live { uid, session: id, worker: self.number };
        let older = self.shared.clients.enter(client, live);
        let older = older.map_err(|status| (status, "this client is of another user"))?;
        tracing::info!(?connection, uid = who.uid, "session created");
        let writer = self.shared.counters.sessions_total.fetch_add(1, Ordering::Relaxed);
        let writer = WriterId(writer + 1);
        let client = Client { id: client, uid };
        let session = Session::new(id, secret, Arc::new(who), client, attr, self.now, writer);
        let session = Rc::new(session);
        self.context.locks(|table| table.begin_session(session.number(), self.number, id));
        if let Some(Live { session: older, worker, .. }) = older {
            session.held_back.set(true);
            let message = Message::Replaced { session: older, by: id, at: self.number };
            self.shared.tell(worker, message);
        }
        self.sessions.insert(id, Kept { session: session.clone(), _place: place });
        self.wait_mode = self.choose_wait_mode();
        Ok((session, false))
    }

    fn find(
        &self,
        who: &Identity,
        id: SessionId,
        secret: &[u8; 16],
    ) -> Result<Rc<Session>, (Status, &'static str)> {
        let none = (Status::BadSession, "no such session");
        let lost = (Status::WritesLost, "no such session; some of its writes are lost");
        let gone = || if self.shared.lost.knows(id) { lost } else { none };
        let live = self.sessions.get(&id).ok_or_else(gone)?;
        let session = &live.session;
        let different = secret.iter().zip(&session.secret).fold(0, |sum, (a, b)| sum | (a ^ b));
        if different != 0 || *session.who != *who || session.ended.get() {
            return Err(none);
        }
        Ok(session.clone())
    }

    /// Joins a connection to a session; one of the same class is replaced, and the answer waits
    /// until all work of replaced and broken connections is quiescent.
    fn bind(
        &mut self,
        connection: ConnId,
        request: RequestId,
        session: Rc<Session>,
        class: SizeClass,
        proof: Option<[u8; 32]>,
        existing: bool,
    ) {
        self.unproven -= 1;
        self.connections.insert(connection, Connection::Waiting);
        if existing {
            session.last_seen.set(self.now);
            let links = session.connections.borrow().clone();
            for link in links.into_iter().filter(|link| link.class == class) {
                self.unbind(&session, link.connection);
                self.node.disconnect(link.connection, "replaced by a new connection");
            }
        }
        self.binds.push(WaitingBind { connection, request, session, class, proof });
        self.finish_binds();
    }

    fn finish_binds(&mut self) {
        let is_ready = |bind: &WaitingBind| {
            bind.session.draining.borrow().is_empty() && !bind.session.held_back.get()
        };
        let (done, waiting) = std::mem::take(&mut self.binds).into_iter().partition(is_ready);
        self.binds = waiting;
        let done: Vec<WaitingBind> = done;
        for bind in done {
            let session = bind.session;
            if !matches!(self.connections.get(&bind.connection), Some(Connection::Waiting)) {
                continue;
            }
            let link = Link {
                connection: bind.connection,
                class: bind.class,
                since: self.now,
                heard: false,
            };
            session.connections.borrow_mut().push(link);
            self.connections.insert(bind.connection, Connection::Bound(session.clone()));
            let reply = SetupReply::Ready {
                session: session.id,
                secret: session.secret,
                attr: session.attr,
                verifier: self.shared.verifier,
                proof: bind.proof,
                uid: session.who.uid,
            };
            self.answer(bind.request, &reply);
        }
    }

    /// The connection is no longer used by its session, but may still touch its memory.
    fn unbind(&mut self, session: &Session, connection: ConnId) {
        session.connections.borrow_mut().retain(|link| link.connection != connection);
        if !planted(Defect::CallbackSentOnce) {
            session.callbacks.borrow_mut().broken(connection);
        }
        session.draining.borrow_mut().push(connection);
        self.connections.insert(connection, Connection::Gone);
    }

    // --- ends ---

    fn disconnected(&mut self, connection: ConnId, reason: &str, peer_fault: bool) {
        if peer_fault {
            tick(&self.shared.counters.peer_faults);
            tracing::warn!(?connection, reason, "peer violated the protocol");
        }
        match self.connections.get(&connection) {
            Some(Connection::Bound(session)) => {
                let session = session.clone();
                self.unbind(&session, connection);
            }
            Some(Connection::Unproven(_)) => {
                self.unproven -= 1;
                self.connections.insert(connection, Connection::Gone);
            }
            // Its bind must not be completed: nobody would hear of its end again.
            Some(Connection::Waiting) if !planted(Defect::BrokenBindCompleted) => {
                self.connections.insert(connection, Connection::Gone);
            }
            _ => {}
        }
    }

    fn quiescent(&mut self, connection: ConnId) {
        self.connections.remove(&connection);
        for live in self.sessions.values() {
            live.session.draining.borrow_mut().retain(|other| *other != connection);
        }
        self.finish_binds();
    }

    fn is_at_work(&self, id: SessionId) -> bool {
        self.sessions.get(&id).is_some_and(|live| live.session.slots.borrow().running() > 0)
    }

    fn disconnect_all(&mut self, id: SessionId, reason: &str) {
        let Some(live) = self.sessions.get(&id) else { return };
        let session = live.session.clone();
        let links = session.connections.borrow().clone();
        for Link { connection, .. } in links {
            self.unbind(&session, connection);
            self.node.disconnect(connection, reason);
        }
    }

    /// Forgets a session: its connections end, its files are closed.
    fn destroy(&mut self, id: SessionId, end: End) {
        let Some(live) = self.sessions.remove(&id) else { return };
        let session = live.session;
        let reason = end.reason();
        tracing::info!(uid = session.who.uid, reason, "session ended");
        session.ended.set(true);
        let links = std::mem::take(&mut *session.connections.borrow_mut());
        for Link { connection, .. } in links {
            self.node.ring();
            self.node.disconnect(connection, reason);
            self.connections.insert(connection, Connection::Gone);
        }
        let (waiting, rest) =
            std::mem::take(&mut self.binds).into_iter().partition(|bind| bind.session.id == id);
        self.binds = rest;
        let waiting: Vec<WaitingBind> = waiting;
        for bind in waiting {
            self.node.disconnect(bind.connection, reason);
            self.connections.insert(bind.connection, Connection::Gone);
        }
        self.end_locks(&session, end);
        let opens = session.take_opens();
        if opens.is_empty() {
            return;
        }
        self.shared.lost.remember(id);
        let left = Rc::new(Cell::new(opens.len()));
        for open in opens {
            if planted(Defect::OpensLeaked) {
                std::mem::forget(open);
                continue;
            }
            let (shared, left) = (self.shared.clone(), left.clone());
            self.tasks.spawn(async move {
                if let Err(status) = open.file.close(open.writer.id).await {
                    tracing::error!(%status, "file of an ended session could not be flushed");
                    return;
                }
                left.set(left.get() - 1);
                if left.get() == 0 {
                    shared.lost.forget(id);
                }
            });
        }
    }

    /// Others get the locks of a session that ends. If the client does not know of the end, it
    /// is first made sure that it reclaims none after a crash of this server.
    fn end_locks(&mut self, session: &Session, end: End) {
        let (client, number) = (session.client, session.number());
        let context = self.context.clone();
        self.shared.clients.leave(client.id, session.id);
        let saving = match end {
            End::Destroyed | End::LeaseExpired => self.shared.clients.forget(&[client]),
            End::Replaced | End::ShutDown => None,
        };
        if matches!(end, End::Destroyed | End::LeaseExpired) {
            context.reclaimed(&client);
        }
        match saving {
            Some(saving) if end == End::LeaseExpired => self.tasks.spawn(async move {
                if let Err(error) = saving.await {
                    tracing::error!(%error, "cannot record that a client has no locks any more");
                }
                context.locks(|table| table.end_session(number));
            }),
            _ => context.locks(|table| table.end_session(number)),
        }
    }

    /// Ends the grace period when it has lasted long enough. Who has not come may not come any
    /// more, also not to the next server.
    fn watch_grace(&mut self, lease: Duration) {
        let now = self.now;
        let due = self.context.locks(|table| table.grace_due(now, lease));
        let Some(missing) = due else { return };
        let context = self.context.clone();
        let saving = self.shared.clients.forget(&missing);
        self.tasks.spawn(async move {
            if let Some(Err(error)) = match saving {
                Some(saving) => Some(saving.await),
                None => None,
            } {
                tracing::error!(%error, "cannot record that clients lost their locks");
            }
            context.locks(LockTable::end_grace);
        });
    }

    pub(crate) fn session(&self, id: SessionId) -> Option<Rc<Session>> {
        self.sessions.get(&id).map(|live| live.session.clone())
    }

    pub(crate) fn bound_session(&self, connection: ConnId) -> Option<Rc<Session>> {
        match self.connections.get(&connection) {
            Some(Connection::Bound(session)) => Some(session.clone()),
            _ => None,
        }
    }

    fn timers(&mut self) {
        let lease = Duration::from_secs(u64::from(self.shared.limits.lease_seconds));
        if self.number == 0 {
            self.watch_grace(lease);
        }
        let unsent = |live: &&Kept| live.session.callbacks.borrow().unsent().is_some();
        let mut behind: Vec<_> = self.sessions.values().filter(unsent).collect();
        behind.sort_unstable_by_key(|live| live.session.number());
        let behind: Vec<_> = behind.into_iter().map(|live| live.session.clone()).collect();
        for session in behind {
            self.send_callbacks(&session);
        }
        let silent = |live: &Kept| {
            self.now.saturating_sub(live.session.last_seen.get()) > lease
                && !planted(Defect::LeaseNeverExpires)
        };
        let mut expired: Vec<_> =
            self.sessions.iter().filter(|(_, live)| silent(live)).map(|(id, _)| *id).collect();
        expired.sort_unstable_by_key(|id| id.0);
        for id in expired {
            // What waits for its data ends with its connections.
            if self.is_at_work(id) {
                self.disconnect_all(id, "lease expired");
                continue;
            }
            tick(&self.shared.counters.leases_expired);
            self.destroy(id, End::LeaseExpired);
        }
        let limit = Duration::from_secs(u64::from(self.shared.limits.setup_seconds));
        let late = |connection: &Connection| match connection {
            Connection::Unproven(unproven) => self.now.saturating_sub(unproven.since) > limit,
            _ => false,
        };
        let mut late: Vec<_> =
            self.connections.iter().filter(|(_, c)| late(c)).map(|(id, _)| *id).collect();
        late.sort_unstable();
        for connection in late {
            self.unproven -= 1;
            self.connections.insert(connection, Connection::Gone);
            self.node.disconnect(connection, "set-up took too long");
        }
        let due = self.shared.unifier.write_back_due(self.now);
        if due && self.number == 0 && !self.context.writing_back.replace(true) {
            let context = self.context.clone();
            self.tasks.spawn(async move {
                context.shared.unifier.write_back(context.now.get()).await;
                context.writing_back.set(false);
            });
        }
        self.wait_mode = self.choose_wait_mode();
        let calls = self.node.stats().system_calls;
        let new = calls.wrapping_sub(self.system_calls);
        self.shared.counters.system_calls.fetch_add(new, Ordering::Relaxed);
        self.system_calls = calls;
    }
}

/// Fetches under way: who waits for them.
pub(crate) type Fetches = RefCell<FxHashMap<RequestId, chain::FetchCell>>;
