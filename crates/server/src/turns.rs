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
pub(crate) struct NameTurns(Mutex<FxHashMap<u64, Turns>>);

/// Who has the turn for a name, and who waits, first come, first served.
#[derive(Default)]
struct Turns {
    waiting: VecDeque<(u64, Waker)>,
    tickets: u64,
    /// It is the turn of this ticket, which was woken.
    called: Option<u64>,
}

/// While it lives, nobody else has a turn for its names.
pub(crate) struct NameTurn {
    turns: Arc<NameTurns>,
    keys: SmallVec<[u64; 2]>,
}

/// Somebody waits, or had to.
struct Waiting<'a> {
    turns: &'a NameTurns,
    key: u64,
    ticket: Option<u64>,
}

impl NameTurns {
    /// Waits for a turn for all of these names.
    pub(crate) async fn take<N: Hash>(
        self: &Arc<Self>,
        names: impl Iterator<Item = N>,
    ) -> NameTurn {
        let key = |name: N| {
            let mut hasher = FxHasher::default();
            name.hash(&mut hasher);
            hasher.finish()
        };
        // In one order for all: nobody waits in a circle.
        let mut keys: SmallVec<[u64; 2]> = names.map(key).collect();
        keys.sort_unstable();
        keys.dedup();
        let mut turn = NameTurn { turns: self.clone(), keys: SmallVec::new() };
        for key in keys {
            let mut waiting = Waiting { turns: self, key, ticket: None };
            poll_fn(|context| waiting.poll(context.waker())).await;
            turn.keys.push(key);
        }
        turn
    }

    fn lock(&self) -> MutexGuard<'_, FxHashMap<u64, Turns>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next one, if there is one.
    fn pass_on(&self, key: u64) {
        let mut held = self.lock();
        let Some(turns) = held.get_mut(&key) else { return };
        let next = turns.waiting.pop_front();
        turns.called = next.as_ref().map(|(ticket, _)| *ticket);
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
        let mut held = self.turns.lock();
        let Some(turns) = held.get_mut(&self.key) else {
            held.insert(self.key, Turns::default());
            return Poll::Ready(());
        };
        match self.ticket {
            Some(ticket) if turns.called == Some(ticket) => {
                turns.called = None;
                self.ticket = None;
                return Poll::Ready(());
            }
            Some(ticket) => {
                let own = turns.waiting.iter_mut().find(|(other, _)| *other == ticket);
                own.into_iter().for_each(|(_, old)| old.clone_from(waker));
            }
            None => {
                turns.tickets += 1;
                self.ticket = Some(turns.tickets);
                turns.waiting.push_back((turns.tickets, waker.clone()));
            }
        }
        Poll::Pending
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let Some(ticket) = self.ticket else { return };
        let mut held = self.turns.lock();
        let Some(turns) = held.get_mut(&self.key) else { return };
        turns.waiting.retain(|(other, _)| *other != ticket);
        if turns.called == Some(ticket) {
            drop(held);
            self.turns.pass_on(self.key);
        }
    }
}

impl Drop for NameTurn {
    fn drop(&mut self) {
        self.keys.iter().for_each(|key| self.turns.pass_on(*key));
    }
}

#[cfg(test)]
mod tests {
    use std::pin::{Pin, pin};
    use std::task::Context;

    use super::*;

    fn take<'a>(
        turns: &'a Arc<NameTurns>,
        names: &'a [&'a [u8]],
    ) -> Pin<Box<dyn Future<Output = NameTurn> + 'a>> {
        Box::pin(turns.take(names.iter().copied()))
    }

    fn is_ready<T>(mut future: Pin<&mut impl Future<Output = T>>) -> Option<T> {
        match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(value) => Some(value),
            Poll::Pending => None,
        }
    }

    #[test]
    fn a_name_is_changed_by_one_at_a_time_in_order() {
        let turns = Arc::new(NameTurns::default());
        let first = is_ready(pin!(take(&turns, &[b"a", b"b"]))).expect("it is free");
        assert!(is_ready(pin!(take(&turns, &[b"c"]))).is_some());
        let (mut second, mut third) = (take(&turns, &[b"b", b"a"]), take(&turns, &[b"a"]));
        assert!(is_ready(pin!(&mut second)).is_none());
        assert!(is_ready(pin!(&mut third)).is_none());
        drop(first);
        assert!(is_ready(pin!(&mut third)).is_none(), "it came later");
        let second = is_ready(pin!(&mut second)).expect("its turn");
        assert!(is_ready(pin!(&mut third)).is_none());
        drop(second);
        drop(is_ready(pin!(&mut third)).expect("its turn"));
        assert!(turns.lock().is_empty());
    }

    #[test]
    fn who_gives_up_keeps_nobody_waiting() {
        let turns = Arc::new(NameTurns::default());
        let first = is_ready(pin!(take(&turns, &[b"a"]))).expect("it is free");
        let mut others: Vec<_> = (0..3).map(|_| take(&turns, &[b"a"])).collect();
        others.iter_mut().for_each(|other| assert!(is_ready(pin!(other)).is_none()));
        // One that still waits, and one whose turn it is.
        drop(others.remove(1));
        drop(first);
        drop(others.remove(0));
        drop(is_ready(pin!(&mut others[0])).expect("its turn"));
        drop(others);
        assert!(turns.lock().is_empty());
    }

    #[test]
    fn a_name_twice_is_one() {
        let turns = Arc::new(NameTurns::default());
        assert!(is_ready(pin!(take(&turns, &[b"a", b"a"]))).is_some());
    }
}
