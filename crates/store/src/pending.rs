//! A result that is here or will come: the completion of one store call.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use dafs_protocol::Status;

use crate::read_end::ReadEnd;

/// A completion. A future; [`wait`](Pending::wait) blocks instead.
#[derive(Debug)]
pub struct Pending<T> {
    state: State<T>,
}

#[derive(Debug)]
enum State<T> {
    Ready(Option<T>),
    Later(Arc<Shared<T>>),
}

#[derive(Debug)]
struct Shared<T> {
    slot: Mutex<Slot<T>>,
    filled: Condvar,
}

/// Who waits.
enum Next<T> {
    Wake(Waker),
    /// Takes the value; `None`: it is lost.
    Call(Box<dyn FnOnce(Option<T>) + Send>),
}

impl<T> fmt::Debug for Next<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Next::Wake(_) => "Wake",
            Next::Call(_) => "Call",
        })
    }
}

#[derive(Debug)]
struct Slot<T> {
    value: Option<T>,
    next: Option<Next<T>>,
    lost: bool,
    /// A thread is blocked until `filled`.
    is_awaited: bool,
}

/// The side that completes. Dropping it without a value makes the waiter panic: a store answers
/// every call.
#[derive(Debug)]
pub struct Completer<T> {
    shared: Option<Arc<Shared<T>>>,
}

/// A completion that comes later.
pub fn pending<T>() -> (Completer<T>, Pending<T>) {
    let slot = Slot { value: None, next: None, lost: false, is_awaited: false };
    let shared = Arc::new(Shared { slot: Mutex::new(slot), filled: Condvar::new() });
    (Completer { shared: Some(shared.clone()) }, Pending { state: State::Later(shared) })
}

impl<T> Shared<T> {
    fn lock(&self) -> MutexGuard<'_, Slot<T>> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fill(&self, value: Option<T>) {
        let mut slot = self.lock();
        let waker = match slot.next.take() {
            Some(Next::Call(call)) => {
                drop(slot);
                return call(value);
            }
            Some(Next::Wake(waker)) => Some(waker),
            None => None,
        };
        slot.lost = value.is_none();
        slot.value = value;
        let is_awaited = slot.is_awaited;
        drop(slot);
        // It costs a system call also where nobody waits.
        if is_awaited {
            self.filled.notify_one();
        }
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<T> Completer<T> {
    /// Completes; wakes whoever waits.
    pub fn complete(mut self, value: T) {
        if let Some(shared) = self.shared.take() {
            shared.fill(Some(value));
        }
    }
}

impl<T> Drop for Completer<T> {
    fn drop(&mut self) {
        if let Some(shared) = self.shared.take() {
            shared.fill(None);
        }
    }
}

impl<T> Pending<T> {
    /// Done already.
    pub fn ready(value: T) -> Pending<T> {
        Pending { state: State::Ready(Some(value)) }
    }

    /// The value if it is here now (once).
    pub fn try_take(&mut self) -> Option<T> {
        match &mut self.state {
            State::Ready(value) => value.take(),
            State::Later(shared) => shared.lock().value.take(),
        }
    }

    /// Blocks this thread until it is here.
    ///
    /// # Panics
    /// When the store dropped the call, or the value was taken before.
    pub fn wait(mut self) -> T {
        match &mut self.state {
            State::Ready(value) => value.take().expect("a completion is taken once"),
            State::Later(shared) => {
                let here = |shared: &Shared<T>| {
                    let slot = shared.lock();
                    slot.value.is_some() || slot.lost
                };
                // What this thread's own transfers bring comes when it looks.
                while !here(shared) && crate::thread_io::wait_for_one() {}
                let mut slot = shared.lock();
                loop {
                    if let Some(value) = slot.value.take() {
                        return value;
                    }
                    assert!(!slot.lost, "the store dropped a call");
                    slot.is_awaited = true;
                    slot = shared.filled.wait(slot).unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }
}

impl Pending<Result<usize, Status>> {
    /// Has one told of it, now or when it comes, in whatever thread.
    pub fn then(self, end: ReadEnd) {
        let shared = match self.state {
            State::Ready(value) => return end.tell(value.expect("a completion is taken once")),
            State::Later(shared) => shared,
        };
        let mut slot = shared.lock();
        match slot.value.take() {
            Some(value) => {
                drop(slot);
                end.tell(value);
            }
            // Dropped, it tells that.
            None if slot.lost => {
                drop(slot);
                drop(end);
            }
            None => {
                let call = move |value| match value {
                    Some(value) => end.tell(value),
                    None => drop(end),
                };
                slot.next = Some(Next::Call(Box::new(call)));
            }
        }
    }
}

impl<T: Unpin> Future for Pending<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        match &mut self.state {
            State::Ready(value) => Poll::Ready(value.take().expect("polled once after ready")),
            State::Later(shared) => {
                let mut slot = shared.lock();
                if let Some(value) = slot.value.take() {
                    return Poll::Ready(value);
                }
                assert!(!slot.lost, "the store dropped a call");
                slot.next = Some(Next::Wake(context.waker().clone()));
                Poll::Pending
            }
        }
    }
}
