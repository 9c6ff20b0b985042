//! Changes that are under way when the server ends: each is done once, and whoever asked for it
//! learns so.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use dafs_client::{Error, OpenOptions, Session, SessionOptions, Url};
use dafs_fabric::Address;
use dafs_fabric_tcp::TcpProvider;
use dafs_protocol::Status;
use dafs_tests::Served;
use dafs_tests::relay::Relay;
use nix::sys::signal::Signal;

struct World {
    served: Served,
    files: tempfile::TempDir,
    _state: tempfile::TempDir,
}

impl World {
    fn new() -> World {
        let (files, state) = (tempfile::tempdir().expect("a directory"), tempfile::tempdir());
        let state = state.expect("a directory");
        let directory = state.path().to_str().expect("plain");
        let served = Served::start(files.path(), &["--state", directory]);
        World { served, files, _state: state }
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.files.path().join(name)
    }

    fn address(&self) -> Address {
        Url::parse(&self.served.url).expect("a URL").address()
    }

    fn connect(&self) -> Session {
        connect(&self.address())
    }

    fn relay(&self) -> (Relay, Session) {
        let server: SocketAddr = self.address().target.parse().expect("an address");
        let relay = Relay::start(server).expect("a relay");
        let target = relay.address().to_string();
        let session = connect(&Address { scheme: "tcp".into(), target });
        (relay, session)
    }
}

fn connect(address: &Address) -> Session {
    let provider = Arc::new(TcpProvider::default());
    Session::connect(provider, address, SessionOptions::default()).expect("connect")
}

fn exclusive() -> OpenOptions {
    OpenOptions { create: true, exclusive: true, ..OpenOptions::write() }
}

type Change = fn(&Session) -> Result<(), Error>;
type IsDone = fn(&Path) -> bool;

/// What is asked for, and how to see from outside that it was done.
const CHANGES: [(&str, Change, IsDone); 6] = [
    (
        "create",
        |session| {
            let file = session.open(b"made", exclusive())?;
            file.write_at(b"mine", 0)?;
            file.close().map(drop)
        },
        |dir| dir.join("made").exists(),
    ),
    ("mkdir", |session| session.mkdir(b"dir", 0o755).map(drop), |dir| dir.join("dir").exists()),
    ("rename", |session| session.rename(b"old", b"new"), |dir| dir.join("new").exists()),
    ("link", |session| session.link(b"one", b"two").map(drop), |dir| dir.join("two").exists()),
    ("remove", |session| session.remove(b"gone"), |dir| !dir.join("gone").exists()),
    ("rmdir", |session| session.remove_dir(b"empty"), |dir| !dir.join("empty").exists()),
];

fn prepare(world: &World) {
    for name in ["old", "one", "gone"] {
        std::fs::write(world.path(name), name).expect("a file");
    }
    std::fs::create_dir(world.path("empty")).expect("a directory");
}

fn begin(session: &Session, change: Change) -> JoinHandle<Result<(), Error>> {
    let session = session.clone();
    std::thread::spawn(move || change(&session))
}

fn wait_until(reached: impl Fn() -> bool) {
    let start = std::time::Instant::now();
    while !reached() {
        assert!(start.elapsed().as_secs() < 30, "it does not happen");
        std::thread::yield_now();
    }
}

/// All its threads are.
fn is_stopped(pid: u32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).expect("it is there");
    threads.flatten().all(|thread| {
        let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T'))
    })
}

#[test]
fn what_was_done_before_a_kill_is_answered_after_it() {
    for (name, change, is_done) in CHANGES {
        let mut world = World::new();
        prepare(&world);
        let (relay, session) = world.relay();
        relay.swallow_answers(true);
        let before = relay.answer_bytes();
        let asked = begin(&session, change);
        wait_until(|| is_done(world.files.path()) && relay.answer_bytes() > before);
        world.served.kill();
        relay.swallow_answers(false);
        world.served.restart();
        let result = asked.join().expect("no panic");
        assert!(result.is_ok(), "{name}: {result:?}");
        assert!(is_done(world.files.path()), "{name}");
    }
}

#[test]
fn what_was_not_begun_before_a_kill_is_done_after_it() {
    for (name, change, is_done) in CHANGES {
        let mut world = World::new();
        prepare(&world);
        let (relay, session) = world.relay();
        world.served.signal(Signal::SIGSTOP);
        wait_until(|| is_stopped(world.served.pid()));
        let before = relay.request_bytes();
        let asked = begin(&session, change);
        wait_until(|| relay.request_bytes() > before);
        world.served.kill();
        assert!(!is_done(world.files.path()), "{name}");
        world.served.restart();
        let result = asked.join().expect("no panic");
        assert!(result.is_ok(), "{name}: {result:?}");
        assert!(is_done(world.files.path()), "{name}");
    }
}

/// How a change of one name ended for a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Told {
    Won,
    Beaten,
    Unknown,
}

fn told<T: std::fmt::Debug>(result: Result<T, Error>) -> Told {
    match result.as_ref().map_err(Error::status) {
        Ok(_) => Told::Won,
        Err(Some(Status::Exist | Status::NoEnt)) => Told::Beaten,
        Err(Some(Status::OutcomeUnknown)) => Told::Unknown,
        Err(_) => panic!("{result:?}"),
    }
}

/// Two clients make the same files and rename the same files, while the server ends several
/// times by `end`. Answers how often nobody could know what became of a change.
fn race(end: fn(&mut Served)) -> usize {
    const NAMES: usize = 2000;
    let mut world = World::new();
    for number in 0..NAMES {
        std::fs::write(world.path(&format!("from-{number}")), b"").expect("a file");
    }
    let over = Arc::new(AtomicBool::new(false));
    let runner = |session: Session, over: Arc<AtomicBool>| {
        std::thread::spawn(move || {
            let mut answers = Vec::new();
            for number in (0..NAMES).take_while(|_| !over.load(Ordering::Relaxed)) {
                let name = format!("lock-{number}");
                answers.push(told(session.open(name.as_bytes(), exclusive())));
                let (from, to) = (format!("from-{number}"), format!("to-{number}"));
                answers.push(told(session.rename(from.as_bytes(), to.as_bytes())));
            }
            answers
        })
    };
    let runners: Vec<_> = (0..2).map(|_| runner(world.connect(), over.clone())).collect();
    for round in 1..=6 {
        let last = format!("to-{}", round * NAMES / 8);
        wait_until(|| world.path(&last).exists());
        end(&mut world.served);
        world.served.restart();
    }
    over.store(true, Ordering::Relaxed);
    let answers: Vec<_> = runners.into_iter().map(|r| r.join().expect("no panic")).collect();
    let mut unknown = 0;
    for (number, (one, other)) in answers[0].iter().zip(&answers[1]).enumerate() {
        let both = [*one, *other];
        let count = |what| both.iter().filter(|told| **told == what).count();
        unknown += count(Told::Unknown);
        assert!(count(Told::Won) <= 1, "both were told that they did change {number}");
        assert!(count(Told::Beaten) <= 1, "nobody was told that change {number} was done");
    }
    unknown
}

#[test]
fn one_of_two_wins_though_the_server_is_killed() {
    // What it was killed in the midst of may be unknown, to those who asked.
    race(Served::kill);
}

#[test]
fn an_orderly_end_leaves_nothing_unknown() {
    assert_eq!(race(Served::stop), 0);
}
