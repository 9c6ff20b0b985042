//! Leases (fcntl(2), F_SETLEASE) of local programs, as Samba takes them: who opens the file waits
//! until the program gave its lease up, which the kernel asks it for.
//!
//! A file is never opened in a way that blocks: the attempt fails and has the program asked, and is
//! made again from time to time, by a thread of the pool. A program that does not care keeps few
//! threads waiting, and for a limited time.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use dafs_protocol::Status;

/// Between attempts.
const PAUSE: Duration = Duration::from_millis(5);
/// Below what a client believes a silent server to be alive (the kernel takes a lease away after 45
/// seconds, unless told otherwise).
const WAIT_MAX: Duration = Duration::from_secs(20);

/// Who waits for them.
pub(super) struct Leases {
    waiting: AtomicUsize,
    waiting_max: usize,
}

impl Leases {
    /// For a pool of so many threads, of which a quarter may wait.
    pub(super) fn new(threads: usize) -> Leases {
        Leases { waiting: AtomicUsize::new(0), waiting_max: (threads / 4).max(1) }
    }

    /// Tries until the answer is another one than AGAIN. Blocks.
    ///
    /// # Errors
    /// Of the attempts: AGAIN where it takes too long, or too many wait.
    pub(super) fn wait<T>(
        &self,
        mut attempt: impl FnMut() -> Result<T, Status>,
    ) -> Result<T, Status> {
        let mut result = attempt();
        if !matches!(result, Err(Status::Again)) {
            return result;
        }
        let Some(_waiting) = self.enter() else { return result };
        let start = Instant::now();
        while matches!(result, Err(Status::Again)) && start.elapsed() < WAIT_MAX {
            thread::sleep(PAUSE);
            result = attempt();
        }
        result
    }

    fn enter(&self) -> Option<Waiting<'_>> {
        let waiting = Waiting(self); // counted off again in any case
        let before = self.waiting.fetch_add(1, Ordering::Relaxed);
        (before < self.waiting_max).then_some(waiting)
    }
}

struct Waiting<'a>(&'a Leases);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn few_wait_and_only_for_leases() {
        let leases = Leases::new(4);
        let tries = Cell::new(0);
        let attempt = |good_at: u32| {
            tries.set(tries.get() + 1);
            if tries.get() < good_at { Err(Status::Again) } else { Ok(tries.get()) }
        };
        assert_eq!(leases.wait(|| attempt(3)), Ok(3));
        tries.set(0);
        let first = leases.enter();
        assert!(first.is_some());
        assert_eq!(leases.wait(|| attempt(3)), Err(Status::Again), "one of four threads waits");
        assert_eq!(tries.get(), 1);
        drop(first);
        assert_eq!(leases.wait(|| attempt(3)), Ok(3));
        assert_eq!(leases.wait(|| Err::<(), _>(Status::NoEnt)), Err(Status::NoEnt));
        assert_eq!(leases.waiting.load(Ordering::Relaxed), 0);
    }
}
