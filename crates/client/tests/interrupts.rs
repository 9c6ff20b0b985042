//! Interrupts end blocking calls, over TCP with a scripted server.

#[path = "core/fake.rs"]
mod fake;
#[path = "core/threaded.rs"]
mod threaded;

use std::time::Duration;

use dafs_client::{Call, Error, File, Interrupt, OpenOptions, Session, SessionOptions};
use dafs_fabric::Buffer;
use dafs_protocol::{LockKind, LockRange, LockRequest, OwnerKey, WaitMode};
use threaded::Server;

fn hard() -> SessionOptions {
    SessionOptions { retry: Duration::MAX, ..SessionOptions::default() }
}

fn open(session: &Session) -> File {
    let options = OpenOptions { read: true, write: true, create: true, ..OpenOptions::default() };
    session.open(b"f", options).expect("open")
}

/// Runs `call` on a thread of its own and fires when `stuck` says so.
fn interrupted<R: Send>(call: impl FnOnce() -> R + Send, mut stuck: impl FnMut() -> bool) -> R {
    let interrupt = Interrupt::new();
    std::thread::scope(|scope| {
        let watched = interrupt.clone();
        let caller = scope.spawn(move || {
            let _guard = watched.watch();
            call()
        });
        while !stuck() {
            std::thread::yield_now();
        }
        interrupt.fire();
        caller.join().expect("the caller")
    })
}

/// So many requests came since this was made.
fn asked(server: &Server, more: usize) -> impl FnMut() -> bool {
    let before = server.with(|fake| fake.requests);
    move || server.with(|fake| fake.requests) >= before + more
}

#[test]
fn a_call_that_the_server_does_not_answer_ends() {
    let server = Server::start();
    server.with(|fake| fake.put(b"f", &[5; 300_000]));
    let session = server.connect(hard());
    let file = open(&session);
    server.with(|fake| fake.script.stall = true);
    let (mut room, data) = (vec![0; 300_000], vec![9; 300_000]);
    let read = interrupted(|| file.read_at(&mut room, 0), asked(&server, 1));
    assert_eq!(read, Err(Error::Interrupted));
    // The memory is ours again, whatever the server does now.
    room.fill(1);
    let written = interrupted(|| file.write_at(&data, 0), asked(&server, 1));
    assert_eq!(written, Err(Error::Interrupted));
    let attr = interrupted(|| file.attr(), asked(&server, 1));
    assert_eq!(attr, Err(Error::Interrupted));
    server.with(|fake| fake.script.stall = false);
    // Slots and files are in order.
    for _ in 0..10 {
        assert_eq!(file.read_at(&mut [0; 100], 0), Ok(100));
    }
    assert!(room.iter().all(|byte| *byte == 1), "nothing came late");
    file.close().expect("close");
    assert_eq!(session.info().new_sessions, 0);
}

#[test]
fn a_thread_that_waits_looks_whether_it_is_to_end() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    for wait in [WaitMode::Adaptive, WaitMode::Sleeping, WaitMode::Polled] {
        let server = Server::start();
        let session = server.connect(SessionOptions { wait, ..hard() });
        let file = open(&session);
        server.with(|fake| fake.script.stall = true);
        let looks = Arc::new(AtomicU32::new(0));
        let counted = looks.clone();
        let interrupt = Interrupt::looking(move || counted.fetch_add(1, Ordering::Relaxed) == 1);
        {
            let _guard = interrupt.watch();
            assert_eq!(file.attr(), Err(Error::Interrupted), "{wait:?}");
        }
        assert_eq!(looks.load(Ordering::Relaxed), 2, "the first look let it wait on: {wait:?}");
        assert!(interrupt.is_fired());
        server.with(|fake| fake.script.stall = false);
        file.attr().expect("without a guard nobody looks");
    }
}

#[test]
fn calls_end_while_a_lost_server_is_looked_for() {
    let server = Server::start();
    server.with(|fake| fake.put(b"f", &[5; 100]));
    let session = server.connect(hard());
    let file = open(&session);
    assert!(session.is_connected());
    server.with(|fake| {
        fake.stop();
        fake.live = false;
    });
    let data = [7; 100];
    let lost = || !session.is_connected();
    assert_eq!(interrupted(|| file.write_at(&data, 0), lost), Err(Error::Interrupted));
    assert_eq!(interrupted(|| session.stat(b"f"), lost).err(), Some(Error::Interrupted));
    let waited = interrupted(|| session.call(Call::Ping).wait().result.err(), lost);
    assert_eq!(waited, Some(Error::Interrupted));
    server.with(|fake| {
        fake.live = true;
        fake.restart();
    });
    assert_eq!(file.read_at(&mut [0; 100], 0), Ok(100));
    assert!(session.is_connected());
}

#[test]
fn of_many_callers_the_interrupted_one_ends() {
    let server = Server::start();
    server.with(|fake| fake.put(b"f", &[5; 100]));
    let session = server.connect(hard());
    let file = open(&session);
    server.with(|fake| fake.script.stall = true);
    let all_asked = asked(&server, 4);
    std::thread::scope(|scope| {
        // One of these leads and the others sleep, whoever comes first.
        let others: Vec<_> =
            (0..3).map(|_| scope.spawn(|| file.read_at(&mut [0; 10], 0))).collect();
        assert_eq!(interrupted(|| file.attr(), all_asked), Err(Error::Interrupted));
        server.with(|fake| fake.script.stall = false);
        for other in others {
            assert_eq!(other.join().expect("a reader"), Ok(10));
        }
    });
}

#[test]
fn what_was_fired_before_ends_calls_until_it_is_reset() {
    let server = Server::start();
    let session = server.connect(SessionOptions::default());
    let file = open(&session);
    let interrupt = Interrupt::new();
    interrupt.fire();
    let guard = interrupt.watch();
    let requests = server.with(|fake| fake.requests);
    assert_eq!(session.stat(b"f").err(), Some(Error::Interrupted));
    assert_eq!(file.read_at(&mut [0; 10], 0), Err(Error::Interrupted));
    assert_eq!(file.append(b"x"), Err(Error::Interrupted));
    assert_eq!(server.with(|fake| fake.requests), requests, "nothing was asked");
    interrupt.reset();
    session.stat(b"f").expect("reset");
    interrupt.fire();
    drop(guard);
    session.stat(b"f").expect("not watched any more");
}

#[test]
fn an_interrupted_open_leaves_nothing_open() {
    let server = Server::start();
    server.with(|fake| fake.put(b"f", b""));
    let session = server.connect(hard());
    server.with(|fake| fake.script.stall = true);
    let opened = interrupted(|| session.open(b"f", OpenOptions::read()), asked(&server, 1));
    assert_eq!(opened.err(), Some(Error::Interrupted));
    server.with(|fake| fake.script.stall = false);
    session.stat(b"f").expect("stat");
    while server.with(|fake| fake.open_count() > 0 || fake.executed["close"] == 0) {
        std::thread::yield_now();
    }
}

#[test]
fn buffers_that_are_given_are_kept_by_the_call() {
    let server = Server::start();
    server.with(|fake| fake.put(b"f", &[5; 100]));
    let session = server.connect(hard());
    let file = open(&session);
    server.with(|fake| fake.script.stall = true);
    let buffer = Buffer::new(100).expect("buffer");
    let call = session.call(Call::Read { file: file.clone(), offset: 0, buffer, len: 100 });
    let done = interrupted(|| call.wait(), asked(&server, 0));
    assert_eq!(done.result.err(), Some(Error::Interrupted));
    assert!(done.buffer.is_none());
    server.with(|fake| fake.script.stall = false);
    assert_eq!(file.read_at(&mut [0; 100], 0), Ok(100));
}

#[test]
fn an_interrupted_wait_for_a_lock_holds_nothing() {
    let server = Server::start();
    server.with(|fake| fake.put(b"f", b""));
    let session = server.connect(hard());
    let file = open(&session);
    let owner = OwnerKey { kind: LockKind::Posix, number: 1 };
    let lock = LockRequest { owner, range: LockRange::ALL, exclusive: true, pid: 1 };
    server.with(|fake| fake.lock_foreign(b"f"));
    let queued = || server.with(|fake| fake.waiting() == 1);
    assert_eq!(interrupted(|| file.lock(&lock, true), queued), Err(Error::Interrupted));
    assert_eq!(server.with(|fake| fake.waiting()), 0);
    // Also while the server cannot be asked; then it ends when it can.
    let lost = || {
        if server.with(|fake| fake.waiting() == 1) {
            server.with(|fake| fake.live = false);
        }
        server.with(|fake| !fake.live)
    };
    assert_eq!(interrupted(|| file.lock(&lock, true), lost), Err(Error::Interrupted));
    server.with(|fake| {
        fake.live = true;
        fake.unlock_foreign(b"f");
    });
    file.unlock(owner, LockRange::new(5, 6).expect("in order")).expect("unlock");
    assert_eq!(server.with(|fake| fake.held(b"f")), [], "given back before the next call");
    file.lock(&lock, true).expect("lock");
    session.release_owner(owner).expect("release");
    assert_eq!(server.with(|fake| fake.held(b"f")), []);
}

#[test]
fn a_wait_for_a_lock_keeps_nobody_else_waiting() {
    let server = Server::start();
    server.with(|fake| fake.put(b"f", &[1; 10]));
    let session = server.connect(hard());
    let file = open(&session);
    let owner = OwnerKey { kind: LockKind::Posix, number: 1 };
    let lock = LockRequest { owner, range: LockRange::ALL, exclusive: true, pid: 1 };
    server.with(|fake| fake.lock_foreign(b"f"));
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| file.lock(&lock, true));
        while server.with(|fake| fake.waiting() == 0) {
            assert_eq!(file.read_at(&mut [0; 10], 0), Ok(10));
        }
        assert_eq!(file.read_at(&mut [0; 10], 0), Ok(10));
        let (_, ours) = file
            .test_lock(&LockRequest { owner: OwnerKey { number: 2, ..owner }, ..lock })
            .expect("test")
            .expect("held");
        assert!(!ours);
        server.with(|fake| fake.unlock_foreign(b"f"));
        waiting.join().expect("a thread").expect("locked");
    });
}

#[test]
fn who_waits_hears_of_what_ends_without_the_server() {
    let server = Server::start();
    // No timer wakes anybody.
    server.with(|fake| (fake.script.lease_ms, fake.script.slots) = (3_600_000, Some(2)));
    server.with(|fake| fake.put(b"f", &[5; 100]));
    let session = server.connect(SessionOptions { wait: WaitMode::Sleeping, slots: 2, ..hard() });
    let (file, closed) = (open(&session), open(&session));
    closed.clone().close().expect("close");
    let read = || Call::Read {
        file: file.clone(),
        offset: 0,
        buffer: Buffer::new(10).expect("memory"),
        len: 10,
    };
    for cancels in [true, false] {
        let group = session.group();
        server.with(|fake| fake.script.stall = true);
        let mut asked = asked(&server, 1);
        // The second one finds no slot.
        group.submit(0, read()).expect("room");
        group.submit(1, read()).expect("room");
        let (tell, told) = std::sync::mpsc::channel();
        let first = std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut done = group.wait(1, None);
                tell.send(done.remove(0).tag).expect("somebody waits");
                group.wait(usize::MAX, None);
            });
            while !asked() {
                std::thread::yield_now();
            }
            if cancels {
                assert!(group.cancel(1));
            } else {
                let refused = Call::Commit { file: closed.clone(), data_only: false };
                group.submit(2, refused).expect("room");
            }
            let first = told.recv_timeout(Duration::from_secs(60));
            server.with(|fake| fake.script.stall = false);
            first
        });
        assert_eq!(first, Ok(if cancels { 1 } else { 2 }));
    }
}
