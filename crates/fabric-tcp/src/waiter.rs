//! Sleeping for an engine.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use dafs_fabric::Waiter;

use crate::sys::{self, EpollEvents, Watch};

/// The token of the eventfd.
pub const WAKE: u64 = u64::MAX;
/// Handshakes have deadlines that no descriptor tells of.
const HANDSHAKE_LOOK: Duration = Duration::from_millis(50);

/// An engine's epoll object, with an eventfd in it.
pub struct EpollWaiter {
    epoll: OwnedFd,
    eventfd: OwnedFd,
    /// Somebody called `wake` and no `wait` has ended since.
    woken: AtomicBool,
    sleepers: AtomicU32,
    /// Connections are being made: look at them from time to time.
    handshakes: AtomicBool,
    system_calls: AtomicU64,
}

impl EpollWaiter {
    /// Watches nothing yet.
    pub fn new() -> io::Result<Arc<EpollWaiter>> {
        let (epoll, eventfd) = (sys::epoll()?, sys::eventfd()?);
        let watch = Watch::Add(sys::EPOLLIN);
        sys::epoll_watch(epoll.as_raw_fd(), eventfd.as_raw_fd(), WAKE, watch)?;
        Ok(Arc::new(EpollWaiter {
            epoll,
            eventfd,
            woken: AtomicBool::new(false),
            sleepers: AtomicU32::new(0),
            handshakes: AtomicBool::new(false),
            system_calls: AtomicU64::new(0),
        }))
    }

    /// Watches `fd`.
    pub fn watch(&self, fd: i32, token: u64, watch: Watch) -> io::Result<()> {
        self.called();
        sys::epoll_watch(self.epoll.as_raw_fd(), fd, token, watch)
    }

    /// What is ready now.
    pub fn ready(&self, into: &mut EpollEvents) {
        self.called();
        sys::epoll_wait(self.epoll.as_raw_fd(), into, usize::MAX, Some(Duration::ZERO));
    }

    /// Says whether connections are being made.
    pub fn set_handshakes(&self, some: bool) {
        self.handshakes.store(some, Ordering::Relaxed);
    }

    /// System calls made.
    pub fn system_calls(&self) -> u64 {
        self.system_calls.load(Ordering::Relaxed)
    }

    fn called(&self) {
        self.system_calls.fetch_add(1, Ordering::Relaxed);
    }

    fn sleep(&self, timeout: Option<Duration>) {
        let timeout = if self.handshakes.load(Ordering::Relaxed) {
            Some(timeout.map_or(HANDSHAKE_LOOK, |timeout| timeout.min(HANDSHAKE_LOOK)))
        } else {
            timeout
        };
        let mut events = EpollEvents::new();
        self.called();
        sys::epoll_wait(self.epoll.as_raw_fd(), &mut events, 1, timeout);
        if events.tokens().any(|token| token == WAKE) {
            self.called();
            sys::counter_clear(self.eventfd.as_raw_fd());
        }
    }
}

impl Waiter for EpollWaiter {
    fn wait(&self, timeout: Option<Duration>) {
        // Either this sees `woken`, or `wake` sees the sleeper and uses the eventfd.
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        if !self.woken.swap(false, Ordering::SeqCst) {
            self.sleep(timeout);
            self.woken.store(false, Ordering::SeqCst);
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }

    fn wake(&self) {
        let first = !self.woken.swap(true, Ordering::SeqCst);
        if first && self.sleepers.load(Ordering::SeqCst) > 0 {
            self.called();
            sys::eventfd_set(self.eventfd.as_raw_fd());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn a_wake_before_the_wait_ends_it() {
        let waiter = EpollWaiter::new().expect("waiter");
        waiter.wake();
        waiter.wake();
        waiter.wait(None);
        let start = Instant::now();
        waiter.wait(Some(Duration::from_millis(5)));
        assert!(start.elapsed() >= Duration::from_millis(5));
    }

    #[test]
    fn a_wake_ends_a_wait_of_another_thread() {
        let waiter = EpollWaiter::new().expect("waiter");
        for _ in 0..100 {
            let sleeper = waiter.clone();
            let thread = std::thread::spawn(move || sleeper.wait(None));
            waiter.wake();
            thread.join().expect("sleeper");
        }
    }
}
