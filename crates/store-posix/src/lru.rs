//! A bounded map that forgets what was not used for long (second chance).

use std::collections::HashMap;
use std::hash::Hash;

pub(super) struct Lru<K, V> {
    places: HashMap<K, usize>,
    slots: Vec<Slot<K, V>>,
    hand: usize,
    max: usize,
}

struct Slot<K, V> {
    key: K,
    value: V,
    used: bool,
}

impl<K: Hash + Eq + Copy, V: Clone> Lru<K, V> {
    /// At most `max` entries, at least one.
    pub(super) fn new(max: usize) -> Lru<K, V> {
        Lru { places: HashMap::new(), slots: Vec::new(), hand: 0, max: max.max(1) }
    }

    pub(super) fn get(&mut self, key: &K) -> Option<V> {
        let slot = self.slots.get_mut(*self.places.get(key)?)?;
        slot.used = true;
        Some(slot.value.clone())
    }

    /// Answers what had to go for it, or what it replaces: to be dropped where that may take
    /// long.
    pub(super) fn insert(&mut self, key: K, value: V) -> Option<(K, V)> {
        let mut slot = Slot { key, value, used: false };
        if let Some(old) = self.places.get(&key).and_then(|place| self.slots.get_mut(*place)) {
            std::mem::swap(old, &mut slot);
            return Some((slot.key, slot.value));
        }
        if self.slots.len() < self.max {
            self.places.insert(key, self.slots.len());
            self.slots.push(slot);
            return None;
        }
        let place = self.victim();
        self.places.insert(key, place);
        std::mem::swap(&mut self.slots[place], &mut slot);
        self.places.remove(&slot.key);
        Some((slot.key, slot.value))
    }

    /// The next slot that was not used since the hand came by.
    fn victim(&mut self) -> usize {
        loop {
            let place = self.hand % self.slots.len();
            self.hand = place + 1;
            if !std::mem::take(&mut self.slots[place].used) {
                return place;
            }
        }
    }

    pub(super) fn remove(&mut self, key: &K) -> Option<V> {
        let place = self.places.remove(key)?;
        let slot = self.slots.swap_remove(place);
        if let Some(moved) = self.slots.get(place) {
            self.places.insert(moved.key, place);
        }
        Some(slot.value)
    }

    /// Takes out all of these that were not used since the last time.
    pub(super) fn take_unused(&mut self, of: impl Fn(&V) -> bool) -> Vec<V> {
        let mut idle = Vec::new();
        for slot in self.slots.iter_mut().filter(|slot| of(&slot.value)) {
            if !std::mem::take(&mut slot.used) {
                idle.push(slot.key);
            }
        }
        idle.iter().filter_map(|key| self.remove(key)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_used_stays() {
        let mut lru = Lru::new(3);
        assert!((1..=3).all(|i| lru.insert(i, i * 10).is_none()));
        assert_eq!((lru.get(&1), lru.get(&3)), (Some(10), Some(30)));
        assert_eq!(lru.insert(4, 40), Some((2, 20)));
        assert_eq!(lru.insert(3, 33), Some((3, 30)), "replaced");
        assert_eq!(lru.remove(&1), Some(10));
        assert_eq!((lru.get(&1), lru.get(&3), lru.get(&4)), (None, Some(33), Some(40)));
        for i in 5..1000 {
            lru.insert(i, i);
            assert_eq!(lru.get(&i), Some(i));
            assert!(lru.slots.len() <= 3 && lru.places.len() == lru.slots.len());
        }
        lru.insert(7, 7);
        lru.get(&7);
        lru.take_unused(|_| true);
        assert_eq!(lru.get(&7), Some(7));
        lru.take_unused(|_| true);
        lru.take_unused(|value| *value != 7);
        assert_eq!(lru.slots.len(), 1, "only of those");
        lru.take_unused(|_| true);
        lru.take_unused(|_| true);
        assert!(lru.slots.is_empty() && lru.places.is_empty());
    }
}
