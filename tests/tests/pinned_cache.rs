//! Devices that pin what they know: a cache that shrinks and grows under load, and what a session needs.

use std::sync::Arc;

use dafs_client::{OpenOptions, Session};
use dafs_server::Limits;
use dafs_store::memory::MemoryStore;
use dafs_tests::client::unbroken;
use dafs_tests::pinning::Pinning;
use dafs_tests::resized::{Plan, Report, run};
use dafs_tests::{in_process, machine, tree};

fn tried(plan: Plan) -> Option<Report> {
    if let Err(reason) = machine::locked_memory(256 << 20) {
        println!("{reason}");
        return None;
    }
    let report = run(plan).unwrap_or_else(|error| panic!("{error}"));
    println!("{report}");
    Some(report)
}

#[test]
fn segments_come_and_go_under_load() {
    let Some(report) = tried(Plan { rounds: 2, limit: None }) else { return };
    assert_eq!((report.registrations.1, report.registrations_refused), (0, 0));
}

#[test]
fn what_may_not_be_locked_is_copied() {
    let Some(report) = tried(Plan { rounds: 2, limit: Some(6) }) else { return };
    assert!(report.registrations_refused > 0, "{report:?}");
}

/// What a user may lock where nobody has changed it: `ulimit -l`.
const USUAL_LIMIT: u64 = 8 << 20;

#[test]
fn a_session_is_content_with_the_usual_limit() {
    if let Err(reason) = machine::locked_memory(USUAL_LIMIT as usize) {
        return println!("{reason}");
    }
    let running = in_process::serve(MemoryStore::new(), Limits::default());
    let provider = Pinning::over_tcp();
    provider.limit_locked_bytes(USUAL_LIMIT);
    let session = Session::connect(Arc::new(provider.clone()), &running.address, unbroken());
    let session = session.expect("its pools are within the limit");
    let data = tree::pattern(1, 3_000_003);
    let both = OpenOptions { create: true, read: true, ..OpenOptions::write() };
    let file = session.open(b"file", both).expect("open");
    assert_eq!(file.write_at(&data, 0).expect("write"), data.len());
    let mut back = vec![0; data.len()];
    assert_eq!(file.read_at(&mut back, 0).expect("read"), data.len());
    assert!(back == data);
    assert_eq!(provider.violations(), [""; 0]);
}

/// A server has receives for very many connections, of which a device is told when they come.
#[test]
fn a_server_pins_receives_as_sessions_come() {
    if let Err(reason) = machine::locked_memory(64 << 20) {
        return println!("{reason}");
    }
    let provider = Pinning::over_tcp();
    let store = MemoryStore::new();
    let running = in_process::serve_on(&provider, store, Limits::default(), 16 << 20);
    let connect = || {
        let network = Arc::new(dafs_fabric_tcp::TcpProvider::new());
        Session::connect(network, &running.address, unbroken())
    };
    let mut sessions: Vec<_> = (0..8).map(|_| connect().expect("connect")).collect();
    let locked = provider.locked_bytes();
    assert!(locked < 10 << 20, "{locked} bytes for {} sessions", sessions.len());
    provider.limit_locked_bytes(locked);
    // Those for whom there are no receives are turned away.
    while let Ok(session) = connect() {
        sessions.push(session);
        assert!(sessions.len() < 16, "receives that the device does not know");
    }
    let both = OpenOptions { create: true, read: true, ..OpenOptions::write() };
    for (number, session) in sessions.iter().enumerate() {
        let file = session.open(format!("{number}").as_bytes(), both).expect("open");
        let data = tree::pattern(number as u64, 100_000);
        assert_eq!(file.write_at(&data, 0).expect("write"), data.len());
        let mut back = vec![0; data.len()];
        assert_eq!(file.read_at(&mut back, 0).expect("read"), data.len());
        assert!(back == data, "session {number}");
    }
    assert_eq!(provider.violations(), [""; 0]);
}
