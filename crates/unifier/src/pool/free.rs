//! Which frames and slots are free, and the order in which used ones go.

use std::ops::Range;
use std::sync::atomic::{AtomicU8, Ordering};

use super::segments::EMPTIED;
use super::{FRAME_SLOTS, FREE, SPLIT};
use crate::accessed::Accessed;
use crate::policy::shares::Shares;

/// See the module.
pub(super) struct Free {
    /// A bit per free frame.
    frames: Vec<u64>,
    pub(super) count: usize,
    /// No frame below this is free. The lowest comes first: neighbours come one after another,
    /// and memory that was used before, and so is resident and warm, is used again before new.
    next: usize,
    /// A bit per free slot of each split frame.
    pub(super) slots: Vec<u16>,
    /// Split frames that may have free slots, each at most once.
    pub(super) partial: Vec<u32>,
    listed: Vec<bool>,
    /// Frames of the segment that is to be given back: none is given out.
    pub(super) emptied: Range<usize>,
    /// The order in which units go.
    pub(super) shares: Shares,
    /// What is used without a word.
    pub(super) accessed: Accessed,
}

impl Free {
    pub(super) fn new(frames: usize) -> Free {
        let mut bits = vec![u64::MAX; frames.div_ceil(64)];
        if !frames.is_multiple_of(64) {
            bits[frames / 64] = (1 << (frames % 64)) - 1;
        }
        Free {
            frames: bits,
            count: frames,
            next: 0,
            slots: vec![0; frames],
            partial: Vec::new(),
            listed: vec![false; frames],
            emptied: 0..0,
            shares: Shares::new(frames * FRAME_SLOTS),
            accessed: Accessed::default(),
        }
    }

    pub(super) fn take_frame(&mut self) -> Option<usize> {
        if self.count == 0 {
            return None;
        }
        let words = self.frames.len();
        let start = self.next / 64 % words;
        // The first word twice: from `next` on, and in the end whole.
        for step in 0..=words {
            let word = (start + step) % words;
            let mask = if step == 0 { u64::MAX << (self.next % 64) } else { u64::MAX };
            let bits = self.frames[word] & mask;
            if bits != 0 {
                let frame = word * 64 + bits.trailing_zeros() as usize;
                self.frames[word] &= !(1 << (frame % 64));
                self.count -= 1;
                self.next = frame + 1;
                return Some(frame);
            }
        }
        unreachable!("free frames are counted");
    }

    pub(super) fn take_last_frame(&mut self) -> Option<usize> {
        let word = self.frames.iter().rposition(|word| *word != 0)?;
        let bit = self.frames[word].ilog2() as usize;
        self.frames[word] &= !(1 << bit);
        self.count -= 1;
        Some(word * 64 + bit)
    }

    pub(super) fn put_frame(&mut self, frame: usize, states: &[AtomicU8]) {
        if self.emptied.contains(&frame) {
            return states[frame].store(EMPTIED, Ordering::Relaxed);
        }
        states[frame].store(FREE, Ordering::Relaxed);
        self.frames[frame / 64] |= 1 << (frame % 64);
        self.next = self.next.min(frame);
        self.count += 1;
    }

    pub(super) fn take_slot(&mut self, states: &[AtomicU8]) -> Option<u32> {
        loop {
            let Some(&frame) = self.partial.last() else {
                let frame = self.take_frame()?;
                states[frame].store(SPLIT, Ordering::Relaxed);
                self.slots[frame] = u16::MAX;
                self.list(frame);
                continue;
            };
            let frame = frame as usize;
            let bits = self.slots[frame];
            let is_split = states[frame].load(Ordering::Relaxed) == SPLIT;
            if is_split && bits != 0 && !self.emptied.contains(&frame) {
                self.slots[frame] = bits & (bits - 1);
                return Some((frame * FRAME_SLOTS) as u32 + bits.trailing_zeros());
            }
            self.listed[frame] = false;
            self.partial.pop();
        }
    }

    pub(super) fn put_slot(&mut self, slot: usize, states: &[AtomicU8]) {
        let frame = slot / FRAME_SLOTS;
        self.slots[frame] |= 1 << (slot % FRAME_SLOTS);
        if self.slots[frame] == u16::MAX {
            self.slots[frame] = 0;
            self.put_frame(frame, states);
        } else if !self.emptied.contains(&frame) {
            self.list(frame);
        }
    }

    /// A free frame is not to be given out.
    pub(super) fn withdraw(&mut self, frame: usize) {
        self.frames[frame / 64] &= !(1 << (frame % 64));
        self.count -= 1;
    }

    /// A split frame is to be given out again, as far as it is free.
    pub(super) fn list_if_free(&mut self, frame: usize) {
        if self.slots[frame] != 0 {
            self.list(frame);
        }
    }

    fn list(&mut self, frame: usize) {
        if !self.listed[frame] {
            self.listed[frame] = true;
            self.partial.push(frame as u32);
        }
    }
}
