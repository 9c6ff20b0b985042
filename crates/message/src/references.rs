//! What replies refer to, where the responder has it, in memory that the requester may read.
//!
//! The responder keeps the data until the requester has let it go: by a number that rides on its next
//! request, or goes alone when none goes soon. How much one connection and one quota keep is bounded; beyond
//! it, data goes as if nobody had asked. What is not let go ends with the connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use dafs_fabric::{DeviceAttr, RemoteSpan};

use crate::header::{FLAG_MAY_LEND, FLAG_MAY_REFER, RELEASE_BYTES, RELEASES_MAX};
use crate::planted::{Defect, planted};

/// Less is copied as fast as it is let go.
const WORTH_BYTES: usize = 16 << 10;
/// What stays with the data of a reference: caches keep pieces of so many bytes as wholes.
const GRAIN_BYTES: usize = 64 << 10;
/// Whether so many bytes may be referred to.
pub fn is_worth(bytes: usize) -> bool {
    bytes >= WORTH_BYTES
}

/// Whether a reply of so many bytes had better say where they are, as the request has these flags.
#[inline]
pub fn is_asked(flags: u8, bytes: usize) -> bool {
    flags & FLAG_MAY_REFER != 0 && (is_worth(bytes) || flags & FLAG_MAY_LEND != 0 && bytes > 0)
}

/// What stays with so many bytes, wherever they begin.
fn at_most(len: usize) -> usize {
    (len.saturating_sub(1).div_ceil(GRAIN_BYTES) + 1) * GRAIN_BYTES
}

/// What stays with so many bytes that lie in these pieces.
pub fn kept_bytes(len: usize, pieces: &[RemoteSpan]) -> usize {
    let grain = GRAIN_BYTES as u64;
    let touched = |piece: &RemoteSpan| {
        let end = piece.addr.saturating_add(u64::from(piece.len));
        (end.div_ceil(grain) - piece.addr / grain) as usize
    };
    // Pieces of one grain are few where they are small.
    at_most(len).min(pieces.iter().map(touched).sum::<usize>().saturating_mul(GRAIN_BYTES))
}

/// A device whose peers read what they are referred to.
pub fn reads_in_place(attr: &DeviceAttr) -> bool {
    attr.shared_memory && attr.rdma_read && attr.recoverable_access_fault
}

/// How much replies may refer to at a time: on one connection, and on all that have the same quota, of one user
/// for example. What is lent counts by itself: it may stay long.
#[derive(Debug)]
pub struct ReferenceQuota {
    read: Share,
    lent: Share,
    /// What it takes is taken of this as well.
    above: Option<Arc<ReferenceQuota>>,
}

#[derive(Debug)]
struct Share {
    of_connection: usize,
    of_all: usize,
    left: AtomicUsize,
}

impl Share {
    fn new((of_connection, of_all): (usize, usize)) -> Share {
        Share { of_connection, of_all, left: AtomicUsize::new(of_all) }
    }

    fn take(&self, bytes: usize) -> bool {
        let less = |left: usize| left.checked_sub(bytes);
        self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }

    fn give_back(&self, bytes: usize) {
        self.left.fetch_add(bytes, Ordering::Relaxed);
    }

    fn left(&self) -> usize {
        self.left.load(Ordering::Relaxed)
    }

    fn taken(&self) -> usize {
        self.of_all.saturating_sub(self.left())
    }
}

impl ReferenceQuota {
    /// Bytes for one connection, and for all. So much may be lent beside.
    pub fn new(of_connection: usize, of_all: usize) -> Arc<ReferenceQuota> {
        let bytes = (of_connection, of_all);
        ReferenceQuota::with_loans(bytes, bytes)
    }

    /// As [`new`](Self::new), and how much may be lent.
    pub fn with_loans(read: (usize, usize), lent: (usize, usize)) -> Arc<ReferenceQuota> {
        ReferenceQuota::within(None, read, lent)
    }

    /// As [`with_loans`](Self::with_loans), and of what `above` has left: all those that are within one
    /// never have more together.
    pub fn within(
        above: Option<Arc<ReferenceQuota>>,
        read: (usize, usize),
        lent: (usize, usize),
    ) -> Arc<ReferenceQuota> {
        Arc::new(ReferenceQuota { read: Share::new(read), lent: Share::new(lent), above })
    }

    fn take(&self, lent: bool, bytes: usize) -> bool {
        if !self.share(lent).take(bytes) {
            return false;
        }
        let has = self.above.as_ref().is_none_or(|above| above.take(lent, bytes));
        if !has {
            self.share(lent).give_back(bytes);
        }
        has
    }

    fn give_back(&self, lent: bool, bytes: usize) {
        self.share(lent).give_back(bytes);
        if let Some(above) = &self.above {
            above.give_back(lent, bytes);
        }
    }

    fn share(&self, lent: bool) -> &Share {
        if lent { &self.lent } else { &self.read }
    }

    /// Bytes that are taken now by what is read, and by what is lent.
    pub fn taken(&self) -> [usize; 2] {
        [&self.read, &self.lent].map(Share::taken)
    }

    /// Bytes that are not taken by what is only read.
    pub fn left(&self) -> usize {
        self.read.left()
    }

    /// Bytes that may still be lent.
    pub fn left_to_lend(&self) -> usize {
        self.lent.left()
    }
}

struct Reference {
    /// Tells those with the same place apart.
    generation: u16,
    bytes: usize,
    lent: bool,
    /// For the end of its reply; `None`: the place is free.
    token: Option<u64>,
}

/// Bytes of those that are read, and of those that are lent.
#[derive(Default)]
struct Taken([usize; 2]);

impl Taken {
    fn of(&mut self, lent: bool) -> &mut usize {
        &mut self.0[usize::from(lent)]
    }
}

/// What the replies of a connection refer to.
pub struct References {
    quota: Arc<ReferenceQuota>,
    places: Vec<Reference>,
    free: Vec<u16>,
    taken: Taken,
    /// Where memory that peers may read was found last.
    pub last_readable: usize,
}

impl References {
    /// None yet.
    pub fn new(quota: Arc<ReferenceQuota>) -> References {
        let (places, free, taken) = (Vec::new(), Vec::new(), Taken::default());
        References { quota, places, free, taken, last_readable: 0 }
    }

    /// One more, of a reply with which so many bytes [stay](kept_bytes), and which is lent or not: its number, and its
    /// token, which comes from `leave`. `None`: there are enough.
    pub fn begin(
        &mut self,
        (bytes, lent): (usize, bool),
        leave: impl FnOnce() -> u64,
    ) -> Option<(u32, u64)> {
        debug_assert!(bytes >= GRAIN_BYTES, "of less there might be more than places");
        let taken = self.taken.of(lent);
        let most = self.quota.share(lent).of_connection;
        if *taken + bytes > most || !self.quota.take(lent, bytes) {
            return None;
        }
        *taken += bytes;
        let index = match self.free.pop() {
            Some(index) => index,
            None => {
                // Each takes a grain at least: there are no more of them.
                self.places.push(Reference { generation: 0, bytes: 0, lent, token: None });
                (self.places.len() - 1) as u16
            }
        };
        let (place, token) = (&mut self.places[usize::from(index)], leave());
        (place.bytes, place.lent, place.token) = (bytes, lent, Some(token));
        Some((u32::from(place.generation) << 16 | u32::from(index), token))
    }

    /// One is let go: the token of its reply. `None`: it is none.
    pub fn end(&mut self, number: u32) -> Option<u64> {
        let index = number as u16;
        let place = self.places.get_mut(usize::from(index))?;
        if place.generation != (number >> 16) as u16 {
            return None;
        }
        let token = place.token.take()?;
        place.generation = place.generation.wrapping_add(1);
        *self.taken.of(place.lent) -= place.bytes;
        self.quota.give_back(place.lent, place.bytes);
        self.free.push(index);
        Some(token)
    }

    /// All end, but with `but_loans` what is lent.
    pub fn end_all(&mut self, but_loans: bool, mut told: impl FnMut(u64)) {
        for place in self.places.iter_mut().filter(|place| !(but_loans && place.lent)) {
            let Some(token) = place.token.take() else { continue };
            *self.taken.of(place.lent) -= place.bytes;
            self.quota.give_back(place.lent, place.bytes);
            if !planted(Defect::ReferenceEndsEarly) {
                told(token);
            }
        }
    }

    /// Whether something is lent.
    pub fn lends(&self) -> bool {
        self.taken.0[1] > 0
    }

    /// Whether that is lent which goes by this token.
    pub fn is_lent(&self, token: u64) -> bool {
        self.lends() && self.places.iter().any(|place| place.lent && place.token == Some(token))
    }
}

impl Drop for References {
    fn drop(&mut self) {
        for lent in [false, true] {
            self.quota.give_back(lent, *self.taken.of(lent));
        }
    }
}

/// What this side is to let go.
#[derive(Default)]
pub struct Releases {
    numbers: Vec<u32>,
    /// On the list of those that have some.
    pub listed: bool,
    /// Polls since then.
    pub polls: u8,
}

impl Releases {
    pub fn is_empty(&self) -> bool {
        self.numbers.is_empty()
    }

    /// One more, of the connection in place `index`.
    pub fn add(&mut self, number: u32, (index, listed): (u32, &mut Vec<u32>)) {
        self.numbers.push(number);
        if !std::mem::replace(&mut self.listed, true) {
            self.polls = 0;
            listed.push(index);
        }
    }

    /// How many go into so many bytes of a message.
    pub fn fitting(&self, bytes: usize) -> u8 {
        self.numbers.len().min(bytes / RELEASE_BYTES).min(RELEASES_MAX) as u8
    }

    /// So many leave.
    pub fn put(&mut self, count: u8, message: &mut Vec<u8>) {
        for number in self.numbers.drain(..usize::from(count)) {
            message.extend_from_slice(&number.to_le_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_bounded_and_end_once() {
        let quota = ReferenceQuota::new(5 * GRAIN_BYTES, 7 * GRAIN_BYTES);
        let mut one = References::new(quota.clone());
        let mut other = References::new(quota.clone());
        let begin = |of: &mut References, token, len| {
            of.begin((at_most(len), false), || token).map(|it| it.0)
        };
        let first = begin(&mut one, 1, WORTH_BYTES).expect("two grains");
        let second = begin(&mut one, 2, GRAIN_BYTES).expect("two grains");
        assert_eq!(begin(&mut one, 3, GRAIN_BYTES), None, "enough for one connection");
        assert!(begin(&mut one, 4, 1).is_some() && begin(&mut one, 5, 1).is_none());
        assert!(begin(&mut other, 6, GRAIN_BYTES).is_some());
        assert_eq!(begin(&mut other, 7, 1), None, "enough for all");
        assert_eq!(quota.taken(), [7 * GRAIN_BYTES, 0]);
        assert_eq!((one.end(first), one.end(first)), (Some(1), None));
        assert_eq!(one.end(77), None);
        let again = begin(&mut one, 8, 1).expect("room");
        assert_ne!(again, first, "of another generation");
        assert_eq!((one.end(first), one.end(second)), (None, Some(2)));
        let mut ended = Vec::new();
        one.end_all(false, |token| ended.push(token));
        assert_eq!(ended, [8, 4]);
        drop((one, other));
        assert_eq!(quota.left(), 7 * GRAIN_BYTES);
    }

    #[test]
    fn what_is_kept_is_what_the_pieces_touch() {
        let piece = |addr: usize, len: usize| RemoteSpan {
            rkey: dafs_fabric::Rkey(1),
            addr: addr as u64,
            len: len as u32,
        };
        let grains = |len, pieces: &[RemoteSpan]| kept_bytes(len, pieces) / GRAIN_BYTES;
        let frames: Vec<_> = (0..16).map(|at| piece(at * 3 * GRAIN_BYTES, GRAIN_BYTES)).collect();
        assert_eq!(grains(16 * GRAIN_BYTES, &frames), 16, "whole frames");
        assert_eq!(grains(GRAIN_BYTES, &[piece(GRAIN_BYTES - 1, GRAIN_BYTES)]), 2);
        assert_eq!(grains(1, &[piece(5 * GRAIN_BYTES - 1, 1)]), 1);
        assert_eq!(grains(2, &[piece(5 * GRAIN_BYTES - 1, 2)]), 2);
        // Pages of one frame that are apart.
        let pages: Vec<_> = (0..8).map(|at| piece(at * 8192, 4096)).collect();
        assert_eq!(grains(8 * 4096, &pages), 2, "no more than wherever it begins");
        assert_eq!(grains(usize::from(u16::MAX), &[piece(usize::MAX - 9, 100)]), 1);
    }

    #[test]
    fn loans_count_by_themselves_and_stay() {
        let read = (2 * GRAIN_BYTES, 2 * GRAIN_BYTES);
        let quota = ReferenceQuota::with_loans(read, (4 * GRAIN_BYTES, 5 * GRAIN_BYTES));
        let mut one = References::new(quota.clone());
        let begin = |of: &mut References, token, lent| of.begin((at_most(1), lent), || token);
        for (token, lent) in [(1, false), (2, true), (3, true)] {
            // A byte may not touch two grains, but the count is simple.
            assert!(begin(&mut one, token, lent).is_some(), "{token}");
        }
        assert_eq!((quota.left(), quota.left_to_lend()), (GRAIN_BYTES, 3 * GRAIN_BYTES));
        assert!(one.is_lent(2) && !one.is_lent(1) && !one.is_lent(9));
        let mut ended = Vec::new();
        one.end_all(true, |token| ended.push(token));
        assert_eq!((quota.left(), ended.as_slice()), (2 * GRAIN_BYTES, &[1][..]));
        assert!(one.lends());
        let mut other = References::new(quota.clone());
        let lent: Vec<_> = (10..20).map(|token| begin(&mut other, token, true)).collect();
        assert_eq!(lent.iter().flatten().count(), 3, "enough for all");
        one.end_all(false, |token| ended.push(token));
        assert!(!one.lends() && ended == [1, 2, 3]);
        drop((one, other));
        assert_eq!((quota.left(), quota.left_to_lend()), (2 * GRAIN_BYTES, 5 * GRAIN_BYTES));
    }

    #[test]
    fn quotas_within_another_have_no_more_together() {
        let (small, large) =
            ((2 * GRAIN_BYTES, 2 * GRAIN_BYTES), (9 * GRAIN_BYTES, 3 * GRAIN_BYTES));
        let above = ReferenceQuota::with_loans(large, large);
        let each = || ReferenceQuota::within(Some(above.clone()), small, small);
        let (first, other) = (each(), each());
        let (mut one, mut two) = (References::new(first), References::new(other.clone()));
        let begin = |of: &mut References, lent| of.begin((at_most(1), lent), || 5).map(|it| it.0);
        let held = [begin(&mut one, false), begin(&mut one, false), begin(&mut two, false)];
        assert!(held.iter().all(Option::is_some));
        assert_eq!(begin(&mut two, false), None, "all have enough");
        assert_eq!((other.left(), above.left()), (GRAIN_BYTES, 0), "nothing was taken for it");
        assert!(begin(&mut two, true).is_some(), "loans count by themselves");
        one.end(held[0].expect("begun"));
        assert!(begin(&mut two, false).is_some());
        drop((one, two));
        assert_eq!((above.left(), above.left_to_lend()), (3 * GRAIN_BYTES, 3 * GRAIN_BYTES));
    }

    #[test]
    fn releases_go_as_far_as_there_is_room() {
        let (mut releases, mut listed) = (Releases::default(), Vec::new());
        (0..40).for_each(|number| releases.add(number, (5, &mut listed)));
        assert_eq!(listed, [5]);
        assert_eq!((releases.fitting(7), releases.fitting(1000)), (1, RELEASES_MAX as u8));
        let mut message = Vec::new();
        releases.put(1, &mut message);
        releases.put(1, &mut message);
        assert_eq!(message, [0, 0, 0, 0, 1, 0, 0, 0]);
        assert!(!releases.is_empty());
    }
}
