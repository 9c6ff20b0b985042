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

mod batch;
mod other_lane;
mod out_answers;
mod out_frame;

use std::collections::VecDeque;
use std::vec::Drain;

use dafs_fabric::{NamedAnswer, Opcode, QueuePair, Span, WrId};

use crate::frame::{FAULT_WRITE, FRAME_PAYLOAD_BYTES_MAX, FrameHeader, Kind, RUN_FRAMES_MAX};
use crate::requests::{Request, SEND_QUEUE_DEPTH, Slab};
use crate::sys::Gather;
use crate::turns::Load;
use batch::Batch;
use other_lane::OtherLane;
pub use out_answers::Gone;
use out_frame::OutFrame;
use out_frame::Source;

/// Frames of a batch.
const BATCH_FRAMES: usize = 256;
/// Sends of headers alone per turn.
const SENDS_TURN: usize = 16;
/// Refused writes whose faults have not left. A peer that causes more is not one of ours.
const FAULTS_MAX: usize = 2 * SEND_QUEUE_DEPTH;

/// What the peer is to be told of its writes.
#[derive(Debug, Default)]
pub struct WriteAnswers {
    /// Faults, each after the acknowledgement of the writes before it.
    faults: VecDeque<FrameHeader>,
    acknowledge: Option<u32>,
}

impl WriteAnswers {
    fn is_empty(&self) -> bool {
        self.faults.is_empty() && self.acknowledge.is_none()
    }

    /// What it is told next.
    fn next(&mut self) -> Option<FrameHeader> {
        self.faults.pop_front().or_else(|| {
            let id = self.acknowledge.take()?;
            Some(FrameHeader { id, ..FrameHeader::new(Kind::WriteAck) })
        })
    }

    /// The peer's write `id` is placed.
    pub fn acknowledge(&mut self, id: u32) {
        self.acknowledge = Some(id);
    }

    /// The peer's write `id` was refused.
    pub fn refuse(&mut self, id: u32) -> Result<(), &'static str> {
        if self.faults.len() >= FAULTS_MAX {
            return Err("too many writes under way");
        }
        if let Some(before) = self.acknowledge.take() {
            self.faults.push_back(FrameHeader { id: before, ..FrameHeader::new(Kind::WriteAck) });
        }
        self.faults.push_back(FrameHeader {
            id,
            key: FAULT_WRITE,
            ..FrameHeader::new(Kind::Fault)
        });
        Ok(())
    }
}

/// Writes and reads that wait for the peer's answer, in order.
#[derive(Debug, Default)]
pub struct Asked {
    pub writes: VecDeque<u32>,
    pub reads: VecDeque<u32>,
    next_write: u32,
    next_read: u32,
    next_named: u32,
}

impl Asked {
    /// Numbers a write.
    fn write(&mut self, slot: u32, request: &mut Request) {
        request.id = self.next_write;
        self.next_write = self.next_write.wrapping_add(1);
        self.writes.push_back(slot);
    }

    /// The number of a named read.
    pub fn named(&mut self) -> u32 {
        let number = self.next_named;
        self.next_named = number.wrapping_add(1);
        number
    }

    /// Numbers a read.
    fn read(&mut self, slot: u32, request: &mut Request) {
        request.id = self.next_read;
        self.next_read = self.next_read.wrapping_add(1);
        self.reads.push_back(slot);
    }
}

/// The sending half.
#[derive(Debug, Default)]
pub struct SendSide {
    pub answers: WriteAnswers,
    ordered: VecDeque<u32>,
    pub other: OtherLane,
    /// A large write is in front of the ordered lane; the other lane is to have a turn.
    other_lane_next: bool,
    pub asked: Asked,
    sends_posted: u64,
    sends_framed: u64,
    pub batch: Batch,
    pub blocked: bool,
    pub broken: bool,
    /// The peer's named reads that are not answered, in order: number, and bytes asked for.
    pub unanswered: VecDeque<(u32, u32)>,
    /// On the engine's list of queue pairs to flush.
    pub listed: bool,
}

impl SendSide {
    /// The socket takes no more for now.
    pub fn is_blocked(&self) -> bool {
        self.blocked && !self.broken
    }

    /// The socket takes no more for ever.
    pub fn is_broken(&self) -> bool {
        self.broken
    }

    /// The answer to the peer's hello: the first frame.
    pub fn push_first(&mut self, bytes: &[u8]) {
        self.batch.push_first(bytes);
    }

    /// Bytes of a request's data that are cut into frames and not with the kernel.
    pub fn unsent(&self, slot: usize) -> usize {
        self.batch.unsent(slot)
    }

    /// Queues a posted request, which it numbers.
    #[inline(always)]
    pub fn push(&mut self, slot: u32, request: &mut Request) {
        request.sends_before = self.sends_posted;
        match request.posted.opcode {
            Opcode::TaggedSend => {
                return self.other.push_tagged(slot, request.posted.total);
            }
            Opcode::RdmaWrite => self.asked.write(slot, request),
            Opcode::RdmaRead => self.asked.read(slot, request),
            _ => self.sends_posted += 1,
        }
        self.ordered.push_back(slot);
    }

    /// The peer's named reads whose answers have not left.
    #[inline]
    pub fn served(&self) -> usize {
        self.unanswered.len() + self.other.answers.staying()
    }

    /// Queues answers to named reads.
    #[inline(always)]
    pub fn push_answers(
        &mut self,
        answers: Drain<'_, NamedAnswer>,
        numbers: (WrId, Option<(WrId, bool)>),
        sequence: u64,
    ) {
        self.other.answers.push_all(answers, numbers, (sequence, self.sends_posted));
    }

    /// Queues the refusal of one.
    pub fn push_refusal(&mut self, id: u32, wr_id: WrId, sequence: u64) {
        self.other.answers.push_refusal(id, wr_id, (sequence, self.sends_posted));
    }

    /// Adds what leaves next to a call, as much of it as there is room for.
    pub fn gather<'a>(
        &'a self,
        gather: &mut Gather<'a>,
        requests: &'a Slab<Request>,
        zeros: &'a Span,
    ) {
        self.batch.gather(gather, (requests, &self.other.answers), zeros);
    }

    /// See [`Batch::answers_left`].
    #[inline]
    pub fn answers_left(&mut self, queue_pair: QueuePair, sent: &mut usize) -> Option<Gone> {
        self.batch.answers_left(&mut self.other.answers, queue_pair, sent)
    }

    /// Bytes of data that the kernel has of the answer to a named read with this number.
    pub fn answer_moved(&self, wr_id: WrId) -> usize {
        self.other.answers.moved(wr_id, self.batch.answer_begun())
    }

    /// True when there is something to send.
    pub fn has_work(&self) -> bool {
        !(self.batch.is_empty()
            && self.answers.is_empty()
            && self.ordered.is_empty()
            && self.other.is_empty())
    }

    /// Cuts work into frames, in the order in which they leave.
    pub fn fill(&mut self, requests: &mut Slab<Request>, most: usize, load: &mut Load) {
        let mut bytes = 0;
        while bytes < most && self.batch.len() < BATCH_FRAMES {
            let before = self.batch.len();
            let frames = (most - bytes).div_ceil(FRAME_PAYLOAD_BYTES_MAX);
            self.fill_turn(requests, frames.min(RUN_FRAMES_MAX));
            let (added, largest) = self.batch.take_added();
            if self.batch.len() == before {
                break;
            }
            bytes += added;
            load.message(largest);
        }
    }

    fn fill_turn(&mut self, requests: &mut Slab<Request>, frames: usize) {
        if !self.answers.is_empty()
            && let Some(header) = self.answers.next()
        {
            self.batch.push(OutFrame::new(&header, Source::None));
        } else if self.ordered.is_empty() || std::mem::take(&mut self.other_lane_next) {
            // Where the other lane has nothing that may go, the ordered one has another turn.
            let framed = self.sends_framed;
            if !self.other.fill(&mut self.batch, requests, frames, framed)
                && !self.ordered.is_empty()
            {
                self.fill_ordered(requests, frames);
            }
        } else {
            self.fill_ordered(requests, frames);
        }
    }

    /// Sends that are in front of the ordered lane: one, or some that are headers alone.
    #[inline]
    fn fill_sends(&mut self, requests: &mut Slab<Request>) {
        for _ in 0..SENDS_TURN {
            let Some(slot) = self.ordered.front().copied() else { return };
            let request = requests.at_mut(slot);
            if !matches!(request.posted.opcode, Opcode::Send | Opcode::NamedRead) {
                return;
            }
            self.ordered.pop_front();
            self.batch.push_whole(slot, request);
            self.sends_framed += 1;
            if requests.at(slot).posted.total > 0 {
                return;
            }
        }
    }

    #[inline]
    fn fill_ordered(&mut self, requests: &mut Slab<Request>, frames: usize) {
        let Some(slot) = self.ordered.front().copied() else { return };
        let request = requests.at_mut(slot);
        match request.posted.opcode {
            Opcode::RdmaWrite
                if request.done == 0 && !self.batch.may_begin(request.posted.total, frames) =>
            {
                return;
            }
            Opcode::RdmaWrite => {
                if self.batch.frame_run(slot, request, Kind::Write, frames) {
                    self.ordered.pop_front();
                } else {
                    self.other_lane_next = true;
                }
                return;
            }
            Opcode::RdmaRead => {
                let header = FrameHeader {
                    key: request.posted.key,
                    addr: request.posted.addr,
                    total: request.posted.total,
                    id: request.id,
                    ..FrameHeader::new(Kind::ReadRequest)
                };
                let mut frame = OutFrame::first_of(slot, request, &header);
                frame.last = true;
                self.batch.push(frame);
            }
            _ => return self.fill_sends(requests),
        }
        self.ordered.pop_front();
    }
}
