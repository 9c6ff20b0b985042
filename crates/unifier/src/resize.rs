//! A cache that takes less of its arena while memory is short.

use std::sync::Arc;

use crate::emptying::LOOKS_MAX;
use crate::file::{Core, FRAME_LOOKS, HELPERS_MAX, count, least_frames};
use crate::job::Job;
use crate::pool::{Decommit, FRAME_SLOTS};
use crate::wait::locked;

impl Core {
    /// Gives memory back to the system, or takes it again, until about `frames` are in use or free;
    /// what is dirty or held, or what the system does not take, stays for now, and beside what is
    /// dirty the room that readers need. How many are.
    pub(crate) fn resize(self: &Arc<Self>, frames: usize) -> usize {
        let all = self.pool.frame_count();
        let least = least_frames(all, &self.config);
        let least = least.max((self.dirty_slots() * 4).div_ceil(3 * FRAME_SLOTS));
        let frames = frames.max(least).min(all);
        if self.pool.is_pinned_by_device() {
            self.resize_by_segments(frames, least);
        } else {
            self.resize_by_frames(frames);
        }
        self.kept_frames()
    }

    /// A segment is still being emptied: [`resize`](Self::resize) is to be asked for so many frames
    /// again.
    pub(crate) fn shrinks_to(&self) -> Option<usize> {
        let emptying = locked(&self.emptying);
        emptying.segment.map(|_| emptying.target)
    }

    fn kept_frames(&self) -> usize {
        self.pool.frame_count() - self.pool.decommitted()
    }

    fn resize_by_frames(&self, frames: usize) {
        self.pool.recommit(frames.saturating_sub(self.kept_frames()));
        while self.kept_frames() > frames {
            match self.pool.decommit() {
                Decommit::Done => {}
                Decommit::NoneFree if self.evict(FRAME_SLOTS, Some(FRAME_LOOKS)) > 0 => {}
                Decommit::NoneFree | Decommit::Refused => break,
            }
        }
    }

    /// As [`resize`](Self::resize), to fewer frames where segments do not fit, but never to fewer
    /// than `least`.
    fn resize_by_segments(self: &Arc<Self>, frames: usize, least: usize) {
        let mut emptying = locked(&self.emptying);
        emptying.target = frames;
        self.pool.recommit_segments(frames.saturating_sub(self.kept_frames()));
        if self.kept_frames() <= frames {
            self.pool.ask_device_again();
        } else if emptying.rest > 0 {
            emptying.rest -= 1;
            return;
        }
        loop {
            let kept = self.kept_frames();
            if kept <= frames {
                if emptying.segment.take().is_some() {
                    self.pool.keep();
                }
                return emptying.besides.clear();
            }
            let Some((segment, looks)) = emptying.segment else {
                let most = kept.saturating_sub(least);
                let coldest = self.pool.coldest_segment(most, &emptying.besides);
                let Some(segment) = coldest else { return emptying.besides.clear() };
                emptying.was_held = self.pool.is_held(segment);
                self.pool.empty(segment);
                emptying.segment = Some((segment, 0));
                continue;
            };
            self.evict_emptied();
            match self.pool.decommit_segment() {
                Decommit::Done => emptying.segment = None,
                Decommit::NoneFree if looks < LOOKS_MAX => {
                    emptying.segment = Some((segment, looks + 1));
                    return;
                }
                // Somebody holds some of it, or the device all of it.
                Decommit::NoneFree => {
                    self.pool.keep();
                    emptying.give_up(segment);
                    if emptying.was_held {
                        return emptying.rest();
                    }
                }
                Decommit::Refused => {
                    emptying.segment = None;
                    return emptying.rest();
                }
            }
        }
    }

    /// Of the segment that is being emptied, evicts what is clean, and writes back what is not.
    fn evict_emptied(self: &Arc<Self>) {
        let mut freed = 0;
        let mut unwritten = Vec::new();
        for (unit, number, block) in self.pool.emptying() {
            let Some(file) = self.file(number) else { continue };
            match file.evict(self, unit, block) {
                0 if unwritten.len() < HELPERS_MAX
                    && !unwritten.iter().any(|other| Arc::ptr_eq(other, &file)) =>
                {
                    unwritten.push(file);
                }
                slots => freed += slots,
            }
        }
        count(&self.counters.evicted_slots, freed);
        for file in unwritten.into_iter().filter(|file| !file.lock().is_settled()) {
            self.jobs.start(&Job::new(async move { file.flush_pass().await }));
        }
    }
}
