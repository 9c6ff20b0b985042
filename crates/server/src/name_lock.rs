//! Changes of the same name run one at a time, so that what a change found before it began is
//! there when it does its work.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use rustc_hash::{FxHashMap, FxHasher};
use smallvec::SmallVec;

/// Names under change, by a hash. Two names of one hash wait for each other without need, which
/// is rare.
#[derive(Default)]
pub(crate) struct NameLocks(Mutex<FxHashMap<u64, Queue>>);

/// Who waits for a name, first come, first served.
#[derive(Default)]
struct Queue {
    waiting: VecDeque<(u64, Waker)>,
    tickets: u64,
    /// This ticket is next, and was woken.
    called: Option<u64>,
}

/// While it lives, nobody else has a lock for its names.
pub(crate) struct NameLock {
    locks: Arc<NameLocks>,
    keys: SmallVec<[u64; 2]>,
}

/// Somebody waits, or had to.
struct Waiting<'a> {
    locks: &'a NameLocks,
    key: u64,
    ticket: Option<u64>,
}

impl NameLocks {
    /// Waits until nobody else has one of these names, and locks them.
    pub(crate) async fn take<N: Hash>(
        self: &Arc<Self>,
        names: impl Iterator<Item = N>,
    ) -> NameLock {
        let key = |name: N| {
            let mut hasher = FxHasher::default();
            name.hash(&mut hasher);
            hasher.finish()
        };
        // In one order for all: nobody waits in a circle.
        let mut keys: SmallVec<[u64; 2]> = names.map(key).collect();
        keys.sort_unstable();
        keys.dedup();
        let mut name_lock = NameLock { locks: self.clone(), keys: SmallVec::new() };
        for key in keys {
            let mut waiting = Waiting { locks: self, key, ticket: None };
            poll_fn(|context| waiting.poll(context.waker())).await;
            name_lock.keys.push(key);
        }
        name_lock
    }

    fn lock(&self) -> MutexGuard<'_, FxHashMap<u64, Queue>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next one, if there is one.
    fn pass_on(&self, key: u64) {
        let mut held = self.lock();
        let Some(queue) = held.get_mut(&key) else { return };
        let next = queue.waiting.pop_front();
        queue.called = next.as_ref().map(|(ticket, _)| *ticket);
        if next.is_none() {
            held.remove(&key);
        }
        drop(held);
        if let Some((_, waker)) = next {
            waker.wake();
        }
    }
}

impl Waiting<'_> {
    fn poll(&mut self, waker: &Waker) -> Poll<()> {
        let mut held = self.locks.lock();
        let Some(queue) = held.get_mut(&self.key) else {
            held.insert(self.key, Queue::default());
            return Poll::Ready(());
        };
        match self.ticket {
            Some(ticket) if queue.called == Some(ticket) => {
                queue.called = None;
                self.ticket = None;
                return Poll::Ready(());
            }
            Some(ticket) => {
                let own = queue.waiting.iter_mut().find(|(other, _)| *other == ticket);
                own.into_iter().for_each(|(_, old)| old.clone_from(waker));
            }
            None => {
                queue.tickets += 1;
                self.ticket = Some(queue.tickets);
                queue.waiting.push_back((queue.tickets, waker.clone()));
            }
        }
        Poll::Pending
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let Some(ticket) = self.ticket else { return };
        let mut held = self.locks.lock();
        let Some(queue) = held.get_mut(&self.key) else { return };
        queue.waiting.retain(|(other, _)| *other != ticket);
        if queue.called == Some(ticket) {
            drop(held);
            self.locks.pass_on(self.key);
        }
    }
}

impl Drop for NameLock {
    fn drop(&mut self) {
        self.keys.iter().for_each(|key| self.locks.pass_on(*key));
    }
}

#[cfg(test)]
mod tests {
    use std::pin::{Pin, pin};
    use std::task::Context;

    use super::*;

    fn take<'a>(
        locks: &'a Arc<NameLocks>,
        names: &'a [&'a [u8]],
    ) -> Pin<Box<dyn Future<Output = NameLock> + 'a>> {
        Box::pin(locks.take(names.iter().copied()))
    }

    fn is_ready<T>(mut future: Pin<&mut impl Future<Output = T>>) -> Option<T> {
        match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(value) => Some(value),
            Poll::Pending => None,
        }
    }

    #[test]
    fn a_name_is_changed_by_one_at_a_time_in_order() {
        let locks = Arc::new(NameLocks::default());
        let first = is_ready(pin!(take(&locks, &[b"a", b"b"]))).expect("it is free");
        assert!(is_ready(pin!(take(&locks, &[b"c"]))).is_some());
        let (mut second, mut third) = (take(&locks, &[b"b", b"a"]), take(&locks, &[b"a"]));
        assert!(is_ready(pin!(&mut second)).is_none());
        assert!(is_ready(pin!(&mut third)).is_none());
        drop(first);
        assert!(is_ready(pin!(&mut third)).is_none(), "it came later");
        let second = is_ready(pin!(&mut second)).expect("its turn");
        assert!(is_ready(pin!(&mut third)).is_none());
        drop(second);
        drop(is_ready(pin!(&mut third)).expect("its turn"));
        assert!(locks.lock().is_empty());
    }

    #[test]
    fn who_gives_up_keeps_nobody_waiting() {
        let locks = Arc::new(NameLocks::default());
        let first = is_ready(pin!(take(&locks, &[b"a"]))).expect("it is free");
        let mut others: Vec<_> = (0..3).map(|_| take(&locks, &[b"a"])).collect();
        others.iter_mut().for_each(|other| assert!(is_ready(pin!(other)).is_none()));
        // One that still waits, and one whose turn it is.
        drop(others.remove(1));
        drop(first);
        drop(others.remove(0));
        drop(is_ready(pin!(&mut others[0])).expect("its turn"));
        drop(others);
        assert!(locks.lock().is_empty());
    }

    #[test]
    fn a_name_twice_is_one() {
        let locks = Arc::new(NameLocks::default());
        assert!(is_ready(pin!(take(&locks, &[b"a", b"a"]))).is_some());
    }
}
