//! Reads that need no server: out of its cache, which this process maps (\[ODAFS\] 4).
//!
//! A server of this host tells by REFS_GET which slots of its cache hold blocks of a file. This side keeps that
//! in a directory, copies a block by itself, and then looks at its entry, and at two words of life,
//! whether that was what was asked for. Where anything is not as it should be the same call asks the
//! server, as if nothing had been tried.
//!
//! The server is asked for references when a part of a file was missed some times: less and less often where
//! it has few.

mod accessed;
mod directory;
mod mapped;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use dafs_fabric::hazard::Guarded;
use dafs_fabric::mem::PAGE_BYTES;
use dafs_protocol::ToldReads;

use crate::core::{OwnReads, Referred};
use directory::Directory;
pub(crate) use mapped::Mapped;
pub use mapped::Step;
use mapped::{BYTES_MAX, Miss, within};

/// Blocks of which the server is asked at a time: 4 MiB of a file.
pub const BLOCKS: u32 = 1024;
const WINDOW_BLOCKS: u64 = BLOCKS as u64;
/// Misses in a window before it is asked for the first time, and from then on: at least, and at most.
const MISSES_FIRST: u32 = 2;
const MISSES_LEAST: u32 = 16;
const MISSES_MOST: u32 = 256;
/// Caches that are mapped: a server has one for each export that shares its, and one for all others.
const CACHES_MAX: usize = 16;
/// Windows of a file that are counted at a time.
const WINDOWS_MAX: usize = 4096;
/// The offset of a read at most.
const OFFSET_MAX: u64 = i64::MAX as u64 - BYTES_MAX as u64;

/// What a session has of its server's caches.
#[derive(Debug, Default)]
pub struct Optimistic {
    /// Of each cache of the server one.
    mapped: Mutex<Vec<Arc<Mapped>>>,
    /// Open files that have some.
    files: Mutex<Vec<Weak<References>>>,
    reads: Arc<OwnReads>,
    closed: AtomicBool,
}

/// How a session's reads went that might have needed no server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OptimisticStats {
    /// Reads without the server's cache being asked by a request: by this process, or by a reference.
    pub hits: u64,
    /// Reads of blocks of which nothing was known.
    pub unknown: u64,
    /// Reads of blocks that were not any more where they had been, or changed meanwhile.
    pub stale: u64,
    /// Reads by a reference that the server refused, as it has not all of that cached, or gives it no more.
    pub refused: u64,
    /// Questions to the server where blocks are, or for a reference.
    pub asked: u64,
}

impl Optimistic {
    /// Of none so far; how reads go is counted there.
    pub fn new(reads: Arc<OwnReads>) -> Optimistic {
        Optimistic { reads, ..Optimistic::default() }
    }

    /// The memory that an answer tells of.
    fn of(&self, referred: &Referred) -> Option<Arc<Mapped>> {
        // What goes from the list goes from all files: nobody looks for it there later.
        self.sweep();
        let mut all = self.mapped.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = all.iter().find(|mapped| mapped.is_of(&referred.info)) {
            return Some(known.clone());
        }
        if all.len() == CACHES_MAX {
            return None;
        }
        let mapped = Mapped::new(&referred.info, referred.memory.as_ref()?)?;
        let mapped = Arc::new(mapped);
        all.push(mapped.clone());
        Some(mapped)
    }

    /// Lets go of memory that proves nothing any more: a dead server's stays in use as long as somebody maps it.
    pub fn sweep(&self) {
        let mut all = self.mapped.lock().unwrap_or_else(PoisonError::into_inner);
        if all.iter().all(|mapped| mapped.lives()) {
            return;
        }
        all.retain(|mapped| mapped.lives());
        drop(all);
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        files.retain(|file| file.upgrade().inspect(|file| file.forget_dead()).is_some());
    }

    /// A file that has some now.
    fn enter(&self, file: &Arc<References>) {
        if file.is_entered.swap(true, Ordering::Relaxed) {
            return;
        }
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        if files.len() == files.capacity() {
            files.retain(|file| file.strong_count() > 0);
        }
        files.push(Arc::downgrade(file));
    }

    /// The session is closed: no read that begins after this call does without the server.
    pub fn end(&self) {
        self.closed.store(true, Ordering::SeqCst);
        self.mapped.lock().unwrap_or_else(PoisonError::into_inner).clear();
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        files.drain(..).filter_map(|file| file.upgrade()).for_each(|file| file.known.set(None));
    }

    /// So far.
    pub fn stats(&self) -> OptimisticStats {
        let ToldReads { hits, unknown, stale } = self.reads.all();
        OptimisticStats { hits, unknown, stale, refused: 0, asked: self.reads.asked() }
    }
}

/// What an open file has.
#[derive(Debug, Default)]
pub struct References {
    /// Where its blocks are, and its number there.
    known: Guarded<Known>,
    /// [`UNASKED`], [`MAY`] or [`ENDED`].
    state: AtomicU8,
    /// The session knows of it.
    is_entered: AtomicBool,
    /// In the order of their numbers: most files have one, of which there may be many.
    windows: Mutex<Vec<(u64, Window)>>,
}

/// Whether there may be references is not known yet.
const UNASKED: u8 = 0;
const MAY: u8 = 1;
/// There are none, or no more: the file is closed, or the server gives none for it, or to this session.
const ENDED: u8 = 2;

#[derive(Debug)]
struct Known {
    mapped: Arc<Mapped>,
    file: u64,
}

/// A part of a file, as it is missed.
#[derive(Debug, Clone, Copy)]
struct Window {
    misses: u32,
    /// So many of them, and the server is asked.
    due: u32,
    /// Of so many blocks it knew where they are.
    told: u32,
    /// Where the last one ended, and how many, up to that, began where the one before had ended.
    end: u64,
    run: u32,
    /// They are of a stream that the server reads ahead of.
    streams: bool,
}

impl Window {
    const NEW: Window =
        Window { misses: 0, due: MISSES_FIRST, told: 0, end: 0, run: 0, streams: false };

    /// One more, of so many bytes.
    fn miss(&mut self, offset: u64, bytes: usize) {
        if offset != self.end {
            (self.run, self.streams) = (0, false);
        }
        self.end = offset.saturating_add(bytes as u64);
        self.run += 1;
        self.misses += 1;
    }

    /// Whether blocks are to be read without the server, which has all of the window or not. It reads ahead of who
    /// reads on and on, as long as it sees that: what is on its way to a stream is asked for.
    fn takes(&mut self, has_all: bool) -> bool {
        let in_order = self.run > 1 && self.run >= self.misses;
        self.streams |= in_order && !has_all;
        !self.streams
    }

    /// The server was asked. It is asked again soon where it knew much, or more than before as what was missed
    /// is cached by now; else later each time.
    fn was_told(&mut self, told: u32) {
        let is_worth = told >= BLOCKS / 2 || told > self.told + self.due / 2;
        self.due = match is_worth {
            true => MISSES_LEAST,
            false => (2 * self.due).clamp(MISSES_LEAST, MISSES_MOST),
        };
        (self.misses, self.told) = (0, told);
    }
}

/// The window of this number, which may be the first.
fn window_of(windows: &mut Vec<(u64, Window)>, number: u64) -> &mut Window {
    let place = windows.binary_search_by_key(&number, |(number, _)| *number);
    let at = place.unwrap_or_else(|at| {
        if windows.is_empty() {
            windows.reserve_exact(1);
        }
        windows.insert(at, (number, Window::NEW));
        at
    });
    &mut windows[at].1
}

impl Known {
    /// Of the block that has this byte the second set of the directory tells, and the first does not.
    fn is_in_second(&self, offset: u64) -> bool {
        let (all, file, block) = (&self.mapped.directory, self.file, offset / PAGE_BYTES as u64);
        // Who finds nothing anywhere pays for the first of these.
        all.is_first_full(file, block)
            && all.find(file, block).is_none()
            && all.find_second(file, block).is_some()
    }
}

/// There is something to be read, all of it in one block.
#[inline(always)]
fn is_in_block(into: &[u8], offset: u64) -> bool {
    // None at all are as many as there can be, and more.
    into.len().wrapping_sub(1) < PAGE_BYTES - within(offset)
}

/// There is something to be read, and not too much for this side.
fn fits(into: &[u8], offset: u64) -> bool {
    (1..=BYTES_MAX).contains(&into.len()) && offset <= OFFSET_MAX
}

impl References {
    /// No read that begins after this call does without the server.
    pub fn end(&self) {
        self.state.store(ENDED, Ordering::SeqCst);
        self.known.set(None);
    }

    /// Reads without the server, unless calls are to end anyway. `None`: it is to be asked.
    #[inline(always)]
    pub(crate) fn read(
        &self,
        session: &Optimistic,
        into: &mut [u8],
        offset: u64,
        is_over: impl FnOnce() -> bool,
    ) -> Option<usize> {
        if !is_in_block(into, offset) {
            return self.read_several(session, into, offset, is_over);
        }
        let read =
            |known: &Known| known.mapped.read_block(Directory::find, (known.file, offset), into);
        self.read_by(session, is_over, read)
    }

    /// For who has [read](Self::read) nothing, before the server is asked: the same of a part of a block of which the
    /// second set of the directory tells, as it does of few. `read` spends nothing on them.
    pub(crate) fn read_second(
        &self,
        session: &Optimistic,
        into: &mut [u8],
        offset: u64,
        is_over: impl FnOnce() -> bool,
    ) -> Option<usize> {
        if !is_in_block(into, offset) || !self.known.with(|known| known.is_in_second(offset))? {
            return None;
        }
        session.reads.shard().found_second.fetch_add(1, Ordering::Relaxed);
        let read = |known: &Known| {
            known.mapped.read_block(Directory::find_second, (known.file, offset), into)
        };
        self.read_by(session, is_over, read)
    }

    #[inline(never)]
    fn read_several(
        &self,
        session: &Optimistic,
        into: &mut [u8],
        offset: u64,
        is_over: impl FnOnce() -> bool,
    ) -> Option<usize> {
        if !fits(into, offset) {
            return None;
        }
        let read = |known: &Known| known.mapped.read(known.file, offset, into);
        self.read_by(session, is_over, read)
    }

    /// Reads without the server, where others work on between the steps of a copy: `then` is called after each.
    pub fn read_among(
        &self,
        session: &Optimistic,
        (into, offset): (&mut [u8], u64),
        then: impl FnMut(Step),
    ) -> Option<usize> {
        if !fits(into, offset) {
            return None;
        }
        let read = |known: &Known| known.mapped.read_and(known.file, offset, into, then);
        self.read_by(session, || false, read)
    }

    #[inline(always)]
    fn read_by(
        &self,
        session: &Optimistic,
        is_over: impl FnOnce() -> bool,
        read: impl FnOnce(&Known) -> Result<usize, Miss>,
    ) -> Option<usize> {
        let look = |known: &Known| {
            if session.closed.load(Ordering::SeqCst) || is_over() {
                return None;
            }
            match read(known) {
                Ok(bytes) => {
                    session.reads.shard().hits.fetch_add(1, Ordering::Relaxed);
                    Some(bytes)
                }
                Err(miss) => {
                    self.count(session, miss);
                    None
                }
            }
        };
        self.known.with(look).flatten()
    }

    #[inline(never)]
    fn count(&self, session: &Optimistic, miss: Miss) {
        let counts = session.reads.shard();
        let missed = if miss == Miss::Unknown { &counts.unknown } else { &counts.stale };
        missed.fetch_add(1, Ordering::Relaxed);
        if miss == Miss::Ended {
            self.known.set(None);
        }
    }

    /// The server was asked for so many bytes, and has answered. From which block on it is to be asked where blocks
    /// are, if it is; then the caller says [what came of it](Self::told). `may`: it tells this session at all.
    #[inline]
    pub(crate) fn missed(
        &self,
        offset: u64,
        bytes: usize,
        may: impl FnOnce() -> bool,
    ) -> Option<u64> {
        let state = self.state.load(Ordering::Relaxed);
        if state == ENDED || bytes == 0 || bytes > BYTES_MAX {
            return None;
        }
        self.note_miss(state, (offset, bytes), may)
    }

    #[inline(never)]
    fn note_miss(
        &self,
        state: u8,
        (offset, bytes): (u64, usize),
        may: impl FnOnce() -> bool,
    ) -> Option<u64> {
        if state == UNASKED {
            let now = if may() { MAY } else { ENDED };
            let ordering = (Ordering::SeqCst, Ordering::Relaxed);
            let _ = self.state.compare_exchange(UNASKED, now, ordering.0, ordering.1);
            if now == ENDED {
                return None;
            }
        }
        let window = offset / PAGE_BYTES as u64 / WINDOW_BLOCKS;
        self.is_due(window, (offset, bytes)).then_some(window * WINDOW_BLOCKS)
    }

    /// One more miss in a window. True: the server is to be asked, and nobody else asks meanwhile.
    fn is_due(&self, number: u64, (offset, bytes): (u64, usize)) -> bool {
        // Whoever finds it locked need not wait: somebody else counts.
        let Ok(mut windows) = self.windows.try_lock() else { return false };
        if windows.len() >= WINDOWS_MAX {
            windows.clear();
        }
        let window = window_of(&mut windows, number);
        window.miss(offset, bytes);
        // Those that come until the answer is there are not counted to be due once more.
        window.misses == window.due
    }

    fn forget_dead(&self) {
        // Of what cannot be looked at just now nothing is known.
        if self.known.with(|known| known.mapped.lives()) != Some(true) {
            self.known.set(None);
        }
    }

    /// As the client does when the server has answered where blocks are; the server is not told what is used of them.
    pub fn hear(self: &Arc<Self>, session: &Optimistic, first: u64, referred: Option<&Referred>) {
        let _ = self.told(session, first, referred);
    }

    /// What the server answered of [`BLOCKS`] blocks from this one on; `None`: nothing. The fewer it has, the later
    /// it is asked again. The memory in question, where the server does not know what this side uses of it.
    pub(crate) fn told(
        self: &Arc<Self>,
        session: &Optimistic,
        first: u64,
        referred: Option<&Referred>,
    ) -> Option<Arc<Mapped>> {
        session.reads.shard().asked.fetch_add(1, Ordering::Relaxed);
        let slots = referred.map_or(&[][..], |referred| &referred.slots);
        let told = slots.iter().flatten().count() as u32;
        let takes = {
            let mut windows = self.windows.lock().unwrap_or_else(PoisonError::into_inner);
            let window = window_of(&mut windows, first / WINDOW_BLOCKS);
            let takes = window.takes(told == BLOCKS);
            window.was_told(told);
            takes
        };
        let referred = referred?;
        let Some(mapped) = session.of(referred) else {
            self.end();
            return None;
        };
        let file = referred.info.file;
        for (block, slot) in (first..).zip(slots).take(WINDOW_BLOCKS as usize) {
            if let Some(slot) = slot.filter(|_| takes) {
                mapped.directory.note(file, block, slot);
            }
        }
        self.learn(session, mapped.clone(), file);
        (!mapped.accessed.is_offered()).then_some(mapped)
    }

    fn learn(self: &Arc<Self>, session: &Optimistic, mapped: Arc<Mapped>, file: u64) {
        let is_it = |known: &Known| known.file == file && Arc::ptr_eq(&known.mapped, &mapped);
        if self.known.with(is_it) == Some(true) {
            return;
        }
        session.enter(self);
        self.known.set(Some(Known { mapped, file }));
        // Who ended it meanwhile, or closed the session, may have been before that.
        let is_ended = self.state.load(Ordering::SeqCst) == ENDED;
        if is_ended || session.closed.load(Ordering::SeqCst) {
            self.known.set(None);
        }
    }
}
