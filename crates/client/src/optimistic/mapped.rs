//! A server's cache, mapped, and how a block is read there.

use std::sync::atomic::Ordering::{self, Acquire, Relaxed};

use dafs_fabric::mem::PAGE_BYTES;
use dafs_fabric::{Row, Span, Word, Words};
use dafs_protocol::{
    ENTRIES_FIRST_WORD, ENTRY_BLOCK, ENTRY_FILE, ENTRY_VALID, ENTRY_WORD, ENTRY_WORDS, EntryMemory,
    EntryState, EntryWord, LifeWord, ReferenceInfo, entry_of, is_still, is_unchanged,
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
    /// As many slots as there are entries, at most.
    cache: Span,
    /// As many as there are slots.
    entries: Words,
    /// What words look like that are believed, but for the generation.
    stable: EntryWord,
    /// Of the server's life, and the session's.
    lives: [Life; 2],
    pub(super) directory: Directory,
    pub(crate) accessed: Accessed,
}

/// A word that stands as long as something lives.
#[derive(Debug)]
struct Life {
    word: Word,
    value: u64,
}

impl Life {
    fn of(word: LifeWord, entries: &Span) -> Option<Life> {
        let number = (word.number as usize) < ENTRIES_FIRST_WORD;
        let number = number.then_some(word.number as usize)?;
        Some(Life { word: Word::of_span(entries, number)?, value: word.value })
    }

    #[inline(always)]
    fn stands(&self) -> bool {
        self.word.load(Acquire) == self.value
    }
}

/// Of a slot.
#[derive(Debug, Clone, Copy)]
struct Entry<'a>(Row<'a, ENTRY_WORDS>);

impl EntryMemory for Entry<'_> {
    #[inline(always)]
    fn load(&self, number: usize, order: Ordering) -> u64 {
        self.0.load(number, order)
    }

    fn store(&self, _: usize, _: u64, _: Ordering) {
        unreachable!("a client stores nothing in a server's memory");
    }

    #[inline(always)]
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
type Copied<'a> = (Entry<'a>, EntryWord);

/// Where an offset is in its block.
#[inline(always)]
pub(super) fn within(offset: u64) -> usize {
    offset as usize % PAGE_BYTES
}

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
        let lives = [Life::of(info.server, entries)?, Life::of(info.session, entries)?];
        // So that who finds the entry of a slot finds the slot.
        let (first, bytes) = (entry_of(0) * size_of::<u64>(), ENTRY_WORDS * size_of::<u64>());
        let entries = Words::of_span(&entries.part(first, slots * bytes))?;
        let (directory, accessed) = (Directory::new(slots).ok()?, Accessed::new(slots).ok()?);
        let cache = cache.part(0, slots * PAGE_BYTES);
        let (info, stable) = (common(info), EntryWord::new(info.epoch, 0, EntryState::Stable));
        Some(Mapped { info, cache, entries, stable, lives, directory, accessed })
    }

    /// It is what this answer is about.
    pub(super) fn is_of(&self, info: &ReferenceInfo) -> bool {
        self.info == common(info)
    }

    /// What was copied before this call may be believed, as far as its entries say so.
    #[inline(always)]
    pub(super) fn lives(&self) -> bool {
        let [server, session] = &self.lives;
        (server.stands() || planted(Defect::ServerLifeNotLookedAt))
            && (session.stands() || planted(Defect::SessionLifeNotLookedAt))
    }

    /// Reads bytes of a file that are all of one block, where `find` finds it: as many as there are.
    #[inline(always)]
    pub(super) fn read_block(
        &self,
        find: impl FnOnce(&Directory, u64, u64) -> Option<usize>,
        (file, offset): (u64, u64),
        into: &mut [u8],
    ) -> Result<usize, Miss> {
        let block = (file, offset / PAGE_BYTES as u64);
        let slot = find(&self.directory, file, block.1).ok_or(Miss::Unknown)?;
        let (bytes, _) = self.copy_from(slot, block, within(offset), into, || ())?;
        if self.lives() { Ok(bytes) } else { Err(Miss::Ended) }
    }

    /// Reads bytes of a file: as many as there are. Of several blocks all were there at one moment, as when the
    /// server reads them.
    pub(super) fn read(&self, file: u64, offset: u64, into: &mut [u8]) -> Result<usize, Miss> {
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
        let mut copied = [None; BLOCKS_MAX];
        let (mut blocks, mut bytes) = (0, 0);
        while bytes < into.len() && blocks < BLOCKS_MAX {
            let at = offset + bytes as u64;
            let within = within(at);
            let asked = (PAGE_BYTES - within).min(into.len() - bytes);
            let to = &mut into[bytes..bytes + asked];
            let block = (file, at / PAGE_BYTES as u64);
            let slot = self.directory.find(block.0, block.1);
            let slot = slot.or_else(|| self.directory.find_second(block.0, block.1));
            let slot = slot.ok_or(Miss::Unknown)?;
            let then_copied = || then(Step::Copied(blocks + 1));
            let (got, entry) = self.copy_from(slot, block, within, to, then_copied)?;
            copied[blocks] = Some(entry);
            (blocks, bytes) = (blocks + 1, bytes + got);
            then(Step::Checked(blocks));
            if got < asked {
                break;
            }
        }
        // Writers retire all that they replace before they publish anything: what stands at one moment
        // belongs together.
        let stands = |(entry, word): &Copied<'_>| is_still(entry, 0, *word);
        if blocks > 1 && !copied[..blocks].iter().flatten().all(stands) {
            return Err(Miss::Stale);
        }
        if self.lives() { Ok(bytes) } else { Err(Miss::Ended) }
    }

    /// Copies bytes of one block, if it is in this slot, from byte `within` of it on: how many the file has there.
    #[inline(always)]
    fn copy_from(
        &self,
        slot: usize,
        (file, block): (u64, u64),
        within: usize,
        into: &mut [u8],
        then: impl FnOnce(),
    ) -> Result<(usize, Copied<'_>), Miss> {
        let entry = Entry(self.entries.row(slot).ok_or(Miss::Stale)?);
        let word = EntryWord(entry.load(ENTRY_WORD, Acquire));
        let is_it = |part, of| entry.load(part, Relaxed) == of;
        if !word.is_like(self.stable) || !is_it(ENTRY_FILE, file) || !is_it(ENTRY_BLOCK, block) {
            return Err(Miss::Stale);
        }
        debug_assert!(within + into.len() <= PAGE_BYTES, "bytes of one block");
        let there = match entry.load(ENTRY_VALID, Relaxed) as usize {
            PAGE_BYTES.. => into.len(),
            valid => valid.saturating_sub(within).min(into.len()),
        };
        self.cache.copy_to(slot * PAGE_BYTES + within, &mut into[..there]);
        then();
        // With it stands what was loaded of the entry, and what was copied.
        if !is_unchanged(&entry, 0, word) {
            return Err(Miss::Stale);
        }
        self.accessed.note(slot);
        Ok((there, (entry, word)))
    }
}
