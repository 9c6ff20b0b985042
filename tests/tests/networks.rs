//! A session that goes on by another address of its server, and by another kind of network.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dafs_client::{OpenOptions, Session, SessionOptions};
use dafs_fabric::Address;
use dafs_fabric_tcp::TcpProvider;
use dafs_server::{Config, Server};
use dafs_tests::relay::Relay;

fn at(relay: &Relay) -> Address {
    Address { scheme: "tcp".into(), target: relay.address().to_string() }
}

fn connect(address: &Address, also: Vec<Address>) -> dafs_client::Result<Session> {
    let options = SessionOptions { also, ..SessionOptions::default() };
    Session::connect(Arc::new(TcpProvider::default()), address, options)
}

fn appending() -> OpenOptions {
    OpenOptions { create: true, append: true, ..OpenOptions::write() }
}

/// A server at a TCP port, behind two relays, and at a Unix socket.
struct Scene {
    directory: tempfile::TempDir,
    _server: Server,
    relays: [Relay; 2],
    socket: Address,
}

impl Scene {
    fn new(lease_seconds: u32) -> Scene {
        let directory = tempfile::tempdir().expect("a directory");
        let served = directory.path().join("served");
        std::fs::create_dir(&served).expect("a directory");
        let socket = Address::local(&directory.path().join("socket"));
        let mut config = Config::for_directory(&served);
        config.listen = vec!["tcp://127.0.0.1:0".into(), socket.to_string()];
        config.arena_bytes = Some(64 << 20);
        config.limits.lease_seconds = lease_seconds;
        config.state = Some(directory.path().join("state"));
        let provider = Arc::new(TcpProvider::new());
        let server = Server::start(&config, provider, &dafs_store_posix::open).expect("a server");
        let port = server.addresses()[0].target.parse().expect("an address");
        let relays = [(); 2].map(|()| Relay::start(port).expect("a relay"));
        Scene { directory, _server: server, relays, socket }
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.directory.path().join("served").join(name)).expect("a file")
    }
}

#[test]
fn a_session_goes_on_by_the_next_address() {
    let scene = Scene::new(30);
    let [first, second] = &scene.relays;
    let session = connect(&at(first), vec![at(second), scene.socket.clone()]).expect("connects");
    let file = session.open(b"numbers", appending()).expect("opens");
    let add = |number: u32| {
        file.append(format!("{number}\n").as_bytes()).expect("appends");
    };
    add(1);
    assert_eq!(session.info().transport, "tcp");
    let by_second = second.request_bytes();
    first.close(true);
    add(2);
    assert_eq!(session.info().transport, "tcp");
    assert!(second.request_bytes() > by_second, "by the second address");
    second.close(true);
    add(3);
    assert_eq!(session.info().transport, "unix");
    // Preferred again where there is a choice again, which a connection that stands leaves alone.
    first.close(false);
    add(4);
    assert_eq!(session.info().transport, "unix");
    let info = session.info();
    assert!(info.reconnects >= 2 && info.new_sessions == 0, "{info:?}");
    file.close().expect("closes");
    session.close();
    assert_eq!(scene.read("numbers"), "1\n2\n3\n4\n");
}

#[test]
fn nothing_is_done_twice_while_addresses_come_and_go() {
    const NUMBERS: u64 = 500;
    let scene = Scene::new(30);
    let [first, second] = &scene.relays;
    let session = connect(&at(first), vec![at(second)]).expect("connects");
    let file = session.open(b"numbers", appending()).expect("opens");
    // How many were appended; the other thread ends when it is all, or when one failed.
    let done = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for (closes, opens) in [(first, second), (second, first)].into_iter().cycle() {
                opens.close(false);
                let before = done.load(Ordering::SeqCst);
                if before >= NUMBERS {
                    return;
                }
                closes.close(true);
                // Until something was done the other way.
                while done.load(Ordering::SeqCst) == before {
                    std::thread::yield_now();
                }
            }
        });
        let all = (0..NUMBERS).try_for_each(|number| {
            file.append(format!("{number}\n").as_bytes())?;
            done.store(number + 1, Ordering::SeqCst);
            Ok::<_, dafs_client::SessionError>(())
        });
        done.store(NUMBERS, Ordering::SeqCst);
        all.expect("appends");
    });
    let info = session.info();
    assert!(info.reconnects > 3 && info.new_sessions == 0, "{info:?}");
    file.close().expect("closes");
    session.close();
    let numbers: String = (0..NUMBERS).map(|number| format!("{number}\n")).collect();
    assert_eq!(scene.read("numbers"), numbers);
}

/// A network that says nothing is found out while the lease leaves time for the other.
#[test]
fn a_silent_network_does_not_cost_the_session() {
    let scene = Scene::new(4);
    let first = &scene.relays[0];
    let session = connect(&at(first), vec![scene.socket.clone()]).expect("connects");
    let file = session.open(b"numbers", appending()).expect("opens");
    file.append(b"1\n").expect("appends");
    first.hush(true);
    file.append(b"2\n").expect("appends");
    let info = session.info();
    assert!(info.transport == "unix" && info.new_sessions == 0, "{info:?}");
    first.hush(false);
    file.close().expect("closes");
    session.close();
    assert_eq!(scene.read("numbers"), "1\n2\n");
}

/// What the client has given up does not take the place of what came after it.
#[test]
fn a_late_hello_does_not_end_the_session_made_after_it() {
    let scene = Scene::new(4);
    let first = &scene.relays[0];
    // Later than the client waits for one of two addresses.
    first.delay_requests(Duration::from_millis(2500));
    let session = connect(&at(first), vec![scene.socket.clone()]).expect("connects");
    assert_eq!(session.info().transport, "unix");
    let file = session.open(b"numbers", appending()).expect("opens");
    // Until the server has answered what the client does not wait for any more.
    let before = first.answer_bytes();
    while first.answer_bytes() == before {
        file.append(b"1\n").expect("appends");
    }
    file.append(b"1\n").expect("appends");
    let info = session.info();
    assert_eq!(info.new_sessions, 0, "{info:?}");
}

#[test]
fn all_addresses_that_failed_are_told() {
    let nobody = |port| Address { scheme: "tcp".into(), target: format!("127.0.0.1:{port}") };
    let error =
        connect(&nobody(1), vec![nobody(2)]).map(drop).expect_err("nobody listens").to_string();
    assert!(
        error.contains("tcp://127.0.0.1:1: ") && error.contains("tcp://127.0.0.1:2: "),
        "{error}"
    );
    // A slip of the pen is told at once.
    let unknown = Address { scheme: "no-such".into(), target: "x".into() };
    let error =
        connect(&nobody(1), vec![unknown]).map(drop).expect_err("no such network").to_string();
    assert!(error.contains("no network for 'no-such'") && !error.contains(":1: "), "{error}");
}
