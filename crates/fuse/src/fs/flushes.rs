//! The flushes of an open file: one at a time. Who comes while one is under way waits for it, and
//! is told if it fails: no close returns before what it is to make safe is.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dafs_client::{FlushAhead, Interrupt};

use super::error::Errno;

/// How long a wait does not look whether it was interrupted.
const LOOK: Duration = Duration::from_millis(20);

/// A flush that was begun without anybody who waits for it.
pub(super) trait Ahead {
    /// Waits for its end; what it failed with. `None`: interrupted.
    fn wait(&mut self) -> Option<Result<(), Errno>>;

    /// It has ended.
    fn is_over(&self) -> bool;
}

impl Ahead for FlushAhead {
    fn wait(&mut self) -> Option<Result<(), Errno>> {
        self.wait_for_end().map(|outcome| outcome.map_err(Errno::from))
    }

    fn is_over(&self) -> bool {
        FlushAhead::is_over(self)
    }
}

/// See the module.
pub(super) struct Flushes<A = FlushAhead> {
    state: Mutex<State<A>>,
    /// A flush ended, or is to be waited for by another thread.
    changed: Condvar,
}

struct State<A> {
    under_way: bool,
    /// Of the flush under way, where nobody waits for it.
    ahead: Option<A>,
    /// So many ended.
    ended: u64,
    /// The last that failed, and with what.
    failed: (u64, Errno),
}

impl<A: Ahead> Default for Flushes<A> {
    fn default() -> Self {
        let state = State { under_way: false, ahead: None, ended: 0, failed: (0, Errno::IO) };
        Flushes { state: Mutex::new(state), changed: Condvar::new() }
    }
}

/// The right to flush, until it is dropped.
pub(super) struct Turn<'a, A: Ahead = FlushAhead> {
    flushes: &'a Flushes<A>,
    failed: Option<Errno>,
}

impl<A: Ahead> Turn<'_, A> {
    /// What the flush failed with, for those who wait for it.
    pub(super) fn tell(&mut self, outcome: Result<(), Errno>) {
        self.failed = outcome.err();
    }
}

impl<A: Ahead> Drop for Turn<'_, A> {
    fn drop(&mut self) {
        self.flushes.end(self.failed);
    }
}

impl<A: Ahead> Flushes<A> {
    fn lock(&self) -> MutexGuard<'_, State<A>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until no other flush is under way; also what those failed with that ended meanwhile.
    ///
    /// # Errors
    /// `EINTR`.
    pub(super) fn turn(&self) -> Result<(Turn<'_, A>, Result<(), Errno>), Errno> {
        let mut state = self.lock();
        let since = state.ended;
        while state.under_way {
            if let Some(ahead) = state.ahead.take() {
                drop(state);
                self.wait_for(ahead)?;
                state = self.lock();
                continue;
            }
            if Interrupt::is_fired_here() {
                return Err(Errno::INTR);
            }
            let woken = self.changed.wait_timeout(state, LOOK);
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        state.under_way = true;
        let failed = (state.failed.0 > since).then_some(state.failed.1);
        Ok((Turn { flushes: self, failed: None }, failed.map_or(Ok(()), Err)))
    }

    fn wait_for(&self, mut ahead: A) -> Result<(), Errno> {
        match ahead.wait() {
            Some(outcome) => self.end(outcome.err()),
            None => {
                self.lock().ahead = Some(ahead);
                self.changed.notify_all();
                return Err(Errno::INTR);
            }
        }
        Ok(())
    }

    fn end(&self, failed: Option<Errno>) {
        let mut state = self.lock();
        state.under_way = false;
        state.ended += 1;
        // One that was interrupted says nothing to others.
        if let Some(errno) = failed.filter(|errno| *errno != Errno::INTR) {
            state.failed = (state.ended, errno);
        }
        drop(state);
        self.changed.notify_all();
    }

    pub(super) fn is_under_way(&self) -> bool {
        self.lock().under_way
    }

    /// Begins a flush without waiting, unless one is under way. What one of before failed with, of
    /// which nobody was told.
    ///
    /// # Errors
    /// That.
    pub(super) fn begin_ahead(&self, begin: impl FnOnce() -> Option<A>) -> Result<(), Errno> {
        let mut state = self.lock();
        let mut outcome = Ok(());
        if let Some(mut ahead) = state.ahead.take_if(|ahead| ahead.is_over()) {
            drop(state);
            outcome = ahead.wait().unwrap_or(Err(Errno::INTR));
            self.end(outcome.err());
            state = self.lock();
        }
        if !state.under_way {
            state.ahead = begin();
            state.under_way = state.ahead.is_some();
        }
        outcome
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, channel};
    use std::thread;

    use super::*;

    const NOSPC: Errno = Errno(libc::ENOSPC);

    /// Its end comes by a channel.
    struct Sent(Receiver<Result<(), Errno>>, Option<Result<(), Errno>>);

    impl Ahead for Sent {
        fn wait(&mut self) -> Option<Result<(), Errno>> {
            self.1.take().or_else(|| self.0.recv().ok())
        }

        fn is_over(&self) -> bool {
            self.1.is_some()
        }
    }

    #[test]
    fn who_comes_during_a_flush_waits_for_it_and_is_told_what_it_failed_with() {
        let flushes = Flushes::<Sent>::default();
        let (mut first, _) = flushes.turn().expect("not interrupted");
        let (asked, asks) = channel();
        thread::scope(|scope| {
            let second = scope.spawn(|| {
                asked.send(()).expect("heard");
                let (_turn, before) = flushes.turn().expect("not interrupted");
                before
            });
            asks.recv().expect("a second close");
            thread::sleep(Duration::from_millis(30));
            assert!(!second.is_finished(), "the first is under way");
            first.tell(Err(NOSPC));
            drop(first);
            assert_eq!(second.join().expect("no panic"), Err(NOSPC));
        });
        let (_turn, before) = flushes.turn().expect("not interrupted");
        assert_eq!(before, Ok(()), "it came later");
    }

    #[test]
    fn an_interrupted_flush_says_nothing_to_others() {
        let flushes = Flushes::<Sent>::default();
        let (mut turn, _) = flushes.turn().expect("not interrupted");
        turn.tell(Err(Errno::INTR));
        drop(turn);
        assert_eq!(flushes.lock().failed.0, 0);
    }

    #[test]
    fn a_wait_for_another_flush_ends_by_an_interrupt() {
        let flushes = Flushes::<Sent>::default();
        let _turn = flushes.turn().expect("not interrupted");
        let interrupt = Interrupt::new();
        let _watch = interrupt.watch();
        interrupt.fire();
        assert_eq!(flushes.turn().err(), Some(Errno::INTR));
    }

    #[test]
    fn a_flush_that_nobody_waited_for_is_waited_for_by_the_next() {
        let flushes = Flushes::default();
        let (end, ends) = channel();
        flushes.begin_ahead(|| Some(Sent(ends, None))).expect("nothing failed");
        flushes.begin_ahead(|| panic!("one is under way")).expect("nothing failed");
        assert!(flushes.is_under_way());
        end.send(Err(Errno::IO)).expect("heard");
        let (turn, before) = flushes.turn().expect("not interrupted");
        assert_eq!(before, Err(Errno::IO));
        drop(turn);
        let over = |outcome| Sent(channel().1, Some(outcome));
        flushes.begin_ahead(|| Some(over(Err(NOSPC)))).expect("nothing failed");
        assert_eq!(flushes.begin_ahead(|| None), Err(NOSPC));
        assert!(!flushes.is_under_way());
    }
}
