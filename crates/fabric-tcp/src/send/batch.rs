//! Work that is cut into frames, on its way to the kernel.

use std::collections::VecDeque;
use std::sync::Arc;

use dafs_fabric::{QueuePair, Span};
use smallvec::SmallVec;

use super::out_answers::{Gone, OutAnswers};
use super::out_frame::{OutFrame, Source, gather_frame, gather_whole};
use crate::frame::{FAULT_READ, FRAME_HEADER_BYTES, FRAME_PAYLOAD_BYTES_MAX, FrameHeader, Kind};
use crate::memory_region::Pin;
use crate::requests::{Request, Slab};
use crate::scatter_gather::Cursor;
use crate::sys::Gather;

/// A frame in the order in which it leaves.
#[derive(Debug, Clone, Copy)]
enum Next {
    /// All of the request in this slot, which has the head.
    Whole { slot: u32, header_len: u32, payload_len: u32 },
    /// The next one of the others.
    Other,
    /// So many answers to named reads, whether there is a large one.
    Answers { count: u32, is_large: bool },
}

/// Frames in the order in which they leave.
#[derive(Debug, Default)]
pub struct Batch {
    order: VecDeque<Next>,
    /// Those that are no whole request.
    others: VecDeque<OutFrame>,
    /// Bytes of the first one that the kernel has.
    sent: usize,
    /// Bytes that were added since this was last asked, and the largest payload of these frames.
    added: (usize, usize),
    /// Some are read from a region, or say that one was.
    reads_regions: bool,
}

impl Batch {
    /// The kernel has all of it.
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// Frames of which the kernel does not have all.
    pub(super) fn len(&self) -> usize {
        self.order.len()
    }

    /// Adds what leaves next, as much of it as there are places for.
    pub fn gather<'a>(
        &'a self,
        gather: &mut Gather<'a>,
        (requests, answers): (&'a Slab<Request>, &'a OutAnswers),
        zeros: &'a Span,
    ) {
        let mut skip = self.sent;
        let (mut others, mut answered) = (self.others.iter(), 0);
        for next in &self.order {
            match next {
                Next::Whole { slot, .. } => gather_whole(gather, requests.at(*slot), skip),
                Next::Other => {
                    if let Some(frame) = others.next() {
                        gather_frame(gather, frame, skip, requests, zeros);
                    }
                }
                Next::Answers { count, .. } => {
                    answers.gather(gather, (answered, *count as usize), skip);
                    answered += *count as usize;
                }
            }
            skip = 0;
            if gather.is_full() {
                return;
            }
        }
    }

    /// Bytes that were added since this was last asked, and the largest payload of these frames.
    pub(super) fn take_added(&mut self) -> (usize, usize) {
        std::mem::take(&mut self.added)
    }

    fn note_added(&mut self, header_len: usize, payload_len: usize) {
        self.added.0 += FRAME_HEADER_BYTES + header_len + payload_len;
        self.added.1 = self.added.1.max(payload_len);
    }

    /// Adds the only frame of a request.
    #[inline]
    pub(super) fn push_whole(&mut self, slot: u32, request: &mut Request) {
        let (header_len, payload_len) = (request.header_len(), request.posted.total);
        request.done = payload_len;
        self.note_added(usize::from(header_len), payload_len as usize);
        self.order.push_back(Next::Whole { slot, header_len: header_len.into(), payload_len });
    }

    /// Adds the next answers to named reads: so many, of so many bytes with their heads, and the largest one's data.
    #[inline]
    pub(super) fn push_answers(&mut self, count: usize, (bytes, largest): (usize, usize)) {
        if count == 0 {
            return;
        }
        self.added = (self.added.0 + bytes, self.added.1.max(largest));
        let is_large = largest == FRAME_PAYLOAD_BYTES_MAX;
        self.order.push_back(Next::Answers { count: count as u32, is_large });
    }

    /// The answers to named reads of which some have not left, if they are first: the kernel has `sent` bytes more. An end
    /// that is to be told, or whether that was all of them.
    #[inline]
    pub(super) fn answers_left(
        &mut self,
        answers: &mut OutAnswers,
        queue_pair: QueuePair,
        sent: &mut usize,
    ) -> Option<Gone> {
        let Some(Next::Answers { count, .. }) = self.order.front_mut() else { return None };
        let gone = answers.leave(queue_pair, sent, (count, &mut self.sent));
        if *count == 0 {
            self.order.pop_front();
        }
        Some(gone)
    }

    /// Bytes that the kernel has of the first answer to a named read, if that is first.
    pub(super) fn answer_begun(&self) -> usize {
        if matches!(self.order.front(), Some(Next::Answers { .. })) { self.sent } else { 0 }
    }

    /// Adds a frame.
    pub(super) fn push(&mut self, frame: OutFrame) {
        self.reads_regions |= matches!(frame.source, Source::Region(..) | Source::Done(_));
        self.note_added(frame.header_len, frame.payload_len);
        self.order.push_back(Next::Other);
        self.others.push_back(frame);
    }

    /// The kernel has `sent` bytes more: drops the first frame if that is all of it, and takes its
    /// bytes off. Then returns the request of which that was the last frame, if it was.
    pub fn pop_sent(&mut self, sent: &mut usize) -> Option<Option<u32>> {
        let (len, ended) = match *self.order.front()? {
            Next::Whole { slot, header_len, payload_len } => {
                (FRAME_HEADER_BYTES + header_len as usize + payload_len as usize, Some(slot))
            }
            Next::Other => {
                let first = self.others.front()?;
                let ended = match first.source {
                    Source::Request(slot) if first.last => Some(slot),
                    _ => None,
                };
                (first.len(), ended)
            }
            // See `answers_left`.
            Next::Answers { .. } => return None,
        };
        let left = len - self.sent;
        if *sent < left {
            self.sent += *sent;
            return None;
        }
        *sent -= left;
        self.sent = 0;
        if let Some(Next::Other) = self.order.pop_front() {
            self.others.pop_front();
            self.reads_regions &= !self.others.is_empty();
        }
        Some(ended)
    }

    /// Bytes of a request's data that are cut into frames and not with the kernel.
    pub(super) fn unsent(&self, slot: usize) -> usize {
        let mut gone = self.sent;
        let mut unsent = 0;
        let mut others = self.others.iter();
        for next in &self.order {
            let (of, header_len, payload_len) = match next {
                Next::Whole { slot, header_len, payload_len } => {
                    (Some(*slot), *header_len as usize, *payload_len as usize)
                }
                Next::Other => {
                    let Some(frame) = others.next() else { break };
                    let of = match frame.source {
                        Source::Request(of) => Some(of),
                        _ => None,
                    };
                    (of, frame.header_len, frame.payload_len)
                }
                Next::Answers { .. } => (None, 0, 0),
            };
            let payload_gone = gone.saturating_sub(FRAME_HEADER_BYTES + header_len);
            if of.is_some_and(|of| of as usize == slot) {
                unsent += payload_len.saturating_sub(payload_gone);
            }
            gone = 0;
        }
        unsent
    }

    /// The answer to the peer's hello: the first frame.
    pub(super) fn push_first(&mut self, bytes: &[u8]) {
        let mut head = [0; FRAME_HEADER_BYTES];
        let (first, rest) = bytes.split_at(FRAME_HEADER_BYTES);
        head.copy_from_slice(first);
        self.push(OutFrame {
            head,
            first: false,
            header_len: 0,
            payload_len: rest.len(),
            source: Source::Bytes(rest.into()),
            cursor: Cursor::default(),
            last: false,
        });
    }

    /// A message is begun in a batch that has room for all of it, or else where no other large one is:
    /// who got out of step once would have each message in two batches, which costs streams a quarter.
    pub(super) fn may_begin(&self, bytes: u32, frames: usize) -> bool {
        let is_whole = |next: &Next| match next {
            Next::Whole { payload_len, .. } => *payload_len as usize == FRAME_PAYLOAD_BYTES_MAX,
            Next::Other => false,
            Next::Answers { is_large, .. } => *is_large,
        };
        let is_large = |frame: &OutFrame| frame.payload_len == FRAME_PAYLOAD_BYTES_MAX;
        bytes as usize <= frames * FRAME_PAYLOAD_BYTES_MAX
            || !(self.others.iter().any(is_large) || self.order.iter().any(is_whole))
    }

    /// Cuts up to `frames` frames from a tagged send or a write; true when it is all cut.
    pub(super) fn frame_run(
        &mut self,
        slot: u32,
        request: &mut Request,
        kind: Kind,
        frames: usize,
    ) -> bool {
        let runs = frames_of(request.posted.total - request.done, frames).max(1);
        for run in (0..runs).rev() {
            let left = request.posted.total - request.done;
            let mut header = FrameHeader {
                run: run as u8,
                payload_len: left.min(FRAME_PAYLOAD_BYTES_MAX as u32),
                key: request.posted.key,
                id: request.id,
                ..FrameHeader::new(kind)
            };
            if kind == Kind::Write {
                header.addr = request.posted.addr.wrapping_add(u64::from(request.done));
                header.total = left;
            } else {
                header.addr = u64::from(request.done);
                header.total = request.posted.total;
                if request.done == 0 {
                    header.header_len = request.header_len();
                }
            }
            let mut frame = match request.done {
                0 => OutFrame::first_of(slot, request, &header),
                _ => OutFrame::new(&header, Source::Request(slot)),
            };
            frame.cursor = request.cursor;
            frame.last = left == header.payload_len;
            if !frame.last {
                request.cursor.walk(&request.data, header.payload_len as usize, |_, _, _| {});
            }
            request.done += header.payload_len;
            self.push(frame);
        }
        request.done == request.posted.total
    }

    /// Looks again at the regions that the batch reads, and holds them for the call to come.
    pub(crate) fn pin_regions(&mut self) -> SmallVec<[Pin; 4]> {
        let mut pins: SmallVec<[Pin; 4]> = SmallVec::new();
        if !self.reads_regions {
            return pins;
        }
        let begun = self.sent > 0 && matches!(self.order.front(), Some(Next::Other));
        for (index, frame) in self.others.iter_mut().enumerate() {
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

/// Frames of so many bytes, `frames_max` at most.
pub(super) fn frames_of(bytes: u32, frames_max: usize) -> usize {
    (bytes as usize).div_ceil(FRAME_PAYLOAD_BYTES_MAX).min(frames_max)
}
