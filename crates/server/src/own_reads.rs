//! Reads of a session that were no requests, as they are shown: what this end counted, and what the client tells of those
//! in which this end has no part.

use std::array;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dafs_protocol::ToldReads;

/// What one message may add. A client that says more is believed so much: nobody's counter is at its end at once.
const TOLD_MOST: u64 = 1 << 40;

/// Of one session, changed by its worker alone.
#[derive(Debug, Default)]
pub(crate) struct OwnReads {
    /// By a reference that was checked, and those that were refused.
    pub named_reads: AtomicU64,
    pub named_refused: AtomicU64,
    /// References that the client was told, to places of blocks and to files.
    pub references_told: AtomicU64,
    /// What the client told last, and how many a second that was.
    told: [AtomicU64; 3],
    per_second: [AtomicU64; 3],
    told_at_ns: AtomicU64,
}

/// Hits, unknown and stale ones of all sessions, those that have ended among them: they end at their largest number.
#[derive(Debug, Default)]
pub(crate) struct AllTold([AtomicU64; 3]);

impl OwnReads {
    /// The client tells. What was added since: only that, however often it says it, and never less than before.
    pub(crate) fn tell(&self, told: &ToldReads, now: Duration) -> ToldReads {
        let now_ns = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
        let elapsed = now_ns.saturating_sub(self.told_at_ns.swap(now_ns, Ordering::Relaxed));
        let before = self.told();
        let new = told.since(&before).fields().map(|new| new.min(TOLD_MOST));
        for (at, new) in new.into_iter().enumerate() {
            self.told[at].store(before.fields()[at].saturating_add(new), Ordering::Relaxed);
            let rate = u128::from(new) * 1_000_000_000 / u128::from(elapsed.max(1));
            let rate = u64::try_from(rate).unwrap_or(u64::MAX);
            self.per_second[at].store(rate, Ordering::Relaxed);
        }
        ToldReads::of_fields(new)
    }

    /// It begins to count.
    pub(crate) fn begin(&self, now: Duration) {
        self.told_at_ns.store(u64::try_from(now.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// So far.
    pub(crate) fn told(&self) -> ToldReads {
        ToldReads::of_fields(array::from_fn(|at| self.told[at].load(Ordering::Relaxed)))
    }

    /// A second, as it was told last; nothing, where that was longer ago than clients leave it.
    pub(crate) fn per_second(&self, now: Duration, most: Duration) -> ToldReads {
        let told_at = Duration::from_nanos(self.told_at_ns.load(Ordering::Relaxed));
        if now.saturating_sub(told_at) > most {
            return ToldReads::default();
        }
        ToldReads::of_fields(array::from_fn(|at| self.per_second[at].load(Ordering::Relaxed)))
    }
}

impl AllTold {
    /// Some more.
    pub(crate) fn add(&self, new: &ToldReads) {
        for (sum, new) in self.0.iter().zip(new.fields()) {
            let more = |sum: u64| Some(sum.saturating_add(new));
            let _ = sum.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        }
    }

    /// All of them.
    pub(crate) fn sum(&self) -> ToldReads {
        ToldReads::of_fields(array::from_fn(|at| self.0[at].load(Ordering::Relaxed)))
    }
}

/// Rates of several sessions together.
pub(crate) fn together(all: impl Iterator<Item = ToldReads>) -> ToldReads {
    let sum = AllTold::default();
    all.for_each(|one| sum.add(&one));
    sum.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(hits: u64) -> ToldReads {
        ToldReads { hits, unknown: hits / 2, stale: 0 }
    }

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn only_what_is_new_is_added_however_often_it_is_told() {
        let own = OwnReads::default();
        own.begin(seconds(10));
        assert_eq!(own.tell(&told(100), seconds(12)), told(100));
        assert_eq!(own.per_second(seconds(12), seconds(15)), told(50));
        assert_eq!(own.tell(&told(100), seconds(13)), told(0));
        assert_eq!(own.tell(&told(40), seconds(14)), told(0), "it never goes back");
        assert_eq!(own.per_second(seconds(14), seconds(15)), told(0));
        assert_eq!((own.tell(&told(160), seconds(16)), own.told()), (told(60), told(160)));
        assert_eq!(own.per_second(seconds(31), seconds(15)), told(30));
        assert_eq!(own.per_second(seconds(32), seconds(15)), told(0), "nobody told for long");
    }

    #[test]
    fn what_a_liar_tells_ends_at_a_largest_number() {
        let (own, all) = (OwnReads::default(), AllTold::default());
        let lie = ToldReads::of_fields([u64::MAX; 3]);
        // Also at one moment, and at an earlier one.
        for now in [5, 5, 3] {
            all.add(&own.tell(&lie, seconds(now)));
        }
        let most = ToldReads::of_fields([3 * TOLD_MOST; 3]);
        assert_eq!((own.told(), all.sum()), (most, most));
        all.add(&lie);
        all.add(&lie);
        assert_eq!(all.sum(), lie);
        for _ in 0..100 {
            own.tell(&lie, seconds(6));
        }
        own.told.iter().for_each(|told| told.store(u64::MAX - 1, Ordering::Relaxed));
        assert_eq!(own.tell(&lie, Duration::MAX), ToldReads::of_fields([1; 3]));
        assert_eq!((own.told(), own.tell(&lie, Duration::MAX)), (lie, ToldReads::default()));
        assert_eq!(together([lie, lie].into_iter()), lie);
    }
}
