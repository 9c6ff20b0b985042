//! Completion groups: operations under way, and those that ended.
//!
//! Of the threads that wait for a group one leads: it waits for the session and hands out what ended;
//! the others sleep until something did. A group with a descriptor or a callback has a thread that
//! leads all the time.

mod collect;
mod queue;

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use dafs_client::{Call, Session};
use nix::sys::eventfd::EventFd;

use crate::failure::{Failure, Outcome};
pub use queue::{Ended, Event};
use queue::{Part, Queue};

/// Between attempts to submit what the session had no room for.
const ROOM_INTERVAL: Duration = Duration::from_millis(1);

/// See the module.
pub struct Group {
    client: dafs_client::Group,
    depth: usize,
    queue: Mutex<Queue>,
    /// Something ended, or the leader left.
    changed: Condvar,
    /// For the thread that collects: something was submitted, or it is to stop.
    submitted: Condvar,
    event: OnceLock<EventFd>,
}

/// What one operation asks of the session: calls, and how many bytes each moves.
pub struct Submission {
    /// As in `dap_op_t`.
    pub op: u32,
    /// As in `dap_op_t`.
    pub user: u64,
}

impl Group {
    /// For at most `depth` operations under way.
    pub fn new(session: &Session, depth: usize) -> Group {
        Group {
            client: session.group(),
            depth,
            queue: Mutex::new(Queue::default()),
            changed: Condvar::new(),
            submitted: Condvar::new(),
            event: OnceLock::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins an operation of one call that moves `bytes`; its name.
    ///
    /// # Errors
    /// `EAGAIN`: the group is full.
    pub fn submit_one(&self, of: &Submission, call: Call, bytes: u32) -> Outcome<u64> {
        let mut queue = self.room()?;
        let (id, index) = queue.begin(of.op, of.user);
        self.add(&mut queue, index, call, Part { start: 0, bytes });
        self.begun(&queue);
        Ok(id)
    }

    /// Begins an operation of several calls, which move bytes behind each other; its name.
    ///
    /// # Errors
    /// As [`submit_one`](Self::submit_one).
    pub fn submit_many(
        &self,
        of: &Submission,
        calls: impl Iterator<Item = (Call, u32)>,
    ) -> Outcome<u64> {
        let mut queue = self.room()?;
        let (id, index) = queue.begin(of.op, of.user);
        let mut start = 0u32;
        for (call, bytes) in calls {
            self.add(&mut queue, index, call, Part { start, bytes });
            start = start.saturating_add(bytes);
        }
        queue.end_without_parts(index);
        self.tell(&queue);
        self.begun(&queue);
        Ok(id)
    }

    fn room(&self) -> Outcome<MutexGuard<'_, Queue>> {
        let mut queue = self.lock();
        if queue.stopping {
            return Err(Failure::new(libc::EBADF, "the group is being destroyed"));
        }
        if queue.under_way >= self.depth {
            queue.refused = true;
            return Err(Failure::new(
                libc::EAGAIN,
                "the group is full: take results until DAP_EVENT_ROOM comes, or make it deeper",
            ));
        }
        Ok(queue)
    }

    fn add(&self, queue: &mut Queue, index: u32, call: Call, part: Part) {
        let tag = queue.add(index, part);
        // What is behind others stays behind them.
        if queue.backlog.is_empty() {
            if let Err(call) = self.client.submit(tag, call) {
                queue.backlog.push_back((tag, call));
            }
        } else {
            queue.backlog.push_back((tag, call));
        }
    }

    fn begun(&self, queue: &Queue) {
        if queue.collected {
            self.submitted.notify_one();
        }
    }

    /// Sends what was submitted.
    pub fn flush(&self) {
        self.client.flush();
    }

    /// Operations that have not ended.
    pub fn under_way(&self) -> usize {
        self.lock().under_way
    }

    /// Takes up to `max` results, when `min` operations ended (at most as many as are under way) or
    /// it is `until`; a time that is over looks once.
    ///
    /// # Errors
    /// `EBUSY`: they go to a callback.
    pub fn wait(
        &self,
        min: usize,
        until: Option<Instant>,
        max: usize,
        mut take: impl FnMut(Event),
    ) -> Outcome<()> {
        let mut queue = self.taking()?;
        let mut looked = false;
        let until = if min == 0 { Some(Instant::now()) } else { until };
        loop {
            let is_reached = queue.ended.len() >= min.min(queue.ended.len() + queue.under_way);
            if is_reached && (looked || min > 0 || queue.under_way == 0) {
                break;
            }
            if looked && until.is_some_and(|until| Instant::now() >= until) {
                break;
            }
            looked = true;
            queue = self.progress(queue, until);
        }
        let count = queue.ended.len().min(max);
        queue.ended.drain(..count).for_each(&mut take);
        self.calm(&queue);
        Ok(())
    }

    /// The result of one operation, or `None`: it had not ended when it was `until`.
    ///
    /// # Errors
    /// `ENOENT`: there is no such operation; `EBUSY`: its result goes to a callback.
    pub fn wait_one(&self, id: u64, until: Option<Instant>) -> Outcome<Option<Ended>> {
        let mut queue = self.taking()?;
        let mut looked = false;
        loop {
            if let Some(ended) = queue.take(id) {
                self.calm(&queue);
                return Ok(Some(ended));
            }
            if !queue.is_under_way(id) {
                return Err(unknown());
            }
            if looked && until.is_some_and(|until| Instant::now() >= until) {
                return Ok(None);
            }
            looked = true;
            queue = self.progress(queue, until);
        }
    }

    fn taking(&self) -> Outcome<MutexGuard<'_, Queue>> {
        let queue = self.lock();
        if queue.called_back {
            let text = "the results of this group go to its callback: use another group to wait";
            return Err(Failure::new(libc::EBUSY, text));
        }
        Ok(queue)
    }

    /// Waits until something ended, as the leader or behind it, or until a time, which may be over.
    fn progress<'a>(
        &'a self,
        mut queue: MutexGuard<'a, Queue>,
        until: Option<Instant>,
    ) -> MutexGuard<'a, Queue> {
        if !queue.led {
            return self.lead(queue, until);
        }
        queue.waiters += 1;
        let mut queue = match until {
            None => self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner),
            Some(until) => {
                let time = until.saturating_duration_since(Instant::now());
                let waited = self.changed.wait_timeout(queue, time);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
        };
        queue.waiters -= 1;
        queue
    }

    fn lead<'a>(
        &'a self,
        mut queue: MutexGuard<'a, Queue>,
        until: Option<Instant>,
    ) -> MutexGuard<'a, Queue> {
        queue.led = true;
        let mut done = std::mem::take(&mut queue.scratch);
        let waits_for_room = !queue.backlog.is_empty();
        drop(queue);
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        match left {
            Some(Duration::ZERO) => self.client.poll_into(&mut done),
            _ if waits_for_room => {
                let time = left.unwrap_or(ROOM_INTERVAL).min(ROOM_INTERVAL);
                if self.client.outstanding() > 0 {
                    self.client.wait_into(&mut done, 1, Some(time));
                } else {
                    self.client.wait_for_room(time);
                }
            }
            left => self.client.wait_into(&mut done, 1, left),
        }
        let mut queue = self.lock();
        queue.led = false;
        for done in done.drain(..) {
            queue.end_part(done);
        }
        queue.scratch = done;
        self.submit_backlog(&mut queue);
        self.tell(&queue);
        queue
    }

    fn submit_backlog(&self, queue: &mut Queue) {
        while let Some((tag, call)) = queue.backlog.pop_front() {
            if let Err(call) = self.client.submit(tag, call) {
                queue.backlog.push_front((tag, call));
                return;
            }
        }
    }

    /// Somebody may have something to take, or has to lead.
    fn tell(&self, queue: &Queue) {
        if queue.waiters > 0 {
            self.changed.notify_all();
        }
        if !queue.ended.is_empty()
            && let Some(event) = self.event.get()
        {
            // What is full is readable.
            let _ = event.write(1);
        }
    }

    /// The descriptor is readable while there is something to take.
    fn calm(&self, queue: &Queue) {
        if queue.ended.is_empty()
            && let Some(event) = self.event.get()
        {
            let _ = event.read();
        }
        if queue.waiters > 0 {
            self.changed.notify_all();
        }
    }

    /// Ends an operation that has not left, as cancelled.
    ///
    /// # Errors
    /// `EALREADY`: it has left, or ended; `ENOENT`: there is none.
    pub fn cancel(&self, id: u64) -> Outcome<()> {
        let mut queue = self.lock();
        if !queue.is_under_way(id) {
            return Err(if queue.has_ended(id) { already() } else { unknown() });
        }
        let mut any = queue.cancel_backlog(id);
        for tag in queue.tags(id) {
            any |= self.client.cancel(tag);
        }
        self.tell(&queue);
        if any { Ok(()) } else { Err(already()) }
    }
}

fn unknown() -> Failure {
    Failure::new(
        libc::ENOENT,
        "the group has no such operation: its result was taken, or it is of another",
    )
}

fn already() -> Failure {
    Failure::new(libc::EALREADY, "the operation has left or ended: take its result as usual")
}

/// Ended operations that nobody took.
type Endings = VecDeque<Event>;
