//! Sleeping: in epoll, or by a word in the ring.
//!
//! To be woken by a word costs less than half of what epoll costs, but nothing else wakes then: no descriptor of
//! this engine, and no other engine. So an engine sleeps so only where a single peer was lively a moment ago, for
//! a moment, and in epoll after that; and now and then it has others looked at in between.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dafs_fabric::Waiter;
use dafs_fabric::epoll::EpollWaiter;

use crate::bell::Sleep;

/// The longest sleep by a word: what comes by descriptors waits for its end. Timers that end so late are
/// seldom the next of a processor, so they cost nothing in a virtual machine.
const LONGEST: Duration = Duration::from_millis(20);
/// After so many, other engines ask for what has come to them.
const TELL_AFTER: u64 = 32;

/// What an engine sleeps in.
pub struct ShmWaiter {
    pub epoll: Arc<EpollWaiter>,
    /// How the sleep is that was announced and has not ended.
    mode: AtomicU8,
    /// By which it is, or the last one was.
    sleep: Mutex<Option<Sleep>>,
    was_by_word: AtomicBool,
    /// By words.
    sleeps: AtomicU64,
}

const AWAKE: u8 = 0;
const IN_EPOLL: u8 = 1;
const BY_WORD: u8 = 2;

impl ShmWaiter {
    /// Watches nothing yet.
    ///
    /// # Errors
    /// The system's.
    pub fn new() -> io::Result<Arc<ShmWaiter>> {
        Ok(Arc::new(ShmWaiter {
            epoll: EpollWaiter::new()?,
            mode: AtomicU8::new(AWAKE),
            sleep: Mutex::default(),
            was_by_word: AtomicBool::new(false),
            sleeps: AtomicU64::new(0),
        }))
    }

    /// Somebody sleeps, or is about to: by a word? Who announces a sleep meanwhile announces the same.
    pub fn sleeps_by_word(&self) -> Option<bool> {
        match self.mode.load(Ordering::Acquire) {
            AWAKE => None,
            mode => Some(mode == BY_WORD),
        }
    }

    /// A sleep is announced to peers: by a word, or in epoll.
    pub fn announce(&self, sleep: Option<Sleep>) {
        let mode = if sleep.is_some() { BY_WORD } else { IN_EPOLL };
        if sleep.is_some() {
            *self.sleep() = sleep;
        }
        self.mode.store(mode, Ordering::SeqCst);
    }

    /// System calls made.
    pub fn system_calls(&self) -> u64 {
        self.epoll.system_calls() + self.sleeps.load(Ordering::Relaxed)
    }

    fn sleep(&self) -> MutexGuard<'_, Option<Sleep>> {
        self.sleep.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sleep_by(&self, sleep: &Sleep, timeout: Option<Duration>) {
        // Who wakes from now on changes the word, which was looked at before.
        if !self.epoll.take_wake() {
            self.sleeps.fetch_add(1, Ordering::Relaxed);
            sleep.wait(Some(timeout.map_or(LONGEST, |timeout| timeout.min(LONGEST))));
            self.epoll.take_wake();
        }
    }
}

impl Waiter for ShmWaiter {
    fn wait(&self, timeout: Option<Duration>) {
        let by_word = self.sleeps_by_word() == Some(true);
        let sleep = if by_word { self.sleep().clone() } else { None };
        self.was_by_word.store(sleep.is_some(), Ordering::Relaxed);
        match sleep {
            Some(sleep) => self.sleep_by(&sleep, timeout),
            None => self.epoll.wait(timeout),
        }
        self.mode.store(AWAKE, Ordering::Release);
    }

    fn wake(&self) {
        self.epoll.wake();
        if self.mode.load(Ordering::SeqCst) == BY_WORD
            && let Some(sleep) = &*self.sleep()
        {
            sleep.wake();
        }
    }

    fn watch(&self, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        self.epoll.watch(descriptor)
    }

    fn watch_engine(&self, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        self.epoll.watch_engine(descriptor)
    }

    fn engine_told(&self) -> bool {
        match self.was_by_word.load(Ordering::Relaxed) {
            true => self.sleeps.load(Ordering::Relaxed).is_multiple_of(TELL_AFTER),
            false => self.epoll.engine_told(),
        }
    }

    fn nothing_came(&self) {
        self.epoll.nothing_came();
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.epoll.descriptor()
    }

    fn look_within(&self) -> Option<Duration> {
        self.epoll.look_within()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bell::Bell;
    use crate::ring::{MEMORY_BYTES, Memory};
    use crate::wire::Side;
    use dafs_fabric::Arena;

    fn bell() -> Bell {
        let memory = Memory::new(&Arena::shared(MEMORY_BYTES).expect("memory"));
        Bell::new(&memory, Side::Client)
    }

    #[test]
    fn a_wake_ends_a_sleep_by_a_word() {
        let (waiter, mut bell) = (ShmWaiter::new().expect("waiter"), bell());
        for _ in 0..200 {
            waiter.announce(Some(bell.sleep_by_word()));
            let sleeper = waiter.clone();
            let thread = std::thread::spawn(move || {
                sleeper.wait(None);
                // As an engine does that finds nothing.
                sleeper.wait(None);
            });
            // One wake may come before the first sleep has begun, while it lasts, or in the second.
            while !thread.is_finished() {
                waiter.wake();
                std::thread::yield_now();
            }
            thread.join().expect("sleeper");
            assert_eq!(waiter.sleeps_by_word(), None);
        }
    }

    #[test]
    fn a_wake_before_the_sleep_ends_it() {
        let (waiter, mut bell) = (ShmWaiter::new().expect("waiter"), bell());
        waiter.wake();
        waiter.announce(Some(bell.sleep_by_word()));
        waiter.wait(None);
        assert_eq!(waiter.sleeps.load(Ordering::Relaxed), 0, "it did not sleep");
        waiter.announce(Some(bell.sleep_by_word()));
        waiter.wake();
        waiter.wait(None);
        assert_eq!(waiter.sleeps.load(Ordering::Relaxed), 0, "nor now");
    }

    #[test]
    fn others_are_told_to_ask_now_and_then() {
        let (waiter, mut bell) = (ShmWaiter::new().expect("waiter"), bell());
        let mut told = 0;
        for _ in 0..2 * TELL_AFTER {
            let sleep = bell.sleep_by_word();
            waiter.announce(Some(sleep.clone()));
            sleep.wake();
            waiter.wait(None);
            told += u32::from(waiter.engine_told());
        }
        assert_eq!(told, 2);
    }
}
