//! Connections: from accepting one to the last byte that it touches.

use std::rc::Rc;
use std::time::Duration;

use dafs_fabric::{ConnectError, Incoming, SgList, Span};
use dafs_message::{ConnId, ConnOptions, RequestId};
use dafs_protocol::{
    CALLBACK_SLOTS, DecodeError, Features, KeyHandshake, Purpose, SameHostToken, SessionId,
    SetupReply, Status, decode_setup_request,
};
use rustc_hash::FxHashMap;

use super::crowd::{Crowd, Origin};
use super::sessions::LATER_ATTEMPT;
use super::{TIMER, Worker};
use crate::identity::Proof;
use crate::planted::{Defect, planted};
use crate::references::Reading;
use crate::session::{Link, Session};
use crate::setup::{Step, Unproven, WaitingBind, encode_proven, refuse_version};
use crate::shared::tick;

/// How far a connection is.
pub(super) enum Connection {
    Unproven(Unproven),
    /// It was told why, at this time, and ends when it can have heard.
    Refused(Duration),
    Waiting,
    Bound(Rc<Session>),
    Gone,
}

/// All connections of a worker.
pub(super) struct Connections {
    by_id: FxHashMap<ConnId, Connection>,
    /// The one that was asked for last, if it is part of a session: in there, too.
    last: Option<(ConnId, Rc<Session>)>,
    /// The one that was heard last.
    heard: Option<ConnId>,
    /// Those that are being set up.
    unproven: Crowd<ConnId>,
    /// Those that wait for what they replace.
    binds: Vec<WaitingBind>,
}

impl Connections {
    /// None; at most so many at a time are set up.
    pub(super) fn new(unproven_max: usize) -> Connections {
        Connections {
            by_id: FxHashMap::default(),
            last: None,
            heard: None,
            unproven: Crowd::new(unproven_max),
            binds: Vec::new(),
        }
    }

    /// What is known of it.
    #[inline]
    pub(super) fn get(&self, connection: ConnId) -> Option<&Connection> {
        self.by_id.get(&connection)
    }

    /// The session that it is part of: for each request, most of which come by the same connection as
    /// the one before.
    #[inline(always)]
    pub(super) fn bound_to(&mut self, connection: ConnId) -> Option<&Rc<Session>> {
        if self.last.as_ref().is_none_or(|(last, _)| *last != connection) {
            self.find_bound(connection)?;
        }
        self.last.as_ref().map(|(_, session)| session)
    }

    #[inline(never)]
    fn find_bound(&mut self, connection: ConnId) -> Option<()> {
        self.last = Some((connection, self.session(connection)?));
        Some(())
    }

    /// Something came. False: so it did the last time.
    #[inline]
    pub(super) fn note_heard(&mut self, connection: ConnId) -> bool {
        self.heard.replace(connection) != Some(connection)
    }

    fn set(&mut self, connection: ConnId, is: Connection) {
        (self.last, self.heard) = (None, None);
        self.by_id.insert(connection, is);
    }

    /// One more is being set up; who is to end for that.
    fn enter(&mut self, connection: ConnId, unproven: Unproven, origin: Origin) -> Option<ConnId> {
        self.set(connection, Connection::Unproven(unproven));
        self.unproven.enter(connection, origin)
    }

    fn unproven(&mut self, connection: ConnId) -> Option<&mut Unproven> {
        match self.by_id.get_mut(&connection) {
            Some(Connection::Unproven(unproven)) => Some(unproven),
            _ => None,
        }
    }

    /// Its set-up was refused.
    fn refused(&mut self, connection: ConnId, now: Duration) {
        self.set(connection, Connection::Refused(now));
    }

    /// It is set up, and waits to be part of a session.
    fn waits(&mut self, connection: ConnId) {
        self.unproven.leave(connection);
        self.set(connection, Connection::Waiting);
    }

    /// It is part of a session.
    fn bound(&mut self, connection: ConnId, session: Rc<Session>) {
        self.set(connection, Connection::Bound(session));
    }

    /// Nothing of it is listened to any more.
    pub(super) fn gone(&mut self, connection: ConnId) {
        self.set(connection, Connection::Gone);
    }

    /// As [`gone`](Self::gone), of one that did not become part of a session.
    fn end_set_up(&mut self, connection: ConnId) {
        self.unproven.leave(connection);
        self.gone(connection);
    }

    /// It touches nothing any more.
    fn quiescent(&mut self, connection: ConnId) {
        self.last = None;
        self.by_id.remove(&connection);
    }

    /// Those that wait and need not any more.
    fn take_ready(&mut self) -> Vec<WaitingBind> {
        self.take_binds(|bind| {
            bind.session.links.are_drained() && !bind.session.life.is_held_back()
        })
    }

    /// Those of this kind that wait to be part of a session.
    pub(super) fn take_binds(&mut self, are: impl Fn(&WaitingBind) -> bool) -> Vec<WaitingBind> {
        let binds = std::mem::take(&mut self.binds);
        let (taken, rest) = binds.into_iter().partition(are);
        self.binds = rest;
        taken
    }

    /// The session that it is part of.
    fn session(&self, connection: ConnId) -> Option<Rc<Session>> {
        match self.by_id.get(&connection) {
            Some(Connection::Bound(session)) => Some(session.clone()),
            _ => None,
        }
    }

    /// Whose it is.
    fn origin(&self, connection: ConnId) -> Option<Origin> {
        let waiting = || self.binds.iter().find(|bind| bind.connection == connection);
        let session = self.session(connection);
        let session = session.or_else(|| waiting().map(|bind| bind.session.clone()));
        let user = session.map(|session| Origin::User(session.who.uid));
        user.or_else(|| self.unproven.origin(connection))
    }

    /// Those whose set-up takes longer than `limit`, or that could have heard why it was refused.
    fn late(&self, now: Duration, limit: Duration) -> Vec<ConnId> {
        let is_late = |connection: &Connection| match connection {
            Connection::Unproven(unproven) => now.saturating_sub(unproven.since) > limit,
            Connection::Refused(since) => now.saturating_sub(*since) >= TIMER,
            _ => false,
        };
        let late = self.by_id.iter().filter(|(_, connection)| is_late(connection));
        let mut late: Vec<_> = late.map(|(id, _)| *id).collect();
        late.sort_unstable();
        late
    }
}

impl Worker {
    /// Takes a connection whose peer is known as far as `proof` says. Where too many are being
    /// set up, another one ends for it.
    pub fn accept(&mut self, incoming: Incoming, proof: Proof) {
        let limits = &self.shared.limits;
        let origin = Origin::of(&incoming.peer, &proof);
        let options = ConnOptions {
            credits: limits.slots.saturating_add(2),
            push_bytes: limits.push_bytes,
            requests_max: CALLBACK_SLOTS,
            use_rdma_read: limits.rdma_read,
            ..ConnOptions::default()
        };
        let reading = self.shared.quotas.of(&incoming.peer);
        let mut unproven = Unproven::new(proof, &incoming.peer, self.clock.now());
        match self.node.accept(incoming, &[], options) {
            Ok(connection) => {
                match reading {
                    Reading::AtOnce(quota) => self.node.refer(connection, quota),
                    Reading::Proven(quota, uid) => unproven.reader = Some((quota, uid)),
                    Reading::Never => {}
                }
                if let Some(other) = self.connections.enter(connection, unproven, origin) {
                    tick(&self.shared.counters.refused);
                    self.end_set_up(other, "server limit reached: connections being set up");
                }
            }
            // A limit: whoever is beyond it could fill the log.
            Err(error @ ConnectError::Resource(_)) => {
                tick(&self.shared.counters.refused);
                tracing::debug!(%error, "connection not accepted");
            }
            Err(error) => tracing::warn!(%error, "connection not accepted"),
        }
    }

    pub(super) fn set_up(&mut self, connection: ConnId, id: RequestId, header: &[u8]) {
        let Some(unproven) = self.connections.unproven(connection) else { return };
        let (peer, reader) = (unproven.peer.clone(), unproven.reader.clone());
        let step = match decode_setup_request(header) {
            Ok(request) => unproven.step(&self.shared, request, header),
            Err(DecodeError::Version(version)) => refuse_version(version, version),
            Err(error) => return self.violation(connection, &error.to_string()),
        };
        match step {
            Step::Answer(SetupReply::Refused { status, text, .. }) => {
                self.refuse_set_up(id, status, text, None);
            }
            Step::Answer(reply) => self.answer(id, &reply, None),
            Step::Proven { who, mut entry, handshake } => {
                let takes_names = self.takes_names(connection, entry.features);
                if !takes_names {
                    entry.features = entry.features.without(Features::NAMED_REFERENCES);
                }
                let bound = match entry.purpose {
                    Purpose::Create { attr, client } => {
                        self.create(connection, who, (client, entry.attempt), attr, peer)
                    }
                    Purpose::Bind { session, secret } => {
                        self.find(&who, session, &secret).map(|session| (session, true))
                    }
                };
                let in_time = |(session, old): (Rc<Session>, bool)| match session
                    .links
                    .attempted(entry.class, entry.attempt)
                {
                    true => Ok((session, old)),
                    false => Err((Status::Delay, LATER_ATTEMPT)),
                };
                match bound.and_then(in_time) {
                    Ok((session, old)) => {
                        if let Some((quota, uid)) = reader {
                            self.welcome(connection, uid);
                            self.node.refer(connection, quota);
                        }
                        let key = |memory: &Span| {
                            self.node.readable_by(connection, memory).map(|memory| memory.rkey)
                        };
                        let keys = self.shared.shown.keys(key);
                        session.mappable.add(connection, keys, takes_names);
                        let bind =
                            WaitingBind { connection, request: id, session, entry, handshake };
                        self.bind(bind, old);
                    }
                    Err((status, text)) => {
                        self.refuse_set_up(id, status, text.into(), handshake.as_ref());
                    }
                }
            }
        }
    }

    /// There are caches for what the user of a peer who shares memory may open.
    fn welcome(&self, connection: ConnId, uid: u32) {
        if let Some(scopes) = &self.shared.scopes
            && self.node.shares_memory(connection)
        {
            scopes.welcome(uid, &self.shared.unifier, &self.shared.shown);
        }
    }

    /// Whether references are given to the client of a connection, who has said these features.
    fn takes_names(&self, connection: ConnId, features: Features) -> bool {
        features.has(Features::NAMED_REFERENCES)
            && self.shared.exports.iter().any(|export| export.optimistic.gives_names())
            && self.node.verifies_names(connection)
    }

    fn refuse_set_up(
        &mut self,
        id: RequestId,
        status: Status,
        text: String,
        handshake: Option<&KeyHandshake>,
    ) {
        self.answer(id, &SetupReply::Refused { status, text, proof: None }, handshake);
        self.connections.refused(id.conn(), self.clock.now());
    }

    /// Ends a connection that did not become part of a session.
    fn end_set_up(&mut self, connection: ConnId, reason: &str) {
        self.connections.end_set_up(connection);
        self.node.disconnect(connection, reason);
    }

    fn answer(&mut self, id: RequestId, reply: &SetupReply, handshake: Option<&KeyHandshake>) {
        let mut bytes = self.context.header();
        encode_proven(&self.shared, handshake, reply, &mut bytes);
        self.reply(id, bytes, SgList::new(), Vec::new());
    }

    /// Joins a connection to a session; one of the same class is replaced, and the answer waits
    /// until all work of replaced and broken connections is quiescent.
    fn bind(&mut self, bind: WaitingBind, existing: bool) {
        let (connection, session) = (bind.connection, bind.session.clone());
        let class = bind.entry.class;
        self.connections.waits(connection);
        if existing {
            session.life.seen(self.clock.now());
            for link in session.links.all().into_iter().filter(|link| link.class == class) {
                self.unbind(&session, link.connection);
                self.node.disconnect(link.connection, "replaced by a new connection");
            }
        }
        // Nor do several of one class wait.
        let is_same =
            |other: &WaitingBind| other.session.id == session.id && other.entry.class == class;
        for other in self.connections.take_binds(is_same) {
            self.end_set_up(other.connection, "replaced by a new connection");
        }
        self.connections.binds.push(bind);
        self.finish_binds();
    }

    pub(super) fn finish_binds(&mut self) {
        for bind in self.connections.take_ready() {
            let session = bind.session;
            if !matches!(self.connections.get(bind.connection), Some(Connection::Waiting)) {
                continue;
            }
            let link = Link {
                connection: bind.connection,
                class: bind.entry.class,
                since: self.clock.now(),
                heard: false,
            };
            session.links.add(link);
            self.connections.bound(bind.connection, session.clone());
            let ready = SetupReply::Ready {
                version: bind.entry.version,
                features: bind.entry.features,
                session: session.id,
                secret: session.secret,
                attr: session.attr,
                verifier: self.shared.verifier(),
                proof: None,
                uid: session.who.uid,
                addresses: self.shared.greeting.addresses.clone(),
                same_host: self.same_host(bind.connection),
            };
            self.answer(bind.request, &ready, bind.handshake.as_ref());
        }
    }

    /// What a client at the other end finds this server by, if it is of this host: others are not told.
    fn same_host(&self, connection: ConnId) -> Option<SameHostToken> {
        let token = self.shared.greeting.same_host?;
        self.node.peer(connection)?.is_of_this_host().then_some(token)
    }

    /// The connection is no longer used by its session, but may still touch its memory.
    fn unbind(&mut self, session: &Session, connection: ConnId) {
        session.links.breaks(connection);
        if !planted(Defect::CallbackSentOnce) {
            session.callbacks.borrow_mut().broken(connection);
        }
        self.connections.gone(connection);
    }

    pub(super) fn disconnect_all(&mut self, id: SessionId, reason: &str) {
        let Some(live) = self.sessions.get(&id) else { return };
        let session = live.session.clone();
        for Link { connection, .. } in session.links.all() {
            self.unbind(&session, connection);
            self.node.disconnect(connection, reason);
        }
    }

    pub(super) fn disconnected(&mut self, connection: ConnId, reason: &str, peer_fault: bool) {
        if peer_fault {
            self.complain(connection, reason);
        }
        self.leave(connection);
    }

    /// Nothing of a connection is listened to any more.
    fn leave(&mut self, connection: ConnId) {
        match self.connections.get(connection) {
            Some(Connection::Bound(session)) => {
                let session = session.clone();
                self.unbind(&session, connection);
            }
            Some(Connection::Unproven(_) | Connection::Refused(_)) => {
                self.connections.end_set_up(connection);
            }
            // Its bind must not be completed: nobody would hear of its end again.
            Some(Connection::Waiting) if !planted(Defect::BrokenBindCompleted) => {
                self.connections.gone(connection);
            }
            _ => {}
        }
    }

    pub(super) fn quiescent(&mut self, connection: ConnId) {
        self.connections.quiescent(connection);
        for live in self.sessions.values() {
            live.session.links.quiescent(connection);
            live.session.mappable.remove(connection);
        }
        self.finish_binds();
    }

    pub(crate) fn violation(&mut self, connection: ConnId, reason: &str) {
        self.complain(connection, reason);
        self.node.disconnect(connection, reason);
        self.leave(connection);
    }

    /// Counts a violation, and says so where that does not fill the log.
    fn complain(&mut self, connection: ConnId, reason: &str) {
        tick(&self.shared.counters.peer_faults);
        let origin = self.connections.origin(connection);
        if self.complaints.may_report(origin) {
            tracing::warn!(?connection, ?origin, reason, "peer violated the protocol");
        }
    }

    /// Once a minute: violations that were only counted.
    pub(super) fn report_withheld(&mut self) {
        if let Some(more) = self.complaints.end_window(self.clock.now()) {
            tracing::warn!(more, "peers violated the protocol; not told one by one");
        }
    }

    pub(crate) fn bound_session(&self, connection: ConnId) -> Option<Rc<Session>> {
        self.connections.session(connection)
    }

    pub(super) fn end_late_set_ups(&mut self) {
        let limit = Duration::from_secs(u64::from(self.shared.limits.setup_seconds));
        for connection in self.connections.late(self.clock.now(), limit) {
            self.end_set_up(connection, "set-up took too long, or was refused");
        }
    }
}
