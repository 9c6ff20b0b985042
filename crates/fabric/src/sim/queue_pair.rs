//! One end of a connection, and the work posted to it.

use std::collections::{BTreeMap, VecDeque};

use super::transfer::gather;
use super::world::{Receive, Slot};
use crate::mem::Span;
use crate::types::{Opcode, RemoteSpan, SgList, Status, Tag, WrId};

/// Messages that are caught by a break are written by this much at most.
const CAUGHT_BYTES_MAX: usize = 256;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Connecting,
    Connected,
    /// Until `Quiescent`; then the queue pair is removed.
    Broken,
}

/// A work request of the send queue.
#[derive(Debug, Clone)]
pub(super) struct Work {
    pub wr_id: WrId,
    pub opcode: Opcode,
    pub signaled: bool,
    /// Whose local memory it has.
    pub device: u64,
    pub header: Vec<u8>,
    /// Local memory; empty once the data is staged.
    pub local: SgList,
    pub len: usize,
    pub remote: Option<RemoteSpan>,
    /// Not before the reads in front of it are done.
    pub fence: bool,
    pub tag: Tag,
    /// Handed to the network.
    pub rung: bool,
    /// The data is to be copied before it is needed.
    pub stages: bool,
    pub staged: Option<Vec<u8>>,
    /// Pieces (offset, length) still to move; filled when the first one moves.
    pub pieces: Vec<(usize, usize)>,
    pub started: bool,
    /// `UnmatchedTag` was told.
    pub announced: bool,
    /// Nothing more moves.
    pub done: bool,
    pub status: Status,
    /// The caller has it back, by completion or (unsignaled) silently.
    pub reported: bool,
}

impl Work {
    /// The caller may have its memory back. A completion says nothing about the target: the
    /// last piece of staged data may still be on its way.
    pub fn is_reportable(&self) -> bool {
        let left = match self.opcode {
            Opcode::Send | Opcode::TaggedSend => true,
            Opcode::RdmaWrite => self.started && self.pieces.len() <= 1,
            _ => false,
        };
        !self.reported && (self.done || (self.staged.is_some() && left))
    }
}

/// A posted tagged receive.
#[derive(Debug)]
pub(super) struct PostedTag {
    pub wr_id: WrId,
    pub header: Option<Span>,
    pub data: SgList,
    /// A message is landing here.
    pub taken: bool,
    pub cancelled: bool,
    pub flushed: bool,
}

/// What waits for the message of a tag.
#[derive(Debug)]
pub(super) enum Landing {
    Posted(PostedTag),
    /// It was cancelled: the message is thrown away.
    ThrownAway,
}

#[derive(Debug)]
pub(super) struct Qp {
    pub engine: u64,
    pub device: u64,
    pub node: u32,
    pub state: State,
    pub peer: Option<u64>,
    /// While connecting: whom, with what, and the end of patience.
    pub target: String,
    pub private_data: Vec<u8>,
    pub timer: Option<Slot>,
    /// Posted and not finished, in order of posting.
    pub works: Vec<Work>,
    /// Named reads of the peer that are to be answered, in their order.
    pub unanswered: VecDeque<u32>,
    /// Places of the send queue in use: until the completion is polled.
    pub slots: usize,
    pub tagged: BTreeMap<u64, Landing>,
    /// Receiving stopped at this tag.
    pub paused: Option<u64>,
    pub is_scheduled: bool,
    /// Data still moves although the connection is broken.
    pub late: bool,
    /// Receives caught by the break, with what is written to them, and whether they came back.
    pub caught: Vec<(Receive, Vec<u8>, bool)>,
    /// The end of the other side, which a partition keeps from us.
    pub untold: Option<&'static str>,
}

impl Qp {
    pub fn new(engine: u64, device: u64, node: u32, state: State) -> Qp {
        Qp {
            engine,
            device,
            node,
            state,
            peer: None,
            target: String::new(),
            private_data: Vec::new(),
            timer: None,
            works: Vec::new(),
            unanswered: VecDeque::new(),
            slots: 0,
            tagged: BTreeMap::new(),
            paused: None,
            is_scheduled: false,
            late: false,
            caught: Vec::new(),
            untold: None,
        }
    }

    pub fn is_connected(&self) -> bool {
        self.state == State::Connected
    }

    /// Data may move from and to its memory.
    pub fn is_touched(&self) -> bool {
        self.is_connected() || (self.state == State::Broken && self.late)
    }

    /// The beginning of the message that would be delivered next.
    pub fn next_message(&self) -> Option<Vec<u8>> {
        let work = self.works.iter().find(|w| w.opcode == Opcode::Send && !w.done && w.rung)?;
        let mut message = work.header.clone();
        match &work.staged {
            Some(staged) => message.extend_from_slice(staged),
            None => message.extend_from_slice(&gather(&work.local)),
        }
        message.truncate(CAUGHT_BYTES_MAX);
        Some(message)
    }

    /// All that has to come back after a break.
    pub fn unfinished(&self) -> Vec<(WrId, Opcode)> {
        let works = self.works.iter().filter(|w| !w.reported).map(|w| (w.wr_id, w.opcode));
        let tagged = self.tagged.values().filter_map(|landing| match landing {
            Landing::Posted(posted) if !posted.flushed => Some((posted.wr_id, Opcode::TaggedRecv)),
            _ => None,
        });
        let caught = self.caught.iter().filter(|(_, _, flushed)| !flushed);
        works.chain(tagged).chain(caught.map(|(r, _, _)| (r.wr_id, Opcode::Recv))).collect()
    }

    /// Its memory stays with the transport all the same, until the queue pair is quiescent.
    pub fn mark_flushed(&mut self, wr_id: WrId, opcode: Opcode) {
        match opcode {
            Opcode::Recv => {
                let caught = self.caught.iter_mut().find(|(r, _, _)| r.wr_id == wr_id);
                caught.into_iter().for_each(|(_, _, flushed)| *flushed = true);
            }
            Opcode::TaggedRecv => {
                for landing in self.tagged.values_mut() {
                    match landing {
                        Landing::Posted(posted) if posted.wr_id == wr_id => posted.flushed = true,
                        _ => {}
                    }
                }
            }
            _ => {
                let mut works = self.works.iter_mut().filter(|w| !w.reported);
                let work = works.find(|w| w.wr_id == wr_id && w.opcode == opcode);
                work.into_iter()
                    .for_each(|work| (work.reported, work.status) = (true, Status::Flushed));
            }
        }
    }
}
