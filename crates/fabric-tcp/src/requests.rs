//! What was posted to send, and where it is kept.

use dafs_fabric::{Opcode, SgList, WrId};

use crate::frame::{FRAME_HEADER_BYTES, FrameHeader, Kind};
use crate::scatter_gather::{Cursor, let_go};

/// Sends, reads and writes under way; a peer that has more is not one of ours.
pub const SEND_QUEUE_DEPTH: usize = 1024;
/// Bytes of a header whose memory is kept for the next request.
const HEADER_KEPT_BYTES: usize = 256;

/// Entries with stable numbers. Who gives one up lets go what it holds; its place, and what memory
/// it keeps, is for the next one.
#[derive(Debug)]
pub struct Slab<T> {
    entries: Vec<Entry<T>>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct Entry<T> {
    in_use: bool,
    value: T,
}

impl<T> Slab<T> {
    /// Without entries.
    pub fn new() -> Slab<T> {
        Slab { entries: Vec::new(), free: Vec::new() }
    }

    /// Entries in use.
    pub fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// Takes an entry: one that was given up, else a new one.
    #[inline(always)]
    pub fn take(&mut self, new: impl FnOnce() -> T) -> u32 {
        if let Some(slot) = self.free.pop() {
            self.entries[slot as usize].in_use = true;
            return slot;
        }
        let slot = u32::try_from(self.entries.len()).expect("fewer than 2^32 entries");
        self.entries.push(Entry { in_use: true, value: new() });
        slot
    }

    /// Gives an entry up: what it holds is to be let go.
    #[inline(always)]
    pub fn release(&mut self, slot: u32) -> &mut T {
        let entry = &mut self.entries[slot as usize];
        assert!(std::mem::take(&mut entry.in_use), "the slot is in use");
        self.free.push(slot);
        &mut entry.value
    }

    /// The entry of `slot`.
    pub fn at(&self, slot: u32) -> &T {
        self.get(slot).expect("the slot is in use")
    }

    /// The entry of `slot`, if it is in use.
    pub fn get(&self, slot: u32) -> Option<&T> {
        self.entries.get(slot as usize).filter(|entry| entry.in_use).map(|entry| &entry.value)
    }

    /// Those in use, with their numbers.
    pub fn numbered(&self) -> impl Iterator<Item = (usize, &T)> {
        let entries = self.entries.iter().enumerate();
        entries.filter(|(_, entry)| entry.in_use).map(|(slot, entry)| (slot, &entry.value))
    }

    /// The entry of `slot`.
    pub fn at_mut(&mut self, slot: u32) -> &mut T {
        let entry = &mut self.entries[slot as usize];
        assert!(entry.in_use, "the slot is in use");
        &mut entry.value
    }

    /// Those in use.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.numbered().map(|(_, value)| value)
    }
}

/// What is asked for by a send, tagged send, RDMA write or read, or a named read, but for its bytes.
#[derive(Debug, Clone, Copy)]
pub struct Posted {
    pub wr_id: WrId,
    pub opcode: Opcode,
    pub signaled: bool,
    /// Tag or region key.
    pub key: u64,
    /// The peer's address.
    pub addr: u64,
    /// Bytes of data.
    pub total: u32,
}

impl Posted {
    /// The head of a send, or of a tagged send that fits one frame.
    #[inline(always)]
    fn whole_frame(&self, header_len: usize) -> FrameHeader {
        let (kind, total) = match self.opcode {
            Opcode::TaggedSend => (Kind::Tagged, self.total),
            _ => (Kind::Send, 0),
        };
        FrameHeader {
            header_len: header_len as u16,
            payload_len: self.total,
            key: self.key,
            total,
            ..FrameHeader::new(kind)
        }
    }
}

/// A posted send, tagged send, RDMA write or read.
#[derive(Debug)]
pub struct Request {
    pub posted: Posted,
    /// Order of posting, over all that is posted to the engine.
    pub sequence: u64,
    /// The head of its first frame, and then its header: they leave as one piece. It is made when the
    /// request is posted where that is its only frame, else when the frame is cut.
    pub head_and_header: Vec<u8>,
    pub data: SgList,
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

impl Request {
    fn new(posted: Posted) -> Request {
        Request {
            posted,
            sequence: 0,
            head_and_header: Vec::new(),
            data: SgList::new(),
            done: 0,
            cursor: Cursor::default(),
            id: 0,
            sends_before: 0,
            left: false,
        }
    }
}

impl Request {
    /// Bytes of its header.
    pub fn header_len(&self) -> u16 {
        (self.head_and_header.len() - FRAME_HEADER_BYTES) as u16
    }

    /// Notes the head of its first frame.
    pub fn begin(&mut self, head: &FrameHeader) {
        if let Some(place) = self.head_and_header.first_chunk_mut() {
            *place = head.encode();
        }
    }
}

impl Slab<Request> {
    /// Takes a request in, and its list of data: which entry that is.
    #[inline(always)]
    pub fn post(
        &mut self,
        posted: Posted,
        sequence: u64,
        header: &[u8],
        data: &mut SgList,
    ) -> (u32, &mut Request) {
        let slot = self.take(|| Request::new(posted));
        let request = &mut self.entries[slot as usize].value;
        (request.posted, request.sequence) = (posted, sequence);
        let head = posted.whole_frame(header.len()).encode();
        let head_and_header = &mut request.head_and_header;
        head_and_header.reserve(FRAME_HEADER_BYTES + header.len());
        head_and_header.extend_from_slice(&head);
        head_and_header.extend_from_slice(header);
        if !data.is_empty() {
            std::mem::swap(&mut request.data, data);
        }
        (request.done, request.cursor) = (0, Cursor::default());
        (request.id, request.left) = (0, false);
        (slot, request)
    }

    /// A request ended: what was asked for.
    #[inline(always)]
    pub fn end(&mut self, slot: u32) -> &Posted {
        let request = self.release(slot);
        let_go(&mut request.data);
        request.head_and_header.clear();
        if request.head_and_header.capacity() > HEADER_KEPT_BYTES {
            request.head_and_header = Vec::new();
        }
        &request.posted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_used_again() {
        let mut slab = Slab::new();
        let (a, b) = (slab.take(|| "a"), slab.take(|| "b"));
        slab.release(a);
        assert_eq!((slab.len(), slab.get(a), *slab.at(b)), (1, None, "b"));
        assert_eq!((slab.take(|| "c"), *slab.at(a)), (a, "a"));
    }
}
