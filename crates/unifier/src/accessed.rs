//! Accessed bits: what readers use who read slots by themselves, out of memory that they map.
//!
//! Such a reader sets a bit for each slot that it has read, in memory that it shares, as a processor does in
//! its page tables. When it is a unit's turn to go, its bits are looked at and cleared: where one was set, it
//! was used, and stays. So a read costs its reader no message, and the cache nothing before it has to make room. Of bits
//! only so many are heeded for one place: nobody keeps all of a cache by setting them for ever.

use std::ops::Range;

use dafs_fabric::Words;

/// Whose bits are looked at, at most.
const READERS_MAX: usize = 64;
/// Units that stay for their bits in one search for what goes, and no more than there are.
pub(crate) const SPARED_MAX: usize = 256;

const BITS: usize = u64::BITS as usize;

/// The bits of all readers of a cache.
#[derive(Default)]
pub(crate) struct Accessed {
    all: Vec<(u64, Words)>,
    last: u64,
}

impl Accessed {
    /// One more reader: its number.
    pub(crate) fn add(&mut self, bits: Words) -> Option<u64> {
        if self.all.len() >= READERS_MAX {
            return None;
        }
        self.last += 1;
        self.all.push((self.last, bits));
        Some(self.last)
    }

    /// Its bits, which are looked at no more.
    pub(crate) fn remove(&mut self, reader: u64) -> Option<Words> {
        let at = self.all.iter().position(|(number, _)| *number == reader)?;
        Some(self.all.swap_remove(at).1)
    }

    /// There are no readers.
    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Somebody has read one of these slots, which are of one unit.
    #[inline(always)]
    pub(crate) fn any(&self, slots: Range<usize>) -> bool {
        !self.is_empty() && self.look(slots, Words::has_bits)
    }

    /// The same, but for the next time.
    #[inline(always)]
    pub(crate) fn take(&self, slots: Range<usize>) -> bool {
        !self.is_empty() && self.look(slots, Words::take_bits)
    }

    /// A unit is no more than a frame, whose slots are bits of one word.
    #[inline(never)]
    fn look(&self, slots: Range<usize>, look: fn(&Words, usize, u64) -> bool) -> bool {
        let (word, first) = (slots.start / BITS, slots.start % BITS);
        let mask = (u64::MAX >> (BITS - slots.len().clamp(1, BITS))) << first;
        // Of each, not up to the first.
        self.all.iter().filter(|(_, bits)| look(bits, word, mask)).count() > 0
    }
}

/// Words of the bits of so many slots.
pub(crate) fn words_of(slots: usize) -> usize {
    slots.div_ceil(BITS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use dafs_fabric::Arena;
    use dafs_fabric::mem::PAGE_BYTES;

    fn bits(set: &[usize]) -> Words {
        let words = Words::new(&Arena::new(PAGE_BYTES).expect("memory"));
        set.iter().for_each(|bit| words.set_bits(bit / BITS, 1 << (bit % BITS)));
        words
    }

    #[test]
    fn a_bit_is_of_one_unit_and_counts_once() {
        let mut accessed = Accessed::default();
        assert!(!accessed.take(0..1));
        let [a, b] = [&[5, 63, 130][..], &[5, 64]].map(|set| accessed.add(bits(set)));
        let (a, b) = (a.expect("room"), b.expect("room"));
        assert!(!accessed.take(4..5) && accessed.any(0..16) && accessed.take(5..6));
        assert!(!accessed.take(0..16), "both were cleared");
        assert!(accessed.take(48..64) && accessed.take(64..65) && !accessed.take(65..66));
        assert!(accessed.take(128..144) && !accessed.take(128..144));
        assert!(accessed.remove(a).is_some() && accessed.remove(a).is_none());
        assert!(accessed.remove(b).is_some());
    }

    #[test]
    fn readers_are_few() {
        let mut accessed = Accessed::default();
        let count = (0..READERS_MAX + 1).filter_map(|_| accessed.add(bits(&[]))).count();
        assert_eq!(count, READERS_MAX);
        accessed.remove(7);
        assert!(accessed.add(bits(&[])).is_some());
    }
}
