//! The sending half of a queue pair: what leaves next, and how it leaves.
//!
//! Two lanes. The ordered lane holds sends, writes and read requests in the order of posting;
//! the other holds tagged messages and the answers to reads. The ordered lane goes first after
//! every turn of the other, so that a small request never waits behind a large transfer. Within
//! the other lane small tagged messages, reads and large tagged messages take turns.
//!
//! A turn is a *run*: up to [`RUN_FRAMES_MAX`] frames of one message with nothing between them.
//! The first one says how many follow. The receiver knows from that where every byte of the run
//! goes before it comes, and can receive all of it with one system call and no copy.

mod out_frame;

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use dafs_fabric::{Opcode, Status};
use smallvec::SmallVec;

use crate::engine::Core;
use crate::frame::{
    FAULT_READ, FAULT_WRITE, FRAME_HEADER_BYTES, FRAME_PAYLOAD_BYTES_MAX, FrameHeader, Kind,
    RUN_FRAMES_MAX,
};
use crate::memory_region::{Pin, Region};
use crate::queue_pair::{Connection, Request, SEND_QUEUE_DEPTH, Slab};
use crate::scatter_gather::Cursor;
use crate::sys::{Gather, is_out_of_memory, is_temporary};
use crate::turns::Load;
use out_frame::{OutFrame, Source, gather_frame};

/// The most bytes that are cut into frames ahead of the kernel: a request posted later waits for so
/// many.
pub const SEND_BYTES: usize = 1024 * 1024;
/// Frames of a batch.
const BATCH_FRAMES: usize = 256;
/// Small tagged messages per turn.
const SMALL_TURN: usize = 16;
/// Refused writes whose faults have not left. A peer that causes more is not one of ours.
const CONTROL_MAX: usize = 2 * SEND_QUEUE_DEPTH;

/// A peer's read that we serve.
#[derive(Debug)]
struct ReadService {
    id: u32,
    /// `None`: refused.
    region: Option<Arc<Region>>,
    offset: usize,
    len: u32,
    done: u32,
}

/// The sending half.
#[derive(Debug, Default)]
pub struct SendSide {
    /// Faults of writes, each after the acknowledgement of the writes before it.
    control: VecDeque<FrameHeader>,
    acknowledge: Option<u32>,
    ordered: VecDeque<u32>,
    small: VecDeque<u32>,
    bulk: VecDeque<u32>,
    /// Bytes that the first of `bulk` had of its turn.
    bulk_turn: usize,
    reads: VecDeque<ReadService>,
    /// Writes and reads that wait for the peer's answer, in order.
    pub writes: VecDeque<u32>,
    pub reads_asked: VecDeque<u32>,
    next_write: u32,
    next_read: u32,
    sends_posted: u64,
    sends_framed: u64,
    /// A large write is in front of the ordered lane; the other lane is to have a turn.
    other_lane_next: bool,
    /// Which class of the other lane has the next turn.
    class: u8,
    batch: VecDeque<OutFrame>,
    /// Bytes of the first frame of the batch that the kernel has.
    sent: usize,
    blocked: bool,
    broken: bool,
    /// On the engine's list of queue pairs to flush.
    pub listed: bool,
}

impl SendSide {
    /// The socket takes no more for now.
    pub fn is_blocked(&self) -> bool {
        self.blocked && !self.broken
    }

    /// Bytes of a request's data that are cut into frames and not with the kernel.
    pub fn unsent(&self, slot: usize) -> usize {
        let mut gone = self.sent;
        let mut unsent = 0;
        for frame in &self.batch {
            let payload_gone = gone.saturating_sub(FRAME_HEADER_BYTES + frame.header_len);
            if matches!(frame.source, Source::Request(of) if of as usize == slot) {
                unsent += frame.payload_len.saturating_sub(payload_gone);
            }
            gone = 0;
        }
        unsent
    }

    /// The socket takes no more for ever.
    pub fn is_broken(&self) -> bool {
        self.broken
    }

    /// The answer to the peer's hello: the first frame.
    pub fn push_first(&mut self, bytes: &[u8]) {
        let mut head = [0; FRAME_HEADER_BYTES];
        let (first, rest) = bytes.split_at(FRAME_HEADER_BYTES);
        head.copy_from_slice(first);
        self.batch.push_back(OutFrame {
            head,
            header_len: 0,
            payload_len: rest.len(),
            source: Source::Bytes(rest.into()),
            cursor: Cursor::default(),
            last: false,
        });
    }

    /// Queues a posted request, which it numbers.
    pub fn push(&mut self, slot: u32, request: &mut Request) {
        request.sends_before = self.sends_posted;
        match request.opcode {
            Opcode::TaggedSend if request.total as usize <= FRAME_PAYLOAD_BYTES_MAX => {
                self.small.push_back(slot);
            }
            Opcode::TaggedSend => self.bulk.push_back(slot),
            Opcode::RdmaWrite => {
                request.id = self.next_write;
                self.next_write = self.next_write.wrapping_add(1);
                self.writes.push_back(slot);
                self.ordered.push_back(slot);
            }
            Opcode::RdmaRead => {
                request.id = self.next_read;
                self.next_read = self.next_read.wrapping_add(1);
                self.reads_asked.push_back(slot);
                self.ordered.push_back(slot);
            }
            _ => {
                self.sends_posted += 1;
                self.ordered.push_back(slot);
            }
        }
    }

    /// The peer's write `id` is placed.
    pub fn acknowledge_write(&mut self, id: u32) {
        self.acknowledge = Some(id);
    }

    /// The peer's write `id` was refused.
    pub fn refuse_write(&mut self, id: u32) -> Result<(), &'static str> {
        if self.control.len() >= CONTROL_MAX {
            return Err("too many writes under way");
        }
        if let Some(before) = self.acknowledge.take() {
            self.control.push_back(FrameHeader { id: before, ..FrameHeader::new(Kind::WriteAck) });
        }
        self.control.push_back(FrameHeader {
            id,
            key: FAULT_WRITE,
            ..FrameHeader::new(Kind::Fault)
        });
        Ok(())
    }

    /// Serves the peer's read `id`; refuses it without a region.
    pub fn serve_read(
        &mut self,
        id: u32,
        found: Option<(Arc<Region>, usize)>,
        len: u32,
    ) -> Result<(), &'static str> {
        if self.reads.len() >= SEND_QUEUE_DEPTH {
            return Err("too many reads under way");
        }
        let (region, offset) = found.unzip();
        self.reads.push_back(ReadService { id, region, offset: offset.unwrap_or(0), len, done: 0 });
        Ok(())
    }

    /// True when there is something to send.
    pub fn has_work(&self) -> bool {
        !(self.batch.is_empty()
            && self.control.is_empty()
            && self.acknowledge.is_none()
            && self.ordered.is_empty()
            && self.small.is_empty()
            && self.bulk.is_empty()
            && self.reads.is_empty())
    }

    /// A message is begun in a batch that has room for all of it, or else where no other large one is:
    /// who got out of step once would have each message in two batches, which costs streams a quarter.
    fn may_begin(&self, bytes: u32, frames: usize) -> bool {
        let is_large = |frame: &OutFrame| frame.payload_len == FRAME_PAYLOAD_BYTES_MAX;
        bytes as usize <= frames * FRAME_PAYLOAD_BYTES_MAX || !self.batch.iter().any(is_large)
    }

    /// Cuts work into frames, in the order in which they leave.
    fn fill(&mut self, requests: &mut Slab<Request>, most: usize, load: &mut Load) {
        let mut bytes = 0;
        while bytes < most && self.batch.len() < BATCH_FRAMES {
            let before = self.batch.len();
            let frames = (most - bytes).div_ceil(FRAME_PAYLOAD_BYTES_MAX);
            self.fill_turn(requests, frames.min(RUN_FRAMES_MAX));
            if self.batch.len() == before {
                break;
            }
            for frame in self.batch.range(before..) {
                bytes += frame.len();
                load.message(frame.payload_len);
            }
        }
    }

    fn fill_turn(&mut self, requests: &mut Slab<Request>, frames: usize) {
        if let Some(header) = self.control.pop_front() {
            self.batch.push_back(OutFrame::new(&header, Source::None));
        } else if let Some(id) = self.acknowledge.take() {
            let header = FrameHeader { id, ..FrameHeader::new(Kind::WriteAck) };
            self.batch.push_back(OutFrame::new(&header, Source::None));
        } else if self.ordered.is_empty() || std::mem::take(&mut self.other_lane_next) {
            // Where the other lane has nothing that may go, the ordered one has another turn.
            if !self.fill_other_lane(requests, frames) && !self.ordered.is_empty() {
                self.fill_ordered(requests, frames);
            }
        } else {
            self.fill_ordered(requests, frames);
        }
    }

    fn fill_ordered(&mut self, requests: &mut Slab<Request>, frames: usize) {
        let Some(slot) = self.ordered.front().copied() else { return };
        let request = requests.at_mut(slot);
        match request.opcode {
            Opcode::RdmaWrite if request.done == 0 && !self.may_begin(request.total, frames) => {
                return;
            }
            Opcode::RdmaWrite => {
                if self.frame_run(slot, request, Kind::Write, frames) {
                    self.ordered.pop_front();
                } else {
                    self.other_lane_next = true;
                }
                return;
            }
            Opcode::RdmaRead => {
                let header = FrameHeader {
                    key: request.key,
                    addr: request.addr,
                    total: request.total,
                    id: request.id,
                    ..FrameHeader::new(Kind::ReadRequest)
                };
                let mut frame = OutFrame::new(&header, Source::Request(slot));
                frame.last = true;
                self.batch.push_back(frame);
            }
            _ => {
                let header = FrameHeader {
                    header_len: request.header.len() as u16,
                    payload_len: request.total,
                    ..FrameHeader::new(Kind::Send)
                };
                let mut frame = OutFrame::new(&header, Source::Request(slot));
                frame.last = true;
                self.batch.push_back(frame);
                self.sends_framed += 1;
            }
        }
        self.ordered.pop_front();
    }

    /// One turn of the first class that has one; false where none has.
    fn fill_other_lane(&mut self, requests: &mut Slab<Request>, frames: usize) -> bool {
        for _ in 0..3 {
            let class = self.class;
            self.class = (class + 1) % 3;
            let some = match class {
                0 => self.fill_small(requests),
                1 => self.fill_read(frames),
                _ => self.fill_bulk(requests, frames),
            };
            if some {
                return true;
            }
        }
        false
    }

    fn may_go(&self, request: &Request) -> bool {
        request.sends_before <= self.sends_framed
    }

    fn fill_small(&mut self, requests: &mut Slab<Request>) -> bool {
        let before = self.batch.len();
        for _ in 0..SMALL_TURN {
            let Some(slot) = self.small.front().copied() else { break };
            let request = requests.at_mut(slot);
            if !self.may_go(request) {
                break;
            }
            self.frame_run(slot, request, Kind::Tagged, 1);
            self.small.pop_front();
        }
        self.batch.len() > before
    }

    fn fill_bulk(&mut self, requests: &mut Slab<Request>, frames: usize) -> bool {
        let Some(slot) = self.bulk.front().copied() else { return false };
        let request = requests.at_mut(slot);
        if !self.may_go(request) || request.done == 0 && !self.may_begin(request.total, frames) {
            return false;
        }
        let before = request.done;
        let done = self.frame_run(slot, request, Kind::Tagged, frames);
        self.bulk_turn += (request.done - before) as usize;
        if done {
            self.bulk.pop_front();
            self.bulk_turn = 0;
        } else if self.bulk_turn >= SEND_BYTES {
            // Messages up to a batch are not torn; longer ones take turns.
            self.bulk.rotate_left(1);
            self.bulk_turn = 0;
        }
        true
    }

    /// Reads are served in order, one after the other.
    fn fill_read(&mut self, frames: usize) -> bool {
        let begins = self.reads.front().filter(|read| read.done == 0);
        if begins.is_some_and(|read| !self.may_begin(read.len, frames)) {
            return false;
        }
        let Some(read) = self.reads.front_mut() else { return false };
        let region = match &read.region {
            Some(region) if !region.is_revoked() => region.clone(),
            _ => {
                let fault =
                    FrameHeader { id: read.id, key: FAULT_READ, ..FrameHeader::new(Kind::Fault) };
                self.batch.push_back(OutFrame::new(&fault, Source::None));
                self.reads.pop_front();
                return true;
            }
        };
        for run in (0..frames_of(read.len - read.done, frames)).rev() {
            let left = read.len - read.done;
            let header = FrameHeader {
                run: run as u8,
                payload_len: left.min(FRAME_PAYLOAD_BYTES_MAX as u32),
                addr: u64::from(read.done),
                total: read.len,
                id: read.id,
                ..FrameHeader::new(Kind::ReadResponse)
            };
            let source = Source::Region(region.clone(), read.offset + read.done as usize);
            read.done += header.payload_len;
            self.batch.push_back(OutFrame::new(&header, source));
        }
        if read.done == read.len {
            let header = FrameHeader { id: read.id, ..FrameHeader::new(Kind::ReadDone) };
            self.batch.push_back(OutFrame::new(&header, Source::Done(region)));
            self.reads.pop_front();
        }
        true
    }

    /// Cuts up to `frames` frames from a tagged send or a write; true when it is all cut.
    fn frame_run(&mut self, slot: u32, request: &mut Request, kind: Kind, frames: usize) -> bool {
        let runs = frames_of(request.total - request.done, frames).max(1);
        for run in (0..runs).rev() {
            let left = request.total - request.done;
            let mut header = FrameHeader {
                run: run as u8,
                payload_len: left.min(FRAME_PAYLOAD_BYTES_MAX as u32),
                key: request.key,
                id: request.id,
                ..FrameHeader::new(kind)
            };
            if kind == Kind::Write {
                header.addr = request.addr.wrapping_add(u64::from(request.done));
                header.total = left;
            } else {
                header.addr = u64::from(request.done);
                header.total = request.total;
                if request.done == 0 {
                    header.header_len = request.header.len() as u16;
                }
            }
            let mut frame = OutFrame::new(&header, Source::Request(slot));
            frame.cursor = request.cursor;
            frame.last = left == header.payload_len;
            request.cursor.walk(&request.data, header.payload_len as usize, |_, _, _| {});
            request.done += header.payload_len;
            self.batch.push_back(frame);
        }
        request.done == request.total
    }

    /// Looks again at the regions that the batch reads, and holds them for the call to come.
    fn pin_regions(&mut self) -> SmallVec<[Pin; 4]> {
        let mut pins: SmallVec<[Pin; 4]> = SmallVec::new();
        let begun = self.sent > 0;
        for (index, frame) in self.batch.iter_mut().enumerate() {
            match &frame.source {
                Source::Region(region, _) => {
                    if pins.last().is_some_and(|pin| Arc::ptr_eq(pin.region(), region)) {
                        continue;
                    }
                    match region.pin() {
                        Some(pin) => pins.push(pin),
                        None => frame.source = Source::Revoked,
                    }
                }
                Source::Done(region) if region.is_revoked() && !(begun && index == 0) => {
                    let mut id = [0; 4];
                    id.copy_from_slice(&frame.head[28..32]);
                    let fault = FrameHeader {
                        id: u32::from_le_bytes(id),
                        key: FAULT_READ,
                        ..FrameHeader::new(Kind::Fault)
                    };
                    *frame = OutFrame::new(&fault, Source::None);
                }
                _ => {}
            }
        }
        pins
    }
}

fn frames_of(bytes: u32, frames_max: usize) -> usize {
    (bytes as usize).div_ceil(FRAME_PAYLOAD_BYTES_MAX).min(frames_max)
}

impl Connection {
    /// Hands queued work to the kernel, a turn at most. True when more could go at once.
    pub fn flush(&mut self, core: &mut Core) -> bool {
        if self.send.broken {
            return false;
        }
        if self.send.batch.is_empty() {
            let most = core.turns.send_bytes(&self.load);
            self.send.fill(&mut self.requests, most, &mut self.load);
            if self.send.batch.is_empty() {
                self.send.blocked = false;
                return false;
            }
        }
        match self.send_batch(core) {
            Ok(is_taken) => {
                self.send.blocked = !is_taken;
                is_taken && self.send.has_work()
            }
            // Without memory a socket with room stays writable: epoll lets us try again.
            Err(error) if is_temporary(&error) || is_out_of_memory(&error) => {
                self.send.blocked = true;
                false
            }
            // The receiving half meets the end of the connection too, after the bytes that
            // came before it; where only sending failed, there is an end from now on.
            Err(error) => {
                tracing::debug!(%error, "cannot send");
                self.send.broken = true;
                self.shut_down();
                false
            }
        }
    }

    fn shut_down(&self) {
        // Another descriptor of the same socket, which may be of another family, too.
        if let Ok(socket) = self.socket.try_clone() {
            let _ = std::net::TcpStream::from(socket).shutdown(std::net::Shutdown::Both);
        }
    }

    /// False when the kernel did not take all that it was asked to.
    fn send_batch(&mut self, core: &mut Core) -> io::Result<bool> {
        loop {
            let (sent, asked, is_cut_by_file) = self.send_call(core)?;
            self.advance(sent, core);
            if sent < asked || !is_cut_by_file || self.send.batch.is_empty() {
                return Ok(sent == asked);
            }
        }
    }

    /// One system call: bytes that were sent, bytes asked for, and whether it ended because a
    /// file needs a call of its own.
    fn send_call(&mut self, core: &mut Core) -> io::Result<(usize, usize, bool)> {
        let pins = self.send.pin_regions();
        let mut gather = Gather::new(&mut core.io);
        let mut skip = self.send.sent;
        for frame in &self.send.batch {
            gather_frame(&mut gather, frame, skip, &self.requests, &core.zeros);
            skip = 0;
            if gather.is_full() {
                break;
            }
        }
        core.system_calls += 1;
        let sent = gather.send(std::os::fd::AsRawFd::as_raw_fd(&self.socket))?;
        drop(pins);
        core.turns.sent(sent);
        Ok((sent, gather.len(), gather.is_cut_by_file()))
    }

    /// The kernel has `sent` bytes more.
    fn advance(&mut self, mut sent: usize, core: &mut Core) {
        while let Some(frame) = self.send.batch.front() {
            let left = frame.len() - self.send.sent;
            if sent < left {
                self.send.sent += sent;
                return;
            }
            sent -= left;
            self.send.sent = 0;
            let (last, source) = match self.send.batch.pop_front() {
                Some(frame) => (frame.last, frame.source),
                None => return,
            };
            if last && let Source::Request(slot) = source {
                self.left(slot, core);
            }
        }
    }

    /// The last byte of a request is with the kernel.
    fn left(&mut self, slot: u32, core: &mut Core) {
        let request = self.requests.at_mut(slot);
        request.left = true;
        match request.opcode {
            // The peer's answer completes these.
            Opcode::RdmaWrite => request.data.clear(),
            Opcode::RdmaRead => {}
            _ => self.complete(slot, Status::Success, core),
        }
    }
}
