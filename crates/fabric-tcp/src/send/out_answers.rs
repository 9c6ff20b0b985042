//! Answers to the peer's named reads on their way to the kernel: each is one frame, and they leave in their order.

use std::collections::VecDeque;
use std::vec::Drain;

use dafs_fabric::{NamedAnswer, Opcode, QueuePair, SgList, Status, WorkCompletion, WrId, sg_bytes};

use crate::frame::{FAULT_NAMED, FRAME_HEADER_BYTES, FrameHeader, Kind};
use crate::scatter_gather::Cursor;
use crate::sys::Gather;

/// Answers per turn.
const TURN: usize = 16;

/// One of them.
#[derive(Debug)]
pub struct OutAnswer {
    head: [u8; FRAME_HEADER_BYTES],
    data: SgList,
    /// Bytes of data.
    total: u32,
    wr_id: WrId,
    /// `None`: a refusal, of which nobody hears.
    signaled: Option<bool>,
    /// Order of posting, over all that is posted to the engine.
    sequence: u64,
    /// Sends posted before: they go first.
    sends_before: u64,
}

impl OutAnswer {
    fn len(&self) -> usize {
        FRAME_HEADER_BYTES + self.total as usize
    }

    fn completion(&self, queue_pair: QueuePair, status: Status) -> WorkCompletion {
        let byte_len = if status == Status::Success { self.total } else { 0 };
        let (wr_id, opcode) = (self.wr_id, Opcode::NamedAnswer);
        WorkCompletion { wr_id, queue_pair, opcode, status, byte_len, header_len: 0 }
    }
}

/// What became of bytes that left.
pub enum Gone {
    /// They end in, or before, one of these.
    Within,
    /// All of these have left.
    Through,
    /// One of them has whose end is to be told; there may be more.
    Told(WorkCompletion),
}

/// All of them.
#[derive(Debug, Default)]
pub struct OutAnswers {
    queue: VecDeque<OutAnswer>,
    /// So many have left, and hold what they do until the next end that is told.
    gone: usize,
    /// So many of the others are in the batch.
    batched: usize,
}

impl OutAnswers {
    /// More, with data: under the first number, unsignaled, and the last one under the other. `place`: the sequence of the
    /// first one, and sends posted before.
    #[inline(always)]
    pub(super) fn push_all(
        &mut self,
        answers: Drain<'_, NamedAnswer>,
        (before, last): (WrId, Option<(WrId, bool)>),
        (sequence, sends_before): (u64, u64),
    ) {
        let count = answers.len();
        // Written where they stay, as their number is known.
        self.queue.extend(answers.zip(sequence..).map(|(NamedAnswer { id, data }, sequence)| {
            let total = sg_bytes(&data) as u32;
            let kind = FrameHeader::new(Kind::NamedResponse);
            let head = FrameHeader { payload_len: total, total, id, ..kind }.encode();
            let (wr_id, signaled) = (before, Some(false));
            OutAnswer { head, data, total, wr_id, signaled, sequence, sends_before }
        }));
        if let (Some((wr_id, signaled)), true) = (last, count > 0)
            && let Some(answer) = self.queue.back_mut()
        {
            (answer.wr_id, answer.signaled) = (wr_id, Some(signaled));
        }
    }

    /// One that is refused.
    pub(super) fn push_refusal(
        &mut self,
        id: u32,
        wr_id: WrId,
        (sequence, sends_before): (u64, u64),
    ) {
        let head = FrameHeader { key: FAULT_NAMED, id, ..FrameHeader::new(Kind::Fault) }.encode();
        let (data, total, signaled) = (SgList::new(), 0, None);
        let refusal = OutAnswer { head, data, total, wr_id, signaled, sequence, sends_before };
        self.queue.push_back(refusal);
    }

    /// Those that have not left.
    #[inline]
    pub(super) fn staying(&self) -> usize {
        self.queue.len() - self.gone
    }

    /// None waits for the batch.
    pub(super) fn are_batched(&self) -> bool {
        self.queue.len() == self.gone + self.batched
    }

    /// Those of a turn that may leave with the batch: how many, their bytes with heads, and the largest one's data.
    #[inline]
    pub(super) fn next_turn(&mut self, sends_framed: u64) -> (usize, (usize, usize)) {
        let waiting = self.queue.range(self.gone + self.batched..).take(TURN);
        let (mut count, mut bytes, mut largest) = (0, 0, 0);
        for answer in waiting.take_while(|answer| answer.sends_before <= sends_framed) {
            count += 1;
            bytes += answer.len();
            largest = largest.max(answer.total);
        }
        self.batched += count;
        (count, (bytes, largest as usize))
    }

    /// Adds what is left of so many of those in the batch, behind so many others; `skip` bytes of the first have left.
    #[inline]
    pub(super) fn gather<'a>(
        &'a self,
        gather: &mut Gather<'a>,
        (before, count): (usize, usize),
        mut skip: usize,
    ) {
        let from = self.gone + before;
        for answer in self.queue.range(from..from + count) {
            let is_plain = match &answer.data[..] {
                [data] if skip == 0 => gather.message(&answer.head, data),
                _ => false,
            };
            if !is_plain {
                gather.bytes(&answer.head[skip.min(FRAME_HEADER_BYTES)..]);
                let gone = skip.saturating_sub(FRAME_HEADER_BYTES);
                let mut cursor = Cursor::at(&answer.data, gone);
                let left = answer.total as usize - gone;
                cursor.walk(&answer.data, left, |span, offset, len| gather.span(span, offset, len));
            }
            skip = 0;
            if gather.is_full() {
                return;
            }
        }
    }

    /// So many bytes of the next `count` ones have left, of the first one `begun` before.
    #[inline]
    pub(super) fn leave(
        &mut self,
        queue_pair: QueuePair,
        sent: &mut usize,
        (count, begun): (&mut u32, &mut usize),
    ) -> Gone {
        while *count > 0 {
            let Some(answer) = self.queue.get(self.gone) else { break };
            let left = answer.len() - *begun;
            if *sent < left {
                *begun += *sent;
                return Gone::Within;
            }
            *sent -= left;
            (*begun, *count) = (0, *count - 1);
            self.gone += 1;
            self.batched -= 1;
            if answer.signaled == Some(true) {
                let told = answer.completion(queue_pair, Status::Success);
                // The spans go first: whoever sees the completion owns the memory.
                self.let_go();
                return Gone::Told(told);
            }
        }
        // Where refusals leave there may be no end to tell, and always more behind them.
        if self.gone == self.queue.len() || self.gone >= TURN {
            self.let_go();
        }
        Gone::Through
    }

    fn let_go(&mut self) {
        self.queue.drain(..self.gone);
        self.gone = 0;
    }

    /// Bytes of data that the kernel has of the one with this number, if `begun` bytes of the first in the batch have left.
    pub fn moved(&self, wr_id: WrId, begun: usize) -> usize {
        let next = self.queue.get(self.gone).filter(|answer| answer.wr_id == wr_id);
        next.map_or(0, |_| begun.saturating_sub(FRAME_HEADER_BYTES))
    }

    /// The ends of those that have not left, with their places in the order of posting.
    pub fn flushed(&self, queue_pair: QueuePair) -> impl Iterator<Item = (u64, WorkCompletion)> {
        let told = self.queue.range(self.gone..).filter(|answer| answer.signaled.is_some());
        told.map(move |answer| (answer.sequence, answer.completion(queue_pair, Status::Flushed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A peer that has one refusal always wait behind those that leave: nobody hears of their ends.
    #[test]
    fn what_left_is_let_go_though_more_waits() {
        let (mut answers, queue_pair) = (OutAnswers::default(), QueuePair(1));
        answers.push_refusal(0, WrId(0), (0, 0));
        for id in 1..10_000 {
            let (count, (mut sent, _)) = answers.next_turn(0);
            answers.push_refusal(id, WrId(0), (0, 0));
            let gone = answers.leave(queue_pair, &mut sent, (&mut (count as u32), &mut 0));
            assert!(matches!(gone, Gone::Through) && answers.staying() == 1);
            assert!(answers.queue.len() <= 2 * TURN, "{} are kept", answers.queue.len());
        }
    }
}
