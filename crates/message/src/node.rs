//! The node: one engine, its connections, one progress function.

use std::collections::VecDeque;
use std::sync::Arc;

use dafs_fabric::{Address, ConnectError, Device, Engine, Incoming, SgList, Waiter};

use crate::config::{ConnOptions, NodeConfig, NodeError, SubmitError};
use crate::event::{ConnId, Event, RequestId};
use crate::header::SETUP_BYTES;
use crate::stats::{Counters, NodeStats};

/// The caller's private data of a connection request made by a [`Node`]; `None` when the peer is
/// no such node.
pub fn incoming_private_data(incoming: &Incoming) -> Option<&[u8]> {
    incoming.private_data.get(SETUP_BYTES..)
}

/// One engine, its connections and the requests on them.
pub struct Node {
    _device: Arc<dyn Device>,
    engine: Box<dyn Engine>,
    _config: NodeConfig,
    events: VecDeque<Event>,
}

#[allow(unused_variables, reason = "the signatures come first")]
impl Node {
    /// A node over `engine`, which is one of `device`.
    ///
    /// # Errors
    /// [`NodeError`].
    pub fn new(
        device: Arc<dyn Device>,
        engine: Box<dyn Engine>,
        config: NodeConfig,
    ) -> Result<Node, NodeError> {
        Ok(Node { _device: device, engine, _config: config, events: VecDeque::new() })
    }

    /// Begins to connect. [`Event::Connected`] or [`Event::Refused`] follows.
    ///
    /// # Errors
    /// What can be known at once.
    pub fn connect(
        &mut self,
        address: &Address,
        private_data: &[u8],
        options: ConnOptions,
    ) -> Result<ConnId, ConnectError> {
        Err(ConnectError::Refused)
    }

    /// Takes a connection request (of any engine of the same provider); the connection stands at
    /// once, without an event.
    ///
    /// # Errors
    /// [`ConnectError`].
    pub fn accept(
        &mut self,
        incoming: Incoming,
        private_data: &[u8],
        options: ConnOptions,
    ) -> Result<ConnId, ConnectError> {
        Err(ConnectError::Refused)
    }

    /// Tells a peer why it is not wanted.
    pub fn reject(&mut self, incoming: Incoming, reason: &str) {
        self.engine.reject(incoming, reason);
    }

    /// Ends a connection: [`Event::Disconnected`], then [`Event::Quiescent`] follow.
    pub fn disconnect(&mut self, conn: ConnId, reason: &str) {}

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
        Err(SubmitError::NotConnected)
    }

    /// As [`submit`](Self::submit), for requests that keep the connection going: may use the
    /// credit that ordinary requests leave alone.
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
        Err(SubmitError::NotConnected)
    }

    /// Whether `submit` would find a credit and a free slot now.
    pub fn can_submit(&self, conn: ConnId) -> bool {
        false
    }

    /// The longest request header that this connection takes (0 when there is none).
    pub fn request_header_max(&self, conn: ConnId) -> usize {
        0
    }

    /// The most bytes of data that a request or a reply carries.
    pub fn data_bytes_max(&self) -> usize {
        self.engine.attr().bulk_bytes_max
    }

    /// The most segments of memory in one list of data.
    pub fn segments_max(&self) -> usize {
        self.engine.attr().sge_max
    }

    /// Forgets a request whose caller gave up: its spans stay held until the reply came or the
    /// connection is quiescent, then [`Event::Abandoned`] comes, and no `Reply`.
    pub fn abandon(&mut self, conn: ConnId, tag: u32) {}

    /// Brings the request's data into `into`, which has room for `data_len` bytes.
    /// [`Event::Fetched`] follows, exactly once. At most once per request.
    pub fn fetch(&mut self, id: RequestId, into: SgList) {}

    /// Answers. `data` is at most `reply_max` bytes, `header` at most
    /// [`REPLY_HEADER_BYTES_MAX`](crate::REPLY_HEADER_BYTES_MAX). If `data` is not empty,
    /// [`Event::ReplySent`] with `token` follows when its spans are free again.
    pub fn reply(&mut self, id: RequestId, header: &[u8], data: SgList, token: u64) {}

    /// Drains every event source of the engine and makes progress. Returns how many events wait
    /// in [`next_event`](Self::next_event).
    pub fn poll(&mut self) -> usize {
        self.events.len()
    }

    /// The next event.
    pub fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Gives back the memory of a header, so that the next one needs no allocation.
    pub fn recycle(&mut self, header: Vec<u8>) {}

    /// True when it is safe to sleep on the [`waiter`](Self::waiter).
    pub fn arm(&mut self) -> bool {
        self.events.is_empty() && self.engine.arm()
    }

    /// What to sleep on.
    pub fn waiter(&self) -> Arc<dyn Waiter> {
        self.engine.waiter()
    }

    /// Hands posted work to the network. Call it after a round of `submit`, `fetch`, `reply`.
    pub fn ring(&mut self) {
        self.engine.ring();
    }

    /// Counters.
    pub fn stats(&self) -> NodeStats {
        NodeStats { system_calls: self.engine.system_calls(), ..NodeStats::default() }
    }

    /// Counters of a connection.
    pub fn conn_stats(&self, conn: ConnId) -> Option<Counters> {
        None
    }
}
