//! How long calls took of late: whether a caller's thread does the next one itself.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How long calls took of late.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    average_ns: AtomicU64,
}

impl Pace {
    /// Longer than this, a caller's thread is not blocked.
    const LIMIT: Duration = Duration::from_micros(300);
    /// One call counts for at most this much: a single slow one is no rule.
    const SLOWEST: Duration = Duration::from_millis(20);

    /// True while calls are quick. After slow ones it asks to wait and forgets slowly, so that
    /// a device that became quick again is tried now and then.
    pub(crate) fn is_quick(&self) -> bool {
        let average = self.average_ns.load(Ordering::Relaxed);
        if Duration::from_nanos(average) < Self::LIMIT {
            return true;
        }
        self.average_ns.store(average - average / 64, Ordering::Relaxed);
        false
    }

    pub(crate) fn note(&self, took: Duration) {
        let took = u64::try_from(took.min(Self::SLOWEST).as_nanos()).unwrap_or(u64::MAX);
        let average = self.average_ns.load(Ordering::Relaxed);
        self.average_ns.store(average - average / 8 + took / 8, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_calls_stop_blocking_for_a_while() {
        let pace = Pace::default();
        assert!(pace.is_quick());
        pace.note(Duration::from_micros(100));
        assert!(pace.is_quick());
        for _ in 0..8 {
            pace.note(Duration::from_millis(10));
        }
        let refused = (0..10_000).take_while(|_| !pace.is_quick()).count();
        assert!((100..10_000).contains(&refused), "{refused}");
    }
}
