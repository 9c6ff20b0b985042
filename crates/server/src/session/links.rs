//! The connections of a session.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use dafs_message::ConnId;
use dafs_protocol::SizeClass;

/// A connection of a session.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Link {
    pub connection: ConnId,
    pub class: SizeClass,
    /// When it was bound.
    pub since: Duration,
    /// Something came over it since.
    pub heard: bool,
}

/// Those that work, and those that broke and are not quiescent yet.
#[derive(Default)]
pub(crate) struct Links {
    working: RefCell<Vec<Link>>,
    draining: RefCell<Vec<ConnId>>,
    /// The last attempt of the client for each class.
    attempts: Cell<[u64; 3]>,
}

impl Links {
    /// One more works.
    pub(crate) fn add(&self, link: Link) {
        self.working.borrow_mut().push(link);
    }

    /// The client comes by a connection of this class. False: a later attempt of it has come before, so
    /// this one was given up.
    pub(crate) fn attempted(&self, class: SizeClass, attempt: u64) -> bool {
        let mut attempts = self.attempts.get();
        let last = &mut attempts[class as usize];
        let is_later = attempt > *last;
        *last = attempt.max(*last);
        self.attempts.set(attempts);
        is_later
    }

    /// Those that work.
    pub(crate) fn all(&self) -> Vec<Link> {
        self.working.borrow().clone()
    }

    /// Those that work, which it has no more.
    pub(crate) fn take_all(&self) -> Vec<Link> {
        self.working.take()
    }

    /// It is not used any more, but may still touch the session's memory.
    pub(crate) fn breaks(&self, connection: ConnId) {
        self.working.borrow_mut().retain(|link| link.connection != connection);
        self.draining.borrow_mut().push(connection);
    }

    /// It touches nothing any more.
    pub(crate) fn quiescent(&self, connection: ConnId) {
        self.draining.borrow_mut().retain(|other| *other != connection);
    }

    /// Those that broke touch nothing any more.
    pub(crate) fn are_drained(&self) -> bool {
        self.draining.borrow().is_empty()
    }

    /// Something came over it.
    pub(crate) fn heard(&self, connection: ConnId) {
        for link in self.working.borrow_mut().iter_mut() {
            link.heard |= link.connection == connection;
        }
    }

    /// Those by which callbacks may go: for small requests first. On one that is new the answer to its
    /// bind may still be on its way, so long as `wait`, and a callback must not overtake it.
    pub(crate) fn for_callbacks(&self, now: Duration, wait: Duration) -> Vec<ConnId> {
        let links = self.working.borrow();
        let settled = |link: &&Link| link.heard || now.saturating_sub(link.since) >= wait;
        let mut list: Vec<_> = links.iter().filter(settled).collect();
        list.sort_by_key(|link| link.class == SizeClass::Bulk);
        list.into_iter().map(|link| link.connection).collect()
    }
}
