//! A connected queue pair: its socket and all that was posted to it.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use dafs_fabric::{Opcode, PostError, QueuePair, SgList, Span, Status, Tag, WorkCompletion, WrId};

use crate::engine::Core;
use crate::receive::ReceiveSide;
use crate::scatter_gather::Cursor;
use crate::send::SendSide;
use crate::turns::Load;

/// Sends, reads and writes under way; a peer that has more is not one of ours.
pub const SEND_QUEUE_DEPTH: usize = 1024;
/// Tagged receives posted to a queue pair.
const TAGGED_MAX: usize = 65536;
/// Tags whose receive was taken back before the message came. The oldest is forgotten beyond
/// this; should its message still come, it is told as unmatched.
const CANCELLED_MAX: usize = 1024;
/// Bytes of a run for which it is worth to wake, when more messages are expected after it.
const LOW_WATER_BUSY: usize = 256 * 1024;
/// The same for the last message.
const LOW_WATER_IDLE: usize = 128 * 1024;
/// Header buffers kept for use again.
const HEADERS_KEPT: usize = 64;

/// Entries with stable numbers.
#[derive(Debug)]
pub struct Slab<T> {
    entries: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Slab<T> {
    fn new() -> Slab<T> {
        Slab { entries: Vec::new(), free: Vec::new() }
    }

    /// Entries in use.
    pub fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// Takes an entry in.
    pub fn insert(&mut self, entry: T) -> u32 {
        if let Some(slot) = self.free.pop() {
            self.entries[slot as usize] = Some(entry);
            return slot;
        }
        let slot = u32::try_from(self.entries.len()).expect("fewer than 2^32 entries");
        self.entries.push(Some(entry));
        slot
    }

    /// Gives an entry out.
    pub fn remove(&mut self, slot: u32) -> T {
        self.free.push(slot);
        self.entries[slot as usize].take().expect("the slot is in use")
    }

    /// The entry of `slot`.
    pub fn at(&self, slot: u32) -> &T {
        self.entries[slot as usize].as_ref().expect("the slot is in use")
    }

    /// The entry of `slot`, if it is in use.
    pub fn get(&self, slot: u32) -> Option<&T> {
        self.entries.get(slot as usize)?.as_ref()
    }

    /// The entry of `slot`.
    pub fn at_mut(&mut self, slot: u32) -> &mut T {
        self.entries[slot as usize].as_mut().expect("the slot is in use")
    }

    fn iter(&self) -> impl Iterator<Item = &T> {
        self.entries.iter().flatten()
    }
}

/// Spreads tags. The peer chose the low half of those of its pushes, but it has few at a time.
#[derive(Debug, Default, Clone, Copy)]
pub struct TagHasher(u64);

impl Hasher for TagHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, value: u64) {
        let product = u128::from(self.0 ^ value) * 0x9e37_79b9_7f4a_7c15;
        self.0 = (product >> 64) as u64 ^ product as u64;
    }
}

type TagMap<T> = HashMap<u64, T, BuildHasherDefault<TagHasher>>;

/// A posted send, tagged send, RDMA write or read.
#[derive(Debug)]
pub struct Request {
    pub wr_id: WrId,
    pub opcode: Opcode,
    pub signaled: bool,
    /// Order of posting, over all that is posted to the engine.
    pub sequence: u64,
    /// Tag or region key.
    pub key: u64,
    /// The peer's address.
    pub addr: u64,
    pub header: Vec<u8>,
    pub data: SgList,
    /// Bytes of `data`.
    pub total: u32,
    /// Bytes of `data` that are cut into frames, or that a read received.
    pub done: u32,
    /// Where in `data` that is.
    pub cursor: Cursor,
    /// Number of a write or read.
    pub id: u32,
    /// Sends posted before: they go first.
    pub sends_before: u64,
    /// The last frame left: an answer may come.
    pub left: bool,
}

/// A posted tagged receive.
#[derive(Debug)]
pub struct TaggedReceive {
    pub wr_id: WrId,
    pub sequence: u64,
    pub tag: Tag,
    pub header: Option<Span>,
    pub data: SgList,
    pub capacity: usize,
    /// The first frame came.
    pub started: bool,
    pub header_len: u16,
    pub total: u32,
    /// Whole frames received.
    pub received: u32,
    /// Where the next byte goes.
    pub cursor: Cursor,
}

/// What a tag means just now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TagState {
    /// Posted, in this slot.
    Posted(u32),
    /// Its message is thrown away, and this many bytes of it were.
    Discarding(u32),
    /// Its message will be thrown away when it comes.
    Cancelled,
    /// Nobody posted it.
    Unknown,
}

/// The tagged receives of a queue pair.
#[derive(Debug)]
pub struct Tags {
    pub slots: Slab<TaggedReceive>,
    by_tag: TagMap<u32>,
    discarding: TagMap<u32>,
    cancelled: VecDeque<u64>,
    /// Sequence and slot in the order of posting; those that ended are dropped later.
    order: VecDeque<(u64, u32)>,
    /// The sequence of the receive that ended last.
    last_ended: u64,
}

impl Tags {
    fn new() -> Tags {
        Tags {
            slots: Slab::new(),
            by_tag: TagMap::default(),
            discarding: TagMap::default(),
            cancelled: VecDeque::new(),
            order: VecDeque::new(),
            last_ended: 0,
        }
    }

    /// A receive with this tag can be posted.
    pub fn has_room_for(&self, tag: Tag) -> Result<(), PostError> {
        if self.state(tag.0) != TagState::Unknown {
            return Err(PostError::TagInUse);
        }
        if self.slots.len() >= TAGGED_MAX {
            return Err(PostError::QueueFull);
        }
        Ok(())
    }

    /// Posts what there [is room](Self::has_room_for) for.
    pub fn post(&mut self, receive: TaggedReceive) {
        let tag = receive.tag.0;
        let sequence = receive.sequence;
        let slot = self.slots.insert(receive);
        self.by_tag.insert(tag, slot);
        if self.order.len() > 64 + 2 * self.slots.len() {
            let slots = &self.slots;
            self.order.retain(|entry| is_waiting(slots, *entry));
        }
        self.order.push_back((sequence, slot));
    }

    /// The receives whose messages have not begun, in the order in which they are likely to be
    /// used: that of posting, from the one that ended last on.
    pub fn likely(&self) -> impl Iterator<Item = u32> + '_ {
        let next = self.order.partition_point(|(sequence, _)| *sequence <= self.last_ended);
        let waiting = |entry: &&(u64, u32)| is_waiting(&self.slots, **entry);
        self.order.range(next..).filter(waiting).map(|(_, slot)| *slot)
    }

    /// What to do with a message for `tag`.
    pub fn state(&self, tag: u64) -> TagState {
        if let Some(slot) = self.by_tag.get(&tag) {
            TagState::Posted(*slot)
        } else if let Some(offset) = self.discarding.get(&tag) {
            TagState::Discarding(*offset)
        } else if self.cancelled.contains(&tag) {
            TagState::Cancelled
        } else {
            TagState::Unknown
        }
    }

    /// Ends a receive, done or not.
    pub fn remove(&mut self, slot: u32) -> TaggedReceive {
        let receive = self.slots.remove(slot);
        self.by_tag.remove(&receive.tag.0);
        self.last_ended = receive.sequence;
        while let Some(entry) = self.order.front()
            && self.slots.get(entry.1).is_none_or(|found| found.sequence != entry.0)
        {
            self.order.pop_front();
        }
        receive
    }

    /// The message of `tag` will be thrown away when it comes.
    pub fn cancel(&mut self, tag: u64) {
        if self.cancelled.len() == CANCELLED_MAX {
            self.cancelled.pop_front();
        }
        self.cancelled.push_back(tag);
    }

    /// Throws the message of `tag` away from `offset` on.
    pub fn discard_from(&mut self, tag: u64, offset: u32) {
        self.cancelled.retain(|cancelled| *cancelled != tag);
        self.discarding.insert(tag, offset);
    }

    /// All of the message of `tag` is gone.
    pub fn discarded(&mut self, tag: u64) {
        self.discarding.remove(&tag);
    }
}

fn is_waiting(slots: &Slab<TaggedReceive>, (sequence, slot): (u64, u32)) -> bool {
    slots.get(slot).is_some_and(|receive| receive.sequence == sequence && !receive.started)
}

/// A connected queue pair.
#[derive(Debug)]
pub struct Connection {
    pub id: QueuePair,
    pub socket: OwnedFd,
    /// What epoll watches; `None` when it does not.
    pub watched: Option<libc::c_int>,
    /// On the engine's list of those to be watched differently.
    pub stale: bool,
    /// On the engine's list of those that paused.
    pub paused: bool,
    /// Received bytes that make the socket readable; `None` where that cannot be set.
    pub low_water: Option<usize>,
    pub requests: Slab<Request>,
    headers: Vec<Vec<u8>>,
    pub tags: Tags,
    pub send: SendSide,
    pub receive: ReceiveSide,
    pub load: Load,
}

impl Connection {
    /// On a socket whose handshake is over. Whoever connected expects answers in the order of
    /// the requests, and predictions where they go.
    pub fn new(id: QueuePair, socket: OwnedFd, connected: bool) -> Connection {
        let low_water = crate::sys::is_tcp(socket.as_raw_fd()).then_some(1);
        Connection {
            id,
            socket,
            watched: None,
            stale: false,
            paused: false,
            low_water,
            requests: Slab::new(),
            headers: Vec::new(),
            tags: Tags::new(),
            send: SendSide::default(),
            receive: ReceiveSide::new(connected),
            load: Load::default(),
        }
    }

    /// The socket.
    pub fn fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// What epoll should watch: nothing that would wake in vain.
    pub fn interest(&self) -> libc::c_int {
        let receive =
            if self.receive.is_paused() { crate::sys::EPOLLRDHUP } else { crate::sys::EPOLLIN };
        let send = if self.send.is_blocked() { crate::sys::EPOLLOUT } else { 0 };
        receive | send
    }

    /// While a run is coming nothing can complete before its last byte: do not wake for less
    /// than a good part of it. Where more is on its way, a larger part. Returns the system
    /// calls made.
    pub fn sync_low_water(&mut self) -> u64 {
        let Some(now) = self.low_water else { return 0 };
        let part = if self.tags.slots.len() > 1 { LOW_WATER_BUSY } else { LOW_WATER_IDLE };
        let wanted = if self.receive.run_left() >= part { part } else { 1 };
        if wanted == now {
            return 0;
        }
        let set = crate::sys::set_receive_low_water(self.fd(), wanted);
        self.low_water = set.is_ok().then_some(wanted);
        1
    }

    /// Makes the first byte count again. Returns the system calls made.
    pub fn reset_low_water(&mut self) -> u64 {
        if self.low_water.is_none_or(|now| now == 1) {
            return 0;
        }
        let set = crate::sys::set_receive_low_water(self.fd(), 1);
        self.low_water = set.is_ok().then_some(1);
        1
    }

    /// A buffer that holds `header`.
    pub fn header_buffer(&mut self, header: &[u8]) -> Vec<u8> {
        let mut buffer = self.headers.pop().unwrap_or_default();
        buffer.extend_from_slice(header);
        buffer
    }

    /// Bytes of data that the kernel has, or that came, of what was posted with this number.
    pub fn moved(&self, wr_id: WrId) -> u64 {
        let requests = self.requests.entries.iter().enumerate();
        let sent = requests.filter_map(|(slot, request)| {
            let request = request.as_ref().filter(|request| request.wr_id == wr_id)?;
            Some(match request.opcode {
                Opcode::RdmaRead => request.cursor.passed(&request.data),
                _ => (request.done as usize).saturating_sub(self.send.unsent(slot)),
            })
        });
        let receives = self.tags.slots.iter().filter(|receive| receive.wr_id == wr_id);
        let came = receives.map(|receive| receive.cursor.passed(&receive.data));
        sent.chain(came).sum::<usize>() as u64
    }

    /// Ends a request and tells of it if it was signaled or failed.
    pub fn complete(&mut self, slot: u32, status: Status, core: &mut Core) {
        let mut request = self.requests.remove(slot);
        if request.signaled || status != Status::Success {
            core.complete(WorkCompletion {
                wr_id: request.wr_id,
                queue_pair: self.id,
                opcode: request.opcode,
                status,
                byte_len: request.total,
                header_len: 0,
            });
        }
        if self.headers.len() < HEADERS_KEPT {
            request.header.clear();
            self.headers.push(request.header);
        }
    }

    /// Takes back a tagged receive.
    pub fn cancel(&mut self, tag: Tag, core: &mut Core) {
        match self.tags.state(tag.0) {
            TagState::Posted(slot) => {
                let receive = self.tags.remove(slot);
                core.complete(tagged_completion(self.id, &receive, Status::Cancelled));
                if receive.started {
                    self.tags.discard_from(tag.0, receive.received);
                } else {
                    self.tags.cancel(tag.0);
                }
                self.receive.cancelled(slot);
            }
            TagState::Unknown if self.receive.waits_for_tag(tag) => {
                self.tags.discard_from(tag.0, 0);
            }
            _ => {}
        }
    }

    /// Gives all work back, in the order in which it was posted.
    pub fn end(mut self, core: &mut Core) {
        self.receive.abandon(core);
        let mut flushed: Vec<(u64, WorkCompletion)> = Vec::new();
        for request in self.requests.iter() {
            let completion = WorkCompletion {
                wr_id: request.wr_id,
                queue_pair: self.id,
                opcode: request.opcode,
                status: Status::Flushed,
                byte_len: 0,
                header_len: 0,
            };
            flushed.push((request.sequence, completion));
        }
        for receive in self.tags.slots.iter() {
            flushed.push((receive.sequence, tagged_completion(self.id, receive, Status::Flushed)));
        }
        // The spans go first: whoever sees a completion owns the memory.
        drop(self);
        flushed.sort_unstable_by_key(|(sequence, _)| *sequence);
        for (_, completion) in flushed {
            core.complete(completion);
        }
    }
}

/// How a tagged receive ended.
pub fn tagged_completion(
    queue_pair: QueuePair,
    receive: &TaggedReceive,
    status: Status,
) -> WorkCompletion {
    WorkCompletion {
        wr_id: receive.wr_id,
        queue_pair,
        opcode: Opcode::TaggedRecv,
        status,
        byte_len: receive.total,
        header_len: u32::from(receive.header_len),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn receive(tag: u64) -> TaggedReceive {
        TaggedReceive {
            wr_id: WrId(tag),
            sequence: 0,
            tag: Tag(tag),
            header: None,
            data: SgList::new(),
            capacity: 0,
            started: false,
            header_len: 0,
            total: 0,
            received: 0,
            cursor: Cursor::default(),
        }
    }

    #[test]
    fn a_tag_is_posted_once() {
        let mut tags = Tags::new();
        tags.post(receive(5));
        assert_eq!(tags.has_room_for(Tag(5)), Err(PostError::TagInUse));
        assert!(matches!(tags.state(5), TagState::Posted(_)));
        assert_eq!(tags.state(6), TagState::Unknown);
    }

    #[test]
    fn cancelled_tags_are_remembered_up_to_a_limit() {
        let mut tags = Tags::new();
        for tag in 0..=CANCELLED_MAX as u64 {
            tags.cancel(tag);
        }
        assert_eq!(tags.state(0), TagState::Unknown);
        assert_eq!(tags.state(1), TagState::Cancelled);
        assert_eq!(tags.has_room_for(Tag(1)), Err(PostError::TagInUse));
        tags.discard_from(1, 0);
        assert_eq!(tags.state(1), TagState::Discarding(0));
        tags.discarded(1);
        assert_eq!(tags.state(1), TagState::Unknown);
    }

    #[test]
    fn likely_receives_follow_the_last_one() {
        let mut tags = Tags::new();
        for tag in 1..=5 {
            tags.post(TaggedReceive { sequence: tag, ..receive(tag) });
        }
        let likely =
            |tags: &Tags| tags.likely().map(|s| tags.slots.at(s).tag.0).collect::<Vec<_>>();
        assert_eq!(likely(&tags), [1, 2, 3, 4, 5]);
        let TagState::Posted(third) = tags.state(3) else { panic!("posted") };
        tags.remove(third);
        assert_eq!(likely(&tags), [4, 5]);
        // One that is never used does not stop others, nor does the list grow.
        for tag in 6..5000 {
            tags.post(TaggedReceive { sequence: tag, ..receive(tag) });
            let TagState::Posted(slot) = tags.state(tag) else { panic!("posted") };
            tags.remove(slot);
        }
        assert!(tags.order.len() < 100);
    }

    #[test]
    fn slots_are_used_again() {
        let mut slab = Slab::new();
        let a = slab.insert("a");
        let b = slab.insert("b");
        assert_eq!(slab.remove(a), "a");
        assert_eq!((slab.len(), slab.insert("c"), *slab.at(b)), (1, a, "b"));
    }
}
