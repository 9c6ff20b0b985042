//! The node: one engine, its connections, one progress function.

mod arrivals;
mod progress;

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use dafs_fabric::{
    Address, ConnectError, Domain, Incoming, PeerInfo, QueuePair, QueuePairEvent, SgList, Waiter,
    WorkCompletion,
};

use crate::config::{ConnOptions, NodeConfig, NodeError, SubmitError};
use crate::connection::{Connection, State};
use crate::event::{ConnId, Event, RequestId};
use crate::header::{SETUP_BYTES, Setup};
use crate::requests::Submit;
use crate::shared::{Role, Shared};
use crate::stats::{Counters, NodeStats};

/// Completions taken from the engine at a time.
const COMPLETIONS_MAX: usize = 256;
/// Rounds of one poll, so that its caller gets its turn on a busy node.
const ROUNDS_MAX: usize = 4;
/// Pieces of request data that a peer without tags sends at a time, and its control messages.
const PIECES_UNDER_WAY: usize = 4;

/// The caller's private data of a connection request made by a [`Node`]; `None` when the peer is
/// no such node.
pub fn incoming_private_data(incoming: &Incoming) -> Option<&[u8]> {
    Setup::decode(&incoming.private_data).map(|(_, rest)| rest)
}

/// Queue pair numbers are ours: a multiplication spreads them well enough.
#[derive(Default)]
struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }
    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(32);
    }
}

/// One engine, its connections and the requests on them.
pub struct Node {
    sh: Shared,
    connections: Vec<Option<Box<Connection>>>,
    generations: Vec<u32>,
    free: Vec<u32>,
    by_queue_pair: HashMap<QueuePair, u32, BuildHasherDefault<NumberHasher>>,
    completions: Vec<WorkCompletion>,
    late_events: Vec<QueuePairEvent>,
}

impl Node {
    /// A node over an engine of its own. What it posts of memory that `domain` knows costs nothing
    /// where the device must know it; other memory is registered when it is first used, as a whole
    /// (arena or buffer), and lent memory is copied.
    ///
    /// # Errors
    /// [`NodeError`].
    pub fn new(domain: Arc<Domain>, config: NodeConfig) -> Result<Node, NodeError> {
        Ok(Node {
            sh: Shared::new(domain, config)?,
            connections: Vec::new(),
            generations: Vec::new(),
            free: Vec::new(),
            by_queue_pair: HashMap::default(),
            completions: Vec::with_capacity(COMPLETIONS_MAX),
            late_events: Vec::new(),
        })
    }

    /// Begins to connect. [`Event::Connected`] or [`Event::Refused`] follows. `private_data` is
    /// at most [`private_data_max`](Self::private_data_max) bytes.
    ///
    /// # Errors
    /// What can be known at once.
    pub fn connect(
        &mut self,
        address: &Address,
        private_data: &[u8],
        options: ConnOptions,
    ) -> Result<ConnId, ConnectError> {
        let (ours, receives) = self.prepare(private_data, &options)?;
        let block = ours.encode(private_data);
        self.sh.pool.promise(receives, &mut *self.sh.engine);
        match self.sh.engine.connect(address, &block) {
            Ok(queue_pair) => Ok(self.add(queue_pair, ours, options, receives)),
            Err(error) => {
                self.sh.pool.release(receives);
                Err(error)
            }
        }
    }

    /// Takes a connection request (of any engine of the same provider); the connection stands at
    /// once, without an event. The caller's part of `incoming.private_data` is told by
    /// [`incoming_private_data`].
    ///
    /// # Errors
    /// [`ConnectError`]. The peer is told.
    pub fn accept(
        &mut self,
        incoming: Incoming,
        private_data: &[u8],
        options: ConnOptions,
    ) -> Result<ConnId, ConnectError> {
        let Some((theirs, _)) = Setup::decode(&incoming.private_data) else {
            self.sh
                .engine
                .reject(incoming, "this node speaks another version of the message protocol");
            return Err(ConnectError::PeerProtocol("no set-up block of a message node"));
        };
        let (ours, receives) = match self.prepare(private_data, &options) {
            Ok(prepared) => prepared,
            Err(error) => {
                self.sh.engine.reject(incoming, "the server is full");
                return Err(error);
            }
        };
        self.sh.pool.promise(receives, &mut *self.sh.engine);
        let accepted = self.sh.engine.accept(incoming, &ours.encode(private_data));
        let queue_pair = match accepted {
            Ok(queue_pair) => queue_pair,
            Err(error) => {
                self.sh.pool.release(receives);
                return Err(error);
            }
        };
        let id = self.add(queue_pair, ours, options, receives);
        if let Some(connection) = self.connections[id.index as usize].as_mut() {
            connection.open(&theirs, &self.sh);
        }
        Ok(id)
    }

    /// Tells a peer why it is not wanted.
    pub fn reject(&mut self, incoming: Incoming, reason: &str) {
        self.sh.engine.reject(incoming, reason);
    }

    /// Who is at the other end of a connection that stands, as far as the system knows. Not for hot
    /// paths.
    pub fn peer(&self, conn: ConnId) -> Option<PeerInfo> {
        let queue_pair = self.peek(conn)?.queue_pair;
        self.sh.engine.peer(queue_pair)
    }

    /// What to tell the peer, and the receives that this needs. Grants fewer credits than wished
    /// where there are not enough receives.
    fn prepare(
        &self,
        private_data: &[u8],
        options: &ConnOptions,
    ) -> Result<(Setup, usize), ConnectError> {
        let (bytes, bytes_max) = (private_data.len(), self.private_data_max());
        if bytes > bytes_max {
            return Err(ConnectError::PrivateData { bytes, bytes_max });
        }
        if self.connections.len() - self.free.len() >= self.sh.config.connections_max {
            return Err(ConnectError::Resource("connections"));
        }
        let (sh, attr) = (&self.sh, &self.sh.attr);
        let tagged = attr.tag_match && options.use_tagged;
        // One for control messages; replies and pieces take receives where tags do not match.
        let untagged =
            if tagged { 0 } else { usize::from(options.requests_max) + PIECES_UNDER_WAY };
        let beside = 1 + untagged;
        let wish = usize::from(options.credits.min(4096));
        let room = sh.pool.available().saturating_sub(beside + 1);
        let credits = wish.min(room);
        if sh.pool.available() < beside || (credits == 0 && wish > 0) {
            return Err(ConnectError::Resource("receives"));
        }
        // One more than asked for, for requests that keep the connection going.
        let window = if credits == 0 { 0 } else { credits + 1 };
        let setup = Setup {
            tagged,
            rdma_read: attr.rdma_read && options.use_rdma_read,
            rdma_write: attr.rdma_write && attr.write_before_send,
            header_bytes: sh.config.header_bytes as u16,
            window: window as u16,
            area_bytes: sh.area_bytes() as u32,
            push_bytes: if tagged { options.push_bytes.min(1 << 30) } else { 0 },
        };
        Ok((setup, window + beside))
    }

    /// Its receives are promised.
    fn add(
        &mut self,
        queue_pair: QueuePair,
        ours: Setup,
        options: ConnOptions,
        receives: usize,
    ) -> ConnId {
        let index = self.free.pop().unwrap_or_else(|| {
            self.connections.push(None);
            self.generations.push(0);
            (self.connections.len() - 1) as u32
        });
        let id = ConnId { index, generation: self.generations[index as usize] };
        let connection = Connection::new(id, queue_pair, ours, options, receives, &self.sh);
        self.connections[index as usize] = Some(Box::new(connection));
        self.by_queue_pair.insert(queue_pair, index);
        self.sh.posted = true;
        id
    }

    fn find(&mut self, conn: ConnId) -> Option<(&mut Connection, &mut Shared)> {
        let connection = self.connections.get_mut(conn.index as usize)?.as_deref_mut()?;
        (connection.id == conn).then_some((connection, &mut self.sh))
    }

    fn peek(&self, conn: ConnId) -> Option<&Connection> {
        let connection = self.connections.get(conn.index as usize)?.as_deref()?;
        (connection.id == conn).then_some(connection)
    }

    /// Ends a connection: [`Event::Disconnected`], then [`Event::Quiescent`] follow. What was
    /// posted and has not left may be lost.
    pub fn disconnect(&mut self, conn: ConnId, reason: &str) {
        if self.peek(conn).is_some() {
            self.fail(conn.index, reason.to_owned(), false);
        }
    }

    /// Sends a request. `tag` is the caller's, unique among the requests under way on this
    /// connection. `data` are the sources of the request's data, `reply_into` is where the
    /// reply's data goes. The spans are held until [`Event::Reply`], [`Event::Abandoned`] or
    /// [`Event::Quiescent`].
    ///
    /// # Errors
    /// [`SubmitError`]; nothing was done and no span is held.
    pub fn submit(
        &mut self,
        conn: ConnId,
        tag: u32,
        header: &[u8],
        data: SgList,
        reply_into: SgList,
    ) -> Result<(), SubmitError> {
        let (connection, sh) = self.find(conn).ok_or(SubmitError::NotConnected)?;
        connection.submit(sh, tag, header, data, reply_into, Submit::Plain)
    }

    /// As [`submit`](Self::submit), for requests that keep the connection going: may use the
    /// credit and the place that ordinary requests leave alone.
    ///
    /// # Errors
    /// As `submit`.
    pub fn submit_control(
        &mut self,
        conn: ConnId,
        tag: u32,
        header: &[u8],
        data: SgList,
        reply_into: SgList,
    ) -> Result<(), SubmitError> {
        let (connection, sh) = self.find(conn).ok_or(SubmitError::NotConnected)?;
        connection.submit(sh, tag, header, data, reply_into, Submit::Control)
    }

    /// As [`submit`](Self::submit); data that is not beside the header waits until the peer asks
    /// for it: for a peer that refused to take pushed data now.
    ///
    /// # Errors
    /// As `submit`.
    pub fn submit_on_grant(
        &mut self,
        conn: ConnId,
        tag: u32,
        header: &[u8],
        data: SgList,
        reply_into: SgList,
    ) -> Result<(), SubmitError> {
        let (connection, sh) = self.find(conn).ok_or(SubmitError::NotConnected)?;
        connection.submit(sh, tag, header, data, reply_into, Submit::OnGrant)
    }

    /// Whether `submit` would find a credit and a free place now.
    pub fn can_submit(&self, conn: ConnId) -> bool {
        self.peek(conn).is_some_and(|connection| {
            connection.state == State::Open && connection.requester.admit(false).is_ok()
        })
    }

    /// The longest request header that this connection takes (0 when it does not stand).
    pub fn request_header_max(&self, conn: ConnId) -> usize {
        let open = self.peek(conn).filter(|connection| connection.state == State::Open);
        open.map_or(0, Connection::request_header_max)
    }

    /// The most private data that [`connect`](Self::connect) and [`accept`](Self::accept) take.
    pub fn private_data_max(&self) -> usize {
        self.sh.attr.private_data_bytes_max.saturating_sub(SETUP_BYTES)
    }

    /// The most bytes of data that a request or a reply carries.
    pub fn data_bytes_max(&self) -> usize {
        self.sh.attr.bulk_bytes_max
    }

    /// The most segments in one list of data, after neighbours were joined.
    pub fn segments_max(&self) -> usize {
        self.sh.attr.sge_max
    }

    /// Forgets a request whose caller gave up: its spans stay held until the reply came or the
    /// connection is quiescent, then [`Event::Abandoned`] comes, and no `Reply`.
    pub fn abandon(&mut self, conn: ConnId, tag: u32) {
        if let Some((connection, _)) = self.find(conn) {
            connection.abandon(tag);
        }
    }

    /// Brings the request's data into `into`, which has room for `data_len` bytes.
    /// [`Event::Fetched`] follows, exactly once. At most once per request.
    ///
    /// Pushed data waits in the path, and all behind it on this connection with it: fetch (or
    /// reply) soon, and never let it depend on another request of the same connection. Where this
    /// cannot be promised, grant no byte credits
    /// ([`push_bytes`](crate::ConnOptions::push_bytes)).
    pub fn fetch(&mut self, id: RequestId, into: SgList) {
        match self.find(id.conn) {
            Some((connection, sh)) => connection.fetch(sh, id.tag, into),
            None => self.sh.events.push_back(Event::Fetched { id, placed: None }),
        }
    }

    /// Answers. `data` is at most `reply_max` bytes in at most
    /// [`segments_max`](Self::segments_max) segments, `header` at most
    /// [`REPLY_HEADER_BYTES_MAX`](crate::REPLY_HEADER_BYTES_MAX); more ends the connection. If
    /// `data` is not empty, [`Event::ReplySent`] with `token` follows when its spans are free
    /// again, whatever happens. Data of the request that was not fetched is thrown away; while a
    /// fetch is under way the reply waits for it.
    pub fn reply(&mut self, id: RequestId, header: &[u8], data: SgList, token: u64) {
        let token = (!data.is_empty()).then_some(token);
        self.reply_as(id, header, data, token);
    }

    /// As [`reply`](Self::reply); [`Event::ReplySent`] follows without data, too.
    pub fn reply_told(&mut self, id: RequestId, header: &[u8], data: SgList, token: u64) {
        self.reply_as(id, header, data, Some(token));
    }

    fn reply_as(&mut self, id: RequestId, header: &[u8], data: SgList, token: Option<u64>) {
        let Some((connection, sh)) = self.find(id.conn) else {
            drop(data);
            return self.sh.unsent(token);
        };
        connection.reply(sh, id.tag, header, (data, token));
        sh.deliver_waiting();
    }

    /// Bytes that came so far of the data that is [fetched](Self::fetch); 0 also where the transport
    /// does not tell before all is there. Not for hot paths.
    pub fn fetched_bytes(&self, id: RequestId) -> u64 {
        self.peek(id.conn).map_or(0, |connection| connection.fetched_bytes(&self.sh, id.tag))
    }

    /// Bytes that left so far of the data of a reply whose [`Event::ReplySent`] is to come; 0 also where
    /// the transport does not tell. Not for hot paths.
    pub fn replied_bytes(&self, conn: ConnId, token: u64) -> u64 {
        self.peek(conn).map_or(0, |connection| connection.replied_bytes(&self.sh, token))
    }

    /// Drains every event source of the engine and makes progress. Returns how many events wait
    /// in [`next_event`](Self::next_event). Never blocks.
    pub fn poll(&mut self) -> usize {
        self.end_faulty();
        self.flush_blocked();
        for _ in 0..ROUNDS_MAX {
            let mut completions = std::mem::take(&mut self.completions);
            completions.clear();
            let count = self.sh.engine.poll(&mut completions, COMPLETIONS_MAX);
            let more = self.take_events() || count == COMPLETIONS_MAX;
            for completion in &completions {
                self.handle_completion(completion);
            }
            self.completions = completions;
            self.handle_late_events();
            self.end_faulty();
            if !more {
                break;
            }
        }
        self.try_starved();
        self.flush_blocked();
        self.sh.pool.refill(&mut *self.sh.engine);
        self.sh.deliver_waiting();
        if self.sh.posted && self.sh.events.is_empty() {
            self.ring();
        }
        self.sh.events.len()
    }

    /// Goes on with what waited for memory that stands in, if some came back.
    #[inline]
    fn try_starved(&mut self) {
        if self.sh.starved.is_empty() || !self.sh.bounces[Role::Responder as usize].came_back() {
            return;
        }
        for (index, tag) in std::mem::take(&mut self.sh.starved) {
            if let Some(Some(connection)) = self.connections.get_mut(index as usize) {
                connection.try_starved(&mut self.sh, tag);
            }
        }
    }

    /// How often all connections have been looked at: see [`dafs_fabric::Engine::rounds`].
    pub fn rounds(&self) -> u64 {
        self.sh.engine.rounds()
    }

    /// The next event.
    pub fn next_event(&mut self) -> Option<Event> {
        self.sh.events.pop_front()
    }

    /// Gives back the memory of a header, so that the next one needs no allocation.
    pub fn recycle(&mut self, header: Vec<u8>) {
        self.sh.recycle(header);
    }

    /// True when it is safe to sleep on the [`waiter`](Self::waiter). False: poll again.
    pub fn arm(&mut self) -> bool {
        if !self.sh.events.is_empty() || !self.sh.faults.is_empty() {
            return false;
        }
        if self.sh.posted {
            self.ring();
        }
        self.sh.engine.arm()
    }

    /// What to sleep on.
    pub fn waiter(&self) -> Arc<dyn Waiter> {
        self.sh.engine.waiter()
    }

    /// Hands posted work to the network. Call it after a round of `submit`, `fetch`, `reply`.
    pub fn ring(&mut self) {
        self.sh.posted = false;
        self.sh.engine.ring();
    }

    /// Counters.
    pub fn stats(&self) -> NodeStats {
        let mut counters = self.sh.ended;
        for connection in self.connections.iter().flatten() {
            counters.add(&connection.counters);
        }
        NodeStats {
            counters,
            connections: self.connections.len() - self.free.len(),
            requests_in_service: self.sh.in_service,
            requests_waiting: self.sh.waiting.len(),
            receives_posted: self.sh.pool.posted(),
            receives_promised: self.sh.pool.promised(),
            regions: self.sh.registrations.len(),
            registrations: self.sh.registrations.registrations(),
            system_calls: self.sh.engine.system_calls(),
        }
    }

    /// Counters of a connection.
    pub fn conn_stats(&self, conn: ConnId) -> Option<Counters> {
        self.peek(conn).map(|connection| connection.counters)
    }
}
