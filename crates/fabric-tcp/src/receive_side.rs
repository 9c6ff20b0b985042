//! What the receiving half of a queue pair knows: what is coming, where it goes, what is predicted.

use std::sync::Arc;

use dafs_fabric::{PostedReceive, Span, Tag};

use crate::core::Core;
use crate::frame::{FRAME_HEADER_BYTES, FrameHeader, Kind};
use crate::memory_region::Region;
use crate::scatter_gather::Cursor;

/// A frame with as much payload is not to pass through the staging memory.
const PLACED_BYTES: u32 = 1024;
/// So many small frames in a row end the care for payload.
const CARE_FRAMES: u8 = 64;

/// What is wrong with the peer.
pub type Violation = &'static str;

/// A receive into which a message is coming.
#[derive(Debug)]
pub struct Filling {
    pub receive: PostedReceive,
    pub cursor: Cursor,
}

/// Where a body goes.
#[derive(Debug, Clone, Copy)]
pub enum Target {
    Discard,
    /// To the receive that is being filled.
    Receive,
    /// To this tagged receive.
    Tagged(u32),
    /// To the region of the write that is coming.
    Write,
    /// To this read.
    Read(u32),
    /// To the name of what the peer asks for.
    Name,
}

/// The frame whose body is coming.
#[derive(Debug)]
pub struct Current {
    pub header: FrameHeader,
    pub target: Target,
    pub done: usize,
}

/// The peer's write that is coming.
#[derive(Debug)]
pub struct Write {
    pub id: u32,
    pub key: u64,
    /// What its next frame must say.
    pub addr: u64,
    pub left: u32,
    /// `None`: refused.
    pub region: Option<Arc<Region>>,
    pub offset: usize,
}

/// Why receiving pauses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pause {
    /// For a posted receive.
    Receive,
    /// For the receive of this tag, or its cancellation.
    Tag(u64),
}

/// Bytes received and not looked at.
#[derive(Debug)]
pub struct Staged {
    pub bytes: Box<[u8]>,
    pub start: usize,
    pub end: usize,
}

/// Where to look in the staging memory.
pub struct View {
    pub at: usize,
    pub left: usize,
    /// So many bodies to come are in their place, not here.
    pub direct: usize,
    /// So many predictions were judged.
    pub judged: usize,
}

impl View {
    /// At `at`, of `left` bytes that came.
    pub fn new(at: usize, left: usize, direct: usize) -> View {
        View { at, left, direct, judged: 0 }
    }
}

/// The receiving half.
#[derive(Debug, Default)]
pub struct ReceiveSide {
    pub head: [u8; FRAME_HEADER_BYTES],
    pub head_len: usize,
    pub current: Option<Current>,
    pub filling: Option<Filling>,
    /// What the next header must be, in a run.
    pub expected: Option<FrameHeader>,
    pub paused: Option<(FrameHeader, Pause)>,
    pub staged: Option<Staged>,
    pub write: Option<Write>,
    pub next_write: u32,
    /// A name of which a part has come.
    pub name: Option<(Span, Cursor)>,
    /// Frames for which payload is still expected.
    pub care: u8,
    /// Tagged receives for which the current read has predicted, in order.
    pub predicted: Vec<u32>,
    /// Header bytes that are predicted.
    pub predicted_header: u16,
    /// Guesses that the next read may make.
    pub trust: usize,
    /// Tagged messages to come before the next prediction.
    pub distrust: u32,
    /// Wrong predictions since the last right one.
    pub wrong: u32,
}

impl ReceiveSide {
    /// Of a new connection; `predict` where answers are expected.
    pub fn new(predict: bool) -> ReceiveSide {
        ReceiveSide { trust: usize::from(predict), ..ReceiveSide::default() }
    }

    /// A frame has so much payload.
    #[inline]
    pub fn note_payload(&mut self, payload_len: u32) {
        if payload_len >= PLACED_BYTES {
            self.care = CARE_FRAMES;
        } else {
            self.care = self.care.saturating_sub(1);
        }
    }

    /// A frame begins.
    pub fn note_frame(&mut self, header: &FrameHeader) {
        self.note_payload(header.payload_len);
        let is_tagged = header.kind == Kind::Tagged && header.addr == 0;
        if is_tagged || header.kind == Kind::NamedResponse {
            if is_tagged {
                self.predicted_header = header.header_len;
            }
            if self.distrust > 0 {
                self.distrust -= 1;
                self.trust = usize::from(self.distrust == 0);
            }
        }
    }

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

    /// Bytes without which nothing can complete: the rest of the current run.
    pub fn run_left(&self) -> usize {
        let (mut left, mut next) = match &self.current {
            Some(current) => {
                (current.header.body_len() - current.done, current.header.continuation())
            }
            None => (0, self.expected),
        };
        while let Some(header) = next {
            left += FRAME_HEADER_BYTES + header.body_len();
            next = header.continuation();
        }
        left
    }

    /// Gives a half-filled receive back to the shared queue.
    pub fn abandon(&mut self, core: &mut Core) {
        if let Some(filling) = self.filling.take() {
            core.receives.push_front(filling.receive);
        }
    }
}
