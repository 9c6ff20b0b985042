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
    /// Until then another change of the session is one of many: one alone is an end and a beginning.
    changed_until: Duration,
}

impl Company {
    /// A request of a session begins, `alone` or beside others.
    pub(super) fn note(&mut self, session: SessionId, alone: bool, now: Duration) {
        if self.last_session != session {
            self.last_session = session;
            if now < self.changed_until {
                self.mixed_until = now + COMPANY;
            }
            self.changed_until = now + COMPANY;
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

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    #[test]
    fn sessions_that_take_turns_block_nobody_one_after_another_do() {
        let mut company = Company::default();
        company.note(SessionId([1; 16]), true, ms(1000));
        company.note(SessionId([1; 16]), true, ms(1001));
        assert_eq!(company.blocking(true, ms(1001)), Blocking::All);
        // The first has ended, as far as anybody knows.
        company.note(SessionId([2; 16]), true, ms(1100));
        assert_eq!(company.blocking(true, ms(1100)), Blocking::All);
        company.note(SessionId([1; 16]), true, ms(1120));
        assert_eq!(company.blocking(true, ms(1120)), Blocking::None);
        company.note(SessionId([1; 16]), true, ms(1140));
        assert_eq!(company.blocking(true, ms(1140)), Blocking::None);
        assert_eq!(company.blocking(true, ms(1171)), Blocking::All, "the other one came once");
        company.note(SessionId([1; 16]), false, ms(1171));
        assert_eq!(company.blocking(true, ms(1171)), Blocking::Names);
    }
}
