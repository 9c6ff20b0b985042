//! The receiving half of a queue pair: from the socket to the final place.
//!
//! Each read asks for the rest of the current body at its destination, for the frames of a run
//! at theirs, and then for a header. While payload comes, that last piece is exactly one frame
//! header, so that payload never lands in the staging memory; while only small messages come, it
//! is all of the staging memory, so that one system call brings many.

use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use dafs_fabric::{
    Opcode, QueuePairEvent, SgList, Span, Status, Tag, WorkCompletion, WrId, sg_bytes,
};

use crate::engine::Core;
use crate::frame::{FAULT_READ, FAULT_WRITE, FRAME_HEADER_BYTES, FrameHeader, Kind};
use crate::memory_region::{Pin, Region};
use crate::queue_pair::{Connection, TagState, tagged_completion};
use crate::scatter_gather::Cursor;
use crate::sys::{Scatter, is_hung_up, is_temporary};

/// Bytes received before another queue pair has its turn.
const TURN_BYTES: usize = 1024 * 1024;
/// Reads before another queue pair has its turn.
const TURN_READS: usize = 64;
/// Bytes that one read asks for.
const READ_BYTES: usize = 1024 * 1024;
/// A frame with as much payload is not to pass through the staging memory.
const PLACED_BYTES: u32 = 1024;
/// So many small frames in a row end the care for payload.
const CARE_FRAMES: u8 = 64;

/// What is wrong with the peer.
type Violation = &'static str;

/// A receive of the shared queue.
#[derive(Debug)]
pub struct PostedReceive {
    pub wr_id: WrId,
    pub buffers: SgList,
}

/// A receive into which a message is coming.
#[derive(Debug)]
struct Filling {
    receive: PostedReceive,
    cursor: Cursor,
}

/// Where a body goes.
#[derive(Debug, Clone, Copy)]
enum Target {
    Discard,
    /// To the receive that is being filled.
    Receive,
    /// To this tagged receive.
    Tagged(u32),
    /// To the region of the write that is coming.
    Write,
    /// To this read.
    Read(u32),
}

/// The frame whose body is coming.
#[derive(Debug)]
struct Current {
    header: FrameHeader,
    target: Target,
    done: usize,
}

/// The peer's write that is coming.
#[derive(Debug)]
struct Write {
    id: u32,
    key: u64,
    /// What its next frame must say.
    addr: u64,
    left: u32,
    /// `None`: refused.
    region: Option<Arc<Region>>,
    offset: usize,
}

/// Why receiving pauses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pause {
    /// For a posted receive.
    Receive,
    /// For the receive of this tag, or its cancellation.
    Tag(u64),
}

/// Bytes received and not looked at.
#[derive(Debug)]
struct Staged {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
}

/// What comes of a new header.
enum Begin {
    /// A body, to be received.
    Body(Target),
    /// Nothing more.
    Done,
    /// It cannot be received yet.
    Pause(Pause),
}

/// What one system call brought.
struct Pass {
    got: usize,
    asked: usize,
    /// Bodies that it placed.
    direct: usize,
}

/// What a turn of receiving came to.
#[derive(Debug, PartialEq, Eq)]
pub enum Received {
    /// All there was.
    All,
    /// There may be more.
    More,
    /// The end of the connection; why, for people.
    End(String),
}

fn violated(violation: Violation) -> Received {
    Received::End(format!("peer violated the protocol: {violation}"))
}

/// The receiving half.
#[derive(Debug, Default)]
pub struct ReceiveSide {
    head: [u8; FRAME_HEADER_BYTES],
    head_len: usize,
    current: Option<Current>,
    filling: Option<Filling>,
    /// What the next header must be, in a run.
    expected: Option<FrameHeader>,
    paused: Option<(FrameHeader, Pause)>,
    staged: Option<Staged>,
    write: Option<Write>,
    next_write: u32,
    /// Frames for which payload is still expected.
    care: u8,
}

impl ReceiveSide {
    /// Waits for something to be posted.
    pub fn is_paused(&self) -> bool {
        self.paused.is_some()
    }

    /// Waits for this tag.
    pub fn waits_for_tag(&self, tag: Tag) -> bool {
        matches!(self.paused, Some((_, Pause::Tag(waiting))) if waiting == tag.0)
    }

    /// The tagged receive in `slot` was cancelled: what comes of it now goes nowhere.
    pub fn cancelled(&mut self, slot: u32) {
        if let Some(current) = &mut self.current
            && matches!(current.target, Target::Tagged(target) if target == slot)
        {
            current.target = Target::Discard;
        }
    }

    /// Gives a half-filled receive back to the shared queue.
    pub fn abandon(&mut self, core: &mut Core) {
        if let Some(filling) = self.filling.take() {
            core.receives.push_front(filling.receive);
        }
    }
}

/// Where the next bytes of a message go.
#[derive(Default)]
struct Sink<'a> {
    header: Option<&'a Span>,
    /// Header bytes go to the list too, before the data.
    header_in_list: bool,
    /// `None`: they go nowhere.
    list: Option<(&'a [Span], Cursor)>,
}

impl<'a> Sink<'a> {
    /// Adds the places of the rest of a body, of which `done` bytes came before.
    fn place(&mut self, io: &mut Scatter<'a>, trash: &'a Span, header: &FrameHeader, done: usize) {
        let left = header.body_len() - done;
        let header_left = usize::from(header.header_len).saturating_sub(done);
        let Some((list, cursor)) = &mut self.list else {
            io.span(trash, 0, left);
            return;
        };
        let mut listed = left;
        if !self.header_in_list && header_left > 0 {
            listed -= header_left;
            let span = self.header.expect("a header was checked to fit its place");
            io.span(span, done, header_left);
        }
        cursor.walk(list, listed, |span, offset, len| io.span(span, offset, len));
    }

    /// Copies bytes of a body to their place, after `done` bytes that came before.
    fn copy(&mut self, bytes: &[u8], header: &FrameHeader, done: usize) {
        let header_left = usize::from(header.header_len).saturating_sub(done);
        let (message, mut data) = bytes.split_at(header_left.min(bytes.len()));
        let Some((list, cursor)) = &mut self.list else { return };
        if self.header_in_list {
            let mut rest = message;
            cursor.walk(list, message.len(), |span, offset, len| {
                let (piece, after) = rest.split_at(len);
                span.write_message(offset, piece);
                rest = after;
            });
        } else if !message.is_empty() {
            let span = self.header.expect("a header was checked to fit its place");
            span.write_message(done, message);
        }
        cursor.walk(list, data.len(), |span, offset, len| {
            let (piece, after) = data.split_at(len);
            span.copy_from(offset, piece);
            data = after;
        });
    }
}

impl Connection {
    /// True when what it paused for is there.
    pub fn can_resume(&self, core: &Core) -> bool {
        match self.receive.paused {
            Some((_, Pause::Receive)) => !core.receives.is_empty(),
            Some((_, Pause::Tag(tag))) => self.tags.state(tag) != TagState::Unknown,
            None => false,
        }
    }

    /// Receives what is there, up to a fair share.
    pub fn receive(&mut self, core: &mut Core) -> Received {
        if let Err(violation) = self.resume(core) {
            return violated(violation);
        }
        let mut bytes = 0;
        for _ in 0..TURN_READS {
            if self.receive.is_paused() {
                return self.look_for_peer(core);
            }
            let pass = match self.read(core) {
                Ok(pass) => pass,
                Err(error) if is_temporary(&error) && !self.send.is_broken() => {
                    return Received::All;
                }
                Err(error) if is_temporary(&error) => {
                    return Received::End("connection broken".into());
                }
                Err(error) => return Received::End(error.to_string()),
            };
            if pass.got == 0 {
                return Received::End(self.end_reason().into());
            }
            if let Err(violation) = self.take(&pass, core) {
                return violated(violation);
            }
            if pass.got < pass.asked {
                return Received::All;
            }
            bytes += pass.got;
            if bytes >= TURN_BYTES {
                break;
            }
        }
        Received::More
    }

    /// While paused: what the peer still wanted to say does not matter when it is gone.
    fn look_for_peer(&self, core: &mut Core) -> Received {
        core.system_calls += 1;
        if self.send.is_broken() || is_hung_up(self.socket.as_raw_fd()) {
            return Received::End("closed by the peer".into());
        }
        Received::All
    }

    fn end_reason(&self) -> &'static str {
        if self.receive.current.is_some() || self.receive.head_len > 0 {
            "closed by the peer in the middle of a message"
        } else {
            "closed by the peer"
        }
    }

    /// One system call.
    fn read(&mut self, core: &mut Core) -> io::Result<Pass> {
        let pin = self.pin_write();
        let mut io = Scatter::new(&mut core.io);
        let mut staging = &mut core.staging[..];
        let mut direct = 0;
        let mut next = self.receive.expected;
        let mut sink = Sink::default();
        if let Some(current) = &self.receive.current {
            sink = self.sink(current.target, pin.as_ref());
            sink.place(&mut io, &core.trash, &current.header, current.done);
            next = current.header.continuation();
            direct = 1;
        } else if let Some(header) = &next {
            sink = self.sink(self.target_of(header), pin.as_ref());
        }
        let mut head = FRAME_HEADER_BYTES - self.receive.head_len;
        while let Some(header) = next
            && !io.is_full()
            && io.len() < READ_BYTES
        {
            let (bytes, rest) = staging.split_at_mut(head);
            io.bytes(bytes);
            staging = rest;
            head = FRAME_HEADER_BYTES;
            sink.place(&mut io, &core.trash, &header, 0);
            direct += 1;
            next = header.continuation();
        }
        let exact = next.is_some() || self.receive.care > 0;
        let tail = if exact { head } else { staging.len() };
        io.bytes(&mut staging[..tail]);
        core.system_calls += 1;
        let got = io.receive(self.socket.as_raw_fd())?;
        Ok(Pass { got, asked: io.len(), direct })
    }

    /// Holds the region of a write under way, or refuses the write if access has ended.
    fn pin_write(&mut self) -> Option<Pin> {
        let write = self.receive.write.as_mut()?;
        let pin = write.region.as_ref()?.pin();
        if pin.is_none() {
            write.region = None;
        }
        pin
    }

    /// Where the body of a continuing frame goes.
    fn target_of(&self, header: &FrameHeader) -> Target {
        match header.kind {
            Kind::Write => Target::Write,
            Kind::Tagged => match self.tags.state(header.key) {
                TagState::Posted(slot) => Target::Tagged(slot),
                _ => Target::Discard,
            },
            _ => match self.send.reads_asked.front() {
                Some(slot) => Target::Read(*slot),
                None => Target::Discard,
            },
        }
    }

    fn sink<'a>(&'a self, target: Target, pin: Option<&'a Pin>) -> Sink<'a> {
        let mut sink = Sink::default();
        match target {
            Target::Discard => {}
            Target::Receive => {
                if let Some(filling) = &self.receive.filling {
                    sink.header_in_list = true;
                    sink.list = Some((&filling.receive.buffers, filling.cursor));
                }
            }
            Target::Tagged(slot) => {
                let receive = self.tags.slots.at(slot);
                sink.header = receive.header.as_ref();
                sink.list = Some((&receive.data, receive.cursor));
            }
            Target::Write => {
                if let (Some(pin), Some(write)) = (pin, &self.receive.write) {
                    let list = std::slice::from_ref(pin.region().span());
                    sink.list = Some((list, Cursor::at(list, write.offset)));
                }
            }
            Target::Read(slot) => {
                let request = self.requests.at(slot);
                sink.list = Some((&request.data, request.cursor));
            }
        }
        sink
    }

    /// Looks at what a read brought.
    fn take(&mut self, pass: &Pass, core: &mut Core) -> Result<(), Violation> {
        let bytes = std::mem::take(&mut core.staging);
        let rest = self.consume(&bytes, 0, pass.got, pass.direct, core);
        match rest {
            Ok(Some((start, end))) if start < end => {
                self.receive.staged = Some(Staged { bytes, start, end });
                core.staging = core.new_staging();
            }
            _ => core.staging = bytes,
        }
        rest.map(|_| ())
    }

    /// Goes on where it paused, if what it waited for is there.
    fn resume(&mut self, core: &mut Core) -> Result<(), Violation> {
        if !self.can_resume(core) {
            return Ok(());
        }
        let Some((header, _)) = self.receive.paused.take() else { return Ok(()) };
        self.begin_frame(header, core)?;
        if self.receive.is_paused() {
            return Ok(());
        }
        let Some(staged) = self.receive.staged.take() else { return Ok(()) };
        let left = staged.end - staged.start;
        match self.consume(&staged.bytes, staged.start, left, 0, core)? {
            Some((start, end)) if start < end => {
                self.receive.staged = Some(Staged { start, end, ..staged });
            }
            _ => core.keep_staging(staged.bytes),
        }
        Ok(())
    }

    /// Takes `left` bytes in the order of the wire. The first `direct` bodies are in their place
    /// already; all else is in `staging` from `at` on. Returns what it did not look at, when it
    /// pauses.
    fn consume(
        &mut self,
        staging: &[u8],
        mut at: usize,
        mut left: usize,
        mut direct: usize,
        core: &mut Core,
    ) -> Result<Option<(usize, usize)>, Violation> {
        loop {
            if let Some(current) = &self.receive.current {
                let missing = current.header.body_len() - current.done;
                let take = missing.min(left);
                if direct > 0 {
                    self.placed(take);
                    direct -= 1;
                } else {
                    self.copy_body(&staging[at..at + take]);
                    at += take;
                }
                left -= take;
                if take < missing {
                    return Ok(None);
                }
                self.finish(core)?;
            }
            if left == 0 {
                return Ok(None);
            }
            let head_len = self.receive.head_len;
            let take = left.min(FRAME_HEADER_BYTES - head_len);
            self.receive.head[head_len..head_len + take].copy_from_slice(&staging[at..at + take]);
            at += take;
            left -= take;
            self.receive.head_len += take;
            if self.receive.head_len < FRAME_HEADER_BYTES {
                return Ok(None);
            }
            self.receive.head_len = 0;
            let header = FrameHeader::decode(&self.receive.head)?;
            if self.receive.expected.take().is_some_and(|expected| expected != header) {
                return Err("a run of frames was broken");
            }
            self.begin_frame(header, core)?;
            if self.receive.is_paused() {
                return Ok(Some((at, at + left)));
            }
        }
    }

    /// `len` bytes of the current body are in their place.
    fn placed(&mut self, len: usize) {
        let Some(current) = &mut self.receive.current else { return };
        let header_left = usize::from(current.header.header_len).saturating_sub(current.done);
        current.done += len;
        let data_len = len - header_left.min(len);
        match current.target {
            Target::Discard => {}
            Target::Receive => {
                if let Some(filling) = &mut self.receive.filling {
                    filling.cursor.walk(&filling.receive.buffers, len, |_, _, _| {});
                }
            }
            Target::Tagged(slot) => {
                let receive = self.tags.slots.at_mut(slot);
                receive.cursor.walk(&receive.data, data_len, |_, _, _| {});
            }
            Target::Write => {
                if let Some(write) = &mut self.receive.write {
                    write.offset += data_len;
                }
            }
            Target::Read(slot) => {
                let request = self.requests.at_mut(slot);
                request.cursor.walk(&request.data, data_len, |_, _, _| {});
            }
        }
    }

    /// Brings bytes of the current body from the staging memory to their place.
    fn copy_body(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let pin = self.pin_write();
        if let Some(current) = &self.receive.current {
            self.sink(current.target, pin.as_ref()).copy(bytes, &current.header, current.done);
        }
        self.placed(bytes.len());
    }

    /// Acts on a new header.
    fn begin_frame(&mut self, header: FrameHeader, core: &mut Core) -> Result<(), Violation> {
        match self.begin(&header, core)? {
            Begin::Done => {}
            Begin::Pause(pause) => {
                if let Pause::Tag(tag) = pause {
                    core.event(QueuePairEvent::UnmatchedTag { queue_pair: self.id, tag: Tag(tag) });
                }
                self.receive.paused = Some((header, pause));
                return Ok(());
            }
            Begin::Body(target) => {
                self.receive.current = Some(Current { header, target, done: 0 });
                if header.body_len() == 0 {
                    self.finish(core)?;
                }
            }
        }
        if header.payload_len >= PLACED_BYTES {
            self.receive.care = CARE_FRAMES;
        } else {
            self.receive.care = self.receive.care.saturating_sub(1);
        }
        Ok(())
    }

    fn begin(&mut self, header: &FrameHeader, core: &mut Core) -> Result<Begin, Violation> {
        match header.kind {
            Kind::Send => Ok(self.begin_send(header, core)),
            Kind::Tagged => self.begin_tagged(header, core),
            Kind::Write => self.begin_write(header, core),
            Kind::ReadResponse => self.begin_read_response(header),
            Kind::ReadRequest => {
                let found = if core.rdma_read {
                    core.table.find(header.key, header.addr, header.total, false)
                } else {
                    None
                };
                self.send.serve_read(header.id, found, header.total)?;
                Ok(Begin::Done)
            }
            Kind::ReadDone => self.end_read(header.id, Status::Success, core),
            Kind::Fault if header.key == FAULT_READ => {
                self.end_read(header.id, Status::RemoteAccess, core)
            }
            Kind::Fault if header.key == FAULT_WRITE => self.write_refused(header.id, core),
            Kind::WriteAck => self.writes_done(header.id, core),
            Kind::Fault => Err("a fault of nothing"),
            Kind::Hello | Kind::HelloAck | Kind::Reject => Err("a second handshake"),
        }
    }

    fn begin_send(&mut self, header: &FrameHeader, core: &mut Core) -> Begin {
        let Some(receive) = core.receives.pop_front() else {
            return Begin::Pause(Pause::Receive);
        };
        if header.body_len() > sg_bytes(&receive.buffers) {
            core.complete(receive_completion(self, receive.wr_id, Status::LocalLength, 0));
            return Begin::Body(Target::Discard);
        }
        self.receive.filling = Some(Filling { receive, cursor: Cursor::default() });
        Begin::Body(Target::Receive)
    }

    fn begin_tagged(&mut self, header: &FrameHeader, core: &mut Core) -> Result<Begin, Violation> {
        let first = header.addr == 0;
        match self.tags.state(header.key) {
            TagState::Posted(slot) => {
                let receive = self.tags.slots.at_mut(slot);
                if receive.started == first {
                    return Err("tagged message out of order");
                }
                if first {
                    let header_room = receive.header.as_ref().map_or(0, Span::len);
                    if usize::from(header.header_len) > header_room
                        || header.total as usize > receive.capacity
                    {
                        let receive = self.tags.remove(slot);
                        let status = Status::LocalLength;
                        core.complete(tagged_completion(self.id, &receive, status));
                        self.tags.discard_from(header.key, 0);
                        return Ok(Begin::Body(Target::Discard));
                    }
                    receive.started = true;
                    receive.total = header.total;
                    receive.header_len = header.header_len;
                } else if header.addr != u64::from(receive.received)
                    || header.total != receive.total
                {
                    return Err("tagged message out of order");
                }
                Ok(Begin::Body(Target::Tagged(slot)))
            }
            TagState::Discarding(offset) if header.addr == u64::from(offset) => {
                Ok(Begin::Body(Target::Discard))
            }
            TagState::Cancelled if first => {
                self.tags.discard_from(header.key, 0);
                Ok(Begin::Body(Target::Discard))
            }
            TagState::Unknown if first => Ok(Begin::Pause(Pause::Tag(header.key))),
            _ => Err("tagged message out of order"),
        }
    }

    fn begin_write(&mut self, header: &FrameHeader, core: &Core) -> Result<Begin, Violation> {
        if let Some(write) = &self.receive.write {
            let says = (header.id, header.key, header.addr, header.total);
            if says != (write.id, write.key, write.addr, write.left) {
                return Err("RDMA write out of order");
            }
        } else {
            if header.id != self.receive.next_write {
                return Err("RDMA write out of order");
            }
            self.receive.next_write = header.id.wrapping_add(1);
            let found = core.table.find(header.key, header.addr, header.total, true);
            let (region, offset) = found.unzip();
            self.receive.write = Some(Write {
                id: header.id,
                key: header.key,
                addr: header.addr,
                left: header.total,
                region,
                offset: offset.unwrap_or(0),
            });
        }
        Ok(Begin::Body(Target::Write))
    }

    fn begin_read_response(&mut self, header: &FrameHeader) -> Result<Begin, Violation> {
        let slot = self.read_asked(header.id)?;
        let request = self.requests.at(slot);
        if header.addr != u64::from(request.done) || header.total != request.total {
            return Err("answer to a read out of order");
        }
        Ok(Begin::Body(Target::Read(slot)))
    }

    /// The read that is to be answered next, if `id` is its number.
    fn read_asked(&self, id: u32) -> Result<u32, Violation> {
        let slot = *self.send.reads_asked.front().ok_or("answer to no read")?;
        let request = self.requests.at(slot);
        if !request.left || request.id != id {
            return Err("answer to another read");
        }
        Ok(slot)
    }

    fn end_read(&mut self, id: u32, status: Status, core: &mut Core) -> Result<Begin, Violation> {
        let slot = self.read_asked(id)?;
        let request = self.requests.at(slot);
        if status == Status::Success && request.done != request.total {
            return Err("answer to a read is too short");
        }
        self.send.reads_asked.pop_front();
        self.complete(slot, status, core);
        Ok(Begin::Done)
    }

    fn write_refused(&mut self, id: u32, core: &mut Core) -> Result<Begin, Violation> {
        let slot = *self.send.writes.front().ok_or("answer to no write")?;
        let request = self.requests.at(slot);
        if !request.left || request.id != id {
            return Err("answer to another write");
        }
        self.send.writes.pop_front();
        self.complete(slot, Status::RemoteAccess, core);
        Ok(Begin::Done)
    }

    fn writes_done(&mut self, through: u32, core: &mut Core) -> Result<Begin, Violation> {
        loop {
            let slot = *self.send.writes.front().ok_or("answer to no write")?;
            let request = self.requests.at(slot);
            if !request.left {
                return Err("answer to another write");
            }
            let id = request.id;
            self.send.writes.pop_front();
            self.complete(slot, Status::Success, core);
            if id == through {
                return Ok(Begin::Done);
            }
        }
    }

    /// The current body is complete.
    fn finish(&mut self, core: &mut Core) -> Result<(), Violation> {
        let Some(Current { header, target, .. }) = self.receive.current.take() else {
            return Ok(());
        };
        self.receive.expected = header.continuation();
        match (header.kind, target) {
            (Kind::Write, _) => return self.finish_write(&header),
            (_, Target::Receive) => {
                if let Some(filling) = self.receive.filling.take() {
                    let (wr_id, len) = (filling.receive.wr_id, header.body_len());
                    drop(filling);
                    core.complete(receive_completion(self, wr_id, Status::Success, len));
                }
            }
            (_, Target::Tagged(slot)) => {
                let receive = self.tags.slots.at_mut(slot);
                receive.received += header.payload_len;
                if receive.received == receive.total {
                    let receive = self.tags.remove(slot);
                    core.complete(tagged_completion(self.id, &receive, Status::Success));
                }
            }
            (_, Target::Read(slot)) => {
                self.requests.at_mut(slot).done += header.payload_len;
            }
            (Kind::Tagged, _) => {
                let received = header.addr + u64::from(header.payload_len);
                if received == u64::from(header.total) {
                    self.tags.discarded(header.key);
                } else {
                    self.tags.discard_from(header.key, received as u32);
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn finish_write(&mut self, header: &FrameHeader) -> Result<(), Violation> {
        let Some(write) = &mut self.receive.write else { return Ok(()) };
        write.addr = write.addr.wrapping_add(u64::from(header.payload_len));
        write.left -= header.payload_len;
        if write.left > 0 {
            return Ok(());
        }
        let id = write.id;
        let placed = write.region.as_ref().is_some_and(|region| !region.is_revoked());
        self.receive.write = None;
        if placed {
            self.send.acknowledge_write(id);
            Ok(())
        } else {
            self.send.refuse_write(id)
        }
    }
}

fn receive_completion(
    connection: &Connection,
    wr_id: WrId,
    status: Status,
    len: usize,
) -> WorkCompletion {
    WorkCompletion {
        wr_id,
        queue_pair: connection.id,
        opcode: Opcode::Recv,
        status,
        byte_len: len as u32,
        header_len: 0,
    }
}
