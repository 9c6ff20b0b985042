//! A connected queue pair: its socket and all that was posted to it.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use dafs_fabric::epoll;
use dafs_fabric::{Opcode, QueuePair, Status, Tag, WorkCompletion, WrId};

use crate::core::Core;
use crate::receive_side::ReceiveSide;
use crate::requests::{Request, Slab};
use crate::send::SendSide;
use crate::tags::{TagState, Tags, tagged_completion};
use crate::turns::Load;

/// Bytes of a run for which it is worth to wake, when more messages are expected after it.
const LOW_WATER_BUSY: usize = 256 * 1024;
/// The same for the last message.
const LOW_WATER_IDLE: usize = 128 * 1024;

/// A connected queue pair.
#[derive(Debug)]
pub struct Connection {
    pub id: QueuePair,
    pub socket: OwnedFd,
    /// What epoll watches; `None` when it does not.
    pub watched: Option<libc::c_int>,
    /// On the engine's list of those to be watched differently.
    pub stale: bool,
    /// On the engine's list of those that paused.
    pub paused: bool,
    /// Received bytes that make the socket readable; `None` where that cannot be set.
    pub low_water: Option<usize>,
    pub requests: Slab<Request>,
    pub tags: Tags,
    pub send: SendSide,
    pub receive: ReceiveSide,
    pub load: Load,
}

impl Connection {
    /// On a socket whose handshake is over. Whoever connected expects answers in the order of
    /// the requests, and predictions where they go.
    pub fn new(id: QueuePair, socket: OwnedFd, connected: bool) -> Connection {
        let low_water = crate::sys::is_tcp(socket.as_raw_fd()).then_some(1);
        Connection {
            id,
            socket,
            watched: None,
            stale: false,
            paused: false,
            low_water,
            requests: Slab::new(),
            tags: Tags::new(),
            send: SendSide::default(),
            receive: ReceiveSide::new(connected),
            load: Load::default(),
        }
    }

    /// The socket.
    pub fn fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// What epoll should watch: nothing that would wake in vain.
    pub fn interest(&self) -> libc::c_int {
        let receive = if self.receive.is_paused() { epoll::EPOLLRDHUP } else { epoll::EPOLLIN };
        let send = if self.send.is_blocked() { epoll::EPOLLOUT } else { 0 };
        receive | send
    }

    /// While a run is coming nothing can complete before its last byte: do not wake for less
    /// than a good part of it. Where more is on its way, a larger part. Returns the system
    /// calls made.
    pub fn sync_low_water(&mut self) -> u64 {
        let Some(now) = self.low_water else { return 0 };
        let part = if self.tags.slots.len() > 1 { LOW_WATER_BUSY } else { LOW_WATER_IDLE };
        let wanted = if self.receive.run_left() >= part { part } else { 1 };
        if wanted == now {
            return 0;
        }
        let set = crate::sys::set_receive_low_water(self.fd(), wanted);
        self.low_water = set.is_ok().then_some(wanted);
        1
    }

    /// Makes the first byte count again. Returns the system calls made.
    pub fn reset_low_water(&mut self) -> u64 {
        if self.low_water.is_none_or(|now| now == 1) {
            return 0;
        }
        let set = crate::sys::set_receive_low_water(self.fd(), 1);
        self.low_water = set.is_ok().then_some(1);
        1
    }

    /// Bytes of data that the kernel has, or that came, of what was posted with this number.
    pub fn moved(&self, wr_id: WrId) -> u64 {
        let requests =
            self.requests.numbered().filter(|(_, request)| request.posted.wr_id == wr_id);
        let sent = requests.map(|(slot, request)| match request.posted.opcode {
            Opcode::RdmaRead => request.cursor.passed(&request.data),
            Opcode::NamedRead => 0,
            _ => (request.done as usize).saturating_sub(self.send.unsent(slot)),
        });
        let receives = self.tags.slots.iter().filter(|receive| receive.wr_id == wr_id);
        let came = receives.map(|receive| receive.cursor.passed(&receive.data));
        let answered = self.send.answer_moved(wr_id);
        sent.chain(came).sum::<usize>() as u64 + answered as u64
    }

    /// Ends a request and tells of it if it was signaled or failed.
    #[inline(always)]
    pub fn complete(&mut self, slot: u32, status: Status, core: &mut Core) {
        let posted = self.requests.end(slot);
        if posted.signaled || status != Status::Success {
            core.complete(WorkCompletion {
                wr_id: posted.wr_id,
                queue_pair: self.id,
                opcode: posted.opcode,
                status,
                byte_len: posted.total,
                header_len: 0,
            });
        }
    }

    /// Ends a tagged receive and tells of it.
    pub fn complete_tagged(&mut self, slot: u32, status: Status, core: &mut Core) {
        // The spans go first: whoever sees the completion owns the memory.
        let receive = self.tags.remove(slot);
        core.complete(tagged_completion(self.id, receive, status));
    }

    /// Takes back a tagged receive.
    pub fn cancel(&mut self, tag: Tag, core: &mut Core) {
        match self.tags.state(tag.0) {
            TagState::Posted(slot) => {
                let receive = self.tags.slots.at(slot);
                let (started, received) = (receive.started, receive.received);
                self.complete_tagged(slot, Status::Cancelled, core);
                if started {
                    self.tags.discard_from(tag.0, received);
                } else {
                    self.tags.cancel(tag.0);
                }
                self.receive.cancelled(slot);
            }
            TagState::Unknown if self.receive.waits_for_tag(tag) => {
                self.tags.discard_from(tag.0, 0);
            }
            _ => {}
        }
    }

    /// Gives all work back, in the order in which it was posted.
    pub fn end(mut self, core: &mut Core) {
        self.receive.abandon(core);
        if let Some(asked) = &mut core.asked {
            asked.forget(self.id);
        }
        let mut flushed: Vec<(u64, WorkCompletion)> = Vec::new();
        for request in self.requests.iter() {
            // It has a receive.
            if request.posted.opcode == Opcode::NamedRead {
                continue;
            }
            let completion = WorkCompletion {
                wr_id: request.posted.wr_id,
                queue_pair: self.id,
                opcode: request.posted.opcode,
                status: Status::Flushed,
                byte_len: 0,
                header_len: 0,
            };
            flushed.push((request.sequence, completion));
        }
        for receive in self.tags.slots.iter() {
            flushed.push((receive.sequence, tagged_completion(self.id, receive, Status::Flushed)));
        }
        flushed.extend(self.send.other.answers.flushed(self.id));
        // The spans go first: whoever sees a completion owns the memory.
        drop(self);
        flushed.sort_unstable_by_key(|(sequence, _)| *sequence);
        for (_, completion) in flushed {
            core.complete(completion);
        }
    }
}
