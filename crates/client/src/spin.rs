//! Spin or sleep: what a thread does while nothing is ready.

use std::time::Duration;

use dafs_protocol::WaitMode;

/// For how long a leader spins before it sleeps: longer after spinning was worth it.
pub(crate) struct SpinBudget {
    mode: WaitMode,
    budget: Duration,
    idle_count: u32,
}

impl SpinBudget {
    const MAX: Duration = Duration::from_micros(50);
    const MIN: Duration = Duration::from_micros(4);
    /// One of so many waits tries whether spinning is worth it again.
    const PROBE_INTERVAL: u32 = 32;

    pub(crate) fn new(mode: WaitMode) -> SpinBudget {
        let alone = std::thread::available_parallelism().is_ok_and(|cpus| cpus.get() == 1);
        // With one CPU the server cannot answer while we spin.
        let mode = if alone && mode == WaitMode::Adaptive { WaitMode::Sleeping } else { mode };
        SpinBudget { mode, budget: Self::MAX, idle_count: 0 }
    }

    pub(crate) fn begin(&mut self) {
        self.idle_count = self.idle_count.wrapping_add(1);
        if self.budget < Self::MIN && self.idle_count.is_multiple_of(Self::PROBE_INTERVAL) {
            self.budget = Self::MAX / 2;
        }
    }

    pub(crate) fn budget(&self) -> Duration {
        match self.mode {
            WaitMode::Polled => Duration::MAX,
            WaitMode::Sleeping => Duration::ZERO,
            WaitMode::Adaptive if self.budget < Self::MIN => Duration::ZERO,
            WaitMode::Adaptive => self.budget,
        }
    }

    pub(crate) fn sleeps_at_once(&self) -> bool {
        self.mode == WaitMode::Sleeping
    }

    pub(crate) fn succeeded(&mut self) {
        self.budget = (self.budget * 2).clamp(Self::MIN, Self::MAX);
    }

    pub(crate) fn failed(&mut self) {
        self.budget /= 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spinning_stops_when_it_is_not_worth_it_and_is_tried_again() {
        let mut spin =
            SpinBudget { mode: WaitMode::Adaptive, budget: SpinBudget::MAX, idle_count: 0 };
        for _ in 0..5 {
            spin.begin();
            spin.failed();
        }
        assert_eq!(spin.budget(), Duration::ZERO);
        let mut waits = 0;
        while spin.budget().is_zero() {
            spin.begin();
            waits += 1;
        }
        assert!(waits <= SpinBudget::PROBE_INTERVAL);
        spin.succeeded();
        assert_eq!(spin.budget(), SpinBudget::MAX);
    }

    #[test]
    fn modes_are_kept() {
        let spin = |mode| SpinBudget { mode, budget: SpinBudget::MAX, idle_count: 0 }.budget();
        assert_eq!(spin(WaitMode::Sleeping), Duration::ZERO);
        assert_eq!(spin(WaitMode::Polled), Duration::MAX);
    }
}
