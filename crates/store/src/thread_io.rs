//! Transfers that complete in the thread that began them.

use std::cell::Cell;
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// What a store does in a worker's own thread, without another one and without a wake-up: transfers
/// that calls of this thread begin are completed when it looks ([`poll`](ThreadIo::poll)). Belongs
/// to its thread; dropped, all its transfers are waited for.
pub trait ThreadIo {
    /// Becomes readable when something completes while this thread sleeps. It is never read: the
    /// sleeper must look for the change (edge-triggered).
    fn event(&self) -> BorrowedFd<'_>;
    /// This thread is about to sleep; false: there is work, do not.
    fn prepare_sleep(&self) -> bool;
    /// The sleep is over.
    fn awake(&self);
    /// Hands over what was begun and completes what has ended; true if there was any. Never
    /// blocks.
    fn poll(&self) -> bool;
    /// Waits until all transfers have completed; not longer than this after the last one did. What
    /// a disk never answers stays with the kernel, memory and all, until the process ends.
    ///
    /// # Errors
    /// How many transfers those are.
    fn close(self: Box<Self>, patience: Duration) -> Result<(), usize>;
}

thread_local! {
    static WAIT: Cell<Option<fn() -> bool>> = const { Cell::new(None) };
}

/// For stores: how this thread, blocked on an answer ([`Pending::wait`](crate::Pending::wait)), gets
/// on with its own transfers. The function blocks until one has completed; false: none is under way.
pub fn set_thread_wait(wait: Option<fn() -> bool>) {
    WAIT.set(wait);
}

/// True when one of this thread's own transfers has completed meanwhile.
pub(crate) fn wait_for_one() -> bool {
    WAIT.get().is_some_and(|wait| wait())
}
