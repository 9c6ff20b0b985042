//! First come, first served.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

/// Who waits for something that one at a time may have.
#[derive(Debug, Default)]
pub(super) struct Line {
    queue: Mutex<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    next: u64,
    tickets: VecDeque<(u64, Option<Waker>)>,
}

/// A place in a [`Line`]; dropped, the next one's turn comes.
#[derive(Debug)]
pub(super) struct Turn<'a> {
    line: &'a Line,
    ticket: u64,
}

impl Line {
    pub(super) fn is_empty(&self) -> bool {
        self.lock().tickets.is_empty()
    }

    /// Waits until everybody who came before has left.
    pub(super) async fn turn(&self) -> Turn<'_> {
        let turn = {
            let mut queue = self.lock();
            let ticket = queue.next;
            queue.next += 1;
            queue.tickets.push_back((ticket, None));
            Turn { line: self, ticket }
        };
        poll_fn(|context| {
            let mut queue = self.lock();
            if queue.tickets.front().is_some_and(|front| front.0 == turn.ticket) {
                return Poll::Ready(());
            }
            if let Some(place) = queue.tickets.iter_mut().find(|place| place.0 == turn.ticket) {
                place.1 = Some(context.waker().clone());
            }
            Poll::Pending
        })
        .await;
        turn
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut queue = self.line.lock();
        queue.tickets.retain(|place| place.0 != self.ticket);
        let next = queue.tickets.front_mut().and_then(|front| front.1.take());
        drop(queue);
        if let Some(next) = next {
            next.wake();
        }
    }
}
