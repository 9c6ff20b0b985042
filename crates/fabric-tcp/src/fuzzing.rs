//! Doors for fuzzers: bytes of a peer, whatever they are.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;

use dafs_fabric::{
    Access, Arena, Device, Engine, MemoryRegion, NamedAnswer, QueuePair, QueuePairEvent, Span,
    Status, Tag, WorkCompletion, WrId,
};
use smallvec::smallvec;

use crate::device::TcpDevice;
use crate::engine::TcpEngine;
use crate::frame::{FRAME_HEADER_BYTES, FrameHeader, Kind};

/// Bytes of memory before and after what peers may reach; they must not change.
const GUARD_BYTES: usize = 4096;
const MEMORY_BYTES: usize = 192 * 1024;
/// Room for the data of a tagged message, or of the answer to a named read.
const PLACE_BYTES: usize = 5000;
/// Tagged receives, and named reads after the first, third and so on of them.
const TAGS: u64 = 8;
/// Bytes of a header; the last tagged receive has no room for one.
const HEADER_BYTES: usize = 100;
/// Where the headers are, what RDMA reads bring, receives, and the region.
const HEADERS_AT: usize = 12 * PLACE_BYTES;
const READ_AT: usize = HEADERS_AT + 8 * HEADER_BYTES;
const RECEIVES_AT: usize = 62 * 1024;
const REGION_AT: usize = 128 * 1024;

/// All receives of messages have one place.
const RECEIVE: WrId = WrId(12);

/// What a receive came to, and the bytes that it has.
type Done = (WorkCompletion, Vec<u8>);

/// Decodes a frame header; what it accepts it encodes again to the same bytes.
pub fn decode(bytes: &[u8]) {
    let Some(head) = bytes.first_chunk::<FRAME_HEADER_BYTES>() else { return };
    if let Ok(header) = FrameHeader::decode(head) {
        assert_eq!(&header.encode(), head);
        if let Some(next) = header.continuation() {
            assert_eq!(FrameHeader::decode(&next.encode()), Ok(next));
        }
    }
}

/// A receiver with work of all kinds posted, to which a peer may say anything.
pub struct Receiver {
    engine: TcpEngine,
    peer: UnixStream,
    memory: Span,
    region: MemoryRegion,
    completions: Vec<WorkCompletion>,
    done: Vec<Done>,
    asked: Vec<(u32, Vec<u8>, u64, u32)>,
    next: u64,
}

impl Receiver {
    /// Connected; `predicts` where the next messages go, as whoever asked for the connection does. Else many small messages
    /// have come, and each call brings what there is.
    pub fn new(predicts: bool) -> Receiver {
        let device = TcpDevice::open(true).expect("a device");
        let mut engine = device.tcp_engine().expect("an engine");
        let (ours, peer) = UnixStream::pair().expect("a socket pair");
        ours.set_nonblocking(true).expect("non-blocking");
        peer.set_nonblocking(true).expect("non-blocking");
        let queue_pair = engine.adopt_as(ours.into(), predicts).expect("a queue pair");
        let arena = Arena::new(MEMORY_BYTES + 2 * GUARD_BYTES).expect("an arena");
        arena.span(0, arena.len()).write_message(0, &vec![0xa5; arena.len()]);
        let memory = arena.span(0, arena.len());
        let access = Access { remote_read: true, remote_write: true };
        let region = memory.part(GUARD_BYTES + REGION_AT, MEMORY_BYTES - REGION_AT);
        let region = device.register(region, access).expect("a region");
        engine.serve_named();
        let mut receiver = Receiver {
            engine,
            peer,
            memory,
            region,
            completions: Vec::new(),
            done: Vec::new(),
            asked: Vec::new(),
            next: 0,
        };
        receiver.post(queue_pair);
        // All is asked for, and a first message of this size has come: more are expected.
        let first = FrameHeader {
            header_len: 20,
            payload_len: PLACE_BYTES as u32,
            total: PLACE_BYTES as u32,
            ..FrameHeader::new(Kind::Tagged)
        };
        let mut words = first.encode().to_vec();
        words.resize(words.len() + first.body_len(), 0x22);
        assert!(receiver.take(&[]) && receiver.take(&words));
        if !predicts {
            let small = FrameHeader::new(Kind::NamedRead).encode().repeat(64);
            assert!(receiver.take(&small));
            receiver.asked.clear();
        }
        receiver
    }

    fn inside(&self, at: usize, len: usize) -> Span {
        self.memory.part(GUARD_BYTES + at, len)
    }

    /// Where the data and the header of the work request with this number go, if it is of these.
    fn place(&self, number: u64) -> Option<(Span, Option<Span>)> {
        let header_at = HEADERS_AT + number as usize * HEADER_BYTES;
        let header = (number < TAGS - 1).then(|| self.inside(header_at, HEADER_BYTES));
        let data = (number < 12).then(|| self.inside(number as usize * PLACE_BYTES, PLACE_BYTES));
        Some((data?, header))
    }

    fn post(&mut self, queue_pair: QueuePair) {
        for tag in 0..TAGS {
            let (data, header) = self.place(tag).expect("of these");
            let posted = self.engine.post_tagged_recv(
                queue_pair,
                WrId(tag),
                Tag(tag),
                header,
                &mut smallvec![data],
            );
            posted.expect("a tagged receive");
            if tag % 2 == 0 {
                let number = TAGS + tag / 2;
                let (into, _) = self.place(number).expect("of these");
                let asked = self.engine.post_named_read(
                    queue_pair,
                    WrId(number),
                    &mut smallvec![into],
                    b"n",
                    0,
                );
                asked.expect("a named read");
            }
        }
        let remote = self.region.part(0, 1000);
        for _ in 0..2 {
            let mut data = smallvec![self.inside(READ_AT, 600)];
            let remote = dafs_fabric::RemoteSpan { len: 600, ..remote };
            self.engine
                .post_rdma_write(queue_pair, WrId(13), &mut data.clone(), remote, true)
                .expect("a write");
            self.engine
                .post_rdma_read(queue_pair, WrId(14), &mut data, remote, false)
                .expect("a read");
        }
    }

    /// Notes what receives came to.
    fn note_done(&mut self) {
        for end in std::mem::take(&mut self.completions) {
            let (mut bytes, mut head) = (Vec::new(), Vec::new());
            let place = self.place(end.wr_id.0);
            if place.is_none() && end.wr_id != RECEIVE {
                continue;
            }
            if let (Status::Success, Some((data, header))) = (end.status, place) {
                data.read_message(end.byte_len as usize, &mut bytes);
                if let Some(header) = header {
                    header.read_message(end.header_len as usize, &mut head);
                }
            }
            bytes.extend(head);
            self.done.push((end, bytes));
        }
    }

    /// Answers what the peer asks for by name: each odd offset is refused. True if it asked.
    fn answer(&mut self) -> bool {
        let mut asks = Vec::new();
        self.engine.take_named(&mut asks);
        let mut answers = Vec::new();
        for ask in &asks {
            assert!(ask.name().len() <= dafs_fabric::NAME_BYTES_MAX);
            self.asked.push((ask.id, ask.name().to_vec(), ask.offset, ask.len));
            if ask.offset % 2 == 0 {
                let data = smallvec![self.inside(REGION_AT, ask.len as usize)];
                answers.push(NamedAnswer { id: ask.id, data });
            }
            if ask.offset % 2 == 1 || answers.len() == 3 {
                let numbers = (WrId(15), WrId(16));
                let answered =
                    self.engine.answer_all_named(ask.queue_pair, numbers, &mut answers, true);
                answered.expect("in order, as long as asked for");
            }
            if ask.offset % 2 == 1 {
                let refused = self.engine.answer_named(ask.queue_pair, WrId(17), ask.id, None);
                refused.expect("in order");
            }
        }
        if let Some(ask) = asks.last() {
            let numbers = (WrId(15), WrId(16));
            let answered =
                self.engine.answer_all_named(ask.queue_pair, numbers, &mut answers, true);
            answered.expect("in order, as long as asked for");
        }
        !asks.is_empty()
    }

    /// The key of the region that the peer may reach, and its first address.
    pub fn region(&self) -> (u64, u64) {
        let remote = self.region.part(0, 1);
        (remote.rkey.0, remote.addr)
    }

    /// Takes bytes from the peer. False when the connection has ended.
    ///
    /// # Panics
    /// When memory outside of what was posted changed: that is what is looked for.
    pub fn take(&mut self, mut bytes: &[u8]) -> bool {
        let mut answers = [0; 4096];
        let mut idle = 0;
        while idle < 3 {
            idle += 1;
            match self.peer.write(bytes) {
                Ok(sent) => bytes = &bytes[sent..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => bytes = &[],
            }
            while self.peer.read(&mut answers).is_ok_and(|got| got > 0) {}
            if self.engine.poll(&mut self.completions, 64) > 0 || !bytes.is_empty() {
                idle = 0;
            }
            self.note_done();
            if self.answer() {
                idle = 0;
            }
            for _ in 0..2 {
                let buffer = self.inside(RECEIVES_AT, REGION_AT - RECEIVES_AT);
                if self.next < 1000 && self.engine.post_recv(RECEIVE, smallvec![buffer]).is_ok() {
                    self.next += 1;
                }
            }
            while let Some(event) = self.engine.poll_event() {
                match event {
                    QueuePairEvent::UnmatchedTag { queue_pair, tag } => {
                        self.engine.cancel_tagged_recv(queue_pair, tag);
                        idle = 0;
                    }
                    QueuePairEvent::Quiescent { .. } => {
                        self.check();
                        return false;
                    }
                    _ => {}
                }
            }
        }
        self.check();
        true
    }

    fn check(&self) {
        let mut guard = Vec::new();
        for at in [0, GUARD_BYTES + MEMORY_BYTES] {
            self.memory.part(at, GUARD_BYTES).read_message(GUARD_BYTES, &mut guard);
            assert!(guard.iter().all(|byte| *byte == 0xa5), "foreign memory was touched");
        }
    }
}

/// Feeds bytes to fresh [`Receiver`]s: to one that predicts and to one that does not, `step` at a time, and to one less than a
/// head at a time, so that no short cut is open to it. To all they are to mean the same. Each `[0xfe, 0xed]` in front of a
/// frame's key is replaced by a valid key and address, so that random bytes reach memory at times. Returns how many receives
/// have ended well, and how much the peer asked for by name.
pub fn receive(bytes: &[u8], step: usize) -> (usize, usize) {
    let step = step.max(1);
    let ways = [(false, FRAME_HEADER_BYTES - 1), (false, step), (true, step)];
    let [plain, others @ ..] = ways.map(|(predicts, step)| {
        let mut receiver = Receiver::new(predicts);
        let (key, addr) = receiver.region();
        let mut bytes = bytes.to_vec();
        for at in (0..bytes.len()).step_by(FRAME_HEADER_BYTES) {
            if let Some(frame) = bytes.get_mut(at..at + FRAME_HEADER_BYTES)
                && frame[8..10] == [0xfe, 0xed]
            {
                let offset = u64::from(frame[16]) * 257;
                frame[8..16].copy_from_slice(&key.to_le_bytes());
                frame[16..24].copy_from_slice(&(addr + offset).to_le_bytes());
            }
        }
        let stands = bytes.chunks(step).all(|piece| receiver.take(piece));
        // What was asked for by a queue pair that ends is forgotten, if nobody took it by then.
        let mut asked = if stands { receiver.asked } else { Vec::new() };
        // An address may come as an offset, and each has others.
        for (_, _, offset, _) in &mut asked {
            let inside = offset.checked_sub(addr).filter(|inside| *inside < MEMORY_BYTES as u64);
            *offset = inside.unwrap_or(*offset);
        }
        let (ends, bytes): (Vec<_>, Vec<_>) = receiver.done.into_iter().unzip();
        ((stands, ends, asked), bytes)
    });
    for other in others {
        assert_eq!(other.0, plain.0, "how it comes matters");
        assert!(other.1 == plain.1, "how it comes matters to what comes");
    }
    let (_, ends, asked) = plain.0;
    (ends.iter().filter(|end| end.status == Status::Success).count(), asked.len())
}
