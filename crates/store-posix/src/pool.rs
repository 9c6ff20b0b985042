//! Threads that make the system calls which may block.
//!
//! One queue. A thread that runs out of work looks for more for some microseconds before it
//! sleeps, so that a steady stream of calls needs no wake-ups; where looking is in vain it
//! stops looking. Threads come when all are busy and go when they are idle for long.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use dafs_store::Elsewhere;

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
    /// Queue length, for who looks without the lock.
    queued: AtomicUsize,
    threads_min: usize,
    threads_max: usize,
    may_spin: bool,
    /// Called now and then, by threads that have nothing to do or have just done something.
    idle: Box<dyn Fn() + Send + Sync>,
    idle_time: Duration,
    /// When it is due, by `start`.
    idle_due_nanos: AtomicU64,
    start: Instant,
}

#[derive(Default)]
struct State {
    queue: VecDeque<(Job, Elsewhere)>,
    threads: usize,
    /// Threads that wait and that nobody has woken.
    sleeping: usize,
    /// Wake-ups on their way to sleepers.
    woken: usize,
    /// Threads that are on their way to the queue: woken, new, or looking at it. Each job needs
    /// one, but where all threads there may be are at work.
    coming: usize,
    is_looked_at: bool,
    stop: bool,
}

impl Pool {
    /// The first of `threads_min` starts at once; `idle` is called every some seconds, also while
    /// there is work.
    pub(super) fn new(
        threads_min: usize,
        threads_max: usize,
        idle: Box<dyn Fn() + Send + Sync>,
    ) -> Pool {
        Pool::with_idle_time(threads_min, threads_max, idle, IDLE)
    }

    fn with_idle_time(
        threads_min: usize,
        threads_max: usize,
        idle: Box<dyn Fn() + Send + Sync>,
        idle_time: Duration,
    ) -> Pool {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let threads_min = threads_min.max(1);
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            work: Condvar::new(),
            queued: AtomicUsize::new(0),
            threads_min,
            threads_max: threads_max.max(threads_min),
            may_spin: cpus > 1,
            idle,
            idle_time,
            idle_due_nanos: AtomicU64::new(nanos_of(idle_time)),
            start: Instant::now(),
        });
        shared.lock().add_thread();
        spawn(shared.clone());
        Pool { shared }
    }

    /// Has `job` run by one of the threads.
    pub(super) fn run(&self, job: Job) {
        let shared = &self.shared;
        let mut state = shared.lock();
        state.queue.push_back((job, Elsewhere::new()));
        let queued = state.queue.len();
        shared.queued.store(queued, Ordering::Release);
        if queued <= state.coming {
            return;
        }
        if state.sleeping > 0 {
            state.sleeping -= 1;
            state.woken += 1;
            state.coming += 1;
            drop(state);
            shared.work.notify_one();
        } else if state.threads < shared.threads_max {
            state.add_thread();
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

fn nanos_of(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn spawn(shared: Arc<Shared>) {
    let kept = shared.clone();
    let spawned =
        std::thread::Builder::new().name("dafs-store".into()).spawn(move || work(&shared));
    if let Err(error) = spawned {
        let mut state = kept.lock();
        state.threads -= 1;
        state.coming -= 1;
        // The queue must not wait for a thread that never comes.
        if state.threads == 0 {
            let queue = std::mem::take(&mut state.queue);
            kept.queued.store(0, Ordering::Release);
            drop(state);
            tracing::error!(%error, "no thread for blocking calls: they run in the caller's");
            queue.into_iter().for_each(|(job, _)| job());
        }
    }
}

fn work(shared: &Shared) {
    identity::keep_identity_between_calls();
    let mut spin_credit = SPIN_CREDIT_MAX;
    let mut state = shared.lock();
    state.coming -= 1;
    drop(state);
    while let Some((job, elsewhere)) = shared.next(&mut spin_credit) {
        // A job that panics has dropped its completer, which tells its waiter; the thread goes on.
        if std::panic::catch_unwind(std::panic::AssertUnwindSafe(job)).is_err() {
            tracing::error!("a call panicked");
        }
        drop(elsewhere);
        shared.idle_if_due();
    }
}

impl State {
    fn add_thread(&mut self) {
        self.threads += 1;
        self.coming += 1;
    }
}

impl Shared {
    /// Steady work is no reason to keep for ever what nobody uses.
    fn idle_if_due(&self) {
        let now = nanos_of(self.start.elapsed());
        let due = self.idle_due_nanos.load(Ordering::Relaxed);
        let next = now.saturating_add(nanos_of(self.idle_time));
        // Of those that see it at a time one does it.
        let taken = || {
            let order = Ordering::Relaxed;
            self.idle_due_nanos.compare_exchange(due, next, order, order).is_ok()
        };
        if now >= due && taken() {
            (self.idle)();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next job; `None`: this thread has to go.
    fn next(&self, spin_credit: &mut u32) -> Option<(Job, Elsewhere)> {
        let mut state = self.lock();
        let mut may_look = self.may_spin;
        loop {
            if let Some(job) = state.queue.pop_front() {
                self.queued.store(state.queue.len(), Ordering::Release);
                return Some(job);
            }
            if state.stop {
                state.threads -= 1;
                return None;
            }
            // One that looks is enough: more would take the processors from those with work.
            if std::mem::take(&mut may_look) && *spin_credit > 0 && !state.is_looked_at {
                state = self.look(state);
                *spin_credit = match state.queue.is_empty() {
                    true => *spin_credit - 1,
                    false => SPIN_CREDIT_MAX,
                };
                continue;
            }
            state = self.sleep(state)?;
            *spin_credit = (*spin_credit).max(1); // try once more
        }
    }

    /// Looks for work for a while.
    fn look<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        state.is_looked_at = true;
        state.coming += 1;
        drop(state);
        let start = Instant::now();
        while self.queued.load(Ordering::Acquire) == 0 && start.elapsed() < SPIN {
            for _ in 0..32 {
                std::hint::spin_loop();
            }
        }
        let mut state = self.lock();
        state.is_looked_at = false;
        state.coming -= 1;
        state
    }

    /// Until somebody wakes this thread; `None`: it was idle for long and has to go.
    fn sleep<'a>(&'a self, mut state: MutexGuard<'a, State>) -> Option<MutexGuard<'a, State>> {
        state.sleeping += 1;
        loop {
            let (guard, waited) = self
                .work
                .wait_timeout(state, self.idle_time)
                .unwrap_or_else(PoisonError::into_inner);
            state = guard;
            if state.woken > 0 {
                state.woken -= 1;
                state.coming -= 1;
                return Some(state);
            }
            if state.stop {
                state.sleeping -= 1;
                return Some(state);
            }
            if !waited.timed_out() {
                continue;
            }
            if state.threads > self.threads_min {
                state.sleeping -= 1;
                state.threads -= 1;
                return None;
            }
            // Awake for a moment: who has work meanwhile does not count on this one.
            state.sleeping -= 1;
            drop(state);
            self.idle_if_due();
            state = self.lock();
            if !state.queue.is_empty() {
                return Some(state);
            }
            state.sleeping += 1;
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

    /// Two jobs that begin themselves again: the only thread never has nothing to do.
    #[test]
    fn idle_is_called_also_while_there_is_always_work() {
        let (sender, called) = mpsc::channel();
        let idle = Box::new(move || {
            let _ = sender.send(());
        });
        let pool = Arc::new(Pool::with_idle_time(1, 1, idle, Duration::from_millis(10)));
        fn again(pool: &Arc<Pool>, stop: &Arc<std::sync::atomic::AtomicBool>) {
            let (next, stop) = (pool.clone(), stop.clone());
            pool.run(Box::new(move || {
                if !stop.load(Ordering::Relaxed) {
                    again(&next, &stop);
                }
            }));
        }
        let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
        again(&pool, &stop);
        again(&pool, &stop);
        for _ in 0..3 {
            called.recv_timeout(Duration::from_secs(30)).expect("called while there is work");
        }
        stop.store(true, Ordering::Relaxed);
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
