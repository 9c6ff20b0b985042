//! One record per slot of 4 KiB, at a fixed index: what the slot holds.
//!
//! The generation is raised, and the state leaves [`State::Stable`], before anything touches the
//! bytes. So whoever reads bytes and finds the entry stable and unchanged afterwards has read
//! what the entry names.

use std::sync::atomic::{AtomicU64, Ordering};

/// What is going on in a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum State {
    /// In no use.
    Free = 0,
    /// Bytes are on their way in, from the store or from a writer.
    Landing = 1,
    /// Holds the named block.
    Stable = 2,
    /// Replaced or evicted; readers may still hold it.
    Retired = 3,
}

/// The record. `valid` packs the boot epoch (upper half), valid bytes (16 bits), state (8 bits).
#[derive(Debug, Default)]
pub(crate) struct Entry {
    generation: AtomicU64,
    file: AtomicU64,
    block: AtomicU64,
    valid: AtomicU64,
}

impl Entry {
    fn set_state(&self, state: State, valid: u16) {
        let epoch = self.valid.load(Ordering::Relaxed) & !0xffff_ffff;
        let word = epoch | u64::from(valid) << 8 | u64::from(state as u8);
        self.valid.store(word, Ordering::Release);
    }

    /// In a new life of the server, entries of earlier lives mean nothing.
    pub(crate) fn set_epoch(&self, epoch: u32) {
        self.valid.store(u64::from(epoch) << 32, Ordering::Release);
    }

    /// The bytes are about to change, or to mean nothing any more.
    pub(crate) fn invalidate(&self, state: State) {
        self.set_state(state, 0);
        let generation = self.generation.load(Ordering::Relaxed);
        // Only the slot's owner of the moment changes its entry.
        self.generation.store(generation.wrapping_add(1), Ordering::Release);
    }

    /// The bytes are this block of this file.
    pub(crate) fn publish(&self, file: u64, block: u64, valid: u16) {
        self.file.store(file, Ordering::Relaxed);
        self.block.store(block, Ordering::Relaxed);
        self.set_state(State::Stable, valid);
    }

    /// File and block, if stable.
    pub(crate) fn owner(&self) -> Option<(u64, u64)> {
        let stable = self.state() == State::Stable as u8;
        let file = self.file.load(Ordering::Relaxed);
        stable.then(|| (file, self.block.load(Ordering::Relaxed)))
    }

    fn state(&self) -> u8 {
        (self.valid.load(Ordering::Acquire) & 0xff) as u8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_touch_raises_the_generation() {
        let entry = Entry::default();
        entry.set_epoch(7);
        entry.invalidate(State::Landing);
        assert_eq!(entry.owner(), None);
        entry.publish(3, 9, 4096);
        assert_eq!(entry.owner(), Some((3, 9)));
        assert_eq!(entry.generation.load(Ordering::Relaxed), 1);
        entry.invalidate(State::Retired);
        assert_eq!(entry.owner(), None);
        assert_eq!(entry.generation.load(Ordering::Relaxed), 2);
        assert_eq!(entry.valid.load(Ordering::Relaxed) >> 32, 7);
    }
}
