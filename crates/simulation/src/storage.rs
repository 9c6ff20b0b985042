//! The store in memory, at the pace and with the faults that a seed decides.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dafs_fabric::sim::Rng;
use dafs_protocol::Timestamp;
use dafs_store::memory::{Job, MemoryOptions, MemoryStore};

/// The virtual time, for clocks that are asked from within.
#[derive(Debug, Clone, Default)]
pub struct Clock(Arc<AtomicU64>);

impl Clock {
    /// It is `time` now.
    pub fn set(&self, time: Duration) {
        self.0.store(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Now.
    pub fn now(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Relaxed))
    }

    /// Now, as files have it.
    pub fn timestamp(&self) -> Timestamp {
        let now = self.now();
        let seconds = i64::try_from(now.as_secs()).unwrap_or(i64::MAX).saturating_add(1_000_000);
        Timestamp { seconds, nanoseconds: now.subsec_nanos() }
    }
}

/// How long calls of the store take.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    /// So many of a hundred are done at once.
    pub at_once: u64,
    /// The others take at least this, in microseconds.
    pub least: u64,
    /// And at most this.
    pub most: u64,
}

impl Pace {
    /// Everything is done at once.
    pub const IMMEDIATE: Pace = Pace { at_once: 100, least: 0, most: 0 };
}

struct Queue {
    jobs: BTreeMap<(Duration, u64), Job>,
    pace: Pace,
    rng: Rng,
    sequence: u64,
}

/// A store whose calls end in random order.
#[derive(Clone)]
pub struct Storage {
    /// The files.
    pub store: MemoryStore,
    clock: Clock,
    queue: Arc<Mutex<Queue>>,
}

fn lock(queue: &Mutex<Queue>) -> MutexGuard<'_, Queue> {
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Storage {
    /// An empty tree of this clock. `direct`: a server reads ahead in its files.
    pub fn new(clock: &Clock, rng: Rng, capacity_bytes: u64, direct: bool) -> Storage {
        let queue = Queue { jobs: BTreeMap::new(), pace: Pace::IMMEDIATE, rng, sequence: 0 };
        let queue = Arc::new(Mutex::new(queue));
        let (jobs, now, time) = (queue.clone(), clock.clone(), clock.clone());
        let scheduler = move |job: Job| {
            // Not under the lock: what the job wakes may ask for more.
            let job = lock(&jobs).take(now.now(), job);
            job.into_iter().for_each(|job| job());
        };
        let store = MemoryStore::with_options(MemoryOptions {
            clock: Arc::new(move || time.timestamp()),
            scheduler: Some(Arc::new(scheduler)),
            capacity_bytes,
            direct,
            ..MemoryOptions::default()
        });
        Storage { store, clock: clock.clone(), queue }
    }

    /// Does something at the pace of the store.
    pub fn call(&self, job: Job) {
        let job = lock(&self.queue).take(self.clock.now(), job);
        job.into_iter().for_each(|job| job());
    }

    /// Changes how long calls take from now on.
    pub fn set_pace(&self, pace: Pace) {
        lock(&self.queue).pace = pace;
    }

    /// What is asked within `work` is done at once.
    pub fn at_once<T>(&self, work: impl FnOnce() -> T) -> T {
        let pace = std::mem::replace(&mut lock(&self.queue).pace, Pace::IMMEDIATE);
        let made = work();
        lock(&self.queue).pace = pace;
        made
    }

    /// When the next call ends.
    pub fn next_at(&self) -> Option<Duration> {
        lock(&self.queue).jobs.keys().next().map(|key| key.0)
    }

    /// Ends the calls that are due.
    pub fn run_until(&self, now: Duration) -> bool {
        let mut any = false;
        loop {
            let job = lock(&self.queue).due(now);
            let Some(job) = job else { return any };
            job();
            any = true;
        }
    }

    /// The machine is gone, and what the store was asked with it.
    pub fn drop_calls(&self) {
        let jobs = std::mem::take(&mut lock(&self.queue).jobs);
        drop(jobs);
    }

    /// The server is gone: some of its calls reach the disk, the others do not.
    pub fn server_died(&self) {
        loop {
            let next = {
                let mut queue = lock(&self.queue);
                let Some((_, job)) = queue.jobs.pop_first() else { return };
                queue.rng.coin().then_some(job)
            };
            if let Some(job) = next {
                job();
            }
        }
    }
}

impl Queue {
    /// The job again, if it is to be done at once.
    fn take(&mut self, now: Duration, job: Job) -> Option<Job> {
        let Pace { at_once, least, most } = self.pace;
        if at_once >= 100 || self.rng.below(100) < at_once {
            return Some(job);
        }
        self.sequence += 1;
        let delay = Duration::from_micros(self.rng.range(least, most));
        self.jobs.insert((now + delay, self.sequence), job);
        None
    }

    fn due(&mut self, now: Duration) -> Option<Job> {
        let entry = self.jobs.first_entry()?;
        (entry.key().0 <= now).then(|| entry.remove())
    }
}
