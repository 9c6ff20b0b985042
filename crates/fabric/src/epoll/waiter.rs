//! Sleeping for an engine.
//!
//! A sleep with a time limit programs a timer of the processor and stops it again, which in a
//! virtual machine costs microseconds each time. So one timer is left running over many sleeps:
//! it ends the sleep that it meets, early for that one, and is set again by the next.
//!
//! What ended a sleep is what the engine would ask for next, so that it is told without a call.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::events::{EpollEvents, READY_MAX};
use super::sys::{self, Watch};
use crate::engine::Waiter;

/// The token of the eventfd.
pub const WAKE: u64 = u64::MAX;
/// The token of the timer.
const TIMER: u64 = u64::MAX - 1;
/// The token of descriptors that are not the engine's.
const OTHER: u64 = u64::MAX - 2;
/// The token of other engines.
const ENGINE: u64 = u64::MAX - 3;
/// Shorter sleeps have a time limit of their own.
const TIMER_LEAST: Duration = Duration::from_millis(10);
/// Handshakes have deadlines that no descriptor tells of.
const HANDSHAKE_LOOK: Duration = Duration::from_millis(50);

/// An engine's epoll object, with an eventfd in it.
pub struct EpollWaiter {
    epoll: OwnedFd,
    eventfd: OwnedFd,
    timer: OwnedFd,
    start: Instant,
    /// When the timer ends a sleep, in nanoseconds from `start`; 0: never.
    timer_at: AtomicU64,
    /// Somebody called `wake` and no `wait` has ended since.
    woken: AtomicBool,
    sleepers: AtomicU32,
    /// What the last sleep found, until the engine is told of it.
    found: Mutex<EpollEvents>,
    has_found: AtomicBool,
    /// Another engine may have ended the last sleep.
    engine_told: AtomicBool,
    /// Connections are being made: look at them from time to time.
    handshakes: AtomicBool,
    system_calls: AtomicU64,
}

impl EpollWaiter {
    /// Watches nothing yet.
    pub fn new() -> io::Result<Arc<EpollWaiter>> {
        let (epoll, eventfd) = (sys::epoll()?, sys::eventfd()?);
        let watch = Watch::Add(libc::EPOLLIN);
        sys::epoll_watch(epoll.as_raw_fd(), eventfd.as_raw_fd(), WAKE, watch)?;
        let timer = sys::timerfd()?;
        let watch = Watch::Add(libc::EPOLLIN);
        sys::epoll_watch(epoll.as_raw_fd(), timer.as_raw_fd(), TIMER, watch)?;
        Ok(Arc::new(EpollWaiter {
            epoll,
            eventfd,
            timer,
            start: Instant::now(),
            timer_at: AtomicU64::new(0),
            woken: AtomicBool::new(false),
            sleepers: AtomicU32::new(0),
            found: Mutex::default(),
            has_found: AtomicBool::new(false),
            engine_told: AtomicBool::new(true),
            handshakes: AtomicBool::new(false),
            system_calls: AtomicU64::new(0),
        }))
    }

    /// Watches `fd`, one of the engine's.
    pub fn watch_own(&self, fd: i32, token: u64, watch: Watch) -> io::Result<()> {
        self.called();
        sys::epoll_watch(self.epoll.as_raw_fd(), fd, token, watch)
    }

    /// What is ready now, or was when the sleep ended since this was last asked: what came after that is
    /// told of the next time.
    pub fn ready(&self, into: &mut EpollEvents) {
        if self.has_found.load(Ordering::Acquire) {
            into.copy_from(&self.found());
            self.has_found.store(false, Ordering::Relaxed);
            return;
        }
        self.called();
        sys::epoll_wait(self.epoll.as_raw_fd(), into, usize::MAX, Some(Duration::ZERO));
    }

    /// Says whether connections are being made.
    pub fn set_handshakes(&self, some: bool) {
        self.handshakes.store(some, Ordering::Relaxed);
    }

    /// Whether somebody called `wake` and no sleep has ended since: for one who sleeps elsewhere, whom that has ended.
    pub fn take_wake(&self) -> bool {
        self.woken.swap(false, Ordering::SeqCst)
    }

    /// System calls made.
    pub fn system_calls(&self) -> u64 {
        self.system_calls.load(Ordering::Relaxed)
    }

    fn found(&self) -> MutexGuard<'_, EpollEvents> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn keep_found(&self, events: &EpollEvents) {
        self.found().copy_from(events);
        self.has_found.store(true, Ordering::Release);
    }

    fn called(&self) {
        self.system_calls.fetch_add(1, Ordering::Relaxed);
    }

    /// The time limit that is left for the sleep itself: none where the timer will end it.
    fn set_timer(&self, timeout: Duration) -> Option<Duration> {
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let end = nanos(self.start.elapsed().saturating_add(timeout));
        let set = self.timer_at.load(Ordering::Relaxed);
        if set != 0 && set <= end {
            return None;
        }
        self.called();
        if sys::timerfd_once(self.timer.as_raw_fd(), timeout).is_err() {
            return Some(timeout);
        }
        self.timer_at.store(end, Ordering::Relaxed);
        None
    }

    fn sleep(&self, timeout: Option<Duration>, alone: bool) {
        let timeout = if self.handshakes.load(Ordering::Relaxed) {
            Some(timeout.map_or(HANDSHAKE_LOOK, |timeout| timeout.min(HANDSHAKE_LOOK)))
        } else {
            timeout
        };
        // Who is not alone must not take the timer's end from whom it is for.
        let by_timer = alone && timeout.is_some_and(|timeout| timeout >= TIMER_LEAST);
        let timeout =
            if by_timer { timeout.and_then(|timeout| self.set_timer(timeout)) } else { timeout };
        let mut events = EpollEvents::new();
        self.called();
        // Several who sleep are to share what there is.
        let max = if alone { READY_MAX } else { 1 };
        sys::epoll_wait(self.epoll.as_raw_fd(), &mut events, max, timeout);
        if alone && events.tokens().any(|token| token == TIMER) {
            self.called();
            sys::counter_clear(self.timer.as_raw_fd());
            self.timer_at.store(0, Ordering::Relaxed);
        }
        if events.tokens().any(|token| token == WAKE) {
            self.called();
            sys::counter_clear(self.eventfd.as_raw_fd());
        }
        let told = !alone || events.tokens().any(|token| token == ENGINE);
        self.engine_told.store(told, Ordering::Relaxed);
        if alone {
            self.keep_found(&events);
        }
    }
}

impl Waiter for EpollWaiter {
    fn wait(&self, timeout: Option<Duration>) {
        // Either this sees `woken`, or `wake` sees the sleeper and uses the eventfd.
        let alone = self.sleepers.fetch_add(1, Ordering::SeqCst) == 0;
        if !self.woken.swap(false, Ordering::SeqCst) {
            self.sleep(timeout, alone);
            self.woken.store(false, Ordering::SeqCst);
        } else {
            self.engine_told.store(true, Ordering::Relaxed);
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

    fn watch(&self, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        self.called();
        let watch = Watch::Add(libc::EPOLLIN | libc::EPOLLET);
        sys::epoll_watch(self.epoll.as_raw_fd(), descriptor.as_raw_fd(), OTHER, watch)
    }

    fn watch_engine(&self, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        self.called();
        let watch = Watch::Add(libc::EPOLLIN);
        sys::epoll_watch(self.epoll.as_raw_fd(), descriptor.as_raw_fd(), ENGINE, watch)
    }

    fn engine_told(&self) -> bool {
        self.engine_told.load(Ordering::Relaxed)
    }

    fn nothing_came(&self) {
        self.keep_found(&EpollEvents::new());
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.epoll.as_fd())
    }

    fn look_within(&self) -> Option<Duration> {
        self.handshakes.load(Ordering::Relaxed).then_some(HANDSHAKE_LOOK)
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
    fn one_timer_serves_many_sleeps() {
        let waiter = EpollWaiter::new().expect("waiter");
        let start = Instant::now();
        waiter.wait(Some(Duration::from_millis(30)));
        assert!(start.elapsed() >= Duration::from_millis(30));
        // Each sleep is woken; the timer of the first is still running at the last.
        let sleeper = waiter.clone();
        let thread = std::thread::spawn(move || {
            let timer_at = |_| {
                sleeper.wait(Some(Duration::from_secs(60)));
                sleeper.timer_at.load(Ordering::Relaxed)
            };
            (0..100).map(timer_at).collect::<Vec<_>>()
        });
        while !thread.is_finished() {
            waiter.wake();
            std::thread::yield_now();
        }
        // Waits that were woken before they slept set none.
        let mut set = thread.join().expect("sleeper");
        set.retain(|at| *at != 0);
        set.dedup();
        assert!(set.len() <= 1, "set once: {set:?}");
        // One that must end sooner is not kept waiting by it.
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(30) {
            // A wake that came after the last sleep ends one of these.
            waiter.wait(Some(Duration::from_millis(30)));
        }
        assert!(start.elapsed() < Duration::from_secs(10));
    }

    #[test]
    fn a_readable_descriptor_ends_a_wait() {
        let waiter = EpollWaiter::new().expect("waiter");
        let other = sys::eventfd().expect("eventfd");
        waiter.watch(other.as_fd()).expect("watched");
        sys::eventfd_set(other.as_raw_fd());
        waiter.wait(None);
        // Nobody reads it: another change is needed.
        let start = Instant::now();
        waiter.wait(Some(Duration::from_millis(5)));
        assert!(start.elapsed() >= Duration::from_millis(5));
        sys::eventfd_set(other.as_raw_fd());
        waiter.wait(None);
    }

    #[test]
    fn what_ended_a_sleep_is_told_without_a_call() {
        let waiter = EpollWaiter::new().expect("waiter");
        let own = sys::eventfd().expect("eventfd");
        let watch = Watch::Add(libc::EPOLLIN);
        waiter.watch_own(own.as_raw_fd(), 7, watch).expect("watched");
        sys::eventfd_set(own.as_raw_fd());
        waiter.wait(None);
        let (mut events, calls) = (EpollEvents::new(), waiter.system_calls());
        waiter.ready(&mut events);
        assert_eq!(events.tokens().collect::<Vec<_>>(), [7]);
        assert_eq!(waiter.system_calls(), calls, "the sleep has asked");
        // It is told of once so; then the system is asked.
        sys::counter_clear(own.as_raw_fd());
        waiter.ready(&mut events);
        assert!(events.is_empty());
        assert_eq!(waiter.system_calls(), calls + 1);
    }

    #[test]
    fn an_engine_of_which_a_joined_sleep_was_not_told_is_not_asked() {
        let [first, other] = [0; 2].map(|_| EpollWaiter::new().expect("waiter"));
        let joined = crate::join_waiters(vec![first.clone(), other.clone()]);
        let [own, its] = [0; 2].map(|_| sys::eventfd().expect("eventfd"));
        for (waiter, fd) in [(&first, &own), (&other, &its)] {
            let watch = Watch::Add(libc::EPOLLIN);
            waiter.watch_own(fd.as_raw_fd(), 7, watch).expect("watched");
        }
        let mut events = EpollEvents::new();
        let mut told = |waiter: &EpollWaiter| {
            let calls = waiter.system_calls();
            waiter.ready(&mut events);
            (events.len(), waiter.system_calls() - calls)
        };
        sys::eventfd_set(own.as_raw_fd());
        joined.wait(None);
        assert_eq!((told(&first), told(&other)), ((1, 0), (0, 0)));
        sys::counter_clear(own.as_raw_fd());
        sys::eventfd_set(its.as_raw_fd());
        joined.wait(None);
        assert_eq!(told(&other), (1, 1), "it asks for itself");
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
