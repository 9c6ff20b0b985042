//! The lane of tagged messages and answers to reads, of which small messages, reads and large
//! messages take turns.

use std::collections::VecDeque;
use std::sync::Arc;

use dafs_fabric::Fifo;

use super::batch::{Batch, frames_of};
use super::out_answers::OutAnswers;
use super::out_frame::{OutFrame, Source};
use crate::frame::{FAULT_READ, FRAME_PAYLOAD_BYTES_MAX, FrameHeader, Kind};
use crate::memory_region::Region;
use crate::requests::{Request, SEND_QUEUE_DEPTH, Slab};
use crate::turns::SEND_BYTES;

/// Small tagged messages per turn.
const SMALL_TURN: usize = 16;

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

/// What waits in the lane.
#[derive(Debug, Default)]
pub struct OtherLane {
    small: Fifo<u32>,
    bulk: VecDeque<u32>,
    /// Bytes that the first of `bulk` had of its turn.
    bulk_turn: usize,
    reads: VecDeque<ReadService>,
    /// To named reads; they have their turns with small messages.
    pub answers: OutAnswers,
    /// Which class has the next turn.
    class: u8,
}

impl OtherLane {
    /// Nothing waits.
    pub(super) fn is_empty(&self) -> bool {
        self.small.is_empty()
            && self.answers.are_batched()
            && self.bulk.is_empty()
            && self.reads.is_empty()
    }

    /// Queues a tagged send of so many bytes.
    #[inline(always)]
    pub(super) fn push_tagged(&mut self, slot: u32, bytes: u32) {
        if bytes as usize <= FRAME_PAYLOAD_BYTES_MAX {
            self.small.push_back(slot);
        } else {
            self.bulk.push_back(slot);
        }
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

    /// One turn of the first class that has one; false where none has.
    pub(super) fn fill(
        &mut self,
        batch: &mut Batch,
        requests: &mut Slab<Request>,
        frames: usize,
        sends_framed: u64,
    ) -> bool {
        for _ in 0..3 {
            let class = self.class;
            self.class = (class + 1) % 3;
            let some = match class {
                0 => {
                    let before = batch.len();
                    self.fill_small(batch, requests, sends_framed);
                    let (count, bytes) = self.answers.next_turn(sends_framed);
                    batch.push_answers(count, bytes);
                    batch.len() > before
                }
                1 => self.fill_read(batch, frames),
                _ => self.fill_bulk(batch, requests, frames, sends_framed),
            };
            if some {
                return true;
            }
        }
        false
    }

    fn fill_small(&mut self, batch: &mut Batch, requests: &mut Slab<Request>, sends_framed: u64) {
        for _ in 0..SMALL_TURN {
            let Some(slot) = self.small.front() else { break };
            let request = requests.at_mut(slot);
            if !may_go(request, sends_framed) {
                break;
            }
            batch.push_whole(slot, request);
            self.small.pop_front();
        }
    }

    fn fill_bulk(
        &mut self,
        batch: &mut Batch,
        requests: &mut Slab<Request>,
        frames: usize,
        sends_framed: u64,
    ) -> bool {
        let Some(slot) = self.bulk.front().copied() else { return false };
        let request = requests.at_mut(slot);
        if !may_go(request, sends_framed)
            || request.done == 0 && !batch.may_begin(request.posted.total, frames)
        {
            return false;
        }
        let before = request.done;
        let done = batch.frame_run(slot, request, Kind::Tagged, frames);
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
    fn fill_read(&mut self, batch: &mut Batch, frames: usize) -> bool {
        let begins = self.reads.front().filter(|read| read.done == 0);
        if begins.is_some_and(|read| !batch.may_begin(read.len, frames)) {
            return false;
        }
        let Some(read) = self.reads.front_mut() else { return false };
        let region = match &read.region {
            Some(region) if !region.is_revoked() => region.clone(),
            _ => {
                let fault =
                    FrameHeader { id: read.id, key: FAULT_READ, ..FrameHeader::new(Kind::Fault) };
                batch.push(OutFrame::new(&fault, Source::None));
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
            batch.push(OutFrame::new(&header, source));
        }
        if read.done == read.len {
            let header = FrameHeader { id: read.id, ..FrameHeader::new(Kind::ReadDone) };
            batch.push(OutFrame::new(&header, Source::Done(region)));
            self.reads.pop_front();
        }
        true
    }
}

/// Those of the sends posted before it that must go first are gone.
fn may_go(request: &Request, sends_framed: u64) -> bool {
    request.sends_before <= sends_framed
}
