//! One change of a file.

use super::super::{Moment, Span};

/// What a change does to the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// Writes here.
    Write {
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// Writes at the end, wherever that is.
    Append {
        /// Bytes.
        len: u64,
        /// As answered, or seen by a reader.
        offset: Option<u64>,
    },
    /// Sets the size.
    Cut {
        /// The new size.
        size: u64,
    },
}

/// How far a change is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    UnderWay,
    /// Answered with success.
    Done(Moment),
    /// Answered with an error: it happened before that, or not at all.
    Failed(Moment),
    /// It happens at any time, or never.
    Open,
}

#[derive(Debug, Clone)]
pub(super) struct Change {
    pub(super) id: u32,
    pub(super) shape: Shape,
    pub(super) who: usize,
    /// The open that it went through.
    pub(super) open: Option<u64>,
    pub(super) start: Moment,
    pub(super) progress: Progress,
    /// A read that ended then saw it.
    pub(super) seen: Option<Moment>,
    /// What reads saw before this is of no use: it may happen again after a lost session.
    pub(super) seen_since: Moment,
    /// A crash of the server's process leaves it.
    pub(super) stored: bool,
    /// A crash of the machine leaves it.
    pub(super) durable: bool,
    /// A crash may have taken it.
    pub(super) crashed: bool,
    /// An error of the store may have taken it.
    pub(super) shaky: bool,
    /// Its writer was told of an error.
    pub(super) told: bool,
    /// Its writer keeps it until it is stored, and writes it again after a crash.
    pub(super) kept: bool,
    /// A flush that was under way with it may have ended that.
    pub(super) kept_perhaps: bool,
    /// A cut of its writer that was under way with it may have.
    pub(super) unordered: bool,
    /// Its writer came back too late after a crash to write it again, and has yet to be told.
    pub(super) too_late: bool,
    /// It is yet to be written again, if its writer knows nothing better.
    pub(super) pending: bool,
    /// When it was written again; it may have been before that too.
    pub(super) again: Option<Moment>,
}

impl Change {
    pub(super) fn end(&self) -> u64 {
        match self.shape {
            Shape::Write { offset, len } => offset + len,
            Shape::Append { len, offset } => offset.map_or(0, |offset| offset + len),
            Shape::Cut { size } => size,
        }
    }

    /// Bytes that it writes.
    pub(super) fn range(&self) -> Option<(u64, u64)> {
        match self.shape {
            Shape::Write { offset, len } => Some((offset, offset + len)),
            Shape::Append { len, offset } => offset.map(|offset| (offset, offset + len)),
            Shape::Cut { .. } => None,
        }
    }

    pub(super) fn cut(&self) -> Option<u64> {
        match self.shape {
            Shape::Cut { size } => Some(size),
            _ => None,
        }
    }

    pub(super) fn saw(&self) -> Moment {
        self.seen.unwrap_or(Moment::MAX)
    }

    /// By when it has happened, if it ever does.
    pub(super) fn happened(&self) -> Option<Moment> {
        match self.progress {
            // It may yet be written again, over what is newer.
            Progress::Done(_) if self.pending => None,
            Progress::Done(_) if self.again.is_some() => self.again,
            Progress::Done(end) | Progress::Failed(end) => Some(end.min(self.saw())),
            Progress::UnderWay => self.seen,
            Progress::Open => None,
        }
    }

    pub(super) fn is_doubtful(&self) -> bool {
        self.crashed || self.shaky
    }

    /// Since when it certainly is there.
    pub(super) fn there(&self) -> Option<Moment> {
        match self.progress {
            _ if self.is_doubtful() => None,
            Progress::Done(_) if self.again.is_some() => self.again,
            Progress::Done(end) => Some(end.min(self.saw())),
            Progress::UnderWay => self.seen,
            Progress::Failed(_) | Progress::Open => None,
        }
    }

    /// Certainly came after `earlier` had happened and before `read` began.
    pub(super) fn replaces(&self, earlier: &Change, read: Span) -> bool {
        let after = match (earlier.progress, earlier.happened()) {
            // A client writes again only what it has not replaced since.
            (Progress::Done(end), _) if self.is_kept_beside(earlier) || self.cuts(earlier) => {
                self.start > end
            }
            (_, happened) => happened.is_some_and(|happened| self.start > happened),
        };
        self.id != earlier.id && after && self.there().is_some_and(|there| there < read.start)
    }

    /// Where the other one was written again, so was this one.
    pub(super) fn is_kept_beside(&self, other: &Change) -> bool {
        self.kept && other.kept && self.who == other.who && self.again >= other.again
    }

    /// Its writer does not write again what it has cut itself.
    fn cuts(&self, other: &Change) -> bool {
        let done = matches!(self.progress, Progress::Done(_));
        self.cut().is_some() && done && self.who == other.who && other.kept
    }

    /// The cut came later, and took some of it.
    pub(super) fn is_cut_by(&self, cut: &Change) -> bool {
        let size = cut.cut().unwrap_or(u64::MAX);
        self.is_done_before(cut.start) && self.range().is_some_and(|(_, end)| size < end)
    }

    /// What such a cut took is not written again. True: that is all.
    pub(super) fn shorten(&mut self, cut: &Change) -> bool {
        let (true, Some(size), Some((start, _))) = (self.is_cut_by(cut), cut.cut(), self.range())
        else {
            return false;
        };
        match &mut self.shape {
            Shape::Write { len, .. } | Shape::Append { len, .. } if size > start => {
                *len = size - start;
                false
            }
            _ => true,
        }
    }

    /// A flush or sync that `who` asked for found it. One that was asked for before a crash may be
    /// done after it, and before others have written again what they keep.
    pub(super) fn is_covered(&self, who: usize, flush: Span) -> bool {
        let was_there = self.who == who || self.again.is_none_or(|again| again < flush.start);
        was_there && self.is_done_before(flush.start)
    }

    pub(super) fn is_done_before(&self, moment: Moment) -> bool {
        matches!(self.progress, Progress::Done(end) if end < moment)
    }
}

impl Change {
    pub(super) fn told(&mut self) {
        (self.told, self.too_late) = (true, false);
        // What could not be written is given up when its writer knows.
        self.shaky |= !self.stored;
    }

    pub(super) fn forget_seen(&mut self, now: Moment) {
        if matches!(self.progress, Progress::UnderWay | Progress::Open) {
            (self.seen, self.seen_since) = (None, now);
        }
    }
}
