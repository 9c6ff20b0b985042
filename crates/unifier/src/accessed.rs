//! Accessed bits: what readers use who read slots by themselves, out of memory that they map.
//!
//! Such a reader sets a bit for each slot that it has read, in memory that it shares, as a processor does in
//! its page tables. When it is a unit's turn to go, its bits are looked at and cleared: where one was set, it
//! was used, and stays. So a read costs its reader no message, and the cache nothing before it has to make room. Of bits
//! only so many are heeded for one place: nobody keeps all of a cache by setting them for ever.

use std::ops::Range;

use dafs_fabric::Words;

/// Whose bits are looked at, at most.
pub(crate) const READERS_MAX: usize = 64;
/// Units that stay for their bits in one search for what goes, and no more than there are.
pub(crate) const SPARED_MAX: usize = 256;

const BITS: usize = u64::BITS as usize;

/// The bits of all readers of a cache.
#[derive(Default)]
pub(crate) struct Accessed {
    all: Vec<Reader>,
    last: u64,
}

struct Reader {
    number: u64,
    user: u32,
    bits: Words,
}

impl Accessed {
    /// One more reader of this user, who may have so many: its number.
    pub(crate) fn add(&mut self, bits: Words, (user, most): (u32, usize)) -> Option<u64> {
        let of_user = self.all.iter().filter(|reader| reader.user == user).count();
        if self.all.len() >= READERS_MAX || of_user >= most {
            return None;
        }
        self.last += 1;
        self.all.push(Reader { number: self.last, user, bits });
        Some(self.last)
    }

    /// Its bits, which are looked at no more.
    pub(crate) fn remove(&mut self, reader: u64) -> Option<Words> {
        let at = self.all.iter().position(|one| one.number == reader)?;
        Some(self.all.swap_remove(at).bits)
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
        self.all.iter().filter(|reader| look(&reader.bits, word, mask)).count() > 0
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

    const ALL: (u32, usize) = (1, READERS_MAX);

    fn bits(set: &[usize]) -> Words {
        let words = Words::new(&Arena::new(PAGE_BYTES).expect("memory"));
        set.iter().for_each(|bit| words.set_bits(bit / BITS, 1 << (bit % BITS)));
        words
    }

    #[test]
    fn a_bit_is_of_one_unit_and_counts_once() {
        let mut accessed = Accessed::default();
        assert!(!accessed.take(0..1));
        let [a, b] = [&[5, 63, 130][..], &[5, 64]].map(|set| accessed.add(bits(set), ALL));
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
        let mut add = |user, most| accessed.add(bits(&[]), (user, most)).is_some();
        let of_one = (0..READERS_MAX).filter(|_| add(1, READERS_MAX / 4)).count();
        let of_others = (0..READERS_MAX).filter(|_| add(0, READERS_MAX)).count();
        assert_eq!((of_one, of_others), (READERS_MAX / 4, READERS_MAX * 3 / 4));
        assert!(accessed.remove(7).is_some());
        assert!(accessed.add(bits(&[]), ALL).is_some() && accessed.add(bits(&[]), ALL).is_none());
    }
}
