//! Interrupts: how one thread ends the blocking calls of another.

use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Thread;
use std::time::{Duration, Instant};

use dafs_fabric::Waiter;

type Watched = RefCell<Option<Arc<Interrupt>>>;

thread_local! {
    /// At the very end of a thread it is gone, while handlers of the program may still make calls.
    static WATCHED: Watched = const { RefCell::new(None) };
    /// Whether there is one, which most threads never have.
    static WATCHES: Cell<bool> = const { Cell::new(false) };
}

/// How long a thread waits before it looks whether it is to be interrupted.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// Rounds of a thread that waits without sleeping, between two looks: some 10 ms.
const LOOK_ROUNDS: u64 = 4096;

/// Asked by the thread that waits; true: its call is to end.
type Look = Box<dyn Fn() -> bool + Send + Sync>;

/// Ends the blocking calls of one thread.
///
/// While the thread holds the guard of [`watch`](Self::watch), its blocking calls of sessions and
/// files, and [`CallFuture::wait`](crate::CallFuture::wait), end with
/// [`Error::Interrupted`](crate::Error::Interrupted) soon after [`fire`](Self::fire), also while
/// a lost server is looked for, and at once where it was fired before. A call that is given up
/// may have been done or not, or may be done later; where its answer is there already it counts.
/// Memory that was lent to it is free when it returns.
pub struct Interrupt {
    fired: AtomicBool,
    /// Who is to be woken.
    sleeper: Mutex<Option<Sleeper>>,
    look: Option<Look>,
    /// Since the last look, in microseconds, and rounds without sleep.
    waited: AtomicU64,
    rounds: AtomicU64,
}

impl std::fmt::Debug for Interrupt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Interrupt").field("fired", &self.fired).finish_non_exhaustive()
    }
}

struct Sleeper {
    thread: Thread,
    waiter: Arc<dyn Waiter>,
}

impl std::fmt::Debug for Sleeper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sleeper").field("thread", &self.thread).finish_non_exhaustive()
    }
}

impl Interrupt {
    /// One that was not fired.
    #[allow(clippy::new_ret_no_self, reason = "it is shared between two threads from the start")]
    pub fn new() -> Arc<Interrupt> {
        Arc::new(Interrupt::with(None))
    }

    /// One that the waiting thread itself fires where `look` says true. It asks about every 100 ms
    /// of waiting, without locks of the session, so `look` may do what takes its time; the session
    /// may not be called by it.
    pub fn looking(look: impl Fn() -> bool + Send + Sync + 'static) -> Arc<Interrupt> {
        Arc::new(Interrupt::with(Some(Box::new(look))))
    }

    fn with(look: Option<Look>) -> Interrupt {
        Interrupt {
            fired: AtomicBool::new(false),
            sleeper: Mutex::new(None),
            look,
            waited: AtomicU64::new(0),
            rounds: AtomicU64::new(0),
        }
    }

    fn look(&self) {
        self.waited.store(0, Ordering::Relaxed);
        if self.look.as_ref().is_some_and(|look| look()) {
            self.fired.store(true, Ordering::SeqCst);
        }
    }

    /// Ends the call under way of the thread that watches, and those that follow. Does not block.
    pub fn fire(&self) {
        self.fired.store(true, Ordering::SeqCst);
        if let Some(sleeper) = &*self.sleeper() {
            sleeper.waiter.wake();
            sleeper.thread.unpark();
        }
    }

    /// Calls run again.
    pub fn reset(&self) {
        self.fired.store(false, Ordering::SeqCst);
    }

    /// Since the last reset.
    pub fn is_fired(&self) -> bool {
        self.fired.load(Ordering::SeqCst)
    }

    /// Calls of this thread are to end: the one that it watches was fired.
    #[inline]
    pub fn is_fired_here() -> bool {
        WATCHES.get() && Interrupt::is_watched_fired()
    }

    #[inline(never)]
    fn is_watched_fired() -> bool {
        let is_fired = |watched: &Arc<Interrupt>| watched.is_fired();
        let look = |watched: &Watched| watched.borrow().as_ref().is_some_and(is_fired);
        WATCHED.try_with(look).unwrap_or(false)
    }

    /// From now on it ends calls of this thread, until the guard is dropped; then the one that
    /// was watched before does.
    pub fn watch(self: &Arc<Self>) -> InterruptGuard {
        let before = WATCHED.try_with(|watched| watched.replace(Some(self.clone())));
        WATCHES.set(true);
        InterruptGuard { before: before.ok().flatten(), thread: PhantomData }
    }

    /// The one of this thread.
    pub(crate) fn watched() -> Option<Arc<Interrupt>> {
        WATCHED.try_with(|watched| watched.borrow().clone()).ok().flatten()
    }

    /// This thread is going to sleep on one of the two. False: it must not.
    pub(crate) fn may_sleep(&self, waiter: &Arc<dyn Waiter>) -> bool {
        let sleeper = Sleeper { thread: std::thread::current(), waiter: waiter.clone() };
        *self.sleeper() = Some(sleeper);
        !self.is_fired()
    }

    fn sleeper(&self) -> MutexGuard<'_, Option<Sleeper>> {
        self.sleeper.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// While it lives, an [`Interrupt`] ends calls of this thread.
#[derive(Debug)]
#[must_use = "the interrupt is watched while the guard lives"]
pub struct InterruptGuard {
    before: Option<Arc<Interrupt>>,
    /// It belongs to the thread.
    thread: PhantomData<*const ()>,
}

impl Drop for InterruptGuard {
    fn drop(&mut self) {
        WATCHES.set(self.before.is_some());
        let watched = WATCHED.try_with(|watched| watched.replace(self.before.take()));
        if let Ok(Some(watched)) = watched {
            // Sessions are not kept by it.
            *watched.sleeper() = None;
        }
    }
}

/// When a wait ends without what it waits for.
#[derive(Clone, Copy, Default)]
pub(crate) struct Until<'a> {
    pub(crate) deadline: Option<Instant>,
    pub(crate) interrupt: Option<&'a Interrupt>,
}

impl Until<'_> {
    pub(crate) fn deadline(deadline: Instant) -> Until<'static> {
        Until { deadline: Some(deadline), interrupt: None }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.interrupt.is_some_and(Interrupt::is_fired)
            || self.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }

    /// Sleeps by `sleep` for at most the time it is given, and looks when it is time to. The caller
    /// holds no lock.
    pub(crate) fn sleep(&self, timeout: Option<Duration>, sleep: impl FnOnce(Option<Duration>)) {
        let Some(interrupt) = self.interrupt.filter(|interrupt| interrupt.look.is_some()) else {
            return sleep(timeout);
        };
        let start = Instant::now();
        sleep(Some(timeout.map_or(LOOK_INTERVAL, |timeout| timeout.min(LOOK_INTERVAL))));
        let slept = u64::try_from(start.elapsed().as_micros()).unwrap_or(u64::MAX);
        let waited = interrupt.waited.load(Ordering::Relaxed).saturating_add(slept);
        interrupt.waited.store(waited, Ordering::Relaxed);
        if u128::from(waited) >= LOOK_INTERVAL.as_micros() {
            interrupt.look();
        }
    }

    /// As [`sleep`](Self::sleep), of one who has not slept but looked at the network.
    pub(crate) fn spun(&self) {
        if let Some(interrupt) = self.interrupt.filter(|interrupt| interrupt.look.is_some())
            && interrupt.rounds.fetch_add(1, Ordering::Relaxed) % LOOK_ROUNDS == LOOK_ROUNDS - 1
        {
            interrupt.look();
        }
    }

    /// See [`Interrupt::may_sleep`].
    pub(crate) fn may_sleep(&self, waiter: &Arc<dyn Waiter>) -> bool {
        self.interrupt.is_none_or(|interrupt| interrupt.may_sleep(waiter))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_innermost_guard_counts() {
        let (outer, inner) = (Interrupt::new(), Interrupt::new());
        assert!(Interrupt::watched().is_none());
        let watching = outer.watch();
        {
            let _guard = inner.watch();
            inner.fire();
            assert!(Interrupt::watched().is_some_and(|watched| watched.is_fired()));
            assert!(Interrupt::is_fired_here());
        }
        assert!(Interrupt::watched().is_some_and(|watched| !watched.is_fired()));
        assert!(!Interrupt::is_fired_here());
        outer.fire();
        assert!(Interrupt::is_fired_here());
        drop(watching);
        assert!(!Interrupt::is_fired_here(), "nothing is watched");
        assert!(Interrupt::watched().is_none());
        inner.reset();
        assert!(!inner.is_fired());
    }
}
