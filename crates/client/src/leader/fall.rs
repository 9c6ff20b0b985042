//! What becomes of a session when the thread that leads panics: it ends, and nobody waits on.

use std::mem::take;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::MutexGuard;
use std::sync::atomic::Ordering;
use std::task::Waker;
use std::time::{Duration, Instant};

use super::{Inner, Leader, State};
use crate::core::{CoreDone, Owner};
use crate::error::Error;

/// How long the connections may take to end: calls that are not over then fail while the network may still have
/// their memory.
const PATIENCE: Duration = Duration::from_secs(1);
/// Between looks at whether they have.
const SLICE: Duration = Duration::from_millis(5);

/// Held by who leads: forgotten when all went well, dropped by a panic.
struct Leads<'a>(&'a Inner);

impl Drop for Leads<'_> {
    #[cold]
    fn drop(&mut self) {
        self.0.fall();
    }
}

impl Inner {
    /// What a thread does while it leads, or while nobody does: a panic in it ends the session.
    #[inline]
    pub(super) fn leading<'a>(
        &'a self,
        state: MutexGuard<'a, State>,
        body: impl FnOnce(MutexGuard<'a, State>) -> MutexGuard<'a, State>,
    ) -> MutexGuard<'a, State> {
        let leads = Leads(self);
        // What unwinds drops the lock first.
        let state = body(state);
        std::mem::forget(leads);
        state
    }

    /// This thread led, and unwinds: the session ends, all calls fail, and all who wait learn it. The core may
    /// be in the midst of something, and panic again.
    fn fall(&self) {
        let error = Error::Local("the session has ended: a thread that drove it panicked".into());
        let mut state = self.lock();
        let _ = catch_unwind(AssertUnwindSafe(|| self.end_connections(&mut state, &error)));
        let _ = catch_unwind(AssertUnwindSafe(|| state.fail_outstanding(&error)));
        self.keeper.stop();
        self.connected.store(false, Ordering::Relaxed);
        (state.leader, state.keeper_yields, state.asleep) = (Leader::None, false, false);
        for index in take(&mut state.parked) {
            if let Some(thread) = state.sink(index).parked.take() {
                thread.unpark();
            }
        }
        let mut wakers = take(&mut state.wakers);
        wakers.append(&mut state.room_wakers);
        drop(state);
        for waker in wakers {
            let _ = catch_unwind(AssertUnwindSafe(|| Waker::wake(waker)));
        }
    }

    /// Calls whose records are whole fail in there, when the network has left their memory.
    fn end_connections(&self, state: &mut State, error: &Error) {
        state.core.end(error.clone());
        let end = Instant::now() + PATIENCE;
        while !state.core.is_closed() && Instant::now() < end {
            self.progress(state, self.now());
            if state.core.arm() {
                self.waiter.wait(Some(SLICE));
            }
        }
    }
}

impl State {
    /// What has no answer now: the records of these calls went with the panic, and their tags.
    fn fail_outstanding(&mut self, error: &Error) {
        self.dispatch();
        for index in 0..self.sinks.len() {
            let outstanding = take(&mut self.sink(index).outstanding);
            if outstanding == 0 {
                continue;
            }
            let failed = || CoreDone::failed(0, error.clone(), None);
            let sink = self.sink(index);
            sink.done.extend(std::iter::repeat_with(failed).take(outstanding));
            if sink.is_async {
                let waker = sink.waker.take();
                self.async_outstanding -= outstanding;
                self.wakers.extend(waker);
            }
        }
        // Nor does one come late.
        (0..self.sinks.len()).for_each(|index| self.core.abandon_owner(Owner(index)));
    }
}
