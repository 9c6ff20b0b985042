//! Work that must be done to its end whoever waits for it: while the store reads pages, they belong
//! to the job, and a dropped request takes nothing away.
//!
//! A job is polled by everybody who waits for it; one whose waiters are all gone is polled by
//! [`Unifier::write_back`](crate::Unifier::write_back) and by whoever needs space.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use dafs_protocol::Status;
use smallvec::SmallVec;

use crate::wait::{add_waker, locked};

pub(crate) type Outcome = Result<(), Status>;

type Work = Pin<Box<dyn Future<Output = Outcome> + Send>>;

/// What ends, and can be waited for.
pub(crate) trait Ending {
    /// How it has ended; `waiter` is woken when it is to be asked again.
    fn poll(&self, waiter: Option<&Waker>) -> Poll<Outcome>;
}

/// A shared future: work to be done to its end.
pub(crate) struct Job {
    /// Locked by who polls it, without the lock of `state`. `None` when it has ended.
    work: Mutex<Option<Work>>,
    state: Mutex<Progress>,
}

struct Progress {
    /// Somebody is in `work.poll` now.
    polled: bool,
    /// It was not polled since it was woken, or at all.
    notified: bool,
    /// Mostly one.
    waiters: SmallVec<[Waker; 1]>,
    outcome: Option<Outcome>,
}

impl Progress {
    fn new(notified: bool) -> Progress {
        Progress { polled: false, notified, waiters: SmallVec::new(), outcome: None }
    }
}

impl Job {
    /// Nothing happens before it is polled.
    pub(crate) fn new(work: impl Future<Output = Outcome> + Send + 'static) -> Arc<Job> {
        Job::with(|_| work)
    }

    /// As `new`, for work that must know its job.
    pub(crate) fn with<W>(work: impl FnOnce(&Arc<Job>) -> W) -> Arc<Job>
    where
        W: Future<Output = Outcome> + Send + 'static,
    {
        let (none, state) = (Mutex::new(None), Mutex::new(Progress::new(false)));
        let job = Arc::new(Job { work: none, state });
        *locked(&job.work) = Some(Box::pin(work(&job)));
        locked(&job.state).notified = true;
        job
    }

    pub(crate) fn is_done(&self) -> bool {
        locked(&self.state).outcome.is_some()
    }

    /// Goes on as far as it can; `waiter` is woken when it can go further.
    pub(crate) fn poll(self: &Arc<Self>, waiter: Option<&Waker>) -> Poll<Outcome> {
        let mut state = locked(&self.state);
        loop {
            if let Some(outcome) = state.outcome {
                return Poll::Ready(outcome);
            }
            if !state.notified || state.polled {
                // Who polls is not woken by what it does itself.
                if let Some(waiter) = waiter {
                    add_waker(&mut state.waiters, waiter);
                }
                return Poll::Pending;
            }
            state.polled = true;
            state.notified = false;
            drop(state);
            let polled = self.poll_work();
            state = locked(&self.state);
            state.polled = false;
            if let Poll::Ready(outcome) = polled {
                state.outcome = Some(outcome);
                let waiters = std::mem::take(&mut state.waiters);
                drop(state);
                *locked(&self.work) = None;
                waiters.into_iter().for_each(Waker::wake);
                return polled;
            }
        }
    }

    /// Only one at a time does this: see `polled`.
    fn poll_work(self: &Arc<Self>) -> Poll<Outcome> {
        let waker = Waker::from(self.clone());
        let work = &mut *locked(&self.work);
        // What was stopped does not end.
        work.as_mut()
            .map_or(Poll::Pending, |work| work.as_mut().poll(&mut Context::from_waker(&waker)))
    }

    pub(crate) async fn wait(self: &Arc<Self>) -> Outcome {
        poll_fn(|context| self.poll(Some(context.waker()))).await
    }
}

impl Wake for Job {
    fn wake(self: Arc<Self>) {
        let mut state = locked(&self.state);
        state.notified = true;
        // Who polls now looks again when it is through.
        let waiters =
            if state.polled { SmallVec::new() } else { std::mem::take(&mut state.waiters) };
        drop(state);
        waiters.into_iter().for_each(Waker::wake);
    }
}

impl Ending for Arc<Job> {
    fn poll(&self, waiter: Option<&Waker>) -> Poll<Outcome> {
        Job::poll(self, waiter)
    }
}

/// Waits for all; the first failure.
pub(crate) async fn wait_all(jobs: &[impl Ending]) -> Outcome {
    poll_fn(|context| {
        let mut all = Poll::Ready(Ok(()));
        for job in jobs {
            match (job.poll(Some(context.waker())), all) {
                (Poll::Pending, _) => all = Poll::Pending,
                (Poll::Ready(Err(status)), Poll::Ready(Ok(()))) => all = Poll::Ready(Err(status)),
                _ => {}
            }
        }
        all
    })
    .await
}

/// Jobs that have begun, so that they end also when nobody waits for them.
#[derive(Default)]
pub(crate) struct Jobs {
    list: Mutex<(Vec<Arc<Job>>, usize)>,
}

impl Jobs {
    /// Begins.
    pub(crate) fn start(&self, job: &Arc<Job>) {
        if job.poll(None).is_ready() {
            return;
        }
        let (list, sweep_at) = &mut *locked(&self.list);
        if list.len() >= *sweep_at {
            list.retain(|job| !job.is_done());
            *sweep_at = 2 * list.len() + 16;
        }
        list.push(job.clone());
    }

    /// Somebody must poll: a job was woken that nobody waits for.
    pub(crate) fn has_stranded(&self) -> bool {
        let stranded = |job: &Arc<Job>| {
            let state = locked(&job.state);
            let is_left = state.notified && !state.polled && state.waiters.is_empty();
            drop(state);
            // Who polls it now goes on with it.
            is_left && job.work.try_lock().is_ok_and(|work| work.is_some())
        };
        locked(&self.list).0.iter().any(stranded)
    }

    /// Nobody polls them any more.
    pub(crate) fn clear(&self) {
        let jobs = std::mem::take(&mut *locked(&self.list));
        drop(jobs);
    }

    /// Polls all; true when one ended by that.
    pub(crate) fn poll(&self, waker: Option<&Waker>) -> bool {
        let jobs: Vec<Arc<Job>> = {
            let list = &mut locked(&self.list).0;
            list.retain(|job| !job.is_done());
            list.clone()
        };
        jobs.iter().filter(|job| job.poll(waker).is_ready()).count() > 0
    }
}
