//! Which tasks of a worker can go on, which pages have come, and how it is woken for them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use dafs_fabric::Waiter;
use dafs_unifier::{PageEnd, PageWaiter};

/// The ends of reads that waited for a page, by their numbers.
pub(crate) type PageEnds = Vec<(usize, PageEnd)>;

/// Filled from any thread.
#[derive(Default)]
pub(crate) struct Ready {
    queues: Mutex<Queues>,
    /// There may be some: saves those who look often the lock.
    has_some: AtomicBool,
    sleeping: AtomicBool,
    waiter: OnceLock<Arc<dyn Waiter>>,
}

#[derive(Default)]
struct Queues {
    /// Numbers of tasks that can go on.
    tasks: Vec<usize>,
    /// Of reads that waited for a page.
    pages: PageEnds,
}

impl Ready {
    pub(crate) fn set_waiter(&self, waiter: Arc<dyn Waiter>) {
        let _ = self.waiter.set(waiter);
    }

    /// The worker is about to sleep; false: there is work, do not.
    pub(crate) fn prepare_sleep(&self) -> bool {
        self.sleeping.store(true, Ordering::SeqCst);
        let queues = self.lock();
        let idle = queues.tasks.is_empty() && queues.pages.is_empty();
        drop(queues);
        if !idle {
            self.sleeping.store(false, Ordering::SeqCst);
        }
        idle
    }

    pub(crate) fn awake(&self) {
        self.sleeping.store(false, Ordering::SeqCst);
    }

    pub(crate) fn push(&self, task: usize) {
        self.add(|queues| queues.tasks.push(task));
    }

    #[inline(always)]
    fn add(&self, add: impl FnOnce(&mut Queues)) {
        let mut queues = self.lock();
        add(&mut queues);
        self.has_some.store(true, Ordering::Release);
        drop(queues);
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

    /// There may be something to be taken.
    #[inline]
    pub(crate) fn has_some(&self) -> bool {
        self.has_some.load(Ordering::Acquire)
    }

    /// Puts all of it in the place of none.
    pub(crate) fn take(&self, tasks: &mut Vec<usize>, pages: &mut PageEnds) {
        let mut queues = self.lock();
        std::mem::swap(tasks, &mut queues.tasks);
        std::mem::swap(pages, &mut queues.pages);
        self.has_some.store(false, Ordering::Release);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Queues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PageWaiter for Ready {
    fn ended(&self, number: usize, end: PageEnd) {
        self.add(|queues| queues.pages.push((number, end)));
    }
}
