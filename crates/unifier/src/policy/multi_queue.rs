//! The multi-queue algorithm (MQ: Zhou, Philbin and Li, 2001).

use super::ghosts::{Ghosts, tag};
use super::list::{Links, List};
use super::{Following, Key, Replacement};

/// Queues; units in the last one were used at least 128 times.
const QUEUES: usize = 8;
/// How often as many units as there are may come before an unused unit is moved to the queue
/// below.
const LIFE: u32 = 2;

/// A unit that was used 2^k times is in queue k, where the longest unused comes first. Who is not
/// used for a life time is moved to the queue below; the first of the lowest queue goes. How
/// often units were used that are gone is remembered for a while.
///
/// Time is counted in insertions: while nothing comes, nothing ages.
pub struct MultiQueue {
    links: Links,
    queues: [List; QUEUES],
    count: u32,
    ghosts: Ghosts,
    time: u32,
    // Of each unit:
    tags: Box<[u32]>,
    uses: Box<[u32]>,
    expires: Box<[u32]>,
    queue: Box<[u8]>,
}

impl MultiQueue {
    /// For units with numbers below `units`; as many are remembered when they are gone.
    pub fn new(units: usize) -> MultiQueue {
        let zeros = || vec![0; units].into_boxed_slice();
        MultiQueue {
            links: Links::new(units),
            queues: [List::default(); QUEUES],
            count: 0,
            ghosts: Ghosts::new(units),
            time: 0,
            tags: zeros(),
            uses: zeros(),
            expires: zeros(),
            queue: vec![0; units].into_boxed_slice(),
        }
    }

    fn push(&mut self, unit: u32, queue: usize) {
        self.queue[unit as usize] = queue as u8;
        self.expires[unit as usize] = self.time.wrapping_add(LIFE.saturating_mul(self.count));
        self.queues[queue].push(&mut self.links, unit);
    }

    fn take(&mut self, unit: u32) -> usize {
        let queue = usize::from(self.queue[unit as usize]);
        self.queues[queue].take(&mut self.links, unit);
        queue
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
    fn insert(&mut self, unit: u32, key: Key) -> u32 {
        let tag = tag(key);
        let uses = self.ghosts.recall(tag).saturating_add(1);
        self.tags[unit as usize] = tag;
        self.uses[unit as usize] = uses;
        self.time = self.time.wrapping_add(1);
        self.count += 1;
        self.push(unit, queue_of(uses));
        self.lower_expired();
        uses
    }

    fn touch(&mut self, unit: u32, uses: u32) {
        let queue = self.take(unit);
        let all = &mut self.uses[unit as usize];
        *all = all.saturating_add(uses);
        // What cannot go makes way for the units of the queues above.
        let queue = if uses > 0 { queue_of(*all) } else { (queue + 1).min(QUEUES - 1) };
        self.push(unit, queue);
    }

    fn remove(&mut self, unit: u32) {
        self.take(unit);
        self.count -= 1;
        self.ghosts.remember(self.tags[unit as usize], self.uses[unit as usize]);
    }

    fn victim(&self) -> Option<u32> {
        self.queues.iter().find_map(List::first)
    }

    fn may_follow(&self, unit: u32) -> Following {
        let lowest = self.queues.iter().position(|queue| queue.len() > 0);
        if Some(usize::from(self.queue[unit as usize])) == lowest {
            Following::Soon
        } else {
            Following::No
        }
    }
}
