//! Handshakes, good and bad, and what a listener puts up with.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;

use dafs_fabric::accept::HALF_OPEN_MAX;
use dafs_fabric::{Engine, Incoming, Listener, QueuePairEvent};

use super::*;
use crate::device::TcpDevice;
use crate::engine::TcpEngine;

fn tcp_listener() -> (SocketListener<Socket>, SocketAddr) {
    let address = Address::parse("tcp://127.0.0.1:0").expect("address");
    let listener = listen(&address).expect("listener");
    let target = listener.address().target.parse().expect("an address with a port");
    (listener, target)
}

fn accept(listener: &mut SocketListener<Socket>) -> Incoming {
    loop {
        if let Some(incoming) = listener.poll_accept() {
            return incoming;
        }
        std::thread::yield_now();
    }
}

fn engine() -> TcpEngine {
    TcpDevice::open(true).expect("device").tcp_engine().expect("engine")
}

fn event(engine: &mut TcpEngine) -> QueuePairEvent {
    loop {
        engine.poll(&mut Vec::new(), 1);
        if let Some(event) = engine.poll_event() {
            return event;
        }
        std::thread::yield_now();
    }
}

#[test]
fn a_hello_may_come_in_pieces() {
    let (mut listener, address) = tcp_listener();
    let mut peer = TcpStream::connect(address).expect("connect");
    peer.set_nodelay(true).expect("nodelay");
    let hello = frame::hello(Kind::Hello, b"who I am");
    for byte in &hello {
        assert!(listener.poll_accept().is_none());
        peer.write_all(&[*byte]).expect("write");
    }
    let incoming = accept(&mut listener);
    assert_eq!(incoming.private_data, b"who I am");
    let local = peer.local_addr().expect("address");
    assert_eq!(incoming.peer, Ends { local: address, peer: local }.into());
    assert_eq!(listener.half_open(), 0);
}

#[test]
fn whoever_speaks_something_else_is_told_and_left() {
    let mut other_version = frame::hello(Kind::Hello, b"");
    other_version[28] = 200;
    let mut long = frame::hello(Kind::Hello, b"");
    long[4..8].copy_from_slice(&300u32.to_le_bytes());
    let cases = [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec(),
        other_version,
        long,
        frame::hello(Kind::HelloAck, b""),
        vec![0; 32],
    ];
    for words in cases {
        let (mut listener, address) = tcp_listener();
        let mut peer = TcpStream::connect(address).expect("connect");
        peer.write_all(&words[..words.len().min(32)]).expect("write");
        let reader = std::thread::spawn(move || {
            let mut answer = Vec::new();
            peer.read_to_end(&mut answer).expect("read");
            answer
        });
        while !reader.is_finished() {
            assert!(listener.poll_accept().is_none());
        }
        assert_eq!(listener.half_open(), 0);
        let answer = reader.join().expect("reader");
        assert_eq!(answer.first(), Some(&(Kind::Reject as u8)));
    }
}

#[test]
fn silent_peers_are_bounded() {
    let (mut listener, address) = tcp_listener();
    let silent: Vec<_> =
        (0..HALF_OPEN_MAX + 20).map(|_| TcpStream::connect(address).expect("connect")).collect();
    let mut engine = engine();
    engine.connect(&listener.address(), b"real").expect("connect");
    let incoming = accept(&mut listener);
    assert_eq!(incoming.private_data, b"real");
    assert!(listener.half_open() <= HALF_OPEN_MAX);
    drop(silent);
}

#[test]
fn a_name_with_several_addresses_is_tried_through() {
    let (mut listener, address) = tcp_listener();
    let mut engine = engine();
    let name = Address { scheme: "tcp".into(), target: format!("localhost:{}", address.port()) };
    engine.connect(&name, b"").expect("connect");
    let accepted = loop {
        engine.poll(&mut Vec::new(), 1);
        if let Some(incoming) = listener.poll_accept() {
            break incoming;
        }
    };
    let mut server = self::engine();
    server.accept(accepted, b"welcome").expect("accept");
    let connected = event(&mut engine);
    assert!(
        matches!(&connected, QueuePairEvent::Connected { private_data, .. } if private_data == b"welcome"),
        "{connected:?}"
    );
}

#[test]
fn an_answer_that_is_none_fails_the_connect() {
    for answer in [frame::hello(Kind::Hello, b""), vec![7; 64], Vec::new()] {
        let listener = TcpListener::bind("127.0.0.1:0").expect("listener");
        let target = listener.local_addr().expect("address").to_string();
        let mut engine = engine();
        engine.connect(&Address { scheme: "tcp".into(), target }, b"").expect("connect");
        let (mut peer, _) = listener.accept().expect("accept");
        peer.write_all(&answer).expect("write");
        let mut hello = [0; FRAME_HEADER_BYTES];
        peer.read_exact(&mut hello).expect("hello");
        drop(peer);
        let refused = event(&mut engine);
        assert!(matches!(&refused, QueuePairEvent::Refused { refused: false, .. }), "{refused:?}");
        assert!(engine.poll_event().is_none());
    }
}

#[test]
fn unix_peers_are_known_by_the_system() {
    let path = std::env::temp_dir().join(format!("dafs-known-{}", std::process::id()));
    let target = path.display().to_string();
    let address = Address { scheme: "unix".into(), target };
    let mut listener = listen(&address).expect("listener");
    let mut engine = engine();
    engine.connect(&address, b"").expect("connect");
    let peer = accept(&mut listener).peer;
    assert_eq!(peer.text, format!("process {}", std::process::id()));
    let groups = peer.credentials.expect("a unix peer").groups;
    let status = std::fs::read_to_string("/proc/self/status").expect("status");
    let mine = status.lines().find_map(|line| line.strip_prefix("Groups:")).expect("groups");
    let mine: Vec<u32> = mine.split_whitespace().map(|group| group.parse().unwrap()).collect();
    assert_eq!(groups, mine);
    let mode = std::fs::metadata(&path).expect("the socket's file").permissions().mode();
    assert_eq!(mode & 0o777, 0o666, "any user may connect");
    drop(listener);
    assert!(!path.exists());
}

#[test]
fn a_long_reason_is_cut_at_a_character() {
    let (mut listener, _) = tcp_listener();
    let mut engine = engine();
    engine.connect(&listener.address(), b"").expect("connect");
    let incoming = accept(&mut listener);
    self::engine().reject(incoming, &"ä".repeat(200));
    let QueuePairEvent::Refused { refused: false, reason, .. } = event(&mut engine) else {
        panic!("refused");
    };
    assert_eq!(reason, format!("rejected by the peer: {}", "ä".repeat(128)));
}

/// An engine that sleeps in the middle of a run is not woken by each piece, but by enough of
/// them, by the end of the run and by the end of the connection.
#[test]
fn a_sleeper_wakes_for_the_end_of_a_run_and_of_the_peer() {
    const LEN: usize = 900_000;
    for complete in [true, false] {
        let (mut listener, address) = tcp_listener();
        let mut peer = TcpStream::connect(address).expect("connect");
        peer.write_all(&frame::hello(Kind::Hello, b"")).expect("hello");
        let mut engine = engine();
        let queue_pair = engine.accept(accept(&mut listener), b"").expect("accept");
        let place = dafs_fabric::Arena::new(LEN).expect("arena").span(0, LEN);
        let mut list = smallvec::smallvec![place.clone()];
        engine
            .post_tagged_recv(
                queue_pair,
                dafs_fabric::WrId(1),
                dafs_fabric::Tag(1),
                None,
                &mut list,
            )
            .expect("tagged recv");
        let talker = std::thread::spawn(move || {
            let mut words = Vec::new();
            let full = frame::FRAME_PAYLOAD_BYTES_MAX;
            let mut next = Some(FrameHeader {
                run: (LEN / full) as u8,
                payload_len: full as u32,
                key: 1,
                total: LEN as u32,
                ..FrameHeader::new(Kind::Tagged)
            });
            while let Some(header) = next {
                words.extend(header.encode());
                words.extend(std::iter::repeat_n(7, header.body_len()));
                next = header.continuation();
            }
            let end = if complete { words.len() } else { words.len() / 2 };
            for piece in words[..end].chunks(10_007) {
                peer.write_all(piece).expect("write");
            }
            // Kept open until the engine has all, or closed at once.
            complete.then_some(peer)
        });
        let mut done = Vec::new();
        let mut gone = false;
        while done.is_empty() {
            if engine.poll(&mut done, 1) == 0 && engine.arm() {
                engine.waiter().wait(None);
            }
            while let Some(event) = engine.poll_event() {
                gone |= matches!(event, QueuePairEvent::Disconnected { .. });
            }
        }
        let status = done[0].status;
        if complete {
            assert_eq!(status, dafs_fabric::Status::Success);
            let mut bytes = Vec::new();
            place.read_message(LEN, &mut bytes);
            assert!(bytes.iter().all(|byte| *byte == 7) && !gone);
        } else {
            assert_eq!(status, dafs_fabric::Status::Flushed);
        }
        drop(talker.join().expect("talker"));
    }
}

/// To close what the system discards may take as long as the peer wishes.
#[test]
fn unix_sockets_take_no_descriptors() {
    let directory = tempfile::tempdir().expect("a directory");
    let address = Address::local(&directory.path().join("server"));
    let mut listener = listen(&address).expect("a listener");
    let mut peer = UnixStream::connect(&address.target).expect("connect");
    let (pipe, _) = std::io::pipe().expect("a pipe");
    let is_refused = |peer: &UnixStream| {
        let sent = sys::send_descriptor(peer.as_raw_fd(), pipe.as_raw_fd());
        sent.is_err_and(|error| error.raw_os_error() == Some(libc::EPERM))
    };
    if !sys::refuse_descriptors(peer.as_raw_fd()) {
        // Before Linux 6.16.
        return;
    }
    assert!(is_refused(&peer), "before it is accepted");
    assert!(listener.poll_accept().is_none());
    assert!(is_refused(&peer), "after that");
    peer.write_all(&frame::hello(Kind::Hello, b"me")).expect("write");
    assert_eq!(accept(&mut listener).private_data, b"me");
    // Nor do those of clients.
    let address = Address::local(&directory.path().join("other"));
    let other = UnixListener::bind(&address.target).expect("bind");
    let mut engine = engine();
    engine.connect(&address, b"").expect("begins");
    let (peer, _) = other.accept().expect("it connects at once");
    assert!(is_refused(&peer), "to a client");
}
