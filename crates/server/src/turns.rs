//! Changes of the same name run one at a time, so that what a change found before it began is
//! there when it does its work.

use std::future::poll_fn;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, Waker};

use dafs_protocol::FileHandle;
use rustc_hash::{FxHashMap, FxHasher};
use smallvec::SmallVec;

/// Names under change, by a hash, and who waits for each. Two names of one hash wait for each
/// other without need, which is rare.
#[derive(Default)]
pub(crate) struct NameTurns(Mutex<FxHashMap<u64, Vec<Waker>>>);

/// While it lives, nobody else has a turn for its names.
pub(crate) struct NameTurn {
    turns: Arc<NameTurns>,
    keys: SmallVec<[u64; 2]>,
}

impl NameTurns {
    /// Waits for a turn for all of these names.
    pub(crate) async fn take(self: &Arc<Self>, names: &[(FileHandle, &[u8])]) -> NameTurn {
        let key = |name: &(FileHandle, &[u8])| {
            let mut hasher = FxHasher::default();
            name.hash(&mut hasher);
            hasher.finish()
        };
        // In one order for all: nobody waits in a circle.
        let mut keys: SmallVec<[u64; 2]> = names.iter().map(key).collect();
        keys.sort_unstable();
        keys.dedup();
        let mut turn = NameTurn { turns: self.clone(), keys: SmallVec::new() };
        for key in keys {
            self.take_one(key).await;
            turn.keys.push(key);
        }
        turn
    }

    async fn take_one(&self, key: u64) {
        poll_fn(|context| {
            let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            match held.get_mut(&key) {
                Some(waiting) => {
                    waiting.push(context.waker().clone());
                    Poll::Pending
                }
                None => {
                    held.insert(key, Vec::new());
                    Poll::Ready(())
                }
            }
        })
        .await;
    }
}

impl Drop for NameTurn {
    fn drop(&mut self) {
        for key in &self.keys {
            let mut held = self.turns.0.lock().unwrap_or_else(PoisonError::into_inner);
            let waiting = held.remove(key);
            drop(held);
            waiting.into_iter().flatten().for_each(Waker::wake);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Context, Wake};

    use super::*;

    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_name_is_changed_by_one_at_a_time() {
        let turns = Arc::new(NameTurns::default());
        let wakes = Arc::new(Wakes::default());
        let waker = Waker::from(wakes.clone());
        let mut context = Context::from_waker(&waker);
        let (dir, other) = (FileHandle([1; 64]), FileHandle([2; 64]));
        let one = [(dir, &b"a"[..]), (dir, &b"b"[..])];
        let mut first = pin!(turns.take(&one));
        let Poll::Ready(first) = first.as_mut().poll(&mut context) else { panic!("it is free") };
        let others = [(other, &b"a"[..]), (dir, &b"c"[..])];
        let mut apart = pin!(turns.take(&others));
        assert!(apart.as_mut().poll(&mut context).is_ready());
        let back = [one[1], one[0]];
        let mut second = pin!(turns.take(&back));
        assert!(second.as_mut().poll(&mut context).is_pending());
        drop(first);
        assert_eq!(wakes.0.load(Ordering::Relaxed), 1);
        assert!(second.as_mut().poll(&mut context).is_ready());
    }

    #[test]
    fn a_name_twice_is_one() {
        let turns = Arc::new(NameTurns::default());
        let mut context = Context::from_waker(Waker::noop());
        let name = (FileHandle([1; 64]), &b"a"[..]);
        let names = [name, name];
        assert!(pin!(turns.take(&names)).as_mut().poll(&mut context).is_ready());
    }
}
