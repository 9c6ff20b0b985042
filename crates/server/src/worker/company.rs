//! Whether requests, and sessions, come side by side: how far the store may block the thread.

use std::time::Duration;

use dafs_protocol::SessionId;
use dafs_store::Blocking;

/// How long a worker remembers that requests came side by side.
const COMPANY: Duration = Duration::from_millis(50);

/// What a worker remembers of it.
#[derive(Debug, Default)]
pub(super) struct Company {
    /// Until then several requests are under way at a time.
    crowded_until: Duration,
    /// Until then several sessions are.
    mixed_until: Duration,
    last_session: SessionId,
}

impl Company {
    /// A request of a session begins, `alone` or beside others.
    pub(super) fn note(&mut self, session: SessionId, alone: bool, now: Duration) {
        if self.last_session != session {
            self.last_session = session;
            self.mixed_until = now + COMPANY;
        }
        if !alone {
            self.crowded_until = now + COMPANY;
        }
    }

    /// How far the store may block this thread, which spares the client two wake-ups: wholly
    /// for one request at a time of one session, since nobody waits meanwhile; for names while
    /// all requests are of one session; else not at all.
    pub(super) fn blocking(&self, alone: bool, now: Duration) -> Blocking {
        if now < self.mixed_until {
            Blocking::None
        } else if !alone || now < self.crowded_until {
            Blocking::Names
        } else {
            Blocking::All
        }
    }
}
