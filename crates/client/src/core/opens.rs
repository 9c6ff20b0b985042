//! All opens of one file, and the order of what is kept and what is not.
//!
//! A change that is not kept (a cut, a hole, a copy within the server, a plain write) has its place
//! among the acknowledged kept writes of its file: what it replaced is not written again.

use std::ops::Range;

use super::ids::FileKey;
use super::replay_log::ReplayId;

/// Changes of a file that are remembered: with more, what was kept before them is given up.
const CHANGES_MAX: usize = 1024;

/// A change that nobody keeps, and that was acknowledged.
#[derive(Debug)]
pub(super) struct Change {
    pub(super) place: Range<u64>,
    /// Kept writes of the session that were acknowledged when it was sent.
    pub(super) sent: u64,
    /// Its own place among those.
    pub(super) number: u64,
    /// The last kept write that began before its answer.
    pub(super) last_begun: ReplayId,
}

/// All opens of one file.
#[derive(Debug, Default)]
pub(super) struct Opens {
    pub(super) keys: Vec<FileKey>,
    /// Through which of them, and as the so-manieth of the session, the last kept write was
    /// acknowledged that is not together with the one before it.
    kept_last: Option<(FileKey, u64)>,
    /// Kept writes of the session that were acknowledged when its last flush was sent, or what is
    /// not kept changed it.
    pub(super) flush_sent: u64,
    /// The places of changes that nobody keeps, in the order of their numbers.
    changes: Vec<(u64, Range<u64>)>,
    /// Kept writes up to this one, in this place, came before such a change or after it.
    unordered: Option<(ReplayId, Range<u64>)>,
}

impl Opens {
    /// See [`Acknowledged::together_from`](super::replay_log::Acknowledged::together_from).
    pub(super) fn together_from(&mut self, key: FileKey, number: u64) -> u64 {
        let from = match self.kept_last {
            Some((last, from)) if last == key => from,
            _ => number,
        };
        self.kept_last = Some((key, from));
        from.max(self.flush_sent + 1)
    }

    /// A kept write that ended was under way when a change of its place ended.
    pub(super) fn is_unordered(&self, id: ReplayId, place: &Range<u64>) -> bool {
        let unordered = self.unordered.as_ref();
        unordered.is_some_and(|(last, within)| id <= *last && touches(within, place))
    }

    /// `newest` is the last acknowledged write that is kept, `oldest_under_way` the first that is
    /// not acknowledged. True: there are too many changes to remember, and none is.
    pub(super) fn replaced(
        &mut self,
        change: &Change,
        newest: Option<u64>,
        oldest_under_way: Option<ReplayId>,
    ) -> bool {
        let Change { place, number, last_begun, .. } = change;
        if let Some(oldest) = oldest_under_way {
            let before = self.unordered.take().filter(|(last, _)| oldest <= *last);
            let within = before.map_or_else(|| place.clone(), |(_, before)| hull(&before, place));
            self.unordered = Some((*last_begun, within));
        }
        self.flush_sent = self.flush_sent.max(*number);
        let Some(newest) = newest else {
            self.changes.clear();
            return false;
        };
        if let Some((last, before)) = self.changes.last_mut()
            && *last > newest
            && before.start <= place.end
            && place.start <= before.end
        {
            (*last, *before) = (*number, hull(before, place));
            return false;
        }
        if self.changes.len() >= CHANGES_MAX {
            self.changes.clear();
            return true;
        }
        self.changes.push((*number, place.clone()));
        false
    }

    pub(super) fn changes(&self) -> impl Iterator<Item = (u64, Range<u64>)> {
        self.changes.iter().cloned()
    }

    /// No write up to the so-manieth is kept any more.
    pub(super) fn forget(&mut self, kept_writes: u64) {
        self.changes.retain(|(number, _)| *number > kept_writes);
    }
}

fn touches(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

fn hull(a: &Range<u64>, b: &Range<u64>) -> Range<u64> {
    a.start.min(b.start)..a.end.max(b.end)
}
