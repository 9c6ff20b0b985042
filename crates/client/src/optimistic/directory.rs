//! Where blocks were in a server's cache when that was told: guesses, looked up without a lock.
//!
//! A guess is one word, so that nothing of it can be torn: some bits of what was asked for, and a slot. Whether
//! the slot holds that block is for its entry to say. Sets of eight guesses are a line of the processor's cache
//! each. A guess is in one of two sets, in the second one where the first was full. There are places for one and a
//! half times the slots of the cache, so that all of it is known at a time, and which guess makes room hardly
//! matters: the oldest of its first set.

use std::sync::atomic::Ordering::Relaxed;

use dafs_fabric::{Arena, ArenaError, Words};

/// Guesses of a set.
const WAYS: usize = 8;
/// Where the slot, plus one, ends in a guess.
const SLOT_BITS: u32 = 32;

/// See the module.
#[derive(Debug)]
pub(super) struct Directory {
    /// Memory comes as it is touched.
    words: Words,
    /// One less than there are, which is a power of two.
    last: usize,
}

/// The first set of a block, and the bits by which its guess is known there.
#[derive(Debug, Clone, Copy)]
struct Place {
    set: usize,
    tag: u64,
}

fn tag_of(guess: u64) -> u64 {
    guess >> SLOT_BITS << SLOT_BITS
}

fn is_none(guess: u64) -> bool {
    guess as u32 == 0
}

impl Directory {
    /// For a cache of so many slots.
    pub(super) fn new(slots: usize) -> Result<Directory, ArenaError> {
        let sets = (slots + slots / 2).div_ceil(WAYS).max(1).next_power_of_two();
        let arena = Arena::new(sets * WAYS * size_of::<u64>())?;
        Ok(Directory { words: Words::new(&arena), last: sets - 1 })
    }

    #[inline(always)]
    fn place(&self, file: u64, block: u64) -> Place {
        // Neighbours go to sets that are far from each other, of one file and of several.
        let mixed =
            (file.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ block).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 32).wrapping_mul(0x94d0_49bb_1331_11eb);
        Place { set: mixed as usize & self.last, tag: tag_of(mixed) }
    }

    /// The slot that holds the block, as far as its first set tells.
    #[inline(always)]
    pub(super) fn find(&self, file: u64, block: u64) -> Option<usize> {
        let Place { set, tag } = self.place(file, block);
        self.find_in(set, tag)
    }

    /// Only then may the second set of the block tell of it: sets that are full stay so.
    pub(super) fn is_first_full(&self, file: u64, block: u64) -> bool {
        let guesses = self.words.row::<WAYS>(self.place(file, block).set);
        // The newest is the first.
        guesses.is_some_and(|guesses| !is_none(guesses.load(WAYS - 1, Relaxed)))
    }

    /// As far as its second one does.
    pub(super) fn find_second(&self, file: u64, block: u64) -> Option<usize> {
        let Place { set, tag } = self.place(file, block);
        self.find_in(self.other(set, tag), tag)
    }

    #[inline(always)]
    fn find_in(&self, set: usize, tag: u64) -> Option<usize> {
        let guesses = self.words.row::<WAYS>(set)?;
        let guesses = (0..WAYS).map(|way| guesses.load(way, Relaxed));
        let found = { guesses }.find(|guess| tag_of(*guess) == tag)?;
        (found as u32).checked_sub(1).map(|slot| slot as usize)
    }

    /// Where else a guess may be that may be in this set.
    fn other(&self, set: usize, tag: u64) -> usize {
        set ^ (tag.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> SLOT_BITS) as usize & self.last
    }

    /// The block is in this slot now.
    pub(super) fn note(&self, file: u64, block: u64, slot: u32) {
        let Some(number) = slot.checked_add(1) else { return };
        let Place { set, tag } = self.place(file, block);
        let sets = [set, self.other(set, tag)];
        let first = |is: &dyn Fn(u64) -> bool| {
            sets.into_iter().find_map(|set| Some((set, self.position(set, is)?)))
        };
        // Two threads may lose one of their guesses, or have one twice.
        let known = first(&|guess| !is_none(guess) && tag_of(guess) == tag);
        let place = known.or_else(|| first(&is_none));
        let (set, way) = place.unwrap_or_else(|| (set, self.make_room(set)));
        self.put(set, way, tag | u64::from(number));
    }

    fn position(&self, set: usize, is: impl Fn(u64) -> bool) -> Option<usize> {
        let guesses = self.words.load_some::<WAYS>(set * WAYS, Relaxed);
        guesses.into_iter().position(is)
    }

    /// As the newest of its set, in place of this one.
    fn put(&self, set: usize, way: usize, guess: u64) {
        let guesses = self.words.load_some::<WAYS>(set * WAYS, Relaxed);
        for newer in (0..way).rev() {
            self.words.store(set * WAYS + newer + 1, guesses[newer], Relaxed);
        }
        self.words.store(set * WAYS, guess, Relaxed);
    }

    /// Of a set that is full, the oldest guess goes to its other set that has room there; if none has, the oldest
    /// is lost.
    #[cold]
    fn make_room(&self, set: usize) -> usize {
        let guesses = self.words.load_some::<WAYS>(set * WAYS, Relaxed);
        let goes = |way: &usize| {
            let other = self.other(set, tag_of(guesses[*way]));
            let room = self.position(other, is_none);
            room.map(|way_there| self.put(other, way_there, guesses[*way])).is_some()
        };
        (0..WAYS).rev().find(goes).unwrap_or(WAYS - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(directory: &Directory, file: u64, block: u64) -> Option<usize> {
        directory.find(file, block).or_else(|| directory.find_second(file, block))
    }

    #[test]
    fn what_was_noted_is_found_and_the_latest_counts() {
        let directory = Directory::new(100).expect("memory");
        assert_eq!(find(&directory, 1, 2), None);
        for slot in [7, 0, u32::MAX - 1] {
            directory.note(1, 2, slot);
            assert_eq!(find(&directory, 1, 2), Some(slot as usize));
        }
        directory.note(1, 2, u32::MAX);
        assert_eq!(find(&directory, 1, 2), Some(u32::MAX as usize - 1), "no slot has that number");
        assert_eq!((find(&directory, 1, 3), find(&directory, 2, 2)), (None, None));
    }

    #[test]
    fn a_whole_cache_is_known_at_a_time() {
        // As full as a directory may ever be.
        const SLOTS: u32 = (1 << 17) / 3 * 2;
        let directory = Directory::new(SLOTS as usize).expect("memory");
        let of = |slot: u32| (u64::from(slot % 10), u64::from(slot / 10));
        for slot in 0..SLOTS {
            let (file, block) = of(slot);
            directory.note(file, block, slot);
        }
        let is_known = |slot: &u32| {
            let (file, block) = of(*slot);
            find(&directory, file, block) == Some(*slot as usize)
        };
        let known = (0..SLOTS).filter(is_known).count();
        assert_eq!(directory.last + 1, (1 << 17) / WAYS);
        assert_eq!(known, SLOTS as usize);
    }

    #[test]
    fn sets_that_are_full_lose_the_oldest() {
        let directory = Directory::new(1).expect("memory");
        assert_eq!(directory.last, 0);
        (0..9).for_each(|block| directory.note(5, block, block as u32));
        let known: Vec<_> = (0..9).map(|block| find(&directory, 5, block).is_some()).collect();
        assert_eq!(known, [false, true, true, true, true, true, true, true, true]);
    }
}
