//! Those who let the server wait stop nobody else.

mod raw;

use std::io::{Read, Write};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use dafs_fabric::Address;
use dafs_message::ConnOptions;
use dafs_protocol::{ExtentList, Operation, Stability, StateId};
use raw::{MAKE, Raw, Served};

const MIB: usize = 1 << 20;

fn write(state: StateId, offset: u64, bytes: usize) -> Operation<'static> {
    let extents = ExtentList::one(offset, u32::try_from(bytes).expect("small"));
    Operation::Write { state, extents, stability: Stability::Unstable, within: false }
}

/// A gauge, as the admin port tells it.
fn gauge(served: &Served, name: &str) -> usize {
    let mut stream = std::net::TcpStream::connect(served.admin()).expect("connect");
    stream.write_all(b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n").expect("ask");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("answer");
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("dafs_{name} ")));
    line.expect("a gauge").trim().parse().expect("a number")
}

/// A session whose WRITEs of 1 MiB in all slots bring no data, because it does not go on.
fn silent_writer(served: &Served, slots: u16) -> Raw {
    let mut raw = Raw::connect_untagged(served);
    let (_, state) = raw.open("silent", MAKE, 0o644).expect("open");
    for slot in 1..slots {
        raw.begin_with_data(slot, &[write(state, u64::from(slot) << 20, MIB)], MIB);
    }
    raw
}

#[test]
fn writes_whose_data_does_not_come_leave_room_to_others() {
    let served = Served::with(|config| config.arena_bytes = Some(16 << 20));
    let mut honest = Raw::connect(&served);
    let (_, state) = honest.open("honest", MAKE, 0o644).expect("open");
    // Far more than may be dirty.
    let mut silent = silent_writer(&served, 16);
    honest.write(state, 0, b"short").expect("served beside it");
    honest.write(state, 5, &vec![7; MIB / 2]).expect("served beside it");
    assert_eq!(honest.read(state, 3, 4).expect("read"), b"rt\x07\x07");
    // What waited for its own session goes on when that does.
    for _ in 1..16 {
        silent.answered();
    }
    assert!(served.counter(|counters| counters.delayed.load(Relaxed)) > 0);
    drop(silent);
}

#[test]
fn chains_with_data_for_several_operations_have_a_bound_of_memory() {
    let served = Served::with(|config| config.limits.request_bytes = 4 << 20);
    let mut honest = Raw::connect(&served);
    let (_, state) = honest.open("honest", MAKE, 0o644).expect("open");
    let mut silent = Raw::connect_untagged(&served);
    let (_, theirs) = silent.open("silent", MAKE, 0o644).expect("open");
    let half = MIB / 2;
    for slot in 1..16 {
        let two = [write(theirs, 0, half), write(theirs, half as u64, half)];
        silent.begin_with_data(slot, &two, MIB);
    }
    let start = Instant::now();
    while served.counter(|counters| counters.delayed.load(Relaxed)) == 0 {
        assert!(start.elapsed() < Duration::from_secs(30), "all of them have begun");
        std::thread::yield_now();
    }
    let two = [write(state, 0, 5), write(state, 5, 3)];
    honest.chain(&two, b"together").expect("served beside it");
    let held = gauge(&served, "request_bytes");
    assert!((MIB..=4 << 20).contains(&held), "{held}");
    assert_eq!(honest.read(state, 0, 9).expect("read"), b"together");
}

const LEASE: Duration = Duration::from_secs(2);

/// A server with a short lease, and its addresses over TCP and over a Unix socket.
fn impatient() -> (Served, [Address; 2], tempfile::TempDir) {
    let directory = tempfile::tempdir().expect("a directory");
    let socket = format!("unix:{}", directory.path().join("socket").display());
    let served = Served::with(|config| {
        config.limits.lease_seconds = LEASE.as_secs() as u32;
        config.listen.push(socket);
        // More than sockets take is held for replies, and the session may still do more.
        config.arena_bytes = Some(256 << 20);
    });
    let [tcp, unix] = served.addresses() else { panic!("two addresses") };
    // Not by the local socket beside it.
    let target = format!("{}?local=off", tcp.target);
    let addresses = [Address { target, ..tcp.clone() }, unix.clone()];
    (served, addresses, directory)
}

/// A connection whose transfer does not go on is ended, whatever its session does meanwhile over
/// another one.
fn is_given_up(begin: impl Fn(&mut Raw, StateId)) {
    let (served, addresses, _directory) = impatient();
    for (ended, address) in (1..).zip(&addresses) {
        let mut silent = Raw::connect_to(address, ConnOptions::default());
        let (_, state) = silent.open(&format!("file{ended}"), MAKE, 0o644).expect("open");
        silent.write(state, 0, &vec![7; MIB]).expect("written");
        let mut busy = silent.join(address);
        begin(&mut silent, state);
        let start = Instant::now();
        let given_up = || served.counter(|counters| counters.transfers_given_up.load(Relaxed));
        while given_up() < ended {
            assert!(start.elapsed() < 3 * LEASE, "{address}: it still waits");
            // Far more than a slow network moves, both ways.
            busy.write(state, 0, &vec![7; MIB / 2]).expect("served");
            assert_eq!(busy.read(state, 0, MIB as u32 / 2).expect("served").len(), MIB / 2);
        }
        assert_eq!(given_up(), ended);
        assert!(silent.ends_within(Duration::from_secs(30)), "{address}: it has not ended");
        busy.read(state, 0, 5).expect("the session goes on");
    }
}

#[test]
fn who_does_not_send_what_was_asked_for_is_ended() {
    is_given_up(|silent, state| silent.begin_on_grant(1, &[write(state, 0, MIB)], MIB));
}

#[test]
fn who_does_not_take_replies_is_ended() {
    is_given_up(|silent, state| {
        for slot in 1..13 {
            silent.begin_read(slot, state, MIB as u32);
        }
    });
}
