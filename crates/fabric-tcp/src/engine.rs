//! The engine: posting, polling, sleeping, and the life of queue pairs.

mod passes;
mod ready;
mod slots;

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;

use dafs_fabric::{
    Address, ConnectError, DeviceAttr, Engine, Incoming, NAME_BYTES_MAX, NAMED_READ_BYTES_MAX,
    NamedAnswer, NamedAsk, Opcode, OpenError, PeerInfo, PostError, PostedReceive, QueuePair,
    QueuePairEvent, RemoteSpan, SgList, Span, Tag, Waiter, WorkCompletion, WrId, sg_bytes,
};

use crate::connection::{Accepted, Handshake, reject};
use crate::core::Core;
use crate::frame::{BULK_BYTES_MAX, FRAME_PAYLOAD_BYTES_MAX, HEADER_BYTES_MAX, Kind, hello};
use crate::owner;
use crate::queue_pair::Connection;
use crate::requests::{Posted, SEND_QUEUE_DEPTH};
use crate::shared::{RECEIVE_QUEUE_DEPTH, SGE_MAX, Shared};
use dafs_fabric::epoll::EpollWaiter;
use passes::Passes;
use ready::Ready;
pub(crate) use slots::slot_of;
pub use slots::{Link, Slots};

/// Doorbells and polls that hold work back while there is more to receive at once.
const HELD_MAX: u32 = 16;

/// What epoll is to watch.
#[derive(Default)]
pub struct Watching {
    /// Slots in which interest in the socket changed, each once.
    pub stale: Vec<u32>,
    /// Some socket is not readable by its first byte.
    pub low_water_raised: bool,
    /// A socket cannot be watched, and that was told.
    unwatched_told: bool,
}

impl Watching {
    /// A socket cannot be watched: said once, until all can.
    pub fn fails(&mut self, error: &std::io::Error) {
        if !std::mem::replace(&mut self.unwatched_told, true) {
            tracing::warn!(%error, "a socket cannot be watched: no sleep until it can");
        }
    }

    /// All that epoll was to watch it does.
    pub fn succeeds(&mut self) {
        self.unwatched_told = false;
    }
}

/// The engine of `tcp`.
pub struct TcpEngine {
    shared: Arc<Shared>,
    pub(crate) core: Core,
    pub(crate) waiter: Arc<EpollWaiter>,
    pub(crate) slots: Slots,
    /// Slots with something to send, each once.
    pub(crate) to_flush: Vec<u32>,
    /// Slots that paused, each once.
    pub(crate) paused: Vec<u32>,
    pub(crate) passes: Passes,
    pub(crate) watching: Watching,
    pub(crate) ready: Ready,
    /// Doorbells and polls that held work back since the last flush.
    pub(crate) held: u32,
}

impl TcpEngine {
    /// Without queue pairs.
    pub fn new(shared: Arc<Shared>) -> Result<TcpEngine, OpenError> {
        Ok(TcpEngine {
            core: Core::new(&shared),
            shared,
            waiter: EpollWaiter::new()?,
            slots: Slots::default(),
            to_flush: Vec::new(),
            paused: Vec::new(),
            passes: Passes::default(),
            watching: Watching::default(),
            ready: Ready::new(),
            held: 0,
        })
    }

    /// Takes a connected, non-blocking stream socket as a queue pair.
    pub fn adopt(&mut self, socket: OwnedFd) -> Result<QueuePair, ConnectError> {
        self.adopt_as(socket, false)
    }

    /// As [`adopt`](Self::adopt), for the side that connected or for the other.
    pub fn adopt_as(
        &mut self,
        socket: OwnedFd,
        connected: bool,
    ) -> Result<QueuePair, ConnectError> {
        let queue_pair = self.slots.take()?;
        let connection = Connection::new(queue_pair, socket, connected);
        self.slots[slot_of(queue_pair)] = Link::Up(Box::new(connection));
        self.note(slot_of(queue_pair));
        Ok(queue_pair)
    }

    /// What a queue pair paused for is there.
    fn can_resume(&self) -> bool {
        let resumable = |slot: &u32| match &self.slots[*slot] {
            Link::Up(connection) => connection.can_resume(&self.core),
            _ => false,
        };
        self.paused.iter().any(resumable)
    }

    /// True when the next poll has work in any case: what is posted may leave after that, with
    /// what is posted then. Each system call spared is a wake-up of the peer spared, too.
    fn may_hold(&self) -> bool {
        self.held < HELD_MAX && !self.to_flush.is_empty() && self.can_resume()
    }

    /// The slot's queue pair is gone for good.
    pub(crate) fn free_slot(&mut self, slot: u32) -> Link {
        let link = self.slots.release(slot);
        for list in [&mut self.to_flush, &mut self.watching.stale, &mut self.paused] {
            list.retain(|listed| *listed != slot);
        }
        link
    }

    /// A handshake begins.
    fn handshake_begins(&mut self) {
        self.slots.handshakes += 1;
        self.waiter.set_handshakes(true);
    }

    /// A handshake is over.
    pub(crate) fn handshake_ends(&mut self) {
        self.slots.handshakes -= 1;
        self.waiter.set_handshakes(self.slots.handshakes > 0);
    }

    /// Ends a queue pair that is up.
    pub(crate) fn end(&mut self, slot: u32, reason: String) {
        let queue_pair = self.slots.queue_pair(slot);
        if let Link::Up(connection) = self.free_slot(slot) {
            connection.end(&mut self.core);
        } else {
            self.handshake_ends();
        }
        self.core.event(QueuePairEvent::Disconnected { queue_pair, reason });
        self.core.event(QueuePairEvent::Quiescent { queue_pair });
    }

    #[inline(always)]
    fn post(
        &mut self,
        queue_pair: QueuePair,
        header: &[u8],
        data: &mut SgList,
        posted: Posted,
    ) -> Result<(), PostError> {
        let connection = self.slots.connection(queue_pair)?;
        let taken = connection.requests.len() + connection.tags.named();
        if taken >= SEND_QUEUE_DEPTH {
            return Err(PostError::QueueFull);
        }
        let sequence = self.core.next_sequence();
        let (slot, request) = connection.requests.post(posted, sequence, header, data);
        connection.send.push(slot, request);
        let go = !connection.send.is_blocked();
        list(connection, slot_of(queue_pair), go, &mut self.to_flush);
        Ok(())
    }
}

/// Puts a queue pair on the list of those to flush.
#[inline]
pub fn list(connection: &mut Connection, slot: u32, wanted: bool, to_flush: &mut Vec<u32>) {
    if wanted && !connection.send.listed {
        connection.send.listed = true;
        to_flush.push(slot);
    }
}

/// Checks sizes; returns the bytes of `data`.
#[inline(always)]
fn check_size(header: &[u8], data: &[Span], bytes_max: usize) -> Result<u32, PostError> {
    let bytes = sg_bytes(data);
    if header.len() > HEADER_BYTES_MAX || data.len() > SGE_MAX || bytes > bytes_max {
        return Err(PostError::TooLarge);
    }
    Ok(bytes as u32)
}

impl Engine for TcpEngine {
    fn attr(&self) -> &DeviceAttr {
        &self.shared.attr
    }

    fn connect(
        &mut self,
        address: &Address,
        private_data: &[u8],
    ) -> Result<QueuePair, ConnectError> {
        let handshake = Handshake::start(address, private_data)?;
        let queue_pair = self.slots.take()?;
        self.slots[slot_of(queue_pair)] = Link::Connecting(Box::new(handshake));
        self.handshake_begins();
        self.step(slot_of(queue_pair));
        Ok(queue_pair)
    }

    fn accept(
        &mut self,
        incoming: Incoming,
        private_data: &[u8],
    ) -> Result<QueuePair, ConnectError> {
        crate::connection::check_private_data(private_data)?;
        let Some(accepted) = incoming.into_inner::<Accepted>() else {
            return Err(ConnectError::PeerProtocol("a request of another provider"));
        };
        let queue_pair = self.adopt(accepted.socket)?;
        let slot = slot_of(queue_pair);
        if let Link::Up(connection) = &mut self.slots[slot] {
            connection.send.push_first(&hello(Kind::HelloAck, private_data));
            list(connection, slot, true, &mut self.to_flush);
        }
        self.flush_all();
        Ok(queue_pair)
    }

    fn reject(&mut self, incoming: Incoming, reason: &str) {
        if let Some(accepted) = incoming.into_inner::<Accepted>() {
            self.core.system_calls += 1;
            reject(&accepted, reason);
        }
    }

    fn disconnect(&mut self, queue_pair: QueuePair) {
        let slot = slot_of(queue_pair);
        if !self.slots.is_current(queue_pair) {
            return;
        }
        match &mut self.slots[slot] {
            Link::Free => return,
            Link::Connecting(_) => {}
            // What can leave at once may.
            Link::Up(connection) => {
                connection.flush(&mut self.core);
            }
        }
        self.end(slot, "disconnected locally".into());
    }

    fn peer(&self, queue_pair: QueuePair) -> Option<PeerInfo> {
        match self.slots.current(queue_pair) {
            Some(Link::Up(connection)) => owner::peer_info(connection.socket.as_fd()).ok(),
            _ => None,
        }
    }

    fn moved(&self, queue_pair: QueuePair, wr_id: WrId) -> u64 {
        match self.slots.current(queue_pair) {
            Some(Link::Up(connection)) => connection.moved(wr_id),
            _ => 0,
        }
    }

    fn post_recv(&mut self, wr_id: WrId, buffers: SgList) -> Result<(), PostError> {
        if buffers.len() > SGE_MAX {
            return Err(PostError::TooLarge);
        }
        if self.core.receives.len() >= RECEIVE_QUEUE_DEPTH {
            return Err(PostError::QueueFull);
        }
        self.core.receives.push_back(PostedReceive { wr_id, buffers });
        Ok(())
    }

    fn post_recv_again(&mut self, wr_id: WrId) -> bool {
        self.core.receives.len() < RECEIVE_QUEUE_DEPTH && self.core.receives.again(wr_id)
    }

    fn post_send(
        &mut self,
        queue_pair: QueuePair,
        wr_id: WrId,
        header: &[u8],
        data: &mut SgList,
        signaled: bool,
    ) -> Result<(), PostError> {
        let bytes_max = FRAME_PAYLOAD_BYTES_MAX.saturating_sub(header.len());
        let total = check_size(header, data, bytes_max)?;
        let posted = Posted { wr_id, opcode: Opcode::Send, signaled, key: 0, addr: 0, total };
        self.post(queue_pair, header, data, posted)
    }

    fn post_rdma_write(
        &mut self,
        queue_pair: QueuePair,
        wr_id: WrId,
        data: &mut SgList,
        remote: RemoteSpan,
        signaled: bool,
    ) -> Result<(), PostError> {
        let total = check_size(&[], data, BULK_BYTES_MAX.min(remote.len as usize))?;
        let (key, addr) = (remote.rkey.0, remote.addr);
        let posted = Posted { wr_id, opcode: Opcode::RdmaWrite, signaled, key, addr, total };
        self.post(queue_pair, &[], data, posted)
    }

    fn post_rdma_read(
        &mut self,
        queue_pair: QueuePair,
        wr_id: WrId,
        into: &mut SgList,
        remote: RemoteSpan,
        _fence: bool,
    ) -> Result<(), PostError> {
        // A stream keeps reads in order without.
        if !self.core.rdma_read {
            return Err(PostError::Unsupported);
        }
        check_size(&[], into, usize::MAX)?;
        if remote.len as usize > BULK_BYTES_MAX.min(sg_bytes(into)) {
            return Err(PostError::TooLarge);
        }
        let (key, addr, total) = (remote.rkey.0, remote.addr, remote.len);
        let posted = Posted { wr_id, opcode: Opcode::RdmaRead, signaled: true, key, addr, total };
        self.post(queue_pair, &[], into, posted)
    }

    fn post_named_read(
        &mut self,
        queue_pair: QueuePair,
        wr_id: WrId,
        into: &mut SgList,
        name: &[u8],
        offset: u64,
    ) -> Result<(), PostError> {
        if name.len() > NAME_BYTES_MAX {
            return Err(PostError::TooLarge);
        }
        let len = check_size(name, into, NAMED_READ_BYTES_MAX)?;
        self.ask_named(queue_pair, wr_id, into, (name, offset, len))
    }

    fn serve_named(&mut self) -> bool {
        self.core.asked.get_or_insert_default();
        true
    }

    fn next_named(&mut self) -> Option<NamedAsk> {
        self.core.asked.as_mut()?.next()
    }

    fn take_named(&mut self, asks: &mut Vec<NamedAsk>) {
        asks.clear();
        if let Some(asked) = &mut self.core.asked {
            asked.take(asks);
        }
    }

    fn answer_named(
        &mut self,
        queue_pair: QueuePair,
        wr_id: WrId,
        id: u32,
        data: Option<(&mut SgList, bool)>,
    ) -> Result<(), PostError> {
        let Some((data, signaled)) = data else {
            return self.post_refusal(queue_pair, wr_id, id);
        };
        let mut answers = vec![NamedAnswer { id, data: std::mem::take(data) }];
        let ended = self.post_answers(queue_pair, (wr_id, wr_id), &mut answers, signaled);
        // What is not posted is the caller's.
        answers.drain(..).for_each(|answer| *data = answer.data);
        ended
    }

    fn answer_all_named(
        &mut self,
        queue_pair: QueuePair,
        numbers: (WrId, WrId),
        answers: &mut Vec<NamedAnswer>,
        signaled: bool,
    ) -> Result<(), PostError> {
        self.post_answers(queue_pair, numbers, answers, signaled)
    }

    fn post_tagged_send(
        &mut self,
        queue_pair: QueuePair,
        wr_id: WrId,
        tag: Tag,
        header: &[u8],
        data: &mut SgList,
        signaled: bool,
    ) -> Result<(), PostError> {
        let total = check_size(header, data, BULK_BYTES_MAX)?;
        let (key, opcode) = (tag.0, Opcode::TaggedSend);
        let posted = Posted { wr_id, opcode, signaled, key, addr: 0, total };
        self.post(queue_pair, header, data, posted)
    }

    fn post_tagged_recv(
        &mut self,
        queue_pair: QueuePair,
        wr_id: WrId,
        tag: Tag,
        header: Option<Span>,
        data: &mut SgList,
    ) -> Result<(), PostError> {
        if data.len() > SGE_MAX {
            return Err(PostError::TooLarge);
        }
        let connection = self.slots.connection(queue_pair)?;
        connection.tags.post(tag, wr_id, self.core.next_sequence(), header, data)
    }

    fn cancel_tagged_recv(&mut self, queue_pair: QueuePair, tag: Tag) {
        if let Ok(connection) = self.slots.connection(queue_pair) {
            connection.cancel(tag, &mut self.core);
        }
    }

    fn ring(&mut self) {
        self.core.turns.begin_to_send();
        if self.may_hold() {
            self.held += 1;
        } else {
            self.flush_all();
        }
    }

    fn poll(&mut self, completions: &mut Vec<WorkCompletion>, max: usize) -> usize {
        self.core.turns.begin_to_send();
        let hold = self.may_hold();
        if hold {
            self.held += 1;
        } else {
            self.flush_all();
        }
        if self.core.queue.len() < max {
            self.core.receives.forget_filled();
            self.progress_all();
            if !hold || self.core.queue.is_empty() {
                self.flush_all();
            }
        }
        self.core.queue.poll(completions, max)
    }

    fn peers_are_here(&mut self) -> Option<bool> {
        // Nobody says where he runs.
        (!self.slots.live().is_empty()).then_some(false)
    }

    fn rounds(&self) -> u64 {
        self.passes.rounds()
    }

    fn poll_event(&mut self) -> Option<QueuePairEvent> {
        self.core.queue.next_event()
    }

    fn arm(&mut self) -> bool {
        if self.passes.left_some() || !self.core.queue.is_drained() || !self.to_flush.is_empty() {
            return false;
        }
        let is_asked = self.core.asked.as_ref().is_some_and(|asked| !asked.is_empty());
        if is_asked || self.can_resume() {
            return false;
        }
        // After a sleep anybody may have sent.
        self.passes.look_at_all_next();
        if !self.sync_interest() {
            return false;
        }
        self.sync_low_water();
        true
    }

    fn waiter(&self) -> Arc<dyn Waiter> {
        self.waiter.clone()
    }

    fn system_calls(&self) -> u64 {
        self.core.system_calls + self.waiter.system_calls()
    }
}

impl Drop for TcpEngine {
    fn drop(&mut self) {
        // Last words may leave.
        for slot in std::mem::take(&mut self.to_flush) {
            if let Link::Up(connection) = &mut self.slots[slot] {
                connection.flush(&mut self.core);
            }
        }
        for slot in self.slots.live() {
            if let Link::Up(connection) = &self.slots[*slot] {
                tracing::trace!(fd = connection.socket.as_raw_fd(), "queue pair dropped");
            }
        }
    }
}
