//! Reading ahead: what a reader will ask for next is read in before it asks.
//!
//! A [`Reader`] watches the reads of one open file. Reads that go on where one ended, or that come
//! at equal distances, are a stream; its window grows while it goes on, shrinks when what was read
//! ahead was gone again before it was asked for, and ends with the stream. Several streams through
//! one open (threads of a program, parts of a file) are told apart.

use std::sync::Arc;

use crate::file::CachedFile;

/// Streams that are told apart.
const STREAMS: usize = 4;
/// The first window of a stream.
const WINDOW_MIN: u64 = 128 << 10;
/// The largest one; also at most a sixteenth of the arena.
const WINDOW_MAX: u64 = 4 << 20;
/// Reads at equal distances before the next ones are read ahead: two distances that are equal.
const STRIDES_MIN: u32 = 2;
/// Pieces read ahead of a strided stream.
const PIECES_MAX: u64 = 64;
/// Beyond this nothing is read ahead, so that no sum overflows.
const OFFSET_MAX: u64 = 1 << 60;
/// The longest distance that is taken for one.
const STRIDE_MAX: u64 = 64 << 20;

/// What one open file was read like.
#[derive(Debug, Default)]
pub struct Reader {
    streams: [Stream; STREAMS],
    reads: u64,
    is_off: bool,
}

#[derive(Debug, Default, Clone, Copy)]
struct Stream {
    /// The last read; `len` 0: no stream.
    at: u64,
    len: u64,
    /// The distance of its reads; their length where one begins at the end of the other.
    stride: u64,
    /// Distances that were equal, in a row.
    run: u32,
    /// Bytes that are read ahead at a time, holes not counted.
    window: u64,
    /// Where what was read ahead ends.
    until: u64,
    /// The number of its last read.
    read: u64,
}

/// What to read in: `count` pieces of `len` bytes, `stride` bytes apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Pieces {
    offset: u64,
    len: u64,
    stride: u64,
    count: u64,
}

impl Stream {
    fn end(&self) -> u64 {
        self.at + self.len
    }

    fn is_sequential(&self) -> bool {
        self.stride == self.len
    }

    /// The read goes on with this stream.
    fn follows(&self, offset: u64, len: u64) -> bool {
        let strided = self.run > 0 && len == self.len && offset == self.at + self.stride;
        self.len > 0 && (offset == self.end() || strided)
    }

    /// It may be its second read.
    fn may_follow(&self, offset: u64, len: u64) -> bool {
        len == self.len && offset > self.end() && offset - self.at <= STRIDE_MAX
    }

    fn go_on(&mut self, offset: u64, len: u64) {
        let sequential = offset == self.end();
        let stride = if sequential { len } else { offset - self.at };
        let same = (sequential && self.is_sequential()) || stride == self.stride;
        self.run = if same || self.run == 0 { self.run.saturating_add(1) } else { 1 };
        if !same {
            (self.window, self.until) = (0, 0);
        }
        (self.at, self.len, self.stride) = (offset, len, stride);
    }

    /// What to read in now; nothing while half of the window is still ahead.
    fn next(&mut self, window_max: u64, was_there: bool) -> Option<Pieces> {
        let needed = if self.is_sequential() { 1 } else { STRIDES_MIN };
        if self.run < needed {
            return None;
        }
        let lost = !was_there && self.until >= self.end();
        self.window = match self.window {
            0 => WINDOW_MIN.max(2 * self.len),
            window if lost => window / 2,
            window => 2 * window,
        };
        self.window = self.window.clamp(self.len, window_max.max(self.len));
        if self.is_sequential() { self.next_bytes() } else { self.next_pieces() }
    }

    fn next_bytes(&mut self) -> Option<Pieces> {
        let from = self.until.max(self.end());
        let until = self.end() + self.window;
        if until.saturating_sub(from) < self.window / 2 {
            return None;
        }
        self.until = until;
        let len = until - from;
        Some(Pieces { offset: from, len, stride: len, count: 1 })
    }

    fn next_pieces(&mut self) -> Option<Pieces> {
        let most = (self.window / self.len).clamp(1, PIECES_MAX);
        let there = self.until.saturating_sub(self.end()).div_ceil(self.stride);
        let count = most.saturating_sub(there);
        if count < most.div_ceil(2) {
            return None;
        }
        let offset = self.at + self.stride * (there + 1);
        self.until = offset + self.stride * (count - 1) + self.len;
        Some(Pieces { offset, len: self.len, stride: self.stride, count })
    }
}

impl Reader {
    /// Nothing is read ahead for this open any more, or again.
    pub fn switch(&mut self, on: bool) {
        *self = Reader { is_off: !on, ..Reader::default() };
    }

    /// A read; whether the cache had it, or it was on its way.
    fn note(&mut self, offset: u64, len: u64, was_there: bool, window_max: u64) -> Option<Pieces> {
        if self.is_off || len == 0 || offset.saturating_add(len) > OFFSET_MAX {
            return None;
        }
        self.reads += 1;
        let (mut known, mut begun, mut oldest) = (None, None, 0);
        for (index, stream) in self.streams.iter().enumerate() {
            if stream.follows(offset, len) {
                known = Some(index);
                break;
            }
            if begun.is_none() && stream.run == 0 && stream.may_follow(offset, len) {
                begun = Some(index);
            }
            if stream.read < self.streams[oldest].read {
                oldest = index;
            }
        }
        let read = self.reads;
        let Some(known) = known.or(begun) else {
            self.streams[oldest] = Stream { at: offset, len, read, ..Stream::default() };
            return None;
        };
        let stream = &mut self.streams[known];
        stream.read = read;
        stream.go_on(offset, len);
        stream.next(window_max, was_there)
    }
}

impl CachedFile {
    /// To be told of each read after it was answered, or while it waits; begins to read in what
    /// comes next. `was_there`: the cache had all of it, or it was being read in.
    pub fn read_ahead(
        self: &Arc<Self>,
        reader: &mut Reader,
        offset: u64,
        len: usize,
        was_there: bool,
    ) {
        let window_max = WINDOW_MAX.min(self.arena_bytes() / 16);
        let Some(pieces) = reader.note(offset, len as u64, was_there, window_max) else { return };
        let size = self.size();
        let mut list = Vec::new();
        for index in 0..pieces.count {
            let at = pieces.offset + pieces.stride * index;
            if at >= size {
                break;
            }
            list.push((at, pieces.len.min(size - at) as usize));
        }
        if !list.is_empty() {
            self.prefetch_list(&list);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const K: u64 = 1 << 10;
    const M: u64 = 1 << 20;

    /// What is read in for these reads, all of which the cache had.
    fn ahead(reader: &mut Reader, reads: impl IntoIterator<Item = (u64, u64)>) -> Vec<Pieces> {
        reads.into_iter().filter_map(|(at, len)| reader.note(at, len, true, WINDOW_MAX)).collect()
    }

    #[test]
    fn a_sequential_reader_is_always_ahead_once() {
        let mut reader = Reader::default();
        let asked = ahead(&mut reader, (0..200).map(|i| (i * 64 * K, 64 * K)));
        // From the second read on, each byte once, in order, without a gap.
        assert_eq!(asked[0].offset, 128 * K);
        for (first, second) in asked.iter().zip(&asked[1..]) {
            assert_eq!(second.offset, first.offset + first.len);
        }
        let last = asked.last().expect("some");
        let end = last.offset + last.len;
        let ahead = end - 200 * 64 * K;
        assert!((WINDOW_MAX / 2..=WINDOW_MAX).contains(&ahead), "{ahead}");
        assert!(asked.iter().all(|pieces| pieces.count == 1 && pieces.len <= WINDOW_MAX));
    }

    #[test]
    fn random_reads_bring_nothing() {
        let mut reader = Reader::default();
        let mut state = 1u64;
        let random = std::iter::repeat_with(|| {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            ((state >> 33) % (1 << 26) * 4 * K, 4 * K)
        });
        assert_eq!(ahead(&mut reader, random.take(1000)).len(), 0);
    }

    #[test]
    fn equal_distances_are_a_stream_of_pieces() {
        let mut reader = Reader::default();
        let asked = ahead(&mut reader, (0..100).map(|i| (i * 64 * K, 4 * K)));
        assert_eq!(asked[0], Pieces { offset: 192 * K, len: 4 * K, stride: 64 * K, count: 32 });
        let mut next = asked[0].offset;
        for pieces in &asked {
            assert_eq!((pieces.offset, pieces.len, pieces.stride), (next, 4 * K, 64 * K));
            next += pieces.count * pieces.stride;
        }
        assert!(next > 100 * 64 * K, "it is ahead in the end: {next}");
        assert!(asked.iter().map(|pieces| pieces.count).sum::<u64>() <= 100 + PIECES_MAX);
    }

    #[test]
    fn streams_are_told_apart() {
        let mut reader = Reader::default();
        let both = (0..50).flat_map(|i| [(i * 16 * K, 16 * K), (700 * M + i * 16 * K, 16 * K)]);
        let asked = ahead(&mut reader, both);
        let low: u64 = asked.iter().filter(|p| p.offset < M * 100).map(|p| p.len).sum();
        let high: u64 = asked.iter().filter(|p| p.offset > M * 100).map(|p| p.len).sum();
        assert!(low >= 800 * K && high >= 800 * K, "{low} {high}");
    }

    #[test]
    fn a_window_shrinks_when_what_was_read_ahead_is_gone() {
        let mut reader = Reader::default();
        ahead(&mut reader, (0..100).map(|i| (i * 64 * K, 64 * K)));
        let window = reader.streams.iter().map(|stream| stream.window).max();
        assert_eq!(window, Some(WINDOW_MAX));
        for i in 100..120 {
            reader.note(i * 64 * K, 64 * K, false, WINDOW_MAX);
        }
        let window = reader.streams.iter().map(|stream| stream.window).max();
        assert!(window <= Some(128 * K), "{window:?}");
    }

    #[test]
    fn it_can_be_switched_off() {
        let mut reader = Reader::default();
        reader.switch(false);
        assert_eq!(ahead(&mut reader, (0..20).map(|i| (i * 64 * K, 64 * K))).len(), 0);
        reader.switch(true);
        assert!(!ahead(&mut reader, (0..20).map(|i| (i * 64 * K, 64 * K))).is_empty());
    }

    #[test]
    fn offsets_at_the_end_of_the_world_are_no_stream() {
        let mut reader = Reader::default();
        assert_eq!(reader.note(u64::MAX - 5, 5, true, M), None);
        assert_eq!(reader.note(0, u64::MAX, true, M), None);
        assert_eq!(reader.note(i64::MAX as u64 - 5, 5, true, M), None);
        assert_eq!(reader.note(i64::MAX as u64, 5, true, M), None);
    }
}
