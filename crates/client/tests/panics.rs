//! A thread panics while it drives a session: nobody waits on for what it does not do any more.

#[path = "core/fake.rs"]
mod fake;
#[path = "core/threaded.rs"]
mod threaded;

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use dafs_client::{Call, CallFuture, Done, Error, File, OpenOptions, Session, SessionOptions};
use dafs_fabric::{Buffer, poison};
use dafs_protocol::{Stability, WaitMode};
use threaded::Server;

const PATTERN: [u8; poison::PATTERN_BYTES] = [0xA7; poison::PATTERN_BYTES];
/// Long after a machine that is busy has done anything.
const PATIENCE: Duration = Duration::from_secs(60);

/// A server with a file at which whoever gets its data panics, and writes that it does not answer.
struct Stage {
    server: Server,
    session: Session,
    leaked: File,
    written: File,
}

fn stage(wait: WaitMode) -> Stage {
    poison::switch_on(PATTERN);
    let server = Server::start();
    server.with(|fake| fake.script.slots = Some(16));
    let options = SessionOptions { wait, ..SessionOptions::default() };
    let session = server.connect(options);
    let open = |name: &str| {
        let create = OpenOptions { write: true, create: true, ..OpenOptions::read() };
        session.open(name.as_bytes(), create).expect("open")
    };
    let (leaked, written) = (open("leaked"), open("written"));
    leaked.write_at(&PATTERN.repeat(4), 0).expect("write");
    server.with(|fake| fake.script.stall_writes = true);
    Stage { server, session, leaked, written }
}

impl Stage {
    fn write(&self) -> Call {
        let buffer = Buffer::new(100).expect("buffer");
        let stability = Stability::Unstable;
        Call::Write { file: self.written.clone(), offset: 0, buffer, len: 100, stability }
    }

    fn read(&self) -> Call {
        let buffer = Buffer::new(200).expect("buffer");
        Call::Read { file: self.leaked.clone(), offset: 0, buffer, len: 200 }
    }

    /// The server has so many writes.
    fn wait_for_writes(&self, count: usize) {
        while self.server.with(|fake| fake.stalled_requests()) < count {
            std::thread::yield_now();
        }
    }

    /// Also who comes later is told.
    fn expect_end(&self) {
        assert!(self.session.ping().is_err_and(|error| is_told(&error)));
        let done = self.session.call(self.write()).wait();
        assert!(done.result.is_err_and(|error| is_told(&error)));
        let group = self.session.group();
        group.submit(3, self.read()).expect("room");
        let done = group.wait(1, None);
        assert!(done[0].tag == 3 && done[0].result.as_ref().is_err_and(is_told));
        assert!(!self.session.is_connected());
    }
}

fn is_told(error: &Error) -> bool {
    error.to_string().contains("panicked")
}

/// On a thread of its own: what comes of it, or that it panicked.
fn begin<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> Receiver<Option<T>> {
    let (tell, told) = channel();
    std::thread::spawn(move || {
        let outcome = catch_unwind(AssertUnwindSafe(call)).ok();
        let _ = tell.send(outcome);
    });
    told
}

fn end_of<T>(begun: &Receiver<T>) -> T {
    begun.recv_timeout(PATIENCE).expect("it does not wait for ever")
}

struct Unpark(std::thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Only polls, as a runtime does: another thread drives.
fn block_on(mut future: CallFuture) -> Done {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        match Pin::new(&mut future).poll(&mut context) {
            Poll::Ready(done) => return done,
            Poll::Pending => std::thread::park(),
        }
    }
}

#[test]
fn when_a_caller_panics_that_leads_the_others_fail() {
    for wait in [WaitMode::Adaptive, WaitMode::Polled, WaitMode::Sleeping] {
        let stage = Arc::new(stage(wait));
        let mut calls = Vec::new();
        for count in 1..=2 {
            let writer = stage.clone();
            calls.push(begin(move || writer.written.write_at(&[1; 100], 0).map(drop)));
            stage.wait_for_writes(count);
        }
        let waiter = stage.clone();
        let group = begin(move || {
            let group = waiter.session.group();
            group.submit(5, waiter.write()).expect("room");
            group.wait(1, None)
        });
        stage.wait_for_writes(3);
        let polled = stage.session.call(stage.write());
        stage.wait_for_writes(4);
        let reader = stage.clone();
        calls.push(begin(move || reader.leaked.read_at(&mut [0; 200], 0).map(drop)));
        let ends: Vec<_> = calls.iter().map(end_of).collect();
        // Who led by then; the keeper, if it had not made way yet.
        let panicked = ends.iter().filter(|end| end.is_none()).count();
        let group = end_of(&group);
        assert!(panicked + usize::from(group.is_none()) <= 1);
        for end in ends.into_iter().flatten() {
            assert!(end.is_err_and(|error| is_told(&error)));
        }
        for done in group.into_iter().flatten() {
            assert!(done.tag == 5 && done.buffer.is_some(), "{done:?}");
            assert!(done.result.is_err_and(|error| is_told(&error)));
        }
        let polled = end_of(&begin(move || block_on(polled))).expect("no panic");
        assert!(polled.result.is_err_and(|error| is_told(&error)));
        stage.expect_end();
    }
}

#[test]
fn when_the_keeper_panics_all_fail() {
    let stage = stage(WaitMode::Adaptive);
    let session = &stage.session;
    let mut futures = vec![session.call(stage.write())];
    let (tell, told) = channel();
    session.call_then(stage.write(), move |done| drop(tell.send(done)));
    stage.wait_for_writes(2);
    futures.push(session.call(stage.read()));
    for future in futures {
        let done = end_of(&begin(move || block_on(future))).expect("no panic");
        assert!(done.result.is_err_and(|error| is_told(&error)));
    }
    let done = end_of(&told);
    assert!(done.buffer.is_some() && done.result.is_err_and(|error| is_told(&error)));
    stage.expect_end();
}

#[test]
fn who_only_polls_learns_of_his_own_panic() {
    let stage = stage(WaitMode::Adaptive);
    let group = stage.session.group();
    group.submit(1, stage.write()).expect("room");
    group.submit(2, stage.read()).expect("room");
    let polls = move || {
        let mut done = Vec::new();
        while done.len() < 2 {
            let polled = catch_unwind(AssertUnwindSafe(|| group.poll()));
            done.extend(polled.unwrap_or_default());
        }
        done
    };
    let done = end_of(&begin(polls)).expect("no other panic");
    assert!(done.iter().all(|done| done.result.as_ref().is_err_and(is_told)));
    stage.expect_end();
}
