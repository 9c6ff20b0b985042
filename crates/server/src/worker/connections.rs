//! Connections: from accepting one to the last byte that it touches.

use std::rc::Rc;
use std::time::Duration;

use dafs_fabric::{Incoming, SgList};
use dafs_message::{ConnId, ConnOptions, RequestId};
use dafs_protocol::{
    CALLBACK_SLOTS, DecodeError, Purpose, SessionId, SetupReply, Status, decode_setup_request,
    encode_setup_reply,
};

use super::crowd::Origin;
use super::{TIMER, Worker};
use crate::identity::Proof;
use crate::planted::{Defect, planted};
use crate::session::{Link, Session};
use crate::setup::{Step, Unproven, WaitingBind, encode_ready, refuse_version};
use crate::shared::tick;

pub(super) enum Connection {
    Unproven(Unproven),
    /// It was told why, at this time, and ends when it can have heard.
    Refused(Duration),
    Waiting,
    Bound(Rc<Session>),
    Gone,
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
        let unproven = Unproven::new(proof, &incoming.peer, self.now);
        match self.node.accept(incoming, &[], options) {
            Ok(connection) => {
                self.connections.insert(connection, Connection::Unproven(unproven));
                if let Some(other) = self.unproven.enter(connection, origin) {
                    tick(&self.shared.counters.refused);
                    self.end_set_up(other, "server limit reached: connections being set up");
                }
            }
            Err(error) => tracing::warn!(%error, "connection not accepted"),
        }
    }

    pub(super) fn set_up(&mut self, connection: ConnId, id: RequestId, header: &[u8]) {
        let Some(Connection::Unproven(unproven)) = self.connections.get_mut(&connection) else {
            return;
        };
        let peer = unproven.peer.clone();
        let step = match decode_setup_request(header) {
            Ok(request) => unproven.step(&self.shared, request, header),
            Err(DecodeError::Version(version)) => refuse_version(version, version),
            Err(error) => return self.violation(connection, &error.to_string()),
        };
        match step {
            Step::Answer(SetupReply::Refused { status, text }) => {
                self.refuse_set_up(id, status, text);
            }
            Step::Answer(reply) => self.answer(id, &reply),
            Step::Proven { who, class, purpose, terms, handshake } => {
                let bound = match purpose {
                    Purpose::Create { attr, client } => {
                        self.create(connection, who, client, attr, peer)
                    }
                    Purpose::Bind { session, secret } => {
                        self.find(&who, session, &secret).map(|session| (session, true))
                    }
                };
                match bound {
                    Ok((session, old)) => {
                        let request = id;
                        let bind =
                            WaitingBind { connection, request, session, class, terms, handshake };
                        self.bind(bind, old);
                    }
                    Err((status, text)) => self.refuse_set_up(id, status, text.into()),
                }
            }
        }
    }

    fn refuse_set_up(&mut self, id: RequestId, status: Status, text: String) {
        self.answer(id, &SetupReply::Refused { status, text });
        self.connections.insert(id.conn(), Connection::Refused(self.now));
    }

    /// Ends a connection that did not become part of a session.
    fn end_set_up(&mut self, connection: ConnId, reason: &str) {
        self.unproven.leave(connection);
        self.connections.insert(connection, Connection::Gone);
        self.node.disconnect(connection, reason);
    }

    fn answer(&mut self, id: RequestId, reply: &SetupReply) {
        let mut bytes = self.context.header();
        encode_setup_reply(reply, &mut bytes);
        self.reply(id, bytes, SgList::new(), Vec::new());
    }

    /// Joins a connection to a session; one of the same class is replaced, and the answer waits
    /// until all work of replaced and broken connections is quiescent.
    fn bind(&mut self, bind: WaitingBind, existing: bool) {
        let (connection, session, class) = (bind.connection, bind.session.clone(), bind.class);
        self.unproven.leave(connection);
        self.connections.insert(connection, Connection::Waiting);
        if existing {
            session.last_seen.set(self.now);
            let links = session.connections.borrow().clone();
            for link in links.into_iter().filter(|link| link.class == class) {
                self.unbind(&session, link.connection);
                self.node.disconnect(link.connection, "replaced by a new connection");
            }
        }
        self.binds.push(bind);
        self.finish_binds();
    }

    pub(super) fn finish_binds(&mut self) {
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
            let ready = SetupReply::Ready {
                version: bind.terms.version,
                features: bind.terms.features,
                session: session.id,
                secret: session.secret,
                attr: session.attr,
                verifier: self.shared.verifier,
                proof: bind.handshake.is_some().then_some([0; 32]),
                uid: session.who.uid,
                addresses: self.shared.addresses.clone(),
            };
            let mut bytes = self.context.header();
            encode_ready(&self.shared, bind.handshake.as_ref(), &ready, &mut bytes);
            self.reply(bind.request, bytes, SgList::new(), Vec::new());
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

    pub(super) fn disconnect_all(&mut self, id: SessionId, reason: &str) {
        let Some(live) = self.sessions.get(&id) else { return };
        let session = live.session.clone();
        let links = session.connections.borrow().clone();
        for Link { connection, .. } in links {
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
        match self.connections.get(&connection) {
            Some(Connection::Bound(session)) => {
                let session = session.clone();
                self.unbind(&session, connection);
            }
            Some(Connection::Unproven(_) | Connection::Refused(_)) => {
                self.unproven.leave(connection);
                self.connections.insert(connection, Connection::Gone);
            }
            // Its bind must not be completed: nobody would hear of its end again.
            Some(Connection::Waiting) if !planted(Defect::BrokenBindCompleted) => {
                self.connections.insert(connection, Connection::Gone);
            }
            _ => {}
        }
    }

    pub(super) fn quiescent(&mut self, connection: ConnId) {
        self.connections.remove(&connection);
        for live in self.sessions.values() {
            live.session.draining.borrow_mut().retain(|other| *other != connection);
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
        let origin = self.origin(connection);
        if self.complaints.may_report(origin) {
            tracing::warn!(?connection, ?origin, reason, "peer violated the protocol");
        }
    }

    fn origin(&self, connection: ConnId) -> Option<Origin> {
        let bound = self.bound_session(connection);
        let waiting = || self.binds.iter().find(|bind| bind.connection == connection);
        let session = bound.or_else(|| waiting().map(|bind| bind.session.clone()));
        let user = session.map(|session| Origin::User(session.who.uid));
        user.or_else(|| self.unproven.origin(connection))
    }

    /// Once a minute: violations that were only counted.
    pub(super) fn report_withheld(&mut self) {
        if let Some(more) = self.complaints.end_window(self.now) {
            tracing::warn!(more, "peers violated the protocol; not told one by one");
        }
    }

    pub(crate) fn bound_session(&self, connection: ConnId) -> Option<Rc<Session>> {
        match self.connections.get(&connection) {
            Some(Connection::Bound(session)) => Some(session.clone()),
            _ => None,
        }
    }

    pub(super) fn end_late_set_ups(&mut self) {
        let limit = Duration::from_secs(u64::from(self.shared.limits.setup_seconds));
        let late = |connection: &Connection| match connection {
            Connection::Unproven(unproven) => self.now.saturating_sub(unproven.since) > limit,
            Connection::Refused(since) => self.now.saturating_sub(*since) >= TIMER,
            _ => false,
        };
        let mut late: Vec<_> =
            self.connections.iter().filter(|(_, c)| late(c)).map(|(id, _)| *id).collect();
        late.sort_unstable();
        for connection in late {
            self.end_set_up(connection, "set-up took too long, or was refused");
        }
    }
}
