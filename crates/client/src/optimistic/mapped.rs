//! A server's cache, mapped, and how a block is read there.

use std::sync::atomic::Ordering::{self, Acquire, Relaxed};

use dafs_fabric::mem::PAGE_BYTES;
use dafs_fabric::{Span, Words};
use dafs_protocol::{
    ENTRIES_FIRST_WORD, ENTRY_FILE, ENTRY_WORD, ENTRY_WORDS, EntryMemory, EntryState, EntryWord,
    LifeWord, ReferenceInfo, entry_of, is_still,
};

use super::accessed::Accessed;
use super::directory::Directory;
use crate::planted::{Defect, planted};

/// Blocks of one read: more are not worth to be looked at one by one, and go by the server.
const BLOCKS_MAX: usize = 17;
/// Bytes of one read.
pub(super) const BYTES_MAX: usize = (BLOCKS_MAX - 1) * PAGE_BYTES;

/// The memory of a server, which changes it at any time: what is copied out of it is believed when its entry
/// and both words of life say so, behind the copy.
#[derive(Debug)]
pub(crate) struct Mapped {
    /// Without the file: what is the same of all files in this memory, in this session.
    info: ReferenceInfo,
    cache: Span,
    words: EntryWords,
    slots: usize,
    pub(super) directory: Directory,
    pub(crate) accessed: Accessed,
}

#[derive(Debug)]
struct EntryWords(Words);

impl EntryMemory for EntryWords {
    #[inline]
    fn load(&self, number: usize, order: Ordering) -> u64 {
        self.0.load(number, order)
    }

    fn store(&self, _: usize, _: u64, _: Ordering) {
        unreachable!("a client stores nothing in a server's memory");
    }

    #[inline]
    fn fence(&self, order: Ordering) {
        std::sync::atomic::fence(order);
    }
}

/// How far a read is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// The bytes of so many blocks are copied, and the last of them is not believed yet.
    Copied(usize),
    /// So many blocks are believed for themselves.
    Checked(usize),
}

/// Why there is nothing to believe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Miss {
    /// Nothing is known of a block.
    Unknown,
    /// Another block is where it was, or it changed meanwhile.
    Stale,
    /// The server, or the session, is no more what it was.
    Ended,
}

/// The entry of a block that was copied, and the word that was believed.
type Copied = (usize, EntryWord);

/// What an answer says, but for the parts that are of its file alone.
fn common(info: &ReferenceInfo) -> ReferenceInfo {
    ReferenceInfo { bytes: 0, file: 0, ..*info }
}

impl Mapped {
    /// `None`: it is not what the server says, or there is no memory.
    pub(super) fn new(info: &ReferenceInfo, (cache, entries): &(Span, Span)) -> Option<Mapped> {
        let words = Words::of_span(entries)?;
        let of_entries = words.len().checked_sub(ENTRIES_FIRST_WORD)? / ENTRY_WORDS;
        let slots = of_entries.min(cache.len() / PAGE_BYTES);
        let is_of_life = |word: LifeWord| (word.number as usize) < ENTRIES_FIRST_WORD;
        if !is_of_life(info.server) || !is_of_life(info.session) {
            return None;
        }
        let (directory, accessed) = (Directory::new(slots).ok()?, Accessed::new(slots).ok()?);
        let (info, cache, words) = (common(info), cache.clone(), EntryWords(words));
        Some(Mapped { info, cache, words, slots, directory, accessed })
    }

    /// It is what this answer is about.
    pub(super) fn is_of(&self, info: &ReferenceInfo) -> bool {
        self.info == common(info)
    }

    /// What was copied before this call may be believed, as far as its entries say so.
    #[inline]
    pub(super) fn lives(&self) -> bool {
        let stands = |word: LifeWord| self.words.load(word.number as usize, Acquire) == word.value;
        (stands(self.info.server) || planted(Defect::ServerLifeNotLookedAt))
            && (stands(self.info.session) || planted(Defect::SessionLifeNotLookedAt))
    }

    /// Reads bytes of a file: as many as there are. Of several blocks all were there at one moment, as when the
    /// server reads them.
    #[inline]
    pub(super) fn read(&self, file: u64, offset: u64, into: &mut [u8]) -> Result<usize, Miss> {
        let within = offset as usize % PAGE_BYTES;
        if into.len() > PAGE_BYTES - within {
            return self.read_several(file, offset, into);
        }
        let block = (file, offset / PAGE_BYTES as u64);
        let (bytes, _) = self.copy_block(block, within, into, || ())?;
        if self.lives() { Ok(bytes) } else { Err(Miss::Ended) }
    }

    #[inline(never)]
    fn read_several(&self, file: u64, offset: u64, into: &mut [u8]) -> Result<usize, Miss> {
        self.read_and(file, offset, into, |_| ())
    }

    /// `then` is called after each step.
    #[inline(always)]
    pub(super) fn read_and(
        &self,
        file: u64,
        offset: u64,
        into: &mut [u8],
        mut then: impl FnMut(Step),
    ) -> Result<usize, Miss> {
        let mut copied = [(0, EntryWord(0)); BLOCKS_MAX];
        let (mut blocks, mut bytes) = (0, 0);
        while bytes < into.len() && blocks < BLOCKS_MAX {
            let at = offset + bytes as u64;
            let within = at as usize % PAGE_BYTES;
            let asked = (PAGE_BYTES - within).min(into.len() - bytes);
            let to = &mut into[bytes..bytes + asked];
            let block = (file, at / PAGE_BYTES as u64);
            let (got, entry) =
                self.copy_block(block, within, to, || then(Step::Copied(blocks + 1)))?;
            copied[blocks] = entry;
            (blocks, bytes) = (blocks + 1, bytes + got);
            then(Step::Checked(blocks));
            if got < asked {
                break;
            }
        }
        // Writers retire all that they replace before they publish anything: what stands at one moment
        // belongs together.
        let stands = |(entry, word): &Copied| is_still(&self.words, *entry, *word);
        if blocks > 1 && !copied[..blocks].iter().all(stands) {
            return Err(Miss::Stale);
        }
        if self.lives() { Ok(bytes) } else { Err(Miss::Ended) }
    }

    /// Copies bytes of one block, from byte `within` of it on: how many the file has there.
    #[inline(always)]
    fn copy_block(
        &self,
        (file, block): (u64, u64),
        within: usize,
        into: &mut [u8],
        then: impl FnOnce(),
    ) -> Result<(usize, Copied), Miss> {
        let slot = self.directory.find(file, block).ok_or(Miss::Unknown)?;
        if slot >= self.slots {
            return Err(Miss::Stale);
        }
        let entry = entry_of(slot);
        let word = EntryWord(self.words.load(entry + ENTRY_WORD, Acquire));
        let what: [u64; 3] = self.words.0.load_some(entry + ENTRY_FILE, Relaxed);
        let [of_file, of_block, valid] = what;
        let is_it = word.is(EntryState::Stable) && word.epoch() == self.info.epoch;
        if !is_it || (of_file, of_block) != (file, block) {
            return Err(Miss::Stale);
        }
        let there = (valid as usize).min(PAGE_BYTES).saturating_sub(within).min(into.len());
        self.cache.copy_to(slot * PAGE_BYTES + within, &mut into[..there]);
        then();
        // With it stands what was loaded of the entry, and what was copied.
        match is_still(&self.words, entry, word) {
            true => {
                self.accessed.note(slot);
                Ok((there, (entry, word)))
            }
            false => Err(Miss::Stale),
        }
    }
}
