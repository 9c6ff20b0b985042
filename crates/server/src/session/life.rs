//! Where a session is in its life.

use std::cell::Cell;
use std::time::Duration;

/// When its client was heard last, and whether it is served.
pub(crate) struct Life {
    last_seen: Cell<Duration>,
    /// Rounds of the engine when it was first found silent for longer than a lease.
    silent: Cell<Option<u64>>,
    /// The client's session before this one has not ended yet: nothing is answered.
    held_back: Cell<bool>,
    /// No new work: it is being destroyed.
    ended: Cell<bool>,
}

impl Life {
    /// It begins.
    pub(crate) fn new(now: Duration) -> Life {
        Life {
            last_seen: Cell::new(now),
            silent: Cell::new(None),
            held_back: Cell::new(false),
            ended: Cell::new(false),
        }
    }

    /// Its client was heard.
    pub(crate) fn seen(&self, now: Duration) {
        self.last_seen.set(now);
    }

    /// How long its client was not heard.
    pub(crate) fn unseen(&self, now: Duration) -> Duration {
        now.saturating_sub(self.last_seen.get())
    }

    /// It was silent for too long, or was not (`is_late`), after so many rounds: whether all that could
    /// have waited in a socket at the end of its lease was looked at since.
    pub(crate) fn is_expired(&self, is_late: bool, rounds: u64) -> bool {
        let since = if is_late { self.silent.get().or(Some(rounds)) } else { None };
        self.silent.set(since);
        since.is_some_and(|since| rounds >= since + 2)
    }

    /// Nothing is answered before the session that it replaces has ended.
    pub(crate) fn hold_back(&self) {
        self.held_back.set(true);
    }

    /// That has ended.
    pub(crate) fn let_go(&self) {
        self.held_back.set(false);
    }

    /// Nothing is answered now.
    pub(crate) fn is_held_back(&self) -> bool {
        self.held_back.get()
    }

    /// It is destroyed.
    pub(crate) fn end(&self) {
        self.ended.set(true);
    }

    /// It has ended, or is about to.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.get()
    }
}
