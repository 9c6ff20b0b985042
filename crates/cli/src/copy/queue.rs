//! A bounded queue from one thread that finds work to some that do it.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// First in, first out. `push` waits for room, `pop` for something to do.
pub struct Queue<T> {
    state: Mutex<State<T>>,
    room: Condvar,
    work: Condvar,
    items_max: usize,
}

struct State<T> {
    items: VecDeque<T>,
    closed: bool,
    pushers: usize,
    poppers: usize,
}

impl<T> Queue<T> {
    /// An empty one for at most `items_max`.
    pub fn new(items_max: usize) -> Queue<T> {
        let items = VecDeque::with_capacity(items_max);
        let state = State { items, closed: false, pushers: 0, poppers: 0 };
        Queue { state: Mutex::new(state), room: Condvar::new(), work: Condvar::new(), items_max }
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an item.
    pub fn push(&self, item: T) {
        let mut state = self.lock();
        while state.items.len() >= self.items_max {
            state.pushers += 1;
            state = self.room.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.pushers -= 1;
        }
        state.items.push_back(item);
        if state.poppers > 0 {
            self.work.notify_one();
        }
    }

    /// Nothing more will be added.
    pub fn close(&self) {
        self.lock().closed = true;
        self.work.notify_all();
    }

    /// The next item; waits for it. `None` when there will be none.
    pub fn pop(&self) -> Option<T> {
        let mut state = self.lock();
        while state.items.is_empty() {
            if state.closed {
                return None;
            }
            state.poppers += 1;
            state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.poppers -= 1;
        }
        self.take(&mut state)
    }

    /// The next item if it is there.
    pub fn try_pop(&self) -> Option<T> {
        self.take(&mut self.lock())
    }

    fn take(&self, state: &mut State<T>) -> Option<T> {
        let item = state.items.pop_front();
        // Half empty: the pusher does not wake for each item.
        if state.pushers > 0 && state.items.len() <= self.items_max / 2 {
            self.room.notify_all();
        }
        item
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_pass_a_queue_smaller_than_their_number() {
        let queue = Queue::new(4);
        std::thread::scope(|scope| {
            let sums: Vec<_> = (0..3)
                .map(|_| scope.spawn(|| std::iter::from_fn(|| queue.pop()).sum::<u64>()))
                .collect();
            (1..=1000).for_each(|item| queue.push(item));
            queue.close();
            let sum: u64 = sums.into_iter().map(|t| t.join().expect("no panic")).sum();
            assert_eq!(sum, 500_500);
        });
        assert_eq!(queue.pop(), None);
        assert_eq!(queue.try_pop(), None);
    }
}
