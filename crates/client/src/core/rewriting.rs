//! What of the kept writes is written again, and in which requests.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Range;

use super::ids::{FileId, FileKey};
use crate::planted::{Defect, planted};

/// Part of what is kept.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) file: FileKey,
    /// Of which acknowledged writes.
    pub(super) number: u64,
    pub(super) place: Range<u64>,
}

/// What of kept writes no later one has replaced, in the order of its places. What was replaced
/// must not come, for a moment, over the newer bytes that the server may still have.
/// Nor is what a change replaced that nobody keeps.
pub(super) fn not_replaced(
    writes: Vec<(FileId, Piece)>,
    changes: Vec<(FileId, (u64, Range<u64>))>,
) -> VecDeque<Piece> {
    let writes = writes
        .into_iter()
        .map(|(of, Piece { file, number, place })| (number, of, Some(file), place));
    let changes = changes.into_iter().map(|(of, (number, place))| (number, of, None, place));
    let mut all: Vec<_> = writes.chain(changes).collect();
    all.sort_unstable_by_key(|(number, ..)| *number);
    if !planted(Defect::KeptReplaced) {
        all.reverse();
    }
    let mut taken: HashMap<FileId, Taken> = HashMap::new();
    let mut pieces = Vec::with_capacity(all.len());
    for (number, of, file, place) in all {
        let free = taken.entry(of).or_default().take(place);
        let Some(file) = file else { continue };
        pieces.extend(free.into_iter().map(|place| Piece { file, number, place }));
    }
    pieces.sort_unstable_by_key(|piece| (piece.file.index, piece.place.start));
    pieces.into()
}

/// What is written again, in requests that each take as much as possible.
#[derive(Debug, Default)]
pub(super) struct Rewriting {
    /// In the order of [`not_replaced`].
    pub(super) pieces: VecDeque<Piece>,
    /// Requests without an answer.
    pub(super) under_way: usize,
}

impl Rewriting {
    /// The pieces of the next request, behind each other in one file; empty when there are none.
    pub(super) fn next(&mut self, bytes_max: u64) -> Vec<Piece> {
        let mut pieces: Vec<Piece> = Vec::new();
        let mut left = bytes_max;
        while let Some(piece) = self.pieces.front().filter(|_| left > 0) {
            let (file, start) = (piece.file, piece.place.start);
            let follows = |last: &Piece| (last.file, last.place.end) == (file, start);
            if !pieces.last().is_none_or(follows) {
                break;
            }
            let Some(piece) = self.cut(left) else { break };
            left -= piece.place.end - start;
            pieces.push(piece);
        }
        pieces
    }

    /// At most so many bytes of the first piece.
    fn cut(&mut self, bytes_max: u64) -> Option<Piece> {
        let mut piece = self.pieces.pop_front()?;
        let at = piece.place.start.saturating_add(bytes_max);
        if at < piece.place.end {
            self.pieces.push_front(Piece { place: at..piece.place.end, ..piece });
            piece.place.end = at;
        }
        Some(piece)
    }
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
    fn a_request_takes_pieces_behind_each_other_up_to_its_limit() {
        let piece = |index, place| {
            let file = FileKey { index, generation: 0 };
            Piece { file, number: 1, place }
        };
        let pieces =
            [piece(0, 0..3), piece(0, 3..4), piece(0, 5..6), piece(1, 6..7), piece(1, 7..29)];
        let mut rewriting = Rewriting { pieces: pieces.into(), under_way: 0 };
        let requests = std::iter::from_fn(|| Some(rewriting.next(10)).filter(|p| !p.is_empty()));
        let place = |piece: &Piece| (piece.place.start, piece.place.end);
        let places = |pieces: Vec<Piece>| pieces.iter().map(place).collect::<Vec<_>>();
        let found: Vec<_> = requests.map(places).collect();
        let expected = [
            vec![(0, 3), (3, 4)],
            vec![(5, 6)],
            vec![(6, 7), (7, 16)],
            vec![(16, 26)],
            vec![(26, 29)],
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn what_was_replaced_is_not_written_again() {
        let file = |index| FileKey { index, generation: 0 };
        let write =
            |inode, index, id, place| ((1, inode), Piece { file: file(index), number: id, place });
        let writes = vec![
            write(1, 0, 1, 0..100),
            write(2, 2, 5, 0..100),
            write(1, 0, 2, 200..300),
            write(1, 0, 6, 250..250),
            write(1, 1, 3, 50..210),
            write(1, 0, 4, 60..70),
            write(1, 0, 7, 300..310),
        ];
        let pieces = not_replaced(writes, vec![((1, 0), (8, 62..66)), ((1, 0), (3, 290..305))]);
        let found: Vec<_> = pieces
            .iter()
            .map(|piece| (piece.number, piece.file.index, piece.place.clone()))
            .collect();
        let expected = [
            (1, 0, 0..50),
            (4, 0, 60..70),
            (2, 0, 210..300),
            (7, 0, 300..310),
            (3, 1, 50..60),
            (3, 1, 70..210),
            (5, 2, 0..100),
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
}
