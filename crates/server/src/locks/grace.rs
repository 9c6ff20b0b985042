//! The grace period: after a restart, clients that had locks may reclaim them before others lock.

use std::collections::BTreeSet;
use std::time::Duration;

use dafs_protocol::ClientId;

/// A client, and the user that it proved to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Client {
    /// Chosen by it, secret.
    pub id: ClientId,
    /// Proven.
    pub uid: u32,
}

/// Whether the server waits for clients to reclaim, and for whom.
#[derive(Debug, Default)]
pub(crate) struct Grace {
    on: bool,
    /// Which clients had locks is not known: all may reclaim, and time alone ends it.
    anybody: bool,
    missing: BTreeSet<Client>,
    until: Option<Duration>,
}

impl Grace {
    /// After a server whose clients had locks; `None`: who had is not known.
    pub(crate) fn after(recorded: Option<&BTreeSet<Client>>) -> Grace {
        let anybody = recorded.is_none();
        let missing = recorded.cloned().unwrap_or_default();
        Grace { on: anybody || !missing.is_empty(), anybody, missing, until: None }
    }

    pub(crate) fn is_on(&self) -> bool {
        self.on
    }

    pub(crate) fn may_reclaim(&self, client: &Client) -> bool {
        self.on && (self.anybody || self.missing.contains(client))
    }

    /// A client has reclaimed what it wants to, or is no more. True: nobody is missing now.
    pub(crate) fn complete(&mut self, client: &Client) -> bool {
        self.missing.remove(client) && self.missing.is_empty() && self.on && !self.anybody
    }

    /// True once: it has lasted a lease. The first call begins it.
    pub(crate) fn is_due(&mut self, now: Duration, lease: Duration) -> bool {
        if !self.on || now < *self.until.get_or_insert(now.saturating_add(lease)) {
            return false;
        }
        self.until = Some(Duration::MAX);
        true
    }

    /// Those who have not come.
    pub(crate) fn missing(&self) -> Vec<Client> {
        self.missing.iter().copied().collect() // not payload: names of clients
    }

    /// True when it was on.
    pub(crate) fn end(&mut self) -> bool {
        self.missing.clear();
        std::mem::replace(&mut self.on, false)
    }
}
