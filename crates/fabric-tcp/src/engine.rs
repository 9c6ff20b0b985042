//! The engine: posting, polling, sleeping, and the life of queue pairs.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use dafs_fabric::{
    Address, ConnectError, DeviceAttr, Engine, Incoming, Opcode, OpenError, PostError, QueuePair,
    QueuePairEvent, RemoteSpan, SgList, Span, Tag, Waiter, WorkCompletion, WrId, sg_bytes,
};

use crate::connection::{Accepted, Handshake, Step, reject};
use crate::device::{RECEIVE_QUEUE_DEPTH, SGE_MAX, Shared};
use crate::frame::{BULK_BYTES_MAX, FRAME_PAYLOAD_BYTES_MAX, HEADER_BYTES_MAX, Kind, hello};
use crate::memory_region::Table;
use crate::queue_pair::{Connection, Request, SEND_QUEUE_DEPTH, TaggedReceive};
use crate::receive::{PostedReceive, Received};
use crate::scatter_gather::Cursor;
use crate::sys::{EpollEvents, IoList, Watch};
use crate::waiter::EpollWaiter;

/// Staging memory of an engine: what one system call brings of small messages.
const STAGING_BYTES: usize = 64 * 1024;
/// Staging memories kept for use again.
const STAGING_KEPT: usize = 4;
/// Up to so many queue pairs are simply tried; more are asked for by epoll first.
const TRIED_MAX: usize = 4;
/// Queue pairs of an engine.
const QUEUE_PAIRS_MAX: usize = 65536;

/// What the queue pairs of an engine share.
pub struct Core {
    pub table: Arc<Table>,
    pub rdma_read: bool,
    pub trash: Span,
    pub zeros: Span,
    pub receives: VecDeque<PostedReceive>,
    pub staging: Box<[u8]>,
    spare: Vec<Box<[u8]>>,
    pub io: IoList,
    pub system_calls: u64,
    completions: VecDeque<WorkCompletion>,
    /// Completions ever queued, and ever polled.
    queued: u64,
    polled: u64,
    /// Each event after so many completions.
    events: VecDeque<(u64, QueuePairEvent)>,
    sequence: u64,
}

impl Core {
    fn new(shared: &Shared) -> Core {
        Core {
            table: shared.table.clone(),
            rdma_read: shared.attr.rdma_read,
            trash: shared.trash.clone(),
            zeros: shared.zeros.clone(),
            receives: VecDeque::new(),
            staging: vec![0; STAGING_BYTES].into(),
            spare: Vec::new(),
            io: IoList::new(),
            system_calls: 0,
            completions: VecDeque::new(),
            queued: 0,
            polled: 0,
            events: VecDeque::new(),
            sequence: 0,
        }
    }

    /// Queues a completion.
    pub fn complete(&mut self, completion: WorkCompletion) {
        self.queued += 1;
        self.completions.push_back(completion);
    }

    /// Queues an event after the completions so far.
    pub fn event(&mut self, event: QueuePairEvent) {
        self.events.push_back((self.queued, event));
    }

    /// Makes sure that there is staging memory for the next read.
    pub fn refill_staging(&mut self) {
        if self.staging.is_empty() {
            self.staging = self.spare.pop().unwrap_or_else(|| vec![0; STAGING_BYTES].into());
        }
    }

    /// Takes staging memory that is free again.
    pub fn keep_staging(&mut self, staging: Box<[u8]>) {
        if staging.len() == STAGING_BYTES && self.spare.len() < STAGING_KEPT {
            self.spare.push(staging);
        }
    }

    fn next_sequence(&mut self) -> u64 {
        self.sequence += 1;
        self.sequence
    }
}

enum Link {
    Free,
    Connecting(Box<Handshake>),
    Up(Box<Connection>),
}

struct Slot {
    generation: u32,
    link: Link,
}

/// The engine of `tcp`.
pub struct TcpEngine {
    shared: Arc<Shared>,
    core: Core,
    waiter: Arc<EpollWaiter>,
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Slots in use.
    live: Vec<u32>,
    handshakes: usize,
    /// Slots with something to send, each once.
    to_flush: Vec<u32>,
    /// Where the next pass begins.
    turn: usize,
    /// The last pass left something to receive.
    more: bool,
    /// Slots in which interest in the socket changed, each once.
    stale: Vec<u32>,
    /// Slots that paused, each once.
    paused: Vec<u32>,
    ready: EpollEvents,
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
            more: false,
            stale: Vec::new(),
            paused: Vec::new(),
            ready: EpollEvents::new(),
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
    fn free_slot(&mut self, slot: u32) -> Link {
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

    fn queue_pair(&self, slot: u32) -> QueuePair {
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
    fn end(&mut self, slot: u32, reason: String) {
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

    /// Goes on with one queue pair.
    fn progress(&mut self, slot: u32) {
        match &mut self.slots[slot as usize].link {
            Link::Free => {}
            Link::Connecting(_) => self.step(slot),
            Link::Up(connection) => {
                if connection.send.is_blocked() {
                    let again = connection.flush(&mut self.core);
                    list(connection, slot, again, &mut self.to_flush);
                }
                let received = connection.receive(&mut self.core);
                let answers = connection.send.has_work() && !connection.send.is_blocked();
                list(connection, slot, answers, &mut self.to_flush);
                match received {
                    Received::All => {}
                    Received::More => self.more = true,
                    Received::End(reason) => return self.end(slot, reason),
                }
                self.note(slot);
            }
        }
    }

    /// Remembers a slot whose interest changed or that paused.
    fn note(&mut self, slot: u32) {
        match &mut self.slots[slot as usize].link {
            Link::Free => {}
            Link::Connecting(handshake) => {
                if !std::mem::replace(&mut handshake.stale, true) {
                    self.stale.push(slot);
                }
            }
            Link::Up(connection) => {
                if !connection.stale && connection.watched != Some(connection.interest()) {
                    connection.stale = true;
                    self.stale.push(slot);
                }
                if !connection.paused && connection.receive.is_paused() {
                    connection.paused = true;
                    self.paused.push(slot);
                }
            }
        }
    }

    /// Goes on with one handshake.
    fn step(&mut self, slot: u32) {
        let queue_pair = self.queue_pair(slot);
        let Link::Connecting(handshake) = &mut self.slots[slot as usize].link else { return };
        // At least one call; their exact number does not matter here.
        self.core.system_calls += 1;
        match handshake.step() {
            Step::Pending => return self.note(slot),
            Step::Connected(socket, private_data) => {
                let mut connection = Connection::new(queue_pair, socket, true);
                connection.watched = handshake.watched;
                connection.stale = handshake.stale;
                self.slots[slot as usize].link = Link::Up(Box::new(connection));
                self.note(slot);
                self.core.event(QueuePairEvent::Connected { queue_pair, private_data });
            }
            Step::Failed(refused, reason) => {
                self.free_slot(slot);
                self.core.event(QueuePairEvent::Refused { queue_pair, refused, reason });
            }
        }
        self.handshakes -= 1;
        self.waiter.set_handshakes(self.handshakes > 0);
    }

    /// Goes on with all queue pairs that may have something.
    fn progress_all(&mut self) {
        self.more = false;
        if self.live.len() <= TRIED_MAX {
            let count = self.live.len();
            for index in 0..count {
                // A queue pair that ended made the list shorter: the next pass sees the rest.
                let Some(slot) = self.live.get((self.turn + index) % count).copied() else {
                    break;
                };
                self.progress(slot);
            }
            self.turn = self.turn.wrapping_add(1);
            return;
        }
        self.sync_interest();
        self.waiter.ready(&mut self.ready);
        let mut index = 0;
        while let Some(token) = self.ready.token(index) {
            index += 1;
            if let Some(slot) = u32::try_from(token).ok().filter(|slot| self.is_used(*slot)) {
                self.progress(slot);
            }
        }
        self.resume_paused();
        if self.handshakes > 0 {
            self.step_all();
        }
    }

    fn is_used(&self, slot: u32) -> bool {
        (slot as usize) < self.slots.len()
    }

    /// Queue pairs that paused are not told by epoll when they can go on.
    fn resume_paused(&mut self) {
        let mut index = 0;
        for _ in 0..self.paused.len() {
            let Some(slot) = self.paused.get(index).copied() else { break };
            let Link::Up(connection) = &mut self.slots[slot as usize].link else { break };
            let go = connection.can_resume(&self.core);
            if go || !connection.receive.is_paused() {
                connection.paused = false;
                self.paused.swap_remove(index);
            } else {
                index += 1;
            }
            if go {
                self.progress(slot);
            }
        }
    }

    /// Handshakes have deadlines, which epoll does not know.
    fn step_all(&mut self) {
        for index in 0..self.live.len() {
            let Some(slot) = self.live.get(index).copied() else { break };
            self.step(slot);
        }
    }

    fn flush_all(&mut self) {
        let mut index = 0;
        // What must go on later is put in front of `index`.
        while let Some(slot) = self.to_flush.get(index).copied() {
            let again = match &mut self.slots[slot as usize].link {
                Link::Up(connection) => {
                    let again = connection.flush(&mut self.core);
                    connection.send.listed = again;
                    again
                }
                _ => false,
            };
            self.note(slot);
            if again {
                index += 1;
            } else {
                self.to_flush.swap_remove(index);
            }
        }
    }

    /// Makes epoll watch what matters now.
    fn sync_interest(&mut self) {
        while let Some(slot) = self.stale.pop() {
            let (fd, wanted, watched) = match &mut self.slots[slot as usize].link {
                Link::Free => continue,
                Link::Up(connection) => {
                    connection.stale = false;
                    (connection.fd(), connection.interest(), &mut connection.watched)
                }
                Link::Connecting(handshake) => {
                    handshake.stale = false;
                    match handshake.interest() {
                        Some((fd, events)) => (fd, events, &mut handshake.watched),
                        None => continue,
                    }
                }
            };
            let watch = match *watched {
                Some(events) if events == wanted => continue,
                Some(_) => Watch::Change(wanted),
                None => Watch::Add(wanted),
            };
            match self.waiter.watch(fd, u64::from(slot), watch) {
                Ok(()) => *watched = Some(wanted),
                Err(error) => {
                    tracing::warn!(%error, "a socket cannot be watched");
                    self.note(slot);
                    break;
                }
            }
        }
    }

    fn post(
        &mut self,
        queue_pair: QueuePair,
        header: &[u8],
        request: Request,
    ) -> Result<(), PostError> {
        let connection = Self::connection(&mut self.slots, queue_pair)?;
        if connection.requests.len() >= SEND_QUEUE_DEPTH {
            return Err(PostError::QueueFull);
        }
        let mut request = request;
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

/// Puts a queue pair on the list of those to flush.
fn list(connection: &mut Connection, slot: u32, wanted: bool, to_flush: &mut Vec<u32>) {
    if wanted && !connection.send.listed {
        connection.send.listed = true;
        to_flush.push(slot);
    }
}

fn request(wr_id: WrId, opcode: Opcode, data: SgList, signaled: bool) -> Request {
    Request {
        wr_id,
        opcode,
        signaled,
        sequence: 0,
        key: 0,
        addr: 0,
        header: Vec::new(),
        total: sg_bytes(&data) as u32,
        data,
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
        if private_data.len() > dafs_fabric::PRIVATE_DATA_BYTES_MAX {
            return Err(ConnectError::Resource("private data"));
        }
        let Ok(accepted) = incoming.inner.downcast::<Accepted>() else {
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
        if let Ok(accepted) = incoming.inner.downcast::<Accepted>() {
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
        data: SgList,
        signaled: bool,
    ) -> Result<(), PostError> {
        check_size(header, &data, FRAME_PAYLOAD_BYTES_MAX.saturating_sub(header.len()))?;
        self.post(queue_pair, header, request(wr_id, Opcode::Send, data, signaled))
    }

    fn post_rdma_write(
        &mut self,
        queue_pair: QueuePair,
        wr_id: WrId,
        data: SgList,
        remote: RemoteSpan,
        signaled: bool,
    ) -> Result<(), PostError> {
        check_size(&[], &data, BULK_BYTES_MAX.min(remote.len as usize))?;
        let mut request = request(wr_id, Opcode::RdmaWrite, data, signaled);
        request.key = remote.rkey.0;
        request.addr = remote.addr;
        self.post(queue_pair, &[], request)
    }

    fn post_rdma_read(
        &mut self,
        queue_pair: QueuePair,
        wr_id: WrId,
        into: SgList,
        remote: RemoteSpan,
    ) -> Result<(), PostError> {
        if !self.core.rdma_read {
            return Err(PostError::Unsupported);
        }
        check_size(&[], &into, usize::MAX)?;
        if remote.len as usize > BULK_BYTES_MAX.min(sg_bytes(&into)) {
            return Err(PostError::TooLarge);
        }
        let mut request = request(wr_id, Opcode::RdmaRead, into, true);
        request.key = remote.rkey.0;
        request.addr = remote.addr;
        request.total = remote.len;
        self.post(queue_pair, &[], request)
    }

    fn post_tagged_send(
        &mut self,
        queue_pair: QueuePair,
        wr_id: WrId,
        tag: Tag,
        header: &[u8],
        data: SgList,
        signaled: bool,
    ) -> Result<(), PostError> {
        check_size(header, &data, BULK_BYTES_MAX)?;
        let mut request = request(wr_id, Opcode::TaggedSend, data, signaled);
        request.key = tag.0;
        self.post(queue_pair, header, request)
    }

    fn post_tagged_recv(
        &mut self,
        queue_pair: QueuePair,
        wr_id: WrId,
        tag: Tag,
        header: Option<Span>,
        data: SgList,
    ) -> Result<(), PostError> {
        check_size(&[], &data, usize::MAX)?;
        let connection = Self::connection(&mut self.slots, queue_pair)?;
        let capacity = sg_bytes(&data);
        connection.tags.post(TaggedReceive {
            wr_id,
            sequence: self.core.next_sequence(),
            tag,
            header,
            data,
            capacity,
            started: false,
            header_len: 0,
            total: 0,
            received: 0,
            cursor: Cursor::default(),
        })
    }

    fn cancel_tagged_recv(&mut self, queue_pair: QueuePair, tag: Tag) {
        if let Ok(connection) = Self::connection(&mut self.slots, queue_pair) {
            connection.cancel(tag, &mut self.core);
        }
    }

    fn ring(&mut self) {
        self.flush_all();
    }

    fn poll(&mut self, completions: &mut Vec<WorkCompletion>, max: usize) -> usize {
        self.flush_all();
        if self.core.completions.len() < max {
            self.progress_all();
            self.flush_all();
        }
        let count = self.core.completions.len().min(max);
        completions.extend(self.core.completions.drain(..count));
        self.core.polled += count as u64;
        count
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
        let resumable = |slot: &u32| match &self.slots[*slot as usize].link {
            Link::Up(connection) => connection.can_resume(&self.core),
            _ => false,
        };
        if self.paused.iter().any(resumable) {
            return false;
        }
        self.sync_interest();
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
        self.flush_all();
        for slot in &self.live {
            if let Link::Up(connection) = &self.slots[*slot as usize].link {
                tracing::trace!(fd = connection.socket.as_raw_fd(), "queue pair dropped");
            }
        }
    }
}
