//! Which clusters may be being read in: a few words that are asked before the fills of a file, of which
//! there may be many.

use std::sync::atomic::{AtomicU32, Ordering};

use super::place;
use crate::blocks::BlockRange;

/// A power of two, many times as many as the clusters that are read in at a time.
const WORDS: usize = 4096;

/// Counts of fills, each by the clusters that it touches, of all files. What a file's fills add and
/// take away is changed and asked for under its lock; the others make an answer less sure only.
pub(crate) struct FillFilter(Box<[AtomicU32]>);

impl Default for FillFilter {
    fn default() -> FillFilter {
        FillFilter((0..WORDS).map(|_| AtomicU32::new(0)).collect())
    }
}

impl FillFilter {
    /// By the place of the file in the table: it is the same when a fill ends.
    #[inline(always)]
    fn words(&self, file: u32, blocks: BlockRange) -> impl Iterator<Item = &AtomicU32> {
        let (first, _) = place(blocks.first);
        let (last, _) = place(blocks.first + blocks.count.max(1) as u64 - 1);
        // Neighbours do not meet; files do not as a rule.
        let base = u64::from(file).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        (first..=last).map(move |number| &self.0[(base ^ number) as usize % WORDS])
    }

    /// These blocks of a file are being read in from now on.
    #[inline(always)]
    pub(crate) fn add(&self, file: u32, blocks: BlockRange) {
        for word in self.words(file, blocks) {
            word.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// They are no more.
    #[inline(always)]
    pub(crate) fn take(&self, file: u32, blocks: BlockRange) {
        for word in self.words(file, blocks) {
            word.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// False: no fill is under way in a cluster of these.
    #[inline(always)]
    pub(crate) fn may_have(&self, file: u32, blocks: BlockRange) -> bool {
        self.words(file, blocks).any(|word| word.load(Ordering::Relaxed) != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_under_way_is_found_until_it_ends() {
        let filter = FillFilter::default();
        let range = |first, count| BlockRange { first, count };
        for (file, blocks) in [(1, range(17, 1)), (1, range(15, 34)), (9, range(0, 256))] {
            assert!(!filter.may_have(file, blocks));
            filter.add(file, blocks);
            filter.add(file, blocks);
            for number in blocks.first..blocks.first + blocks.count as u64 {
                assert!(filter.may_have(file, range(number, 1)), "{number}");
            }
            filter.take(file, blocks);
            assert!(filter.may_have(file, blocks));
            filter.take(file, blocks);
            assert!(!filter.may_have(file, blocks));
        }
    }
}
