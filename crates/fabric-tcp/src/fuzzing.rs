//! Doors for fuzzers: bytes of a peer, whatever they are.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;

use dafs_fabric::{
    Access, Arena, Device, Engine, MemoryRegion, QueuePairEvent, Span, Tag, WorkCompletion, WrId,
};
use smallvec::smallvec;

use crate::device::TcpDevice;
use crate::engine::TcpEngine;
use crate::frame::{FRAME_HEADER_BYTES, FrameHeader};

/// Bytes of memory before and after what peers may reach; they must not change.
const GUARD_BYTES: usize = 4096;
const MEMORY_BYTES: usize = 64 * 1024;

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
    next: u64,
}

impl Receiver {
    /// Connected.
    pub fn new() -> Receiver {
        let device = TcpDevice::open(true).expect("a device");
        let mut engine = device.tcp_engine().expect("an engine");
        let (ours, peer) = UnixStream::pair().expect("a socket pair");
        ours.set_nonblocking(true).expect("non-blocking");
        peer.set_nonblocking(true).expect("non-blocking");
        let queue_pair = engine.adopt(ours.into()).expect("a queue pair");
        let arena = Arena::new(MEMORY_BYTES + 2 * GUARD_BYTES).expect("an arena");
        arena.span(0, arena.len()).write_message(0, &vec![0xa5; arena.len()]);
        let memory = arena.span(0, arena.len());
        let inside = memory.part(GUARD_BYTES, MEMORY_BYTES);
        let access = Access { remote_read: true, remote_write: true };
        let region = device.register(inside.clone(), access).expect("a region");
        let mut receiver =
            Receiver { engine, peer, memory, region, completions: Vec::new(), next: 0 };
        for tag in 0..8 {
            let mut data = smallvec![inside.part(tag as usize * 5000, 5000)];
            let header = (tag % 2 == 0).then(|| inside.part(60_000, 100));
            receiver
                .engine
                .post_tagged_recv(queue_pair, WrId(tag), Tag(tag), header, &mut data)
                .expect("a tagged receive");
        }
        receiver.engine.serve_named();
        for id in 0..2 {
            let mut into = smallvec![inside.part(40_000 + id * 5000, 5000)];
            let asked = receiver.engine.post_named_read(queue_pair, WrId(3), &mut into, b"n", 0);
            asked.expect("a named read");
        }
        let remote = receiver.region.part(0, 1000);
        for _ in 0..2 {
            let mut data = smallvec![inside.part(0, 1000)];
            receiver
                .engine
                .post_rdma_write(queue_pair, WrId(1), &mut data.clone(), remote, true)
                .expect("a write");
            receiver
                .engine
                .post_rdma_read(queue_pair, WrId(2), &mut data, remote, false)
                .expect("a read");
        }
        receiver
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
            self.completions.clear();
            while let Some(ask) = self.engine.next_named() {
                assert!(ask.name().len() <= dafs_fabric::NAME_BYTES_MAX);
                let data = self.memory.part(GUARD_BYTES, ask.len as usize);
                let data = (ask.offset % 2 == 0).then_some(smallvec![data]);
                let answered = self.engine.answer_named(
                    ask.queue_pair,
                    WrId(4),
                    ask.id,
                    data.clone().as_mut().map(|data| (data, true)),
                );
                answered.expect("in order, as long as asked for");
                idle = 0;
            }
            for _ in 0..2 {
                let buffer = self.memory.part(GUARD_BYTES, MEMORY_BYTES);
                if self.next < 1000 && self.engine.post_recv(WrId(9), smallvec![buffer]).is_ok() {
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

impl Default for Receiver {
    fn default() -> Receiver {
        Receiver::new()
    }
}

/// Feeds bytes to a fresh [`Receiver`]. Each `[0xfe, 0xed]` in front of a frame's key is
/// replaced by a valid key and address, so that random bytes reach memory at times.
pub fn receive(bytes: &[u8]) {
    let mut receiver = Receiver::new();
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
    receiver.take(&bytes);
}
