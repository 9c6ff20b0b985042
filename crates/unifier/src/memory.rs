//! Which frames of the arena have memory. New memory takes its time: 0.2 ms or more for a huge page.
//! A thread gets it ahead of use, so that no worker waits for it; where use overtakes, a worker gets
//! small pages, frame by frame.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::Thread;

use dafs_fabric::Arena;
use dafs_fabric::mem::{HUGE_PAGE_BYTES, PAGE_BYTES};

/// Slots per frame, and per cluster of a file.
pub(crate) const FRAME_SLOTS: usize = 16;

pub(crate) const FRAME_BYTES: usize = FRAME_SLOTS * PAGE_BYTES;
/// Frames of a huge page.
const HUGE_FRAMES: usize = HUGE_PAGE_BYTES / FRAME_BYTES;
/// How many frames ahead of use: 64 MiB.
const AHEAD_FRAMES: usize = 32 * HUGE_FRAMES;
/// Where use overtakes, that begins again so far before it: 8 MiB.
const GAP_FRAMES: usize = 4 * HUGE_FRAMES;

/// See the module.
pub(crate) struct Memory {
    arena: Arc<Arena>,
    /// Frames that have memory.
    resident: Box<[AtomicBool]>,
    /// Where the frames end that were used, and those that got memory ahead of use.
    reached: AtomicUsize,
    ahead: AtomicUsize,
    /// Frames that get it at a time.
    step: usize,
    /// Who does that.
    prefaulter: OnceLock<Thread>,
}

impl Memory {
    /// `step`: frames that get memory together, at least those of a huge page.
    pub(crate) fn new(arena: Arc<Arena>, frames: usize, step: usize) -> Memory {
        Memory {
            arena,
            resident: (0..frames).map(|_| AtomicBool::new(false)).collect(),
            reached: AtomicUsize::new(0),
            ahead: AtomicUsize::new(0),
            step: step.max(HUGE_FRAMES),
            prefaulter: OnceLock::new(),
        }
    }

    /// Asks for the memory of those frames that never had any.
    pub(crate) fn fault_in(&self, frames: impl Iterator<Item = usize>) {
        let mut end = 0;
        for frame in frames {
            end = end.max(frame + 1);
            if !self.resident[frame].load(Ordering::Relaxed) {
                self.resident[frame].store(true, Ordering::Relaxed);
                self.arena.populate(frame * FRAME_BYTES, FRAME_BYTES);
            }
        }
        if self.reached.fetch_max(end, Ordering::Relaxed) < end
            && self.ahead.load(Ordering::Relaxed) < end + AHEAD_FRAMES / 2
            && let Some(prefaulter) = self.prefaulter.get()
        {
            prefaulter.unpark();
        }
    }

    /// This thread calls [`prefault`](Self::prefault) when it is unparked.
    pub(crate) fn set_prefaulter(&self, thread: Thread) {
        let _ = self.prefaulter.set(thread);
    }

    /// Gets memory for some frames that will be used next, if they may have it, and which; `None`:
    /// enough have it.
    pub(crate) fn prefault(&self, may: impl Fn(Range<usize>) -> bool) -> Option<Range<usize>> {
        let reached = self.reached.load(Ordering::Relaxed);
        let mut first = self.ahead.load(Ordering::Relaxed);
        if first < reached {
            first = (reached + GAP_FRAMES).next_multiple_of(self.step);
        }
        let end = (first + self.step).min(self.resident.len());
        if first >= end || first >= reached + AHEAD_FRAMES || !may(first..end) {
            return None;
        }
        self.arena.populate_huge(first * FRAME_BYTES, (end - first) * FRAME_BYTES);
        self.resident[first..end].iter().for_each(|frame| frame.store(true, Ordering::Relaxed));
        self.ahead.store(end, Ordering::Relaxed);
        Some(first..end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_comes_ahead_of_use() {
        let frames = 4 * AHEAD_FRAMES;
        let arena = Arena::in_segments(frames * FRAME_BYTES, HUGE_PAGE_BYTES).expect("arena");
        let memory = Memory::new(arena, frames, 1);
        while memory.prefault(|_| true).is_some() {}
        let ahead = || memory.ahead.load(Ordering::Relaxed);
        assert_eq!(ahead(), AHEAD_FRAMES, "and no more");
        memory.fault_in(0..AHEAD_FRAMES / 2);
        while memory.prefault(|_| true).is_some() {}
        assert_eq!(ahead(), AHEAD_FRAMES + AHEAD_FRAMES / 2);
        // Use overtakes it: it begins again at some distance.
        let reached = 2 * AHEAD_FRAMES + AHEAD_FRAMES / 2;
        memory.fault_in(AHEAD_FRAMES / 2..reached);
        assert!(memory.prefault(|_| true).is_some());
        assert_eq!(ahead(), reached + GAP_FRAMES + HUGE_FRAMES);
        assert!(!memory.resident[reached].load(Ordering::Relaxed), "left to who needs it");
        assert!(memory.resident[ahead() - 1].load(Ordering::Relaxed));
    }
}
