//! Writes of one open file that are kept until they are safe from an end of the server's process.
//!
//! An acknowledged write is in the server's memory. Its bytes stay here until a flush or commit
//! that was sent after its answer has succeeded; when the server's process dies before that, they
//! are written again in the next session, before any other call goes on: where nothing that was
//! acknowledged later has replaced them, by a kept write (`rewriting.rs`) or otherwise
//! (`replaced.rs`).

use std::collections::VecDeque;
use std::ops::{Deref, Range};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::kept_memory::SharedBytes;

/// Copies from here on have their memory used again: fresh memory of that size costs more than
/// the copy.
const LARGE: usize = 32 << 10;
/// Bytes of memory that wait to be used again.
const SPARE_BYTES_MAX: usize = 32 << 20;
/// Writes behind each other are kept as one up to so many bytes.
const CHUNK_MAX: usize = 1 << 20;
/// Memory of a kept write beside its bytes: its place in a list, which may be twice as long as it
/// must be, and what the allocator wants.
const ENTRY: usize = 2 * size_of::<Chunk>() + 16;
/// Places of a list that stay when it is empty.
const CHUNKS_SPARE: usize = 64;

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
        KeptBytes { bytes, home: Some(self.clone()), shared: None }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Vec<u8>>> {
        self.spares.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Written bytes: a copy, whose memory goes back to where it came from, or shared memory.
#[derive(Debug)]
pub struct KeptBytes {
    bytes: Vec<u8>,
    home: Option<Arc<Spares>>,
    /// Instead of the others.
    shared: Option<SharedBytes>,
}

impl KeptBytes {
    /// To be filled.
    pub(crate) fn as_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// What keeping it takes.
    fn memory(&self) -> usize {
        let shared = self.shared.as_ref().map_or(0, SharedBytes::memory);
        ENTRY + self.bytes.capacity() + shared
    }

    /// True when `more` is behind them now.
    fn append(&mut self, more: &[u8]) -> bool {
        if self.shared.is_some() {
            return false;
        }
        let (len, room) = (self.bytes.len() + more.len(), self.bytes.capacity());
        if len > room {
            let wanted = (room * 2).clamp(len, CHUNK_MAX.max(len));
            self.bytes.reserve_exact(wanted - self.bytes.len());
        }
        self.bytes.extend_from_slice(more);
        true
    }
}

impl Deref for KeptBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.shared.as_deref().unwrap_or(&self.bytes)
    }
}

impl From<Vec<u8>> for KeptBytes {
    fn from(bytes: Vec<u8>) -> KeptBytes {
        KeptBytes { bytes, home: None, shared: None }
    }
}

impl From<SharedBytes> for KeptBytes {
    fn from(shared: SharedBytes) -> KeptBytes {
        KeptBytes { bytes: Vec::new(), home: None, shared: Some(shared) }
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
pub struct ReplayId(pub(super) u64);

/// A write without an answer.
#[derive(Debug)]
struct UnderWay {
    id: ReplayId,
    bytes: KeptBytes,
}

/// Acknowledged writes, each of which began where the one before it ended.
#[derive(Debug)]
struct Chunk {
    /// The last of them is the session's so-manieth acknowledged kept write.
    number: u64,
    offset: u64,
    bytes: KeptBytes,
}

/// The kept writes of an open file. Each step takes the same time, however many there are.
#[derive(Debug, Default)]
pub(super) struct ReplayLog {
    /// In the order in which they were made.
    under_way: VecDeque<UnderWay>,
    /// In the order in which they were acknowledged.
    chunks: VecDeque<Chunk>,
    memory: usize,
    /// Of all files.
    memory_of_all: Arc<AtomicUsize>,
}

/// The answer to a kept write.
#[derive(Debug, Clone, Copy)]
pub(super) struct Acknowledged {
    /// It is the session's so-manieth.
    pub(super) number: u64,
    /// Where it went.
    pub(super) offset: u64,
    /// What was acknowledged up to this one, and later, may be kept together: other opens of the
    /// file wrote nothing since, and no flush was sent.
    pub(super) together_from: u64,
}

impl ReplayLog {
    /// Counts its memory in that of all.
    pub(super) fn count_in(&mut self, memory_of_all: &Arc<AtomicUsize>) {
        self.memory_of_all.fetch_sub(self.memory, Ordering::Relaxed);
        self.memory_of_all = memory_of_all.clone();
        self.memory_of_all.fetch_add(self.memory, Ordering::Relaxed);
    }

    /// Bytes of memory that it takes.
    pub(super) fn memory(&self) -> usize {
        self.memory
    }

    fn takes(&mut self, bytes: usize) {
        self.memory += bytes;
        self.memory_of_all.fetch_add(bytes, Ordering::Relaxed);
    }

    fn gives(&mut self, bytes: usize) {
        self.memory -= bytes;
        self.memory_of_all.fetch_sub(bytes, Ordering::Relaxed);
    }

    pub(super) fn add(&mut self, id: ReplayId, bytes: impl Into<KeptBytes>) {
        let bytes = bytes.into();
        self.takes(bytes.memory());
        self.under_way.push_back(UnderWay { id, bytes });
    }

    /// One that was under way is it no more.
    fn take(&mut self, id: ReplayId) -> Option<UnderWay> {
        let at = self.under_way.binary_search_by_key(&id, |write| write.id).ok()?;
        let write = self.under_way.remove(at)?;
        self.gives(write.bytes.memory());
        Some(write)
    }

    pub(super) fn acknowledge(&mut self, id: ReplayId, answer: Acknowledged) {
        let Some(UnderWay { bytes, .. }) = self.take(id) else { return };
        let Acknowledged { number, offset, together_from } = answer;
        let last = self.chunks.pop_back();
        if let Some(last) = &last {
            self.gives(last.bytes.memory());
        }
        let joined = match last {
            Some(last) if last.number >= together_from => last.join(answer, bytes),
            last => [last, Some(Chunk { number, offset, bytes })],
        };
        for chunk in joined.into_iter().flatten() {
            self.takes(chunk.bytes.memory());
            self.chunks.push_back(chunk);
        }
    }

    /// Bytes of one that is under way.
    pub(super) fn len_under_way(&self, id: ReplayId) -> Option<u64> {
        let at = self.under_way.binary_search_by_key(&id, |write| write.id).ok()?;
        self.under_way.get(at).map(|write| write.bytes.len() as u64)
    }

    /// The first of those without an answer.
    pub(super) fn oldest_under_way(&self) -> Option<ReplayId> {
        self.under_way.front().map(|write| write.id)
    }

    /// The last of those that were acknowledged.
    pub(super) fn newest(&self) -> Option<u64> {
        self.chunks.back().map(|chunk| chunk.number)
    }

    /// Something that was acknowledged after the so-manieth lies in this place.
    pub(super) fn has_after(&self, number: u64, place: &Range<u64>) -> bool {
        let mut later = self.chunks.iter().rev().take_while(|chunk| chunk.number > number);
        later.any(|chunk| chunk.offset < place.end && place.start < chunk.end())
    }

    /// It failed, or is not to be kept.
    pub(super) fn remove(&mut self, id: ReplayId) {
        self.take(id);
    }

    /// A flush or commit succeeded that was sent when `number` kept writes were acknowledged. True
    /// when a write is not kept any more by that.
    pub(super) fn safe(&mut self, number: u64) -> bool {
        let before = self.chunks.len();
        while self.chunks.front().is_some_and(|chunk| chunk.number <= number) {
            let Some(chunk) = self.chunks.pop_front() else { break };
            self.gives(chunk.bytes.memory());
        }
        let after = self.chunks.len();
        if after == 0 {
            self.chunks.shrink_to(CHUNKS_SPARE);
        }
        after < before
    }

    /// Keeps nothing any more.
    pub(super) fn clear(&mut self) {
        self.gives(self.memory);
        self.under_way = VecDeque::new();
        self.chunks = VecDeque::new();
    }

    pub(super) fn is_empty(&self) -> bool {
        self.under_way.is_empty() && self.chunks.is_empty()
    }

    /// Those that were acknowledged: what names them, and where they went.
    pub(super) fn acknowledged(&self) -> impl Iterator<Item = (u64, Range<u64>)> {
        self.chunks.iter().map(|chunk| (chunk.number, chunk.offset..chunk.end()))
    }

    /// What there is for `place`, a part of where it went.
    pub(super) fn bytes(&self, number: u64, place: &Range<u64>) -> Option<&[u8]> {
        let at = self.chunks.binary_search_by_key(&number, |chunk| chunk.number).ok()?;
        let chunk = self.chunks.get(at)?;
        let begin = usize::try_from(place.start.checked_sub(chunk.offset)?).ok()?;
        let len = usize::try_from(place.end.checked_sub(place.start)?).ok()?;
        chunk.bytes.get(begin..begin.checked_add(len)?)
    }
}

impl Drop for ReplayLog {
    fn drop(&mut self) {
        self.gives(self.memory);
    }
}

impl Chunk {
    fn end(&self) -> u64 {
        self.offset.saturating_add(self.bytes.len() as u64)
    }

    /// With a write after it: as one, where that began at its end and costs little to copy.
    fn join(mut self, answer: Acknowledged, bytes: KeptBytes) -> [Option<Chunk>; 2] {
        let Acknowledged { number, offset, .. } = answer;
        let fits = self.bytes.len() + bytes.len() <= CHUNK_MAX;
        if self.end() == offset && fits && bytes.len() < LARGE && self.bytes.append(&bytes) {
            return [Some(Chunk { number, ..self }), None];
        }
        [Some(self), Some(Chunk { number, offset, bytes })]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_is_kept_until_a_later_flush() {
        let mut kept = ReplayLog::default();
        kept.add(ReplayId(1), vec![1]);
        kept.add(ReplayId(2), vec![2]);
        kept.acknowledge(ReplayId(1), answer(1, 0, 0));
        let there = |kept: &ReplayLog| kept.acknowledged().collect::<Vec<_>>();
        assert_eq!(there(&kept), [(1, 0..1)], "the append is under way");
        kept.acknowledge(ReplayId(2), answer(2, 700, 0));
        assert!(kept.safe(1));
        assert_eq!(there(&kept), [(2, 700..701)]);
        assert_eq!(kept.bytes(2, &(700..701)), Some(&[2][..]));
        assert_eq!(kept.bytes(2, &(699..701)), None);
        assert_eq!(kept.bytes(1, &(0..1)), None, "it is not kept any more");
        assert!(!kept.safe(1) && !kept.is_empty());
        assert!(kept.safe(2) && kept.is_empty());
        assert_eq!(kept.memory(), 0);
    }

    fn answer(number: u64, offset: u64, together_from: u64) -> Acknowledged {
        Acknowledged { number, offset, together_from }
    }

    #[test]
    fn small_writes_behind_each_other_are_kept_as_one() {
        const WRITES: u64 = 200_000;
        let mut kept = ReplayLog::default();
        let (mut memory, mut grown) = (0, 0);
        for number in 1..=WRITES {
            kept.add(ReplayId(number), vec![number as u8]);
            assert_eq!(kept.under_way.len(), 1, "all that an answer searches");
            kept.acknowledge(ReplayId(number), answer(number, number - 1, 1));
            grown += usize::from(kept.memory() != memory);
            memory = kept.memory();
        }
        assert_eq!(kept.chunks.len(), 1);
        assert!(memory <= 2 * WRITES as usize, "{memory} bytes");
        assert!(grown <= 20, "{grown} allocations");
        let bytes = kept.bytes(WRITES, &(0..WRITES)).expect("all");
        assert!(bytes.iter().zip(1..).all(|(byte, number)| *byte == number as u8));
    }

    #[test]
    fn what_lies_apart_is_counted_with_what_it_takes_beside_its_bytes() {
        let (mut kept, all) = (ReplayLog::default(), Arc::new(AtomicUsize::new(0)));
        kept.count_in(&all);
        for number in 1..=1000 {
            kept.add(ReplayId(number), vec![1]);
            kept.acknowledge(ReplayId(number), answer(number, 2 * number, 1));
        }
        let list = kept.chunks.capacity() * size_of::<Chunk>();
        assert!(kept.memory() >= list + 1000 * 17, "{} bytes", kept.memory());
        assert_eq!(all.load(Ordering::Relaxed), kept.memory());
        drop(kept);
        assert_eq!(all.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn shared_memory_is_kept_as_it_is_and_counted_as_a_whole() {
        let memory: Arc<dyn AsRef<[u8]> + Send + Sync> = Arc::new(vec![5_u8; 5000]);
        let part = SharedBytes::part_of(&memory, &(*memory).as_ref()[4000..4100]).expect("a part");
        assert!(SharedBytes::part_of(&memory, &[5]).is_none());
        let mut kept = ReplayLog::default();
        kept.add(ReplayId(1), part);
        kept.acknowledge(ReplayId(1), answer(1, 0, 1));
        kept.add(ReplayId(2), vec![6]);
        kept.acknowledge(ReplayId(2), answer(2, 100, 1));
        assert!(kept.memory() >= 5001);
        assert_eq!(kept.bytes(1, &(0..100)), Some(&[5; 100][..]));
        assert_eq!(kept.acknowledged().collect::<Vec<_>>(), [(1, 0..100), (2, 100..101)]);
        assert!(kept.safe(1));
        assert_eq!(Arc::strong_count(&memory), 1);
    }

    #[test]
    fn what_a_flush_may_part_is_kept_apart() {
        let mut kept = ReplayLog::default();
        for (number, together_from) in [(1, 1), (2, 1), (3, 3), (4, 3)] {
            kept.add(ReplayId(number), vec![7]);
            kept.acknowledge(ReplayId(number), answer(number, number, together_from));
        }
        assert_eq!(kept.acknowledged().collect::<Vec<_>>(), [(2, 1..3), (4, 3..5)]);
        assert!(kept.safe(2));
        assert_eq!(kept.acknowledged().collect::<Vec<_>>(), [(4, 3..5)]);
    }

    #[test]
    fn chunks_have_a_limit_and_large_writes_are_not_copied() {
        let mut kept = ReplayLog::default();
        let len = |number| if number % 64 == 0 { LARGE } else { LARGE - 1 };
        let mut at = 0;
        for number in 1..=128 {
            kept.add(ReplayId(number), vec![7; len(number)]);
            kept.acknowledge(ReplayId(number), answer(number, at, 1));
            at += len(number) as u64;
        }
        let chunks: Vec<usize> = kept.chunks.iter().map(|chunk| chunk.bytes.len()).collect();
        assert!(chunks.iter().all(|len| *len <= CHUNK_MAX), "{chunks:?}");
        assert_eq!(chunks.len(), 5, "{chunks:?}");
        assert!(kept.chunks.iter().all(|chunk| chunk.bytes.bytes.capacity() <= CHUNK_MAX));
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
    fn a_failed_write_is_not_kept() {
        let mut kept = ReplayLog::default();
        kept.add(ReplayId(1), vec![1]);
        kept.remove(ReplayId(1));
        assert!(kept.is_empty());
    }
}
