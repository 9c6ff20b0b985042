//! Threads that make the system calls which may block.
//!
//! One queue. A thread that runs out of work looks for more for some microseconds before it
//! sleeps, so that a steady stream of calls needs no wake-ups; where looking is in vain it
//! stops looking. Threads come when all are busy and go when they are idle for long.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::identity;

pub(super) type Job = Box<dyn FnOnce() + Send>;

/// How long a thread looks for work before it sleeps.
const SPIN: Duration = Duration::from_micros(20);
/// How long an unneeded thread stays, and between calls of `idle`.
const IDLE: Duration = Duration::from_secs(3);
/// Successes are worth this many failures of looking.
const SPIN_CREDIT_MAX: u32 = 16;

/// The threads; they end when this is dropped (after all work).
pub(super) struct Pool {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    work: Condvar,
    /// Queue length, for those who look without the lock.
    queued: AtomicUsize,
    /// Threads that look.
    looking: AtomicUsize,
    threads_min: usize,
    threads_max: usize,
    may_spin: bool,
    /// Called now and then by threads that have nothing to do.
    idle: Box<dyn Fn() + Send + Sync>,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Job>,
    threads: usize,
    sleeping: usize,
    stop: bool,
}

impl Pool {
    /// The first of `threads_min` starts at once; `idle` is called every some seconds without
    /// work.
    pub(super) fn new(
        threads_min: usize,
        threads_max: usize,
        idle: Box<dyn Fn() + Send + Sync>,
    ) -> Pool {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let threads_min = threads_min.max(1);
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            work: Condvar::new(),
            queued: AtomicUsize::new(0),
            looking: AtomicUsize::new(0),
            threads_min,
            threads_max: threads_max.max(threads_min),
            may_spin: cpus > 1,
            idle,
        });
        shared.lock().threads = 1;
        spawn(shared.clone());
        Pool { shared }
    }

    /// Has `job` run by one of the threads.
    pub(super) fn run(&self, job: Job) {
        let shared = &self.shared;
        let mut state = shared.lock();
        state.queue.push_back(job);
        let queued = state.queue.len();
        shared.queued.store(queued, Ordering::Release);
        // Who looks will find it; only work beyond that needs another thread.
        if queued <= shared.looking.load(Ordering::Acquire) {
            return;
        }
        if state.sleeping > 0 {
            drop(state);
            shared.work.notify_one();
        } else if state.threads < shared.threads_max {
            state.threads += 1;
            drop(state);
            spawn(shared.clone());
        }
    }

    /// Threads there are.
    #[cfg(test)]
    fn threads(&self) -> usize {
        self.shared.lock().threads
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // Not joined: the last holder of a store may be a job in one of these threads.
        self.shared.lock().stop = true;
        self.shared.work.notify_all();
    }
}

fn spawn(shared: Arc<Shared>) {
    let kept = shared.clone();
    let spawned =
        std::thread::Builder::new().name("dafs-store".into()).spawn(move || work(&shared));
    if let Err(error) = spawned {
        let mut state = kept.lock();
        state.threads -= 1;
        // The queue must not wait for a thread that never comes.
        if state.threads == 0 {
            let queue = std::mem::take(&mut state.queue);
            kept.queued.store(0, Ordering::Release);
            drop(state);
            tracing::error!(%error, "no thread for blocking calls: they run in the caller's");
            queue.into_iter().for_each(|job| job());
        }
    }
}

fn work(shared: &Shared) {
    identity::this_is_a_pool_thread();
    let mut credit = SPIN_CREDIT_MAX;
    loop {
        if shared.may_spin && credit > 0 {
            let found = shared.look();
            credit = if found { SPIN_CREDIT_MAX } else { credit - 1 };
        }
        let Some((job, slept)) = shared.next() else { return };
        if slept && credit == 0 {
            credit = 1; // try once more after each sleep
        }
        // A job that panics has dropped its completer, which tells its waiter; the thread goes on.
        if std::panic::catch_unwind(std::panic::AssertUnwindSafe(job)).is_err() {
            tracing::error!("a call panicked");
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks for work for a while; true if there is some.
    fn look(&self) -> bool {
        // One looker is enough: more would take the processors from those with work.
        if self.looking.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            return self.queued.load(Ordering::Acquire) > 0;
        }
        let start = Instant::now();
        let mut found = self.queued.load(Ordering::Acquire) > 0;
        while !found && start.elapsed() < SPIN {
            for _ in 0..32 {
                std::hint::spin_loop();
            }
            found = self.queued.load(Ordering::Acquire) > 0;
        }
        // Under the lock, so that whoever queues sees either a looker or the queue is seen.
        let state = self.lock();
        self.looking.store(0, Ordering::Release);
        found || !state.queue.is_empty()
    }

    /// The next job, and whether this thread slept before; `None`: it has to go.
    fn next(&self) -> Option<(Job, bool)> {
        let mut state = self.lock();
        let mut slept = false;
        loop {
            if let Some(job) = state.queue.pop_front() {
                self.queued.store(state.queue.len(), Ordering::Release);
                // More than one job may have come while nobody but a looker was awake.
                if !state.queue.is_empty() && state.sleeping > 0 {
                    self.work.notify_one();
                }
                return Some((job, slept));
            }
            if state.stop {
                state.threads -= 1;
                return None;
            }
            state.sleeping += 1;
            let (guard, waited) =
                self.work.wait_timeout(state, IDLE).unwrap_or_else(PoisonError::into_inner);
            state = guard;
            state.sleeping -= 1;
            slept = true;
            if !waited.timed_out() || !state.queue.is_empty() {
                continue;
            }
            if state.threads > self.threads_min {
                state.threads -= 1;
                return None;
            }
            drop(state);
            (self.idle)();
            state = self.lock();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;
    use std::sync::mpsc;

    #[test]
    fn all_jobs_run() {
        let pool = Pool::new(2, 4, Box::new(|| ()));
        let (sender, receiver) = mpsc::channel();
        for i in 0..10_000 {
            let sender = sender.clone();
            pool.run(Box::new(move || sender.send(i).expect("the test waits")));
        }
        drop(sender);
        let mut seen: Vec<i32> = receiver.into_iter().collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..10_000).collect::<Vec<_>>());
        assert!(pool.threads() <= 4);
    }

    /// Each job waits for the next: one after the other would never end.
    #[test]
    fn blocked_threads_are_joined_by_others() {
        let pool = Pool::new(1, 8, Box::new(|| ()));
        for round in 0..200 {
            let barrier = Arc::new(Barrier::new(5));
            for _ in 0..4 {
                let barrier = barrier.clone();
                pool.run(Box::new(move || {
                    barrier.wait();
                }));
            }
            barrier.wait();
            assert!(pool.threads() <= 8, "round {round}");
        }
    }

    #[test]
    fn work_is_done_before_the_end() {
        let (sender, receiver) = mpsc::channel();
        let pool = Pool::new(1, 1, Box::new(|| ()));
        for i in 0..100 {
            let sender = sender.clone();
            pool.run(Box::new(move || sender.send(i).expect("the test waits")));
        }
        drop((pool, sender));
        assert_eq!(receiver.into_iter().count(), 100);
    }
}
