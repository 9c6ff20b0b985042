//! The time of a worker, which stands still while the worker does not run.

use std::time::Duration;

use super::TIMER;

/// What is longer between two passes was a pause: the process or its machine stood still, or a
/// disk blocked the thread. Who was not heard meanwhile was perhaps not silent.
const PAUSE: Duration = Duration::from_secs(1);

/// Of two times: that of its caller, and its own, which leases and other limits are counted in.
#[derive(Debug, Default)]
pub(crate) struct Clock {
    caller: Option<Duration>,
    paused: Duration,
    /// By the caller's.
    next_timer: Duration,
}

impl Clock {
    /// A pass begins at this time of the caller: its own time, never less than before.
    #[inline]
    pub(super) fn pass(&mut self, caller: Duration) -> Duration {
        // In the same second, as mostly, there was no pause.
        if self.caller.is_none_or(|last| last.as_secs() != caller.as_secs()) {
            self.note_pause(caller);
        }
        self.caller = Some(caller);
        self.now()
    }

    #[cold]
    #[inline(never)]
    fn note_pause(&mut self, caller: Duration) {
        let since = caller.saturating_sub(self.caller.unwrap_or(caller));
        if since > PAUSE {
            tracing::info!(seconds = since.as_secs(), "the worker did not run");
            self.paused += since.saturating_sub(TIMER);
        }
    }

    /// Its own time, as of this pass.
    #[inline]
    pub(crate) fn now(&self) -> Duration {
        let caller = self.caller();
        if self.paused.is_zero() { caller } else { caller.saturating_sub(self.paused) }
    }

    /// Timers are due at this time of the caller.
    #[inline]
    pub(super) fn is_timer_due(&self, caller: Duration) -> bool {
        caller >= self.next_timer
    }

    /// They are looked at now, and due again after a while.
    pub(super) fn timers_begin(&mut self, caller: Duration) {
        self.next_timer = caller + TIMER;
    }

    /// When timers are due, by the caller's time.
    pub(super) fn next_timer(&self) -> Duration {
        self.next_timer
    }

    /// The caller's, as of this pass.
    #[inline]
    pub(super) fn caller(&self) -> Duration {
        self.caller.unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_no_time() {
        let seconds = Duration::from_secs_f64;
        let mut clock = Clock::default();
        assert_eq!(clock.pass(seconds(50.0)), seconds(50.0), "the first pass ends no pause");
        assert_eq!(clock.pass(seconds(51.0)), seconds(51.0));
        assert_eq!(clock.pass(seconds(91.0)), seconds(51.2));
        assert_eq!(clock.pass(seconds(91.5)), seconds(51.7));
        assert_eq!(clock.caller(), seconds(91.5));
    }
}
