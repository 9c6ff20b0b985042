//! A hostile NIC: speaks to a real engine of `tcp` over a Unix socket, one connection an input.
//!
//! The input is a list of frames. Small keys, addresses and numbers in it stand for real ones, so
//! that frames get past the first check: regions 0 (all rights), 1 (read only), 2 (write only)
//! and 3 (gone), addresses counted from the region's start, and the number that a read or write
//! must have.

use std::cell::RefCell;
use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dafs_fabric::{
    Access, Address, Arena, Device, Engine, Listener, MemoryRegion, NamedAnswer, Provider,
    QueuePair, QueuePairEvent, RemoteSpan, Rkey, Span, Tag, WorkCompletion, WrId,
};
use dafs_fabric_tcp::TcpProvider;

use crate::generate::Random;

const FRAME: usize = 32;
const SEND: u8 = 4;
const TAGGED: u8 = 5;
const WRITE: u8 = 6;
const READ_REQUEST: u8 = 7;
const READ_RESPONSE: u8 = 8;
const READ_DONE: u8 = 9;
const WRITE_ACK: u8 = 10;
const FAULT: u8 = 11;
const NAMED_READ: u8 = 12;
const NAMED_RESPONSE: u8 = 13;

/// Bytes of each place in the arena.
const PLACE: usize = 128 << 10;
/// Places: four regions, receives, tagged data, read data; guards between them.
const PLACES: usize = 7;
const RECEIVES: u64 = 8;
const RECEIVE_BYTES: usize = 8 << 10;
const TAGS: u64 = 4;
const OPERATIONS: u64 = 4;
/// Polls without progress until a connection that should end has failed to.
const PATIENCE: usize = 100_000;
const GUARD: u8 = 0xa5;

thread_local! {
    static WORLD: RefCell<Option<World>> = const { RefCell::new(None) };
}

/// Runs one connection.
pub fn run(bytes: &[u8]) {
    WORLD.with(|world| world.borrow_mut().get_or_insert_with(World::new).connection(bytes));
}

struct World {
    _device: Arc<dyn Device>,
    engine: Box<dyn Engine>,
    listener: Box<dyn Listener>,
    path: String,
    arena: Arc<Arena>,
    regions: Vec<MemoryRegion>,
    keys: [(u64, u64); 4],
    /// What is under way: exactly these completions must come.
    posted: Vec<u64>,
    next: u64,
    /// A place that nobody touched.
    guard: Vec<u8>,
}

impl World {
    fn new() -> World {
        let device = TcpProvider::new().open().expect("device");
        let mut engine = device.engine().expect("engine");
        assert!(engine.serve_named());
        static WORLDS: AtomicU64 = AtomicU64::new(0);
        let (process, world) = (std::process::id(), WORLDS.fetch_add(1, Ordering::Relaxed));
        let folder = std::env::temp_dir();
        let path = format!("{}/dafs-fuzz-{process}-{world}.sock", folder.display());
        let address = Address { scheme: "unix".into(), target: path.clone() };
        let listener = device.listen(&address).expect("listen");
        let arena = Arena::new((2 * PLACES + 1) * PLACE).expect("arena");
        arena.span(0, arena.len()).copy_from(0, &vec![GUARD; arena.len()]);
        let rights = [(true, true), (true, false), (false, true), (true, true)];
        let mut regions: Vec<MemoryRegion> = rights
            .iter()
            .enumerate()
            .map(|(index, (remote_read, remote_write))| {
                let access = Access { remote_read: *remote_read, remote_write: *remote_write };
                device.register(place(&arena, index), access).expect("register")
            })
            .collect();
        let keys = std::array::from_fn(|index| {
            let remote = regions[index].remote();
            (remote.rkey.0, remote.addr)
        });
        drop(regions.pop());
        World {
            _device: device,
            engine,
            listener,
            path,
            arena,
            regions,
            keys,
            posted: vec![],
            next: 0,
            guard: vec![GUARD; PLACE],
        }
    }

    fn connection(&mut self, bytes: &[u8]) {
        assert_eq!(self.regions.len(), 3);
        let mut peer = UnixStream::connect(&self.path).expect("connect");
        peer.set_nonblocking(true).expect("non-blocking");
        peer.write_all(&hello()).expect("hello");
        let queue_pair = self.accept();
        self.post(queue_pair);
        for _ in 0..4 {
            assert!(!self.poll(queue_pair), "nothing was said and the connection is gone");
            let _ = peer.read(&mut [0; 65536]);
        }
        let frames = self.patched(bytes);
        let mut ended = self.feed(&mut peer, &frames, queue_pair);
        let _ = peer.shutdown(Shutdown::Write);
        for _ in 0..20 {
            ended = ended || self.poll(queue_pair);
            let _ = peer.read(&mut [0; 4096]);
        }
        if !ended {
            self.engine.disconnect(queue_pair);
        }
        let mut polls = 0;
        while !ended {
            ended = self.poll(queue_pair);
            let _ = peer.read(&mut [0; 65536]);
            polls += 1;
            assert!(polls < PATIENCE, "not quiescent");
        }
        // Receives belong to the engine and stay; all else came back before Quiescent.
        let rest = self.posted.iter().filter(|id| **id % 16 != 1).count();
        assert_eq!(rest, 0, "lost completions");
        self.check_memory();
    }

    fn accept(&mut self) -> QueuePair {
        for _ in 0..PATIENCE {
            if let Some(incoming) = self.listener.poll_accept() {
                return self.engine.accept(incoming, b"").expect("accept");
            }
        }
        panic!("no connection request");
    }

    /// A work request's number: its kind in the low four bits.
    fn wr_id(&mut self, kind: u64) -> WrId {
        self.next += 1;
        let id = self.next * 16 + kind;
        self.posted.push(id);
        WrId(id)
    }

    fn post(&mut self, queue_pair: QueuePair) {
        let standing = self.posted.len() as u64;
        for _ in standing..RECEIVES {
            let id = self.wr_id(1);
            // Which one of them completes does not matter here: they share their places.
            let at = (id.0 / 16 % RECEIVES) as usize * RECEIVE_BYTES;
            let buffer = place(&self.arena, 4).part(at, RECEIVE_BYTES);
            self.engine.post_recv(id, [buffer].into_iter().collect()).expect("receive");
        }
        for tag in 0..TAGS {
            let id = self.wr_id(2);
            let all = place(&self.arena, 5).part(tag as usize * 16384, 16384);
            let (header, data) = (all.part(0, 1024), all.part(1024, 15000));
            let mut data = [data].into_iter().collect();
            self.engine
                .post_tagged_recv(queue_pair, id, Tag(tag), Some(header), &mut data)
                .expect("tagged receive");
        }
        for number in 0..OPERATIONS {
            let data = place(&self.arena, 6).part(number as usize * 16384, 9000);
            let mut data = [data].into_iter().collect();
            let remote = RemoteSpan { rkey: Rkey(5), addr: 4096, len: 9000 };
            if number % 2 == 0 {
                let id = self.wr_id(3);
                self.engine.post_rdma_read(queue_pair, id, &mut data, remote, false).expect("read");
            } else {
                let id = self.wr_id(4);
                self.engine
                    .post_rdma_write(queue_pair, id, &mut data, remote, true)
                    .expect("write");
            }
        }
        for number in 0..OPERATIONS {
            let id = self.wr_id(5);
            let into = place(&self.arena, 6).part(65_536 + number as usize * 16384, 9000);
            let mut into = [into].into_iter().collect();
            self.engine.post_named_read(queue_pair, id, &mut into, b"name", 0).expect("named read");
        }
        self.engine.ring();
    }

    /// Answers what was asked for by name, and refuses each odd offset.
    fn answer(&mut self) {
        let mut asks = vec![];
        self.engine.take_named(&mut asks);
        for ask in asks {
            let (qp, id) = (ask.queue_pair, self.wr_id(6));
            if ask.offset % 2 == 1 {
                self.posted.pop();
                self.engine.answer_named(qp, id, ask.id, None).expect("in order");
                continue;
            }
            let data = [place(&self.arena, 0).part(0, ask.len as usize)].into_iter().collect();
            let mut answers = vec![NamedAnswer { id: ask.id, data }];
            self.engine.answer_all_named(qp, (id, id), &mut answers, true).expect("in order");
        }
    }

    /// Real keys, addresses and numbers instead of small ones.
    fn patched(&self, bytes: &[u8]) -> Vec<u8> {
        let (mut out, mut at, mut next) = (bytes.to_vec(), 0, [0u32; 2]);
        while let Some(frame) = out.get_mut(at..at + FRAME) {
            at += FRAME + body(frame);
            let is_write = frame[0] == WRITE;
            if !is_write && frame[0] != READ_REQUEST {
                continue;
            }
            let (key, addr, id) = (number(frame, 8, 8), number(frame, 16, 8), number(frame, 28, 4));
            if key < 4 {
                let (key, base) = self.keys[key as usize];
                frame[8..16].copy_from_slice(&key.to_le_bytes());
                frame[16..24].copy_from_slice(&base.wrapping_add(addr).to_le_bytes());
            }
            if id < 16 {
                let next = &mut next[usize::from(is_write)];
                frame[28..32].copy_from_slice(&next.to_le_bytes());
                let whole = !is_write || number(frame, 4, 4) == number(frame, 24, 4);
                *next += u32::from(whole);
            }
        }
        out
    }

    /// Sends all bytes, or as many as the engine takes; true when the queue pair is gone.
    fn feed(&mut self, peer: &mut UnixStream, frames: &[u8], queue_pair: QueuePair) -> bool {
        let (mut left, mut idle, mut buffer) = (frames, 0, [0; 65536]);
        while !left.is_empty() && idle < 100 {
            idle += 1;
            match peer.write(left) {
                Ok(len) => (left, idle) = (&left[len..], 0),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => left = &[],
            }
            if self.poll(queue_pair) {
                return true;
            }
            let _ = peer.read(&mut buffer);
        }
        false
    }

    /// True when the queue pair is quiescent.
    fn poll(&mut self, queue_pair: QueuePair) -> bool {
        let mut completions: Vec<WorkCompletion> = vec![];
        self.engine.poll(&mut completions, 64);
        self.answer();
        for completion in completions {
            let id = completion.wr_id.0;
            let at = self.posted.iter().position(|posted| *posted == id);
            self.posted.swap_remove(at.expect("a completion of nothing that was posted"));
        }
        while let Some(event) = self.engine.poll_event() {
            match event {
                QueuePairEvent::Quiescent { queue_pair: which } => {
                    assert_eq!(which, queue_pair);
                    return true;
                }
                QueuePairEvent::UnmatchedTag { .. } => self.engine.disconnect(queue_pair),
                _ => {}
            }
        }
        false
    }

    /// Between the places, where a peer may not write, and in what was posted for sending only,
    /// nothing changed.
    fn check_memory(&self) {
        let mut bytes = vec![0; PLACE];
        let untouched = [0, 2, 4, 6, 8, 10, 12, 14].into_iter().chain([3, 7]);
        for at in untouched {
            self.arena.span(at * PLACE, PLACE).copy_to(0, &mut bytes);
            assert!(bytes == self.guard, "memory {at} was touched");
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

fn place(arena: &Arc<Arena>, index: usize) -> Span {
    arena.span((2 * index + 1) * PLACE, PLACE)
}

fn number(frame: &[u8], at: usize, width: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes[..width].copy_from_slice(&frame[at..at + width]);
    u64::from_le_bytes(bytes)
}

fn body(frame: &[u8]) -> usize {
    number(frame, 2, 2) as usize + number(frame, 4, 4) as usize
}

fn hello() -> Vec<u8> {
    let magic = u64::from_le_bytes(*b"DAFSnic1");
    frame(1, 0, 0, magic, 0, 0, 1)
}

fn frame(kind: u8, header: u16, payload: u32, key: u64, addr: u64, total: u32, id: u32) -> Vec<u8> {
    let mut out = vec![kind, 0];
    out.extend(header.to_le_bytes());
    out.extend(payload.to_le_bytes());
    out.extend(key.to_le_bytes());
    out.extend(addr.to_le_bytes());
    out.extend(total.to_le_bytes());
    out.extend(id.to_le_bytes());
    out.resize(FRAME + usize::from(header) + payload as usize, 0x11);
    out
}

/// Frames that an honest peer might send.
pub fn seed(r: &mut Random) -> Vec<u8> {
    let mut out = vec![];
    for _ in 0..=r.below(6) {
        let (small, id, key) = (r.below(300) as u32, r.below(5) as u32, r.below(4));
        let long = 65_536 + r.below(8000) as u32;
        match r.below(12) {
            0 | 1 => out.extend(frame(SEND, r.below(100) as u16, small, 0, 0, 0, 0)),
            2 => out.extend(frame(TAGGED, 20, small, key, 0, small, 0)),
            3 => out.extend(frame(WRITE, 0, small, key, r.below(PLACE as u64), small, id)),
            4 => {
                out.extend(frame(WRITE, 0, 65_536, key, 0, long, id));
                out.extend(frame(WRITE, 0, long - 65_536, key, 65_536, long - 65_536, id));
            }
            5 => out.extend(frame(READ_REQUEST, 0, 0, key, r.below(PLACE as u64), small, id)),
            6 => {
                out.extend(frame(READ_RESPONSE, 0, 9000, 0, 0, 9000, 0));
                out.extend(frame(READ_DONE, 0, 0, 0, 0, 0, 0));
            }
            7 => out.extend(frame(READ_DONE, 0, 0, 0, 0, 0, id)),
            8 => out.extend(frame(WRITE_ACK, 0, 0, 0, 0, 0, id)),
            9 => out.extend(frame(NAMED_READ, r.below(65) as u16, 0, 0, r.below(4), small, id)),
            10 => out.extend(frame(NAMED_RESPONSE, 0, small, 0, 0, small, id / 2)),
            _ => out.extend(frame(FAULT, 0, 0, r.below(3), 0, 0, id)),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The frames of the seeds do get through to memory: the fuzzer is not fenced off by a hello
    /// or a key that changed.
    #[test]
    fn honest_frames_reach_memory() {
        run(&frame(WRITE, 0, 300, 0, 64, 300, 1));
        run(&frame(SEND, 20, 100, 0, 0, 0, 0));
        run(&frame(TAGGED, 20, 100, 2, 0, 100, 0));
        run(&frame(READ_RESPONSE, 0, 9000, 0, 0, 9000, 0));
        run(&[frame(NAMED_RESPONSE, 0, 9000, 0, 0, 9000, 0), frame(NAMED_READ, 4, 0, 0, 0, 99, 7)]
            .concat());
        WORLD.with(|world| {
            let world = world.borrow();
            let arena = &world.as_ref().expect("world").arena;
            let at = |index: usize, offset: usize| {
                let mut byte = [0];
                place(arena, index).copy_to(offset, &mut byte);
                byte[0]
            };
            assert_eq!((at(0, 63), at(0, 64), at(0, 363), at(0, 364)), (GUARD, 0x11, 0x11, GUARD));
            assert!((0..RECEIVES as usize).any(|slot| at(4, slot * RECEIVE_BYTES + 119) == 0x11));
            assert_eq!((at(5, 2 * 16384 + 19), at(5, 2 * 16384 + 1024 + 99)), (0x11, 0x11));
            assert_eq!((at(6, 8999), at(6, 65_536 + 8999)), (0x11, 0x11));
        });
    }

    #[test]
    fn a_write_without_the_right_changes_nothing() {
        run(&frame(WRITE, 0, 300, 1, 0, 300, 1));
        run(&frame(WRITE, 0, 300, 3, 0, 300, 1));
        run(&frame(WRITE, 0, 300, 0, PLACE as u64 - 299, 300, 1));
    }
}
