//! Tagged receives, and what a tag means just now.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

use dafs_fabric::{Opcode, PostError, QueuePair, SgList, Span, Status, Tag, WorkCompletion, WrId};

use crate::requests::Slab;
use crate::scatter_gather::Cursor;

/// Tagged receives posted to a queue pair.
const TAGGED_MAX: usize = 65536;
/// Tags whose receive was taken back before the message came. The oldest is forgotten beyond
/// this; should its message still come, it is told as unmatched.
const CANCELLED_MAX: usize = 1024;

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
    /// Nothing is posted.
    pub fn new() -> Tags {
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
}
