//! The slots of the arena: who uses them, and which are free.
//!
//! The arena is cut into frames of 64 KiB. A frame is free, or one *unit* as a whole, or split
//! into 16 units of one slot. A unit is what is pinned and freed: a sequential read of 1 MiB
//! pins 16 units, a random read of 4 KiB one. A unit lives while a file maps one of its slots or
//! somebody pins it. Units that may be evicted are in the order of a replacement policy.

mod erase;
mod free;
mod order;
mod segments;

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Thread;

use dafs_fabric::mem::PAGE_BYTES;
use dafs_fabric::poison;
use dafs_fabric::{Arena, Domain, Piece, Span};
use dafs_protocol::EntryState;
use smallvec::SmallVec;

use crate::entry::{Entries, Exported, Meaning};
pub(crate) use crate::memory::FRAME_SLOTS;
use crate::memory::Memory;
use crate::planted::{Defect, planted};
use crate::policy::Following;
use crate::policy::shares::{Search, USE_BITS};
use crate::wait::{Space, locked};
use free::Free;
use segments::Segments;

/// Bytes of a slot as a file offset.
pub(crate) const SLOT: u64 = PAGE_BYTES as u64;

/// A slot, and whether its unit is the whole frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Page(u32);

impl Page {
    const WHOLE: u32 = 1 << 31;
    pub(crate) const NONE: Page = Page(u32::MAX);

    pub(crate) fn is_none(self) -> bool {
        self == Page::NONE
    }

    /// The slot's index in the arena.
    pub(crate) fn index(self) -> usize {
        (self.0 & !Page::WHOLE) as usize
    }

    fn is_whole(self) -> bool {
        self.0 & Page::WHOLE != 0
    }

    /// The first slot of its unit: the unit's name.
    pub(crate) fn unit(self) -> Page {
        if self.is_whole() { Page(self.0 & !(FRAME_SLOTS as u32 - 1)) } else { self }
    }

    /// Slots of its unit.
    pub(crate) fn unit_slots(self) -> usize {
        if self.is_whole() { FRAME_SLOTS } else { 1 }
    }

    fn plus(self, slots: usize) -> Page {
        Page(self.0 + slots as u32)
    }
}

/// Slots for consecutive blocks.
pub(crate) type Pages = SmallVec<[Page; 16]>;

/// The units of these pages, each once. Pages of one unit stand together.
pub(crate) fn units(pages: &[Page]) -> impl Iterator<Item = Page> + '_ {
    let mut last = Page::NONE;
    pages.iter().filter(|page| !page.is_none()).filter_map(move |page| {
        let unit = page.unit();
        let new = unit != last;
        last = unit;
        new.then_some(unit)
    })
}

/// A run of arena bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Run {
    pub(crate) start: usize,
    pub(crate) len: usize,
}

/// Runs, adjacent ones joined.
#[derive(Debug, Default)]
pub(crate) struct Runs(SmallVec<[Run; 1]>);

impl Runs {
    /// The one that there is, where there is no other.
    #[inline]
    pub(crate) fn only(&self) -> Option<Run> {
        let [run] = self.0.as_slice() else { return None };
        Some(*run)
    }

    #[inline]
    pub(crate) fn one(start: usize, len: usize) -> Runs {
        Runs(SmallVec::from_buf([Run { start, len }]))
    }

    #[inline]
    pub(crate) fn push(&mut self, start: usize, len: usize) {
        match self.0.last_mut() {
            Some(last) if last.start + last.len == start => last.len += len,
            _ => self.0.push(Run { start, len }),
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Run> {
        self.0.iter()
    }
}

// The word that counts the users of a unit, and its uses since it was taken.
//
// Whoever holds a pin has a lease or a list of pages in memory for it, tens of bytes at least, so
// that no process has 2^32 of one unit at a time.
const PIN: u64 = 1;
const PINS: u64 = (1 << 32) - 1;
const ORPHAN: u64 = 1 << 32;
const MAPPED: u64 = 1 << 33;
/// At most one for each slot of a frame.
const MAPPINGS: u64 = 0x1f << 33;
/// The rest; beyond [`USE_BITS`] they begin anew.
const USE: u64 = 1 << (u64::BITS - USE_BITS);

/// Units looked at for eviction before others get the lock.
const LOOKS_MAX: usize = 64;

/// Units that may go, each with the file and a block that it was stable for.
pub(crate) type Victims = SmallVec<[(Page, u64, u64); 16]>;

const FREE: u8 = 0;
const WHOLE: u8 = 1;
const SPLIT: u8 = 2;
/// Given back to the system: nobody's.
const DECOMMITTED: u8 = 3;

/// What became of a frame that was to be given back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Decommit {
    Done,
    NoneFree,
    /// The system does not take it: it is free as before.
    Refused,
}

/// Slots of an arena of so many bytes.
pub(crate) fn slots_of(arena_bytes: usize) -> usize {
    (arena_bytes / PAGE_BYTES / FRAME_SLOTS).min((Page::WHOLE >> 4) as usize - 1) * FRAME_SLOTS
}

/// See the module.
pub(crate) struct Pool {
    arena: Arc<Arena>,
    entries: Entries<Exported>,
    /// By the first slot of a unit.
    users: Box<[AtomicU64]>,
    /// Changed under `free` only.
    frames: Box<[AtomicU8]>,
    free: Mutex<Free>,
    /// Held while frames go to the system and come back: none is used again while it still goes.
    giving: Mutex<()>,
    /// As `free` counts them, to be read without its lock.
    free_frames: AtomicUsize,
    used_slots: AtomicUsize,
    /// Frames given back to the system.
    decommitted: AtomicUsize,
    /// How often the system did not take one.
    refused: AtomicU64,
    memory: Memory,
    segments: Segments,
    /// Frames of the segment that is to be given back.
    emptied: AtomicUsize,
    /// Free slots are zeros.
    erases: bool,
    /// While [`poison`] is on: which free slots hold its pattern; the others were never used.
    poisoned: Box<[AtomicBool]>,
    /// May go below zero for a moment.
    orphan_slots: AtomicUsize,
    /// Who waits for slots.
    pub(crate) space: Space,
}

impl Pool {
    /// The entries are `shown` to others, if there is memory for that.
    pub(crate) fn new(
        arena: Arc<Arena>,
        domain: Option<Arc<Domain>>,
        (epoch, shown, erases): (u32, Option<&Arc<Arena>>, bool),
    ) -> Pool {
        let slots = slots_of(arena.len());
        let frames = slots / FRAME_SLOTS;
        assert!(frames > 0, "an arena has at least one frame of 64 KiB");
        let entries = Entries::new(Exported::new(slots, shown), epoch);
        let segments = Segments::new(arena.clone(), domain, frames);
        let poisoned = if poison::is_on() { slots } else { 0 };
        Pool {
            erases,
            poisoned: (0..poisoned).map(|_| AtomicBool::new(false)).collect(),
            memory: Memory::new(arena.clone(), frames, segments.step()),
            segments,
            emptied: AtomicUsize::new(0),
            arena,
            entries,
            users: (0..slots).map(|_| AtomicU64::new(0)).collect(),
            frames: (0..frames).map(|_| AtomicU8::new(FREE)).collect(),
            free: Mutex::new(Free::new(frames)),
            giving: Mutex::default(),
            free_frames: AtomicUsize::new(frames),
            used_slots: AtomicUsize::new(0),
            decommitted: AtomicUsize::new(0),
            refused: AtomicU64::new(0),
            orphan_slots: AtomicUsize::new(0),
            space: Space::default(),
        }
    }

    fn free(&self) -> MutexGuard<'_, Free> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn free_frames(&self) -> usize {
        self.free_frames.load(Ordering::Relaxed)
    }

    pub(crate) fn frame_count(&self) -> usize {
        self.frames.len()
    }

    pub(crate) fn slot_count(&self) -> usize {
        self.users.len()
    }

    pub(crate) fn used_slots(&self) -> usize {
        self.used_slots.load(Ordering::Relaxed)
    }

    /// False: so many slots were not free just now, without its lock.
    pub(crate) fn may_have(&self, slots: usize) -> bool {
        self.used_slots() + self.decommitted() * FRAME_SLOTS + slots <= self.slot_count()
    }

    /// Frames given back to the system.
    pub(crate) fn decommitted(&self) -> usize {
        self.decommitted.load(Ordering::Relaxed)
    }

    /// How often the system did not take a frame.
    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Slots of the frames that are not given back, nor about to be.
    pub(crate) fn kept_slots(&self) -> usize {
        let gone = self.decommitted() + self.emptied.load(Ordering::Relaxed);
        self.slot_count() - gone * FRAME_SLOTS
    }

    /// Gives a free frame, the last one, back to the system.
    pub(crate) fn decommit(&self) -> Decommit {
        let _giving = locked(&self.giving);
        let mut free = self.free();
        let Some(frame) = free.take_last_frame() else { return Decommit::NoneFree };
        self.frames[frame].store(DECOMMITTED, Ordering::Relaxed);
        self.free_frames.store(free.count, Ordering::Relaxed);
        self.decommitted.fetch_add(1, Ordering::Relaxed);
        drop(free);
        self.give_back(frame..frame + 1)
    }

    /// False: it was not given back. The caller holds `giving`.
    fn take_back(&self, frame: usize) -> bool {
        let mut free = self.free();
        if self.frames[frame].load(Ordering::Relaxed) != DECOMMITTED {
            return false;
        }
        free.put_frame(frame, &self.frames);
        self.free_frames.store(free.count, Ordering::Relaxed);
        self.decommitted.fetch_sub(1, Ordering::Relaxed);
        true
    }

    /// Takes frames again that were given back, the first ones, at most so many.
    pub(crate) fn recommit(&self, most: usize) {
        let is_decommitted =
            |frame: &usize| self.frames[*frame].load(Ordering::Relaxed) == DECOMMITTED;
        let mut left = most;
        let _giving = locked(&self.giving);
        // Looked for without the other lock, which is needed by who takes slots.
        for frame in (0..self.frames.len()).filter(is_decommitted) {
            if left == 0 {
                break;
            }
            left -= usize::from(self.take_back(frame));
        }
        if left < most {
            self.space.changed();
        }
    }

    pub(crate) fn orphan_slots(&self) -> usize {
        let slots = self.orphan_slots.load(Ordering::Relaxed);
        if slots > self.slot_count() { 0 } else { slots }
    }

    #[inline(always)]
    pub(crate) fn span(&self, start: usize, len: usize) -> Span {
        self.arena.span(start, len)
    }

    /// The same as long as it is borrowed.
    #[inline(always)]
    pub(crate) fn piece(&self, start: usize, len: usize) -> Piece<'_> {
        self.arena.piece(start, len)
    }

    /// A part of a slot.
    pub(crate) fn part(&self, page: Page, from: usize, to: usize) -> Span {
        self.arena.span(page.index() * PAGE_BYTES + from, to - from)
    }

    /// Pinned slots for `count` blocks from `block` on, whole frames where they fit. All or
    /// nothing.
    pub(crate) fn allocate(&self, block: u64, count: usize) -> Option<Pages> {
        let mut pages = Pages::new();
        pages.reserve(count);
        let mut free = self.free();
        while pages.len() < count {
            let aligned = (block + pages.len() as u64).is_multiple_of(FRAME_SLOTS as u64);
            let frame = if aligned && count - pages.len() >= FRAME_SLOTS {
                free.take_frame()
            } else {
                None
            };
            match frame {
                Some(frame) => {
                    self.frames[frame].store(WHOLE, Ordering::Relaxed);
                    let first = Page((frame * FRAME_SLOTS) as u32 | Page::WHOLE);
                    pages.extend((0..FRAME_SLOTS).map(|slot| first.plus(slot)));
                }
                None => match free.take_slot(&self.frames) {
                    Some(slot) => pages.push(Page(slot)),
                    None => break,
                },
            }
        }
        self.used_slots.fetch_add(pages.len(), Ordering::Relaxed);
        for unit in units(&pages) {
            self.users[unit.index()].store(PIN | USE, Ordering::Relaxed);
        }
        self.free_frames.store(free.count, Ordering::Relaxed);
        if pages.len() < count {
            for unit in units(&pages) {
                self.put_back(&mut free, unit);
            }
            return None;
        }
        drop(free);
        for page in &pages {
            self.entries.leave(page.index(), EntryState::Landing);
            self.check_free(*page);
        }
        let frames = || pages.iter().map(|page| page.index() / FRAME_SLOTS);
        self.memory.fault_in(frames());
        self.segments.make_known(frames(), |_| true);
        Some(pages)
    }

    /// This thread calls [`prefault`](Self::prefault) when it is unparked.
    pub(crate) fn set_prefaulter(&self, thread: Thread) {
        self.memory.set_prefaulter(thread);
    }

    /// Gets memory for some frames that will be used next; false: enough have it, or the next ones
    /// were given back.
    pub(crate) fn prefault(&self) -> bool {
        let may = |frames: Range<usize>| frames.into_iter().all(|f| self.state(f) != DECOMMITTED);
        let some = self.memory.prefault(may);
        let has = some.is_some();
        // They are nobody's: the segment may go at any time.
        let is_there = |frame| self.state(frame) != DECOMMITTED;
        self.segments.make_known(some.into_iter().flatten(), is_there);
        has
    }

    fn put_back(&self, free: &mut Free, unit: Page) {
        let uses = self.uses(unit);
        free.shares.remove(unit.index() as u32, unit.unit_slots(), uses);
        self.users[unit.index()].store(0, Ordering::Relaxed);
        self.used_slots.fetch_sub(unit.unit_slots(), Ordering::Relaxed);
        let frame = unit.index() / FRAME_SLOTS;
        if unit.is_whole() {
            free.put_frame(frame, &self.frames);
        } else {
            free.put_slot(unit.index(), &self.frames);
        }
        self.free_frames.store(free.count, Ordering::Relaxed);
    }

    /// Nobody uses the unit any more.
    fn release(&self, unit: Page) {
        for slot in 0..unit.unit_slots() {
            self.entries.leave(unit.index() + slot, EntryState::Free);
            self.leave_free(unit.index() + slot);
        }
        self.put_back(&mut self.free(), unit);
        self.space.changed();
    }

    /// One more user of a mapped unit, and whether that counts as a use of what it holds. The
    /// caller has the lock of the file that maps it.
    #[inline]
    pub(crate) fn pin(&self, unit: Page, is_use: bool) {
        let more = if is_use { PIN + USE } else { PIN };
        let old = self.users[unit.index()].fetch_add(more, Ordering::Relaxed);
        if planted(Defect::ReadersCountedIn22Bits) {
            assert!(old & PINS < (1 << 22) - 1, "too many readers of one page");
        }
    }

    fn uses(&self, unit: Page) -> u32 {
        (self.users[unit.index()].load(Ordering::Relaxed) / USE) as u32
    }

    /// One user less.
    #[inline]
    pub(crate) fn unpin(&self, unit: Page) {
        let old = self.users[unit.index()].fetch_sub(PIN, Ordering::SeqCst);
        if old & PINS != 1 {
            return;
        }
        if old & MAPPINGS != 0 {
            // It can be evicted now.
            self.space.changed();
            return;
        }
        if old & ORPHAN != 0 {
            self.orphan_slots.fetch_sub(unit.unit_slots(), Ordering::Relaxed);
        }
        self.release(unit);
    }

    /// `count` slots of a pinned unit now belong to a file.
    pub(crate) fn map(&self, unit: Page, count: usize) {
        self.users[unit.index()].fetch_add(MAPPED * count as u64, Ordering::Relaxed);
    }

    /// What a mapped slot holds, of a file that is so long. What it held before is retired.
    #[inline]
    pub(crate) fn publish(&self, page: Page, (file, size): (u64, u64), block: u64) {
        let valid = size.saturating_sub(block * SLOT).min(SLOT);
        self.entries.publish(page.index(), Meaning { file, block, valid });
    }

    /// The slot means nothing any more, until it is published anew. False: it meant nothing before.
    pub(crate) fn retire(&self, page: Page) -> bool {
        let has_meant = self.entries.owner(page.index()).is_some();
        if has_meant {
            self.entries.leave(page.index(), EntryState::Retired);
        }
        has_meant
    }

    /// It is mapped, for this block of this file. The caller holds the slot, and the lock of the file.
    pub(crate) fn holds(&self, page: Page, file: u64, block: u64) -> bool {
        self.entries.owner(page.index()) == Some((file, block))
    }

    /// A slot belongs to its file no more; readers keep it while they hold it.
    pub(crate) fn unmap(&self, page: Page) {
        self.unmap_all(page.unit(), &[page]);
    }

    /// Slots of one unit belong to their file no more.
    pub(crate) fn unmap_all(&self, unit: Page, pages: &[Page]) {
        for page in pages {
            self.entries.end(page.index());
        }
        let mapped = MAPPED * pages.len() as u64;
        let orphaned = |users: u64| (users - mapped) & MAPPINGS == 0 && users & PINS != 0;
        let change = |users: u64| {
            let less = users - mapped;
            Some(if orphaned(users) { less | ORPHAN } else { less })
        };
        let users = &self.users[unit.index()];
        let old = users
            .fetch_update(Ordering::SeqCst, Ordering::Relaxed, change)
            .expect("the change always is one");
        if orphaned(old) {
            self.orphan_slots.fetch_add(unit.unit_slots(), Ordering::Relaxed);
        } else if (old - mapped) & (MAPPINGS | PINS) == 0 {
            self.release(unit);
        }
    }

    /// Somebody holds the unit. The caller has the lock of the file that maps it, so that
    /// nobody begins to.
    pub(crate) fn is_pinned(&self, unit: Page) -> bool {
        self.users[unit.index()].load(Ordering::SeqCst) & PINS != 0
    }

    /// Finds what goes next, and with it, if `frames` are wanted, its neighbours; false when all
    /// has been looked at.
    pub(crate) fn next_victims(
        &self,
        search: &mut Search,
        frames: bool,
        found: &mut Victims,
    ) -> bool {
        let free = &mut *self.free();
        for _ in 0..LOOKS_MAX {
            let Some(number) = free.shares.next(search) else { return false };
            let unit = self.unit_at(number as usize);
            if self.was_used(free, search, unit) {
                continue;
            }
            free.shares.pass(number);
            let Some(victim) = self.victim(unit) else { continue };
            found.push(victim);
            if frames && !unit.is_whole() {
                self.add_neighbours(free, unit, found);
            }
            break;
        }
        true
    }

    fn unit_at(&self, index: usize) -> Page {
        let whole = self.frames[index / FRAME_SLOTS].load(Ordering::Relaxed) == WHOLE;
        Page(index as u32 | if whole { Page::WHOLE } else { 0 })
    }

    fn victim(&self, unit: Page) -> Option<(Page, u64, u64)> {
        let users = self.users[unit.index()].load(Ordering::Relaxed);
        if users & MAPPINGS == 0 || users & PINS != 0 {
            return None;
        }
        let slots = unit.index()..unit.index() + unit.unit_slots();
        let (file, block) = slots.into_iter().find_map(|slot| self.entries.owner(slot))?;
        Some((unit, file, block))
    }

    /// Other units of a victim's frame, if none of them was used meanwhile and half of the frame
    /// is free or soon to go: otherwise frames would never become whole again.
    fn add_neighbours(&self, free: &mut Free, unit: Page, found: &mut Victims) {
        let frame = unit.index() / FRAME_SLOTS;
        let mut neighbours = Victims::new();
        let mut late = 0;
        for slot in 0..FRAME_SLOTS {
            let index = frame * FRAME_SLOTS + slot;
            if free.slots[frame] >> slot & 1 != 0 || index == unit.index() {
                continue;
            }
            let neighbour = Page(index as u32);
            let may_go = !free.accessed.any(index..index + 1);
            let Some(victim) = self.victim(neighbour).filter(|_| may_go) else { return };
            let following = free.shares.may_follow(index as u32, self.uses(neighbour));
            if following == Following::No {
                return;
            }
            late += usize::from(following == Following::Late);
            neighbours.push(victim);
        }
        if late <= FRAME_SLOTS / 2 {
            neighbours.iter().for_each(|victim| free.shares.pass(victim.0.index() as u32));
            found.extend(neighbours);
        }
    }
}

#[cfg(test)]
impl Pool {
    /// What the entry of a slot says.
    pub(crate) fn entry(&self, slot: usize) -> (dafs_protocol::EntryWord, Meaning) {
        self.entries.look(slot)
    }
}

#[cfg(test)]
mod tests;
