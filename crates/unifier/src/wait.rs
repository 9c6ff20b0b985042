//! Waiting without a runtime: lists of wakers.

use std::cell::Cell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::atomic::{AtomicUsize, Ordering, fence};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use smallvec::SmallVec;

#[inline(always)]
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Adds `waker` unless it is there.
pub(crate) fn add_waker(wakers: &mut SmallVec<[Waker; 1]>, waker: &Waker) {
    if !wakers.iter().any(|known| known.will_wake(waker)) {
        wakers.push(waker.clone());
    }
}

/// Who waits for free slots or for room below the dirty bound. Telling it costs one load while
/// nobody waits.
#[derive(Debug, Default)]
pub(crate) struct Space {
    waiting: AtomicUsize,
    wakers: Mutex<SmallVec<[Waker; 1]>>,
    /// Attempts begun, and those that have not ended.
    begun: AtomicUsize,
    active: AtomicUsize,
}

thread_local! {
    /// An attempt of this thread is under way: what it gives back is no news.
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Sets [`QUIET`] while it lives, also over a panic.
struct Quiet;

impl Quiet {
    fn new() -> Quiet {
        QUIET.set(true);
        Quiet
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        QUIET.set(false);
    }
}

impl Space {
    /// To be called before looking (again) whether there is space.
    pub(crate) fn register(&self, waker: &Waker) {
        let mut wakers = locked(&self.wakers);
        add_waker(&mut wakers, waker);
        self.waiting.store(wakers.len(), Ordering::SeqCst);
        // What is looked at next was not read before this is seen.
        fence(Ordering::SeqCst);
    }

    /// There may be space now.
    #[inline]
    pub(crate) fn changed(&self) {
        if self.waiting.load(Ordering::SeqCst) != 0 && !QUIET.get() {
            self.wake();
        }
    }

    /// Looks whether there is enough. What a vain attempt took of it for a moment is told to
    /// others only if they may have missed it: two who wait would wake each other for ever.
    pub(crate) fn attempt<T>(&self, attempt: impl FnOnce() -> Option<T>) -> Option<T> {
        let others = self.active.fetch_add(1, Ordering::SeqCst);
        let begun = self.begun.fetch_add(1, Ordering::SeqCst);
        let got = {
            let _quiet = Quiet::new();
            attempt()
        };
        let alone = self.active.fetch_sub(1, Ordering::SeqCst) == 1 && others == 0;
        if got.is_none() && !(alone && self.begun.load(Ordering::SeqCst) == begun.wrapping_add(1)) {
            self.changed();
        }
        got
    }

    fn wake(&self) {
        let mut wakers = locked(&self.wakers);
        let woken = std::mem::take(&mut *wakers);
        self.waiting.store(0, Ordering::SeqCst);
        drop(wakers);
        woken.into_iter().for_each(Waker::wake);
    }
}

/// Who waits for something that one at a time may have: first come, first served.
#[derive(Debug, Default)]
pub struct FairQueue {
    queue: Mutex<Tickets>,
    len: AtomicUsize,
}

#[derive(Debug, Default)]
struct Tickets {
    next: u64,
    tickets: VecDeque<(u64, Option<Waker>)>,
}

/// A place in a [`FairQueue`]; dropped, the next one goes on.
#[derive(Debug)]
pub struct Ticket<'a> {
    queue: &'a FairQueue,
    number: u64,
}

impl FairQueue {
    /// Nobody waits, or is the first.
    pub fn is_empty(&self) -> bool {
        self.len.load(Ordering::Relaxed) == 0
    }

    /// Waits until everybody who came before has left.
    pub async fn enter(&self) -> Ticket<'_> {
        let ticket = {
            let mut queue = locked(&self.queue);
            let number = queue.next;
            queue.next += 1;
            queue.tickets.push_back((number, None));
            self.len.store(queue.tickets.len(), Ordering::Relaxed);
            Ticket { queue: self, number }
        };
        poll_fn(|context| {
            let mut queue = locked(&self.queue);
            if queue.tickets.front().is_some_and(|front| front.0 == ticket.number) {
                return Poll::Ready(());
            }
            if let Some(place) = queue.tickets.iter_mut().find(|place| place.0 == ticket.number) {
                place.1 = Some(context.waker().clone());
            }
            Poll::Pending
        })
        .await;
        ticket
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        let mut queue = locked(&self.queue.queue);
        queue.tickets.retain(|place| place.0 != self.number);
        self.queue.len.store(queue.tickets.len(), Ordering::Relaxed);
        let next = queue.tickets.front_mut().and_then(|front| front.1.take());
        drop(queue);
        if let Some(next) = next {
            next.wake();
        }
    }
}
