//! Sessions with threads, futures and groups, over TCP, against a scripted server.

#[path = "core/fake.rs"]
mod fake;
#[path = "core/threaded.rs"]
mod threaded;

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use dafs_client::{Call, CallFuture, Done, Error, OpenOptions, Output, Session, SessionOptions};
use dafs_fabric::Buffer;
use dafs_fabric_tcp::TcpProvider;
use dafs_protocol::{Stability, Status, WaitMode};
use fake::Fake;
use threaded::Server;

fn waiting(wait: WaitMode) -> SessionOptions {
    SessionOptions { wait, ..SessionOptions::default() }
}

fn read_write() -> OpenOptions {
    OpenOptions { read: true, write: true, create: true, ..OpenOptions::default() }
}

/// A pattern that tells where it is from.
fn pattern(len: usize, salt: u8) -> Vec<u8> {
    (0..len).map(|i| (i % 251) as u8 ^ salt).collect()
}

struct Unpark(std::thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park(),
        }
    }
}

#[test]
fn blocking_calls_in_all_waiting_modes() {
    for wait in [WaitMode::Adaptive, WaitMode::Polled, WaitMode::Sleeping] {
        let server = Server::start();
        let session = server.connect(waiting(wait));
        let file = session.open(b"f", read_write()).expect("open");
        // Larger than a request: cut into pieces.
        let data = pattern(1_500_000, 7);
        assert_eq!(file.write_at(&data, 3).expect("write"), data.len());
        let mut back = vec![0; 2_000_000];
        assert_eq!(file.read_at(&mut back, 3).expect("read"), data.len());
        assert_eq!(&back[..data.len()], data);
        assert_eq!(file.append(b"end").expect("append"), 1_500_003);
        assert_eq!(file.close().expect("close").size, 1_500_006);
        let names: Vec<_> =
            session.read_dir(b"").expect("dir").map(|entry| entry.expect("entry").name).collect();
        assert_eq!(names, [b"f"]);
        assert_eq!(session.stat(b"g").expect_err("no g").status(), Some(Status::NoEnt));
        let info = session.info();
        assert_eq!((info.uid, info.transport), (1000, "tcp"));
        session.close();
        assert_eq!(server.with(|fake| fake.session_count()), 0);
    }
}

#[test]
fn many_threads_share_a_session() {
    let server = Server::start();
    let session = server.connect(SessionOptions::default());
    let file = session.open(b"f", read_write()).expect("open");
    file.write_at(&[0; 64 << 10], 0).expect("write");
    std::thread::scope(|scope| {
        for number in 0..8u8 {
            let (file, session) = (file.clone(), session.clone());
            scope.spawn(move || {
                let offset = u64::from(number) * 8192;
                for round in 0..50 {
                    let data = pattern(8192, number ^ round);
                    file.write_at(&data, offset).expect("write");
                    let mut back = vec![0; 8192];
                    assert_eq!(file.read_at(&mut back, offset).expect("read"), 8192);
                    assert_eq!(back, data);
                    session.ping().expect("ping");
                }
            });
        }
    });
}

#[test]
fn a_group_keeps_many_calls_under_way() {
    let server = Server::start();
    let session = server.connect(SessionOptions::default());
    let file = session.open(b"f", read_write()).expect("open");
    let data = pattern(1 << 20, 0);
    file.write_at(&data, 0).expect("write");
    let group = session.group();
    let mut free = Buffer::many(16, 4096).expect("buffers");
    let (mut next, mut seen) = (0u64, 0);
    while seen < 512 {
        while next < 512
            && let Some(buffer) = free.pop()
        {
            let call = Call::Read { file: file.clone(), offset: next * 2048, buffer, len: 4096 };
            group.submit(next, call).expect("room");
            next += 1;
        }
        for done in group.wait(1, None) {
            let bytes = done.bytes().expect("read");
            let start = usize::try_from(done.tag).expect("small") * 2048;
            let buffer = done.buffer.expect("the buffer");
            assert_eq!(buffer[..bytes], data[start..(start + 4096).min(data.len())]);
            free.push(buffer);
            seen += 1;
        }
    }
    assert_eq!(group.outstanding(), 0);
    assert!(group.wait(5, None).is_empty(), "nothing to wait for");
}

#[test]
fn wrong_calls_of_a_group_end_in_it() {
    let server = Server::start();
    let session = server.connect(SessionOptions::default());
    let group = session.group();
    let buffer = Some(Buffer::new(10).expect("buffer"));
    let call = Call::PutFile {
        path: b"a\0b".to_vec(),
        buffer,
        len: 10,
        mode: 0o644,
        exclusive: true,
        times: None,
        owner: None,
        rename_to: None,
        commit: false,
    };
    group.submit(1, call).expect("room");
    let done = group.wait(1, None);
    assert_eq!(done.len(), 1);
    assert!(done[0].result.is_err() && done[0].buffer.is_some());
}

#[test]
fn futures_end_without_anybody_waiting() {
    let server = Server::start();
    let session = server.connect(SessionOptions::default());
    let open = Call::Open { path: b"f".to_vec(), options: read_write() };
    let file = match block_on(session.call(open)).result.expect("open") {
        Output::File(file, _) => file,
        other => panic!("{other:?}"),
    };
    let write = |offset| {
        let mut buffer = Buffer::new(4096).expect("buffer");
        buffer.fill(5);
        let file = file.clone();
        session.call(Call::Write {
            file,
            offset,
            buffer,
            len: 4096,
            stability: Stability::Unstable,
        })
    };
    let futures: Vec<CallFuture> = (0..100).map(|i| write(i * 4096)).collect();
    for (index, future) in futures.into_iter().enumerate() {
        // Some are awaited, some waited for, some given up.
        let done: Done = match index % 3 {
            0 => block_on(future),
            1 => future.wait(),
            _ => continue,
        };
        assert_eq!(done.bytes().expect("write"), 4096);
        assert!(done.buffer.is_some());
    }
    file.commit().expect("commit");
    drop(file);
    session.close();
}

#[test]
fn dropped_files_are_closed_by_the_keeper() {
    let server = Server::start();
    let session = server.connect(SessionOptions::default());
    let file = session.open(b"f", read_write()).expect("open");
    drop(file);
    let limit = Instant::now() + Duration::from_secs(10);
    while server.with(|fake| fake.open_count()) > 0 {
        assert!(Instant::now() < limit, "not closed");
    }
}

#[test]
fn a_restart_is_survived_and_told() {
    let server = Server::start();
    let told = Arc::new(Mutex::new(Vec::new()));
    let inbox = told.clone();
    let on_retry: dafs_client::OnRetry =
        Arc::new(move |text: &str| inbox.lock().expect("lock").push(text.to_owned()));
    let session =
        server.connect(SessionOptions { on_retry: Some(on_retry), ..SessionOptions::default() });
    let file = session.open(b"f", read_write()).expect("open");
    file.write_at(b"kept", 0).expect("write");
    file.commit().expect("commit");
    file.write_at(b"lost", 0).expect("write");
    server.with(Fake::restart);
    let start = Instant::now();
    let mut back = [0; 4];
    assert_eq!(file.read_at(&mut back, 0).expect("read"), 4);
    assert_eq!(&back, b"kept");
    assert!(start.elapsed() < Duration::from_secs(2));
    assert_eq!(file.commit().expect_err("lost").status(), Some(Status::WritesLost));
    let told = told.lock().expect("lock");
    assert!(told.iter().any(|text| text.starts_with("lost tcp://")), "{told:?}");
    assert!(told.iter().any(|text| text.contains("was restarted")), "{told:?}");
}

#[test]
fn a_session_without_calls_comes_back_after_a_restart() {
    let server = Server::start();
    server.with(|fake| fake.script.lease_ms = 3_600_000);
    let session = server.connect(SessionOptions::default());
    session.stat(b"").expect("stat");
    server.with(Fake::restart);
    let limit = Instant::now() + Duration::from_secs(20);
    while server.with(|fake| fake.session_count()) == 0 {
        assert!(Instant::now() < limit, "the restart is not noticed");
    }
    session.stat(b"").expect("stat");
    assert_eq!(session.info().new_sessions, 1);
}

#[test]
fn a_signal_ends_calls() {
    let server = Server::start();
    let cancel = Arc::new(AtomicBool::new(false));
    let options = SessionOptions { cancel: Some(cancel.clone()), ..SessionOptions::default() };
    let session = server.connect(options);
    let file = session.open(b"f", read_write()).expect("open");
    server.with(|fake| fake.live = false);
    std::thread::scope(|scope| {
        let waits: Vec<_> =
            (0..3).map(|_| scope.spawn(|| file.read_at(&mut [0; 100_000], 0))).collect();
        cancel.store(true, Ordering::Relaxed);
        for wait in waits {
            let error = wait.join().expect("thread").expect_err("interrupted");
            assert_eq!(error, Error::Interrupted);
            assert_eq!(error.exit_code(), 130);
        }
    });
    // And calls that come after it.
    assert_eq!(file.read_at(&mut [0; 10], 0), Err(Error::Interrupted));
    assert_eq!(session.ping(), Err(Error::Interrupted));
}

#[test]
fn nobody_there_is_told_at_once() {
    let server = Server::start();
    server.with(Fake::stop);
    let provider = Arc::new(TcpProvider::new());
    let start = Instant::now();
    let error = Session::connect(provider, &server.address, SessionOptions::default())
        .expect_err("nobody listens");
    assert!(matches!(error, Error::Connect { refused: true, .. }), "{error:?}");
    assert!(start.elapsed() < Duration::from_secs(1));
    assert_eq!(error.exit_code(), 3);
}

#[test]
fn a_reader_streams_all_of_a_file() {
    use std::io::Read;
    let server = Server::start();
    let session = server.connect(SessionOptions::default());
    let file = session.open(b"f", read_write()).expect("open");
    for len in [0usize, 1, (256 << 10) - 1, 256 << 10, (256 << 10) + 1, 3_000_001] {
        let data = pattern(len, 3);
        server.with({
            let data = data.clone();
            move |fake| fake.put(b"f", &data)
        });
        let mut back = Vec::new();
        file.reader(0).read_to_end(&mut back).expect("read");
        assert_eq!(back.len(), len);
        assert_eq!(back, data);
    }
    let mut reader = file.reader(3_000_000);
    assert_eq!(reader.next_chunk().expect("chunk").len(), 1);
    reader.consume(1);
    assert!(reader.next_chunk().expect("end").is_empty());
}

#[test]
fn calls_dropped_at_random_leave_no_memory_in_use() {
    let server = Server::start();
    let session = server.connect(SessionOptions::default());
    let file = session.open(b"f", read_write()).expect("open");
    file.write_at(&pattern(100_000, 1), 0).expect("write");
    for round in 0..300u64 {
        let group = session.group();
        for tag in 0..8 {
            let len = 1000 + 9000 * u32::try_from((round + tag) % 10).expect("small");
            let buffer = Buffer::new(len as usize).expect("buffer");
            let call = Call::Read { file: file.clone(), offset: 0, buffer, len };
            group.submit(tag, call).expect("room");
        }
        let timeout = Duration::from_micros(round % 7 * 30);
        for done in group.wait(8, Some(timeout)) {
            assert!(done.bytes().is_ok());
        }
    }
    let mut back = [0; 1000];
    file.read_at(&mut back, 0).expect("read");
    assert_eq!(back[..], pattern(1000, 1));
}

#[test]
fn callbacks_get_answers_and_may_call() {
    let server = Server::start();
    let session = server.connect(SessionOptions::default());
    let file = session.open(b"f", read_write()).expect("open");
    file.write_at(&pattern(1 << 20, 0), 0).expect("write");
    let (told, answers) = std::sync::mpsc::channel();
    for tag in 0..300u64 {
        let buffer = Buffer::new(4096).expect("buffer");
        let call = Call::Read { file: file.clone(), offset: tag * 3000, buffer, len: 4096 };
        let (told, file) = (told.clone(), file.clone());
        session.call_then(call, move |done| {
            let bytes = done.bytes().expect("read");
            let read = done.buffer.expect("the buffer")[..bytes].to_vec();
            // From within: also blocking.
            let mut again = vec![0; 10];
            file.read_at(&mut again, tag * 3000).expect("read");
            told.send((tag, read, again)).expect("somebody listens");
        });
    }
    let data = pattern(1 << 20, 0);
    let mut all: Vec<u64> = (0..300)
        .map(|_| {
            let (tag, read, again) = answers.recv_timeout(Duration::from_secs(20)).expect("called");
            let start = usize::try_from(tag).expect("small") * 3000;
            assert_eq!(read, data[start..start + 4096]);
            assert_eq!(again, data[start..start + 10]);
            tag
        })
        .collect();
    all.sort_unstable();
    assert_eq!(all, (0..300).collect::<Vec<_>>());
}

#[test]
fn a_callback_hears_of_wrong_calls_panics_and_the_end() {
    let server = Server::start();
    let session = server.connect(SessionOptions::default());
    let caller = std::thread::current().id();
    let (told, answers) = std::sync::mpsc::channel();
    let heard = || answers.recv_timeout(Duration::from_secs(20)).expect("called");
    let tell = || {
        let told = told.clone();
        move |done: Done| {
            assert_ne!(std::thread::current().id(), caller);
            told.send(done.result.err()).expect("somebody listens");
        }
    };
    session.call_then(Call::Stat { path: b"a\0b".to_vec(), no_follow: false }, tell());
    assert!(heard().is_some(), "refused before it was sent");
    session.call_then(Call::Ping, |_| panic!("on purpose"));
    session.call_then(Call::Ping, tell());
    assert!(heard().is_none(), "others are called after a panic");
    server.with(|fake| fake.script.stall = true);
    session.call_then(Call::Ping, tell());
    session.close();
    let end = heard();
    assert!(matches!(end, Some(Error::Interrupted)), "{end:?}");
}
