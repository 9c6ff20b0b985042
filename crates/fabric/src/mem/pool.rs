//! Memory for many buffers, of few shared files: each of those is a descriptor that a peer is sent, a
//! mapping and a registration.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::fork::Shown;
use super::{Arena, Buffer, HUGE_PAGE_BYTES, PAGE_BYTES, Span};

/// Of the first arena of a pool; the next ones are as large as all before, up to a limit. More than that
/// at once is an arena of its own. What is never touched is no memory, but a peer that maps it has a limit.
const ARENA_BYTES: usize = 8 << 20;
const ARENA_BYTES_MAX: usize = 64 << 20;
/// A piece of so many bytes is given back to the system when it comes back.
const GIVEN_BACK_BYTES_MIN: usize = 8 << 20;
/// A buffer of so many bytes, and fewer than are given back, is in huge pages where it has half of one: who has
/// it copies much, and so do its peers. The other half may be memory that nobody asked for. Not buffers to fill, until
/// it is known that they [will be filled](Buffer::will_be_filled): a mount has some for each thread, of which small requests touch a page.
const HUGE_BYTES_MIN: usize = HUGE_PAGE_BYTES / 2;
/// So many of a pool: who has many large buffers may use little of each.
const HUGE_PAGES_MAX: usize = 16;
const BITS: usize = u64::BITS as usize;

/// [Shared](Arena::shared) memory in pieces. Pieces that come back are used again, for whoever asks next;
/// arenas of which nothing is used any more are given up, all but the first.
#[derive(Debug)]
pub struct SharedPool {
    slabs: Mutex<Vec<Arc<Slab>>>,
    bytes_max: usize,
}

/// An arena, and which of its pages are in use.
#[derive(Debug)]
struct Slab {
    /// Before the arena: that is to outlive it.
    _shown: Shown,
    arena: Arc<Arena>,
    used: Mutex<Pages>,
}

#[derive(Debug)]
struct Pages {
    /// A bit for each page.
    bits: Vec<u64>,
    pages: usize,
    free: usize,
    /// Pages below this were used before: they are not zero.
    touched: usize,
    /// For each huge page, whether the system was asked for it.
    huge: Vec<bool>,
}

/// Memory of a pool, which is used again when this is dropped: not before peers and devices have left it.
#[derive(Debug)]
pub struct PoolPiece {
    slab: Arc<Slab>,
    first: usize,
    pages: usize,
    len: usize,
    is_zero: bool,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing panics while it is held.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl SharedPool {
    /// Of at most so many bytes; none are there yet.
    pub fn new(bytes_max: usize) -> SharedPool {
        SharedPool { slabs: Mutex::default(), bytes_max }
    }

    /// So many bytes, from the beginning of a page on, whatever is in them. `None`: the pool has no more,
    /// or the system.
    pub fn take(&self, bytes: usize) -> Option<PoolPiece> {
        self.take_with(bytes, 0)
    }

    /// As [`take`](Self::take), where it is large in huge pages, of which a pool has few: for who fills it, and has it
    /// read by others.
    pub fn take_large(&self, bytes: usize) -> Option<PoolPiece> {
        self.take_with(bytes, HUGE_PAGES_MAX)
    }

    /// As [`take`](Self::take), in huge pages while the pool has fewer than this.
    fn take_with(&self, bytes: usize, huge_max: usize) -> Option<PoolPiece> {
        let pages = bytes.max(1).div_ceil(PAGE_BYTES);
        let mut slabs = locked(&self.slabs);
        let huge: usize = slabs.iter().map(|slab| locked(&slab.used).huge_pages()).sum();
        let huge_left = huge_max.saturating_sub(huge);
        let take = |slab: &Arc<Slab>| Slab::take(slab, pages, bytes, huge_left);
        if let Some(piece) = slabs.iter().find_map(take) {
            return Some(piece);
        }
        let mut first = true;
        slabs.retain(|slab| {
            let stays = !slab.is_retired() && std::mem::take(&mut first);
            stays || Arc::strong_count(slab) > 1
        });
        let has: usize = slabs.iter().map(|slab| slab.arena.len()).sum();
        let room = self.bytes_max.saturating_sub(has);
        let usual = has.clamp(ARENA_BYTES, ARENA_BYTES_MAX).min(room);
        let bytes_more = pages.checked_mul(PAGE_BYTES)?.max(usual);
        if bytes_more > room {
            return None;
        }
        let slab = Arc::new(Slab::new(Arena::shared(bytes_more).ok()?));
        let piece = take(&slab);
        slabs.push(slab);
        piece
    }

    /// These bytes, where they are in a piece of the pool.
    pub fn span_of(&self, bytes: &[u8]) -> Option<Span> {
        let slabs = locked(&self.slabs);
        slabs.iter().find_map(|slab| {
            let arena = &slab.arena;
            let offset = bytes.as_ptr().addr().checked_sub(arena.base.addr().get())?;
            let is_inside = offset <= arena.len() && bytes.len() <= arena.len() - offset;
            is_inside.then(|| arena.span(offset, bytes.len()))
        })
    }

    /// A zeroed buffer of so many bytes. `None`: as of [`take`](Self::take).
    pub fn buffer(&self, bytes: usize) -> Option<Buffer> {
        let piece = self.take_large(bytes)?;
        if !piece.is_zero {
            piece.span().zero();
        }
        Some(Buffer::of_pool(piece))
    }

    /// A buffer of so many bytes, whatever is in them, in no huge pages: for who may use few of them. `None`: as of
    /// [`take`](Self::take).
    pub fn buffer_to_fill(&self, bytes: usize) -> Option<Buffer> {
        self.take(bytes).map(Buffer::of_pool)
    }
}

impl Slab {
    /// Somebody may write to it who is not known any more.
    fn is_retired(&self) -> bool {
        self.arena.file.as_ref().is_some_and(|file| file.is_retired())
    }

    fn new(arena: Arc<Arena>) -> Slab {
        let pages = arena.len() / PAGE_BYTES;
        let mut bits = vec![0; pages.div_ceil(BITS)];
        // There is nothing behind the end.
        for page in pages..bits.len() * BITS {
            set(&mut bits, page, true);
        }
        let _shown = Shown::new(&arena);
        // A part of one is none.
        let huge = vec![false; arena.len() / HUGE_PAGE_BYTES];
        let used = Pages { bits, pages, free: pages, touched: 0, huge };
        Slab { _shown, arena, used: Mutex::new(used) }
    }

    fn take(slab: &Arc<Slab>, pages: usize, len: usize, huge_left: usize) -> Option<PoolPiece> {
        let mut used = locked(&slab.used);
        let first = if slab.is_retired() { None } else { used.find(pages) }?;
        let is_zero = first >= used.touched;
        used.touched = used.touched.max(first + pages);
        used.mark(first, pages, true);
        let huge = used.take_huge(first * PAGE_BYTES, pages * PAGE_BYTES, huge_left);
        drop(used);
        slab.populate(huge);
        Some(PoolPiece { slab: slab.clone(), first, pages, len, is_zero })
    }

    fn populate(&self, huge: Vec<usize>) {
        for page in huge {
            self.arena.populate_huge(page * HUGE_PAGE_BYTES, HUGE_PAGE_BYTES);
        }
    }
}

impl Pages {
    /// The first of so many free pages in a row.
    fn find(&self, pages: usize) -> Option<usize> {
        if pages > self.free {
            return None;
        }
        let mut first = 0;
        while first + pages <= self.pages {
            match self.last_used(first, first + pages) {
                None => return Some(first),
                Some(page) => first = page + 1,
            }
        }
        None
    }

    /// The last page in use of a range that is not empty.
    fn last_used(&self, first: usize, end: usize) -> Option<usize> {
        let mut end = end;
        while end > first {
            let word = (end - 1) / BITS;
            let upto = end - word * BITS;
            let bits = self.bits.get(word)? & (u64::MAX >> (BITS - upto));
            if bits != 0 {
                let page = word * BITS + bits.ilog2() as usize;
                return (page >= first).then_some(page);
            }
            end = word * BITS;
        }
        None
    }

    fn huge_pages(&self) -> usize {
        self.huge.iter().filter(|is_huge| **is_huge).count()
    }

    /// The huge pages of which a piece has half or more, each once, and at most so many.
    fn take_huge(&mut self, start: usize, bytes: usize, most: usize) -> Vec<usize> {
        if !(HUGE_BYTES_MIN..GIVEN_BACK_BYTES_MIN).contains(&bytes) {
            return Vec::new();
        }
        let within = |page: usize| {
            let (from, to) = (page * HUGE_PAGE_BYTES, (page + 1) * HUGE_PAGE_BYTES);
            to.min(start + bytes).saturating_sub(from.max(start))
        };
        let end = (start + bytes).div_ceil(HUGE_PAGE_BYTES).min(self.huge.len());
        let some = (start / HUGE_PAGE_BYTES..end).filter(|page| within(*page) >= HUGE_BYTES_MIN);
        let some: Vec<_> = some.filter(|page| !self.huge[*page]).take(most).collect();
        some.iter().for_each(|page| self.huge[*page] = true);
        some
    }

    fn mark(&mut self, first: usize, pages: usize, is_used: bool) {
        (first..first + pages).for_each(|page| set(&mut self.bits, page, is_used));
        match is_used {
            true => self.free -= pages,
            false => self.free += pages,
        }
    }
}

fn set(bits: &mut [u64], page: usize, is_used: bool) {
    let Some(word) = bits.get_mut(page / BITS) else { return };
    let bit = 1 << (page % BITS);
    *word = if is_used { *word | bit } else { *word & !bit };
}

impl PoolPiece {
    /// Its memory.
    pub fn span(&self) -> Span {
        self.slab.arena.span(self.offset(), self.len)
    }

    /// See [`Buffer::will_be_filled`]. Each huge page is asked for once.
    pub(super) fn will_be_filled(&self) {
        let mut used = locked(&self.slab.used);
        let huge = used.take_huge(self.offset(), self.pages * PAGE_BYTES, usize::MAX);
        drop(used);
        self.slab.populate(huge);
    }

    /// What it is cut from.
    pub(super) fn arena(&self) -> &Arc<Arena> {
        &self.slab.arena
    }

    pub(super) fn offset(&self) -> usize {
        self.first * PAGE_BYTES
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }
}

impl Drop for PoolPiece {
    fn drop(&mut self) {
        let bytes = self.pages * PAGE_BYTES;
        if bytes >= GIVEN_BACK_BYTES_MIN {
            // Where a device holds it, it stays.
            let _ = self.slab.arena.discard(self.offset(), bytes);
        }
        locked(&self.slab.used).mark(self.first, self.pages, false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::Rng;

    #[test]
    fn pieces_never_overlap_and_come_back() {
        let pool = SharedPool::new(72 << 20);
        let mut rng = Rng::new(7);
        let mut pieces: Vec<PoolPiece> = Vec::new();
        let mut refused = 0;
        for _ in 0..3000 {
            if rng.below(5) < 2 && !pieces.is_empty() {
                let at = rng.below(pieces.len() as u64) as usize;
                pieces.swap_remove(at);
            } else if let Some(piece) = pool.take(rng.below(2 << 20) as usize) {
                let (start, end) = (piece.span().addr(), piece.span().addr() + piece.len as u64);
                let overlaps = |other: &PoolPiece| {
                    let (from, len) = (other.span().addr(), other.span().len() as u64);
                    from < end && start < from + len
                };
                assert!(!pieces.iter().any(overlaps));
                assert_eq!(start % PAGE_BYTES as u64, 0);
                pieces.push(piece);
            } else {
                refused += 1;
            }
        }
        assert!(refused > 0, "it was never full");
        drop(pieces);
        let slabs = locked(&pool.slabs);
        assert!(slabs.iter().all(|slab| {
            let used = locked(&slab.used);
            used.free == used.pages && used.find(used.pages) == Some(0)
        }));
    }

    #[test]
    fn many_buffers_are_one_registration() {
        let pool = SharedPool::new(1 << 30);
        let buffers: Vec<_> = (0..50).map(|_| pool.buffer(5000).expect("room").post()).collect();
        let owner = |at: usize| buffers[at].span().owner().expect("an arena").addr();
        assert_eq!(owner(0), owner(49));
        assert!(buffers.iter().all(|buffer| buffer.span().is_shared()));
        // More than an arena has is one of its own; more than there is, none.
        let large = pool.buffer(100 << 20).expect("room").post();
        assert_ne!(large.span().owner().expect("an arena").addr(), owner(0));
        assert!(pool.buffer(1 << 30).is_none());
        drop(large);
        assert!(pool.buffer(900 << 20).is_some(), "what is not used is given up");
    }

    #[test]
    fn a_buffer_is_zero_also_when_its_memory_was_used() {
        let pool = SharedPool::new(1 << 20);
        let mut buffer = pool.buffer(PAGE_BYTES).expect("room");
        assert!(buffer.iter().all(|byte| *byte == 0));
        buffer.fill(7);
        let posted = buffer.post();
        let span = posted.span().part(0, 10);
        let posted = posted.take_back().expect_err("a span is left");
        drop(posted);
        // Somebody still has it.
        let other = pool.buffer(PAGE_BYTES).expect("room").post();
        assert_ne!(other.span().addr(), span.addr());
        let address = span.addr();
        drop(span);
        let again = pool.buffer(PAGE_BYTES).expect("room");
        assert_eq!(again.as_ptr() as u64, address);
        assert!(again.iter().all(|byte| *byte == 0));
    }

    #[test]
    fn nothing_more_is_cut_from_a_file_that_is_retired() {
        let pool = SharedPool::new(16 << 20);
        let (kept, returned) = (pool.take(100).expect("room"), pool.take(100).expect("room"));
        let first = kept.arena().clone();
        drop(returned);
        first.file.as_ref().expect("shared").retire();
        let next = pool.take(100).expect("room");
        assert!(!Arc::ptr_eq(next.arena(), &first));
        assert!(pool.take(16 << 20).is_none(), "what is still used counts");
        drop((kept, next));
        // It is given up, also as the first.
        let all = [pool.take(8 << 20).expect("room"), pool.take(8 << 20).expect("room")];
        assert!(all.iter().all(|piece| !Arc::ptr_eq(piece.arena(), &first)));
        assert_eq!(Arc::strong_count(&first), 1);
    }

    #[test]
    fn large_pieces_are_in_huge_pages_which_are_asked_for_once() {
        let new = || Slab::new(Arena::shared(8 << 20).expect("memory"));
        let slab = new();
        let take = |start, bytes| locked(&slab.used).take_huge(start, bytes, 2);
        assert_eq!(take(0, HUGE_BYTES_MIN - PAGE_BYTES), []);
        assert_eq!(take(0, 1 << 20), [0]);
        assert_eq!(take(1 << 20, 1 << 20), [], "it was asked for");
        assert_eq!(take((2 << 20) - PAGE_BYTES, (1 << 20) + PAGE_BYTES), [1]);
        assert_eq!(take(3 << 20, 5 << 20), [2, 3]);
        let slab = new();
        let all = locked(&slab.used).take_huge(0, 8 << 20, 9);
        assert_eq!(all, [], "it may never be touched");
        let all = locked(&slab.used).take_huge(0, 7 << 20, 1);
        assert_eq!((all, locked(&slab.used).huge_pages()), (vec![0], 1));
        // A piece that will be filled, whatever others have.
        let slab = Arc::new(new());
        let piece = Slab::take(&slab, 256, 1 << 20, 0).expect("room");
        assert_eq!(locked(&slab.used).huge_pages(), 0);
        piece.span().copy_from(5, b"stays");
        piece.will_be_filled();
        piece.will_be_filled();
        assert_eq!(locked(&slab.used).huge_pages(), 1);
        let mut there = [0; 5];
        piece.span().copy_to(5, &mut there);
        assert_eq!(&there, b"stays");
        // The memory is there, and zero.
        let pool = SharedPool::new(8 << 20);
        let (first, second) = (pool.buffer(1 << 20), pool.buffer(1 << 20));
        assert!(first.iter().chain(&second).all(|buffer| buffer.iter().all(|byte| *byte == 0)));
    }

    #[test]
    fn memory_of_the_pool_is_known_by_its_address() {
        let pool = SharedPool::new(1 << 20);
        assert!(pool.span_of(b"elsewhere").is_none());
        let mut buffer = pool.buffer(3 * PAGE_BYTES).expect("room");
        let span = pool.span_of(&buffer[100..5000]).expect("of the pool");
        assert!(span.is_shared() && span.len() == 4900);
        assert_eq!(span.addr(), buffer[100..].as_ptr() as u64);
        drop(span);
        let other = SharedPool::new(1 << 20);
        let theirs = other.buffer(1).expect("room");
        assert!(pool.span_of(&theirs).is_none());
        // What keeps its place keeps it from others, also where the buffer is lost.
        buffer.fill(3);
        let (anchor, start) = (buffer.anchor(), buffer.as_ptr());
        drop(buffer);
        assert_ne!(pool.buffer(PAGE_BYTES).expect("room").as_ptr(), start);
        drop(anchor);
        let again = pool.buffer_to_fill(PAGE_BYTES).expect("room");
        assert_eq!((again.as_ptr(), again[0]), (start, 3));
    }

    #[test]
    fn large_pieces_are_given_back_to_the_system() {
        let pool = SharedPool::new(64 << 20);
        let mut buffer = pool.buffer(GIVEN_BACK_BYTES_MIN).expect("room");
        buffer.fill(3);
        let start = buffer.as_ptr();
        drop(buffer);
        let again = pool.buffer_to_fill(GIVEN_BACK_BYTES_MIN).expect("room");
        assert_eq!(again.as_ptr(), start);
        assert!(again.iter().all(|byte| *byte == 0));
    }

    #[test]
    fn only_what_is_free_is_found() {
        let mut pages =
            Pages { bits: vec![0; 3], pages: 192, free: 192, touched: 0, huge: Vec::new() };
        pages.mark(10, 1, true);
        pages.mark(63, 2, true);
        pages.mark(191, 1, true);
        assert_eq!(pages.find(10), Some(0));
        assert_eq!(pages.find(11), Some(11));
        assert_eq!(pages.find(53), Some(65));
        assert_eq!(pages.find(126), Some(65));
        assert_eq!(pages.find(127), None);
        assert_eq!(pages.find(1000), None);
    }
}
