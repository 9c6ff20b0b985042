//! Links: the one or two connections of a session, how they are made, and made again.

mod timeouts;

use std::time::Duration;

use dafs_message::{ConnId, SubmitError};
use dafs_protocol::{
    Dialled, Features, KeyHandshake, Nonce, Proof, SameHostToken, SessionAttr, SetupReply,
    SetupRequest, SizeClass, Status, WriteVerifier,
};
use hmac::Mac;

use super::attempts::{Attempts, Failure};
use super::{Core, Next, Phase, SessionKeys};
use crate::error::Error;

/// Of set-up requests; slots have smaller ones.
pub(super) const SETUP_TAG: u32 = u32::MAX;
const BACKOFF_MIN: Duration = Duration::from_millis(20);
const BACKOFF_MAX: Duration = Duration::from_millis(500);

#[derive(Debug, Clone, PartialEq, Eq)]
enum LinkState {
    /// No connection.
    Down,
    Connecting,
    /// This hello was sent.
    Hello(Vec<u8>),
    /// The proof was sent.
    Proving(KeyHandshake),
    Ready,
    /// Over, but the transport may still have memory.
    Draining,
}

/// What the server says when it takes a connection into a session.
pub(super) struct Granted {
    pub version: u32,
    pub features: Features,
    pub attr: SessionAttr,
    pub verifier: WriteVerifier,
    pub uid: u32,
    pub addresses: Vec<String>,
    pub same_host: Option<SameHostToken>,
}

/// A connection, and what it needs to come back.
#[derive(Debug)]
pub(super) struct Link {
    state: LinkState,
    conn: Option<ConnId>,
    /// It is to be connected whenever the session stands.
    wanted: bool,
    /// It was ready once in this session.
    was_ready: bool,
    deadline: Duration,
    attempts: Attempts,
    /// It was broken as the server said nothing.
    silent: bool,
    retry_at: Duration,
    backoff: Duration,
    heard: Duration,
    pinged: Duration,
}

impl Link {
    pub(super) fn new() -> Link {
        Link {
            state: LinkState::Down,
            conn: None,
            wanted: false,
            was_ready: false,
            deadline: Duration::ZERO,
            attempts: Attempts::default(),
            silent: false,
            retry_at: Duration::ZERO,
            backoff: BACKOFF_MIN,
            heard: Duration::ZERO,
            pinged: Duration::ZERO,
        }
    }

    #[inline]
    pub(super) fn is_ready(&self) -> bool {
        matches!(self.state, LinkState::Ready)
    }

    pub(super) fn is_down(&self) -> bool {
        self.state == LinkState::Down
    }

    pub(super) fn ready_conn(&self) -> Option<ConnId> {
        self.conn.filter(|_| self.is_ready())
    }

    /// True when it was not wanted before.
    pub(super) fn want(&mut self) -> bool {
        !std::mem::replace(&mut self.wanted, true)
    }

    /// The first attempt to make it comes at `at`.
    pub(super) fn retry_at(&mut self, at: Duration) {
        self.retry_at = at;
    }

    pub(super) fn heard(&mut self, now: Duration) {
        self.heard = now;
    }

    /// When the server was last heard of.
    pub(super) fn heard_at(&self) -> Duration {
        self.heard
    }

    /// On its way up or down.
    pub(super) fn is_unsettled(&self) -> bool {
        match self.state {
            LinkState::Ready => false,
            LinkState::Down => self.wanted,
            _ => true,
        }
    }

    /// It broke: the addresses are tried again, of which there are so many.
    fn restart(&mut self, addresses: usize) {
        self.attempts.restart(std::mem::take(&mut self.silent), addresses);
    }

    /// For the next session.
    pub(super) fn forget(&mut self) {
        *self = Link::new();
    }

    fn is_setting_up(&self) -> bool {
        !matches!(self.state, LinkState::Down | LinkState::Ready | LinkState::Draining)
    }
}

impl Core {
    fn link_of(&self, conn: ConnId) -> Option<usize> {
        self.links.iter().position(|link| link.conn == Some(conn))
    }

    fn connect(&mut self, index: usize) {
        let options = self.config.conn_options();
        // Tells the server which of its workers has the session.
        let session = self.session.keys.as_ref().map(|keys| keys.id.0);
        let private = session.as_ref().map_or(&[][..], |id| &id[..]);
        let lease = self.session.keys.is_some().then(|| self.lease());
        let attempts = &self.links[index].attempts;
        let target = &self.config.targets[attempts.target()];
        let usual = attempts.patience(self.config.targets.len(), lease);
        let patience = self.near_patience(index).unwrap_or(usual);
        match self.node.connect(target, private, options) {
            Ok(conn) => {
                let link = &mut self.links[index];
                link.conn = Some(conn);
                link.state = LinkState::Connecting;
                link.deadline = self.now + patience;
                self.requests.rung = false;
            }
            Err(error) => {
                let refused = matches!(error, dafs_fabric::ConnectError::Refused);
                let reason = dafs_fabric::descriptors::tell(&error);
                self.attempt_failed(index, Failure::of(refused, reason));
            }
        }
    }

    pub(super) fn on_connected(&mut self, conn: ConnId) {
        let Some(index) = self.link_of(conn) else { return };
        if self.links[index].state != LinkState::Connecting {
            return;
        }
        let mut nonce = Nonce::default();
        (self.session.nonces)(&mut nonce);
        let class = match (self.config.connections, index) {
            (1, _) => SizeClass::Any,
            (_, 0) => SizeClass::Small,
            _ => SizeClass::Bulk,
        };
        let purpose = self.purpose();
        let keyed = self.config.key.is_some();
        self.session.attempts += 1;
        let mut hello = SetupRequest::hello(nonce, class, keyed, purpose);
        if let SetupRequest::Hello { attempt, .. } = &mut hello {
            *attempt = self.session.attempts;
        }
        let hello = encode(&hello);
        self.send_setup(index, &hello);
        // Unless it could not be sent.
        if self.links[index].state == LinkState::Connecting {
            self.links[index].state = LinkState::Hello(hello);
        }
    }

    fn send_setup(&mut self, index: usize, header: &[u8]) {
        let Some(conn) = self.links[index].conn else { return };
        let (data, into) = Default::default();
        let sent = self.node.submit_control(conn, SETUP_TAG, header, data, into);
        self.requests.rung = false;
        // It has ended already: why, its event says, which comes next.
        if let Err(error) = sent
            && error != SubmitError::NotConnected
        {
            self.set_up_failed(index, Failure::of(false, error.to_string()));
        }
    }

    pub(super) fn on_setup_reply(&mut self, conn: ConnId, header: &[u8]) {
        let Some(index) = self.link_of(conn) else { return };
        let reply = match dafs_protocol::decode_setup_reply(header) {
            Ok(reply) => reply,
            Err(error) => return self.denied(index, Error::PeerProtocol(error.to_string())),
        };
        let state = self.links[index].state.clone();
        match (reply, state) {
            (SetupReply::Challenge { nonce: server }, LinkState::Hello(hello)) => {
                if self.config.key.is_none() {
                    let text = "the server wants a key, and none was given";
                    return self.denied(index, Error::Auth(text.into()));
                }
                let dialled = self.dialled(conn);
                let handshake = KeyHandshake { hello, server, dialled };
                let mac = self.config.mac(&handshake.client_input());
                let proof: Proof = mac.finalize().into_bytes().into();
                self.links[index].state = LinkState::Proving(handshake);
                self.send_setup(index, &encode(&SetupRequest::Prove { dialled, proof }));
            }
            (
                SetupReply::Ready {
                    version,
                    features,
                    session,
                    secret,
                    attr,
                    verifier,
                    proof,
                    uid,
                    addresses,
                    same_host,
                },
                state @ (LinkState::Hello(_) | LinkState::Proving(_)),
            ) => {
                if !self.is_proven(&state, header, proof) {
                    let text = "the server did not prove that it has the key";
                    return self.denied(index, Error::Auth(text.into()));
                }
                let keys = SessionKeys { id: session, secret };
                let granted =
                    Granted { version, features, attr, verifier, uid, addresses, same_host };
                self.link_ready(index, keys, granted);
            }
            (
                SetupReply::Refused { status, text, proof },
                state @ (LinkState::Hello(_) | LinkState::Proving(_)),
            ) => {
                let is_proven = self.is_proven(&state, header, proof);
                self.on_setup_refused(index, status, &text, is_proven);
            }
            _ => self.denied(index, Error::PeerProtocol("an answer out of turn".into())),
        }
    }

    /// The server's address, as far as it has one.
    fn dialled(&self, conn: ConnId) -> Dialled {
        let ends = self.node.peer(conn).and_then(|peer| peer.ends);
        ends.map_or_else(Dialled::default, |ends| ends.peer.into())
    }

    /// It is the server that said `reply`, as it came, with its `proof`.
    fn is_proven(&self, state: &LinkState, reply: &[u8], proof: Option<Proof>) -> bool {
        if self.config.key.is_none() {
            return true;
        }
        let (LinkState::Proving(handshake), Some(proof)) = (state, proof) else {
            return false;
        };
        // In constant time.
        let said = dafs_protocol::before_proof(reply);
        self.config.mac(&handshake.server_input(said)).verify_slice(&proof).is_ok()
    }

    /// What ends the session, or says that writes are lost, is believed of the server alone.
    fn on_setup_refused(&mut self, index: usize, status: Status, text: &str, is_proven: bool) {
        let text: String = text.chars().filter(|c| !c.is_control()).take(200).collect();
        let reason = if text.is_empty() { status.to_string() } else { text };
        let is_believed = self.session.keys.is_some() && is_proven && !self.may_be_other(index);
        match status {
            Status::BadSession if is_believed => self.lose_session(),
            Status::WritesLost if is_believed => {
                self.writes_were_lost();
                self.lose_session();
            }
            Status::AuthFailed | Status::NotAuthorized | Status::Access | Status::Perm => {
                self.denied(index, Error::Auth(reason));
            }
            Status::Version => self.denied(index, Error::Connect { refused: false, reason }),
            _ => self.set_up_failed(index, Failure::of(false, reason)),
        }
    }

    /// A link's set-up is complete.
    fn link_ready(&mut self, index: usize, keys: SessionKeys, granted: Granted) {
        let bound = self.session.keys;
        if bound.is_some_and(|session| session.id != keys.id) {
            let what = "a connection of another session";
            return self.denied(index, Error::PeerProtocol(what.into()));
        }
        if bound.is_none() && !self.config.is_sane(&granted.attr) {
            let what = "session attributes out of range";
            return self.denied(index, Error::PeerProtocol(what.into()));
        }
        let nearer = match self.nearer(index, granted.same_host) {
            Ok(nearer) => nearer,
            Err(reason) => return self.far_only(index, reason),
        };
        let link = &mut self.links[index];
        link.state = LinkState::Ready;
        link.attempts.succeeded();
        link.silent = false;
        link.backoff = BACKOFF_MIN;
        link.heard = self.now;
        link.pinged = self.now;
        link.wanted = true;
        // The lease may be another one.
        self.settled_until = Duration::ZERO;
        let target = link.attempts.target();
        if !self.is_near(index) {
            self.recovery.served_at = Some(target);
        }
        if nearer.is_none() {
            self.joined(index);
        }
        if bound.is_none() {
            self.session_made(keys, granted);
        }
        if let Some(address) = nearer {
            self.go_nearer(address);
        }
    }

    /// A link stands that is to stay.
    fn joined(&mut self, index: usize) {
        if let (0, Some(conn)) = (index, self.links[index].conn) {
            self.session.facts.transport = self.node.transport(conn).unwrap_or_default();
            self.session.facts.shares_memory = self.may_share_memory(conn);
        }
        if std::mem::replace(&mut self.links[index].was_ready, true) {
            self.session.facts.reconnects += 1;
            self.back_again(index);
        }
    }

    /// A link that stands is given back, to be made again by the first address.
    pub(super) fn make_again(&mut self, index: usize, reason: &str) {
        let link = &mut self.links[index];
        link.state = LinkState::Draining;
        link.retry_at = self.now;
        link.attempts.restart(false, self.config.targets.len());
        if let Some(conn) = link.conn {
            self.node.disconnect(conn, reason);
        }
        self.requests.rung = false;
    }

    /// The addresses have another one in front, or no longer that. A link that stands, or is made, keeps
    /// its address; others begin at the first.
    pub(super) fn targets_moved(&mut self, longer: bool) {
        self.settled_until = Duration::ZERO;
        for link in &mut self.links {
            let (is_down, addresses) = (link.is_down(), self.config.targets.len());
            let attempts = &mut link.attempts;
            if is_down { attempts.restart(false, addresses) } else { attempts.moved(longer) }
        }
    }

    /// Which address a link is tried by, or stands by.
    pub(super) fn target(&self, index: usize) -> usize {
        self.links[index].attempts.target()
    }

    /// Its connection, while there is one.
    pub(super) fn conn(&self, index: usize) -> Option<ConnId> {
        self.links[index].conn
    }

    /// It is tried again at once.
    pub(super) fn retry_now(&mut self, index: usize) {
        self.links[index].retry_at = self.now;
    }

    pub(super) fn on_refused(&mut self, conn: ConnId, refused: bool, reason: String) {
        let Some(index) = self.link_of(conn) else { return };
        let drained = self.links[index].state == LinkState::Draining;
        self.links[index].state = LinkState::Down;
        self.links[index].conn = None;
        if !drained {
            self.attempt_failed(index, Failure::of(refused, reason));
        }
    }

    /// A connection was made, but not what it is for.
    pub(super) fn set_up_failed(&mut self, index: usize, failure: Failure) {
        let link = &mut self.links[index];
        link.state = LinkState::Draining;
        if let Some(conn) = link.conn {
            self.node.disconnect(conn, &failure.reason);
        }
        self.attempt_failed(index, failure);
    }

    /// Who is at this address does not want us, or is no server for us.
    fn denied(&mut self, index: usize, error: Error) {
        self.set_up_failed(index, Failure::denied(error));
    }

    /// Tries the server's next address, or again later, or gives up.
    fn attempt_failed(&mut self, index: usize, failure: Failure) {
        if matches!(self.phase, Phase::Draining(_) | Phase::Closed) {
            return;
        }
        if self.near_failed(index, &failure.reason) {
            return;
        }
        let link = &mut self.links[index];
        if failure.refused && self.recovery.served_at == Some(link.attempts.target()) {
            // Nobody is where the server was: another one starts later.
            self.recovery.old_server_at = self.now;
        }
        let Some(failure) = link.attempts.failed(failure, &self.config.targets) else {
            link.retry_at = self.now;
            return;
        };
        if !self.session.established {
            return self.fail_all(failure.into_error());
        }
        if let Some(error) = failure.denied.filter(|_| failure.is_final) {
            return self.fail_all(error);
        }
        let since = *self.recovery.lost_since[index].get_or_insert(self.now);
        let gone = self.now.saturating_sub(since);
        if gone >= self.config.retry {
            let reason = format!("no server for {} s: {}", gone.as_secs(), failure.reason);
            return self.fail_all(Error::Connect { refused: failure.refused, reason });
        }
        let link = &mut self.links[index];
        link.retry_at = self.now + link.backoff;
        link.backoff = (link.backoff * 2).min(BACKOFF_MAX);
    }

    pub(super) fn on_disconnected(&mut self, conn: ConnId, reason: &str, peer_fault: bool) {
        self.drop_callbacks_of(conn);
        let Some(index) = self.link_of(conn) else { return };
        let (was_ready, was_setting_up) =
            (self.links[index].is_ready(), self.links[index].is_setting_up());
        self.links[index].state = LinkState::Draining;
        if was_setting_up {
            let failure = match peer_fault && !self.session.established {
                true => Failure::denied(Error::PeerProtocol(reason.into())),
                false => Failure::of(false, reason.into()),
            };
            self.attempt_failed(index, failure);
        } else if was_ready {
            self.links[index].retry_at = self.now;
            self.links[index].restart(self.config.targets.len());
            if matches!(self.phase, Phase::Draining(_) | Phase::Closed) || self.session.closing {
                return;
            }
            if self.recovery.lost_since[index].replace(self.now).is_none() && index == 0 {
                let address = &self.config.address;
                let patience = if self.config.is_hard() {
                    "trying until it is back".to_owned()
                } else {
                    format!("trying for {} s", self.config.retry.as_secs())
                };
                self.notice(format!("lost {address} ({reason}); {patience}"));
            }
        }
    }

    pub(super) fn on_quiescent(&mut self, conn: ConnId) {
        for slot in 0..self.requests.flights.slots() {
            let Some(flight) = &mut self.requests.flights.all()[slot] else { continue };
            if flight.posted == Some(conn) {
                flight.posted = None;
                self.requests.unposted += 1;
                if flight.call.cancelled {
                    self.detach(slot);
                }
            }
        }
        if let Some(index) = self.link_of(conn) {
            let link = &mut self.links[index];
            if link.state != LinkState::Draining {
                // Without a break before it; treated as one.
                link.retry_at = self.now + link.backoff;
                link.restart(self.config.targets.len());
            }
            link.state = LinkState::Down;
            link.conn = None;
        }
    }

    /// Ends all connections; `next` follows when no memory is in use.
    pub(super) fn drain(&mut self, next: Next) {
        if matches!(self.phase, Phase::Closed) {
            return;
        }
        self.phase = Phase::Draining(next);
        for link in &mut self.links {
            link.wanted = false;
            if let Some(conn) = link.conn
                && link.state != LinkState::Draining
            {
                link.state = LinkState::Draining;
                self.node.disconnect(conn, "the session ends");
            }
        }
        self.requests.rung = false;
    }
}

fn encode(request: &SetupRequest) -> Vec<u8> {
    let mut bytes = Vec::new();
    dafs_protocol::encode_setup_request(request, &mut bytes);
    bytes
}
