//! Sleeping for several engines at a time.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use crate::engine::Waiter;

/// How often an engine is looked at whose waiter has no descriptor.
const LOOK: Duration = Duration::from_millis(1);

/// One waiter for engines that one thread polls: its `wait` ends when one of them has work, and its
/// `wake` ends a `wait` for all. The first watches the [descriptors](Waiter::descriptor) of the others; where
/// it cannot, or there is none, that engine is looked at every millisecond. What has come for the others they are
/// to ask for, which costs a call more than what has come for the first.
///
/// # Panics
/// Without a waiter.
pub fn join_waiters(mut waiters: Vec<Arc<dyn Waiter>>) -> Arc<dyn Waiter> {
    assert!(!waiters.is_empty(), "nothing to wait for");
    if waiters.len() == 1 {
        return waiters.remove(0);
    }
    let first = waiters.remove(0);
    let look = |other: Arc<dyn Waiter>| {
        let is_watched = other.descriptor().is_some_and(|fd| first.watch_engine(fd).is_ok());
        Other { waiter: other, is_watched }
    };
    let others = waiters.into_iter().map(look).collect();
    Arc::new(Waiters { first, others })
}

struct Other {
    waiter: Arc<dyn Waiter>,
    is_watched: bool,
}

struct Waiters {
    first: Arc<dyn Waiter>,
    others: Vec<Other>,
}

impl Waiters {
    /// The longest sleep that an engine may be left alone for.
    fn longest(&self) -> Option<Duration> {
        let of =
            |other: &Other| if other.is_watched { other.waiter.look_within() } else { Some(LOOK) };
        self.others.iter().filter_map(of).min()
    }
}

impl Waiter for Waiters {
    fn wait(&self, timeout: Option<Duration>) {
        self.first.wait(timeout.into_iter().chain(self.longest()).min());
        if !self.first.engine_told() {
            let quiet = self.others.iter().filter(|other| other.is_watched);
            quiet.for_each(|other| other.waiter.nothing_came());
        }
    }

    fn wake(&self) {
        self.first.wake();
    }

    fn watch(&self, descriptor: BorrowedFd<'_>) -> std::io::Result<()> {
        self.first.watch(descriptor)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.first.descriptor()
    }

    fn look_within(&self) -> Option<Duration> {
        self.first.look_within().into_iter().chain(self.longest()).min()
    }
}
