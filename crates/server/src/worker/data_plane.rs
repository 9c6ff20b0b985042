//! How much of this thread's time goes into answers to reads by a reference: estimated, as a look at the clock costs as much
//! as a good part of such a read.
//!
//! One pass in so many that have some is measured as a whole, with what the network takes before and after them. What
//! else it had to do is told apart by number: a request counts as a read.

use std::time::Duration;

/// So many passes with such reads, and one of the next ones is measured.
const PASSES_PER_SAMPLE: u32 = 64;
/// Passes that begin a sample, at most: who waits in a loop finds nothing in most, until he sleeps.
const LOOKS: u32 = 256;

/// What a worker knows of it.
#[derive(Debug, Default)]
pub(super) struct DataPlane {
    /// Passes with some, until one of the next is measured.
    until: u32,
    /// Passes that are measured from their beginning, if they turn out to have some.
    looks: u32,
    /// Reads since the last sample.
    reads: u64,
}

impl DataPlane {
    /// A pass begins that is to be measured.
    #[inline(always)]
    pub(super) fn is_looked_at(&self) -> bool {
        self.looks > 0
    }

    /// So many were answered, or refused.
    #[inline]
    pub(super) fn note(&mut self, reads: u64) {
        self.reads += reads;
        match self.until.checked_sub(1) {
            Some(until) => self.until = until,
            None => (self.until, self.looks) = (PASSES_PER_SAMPLE - 1, LOOKS),
        }
    }

    /// A pass begins that is measured: the reads before it, for its end.
    pub(super) fn begin_look(&self) -> u64 {
        self.reads
    }

    /// It ends, and had so many requests. What all reads took since the last one that had some, as far as this one tells.
    pub(super) fn end_look(
        &mut self,
        before: u64,
        (took, requests): (Duration, u64),
    ) -> Option<Duration> {
        self.looks = self.looks.saturating_sub(1);
        let of_pass = self.reads.saturating_sub(before);
        if of_pass == 0 {
            return None;
        }
        self.looks = 0;
        let each = took.as_nanos() / u128::from(of_pass.saturating_add(requests));
        let sum = each * u128::from(std::mem::take(&mut self.reads));
        Some(Duration::from_nanos(u64::try_from(sum).unwrap_or(u64::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Passes of so many reads and requests, each of which takes as long: what is estimated of them, and how often the clock
    /// was looked at.
    fn passes(
        data_plane: &mut DataPlane,
        passes: u32,
        (reads, requests): (u64, u64),
    ) -> (u64, u32) {
        let (mut sum, mut looks) = (0, 0);
        for _ in 0..passes {
            let is_looked_at = data_plane.is_looked_at();
            let before = data_plane.begin_look();
            if reads > 0 {
                data_plane.note(reads);
            }
            if is_looked_at {
                looks += 1;
                let took = Duration::from_nanos(1000 * (reads + requests));
                let told = data_plane.end_look(before, (took, requests));
                assert_eq!(told.is_some(), reads > 0);
                sum += told.map_or(0, |told| told.as_nanos() as u64);
            }
        }
        (sum, looks)
    }

    #[test]
    fn a_sample_stands_for_all_reads_since_the_last_one() {
        for (reads, requests) in [(8, 0), (1, 0), (3, 5)] {
            let mut data_plane = DataPlane::default();
            let (sum, looks) = passes(&mut data_plane, 64 * 100, (reads, requests));
            let expected = 1000 * reads * 64 * 100;
            assert!(sum.abs_diff(expected) <= expected / 20, "{sum} of {expected}");
            assert!((99..=101).contains(&looks), "{looks}");
        }
    }

    #[test]
    fn who_reads_nothing_so_is_not_looked_at() {
        let mut data_plane = DataPlane::default();
        assert_eq!(passes(&mut data_plane, 1000, (0, 1)), (0, 0));
        // One that is waited for, and does not come.
        passes(&mut data_plane, 1, (1, 0));
        assert_eq!(passes(&mut data_plane, 1000, (0, 1)), (0, LOOKS));
        let (sum, looks) = passes(&mut data_plane, 65, (1, 0));
        assert_eq!((looks, sum), (1, 1000 * 66), "also that of before");
    }
}
