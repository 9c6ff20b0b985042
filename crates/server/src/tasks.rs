//! Running chains: a small executor for one thread.
//!
//! A chain is polled when it starts; most end there. One that waits for the store is polled
//! again when the store's completion wakes it, from whatever thread: the wake puts its number
//! into [`Ready`] and ends the worker's sleep.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use crate::plain_read::Miss;
use crate::ready::{PageEnds, Ready};

struct TaskWaker {
    ready: Arc<Ready>,
    task: usize,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.ready.push(self.task);
    }
}

/// Places that are kept when nothing runs.
const PLACES_KEPT: usize = 1024;

/// A future that runs.
enum Task {
    Any(Pin<Box<dyn Future<Output = ()>>>),
    /// The most frequent kind, which takes no memory but its place.
    Miss(Miss),
}

/// A place for a task, which wakes by its number, whoever has it.
struct Place {
    task: Option<Task>,
    waker: Waker,
}

impl Place {
    /// `None`: nothing runs here.
    fn poll(&mut self) -> Option<Poll<()>> {
        let context = &mut Context::from_waker(&self.waker);
        let polled = match self.task.as_mut()? {
            Task::Any(future) => future.as_mut().poll(context),
            Task::Miss(miss) => Pin::new(miss).poll(context),
        };
        if polled.is_ready() {
            self.task = None;
        }
        Some(polled)
    }
}

/// The tasks of one worker.
pub(crate) struct Tasks {
    places: Vec<Place>,
    free: Vec<usize>,
    ready: Arc<Ready>,
    taken: Vec<usize>,
}

impl Tasks {
    pub(crate) fn new(ready: Arc<Ready>) -> Tasks {
        Tasks { places: Vec::new(), free: Vec::new(), ready, taken: Vec::new() }
    }

    /// Starts a task: it runs at once, until it ends or waits.
    pub(crate) fn spawn(&mut self, future: impl Future<Output = ()> + 'static) {
        self.start(Task::Any(Box::pin(future)));
    }

    /// As [`spawn`](Self::spawn).
    #[inline(always)]
    pub(crate) fn spawn_miss(&mut self, miss: Miss) {
        self.start(Task::Miss(miss));
    }

    #[inline(always)]
    fn start(&mut self, task: Task) {
        let number = self.free.pop().unwrap_or_else(|| {
            let task = self.places.len();
            let waker = Waker::from(Arc::new(TaskWaker { ready: self.ready.clone(), task }));
            self.places.push(Place { task: None, waker });
            task
        });
        if let Some(place) = self.places.get_mut(number) {
            place.task = Some(task);
        }
        self.run(number);
    }

    /// Some task may have been woken, or some page have come.
    #[inline]
    pub(crate) fn has_ready(&self) -> bool {
        self.ready.has_some()
    }

    /// Goes on with every task that was woken, and adds the pages that have come; true if there was
    /// any. A task that was woken twice, or whose number was used again, is polled once too often, which
    /// futures allow.
    pub(crate) fn run_ready(&mut self, pages: &mut PageEnds) -> bool {
        let mut taken = std::mem::take(&mut self.taken);
        self.ready.take(&mut taken, pages);
        let any = !taken.is_empty() || !pages.is_empty();
        for task in taken.drain(..) {
            self.run(task);
        }
        self.taken = taken;
        any
    }

    /// Tasks that have not ended.
    pub(crate) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    fn run(&mut self, number: usize) {
        let polled = self.places.get_mut(number).and_then(Place::poll);
        if polled != Some(Poll::Ready(())) {
            return;
        }
        self.free.push(number);
        // Of a crowd, as the files of a large session that are closed, no memory is kept.
        if self.len() == 0 && self.places.len() > PLACES_KEPT {
            (self.places, self.free) = (Vec::new(), Vec::new());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::rc::Rc;

    #[test]
    fn a_task_goes_on_when_it_is_woken() {
        let ready = Arc::new(Ready::default());
        let mut tasks = Tasks::new(ready.clone());
        let (completer, pending) = dafs_store::pending::<u32>();
        let seen = Rc::new(Cell::new(0));
        let copy = seen.clone();
        tasks.spawn(async move { copy.set(pending.await) });
        assert_eq!((tasks.len(), seen.get()), (1, 0));
        assert!(!tasks.run_ready(&mut PageEnds::new()));
        std::thread::spawn(move || completer.complete(7)).join().expect("thread");
        assert!(!ready.prepare_sleep());
        assert!(tasks.run_ready(&mut PageEnds::new()));
        assert_eq!((tasks.len(), seen.get()), (0, 7));
    }

    #[test]
    fn the_places_of_a_crowd_are_given_back() {
        let mut tasks = Tasks::new(Arc::default());
        let waiting: Vec<_> = (0..=PLACES_KEPT)
            .map(|_| {
                let (completer, pending) = dafs_store::pending::<()>();
                tasks.spawn(pending);
                completer
            })
            .collect();
        assert_eq!((tasks.len(), tasks.places.len()), (PLACES_KEPT + 1, PLACES_KEPT + 1));
        waiting.into_iter().for_each(|completer| completer.complete(()));
        assert!(tasks.run_ready(&mut PageEnds::new()));
        assert_eq!((tasks.len(), tasks.places.len()), (0, 0));
        tasks.spawn(std::future::ready(()));
        assert_eq!((tasks.len(), tasks.places.len()), (0, 1), "others come");
    }
}
