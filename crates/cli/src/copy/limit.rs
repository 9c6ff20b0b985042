//! `--bwlimit`: so many bytes a second, all threads together.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::interrupt;

/// What may be spent at once.
const BURST: Duration = Duration::from_millis(100);

/// Gives out time: whoever takes bytes waits until they are due.
#[derive(Debug)]
pub struct Limit {
    bytes_per_second: u64,
    /// When the next byte is due.
    due: Mutex<Instant>,
}

impl Limit {
    /// So many bytes a second, more than 0.
    pub fn new(bytes_per_second: u64) -> Limit {
        Limit { bytes_per_second: bytes_per_second.max(1), due: Mutex::new(Instant::now()) }
    }

    /// Waits until `bytes` more are allowed; not after an interrupt.
    pub fn take(&self, bytes: u64) {
        let wait = self.take_at(bytes, Instant::now());
        if !wait.is_zero() {
            interrupt::sleep(wait);
        }
    }

    /// How long whoever takes `bytes` at this time is to wait before it uses them.
    fn take_at(&self, bytes: u64, now: Instant) -> Duration {
        let mut due = self.due.lock().unwrap_or_else(PoisonError::into_inner);
        let start = (*due).max(now.checked_sub(BURST).unwrap_or(now));
        let share = Duration::from_secs_f64(bytes as f64 / self.bytes_per_second as f64);
        *due = start + share.min(Duration::from_secs(86_400));
        start.saturating_duration_since(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_due_at_their_rate() {
        let limit = Limit::new(1000);
        let start = Instant::now() + Duration::from_secs(10);
        assert_eq!(limit.take_at(500, start), Duration::ZERO);
        let second = limit.take_at(500, start);
        assert_eq!(second, Duration::from_millis(400));
        assert_eq!(limit.take_at(1, start), Duration::from_millis(900));
        // What was not used for a long time is not saved up.
        assert_eq!(limit.take_at(10_000, start + Duration::from_secs(60)), Duration::ZERO);
        let waits = limit.take_at(1, start + Duration::from_secs(60));
        assert_eq!(waits, Duration::from_millis(9900));
    }
}
