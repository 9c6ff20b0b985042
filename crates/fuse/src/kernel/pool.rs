//! How many threads there are, and what each does next.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};

use super::channel::Channel;
use super::decode::{self, Request};
use super::interrupt::{Running, Slot, Waiting};
use super::lock;
use super::ring::Uring;

/// How requests are served.
#[derive(Debug, Clone)]
pub struct ServeOptions {
    /// Threads, at most (2 at least).
    pub threads_max: usize,
    /// Threads without work that are kept (2 at least).
    pub threads_idle: usize,
    /// Calls that wait for locks, each with a thread beyond `threads_max`; more get ENOLCK.
    pub lock_waits_max: usize,
    /// Whether requests come by rings: then a thread is there for each call, beside those above, and
    /// at most 256 calls from one CPU wait for locks.
    pub uring: Uring,
}

impl Default for ServeOptions {
    fn default() -> ServeOptions {
        ServeOptions { threads_max: 256, threads_idle: 8, lock_waits_max: 1024, uring: Uring::Off }
    }
}

/// Bytes of requests that wait for a thread; beyond that no more are read.
const QUEUE_BYTES_MAX: usize = 256 << 20;
/// After twice as many requests it is forgotten how many calls there were at a time.
const PEAK_LOOKS: u32 = 1024;

/// What a thread does next.
#[derive(Debug)]
pub enum Next {
    /// It reads a request.
    Read,
    /// It does this one, which waited; its slot says so already.
    Do(Vec<u8>),
    /// It ends.
    End,
}

/// What becomes of a request that was read.
#[derive(Debug, PartialEq, Eq)]
pub enum Taken {
    /// The thread that read it does it.
    Do,
    /// As `Do`, and a thread is to be started, since nobody else reads.
    DoAndStart,
    /// It was put into the queue; the thread goes on reading.
    Queued,
}

/// Threads and requests.
#[derive(Debug)]
pub struct Pool {
    threads_max: usize,
    threads_idle: usize,
    channel: Channel,
    /// Calls without an answer, and so many at a time, at most, in this while.
    calls: AtomicUsize,
    peak: AtomicUsize,
    state: Mutex<State>,
    /// The queue has room, the last thread ended.
    changed: Condvar,
    /// A thread that is parked is to read.
    called: Condvar,
}

#[derive(Debug, Default)]
struct State {
    threads: usize,
    /// Threads that wait for a request.
    reading: usize,
    /// Threads that will read soon.
    starting: usize,
    /// Threads without work that do not read, and how many of them are called to. The kernel wakes
    /// those that read by turns: as many as there are calls at a time, and one, stay warm.
    parked: usize,
    called: usize,
    /// Calls at a time, at most, in the last while, and times a thread had no work in this one.
    peak_before: usize,
    looks: u32,
    /// Calls that wait for locks: each has a thread more than `threads_max`, so that whoever
    /// holds the lock finds one.
    lock_waits: usize,
    queue: VecDeque<Vec<u8>>,
    queue_bytes: usize,
    stopped: bool,
}

impl State {
    /// Calls a parked thread to read, if there is one.
    fn call(&mut self) -> bool {
        let is_there = self.parked > self.called;
        self.called += usize::from(is_there);
        self.starting += usize::from(is_there);
        is_there
    }
}

impl Pool {
    /// No threads so far.
    pub fn new(channel: &Channel, options: &ServeOptions) -> Pool {
        Pool {
            threads_max: options.threads_max.max(2),
            threads_idle: options.threads_idle.max(2),
            channel: channel.clone(),
            calls: AtomicUsize::new(0),
            peak: AtomicUsize::new(0),
            state: Mutex::default(),
            changed: Condvar::new(),
            called: Condvar::new(),
        }
    }

    /// Counts a thread that is to be started.
    pub fn starting(&self) {
        let mut state = lock(&self.state);
        state.threads += 1;
        state.starting += 1;
    }

    /// It was not: the system has no more.
    pub fn not_started(&self) {
        let mut state = lock(&self.state);
        state.threads -= 1;
        state.starting -= 1;
    }

    /// It was.
    pub fn started(&self) {
        lock(&self.state).starting -= 1;
    }

    /// The thread is over.
    pub fn ended(&self) {
        lock(&self.state).threads -= 1;
        self.changed.notify_all();
    }

    /// What a thread without work does. A request from the queue is in `slot` before it is out of
    /// the queue for others.
    pub fn next(&self, slot: &Slot) -> Next {
        let mut state = lock(&self.state);
        if state.stopped {
            return Next::End;
        }
        let others_read = state.reading + state.starting > 0;
        if others_read && let Some(message) = state.queue.pop_front() {
            state.queue_bytes -= message.len();
            if let Some(call) = call_of(&message) {
                slot.begin(call);
            }
            self.changed.notify_all();
            return Next::Do(message);
        }
        let idle = state.reading + state.parked - state.called;
        if idle >= self.threads_idle {
            return Next::End;
        }
        state.looks += 1;
        if state.looks == PEAK_LOOKS {
            state.looks = 0;
            state.peak_before = self.peak.swap(0, Ordering::Relaxed);
        }
        let peak = self.peak.load(Ordering::Relaxed).max(state.peak_before);
        if state.reading + state.starting > peak + 1 {
            state.parked += 1;
            let waits = |state: &mut State| state.called == 0 && !state.stopped;
            let woken = self.called.wait_while(state, waits);
            state = woken.unwrap_or_else(PoisonError::into_inner);
            state.parked -= 1;
            if state.stopped {
                return Next::End;
            }
            state.called -= 1;
            state.starting -= 1;
        }
        state.reading += 1;
        Next::Read
    }

    /// A call begins.
    pub fn call_begins(&self) {
        let calls = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
        self.peak.fetch_max(calls, Ordering::Relaxed);
    }

    /// It is about to be answered.
    pub fn call_ends(&self) {
        self.calls.fetch_sub(1, Ordering::Relaxed);
    }

    /// A thread that read a request wants to do it.
    pub fn take(&self, message: &[u8], waits_for_lock: bool) -> Taken {
        let mut state = lock(&self.state);
        state.reading -= 1;
        state.lock_waits += usize::from(waits_for_lock);
        if state.reading + state.starting > 0 {
            Taken::Do
        } else if state.call() {
            self.called.notify_one();
            Taken::Do
        } else if state.threads < self.threads_max + state.lock_waits {
            state.threads += 1;
            state.starting += 1;
            Taken::DoAndStart
        } else {
            state.lock_waits -= usize::from(waits_for_lock);
            drop(state);
            self.put(message, waits_for_lock)
        }
    }

    /// As [`take`](Self::take), for a thread that failed to start another: if nobody else reads,
    /// the request goes into the queue.
    pub fn take_alone(&self, message: &[u8], waits_for_lock: bool) -> Taken {
        let mut state = lock(&self.state);
        state.threads -= 1;
        state.starting -= 1;
        if state.reading + state.starting > 0 {
            return Taken::Do;
        }
        state.lock_waits -= usize::from(waits_for_lock);
        drop(state);
        self.put(message, waits_for_lock)
    }

    fn put(&self, message: &[u8], waits_for_lock: bool) -> Taken {
        let full = |state: &mut State| {
            let full = state.queue_bytes + message.len() > QUEUE_BYTES_MAX;
            full && state.reading + state.starting == 0 && !state.stopped
        };
        let state = self.changed.wait_while(lock(&self.state), full);
        let mut state = state.unwrap_or_else(PoisonError::into_inner);
        if state.reading + state.starting > 0 {
            state.lock_waits += usize::from(waits_for_lock);
            return Taken::Do;
        }
        state.queue.push_back(message.to_vec());
        state.queue_bytes += message.len();
        state.reading += 1;
        Taken::Queued
    }

    /// A thread that read something for the loop itself, or nothing, does not read any more.
    pub fn stop_reading(&self) {
        lock(&self.state).reading -= 1;
    }

    /// A call that waits for a lock begins, from the queue. True: one more thread may be started,
    /// and was counted.
    pub fn lock_wait_begins(&self) -> bool {
        let mut state = lock(&self.state);
        state.lock_waits += 1;
        let start = !state.queue.is_empty()
            && state.starting == 0
            && state.threads < self.threads_max + state.lock_waits;
        if start {
            state.threads += 1;
            state.starting += 1;
        }
        start
    }

    /// A call that waited for a lock ended.
    pub fn lock_wait_ends(&self) {
        lock(&self.state).lock_waits -= 1;
    }

    /// Calls that wait for locks.
    pub fn lock_waits(&self) -> usize {
        lock(&self.state).lock_waits
    }

    /// Threads that have nothing to do end; what is in the queue is dropped.
    pub fn stop(&self) {
        let mut state = lock(&self.state);
        state.stopped = true;
        state.queue.clear();
        state.queue_bytes = 0;
        self.changed.notify_all();
        self.called.notify_all();
    }

    /// Waits until all threads have ended.
    pub fn wait(&self) {
        let left = |state: &mut State| state.threads > 0;
        drop(self.changed.wait_while(lock(&self.state), left));
    }
}

/// A call that waits in the queue.
fn call_of(message: &[u8]) -> Option<Running> {
    let (header, body) = decode::split(message).ok()?;
    match decode::decode(&header, body).ok()? {
        Request::Call(op) => Some(Running::new(&header, &op)),
        _ => None,
    }
}

impl Waiting for Pool {
    fn find(&self, unique: u64) -> Option<Running> {
        let state = lock(&self.state);
        let mut calls = state.queue.iter().filter_map(|message| call_of(message));
        calls.find(|call| call.unique() == unique)
    }

    fn flushes(&self) -> Vec<Running> {
        let state = lock(&self.state);
        let calls = state.queue.iter().filter_map(|message| call_of(message));
        calls.filter(Running::is_flush).collect()
    }

    fn give_up(&self, call: Running) {
        let mut state = lock(&self.state);
        let at = state.queue.iter().position(|message| call_of(message) == Some(call));
        let Some(message) = at.and_then(|at| state.queue.remove(at)) else { return };
        state.queue_bytes -= message.len();
        self.changed.notify_all();
        drop(state);
        let _ = self.channel.reply_error(call.unique(), libc::EINTR);
    }
}
