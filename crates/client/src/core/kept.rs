//! Writes of one open file that are kept until they are safe from an end of the server's process.
//!
//! An acknowledged write is in the server's memory. Its bytes stay here until a flush or commit
//! that was sent after its answer has succeeded; when the server's process dies before that, they
//! are written again in the next session, before any other call goes on.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::files::FileId;
use super::work::FileKey;
use crate::planted::{Defect, planted};

/// Copies from here on have their memory used again: fresh memory of that size costs more than
/// the copy.
const LARGE: usize = 32 << 10;
/// Bytes of memory that wait to be used again.
const SPARE_BYTES_MAX: usize = 32 << 20;

/// Memory for copies.
#[derive(Debug, Default)]
pub(crate) struct Spares {
    spares: Mutex<Vec<Vec<u8>>>,
}

impl Spares {
    /// Some bytes, of any content.
    pub(crate) fn take(self: &Arc<Self>, len: usize) -> KeptBytes {
        let spare = if len >= LARGE { self.lock().pop() } else { None };
        let mut bytes = spare.unwrap_or_default();
        bytes.resize(len, 0);
        KeptBytes { bytes, home: Some(self.clone()) }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Vec<u8>>> {
        self.spares.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A copy of written bytes. Its memory goes back to where it came from.
#[derive(Debug)]
pub struct KeptBytes {
    bytes: Vec<u8>,
    home: Option<Arc<Spares>>,
}

impl KeptBytes {
    /// To be filled.
    pub(crate) fn as_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

impl From<Vec<u8>> for KeptBytes {
    fn from(bytes: Vec<u8>) -> KeptBytes {
        KeptBytes { bytes, home: None }
    }
}

impl Drop for KeptBytes {
    fn drop(&mut self) {
        let Some(home) = self.home.take().filter(|_| self.bytes.capacity() >= LARGE) else {
            return;
        };
        let mut spares = home.lock();
        let waiting: usize = spares.iter().map(Vec::capacity).sum();
        if waiting + self.bytes.capacity() <= SPARE_BYTES_MAX {
            spares.push(std::mem::take(&mut self.bytes));
        }
    }
}

/// Names a kept write; grows from write to write, over all files of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct KeptId(pub(super) u64);

#[derive(Debug)]
struct KeptWrite {
    id: KeptId,
    /// Of an append: not known before its answer.
    offset: Option<u64>,
    /// It is the session's so-manieth acknowledged kept write; `None`: it is under way.
    acknowledged: Option<u64>,
    bytes: KeptBytes,
}

/// The kept writes of a file, in the order in which they were made.
#[derive(Debug, Default)]
pub(super) struct Kept {
    writes: VecDeque<KeptWrite>,
}

impl Kept {
    pub(super) fn add(&mut self, id: KeptId, offset: Option<u64>, bytes: impl Into<KeptBytes>) {
        let bytes = bytes.into();
        self.writes.push_back(KeptWrite { id, offset, acknowledged: None, bytes });
    }

    /// The answer: so-manieth kept write of the session, where it went.
    pub(super) fn acknowledge(&mut self, id: KeptId, number: u64, offset: u64) {
        if let Some(write) = self.writes.iter_mut().find(|write| write.id == id) {
            write.acknowledged = Some(number);
            write.offset = Some(offset);
        }
    }

    /// It failed.
    pub(super) fn remove(&mut self, id: KeptId) {
        self.writes.retain(|write| write.id != id);
    }

    /// A flush or commit succeeded that was sent when `number` kept writes were acknowledged. True
    /// when a write is not kept any more by that.
    pub(super) fn safe(&mut self, number: u64) -> bool {
        let before = self.writes.len();
        self.writes.retain(|write| write.acknowledged.is_none_or(|at| at > number));
        self.writes.len() < before
    }

    pub(super) fn is_empty(&self) -> bool {
        self.writes.is_empty()
    }

    /// Those that were acknowledged, and where they went.
    pub(super) fn acknowledged(&self) -> impl Iterator<Item = (KeptId, Range<u64>)> {
        self.writes.iter().filter_map(|write| {
            let offset = write.acknowledged.and(write.offset)?;
            Some((write.id, offset..offset.saturating_add(write.bytes.bytes.len() as u64)))
        })
    }

    /// What a write has for `place`, a part of where it went.
    pub(super) fn bytes(&self, id: KeptId, place: &Range<u64>) -> Option<&[u8]> {
        let write = &self.writes[self.writes.binary_search_by_key(&id, |write| write.id).ok()?];
        let begin = usize::try_from(place.start.checked_sub(write.offset?)?).ok()?;
        let len = usize::try_from(place.end.checked_sub(place.start)?).ok()?;
        write.bytes.bytes.get(begin..begin.checked_add(len)?)
    }
}

/// Part of a kept write.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) file: FileKey,
    pub(super) id: KeptId,
    pub(super) place: Range<u64>,
}

/// What of kept writes no later one has replaced, in their order. What was replaced must not come,
/// for a moment, over the newer bytes that the server may still have.
pub(super) fn not_replaced(mut writes: Vec<(FileId, Piece)>) -> VecDeque<Piece> {
    writes.sort_unstable_by_key(|(_, write)| write.id);
    if !planted(Defect::KeptReplaced) {
        writes.reverse();
    }
    let mut taken: HashMap<FileId, Taken> = HashMap::new();
    let mut pieces = VecDeque::with_capacity(writes.len());
    for (of, Piece { file, id, place }) in writes {
        let free = taken.entry(of).or_default().take(place);
        for place in free.into_iter().rev() {
            pieces.push_front(Piece { file, id, place });
        }
    }
    pieces
}

/// Places of one file, apart from each other: where each begins, and ends.
#[derive(Debug, Default)]
struct Taken(BTreeMap<u64, u64>);

impl Taken {
    /// Takes a place, and tells what of it was free.
    fn take(&mut self, place: Range<u64>) -> Vec<Range<u64>> {
        if place.is_empty() {
            return Vec::new();
        }
        // Those that only touch it become one with it.
        let before = self.0.range(..=place.end).rev().map(|(from, to)| (*from, *to));
        let within: Vec<_> = before.take_while(|(_, to)| *to >= place.start).collect();
        let mut free = Vec::new();
        let mut at = place.start;
        let mut all = place.clone();
        for (from, to) in within.into_iter().rev() {
            if at < from {
                free.push(at..from);
            }
            at = to;
            all = all.start.min(from)..all.end.max(to);
            self.0.remove(&from);
        }
        if at < place.end {
            free.push(at..place.end);
        }
        self.0.insert(all.start, all.end);
        free
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_is_kept_until_a_later_flush() {
        let mut kept = Kept::default();
        kept.add(KeptId(1), Some(0), vec![1]);
        kept.add(KeptId(2), None, vec![2]);
        kept.acknowledge(KeptId(1), 1, 0);
        let there = |kept: &Kept| kept.acknowledged().collect::<Vec<_>>();
        assert_eq!(there(&kept), [(KeptId(1), 0..1)], "the append is under way");
        kept.acknowledge(KeptId(2), 2, 700);
        assert!(kept.safe(1));
        assert_eq!(there(&kept), [(KeptId(2), 700..701)]);
        assert_eq!(kept.bytes(KeptId(2), &(700..701)), Some(&[2][..]));
        assert_eq!(kept.bytes(KeptId(2), &(699..701)), None);
        assert_eq!(kept.bytes(KeptId(1), &(0..1)), None, "it is not kept any more");
        assert!(!kept.safe(1) && !kept.is_empty());
        assert!(kept.safe(2) && kept.is_empty());
    }

    #[test]
    fn memory_of_large_copies_is_used_again_and_has_a_limit() {
        let spares = Arc::new(Spares::default());
        let first = spares.take(LARGE);
        let at = first.bytes.as_ptr();
        drop(first);
        let again = spares.take(LARGE);
        assert_eq!(again.bytes.as_ptr(), at);
        drop(spares.take(LARGE - 1));
        assert_eq!(spares.lock().len(), 0, "small ones are given back");
        let many: Vec<KeptBytes> = (0..2).map(|_| spares.take(SPARE_BYTES_MAX / 2 + 1)).collect();
        drop(many);
        assert_eq!(spares.lock().len(), 1);
    }

    #[test]
    fn what_was_replaced_is_not_written_again() {
        let file = |index| FileKey { index, generation: 0 };
        let write = |inode, index, id, place| {
            ((1, inode), Piece { file: file(index), id: KeptId(id), place })
        };
        let writes = vec![
            write(1, 0, 1, 0..100),
            write(2, 2, 5, 0..100),
            write(1, 0, 2, 200..300),
            write(1, 0, 6, 250..250),
            write(1, 1, 3, 50..210),
            write(1, 0, 4, 60..70),
            write(1, 0, 7, 300..310),
        ];
        let pieces = not_replaced(writes);
        let found: Vec<_> = pieces
            .iter()
            .map(|piece| (piece.id.0, piece.file.index, piece.place.clone()))
            .collect();
        let expected = [
            (1, 0, 0..50),
            (2, 0, 210..300),
            (3, 1, 50..60),
            (3, 1, 70..210),
            (4, 0, 60..70),
            (5, 2, 0..100),
            (7, 0, 300..310),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn places_that_were_taken_are_found_like_in_a_map_of_bytes() {
        let mut state = 7_u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % below
        };
        for _ in 0..200 {
            let (mut taken, mut bytes) = (Taken::default(), [false; 64]);
            for _ in 0..20 {
                let start = random(60);
                let place = start..start + random(64 - start);
                let free = taken.take(place.clone());
                let found: Vec<u64> = free.iter().cloned().flatten().collect();
                let expected: Vec<u64> = place.clone().filter(|at| !bytes[*at as usize]).collect();
                assert_eq!(found, expected);
                assert!(free.iter().all(|range| !range.is_empty()));
                place.for_each(|at| bytes[at as usize] = true);
            }
        }
    }

    #[test]
    fn a_failed_write_is_not_kept() {
        let mut kept = Kept::default();
        kept.add(KeptId(1), Some(0), vec![1]);
        kept.remove(KeptId(1));
        assert!(kept.is_empty());
    }
}
