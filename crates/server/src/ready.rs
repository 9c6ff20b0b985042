//! Which tasks of a worker can go on, and how it is woken for them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use dafs_fabric::Waiter;

/// Numbers of tasks that can go on, filled from any thread.
#[derive(Default)]
pub(crate) struct Ready {
    queue: Mutex<Vec<usize>>,
    /// There may be some: saves those who look often the lock.
    has_some: AtomicBool,
    sleeping: AtomicBool,
    waiter: OnceLock<Arc<dyn Waiter>>,
}

impl Ready {
    pub(crate) fn set_waiter(&self, waiter: Arc<dyn Waiter>) {
        let _ = self.waiter.set(waiter);
    }

    /// The worker is about to sleep; false: there is work, do not.
    pub(crate) fn prepare_sleep(&self) -> bool {
        self.sleeping.store(true, Ordering::SeqCst);
        let idle = self.lock().is_empty();
        if !idle {
            self.sleeping.store(false, Ordering::SeqCst);
        }
        idle
    }

    pub(crate) fn awake(&self) {
        self.sleeping.store(false, Ordering::SeqCst);
    }

    pub(crate) fn push(&self, task: usize) {
        let mut queue = self.lock();
        queue.push(task);
        self.has_some.store(true, Ordering::Release);
        drop(queue);
        self.wake_worker();
    }

    /// Ends the worker's sleep, if it sleeps.
    pub(crate) fn wake_worker(&self) {
        if self.sleeping.swap(false, Ordering::SeqCst)
            && let Some(waiter) = self.waiter.get()
        {
            waiter.wake();
        }
    }

    /// There may be numbers to be taken.
    #[inline]
    pub(crate) fn has_some(&self) -> bool {
        self.has_some.load(Ordering::Acquire)
    }

    /// Puts the numbers in the place of none.
    pub(crate) fn take(&self, into: &mut Vec<usize>) {
        let mut queue = self.lock();
        std::mem::swap(into, &mut *queue);
        self.has_some.store(false, Ordering::Release);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<usize>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
