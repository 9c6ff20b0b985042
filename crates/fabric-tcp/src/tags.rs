//! Tagged receives, and what a tag means just now.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

use dafs_fabric::{
    Opcode, PostError, QueuePair, SgList, Span, Status, Tag, WorkCompletion, WrId, sg_bytes,
};

use crate::requests::Slab;
use crate::scatter_gather::{Cursor, let_go};

/// Tagged receives posted to a queue pair.
const TAGGED_MAX: usize = 65536;
/// Tags whose receive was taken back before the message came. The oldest is forgotten beyond
/// this; should its message still come, it is told as unmatched.
const CANCELLED_MAX: usize = 1024;

/// Chains in the beginning; a power of two.
const CHAINS_MIN: usize = 64;
/// No receive follows in a chain.
const NONE: u32 = u32::MAX;

/// Spreads tags. The peer chose the low half of those of its pushes, but it has few at a time.
#[derive(Debug, Default, Clone, Copy)]
pub struct TagHasher(u64);

fn spread(value: u64) -> u64 {
    let product = u128::from(value) * 0x9e37_79b9_7f4a_7c15;
    (product >> 64) as u64 ^ product as u64
}

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
        self.0 = spread(self.0 ^ value);
    }
}

type TagMap<T> = HashMap<u64, T, BuildHasherDefault<TagHasher>>;

/// A posted tagged receive.
#[derive(Debug)]
pub struct TaggedReceive {
    pub wr_id: WrId,
    pub sequence: u64,
    pub tag: Tag,
    /// It is for the answer to a named read, whose number the tag is.
    pub named: bool,
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
    /// The next one of its chain.
    next: u32,
}

impl TaggedReceive {
    fn new() -> TaggedReceive {
        TaggedReceive {
            wr_id: WrId(0),
            sequence: 0,
            tag: Tag(0),
            named: false,
            header: None,
            data: SgList::new(),
            capacity: 0,
            started: false,
            header_len: 0,
            total: 0,
            received: 0,
            cursor: Cursor::default(),
            next: NONE,
        }
    }
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
    /// The first receive of each chain: those whose tags are spread to the same place.
    chains: Vec<u32>,
    /// Of named reads, in the order of asking, which is that of the answers.
    named: VecDeque<u32>,
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
            chains: vec![NONE; CHAINS_MIN],
            named: VecDeque::new(),
            discarding: TagMap::default(),
            cancelled: VecDeque::new(),
            order: VecDeque::new(),
            last_ended: 0,
        }
    }

    /// Posts a receive. `sequence` is its place in the order of all that is posted.
    ///
    /// # Errors
    /// The tag is in use, or too many are.
    #[inline]
    pub fn post(
        &mut self,
        tag: Tag,
        wr_id: WrId,
        sequence: u64,
        header: Option<Span>,
        data: &mut SgList,
    ) -> Result<(), PostError> {
        let mut chain = self.chain_of(tag.0);
        let is_alone = self.chains[chain] == NONE;
        let is_known = !(is_alone && self.discarding.is_empty() && self.cancelled.is_empty());
        if is_known && self.state(tag.0) != TagState::Unknown {
            return Err(PostError::TagInUse);
        }
        if self.slots.len() >= self.chains.len() {
            if self.slots.len() >= TAGGED_MAX {
                return Err(PostError::QueueFull);
            }
            self.lengthen();
            chain = self.chain_of(tag.0);
        }
        let slot = self.take(tag, wr_id, sequence, data);
        let receive = self.slots.at_mut(slot);
        (receive.header, receive.named) = (header, false);
        receive.next = std::mem::replace(&mut self.chains[chain], slot);
        Ok(())
    }

    /// Posts where the answer to named read `number` goes.
    pub fn post_named(&mut self, number: u32, wr_id: WrId, sequence: u64, data: &mut SgList) {
        let slot = self.take(Tag(number.into()), wr_id, sequence, data);
        self.slots.at_mut(slot).named = true;
        self.named.push_back(slot);
    }

    #[inline(always)]
    fn take(&mut self, tag: Tag, wr_id: WrId, sequence: u64, data: &mut SgList) -> u32 {
        let slot = self.slots.take(TaggedReceive::new);
        let receive = self.slots.at_mut(slot);
        (receive.wr_id, receive.sequence, receive.tag) = (wr_id, sequence, tag);
        receive.capacity = sg_bytes(data);
        if !data.is_empty() {
            std::mem::swap(&mut receive.data, data);
        }
        (receive.started, receive.header_len) = (false, 0);
        (receive.total, receive.received) = (0, 0);
        receive.cursor = Cursor::default();
        if self.order.len() > 64 + 2 * self.slots.len() {
            let slots = &self.slots;
            self.order.retain(|entry| waiting(slots, *entry).is_some());
        }
        self.order.push_back((sequence, slot));
        slot
    }

    /// Named reads that are not answered.
    pub fn named(&self) -> usize {
        self.named.len()
    }

    /// The named read that is answered next, if that is its number.
    pub fn next_named(&self, number: u32) -> Option<u32> {
        let slot = *self.named.front()?;
        (self.slots.at(slot).tag.0 == u64::from(number)).then_some(slot)
    }

    /// This is the receive of the named read that is answered next.
    pub fn is_next_named(&self, slot: u32) -> bool {
        self.named.front() == Some(&slot)
    }

    fn chain_of(&self, tag: u64) -> usize {
        spread(tag) as usize & (self.chains.len() - 1)
    }

    /// More chains: as many as receives.
    #[cold]
    fn lengthen(&mut self) {
        self.chains = vec![NONE; 2 * self.chains.len()];
        let tagged = self.slots.numbered().filter(|(_, receive)| !receive.named);
        let posted = tagged.map(|(slot, receive)| (slot as u32, receive.tag.0));
        for (slot, tag) in posted.collect::<Vec<_>>() {
            let chain = self.chain_of(tag);
            self.slots.at_mut(slot).next = std::mem::replace(&mut self.chains[chain], slot);
        }
    }

    #[inline]
    fn find(&self, tag: u64) -> Option<u32> {
        let mut slot = self.chains[self.chain_of(tag)];
        while slot != NONE {
            let receive = self.slots.at(slot);
            if receive.tag.0 == tag {
                return Some(slot);
            }
            slot = receive.next;
        }
        None
    }

    /// Takes a receive out of its chain.
    #[inline]
    fn unlink(&mut self, slot: u32) {
        let receive = self.slots.at(slot);
        let (chain, next) = (self.chain_of(receive.tag.0), receive.next);
        let mut before = self.chains[chain];
        if before == slot {
            self.chains[chain] = next;
            return;
        }
        while self.slots.at(before).next != slot {
            before = self.slots.at(before).next;
        }
        self.slots.at_mut(before).next = next;
    }

    /// The receives whose messages have not begun, in the order in which they are likely to be
    /// used: that of posting, from the one that ended last on.
    pub fn likely(&self) -> impl Iterator<Item = (u32, &TaggedReceive)> + '_ {
        let next = self.order.partition_point(|(sequence, _)| *sequence <= self.last_ended);
        self.order.range(next..).filter_map(|entry| Some((entry.1, waiting(&self.slots, *entry)?)))
    }

    /// What to do with a message for `tag`.
    #[inline]
    pub fn state(&self, tag: u64) -> TagState {
        if let Some(slot) = self.find(tag) {
            TagState::Posted(slot)
        } else if self.discarding.is_empty() && self.cancelled.is_empty() {
            TagState::Unknown
        } else if let Some(offset) = self.discarding.get(&tag) {
            TagState::Discarding(*offset)
        } else if self.cancelled.contains(&tag) {
            TagState::Cancelled
        } else {
            TagState::Unknown
        }
    }

    /// Ends a receive, done or not, and lets its memory go: what it was.
    pub fn remove(&mut self, slot: u32) -> &TaggedReceive {
        if !self.slots.at(slot).named {
            return self.end_tagged(slot);
        }
        // Answers come in the order of asking; only who goes away takes others back.
        if self.is_next_named(slot) {
            return self.end_next_named(slot);
        }
        self.named.retain(|named| *named != slot);
        self.end(slot)
    }

    /// Ends a receive that is for no named read.
    #[inline(always)]
    pub fn end_tagged(&mut self, slot: u32) -> &mut TaggedReceive {
        self.unlink(slot);
        self.end(slot)
    }

    /// Ends the receive of the named read that [is answered next](Self::is_next_named).
    #[inline(always)]
    pub fn end_next_named(&mut self, slot: u32) -> &mut TaggedReceive {
        self.named.pop_front();
        self.end(slot)
    }

    #[inline(always)]
    fn end(&mut self, slot: u32) -> &mut TaggedReceive {
        let receive = self.slots.release(slot);
        receive.header = None;
        let_go(&mut receive.data);
        self.last_ended = receive.sequence;
        // Most end in the order of posting.
        if self.order.front() == Some(&(receive.sequence, slot)) {
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

/// The receive of an entry of the order, if its message has not begun.
fn waiting(slots: &Slab<TaggedReceive>, (sequence, slot): (u64, u32)) -> Option<&TaggedReceive> {
    slots.get(slot).filter(|receive| receive.sequence == sequence && !receive.started)
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
        opcode: if receive.named { Opcode::NamedRead } else { Opcode::TaggedRecv },
        status,
        byte_len: receive.total,
        header_len: u32::from(receive.header_len),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn try_post(tags: &mut Tags, tag: u64) -> Result<(), PostError> {
        tags.post(Tag(tag), WrId(tag), tag, None, &mut SgList::new())
    }

    fn post(tags: &mut Tags, tag: u64) {
        try_post(tags, tag).expect("a tag of its own");
    }

    fn slot_of(tags: &Tags, tag: u64) -> u32 {
        let TagState::Posted(slot) = tags.state(tag) else { panic!("{tag} is posted") };
        slot
    }

    #[test]
    fn a_tag_is_posted_once() {
        let mut tags = Tags::new();
        post(&mut tags, 5);
        assert_eq!(try_post(&mut tags, 5), Err(PostError::TagInUse));
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
        assert_eq!(try_post(&mut tags, 1), Err(PostError::TagInUse));
        tags.discard_from(1, 0);
        assert_eq!(tags.state(1), TagState::Discarding(0));
        tags.discarded(1);
        assert_eq!(tags.state(1), TagState::Unknown);
    }

    #[test]
    fn likely_receives_follow_the_last_one() {
        let mut tags = Tags::new();
        for tag in 1..=5 {
            post(&mut tags, tag);
        }
        let likely =
            |tags: &Tags| tags.likely().map(|(_, receive)| receive.tag.0).collect::<Vec<_>>();
        assert_eq!(likely(&tags), [1, 2, 3, 4, 5]);
        tags.remove(slot_of(&tags, 3));
        assert_eq!(likely(&tags), [4, 5]);
        // One that is never used does not stop others, nor does the list grow.
        for tag in 6..5000 {
            post(&mut tags, tag);
            tags.remove(slot_of(&tags, tag));
        }
        assert!(tags.order.len() < 100);
    }

    #[test]
    fn receives_are_found_however_many_there_are() {
        let mut tags = Tags::new();
        let tag_of = |number: u64| 1 << 62 | number << 16 | (number % 7);
        (0..1000).for_each(|number| post(&mut tags, tag_of(number)));
        for number in (0..1000).filter(|number| number % 3 == 0) {
            tags.remove(slot_of(&tags, tag_of(number)));
        }
        for number in 0..1000 {
            let state = tags.state(tag_of(number));
            assert_eq!(state == TagState::Unknown, number % 3 == 0, "{number}: {state:?}");
            assert!(
                number % 3 == 0
                    || tags.slots.at(slot_of(&tags, tag_of(number))).tag.0 == tag_of(number)
            );
        }
    }
}
