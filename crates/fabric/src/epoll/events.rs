//! What epoll told of.

/// The most events of one [wait](super::epoll_wait).
pub const READY_MAX: usize = 64;

/// Events of one [wait](super::epoll_wait).
pub struct EpollEvents {
    /// Room for them.
    pub events: [libc::epoll_event; READY_MAX],
    /// So many are there.
    pub len: usize,
}

impl Default for EpollEvents {
    fn default() -> EpollEvents {
        EpollEvents::new()
    }
}

impl EpollEvents {
    /// None.
    pub fn new() -> EpollEvents {
        EpollEvents { events: [libc::epoll_event { events: 0, u64: 0 }; READY_MAX], len: 0 }
    }

    /// Becomes as another.
    pub fn copy_from(&mut self, other: &EpollEvents) {
        self.len = other.len;
        for (event, from) in self.events.iter_mut().zip(&other.events).take(other.len) {
            *event = *from;
        }
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.len
    }

    /// There are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// There may be more.
    pub fn is_full(&self) -> bool {
        self.len == READY_MAX
    }

    /// The token of one of them.
    pub fn token(&self, index: usize) -> Option<u64> {
        self.events.get(..self.len)?.get(index).map(|event| event.u64)
    }

    /// Their tokens.
    pub fn tokens(&self) -> impl Iterator<Item = u64> + '_ {
        self.events.iter().take(self.len).map(|event| event.u64)
    }
}
