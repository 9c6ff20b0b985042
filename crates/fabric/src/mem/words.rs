//! Words of memory that two processes have in common: each is loaded once, whole, and then believed or
//! not.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::shared::{SharedFile, checked_bytes};
use super::{Arena, Span};

const WORD_BYTES: usize = size_of::<u64>();

/// The words of an arena, or of what a peer shares to be read.
#[derive(Debug)]
pub struct Words {
    base: NonNull<AtomicU64>,
    len: usize,
    /// Of those, from the first on, may be changed: all of an arena, none of a peer's.
    own: usize,
    keep: Keep,
}

#[derive(Debug)]
enum Keep {
    Arena {
        _arena: Arc<Arena>,
    },
    /// A mapping of its own, which is not writable.
    Mapping,
    /// Memory that is not to be written here.
    Span {
        _span: Span,
    },
}

/// Words of a [row](Words::row).
#[derive(Debug, Clone, Copy)]
pub struct Row<'a, const N: usize>(&'a [AtomicU64; N]);

impl<const N: usize> Row<'_, N> {
    /// One of them.
    ///
    /// # Panics
    /// When there is none of this number.
    #[inline(always)]
    pub fn load(&self, number: usize, order: Ordering) -> u64 {
        self.0[number].load(order)
    }
}

/// One word, to be read, of memory that is kept.
#[derive(Debug)]
pub struct Word(Words);

impl Word {
    /// Of a span. `None`: as of [`Words::of_span`], or it has no word of this number.
    pub fn of_span(span: &Span, number: usize) -> Option<Word> {
        let mut words = Words::of_span(span).filter(|words| number < words.len)?;
        // SAFETY: inside the mapping, as just checked.
        words.base = unsafe { words.base.add(number) };
        words.len = 1;
        Some(Word(words))
    }

    /// As it is now.
    #[inline(always)]
    pub fn load(&self, order: Ordering) -> u64 {
        // SAFETY: there is one word, mapped as long as `self` is, aligned, and of a type that others may change.
        unsafe { self.0.base.as_ref() }.load(order)
    }
}

// SAFETY: an address range whose words are loaded and stored atomically.
unsafe impl Send for Words {}
// SAFETY: as above.
unsafe impl Sync for Words {}

impl Words {
    /// All words of `arena`, to be read and written.
    pub fn new(arena: &Arc<Arena>) -> Words {
        let base = arena.span(0, 0).start.cast();
        assert!(base.is_aligned(), "words of memory that begins between two of them");
        let len = arena.len() / WORD_BYTES;
        Words { base, len, own: len, keep: Keep::Arena { _arena: arena.clone() } }
    }

    /// All words of what a peer shares, of at most so many bytes, to be read. The descriptor is not
    /// needed any more.
    ///
    /// # Errors
    /// As of [`Arena::of_peer`].
    pub fn of_peer(fd: BorrowedFd<'_>, bytes_max: usize) -> std::io::Result<Words> {
        let bytes = checked_bytes(fd, bytes_max)?;
        let (prot, raw) = (libc::PROT_READ, fd.as_raw_fd());
        // SAFETY: a fresh mapping at an address that the kernel chooses.
        let base =
            unsafe { libc::mmap(std::ptr::null_mut(), bytes, prot, libc::MAP_SHARED, raw, 0) };
        if base == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error());
        }
        // SAFETY: the range is mapped; its contents stay.
        unsafe { libc::madvise(base, bytes, libc::MADV_DONTFORK) };
        let base = NonNull::new(base.cast()).ok_or(std::io::ErrorKind::AddrNotAvailable)?;
        Ok(Words { base, len: bytes / WORD_BYTES, own: 0, keep: Keep::Mapping })
    }

    /// The words of a part of an arena, or of what a peer lets be read, to be read. `None`: it does not begin at
    /// one, or is memory of another kind.
    pub fn of_span(span: &Span) -> Option<Words> {
        let base: NonNull<AtomicU64> = span.start.cast();
        let is_kept = matches!(span.keep, super::Keep::Arena(_) | super::Keep::Readable { .. });
        let keep = Keep::Span { _span: span.clone() };
        (is_kept && base.is_aligned()).then_some(Words {
            base,
            len: span.len / WORD_BYTES,
            own: 0,
            keep,
        })
    }

    /// The words of a part of an arena that both ends may change. `None`: as of [`of_span`](Self::of_span), or this one
    /// may not.
    pub fn in_common(span: &Span) -> Option<Words> {
        let mut words = Words::of_span(span).filter(|_| span.is_writable())?;
        words.own = words.len;
        Some(words)
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never true; here because `len` is.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// One of them.
    ///
    /// # Panics
    /// When there is none of this number.
    #[inline]
    pub fn load(&self, number: usize, order: Ordering) -> u64 {
        assert!(number < self.len, "a word outside of its memory");
        // SAFETY: inside the mapping, as just checked.
        let word = unsafe { self.base.add(number) };
        // SAFETY: mapped as long as `self` is, aligned, and of a type that others may change.
        unsafe { word.as_ref() }.load(order)
    }

    /// Some of them, each loaded for itself.
    ///
    /// # Panics
    /// When there are not so many.
    #[inline]
    pub fn load_some<const N: usize>(&self, number: usize, order: Ordering) -> [u64; N] {
        assert!(number <= self.len && N <= self.len - number, "words outside of their memory");
        // SAFETY: inside the mapping, as just checked.
        let first = unsafe { self.base.add(number) };
        // SAFETY: as many are mapped as long as `self` is, aligned, and of a type that others may change.
        let words: &[_; N] = unsafe { first.cast::<[AtomicU64; N]>().as_ref() };
        std::array::from_fn(|index| words[index].load(order))
    }

    /// The words of a row, to be loaded one by one, where they lie in rows of so many, one behind the other. `None`:
    /// there is no such row, or not all of it.
    #[inline(always)]
    pub fn row<const N: usize>(&self, row: usize) -> Option<Row<'_, N>> {
        if row >= self.len / N {
            return None;
        }
        // SAFETY: inside the mapping, as just checked.
        let first = unsafe { self.base.add(row * N) };
        // SAFETY: as many are mapped as long as `self` is, aligned, and of a type that others may change.
        Some(Row(unsafe { first.cast::<[AtomicU64; N]>().as_ref() }))
    }

    /// Changes one of them.
    ///
    /// # Panics
    /// When there is none of this number, or they are a peer's, to be read.
    #[inline]
    pub fn store(&self, number: usize, value: u64, order: Ordering) {
        self.own(number).store(value, order);
    }

    /// Adds one to a word, round and round, by which others [wait](Self::wait).
    ///
    /// # Panics
    /// As of [`store`](Self::store).
    pub fn count(&self, number: usize) {
        self.own(number).fetch_add(1, Ordering::SeqCst);
    }

    fn own(&self, number: usize) -> &AtomicU64 {
        assert!(number < self.own, "a word outside of its memory, or a peer's, which is read only");
        // SAFETY: inside the mapping, as just checked.
        let word = unsafe { self.base.add(number) };
        // SAFETY: mapped as long as `self` is, aligned, and of a type that others may change.
        unsafe { word.as_ref() }
    }

    /// Whether one of these bits of a word is set.
    ///
    /// # Panics
    /// As of [`load`](Self::load).
    #[inline]
    pub fn has_bits(&self, number: usize, bits: u64) -> bool {
        self.load(number, Ordering::Relaxed) & bits != 0
    }

    /// Sets bits of a word, in no order with anything else. Nothing is stored where they are set.
    ///
    /// # Panics
    /// As of [`store`](Self::store).
    #[inline]
    pub fn set_bits(&self, number: usize, bits: u64) {
        let word = self.own(number);
        if word.load(Ordering::Relaxed) & bits != bits {
            word.fetch_or(bits, Ordering::Relaxed);
        }
    }

    /// Clears bits of a word, in no order with anything else. Whether one of them was set.
    ///
    /// # Panics
    /// As of [`store`](Self::store).
    #[inline]
    pub fn take_bits(&self, number: usize, bits: u64) -> bool {
        let word = self.own(number);
        word.load(Ordering::Relaxed) & bits != 0
            && word.fetch_and(!bits, Ordering::Relaxed) & bits != 0
    }

    /// Sleeps until somebody, of any process, [wakes](Self::wake) those who wait by this word, but not where it
    /// is not `seen` any more, and no longer than this. May end early.
    ///
    /// # Panics
    /// When there is none of this number.
    pub fn wait(&self, number: usize, seen: u64, timeout: Option<Duration>) {
        let word = self.half(number);
        let time = timeout.map(|time| libc::timespec {
            tv_sec: time.as_secs().try_into().unwrap_or(libc::time_t::MAX),
            tv_nsec: time.subsec_nanos().into(),
        });
        let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        let seen = seen as u32;
        // SAFETY: an address, of which the system reads four bytes if they are mapped, and a time that outlives the call.
        unsafe { libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAIT, seen, time) };
    }

    /// Wakes who waits by a word. What a peer has done with the memory behind it is nothing to fear: where the
    /// system finds none, it says so, and nobody is woken.
    ///
    /// # Panics
    /// When there is none of this number.
    pub fn wake(&self, number: usize) {
        let word = self.half(number);
        // SAFETY: an address, at which the system looks for sleepers.
        unsafe { libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAKE, 1) };
    }

    /// The lower half of a word: what a futex has.
    pub(super) fn half(&self, number: usize) -> *mut u32 {
        assert!(number < self.len, "a word outside of its memory");
        let word = self.base.as_ptr().wrapping_add(number).cast::<u32>();
        word.wrapping_add(usize::from(cfg!(target_endian = "big")))
    }
}

impl Drop for Words {
    fn drop(&mut self) {
        if matches!(self.keep, Keep::Mapping) {
            let start = self.base.as_ptr().cast();
            // SAFETY: the mapping made in `of_peer`, of which nobody else knows.
            unsafe { libc::munmap(start, self.len * WORD_BYTES) };
        }
    }
}

impl SharedFile {
    /// A descriptor by which another user can map it to be read, and no more.
    ///
    /// # Errors
    /// The system's: there is no /proc, for example.
    pub fn read_only(&self) -> std::io::Result<OwnedFd> {
        let path = format!("/proc/self/fd/{}", self.as_fd().as_raw_fd());
        Ok(std::fs::File::open(path)?.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::PAGE_BYTES;

    #[test]
    fn a_peer_reads_what_the_owner_stores() {
        let arena = Arena::shared(PAGE_BYTES).expect("memory");
        let words = Words::new(&arena);
        let file = arena.span(0, 1).shared().expect("shared").file;
        let fd = file.read_only().expect("/proc");
        let theirs = Words::of_peer(fd.as_fd(), PAGE_BYTES).expect("mapped");
        assert!(Arena::of_peer(fd.as_fd(), PAGE_BYTES).is_err(), "not to be written");
        assert!(Words::of_peer(fd.as_fd(), 100).is_err(), "longer than agreed");
        assert_eq!((words.len(), theirs.len()), (512, 512));
        words.store(511, 7, Ordering::Release);
        assert_eq!(theirs.load(511, Ordering::Acquire), 7);
        drop((words, arena, file));
        assert_eq!(theirs.load(511, Ordering::Acquire), 7);
    }

    #[test]
    fn who_waits_by_a_word_is_woken_by_who_maps_the_same_memory() {
        let own = Arena::shared(PAGE_BYTES).expect("memory");
        let file = own.span(0, 1).shared().expect("shared").file;
        let peer = Arena::of_peer(file.as_fd(), PAGE_BYTES).expect("mapped");
        let (own, peer) = (Words::new(&own), Words::new(&peer));
        let sleeper = std::thread::spawn(move || {
            for round in 0..1000 {
                // One that has been woken before it sleeps does not.
                while own.load(3, Ordering::Acquire) == round {
                    own.wait(3, round, None);
                }
                own.store(4, round + 1, Ordering::Release);
            }
        });
        for round in 0..1000 {
            peer.count(3);
            peer.wake(3);
            while peer.load(4, Ordering::Acquire) == round {
                std::thread::yield_now();
            }
        }
        sleeper.join().expect("the sleeper");
    }

    #[test]
    fn bits_are_set_by_one_end_and_taken_by_the_other() {
        let own = Arena::shared(2 * PAGE_BYTES).expect("memory");
        let file = own.span(0, 1).shared().expect("shared").file;
        let peer = Arena::of_peer(file.as_fd(), 2 * PAGE_BYTES).expect("mapped");
        let own = Words::new(&own);
        let theirs = Words::in_common(&peer.span(PAGE_BYTES, PAGE_BYTES)).expect("words");
        assert!(Words::in_common(&peer.span(4, 8)).is_none(), "between two words");
        own.set_bits(512 + 7, 0b101);
        own.set_bits(512 + 7, 0b001);
        assert!(theirs.has_bits(7, 0b110) && !theirs.has_bits(7, 0b010) && !theirs.has_bits(6, 7));
        assert!(theirs.take_bits(7, 0b011) && !theirs.take_bits(7, 0b011));
        assert_eq!(own.load(512 + 7, Ordering::Relaxed), 0b100);
    }

    #[test]
    fn a_word_and_a_row_are_those_of_their_memory() {
        let arena = Arena::new(PAGE_BYTES).expect("memory");
        let words = Words::new(&arena);
        (0..512).for_each(|number| words.store(number, 1000 + number as u64, Ordering::Relaxed));
        let row = words.row::<4>(127).expect("the last row");
        assert_eq!((row.load(0, Ordering::Relaxed), row.load(3, Ordering::Relaxed)), (1508, 1511));
        for number in [128, 512, usize::MAX / 4, usize::MAX] {
            assert!(words.row::<4>(number).is_none(), "{number}");
        }
        assert!(words.row::<5>(101).is_some() && words.row::<5>(102).is_none(), "not all of it");
        let span = arena.span(4032, 64);
        drop(words);
        let word = Word::of_span(&span, 7).expect("the last word");
        assert!(Word::of_span(&span, 8).is_none() && Word::of_span(&span, usize::MAX).is_none());
        assert!(Word::of_span(&arena.span(4, 16), 0).is_none(), "between two words");
        drop((span, arena));
        assert_eq!(word.load(Ordering::Acquire), 1511);
    }

    #[test]
    fn a_word_that_has_changed_and_a_time_end_a_wait() {
        let words = Words::new(&Arena::shared(PAGE_BYTES).expect("memory"));
        words.wait(0, 1, None);
        words.wait(0, 0, Some(Duration::from_millis(1)));
    }

    #[test]
    #[should_panic(expected = "outside of its memory")]
    fn there_is_no_word_behind_the_last() {
        Words::new(&Arena::new(PAGE_BYTES).expect("memory")).load(512, Ordering::Relaxed);
    }
}
