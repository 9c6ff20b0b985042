//! Where blocks were in a server's cache when that was told: guesses, looked up without a lock.
//!
//! A guess is one word, so that nothing of it can be torn: some bits of what was asked for, and a slot. Whether
//! the slot holds that block is for its entry to say. Sets of eight guesses are a line of the processor's cache
//! each. There are places for one and a half times the slots of the cache, so that all of it may be known at a
//! time, and which guess makes room hardly matters: the oldest of its set.

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

/// The set of a block, and the bits by which its guess is known there.
#[derive(Debug, Clone, Copy)]
struct Place {
    set: usize,
    tag: u64,
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
        Place { set: mixed as usize & self.last, tag: mixed >> SLOT_BITS << SLOT_BITS }
    }

    /// The slot that holds the block, as far as is known.
    #[inline(always)]
    pub(super) fn find(&self, file: u64, block: u64) -> Option<usize> {
        let Place { set, tag } = self.place(file, block);
        let guesses = self.words.row::<WAYS>(set)?;
        let guesses = (0..WAYS).map(|way| guesses.load(way, Relaxed));
        let found = { guesses }.find(|guess| guess >> SLOT_BITS << SLOT_BITS == tag)?;
        (found as u32).checked_sub(1).map(|slot| slot as usize)
    }

    /// The block is in this slot now.
    pub(super) fn note(&self, file: u64, block: u64, slot: u32) {
        let Some(number) = slot.checked_add(1) else { return };
        let Place { set, tag } = self.place(file, block);
        let guesses = self.words.load_some::<WAYS>(set * WAYS, Relaxed);
        let known = guesses
            .iter()
            .position(|guess| *guess as u32 != 0 && guess >> SLOT_BITS << SLOT_BITS == tag);
        let empty = || guesses.iter().position(|guess| *guess as u32 == 0);
        // Two threads may lose one of their guesses, or have one twice.
        let at = known.or_else(empty).unwrap_or(WAYS - 1);
        for way in (0..at).rev() {
            self.words.store(set * WAYS + way + 1, guesses[way], Relaxed);
        }
        self.words.store(set * WAYS, tag | u64::from(number), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_noted_is_found_and_the_latest_counts() {
        let directory = Directory::new(100).expect("memory");
        assert_eq!(directory.find(1, 2), None);
        for slot in [7, 0, u32::MAX - 1] {
            directory.note(1, 2, slot);
            assert_eq!(directory.find(1, 2), Some(slot as usize));
        }
        directory.note(1, 2, u32::MAX);
        assert_eq!(directory.find(1, 2), Some(u32::MAX as usize - 1), "no slot has that number");
        assert_eq!((directory.find(1, 3), directory.find(2, 2)), (None, None));
    }

    #[test]
    fn a_whole_cache_is_known_at_a_time() {
        const SLOTS: u32 = 1 << 16;
        let directory = Directory::new(SLOTS as usize).expect("memory");
        let of = |slot: u32| (u64::from(slot % 10), u64::from(slot / 10));
        for slot in 0..SLOTS {
            let (file, block) = of(slot);
            directory.note(file, block, slot);
        }
        let is_known = |slot: &u32| {
            let (file, block) = of(*slot);
            directory.find(file, block) == Some(*slot as usize)
        };
        let known = (0..SLOTS).filter(is_known).count();
        assert!(known > SLOTS as usize / 100 * 97, "{known} of {SLOTS}");
    }

    #[test]
    fn a_set_that_is_full_loses_the_oldest() {
        let directory = Directory::new(1).expect("memory");
        assert_eq!(directory.last, 0);
        (0..9).for_each(|block| directory.note(5, block, block as u32));
        let known: Vec<_> = (0..9).map(|block| directory.find(5, block).is_some()).collect();
        assert_eq!(known, [false, true, true, true, true, true, true, true, true]);
    }
}
