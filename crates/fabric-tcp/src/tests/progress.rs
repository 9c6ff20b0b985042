//! What an engine looks at, watches and holds back.

use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use super::*;
use crate::engine::Link;

/// A connected pair: of TCP, since other sockets have no low water.
fn tcp_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("listener");
    let peer = TcpStream::connect(listener.local_addr().expect("address")).expect("connect");
    let (ours, _) = listener.accept().expect("accept");
    ours.set_nonblocking(true).expect("non-blocking");
    (ours, peer)
}

/// Adopts one end of a pair; returns the other.
fn adopt_local(engine: &mut TcpEngine) -> (QueuePair, UnixStream) {
    let (ours, peer) = UnixStream::pair().expect("pair");
    ours.set_nonblocking(true).expect("non-blocking");
    (engine.adopt(ours.into()).expect("queue pair"), peer)
}

fn connection_of(engine: &TcpEngine, queue_pair: QueuePair) -> &crate::queue_pair::Connection {
    match &engine.slots[queue_pair.0 as u32] {
        Link::Up(connection) => connection,
        _ => panic!("not connected"),
    }
}

/// Polls without sleeping until a completion comes.
fn spin(engine: &mut TcpEngine) -> WorkCompletion {
    let (start, mut done) = (Instant::now(), Vec::new());
    while start.elapsed() < Duration::from_secs(5) {
        if engine.poll(&mut done, 1) > 0 {
            return done.remove(0);
        }
    }
    panic!("nothing completes");
}

/// An engine that sleeps while a run is coming on a queue pair of TCP: its low water is up.
fn in_a_run(others: usize) -> (TcpEngine, QueuePair, TcpStream, Vec<u8>, Vec<UnixStream>) {
    let mut engine = TcpDevice::open(true).expect("device").tcp_engine().expect("engine");
    let (ours, mut peer) = tcp_pair();
    let queue_pair = engine.adopt(ours.into()).expect("queue pair");
    let peers = (0..others).map(|_| adopt_local(&mut engine).1).collect();
    let room = Arena::new(16 * FULL).expect("arena").span(0, 16 * FULL);
    engine
        .post_tagged_recv(queue_pair, WrId(1), Tag(1), None, &mut smallvec![room])
        .expect("tagged recv");
    let mut words = tagged(1, b"", &pattern(16 * FULL, 3), true).concat();
    let rest = words.split_off(100_000);
    peer.write_all(&words).expect("the socket has room");
    let start = Instant::now();
    while !engine.watching.low_water_raised {
        engine.poll(&mut Vec::new(), 1);
        engine.arm();
        assert!(start.elapsed() < Duration::from_secs(5), "no low water");
    }
    (engine, queue_pair, peer, rest, peers)
}

#[test]
fn who_spins_after_a_sleep_hears_of_every_byte() {
    let (mut engine, queue_pair, mut peer, rest, _peers) = in_a_run(5);
    assert!(connection_of(&engine, queue_pair).low_water > Some(1));
    let place = Arena::new(4096).expect("arena").span(0, 100);
    engine.post_recv(WrId(2), smallvec![place]).expect("recv");
    let thread = std::thread::spawn(move || {
        peer.write_all(&rest).expect("write");
        peer
    });
    assert_eq!(spin(&mut engine).wr_id, WrId(1));
    let mut peer = thread.join().expect("peer");
    peer.write_all(&send(b"short")).expect("write");
    let done = spin(&mut engine);
    assert_eq!((done.wr_id, done.byte_len), (WrId(2), 5));
}

#[test]
fn among_many_queue_pairs_no_low_water_is_left() {
    let (mut engine, queue_pair, _peer, _rest, _peers) = in_a_run(2);
    let _more: Vec<_> = (0..70).map(|_| adopt_local(&mut engine)).collect();
    assert!(connection_of(&engine, queue_pair).low_water > Some(1));
    assert!(engine.arm());
    assert_eq!(connection_of(&engine, queue_pair).low_water, Some(1));
}

#[test]
fn what_cannot_be_watched_allows_no_sleep() {
    let mut engine = TcpDevice::open(true).expect("device").tcp_engine().expect("engine");
    let (good, _peer) = adopt_local(&mut engine);
    // No socket at all; epoll takes no files.
    let file = std::fs::File::open("/proc/self/exe").expect("file");
    engine.adopt(file.into()).expect("queue pair");
    assert!(!engine.arm() && !engine.arm());
    assert!(connection_of(&engine, good).watched.is_some(), "others are watched");
    // Reading it fails.
    engine.poll(&mut Vec::new(), 1);
    engine.poll(&mut Vec::new(), 1);
    while engine.poll_event().is_some() {}
    assert!(engine.arm());
}

#[test]
fn where_sending_fails_the_connection_ends() {
    let mut engine = TcpDevice::open(true).expect("device").tcp_engine().expect("engine");
    let _others: Vec<_> = (0..5).map(|_| adopt_local(&mut engine)).collect();
    let (ours, _peer) = UnixStream::pair().expect("pair");
    ours.set_nonblocking(true).expect("non-blocking");
    // From the peer's side nothing is wrong.
    ours.shutdown(Shutdown::Write).expect("shut down");
    let queue_pair = engine.adopt(ours.into()).expect("queue pair");
    engine.post_send(queue_pair, WrId(1), b"words", &mut smallvec![], true).expect("send");
    let mut done = Vec::new();
    for _ in 0..10 {
        engine.poll(&mut done, 10);
    }
    assert!(matches!(engine.poll_event(), Some(QueuePairEvent::Disconnected { .. })));
    assert_eq!((done[0].wr_id, done[0].status), (WrId(1), Status::Flushed));
}

#[test]
fn what_is_held_back_leaves_in_the_end() {
    let mut bench = Bench::new();
    bench.say(&send(b"unread"), usize::MAX);
    let place = bench.arena.span(0, 100);
    bench.engine.post_recv(WrId(1), smallvec![place]).expect("recv");
    let queue_pair = bench.queue_pair;
    bench.engine.post_send(queue_pair, WrId(2), b"held", &mut smallvec![], true).expect("send");
    // More can be received at once, but nobody asks for completions.
    let mut heard = [0; 100];
    for _ in 0..100 {
        bench.engine.poll(&mut Vec::new(), 0);
    }
    assert_eq!(bench.peer.read(&mut heard).expect("it left"), FRAME_HEADER_BYTES + 4);
}

#[test]
fn long_tagged_messages_take_turns_after_a_shorter_first_run() {
    let mut bench = Bench::new();
    let (queue_pair, engine) = (bench.queue_pair, &mut bench.engine);
    let data = Arena::new(3 << 20).expect("arena").span(0, 3 << 20);
    for wr_id in 3..5 {
        let mut before = smallvec![data.part(0, 40_000)];
        engine.post_send(queue_pair, WrId(wr_id), b"", &mut before, true).expect("send");
    }
    for tag in 1..3 {
        let mut list = smallvec![data.clone()];
        engine
            .post_tagged_send(queue_pair, WrId(tag), Tag(tag), b"", &mut list, true)
            .expect("tagged send");
    }
    let mut headers = heads(&bench.hear());
    headers.retain(|header| header.kind == Kind::Tagged);
    assert_eq!(headers.len(), 2 * 48);
    let second = headers.iter().position(|header| header.key == 2).expect("the second");
    assert!((16..=32).contains(&second), "the second waits for {second} frames");
}

#[test]
fn who_sends_much_does_not_keep_others_waiting() {
    let mut engine = TcpDevice::open(true).expect("device").tcp_engine().expect("engine");
    let (_, mut much) = adopt_local(&mut engine);
    let (_, mut little) = adopt_local(&mut engine);
    sys::set_buffer_bytes(much.as_raw_fd(), 4 << 20).expect("buffer");
    let room = Arena::new(64 * FULL).expect("arena");
    for place in 0..64 {
        let span = room.span(place * FULL, FULL);
        engine.post_recv(WrId(place as u64), smallvec![span]).expect("recv");
    }
    for _ in 0..24 {
        much.write_all(&send(&[7; FULL])).expect("the socket has room");
    }
    let mut done = Vec::new();
    engine.poll(&mut done, 1);
    assert!(!done.is_empty(), "some of much came");
    little.write_all(&send(b"little")).expect("write");
    for _ in 0..64 {
        engine.poll(&mut done, 64);
        if done.iter().any(|done| done.byte_len == 6) {
            break;
        }
    }
    let before = done.iter().filter(|done| done.byte_len as usize == FULL).count();
    assert!(before <= 2 * 4 + 2, "{before} came first");
}

/// Bytes that wait for the peer.
fn heard(peer: &mut UnixStream, piece: &mut [u8]) -> usize {
    let mut bytes = 0;
    while let Ok(got) = peer.read(piece) {
        bytes += got;
    }
    bytes
}

#[test]
fn who_asks_for_little_waits_for_little_of_others() {
    const OTHERS: usize = 8;
    const LITTLE: u32 = 6;
    let mut engine = TcpDevice::open(true).expect("device").tcp_engine().expect("engine");
    let (place, mut little) = adopt_local(&mut engine);
    little.set_nonblocking(true).expect("non-blocking");
    let mut others: Vec<_> = (0..OTHERS).map(|_| adopt_local(&mut engine)).collect();
    let room = Arena::new(FULL).expect("arena").span(0, FULL);
    let large = Arena::new(16 * FULL).expect("arena").span(0, 16 * FULL);
    let mut piece = vec![0; 1 << 20];
    for (number, (queue_pair, peer)) in others.iter_mut().enumerate() {
        peer.set_nonblocking(true).expect("non-blocking");
        sys::set_buffer_bytes(connection_of(&engine, *queue_pair).fd(), 4 << 20).expect("buffer");
        for message in 0..16 {
            let tag = (number * 16 + message) as u64;
            let mut data = smallvec![large.clone()];
            engine
                .post_tagged_send(*queue_pair, WrId(tag), Tag(tag), b"", &mut data, false)
                .expect("tagged send");
        }
        let words = send(&[7; FULL]).repeat(3);
        let _ = peer.write(&words).expect("some of it");
    }
    for _ in 0..100 {
        engine.post_recv(WrId(1000), smallvec![room.clone()]).expect("recv");
    }
    for round in 0..10 {
        for (_, peer) in &mut others {
            heard(peer, &mut piece);
        }
        little.write_all(&send(&[1; LITTLE as usize])).expect("write");
        let (mut done, mut passes) = (Vec::new(), 0);
        while !done.iter().any(|done: &WorkCompletion| done.byte_len == LITTLE) {
            done.clear();
            engine.poll(&mut done, 100);
            let came: usize = done.iter().map(|done| done.byte_len as usize).sum();
            assert!(round == 0 || came <= 4 * FULL + LITTLE as usize, "{came} came in a pass");
            passes += 1;
            assert!(passes <= OTHERS, "{passes} passes");
        }
        for (_, peer) in &mut others {
            heard(peer, &mut piece);
        }
        engine.post_send(place, WrId(2000), b"answer", &mut smallvec![], true).expect("send");
        engine.ring();
        let heard_of_others: Vec<_> =
            others.iter_mut().map(|(_, peer)| heard(peer, &mut piece)).collect();
        assert!(heard_of_others.iter().all(|bytes| *bytes <= FULL + 100), "{heard_of_others:?}");
        let sum: usize = heard_of_others.iter().sum();
        assert!(sum <= 4 * (FULL + 100) && (round > 5 || sum > 0), "{heard_of_others:?}");
        assert!(heard(&mut little, &mut piece) > 0, "the answer left in the first pass");
    }
}

#[test]
fn messages_are_in_batches_of_their_own_again_after_short_turns() {
    let mut engine = TcpDevice::open(true).expect("device").tcp_engine().expect("engine");
    let (place, mut peer) = adopt_local(&mut engine);
    peer.set_nonblocking(true).expect("non-blocking");
    sys::set_buffer_bytes(connection_of(&engine, place).fd(), 8 << 20).expect("buffer");
    let data = Arena::new(16 * FULL).expect("arena").span(0, 16 * FULL);
    let mut piece = vec![0; 4 << 20];
    let post = |engine: &mut TcpEngine, tag, len| {
        let mut data = smallvec![data.part(0, len)];
        engine
            .post_tagged_send(place, WrId(tag), Tag(tag), b"", &mut data, false)
            .expect("tagged send");
    };
    // As a short turn leaves it: a part of a message in front.
    post(&mut engine, 1, 3 * FULL);
    (2..6).for_each(|tag| post(&mut engine, tag, 16 * FULL));
    let mut heard_in_batches = Vec::new();
    while heard_in_batches.len() < 5 {
        engine.ring();
        heard_in_batches.push(heard(&mut peer, &mut piece) / FULL);
    }
    assert_eq!(heard_in_batches, [3, 16, 16, 16, 16]);
}

#[test]
fn large_messages_go_on_among_small_ones_in_short_turns() {
    let mut engine = TcpDevice::open(true).expect("device").tcp_engine().expect("engine");
    let (_, mut little) = adopt_local(&mut engine);
    let (place, mut peer) = adopt_local(&mut engine);
    peer.set_nonblocking(true).expect("non-blocking");
    sys::set_buffer_bytes(connection_of(&engine, place).fd(), 8 << 20).expect("buffer");
    let room = Arena::new(FULL).expect("arena").span(0, FULL);
    for _ in 0..100 {
        engine.post_recv(WrId(1000), smallvec![room.clone()]).expect("recv");
    }
    let data = Arena::new(16 * FULL).expect("arena").span(0, 16 * FULL);
    let mut large = smallvec![data.clone()];
    engine.post_tagged_send(place, WrId(1), Tag(1), b"", &mut large, true).expect("tagged send");
    let (mut piece, mut done) = (vec![0; 4 << 20], Vec::new());
    // Somebody else asks for little all the time, and small messages come to stand in front.
    for pass in 2.. {
        little.write_all(&send(b"?")).expect("write");
        peer.write_all(&send(b"?")).expect("write");
        for tag in 0..4 {
            let mut small = smallvec![data.part(0, 100)];
            let tag = 4 * pass + tag;
            engine
                .post_tagged_send(place, WrId(tag), Tag(tag), b"", &mut small, false)
                .expect("tagged send");
        }
        engine.post_send(place, WrId(0), b"first", &mut smallvec![], false).expect("send");
        engine.poll(&mut done, 100);
        heard(&mut peer, &mut piece);
        if done.iter().any(|done: &WorkCompletion| done.wr_id == WrId(1)) {
            break;
        }
        assert!(pass < 20, "the large message stands still");
    }
}
