//! Rings of messages in memory that both ends map.
//!
//! The memory is made by the client: a page of words, then a ring for each direction. A ring has records in
//! whole lines of 64 bytes: a word that says how long the message is, and the message. The word is zero until
//! all of the record is there, so that who looks for the next message looks at one line, which brings the
//! message as well. Before a record is shown, the word behind it is made zero. Who takes messages says how far
//! it is in a word of the page; who sends looks at that only when there seems to be no room.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use dafs_fabric::mem::PAGE_BYTES;
use dafs_fabric::{Arena, SHORT_MESSAGE_BYTES, ShortMessage, Span, Words, sg_bytes};

use crate::wire::Side;

/// Bytes of each ring.
pub const RING_BYTES: usize = 64 * 1024;
/// Bytes of the memory of a connection.
pub const MEMORY_BYTES: usize = PAGE_BYTES + 2 * RING_BYTES;
/// The most bytes of a message's header.
pub const HEADER_BYTES_MAX: usize = 4096;
/// The most bytes of a message.
pub const SEND_BYTES_MAX: usize = 16 * 1024 + HEADER_BYTES_MAX;

/// Bytes of a line: the least that a record takes.
pub const LINE_BYTES: usize = 64;
const LINE: u64 = LINE_BYTES as u64;
const RING: u64 = RING_BYTES as u64;
/// The word of a record, in front of its message.
const WORD_BYTES: u64 = 8;
/// Bytes of a message in the line of its word; a short one has a line more at most.
const FIRST_LINE_BYTES: usize = (LINE - WORD_BYTES) as usize;
const _: () = assert!(SHORT_MESSAGE_BYTES == FIRST_LINE_BYTES + LINE as usize);
/// Marks a record: lengths alone may be zero.
const THERE: u64 = 1 << 63;

/// The peer broke the rules.
pub type Violation = &'static str;

/// What both ends of a connection map.
#[derive(Debug)]
pub struct Memory {
    words: Words,
    span: Span,
}

impl Memory {
    /// Of [`MEMORY_BYTES`], which nobody has used.
    pub fn new(arena: &Arc<Arena>) -> Arc<Memory> {
        let span = arena.span(0, MEMORY_BYTES);
        Arc::new(Memory { words: Words::new(arena), span })
    }

    #[inline]
    pub fn load(&self, offset: usize, order: Ordering) -> u64 {
        self.words.load(offset / size_of::<u64>(), order)
    }

    #[inline]
    pub fn store(&self, offset: usize, value: u64, order: Ordering) {
        self.words.store(offset / size_of::<u64>(), value, order);
    }

    /// Sleeps by a word, as [`Words::wait`].
    pub fn wait(&self, offset: usize, seen: u64, timeout: Option<Duration>) {
        self.words.wait(offset / size_of::<u64>(), seen, timeout);
    }

    /// Wakes who sleeps by a word, or is about to.
    pub fn wake(&self, offset: usize) {
        self.words.count(offset / size_of::<u64>());
        self.words.wake(offset / size_of::<u64>());
    }
}

/// Where the words of a side are: how far it has taken messages, and whether it sleeps, with that by which
/// it sleeps, and its processor, behind it. Lines that are not fetched together.
pub fn places(side: Side) -> (usize, usize) {
    match side {
        Side::Client => (0, 256),
        Side::Server => (512, 768),
    }
}

fn ring_from(side: Side) -> usize {
    match side {
        Side::Client => PAGE_BYTES,
        Side::Server => PAGE_BYTES + RING_BYTES,
    }
}

pub fn other(side: Side) -> Side {
    match side {
        Side::Client => Side::Server,
        Side::Server => Side::Client,
    }
}

#[inline]
fn record_bytes(len: usize) -> u64 {
    (WORD_BYTES + len as u64 + LINE - 1) & !(LINE - 1)
}

/// The word of a record.
#[inline]
fn word_of(header_len: usize, len: usize) -> u64 {
    THERE | (header_len as u64) << 32 | len as u64
}

/// The end that puts messages in.
#[derive(Debug)]
pub struct Sender {
    memory: Arc<Memory>,
    base: usize,
    taken_at: usize,
    /// Bytes of records that were put in, ever, and taken out, as far as was looked.
    put: u64,
    taken: u64,
}

impl Sender {
    /// Of fresh memory.
    pub fn new(memory: &Arc<Memory>, side: Side) -> Sender {
        let taken_at = places(other(side)).0;
        Sender { memory: memory.clone(), base: ring_from(side), taken_at, put: 0, taken: 0 }
    }

    /// Whether there is room for a message.
    #[inline]
    pub fn has_room(&mut self, len: usize) -> Result<bool, Violation> {
        // A line more: the word behind the record.
        let bytes = record_bytes(len) + LINE;
        if self.put - self.taken + bytes <= RING {
            return Ok(true);
        }
        let taken = self.memory.load(self.taken_at, Ordering::Acquire);
        if !taken.is_multiple_of(LINE) || taken < self.taken || taken > self.put {
            return Err("it took messages that were never sent");
        }
        self.taken = taken;
        Ok(self.put - taken + bytes <= RING)
    }

    #[inline]
    fn word_at(&self, position: u64) -> usize {
        self.base + (position % RING) as usize
    }

    /// As [`push`](Self::push), of what most messages are: without data, and in one piece.
    #[inline(always)]
    pub fn push_header(&mut self, header: &[u8]) {
        let at = (self.put % RING) as usize + WORD_BYTES as usize;
        if at + header.len() > RING_BYTES {
            return self.push(header, &[]);
        }
        let next = self.put + record_bytes(header.len());
        self.memory.store(self.word_at(next), 0, Ordering::Relaxed);
        self.memory.span.write_message(self.base + at, header);
        let word = word_of(header.len(), header.len());
        self.memory.store(self.word_at(self.put), word, Ordering::Release);
        self.put = next;
    }

    /// Puts a message in, for which there [is room](Self::has_room).
    pub fn push(&mut self, header: &[u8], data: &[Span]) {
        let len = header.len() + sg_bytes(data);
        let next = self.put + record_bytes(len);
        self.memory.store(self.word_at(next), 0, Ordering::Relaxed);
        let mut at = self.put + WORD_BYTES;
        self.write_header(&mut at, header);
        for span in data {
            self.write_data(&mut at, span);
        }
        let word = word_of(header.len(), len);
        self.memory.store(self.word_at(self.put), word, Ordering::Release);
        self.put = next;
    }

    #[inline]
    fn write_header(&self, at: &mut u64, header: &[u8]) {
        let place = (*at % RING) as usize;
        let (first, rest) = header.split_at(header.len().min(RING_BYTES - place));
        self.memory.span.write_message(self.base + place, first);
        if !rest.is_empty() {
            self.memory.span.write_message(self.base, rest);
        }
        *at += header.len() as u64;
    }

    #[inline]
    fn write_data(&self, at: &mut u64, data: &Span) {
        let place = (*at % RING) as usize;
        let first = data.len().min(RING_BYTES - place);
        self.memory.span.copy_part(self.base + place, data, 0, first);
        if first < data.len() {
            self.memory.span.copy_part(self.base, data, first, data.len() - first);
        }
        *at += data.len() as u64;
    }
}

/// What is next in a ring, as far as that is seen at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    Nothing,
    /// A short message, which can be taken without a receive.
    Short(Message),
    /// Another one, or what is none.
    Other,
}

/// A message in a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Message {
    /// Bytes, those of the header among them.
    pub len: usize,
    header_len: usize,
}

impl Message {
    /// It can be taken without a receive.
    #[inline]
    pub fn is_short(&self) -> bool {
        self.header_len == self.len && self.len <= SHORT_MESSAGE_BYTES
    }
}

/// The end that takes messages out.
#[derive(Debug)]
pub struct Receiver {
    memory: Arc<Memory>,
    base: usize,
    taken_at: usize,
    taken: u64,
}

impl Receiver {
    /// Of fresh memory.
    pub fn new(memory: &Arc<Memory>, side: Side) -> Receiver {
        let (base, taken_at) = (ring_from(other(side)), places(side).0);
        Receiver { memory: memory.clone(), base, taken_at, taken: 0 }
    }

    /// Whether there is something, right or wrong.
    #[inline]
    pub fn has_some(&self) -> bool {
        self.word() != 0
    }

    #[inline]
    fn word(&self) -> u64 {
        self.memory.load(self.base + (self.taken % RING) as usize, Ordering::Acquire)
    }

    /// What is next, which stays.
    #[inline(always)]
    pub fn next(&self) -> Next {
        let word = self.word();
        let len = (word & 0xffff_ffff) as usize;
        if len <= SHORT_MESSAGE_BYTES && word == word_of(len, len) {
            Next::Short(Message { len, header_len: len })
        } else if word == 0 {
            Next::Nothing
        } else {
            Next::Other
        }
    }

    /// The next message, which stays.
    #[inline]
    pub fn front(&self) -> Result<Option<Message>, Violation> {
        let word = self.word();
        if word == 0 {
            return Ok(None);
        }
        let (len, header_len) =
            ((word & 0xffff_ffff) as usize, (word >> 32 & 0x7fff_ffff) as usize);
        let right = word & THERE != 0 && len <= SEND_BYTES_MAX;
        if !right || header_len > len.min(HEADER_BYTES_MAX) {
            return Err("a message of an impossible length");
        }
        Ok(Some(Message { len, header_len }))
    }

    /// Copies the front message, which is a [short](Message::is_short) one, by whole lines.
    #[inline(always)]
    pub fn copy_short(&self, message: Message, into: &mut ShortMessage) {
        let line = (self.taken % RING) as usize;
        let (at, span) = (self.base + line + WORD_BYTES as usize, &self.memory.span);
        into.len = message.len;
        if message.len <= FIRST_LINE_BYTES {
            if let Some(first) = into.bytes.first_chunk_mut::<FIRST_LINE_BYTES>() {
                span.read_bytes(at, first);
            }
        } else if line < RING_BYTES - LINE_BYTES {
            // Two lines that are neighbours.
            span.read_bytes(at, &mut into.bytes);
        } else {
            self.copy_first_and_last(into);
        }
    }

    /// As [`copy_short`](Self::copy_short), of two lines at the ends of the ring.
    #[cold]
    fn copy_first_and_last(&self, into: &mut ShortMessage) {
        let last = self.base + RING_BYTES - LINE_BYTES;
        let (first, rest) = into.bytes.split_at_mut(FIRST_LINE_BYTES);
        if let (Some(first), Some(rest)) = (first.first_chunk_mut(), rest.first_chunk_mut()) {
            let first: &mut [u8; FIRST_LINE_BYTES] = first;
            let rest: &mut [u8; LINE_BYTES] = rest;
            self.memory.span.read_bytes(last + WORD_BYTES as usize, first);
            self.memory.span.read_bytes(self.base, rest);
        }
    }

    /// Copies the front message to buffers, if they have room for it.
    #[inline]
    pub fn copy_to(&self, message: Message, buffers: &[Span]) -> bool {
        let place = ((self.taken + WORD_BYTES) % RING) as usize;
        let Message { len, header_len } = message;
        match buffers {
            // What most messages are.
            [first, ..] if header_len == len && len <= first.len().min(RING_BYTES - place) => {
                first.copy_message_part(0, &self.memory.span, self.base + place, len);
                true
            }
            _ if len <= sg_bytes(buffers) => {
                self.copy_parts_to(message, buffers);
                true
            }
            _ => false,
        }
    }

    fn copy_parts_to(&self, message: Message, buffers: &[Span]) {
        let mut done = 0;
        for buffer in buffers {
            let mut filled = 0;
            while done < message.len && filled < buffer.len() {
                let is_header = done < message.header_len;
                let end = if is_header { message.header_len } else { message.len };
                let place = ((self.taken + WORD_BYTES + done as u64) % RING) as usize;
                let len = (end - done).min(buffer.len() - filled).min(RING_BYTES - place);
                let (from, ring) = (self.base + place, &self.memory.span);
                if is_header {
                    buffer.copy_message_part(filled, ring, from, len);
                } else {
                    buffer.copy_part(filled, ring, from, len);
                }
                done += len;
                filled += len;
            }
        }
    }

    /// Gives the room of the front message back.
    #[inline]
    pub fn pop(&mut self, message: Message) {
        self.taken += record_bytes(message.len);
        self.memory.store(self.taken_at, self.taken, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory() -> Arc<Memory> {
        Memory::new(&Arena::shared(MEMORY_BYTES).expect("memory"))
    }

    fn span(bytes: &[u8]) -> Span {
        let span = Arena::new(bytes.len().max(1)).expect("memory").span(0, bytes.len());
        span.copy_from(0, bytes);
        span
    }

    fn contents(span: &Span) -> Vec<u8> {
        let mut out = vec![0; span.len()];
        span.copy_to(0, &mut out);
        out
    }

    #[test]
    fn messages_of_all_lengths_go_round() {
        let words = memory();
        let mut sender = Sender::new(&words, Side::Client);
        let mut receiver = Receiver::new(&words, Side::Server);
        let target = span(&vec![0; SEND_BYTES_MAX]);
        let text: Vec<u8> = (0..SEND_BYTES_MAX).map(|at| (at * 7 % 251) as u8).collect();
        let data = span(&text);
        for round in 0..200 {
            let len = round * 977 % (SEND_BYTES_MAX - 300);
            let header = &text[..round.min(300)];
            assert_eq!(sender.has_room(header.len() + len), Ok(true));
            assert_eq!(receiver.front(), Ok(None));
            sender.push(header, &[data.part(0, len / 3), data.part(len / 3, len - len / 3)]);
            let message = receiver.front().expect("right").expect("there");
            assert_eq!(message.len, header.len() + len);
            let parts = [target.part(0, 100), target.part(100, target.len() - 100)];
            assert!(receiver.copy_to(message, &parts));
            assert!(
                message.len == 0 || !receiver.copy_to(message, &[target.part(0, message.len - 1)])
            );
            receiver.pop(message);
            let got = contents(&target);
            assert!(
                got[..header.len()] == *header && got[header.len()..message.len] == text[..len]
            );
        }
    }

    #[test]
    fn a_full_ring_has_room_again() {
        let words = memory();
        let mut sender = Sender::new(&words, Side::Server);
        let mut receiver = Receiver::new(&words, Side::Client);
        for _ in 0..3 {
            let mut count = 0;
            while sender.has_room(50).expect("right") {
                sender.push(&[7; 50], &[]);
                count += 1;
            }
            assert_eq!(count, RING_BYTES / 64 - 1);
            while let Some(message) = receiver.front().expect("right") {
                receiver.pop(message);
                count -= 1;
            }
            assert_eq!(count, 0);
        }
    }

    #[test]
    fn lies_in_words_are_found() {
        let words = memory();
        let mut sender = Sender::new(&words, Side::Client);
        while sender.has_room(0).expect("right") {
            sender.push(b"", &[]);
        }
        for lie in [64 * 1024, u64::MAX, 1] {
            words.store(places(Side::Server).0, lie, Ordering::Release);
            assert!(sender.has_room(0).is_err(), "{lie}");
        }
        let receiver = Receiver::new(&words, Side::Client);
        for lie in [1, u64::MAX, THERE | 1 << 20, THERE | 5 << 32 | 4, THERE | 5000 << 32 | 6000] {
            words.store(ring_from(Side::Server), lie, Ordering::Release);
            assert!(receiver.front().is_err(), "{lie:x}");
        }
    }
}
