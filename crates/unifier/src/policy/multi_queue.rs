//! The multi-queue algorithm (MQ: Zhou, Philbin and Li, 2001).

use super::ghosts::{Ghosts, tag};
use super::list::{Links, List};
use super::{Following, Key, Origin, Replacement};

/// Queues; units in the last one were used at least 128 times.
const QUEUES: usize = 8;
/// How often as many units as there are may come before an unused unit is moved to the queue
/// below.
const LIFE: u32 = 2;
/// The number of the queue of what was written only.
const WRITTEN: u8 = QUEUES as u8;
/// The part of all slots above which what was written only goes first.
const WRITTEN_PART: u64 = 2;

/// A unit that was used 2^k times is in queue k, where the longest unused comes first. Who is not
/// used for a life time is moved to the queue below; the first of the lowest queue goes. How
/// often units were used that are gone is remembered for a while.
///
/// Beside the published algorithm: what was written and not read since has a queue of its own, so
/// that a stream of writes displaces less of what is read. Beyond half of all slots its first unit
/// goes; below that the older one of it and of the first of the lowest queue. If its turn to go
/// comes before anybody has read it, half of its earlier uses are forgotten, as if it had moved
/// down a queue: otherwise a file that was read once and is written over and over since would go
/// after all that is read for the first time.
///
/// Time is counted in insertions: while nothing comes, nothing ages.
pub struct MultiQueue {
    links: Links,
    queues: [List; QUEUES],
    written: List,
    count: u32,
    slots: u64,
    written_slots: u64,
    ghosts: Ghosts,
    time: u32,
    // Of each unit:
    tags: Box<[u32]>,
    uses: Box<[u32]>,
    sizes: Box<[u32]>,
    since: Box<[u32]>,
    expires: Box<[u32]>,
    queue: Box<[u8]>,
    /// It was written, and not read since.
    unread: Box<[bool]>,
}

impl MultiQueue {
    /// For units with numbers below `units`; as many are remembered when they are gone.
    pub fn new(units: usize) -> MultiQueue {
        let zeros = || vec![0; units].into_boxed_slice();
        MultiQueue {
            links: Links::new(units),
            queues: [List::default(); QUEUES],
            written: List::default(),
            count: 0,
            slots: 0,
            written_slots: 0,
            ghosts: Ghosts::new(units),
            time: 0,
            tags: zeros(),
            uses: zeros(),
            sizes: zeros(),
            since: zeros(),
            expires: zeros(),
            queue: vec![0; units].into_boxed_slice(),
            unread: vec![false; units].into_boxed_slice(),
        }
    }

    fn push_written(&mut self, unit: u32) {
        self.queue[unit as usize] = WRITTEN;
        self.since[unit as usize] = self.time;
        self.written_slots += u64::from(self.sizes[unit as usize]);
        self.written.push(&mut self.links, unit);
    }

    fn push(&mut self, unit: u32, queue: usize) {
        self.queue[unit as usize] = queue as u8;
        self.since[unit as usize] = self.time;
        self.expires[unit as usize] = self.time.wrapping_add(LIFE.saturating_mul(self.count));
        self.queues[queue].push(&mut self.links, unit);
    }

    /// The queue that it was in; `None`: what was written only.
    fn take(&mut self, unit: u32) -> Option<usize> {
        let queue = usize::from(self.queue[unit as usize]);
        match self.queues.get_mut(queue) {
            Some(list) => list.take(&mut self.links, unit),
            None => {
                self.written.take(&mut self.links, unit);
                self.written_slots -= u64::from(self.sizes[unit as usize]);
                return None;
            }
        }
        Some(queue)
    }

    /// It is its turn to go: where nobody has read it since it was written, half of its uses are
    /// forgotten.
    fn forget_unread(&mut self, unit: u32) {
        if self.unread[unit as usize] {
            self.uses[unit as usize] = (self.uses[unit as usize] / 2).max(1);
        }
    }

    /// The first of the lowest queue, and of what was written only.
    fn firsts(&self) -> (Option<u32>, Option<u32>) {
        (self.queues.iter().find_map(List::first), self.written.first())
    }

    /// The first of each queue, if its life time is over, becomes the last of the queue below.
    fn lower_expired(&mut self) {
        for queue in 1..QUEUES {
            let Some(unit) = self.queues[queue].first() else { continue };
            let left = self.expires[unit as usize].wrapping_sub(self.time);
            if left.cast_signed() < 0 {
                self.take(unit);
                self.push(unit, queue - 1);
            }
        }
    }
}

fn queue_of(uses: u32) -> usize {
    (uses.max(1).ilog2() as usize).min(QUEUES - 1)
}

impl Replacement for MultiQueue {
    fn insert(&mut self, unit: u32, slots: u32, key: Key, origin: Origin) -> u32 {
        let tag = tag(key);
        let known = self.ghosts.recall(tag);
        // To be written once more is no use.
        let uses = if origin == Origin::ByRead { known.saturating_add(1) } else { known.max(1) };
        self.tags[unit as usize] = tag;
        self.uses[unit as usize] = uses;
        self.sizes[unit as usize] = slots;
        self.unread[unit as usize] = origin == Origin::ByWrite;
        self.time = self.time.wrapping_add(1);
        self.count += 1;
        self.slots += u64::from(slots);
        if origin == Origin::ByWrite && uses == 1 {
            self.push_written(unit);
        } else {
            self.push(unit, queue_of(uses));
        }
        self.lower_expired();
        uses
    }

    fn touch(&mut self, unit: u32, uses: u32) {
        let queue = self.take(unit);
        let all = &mut self.uses[unit as usize];
        *all = all.saturating_add(uses);
        // What cannot go makes way for the units of the queues above.
        let above = queue.map_or(0, |queue| (queue + 1).min(QUEUES - 1));
        let queue = if uses > 0 { queue_of(*all) } else { above };
        if uses == 0 {
            self.forget_unread(unit);
        }
        self.unread[unit as usize] = false;
        self.push(unit, queue);
    }

    fn remove(&mut self, unit: u32) {
        self.take(unit);
        self.count -= 1;
        self.slots -= u64::from(self.sizes[unit as usize]);
        self.ghosts.remember(self.tags[unit as usize], self.uses[unit as usize]);
    }

    fn go(&mut self, unit: u32) {
        self.forget_unread(unit);
        self.remove(unit);
    }

    fn victim(&self) -> Option<u32> {
        match self.firsts() {
            (Some(read), Some(written)) => {
                let age = |unit: u32| self.time.wrapping_sub(self.since[unit as usize]);
                let too_much = self.written_slots > self.slots / WRITTEN_PART;
                Some(if too_much || age(written) > age(read) { written } else { read })
            }
            (read, written) => read.or(written),
        }
    }

    fn may_follow(&self, unit: u32) -> Following {
        let lowest = self.queues.iter().position(|queue| queue.len() > 0);
        let queue = self.queue[unit as usize];
        if queue == WRITTEN || Some(usize::from(queue)) == lowest {
            Following::Soon
        } else {
            Following::No
        }
    }
}
