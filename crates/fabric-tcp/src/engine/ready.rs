//! What epoll told of, and how much of that was looked at.

use dafs_fabric::epoll::EpollEvents;
use dafs_fabric::epoll::EpollWaiter;

/// Sockets that epoll told of.
pub struct Ready {
    events: EpollEvents,
    /// Those before were looked at.
    from: usize,
}

impl Ready {
    /// It told of nothing.
    pub fn new() -> Ready {
        Ready { events: EpollEvents::new(), from: 0 }
    }

    /// Asks epoll, unless it told of some that were not looked at.
    pub fn ask(&mut self, waiter: &EpollWaiter) {
        if self.from == 0 {
            waiter.ready(&mut self.events);
        }
    }

    /// The next one to look at.
    pub fn front(&self) -> Option<u64> {
        self.events.token(self.from)
    }

    /// It is looked at.
    pub fn pop_front(&mut self) {
        self.from += 1;
    }

    /// All are looked at, or not wanted.
    pub fn clear(&mut self) {
        self.from = 0;
    }

    /// How many it told of.
    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// It may have more to tell.
    pub fn is_full(&self) -> bool {
        self.events.is_full()
    }
}
