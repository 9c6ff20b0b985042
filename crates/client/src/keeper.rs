//! What wakes and ends the keeper: the thread that drives a session when no caller does.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Wakes the keeper, or ends it.
#[derive(Default)]
pub(crate) struct KeeperSignal {
    state: Mutex<KeeperState>,
    changed: Condvar,
}

#[derive(Default)]
struct KeeperState {
    poked: bool,
    stopped: bool,
}

impl KeeperSignal {
    pub(crate) fn poke(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if !state.poked {
            state.poked = true;
            self.changed.notify_one();
        }
    }

    pub(crate) fn stop(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).stopped = true;
        self.changed.notify_one();
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).stopped
    }

    /// Until poked or `timeout`; false: stopped.
    pub(crate) fn wait(&self, timeout: Duration) -> bool {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let idle = |state: &mut KeeperState| !state.poked && !state.stopped;
        let (mut state, _) = self
            .changed
            .wait_timeout_while(state, timeout, idle)
            .unwrap_or_else(PoisonError::into_inner);
        state.poked = false;
        !state.stopped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_poke_before_the_wait_is_not_lost() {
        let signal = KeeperSignal::default();
        signal.poke();
        assert!(signal.wait(Duration::MAX));
        signal.stop();
        assert!(!signal.wait(Duration::MAX));
    }
}
