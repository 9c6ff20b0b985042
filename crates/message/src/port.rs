//! A port of a node: one engine, its connections, one progress function.

mod arrivals;
mod loans;
mod named;
mod progress;
mod shorts;

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use dafs_fabric::{
    Address, ConnectError, Incoming, PeerInfo, Piece, ProtectionDomain, QueuePair, QueuePairEvent,
    RemoteSpan, SgList, ShortMessage, Span, Waiter, WorkCompletion,
};

use crate::config::{ConnOptions, NodeConfig, NodeError, SubmitError};
use crate::connection::{Connection, State};
use crate::event::{ConnId, Event, RequestId};
use crate::header::{SETUP_BYTES, Setup};
use crate::references::{ReferenceQuota, References, reads_in_place};
use crate::requests::Submit;
use crate::shared::{Role, Shared};
use crate::stats::{Counters, NodeStats};
use shorts::Shorts;

/// Completions taken from the engine at a time.
const COMPLETIONS_MAX: usize = 256;
/// Rounds of one poll, so that its caller gets its turn on a busy node.
const ROUNDS_MAX: usize = 4;
/// Pieces of request data that a peer without tags sends at a time, and its control messages.
const PIECES_UNDER_WAY: usize = 4;

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

/// One engine, its connections and the requests on them. What its methods do is told with those of
/// [`Node`](crate::Node).
pub struct Port {
    /// Its place in the node.
    number: u8,
    sh: Shared,
    connections: Vec<Option<Box<Connection>>>,
    generations: Vec<u32>,
    free: Vec<u32>,
    by_queue_pair: HashMap<QueuePair, u32, BuildHasherDefault<NumberHasher>>,
    /// The one that was looked for last, which is in there.
    last_found: Option<(QueuePair, u32)>,
    completions: Vec<WorkCompletion>,
    /// What was received last without a receive, and where the caller's header begins.
    short: ShortMessage,
    short_at: usize,
    /// What of that kind there is.
    shorts: Shorts,
    late_events: Vec<QueuePairEvent>,
}

impl Port {
    /// With an engine of its own.
    ///
    /// # Errors
    /// [`NodeError`].
    pub fn new(
        number: u8,
        domain: Arc<ProtectionDomain>,
        config: NodeConfig,
    ) -> Result<Port, NodeError> {
        let mut sh = Shared::new(domain, config)?;
        let shorts = if sh.engine.leave_short() { Shorts::Drained } else { Shorts::None };
        Ok(Port {
            number,
            sh,
            connections: Vec::new(),
            generations: Vec::new(),
            free: Vec::new(),
            by_queue_pair: HashMap::default(),
            last_found: None,
            completions: Vec::with_capacity(COMPLETIONS_MAX),
            short: ShortMessage::default(),
            short_at: 0,
            shorts,
            late_events: Vec::new(),
        })
    }

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
        if let Some(connection) = self.connections[id.slot() as usize].as_mut() {
            connection.open(&theirs, &self.sh);
        }
        Ok(id)
    }

    pub fn reject(&mut self, incoming: Incoming, reason: &str) {
        self.sh.engine.reject(incoming, reason);
    }

    pub fn peer(&self, conn: ConnId) -> Option<PeerInfo> {
        let queue_pair = self.peek(conn)?.queue_pair;
        self.sh.engine.peer(queue_pair)
    }

    /// What to tell the peer, and the receives that this needs. Grants fewer credits than wished
    /// where there are not enough receives.
    fn prepare(
        &mut self,
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
        let tagged = self.sh.attr.tag_match && options.use_tagged;
        // One for control messages; replies and pieces take receives where tags do not match.
        let untagged =
            if tagged { 0 } else { usize::from(options.requests_max) + PIECES_UNDER_WAY };
        let beside = 1 + untagged;
        let wish = usize::from(options.credits.min(4096));
        self.sh.pool.reserve(beside + wish + 1);
        let (sh, attr) = (&self.sh, &self.sh.attr);
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
            refers: options.use_references && sh.refers && reads_in_place(attr),
            lends: options.use_references && sh.refers && reads_in_place(attr),
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
        let id = ConnId::new(self.number, index, self.generations[index as usize]);
        let connection = Connection::new(id, queue_pair, ours, options, receives, &self.sh);
        self.connections[index as usize] = Some(Box::new(connection));
        self.by_queue_pair.insert(queue_pair, index);
        self.sh.posted = true;
        id
    }

    /// The place of a queue pair's connection.
    #[inline]
    fn place_of(&mut self, queue_pair: QueuePair) -> Option<u32> {
        match self.last_found {
            Some((last, index)) if last == queue_pair => Some(index),
            _ => {
                let index = self.by_queue_pair.get(&queue_pair).copied()?;
                self.last_found = Some((queue_pair, index));
                Some(index)
            }
        }
    }

    #[inline]
    pub fn find(&mut self, conn: ConnId) -> Option<(&mut Connection, &mut Shared)> {
        let connection = self.connections.get_mut(conn.slot() as usize)?.as_deref_mut()?;
        (connection.id == conn).then_some((connection, &mut self.sh))
    }

    #[inline]
    fn peek(&self, conn: ConnId) -> Option<&Connection> {
        let connection = self.connections.get(conn.slot() as usize)?.as_deref()?;
        (connection.id == conn).then_some(connection)
    }

    pub fn disconnect(&mut self, conn: ConnId, reason: &str) {
        if self.peek(conn).is_some() {
            self.fail(conn.slot(), reason.to_owned(), false);
        }
    }

    /// See [`Node::refer`](crate::Node::refer).
    pub fn refer(&mut self, conn: ConnId, quota: Arc<ReferenceQuota>) {
        if let Some((connection, sh)) = self.find(conn)
            && connection.agreed.refers
        {
            sh.engine.admit(connection.queue_pair);
            connection.responder.references = Some(Box::new(References::new(quota)));
        }
    }

    pub fn readable_by(&self, conn: ConnId, memory: &Span) -> Option<RemoteSpan> {
        let queue_pair = self.peek(conn)?.queue_pair;
        let told = memory.part(0, memory.len().min(u32::MAX as usize));
        let (remote, readers) = self.sh.domain.readable(&told)?;
        self.sh.engine.lets_read(queue_pair, readers).then_some(remote)
    }

    /// Sends what tells that references are let go, of connections whose next message did not come soon.
    #[cold]
    fn send_releases(&mut self, at_once: bool) {
        let mut releasing = std::mem::take(&mut self.sh.releasing);
        releasing.retain(|index| match self.connections.get_mut(*index as usize) {
            Some(Some(connection)) => connection.send_releases(&mut self.sh, at_once),
            _ => false,
        });
        releasing.append(&mut self.sh.releasing);
        self.sh.releasing = releasing;
    }

    /// `lists`: sources of the request's data, and room for the reply's.
    pub fn submit(
        &mut self,
        conn: ConnId,
        tag: u32,
        header: &[u8],
        (data, reply_into): (SgList, SgList),
        submit: Submit,
    ) -> Result<(), SubmitError> {
        let (connection, sh) = self.find(conn).ok_or(SubmitError::NotConnected)?;
        connection.submit(sh, tag, header, data, reply_into, submit)
    }

    #[inline(always)]
    pub fn can_submit(&self, conn: ConnId) -> bool {
        self.peek(conn).is_some_and(|connection| {
            connection.state == State::Open && connection.requester.admit(false).is_ok()
        })
    }

    pub fn request_header_max(&self, conn: ConnId) -> usize {
        let open = self.peek(conn).filter(|connection| connection.state == State::Open);
        open.map_or(0, Connection::request_header_max)
    }

    pub fn private_data_max(&self) -> usize {
        self.sh.attr.private_data_bytes_max.saturating_sub(SETUP_BYTES)
    }

    pub fn data_bytes_max(&self) -> usize {
        self.sh.attr.bulk_bytes_max
    }

    pub fn segments_max(&self) -> usize {
        self.sh.attr.sge_max
    }

    pub fn abandon(&mut self, conn: ConnId, tag: u32) {
        if let Some((connection, _)) = self.find(conn) {
            connection.abandon(tag);
        }
    }

    pub fn fetch(&mut self, id: RequestId, into: SgList) {
        match self.find(id.conn) {
            Some((connection, sh)) => connection.fetch(sh, id.tag, into),
            None => self.sh.events.push_back(Event::Fetched { id, placed: None }),
        }
    }

    /// With a token its end is told.
    #[inline]
    pub fn reply(&mut self, id: RequestId, header: &[u8], data: &mut SgList, token: Option<u64>) {
        let Some((connection, sh)) = self.find(id.conn) else {
            data.clear();
            return self.sh.unsent(token);
        };
        connection.reply(sh, id.tag, header, (data, token));
        sh.deliver_waiting();
    }

    /// As [`reply`](Self::reply), which is for what does not go plainly. True: it may be lent.
    #[inline]
    pub fn reply_small<const N: usize>(
        &mut self,
        id: RequestId,
        header: &[u8; N],
        data: &mut SgList,
        token: u64,
    ) -> bool {
        if let Some((connection, sh)) = self.find(id.conn)
            && connection.reply_plainly(sh, id.tag, header, (data, token))
        {
            sh.deliver_waiting();
            return false;
        }
        self.reply(id, header, data, Some(token));
        true
    }

    /// Replies if that leaves at once; what is not asked for where no reply does.
    #[inline(always)]
    pub fn reply_at_once<'a, const N: usize>(
        &mut self,
        id: RequestId,
        header: &[u8; N],
        data: impl FnOnce() -> Piece<'a>,
    ) -> bool {
        let Some((connection, sh)) = self.find(id.conn) else { return false };
        if !connection.agreed.writes_at_once {
            return false;
        }
        let is_done = connection.reply_at_once(sh, id.tag, header, &[data()]);
        if is_done {
            sh.deliver_waiting();
        }
        is_done
    }

    pub fn fetched_bytes(&self, id: RequestId) -> u64 {
        self.peek(id.conn).map_or(0, |connection| connection.fetched_bytes(&self.sh, id.tag))
    }

    pub fn replied_bytes(&self, conn: ConnId, token: u64) -> u64 {
        self.peek(conn).map_or(0, |connection| connection.replied_bytes(&self.sh, token))
    }

    pub fn poll(&mut self) -> usize {
        if self.shorts == Shorts::Drained {
            self.shorts = Shorts::Perhaps;
        }
        let is_behind = self.is_behind();
        if is_behind {
            self.catch_up();
        }
        let count = self.sh.engine.poll(&mut self.completions, COMPLETIONS_MAX);
        let event = self.sh.engine.poll_event();
        if count > 0 || event.is_some() || is_behind {
            self.handle_polled(count, event);
        }
        self.sh.pool.refill(&mut *self.sh.engine);
        if !self.has_event() {
            self.ring();
        }
        self.sh.events.len() + self.sh.sent.len() + usize::from(self.shorts == Shorts::Taken)
    }

    /// Something is to be done that could not be done when it was begun, or was not looked at.
    #[inline]
    fn is_behind(&self) -> bool {
        let sh = &self.sh;
        let left = sh.releasing.len() | sh.faults.len() | sh.blocked.len();
        let waits = sh.starved.len() | sh.waiting.len();
        left | waits > 0 || self.shorts == Shorts::Taken || sh.returned.any()
    }

    /// What comes before all that comes now.
    #[inline(never)]
    fn catch_up(&mut self) {
        if self.sh.returned.any() {
            self.take_returned();
        }
        if self.shorts == Shorts::Taken {
            self.tell_short();
        }
        if !self.sh.releasing.is_empty() {
            self.send_releases(false);
        }
        self.end_faulty();
        self.flush_blocked();
    }

    /// Does what the engine has told of, polls again as long as there may be more, and goes on with what could not be
    /// done before.
    #[inline(never)]
    fn handle_polled(&mut self, mut count: usize, mut event: Option<QueuePairEvent>) {
        for round in 1..=ROUNDS_MAX {
            let more = self.take_events(event.take()) || count == COMPLETIONS_MAX;
            if count > 0 {
                self.handle_completions();
            }
            if !self.late_events.is_empty() {
                self.handle_late_events();
            }
            self.end_faulty();
            if !more || round == ROUNDS_MAX {
                break;
            }
            count = self.sh.engine.poll(&mut self.completions, COMPLETIONS_MAX);
        }
        self.try_starved();
        self.flush_blocked();
        self.sh.deliver_waiting();
    }

    /// Goes on with what waited for memory that stands in, if some came back.
    #[inline]
    fn try_starved(&mut self) {
        if !self.sh.starved.is_empty() {
            self.try_some_starved();
        }
    }

    #[cold]
    fn try_some_starved(&mut self) {
        if !self.sh.bounces[Role::Responder as usize].came_back() {
            return;
        }
        for (index, tag) in std::mem::take(&mut self.sh.starved) {
            if let Some(Some(connection)) = self.connections.get_mut(index as usize) {
                connection.try_starved(&mut self.sh, tag);
            }
        }
    }

    pub fn rounds(&self) -> u64 {
        self.sh.engine.rounds()
    }

    pub fn peers_are_here(&mut self) -> Option<bool> {
        self.sh.engine.peers_are_here()
    }

    #[inline]
    pub fn next_event(&mut self) -> Option<Event> {
        if let Some(token) = self.next_sent() {
            return Some(Event::ReplySent { token });
        }
        if self.shorts > Shorts::Drained
            && self.sh.events.is_empty()
            && let Some(event) = self.next_short_as_event()
        {
            return Some(event);
        }
        self.sh.events.pop_front()
    }

    #[inline]
    pub fn next_sent(&mut self) -> Option<u64> {
        self.sh.sent.pop_front()
    }

    #[inline]
    pub fn has_told(&self) -> bool {
        !self.sh.events.is_empty() || !self.sh.sent.is_empty()
    }

    /// Looks for what has come, in place of the last short header.
    #[inline]
    pub fn has_event(&mut self) -> bool {
        self.has_told() || self.take_short()
    }

    #[inline]
    pub fn recycle(&mut self, header: Vec<u8>) {
        self.sh.recycle(header);
    }

    pub fn arm(&mut self) -> bool {
        if self.has_event() || !self.sh.faults.is_empty() {
            return false;
        }
        if self.sh.returned.any() {
            self.take_returned();
        }
        if !self.sh.releasing.is_empty() {
            self.send_releases(true);
        }
        self.ring();
        self.sh.engine.arm()
    }

    /// Its network is memory of this host.
    pub fn is_near(&self) -> bool {
        self.sh.engine.attr().shared_memory
    }

    pub fn waiter(&self) -> Arc<dyn Waiter> {
        self.sh.engine.waiter()
    }

    #[inline]
    pub fn ring(&mut self) {
        if std::mem::take(&mut self.sh.posted) {
            self.sh.engine.ring();
        }
    }

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
            system_calls: self.system_calls(),
        }
    }

    pub fn system_calls(&self) -> u64 {
        self.sh.engine.system_calls()
    }

    pub fn let_go(&mut self, memory: &Span) {
        self.sh.registrations.let_go(memory);
    }

    pub fn conn_stats(&self, conn: ConnId) -> Option<Counters> {
        self.peek(conn).map(|connection| connection.counters)
    }
}
