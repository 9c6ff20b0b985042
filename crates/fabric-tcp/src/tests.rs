//! One engine against a peer that writes frames by hand.

mod named;
mod progress;
mod streams;

use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use dafs_fabric::{
    Access, Arena, Device, Engine, Opcode, QueuePair, QueuePairEvent, RemoteSpan, Rkey, SgList,
    Span, Status, Tag, WorkCompletion, WrId,
};
use smallvec::smallvec;

use crate::device::TcpDevice;
use crate::engine::TcpEngine;
use crate::frame::{
    FAULT_READ, FAULT_WRITE, FRAME_HEADER_BYTES, FRAME_PAYLOAD_BYTES_MAX, FrameHeader, Kind,
};
use crate::sys;

const FULL: usize = FRAME_PAYLOAD_BYTES_MAX;
const BOTH: Access = Access { remote_read: true, remote_write: true };

/// An engine with one queue pair, whose peer is this test.
struct Bench {
    device: TcpDevice,
    engine: TcpEngine,
    queue_pair: QueuePair,
    peer: UnixStream,
    arena: Arc<Arena>,
    completions: Vec<WorkCompletion>,
}

impl Bench {
    fn new() -> Bench {
        Bench::that_connected(false)
    }

    fn that_connected(connected: bool) -> Bench {
        let device = TcpDevice::open(true).expect("device");
        let mut engine = device.tcp_engine().expect("engine");
        let (ours, peer) = UnixStream::pair().expect("pair");
        ours.set_nonblocking(true).expect("non-blocking");
        peer.set_nonblocking(true).expect("non-blocking");
        sys::set_buffer_bytes(ours.as_raw_fd(), 4 << 20).expect("buffer");
        sys::set_buffer_bytes(peer.as_raw_fd(), 4 << 20).expect("buffer");
        let queue_pair = engine.adopt_as(ours.into(), connected).expect("queue pair");
        let arena = Arena::new(1 << 20).expect("arena");
        Bench { device, engine, queue_pair, peer, arena, completions: Vec::new() }
    }

    /// The peer says this, in pieces of `step` bytes.
    fn say(&mut self, bytes: &[u8], step: usize) {
        for piece in bytes.chunks(step) {
            self.peer.write_all(piece).expect("the socket has room");
            self.engine.poll(&mut self.completions, 100);
        }
        self.engine.poll(&mut self.completions, 100);
    }

    /// What the engine says.
    fn hear(&mut self) -> Vec<u8> {
        let mut heard = Vec::new();
        let mut piece = vec![0; 1 << 20];
        loop {
            self.engine.poll(&mut self.completions, 100);
            match self.peer.read(&mut piece) {
                Ok(0) => return heard,
                Ok(got) => heard.extend_from_slice(&piece[..got]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return heard,
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// The reason for which the queue pair ended.
    fn reason(&mut self) -> String {
        for _ in 0..3 {
            self.engine.poll(&mut self.completions, 100);
        }
        let mut reason = String::new();
        while let Some(event) = self.engine.poll_event() {
            match event {
                QueuePairEvent::Disconnected { reason: told, .. } => reason = told,
                QueuePairEvent::Quiescent { .. } => return reason,
                other => panic!("{other:?}"),
            }
        }
        panic!("still connected");
    }

    fn is_alive(&mut self) -> bool {
        self.engine.poll(&mut self.completions, 100);
        self.engine.poll_event().is_none()
    }

    fn tagged_recv(&mut self, tag: u64, header: Option<Span>, data: &[Span]) {
        let mut data = SgList::from(data);
        self.engine
            .post_tagged_recv(self.queue_pair, WrId(tag), Tag(tag), header, &mut data)
            .expect("tagged recv");
    }

    fn statuses(&mut self) -> Vec<(u64, Status)> {
        self.completions.drain(..).map(|done| (done.wr_id.0, done.status)).collect()
    }
}

fn frame(header: FrameHeader, body: &[u8]) -> Vec<u8> {
    let mut bytes = header.encode().to_vec();
    bytes.extend_from_slice(body);
    bytes
}

fn send(body: &[u8]) -> Vec<u8> {
    frame(FrameHeader { payload_len: body.len() as u32, ..FrameHeader::new(Kind::Send) }, body)
}

/// The frames of a tagged message, without runs, or with the longest.
fn tagged(tag: u64, header: &[u8], data: &[u8], run: bool) -> Vec<Vec<u8>> {
    let count = data.len().div_ceil(FULL).max(1);
    let mut frames = Vec::new();
    for index in 0..count {
        let at = index * FULL;
        let payload = &data[at..data.len().min(at + FULL)];
        let head = FrameHeader {
            run: if run { (count - 1 - index) as u8 } else { 0 },
            header_len: if index == 0 { header.len() as u16 } else { 0 },
            payload_len: payload.len() as u32,
            key: tag,
            addr: at as u64,
            total: data.len() as u32,
            ..FrameHeader::new(Kind::Tagged)
        };
        let body = if index == 0 { [header, payload].concat() } else { payload.to_vec() };
        frames.push(frame(head, &body));
    }
    frames
}

fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 251) as u8 ^ seed).collect()
}

fn bytes_of(span: &Span) -> Vec<u8> {
    let mut bytes = Vec::new();
    span.read_message(span.len(), &mut bytes);
    bytes
}

fn heads(mut bytes: &[u8]) -> Vec<FrameHeader> {
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let (head, rest) = bytes.split_first_chunk::<FRAME_HEADER_BYTES>().expect("whole frames");
        let header = FrameHeader::decode(head).expect("a valid frame");
        bytes = &rest[header.body_len()..];
        found.push(header);
    }
    found
}

#[test]
fn messages_may_come_in_any_pieces() {
    for step in [1, 7, 31, 33, 1000, usize::MAX] {
        let mut bench = Bench::new();
        let (a, b) = (bench.arena.span(1, 100), bench.arena.span(1001, 100));
        bench.engine.post_recv(WrId(1), smallvec![a.part(0, 3), a.part(3, 97)]).expect("recv");
        bench.engine.post_recv(WrId(2), smallvec![b.clone()]).expect("recv");
        let big = pattern(3000, 9);
        let header = bench.arena.span(3000, 10);
        let data = bench.arena.span(4001, 3000);
        bench.tagged_recv(5, Some(header.clone()), &[data.part(0, 999), data.part(999, 2001)]);
        let mut words = send(b"hello, world");
        words.extend(tagged(5, b"0123456789", &big, false).concat());
        words.extend(send(b""));
        bench.say(&words, step);
        let lens: Vec<_> =
            bench.completions.iter().map(|done| (done.wr_id.0, done.byte_len)).collect();
        assert_eq!(lens, [(1, 12), (5, 3000), (2, 0)]);
        assert_eq!(bench.completions[1].header_len, 10);
        assert_eq!(&bytes_of(&a)[..12], b"hello, world");
        assert_eq!(bytes_of(&header), b"0123456789");
        assert_eq!(bytes_of(&data), big);
    }
}

#[test]
fn tagged_messages_may_interleave() {
    for (run, step) in [(false, usize::MAX), (false, 50_001), (true, 70_000), (true, usize::MAX)] {
        let mut bench = Bench::new();
        let (a, b) = (bench.arena.span(13, 200_000), bench.arena.span(300_001, 150_000));
        bench.tagged_recv(1, None, &[a.part(0, 77), a.part(77, 199_923)]);
        bench.tagged_recv(2, None, std::slice::from_ref(&b));
        let (pa, pb) = (pattern(200_000, 1), pattern(150_000, 2));
        let (fa, fb) = (tagged(1, b"", &pa, run), tagged(2, b"", &pb, run));
        let mut words = Vec::new();
        if run {
            words.extend(fa.concat());
            words.extend(fb.concat());
        } else {
            for index in 0..4 {
                words.extend(fa.get(index).cloned().unwrap_or_default());
                words.extend(fb.get(index).cloned().unwrap_or_default());
            }
        }
        bench.say(&words, step);
        bench.engine.poll(&mut bench.completions, 100);
        assert_eq!(bench.statuses().len(), 2);
        assert!(bytes_of(&a) == pa && bytes_of(&b) == pb);
    }
}

#[test]
fn a_broken_run_is_a_violation() {
    let mut bench = Bench::new();
    bench.tagged_recv(1, None, &[bench.arena.span(0, 200_000)]);
    let frames = tagged(1, b"", &pattern(200_000, 1), true);
    bench.engine.post_recv(WrId(9), smallvec![bench.arena.span(0, 10)]).expect("recv");
    bench.say(&[frames[0].clone(), send(b"between")].concat(), usize::MAX);
    assert_eq!(bench.reason(), "peer violated the protocol: a run of frames was broken");
    assert_eq!(bench.statuses(), [(1, Status::Flushed)]);
}

#[test]
fn nonsense_ends_the_connection() {
    let head = FrameHeader::new;
    let remote = |bench: &Bench| {
        let region = bench.device.register(bench.arena.span(0, 4096), BOTH).expect("region");
        (region.remote(), region)
    };
    let mut cases: Vec<(&str, Vec<u8>)> = vec![
        ("unknown kind of frame", vec![0xee; 32]),
        ("a second handshake", frame(head(Kind::Hello), b"")),
        ("answer to no read", frame(head(Kind::ReadDone), b"")),
        ("answer to no read", frame(head(Kind::ReadResponse), b"")),
        ("answer to no write", frame(head(Kind::WriteAck), b"")),
        ("answer to no write", frame(head(Kind::Fault), b"")),
        ("a fault of nothing", frame(FrameHeader { key: 3, ..head(Kind::Fault) }, b"")),
        ("answer to another named read", frame(FrameHeader { key: 2, ..head(Kind::Fault) }, b"")),
        ("answer to another named read", frame(head(Kind::NamedResponse), b"")),
        ("RDMA write out of order", frame(FrameHeader { id: 1, ..head(Kind::Write) }, b"")),
        ("tagged message out of order", tagged(1, b"", &[0; 70_000], false)[1].clone()),
    ];
    let twice = tagged(1, b"", &[0; 70_000], false)[0].clone();
    cases.push(("tagged message out of order", [twice.clone(), twice].concat()));
    for (reason, words) in cases {
        let mut bench = Bench::new();
        let (_, _region) = remote(&bench);
        bench.tagged_recv(1, None, &[bench.arena.span(0, 100_000)]);
        bench.say(&words, usize::MAX);
        assert_eq!(bench.reason(), format!("peer violated the protocol: {reason}"));
    }
}

#[test]
fn a_peer_may_leave_in_mid_message() {
    let mut bench = Bench::new();
    bench.engine.post_recv(WrId(1), smallvec![bench.arena.span(0, 100)]).expect("recv");
    bench.say(&send(b"complete")[..], usize::MAX);
    bench.engine.post_recv(WrId(2), smallvec![bench.arena.span(0, 100)]).expect("recv");
    bench.say(&send(b"incomplete")[..36], usize::MAX);
    bench.peer.shutdown(std::net::Shutdown::Both).expect("shutdown");
    assert_eq!(bench.reason(), "closed by the peer in the middle of a message");
    // The second receive stays posted.
    assert_eq!(bench.statuses(), [(1, Status::Success)]);
    let (ours, mut peer) = UnixStream::pair().expect("pair");
    ours.set_nonblocking(true).expect("non-blocking");
    bench.engine.adopt(ours.into()).expect("queue pair");
    peer.write_all(&send(b"next")).expect("write");
    bench.engine.poll(&mut bench.completions, 1);
    assert_eq!(bench.statuses(), [(2, Status::Success)]);
}

#[test]
fn what_came_before_the_end_is_delivered() {
    let mut bench = Bench::new();
    bench.tagged_recv(1, None, &[bench.arena.span(0, 100)]);
    bench.peer.write_all(&tagged(1, b"", b"last words", false).concat()).expect("write");
    bench.peer.shutdown(std::net::Shutdown::Both).expect("shutdown");
    // The engine has something to say and finds nobody.
    bench.engine.post_send(bench.queue_pair, WrId(2), b"x", &mut smallvec![], true).expect("send");
    assert_eq!(bench.reason(), "closed by the peer");
    assert_eq!(bench.statuses(), [(1, Status::Success), (2, Status::Flushed)]);
}

#[test]
fn small_sends_overtake_large_tagged_messages() {
    let mut bench = Bench::new();
    let bulk = Arena::new(16 << 20).expect("arena").span(0, 16 << 20);
    let queue_pair = bench.queue_pair;
    bench
        .engine
        .post_tagged_send(queue_pair, WrId(1), Tag(1), b"h", &mut smallvec![bulk], true)
        .expect("tagged send");
    bench.engine.ring();
    for wr_id in 2..5 {
        bench
            .engine
            .post_send(queue_pair, WrId(wr_id), b"urgent", &mut smallvec![], true)
            .expect("send");
    }
    let headers = heads(&bench.hear());
    let place = headers.iter().position(|header| header.kind == Kind::Send).expect("a send");
    // What the kernel and the current batch hold goes first.
    assert!(place * FULL < 6 << 20, "place {place} of {}", headers.len());
    assert_eq!(headers.len(), 256 + 3);
    assert_eq!(bench.statuses().iter().map(|done| done.0).collect::<Vec<_>>(), [2, 3, 4, 1]);
}

#[test]
fn a_tagged_message_never_overtakes_a_send() {
    let mut bench = Bench::new();
    let queue_pair = bench.queue_pair;
    let data = bench.arena.span(0, 1 << 20);
    let remote = RemoteSpan { rkey: Rkey(1), addr: 0, len: 32 << 20 };
    let mut long: SgList = (0..32).map(|_| data.clone()).collect();
    // A long write is in front of the send; the tagged messages wait for both.
    bench.engine.post_rdma_write(queue_pair, WrId(1), &mut long, remote, true).expect("write");
    bench.engine.post_send(queue_pair, WrId(2), b"first", &mut smallvec![], true).expect("send");
    for (tag, len) in [(3, 10), (4, 1 << 20)] {
        bench
            .engine
            .post_tagged_send(
                queue_pair,
                WrId(tag),
                Tag(tag),
                b"",
                &mut smallvec![data.part(0, len)],
                true,
            )
            .expect("tagged");
    }
    let headers = heads(&bench.hear());
    let kinds: Vec<_> = headers.iter().map(|header| header.kind).collect();
    let send = kinds.iter().position(|kind| *kind == Kind::Send).expect("send");
    let tagged = kinds.iter().position(|kind| *kind == Kind::Tagged).expect("tagged");
    assert!(send < tagged);
    assert_eq!(kinds.len(), 512 + 1 + 1 + 16);
}

#[test]
fn a_long_write_lets_tagged_messages_pass() {
    let mut bench = Bench::new();
    let queue_pair = bench.queue_pair;
    let data = bench.arena.span(0, 1 << 20);
    let remote = RemoteSpan { rkey: Rkey(1), addr: 0, len: 32 << 20 };
    let mut long: SgList = (0..32).map(|_| data.clone()).collect();
    bench.engine.post_rdma_write(queue_pair, WrId(1), &mut long, remote, true).expect("write");
    bench
        .engine
        .post_tagged_send(queue_pair, WrId(2), Tag(2), b"", &mut smallvec![data.part(0, 10)], true)
        .expect("tagged");
    let headers = heads(&bench.hear());
    let tagged = headers.iter().position(|header| header.kind == Kind::Tagged).expect("tagged");
    assert!(tagged < 40, "behind {tagged} frames");
}

#[test]
fn a_small_socket_buffer_only_slows_down() {
    let arena = Arena::new(1 << 20).expect("arena");
    let mut small = TcpDevice::open(true).expect("device").tcp_engine().expect("engine");
    let (ours, mut peer) = UnixStream::pair().expect("pair");
    sys::set_buffer_bytes(ours.as_raw_fd(), 2048).expect("buffer");
    ours.set_nonblocking(true).expect("non-blocking");
    let queue_pair = small.adopt(ours.into()).expect("queue pair");
    let data = arena.span(3, 300_000);
    let expected = pattern(300_000, 5);
    data.write_message(0, &expected);
    let mut pieces: SgList = (0..300).map(|index| data.part(index * 1000, 1000)).collect();
    small
        .post_tagged_send(queue_pair, WrId(1), Tag(1), b"header", &mut pieces, true)
        .expect("tagged");
    small.ring();
    let mut completions = Vec::new();
    let (mut heard, mut piece) = (Vec::new(), [0; 777]);
    let len = 5 * FRAME_HEADER_BYTES + 6 + 300_000;
    while heard.len() < len {
        small.poll(&mut completions, 1);
        let got = peer.read(&mut piece).expect("read");
        heard.extend_from_slice(&piece[..got]);
    }
    small.poll(&mut completions, 1);
    assert_eq!(completions.len(), 1);
    assert!(tagged(1, b"header", &expected, true).concat() == heard);
}

fn read_request(remote: RemoteSpan, id: u32) -> Vec<u8> {
    let header = FrameHeader {
        key: remote.rkey.0,
        addr: remote.addr,
        total: remote.len,
        id,
        ..FrameHeader::new(Kind::ReadRequest)
    };
    frame(header, b"")
}

#[test]
fn a_region_that_ends_during_a_read_is_not_read_further() {
    let mut bench = Bench::new();
    let len = 32 << 20;
    let secret = Arena::new(len).expect("arena").span(0, len);
    secret.write_message(0, &vec![1; len]);
    let region = bench.device.register(secret.clone(), BOTH).expect("region");
    bench.say(&read_request(region.remote(), 7), usize::MAX);
    region.invalidate();
    // Whatever is in this memory now is not the peer's business.
    secret.write_message(0, &vec![2; len]);
    let heard = bench.hear();
    let (mut bytes, mut last) = (&heard[..], None);
    while let Some((head, rest)) = bytes.split_first_chunk::<FRAME_HEADER_BYTES>() {
        let header = FrameHeader::decode(head).expect("frame");
        let (body, rest) = rest.split_at(header.body_len());
        assert!(!body.contains(&2), "memory was read after the end of access");
        (bytes, last) = (rest, Some(header));
    }
    let fault = FrameHeader { id: 7, key: FAULT_READ, ..FrameHeader::new(Kind::Fault) };
    assert_eq!(last, Some(fault));
    assert!(heard.len() < len, "the rest was not sent");
    assert!(bench.is_alive());
}

#[test]
fn a_region_that_ends_during_a_write_is_not_written_further() {
    for step in [1000, usize::MAX] {
        let mut bench = Bench::new();
        let memory = bench.arena.span(0, 100_000);
        let region = bench.device.register(memory.clone(), BOTH).expect("region");
        let remote = region.remote();
        let mut words = Vec::new();
        for (at, left) in [(0, 100_000u32), (65_536, 34_464)] {
            let header = FrameHeader {
                payload_len: left.min(65_536),
                key: remote.rkey.0,
                addr: remote.addr + at,
                total: left,
                ..FrameHeader::new(Kind::Write)
            };
            words.extend(frame(header, &vec![1; left.min(65_536) as usize]));
        }
        bench.say(&words[..40_000], step);
        region.invalidate();
        bench.say(&words[40_000..], step);
        let bytes = bytes_of(&memory);
        assert_eq!(bytes.iter().filter(|byte| **byte == 1).count(), 40_000 - 32);
        let fault = FrameHeader { key: FAULT_WRITE, ..FrameHeader::new(Kind::Fault) };
        assert_eq!(heads(&bench.hear()), [fault]);
        assert!(bench.is_alive());
    }
}

#[test]
fn acknowledgements_are_cumulative_and_faults_in_order() {
    let mut bench = Bench::new();
    let region = bench.device.register(bench.arena.span(0, 4096), BOTH).expect("region");
    let remote = region.remote();
    let mut words = Vec::new();
    for id in 0..6 {
        let header = FrameHeader {
            payload_len: 1,
            key: if id == 3 { 0 } else { remote.rkey.0 },
            addr: remote.addr + u64::from(id),
            total: 1,
            id,
            ..FrameHeader::new(Kind::Write)
        };
        words.extend(frame(header, b"x"));
    }
    bench.say(&words, usize::MAX);
    let told: Vec<_> = heads(&bench.hear()).iter().map(|header| (header.kind, header.id)).collect();
    assert_eq!(told, [(Kind::WriteAck, 2), (Kind::Fault, 3), (Kind::WriteAck, 5)]);
}

#[test]
fn answers_complete_writes_and_reads() {
    let mut bench = Bench::new();
    let (queue_pair, data) = (bench.queue_pair, bench.arena.span(0, 10));
    let remote = RemoteSpan { rkey: Rkey(5), addr: 99, len: 10 };
    for wr_id in 0..4 {
        bench
            .engine
            .post_rdma_write(
                queue_pair,
                WrId(wr_id),
                &mut smallvec![data.clone()],
                remote,
                wr_id != 1,
            )
            .expect("write");
        bench
            .engine
            .post_rdma_read(
                queue_pair,
                WrId(10 + wr_id),
                &mut smallvec![data.clone()],
                remote,
                false,
            )
            .expect("read");
    }
    assert_eq!(heads(&bench.hear()).len(), 8);
    let head = FrameHeader::new;
    let mut words = frame(FrameHeader { id: 2, ..head(Kind::WriteAck) }, b"");
    words.extend(frame(FrameHeader { id: 0, key: FAULT_READ, ..head(Kind::Fault) }, b""));
    let answer = FrameHeader { id: 1, payload_len: 10, total: 10, ..head(Kind::ReadResponse) };
    words.extend(frame(answer, b"0123456789"));
    words.extend(frame(FrameHeader { id: 1, ..head(Kind::ReadDone) }, b""));
    words.extend(frame(FrameHeader { id: 3, key: FAULT_WRITE, ..head(Kind::Fault) }, b""));
    bench.say(&words, usize::MAX);
    use Status::{RemoteAccess, Success};
    let expected =
        [(0, Success), (2, Success), (10, RemoteAccess), (11, Success), (3, RemoteAccess)];
    assert_eq!(bench.statuses(), expected);
    assert_eq!(bytes_of(&data), b"0123456789");
    // An answer that is too short is none.
    bench.say(&frame(FrameHeader { id: 2, ..head(Kind::ReadDone) }, b""), usize::MAX);
    assert_eq!(bench.reason(), "peer violated the protocol: answer to a read is too short");
}

#[test]
fn a_peer_that_asks_for_too_much_is_dropped() {
    let mut bench = Bench::new();
    let words: Vec<u8> = (0..3000)
        .flat_map(|id| read_request(RemoteSpan { rkey: Rkey(id), addr: 0, len: 1 }, id as u32))
        .collect();
    bench.say(&words, usize::MAX);
    assert_eq!(bench.reason(), "peer violated the protocol: too many reads under way");
}

#[test]
fn a_receiver_pauses_with_messages_unread() {
    let mut bench = Bench::new();
    let words: Vec<u8> = (0..1000u32).flat_map(|number| send(&number.to_le_bytes())).collect();
    bench.say(&words, 10_000);
    assert!(bench.completions.is_empty() && bench.engine.arm());
    let span = bench.arena.span(0, 4096);
    let mut seen = 0;
    while seen < 1000 {
        let count = 1 + seen % 7;
        for slot in 0..count {
            let buffer = span.part(slot * 4, 4);
            bench.engine.post_recv(WrId(slot as u64), smallvec![buffer]).expect("recv");
        }
        assert!(!bench.engine.arm(), "it can go on");
        bench.engine.poll(&mut bench.completions, 100);
        for completion in bench.completions.drain(..) {
            assert_eq!((completion.opcode, completion.byte_len), (Opcode::Recv, 4));
            let bytes = bytes_of(&span.part(completion.wr_id.0 as usize * 4, 4));
            assert_eq!(bytes, (seen as u32).to_le_bytes());
            seen += 1;
        }
    }
}
