//! The node: a port for each network, one progress function.

use std::path::Path;
use std::sync::Arc;

use dafs_fabric::{
    Address, ConnectError, DeviceAttr, Domain, Incoming, MemoryRegion, PeerInfo, Piece, RemoteSpan,
    Rkey, SgList, Span, Waiter, Words, join_waiters,
};

use crate::config::{ConnOptions, NodeConfig, NodeError, SubmitError};
use crate::event::{ConnId, Event, RequestId, Short};
use crate::header::Setup;
use crate::loan::Loan;
use crate::port::Port;
use crate::references::ReferenceQuota;
use crate::requests::Submit;
use crate::service::AtOnce;
use crate::stats::{Counters, NodeStats};

/// The caller's private data of a connection request made by a [`Node`]; `None` when the peer is
/// no such node.
pub fn incoming_private_data(incoming: &Incoming) -> Option<&[u8]> {
    Setup::decode(&incoming.private_data).map(|(_, rest)| rest)
}

/// An engine of each device of a domain, with their connections and the requests on them.
pub struct Node {
    domain: Arc<Domain>,
    /// As the devices of the domain.
    ports: Vec<Port>,
    waiter: Arc<dyn Waiter>,
    /// Whose events come next.
    turn: usize,
    rounds: Rounds,
}

/// Rounds of all ports, where there are several: those of one say nothing of the others.
#[derive(Default)]
struct Rounds {
    number: u64,
    /// Of each port when this number was reached.
    at: Vec<u64>,
}

impl Rounds {
    /// Each port that has made two rounds has looked at what had come before them.
    fn look(&mut self, ports: &[Port]) {
        self.at.resize(ports.len(), 0);
        if self.at.iter().zip(ports).all(|(at, port)| port.rounds() >= at + 2) {
            self.at.iter_mut().zip(ports).for_each(|(at, port)| *at = port.rounds());
            self.number += 1;
        }
    }
}

impl Node {
    /// A node over engines of its own. What it posts of memory that `domain` knows costs nothing
    /// where a device must know it; other memory is registered when it is first used, as a whole
    /// (arena or buffer), and lent memory is copied. The limits of `config` are those of each network.
    ///
    /// # Errors
    /// [`NodeError`].
    pub fn new(domain: Arc<Domain>, config: NodeConfig) -> Result<Node, NodeError> {
        if domain.parts().len() > usize::from(u8::MAX) {
            return Err(NodeError::Config("domain: more than 255 devices"));
        }
        let port = |(number, part)| Port::new(number, Arc::clone(part), config.clone());
        let ports = (0..=u8::MAX).zip(domain.parts()).map(port).collect::<Result<Vec<_>, _>>()?;
        // What comes by the nearest network wakes with the fewest calls.
        let (near, far): (Vec<_>, Vec<_>) = ports.iter().partition(|port| port.is_near());
        let waiter = join_waiters(near.into_iter().chain(far).map(Port::waiter).collect());
        Ok(Node { domain, ports, waiter, turn: 0, rounds: Rounds::default() })
    }

    #[inline]
    pub(crate) fn port(&mut self, conn: ConnId) -> Option<&mut Port> {
        self.ports.get_mut(conn.port())
    }

    #[inline]
    pub(crate) fn ports_mut(&mut self) -> &mut [Port] {
        &mut self.ports
    }

    /// What the device of a connection can do.
    pub(crate) fn attr_of(&self, conn: ConnId) -> Option<&DeviceAttr> {
        self.domain.parts().get(conn.port()).map(|part| part.attr())
    }

    #[inline]
    fn peek(&self, conn: ConnId) -> Option<&Port> {
        self.ports.get(conn.port())
    }

    /// Begins to connect, by the network that takes the address. [`Event::Connected`] or
    /// [`Event::Refused`] follows. `private_data` is at most
    /// [`private_data_max`](Self::private_data_max) bytes.
    ///
    /// # Errors
    /// What can be known at once.
    pub fn connect(
        &mut self,
        address: &Address,
        private_data: &[u8],
        options: ConnOptions,
    ) -> Result<ConnId, ConnectError> {
        let device =
            self.domain.reaches(address).ok_or_else(|| self.domain.unknown_scheme(address))?;
        self.ports[device].connect(address, private_data, options)
    }

    /// Takes a connection request (of any listener of the same [domain](Domain::listen)); the
    /// connection stands at once, without an event. The caller's part of `incoming.private_data` is told
    /// by [`incoming_private_data`].
    ///
    /// # Errors
    /// [`ConnectError`]. The peer is told.
    pub fn accept(
        &mut self,
        incoming: Incoming,
        private_data: &[u8],
        options: ConnOptions,
    ) -> Result<ConnId, ConnectError> {
        let port = self.ports.get_mut(incoming.device);
        port.ok_or(ConnectError::Resource("networks"))?.accept(incoming, private_data, options)
    }

    /// Tells a peer why it is not wanted.
    pub fn reject(&mut self, incoming: Incoming, reason: &str) {
        if let Some(port) = self.ports.get_mut(incoming.device) {
            port.reject(incoming, reason);
        }
    }

    /// Who is at the other end of a connection that stands, as far as the system knows. Not for hot
    /// paths.
    pub fn peer(&self, conn: ConnId) -> Option<PeerInfo> {
        self.peek(conn)?.peer(conn)
    }

    /// The name of the network by which a connection goes, for people; of a socket of this host, where the
    /// network has those beside others.
    pub fn transport(&self, conn: ConnId) -> Option<&'static str> {
        let attr = self.attr_of(conn)?;
        let is_local = || self.peer(conn).is_some_and(|peer| peer.credentials.is_some());
        let local = attr.schemes.iter().find(|name| **name == Address::LOCAL_SCHEME);
        local.filter(|_| is_local()).or(Some(&attr.provider)).copied()
    }

    /// Where the server that has told `token` may be found by networks of this host alone, in the order in
    /// which they are preferred ([`Device::same_host`](dafs_fabric::Device::same_host)).
    pub fn same_host(&self, token: [u8; 16]) -> Vec<Address> {
        self.domain.parts().iter().filter_map(|part| part.device().same_host(token)).collect()
    }

    /// Networks that this machine has not, and why.
    pub fn missing(&self) -> &[(&'static str, String)] {
        self.domain.missing()
    }

    /// The same for one that listens in `directory`
    /// ([`Device::local_address`](dafs_fabric::Device::local_address)).
    pub fn local_addresses(&self, directory: &Path) -> Vec<Address> {
        let parts = self.domain.parts().iter();
        parts.filter_map(|part| part.device().local_address(directory)).collect()
    }

    /// The network of a connection reaches memory that is shared with the peer as it is; other memory
    /// is copied.
    pub fn shares_memory(&self, conn: ConnId) -> bool {
        self.attr_of(conn).is_some_and(|attr| attr.shared_memory)
    }

    /// From now on, replies on this connection may refer to data in memory that peers
    /// [may read](dafs_fabric::Domain::let_peers_read) (of which it is told now, if it was not yet:
    /// [`admit`](dafs_fabric::Engine::admit)), where the peer asks for it and `quota` has room: it
    /// copies the data by itself. [`Event::ReplySent`] comes when it has let it go, or at
    /// [`Event::Quiescent`]; of what it asked to be [lent](Self::submit_to_lend) also later, when it reads it no
    /// more.
    pub fn refer(&mut self, conn: ConnId, quota: Arc<ReferenceQuota>) {
        if let Some(port) = self.port(conn) {
            port.refer(conn, quota);
        }
    }

    /// By what the peer of a connection reads this memory by itself: one of which it was told that it
    /// [may](dafs_fabric::Domain::let_peers_read); what is for all is told by [`refer`](Self::refer), where
    /// the peer is somebody else. Of 4 GiB or more, their first part.
    pub fn readable_by(&self, conn: ConnId, memory: &Span) -> Option<RemoteSpan> {
        self.peek(conn)?.readable_by(conn, memory)
    }

    /// Ends a connection: [`Event::Disconnected`], then [`Event::Quiescent`] follow. What was
    /// posted and has not left may be lost.
    pub fn disconnect(&mut self, conn: ConnId, reason: &str) {
        if let Some(port) = self.port(conn) {
            port.disconnect(conn, reason);
        }
    }

    /// Sends a request. `tag` is the caller's, unique among the requests under way on this
    /// connection. `data` are the sources of the request's data, `reply_into` is where the
    /// reply's data goes. The spans are held until [`Event::Reply`], [`Event::Abandoned`] or
    /// [`Event::Quiescent`].
    ///
    /// # Errors
    /// [`SubmitError`]; nothing was done and no span is held.
    #[inline]
    pub fn submit(
        &mut self,
        conn: ConnId,
        tag: u32,
        header: &[u8],
        data: SgList,
        reply_into: SgList,
    ) -> Result<(), SubmitError> {
        let port = self.port(conn).ok_or(SubmitError::NotConnected)?;
        port.submit(conn, tag, header, (data, reply_into), Submit::Plain)
    }

    /// As [`submit`](Self::submit), of a request without data, and with a header of a length that is known
    /// beforehand; the reply's data goes to the first bytes of a span, as many as are told.
    ///
    /// # Errors
    /// As `submit`.
    #[inline]
    pub fn submit_empty<const N: usize>(
        &mut self,
        conn: ConnId,
        tag: u32,
        header: &[u8; N],
        reply_into: (&Span, usize),
    ) -> Result<(), SubmitError> {
        let port = self.port(conn).ok_or(SubmitError::NotConnected)?;
        let (connection, sh) = port.find(conn).ok_or(SubmitError::NotConnected)?;
        connection.submit_empty(sh, tag, header, reply_into)
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
        let port = self.port(conn).ok_or(SubmitError::NotConnected)?;
        port.submit(conn, tag, header, (data, reply_into), Submit::Control)
    }

    /// As [`submit`](Self::submit); the peer may lend the data of its reply, where it has it in memory that this
    /// process may read. Then [`take_loan`](Self::take_loan) has it at [`Event::Reply`], and nothing is put into
    /// `reply_into`.
    ///
    /// # Errors
    /// As `submit`.
    pub fn submit_to_lend(
        &mut self,
        conn: ConnId,
        tag: u32,
        header: &[u8],
        reply_into: SgList,
    ) -> Result<(), SubmitError> {
        let port = self.port(conn).ok_or(SubmitError::NotConnected)?;
        port.submit_to_lend(conn, tag, header, reply_into)
    }

    /// What the reply to a request has lent: once, after its [`Event::Reply`]. `None`: the data is where it was to
    /// go.
    pub fn take_loan(&mut self, conn: ConnId, tag: u32) -> Option<Box<Loan>> {
        self.port(conn)?.take_loan(conn, tag)
    }

    /// All of a region of the peer that this process may read, as [`Engine::map`](dafs_fabric::Engine::map).
    pub fn map(&mut self, conn: ConnId, rkey: Rkey) -> Option<Span> {
        self.port(conn)?.map(conn, rkey)
    }

    /// As [`map`](Self::map), of words that both ends may change.
    pub fn words(&mut self, conn: ConnId, rkey: Rkey) -> Option<Words> {
        self.port(conn)?.words(conn, rkey)
    }

    /// Lets the peer of a connection read and write this memory, as long as the region lives: it is to be told of by
    /// its key. `None`: the device does not take it.
    pub fn share(&self, conn: ConnId, memory: &Span) -> Option<MemoryRegion> {
        self.peek(conn)?.share(memory)
    }

    /// Whether what a reply with this token, whose [`Event::ReplySent`] is to come, refers to is lent: it may stay
    /// as long as the peer likes.
    pub fn is_lent(&self, conn: ConnId, token: u64) -> bool {
        self.peek(conn).is_some_and(|port| port.is_lent(conn, token))
    }

    /// Whether something is lent, also to peers whose connections have ended.
    pub fn has_lent(&self) -> bool {
        self.ports.iter().any(Port::has_lent)
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
        let port = self.port(conn).ok_or(SubmitError::NotConnected)?;
        port.submit(conn, tag, header, (data, reply_into), Submit::OnGrant)
    }

    /// Whether `submit` would find a credit and a free place now.
    #[inline(always)]
    pub fn can_submit(&self, conn: ConnId) -> bool {
        self.peek(conn).is_some_and(|port| port.can_submit(conn))
    }

    /// The longest request header that this connection takes (0 when it does not stand).
    pub fn request_header_max(&self, conn: ConnId) -> usize {
        self.peek(conn).map_or(0, |port| port.request_header_max(conn))
    }

    /// The most private data that [`connect`](Self::connect) and [`accept`](Self::accept) take, over any
    /// network.
    pub fn private_data_max(&self) -> usize {
        self.least(Port::private_data_max)
    }

    /// The most bytes of data that a request or a reply carries, over any network.
    pub fn data_bytes_max(&self) -> usize {
        self.least(Port::data_bytes_max)
    }

    /// The most segments in one list of data, after neighbours were joined, over any network.
    pub fn segments_max(&self) -> usize {
        self.least(Port::segments_max)
    }

    /// All memory of an owner who wants it back stays registered only for requests that rely on it.
    pub fn let_go(&mut self, memory: &Span) {
        self.ports.iter_mut().for_each(|port| port.let_go(memory));
    }

    fn least(&self, of: impl Fn(&Port) -> usize) -> usize {
        self.ports.iter().map(of).min().unwrap_or(0)
    }

    /// Forgets a request whose caller gave up: its spans stay held until the reply came or the
    /// connection is quiescent, then [`Event::Abandoned`] comes, and no `Reply`.
    pub fn abandon(&mut self, conn: ConnId, tag: u32) {
        if let Some(port) = self.port(conn) {
            port.abandon(conn, tag);
        }
    }

    /// Brings the request's data into `into`, which has room for `data_len` bytes.
    /// [`Event::Fetched`] follows, exactly once. At most once per request.
    ///
    /// Pushed data waits in the path, and all behind it on this connection with it: fetch (or
    /// reply) soon, and never let it depend on another request of the same connection. Where this
    /// cannot be promised, grant no byte credits
    /// ([`push_bytes`](crate::ConnOptions::push_bytes)).
    #[inline]
    pub fn fetch(&mut self, id: RequestId, into: SgList) {
        if let Some(port) = self.port(id.conn) {
            port.fetch(id, into);
        }
    }

    /// Answers. `data` is at most `reply_max` bytes in at most
    /// [`segments_max`](Self::segments_max) segments, `header` at most
    /// [`REPLY_HEADER_BYTES_MAX`](crate::REPLY_HEADER_BYTES_MAX); more ends the connection. If
    /// `data` is not empty, [`Event::ReplySent`] with `token` follows when its spans are free
    /// again, whatever happens. Data of the request that was not fetched is thrown away; while a
    /// fetch is under way the reply waits for it.
    #[inline]
    pub fn reply(&mut self, id: RequestId, header: &[u8], mut data: SgList, token: u64) {
        let token = (!data.is_empty()).then_some(token);
        if let Some(port) = self.port(id.conn) {
            port.reply(id, header, &mut data, token);
        }
    }

    /// As [`reply`](Self::reply), and takes what is in the list; [`Event::ReplySent`] follows without
    /// data, too.
    #[inline]
    pub fn reply_told(&mut self, id: RequestId, header: &[u8], data: &mut SgList, token: u64) {
        if let Some(port) = self.port(id.conn) {
            port.reply(id, header, data, Some(token));
        }
    }

    /// As [`reply_told`](Self::reply_told), with a header of a length that is known beforehand. False: it [is not
    /// lent](Self::is_lent).
    #[inline]
    pub fn reply_small<const N: usize>(
        &mut self,
        id: RequestId,
        header: &[u8; N],
        data: &mut SgList,
        token: u64,
    ) -> bool {
        self.port(id.conn).is_some_and(|port| port.reply_small(id, header, data, token))
    }

    /// As [`reply_small`](Self::reply_small), where the network does that at once: the memory of the data is
    /// the caller's again, and no [`Event::ReplySent`] follows. False: nothing was done.
    #[inline(always)]
    pub fn reply_at_once<'a, const N: usize>(
        &mut self,
        id: RequestId,
        header: &[u8; N],
        data: impl FnOnce() -> Piece<'a>,
    ) -> bool {
        self.port(id.conn).is_some_and(|port| port.reply_at_once(id, header, data))
    }

    /// Bytes that came so far of the data that is [fetched](Self::fetch); 0 also where the transport
    /// does not tell before all is there. Not for hot paths.
    pub fn fetched_bytes(&self, id: RequestId) -> u64 {
        self.peek(id.conn).map_or(0, |port| port.fetched_bytes(id))
    }

    /// Bytes that left so far of the data of a reply whose [`Event::ReplySent`] is to come; 0 also where
    /// the transport does not tell. Not for hot paths.
    pub fn replied_bytes(&self, conn: ConnId, token: u64) -> u64 {
        self.peek(conn).map_or(0, |port| port.replied_bytes(conn, token))
    }

    /// Drains every event source of the engines and makes progress. Returns how many events wait
    /// in [`next_event`](Self::next_event). Never blocks.
    #[inline]
    pub fn poll(&mut self) -> usize {
        if let [port] = &mut self.ports[..] {
            return port.poll();
        }
        let events = self.ports.iter_mut().map(Port::poll).sum();
        self.rounds.look(&self.ports);
        events
    }

    /// How often all connections have been looked at: see [`dafs_fabric::Engine::rounds`].
    pub fn rounds(&self) -> u64 {
        match &self.ports[..] {
            [port] => port.rounds(),
            _ => self.rounds.number,
        }
    }

    /// Whether it is in vain to spin, as all peers need this very processor: see
    /// [`dafs_fabric::Engine::peers_are_here`].
    pub fn peers_are_here(&mut self) -> bool {
        let mut all = self.ports.iter_mut().filter_map(Port::peers_are_here).peekable();
        all.peek().is_some() && all.all(|is_here| is_here)
    }

    /// The next event; in order for each connection, but that [`Event::ReplySent`] comes before others.
    #[inline]
    pub fn next_event(&mut self) -> Option<Event> {
        if let [port] = &mut self.ports[..] {
            return port.next_event();
        }
        for _ in 0..self.ports.len() {
            if let Some(event) = self.ports[self.turn].next_event() {
                return Some(event);
            }
            self.turn = (self.turn + 1) % self.ports.len();
        }
        None
    }

    /// The next event, if it came as a short message and nothing else comes before it: where the network has
    /// those, most requests and replies do, and cost less than by [`next_event`](Self::next_event), which gives them as
    /// well. `None`: it may have something.
    #[inline]
    pub fn next_short(&mut self) -> Option<Short> {
        self.next_short_but(|_, _| false)
    }

    /// As [`next_short`](Self::next_short), without requests that `answer` answers: it is asked first of those that
    /// may be answered where they are, with their header.
    #[inline(always)]
    pub fn next_short_but(
        &mut self,
        mut answer: impl FnMut(AtOnce<'_>, &[u8]) -> bool,
    ) -> Option<Short> {
        let mut others = self.ports.len();
        while let Some(port) = self.ports.get_mut(self.turn) {
            if port.may_have_short()
                && let Some(short) = port.next_short(&mut answer)
            {
                return Some(short);
            }
            others -= 1;
            if others == 0 || port.is_behind_events() {
                break;
            }
            self.turn = (self.turn + 1) % self.ports.len();
        }
        None
    }

    /// The header of what [`next_short`](Self::next_short) gave last, until that, or any other function that gives or
    /// looks for events, is called.
    #[inline]
    pub fn short_header(&self) -> &[u8] {
        self.ports[self.turn].short_header()
    }

    /// The same in memory of its own, which is to be [given back](Self::recycle).
    pub fn keep_short_header(&mut self) -> Vec<u8> {
        self.ports[self.turn].keep_short_header()
    }

    /// The token of the next [`Event::ReplySent`], which is told here or there: for those who have many.
    #[inline]
    pub fn next_sent(&mut self) -> Option<u64> {
        if let [port] = &mut self.ports[..] {
            return port.next_sent();
        }
        self.ports.iter_mut().find_map(Port::next_sent)
    }

    /// Whether there is one more, but for what is [short](Self::next_short).
    #[inline]
    pub fn has_told(&self) -> bool {
        self.ports.iter().any(Port::has_told)
    }

    /// Whether there is one more.
    pub fn has_event(&mut self) -> bool {
        if let [port] = &mut self.ports[..] {
            return port.has_event();
        }
        self.ports.iter_mut().any(Port::has_event)
    }

    /// Gives back the memory of a header, so that the next one needs no allocation.
    #[inline]
    pub fn recycle(&mut self, header: Vec<u8>) {
        // Of the port whose event was the last one, as a rule.
        self.ports[self.turn].recycle(header);
    }

    /// True when it is safe to sleep on the [`waiter`](Self::waiter). False: poll again.
    pub fn arm(&mut self) -> bool {
        self.ports.iter_mut().all(Port::arm)
    }

    /// What to sleep on.
    pub fn waiter(&self) -> Arc<dyn Waiter> {
        self.waiter.clone()
    }

    /// Hands posted work to the network. Call it after a round of `submit`, `fetch`, `reply`.
    #[inline]
    pub fn ring(&mut self) {
        if let [port] = &mut self.ports[..] {
            return port.ring();
        }
        self.ports.iter_mut().for_each(Port::ring);
    }

    /// Counters.
    pub fn stats(&self) -> NodeStats {
        let mut all = NodeStats::default();
        self.ports.iter().for_each(|port| all.add(&port.stats()));
        all
    }

    /// System calls of its engines.
    pub fn system_calls(&self) -> u64 {
        self.ports.iter().map(Port::system_calls).sum()
    }

    /// Counters of a connection.
    pub fn conn_stats(&self, conn: ConnId) -> Option<Counters> {
        self.peek(conn)?.conn_stats(conn)
    }
}
