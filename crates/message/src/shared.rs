//! What all connections of a port share.

use std::collections::VecDeque;
use std::sync::Arc;

use dafs_fabric::{
    Arena, DeviceAttr, Engine, Fifo, MemoryRegion, ProtectionDomain, QueuePair, SgList, Span,
};

use crate::bounce::{Bounce, BouncePool, ENOUGH, Owner};
use crate::config::{NodeConfig, NodeError};
use crate::event::{ConnId, Event, RequestId};
use crate::fault::Fault;
use crate::header::HEADER_BYTES;
use crate::loan::{Loan, Returned};
use crate::receive_pool::{ReceivePool, ReplyMemory, register_local};
use crate::references::References;
use crate::registration::{Regions, RegistrationCache};
use crate::segments;
use crate::stats::Counters;
use crate::{REPLY_HEADER_BYTES_MAX, config};

/// Memory for data that nobody wants; its bytes are never looked at.
const SINK_BYTES: usize = 256 << 10;
const HEADER_CAPACITY: usize = 256;
const HEADERS_KEPT_MAX: usize = 1024;
const HEADER_KEPT_BYTES_MAX: usize = 8192;

/// A request of a peer that waits for others to be replied.
pub struct Waiting {
    /// Which.
    pub id: RequestId,
    /// Its header.
    pub header: Vec<u8>,
    /// Bytes of its data.
    pub data_len: u32,
    /// Room for the reply's data.
    pub reply_max: u32,
    /// Its data is pushed.
    pub pushed: bool,
}

/// Whose memory it is.
#[derive(Debug, Clone, Copy)]
pub enum Role {
    /// That of our requests.
    Requester,
    /// That of the peer's.
    Responder,
}

/// What posted memory needs until it is the caller's again.
pub struct Held {
    /// In which it is.
    pub regions: Regions,
    /// What was posted in its place.
    pub bounce: Option<Box<Bounce>>,
}

/// There is no memory to stand in for what the device does not know.
pub struct NoMemory;

/// The engine, memory, and queues of a port.
pub struct Shared {
    /// The device of `engine`, and the memory that it knows.
    pub domain: Arc<ProtectionDomain>,
    /// The completion queue and queue pairs.
    pub engine: Box<dyn Engine>,
    /// As of the device.
    pub attr: DeviceAttr,
    /// As given.
    pub config: NodeConfig,
    /// For the owner of the node.
    pub events: VecDeque<Event>,
    /// Also for it: tokens of replies that have left, or never will.
    pub sent: Fifo<u64>,
    /// Posted receives.
    pub pool: ReceivePool,
    /// Where headers of tagged replies land.
    pub reply_memory: ReplyMemory,
    /// Memory regions.
    pub registrations: RegistrationCache,
    /// What stands in for memory that cannot be registered, for each role: what waits for the peer's
    /// answers takes nothing from what answers.
    pub bounces: [BouncePool; 2],
    /// Message under construction, or its first bytes on arrival.
    pub scratch: Vec<u8>,
    /// Requests not delivered yet.
    pub waiting: VecDeque<Waiting>,
    /// Requests delivered and not replied.
    pub in_service: usize,
    /// Connections whose outbox is not empty.
    pub blocked: Vec<u32>,
    /// Requests of peers, by connection and tag, whose data or reply waits for memory that stands in.
    pub starved: Vec<(u32, u32)>,
    /// Connections to be ended.
    pub faults: Vec<(u32, Fault)>,
    /// Connections with references that are to be let go.
    pub releasing: Vec<u32>,
    /// What replies refer to can be read; not after it could not.
    pub refers: bool,
    /// What replies have lent, and nobody has taken yet.
    pub loans: Vec<(ConnId, u32, Box<Loan>)>,
    /// What was returned.
    pub returned: Arc<Returned>,
    /// What is lent to peers whose connections are quiescent.
    pub orphans: Vec<(QueuePair, Box<References>)>,
    /// Something was posted since the last ring.
    pub posted: bool,
    /// Counters of connections that ended.
    pub ended: Counters,
    headers: Vec<Vec<u8>>,
    sink: Option<Sink>,
}

/// Memory for data that nobody wants.
struct Sink {
    span: Span,
    /// Keeps it known to devices that need that.
    _region: Option<MemoryRegion>,
}

impl Sink {
    fn new(domain: &ProtectionDomain) -> Result<Sink, NodeError> {
        let arena = Arena::new(SINK_BYTES)?;
        let region = register_local(domain, &arena)?;
        Ok(Sink { span: arena.span(0, SINK_BYTES), _region: region })
    }
}

impl Shared {
    /// With memory for receives; nothing is posted.
    ///
    /// # Errors
    /// [`NodeError`].
    pub fn new(domain: Arc<ProtectionDomain>, config: NodeConfig) -> Result<Shared, NodeError> {
        let engine = domain.engine()?;
        let attr = engine.attr().clone();
        let area_bytes = config::data_area_bytes(&config, &attr)?;
        let depth = config.receives_max.min(attr.receive_queue_depth);
        let pool = ReceivePool::new(&domain, config.header_bytes, area_bytes, depth)?;
        let bytes = config.stand_in_bytes;
        // Of the requesters there is one, of those who are answered many.
        let bounces = [
            BouncePool::new(&domain, ENOUGH, bytes)?,
            BouncePool::new(&domain, 2 * ENOUGH, bytes)?,
        ];
        let mut reply_memory = ReplyMemory::new(HEADER_BYTES + REPLY_HEADER_BYTES_MAX);
        let mut sink = None;
        // What a device may refuse later is asked for now.
        if attr.local_registration {
            if attr.tag_match {
                reply_memory.grow(&domain)?;
            }
            sink = Some(Sink::new(&domain)?);
        }
        Ok(Shared {
            domain,
            engine,
            attr,
            config,
            events: VecDeque::new(),
            sent: Fifo::default(),
            pool,
            reply_memory,
            registrations: RegistrationCache::default(),
            bounces,
            scratch: Vec::new(),
            waiting: VecDeque::new(),
            in_service: 0,
            blocked: Vec::new(),
            starved: Vec::new(),
            faults: Vec::new(),
            releasing: Vec::new(),
            refers: true,
            loans: Vec::new(),
            returned: Arc::default(),
            orphans: Vec::new(),
            posted: false,
            ended: Counters::default(),
            headers: Vec::new(),
            sink,
        })
    }

    /// Bytes of the data area of receives.
    pub fn area_bytes(&self) -> usize {
        self.pool.message_bytes() - self.config.header_bytes
    }

    /// Memory for a header.
    #[inline]
    pub fn take_header(&mut self) -> Vec<u8> {
        // Most headers fit, so that those in use grow no more after a while.
        self.headers.pop().unwrap_or_else(|| Vec::with_capacity(HEADER_CAPACITY))
    }

    /// A header that is kept for later.
    #[inline]
    pub fn copy_of_header(&mut self, header: &[u8]) -> Vec<u8> {
        let mut copy = self.take_header();
        // not payload: the caller's header of a message
        copy.extend_from_slice(header);
        copy
    }

    /// Takes it back.
    #[inline]
    pub fn recycle(&mut self, mut header: Vec<u8>) {
        let capacity = header.capacity();
        let useful = capacity > 0 && capacity <= HEADER_KEPT_BYTES_MAX;
        if useful && self.headers.len() < HEADERS_KEPT_MAX {
            header.clear();
            self.headers.push(header);
        }
    }

    /// A list of `len` bytes whose contents nobody will read: the same memory again and again.
    /// `None` when it would be too long for the device, or there is no memory.
    pub fn sink(&mut self, len: usize) -> Option<SgList> {
        if self.sink.is_none() {
            self.sink = Some(Sink::new(&self.domain).ok()?);
        }
        let sink = &self.sink.as_ref()?.span;
        let whole: SgList = (0..len.div_ceil(SINK_BYTES)).map(|_| sink.clone()).collect();
        (whole.len() <= self.attr.sge_max).then(|| segments::cut(&whole, 0, len))
    }

    /// The device must know what is in `list` before it is posted.
    #[inline]
    pub fn must_know(&self, list: &SgList) -> bool {
        self.attr.local_registration && !list.is_empty()
    }

    /// A named read of a connection ended.
    pub fn named_read(&mut self, conn: ConnId, tag: u32, bytes: Option<u32>) {
        self.events.push_back(Event::NamedRead { conn, tag, bytes });
    }

    /// Makes sure that the device knows `list`, which is posted next, where it must: what it does not
    /// know and cannot be told of is replaced, and copied if it is a source. `None`: nothing is to be
    /// held for that.
    ///
    /// # Errors
    /// [`NoMemory`].
    #[inline]
    pub fn make_known(
        &mut self,
        (role, owner): (Role, Owner),
        list: &mut SgList,
        is_source: bool,
    ) -> Result<Option<Held>, NoMemory> {
        match self.must_know(list) {
            true => self.find_or_replace((role, owner), list, is_source).map(Some).ok_or(NoMemory),
            false => Ok(None),
        }
    }

    #[cold]
    fn find_or_replace(
        &mut self,
        (role, owner): (Role, Owner),
        list: &mut SgList,
        is_source: bool,
    ) -> Option<Held> {
        if let Some(regions) = self.registrations.local(&self.domain, list) {
            return Some(Held { regions, bounce: None });
        }
        let bounce = self.bounces[role as usize].take(&self.domain, owner, list)?;
        *list = bounce.list();
        if is_source {
            bounce.copy_in();
        }
        Some(Held { regions: Regions::new(), bounce: Some(bounce) })
    }

    /// Delivers requests as far as the limit of requests in service allows.
    #[inline]
    pub fn deliver_waiting(&mut self) {
        if !self.waiting.is_empty() {
            self.deliver_some();
        }
    }

    #[cold]
    fn deliver_some(&mut self) {
        while self.in_service < self.config.requests_in_service_max {
            let Some(waiting) = self.waiting.pop_front() else { return };
            self.deliver(waiting);
        }
    }

    /// Delivers a request, or leaves it waiting behind others.
    #[inline(always)]
    pub fn deliver_in_turn(&mut self, waiting: Waiting) {
        if self.has_room() {
            return self.deliver(waiting);
        }
        self.waiting.push_back(waiting);
        self.deliver_waiting();
    }

    /// Delivers a request.
    #[inline(always)]
    pub fn deliver(&mut self, waiting: Waiting) {
        let Waiting { id, header, data_len, reply_max, pushed } = waiting;
        self.in_service += 1;
        self.events.push_back(Event::Request { id, header, data_len, reply_max, pushed });
    }

    /// A request can be delivered at once: no limit is reached, and none waits.
    #[inline]
    pub fn has_room(&self) -> bool {
        self.in_service < self.config.requests_in_service_max && self.waiting.is_empty()
    }

    /// A reply will not be sent: its memory is the caller's again.
    pub fn unsent(&mut self, token: Option<u64>) {
        if let Some(token) = token {
            self.sent.push_back(token);
        }
    }
}
