//! The segments of the arena: what a device knows as a whole.
//!
//! A segment is registered before it is first used, by the thread that gets memory ahead of use or
//! else by who takes slots of it. Where devices pin what they know, only whole segments go back to
//! the system: one is [emptied](Pool::empty), nothing of it is given out any more, and when the last
//! of its slots is free it [goes](Pool::decommit_segment).

use std::ops::Range;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use dafs_fabric::mem::PAGE_BYTES;
use dafs_fabric::{Arena, Domain, SgList};

use super::{DECOMMITTED, Decommit, FRAME_SLOTS, FREE, Pool, Run, Runs, SPLIT, Victims};
use crate::memory::FRAME_BYTES;
use crate::wait::locked;

/// Free, in a segment that is to be given back: not to be taken.
pub(super) const EMPTIED: u8 = 4;

/// What readers may have made of holes, before that is looked for.
const REFILLED_MAX: usize = 1 << 20;
/// Frames that go again at once: 2 MiB, for which whoever needs memory waits.
const AGAIN_MAX: usize = 32;

const UNKNOWN: u8 = 0;
const KNOWN: u8 = 1;
const REFUSED: u8 = 2;

/// See the module.
pub(super) struct Segments {
    arena: Arc<Arena>,
    /// `None`: no device must know the memory.
    domain: Option<Arc<Domain>>,
    /// Frames of a segment, but perhaps of the last.
    frames: usize,
    /// Of all segments.
    frame_count: usize,
    /// Whether the device knows each.
    known: Box<[AtomicU8]>,
    /// Held while the device is told of one, so that what it knows and what is said of it agree.
    telling: Mutex<()>,
    /// How often the device did not take one.
    refused: AtomicU64,
}

impl Segments {
    pub(super) fn new(arena: Arc<Arena>, domain: Option<Arc<Domain>>, frame_count: usize) -> Self {
        let bytes = arena.segment_bytes();
        assert!(bytes >= FRAME_BYTES, "segments have whole frames");
        let frames = bytes / FRAME_BYTES;
        let domain = domain.filter(|domain| domain.needs_registration());
        let known = (0..frame_count.div_ceil(frames)).map(|_| AtomicU8::new(UNKNOWN)).collect();
        let (telling, refused) = (Mutex::default(), AtomicU64::new(0));
        Segments { arena, domain, frames, frame_count, known, telling, refused }
    }

    /// Frames that are registered together.
    pub(super) fn step(&self) -> usize {
        if self.domain.is_some() { self.frames } else { 1 }
    }

    /// What is registered cannot be given back.
    fn pins(&self) -> bool {
        self.domain.as_ref().is_some_and(|domain| domain.pins())
    }

    fn range(&self, segment: usize) -> Range<usize> {
        let first = segment * self.frames;
        first..(first + self.frames).min(self.frame_count)
    }

    /// The device is to know these frames, but for segments that were given back meanwhile
    /// (`is_there` of their first frame). Where it refuses, whoever posts them finds another way.
    #[inline]
    pub(super) fn make_known(
        &self,
        frames: impl Iterator<Item = usize>,
        is_there: impl Fn(usize) -> bool,
    ) {
        if let Some(domain) = &self.domain {
            for segment in frames.map(|frame| frame / self.frames) {
                if self.known[segment].load(Ordering::Relaxed) == UNKNOWN {
                    let _telling = locked(&self.telling);
                    if is_there(segment * self.frames) {
                        self.register(domain, segment);
                    }
                }
            }
        }
    }

    /// The device need not know the segment any more, of which nothing is in use.
    fn forget(&self, segment: usize) {
        let _telling = locked(&self.telling);
        if let Some(domain) = &self.domain {
            // If somebody holds it all the same, the system is not given it.
            domain.forget(&self.arena.segment(segment * self.frames * FRAME_BYTES));
        }
        self.known[segment].store(UNKNOWN, Ordering::Relaxed);
    }

    /// What the device refused it may have room for now.
    fn ask_again(&self) {
        let Some(domain) = &self.domain else { return };
        let _telling = locked(&self.telling);
        for segment in 0..self.known.len() {
            let was = self.known[segment].load(Ordering::Relaxed);
            if was == REFUSED && self.register(domain, segment) == REFUSED {
                return;
            }
        }
    }

    fn register(&self, domain: &Domain, segment: usize) -> u8 {
        let span = self.arena.segment(segment * self.frames * FRAME_BYTES);
        let now = if domain.register(&span).is_ok() { KNOWN } else { REFUSED };
        self.known[segment].store(now, Ordering::Relaxed);
        self.refused.fetch_add(u64::from(now == REFUSED), Ordering::Relaxed);
        now
    }
}

impl Pool {
    /// Only whole segments can be given back.
    pub(crate) fn is_pinned_by_device(&self) -> bool {
        self.segments.pins()
    }

    /// How often a device did not take a segment.
    pub(crate) fn registrations_refused(&self) -> u64 {
        self.segments.refused.load(Ordering::Relaxed)
    }

    /// These bytes, none of the spans in two segments.
    #[inline(always)]
    pub(crate) fn spans(&self, runs: &Runs) -> SgList {
        let last = self.arena.segment_bytes() - 1;
        if let Some(Run { start, len }) = runs.only()
            && (start & last) + len <= last + 1
        {
            let mut spans = SgList::new();
            spans.push(self.span(start, len));
            return spans;
        }
        self.cut_spans(runs)
    }

    fn cut_spans(&self, runs: &Runs) -> SgList {
        let mut spans = SgList::new();
        let last = self.arena.segment_bytes() - 1;
        for Run { start, len } in runs.iter() {
            let (mut at, end) = (*start, start + len);
            loop {
                let stop = end.min((at | last) + 1);
                spans.push(self.span(at, stop - at));
                if stop == end {
                    break;
                }
                at = stop;
            }
        }
        spans
    }

    pub(super) fn state(&self, frame: usize) -> u8 {
        self.frames[frame].load(Ordering::Relaxed)
    }

    /// The segment that is missed least, of those that are not given back and have at most so many
    /// frames, but none of `besides`. One of which somebody holds pages comes after all others.
    pub(crate) fn coldest_segment(&self, frames: usize, besides: &[usize]) -> Option<usize> {
        let is_there = |segment: &usize| {
            let range = self.segments.range(*segment);
            range.len() <= frames && self.state(range.start) != DECOMMITTED
        };
        // Of equals the last: what is used comes from the front.
        let all = (0..self.segments.known.len()).rev();
        all.filter(|segment| !besides.contains(segment))
            .filter(is_there)
            .min_by_key(|s| (self.is_held(*s), self.heat(*s)))
    }

    pub(crate) fn is_held(&self, segment: usize) -> bool {
        let range = self.segments.range(segment);
        let mut slots = range.start * FRAME_SLOTS..range.end * FRAME_SLOTS;
        slots.any(|slot| {
            let unit = self.unit_at(slot).unit();
            unit.index() == slot && self.is_pinned(unit)
        })
    }

    /// How much a segment would be missed: its used slots, each by the order of its uses.
    fn heat(&self, segment: usize) -> u64 {
        let range = self.segments.range(segment);
        let slots = range.start * FRAME_SLOTS..range.end * FRAME_SLOTS;
        let heat = |slot: usize| {
            let unit = self.unit_at(slot).unit();
            let uses = if unit.index() == slot { self.uses(unit) } else { 0 };
            u64::from(uses.checked_ilog2().map_or(0, |log| log + 1)) * unit.unit_slots() as u64
        };
        slots.map(heat).sum()
    }

    /// Nothing of this segment is given out from now on. No other one is being emptied.
    pub(crate) fn empty(&self, segment: usize) {
        let range = self.segments.range(segment);
        let mut free = self.free();
        for frame in range.clone().filter(|frame| self.state(*frame) == FREE) {
            free.withdraw(frame);
            self.frames[frame].store(EMPTIED, Ordering::Relaxed);
        }
        self.emptied.store(range.len(), Ordering::Relaxed);
        self.free_frames.store(free.count, Ordering::Relaxed);
        free.emptied = range;
    }

    /// The segment that is being emptied stays.
    pub(crate) fn keep(&self) {
        let mut free = self.free();
        for frame in std::mem::take(&mut free.emptied) {
            match self.state(frame) {
                EMPTIED => free.put_frame(frame, &self.frames),
                SPLIT => free.list_if_free(frame),
                _ => {}
            }
        }
        self.emptied.store(0, Ordering::Relaxed);
        self.free_frames.store(free.count, Ordering::Relaxed);
        drop(free);
        self.space.changed();
    }

    /// What is still in the segment that is being emptied, but for what is held.
    pub(crate) fn emptying(&self) -> Victims {
        let range = self.free().emptied.clone();
        let slots = range.start * FRAME_SLOTS..range.end * FRAME_SLOTS;
        let mut found = Victims::new();
        for slot in slots {
            let unit = self.unit_at(slot).unit();
            if unit.index() == slot {
                found.extend(self.victim(unit));
            }
        }
        found
    }

    /// Gives back the segment that is being emptied, if nothing of it is used any more.
    pub(crate) fn decommit_segment(&self) -> Decommit {
        let _giving = locked(&self.giving);
        let mut free = self.free();
        let range = free.emptied.clone();
        if range.is_empty() || range.clone().any(|frame| self.state(frame) != EMPTIED) {
            return Decommit::NoneFree;
        }
        free.emptied = 0..0;
        range.clone().for_each(|frame| self.frames[frame].store(DECOMMITTED, Ordering::Relaxed));
        self.decommitted.fetch_add(range.len(), Ordering::Relaxed);
        self.emptied.store(0, Ordering::Relaxed);
        drop(free);
        self.segments.forget(range.start / self.segments.frames);
        self.give_back(range)
    }

    /// What the device refused it may have room for now: not while memory is to go, which registering
    /// takes.
    pub(crate) fn ask_device_again(&self) {
        self.segments.ask_again();
    }

    /// Takes whole segments again that were given back, the first ones, of at most so many frames.
    pub(crate) fn recommit_segments(&self, most: usize) {
        let _giving = locked(&self.giving);
        let mut left = most;
        for segment in 0..self.segments.known.len() {
            let range = self.segments.range(segment);
            if range.len() > left || self.state(range.start) != DECOMMITTED {
                continue;
            }
            left -= range.len();
            self.arena.populate_huge(range.start * FRAME_BYTES, range.len() * FRAME_BYTES);
            self.segments.make_known(std::iter::once(range.start), |_| true);
            for frame in range {
                self.take_back(frame);
            }
            self.space.changed();
        }
    }

    /// Who maps the memory and reads what was given back has the system make pages of it again: they go
    /// once more, where there are more than a few. How often that took a look: as often as there is memory, or
    /// somebody who reads a little would have all holes made again.
    pub(crate) fn give_back_again(&self) -> usize {
        let Some(part) = self.arena.span(0, PAGE_BYTES).shared() else { return 0 };
        let kept = (self.frame_count() - self.decommitted()) * FRAME_BYTES;
        let most = (kept + REFILLED_MAX) as u64;
        if !part.file.resident_bytes().is_ok_and(|bytes| bytes > most) {
            return 0;
        }
        let (mut first, mut looks) = (0, 0);
        while let Some(from) = part.file.next_data(first * FRAME_BYTES) {
            let frame = (from / FRAME_BYTES).max(first);
            first = frame + self.give_run_back_again(frame);
            looks += 1;
        }
        looks
    }

    /// This frame and some behind it that are like it: how many.
    fn give_run_back_again(&self, frame: usize) -> usize {
        let last = self.frame_count().min(frame + AGAIN_MAX);
        // Nobody takes them again meanwhile, and who needs slots does not wait for this.
        let _giving = locked(&self.giving);
        let is_given = |frame: &usize| self.state(*frame) == DECOMMITTED;
        let given = (frame..last).take_while(is_given).count();
        if given > 0 {
            // What the system does not take it may take the next time.
            let _ = self.arena.discard(frame * FRAME_BYTES, given * FRAME_BYTES);
            return given;
        }
        (frame..last).take_while(|frame| !is_given(frame)).count().max(1)
    }

    /// Frames that are decommitted go to the system; if it does not take them, they are free again. The caller
    /// holds `giving`.
    pub(super) fn give_back(&self, frames: Range<usize>) -> Decommit {
        let (start, end) = (frames.start * FRAME_BYTES, frames.end * FRAME_BYTES);
        if self.arena.discard(start, end - start).is_ok() {
            let slots = start / PAGE_BYTES..end / PAGE_BYTES;
            // `poisoned` is empty while nothing is.
            let slots = self.poisoned.get(slots).unwrap_or_default();
            slots.iter().for_each(|slot| slot.store(false, Ordering::Relaxed));
            return Decommit::Done;
        }
        self.refused.fetch_add(1, Ordering::Relaxed);
        for frame in frames {
            self.take_back(frame);
        }
        self.space.changed();
        Decommit::Refused
    }
}
