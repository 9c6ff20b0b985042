//! Completion groups: many calls under way, collected as they end.

use std::sync::Arc;
use std::time::{Duration, Instant};

use dafs_protocol::Identity;

use crate::call::{Call, Done};
use crate::core::CoreDone;
use crate::handle::Handle;
use crate::interrupt::Until;
use crate::leader::State;

/// Collects the calls that are submitted to it. Meant for one thread at a time.
///
/// What is submitted leaves at the next [`wait`](Self::wait), [`poll`](Self::poll) or
/// [`flush`](Self::flush), so that many small requests travel together. Dropping a group throws
/// away the answers that are still to come; their buffers are freed when the network has left
/// them.
pub struct Group {
    session: Arc<Handle>,
    user: Option<Arc<Identity>>,
    sink: usize,
}

impl std::fmt::Debug for Group {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Group").field("sink", &self.sink).finish_non_exhaustive()
    }
}

impl Group {
    pub(crate) fn new(session: Arc<Handle>, user: Option<Arc<Identity>>) -> Group {
        let sink = session.inner.lock().take_sink(false);
        Group { session, user, sink }
    }

    /// Begins a call; its [`Done`] will have this `tag`. Does not block.
    ///
    /// # Errors
    /// The call again, when the session has no room for more: wait, then submit again.
    #[allow(clippy::result_large_err, reason = "the call comes back whole")]
    pub fn submit(&self, tag: u64, call: Call) -> Result<(), Call> {
        let mut state = self.session.inner.lock();
        if !state.core.has_room() {
            return Err(call);
        }
        match call.into_work() {
            Ok((work, memory, file)) => {
                state.submit(self.sink, tag, self.user.clone(), work, memory);
                drop(state);
                // Not under the lock: the last handle of a file closes it.
                drop(file);
            }
            Err((error, buffer)) => {
                let done = CoreDone::failed(tag, error, buffer);
                state.sink(self.sink).done.push_back(done);
            }
        }
        Ok(())
    }

    /// Waits until `min` calls ended (at most as many as there are), or `timeout` is over, and
    /// takes all that did.
    pub fn wait(&self, min: usize, timeout: Option<Duration>) -> Vec<Done> {
        let mut done = Vec::new();
        self.wait_into(&mut done, min, timeout);
        done
    }

    /// As [`wait`](Self::wait), appends to `done`.
    pub fn wait_into(&self, done: &mut Vec<Done>, min: usize, timeout: Option<Duration>) {
        let inner = &self.session.inner;
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        let until = Until { deadline, interrupt: None };
        let mut state = inner.lock();
        let sink = state.sink(self.sink);
        let want = min.min(sink.done.len() + sink.outstanding);
        state = inner.wait(state, self.sink, want, until);
        self.take(&mut state, done);
    }

    /// Waits until the session has room for another call, or `timeout` is over: for who has nothing
    /// under way to wait for.
    pub fn wait_for_room(&self, timeout: Duration) {
        let inner = &self.session.inner;
        let until = Until::deadline(Instant::now() + timeout);
        drop(inner.wait_for_room(inner.lock(), self.sink, until));
    }

    /// Makes progress and takes what ended, without waiting.
    pub fn poll(&self) -> Vec<Done> {
        let mut done = Vec::new();
        self.poll_into(&mut done);
        done
    }

    /// As [`poll`](Self::poll), appends to `done`.
    pub fn poll_into(&self, done: &mut Vec<Done>) {
        let inner = &self.session.inner;
        let mut state = inner.poll(inner.lock());
        self.take(&mut state, done);
    }

    /// Ends the calls with this tag that have not left yet, with
    /// [`Error::Interrupted`](crate::Error::Interrupted), but for a close, which is always done. False:
    /// there is none, and those that left are answered as if nobody had asked.
    pub fn cancel(&self, tag: u64) -> bool {
        self.session.inner.lock().cancel_queued(self.sink, tag)
    }

    /// Sends what was submitted now.
    pub fn flush(&self) {
        self.session.inner.lock().core.ring();
    }

    /// Calls submitted and not taken.
    pub fn outstanding(&self) -> usize {
        let mut state = self.session.inner.lock();
        let sink = state.sink(self.sink);
        sink.outstanding + sink.done.len()
    }

    fn take(&self, state: &mut State, into: &mut Vec<Done>) {
        let session = &self.session;
        into.extend(state.sink(self.sink).done.drain(..).map(|done| Done::of(session, done)));
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.session.inner.lock().drop_sink(self.sink);
    }
}
