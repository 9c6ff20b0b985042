//! What the server's process has: randomness, time, memory.

use std::time::Duration;

/// Fills bytes with randomness; injected so that a simulation is repeatable.
pub type Entropy = Box<dyn Fn(&mut [u8]) + Send + Sync>;
/// The process's own CPU time (nanoseconds) and resident bytes.
pub type ProcessStats = Box<dyn Fn() -> (u64, u64) + Send + Sync>;

/// The time since some moment.
pub type Stopwatch = Box<dyn Fn() -> Duration + Send + Sync>;

/// What was given to it.
pub(crate) struct Process {
    entropy: Entropy,
    stats: ProcessStats,
    stopwatch: Stopwatch,
    thread_time: Stopwatch,
    /// Of the cache.
    pub arena_bytes: usize,
}

impl Process {
    /// From what a server is made of.
    pub(crate) fn new(
        entropy: Entropy,
        stats: ProcessStats,
        (stopwatch, thread_time): (Stopwatch, Stopwatch),
        arena_bytes: usize,
    ) -> Process {
        Process { entropy, stats, stopwatch, thread_time, arena_bytes }
    }

    /// Random bytes.
    pub(crate) fn random<const N: usize>(&self) -> [u8; N] {
        let mut bytes = [0; N];
        (self.entropy)(&mut bytes);
        bytes
    }

    /// The time since some moment.
    #[inline]
    pub(crate) fn now(&self) -> Duration {
        (self.stopwatch)()
    }

    /// What the calling thread has taken of the processor's time.
    pub(crate) fn thread_time(&self) -> Duration {
        (self.thread_time)()
    }

    /// Its own CPU time (nanoseconds) and resident bytes.
    pub(crate) fn stats(&self) -> (u64, u64) {
        (self.stats)()
    }
}
