//! One record per slot of 4 KiB, at an address that follows from the slot: what the slot holds. The rules
//! by which others may read it are those of [`dafs_protocol::EntryWord`].
//!
//! Only the slot's owner of the moment changes its entry: who has taken the slot, or who has the lock of the
//! file that maps it.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use dafs_fabric::mem::PAGE_BYTES;
use dafs_fabric::{Arena, Words};
use dafs_protocol::{
    ENTRIES_FIRST_WORD, ENTRY_BLOCK, ENTRY_FILE, ENTRY_VALID, ENTRY_WORD, ENTRY_WORDS, EPOCH_MAX,
    EntryMemory, EntryState, EntryWord, GENERATION_MAX, entry_of,
};

use crate::planted::{Defect, planted};

/// What a block is, and how much of it is the file's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Meaning {
    pub(crate) file: u64,
    pub(crate) block: u64,
    pub(crate) valid: u64,
}

/// Bytes of memory for the entries of so many slots, and for what is before them.
pub(crate) fn bytes_of(slots: usize) -> usize {
    entry_of(slots) * size_of::<u64>()
}

/// The words of entries, in memory of this process.
pub(crate) struct Exported(Words);

impl Exported {
    /// Of so many slots: in memory that others may map, or else in some of its own.
    pub(crate) fn new(slots: usize, shown: Option<&Arc<Arena>>) -> Exported {
        let bytes = bytes_of(slots);
        let own = || Arena::new(bytes).expect("memory for entries");
        let arena = shown.cloned().unwrap_or_else(own);
        assert!(arena.len() >= bytes, "entries in {} bytes, of {bytes}", arena.len());
        Exported(Words::new(&arena))
    }
}

impl EntryMemory for Exported {
    #[inline]
    fn load(&self, number: usize, order: Ordering) -> u64 {
        self.0.load(ENTRIES_FIRST_WORD + number, order)
    }

    #[inline]
    fn store(&self, number: usize, value: u64, order: Ordering) {
        self.0.store(ENTRIES_FIRST_WORD + number, value, order);
    }

    #[inline]
    fn fence(&self, order: Ordering) {
        fence(order);
    }
}

/// The entries of all slots. Memory that is all zeros has entries of free slots.
pub(crate) struct Entries<M> {
    memory: M,
    epoch: u32,
}

impl<M: EntryMemory> Entries<M> {
    /// Of a life of the server: a number from 1 to [`EPOCH_MAX`].
    pub(crate) fn new(memory: M, epoch: u32) -> Entries<M> {
        assert!((1..=EPOCH_MAX).contains(&epoch), "an epoch of {epoch}");
        Entries { memory, epoch }
    }

    #[inline]
    fn word(&self, slot: usize) -> EntryWord {
        EntryWord(self.memory.load(slot * ENTRY_WORDS + ENTRY_WORD, Ordering::Relaxed))
    }

    #[inline]
    fn store(&self, slot: usize, part: usize, value: u64, order: Ordering) {
        self.memory.store(slot * ENTRY_WORDS + part, value, order);
    }

    /// The slot means nothing from now on, or what it meant for this process alone: its bytes, and the rest
    /// of the entry, may be changed.
    #[inline]
    pub(crate) fn leave(&self, slot: usize, state: EntryState) {
        debug_assert!(state != EntryState::Stable, "what is stable is published");
        if planted(Defect::RetiredWhenUsedAgain) && state == EntryState::Free {
            return;
        }
        #[cfg(test)]
        log::note(slot, state);
        let word = EntryWord::new(self.epoch, self.word(slot).generation(), state);
        self.store(slot, ENTRY_WORD, word.0, Ordering::Relaxed);
        self.memory.fence(Ordering::Release);
    }

    /// The slot, which meant something, belongs to its file no more.
    #[inline]
    pub(crate) fn end(&self, slot: usize) {
        if !planted(Defect::RetiredWhenUsedAgain) && !planted(Defect::RetiredBehindReaders) {
            self.leave(slot, EntryState::Retired);
        }
    }

    /// The bytes are this, and stay so until the slot [leaves](Self::leave) it. Of a block behind the end of
    /// its file nobody else is told, nor by an entry of which all generations are used up.
    #[inline]
    pub(crate) fn publish(&self, slot: usize, what: Meaning) {
        let before = self.word(slot);
        debug_assert!(!before.is(EntryState::Stable), "a page is not changed while it is stable");
        self.store(slot, ENTRY_FILE, what.file, Ordering::Relaxed);
        self.store(slot, ENTRY_BLOCK, what.block, Ordering::Relaxed);
        let valid = if planted(Defect::ValidTooLong) { PAGE_BYTES as u64 } else { what.valid };
        self.store(slot, ENTRY_VALID, valid, Ordering::Relaxed);
        #[cfg(test)]
        log::note(slot, EntryState::Stable);
        let last = before.generation();
        let word = match last == GENERATION_MAX || what.valid == 0 {
            true => EntryWord::new(self.epoch, last, EntryState::Withheld),
            false => EntryWord::new(self.epoch, last + 1, EntryState::Stable),
        };
        self.store(slot, ENTRY_WORD, word.0, Ordering::Release);
    }

    /// File and block, if the slot holds one. For who may change the entry, and for a guess.
    #[inline]
    pub(crate) fn owner(&self, slot: usize) -> Option<(u64, u64)> {
        let load = |part, order| self.memory.load(slot * ENTRY_WORDS + part, order);
        let word = EntryWord(load(ENTRY_WORD, Ordering::Acquire));
        let holds = word.is(EntryState::Stable) || word.is(EntryState::Withheld);
        let (file, block) =
            (load(ENTRY_FILE, Ordering::Relaxed), load(ENTRY_BLOCK, Ordering::Relaxed));
        holds.then_some((file, block))
    }
}

#[cfg(test)]
impl<M: EntryMemory> Entries<M> {
    /// The word, and what it stands for.
    pub(crate) fn look(&self, slot: usize) -> (EntryWord, Meaning) {
        let load = |part| self.memory.load(slot * ENTRY_WORDS + part, Ordering::Relaxed);
        let (file, block, valid) = (load(ENTRY_FILE), load(ENTRY_BLOCK), load(ENTRY_VALID));
        (self.word(slot), Meaning { file, block, valid })
    }

    /// As after so many publications.
    pub(crate) fn age(&self, slot: usize, generation: u64) {
        let word = EntryWord::new(self.epoch, generation, EntryState::Free);
        self.store(slot, ENTRY_WORD, word.0, Ordering::Relaxed);
    }
}

/// What becomes of entries in this thread, in order.
#[cfg(test)]
pub(crate) mod log {
    use std::cell::RefCell;

    use dafs_protocol::EntryState;

    thread_local! {
        static LOG: RefCell<Option<Vec<(usize, EntryState)>>> = const { RefCell::new(None) };
    }

    pub(super) fn note(slot: usize, state: EntryState) {
        LOG.with_borrow_mut(|log| log.iter_mut().for_each(|log| log.push((slot, state))));
    }

    pub(crate) fn of(work: impl FnOnce()) -> Vec<(usize, EntryState)> {
        LOG.set(Some(Vec::new()));
        work();
        LOG.take().expect("as set")
    }
}

#[cfg(test)]
mod tests {
    use dafs_protocol::is_still;

    use super::*;

    fn entries() -> Entries<Exported> {
        Entries::new(Exported::new(6, None), 7)
    }

    const WHAT: Meaning = Meaning { file: 3, block: 9, valid: 4096 };

    #[test]
    fn each_publication_has_a_word_of_its_own() {
        let entries = entries();
        let mut words = Vec::new();
        for _ in 0..3 {
            entries.leave(5, EntryState::Landing);
            assert_eq!(entries.owner(5), None);
            entries.publish(5, WHAT);
            assert_eq!(entries.owner(5), Some((3, 9)));
            let (word, what) = entries.look(5);
            assert_eq!((word.epoch(), what), (7, WHAT));
            assert!(is_still(&entries.memory, 5 * ENTRY_WORDS, word));
            entries.leave(5, EntryState::Retired);
            assert!(!is_still(&entries.memory, 5 * ENTRY_WORDS, word));
            words.push(word.generation());
        }
        assert_eq!(words, [1, 2, 3]);
        assert_eq!(entries.look(4).0, EntryWord(0), "nobody else's");
    }

    #[test]
    fn an_entry_that_is_used_up_is_believed_by_nobody() {
        let entries = entries();
        entries.age(5, GENERATION_MAX - 1);
        entries.publish(5, WHAT);
        let (last, _) = entries.look(5);
        assert!(is_still(&entries.memory, 5 * ENTRY_WORDS, last));
        for _ in 0..2 {
            entries.leave(5, EntryState::Retired);
            entries.publish(5, WHAT);
            let (word, _) = entries.look(5);
            assert_eq!((entries.owner(5), word.is(EntryState::Stable)), (Some((3, 9)), false));
            assert!(!is_still(&entries.memory, 5 * ENTRY_WORDS, word) && word != last);
        }
    }
}
