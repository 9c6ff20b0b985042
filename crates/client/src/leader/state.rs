//! What the lock of a session protects.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use dafs_fabric::{Spin, Waiter};
use dafs_protocol::{Identity, WaitMode};

use crate::core::{Core, CoreDone, KeptBytes, Memory, Output, Owner, Work};

/// Where answers go: of one group, one future, or one blocking call.
#[derive(Default)]
pub(crate) struct Sink {
    pub(crate) done: VecDeque<CoreDone>,
    /// Calls without an answer yet.
    pub(crate) outstanding: usize,
    /// The keeper drives for it.
    pub(crate) is_async: bool,
    pub(crate) waker: Option<Waker>,
    /// The thread that waits for `want` answers.
    pub(super) parked: Option<std::thread::Thread>,
    pub(super) want: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Leader {
    None,
    Caller,
    Keeper,
}

/// What the session's lock protects.
pub(crate) struct State {
    pub(crate) core: Core,
    pub(super) sinks: Vec<Sink>,
    pub(super) free: Vec<usize>,
    /// Sinks whose thread sleeps until it is done or has to lead.
    pub(super) parked: Vec<usize>,
    pub(super) leader: Leader,
    /// A caller wants to lead in place of the keeper.
    pub(super) keeper_yields: bool,
    /// The leader sleeps: what is submitted must be rung.
    pub(super) asleep: bool,
    pub(super) wakers: Vec<Waker>,
    /// Futures that wait for room.
    pub(crate) room_wakers: Vec<Waker>,
    pub(super) async_outstanding: usize,
    /// Calls so far, and as many as the keeper saw at its last look.
    pub(super) calls: u64,
    pub(super) calls_seen: u64,
    pub(super) cancelled: bool,
    pub(super) wait: WaitMode,
    pub(super) spin: Spin,
    pub(super) waiter: Arc<dyn Waiter>,
}

impl State {
    /// Nothing is there yet: whether to look again at once.
    pub(super) fn spins(&mut self, now: Duration) -> bool {
        let core = &mut self.core;
        self.spin.goes_on(now, || core.peers_are_here())
    }

    pub(crate) fn take_sink(&mut self, is_async: bool) -> usize {
        let index = self.free.pop().unwrap_or_else(|| {
            self.sinks.push(Sink::default());
            self.sinks.len() - 1
        });
        self.sink(index).is_async = is_async;
        index
    }

    /// Answers that are still to come are thrown away when they come; files in answers that
    /// nobody took are closed.
    pub(crate) fn drop_sink(&mut self, index: usize) {
        let (outstanding, is_async) = (self.sink(index).outstanding, self.sink(index).is_async);
        if outstanding > 0 {
            self.core.abandon_owner(Owner(index));
            if is_async {
                self.async_outstanding -= outstanding;
            }
        }
        while let Some(done) = self.sink(index).done.pop_front() {
            if let Ok(Output::File(key, _)) = done.result {
                self.core.close_file(key);
            }
        }
        let sink = self.sink(index);
        sink.outstanding = 0;
        sink.waker = None;
        self.free.push(index);
        if outstanding > 0 {
            // Closes may have waited for these calls.
            self.leave();
        }
    }

    pub(crate) fn sink(&mut self, index: usize) -> &mut Sink {
        self.sinks.get_mut(index).expect("sinks are never removed")
    }

    /// The caller saw that there is room.
    pub(crate) fn submit(
        &mut self,
        sink: usize,
        tag: u64,
        user: Option<Arc<Identity>>,
        work: Work,
        memory: Memory,
    ) {
        self.count(sink);
        self.core.submit_as(Owner(sink), tag, user, work, memory);
        self.submitted();
    }

    /// As `submit`, for a write of `bytes`, which are kept.
    pub(super) fn submit_kept(
        &mut self,
        sink: usize,
        work: Work,
        memory: Memory,
        bytes: KeptBytes,
    ) {
        self.count(sink);
        self.core.submit_kept(Owner(sink), 0, work, memory, bytes);
        self.submitted();
    }

    pub(super) fn count(&mut self, sink: usize) {
        self.calls += 1;
        let entry = self.sink(sink);
        entry.outstanding += 1;
        if entry.is_async {
            self.async_outstanding += 1;
        }
    }

    pub(super) fn submitted(&mut self) {
        if self.core.has_done() {
            self.ended_here();
        }
        self.leave();
    }

    /// What was submitted leaves now where the leader sleeps; otherwise with its next progress.
    pub(super) fn leave(&mut self) {
        if !self.asleep {
            return;
        }
        if !self.core.wants_progress() {
            self.core.ring();
        }
        // What did not leave at once, since it is long or the network is busy, the leader sends.
        if !self.core.arm() {
            self.waiter.wake();
        }
    }

    /// Ends calls of a sink that have not left; false: there are none.
    pub(crate) fn cancel_queued(&mut self, sink: usize, tag: u64) -> bool {
        let any = self.core.cancel_queued(Owner(sink), tag);
        if any {
            self.ended_here();
        }
        any
    }

    /// Calls ended without the server, as those that are refused at once: a leader that sleeps does
    /// not learn of it by itself, and may be who waits for them.
    fn ended_here(&mut self) {
        self.dispatch();
        if self.asleep {
            self.waiter.wake();
        }
    }

    /// Moves answers to their sinks.
    pub(super) fn dispatch(&mut self) {
        while let Some(done) = self.core.next_done() {
            let Some(Owner(index)) = done.owner else { continue };
            let sink = self.sinks.get_mut(index).expect("sinks are never removed");
            sink.outstanding -= 1;
            sink.done.push_back(done);
            if sink.is_async {
                self.async_outstanding -= 1;
                self.wakers.extend(sink.waker.take());
            }
            if sink.done.len() >= sink.want
                && let Some(thread) = sink.parked.take()
            {
                thread.unpark();
            }
        }
        if !self.room_wakers.is_empty() && self.core.has_room() {
            self.wakers.append(&mut self.room_wakers);
        }
    }

    /// Whether the keeper must lead when nobody else does.
    pub(super) fn needs_driver(&self) -> bool {
        self.async_outstanding > 0 || !self.room_wakers.is_empty() || self.core.is_unsettled()
    }
}
