//! The engine: posting, polling, sleeping, and the life of queue pairs.

mod core;

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;

use dafs_fabric::{
    Address, ConnectError, DeviceAttr, Engine, Incoming, Opcode, OpenError, PeerInfo, PostError,
    QueuePair, QueuePairEvent, RemoteSpan, SgList, Span, Tag, Waiter, WorkCompletion, WrId,
    sg_bytes,
};

pub use self::core::Core;
use crate::connection::{Accepted, Handshake, reject};
use crate::device::{RECEIVE_QUEUE_DEPTH, SGE_MAX, Shared};
use crate::frame::{BULK_BYTES_MAX, FRAME_PAYLOAD_BYTES_MAX, HEADER_BYTES_MAX, Kind, hello};
use crate::owner;
use crate::progress::list;
use crate::queue_pair::{Connection, Request, SEND_QUEUE_DEPTH, TaggedReceive};
use crate::receive::PostedReceive;
use crate::scatter_gather::Cursor;
use crate::sys::EpollEvents;
use crate::waiter::EpollWaiter;

/// Queue pairs of an engine.
const QUEUE_PAIRS_MAX: usize = 65536;
/// Doorbells and polls that hold work back while there is more to receive at once.
const HELD_MAX: u32 = 16;

/// What a slot holds.
pub enum Link {
    Free,
    Connecting(Box<Handshake>),
    Up(Box<Connection>),
}

/// A place for a queue pair; its number is the slot and the generation.
pub struct Slot {
    generation: u32,
    pub link: Link,
}

/// The engine of `tcp`.
pub struct TcpEngine {
    shared: Arc<Shared>,
    pub(crate) core: Core,
    pub(crate) waiter: Arc<EpollWaiter>,
    pub(crate) slots: Vec<Slot>,
    free: Vec<u32>,
    /// Slots in use.
    pub(crate) live: Vec<u32>,
    pub(crate) handshakes: usize,
    /// Slots with something to send, each once.
    pub(crate) to_flush: Vec<u32>,
    /// Where the next pass begins.
    pub(crate) turn: usize,
    /// The queue pair that brought something last, and passes since all were looked at.
    pub(crate) warm: u32,
    pub(crate) partial: usize,
    /// Times that all were looked at, and those that this one has looked at.
    pub(crate) rounds: u64,
    pub(crate) looked_at: usize,
    /// The last pass left something to receive.
    pub(crate) more: bool,
    /// Slots in which interest in the socket changed, each once.
    pub(crate) stale: Vec<u32>,
    /// A socket cannot be watched, and that was told.
    pub(crate) unwatched_told: bool,
    /// Some socket is not readable by its first byte.
    pub(crate) low_water_raised: bool,
    /// Slots that paused, each once.
    pub(crate) paused: Vec<u32>,
    /// Doorbells and polls that held work back since the last flush.
    pub(crate) held: u32,
    pub(crate) ready: EpollEvents,
    /// Of `ready`, those before were looked at.
    pub(crate) ready_from: usize,
}

impl TcpEngine {
    /// Without queue pairs.
    pub fn new(shared: Arc<Shared>) -> Result<TcpEngine, OpenError> {
        Ok(TcpEngine {
            core: Core::new(&shared),
            shared,
            waiter: EpollWaiter::new()?,
            slots: Vec::new(),
            free: Vec::new(),
            live: Vec::new(),
            handshakes: 0,
            to_flush: Vec::new(),
            turn: 0,
            warm: 0,
            partial: 0,
            rounds: 0,
            looked_at: 0,
            more: false,
            stale: Vec::new(),
            unwatched_told: false,
            low_water_raised: false,
            paused: Vec::new(),
            held: 0,
            ready: EpollEvents::new(),
            ready_from: 0,
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
        let queue_pair = self.new_slot()?;
        let connection = Connection::new(queue_pair, socket, connected);
        self.slots[slot_of(queue_pair)].link = Link::Up(Box::new(connection));
        self.note(slot_of(queue_pair) as u32);
        Ok(queue_pair)
    }

    /// What a queue pair paused for is there.
    fn can_resume(&self) -> bool {
        let resumable = |slot: &u32| match &self.slots[*slot as usize].link {
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

    fn new_slot(&mut self) -> Result<QueuePair, ConnectError> {
        if self.live.len() >= QUEUE_PAIRS_MAX {
            return Err(ConnectError::Resource("queue pairs of this engine"));
        }
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: 0, link: Link::Free });
            (self.slots.len() - 1) as u32
        });
        self.live.push(slot);
        let generation = self.slots[slot as usize].generation;
        Ok(QueuePair(u64::from(generation) << 32 | u64::from(slot)))
    }

    /// The slot's queue pair is gone for good.
    pub(crate) fn free_slot(&mut self, slot: u32) -> Link {
        let entry = &mut self.slots[slot as usize];
        let link = std::mem::replace(&mut entry.link, Link::Free);
        // A slot whose generations are used up is never used again.
        if let Some(next) = entry.generation.checked_add(1) {
            entry.generation = next;
            self.free.push(slot);
        }
        self.live.retain(|live| *live != slot);
        for list in [&mut self.to_flush, &mut self.stale, &mut self.paused] {
            list.retain(|listed| *listed != slot);
        }
        link
    }

    pub(crate) fn queue_pair(&self, slot: u32) -> QueuePair {
        let generation = self.slots[slot as usize].generation;
        QueuePair(u64::from(generation) << 32 | u64::from(slot))
    }

    fn is_current(&self, queue_pair: QueuePair) -> bool {
        self.slots
            .get(slot_of(queue_pair))
            .is_some_and(|slot| u64::from(slot.generation) == queue_pair.0 >> 32)
    }

    fn connection(slots: &mut [Slot], queue_pair: QueuePair) -> Result<&mut Connection, PostError> {
        match slots.get_mut(slot_of(queue_pair)) {
            Some(Slot { generation, link: Link::Up(connection) })
                if u64::from(*generation) == queue_pair.0 >> 32 =>
            {
                Ok(connection)
            }
            _ => Err(PostError::NotConnected),
        }
    }

    /// Ends a queue pair that is up.
    pub(crate) fn end(&mut self, slot: u32, reason: String) {
        let queue_pair = self.queue_pair(slot);
        if let Link::Up(connection) = self.free_slot(slot) {
            connection.end(&mut self.core);
        } else {
            self.handshakes -= 1;
            self.waiter.set_handshakes(self.handshakes > 0);
        }
        self.core.event(QueuePairEvent::Disconnected { queue_pair, reason });
        self.core.event(QueuePairEvent::Quiescent { queue_pair });
    }

    fn post(
        &mut self,
        queue_pair: QueuePair,
        header: &[u8],
        data: &mut SgList,
        request: Request,
    ) -> Result<(), PostError> {
        let connection = Self::connection(&mut self.slots, queue_pair)?;
        if connection.requests.len() >= SEND_QUEUE_DEPTH {
            return Err(PostError::QueueFull);
        }
        let mut request = request;
        request.data = std::mem::take(data);
        request.sequence = self.core.next_sequence();
        if !header.is_empty() {
            request.header = connection.header_buffer(header);
        }
        let slot = connection.requests.insert(request);
        connection.send.push(slot, connection.requests.at_mut(slot));
        let go = !connection.send.is_blocked();
        list(connection, slot_of(queue_pair) as u32, go, &mut self.to_flush);
        Ok(())
    }
}

fn slot_of(queue_pair: QueuePair) -> usize {
    (queue_pair.0 & 0xffff_ffff) as usize
}

fn request(wr_id: WrId, opcode: Opcode, data: &[Span], signaled: bool) -> Request {
    Request {
        wr_id,
        opcode,
        signaled,
        sequence: 0,
        key: 0,
        addr: 0,
        header: Vec::new(),
        total: sg_bytes(data) as u32,
        data: SgList::new(),
        done: 0,
        cursor: Cursor::default(),
        id: 0,
        sends_before: 0,
        left: false,
    }
}

fn check_size(header: &[u8], data: &[Span], bytes_max: usize) -> Result<(), PostError> {
    if header.len() > HEADER_BYTES_MAX || data.len() > SGE_MAX || sg_bytes(data) > bytes_max {
        return Err(PostError::TooLarge);
    }
    Ok(())
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
        let queue_pair = self.new_slot()?;
        self.slots[slot_of(queue_pair)].link = Link::Connecting(Box::new(handshake));
        self.handshakes += 1;
        self.waiter.set_handshakes(true);
        self.step(slot_of(queue_pair) as u32);
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
        if let Link::Up(connection) = &mut self.slots[slot].link {
            connection.send.push_first(&hello(Kind::HelloAck, private_data));
            list(connection, slot as u32, true, &mut self.to_flush);
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
        if !self.is_current(queue_pair) {
            return;
        }
        match &mut self.slots[slot].link {
            Link::Free => return,
            Link::Connecting(_) => {}
            // What can leave at once may.
            Link::Up(connection) => {
                connection.flush(&mut self.core);
            }
        }
        self.end(slot as u32, "disconnected locally".into());
    }

    fn peer(&self, queue_pair: QueuePair) -> Option<PeerInfo> {
        match self.slots.get(slot_of(queue_pair)).map(|slot| &slot.link) {
            Some(Link::Up(connection)) if self.is_current(queue_pair) => {
                owner::peer_info(connection.socket.as_fd()).ok()
            }
            _ => None,
        }
    }

    fn moved(&self, queue_pair: QueuePair, wr_id: WrId) -> u64 {
        match self.slots.get(slot_of(queue_pair)).map(|slot| &slot.link) {
            Some(Link::Up(connection)) if self.is_current(queue_pair) => connection.moved(wr_id),
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

    fn post_send(
        &mut self,
        queue_pair: QueuePair,
        wr_id: WrId,
        header: &[u8],
        data: &mut SgList,
        signaled: bool,
    ) -> Result<(), PostError> {
        check_size(header, data, FRAME_PAYLOAD_BYTES_MAX.saturating_sub(header.len()))?;
        let request = request(wr_id, Opcode::Send, data, signaled);
        self.post(queue_pair, header, data, request)
    }

    fn post_rdma_write(
        &mut self,
        queue_pair: QueuePair,
        wr_id: WrId,
        data: &mut SgList,
        remote: RemoteSpan,
        signaled: bool,
    ) -> Result<(), PostError> {
        check_size(&[], data, BULK_BYTES_MAX.min(remote.len as usize))?;
        let mut request = request(wr_id, Opcode::RdmaWrite, data, signaled);
        request.key = remote.rkey.0;
        request.addr = remote.addr;
        self.post(queue_pair, &[], data, request)
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
        let mut request = request(wr_id, Opcode::RdmaRead, into, true);
        request.key = remote.rkey.0;
        request.addr = remote.addr;
        request.total = remote.len;
        self.post(queue_pair, &[], into, request)
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
        check_size(header, data, BULK_BYTES_MAX)?;
        let mut request = request(wr_id, Opcode::TaggedSend, data, signaled);
        request.key = tag.0;
        self.post(queue_pair, header, data, request)
    }

    fn post_tagged_recv(
        &mut self,
        queue_pair: QueuePair,
        wr_id: WrId,
        tag: Tag,
        header: Option<Span>,
        data: &mut SgList,
    ) -> Result<(), PostError> {
        check_size(&[], data, usize::MAX)?;
        let connection = Self::connection(&mut self.slots, queue_pair)?;
        connection.tags.has_room_for(tag)?;
        let capacity = sg_bytes(data);
        connection.tags.post(TaggedReceive {
            wr_id,
            sequence: self.core.next_sequence(),
            tag,
            header,
            data: std::mem::take(data),
            capacity,
            started: false,
            header_len: 0,
            total: 0,
            received: 0,
            cursor: Cursor::default(),
        });
        Ok(())
    }

    fn cancel_tagged_recv(&mut self, queue_pair: QueuePair, tag: Tag) {
        if let Ok(connection) = Self::connection(&mut self.slots, queue_pair) {
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
        if self.core.completions.len() < max {
            self.progress_all();
            if !hold || self.core.completions.is_empty() {
                self.flush_all();
            }
        }
        let count = self.core.completions.len().min(max);
        completions.extend(self.core.completions.drain(..count));
        self.core.polled += count as u64;
        count
    }

    fn rounds(&self) -> u64 {
        self.rounds
    }

    fn poll_event(&mut self) -> Option<QueuePairEvent> {
        let (after, _) = self.core.events.front()?;
        if *after > self.core.polled {
            return None;
        }
        self.core.events.pop_front().map(|(_, event)| event)
    }

    fn arm(&mut self) -> bool {
        if self.more
            || !self.core.completions.is_empty()
            || !self.core.events.is_empty()
            || !self.to_flush.is_empty()
        {
            return false;
        }
        if self.can_resume() {
            return false;
        }
        // After a sleep anybody may have sent.
        self.partial = usize::MAX;
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
            if let Link::Up(connection) = &mut self.slots[slot as usize].link {
                connection.flush(&mut self.core);
            }
        }
        for slot in &self.live {
            if let Link::Up(connection) = &self.slots[*slot as usize].link {
                tracing::trace!(fd = connection.socket.as_raw_fd(), "queue pair dropped");
            }
        }
    }
}
