//! Least recently used.

use super::list::{Links, List};
use super::{Following, Key, Origin, Replacement};

/// The unit that was not used for longest goes first.
pub struct Lru {
    links: Links,
    list: List,
    /// Counts insertions and uses.
    time: u32,
    /// When each unit was used last.
    used: Box<[u32]>,
}

impl Lru {
    /// For units with numbers below `units`.
    pub fn new(units: usize) -> Lru {
        let used = vec![0; units].into_boxed_slice();
        Lru { links: Links::new(units), list: List::default(), time: 0, used }
    }

    fn push(&mut self, unit: u32) {
        self.time = self.time.wrapping_add(1);
        self.used[unit as usize] = self.time;
        self.list.push(&mut self.links, unit);
    }
}

impl Replacement for Lru {
    fn insert(&mut self, unit: u32, _: u32, _: Key, _: Origin) -> u32 {
        self.push(unit);
        1
    }

    fn touch(&mut self, unit: u32, _: u32) {
        self.list.take(&mut self.links, unit);
        self.push(unit);
    }

    fn remove(&mut self, unit: u32) {
        self.list.take(&mut self.links, unit);
    }

    fn go(&mut self, unit: u32) {
        self.remove(unit);
    }

    fn victim(&self) -> Option<u32> {
        self.list.first()
    }

    fn may_follow(&self, unit: u32) -> Following {
        let age = self.time.wrapping_sub(self.used[unit as usize]);
        if age >= self.list.len() / 2 { Following::Soon } else { Following::Late }
    }
}
