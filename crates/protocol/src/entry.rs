//! What a server says of each slot of its cache in memory that others of its host may map: which block the
//! slot holds. Who maps it reads blocks by himself, and is sure of them.
//!
//! An entry is four words at an address that follows from the slot: the *word* (epoch, generation, state), and
//! the file, the block and the valid bytes. The server changes it like this, and only it:
//!
//! * A block's meaning ends by one store of the word, which is [`Stable`](EntryState::Stable) no more. A release
//!   fence comes before anything else is stored in the slot or in the entry.
//! * A block is published by one release store of the word, with a generation that this entry never had.
//!
//! They lie in memory of their own, behind words that say who [lives](LIFE_SERVER): of the server, as otherwise a
//! dead one would be believed for ever, and of [each session](LIFE_SESSIONS). Who reads looks at those last.
//!
//! So who copies the slot, and the rest of its entry, and [finds](is_still) the word that he was told behind an acquire
//! fence, has what the word stood for. A word is told of once: its generation is never reset within an epoch, and
//! each life of a server has an epoch of its own.

use std::ops::Range;
use std::sync::atomic::Ordering;

const STATE_BITS: u32 = 3;
const GENERATION_BITS: u32 = 37;
const EPOCH_BITS: u32 = u64::BITS - STATE_BITS - GENERATION_BITS;

/// The last one of an entry: what comes then is [withheld](EntryState::Withheld).
pub const GENERATION_MAX: u64 = (1 << GENERATION_BITS) - 1;
/// Epochs are numbers from one to this.
pub const EPOCH_MAX: u32 = (1 << EPOCH_BITS) - 1;

/// Words of an entry, each of 64 bits.
pub const ENTRY_WORDS: usize = 4;
/// The word of the server's own life, in the memory in which the entries are.
pub const LIFE_SERVER: usize = 0;
/// Those of sessions, there too.
pub const LIFE_SESSIONS: Range<usize> = 512..8192;
/// Where the entry of the first slot begins. The others follow.
pub const ENTRIES_FIRST_WORD: usize = LIFE_SESSIONS.end;

/// Where the entry of a slot begins.
#[inline]
pub const fn entry_of(slot: usize) -> usize {
    ENTRIES_FIRST_WORD + slot * ENTRY_WORDS
}

/// Where the word is in its entry.
pub const ENTRY_WORD: usize = 0;
/// Where the file's number is.
pub const ENTRY_FILE: usize = 1;
/// Where the block's number is, as blocks of 4 KiB are counted.
pub const ENTRY_BLOCK: usize = 2;
/// Where it stands how many bytes from the first on are the file's: all but in its last block. Zeros follow.
pub const ENTRY_VALID: usize = 3;

/// What is going on in a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum EntryState {
    /// In no use. Memory that was never written says so too.
    Free = 0,
    /// Bytes are on their way in, from the store or from a writer.
    Landing = 1,
    /// Holds the named block. Its bytes are not changed.
    Stable = 2,
    /// Replaced or evicted; readers may still hold it.
    Retired = 3,
    /// Holds the named block for the server alone: nobody else is to believe it.
    Withheld = 4,
}

/// Epoch, generation and state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryWord(pub u64);

impl EntryWord {
    /// Of what does not fit into its bits the rest is left out.
    pub fn new(epoch: u32, generation: u64, state: EntryState) -> EntryWord {
        let epoch = u64::from(epoch & EPOCH_MAX) << (STATE_BITS + GENERATION_BITS);
        EntryWord(epoch | (generation & GENERATION_MAX) << STATE_BITS | u64::from(state as u8))
    }

    /// Which life of the server; 0: the entry was never written.
    pub fn epoch(self) -> u32 {
        (self.0 >> (STATE_BITS + GENERATION_BITS)) as u32
    }

    /// How often something was published there.
    pub fn generation(self) -> u64 {
        self.0 >> STATE_BITS & GENERATION_MAX
    }

    /// Of the same epoch and in the same state.
    #[inline(always)]
    pub fn is_like(self, other: EntryWord) -> bool {
        const GENERATION: u64 = GENERATION_MAX << STATE_BITS;
        (self.0 ^ other.0) & !GENERATION == 0
    }

    /// It is in this state.
    pub fn is(self, state: EntryState) -> bool {
        self.0 & ((1 << STATE_BITS) - 1) == u64::from(state as u8)
    }
}

/// Words of memory that are loaded and stored whole.
pub trait EntryMemory {
    /// One of them.
    fn load(&self, number: usize, order: Ordering) -> u64;
    /// Changes one of them.
    fn store(&self, number: usize, value: u64, order: Ordering);
    /// Orders what this thread loads and stores, in this memory and in that of the slots.
    fn fence(&self, order: Ordering);
}

/// What was copied before this call, of the slot and of the rest of its entry, is what `word` stands for: of a
/// block that is [`Stable`](EntryState::Stable). `entry` is the number of the entry's first word. Never for words of
/// other states.
#[inline]
pub fn is_still(memory: &impl EntryMemory, entry: usize, word: EntryWord) -> bool {
    is_unchanged(memory, entry, word) && word.is(EntryState::Stable)
}

/// As [`is_still`], of a word that is known to be of a block that is [`Stable`](EntryState::Stable).
#[inline(always)]
pub fn is_unchanged(memory: &impl EntryMemory, entry: usize, word: EntryWord) -> bool {
    memory.fence(Ordering::Acquire);
    memory.load(entry + ENTRY_WORD, Ordering::Relaxed) == word.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_has_all_three_apart() {
        for (epoch, generation) in [(1, 0), (EPOCH_MAX, GENERATION_MAX), (7, 1 << 36)] {
            let word = EntryWord::new(epoch, generation, EntryState::Stable);
            assert_eq!((word.epoch(), word.generation()), (epoch, generation));
            assert!(word.is(EntryState::Stable) && !word.is(EntryState::Retired));
            assert!(word.is_like(EntryWord::new(epoch, generation / 2, EntryState::Stable)));
            assert!(!word.is_like(EntryWord::new(epoch, generation, EntryState::Withheld)));
            assert!(!word.is_like(EntryWord::new(epoch - 1, generation, EntryState::Stable)));
        }
        assert!(EntryWord(0).is(EntryState::Free) && EntryWord(0).epoch() == 0);
    }
}
