//! What received frames mean: which work request each one belongs to, and what it completes.
//!
//! The peer is not believed: every frame must fit the state that earlier frames made.

use dafs_fabric::{Opcode, QueuePairEvent, Span, Status, Tag, WorkCompletion, WrId, sg_bytes};

use crate::core::Core;
use crate::frame::{FAULT_NAMED, FAULT_READ, FAULT_WRITE, FrameHeader, Kind};
use crate::queue_pair::Connection;
use crate::receive_side::{Current, Filling, Pause, Target, Violation, Write};
use crate::scatter_gather::Cursor;
use crate::tags::TagState;

/// What comes of a new header.
pub enum Begin {
    /// A body, to be received.
    Body(Target),
    /// Nothing more.
    Done,
    /// It cannot be received yet.
    Pause(Pause),
}

impl Connection {
    /// Acts on a new header: returns the body that is to come, if there is one and receiving does
    /// not pause. `predicted`: the tagged receive that it is known to be for.
    #[inline]
    pub fn begin_frame(
        &mut self,
        header: FrameHeader,
        predicted: Option<u32>,
        core: &mut Core,
    ) -> Result<Option<Current>, Violation> {
        let mut body = None;
        match self.begin(&header, predicted, core)? {
            Begin::Done => {}
            Begin::Pause(pause) => {
                if let Pause::Tag(tag) = pause {
                    core.event(QueuePairEvent::UnmatchedTag { queue_pair: self.id, tag: Tag(tag) });
                }
                self.receive.paused = Some((header, pause));
                return Ok(None);
            }
            Begin::Body(target) if header.body_len() == 0 => self.finish(&header, target, core)?,
            Begin::Body(target) => body = Some(Current { header, target, done: 0 }),
        }
        self.note_message(&header);
        Ok(body)
    }

    /// A frame begins, or came.
    pub fn note_message(&mut self, header: &FrameHeader) {
        self.receive.note_frame(header);
        self.load.message(header.total as usize);
    }

    fn begin(
        &mut self,
        header: &FrameHeader,
        predicted: Option<u32>,
        core: &mut Core,
    ) -> Result<Begin, Violation> {
        match header.kind {
            Kind::Send => Ok(self.begin_send(header, core)),
            Kind::Tagged => self.begin_tagged(header, predicted, core),
            Kind::Write => self.begin_write(header, core),
            Kind::ReadResponse => self.begin_read_response(header),
            Kind::NamedRead => self.begin_named_read(),
            Kind::NamedResponse => self.begin_named_response(header),
            Kind::ReadRequest => {
                let found = if core.rdma_read {
                    core.table.find(header.key, header.addr, header.total, false)
                } else {
                    None
                };
                self.send.other.serve_read(header.id, found, header.total)?;
                Ok(Begin::Done)
            }
            Kind::ReadDone => self.end_read(header.id, Status::Success, core),
            Kind::Fault if header.key == FAULT_READ => {
                self.end_read(header.id, Status::RemoteAccess, core)
            }
            Kind::Fault if header.key == FAULT_NAMED => self.named_refused(header.id, core),
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

    fn begin_tagged(
        &mut self,
        header: &FrameHeader,
        predicted: Option<u32>,
        core: &mut Core,
    ) -> Result<Begin, Violation> {
        let first = header.addr == 0;
        match predicted.map_or_else(|| self.tags.state(header.key), TagState::Posted) {
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
                        self.complete_tagged(slot, Status::LocalLength, core);
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
        if header.addr != u64::from(request.done) || header.total != request.posted.total {
            return Err("answer to a read out of order");
        }
        Ok(Begin::Body(Target::Read(slot)))
    }

    /// The read that is to be answered next, if `id` is its number.
    fn read_asked(&self, id: u32) -> Result<u32, Violation> {
        let slot = *self.send.asked.reads.front().ok_or("answer to no read")?;
        let request = self.requests.at(slot);
        if !request.left || request.id != id {
            return Err("answer to another read");
        }
        Ok(slot)
    }

    fn end_read(&mut self, id: u32, status: Status, core: &mut Core) -> Result<Begin, Violation> {
        let slot = self.read_asked(id)?;
        let request = self.requests.at(slot);
        if status == Status::Success && request.done != request.posted.total {
            return Err("answer to a read is too short");
        }
        self.send.asked.reads.pop_front();
        self.complete(slot, status, core);
        Ok(Begin::Done)
    }

    fn write_refused(&mut self, id: u32, core: &mut Core) -> Result<Begin, Violation> {
        let slot = *self.send.asked.writes.front().ok_or("answer to no write")?;
        let request = self.requests.at(slot);
        if !request.left || request.id != id {
            return Err("answer to another write");
        }
        self.send.asked.writes.pop_front();
        self.complete(slot, Status::RemoteAccess, core);
        Ok(Begin::Done)
    }

    fn writes_done(&mut self, through: u32, core: &mut Core) -> Result<Begin, Violation> {
        loop {
            let slot = *self.send.asked.writes.front().ok_or("answer to no write")?;
            let request = self.requests.at(slot);
            if !request.left {
                return Err("answer to another write");
            }
            let id = request.id;
            self.send.asked.writes.pop_front();
            self.complete(slot, Status::Success, core);
            if id == through {
                return Ok(Begin::Done);
            }
        }
    }

    /// A body is complete.
    #[inline]
    pub fn finish(
        &mut self,
        header: &FrameHeader,
        target: Target,
        core: &mut Core,
    ) -> Result<(), Violation> {
        self.receive.expected = header.continuation();
        match (header.kind, target) {
            (Kind::Write, _) => return self.finish_write(header),
            (_, Target::Name) => return self.finish_name(header, core),
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
                    self.complete_tagged(slot, Status::Success, core);
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
            self.send.answers.acknowledge(id);
            Ok(())
        } else {
            self.send.answers.refuse(id)
        }
    }
}

/// How a receive ended.
pub fn receive_completion(
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
